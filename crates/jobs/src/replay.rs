//! Replaying: a job that has ended runs again, with all its attempts.
//!
//! Invariants: a job that depends on others waits for those of them that have not ended; the jobs
//! that ended because a job failed come back when it is replayed, and wait for it.

use serde_json::value::RawValue;
use store::{
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use crate::{
    Error, Job, JobId, JobList, Jobs, OnParentFailure,
    json::Fields,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most jobs replayed or removed in one call to the store.
const BATCH: usize = 200;

/// Prefix of the state of a job that depends on one that has failed.
const DEPENDS: &str = "one that depends on job ";

/// A job that is to be replayed.
struct Replay {
    job: Job,
    before: String,
    after: String,
}

impl Replay {
    fn of(id: &JobId, before: Vec<u8>, payload: Option<&RawValue>) -> Result<Self, Error> {
        let wrong = |reason: String| Error::Malformed { id: id.clone(), reason };
        let mut job = Job::parse(id.clone(), &before).map_err(|error| wrong(error.to_string()))?;
        let before = String::from_utf8(before).map_err(|error| wrong(error.to_string()))?;
        let mut fields = Fields::parse(&before).map_err(|error| wrong(error.to_string()))?;
        fields.set("attempts", "0");
        // What it was to avoid, and until when it was wanted, belongs to its former life.
        fields.remove("avoid");
        fields.remove("expiresAt");
        job.avoid.clear();
        if let Some(payload) = payload {
            if payload.get().len() > crate::PAYLOAD_MAX {
                return Err(Error::invalid("the payload is too large"));
            }
            fields.set("payload", payload.get());
        }
        let after = fields.to_text();
        Ok(Self { job, before, after })
    }
}

impl Jobs {
    /// Puts a job that is dead, cancelled or completed back in the queue. Its history stays. Jobs that
    /// ended because it failed come back, too, and wait for it.
    ///
    /// Fails with [`Error::Conflict`] when it has not ended, and when it depends on a job that has
    /// failed: that one must be replayed first.
    pub async fn replay(&self, id: &JobId) -> Result<(), Error> {
        self.replay_with(id, None).await
    }

    /// As [`replay`](Jobs::replay), with another payload.
    pub async fn replay_with(
        &self,
        id: &JobId,
        payload: Option<Box<RawValue>>,
    ) -> Result<(), Error> {
        let mut outcomes = self.replay_these(std::slice::from_ref(id), payload.as_deref()).await?;
        let outcome = outcomes.pop().unwrap_or_else(|| Err(Error::NotFound(id.clone())));
        // Also when it was back in the queue already: a call before may have come to less than that.
        match &outcome {
            Err(Error::Conflict { status, .. }) if status.starts_with(DEPENDS) => {}
            Ok(()) | Err(Error::Conflict { .. }) => self.revive(id).await?,
            Err(_) => {}
        }
        outcome
    }

    /// Replays many jobs. Returns for each what [`replay`](Jobs::replay) would.
    pub async fn replay_all(&self, ids: &[JobId]) -> Result<Vec<Result<(), Error>>, Error> {
        let mut outcomes = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let done = self.replay_these(ids, None).await?;
            let orphaned: Vec<bool> = {
                let mut pipe = redis::pipe();
                ids.iter().for_each(|id| _ = pipe.exists(self.keys().orphans(id.as_str())));
                pipe.query_async(&mut self.store().clone()).await?
            };
            for ((id, orphaned), done) in ids.iter().zip(orphaned).zip(&done) {
                if orphaned && done.is_ok() {
                    self.revive(id).await?;
                }
            }
            outcomes.extend(done);
        }
        Ok(outcomes)
    }

    /// Brings back the jobs that ended because a job failed, and those that ended because of them.
    async fn revive(&self, id: &JobId) -> Result<(), Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let mut parents = vec![id.clone()];
        while let Some(parent) = parents.pop() {
            let orphans = keys.orphans(parent.as_str());
            let mut again = true;
            while again {
                again = false;
                let ids: Vec<String> = redis::cmd("SRANDMEMBER")
                    .arg(&orphans)
                    .arg(BATCH)
                    .query_async(&mut store)
                    .await?;
                if ids.is_empty() {
                    break;
                }
                let children: Vec<JobId> = ids.into_iter().map(JobId::stored).collect();
                for (child, outcome) in
                    children.iter().zip(self.replay_these(&children, None).await?)
                {
                    match outcome {
                        Ok(()) => {
                            again = true;
                            parents.push(child.clone());
                        }
                        // It comes back with another one, or with this one when it has failed anew.
                        Err(Error::Conflict { status, .. }) if status.starts_with(DEPENDS) => {}
                        // It has been replayed, or removed.
                        Err(error) => {
                            tracing::debug!(job = %child, %error, "not brought back with its parent");
                            let gone: usize = store.srem(&orphans, child.as_str()).await?;
                            again |= gone > 0;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Replays jobs in one call to the store.
    async fn replay_these(
        &self,
        ids: &[JobId],
        payload: Option<&RawValue>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let data: Vec<Option<Vec<u8>>> = redis::cmd("MGET")
            .arg(ids.iter().map(|id| keys.data(id.as_str())).collect::<Vec<_>>())
            .query_async(&mut store)
            .await?;
        let mut lanes = Lanes::default();
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        let mut outcomes: Vec<Result<(), Error>> = Vec::with_capacity(ids.len());
        let (mut asked, mut timed) = (Vec::new(), Vec::new());
        for (id, data) in ids.iter().zip(data) {
            let replay = data
                .ok_or_else(|| Error::NotFound(id.clone()))
                .and_then(|before| Replay::of(id, before, payload));
            let Replay { job, before, after } = match replay {
                Ok(replay) => replay,
                Err(error) => {
                    outcomes.push(Err(error));
                    continue;
                }
            };
            asked.push(outcomes.len());
            outcomes.push(Ok(()));
            let name = id.as_str();
            timed.extend(job.timeout.map(|_| name));
            job_keys.extend([keys.data(name), keys.status(name), keys.result(name)]);
            job_keys.push(keys.pending(name));
            job_args.extend([
                Arg::String(name.to_owned()),
                lanes.number(keys, &LaneRef::of(&job)).into(),
                Arg::Str(if job.priority.is_high() { "front" } else { "back" }),
                Arg::Str(match job.on_parent_failure {
                    OnParentFailure::Fail => "fail",
                    OnParentFailure::Run => "run",
                }),
                Arg::String(before),
                Arg::String(after),
                job.depends_on.len().into(),
            ]);
            for parent in &job.depends_on {
                let parent = parent.as_str();
                job_keys.extend([keys.status(parent), keys.children(parent), keys.orphans(parent)]);
                job_args.push(Arg::String(parent.to_owned()));
            }
        }
        if asked.is_empty() {
            return Ok(outcomes);
        }
        self.watch(timed).await?;
        let count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let reply: Vec<String> = scripts::replay::run(
            self.store(),
            scripts::replay::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                deadletter: keys.deadletter(),
                events: keys.events(),
                parents: keys.parents(),
                keys: all_keys,
            },
            scripts::replay::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                events_max: self.config().events_max,
                lanes: count,
                rest,
            },
        )
        .await?;
        for (at, word) in asked.into_iter().zip(reply.iter().skip(1)) {
            let (Some(outcome), Some(id)) = (outcomes.get_mut(at), ids.get(at)) else { continue };
            let conflict = |status: String| Err(Error::Conflict { id: id.clone(), status });
            *outcome = match word.split_once(' ') {
                None if word == "replayed" => Ok(()),
                Some(("is", status)) => conflict(status.to_owned()),
                Some(("after", parent)) => {
                    conflict(format!("{DEPENDS}{parent}, which has failed; replay that one"))
                }
                _ => conflict("being changed by somebody else".to_owned()),
            };
        }
        Ok(outcomes)
    }

    /// Puts dead letters back in the queue, newest first, at most `most` of those `choose` takes. Says
    /// which.
    pub async fn replay_dead(
        &self,
        most: usize,
        mut choose: impl FnMut(&Job) -> bool,
    ) -> Result<Vec<JobId>, Error> {
        let mut replayed = Vec::new();
        let mut from = 0;
        while replayed.len() < most {
            let page = self.list(JobList::Dead, from, 200).await?;
            if page.is_empty() {
                break;
            }
            for (id, job) in page {
                let chosen = job.as_ref().is_some_and(&mut choose);
                if chosen && replayed.len() < most {
                    self.replay(&id).await?;
                    replayed.push(id);
                } else {
                    from += 1;
                }
            }
        }
        Ok(replayed)
    }

    /// Forgets a job that has ended: data, result, history and all.
    pub async fn remove(&self, id: &JobId) -> Result<(), Error> {
        let mut outcomes = self.remove_all(std::slice::from_ref(id)).await?;
        outcomes.pop().unwrap_or_else(|| Err(Error::NotFound(id.clone())))
    }

    /// Forgets many jobs. Returns for each what [`remove`](Jobs::remove) would.
    pub async fn remove_all(&self, ids: &[JobId]) -> Result<Vec<Result<(), Error>>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let mut outcomes = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let statuses: Vec<Option<String>> = redis::cmd("MGET")
                .arg(ids.iter().map(|id| keys.status(id.as_str())).collect::<Vec<_>>())
                .query_async(&mut store)
                .await?;
            let reply: Vec<String> = scripts::remove::run(
                self.store(),
                scripts::remove::Keys {
                    finished: keys.finished(),
                    deadletter: keys.deadletter(),
                    cron: keys.cron(),
                    keys: ids.iter().flat_map(|id| keys.of_ended(id.as_str())),
                },
                scripts::remove::Args {
                    from: "anywhere",
                    rest: ids.iter().flat_map(|id| [id.as_str(), id.as_str()]),
                },
            )
            .await?;
            let conflict = |id: &JobId, status: &str| {
                Err(Error::Conflict { id: id.clone(), status: status.to_owned() })
            };
            for ((id, status), word) in ids.iter().zip(statuses).zip(reply.iter().skip(1)) {
                outcomes.push(match (word.as_str(), status.as_deref()) {
                    ("removed", _) => Ok(()),
                    (_, None) => Err(Error::NotFound(id.clone())),
                    (_, Some("dead" | "completed" | "failed")) => conflict(id, "in use"),
                    (_, Some(status)) => conflict(id, status),
                });
            }
        }
        Ok(outcomes)
    }
}
