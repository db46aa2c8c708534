//! Timeouts of jobs that v1 workers run.
//!
//! A v1 worker says nothing when it starts a job, and cannot be told to stop. So jobs that have a
//! timeout are noted when they come in line, and here it is noticed that one of them runs and is not
//! ours: its clock starts. When its time is over the attempt is made one of ours, which
//! [`JobsMaintenance::time_out`] then ends like any other.
//!
//! The v1 worker does not know that, and writes its result and its status when it is done. Invariant:
//! within a round the job is what its attempts that count have made of it.

use std::time::Duration;

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
};

use super::JobsMaintenance;
use crate::{
    Error, Job, JobId,
    config::seconds,
    fail::{failed_result, timed_out},
    scripts,
};

/// Number of jobs read together, and batches in one round.
const BATCH: usize = 500;
const BATCHES: usize = 10;

/// Age up to which a note may be of a job that is just being stored.
const FRESH: Duration = Duration::from_secs(5);

/// The note about a job with a timeout.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    /// It waits, and the note is of this moment.
    Waits(Millis),
    /// A v1 worker runs it.
    Runs { deadline: Millis, attempts: u32, worker: String },
}

impl Note {
    fn parse(text: &str) -> Self {
        let mut words = text.splitn(3, ' ');
        let time = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        match (words.next().and_then(|word| word.parse().ok()), words.next()) {
            (Some(attempts), Some(worker)) => {
                Self::Runs { deadline: Millis(time), attempts, worker: worker.to_owned() }
            }
            _ => Self::Waits(Millis(time)),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Waits(since) => since.to_string(),
            Self::Runs { deadline, attempts, worker } => format!("{deadline} {attempts} {worker}"),
        }
    }
}

/// A job with a timeout, as far as its keys tell.
struct WatchedJob {
    id: String,
    note: Note,
    /// The worker that has locked it.
    lock: Option<String>,
    status: Option<String>,
}

impl JobsMaintenance {
    /// Starts the clock of jobs that v1 workers run, and takes over the attempts whose time is over.
    pub(super) async fn watch_v1_workers(&self) -> Result<(), Error> {
        let keys = self.jobs.keys();
        for _ in 0..BATCHES {
            let cursor = self.memory.lock().timed_cursor;
            let (next, notes) = self.scan_hash(keys.timed(), cursor).await?;
            self.memory.lock().timed_cursor = next;
            for chunk in notes.chunks(BATCH) {
                self.watch_these(chunk).await?;
            }
            if next == 0 {
                break;
            }
        }
        Ok(())
    }

    async fn watch_these(&self, notes: &[(String, String)]) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let names: Vec<Key> =
            notes.iter().flat_map(|(id, _)| [keys.lock(id), keys.status(id)]).collect();
        let found: Vec<Option<String>> =
            redis::cmd("MGET").arg(names).query_async(&mut store).await?;
        let mut over = Vec::new();
        for ((id, note), found) in notes.iter().zip(found.chunks_exact(2)) {
            let [lock, status] = found else { continue };
            let job = WatchedJob {
                id: id.clone(),
                note: Note::parse(note),
                lock: lock.clone(),
                status: status.clone(),
            };
            match job.status.as_deref() {
                None | Some("completed" | "failed" | "dead") => over.push(job),
                Some("active") => self.watch_one(job, now).await?,
                // v1's script for claims leaves the status to its caller.
                Some(_) if job.lock.is_some() => {
                    let active: bool = store.sismember(keys.active(), &job.id).await?;
                    if active {
                        self.watch_one(job, now).await?;
                    }
                }
                Some(_) if matches!(job.note, Note::Runs { .. }) => {
                    self.note(&job.id, &Note::Waits(Millis(0))).await?;
                }
                Some(_) => {}
            }
        }
        for job in over {
            // One that is being stored, or is about to be replayed, has its note already.
            if matches!(job.note, Note::Waits(since) if now.since(since) < FRESH) {
                continue;
            }
            let next: Option<f64> = store.zscore(keys.cron(), &job.id).await?;
            match (next, &job.note) {
                (None, _) => {
                    let () = store.hdel(keys.timed(), &job.id).await?;
                }
                (Some(_), Note::Runs { .. }) => {
                    self.note(&job.id, &Note::Waits(Millis(0))).await?;
                }
                (Some(_), Note::Waits(_)) => {}
            }
        }
        Ok(())
    }

    /// Looks at a job that runs.
    async fn watch_one(&self, watched: WatchedJob, now: Millis) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let WatchedJob { id, note, lock, .. } = watched;
        let (ours, data): (bool, Option<Vec<u8>>) = redis::pipe()
            .hexists(keys.claims(), &id)
            .get(keys.data(&id))
            .query_async(&mut store)
            .await?;
        if ours {
            // Its worker has claimed it ahead, and starts its clock when it begins.
            if matches!(note, Note::Runs { .. }) {
                self.note(&id, &Note::Waits(Millis(0))).await?;
            }
            return Ok(());
        }
        let job =
            data.as_deref().and_then(|data| Job::parse(JobId::stored(id.as_str()), data).ok());
        let Some((job, data)) = job.zip(data) else { return Ok(()) };
        let Some(timeout) = job.timeout else {
            let () = store.hdel(keys.timed(), &id).await?;
            return Ok(());
        };
        match note {
            // v1 does not renew its locks, so a lock that is gone says nothing.
            Note::Runs { deadline, attempts, worker }
                if attempts == job.attempts && lock.as_ref().is_none_or(|lock| *lock == worker) =>
            {
                if now >= deadline {
                    self.seize(&job, data, &worker, now).await?;
                }
            }
            _ => {
                let worker = lock.unwrap_or_default();
                let runs = Note::Runs { deadline: now + timeout, attempts: job.attempts, worker };
                self.note(&id, &runs).await?;
            }
        }
        Ok(())
    }

    /// Makes an attempt of a v1 worker one of ours that is past its deadline.
    async fn seize(
        &self,
        job: &Job,
        data: Vec<u8>,
        worker: &str,
        now: Millis,
    ) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let id = job.id.as_str();
        // A claim is words, and names somebody.
        let name: String =
            worker.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let name = if name.is_empty() { "v1" } else { &name };
        let reply: Vec<String> = scripts::seize::run(
            self.jobs.store(),
            scripts::seize::Keys {
                claims: keys.claims(),
                deadlines: keys.deadlines(),
                active: keys.active(),
                timed: keys.timed(),
                overruns: keys.overruns(),
                running: keys.running(job.job_type.as_str()),
                lock: keys.lock(id),
                status: keys.status(id),
                data: keys.data(id),
            },
            scripts::seize::Args {
                now_ms: now,
                id,
                worker,
                claim: format!("0 {name} {}", job.job_type),
                body: data,
            },
        )
        .await?;
        tracing::debug!(job = id, worker, ?reply, "attempt of a v1 worker is over its time");
        Ok(())
    }

    async fn note(&self, id: &str, note: &Note) -> Result<(), Error> {
        let mut store = self.jobs.store().clone();
        let () = store.hset(self.jobs.keys().timed(), id, note.to_text()).await?;
        Ok(())
    }

    /// Undoes what v1 workers wrote about jobs after their attempt had been ended.
    pub(super) async fn restore_overruns(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let cursor = self.memory.lock().overruns_cursor;
        let (next, overruns) = self.scan_hash(keys.overruns(), cursor).await?;
        self.memory.lock().overruns_cursor = next;
        if overruns.is_empty() {
            return Ok(0);
        }
        let names: Vec<Key> =
            overruns.iter().flat_map(|(id, _)| [keys.status(id), keys.data(id)]).collect();
        let found: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(names).query_async(&mut store).await?;
        let mut restored = 0;
        for ((id, since), found) in overruns.iter().zip(found.chunks_exact(2)) {
            let [status, data] = found else { continue };
            let since = Millis(since.parse().unwrap_or(0));
            let job =
                data.as_deref().and_then(|data| Job::parse(JobId::stored(id.as_str()), data).ok());
            let Some(job) = job.filter(|_| now.since(since) < self.jobs.config().result_ttl) else {
                let () = store.hdel(keys.overruns(), id).await?;
                continue;
            };
            if matches!(status.as_deref(), Some(b"completed" | b"waiting" | b"dead")) {
                restored += usize::from(self.restore(&job, since).await?);
            }
        }
        Ok(restored)
    }

    async fn restore(&self, job: &Job, since: Millis) -> Result<bool, Error> {
        let keys = self.jobs.keys();
        let id = job.id.as_str();
        let took = job.timeout.unwrap_or_default();
        let spent = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let reply: Vec<String> = scripts::restore::run(
            self.jobs.store(),
            scripts::restore::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                claims: keys.claims(),
                delayed: keys.delayed(),
                deadletter: keys.deadletter(),
                active: keys.active(),
                overruns: keys.overruns(),
                lock: keys.lock(id),
                status: keys.status(id),
                result: keys.result(id),
            },
            scripts::restore::Args {
                now_ms: self.jobs.now(),
                result_ttl_s: seconds(self.jobs.config().result_ttl),
                id,
                outcome: failed_result(timed_out(took), since, spent),
            },
        )
        .await?;
        let restored = reply.first().is_some_and(|word| word == "restored");
        if restored {
            tracing::info!(job = id, "a v1 worker ended an attempt that was over its time: undone");
        }
        Ok(restored)
    }

    /// Some entries of a hash, and the cursor to go on with.
    async fn scan_hash(
        &self,
        key: Key,
        cursor: u64,
    ) -> Result<(u64, Vec<(String, String)>), Error> {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(key).arg(cursor).arg("COUNT").arg(BATCH);
        Ok(scan.query_async(&mut self.jobs.store().clone()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_are_written() {
        let runs = |worker: &str| Note::Runs {
            deadline: Millis(5),
            attempts: 2,
            worker: worker.to_owned(),
        };
        for note in [Note::Waits(Millis(7)), runs("w"), runs("a worker"), runs("")] {
            assert_eq!(Note::parse(&note.to_text()), note);
        }
    }
}
