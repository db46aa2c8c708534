//! The bodies: a job to dispatch, a job as it stands, a job under a lease.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jobs::{
    Attempt, Backoff, CatchUp, Growth, Job, JobError, JobId, JobResult, JobView, Lease, Millis,
    Mode, NewJob, OnParentFailure, Overlap, Retry, Server, Target,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::error::ApiError;

/// How long an idempotency key counts when nothing is said: a day.
const ONCE: u64 = 24 * 60 * 60 * 1000;

/// How often a job may fail, and how long it waits in between.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryBody {
    /// Retries after the first attempt; 3 if left out.
    attempts: Option<u32>,
    /// How the wait grows: `fixed`, `linear` or `exponential`, which it is if left out.
    backoff: Option<String>,
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

/// Which workers may take a job; what is left out does not matter.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetBody {
    /// Only this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
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
pub(super) struct NewJobBody {
    /// What kind of job.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// What the handler gets: any JSON, at most 256 KiB.
    #[serde(default)]
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
    /// Its id, instead of a random one. Under an id that exists nothing changes.
    id: Option<String>,
    /// 1 to 10, higher first; 5 if left out.
    priority: Option<u8>,
    /// Runs after this long.
    delay_ms: Option<u64>,
    /// Runs at this moment, in milliseconds since 1970; beats `delay_ms`.
    run_at_ms: Option<i64>,
    /// Runs again and again, by this cron expression. Only a schedule may have it.
    pub(super) cron: Option<String>,
    /// The IANA time zone the expression is read in; UTC if left out.
    timezone: Option<String>,
    /// When occurrences overlap: `skip` or `allow`.
    #[schema(value_type = Option<String>)]
    overlap: Option<Overlap>,
    /// When occurrences were missed: `last`, `none` or `all`.
    #[schema(value_type = Option<String>)]
    catch_up: Option<CatchUp>,
    /// How often it may fail.
    retry: Option<RetryBody>,
    /// Which workers may take it.
    target: Option<TargetBody>,
    /// Ids of jobs that must have ended before.
    #[serde(default)]
    depends_on: Vec<String>,
    /// When one of those does not succeed: `fail` or `run`.
    #[schema(value_type = Option<String>)]
    on_parent_failure: Option<OnParentFailure>,
    /// Whatever shall be kept with it.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    /// How many of its type may run at once.
    max_concurrent: Option<u32>,
    /// How many of its type may start in any minute.
    max_per_minute: Option<u32>,
    /// How long one attempt may run.
    timeout_ms: Option<u64>,
    /// Not started by then, it is not started at all; in milliseconds since 1970.
    expires_at_ms: Option<i64>,
    /// Another dispatch under the same key changes nothing and gives this job.
    idempotency_key: Option<String>,
    /// How long that key counts; a day if left out.
    idempotency_ms: Option<u64>,
}

impl NewJobBody {
    /// Takes the key of the request's header for the job's own.
    pub(super) fn use_key(&mut self, key: String) -> Result<(), ApiError> {
        match &self.idempotency_key {
            Some(own) if *own != key => Err(ApiError::invalid_field(
                "idempotency_key",
                "the body and the Idempotency-Key header name different keys; leave one out",
            )),
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
pub(super) struct IdempotencyKey {
    /// A repeated request of the same key makes nothing new; another request under the same key is
    /// refused with 409. Counts per job type, for a day or `idempotency_ms`, as long as the job is
    /// there. 1 to 200 bytes.
    #[param(rename = "Idempotency-Key")]
    pub(super) key: Option<String>,
}

impl IdempotencyKey {
    /// The key of one job of many.
    pub(super) fn at(&self, index: usize) -> Option<String> {
        self.key.as_ref().map(|key| format!("{key}#{index}"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self { key: None });
        };
        match value.to_str() {
            Ok(key) if (1..=200).contains(&key.len()) => Ok(Self { key: Some(key.to_owned()) }),
            _ => Err(ApiError::invalid_field(
                "Idempotency-Key",
                "an idempotency key is 1 to 200 bytes of printable ASCII",
            )),
        }
    }
}

fn ms(n: u64) -> Duration {
    // Three hundred years and more make no difference, and sums stay within bounds.
    Duration::from_millis(n.min(1 << 43))
}

fn moment(field: &str, at: i64) -> Result<Millis, ApiError> {
    match at {
        0..=9_007_199_254_740_991 => Ok(Millis(at)),
        _ => Err(ApiError::invalid_field(field, "not a moment in milliseconds since 1970")),
    }
}

impl TryFrom<RetryBody> for Retry {
    type Error = ApiError;

    fn try_from(body: RetryBody) -> Result<Retry, ApiError> {
        let plain = Retry::default();
        let growth = match body.backoff.as_deref() {
            None | Some("exponential") => Growth::Exponential,
            Some("linear") => Growth::Linear,
            Some("fixed") => Growth::Fixed,
            Some(_) => {
                let message = "a backoff is fixed, linear or exponential";
                return Err(ApiError::invalid_field("retry.backoff", message));
            }
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
            Growth::Fixed => "fixed",
            Growth::Linear => "linear",
            Growth::Exponential => "exponential",
        };
        RetryBody {
            attempts: Some(retry.attempts),
            backoff: Some(growth.to_owned()),
            delay_ms: Some(whole(retry.backoff.delay)),
            max_delay_ms: retry.backoff.max_delay.map(whole),
            jitter: retry.backoff.jitter,
            skip_on: retry.skip_on,
            reroute_on: retry.reroute_on,
        }
    }
}

impl From<Target> for TargetBody {
    fn from(target: Target) -> TargetBody {
        TargetBody {
            server: match target.server {
                Server::Any => None,
                Server::Only(name) => Some(name),
                // Stored by somebody else as something that is no name: it fits no worker.
                Server::Nobody => Some(String::new()),
            },
            stack: target.stack,
            capabilities: target.capabilities,
            region: target.region,
            all: target.mode == Mode::All,
        }
    }
}

impl TryFrom<TargetBody> for Target {
    type Error = ApiError;

    fn try_from(body: TargetBody) -> Result<Target, ApiError> {
        let mut target = Target::default();
        if let Some(server) = body.server {
            target = target.server(&jobs::ServerId::parse(server)?);
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
    type Error = ApiError;

    fn try_from(body: NewJobBody) -> Result<NewJob, ApiError> {
        let mut new = match body.payload {
            Some(payload) => NewJob::raw(body.kind, payload)?,
            None => NewJob::new(body.kind, &Value::Null)?,
        };
        let mut schedule = jobs::Schedule {
            delay: body.delay_ms.map(ms),
            cron: body.cron,
            timezone: body.timezone,
            overlap: body.overlap.unwrap_or_default(),
            catch_up: body.catch_up.unwrap_or_default(),
            ..jobs::Schedule::default()
        };
        schedule.run_at = body.run_at_ms.map(|at| moment("run_at_ms", at)).transpose()?;
        new = new.schedule(schedule);
        if let Some(id) = body.id {
            new = new.id(JobId::parse(id)?);
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
        if let Some(at) = body.expires_at_ms {
            new = new.expires_at(moment("expires_at_ms", at)?);
        }
        if let Some(key) = body.idempotency_key {
            new = new.once(key, ms(body.idempotency_ms.unwrap_or(ONCE).max(1)));
        }
        Ok(new)
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct ErrorView {
    /// The class of error, which `skip_on` and `reroute_on` go by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// For people.
    #[serde(default)]
    pub(super) message: String,
    /// Where it came from.
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

/// What an attempt came to.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResultView {
    /// Did it succeed?
    success: bool,
    /// What it returned.
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// Why it did not succeed.
    error: Option<ErrorView>,
    /// When it ended, in milliseconds since 1970.
    completed_at_ms: i64,
    /// How long it ran.
    took_ms: u64,
}

impl From<JobResult> for ResultView {
    fn from(result: JobResult) -> ResultView {
        ResultView {
            success: result.success,
            data: result.data,
            error: result.error.map(ErrorView::from),
            completed_at_ms: result.completed_at,
            took_ms: result.processing_time,
        }
    }
}

/// A job without its surroundings.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobBody {
    /// Which job.
    id: String,
    /// What kind of job.
    #[serde(rename = "type")]
    kind: String,
    /// What the handler gets.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// 1 to 10, higher first.
    priority: u8,
    /// Failures that were retried so far.
    attempts: u32,
    /// How often it may be retried.
    retry: RetryBody,
    /// Which workers may take it.
    target: TargetBody,
    /// How many of its type may run at once.
    max_concurrent: Option<u32>,
    /// How many of its type may start in any minute.
    max_per_minute: Option<u32>,
    /// When it was dispatched, in milliseconds since 1970.
    created_at_ms: i64,
    /// How long one attempt may run.
    timeout_ms: Option<u64>,
    /// Until when it must have started, in milliseconds since 1970.
    expires_at_ms: Option<i64>,
    /// Jobs that must have ended before.
    depends_on: Vec<String>,
    /// The cron expression, if it is a schedule.
    cron: Option<String>,
    /// The time zone of the expression.
    timezone: Option<String>,
    /// What the producer keeps with it.
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

fn whole(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<Job> for JobBody {
    fn from(job: Job) -> JobBody {
        JobBody {
            id: job.id.to_string(),
            kind: job.kind.to_string(),
            payload: job.payload,
            priority: job.priority.get(),
            attempts: job.attempts,
            retry: job.retry.into(),
            target: job.target.into(),
            max_concurrent: job.rate_limit.max_concurrent,
            max_per_minute: job.rate_limit.max_per_minute,
            created_at_ms: job.created_at.0,
            timeout_ms: job.timeout.map(whole),
            expires_at_ms: job.expires_at.map(|at| at.0),
            depends_on: job.depends_on.iter().map(ToString::to_string).collect(),
            cron: job.schedule.cron,
            timezone: job.schedule.timezone,
            metadata: job.metadata,
        }
    }
}

/// How far a job is.
#[derive(Debug, Serialize, ToSchema)]
struct ProgressView {
    /// 0 to 100.
    percent: f64,
    /// What it is doing.
    message: Option<String>,
    /// What the handler tells.
    #[schema(value_type = Value)]
    data: Option<Box<RawValue>>,
    /// When it said so, in milliseconds since 1970.
    updated_at_ms: i64,
}

/// A failed attempt.
#[derive(Debug, Serialize, ToSchema)]
struct AttemptView {
    /// Which, the first being 1.
    attempt: u32,
    /// When it ended, in milliseconds since 1970.
    at_ms: i64,
    /// The worker that made it.
    worker: String,
    /// How long it ran.
    took_ms: u64,
    /// Why it failed.
    error: ErrorView,
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> AttemptView {
        AttemptView {
            attempt: attempt.attempt,
            at_ms: attempt.at,
            worker: attempt.server,
            took_ms: attempt.processing_time,
            error: attempt.error.into(),
        }
    }
}

/// Everything there is to know about a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobDetail {
    /// The job.
    job: JobBody,
    /// `waiting`, `active`, `completed`, `failed`, `delayed`, `cron` or `dead`.
    status: &'static str,
    /// What its latest attempt came to.
    result: Option<ResultView>,
    /// How far it is.
    progress: Option<ProgressView>,
    /// The worker that runs it.
    worker: Option<String>,
    /// Its failed attempts, oldest first.
    history: Vec<AttemptView>,
    /// When it comes due, in milliseconds since 1970.
    due_at_ms: Option<i64>,
    /// Jobs it still waits for, at most 100 of them.
    pending: Vec<String>,
}

impl From<JobView> for JobDetail {
    fn from(view: JobView) -> JobDetail {
        JobDetail {
            job: view.job.into(),
            status: view.status.as_str(),
            result: view.result.map(ResultView::from),
            progress: view.progress.map(|progress| ProgressView {
                percent: progress.percent,
                message: progress.message,
                data: progress.data,
                updated_at_ms: progress.updated_at,
            }),
            worker: view.server,
            history: view.history.into_iter().map(AttemptView::from).collect(),
            due_at_ms: view.due.map(|due| due.0),
            pending: view.pending.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A job that was claimed. Worker and token name the lease in later calls.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LeaseView {
    /// The job.
    job: JobBody,
    /// The worker that holds it.
    worker: String,
    /// The lease's token; greater with every claim.
    token: u64,
    /// Until when it is held unless renewed, in milliseconds since 1970.
    until_ms: i64,
    /// Which attempt this is, the first being 1.
    attempt: u32,
}

impl From<Lease> for LeaseView {
    fn from(lease: Lease) -> LeaseView {
        LeaseView {
            worker: lease.server().to_owned(),
            token: lease.token,
            until_ms: lease.until.0,
            attempt: lease.attempt(),
            job: lease.job.into(),
        }
    }
}
