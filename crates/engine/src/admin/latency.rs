//! LATENCY: how long commands took, and what else kept everybody waiting.
//!
//! The engine has no clock, so the embedding program measures and reports: each command with
//! [`Engine::took`](crate::Engine::took), other work with [`Engine::kept_waiting`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::command::{self, ADMIN, CommandRow, Ctx, LOADING, NOSCRIPT, STALE};
use crate::engine::Engine;
use crate::error::Error;
use crate::{Now, Reply};

/// Samples kept of one kind of event.
const SAMPLES: usize = 160;
/// Buckets of a histogram: each twice as wide as the one before.
const BUCKETS: usize = 21;
/// Equal parts of a bucket, by which percentiles are found: right to a sixteenth.
const PARTS: usize = 16;
/// The end of the first bucket in nanoseconds, one more than the last it holds.
const FIRST_END_NS: u64 = 1032;

/// Latency histogram of a command. Allocated with the first sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram(Option<Box<[[u32; PARTS]; BUCKETS]>>);

impl Histogram {
    /// It took so long once more; what took longer than a second counts as a second.
    pub(crate) fn add(&mut self, took: Duration) {
        let longest = (FIRST_END_NS << (BUCKETS - 1)) - 1;
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(longest);
        let bucket = (ns / FIRST_END_NS).checked_ilog2().map_or(0, |log| log as usize + 1);
        let from = if bucket == 0 { 0 } else { FIRST_END_NS << (bucket - 1) };
        let part = (ns - from) * PARTS as u64 / (Histogram::end_ns(bucket) - from);
        let counts = self.0.get_or_insert_default();
        let count = counts.get_mut(bucket).and_then(|parts| parts.get_mut(part as usize));
        if let Some(count) = count {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the end of a bucket: one more than the last nanosecond it holds.
    fn end_ns(bucket: usize) -> u64 {
        FIRST_END_NS << bucket
    }

    fn buckets(&self) -> impl Iterator<Item = (usize, &[u32; PARTS])> {
        self.0.iter().flat_map(|counts| counts.iter().enumerate())
    }

    /// Number of samples.
    pub(crate) fn total(&self) -> u64 {
        self.buckets().flat_map(|(_, parts)| parts).map(|count| u64::from(*count)).sum()
    }

    /// The longest time of each bucket that something fell into, in microseconds, and how many
    /// took no longer.
    fn cumulated(&self) -> Vec<(Reply, Reply)> {
        let mut sum = 0;
        let mut found = Vec::new();
        for (bucket, parts) in self.buckets() {
            let count: i64 = parts.iter().map(|count| i64::from(*count)).sum();
            if count > 0 {
                sum += count;
                let longest = (Histogram::end_ns(bucket) - 1) / 1000;
                let longest = i64::try_from(longest).unwrap_or(i64::MAX);
                found.push((Reply::Int(longest), Reply::Int(sum)));
            }
        }
        found
    }

    /// The time that `percent` of all took no longer than, in microseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let wanted = (self.total() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, parts) in self.buckets() {
            let from = if bucket == 0 { 0 } else { Histogram::end_ns(bucket - 1) };
            let width = Histogram::end_ns(bucket) - from;
            for (part, count) in (1u64..).zip(parts) {
                seen += u64::from(*count);
                if seen >= wanted {
                    let end = from + (width * part).div_ceil(PARTS as u64);
                    return (end - 1) as f64 / 1000.0;
                }
            }
        }
        0.0
    }
}

/// Events that took longer than a threshold.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    /// `latency-monitor-threshold` in milliseconds; 0 for not at all.
    pub(crate) threshold_ms: u64,
    /// `latency-tracking` is off: times of commands are not kept.
    pub(crate) untracked: bool,
    events: BTreeMap<&'static str, LatencyEvent>,
}

#[derive(Debug, Default)]
struct LatencyEvent {
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
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("latency", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("doctor", 2, FLAGS, doctor),
        CommandRow::new("graph", 3, FLAGS, graph),
        CommandRow::new("help", 2, LOADING | STALE, help),
        CommandRow::new("histogram", -2, FLAGS, histogram),
        CommandRow::new("history", 3, FLAGS, history),
        CommandRow::new("latest", 2, FLAGS, latest),
        CommandRow::new("reset", -2, FLAGS, reset),
    ])];

fn latest(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let one = |(name, event): (&&'static str, &LatencyEvent)| {
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
    for command in command::commands().iter().filter(|command| wanted(&command.full_name)) {
        let name = &command.full_name;
        let Some(took) = ctx.core.stats.of(command).map(|stats| &stats.took) else { continue };
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

/// Columns of a graph.
const COLUMNS: usize = 80;
/// Its rows, and the signs in one of them from low to high.
const ROWS: i64 = 4;
const SIGNS: &[u8] = b"_o#";

fn graph(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = ctx.arg(2);
    let found =
        std::str::from_utf8(name).ok().and_then(|n| ctx.core.latency.events.get_key_value(n));
    let Some((name, event)) = found else {
        return Err(Error::about("ERR No samples available for event '", name, "'"));
    };
    let times = || event.samples.iter().map(|(_, ms)| *ms);
    let (high, low) = (times().max().unwrap_or(0), times().min().unwrap_or(0));
    let longest = event.longest_ms;
    let mut text = format!("{name} - high {high} ms, low {low} ms (all time high {longest} ms)\n");
    text.push_str(&"-".repeat(COLUMNS));
    text.push('\n');
    let columns: Vec<Column> = event
        .samples
        .iter()
        .map(|(at, ms)| Column {
            signs: signs(*ms, low, high),
            label: age(ctx.now.ms() / 1000 - at),
        })
        .collect();
    for (n, columns) in columns.chunks(COLUMNS).enumerate() {
        if n > 0 {
            text.push('\n');
        }
        draw(columns, &mut text);
    }
    Ok(Reply::Verbatim(*b"txt", text.into_bytes()))
}

/// One sample of a graph.
#[derive(Debug)]
struct Column {
    /// From the top row to the bottom.
    signs: Vec<u8>,
    /// Age of the sample.
    label: String,
}

fn signs(ms: i64, low: i64, high: i64) -> Vec<u8> {
    let each = SIGNS.len() as i64;
    let steps = ROWS * each;
    let step = ((ms - low) * steps / (high - low).max(1)).clamp(0, steps - 1);
    let sign = |row: i64| match step - (ROWS - 1 - row) * each {
        ..0 => b' ',
        here => usize::try_from(here).ok().and_then(|n| SIGNS.get(n)).copied().unwrap_or(b'|'),
    };
    (0..ROWS).map(sign).collect()
}

/// Formats an age in few letters.
fn age(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The columns side by side, and below them, behind an empty row, their labels from top to bottom.
fn draw(columns: &[Column], text: &mut String) {
    let mut row = |sign: &dyn Fn(&Column) -> Option<u8>| {
        text.extend(columns.iter().map(|column| char::from(sign(column).unwrap_or(b' '))));
        text.push('\n');
    };
    for n in 0..ROWS as usize {
        row(&|column| column.signs.get(n).copied());
    }
    row(&|_| None);
    for n in 0..columns.iter().map(|column| column.label.len()).max().unwrap_or(0) {
        row(&|column| column.label.as_bytes().get(n).copied());
    }
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
            ("GRAPH <event>", "A picture of how long an event took."),
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

    #[test]
    fn percentiles_are_right_to_a_sixteenth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50.0), 0.0);
        for us in 1..=1000 {
            histogram.add(Duration::from_micros(us));
        }
        for (percent, exact) in [(0.0, 1.0), (50.0, 500.0), (99.0, 990.0), (100.0, 1000.0)] {
            let found = histogram.percentile(percent);
            assert!(found >= exact && found <= exact * 17.0 / 16.0, "{percent}: {found}");
        }
    }

    #[test]
    fn a_graph_shows_what_happened_when() {
        let mut latency = Latency { threshold_ms: 1, ..Latency::default() };
        for (at_s, ms) in [(100, 10), (101, 130), (102, 70), (103, 11), (160, 40)] {
            latency.note(Now::from_millis(at_s * 1000), "command", Duration::from_millis(ms));
        }
        let mut core = Box::new(crate::engine::Core { latency, ..Default::default() });
        let mut session = crate::session::ClientSession::new(crate::SessionId(1), String::new());
        let argv: [&[u8]; 3] = [b"LATENCY", b"GRAPH", b"command"];
        let now = Now::from_millis(163_000);
        let mut ctx = Ctx { core: &mut core, session: &mut session, now, argv: &argv };
        let Ok(Reply::Verbatim(_, text)) = graph(&mut ctx) else { panic!("no text") };
        let title = "command - high 130 ms, low 10 ms (all time high 130 ms)";
        let rule = "-".repeat(80);
        let rows = [" #   ", " |_  ", " || _", "_||_|", "     ", "11113", "mmmms"].join("\n");
        let expected = format!("{title}\n{rule}\n{rows}\n");
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
}
