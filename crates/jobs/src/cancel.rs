//! Cancelling: a job that has not started ends; one that runs is asked to stop.

use crate::{
    Error, JobError, JobId, Jobs,
    config::seconds,
    fail::{cancelled, failed_result},
    scripts,
    text::{REASON_MAX, clip},
};

/// Most jobs cancelled in one call to the store.
const BATCH: usize = 500;

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It had not started and has ended now.
    Ended,
    /// It runs; its worker was told, and ends it when the handler has stopped. A v1 worker cannot be
    /// told: the job ends when that worker gives it back, unless it has succeeded.
    Asked,
}

impl Jobs {
    /// Cancels a job, from any process.
    ///
    /// A job that was asked to stop never runs again: however its attempt ends, short of success, it
    /// has ended for good and `reason` is kept as its error.
    ///
    /// Fails with [`Error::Conflict`] when it has ended, and with [`Error::IsSchedule`] when it is a
    /// schedule of which nothing is in line or runs; [`unschedule`](Jobs::unschedule) stops that.
    pub async fn cancel(&self, id: &JobId, reason: &str) -> Result<CancelOutcome, Error> {
        let mut outcomes = self.cancel_all(std::slice::from_ref(id), reason).await?;
        outcomes.pop().unwrap_or_else(|| Err(Error::NotFound(id.clone())))
    }

    /// Cancels many jobs. Returns for each what [`cancel`](Jobs::cancel) would.
    pub async fn cancel_all(
        &self,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<Result<CancelOutcome, Error>>, Error> {
        let mut outcomes = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let error = cancelled(clip(reason, REASON_MAX));
            let reply = self.cancel_with(ids, error, "cancelled", true).await?;
            self.settle_if(&reply).await;
            for (id, word) in ids.iter().zip(reply.iter().skip(1)) {
                outcomes.push(match word.as_str() {
                    "ended" => Ok(CancelOutcome::Ended),
                    "asked" => Ok(CancelOutcome::Asked),
                    "schedule" => Err(Error::IsSchedule(id.clone())),
                    word => match word.strip_prefix("is ") {
                        Some(status) => {
                            Err(Error::Conflict { id: id.clone(), status: status.to_owned() })
                        }
                        None => Err(Error::NotFound(id.clone())),
                    },
                });
            }
        }
        Ok(outcomes)
    }

    /// Ends a job that has not started; leaves one alone that runs. Gives the word of the store.
    pub(crate) async fn end_unstarted(
        &self,
        id: &JobId,
        error: JobError,
        event: &'static str,
    ) -> Result<String, Error> {
        let reply = self.cancel_with(std::slice::from_ref(id), error, event, false).await?;
        self.settle_if(&reply).await;
        Ok(reply.into_iter().nth(1).unwrap_or_default())
    }

    async fn cancel_with(
        &self,
        ids: &[JobId],
        error: JobError,
        event: &'static str,
        running: bool,
    ) -> Result<Vec<String>, Error> {
        let keys = self.keys();
        let now = self.now();
        let reason = error.message.clone();
        Ok(scripts::cancel::run(
            self.store(),
            scripts::cancel::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                expiring: keys.expiring(),
                finished: keys.finished(),
                parents: keys.parents(),
                settled: keys.settled(),
                claims: keys.claims(),
                cancelled: keys.cancelled(),
                events: keys.events(),
                cron: keys.cron(),
                keys: ids.iter().flat_map(|id| {
                    let id = id.as_str();
                    [keys.data(id), keys.status(id), keys.result(id), keys.pending(id)]
                }),
            },
            scripts::cancel::Args {
                now_ms: now,
                done: keys.done(),
                signal: keys.signal(),
                events_max: self.config().events_max,
                result_ttl_s: seconds(self.config().result_ttl),
                outcome: failed_result(error, now, 0),
                reason,
                event,
                running: if running { "1" } else { "" },
                ids: ids.iter().map(JobId::as_str),
            },
        )
        .await?)
    }
}
