//! Upstreams: the servers that queries are forwarded to.
//!
//! [`Upstreams`] chooses the order of servers by its strategy, asks the first, and asks the next one
//! too when a server fails or is slow. The first good answer counts. Invariants: every message read
//! from the network is checked (source, id, question as it was spelled, whole records) before it
//! counts, so that a spoofed one changes nothing; a query is never refused because all servers are in
//! backoff, they are only asked last.
//!
//! Read on in `upstream/exchange.rs` (one query to one server).

mod exchange;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::exchange::TcpPool;
use crate::{
    Error,
    keys::Question,
    wire::{AnswerKind, CachedAnswer, TtlBounds},
};

/// Response time that is assumed of a server before it is measured.
const INITIAL_RESPONSE: Duration = Duration::from_millis(50);

/// Share of a new measurement in the mean, as the original has it.
const EWMA_SHARE: f64 = 0.2;

/// Response times kept for the 95th percentile.
const SAMPLES: usize = 32;

/// Bounds of the wait before a hedged query.
const HEDGE_FLOOR: Duration = Duration::from_millis(10);

/// One query in so many asks the second server first, so that a server that has become fast is noticed.
const EXPLORE_ONE_IN: usize = 64;

/// Transport to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// UDP, and TCP for answers that are too long.
    Udp,
    /// TCP only.
    Tcp,
}

/// Address of an upstream.
///
/// ```
/// use tidegate_dns::{UpstreamAddress, UpstreamProtocol};
/// let upstream: UpstreamAddress = "tcp://192.0.2.1".parse()?;
/// assert_eq!(upstream.protocol, UpstreamProtocol::Tcp);
/// assert_eq!(upstream.address.to_string(), "192.0.2.1:53");
/// # Ok::<(), tidegate_dns::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// Transport.
    pub protocol: UpstreamProtocol,
    /// Address and port.
    pub address: SocketAddr,
}

impl std::str::FromStr for UpstreamAddress {
    type Err = Error;

    /// Reads `ADDRESS[:PORT]`, with `udp://` or `tcp://` before it. Host names are refused: resolving
    /// them would need an upstream.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (protocol, rest) = match text.split_once("://") {
            None => (UpstreamProtocol::Udp, text),
            Some(("udp", rest)) => (UpstreamProtocol::Udp, rest),
            Some(("tcp", rest)) => (UpstreamProtocol::Tcp, rest),
            Some((scheme, _)) => {
                let message = format!("{scheme}:// is not known; use udp:// or tcp://");
                return Err(Error::Invalid { field: "upstream", message });
            }
        };
        let bare = rest.trim_start_matches('[').trim_end_matches(']');
        let address = rest.parse::<SocketAddr>().ok();
        let address = address.or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, 53)));
        match address {
            Some(address) if address.port() != 0 => Ok(Self { protocol, address }),
            _ => {
                let message = format!("{text:?} is not an address; write one such as 192.0.2.1:53");
                Err(Error::Invalid { field: "upstream", message })
            }
        }
    }
}

/// Order in which servers are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamStrategy {
    /// In the order given.
    #[default]
    Failover,
    /// In turns.
    LoadBalance,
    /// By mean response time.
    Weighted,
    /// By mean response time, and the second one too once the first is slower than it is in 95 % of
    /// cases.
    Fastest,
}

/// Options of upstreams.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Servers.
    pub servers: Vec<UpstreamAddress>,
    /// Order in which they are asked.
    pub strategy: UpstreamStrategy,
    /// Time for one attempt at one server. Default 2 s.
    pub timeout: Duration,
    /// Wait for a server before the next one is asked too. Default 600 ms.
    pub next_after: Duration,
    /// Time for which a server that failed is asked last. Default 30 s; a probe ends it sooner.
    pub backoff: Duration,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            strategy: UpstreamStrategy::default(),
            timeout: Duration::from_secs(2),
            next_after: Duration::from_millis(600),
            backoff: Duration::from_secs(30),
        }
    }
}

/// Failure of all servers, or of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// No good answer came in time.
    #[error("the upstream did not answer in time")]
    Timeout,
    /// The server cannot be reached.
    #[error("the upstream cannot be reached")]
    Unreachable,
    /// The server answered that it cannot answer.
    #[error("the upstream answered with response code {0}")]
    Rcode(u16),
    /// The answer is damaged or truncated even over TCP.
    #[error("the upstream's answer cannot be used")]
    Unusable,
    /// There are no servers.
    #[error("no upstream is configured")]
    NoServers,
}

/// Figures of one server.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamStats {
    /// The server.
    pub server: UpstreamAddress,
    /// Queries sent.
    pub queries: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Messages that did not fit the query: another id, question or shape.
    pub dropped: u64,
    /// Mean response time.
    pub response: Duration,
    /// True while the server is asked last.
    pub is_in_backoff: bool,
}

/// The servers, with what is known of them. A cheap clone.
#[derive(Clone, Debug)]
pub struct Upstreams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    servers: Vec<Server>,
    options: UpstreamOptions,
    turn: AtomicUsize,
}

/// One server.
#[derive(Debug)]
struct Server {
    address: UpstreamAddress,
    pool: TcpPool,
    /// The server repeats the spelling of names.
    keeps_case: AtomicBool,
    /// The server takes OPT records.
    takes_edns: AtomicBool,
    queries: AtomicU64,
    failures: AtomicU64,
    dropped: AtomicU64,
    measured: Mutex<Measurements>,
}

#[derive(Debug)]
struct Measurements {
    mean_seconds: f64,
    samples: [Duration; SAMPLES],
    count: usize,
    backoff_until: Option<Instant>,
}

impl Server {
    fn new(address: UpstreamAddress) -> Self {
        Self {
            address,
            pool: TcpPool::default(),
            keeps_case: AtomicBool::new(true),
            takes_edns: AtomicBool::new(true),
            queries: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            measured: Mutex::new(Measurements {
                mean_seconds: INITIAL_RESPONSE.as_secs_f64(),
                samples: [Duration::ZERO; SAMPLES],
                count: 0,
                backoff_until: None,
            }),
        }
    }

    fn note_response(&self, response: Duration) {
        let mut measured = self.measured.lock();
        measured.backoff_until = None;
        let mean = measured.mean_seconds;
        measured.mean_seconds = mean + EWMA_SHARE * (response.as_secs_f64() - mean);
        let at = measured.count % SAMPLES;
        measured.samples[at] = response;
        measured.count += 1;
    }

    /// Notes that a response takes longer than this, if that is news.
    fn note_slower_than(&self, elapsed: Duration) {
        let mut measured = self.measured.lock();
        let mean = measured.mean_seconds;
        measured.mean_seconds = mean + EWMA_SHARE * (elapsed.as_secs_f64() - mean).max(0.0);
    }

    fn note_failure(&self, backoff: Duration) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.measured.lock().backoff_until = Some(Instant::now() + backoff);
    }

    fn is_in_backoff(&self) -> bool {
        self.measured.lock().backoff_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns the 95th percentile of the last response times.
    fn p95(&self) -> Option<Duration> {
        let measured = self.measured.lock();
        let mut known = measured.samples[..measured.count.min(SAMPLES)].to_vec();
        drop(measured);
        known.sort();
        known.get((known.len() * 95).div_ceil(100).checked_sub(1)?).copied()
    }
}

impl Upstreams {
    /// Makes the servers known; none is asked yet.
    pub fn new(options: UpstreamOptions) -> Self {
        let servers = options.servers.iter().copied().map(Server::new).collect();
        Self(Arc::new(Inner { servers, options, turn: AtomicUsize::new(0) }))
    }

    /// Asks the servers. Returns the first good answer, or the last failure once every server failed.
    pub async fn ask(
        &self,
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
    ) -> Result<CachedAnswer, UpstreamError> {
        let inner = &self.0;
        let mut waiting = inner.order().into_iter();
        let mut asked = FuturesUnordered::new();
        // Servers whose answer is still waited for, and since when.
        let mut pending: Vec<(usize, Instant)> = Vec::new();
        let mut failure = UpstreamError::NoServers;
        loop {
            let next_after = match waiting.next() {
                Some(index) => {
                    let server = &inner.servers[index];
                    pending.push((index, Instant::now()));
                    asked.push(async move {
                        (index, inner.attempt(server, question, kind, bounds).await)
                    });
                    Some(inner.next_after(server))
                }
                None if asked.is_empty() => return Err(failure),
                None => None,
            };
            // The next server is asked when this one fails or is slow. Those that were asked stay in
            // the race, so a spoofer who makes one of them fail gains nothing.
            let result = match next_after {
                Some(wait) => tokio::time::timeout(wait, asked.next()).await.ok().flatten(),
                None => asked.next().await,
            };
            let Some((index, result)) = result else { continue };
            pending.retain(|(other, _)| *other != index);
            match result {
                Ok(answer) => {
                    inner.note_overtaken(&pending);
                    return Ok(answer);
                }
                Err(error) => failure = error,
            }
        }
    }

    /// Asks the servers in backoff for the root's name servers; one that answers is in order again.
    pub async fn probe(&self) {
        let question =
            Question { name: crate::DomainName::root(), qtype: 2, qclass: crate::wire::CLASS_IN };
        let inner = &self.0;
        let failed = inner.servers.iter().filter(|server| server.is_in_backoff());
        let probes: FuturesUnordered<_> = failed
            .map(|server| inner.attempt(server, &question, AnswerKind::Plain, TtlBounds::default()))
            .collect();
        // Each attempt notes its own result.
        probes.for_each(|_| std::future::ready(())).await;
    }

    /// Returns figures by server.
    pub fn stats(&self) -> Vec<UpstreamStats> {
        let stats = self.0.servers.iter().map(|server| {
            // On its own, because the lock is held to the end of the statement.
            let mean_seconds = server.measured.lock().mean_seconds;
            UpstreamStats {
                server: server.address,
                queries: server.queries.load(Ordering::Relaxed),
                failures: server.failures.load(Ordering::Relaxed),
                dropped: server.dropped.load(Ordering::Relaxed),
                response: Duration::from_secs_f64(mean_seconds),
                is_in_backoff: server.is_in_backoff(),
            }
        });
        stats.collect()
    }
}

impl Inner {
    async fn attempt(
        &self,
        server: &Server,
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
    ) -> Result<CachedAnswer, UpstreamError> {
        server.queries.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let exchange = server.exchange(question, kind, bounds);
        let result = tokio::time::timeout(self.options.timeout, exchange).await;
        let result = result.unwrap_or(Err(UpstreamError::Timeout));
        match &result {
            // It answered, though not with what was hoped for: of one name this says little.
            Ok(_) | Err(UpstreamError::Rcode(_) | UpstreamError::Unusable) => {
                server.note_response(started.elapsed());
            }
            Err(_) => server.note_failure(self.options.backoff),
        }
        result
    }

    /// Notes servers that were asked first and are overtaken by another one. Their attempts end here,
    /// so nothing else would tell that they are slow or dead.
    fn note_overtaken(&self, pending: &[(usize, Instant)]) {
        for (index, since) in pending {
            let server = &self.servers[*index];
            if since.elapsed() >= self.options.next_after {
                server.note_failure(self.options.backoff);
            } else {
                server.note_slower_than(since.elapsed());
            }
        }
    }

    /// Returns the indexes of the servers in the order in which they are asked; those in backoff last.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.servers.len()).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match self.options.strategy {
            UpstreamStrategy::Failover => {}
            UpstreamStrategy::LoadBalance => {
                let count = order.len().max(1);
                order.rotate_left(turn % count);
            }
            UpstreamStrategy::Weighted | UpstreamStrategy::Fastest => {
                let mean = |index: &usize| self.servers[*index].measured.lock().mean_seconds;
                order.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
                let others = order.len().saturating_sub(1);
                if turn % EXPLORE_ONE_IN == EXPLORE_ONE_IN - 1 && others > 0 {
                    order.swap(0, 1 + turn / EXPLORE_ONE_IN % others);
                }
            }
        }
        order.sort_by_key(|index| self.servers[*index].is_in_backoff());
        order
    }

    fn next_after(&self, server: &Server) -> Duration {
        let usual = self.options.next_after;
        match (self.options.strategy, server.p95()) {
            (UpstreamStrategy::Fastest, Some(p95)) => p95.max(HEDGE_FLOOR).min(usual),
            _ => usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_names_refused() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:53"),
            ("192.0.2.1:5353", "192.0.2.1:5353"),
            ("udp://[2001:db8::1]:54", "[2001:db8::1]:54"),
            ("2001:db8::1", "[2001:db8::1]:53"),
            ("tcp://[2001:db8::1]", "[2001:db8::1]:53"),
        ] {
            let parsed: UpstreamAddress = text.parse().unwrap();
            assert_eq!(parsed.address.to_string(), address);
        }
        for text in ["", "dns.example", "https://192.0.2.1", "192.0.2.1:0", "192.0.2.1:99999"] {
            assert!(text.parse::<UpstreamAddress>().is_err(), "{text}");
        }
    }

    fn servers(strategy: UpstreamStrategy) -> Inner {
        let servers = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| text.parse().unwrap());
        let options = UpstreamOptions { servers: servers.into(), strategy, ..Default::default() };
        let servers = servers.map(Server::new).into();
        Inner { servers, options, turn: AtomicUsize::new(0) }
    }

    #[test]
    fn the_order_follows_the_strategy() {
        let inner = servers(UpstreamStrategy::Failover);
        assert_eq!([inner.order(), inner.order()], [[0, 1, 2], [0, 1, 2]]);
        let inner = servers(UpstreamStrategy::LoadBalance);
        assert_eq!([inner.order(), inner.order()], [[0, 1, 2], [1, 2, 0]]);
        for strategy in [UpstreamStrategy::Weighted, UpstreamStrategy::Fastest] {
            let inner = servers(strategy);
            inner.servers[0].note_response(Duration::from_millis(90));
            inner.servers[2].note_response(Duration::from_millis(10));
            assert_eq!(inner.order(), [2, 1, 0]);
            let first = (0..1_000).filter(|_| inner.order()[0] != 2).count();
            assert!((10..30).contains(&first), "others are tried now and then: {first}");
        }
    }

    #[tokio::test]
    async fn servers_in_backoff_are_asked_last_but_never_left_out() {
        let inner = servers(UpstreamStrategy::Failover);
        inner.servers[0].note_failure(Duration::from_secs(30));
        assert_eq!(inner.order(), [1, 2, 0]);
        inner.servers.iter().for_each(|server| server.note_failure(Duration::from_secs(30)));
        assert_eq!(inner.order(), [0, 1, 2]);
        inner.servers[1].note_response(Duration::from_millis(5));
        assert_eq!(inner.order(), [1, 0, 2]);
    }

    #[test]
    fn a_hedged_query_waits_for_the_95th_percentile() {
        let inner = servers(UpstreamStrategy::Fastest);
        let server = &inner.servers[0];
        assert_eq!(inner.next_after(server), Duration::from_millis(600), "nothing known");
        for ms in 1..=100 {
            server.note_response(Duration::from_millis(ms));
        }
        assert_eq!(inner.next_after(server), Duration::from_millis(99));
    }
}
