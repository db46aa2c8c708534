//! Leader election among schedulers.
//!
//! The lock is v1's `scheduler:lock`: a text that expires. Leading only saves work; everything a
//! leader does is safe to do twice, so nothing depends on the lock being held.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{Error, Jobs, scripts};

/// Seconds after which a silent leader loses the lock. The schema says 30, but then the
/// jobs of a worker that dies together with the leader would wait that long; a leader that lives
/// says so every second.
const LOCK_S: u32 = 3;

/// One process that wants to lead. A cheap clone; all clones are the same candidate.
#[derive(Clone, Debug)]
pub struct Leader {
    jobs: Jobs,
    name: Arc<str>,
    leading: Arc<AtomicBool>,
}

impl Leader {
    /// A candidate. Its name must be unique among all processes.
    pub fn new(jobs: &Jobs, name: impl Into<Arc<str>>) -> Self {
        Self { jobs: jobs.clone(), name: name.into(), leading: Arc::default() }
    }

    /// Takes the lead if it is free, keeps it if it is ours. Returns whether we lead.
    pub async fn elect(&self) -> Result<bool, Error> {
        let reply = self.call(LOCK_S).await?;
        let leading = reply.first().is_some_and(|word| word == "leading");
        if self.leading.swap(leading, Ordering::Relaxed) != leading {
            tracing::info!(scheduler = %self.name, leading, "scheduler leadership changed");
        }
        Ok(leading)
    }

    /// Lets go, so that another leads at once.
    pub async fn resign(&self) -> Result<(), Error> {
        self.leading.store(false, Ordering::Relaxed);
        self.call(0).await.map(drop)
    }

    async fn call(&self, ttl_s: u32) -> Result<Vec<String>, Error> {
        let keys = scripts::elect::Keys { lock: self.jobs.keys().scheduler_lock() };
        let args = scripts::elect::Args { scheduler: &*self.name, ttl_s };
        // After a power cut somebody else leads sooner.
        let store = self.jobs.store().relaxed();
        Ok(scripts::elect::run(&store, keys, args).await?)
    }
}
