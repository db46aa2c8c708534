//! Claiming: the next jobs of a worker, each under a lease.
//!
//! A [`Claimer`] knows one worker's labels and which routes it may take. The registry of routes is
//! read once per process and version, and judged once per claimer, so that a claim costs the same
//! whatever waits for others. One claim looks at [`WINDOW`] routes at most; a worker that may take
//! more goes through them in turns, so that none is left out. Invariants: a job is handed to one
//! claimer at a time; whatever a claim takes is in the reply, and a reply that got lost is asked
//! for again by its request.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
    vec,
};

use serde_json::value::RawValue;
use store::{
    Millis,
    redis::{AsyncCommands as _, FromRedisValue, ParsingError, Value},
    script::Arg,
};
use tokio::time::Instant;

use crate::{
    Error, Job, JobError, JobId, JobType, Jobs, Labels,
    complete::{Sheet, Success},
    config::seconds,
    fail::{Ending, Failure},
    route::Route,
    scripts,
};

/// How many jobs one call may take.
pub const CLAIM_MAX: usize = 128;

/// How often one claim goes back to the store when it learns of new routes or strays.
const ROUNDS: usize = 4;

/// How many routes one call looks at. Priorities are kept among these; a worker that may take more
/// routes looks at the next ones in its next call.
const WINDOW: usize = 128;

/// How many routes are read in a millisecond at most, so that a crowd of new routes does not make
/// every claim read all of them again.
const READ_PER_MS: usize = 50;

/// All routes that name no worker, as of a version.
#[derive(Debug)]
pub(crate) struct Registry {
    version: i64,
    routes: HashMap<String, Option<Route>>,
    read: Instant,
}

/// A job that a worker runs.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The job.
    pub job: Job,
    /// Grows with every call that claims; later ones of the same job are greater.
    pub token: u64,
    /// Until when the job is this worker's, unless renewed.
    pub until: Millis,
    /// What the claim looks like in the store.
    pub(crate) claim: Arc<str>,
    /// The job as it is stored.
    pub(crate) text: String,
}

impl Lease {
    /// Which job.
    pub fn id(&self) -> &JobId {
        &self.job.id
    }

    /// Which attempt this is, the first being 1.
    pub fn attempt(&self) -> u32 {
        self.job.attempts.saturating_add(1)
    }

    /// The worker that holds it.
    pub fn server(&self) -> &str {
        self.claim.split(' ').nth(1).unwrap_or_default()
    }

    /// The job exactly as it is stored.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A lease by the parts that identify it, for a caller that kept them elsewhere. Whether it is
    /// held is for the store to say.
    pub fn from_parts(job: Job, text: String, server: &str, token: u64, until: Millis) -> Self {
        let claim = claim_text(token, server, &job.kind);
        Self::held(job, text, claim, token, until)
    }

    /// A lease as the store knows it.
    pub(crate) fn held(job: Job, text: String, claim: Arc<str>, token: u64, until: Millis) -> Self {
        Self { job, token, until, claim, text }
    }
}

/// What a claim looks like in the store.
fn claim_text(token: u64, server: &str, kind: &JobType) -> Arc<str> {
    format!("{token} {server} {kind}").into()
}

/// What a claim came to.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The jobs, in the order in which they shall start.
    pub leases: Vec<Lease>,
    /// There may be more at once.
    pub more: bool,
    /// Something will be free after this long, because of a limit.
    pub wait: Option<Duration>,
}

/// Claims jobs for one worker.
#[derive(Debug)]
pub struct Claimer {
    jobs: Jobs,
    labels: Labels,
    types: Option<HashSet<JobType>>,
    book: Book,
    /// The request whose reply may have got lost.
    unanswered: Option<String>,
    /// Whose turn it is of the windows, and how many were looked at in vain since one gave a job.
    turn: usize,
    vain: usize,
    /// Under which name the store remembers the latest request.
    record: String,
}

/// The routes a worker may take, as of a version of the registries.
#[derive(Debug, Default)]
struct Book {
    version: i64,
    server_version: i64,
    /// Four arguments per route.
    args: Vec<Arg<'static>>,
    /// The names of the routes in `args`.
    mine: HashSet<String>,
    registry: Option<Arc<Registry>>,
}

impl Book {
    fn windows(&self) -> usize {
        self.args.len().div_ceil(4 * WINDOW).max(1)
    }
}

impl Jobs {
    /// A claimer for a worker of these labels, for all job types.
    pub fn claimer(&self, labels: Labels) -> Claimer {
        Claimer {
            jobs: self.clone(),
            record: labels.server.to_string(),
            labels,
            types: None,
            book: Book { version: -1, server_version: -1, ..Book::default() },
            unanswered: None,
            turn: self.inner.turn.fetch_add(1, Ordering::Relaxed),
            vain: 0,
        }
    }

    /// The routes that name no worker, as of a version; those of an earlier one where there are very
    /// many and they were read a moment ago.
    async fn registry(&self, version: i64) -> Result<Arc<Registry>, Error> {
        if let Some(known) = &*self.inner.registry.lock() {
            let most = known.read.elapsed().as_millis().saturating_mul(READ_PER_MS as u128);
            if known.version == version || known.routes.len() as u128 > most.max(1_000) {
                return Ok(Arc::clone(known));
            }
        }
        let mut store = self.store().clone();
        let texts: HashMap<String, String> = store.hgetall(self.keys().routes()).await?;
        let routes = texts.into_iter().map(|(name, text)| (name, Route::parse(&text))).collect();
        let registry = Arc::new(Registry { version, routes, read: Instant::now() });
        *self.inner.registry.lock() = Some(Arc::clone(&registry));
        Ok(registry)
    }
}

impl Claimer {
    /// Takes only jobs of these types.
    pub fn types(mut self, types: impl IntoIterator<Item = JobType>) -> Self {
        self.types = Some(types.into_iter().collect());
        self
    }

    /// A second claimer of the same worker, whose calls may be under way at the same time.
    pub(crate) fn second(mut self) -> Self {
        // No worker's name holds a space.
        self.record.push_str(" 2");
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

    /// Is a route of this name for this worker, as far as is known? Unknown ones may be.
    pub(crate) fn may_take(&self, route: &str) -> bool {
        let known = |registry: &Arc<Registry>| registry.routes.contains_key(route);
        !self.book.registry.as_ref().is_some_and(known) || self.book.mine.contains(route)
    }

    /// Takes the next jobs, at most `most`, without waiting for any.
    ///
    /// A stored job that cannot be understood goes to the dead letters, and one that has expired
    /// ends; neither is handed out.
    pub async fn claim(&mut self, most: usize) -> Result<Claimed, Error> {
        self.claim_for(most, self.jobs.config().lock_ttl).await
    }

    /// As [`claim`](Claimer::claim), with a lease of another length than the configured one.
    pub async fn claim_for(&mut self, most: usize, lease: Duration) -> Result<Claimed, Error> {
        self.exchange(most, lease, &[]).await.1
    }

    /// Ends jobs with success, each with what it came to and how long it took, and takes the next in
    /// the same call, as a [`Worker`](crate::Worker) does. Says of each whether it counts.
    #[doc(hidden)]
    pub async fn complete_and_claim(
        &mut self,
        done: impl IntoIterator<Item = (&Lease, Option<Box<RawValue>>, Duration)>,
        most: usize,
    ) -> Result<(Vec<bool>, Claimed), Error> {
        let successes: Vec<Success> = done
            .into_iter()
            .map(|(lease, data, took)| self.jobs.success(lease, data, took))
            .collect::<Result<_, _>>()?;
        let successes: Vec<&Success> = successes.iter().collect();
        if most == 0 {
            let counted = self.jobs.store_successes(successes).await?;
            return Ok((counted, Claimed::default()));
        }
        let lease = self.jobs.config().lock_ttl;
        let (counted, claimed) = self.exchange(most, lease, &successes).await;
        let claimed = claimed?;
        let counted = counted.ok_or_else(|| store::Error::Decode {
            message: "it was not told what counts".to_owned(),
        })?;
        Ok((counted, claimed))
    }

    /// Writes what succeeded and takes the next jobs, in one call. Says of each success whether it
    /// counts, if the store has told; where it has not, they are written again by other means, which
    /// does no harm.
    pub(crate) async fn exchange(
        &mut self,
        most: usize,
        lease: Duration,
        done: &[&Success],
    ) -> (Option<Vec<bool>>, Result<Claimed, Error>) {
        let most = most.min(CLAIM_MAX);
        if most == 0 {
            return (None, Ok(Claimed::default()));
        }
        let mut counted = None;
        for round in 0..ROUNDS {
            let sheet = Sheet::new(if round == 0 { done } else { &[] });
            let (request, reply) = match self.ask(most, lease, &sheet).await {
                Ok(answer) => answer,
                Err(error) => return (counted, Err(error)),
            };
            if round == 0 {
                counted = sheet.done(reply.lost.iter().copied()).ok();
            }
            match self.heed(reply, lease).await {
                Ok(mut claimed) => {
                    self.turn = self.turn.wrapping_add(1);
                    self.vain += 1;
                    if !claimed.leases.is_empty() {
                        self.vain = 0;
                        claimed.more |= self.book.windows() > 1;
                    } else if self.vain < self.book.windows() {
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
        (counted, Ok(Claimed { more: true, ..Claimed::default() }))
    }

    /// Does what a reply calls for, and says what came of it.
    async fn heed(&mut self, reply: Reply, lease: Duration) -> Result<Claimed, Error> {
        if reply.settled {
            self.jobs.settle().await;
        }
        let changed = self.refresh(reply.version, reply.server_version).await?;
        let strayed = reply.strays > 0 && self.jobs.ingest().await? > 0;
        let mut claimed = self.accept(reply, lease).await?;
        // What is known now may give more than what was asked for.
        claimed.more |= changed || strayed;
        Ok(claimed)
    }

    async fn ask(
        &mut self,
        most: usize,
        lease: Duration,
        done: &Sheet<'_>,
    ) -> Result<(String, Reply), Error> {
        let request = self
            .unanswered
            .take()
            .unwrap_or_else(|| (0..10).map(|_| fastrand::alphanumeric()).collect());
        let (keys, config) = (self.jobs.keys(), self.jobs.config());
        let now = self.jobs.now();
        let window = self.turn % self.book.windows();
        let routes_of_turn = self.book.args.chunks(4 * WINDOW).nth(window).unwrap_or_default();
        let routes = routes_of_turn.len() / 4;
        let (lock_ttl_s, server) = (seconds(lease), self.labels.server.as_str());
        let reply = if done.args.is_empty() {
            scripts::claim::run(
                self.jobs.store(),
                scripts::claim::Keys {
                    active: keys.active(),
                    claims: keys.claims(),
                    terms: keys.terms(),
                    held: keys.held(),
                    events: keys.events(),
                    blocked: keys.blocked(),
                    waiting: keys.waiting(),
                    paused: keys.paused(),
                    index: keys.index(),
                    strays: keys.strays(),
                },
                scripts::claim::Args {
                    now_ms: now,
                    prefix: keys.prefix(),
                    events_max: config.events_max,
                    server,
                    request: &request,
                    most,
                    lock_ttl_s,
                    lease_until_ms: now + lease,
                    record: &self.record,
                    routes,
                    rest: routes_of_turn,
                },
            )
        } else {
            let (done_channel, wake) = (keys.done(), keys.wake());
            let head = [
                seconds(config.result_ttl).into(),
                Arg::Word(done_channel.as_str()),
                Arg::Word(wake.as_str()),
                Arg::Number(i64::try_from(done.spent).unwrap_or(i64::MAX)),
            ];
            scripts::exchange::run(
                self.jobs.store(),
                scripts::exchange::Keys {
                    active: keys.active(),
                    claims: keys.claims(),
                    terms: keys.terms(),
                    held: keys.held(),
                    events: keys.events(),
                    blocked: keys.blocked(),
                    waiting: keys.waiting(),
                    paused: keys.paused(),
                    index: keys.index(),
                    strays: keys.strays(),
                    leases: keys.leases(),
                    finished: keys.finished(),
                    parents: keys.parents(),
                    settled: keys.settled(),
                    processed: keys.processed(),
                    spent: keys.spent(),
                    cancelled: keys.cancelled(),
                },
                scripts::exchange::Args {
                    now_ms: now,
                    prefix: keys.prefix(),
                    events_max: config.events_max,
                    server,
                    request: &request,
                    most,
                    lock_ttl_s,
                    lease_until_ms: now + lease,
                    record: &self.record,
                    routes,
                    rest: routes_of_turn.iter().chain(&head).chain(&done.args),
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

    /// Reads the registries again if they have changed.
    async fn refresh(&mut self, version: i64, server_version: i64) -> Result<bool, Error> {
        if version == self.book.version && server_version == self.book.server_version {
            return Ok(false);
        }
        let registry = self.jobs.registry(version).await?;
        if registry.version == self.book.version && server_version == self.book.server_version {
            return Ok(false);
        }
        let mut pinned: HashMap<String, String> = HashMap::new();
        if server_version != 0 {
            let key = self.jobs.keys().routes_of(self.labels.server.as_str());
            pinned = self.jobs.store().clone().hgetall(key).await?;
        }
        let (mut args, mut mine) = (Vec::new(), HashSet::new());
        let pinned: Vec<(String, Route)> = pinned
            .into_iter()
            .filter_map(|(name, text)| Some((name, Route::parse(&text)?)))
            .collect();
        let open = registry.routes.iter().filter_map(|(name, route)| Some((name, route.as_ref()?)));
        for (name, route) in open.chain(pinned.iter().map(|(name, route)| (name, route))) {
            let wanted = self.types.as_ref().is_none_or(|types| types.contains(&route.kind));
            if !wanted || !route.matches(&self.labels) {
                continue;
            }
            mine.insert(name.clone());
            let limit = |most: Option<u32>| most.map_or(Arg::Word(""), |n| Arg::Number(n.into()));
            args.extend([
                Arg::Text(name.clone()),
                Arg::Text(route.kind.to_string()),
                limit(route.limit.max_concurrent),
                limit(route.limit.max_per_minute),
            ]);
        }
        let version = registry.version;
        self.book = Book { version, server_version, args, mine, registry: Some(registry) };
        Ok(true)
    }

    /// Makes leases of a reply, and puts away what must not run.
    async fn accept(&self, reply: Reply, lease: Duration) -> Result<Claimed, Error> {
        let now = self.jobs.now();
        let mut claimed = Claimed { more: reply.more, wait: reply.wait, ..Claimed::default() };
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
                        Some((kind, claim)) if *kind == job.kind => Arc::clone(claim),
                        _ => {
                            let server = self.labels.server.as_str();
                            let claim = claim_text(reply.token, server, &job.kind);
                            latest = Some((job.kind.clone(), Arc::clone(&claim)));
                            claim
                        }
                    };
                    let lease = Lease::held(job, text, claim, reply.token, now + lease);
                    match lease.job.expires_at {
                        Some(at) if at <= now => refused.push(
                            Failure::of(&lease, expired(), now, Duration::ZERO)
                                .end(Ending::Failed, "expired"),
                        ),
                        _ => claimed.leases.push(lease),
                    }
                }
                // It has a lane, so it was understood when it was put in line, and has been
                // changed since.
                Err(error) => {
                    let claim = self.jobs.claim_of(&id).await?;
                    refused.push(Failure::malformed(id, claim, &error, now));
                }
            }
        }
        if !refused.is_empty() {
            claimed.more = true;
            self.jobs.end(refused, false).await?;
        }
        Ok(claimed)
    }
}

/// Why a job that waited too long does not start.
pub(crate) fn expired() -> JobError {
    JobError::new("Expired", "it was not started in time")
}

/// What the claim script says.
#[derive(Debug)]
struct Reply {
    version: i64,
    server_version: i64,
    strays: i64,
    wait: Option<Duration>,
    more: bool,
    token: u64,
    /// Other jobs wait for one that was done.
    settled: bool,
    /// The numbers of those that were not done.
    lost: Vec<usize>,
    jobs: Vec<(String, Vec<u8>)>,
}

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        fn next<T: FromRedisValue>(parts: &mut vec::IntoIter<Value>) -> Result<T, ParsingError> {
            let part = parts.next().ok_or_else(|| ParsingError::from("the reply is too short"))?;
            T::from_redis_value(part)
        }
        let parts = &mut Vec::<Value>::from_redis_value(value)?.into_iter();
        // The word is for people; whether there are jobs is seen below.
        let _word: String = next(parts)?;
        let mut reply = Self {
            version: next(parts)?,
            server_version: next(parts)?,
            strays: next(parts)?,
            wait: u64::try_from(next::<i64>(parts)?).ok().map(Duration::from_millis),
            more: next::<i64>(parts)? == 1,
            token: next(parts)?,
            settled: next::<i64>(parts)? == 1,
            lost: Vec::new(),
            jobs: Vec::new(),
        };
        for _ in 0..next::<usize>(parts)? {
            reply.lost.push(next(parts)?);
        }
        reply.jobs.reserve(parts.len() / 2);
        while parts.len() > 0 {
            reply.jobs.push((next(parts)?, next(parts)?));
        }
        Ok(reply)
    }
}
