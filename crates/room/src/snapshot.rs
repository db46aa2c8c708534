//! Snapshot of a queue: settings, counts, recent admissions; the same for all of its visitors.
//!
//! Read at most once a second per queue and process. Nothing is decided by it: scripts read the current
//! values themselves.

use std::{collections::HashMap, sync::Arc};

use store::{Millis, redis};

use crate::{
    CACHED_QUEUES, Error, NoEstimate, QueueConfig, QueueId, QueueStatus, Room, estimate::Pace,
};

/// Maximum age of a snapshot, in milliseconds.
const MAX_AGE_MS: u64 = 1_000;

/// A queue at a moment.
#[derive(Clone, Debug)]
pub(crate) struct QueueSnapshot {
    pub(crate) at: Millis,
    pub(crate) config: QueueConfig,
    pub(crate) status: QueueStatus,
    pub(crate) version: u64,
    pub(crate) created: Millis,
    pub(crate) updated: Millis,
    pub(crate) waiting: u64,
    pub(crate) admitted: u64,
    pub(crate) active: u64,
    /// The stored state hash.
    pub(crate) state: HashMap<String, String>,
    /// Time from which the clocks of waiting positions count, if they stood still.
    pub(crate) floor: Millis,
    /// Pace of the queue, or the reason it is not known.
    pub(crate) pace: Result<Pace, NoEstimate>,
}

impl QueueSnapshot {
    /// Returns a number of the state hash; 0 if it is missing.
    pub(crate) fn number(&self, field: &str) -> i64 {
        self.state.get(field).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Returns the free slots under `max_active`; `None` if there is no limit.
    pub(crate) fn free(&self) -> Option<u64> {
        let most = u64::from(self.config.max_active);
        (most > 0).then(|| most.saturating_sub(self.admitted + self.active))
    }

    /// Returns the admissions of the last 16 minutes, as (minute, admissions), in no order.
    pub(crate) fn minutes(&self) -> impl Iterator<Item = (i64, u64)> {
        (0..16).filter_map(|slot| {
            let read = |name: &str| self.state.get(&format!("{name}_{slot}"))?.parse::<i64>().ok();
            Some((read("minute")?, u64::try_from(read("admitted")?).ok()?))
        })
    }
}

impl Room {
    /// Returns the queue's snapshot, at most a second old.
    pub(crate) async fn snapshot(&self, queue: &QueueId) -> Result<Arc<QueueSnapshot>, Error> {
        let now = self.now();
        let known = self.0.snapshots.read().get(queue).cloned();
        if let Some(snapshot) = known
            && snapshot.at <= now
            && now.0.abs_diff(snapshot.at.0) < MAX_AGE_MS
        {
            return Ok(snapshot);
        }
        self.read_snapshot(queue).await
    }

    /// Reads the queue's snapshot from the store.
    pub(crate) async fn read_snapshot(&self, queue: &QueueId) -> Result<Arc<QueueSnapshot>, Error> {
        let keys = self.queue_cache(queue);
        let now = self.now();
        type Read = (HashMap<String, String>, HashMap<String, String>, u64, u64, u64);
        let (meta, state, waiting, admitted, active): Read = redis::pipe()
            .hgetall(&keys.meta)
            .hgetall(&keys.state)
            .zcard(&keys.positions)
            .zcard(&keys.admitted)
            .scard(&keys.active)
            .query_async(&mut self.0.store.clone())
            .await?;
        let Some(status) = meta.get("status") else {
            self.invalidate(queue);
            return Err(Error::UnknownQueue);
        };
        let seconds = |name: &str| {
            Millis(meta.get(name).and_then(|v| v.parse::<i64>().ok()).unwrap_or(0) * 1000)
        };
        let mut snapshot = QueueSnapshot {
            at: now,
            config: QueueConfig::read(&meta),
            status: QueueStatus::read(status),
            version: meta.get("version").and_then(|v| v.parse().ok()).unwrap_or(0),
            created: seconds("created_at"),
            updated: seconds("updated_at"),
            waiting,
            admitted,
            active,
            state,
            floor: Millis(0),
            pace: Err(NoEstimate::NoData),
        };
        snapshot.floor = Millis(snapshot.number("floor_ms"));
        snapshot.pace = Pace::of(&snapshot, now);
        let snapshot = Arc::new(snapshot);
        let mut snapshots = self.0.snapshots.write();
        if snapshots.len() >= CACHED_QUEUES {
            snapshots.clear();
        }
        snapshots.insert(queue.clone(), Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Drops the cached snapshot of a queue.
    pub(crate) fn invalidate(&self, queue: &QueueId) {
        self.0.snapshots.write().remove(queue);
    }
}
