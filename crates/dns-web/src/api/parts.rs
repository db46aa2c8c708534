//! The parts of the policy that have an id or can be listed: lists, groups, clients, records, rules.

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use dns::{ClientEntry, ClientGroup, DEFAULT_GROUP, ListRefresh, ListSource, LocalRecord, Policy};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;
use web::audit::Note;
use web::extract::{Json, OptionalJson, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use super::shapes::{ClientBody, GroupBody, ListBody, RecordBody, convert};
use crate::error::DnsApiError;
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list_lists))
            .routes(routes!(list_groups))
            .routes(routes!(list_clients))
            .routes(routes!(list_records))
            .routes(routes!(list_rules)),
        operator: OpenApiRouter::new()
            .routes(routes!(put_list).layer(from_fn(once)))
            .routes(routes!(delete_list))
            .routes(routes!(refresh_list))
            .routes(routes!(put_group).layer(from_fn(once)))
            .routes(routes!(delete_group))
            .routes(routes!(put_client).layer(from_fn(once)))
            .routes(routes!(delete_client))
            .routes(routes!(create_record).layer(from_fn(once)))
            .routes(routes!(delete_record))
            .routes(routes!(create_rule).layer(from_fn(once)))
            .routes(routes!(delete_rule)),
        ..Routes::default()
    }
}

/// A part of the policy that was removed, or was not there.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RemovedPart)]
struct RemovedView {
    /// Id or text of the part.
    id: String,
}

fn page_of<T: Serialize, B: serde::de::DeserializeOwned>(
    parts: &[T],
    page: &PageQuery,
) -> Result<Json<Page<B>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let items: Result<Vec<B>, DnsApiError> =
        parts.iter().skip(offset).take(limit).map(convert).collect();
    Ok(Json(Page::at(offset, limit, items?)))
}

fn missing(what: &str) -> DnsApiError {
    ApiError::not_found(format!("there is no {what} with this id")).into()
}

/// Replaces the part with the same id, or adds it.
fn put_part<T>(parts: &mut Vec<T>, part: T, is_same: impl Fn(&T) -> bool) {
    match parts.iter_mut().find(|known| is_same(known)) {
        Some(known) => *known = part,
        None => parts.push(part),
    }
}

/// Removes parts; the error says that there is none.
async fn remove_parts(
    state: &DnsState,
    what: &str,
    remove: impl Fn(&mut Policy) -> usize,
) -> Result<(), DnsApiError> {
    let (_, removed) = state
        .resolver
        .update_policy(|policy| {
            let removed = remove(policy);
            Ok(removed)
        })
        .await?;
    if removed == 0 { Err(missing(what)) } else { Ok(()) }
}

fn retain<T>(parts: &mut Vec<T>, keep: impl Fn(&T) -> bool) -> usize {
    let before = parts.len();
    parts.retain(|part| keep(part));
    before - parts.len()
}

/// List the lists of names.
#[utoipa::path(get, path = "/api/v1/dns/lists", tag = "dns", operation_id = "list_lists", params(PageQuery),
    responses((status = 200, description = "A page of lists.", body = Page<ListBody>)))]
async fn list_lists(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ListBody>>, DnsApiError> {
    page_of(&state.load_policy().await?.lists, &page)
}

/// Add a list, or change the one of this id. It is fetched in the background.
#[utoipa::path(put, path = "/api/v1/dns/lists/{id}", tag = "dns", operation_id = "put_list",
    params(("id" = String, Path, description = "Id of the list."), IdempotencyKey), request_body = ListBody,
    responses((status = 200, description = "In place.", body = ListBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn put_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(mut body): Json<ListBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    body.id = id.clone();
    let list: ListSource = convert(&body)?;
    state
        .resolver
        .update_policy(|policy| {
            put_part(&mut policy.lists, list.clone(), |known| known.id == id);
            Ok(())
        })
        .await?;
    let note = Note::new("dns_list.put", &id).change(json!(null), &body);
    Ok((Extension(note), Json(convert::<_, ListBody>(&list)?)))
}

/// Remove a list. Groups that name it forget it.
#[utoipa::path(delete, path = "/api/v1/dns/lists/{id}", tag = "dns", operation_id = "delete_list",
    params(("id" = String, Path, description = "Id of the list.")),
    responses((status = 200, description = "Removed.", body = RemovedView)))]
async fn delete_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    remove_parts(&state, "list", |policy| {
        for group in &mut policy.groups {
            if let Some(lists) = &mut group.lists {
                lists.retain(|list| *list != id);
            }
        }
        retain(&mut policy.lists, |list| list.id != id)
    })
    .await?;
    Ok((Extension(Note::new("dns_list.delete", &id)), Json(RemovedView { id })))
}

/// Fetching a list now.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ListRefreshRequest, example = json!({ "confirmed": true }))]
struct RefreshBody {
    /// Put a copy to use that lost more than half of its rules.
    confirmed: Option<bool>,
}

/// The result of fetching a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ListRefreshResult)]
struct RefreshedView {
    /// True if a new copy is in use.
    replaced: bool,
    /// True if the new copy has less than half of the rules, and waits for `confirmed`.
    needs_confirmation: bool,
}

/// Fetch a list now.
#[utoipa::path(post, path = "/api/v1/dns/lists/{id}/refresh", tag = "dns", operation_id = "refresh_list",
    params(("id" = String, Path, description = "Id of the list.")), request_body = RefreshBody,
    responses((status = 200, description = "Fetched.", body = RefreshedView)))]
async fn refresh_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    OptionalJson(body): OptionalJson<RefreshBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    if !state.resolver.policy().policy.lists.iter().any(|list| list.id == id) {
        return Err(missing("list"));
    }
    let refreshed = state.resolver.refresh_list(&id, body.confirmed.unwrap_or(false)).await?;
    let view = RefreshedView {
        replaced: matches!(refreshed, ListRefresh::Replaced { .. }),
        needs_confirmation: matches!(refreshed, ListRefresh::NeedsConfirmation { .. }),
    };
    Ok((Extension(Note::new("dns_list.refresh", &id)), Json(view)))
}

/// List the groups, the default one first.
#[utoipa::path(get, path = "/api/v1/dns/groups", tag = "dns", operation_id = "list_groups", params(PageQuery),
    responses((status = 200, description = "A page of groups.", body = Page<GroupBody>)))]
async fn list_groups(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<GroupBody>>, DnsApiError> {
    page_of(&state.load_policy().await?.all_groups(), &page)
}

/// Add a group, or replace the one of this id.
#[utoipa::path(put, path = "/api/v1/dns/groups/{id}", tag = "dns", operation_id = "put_group",
    params(("id" = String, Path, description = "Id of the group."), IdempotencyKey), request_body = GroupBody,
    responses((status = 200, description = "In place.", body = GroupBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn put_group(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(mut body): Json<GroupBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    body.id = id.clone();
    let group: ClientGroup = convert(&body)?;
    state
        .resolver
        .update_policy(|policy| {
            put_part(&mut policy.groups, group.clone(), |known| known.id == id);
            Ok(())
        })
        .await?;
    let note = Note::new("dns_group.put", &id).change(json!(null), &body);
    Ok((Extension(note), Json(convert::<_, GroupBody>(&group)?)))
}

/// Remove a group. Its clients move to the default group, which itself cannot be removed.
#[utoipa::path(delete, path = "/api/v1/dns/groups/{id}", tag = "dns", operation_id = "delete_group",
    params(("id" = String, Path, description = "Id of the group.")),
    responses((status = 200, description = "Removed.", body = RemovedView),
        (status = 409, description = "`DEFAULT_GROUP`: the default group stays.", body = web::error::ErrorBody)))]
async fn delete_group(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    if id == DEFAULT_GROUP {
        let message = "the default group cannot be removed; change it instead";
        return Err(ApiError::conflict("DEFAULT_GROUP", message).into());
    }
    remove_parts(&state, "group", |policy| {
        for client in policy.clients.iter_mut().filter(|client| client.group == id) {
            client.group = DEFAULT_GROUP.to_owned();
        }
        let scope = dns::PolicyScope::Group(id.clone());
        policy.pauses.retain(|pause| pause.scope != scope);
        policy.timed_rules.retain(|rule| rule.scope != scope);
        retain(&mut policy.groups, |group| group.id != id)
    })
    .await?;
    Ok((Extension(Note::new("dns_group.delete", &id)), Json(RemovedView { id })))
}

/// List the known clients.
#[utoipa::path(get, path = "/api/v1/dns/clients", tag = "dns", operation_id = "list_clients", params(PageQuery),
    responses((status = 200, description = "A page of clients.", body = Page<ClientBody>)))]
async fn list_clients(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ClientBody>>, DnsApiError> {
    page_of(&state.load_policy().await?.clients, &page)
}

/// Add a client, or replace the one of this id.
#[utoipa::path(put, path = "/api/v1/dns/clients/{id}", tag = "dns", operation_id = "put_client",
    params(("id" = String, Path, description = "Id of the client."), IdempotencyKey), request_body = ClientBody,
    responses((status = 200, description = "In place.", body = ClientBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn put_client(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(mut body): Json<ClientBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    body.id = id.clone();
    let client: ClientEntry = convert(&body)?;
    state
        .resolver
        .update_policy(|policy| {
            put_part(&mut policy.clients, client.clone(), |known| known.id == id);
            Ok(())
        })
        .await?;
    let note = Note::new("dns_client.put", &id).change(json!(null), &body);
    Ok((Extension(note), Json(convert::<_, ClientBody>(&client)?)))
}

/// Remove a client. It counts as unknown from then on.
#[utoipa::path(delete, path = "/api/v1/dns/clients/{id}", tag = "dns", operation_id = "delete_client",
    params(("id" = String, Path, description = "Id of the client.")),
    responses((status = 200, description = "Removed.", body = RemovedView)))]
async fn delete_client(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    remove_parts(&state, "client", |policy| {
        let scope = dns::PolicyScope::Client(id.clone());
        policy.pauses.retain(|pause| pause.scope != scope);
        policy.timed_rules.retain(|rule| rule.scope != scope);
        policy.access.clients.retain(|client| *client != id);
        retain(&mut policy.clients, |client| client.id != id)
    })
    .await?;
    Ok((Extension(Note::new("dns_client.delete", &id)), Json(RemovedView { id })))
}

/// List the records answered here.
#[utoipa::path(get, path = "/api/v1/dns/records", tag = "dns", operation_id = "list_records", params(PageQuery),
    responses((status = 200, description = "A page of records.", body = Page<RecordBody>)))]
async fn list_records(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<RecordBody>>, DnsApiError> {
    page_of(&state.load_policy().await?.records, &page)
}

/// Add a record. One that is there already is not added twice.
#[utoipa::path(post, path = "/api/v1/dns/records", tag = "dns", operation_id = "create_record",
    params(IdempotencyKey), request_body = RecordBody,
    responses((status = 200, description = "In place.", body = RecordBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn create_record(
    State(state): State<DnsState>,
    Json(body): Json<RecordBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let record: LocalRecord = convert(&body)?;
    state
        .resolver
        .update_policy(|policy| {
            put_part(&mut policy.records, record.clone(), |known| is_same(known, &record));
            Ok(())
        })
        .await?;
    let note = Note::new("dns_record.create", &body.name).change(json!(null), &body);
    Ok((Extension(note), Json(convert::<_, RecordBody>(&record)?)))
}

fn is_same(a: &LocalRecord, b: &LocalRecord) -> bool {
    a.name.eq_ignore_ascii_case(&b.name)
        && a.record_type.eq_ignore_ascii_case(&b.record_type)
        && a.value == b.value
}

/// The record to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RecordQuery {
    /// Name.
    name: String,
    /// Type; all types if left out.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    record_type: Option<String>,
    /// Data; all data if left out.
    value: Option<String>,
}

/// Remove the records of a name, or some of them.
#[utoipa::path(delete, path = "/api/v1/dns/records", tag = "dns", operation_id = "delete_record",
    params(RecordQuery),
    responses((status = 200, description = "Removed.", body = RemovedView),
        (status = 404, description = "There is no such record.", body = web::error::ErrorBody)))]
async fn delete_record(
    State(state): State<DnsState>,
    Query(query): Query<RecordQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    let fits = |record: &LocalRecord| {
        record.name.eq_ignore_ascii_case(&query.name)
            && query
                .record_type
                .as_deref()
                .is_none_or(|t| record.record_type.eq_ignore_ascii_case(t))
            && query.value.as_deref().is_none_or(|value| record.value == value)
    };
    remove_parts(&state, "record", |policy| retain(&mut policy.records, |record| !fits(record)))
        .await?;
    let note = Note::new("dns_record.delete", &query.name);
    Ok((Extension(note), Json(RemovedView { id: query.name })))
}

/// A rule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DnsRule)]
struct RuleView {
    /// The rule, in the syntax of AdGuard.
    #[schema(example = "||ads.example^")]
    rule: String,
    /// Group it holds for; null for everybody.
    #[schema(required)]
    group: Option<String>,
}

/// List the rules, those for everybody first.
#[utoipa::path(get, path = "/api/v1/dns/rules", tag = "dns", operation_id = "list_rules", params(PageQuery),
    responses((status = 200, description = "A page of rules.", body = Page<RuleView>)))]
async fn list_rules(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<RuleView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let policy = state.load_policy().await?;
    let common = policy.rules.iter().map(|rule| RuleView { rule: rule.clone(), group: None });
    let own = policy.groups.iter().flat_map(|group| {
        group
            .rules
            .iter()
            .map(|rule| RuleView { rule: rule.clone(), group: Some(group.id.clone()) })
    });
    let items = common.chain(own).skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A rule to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewDnsRule, example = json!({ "rule": "||ads.example^", "group": "kids" }))]
struct RuleBody {
    /// The rule: `||ads.example^` blocks a name with all below it, `@@||good.example^` allows it,
    /// `/regex/` blocks by pattern.
    rule: String,
    /// Only for this group.
    group: Option<String>,
}

/// Returns the rules of a group, or those for everybody.
fn rules_of<'a>(policy: &'a mut Policy, group: Option<&str>) -> Option<&'a mut Vec<String>> {
    let Some(group) = group else { return Some(&mut policy.rules) };
    if group == DEFAULT_GROUP && !policy.groups.iter().any(|known| known.id == group) {
        policy.groups.push(ClientGroup::default());
    }
    policy.groups.iter_mut().find(|known| known.id == group).map(|group| &mut group.rules)
}

/// Add a rule, for everybody or a group. One that is there already is not added twice; one that says
/// the opposite of it (`@@` or not) is removed.
#[utoipa::path(post, path = "/api/v1/dns/rules", tag = "dns", operation_id = "create_rule",
    params(IdempotencyKey), request_body = RuleBody,
    responses((status = 200, description = "In place.", body = RuleView),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn create_rule(
    State(state): State<DnsState>,
    Json(body): Json<RuleBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let rule = body.rule.trim().to_owned();
    if rule.is_empty() {
        return Err(ApiError::invalid_field("rule", "write a rule such as ||ads.example^").into());
    }
    let opposite = match rule.strip_prefix("@@") {
        Some(blocking) => blocking.to_owned(),
        None => format!("@@{rule}"),
    };
    state
        .resolver
        .update_policy(|policy| {
            let Some(rules) = rules_of(policy, body.group.as_deref()) else {
                return Err(dns::PolicyError::new("group", "there is no group with this id").into());
            };
            rules.retain(|known| *known != opposite);
            if !rules.contains(&rule) {
                rules.push(rule.clone());
            }
            Ok(())
        })
        .await?;
    let note = Note::new("dns_rule.create", &rule);
    Ok((Extension(note), Json(RuleView { rule, group: body.group })))
}

/// The rule to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RuleQuery {
    /// The rule, as it was added.
    rule: String,
    /// Group it holds for.
    group: Option<String>,
}

/// Remove a rule.
#[utoipa::path(delete, path = "/api/v1/dns/rules", tag = "dns", operation_id = "delete_rule",
    params(RuleQuery),
    responses((status = 200, description = "Removed.", body = RemovedView),
        (status = 404, description = "There is no such rule.", body = web::error::ErrorBody)))]
async fn delete_rule(
    State(state): State<DnsState>,
    Query(query): Query<RuleQuery>,
) -> Result<impl IntoResponse, DnsApiError> {
    remove_parts(&state, "rule", |policy| {
        let rules = rules_of(policy, query.group.as_deref());
        rules.map_or(0, |rules| retain(rules, |rule| *rule != query.rule))
    })
    .await?;
    let note = Note::new("dns_rule.delete", &query.rule);
    Ok((Extension(note), Json(RemovedView { id: query.rule })))
}
