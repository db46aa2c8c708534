//! The resolver: a query in, a reply out.
//!
//! ```text
//!  packet ─▶ question ─▶ L0 ─────────────▶ reply                     hit: no await, no allocation
//!                         │ miss or stale
//!                         ▼
//!                 flight (one per question and kind) ─▶ L1 ─▶ upstreams ─▶ L0, then L1
//!                         │ waited for, at most 1.8 s
//!                         ▼
//!                reply, or the stale answer, or SERVFAIL
//! ```
//!
//! Invariants: concurrent misses of one question and kind share one flight; a flight ends in a result
//! whether anybody waits for it or not; without the store L0, upstreams and refresh go on; an answer
//! of one kind never answers a query of another.
//!
//! Read on in `resolver/flight.rs` (misses), `resolver/refresh.rs` (refresh-ahead, sweep).

mod flight;
mod refresh;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::{Millis, Store};
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::refresh::{RefreshPreset, SweepReport};
use self::{
    flight::{FailureCache, FlightResult},
    refresh::Refreshes,
};
use crate::{
    DomainName, Error,
    keys::Question,
    l0::{FrontTable, L0, L0Entry, L0Key},
    l1::{L1, L1Options},
    upstream::{UpstreamOptions, Upstreams},
    wire::{
        AnswerKind, ExtendedError, MESSAGE_MAX_BYTES, ReplayTtl, TtlBounds, WireQuery, rcode,
        write_error, write_reply,
    },
};

/// Misses that wait for upstreams; more are answered with SERVFAIL.
const FLIGHTS_MAX: usize = 10_000;

/// Options of the resolver.
#[derive(Clone, Debug)]
pub struct ResolverOptions {
    /// Upstreams.
    pub upstream: UpstreamOptions,
    /// The cache in the store.
    pub l1: L1Options,
    /// Most bytes of the cache in memory. Default 32 MiB.
    pub l0_max_bytes: usize,
    /// Bounds of the TTLs of stored answers.
    pub ttl_bounds: TtlBounds,
    /// Greatest TTL given to clients. Default none.
    pub client_ttl_cap: Option<Duration>,
    /// Time after which a client gets a stale answer or SERVFAIL. Default 1.8 s (RFC 8767 §5).
    pub client_timeout: Duration,
    /// Stale answers when upstreams fail or are slow.
    pub stale: StaleOptions,
    /// Refresh of answers before they expire.
    pub refresh: RefreshPreset,
    /// Refreshes at the same time. Default 100.
    pub refresh_max_inflight: usize,
}

impl Default for ResolverOptions {
    fn default() -> Self {
        Self {
            upstream: UpstreamOptions::default(),
            l1: L1Options::default(),
            l0_max_bytes: 32 << 20,
            ttl_bounds: TtlBounds::default(),
            client_ttl_cap: None,
            client_timeout: Duration::from_millis(1_800),
            stale: StaleOptions::default(),
            refresh: RefreshPreset::Balanced,
            refresh_max_inflight: 100,
        }
    }
}

/// Options of stale answers, RFC 8767.
#[derive(Clone, Debug)]
pub struct StaleOptions {
    /// Oldest stale answer, from the end of its freshness; zero for none. Default 1 h. No answer is
    /// kept longer than the grace period.
    pub max_age: Duration,
    /// TTL of a stale answer. Default 30 s.
    pub ttl: Duration,
    /// Names that get no stale answers, with all names below them.
    pub excluded: Vec<DomainName>,
}

impl Default for StaleOptions {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(3_600),
            ttl: Duration::from_secs(30),
            excluded: Vec::new(),
        }
    }
}

/// Transport a query came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams: the reply is at most what the client takes, and 1,232 bytes.
    Udp,
    /// A stream: the reply is as long as a message may be.
    Stream,
}

impl Transport {
    fn limit(self, query: &WireQuery<'_>) -> usize {
        match self {
            Self::Udp => query.udp_limit(),
            Self::Stream => MESSAGE_MAX_BYTES,
        }
    }
}

/// Result of a look-up that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitResult {
    /// The reply is in the buffer and has this length.
    Reply(usize),
    /// There is to be no reply.
    Drop,
    /// Not in memory: ask [`Resolver::answer`].
    Miss,
}

/// The resolver. A cheap clone.
#[derive(Clone, Debug)]
pub struct Resolver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    options: ResolverOptions,
    l0: L0,
    l1: L1,
    upstreams: Upstreams,
    flights: Mutex<HashMap<FlightKey, watch::Receiver<Option<FlightResult>>>>,
    failures: FailureCache,
    refreshes: Refreshes,
    tasks: TaskTracker,
    /// Threads that receive packets start tasks too.
    runtime: tokio::runtime::Handle,
    cancel: CancellationToken,
}

type FlightKey = (Question, AnswerKind);

impl Resolver {
    /// Opens the resolver on a store. Listens to clears by other instances from then on.
    pub async fn open(store: Store, options: ResolverOptions) -> Result<Self, Error> {
        if options.upstream.servers.is_empty() {
            let message = "name at least one server".to_owned();
            return Err(Error::Invalid { field: "upstream.servers", message });
        }
        let l1 = L1::new(&store, options.l1.clone());
        let resolver = Self(Arc::new(Inner {
            l0: L0::new(options.l0_max_bytes),
            upstreams: Upstreams::new(options.upstream.clone()),
            flights: Mutex::default(),
            failures: FailureCache::default(),
            refreshes: Refreshes {
                permits: Arc::new(Semaphore::new(options.refresh_max_inflight.max(1))),
                running: Mutex::default(),
            },
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            cancel: CancellationToken::new(),
            l1,
            store,
            options,
        }));
        // Without the store the resolver works all the same, and finds the spelling out later.
        if let Err(error) = resolver.0.l1.detect_dotted_names().await {
            tracing::warn!(%error, "the cache in the store is not available yet");
        }
        resolver.0.tasks.spawn(resolver.clone().follow_clears());
        Ok(resolver)
    }

    /// Returns the upstreams.
    pub fn upstreams(&self) -> &Upstreams {
        &self.0.upstreams
    }

    /// Returns the cache in memory.
    pub fn l0(&self) -> &L0 {
        &self.0.l0
    }

    /// Returns the cache in the store.
    pub fn l1(&self) -> &L1 {
        &self.0.l1
    }

    /// Returns the current time.
    pub fn now(&self) -> Millis {
        self.0.store.now()
    }

    /// Answers from memory, without waiting. For threads that receive packets; each has a front table
    /// of its own.
    pub fn answer_hit(
        &self,
        front: &mut FrontTable,
        packet: &[u8],
        transport: Transport,
        now: Millis,
        out: &mut [u8],
    ) -> HitResult {
        let query = match self.accept(packet, out) {
            Ok(query) => query,
            Err(result) => return result,
        };
        let Some(entry) = front.get(&self.0.l0, &L0Key::of_query(&query), now) else {
            return HitResult::Miss;
        };
        match self.replay_fresh(entry, &query, transport, now, out) {
            Some(length) => HitResult::Reply(length),
            None => HitResult::Miss,
        }
    }

    /// Answers a query, from memory, the store or the upstreams. Returns none if there is to be no
    /// reply.
    pub async fn answer(&self, packet: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let mut out = vec![0; MESSAGE_MAX_BYTES];
        let query = match self.accept(packet, &mut out) {
            Ok(query) => query,
            Err(HitResult::Reply(length)) => {
                out.truncate(length);
                return Some(out);
            }
            Err(_) => return None,
        };
        let length = self.answer_query(&query, transport, &mut out).await?;
        out.truncate(length);
        Some(out)
    }

    async fn answer_query(
        &self,
        query: &WireQuery<'_>,
        transport: Transport,
        out: &mut [u8],
    ) -> Option<usize> {
        let key = L0Key::of_query(query);
        let now = self.now();
        let known = self.0.l0.get(&key, now);
        if let Some(entry) = &known
            && let Some(length) = self.replay_fresh(entry, query, transport, now, out)
        {
            return Some(length);
        }
        let result = self.wait_for_flight(query.question(), query.kind()).await;
        let now = self.now();
        let stale = match result {
            Some(FlightResult::Answer(entry)) => {
                let ttl = self.fresh_ttl(&entry, now);
                let limit = transport.limit(query);
                return entry.stored.answer.replay(query, ttl, None, limit, out);
            }
            Some(FlightResult::Failed { stale }) => stale.or(known),
            None => known.or_else(|| self.0.l0.get(&key, now)),
        };
        if let Some(entry) = stale.filter(|entry| self.may_serve_stale(entry, now)) {
            let ttl_seconds = u32::try_from(self.0.options.stale.ttl.as_secs()).unwrap_or(u32::MAX);
            let ttl = ReplayTtl::Stale { ttl_seconds: ttl_seconds.min(self.ttl_cap()) };
            let (error, limit) = (Some(ExtendedError::STALE), transport.limit(query));
            return entry.stored.answer.replay(query, ttl, error, limit, out);
        }
        let error = Some(ExtendedError::NO_REACHABLE_AUTHORITY);
        write_reply(query, rcode::SERVFAIL, error, out)
    }

    /// Reads a packet and applies what needs no look-up.
    fn accept<'a>(&self, packet: &'a [u8], out: &mut [u8]) -> Result<WireQuery<'a>, HitResult> {
        let reply = |length: Option<usize>| length.map_or(HitResult::Drop, HitResult::Reply);
        match WireQuery::parse(packet) {
            // No cache snooping, and nothing is forwarded that nobody asked to be.
            Ok(query) if !query.is_recursion_desired() => {
                Err(reply(write_reply(&query, rcode::REFUSED, None, out)))
            }
            Ok(query) => Ok(query),
            Err(rejection) => Err(reply(write_error(packet, rejection, out))),
        }
    }

    /// Writes a fresh answer and schedules its refresh when it is due; none if it is stale.
    fn replay_fresh(
        &self,
        entry: &Arc<L0Entry>,
        query: &WireQuery<'_>,
        transport: Transport,
        now: Millis,
        out: &mut [u8],
    ) -> Option<usize> {
        if entry.stored.remaining(now) <= 0 {
            return None;
        }
        let ttl = self.fresh_ttl(entry, now);
        let length = entry.stored.answer.replay(query, ttl, None, transport.limit(query), out)?;
        entry.count_hit();
        self.refresh_ahead(entry, now);
        Some(length)
    }

    fn fresh_ttl(&self, entry: &L0Entry, now: Millis) -> ReplayTtl {
        ReplayTtl::Fresh { age_seconds: entry.stored.age(now), cap_seconds: self.ttl_cap() }
    }

    fn ttl_cap(&self) -> u32 {
        let cap = self.0.options.client_ttl_cap;
        cap.map_or(u32::MAX, |cap| u32::try_from(cap.as_secs()).unwrap_or(u32::MAX).max(1))
    }

    fn may_serve_stale(&self, entry: &L0Entry, now: Millis) -> bool {
        let options = &self.0.options.stale;
        let age = entry.stored.remaining(now).saturating_neg();
        let is_young = u64::try_from(age).is_ok_and(|age| age < options.max_age.as_secs());
        let is_excluded = || {
            let Some((question, _)) = entry.question() else { return true };
            let mut names = std::iter::successors(Some(question.name), DomainName::parent);
            names.any(|name| options.excluded.contains(&name))
        };
        // RFC 8767 §4 is about data that was good once; that a name did not exist is no such data.
        let is_positive = entry.stored.answer.rcode() == rcode::NOERROR;
        // An answer that is fresh by now was stored by another instance meanwhile.
        age < 0 || (is_young && is_positive && now.as_secs() < entry.hard_expiry && !is_excluded())
    }

    /// Clears the cache on every instance. Returns the number of keys deleted from the store.
    pub async fn clear(&self) -> Result<u64, Error> {
        self.0.l0.clear();
        self.0.failures.clear();
        let deleted = self.0.l1.clear().await;
        // What was stored between the two would be of before.
        self.0.l0.clear();
        deleted
    }

    /// Drops what is in memory whenever an instance clears the cache.
    async fn follow_clears(self) {
        let mut known = self.0.l1.generation().await.ok();
        while !self.0.cancel.is_cancelled() {
            let subscribed = self.0.l1.subscribe_clears().await;
            let Ok(mut clears) = subscribed else {
                tokio::select! {
                    () = self.0.cancel.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs(1)) => continue,
                }
            };
            loop {
                let generation = self.0.l1.generation().await.ok();
                if generation.is_some() && generation != known {
                    self.0.l0.clear();
                    self.0.failures.clear();
                    known = generation;
                }
                let message = tokio::select! {
                    () = self.0.cancel.cancelled() => return,
                    message = clears.recv() => message,
                };
                if message.is_none() {
                    break;
                }
            }
        }
    }

    /// Ends all tasks and writes the hits that wait.
    pub async fn close(&self) {
        self.0.cancel.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.collect_hits();
        if let Err(error) = self.0.l1.flush_hits().await {
            tracing::warn!(%error, "hits not written");
        }
    }
}
