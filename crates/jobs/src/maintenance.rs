//! Maintenance: brings back what was lost and clears away what nobody needs.
//!
//! [`JobsMaintenance::tick`] does one bounded round of everything; [`JobsMaintenance::run`] does rounds until it is
//! told to stop. Like the scheduler it may run any number of times at once.

mod adopt;
mod expire;
mod reclaim;
mod reindex;
mod trim;
mod v1_timeouts;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::Millis;
use tokio_util::sync::CancellationToken;

use crate::{Error, Jobs, Leader, route::PoolId};

/// Pause between two rounds: a second, so that a job whose worker went away is
/// back a second after its lease ran out.
const PAUSE: Duration = Duration::from_secs(1);

/// Brings back what was lost and clears away what nobody needs.
#[derive(Clone, Debug)]
pub struct JobsMaintenance {
    pub(crate) jobs: Jobs,
    memory: Arc<Mutex<MaintenanceState>>,
}

/// State that is kept from one round to the next. Losing it only costs time.
#[derive(Debug, Default)]
struct MaintenanceState {
    /// Cursor of the scan through the active jobs.
    active_cursor: u64,
    /// The walk for the jobs of terms that have ended.
    terms: Option<reclaim::TermScan>,
    /// Cursor of the scan through all keys.
    scan_cursor: u64,
    /// Suspects, and since when they look that way.
    orphans: HashMap<String, Millis>,
    silent: HashMap<String, Millis>,
    idle_pools: HashMap<PoolId, Millis>,
    /// Cursor of the scan through the types with parked lanes.
    parked_cursor: u64,
    /// Cursor of the scan through the cancelled jobs.
    marks_cursor: u64,
    /// Cursors of the scans through the jobs with a timeout that no worker of ours runs, and
    /// through those whose v1 worker was overruled.
    timed_cursor: u64,
    overruns_cursor: u64,
    /// Number of consecutive rounds in which the lanes did not add up.
    astray: u32,
    checked: Option<Millis>,
}

/// The result of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Jobs taken back because their lease ran out, their worker went away or they ran too long.
    pub reclaimed: usize,
    /// Jobs that were not started in time, or were cancelled while a v1 worker ran them.
    pub expired: usize,
    /// Jobs of v1 producers that got their lane, or were finished for them.
    pub adopted: usize,
    /// Ended jobs that were forgotten.
    pub removed: usize,
    /// Dead workers taken off the list.
    pub workers: usize,
}

impl Jobs {
    /// Returns the maintenance task of this queue.
    pub fn maintenance(&self) -> JobsMaintenance {
        JobsMaintenance { jobs: self.clone(), memory: Arc::default() }
    }
}

impl JobsMaintenance {
    /// One round.
    pub async fn tick(&self) -> Result<MaintenanceReport, Error> {
        let mut kept = MaintenanceReport {
            workers: self.bury_workers().await?,
            ..MaintenanceReport::default()
        };
        kept.adopted += self.restore_overruns().await?;
        self.watch_v1_workers().await?;
        kept.reclaimed += self.time_out().await?;
        kept.reclaimed += self.reclaim().await?;
        kept.reclaimed += self.recover().await?;
        kept.expired += self.expire().await?;
        kept.expired += self.end_marked().await?;
        self.jobs.resolve().await?;
        kept.adopted += self.reindex().await?;
        kept.adopted += self.adopt().await?;
        kept.removed += self.trim().await?;
        Ok(kept)
    }

    /// Rounds while this process leads, until it is told to stop.
    pub async fn run(&self, leader: &Leader, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            let round = async {
                self.jobs.flush_tallies().await?;
                if leader.elect().await? {
                    let kept = self.tick().await?;
                    if kept != MaintenanceReport::default() {
                        tracing::debug!(?kept, "maintenance round");
                    }
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = round.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "maintenance round failed");
            }
            tokio::select! {
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

impl Jobs {
    /// Runs scheduler and maintenance until told to stop. `name` must be unique among all
    /// processes; one of them leads.
    pub async fn run_background(&self, name: &str, cancel: CancellationToken) {
        let leader = Leader::new(self, name);
        let (scheduler, maintenance) = (self.scheduler(), self.maintenance());
        tokio::join!(
            scheduler.run(&leader, cancel.clone()),
            maintenance.run(&leader, cancel.clone())
        );
        // Whichever ended last may have taken the lead once more.
        if let Err(error) = leader.resign().await {
            tracing::debug!(%error, "scheduler lock not given back");
        }
    }
}
