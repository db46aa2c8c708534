//! `tidegate room watch`: the queue's counts when they change, and every event in order.
//!
//! It polls the server and continues after the last event, so nothing is lost between two polls, nor
//! while the server is unreachable for a moment.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use web::cli::{Client, Exit, Outcome, Output, Tone, number, segment, text};

use super::with_hint;

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Name of the queue
    queue: String,
    /// Interval of polls
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Stop after this many lines; otherwise on Ctrl-C
    #[arg(long, value_name = "NUMBER")]
    lines: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    use web::config::value::Value as _;
    Duration::parse(text, Some(("100ms", "1h")))
}

/// Most events asked for at once.
const BATCH: usize = 1_000;

pub(crate) fn run(client: &Client, watch: &WatchArgs, output: &Output) -> Outcome {
    let queue = &watch.queue;
    let path = format!("/api/v1/admin/queues/{}", segment(queue));
    let mut lines = Lines { output, left: watch.lines.unwrap_or(u64::MAX) };
    // Events before the start are history: `room stats` has it in numbers.
    let mut after = latest(client, &path).map_err(with_hint(queue))?;
    let mut shown = Value::Null;
    let mut away = false;
    while lines.left > 0 && !output.is_unread() {
        match poll(client, &path, &mut after, &mut shown, &mut lines) {
            Ok(()) => away = false,
            // The server restarts or the network fails for a moment: wait for it, and say so once.
            Err(failure) if failure.exit == Exit::Unreachable => {
                if !away {
                    output.note(&format!("{}; waiting for it", failure.message));
                }
                away = true;
            }
            Err(failure) => return Err(with_hint(queue)(failure)),
        }
        if lines.left > 0 {
            std::thread::sleep(watch.every);
        }
    }
    Ok(())
}

/// Returns the id of the newest event, where watching starts.
fn latest(client: &Client, path: &str) -> Outcome<String> {
    let mut after = "0-0".to_owned();
    // The stream is capped, so a few batches reach its end.
    for _ in 0..1_000 {
        let page = client.get(&format!("{path}/events?cursor={after}&limit={BATCH}"))?;
        let events = page["items"].as_array();
        match events.and_then(|events| events.last()) {
            Some(last) => after = text(last, "id"),
            None => break,
        }
    }
    Ok(after)
}

/// Prints what is new since the last poll.
fn poll(
    client: &Client,
    path: &str,
    after: &mut String,
    shown: &mut Value,
    lines: &mut Lines<'_>,
) -> Outcome {
    loop {
        let page = client.get(&format!("{path}/events?cursor={after}&limit={BATCH}"))?;
        let events: Vec<&Value> = page["items"].as_array().into_iter().flatten().collect();
        if page["missed"].as_bool() == Some(true) && !events.is_empty() {
            lines.output.note("some events were already trimmed and are missing here");
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

/// Prints a limited number of lines.
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
            "{}  {} waiting, {} admitted, {} active",
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
        let at = clock(&text(event, "created_at"));
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

/// Returns the time of day of an RFC 3339 time in UTC.
fn clock(time: &str) -> String {
    let time = time.split_once('T').map_or(time, |(_, time)| time);
    format!("{}Z", time.split(['.', 'Z']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(clock("2024-01-01T12:01:01.999Z"), "12:01:01Z");
    }
}
