//! Services that can be blocked with a click: the built-in ones and one's own.

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use dns::{BlockedService, CustomService, DEFAULT_GROUP, Policy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use super::shapes::{ScheduleBody, convert};
use crate::error::DnsApiError;
use crate::service::DnsState;

/// The routes.
pub(super) fn routes() -> Routes<DnsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(list)),
        operator: OpenApiRouter::new()
            .routes(routes!(put).layer(from_fn(once)))
            .routes(routes!(delete))
            .routes(routes!(block).layer(from_fn(once)))
            .routes(routes!(unblock)),
        ..Routes::default()
    }
}

/// A service.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = DnsServiceInfo)]
pub(crate) struct ServiceView {
    /// Id.
    #[schema(example = "tiktok")]
    pub(crate) id: String,
    /// Name.
    #[schema(example = "TikTok")]
    pub(crate) name: String,
    /// True if it is part of the program.
    pub(crate) is_built_in: bool,
    /// Domains, with all names below them.
    pub(crate) domains: Vec<String>,
    /// Groups it is blocked for.
    pub(crate) blocked_groups: Vec<String>,
}

/// Returns all services: one's own first.
pub(crate) fn services(policy: &Policy) -> Vec<ServiceView> {
    let groups = |id: &str| {
        let groups = policy.groups.iter();
        let blocking = groups.filter(|group| group.services.iter().any(|service| service.id == id));
        blocking.map(|group| group.id.clone()).collect()
    };
    let own = policy.services.iter().map(|service| ServiceView {
        id: service.id.clone(),
        name: if service.name.is_empty() { service.id.clone() } else { service.name.clone() },
        is_built_in: false,
        domains: service.domains.clone(),
        blocked_groups: groups(&service.id),
    });
    let built_in = dns::lists::services::SERVICES.iter().map(|service| ServiceView {
        id: service.id.to_owned(),
        name: service.name.to_owned(),
        is_built_in: true,
        domains: service.domains.iter().map(|domain| (*domain).to_owned()).collect(),
        blocked_groups: groups(service.id),
    });
    own.chain(built_in).collect()
}

/// List the services that can be blocked.
#[utoipa::path(get, path = "/api/v1/dns/services", tag = "dns", operation_id = "list_services",
    params(PageQuery),
    responses((status = 200, description = "A page of services.", body = Page<ServiceView>)))]
async fn list(
    State(state): State<DnsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ServiceView>>, DnsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let policy = state.load_policy().await?;
    let items = services(&policy).into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// A service of one's own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewDnsService, example = json!({ "name": "Games", "domains": ["games.example"] }))]
struct NewServiceBody {
    /// Name on pages.
    name: Option<String>,
    /// Domains, with all names below them.
    domains: Vec<String>,
}

fn find(policy: &Policy, id: &str) -> Result<ServiceView, DnsApiError> {
    let found = services(policy).into_iter().find(|service| service.id == id);
    found.ok_or_else(|| ApiError::not_found("there is no service with this id").into())
}

/// Add a service of your own, or change it.
#[utoipa::path(put, path = "/api/v1/dns/services/{id}", tag = "dns", operation_id = "put_service",
    params(("id" = String, Path, description = "Id of the service."), IdempotencyKey), request_body = NewServiceBody,
    responses((status = 200, description = "In place.", body = ServiceView),
        (status = 409, description = "A built-in service has this id, or the idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn put(
    State(state): State<DnsState>,
    Path(id): Path<String>,
    Json(body): Json<NewServiceBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    if dns::lists::services::find(&id).is_some() {
        let message = "a built-in service has this id; choose another";
        return Err(ApiError::conflict("BUILT_IN_SERVICE", message).into());
    }
    let service = CustomService {
        id: id.clone(),
        name: body.name.unwrap_or_default(),
        domains: body.domains,
    };
    let (version, ()) = state
        .resolver
        .update_policy(|policy| {
            policy.services.retain(|known| known.id != id);
            policy.services.push(service.clone());
            Ok(())
        })
        .await?;
    let view = find(&version.policy, &id)?;
    Ok((Extension(Note::new("dns_service.put", &id)), Json(view)))
}

/// Remove a service of your own. Groups that block it forget it.
#[utoipa::path(delete, path = "/api/v1/dns/services/{id}", tag = "dns", operation_id = "delete_service",
    params(("id" = String, Path, description = "Id of the service.")),
    responses((status = 200, description = "Removed.", body = ServiceView),
        (status = 409, description = "It is a built-in service.", body = web::error::ErrorBody)))]
async fn delete(
    State(state): State<DnsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, DnsApiError> {
    let view = find(&state.load_policy().await?, &id)?;
    if view.is_built_in {
        let message = "a built-in service cannot be removed; stop blocking it instead";
        return Err(ApiError::conflict("BUILT_IN_SERVICE", message).into());
    }
    state
        .resolver
        .update_policy(|policy| {
            policy.services.retain(|service| service.id != id);
            for group in &mut policy.groups {
                group.services.retain(|service| service.id != id);
            }
            Ok(())
        })
        .await?;
    Ok((Extension(Note::new("dns_service.delete", &id)), Json(view)))
}

/// Times at which a service is blocked.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ServiceBlock, example = json!({ "schedule": { "time_zone": "Europe/Berlin",
    "windows": [{ "days": ["mon", "tue"], "start": "16:00", "end": "19:00" }] } }))]
struct ServiceBlockBody {
    /// Times; always without any.
    schedule: Option<ScheduleBody>,
}

/// Block a service for a group, always or at some times.
#[utoipa::path(put, path = "/api/v1/dns/groups/{group}/services/{id}", tag = "dns",
    operation_id = "block_service",
    params(("group" = String, Path, description = "Id of the group."),
        ("id" = String, Path, description = "Id of the service."), IdempotencyKey),
    request_body = ServiceBlockBody,
    responses((status = 200, description = "Blocked.", body = ServiceView),
        (status = 409, description = "The idempotency key was used for another request.", body = web::error::ErrorBody)))]
async fn block(
    State(state): State<DnsState>,
    Path((group, id)): Path<(String, String)>,
    web::extract::OptionalJson(body): web::extract::OptionalJson<ServiceBlockBody>,
) -> Result<impl IntoResponse, DnsApiError> {
    find(&state.load_policy().await?, &id)?;
    let schedule = body.schedule.as_ref().map(convert).transpose()?;
    let blocked = BlockedService { id: id.clone(), schedule };
    let (version, ()) = state
        .resolver
        .update_policy(|policy| {
            let services = services_of(policy, &group)?;
            services.retain(|known| known.id != id);
            services.push(blocked.clone());
            Ok(())
        })
        .await?;
    let note = Note::new("dns_service.block", format!("{id} for {group}"));
    Ok((Extension(note), Json(find(&version.policy, &id)?)))
}

/// Stop blocking a service for a group.
#[utoipa::path(delete, path = "/api/v1/dns/groups/{group}/services/{id}", tag = "dns",
    operation_id = "unblock_service",
    params(("group" = String, Path, description = "Id of the group."),
        ("id" = String, Path, description = "Id of the service.")),
    responses((status = 200, description = "Not blocked.", body = ServiceView)))]
async fn unblock(
    State(state): State<DnsState>,
    Path((group, id)): Path<(String, String)>,
) -> Result<impl IntoResponse, DnsApiError> {
    let (version, removed) = state
        .resolver
        .update_policy(|policy| {
            let services = services_of(policy, &group)?;
            let before = services.len();
            services.retain(|known| known.id != id);
            Ok(before - services.len())
        })
        .await?;
    if removed == 0 {
        return Err(ApiError::not_found("the service is not blocked for this group").into());
    }
    let note = Note::new("dns_service.unblock", format!("{id} for {group}"));
    Ok((Extension(note), Json(find(&version.policy, &id)?)))
}

fn services_of<'a>(
    policy: &'a mut Policy,
    group: &str,
) -> Result<&'a mut Vec<BlockedService>, dns::Error> {
    if group == DEFAULT_GROUP && !policy.groups.iter().any(|known| known.id == group) {
        policy.groups.push(dns::ClientGroup::default());
    }
    let found = policy.groups.iter_mut().find(|known| known.id == group);
    let found =
        found.ok_or_else(|| dns::PolicyError::new("group", "there is no group with this id"))?;
    Ok(&mut found.services)
}
