//! What a run counts: waits in buckets, the order in which things happen, and what the store did.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use store::{Store, redis};

use crate::plot::{Line, plot_over_time};

pub const COLOURS: [&str; 6] = ["#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#e67700", "#495057"];

/// Waits in buckets of a twentieth of their size: a quantile is exact to 5 %.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    buckets: Vec<u64>,
    pub count: u64,
    sum_ms: f64,
    pub most_ms: u64,
}

impl Waits {
    pub fn add(&mut self, ms: u64) {
        let bucket = ((ms as f64 + 1.0).ln() / 1.05_f64.ln()) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ms += ms as f64;
        self.most_ms = self.most_ms.max(ms);
    }

    /// The wait below which this share of all is, in seconds.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (self.count as f64 * share) as u64;
        let mut below = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            below += count;
            if below > rank {
                return (1.05_f64.powf(bucket as f64 + 0.5) - 1.0) / 1000.0;
            }
        }
        self.most_ms as f64 / 1000.0
    }

    pub fn mean(&self) -> f64 {
        self.sum_ms / self.count.max(1) as f64 / 1000.0
    }

    pub fn row(&self, name: &str) {
        println!(
            "| {name} | {} | {:.1} | {:.1} | {:.1} | {:.1} |",
            self.count,
            self.mean(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.most_ms as f64 / 1000.0
        );
    }
}

/// Jain's fairness index: the square of the sum over n times the sum of squares.
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

pub fn heading(what: &str) {
    println!("\n| {what} | count | mean wait s | p50 s | p99 s | longest s |\n|---|---|---|---|---|---|");
}

/// What the store did, by its own count, sampled over virtual time.
pub struct Meter {
    store: Store,
    calls: u64,
    commands: u64,
    at: f64,
    pub calls_per_second: Vec<(f64, f64)>,
    pub commands_per_second: Vec<(f64, f64)>,
    pub memory: Vec<(f64, f64)>,
    started: Instant,
}

impl Meter {
    pub async fn new(store: &Store) -> Result<Meter> {
        let (calls, commands, _) = read(store).await?;
        Ok(Meter {
            store: store.clone(),
            calls,
            commands,
            at: 0.0,
            calls_per_second: Vec::new(),
            commands_per_second: Vec::new(),
            memory: Vec::new(),
            started: Instant::now(),
        })
    }

    /// Notes what was done since the last sample; `now` is in virtual seconds.
    pub async fn sample(&mut self, now: f64) -> Result<()> {
        let (calls, commands, bytes) = read(&self.store).await?;
        let span = now - self.at;
        // At the start there is nothing to divide by.
        if span < 1.0 {
            return Ok(());
        }
        self.calls_per_second.push((now, (calls - self.calls) as f64 / span));
        self.commands_per_second.push((now, (commands - self.commands) as f64 / span));
        self.memory.push((now, bytes as f64 / 1e6));
        (self.calls, self.commands, self.at) = (calls, commands, now);
        Ok(())
    }

    pub fn tell(&self, count: u64, what: &str) {
        let took = self.started.elapsed().as_secs_f64();
        let most = |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
        let resident = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = resident.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        println!(
            "\n{count} {what} in {:.0} virtual seconds, simulated in {took:.0} s; {} script calls, {:.1} for each; at \
             most {:.0} calls and {:.0} commands a virtual second; at most {:.0} MB in the store, {} resident",
            self.at,
            self.calls,
            self.calls as f64 / count.max(1) as f64,
            most(&self.calls_per_second),
            most(&self.commands_per_second),
            most(&self.memory),
            resident.unwrap_or("?").trim()
        );
    }

    pub fn draw(&self, folder: &Path, name: &str) -> Result<()> {
        let line = |name: &str, colour, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            colour,
            points: points.to_vec(),
        };
        let lines = [
            line("script calls", COLOURS[0], &self.calls_per_second),
            line("commands in all", COLOURS[1], &self.commands_per_second),
        ];
        let svg = plot_over_time("operations of the store per virtual second", "virtual seconds", &lines);
        write(folder, &format!("{name}-store.svg"), &svg)
    }
}

pub fn write(folder: &Path, name: &str, svg: &str) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(name);
    std::fs::write(&path, svg).with_context(|| path.display().to_string())
}

/// Calls of scripts, commands in all, and bytes.
async fn read(store: &Store) -> Result<(u64, u64, u64)> {
    let info: String = redis::cmd("INFO").arg("everything").query_async(&mut store.clone()).await?;
    let number = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.split(',').next()?.parse().ok()
    };
    let find = |name: &str| info.lines().find_map(|line| number(line, name)).unwrap_or(0);
    let calls = find("cmdstat_evalsha:calls=") + find("cmdstat_eval:calls=");
    Ok((calls, find("total_commands_processed:"), find("used_memory:")))
}
