//! The servers that queries are forwarded to.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use dns::wire::{AnswerKind, TtlBounds};
use dns::{
    DomainUpstreams, Policy, Question, UpstreamAddress, UpstreamOptions, UpstreamStats, Upstreams,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;
use web::audit::Note;
use web::extract::{Json, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use super::cache::parse_name;
use super::patches::group_of;
use super::shapes::{ServerBody, convert};
use crate::error::DnsApiError;
use crate::records::MessageText;
use crate::service::DnsState;

/// Time for a server to answer a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(list)),
        operator: OpenApiRouter::new()
            .routes(routes!(test))
            .routes(routes!(create).layer(from_fn(once)))
            .routes(routes!(delete)),
        ..Routes::default()
    }
}

/// An upstream, as this instance sees it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Upstream)]
pub(crate) struct UpstreamView {
    /// The server.
    #[schema(example = "udp://9.9.9.9:53")]
    pub(crate) server: String,
    /// True unless its last attempts failed; then it is asked last.
    pub(crate) is_healthy: bool,
    /// Queries sent to it since the start.
    pub(crate) queries: u64,
    /// Attempts that failed.
    pub(crate) failures: u64,
    /// Messages from it that did not fit a query and were dropped.
    pub(crate) mismatches: u64,
    /// Mean response time of the answers that were used; null before the first.
    #[schema(required)]
    pub(crate) response_ms: Option<u64>,
    /// 95 % of the last responses took no longer; null before the first.
    #[schema(required)]
    pub(crate) p95_ms: Option<u64>,
    /// Failure of the last attempt; null if it worked.
    #[schema(required)]
    pub(crate) last_failure: Option<String>,
    /// Name on pages; empty if it has none.
    pub(crate) name: String,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<UpstreamStats> for UpstreamView {
    fn from(stats: UpstreamStats) -> UpstreamView {
        UpstreamView {
            server: stats.server.to_string(),
            is_healthy: !stats.is_in_backoff,
            queries: stats.queries,
            failures: stats.failures,
            mismatches: stats.dropped,
            response_ms: stats.response.map(millis),
            p95_ms: stats.response_p95.map(millis),
            last_failure: stats.last_failure.map(|failure| failure.to_string()),
            name: stats.name,
        }
    }
}

/// List the upstreams of this instance with their health.
#[utoipa::path(get, path = "/api/v1/dns/upstreams", tag = "dns", params(PageQuery),
    operation_id = "list_upstreams",
    responses((status = 200, description = "A page of upstreams.", body = Page<UpstreamView>)))]
async fn list(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<UpstreamView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let stats = state.resolver.upstreams().stats();
    let items = stats.into_iter().skip(offset).take(limit).map(UpstreamView::from).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A server to test.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpstreamTestRequest, example = json!({ "server": "tls://dns.example", "name": "example.org" }))]
struct TestBody {
    /// The server, in use or not: an address, `tcp://`, `tls://`, `https://` or `sdns://`.
    server: String,
    /// Name to ask for; the name servers of the root if left out.
    name: Option<String>,
}

/// The result of a test.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UpstreamTestResult)]
struct TestView {
    /// The server.
    server: String,
    /// The result in a few words.
    result: String,
    /// True if it answered.
    is_ok: bool,
    /// Time until the answer, or until it was given up.
    took_ms: u64,
    /// The answer in short.
    answer: String,
    /// The failure; null if it answered.
    #[schema(required)]
    error: Option<String>,
}

/// The data of an answer, at most three records.
fn shorten(wire: &[u8]) -> String {
    let message = MessageText::read(wire).unwrap_or_default();
    if message.answers.is_empty() {
        return message.rcode;
    }
    let data = message.answers.iter().take(3).map(|record| record.data.as_str());
    data.collect::<Vec<_>>().join(", ")
}

/// Ask a server for a name, without using it for anything.
#[utoipa::path(post, path = "/api/v1/dns/upstreams/test", tag = "dns", operation_id = "test_upstream",
    request_body = TestBody,
    responses((status = 200, description = "The result.", body = TestView)))]
async fn test(
    State(state): State<DnsState>,
    Json(body): Json<TestBody>,
) -> Result<Json<TestView>, DnsApiError> {
    let server: UpstreamAddress = body
        .server
        .trim()
        .parse()
        .map_err(|error| ApiError::invalid_field("server", format!("{error}")))?;
    let (name, qtype) = match body.name.as_deref().map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => (parse_name(name)?, 1),
        None => (dns::DomainName::root(), 2),
    };
    let question = Question { name, qtype, qclass: 1 };
    let shown = server.to_string();
    let options = UpstreamOptions {
        servers: vec![server],
        timeout: TEST_TIMEOUT,
        ..UpstreamOptions::default()
    };
    let upstreams = Upstreams::with_needs(options, state.needs.clone());
    let started = Instant::now();
    let asked = upstreams.ask(&question, AnswerKind::Plain, TtlBounds::default());
    let asked = tokio::time::timeout(TEST_TIMEOUT, asked).await;
    let took_ms = millis(started.elapsed());
    let (answer, error) = match asked {
        Ok(Ok(found)) => (shorten(found.answer.as_wire()), None),
        Ok(Err(error)) => (String::new(), Some(error.to_string())),
        Err(_) => (String::new(), Some("no answer within 5 s".to_owned())),
    };
    let result = match &error {
        None => format!("answered in {took_ms} ms"),
        Some(error) => error.clone(),
    };
    Ok(Json(TestView { server: shown, result, is_ok: error.is_none(), took_ms, answer, error }))
}

/// A server to forward queries to: all of them, those for some domains, or those of a group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewUpstream, example = json!({ "address": "192.168.1.1", "domains": ["home.example"] }))]
struct NewServerBody {
    /// `192.0.2.1`, `tcp://192.0.2.1:53`, `tls://dns.example`, `https://dns.example/dns-query` or a
    /// stamp, `sdns://…`.
    #[schema(example = "tls://dns.example")]
    address: String,
    /// Name on pages.
    #[serde(default)]
    name: Option<String>,
    /// Addresses of its host, in place of asking the bootstrap servers.
    #[serde(default)]
    bootstrap: Option<Vec<String>>,
    /// Domains whose queries it gets, with all names below them; all queries if left out.
    #[serde(default)]
    domains: Option<Vec<String>>,
    /// Group whose queries it gets; everybody's if left out.
    #[serde(default)]
    group: Option<String>,
}

fn no_group() -> ApiError {
    ApiError::not_found("there is no such group")
}

/// Add a server that queries are forwarded to: all, those for some domains, or those of a group. With the first
/// one for all, those of the setting `dns.upstreams` are not asked any more.
#[utoipa::path(post, path = "/api/v1/dns/upstreams", tag = "dns", operation_id = "create_upstream",
    params(IdempotencyKey), request_body = NewServerBody,
    responses((status = 200, description = "In place.", body = ServerBody),
        (status = 404, description = "There is no such group.", body = web::error::ErrorBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn create(
    State(state): State<DnsState>,
    Json(body): Json<NewServerBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let NewServerBody { address, name, bootstrap, domains, group } = body;
    let body = ServerBody { address, name, bootstrap };
    let server: dns::UpstreamServer = convert(&body)?;
    let domains = domains.filter(|domains| !domains.is_empty());
    let group = group.filter(|group| !group.is_empty());
    if domains.is_some() && group.is_some() {
        let message = "name domains or a group, not both";
        return Err(ApiError::invalid_field("group", message).into());
    }
    let (_, is_placed) = state
        .resolver
        .update_policy(|policy| {
            let servers = match (&domains, &group) {
                (Some(domains), _) => servers_of_domains(policy, domains),
                (None, Some(id)) => match group_of(policy, id) {
                    Some(group) => &mut group.upstreams,
                    None => return Ok(false),
                },
                (None, None) => &mut policy.upstreams.servers,
            };
            servers.retain(|known| known.address != server.address);
            servers.push(server.clone());
            Ok(true)
        })
        .await?;
    if !is_placed {
        return Err(no_group().into());
    }
    let note = Note::new("dns_upstream.create", &server.address);
    Ok((Extension(note), Json(convert::<_, ServerBody>(&server)?)))
}

/// Returns the servers of these domains, which are none at first.
fn servers_of_domains<'a>(
    policy: &'a mut Policy,
    domains: &[String],
) -> &'a mut Vec<dns::UpstreamServer> {
    let all = &mut policy.upstreams.domains;
    let at = all.iter().position(|one| one.domains == domains).unwrap_or_else(|| {
        all.push(DomainUpstreams { domains: domains.to_vec(), servers: Vec::new() });
        all.len() - 1
    });
    // The index was found or made just now.
    match all.get_mut(at) {
        Some(found) => &mut found.servers,
        None => &mut policy.upstreams.servers,
    }
}

/// The server to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ServerQuery {
    /// Address, as it was added or as it is listed.
    server: String,
    /// One of the domains whose queries it gets; left out if it gets all.
    domain: Option<String>,
    /// Group whose queries it gets; left out if it gets everybody's.
    group: Option<String>,
}

/// Remove a server from the policy. After the last one for all queries, those of the setting `dns.upstreams` are
/// asked again.
#[utoipa::path(delete, path = "/api/v1/dns/upstreams", tag = "dns", operation_id = "delete_upstream",
    params(ServerQuery),
    responses((status = 200, description = "Removed.", body = ServerBody),
        (status = 404, description = "The policy has no such server.", body = web::error::ErrorBody)))]
async fn delete(
    State(state): State<DnsState>,
    Query(query): Query<ServerQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let (_, removed) = state
        .resolver
        .update_policy(|policy| {
            let is_it = |known: &dns::UpstreamServer| {
                let listed = known.address.parse::<UpstreamAddress>().map(|one| one.to_string());
                known.address == query.server || listed.is_ok_and(|listed| listed == query.server)
            };
            let take = |servers: &mut Vec<dns::UpstreamServer>| {
                let found = servers.iter().position(is_it);
                found.map(|index| servers.remove(index))
            };
            let removed = match (&query.domain, &query.group) {
                (Some(domain), _) => {
                    let all = &mut policy.upstreams.domains;
                    let of_domain = all.iter_mut().filter(|one| one.domains.contains(domain));
                    let removed = of_domain.map(|one| take(&mut one.servers)).find_map(|one| one);
                    all.retain(|one| !one.servers.is_empty());
                    removed
                }
                (None, Some(id)) => {
                    let group = policy.groups.iter_mut().find(|group| group.id == *id);
                    group.and_then(|group| take(&mut group.upstreams))
                }
                (None, None) => take(&mut policy.upstreams.servers),
            };
            Ok(removed)
        })
        .await?;
    let message =
        "the policy has no such server; those of the setting dns.upstreams are changed there";
    let removed = removed.ok_or_else(|| ApiError::not_found(message))?;
    let note = Note::new("dns_upstream.delete", &removed.address);
    Ok((Extension(note), Json(convert::<_, ServerBody>(&removed)?)))
}
