//! Changes of policy, lists and surroundings: each makes a new filter, swapped in whole.

use std::{sync::Arc, time::Duration};

use store::Millis;
use tokio::sync::watch;

use super::{Resolver, ResolverOptions};
use crate::{
    Error,
    filter::{Filter, FilterInputs, Neighbour, read_neighbours},
    lists::{ListRefresh, Lists},
    policy::{ListSource, Policy, PolicyStore, PolicyVersion},
    query_record::Labels,
    upstream::UpstreamRoutes,
};

/// Longest time between two looks at the clock, the hosts file and the neighbours.
const LOOK: Duration = Duration::from_secs(5);

/// Longest wait for the policy at start; without it the default is in force until the store answers.
const LOAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Names and clients as the machine knows them: hosts file and neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    hosts: String,
    neighbours: Vec<Neighbour>,
}

impl Surroundings {
    /// Reads the hosts file, and the neighbours if any client is known by its hardware address.
    pub(super) fn read(options: &ResolverOptions, policy: &Policy) -> Self {
        let hosts = options.hosts_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let has_mac = policy
            .clients
            .iter()
            .flat_map(|client| &client.addresses)
            .any(|address| crate::policy::parse_mac(address).is_some());
        let neighbours = if has_mac { read_neighbours() } else { Vec::new() };
        Self { hosts: hosts.unwrap_or_default(), neighbours }
    }
}

impl Resolver {
    /// Reads the policy; the default one if there is none, or the store does not answer.
    pub(super) async fn load_policy(policies: &PolicyStore) -> Arc<PolicyVersion> {
        let loaded = tokio::time::timeout(LOAD_TIMEOUT, policies.load()).await;
        let version = match loaded {
            Ok(Ok(version)) => version,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the policy cannot be read yet; the default is in force");
                policies.default_version()
            }
            Err(_) => {
                tracing::warn!("the policy cannot be read yet; the default is in force");
                policies.default_version()
            }
        };
        Arc::new(version)
    }

    /// Makes the filter of a policy.
    pub(super) fn compile(
        options: &ResolverOptions,
        policy: Arc<PolicyVersion>,
        lists: &Lists,
        labels: &Labels,
        surroundings: &Surroundings,
        before: Option<&Filter>,
        now: Millis,
    ) -> Result<Filter, Error> {
        let routes = match before.filter(|before| before.policy.policy == policy.policy) {
            Some(before) => before.routes.clone(),
            None => UpstreamRoutes::new(
                &policy.policy,
                &options.upstream,
                &options.upstream_needs,
                labels,
                before.map(|before| &before.routes),
            )?,
        };
        let inputs = FilterInputs {
            lists,
            labels,
            routes,
            hosts: &surroundings.hosts,
            neighbours: &surroundings.neighbours,
            generation: before.map_or(1, |before| before.generation.wrapping_add(1)),
        };
        Ok(Filter::compile(policy, inputs, now)?)
    }

    /// Returns the filter in force, made anew if its time is over.
    pub(super) fn current_filter(&self, now: Millis) -> Arc<Filter> {
        let filter = self.0.filter.load_full();
        if !filter.is_expired(now) {
            return filter;
        }
        self.renew_filter(None);
        self.0.filter.load_full()
    }

    /// Makes a new filter, of another policy if one is given. A policy that cannot be used leaves the
    /// one in force.
    fn renew_filter(&self, policy: Option<Arc<PolicyVersion>>) {
        // One at a time, so that a later one is never replaced by an earlier one.
        let surroundings = self.0.surroundings.lock();
        let before = self.0.filter.load_full();
        let policy = policy.unwrap_or_else(|| Arc::clone(&before.policy));
        // An earlier version that was on its way when a later one came: the later one stays.
        if policy.version != 0 && policy.version < before.policy.version {
            return;
        }
        let Self(inner) = self;
        let made = Self::compile(
            &inner.options,
            policy,
            &inner.lists,
            &inner.labels,
            &surroundings,
            Some(&before),
            self.now(),
        );
        match made {
            Ok(filter) => self.0.filter.store(Arc::new(filter)),
            Err(error) => {
                tracing::error!(%error, "the policy cannot be used; the one before stays")
            }
        }
    }

    /// Replaces the policy on all instances; in force here when this returns.
    pub async fn save_policy(&self, expected: u64, policy: Policy) -> Result<PolicyVersion, Error> {
        let saved = self.0.policies.save(expected, policy).await?;
        self.apply(Arc::new(saved.clone())).await;
        Ok(saved)
    }

    /// Changes the policy on all instances as a function says; in force here when this returns.
    pub async fn update_policy<T>(
        &self,
        change: impl FnMut(&mut Policy) -> Result<T, Error>,
    ) -> Result<(PolicyVersion, T), Error> {
        let (saved, result) = self.0.policies.update(change).await?;
        self.apply(Arc::new(saved.clone())).await;
        Ok((saved, result))
    }

    async fn apply(&self, policy: Arc<PolicyVersion>) {
        if self.0.filter.load().policy.version >= policy.version && policy.version != 0 {
            return;
        }
        let resolver = self.clone();
        let applied = tokio::task::spawn_blocking(move || {
            // One version at a time, or the lists of one could go with the rules of another.
            let _turn = resolver.0.applying.lock();
            if resolver.0.filter.load().policy.version >= policy.version && policy.version != 0 {
                return;
            }
            resolver.0.lists.load(&policy.policy.lists);
            let surroundings = Surroundings::read(&resolver.0.options, &policy.policy);
            *resolver.0.surroundings.lock() = surroundings;
            resolver.renew_filter(Some(policy));
        });
        // An error is a panic in there, told by the runtime.
        let _ = applied.await;
    }

    /// Follows the policy, the lists, the clock and the surroundings until cancelled.
    pub(super) async fn govern(self) {
        let (sender, mut versions) = watch::channel(None);
        let (policies, cancel) = (self.0.policies.clone(), self.0.cancel.clone());
        let known = self.policy().version;
        let following = policies.follow(known, cancel.clone(), |version| {
            sender.send_replace(Some(Arc::new(version)));
        });
        let governing = async {
            let mut lists = self.0.lists.changes();
            loop {
                let due = self.0.filter.load().valid_until();
                let wait = due.map_or(LOOK, |due| due.since(self.now())).min(LOOK);
                tokio::select! {
                    () = cancel.cancelled() => return,
                    _ = versions.changed() => {
                        let version = versions.borrow_and_update().clone();
                        if let Some(version) = version {
                            self.apply(version).await;
                        }
                    }
                    _ = lists.changed() => self.renew_in_background().await,
                    () = tokio::time::sleep(wait.max(Duration::from_millis(10))) => {
                        self.look_around().await;
                    }
                }
            }
        };
        futures_util::future::join(following, governing).await;
    }

    async fn renew_in_background(&self) {
        let resolver = self.clone();
        // An error is a panic in there, told by the runtime.
        let _ = tokio::task::spawn_blocking(move || resolver.renew_filter(None)).await;
    }

    /// Makes a new filter if its time is over, or the hosts file or the neighbours changed.
    async fn look_around(&self) {
        let resolver = self.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let policy = resolver.policy();
            let seen = Surroundings::read(&resolver.0.options, &policy.policy);
            let mut known = resolver.0.surroundings.lock();
            let has_changed = *known != seen;
            *known = seen;
            drop(known);
            let filter = resolver.0.filter.load();
            if has_changed || filter.is_expired(resolver.now()) {
                resolver.renew_filter(None);
            }
        });
        let _ = looked.await;
    }

    /// Fetches the lists that are due. Returns how many were tried.
    pub async fn refresh_lists(&self) -> usize {
        let policy = self.policy();
        let document = &policy.policy;
        let due = self.0.lists.due(&document.lists, &document.list_refresh, self.now());
        let count = due.len();
        for source in due {
            if self.0.cancel.is_cancelled() {
                break;
            }
            // Its error is kept with the list's state.
            let _ = self.refresh_source(&source, false).await;
        }
        count
    }

    /// Fetches one list now; puts one that lost more than half of its rules to use if that is
    /// confirmed.
    pub async fn refresh_list(&self, id: &str, confirmed: bool) -> Result<ListRefresh, Error> {
        let policy = self.policy();
        let source = policy.policy.lists.iter().find(|source| source.id == id);
        let source = source.ok_or_else(|| Error::Invalid {
            field: "list",
            message: format!("there is no list {id:?}"),
        })?;
        self.refresh_source(source, confirmed).await
    }

    async fn refresh_source(
        &self,
        source: &ListSource,
        confirmed: bool,
    ) -> Result<ListRefresh, Error> {
        let policy = self.policy();
        let routes = self.upstreams();
        let options = &policy.policy.list_refresh;
        let now = self.now();
        let refreshed =
            self.0.lists.refresh(source, options, routes.bootstrap(), confirmed, now).await;
        if matches!(refreshed, Ok(ListRefresh::Replaced { .. })) {
            self.renew_in_background().await;
        }
        refreshed
    }

    /// Returns the number of the filter in force; another one means that something changed.
    pub fn filter_generation(&self) -> u32 {
        self.0.filter.load().generation
    }
}

#[cfg(test)]
mod tests {
    use store::Store;

    use super::*;

    #[tokio::test]
    async fn a_version_that_comes_late_does_not_replace_a_later_one() {
        let mut options = ResolverOptions::default();
        options.upstream.servers = vec!["192.0.2.53".parse().unwrap()];
        let store = Store::open("embedded:").await.unwrap();
        let resolver = Resolver::open(store, options).await.unwrap();
        let set_rules = async |rules: &[&str]| {
            let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
            let changed = resolver.update_policy(|policy| {
                policy.rules.clone_from(&rules);
                Ok(())
            });
            changed.await.unwrap().0
        };
        let earlier = set_rules(&["||ads.example^"]).await;
        let later = set_rules(&[]).await;
        resolver.renew_filter(Some(Arc::new(earlier)));
        assert_eq!(resolver.policy().version, later.version);
        assert!(resolver.policy().policy.rules.is_empty());
        resolver.close().await;
    }
}
