//! Errors, grouped by what the caller can do about them.

use store::Millis;

use crate::{JobId, WorkerId};

/// A call to the queue that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong; nothing was changed.
    #[error("{message}")]
    Invalid {
        /// The problem, and the values that are accepted.
        message: String,
    },
    /// There is no such job.
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// There is no such worker.
    #[error("there is no worker {0}")]
    NoWorker(WorkerId),
    /// The job is not in a state in which this can be done.
    #[error("job {id} is {status}")]
    Conflict {
        /// Id of the job.
        id: JobId,
        /// Its current state.
        status: String,
    },
    /// The id names a schedule, which cannot be cancelled as a job can.
    #[error("{0} is a schedule; remove or pause the schedule instead")]
    IsSchedule(JobId),
    /// A job that another one shall wait for does not exist.
    #[error("there is no job {0} to depend on")]
    NoParent(JobId),
    /// Another request was made under the same idempotency key.
    #[error("the idempotency key was used for another request, which made job {0}")]
    KeyReused(JobId),
    /// The lease on the job is not held any more: it ran out and was given to somebody else, or
    /// the job was cancelled. Whatever was done for it does not count.
    #[error("the lease on job {0} is lost")]
    LeaseLost(JobId),
    /// The attempt has run longer than the job's timeout allows. Whatever was done for it does not
    /// count.
    #[error("the attempt of job {0} has run longer than its timeout allows")]
    Overdue(JobId),
    /// A wait ended before what was waited for.
    #[error("nothing by {0}")]
    TimedOut(Millis),
    /// A stored job cannot be read.
    #[error("job {id} is malformed: {reason}")]
    Malformed {
        /// Id of the job.
        id: JobId,
        /// The reason why it cannot be parsed.
        reason: String,
    },
    /// The store failed.
    #[error("the job store failed")]
    Store(#[source] store::Error),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// May the same call succeed later without anything being changed?
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => {
                error.is_unavailable()
                    || matches!(error, store::Error::ReadOnly { .. } | store::Error::Oom)
            }
            _ => false,
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<store::redis::RedisError> for Error {
    fn from(error: store::redis::RedisError) -> Self {
        Self::Store(error.into())
    }
}
