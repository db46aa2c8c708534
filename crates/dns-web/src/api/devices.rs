//! Clients that were seen and are not known yet, the set-up of devices, and requests to allow a name.

use std::net::IpAddr;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use dns::{AllowRequest, AllowRequestState, ListAction, PolicyScope, TimedRule};
use serde::{Deserialize, Serialize};
use store::Millis;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use crate::error::DnsApiError;
use crate::profile::{AppleProfile, draw_uuid};
use crate::service::DnsState;

/// Seen clients that are looked at.
const SEEN_MAX: usize = 2_000;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(discovered))
            .routes(routes!(endpoints))
            .routes(routes!(profile))
            .routes(routes!(list_requests)),
        operator: OpenApiRouter::new().routes(routes!(decide)).routes(routes!(delete_request)),
        ..Routes::default()
    }
}

/// A client that was seen and is not known.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = DiscoveredClient)]
pub(crate) struct DiscoveredView {
    /// Address or id, as the log has it.
    #[schema(example = "192.168.1.44")]
    pub(crate) client: String,
    /// Last time it asked.
    pub(crate) seen_at: Timestamp,
}

/// Returns the clients that were seen and are not in the policy, the latest first.
pub(crate) async fn unknown_clients(state: &DnsState) -> Result<Vec<DiscoveredView>, DnsApiError> {
    let seen = state.seen.latest(SEEN_MAX).await?;
    let version = state.resolver.policy();
    let is_known = |client: &str| {
        let address: Option<IpAddr> = client.parse().ok();
        version.policy.clients.iter().any(|entry| {
            let fits = |text: &String| match (address, text.parse::<ipnet::IpNet>()) {
                (Some(address), Ok(network)) => network.contains(&address),
                _ => text == client,
            };
            entry.id == client || entry.addresses.iter().any(fits)
        })
    };
    let unknown = seen.into_iter().filter(|one| !is_known(&one.client));
    Ok(unknown
        .map(|one| DiscoveredView { client: one.client, seen_at: Timestamp(one.seen_at) })
        .collect())
}

/// List the clients that asked lately and are not known, the latest first.
#[utoipa::path(get, path = "/api/v1/dns/discovered-clients", tag = "dns",
    operation_id = "list_discovered_clients", params(PageQuery),
    responses((status = 200, description = "A page of clients.", body = Page<DiscoveredView>)))]
async fn discovered(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<DiscoveredView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let items = unknown_clients(&state).await?.into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// The client to set up.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct EndpointQuery {
    /// Id of the client; everybody if left out.
    client: Option<String>,
}

/// The encrypted endpoints, as a device takes them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsEndpoints)]
struct EndpointsView {
    /// URL for DNS over HTTPS; null without a certificate and a name.
    #[schema(required, example = "https://dns.example/dns-query/tablet")]
    https_url: Option<String>,
    /// Name for DNS over TLS; null unless it is served. Android's private DNS takes it.
    #[schema(required, example = "tablet.dns.example")]
    tls_host: Option<String>,
    /// Missing prerequisite; null if there is none.
    #[schema(required)]
    missing: Option<String>,
}

fn client_id(client: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(id) = client.filter(|id| !id.is_empty()) else { return Ok(None) };
    let is_label = id.len() <= 63
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    match is_label {
        true => Ok(Some(id)),
        false => Err(ApiError::invalid_field(
            "client",
            "an id for encrypted queries has 1 to 63 characters of a-z, 0-9 and -",
        )),
    }
}

/// Get the encrypted endpoints, for everybody or one client.
#[utoipa::path(get, path = "/api/v1/dns/endpoints", tag = "dns", operation_id = "get_dns_endpoints",
    params(EndpointQuery),
    responses((status = 200, description = "The endpoints.", body = EndpointsView)))]
async fn endpoints(
    State(state): State<DnsState>,
    Query(query): Query<EndpointQuery>,
) -> Result<Json<EndpointsView>, DnsApiError> {
    let client = client_id(query.client)?;
    let found = &state.endpoints;
    Ok(Json(EndpointsView {
        https_url: found.https_url(client.as_deref()),
        tls_host: found.tls_host(client.as_deref()),
        missing: found.missing(true).map(str::to_owned),
    }))
}

/// Protocol of a profile.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ProfileProtocol {
    /// DNS over HTTPS.
    Https,
    /// DNS over TLS.
    Tls,
}

/// A profile for Apple devices.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct ProfileQuery {
    /// Id of the client; everybody if left out.
    client: Option<String>,
    /// Protocol; `https` if left out.
    #[param(inline)]
    protocol: Option<ProfileProtocol>,
    /// Addresses of this server, separated by commas, so that its name need not be looked up elsewhere.
    addresses: Option<String>,
    /// Names of Wi-Fi networks on which the profile does nothing, separated by commas.
    wifi_exceptions: Option<String>,
}

/// Make a configuration profile for Apple devices.
#[utoipa::path(get, path = "/api/v1/dns/profile", tag = "dns", operation_id = "get_apple_profile",
    params(ProfileQuery),
    responses((status = 200, description = "The profile.", content_type = "text/plain", body = String),
        (status = 409, description = "`NO_ENDPOINT`: no encrypted endpoint is set up.", body = web::error::ErrorBody)))]
async fn profile(
    State(state): State<DnsState>,
    Query(query): Query<ProfileQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let over_tls = matches!(query.protocol, Some(ProfileProtocol::Tls));
    let words = |text: &Option<String>| -> Vec<String> {
        let words = text.iter().flat_map(|text| text.split(',')).map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let addresses = words(&query.addresses)
        .iter()
        .map(|text| {
            let wrong = |_| format!("{text:?} is not an address");
            text.parse::<IpAddr>().map_err(wrong)
        })
        .collect::<Result<Vec<IpAddr>, String>>()
        .map_err(|message| ApiError::invalid_field("addresses", message))?;
    if let Some(missing) = state.endpoints.missing(over_tls) {
        return Err(ApiError::conflict("NO_ENDPOINT", missing).into());
    }
    let made = AppleProfile {
        over_tls,
        client: client_id(query.client)?,
        addresses,
        wifi_exceptions: words(&query.wifi_exceptions),
    };
    let uuids = draw_uuid().zip(draw_uuid());
    let (inner, outer) = uuids.ok_or_else(|| ApiError::internal(&"no random numbers"))?;
    let text = made
        .write(&state.endpoints, [&inner, &outer])
        .ok_or_else(|| ApiError::conflict("NO_ENDPOINT", "this endpoint is not set up"))?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-apple-aspen-config"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_DISPOSITION, "attachment; filename=tidegate.mobileconfig"),
    ];
    Ok((headers, text))
}

/// The state of a request to allow a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AllowRequestState)]
pub(crate) enum RequestStateName {
    /// Nobody has decided.
    Waiting,
    /// The name was allowed.
    Allowed,
    /// The name stays blocked.
    Denied,
}

/// A request to allow a name, made on the block page.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = AllowRequest)]
pub(crate) struct RequestView {
    /// Id.
    pub(crate) id: String,
    /// Name that is blocked.
    pub(crate) name: String,
    /// Address of the client.
    pub(crate) client: String,
    /// Id of the client; empty if it is not known.
    pub(crate) client_id: String,
    /// List or rule that blocks the name.
    pub(crate) list: String,
    /// Words of the person who asks.
    pub(crate) note: String,
    /// State.
    pub(crate) state: RequestStateName,
    /// Time of the request.
    pub(crate) asked_at: Timestamp,
    /// Time of the decision; null before it.
    #[schema(required)]
    pub(crate) decided_at: Option<Timestamp>,
}

impl From<AllowRequest> for RequestView {
    fn from(request: AllowRequest) -> RequestView {
        RequestView {
            id: request.id,
            name: request.name,
            client: request.client,
            client_id: request.client_id,
            list: request.list,
            note: request.note,
            state: match request.state {
                AllowRequestState::Waiting => RequestStateName::Waiting,
                AllowRequestState::Allowed => RequestStateName::Allowed,
                AllowRequestState::Denied => RequestStateName::Denied,
            },
            asked_at: Timestamp(Millis(request.asked_ms)),
            decided_at: (request.decided_ms > 0).then_some(Timestamp(Millis(request.decided_ms))),
        }
    }
}

/// List the requests to allow a name: those that wait first.
#[utoipa::path(get, path = "/api/v1/dns/allow-requests", tag = "dns",
    operation_id = "list_allow_requests", params(PageQuery),
    responses((status = 200, description = "A page of requests.", body = Page<RequestView>)))]
async fn list_requests(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<RequestView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = state.requests.list().await?;
    let items = found.into_iter().skip(offset).take(limit).map(RequestView::from).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AllowDecisionKind)]
enum DecisionName {
    /// Allow the name for everybody, or for the client for some time.
    Allow,
    /// The name stays blocked.
    Deny,
}

/// A decision about a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AllowDecision, example = json!({ "decision": "allow", "duration_seconds": 3600 }))]
struct DecisionBody {
    /// Allow or deny.
    decision: DecisionName,
    /// Allow it for the client that asked, for so long: 1 to 2,592,000. Left out: for everybody, for good.
    duration_seconds: Option<u64>,
}

/// Decide a request to allow a name.
#[utoipa::path(post, path = "/api/v1/dns/allow-requests/{id}/decision", tag = "dns",
    operation_id = "decide_allow_request",
    params(("id" = String, Path, description = "Id of the request.")), request_body = DecisionBody,
    responses((status = 200, description = "Decided.", body = RequestView)))]
async fn decide(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<DecisionBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let missing = || DnsApiError::from(ApiError::not_found("there is no request with this id"));
    let request = state.requests.get(&id).await?.ok_or_else(missing)?;
    let now = state.resolver.now();
    let is_allow = body.decision == DecisionName::Allow;
    if is_allow {
        match body.duration_seconds {
            Some(seconds) => {
                let until_ms = super::pauses::end(now, seconds)?;
                let client = match request.client_id.is_empty() {
                    true => request.client.clone(),
                    false => request.client_id.clone(),
                };
                let rule = TimedRule {
                    id: request.id.clone(),
                    name: request.name.clone(),
                    action: ListAction::Allow,
                    scope: PolicyScope::Client(client),
                    until_ms,
                };
                state
                    .resolver
                    .update_policy(|policy| {
                        super::pauses::remove_ended(policy, now);
                        policy.timed_rules.retain(|old| old.id != rule.id);
                        policy.timed_rules.push(rule.clone());
                        Ok(())
                    })
                    .await?;
            }
            None => {
                let rule = format!("@@||{}^", request.name);
                state
                    .resolver
                    .update_policy(|policy| {
                        policy.rules.retain(|known| *known != format!("||{}^", request.name));
                        if !policy.rules.contains(&rule) {
                            policy.rules.push(rule.clone());
                        }
                        Ok(())
                    })
                    .await?;
            }
        }
    }
    let decision = if is_allow { AllowRequestState::Allowed } else { AllowRequestState::Denied };
    let decided = state.requests.decide(&id, decision, now).await?.ok_or_else(missing)?;
    let action = if is_allow { "dns_request.allow" } else { "dns_request.deny" };
    Ok((Extension(Note::new(action, &decided.name)), Json(RequestView::from(decided))))
}

/// Remove a request. The client may ask again.
#[utoipa::path(delete, path = "/api/v1/dns/allow-requests/{id}", tag = "dns",
    operation_id = "delete_allow_request",
    params(("id" = String, Path, description = "Id of the request.")),
    responses((status = 200, description = "Removed.", body = RequestView)))]
async fn delete_request(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    let missing = || DnsApiError::from(ApiError::not_found("there is no request with this id"));
    let request = state.requests.get(&id).await?.ok_or_else(missing)?;
    state.requests.remove(&id).await?;
    let note = Note::new("dns_request.delete", &request.name);
    Ok((Extension(note), Json(RequestView::from(request))))
}
