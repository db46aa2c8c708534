//! Failures of commands: a sentence, a next step, and an exit code.

use std::fmt::Display;
use std::process::ExitCode;

/// The exit codes, part of the interface (docs/cli.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It was tried and failed.
    Failed = 1,
    /// Wrong usage: flags, settings, input.
    Usage = 2,
    /// Not found.
    NotFound = 3,
    /// The credential is missing, wrong, or not enough.
    Auth = 4,
    /// The server or the store cannot be reached.
    Unreachable = 5,
    /// A limit denied what was asked.
    Denied = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The reason.
    pub message: String,
    /// The next step for the user.
    pub next: Option<String>,
    /// Status of the server's answer, if it was the server that refused.
    pub status: Option<u16>,
    /// The code in that answer, such as `LEASE_LOST`.
    pub code: Option<String>,
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with any exit code.
    pub fn new(exit: Exit, message: impl Display) -> Failure {
        Failure { exit, message: message.to_string(), next: None, status: None, code: None }
    }

    /// A command that was tried and failed.
    pub fn failed(message: impl Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    /// Wrong usage: flags, settings, input.
    pub fn usage(message: impl Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// A server or store that does not answer.
    pub fn unreachable(message: impl Display) -> Failure {
        Failure::new(Exit::Unreachable, message)
    }

    /// Adds what to do next.
    #[must_use]
    pub fn next(mut self, next: impl Display) -> Failure {
        self.next = Some(next.to_string());
        self
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::failed(format!("{error:#}"))
    }
}
