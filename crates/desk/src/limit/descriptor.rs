//! Limits by descriptors: lists of keys and values that a proxy such as Envoy sends with a request,
//! matched against a tree of rules.
//!
//! ```text
//!  domain "web"
//!   ├─ remote_address          60 per minute       [remote_address = 192.0.2.7]
//!   └─ path = /login
//!       └─ remote_address      5 per minute        [path = /login, remote_address = 192.0.2.7]
//! ```
//!
//! A descriptor has a limit if the path it takes through the tree ends, with its last entry, at a
//! rule that has one. At each step a rule for the value is preferred to one for values that begin
//! alike (`/api/*`), and that to a rule without a value, which counts each value by itself.
//! Invariants: a request is charged to the limits of all its descriptors or to none; two different
//! descriptors never share a count.

use std::{collections::HashMap, time::Duration};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use store::limit::CHARGES_MOST;

use super::{CalendarPeriod, Charge, LimitAlgorithm, Limiter, Policy, RequestId, WhenStoreDown};
use crate::{Error, Identity, PolicyName};

/// Most rules of one domain: each instance keeps all of them.
const RULES_MAX: usize = 10_000;

/// Most levels of a tree, and entries of a descriptor that are looked at.
const DEPTH_MAX: usize = 16;

/// Most bytes of a key, a value or the name of a domain.
const TEXT_MAX: usize = 1_024;

/// A limit of a descriptor: so many hits in each second, minute, hour, day, week, month or year, by the
/// clock of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescriptorLimit {
    /// Hits allowed; 0 allows none.
    pub requests_per_unit: u64,
    /// Length of the period.
    pub unit: CalendarPeriod,
}

/// One rule of a domain, with the rules below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DescriptorRule {
    /// Key of the entry it matches.
    pub key: String,
    /// Value of the entry; with a `*` at its end all values that begin so; none for every value, each
    /// counted by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The limit; none if only rules below it have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<DescriptorLimit>,
    /// Descriptors that end here are not limited, whatever other rules say of the same entry.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// Decides and counts, never denies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Name of the limit, by which others replace it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names of limits that do not count for a request to which this one applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
    /// Rules for the entry after this one.
    #[serde(rename = "descriptors", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<DescriptorRule>,
}

/// A domain as it is written down: the JSON in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainSpec {
    /// The rules at the top of the tree.
    pub descriptors: Vec<DescriptorRule>,
    /// Decision while the store is out of reach: local, open or closed.
    pub when_store_down: String,
}

impl Default for DomainSpec {
    fn default() -> Self {
        let when_store_down = WhenStoreDown::default().as_str().to_owned();
        Self { descriptors: Vec::new(), when_store_down }
    }
}

impl DomainSpec {
    /// Checks the rules and makes them ready for checks.
    ///
    /// # Errors
    /// As [`DescriptorDomain::new`].
    pub fn compile(&self, name: &str, timeout: Duration) -> Result<DescriptorDomain, Error> {
        let down: WhenStoreDown = self.when_store_down.parse()?;
        let domain = DescriptorDomain::new(name, self.descriptors.clone())?;
        Ok(domain.when_store_down(down, timeout))
    }
}

/// The rules of one domain, checked. Without rules only limits that descriptors bring along count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorDomain {
    name: String,
    rules: Vec<DescriptorRule>,
    when_store_down: WhenStoreDown,
    timeout: Duration,
}

/// A descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// A limit that the request brings along, in place of the rule's.
    pub limit: Option<DescriptorLimit>,
    /// Hits; 0 only looks.
    pub hits: u64,
    /// The hits are given back, not charged.
    pub is_refund: bool,
}

/// The decision about a request with descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorDecision {
    /// May it go ahead? Then every limit was charged, otherwise none.
    pub allowed: bool,
    /// One state per descriptor, in order; none for a descriptor without a limit.
    pub states: Vec<Option<DescriptorState>>,
    /// The store was out of reach, so each instance limited by itself.
    pub degraded: bool,
}

impl DescriptorDecision {
    /// Time until all limits would allow the request; zero when they did.
    pub fn retry_after(&self) -> Duration {
        let denying = self.states.iter().flatten().filter(|state| !state.allowed);
        denying.map(|state| state.retry_after).max().unwrap_or_default()
    }
}

/// The limit of one descriptor after a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorState {
    /// Does this limit allow the request? A shadow limit always does.
    pub allowed: bool,
    /// The limit.
    pub limit: DescriptorLimit,
    /// Name of the limit; empty if it has none.
    pub name: String,
    /// The limit never denies.
    pub shadow: bool,
    /// Hits left in this period.
    pub remaining: u64,
    /// Time until the period ends.
    pub reset: Duration,
    /// Time until this limit would allow the request; zero when it does now.
    pub retry_after: Duration,
}

impl DescriptorDomain {
    /// Checks the rules of a domain.
    ///
    /// # Errors
    /// A name, key or value that is empty, too long or has control characters; two rules for the same
    /// entry; a limit and `unlimited` in one rule; a rule that replaces itself or a name that no rule
    /// has; more than 10,000 rules or 16 levels; a limit above what a calendar can count.
    pub fn new(name: &str, rules: Vec<DescriptorRule>) -> Result<Self, Error> {
        check_text("domain", name)?;
        let mut names = Vec::new();
        let mut replaced = Vec::new();
        let count = check_rules(&rules, name, 1, &mut names, &mut replaced)?;
        if count > RULES_MAX {
            return Err(Error::invalid("descriptors", "at most 10,000 rules in a domain"));
        }
        if let Some(unknown) = replaced.iter().find(|name| !names.contains(name)) {
            let message = format!("no limit of this domain has the name {unknown:?}");
            return Err(Error::invalid("replaces", message));
        }
        let (when_store_down, timeout) = (WhenStoreDown::default(), Policy::TIMEOUT);
        Ok(Self { name: name.to_owned(), rules, when_store_down, timeout })
    }

    /// Sets the decision while the store is out of reach, and the time after which it is; checked when a
    /// request is.
    #[must_use]
    pub fn when_store_down(mut self, then: WhenStoreDown, timeout: Duration) -> Self {
        (self.when_store_down, self.timeout) = (then, timeout);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rules at the top of the tree.
    pub fn rules(&self) -> &[DescriptorRule] {
        &self.rules
    }

    /// Returns the domain as it is written down.
    pub fn spec(&self) -> DomainSpec {
        let when_store_down = self.when_store_down.as_str().to_owned();
        DomainSpec { descriptors: self.rules.clone(), when_store_down }
    }

    /// Finds the rule at which the path of a descriptor ends.
    pub fn find(&self, entries: &[(String, String)]) -> Option<&DescriptorRule> {
        let (last, before) = entries.split_last()?;
        let mut rules = &self.rules;
        for entry in before {
            rules = &pick(rules, entry)?.rules;
        }
        pick(rules, last)
    }
}

/// The rule for an entry: for its value, for values that begin alike (the longest), or for any.
fn pick<'a>(rules: &'a [DescriptorRule], entry: &(String, String)) -> Option<&'a DescriptorRule> {
    let (key, value) = entry;
    let rank = |rule: &DescriptorRule| match rule.value.as_deref() {
        _ if rule.key != *key => None,
        Some(text) if text == value => Some(usize::MAX),
        Some(text) => {
            let start = text.strip_suffix('*')?;
            value.starts_with(start).then_some(start.len() + 1)
        }
        None => Some(0),
    };
    let ranked = rules.iter().filter_map(|rule| Some((rank(rule)?, rule)));
    ranked.max_by_key(|(rank, _)| *rank).map(|(_, rule)| rule)
}

fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if (1..=TEXT_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(field, "1 to 1,024 bytes without control characters"))
}

/// Checks rules of one level and those below; returns their number.
fn check_rules(
    rules: &[DescriptorRule],
    path: &str,
    depth: usize,
    names: &mut Vec<String>,
    replaced: &mut Vec<String>,
) -> Result<usize, Error> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid("descriptors", format!("{path}: at most 16 levels")));
    }
    let mut seen: HashMap<(&str, Option<&str>), ()> = HashMap::new();
    let mut count = rules.len();
    for rule in rules {
        check_text("key", &rule.key)?;
        rule.value.as_deref().map_or(Ok(()), |value| check_text("value", value))?;
        let here = match &rule.value {
            Some(value) => format!("{path}, {} = {value}", rule.key),
            None => format!("{path}, {}", rule.key),
        };
        let invalid = |message: &str| Error::invalid("descriptors", format!("{here}: {message}"));
        if seen.insert((&rule.key, rule.value.as_deref()), ()).is_some() {
            return Err(invalid("two rules for the same entry"));
        }
        if rule.unlimited && rule.limit.is_some() {
            return Err(invalid("a limit and unlimited exclude each other"));
        }
        if let Some(limit) = rule.limit.filter(|limit| limit.requests_per_unit > 0) {
            policy(limit, None, rule.shadow).map_err(|error| invalid(&error.to_string()))?;
        }
        if rule.name.is_some() && rule.replaces.iter().any(|name| Some(name) == rule.name.as_ref())
        {
            return Err(invalid("a limit cannot replace itself"));
        }
        names.extend(rule.name.clone());
        replaced.extend(rule.replaces.iter().cloned());
        count += check_rules(&rule.rules, &here, depth + 1, names, replaced)?;
        if count > RULES_MAX {
            return Ok(count);
        }
    }
    Ok(count)
}

/// A descriptor's limit as a policy, which it is while a request is decided.
fn policy(
    limit: DescriptorLimit,
    name: Option<PolicyName>,
    is_shadow: bool,
) -> Result<Policy, Error> {
    let algorithm = LimitAlgorithm::Calendar { period: limit.unit, zone: TimeZone::UTC };
    // The window is that of the calendar.
    let policy = Policy::new(name, algorithm, limit.requests_per_unit, Duration::from_secs(1))?;
    Ok(if is_shadow { policy.in_shadow() } else { policy })
}

/// The identity a descriptor counts for. Lengths are spelled out, so that no two lists of entries make
/// one text; the period is part of it, because two periods must not share a count.
fn identity(domain: &str, descriptor: &Descriptor, unit: CalendarPeriod) -> Identity {
    let mut text = format!("{} {}:{domain}", unit.as_str(), domain.len());
    for (key, value) in &descriptor.entries {
        text.push_str(&format!(" {}:{key} {}:{value}", key.len(), value.len()));
    }
    Identity::key(&text)
}

/// A descriptor that has a limit, on its way to the store.
struct Match {
    /// Its place in the request.
    index: usize,
    limit: DescriptorLimit,
    name: String,
    identity: Identity,
    policy: Option<Policy>,
}

/// Descriptors of one request that count together: they are equal, and mostly there is one.
struct MatchGroup<'a> {
    found: &'a Match,
    /// Their places in the request.
    indexes: Vec<usize>,
    hits: u64,
    refunds: u64,
}

impl MatchGroup<'_> {
    fn is_shadow(&self) -> bool {
        self.found.policy.as_ref().is_some_and(Policy::is_shadow)
    }

    /// Returns true if the hits are more than the limit can ever allow.
    fn is_hopeless(&self) -> bool {
        !self.is_shadow() && self.hits > self.found.limit.requests_per_unit
    }
}

fn group<'a>(
    matches: &'a [Match],
    descriptors: &[Descriptor],
) -> Result<Vec<MatchGroup<'a>>, Error> {
    let mut groups: Vec<MatchGroup<'a>> = Vec::with_capacity(matches.len());
    for found in matches {
        let Descriptor { hits, is_refund, .. } = descriptors[found.index];
        let (hits, refunds) = if is_refund { (0, hits) } else { (hits, 0) };
        match groups.iter_mut().find(|group| group.found.identity == found.identity) {
            None => {
                groups.push(MatchGroup { found, indexes: vec![found.index], hits, refunds });
            }
            Some(group) if group.found.limit != found.limit => {
                let message = "the same descriptor twice, with different limits";
                return Err(Error::invalid("descriptors", message));
            }
            Some(group) => {
                group.indexes.push(found.index);
                group.hits = group.hits.saturating_add(hits);
                group.refunds = group.refunds.saturating_add(refunds);
            }
        }
    }
    if groups.len() > CHARGES_MOST {
        let message = format!("at most {CHARGES_MOST} descriptors with a limit");
        return Err(Error::invalid("descriptors", message));
    }
    Ok(groups)
}

impl Limiter {
    /// Charges a request to the limits of all its descriptors, or to none if one of them denies. A
    /// descriptor for which the domain has no rule is not limited; equal ones are charged together.
    ///
    /// # Errors
    /// More than 16 descriptors with a limit, the same one with different limits, or a limit that
    /// cannot be counted.
    pub async fn check_descriptors(
        &self,
        domain: &DescriptorDomain,
        descriptors: &[Descriptor],
    ) -> Result<DescriptorDecision, Error> {
        let matches = matches(domain, descriptors)?;
        let groups = group(&matches, descriptors)?;
        // What can never be allowed denies before anything is charged.
        let is_denied = groups.iter().any(MatchGroup::is_hopeless);
        let mut charges: Vec<(&MatchGroup<'_>, Charge<'_>)> = Vec::new();
        for group in &groups {
            let Some(policy) = &group.found.policy else { continue };
            let most = group.found.limit.requests_per_unit;
            let cost = if is_denied { 0 } else { group.hits.min(most) };
            charges.push((group, Charge { identity: &group.found.identity, policy, cost }));
            if group.refunds > 0 && !is_denied {
                let (now, id) = (self.0.store.now(), self.request_id());
                let units = group.refunds.min(most);
                self.refund(&group.found.identity, policy, &id, units, now).await?;
            }
        }
        let mut states: Vec<Option<DescriptorState>> = vec![None; descriptors.len()];
        let (mut allowed, mut degraded) = (!is_denied, false);
        if !charges.is_empty() {
            let all: Vec<Charge<'_>> = charges.iter().map(|(_, charge)| *charge).collect();
            let decision = self.charge(RequestId::Fresh(self.request_id()), &all).await?;
            allowed &= decision.allowed;
            degraded = decision.degraded;
            for ((group, charge), state) in charges.iter().zip(decision.limits) {
                let state = DescriptorState {
                    allowed: state.retry_after.is_zero() || charge.policy.is_shadow(),
                    limit: group.found.limit,
                    name: group.found.name.clone(),
                    shadow: charge.policy.is_shadow(),
                    remaining: state.remaining,
                    reset: state.reset,
                    retry_after: state.retry_after,
                };
                group.indexes.iter().for_each(|index| states[*index] = Some(state.clone()));
            }
        }
        for group in groups.iter().filter(|group| group.is_hopeless()) {
            for index in &group.indexes {
                let known = states[*index].take();
                let reset = known.as_ref().map_or(Duration::ZERO, |state| state.reset);
                states[*index] = Some(DescriptorState {
                    allowed: false,
                    limit: group.found.limit,
                    name: group.found.name.clone(),
                    shadow: false,
                    remaining: known.map_or(0, |state| state.remaining),
                    reset,
                    // It never will be; the end of the period is the least that can be told.
                    retry_after: reset.max(Duration::from_secs(1)),
                });
            }
        }
        Ok(DescriptorDecision { allowed, states, degraded })
    }
}

/// The descriptors that have a limit, without those that another one replaces.
fn matches(domain: &DescriptorDomain, descriptors: &[Descriptor]) -> Result<Vec<Match>, Error> {
    let found = descriptors.iter().map(|descriptor| {
        let rule = domain.find(&descriptor.entries);
        let limit = descriptor.limit.or_else(|| rule.and_then(|rule| rule.limit));
        (rule, limit.filter(|_| !rule.is_some_and(|rule| rule.unlimited)))
    });
    let found: Vec<_> = found.collect();
    let replaced: Vec<&str> = found
        .iter()
        .filter(|(_, limit)| limit.is_some())
        .filter_map(|(rule, _)| *rule)
        .flat_map(|rule| rule.replaces.iter().map(String::as_str))
        .collect();
    // Policies are counted by name; that of the domain is used where it can be one.
    let policy_name = PolicyName::parse(domain.name()).ok();
    let mut matches = Vec::new();
    for (index, (rule, limit)) in found.into_iter().enumerate() {
        let name = rule.and_then(|rule| rule.name.as_deref()).unwrap_or_default();
        let (Some(limit), false) = (limit, !name.is_empty() && replaced.contains(&name)) else {
            continue;
        };
        let is_shadow = rule.is_some_and(|rule| rule.shadow);
        let policy = match limit.requests_per_unit {
            0 => None,
            _ => {
                let policy = policy(limit, policy_name.clone(), is_shadow)?;
                Some(policy.when_store_down(domain.when_store_down, domain.timeout)?)
            }
        };
        let identity = identity(domain.name(), &descriptors[index], limit.unit);
        matches.push(Match { index, limit, name: name.to_owned(), identity, policy });
    }
    Ok(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(key: &str, value: Option<&str>, per_minute: Option<u64>) -> DescriptorRule {
        let unit = CalendarPeriod::Minute;
        DescriptorRule {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            limit: per_minute.map(|requests_per_unit| DescriptorLimit { requests_per_unit, unit }),
            ..DescriptorRule::default()
        }
    }

    fn entries(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_most_exact_rule_wins_and_the_whole_list_must_match() {
        let login = DescriptorRule {
            rules: vec![rule("ip", None, Some(5))],
            ..rule("path", Some("/login"), None)
        };
        let rules = vec![
            rule("ip", None, Some(60)),
            login,
            rule("path", Some("/api/*"), Some(20)),
            rule("path", Some("/api/slow*"), Some(2)),
            rule("path", None, Some(100)),
        ];
        let domain = DescriptorDomain::new("web", rules).unwrap();
        let found = |pairs: &[(&str, &str)]| {
            domain.find(&entries(pairs)).and_then(|rule| rule.limit).map(|l| l.requests_per_unit)
        };
        assert_eq!(found(&[("ip", "192.0.2.7")]), Some(60));
        assert_eq!(found(&[("path", "/login"), ("ip", "192.0.2.7")]), Some(5));
        assert_eq!(found(&[("path", "/login")]), None, "it has no limit of its own");
        assert_eq!(found(&[("path", "/api/x")]), Some(20));
        assert_eq!(found(&[("path", "/api/slow/x")]), Some(2), "the longest beginning");
        assert_eq!(found(&[("path", "/other")]), Some(100));
        assert_eq!(found(&[("ip", "192.0.2.7"), ("path", "/x")]), None);
        assert_eq!(found(&[("user", "1")]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        let unlimited = DescriptorRule { unlimited: true, ..rule("a", None, Some(1)) };
        let unknown = DescriptorRule { replaces: vec!["x".to_owned()], ..rule("a", None, Some(1)) };
        let itself = DescriptorRule { name: Some("x".to_owned()), ..unknown.clone() };
        let mut deep = rule("a", None, Some(1));
        for _ in 0..DEPTH_MAX {
            deep = DescriptorRule { rules: vec![deep], ..rule("a", None, None) };
        }
        for rules in [
            vec![rule("a", None, Some(1)), rule("a", None, Some(2))],
            vec![rule("", None, Some(1))],
            vec![rule("a", Some("b\n"), Some(1))],
            vec![rule("a", None, Some(u64::MAX))],
            vec![unlimited],
            vec![unknown],
            vec![itself],
            vec![deep],
        ] {
            assert!(DescriptorDomain::new("web", rules.clone()).is_err(), "{rules:?}");
        }
        assert!(DescriptorDomain::new("", Vec::new()).is_err());
    }

    #[test]
    fn no_two_descriptors_share_a_count() {
        let spelled = |pairs: &[(&str, &str)], domain: &str, unit: CalendarPeriod| {
            let descriptor = Descriptor { entries: entries(pairs), ..Descriptor::default() };
            identity(domain, &descriptor, unit)
        };
        let minute = CalendarPeriod::Minute;
        let all = [
            spelled(&[("a", "b")], "web", minute),
            spelled(&[("a", "b")], "web", CalendarPeriod::Hour),
            spelled(&[("a", "b")], "we", minute),
            spelled(&[("a", "b 1:c 1:d")], "web", minute),
            spelled(&[("a", "b"), ("c", "d")], "web", minute),
            spelled(&[("c", "d"), ("a", "b")], "web", minute),
            spelled(&[("a", ""), ("b", "")], "web", minute),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{one}");
        }
    }
}
