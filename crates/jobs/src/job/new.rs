//! A job to be dispatched, and what it is made of: defaults, and what the caller says differs.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use store::Millis;

use super::{
    Backoff, CatchUp, Job, OnParentFailure, Overlap, PAYLOAD_MAX, Priority, Retry, Schedule,
    empty_object,
};
use crate::{
    Error, JobId, JobType,
    route::{JobTarget, TargetWorker},
    text::{METADATA_MAX, unreadable},
};

/// A payload type that knows its job type, so that dispatch and handler agree.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail { to: String }
///
/// impl tidegate_jobs::Task for SendMail {
///     const TYPE: &'static str = "send-mail";
/// }
///
/// let job = tidegate_jobs::NewJob::of(&SendMail { to: "ann@example.org".into() })?;
/// # Ok::<(), tidegate_jobs::Error>(())
/// ```
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The job type.
    const TYPE: &'static str;

    /// Returns the defaults of every job of this type: retries, priority, target and so on.
    fn defaults(job: NewJob) -> NewJob {
        job
    }
}

/// A job to be dispatched. Start from [`NewJob::new`] or [`NewJob::of`] and say what differs.
///
/// ```
/// use std::time::Duration;
/// use tidegate_jobs::{JobTarget, NewJob};
///
/// let job = NewJob::new("render", &serde_json::json!({"frame": 7}))?
///     .priority(8)
///     .delay(Duration::from_secs(60))
///     .target(JobTarget::default().capability("gpu").region("eu"));
/// # Ok::<(), tidegate_jobs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewJob {
    pub(crate) job: Job,
    pub(crate) id: Option<JobId>,
    pub(crate) once: Option<Once>,
    problem: Option<String>,
}

/// A key under which a job is dispatched once.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) key: String,
    pub(crate) keep: Duration,
}

impl NewJob {
    /// A job of a type with a payload.
    pub fn new(job_type: impl Into<String>, payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::value::to_raw_value(payload)
            .map_err(|error| Error::invalid(format!("the payload is not JSON: {error}")))?;
        Self::raw(job_type, payload)
    }

    /// A job of a type with a payload that is JSON text already.
    pub fn raw(job_type: impl Into<String>, payload: Box<RawValue>) -> Result<Self, Error> {
        let job_type = JobType::parse(job_type)?;
        if payload.get().len() > PAYLOAD_MAX {
            return Err(Error::invalid(format!(
                "the payload has {} bytes, more than {PAYLOAD_MAX}",
                payload.get().len()
            )));
        }
        if let Some(problem) = unreadable(payload.get()) {
            return Err(Error::invalid(format!("the payload cannot be kept: {problem}")));
        }
        let payload = if payload.get() == "null" { empty_object() } else { payload };
        let job = Job::plain(JobId::stored(""), job_type, payload);
        Ok(Self { job, id: None, once: None, problem: None })
    }

    /// A job made of a typed payload.
    pub fn of<T: Task>(payload: &T) -> Result<Self, Error> {
        Self::new(T::TYPE, payload).map(T::defaults)
    }

    /// Its id, instead of a random one. Dispatching an id that exists changes nothing and reports
    /// the job that is there.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// The jobs it waits for.
    pub fn parents(&self) -> &[JobId] {
        &self.job.depends_on
    }

    /// Sets the priority, 1 to 10.
    pub fn priority(mut self, level: u8) -> Self {
        match Priority::new(level) {
            Ok(priority) => self.job.priority = priority,
            Err(error) => self.note(error.to_string()),
        }
        self
    }

    /// Runs it after these have ended. At most [`PARENTS_MAX`].
    pub fn depends_on(mut self, parents: impl IntoIterator<Item = JobId>) -> Self {
        self.job.depends_on.extend(parents);
        self
    }

    /// Keeps something with it.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.job.metadata.insert(name.into(), value.into());
        self
    }

    /// Dispatches it once: as long as `keep` has not passed and the job is there, another dispatch
    /// of the same type under the same key changes nothing and reports this job. One that asks for
    /// something else fails with [`Error::KeyReused`].
    pub fn once(mut self, key: impl Into<String>, keep: Duration) -> Self {
        let key = key.into();
        if key.is_empty() || key.len() > 256 || key.chars().any(char::is_control) {
            self.note("an idempotency key is 1 to 256 bytes without control characters".to_owned());
        }
        self.once = Some(Once { key, keep });
        self
    }

    /// Keeps the first problem for the dispatch to report.
    fn note(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// The job under an id, if nothing is wrong with it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(problem) = &self.problem {
            return Err(Error::invalid(problem.clone()));
        }
        if self.job.depends_on.len() > PARENTS_MAX {
            return Err(Error::invalid(format!(
                "a job depends on {} others, more than {PARENTS_MAX}",
                self.job.depends_on.len()
            )));
        }
        if self.job.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::invalid("a timeout of zero would let no attempt run"));
        }
        let limit = self.job.rate_limit;
        if limit.max_concurrent == Some(0) || limit.max_per_minute == Some(0) {
            return Err(Error::invalid(
                "a limit of 0 would let no job start; pause the type instead",
            ));
        }
        let schedule = &self.job.schedule;
        if schedule.cron.is_none() {
            if schedule.timezone.is_some() {
                return Err(Error::invalid(
                    "a time zone is for a cron expression, and there is none",
                ));
            }
            if schedule.overlap != Overlap::default() || schedule.catch_up != CatchUp::default() {
                return Err(Error::invalid(
                    "overlap and catch-up are for a cron expression, and there is none",
                ));
            }
        } else if schedule.delay.is_some() || schedule.run_at.is_some() {
            return Err(Error::invalid(
                "a schedule runs by its cron expression: leave out delay and run-at",
            ));
        }
        let metadata = serde_json::to_string(&self.job.metadata).map_or(0, |text| text.len());
        if metadata > METADATA_MAX {
            return Err(Error::invalid(format!(
                "the metadata has {metadata} bytes, more than {METADATA_MAX}"
            )));
        }
        if matches!(self.job.target.worker, TargetWorker::Nobody) {
            return Err(Error::invalid("the target names no worker at all"));
        }
        Ok(())
    }
}

/// Generates one setter per option.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($value:ident: $job_type:ty) => $($place:ident).+ = $set:expr;)*) => {
        impl NewJob {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $value: $job_type) -> Self {
                    self.job.$($place).+ = $set;
                    self
                }
            )*
        }
    };
}

settings! {
    /// Runs it after a while.
    delay(delay: Duration) => schedule.delay = Some(delay);

    /// Runs it at a moment.
    run_at(at: Millis) => schedule.run_at = Some(at);

    /// Runs it again and again; see [`Jobs::schedule`](crate::Jobs::schedule).
    cron(expression: impl Into<String>) => schedule.cron = Some(expression.into());

    /// The whole schedule.
    schedule(schedule: Schedule) => schedule = schedule;

    /// The time zone of its cron expression.
    timezone(zone: impl Into<String>) => schedule.timezone = Some(zone.into());

    /// Sets the policy for overlapping occurrences.
    overlap(overlap: Overlap) => schedule.overlap = overlap;

    /// Sets the policy for missed occurrences.
    catch_up(catch_up: CatchUp) => schedule.catch_up = catch_up;

    /// Retry policy.
    retry(retry: Retry) => retry = retry;

    /// Retries after the first attempt.
    attempts(attempts: u32) => retry.attempts = attempts;

    /// Sets the delay before a retry.
    backoff(backoff: Backoff) => retry.backoff = backoff;

    /// The workers that may claim it.
    target(target: JobTarget) => target = target;

    /// Sets the policy for a parent that does not succeed.
    on_parent_failure(policy: OnParentFailure) => on_parent_failure = policy;

    /// Most jobs of its type that may run at once.
    max_concurrent(most: u32) => rate_limit.max_concurrent = Some(most);

    /// Most jobs of its type that may start in any minute.
    max_per_minute(most: u32) => rate_limit.max_per_minute = Some(most);

    /// Time limit of one attempt.
    timeout(timeout: Duration) => timeout = Some(timeout);

    /// Does not start it after this moment.
    expires_at(at: Millis) => expires_at = Some(at);
}

/// Most jobs one job may depend on: 10,000. They are read in one script.
pub const PARENTS_MAX: usize = 10_000;
