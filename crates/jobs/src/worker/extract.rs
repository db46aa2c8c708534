//! Extractors: each argument of a handler is taken from the job or its context.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use store::Millis;
use tokio_util::sync::CancellationToken;

use super::{JobOutcome, JobRequest};
use crate::{Job, JobError, JobId, JobResult, Jobs, Task};

/// Something a handler may take as an argument.
pub trait FromJob<S>: Sized + Send + 'static {
    /// Takes it, or says what the attempt comes to without it.
    fn from_job(
        call: &JobRequest,
        state: &S,
    ) -> impl Future<Output = Result<Self, JobOutcome>> + Send;
}

/// The worker's state.
#[derive(Clone, Debug)]
pub struct State<S>(pub S);

impl<S: Clone + Send + Sync + 'static> FromJob<S> for State<S> {
    async fn from_job(_: &JobRequest, state: &S) -> Result<Self, JobOutcome> {
        Ok(State(state.clone()))
    }
}

/// The payload as any type. A payload that does not fit will never fit, so the job is dead.
#[derive(Clone, Debug)]
pub struct Payload<T>(pub T);

impl<S: Sync, T: DeserializeOwned + Send + 'static> FromJob<S> for Payload<T> {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        payload(&call.lease.job).map(Payload)
    }
}

impl<S: Sync, T: Task> FromJob<S> for T {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        payload(&call.lease.job)
    }
}

fn payload<T: DeserializeOwned>(job: &Job) -> Result<T, JobOutcome> {
    job.payload_as()
        .map_err(|error| JobOutcome::Dead(JobError::new("BadPayload", error.to_string())))
}

impl<S: Sync> FromJob<S> for JobId {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(call.lease.id().clone())
    }
}

impl<S: Sync> FromJob<S> for Job {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(call.lease.job.clone())
    }
}

impl<S: Sync> FromJob<S> for Jobs {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(call.context.jobs.clone())
    }
}

/// The number of this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The first is 1.
    pub number: u32,
    /// Most attempts allowed.
    pub most: u32,
}

impl<S: Sync> FromJob<S> for Attempt {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        let most = call.lease.job.retry.attempts.saturating_add(1);
        Ok(Attempt { number: call.lease.attempt(), most })
    }
}

/// Time by which the attempt must have ended, if there is a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Option<Millis>);

impl Deadline {
    /// Returns the remaining time.
    pub fn left(self, now: Millis) -> Option<Duration> {
        self.0.map(|at| at.since(now))
    }
}

impl<S: Sync> FromJob<S> for Deadline {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(Deadline(call.context.deadline))
    }
}

/// Tells a handler to stop: the job was cancelled, its lease is lost, its time is over, or the
/// worker stops.
#[derive(Clone, Debug)]
pub struct Cancel(pub CancellationToken);

impl Cancel {
    /// Waits until it shall stop.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }

    /// Shall it stop?
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl<S: Sync> FromJob<S> for Cancel {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(Cancel(call.context.cancel.clone()))
    }
}

/// Tells how far the job is.
#[derive(Clone, Debug)]
pub struct Reporter {
    jobs: Jobs,
    id: JobId,
    cancel: CancellationToken,
}

impl Reporter {
    /// Says how far the job is, 0 to 100. What cannot be told is logged and not a failure; nothing
    /// is told once the handler shall stop, because the job may be another worker's by then.
    pub async fn set(&self, percent: f64, message: impl Into<String>) {
        if self.cancel.is_cancelled() {
            return;
        }
        let message = Some(message.into()).filter(|message| !message.is_empty());
        if let Err(error) = self.jobs.set_progress(&self.id, percent, message, None).await {
            tracing::debug!(job = %self.id, %error, "progress not reported");
        }
    }
}

impl<S: Sync> FromJob<S> for Reporter {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(Reporter {
            jobs: call.context.jobs.clone(),
            id: call.lease.id().clone(),
            cancel: call.context.cancel.clone(),
        })
    }
}

/// Writes to the job's own log.
#[derive(Clone, Debug)]
pub struct Logger {
    jobs: Jobs,
    id: JobId,
}

impl Logger {
    /// Adds a line. What cannot be written is not a failure.
    pub async fn line(&self, text: impl AsRef<str> + Send) {
        if let Err(error) = self.jobs.log(&self.id, text.as_ref()).await {
            tracing::debug!(job = %self.id, %error, "log line not written");
        }
    }
}

impl<S: Sync> FromJob<S> for Logger {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        Ok(Logger { jobs: call.context.jobs.clone(), id: call.lease.id().clone() })
    }
}

/// The results of the jobs this one depends on.
#[derive(Clone, Debug)]
pub struct ParentResults(pub Arc<HashMap<JobId, JobResult>>);

impl<S: Sync> FromJob<S> for ParentResults {
    async fn from_job(call: &JobRequest, _: &S) -> Result<Self, JobOutcome> {
        match call.context.jobs.parent_results(&call.lease.job).await {
            Ok(results) => Ok(ParentResults(Arc::new(results))),
            Err(error) => Err(JobOutcome::Failed(JobError::new("Store", error.to_string()))),
        }
    }
}
