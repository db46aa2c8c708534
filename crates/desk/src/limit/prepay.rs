//! Units drawn ahead and spent in process, so that a hot identity costs no round trip.
//!
//! Drawn units are charged in the store before they are spent here, so what all instances allow
//! together never exceeds the limit. Invariant: a unit is spent within a second of being drawn, and
//! within its calendar period, or given back; one that was spent is never given back. Units of an
//! instance that dies are lost, which allows less.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use store::{
    Key, Millis,
    limit::{CheckOutcome, LimitCheck, Rule},
};

use super::{
    LimiterInner,
    name::{LimitName, LimitNameRef},
};
use crate::Error;

/// Most identities with units drawn ahead; others ask the store each time.
const PREPAID_MAX: usize = 10_000;

/// Time in which a drawn unit must be spent.
const SPEND_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct PrepaidUnits(RwLock<HashMap<LimitName, Arc<PrepaidSlot>>>);

/// The units of one limit.
#[derive(Debug, Default)]
struct PrepaidSlot {
    /// One draw at a time: whoever waits for it finds its units.
    drawing: tokio::sync::Mutex<()>,
    units: Mutex<Option<DrawnBatch>>,
}

/// Units of one draw.
#[derive(Debug)]
struct DrawnBatch {
    units: u64,
    key: Key,
    rule: Rule,
    drawn: Millis,
    until: Millis,
    outcome: CheckOutcome,
    /// Id of the draw, under which its rest is given back.
    draw_id: String,
}

impl DrawnBatch {
    fn is_live(&self, now: Millis) -> bool {
        // A clock that was set back makes units of the future: they are given back.
        self.drawn <= now && now < self.until
    }
}

impl PrepaidUnits {
    /// Spends units drawn ahead, if there are enough.
    pub(super) fn spend_known(
        &self,
        name: LimitNameRef<'_>,
        rule: &Rule,
        cost: u64,
        now: Millis,
    ) -> Option<CheckOutcome> {
        self.0.read().get(&name)?.spend(rule, cost, now)
    }

    /// Spends units drawn ahead, or draws some.
    pub(super) async fn spend(
        &self,
        limiter: &LimiterInner,
        name: LimitNameRef<'_>,
        check: &LimitCheck,
        prepay: u64,
    ) -> Result<CheckOutcome, Error> {
        let Some(slot) = self.slot(name) else {
            return Ok(limiter.batcher.check(check.clone()).await?);
        };
        if let Some(outcome) = slot.spend(&check.rule, check.cost, limiter.store.now()) {
            return Ok(outcome);
        }
        let _one = slot.drawing.lock().await;
        let now = limiter.store.now();
        if let Some(outcome) = slot.spend(&check.rule, check.cost, now) {
            return Ok(outcome);
        }
        // What is left is too little, or too old.
        let rest = slot.units.lock().take();
        if let Some(rest) = rest {
            rest.give_back(limiter, name).await;
        }
        let most = check.rule.most();
        let mut want = prepay.max(check.cost).min(most);
        for _ in 0..2 {
            let draw = LimitCheck { cost: want, ..check.clone() };
            let outcome = limiter.batcher.check(draw).await?;
            if outcome.allowed {
                let units = want - check.cost;
                slot.put(check, units, outcome);
                return Ok(CheckOutcome { remaining: outcome.remaining + units, ..outcome });
            }
            if want == check.cost {
                return Ok(outcome);
            }
            // Near the limit there is less to draw.
            want = if outcome.remaining > check.cost { outcome.remaining } else { check.cost };
        }
        Ok(limiter.batcher.check(check.clone()).await?)
    }

    /// Gives back what was not spent in time, or everything.
    pub(super) async fn give_back(&self, limiter: &LimiterInner, everything: bool) -> u64 {
        let slots: Vec<(LimitName, Arc<PrepaidSlot>)> = {
            let map = self.0.read();
            map.iter().map(|(name, slot)| (name.clone(), slot.clone())).collect()
        };
        let (now, mut given_back) = (limiter.store.now(), 0);
        for (name, slot) in slots {
            let old = slot.units.lock().take_if(|batch| everything || !batch.is_live(now));
            let Some(batch) = old else { continue };
            given_back += batch.give_back(limiter, name.by_ref()).await;
        }
        // Nobody spends from a slot that only the map holds.
        let mut map = self.0.write();
        map.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.units.lock().is_some());
        given_back
    }

    /// Returns the slot of a limit; none when there are too many.
    fn slot(&self, name: LimitNameRef<'_>) -> Option<Arc<PrepaidSlot>> {
        if let Some(slot) = self.0.read().get(&name) {
            return Some(Arc::clone(slot));
        }
        let mut map = self.0.write();
        if map.len() >= PREPAID_MAX && !map.contains_key(&name) {
            return None;
        }
        Some(Arc::clone(map.entry(name.to_owned()).or_default()))
    }
}

impl PrepaidSlot {
    fn spend(&self, rule: &Rule, cost: u64, now: Millis) -> Option<CheckOutcome> {
        let mut units = self.units.lock();
        let batch = units.as_mut()?;
        if !batch.is_live(now) || batch.rule != *rule || batch.units < cost {
            return None;
        }
        batch.units -= cost;
        let passed = now.since(batch.drawn);
        let outcome = CheckOutcome {
            remaining: batch.outcome.remaining + batch.units,
            next: batch.outcome.next.saturating_sub(passed).max(Duration::from_millis(1)),
            ..batch.outcome
        };
        if batch.units == 0 {
            *units = None;
        }
        Some(outcome)
    }

    fn put(&self, check: &LimitCheck, units: u64, outcome: CheckOutcome) {
        if units == 0 {
            return;
        }
        let now = outcome.at;
        let until = match check.rule {
            Rule::Calendar { end, .. } => end.min(now + SPEND_WITHIN),
            _ => now + SPEND_WITHIN,
        };
        *self.units.lock() = Some(DrawnBatch {
            units,
            key: check.key.clone(),
            rule: check.rule,
            drawn: now,
            until,
            outcome,
            draw_id: check.request_id.clone(),
        });
    }
}

impl DrawnBatch {
    async fn give_back(self, limiter: &LimiterInner, name: LimitNameRef<'_>) -> u64 {
        if self.units == 0 {
            return 0;
        }
        let check = LimitCheck {
            key: self.key,
            rule: self.rule,
            cost: self.units,
            request_id: self.draw_id,
        };
        limiter.return_units(name, &check, self.drawn).await
    }
}
