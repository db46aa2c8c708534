//! Jobs whose worker went away.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
};

use super::JobsMaintenance;
use crate::{
    Error, FailedAttempt, FailureAction, Job, JobEndReason, JobError, JobId, JobLease,
    config::seconds,
    fail::{AckOutcome, AttemptFailure, WORKER_LOST, failed_result, timed_out},
    json::Fields,
    lanes::{LaneRef, Lanes},
    scripts,
};

/// Number of leases read together, and batches in one round: a crowd of workers that
/// goes down at once must not wait for many rounds.
const BATCH: usize = 500;
const BATCHES: usize = 40;

/// A walk through all that run, for the jobs of terms that have ended.
#[derive(Debug, Default)]
pub(super) struct TermScan {
    tokens: HashSet<String>,
    /// The terms of which there were jobs.
    found: HashSet<String>,
    cursor: u64,
}

/// Time a v1 job must look lost before it is reclaimed.
const SURE: Duration = Duration::from_secs(5);

/// Most suspects that are remembered.
const SUSPECTS: usize = 10_000;

impl JobsMaintenance {
    /// Takes back jobs whose lease has run out: each counts as a failed attempt, and one that has
    /// taken down too many workers is put away.
    pub(super) async fn reclaim(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let mut reclaimed = 0;
        for _ in 0..BATCHES {
            let now = self.jobs.now();
            let most = BATCH.cast_signed();
            let ids: Vec<String> =
                store.zrangebyscore_limit(keys.leases(), "-inf", now.0, 0, most).await?;
            reclaimed += self.reclaim_these(&ids, now).await?;
            if ids.len() < BATCH {
                break;
            }
        }
        Ok(reclaimed + self.reclaim_terms().await?)
    }

    /// Ends attempts that have run longer than their job's timeout allows.
    pub(super) async fn time_out(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let mut ended = 0;
        for _ in 0..BATCHES {
            let now = self.jobs.now();
            let most = BATCH.cast_signed();
            let late: Vec<String> =
                store.zrangebyscore_limit(keys.deadlines(), "-inf", now.0, 0, most).await?;
            let count = late.len();
            for chunk in late.chunks(100) {
                let mut pipe = redis::pipe();
                for id in chunk {
                    pipe.hget(keys.claims(), id).get(keys.data(id));
                }
                let parts: Vec<Option<Vec<u8>>> = pipe.query_async(&mut store).await?;
                let mut batch = Vec::new();
                for (id, part) in chunk.iter().zip(parts.chunks_exact(2)) {
                    let [claim, data] = part else { continue };
                    match claim.clone().and_then(|claim| String::from_utf8(claim).ok()) {
                        Some(claim) => {
                            let data = data.clone().unwrap_or_default();
                            batch.push(self.overdue(id, claim, data, now));
                        }
                        // Its end was noted without its deadline.
                        None => {
                            let () = store.zrem(keys.deadlines(), id).await?;
                        }
                    }
                }
                let done = self.jobs.end(batch, false).await?;
                ended += done.into_iter().filter(|done| *done != AckOutcome::Lost).count();
            }
            if count < BATCH {
                break;
            }
        }
        Ok(ended)
    }

    /// Builds the failure of a job whose attempt ran too long.
    fn overdue(&self, id: &str, claim: String, data: Vec<u8>, now: Millis) -> AttemptFailure {
        let id = JobId::stored(id);
        let job = match Job::parse(id.clone(), &data) {
            Ok(job) => job,
            Err(error) => return AttemptFailure::malformed(id, claim, &error, now),
        };
        let token = claim.split(' ').next().and_then(|token| token.parse().ok()).unwrap_or(0);
        let text = String::from_utf8(data).unwrap_or_default();
        let took = job.timeout.unwrap_or_default();
        let lease = JobLease::held(job, text, claim.into(), token, now);
        let error = timed_out(took);
        tracing::info!(job = %lease.id(), worker = lease.worker_id(), "attempt ended: it ran too long");
        let verdict = FailureAction::of(&lease.job, &error, fastrand::f64());
        self.jobs.failure(&lease, verdict, error, took)
    }

    /// Takes back jobs that were never renewed and whose claim's term has ended. Where they are
    /// among all that run is found by a walk; where it is long, it goes on in the next round.
    async fn reclaim_terms(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let begun = self.memory.lock().terms.take();
        let mut walk = match begun {
            Some(walk) => walk,
            None => {
                let most = BATCH.cast_signed();
                let tokens: HashSet<String> =
                    store.zrangebyscore_limit(keys.claim_leases(), "-inf", now.0, 0, most).await?;
                if tokens.is_empty() {
                    return Ok(0);
                }
                TermScan { tokens, ..TermScan::default() }
            }
        };
        let token = |claim: &str| claim.split(' ').next().unwrap_or_default().to_owned();
        let mut reclaimed = 0;
        for _ in 0..BATCHES {
            let (next, mut claims) = self.claims(walk.cursor).await?;
            claims.retain(|(_, claim)| walk.tokens.contains(&token(claim)));
            walk.found.extend(claims.iter().map(|(_, claim)| token(claim)));
            let ids: Vec<String> = claims.into_iter().map(|(id, _)| id).collect();
            reclaimed += self.reclaim_these(&ids, now).await?;
            walk.cursor = next;
            if next == 0 {
                // A term without jobs was left behind by a program that does not count.
                for token in walk.tokens.difference(&walk.found) {
                    let mut pipe = redis::pipe();
                    pipe.atomic().zrem(keys.claim_leases(), token).hdel(keys.claim_counts(), token);
                    let () = pipe.query_async(&mut store).await?;
                }
                return Ok(reclaimed);
            }
        }
        self.memory.lock().terms = Some(walk);
        Ok(reclaimed)
    }

    /// Some of the jobs that run, with their claims, and where to go on.
    async fn claims(&self, cursor: u64) -> Result<(u64, Vec<(String, String)>), Error> {
        let found = redis::cmd("HSCAN")
            .arg(self.jobs.keys().claims())
            .arg(cursor)
            .arg("COUNT")
            .arg(500)
            .query_async(&mut self.jobs.store().clone())
            .await?;
        Ok(found)
    }

    async fn reclaim_these(&self, ids: &[String], now: Millis) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let mut reclaimed = 0;
        for ids in ids.chunks(100) {
            let mut pipe = redis::pipe();
            for id in ids {
                pipe.hget(keys.claims(), id).get(keys.data(id)).lrange(keys.history(id), 0, -1);
            }
            let parts: Vec<redis::Value> = pipe.query_async(&mut store).await?;
            let mut batch = Vec::new();
            for (id, part) in ids.iter().zip(parts.chunks_exact(3)) {
                let (claim, data, history): (Option<String>, Option<Vec<u8>>, Vec<Vec<u8>>) =
                    redis::from_redis_value(redis::Value::Array(part.to_vec()))
                        .map_err(store::Error::from)?;
                match claim {
                    Some(claim) => batch.push(self.lost(id, &claim, data, &history, now)),
                    // Its end was noted without its lease; there is nothing to take back.
                    None => {
                        let () = store.zrem(keys.leases(), id).await?;
                    }
                }
            }
            let done = self.jobs.end(batch, true).await?;
            reclaimed += done.into_iter().filter(|done| *done != AckOutcome::Lost).count();
        }
        Ok(reclaimed)
    }

    /// Builds the failure of a job whose lease has expired.
    fn lost(
        &self,
        id: &str,
        claim: &str,
        data: Option<Vec<u8>>,
        history: &[Vec<u8>],
        now: Millis,
    ) -> AttemptFailure {
        let id = JobId::stored(id);
        let worker_id = claim.split(' ').nth(1).unwrap_or_default().to_owned();
        let token = claim.split(' ').next().and_then(|token| token.parse().ok()).unwrap_or(0);
        let data = data.unwrap_or_default();
        let job = match Job::parse(id.clone(), &data) {
            Ok(job) => job,
            Err(error) => return AttemptFailure::malformed(id, claim.to_owned(), &error, now),
        };
        let text = String::from_utf8(data).unwrap_or_default();
        let lease = JobLease::held(job, text, claim.into(), token, now);
        let lost = |entry: &Vec<u8>| {
            let entry = serde_json::from_slice::<FailedAttempt>(entry).ok();
            entry.is_some_and(|entry| entry.error.name.as_deref() == Some(WORKER_LOST))
        };
        let times = history.iter().filter(|entry| lost(entry)).count() + 1;
        let message = format!("worker {worker_id} went away while it ran ({times} times so far)");
        let error = JobError::new(WORKER_LOST, message);
        let poisoned = times >= usize::try_from(self.jobs.config().poison_after).unwrap_or(1);
        let verdict = match poisoned || lease.job.attempts >= lease.job.retry.attempts {
            true => FailureAction::Dead,
            false => FailureAction::Retry(Duration::ZERO),
        };
        if poisoned {
            tracing::warn!(job = %lease.id(), times, "job put away: it takes its workers down");
        }
        let failure = self.jobs.failure(&lease, verdict, error, Duration::ZERO);
        if poisoned { failure.because(JobEndReason::Poison) } else { failure }
    }

    /// Takes back jobs of v1 workers that went away: in `jobs:active`, not ours, without a lock.
    pub(super) async fn recover(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let now = self.jobs.now();
        let cursor = self.memory.lock().active_cursor;
        let (next, ids): (u64, Vec<String>) = redis::cmd("SSCAN")
            .arg(keys.active())
            .arg(cursor)
            .arg("COUNT")
            .arg(200)
            .query_async(&mut store)
            .await?;
        self.memory.lock().active_cursor = next;
        if ids.is_empty() {
            return Ok(0);
        }
        let mut pipe = redis::pipe();
        for id in &ids {
            pipe.hexists(keys.claims(), id).exists(keys.lock(id));
        }
        let held: Vec<bool> = pipe.query_async(&mut store).await?;
        let mut sure = Vec::new();
        {
            let mut memory = self.memory.lock();
            for (id, held) in ids.iter().zip(held.chunks_exact(2)) {
                if held.iter().any(|held| *held) {
                    memory.orphans.remove(id);
                } else if memory.orphans.len() < SUSPECTS {
                    let since = *memory.orphans.entry(id.clone()).or_insert(now);
                    if now.since(since) >= SURE {
                        sure.push(id.clone());
                    }
                }
            }
            for id in &sure {
                memory.orphans.remove(id);
            }
        }
        let mut recovered = 0;
        for id in sure {
            recovered += usize::from(self.recover_one(&id).await?);
        }
        Ok(recovered)
    }

    async fn recover_one(&self, id: &str) -> Result<bool, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let data: Option<Vec<u8>> = store.get(keys.data(id)).await?;
        let now = self.jobs.now();
        let job = data.as_deref().and_then(|data| Job::parse(JobId::stored(id), data).ok());
        let Some((job, data)) = job.zip(data) else {
            // Nothing is known of it but its name.
            let () = store.srem(keys.active(), id).await?;
            return Ok(false);
        };
        let text = String::from_utf8(data).unwrap_or_default();
        let body = match Fields::parse(&text) {
            Ok(mut fields) => {
                fields.set("attempts", job.attempts.saturating_add(1).to_string());
                fields.to_text()
            }
            Err(_) => return Ok(false),
        };
        let place = LaneRef::of(&job);
        let (lane_keys, lane) = Lanes::one(keys, &place).into_parts();
        let mode = if job.attempts < job.retry.attempts { "now" } else { "dead" };
        let error = JobError::new(WORKER_LOST, "its worker went away while it ran");
        let reply: Vec<String> = scripts::recover::run(
            self.jobs.store(),
            scripts::recover::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
                active: keys.active(),
                claims: keys.claims(),
                deadletter: keys.deadletter(),
                parked: keys.parked(),
                cancelled: keys.cancelled(),
                finished: keys.finished(),
                events: keys.events(),
                running: keys.running(job.job_type.as_str()),
                lock: keys.lock(id),
                status: keys.status(id),
                data: keys.data(id),
                result: keys.result(id),
                keys: lane_keys,
            },
            scripts::recover::Args {
                now_ms: now,
                wake: keys.wake(),
                events_max: self.jobs.config().events_max,
                result_ttl_s: seconds(self.jobs.config().result_ttl),
                id,
                job_type: job.job_type.as_str(),
                mode,
                body,
                outcome: failed_result(error, now, 0),
                lane,
            },
        )
        .await?;
        Ok(reply.first().is_some_and(|word| word == "recovered"))
    }

    /// Takes workers off the list that have been silent for as long as a lock lasts, and lets the
    /// leases of what they hold run out now.
    pub(super) async fn bury_workers(&self) -> Result<usize, Error> {
        let now = self.jobs.now();
        let workers = self.jobs.workers().await?;
        let mut dead = Vec::new();
        {
            let mut memory = self.memory.lock();
            let mut silent = HashMap::new();
            for worker in workers.iter().filter(|worker| !worker.alive) {
                let name = worker.info.worker_id.clone();
                let since = memory.silent.get(&name).copied().unwrap_or(now);
                // A v1 worker sends its first heartbeat only after a while.
                if now.since(since) >= self.jobs.config().lock_ttl {
                    dead.push(name);
                } else {
                    silent.insert(name, since);
                }
            }
            memory.silent = silent;
        }
        for name in &dead {
            tracing::info!(worker = %name, "dead worker taken off the list");
            self.let_go(name).await?;
            self.jobs.unregister(&crate::WorkerId::stored(name.as_str())).await?;
        }
        Ok(dead.len())
    }

    /// Lets the leases of a worker run out.
    async fn let_go(&self, worker_id: &str) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let mut cursor = 0u64;
        loop {
            let (next, claims) = self.claims(cursor).await?;
            let mut pipe = redis::pipe();
            let mut run_out = |key: Key, member: &str| {
                pipe.cmd("ZADD").arg(key).arg("XX").arg(self.jobs.now()).arg(member);
            };
            for (id, claim) in &claims {
                let mut words = claim.split(' ');
                if let (Some(token), Some(name)) = (words.next(), words.next())
                    && name == worker_id
                {
                    run_out(keys.leases(), id);
                    run_out(keys.claim_leases(), token);
                }
            }
            if !pipe.is_empty() {
                let _: Vec<i64> = pipe.query_async(&mut store).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}
