//! Changes of single fields: JSON merge patches (RFC 7396) of the policy and its parts, windows of
//! schedules one at a time, and the first decisions of a new installation.

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use dns::{
    BlockedService, ClientEntry, ClientGroup, DEFAULT_GROUP, GroupSchedule, ListAction, ListSource,
    Policy, PolicyError, ScheduleAction, ScheduleWindow, UpstreamServer, WeekSchedule,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;
use web::audit::Note;
use web::extract::{self, Json, Path};
use web::idempotency::{IdempotencyKey, once};
use web::{ApiError, Routes};

use super::pauses::ActionName;
use super::shapes::{
    ClientBody, DayName, GroupActionName, GroupBody, ListBody, ScheduleBody, convert,
};
use crate::catalogue::{Choice, SUGGESTED};
use crate::error::DnsApiError;
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(get_list))
            .routes(routes!(get_group))
            .routes(routes!(get_client)),
        operator: OpenApiRouter::new()
            .routes(routes!(patch_policy))
            .routes(routes!(patch_list))
            .routes(routes!(patch_group))
            .routes(routes!(patch_client))
            .routes(routes!(add_window).layer(from_fn(once)))
            .routes(routes!(delete_schedule))
            .routes(routes!(add_service_window).layer(from_fn(once)))
            .routes(routes!(add_list_window).layer(from_fn(once)))
            .routes(routes!(set_up)),
        ..Routes::default()
    }
}

/// Applies a merge patch: null removes, objects are merged, all else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(&name)),
            value => merge(fields.entry(name).or_insert(Value::Null), value),
        }
    }
}

/// Returns a part with a patch applied; the error names the place.
fn patched<T: Serialize + DeserializeOwned>(
    part: &T,
    patch: &Map<String, Value>,
    field: &str,
) -> Result<T, dns::Error> {
    let refused = |error: serde_json::Error| PolicyError::new(field, error.to_string());
    let mut value = serde_json::to_value(part).map_err(refused)?;
    merge(&mut value, Value::Object(patch.clone()));
    Ok(serde_json::from_value(value).map_err(refused)?)
}

/// Fields of the policy to change; what is left out stays, null goes back to the default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsPolicyPatch, example = json!({ "log": { "sample_one_in": 5 } }))]
#[expect(dead_code, reason = "checks the names of a patch")]
struct PolicyPatch {
    /// Servers that queries are forwarded to.
    #[serde(default)]
    #[schema(value_type = Value)]
    upstreams: Option<Value>,
    /// Lists of names to block or to allow.
    #[serde(default)]
    #[schema(value_type = Value)]
    lists: Option<Value>,
    /// Rules for everybody.
    #[serde(default)]
    #[schema(value_type = Value)]
    rules: Option<Value>,
    /// Services of one's own.
    #[serde(default)]
    #[schema(value_type = Value)]
    services: Option<Value>,
    /// Groups of clients.
    #[serde(default)]
    #[schema(value_type = Value)]
    groups: Option<Value>,
    /// Known clients.
    #[serde(default)]
    #[schema(value_type = Value)]
    clients: Option<Value>,
    /// Records answered here.
    #[serde(default)]
    #[schema(value_type = Value)]
    records: Option<Value>,
    /// Pauses of filtering.
    #[serde(default)]
    #[schema(value_type = Value)]
    pauses: Option<Value>,
    /// Rules that end by themselves.
    #[serde(default)]
    #[schema(value_type = Value)]
    timed_rules: Option<Value>,
    /// Clients that may query.
    #[serde(default)]
    #[schema(value_type = Value)]
    access: Option<Value>,
    /// Queries per client network.
    #[serde(default)]
    #[schema(value_type = Value)]
    rate_limit: Option<Value>,
    /// Answers with private addresses.
    #[serde(default)]
    #[schema(value_type = Value)]
    rebinding: Option<Value>,
    /// Sources of lists: how often and from where.
    #[serde(default)]
    #[schema(value_type = Value)]
    list_refresh: Option<Value>,
    /// Query log.
    #[serde(default)]
    #[schema(value_type = Value)]
    log: Option<Value>,
}

/// Fields of a list to change; what is left out stays, null goes back to the default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsListPatch, example = json!({ "enabled": false }))]
#[expect(dead_code, reason = "checks the fields of a patch")]
struct ListPatch {
    /// Id; the one of the path counts.
    id: Option<String>,
    /// Name on pages and in blocked replies.
    name: Option<String>,
    /// `https://…`, `http://…`, `file:NAME` below the folder of lists, or `embedded:default`.
    url: Option<String>,
    /// Block or allow.
    action: Option<ActionName>,
    /// Switched on.
    enabled: Option<bool>,
    /// Times at which the list counts.
    schedule: Option<ScheduleBody>,
}

/// Checks a patch against the shape of what it changes, and names the field that does not fit. Null, which
/// removes, fits everywhere.
fn check_patch<T: DeserializeOwned>(patch: &Map<String, Value>) -> Result<(), ApiError> {
    let mut given = Value::Object(Map::new());
    merge(&mut given, Value::Object(patch.clone()));
    let bytes = serde_json::to_vec(&given).map_err(|error| ApiError::internal(&error))?;
    extract::read_json::<T>(&bytes).map(drop)
}

fn missing(what: &str) -> DnsApiError {
    ApiError::not_found(format!("there is no {what} with this id")).into()
}

/// Change some fields of the policy: a JSON merge patch (RFC 7396). Lists are replaced whole.
#[utoipa::path(patch, path = "/api/v1/dns/policy", tag = "dns", operation_id = "patch_resolver_policy",
    request_body = PolicyPatch,
    responses((status = 200, description = "In place.", body = super::policy::PolicyView)))]
async fn patch_policy(
    State(state): State<DnsState>,
    Json(patch): Json<Map<String, Value>>,
) -> Result<impl IntoResponse, DnsApiError> {
    check_patch::<PolicyPatch>(&patch)?;
    let (version, ()) = state
        .resolver
        .update_policy(|policy| {
            *policy = patched(policy, &patch, "policy")?;
            Ok(())
        })
        .await?;
    let names: Vec<&str> = patch.keys().map(String::as_str).collect();
    let note = Note::new("policy.patch", names.join(", ")).change(Value::Null, &patch);
    Ok((Extension(note), Json(super::policy::PolicyView::new(version)?)))
}

/// Get a list.
#[utoipa::path(get, path = "/api/v1/dns/lists/{id}", tag = "dns", operation_id = "get_list",
    params(("id" = String, Path, description = "Id of the list.")),
    responses((status = 200, description = "The list.", body = ListBody)))]
async fn get_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<Json<ListBody>, DnsApiError> {
    let policy = state.load_policy().await?;
    let found = policy.lists.iter().find(|list| list.id == id);
    Ok(Json(convert(found.ok_or_else(|| missing("list"))?)?))
}

/// Get a group.
#[utoipa::path(get, path = "/api/v1/dns/groups/{id}", tag = "dns", operation_id = "get_group",
    params(("id" = String, Path, description = "Id of the group.")),
    responses((status = 200, description = "The group.", body = GroupBody)))]
async fn get_group(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<Json<GroupBody>, DnsApiError> {
    let groups = state.load_policy().await?.all_groups();
    let found = groups.iter().find(|group| group.id == id);
    Ok(Json(convert(found.ok_or_else(|| missing("group"))?)?))
}

/// Get a client.
#[utoipa::path(get, path = "/api/v1/dns/clients/{id}", tag = "dns", operation_id = "get_client",
    params(("id" = String, Path, description = "Id of the client.")),
    responses((status = 200, description = "The client.", body = ClientBody)))]
async fn get_client(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<Json<ClientBody>, DnsApiError> {
    let policy = state.load_policy().await?;
    let found = policy.clients.iter().find(|client| client.id == id);
    Ok(Json(convert(found.ok_or_else(|| missing("client"))?)?))
}

/// Change some fields of a list: a JSON merge patch.
#[utoipa::path(patch, path = "/api/v1/dns/lists/{id}", tag = "dns", operation_id = "patch_list",
    params(("id" = String, Path, description = "Id of the list.")),
    request_body = ListPatch,
    responses((status = 200, description = "In place.", body = ListBody)))]
async fn patch_list(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(patch): Json<Map<String, Value>>,
) -> Result<impl IntoResponse, DnsApiError> {
    check_patch::<ListPatch>(&patch)?;
    let changed = state
        .resolver
        .update_policy(|policy| {
            let Some(list) = policy.lists.iter_mut().find(|list| list.id == id) else {
                return Ok(None);
            };
            let next: ListSource = patched(list, &patch, "lists")?;
            *list = ListSource { id: id.clone(), ..next };
            Ok(Some(list.clone()))
        })
        .await?;
    let list = changed.1.ok_or_else(|| missing("list"))?;
    let note = Note::new("dns_list.patch", &id).change(Value::Null, &patch);
    Ok((Extension(note), Json(convert::<_, ListBody>(&list)?)))
}

/// Returns a group, the default one made if it is not listed yet.
pub(super) fn group_of<'a>(policy: &'a mut Policy, id: &str) -> Option<&'a mut ClientGroup> {
    if id == DEFAULT_GROUP && !policy.groups.iter().any(|group| group.id == id) {
        policy.groups.push(ClientGroup::default());
    }
    policy.groups.iter_mut().find(|group| group.id == id)
}

/// Changes a group.
async fn change_group(
    state: &DnsState,
    id: &str,
    change: impl Fn(&mut ClientGroup) -> Result<(), dns::Error>,
) -> Result<GroupBody, DnsApiError> {
    let changed = state
        .resolver
        .update_policy(|policy| {
            let Some(group) = group_of(policy, id) else { return Ok(None) };
            change(group)?;
            id.clone_into(&mut group.id);
            Ok(Some(group.clone()))
        })
        .await?;
    convert(&changed.1.ok_or_else(|| missing("group"))?)
}

/// Change some fields of a group: a JSON merge patch.
#[utoipa::path(patch, path = "/api/v1/dns/groups/{id}", tag = "dns", operation_id = "patch_group",
    params(("id" = String, Path, description = "Id of the group.")),
    request_body = GroupBody,
    responses((status = 200, description = "In place.", body = GroupBody)))]
async fn patch_group(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(patch): Json<Map<String, Value>>,
) -> Result<impl IntoResponse, DnsApiError> {
    check_patch::<GroupBody>(&patch)?;
    let body = change_group(&state, &id, |group| {
        *group = patched(group, &patch, "groups")?;
        Ok(())
    })
    .await?;
    let note = Note::new("dns_group.patch", &id).change(Value::Null, &patch);
    Ok((Extension(note), Json(body)))
}

/// Change some fields of a client: a JSON merge patch.
#[utoipa::path(patch, path = "/api/v1/dns/clients/{id}", tag = "dns", operation_id = "patch_client",
    params(("id" = String, Path, description = "Id of the client.")),
    request_body = ClientBody,
    responses((status = 200, description = "In place.", body = ClientBody)))]
async fn patch_client(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(patch): Json<Map<String, Value>>,
) -> Result<impl IntoResponse, DnsApiError> {
    check_patch::<ClientBody>(&patch)?;
    let changed = state
        .resolver
        .update_policy(|policy| {
            let Some(client) = policy.clients.iter_mut().find(|client| client.id == id) else {
                return Ok(None);
            };
            let next: ClientEntry = patched(client, &patch, "clients")?;
            *client = ClientEntry { id: id.clone(), ..next };
            Ok(Some(client.clone()))
        })
        .await?;
    let client = changed.1.ok_or_else(|| missing("client"))?;
    let note = Note::new("dns_client.patch", &id).change(Value::Null, &patch);
    Ok((Extension(note), Json(convert::<_, ClientBody>(&client)?)))
}

/// A window of a group's schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewScheduleWindow, example = json!({ "schedule": "bedtime", "action": "block",
    "time_zone": "Europe/Berlin", "days": ["sun", "mon"], "start": "20:30", "end": "06:30" }))]
struct NewWindowBody {
    /// Name of the schedule; one of this name gets a further window.
    schedule: String,
    /// Block everything, or pause filtering.
    action: GroupActionName,
    /// Time zone; UTC if left out.
    time_zone: Option<String>,
    /// Days on which the window starts.
    days: Vec<DayName>,
    /// `HH:MM`.
    start: String,
    /// `HH:MM`, up to `24:00`; an end before the start is on the next day.
    end: String,
}

fn window(days: &[DayName], start: &str, end: &str) -> Result<ScheduleWindow, DnsApiError> {
    if days.is_empty() {
        return Err(ApiError::invalid_field("days", "choose at least one day").into());
    }
    let (days, start, end) = (convert(&days)?, start.to_owned(), end.to_owned());
    Ok(ScheduleWindow { days, start, end })
}

fn zone(given: Option<&str>) -> String {
    given.filter(|zone| !zone.is_empty()).unwrap_or("UTC").to_owned()
}

/// Add a window to a schedule of a group.
#[utoipa::path(post, path = "/api/v1/dns/groups/{id}/windows", tag = "dns",
    operation_id = "add_schedule_window",
    params(("id" = String, Path, description = "Id of the group."), IdempotencyKey), request_body = NewWindowBody,
    responses((status = 200, description = "In place.", body = GroupBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_window(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<NewWindowBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let added = window(&body.days, &body.start, &body.end)?;
    let action: ScheduleAction = convert(&body.action)?;
    let time_zone = zone(body.time_zone.as_deref());
    let name = body.schedule.trim().to_owned();
    let view = change_group(&state, &id, |group| {
        let known = group.schedules.iter_mut().find(|known| known.name == name);
        match known {
            Some(known) => {
                known.action = action;
                known.schedule.time_zone.clone_from(&time_zone);
                known.schedule.windows.push(added.clone());
            }
            None => group.schedules.push(GroupSchedule {
                name: name.clone(),
                action,
                schedule: WeekSchedule {
                    time_zone: time_zone.clone(),
                    windows: vec![added.clone()],
                },
            }),
        }
        Ok(())
    })
    .await?;
    Ok((Extension(Note::new("dns_group.add_window", format!("{id}: {name}"))), Json(view)))
}

/// Remove a schedule of a group.
#[utoipa::path(delete, path = "/api/v1/dns/groups/{id}/schedules/{name}", tag = "dns",
    operation_id = "delete_group_schedule",
    params(("id" = String, Path, description = "Id of the group."),
        ("name" = String, Path, description = "Name of the schedule.")),
    responses((status = 200, description = "Removed.", body = GroupBody)))]
async fn delete_schedule(
    State(state): State<DnsState>,
    Path((id, name)): Path<(String, String)>,
) -> Result<impl IntoResponse, DnsApiError> {
    let groups = state.load_policy().await?.all_groups();
    let known = groups.iter().find(|group| group.id == id).ok_or_else(|| missing("group"))?;
    if !known.schedules.iter().any(|schedule| schedule.name == name) {
        return Err(ApiError::not_found("there is no schedule of this name").into());
    }
    let view = change_group(&state, &id, |group| {
        group.schedules.retain(|schedule| schedule.name != name);
        Ok(())
    })
    .await?;
    Ok((Extension(Note::new("dns_group.delete_schedule", format!("{id}: {name}"))), Json(view)))
}

/// A window in which a service is blocked.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewServiceWindow, example = json!({ "service": "tiktok", "days": ["mon"], "start": "16:00", "end": "19:00" }))]
struct ServiceWindowBody {
    /// Id of the service.
    service: String,
    /// Time zone; UTC if left out.
    time_zone: Option<String>,
    /// Days on which the window starts.
    days: Vec<DayName>,
    /// `HH:MM`.
    start: String,
    /// `HH:MM`, up to `24:00`; an end before the start is on the next day.
    end: String,
}

/// Block a service for a group at some times: add a window.
#[utoipa::path(post, path = "/api/v1/dns/groups/{id}/service-windows", tag = "dns",
    operation_id = "add_service_window",
    params(("id" = String, Path, description = "Id of the group."), IdempotencyKey), request_body = ServiceWindowBody,
    responses((status = 200, description = "In place.", body = GroupBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_service_window(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<ServiceWindowBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let added = window(&body.days, &body.start, &body.end)?;
    let time_zone = zone(body.time_zone.as_deref());
    let view = change_group(&state, &id, |group| {
        let service = match group.services.iter_mut().find(|known| known.id == body.service) {
            Some(known) => known,
            None => {
                group.services.push(BlockedService { id: body.service.clone(), schedule: None });
                let last = group.services.len() - 1;
                &mut group.services[last]
            }
        };
        let schedule = service.schedule.get_or_insert_with(|| WeekSchedule {
            time_zone: time_zone.clone(),
            windows: Vec::new(),
        });
        schedule.time_zone.clone_from(&time_zone);
        schedule.windows.push(added.clone());
        Ok(())
    })
    .await?;
    let note = Note::new("dns_service.add_window", format!("{} for {id}", body.service));
    Ok((Extension(note), Json(view)))
}

/// A window in which a list counts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewListWindow, example = json!({ "days": ["mon"], "start": "16:00", "end": "19:00" }))]
struct ListWindowBody {
    /// Time zone; UTC if left out.
    time_zone: Option<String>,
    /// Days on which the window starts.
    days: Vec<DayName>,
    /// `HH:MM`.
    start: String,
    /// `HH:MM`, up to `24:00`; an end before the start is on the next day.
    end: String,
}

/// Use a list at some times only: add a window. A patch with `"schedule": null` uses it always again.
#[utoipa::path(post, path = "/api/v1/dns/lists/{id}/windows", tag = "dns",
    operation_id = "add_list_window",
    params(("id" = String, Path, description = "Id of the list."), IdempotencyKey), request_body = ListWindowBody,
    responses((status = 200, description = "In place.", body = ListBody),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn add_list_window(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<ListWindowBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let added = window(&body.days, &body.start, &body.end)?;
    let time_zone = zone(body.time_zone.as_deref());
    let changed = state
        .resolver
        .update_policy(|policy| {
            let Some(list) = policy.lists.iter_mut().find(|list| list.id == id) else {
                return Ok(None);
            };
            let schedule = list.schedule.get_or_insert_with(|| WeekSchedule {
                time_zone: time_zone.clone(),
                windows: Vec::new(),
            });
            schedule.time_zone.clone_from(&time_zone);
            schedule.windows.push(added.clone());
            Ok(Some(list.clone()))
        })
        .await?;
    let list = changed.1.ok_or_else(|| missing("list"))?;
    let note = Note::new("dns_list.add_window", &id);
    Ok((Extension(note), Json(convert::<_, ListBody>(&list)?)))
}

/// A choice of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ListChoice)]
enum ChoiceName {
    /// The list that is part of the program; no network needed.
    BuiltIn,
    /// Blocks little, breaks nothing.
    Light,
    /// The usual choice.
    Balanced,
    /// Blocks a lot.
    Strict,
    /// Nothing.
    None,
}

/// Servers that queries are forwarded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = UpstreamChoice)]
enum UpstreamChoiceName {
    /// Those of the setting `dns.upstreams`.
    Settings,
    /// Quad9, over TLS.
    Quad9,
    /// Cloudflare, over HTTPS.
    Cloudflare,
    /// Mullvad, over HTTPS.
    Mullvad,
    /// Others, named in `upstream_servers`.
    Own,
}

/// Clients that may query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AccessChoice)]
enum AccessChoiceName {
    /// Only this machine.
    Machine,
    /// Clients of private networks.
    Private,
    /// Everybody who reaches it.
    Anyone,
}

/// The first decisions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DnsSetup, example = json!({ "lists": "balanced", "malware": true, "upstream": "quad9", "access": "private" }))]
struct SetupBody {
    /// Lists against ads.
    lists: ChoiceName,
    /// Lists against malware too.
    malware: Option<bool>,
    /// Upstream.
    upstream: UpstreamChoiceName,
    /// Servers, for `own`.
    upstream_servers: Option<Vec<String>>,
    /// Clients that may query.
    access: AccessChoiceName,
}

fn servers(addresses: &[(&str, &[&str])]) -> Vec<UpstreamServer> {
    let server = |(address, bootstrap): &(&str, &[&str])| UpstreamServer {
        address: (*address).to_owned(),
        name: String::new(),
        bootstrap: bootstrap.iter().map(|ip| (*ip).to_owned()).collect(),
    };
    addresses.iter().map(server).collect()
}

/// Make the first decisions of a new installation at once: lists, upstream, who may query.
#[utoipa::path(post, path = "/api/v1/dns/setup", tag = "dns", operation_id = "set_up_resolver",
    request_body = SetupBody,
    responses((status = 200, description = "In place.", body = super::policy::PolicyView)))]
async fn set_up(
    State(state): State<DnsState>,
    Json(body): Json<SetupBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    let own = body.upstream_servers.unwrap_or_default();
    if body.upstream == UpstreamChoiceName::Own && own.is_empty() {
        let message = "name the servers, such as 192.168.1.1 or tls://dns.example";
        return Err(ApiError::invalid_field("upstream_servers", message).into());
    }
    let upstreams = match body.upstream {
        UpstreamChoiceName::Settings => Vec::new(),
        UpstreamChoiceName::Quad9 => {
            servers(&[("tls://dns.quad9.net", &["9.9.9.9", "149.112.112.112"])])
        }
        UpstreamChoiceName::Cloudflare => {
            servers(&[("https://cloudflare-dns.com/dns-query", &["1.1.1.1", "1.0.0.1"])])
        }
        UpstreamChoiceName::Mullvad => {
            servers(&[("https://dns.mullvad.net/dns-query", &["194.242.2.2"])])
        }
        UpstreamChoiceName::Own => own
            .iter()
            .map(|address| UpstreamServer { address: address.clone(), ..UpstreamServer::default() })
            .collect(),
    };
    let is_wanted = |list: &crate::catalogue::SuggestedList| match (list.choice, body.lists) {
        (Choice::Malware, _) => body.malware.unwrap_or(false) && list.id == "hagezi-tif",
        (_, ChoiceName::BuiltIn) => list.id == "default",
        (Choice::Light, ChoiceName::Light) => list.id == "oisd-small",
        (Choice::Balanced, ChoiceName::Balanced) => list.id == "oisd-big",
        (Choice::Strict, ChoiceName::Strict) => true,
        _ => false,
    };
    let lists: Vec<ListSource> = SUGGESTED
        .iter()
        .filter(|list| is_wanted(list))
        .map(|list| ListSource {
            id: list.id.to_owned(),
            name: list.name.to_owned(),
            url: list.url.to_owned(),
            action: ListAction::Block,
            enabled: true,
            schedule: None,
        })
        .collect();
    let networks: Option<Vec<String>> = match body.access {
        AccessChoiceName::Machine => Some(vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()]),
        AccessChoiceName::Private => None,
        AccessChoiceName::Anyone => Some(vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()]),
    };
    let (version, ()) = state
        .resolver
        .update_policy(|policy| {
            // Suggested lists only: what somebody added stays.
            policy.lists.retain(|list| !SUGGESTED.iter().any(|known| known.url == list.url));
            policy.lists.extend(lists.iter().cloned());
            policy.upstreams.servers.clone_from(&upstreams);
            policy.access.networks =
                networks.clone().unwrap_or_else(|| dns::AccessPolicy::default().networks);
            Ok(())
        })
        .await?;
    let chosen = json!({ "lists": lists.iter().map(|list| &list.id).collect::<Vec<_>>() });
    let note = Note::new("policy.set_up", "lists, upstream, access").change(Value::Null, chosen);
    Ok((Extension(note), Json(super::policy::PolicyView::new(version)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_merges_objects_replaces_lists_and_removes_nulls() {
        let mut value = json!({ "a": { "b": 1, "c": [1, 2] }, "d": "e" });
        merge(&mut value, json!({ "a": { "c": [3], "b": null }, "f": { "g": 1 } }));
        assert_eq!(value, json!({ "a": { "c": [3] }, "d": "e", "f": { "g": 1 } }));
        let group = ClientGroup { lists: Some(vec!["x".to_owned()]), ..ClientGroup::default() };
        let patch = json!({ "lists": null, "safe_search": ["google"] });
        let patch = patch.as_object().unwrap();
        let next = patched(&group, patch, "groups").unwrap();
        assert_eq!((next.lists, next.safe_search.len()), (None, 1));
        let bad = json!({ "cache": "maybe" });
        assert!(patched(&group, bad.as_object().unwrap(), "groups").is_err());
    }
}
