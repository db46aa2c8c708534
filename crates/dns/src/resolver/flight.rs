//! Flights: misses that share one way to the store and the upstreams.
//!
//! Invariants: a flight is in the map until its result is known, and an answer is in L0 before it
//! leaves the map, so that whoever comes later finds one or the other; nobody joins a flight whose
//! result somebody has seen.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::Millis;
use tokio::sync::watch;

use super::{FLIGHTS_MAX, FlightKey, Resolver};
use crate::{
    keys::Question,
    l0::{L0Entry, L0Key},
    l1::{StoredAnswer, StoredEntry},
    wire::AnswerKind,
};

/// Failures remembered at the same time.
const FAILURES_MAX: usize = 10_000;

/// First and longest time for which a failure is remembered, RFC 9520 §3.2.
const FAILURE_TTL: Duration = Duration::from_secs(1);
const FAILURE_TTL_MAX: Duration = Duration::from_secs(300);

/// Shortest time between two attempts while a stale answer is there to be given, RFC 8767 §5.
const STALE_RETRY: Duration = Duration::from_secs(30);

/// Result of a flight.
#[derive(Clone, Debug)]
pub(super) enum FlightResult {
    /// A fresh answer.
    Answer(Arc<L0Entry>),
    /// No upstream gave an answer.
    Failed {
        /// An expired answer from the store.
        stale: Option<Arc<L0Entry>>,
    },
}

impl Resolver {
    /// Waits for the flight of a question, started if there is none. None if it takes too long.
    pub(super) async fn wait_for_flight(
        &self,
        question: Question,
        kind: AnswerKind,
    ) -> Option<FlightResult> {
        let mut result = self.join_flight((question, kind))?;
        let done = result.wait_for(Option::is_some);
        let done = tokio::time::timeout(self.0.options.client_timeout, done).await.ok()?.ok()?;
        done.clone()
    }

    fn join_flight(&self, key: FlightKey) -> Option<watch::Receiver<Option<FlightResult>>> {
        let mut flights = self.0.flights.lock();
        if let Some(flight) = flights.get(&key) {
            return Some(flight.clone());
        }
        if flights.len() >= FLIGHTS_MAX {
            return None;
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), receiver.clone());
        drop(flights);
        let resolver = self.clone();
        self.0.tasks.spawn(async move {
            // Taken out of the map in any case, also when the task is dropped at the end.
            let landing = Landing { resolver: &resolver, key: &key };
            let (question, kind) = &key;
            let fly = resolver.fly(question, *kind);
            let result = tokio::select! {
                () = resolver.0.cancel.cancelled() => FlightResult::Failed { stale: None },
                result = fly => result,
            };
            // Before those who wait hear of it, so that a query that follows theirs starts afresh.
            drop(landing);
            sender.send_replace(Some(result));
        });
        Some(receiver)
    }

    async fn fly(&self, question: &Question, kind: AnswerKind) -> FlightResult {
        let generation = self.0.l0.generation();
        let now = self.now();
        let key = L0Key::of_question(question, kind);
        // Another flight may have landed between the look into memory and the start of this one.
        if let Some(entry) = self.0.l0.get(&key, now)
            && entry.stored.remaining(now) > 0
        {
            return FlightResult::Answer(entry);
        }
        let known = self.read_store(question, kind, now).await;
        let stored = known.of_kind(kind).cloned();
        if let Some(stored) = &stored
            && stored.remaining(now) > 0
        {
            return FlightResult::Answer(self.remember(&key, stored.clone(), generation));
        }
        let stale = stored.map(|stored| self.remember(&key, stored, generation));
        let stale = stale.or_else(|| self.0.l0.get(&key, now));
        if self.0.failures.is_recent(question, kind, now) {
            return FlightResult::Failed { stale };
        }
        let Some((entry, stored)) = self.ask_once(question, kind, generation).await else {
            if stale.is_some() {
                self.0.failures.hold(question, kind, self.now() + STALE_RETRY);
            }
            return FlightResult::Failed { stale };
        };
        // The client does not wait for the store.
        let (resolver, question) = (self.clone(), question.clone());
        self.0.tasks.spawn(async move {
            resolver.store_answer(&question, kind, &stored, &known, generation).await;
        });
        FlightResult::Answer(entry)
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
        self.0.l1.get(question, now).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the cache in the store is not available");
            StoredEntry::default()
        })
    }

    /// Asks the upstreams and puts the answer into memory.
    pub(super) async fn ask_once(
        &self,
        question: &Question,
        kind: AnswerKind,
        generation: u64,
    ) -> Option<(Arc<L0Entry>, StoredAnswer)> {
        let asked = self.0.upstreams.ask(question, kind, self.0.options.ttl_bounds).await;
        let now = self.now();
        match asked {
            Ok(answer) => {
                self.0.failures.forget(question, kind);
                let stored = StoredAnswer::new(Arc::new(answer), now);
                let key = L0Key::of_question(question, kind);
                Some((self.remember(&key, stored.clone(), generation), stored))
            }
            Err(error) => {
                tracing::debug!(name = %question.name, %error, "no upstream answered");
                self.0.failures.note(question, kind, now);
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
        if self.0.l0.generation() != generation {
            return;
        }
        if let Err(error) = self.0.l1.put(question, kind, stored, known, self.now()).await {
            tracing::debug!(%error, "an answer was not stored");
        }
    }

    fn remember(&self, key: &L0Key, stored: StoredAnswer, generation: u64) -> Arc<L0Entry> {
        self.0.l0.insert(key, stored, self.0.options.l1.grace, generation)
    }
}

/// Takes a flight out of the map when it has landed.
struct Landing<'a> {
    resolver: &'a Resolver,
    key: &'a FlightKey,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.resolver.0.flights.lock().remove(self.key);
    }
}

/// Failures of upstreams, remembered for 1 s at first and twice as long each time (RFC 9520).
#[derive(Debug, Default)]
pub(super) struct FailureCache(Mutex<HashMap<FlightKey, Failure>>);

#[derive(Clone, Copy, Debug)]
struct Failure {
    until: Millis,
    ttl: Duration,
}

impl FailureCache {
    fn is_recent(&self, question: &Question, kind: AnswerKind, now: Millis) -> bool {
        let failures = self.0.lock();
        failures.get(&(question.clone(), kind)).is_some_and(|failure| now < failure.until)
    }

    fn note(&self, question: &Question, kind: AnswerKind, now: Millis) {
        let mut failures = self.0.lock();
        if failures.len() >= FAILURES_MAX {
            failures.retain(|_, failure| now < failure.until);
        }
        if failures.len() >= FAILURES_MAX {
            // Remembering nothing is safe: the upstreams are asked once more.
            failures.clear();
        }
        let failure = failures
            .entry((question.clone(), kind))
            .and_modify(|failure| failure.ttl = (failure.ttl * 2).min(FAILURE_TTL_MAX))
            .or_insert(Failure { until: now, ttl: FAILURE_TTL });
        failure.until = now + failure.ttl;
    }

    /// Remembers a failure at least until then.
    fn hold(&self, question: &Question, kind: AnswerKind, until: Millis) {
        if let Some(failure) = self.0.lock().get_mut(&(question.clone(), kind)) {
            failure.until = failure.until.max(until);
        }
    }

    fn forget(&self, question: &Question, kind: AnswerKind) {
        self.0.lock().remove(&(question.clone(), kind));
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
