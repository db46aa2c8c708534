//! How a command fails: with a sentence, what to do next, and an exit code.

use std::fmt::Display;
use std::process::ExitCode;

/// The exit codes, part of the interface (docs/cli.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It was tried and failed.
    Failed = 1,
    /// It was asked for in a wrong way: flags, settings, input.
    Usage = 2,
    /// There is no such thing.
    NotFound = 3,
    /// The credential is missing, wrong, or not enough.
    Auth = 4,
    /// The server or the store cannot be reached.
    Unreachable = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// What to do next.
    pub(crate) next: Option<String>,
    /// Status of the server's answer, if it was the server that refused.
    pub(crate) status: Option<u16>,
    /// The code in that answer, such as `LEASE_LOST`.
    pub(crate) code: Option<String>,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Failure {
        Failure { exit, message: message.to_string(), next: None, status: None, code: None }
    }

    pub(crate) fn failed(message: impl Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    pub(crate) fn usage(message: impl Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub(crate) fn unreachable(message: impl Display) -> Failure {
        Failure::new(Exit::Unreachable, message)
    }

    #[must_use]
    pub(crate) fn next(mut self, next: impl Display) -> Failure {
        self.next = Some(next.to_string());
        self
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::failed(format!("{error:#}"))
    }
}
