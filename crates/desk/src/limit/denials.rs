//! Denials answered in process.
//!
//! Once the store denied a cost, it denies the same cost until the time it told, unless units are
//! given back. A denial is therefore remembered until then, but for a second at
//! most, so that a refund or a reset on another instance takes effect within a second. Invariant: a
//! remembered denial never allows anything; memory is bounded, and a full cache forgets all.

use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::RwLock;
use store::{
    Millis,
    limit::{CheckOutcome, LimitCheck, Rule},
};

use super::name::{LimitName, LimitNameRef};

/// Most denials remembered: about 250 bytes each.
const DENIALS_MAX: usize = 10_000;

/// Longest time a denial is remembered.
const MEMORY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct DenialCache(RwLock<HashMap<LimitName, KnownDenial>>);

#[derive(Debug)]
struct KnownDenial {
    cost: u64,
    rule: Rule,
    outcome: CheckOutcome,
    until: Millis,
}

impl DenialCache {
    /// Returns the denial of a cost at a limit, if it is known.
    pub(super) fn find(
        &self,
        name: LimitNameRef<'_>,
        rule: &Rule,
        cost: u64,
        now: Millis,
    ) -> Option<CheckOutcome> {
        let known = self.0.read();
        let known = known.get(&name)?;
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
            ..known.outcome
        })
    }

    pub(super) fn remember(
        &self,
        name: LimitNameRef<'_>,
        check: &LimitCheck,
        outcome: &CheckOutcome,
    ) {
        // Leases end at any moment, so their denials are not remembered.
        if outcome.allowed || matches!(check.rule, Rule::Concurrent { .. }) {
            return;
        }
        let now = outcome.at;
        let until = now + outcome.retry.min(MEMORY);
        let denial = KnownDenial { cost: check.cost, rule: check.rule, outcome: *outcome, until };
        let mut known = self.0.write();
        if known.len() >= DENIALS_MAX && !known.contains_key(&name) {
            known.retain(|_, denial| now < denial.until);
            if known.len() >= DENIALS_MAX {
                known.clear();
            }
        }
        known.insert(name.to_owned(), denial);
    }

    pub(super) fn forget(&self, name: LimitNameRef<'_>) {
        self.0.write().remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use store::Layout;

    use super::*;
    use crate::{
        Identity, PolicyName, Prefix,
        keys::LimitKeys,
        limit::{LimitAlgorithm, Policy},
    };

    #[test]
    fn memory_is_bounded_whoever_is_denied() {
        let cache = DenialCache::default();
        let keys = LimitKeys::new(Layout::Standalone, &Prefix::default());
        let rule = Rule::Sliding { limit: 1, window: Duration::from_secs(60) };
        let minute = Duration::from_secs(60);
        let policy = Policy::new(None, LimitAlgorithm::Sliding, 1, minute).unwrap();
        let outcome = CheckOutcome {
            allowed: false,
            limit: 1,
            remaining: 0,
            next: minute,
            retry: minute,
            at: Millis(0),
        };
        for number in 0..3 * DENIALS_MAX {
            let identity = Identity::user(&number.to_string());
            let name = LimitNameRef::new(&policy, &identity);
            let key = keys.limit(&rule, &identity, None);
            let check = LimitCheck { key, rule, cost: 1, request_id: String::new() };
            cache.remember(name, &check, &outcome);
            let find = |now| cache.find(name, &rule, 1, Millis(now));
            assert!(find(999).is_some());
            assert!(find(1_000).is_none(), "for a second at most");
            assert!(find(-1).is_none(), "a clock that was set back");
            assert!(cache.0.read().len() <= DENIALS_MAX);
        }
    }

    #[test]
    fn a_denial_is_known_for_its_policy_identity_rule_and_cost_only() {
        let cache = DenialCache::default();
        let keys = LimitKeys::new(Layout::Standalone, &Prefix::default());
        let minute = Duration::from_secs(60);
        let policy = |name: &str| {
            let name = PolicyName::parse(name).ok();
            Policy::new(name, LimitAlgorithm::Sliding, 1, minute).unwrap()
        };
        let (api, login, bare) = (policy("api"), policy("login"), policy(""));
        let (anna, bert) = (Identity::user("anna"), Identity::user("bert"));
        let rule = Rule::Sliding { limit: 1, window: minute };
        let key = keys.limit(&rule, &anna, api.name());
        let check = LimitCheck { key, rule, cost: 1, request_id: String::new() };
        let outcome = CheckOutcome {
            allowed: false,
            limit: 1,
            remaining: 0,
            next: minute,
            retry: minute,
            at: Millis(0),
        };
        let name = LimitNameRef::new(&api, &anna);
        cache.remember(name, &check, &outcome);
        let find = |policy, identity, rule, cost| {
            cache.find(LimitNameRef::new(policy, identity), &rule, cost, Millis(1)).is_some()
        };
        assert!(find(&api, &anna, rule, 1));
        assert!(!find(&login, &anna, rule, 1) && !find(&bare, &anna, rule, 1));
        assert!(!find(&api, &bert, rule, 1));
        assert!(!find(&api, &anna, Rule::Sliding { limit: 2, window: minute }, 1));
        assert!(!find(&api, &anna, rule, 2));
        cache.forget(name);
        assert!(!find(&api, &anna, rule, 1));
    }
}
