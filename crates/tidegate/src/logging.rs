//! What the process says about itself: lines on standard error, for people or as JSON.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::LogConfig;
use crate::config::value::LogFormat;
use crate::failure::{Failure, Outcome};

static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging.
pub(crate) fn start(config: &LogConfig) -> Outcome {
    let (filter, handle) = reload::Layer::new(filter(&config.level)?);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match config.format {
        LogFormat::Json => registry
            .with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr))
            .try_init(),
        LogFormat::Text => registry
            .with(fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(color()))
            .try_init(),
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    // Set once, right after the one start of a process.
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Takes a new level while running.
pub(crate) fn set_level(level: &str) -> Outcome {
    let filter = filter(level)?;
    if let Some(handle) = LEVEL.get() {
        handle
            .reload(filter)
            .map_err(|error| Failure::failed(format!("cannot change the log level: {error}")))?;
    }
    Ok(())
}

/// Colours only where a person looks and did not decline them.
fn color() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn filter(level: &str) -> Outcome<EnvFilter> {
    EnvFilter::try_new(level)
        .map_err(|error| Failure::usage(format!("log.level: {level:?} is no level: {error}")))
}
