//! Checks: charge a request, many at once, give back, and leases of a concurrent limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use desk::limit::{BookDecision, DecidedBy, LimitAlgorithm, LimitedParty, NamedPolicy};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::extract::Json;
use web::time::Timestamp;
use web::{ApiError, Routes, rate_limit};

use super::policies::InlineLimitPolicy;
use super::{LimitIdentity, LimitsScope, ScopeCheck, find_policy, party_of};
use crate::error::DeskApiError;
use crate::limiter::{name_of, reports};
use crate::service::{Desk, DeskState};

/// Most checks in one batch.
const BATCH_MAX: usize = 100;
/// Most policies of one check.
const POLICIES_MAX: usize = 16;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        // A check is what a program does for each of its requests, no change for the audit trail.
        self_audited: OpenApiRouter::new()
            .routes(routes!(check))
            .routes(routes!(check_batch))
            .routes(routes!(acquire))
            .routes(routes!(renew))
            .routes(routes!(release)),
        worker: OpenApiRouter::new().routes(routes!(refund)),
        ..Routes::default()
    }
}

/// A request to charge: who, to which policies, how much.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitCheck, example = json!({ "identity": { "ip": "203.0.113.7" }, "policies": ["api"], "cost": 1 }))]
pub(super) struct CheckRequest {
    /// The one who is charged, as another program spells it in keys: without `#`, braces, spaces and control
    /// characters. Instead of `identity`.
    identifier: Option<String>,
    /// The one who is charged. Unusual or long values are hashed.
    identity: Option<LimitIdentity>,
    /// A policy that is given here and not stored. Instead of `policies`.
    policy: Option<InlineLimitPolicy>,
    /// Names of stored policies, 1 to 16. The request is charged to all of them or to none.
    #[schema(max_items = 16)]
    policies: Option<Vec<String>>,
    /// Units the request takes; 1 if left out, 0 only looks.
    cost: Option<u64>,
    /// The caller's own id of the request, unique to it: a repeated call under it counts once in
    /// `fixed`, `sliding` and `concurrent` policies.
    #[schema(max_length = 128)]
    request_id: Option<String>,
}

/// The part of a policy that decided about a request.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum LimitDecider {
    /// The limit.
    Limit,
    /// The address is in an exempt network.
    Exemption,
    /// The identity is on the policy's block list.
    BlockList,
    /// The identity is blocked for a time.
    Block,
}

/// One policy after a request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitState)]
struct LimitStanding {
    /// Name of the policy; `default` is the one with the bare keys.
    policy: String,
    /// The most that can be free.
    limit: u64,
    /// Time over which the limit counts; null for a number of requests at once.
    #[schema(required)]
    window_ms: Option<u64>,
    /// Units free now.
    remaining: u64,
    /// Time until one more unit is free; 0 when all are.
    reset_ms: u64,
    /// Time until this policy would allow the request; 0 when it does now.
    retry_after_ms: u64,
    /// The policy never denies.
    shadow: bool,
    /// The part of the policy that decided.
    decided_by: LimitDecider,
}

/// The decision about a request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitResult {
    /// May it go ahead? Then every policy was charged, otherwise none.
    allowed: bool,
    /// Each policy after this request, in the order they were given.
    limits: Vec<LimitStanding>,
    /// Time until all policies would allow the request; 0 when they did.
    retry_after_ms: u64,
    /// The store was out of reach: the policies' `when_store_down` decided.
    degraded: bool,
    /// Headers to copy into the response, by name.
    headers: BTreeMap<String, String>,
    /// Id of the request, to refund, renew or release what it was given; empty if it was charged to
    /// no limit.
    request_id: String,
    /// Time at which it was decided; a refund names it.
    charged_at: Timestamp,
}

impl LimitResult {
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed
    }
}

pub(super) fn result_of(state: &DeskState, decision: &BookDecision) -> LimitResult {
    let limits = decision.limits.iter().map(|limit| LimitStanding {
        policy: name_of(limit.state.policy.as_ref()).to_owned(),
        limit: limit.state.limit,
        window_ms: limit.window.map(millis),
        remaining: limit.state.remaining,
        reset_ms: millis(limit.state.reset),
        retry_after_ms: millis(limit.state.retry_after),
        shadow: limit.state.shadow,
        decided_by: match limit.decided_by {
            DecidedBy::Limit => LimitDecider::Limit,
            DecidedBy::Exemption => LimitDecider::Exemption,
            DecidedBy::BlockList => LimitDecider::BlockList,
            DecidedBy::Block => LimitDecider::Block,
        },
    });
    LimitResult {
        allowed: decision.allowed,
        limits: limits.collect(),
        retry_after_ms: if decision.allowed { 0 } else { millis(decision.retry_after()) },
        degraded: decision.degraded,
        headers: headers_of(state, decision),
        request_id: decision.request_id.clone(),
        charged_at: decision.at.into(),
    }
}

/// The headers, in the spelling that people expect in code they copy them to.
fn headers_of(state: &DeskState, decision: &BookDecision) -> BTreeMap<String, String> {
    let reports = reports(decision);
    let style = state.app.limit_headers();
    let mut headers: BTreeMap<String, String> = rate_limit::headers(&reports, style, decision.at)
        .into_iter()
        .filter_map(|(name, value)| {
            Some((spelled(name.as_str()).to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect();
    if !decision.allowed {
        let seconds = rate_limit::retry_after_seconds(&reports);
        headers.insert("Retry-After".to_owned(), seconds.to_string());
    }
    headers
}

fn spelled(name: &str) -> &str {
    match name {
        "ratelimit-policy" => "RateLimit-Policy",
        "ratelimit" => "RateLimit",
        "x-ratelimit-limit" => "X-RateLimit-Limit",
        "x-ratelimit-remaining" => "X-RateLimit-Remaining",
        "x-ratelimit-reset" => "X-RateLimit-Reset",
        other => other,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The policies a call names.
fn policies_of(
    desk: &Desk,
    inline: Option<&InlineLimitPolicy>,
    names: Option<&[String]>,
) -> Result<Vec<Arc<NamedPolicy>>, DeskApiError> {
    match (inline, names) {
        (Some(inline), None) => Ok(vec![desk.book.make(&inline.spec()?)?]),
        (None, Some(names)) if (1..=POLICIES_MAX).contains(&names.len()) => {
            let found = names.iter().map(|name| find_policy(desk, name));
            Ok(found.collect::<Result<_, _>>()?)
        }
        (None, Some(_)) => Err(ApiError::invalid_field("policies", "name 1 to 16 policies").into()),
        _ => {
            let message = "name policies that are stored, or give one in policy";
            Err(ApiError::invalid_field("policies", message).into())
        }
    }
}

/// Charges one request to stored policies by name; for users who are checked in the same call.
pub(super) async fn charge_policies(
    state: &DeskState,
    party: &desk::limit::LimitedParty,
    names: &[String],
    cost: u64,
) -> Result<LimitResult, DeskApiError> {
    let policies = policies_of(&state.desk, None, Some(names))?;
    let decision = state.desk.book.check(party, &policies, cost, None).await?;
    Ok(result_of(state, &decision))
}

async fn decide(state: &DeskState, body: &CheckRequest) -> Result<LimitResult, DeskApiError> {
    let party = party_of(body.identifier.as_deref(), body.identity.as_ref())?;
    let policies = policies_of(&state.desk, body.policy.as_ref(), body.policies.as_deref())?;
    let cost = body.cost.unwrap_or(1);
    let decision =
        state.desk.book.check(&party, &policies, cost, body.request_id.as_deref()).await?;
    Ok(result_of(state, &decision))
}

/// Check a request against limits and charge it. A denial is 200 too: the check succeeded.
#[utoipa::path(post, path = "/api/v1/ratelimit/check", tag = "desk", operation_id = "check_limits",
    request_body = CheckRequest,
    responses((status = 200, description = "The decision.", body = LimitResult),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn check(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<CheckRequest>,
) -> Result<Json<LimitResult>, DeskApiError> {
    Ok(Json(decide(&state, &body).await?))
}

/// Requests to charge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "checks": [{ "identity": { "user": "123" }, "policies": ["api"] }] }))]
struct LimitCheckBatch {
    /// 1 to 100 requests; each is decided by itself.
    #[schema(min_items = 1, max_items = 100)]
    checks: Vec<CheckRequest>,
}

/// The decisions about many requests.
#[derive(Debug, Serialize, ToSchema)]
struct LimitBatchResult {
    /// The decisions, in the order of the requests.
    items: Vec<LimitResult>,
}

/// Check up to 100 requests at once, independently. If one of them is invalid, none is charged.
#[utoipa::path(post, path = "/api/v1/ratelimit/check-batch", tag = "desk", operation_id = "check_limit_batch",
    request_body = LimitCheckBatch,
    responses((status = 200, description = "The decisions.", body = LimitBatchResult),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn check_batch(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<LimitCheckBatch>,
) -> Result<Json<LimitBatchResult>, DeskApiError> {
    if !(1..=BATCH_MAX).contains(&body.checks.len()) {
        return Err(ApiError::invalid_field("checks", "a batch has 1 to 100 checks").into());
    }
    // All are read before any is charged.
    let mut calls = Vec::with_capacity(body.checks.len());
    for check in &body.checks {
        let party = party_of(check.identifier.as_deref(), check.identity.as_ref())?;
        let policies = policies_of(&state.desk, check.policy.as_ref(), check.policies.as_deref())?;
        let (cost, request_id) = (check.cost.unwrap_or(1), check.request_id.as_deref());
        state.desk.book.validate(&party, &policies, cost, request_id)?;
        calls.push((party, policies, cost, request_id));
    }
    let decided = calls.iter().map(|(party, policies, cost, request_id)| {
        state.desk.book.check(party, policies, *cost, *request_id)
    });
    let mut items = Vec::with_capacity(calls.len());
    for decision in join_all(decided).await {
        items.push(result_of(&state, &decision?));
    }
    Ok(Json(LimitBatchResult { items }))
}

/// Refuses a cost that no limit can allow, before anything is charged. Overrides may allow more, so
/// only a cost above every limit of the policy is refused here.
fn check_cost(policies: &[Arc<NamedPolicy>], cost: u64) -> Result<(), ApiError> {
    for policy in policies {
        let spec = policy.spec();
        let own = spec.burst.map_or(spec.limit, u64::from);
        let most = spec.overrides.iter().map(|one| one.limit).fold(own, u64::max);
        if cost > most {
            let message = format!("{cost} can never be allowed by a limit of {most}");
            return Err(ApiError::invalid_field("cost", message));
        }
    }
    Ok(())
}

/// A request whose charge is given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "identity": { "user": "123" }, "policies": ["api"], "request_id": "5f1c-2a",
    "cost": 1, "charged_at": "2026-11-17T09:30:00.000Z" }))]
struct LimitRefund {
    /// The one who was charged, as in the check.
    identifier: Option<String>,
    /// The one who was charged, as in the check.
    identity: Option<LimitIdentity>,
    /// The policy, as in the check.
    policy: Option<InlineLimitPolicy>,
    /// Names of the policies, as in the check.
    #[schema(max_items = 16)]
    policies: Option<Vec<String>>,
    /// Id of the request: `request_id` of the decision.
    request_id: String,
    /// Units to give back; 1 if left out.
    cost: Option<u64>,
    /// Time of the charge: `charged_at` of the decision.
    charged_at: Timestamp,
}

/// The units that were given back.
#[derive(Debug, Serialize, ToSchema)]
struct LimitRefundResult {
    /// Units per policy, in the order of the policies; 0 where the window was over.
    units: Vec<u64>,
}

/// Give back what a request was charged, to the window or period it was charged to. Repeated, it
/// counts once.
#[utoipa::path(post, path = "/api/v1/ratelimit/refund", tag = "desk", operation_id = "refund_limits",
    request_body = LimitRefund,
    responses((status = 200, description = "Given back.", body = LimitRefundResult),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn refund(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<LimitRefund>,
) -> Result<Json<LimitRefundResult>, DeskApiError> {
    let party = party_of(body.identifier.as_deref(), body.identity.as_ref())?;
    let policies = policies_of(&state.desk, body.policy.as_ref(), body.policies.as_deref())?;
    let cost = body.cost.unwrap_or(1);
    check_cost(&policies, cost)?;
    check_request_id("request_id", &body.request_id)?;
    let mut units = Vec::with_capacity(policies.len());
    for policy in &policies {
        let limiter = state.desk.book.limiter();
        let (id, at) = (body.request_id.as_str(), body.charged_at.0);
        units.push(limiter.refund(party.identity(), policy.policy(), id, cost, at).await?);
    }
    Ok(Json(LimitRefundResult { units }))
}

fn check_request_id(field: &str, id: &str) -> Result<(), ApiError> {
    match id.len() {
        1..=128 => Ok(()),
        _ => Err(ApiError::invalid_field(field, "1 to 128 bytes")),
    }
}

/// A lease to take.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "identity": { "user": "123" }, "policy": "exports", "cost": 1 }))]
struct LimitLeaseRequest {
    /// The one who is charged, as another program spells it in keys. Instead of `identity`.
    identifier: Option<String>,
    /// The one who is charged.
    identity: Option<LimitIdentity>,
    /// Name of a stored `concurrent` policy.
    policy: String,
    /// Units to hold; 1 if left out.
    cost: Option<u64>,
    /// The caller's own id of the lease, unique to it: a repeated call under it takes one lease.
    #[schema(max_length = 128)]
    lease_id: Option<String>,
}

/// A lease that is held.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "identity": { "user": "123" }, "policy": "exports", "lease_id": "5f1c-2a" }))]
struct LimitLeaseHolder {
    /// The holder, as another program spells it in keys. Instead of `identity`.
    identifier: Option<String>,
    /// The holder.
    identity: Option<LimitIdentity>,
    /// Name of the policy.
    policy: String,
    /// Id of the lease.
    lease_id: String,
    /// Units it holds; 1 if left out.
    cost: Option<u64>,
}

impl LimitLeaseHolder {
    /// Returns the holder, the policy and the units it holds.
    fn resolve(&self, desk: &Desk) -> Result<(LimitedParty, Arc<NamedPolicy>, u64), DeskApiError> {
        let party = party_of(self.identifier.as_deref(), self.identity.as_ref())?;
        let policy = concurrent(desk, &self.policy)?;
        check_request_id("lease_id", &self.lease_id)?;
        let cost = self.cost.unwrap_or(1);
        check_cost(&[Arc::clone(&policy)], cost)?;
        Ok((party, policy, cost))
    }
}

/// The outcome of taking a lease.
#[derive(Debug, Serialize, ToSchema)]
struct LimitLeaseResult {
    /// Is it held?
    acquired: bool,
    /// Id of the lease, to renew or release it; null if it is not held.
    #[schema(required)]
    lease_id: Option<String>,
    /// Time after which it expires unless it is renewed.
    lease_ms: u64,
    /// Units free after this call.
    remaining: u64,
    /// Time until it is worth trying again; 0 if it is held.
    retry_after_ms: u64,
}

/// The outcome of renewing a lease.
#[derive(Debug, Serialize, ToSchema)]
struct LimitRenewal {
    /// False if the lease has expired or was released; it is not brought back.
    renewed: bool,
}

/// The outcome of releasing a lease.
#[derive(Debug, Serialize, ToSchema)]
struct LimitRelease {
    /// Units that were freed; 0 if there was no such lease any more.
    units: u64,
}

fn concurrent(desk: &Desk, name: &str) -> Result<Arc<NamedPolicy>, DeskApiError> {
    let policy = find_policy(desk, name)?;
    if *policy.policy().algorithm() != LimitAlgorithm::Concurrent {
        let algorithm = policy.policy().algorithm().as_str();
        let message = format!("leases need a concurrent policy, and {name} is a {algorithm}");
        return Err(ApiError::invalid_field("policy", message).into());
    }
    Ok(policy)
}

/// Take a lease of a `concurrent` policy. It expires unless it is renewed or released.
#[utoipa::path(post, path = "/api/v1/ratelimit/acquire", tag = "desk", operation_id = "acquire_limit_lease",
    request_body = LimitLeaseRequest,
    responses((status = 200, description = "Held, or all are taken.", body = LimitLeaseResult),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn acquire(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<LimitLeaseRequest>,
) -> Result<Json<LimitLeaseResult>, DeskApiError> {
    let party = party_of(body.identifier.as_deref(), body.identity.as_ref())?;
    let policy = concurrent(&state.desk, &body.policy)?;
    let cost = body.cost.unwrap_or(1);
    if cost == 0 {
        return Err(ApiError::invalid_field("cost", "a lease holds at least 1 unit").into());
    }
    let lease_ms = millis(policy.policy().window());
    let held = [policy];
    let decision = state.desk.book.check(&party, &held, cost, body.lease_id.as_deref()).await?;
    let limit = decision.limits.first();
    Ok(Json(LimitLeaseResult {
        acquired: decision.allowed,
        lease_id: decision.allowed.then(|| decision.request_id.clone()),
        lease_ms,
        remaining: limit.map_or(0, |limit| limit.state.remaining),
        retry_after_ms: if decision.allowed { 0 } else { millis(decision.retry_after()).max(1) },
    }))
}

/// Renew a lease before it expires.
#[utoipa::path(post, path = "/api/v1/ratelimit/renew", tag = "desk", operation_id = "renew_limit_lease",
    request_body = LimitLeaseHolder,
    responses((status = 200, description = "Renewed, or it has expired.", body = LimitRenewal),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn renew(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<LimitLeaseHolder>,
) -> Result<Json<LimitRenewal>, DeskApiError> {
    let (party, policy, cost) = body.resolve(&state.desk)?;
    let limiter = state.desk.book.limiter();
    let renewed = limiter.renew(party.identity(), policy.policy(), &body.lease_id, cost).await?;
    Ok(Json(LimitRenewal { renewed }))
}

/// Release a lease. Safe to repeat.
#[utoipa::path(post, path = "/api/v1/ratelimit/release", tag = "desk", operation_id = "release_limit_lease",
    request_body = LimitLeaseHolder,
    responses((status = 200, description = "Released.", body = LimitRelease),
        (status = 404, description = "There is no policy of this name.", body = web::error::ErrorBody)))]
async fn release(
    State(state): State<DeskState>,
    _: ScopeCheck<LimitsScope>,
    Json(body): Json<LimitLeaseHolder>,
) -> Result<Json<LimitRelease>, DeskApiError> {
    let (party, policy, cost) = body.resolve(&state.desk)?;
    let limiter = state.desk.book.limiter();
    let units = limiter.release(party.identity(), policy.policy(), &body.lease_id, cost).await?;
    Ok(Json(LimitRelease { units }))
}
