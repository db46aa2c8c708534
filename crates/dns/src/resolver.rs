//! The resolver: a query in, a reply out.
//!
//! ```text
//!  packet ─▶ client ─▶ question ─▶ L0 ────▶ reply                    hit: no await, no allocation
//!                         │ miss, stale, or no verdict about it yet
//!                         ▼
//!                 filter: local records, rules, lists ─▶ reply made here, kept in L0
//!                         │ passes
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
//! Read on in `resolver/decide.rs` (what a query gets), `resolver/flight.rs` (misses),
//! `resolver/refresh.rs` (refresh-ahead, sweep), `resolver/govern.rs` (changes of policy and lists),
//! `resolver/why.rs` (explanations), `resolver/preview.rs` (what another policy would change).

mod decide;
mod delete;
mod flight;
mod govern;
mod preview;
mod refresh;
mod why;

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use store::{Millis, PubsubMessage, Store};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    decide::make_room,
    flight::Flights,
    govern::Surroundings,
    refresh::{RefreshCounts, Refreshes},
};
pub use self::{
    preview::{PreviewChange, PreviewQuery, PreviewReport},
    refresh::{RefreshPreset, RefreshStats, SweepReport},
    why::{DecisionStep, Explanation},
};
use crate::{
    DesignatedEndpoints, DomainName, Error,
    cookie::{CookieSecret, QueryCookie},
    filter::{Filter, RateLimiter, unmap},
    keys::question_from_key,
    l0::{FrontTable, L0, L0Entry, L0Key, PROFILE_SCOPE},
    l1::{L1, L1Options},
    lists::Lists,
    name::Question,
    policy::{Policy, PolicyStore, PolicyVersion},
    query_record::{
        CacheTier, Label, Labels, QueryBatch, QueryOutcome, QueryProtocol, QueryQueue, QueryRecord,
    },
    remote::Fetch,
    upstream::{RouteNumber, UpstreamNeeds, UpstreamOptions, UpstreamRoutes},
    wire::{
        AnswerKind, ExtendedError, KEEPALIVE_OPTION, MESSAGE_MAX_BYTES, Rejection, ReplayTtl,
        ReplyOptions, TtlBounds, WireQuery, rcode, rtype, write_error, write_reply,
        write_truncated,
    },
};

/// One query in so many above the rate limit gets a truncated reply, so that a true client can come
/// back over TCP; the others get none.
const SLIP_ONE_IN: u64 = 4;

/// Room for a reply from memory; longer ones are rare and take the way of misses.
const HIT_ROOM_BYTES: usize = 2_048;

/// Replies over TLS and HTTPS are padded to a multiple of this, RFC 8467 §4.1.
const PADDING_BLOCK_BYTES: usize = 468;

/// Options of the resolver.
#[derive(Clone, Debug)]
pub struct ResolverOptions {
    /// Upstreams; the servers are those for which the policy names none.
    pub upstream: UpstreamOptions,
    /// Ways to upstreams that are not plain DNS.
    pub upstream_needs: UpstreamNeeds,
    /// Policy while the store has none. Default [`Policy::starting`].
    pub default_policy: Policy,
    /// Folder of lists; without one lists are kept in memory.
    pub list_folder: Option<PathBuf>,
    /// Fetches lists; without it only built-in lists and files are read.
    pub fetch: Option<Arc<dyn Fetch>>,
    /// Hosts file; without one none is read.
    pub hosts_file: Option<PathBuf>,
    /// Encrypted endpoints of this resolver that clients may discover.
    pub endpoints: DesignatedEndpoints,
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
            upstream_needs: UpstreamNeeds::default(),
            default_policy: Policy::starting(),
            list_folder: None,
            fetch: None,
            hosts_file: None,
            endpoints: DesignatedEndpoints::default(),
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

/// A client, as a listener sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryClient<'a> {
    /// Address.
    pub address: IpAddr,
    /// Id it gave by the path of DoH or the name of DoT.
    pub id: Option<&'a str>,
    /// Protocol.
    pub protocol: QueryProtocol,
}

impl QueryClient<'_> {
    /// Returns a client of this machine.
    pub fn local(protocol: QueryProtocol) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), id: None, protocol }
    }

    fn limit(&self, query: &WireQuery<'_>) -> usize {
        match self.protocol {
            QueryProtocol::Udp => query.udp_limit(),
            _ => MESSAGE_MAX_BYTES,
        }
    }

    /// Returns the options of a reply that the protocol asks for.
    fn reply_options(&self, query: &WireQuery<'_>, keepalive: &AtomicU16) -> ReplyOptions<'static> {
        let is_stream = matches!(self.protocol, QueryProtocol::Tcp | QueryProtocol::Tls);
        // RFC 7828 §3.2.1: over TCP only, and only to those who sent it.
        let wants_keepalive =
            is_stream && query.options().any(|(code, _)| code == KEEPALIVE_OPTION);
        let padding_block = match self.protocol {
            QueryProtocol::Tls | QueryProtocol::Https => PADDING_BLOCK_BYTES,
            _ => 0,
        };
        ReplyOptions {
            padding_block,
            keepalive: wants_keepalive.then(|| keepalive.load(Ordering::Relaxed)),
            ..ReplyOptions::default()
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
    l0: Arc<L0>,
    l1: L1,
    filter: Arc<ArcSwap<Filter>>,
    policies: PolicyStore,
    lists: Lists,
    labels: Labels,
    queries: QueryQueue,
    rate: RateLimiter,
    cookies: CookieSecret,
    /// Queries above the rate limit.
    limited: AtomicU64,
    /// Idle timeout of connections, in units of 100 ms.
    keepalive: AtomicU16,
    surroundings: Mutex<Surroundings>,
    /// Held while a version of the policy is put into force.
    applying: Mutex<()>,
    flights: Flights,
    refreshes: Refreshes,
    tasks: TaskTracker,
    /// Threads that receive packets start tasks too.
    runtime: tokio::runtime::Handle,
    cancel: CancellationToken,
}

type FlightKey = (Question, AnswerKind, RouteNumber);

impl Resolver {
    /// Opens the resolver on a store. Follows the policy, and clears by other instances, from then on.
    pub async fn open(store: Store, options: ResolverOptions) -> Result<Self, Error> {
        let l1 = L1::new(&store, options.l1.clone());
        let policies = PolicyStore::new(&store, options.default_policy.clone());
        let policy = Self::load_policy(&policies).await;
        if options.upstream.servers.is_empty() && policy.policy.upstreams.servers.is_empty() {
            let message = "name at least one server".to_owned();
            return Err(Error::Invalid { field: "upstream.servers", message });
        }
        let (labels, now) = (Labels::default(), store.now());
        let (folder, fetch) = (options.list_folder.clone(), options.fetch.clone());
        let sources = policy.policy.lists.clone();
        let lists = tokio::task::spawn_blocking(move || {
            let lists = Lists::open(folder.as_deref(), fetch)?;
            lists.load(&sources);
            Ok::<_, Error>(lists)
        });
        let lists = lists.await.map_err(|_| Error::Invalid {
            field: "lists",
            message: "could not be read".to_owned(),
        })??;
        let surroundings = Surroundings::read(&options, &policy.policy);
        let filter = Self::compile(&options, policy, &lists, &labels, &surroundings, None, now)?;
        let (l0, filter) = (L0::new(options.l0_max_bytes), ArcSwap::from_pointee(filter));
        let (l0, filter) = (Arc::new(l0), Arc::new(filter));
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        let flights = Flights::new(&store, &l0, &l1, &filter, &options, &tasks, &cancel);
        let resolver = Self(Arc::new(Inner {
            l0,
            filter,
            flights,
            policies,
            lists,
            labels,
            queries: QueryQueue::default(),
            rate: RateLimiter::new(now),
            cookies: Self::load_cookie_secret(&store).await,
            limited: AtomicU64::new(0),
            keepalive: AtomicU16::new(0),
            surroundings: Mutex::new(surroundings),
            applying: Mutex::default(),
            refreshes: Refreshes {
                permits: Arc::new(Semaphore::new(options.refresh_max_inflight.max(1))),
                running: Mutex::default(),
                counts: RefreshCounts::default(),
            },
            tasks,
            runtime: tokio::runtime::Handle::current(),
            cancel,
            l1,
            store,
            options,
        }));
        // Without the store the resolver works all the same, and finds the spelling out later.
        if let Err(error) = resolver.0.l1.detect_dotted_names().await {
            tracing::warn!(%error, "the cache in the store is not available yet");
        }
        resolver.0.tasks.spawn(resolver.clone().follow_clears());
        resolver.0.tasks.spawn(resolver.0.flights.clone().write_answers());
        resolver.0.tasks.spawn(resolver.clone().govern());
        Ok(resolver)
    }

    /// Reads the secret of cookies; without the store this instance has one of its own.
    async fn load_cookie_secret(store: &Store) -> CookieSecret {
        let loading = CookieSecret::load(store);
        match tokio::time::timeout(Duration::from_secs(2), loading).await {
            Ok(Ok(secret)) => secret,
            _ => CookieSecret::draw(),
        }
    }

    /// Makes known after what time listeners close a connection that rests, for clients that ask.
    pub(crate) fn set_idle_timeout(&self, idle: Duration) {
        let units = u16::try_from(idle.as_millis() / 100).unwrap_or(u16::MAX);
        self.0.keepalive.store(units, Ordering::Relaxed);
    }

    fn reply_options(
        &self,
        client: QueryClient<'_>,
        query: &WireQuery<'_>,
    ) -> ReplyOptions<'static> {
        client.reply_options(query, &self.0.keepalive)
    }

    /// Returns the upstreams.
    pub fn upstreams(&self) -> UpstreamRoutes {
        self.0.filter.load().routes.clone()
    }

    /// Returns the lists.
    pub fn lists(&self) -> &Lists {
        &self.0.lists
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Arc<PolicyVersion> {
        Arc::clone(&self.0.filter.load().policy)
    }

    /// Returns the policy in the store.
    pub fn policies(&self) -> &PolicyStore {
        &self.0.policies
    }

    /// Returns the queue of records of answered queries.
    pub fn queries(&self) -> &QueryQueue {
        &self.0.queries
    }

    /// Returns the names in records.
    pub fn labels(&self) -> &Labels {
        &self.0.labels
    }

    /// Returns the number of queries above the rate limit.
    pub fn rate_limited(&self) -> u64 {
        self.0.limited.load(Ordering::Relaxed)
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
    /// of its own, whose records it hands over with [`hand_over`](Self::hand_over) after each batch.
    pub fn answer_hit(
        &self,
        front: &mut FrontTable,
        packet: &[u8],
        client: QueryClient<'_>,
        now: Millis,
        out: &mut [u8],
    ) -> HitResult {
        let filter = self.0.filter.load();
        if filter.is_expired(now) {
            return HitResult::Miss;
        }
        let mut context = filter.context(client.address, client.id);
        let query = match WireQuery::parse(packet) {
            Ok(query) => query,
            Err(rejection) => {
                return self.reject(packet, rejection, client, context.is_exempt, now, out);
            }
        };
        if let Some(profile) = filter.find_forwarded(client.address, &query) {
            context.profile = profile;
        }
        let profile = filter.profile(context.profile);
        let checked = self.0.cookies.check(&query, unmap(client.address), now);
        let (cookie, is_proven) = match checked {
            QueryCookie::None | QueryCookie::Malformed => (None, false),
            QueryCookie::Good { reply, is_proven } => (Some(reply), is_proven),
        };
        let is_limited = !context.is_exempt && !is_proven;
        if is_limited && !self.0.rate.take(filter.rate, unmap(client.address), now) {
            self.0.limited.fetch_add(1, Ordering::Relaxed);
            let record = Self::record(&filter, context.profile, &query, client, now);
            let record = QueryRecord { outcome: QueryOutcome::RateLimited, ..record };
            front.records.push(record, query.name(), "");
            // Who may not ask has nothing to come back for.
            let is_silent = !context.is_allowed && client.protocol == QueryProtocol::Udp;
            return if is_silent {
                HitResult::Drop
            } else {
                self.limit(&query, client, cookie, out)
            };
        }
        if !context.is_allowed {
            let record = Self::record(&filter, context.profile, &query, client, now);
            let record = QueryRecord { rcode: rcode::REFUSED, ..record };
            front.records.push(record, query.name(), "");
            let options = ReplyOptions {
                error: Some(ExtendedError::PROHIBITED),
                cookie,
                ..self.reply_options(client, &query)
            };
            let refused = write_reply(&query, rcode::REFUSED, options, out);
            return refused.map_or(HitResult::Drop, HitResult::Reply);
        }
        if checked == QueryCookie::Malformed {
            let options = self.reply_options(client, &query);
            let formerr = write_reply(&query, rcode::FORMERR, options, out);
            return formerr.map_or(HitResult::Drop, HitResult::Reply);
        }
        let Some(slot) = profile.verdict_slot() else { return HitResult::Miss };
        let scope = profile.route;
        let key = L0Key::in_scope(query.name(), query.qtype(), query.kind(), scope);
        if query.is_recursion_desired()
            && let Some(entry) = front.entries.get(&self.0.l0, &key, now)
            && entry.passes(slot, filter.generation)
        {
            let options = ReplyOptions { cookie, ..self.reply_options(client, &query) };
            let replayed = self.replay_fresh(entry, &query, client, options, now, out);
            let Some(length) = replayed else { return HitResult::Miss };
            let record = self.record_of(&filter, context.profile, &query, client, now);
            let record = QueryRecord {
                outcome: QueryOutcome::Cached,
                tier: CacheTier::Memory,
                rcode: entry.stored.answer.rcode(),
                upstream: entry.note.upstream,
                ..record
            };
            front.records.push(record, query.name(), &entry.summary);
            return HitResult::Reply(length);
        }
        // An answer made here; of one kind for all kinds of queries.
        let scope = PROFILE_SCOPE + u8::try_from(slot).unwrap_or(0);
        let key = L0Key::in_scope(query.name(), query.qtype(), AnswerKind::Plain, scope);
        let Some(entry) = front.entries.get(&self.0.l0, &key, now) else { return HitResult::Miss };
        let Some(note) = &entry.note.local else { return HitResult::Miss };
        if note.filter_generation != filter.generation {
            return HitResult::Miss;
        }
        // Without RD only what is ours is answered: that a name is blocked would tell that somebody asked.
        let is_ours = note.outcome == QueryOutcome::Local && query.qtype() != rtype::ANY;
        if !is_ours && !query.is_recursion_desired() {
            return HitResult::Miss;
        }
        let error = note.error.as_ref().map(|(code, text)| ExtendedError { code: *code, text });
        let options = ReplyOptions { error, cookie, ..self.reply_options(client, &query) };
        let replayed = self.replay_fresh(entry, &query, client, options, now, out);
        let Some(length) = replayed else { return HitResult::Miss };
        let record = self.record_of(&filter, context.profile, &query, client, now);
        let record = QueryRecord {
            outcome: note.outcome,
            rcode: entry.stored.answer.rcode(),
            list: note.list,
            ..record
        };
        front.records.push(record, query.name(), &entry.summary);
        HitResult::Reply(length)
    }

    /// Hands over the records of the queries that a thread answered.
    pub fn hand_over(&self, front: &mut FrontTable) {
        self.0.queries.extend(&front.records);
        front.records.clear();
    }

    /// Answers a packet that is not a query, within the rate limit.
    fn reject(
        &self,
        packet: &[u8],
        rejection: Rejection,
        client: QueryClient<'_>,
        is_exempt: bool,
        now: Millis,
        out: &mut [u8],
    ) -> HitResult {
        let rate = self.0.filter.load().rate;
        if !is_exempt && !self.0.rate.take(rate, unmap(client.address), now) {
            self.0.limited.fetch_add(1, Ordering::Relaxed);
            return HitResult::Drop;
        }
        write_error(packet, rejection, out).map_or(HitResult::Drop, HitResult::Reply)
    }

    /// Answers a query above the rate limit. Over UDP now and then: truncated, or with the cookie that
    /// lets a client prove its address (RFC 7873 §5.2.3). Over a stream it is refused.
    fn limit(
        &self,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        cookie: Option<[u8; 24]>,
        out: &mut [u8],
    ) -> HitResult {
        let is_answered = self.rate_limited().is_multiple_of(SLIP_ONE_IN);
        let options = ReplyOptions { cookie, ..ReplyOptions::default() };
        let length = match client.protocol {
            QueryProtocol::Udp if !is_answered => None,
            QueryProtocol::Udp if cookie.is_some() => {
                write_reply(query, rcode::BADCOOKIE, options, out)
            }
            QueryProtocol::Udp => write_truncated(query, out),
            _ => write_reply(query, rcode::REFUSED, options, out),
        };
        length.map_or(HitResult::Drop, HitResult::Reply)
    }

    /// Returns a record of a query with the id that its client gave, known to the policy or not.
    fn record_of(
        &self,
        filter: &Filter,
        profile: usize,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        now: Millis,
    ) -> QueryRecord {
        let mut record = Self::record(filter, profile, query, client, now);
        if record.client_id.is_none()
            && let Some(id) = client.id
        {
            record.client_id = self.0.labels.label(id);
        }
        record
    }

    /// Returns a record of a query, refused until something better is known.
    fn record(
        filter: &Filter,
        profile: usize,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        now: Millis,
    ) -> QueryRecord {
        let profile = filter.profile(profile);
        QueryRecord {
            at: now,
            client: unmap(client.address),
            client_id: profile.client,
            group: profile.group,
            list: Label::NONE,
            upstream: Label::NONE,
            qtype: query.qtype(),
            rcode: rcode::NOERROR,
            outcome: QueryOutcome::Refused,
            tier: CacheTier::None,
            protocol: client.protocol,
            duration_us: 0,
        }
    }

    /// Answers a query, from memory, the store or the upstreams. Returns none if there is to be no
    /// reply.
    pub async fn answer(&self, packet: &[u8], client: QueryClient<'_>) -> Option<Vec<u8>> {
        let mut front = FrontTable::new(1);
        let mut out = vec![0; HIT_ROOM_BYTES];
        let hit = self.answer_hit(&mut front, packet, client, self.now(), &mut out);
        self.hand_over(&mut front);
        match hit {
            HitResult::Reply(length) => {
                out.truncate(length);
                return Some(out);
            }
            HitResult::Drop => return None,
            HitResult::Miss => {}
        }
        // A query that waits holds none of it.
        drop((front, out));
        // On its own, so that a hit does not carry the memory that a miss needs.
        Box::pin(self.answer_miss(packet, client)).await
    }

    /// The same, for a query that [`answer_hit`](Self::answer_hit) had no answer to. It has counted
    /// against the rate limit already, and its client may ask, unless the filter changed in between.
    pub(crate) async fn answer_miss(
        &self,
        packet: &[u8],
        client: QueryClient<'_>,
    ) -> Option<Vec<u8>> {
        let started = tokio::time::Instant::now();
        let mut out = Vec::new();
        let now = self.now();
        let filter = self.current_filter(now);
        let mut context = filter.context(client.address, client.id);
        let finish = |mut out: Vec<u8>, result: HitResult| match result {
            HitResult::Reply(length) => {
                out.truncate(length);
                Some(out)
            }
            HitResult::Drop | HitResult::Miss => None,
        };
        let query = match WireQuery::parse(packet) {
            Ok(query) => query,
            Err(rejection) => {
                let room = make_room(&mut out, 0);
                let result = self.reject(packet, rejection, client, true, now, room);
                return finish(out, result);
            }
        };
        if let Some(profile) = filter.find_forwarded(client.address, &query) {
            context.profile = profile;
        }
        let checked = self.0.cookies.check(&query, unmap(client.address), now);
        let cookie = match checked {
            QueryCookie::None | QueryCookie::Malformed => None,
            QueryCookie::Good { reply, .. } => Some(reply),
        };
        let mut record = self.record_of(&filter, context.profile, &query, client, now);
        let mut batch = QueryBatch::default();
        if !context.is_allowed {
            record.rcode = rcode::REFUSED;
            batch.push(record, query.name(), "");
            self.0.queries.extend(&batch);
            let options = ReplyOptions {
                error: Some(ExtendedError::PROHIBITED),
                cookie,
                ..self.reply_options(client, &query)
            };
            let length = write_reply(&query, rcode::REFUSED, options, make_room(&mut out, 0))?;
            return finish(out, HitResult::Reply(length));
        }
        if checked == QueryCookie::Malformed {
            let options = self.reply_options(client, &query);
            let length = write_reply(&query, rcode::FORMERR, options, make_room(&mut out, 0))?;
            return finish(out, HitResult::Reply(length));
        }
        let mut summary = String::new();
        let length = self
            .answer_query(
                &filter,
                context,
                &query,
                client,
                cookie,
                &mut record,
                &mut summary,
                &mut out,
            )
            .await;
        record.duration_us = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
        batch.push(record, query.name(), &summary);
        self.0.queries.extend(&batch);
        out.truncate(length?);
        Some(out)
    }

    /// Writes a fresh answer and schedules its refresh when it is due; none if it is stale.
    fn replay_fresh(
        &self,
        entry: &Arc<L0Entry>,
        query: &WireQuery<'_>,
        client: QueryClient<'_>,
        options: ReplyOptions<'_>,
        now: Millis,
        out: &mut [u8],
    ) -> Option<usize> {
        if entry.stored.remaining(now) <= 0 {
            return None;
        }
        let ttl = self.fresh_ttl(entry, now);
        let limit = client.limit(query);
        let length = entry.stored.answer.replay(query, ttl, options, limit, out)?;
        entry.count_hit();
        if entry.is_shared() {
            self.refresh_ahead(entry, now);
        }
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

    /// Clears the cache on every instance. Returns the number of answers deleted from the store.
    pub async fn clear(&self) -> Result<u64, Error> {
        self.0.flights.clear().await
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
                    self.0.flights.clear_memory();
                    known = generation;
                }
                let message = tokio::select! {
                    () = self.0.cancel.cancelled() => return,
                    message = clears.recv() => message,
                };
                match message {
                    None => break,
                    Some(PubsubMessage::Published { payload, .. }) => {
                        if let Some(question) = question_from_key(&payload) {
                            self.drop_from_memory(&question);
                        }
                    }
                    Some(PubsubMessage::Gap) => {}
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
