//! What producers and workers call: dispatch, wait, claim, renew, complete, fail.
//!
//! A worker's token with scopes `jobs:type=NAME` reaches jobs of those types and workers that take
//! nothing else; one with `jobs:namespace=NAME` only works on a server of that namespace.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use jobs::{
    CLAIM_MAX, Claimed, Claimer, Dispatched, EndedAs, Error, Job, JobError, JobId, JobType, Jobs,
    Labels, Lease, Millis, NewJob, Renewal, ServerId, Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use store::redis::AsyncCommands as _;
use tokio::sync::oneshot;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::{ErrorView, IdempotencyKey, LeaseView, NewJobBody, ResultView};
use super::{InJob, unknown};
use crate::app::App;
use crate::audit::{self, Entry, Note, Silent};
use crate::auth::Principal;
use crate::auth::credential::Credential;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, Path, Query};
use crate::section::Section;

/// The longest wait of one call.
const WAIT_MAX: u64 = 30_000;
/// How long a claim waits before it looks whether anybody still wants its answer.
const SLICE: Duration = Duration::from_secs(1);
/// The longest lease: a day.
const LEASE_MAX: u64 = 24 * 60 * 60 * 1000;
/// How many jobs one bulk call may dispatch.
const BULK_MAX: usize = 1_000;
/// How many log lines one call may add.
const LINES_MAX: usize = 200;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        worker: OpenApiRouter::new()
            .routes(routes!(dispatch))
            .routes(routes!(bulk))
            .routes(routes!(wait))
            .routes(routes!(claim))
            .routes(routes!(renew))
            .routes(routes!(progress))
            .routes(routes!(complete))
            .routes(routes!(fail))
            .routes(routes!(snooze))
            .routes(routes!(release))
            .routes(routes!(stop))
            .routes(routes!(log))
            .routes(routes!(leave)),
        ..Section::default()
    }
}

/// The job types a caller is narrowed to; `None` is all.
fn scope(principal: &Principal) -> Option<Vec<&str>> {
    if principal.scopes.is_empty() {
        return None;
    }
    let kind = |scope: &'_ String| -> Option<usize> {
        ["jobs:type=", "jobs:queue="].iter().find(|p| scope.starts_with(**p)).map(|p| p.len())
    };
    let kinds: Vec<&str> =
        principal.scopes.iter().filter_map(|scope| scope.get(kind(scope)?..)).collect();
    // Scopes that name namespaces alone leave all types of theirs open.
    let spaces = principal.scopes.iter().any(|scope| scope.starts_with("jobs:namespace="));
    (!kinds.is_empty() || !spaces).then_some(kinds)
}

/// Is the caller narrowed to namespaces of which this queue is none?
fn elsewhere(jobs: &Jobs, principal: &Principal) -> bool {
    let mut named =
        principal.scopes.iter().filter_map(|scope| scope.strip_prefix("jobs:namespace="));
    let own = jobs.config().namespace.as_str();
    let (mut any, mut ours) = (false, false);
    for name in named.by_ref() {
        any = true;
        ours |= name == own;
    }
    any && !ours
}

/// The queue, if the caller's token is for its namespace.
pub(super) fn queue<'a>(app: &'a App, principal: &Principal) -> Result<&'a Jobs, ApiError> {
    let jobs = super::queue(app)?;
    match elsewhere(jobs, principal) {
        true => Err(ApiError::forbidden("this token is not for this namespace")),
        false => Ok(jobs),
    }
}

pub(super) fn may(principal: &Principal, kind: &str) -> Result<(), ApiError> {
    match scope(principal) {
        Some(kinds) if !kinds.contains(&kind) => {
            Err(ApiError::forbidden("this token is not for jobs of this type"))
        }
        _ => Ok(()),
    }
}

/// Refuses a narrowed token that speaks for a worker which takes jobs of other types.
async fn may_be(jobs: &Jobs, principal: &Principal, worker: &ServerId) -> Result<(), ApiError> {
    let Some(kinds) = scope(principal) else { return Ok(()) };
    let within = match jobs.worker_types(worker).await? {
        None => true,
        Some(None) => false,
        Some(Some(types)) => types.iter().all(|kind| kinds.contains(&kind.as_str())),
    };
    match within {
        true => Ok(()),
        false => Err(ApiError::forbidden(
            "this worker takes jobs of types this token is not for; use another worker id",
        )),
    }
}

/// What a dispatch came to.
#[derive(Debug, Serialize, ToSchema)]
struct DispatchedView {
    /// The job's id.
    id: String,
    /// Whether it is new; otherwise it was there already.
    new: bool,
}

impl From<Dispatched> for DispatchedView {
    fn from(dispatched: Dispatched) -> DispatchedView {
        DispatchedView { id: dispatched.id.to_string(), new: dispatched.new }
    }
}

/// A job of a body. Schedules have a route of their own, for operators.
fn plain(
    principal: &Principal,
    mut body: NewJobBody,
    key: Option<String>,
) -> Result<NewJob, ApiError> {
    if let Some(key) = key {
        body.use_key(key)?;
    }
    may(principal, &body.kind)?;
    if body.cron.is_some() {
        let message = "a recurring job is a schedule: PUT /api/v1/jobs/schedules/{id}";
        return Err(ApiError::invalid_field("cron", message));
    }
    body.try_into()
}

/// Refuses to tell a narrowed token of a job of another type that has the id or the key already.
async fn dispatched(
    jobs: &Jobs,
    principal: &Principal,
    done: Dispatched,
) -> Result<Dispatched, ApiError> {
    if !done.new
        && scope(principal).is_some()
        && let Some(job) = jobs.get(&done.id).await?
        && may(principal, job.kind.as_str()).is_err()
    {
        return Err(ApiError::conflict(
            "ID_TAKEN",
            "this id or key belongs to a job of another type",
        ));
    }
    Ok(done)
}

/// Dispatch a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = NewJobBody,
    params(IdempotencyKey),
    responses((status = 201, description = "Stored.", body = DispatchedView),
        (status = 200, description = "It was there already.", body = DispatchedView),
        (status = 409, description = "The idempotency key was used for another request.",
            body = ErrorBody)))]
async fn dispatch(
    State(app): State<App>,
    principal: Principal,
    key: IdempotencyKey,
    Json(body): Json<NewJobBody>,
) -> Result<impl IntoResponse, ApiError> {
    let jobs = queue(&app, &principal)?;
    let new = plain(&principal, body, key.key)?;
    let done = dispatched(jobs, &principal, jobs.dispatch(new).await?).await?;
    let status = if done.new { StatusCode::CREATED } else { StatusCode::OK };
    let note = Note::new("job.dispatch", done.id.as_str());
    Ok((status, Extension(note), Json(DispatchedView::from(done))))
}

/// Many jobs to dispatch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Bulk {
    /// At most 1000. Each is read on its own, so one of a wrong shape does not keep the others.
    #[schema(value_type = Vec<NewJobBody>)]
    jobs: Vec<Box<RawValue>>,
}

/// What became of one job of many.
#[derive(Debug, Serialize, ToSchema)]
struct BulkOutcome {
    /// Which job of the request, the first being 0.
    index: usize,
    /// The job's id, if it is stored.
    id: Option<String>,
    /// Whether it is new.
    new: bool,
    /// The code of the error, if it was refused.
    code: Option<&'static str>,
    /// The error in words.
    message: Option<String>,
}

/// What became of many jobs.
#[derive(Debug, Serialize, ToSchema)]
struct BulkView {
    /// In the order of the request.
    outcomes: Vec<BulkOutcome>,
}

/// Dispatch many jobs. Each has its own outcome; one that is refused does not keep the others. With
/// an `Idempotency-Key`, each job has that key and its index in the request.
#[utoipa::path(post, path = "/api/v1/jobs/bulk", tag = "jobs", request_body = Bulk,
    params(IdempotencyKey),
    responses((status = 200, description = "What became of each.", body = BulkView)))]
async fn bulk(
    State(app): State<App>,
    principal: Principal,
    key: IdempotencyKey,
    Json(body): Json<Bulk>,
) -> Result<impl IntoResponse, ApiError> {
    let jobs = queue(&app, &principal)?;
    if body.jobs.len() > BULK_MAX {
        let message = format!("more than {BULK_MAX} jobs in one call");
        return Err(ApiError::invalid_field("jobs", message));
    }
    let mut refused = Vec::with_capacity(body.jobs.len());
    let mut good = Vec::with_capacity(body.jobs.len());
    for (index, body) in body.jobs.into_iter().enumerate() {
        let read = serde_json::from_str::<NewJobBody>(body.get())
            .map_err(|error| ApiError::invalid(format!("job {index}: {error}")));
        match read.and_then(|body| plain(&principal, body, key.at(index))) {
            Ok(new) => {
                good.push(new);
                refused.push(None);
            }
            Err(error) => refused.push(Some(error)),
        }
    }
    let mut stored = Vec::with_capacity(good.len());
    for done in jobs.dispatch_all(good).await {
        stored.push(match done {
            Ok(done) => dispatched(jobs, &principal, done).await,
            Err(error) => Err(error.into()),
        });
    }
    let mut stored = stored.into_iter();
    let outcome = |(index, refused): (usize, Option<ApiError>)| {
        let done = match refused {
            Some(error) => Err(error),
            None => match stored.next() {
                Some(done) => done,
                None => Err(ApiError::internal(&"a job without an outcome")),
            },
        };
        match done {
            Ok(done) => BulkOutcome {
                index,
                id: Some(done.id.to_string()),
                new: done.new,
                code: None,
                message: None,
            },
            Err(error) => BulkOutcome {
                index,
                id: None,
                new: false,
                code: Some(error.code()),
                message: Some(error.message().to_owned()),
            },
        }
    };
    let outcomes: Vec<BulkOutcome> = refused.into_iter().enumerate().map(outcome).collect();
    let count = outcomes.iter().filter(|outcome| outcome.new).count();
    let note = Note::new("jobs.dispatch", format!("{count} jobs"));
    Ok((Extension(note), Json(BulkView { outcomes })))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// At most this long; 30000 is the most, and the default.
    wait_ms: Option<u64>,
}

/// How a job ended, or how it stands.
#[derive(Debug, Serialize, ToSchema)]
struct Ended {
    /// The job's id.
    id: String,
    /// Has it ended?
    ended: bool,
    /// Its state.
    status: Option<&'static str>,
    /// What it came to.
    result: Option<ResultView>,
}

/// Wait until a job has ended, for a bounded time.
#[utoipa::path(get, path = "/api/v1/job/{id}/wait", tag = "jobs",
    params(InJob, WaitQuery),
    responses((status = 200, description = "It has ended.", body = Ended),
        (status = 202, description = "Not yet; ask again.", body = Ended)))]
async fn wait(
    State(app): State<App>,
    principal: Principal,
    credential: Credential,
    InJob { id }: InJob,
    Query(query): Query<WaitQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let jobs = queue(&app, &principal)?;
    let job = jobs.get(&id).await?.ok_or_else(unknown)?;
    may(&principal, job.kind.as_str())?;
    let length = Duration::from_millis(query.wait_ms.unwrap_or(WAIT_MAX).min(WAIT_MAX));
    let end = tokio::select! {
        end = jobs.wait(&id, length) => end,
        () = app.stopped() => Err(Error::TimedOut(jobs.now())),
        () = credential.ended(app.clone()) => return Err(Credential::refusal()),
    };
    let (code, status, result) = match end {
        Ok((status, result)) => (StatusCode::OK, Some(status), result),
        Err(Error::TimedOut(_)) => (StatusCode::ACCEPTED, jobs.status(&id).await?, None),
        Err(error) => return Err(error.into()),
    };
    let body = Ended {
        id: id.to_string(),
        ended: code == StatusCode::OK,
        status: status.map(jobs::Status::as_str),
        result: result.map(ResultView::from),
    };
    Ok((code, Json(body)))
}

/// Who claims what.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// The worker's id.
    worker: String,
    /// Its stack, such as `python`.
    #[serde(default)]
    stack: String,
    /// Where it is.
    #[serde(default)]
    region: String,
    /// What it can do.
    #[serde(default)]
    capabilities: Vec<String>,
    /// The job types it takes; all if left out.
    types: Option<Vec<String>>,
    /// How many jobs at most; 1 if left out, 128 at most.
    most: Option<usize>,
    /// How long to wait for the first; not at all if left out, 30000 at most.
    #[serde(default)]
    wait_ms: u64,
    /// How long the leases are; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
    /// The machine it runs on, for people.
    #[serde(default)]
    hostname: String,
}

/// What was claimed.
#[derive(Debug, Serialize, ToSchema)]
struct ClaimedView {
    /// The jobs, in the order in which they shall start; none if there were none in time.
    leases: Vec<LeaseView>,
    /// There may be more at once.
    more: bool,
}

fn lease_length(jobs: &Jobs, ms: Option<u64>) -> Result<Duration, ApiError> {
    match ms {
        None => Ok(jobs.config().lock_ttl),
        Some(ms @ 1_000..=LEASE_MAX) => Ok(Duration::from_millis(ms)),
        Some(_) => Err(ApiError::invalid_field("lease_ms", "a lease is a second to a day")),
    }
}

/// Claim jobs, waiting for the first for a bounded time. The worker counts as alive by it.
#[utoipa::path(post, path = "/api/v1/jobs/claim", tag = "jobs", request_body = Claim,
    responses((status = 200, description = "What was claimed.", body = ClaimedView)))]
async fn claim(
    State(app): State<App>,
    principal: Principal,
    credential: Credential,
    entry: Option<Extension<Entry>>,
    Json(body): Json<Claim>,
) -> Result<Json<ClaimedView>, ApiError> {
    let jobs = queue(&app, &principal)?.clone();
    let lease = lease_length(&jobs, body.lease_ms)?;
    let labels = Labels::new(body.worker)?
        .stack(body.stack)
        .region(body.region)
        .capabilities(body.capabilities);
    let types = match (body.types, scope(&principal)) {
        (None, None) => None,
        (None, Some(kinds)) => Some(kinds.into_iter().map(str::to_owned).collect()),
        (Some(types), _) => Some(types),
    };
    let types = match types {
        None => None,
        Some(types) => {
            types.iter().try_for_each(|kind| may(&principal, kind))?;
            Some(types.into_iter().map(JobType::parse).collect::<Result<Vec<_>, _>>()?)
        }
    };
    may_be(&jobs, &principal, &labels.server).await?;
    jobs.register(&labels, types.as_deref(), &body.hostname).await?;
    let mut claimer = jobs.claimer(labels);
    if let Some(types) = types {
        claimer = claimer.types(types);
    }
    let most = body.most.unwrap_or(1).clamp(1, CLAIM_MAX);
    let until = Instant::now() + Duration::from_millis(body.wait_ms.min(WAIT_MAX));
    // On a task of its own, so that a caller who goes away in the middle leaves nothing claimed.
    let (answer, answered) = oneshot::channel();
    let watched = app.clone();
    app.tasks().clone().spawn(async move {
        let claimed = poll(&app, claimer, most, lease, until, &answer).await;
        // What a person claims is on record before it is handed out.
        if let (Some(Extension(entry)), Ok(claimed)) = (entry, &claimed)
            && !claimed.leases.is_empty()
        {
            write_claim(&app, entry, claimed).await;
        }
        if let Err(Ok(unwanted)) = answer.send(claimed)
            && let Err(error) = jobs.release(&unwanted.leases).await
        {
            tracing::warn!(%error, "jobs nobody took stay claimed until their lease ends");
        }
    });
    let claimed = tokio::select! {
        claimed = answered => claimed.map_err(|error| ApiError::internal(&error))??,
        () = credential.ended(watched) => return Err(Credential::refusal()),
    };
    let leases = claimed.leases.into_iter().map(LeaseView::from).collect();
    Ok(Json(ClaimedView { leases, more: claimed.more }))
}

/// Writes down which jobs a person claimed.
async fn write_claim(app: &App, mut entry: Entry, claimed: &Claimed) {
    let ids: Vec<&str> = claimed.leases.iter().map(|lease| lease.id().as_str()).collect();
    "job.claim".clone_into(&mut entry.action);
    entry.target = ids.join(" ");
    entry.set_status(StatusCode::OK);
    audit::write(app, &entry).await;
}

async fn poll(
    app: &App,
    mut claimer: Claimer,
    most: usize,
    lease: Duration,
    until: Instant,
    answer: &oneshot::Sender<Result<Claimed, Error>>,
) -> Result<Claimed, Error> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let claimed = claimer.claim_wait(most, lease, left.min(SLICE)).await?;
        let over = Instant::now() >= until || app.stopping() || answer.is_closed();
        if over || !claimed.leases.is_empty() {
            return Ok(claimed);
        }
    }
}

/// The lease a caller speaks of. Whether it is held is for the store to say.
async fn lease(
    jobs: &Jobs,
    principal: &Principal,
    id: &JobId,
    worker: &str,
    token: u64,
) -> Result<Lease, ApiError> {
    let worker = jobs::ServerId::parse(worker)?;
    let mut store = jobs.store().clone();
    let data: Option<Vec<u8>> = store
        .get(jobs.keys().data(id.as_str()))
        .await
        .map_err(|error| ApiError::from(Error::from(error)))?;
    let data = data.ok_or_else(unknown)?;
    let malformed = |reason: String| Error::Malformed { id: id.clone(), reason };
    let job = Job::parse(id.clone(), &data).map_err(|error| malformed(error.to_string()))?;
    may(principal, job.kind.as_str())?;
    let text = String::from_utf8(data).map_err(|error| malformed(error.to_string()))?;
    Ok(Lease::from_parts(job, text, worker.as_str(), token, Millis(0)))
}

/// A lease to renew.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Renew {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// For how long; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// A lease that runs on.
#[derive(Debug, Serialize, ToSchema)]
struct Renewed {
    /// Until when, in milliseconds since 1970.
    until_ms: i64,
    /// The job was cancelled and shall stop.
    cancelled: bool,
    /// The reason for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

async fn renewed(jobs: &Jobs, lease: &Lease, length: Duration) -> Result<Renewed, ApiError> {
    let (outcomes, until) = jobs.renew_for(&[lease], length).await?;
    let cancelled = match outcomes.first() {
        Some(Renewal::Held) => false,
        Some(Renewal::Cancelled) => true,
        _ => return Err(Error::LeaseLost(lease.id().clone()).into()),
    };
    let worker = jobs::ServerId::parse(lease.server())?;
    jobs.heartbeat(&worker).await?;
    let reason = if cancelled { jobs.cancel_reason(lease.id()).await? } else { None };
    Ok(Renewed { until_ms: until.0, cancelled, reason })
}

/// Keep a job for longer. Says whether it was cancelled meanwhile.
#[utoipa::path(post, path = "/api/v1/job/{id}/renew", tag = "jobs", request_body = Renew,
    params(InJob),
    responses((status = 200, description = "It runs on.", body = Renewed),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn renew(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Renew>,
) -> Result<(Extension<Silent>, Json<Renewed>), ApiError> {
    let jobs = queue(&app, &principal)?;
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    Ok((Extension(Silent), Json(renewed(jobs, &lease, length).await?)))
}

/// How far a job is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewProgress {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// 0 to 100.
    percent: f64,
    /// What it is doing.
    message: Option<String>,
    /// Whatever else is to be told.
    #[serde(default)]
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// For how long the lease is renewed; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// Say how far a job is; renews the lease, too.
#[utoipa::path(post, path = "/api/v1/job/{id}/progress", tag = "jobs", request_body = NewProgress,
    params(InJob),
    responses((status = 200, description = "Noted.", body = Renewed),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn progress(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<NewProgress>,
) -> Result<(Extension<Silent>, Json<Renewed>), ApiError> {
    let jobs = queue(&app, &principal)?;
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    let view = renewed(jobs, &lease, length).await?;
    jobs.set_progress(lease.id(), body.percent, body.message, body.data).await?;
    Ok((Extension(Silent), Json(view)))
}

/// A job that succeeded.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Complete {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// What the handler returned: any JSON.
    #[serde(default)]
    #[schema(value_type = Value)]
    result: Option<Box<RawValue>>,
    /// How long it ran.
    #[serde(default)]
    took_ms: u64,
}

/// What became of the job.
#[derive(Debug, Serialize, ToSchema)]
struct Outcome {
    /// `completed`, `retry`, `reroute`, `dead`, `snoozed`, `released`, `stopped`, or `cancelled`: the
    /// job was cancelled while it ran and has ended for good.
    outcome: &'static str,
    /// When it is retried: after this long.
    retry_in_ms: Option<u64>,
}

/// End a job with success.
#[utoipa::path(post, path = "/api/v1/job/{id}/complete", tag = "jobs", request_body = Complete,
    params(InJob),
    responses((status = 200, description = "It has ended.", body = Outcome),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn complete(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Complete>,
) -> Result<Json<Outcome>, ApiError> {
    let jobs = queue(&app, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    jobs.complete(&lease, body.result, Duration::from_millis(body.took_ms)).await?;
    Ok(Json(Outcome { outcome: "completed", retry_in_ms: None }))
}

/// An attempt that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// Why.
    error: ErrorView,
    /// How long it ran.
    #[serde(default)]
    took_ms: u64,
    /// No retry can mend it: to the dead letters at once.
    #[serde(default)]
    fatal: bool,
    /// Try again after this long instead of what the job's policy says, if it may be retried.
    retry_in_ms: Option<u64>,
}

/// End an attempt with an error. The job's own policy says what comes next.
#[utoipa::path(post, path = "/api/v1/job/{id}/fail", tag = "jobs", request_body = Fail,
    params(InJob),
    responses((status = 200, description = "What comes next.", body = Outcome),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn fail(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Fail>,
) -> Result<Json<Outcome>, ApiError> {
    let jobs = queue(&app, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    let took = Duration::from_millis(body.took_ms);
    let error = JobError::from(body.error);
    let verdict = if body.fatal {
        jobs.bury(&lease, error, took).await?
    } else if let Some(wait) = body.retry_in_ms {
        let wait = Duration::from_millis(wait).min(jobs::WAIT_MAX);
        jobs.retry_in(&lease, wait, error, took).await?
    } else {
        jobs.fail(&lease, error, took).await?
    };
    let (outcome, wait) = match verdict {
        Verdict::Retry(wait) => ("retry", Some(wait)),
        Verdict::Reroute => ("reroute", None),
        Verdict::Dead => ("dead", None),
        Verdict::Cancelled => ("cancelled", None),
    };
    let retry_in_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    Ok(Json(Outcome { outcome, retry_in_ms }))
}

/// A job to put off.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Snooze {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// For how long.
    wait_ms: u64,
}

/// Put a job off. The attempt does not count.
#[utoipa::path(post, path = "/api/v1/job/{id}/snooze", tag = "jobs", request_body = Snooze,
    operation_id = "snooze_job",
    params(InJob),
    responses((status = 200, description = "It runs later.", body = Outcome),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn snooze(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Snooze>,
) -> Result<Json<Outcome>, ApiError> {
    let jobs = queue(&app, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    let wait = Duration::from_millis(body.wait_ms).min(jobs::WAIT_MAX);
    if jobs.snooze(&lease, wait).await? == EndedAs::Cancelled {
        return Ok(Json(Outcome { outcome: "cancelled", retry_in_ms: None }));
    }
    let retry_in_ms = u64::try_from(wait.as_millis()).ok();
    Ok(Json(Outcome { outcome: "snoozed", retry_in_ms }))
}

/// A job to hand back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
}

/// Hand a job back to the head of the line, as a worker that stops does. The attempt does not count.
#[utoipa::path(post, path = "/api/v1/job/{id}/release", tag = "jobs", request_body = Release,
    operation_id = "release_job",
    params(InJob),
    responses((status = 200, description = "It is in line.", body = Outcome),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn release(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Release>,
) -> Result<Json<Outcome>, ApiError> {
    let jobs = queue(&app, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    let outcome = match jobs.release_one(&lease).await? {
        EndedAs::Cancelled => "cancelled",
        _ => "released",
    };
    Ok(Json(Outcome { outcome, retry_in_ms: None }))
}

/// A job that shall not run any more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// Why.
    #[serde(default)]
    reason: String,
    /// How long it ran.
    #[serde(default)]
    took_ms: u64,
}

/// End a running job for good because it was cancelled or gave itself up; no dead letter.
#[utoipa::path(post, path = "/api/v1/job/{id}/stop", tag = "jobs", request_body = Stop,
    operation_id = "stop_job",
    params(InJob),
    responses((status = 200, description = "It has ended.", body = Outcome),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn stop(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<Stop>,
) -> Result<Json<Outcome>, ApiError> {
    let jobs = queue(&app, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    jobs.stop(&lease, &body.reason, Duration::from_millis(body.took_ms)).await?;
    Ok(Json(Outcome { outcome: "stopped", retry_in_ms: None }))
}

/// Lines for a job's log.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewLines {
    /// The worker that holds it.
    worker: String,
    /// The lease's token.
    token: u64,
    /// The lines, each at most 4 KiB, at most 200 in a call; the log keeps the latest few.
    lines: Vec<String>,
    /// For how long the lease is renewed; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// Add lines to a job's log; renews the lease, too.
#[utoipa::path(post, path = "/api/v1/job/{id}/log", tag = "jobs", request_body = NewLines,
    operation_id = "log_job",
    params(InJob),
    responses((status = 200, description = "Noted.", body = Renewed),
        (status = 409, description = "The lease is lost.", body = ErrorBody)))]
async fn log(
    State(app): State<App>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<NewLines>,
) -> Result<(Extension<Silent>, Json<Renewed>), ApiError> {
    let jobs = queue(&app, &principal)?;
    if body.lines.len() > LINES_MAX {
        let message = format!("more than {LINES_MAX} lines in one call");
        return Err(ApiError::invalid_field("lines", message));
    }
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker, body.token).await?;
    let view = renewed(jobs, &lease, length).await?;
    for line in &body.lines {
        jobs.log(lease.id(), line).await?;
    }
    Ok((Extension(Silent), Json(view)))
}

/// A worker that is gone.
#[derive(Debug, Serialize, ToSchema)]
struct Left {
    /// The worker.
    worker: String,
}

/// Take a worker off the list, as it does when it stops. Jobs it holds are not touched.
#[utoipa::path(delete, path = "/api/v1/jobs/workers/{worker}", tag = "jobs",
    operation_id = "leave_jobs",
    params(("worker" = String, Path, description = "Id of the worker.")),
    responses((status = 200, description = "Gone.", body = Left)))]
async fn leave(
    State(app): State<App>,
    principal: Principal,
    Path(worker): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let jobs = queue(&app, &principal)?;
    let server = ServerId::parse(worker.as_str())?;
    may_be(jobs, &principal, &server).await?;
    jobs.unregister(&server).await?;
    Ok((Extension(Note::new("worker.remove", &worker)), Json(Left { worker })))
}
