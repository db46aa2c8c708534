//! Jobs that a v1 producer put in line, read and given their lanes.
//!
//! Scripts only notice that an id is new; what it needs is in its JSON, which is read here, so that
//! no script decodes what a stranger wrote. Invariant: an id leaves the unindexed ids once, and what cannot
//! be understood goes to the dead letters with its reason instead of stopping anybody.

use store::{
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use crate::{
    Error, Job, JobError, JobId, Jobs,
    config::seconds,
    fail::{MALFORMED, failed_result},
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most unindexed ids read at once.
const BATCH: isize = 200;

impl Jobs {
    /// Reads unindexed ids and gives them their lanes. Returns how many were dealt with.
    pub(crate) async fn ingest(&self) -> Result<usize, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let raw: Vec<Vec<u8>> = store.lrange(keys.unindexed(), 0, BATCH - 1).await?;
        if raw.is_empty() {
            return Ok(0);
        }
        let mut ids = Vec::with_capacity(raw.len());
        for id in raw {
            match String::from_utf8(id) {
                Ok(id) => ids.push(id),
                // Not a name any of our keys can hold; it stays in line for whoever put it there.
                Err(error) => {
                    let () = store.lrem(keys.unindexed(), 1, error.as_bytes()).await?;
                }
            }
        }
        if ids.is_empty() {
            return Ok(0);
        }
        let data: Vec<Option<Vec<u8>>> = redis::cmd("MGET")
            .arg(ids.iter().map(|id| keys.data(id)).collect::<Vec<_>>())
            .query_async(&mut store)
            .await?;
        self.place_strays(ids.into_iter().zip(data)).await
    }

    /// Gives waiting ids their lanes by their data.
    pub(crate) async fn place_strays(
        &self,
        strays: impl IntoIterator<Item = (String, Option<Vec<u8>>)>,
    ) -> Result<usize, Error> {
        let keys = self.keys();
        let mut lanes = Lanes::default();
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        let mut timed = Vec::new();
        for (id, data) in strays {
            job_keys.extend([keys.status(&id), keys.result(&id)]);
            let job = data.map(|data| Job::parse(JobId::stored(id.as_str()), &data));
            let (case, lane, result) = match &job {
                // What cannot be named in a call could be claimed and never be completed.
                _ if JobId::foreign(id.as_str()).is_err() => {
                    tracing::warn!(job = ?id, "job with an unusable id put away");
                    let message = "its id is too long or holds control characters";
                    let error = JobError::new(MALFORMED, message);
                    ("bad", 0, Arg::String(failed_result(error, self.now(), 0)))
                }
                None => ("limbo", 0, Arg::Str("")),
                Some(Ok(job)) => ("lane", lanes.number(keys, &LaneRef::of(job)), Arg::Str("")),
                Some(Err(error)) => {
                    tracing::warn!(job = %id, %error, "malformed job put away");
                    let error = JobError::new(MALFORMED, error.to_string());
                    ("bad", 0, Arg::String(failed_result(error, self.now(), 0)))
                }
            };
            if matches!(&job, Some(Ok(job)) if job.timeout.is_some()) {
                timed.push(id.clone());
            }
            job_args.extend([Arg::String(id), Arg::Str(case), lane.into(), result]);
        }
        self.watch(timed.iter().map(String::as_str)).await?;
        let count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let (_, done): (String, usize) = scripts::ingest::run(
            self.store(),
            scripts::ingest::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                limbo: keys.limbo(),
                deadletter: keys.deadletter(),
                events: keys.events(),
                keys: all_keys,
            },
            scripts::ingest::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                events_max: self.config().events_max,
                limbo_until_ms: self.now() + self.config().limbo,
                result_ttl_s: seconds(self.config().result_ttl),
                lanes: count,
                rest,
            },
        )
        .await?;
        Ok(done)
    }
}
