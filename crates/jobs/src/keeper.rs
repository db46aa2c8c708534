//! The keeper: brings back what was lost and clears away what nobody needs.
//!
//! [`Keeper::tick`] does one bounded round of everything; [`Keeper::run`] does rounds until it is
//! told to stop. Like the scheduler it may run any number of times at once.

mod adopt;
mod expire;
mod mend;
mod reclaim;
mod trim;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::Millis;
use tokio_util::sync::CancellationToken;

use crate::{Error, Jobs, Leader};

/// How long a keeper rests between two rounds: a second, so that a job whose worker went away is
/// back a second after its lease ran out.
const PAUSE: Duration = Duration::from_secs(1);

/// Brings back what was lost and clears away what nobody needs.
#[derive(Clone, Debug)]
pub struct Keeper {
    pub(crate) jobs: Jobs,
    memory: Arc<Mutex<Memory>>,
}

/// What a keeper remembers from one round to the next. Losing it only costs time.
#[derive(Debug, Default)]
struct Memory {
    /// Where the walk through the running jobs is.
    active_cursor: u64,
    /// The walk for the jobs of terms that have ended.
    terms: Option<reclaim::Walk>,
    /// Where the walk through all keys is.
    scan_cursor: u64,
    /// Suspects, and since when they look that way.
    orphans: HashMap<String, Millis>,
    silent: HashMap<String, Millis>,
    idle_routes: HashMap<String, Millis>,
    /// How often in a row the lanes did not add up.
    astray: u32,
    checked: Option<Millis>,
}

/// What one round came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Jobs taken back because their lease ran out or their worker went away.
    pub reclaimed: usize,
    /// Jobs that were not started in time.
    pub expired: usize,
    /// Jobs of v1 producers that got their lane, or were finished for them.
    pub adopted: usize,
    /// Ended jobs that were forgotten.
    pub removed: usize,
    /// Dead workers taken off the list.
    pub workers: usize,
}

impl Jobs {
    /// A keeper of this queue.
    pub fn keeper(&self) -> Keeper {
        Keeper { jobs: self.clone(), memory: Arc::default() }
    }
}

impl Keeper {
    /// One round.
    pub async fn tick(&self) -> Result<Kept, Error> {
        let mut kept = Kept { workers: self.bury_workers().await?, ..Kept::default() };
        kept.reclaimed += self.reclaim().await?;
        kept.reclaimed += self.recover().await?;
        kept.expired += self.expire().await?;
        self.jobs.resolve().await?;
        kept.adopted += self.mend().await?;
        kept.adopted += self.adopt().await?;
        kept.removed += self.trim().await?;
        Ok(kept)
    }

    /// Rounds while this process leads, until it is told to stop.
    pub async fn run(&self, leader: &Leader, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            let round = async {
                if leader.lead().await? {
                    let kept = self.tick().await?;
                    if kept != Kept::default() {
                        tracing::debug!(?kept, "keeper round");
                    }
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = round.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "keeper round failed");
            }
            tokio::select! {
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

impl Jobs {
    /// Runs the scheduler and the keeper until told to stop. `name` must be unique among all
    /// processes; one of them leads.
    pub async fn run_roles(&self, name: &str, cancel: CancellationToken) {
        let leader = Leader::new(self, name);
        let (scheduler, keeper) = (self.scheduler(), self.keeper());
        tokio::join!(scheduler.run(&leader, cancel.clone()), keeper.run(&leader, cancel.clone()));
    }
}
