//! Rate limits: a script per algorithm, and one that charges a request to several limits or to none.
//!
//! A [`Rule`] says how much is allowed; a [`LimitCheck`] names the key that counts and what the
//! request costs. Invariant: however many callers there are, the sum of what is allowed never
//! exceeds a rule, and a request refused by one limit is not charged to another.
//!
//! [`check`] is one request at one limit; [`CheckBatcher`] sends concurrent checks as one script
//! call; [`LimitCache`] decides in process what it can; [`check_all`] is one request at several limits.
//! [`peek`] looks, [`refund`] and [`release`] give back, [`renew`] keeps a lease, [`reset`] forgets. The state of a limit is one small key, or
//! a sorted set with a member per allowed unit ([`Rule::Sliding`], [`Rule::Fixed`],
//! [`Rule::Concurrent`]); each goes by itself when idle.

mod batch;
mod cache;
mod denials;
pub mod header;
mod prepay;

use std::time::Duration;

use crate::{
    Error, Key, Millis, Store,
    scripts::{
        limit_bucket, limit_calendar, limit_concurrent, limit_counter, limit_fixed, limit_refund,
        limit_release, limit_renew, limit_sliding, limit_take,
    },
};

pub use self::{
    batch::CheckBatcher,
    cache::{LimitCache, LimitCacheOptions, LocalStore, Prepay, return_units},
};

/// The most units a [`Rule::Sliding`], a [`Rule::Fixed`] or a [`Rule::Concurrent`] may allow,
/// because it remembers each: about 120 kB a key.
pub const WINDOW_MOST: u32 = 1_000;

/// The most limits one request may be charged to.
pub const CHARGES_MOST: usize = 16;

/// The most units a [`Rule::Calendar`] may allow: numbers in scripts are exact below 2^53.
pub const CALENDAR_MOST: u64 = (1 << 53) - 1;

/// Time for which a refund is remembered, so that a repeated one counts once. No client repeats a
/// call later than this.
const REFUND_MEMORY: Duration = Duration::from_secs(60);

/// The rule of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Exactly `limit` in any window, wherever it starts (`sliding`). Remembers each unit, so
    /// `limit` is at most [`WINDOW_MOST`].
    Sliding {
        /// Number of units allowed.
        limit: u32,
        /// In how long.
        window: Duration,
    },
    /// About `limit` in any window, from two counters: the last window counts by how much of it
    /// overlaps. Cheap for any limit. At most `limit` in a window that starts at a multiple of its
    /// length, less than twice that in any other; exact for traffic that arrives evenly.
    Counter {
        /// Number of units allowed.
        limit: u32,
        /// In how long.
        window: Duration,
    },
    /// `limit` in a window that opens with its first request. Up to twice as many across an edge.
    /// Remembers each unit, so `limit` is at most [`WINDOW_MOST`].
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
    /// `limit` in one period of a calendar, whose start and end the caller works out.
    Calendar {
        /// Number of units allowed, at most [`CALENDAR_MOST`].
        limit: u64,
        /// Start of the period that holds now.
        start: Millis,
        /// End of that period, which is the start of the next.
        end: Millis,
    },
    /// `limit` at once: a unit is a lease, free again when [released](release) or expired.
    Concurrent {
        /// Number of units at once, at most [`WINDOW_MOST`].
        limit: u32,
        /// Time after which a lease that is not [renewed](renew) expires.
        lease: Duration,
    },
}

/// An algorithm, to the code around it.
struct Algorithm {
    /// Name in scripts, settings and JSON.
    name: &'static str,
    /// Redis type of the state.
    key_type: &'static str,
    /// The units of a request are kept under its id.
    remembers_requests: bool,
}

/// Number of algorithms.
const ALGORITHM_COUNT: usize = 6;

/// The algorithms, in the order of [`Rule::number`].
const ALGORITHMS: [Algorithm; ALGORITHM_COUNT] = [
    Algorithm { name: "sliding", key_type: "zset", remembers_requests: true },
    Algorithm { name: "counter", key_type: "hash", remembers_requests: false },
    Algorithm { name: "fixed", key_type: "zset", remembers_requests: true },
    Algorithm { name: "bucket", key_type: "string", remembers_requests: false },
    Algorithm { name: "calendar", key_type: "hash", remembers_requests: false },
    Algorithm { name: "concurrent", key_type: "zset", remembers_requests: true },
];

impl Rule {
    /// The place of its algorithm in [`ALGORITHMS`].
    fn number(&self) -> usize {
        match self {
            Self::Sliding { .. } => 0,
            Self::Counter { .. } => 1,
            Self::Fixed { .. } => 2,
            Self::Bucket { .. } => 3,
            Self::Calendar { .. } => 4,
            Self::Concurrent { .. } => 5,
        }
    }

    fn in_table(&self) -> &'static Algorithm {
        let [first, ..] = &ALGORITHMS;
        ALGORITHMS.get(self.number()).unwrap_or(first)
    }

    /// The most that can be free: the limit, or a bucket's burst.
    pub fn most(&self) -> u64 {
        match *self {
            Self::Sliding { limit, .. }
            | Self::Counter { limit, .. }
            | Self::Fixed { limit, .. }
            | Self::Concurrent { limit, .. } => u64::from(limit),
            Self::Bucket { burst, .. } => u64::from(burst),
            Self::Calendar { limit, .. } => limit,
        }
    }

    /// Returns true if the units of a request are kept under its id, so that a repeated request
    /// counts once and [`release`] gives back exactly its own.
    pub fn remembers_requests(&self) -> bool {
        self.in_table().remembers_requests
    }

    /// Says what is wrong with a rule that cannot work.
    pub fn validate(&self) -> Result<(), Error> {
        let (count, period) = match *self {
            Self::Sliding { limit, window: period }
            | Self::Fixed { limit, window: period }
            | Self::Concurrent { limit, lease: period } => {
                if limit > WINDOW_MOST {
                    return Err(Error::invalid(format!(
                        "a limit of {limit} is more than {WINDOW_MOST}, which is the most for an \
                         algorithm that remembers each unit: use a counter"
                    )));
                }
                (limit, period)
            }
            Self::Counter { limit, window } => (limit, window),
            Self::Bucket { burst, count, per } => (count.min(burst), per),
            Self::Calendar { limit, start, end } => {
                if limit == 0 || limit > CALENDAR_MOST {
                    return Err(Error::invalid(format!(
                        "the limit of a calendar is 1 to {CALENDAR_MOST}"
                    )));
                }
                if end <= start {
                    return Err(Error::invalid("a period of the calendar ends after it starts"));
                }
                return Ok(());
            }
        };
        if count == 0 {
            return Err(Error::invalid("a limit of 0 allows nothing: set at least 1"));
        }
        // A year keeps every product in the scripts below 2^53 for limits up to 100 000.
        let year = Duration::from_secs(366 * 24 * 60 * 60);
        if period < Duration::from_millis(1) || period > year {
            return Err(Error::invalid("a limit's time must be between 1 ms and a year"));
        }
        // A counter weighs its last window by a share, which need not be exact.
        if matches!(self, Self::Counter { .. }) {
            return Ok(());
        }
        let most = self.most().max(u64::from(count));
        let product = u128::from(most).saturating_mul(period.as_millis());
        if product >= 1 << 52 {
            return Err(Error::invalid(
                "a limit this great over a time this long cannot be counted",
            ));
        }
        Ok(())
    }

    /// The algorithm's name, as it is in scripts, settings and JSON.
    pub fn algorithm(&self) -> &'static str {
        self.in_table().name
    }

    /// The Redis type of its state.
    fn key_type(&self) -> &'static str {
        self.in_table().key_type
    }

    /// The three numbers of the rule, as its script takes them.
    fn numbers(&self) -> [i64; 3] {
        match *self {
            Self::Sliding { limit, window }
            | Self::Counter { limit, window }
            | Self::Fixed { limit, window } => [i64::from(limit), millis(window), 0],
            Self::Concurrent { limit, lease } => [i64::from(limit), millis(lease), 0],
            Self::Bucket { burst, count, per } => [i64::from(count), millis(per), i64::from(burst)],
            Self::Calendar { limit, start, end } => {
                [i64::try_from(limit).unwrap_or(i64::MAX), start.0, end.0]
            }
        }
    }

    fn validate_cost(&self, cost: u64) -> Result<(), Error> {
        self.validate()?;
        if cost > self.most() {
            return Err(Error::invalid(format!(
                "a cost of {cost} can never be allowed by a limit of {}",
                self.most()
            )));
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// One request at one limit.
#[derive(Clone, Debug)]
pub struct LimitCheck {
    /// Key of the limit's state.
    pub key: Key,
    /// The rule of the limit.
    pub rule: Rule,
    /// Units the request takes; 0 only looks.
    pub cost: u64,
    /// Id of the request, unique to it. A check repeated under the same id counts once where the
    /// rule [remembers requests](Rule::remembers_requests); elsewhere it counts again, which
    /// refuses more and never allows more.
    pub request_id: String,
}

/// The outcome of a request at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOutcome {
    /// May it go ahead?
    pub allowed: bool,
    /// The most that can be free.
    pub limit: u64,
    /// Units free now.
    pub remaining: u64,
    /// Time until one more unit is free; zero when all are.
    pub next: Duration,
    /// Time until this limit would allow the request; zero when it does now.
    pub retry: Duration,
    /// Time of the decision; the times above count from here.
    pub at: Millis,
}

impl CheckOutcome {
    /// Returns what is told of a limit that nothing is known of: all of it is free.
    pub fn whole(rule: &Rule, at: Millis) -> Self {
        let (limit, zero) = (rule.most(), Duration::ZERO);
        Self { allowed: true, limit, remaining: limit, next: zero, retry: zero, at }
    }
}

/// Charges one request to one limit.
///
/// ```
/// # #![allow(clippy::disallowed_methods)]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_store::Error> {
/// use std::time::Duration;
/// use tidegate_store::limit::{self, LimitCheck, Rule};
///
/// let store = tidegate_store::Store::open("embedded:").await?;
/// let check = LimitCheck {
///     key: tidegate_store::Key::raw("ha:sliding_limit:192.0.2.1"),
///     rule: Rule::Sliding { limit: 20, window: Duration::from_secs(60) },
///     cost: 1,
///     request_id: "req-81f2".to_owned(),
/// };
/// let outcome = limit::check(&store, &check).await?;
/// assert!(outcome.allowed && outcome.remaining == 19);
/// # Ok(()) }
/// ```
pub async fn check(store: &Store, check: &LimitCheck) -> Result<CheckOutcome, Error> {
    let outcomes = match check_same(store, &[check]).await {
        Err(Error::Script { .. }) if forget_others(store, std::slice::from_ref(check)).await? => {
            check_same(store, &[check]).await?
        }
        outcomes => outcomes?,
    };
    outcomes.into_iter().next().ok_or_else(reply::unreadable)
}

/// Forgets limits whose keys hold the state of another algorithm: the rule has changed, or an older
/// version counted differently. Returns whether there was one. What no limit writes is left alone.
async fn forget_others(store: &Store, checks: &[LimitCheck]) -> Result<bool, Error> {
    let mut forgotten = false;
    for LimitCheck { key, rule, .. } in checks {
        let found: String = redis::cmd("TYPE").arg(key).query_async(&mut store.clone()).await?;
        if ["zset", "hash", "string"].contains(&found.as_str()) && found != rule.key_type() {
            reset(store, key).await?;
            forgotten = true;
        }
    }
    Ok(forgotten)
}

/// Looks at a limit without charging it.
pub async fn peek(store: &Store, key: &Key, rule: Rule) -> Result<CheckOutcome, Error> {
    let look = LimitCheck { key: key.clone(), rule, cost: 0, request_id: String::new() };
    check(store, &look).await
}

/// Sends checks whose rules are of one algorithm, and whose keys share a slot on a cluster, as one
/// script call. Each is decided by itself, in order.
async fn check_same(store: &Store, checks: &[&LimitCheck]) -> Result<Vec<CheckOutcome>, Error> {
    let Some(first) = checks.first() else { return Ok(Vec::new()) };
    let same = |a: &&LimitCheck, b: &&LimitCheck| a.cost == b.cost && a.rule == b.rule;
    let mut args = Vec::with_capacity(checks.len() + 5);
    for run in checks.chunk_by(same) {
        let LimitCheck { rule, cost, .. } = run[0];
        rule.validate_cost(*cost)?;
        args.push(run.len().to_string());
        args.push(cost.to_string());
        args.extend(rule.numbers().map(|number| number.to_string()));
        if rule.remembers_requests() {
            args.extend(run.iter().map(|check| check.request_id.clone()));
        }
    }
    let (now_ms, limits) = (store.now(), checks.iter().map(|check| &check.key));
    macro_rules! run {
        ($script:ident) => {
            $script::run(store, $script::Keys { limits }, $script::Args { now_ms, checks: args })
                .await?
        };
    }
    let items: reply::LimitItems = match first.rule {
        Rule::Sliding { .. } => run!(limit_sliding),
        Rule::Counter { .. } => run!(limit_counter),
        Rule::Fixed { .. } => run!(limit_fixed),
        Rule::Bucket { .. } => run!(limit_bucket),
        Rule::Calendar { .. } => run!(limit_calendar),
        Rule::Concurrent { .. } => run!(limit_concurrent),
    };
    reply::outcomes(&items, checks, now_ms)
}

/// Charges one request to all of `checks`, or to none if one of them refuses. The outcomes are in
/// the order of the checks; `allowed` is the same in each. The request id is that of the first. On
/// a cluster the keys must share a slot.
pub async fn check_all(store: &Store, checks: &[LimitCheck]) -> Result<Vec<CheckOutcome>, Error> {
    if checks.is_empty() || checks.len() > CHARGES_MOST {
        return Err(Error::invalid(format!("a request has 1 to {CHARGES_MOST} limits")));
    }
    if let [one] = checks {
        return Ok(vec![check(store, one).await?]);
    }
    let mut rules = Vec::with_capacity(checks.len() * 5);
    for LimitCheck { rule, cost, .. } in checks {
        rule.validate_cost(*cost)?;
        rules.push(rule.algorithm().to_owned());
        rules.push(cost.to_string());
        rules.extend(rule.numbers().map(|number| number.to_string()));
    }
    let request_id = checks.first().map_or("", |check| check.request_id.as_str());
    let now_ms = store.now();
    let send = || {
        let keys = limit_take::Keys { limits: checks.iter().map(|check| &check.key) };
        let args = limit_take::Args { now_ms, request_id, rules: &rules };
        limit_take::run::<reply::LimitItems>(store, keys, args)
    };
    let items = match send().await {
        Err(Error::Script { .. }) if forget_others(store, checks).await? => send().await?,
        items => items?,
    };
    reply::joint_outcomes(&items, checks, now_ms)
}

/// Gives back what one request holds at a limit that [remembers
/// requests](Rule::remembers_requests): ends a lease, or takes back units of a window. Returns the
/// number of units; 0 when there were none any more.
pub async fn release(store: &Store, check: &LimitCheck) -> Result<u64, Error> {
    check.rule.validate_cost(check.cost)?;
    if !check.rule.remembers_requests() {
        return Err(Error::invalid(format!(
            "a {} does not remember requests: refund the units instead",
            check.rule.algorithm()
        )));
    }
    let keys = limit_release::Keys { limit: &check.key };
    let keep_ms = match check.rule {
        Rule::Fixed { window, .. } => Some(millis(window) + 1_000),
        _ => None,
    };
    let args = limit_release::Args { request_id: &check.request_id, units: check.cost, keep_ms };
    let (_, units): (String, u64) = limit_release::run(store, keys, args).await?;
    Ok(units)
}

/// Renews the lease a request holds at a [`Rule::Concurrent`]. Returns false when it has expired;
/// it is not brought back.
pub async fn renew(store: &Store, check: &LimitCheck) -> Result<bool, Error> {
    check.rule.validate_cost(check.cost)?;
    let Rule::Concurrent { lease, .. } = check.rule else {
        return Err(Error::invalid("only a lease of a concurrent limit can be renewed"));
    };
    let keys = limit_renew::Keys { limit: &check.key };
    let args = limit_renew::Args {
        now_ms: store.now(),
        request_id: &check.request_id,
        units: check.cost,
        lease_ms: millis(lease),
    };
    let (word,): (String,) = limit_renew::run(store, keys, args).await?;
    Ok(word == "renewed")
}

/// Gives back units that were charged at `charged` to a counter, a bucket or a calendar. They come
/// back to the window or period they were charged to, or not at all when that is over. Returns the
/// number of units.
///
/// `refunds` remembers refunds by their id for a minute, so that a repeated one counts once; several
/// limits may share it. On a cluster it shares the limit's slot.
pub async fn refund(
    store: &Store,
    check: &LimitCheck,
    charged: Millis,
    refunds: &Key,
    refund_id: &str,
) -> Result<u64, Error> {
    check.rule.validate_cost(check.cost)?;
    if check.rule.remembers_requests() {
        return release(store, check).await;
    }
    let [a, b, c] = check.rule.numbers();
    let keys = limit_refund::Keys { limit: &check.key, refunds };
    let args = limit_refund::Args {
        now_ms: store.now(),
        refund_id,
        algorithm: check.rule.algorithm(),
        units: check.cost,
        charged_ms: charged,
        a,
        b,
        c,
        keep_ms: millis(REFUND_MEMORY),
    };
    let items: reply::LimitItems = limit_refund::run(store, keys, args).await?;
    reply::refunded(&items)
}

/// Forgets what a limit counted.
pub async fn reset(store: &Store, key: &Key) -> Result<(), Error> {
    let mut store = store.clone();
    redis::cmd("DEL").arg(key).query_async::<()>(&mut store).await?;
    Ok(())
}

/// Reading the scripts' replies: a word, then numbers.
mod reply {
    use redis::{FromRedisValue, ParsingError, Value};

    use super::{CheckOutcome, Duration, Error, LimitCheck, Millis, Rule};

    pub(super) struct LimitItems {
        word: String,
        numbers: Vec<i64>,
    }

    impl FromRedisValue for LimitItems {
        fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
            let mut items = Vec::<Value>::from_redis_value(value)?.into_iter();
            let word = items.next().ok_or("a limit's reply is empty")?;
            Ok(Self {
                word: String::from_redis_value(word)?,
                numbers: items.map(i64::from_redis_value).collect::<Result<_, _>>()?,
            })
        }
    }

    pub(super) fn unreadable() -> Error {
        Error::Decode { message: "a limit's reply has another shape".to_owned() }
    }

    fn outcome(rule: &Rule, allowed: bool, numbers: [i64; 3], at: Millis) -> CheckOutcome {
        let [remaining, next, retry] = numbers.map(|number| u64::try_from(number).unwrap_or(0));
        CheckOutcome {
            allowed,
            limit: rule.most(),
            remaining,
            next: Duration::from_millis(next),
            retry: Duration::from_millis(retry),
            at,
        }
    }

    pub(super) fn outcomes(
        reply: &LimitItems,
        checks: &[&LimitCheck],
        at: Millis,
    ) -> Result<Vec<CheckOutcome>, Error> {
        let mut numbers = reply.numbers.iter().copied();
        let mut next = || numbers.next().ok_or_else(unreadable);
        let mut outcomes = Vec::with_capacity(checks.len());
        for check in checks {
            let (remaining, next_ms) = (next()?, next()?);
            outcomes.push(if remaining >= 0 {
                outcome(&check.rule, true, [remaining, next_ms, 0], at)
            } else {
                outcome(&check.rule, false, [-1 - remaining, next_ms, next()?], at)
            });
        }
        match numbers.next() {
            None => Ok(outcomes),
            Some(_) => Err(unreadable()),
        }
    }

    pub(super) fn joint_outcomes(
        reply: &LimitItems,
        checks: &[LimitCheck],
        at: Millis,
    ) -> Result<Vec<CheckOutcome>, Error> {
        let (chunks, rest) = reply.numbers.as_chunks::<3>();
        if chunks.len() != checks.len() || !rest.is_empty() {
            return Err(unreadable());
        }
        let allowed = reply.word == "allowed";
        let each = chunks.iter().zip(checks);
        Ok(each.map(|(numbers, check)| outcome(&check.rule, allowed, *numbers, at)).collect())
    }

    pub(super) fn refunded(reply: &LimitItems) -> Result<u64, Error> {
        match (reply.word.as_str(), reply.numbers.first()) {
            ("refunded", Some(units)) => Ok(u64::try_from(*units).unwrap_or(0)),
            ("refunded", None) => Err(unreadable()),
            _ => Ok(0),
        }
    }
}
