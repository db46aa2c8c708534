//! Denials answered in process.
//!
//! Once the store denied a cost, it denies the same cost until the time it told, unless units are
//! given back. A denial is therefore remembered until then, but for a second at
//! most, so that a refund or a reset by another process takes effect within a second. Invariant: a
//! remembered denial never allows anything; memory is bounded, and a full cache forgets all.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use hashbrown::{Equivalent, HashTable, hash_table::Entry};
use parking_lot::RwLock;

use super::{CheckOutcome, LimitCheck, Rule};
use crate::Millis;

/// Most denials remembered.
const DENIALS_MAX: usize = 10_000;

/// Longest time a denial is remembered.
const MEMORY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct DenialCache<N>(RwLock<HashTable<KnownDenial<N>>>);

impl<N> Default for DenialCache<N> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

#[derive(Debug)]
struct KnownDenial<N> {
    name: N,
    cost: u64,
    rule: Rule,
    outcome: CheckOutcome,
    until: Millis,
}

impl<N: Hash> DenialCache<N> {
    /// Returns the denial of a cost at a limit, if it is known.
    pub(super) fn find<Q: Equivalent<N> + ?Sized>(
        &self,
        hash: u64,
        name: &Q,
        rule: &Rule,
        cost: u64,
        now: Millis,
    ) -> Option<CheckOutcome> {
        let known = self.0.read();
        let known = known.find(hash, |known| name.equivalent(&known.name))?;
        // A clock that was set back knows nothing of what was told later.
        let holds = known.outcome.at <= now && now < known.until;
        // A rule that was changed may allow what the old one denied. A smaller cost may fit, and a greater
        // one takes longer than was told.
        if !holds || cost != known.cost || *rule != known.rule {
            return None;
        }
        let passed = now.since(known.outcome.at);
        Some(CheckOutcome {
            next: known.outcome.next.saturating_sub(passed).max(Duration::from_millis(1)),
            retry: known.outcome.retry.saturating_sub(passed).max(Duration::from_millis(1)),
            at: now,
            ..known.outcome
        })
    }

    /// Remembers a denial.
    pub(super) fn remember<Q>(
        &self,
        hasher: &impl BuildHasher,
        hash: u64,
        name: &Q,
        check: &LimitCheck,
        outcome: &CheckOutcome,
    ) where
        Q: Equivalent<N> + ?Sized,
        N: for<'q> From<&'q Q>,
    {
        let now = outcome.at;
        let until = now + outcome.retry.min(MEMORY);
        let mut known = self.0.write();
        if known.len() >= DENIALS_MAX
            && known.find(hash, |one| name.equivalent(&one.name)).is_none()
        {
            known.retain(|denial| now < denial.until);
            if known.len() >= DENIALS_MAX {
                known.clear();
            }
        }
        let (cost, rule, outcome) = (check.cost, check.rule, *outcome);
        match known.entry(hash, |one| name.equivalent(&one.name), |one| hasher.hash_one(&one.name))
        {
            Entry::Occupied(mut old) => {
                let old = old.get_mut();
                (old.cost, old.rule, old.outcome, old.until) = (cost, rule, outcome, until);
            }
            Entry::Vacant(free) => {
                free.insert(KnownDenial { name: N::from(name), cost, rule, outcome, until });
            }
        }
    }

    /// Forgets a denial.
    pub(super) fn forget<Q: Equivalent<N> + ?Sized>(&self, hash: u64, name: &Q) {
        if let Ok(known) = self.0.write().find_entry(hash, |one| name.equivalent(&one.name)) {
            known.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::DefaultHashBuilder;

    use super::*;
    use crate::Key;

    const MINUTE: Duration = Duration::from_secs(60);
    const RULE: Rule = Rule::Sliding { limit: 1, window: MINUTE };
    const DENIED: CheckOutcome = CheckOutcome {
        allowed: false,
        limit: 1,
        remaining: 0,
        next: MINUTE,
        retry: MINUTE,
        at: Millis(0),
    };

    /// A name that is found by a copy of it.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Name(u64);

    impl From<&Name> for Name {
        fn from(name: &Name) -> Self {
            name.clone()
        }
    }

    fn remember(cache: &DenialCache<Name>, hasher: &DefaultHashBuilder, name: &Name) -> u64 {
        let hash = hasher.hash_one(name);
        #[expect(clippy::disallowed_methods, reason = "the key is looked at by nobody")]
        let key = Key::raw("l");
        let check = LimitCheck { key, rule: RULE, cost: 1, request_id: String::new() };
        cache.remember(hasher, hash, name, &check, &DENIED);
        hash
    }

    #[test]
    fn memory_is_bounded_whoever_is_denied() {
        let (cache, hasher) = (DenialCache::default(), DefaultHashBuilder::default());
        for number in 0..3 * DENIALS_MAX as u64 {
            let name = Name(number);
            let hash = remember(&cache, &hasher, &name);
            let find = |now| cache.find(hash, &name, &RULE, 1, Millis(now));
            assert!(find(999).is_some());
            assert!(find(1_000).is_none(), "for a second at most");
            assert!(find(-1).is_none(), "a clock that was set back");
            assert!(cache.0.read().len() <= DENIALS_MAX);
        }
    }

    #[test]
    fn a_denial_is_known_for_its_limit_rule_and_cost_only() {
        let (cache, hasher) = (DenialCache::default(), DefaultHashBuilder::default());
        let hash = remember(&cache, &hasher, &Name(1));
        let find = |name: &Name, rule, cost| {
            cache.find(hasher.hash_one(name), name, &rule, cost, Millis(1)).is_some()
        };
        assert!(find(&Name(1), RULE, 1));
        assert!(!find(&Name(2), RULE, 1));
        assert!(!find(&Name(1), Rule::Sliding { limit: 2, window: MINUTE }, 1));
        assert!(!find(&Name(1), RULE, 2));
        let told = cache.find(hash, &Name(1), &RULE, 1, Millis(1)).unwrap();
        assert_eq!((told.retry, told.at), (MINUTE - Duration::from_millis(1), Millis(1)));
        cache.forget(hash, &Name(1));
        assert!(!find(&Name(1), RULE, 1));
    }
}
