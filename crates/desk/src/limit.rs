//! Rate limits shared by every instance of an app.
//!
//! [`Limiter::check`] charges one request to the policies that apply to it: to all, or to none. The
//! arithmetic is [`store::limit`]'s, one script per algorithm; here is what stands around it: keys,
//! policies, shadow policies, and the decision while the store is out of reach.
//!
//! Read in this order: `policy.rs`, `calendar.rs`, [`Limiter`] here, `name.rs`, `descriptor.rs` (limits
//! by lists of keys and values, as Envoy asks for them); then `spec.rs` and [`PolicyBook`], which keeps
//! policies in the store.

mod book;
mod calendar;
mod descriptor;
mod name;
mod policy;
mod spec;
mod stats;
mod usage;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use store::{
    Key, Layout, Millis, Store,
    limit::{
        self, CHARGES_MOST, CheckBatcher, CheckOutcome, LimitCache, LimitCacheOptions, LimitCheck,
        Prepay,
    },
};
use tokio_util::sync::CancellationToken;

pub use self::{
    book::{
        BLOCK_MAX, BLOCKS_MAX, BookDecision, DOMAINS_MAX, DecidedBy, LimitBlock, LimitOutcome,
        LimitedParty, POLICIES_MAX, PolicyBook,
    },
    calendar::CalendarPeriod,
    descriptor::{
        Descriptor, DescriptorDecision, DescriptorDomain, DescriptorLimit, DescriptorRule,
        DescriptorState, DomainSpec,
    },
    policy::{LimitAlgorithm, Policy, WhenStoreDown},
    spec::{NamedPolicy, PolicyOverride, PolicyPreview, PolicySpec},
    usage::{PolicyUsage, TopIdentity},
};
use self::{
    name::{LimitName, LimitNameRef},
    stats::StatCounters,
};
use crate::{Error, Identity, PolicyName, Prefix, keys::LimitKeys, random::random_hex};

/// Interval at which unspent prepaid units are looked for.
const GIVE_BACK_INTERVAL: Duration = Duration::from_millis(250);

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
    cache: LimitCache<LimitName>,
    /// Start of every request id of this instance.
    instance: String,
    requests: AtomicU64,
    stats: StatCounters,
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

    fn into_text(self) -> String {
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
    /// Id of the request, to refund, renew or release what it was given; empty when it was denied by what is
    /// known in process.
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
            cache: LimitCache::new(store, LimitCacheOptions::default()),
            instance: random_hex::<8>()?,
            requests: AtomicU64::new(0),
            stats: StatCounters::default(),
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
        if let [policy] = policies
            && let Some(decision) = self.check_known(identity, policy, cost)?
        {
            return Ok(decision);
        }
        let charges = charges_of(identity, policies, cost);
        self.charge(RequestId::Fresh(self.request_id()), &charges).await
    }

    /// Decides in process, if units were drawn ahead or a denial is known: no store, no waiting.
    fn check_known(
        &self,
        identity: &Identity,
        policy: &Policy,
        cost: u64,
    ) -> Result<Option<Decision>, Error> {
        let LimiterInner { store, cache, .. } = &*self.0;
        if cost == 0 {
            return Ok(None);
        }
        let now = store.now();
        let rule = policy.rule(identity, now)?;
        let name = LimitNameRef::new(policy, identity);
        let Some(outcome) = cache.find(&name, &rule, cost, policy.prepay() > 0, now) else {
            return Ok(None);
        };
        // Of a denial nothing was charged that could be given back.
        let request_id = if outcome.allowed { self.request_id() } else { String::new() };
        let (charges, outcomes) = ([Charge { identity, policy, cost }], [outcome]);
        let decision = decision(&charges, &outcomes, false, request_id);
        self.count(&charges, &outcomes, &decision);
        Ok(Some(decision))
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
        check_request_id(request_id)?;
        let charges = charges_of(identity, policies, cost);
        self.charge(RequestId::Given(request_id.to_owned()), &charges).await
    }

    /// Checks that a request could be charged, and charges nothing.
    ///
    /// # Errors
    /// As [`Limiter::check`] and [`Limiter::check_as`].
    pub fn validate(
        &self,
        identity: &Identity,
        policies: &[&Policy],
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<(), Error> {
        request_id.map_or(Ok(()), check_request_id)?;
        self.checks("", &charges_of(identity, policies, cost)).map(drop)
    }

    /// Returns the checks of a request, one per limit, if they can work.
    fn checks(&self, request_id: &str, charges: &[Charge<'_>]) -> Result<Vec<LimitCheck>, Error> {
        if charges.is_empty() || charges.len() > CHARGES_MOST {
            return Err(Error::invalid("policies", format!("1 to {CHARGES_MOST} policies")));
        }
        let now = self.0.store.now();
        let mut checks = Vec::with_capacity(charges.len());
        for Charge { identity, policy, cost } in charges {
            let rule = policy.rule(identity, now)?;
            if *cost > rule.most() {
                return Err(Error::invalid(
                    "cost",
                    format!("{cost} can never be allowed by a limit of {}", rule.most()),
                ));
            }
            let key = self.0.keys.limit(&rule, identity, policy.name());
            if checks.iter().any(|check: &LimitCheck| check.key == key) {
                return Err(Error::invalid("policies", "each policy at most once"));
            }
            let request_id = request_id.to_owned();
            checks.push(LimitCheck { key, rule, cost: *cost, request_id });
        }
        Ok(checks)
    }

    async fn charge(
        &self,
        request_id: RequestId,
        charges: &[Charge<'_>],
    ) -> Result<Decision, Error> {
        let checks = self.checks(request_id.text(), charges)?;
        let timeout = charges.iter().map(|charge| charge.policy.timeout()).min();
        let asked = tokio::time::timeout(
            timeout.unwrap_or_default(),
            self.decide(&request_id, charges, &checks),
        );
        let (outcomes, degraded) = match asked.await {
            Ok(Ok(outcomes)) => (outcomes, false),
            Ok(Err(error)) if !error.is_unavailable() => return Err(error),
            // Out of reach, or too slow: what was asked may still be charged, which allows no more.
            Ok(Err(_)) | Err(_) => (self.decide_alone(charges, &checks).await?, true),
        };
        let decision = decision(charges, &outcomes, degraded, request_id.into_text());
        if charges.iter().any(|charge| charge.cost > 0) {
            self.count(charges, &outcomes, &decision);
        }
        Ok(decision)
    }

    /// Returns the time on the store's clock, by which requests are charged.
    pub fn now(&self) -> Millis {
        self.0.store.now()
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
        let (refunds, id) = (self.0.keys.refunds(identity), refund_id(request_id, policy));
        let units = limit::refund(&self.0.store, &check, charged, &refunds, &id).await?;
        self.0.cache.forget(&LimitNameRef::new(policy, identity));
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
        self.0.cache.forget(&LimitNameRef::new(policy, identity));
        Ok(units)
    }

    /// Forgets what an identity used of a policy. Other instances may deny for up to a second more,
    /// as long as they remember denials.
    pub async fn reset(&self, identity: &Identity, policy: &Policy) -> Result<(), Error> {
        let check = self.one(identity, policy, "reset", 0, self.0.store.now())?;
        limit::reset(&self.0.store, &check.key).await?;
        self.0.cache.forget(&LimitNameRef::new(policy, identity));
        Ok(())
    }

    /// Returns the use of each policy on this instance.
    pub fn stats(&self) -> HashMap<Option<PolicyName>, PolicyStats> {
        self.0.stats.read()
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
        self.0.cache.give_back(everything).await
    }

    /// Returns every key that may count for an identity under a policy, whatever its algorithm.
    pub(crate) fn keys_of(&self, identity: &Identity, policy: Option<&PolicyName>) -> Vec<Key> {
        self.0.keys.all(identity, policy)
    }

    fn request_id(&self) -> String {
        let number = self.0.requests.fetch_add(1, Ordering::Relaxed);
        [self.0.instance.as_str(), "-", itoa::Buffer::new().format(number)].concat()
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
        charges: &[Charge<'_>],
        checks: &[LimitCheck],
    ) -> Result<Vec<CheckOutcome>, Error> {
        if let ([Charge { policy, identity, .. }], [check]) = (charges, checks) {
            let name = LimitNameRef::new(policy, identity);
            // A given id may be that of a request the store has allowed before.
            if matches!(request_id, RequestId::Fresh(_))
                && let Some(known) =
                    self.0.cache.find(&name, &check.rule, check.cost, false, self.0.store.now())
            {
                return Ok(vec![known]);
            }
            let prepay = (policy.prepay() > 0 && check.cost > 0).then(|| Prepay {
                units: policy.prepay(),
                refunds: Some(self.0.keys.refunds(identity)),
            });
            let outcome = self.0.cache.check(&name, check, prepay).await?;
            return Ok(vec![outcome]);
        }
        self.check_apart(&self.0.store, self.0.cache.batcher(), charges, checks).await
    }

    /// Decides without the store, as the strictest of the policies says.
    async fn decide_alone(
        &self,
        charges: &[Charge<'_>],
        checks: &[LimitCheck],
    ) -> Result<Vec<CheckOutcome>, Error> {
        let enforced = charges.iter().filter(|charge| !charge.policy.is_shadow());
        let then = enforced.map(|charge| charge.policy.then_store_down()).max();
        let whole = |allowed: bool| {
            let at = self.0.store.now();
            let each = checks.iter().map(|check| match CheckOutcome::whole(&check.rule, at) {
                free if allowed => free,
                // When the store will be back is not known; a second is as good a guess as any.
                free => {
                    CheckOutcome { allowed, remaining: 0, retry: Duration::from_secs(1), ..free }
                }
            });
            Ok(each.collect())
        };
        match then.unwrap_or(WhenStoreDown::Open) {
            WhenStoreDown::Open => whole(true),
            WhenStoreDown::Closed => whole(false),
            WhenStoreDown::Local => match self.0.cache.local().await? {
                Some(local) => {
                    self.check_apart(&local.store, &local.batcher, charges, checks).await
                }
                None => whole(true),
            },
        }
    }

    /// Charges enforced policies together and each shadow policy by itself, because it must not deny
    /// the others.
    async fn check_apart(
        &self,
        store: &Store,
        batcher: &CheckBatcher,
        charges: &[Charge<'_>],
        checks: &[LimitCheck],
    ) -> Result<Vec<CheckOutcome>, Error> {
        let (shadow, enforced): (Vec<usize>, Vec<usize>) =
            (0..checks.len()).partition(|index| charges[*index].policy.is_shadow());
        let mut outcomes: Vec<Option<CheckOutcome>> = vec![None; checks.len()];
        let mut allowed = true;
        if !enforced.is_empty() {
            let together = enforced.iter().map(|index| {
                let Charge { identity, policy, .. } = charges[*index];
                (LimitNameRef::new(policy, identity), &checks[*index])
            });
            let answers = self.check_together(store, &together.collect::<Vec<_>>()).await?;
            allowed = answers.iter().all(|outcome| outcome.allowed);
            enforced.iter().zip(answers).for_each(|(at, answer)| outcomes[*at] = Some(answer));
        }
        for index in shadow {
            // A request that goes nowhere is charged nowhere.
            let cost = if allowed { checks[index].cost } else { 0 };
            let check = LimitCheck { cost, ..checks[index].clone() };
            outcomes[index] = Some(batcher.check(check).await?);
        }
        let missing = || store::Error::Decode { message: "a limit has no answer".to_owned() };
        let outcomes = outcomes.into_iter().map(|outcome| outcome.ok_or_else(missing));
        Ok(outcomes.collect::<Result<_, _>>()?)
    }

    /// Charges all checks or none. One script does it where the keys may share one; on a cluster, keys of
    /// several slots are charged one slot after the other, and given back when a later one denies: never
    /// more is allowed, and for a moment less.
    async fn check_together(
        &self,
        store: &Store,
        checks: &[(LimitNameRef<'_>, &LimitCheck)],
    ) -> Result<Vec<CheckOutcome>, Error> {
        let all = |group: &[usize]| -> Vec<LimitCheck> {
            group.iter().map(|index| checks[*index].1.clone()).collect()
        };
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, (_, check)) in checks.iter().enumerate() {
            let slot = if store.layout() == Layout::Cluster { check.key.slot() } else { 0 };
            slots.entry(slot).or_default().push(index);
        }
        let mut outcomes: Vec<(usize, CheckOutcome)> = Vec::with_capacity(checks.len());
        let mut charged: Vec<usize> = Vec::new();
        let mut failed = None;
        for group in slots.into_values() {
            let mut group_checks = all(&group);
            let is_denied =
                failed.is_some() || outcomes.iter().any(|(_, outcome)| !outcome.allowed);
            if is_denied {
                // The rest is only looked at.
                group_checks.iter_mut().for_each(|check| check.cost = 0);
            }
            match limit::check_all(store, &group_checks).await {
                Ok(answers) => {
                    if !is_denied && answers.iter().all(|outcome| outcome.allowed) {
                        charged.extend(&group);
                    }
                    outcomes.extend(group.into_iter().zip(answers));
                }
                Err(error) => failed = Some(error),
            }
        }
        let allowed = failed.is_none() && outcomes.iter().all(|(_, outcome)| outcome.allowed);
        if !allowed && charged.len() < checks.len() {
            for index in charged {
                let (name, check) = checks[index];
                let refunds = self.0.keys.refunds(name.identity());
                limit::return_units(store, check, store.now(), &refunds).await;
                self.0.cache.forget(&name);
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        outcomes.sort_by_key(|(index, _)| *index);
        Ok(outcomes.into_iter().map(|(_, outcome)| CheckOutcome { allowed, ..outcome }).collect())
    }

    fn count(&self, charges: &[Charge<'_>], outcomes: &[CheckOutcome], decision: &Decision) {
        for (Charge { policy, .. }, outcome) in charges.iter().zip(outcomes) {
            // Which of several policies denied is told by the time until it would not.
            let denies = !outcome.allowed && outcome.retry > Duration::ZERO;
            let is_near = outcome.remaining.saturating_mul(5) <= outcome.limit;
            self.0.stats.add(
                policy.counted_name(),
                &PolicyStats {
                    allowed: u64::from(decision.allowed),
                    denied: u64::from(denies && !policy.is_shadow()),
                    near: u64::from(decision.allowed && is_near),
                    shadow: u64::from(denies && policy.is_shadow()),
                    degraded: u64::from(decision.degraded),
                },
            );
        }
    }
}

fn check_request_id(request_id: &str) -> Result<(), Error> {
    match request_id.len() {
        1..=128 => Ok(()),
        _ => Err(Error::invalid("request_id", "1 to 128 bytes")),
    }
}

/// The id of a refund: of one request at one policy.
fn refund_id(request_id: &str, policy: &Policy) -> String {
    // A request id may hold anything of any length; here it is spelled as an identity is.
    let spelled = Identity::key(request_id);
    match policy.name() {
        Some(name) => format!("{spelled}#{name}"),
        None => spelled.to_string(),
    }
}

/// One limit that a request is charged to.
#[derive(Clone, Copy, Debug)]
struct Charge<'a> {
    identity: &'a Identity,
    policy: &'a Policy,
    cost: u64,
}

fn charges_of<'a>(identity: &'a Identity, policies: &[&'a Policy], cost: u64) -> Vec<Charge<'a>> {
    policies.iter().map(|policy| Charge { identity, policy, cost }).collect()
}

fn decision(
    charges: &[Charge<'_>],
    outcomes: &[CheckOutcome],
    degraded: bool,
    request_id: String,
) -> Decision {
    let allowed = charges
        .iter()
        .zip(outcomes)
        .all(|(charge, outcome)| charge.policy.is_shadow() || outcome.allowed);
    let limits = charges.iter().zip(outcomes).map(|(Charge { policy, .. }, outcome)| PolicyState {
        policy: policy.name().cloned(),
        limit: outcome.limit,
        remaining: outcome.remaining,
        reset: outcome.next,
        retry_after: outcome.retry,
        shadow: policy.is_shadow(),
    });
    Decision { allowed, limits: limits.collect(), degraded, request_id }
}
