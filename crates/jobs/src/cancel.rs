//! Cancelling: a job that has not started ends; one that runs is asked to stop.

use crate::{
    Error, JobError, JobId, Jobs,
    config::seconds,
    fail::{cancelled, failed_result},
    scripts,
    text::{REASON_MAX, clip},
};

/// What a cancellation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not started and has ended now.
    Ended,
    /// It runs; its worker was told, and ends it when the handler has stopped.
    Asked,
}

impl Jobs {
    /// Cancels a job, from any process.
    ///
    /// A job that was asked to stop never runs again: however its attempt ends, short of success, it
    /// has ended for good and `reason` is kept as its error.
    ///
    /// Fails with [`Error::Conflict`] when it has ended, or when a v1 worker runs it, which cannot
    /// be asked, and with [`Error::IsSchedule`] when it is a schedule of which nothing is in line
    /// or runs; [`unschedule`](Jobs::unschedule) stops that.
    pub async fn cancel(&self, id: &JobId, reason: &str) -> Result<Cancelled, Error> {
        let reason = clip(reason, REASON_MAX);
        let reply = self.cancel_with(id, cancelled(reason), "cancelled", true).await?;
        self.settle_if(&reply).await;
        let conflict = |status: &str| Error::Conflict { id: id.clone(), status: status.to_owned() };
        match reply.first().map_or("", String::as_str) {
            "ended" | "settled" => Ok(Cancelled::Ended),
            "asked" => Ok(Cancelled::Asked),
            "held" => Err(conflict("held by a worker that cannot be asked to stop")),
            "schedule" => Err(Error::IsSchedule(id.clone())),
            "final" => Err(conflict(reply.get(1).map_or("ended", String::as_str))),
            _ => Err(Error::NotFound(id.clone())),
        }
    }

    /// Ends a job that has not started; leaves one alone that runs.
    pub(crate) async fn end_unstarted(
        &self,
        id: &JobId,
        error: JobError,
        event: &'static str,
    ) -> Result<Vec<String>, Error> {
        self.cancel_with(id, error, event, false).await
    }

    async fn cancel_with(
        &self,
        id: &JobId,
        error: JobError,
        event: &'static str,
        running: bool,
    ) -> Result<Vec<String>, Error> {
        let keys = self.keys();
        let name = id.as_str();
        let now = self.now();
        let reason = error.message.clone();
        Ok(scripts::cancel::run(
            self.store(),
            scripts::cancel::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                strays: keys.strays(),
                delayed: keys.delayed(),
                expiring: keys.expiring(),
                finished: keys.finished(),
                parents: keys.parents(),
                settled: keys.settled(),
                claims: keys.claims(),
                cancelled: keys.cancelled(),
                events: keys.events(),
                data: keys.data(name),
                status: keys.status(name),
                result: keys.result(name),
                pending: keys.pending(name),
                cron: keys.cron(),
            },
            scripts::cancel::Args {
                now_ms: now,
                done: keys.done(),
                signal: keys.signal(),
                events_max: self.config().events_max,
                result_ttl_s: seconds(self.config().result_ttl),
                id: name,
                outcome: failed_result(error, now, 0),
                reason,
                event,
                running: if running { "1" } else { "" },
            },
        )
        .await?)
    }
}
