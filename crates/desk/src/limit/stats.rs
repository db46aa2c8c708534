//! Counts of use per policy in process. Adding takes a shared lock and no copy of the name.

use std::{
    collections::HashMap as StdHashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::PolicyStats;
use crate::PolicyName;

/// Most policies whose use is counted; policies are few, their names are checked.
const STATS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct StatCounters(RwLock<HashMap<Option<PolicyName>, AtomicStats>>);

/// [`PolicyStats`] that many threads add to.
#[derive(Debug, Default)]
struct AtomicStats {
    allowed: AtomicU64,
    denied: AtomicU64,
    near: AtomicU64,
    shadow: AtomicU64,
    degraded: AtomicU64,
}

impl StatCounters {
    pub(super) fn add(&self, name: &Option<PolicyName>, by: &PolicyStats) {
        if let Some(own) = self.0.read().get(name) {
            own.add(by);
            return;
        }
        let mut all = self.0.write();
        if all.len() < STATS_MAX || all.contains_key(name) {
            all.entry(name.clone()).or_default().add(by);
        }
    }

    pub(super) fn read(&self) -> StdHashMap<Option<PolicyName>, PolicyStats> {
        let all = self.0.read();
        all.iter().map(|(name, stats)| (name.clone(), stats.read())).collect()
    }
}

impl AtomicStats {
    fn add(&self, by: &PolicyStats) {
        let pairs = [
            (&self.allowed, by.allowed),
            (&self.denied, by.denied),
            (&self.near, by.near),
            (&self.shadow, by.shadow),
            (&self.degraded, by.degraded),
        ];
        for (count, by) in pairs {
            if by > 0 {
                count.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    fn read(&self) -> PolicyStats {
        PolicyStats {
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            near: self.near.load(Ordering::Relaxed),
            shadow: self.shadow.load(Ordering::Relaxed),
            degraded: self.degraded.load(Ordering::Relaxed),
        }
    }
}
