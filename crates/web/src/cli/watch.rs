//! `--watch`: prints a list again and again.

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;

use super::{Exit, Outcome, Output};
use crate::config::value::Value as _;

/// The flag of lists that can be shown again and again.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WatchFlag {
    /// Print it again every 2 seconds, or --watch=TIME, until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

/// Reads the time between two prints.
pub fn interval(text: &str) -> Result<Duration, String> {
    Duration::parse(text, Some(("100ms", "1h")))
}

impl WatchFlag {
    /// Shows it once, or until the reader has seen enough. A server that cannot be reached for a moment is
    /// waited for, once it has answered.
    pub fn run(self, output: &Output, mut show: impl FnMut() -> Outcome) -> Outcome {
        let Some(every) = self.watch else { return show() };
        let clears = io::stdout().is_terminal() && !output.json;
        let mut is_away = false;
        let mut has_answered = false;
        while !output.is_unread() {
            if clears {
                // Home, and everything below it erased.
                output.text("\x1b[H\x1b[2J")?;
            }
            match show() {
                Ok(()) => (is_away, has_answered) = (false, true),
                Err(failure) if failure.exit == Exit::Unreachable && has_answered => {
                    if !is_away {
                        output.note(&format!("{}; waiting for it", failure.message));
                    }
                    is_away = true;
                }
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(every);
        }
        Ok(())
    }
}
