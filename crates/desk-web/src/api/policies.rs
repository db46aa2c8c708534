//! Policies: list, read, store, remove; and the calls about one identity at one policy.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use desk::PolicyName;
use desk::limit::{
    LimitedParty, NamedPolicy, PolicyOverride, PolicyPreview, PolicySpec, PolicyUsage,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
use web::page::{Page, PageQuery};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::limits::{LimitResult, result_of};
use super::{IdentityKind, LimitsScope, ScopeCheck, find_policy, page_of, party_in_path};
use crate::error::{DeskApiError, unknown_policy};
use crate::service::{Desk, DeskState};

/// Most entries of a list in one body, so that it fits the size limit of bodies.
const LIST_MAX: usize = 10_000;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        any_role: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(peek))
            .routes(routes!(blocks))
            .routes(routes!(stats)),
        worker: OpenApiRouter::new()
            .routes(routes!(put).layer(from_fn(once)))
            .routes(routes!(change))
            .routes(routes!(remove))
            .routes(routes!(put_preview, remove_preview))
            .routes(routes!(apply_preview))
            .routes(routes!(reset))
            .routes(routes!(block, unblock)),
        ..Routes::default()
    }
}

/// Algorithm of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LimitAlgorithmName {
    /// At most the limit in a window that opens with its first request; limit at most 1,000.
    Fixed,
    /// At most the limit in any window, exactly; limit at most 1,000.
    Sliding,
    /// Two weighted windows; any limit.
    Counter,
    /// `burst` at once, refilled with the limit per window.
    Bucket,
    /// The limit per period of the calendar.
    Calendar,
    /// The limit at once; a unit is a lease.
    Concurrent,
}

impl LimitAlgorithmName {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Sliding => "sliding",
            Self::Counter => "counter",
            Self::Bucket => "bucket",
            Self::Calendar => "calendar",
            Self::Concurrent => "concurrent",
        }
    }

    fn parse(text: &str) -> Self {
        let all = [
            Self::Fixed,
            Self::Sliding,
            Self::Counter,
            Self::Bucket,
            Self::Calendar,
            Self::Concurrent,
        ];
        all.into_iter().find(|one| one.as_str() == text).unwrap_or(Self::Counter)
    }
}

/// Period of a calendar limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LimitPeriod {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week, from Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl LimitPeriod {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Second,
            Self::Minute,
            Self::Hour,
            Self::Day,
            Self::Week,
            Self::Month,
            Self::Year,
        ];
        all.into_iter().find(|one| one.as_str() == text)
    }
}

/// Decision while the store is out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoreDownDecision {
    /// Each instance limits by itself.
    Local,
    /// Every request is allowed.
    Open,
    /// Every request is denied.
    Closed,
}

impl StoreDownDecision {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        let all = [Self::Local, Self::Open, Self::Closed];
        all.into_iter().find(|one| one.as_str() == text).unwrap_or(Self::Local)
    }
}

/// The limit of one identity.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitOverride {
    /// The identity as it is spelled in keys: `203.0.113.7`, `user:vip`, `key:abc`.
    identity: String,
    /// Its limit.
    limit: u64,
}

/// A policy to store.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewLimitPolicy, example = json!({ "algorithm": "sliding", "limit": 20, "window_seconds": 60 }))]
struct PolicyBody {
    /// Algorithm; `counter` if left out.
    algorithm: Option<LimitAlgorithmName>,
    /// Units allowed per window or period, or at once.
    limit: u64,
    /// The window in seconds; of a `concurrent` policy the time of a lease.
    window_seconds: Option<u64>,
    /// The window in milliseconds, for one below a second.
    window_ms: Option<u64>,
    /// Most units at once of a `bucket`; the limit if left out.
    burst: Option<u32>,
    /// Period of a `calendar`.
    period: Option<LimitPeriod>,
    /// IANA time zone of a `calendar`; UTC if left out.
    time_zone: Option<String>,
    /// Decides and counts, but never denies.
    shadow: Option<bool>,
    /// Limits of single identities.
    #[schema(max_items = 10000)]
    overrides: Option<Vec<LimitOverride>>,
    /// Networks that are not limited, such as `10.0.0.0/8`.
    #[schema(max_items = 10000)]
    exempt: Option<Vec<String>>,
    /// Networks and identities that are always denied.
    #[schema(max_items = 10000)]
    blocked: Option<Vec<String>>,
    /// Decision while the store is out of reach; `local` if left out.
    when_store_down: Option<StoreDownDecision>,
    /// Time after which the store counts as out of reach; `desk.limit_timeout` if left out.
    timeout_ms: Option<u64>,
    /// Units drawn in advance and spent in process (`counter`, `bucket`, `calendar`); 0 if left out.
    prepay: Option<u32>,
    /// Time for which an identity is blocked after a denial; not at all if left out.
    block_ms: Option<u64>,
}

impl PolicyBody {
    fn spec(self, name: &str) -> Result<PolicySpec, ApiError> {
        Ok(PolicySpec {
            algorithm: self.algorithm.unwrap_or(LimitAlgorithmName::Counter).as_str().to_owned(),
            limit: self.limit,
            window_ms: window(self.window_seconds, self.window_ms)?,
            burst: self.burst,
            period: self.period.map(|period| period.as_str().to_owned()),
            time_zone: self.time_zone,
            shadow: self.shadow.unwrap_or(false),
            overrides: overrides_of(self.overrides.unwrap_or_default())?,
            exempt: self.exempt.unwrap_or_default(),
            blocked: self.blocked.unwrap_or_default(),
            when_store_down: self
                .when_store_down
                .unwrap_or(StoreDownDecision::Local)
                .as_str()
                .to_owned(),
            timeout_ms: self.timeout_ms,
            prepay: self.prepay.unwrap_or(0),
            block_ms: self.block_ms,
            ..PolicySpec::named(name)
        })
    }
}

fn overrides_of(list: Vec<LimitOverride>) -> Result<Vec<PolicyOverride>, ApiError> {
    if list.len() > LIST_MAX {
        return Err(ApiError::invalid_field("overrides", "at most 10,000 entries"));
    }
    let each = list.into_iter();
    Ok(each.map(|one| PolicyOverride { identity: one.identity, limit: one.limit }).collect())
}

/// The window in milliseconds, of the two fields in which it may stand.
fn window(seconds: Option<u64>, ms: Option<u64>) -> Result<u64, ApiError> {
    match (seconds, ms) {
        (Some(_), Some(_)) => {
            Err(ApiError::invalid_field("window_ms", "use window_seconds or window_ms, not both"))
        }
        (Some(seconds), None) => seconds.checked_mul(1_000).ok_or_else(|| {
            ApiError::invalid_field("window_seconds", "a window is between 1 ms and a year")
        }),
        (None, ms) => Ok(ms.unwrap_or(0)),
    }
}

/// A policy that is given with a check and not stored.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InlineLimitPolicy {
    /// Name, which keeps its counts apart from those of other policies; the default policy, with
    /// the bare keys of the schema, if left out.
    name: Option<String>,
    /// Algorithm; `counter` if left out.
    algorithm: Option<LimitAlgorithmName>,
    /// Units allowed per window or period, or at once.
    limit: u64,
    /// The window in seconds; of a `concurrent` policy the time of a lease.
    window_seconds: Option<u64>,
    /// The window in milliseconds, for one below a second.
    window_ms: Option<u64>,
    /// Most units at once of a `bucket`; the limit if left out.
    burst: Option<u32>,
    /// Period of a `calendar`.
    period: Option<LimitPeriod>,
    /// IANA time zone of a `calendar`; UTC if left out.
    time_zone: Option<String>,
    /// Decides and counts, but never denies.
    shadow: Option<bool>,
    /// Decision while the store is out of reach; `local` if left out.
    when_store_down: Option<StoreDownDecision>,
    /// Units drawn in advance and spent in process (`counter`, `bucket`, `calendar`); 0 if left out.
    prepay: Option<u32>,
}

impl InlineLimitPolicy {
    pub(super) fn spec(&self) -> Result<PolicySpec, ApiError> {
        Ok(PolicySpec {
            algorithm: self.algorithm.unwrap_or(LimitAlgorithmName::Counter).as_str().to_owned(),
            limit: self.limit,
            window_ms: window(self.window_seconds, self.window_ms)?,
            burst: self.burst,
            period: self.period.map(|period| period.as_str().to_owned()),
            time_zone: self.time_zone.clone(),
            shadow: self.shadow.unwrap_or(false),
            when_store_down: self
                .when_store_down
                .unwrap_or(StoreDownDecision::Local)
                .as_str()
                .to_owned(),
            prepay: self.prepay.unwrap_or(0),
            ..PolicySpec::named(self.name.as_deref().unwrap_or_default())
        })
    }
}

/// A policy.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitPolicy {
    /// Name.
    name: String,
    /// Algorithm.
    algorithm: LimitAlgorithmName,
    /// Units allowed per window or period, or at once.
    limit: u64,
    /// The window; of a `concurrent` policy the time of a lease; null for a `calendar`.
    #[schema(required)]
    window_ms: Option<u64>,
    /// Most units at once of a `bucket`.
    #[schema(required)]
    burst: Option<u32>,
    /// Period of a `calendar`.
    #[schema(required)]
    period: Option<LimitPeriod>,
    /// Time zone of a `calendar`.
    #[schema(required)]
    time_zone: Option<String>,
    /// Decides and counts, but never denies.
    shadow: bool,
    /// Limits of single identities.
    overrides: Vec<LimitOverride>,
    /// Networks that are not limited.
    exempt: Vec<String>,
    /// Networks and identities that are always denied.
    blocked: Vec<String>,
    /// Decision while the store is out of reach.
    when_store_down: StoreDownDecision,
    /// Time after which the store counts as out of reach; null: as `desk.limit_timeout` says.
    #[schema(required)]
    timeout_ms: Option<u64>,
    /// Units drawn in advance and spent in process.
    prepay: u32,
    /// Time for which an identity is blocked after a denial.
    #[schema(required)]
    block_ms: Option<u64>,
    /// Another rule that is tried on the same requests and never denies.
    #[schema(required)]
    preview: Option<LimitPreview>,
    /// True if it is in the store; false for a default of the product.
    is_stored: bool,
}

/// A rule that is tried on live traffic before it counts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "algorithm": "sliding", "limit": 10, "window_ms": 60_000 }))]
struct LimitPreview {
    /// Algorithm; `counter` if left out.
    algorithm: Option<LimitAlgorithmName>,
    /// Units allowed per window or period, or at once.
    limit: u64,
    /// The window in seconds, instead of `window_ms`; answers have the latter.
    #[serde(skip_serializing)]
    window_seconds: Option<u64>,
    /// The window in milliseconds.
    window_ms: Option<u64>,
    /// Most units at once of a `bucket`; the limit if left out.
    burst: Option<u32>,
    /// Period of a `calendar`.
    period: Option<LimitPeriod>,
    /// IANA time zone of a `calendar`; UTC if left out.
    time_zone: Option<String>,
}

impl From<&PolicyPreview> for LimitPreview {
    fn from(preview: &PolicyPreview) -> LimitPreview {
        LimitPreview {
            algorithm: Some(LimitAlgorithmName::parse(&preview.algorithm)),
            limit: preview.limit,
            window_seconds: None,
            window_ms: Some(preview.window_ms).filter(|ms| *ms > 0),
            burst: preview.burst,
            period: preview.period.as_deref().and_then(LimitPeriod::parse),
            time_zone: preview.time_zone.clone(),
        }
    }
}

impl TryFrom<LimitPreview> for PolicyPreview {
    type Error = ApiError;

    fn try_from(body: LimitPreview) -> Result<PolicyPreview, ApiError> {
        Ok(PolicyPreview {
            algorithm: body.algorithm.unwrap_or(LimitAlgorithmName::Counter).as_str().to_owned(),
            limit: body.limit,
            window_ms: window(body.window_seconds, body.window_ms)?,
            burst: body.burst,
            period: body.period.map(|period| period.as_str().to_owned()),
            time_zone: body.time_zone,
        })
    }
}

impl From<&NamedPolicy> for LimitPolicy {
    fn from(policy: &NamedPolicy) -> LimitPolicy {
        let spec = policy.spec();
        LimitPolicy {
            name: spec.name.clone(),
            algorithm: LimitAlgorithmName::parse(&spec.algorithm),
            limit: spec.limit,
            window_ms: Some(spec.window_ms).filter(|ms| *ms > 0),
            burst: spec.burst,
            period: spec.period.as_deref().and_then(LimitPeriod::parse),
            time_zone: spec.time_zone.clone(),
            shadow: spec.shadow,
            overrides: spec
                .overrides
                .iter()
                .map(|one| LimitOverride { identity: one.identity.clone(), limit: one.limit })
                .collect(),
            exempt: spec.exempt.clone(),
            blocked: spec.blocked.clone(),
            when_store_down: StoreDownDecision::parse(&spec.when_store_down),
            timeout_ms: spec.timeout_ms,
            prepay: spec.prepay,
            block_ms: spec.block_ms,
            preview: spec.preview.as_ref().map(LimitPreview::from),
            is_stored: policy.is_stored(),
        }
    }
}

/// List the policies by name: the stored ones and the built-in ones.
#[utoipa::path(get, path = "/api/v1/ratelimit/policies", tag = "desk", operation_id = "list_policies",
    params(PageQuery),
    responses((status = 200, description = "A page of policies.", body = Page<LimitPolicy>)))]
async fn list(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<LimitPolicy>>, DeskApiError> {
    Ok(page_of(&state.desk.book.policies(), &page)?)
}

/// Get a policy.
#[utoipa::path(get, path = "/api/v1/ratelimit/policies/{policy}", tag = "desk", operation_id = "get_policy",
    params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "The policy.", body = LimitPolicy)))]
async fn get(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<Json<LimitPolicy>, DeskApiError> {
    Ok(Json(LimitPolicy::from(&*find_policy(&state.desk, &name)?)))
}

/// Store a policy, or change the one of this name; it counts on every instance within a second. A
/// policy with the name of a built-in one replaces it. The call is safe to repeat.
#[utoipa::path(put, path = "/api/v1/ratelimit/policies/{policy}", tag = "desk", operation_id = "put_policy",
    request_body = PolicyBody,
    params(("policy" = String, Path, description = "Name of the policy: a-z, 0-9, _ and -."), IdempotencyKey),
    responses((status = 200, description = "Changed.", body = LimitPolicy),
        (status = 201, description = "Stored.", body = LimitPolicy),
        (status = 409, description = "The idempotency key was used for another request.", body = ErrorBody)))]
async fn put(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
    Json(body): Json<PolicyBody>,
) -> Result<impl IntoResponse, DeskApiError> {
    let spec = body.spec(&name)?;
    let before = PolicyName::parse(&name).ok().and_then(|name| state.desk.book.find(&name));
    let before = before.map(|policy| LimitPolicy::from(&*policy));
    let created = state.desk.book.put(&spec).await?;
    let stored = LimitPolicy::from(&*find_policy(&state.desk, &name)?);
    let note = Note::new("policy.put", name).change(before, &stored);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Extension(note), Json(stored)))
}

/// Fields of a policy to change; those left out stay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitPolicyChange, example = json!({ "limit": 50, "shadow": false }))]
struct PolicyChange {
    /// Algorithm. One that has no `burst`, `period`, window or `prepay` loses them.
    algorithm: Option<LimitAlgorithmName>,
    /// Units allowed.
    limit: Option<u64>,
    /// The window in seconds.
    window_seconds: Option<u64>,
    /// The window in milliseconds, for one below a second.
    window_ms: Option<u64>,
    /// Most units at once of a `bucket`; 0: the limit.
    burst: Option<u32>,
    /// Period of a `calendar`.
    period: Option<LimitPeriod>,
    /// IANA time zone of a `calendar`.
    time_zone: Option<String>,
    /// Decides and counts, but never denies.
    shadow: Option<bool>,
    /// All limits of single identities.
    #[schema(max_items = 10000)]
    overrides: Option<Vec<LimitOverride>>,
    /// All networks that are not limited.
    #[schema(max_items = 10000)]
    exempt: Option<Vec<String>>,
    /// All networks and identities that are always denied.
    #[schema(max_items = 10000)]
    blocked: Option<Vec<String>>,
    /// Decision while the store is out of reach.
    when_store_down: Option<StoreDownDecision>,
    /// Time after which the store counts as out of reach; 0: as `desk.limit_timeout` says.
    timeout_ms: Option<u64>,
    /// Units drawn in advance and spent in process.
    prepay: Option<u32>,
    /// Time for which an identity is blocked after a denial; 0: not at all.
    block_ms: Option<u64>,
}

impl PolicyChange {
    fn applied_to(self, before: &PolicySpec) -> Result<PolicySpec, ApiError> {
        let mut spec = before.clone();
        if let Some(algorithm) = self.algorithm {
            spec.algorithm = algorithm.as_str().to_owned();
            if algorithm != LimitAlgorithmName::Bucket {
                spec.burst = None;
            }
            if algorithm == LimitAlgorithmName::Calendar {
                spec.window_ms = 0;
            } else {
                (spec.period, spec.time_zone) = (None, None);
            }
            let can_prepay = [
                LimitAlgorithmName::Counter,
                LimitAlgorithmName::Bucket,
                LimitAlgorithmName::Calendar,
            ];
            if !can_prepay.contains(&algorithm) {
                spec.prepay = 0;
            }
        }
        spec.limit = self.limit.unwrap_or(spec.limit);
        if self.window_seconds.is_some() || self.window_ms.is_some() {
            spec.window_ms = window(self.window_seconds, self.window_ms)?;
        }
        spec.burst = self.burst.or(spec.burst).filter(|burst| *burst > 0);
        spec.period = self.period.map(|period| period.as_str().to_owned()).or(spec.period);
        spec.time_zone = self.time_zone.or(spec.time_zone);
        spec.shadow = self.shadow.unwrap_or(spec.shadow);
        if let Some(overrides) = self.overrides {
            spec.overrides = overrides_of(overrides)?;
        }
        spec.exempt = self.exempt.unwrap_or(spec.exempt);
        spec.blocked = self.blocked.unwrap_or(spec.blocked);
        if let Some(down) = self.when_store_down {
            spec.when_store_down = down.as_str().to_owned();
        }
        spec.timeout_ms = self.timeout_ms.or(spec.timeout_ms).filter(|ms| *ms > 0);
        spec.prepay = self.prepay.unwrap_or(spec.prepay);
        spec.block_ms = self.block_ms.or(spec.block_ms).filter(|ms| *ms > 0);
        Ok(spec)
    }
}

/// Change some fields of a policy; those that are not named stay as they are.
#[utoipa::path(patch, path = "/api/v1/ratelimit/policies/{policy}", tag = "desk", operation_id = "change_policy",
    request_body = PolicyChange, params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "Changed.", body = LimitPolicy)))]
async fn change(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
    Json(body): Json<PolicyChange>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = find_policy(&state.desk, &name)?;
    state.desk.book.put(&body.applied_to(known.spec())?).await?;
    let stored = LimitPolicy::from(&*find_policy(&state.desk, &name)?);
    let note = Note::new("policy.change", name).change(LimitPolicy::from(&*known), &stored);
    Ok((Extension(note), Json(stored)))
}

/// Try another rule beside a policy: it decides and counts on the same requests, also on those that the
/// policy denies, and denies nothing. `GET /api/v1/ratelimit/stats` shows what it would have denied.
#[utoipa::path(put, path = "/api/v1/ratelimit/policies/{policy}/preview", tag = "desk", operation_id = "preview_policy",
    request_body = LimitPreview, params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "Tried from now on.", body = LimitPolicy)))]
async fn put_preview(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
    Json(body): Json<LimitPreview>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = PolicyName::parse(&name).map_err(|_| unknown_policy(&name))?;
    if !state.desk.book.set_preview(&known, Some(body.try_into()?)).await? {
        return Err(unknown_policy(&name).into());
    }
    let stored = LimitPolicy::from(&*find_policy(&state.desk, &name)?);
    let note = Note::new("policy.preview", name);
    Ok((Extension(note), Json(stored)))
}

/// End the preview of a policy; the policy stays as it is.
#[utoipa::path(delete, path = "/api/v1/ratelimit/policies/{policy}/preview", tag = "desk", operation_id = "remove_policy_preview",
    params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "Ended.", body = LimitRemoval)))]
async fn remove_preview(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = find_policy(&state.desk, &name)?;
    let removed = known.spec().preview.is_some();
    if let (true, Some(policy)) = (removed, known.name()) {
        state.desk.book.set_preview(policy, None).await?;
    }
    let note = Note::new("policy.preview.end", name);
    Ok((Extension(note), Json(LimitRemoval { removed })))
}

/// Make the rule of the preview the policy's own, which ends the preview.
#[utoipa::path(post, path = "/api/v1/ratelimit/policies/{policy}/preview/apply", tag = "desk", operation_id = "apply_policy_preview",
    params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "Applied.", body = LimitPolicy),
        (status = 409, description = "There is no preview.", body = ErrorBody)))]
async fn apply_preview(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = find_policy(&state.desk, &name)?;
    let Some(applied) = known.spec().with_preview_applied() else {
        let message = "this policy has no preview; PUT one first";
        return Err(ApiError::conflict("NO_PREVIEW", message).into());
    };
    state.desk.book.put(&applied).await?;
    let stored = LimitPolicy::from(&*find_policy(&state.desk, &name)?);
    let note = Note::new("policy.preview.apply", name).change(LimitPolicy::from(&*known), &stored);
    Ok((Extension(note), Json(stored)))
}

/// The outcome of a call that removes something.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitRemoval {
    /// True if there was something to remove.
    pub(super) removed: bool,
}

/// Delete a stored policy; a built-in one gets its default back.
#[utoipa::path(delete, path = "/api/v1/ratelimit/policies/{policy}", tag = "desk", operation_id = "remove_policy",
    params(("policy" = String, Path, description = "Name of the policy.")),
    responses((status = 200, description = "Removed.", body = LimitRemoval)))]
async fn remove(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, DeskApiError> {
    let known = find_policy(&state.desk, &name)?;
    let name = PolicyName::parse(&name)?;
    let removed = state.desk.book.remove(&name).await?;
    let note = Note::new("policy.remove", name.as_str())
        .change(LimitPolicy::from(&*known), serde_json::Value::Null);
    Ok((Extension(note), Json(LimitRemoval { removed })))
}

/// The path of one identity at one policy.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PolicyIdentityPath {
    /// Name of the policy.
    policy: String,
    /// Kind of the identity; `raw` is an identifier as it is in keys.
    #[param(value_type = IdentityKind, inline)]
    kind: String,
    /// The identity.
    id: String,
}

impl PolicyIdentityPath {
    fn resolve(&self, desk: &Desk) -> Result<(Arc<NamedPolicy>, LimitedParty), DeskApiError> {
        Ok((find_policy(desk, &self.policy)?, party_in_path(&self.kind, &self.id)?))
    }
}

/// Get what an identity has left of a policy, without charging it.
#[utoipa::path(get, path = "/api/v1/ratelimit/{policy}/{kind}/{id}", tag = "desk", operation_id = "peek_limit",
    params(PolicyIdentityPath),
    responses((status = 200, description = "The state of the limit.", body = LimitResult)))]
async fn peek(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(path): Path<PolicyIdentityPath>,
) -> Result<Json<LimitResult>, DeskApiError> {
    let (policy, party) = path.resolve(&state.desk)?;
    let decision = state.desk.book.peek(&party, &[policy]).await?;
    Ok(Json(result_of(&state, &decision)))
}

/// Reset what an identity has used of a policy, and lift its block there.
#[utoipa::path(delete, path = "/api/v1/ratelimit/{policy}/{kind}/{id}", tag = "desk", operation_id = "reset_limit",
    params(PolicyIdentityPath),
    responses((status = 200, description = "Forgotten.", body = LimitRemoval)))]
async fn reset(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(path): Path<PolicyIdentityPath>,
) -> Result<impl IntoResponse, DeskApiError> {
    let (policy, party) = path.resolve(&state.desk)?;
    state.desk.book.reset(&party, &policy).await?;
    let note = Note::new("limit.reset", format!("{} {}", path.policy, party.identity()));
    Ok((Extension(note), Json(LimitRemoval { removed: true })))
}

/// The time of a block.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "for_ms": 900_000 }))]
struct NewLimitBlock {
    /// Its length in milliseconds: 1 ms to 366 days.
    for_ms: Option<u64>,
    /// Its length in seconds, instead of `for_ms`.
    for_seconds: Option<u64>,
}

impl NewLimitBlock {
    fn time(&self) -> Result<std::time::Duration, ApiError> {
        match (self.for_ms, self.for_seconds) {
            (Some(ms), None) => Ok(std::time::Duration::from_millis(ms)),
            (None, Some(seconds)) => Ok(std::time::Duration::from_secs(seconds)),
            _ => Err(ApiError::invalid_field("for_ms", "say how long: for_ms or for_seconds")),
        }
    }
}

/// A block of an identity at a policy.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitBlock)]
struct BlockedIdentity {
    /// The identity as it is spelled in keys.
    identity: String,
    /// End of the block.
    ends_at: Timestamp,
}

/// Block an identity at a policy for a time; it counts on every instance within a second.
#[utoipa::path(put, path = "/api/v1/ratelimit/{policy}/{kind}/{id}/block", tag = "desk", operation_id = "block_identity",
    params(PolicyIdentityPath), request_body = NewLimitBlock,
    responses((status = 200, description = "Blocked.", body = BlockedIdentity)))]
async fn block(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(path): Path<PolicyIdentityPath>,
    Json(body): Json<NewLimitBlock>,
) -> Result<impl IntoResponse, DeskApiError> {
    let (policy, party) = path.resolve(&state.desk)?;
    let name = policy.name().ok_or_else(|| unknown_policy(&path.policy))?;
    let until = state.desk.book.block(name, party.identity(), body.time()?).await?;
    let blocked = BlockedIdentity { identity: party.identity().to_string(), ends_at: until.into() };
    let note = Note::new("limit.block", format!("{} {}", path.policy, blocked.identity))
        .change(serde_json::Value::Null, &blocked);
    Ok((Extension(note), Json(blocked)))
}

/// Lift the block of an identity at a policy.
#[utoipa::path(delete, path = "/api/v1/ratelimit/{policy}/{kind}/{id}/block", tag = "desk", operation_id = "unblock_identity",
    params(PolicyIdentityPath),
    responses((status = 200, description = "Lifted, or there was none.", body = LimitRemoval)))]
async fn unblock(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(path): Path<PolicyIdentityPath>,
) -> Result<impl IntoResponse, DeskApiError> {
    let (policy, party) = path.resolve(&state.desk)?;
    let name = policy.name().ok_or_else(|| unknown_policy(&path.policy))?;
    let removed = state.desk.book.unblock(name, party.identity()).await?;
    let note = Note::new("limit.unblock", format!("{} {}", path.policy, party.identity()));
    Ok((Extension(note), Json(LimitRemoval { removed })))
}

/// List the identities that are blocked at a policy for a time, those that end last first.
#[utoipa::path(get, path = "/api/v1/ratelimit/policies/{policy}/blocks", tag = "desk", operation_id = "list_blocks",
    params(("policy" = String, Path, description = "Name of the policy."), PageQuery),
    responses((status = 200, description = "A page of blocks.", body = Page<BlockedIdentity>)))]
async fn blocks(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Path(name): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<BlockedIdentity>>, DeskApiError> {
    let policy = find_policy(&state.desk, &name)?;
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = policy.name().map(|name| state.desk.book.blocks(name)).unwrap_or_default();
    let shown = found.into_iter().skip(offset).take(limit).map(|block| BlockedIdentity {
        identity: block.identity.to_string(),
        ends_at: block.until.into(),
    });
    Ok(Json(Page::at(offset, limit, shown.collect())))
}

/// An identity that hits a policy often.
#[derive(Debug, Serialize, ToSchema)]
struct BusyIdentity {
    /// The identity as it is spelled in keys.
    identity: String,
    /// Its requests, allowed and denied.
    hits: u64,
    /// Those that were denied.
    denied: u64,
}

/// Use of one policy over all instances.
#[derive(Debug, Serialize, ToSchema)]
struct LimitStats {
    /// Name of the policy; `default` is the one with the bare keys.
    policy: String,
    /// Requests allowed.
    allowed: u64,
    /// Requests denied.
    denied: u64,
    /// Requests allowed with at most a fifth of the limit left.
    near: u64,
    /// Requests that a shadow policy would have denied.
    shadow: u64,
    /// Requests decided while the store was out of reach.
    degraded: u64,
    /// Counts of the rule that is tried beside the policy.
    #[schema(required)]
    preview: Option<PreviewStats>,
    /// Identities with the most requests in this hour and the one before, the most first.
    top: Vec<BusyIdentity>,
}

/// Counts of a rule that is tried beside a policy, since the trial began.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct PreviewStats {
    /// Requests it saw.
    requests: u64,
    /// Those it would have denied.
    denied: u64,
}

/// List the use of each policy over all instances, with the identities that hit it most.
#[utoipa::path(get, path = "/api/v1/ratelimit/stats", tag = "desk", operation_id = "list_limit_stats",
    params(PageQuery),
    responses((status = 200, description = "A page of policies.", body = Page<LimitStats>)))]
async fn stats(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<LimitStats>>, DeskApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let usage = state.desk.book.usage().await?;
    let is_preview =
        |one: &PolicyUsage| one.policy.as_ref().is_some_and(|name| name.previewed().is_some());
    let (previews, usage): (Vec<_>, Vec<_>) = usage.into_iter().partition(is_preview);
    let preview_of = |policy: &PolicyName| {
        // Counts of a trial that has ended may be there still.
        state.desk.book.find(policy)?.spec().preview.as_ref()?;
        let counted = previews.iter().find(|one| {
            one.policy.as_ref().and_then(PolicyName::previewed) == Some(policy.as_str())
        });
        let stats = counted.map(|one| one.stats).unwrap_or_default();
        Some(PreviewStats { requests: stats.allowed, denied: stats.shadow })
    };
    let items = usage.into_iter().skip(offset).take(limit).map(|one| LimitStats {
        preview: one.policy.as_ref().and_then(preview_of),
        policy: crate::limiter::name_of(one.policy.as_ref()).to_owned(),
        allowed: one.stats.allowed,
        denied: one.stats.denied,
        near: one.stats.near,
        shadow: one.stats.shadow,
        degraded: one.stats.degraded,
        top: one
            .top
            .into_iter()
            .map(|top| BusyIdentity { identity: top.identity, hits: top.hits, denied: top.denied })
            .collect(),
    });
    Ok(Json(Page::at(offset, limit, items.collect())))
}
