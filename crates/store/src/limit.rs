//! Rate limits: one script that charges a request to several limits, or to none.
//!
//! A [`Rule`] says how much is allowed; a [`Charge`] names the key that counts and what the request
//! costs. Invariant: however many callers there are, the sum of what is allowed never exceeds a
//! rule, and a request refused by one limit is not charged to another.
//!
//! The state is at most one small hash per key, or a sorted set with one member per allowed unit
//! for [`Rule::Window`]; both go by themselves when idle.

use std::time::Duration;

use crate::{Error, Key, Store, scripts::limit_take};

/// The most units a [`Rule::Window`] may allow, because it remembers each: about 120 kB a key.
pub const WINDOW_MOST: u32 = 1_000;

/// The most limits one request may be charged to.
pub const CHARGES_MOST: usize = 16;

/// The rule of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Exactly `limit` in any window, wherever it starts. Remembers each unit, so `limit` is at
    /// most [`WINDOW_MOST`].
    Window {
        /// Number of units allowed.
        limit: u32,
        /// In how long.
        window: Duration,
    },
    /// About `limit` in any window, from two counters: the last window counts by how much of it
    /// overlaps. Cheap for any limit.
    Counter {
        /// Number of units allowed.
        limit: u32,
        /// In how long.
        window: Duration,
    },
    /// `limit` in a window that opens with its first request. Up to twice as many across an edge.
    Fixed {
        /// Number of units allowed.
        limit: u32,
        /// In how long.
        window: Duration,
    },
    /// `burst` at once, refilled with `count` per `per`: at most burst + rate × time over any time.
    Bucket {
        /// Most units at once.
        burst: u32,
        /// Number of units that come back.
        count: u32,
        /// In how long they do.
        per: Duration,
    },
}

impl Rule {
    /// The most that can be free: the limit, or a bucket's burst.
    pub fn most(&self) -> u32 {
        match *self {
            Self::Window { limit, .. }
            | Self::Counter { limit, .. }
            | Self::Fixed { limit, .. } => limit,
            Self::Bucket { burst, .. } => burst,
        }
    }

    /// Says what is wrong with a rule that cannot work.
    pub fn validate(&self) -> Result<(), Error> {
        let (count, period) = match *self {
            Self::Window { limit, window } if limit <= WINDOW_MOST => (limit, window),
            Self::Window { limit, .. } => {
                return Err(Error::invalid(format!(
                    "a window of {limit} is more than {WINDOW_MOST}: use a counter or a bucket"
                )));
            }
            Self::Counter { limit, window } | Self::Fixed { limit, window } => (limit, window),
            Self::Bucket { burst, count, per } => (count.min(burst), per),
        };
        if count == 0 {
            return Err(Error::invalid("a limit of 0 allows nothing: set at least 1"));
        }
        // A year keeps every product in the script below 2^53 for limits up to 100 000.
        let year = Duration::from_secs(366 * 24 * 60 * 60);
        if period < Duration::from_millis(1) || period > year {
            return Err(Error::invalid("a limit's time must be between 1 ms and a year"));
        }
        let product = u128::from(self.most().max(count)).saturating_mul(period.as_millis());
        if product >= 1 << 52 {
            return Err(Error::invalid(
                "a limit this great over a time this long cannot be counted",
            ));
        }
        Ok(())
    }
}

/// The cost of a request at one limit.
#[derive(Clone, Debug)]
pub struct Charge {
    /// Key of the limit's state.
    pub key: Key,
    /// The rule of a rate limit.
    pub rule: Rule,
    /// Units the request takes; 0 only looks.
    pub cost: u32,
}

impl Charge {
    /// One unit.
    pub fn one(key: Key, rule: Rule) -> Self {
        Self { key, rule, cost: 1 }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// May it go ahead? Then every limit was charged, otherwise none.
    pub allowed: bool,
    /// Each limit after this request, in the order of the charges.
    pub limits: Vec<LimitState>,
}

/// One limit after a request: what the headers of a reply tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The most that can be free.
    pub limit: u32,
    /// Units free now.
    pub remaining: u32,
    /// Time until one more unit is free; zero when all are.
    pub next: Duration,
    /// Time until this limit would allow the request; zero when it does now.
    pub retry: Duration,
}

impl LimitVerdict {
    /// Time until all limits would allow the request; zero when they did.
    pub fn retry(&self) -> Duration {
        self.limits.iter().map(|state| state.retry).max().unwrap_or_default()
    }

    /// The limit that is nearest to its end, the one to show to the caller.
    pub fn tightest(&self) -> Option<&LimitState> {
        self.limits
            .iter()
            .min_by(|a, b| a.retry.cmp(&b.retry).reverse().then(a.remaining.cmp(&b.remaining)))
    }
}

/// Charges a request to all of `charges`, or to none if one of them refuses.
///
/// `request_id` names the request: charged twice to a [`Rule::Window`] it counts once, so that a
/// call repeated after a lost reply does no harm; the other kinds may count it twice, which refuses
/// more and never allows more. On a cluster the keys must share a slot.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store, key: tidegate_store::Key) -> Result<(), tidegate_store::Error> {
/// use std::time::Duration;
/// use tidegate_store::limit::{self, Charge, Rule};
///
/// let rule = Rule::Bucket { burst: 20, count: 600, per: Duration::from_secs(60) };
/// let verdict = limit::take(&store, "req-81f2", &[Charge::one(key, rule)]).await?;
/// if !verdict.allowed {
///     println!("come back in {:?}", verdict.retry());
/// }
/// # Ok(()) }
/// ```
pub async fn take(
    store: &Store,
    request_id: &str,
    charges: &[Charge],
) -> Result<LimitVerdict, Error> {
    if charges.is_empty() || charges.len() > CHARGES_MOST {
        return Err(Error::invalid(format!("a request has 1 to {CHARGES_MOST} limits")));
    }
    let mut rules = Vec::with_capacity(charges.len() * 5);
    for Charge { rule, cost, .. } in charges {
        rule.validate()?;
        if *cost > rule.most() {
            return Err(Error::invalid(format!(
                "a cost of {cost} can never be allowed by a limit of {}",
                rule.most()
            )));
        }
        let (kind, count, period, burst) = match *rule {
            Rule::Window { limit, window } => ("window", limit, window, limit),
            Rule::Counter { limit, window } => ("counter", limit, window, limit),
            Rule::Fixed { limit, window } => ("fixed", limit, window, limit),
            Rule::Bucket { burst, count, per } => ("bucket", count, per, burst),
        };
        rules.push(kind.to_owned());
        rules.push(count.to_string());
        rules.push(period.as_millis().to_string());
        rules.push(burst.to_string());
        rules.push(cost.to_string());
    }
    let keys = limit_take::Keys { limits: charges.iter().map(|charge| &charge.key) };
    let args = limit_take::Args { now_ms: store.now(), request_id, rules };
    let items: Vec<reply::LimitItem> = limit_take::run(store, keys, args).await?;
    reply::verdict(&items, charges)
}

/// Forgets what a limit counted.
pub async fn reset(store: &Store, key: &Key) -> Result<(), Error> {
    let mut store = store.clone();
    redis::cmd("DEL").arg(key).query_async::<()>(&mut store).await?;
    Ok(())
}

/// Reading the script's reply: a word, then three numbers per limit.
mod reply {
    use redis::{FromRedisValue, ParsingError, Value};

    use super::{Charge, Duration, Error, LimitState, LimitVerdict};

    pub(super) enum LimitItem {
        Word(String),
        Number(u64),
    }

    impl FromRedisValue for LimitItem {
        fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
            match value {
                Value::Int(number) => Ok(Self::Number(u64::try_from(number).unwrap_or(0))),
                other => String::from_redis_value(other).map(Self::Word),
            }
        }
    }

    pub(super) fn verdict(reply: &[LimitItem], charges: &[Charge]) -> Result<LimitVerdict, Error> {
        let unreadable =
            || Error::Decode { message: "a limit's reply has another shape".to_owned() };
        let Some((LimitItem::Word(word), rest)) = reply.split_first() else {
            return Err(unreadable());
        };
        let limits = rest.chunks(3).zip(charges).map(|(numbers, charge)| match *numbers {
            [LimitItem::Number(remaining), LimitItem::Number(next), LimitItem::Number(retry)] => {
                Ok(LimitState {
                    limit: charge.rule.most(),
                    remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
                    next: Duration::from_millis(next),
                    retry: Duration::from_millis(retry),
                })
            }
            _ => Err(unreadable()),
        });
        let limits: Vec<LimitState> = limits.collect::<Result<_, _>>()?;
        if limits.len() != charges.len() {
            return Err(unreadable());
        }
        Ok(LimitVerdict { allowed: word == "allowed", limits })
    }
}
