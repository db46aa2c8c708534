//! `tidegate jobs tail`: what happens to jobs, as it happens. A connection that breaks is made anew
//! and goes on after the last event seen.

use std::io::BufRead;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{query, text};
use web::cli::client::Client;
use web::cli::{Exit, Outcome};
use web::cli::{Output, Tone};

/// The events to watch, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// Only what happens to this job
    #[arg(long, value_name = "ID", alias = "job")]
    job_id: Option<String>,
    /// Id of the last event seen; 0 for all that are kept
    #[arg(long, value_name = "EVENT", alias = "after")]
    cursor: Option<String>,
    /// End after this many lines; without it, Ctrl-C ends it
    #[arg(long, value_name = "NUMBER")]
    lines: Option<u64>,
}

pub(crate) fn run(client: &Client, tail: &Tail, output: &Output) -> Outcome {
    let mut cursor = tail.cursor.clone();
    let mut left = tail.lines.unwrap_or(u64::MAX);
    let (mut away, mut once) = (false, false);
    while left > 0 {
        let query = query(&[("job_id", tail.job_id.as_deref()), ("cursor", cursor.as_deref())]);
        match client.follow(&format!("/api/v1/jobs/events?{query}"), None) {
            Ok(reader) => {
                (away, once) = (false, true);
                read(reader, &mut cursor, &mut left, output)?;
            }
            // It restarts, the network hiccups: wait for it, and say so once.
            Err(failure) if failure.exit == Exit::Unreachable && once => {
                if !away {
                    output.note(&format!("{}; waiting for it", failure.message));
                }
                away = true;
            }
            Err(failure) => return Err(failure),
        }
        if left > 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    Ok(())
}

/// Prints events until there are enough or the stream ends.
fn read(
    reader: impl BufRead,
    cursor: &mut Option<String>,
    left: &mut u64,
    output: &Output,
) -> Outcome {
    let mut id = None;
    for line in reader.lines() {
        // Broken off: the caller connects again.
        let Ok(line) = line else { return Ok(()) };
        if let Some(given) = line.strip_prefix("id: ") {
            id = Some(given.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            let mut event: Value = serde_json::from_str(data).unwrap_or(Value::Null);
            let Some(id) = id.take() else {
                output.note("some events are gone already");
                continue;
            };
            print(&mut event, &id, output)?;
            *cursor = Some(id);
            *left -= 1;
            if *left == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn print(event: &mut Value, id: &str, output: &Output) -> Outcome {
    if output.json {
        event["id"] = Value::from(id);
        return output.line(&event.to_string());
    }
    let name = text(event, "event");
    let tone = match name.as_str() {
        "completed" => Tone::Good,
        "dead" | "failed" | "expired" => Tone::Bad,
        "retrying" | "rerouted" | "recovered" | "cancelled" => Tone::Warn,
        _ => Tone::Strong,
    };
    let jobs: Vec<&str> =
        event["jobs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let at = super::instant(&event["happened_at"]);
    let at = at.map(|at| format!("{at:.3}")).unwrap_or_default();
    let why = event["why"].as_str().map(|why| format!("  {why}")).unwrap_or_default();
    output.line(&format!(
        "{}  {}  {}{}",
        output.paint(Tone::Dim, &at),
        output.paint(tone, &format!("{name:10}")),
        jobs.join(" "),
        output.paint(Tone::Dim, &why)
    ))
}
