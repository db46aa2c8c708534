//! Policies as they are written down: the JSON in the store, and what is made of it for checks.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use ipnet::IpNet;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::{CalendarPeriod, LimitAlgorithm, Policy, PolicyState, WhenStoreDown};
use crate::{Error, Identity, PolicyName};

/// Most networks and identities in each list of a policy.
const LIST_MAX: usize = 10_000;

/// Longest text of an identity in a list, in bytes.
const IDENTITY_MAX: usize = 4_096;

/// Time a client on a block list is told to wait.
const LIST_WAIT: Duration = Duration::from_secs(3_600);

/// A policy as it is written down. Fields that are left out have their default.
///
/// ```
/// use std::time::Duration;
/// use tidegate_desk::limit::PolicySpec;
///
/// let spec = PolicySpec { limit: 20, window_ms: 60_000, ..PolicySpec::named("search") };
/// assert!(spec.compile(Duration::from_millis(50)).is_ok());
/// let none = PolicySpec { limit: 0, ..spec };
/// assert!(none.compile(Duration::from_millis(50)).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySpec {
    /// Name; empty for the default policy, which has the bare keys.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Algorithm, by its name.
    pub algorithm: String,
    /// Units allowed.
    pub limit: u64,
    /// Time over which they are, in milliseconds; of a `concurrent` policy the time of a lease. Not
    /// used by `calendar`.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_ms: u64,
    /// Most units at once of a `bucket`; the limit unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Period of a `calendar`: hour, day, week, month or year.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// IANA time zone of a `calendar`; UTC unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Decides and counts, but never denies.
    #[serde(skip_serializing_if = "is_false")]
    pub shadow: bool,
    /// Limits of single identities, by their spelling: `user:vip`, `203.0.113.7`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<PolicyOverride>,
    /// Networks that are not limited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// Networks and identities that are always denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<String>,
    /// Decision while the store is out of reach: local, open or closed.
    pub when_store_down: String,
    /// Time after which the store counts as out of reach; as the setting says unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Units drawn in advance and spent in process.
    #[serde(skip_serializing_if = "is_zero_units")]
    pub prepay: u32,
    /// Time for which an identity is blocked after a denial; not at all unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_ms: Option<u64>,
    /// Another rule that decides and counts beside this one, on the same requests, and never denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<PolicyPreview>,
}

/// A rule that is tried on live traffic before it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyPreview {
    /// Algorithm, by its name.
    pub algorithm: String,
    /// Units allowed.
    pub limit: u64,
    /// Time over which they are, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_ms: u64,
    /// Most units at once of a `bucket`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Period of a `calendar`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Time zone of a `calendar`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// The limit of one identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyOverride {
    /// The identity, as it is spelled in keys.
    pub identity: String,
    /// Its limit.
    pub limit: u64,
}

impl Default for PolicySpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            algorithm: LimitAlgorithm::Counter.as_str().to_owned(),
            limit: 0,
            window_ms: 0,
            burst: None,
            period: None,
            time_zone: None,
            shadow: false,
            overrides: Vec::new(),
            exempt: Vec::new(),
            blocked: Vec::new(),
            when_store_down: WhenStoreDown::Local.as_str().to_owned(),
            timeout_ms: None,
            prepay: 0,
            block_ms: None,
            preview: None,
        }
    }
}

impl PolicySpec {
    /// A policy of this name, everything else at its default; it allows nothing until it has a limit.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Checks the policy and makes it ready for checks. `timeout` counts unless it has its own.
    ///
    /// # Errors
    /// Anything that cannot work, by the name of its field.
    pub fn compile(&self, timeout: Duration) -> Result<NamedPolicy, Error> {
        let name = match self.name.as_str() {
            "" => None,
            name => Some(PolicyName::parse(name)?),
        };
        let algorithm = self.algorithm()?;
        let window = match &algorithm {
            LimitAlgorithm::Calendar { period, .. } => period.longest(),
            _ => Duration::from_millis(self.window_ms),
        };
        let down: WhenStoreDown = self.when_store_down.parse()?;
        let timeout = self.timeout_ms.map_or(timeout, Duration::from_millis);
        let mut policy = Policy::new(name, algorithm, self.limit, window)?
            .when_store_down(down, timeout)
            .map_err(|_| Error::invalid("timeout_ms", "must be between 1 ms and 10 s"))?
            .with_prepay(self.prepay)?;
        for PolicyOverride { identity, limit } in &self.overrides {
            let invalid = |error: Error| Error::invalid("overrides", error.to_string());
            for identity in spellings(identity).map_err(invalid)? {
                policy = policy.with_override(identity, *limit).map_err(invalid)?;
            }
        }
        if self.shadow {
            policy = policy.in_shadow();
        }
        let block = match self.block_ms {
            None => None,
            Some(ms) => Some(block_time(ms)?),
        };
        let preview = match (&self.preview, policy.name()) {
            (None, _) => None,
            (Some(_), None) => {
                return Err(Error::invalid("preview", "only a policy with a name has a preview"));
            }
            (Some(preview), Some(name)) => {
                Some(self.compile_preview(preview, name, down, timeout)?)
            }
        };
        let exempt = networks("exempt", &self.exempt)?;
        let mut blocked_networks = Vec::new();
        let mut blocked = HashSet::new();
        check_length("blocked", self.blocked.len())?;
        for entry in &self.blocked {
            match network(entry) {
                Some(network) => blocked_networks.push(network),
                None => blocked.extend(spellings(entry).map_err(|_| {
                    let message = format!("{entry:?} is neither a network nor an identity");
                    Error::invalid("blocked", message)
                })?),
            }
        }
        Ok(NamedPolicy {
            spec: self.clone(),
            policy,
            exempt,
            blocked_networks,
            blocked,
            block,
            preview,
            is_stored: false,
        })
    }

    /// The policy with the rule of its preview in place of its own, which ends the preview. Units drawn
    /// in advance stay only where the algorithm has them.
    #[must_use]
    pub fn with_preview_applied(&self) -> Option<Self> {
        let preview = self.preview.clone()?;
        let can_prepay = matches!(preview.algorithm.as_str(), "counter" | "bucket" | "calendar");
        Some(Self {
            algorithm: preview.algorithm,
            limit: preview.limit,
            window_ms: preview.window_ms,
            burst: preview.burst,
            period: preview.period,
            time_zone: preview.time_zone,
            prepay: if can_prepay { self.prepay } else { 0 },
            preview: None,
            ..self.clone()
        })
    }

    fn compile_preview(
        &self,
        preview: &PolicyPreview,
        name: &PolicyName,
        down: WhenStoreDown,
        timeout: Duration,
    ) -> Result<Policy, Error> {
        let applied = Self { preview: Some(preview.clone()), ..Self::default() };
        let rule = applied.with_preview_applied().unwrap_or_default();
        let algorithm = rule.algorithm()?;
        let window = match &algorithm {
            LimitAlgorithm::Calendar { period, .. } => period.longest(),
            _ => Duration::from_millis(rule.window_ms),
        };
        let policy = Policy::new(Some(name.preview()), algorithm, rule.limit, window)?;
        Ok(policy.when_store_down(down, timeout)?.in_shadow())
    }

    fn algorithm(&self) -> Result<LimitAlgorithm, Error> {
        let is_calendar = self.algorithm == "calendar";
        if self.period.is_some() != is_calendar {
            let message = if is_calendar {
                "a calendar has a period: hour, day, week, month or year"
            } else {
                "only a calendar has a period; others have a window"
            };
            return Err(Error::invalid("period", message));
        }
        if self.time_zone.is_some() && !is_calendar {
            return Err(Error::invalid("time_zone", "only a calendar has a time zone"));
        }
        if is_calendar && self.window_ms != 0 {
            return Err(Error::invalid("window_ms", "a calendar has a period instead of a window"));
        }
        if self.burst.is_some() && self.algorithm != "bucket" {
            return Err(Error::invalid("burst", "only a bucket has a burst"));
        }
        Ok(match self.algorithm.as_str() {
            "fixed" => LimitAlgorithm::Fixed,
            "sliding" => LimitAlgorithm::Sliding,
            "counter" => LimitAlgorithm::Counter,
            "bucket" => LimitAlgorithm::Bucket { burst: self.burst },
            "concurrent" => LimitAlgorithm::Concurrent,
            "calendar" => {
                let zone = self.time_zone.as_deref().unwrap_or("UTC");
                let zone = TimeZone::get(zone).map_err(|_| {
                    let message = format!("{zone:?} is not a time zone such as Europe/Berlin");
                    Error::invalid("time_zone", message)
                })?;
                let period: CalendarPeriod = self.period.as_deref().unwrap_or_default().parse()?;
                LimitAlgorithm::Calendar { period, zone }
            }
            other => {
                let known = "fixed, sliding, counter, bucket, calendar and concurrent";
                let message = format!("{other:?} is not an algorithm; use one of {known}");
                return Err(Error::invalid("algorithm", message));
            }
        })
    }

    pub(super) fn to_json(&self) -> Result<String, Error> {
        let spec = Self { name: String::new(), ..self.clone() };
        serde_json::to_string(&spec).map_err(|error| Error::invalid("policy", error.to_string()))
    }

    pub(super) fn from_json(name: &str, json: &str) -> Result<Self, Error> {
        let spec: Self = serde_json::from_str(json)
            .map_err(|error| Error::invalid("policy", error.to_string()))?;
        Ok(Self { name: name.to_owned(), ..spec })
    }
}

/// A policy that is ready for checks.
#[derive(Clone, Debug)]
pub struct NamedPolicy {
    spec: PolicySpec,
    policy: Policy,
    exempt: Vec<IpNet>,
    blocked_networks: Vec<IpNet>,
    blocked: HashSet<Identity>,
    block: Option<Duration>,
    preview: Option<Policy>,
    is_stored: bool,
}

impl NamedPolicy {
    /// Returns the policy as it is written down.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Returns the name; none for the default policy.
    pub fn name(&self) -> Option<&PolicyName> {
        self.policy.name()
    }

    /// Returns the policy that the limiter knows.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns true if it is in the store; false for a default and for one made for a single call.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Returns the time over which the limit counts; none for a number of requests at once.
    pub fn window(&self) -> Option<Duration> {
        match self.policy.algorithm() {
            LimitAlgorithm::Concurrent => None,
            _ => Some(self.policy.window()),
        }
    }

    pub(super) fn stored(mut self) -> Self {
        self.is_stored = true;
        self
    }

    /// Returns the rule that is tried beside this policy.
    pub(super) fn preview(&self) -> Option<&Policy> {
        self.preview.as_ref()
    }

    pub(super) fn block_for(&self) -> Option<Duration> {
        self.block
    }

    pub(super) fn list_wait(&self) -> Duration {
        LIST_WAIT
    }

    pub(super) fn exempts(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|ip| self.exempt.iter().any(|network| network.contains(&ip)))
    }

    pub(super) fn blocks(&self, identity: &Identity, address: Option<IpAddr>) -> bool {
        self.blocked.contains(identity)
            || address.is_some_and(|ip| self.blocked_networks.iter().any(|net| net.contains(&ip)))
    }

    /// Returns true if the two count in the same way, so that they may share keys.
    pub(super) fn has_rule_of(&self, other: &Self) -> bool {
        self.policy.algorithm() == other.policy.algorithm()
            && self.policy.limit() == other.policy.limit()
            && self.policy.window() == other.policy.window()
    }

    /// The state of a policy that was not asked, because the address is exempt.
    pub(super) fn full_state(&self) -> PolicyState {
        let limit = self.most();
        PolicyState { remaining: limit, ..self.empty_state(Duration::ZERO) }
    }

    /// The state of a policy at which an identity is blocked for so long.
    pub(super) fn empty_state(&self, wait: Duration) -> PolicyState {
        PolicyState {
            policy: self.name().cloned(),
            limit: self.most(),
            remaining: 0,
            reset: wait,
            retry_after: wait,
            shadow: self.policy.is_shadow(),
        }
    }

    fn most(&self) -> u64 {
        match self.policy.algorithm() {
            LimitAlgorithm::Bucket { burst: Some(burst) } => u64::from(*burst),
            _ => self.policy.limit(),
        }
    }
}

impl CalendarPeriod {
    /// Returns the greatest length of a period.
    pub fn longest(self) -> Duration {
        let hour = 3_600;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => hour,
            Self::Day => 24 * hour,
            Self::Week => 7 * 24 * hour,
            Self::Month => 31 * 24 * hour,
            Self::Year => 366 * 24 * hour,
        })
    }
}

impl WhenStoreDown {
    /// Returns the word in settings and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Local => "local",
            Self::Closed => "closed",
        }
    }
}

impl std::str::FromStr for WhenStoreDown {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [Self::Open, Self::Local, Self::Closed];
        let found = all.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| Error::invalid("when_store_down", "one of local, open and closed"))
    }
}

/// The identities a text of a list means: as another program spells it in a key, and as it is spelled when
/// it comes typed: an IPv6 address by its network, an unusual user or key hashed.
fn spellings(text: &str) -> Result<Vec<Identity>, Error> {
    let typed = match (text.parse().map(Identity::ip), text.split_once(':')) {
        (Ok(address), _) => Some(address),
        (_, Some(("user", id))) if !id.is_empty() => Some(Identity::user(id)),
        (_, Some(("key", id))) if !id.is_empty() => Some(Identity::key(id)),
        _ => None,
    };
    match (Identity::raw(text), typed) {
        (Ok(raw), Some(typed)) if raw != typed => Ok(vec![raw, typed]),
        (Ok(raw), _) => Ok(vec![raw]),
        (Err(_), Some(typed)) if text.len() <= IDENTITY_MAX => Ok(vec![typed]),
        (Err(error), _) => Err(error),
    }
}

fn block_time(ms: u64) -> Result<Duration, Error> {
    let time = Duration::from_millis(ms);
    if time < Duration::from_millis(1) || time > super::book::BLOCK_MAX {
        return Err(Error::invalid("block_ms", "must be between 1 ms and 366 days"));
    }
    Ok(time)
}

fn check_length(field: &'static str, length: usize) -> Result<(), Error> {
    if length > LIST_MAX {
        return Err(Error::invalid(field, format!("at most {LIST_MAX} entries")));
    }
    Ok(())
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn networks(field: &'static str, texts: &[String]) -> Result<Vec<IpNet>, Error> {
    check_length(field, texts.len())?;
    let parse = |text: &String| {
        network(text).ok_or_else(|| {
            Error::invalid(field, format!("{text:?} is not a network such as 10.0.0.0/8"))
        })
    };
    texts.iter().map(parse).collect()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_zero_units(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn refused(spec: PolicySpec) -> String {
        spec.compile(TIMEOUT).err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn search() -> PolicySpec {
        PolicySpec { limit: 20, window_ms: 60_000, ..PolicySpec::named("search") }
    }

    #[test]
    fn a_policy_that_cannot_work_is_refused_by_the_name_of_its_field() {
        let cases = [
            (PolicySpec { algorithm: "leaky".into(), ..search() }, "algorithm: "),
            (PolicySpec { limit: 0, ..search() }, "limit: "),
            (PolicySpec { window_ms: 0, ..search() }, "limit: a limit's time"),
            (PolicySpec { algorithm: "sliding".into(), limit: 1_001, ..search() }, "use a counter"),
            (PolicySpec { burst: Some(3), ..search() }, "burst: "),
            (PolicySpec { period: Some("day".into()), ..search() }, "period: "),
            (PolicySpec { algorithm: "calendar".into(), window_ms: 0, ..search() }, "period: "),
            (PolicySpec { exempt: vec!["home".into()], ..search() }, "exempt: "),
            (PolicySpec { blocked: vec!["a b".into()], ..search() }, "blocked: "),
            (PolicySpec { when_store_down: "maybe".into(), ..search() }, "when_store_down: "),
            (PolicySpec { timeout_ms: Some(0), ..search() }, "timeout_ms: "),
            (PolicySpec { algorithm: "sliding".into(), prepay: 5, ..search() }, "prepay: "),
            (PolicySpec { block_ms: Some(0), ..search() }, "block_ms: "),
            (PolicySpec { name: "a#b".into(), ..search() }, "policy: "),
        ];
        for (spec, message) in cases {
            let told = refused(spec.clone());
            assert!(told.contains(message), "{told:?} for {spec:?}");
        }
    }

    #[test]
    fn an_override_or_a_block_counts_for_an_identity_however_it_comes() {
        let odd = ["2001:db8:7::1", "user:a b", "user:x:y", "key:{k}", "203.0.113.7", "user:vip"];
        let override_of =
            |identity: &&str| PolicyOverride { identity: (*identity).into(), limit: 99 };
        let overrides = odd.iter().map(override_of).collect();
        let policy = PolicySpec { overrides, ..search() }.compile(TIMEOUT).unwrap();
        let typed = [
            Identity::ip("2001:db8:7::2".parse().unwrap()),
            Identity::user("a b"),
            Identity::user("x:y"),
            Identity::raw("user:x:y").unwrap(),
            Identity::key("{k}"),
            Identity::ip([203, 0, 113, 7].into()),
            Identity::user("vip"),
        ];
        for identity in &typed {
            let rule = policy.policy().rule(identity, store::Millis(0)).unwrap();
            assert_eq!(rule.most(), 99, "{identity}");
        }
        let blocked = odd[1..4].iter().map(|text| (*text).to_owned()).collect();
        let policy = PolicySpec { blocked, ..search() }.compile(TIMEOUT).unwrap();
        assert!(typed[1..5].iter().all(|identity| policy.blocks(identity, None)));
        assert!(
            refused(PolicySpec { blocked: vec!["a b".into()], ..search() }).contains("blocked")
        );
    }

    #[test]
    fn a_policy_survives_the_store() {
        let spec = PolicySpec {
            algorithm: "bucket".into(),
            burst: Some(5),
            shadow: true,
            overrides: vec![PolicyOverride { identity: "user:vip".into(), limit: 500 }],
            exempt: vec!["10.0.0.0/8".into()],
            blocked: vec!["203.0.113.0/24".into(), "user:mallory".into()],
            block_ms: Some(900_000),
            ..search()
        };
        let json = spec.to_json().unwrap();
        assert_eq!(PolicySpec::from_json("search", &json).unwrap(), spec);
        let policy = spec.compile(TIMEOUT).unwrap();
        assert!(policy.exempts(Some([10, 1, 2, 3].into())) && !policy.exempts(None));
        assert!(policy.blocks(&Identity::user("mallory"), None));
        assert!(policy.blocks(&Identity::user("x"), Some([203, 0, 113, 9].into())));
        assert!(PolicySpec::from_json("x", "{\"limit\":1,\"no_such\":2}").is_err());
    }
}
