//! Refresh: answers that are asked for often are renewed before they expire.
//!
//! A hit looks at its entry and, when little of its TTL is left, starts a refresh in the background;
//! the sweep does the same for what the expiry index says is due. Invariants: at most so many at once
//! as is set; of all instances one refreshes an answer (the lock in the store), the others take over
//! what it stored; a refresh asks for the same kind of answer.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::Millis;
use tokio::sync::Semaphore;

use super::{FlightKey, Resolver};
use crate::{
    Error,
    keys::Question,
    l0::{L0Entry, L0Key},
    l1::{RefreshLock, StoredEntry},
    wire::AnswerKind,
};

/// Answers that expire within this time are refreshed by the sweep.
const SWEEP_WINDOW: Duration = Duration::from_secs(60);

/// Most answers that one sweep looks at.
const SWEEP_MAX: usize = 2_000;

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
        if !self.0.options.refresh.is_due(entry, entry.hits(), now) {
            return;
        }
        // One attempt per entry; the answer that replaces it has a mark of its own.
        if !entry.claim_refresh() {
            return;
        }
        let Some((question, kind)) = entry.question() else { return };
        let Ok(permit) = Arc::clone(&self.0.refreshes.permits).try_acquire_owned() else {
            entry.release_refresh();
            return;
        };
        let (resolver, soft_expiry) = (self.clone(), entry.stored.soft_expiry);
        self.0.tasks.spawn_on(
            async move {
                let cancel = resolver.0.cancel.clone();
                tokio::select! {
                    () = cancel.cancelled() => {}
                    _ = resolver.refresh(&question, kind, soft_expiry) => {}
                }
                drop(permit);
            },
            &self.0.runtime,
        );
    }

    /// Refreshes an answer unless another instance does or did. Returns true if the upstreams gave a
    /// new one.
    async fn refresh(&self, question: &Question, kind: AnswerKind, soft_expiry: i64) -> bool {
        let running = (question.clone(), kind);
        if !self.0.refreshes.running.lock().insert(running.clone()) {
            return false;
        }
        let _ended = RefreshEnd { resolver: self, key: running };
        let lock = match kind.is_unchecked() {
            true => None,
            false => match self.0.l1.lock_refresh(question).await {
                Ok(Some(lock)) => Some(lock),
                Ok(None) => return false,
                // Without the store each instance refreshes for itself.
                Err(_) => None,
            },
        };
        let refreshed = self.refresh_locked(question, kind, soft_expiry).await;
        if let Some(lock) = lock {
            self.unlock(lock).await;
        }
        refreshed
    }

    async fn refresh_locked(
        &self,
        question: &Question,
        kind: AnswerKind,
        soft_expiry: i64,
    ) -> bool {
        let (now, generation) = (self.now(), self.0.l0.generation());
        let known = self.read_store(question, kind, now).await;
        if let Some(stored) = known.of_kind(kind)
            && stored.soft_expiry > soft_expiry
            && stored.remaining(now) > 0
        {
            let key = L0Key::of_question(question, kind);
            self.0.l0.insert(&key, stored.clone(), self.0.options.l1.grace, generation);
            return false;
        }
        let Some((_, stored)) = self.ask_once(question, kind, generation).await else {
            return false;
        };
        // Before the lock is given back, so that the next instance finds it.
        self.store_answer(question, kind, &stored, &known, generation).await;
        true
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
        self.0.upstreams.probe().await;
        self.0.l1.flush_hits().await?;
        report.reconciled = self.0.l1.reconcile().await?;
        for question in self.0.l1.evict(now).await? {
            self.drop_from_memory(&question);
            report.evicted += 1;
        }
        if self.0.options.refresh == RefreshPreset::Off {
            return Ok(report);
        }
        let due = self.0.l1.due(now, SWEEP_WINDOW, SWEEP_MAX).await?;
        let mut refreshing = Vec::new();
        for due in due {
            let known = self.read_store(&due.question, AnswerKind::Plain, now).await;
            if self.is_cold(&known, due.hits, now) {
                self.0.l1.delete(&due.question).await?;
                self.drop_from_memory(&due.question);
                report.cold += 1;
                continue;
            }
            let window = i64::try_from(SWEEP_WINDOW.as_secs()).unwrap_or(i64::MAX);
            for kind in [AnswerKind::Plain, AnswerKind::Signed] {
                let Some(stored) = known.of_kind(kind) else { continue };
                if stored.remaining(now) > window {
                    continue;
                }
                // Waits for a free place: the sweep has time, hits go first.
                let Ok(permit) = Arc::clone(&self.0.refreshes.permits).acquire_owned().await else {
                    return Ok(report);
                };
                let (resolver, question) = (self.clone(), due.question.clone());
                let soft_expiry = stored.soft_expiry;
                refreshing.push(self.0.tasks.spawn(async move {
                    let refreshed = resolver.refresh(&question, kind, soft_expiry).await;
                    drop(permit);
                    refreshed
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

    fn drop_from_memory(&self, question: &Question) {
        for kind in [AnswerKind::Plain, AnswerKind::Signed] {
            self.0.l0.remove(&L0Key::of_question(question, kind));
        }
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
