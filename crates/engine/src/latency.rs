//! LATENCY: how long commands took, and what else kept everybody waiting.
//!
//! The engine has no clock, so whoever embeds it measures and reports: each command with
//! [`Engine::took`](crate::Engine::took), other work with [`Engine::kept_waiting`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::command::{self, ADMIN, Command, Ctx, LOADING, NOSCRIPT, STALE};
use crate::engine::{CommandStats, Engine};
use crate::error::Error;
use crate::{Now, Reply};

/// Samples kept of one kind of event.
const SAMPLES: usize = 160;
/// Buckets of a histogram: each twice as wide as the one before.
const BUCKETS: usize = 21;
/// The end of the first bucket in nanoseconds, one more than the last it holds.
const FIRST_END_NS: u64 = 1032;

/// How often a command took how long.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Histogram([u32; BUCKETS]);

impl Histogram {
    /// It took so long once more; what took longer than a second counts as a second.
    pub(crate) fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns / FIRST_END_NS).checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(count) = self.0.get_mut(bucket.min(BUCKETS - 1)) {
            *count = count.saturating_add(1);
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// The longest time of each bucket that something fell into, in microseconds, and how many
    /// took no longer.
    fn cumulated(&self) -> Vec<(Reply, Reply)> {
        let mut sum = 0;
        let mut found = Vec::new();
        for (n, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            sum += i64::from(*count);
            let longest = ((FIRST_END_NS << n) - 1) / 1000;
            let longest = i64::try_from(longest).unwrap_or(i64::MAX);
            found.push((Reply::Int(longest), Reply::Int(sum)));
        }
        found
    }
}

/// Events that took longer than a threshold.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    /// `latency-monitor-threshold` in milliseconds; 0 for not at all.
    pub(crate) threshold_ms: u64,
    events: BTreeMap<&'static str, Event>,
}

#[derive(Debug, Default)]
struct Event {
    /// Second since the epoch, milliseconds; the oldest first.
    samples: VecDeque<(i64, i64)>,
    longest_ms: i64,
}

impl Latency {
    /// Something took so long, which is noted if it is too long.
    pub(crate) fn note(&mut self, now: Now, event: &'static str, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if self.threshold_ms == 0 || ms < self.threshold_ms {
            return;
        }
        let (second, ms) = (now.ms() / 1000, i64::try_from(ms).unwrap_or(i64::MAX));
        let event = self.events.entry(event).or_default();
        event.longest_ms = event.longest_ms.max(ms);
        match event.samples.back_mut() {
            // One sample a second: the longest.
            Some((at, longest)) if *at == second => *longest = ms.max(*longest),
            _ => {
                event.samples.push_back((second, ms));
                if event.samples.len() > SAMPLES {
                    event.samples.pop_front();
                }
            }
        }
    }
}

impl Engine {
    /// Work that is no command kept everybody waiting for so long.
    pub fn kept_waiting(&mut self, now: Now, event: &'static str, took: Duration) {
        self.core.latency.note(now, event, took);
    }
}

const FLAGS: u32 = ADMIN | NOSCRIPT | LOADING | STALE;

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[Command::new("latency", -2, 0, command::container)
    .subcommands(&[
        Command::new("doctor", 2, FLAGS, doctor),
        Command::new("help", 2, LOADING | STALE, help),
        Command::new("histogram", -2, FLAGS, histogram),
        Command::new("history", 3, FLAGS, history),
        Command::new("latest", 2, FLAGS, latest),
        Command::new("reset", -2, FLAGS, reset),
    ])];

fn latest(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let one = |(name, event): (&&'static str, &Event)| {
        let (at, ms) = event.samples.back().copied().unwrap_or_default();
        let numbers = [at, ms, event.longest_ms].map(Reply::Int);
        Reply::Array([Reply::bulk(name)].into_iter().chain(numbers).collect())
    };
    Ok(Reply::Array(ctx.core.latency.events.iter().map(one).collect()))
}

fn history(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let event = std::str::from_utf8(ctx.arg(2)).ok().and_then(|n| ctx.core.latency.events.get(n));
    let samples = event.into_iter().flat_map(|event| &event.samples);
    let pair = |(at, ms): &(i64, i64)| Reply::Array(vec![Reply::Int(*at), Reply::Int(*ms)]);
    Ok(Reply::Array(samples.map(pair).collect()))
}

fn reset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let events = &mut ctx.core.latency.events;
    let before = events.len();
    match ctx.argv.get(2..).unwrap_or_default() {
        [] => events.clear(),
        names => events.retain(|event, _| !names.contains(&event.as_bytes())),
    }
    Ok((before - events.len()).into())
}

fn histogram(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let names = ctx.argv.get(2..).unwrap_or_default();
    let wanted = |name: &str| {
        let container = name.split('|').next().unwrap_or_default();
        let same = |word: &&[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        names.is_empty() || names.iter().any(|word| same(word, name) || same(word, container))
    };
    let mut found = Vec::new();
    for (name, command) in command::all_with_names().filter(|(name, _)| wanted(name)) {
        let Some(CommandStats { took, .. }) = ctx.core.stats.of(command) else { continue };
        if took.total() > 0 {
            let calls = Reply::Int(i64::try_from(took.total()).unwrap_or(i64::MAX));
            let parts = vec![
                (Reply::bulk("calls"), calls),
                (Reply::bulk("histogram_usec"), Reply::Map(took.cumulated())),
            ];
            found.push((Reply::bulk(name), Reply::Map(parts)));
        }
    }
    Ok(Reply::Map(found))
}

fn doctor(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let latency = &ctx.core.latency;
    let mut text = match (latency.threshold_ms, latency.events.len()) {
        (0, _) => {
            "Nothing is watched: set latency-monitor-threshold to some milliseconds.\n".into()
        }
        (ms, 0) => format!("Nothing took longer than {ms} ms since the last reset.\n"),
        (ms, _) => format!("What took longer than {ms} ms since the last reset:\n"),
    };
    for (name, event) in &latency.events {
        let (count, longest) = (event.samples.len(), event.longest_ms);
        let sum: i64 = event.samples.iter().map(|(_, ms)| ms).sum();
        let mean = sum / i64::try_from(count.max(1)).unwrap_or(1);
        text.push_str(&format!(
            "{name}: in {count} seconds, {mean} ms on average, {longest} ms at most.\n"
        ));
    }
    Ok(Reply::Verbatim(*b"txt", text.into_bytes()))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "LATENCY",
        &[
            ("DOCTOR", "Say in words what took long."),
            ("HISTOGRAM [COMMAND ...]", "How often commands took how many microseconds."),
            ("HISTORY <event>", "When an event took long: second and milliseconds."),
            ("LATEST", "Each event's last time, its milliseconds, and the most ever."),
            ("RESET [<event> ...]", "Forget them."),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets_that_double() {
        let mut histogram = Histogram::default();
        for ns in [0, 1031, 1032, 2063, 2064, 33_023, 33_024, 3_000_000_000] {
            histogram.add(Duration::from_nanos(ns));
        }
        let shown = histogram.cumulated();
        let pairs = [(1, 2), (2, 4), (4, 5), (33, 6), (66, 7), (1_082_130, 8)];
        let expected: Vec<_> =
            pairs.iter().map(|(us, n)| (Reply::Int(*us), Reply::Int(*n))).collect();
        assert_eq!(shown, expected);
        assert_eq!(histogram.total(), 8);
    }
}
