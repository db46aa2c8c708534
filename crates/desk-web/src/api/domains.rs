//! Domains: the rules by which requests of proxies with descriptors are limited.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use desk::limit::{CalendarPeriod, DescriptorDomain, DescriptorLimit, DescriptorRule, DomainSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::{ApiError, Routes};

use super::policies::{LimitPeriod, LimitRemoval, StoreDownDecision};
use super::{LimitsScope, ScopeCheck, page_of};
use crate::error::DeskApiError;
use crate::service::DeskState;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        any_role: OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)),
        worker: OpenApiRouter::new()
            .routes(routes!(put).layer(from_fn(once)))
            .routes(routes!(remove)),
        ..Routes::default()
    }
}

/// Hits allowed in each period of the calendar, in UTC.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DescriptorLimit)]
struct DescriptorLimitView {
    /// Hits allowed; 0 allows none.
    requests_per_unit: u64,
    /// Length of the period.
    unit: LimitPeriod,
}

/// One rule, with the rules below it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DescriptorRule)]
struct DescriptorRuleView {
    /// Key of the entry it matches.
    #[schema(min_length = 1, max_length = 1024)]
    key: String,
    /// Value of the entry; with a `*` at its end all values that begin so; left out for every value, each
    /// counted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The limit; left out if only rules below it have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<DescriptorLimitView>,
    /// Descriptors that end here are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unlimited: Option<bool>,
    /// Decides and counts, but never denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shadow: Option<bool>,
    /// Name of the limit, by which others replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Names of limits that do not count for a request to which this one applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<Vec<String>>,
    /// Rules for the entry after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    descriptors: Option<Vec<DescriptorRuleView>>,
}

impl DescriptorRuleView {
    fn rule(self) -> DescriptorRule {
        let limit = self.limit.map(|limit| DescriptorLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: period(limit.unit),
        });
        let below = self.descriptors.unwrap_or_default();
        DescriptorRule {
            key: self.key,
            value: self.value,
            limit,
            unlimited: self.unlimited.unwrap_or(false),
            shadow: self.shadow.unwrap_or(false),
            name: self.name,
            replaces: self.replaces.unwrap_or_default(),
            rules: below.into_iter().map(DescriptorRuleView::rule).collect(),
        }
    }
}

/// The period of a name; both have the same names.
fn period(name: LimitPeriod) -> CalendarPeriod {
    let mut all = CalendarPeriod::ALL.into_iter();
    all.find(|period| period.as_str() == name.as_str()).unwrap_or(CalendarPeriod::Minute)
}

impl From<&DescriptorRule> for DescriptorRuleView {
    fn from(rule: &DescriptorRule) -> DescriptorRuleView {
        let limit = rule.limit.and_then(|limit| {
            let unit = LimitPeriod::parse(limit.unit.as_str())?;
            Some(DescriptorLimitView { requests_per_unit: limit.requests_per_unit, unit })
        });
        let below: Vec<_> = rule.rules.iter().map(DescriptorRuleView::from).collect();
        DescriptorRuleView {
            key: rule.key.clone(),
            value: rule.value.clone(),
            limit,
            unlimited: rule.unlimited.then_some(true),
            shadow: rule.shadow.then_some(true),
            name: rule.name.clone(),
            replaces: (!rule.replaces.is_empty()).then(|| rule.replaces.clone()),
            descriptors: (!below.is_empty()).then_some(below),
        }
    }
}

/// The rules of a domain.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewLimitDomain, example = json!({ "descriptors": [
    { "key": "remote_address", "limit": { "requests_per_unit": 60, "unit": "minute" } }] }))]
struct DomainBody {
    /// The rules at the top of the tree; 16 levels and 10,000 rules at most.
    descriptors: Vec<DescriptorRuleView>,
    /// Decision while the store is out of reach; `local` if left out.
    when_store_down: Option<StoreDownDecision>,
}

/// A domain: the rules for a proxy.
#[derive(Debug, Serialize, ToSchema)]
struct LimitDomain {
    /// Name, as the proxy sends it.
    domain: String,
    /// The rules at the top of the tree.
    descriptors: Vec<DescriptorRuleView>,
    /// Decision while the store is out of reach.
    when_store_down: StoreDownDecision,
}

impl From<&DescriptorDomain> for LimitDomain {
    fn from(domain: &DescriptorDomain) -> LimitDomain {
        LimitDomain {
            domain: domain.name().to_owned(),
            descriptors: domain.rules().iter().map(DescriptorRuleView::from).collect(),
            when_store_down: StoreDownDecision::parse(&domain.spec().when_store_down),
        }
    }
}

fn unknown_domain(name: &str) -> ApiError {
    let message = format!(
        "there is no domain {name:?}; GET /api/v1/ratelimit/domains lists them, PUT stores one"
    );
    ApiError::new(StatusCode::NOT_FOUND, "DOMAIN_NOT_FOUND", message)
}

/// List the domains by which requests of proxies are limited.
#[utoipa::path(get, path = "/api/v1/ratelimit/domains", tag = "desk", operation_id = "list_domains",
    params(PageQuery),
    responses((status = 200, description = "A page of domains.", body = Page<LimitDomain>)))]
async fn list(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<LimitDomain>>, DeskApiError> {
    Ok(page_of(&state.desk.book.domains(), &page)?)
}

/// Get a domain with its rules.
#[utoipa::path(get, path = "/api/v1/ratelimit/domains/{domain}", tag = "desk", operation_id = "get_domain",
    params(("domain" = String, Path, description = "Name of the domain.")),
    responses((status = 200, description = "The domain.", body = LimitDomain)))]
async fn get(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<Json<LimitDomain>, DeskApiError> {
    let found = state.desk.book.find_domain(&name).ok_or_else(|| unknown_domain(&name))?;
    Ok(Json(LimitDomain::from(&*found)))
}

/// Store the rules of a domain, or replace those it has; they count on every instance within a second. The
/// call is safe to repeat.
#[utoipa::path(put, path = "/api/v1/ratelimit/domains/{domain}", tag = "desk", operation_id = "put_domain",
    request_body = DomainBody,
    params(("domain" = String, Path, description = "Name of the domain."), IdempotencyKey),
    responses((status = 200, description = "Replaced.", body = LimitDomain),
        (status = 201, description = "Stored.", body = LimitDomain),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn put(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
    Json(body): Json<DomainBody>,
) -> Result<impl IntoResponse, DeskApiError> {
    let mut spec = DomainSpec {
        descriptors: body.descriptors.into_iter().map(DescriptorRuleView::rule).collect(),
        ..DomainSpec::default()
    };
    if let Some(down) = body.when_store_down {
        spec.when_store_down = down.as_str().to_owned();
    }
    let before = state.desk.book.find_domain(&name).map(|known| LimitDomain::from(&*known));
    let created = state.desk.book.put_domain(&name, &spec).await?;
    let stored = state.desk.book.find_domain(&name).ok_or_else(|| unknown_domain(&name))?;
    let stored = LimitDomain::from(&*stored);
    let note = Note::new("domain.put", name).change(before, &stored);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Extension(note), Json(stored)))
}

/// Delete a domain; requests for it are no longer limited.
#[utoipa::path(delete, path = "/api/v1/ratelimit/domains/{domain}", tag = "desk", operation_id = "remove_domain",
    params(("domain" = String, Path, description = "Name of the domain.")),
    responses((status = 200, description = "Removed.", body = LimitRemoval)))]
async fn remove(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = state.desk.book.find_domain(&name).ok_or_else(|| unknown_domain(&name))?;
    let removed = state.desk.book.remove_domain(&name).await?;
    let note = Note::new("domain.remove", name)
        .change(LimitDomain::from(&*known), serde_json::Value::Null);
    Ok((Extension(note), Json(LimitRemoval { removed })))
}
