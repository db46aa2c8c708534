//! Flights: misses that share one way to the store and the upstreams, and the failures of names.
//!
//! [`Flights`] owns both, and what they put into memory and the store; the resolver asks it and is never
//! asked by it.
//!
//! Invariants: a flight is in the map until its result is known, and an answer is in L0 before it
//! leaves the map, so that whoever comes later finds one or the other; nobody joins a flight whose
//! result somebody has seen.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use store::{Millis, Store};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{FlightKey, ResolverOptions};
use crate::{
    Error,
    filter::Filter,
    l0::{EntryNote, L0, L0Entry, L0Key},
    l1::{L1, PendingAnswer, RefreshLock, StoredAnswer, StoredEntry},
    name::Question,
    query_record::CacheTier,
    upstream::{RouteNumber, UpstreamAnswer},
    wire::{AnswerKind, TtlBounds},
};

/// Misses that wait for upstreams; more are answered with SERVFAIL.
const FLIGHTS_MAX: usize = 10_000;

/// Failures remembered at the same time.
const FAILURES_MAX: usize = 10_000;

/// First and longest time for which a failure is remembered, RFC 9520 §3.2.
const FAILURE_TTL: Duration = Duration::from_secs(1);
const FAILURE_TTL_MAX: Duration = Duration::from_secs(300);

/// Shortest time between two attempts while a stale answer is there to be given, RFC 8767 §5.
const STALE_RETRY: Duration = Duration::from_secs(30);

/// Longest wait for the store, and the time for which it is left alone after a failure.
const STORE_TIMEOUT: Duration = Duration::from_millis(300);
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Answers that wait to be stored, and those that are stored with one call.
const WRITES_MAX: usize = 10_000;
const WRITES_TOGETHER: usize = 32;

/// Result of a flight.
#[derive(Clone, Debug)]
pub(super) enum FlightResult {
    /// A fresh answer.
    Answer {
        entry: Arc<L0Entry>,
        /// Tier that had it; none if an upstream gave it.
        tier: CacheTier,
    },
    /// No upstream gave an answer.
    Failed {
        /// An expired answer from the store.
        stale: Option<Arc<L0Entry>>,
    },
}

/// Instance that refreshes an answer.
#[derive(Debug)]
pub(super) enum RefreshTurn {
    /// This one. Without the store there is no lock, and each instance refreshes for itself.
    Ours(Option<RefreshLock>),
    /// Another one.
    Others,
}

/// The way of misses to the store and the upstreams, and the failures of names. A cheap clone.
#[derive(Clone, Debug)]
pub(super) struct Flights(Arc<FlightsInner>);

#[derive(Debug)]
struct FlightsInner {
    store: Store,
    l0: Arc<L0>,
    l1: L1,
    /// The filter in force, which has the upstreams.
    filter: Arc<ArcSwap<Filter>>,
    client_timeout: Duration,
    grace: Duration,
    ttl_bounds: TtlBounds,
    in_flight: Mutex<HashMap<FlightKey, watch::Receiver<Option<FlightResult>>>>,
    failures: FailureCache,
    store_breaker: StoreBreaker,
    writes: WriteQueue,
    /// Flights that nobody waits for any more; the resolver awaits them at its end.
    tasks: TaskTracker,
    /// Threads that receive packets start tasks too.
    runtime: Handle,
    cancel: CancellationToken,
}

impl Flights {
    pub(super) fn new(
        store: &Store,
        l0: &Arc<L0>,
        l1: &L1,
        filter: &Arc<ArcSwap<Filter>>,
        options: &ResolverOptions,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Self {
        Self(Arc::new(FlightsInner {
            store: store.clone(),
            l0: Arc::clone(l0),
            l1: l1.clone(),
            filter: Arc::clone(filter),
            client_timeout: options.client_timeout,
            grace: options.l1.grace,
            ttl_bounds: options.ttl_bounds,
            in_flight: Mutex::default(),
            failures: FailureCache::default(),
            store_breaker: StoreBreaker::default(),
            writes: WriteQueue::default(),
            tasks: tasks.clone(),
            runtime: Handle::current(),
            cancel: cancel.clone(),
        }))
    }

    fn now(&self) -> Millis {
        self.0.store.now()
    }

    /// Waits for the flight of a question, which this caller leads if there is none. None if it takes
    /// too long.
    pub(super) async fn wait_for(
        &self,
        question: Question,
        kind: AnswerKind,
        route: RouteNumber,
    ) -> Option<FlightResult> {
        let timeout = self.0.client_timeout;
        match self.join((question, kind, route))? {
            JoinedFlight::Passenger(mut result) => {
                let done = result.wait_for(Option::is_some);
                tokio::time::timeout(timeout, done).await.ok()?.ok()?.clone()
            }
            JoinedFlight::Leader(mut leader) => {
                let flight = leader.flight.as_mut()?;
                let result = tokio::time::timeout(timeout, flight).await.ok()?;
                leader.flight = None;
                Some(result)
            }
        }
    }

    fn join(&self, key: FlightKey) -> Option<JoinedFlight> {
        let mut flights = self.0.in_flight.lock();
        if let Some(flight) = flights.get(&key) {
            return Some(JoinedFlight::Passenger(flight.clone()));
        }
        if flights.len() >= FLIGHTS_MAX {
            return None;
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), receiver);
        drop(flights);
        let flights = self.clone();
        let flight = async move {
            // Taken out of the map in any case, also when the task is dropped at the end.
            let landing = Landing { flights: &flights, key: &key };
            let (question, kind, route) = &key;
            let result = flights.fly(question, *kind, *route).await;
            // Before those who wait hear of it, so that a query that follows theirs starts afresh.
            drop(landing);
            sender.send_replace(Some(result.clone()));
            result
        };
        let leader = FlightLeader { flights: self.clone(), flight: Some(Box::pin(flight)) };
        Some(JoinedFlight::Leader(leader))
    }

    async fn fly(&self, question: &Question, kind: AnswerKind, route: RouteNumber) -> FlightResult {
        let generation = self.0.l0.generation();
        let now = self.now();
        let key = key_of(question, kind, route);
        // Another flight may have landed between the look into memory and the start of this one.
        if let Some(entry) = self.0.l0.get(&key, now)
            && entry.stored.remaining(now) > 0
        {
            return FlightResult::Answer { entry, tier: CacheTier::Memory };
        }
        if let Some(entry) = self.find_denial(question, kind, route, generation, now) {
            return FlightResult::Answer { entry, tier: CacheTier::Memory };
        }
        // What a group's own upstreams say is not for others.
        let known = match route {
            0 => self.read_store(question, kind, now).await,
            _ => StoredEntry::default(),
        };
        let stored = known.of_kind(kind).cloned();
        if let Some(stored) = &stored
            && stored.remaining(now) > 0
        {
            let note = EntryNote::default();
            let entry = self.remember(&key, stored.clone(), generation, note);
            return FlightResult::Answer { entry, tier: CacheTier::Store };
        }
        let stale =
            stored.map(|stored| self.remember(&key, stored, generation, EntryNote::default()));
        let stale = stale.or_else(|| self.0.l0.get(&key, now));
        if self.has_failed(question, kind, route, now) {
            return FlightResult::Failed { stale };
        }
        let Some((entry, stored)) = self.ask_once(question, kind, route, generation).await else {
            if stale.is_some() {
                self.0.failures.hold(question, kind, route, self.now() + STALE_RETRY);
            }
            return FlightResult::Failed { stale };
        };
        let answer = FlightResult::Answer { entry, tier: CacheTier::None };
        if route != 0 {
            return answer;
        }
        // The client does not wait for the store.
        let question = question.clone();
        self.0.writes.push(PendingAnswer { question, kind, stored, known, generation });
        answer
    }

    /// Stores answers as they come, those that came meanwhile together; at the end those that wait.
    pub(super) async fn write_answers(self) {
        loop {
            let is_over = self.0.cancel.is_cancelled();
            let mut waiting = self.0.writes.take();
            let generation = self.0.l0.generation();
            // What was asked for before a clear is not stored after it.
            waiting.retain(|answer| answer.generation == generation);
            for answers in waiting.chunks(WRITES_TOGETHER) {
                let _storing = self.0.writes.storing.read().await;
                if self.0.l0.generation() != generation {
                    break;
                }
                // Nobody waits for it, so it is tried even while reads are not.
                match self.0.l1.put_all(answers, self.now()).await {
                    Ok(()) => self.0.store_breaker.close(),
                    Err(error) => tracing::debug!(%error, "answers were not stored"),
                }
            }
            if is_over {
                return;
            }
            if waiting.is_empty() {
                tokio::select! {
                    () = self.0.cancel.cancelled() => {}
                    () = self.0.writes.wake.notified() => {}
                }
            }
        }
    }

    /// Finds the denial of a name by another type (RFC 2308 §5), or in that of a name above it
    /// (RFC 8020). Not for signed answers, whose proof is of another name.
    fn find_denial(
        &self,
        question: &Question,
        kind: AnswerKind,
        route: RouteNumber,
        generation: u64,
        now: Millis,
    ) -> Option<Arc<L0Entry>> {
        if kind != AnswerKind::Plain {
            return None;
        }
        let own = Some(question.name.as_wire()).filter(|name| name.len() > 1);
        let mut names = std::iter::successors(own, |name| parent_of(name));
        names.find_map(|name| {
            let entry = self.0.l0.get(&denial_key(name, route), now)?;
            if entry.stored.remaining(now) <= 0 {
                return None;
            }
            let stored = StoredAnswer {
                answer: Arc::new(entry.stored.answer.denial_of(question)?),
                ..entry.stored.clone()
            };
            // Another type of the name is kept, as it is asked for again. Names below are without end: they
            // are made each time, of the one that is kept.
            let is_own = name.len() == question.name.as_wire().len();
            let kept = if is_own { generation } else { u64::MAX };
            let (key, note) = (key_of(question, kind, route), entry.note.clone());
            Some(self.0.l0.insert_noted(&key, stored, Duration::ZERO, kept, note))
        })
    }

    /// Asks the upstreams and keeps nothing.
    pub(super) async fn ask_uncached(
        &self,
        question: &Question,
        kind: AnswerKind,
        route: RouteNumber,
    ) -> Option<Arc<L0Entry>> {
        Some(self.ask_once(question, kind, route, u64::MAX).await?.0)
    }

    /// Reads the store; a store that is away is a miss.
    pub(super) async fn read_store(
        &self,
        question: &Question,
        kind: AnswerKind,
        now: Millis,
    ) -> StoredEntry {
        if kind.is_unchecked() {
            return StoredEntry::default();
        }
        // On its own, so that a query that waits for upstreams does not carry its memory.
        let read = Box::pin(self.0.l1.get(question, now));
        self.0.store_breaker.run(read).await.unwrap_or_default()
    }

    /// Takes the lock of a refresh.
    pub(super) async fn lock_refresh(&self, question: &Question) -> RefreshTurn {
        match self.0.store_breaker.run(self.0.l1.lock_refresh(question)).await {
            Some(Some(lock)) => RefreshTurn::Ours(Some(lock)),
            Some(None) => RefreshTurn::Others,
            None => RefreshTurn::Ours(None),
        }
    }

    /// Returns true if the upstreams failed to answer this a short while ago.
    pub(super) fn has_failed(
        &self,
        question: &Question,
        kind: AnswerKind,
        route: RouteNumber,
        now: Millis,
    ) -> bool {
        self.0.failures.is_recent(question, kind, route, now)
    }

    /// Drops what is in memory.
    pub(super) fn clear_memory(&self) {
        self.0.l0.clear();
        self.0.failures.clear();
    }

    /// Drops what is in memory and in the store, and tells all instances. Returns the number of answers
    /// deleted from the store.
    pub(super) async fn clear(&self) -> Result<u64, Error> {
        self.clear_memory();
        // From here on nothing of before is stored; what is on its way is waited for, and deleted.
        let _alone = self.0.writes.storing.write().await;
        let deleted = self.0.l1.clear().await;
        // What was stored between the two would be of before.
        self.0.l0.clear();
        deleted
    }

    /// Asks the upstreams and puts the answer into memory.
    pub(super) async fn ask_once(
        &self,
        question: &Question,
        kind: AnswerKind,
        route: RouteNumber,
        generation: u64,
    ) -> Option<(Arc<L0Entry>, StoredAnswer)> {
        let routes = self.0.filter.load().routes.clone();
        let upstreams = routes.find(&question.name, route);
        let asked = upstreams.ask(question, kind, self.0.ttl_bounds).await;
        let now = self.now();
        match asked {
            Ok(UpstreamAnswer { answer, server }) => {
                self.0.failures.forget(question, kind, route);
                let stored = StoredAnswer::new(Arc::new(answer), now);
                let key = key_of(question, kind, route);
                let note = EntryNote { upstream: server, local: None };
                Some((self.remember(&key, stored.clone(), generation, note), stored))
            }
            Err(error) => {
                tracing::debug!(name = %question.name, %error, "no upstream answered");
                self.0.failures.note(question, kind, route, now);
                None
            }
        }
    }

    /// Puts an answer into the store, unless the cache was cleared since it was asked for.
    pub(super) async fn store_answer(
        &self,
        question: &Question,
        kind: AnswerKind,
        stored: &StoredAnswer,
        known: &StoredEntry,
        generation: u64,
    ) {
        let _storing = self.0.writes.storing.read().await;
        if self.0.l0.generation() != generation {
            return;
        }
        // Nobody waits for it, so it is tried even while reads are not.
        match self.0.l1.put(question, kind, stored, known, self.now()).await {
            Ok(()) => self.0.store_breaker.close(),
            Err(error) => tracing::debug!(%error, "an answer was not stored"),
        }
    }

    /// Keeps an answer in memory.
    pub(super) fn remember(
        &self,
        key: &L0Key,
        stored: StoredAnswer,
        generation: u64,
        note: EntryNote,
    ) -> Arc<L0Entry> {
        let (l0, grace) = (&self.0.l0, self.0.grace);
        if generation == l0.generation() && stored.stored_ttl > 0 {
            self.remember_denial(key, &stored, generation, &note);
        }
        l0.insert_noted(key, stored, grace, generation, note)
    }

    /// Keeps a denial for all types of its name, and drops it when the name turns out to exist.
    fn remember_denial(
        &self,
        key: &L0Key,
        stored: &StoredAnswer,
        generation: u64,
        note: &EntryNote,
    ) {
        let (name, kind, route) = key.parts();
        let denial = denial_key(name, route);
        if stored.answer.is_denial() {
            if kind == AnswerKind::Plain as u8 {
                let (stored, note) = (stored.clone(), note.clone());
                self.0.l0.insert_noted(&denial, stored, Duration::ZERO, generation, note);
            }
        } else if self.0.l0.get(&denial, self.now()).is_some() {
            self.0.l0.remove(&denial);
        }
    }
}

/// Answers on their way to the store, bounded: what finds no room is kept in memory only.
#[derive(Debug, Default)]
struct WriteQueue {
    waiting: Mutex<Vec<PendingAnswer>>,
    wake: Notify,
    /// Held shared while answers are stored, so that a clear waits for those that are on their way.
    storing: tokio::sync::RwLock<()>,
}

impl WriteQueue {
    fn push(&self, answer: PendingAnswer) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WRITES_MAX {
            tracing::debug!("an answer was not stored: too many wait");
            return;
        }
        waiting.push(answer);
        let is_first = waiting.len() == 1;
        drop(waiting);
        // The others are seen with the first.
        if is_first {
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Vec<PendingAnswer> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// A caller's part in a flight.
enum JoinedFlight {
    Leader(FlightLeader),
    Passenger(watch::Receiver<Option<FlightResult>>),
}

/// The caller that runs a flight. One that leaves before its end, because its client has waited long
/// enough or is gone, hands the flight on to a task: others may wait for it, and the answer is kept.
struct FlightLeader {
    flights: Flights,
    flight: Option<BoxFuture<'static, FlightResult>>,
}

impl Drop for FlightLeader {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let cancel = self.flights.0.cancel.clone();
            let flying = async move {
                tokio::select! {
                    () = cancel.cancelled() => {}
                    _ = flight => {}
                }
            };
            self.flights.0.tasks.spawn_on(flying, &self.flights.0.runtime);
        }
    }
}

/// Returns the name above a name, its end; none above the root's children, because the root is not denied.
fn parent_of(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first()?;
    rest.get(usize::from(*length)..).filter(|rest| rest.len() > 1)
}

/// Returns the key of the denial of a name, of whatever type. No record has type 0.
pub(super) fn denial_key(name: &[u8], route: RouteNumber) -> L0Key {
    L0Key::in_scope(name, 0, AnswerKind::Plain, route)
}

fn key_of(question: &Question, kind: AnswerKind, route: RouteNumber) -> L0Key {
    L0Key::in_scope(question.name.as_wire(), question.qtype, kind, route)
}

/// Takes a flight out of the map when it has landed.
struct Landing<'a> {
    flights: &'a Flights,
    key: &'a FlightKey,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.flights.0.in_flight.lock().remove(self.key);
    }
}

/// Circuit breaker of the store: after a call that failed or took too long, none is made for a while,
/// so that a store that hangs costs a query some milliseconds and the next ones nothing.
#[derive(Debug, Default)]
struct StoreBreaker(Mutex<Option<Instant>>);

impl StoreBreaker {
    /// Lets calls be made again: the store is there.
    fn close(&self) {
        *self.0.lock() = None;
    }

    /// Makes a call; none while the breaker is open, and if the call fails or takes too long.
    async fn run<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        if self.0.lock().is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let failure = match tokio::time::timeout(STORE_TIMEOUT, call).await {
            Ok(Ok(value)) => {
                self.close();
                return Some(value);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no reply in time".to_owned(),
        };
        tracing::debug!(error = %failure, "the cache in the store is not available");
        *self.0.lock() = Some(Instant::now() + STORE_PAUSE);
        None
    }
}

/// Failures of upstreams, remembered for 1 s at first and twice as long each time (RFC 9520).
#[derive(Debug, Default)]
struct FailureCache(Mutex<HashMap<FlightKey, Failure>>);

#[derive(Clone, Copy, Debug)]
struct Failure {
    until: Millis,
    ttl: Duration,
}

impl FailureCache {
    fn is_recent(
        &self,
        question: &Question,
        kind: AnswerKind,
        route: RouteNumber,
        now: Millis,
    ) -> bool {
        let failures = self.0.lock();
        if failures.is_empty() {
            return false;
        }
        failures.get(&(question.clone(), kind, route)).is_some_and(|failure| now < failure.until)
    }

    fn note(&self, question: &Question, kind: AnswerKind, route: RouteNumber, now: Millis) {
        let mut failures = self.0.lock();
        if failures.len() >= FAILURES_MAX {
            failures.retain(|_, failure| now < failure.until);
        }
        if failures.len() >= FAILURES_MAX {
            // Remembering nothing is safe: the upstreams are asked once more.
            failures.clear();
        }
        let failure = failures
            .entry((question.clone(), kind, route))
            .and_modify(|failure| failure.ttl = (failure.ttl * 2).min(FAILURE_TTL_MAX))
            .or_insert(Failure { until: now, ttl: FAILURE_TTL });
        failure.until = now + failure.ttl;
    }

    /// Remembers a failure at least until then.
    fn hold(&self, question: &Question, kind: AnswerKind, route: RouteNumber, until: Millis) {
        if let Some(failure) = self.0.lock().get_mut(&(question.clone(), kind, route)) {
            failure.until = failure.until.max(until);
        }
    }

    fn forget(&self, question: &Question, kind: AnswerKind, route: RouteNumber) {
        let mut failures = self.0.lock();
        if failures.is_empty() {
            return;
        }
        failures.remove(&(question.clone(), kind, route));
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}
