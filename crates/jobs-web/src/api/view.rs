//! The bodies: a job to dispatch, a job as it stands, a job under a lease.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jobs::{
    Backoff, CatchUp, FailedAttempt, Growth, Job, JobEndReason, JobError, JobId, JobLease,
    JobResult, JobTarget, JobView, MatchMode, Millis, NewJob, OnParentFailure, Overlap, Retry,
    Status, TargetWorker,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use web::ApiError;
use web::time::Timestamp;

use crate::error::JobsApiError;

/// Default validity of an idempotency key: a day.
const ONCE: u64 = 24 * 60 * 60 * 1000;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobState {
    /// It waits for a worker.
    Waiting,
    /// A worker runs it.
    Active,
    /// It starts later, or waits for other jobs.
    Delayed,
    /// It succeeded.
    Completed,
    /// It was cancelled, expired, or a job it depends on failed.
    Failed,
    /// It failed every attempt and is a dead letter.
    Dead,
    /// It is a schedule.
    Scheduled,
}

impl From<Status> for JobState {
    fn from(status: Status) -> JobState {
        match status {
            Status::Waiting => JobState::Waiting,
            Status::Active => JobState::Active,
            Status::Delayed => JobState::Delayed,
            Status::Completed => JobState::Completed,
            Status::Failed => JobState::Failed,
            Status::Dead => JobState::Dead,
            Status::Cron => JobState::Scheduled,
        }
    }
}

/// Reason for which a job ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JobEndReason)]
pub(super) enum ReasonView {
    /// It failed as often as it may.
    AttemptsUsed,
    /// Its worker said that no further attempt can help.
    Fatal,
    /// It took its worker down again and again.
    Poison,
    /// Its error is one of those that its policy does not retry.
    SkipOn,
    /// It cannot be understood as a job.
    Malformed,
    /// It was not started in time.
    Expired,
    /// A job that it depends on failed.
    Dependency,
    /// Somebody cancelled it.
    Cancelled,
}

impl From<JobEndReason> for ReasonView {
    fn from(reason: JobEndReason) -> ReasonView {
        match reason {
            JobEndReason::AttemptsUsed => ReasonView::AttemptsUsed,
            JobEndReason::Fatal => ReasonView::Fatal,
            JobEndReason::Poison => ReasonView::Poison,
            JobEndReason::SkipOn => ReasonView::SkipOn,
            JobEndReason::Malformed => ReasonView::Malformed,
            JobEndReason::Expired => ReasonView::Expired,
            JobEndReason::Dependency => ReasonView::Dependency,
            JobEndReason::Cancelled => ReasonView::Cancelled,
        }
    }
}

impl From<ReasonView> for JobEndReason {
    fn from(reason: ReasonView) -> JobEndReason {
        match reason {
            ReasonView::AttemptsUsed => JobEndReason::AttemptsUsed,
            ReasonView::Fatal => JobEndReason::Fatal,
            ReasonView::Poison => JobEndReason::Poison,
            ReasonView::SkipOn => JobEndReason::SkipOn,
            ReasonView::Malformed => JobEndReason::Malformed,
            ReasonView::Expired => JobEndReason::Expired,
            ReasonView::Dependency => JobEndReason::Dependency,
            ReasonView::Cancelled => JobEndReason::Cancelled,
        }
    }
}

/// Growth of the delay between attempts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BackoffGrowth {
    /// Always the same.
    Fixed,
    /// By the first delay with each attempt.
    Linear,
    /// Doubling with each attempt.
    Exponential,
}

/// Policy for overlapping occurrences, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of jobs::Overlap")]
enum OverlapPolicy {
    Skip,
    Allow,
}

/// Policy for missed occurrences, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of jobs::CatchUp")]
enum CatchUpPolicy {
    Last,
    None,
    All,
}

/// Policy for a parent that does not succeed, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of jobs::OnParentFailure")]
enum ParentFailurePolicy {
    Fail,
    Run,
}

/// Retry policy: number of retries and the delay between them.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryPolicy)]
pub(super) struct RetryBody {
    /// Retries after the first attempt; 3 if left out.
    attempts: Option<u32>,
    /// Growth of the delay; `exponential` if left out.
    backoff: Option<BackoffGrowth>,
    /// The first wait; 2000 if left out.
    delay_ms: Option<u64>,
    /// The longest wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_delay_ms: Option<u64>,
    /// Spread the wait by a quarter either way.
    #[serde(default)]
    jitter: bool,
    /// Errors of these names are not retried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skip_on: Vec<String>,
    /// Errors of these names send the job to another worker at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reroute_on: Vec<String>,
}

/// The workers that may claim a job; a field that is left out matches every worker.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobTarget)]
pub(super) struct TargetBody {
    /// Only this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// Workers of one of these stacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
    /// Workers with one of these capabilities, or with all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    capabilities: Vec<String>,
    /// Workers in one of these regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    region: Vec<String>,
    /// All capabilities are needed.
    #[serde(default)]
    all: bool,
}

/// A job to dispatch.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob, example = json!({
    "type": "mail",
    "payload": { "to": "ann@example.org" },
    "retry": { "attempts": 5, "backoff": "exponential", "delay_ms": 1000 },
    "timeout_ms": 30000
}))]
pub(super) struct NewJobBody {
    /// The job type.
    #[serde(rename = "type")]
    pub(super) job_type: String,
    /// Input of the handler: any JSON, at most 256 KiB.
    #[serde(default)]
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
    /// Its id, instead of a random one. Under an id that exists nothing changes.
    id: Option<String>,
    /// 1 to 10, higher first; 5 if left out.
    priority: Option<u8>,
    /// Runs after this long.
    delay_ms: Option<u64>,
    /// Time at which it runs; beats `delay_ms`.
    run_at: Option<Timestamp>,
    /// Runs again and again, by this cron expression. Only a schedule may have it.
    pub(super) cron: Option<String>,
    /// The IANA time zone the expression is read in; UTC if left out.
    timezone: Option<String>,
    /// Overlapping occurrences: `skip` or `allow`.
    #[schema(value_type = Option<OverlapPolicy>)]
    overlap: Option<Overlap>,
    /// Missed occurrences to make up for: `last`, `none` or `all`.
    #[schema(value_type = Option<CatchUpPolicy>)]
    catch_up: Option<CatchUp>,
    /// Retry policy.
    retry: Option<RetryBody>,
    /// The workers that may claim it.
    target: Option<TargetBody>,
    /// Ids of jobs that must have ended before.
    #[serde(default)]
    depends_on: Vec<String>,
    /// If one of those does not succeed: `fail` or `run`.
    #[schema(value_type = Option<ParentFailurePolicy>)]
    on_parent_failure: Option<OnParentFailure>,
    /// Whatever shall be kept with it.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    /// Most jobs of its type that may run at once.
    max_concurrent: Option<u32>,
    /// Most jobs of its type that may start in any minute.
    max_per_minute: Option<u32>,
    /// Time limit of one attempt.
    timeout_ms: Option<u64>,
    /// Time by which it must have started; after that it fails without running.
    expires_at: Option<Timestamp>,
    /// Another dispatch under the same key changes nothing and gives this job.
    idempotency_key: Option<String>,
    /// Validity of that key; a day if left out.
    idempotency_ms: Option<u64>,
}

impl NewJobBody {
    /// Takes the key of the request's header for the job's own.
    pub(super) fn use_key(&mut self, key: String) -> Result<(), JobsApiError> {
        match &self.idempotency_key {
            Some(own) if *own != key => Err(ApiError::invalid_field(
                "idempotency_key",
                "the body and the Idempotency-Key header name different keys; leave one out",
            )
            .into()),
            _ => {
                self.idempotency_key = Some(key);
                Ok(())
            }
        }
    }
}

/// The `Idempotency-Key` header of a request that makes jobs.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct JobIdempotencyKey {
    /// A repeated request of the same key makes nothing new; another request under the same key is
    /// refused with 409. Counts per job type, for a day or `idempotency_ms`, as long as the job is
    /// there. 1 to 200 bytes.
    #[param(rename = "Idempotency-Key")]
    pub(super) key: Option<String>,
}

impl JobIdempotencyKey {
    /// The key of one job of many.
    pub(super) fn at(&self, index: usize) -> Option<String> {
        self.key.as_ref().map(|key| format!("{key}#{index}"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for JobIdempotencyKey {
    type Rejection = JobsApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, JobsApiError> {
        let key = web::idempotency::key_of(&parts.headers)?;
        Ok(Self { key: key.map(str::to_owned) })
    }
}

fn ms(n: u64) -> Duration {
    // Three hundred years and more make no difference, and sums stay within bounds.
    Duration::from_millis(n.min(1 << 43))
}

fn moment(field: &str, at: Timestamp) -> Result<Millis, JobsApiError> {
    match at.0 {
        Millis(0..) => Ok(at.0),
        _ => Err(ApiError::invalid_field(field, "a time before 1970 is not valid").into()),
    }
}

impl TryFrom<RetryBody> for Retry {
    type Error = JobsApiError;

    fn try_from(body: RetryBody) -> Result<Retry, JobsApiError> {
        let plain = Retry::default();
        let growth = match body.backoff {
            None | Some(BackoffGrowth::Exponential) => Growth::Exponential,
            Some(BackoffGrowth::Linear) => Growth::Linear,
            Some(BackoffGrowth::Fixed) => Growth::Fixed,
        };
        Ok(Retry {
            attempts: body.attempts.unwrap_or(plain.attempts),
            backoff: Backoff {
                growth,
                delay: body.delay_ms.map_or(plain.backoff.delay, ms),
                max_delay: body.max_delay_ms.map(ms),
                jitter: body.jitter,
            },
            skip_on: body.skip_on,
            reroute_on: body.reroute_on,
        })
    }
}

impl From<Retry> for RetryBody {
    fn from(retry: Retry) -> RetryBody {
        let growth = match retry.backoff.growth {
            Growth::Fixed => BackoffGrowth::Fixed,
            Growth::Linear => BackoffGrowth::Linear,
            Growth::Exponential => BackoffGrowth::Exponential,
        };
        RetryBody {
            attempts: Some(retry.attempts),
            backoff: Some(growth),
            delay_ms: Some(whole(retry.backoff.delay)),
            max_delay_ms: retry.backoff.max_delay.map(whole),
            jitter: retry.backoff.jitter,
            skip_on: retry.skip_on,
            reroute_on: retry.reroute_on,
        }
    }
}

impl From<JobTarget> for TargetBody {
    fn from(target: JobTarget) -> TargetBody {
        TargetBody {
            worker_id: match target.worker {
                TargetWorker::Any => None,
                TargetWorker::Only(name) => Some(name),
                // Stored by somebody else as something that is no name: it fits no worker.
                TargetWorker::Nobody => Some(String::new()),
            },
            stack: target.stack,
            capabilities: target.capabilities,
            region: target.region,
            all: target.mode == MatchMode::All,
        }
    }
}

impl TryFrom<TargetBody> for JobTarget {
    type Error = JobsApiError;

    fn try_from(body: TargetBody) -> Result<JobTarget, JobsApiError> {
        let mut target = JobTarget::default();
        if let Some(worker_id) = body.worker_id {
            target = target.worker(&jobs::WorkerId::parse(worker_id)?);
        }
        if body.all {
            target = target.all();
        }
        target.stack = body.stack;
        target.capabilities = body.capabilities;
        target.region = body.region;
        Ok(target)
    }
}

impl TryFrom<NewJobBody> for NewJob {
    type Error = JobsApiError;

    fn try_from(body: NewJobBody) -> Result<NewJob, JobsApiError> {
        let mut new = match body.payload {
            Some(payload) => NewJob::raw(body.job_type, payload)?,
            None => NewJob::new(body.job_type, &Value::Null)?,
        };
        let mut schedule = jobs::Schedule {
            delay: body.delay_ms.map(ms),
            cron: body.cron,
            timezone: body.timezone,
            overlap: body.overlap.unwrap_or_default(),
            catch_up: body.catch_up.unwrap_or_default(),
            ..jobs::Schedule::default()
        };
        schedule.run_at = body.run_at.map(|at| moment("run_at", at)).transpose()?;
        new = new.schedule(schedule);
        if let Some(id) = body.id {
            new = new.id(super::new_id(id)?);
        }
        if let Some(level) = body.priority {
            new = new.priority(level);
        }
        if let Some(retry) = body.retry {
            new = new.retry(retry.try_into()?);
        }
        if let Some(target) = body.target {
            new = new.target(target.try_into()?);
        }
        let parents: Result<Vec<JobId>, jobs::Error> =
            body.depends_on.into_iter().map(JobId::parse).collect();
        new =
            new.depends_on(parents?).on_parent_failure(body.on_parent_failure.unwrap_or_default());
        for (name, value) in body.metadata {
            new = new.metadata(name, value);
        }
        if let Some(most) = body.max_concurrent {
            new = new.max_concurrent(most);
        }
        if let Some(most) = body.max_per_minute {
            new = new.max_per_minute(most);
        }
        if let Some(timeout) = body.timeout_ms {
            new = new.timeout(ms(timeout));
        }
        if let Some(at) = body.expires_at {
            new = new.expires_at(moment("expires_at", at)?);
        }
        if let Some(key) = body.idempotency_key {
            new = new.once(key, ms(body.idempotency_ms.unwrap_or(ONCE).max(1)));
        }
        Ok(new)
    }
}

/// The error of a failed attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobError)]
pub(super) struct ErrorView {
    /// The class of error, which `skip_on` and `reroute_on` go by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// For people.
    #[serde(default)]
    pub(super) message: String,
    /// Stack trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stack: Option<String>,
}

impl From<JobError> for ErrorView {
    fn from(error: JobError) -> ErrorView {
        ErrorView { name: error.name, message: error.message, stack: error.stack }
    }
}

impl From<ErrorView> for JobError {
    fn from(error: ErrorView) -> JobError {
        JobError { name: error.name, message: error.message, stack: error.stack }
    }
}

/// The result of an attempt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobResult)]
pub(super) struct ResultView {
    /// Did it succeed?
    success: bool,
    /// The return value.
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// The error, if it failed.
    error: Option<ErrorView>,
    /// Time at which it ended.
    completed_at: Timestamp,
    /// Run time.
    took_ms: u64,
}

impl From<JobResult> for ResultView {
    fn from(result: JobResult) -> ResultView {
        ResultView {
            success: result.success,
            data: result.data,
            error: result.error.map(ErrorView::from),
            completed_at: stamp(result.completed_at),
            took_ms: result.processing_time,
        }
    }
}

/// A job without its surroundings.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Job)]
pub(super) struct JobBody {
    /// Id of the job.
    id: String,
    /// The job type.
    #[serde(rename = "type")]
    job_type: String,
    /// Input of the handler.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// 1 to 10, higher first.
    priority: u8,
    /// Failures that were retried so far.
    attempts: u32,
    /// Retry policy.
    retry: RetryBody,
    /// The workers that may claim it.
    target: TargetBody,
    /// Most jobs of its type that may run at once.
    max_concurrent: Option<u32>,
    /// Most jobs of its type that may start in any minute.
    max_per_minute: Option<u32>,
    /// Time of the dispatch.
    created_at: Timestamp,
    /// Time limit of one attempt.
    timeout_ms: Option<u64>,
    /// Time by which it must have started.
    expires_at: Option<Timestamp>,
    /// Jobs that must have ended before.
    depends_on: Vec<String>,
    /// The cron expression, if it is a schedule.
    cron: Option<String>,
    /// The time zone of the expression.
    timezone: Option<String>,
    /// Metadata set by the producer.
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

fn stamp(at: i64) -> Timestamp {
    Timestamp(Millis(at))
}

fn whole(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<Job> for JobBody {
    fn from(job: Job) -> JobBody {
        JobBody {
            id: job.id.to_string(),
            job_type: job.job_type.to_string(),
            payload: job.payload,
            priority: job.priority.get(),
            attempts: job.attempts,
            retry: job.retry.into(),
            target: job.target.into(),
            max_concurrent: job.rate_limit.max_concurrent,
            max_per_minute: job.rate_limit.max_per_minute,
            created_at: job.created_at.into(),
            timeout_ms: job.timeout.map(whole),
            expires_at: job.expires_at.map(Timestamp::from),
            depends_on: job.depends_on.iter().map(ToString::to_string).collect(),
            cron: job.schedule.cron,
            timezone: job.schedule.timezone,
            metadata: job.metadata,
        }
    }
}

/// The progress of a job.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobProgress)]
struct ProgressView {
    /// 0 to 100.
    percent: f64,
    /// The current step.
    message: Option<String>,
    /// Data reported by the handler.
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// Time of the report.
    updated_at: Timestamp,
}

/// A failed attempt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FailedAttempt)]
struct AttemptView {
    /// Number of the attempt, starting at 1.
    attempt: u32,
    /// Time at which it ended.
    ended_at: Timestamp,
    /// The worker that made it.
    worker_id: String,
    /// Time at which it was claimed, if that is known.
    claimed_at: Option<Timestamp>,
    /// Run time.
    took_ms: u64,
    /// The error.
    error: ErrorView,
    /// Reason for which the job ended with this attempt, if it did.
    end_reason: Option<ReasonView>,
}

impl From<FailedAttempt> for AttemptView {
    fn from(attempt: FailedAttempt) -> AttemptView {
        AttemptView {
            attempt: attempt.attempt,
            ended_at: stamp(attempt.at),
            worker_id: attempt.worker_id,
            claimed_at: attempt.claimed_at.map(stamp),
            took_ms: attempt.processing_time,
            error: attempt.error.into(),
            end_reason: attempt.reason.map(ReasonView::from),
        }
    }
}

/// Everything there is to know about a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobDetail {
    /// The job.
    job: JobBody,
    /// Its state.
    status: JobState,
    /// The result of its latest attempt.
    result: Option<ResultView>,
    /// Its progress.
    progress: Option<ProgressView>,
    /// The worker that runs it, or made its latest attempt.
    worker_id: Option<String>,
    /// Time at which that worker claimed it.
    claimed_at: Option<Timestamp>,
    /// Reason for which it ended without success.
    end_reason: Option<ReasonView>,
    /// Its failed attempts, oldest first.
    history: Vec<AttemptView>,
    /// Time at which it comes due.
    due_at: Option<Timestamp>,
    /// Jobs it still waits for, at most 100 of them.
    pending: Vec<String>,
}

impl From<JobView> for JobDetail {
    fn from(view: JobView) -> JobDetail {
        JobDetail {
            job: view.job.into(),
            status: view.status.into(),
            result: view.result.map(ResultView::from),
            progress: view.progress.map(|progress| ProgressView {
                percent: progress.percent,
                message: progress.message,
                data: progress.data,
                updated_at: stamp(progress.updated_at),
            }),
            worker_id: view.worker_id,
            claimed_at: view.claimed_at.map(Timestamp::from),
            end_reason: view.reason.map(ReasonView::from),
            history: view.history.into_iter().map(AttemptView::from).collect(),
            due_at: view.due.map(Timestamp::from),
            pending: view.pending.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A job that was claimed. `worker_id` and `token` name the lease in later calls.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lease)]
pub(super) struct LeaseView {
    /// The job.
    job: JobBody,
    /// The worker that holds it.
    worker_id: String,
    /// The lease's token; greater with every claim.
    token: u64,
    /// Time at which the lease expires unless renewed.
    expires_at: Timestamp,
    /// Number of the attempt, starting at 1.
    attempt: u32,
    /// The trace that the attempt is part of, as a `traceparent` (W3C Trace Context): for what the
    /// worker records, for what it calls, and for its calls about this job. Missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
}

impl From<JobLease> for LeaseView {
    fn from(lease: JobLease) -> LeaseView {
        LeaseView {
            worker_id: lease.worker_id().to_owned(),
            token: lease.token,
            expires_at: lease.until.into(),
            attempt: lease.attempt(),
            traceparent: lease.trace().map(|trace| trace.to_string()),
            job: lease.job.into(),
        }
    }
}
