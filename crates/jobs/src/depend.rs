//! Jobs that wait for other jobs, and jobs that are dispatched once.
//!
//! Invariants: under one idempotency key there is one job until its time is over; a job that
//! depends on others starts after the last of them has ended, and never waits for nothing: who
//! ended is kept in a list until everyone that waits for it has been told.

use std::collections::HashMap;

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use crate::{
    DispatchReceipt, Error, Job, JobError, JobId, JobResult, Jobs, NewJob, OnParentFailure, Status,
    config::seconds,
    dispatch::QueueEnd,
    fail::failed_result,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Most children resolved in one call.
const BATCH: usize = 100;

/// Most ended parents handled in one round.
const PARENTS: isize = 100;

impl Jobs {
    /// Stores a job with an idempotency key or with dependencies.
    pub(crate) async fn dispatch_once(&self, new: NewJob) -> Result<DispatchReceipt, Error> {
        let mut gone = None;
        loop {
            let (word, other) = self.try_once(&new, gone.as_ref()).await?;
            if !matches!(word.as_str(), "duplicate" | "reused") {
                return outcome_of_once(&word, other, &new);
            }
            // The key belongs to its job, and is free again when that was removed.
            let known: bool = self.store().clone().exists(self.keys().data(other.as_str())).await?;
            if known || gone.as_ref() == Some(&other) {
                return outcome_of_once(&word, other, &new);
            }
            gone = Some(other);
        }
    }

    /// Asks the store once. Gives its word, and the job it is about.
    async fn try_once(&self, new: &NewJob, gone: Option<&JobId>) -> Result<(String, JobId), Error> {
        let keys = self.keys();
        let id = new.id.clone().unwrap_or_else(JobId::random);
        if new.job.depends_on.contains(&id) {
            return Err(Error::invalid(format!("job {id} depends on itself")));
        }
        let ready = self.ready(&new.job, id.clone());
        self.watch(ready.timed.then_some(id.as_str())).await?;
        let (place, due) = match ready.when {
            QueueEnd::Front => ("front", 0),
            QueueEnd::Back => ("back", 0),
            QueueEnd::Later(at) => ("later", at.0),
        };
        let parents = &new.job.depends_on;
        let once = new.once.as_ref();
        let (mut all_keys, mut rest) = Lanes::one(keys, &ready.place).into_parts();
        for parent in parents {
            all_keys.extend([keys.status(parent.as_str()), keys.children(parent.as_str())]);
            rest.push(parent.as_str().into());
        }
        let reply: Vec<String> = scripts::dispatch_unique::run(
            self.store(),
            scripts::dispatch_unique::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                expiring: keys.expiring(),
                parents: keys.parents(),
                events: keys.events(),
                once: keys.once(new.job.job_type.as_str(), once.map_or("", |once| &once.key)),
                pending: keys.pending(id.as_str()),
                data: keys.data(id.as_str()),
                status: keys.status(id.as_str()),
                keys: all_keys,
            },
            scripts::dispatch_unique::Args {
                now_ms: self.now(),
                wake: keys.wake(),
                events_max: self.config().events_max,
                once_until_ms: once.map(|once| self.now() + once.keep),
                once_ttl_s: once.map_or(1, |once| seconds(once.keep).max(1)),
                id: id.as_str(),
                place,
                due_ms: due,
                expires_ms: ready.expires_at,
                body: &ready.text,
                policy: match new.job.on_parent_failure {
                    OnParentFailure::Fail => "fail",
                    OnParentFailure::Run => "run",
                },
                digest: digest(new),
                gone: gone.map_or("", JobId::as_str),
                rest,
            },
        )
        .await?;
        let mut words = reply.into_iter();
        let word = words.next().unwrap_or_default();
        if word == "new" {
            self.inner.meter.of(new.job.job_type.as_str()).dispatched.increment(1);
        }
        Ok((word, words.next().map_or(id, JobId::stored)))
    }

    /// Refuses a schedule whose idempotency key stands for another request. Storing a schedule twice
    /// does no harm, so it is enough to look before, and to keep the key behind it.
    pub(crate) async fn check_once(&self, new: &NewJob) -> Result<(), Error> {
        let Some(once) = &new.once else { return Ok(()) };
        let keys = self.keys();
        let mut store = self.store().clone();
        let found: Option<String> =
            store.get(keys.once(new.job.job_type.as_str(), &once.key)).await?;
        let Some((until, id, kept)) = found.as_deref().and_then(|found| {
            let (until, rest) = found.split_once(' ')?;
            let (id, kept) = rest.rsplit_once(' ')?;
            Some((until.parse().ok()?, id, kept))
        }) else {
            return Ok(());
        };
        if Millis(until) <= self.now() || kept == digest(new) {
            return Ok(());
        }
        // The key belongs to its job, and is free again when that was removed. What is left of a
        // schedule that was stopped does not count.
        let id = JobId::stored(id);
        let scheduled: Option<f64> = store.zscore(keys.cron(), id.as_str()).await?;
        match self.get(&id).await? {
            Some(job) if scheduled.is_some() || !job.is_cron() => Err(Error::KeyReused(id)),
            _ => Ok(()),
        }
    }

    /// Keeps the idempotency key of a schedule that is stored.
    pub(crate) async fn keep_once(&self, new: &NewJob, id: &JobId) -> Result<(), Error> {
        let Some(once) = &new.once else { return Ok(()) };
        let key = self.keys().once(new.job.job_type.as_str(), &once.key);
        let text = format!("{} {id} {}", self.now() + once.keep, digest(new));
        let () = self.store().clone().set_ex(key, text, seconds(once.keep).max(1)).await?;
        Ok(())
    }

    /// Tells those that wait, if the reply of a script says that there may be some. What goes wrong
    /// here is repaired by maintenance.
    pub(crate) async fn settle_if(&self, reply: &[String]) {
        if reply.first().is_some_and(|word| word == "settled") {
            self.settle().await;
        }
    }

    /// Tells jobs that wait for ended ones; those it misses are left to maintenance.
    pub(crate) async fn settle(&self) {
        if let Err(error) = Box::pin(self.resolve()).await {
            tracing::warn!(%error, "dependent jobs are updated later");
        }
    }

    /// Tells jobs that wait for ended ones. Returns how many parents were dealt with.
    pub(crate) async fn resolve(&self) -> Result<usize, Error> {
        let mut store = self.store().clone();
        let keys = self.keys();
        let mut resolved = 0;
        // Each round may end children that others wait for in turn.
        for _ in 0..PARENTS {
            let parents: Vec<String> = store.lrange(keys.settled(), 0, PARENTS - 1).await?;
            if parents.is_empty() {
                break;
            }
            for parent in parents {
                self.resolve_parent(&parent).await?;
                resolved += 1;
            }
        }
        Ok(resolved)
    }

    async fn resolve_parent(&self, parent: &str) -> Result<(), Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let status: Option<String> = store.get(keys.status(parent)).await?;
        let failed = match status.as_deref().and_then(Status::parse) {
            Some(Status::Dead | Status::Failed) => true,
            Some(Status::Completed) | None => false,
            // It runs again: its children wait on.
            Some(_) => {
                let () = store.lrem(keys.settled(), 0, parent).await?;
                return Ok(());
            }
        };
        loop {
            let children: Vec<String> = redis::cmd("SRANDMEMBER")
                .arg(keys.children(parent))
                .arg(BATCH)
                .query_async(&mut store)
                .await?;
            let data: Vec<Option<Vec<u8>>> = match children.is_empty() {
                true => Vec::new(),
                false => {
                    let data: Vec<Key> = children.iter().map(|id| keys.data(id)).collect();
                    redis::cmd("MGET").arg(data).query_async(&mut store).await?
                }
            };
            let told = children.into_iter().zip(data);
            if self.tell(parent, failed, told).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Tells children about one parent. Returns how many are left.
    async fn tell(
        &self,
        parent: &str,
        failed: bool,
        children: impl IntoIterator<Item = (String, Option<Vec<u8>>)>,
    ) -> Result<usize, Error> {
        let keys = self.keys();
        let now = self.now();
        let mut lanes = Lanes::default();
        let (mut job_keys, mut job_args) = (Vec::new(), Vec::new());
        for (id, data) in children {
            job_keys.extend([keys.pending(&id), keys.status(&id), keys.result(&id)]);
            let job = data.and_then(|data| Job::parse(JobId::stored(id.as_str()), &data).ok());
            let (verdict, lane, due, result) = match &job {
                None => ("gone", 0, 0, String::new()),
                Some(job) if failed && job.on_parent_failure == OnParentFailure::Fail => {
                    ("fail", 0, 0, parent_failed(parent, now))
                }
                Some(job) => match self.ready(job, job.id.clone()).when {
                    QueueEnd::Later(at) => ("later", 0, at.0, String::new()),
                    QueueEnd::Front => {
                        ("front", lanes.number(keys, &LaneRef::of(job)), 0, String::new())
                    }
                    QueueEnd::Back => {
                        ("back", lanes.number(keys, &LaneRef::of(job)), 0, String::new())
                    }
                },
            };
            job_args.extend([
                Arg::String(id),
                Arg::Str(verdict),
                lane.into(),
                Arg::Number(due),
                Arg::String(result),
            ]);
        }
        let count = lanes.count();
        let (mut all_keys, mut rest) = lanes.into_parts();
        all_keys.append(&mut job_keys);
        rest.append(&mut job_args);
        let (_, left): (String, usize) = scripts::resolve::run(
            self.store(),
            scripts::resolve::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                delayed: keys.delayed(),
                parents: keys.parents(),
                settled: keys.settled(),
                finished: keys.finished(),
                children: keys.children(parent),
                events: keys.events(),
                orphans: keys.orphans(parent),
                keys: all_keys,
            },
            scripts::resolve::Args {
                now_ms: now,
                wake: keys.wake(),
                done: keys.done(),
                events_max: self.config().events_max,
                result_ttl_s: seconds(self.config().result_ttl),
                parent,
                lanes: count,
                rest,
            },
        )
        .await?;
        Ok(left)
    }

    /// The results of the jobs a job depends on, of those that have one.
    pub async fn parent_results(&self, job: &Job) -> Result<HashMap<JobId, JobResult>, Error> {
        let mut results = HashMap::new();
        for parent in &job.depends_on {
            if let Some(result) = self.result(parent).await? {
                results.insert(parent.clone(), result);
            }
        }
        Ok(results)
    }
}

/// Digests a request: everything but random values and clock readings.
fn digest(new: &NewJob) -> String {
    let mut job = new.job.clone();
    job.id = new.id.clone().unwrap_or_else(|| JobId::stored(""));
    job.created_at = Millis(0);
    sha1_smol::Sha1::from(job.to_text(crate::JobFormat::Full)).digest().to_string()
}

fn outcome_of_once(word: &str, id: JobId, new: &NewJob) -> Result<DispatchReceipt, Error> {
    match word {
        "new" => Ok(DispatchReceipt { id, new: true }),
        "same" => Ok(DispatchReceipt { id, new: new.id.is_none() }),
        "taken" | "duplicate" => Ok(DispatchReceipt { id, new: false }),
        "reused" => Err(Error::KeyReused(id)),
        "missing" => Err(Error::NoParent(id)),
        _ => Err(Error::Conflict { id, status: "ended without success".to_owned() }),
    }
}

/// The name of the error of a job whose parent did not succeed.
pub(crate) const PARENT_FAILED: &str = "ParentFailed";

fn parent_failed(parent: &str, now: Millis) -> String {
    let error = JobError::new(PARENT_FAILED, format!("job {parent} did not succeed"));
    failed_result(error, now, 0)
}
