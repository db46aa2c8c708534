//! Completing: the result of a job that succeeded.
//!
//! Invariant: only the lease that holds a job completes it. Calls at the same time share a round
//! trip, and repeating one does no harm.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::value::RawValue;
use store::Key;

use crate::{Error, JobResult, Jobs, Lease, config::seconds, lanes::Arg, scripts};

/// Largest result a job may have: 1 MiB.
pub const RESULT_MAX: usize = 1 << 20;

/// A job that succeeded, ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) claim: String,
    pub(crate) result: String,
    pub(crate) spent: u64,
    /// It is a schedule, whose job stays for the next occurrence.
    pub(crate) keep: bool,
}

impl Jobs {
    /// Ends a job with success. `took` is how long the handler ran.
    ///
    /// Fails with [`Error::LeaseLost`] when the job is not this worker's any more.
    pub async fn complete(
        &self,
        lease: &Lease,
        data: Option<Box<RawValue>>,
        took: Duration,
    ) -> Result<(), Error> {
        let success = self.success(lease, data, took)?;
        let size = success.result.len() + 128;
        let store = |batch: Vec<Arc<Success>>| async move {
            self.store_successes(batch.iter().map(Arc::as_ref)).await
        };
        match self.inner.completions.submit(success, size, store).await? {
            true => Ok(()),
            false => Err(Error::LeaseLost(lease.id().clone())),
        }
    }

    /// Works out what is stored of a success.
    pub(crate) fn success(
        &self,
        lease: &Lease,
        data: Option<Box<RawValue>>,
        took: Duration,
    ) -> Result<Success, Error> {
        let data = data.filter(|data| data.get() != "null");
        if let Some(data) = &data
            && data.get().len() > RESULT_MAX
        {
            let size = data.get().len();
            return Err(Error::invalid(format!(
                "the result has {size} bytes, more than {RESULT_MAX}"
            )));
        }
        let spent = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let result = JobResult {
            success: true,
            data,
            error: None,
            completed_at: self.now().0,
            processing_time: spent,
        };
        let result = serde_json::to_string(&result)
            .map_err(|error| Error::invalid(format!("the result is not JSON: {error}")))?;
        Ok(Success {
            id: lease.id().to_string(),
            kind: lease.job.kind.to_string(),
            claim: lease.claim.clone(),
            result,
            spent,
            keep: lease.job.is_cron(),
        })
    }

    /// Stores successes in one call, and says of each whether it counts.
    pub(crate) async fn store_successes(
        &self,
        batch: impl IntoIterator<Item = &Success>,
    ) -> Result<Vec<bool>, store::Error> {
        let keys = self.keys();
        let mut claims: HashMap<(&str, bool), usize> = HashMap::new();
        let (mut all_keys, mut rest): (Vec<Key>, Vec<Arg>) = (Vec::new(), Vec::new());
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        let (mut spent, mut count) = (0u64, 0);
        for success in batch {
            let next = claims.len() + 1;
            let claim = *claims.entry((&success.claim, success.keep)).or_insert_with(|| {
                all_keys.push(keys.running(&success.kind));
                rest.extend([
                    success.claim.as_str().into(),
                    success.kind.as_str().into(),
                    Arg::Word(if success.keep { "1" } else { "" }),
                ]);
                next
            });
            job_keys.push(keys.lock(&success.id));
            job_keys.push(keys.status(&success.id));
            job_keys.push(keys.result(&success.id));
            job_args.extend([
                success.id.as_str().into(),
                claim.into(),
                success.result.as_str().into(),
            ]);
            spent = spent.saturating_add(success.spent);
            count += 1;
        }
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let reply: Vec<String> = scripts::complete::run(
            self.store(),
            scripts::complete::Keys {
                active: keys.active(),
                claims: keys.claims(),
                leases: keys.leases(),
                finished: keys.finished(),
                parents: keys.parents(),
                settled: keys.settled(),
                blocked: keys.blocked(),
                processed: keys.processed(),
                spent: keys.spent(),
                cancelled: keys.cancelled(),
                events: keys.events(),
                keys: all_keys,
            },
            scripts::complete::Args {
                now_ms: self.now(),
                result_ttl_s: seconds(self.config().result_ttl),
                events_max: self.config().events_max,
                done: keys.done(),
                wake: keys.wake(),
                // The store's counters have 63 bits.
                spent_ms: spent.min(1 << 40),
                claims: claims.len(),
                rest,
            },
        )
        .await?;
        self.settle_if(&reply).await;
        let mut done = vec![true; count];
        for number in reply.iter().skip(1) {
            let at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            match at.and_then(|at| done.get_mut(at)) {
                Some(done) => *done = false,
                None => {
                    let message = format!("answer {number:?} for {count} jobs");
                    return Err(store::Error::Decode { message });
                }
            }
        }
        Ok(done)
    }
}
