//! This instance: where it listens, what it has received.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::Routes;
use web::extract::Json;

use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes { viewer: OpenApiRouter::new().routes(routes!(status)), ..Routes::default() }
}

/// An instance of the resolver.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResolverStatus)]
struct StatusView {
    /// Name of the instance.
    instance: String,
    /// Version of the program.
    version: &'static str,
    /// Seconds since its start.
    uptime_seconds: u64,
    /// Addresses on which it takes queries over UDP and TCP.
    #[schema(example = json!(["127.0.0.1:7053"]))]
    listen: Vec<String>,
    /// Queries received over UDP.
    udp_queries: u64,
    /// Queries received over TCP.
    tcp_queries: u64,
    /// Queries dropped because too many waited.
    dropped_queries: u64,
    /// Replies dropped because the socket was full.
    dropped_replies: u64,
}

/// Get the state of the instance that answers this call.
#[utoipa::path(get, path = "/api/v1/dns/status", tag = "dns", operation_id = "get_resolver_status",
    responses((status = 200, description = "Its state.", body = StatusView)))]
async fn status(State(state): State<DnsState>) -> Json<StatusView> {
    let stats = state.listeners.stats();
    Json(StatusView {
        instance: state.app.instance().to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: state.app.uptime().as_secs(),
        listen: state.listeners.addresses().iter().map(ToString::to_string).collect(),
        udp_queries: stats.udp_queries,
        tcp_queries: stats.tcp_queries,
        dropped_queries: stats.dropped_queries,
        dropped_replies: stats.dropped_replies,
    })
}
