//! Tests of code that uses the queue: virtual time, no tasks, no sleeping.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tidegate_jobs::{Config, Labels, NewJob, testing::Harness, worker::Worker};
//!
//! let harness = Harness::embedded().await?;
//! harness.jobs().dispatch(NewJob::new("mail", &"ann")?.delay(Duration::from_secs(3_600))).await?;
//! harness.assert_dispatched("mail", |job| job.payload.get() == "\"ann\"").await;
//!
//! let worker = Worker::new(harness.jobs(), Labels::new("test")?, ()).handle("mail", async || ());
//! let ran = harness.drain(worker).await?;
//! assert_eq!(ran, 1);
//! # Ok(()) }
//! ```

use std::time::Duration;

#[cfg(feature = "embedded")]
use store::{Clock, Options};
use store::{ManualClock, Millis, Store, redis};

use crate::{Config, Error, Job, JobId, Jobs, worker::Worker};

/// How many jobs one [`Harness::drain`] runs at most, so that a job that dispatches itself for ever
/// fails a test instead of hanging it.
pub const DRAIN_MAX: usize = 10_000;

/// A queue with a clock moved by hand.
#[derive(Debug)]
pub struct Harness {
    jobs: Jobs,
    clock: ManualClock,
}

impl Harness {
    /// A queue on a store whose clock is moved by `clock`.
    pub fn new(store: Store, clock: ManualClock, config: Config) -> Result<Self, Error> {
        Ok(Self { jobs: Jobs::new(store, config)?, clock })
    }

    /// A queue of its own in memory, at 2026-01-01T00:00:00Z.
    #[cfg(feature = "embedded")]
    pub async fn embedded() -> Result<Self, Error> {
        let (clock, hands) = Clock::manual(Millis(1_767_225_600_000));
        let options = Options { clock: Some(clock), ..Options::default() };
        let store = Store::open_with("embedded:", options).await?;
        Self::new(store, hands, Config::default())
    }

    /// The queue.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The hands of its clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Moves the clock on, and puts in line what has come due.
    pub async fn advance(&self, by: Duration) -> Result<(), Error> {
        self.clock.advance(by);
        self.jobs.scheduler().tick().await?;
        Ok(())
    }

    /// Runs jobs, one after the other, until there is nothing left to do, moving the clock on to
    /// whatever comes due next: retries and delayed jobs run too, schedules do not make it go on.
    /// Returns how many attempts were made.
    pub async fn drain<S: Clone + Send + Sync + 'static>(
        &self,
        worker: Worker<S>,
    ) -> Result<usize, Error> {
        let prepared = worker.prepare()?;
        let mut claimer = prepared.claimer();
        let mut ran = 0;
        while ran < DRAIN_MAX {
            self.jobs.scheduler().tick().await?;
            let claimed = claimer.claim(1).await?;
            if !claimed.leases.is_empty() || claimed.more {
                for lease in claimed.leases {
                    Box::pin(prepared.run_one(lease)).await;
                    ran += 1;
                }
                continue;
            }
            // Nothing can run now: on to what comes due, be it a job or a place under a limit.
            let due = self.next_due().await?;
            let limit = claimed.wait.map(|wait| self.clock.now() + wait);
            match due.into_iter().chain(limit).min() {
                Some(at) => self.clock.set(at.max(self.clock.now())),
                None => return Ok(ran),
            }
        }
        Err(Error::invalid(format!("more than {DRAIN_MAX} attempts: does a job dispatch itself?")))
    }

    async fn next_due(&self) -> Result<Option<Millis>, Error> {
        use redis::AsyncCommands as _;
        let mut store = self.jobs.store().clone();
        let next: Vec<(String, i64)> =
            store.zrange_withscores(self.jobs.keys().delayed(), 0, 0).await?;
        Ok(next.first().map(|(_, at)| Millis(*at)))
    }

    /// The jobs of a type that were dispatched and have not been cleared away, in no order.
    pub async fn dispatched(&self, job_type: &str) -> Result<Vec<Job>, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let prefix = keys.data("").to_string();
        let (mut cursor, mut found) = (0u64, Vec::new());
        loop {
            let (next, names): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("{prefix}*"))
                .arg("COUNT")
                .arg(1_000)
                .query_async(&mut store)
                .await?;
            for name in names {
                let Some(id) = name.strip_prefix(&prefix) else { continue };
                let job = self.jobs.get(&JobId::stored(id)).await?;
                found.extend(job.filter(|job| job.job_type == job_type));
            }
            cursor = next;
            if cursor == 0 {
                return Ok(found);
            }
        }
    }

    /// Panics unless a job of this type was dispatched that `check` accepts.
    pub async fn assert_dispatched(&self, job_type: &str, check: impl FnMut(&Job) -> bool) {
        match self.dispatched(job_type).await {
            Ok(found) => {
                let count = found.len();
                let any = found.iter().any(check);
                assert!(any, "no such job of type {job_type:?} among {count} dispatched");
            }
            Err(error) => panic!("cannot look for jobs: {error}"),
        }
    }

    /// Panics if a job of this type was dispatched.
    pub async fn assert_not_dispatched(&self, job_type: &str) {
        match self.dispatched(job_type).await {
            Ok(found) => assert!(found.is_empty(), "{} jobs of type {job_type:?}", found.len()),
            Err(error) => panic!("cannot look for jobs: {error}"),
        }
    }
}
