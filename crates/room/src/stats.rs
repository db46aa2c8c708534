//! Numbers for operators: now, per hour, over the life of the queue.

use std::{collections::HashMap, time::Duration};

use store::{Millis, redis};

use crate::{Error, QueueId, QueueStatus, Room, hour, pulse::Pulse};

/// A queue in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The queue.
    pub queue: QueueId,
    /// Whether it lets people in.
    pub status: QueueStatus,
    /// How many wait.
    pub waiting: u64,
    /// How many may come in now and have not.
    pub admitted: u64,
    /// How many sessions run.
    pub active: u64,
    /// Since the queue was made.
    pub total: Totals,
    /// The mean wait of those admitted in the last 24 hours; none if nobody was.
    pub average_wait: Option<Duration>,
    /// Admissions per second over the last five minutes, or since the queue was made or opened again.
    pub admission_rate: f64,
    /// When somebody was last admitted.
    pub last_admission: Option<Millis>,
    /// The last 24 hours that have numbers, oldest first.
    pub hours: Vec<Hour>,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Places taken.
    pub enqueued: u64,
    /// Admissions, second ones of those who did not come included.
    pub admitted: u64,
    /// Sessions started.
    pub claimed: u64,
    /// Places that ended by silence or by not coming, or were taken away.
    pub expired: u64,
    /// Places given up.
    pub cancelled: u64,
    /// Admissions nobody came to.
    pub no_shows: u64,
    /// Sessions completed.
    pub completed: u64,
    /// Sessions that ran out.
    pub sessions_expired: u64,
    /// Sessions ended before their time.
    pub terminated: u64,
}

impl Totals {
    fn read(number: impl Fn(&str) -> u64) -> Self {
        Self {
            enqueued: number("total_enqueued"),
            admitted: number("total_admitted"),
            claimed: number("total_claimed"),
            expired: number("total_expired"),
            cancelled: number("total_cancelled"),
            no_shows: number("total_no_show"),
            completed: number("total_completed"),
            sessions_expired: number("total_sessions_expired"),
            terminated: number("total_terminated"),
        }
    }
}

/// One hour of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Hour {
    /// `YYYYMMDDHH`, UTC.
    pub hour: String,
    /// What happened in it.
    pub counts: Totals,
    /// The longest the line was.
    pub peak_queue_size: u64,
    /// The mean wait of those admitted; none if nobody was.
    pub average_wait: Option<Duration>,
    /// How long half, nine in ten and 99 in a hundred of them waited at most, about.
    pub percentiles: Option<[Duration; 3]>,
}

impl Room {
    /// A queue in numbers.
    pub async fn stats(&self, queue: &QueueId) -> Result<Stats, Error> {
        let pulse = self.fresh_pulse(queue).await?;
        let keys = self.known(queue);
        let now = self.now();
        let names: Vec<String> =
            (0..24).rev().map(|h| hour(Millis(now.0 - h * 3_600_000))).collect();
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.hgetall(keys.stats(name));
        }
        let hashes: Vec<HashMap<String, String>> =
            pipe.query_async(&mut self.0.store.clone()).await?;
        let mut waits = (0u64, 0u64);
        let mut hours = Vec::new();
        for (name, fields) in names.into_iter().zip(hashes) {
            if fields.is_empty() {
                continue;
            }
            let number = |field: &str| fields.get(field).and_then(|v| v.parse().ok()).unwrap_or(0);
            let (sum, count) = (number("wait_ms_sum"), number("wait_count"));
            waits = (waits.0 + sum, waits.1 + count);
            hours.push(Hour {
                hour: name,
                counts: Totals::read(number),
                peak_queue_size: number("peak_queue_size"),
                average_wait: mean(sum, count),
                percentiles: percentiles(&std::array::from_fn(|b| number(&format!("wait_{b}")))),
            });
        }
        let last = pulse.number("last_admission_ms");
        Ok(Stats {
            queue: queue.clone(),
            status: pulse.status,
            waiting: pulse.waiting,
            admitted: pulse.admitted,
            active: pulse.active,
            total: Totals::read(|field| u64::try_from(pulse.number(field)).unwrap_or(0)),
            average_wait: mean(waits.0, waits.1),
            admission_rate: recent_rate(&pulse, now),
            last_admission: (last > 0).then_some(Millis(last)),
            hours,
        })
    }
}

fn mean(sum_ms: u64, count: u64) -> Option<Duration> {
    (count > 0).then(|| Duration::from_millis(sum_ms / count.max(1)))
}

/// Admissions per second over the last five minutes, the current one included, or over the time since
/// the queue was made or opened again if that is less.
fn recent_rate(pulse: &Pulse, now: Millis) -> f64 {
    let minute = now.0.div_euclid(60_000);
    let recent: Vec<(i64, u64)> =
        pulse.minutes().filter(|(of, _)| (minute - 4..=minute).contains(of)).collect();
    let count: u64 = recent.iter().map(|(_, n)| n).sum();
    let mut since = ((minute - 4) * 60_000).max(pulse.created.0);
    // What was admitted before it was opened again belongs to a longer time.
    if recent.iter().all(|(of, n)| *n == 0 || *of >= pulse.floor.0.div_euclid(60_000)) {
        since = since.max(pulse.floor.0);
    }
    count as f64 / ((now.0 - since) as f64 / 1000.0).max(1.0)
}

/// Waits are counted in buckets that grow by the square root of two: bucket b holds waits from
/// 2^(b/2) − 1 seconds on.
fn percentiles(buckets: &[u64; 40]) -> Option<[Duration; 3]> {
    let all: u64 = buckets.iter().sum();
    if all == 0 {
        return None;
    }
    Some([0.5, 0.9, 0.99].map(|share| {
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (b, count) in buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let edge = |b: usize| 2f64.powf(b as f64 / 2.0) - 1.0;
                return Duration::from_secs_f64((edge(b) + edge(b + 1)) / 2.0);
            }
        }
        Duration::ZERO
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_bucket_they_fall_into() {
        let mut buckets = [0; 40];
        assert_eq!(percentiles(&buckets), None);
        buckets[0] = 50;
        buckets[10] = 45;
        buckets[20] = 5;
        let [half, most, nearly_all] = percentiles(&buckets).unwrap();
        assert!(half < Duration::from_secs(1));
        assert!((31..=44).contains(&most.as_secs()), "{most:?}");
        assert!((1023..=1447).contains(&nearly_all.as_secs()), "{nearly_all:?}");
    }
}
