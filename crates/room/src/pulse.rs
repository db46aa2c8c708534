//! What is the same for every visitor of a queue: settings, counts, recent admissions.
//!
//! Read at most once a second per queue and process; nothing decides by it. Scripts read for
//! themselves what they decide by.

use std::{collections::HashMap, sync::Arc};

use store::{Millis, redis};

use crate::{
    Error, KNOWN_QUEUES, NoEstimate, QueueConfig, QueueId, QueueStatus, Room, estimate::Pace,
};

/// How old a pulse may be, in milliseconds.
const AGE_MS: u64 = 1_000;

/// A queue at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    pub(crate) at: Millis,
    pub(crate) config: QueueConfig,
    pub(crate) status: QueueStatus,
    pub(crate) version: u64,
    pub(crate) created: Millis,
    pub(crate) updated: Millis,
    pub(crate) waiting: u64,
    pub(crate) admitted: u64,
    pub(crate) active: u64,
    /// The state hash as it is stored.
    pub(crate) state: HashMap<String, String>,
    /// From when the clocks of waiting places count, if they stood still.
    pub(crate) floor: Millis,
    /// How fast the line moves, or why that is not known.
    pub(crate) pace: Result<Pace, NoEstimate>,
}

impl Pulse {
    /// A number of the state hash; missing is 0.
    pub(crate) fn number(&self, field: &str) -> i64 {
        self.state.get(field).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Slots free by the concurrency limit; none if there is no limit.
    pub(crate) fn free(&self) -> Option<u64> {
        let most = u64::from(self.config.max_active);
        (most > 0).then(|| most.saturating_sub(self.admitted + self.active))
    }

    /// Admissions in each of the last 16 minutes, as (minute, admissions), in no order.
    pub(crate) fn minutes(&self) -> impl Iterator<Item = (i64, u64)> {
        (0..16).filter_map(|slot| {
            let read = |name: &str| self.state.get(&format!("{name}_{slot}"))?.parse::<i64>().ok();
            Some((read("minute")?, u64::try_from(read("admitted")?).ok()?))
        })
    }
}

impl Room {
    /// The queue's pulse, a second old at most.
    pub(crate) async fn pulse(&self, queue: &QueueId) -> Result<Arc<Pulse>, Error> {
        let now = self.now();
        let known = self.0.pulses.read().get(queue).cloned();
        if let Some(pulse) = known
            && pulse.at <= now
            && now.0.abs_diff(pulse.at.0) < AGE_MS
        {
            return Ok(pulse);
        }
        self.fresh_pulse(queue).await
    }

    /// The queue's pulse, read now.
    pub(crate) async fn fresh_pulse(&self, queue: &QueueId) -> Result<Arc<Pulse>, Error> {
        let keys = self.known(queue);
        let now = self.now();
        type Read = (HashMap<String, String>, HashMap<String, String>, u64, u64, u64);
        let (meta, state, waiting, admitted, active): Read = redis::pipe()
            .hgetall(&keys.meta)
            .hgetall(&keys.state)
            .zcard(&keys.positions)
            .zcard(&keys.claims)
            .scard(&keys.active)
            .query_async(&mut self.0.store.clone())
            .await?;
        let Some(status) = meta.get("status") else {
            self.forget(queue);
            return Err(Error::UnknownQueue);
        };
        let seconds = |name: &str| {
            Millis(meta.get(name).and_then(|v| v.parse::<i64>().ok()).unwrap_or(0) * 1000)
        };
        let mut pulse = Pulse {
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
        pulse.floor = Millis(pulse.number("floor_ms"));
        pulse.pace = Pace::of(&pulse, now);
        let pulse = Arc::new(pulse);
        let mut pulses = self.0.pulses.write();
        if pulses.len() >= KNOWN_QUEUES {
            pulses.clear();
        }
        pulses.insert(queue.clone(), Arc::clone(&pulse));
        Ok(pulse)
    }

    /// Forgets what was read of a queue.
    pub(crate) fn forget(&self, queue: &QueueId) {
        self.0.pulses.write().remove(queue);
    }
}
