//! Errors, by what the caller may do about them.
//!
//! Commands through redis-rs's traits return `redis::RedisError`; [`Error`] is made from it with
//! `?` or `Error::from`, and scripts return it directly.

use std::{io, sync::Arc};

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// A call to the store that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be reached, is loading, or did not answer in time. Try again later.
    #[error("the store is unavailable")]
    Unavailable {
        /// `true` when the request may have reached the store and its reply got lost, so that it
        /// may or may not have been carried out. `false` when it certainly was not sent.
        maybe_done: bool,
        /// The client's error.
        #[source]
        source: RedisError,
    },
    /// A key holds another type than the command works on.
    #[error("a key holds another type: {message}")]
    WrongType {
        /// The store's text.
        message: String,
    },
    /// The store is out of memory and refuses writes; reads go on.
    #[error("the store is out of memory")]
    Oom,
    /// The store refuses writes for another reason: a replica, a full disk, too few replicas.
    /// Reads go on.
    #[error("the store refuses writes: {message}")]
    ReadOnly {
        /// The store's text.
        message: String,
    },
    /// A script failed while it ran, or replied with an error.
    #[error("script {script} failed: {message}")]
    Script {
        /// The script's name.
        script: &'static str,
        /// The store's text.
        message: String,
    },
    /// The reply has another shape than the caller asked for.
    #[error("a reply could not be read: {message}")]
    Decode {
        /// The expected and the actual type.
        message: String,
    },
    /// The user name or password is wrong, or may not do this.
    #[error("the store denied access: {message}")]
    Denied {
        /// The store's text.
        message: String,
    },
    /// The URL, an option or an argument is not usable as given.
    #[error("{message}")]
    Invalid {
        /// The problem, and the correct form.
        message: String,
    },
    /// The built-in store's files are damaged in the middle; nothing was loaded or changed.
    #[error("{file} is damaged at byte {offset}: {message}")]
    Damaged {
        /// The file, with its folder.
        file: String,
        /// Offset at which the damage begins.
        offset: u64,
        /// The problem found there.
        message: String,
    },
    /// The built-in store's folder is used by another process.
    #[error("{folder} is in use by {}", holder(*.pid))]
    Locked {
        /// The folder.
        folder: String,
        /// The process that uses it, if it left its number.
        pid: Option<u32>,
    },
    /// The built-in store's folder is on a file system that cannot be written.
    #[error("{folder} is on a file system that is mounted read-only")]
    ReadOnlyDisk {
        /// The folder.
        folder: String,
    },
    /// The store answered with another error.
    #[error("the store refused: {0}")]
    Refused(#[source] RedisError),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl Error {
    /// May the same call succeed later without anything being changed?
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// Returns the same error as the failure of a script, if it is one.
    pub(crate) fn in_script(self, script: &'static str) -> Self {
        match self {
            Self::Refused(error) => Self::Script { script, message: text_of(&error) },
            Self::WrongType { message } => Self::Script { script, message },
            other => other,
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Io
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel => {
                Self::Unavailable { maybe_done: !was_not_sent(&error), source: error }
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ) => Self::Unavailable { maybe_done: false, source: error },
            ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                Self::ReadOnly { message: text_of(&error) }
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) | ErrorKind::AuthenticationFailed => {
                Self::Denied { message: text_of(&error) }
            }
            ErrorKind::UnexpectedReturnType | ErrorKind::Parse => {
                Self::Decode { message: error.to_string() }
            }
            ErrorKind::InvalidClientConfig => Self::Invalid { message: error.to_string() },
            _ => match error.code() {
                Some("WRONGTYPE") => Self::WrongType { message: text_of(&error) },
                Some("OOM") => Self::Oom,
                Some("MISCONF" | "NOREPLICAS") => Self::ReadOnly { message: text_of(&error) },
                Some("NOAUTH" | "WRONGPASS") => Self::Denied { message: text_of(&error) },
                Some("BUSY") => Self::Unavailable { maybe_done: false, source: error },
                _ => Self::Refused(error),
            },
        }
    }
}

impl From<redis::ParsingError> for Error {
    fn from(error: redis::ParsingError) -> Self {
        Self::Decode { message: error.to_string() }
    }
}

/// The server's own words, without the client's decoration.
fn text_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Marks an error as one of a request that never left this process.
#[derive(Debug, thiserror::Error)]
#[error("not connected: {0}")]
struct NotSent(String);

/// The error of a request that never left this process.
pub(crate) fn not_sent(why: impl Into<String>) -> RedisError {
    io::Error::new(io::ErrorKind::NotConnected, NotSent(why.into())).into()
}

/// The error of a request that got no answer in time.
pub(crate) fn timed_out(what: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, what).into()
}

fn was_not_sent(error: &RedisError) -> bool {
    if error.is_connection_refusal() {
        return true;
    }
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>())
        .and_then(|inner| inner.downcast_ref::<io::Error>())
        .and_then(io::Error::get_ref)
        .is_some_and(|inner| inner.is::<NotSent>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_not_sent_is_told_from_a_lost_reply() {
        let sent = |error: RedisError| match Error::from(error) {
            Error::Unavailable { maybe_done, .. } => maybe_done,
            other => panic!("{other:?}"),
        };
        assert!(!sent(not_sent("away")));
        assert!(sent(timed_out("no reply")));
        assert!(sent(io::Error::from(io::ErrorKind::ConnectionReset).into()));
        assert!(!sent(io::Error::from(io::ErrorKind::ConnectionRefused).into()));
    }
}
