//! Routes: the servers a query goes to, by the client's group and by domain.
//!
//! Servers outlive a change of the policy: one that is named again keeps its connections, its figures
//! and its backoff.

use std::{collections::HashMap, sync::Arc};

use super::{
    Bootstrap, Server, UpstreamAddress, UpstreamOptions, UpstreamStats, UpstreamStrategy, Upstreams,
};
use crate::{
    DomainName,
    policy::{Policy, PolicyError, StrategyName, UpstreamServer},
    query_record::Labels,
    remote::Exchange,
};

/// Ways to upstreams that the program around brings: TLS and HTTPS.
#[derive(Clone, Debug, Default)]
pub struct UpstreamNeeds {
    /// Roots of trust for `tls://`; without it such servers are not available.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Exchange for `https://`; without it such servers are not available.
    pub exchange: Option<Arc<dyn Exchange>>,
    pub(super) bootstrap: Bootstrap,
}

impl UpstreamNeeds {
    /// Puts together the ways to upstreams that are not plain DNS.
    pub fn new(
        tls: Option<Arc<rustls::ClientConfig>>,
        exchange: Option<Arc<dyn Exchange>>,
    ) -> Self {
        Self { tls, exchange, bootstrap: Bootstrap::default() }
    }

    pub(super) fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }
}

/// Number of the servers that a question is asked of; 0 is the common ones.
pub(crate) type RouteNumber = u8;

/// Servers by group and domain, as a policy has them. A cheap clone.
#[derive(Clone, Debug)]
pub struct UpstreamRoutes(Arc<Routes>);

#[derive(Debug)]
struct Routes {
    needs: Arc<UpstreamNeeds>,
    /// The common servers, then those of groups.
    routes: Vec<Upstreams>,
    domains: HashMap<DomainName, Upstreams>,
    servers: HashMap<UpstreamAddress, Arc<Server>>,
}

impl UpstreamRoutes {
    /// Makes the routes of a policy. Groups without servers of their own have route 0, the others 1
    /// and up in the order of [`Policy::all_groups`].
    pub(crate) fn new(
        policy: &Policy,
        defaults: &UpstreamOptions,
        needs: &UpstreamNeeds,
        labels: &Labels,
        before: Option<&Self>,
    ) -> Result<Self, PolicyError> {
        let mut options = defaults.clone();
        options.strategy = match policy.upstreams.strategy {
            None => options.strategy,
            Some(StrategyName::Failover) => UpstreamStrategy::Failover,
            Some(StrategyName::LoadBalance) => UpstreamStrategy::LoadBalance,
            Some(StrategyName::Weighted) => UpstreamStrategy::Weighted,
            Some(StrategyName::Fastest) => UpstreamStrategy::Fastest,
        };
        if let Some(timeout_ms) = policy.upstreams.timeout_ms {
            options.timeout = std::time::Duration::from_millis(timeout_ms);
        }
        let bootstrap = policy.upstreams.bootstrap.iter().map(|text| {
            let parsed = text.parse::<UpstreamAddress>();
            parsed.map_err(|error| PolicyError::new("upstreams.bootstrap", error.to_string()))
        });
        let bootstrap = bootstrap.collect::<Result<Vec<_>, _>>()?;
        let bare = Arc::new(needs.clone());
        let bootstrap = bootstrap.into_iter().map(|address| {
            let label = labels.label(&address.to_string());
            Arc::new(Server::new(address, String::new(), label, &bare))
        });
        let mut needs = needs.clone();
        needs.bootstrap = Bootstrap::new(bootstrap.collect(), options.timeout);
        let needs = Arc::new(needs);
        let mut builder = RouteBuilder { labels, needs, options, before, servers: HashMap::new() };
        let common = match policy.upstreams.servers.as_slice() {
            [] => builder.of_addresses(&defaults.servers),
            servers => builder.of_servers(servers)?,
        };
        let mut routes = vec![common];
        for group in policy.all_groups() {
            if !group.upstreams.is_empty() {
                routes.push(builder.of_servers(&group.upstreams)?);
            }
        }
        let mut domains = HashMap::new();
        for entry in &policy.upstreams.domains {
            let upstreams = builder.of_servers(&entry.servers)?;
            for domain in &entry.domains {
                let name = domain.parse().map_err(|error: crate::NameError| {
                    PolicyError::new("upstreams.domains", error.to_string())
                })?;
                domains.insert(name, upstreams.clone());
            }
        }
        let RouteBuilder { needs, servers, .. } = builder;
        Ok(Self(Arc::new(Routes { needs, routes, domains, servers })))
    }

    /// Returns the servers for a name. Those of the name's domain go before those of the group.
    pub(crate) fn find(&self, name: &DomainName, route: RouteNumber) -> &Upstreams {
        let by_domain = || {
            if self.0.domains.is_empty() {
                return None;
            }
            let mut names = std::iter::successors(Some(name.clone()), DomainName::parent);
            names.find_map(|name| self.0.domains.get(&name))
        };
        let by_group = self.0.routes.get(usize::from(route));
        by_domain().or(by_group).unwrap_or(&self.0.routes[0])
    }

    /// Returns the common servers.
    pub fn common(&self) -> &Upstreams {
        &self.0.routes[0]
    }

    /// Returns the bootstrap servers.
    pub(crate) fn bootstrap(&self) -> &Bootstrap {
        self.0.needs.bootstrap()
    }

    /// Probes every server in backoff.
    pub async fn probe(&self) {
        let all = self.0.routes.iter().chain(self.0.domains.values());
        futures_util::future::join_all(all.map(Upstreams::probe)).await;
    }

    /// Returns figures of every server once.
    pub fn stats(&self) -> Vec<UpstreamStats> {
        let mut stats: Vec<UpstreamStats> = Vec::new();
        for upstreams in self.0.routes.iter().chain(self.0.domains.values()) {
            for figures in upstreams.stats() {
                if !stats.iter().any(|known| known.server == figures.server) {
                    stats.push(figures);
                }
            }
        }
        stats
    }
}

struct RouteBuilder<'a> {
    labels: &'a Labels,
    needs: Arc<UpstreamNeeds>,
    options: UpstreamOptions,
    before: Option<&'a UpstreamRoutes>,
    servers: HashMap<UpstreamAddress, Arc<Server>>,
}

impl RouteBuilder<'_> {
    fn of_servers(&mut self, servers: &[UpstreamServer]) -> Result<Upstreams, PolicyError> {
        let mut found = Vec::with_capacity(servers.len());
        for server in servers {
            let address = server.parse()?;
            found.push(self.server(address, &server.name));
        }
        Ok(Upstreams::of(found, self.options.clone(), &self.needs))
    }

    fn of_addresses(&mut self, addresses: &[UpstreamAddress]) -> Upstreams {
        let found = addresses.iter().map(|address| self.server(address.clone(), "")).collect();
        Upstreams::of(found, self.options.clone(), &self.needs)
    }

    fn server(&mut self, address: UpstreamAddress, name: &str) -> Arc<Server> {
        if let Some(server) = self.servers.get(&address) {
            return Arc::clone(server);
        }
        let known = self.before.and_then(|before| before.0.servers.get(&address));
        let server = match known.filter(|server| server.name == name) {
            Some(server) => Arc::clone(server),
            None => {
                let label = self.labels.label(&address.to_string());
                let needs = &self.needs;
                Arc::new(Server::new(address.clone(), name.to_owned(), label, needs))
            }
        };
        self.servers.insert(address, Arc::clone(&server));
        server
    }
}
