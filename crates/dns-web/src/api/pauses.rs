//! Pauses of filtering, and rules that end by themselves.

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use dns::{FilterPause, ListAction, Policy, TimedRule};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::Millis;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::scope::{parts, scope};
use crate::error::DnsApiError;
use crate::service::DnsState;

/// Longest pause and longest timed rule, in seconds: 30 days.
const DURATION_MAX_SECONDS: u64 = 30 * 86_400;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(list_pauses)).routes(routes!(list_timed)),
        operator: OpenApiRouter::new()
            .routes(routes!(pause).layer(from_fn(once)))
            .routes(routes!(resume))
            .routes(routes!(create_timed).layer(from_fn(once)))
            .routes(routes!(end_timed))
            .routes(routes!(delete_timed)),
        ..Routes::default()
    }
}

/// Returns the end of something that begins now and lasts so long.
pub(super) fn end(now: Millis, seconds: u64) -> Result<i64, ApiError> {
    if !(1..=DURATION_MAX_SECONDS).contains(&seconds) {
        let message = "name 1 to 2,592,000 seconds (30 days)";
        return Err(ApiError::invalid_field("duration_seconds", message));
    }
    Ok(now.0 + i64::try_from(seconds).unwrap_or(0) * 1_000)
}

/// Removes what has ended, so that the document stays small.
pub(super) fn remove_ended(policy: &mut Policy, now: Millis) {
    policy.pauses.retain(|pause| pause.until_ms > now.0);
    policy.timed_rules.retain(|rule| rule.until_ms > now.0);
}

/// Returns a page of what is shown as `V`.
fn page_of<T, V: From<T>>(
    parts: impl Iterator<Item = T>,
    page: &PageQuery,
) -> Result<Json<Page<V>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let items = parts.skip(offset).take(limit).map(V::from).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A pause of filtering.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsPause)]
struct PauseView {
    /// Group that is not filtered; null unless it is one group.
    #[schema(required)]
    group: Option<String>,
    /// Client that is not filtered, by id or address; null unless it is one client.
    #[schema(required)]
    client: Option<String>,
    /// End of the pause.
    ends_at: Timestamp,
}

impl From<&FilterPause> for PauseView {
    fn from(pause: &FilterPause) -> PauseView {
        let (group, client) = parts(&pause.scope);
        PauseView { group, client, ends_at: Timestamp(Millis(pause.until_ms)) }
    }
}

/// List the pauses that are on.
#[utoipa::path(get, path = "/api/v1/dns/pauses", tag = "dns", operation_id = "list_pauses",
    params(PageQuery),
    responses((status = 200, description = "A page of pauses.", body = Page<PauseView>)))]
async fn list_pauses(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<PauseView>>, DnsApiError> {
    let (policy, now) = (state.load_policy().await?, state.resolver.now());
    page_of(policy.pauses.iter().filter(|pause| pause.until_ms > now.0), &page)
}

/// A pause to begin now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewDnsPause, example = json!({ "duration_seconds": 600, "group": "kids" }))]
struct PauseBody {
    /// Length: 1 to 2,592,000 seconds.
    duration_seconds: u64,
    /// Only this group.
    group: Option<String>,
    /// Only this client, by id or address.
    client: Option<String>,
}

/// Pause filtering for everybody, a group or a client. It ends by itself, on every instance.
#[utoipa::path(post, path = "/api/v1/dns/pauses", tag = "dns", operation_id = "pause_filtering",
    params(IdempotencyKey), request_body = PauseBody,
    responses((status = 200, description = "Paused.", body = PauseView),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn pause(
    State(state): State<DnsState>,
    Json(body): Json<PauseBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let now = state.resolver.now();
    let pause = FilterPause {
        scope: scope(body.group, body.client)?,
        until_ms: end(now, body.duration_seconds)?,
    };
    state
        .resolver
        .update_policy(|policy| {
            remove_ended(policy, now);
            policy.pauses.retain(|other| other.scope != pause.scope);
            policy.pauses.push(pause.clone());
            Ok(())
        })
        .await?;
    let view = PauseView::from(&pause);
    let target = view.client.clone().or_else(|| view.group.clone());
    let note = Note::new("dns.pause", target.unwrap_or_else(|| "everybody".to_owned()));
    Ok((Extension(note), Json(view)))
}

/// The pauses to end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ResumeQuery {
    /// Only the pause of this group.
    group: Option<String>,
    /// Only the pause of this client.
    client: Option<String>,
}

/// A number of pauses that were ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EndedPauses)]
struct ResumedView {
    /// Pauses that were ended.
    ended: u64,
}

/// Filter again: end the pause of a group or a client, or all pauses.
#[utoipa::path(delete, path = "/api/v1/dns/pauses", tag = "dns", operation_id = "resume_filtering",
    params(ResumeQuery),
    responses((status = 200, description = "Filtered again.", body = ResumedView)))]
async fn resume(
    State(state): State<DnsState>,
    Query(query): Query<ResumeQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let now = state.resolver.now();
    let is_all = query.group.is_none() && query.client.is_none();
    let wanted = scope(query.group, query.client)?;
    let (_, ended) = state
        .resolver
        .update_policy(|policy| {
            remove_ended(policy, now);
            let before = policy.pauses.len();
            policy.pauses.retain(|pause| !is_all && pause.scope != wanted);
            Ok(before - policy.pauses.len())
        })
        .await?;
    let note = Note::new("dns.resume", if is_all { "everybody" } else { "a part" });
    Ok((Extension(note), Json(ResumedView { ended: ended as u64 })))
}

/// Allow or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DnsAction)]
pub(crate) enum ActionName {
    /// Allow.
    Allow,
    /// Block.
    Block,
}

impl From<ListAction> for ActionName {
    fn from(action: ListAction) -> ActionName {
        match action {
            ListAction::Allow => ActionName::Allow,
            ListAction::Block => ActionName::Block,
        }
    }
}

impl From<ActionName> for ListAction {
    fn from(action: ActionName) -> ListAction {
        match action {
            ActionName::Allow => ListAction::Allow,
            ActionName::Block => ListAction::Block,
        }
    }
}

/// A rule that ends by itself.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TimedRule)]
struct TimedView {
    /// Id.
    id: String,
    /// Name, with all names below it.
    name: String,
    /// Allow or block.
    action: ActionName,
    /// Group it holds for; null unless it is one group.
    #[schema(required)]
    group: Option<String>,
    /// Client it holds for, by id or address; null unless it is one client.
    #[schema(required)]
    client: Option<String>,
    /// End of the rule.
    ends_at: Timestamp,
}

impl From<&TimedRule> for TimedView {
    fn from(rule: &TimedRule) -> TimedView {
        let (group, client) = parts(&rule.scope);
        TimedView {
            id: rule.id.clone(),
            name: rule.name.clone(),
            action: rule.action.into(),
            group,
            client,
            ends_at: Timestamp(Millis(rule.until_ms)),
        }
    }
}

/// List the timed rules that hold.
#[utoipa::path(get, path = "/api/v1/dns/timed-rules", tag = "dns", operation_id = "list_timed_rules",
    params(PageQuery),
    responses((status = 200, description = "A page of rules.", body = Page<TimedView>)))]
async fn list_timed(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TimedView>>, DnsApiError> {
    let (policy, now) = (state.load_policy().await?, state.resolver.now());
    page_of(policy.timed_rules.iter().filter(|rule| rule.until_ms > now.0), &page)
}

/// A timed rule to begin now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTimedRule, example = json!({ "name": "games.example", "action": "allow", "duration_seconds": 3600, "client": "tablet" }))]
struct TimedBody {
    /// Name, with all names below it.
    name: String,
    /// Allow or block.
    action: ActionName,
    /// Length: 1 to 2,592,000 seconds.
    duration_seconds: u64,
    /// Only for this group.
    group: Option<String>,
    /// Only for this client, by id or address.
    client: Option<String>,
}

/// Allow or block a name for some time, for everybody, a group or a client. It ends by itself, on every
/// instance.
#[utoipa::path(post, path = "/api/v1/dns/timed-rules", tag = "dns", operation_id = "create_timed_rule",
    params(IdempotencyKey), request_body = TimedBody,
    responses((status = 200, description = "It holds.", body = TimedView),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn create_timed(
    State(state): State<DnsState>,
    Json(body): Json<TimedBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let now = state.resolver.now();
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(&error))?;
    let rule = TimedRule {
        id: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        name: super::cache::parse_name(&body.name)?.to_string(),
        action: body.action.into(),
        scope: scope(body.group, body.client)?,
        until_ms: end(now, body.duration_seconds)?,
    };
    state
        .resolver
        .update_policy(|policy| {
            remove_ended(policy, now);
            // The newest word about a name counts.
            policy.timed_rules.retain(|old| old.name != rule.name || old.scope != rule.scope);
            policy.timed_rules.push(rule.clone());
            Ok(())
        })
        .await?;
    let note = Note::new("dns.timed_rule", rule.name.clone());
    let note = note.change(json!(null), json!({ "action": body.action, "id": rule.id }));
    Ok((Extension(note), Json(TimedView::from(&rule))))
}

/// The timed rules to end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EndTimedQuery {
    /// Name.
    name: String,
    /// Only the rule of this group.
    group: Option<String>,
    /// Only the rule of this client.
    client: Option<String>,
}

/// A number of timed rules that were ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EndedTimedRules)]
struct EndedTimedView {
    /// Rules that were ended.
    ended: u64,
}

/// End the timed rule about a name now: that for everybody, for a group, or for a client.
#[utoipa::path(delete, path = "/api/v1/dns/timed-rules", tag = "dns", operation_id = "end_timed_rules",
    params(EndTimedQuery),
    responses((status = 200, description = "Ended.", body = EndedTimedView),
        (status = 404, description = "There is no timed rule about this name.", body = web::error::ErrorBody)))]
async fn end_timed(
    State(state): State<DnsState>,
    Query(query): Query<EndTimedQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let name = super::cache::parse_name(&query.name)?.to_string();
    let wanted = scope(query.group, query.client)?;
    let now = state.resolver.now();
    let (_, ended) = state
        .resolver
        .update_policy(|policy| {
            remove_ended(policy, now);
            let before = policy.timed_rules.len();
            policy.timed_rules.retain(|rule| rule.name != name || rule.scope != wanted);
            Ok(before - policy.timed_rules.len())
        })
        .await?;
    if ended == 0 {
        return Err(ApiError::not_found("there is no timed rule for this name").into());
    }
    Ok((
        Extension(Note::new("dns.timed_rule_end", name)),
        Json(EndedTimedView { ended: ended as u64 }),
    ))
}

/// End a timed rule now.
#[utoipa::path(delete, path = "/api/v1/dns/timed-rules/{id}", tag = "dns",
    operation_id = "delete_timed_rule",
    params(("id" = String, Path, description = "Id of the rule.")),
    responses((status = 200, description = "Ended.", body = TimedView)))]
async fn delete_timed(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    let now = state.resolver.now();
    let (_, removed) = state
        .resolver
        .update_policy(|policy| {
            let found = policy.timed_rules.iter().position(|rule| rule.id == id);
            let removed = found.map(|index| policy.timed_rules.remove(index));
            remove_ended(policy, now);
            Ok(removed)
        })
        .await?;
    let rule = removed.ok_or_else(|| ApiError::not_found("there is no timed rule with this id"))?;
    let note = Note::new("dns.timed_rule_end", rule.name.clone());
    Ok((Extension(note), Json(TimedView::from(&rule))))
}
