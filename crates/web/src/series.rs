//! The last quarter of an hour in numbers, for the dashboard's charts: one sample every two
//! seconds, kept in this process. What must last longer is Prometheus's business.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::process;

/// Time between samples.
pub const EVERY: Duration = Duration::from_secs(2);
/// Samples kept: a quarter of an hour.
pub const KEPT: usize = 450;

/// Counts and times of answered requests since start.
#[derive(Debug)]
pub struct Meter {
    requests: AtomicU64,
    failures: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Buckets grow by a third each, from 50 µs to about half a minute.
const BUCKETS: usize = 48;
const FIRST_MICROS: f64 = 50.0;
const GROWTH: f64 = 4.0 / 3.0;

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Meter {
    pub(crate) fn answered(&self, status: StatusCode, took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if status.is_server_error() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let steps = (took.as_secs_f64() * 1e6 / FIRST_MICROS).max(1.0).ln() / GROWTH.ln();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the array"
        )]
        let index = (steps.ceil() as usize).min(BUCKETS - 1);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) -> MeterReading {
        MeterReading {
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            buckets: std::array::from_fn(|i| {
                self.buckets.get(i).map_or(0, |bucket| bucket.load(Ordering::Relaxed))
            }),
        }
    }
}

#[derive(Debug, Clone)]
struct MeterReading {
    requests: u64,
    failures: u64,
    buckets: [u64; BUCKETS],
}

impl MeterReading {
    /// The time within which this share of the requests since `before` was answered, in ms.
    fn quantile(&self, before: &MeterReading, share: f64) -> f64 {
        let fresh: Vec<u64> =
            self.buckets.iter().zip(&before.buckets).map(|(now, then)| now - then).collect();
        let total: u64 = fresh.iter().sum();
        if total == 0 {
            return 0.0;
        }
        let wanted = float(total) * share;
        let mut seen = 0;
        for (index, count) in fresh.iter().enumerate() {
            seen += count;
            if float(seen) >= wanted {
                let power = i32::try_from(index).unwrap_or(0);
                return FIRST_MICROS * GROWTH.powi(power) / 1000.0;
            }
        }
        0.0
    }
}

/// Named lines of samples, newest last.
#[derive(Debug, Default)]
pub struct Series {
    lines: Mutex<BTreeMap<String, VecDeque<f64>>>,
}

/// Most lines kept; a service that invents names without end gets no more.
const MOST_LINES: usize = 512;

impl Series {
    /// Adds a sample to a line.
    pub fn push(&self, name: &str, value: f64) {
        let mut lines = self.lines.lock();
        if !lines.contains_key(name) && lines.len() >= MOST_LINES {
            return;
        }
        let line = lines.entry(name.to_owned()).or_default();
        if line.len() >= KEPT {
            line.pop_front();
        }
        line.push_back(value);
    }

    /// The samples of a line, oldest first; empty when there is no such line.
    pub fn line(&self, name: &str) -> Vec<f64> {
        self.lines.lock().get(name).map(|line| line.iter().copied().collect()).unwrap_or_default()
    }

    /// The newest sample of a line.
    pub fn last(&self, name: &str) -> Option<f64> {
        self.lines.lock().get(name).and_then(|line| line.back().copied())
    }
}

/// Takes samples until told to stop.
pub async fn run(app: App, cancel: CancellationToken) {
    let mut beat = tokio::time::interval(EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut before = app.meter().read();
    let mut at = Instant::now();
    beat.tick().await;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = beat.tick() => {}
        }
        let now = app.meter().read();
        let seconds = at.elapsed().as_secs_f64().max(0.001);
        at = Instant::now();
        let series = app.series();
        series.push("http.requests", float(now.requests - before.requests) / seconds);
        series.push("http.failures", float(now.failures - before.failures) / seconds);
        series.push("http.p50", now.quantile(&before, 0.50));
        series.push("http.p99", now.quantile(&before, 0.99));
        series.push("process.memory", process::resident_bytes().map_or(0.0, float));
        before = now;
        for open in app.services() {
            for (name, value) in open.running.samples(&app).await {
                series.push(&name, value);
            }
        }
    }
}

/// A count as a number of a chart.
#[expect(clippy::cast_precision_loss, reason = "charts need no more than 53 bits")]
pub fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_requests_since() {
        let meter = Meter::default();
        for _ in 0..1000 {
            meter.answered(StatusCode::OK, Duration::from_secs(9));
        }
        let before = meter.read();
        for ms in 1..=100 {
            meter.answered(StatusCode::OK, Duration::from_millis(ms));
        }
        let now = meter.read();
        let (p50, p99) = (now.quantile(&before, 0.5), now.quantile(&before, 0.99));
        assert!((50.0..=70.0).contains(&p50), "{p50}");
        assert!((99.0..=135.0).contains(&p99), "{p99}");
        assert_eq!(now.quantile(&now, 0.5), 0.0);
    }

    #[test]
    fn a_line_keeps_the_newest() {
        let series = Series::default();
        for sample in 0..1000_u32 {
            series.push("a", f64::from(sample));
        }
        let line = series.line("a");
        assert_eq!((line.len(), line.first(), line.last()), (KEPT, Some(&550.0), Some(&999.0)));
    }
}
