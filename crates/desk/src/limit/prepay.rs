//! Units drawn ahead and spent in process, so that a hot identity costs no round trip.
//!
//! Drawn units are charged in the store before they are spent here, so what all instances allow
//! together never exceeds the limit. Invariant: a unit is spent within a second of being drawn, and
//! within its calendar period, or given back; one that was spent is never given back. Units of an
//! instance that dies are lost, which allows less.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use store::{
    Millis,
    limit::{CheckOutcome, LimitCheck, Rule},
};

use super::{LimiterInner, Owner};
use crate::{Error, Identity};

/// Most identities with units drawn ahead; others ask the store each time.
const PREPAID_MAX: usize = 10_000;

/// Time in which a drawn unit must be spent.
const SPEND_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct PrepaidUnits(Mutex<HashMap<Owner, Arc<PrepaidSlot>>>);

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
    /// Spends units drawn ahead, or draws some.
    pub(super) async fn spend(
        &self,
        limiter: &LimiterInner,
        identity: &Identity,
        check: &LimitCheck,
        prepay: u64,
    ) -> Result<CheckOutcome, Error> {
        let Some(slot) = self.slot(identity, check) else {
            return Ok(limiter.batcher.check(check.clone()).await?);
        };
        if let Some(outcome) = slot.spend(check, limiter.store.now()) {
            return Ok(outcome);
        }
        let _one = slot.drawing.lock().await;
        let now = limiter.store.now();
        if let Some(outcome) = slot.spend(check, now) {
            return Ok(outcome);
        }
        // What is left is too little, or too old.
        let rest = slot.units.lock().take();
        if let Some(rest) = rest {
            rest.give_back(limiter, identity, check).await;
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
        let slots: Vec<(Owner, Arc<PrepaidSlot>)> = {
            let map = self.0.lock();
            map.iter().map(|(owner, slot)| (owner.clone(), slot.clone())).collect()
        };
        let (now, mut given_back) = (limiter.store.now(), 0);
        for ((identity, key), slot) in slots {
            let old = slot.units.lock().take_if(|batch| everything || !batch.is_live(now));
            let Some(batch) = old else { continue };
            let check = LimitCheck {
                key,
                rule: batch.rule,
                cost: batch.units,
                request_id: batch.draw_id.clone(),
            };
            given_back += batch.give_back(limiter, &identity, &check).await;
        }
        // Nobody spends from a slot that only the map holds.
        let mut map = self.0.lock();
        map.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.units.lock().is_some());
        given_back
    }

    /// Returns the slot of a limit; none when there are too many.
    fn slot(&self, identity: &Identity, check: &LimitCheck) -> Option<Arc<PrepaidSlot>> {
        let mut map = self.0.lock();
        let owner = (identity.clone(), check.key.clone());
        if map.len() >= PREPAID_MAX && !map.contains_key(&owner) {
            return None;
        }
        Some(map.entry(owner).or_default().clone())
    }
}

impl PrepaidSlot {
    fn spend(&self, check: &LimitCheck, now: Millis) -> Option<CheckOutcome> {
        let mut units = self.units.lock();
        let batch = units.as_mut()?;
        if !batch.is_live(now) || batch.rule != check.rule || batch.units < check.cost {
            return None;
        }
        batch.units -= check.cost;
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
            rule: check.rule,
            drawn: now,
            until,
            outcome,
            draw_id: check.request_id.clone(),
        });
    }
}

impl DrawnBatch {
    async fn give_back(self, limiter: &LimiterInner, identity: &Identity, at: &LimitCheck) -> u64 {
        if self.units == 0 {
            return 0;
        }
        let check = LimitCheck {
            key: at.key.clone(),
            rule: self.rule,
            cost: self.units,
            request_id: self.draw_id,
        };
        limiter.return_units(identity, &check, self.drawn).await
    }
}
