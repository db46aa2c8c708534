//! Rate limits against a naive model, with virtual time that also steps back: what is allowed, what
//! remains, and when more is, are the same after every step, and no rule is ever exceeded.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Key, Millis,
    limit::{self, CheckOutcome, LimitCheck, Rule},
};

const WINDOW: Duration = Duration::from_secs(90);
const WINDOW_MS: i64 = 90_000;

/// The state of one limit as plainly as it can be kept: what was allowed, and when.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Units of requests that are remembered: time or expiry, request.
    units: Vec<(i64, String)>,
    /// Counter: window, units, units of the one before. Calendar: period, used.
    start: i64,
    now: i64,
    before: i64,
    /// Bucket: credits missing, and when that was counted.
    missing: i64,
    at: i64,
}

fn number(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

impl Model {
    fn fixed_start(&self) -> Option<i64> {
        self.units.iter().map(|(at, _)| *at).min()
    }

    /// Forgets what no longer counts at `now`, as the store does whenever it looks.
    fn settle(&mut self, rule: Rule, now: i64) {
        match rule {
            Rule::Sliding { .. } => self.units.retain(|(at, _)| *at > now - WINDOW_MS),
            Rule::Fixed { .. } => {
                if self.fixed_start().is_some_and(|start| start + WINDOW_MS <= now) {
                    self.units.clear();
                }
            }
            Rule::Concurrent { .. } => self.units.retain(|(until, _)| *until > now),
            Rule::Counter { .. } => {
                let start = now - now.rem_euclid(WINDOW_MS);
                if start > self.start {
                    self.before = if start == self.start + WINDOW_MS { self.now } else { 0 };
                    (self.start, self.now) = (start, 0);
                }
            }
            Rule::Bucket { count, .. } => {
                if now > self.at {
                    self.missing = (self.missing - (now - self.at) * i64::from(count)).max(0);
                    self.at = now;
                }
            }
            Rule::Calendar { .. } => {
                let start = now - now.rem_euclid(WINDOW_MS);
                if start > self.start {
                    (self.start, self.now) = (start, 0);
                }
            }
        }
    }

    fn free(&self, rule: Rule, now: i64) -> i64 {
        let mut then = self.clone();
        then.settle(rule, now);
        let most = i64::try_from(rule.most()).unwrap();
        let free = match rule {
            Rule::Sliding { .. } | Rule::Fixed { .. } | Rule::Concurrent { .. } => {
                most - i64::try_from(then.units.len()).unwrap()
            }
            Rule::Counter { .. } => {
                let overlap = WINDOW_MS - (now - then.start).max(0);
                // Rounded up: in doubt a unit counts.
                most - then.now - (then.before * overlap + WINDOW_MS - 1).div_euclid(WINDOW_MS)
            }
            Rule::Bucket { per, .. } => (most * number(per) - then.missing).div_euclid(number(per)),
            Rule::Calendar { .. } => most - then.now,
        };
        free.max(0)
    }

    /// The first moment at or after `now` at which at least so many are free, found by halving.
    fn wait_for(&self, rule: Rule, now: i64, units: i64) -> i64 {
        let (mut no, mut yes) = (-1, 100 * WINDOW_MS);
        while yes - no > 1 {
            let middle = i64::midpoint(no, yes);
            if self.free(rule, now + middle) >= units { yes = middle } else { no = middle }
        }
        yes
    }

    fn check(&mut self, rule: Rule, now: i64, id: &str, cost: i64) -> (bool, i64, i64, i64) {
        let repeated = rule.remembers_requests() && {
            let mut then = self.clone();
            then.settle(rule, now);
            cost > 0 && then.units.iter().any(|(_, of)| of == id)
        };
        let retry = if repeated { 0 } else { self.wait_for(rule, now, cost) };
        let allowed = retry == 0;
        if rule.remembers_requests() || (allowed && cost > 0) {
            self.settle(rule, now);
        }
        if allowed && cost > 0 && !repeated {
            match rule {
                Rule::Counter { .. } | Rule::Calendar { .. } => self.now += cost,
                Rule::Bucket { per, .. } => self.missing += cost * number(per),
                _ => {
                    let at = match rule {
                        Rule::Fixed { .. } => now.max(self.fixed_start().unwrap_or(now)),
                        Rule::Concurrent { lease, .. } => now + number(lease),
                        _ => now,
                    };
                    self.units.extend((0..cost).map(|_| (at, id.to_owned())));
                }
            }
        }
        let free = self.free(rule, now);
        let most = i64::try_from(rule.most()).unwrap();
        let next = match rule {
            // These two free nothing before they free all.
            Rule::Calendar { .. } | Rule::Fixed { .. } if free < most => {
                self.wait_for(rule, now, most)
            }
            // A fraction of a unit is missing although all whole ones are there.
            _ if free == most => 0,
            _ => self.wait_for(rule, now, free + 1),
        };
        (allowed, free, next, retry)
    }
}

/// The rule as it is at `now`: a calendar's period depends on it.
fn at(rule: Rule, now: Millis) -> Rule {
    match rule {
        Rule::Calendar { limit, .. } => {
            let start = now.0 - now.0.rem_euclid(WINDOW_MS);
            Rule::Calendar { limit, start: Millis(start), end: Millis(start + WINDOW_MS) }
        }
        other => other,
    }
}

fn rules() -> [Rule; 6] {
    [
        Rule::Sliding { limit: 7, window: WINDOW },
        Rule::Fixed { limit: 7, window: WINDOW },
        Rule::Counter { limit: 7, window: WINDOW },
        Rule::Bucket { burst: 7, count: 5, per: WINDOW },
        Rule::Calendar { limit: 7, start: Millis(0), end: Millis(1) },
        Rule::Concurrent { limit: 7, lease: WINDOW },
    ]
}

fn shown(outcome: &CheckOutcome) -> (bool, i64, i64, i64) {
    let remaining = i64::try_from(outcome.remaining).unwrap();
    (outcome.allowed, remaining, number(outcome.next), number(outcome.retry))
}

/// The most units that the rule may allow in any span of `WINDOW_MS` that begins with a request.
fn bound(rule: Rule) -> i64 {
    match rule {
        Rule::Sliding { limit, .. } => i64::from(limit),
        Rule::Bucket { burst, count, .. } => i64::from(burst + count),
        // Twice across an edge; a lease may be given again once it expired.
        _ => 2 * i64::try_from(rule.most()).unwrap(),
    }
}

testkit::each_store! {
    async fn model_and_store_agree_after_every_step(t: TestStore) {
        for (which, rule) in rules().into_iter().enumerate() {
            let mut random = fastrand::Rng::with_seed(which as u64 + 1);
            let key = Key::raw(format!("l{which}"));
            let mut model = Model::default();
            // Real time goes on while the clock also steps back.
            let (mut real, mut allowed) = (0, Vec::<(i64, i64)>::new());
            let (mut id, mut cost) = (String::new(), 0);
            for step in 0..220 {
                let advance = if random.bool() { random.i64(0..WINDOW_MS / 3) } else { random.i64(0..40) };
                real += advance;
                t.clock.advance(Duration::from_millis(advance.cast_unsigned()));
                if random.u8(0..50) == 0 {
                    let back = random.i64(0..2 * WINDOW_MS);
                    t.clock.set(Millis(t.clock.now().0 - back));
                }
                let now = t.store.now();
                let rule = at(rule, now);
                // One in eight repeats the request before.
                if random.u8(0..8) > 0 {
                    (id, cost) = (format!("r{step}"), random.u64(0..=3));
                }
                let check = LimitCheck { key: key.clone(), rule, cost, request_id: id.clone() };
                let known = model.units.iter().any(|(_, of)| *of == id);
                let outcome = limit::check(&t.store, &check).await.unwrap();
                let units = i64::try_from(cost).unwrap();
                let expected = model.check(rule, now.0, &id, units);
                assert_eq!(shown(&outcome), expected, "step {step}, {rule:?}, cost {cost}, at {now}: {model:?}");
                if outcome.allowed && !known {
                    allowed.push((real, units));
                }
            }
            for (from, _) in &allowed {
                let span = allowed.iter().filter(|(at, _)| (*from..*from + WINDOW_MS).contains(at));
                let units: i64 = span.map(|(_, units)| units).sum();
                assert!(units <= bound(rule), "{units} units from {from} on: {rule:?}");
            }
            let total: i64 = allowed.iter().map(|(_, units)| units).sum();
            assert!(total > 30, "{total} is too few to show anything: {rule:?}");
        }
    }

    async fn a_denial_by_one_limit_leaves_all_others_unchanged(t: TestStore) {
        let mut random = fastrand::Rng::with_seed(99);
        let keys: Vec<Key> = (0..6).map(|which| Key::raw(format!("{{t}}l{which}"))).collect();
        let mut models = vec![Model::default(); 6];
        let (mut denials, mut passes) = (0, 0);
        for step in 0..150 {
            t.clock.advance(Duration::from_millis(random.u64(0..WINDOW_MS.cast_unsigned() / 4)));
            let now = t.store.now();
            let count = random.usize(2..=6);
            let mut which: Vec<usize> = (0..6).collect();
            random.shuffle(&mut which);
            which.truncate(count);
            let id = format!("r{step}");
            let checks: Vec<LimitCheck> = which.iter().map(|which| LimitCheck {
                key: keys[*which].clone(),
                rule: at(rules()[*which], now),
                cost: random.u64(0..=2),
                request_id: id.clone(),
            }).collect();
            let fits = which.iter().zip(&checks).all(|(which, check)| {
                models[*which].free(check.rule, now.0) >= i64::try_from(check.cost).unwrap()
            });
            let outcomes = limit::check_all(&t.store, &checks).await.unwrap();
            assert!(outcomes.iter().all(|outcome| outcome.allowed == fits), "step {step}: {outcomes:?}");
            for ((which, check), outcome) in which.iter().zip(&checks).zip(&outcomes) {
                let cost = i64::try_from(check.cost).unwrap();
                let retry = models[*which].wait_for(check.rule, now.0, cost);
                let charged = if fits { cost } else { 0 };
                let (_, remaining, next, _) = models[*which].check(check.rule, now.0, &id, charged);
                assert_eq!(shown(outcome), (fits, remaining, next, retry), "step {step}: {check:?}");
            }
            if fits { passes += 1 } else { denials += 1 }
        }
        assert!(denials > 20 && passes > 20, "{denials} denied, {passes} allowed");
    }
}
