//! Findings of `tidegate doctor`, and the checks that services share.

use std::net::SocketAddr;

use serde::Serialize;

use crate::cli::client::RunningServer;
use crate::config::{Config, Values};

/// The state of a thing that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingState {
    /// Nothing to do.
    Good,
    /// Works, but may not for long.
    Warning,
    /// Does not work.
    Bad,
}

/// One thing that was checked.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The thing.
    pub what: &'static str,
    /// Its state.
    pub state: FindingState,
    /// The facts.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// A thing that is as it should be.
    pub fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, state: FindingState::Good, found: found.into(), fix: None }
    }

    /// A thing that may fail later.
    pub fn warning(
        what: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding { what, state: FindingState::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    /// A thing that fails.
    pub fn bad(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { what, state: FindingState::Bad, found: found.into(), fix: Some(fix.into()) }
    }
}

/// The context of a service's checks.
#[derive(Debug)]
pub struct Diagnosis<'a> {
    /// The settings of the frame.
    pub config: &'a Config,
    /// All settings.
    pub values: &'a Values,
    /// The server that runs on the data folder, if one does.
    pub running: Option<&'a RunningServer>,
}

/// Checks that an address can be listened on, or is ours already.
pub fn check_address(
    address: SocketAddr,
    setting: &'static str,
    running: Option<&RunningServer>,
) -> Finding {
    match std::net::TcpListener::bind(address) {
        Ok(_) => Finding::good(setting, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => match running {
            Some(running) => {
                Finding::good(setting, format!("{address} is used by process {}", running.pid))
            }
            None => Finding::bad(
                setting,
                format!("{address} is in use by something else"),
                format!("--set {setting}=127.0.0.1:0 for any free port"),
            ),
        },
        Err(error) => {
            Finding::bad(setting, format!("{address}: {error}"), format!("--set {setting}=…"))
        }
    }
}
