//! Renewing: a worker that still runs a job keeps it.

use std::time::Duration;

use store::{Millis, script::Arg};

use crate::{Error, Jobs, Lease, config::seconds, scripts};

/// What became of a lease that was to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It runs on.
    Held,
    /// It runs on, but the job was cancelled and shall stop.
    Cancelled,
    /// The job is not this worker's any more.
    Lost,
}

impl Jobs {
    /// Renews leases for as long again as configured. Gives an outcome per lease and the new end.
    pub async fn renew(&self, leases: &[&Lease]) -> Result<(Vec<Renewal>, Millis), Error> {
        self.renew_for(leases, self.config().lock_ttl).await
    }

    /// Renews leases for a length of the caller's choice.
    pub async fn renew_for(
        &self,
        leases: &[&Lease],
        length: Duration,
    ) -> Result<(Vec<Renewal>, Millis), Error> {
        let until = self.now() + length;
        let mut renewals = Vec::with_capacity(leases.len());
        let keys = self.keys();
        // All leases of a call are one worker's.
        for chunk in leases.chunk_by(|a, b| a.server() == b.server()) {
            for chunk in chunk.chunks(256) {
                let rest: Vec<Arg> = chunk
                    .iter()
                    .flat_map(|lease| [lease.id().as_str().into(), Arg::Word(&lease.claim)])
                    .collect();
                let reply: Vec<String> = scripts::renew::run(
                    self.store(),
                    scripts::renew::Keys {
                        claims: keys.claims(),
                        leases: keys.leases(),
                        terms: keys.terms(),
                        held: keys.held(),
                        cancelled: keys.cancelled(),
                        locks: chunk.iter().map(|lease| keys.lock(lease.id().as_str())),
                    },
                    scripts::renew::Args {
                        lock_ttl_s: seconds(length),
                        lease_until_ms: until,
                        server: chunk.first().map_or("", |lease| lease.server()),
                        rest,
                    },
                )
                .await?;
                renewals.extend(reply.iter().skip(1).map(|word| match word.as_str() {
                    "held" => Renewal::Held,
                    "cancelled" => Renewal::Cancelled,
                    _ => Renewal::Lost,
                }));
            }
        }
        Ok((renewals, until))
    }
}
