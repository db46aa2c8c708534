//! Use of policies over all instances: how often each allowed and denied, and who hit it most.
//!
//! Counted in process, written once a second as increments. The identities are those that hit most
//! within a second (space-saving: a newcomer takes the place of the one with the fewest hits), added
//! up per hour in sorted sets that are cut to a bound. Invariant: memory and keys are bounded,
//! however many identities and names of policies there are.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use store::{
    Key, Store,
    counter::{CounterTarget, Counters},
    redis,
};

use super::{Descriptor, DescriptorDecision, PolicyStats, book::BookDecision};
use crate::{Error, Identity, PolicyName, Prefix, keys::UsageKeys, scripts::admit_names};

/// Most names of policies whose use is counted.
const NAMES_MAX: usize = 1_000;

/// Identities per policy that are told apart within a second.
const TOP_BUFFER: usize = 64;

/// Identities kept per policy and hour.
const TOP_KEPT: isize = 200;

/// Identities returned per policy.
const TOP_SHOWN: usize = 20;

const KEEP_TOP: Duration = Duration::from_secs(2 * 3_600);

/// Hours before this one of which something may be left.
const HOURS_LEFT: i64 = 2;

/// Name of the default policy where a name is needed; no policy can have it.
const UNNAMED: &str = "~";

/// Use of one policy over all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyUsage {
    /// The policy; none for the default policy.
    pub policy: Option<PolicyName>,
    /// Counts since they were first written.
    pub stats: PolicyStats,
    /// Identities with the most hits in this hour and the one before, the most first.
    pub top: Vec<TopIdentity>,
}

/// An identity that hits a policy often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopIdentity {
    /// The identity, as it is spelled in keys.
    pub identity: String,
    /// Its requests, allowed and denied.
    pub hits: u64,
    /// Those that were denied.
    pub denied: u64,
}

pub(super) struct UsageTally {
    store: Store,
    keys: UsageKeys,
    counters: Counters,
    tally: Mutex<HashMap<Option<PolicyName>, PolicyTally>>,
    flushing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PolicyTally {
    stats: PolicyStats,
    /// Hits and denials.
    top: HashMap<String, (u64, u64)>,
}

impl UsageTally {
    pub(super) fn new(store: &Store, prefix: &Prefix) -> Self {
        Self {
            keys: UsageKeys::new(prefix),
            counters: Counters::new(store, 8 * NAMES_MAX),
            tally: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            store: store.clone(),
        }
    }

    /// Counts a decision at each of its policies.
    pub(super) fn count(&self, identity: &Identity, decision: &BookDecision) {
        let mut tally = self.tally.lock();
        for limit in &decision.limits {
            let state = &limit.state;
            if tally.len() >= NAMES_MAX && !tally.contains_key(&state.policy) {
                continue;
            }
            let own = tally.entry(state.policy.clone()).or_default();
            let denies = state.retry_after > Duration::ZERO;
            own.stats.degraded += u64::from(decision.degraded);
            if state.shadow {
                own.stats.shadow += u64::from(denies);
            } else {
                own.stats.denied += u64::from(denies && !decision.allowed);
            }
            if decision.allowed {
                own.stats.allowed += 1;
                own.stats.near += u64::from(state.remaining.saturating_mul(5) <= state.limit);
            }
            own.hit(identity.as_str(), denies);
        }
    }

    /// Counts a decision about descriptors under the name of their domain, if that can be counted; the
    /// identities are the descriptors.
    pub(super) fn count_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor],
        decision: &DescriptorDecision,
    ) {
        let Ok(name) = PolicyName::parse(domain) else { return };
        let limited = descriptors.iter().zip(&decision.states);
        let limited: Vec<_> = limited
            .filter(|(descriptor, _)| descriptor.hits > 0 && !descriptor.is_refund)
            .filter_map(|(descriptor, state)| Some((descriptor, state.as_ref()?)))
            .collect();
        if limited.is_empty() {
            return;
        }
        let mut tally = self.tally.lock();
        let name = Some(name);
        if tally.len() >= NAMES_MAX && !tally.contains_key(&name) {
            return;
        }
        let own = tally.entry(name).or_default();
        // A request is counted once, however many descriptors it has.
        own.stats.allowed += u64::from(decision.allowed);
        own.stats.denied += u64::from(!decision.allowed);
        own.stats.degraded += u64::from(decision.degraded);
        let is_near = |remaining: u64, limit: u64| remaining.saturating_mul(5) <= limit;
        let near = limited
            .iter()
            .any(|(_, state)| is_near(state.remaining, state.limit.requests_per_unit));
        own.stats.near += u64::from(decision.allowed && near);
        let would_deny = |shadow: bool, retry_after: Duration| shadow && !retry_after.is_zero();
        let shadow = limited.iter().any(|(_, state)| would_deny(state.shadow, state.retry_after));
        own.stats.shadow += u64::from(shadow);
        for (descriptor, state) in limited {
            own.hit(&text_of_descriptor(descriptor), !state.retry_after.is_zero());
        }
    }

    /// Returns the names of policies that were ever used.
    pub(super) async fn names(&self) -> Result<Vec<PolicyName>, Error> {
        let names: Vec<String> = redis::cmd("SMEMBERS")
            .arg(&self.keys.names)
            .query_async(&mut self.store.clone())
            .await?;
        Ok(names.iter().filter_map(|name| PolicyName::parse_counted(name).ok()).collect())
    }

    /// Writes what was counted.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        let _one = self.flushing.lock().await;
        let taken = std::mem::take(&mut *self.tally.lock());
        if !taken.is_empty() {
            self.write(taken).await?;
        }
        self.counters.flush().await?;
        Ok(())
    }

    async fn write(&self, taken: HashMap<Option<PolicyName>, PolicyTally>) -> Result<(), Error> {
        let names: Vec<&str> = taken.keys().map(text_of).collect();
        let keys = admit_names::Keys { known: &self.keys.names };
        let args = admit_names::Args { most: NAMES_MAX, names: names.iter() };
        let reply: Result<Vec<redis::Value>, _> = admit_names::run(&self.store, keys, args).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                // While the store is away the counts wait; who hit most is told of the present only.
                let mut tally = self.tally.lock();
                for (name, own) in taken {
                    tally.entry(name).or_default().stats.add(&own.stats);
                }
                return Err(error.into());
            }
        };
        let is_known = reply.into_iter().skip(1).map(|item| item == redis::Value::Int(1));
        let hour = self.store.now().as_secs().div_euclid(3_600);
        for ((name, own), is_known) in taken.iter().zip(is_known) {
            if !is_known {
                continue;
            }
            let key = self.keys.stats(text_of(name));
            for (field, by) in own.stats.fields() {
                let field = field.to_owned();
                let target = CounterTarget::Field { key: key.clone(), field, keep: None };
                self.counters.add(target, i64::try_from(by).unwrap_or(i64::MAX));
            }
            let hits = own.top.iter().map(|(identity, (hits, _))| (identity, *hits));
            self.write_top(&self.keys.top(text_of(name), hour), hits).await?;
            let denied = own.top.iter().map(|(identity, (_, denied))| (identity, *denied));
            self.write_top(&self.keys.top_denied(text_of(name), hour), denied).await?;
        }
        Ok(())
    }

    async fn write_top(
        &self,
        key: &Key,
        counts: impl Iterator<Item = (&String, u64)>,
    ) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        let mut is_empty = true;
        for (identity, count) in counts.filter(|(_, count)| *count > 0) {
            pipe.cmd("ZINCRBY").arg(key).arg(count).arg(identity).ignore();
            is_empty = false;
        }
        if is_empty {
            return Ok(());
        }
        pipe.cmd("ZREMRANGEBYRANK").arg(key).arg(0).arg(-TOP_KEPT - 1).ignore();
        pipe.cmd("EXPIRE").arg(key).arg(KEEP_TOP.as_secs()).ignore();
        Ok(pipe.query_async(&mut self.store.clone()).await?)
    }

    /// Reads the use of every policy.
    pub(super) async fn read(&self) -> Result<Vec<PolicyUsage>, Error> {
        let mut names: Vec<String> = redis::cmd("SMEMBERS")
            .arg(&self.keys.names)
            .query_async(&mut self.store.clone())
            .await?;
        names.sort_unstable();
        let mut found = Vec::with_capacity(names.len());
        for name in names.iter().take(NAMES_MAX) {
            let policy = match name.as_str() {
                UNNAMED => None,
                name => match PolicyName::parse_counted(name) {
                    Ok(name) => Some(name),
                    Err(_) => continue,
                },
            };
            let fields: HashMap<String, i64> = redis::cmd("HGETALL")
                .arg(self.keys.stats(name))
                .query_async(&mut self.store.clone())
                .await?;
            let stats = PolicyStats::from_fields(&fields);
            found.push(PolicyUsage { policy, stats, top: self.top(name).await? });
        }
        Ok(found)
    }

    async fn top(&self, name: &str) -> Result<Vec<TopIdentity>, Error> {
        let hour = self.store.now().as_secs().div_euclid(3_600);
        let mut counts: HashMap<String, (u64, u64)> = HashMap::new();
        for hour in [hour - 1, hour] {
            for (identity, hits) in self.ranked(&self.keys.top(name, hour)).await? {
                counts.entry(identity).or_default().0 += hits;
            }
            for (identity, denied) in self.ranked(&self.keys.top_denied(name, hour)).await? {
                counts.entry(identity).or_default().1 += denied;
            }
        }
        let mut top: Vec<TopIdentity> = counts
            .into_iter()
            .map(|(identity, (hits, denied))| TopIdentity { identity, hits, denied })
            .collect();
        top.sort_by(|a, b| b.hits.cmp(&a.hits).then_with(|| a.identity.cmp(&b.identity)));
        top.truncate(TOP_SHOWN);
        Ok(top)
    }

    async fn ranked(&self, key: &Key) -> Result<Vec<(String, u64)>, Error> {
        let ranked: Vec<(String, f64)> = redis::cmd("ZREVRANGE")
            .arg(key)
            .arg(0)
            .arg(TOP_KEPT - 1)
            .arg("WITHSCORES")
            .query_async(&mut self.store.clone())
            .await?;
        // A score that others wrote may be anything; a cast of one out of range saturates.
        Ok(ranked.into_iter().map(|(identity, score)| (identity, score as u64)).collect())
    }

    /// Forgets everything that was counted under a name, here and in the store.
    pub(super) async fn clear(&self, name: &PolicyName) -> Result<(), Error> {
        // What was counted before must not be written after.
        self.flush().await?;
        let hour = self.store.now().as_secs().div_euclid(3_600);
        let mut keys = vec![self.keys.stats(name.as_str())];
        for hour in hour - HOURS_LEFT..=hour {
            keys.push(self.keys.top(name.as_str(), hour));
            keys.push(self.keys.top_denied(name.as_str(), hour));
        }
        for key in keys {
            let () = redis::cmd("DEL").arg(key).query_async(&mut self.store.clone()).await?;
        }
        Ok(())
    }

    /// Removes an identity from those that hit a policy most; none is the default policy.
    pub(super) async fn forget(
        &self,
        name: Option<&PolicyName>,
        identity: &Identity,
    ) -> Result<(), Error> {
        let name = name.cloned();
        if let Some(own) = self.tally.lock().get_mut(&name) {
            own.top.remove(identity.as_str());
        }
        let name = text_of(&name);
        let hour = self.store.now().as_secs().div_euclid(3_600);
        for hour in hour - HOURS_LEFT..=hour {
            for key in [self.keys.top(name, hour), self.keys.top_denied(name, hour)] {
                let () = redis::cmd("ZREM")
                    .arg(key)
                    .arg(identity.as_str())
                    .query_async(&mut self.store.clone())
                    .await?;
            }
        }
        Ok(())
    }
}

impl PolicyTally {
    /// Counts a hit of an identity among those that hit most.
    fn hit(&mut self, identity: &str, denies: bool) {
        if let Some((hits, denied)) = self.top.get_mut(identity) {
            *hits += 1;
            *denied += u64::from(denies);
            return;
        }
        if self.top.len() >= TOP_BUFFER {
            // Who has the fewest hits makes room; a hit more is what the newcomer may have had.
            let fewest = self.top.iter().min_by_key(|(_, (hits, _))| *hits);
            let Some(name) = fewest.map(|(name, _)| name.clone()) else { return };
            self.top.remove(&name);
        }
        self.top.insert(identity.to_owned(), (1, u64::from(denies)));
    }
}

impl PolicyStats {
    fn fields(&self) -> [(&'static str, u64); 5] {
        [
            ("allowed", self.allowed),
            ("denied", self.denied),
            ("near", self.near),
            ("shadow", self.shadow),
            ("degraded", self.degraded),
        ]
    }

    fn from_fields(fields: &HashMap<String, i64>) -> Self {
        let count =
            |name: &str| fields.get(name).map_or(0, |count| u64::try_from(*count).unwrap_or(0));
        Self {
            allowed: count("allowed"),
            denied: count("denied"),
            near: count("near"),
            shadow: count("shadow"),
            degraded: count("degraded"),
        }
    }

    fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.near += other.near;
        self.shadow += other.shadow;
        self.degraded += other.degraded;
    }
}

/// Longest text of a descriptor among those that hit most, in bytes.
const DESCRIPTOR_MAX: usize = 200;

/// A descriptor for people: `path=/login remote_address=192.0.2.7`.
fn text_of_descriptor(descriptor: &Descriptor) -> String {
    let pairs = descriptor.entries.iter().map(|(key, value)| format!("{key}={value}"));
    let mut text = pairs.collect::<Vec<_>>().join(" ");
    if text.len() > DESCRIPTOR_MAX {
        text.truncate(text.floor_char_boundary(DESCRIPTOR_MAX));
        text.push('…');
    }
    text
}

fn text_of(name: &Option<PolicyName>) -> &str {
    name.as_ref().map_or(UNNAMED, PolicyName::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hits_most_is_kept_whoever_else_comes() {
        let mut tally = PolicyTally::default();
        for round in 0..2_000 {
            tally.hit("203.0.113.7", true);
            tally.hit(&format!("user:{round}"), false);
            assert!(tally.top.len() <= TOP_BUFFER);
        }
        assert_eq!(tally.top["203.0.113.7"], (2_000, 2_000));
    }
}
