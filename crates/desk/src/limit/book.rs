//! Policies and domains kept in the store, and what stands around a check by policy: exempt networks,
//! block lists, blocks for a time, counts of use.
//!
//! Each instance keeps a copy of all policies and blocks and looks twice a second whether they
//! changed, so a check asks the store nothing beyond the limit itself, and a change reaches every
//! instance within a second. Invariants: who is blocked is charged nothing; who is exempt is charged
//! nothing; memory per instance is bounded, however many identities there are.
//!
//! Read in this order: `spec.rs`, [`PolicyBook`] here, `usage.rs`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use store::{Millis, Store, redis};
use tokio_util::sync::CancellationToken;

use super::{
    Descriptor, DescriptorDecision, DescriptorDomain, DomainSpec, Limiter, Policy, PolicyState,
    spec::{NamedPolicy, PolicyPreview, PolicySpec},
    usage::{PolicyUsage, UsageTally},
};
use crate::{
    Error, Identity, PolicyName, Prefix,
    keys::BookKeys,
    scripts::{put_policy, remove_policy, set_block},
};

/// Most policies in the store: each instance keeps all of them.
pub const POLICIES_MAX: usize = 1_000;

/// Most domains in the store: each instance keeps all of them.
pub const DOMAINS_MAX: usize = 100;

/// Most bytes of the JSON of a domain.
const DOMAIN_MAX_BYTES: usize = 1 << 20;

/// Most blocks in the store; beyond them those that end first go.
pub const BLOCKS_MAX: usize = 10_000;

/// Longest block.
pub const BLOCK_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Interval at which an instance looks for changes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(400);

/// Interval at which counts of use are written.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// An identity and, if it is one, its address, for exempt networks and block lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedParty {
    identity: Identity,
    address: Option<IpAddr>,
}

impl LimitedParty {
    /// A network address.
    pub fn ip(address: IpAddr) -> Self {
        Self { identity: Identity::ip(address), address: Some(address.to_canonical()) }
    }

    /// A user.
    pub fn user(id: &str) -> Self {
        Self { identity: Identity::user(id), address: None }
    }

    /// An API key, or anything else that the caller names.
    pub fn key(id: &str) -> Self {
        Self { identity: Identity::key(id), address: None }
    }

    /// An identifier as another program spells it in a key. One that is an address counts as one
    /// for networks, and keeps its own key.
    ///
    /// # Errors
    /// As [`Identity::raw`].
    pub fn raw(text: &str) -> Result<Self, Error> {
        Ok(Self { identity: Identity::raw(text)?, address: text.parse().ok() })
    }

    /// Returns the identity that is charged.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

/// The decision about a request by policies of the book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookDecision {
    /// May it go ahead?
    pub allowed: bool,
    /// Each policy after this request, in the order they were given.
    pub limits: Vec<LimitOutcome>,
    /// The store was out of reach: the policies decided.
    pub degraded: bool,
    /// Id of the request, to refund, renew or release what it was given.
    pub request_id: String,
    /// Time of the decision.
    pub at: Millis,
}

/// One policy after a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOutcome {
    /// Its state.
    pub state: PolicyState,
    /// Time over which the limit counts; none for a number of requests at once.
    pub window: Option<Duration>,
    /// The part of the policy that decided.
    pub decided_by: DecidedBy,
}

/// The part of a policy that decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The limit.
    Limit,
    /// The address is in an exempt network.
    Exemption,
    /// The identity is on the policy's block list.
    BlockList,
    /// The identity is blocked for a time.
    Block,
}

impl BookDecision {
    /// Time until all policies would allow the request; zero when they did.
    pub fn retry_after(&self) -> Duration {
        let denying = self.limits.iter().filter(|limit| !limit.state.shadow);
        denying.map(|limit| limit.state.retry_after).max().unwrap_or_default()
    }
}

/// A block of an identity at a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitBlock {
    /// The policy.
    pub policy: PolicyName,
    /// The identity.
    pub identity: Identity,
    /// End of the block.
    pub until: Millis,
}

/// Policies of the store. A cheap clone; all clones share their copy.
#[derive(Clone)]
pub struct PolicyBook(Arc<BookInner>);

struct BookInner {
    store: Store,
    prefix: Prefix,
    keys: BookKeys,
    limiter: Limiter,
    /// Policies that count while the store has none of their name.
    defaults: Mutex<Vec<PolicySpec>>,
    /// Time after which the store counts as out of reach, in ms, for policies that do not say.
    timeout_ms: AtomicU64,
    copy: RwLock<Arc<BookCopy>>,
    /// Version in the store of the copy. Negative, and each time another number, while it must be read anew.
    version: AtomicI64,
    /// Held alone while the copy is read, and shared while a block is set: a copy read before a change must
    /// not replace one that has it.
    turn: tokio::sync::RwLock<()>,
    usage: UsageTally,
}

/// The copy that an instance keeps of policies and blocks.
#[derive(Debug, Default)]
struct BookCopy {
    policies: BTreeMap<PolicyName, Arc<NamedPolicy>>,
    domains: BTreeMap<String, Arc<DescriptorDomain>>,
    blocks: HashMap<String, Millis>,
}

impl fmt::Debug for PolicyBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            self.0.copy.read().policies.keys().map(PolicyName::to_string).collect();
        f.debug_struct("PolicyBook").field("policies", &names).finish_non_exhaustive()
    }
}

impl PolicyBook {
    /// Opens the policies of a store. Until [`PolicyBook::refresh`] or [`PolicyBook::run`] has
    /// looked, only `defaults` count.
    ///
    /// # Errors
    /// A default that is no valid policy.
    pub fn new(
        store: &Store,
        prefix: &Prefix,
        defaults: Vec<PolicySpec>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let book = Self(Arc::new(BookInner {
            keys: BookKeys::new(store.layout(), prefix),
            limiter: Limiter::new(store, prefix)?,
            defaults: Mutex::default(),
            timeout_ms: AtomicU64::new(0),
            copy: RwLock::default(),
            version: AtomicI64::new(-1),
            turn: tokio::sync::RwLock::new(()),
            usage: UsageTally::new(store, prefix),
            prefix: prefix.clone(),
            store: store.clone(),
        }));
        book.configure(defaults, timeout)?;
        Ok(book)
    }

    /// Sets the policies that count while the store has none of their name, and the timeout of
    /// policies that have none of their own.
    ///
    /// # Errors
    /// A default that is no valid policy; nothing is changed.
    pub fn configure(&self, defaults: Vec<PolicySpec>, timeout: Duration) -> Result<(), Error> {
        let mut compiled = BTreeMap::new();
        for spec in &defaults {
            let policy = spec.compile(timeout)?;
            if let Some(name) = policy.name() {
                compiled.insert(name.clone(), Arc::new(policy));
            }
        }
        self.0.timeout_ms.store(millis(timeout), Ordering::Relaxed);
        *self.0.defaults.lock() = defaults;
        let mut copy = self.0.copy.write();
        let stored = copy.policies.iter().filter(|(_, policy)| policy.is_stored());
        compiled.extend(stored.map(|(name, policy)| (name.clone(), Arc::clone(policy))));
        *copy = Arc::new(BookCopy {
            policies: compiled,
            domains: copy.domains.clone(),
            blocks: copy.blocks.clone(),
        });
        // Stored policies without a timeout of their own are read anew, also by a refresh under way.
        let anew = self.0.version.load(Ordering::Relaxed).min(0) - 1;
        self.0.version.store(anew, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the limiter underneath.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Returns all policies by name.
    pub fn policies(&self) -> Vec<Arc<NamedPolicy>> {
        self.0.copy.read().policies.values().cloned().collect()
    }

    /// Returns the policy of a name.
    pub fn find(&self, name: &PolicyName) -> Option<Arc<NamedPolicy>> {
        self.0.copy.read().policies.get(name).cloned()
    }

    /// Makes a policy that is not stored, for one call.
    ///
    /// # Errors
    /// A policy that [`PolicySpec::compile`] refuses, or the name of a stored policy with another rule: two
    /// policies never share a key.
    pub fn make(&self, spec: &PolicySpec) -> Result<Arc<NamedPolicy>, Error> {
        let policy = spec.compile(self.timeout())?;
        if let Some(known) = policy.name().and_then(|name| self.find(name))
            && !known.has_rule_of(&policy)
        {
            return Err(Error::invalid(
                "policy",
                "a stored policy has this name; ask for it by name, or choose another name",
            ));
        }
        Ok(Arc::new(policy))
    }

    /// Stores a policy, on all instances within a second. Returns true if there was none.
    ///
    /// # Errors
    /// An invalid policy, one without a name, or one more than [`POLICIES_MAX`].
    pub async fn put(&self, spec: &PolicySpec) -> Result<bool, Error> {
        let policy = spec.compile(self.timeout())?;
        let Some(name) = policy.name() else {
            return Err(Error::invalid("name", "a stored policy has a name"));
        };
        let json = spec.to_json()?;
        let (word,): (String,) = put_policy::run(
            &self.0.store,
            put_policy::Keys { policies: &self.0.keys.policies, version: &self.0.keys.version },
            put_policy::Args { name: name.as_str(), json, most: POLICIES_MAX },
        )
        .await?;
        if word == "full" {
            let message = format!("there are {POLICIES_MAX} policies already; remove some first");
            return Err(Error::invalid("name", message));
        }
        self.refresh().await?;
        Ok(word == "created")
    }

    /// Removes a stored policy; one that has a default gets its default back. Returns false if none
    /// was stored.
    pub async fn remove(&self, name: &PolicyName) -> Result<bool, Error> {
        let (word,): (String,) = remove_policy::run(
            &self.0.store,
            remove_policy::Keys { policies: &self.0.keys.policies, version: &self.0.keys.version },
            remove_policy::Args { name: name.as_str() },
        )
        .await?;
        self.refresh().await?;
        Ok(word == "removed")
    }

    /// Returns all domains by name.
    pub fn domains(&self) -> Vec<Arc<DescriptorDomain>> {
        self.0.copy.read().domains.values().cloned().collect()
    }

    /// Returns the domain of a name.
    pub fn find_domain(&self, name: &str) -> Option<Arc<DescriptorDomain>> {
        self.0.copy.read().domains.get(name).cloned()
    }

    /// Stores the rules of a domain, on all instances within a second. Returns true if there was none.
    ///
    /// # Errors
    /// Rules that [`DomainSpec::compile`] refuses, more than 1 MiB of them, or one domain more than
    /// [`DOMAINS_MAX`].
    pub async fn put_domain(&self, name: &str, spec: &DomainSpec) -> Result<bool, Error> {
        let domain = spec.compile(name, self.timeout())?;
        let json = serde_json::to_string(&domain.spec())
            .map_err(|error| Error::invalid("descriptors", error.to_string()))?;
        if json.len() > DOMAIN_MAX_BYTES {
            return Err(Error::invalid("descriptors", "at most 1 MiB as JSON"));
        }
        let (word,): (String,) = put_policy::run(
            &self.0.store,
            put_policy::Keys { policies: &self.0.keys.domains, version: &self.0.keys.version },
            put_policy::Args { name, json, most: DOMAINS_MAX },
        )
        .await?;
        if word == "full" {
            let message = format!("there are {DOMAINS_MAX} domains already; remove some first");
            return Err(Error::invalid("domain", message));
        }
        self.refresh().await?;
        Ok(word == "created")
    }

    /// Removes a domain; requests for it are not limited any more. Returns false if there was none.
    pub async fn remove_domain(&self, name: &str) -> Result<bool, Error> {
        let (word,): (String,) = remove_policy::run(
            &self.0.store,
            remove_policy::Keys { policies: &self.0.keys.domains, version: &self.0.keys.version },
            remove_policy::Args { name },
        )
        .await?;
        self.refresh().await?;
        Ok(word == "removed")
    }

    /// Charges a request to the limits of all its descriptors, or to none. A domain without rules
    /// knows only the limits that descriptors bring along.
    ///
    /// # Errors
    /// As [`Limiter::check_descriptors`].
    pub async fn check_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor],
    ) -> Result<DescriptorDecision, Error> {
        let known = match self.find_domain(domain) {
            Some(known) => known,
            None => Arc::new(DomainSpec::default().compile(domain, self.timeout())?),
        };
        let decision = self.0.limiter.check_descriptors(&known, descriptors).await?;
        self.0.usage.count_descriptors(domain, descriptors, &decision);
        Ok(decision)
    }

    /// Blocks an identity at a policy for a time, on all instances within a second.
    ///
    /// # Errors
    /// A time of 0 or longer than a year.
    pub async fn block(
        &self,
        policy: &PolicyName,
        identity: &Identity,
        time: Duration,
    ) -> Result<Millis, Error> {
        if time < Duration::from_millis(1) || time > BLOCK_MAX {
            return Err(Error::invalid("for_ms", "must be between 1 ms and 366 days"));
        }
        let until = self.0.store.now() + time;
        self.set_block(policy, identity, until).await?;
        Ok(until)
    }

    /// Lifts a block. Returns false if there was none.
    pub async fn unblock(&self, policy: &PolicyName, identity: &Identity) -> Result<bool, Error> {
        Ok(self.set_block(policy, identity, Millis(0)).await? == "lifted")
    }

    async fn set_block(
        &self,
        policy: &PolicyName,
        identity: &Identity,
        until: Millis,
    ) -> Result<String, Error> {
        let _turn = self.0.turn.read().await;
        let member = member_of(policy, identity);
        let (word,): (String,) = set_block::run(
            &self.0.store,
            set_block::Keys { blocks: &self.0.keys.blocks, version: &self.0.keys.version },
            set_block::Args {
                now_ms: self.0.store.now(),
                member: member.as_str(),
                until_ms: until,
                most: BLOCKS_MAX,
            },
        )
        .await?;
        self.remember_block(member, (until.0 > 0).then_some(until));
        Ok(word)
    }

    fn remember_block(&self, member: String, until: Option<Millis>) {
        let mut copy = self.0.copy.write();
        let mut blocks = copy.blocks.clone();
        match until {
            Some(until) => blocks.insert(member, until),
            None => blocks.remove(&member),
        };
        let (policies, domains) = (copy.policies.clone(), copy.domains.clone());
        *copy = Arc::new(BookCopy { policies, domains, blocks });
    }

    /// Returns the blocks of a policy that this instance knows, those that end last first.
    pub fn blocks(&self, policy: &PolicyName) -> Vec<LimitBlock> {
        let (copy, now) = (Arc::clone(&self.0.copy.read()), self.0.store.now());
        let start = format!("{policy}#");
        let mut found: Vec<LimitBlock> = copy
            .blocks
            .iter()
            .filter(|(_, until)| **until > now)
            .filter_map(|(member, until)| {
                let identity = Identity::raw(member.strip_prefix(&start)?).ok()?;
                Some(LimitBlock { policy: policy.clone(), identity, until: *until })
            })
            .collect();
        found.sort_by_key(|block| std::cmp::Reverse(block.until));
        found
    }

    /// Charges a request to all policies, or to none if one of them denies or blocks. `cost` 0 only
    /// looks. A `request_id` is the caller's own, as of [`Limiter::check_as`].
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub async fn check(
        &self,
        party: &LimitedParty,
        policies: &[Arc<NamedPolicy>],
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<BookDecision, Error> {
        let now = self.0.store.now();
        let copy = Arc::clone(&self.0.copy.read());
        let standing: Vec<Standing> =
            policies.iter().map(|policy| standing(&copy, party, policy, now)).collect();
        let is_blocked = standing.iter().zip(policies).any(|(standing, policy)| {
            matches!(standing, Standing::Blocked(..)) && !policy.policy().is_shadow()
        });
        // Who is blocked is charged nothing, and sees what is left.
        let cost_now = if is_blocked { 0 } else { cost };
        let charged: Vec<_> = policies
            .iter()
            .zip(&standing)
            .filter(|(_, standing)| matches!(standing, Standing::Counted))
            .map(|(policy, _)| policy.policy())
            .collect();
        let decide = async {
            if charged.is_empty() {
                if policies.is_empty() {
                    return Err(Error::invalid("policies", "1 to 16 policies"));
                }
                return Ok(None);
            }
            let limiter = &self.0.limiter;
            Ok(Some(match request_id {
                Some(id) if cost_now > 0 => {
                    limiter.check_as(id, party.identity(), &charged, cost_now).await?
                }
                _ => limiter.check(party.identity(), &charged, cost_now).await?,
            }))
        };
        let counted = policies.iter().zip(&standing);
        let counted = counted.filter(|(_, standing)| matches!(standing, Standing::Counted));
        let previews: Vec<&Policy> = counted.filter_map(|(policy, _)| policy.preview()).collect();
        let decision = if previews.is_empty() || cost_now == 0 {
            decide.await?
        } else {
            // A preview is asked by itself: it also sees requests that its policy denies.
            let (decision, ()) =
                tokio::join!(decide, self.try_previews(party, &previews, cost_now));
            decision?
        };
        let mut counted = decision.iter().flat_map(|decision| decision.limits.iter().cloned());
        let mut limits = Vec::with_capacity(policies.len());
        for (policy, standing) in policies.iter().zip(standing) {
            let (state, decided_by) = match standing {
                Standing::Counted => match counted.next() {
                    Some(state) => (state, DecidedBy::Limit),
                    None => continue,
                },
                Standing::Exempt => (policy.full_state(), DecidedBy::Exemption),
                Standing::Blocked(decided_by, wait) => (policy.empty_state(wait), decided_by),
            };
            limits.push(LimitOutcome { state, window: policy.window(), decided_by });
        }
        let mut decision = BookDecision {
            allowed: !is_blocked && decision.as_ref().is_none_or(|decision| decision.allowed),
            degraded: decision.as_ref().is_some_and(|decision| decision.degraded),
            request_id: decision.map(|decision| decision.request_id).unwrap_or_default(),
            limits,
            at: now,
        };
        if cost > 0 {
            self.block_after(party, policies, &mut decision).await;
            self.0.usage.count(party.identity(), &decision);
        }
        Ok(decision)
    }

    /// Checks that a request could be charged, so that one of several is not charged before another is
    /// refused.
    ///
    /// # Errors
    /// As [`PolicyBook::check`].
    pub fn validate(
        &self,
        party: &LimitedParty,
        policies: &[Arc<NamedPolicy>],
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<(), Error> {
        let policies: Vec<&Policy> = policies.iter().map(|policy| policy.policy()).collect();
        self.0.limiter.validate(party.identity(), &policies, cost, request_id)
    }

    /// Charges a request to rules that are only tried, and counts what they would have decided.
    async fn try_previews(&self, party: &LimitedParty, previews: &[&Policy], cost: u64) {
        for preview in previews {
            // A cost that the tried rule could never allow is not an error of the request.
            let Ok(tried) = self.0.limiter.check(party.identity(), &[preview], cost).await else {
                continue;
            };
            let limits = tried.limits.into_iter().map(|state| LimitOutcome {
                state,
                window: preview.counted_window(),
                decided_by: DecidedBy::Limit,
            });
            let decision = BookDecision {
                allowed: true,
                limits: limits.collect(),
                degraded: tried.degraded,
                request_id: tried.request_id,
                at: self.0.store.now(),
            };
            self.0.usage.count(party.identity(), &decision);
        }
    }

    /// Tries another rule beside a policy, on the same requests; none ends the trial. What an earlier trial
    /// counted is forgotten. Returns false if there is no such policy.
    ///
    /// # Errors
    /// A rule that cannot work.
    pub async fn set_preview(
        &self,
        name: &PolicyName,
        preview: Option<PolicyPreview>,
    ) -> Result<bool, Error> {
        let Some(policy) = self.find(name) else { return Ok(false) };
        let spec = PolicySpec { preview, ..policy.spec().clone() };
        spec.compile(self.timeout())?;
        self.0.usage.clear(&name.preview()).await?;
        self.put(&spec).await?;
        Ok(true)
    }

    /// Blocks who was denied by a policy that blocks after a denial, and tells them to wait as long.
    async fn block_after(
        &self,
        party: &LimitedParty,
        policies: &[Arc<NamedPolicy>],
        decision: &mut BookDecision,
    ) {
        let (is_denied, at) = (!decision.allowed && !decision.degraded, decision.at);
        for (policy, limit) in policies.iter().zip(&mut decision.limits) {
            let denies = is_denied
                && limit.decided_by == DecidedBy::Limit
                && limit.state.retry_after > Duration::ZERO
                && !policy.policy().is_shadow();
            let (true, Some(time), Some(name)) = (denies, policy.block_for(), policy.name()) else {
                continue;
            };
            match self.block(name, party.identity(), time).await {
                Ok(until) => {
                    let (state, wait) = (&mut limit.state, until.since(at));
                    state.retry_after = state.retry_after.max(wait);
                    state.reset = state.reset.max(wait);
                }
                // The limit itself denies for the rest of its window.
                Err(error) => tracing::warn!(%error, policy = %name, "not blocked after a denial"),
            }
        }
    }

    /// Looks at policies without charging them.
    pub async fn peek(
        &self,
        party: &LimitedParty,
        policies: &[Arc<NamedPolicy>],
    ) -> Result<BookDecision, Error> {
        self.check(party, policies, 0, None).await
    }

    /// Forgets what an identity used of a policy, and lifts its block there.
    pub async fn reset(&self, party: &LimitedParty, policy: &NamedPolicy) -> Result<(), Error> {
        if let Some(name) = policy.name() {
            self.unblock(name, party.identity()).await?;
        }
        self.0.limiter.reset(party.identity(), policy.policy()).await
    }

    /// Deletes what every policy that was ever used keeps about an identity.
    pub async fn erase(&self, identity: &Identity) -> Result<(), Error> {
        let mut names: Vec<PolicyName> = self.0.usage.names().await?;
        for policy in self.policies() {
            names.extend(policy.name().cloned());
            names.extend(policy.preview().and_then(Policy::name).cloned());
        }
        names.sort_unstable();
        names.dedup();
        for name in &names {
            self.unblock(name, identity).await?;
            self.0.usage.forget(Some(name), identity).await?;
        }
        self.0.usage.forget(None, identity).await?;
        let all = names.iter().map(Some).chain([None]);
        let keys = all.flat_map(|name| self.0.limiter.keys_of(identity, name));
        for key in keys {
            store::limit::reset(&self.0.store, &key).await?;
        }
        Ok(())
    }

    /// Returns the use of each policy over all instances, with the identities that hit it most.
    pub async fn usage(&self) -> Result<Vec<PolicyUsage>, Error> {
        self.0.usage.read().await
    }

    /// Writes the counts of use of this instance.
    pub async fn flush(&self) -> Result<(), Error> {
        self.0.usage.flush().await
    }

    /// Reads policies and blocks if they changed since. Returns true if they did.
    pub async fn refresh(&self) -> Result<bool, Error> {
        let _turn = self.0.turn.write().await;
        let mut store = self.0.store.clone();
        loop {
            let known = self.0.version.load(Ordering::Relaxed);
            let version: Option<i64> =
                redis::cmd("GET").arg(&self.0.keys.version).query_async(&mut store).await?;
            let version = version.unwrap_or(0);
            if version == known {
                return Ok(false);
            }
            let read = self.read_copy().await?;
            let mut copy = self.0.copy.write();
            // Configured meanwhile: once more, with the new defaults.
            if self.0.version.load(Ordering::Relaxed) == known {
                *copy = Arc::new(read);
                self.0.version.store(version, Ordering::Relaxed);
                return Ok(true);
            }
        }
    }

    async fn read_copy(&self) -> Result<BookCopy, Error> {
        let mut store = self.0.store.clone();
        let stored: HashMap<String, String> =
            redis::cmd("HGETALL").arg(&self.0.keys.policies).query_async(&mut store).await?;
        let rules: HashMap<String, String> =
            redis::cmd("HGETALL").arg(&self.0.keys.domains).query_async(&mut store).await?;
        let blocks: Vec<(String, i64)> = redis::cmd("ZRANGEBYSCORE")
            .arg(&self.0.keys.blocks)
            .arg(format!("({}", self.0.store.now().0))
            .arg("+inf")
            .arg("WITHSCORES")
            .arg("LIMIT")
            .arg(0)
            .arg(BLOCKS_MAX)
            .query_async(&mut store)
            .await?;
        let timeout = self.timeout();
        let mut policies = BTreeMap::new();
        for spec in self.0.defaults.lock().iter() {
            let policy = spec.compile(timeout)?;
            if let Some(name) = policy.name() {
                policies.insert(name.clone(), Arc::new(policy));
            }
        }
        for (name, json) in stored.into_iter().take(POLICIES_MAX) {
            // The store is open to others: what cannot be read is left out, and told.
            match PolicySpec::from_json(&name, &json).and_then(|spec| spec.compile(timeout)) {
                Ok(policy) => match policy.name() {
                    Some(name) => _ = policies.insert(name.clone(), Arc::new(policy.stored())),
                    None => tracing::warn!(name, "a stored policy has no name"),
                },
                Err(error) => tracing::warn!(name, %error, "a stored policy cannot be read"),
            }
        }
        let mut domains = BTreeMap::new();
        for (name, json) in rules.into_iter().take(DOMAINS_MAX) {
            match serde_json::from_str::<DomainSpec>(&json) {
                Ok(spec) => match spec.compile(&name, timeout) {
                    Ok(domain) => _ = domains.insert(name, Arc::new(domain)),
                    Err(error) => tracing::warn!(name, %error, "a stored domain cannot be read"),
                },
                Err(error) => tracing::warn!(name, %error, "a stored domain cannot be read"),
            }
        }
        let blocks = blocks.into_iter().map(|(member, until)| (member, Millis(until))).collect();
        Ok(BookCopy { policies, domains, blocks })
    }

    /// Follows changes, writes counts of use and gives back prepaid units, until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        let follow = async {
            loop {
                if let Err(error) = self.refresh().await {
                    tracing::debug!(%error, "policies not read; the ones known stay");
                }
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(REFRESH_INTERVAL) => {}
                }
            }
        };
        let write = async {
            let mut stop = false;
            while !stop {
                tokio::select! {
                    () = cancel.cancelled() => stop = true,
                    () = tokio::time::sleep(FLUSH_INTERVAL) => {}
                }
                if let Err(error) = self.flush().await {
                    tracing::debug!(%error, "use of policies not written");
                }
            }
        };
        tokio::join!(follow, write, self.0.limiter.run(cancel.clone()));
    }

    /// Returns the start of every key.
    pub fn prefix(&self) -> &Prefix {
        &self.0.prefix
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.0.timeout_ms.load(Ordering::Relaxed))
    }
}

/// Where an identity stands at a policy before anything is charged.
enum Standing {
    Counted,
    Exempt,
    /// What blocks, and for how long.
    Blocked(DecidedBy, Duration),
}

fn standing(copy: &BookCopy, party: &LimitedParty, policy: &NamedPolicy, now: Millis) -> Standing {
    if policy.blocks(party.identity(), party.address) {
        // Nobody can tell when a list changes.
        return Standing::Blocked(DecidedBy::BlockList, policy.list_wait());
    }
    let member = policy.name().map(|name| member_of(name, party.identity()));
    let until = member.and_then(|member| copy.blocks.get(&member).copied());
    if let Some(until) = until.filter(|until| *until > now) {
        return Standing::Blocked(DecidedBy::Block, until.since(now));
    }
    if policy.exempts(party.address) { Standing::Exempt } else { Standing::Counted }
}

/// The name of a block; neither part can hold a `#`.
fn member_of(policy: &PolicyName, identity: &Identity) -> String {
    format!("{policy}#{identity}")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
