//! Limits for proxies: nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (`ForwardAuth`) ask
//! here with every request whether it is within a policy, which it is then charged to.
//!
//! A request counts for the visitor's address, as trusted proxies tell it. Within the policy the answer
//! is 204; else it is 429, or 403 for nginx, whose `auth_request` knows no other refusal. Both have the
//! headers of a limited response, for the proxy to copy.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use desk::PolicyName;
use desk::limit::LimitedParty;
use web::Routes;
use web::client::Client;
use web::extract::Path;

use crate::error::{DeskApiError, unknown_policy};
use crate::limiter::verdict;
use crate::service::DeskState;

/// The routes.
pub(crate) fn routes() -> Routes<DeskState> {
    let router = Router::new()
        .route("/gate/limit/nginx/{policy}", route_of(StatusCode::FORBIDDEN))
        .route("/gate/limit/forward/{policy}", route_of(StatusCode::TOO_MANY_REQUESTS));
    Routes { public: router.into(), ..Routes::default() }
}

/// A route that denies with this status.
fn route_of(denial: StatusCode) -> MethodRouter<DeskState> {
    any(async move |State(state): State<DeskState>, Path(policy): Path<String>, client: Client| {
        answer(&state, &policy, client, denial).await
    })
}

async fn answer(
    state: &DeskState,
    policy: &str,
    client: Client,
    denial: StatusCode,
) -> Result<Response, DeskApiError> {
    let book = &state.desk.book;
    let named = PolicyName::parse(policy).ok().and_then(|name| book.find(&name));
    let named = named.ok_or_else(|| unknown_policy(policy))?;
    let decision = book.check(&LimitedParty::ip(client.ip), &[named], 1, None).await?;
    let (verdict, style) = (verdict(&decision), state.app.limit_headers());
    if decision.allowed {
        let mut response = StatusCode::NO_CONTENT.into_response();
        response.headers_mut().extend(verdict.headers(style, decision.at));
        return Ok(response);
    }
    let message = "too many requests from your address; wait as long as Retry-After says";
    let mut response = verdict.to_error(message, style, decision.at).into_response();
    *response.status_mut() = denial;
    Ok(response)
}
