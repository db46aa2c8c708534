//! Logs: lines on standard error, for people or as JSON.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use web::cli::{Failure, Outcome};
use web::config::LogSettings;
use web::config::value::{LogFormat, LogLevels};

static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging; once started, takes the levels.
pub(crate) fn start(config: &LogSettings) -> Outcome {
    if LEVEL.get().is_some() {
        return set_levels(&config.level);
    }
    let (filter, handle) = reload::Layer::new(filter(&config.level));
    let registry = tracing_subscriber::registry().with(filter);
    let started = match config.format {
        LogFormat::Json => {
            registry.with(fmt::layer().json().flatten_event(true).with_writer(stderr)).try_init()
        }
        LogFormat::Text => registry
            .with(fmt::layer().with_writer(stderr).with_target(false).with_ansi(color()))
            .try_init(),
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    // Set once, right after the one start of a process.
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Writes events to standard error, each on one line: a line break inside a value becomes `\\n`. So
/// an error with several lines stays one event, and no value can look like an event of its own.
#[derive(Debug)]
struct OneLine<W>(W);

fn stderr() -> OneLine<io::Stderr> {
    OneLine(io::stderr())
}

impl<W: io::Write> io::Write for OneLine<W> {
    /// The formatter hands over one whole event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (line, end) = match event.strip_suffix(b"\n") {
            Some(line) => (line, &b"\n"[..]),
            None => (event, &b""[..]),
        };
        if !line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut escaped = Vec::with_capacity(line.len() + 16);
        for byte in line {
            match byte {
                b'\n' => escaped.extend_from_slice(b"\\n"),
                b'\r' => escaped.extend_from_slice(b"\\r"),
                byte => escaped.push(*byte),
            }
        }
        escaped.extend_from_slice(end);
        self.0.write_all(&escaped)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Takes new levels while running.
pub(crate) fn set_levels(levels: &LogLevels) -> Outcome {
    let filter = filter(levels);
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

/// Filter for what is logged at these levels.
fn filter(levels: &LogLevels) -> Targets {
    let mut targets = Targets::new();
    if let Some(level) = levels.default {
        targets = targets.with_default(level);
    }
    for (name, level) in &levels.parts {
        // `room` is short for our crates whose names begin so, `hyper` is a crate of others.
        targets = targets
            .with_target(name.as_str(), *level)
            .with_target(format!("tidegate_{name}"), *level);
    }
    targets
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use web::config::value::Value;

    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let mut written = OneLine(Vec::new());
        written.write_all(b"a plain event\n").unwrap();
        written.write_all(b"an error:\n  | line 2\r\n  ^\n").unwrap();
        let expect = "a plain event\nan error:\\n  | line 2\\r\\n  ^\n";
        assert_eq!(String::from_utf8(written.0).unwrap(), expect);
    }

    #[test]
    fn levels_are_read_for_everything_and_by_part() {
        let targets = filter(&LogLevels::parse("warn, room=debug,hyper=off", None).unwrap());
        assert!(targets.would_enable("store", &tracing::Level::WARN));
        assert!(!targets.would_enable("store", &tracing::Level::INFO));
        assert!(targets.would_enable("tidegate_room::admit", &tracing::Level::DEBUG));
        assert!(targets.would_enable("tidegate_room_web::api", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("hyper::proto", &tracing::Level::ERROR));
    }
}
