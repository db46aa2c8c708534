//! Rate limits shared by every instance of an app.
//!
//! [`Limiter::check`] charges one request to the policies that apply to it: to all, or to none. The
//! arithmetic is [`store::limit`]'s, one script per algorithm; here is what stands around it: keys,
//! policies, denials answered in process, units drawn ahead ([`Policy::with_prepay`]), and the
//! decision while the store is out of reach. Invariant: no shortcut allows more than the store
//! would; memory per instance is bounded.
//!
//! Read in this order: `policy.rs`, `calendar.rs`, [`Limiter`] here, `prepay.rs`, `denials.rs`.

mod calendar;
mod denials;
mod policy;
mod prepay;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::{
    EvictionPolicy, Key, Millis, Store,
    limit::{self, CHARGES_MOST, CheckBatcher, CheckOutcome, LimitCheck},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    calendar::CalendarPeriod,
    policy::{LimitAlgorithm, Policy, WhenStoreDown},
};
use self::{denials::DenialCache, prepay::PrepaidUnits};
use crate::{Error, Identity, PolicyName, Prefix, keys::LimitKeys, random::random_hex};

/// Interval at which unspent prepaid units are looked for.
const GIVE_BACK_INTERVAL: Duration = Duration::from_millis(250);

/// Most policies whose use is counted; policies are few, their names are checked.
const STATS_MAX: usize = 1_000;

/// Memory of the store that limits by itself while the shared one is out of reach.
const LOCAL_STORE_BYTES: u64 = 64 << 20;

/// Charges requests to policies. A cheap clone; all clones share what is known in process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_desk::Error> {
/// use std::time::Duration;
/// use tidegate_desk::{Identity, PolicyName, Prefix, limit::{LimitAlgorithm, Limiter, Policy}};
///
/// let store = store::Store::open("embedded:").await?;
/// let limiter = Limiter::new(&store, &Prefix::default())?;
/// let minute = Duration::from_secs(60);
/// let api = Policy::new(Some(PolicyName::parse("api")?), LimitAlgorithm::Counter, 100, minute)?;
/// let decision = limiter.check(&Identity::user("123"), &[&api], 1).await?;
/// assert!(decision.allowed && decision.limits[0].remaining == 99);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter(Arc<LimiterInner>);

#[derive(Debug)]
struct LimiterInner {
    store: Store,
    keys: LimitKeys,
    batcher: CheckBatcher,
    denials: DenialCache,
    prepaid: PrepaidUnits,
    /// Start of every request id of this instance.
    instance: String,
    requests: AtomicU64,
    stats: Mutex<HashMap<Option<PolicyName>, PolicyStats>>,
    /// Limits by itself while the shared store is out of reach; opened when first needed.
    local: tokio::sync::OnceCell<(Store, CheckBatcher)>,
}

/// The id of a request: made here, or given by the caller, who may repeat it.
#[derive(Debug)]
enum RequestId {
    Fresh(String),
    Given(String),
}

impl RequestId {
    fn text(&self) -> &str {
        match self {
            Self::Fresh(text) | Self::Given(text) => text,
        }
    }
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// May it go ahead? Then every policy was charged, otherwise none.
    pub allowed: bool,
    /// Each policy after this request, in the order they were given.
    pub limits: Vec<PolicyState>,
    /// The store was out of reach: the policies' [`WhenStoreDown`] decided.
    pub degraded: bool,
    /// Id of the request, to refund, renew or release what it was given.
    pub request_id: String,
}

impl Decision {
    /// Time until all policies would allow the request; zero when they did.
    pub fn retry_after(&self) -> Duration {
        let denying = self.limits.iter().filter(|limit| !limit.shadow);
        denying.map(|limit| limit.retry_after).max().unwrap_or_default()
    }
}

/// One policy after a request: what the headers of a reply tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// Name of the policy; none for the default policy.
    pub policy: Option<PolicyName>,
    /// The most that can be free.
    pub limit: u64,
    /// Units free now.
    pub remaining: u64,
    /// Time until one more unit is free; zero when all are.
    pub reset: Duration,
    /// Time until this policy would allow the request; zero when it does now.
    pub retry_after: Duration,
    /// The policy never denies.
    pub shadow: bool,
}

/// Use of one policy on this instance since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Requests allowed.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Requests allowed with at most a fifth of the limit left.
    pub near: u64,
    /// Requests a shadow policy would have denied.
    pub shadow: u64,
    /// Requests decided while the store was out of reach.
    pub degraded: u64,
}

impl Limiter {
    /// Creates a limiter on a store.
    pub fn new(store: &Store, prefix: &Prefix) -> Result<Self, Error> {
        Ok(Self(Arc::new(LimiterInner {
            keys: LimitKeys::new(store.layout(), prefix),
            batcher: CheckBatcher::new(store),
            denials: DenialCache::default(),
            prepaid: PrepaidUnits::default(),
            instance: random_hex::<8>()?,
            requests: AtomicU64::new(0),
            stats: Mutex::default(),
            local: tokio::sync::OnceCell::new(),
            store: store.clone(),
        })))
    }

    /// Charges a request to all policies, or to none if one of them denies. `cost` 0 only looks.
    ///
    /// # Errors
    /// No policy or more than 16, one of them twice, or a cost that can never be allowed. A store
    /// out of reach is not an error: the policies decide.
    pub async fn check(
        &self,
        identity: &Identity,
        policies: &[&Policy],
        cost: u64,
    ) -> Result<Decision, Error> {
        self.charge(RequestId::Fresh(self.request_id()), identity, policies, cost).await
    }

    /// As [`Limiter::check`], under a request id of the caller's: repeated under the same id, it
    /// counts once in `fixed`, `sliding` and `concurrent` policies. The id must be unique to the
    /// request and not chosen by whoever is limited.
    pub async fn check_as(
        &self,
        request_id: &str,
        identity: &Identity,
        policies: &[&Policy],
        cost: u64,
    ) -> Result<Decision, Error> {
        if request_id.is_empty() || request_id.len() > 128 {
            return Err(Error::invalid("request_id", "1 to 128 bytes"));
        }
        self.charge(RequestId::Given(request_id.to_owned()), identity, policies, cost).await
    }

    async fn charge(
        &self,
        request_id: RequestId,
        identity: &Identity,
        policies: &[&Policy],
        cost: u64,
    ) -> Result<Decision, Error> {
        if policies.is_empty() || policies.len() > CHARGES_MOST {
            return Err(Error::invalid("policies", format!("1 to {CHARGES_MOST} policies")));
        }
        let now = self.0.store.now();
        let mut checks = Vec::with_capacity(policies.len());
        for policy in policies {
            let rule = policy.rule(identity, now)?;
            if cost > rule.most() {
                return Err(Error::invalid(
                    "cost",
                    format!("{cost} can never be allowed by a limit of {}", rule.most()),
                ));
            }
            let key = self.0.keys.limit(&rule, identity, policy.name());
            if checks.iter().any(|check: &LimitCheck| check.key == key) {
                return Err(Error::invalid("policies", "each policy at most once"));
            }
            checks.push(LimitCheck { key, rule, cost, request_id: request_id.text().to_owned() });
        }
        let timeout = policies.iter().map(|policy| policy.timeout()).min().unwrap_or_default();
        let asked =
            tokio::time::timeout(timeout, self.decide(&request_id, policies, &checks, identity));
        let (outcomes, degraded) = match asked.await {
            Ok(Ok(outcomes)) => (outcomes, false),
            Ok(Err(error)) if !error.is_unavailable() => return Err(error),
            // Out of reach, or too slow: what was asked may still be charged, which allows no more.
            Ok(Err(_)) | Err(_) => (self.decide_alone(policies, &checks).await?, true),
        };
        let decision = decision(policies, &outcomes, degraded, request_id.text());
        if cost > 0 {
            self.count(policies, &outcomes, &decision);
        }
        Ok(decision)
    }

    /// Looks at policies without charging them.
    pub async fn peek(&self, identity: &Identity, policies: &[&Policy]) -> Result<Decision, Error> {
        self.check(identity, policies, 0).await
    }

    /// Gives back what a request was charged at `charged`, to the window or period it was charged
    /// to. Repeated, it counts once. Returns the number of units.
    pub async fn refund(
        &self,
        identity: &Identity,
        policy: &Policy,
        request_id: &str,
        cost: u64,
        charged: Millis,
    ) -> Result<u64, Error> {
        let check = self.one(identity, policy, request_id, cost, charged)?;
        let marker = self.0.keys.refund(identity, &marker_of(request_id, policy));
        let units = limit::refund(&self.0.store, &check, charged, &marker).await?;
        self.0.denials.forget(&check.key);
        Ok(units)
    }

    /// Renews the lease of a request at a `concurrent` policy. Returns false when it has expired.
    pub async fn renew(
        &self,
        identity: &Identity,
        policy: &Policy,
        request_id: &str,
        cost: u64,
    ) -> Result<bool, Error> {
        let check = self.one(identity, policy, request_id, cost, self.0.store.now())?;
        Ok(limit::renew(&self.0.store, &check).await?)
    }

    /// Ends the lease of a request at a `concurrent` policy. Returns the number of units.
    pub async fn release(
        &self,
        identity: &Identity,
        policy: &Policy,
        request_id: &str,
        cost: u64,
    ) -> Result<u64, Error> {
        let check = self.one(identity, policy, request_id, cost, self.0.store.now())?;
        let units = limit::release(&self.0.store, &check).await?;
        self.0.denials.forget(&check.key);
        Ok(units)
    }

    /// Forgets what an identity used of a policy. Other instances may deny for up to a second more,
    /// as long as they remember denials.
    pub async fn reset(&self, identity: &Identity, policy: &Policy) -> Result<(), Error> {
        let check = self.one(identity, policy, "reset", 0, self.0.store.now())?;
        limit::reset(&self.0.store, &check.key).await?;
        self.0.denials.forget(&check.key);
        Ok(())
    }

    /// Returns the use of each policy on this instance.
    pub fn stats(&self) -> HashMap<Option<PolicyName>, PolicyStats> {
        self.0.stats.lock().clone()
    }

    /// Gives back prepaid units that were not spent within a second; until cancelled, then all of
    /// them. Needed where a policy has prepay.
    pub async fn run(&self, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                () = tokio::time::sleep(GIVE_BACK_INTERVAL) => {}
            }
            self.give_back(false).await;
        }
        self.give_back(true).await;
    }

    /// One round of [`Limiter::run`]: gives back what was not spent in time, or everything. Returns
    /// the number of units.
    pub async fn give_back(&self, everything: bool) -> u64 {
        self.0.prepaid.give_back(&self.0, everything).await
    }

    fn request_id(&self) -> String {
        let number = self.0.requests.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number:x}", self.0.instance)
    }

    fn one(
        &self,
        identity: &Identity,
        policy: &Policy,
        request_id: &str,
        cost: u64,
        at: Millis,
    ) -> Result<LimitCheck, Error> {
        let rule = policy.rule(identity, at)?;
        let key = self.0.keys.limit(&rule, identity, policy.name());
        Ok(LimitCheck { key, rule, cost, request_id: request_id.to_owned() })
    }

    /// Asks the store, or what is known of it in process.
    async fn decide(
        &self,
        request_id: &RequestId,
        policies: &[&Policy],
        checks: &[LimitCheck],
        identity: &Identity,
    ) -> Result<Vec<CheckOutcome>, Error> {
        if let ([policy], [check]) = (policies, checks) {
            // A given id may be that of a request the store has allowed before.
            if matches!(request_id, RequestId::Fresh(_))
                && let Some(known) = self.0.denials.find(check, self.0.store.now())
            {
                return Ok(vec![known]);
            }
            let outcome = if policy.prepay() > 0 && check.cost > 0 {
                self.0.prepaid.spend(&self.0, identity, check, policy.prepay()).await?
            } else {
                self.0.batcher.check(check.clone()).await?
            };
            self.0.denials.remember(check, &outcome);
            return Ok(vec![outcome]);
        }
        check_apart(&self.0.store, &self.0.batcher, policies, checks).await
    }

    /// Decides without the store, as the strictest of the policies says.
    async fn decide_alone(
        &self,
        policies: &[&Policy],
        checks: &[LimitCheck],
    ) -> Result<Vec<CheckOutcome>, Error> {
        let enforced = policies.iter().filter(|policy| !policy.is_shadow());
        let then = enforced.map(|policy| policy.then_store_down()).max();
        let whole = |allowed: bool| {
            let at = self.0.store.now();
            let each = checks.iter().map(|check| CheckOutcome {
                at,
                allowed,
                limit: check.rule.most(),
                remaining: if allowed { check.rule.most() } else { 0 },
                next: Duration::ZERO,
                // When the store will be back is not known; a second is as good a guess as any.
                retry: if allowed { Duration::ZERO } else { Duration::from_secs(1) },
            });
            Ok(each.collect())
        };
        match then.unwrap_or(WhenStoreDown::Open) {
            WhenStoreDown::Open => whole(true),
            WhenStoreDown::Closed => whole(false),
            WhenStoreDown::Local => {
                let options = store::Options {
                    clock: Some(self.0.store.clock().clone()),
                    layout: Some(self.0.store.layout()),
                    maxmemory: Some(LOCAL_STORE_BYTES),
                    maxmemory_policy: EvictionPolicy::AllKeysLru,
                    ..store::Options::default()
                };
                let open = || async {
                    let store = Store::open_with("embedded:", options).await?;
                    let batcher = CheckBatcher::new(&store);
                    Ok::<_, Error>((store, batcher))
                };
                let (local, batcher) = self.0.local.get_or_try_init(open).await?;
                check_apart(local, batcher, policies, checks).await
            }
        }
    }

    fn count(&self, policies: &[&Policy], outcomes: &[CheckOutcome], decision: &Decision) {
        let mut stats = self.0.stats.lock();
        for (policy, outcome) in policies.iter().zip(outcomes) {
            let name = policy.name().cloned();
            if stats.len() >= STATS_MAX && !stats.contains_key(&name) {
                continue;
            }
            let own = stats.entry(name).or_default();
            own.degraded += u64::from(decision.degraded);
            // Which of several policies denied is told by the time until it would not.
            let denies = !outcome.allowed && outcome.retry > Duration::ZERO;
            if policy.is_shadow() {
                own.shadow += u64::from(denies);
            } else {
                own.denied += u64::from(denies);
            }
            if decision.allowed {
                own.allowed += 1;
                own.near += u64::from(outcome.remaining.saturating_mul(5) <= outcome.limit);
            }
        }
    }
}

impl LimiterInner {
    /// Gives units back that were drawn ahead. An attempt that may have been made is repeated under
    /// the same id; what cannot be given back is lost, which allows less.
    async fn return_units(&self, identity: &Identity, check: &LimitCheck, drawn: Millis) -> u64 {
        let marker =
            self.keys.refund(identity, &format!("prepay:{}", Identity::key(&check.request_id)));
        for _ in 0..3 {
            match limit::refund(&self.store, check, drawn, &marker).await {
                Ok(units) => {
                    self.denials.forget(&check.key);
                    return units;
                }
                Err(error) if error.is_unavailable() => {}
                Err(error) => {
                    tracing::warn!(%error, units = check.cost, "prepaid units not given back");
                    return 0;
                }
            }
        }
        tracing::warn!(
            units = check.cost,
            "prepaid units not given back: the store is out of reach"
        );
        0
    }
}

/// Charges enforced policies together and each shadow policy by itself, because it must not deny
/// the others.
async fn check_apart(
    store: &Store,
    batcher: &CheckBatcher,
    policies: &[&Policy],
    checks: &[LimitCheck],
) -> Result<Vec<CheckOutcome>, Error> {
    let (shadow, enforced): (Vec<usize>, Vec<usize>) =
        (0..checks.len()).partition(|index| policies[*index].is_shadow());
    let mut outcomes: Vec<Option<CheckOutcome>> = vec![None; checks.len()];
    let together: Vec<LimitCheck> = enforced.iter().map(|index| checks[*index].clone()).collect();
    let mut allowed = true;
    if !together.is_empty() {
        let answers = limit::check_all(store, &together).await?;
        allowed = answers.iter().all(|outcome| outcome.allowed);
        enforced.iter().zip(answers).for_each(|(index, answer)| outcomes[*index] = Some(answer));
    }
    for index in shadow {
        // A request that goes nowhere is charged nowhere.
        let cost = if allowed { checks[index].cost } else { 0 };
        let check = LimitCheck { cost, ..checks[index].clone() };
        outcomes[index] = Some(batcher.check(check).await?);
    }
    let missing = || store::Error::Decode { message: "a limit has no answer".to_owned() };
    Ok(outcomes.into_iter().map(|outcome| outcome.ok_or_else(missing)).collect::<Result<_, _>>()?)
}

/// The name of a refund: of one request at one policy.
fn marker_of(request_id: &str, policy: &Policy) -> String {
    // A request id may hold anything; in a key it is spelled as an identity is.
    let spelled = Identity::key(request_id);
    match policy.name() {
        Some(name) => format!("{spelled}#{name}"),
        None => spelled.to_string(),
    }
}

fn decision(
    policies: &[&Policy],
    outcomes: &[CheckOutcome],
    degraded: bool,
    request_id: &str,
) -> Decision {
    let allowed = policies
        .iter()
        .zip(outcomes)
        .all(|(policy, outcome)| policy.is_shadow() || outcome.allowed);
    let limits = policies.iter().zip(outcomes).map(|(policy, outcome)| PolicyState {
        policy: policy.name().cloned(),
        limit: outcome.limit,
        remaining: outcome.remaining,
        reset: outcome.next,
        retry_after: outcome.retry,
        shadow: policy.is_shadow(),
    });
    Decision { allowed, limits: limits.collect(), degraded, request_id: request_id.to_owned() }
}

/// A key with who it counts for: what must be known to give units back.
type Owner = (Identity, Key);
