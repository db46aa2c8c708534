//! Refresh: answers that are asked for often are renewed before they expire.
//!
//! A hit looks at its entry and, when little of its TTL is left, starts a refresh in the background;
//! the sweep does the same for what the expiry index says is due. Invariants: at most so many at once
//! as is set; of all instances one refreshes an answer (the lock in the store), the others take over
//! what it stored; a refresh asks for the same kind of answer.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::Millis;
use tokio::sync::Semaphore;

use super::{
    FlightKey, Resolver,
    flight::{RefreshTurn, denial_key},
};
use crate::{
    Error,
    l0::{EntryNote, L0Entry, L0Key},
    l1::{RefreshLock, StoredEntry},
    name::Question,
    wire::AnswerKind,
};

/// Answers that expire within this time are refreshed by the sweep.
const SWEEP_WINDOW: Duration = Duration::from_secs(60);

/// Most answers that one sweep looks at.
const SWEEP_MAX: usize = 2_000;

/// Wait before an answer that another instance refreshes is looked at again. Hits come faster than that.
const LOCKED_RETRY: Duration = Duration::from_secs(1);

/// Fewest hits since the last sweep for which they are written to the store.
const WRITTEN_HITS_MIN: u32 = 2;

/// Eagerness of refreshing, as the original's presets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefreshPreset {
    /// Nothing is refreshed before it expires.
    Off,
    /// Names in frequent use with half of their TTL left.
    Aggressive,
    /// With 30 % left.
    #[default]
    Balanced,
    /// With 20 % left.
    Conservative,
}

/// Thresholds of a preset.
struct Thresholds {
    /// Share of the TTL, in percent, below which a hot answer is refreshed: at least 2 hits.
    hot_percent: u64,
    /// The same of a warm one: 1 hit.
    warm_percent: u64,
    /// Refresh what the source holds to be expired, if it is kept longer than its source says.
    past_auth_ttl: bool,
}

impl RefreshPreset {
    fn thresholds(self) -> Option<Thresholds> {
        let of = |hot_percent, warm_percent, past_auth_ttl| {
            Some(Thresholds { hot_percent, warm_percent, past_auth_ttl })
        };
        match self {
            Self::Off => None,
            Self::Aggressive => of(50, 35, true),
            Self::Balanced => of(30, 25, true),
            Self::Conservative => of(20, 15, false),
        }
    }

    /// Returns true if an answer with so many hits is to be refreshed now.
    fn is_due(self, entry: &L0Entry, hits: u32, now: Millis) -> bool {
        let (Some(thresholds), stored) = (self.thresholds(), &entry.stored) else { return false };
        let Ok(remaining) = u64::try_from(stored.remaining(now)) else { return false };
        let percent = match hits {
            0 => return false,
            1 => thresholds.warm_percent,
            _ => thresholds.hot_percent,
        };
        let is_late = remaining * 100 <= u64::from(stored.stored_ttl) * percent;
        let is_past_auth = thresholds.past_auth_ttl
            && (1..stored.stored_ttl).contains(&stored.auth_ttl)
            && stored.age(now) >= stored.auth_ttl;
        is_late || is_past_auth
    }
}

/// Refreshes in flight.
#[derive(Debug)]
pub(super) struct Refreshes {
    pub(super) permits: Arc<Semaphore>,
    /// Questions being refreshed by this instance, for when the store's lock is out of reach.
    pub(super) running: Mutex<HashSet<FlightKey>>,
    pub(super) counts: RefreshCounts,
}

/// Cause of a refresh.
#[derive(Clone, Copy, Debug)]
enum RefreshCause {
    /// A hit on an answer with at least 2 hits of late.
    Hot,
    /// The first hit of late.
    Warm,
    /// The sweep.
    Sweep,
}

/// Result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefreshResult {
    /// The upstreams gave a new answer.
    Refreshed,
    /// It was not needed any more, or no upstream answered.
    NotRefreshed,
    /// Another instance has the lock.
    LockedElsewhere,
}

/// Counters of refreshes.
#[derive(Debug, Default)]
pub(super) struct RefreshCounts {
    hot: AtomicU64,
    warm: AtomicU64,
    sweep: AtomicU64,
}

impl RefreshCounts {
    fn add(&self, cause: RefreshCause) {
        let counter = match cause {
            RefreshCause::Hot => &self.hot,
            RefreshCause::Warm => &self.warm,
            RefreshCause::Sweep => &self.sweep,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Answers that this instance refreshed since its start, by cause. What another instance had refreshed
/// already is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefreshStats {
    /// By a hit on an answer with at least 2 hits of late.
    pub hot: u64,
    /// By the first hit of late.
    pub warm: u64,
    /// By the sweep.
    pub sweep: u64,
}

/// Results of one sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Expired entries dropped from memory.
    pub dropped: usize,
    /// Members of the expiry index without an answer.
    pub reconciled: usize,
    /// Answers removed to keep the cap.
    pub evicted: usize,
    /// Answers removed because nobody asked for them.
    pub cold: usize,
    /// Answers refreshed by this instance.
    pub refreshed: usize,
}

impl Resolver {
    /// Starts a refresh in the background if the entry is due and there is room for one more.
    pub(super) fn refresh_ahead(&self, entry: &Arc<L0Entry>, now: Millis) {
        let hits = entry.hits();
        if !self.0.options.refresh.is_due(entry, hits, now) {
            return;
        }
        let cause = if hits > 1 { RefreshCause::Hot } else { RefreshCause::Warm };
        // One attempt per entry; the answer that replaces it has a mark of its own.
        if !entry.claim_refresh() {
            return;
        }
        let Some((question, kind)) = entry.question() else { return };
        let Ok(permit) = Arc::clone(&self.0.refreshes.permits).try_acquire_owned() else {
            entry.release_refresh();
            return;
        };
        let (resolver, entry) = (self.clone(), Arc::clone(entry));
        let cancel = self.0.cancel.clone();
        let refreshing = Box::pin(async move {
            let result = resolver.refresh(&question, kind, entry.stored.soft_expiry).await;
            drop(permit);
            match result {
                RefreshResult::Refreshed => resolver.0.refreshes.counts.add(cause),
                RefreshResult::NotRefreshed => {}
                // What the other one stores is taken over with a later hit.
                RefreshResult::LockedElsewhere => {
                    tokio::time::sleep(LOCKED_RETRY).await;
                    entry.release_refresh();
                }
            }
        });
        self.0.tasks.spawn_on(
            async move {
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = refreshing => {}
                }
            },
            &self.0.runtime,
        );
    }

    /// Returns the number of refreshes since the start, by cause.
    pub fn refresh_stats(&self) -> RefreshStats {
        let counts = &self.0.refreshes.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RefreshStats {
            hot: read(&counts.hot),
            warm: read(&counts.warm),
            sweep: read(&counts.sweep),
        }
    }

    /// Refreshes what is kept of a question now, however fresh it is. Returns true if the upstreams gave a
    /// new answer.
    pub async fn refresh_answer(&self, question: &Question) -> bool {
        let now = self.now();
        let known = self.0.flights.read_store(question, AnswerKind::Plain, now).await;
        let mut is_refreshed = false;
        for kind in [AnswerKind::Plain, AnswerKind::Signed] {
            let in_memory = self.0.l0.get(&L0Key::of_question(question, kind), now).is_some();
            if known.of_kind(kind).is_some() || in_memory {
                let result = self.refresh(question, kind, i64::MAX).await;
                is_refreshed |= result == RefreshResult::Refreshed;
            }
        }
        is_refreshed
    }

    /// Refreshes an answer unless another instance does or did.
    async fn refresh(
        &self,
        question: &Question,
        kind: AnswerKind,
        soft_expiry: i64,
    ) -> RefreshResult {
        let running = (question.clone(), kind, 0);
        if !self.0.refreshes.running.lock().insert(running.clone()) {
            return RefreshResult::NotRefreshed;
        }
        let _ended = RefreshEnd { resolver: self, key: running };
        let lock = match kind.is_unchecked() {
            true => None,
            false => match self.0.flights.lock_refresh(question).await {
                RefreshTurn::Ours(lock) => lock,
                RefreshTurn::Others => return RefreshResult::LockedElsewhere,
            },
        };
        let result = self.refresh_locked(question, kind, soft_expiry).await;
        if let Some(lock) = lock {
            self.unlock(lock).await;
        }
        result
    }

    async fn refresh_locked(
        &self,
        question: &Question,
        kind: AnswerKind,
        soft_expiry: i64,
    ) -> RefreshResult {
        let (now, generation) = (self.now(), self.0.l0.generation());
        let known = self.0.flights.read_store(question, kind, now).await;
        if let Some(stored) = known.of_kind(kind)
            && stored.soft_expiry > soft_expiry
            && stored.remaining(now) > 0
        {
            let key = L0Key::of_question(question, kind);
            self.0.flights.remember(&key, stored.clone(), generation, EntryNote::default());
            return RefreshResult::NotRefreshed;
        }
        let Some((_, stored)) = self.0.flights.ask_once(question, kind, 0, generation).await else {
            return RefreshResult::NotRefreshed;
        };
        // Before the lock is given back, so that the next instance finds it.
        self.0.flights.store_answer(question, kind, &stored, &known, generation).await;
        RefreshResult::Refreshed
    }

    async fn unlock(&self, lock: RefreshLock) {
        if let Err(error) = self.0.l1.unlock_refresh(lock).await {
            tracing::debug!(%error, "a refresh lock is left to its TTL");
        }
    }

    /// Hands the hits of entries in memory on to the store's counters, those that are worth a write.
    pub(super) fn collect_hits(&self) -> usize {
        self.0.l0.sweep(self.now(), |entry| {
            let hits = entry.decay_hits();
            if hits >= WRITTEN_HITS_MIN
                && let Some((question, _)) = entry.question()
            {
                self.0.l1.add_hits(&question, hits);
            }
        })
    }

    /// Does what is done every few seconds: writes hits, drops what expired, keeps the cap, refreshes
    /// what is about to expire, probes upstreams that failed.
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let now = self.now();
        let mut report = SweepReport { dropped: self.collect_hits(), ..SweepReport::default() };
        self.upstreams().probe().await;
        self.0.l1.flush_hits_if_due(now).await?;
        report.reconciled = self.0.l1.reconcile().await?;
        for question in self.0.l1.evict(now).await? {
            self.drop_from_memory(&question);
            report.evicted += 1;
        }
        if self.0.options.refresh == RefreshPreset::Off {
            return Ok(report);
        }
        // Without a window of its own the sweep leaves answers to expire that have no hits. They stay in the
        // index for a while and must not keep it from those that have some.
        let has_window = self.0.options.l1.sweep_hit_window.is_some();
        let earliest = (!has_window).then(|| now - SWEEP_WINDOW);
        let due = self.0.l1.due(earliest, now + SWEEP_WINDOW, SWEEP_MAX).await?;
        let mut refreshing = Vec::new();
        for due in due {
            if !has_window && due.hits == 0 {
                continue;
            }
            let known = self.0.flights.read_store(&due.question, AnswerKind::Plain, now).await;
            if self.is_cold(&known, due.hits, now) {
                self.0.l1.delete(&due.question).await?;
                self.drop_from_memory(&due.question);
                report.cold += 1;
                continue;
            }
            let window = i64::try_from(SWEEP_WINDOW.as_secs()).unwrap_or(i64::MAX);
            for kind in [AnswerKind::Plain, AnswerKind::Signed] {
                let Some(stored) = known.of_kind(kind) else { continue };
                // RFC 9520: what just failed is left alone for a while.
                let has_failed = self.0.flights.has_failed(&due.question, kind, 0, now);
                if stored.remaining(now) > window || has_failed {
                    continue;
                }
                // Waits for a free place: the sweep has time, hits go first.
                let Ok(permit) = Arc::clone(&self.0.refreshes.permits).acquire_owned().await else {
                    return Ok(report);
                };
                let (resolver, question) = (self.clone(), due.question.clone());
                let soft_expiry = stored.soft_expiry;
                refreshing.push(self.0.tasks.spawn(async move {
                    let result = resolver.refresh(&question, kind, soft_expiry).await;
                    drop(permit);
                    if result == RefreshResult::Refreshed {
                        resolver.0.refreshes.counts.add(RefreshCause::Sweep);
                    }
                    result == RefreshResult::Refreshed
                }));
            }
        }
        for refresh in refreshing {
            report.refreshed += usize::from(refresh.await.unwrap_or(false));
        }
        Ok(report)
    }

    /// Returns true if nobody asked for an answer within the sweeper's window and it is older than
    /// that.
    fn is_cold(&self, known: &StoredEntry, hits: u64, now: Millis) -> bool {
        let Some(window) = self.0.options.l1.sweep_hit_window else { return false };
        let born = known.created_at.unwrap_or(0);
        hits == 0
            && now.as_secs().saturating_sub(born) >= i64::try_from(window.as_secs()).unwrap_or(0)
    }

    pub(super) fn drop_from_memory(&self, question: &Question) {
        for kind in AnswerKind::ALL {
            self.0.l0.remove(&L0Key::of_question(question, kind));
        }
        self.0.l0.remove(&denial_key(question.name.as_wire(), 0));
    }
}

/// Marks the end of a refresh.
struct RefreshEnd<'a> {
    resolver: &'a Resolver,
    key: FlightKey,
}

impl Drop for RefreshEnd<'_> {
    fn drop(&mut self) {
        self.resolver.0.refreshes.running.lock().remove(&self.key);
    }
}
