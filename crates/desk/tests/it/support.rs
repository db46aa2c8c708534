//! What the tests of the desk share.

use std::time::Duration;

use desk::{
    Identity, PolicyName, Prefix,
    limit::{CalendarPeriod, LimitAlgorithm, Limiter, Policy, WhenStoreDown},
};
use store::{Layout, Store};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn limiter(store: &Store) -> Limiter {
    Limiter::new(store, &Prefix::default()).unwrap()
}

/// A policy that waits for a busy machine, so that a test never decides without the store unless it
/// wants to.
pub(crate) fn policy(name: &str, algorithm: LimitAlgorithm, limit: u64) -> Policy {
    let name = (!name.is_empty()).then(|| PolicyName::parse(name).unwrap());
    let policy = Policy::new(name, algorithm, limit, MINUTE).unwrap();
    policy.when_store_down(WhenStoreDown::Closed, 10 * SECOND).unwrap()
}

pub(crate) fn calendar() -> LimitAlgorithm {
    let zone = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    LimitAlgorithm::Calendar { period: CalendarPeriod::Day, zone }
}

pub(crate) fn algorithms() -> [LimitAlgorithm; 6] {
    [
        LimitAlgorithm::Fixed,
        LimitAlgorithm::Sliding,
        LimitAlgorithm::Counter,
        LimitAlgorithm::Bucket { burst: None },
        calendar(),
        LimitAlgorithm::Concurrent,
    ]
}

/// A limit's key as the store at hand spells it.
pub(crate) fn limit_key(store: &Store, start: &str, identity: &Identity, end: &str) -> String {
    match store.layout() {
        Layout::Standalone => format!("ha:{start}:{identity}{end}"),
        Layout::Cluster => format!("ha:{start}:{{{identity}}}{end}"),
    }
}
