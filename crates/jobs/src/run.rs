//! Runs of schedules: the latest five of each, and how they ended.
//!
//! A schedule whose occurrences do not overlap runs under its own id, so its result is that of the
//! latest run. The script that starts a run therefore notes first how the one before it ended. Runs
//! of a schedule with overlap are jobs of their own, and tell for as long as they are kept.

use store::{
    Millis,
    redis::{self, AsyncCommands as _},
};

use crate::{Error, JobId, JobResult, Jobs, Status};

/// Runs of a schedule that are remembered.
pub const RUNS_MAX: usize = 5;

/// One run of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRun {
    /// Time at which it was put in line.
    pub started: Millis,
    /// Id of the job.
    pub id: JobId,
    /// Its outcome so far.
    pub outcome: RunOutcome,
    /// Time at which it ended.
    pub ended: Option<Millis>,
}

/// The outcome of a run of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// It waits for a worker, or for its next attempt.
    Waiting,
    /// A worker runs it.
    Active,
    /// It succeeded.
    Completed,
    /// It was cancelled.
    Failed,
    /// It failed for good.
    Dead,
    /// It did not start, because the one before it had not ended.
    Skipped,
    /// It is not kept any more.
    Removed,
}

impl RunOutcome {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
            Self::Removed => "removed",
        }
    }

    fn of(status: Status) -> Self {
        match status {
            Status::Waiting | Status::Delayed | Status::Cron => Self::Waiting,
            Status::Active => Self::Active,
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Dead => Self::Dead,
        }
    }
}

impl ScheduleRun {
    /// Reads an entry: `started id [outcome ended]`. `known` is false where the outcome is not noted.
    fn parse(entry: &str) -> Option<(Self, bool)> {
        let mut words = entry.split(' ');
        let started = Millis(words.next()?.parse().ok()?);
        let id = JobId::stored(words.next()?);
        let word = words.next();
        let outcome = match word {
            Some("skipped") => RunOutcome::Skipped,
            Some(word) => RunOutcome::of(Status::parse(word)?),
            None => RunOutcome::Removed,
        };
        let ended = words.next().and_then(|at| at.parse().ok()).map(Millis);
        let ended = ended.filter(|ended| *ended >= started);
        Some((Self { started, id, outcome, ended }, word.is_some()))
    }
}

impl Jobs {
    /// The latest runs of each of some schedules, newest first, at most [`RUNS_MAX`].
    pub async fn schedule_runs(&self, ids: &[&JobId]) -> Result<Vec<Vec<ScheduleRun>>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.keys();
        let mut store = self.store().clone();
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.lrange(keys.runs(id.as_str()), 0, RUNS_MAX.cast_signed() - 1);
        }
        let entries: Vec<Vec<String>> = pipe.query_async(&mut store).await?;
        let mut all = Vec::with_capacity(ids.len());
        for entries in entries {
            let mut runs = Vec::with_capacity(entries.len());
            for entry in entries {
                let Some((mut run, known)) = ScheduleRun::parse(&entry) else { continue };
                if !known {
                    self.fill_outcome(&mut run, &mut store).await?;
                }
                runs.push(run);
            }
            all.push(runs);
        }
        Ok(all)
    }

    /// Looks up the outcome of a run whose job tells it.
    async fn fill_outcome(
        &self,
        run: &mut ScheduleRun,
        store: &mut store::Store,
    ) -> Result<(), Error> {
        let keys = self.keys();
        let (status, result): (Option<String>, Option<Vec<u8>>) =
            store.mget((keys.status(run.id.as_str()), keys.result(run.id.as_str()))).await?;
        let Some(status) = status.as_deref().and_then(Status::parse) else { return Ok(()) };
        run.outcome = RunOutcome::of(status);
        let result: Option<JobResult> = result.and_then(|text| serde_json::from_slice(&text).ok());
        let ended = result.filter(|_| status.is_final()).map(|result| Millis(result.completed_at));
        run.ended = ended.filter(|ended| *ended >= run.started);
        Ok(())
    }
}
