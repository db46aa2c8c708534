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
use store::redis::{self, AsyncCommands as _};

use crate::{Error, JobCounts, JobType, Jobs, ids::TOMB, keys::Keys};

/// Delayed and dead jobs that are counted by type, of each list; the others are in [`Census::rest`].
pub(crate) const COUNTED_MAX: usize = 5_000;

/// Lanes of a type whose first jobs are looked at for the oldest one.
pub(crate) const HEADS_MAX: usize = 8;

/// Keys read in one call.
pub(crate) const CHUNK: usize = 500;

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

/// Adds reads of the beginnings of jobs, in which their types are.
pub(crate) fn add_types(pipe: &mut redis::Pipeline, keys: &Keys, ids: &[String]) {
    ids.iter().for_each(|id| _ = pipe.getrange(keys.data(id), 0, PREFIX - 1));
}

impl Jobs {
    /// Counts what is there, by type.
    pub async fn census(&self) -> Result<Census, Error> {
        Ok(self.overview(0).await?.census)
    }

    /// Returns the types that claims name, from the first part of a scan on.
    pub(crate) async fn claimed_types(
        &self,
        first: (u64, Vec<(String, String)>),
    ) -> Result<Vec<String>, Error> {
        let (mut cursor, mut claims) = first;
        let mut types: Vec<String> = Vec::new();
        for _ in 0..COUNTED_MAX / CHUNK {
            types.extend(
                claims
                    .iter()
                    .filter_map(|(_, claim)| claim.splitn(3, ' ').nth(2))
                    .map(str::to_owned),
            );
            types.sort();
            types.dedup();
            if cursor == 0 {
                break;
            }
            (cursor, claims) = redis::cmd("HSCAN")
                .arg(self.keys().claims())
                .arg(cursor)
                .arg("COUNT")
                .arg(CHUNK)
                .query_async(&mut self.store().clone())
                .await?;
        }
        Ok(types)
    }

    /// Returns those of some jobs whose types are not known yet.
    pub(crate) fn unknown_types<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Vec<String> {
        let known = self.inner.known_types.lock();
        ids.filter(|id| *id != TOMB && !known.contains_key(*id)).cloned().collect()
    }

    /// Returns the types of jobs, where they are known.
    pub(crate) fn known_types(&self, ids: &[String]) -> Vec<JobType> {
        let known = self.inner.known_types.lock();
        ids.iter().filter_map(|id| known.get(id).cloned()).collect()
    }

    /// Reads the types of jobs.
    pub(crate) async fn find_types(&self, ids: &[String]) -> Result<(), Error> {
        for ids in ids.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            add_types(&mut pipe, self.keys(), ids);
            let prefixes = self.read(&pipe).await?.take_each(ids.len())?;
            self.learn_types(ids, prefixes).await?;
        }
        Ok(())
    }

    /// Remembers the types of jobs, given their beginnings.
    pub(crate) async fn learn_types(
        &self,
        ids: &[String],
        prefixes: Vec<Vec<u8>>,
    ) -> Result<(), Error> {
        let mut store = self.store().clone();
        for (id, prefix) in ids.iter().zip(prefixes) {
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
            known.insert(id.clone(), JobType::stored(job_type.as_str()));
        }
        Ok(())
    }
}

impl Census {
    /// Begins with what the counts say.
    pub(crate) fn of(counts: &JobCounts, leader: Option<String>) -> Self {
        let mut census = Self {
            workers: counts.workers,
            busy_slots: counts.active,
            schedules: counts.cron,
            completed: counts.processed,
            failed: counts.failed,
            leader,
            ..Self::default()
        };
        for job_type in &counts.paused {
            census.named(job_type).paused = true;
        }
        census
    }

    /// Returns the counts of a type, to be added to.
    pub(crate) fn named(&mut self, job_type: &str) -> &mut TypeCounts {
        self.types.entry(job_type.to_owned()).or_default()
    }

    /// Returns what the lists hold beyond what was counted by type.
    pub(crate) fn missing(&self, stats: &JobCounts) -> TypeCounts {
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
