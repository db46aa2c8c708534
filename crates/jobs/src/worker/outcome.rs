//! Outcomes of a handler: values, not side calls.

use std::{any::type_name, fmt, time::Duration};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::JobError;

/// The result of an attempt.
#[derive(Clone, Debug)]
pub enum JobOutcome {
    /// It succeeded, perhaps with something to keep.
    Done(Option<Box<RawValue>>),
    /// It failed; the job's own policy says whether and when it is tried again.
    Failed(JobError),
    /// It failed and shall be tried again after this long, if it may be retried at all.
    RetryIn(Duration, JobError),
    /// It shall run later; this attempt does not count.
    Snooze(Duration),
    /// It shall not run any more, and that is no failure worth keeping.
    Cancelled(String),
    /// It failed for good: to the dead letters.
    Dead(JobError),
}

/// Error of a handler. Any error becomes one with `?`, under the name of its
/// type.
///
/// ```
/// use std::time::Duration;
/// use jobs::Fault;
///
/// async fn fetch(url: String) -> Result<String, Fault> {
///     let port: u16 = url.parse()?; // a ParseIntError, retried by the job's policy
///     match port {
///         0 => Err(Fault::dead("there is no port 0")),
///         1 => Err(Fault::retry_in(Duration::from_secs(30), "busy")),
///         2 => Err(Fault::snooze(Duration::from_secs(60))),
///         _ => Ok(format!("port {port}")),
///     }
/// }
/// ```
pub struct Fault(JobOutcome);

impl Fault {
    /// A failure of a class, which `skipOn` and `rerouteOn` go by.
    pub fn named(name: impl Into<String>, message: impl fmt::Display) -> Self {
        Self(JobOutcome::Failed(JobError::new(name, message.to_string())))
    }

    /// A failure without a class.
    pub fn new(message: impl fmt::Display) -> Self {
        Self(JobOutcome::Failed(JobError { message: message.to_string(), ..JobError::default() }))
    }

    /// Try again after this long.
    pub fn retry_in(wait: Duration, message: impl fmt::Display) -> Self {
        Self(JobOutcome::RetryIn(wait, JobError::new("Retry", message.to_string())))
    }

    /// Run later, without counting this attempt.
    pub fn snooze(wait: Duration) -> Self {
        Self(JobOutcome::Snooze(wait))
    }

    /// Do not run any more.
    pub fn cancel(reason: impl fmt::Display) -> Self {
        Self(JobOutcome::Cancelled(reason.to_string()))
    }

    /// No retry can mend this.
    pub fn dead(message: impl fmt::Display) -> Self {
        Self(JobOutcome::Dead(JobError::new("Dead", message.to_string())))
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            message.push_str(": ");
            message.push_str(&source.to_string());
            next = source.source();
        }
        Self::named(short_name(type_name::<E>()), message)
    }
}

/// A type's name without its path and its parameters.
fn short_name(full: &str) -> &str {
    let plain = full.split('<').next().unwrap_or(full);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// Return type of a handler.
pub trait IntoOutcome {
    /// Makes an outcome of it.
    fn into_outcome(self) -> JobOutcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> JobOutcome {
        JobOutcome::Done(None)
    }
}

impl IntoOutcome for JobOutcome {
    fn into_outcome(self) -> JobOutcome {
        self
    }
}

impl<T: Serialize, E: Into<Fault>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> JobOutcome {
        match self {
            Ok(value) => match serde_json::value::to_raw_value(&value) {
                Ok(data) => JobOutcome::Done(Some(data).filter(|data| data.get() != "null")),
                Err(error) => JobOutcome::Dead(JobError::new("BadResult", error.to_string())),
            },
            Err(fault) => fault.into().0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_faults_under_the_name_of_their_type() {
        fn parse(text: &str) -> Result<i32, Fault> {
            Ok(text.parse::<i32>()?)
        }
        assert!(
            matches!(parse("7").into_outcome(), JobOutcome::Done(Some(data)) if data.get() == "7")
        );
        let JobOutcome::Failed(error) = parse("x").into_outcome() else { panic!("it failed") };
        assert_eq!(error.name.as_deref(), Some("ParseIntError"));
        assert_eq!(short_name("a::b::C<d::E, F>"), "C");
    }

    #[test]
    fn nothing_and_unit_have_no_data() {
        assert!(matches!(().into_outcome(), JobOutcome::Done(None)));
        assert!(matches!(Ok::<(), Fault>(()).into_outcome(), JobOutcome::Done(None)));
    }
}
