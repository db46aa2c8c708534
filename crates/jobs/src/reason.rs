//! Reasons for which a job ended without success.

use serde::{Deserialize, Serialize};

use crate::{Job, JobError, Status, claim::EXPIRED, depend::PARENT_FAILED, fail::MALFORMED};

/// Reason for which a job ended without success.
///
/// It is stored with the last attempt of a job. Of a job that ended without an attempt, or that a v1
/// worker ended, it is told by the error and the job's own policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEndReason {
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

impl JobEndReason {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AttemptsUsed,
        Self::Fatal,
        Self::Poison,
        Self::SkipOn,
        Self::Malformed,
        Self::Expired,
        Self::Dependency,
        Self::Cancelled,
    ];

    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsUsed => "attempts_used",
            Self::Fatal => "fatal",
            Self::Poison => "poison",
            Self::SkipOn => "skip_on",
            Self::Malformed => "malformed",
            Self::Expired => "expired",
            Self::Dependency => "dependency",
            Self::Cancelled => "cancelled",
        }
    }

    /// The reason of this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// A sentence for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::AttemptsUsed => "all attempts are used up",
            Self::Fatal => "its worker gave it up: no further attempt can help",
            Self::Poison => "it took its worker down too often",
            Self::SkipOn => "its retry policy does not retry this error",
            Self::Malformed => "it cannot be read as a job",
            Self::Expired => "it was not started in time",
            Self::Dependency => "a job it depends on failed",
            Self::Cancelled => "it was cancelled",
        }
    }

    /// Tells why an attempt with this error is the last one.
    pub(crate) fn of_policy(job: &Job, error: &JobError) -> Self {
        let name = error.name.as_deref();
        if name.is_some_and(|name| job.retry.skip_on.iter().any(|skipped| skipped == name)) {
            Self::SkipOn
        } else if job.attempts >= job.retry.attempts {
            Self::AttemptsUsed
        } else {
            Self::Fatal
        }
    }

    /// Tells why a job is in a state, by what is stored and otherwise by its error. `None` while it has
    /// not failed.
    pub(crate) fn of(
        status: Status,
        stored: Option<Self>,
        job: Option<&Job>,
        error: Option<&JobError>,
    ) -> Option<Self> {
        let name = error.and_then(|error| error.name.as_deref());
        match status {
            Status::Dead => stored.or_else(|| match (name, job, error) {
                (Some(MALFORMED), ..) | (_, None, _) => Some(Self::Malformed),
                (_, Some(job), Some(error)) => Some(Self::of_policy(job, error)),
                (_, Some(_), None) => None,
            }),
            Status::Failed => Some(match name {
                Some(EXPIRED) => Self::Expired,
                Some(PARENT_FAILED) => Self::Dependency,
                _ => Self::Cancelled,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobId;

    fn job(attempts: u32) -> Job {
        let text = format!(
            r#"{{"type":"x","attempts":{attempts},"retry":{{"attempts":2,"skipOn":["Declined"]}}}}"#
        );
        Job::parse(JobId::stored("j"), text.as_bytes()).unwrap()
    }

    #[test]
    fn the_policy_tells_why_an_attempt_was_the_last() {
        let of = |attempts, name| JobEndReason::of_policy(&job(attempts), &JobError::new(name, ""));
        assert_eq!(of(0, "Declined"), JobEndReason::SkipOn);
        assert_eq!(of(2, "Declined"), JobEndReason::SkipOn);
        assert_eq!(of(2, "Oops"), JobEndReason::AttemptsUsed);
        assert_eq!(of(0, "Oops"), JobEndReason::Fatal);
    }

    #[test]
    fn what_is_stored_goes_before_what_the_error_tells() {
        let error = JobError::new("Oops", "");
        let of = |status, stored| JobEndReason::of(status, stored, Some(&job(2)), Some(&error));
        assert_eq!(of(Status::Dead, Some(JobEndReason::Poison)), Some(JobEndReason::Poison));
        assert_eq!(of(Status::Dead, None), Some(JobEndReason::AttemptsUsed));
        assert_eq!(of(Status::Failed, None), Some(JobEndReason::Cancelled));
        assert_eq!(of(Status::Completed, None), None);
        let expired = JobError::new(EXPIRED, "");
        assert_eq!(
            JobEndReason::of(Status::Failed, None, Some(&job(0)), Some(&expired)),
            Some(JobEndReason::Expired)
        );
        assert_eq!(JobEndReason::of(Status::Dead, None, None, None), Some(JobEndReason::Malformed));
        assert!(JobEndReason::ALL.into_iter().all(|r| JobEndReason::parse(r.as_str()) == Some(r)));
    }
}
