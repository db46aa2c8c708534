//! Units drawn ahead and spent in process, so that a busy limit costs no call of the store.
//!
//! Drawn units are charged in the store before they are spent here, so what all processes allow
//! together never exceeds the limit. Invariant: a unit is spent in the time set for it, and
//! within its calendar period, or given back; one that was spent is never given back. Units of a
//! process that dies are lost, which allows less.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    time::Duration,
};

use hashbrown::{Equivalent, HashTable, hash_table::Entry};
use parking_lot::Mutex;

use super::{CheckOutcome, Rule};
use crate::{Key, Millis};

/// Tables that limits are spread over, each with a lock of its own.
const SHARDS: usize = 16;

pub(super) struct PrepaidUnits<N> {
    shards: [Mutex<HashTable<PrepaidLimit<N>>>; SHARDS],
    /// Most limits of a shard.
    shard_max: usize,
    draws: Draws<N>,
}

impl<N> fmt::Debug for PrepaidUnits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrepaidUnits").field("shard_max", &self.shard_max).finish_non_exhaustive()
    }
}

/// The units of one limit.
struct PrepaidLimit<N> {
    name: N,
    batch: DrawnBatch,
}

/// Units of one draw. Many are kept, so only what cannot be worked out is.
#[derive(Debug)]
pub(super) struct DrawnBatch {
    pub(super) units: u64,
    pub(super) rule: Rule,
    pub(super) drawn: Millis,
    pub(super) until: Millis,
    /// Units that were free in the store after the draw, and the time until one more was.
    pub(super) remaining: u64,
    pub(super) next: Duration,
    pub(super) refund: Option<Box<DrawRefund>>,
}

/// The way back of units that are not spent.
#[derive(Debug)]
pub(super) struct DrawRefund {
    pub(super) key: Key,
    pub(super) refunds: Key,
    /// Id of the draw, under which its rest is given back.
    pub(super) draw_id: String,
}

impl DrawnBatch {
    fn is_live(&self, now: Millis) -> bool {
        // A clock that was set back makes units of the future: they are given back.
        self.drawn <= now && now < self.until
    }

    fn outcome(&self, now: Millis) -> CheckOutcome {
        let passed = now.since(self.drawn);
        CheckOutcome {
            allowed: true,
            limit: self.rule.most(),
            remaining: self.remaining + self.units,
            next: self.next.saturating_sub(passed).max(Duration::from_millis(1)),
            retry: Duration::ZERO,
            at: now,
        }
    }
}

impl<N: Hash> PrepaidUnits<N> {
    pub(super) fn new(limits_max: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_max: limits_max.div_ceil(SHARDS),
            draws: Draws::default(),
        }
    }

    /// Spends units drawn ahead, if there are enough.
    pub(super) fn spend<Q: Equivalent<N> + ?Sized>(
        &self,
        hash: u64,
        name: &Q,
        rule: &Rule,
        cost: u64,
        now: Millis,
    ) -> Option<CheckOutcome> {
        let mut shard = self.shard(hash).lock();
        let mut found = shard.find_entry(hash, |limit| name.equivalent(&limit.name)).ok()?;
        let batch = &mut found.get_mut().batch;
        if !batch.is_live(now) || batch.rule != *rule || batch.units < cost {
            return None;
        }
        batch.units -= cost;
        let (outcome, is_spent) = (batch.outcome(now), batch.units == 0);
        if is_spent {
            found.remove();
        }
        Some(outcome)
    }

    /// Takes what is left of a limit's units.
    pub(super) fn take<Q: Equivalent<N> + ?Sized>(
        &self,
        hash: u64,
        name: &Q,
    ) -> Option<DrawnBatch> {
        let mut shard = self.shard(hash).lock();
        let found = shard.find_entry(hash, |limit| name.equivalent(&limit.name)).ok()?;
        Some(found.remove().0.batch)
    }

    /// Tells whether the units of one more limit can be kept. Forgets those that were not spent in time and
    /// cannot be given back.
    pub(super) fn has_room(&self, hash: u64, now: Millis) -> bool {
        let mut shard = self.shard(hash).lock();
        if shard.len() >= self.shard_max {
            shard.retain(|limit| limit.batch.is_live(now) || limit.batch.refund.is_some());
        }
        shard.len() < self.shard_max
    }

    /// Keeps the units of a draw.
    pub(super) fn put<Q>(&self, hasher: &impl BuildHasher, hash: u64, name: &Q, batch: DrawnBatch)
    where
        Q: Equivalent<N> + ?Sized,
        N: for<'q> From<&'q Q>,
    {
        let mut shard = self.shard(hash).lock();
        let is_it = |limit: &PrepaidLimit<N>| name.equivalent(&limit.name);
        match shard.entry(hash, is_it, |limit| hasher.hash_one(&limit.name)) {
            Entry::Occupied(mut old) => old.get_mut().batch = batch,
            Entry::Vacant(free) => _ = free.insert(PrepaidLimit { name: N::from(name), batch }),
        }
    }

    /// Takes the units that were not spent in time, or all of them.
    pub(super) fn take_old(&self, everything: bool, now: Millis) -> Vec<(N, DrawnBatch)> {
        let mut old = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let taken = shard.extract_if(|limit| everything || !limit.batch.is_live(now));
            old.extend(taken.map(|limit| (limit.name, limit.batch)));
        }
        old
    }

    /// Returns the turn to draw units of a limit, which one caller at a time has.
    pub(super) fn draw_turn<Q>(
        &self,
        hasher: &impl BuildHasher,
        hash: u64,
        name: &Q,
    ) -> DrawTurn<'_, N>
    where
        Q: Equivalent<N> + ?Sized,
        N: for<'q> From<&'q Q>,
    {
        let mut draws = self.draws.lock();
        let entry = draws.entry(
            hash,
            |(other, _)| name.equivalent(other),
            |(other, _)| hasher.hash_one(other),
        );
        let entry = entry.or_insert_with(|| (N::from(name), Arc::default()));
        DrawTurn { draws: &self.draws, hash, one: Arc::clone(&entry.get().1) }
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<PrepaidLimit<N>>> {
        // The tables use the lowest bits and the highest.
        let index = usize::try_from((hash >> 32) % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first)
    }
}

/// Limits of which somebody draws units, or waits to.
type Draws<N> = Mutex<HashTable<(N, Arc<tokio::sync::Mutex<()>>)>>;

/// The turn to draw units of one limit; forgotten with the last who had it.
pub(super) struct DrawTurn<'a, N> {
    draws: &'a Draws<N>,
    hash: u64,
    one: Arc<tokio::sync::Mutex<()>>,
}

impl<N> DrawTurn<'_, N> {
    /// Waits for the turn.
    pub(super) async fn lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.one.lock().await
    }
}

impl<N> Drop for DrawTurn<'_, N> {
    fn drop(&mut self) {
        let mut draws = self.draws.lock();
        // The table's and this one; others are made under the lock only.
        if Arc::strong_count(&self.one) == 2
            && let Ok(entry) = draws.find_entry(self.hash, |(_, one)| Arc::ptr_eq(one, &self.one))
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::DefaultHashBuilder;

    use super::*;

    const RULE: Rule = Rule::Bucket { burst: 30, count: 60, per: Duration::from_secs(60) };

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Name(u64);

    impl From<&Name> for Name {
        fn from(name: &Name) -> Self {
            name.clone()
        }
    }

    fn batch(units: u64) -> DrawnBatch {
        DrawnBatch {
            units,
            rule: RULE,
            drawn: Millis(0),
            until: Millis(1_000),
            remaining: 22,
            next: Duration::from_secs(1),
            refund: None,
        }
    }

    #[test]
    fn units_are_spent_once_within_their_time_and_by_their_rule() {
        let (units, hasher) = (PrepaidUnits::<Name>::new(100), DefaultHashBuilder::default());
        let (name, hash) = (Name(1), hasher.hash_one(Name(1)));
        units.put(&hasher, hash, &name, batch(3));
        let spend = |rule, cost, now| units.spend(hash, &name, rule, cost, Millis(now));
        let other = Rule::Bucket { burst: 31, count: 60, per: Duration::from_secs(60) };
        assert!(spend(&other, 1, 5).is_none() && spend(&RULE, 4, 5).is_none());
        assert!(spend(&RULE, 1, 1_000).is_none() && spend(&RULE, 1, -1).is_none());
        let spent = spend(&RULE, 1, 5).unwrap();
        assert_eq!((spent.allowed, spent.limit, spent.remaining), (true, 30, 24));
        assert_eq!(spent.next, Duration::from_millis(995));
        assert_eq!(spend(&RULE, 2, 5).unwrap().remaining, 22);
        assert!(spend(&RULE, 1, 5).is_none(), "all are spent");
        assert!(units.take(hash, &name).is_none());
    }

    #[test]
    fn no_more_limits_are_kept_than_there_is_room_for() {
        let (units, hasher) = (PrepaidUnits::<Name>::new(64), DefaultHashBuilder::default());
        let mut kept = 0;
        for number in 0..1_000 {
            let hash = hasher.hash_one(Name(number));
            if units.has_room(hash, Millis(5)) {
                units.put(&hasher, hash, &Name(number), batch(1));
                kept += 1;
            }
        }
        assert_eq!(kept, 64, "all shards are full");
        assert!(
            units.has_room(hasher.hash_one(Name(0)), Millis(1_000)),
            "what is too old makes room"
        );
        assert!(units.take_old(false, Millis(5)).is_empty());
        assert!(units.take_old(true, Millis(5)).len() >= 60);
    }

    #[tokio::test]
    async fn one_at_a_time_draws_and_nothing_of_it_stays() {
        let (units, hasher) = (PrepaidUnits::<Name>::new(64), DefaultHashBuilder::default());
        let hash = hasher.hash_one(Name(1));
        let first = units.draw_turn(&hasher, hash, &Name(1));
        let second = units.draw_turn(&hasher, hash, &Name(1));
        {
            let _one = first.lock().await;
            assert!(second.one.try_lock().is_err());
        }
        assert!(second.one.try_lock().is_ok());
        drop(first);
        assert_eq!(units.draws.lock().len(), 1);
        drop(second);
        assert!(units.draws.lock().is_empty());
    }
}
