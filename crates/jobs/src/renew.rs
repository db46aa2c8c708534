//! Renewing: a worker that still runs a job keeps it.

use std::time::Duration;

use store::{Millis, redis::AsyncCommands as _, script::Arg};

use crate::{Error, JobId, JobLease, Jobs, config::seconds, scripts};

/// The result of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It runs on.
    Held,
    /// It runs on, but the job was cancelled and shall stop.
    Cancelled,
    /// The attempt has run longer than the job's timeout allows: it ends, and does not count.
    TimedOut,
    /// The job is not this worker's any more.
    Lost,
}

impl Jobs {
    /// Starts the clock of the attempts whose jobs have a timeout: each must have ended when that is
    /// over, and `grace` for a worker that stops its handlers itself and says so. After that it can
    /// neither be renewed nor completed, and maintenance ends it as a timeout.
    pub async fn start(&self, leases: &[&JobLease], grace: Duration) -> Result<(), Error> {
        let now = self.now();
        let timed = leases.iter().filter_map(|lease| Some((*lease, lease.job.timeout?)));
        let timed: Vec<(&JobLease, Duration)> = timed.collect();
        for chunk in timed.chunks(256) {
            let rest = chunk.iter().flat_map(|(lease, timeout)| {
                let deadline = now + *timeout + grace;
                [lease.id().as_str().into(), Arg::Str(&lease.claim), Arg::Number(deadline.0)]
            });
            let _: (String, usize) = scripts::start::run(
                self.store(),
                scripts::start::Keys {
                    claims: self.keys().claims(),
                    deadlines: self.keys().deadlines(),
                    timed: self.keys().timed(),
                },
                scripts::start::Args { rest: rest.collect::<Vec<Arg<'_>>>() },
            )
            .await?;
        }
        Ok(())
    }

    /// Notes jobs that have a timeout before they come in line: a worker of ours starts their clock
    /// itself, but a v1 worker says nothing, and maintenance has to notice that it runs one.
    pub(crate) async fn watch(
        &self,
        ids: impl IntoIterator<Item = &str>,
    ) -> Result<(), store::Error> {
        let since = self.now().0;
        let ids: Vec<(&str, i64)> = ids.into_iter().map(|id| (id, since)).collect();
        let mut store = self.store().clone();
        for ids in ids.chunks(500) {
            let () = store.hset_multiple(self.keys().timed(), ids).await?;
        }
        Ok(())
    }

    /// Returns the reason why a lease is not held any more.
    pub(crate) async fn why_lost(&self, id: &JobId) -> Error {
        let deadline: Result<Option<f64>, _> =
            self.store().clone().zscore(self.keys().deadlines(), id.as_str()).await;
        match deadline {
            #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit")]
            Ok(Some(deadline)) if deadline <= self.now().0 as f64 => Error::Overdue(id.clone()),
            _ => Error::LeaseLost(id.clone()),
        }
    }

    /// Renews leases for as long again as configured. Gives an outcome per lease and the new end.
    pub async fn renew(&self, leases: &[&JobLease]) -> Result<(Vec<Renewal>, Millis), Error> {
        self.renew_for(leases, self.config().lock_ttl).await
    }

    /// Renews leases for a length of the caller's choice.
    pub async fn renew_for(
        &self,
        leases: &[&JobLease],
        length: Duration,
    ) -> Result<(Vec<Renewal>, Millis), Error> {
        let until = self.now() + length;
        let mut renewals = Vec::with_capacity(leases.len());
        let keys = self.keys();
        // All leases of a call are one worker's.
        for chunk in leases.chunk_by(|a, b| a.worker_id() == b.worker_id()) {
            for chunk in chunk.chunks(256) {
                let rest: Vec<Arg> = chunk
                    .iter()
                    .flat_map(|lease| [lease.id().as_str().into(), Arg::Str(&lease.claim)])
                    .collect();
                let reply: Vec<String> = scripts::renew::run(
                    self.store(),
                    scripts::renew::Keys {
                        claims: keys.claims(),
                        leases: keys.leases(),
                        claim_leases: keys.claim_leases(),
                        claim_counts: keys.claim_counts(),
                        deadlines: keys.deadlines(),
                        cancelled: keys.cancelled(),
                        locks: chunk.iter().map(|lease| keys.lock(lease.id().as_str())),
                    },
                    scripts::renew::Args {
                        lock_ttl_s: seconds(length),
                        lease_until_ms: until,
                        now_ms: self.now(),
                        worker_id: chunk.first().map_or("", |lease| lease.worker_id()),
                        rest,
                    },
                )
                .await?;
                renewals.extend(reply.iter().skip(1).map(|word| match word.as_str() {
                    "held" => Renewal::Held,
                    "cancelled" => Renewal::Cancelled,
                    "late" => Renewal::TimedOut,
                    _ => Renewal::Lost,
                }));
            }
        }
        Ok((renewals, until))
    }
}
