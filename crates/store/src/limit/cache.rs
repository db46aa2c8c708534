//! What one process knows of limits, so that a busy one costs no call of the store: denials, and units
//! drawn ahead.
//!
//! [`LimitCache::check`] charges one request to one limit; [`LimitCache::find`] decides without the
//! store, where that is possible. Limits are found by a name of the caller's, which may be borrowed, so
//! that no key is built for a decision in process. Invariant: no shortcut allows more than the store
//! would; memory is bounded.
//!
//! Read on in `denials.rs` and `prepay.rs`.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, Equivalent};

use super::{
    CheckBatcher, CheckOutcome, LimitCheck, Rule,
    denials::DenialCache,
    prepay::{DrawRefund, DrawnBatch, PrepaidUnits},
    refund,
};
use crate::{Error, Key, Millis, Store};

/// Attempts to give units back.
const RETURN_ATTEMPTS: usize = 3;

/// Memory of the store that limits by itself while the shared one is out of reach.
#[cfg(feature = "embedded")]
const LOCAL_STORE_BYTES: u64 = 64 << 20;

/// Options of a [`LimitCache`].
#[derive(Clone, Copy, Debug)]
pub struct LimitCacheOptions {
    /// Time in which a unit drawn ahead must be spent.
    pub spend_within: Duration,
    /// Most limits with units drawn ahead; others ask the store each time.
    pub prepaid_max: usize,
}

impl Default for LimitCacheOptions {
    fn default() -> Self {
        Self { spend_within: Duration::from_secs(1), prepaid_max: 10_000 }
    }
}

/// Units that a check may draw ahead.
#[derive(Clone, Debug)]
pub struct Prepay {
    /// Units of one draw, the check's own included.
    pub units: u64,
    /// Key that remembers refunds, to [give back](LimitCache::give_back) what was not spent; without one
    /// it is lost, which allows less. On a cluster it shares the limit's slot.
    pub refunds: Option<Key>,
}

/// A store of this process that limits while the shared one is out of reach.
#[derive(Debug)]
pub struct LocalStore {
    /// The store, in memory.
    pub store: Store,
    /// Sends checks to it.
    pub batcher: CheckBatcher,
}

/// Answers in process what is known of limits, which are named by `N`.
///
/// ```
/// # #![allow(clippy::disallowed_methods)]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_store::Error> {
/// use std::time::Duration;
/// use tidegate_store::limit::{LimitCache, LimitCacheOptions, LimitCheck, Rule};
///
/// let store = tidegate_store::Store::open("embedded:").await?;
/// let cache = LimitCache::<String>::new(&store, LimitCacheOptions::default());
/// let check = LimitCheck {
///     key: tidegate_store::Key::raw("ha:sliding_limit:anna"),
///     rule: Rule::Sliding { limit: 1, window: Duration::from_secs(60) },
///     cost: 1,
///     request_id: "req-81f2".to_owned(),
/// };
/// assert!(cache.check("anna", &check, None).await?.allowed);
/// let again = LimitCheck { request_id: "req-81f3".to_owned(), ..check.clone() };
/// assert!(!cache.check("anna", &again, None).await?.allowed);
/// assert!(cache.find("anna", &check.rule, 1, false, store.now()).is_some(), "known from now on");
/// # Ok(()) }
/// ```
pub struct LimitCache<N> {
    store: Store,
    batcher: CheckBatcher,
    hasher: DefaultHashBuilder,
    spend_within: Duration,
    denials: DenialCache<N>,
    prepaid: PrepaidUnits<N>,
    /// Opened when first needed.
    #[cfg(feature = "embedded")]
    local: tokio::sync::OnceCell<LocalStore>,
}

impl<N> fmt::Debug for LimitCache<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitCache")
            .field("spend_within", &self.spend_within)
            .finish_non_exhaustive()
    }
}

impl<N: Hash + Eq> LimitCache<N> {
    /// Creates a cache for limits of a store.
    pub fn new(store: &Store, options: LimitCacheOptions) -> Self {
        Self {
            store: store.clone(),
            batcher: CheckBatcher::new(store),
            hasher: DefaultHashBuilder::default(),
            spend_within: options.spend_within,
            denials: DenialCache::default(),
            prepaid: PrepaidUnits::new(options.prepaid_max),
            #[cfg(feature = "embedded")]
            local: tokio::sync::OnceCell::new(),
        }
    }

    /// Returns what sends checks to the store.
    pub fn batcher(&self) -> &CheckBatcher {
        &self.batcher
    }

    /// Decides in process if units were drawn ahead (`is_prepaid`), or a denial is known: no store, no
    /// waiting. What is allowed was charged when it was drawn.
    pub fn find<Q>(
        &self,
        name: &Q,
        rule: &Rule,
        cost: u64,
        is_prepaid: bool,
        now: Millis,
    ) -> Option<CheckOutcome>
    where
        Q: Hash + Equivalent<N> + ?Sized,
    {
        let hash = self.hasher.hash_one(name);
        let spent = is_prepaid.then(|| self.prepaid.spend(hash, name, rule, cost, now)).flatten();
        spent.or_else(|| self.denials.find(hash, name, rule, cost, now))
    }

    /// Charges one request to one limit, of units drawn ahead if it may draw some.
    pub async fn check<Q>(
        &self,
        name: &Q,
        check: &LimitCheck,
        prepay: Option<Prepay>,
    ) -> Result<CheckOutcome, Error>
    where
        Q: Hash + Equivalent<N> + ?Sized,
        N: for<'q> From<&'q Q>,
    {
        let hash = self.hasher.hash_one(name);
        let outcome = match prepay {
            Some(prepay) => self.spend(hash, name, check, prepay).await?,
            None => self.batcher.check(check.clone()).await?,
        };
        // Leases end at any moment, so their denials are not remembered.
        if !outcome.allowed && !matches!(check.rule, Rule::Concurrent { .. }) {
            self.denials.remember(&self.hasher, hash, name, check, &outcome);
        }
        Ok(outcome)
    }

    /// Charges one request to one limit without the store: as it would, but for this process alone. Without
    /// the feature `embedded` everything is allowed.
    pub async fn check_alone(&self, check: &LimitCheck) -> Result<CheckOutcome, Error> {
        match self.local().await? {
            Some(local) => local.batcher.check(check.clone()).await,
            None => Ok(CheckOutcome::whole(&check.rule, self.store.now())),
        }
    }

    /// Returns the store of this process that limits while the shared one is out of reach; none without the
    /// feature `embedded`.
    pub async fn local(&self) -> Result<Option<&LocalStore>, Error> {
        #[cfg(feature = "embedded")]
        {
            let options = crate::Options {
                clock: Some(self.store.clock().clone()),
                layout: Some(self.store.layout()),
                maxmemory: Some(LOCAL_STORE_BYTES),
                maxmemory_policy: crate::EvictionPolicy::AllKeysLru,
                ..crate::Options::default()
            };
            let open = || async {
                let store = Store::open_with("embedded:", options).await?;
                let batcher = CheckBatcher::new(&store);
                Ok::<_, Error>(LocalStore { store, batcher })
            };
            self.local.get_or_try_init(open).await.map(Some)
        }
        #[cfg(not(feature = "embedded"))]
        Ok(None)
    }

    /// Forgets the denial of a limit, because units came back to it.
    pub fn forget<Q: Hash + Equivalent<N> + ?Sized>(&self, name: &Q) {
        self.denials.forget(self.hasher.hash_one(name), name);
    }

    /// Gives back units that were drawn and not spent in time, or all of them. Returns their number.
    pub async fn give_back(&self, everything: bool) -> u64 {
        let mut given_back = 0;
        for (name, batch) in self.prepaid.take_old(everything, self.store.now()) {
            given_back += self.give_back_batch(self.hasher.hash_one(&name), &name, batch).await;
        }
        given_back
    }

    /// Spends units drawn ahead, or draws some.
    async fn spend<Q>(
        &self,
        hash: u64,
        name: &Q,
        check: &LimitCheck,
        prepay: Prepay,
    ) -> Result<CheckOutcome, Error>
    where
        Q: Hash + Equivalent<N> + ?Sized,
        N: for<'q> From<&'q Q>,
    {
        let spend = |now| self.prepaid.spend(hash, name, &check.rule, check.cost, now);
        if let Some(outcome) = spend(self.store.now()) {
            return Ok(outcome);
        }
        // One draw at a time: whoever waits for it finds its units.
        let turn = self.prepaid.draw_turn(&self.hasher, hash, name);
        let _one = turn.lock().await;
        let now = self.store.now();
        if let Some(outcome) = spend(now) {
            return Ok(outcome);
        }
        // What is left is too little, or too old.
        if let Some(rest) = self.prepaid.take(hash, name) {
            self.give_back_batch(hash, name, rest).await;
        }
        let mut want = match self.prepaid.has_room(hash, now) {
            true => prepay.units.max(check.cost).min(check.rule.most()),
            false => check.cost,
        };
        for _ in 0..2 {
            let draw = LimitCheck { cost: want, ..check.clone() };
            let outcome = self.batcher.check(draw).await?;
            if outcome.allowed {
                let units = want - check.cost;
                if units > 0 {
                    let batch = self.drawn_batch(check, &outcome, units, prepay.refunds);
                    self.prepaid.put(&self.hasher, hash, name, batch);
                }
                return Ok(CheckOutcome { remaining: outcome.remaining + units, ..outcome });
            }
            if want == check.cost {
                return Ok(outcome);
            }
            // Near the limit there is less to draw.
            want = if outcome.remaining > check.cost { outcome.remaining } else { check.cost };
        }
        self.batcher.check(check.clone()).await
    }

    fn drawn_batch(
        &self,
        check: &LimitCheck,
        outcome: &CheckOutcome,
        units: u64,
        refunds: Option<Key>,
    ) -> DrawnBatch {
        let until = outcome.at + self.spend_within;
        let until = match check.rule {
            Rule::Calendar { end, .. } => end.min(until),
            _ => until,
        };
        let refund = refunds.map(|refunds| {
            let (key, draw_id) = (check.key.clone(), check.request_id.clone());
            Box::new(DrawRefund { key, refunds, draw_id })
        });
        DrawnBatch {
            units,
            rule: check.rule,
            drawn: outcome.at,
            until,
            remaining: outcome.remaining,
            next: outcome.next,
            refund,
        }
    }

    async fn give_back_batch<Q>(&self, hash: u64, name: &Q, batch: DrawnBatch) -> u64
    where
        Q: Hash + Equivalent<N> + ?Sized,
    {
        let Some(DrawRefund { key, refunds, draw_id }) = batch.refund.map(|refund| *refund) else {
            return 0;
        };
        let check = LimitCheck { key, rule: batch.rule, cost: batch.units, request_id: draw_id };
        let units = return_units(&self.store, &check, batch.drawn, &refunds).await;
        if units > 0 {
            self.denials.forget(hash, name);
        }
        units
    }
}

/// Gives back units that were drawn ahead, or charged at `charged` to a request that another limit denied.
/// An attempt that may have been made is repeated under the same id; what cannot be given back is lost,
/// which allows less. Returns the number of units.
pub async fn return_units(
    store: &Store,
    check: &LimitCheck,
    charged: Millis,
    refunds: &Key,
) -> u64 {
    let id = format!("returned:{} {}", check.request_id, check.key);
    for _ in 0..RETURN_ATTEMPTS {
        match refund(store, check, charged, refunds, &id).await {
            Ok(units) => return units,
            Err(error) if error.is_unavailable() => {}
            Err(error) => {
                tracing::warn!(%error, units = check.cost, "units not given back");
                return 0;
            }
        }
    }
    tracing::warn!(units = check.cost, "units not given back: the store is out of reach");
    0
}
