//! Statistics of a queue: now, per hour, and in total.

use std::{collections::HashMap, time::Duration};

use store::{Millis, redis};

use crate::{Error, QueueId, QueueStatus, Room, hour, snapshot::QueueSnapshot};

/// Statistics of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueId,
    /// Its status.
    pub status: QueueStatus,
    /// Number of waiting positions.
    pub waiting: u64,
    /// Number of admitted positions whose session has not started.
    pub admitted: u64,
    /// Number of active sessions.
    pub active: u64,
    /// Totals since the queue was created.
    pub total: Totals,
    /// Mean wait of visitors admitted in the last 24 hours; `None` if there were none.
    pub average_wait: Option<Duration>,
    /// Admissions per second over the last five minutes, or since the queue was created or resumed.
    pub admission_rate: f64,
    /// Time of the last admission.
    pub last_admission: Option<Millis>,
    /// The last 24 hours that have numbers, oldest first.
    pub hours: Vec<Hour>,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Positions enqueued.
    pub enqueued: u64,
    /// Admissions, second ones after a no-show included.
    pub admitted: u64,
    /// Sessions started.
    pub sessions_started: u64,
    /// Positions that expired or were revoked.
    pub expired: u64,
    /// Positions cancelled.
    pub cancelled: u64,
    /// Admissions without a session.
    pub no_shows: u64,
    /// Sessions completed.
    pub completed: u64,
    /// Sessions expired.
    pub sessions_expired: u64,
    /// Sessions revoked.
    pub terminated: u64,
}

impl Totals {
    fn read(number: impl Fn(&str) -> u64) -> Self {
        Self {
            enqueued: number("total_enqueued"),
            admitted: number("total_admitted"),
            sessions_started: number("total_claimed"),
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
    /// Start of the hour.
    pub start: Millis,
    /// `YYYYMMDDHH`, UTC.
    pub hour: String,
    /// Counts of the hour.
    pub counts: Totals,
    /// Maximum number of waiting visitors.
    pub peak_queue_size: u64,
    /// Mean wait of admitted visitors; `None` if there were none.
    pub average_wait: Option<Duration>,
    /// Approximate p50, p90 and p99 of the wait.
    pub percentiles: Option<[Duration; 3]>,
}

impl Room {
    /// Returns the statistics of a queue.
    pub async fn stats(&self, queue: &QueueId) -> Result<QueueStats, Error> {
        let snapshot = self.read_snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let now = self.now();
        let this_hour = now.0.div_euclid(3_600_000);
        let starts: Vec<Millis> =
            (0..24).rev().map(|h| Millis((this_hour - h) * 3_600_000)).collect();
        let mut pipe = redis::pipe();
        for start in &starts {
            pipe.hgetall(keys.stats(&hour(*start)));
        }
        let hashes: Vec<HashMap<String, String>> =
            pipe.query_async(&mut self.0.store.clone()).await?;
        let mut waits = (0u64, 0u64);
        let mut hours = Vec::new();
        for (start, fields) in starts.into_iter().zip(hashes) {
            if fields.is_empty() {
                continue;
            }
            let number = |field: &str| fields.get(field).and_then(|v| v.parse().ok()).unwrap_or(0);
            let (sum, count) = (number("wait_ms_sum"), number("wait_count"));
            waits = (waits.0 + sum, waits.1 + count);
            hours.push(Hour {
                start,
                hour: hour(start),
                counts: Totals::read(number),
                peak_queue_size: number("peak_queue_size"),
                average_wait: mean(sum, count),
                percentiles: percentiles(&std::array::from_fn(|b| number(&format!("wait_{b}")))),
            });
        }
        let last = snapshot.number("last_admission_ms");
        Ok(QueueStats {
            queue: queue.clone(),
            status: snapshot.status,
            waiting: snapshot.waiting,
            admitted: snapshot.admitted,
            active: snapshot.active,
            total: Totals::read(|field| u64::try_from(snapshot.number(field)).unwrap_or(0)),
            average_wait: mean(waits.0, waits.1),
            admission_rate: recent_rate(&snapshot, now),
            last_admission: (last > 0).then_some(Millis(last)),
            hours,
        })
    }
}

fn mean(sum_ms: u64, count: u64) -> Option<Duration> {
    (count > 0).then(|| Duration::from_millis(sum_ms / count.max(1)))
}

/// Returns the admissions per second over the last five minutes, the current one included, or over the
/// time since the queue was created or resumed if that is shorter.
fn recent_rate(snapshot: &QueueSnapshot, now: Millis) -> f64 {
    let minute = now.0.div_euclid(60_000);
    let recent: Vec<(i64, u64)> =
        snapshot.minutes().filter(|(of, _)| (minute - 4..=minute).contains(of)).collect();
    let count: u64 = recent.iter().map(|(_, n)| n).sum();
    let mut since = ((minute - 4) * 60_000).max(snapshot.created.0);
    // Admissions from before it was resumed belong to a longer time.
    if recent.iter().all(|(of, n)| *n == 0 || *of >= snapshot.floor.0.div_euclid(60_000)) {
        since = since.max(snapshot.floor.0);
    }
    count as f64 / ((now.0 - since) as f64 / 1000.0).max(1.0)
}

/// Returns p50, p90 and p99 from a histogram whose buckets grow by the square root of two: bucket b
/// holds waits from 2^(b/2) − 1 seconds on.
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
