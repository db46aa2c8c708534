//! Completing: the result of a job that succeeded.
//!
//! Invariant: only the lease that holds a job completes it. Calls at the same time share a round
//! trip, and repeating one does no harm.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;
use store::{Key, batcher::Batchable, script::Arg};

use crate::{Error, JobId, JobLease, JobResult, Jobs, config::seconds, meter::TypeMeter, scripts};

/// Largest result a job may have: 1 MiB.
pub const RESULT_MAX: usize = 1 << 20;

/// A job that succeeded, ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    pub(crate) id: JobId,
    pub(crate) claim: Arc<str>,
    pub(crate) result: String,
    pub(crate) spent: u64,
    /// It is a schedule, whose job stays for the next occurrence.
    pub(crate) keep: bool,
}

impl Success {
    /// The type, which is the last word of the claim.
    fn job_type(&self) -> &str {
        self.claim.splitn(3, ' ').nth(2).unwrap_or_default()
    }
}

impl Batchable for Success {
    type Context = Jobs;
    type Answer = bool;
    type Error = store::Error;

    fn size(&self) -> usize {
        self.result.len() + 128
    }

    async fn send_batch(jobs: &Jobs, batch: &[Self]) -> Result<Vec<bool>, store::Error> {
        jobs.store_successes(batch).await
    }
}

/// Successes as scripts take them: those of one claim together, and equal results once.
#[derive(Debug, Default)]
pub(crate) struct EncodedSuccesses<'a> {
    pub(crate) args: Vec<Arg<'a>>,
    /// Milliseconds that all of them took. The store's counters have 63 bits.
    pub(crate) spent: u64,
    job_types: Vec<&'a str>,
    /// Position in the batch of each job in the arguments.
    order: Vec<usize>,
}

impl<'a> EncodedSuccesses<'a> {
    pub(crate) fn new(batch: &[&'a Success]) -> Self {
        let mut groups: Vec<(&'a Success, Vec<usize>)> = Vec::new();
        for (at, success) in batch.iter().enumerate() {
            let same = |(first, _): &&mut (&Success, Vec<usize>)| {
                first.claim == success.claim && first.keep == success.keep
            };
            match groups.iter_mut().rev().find(same) {
                Some((_, members)) => members.push(at),
                None => groups.push((success, vec![at])),
            }
        }
        let mut encoded = Self { order: Vec::with_capacity(batch.len()), ..Self::default() };
        for (first, members) in groups {
            let members: Vec<(usize, &'a Success)> = members
                .into_iter()
                .filter_map(|at| batch.get(at).map(|success| (at, *success)))
                .collect();
            let alike = members.iter().all(|(_, success)| success.result == first.result);
            let results = if alike { 1 } else { members.len() };
            encoded.job_types.push(first.job_type());
            encoded.args.extend([
                Arg::Str(&first.claim),
                Arg::Str(first.job_type()),
                Arg::Str(if first.keep { "1" } else { "" }),
                members.len().into(),
                results.into(),
            ]);
            encoded.args.extend(members.iter().map(|(_, success)| Arg::Str(success.id.as_str())));
            let results =
                members.iter().map(|(_, success)| Arg::Str(&success.result)).take(results);
            encoded.args.extend(results);
            for (at, success) in members {
                encoded.order.push(at);
                encoded.spent = encoded.spent.saturating_add(success.spent).min(1 << 40);
            }
        }
        encoded
    }

    /// Returns what became of each success, from the numbers the script reports: those of lost jobs,
    /// and, negative, those of successes that were stored before.
    pub(crate) fn outcomes(
        &self,
        exceptions: impl IntoIterator<Item = i64>,
    ) -> Result<Vec<SuccessOutcome>, store::Error> {
        let mut outcomes = vec![SuccessOutcome::Stored; self.order.len()];
        for number in exceptions {
            let at = usize::try_from(number.unsigned_abs()).ok().and_then(|at| at.checked_sub(1));
            let at = at.and_then(|at| self.order.get(at));
            let Some(outcome) = at.and_then(|at| outcomes.get_mut(*at)) else {
                let message = format!("answer {number} for {} jobs", self.order.len());
                return Err(store::Error::Decode { message });
            };
            *outcome = if number < 0 { SuccessOutcome::Repeated } else { SuccessOutcome::Lost };
        }
        Ok(outcomes)
    }
}

/// Outcome of a success that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuccessOutcome {
    /// The job is completed by it.
    Stored,
    /// The job was completed by it before: the caller repeats itself, as after a lost reply.
    Repeated,
    /// The job is another worker's by now, or was late.
    Lost,
}

impl SuccessOutcome {
    /// Returns true if the job is completed by this success, now or before.
    pub(crate) fn is_done(self) -> bool {
        self != Self::Lost
    }
}

impl Jobs {
    /// Ends a job with success. `took` is how long the handler ran.
    ///
    /// Fails with [`Error::LeaseLost`] when the job is not this worker's any more, and with
    /// [`Error::Overdue`] when the attempt has run longer than it may.
    pub async fn complete(
        &self,
        lease: &JobLease,
        data: Option<Box<RawValue>>,
        took: Duration,
    ) -> Result<(), Error> {
        let success = self.success(lease, data, took)?;
        match self.inner.completions.call(self, success).await? {
            true => Ok(()),
            false => Err(self.why_lost(lease.id()).await),
        }
    }

    /// Works out what is stored of a success.
    pub(crate) fn success(
        &self,
        lease: &JobLease,
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
            id: lease.id().clone(),
            claim: Arc::clone(&lease.claim),
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
        let batch: Vec<&Success> = batch.into_iter().collect();
        let keys = self.keys();
        let encoded = EncodedSuccesses::new(&batch);
        let counters = encoded.job_types.iter().map(|job_type| keys.running(job_type));
        let job_keys = batch.iter().flat_map(|success| {
            let id = success.id.as_str();
            [keys.lock(id), keys.status(id), keys.result(id), keys.attempt(id)]
        });
        let reply: Vec<String> = scripts::complete::run(
            self.store(),
            scripts::complete::Keys {
                active: keys.active(),
                claims: keys.claims(),
                claim_leases: keys.claim_leases(),
                claim_counts: keys.claim_counts(),
                events: keys.events(),
                parked: keys.parked(),
                leases: keys.leases(),
                finished: keys.finished(),
                parents: keys.parents(),
                settled: keys.settled(),
                processed: keys.processed(),
                spent: keys.spent(),
                cancelled: keys.cancelled(),
                deadlines: keys.deadlines(),
                keys: counters.chain(job_keys).collect::<Vec<Key>>(),
            },
            scripts::complete::Args {
                now_ms: self.now(),
                prefix: keys.prefix(),
                events_max: self.config().events_max,
                result_ttl_s: seconds(self.config().result_ttl),
                done: keys.done(),
                wake: keys.wake(),
                spent_ms: encoded.spent,
                rest: &encoded.args,
            },
        )
        .await?;
        self.settle_if(&reply).await;
        // What is no number names no job, and that is told.
        let exceptions = reply.iter().skip(1).map(|number| number.parse().unwrap_or(0));
        let outcomes = encoded.outcomes(exceptions)?;
        self.count_successes(&batch, &outcomes);
        Ok(outcomes.into_iter().map(SuccessOutcome::is_done).collect())
    }

    /// Counts those successes that were stored, for their types and for their workers.
    pub(crate) fn count_successes(&self, batch: &[&Success], outcomes: &[SuccessOutcome]) {
        let mut latest: Option<(&str, Arc<TypeMeter>)> = None;
        for (success, outcome) in batch.iter().zip(outcomes) {
            if *outcome != SuccessOutcome::Stored {
                continue;
            }
            let job_type = success.job_type();
            let meter = match latest.take() {
                Some((known, meter)) if known == job_type => meter,
                _ => self.inner.meter.of(job_type),
            };
            meter.ended("completed", Some(Duration::from_millis(success.spent)));
            if let Some(worker_id) = success.claim.split(' ').nth(1) {
                self.tally(worker_id, 1, 0);
            }
            latest = Some((job_type, meter));
        }
    }
}
