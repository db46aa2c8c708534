//! Bootstrap: names of upstreams and of list sources, resolved by servers that are known by address.
//!
//! Answers are kept for their TTL, within bounds, and longer while no server answers: an address that
//! was good once is better than none.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use futures_util::future;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Server, UpstreamError};
use crate::{
    DomainName,
    name::Question,
    wire::{AnswerKind, CLASS_IN, TtlBounds, rtype},
};

/// Names kept.
const NAMES_MAX: usize = 1_000;

/// Bounds of the time for which addresses are kept.
const KEEP_MIN: Duration = Duration::from_secs(60);
const KEEP_MAX: Duration = Duration::from_secs(3_600);

/// Resolves host names by the bootstrap servers. A cheap clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bootstrap(Arc<BootstrapState>);

#[derive(Debug, Default)]
struct BootstrapState {
    servers: Vec<Arc<Server>>,
    timeout: Duration,
    known: Mutex<HashMap<String, KnownHost>>,
}

#[derive(Clone, Debug)]
struct KnownHost {
    addresses: Vec<IpAddr>,
    until: Instant,
}

impl Bootstrap {
    pub(super) fn new(servers: Vec<Arc<Server>>, timeout: Duration) -> Self {
        Self(Arc::new(BootstrapState { servers, timeout, known: Mutex::default() }))
    }

    /// Returns the addresses of a host, IPv4 first.
    pub(crate) async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let known = self.0.known.lock().get(host).cloned();
        if let Some(known) = &known
            && Instant::now() < known.until
        {
            return Ok(known.addresses.clone());
        }
        match self.ask(host).await {
            Ok((addresses, ttl)) => {
                let until = Instant::now() + ttl.clamp(KEEP_MIN, KEEP_MAX);
                let mut names = self.0.known.lock();
                if names.len() >= NAMES_MAX {
                    names.clear();
                }
                names.insert(host.to_owned(), KnownHost { addresses: addresses.clone(), until });
                Ok(addresses)
            }
            Err(error) => known.map(|known| known.addresses).ok_or(error),
        }
    }

    async fn ask(&self, host: &str) -> Result<(Vec<IpAddr>, Duration), UpstreamError> {
        let name: DomainName = host.parse().map_err(|_| UpstreamError::UnknownHost)?;
        let mut failure = UpstreamError::UnknownHost;
        for server in &self.0.servers {
            let of_type = async |qtype| {
                let question = Question { name: name.clone(), qtype, qclass: CLASS_IN };
                let bounds = TtlBounds::default();
                // In a box, because an exchange may resolve a name itself.
                let exchange =
                    Box::pin(server.exchange(&question, AnswerKind::Plain, bounds, None));
                let answer = tokio::time::timeout(self.0.timeout, exchange).await;
                answer.unwrap_or(Err(UpstreamError::Timeout))
            };
            let (v4, v6) = future::join(of_type(rtype::A), of_type(rtype::AAAA)).await;
            let mut addresses = Vec::new();
            let mut ttl = KEEP_MAX;
            for answer in [v4, v6] {
                match answer {
                    Ok(answer) => {
                        addresses.extend(answer.addresses());
                        if answer.stored_ttl() > 0 {
                            ttl = ttl.min(Duration::from_secs(answer.stored_ttl().into()));
                        }
                    }
                    Err(error) => failure = error,
                }
            }
            if !addresses.is_empty() {
                return Ok((addresses, ttl));
            }
        }
        Err(failure)
    }
}
