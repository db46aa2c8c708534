//! Statistics of a queue: now, per hour and day, and in total.
//!
//! Scripts count into one hash per hour, which lives for a day. Maintenance copies those of the last hours
//! into one hash per day, which lives for [`HISTORY_DAYS`].

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

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

/// Days for which statistics are kept.
pub const HISTORY_DAYS: i64 = 31;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Length of a row of statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatsStep {
    /// An hour.
    #[default]
    Hour,
    /// A day, UTC.
    Day,
}

/// One hour of a queue, or one day.
#[derive(Clone, Debug, PartialEq)]
pub struct Hour {
    /// Its start.
    pub start: Millis,
    /// `YYYYMMDDHH`, UTC; of a day its first hour.
    pub hour: String,
    /// Its counts.
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
        let mut all = StatsCounters::default();
        let mut hours = Vec::new();
        for (start, fields) in starts.into_iter().zip(hashes) {
            if fields.is_empty() {
                continue;
            }
            let counters = StatsCounters::read(&fields);
            hours.push(counters.row(start));
            all.add(&counters);
        }
        let last = snapshot.number("last_admission_ms");
        Ok(QueueStats {
            queue: queue.clone(),
            status: snapshot.status,
            waiting: snapshot.waiting,
            admitted: snapshot.admitted,
            active: snapshot.active,
            total: totals(&snapshot),
            average_wait: all.average_wait(),
            admission_rate: recent_rate(&snapshot, now),
            last_admission: (last > 0).then_some(Millis(last)),
            hours,
        })
    }
}

impl Room {
    /// Returns rows of statistics that begin in `from..to`, oldest first; rows without any number are left out.
    /// Those older than [`HISTORY_DAYS`] are gone.
    pub async fn stats_history(
        &self,
        queue: &QueueId,
        step: StatsStep,
        from: Millis,
        to: Millis,
    ) -> Result<Vec<Hour>, Error> {
        self.snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let now = self.now();
        let step_ms = match step {
            StatsStep::Hour => HOUR_MS,
            StatsStep::Day => DAY_MS,
        };
        let oldest = now.0 - HISTORY_DAYS * DAY_MS;
        let first = from.0.max(oldest).div_euclid(step_ms) * step_ms;
        let end = to.0.min(now.0 + 1);
        let days = first.div_euclid(DAY_MS)..=(end - 1).div_euclid(DAY_MS);
        let recent: Vec<i64> = (0..24).map(|h| now.0.div_euclid(HOUR_MS) - h).collect();
        let mut pipe = redis::pipe();
        for day in days.clone() {
            pipe.hgetall(keys.daily_stats(&day_of(Millis(day * DAY_MS))));
        }
        for index in &recent {
            pipe.hgetall(keys.stats(&hour(Millis(index * HOUR_MS))));
        }
        let hashes: Vec<HashMap<String, String>> =
            pipe.query_async(&mut self.0.store.clone()).await?;
        let mut hashes = hashes.into_iter();
        let mut by_hour: BTreeMap<i64, StatsCounters> = BTreeMap::new();
        for (day, hours) in days.zip(hashes.by_ref()) {
            for (hour, json) in hours {
                if let (Ok(hour), Ok(counters)) = (hour.parse::<i64>(), serde_json::from_str(&json))
                {
                    by_hour.insert(day * 24 + hour, StatsCounters(counters));
                }
            }
        }
        // What is counted right now is newer than its copy.
        for (index, fields) in recent.into_iter().zip(hashes).filter(|(_, f)| !f.is_empty()) {
            by_hour.insert(index, StatsCounters::read(&fields));
        }
        let mut rows: BTreeMap<i64, StatsCounters> = BTreeMap::new();
        for (index, counters) in by_hour {
            let start = (index * HOUR_MS).div_euclid(step_ms) * step_ms;
            if (first..end).contains(&start) {
                rows.entry(start).or_default().add(&counters);
            }
        }
        Ok(rows.into_iter().map(|(start, counters)| counters.row(Millis(start))).collect())
    }

    /// Copies the counters of the last `hours` to those of their day. Idempotent.
    pub(crate) async fn archive_stats(&self, queue: &QueueId, hours: i64) -> Result<(), Error> {
        let keys = self.queue_cache(queue);
        let this_hour = self.now().0.div_euclid(HOUR_MS);
        let indexes: Vec<i64> = (0..hours.clamp(1, 24)).map(|back| this_hour - back).collect();
        let mut pipe = redis::pipe();
        for index in &indexes {
            pipe.hgetall(keys.stats(&hour(Millis(index * HOUR_MS))));
        }
        let mut store = self.0.store.clone();
        let hashes: Vec<HashMap<String, String>> = pipe.query_async(&mut store).await?;
        let mut copy = redis::pipe();
        for (index, fields) in indexes.into_iter().zip(hashes).filter(|(_, f)| !f.is_empty()) {
            let Ok(json) = serde_json::to_string(&StatsCounters::read(&fields).0) else { continue };
            let key = keys.daily_stats(&day_of(Millis(index * HOUR_MS)));
            copy.hset(&key, format!("{:02}", index.rem_euclid(24)), json).ignore();
            copy.expire(&key, HISTORY_DAYS * DAY_MS / 1_000).ignore();
        }
        if !copy.is_empty() {
            copy.query_async::<()>(&mut store).await?;
        }
        Ok(())
    }
}

/// Returns `YYYYMMDD`, UTC.
pub(crate) fn day_of(time: Millis) -> String {
    hour(time).chars().take(8).collect()
}

/// Counters of an hour or of several, by the names of the store.
#[derive(Clone, Debug, Default)]
struct StatsCounters(BTreeMap<String, u64>);

impl StatsCounters {
    fn read(fields: &HashMap<String, String>) -> Self {
        let number = |(name, value): (&String, &String)| Some((name.clone(), value.parse().ok()?));
        Self(fields.iter().filter_map(number).collect())
    }

    fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = match name.as_str() {
                "peak_queue_size" => (*sum).max(*value),
                _ => sum.saturating_add(*value),
            };
        }
    }

    fn number(&self, field: &str) -> u64 {
        self.0.get(field).copied().unwrap_or(0)
    }

    fn average_wait(&self) -> Option<Duration> {
        mean(self.number("wait_ms_sum"), self.number("wait_count"))
    }

    fn row(&self, start: Millis) -> Hour {
        Hour {
            start,
            hour: hour(start),
            counts: Totals::read(|field| self.number(field)),
            peak_queue_size: self.number("peak_queue_size"),
            average_wait: self.average_wait(),
            percentiles: percentiles(
                &std::array::from_fn(|b| self.number(&format!("wait_{b}"))),
                self.number("wait_none"),
            ),
        }
    }
}

/// Returns the totals of a queue since it was created.
pub(crate) fn totals(snapshot: &QueueSnapshot) -> Totals {
    Totals::read(|field| u64::try_from(snapshot.number(field)).unwrap_or(0))
}

fn mean(sum_ms: u64, count: u64) -> Option<Duration> {
    (count > 0).then(|| Duration::from_millis(sum_ms / count.max(1)))
}

/// Returns the admissions per second over the last five minutes, the current one included, or over the
/// time since the queue was created or resumed if that is shorter.
pub(crate) fn recent_rate(snapshot: &QueueSnapshot, now: Millis) -> f64 {
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
/// holds waits from 2^(b/2) − 1 seconds on, spread evenly as far as is known. `at_once` of those in the
/// first bucket did not wait at all.
fn percentiles(buckets: &[u64; 40], at_once: u64) -> Option<[Duration; 3]> {
    let all: u64 = buckets.iter().sum();
    if all == 0 {
        return None;
    }
    let edge = |b: usize| 2f64.powf(b as f64 / 2.0) - 1.0;
    Some([0.5, 0.9, 0.99].map(|share| {
        let wanted = (all as f64 * share).ceil() as u64;
        if at_once >= wanted {
            return Duration::ZERO;
        }
        let mut seen = 0;
        for (b, count) in buckets.iter().enumerate() {
            let at_once = if b == 0 { at_once.min(*count) } else { 0 };
            if seen + count >= wanted {
                let (rank, spread) = (wanted - seen - at_once, count - at_once);
                let part = (rank as f64 - 0.5) / spread as f64;
                return Duration::from_secs_f64(edge(b) + part * (edge(b + 1) - edge(b)));
            }
            seen += count;
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
        assert_eq!(percentiles(&buckets, 0), None);
        buckets[0] = 50;
        buckets[10] = 45;
        buckets[20] = 5;
        let [half, most, nearly_all] = percentiles(&buckets, 0).unwrap();
        assert!(half < Duration::from_secs(1));
        assert!((31..=44).contains(&most.as_secs()), "{most:?}");
        assert!((1023..=1447).contains(&nearly_all.as_secs()), "{nearly_all:?}");
    }

    #[test]
    fn those_who_did_not_wait_count_as_zero() {
        let mut buckets = [0; 40];
        buckets[0] = 1;
        assert_eq!(percentiles(&buckets, 1), Some([Duration::ZERO; 3]));
        // Eight at once, two within 414 ms: p90 is the first of them, p99 the second.
        buckets[0] = 10;
        let [half, most, nearly_all] = percentiles(&buckets, 8).unwrap();
        assert_eq!(half, Duration::ZERO);
        assert!((100..=107).contains(&most.as_millis()), "{most:?}");
        assert!((305..=315).contains(&nearly_all.as_millis()), "{nearly_all:?}");
        // Counted by an older version, which kept no such number.
        let [half, ..] = percentiles(&buckets, 0).unwrap();
        assert!((180..=200).contains(&half.as_millis()), "{half:?}");
    }
}
