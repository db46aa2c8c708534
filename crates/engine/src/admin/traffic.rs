//! Traffic: what goes over sockets, and rates as Redis computes them for INFO.
//!
//! The engine has no sockets and no clock, so a listener counts into the shared [`Traffic`], and the
//! embedding program calls [`Engine::sample_rates`] every 100 ms. A rate is the mean of the last 16
//! samples (`trackInstantaneousMetric` in Redis's `server.c`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Now;
use crate::engine::Engine;

/// Samples whose mean is a rate.
const SAMPLES: usize = 16;
/// Least time that a sample covers: a little less than the 100 ms between calls, so that one that
/// comes early by a tick counts.
const SAMPLE_MIN_US: i64 = 90_000;

/// Counters of a listener's sockets, shared with the engine, which shows them in INFO.
#[derive(Debug, Default)]
pub struct Traffic {
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    rejected: AtomicU64,
}

impl Traffic {
    /// Counts a read of so many bytes from a client.
    pub fn count_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.input_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a write of so many bytes to a client.
    pub fn count_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.output_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a client that was turned away, because there are too many.
    pub fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn input_bytes(&self) -> u64 {
        self.input_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn output_bytes(&self) -> u64 {
        self.output_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// `CONFIG RESETSTAT`
    pub(crate) fn reset(&self) {
        let Traffic { input_bytes, output_bytes, reads, writes, rejected } = self;
        for counter in [input_bytes, output_bytes, reads, writes, rejected] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// A rate per second of a counter: the mean of the last samples.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// The counter at the last sample.
    last: u64,
    per_second: [u64; SAMPLES],
    next: usize,
}

impl Rate {
    /// Takes a sample over the time since the last one; none for the first.
    fn sample(&mut self, counter: u64, elapsed_us: Option<i64>) {
        let more = counter.saturating_sub(self.last);
        self.last = counter;
        let Some(elapsed_us) = elapsed_us.and_then(|us| u64::try_from(us).ok()) else { return };
        if let Some(place) = self.per_second.get_mut(self.next) {
            *place = more.saturating_mul(1_000_000) / elapsed_us.max(1);
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    /// The rate per second.
    pub(crate) fn per_second(&self) -> u64 {
        self.per_second.iter().sum::<u64>() / SAMPLES as u64
    }
}

/// Rates that INFO shows.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) commands: Rate,
    pub(crate) input_bytes: Rate,
    pub(crate) output_bytes: Rate,
    /// Time of the last sample.
    sampled_us: Option<i64>,
}

/// Figures of the process, as the system has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Memory in bytes; 0 if it is not known.
    pub resident_bytes: usize,
    /// Memory of the whole machine in bytes; 0 if it is not known.
    pub system_bytes: u64,
    /// Processor time in user mode.
    pub user_time: Duration,
    /// Processor time in the system.
    pub system_time: Duration,
}

impl Engine {
    /// Returns the counters that a listener counts its traffic in.
    pub fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.core.traffic)
    }

    /// Takes a sample of the rates that INFO shows. To be called every 100 ms; what comes sooner
    /// after the last sample is left to the next.
    pub fn sample_rates(&mut self, now: Now) {
        let core = &mut *self.core;
        let elapsed_us = core.rates.sampled_us.map(|last| now.unix_us - last);
        // A clock that was set back begins anew.
        if elapsed_us.is_some_and(|us| (0..SAMPLE_MIN_US).contains(&us)) {
            return;
        }
        core.rates.sampled_us = Some(now.unix_us);
        core.rates.commands.sample(core.stats.commands, elapsed_us);
        core.rates.input_bytes.sample(core.traffic.input_bytes(), elapsed_us);
        core.rates.output_bytes.sample(core.traffic.output_bytes(), elapsed_us);
    }

    /// Tells what the process uses, as the system sees it, for INFO and MEMORY STATS.
    pub fn show_usage(&mut self, usage: ProcessUsage) {
        self.core.usage = usage;
    }
}
