//! Denials answered in process.
//!
//! Once the store denied a cost, it denies the same cost until the time it told, unless units are
//! given back. A denial is therefore remembered until then, but for a second at
//! most, so that a refund or a reset on another instance takes effect within a second. Invariant: a
//! remembered denial never allows anything; memory is bounded, and a full cache forgets all.

use std::{collections::HashMap, time::Duration};

use parking_lot::RwLock;
use store::{
    Key, Millis,
    limit::{CheckOutcome, LimitCheck},
};

/// Most denials remembered: about 200 bytes each.
const DENIALS_MAX: usize = 10_000;

/// Longest time a denial is remembered.
const MEMORY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct DenialCache(RwLock<HashMap<Key, KnownDenial>>);

#[derive(Debug)]
struct KnownDenial {
    cost: u64,
    limit: u64,
    outcome: CheckOutcome,
    until: Millis,
}

impl DenialCache {
    pub(super) fn find(&self, check: &LimitCheck, now: Millis) -> Option<CheckOutcome> {
        let known = self.0.read();
        let known = known.get(&check.key)?;
        // A clock that was set back knows nothing of what was told later.
        let holds = known.outcome.at <= now && now < known.until;
        // A limit that was raised may allow what the lower one denied.
        // A smaller cost may fit, and a greater one takes longer than was told.
        if !holds || check.cost != known.cost || check.rule.most() != known.limit {
            return None;
        }
        let passed = now.since(known.outcome.at);
        Some(CheckOutcome {
            next: known.outcome.next.saturating_sub(passed).max(Duration::from_millis(1)),
            retry: known.outcome.retry.saturating_sub(passed).max(Duration::from_millis(1)),
            ..known.outcome
        })
    }

    pub(super) fn remember(&self, check: &LimitCheck, outcome: &CheckOutcome) {
        // Leases end at any moment, so their denials are not remembered.
        if outcome.allowed || check.rule.algorithm() == "concurrent" {
            return;
        }
        let (now, limit) = (outcome.at, check.rule.most());
        let until = now + outcome.retry.min(MEMORY);
        let denial = KnownDenial { cost: check.cost, limit, outcome: *outcome, until };
        let mut known = self.0.write();
        if known.len() >= DENIALS_MAX && !known.contains_key(&check.key) {
            known.retain(|_, denial| now < denial.until);
            if known.len() >= DENIALS_MAX {
                known.clear();
            }
        }
        known.insert(check.key.clone(), denial);
    }

    pub(super) fn forget(&self, key: &Key) {
        self.0.write().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use store::{Layout, limit::Rule};

    use super::*;
    use crate::{Identity, Prefix, keys::LimitKeys};

    #[test]
    fn memory_is_bounded_whoever_is_denied() {
        let cache = DenialCache::default();
        let keys = LimitKeys::new(Layout::Standalone, &Prefix::default());
        let rule = Rule::Window { limit: 1, window: Duration::from_secs(60) };
        let minute = Duration::from_secs(60);
        let outcome = CheckOutcome {
            allowed: false,
            limit: 1,
            remaining: 0,
            next: minute,
            retry: minute,
            at: Millis(0),
        };
        for number in 0..3 * DENIALS_MAX {
            let key = keys.limit(&rule, &Identity::user(&number.to_string()), None);
            let check = LimitCheck { key, rule, cost: 1, request_id: String::new() };
            cache.remember(&check, &outcome);
            assert!(cache.find(&check, Millis(999)).is_some());
            assert!(cache.find(&check, Millis(1_000)).is_none(), "for a second at most");
            assert!(cache.find(&check, Millis(-1)).is_none(), "a clock that was set back");
            assert!(cache.0.read().len() <= DENIALS_MAX);
        }
    }
}
