//! Claiming: the next jobs of a worker, each under a lease.
//!
//! A [`Claimer`] knows one worker's labels, and with them the pools it may take from: see
//! [`lanes`](crate::lanes). Of the registry of pools only what is new is read, once per process, and
//! judged once per worker, so that a claim costs the same whatever waits for others. Invariants: a
//! job is handed to one claimer at a time; whatever a claim takes is in the reply, and a reply that
//! got lost is asked for again by its request.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
    vec,
};

use crate::{
    Error, Job, JobEndReason, JobError, JobId, JobType, Jobs, Labels,
    complete::{EncodedSuccesses, Success, SuccessOutcome},
    config::seconds,
    fail::{AttemptFailure, NextState},
    meter::TypeMeter,
    route::{Pool, PoolId},
    scripts,
};
use serde_json::value::RawValue;
use store::{
    Millis, Script,
    redis::{self, AsyncCommands as _, FromRedisValue, ParsingError, Value},
    script::Arg,
    trace::{self, SpanKind, SpanStart, TraceContext, TraceSpan},
};

/// Most jobs one call may claim.
pub const CLAIM_MAX: usize = 128;

/// Most calls to the store in one claim, when it learns of new routes or unindexed jobs.
const ROUNDS: usize = 4;

/// Most pools one call looks at. A worker is in more only when that many targets list different
/// sets of capabilities, all of which it has, or different workers to avoid; then it goes through
/// them in turns, and priorities are kept among those of one turn.
const WINDOW: usize = 256;

/// Number of pools read at a time.
const PAGE: isize = 5_000;

/// Of how many workers a process remembers the pools.
const ROUTE_CACHES_MAX: usize = 1_024;

/// The pools that are registered, as far as they were read, and who may take from them.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    version: i64,
    /// In the order in which they were registered.
    pools: Vec<Pool>,
    known: HashSet<PoolId>,
    routes_by_labels: HashMap<Labels, Arc<RouteCache>>,
}

impl Registry {
    /// The pools of a worker; judges those that are new.
    fn routes(&mut self, labels: &Labels) -> Arc<RouteCache> {
        let known = self.routes_by_labels.get(labels).cloned().unwrap_or_default();
        if known.version == self.version {
            return known;
        }
        let mut pools = known.pools.clone();
        let fresh = self.pools.iter().skip(known.judged).filter(|pool| pool.matches(labels));
        pools.extend(fresh.map(|pool| pool.id));
        let routes =
            Arc::new(RouteCache { version: self.version, judged: self.pools.len(), pools });
        if self.routes_by_labels.len() >= ROUTE_CACHES_MAX {
            self.routes_by_labels.clear();
        }
        self.routes_by_labels.insert(labels.clone(), Arc::clone(&routes));
        routes
    }
}

/// The pools a worker may take from, beside those that need not be registered: that of jobs that
/// name it and that of jobs that ask for nothing.
#[derive(Debug)]
struct RouteCache {
    version: i64,
    /// Number of registered pools that were matched against the labels.
    judged: usize,
    pools: Vec<PoolId>,
}

impl Default for RouteCache {
    fn default() -> Self {
        Self { version: -1, judged: 0, pools: Vec::new() }
    }
}

impl RouteCache {
    fn windows(&self) -> usize {
        self.pools.len().div_ceil(WINDOW).max(1)
    }
}

/// A job that a worker runs.
#[derive(Clone, Debug)]
pub struct JobLease {
    /// The job.
    pub job: Job,
    /// Grows with every call that claims; later ones of the same job are greater.
    pub token: u64,
    /// Time at which the lease expires, unless renewed.
    pub until: Millis,
    /// The claim as it is stored.
    pub(crate) claim: Arc<str>,
    /// The job as it is stored.
    pub(crate) text: String,
    /// The trace that its attempt is part of.
    trace: Option<TraceContext>,
}

impl JobLease {
    /// Id of the job.
    pub fn id(&self) -> &JobId {
        &self.job.id
    }

    /// Number of the attempt, starting at 1.
    pub fn attempt(&self) -> u32 {
        self.job.attempts.saturating_add(1)
    }

    /// The worker that holds it.
    pub fn worker_id(&self) -> &str {
        self.claim.split(' ').nth(1).unwrap_or_default()
    }

    /// Time of the claim, which its token tells; `None` for a token that is no time.
    pub fn claimed_at(&self) -> Option<Millis> {
        claim_time(self.token)
    }

    /// The trace that its attempt is part of: that of the claim, which is part of the one in which
    /// the job was dispatched. A worker passes it on in what it calls, as `traceparent`.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The job exactly as it is stored.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A lease by the parts that identify it, for a caller that kept them elsewhere. Whether it is
    /// held is for the store to say.
    pub fn from_parts(job: Job, text: String, worker_id: &str, token: u64, until: Millis) -> Self {
        let claim = claim_text(token, worker_id, &job.job_type);
        Self::held(job, text, claim, token, until)
    }

    /// A lease as the store knows it.
    pub(crate) fn held(job: Job, text: String, claim: Arc<str>, token: u64, until: Millis) -> Self {
        let trace = job.trace();
        Self { job, token, until, claim, text, trace }
    }

    /// Notes its claim in the trace of the job. A job without a trace gets one of its own.
    fn trace_claim(&mut self, call: &ClaimCall) {
        let name = || format!("claim {}", self.job.job_type).into();
        let mut span = TraceSpan::begin_at(call.start, SpanKind::Consumer, self.trace, name);
        span.link(trace::current());
        span.set("messaging.system", || "tidegate");
        span.set("messaging.operation.type", || "receive");
        span.set("messaging.destination.name", || self.job.job_type.to_string());
        span.set("messaging.message.id", || self.job.id.to_string());
        span.set("tidegate.worker.id", || self.worker_id().to_owned());
        span.set("tidegate.job.attempt", || self.attempt());
        self.trace = span.context();
        call.script.note_call(call.start, self.trace);
    }
}

/// A call that claims, for traces.
#[derive(Clone, Copy)]
struct ClaimCall {
    start: SpanStart,
    script: &'static Script,
}

/// Returns the time of a claim by its token, which is that time in microseconds, or a little more when
/// many claims came at once. Tokens that are no times were given by an earlier version, or to an
/// attempt of a v1 worker.
pub(crate) fn claim_time(token: u64) -> Option<Millis> {
    /// The year 2001, in microseconds: no counter of claims got that far.
    const FIRST_US: u64 = 1_000_000_000_000_000;
    (token >= FIRST_US).then(|| Millis((token / 1_000).cast_signed()))
}

/// Formats a claim as it is stored.
fn claim_text(token: u64, worker_id: &str, job_type: &JobType) -> Arc<str> {
    format!("{token} {worker_id} {job_type}").into()
}

/// The jobs of one claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimBatch {
    /// The jobs, in the order in which they shall start.
    pub leases: Vec<JobLease>,
    /// There may be more at once.
    pub more: bool,
    /// Something will be free after this long, because of a limit.
    pub wait: Option<Duration>,
    /// The worker is drained: it gets nothing until it is [let go on](Jobs::undrain).
    pub draining: bool,
}

/// Claims jobs for one worker.
#[derive(Debug)]
pub struct Claimer {
    jobs: Jobs,
    labels: Labels,
    types: Option<HashSet<JobType>>,
    /// The pool of jobs that name this worker, and that of jobs that ask for nothing.
    own: PoolId,
    open: PoolId,
    routes: Arc<RouteCache>,
    /// The request whose reply may have got lost.
    unanswered: Option<String>,
    /// Whose turn it is of the windows, and how many were looked at in vain since one gave a job.
    turn: usize,
    vain: usize,
    /// Under which name the store remembers the latest request.
    request_slot: String,
    /// Attempts begin with the claim, and have so long to stop after their timeout.
    starts: Option<Duration>,
}

impl Jobs {
    /// A claimer for a worker of these labels, for all job types.
    pub fn claimer(&self, labels: Labels) -> Claimer {
        Claimer {
            jobs: self.clone(),
            request_slot: labels.worker_id.to_string(),
            own: Pool::of_worker(labels.worker_id.as_str()).id,
            open: Pool::open().id,
            routes: Arc::default(),
            labels,
            types: None,
            unanswered: None,
            starts: None,
            turn: self.inner.turn.fetch_add(1, Ordering::Relaxed),
            vain: 0,
        }
    }

    /// The pools of a worker, as far as this process knows them.
    fn cached_routes(&self, labels: &Labels, routes: &Arc<RouteCache>) -> Arc<RouteCache> {
        let mut registry = self.inner.registry.lock();
        match registry.version == routes.version {
            true => Arc::clone(routes),
            false => registry.routes(labels),
        }
    }

    /// The pools of a worker, as of a version of the registry.
    async fn routes(&self, labels: &Labels, version: i64) -> Result<Arc<RouteCache>, Error> {
        let read = {
            let mut registry = self.inner.registry.lock();
            if registry.version == version {
                return Ok(registry.routes(labels));
            }
            registry.version
        };
        let key = self.keys().pools();
        let mut store = self.store().clone();
        let mut latest = read;
        if version < read {
            // Another claimer has read on meanwhile, or the store was emptied and was reset.
            let now: Option<i64> = store.hget(self.keys().index(), "v:").await?;
            let mut registry = self.inner.registry.lock();
            if now.unwrap_or(0) >= registry.version {
                return Ok(registry.routes(labels));
            }
            *registry = Registry::default();
            latest = 0;
        }
        loop {
            let after = format!("({latest}");
            let (count, page): (usize, Vec<(String, i64)>) = redis::pipe()
                .zcard(&key)
                .zrangebyscore_limit_withscores(&key, after, "+inf", 0, PAGE)
                .query_async(&mut store)
                .await?;
            let mut registry = self.inner.registry.lock();
            latest = page.last().map_or(version.max(latest), |(_, score)| *score);
            let last = page.len().cast_signed() < PAGE;
            for (text, _) in page {
                if let Some(pool) = Pool::parse(&text)
                    && registry.known.insert(pool.id)
                {
                    registry.pools.push(pool);
                }
            }
            registry.version = registry.version.max(latest);
            if !last {
                continue;
            }
            // Most of what is remembered is not registered any more: the next claim reads it again.
            if registry.pools.len() > 2 * count + 1_000 {
                *registry = Registry::default();
            }
            return Ok(registry.routes(labels));
        }
    }
}

impl Claimer {
    /// Takes only jobs of these types.
    pub fn types(mut self, types: impl IntoIterator<Item = JobType>) -> Self {
        self.types = Some(types.into_iter().collect());
        self
    }

    /// Lets attempts begin when they are claimed: see [`start`](Jobs::start).
    pub fn starting(mut self, grace: Duration) -> Self {
        self.starts = Some(grace);
        self
    }

    /// A second claimer of the same worker, whose calls may be in flight at the same time.
    pub(crate) fn pipelined(mut self) -> Self {
        // No worker's name holds a space.
        self.request_slot.push_str(" 2");
        self
    }

    /// Makes the next claim a repetition of an earlier request, as after a lost reply.
    #[doc(hidden)]
    pub fn repeat(&mut self, request: &str) {
        self.unanswered = Some(request.to_owned());
    }

    /// The worker.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The queue.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// May this worker take jobs of a pool and a type, as far as is known? `signal` names both.
    pub(crate) fn may_claim(&self, signal: &str) -> bool {
        let Some((pool, job_type)) = signal.split_once(' ') else { return true };
        if self.types.as_ref().is_some_and(|types| !types.contains(job_type)) {
            return false;
        }
        let Some(pool) = PoolId::read(pool) else { return true };
        if pool == self.own || pool == self.open || self.routes.pools.contains(&pool) {
            return true;
        }
        let registry = self.jobs.inner.registry.lock();
        let known = self.routes.version >= registry.version && registry.known.contains(&pool);
        // The pool of another worker is registered elsewhere; its claim finds nothing.
        !known
    }

    /// Takes the next jobs, at most `limit`, without waiting for any.
    ///
    /// A stored job that cannot be understood goes to the dead letters, and one that has expired
    /// ends; neither is handed out.
    pub async fn claim(&mut self, limit: usize) -> Result<ClaimBatch, Error> {
        self.claim_for(limit, self.jobs.config().lock_ttl).await
    }

    /// As [`claim`](Claimer::claim), with a lease of another length than the configured one.
    pub async fn claim_for(&mut self, limit: usize, lease: Duration) -> Result<ClaimBatch, Error> {
        self.complete_and_claim_batch(limit, lease, &[]).await.1
    }

    /// Ends jobs with success, each with what it came to and how long it took, and takes the next in
    /// the same call, as a [`Worker`](crate::Worker) does. Returns for each whether it counts.
    #[doc(hidden)]
    pub async fn complete_and_claim(
        &mut self,
        done: impl IntoIterator<Item = (&JobLease, Option<Box<RawValue>>, Duration)>,
        limit: usize,
    ) -> Result<(Vec<bool>, ClaimBatch), Error> {
        let successes: Vec<Success> = done
            .into_iter()
            .map(|(lease, data, took)| self.jobs.success(lease, data, took))
            .collect::<Result<_, _>>()?;
        let successes: Vec<&Success> = successes.iter().collect();
        if limit == 0 {
            let counted = self.jobs.store_successes(successes).await?;
            return Ok((counted, ClaimBatch::default()));
        }
        let lease = self.jobs.config().lock_ttl;
        let (counted, claimed) = self.complete_and_claim_batch(limit, lease, &successes).await;
        let claimed = claimed?;
        let counted = counted.ok_or_else(|| store::Error::Decode {
            message: "it was not told what counts".to_owned(),
        })?;
        Ok((counted, claimed))
    }

    /// Writes what succeeded and takes the next jobs, in one call. Returns for each success whether it
    /// counts, if the store has answered; where it has not, they are written again by other means, which
    /// does no harm.
    pub(crate) async fn complete_and_claim_batch(
        &mut self,
        limit: usize,
        lease: Duration,
        done: &[&Success],
    ) -> (Option<Vec<bool>>, Result<ClaimBatch, Error>) {
        let limit = limit.min(CLAIM_MAX);
        if limit == 0 {
            return (None, Ok(ClaimBatch::default()));
        }
        let mut counted = None;
        for round in 0..ROUNDS {
            let encoded = EncodedSuccesses::new(if round == 0 { done } else { &[] });
            // In the end what is known of the pools has to do.
            let strict = round + 1 < ROUNDS;
            let script = match encoded.args.is_empty() {
                true => scripts::claim::SCRIPT,
                false => scripts::complete_and_claim::SCRIPT,
            };
            let call = trace::is_exporting().then(|| ClaimCall { start: SpanStart::now(), script });
            let (request, reply) = match self.ask(limit, lease, &encoded, strict).await {
                Ok(answer) => answer,
                Err(error) => return (counted, Err(error)),
            };
            if round == 0
                && let Ok(outcomes) = encoded.outcomes(reply.exceptions.iter().copied())
            {
                self.jobs.count_successes(done, &outcomes);
                counted = Some(outcomes.into_iter().map(SuccessOutcome::is_done).collect());
            }
            match self.apply_reply(reply, lease, call).await {
                Ok(mut claimed) => {
                    self.turn = self.turn.wrapping_add(1);
                    self.vain += 1;
                    if !claimed.leases.is_empty() {
                        self.vain = 0;
                        claimed.more |= self.routes.windows() > 1;
                    } else if self.vain < self.routes.windows() {
                        claimed.more = true;
                    } else {
                        self.vain = 0;
                    }
                    if !claimed.leases.is_empty() || !claimed.more {
                        return (counted, Ok(claimed));
                    }
                }
                Err(error) => {
                    // What it took is asked for again.
                    self.unanswered = Some(request);
                    return (counted, Err(error));
                }
            }
        }
        (counted, Ok(ClaimBatch { more: true, ..ClaimBatch::default() }))
    }

    /// Does what a reply calls for, and says what came of it.
    async fn apply_reply(
        &mut self,
        reply: Reply,
        lease: Duration,
        call: Option<ClaimCall>,
    ) -> Result<ClaimBatch, Error> {
        if reply.settled {
            self.jobs.settle().await;
        }
        let changed = self.refresh(reply.version).await?;
        let strayed = reply.strays > 0 && self.jobs.ingest().await? > 0;
        let mut claimed = self.accept(reply, lease).await?;
        if let Some(call) = call {
            claimed.leases.iter_mut().for_each(|lease| lease.trace_claim(&call));
        }
        if let Some(grace) = self.starts {
            let leases: Vec<&JobLease> = claimed.leases.iter().collect();
            self.jobs.start(&leases, grace).await?;
        }
        // What is known now may give more than what was asked for.
        claimed.more |= changed || strayed;
        Ok(claimed)
    }

    async fn ask(
        &mut self,
        limit: usize,
        lease: Duration,
        done: &EncodedSuccesses<'_>,
        strict: bool,
    ) -> Result<(String, Reply), Error> {
        self.routes = self.jobs.cached_routes(&self.labels, &self.routes);
        let version = if strict { Arg::Number(self.routes.version) } else { Arg::Str("") };
        let request = self
            .unanswered
            .take()
            .unwrap_or_else(|| (0..10).map(|_| fastrand::alphanumeric()).collect());
        let (keys, config) = (self.jobs.keys(), self.jobs.config());
        let now = self.jobs.now();
        let window = self.turn % self.routes.windows();
        let pools_of_turn = self.routes.pools.chunks(WINDOW).nth(window).unwrap_or_default();
        let pools = [&self.own, &self.open].into_iter().chain(pools_of_turn);
        let mut rest: Vec<Arg<'_>> = pools.map(|pool| Arg::Str(pool.as_str())).collect();
        let pools = rest.len();
        rest.extend(self.types.iter().flatten().map(|job_type| Arg::Str(job_type.as_str())));
        let types = rest.len() - pools;
        let (lock_ttl_s, worker_id) = (seconds(lease), self.labels.worker_id.as_str());
        let reply = if done.args.is_empty() {
            scripts::claim::run(
                self.jobs.store(),
                scripts::claim::Keys {
                    active: keys.active(),
                    claims: keys.claims(),
                    claim_leases: keys.claim_leases(),
                    claim_counts: keys.claim_counts(),
                    events: keys.events(),
                    parked: keys.parked(),
                    waiting: keys.waiting(),
                    paused: keys.paused(),
                    index: keys.index(),
                    unindexed: keys.unindexed(),
                },
                scripts::claim::Args {
                    now_ms: now,
                    prefix: keys.prefix(),
                    events_max: config.events_max,
                    worker_id,
                    request: &request,
                    limit,
                    lock_ttl_s,
                    lease_until_ms: now + lease,
                    request_slot: &self.request_slot,
                    pools,
                    types,
                    version,
                    rest,
                },
            )
        } else {
            let (done_channel, wake) = (keys.done(), keys.wake());
            let head = [
                seconds(config.result_ttl).into(),
                Arg::Str(done_channel.as_str()),
                Arg::Str(wake.as_str()),
                Arg::Number(i64::try_from(done.spent).unwrap_or(i64::MAX)),
            ];
            scripts::complete_and_claim::run(
                self.jobs.store(),
                scripts::complete_and_claim::Keys {
                    active: keys.active(),
                    claims: keys.claims(),
                    claim_leases: keys.claim_leases(),
                    claim_counts: keys.claim_counts(),
                    events: keys.events(),
                    parked: keys.parked(),
                    waiting: keys.waiting(),
                    paused: keys.paused(),
                    index: keys.index(),
                    unindexed: keys.unindexed(),
                    leases: keys.leases(),
                    finished: keys.finished(),
                    parents: keys.parents(),
                    settled: keys.settled(),
                    processed: keys.processed(),
                    spent: keys.spent(),
                    cancelled: keys.cancelled(),
                    deadlines: keys.deadlines(),
                },
                scripts::complete_and_claim::Args {
                    now_ms: now,
                    prefix: keys.prefix(),
                    events_max: config.events_max,
                    worker_id,
                    request: &request,
                    limit,
                    lock_ttl_s,
                    lease_until_ms: now + lease,
                    request_slot: &self.request_slot,
                    pools,
                    types,
                    version,
                    rest: rest.iter().chain(&head).chain(&done.args),
                },
            )
        }
        .await;
        match reply {
            Ok(reply) => Ok((request, reply)),
            Err(error) => {
                if matches!(&error, store::Error::Unavailable { maybe_done: true, .. }) {
                    self.unanswered = Some(request);
                }
                Err(error.into())
            }
        }
    }

    /// Reads what is new in the registry of pools, if there is something.
    async fn refresh(&mut self, version: i64) -> Result<bool, Error> {
        if version == self.routes.version {
            return Ok(false);
        }
        self.routes = self.jobs.routes(&self.labels, version).await?;
        Ok(true)
    }

    /// Makes leases of a reply, and puts away what must not run.
    async fn accept(&self, reply: Reply, lease: Duration) -> Result<ClaimBatch, Error> {
        let now = self.jobs.now();
        let mut claimed = ClaimBatch {
            more: reply.more,
            wait: reply.wait,
            draining: reply.draining,
            leases: Vec::new(),
        };
        claimed.leases.reserve(reply.jobs.len());
        let mut refused = Vec::new();
        // Neighbours mostly have one type, and then one claim.
        let mut latest: Option<(JobType, Arc<str>)> = None;
        for (id, data) in reply.jobs {
            let id = JobId::stored(id);
            match Job::parse(id.clone(), &data) {
                Ok(job) => {
                    let text = String::from_utf8(data).unwrap_or_default();
                    let claim = match &latest {
                        Some((job_type, claim)) if *job_type == job.job_type => Arc::clone(claim),
                        _ => {
                            let worker_id = self.labels.worker_id.as_str();
                            let claim = claim_text(reply.token, worker_id, &job.job_type);
                            latest = Some((job.job_type.clone(), Arc::clone(&claim)));
                            claim
                        }
                    };
                    let lease = JobLease::held(job, text, claim, reply.token, now + lease);
                    match lease.job.expires_at {
                        Some(at) if at <= now => refused.push(
                            AttemptFailure::of(&lease, expired(), now, Duration::ZERO)
                                .because(JobEndReason::Expired)
                                .end(NextState::Failed, "expired"),
                        ),
                        _ => claimed.leases.push(lease),
                    }
                }
                // It has a lane, so it was understood when it was put in line, and has been
                // changed since.
                Err(error) => {
                    let claim = self.jobs.claim_of(&id).await?;
                    refused.push(AttemptFailure::malformed(id, claim, &error, now));
                }
            }
        }
        if !refused.is_empty() {
            claimed.more = true;
            self.jobs.end(refused, false).await?;
        }
        self.count_claims(&claimed.leases, now);
        Ok(claimed)
    }
}

impl Claimer {
    fn count_claims(&self, leases: &[JobLease], now: Millis) {
        let mut latest: Option<(&JobType, Arc<TypeMeter>)> = None;
        for JobLease { job, .. } in leases {
            let meter = match latest.take() {
                Some((known, meter)) if *known == job.job_type => meter,
                _ => self.jobs.inner.meter.of(job.job_type.as_str()),
            };
            meter.claimed(job, now);
            latest = Some((&job.job_type, meter));
        }
    }
}

/// The name of the error of a job that expired before it started.
pub(crate) const EXPIRED: &str = "Expired";

/// Returns the error of a job that expired before it started.
pub(crate) fn expired() -> JobError {
    JobError::new(EXPIRED, "it was not started in time")
}

/// The reply of the claim script.
#[derive(Debug)]
struct Reply {
    draining: bool,
    version: i64,
    strays: i64,
    wait: Option<Duration>,
    more: bool,
    token: u64,
    /// Other jobs wait for one that was done.
    settled: bool,
    /// The numbers of those that were not done; negative, of those that were done before.
    exceptions: Vec<i64>,
    jobs: Vec<(String, Vec<u8>)>,
}

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        fn next<T: FromRedisValue>(parts: &mut vec::IntoIter<Value>) -> Result<T, ParsingError> {
            let part = parts.next().ok_or_else(|| ParsingError::from("the reply is too short"))?;
            T::from_redis_value(part)
        }
        let parts = &mut Vec::<Value>::from_redis_value(value)?.into_iter();
        // Whether there are jobs is seen below.
        let word: String = next(parts)?;
        let mut reply = Self {
            draining: word == "draining",
            version: next(parts)?,
            strays: next(parts)?,
            wait: u64::try_from(next::<i64>(parts)?).ok().map(Duration::from_millis),
            more: next::<i64>(parts)? == 1,
            token: next(parts)?,
            settled: next::<i64>(parts)? == 1,
            exceptions: Vec::new(),
            jobs: Vec::new(),
        };
        for _ in 0..next::<usize>(parts)? {
            reply.exceptions.push(next(parts)?);
        }
        reply.jobs.reserve(parts.len() / 2);
        while parts.len() > 0 {
            reply.jobs.push((next(parts)?, next(parts)?));
        }
        Ok(reply)
    }
}
