//! Counting: jobs by type, workers, schedules, the leader; for metrics.
//!
//! Bounded, whatever is in the queue: waiting jobs are counted by their lanes, active ones by the
//! counters of their types, and of delayed and dead ones the first [`COUNTED_MAX`] are looked at. Of
//! these only the ids are read, and the type of an id once per process. Invariant: the counts of all
//! types and [`Census::rest`] add up to the lengths of the lists.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use store::{
    Key,
    redis::{self, AsyncCommands as _},
};

use crate::{Error, Job, JobId, JobType, Jobs};

/// Delayed and dead jobs that are counted by type, of each list; the others are in [`Census::rest`].
pub(crate) const COUNTED_MAX: usize = 5_000;

/// Lanes of a type whose first jobs are looked at for the oldest one.
const HEADS_MAX: usize = 8;

/// Keys read in one call.
const CHUNK: usize = 500;

/// Bytes of a job that are read to find its type, which most producers write near the front.
const PREFIX: isize = 512;

/// Types remembered by job id.
const REMEMBERED_MAX: usize = 4 * COUNTED_MAX;

/// Counts of a queue at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Counts by type.
    pub types: BTreeMap<String, TypeCounts>,
    /// Jobs whose type was not looked at or is not known.
    pub rest: TypeCounts,
    /// Live workers.
    pub workers: usize,
    /// Jobs that run, which is the number of busy slots of all workers.
    pub busy_slots: usize,
    /// Waiting jobs that no live worker may claim.
    pub unroutable: usize,
    /// Schedules.
    pub schedules: usize,
    /// Time for which the most overdue schedule has been due.
    pub schedules_late: Duration,
    /// The process that leads scheduler and maintenance.
    pub leader: Option<String>,
    /// Jobs that succeeded, ever.
    pub completed: u64,
    /// Attempts that failed, ever.
    pub failed: u64,
}

/// Counts of a job type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeCounts {
    /// Waiting jobs.
    pub waiting: usize,
    /// Active jobs.
    pub active: usize,
    /// Delayed jobs.
    pub delayed: usize,
    /// Dead letters.
    pub dead: usize,
    /// Time since the oldest waiting job could run, as far as the fronts of its lanes tell.
    pub oldest: Option<Duration>,
    /// Is the type paused?
    pub paused: bool,
}

/// Types by job id. A job never changes its type.
pub(crate) type KnownTypes = HashMap<String, JobType>;

impl Jobs {
    /// Counts what is there, by type.
    pub async fn census(&self) -> Result<Census, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let stats = self.stats().await?;
        let mut census = Census {
            workers: stats.workers,
            busy_slots: stats.active,
            schedules: stats.cron,
            completed: stats.processed,
            failed: stats.failed,
            ..Census::default()
        };
        let top = isize::try_from(COUNTED_MAX).unwrap_or(isize::MAX) - 1;
        type Parts = (Vec<String>, Vec<String>, Option<String>, Vec<(String, f64)>);
        let (delayed, dead, leader, next): Parts = redis::pipe()
            .zrange(keys.delayed(), 0, top)
            .lrange(keys.deadletter(), 0, top)
            .get(keys.scheduler_lock())
            .zrange_withscores(keys.cron(), 0, 0)
            .query_async(&mut store)
            .await?;
        census.leader = leader;
        if let Some((_, due)) = next.first() {
            let late = self.now().0.saturating_sub(*due as i64).max(0).unsigned_abs();
            census.schedules_late = Duration::from_millis(late);
        }
        for job_type in &stats.paused {
            census.of(job_type).paused = true;
        }
        self.count_waiting(&mut census).await?;
        for (ids, count) in [
            (&delayed, (|counts| &mut counts.delayed) as fn(&mut TypeCounts) -> &mut usize),
            (&dead, |counts| &mut counts.dead),
        ] {
            for job_type in self.types_of(ids).await? {
                *count(census.of(job_type.as_str())) += 1;
            }
        }
        self.count_active(&mut census).await?;
        census.rest = census.missing(&stats);
        Ok(census)
    }

    async fn count_waiting(&self, census: &mut Census) -> Result<(), Error> {
        let mut heads: Vec<(String, Key)> = Vec::new();
        let mut heads_of: HashMap<String, usize> = HashMap::new();
        for lane in self.lanes().await? {
            let job_type = lane.route.job_type.as_str();
            let waiting: usize = lane.waiting.iter().sum();
            census.of(job_type).waiting += waiting;
            if !lane.routable && !lane.paused {
                census.unroutable += waiting;
            }
            let (route, _) = lane.route.name();
            for (priority, _) in (1u8..).zip(lane.waiting).filter(|(_, length)| *length > 0) {
                let taken = heads_of.entry(job_type.to_owned()).or_default();
                if *taken < HEADS_MAX {
                    *taken += 1;
                    heads.push((job_type.to_owned(), self.keys().lane(&route, priority)));
                }
            }
        }
        let mut store = self.store().clone();
        for heads in heads.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            heads.iter().for_each(|(_, lane)| _ = pipe.lindex(lane, 1));
            let ids: Vec<Option<String>> = pipe.query_async(&mut store).await?;
            let found =
                heads.iter().zip(ids).filter_map(|((job_type, _), id)| Some((job_type, id?)));
            let found: Vec<(&String, String)> = found.collect();
            // Payloads come along, so a few at a time.
            for found in found.chunks(16) {
                let data: Vec<Key> = found.iter().map(|(_, id)| self.keys().data(id)).collect();
                let data: Vec<Option<Vec<u8>>> =
                    redis::cmd("MGET").arg(data).query_async(&mut store).await?;
                for ((job_type, id), data) in found.iter().zip(data) {
                    let job =
                        data.and_then(|data| Job::parse(JobId::stored(id.as_str()), &data).ok());
                    let Some(job) = job else { continue };
                    let age = self.now().0.saturating_sub(job.due().0).max(0).unsigned_abs();
                    let counts = census.of(job_type);
                    counts.oldest = counts.oldest.max(Some(Duration::from_millis(age)));
                }
            }
        }
        Ok(())
    }

    /// Counts active jobs by the counters of the types that are known so far and of those that claims
    /// name.
    async fn count_active(&self, census: &mut Census) -> Result<(), Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let mut cursor = 0u64;
        for _ in 0..COUNTED_MAX / CHUNK {
            let (next, claims): (u64, Vec<(String, String)>) = redis::cmd("HSCAN")
                .arg(keys.claims())
                .arg(cursor)
                .arg("COUNT")
                .arg(CHUNK)
                .query_async(&mut store)
                .await?;
            for (_, claim) in claims {
                if let Some(job_type) = claim.splitn(3, ' ').nth(2) {
                    census.of(job_type);
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let types: Vec<String> = census.types.keys().cloned().collect();
        for types in types.chunks(CHUNK) {
            let counters: Vec<Key> = types.iter().map(|job_type| keys.running(job_type)).collect();
            let counts: Vec<Option<i64>> =
                redis::cmd("MGET").arg(counters).query_async(&mut store).await?;
            for (job_type, count) in types.iter().zip(counts) {
                census.of(job_type).active = usize::try_from(count.unwrap_or(0)).unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Returns the types of jobs, where they are known or can be read.
    async fn types_of(&self, ids: &[String]) -> Result<Vec<JobType>, Error> {
        let unknown: Vec<&String> = {
            let known = self.inner.known_types.lock();
            ids.iter().filter(|id| !known.contains_key(*id)).collect()
        };
        let mut store = self.store().clone();
        for unknown in unknown.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            unknown.iter().for_each(|id| _ = pipe.getrange(self.keys().data(id), 0, PREFIX - 1));
            let prefixes: Vec<Vec<u8>> = pipe.query_async(&mut store).await?;
            for (id, prefix) in unknown.iter().zip(prefixes) {
                let found = match find_type(&prefix) {
                    None if prefix.len() >= PREFIX.unsigned_abs() => {
                        let data: Option<Vec<u8>> = store.get(self.keys().data(id)).await?;
                        data.and_then(|data| find_type(&data))
                    }
                    found => found,
                };
                let Some(job_type) = found else { continue };
                let mut known = self.inner.known_types.lock();
                if known.len() >= REMEMBERED_MAX {
                    known.clear();
                }
                known.insert((*id).clone(), JobType::stored(job_type.as_str()));
            }
        }
        let known = self.inner.known_types.lock();
        Ok(ids.iter().filter_map(|id| known.get(id).cloned()).collect())
    }
}

impl Census {
    fn of(&mut self, job_type: &str) -> &mut TypeCounts {
        self.types.entry(job_type.to_owned()).or_default()
    }

    /// Returns what the lists hold beyond what was counted by type.
    fn missing(&self, stats: &crate::JobCounts) -> TypeCounts {
        let sum = |count: fn(&TypeCounts) -> usize| self.types.values().map(count).sum::<usize>();
        TypeCounts {
            waiting: stats.waiting.saturating_sub(sum(|counts| counts.waiting)),
            active: stats.active.saturating_sub(sum(|counts| counts.active)),
            delayed: stats.delayed.saturating_sub(sum(|counts| counts.delayed)),
            dead: stats.dead.saturating_sub(sum(|counts| counts.dead)),
            ..TypeCounts::default()
        }
    }
}

/// Finds the type in a job's JSON, of which the end may be missing.
fn find_type(json: &[u8]) -> Option<String> {
    struct TypeVisitor<'a>(&'a mut Option<String>);
    impl<'de> Visitor<'de> for TypeVisitor<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a job")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key::<String>()? {
                if name == "type" {
                    *self.0 = Some(map.next_value()?);
                    return Err(A::Error::custom("found"));
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_slice(json);
    // It ends with an error when the type is found or when the text ends.
    let _ = reader.deserialize_map(TypeVisitor(&mut found));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_found_in_a_part_of_a_job() {
        let found = |text: &str| find_type(text.as_bytes());
        assert_eq!(found(r#"{"jobId":"1","type":"mail","payl"#).as_deref(), Some("mail"));
        assert_eq!(found(r#"{"payload":{"type":"no"},"type":"mail"}"#).as_deref(), Some("mail"));
        assert_eq!(found(r#"{"payload":{"type":"no"},"ty"#), None);
        assert_eq!(found(r#"{"type":7}"#), None);
        assert_eq!(found(""), None);
    }
}
