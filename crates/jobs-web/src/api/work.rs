//! Calls for producers and workers: dispatch, wait, claim, renew, complete, fail.
//!
//! A worker's token with scopes `jobs:type=NAME` reaches jobs of those types and workers that take
//! nothing else; one with `jobs:namespace=NAME` only works on a server of that namespace.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use jobs::{
    AckOutcome, CLAIM_MAX, ClaimBatch, Claimer, DispatchReceipt, Error, FailureAction, JobError,
    JobId, JobLease, JobType, Jobs, Labels, NewJob, Renewal, WorkerId,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::InJob;
use super::view::{ErrorView, JobIdempotencyKey, JobState, LeaseView, NewJobBody, ResultView};
use crate::error::{JobsApiError, api_error, unknown};
use crate::service::JobsState;
use web::App;
use web::Routes;
use web::audit::{self, Entry, Note, PendingEntry, Silent};
use web::auth::Principal;
use web::auth::credential::Credential;
use web::error::{ApiError, ErrorBody};
use web::extract::{Json, Path, Query, read_json};
use web::time::Timestamp;

/// The longest wait of one call.
const WAIT_MAX: u64 = 30_000;
/// The longest grace after a timeout, in milliseconds.
const GRACE_MAX: u64 = 600_000;

/// Interval at which a waiting claim checks whether its caller is still there.
const SLICE: Duration = Duration::from_secs(1);
/// The longest lease: a day.
const LEASE_MAX: u64 = 24 * 60 * 60 * 1000;
/// Most jobs one bulk call may dispatch.
const BULK_MAX: usize = 1_000;
/// Most log lines one call may add.
const LINES_MAX: usize = 200;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        worker: OpenApiRouter::new()
            .routes(routes!(dispatch))
            .routes(routes!(bulk))
            .routes(routes!(wait))
            .routes(routes!(renew))
            .routes(routes!(progress))
            .routes(routes!(complete))
            .routes(routes!(fail))
            .routes(routes!(snooze))
            .routes(routes!(release))
            .routes(routes!(stop))
            .routes(routes!(log))
            .routes(routes!(leave)),
        self_audited: OpenApiRouter::new().routes(routes!(claim)),
        ..Routes::default()
    }
}

/// The job types a caller is narrowed to; `None` is all.
fn scope(principal: &Principal) -> Option<Vec<&str>> {
    if principal.scopes.is_empty() {
        return None;
    }
    let job_type = |scope: &'_ String| -> Option<usize> {
        ["jobs:type=", "jobs:queue="].iter().find(|p| scope.starts_with(**p)).map(|p| p.len())
    };
    let job_types: Vec<&str> =
        principal.scopes.iter().filter_map(|scope| scope.get(job_type(scope)?..)).collect();
    // Scopes that name namespaces alone leave all types of theirs open.
    let spaces = principal.scopes.iter().any(|scope| scope.starts_with("jobs:namespace="));
    (!job_types.is_empty() || !spaces).then_some(job_types)
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
pub(super) fn queue<'a>(
    state: &'a JobsState,
    principal: &Principal,
) -> Result<&'a Jobs, JobsApiError> {
    let jobs = &state.jobs;
    match elsewhere(jobs, principal) {
        true => Err(ApiError::forbidden("this token is not for this namespace").into()),
        false => Ok(jobs),
    }
}

pub(super) fn may(principal: &Principal, job_type: &str) -> Result<(), JobsApiError> {
    match scope(principal) {
        Some(job_types) if !job_types.contains(&job_type) => {
            Err(ApiError::forbidden("this token is not for jobs of this type").into())
        }
        _ => Ok(()),
    }
}

/// Refuses a narrowed token that speaks for a worker which takes jobs of other types.
async fn may_be(jobs: &Jobs, principal: &Principal, worker: &WorkerId) -> Result<(), JobsApiError> {
    let Some(job_types) = scope(principal) else { return Ok(()) };
    let within = match jobs.worker_types(worker).await? {
        None => true,
        Some(None) => false,
        Some(Some(types)) => types.iter().all(|job_type| job_types.contains(&job_type.as_str())),
    };
    match within {
        true => Ok(()),
        false => Err(ApiError::forbidden(
            "this worker takes jobs of types this token is not for; use another worker id",
        )
        .into()),
    }
}

/// The result of a dispatch.
#[derive(Debug, Serialize, ToSchema)]
struct DispatchReply {
    /// The job's id.
    id: String,
    /// True if it is new; otherwise it existed already.
    new: bool,
}

impl From<DispatchReceipt> for DispatchReply {
    fn from(dispatched: DispatchReceipt) -> DispatchReply {
        DispatchReply { id: dispatched.id.to_string(), new: dispatched.new }
    }
}

/// A job of a body. Schedules have a route of their own, for operators.
fn plain(
    principal: &Principal,
    mut body: NewJobBody,
    key: Option<String>,
) -> Result<NewJob, JobsApiError> {
    if let Some(key) = key {
        body.use_key(key)?;
    }
    may(principal, &body.job_type)?;
    if body.cron.is_some() {
        let message = "a recurring job is a schedule: PUT /api/v1/jobs/schedules/{id}";
        return Err(ApiError::invalid_field("cron", message).into());
    }
    body.try_into()
}

/// Refuses jobs of a narrowed token that would wait for jobs of other types: whether those are there,
/// and how they end, is not for it to know.
async fn within(jobs: &Jobs, principal: &Principal, new: &NewJob) -> Result<(), JobsApiError> {
    if scope(principal).is_none() {
        return Ok(());
    }
    for parent in new.parents() {
        let job = jobs.get(parent).await?;
        if job.is_none_or(|job| may(principal, job.job_type.as_str()).is_err()) {
            return Err(Error::NoParent(parent.clone()).into());
        }
    }
    Ok(())
}

/// Refuses to tell a narrowed token of a job of another type that has the id or the key already.
async fn dispatched(
    jobs: &Jobs,
    principal: &Principal,
    done: DispatchReceipt,
) -> Result<DispatchReceipt, JobsApiError> {
    if !done.new
        && scope(principal).is_some()
        && let Some(job) = jobs.get(&done.id).await?
        && may(principal, job.job_type.as_str()).is_err()
    {
        return Err(ApiError::conflict(
            "ID_TAKEN",
            "this id or key belongs to a job of another type",
        )
        .into());
    }
    Ok(done)
}

/// Dispatch a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", operation_id = "dispatch_job", request_body = NewJobBody,
    params(JobIdempotencyKey),
    responses((status = 201, description = "Stored.", body = DispatchReply),
        (status = 200, description = "It was there already.", body = DispatchReply),
        (status = 409, description = "The idempotency key was used for another request.",
            body = ErrorBody)))]
async fn dispatch(
    State(state): State<JobsState>,
    principal: Principal,
    key: JobIdempotencyKey,
    Json(body): Json<NewJobBody>,
) -> Result<impl IntoResponse, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let new = plain(&principal, body, key.key)?;
    within(jobs, &principal, &new).await?;
    let done = dispatched(jobs, &principal, jobs.dispatch(new).await?).await?;
    let status = if done.new { StatusCode::CREATED } else { StatusCode::OK };
    let note = Note::new("job.dispatch", done.id.as_str());
    Ok((status, Extension(note), Json(DispatchReply::from(done))))
}

/// Many jobs to dispatch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkDispatchRequest, example = json!({ "jobs": [{ "type": "mail", "payload": { "to": "ann@example.org" } }] }))]
struct BulkDispatchBody {
    /// At most 1000. Each is read on its own, so one of a wrong shape does not keep the others.
    #[schema(value_type = Vec<NewJobBody>)]
    jobs: Vec<Box<RawValue>>,
}

/// The result for one job of a bulk dispatch.
#[derive(Debug, Serialize, ToSchema)]
struct BulkDispatchOutcome {
    /// Index of the job in the request, starting at 0.
    index: usize,
    /// The job's id, if it is stored.
    id: Option<String>,
    /// True if it is new.
    new: bool,
    /// The code of the error, if it was refused.
    code: Option<&'static str>,
    /// The error in words.
    message: Option<String>,
    /// The field that is at fault, if one is.
    field: Option<String>,
}

/// The results of a bulk dispatch.
#[derive(Debug, Serialize, ToSchema)]
struct BulkDispatchReply {
    /// One outcome per job, in the order of the request.
    items: Vec<BulkDispatchOutcome>,
}

/// Dispatch many jobs. Each has its own outcome; one that is refused does not keep the others. With
/// an `Idempotency-Key`, each job has that key and its index in the request.
#[utoipa::path(post, path = "/api/v1/jobs/bulk", tag = "jobs", operation_id = "dispatch_many", request_body = BulkDispatchBody,
    params(JobIdempotencyKey),
    responses((status = 200, description = "What became of each.", body = BulkDispatchReply)))]
async fn bulk(
    State(state): State<JobsState>,
    principal: Principal,
    key: JobIdempotencyKey,
    Json(body): Json<BulkDispatchBody>,
) -> Result<impl IntoResponse, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    if body.jobs.len() > BULK_MAX {
        let message = format!("more than {BULK_MAX} jobs in one call");
        return Err(ApiError::invalid_field("jobs", message).into());
    }
    let mut refused = Vec::with_capacity(body.jobs.len());
    let mut good = Vec::with_capacity(body.jobs.len());
    for (index, body) in body.jobs.into_iter().enumerate() {
        let read = read_json::<NewJobBody>(body.get().as_bytes()).map_err(JobsApiError::from);
        let new = match read.and_then(|body| plain(&principal, body, key.at(index))) {
            Ok(new) => within(jobs, &principal, &new).await.map(|()| new),
            Err(error) => Err(error),
        };
        match new {
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
    let outcome = |(index, refused): (usize, Option<JobsApiError>)| {
        let done = match refused {
            Some(error) => Err(error),
            None => match stored.next() {
                Some(done) => done,
                None => Err(ApiError::internal(&"a job without an outcome").into()),
            },
        };
        match done.map_err(ApiError::from) {
            Ok(done) => BulkDispatchOutcome {
                index,
                id: Some(done.id.to_string()),
                new: done.new,
                code: None,
                message: None,
                field: None,
            },
            Err(error) => BulkDispatchOutcome {
                index,
                id: None,
                new: false,
                code: Some(error.code()),
                message: Some(error.message().to_owned()),
                field: error.field().map(str::to_owned),
            },
        }
    };
    let items: Vec<BulkDispatchOutcome> = refused.into_iter().enumerate().map(outcome).collect();
    let count = items.iter().filter(|outcome| outcome.new).count();
    let note = Note::new("jobs.dispatch", format!("{count} jobs"));
    Ok((Extension(note), Json(BulkDispatchReply { items })))
}

/// Time limit of a wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// At most this long; 30000 is the most, and the default.
    wait_ms: Option<u64>,
}

/// The state of a job after a wait.
#[derive(Debug, Serialize, ToSchema)]
struct WaitReply {
    /// The job's id.
    id: String,
    /// Has it ended?
    ended: bool,
    /// Its state.
    status: Option<JobState>,
    /// Its result.
    result: Option<ResultView>,
}

/// Wait until a job has ended, for a bounded time.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/wait", tag = "jobs", operation_id = "wait_for_job",
    params(InJob, WaitQuery),
    responses((status = 200, description = "It has ended.", body = WaitReply),
        (status = 202, description = "Not yet; ask again.", body = WaitReply)))]
async fn wait(
    State(state): State<JobsState>,
    principal: Principal,
    credential: Credential,
    InJob { id }: InJob,
    Query(query): Query<WaitQuery>,
) -> Result<impl IntoResponse, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let job = jobs.get(&id).await?.ok_or_else(unknown)?;
    may(&principal, job.job_type.as_str())?;
    let length = Duration::from_millis(query.wait_ms.unwrap_or(WAIT_MAX).min(WAIT_MAX));
    let end = tokio::select! {
        end = jobs.wait(&id, length) => end,
        () = state.app.stopped() => Err(Error::TimedOut(jobs.now())),
        () = credential.ended(state.app.clone()) => return Err(Credential::refusal().into()),
    };
    let (code, status, result) = match end {
        Ok((status, result)) => (StatusCode::OK, Some(status), result),
        Err(Error::TimedOut(_)) => (StatusCode::ACCEPTED, jobs.status(&id).await?, None),
        Err(error) => return Err(error.into()),
    };
    let body = WaitReply {
        id: id.to_string(),
        ended: code == StatusCode::OK,
        status: status.map(JobState::from),
        result: result.map(ResultView::from),
    };
    Ok((code, Json(body)))
}

/// A worker and the jobs it claims.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClaimRequest, example = json!({ "worker_id": "mailer-1", "types": ["mail"], "limit": 10, "wait_ms": 20000 }))]
struct ClaimJobsBody {
    /// The worker's id.
    worker_id: String,
    /// Its stack, such as `python`.
    #[serde(default)]
    stack: String,
    /// Its region.
    #[serde(default)]
    region: String,
    /// Its capabilities.
    #[serde(default)]
    capabilities: Vec<String>,
    /// The job types it takes; all if left out.
    types: Option<Vec<String>>,
    /// Most jobs to claim: 1 if left out, 128 at most.
    limit: Option<usize>,
    /// Time to wait for the first job; not at all if left out, 30000 at most.
    #[serde(default)]
    wait_ms: u64,
    /// Length of the leases: a second to a day; as configured if left out.
    lease_ms: Option<u64>,
    /// Grace after its timeout in which an attempt may still report its own end; none if left
    /// out, 600000 at most. For workers that stop what runs too long themselves.
    #[serde(default)]
    timeout_grace_ms: u64,
    /// The machine it runs on, for people.
    #[serde(default)]
    hostname: String,
    /// Number of jobs it runs at once, for people.
    slots: Option<u32>,
}

/// The claimed jobs.
#[derive(Debug, Serialize, ToSchema)]
struct ClaimReply {
    /// The leases, in the order in which their jobs shall start; none if there were none in time.
    items: Vec<LeaseView>,
    /// There may be more at once.
    more: bool,
    /// True if an operator drains this worker: it gets nothing until it is resumed.
    draining: bool,
}

fn lease_length(jobs: &Jobs, ms: Option<u64>) -> Result<Duration, JobsApiError> {
    match ms {
        None => Ok(jobs.config().lock_ttl),
        Some(ms @ 1_000..=LEASE_MAX) => Ok(Duration::from_millis(ms)),
        Some(_) => Err(ApiError::invalid_field("lease_ms", "a lease is a second to a day").into()),
    }
}

/// Claim jobs, waiting for the first for a bounded time. The worker counts as alive by it.
#[utoipa::path(post, path = "/api/v1/jobs/claim", tag = "jobs", operation_id = "claim_leases", request_body = ClaimJobsBody,
    responses((status = 200, description = "What was claimed.", body = ClaimReply)))]
async fn claim(
    State(state): State<JobsState>,
    principal: Principal,
    credential: Credential,
    entry: Option<Extension<Entry>>,
    Json(body): Json<ClaimJobsBody>,
) -> Result<Json<ClaimReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?.clone();
    let lease = lease_length(&jobs, body.lease_ms)?;
    let labels = Labels::new(body.worker_id)?
        .stack(body.stack)
        .region(body.region)
        .capabilities(body.capabilities);
    let types = match (body.types, scope(&principal)) {
        (None, None) => None,
        (None, Some(job_types)) => Some(job_types.into_iter().map(str::to_owned).collect()),
        (Some(types), _) => Some(types),
    };
    let types = match types {
        None => None,
        Some(types) => {
            types.iter().try_for_each(|job_type| may(&principal, job_type))?;
            Some(types.into_iter().map(JobType::foreign).collect::<Result<Vec<_>, _>>()?)
        }
    };
    may_be(&jobs, &principal, &labels.worker_id).await?;
    jobs.register(&labels, types.as_deref(), &body.hostname, body.slots).await?;
    if body.timeout_grace_ms > GRACE_MAX {
        return Err(
            ApiError::invalid_field("timeout_grace_ms", "a grace is ten minutes at most").into()
        );
    }
    let grace = Duration::from_millis(body.timeout_grace_ms);
    let mut claimer = jobs.claimer(labels).starting(grace);
    if let Some(types) = types {
        claimer = claimer.types(types);
    }
    let most = body.limit.unwrap_or(1).clamp(1, CLAIM_MAX);
    let until = Instant::now() + Duration::from_millis(body.wait_ms.min(WAIT_MAX));
    // On a task of its own, so that a caller who goes away in the middle leaves nothing claimed.
    let (answer, answered) = oneshot::channel();
    let app = state.app.clone();
    let watched = app.clone();
    let claiming = async move {
        // What a person claims is announced before, and on record before it is handed out.
        let pending = match entry {
            Some(Extension(entry)) => match announce_claim(&app, entry).await {
                Ok(pending) => Some(pending),
                // Nobody may be there to hear it.
                Err(error) => return drop(answer.send(Err(error))),
            },
            None => None,
        };
        let claimed = poll(&app, claimer, most, lease, until, &answer).await.map_err(api_error);
        if let Some(mut pending) = pending {
            note_claim(&mut pending, &claimed);
            pending.finish(&app).await;
        }
        if let Err(Ok(unwanted)) = answer.send(claimed)
            && let Err(error) = jobs.release(&unwanted.leases).await
        {
            tracing::warn!(%error, "jobs nobody took stay claimed until their lease ends");
        }
    };
    watched.tasks().spawn(store::trace::carry(claiming));
    let claimed = tokio::select! {
        claimed = answered => claimed.map_err(|error| ApiError::internal(&error))??,
        () = credential.ended(watched) => return Err(Credential::refusal().into()),
    };
    let items = claimed.leases.into_iter().map(LeaseView::from).collect();
    Ok(Json(ClaimReply { items, more: claimed.more, draining: claimed.draining }))
}

/// Announces that a person claims jobs; which ones, nobody knows yet.
async fn announce_claim(app: &App, mut entry: Entry) -> Result<PendingEntry, ApiError> {
    "job.claim".clone_into(&mut entry.action);
    audit::begin(app, entry).await
}

/// Notes which jobs a person claimed; a claim that came to nothing leaves no entry.
fn note_claim(pending: &mut PendingEntry, claimed: &Result<ClaimBatch, ApiError>) {
    match claimed {
        Ok(claimed) if claimed.leases.is_empty() => pending.silence(),
        Ok(claimed) => {
            let ids: Vec<&str> = claimed.leases.iter().map(|lease| lease.id().as_str()).collect();
            pending.entry.target = ids.join(" ");
            pending.entry.set_status(StatusCode::OK);
        }
        Err(error) => pending.entry.set_status(error.status()),
    }
}

async fn poll(
    app: &App,
    mut claimer: Claimer,
    most: usize,
    lease: Duration,
    until: Instant,
    answer: &oneshot::Sender<Result<ClaimBatch, ApiError>>,
) -> Result<ClaimBatch, Error> {
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
) -> Result<JobLease, JobsApiError> {
    let worker = jobs::WorkerId::parse(worker)?;
    let lease = jobs.lease(id, &worker, token).await?;
    may(principal, lease.job.job_type.as_str())?;
    Ok(lease)
}

/// A lease to renew.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RenewRequest, example = json!({ "worker_id": "mailer-1", "token": 7 }))]
struct RenewBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// For how long; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// A lease that runs on.
#[derive(Debug, Serialize, ToSchema)]
struct RenewReply {
    /// Time at which the lease expires unless renewed.
    expires_at: Timestamp,
    /// The job was cancelled and shall stop.
    cancelled: bool,
    /// The reason for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

async fn renewed(
    jobs: &Jobs,
    lease: &JobLease,
    length: Duration,
) -> Result<RenewReply, JobsApiError> {
    let (outcomes, until) = jobs.renew_for(&[lease], length).await?;
    let cancelled = match outcomes.first() {
        Some(Renewal::Held) => false,
        Some(Renewal::Cancelled) => true,
        Some(Renewal::TimedOut) => return Err(Error::Overdue(lease.id().clone()).into()),
        _ => return Err(Error::LeaseLost(lease.id().clone()).into()),
    };
    let worker = jobs::WorkerId::parse(lease.worker_id())?;
    jobs.heartbeat(&worker).await?;
    let reason = if cancelled { jobs.cancel_reason(lease.id()).await? } else { None };
    Ok(RenewReply { expires_at: until.into(), cancelled, reason })
}

/// Renew the lease of a job. Returns whether it was cancelled in the meantime.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/renew", tag = "jobs", operation_id = "renew_lease", request_body = RenewBody,
    params(InJob),
    responses((status = 200, description = "It runs on.", body = RenewReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn renew(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<RenewBody>,
) -> Result<(Extension<Silent>, Json<RenewReply>), JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    Ok((Extension(Silent), Json(renewed(jobs, &lease, length).await?)))
}

/// The progress of a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProgressRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "percent": 40, "message": "half way" }))]
struct ProgressBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// 0 to 100.
    percent: f64,
    /// The current step.
    message: Option<String>,
    /// Whatever else is to be told.
    #[serde(default)]
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// For how long the lease is renewed; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// Report the progress of a job; renews the lease, too.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/progress", tag = "jobs", operation_id = "report_progress", request_body = ProgressBody,
    params(InJob),
    responses((status = 200, description = "Noted.", body = RenewReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn progress(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<ProgressBody>,
) -> Result<(Extension<Silent>, Json<RenewReply>), JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    let view = renewed(jobs, &lease, length).await?;
    jobs.set_progress(lease.id(), body.percent, body.message, body.data).await?;
    Ok((Extension(Silent), Json(view)))
}

/// A job that succeeded.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompleteRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "result": { "sent": true }, "took_ms": 120 }))]
struct CompleteBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// Return value of the handler: any JSON.
    #[serde(default)]
    #[schema(value_type = Value)]
    result: Option<Box<RawValue>>,
    /// Run time.
    #[serde(default)]
    took_ms: u64,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AckOutcome)]
enum AckState {
    /// It succeeded.
    Completed,
    /// It is retried after `retry_in_ms`.
    Retry,
    /// It goes to another worker at once.
    Reroute,
    /// It is a dead letter.
    Dead,
    /// It is delayed; the attempt does not count.
    Snoozed,
    /// It waits again; the attempt does not count.
    Released,
    /// It has ended for good.
    Stopped,
    /// It was cancelled while it ran, and has ended for good.
    Cancelled,
}

/// The new state of the job.
#[derive(Debug, Serialize, ToSchema)]
struct AckReply {
    /// The outcome.
    outcome: AckState,
    /// Delay before the retry, if there is one.
    retry_in_ms: Option<u64>,
}

/// Complete a job.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/complete", tag = "jobs", operation_id = "complete_job", request_body = CompleteBody,
    params(InJob),
    responses((status = 200, description = "It has ended.", body = AckReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn complete(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<CompleteBody>,
) -> Result<Json<AckReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    jobs.complete(&lease, body.result, Duration::from_millis(body.took_ms)).await?;
    Ok(Json(AckReply { outcome: AckState::Completed, retry_in_ms: None }))
}

/// An attempt that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FailRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "error": { "name": "Smtp", "message": "421 try later" }, "took_ms": 120 }))]
struct FailBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// The reason.
    error: ErrorView,
    /// Run time.
    #[serde(default)]
    took_ms: u64,
    /// No retry can mend it: to the dead letters at once.
    #[serde(default)]
    fatal: bool,
    /// Try again after this long instead of what the job's policy says, if it may be retried.
    retry_in_ms: Option<u64>,
}

/// Fail an attempt with an error. The job's retry policy decides what comes next.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/fail", tag = "jobs", operation_id = "fail_job", request_body = FailBody,
    params(InJob),
    responses((status = 200, description = "What comes next.", body = AckReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn fail(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<FailBody>,
) -> Result<Json<AckReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
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
        FailureAction::Retry(wait) => (AckState::Retry, Some(wait)),
        FailureAction::Reroute => (AckState::Reroute, None),
        FailureAction::Dead => (AckState::Dead, None),
        FailureAction::Cancelled => (AckState::Cancelled, None),
    };
    let retry_in_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    Ok(Json(AckReply { outcome, retry_in_ms }))
}

/// A job to put off.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SnoozeRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "wait_ms": 60000 }))]
struct SnoozeBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// For how long.
    wait_ms: u64,
}

/// Postpone a job. The attempt does not count.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/snooze", tag = "jobs", request_body = SnoozeBody,
    operation_id = "snooze_job",
    params(InJob),
    responses((status = 200, description = "It runs later.", body = AckReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn snooze(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<SnoozeBody>,
) -> Result<Json<AckReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    let wait = Duration::from_millis(body.wait_ms).min(jobs::WAIT_MAX);
    if jobs.snooze(&lease, wait).await? == AckOutcome::Cancelled {
        return Ok(Json(AckReply { outcome: AckState::Cancelled, retry_in_ms: None }));
    }
    let retry_in_ms = u64::try_from(wait.as_millis()).ok();
    Ok(Json(AckReply { outcome: AckState::Snoozed, retry_in_ms }))
}

/// A job to hand back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleaseRequest, example = json!({ "worker_id": "mailer-1", "token": 7 }))]
struct ReleaseBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
}

/// Release a job to the head of its queue, as a worker that stops does. The attempt does not count.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/release", tag = "jobs", request_body = ReleaseBody,
    operation_id = "release_job",
    params(InJob),
    responses((status = 200, description = "It is in line.", body = AckReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn release(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<ReleaseBody>,
) -> Result<Json<AckReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    let outcome = match jobs.release_one(&lease).await? {
        AckOutcome::Cancelled => AckState::Cancelled,
        _ => AckState::Released,
    };
    Ok(Json(AckReply { outcome, retry_in_ms: None }))
}

/// A job that shall not run any more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StopRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "reason": "cancelled" }))]
struct StopBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// The reason.
    #[serde(default)]
    reason: String,
    /// Run time.
    #[serde(default)]
    took_ms: u64,
}

/// End a running job for good because it was cancelled or gave itself up; no dead letter.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/stop", tag = "jobs", request_body = StopBody,
    operation_id = "stop_job",
    params(InJob),
    responses((status = 200, description = "It has ended.", body = AckReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn stop(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<StopBody>,
) -> Result<Json<AckReply>, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    jobs.stop(&lease, &body.reason, Duration::from_millis(body.took_ms)).await?;
    Ok(Json(AckReply { outcome: AckState::Stopped, retry_in_ms: None }))
}

/// Lines for a job's log.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AddLogsRequest, example = json!({ "worker_id": "mailer-1", "token": 7, "lines": ["connected"] }))]
struct LogBody {
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token.
    token: u64,
    /// The lines, each at most 4 KiB, at most 200 in a call; the log keeps the latest few.
    lines: Vec<String>,
    /// For how long the lease is renewed; as configured if left out, a second to a day.
    lease_ms: Option<u64>,
}

/// Add lines to a job's log; renews the lease, too.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/log", tag = "jobs", request_body = LogBody,
    operation_id = "add_logs",
    params(InJob),
    responses((status = 200, description = "Noted.", body = RenewReply),
        (status = 409, description = "The lease is lost, or the attempt ran too long.", body = ErrorBody)))]
async fn log(
    State(state): State<JobsState>,
    principal: Principal,
    InJob { id }: InJob,
    Json(body): Json<LogBody>,
) -> Result<(Extension<Silent>, Json<RenewReply>), JobsApiError> {
    let jobs = queue(&state, &principal)?;
    if body.lines.len() > LINES_MAX {
        let message = format!("more than {LINES_MAX} lines in one call");
        return Err(ApiError::invalid_field("lines", message).into());
    }
    let length = lease_length(jobs, body.lease_ms)?;
    let lease = lease(jobs, &principal, &id, &body.worker_id, body.token).await?;
    let view = renewed(jobs, &lease, length).await?;
    for line in &body.lines {
        jobs.log(lease.id(), line).await?;
    }
    Ok((Extension(Silent), Json(view)))
}

/// A worker that is gone.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RemovedWorker)]
struct WorkerReply {
    /// The worker.
    worker_id: String,
}

/// Remove a worker from the list, as it does itself when it stops. Jobs it holds are not touched.
#[utoipa::path(delete, path = "/api/v1/jobs/workers/{worker_id}", tag = "jobs",
    operation_id = "remove_worker",
    params(("worker_id" = String, Path, description = "Id of the worker.")),
    responses((status = 200, description = "Gone.", body = WorkerReply)))]
async fn leave(
    State(state): State<JobsState>,
    principal: Principal,
    Path(worker_id): Path<String>,
) -> Result<impl IntoResponse, JobsApiError> {
    let jobs = queue(&state, &principal)?;
    let worker = WorkerId::parse(worker_id.as_str())?;
    may_be(jobs, &principal, &worker).await?;
    jobs.unregister(&worker).await?;
    Ok((Extension(Note::new("worker.remove", &worker_id)), Json(WorkerReply { worker_id })))
}
