//! The live view: the queue's numbers when they change, and every event in order.
//!
//! It asks the server once in a while and goes on from the last event seen, so nothing is lost
//! between two looks, nor when the server was away for a moment.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{known, number, segment, text};
use crate::client::Client;
use crate::failure::{Exit, Outcome};
use crate::output::{Output, Tone};

/// What to watch, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Name of the queue
    queue: String,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// End after this many lines; without it, Ctrl-C ends it
    #[arg(long, value_name = "NUMBER")]
    lines: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    use crate::config::value::Value as _;
    Duration::parse(text, Some(("100ms", "1h")))
}

/// Most events asked for at once.
const BATCH: usize = 1_000;

pub(crate) fn run(client: &Client, watch: &Watch, output: &Output) -> Outcome {
    let queue = &watch.queue;
    let path = format!("/api/v1/admin/queues/{}", segment(queue));
    let mut lines = Lines { output, left: watch.lines.unwrap_or(u64::MAX) };
    // Events before the start are history: `room stats` has it in numbers.
    let mut after = latest(client, &path).map_err(known(queue))?;
    let mut shown = Value::Null;
    let mut away = false;
    while lines.left > 0 && !output.is_unread() {
        match look(client, &path, &mut after, &mut shown, &mut lines) {
            Ok(()) => away = false,
            // The server restarts, the network hiccups: wait for it, and say so once.
            Err(failure) if failure.exit == Exit::Unreachable => {
                if !away {
                    output.note(&format!("{}; waiting for it", failure.message));
                }
                away = true;
            }
            Err(failure) => return Err(known(queue)(failure)),
        }
        if lines.left > 0 {
            std::thread::sleep(watch.every);
        }
    }
    Ok(())
}

/// Id of the newest event, where watching begins.
fn latest(client: &Client, path: &str) -> Outcome<String> {
    let mut after = "0-0".to_owned();
    // The stream is capped, so a few batches reach its end.
    for _ in 0..1_000 {
        let page = client.get(&format!("{path}/events?after={after}&count={BATCH}"))?;
        let events = page["events"].as_array();
        match events.and_then(|events| events.last()) {
            Some(last) => after = text(last, "id"),
            None => break,
        }
    }
    Ok(after)
}

/// Prints what is new since the last look.
fn look(
    client: &Client,
    path: &str,
    after: &mut String,
    shown: &mut Value,
    lines: &mut Lines<'_>,
) -> Outcome {
    loop {
        let page = client.get(&format!("{path}/events?after={after}&count={BATCH}"))?;
        let events: Vec<&Value> = page["events"].as_array().into_iter().flatten().collect();
        if page["missed"].as_bool() == Some(true) && !events.is_empty() {
            lines.output.note("more happened than is kept; some events are missing here");
        }
        for event in &events {
            lines.event(event)?;
            *after = text(event, "id");
            if lines.left == 0 {
                return Ok(());
            }
        }
        if events.len() < BATCH {
            break;
        }
    }
    let queue = client.get(path)?;
    let numbers = json!({
        "status": queue["status"], "waiting": queue["waiting"],
        "admitted": queue["admitted"], "active": queue["active"],
    });
    if numbers != *shown {
        lines.numbers(&numbers)?;
        *shown = numbers;
    }
    Ok(())
}

/// Prints lines until there are enough.
struct Lines<'a> {
    output: &'a Output,
    left: u64,
}

impl Lines<'_> {
    fn numbers(&mut self, numbers: &Value) -> Outcome {
        if self.output.json {
            let mut line = json!({ "kind": "numbers" });
            merge(&mut line, numbers);
            return self.print(&line.to_string());
        }
        let status = text(numbers, "status");
        let tone = if status == "active" { Tone::Good } else { Tone::Warn };
        self.print(&format!(
            "{}  {} wait, {} on the way, {} inside",
            self.output.paint(tone, &status),
            number(numbers, "waiting"),
            number(numbers, "admitted"),
            number(numbers, "active")
        ))
    }

    fn event(&mut self, event: &Value) -> Outcome {
        if self.output.json {
            let mut line = json!({ "kind": "event" });
            merge(&mut line, event);
            return self.print(&line.to_string());
        }
        let kind = text(event, "type");
        let kind = kind.trim_start_matches("waitingroom.").trim_end_matches(".v1");
        let at = clock(event["timestamp_ms"].as_i64().unwrap_or(0));
        let data: Vec<String> = event["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| match value.as_str() {
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            })
            .collect();
        self.print(&format!("{}  {kind:20}  {}", self.output.paint(Tone::Dim, &at), data.join(" ")))
    }

    fn print(&mut self, line: &str) -> Outcome {
        self.left = self.left.saturating_sub(1);
        self.output.line(line.trim_end())
    }
}

fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

/// The time of day of a moment, UTC.
fn clock(ms: i64) -> String {
    let seconds = ms.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(clock(1_704_110_461_999), "12:01:01Z");
    }
}
