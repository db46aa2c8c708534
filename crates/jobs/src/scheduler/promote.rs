//! Jobs whose delay is over.

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use super::Scheduler;
use crate::{
    Error, Job, JobError, JobId,
    config::seconds,
    fail::{MALFORMED, failed_result},
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most jobs promoted in one call, and calls in one round.
const BATCH: isize = 200;
const CALLS: usize = 50;

impl Scheduler {
    /// Puts due waiting jobs. Returns how many, and whether there are more.
    pub(super) async fn promote(&self) -> Result<(usize, bool), Error> {
        let mut promoted = 0;
        for _ in 0..CALLS {
            let now = self.jobs.now();
            let mut store = self.jobs.store().clone();
            let ids: Vec<String> = store
                .zrangebyscore_limit(self.jobs.keys().delayed(), "-inf", now.0, 0, BATCH)
                .await?;
            if ids.is_empty() {
                return Ok((promoted, false));
            }
            promoted += self.promote_batch(ids, now).await?;
        }
        Ok((promoted, true))
    }

    async fn promote_batch(&self, ids: Vec<String>, now: Millis) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let data: Vec<Key> = ids.iter().map(|id| keys.data(id)).collect();
        let data: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(data).query_async(&mut store).await?;
        let mut lanes = Lanes::default();
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        for (id, data) in ids.into_iter().zip(data) {
            job_keys.extend([keys.status(&id), keys.result(&id)]);
            let job = data.map(|data| Job::parse(JobId::stored(id.as_str()), &data));
            let (case, lane, result) = match &job {
                None => ("gone", 0, Arg::Str("")),
                Some(Ok(job)) => ("lane", lanes.number(keys, &LaneRef::of(job)), Arg::Str("")),
                Some(Err(error)) => {
                    tracing::warn!(job = %id, %error, "malformed job put away");
                    let error = JobError::new(MALFORMED, error.to_string());
                    ("bad", 0, Arg::String(failed_result(error, now, 0)))
                }
            };
            job_args.extend([Arg::String(id), Arg::Str(case), lane.into(), result]);
        }
        let count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let (_, promoted): (String, usize) = scripts::promote::run(
            self.jobs.store(),
            scripts::promote::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                deadletter: keys.deadletter(),
                events: keys.events(),
                keys: all_keys,
            },
            scripts::promote::Args {
                now_ms: now,
                wake: keys.wake(),
                events_max: self.jobs.config().events_max,
                result_ttl_s: seconds(self.jobs.config().result_ttl),
                lanes: count,
                rest,
            },
        )
        .await?;
        Ok(promoted)
    }

    /// Returns the time at which the next job or schedule comes due.
    pub(super) async fn next_due(&self) -> Result<Option<Millis>, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        type Scored = Vec<(String, i64)>;
        let (delayed, cron): (Scored, Scored) = redis::pipe()
            .zrange_withscores(keys.delayed(), 0, 0)
            .zrange_withscores(keys.cron(), 0, 0)
            .query_async(&mut store)
            .await?;
        Ok(delayed.into_iter().chain(cron).map(|(_, at)| Millis(at)).min())
    }
}
