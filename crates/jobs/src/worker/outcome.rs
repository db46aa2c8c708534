//! Outcomes of a handler: values, not side calls.

use std::{any::type_name, error::Error as StdError, fmt, time::Duration};

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

/// Error of a handler. Any error becomes one with `?`, under the name of its type and with the
/// messages of its whole chain of sources, outermost first.
///
/// ```
/// use std::time::Duration;
/// use tidegate_jobs::Fault;
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
///
/// A handler that needs no other outcome than success and failure may return `anyhow::Result`, or a
/// boxed error, and `?` turns both into a `Fault` where a handler does need one. Their type is not
/// known any more, so the failure is of the class `Error`.
///
/// ```
/// # async fn example(jobs: tidegate_jobs::Jobs) -> Result<(), tidegate_jobs::Error> {
/// use std::error::Error;
///
/// use anyhow::Context as _;
/// use tidegate_jobs::{Fault, Labels, Worker, worker::Payload};
///
/// async fn resize(Payload(file): Payload<String>) -> anyhow::Result<u64> {
///     let meta = std::fs::metadata(&file).with_context(|| format!("cannot read {file}"))?;
///     Ok(meta.len()) // kept as the job's result
/// }
///
/// fn upload(file: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
///     Err(format!("{file} is not for everybody").into())
/// }
///
/// async fn publish(Payload(file): Payload<String>) -> Result<(), Fault> {
///     if file.is_empty() {
///         return Err(Fault::dead("no file named"));
///     }
///     upload(&file)?;
///     resize(Payload(file)).await?;
///     Ok(())
/// }
///
/// let worker = Worker::new(&jobs, Labels::new("images-1")?, ())
///     .handle("resize", resize)
///     .handle("publish", publish);
/// # Ok(()) }
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

    /// A failure from an error that `?` does not take, because it borrows something or may not go to
    /// another thread: `.map_err(|error| Fault::from_error(&error))`.
    pub fn from_error<E: StdError + ?Sized>(error: &E) -> Self {
        let message = with_sources(error.to_string(), error.source());
        Self::named(class_of(type_name::<E>()), message)
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

// By way of a box, because `anyhow::Error` and boxed errors are not `std::error::Error` themselves.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Fault {
    fn from(error: E) -> Self {
        let error: Box<dyn StdError + Send + Sync> = error.into();
        let message = with_sources(error.to_string(), error.source());
        Self::named(class_of(type_name::<E>()), message)
    }
}

/// Appends the messages of an error's sources, as `anyhow` shows them with `{:#}`.
fn with_sources(mut message: String, mut source: Option<&(dyn StdError + 'static)>) -> String {
    while let Some(error) = source {
        message.push_str(": ");
        message.push_str(&error.to_string());
        source = error.source();
    }
    message
}

/// Class of an error by its type's name: without path and parameters, and `Error` for types that
/// stand for any error.
fn class_of(type_name: &str) -> &str {
    let plain = type_name.split('<').next().unwrap_or(type_name);
    match plain.rsplit("::").next().unwrap_or(plain) {
        "Box" | "&str" | "String" | "Cow" => "Error",
        _ if plain.starts_with("dyn ") => "Error",
        name => name,
    }
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
        let error = failure(parse("x"));
        assert_eq!(error.name.as_deref(), Some("ParseIntError"));
        assert_eq!(class_of("a::b::C<d::E, F>"), "C");
    }

    fn failure<T: Serialize, E: Into<Fault>>(result: Result<T, E>) -> JobError {
        match result.into_outcome() {
            JobOutcome::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send to {to}")]
    struct SendError {
        to: String,
        source: std::io::Error,
    }

    fn send() -> Result<(), SendError> {
        let source = std::io::Error::other("connection refused");
        Err(SendError { to: "ann".to_owned(), source })
    }

    #[test]
    fn the_chain_of_sources_is_kept_whatever_carries_it() {
        fn plain() -> Result<(), Fault> {
            Ok(send()?)
        }
        fn with_anyhow() -> anyhow::Result<()> {
            anyhow::Context::context(send(), "cannot greet")
        }
        fn boxed() -> Result<(), Box<dyn StdError + Send + Sync>> {
            Ok(send()?)
        }
        fn from_anyhow() -> Result<(), Fault> {
            Ok(with_anyhow()?)
        }
        fn from_boxed() -> Result<(), Fault> {
            Ok(boxed()?)
        }
        let chain = "cannot send to ann: connection refused";
        let longer = "cannot greet: cannot send to ann: connection refused";
        for (error, name, message) in [
            (failure(send()), "SendError", chain),
            (failure(plain()), "SendError", chain),
            (failure(boxed()), "Error", chain),
            (failure(from_boxed()), "Error", chain),
            (failure(with_anyhow()), "Error", longer),
            (failure(from_anyhow()), "Error", longer),
            (failure(Err::<(), _>("no more paper")), "Error", "no more paper"),
        ] {
            assert_eq!((error.name.as_deref(), error.message.as_str()), (Some(name), message));
        }
    }

    #[test]
    fn an_error_bound_to_its_thread_is_taken_by_reference() {
        #[derive(Debug, thiserror::Error)]
        #[error("not for {0}")]
        struct LocalError(std::rc::Rc<str>);
        let local = LocalError("bob".into());
        let error = failure(Err::<(), _>(Fault::from_error(&local)));
        assert_eq!(
            (error.name.as_deref(), error.message.as_str()),
            (Some("LocalError"), "not for bob")
        );
        // And a box whose error may not leave its thread either.
        let boxed: Box<dyn StdError> = Box::new(local);
        assert_eq!(
            failure(Err::<(), _>(Fault::from_error(&*boxed))).name.as_deref(),
            Some("Error")
        );
    }

    #[test]
    fn nothing_and_unit_have_no_data() {
        assert!(matches!(().into_outcome(), JobOutcome::Done(None)));
        assert!(matches!(Ok::<(), Fault>(()).into_outcome(), JobOutcome::Done(None)));
    }
}
