//! Upstreams: the servers that queries are forwarded to.
//!
//! [`Upstreams`] chooses the order of servers by its strategy, asks the first, and asks the next one
//! too when a server fails or is slow. The first good answer counts. Invariants: every message read
//! from the network is checked (source, id, question as it was spelled, whole records) before it
//! counts, so that a spoofed one changes nothing; a query is never refused because all servers are in
//! backoff, they are only asked last.
//!
//! Read on in `upstream/address.rs`, `upstream/exchange.rs` (one query to one server),
//! `upstream/bootstrap.rs` (names of servers), `upstream/route.rs` (which servers a query goes to).

mod address;
mod bootstrap;
mod exchange;
mod route;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::exchange::{ConnectionPool, SocketPool};
pub use self::{
    address::{UpstreamAddress, UpstreamProtocol},
    route::{UpstreamNeeds, UpstreamRoutes},
};
pub(crate) use self::{bootstrap::Bootstrap, route::RouteNumber};
use crate::{
    name::Question,
    query_record::Label,
    wire::{AnswerKind, CachedAnswer, TtlBounds, rcode},
};

/// Response time that is assumed of a server before it is measured.
const INITIAL_RESPONSE: Duration = Duration::from_millis(50);

/// Share of a new measurement in the mean, as the original has it.
const EWMA_SHARE: f64 = 0.2;

/// Response times kept for the 95th percentile.
const SAMPLES: usize = 32;

/// Bounds of the wait before a hedged query.
const HEDGE_FLOOR: Duration = Duration::from_millis(10);

/// Time for which it is remembered that a server does without something. As long as Unbound does.
const HABIT_KEEP: Duration = Duration::from_secs(900);

/// One query in so many asks the second server first, so that a server that has become fast is noticed.
const EXPLORE_ONE_IN: usize = 64;

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

/// An answer and the server that gave it.
#[derive(Clone, Debug)]
pub struct UpstreamAnswer {
    /// The answer.
    pub answer: CachedAnswer,
    /// Address of the server.
    pub server: Label,
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
    /// The server's certificate is not good for its name.
    #[error("the upstream's certificate is not accepted")]
    Untrusted,
    /// The server answered that it cannot answer.
    #[error("the upstream answered with response code {0}")]
    Rcode(u16),
    /// The answer is damaged or truncated even over TCP.
    #[error("the upstream's answer cannot be used")]
    Unusable,
    /// The name of the server cannot be resolved.
    #[error("no bootstrap server knows the upstream's name")]
    UnknownHost,
    /// The program brought no way to speak this protocol.
    #[error("the upstream's protocol is not available in this program")]
    NoTransport,
    /// There are no servers.
    #[error("no upstream is configured")]
    NoServers,
}

/// Figures of one server.
#[derive(Clone, Debug)]
pub struct UpstreamStats {
    /// The server.
    pub server: UpstreamAddress,
    /// Name on pages, empty if it has none.
    pub name: String,
    /// Queries sent.
    pub queries: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Messages that did not fit the query: another id, question or shape.
    pub dropped: u64,
    /// Mean response time of the answers that were used; none before the first.
    pub response: Option<Duration>,
    /// 95th percentile of the last response times.
    pub response_p95: Option<Duration>,
    /// Last failure, if the last attempt failed.
    pub last_failure: Option<UpstreamError>,
    /// True while the server is asked last.
    pub is_in_backoff: bool,
}

/// The servers, with what is known of them. A cheap clone.
#[derive(Clone, Debug)]
pub struct Upstreams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    servers: Vec<Arc<Server>>,
    options: UpstreamOptions,
    needs: Arc<UpstreamNeeds>,
    turn: AtomicUsize,
}

/// One server.
pub(crate) struct Server {
    address: UpstreamAddress,
    name: String,
    label: Label,
    needs: Arc<UpstreamNeeds>,
    pool: ConnectionPool,
    sockets: SocketPool,
    /// The server does not repeat the spelling of names.
    changes_case: Habit,
    /// The server does not take OPT records.
    refuses_edns: Habit,
    queries: AtomicU64,
    failures: AtomicU64,
    dropped: AtomicU64,
    measured: Mutex<Measurements>,
}

/// Habit of a server, remembered for a while: it may be replaced or mended.
#[derive(Debug, Default)]
struct Habit(Mutex<Option<Instant>>);

impl Habit {
    fn note(&self) {
        *self.0.lock() = Some(Instant::now() + HABIT_KEEP);
    }

    fn is_known(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Debug)]
struct Measurements {
    /// Mean of the answers that were used.
    mean_seconds: f64,
    /// The same with what useless and overtaken attempts cost. It decides the order only.
    rank_seconds: f64,
    samples: [Duration; SAMPLES],
    count: usize,
    backoff_until: Option<Instant>,
    last_failure: Option<UpstreamError>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Server {
    fn new(
        address: UpstreamAddress,
        name: String,
        label: Label,
        needs: &Arc<UpstreamNeeds>,
    ) -> Self {
        Self {
            address,
            name,
            label,
            needs: Arc::clone(needs),
            pool: ConnectionPool::default(),
            sockets: SocketPool::default(),
            changes_case: Habit::default(),
            refuses_edns: Habit::default(),
            queries: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            measured: Mutex::new(Measurements {
                mean_seconds: 0.0,
                rank_seconds: INITIAL_RESPONSE.as_secs_f64(),
                samples: [Duration::ZERO; SAMPLES],
                count: 0,
                backoff_until: None,
                last_failure: None,
            }),
        }
    }

    fn note_response(&self, response: Duration) {
        let mut measured = self.measured.lock();
        measured.backoff_until = None;
        measured.last_failure = None;
        let (seconds, rank) = (response.as_secs_f64(), measured.rank_seconds);
        measured.rank_seconds = rank + EWMA_SHARE * (seconds - rank);
        let mean = if measured.count == 0 { seconds } else { measured.mean_seconds };
        measured.mean_seconds = mean + EWMA_SHARE * (seconds - mean);
        let at = measured.count % SAMPLES;
        measured.samples[at] = response;
        measured.count += 1;
    }

    /// Notes a response that helps nobody. In the order it counts as slow, because another server has to be asked: a
    /// server that refuses everything at once would be the fastest of all.
    fn note_useless(&self, error: UpstreamError, next_after: Duration) {
        let mut measured = self.measured.lock();
        measured.backoff_until = None;
        // SERVFAIL is about the name more often than about the server.
        let is_of_name = error == UpstreamError::Rcode(rcode::SERVFAIL);
        measured.last_failure = (!is_of_name).then_some(error);
        drop(measured);
        self.note_slower_than(next_after);
    }

    /// Notes that a response takes longer than this, if that is news.
    fn note_slower_than(&self, elapsed: Duration) {
        let mut measured = self.measured.lock();
        let rank = measured.rank_seconds;
        measured.rank_seconds = rank + EWMA_SHARE * (elapsed.as_secs_f64() - rank).max(0.0);
    }

    fn note_failure(&self, error: UpstreamError, backoff: Duration) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut measured = self.measured.lock();
        measured.backoff_until = Some(Instant::now() + backoff);
        measured.last_failure = Some(error);
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
        Self::with_needs(options, UpstreamNeeds::default())
    }

    /// The same, for servers that are spoken to over TLS or HTTPS.
    pub fn with_needs(options: UpstreamOptions, needs: UpstreamNeeds) -> Self {
        let needs = Arc::new(needs);
        let new = |address: &UpstreamAddress| {
            Arc::new(Server::new(address.clone(), String::new(), Label::NONE, &needs))
        };
        let servers = options.servers.iter().map(new).collect();
        Self::of(servers, options, &needs)
    }

    fn of(servers: Vec<Arc<Server>>, options: UpstreamOptions, needs: &Arc<UpstreamNeeds>) -> Self {
        let needs = Arc::clone(needs);
        Self(Arc::new(Inner { servers, options, needs, turn: AtomicUsize::new(0) }))
    }

    /// Asks the servers. Returns the first good answer, or the last failure once every server failed.
    pub async fn ask(
        &self,
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
    ) -> Result<UpstreamAnswer, UpstreamError> {
        let inner = &self.0;
        if let [server] = inner.servers.as_slice() {
            let answer = inner.attempt(server, question, kind, bounds).await?;
            return Ok(UpstreamAnswer { answer, server: server.label });
        }
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
                    let server = inner.servers.get(index).map_or(Label::NONE, |s| s.label);
                    return Ok(UpstreamAnswer { answer, server });
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
            // On their own, because the lock is held to the end of the statement.
            let (mean_seconds, last_failure) = {
                let measured = server.measured.lock();
                let mean_seconds = (measured.count > 0).then_some(measured.mean_seconds);
                (mean_seconds, measured.last_failure)
            };
            UpstreamStats {
                server: server.address.clone(),
                name: server.name.clone(),
                response_p95: server.p95(),
                last_failure,
                queries: server.queries.load(Ordering::Relaxed),
                failures: server.failures.load(Ordering::Relaxed),
                dropped: server.dropped.load(Ordering::Relaxed),
                response: mean_seconds.map(Duration::from_secs_f64),
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
        // Boxed, because a future that is moved into a timeout takes its memory twice.
        let exchange =
            Box::pin(server.exchange(question, kind, bounds, Some(self.needs.bootstrap())));
        let result = tokio::time::timeout(self.options.timeout, exchange).await;
        let result = result.unwrap_or(Err(UpstreamError::Timeout));
        match &result {
            Ok(_) => server.note_response(started.elapsed()),
            // It answered, though not with what was hoped for: of one name this says little.
            Err(error @ (UpstreamError::Rcode(_) | UpstreamError::Unusable)) => {
                server.note_useless(*error, self.options.next_after);
            }
            Err(error) => server.note_failure(*error, self.options.backoff),
        }
        result
    }

    /// Notes servers that were asked first and are overtaken by another one. Their attempts end here,
    /// so nothing else would tell that they are slow or dead.
    fn note_overtaken(&self, pending: &[(usize, Instant)]) {
        for (index, since) in pending {
            let server = &self.servers[*index];
            if since.elapsed() >= self.options.next_after {
                server.note_failure(UpstreamError::Timeout, self.options.backoff);
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
                let rank = |index: &usize| self.servers[*index].measured.lock().rank_seconds;
                order.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
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

    fn servers(strategy: UpstreamStrategy) -> Inner {
        let needs = Arc::new(UpstreamNeeds::default());
        let servers = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| {
            Arc::new(Server::new(text.parse().unwrap(), String::new(), Label::NONE, &needs))
        });
        let options = UpstreamOptions { strategy, ..Default::default() };
        Inner { servers: servers.into(), options, needs, turn: AtomicUsize::new(0) }
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
        inner.servers[0].note_failure(UpstreamError::Timeout, Duration::from_secs(30));
        assert_eq!(inner.order(), [1, 2, 0]);
        let fail = |server: &Arc<Server>| {
            server.note_failure(UpstreamError::Timeout, Duration::from_secs(30));
        };
        inner.servers.iter().for_each(fail);
        assert_eq!(inner.order(), [0, 1, 2]);
        inner.servers[1].note_response(Duration::from_millis(5));
        assert_eq!(inner.order(), [1, 0, 2]);
    }

    #[test]
    fn a_server_that_refuses_at_once_is_not_the_fastest() {
        let inner = servers(UpstreamStrategy::Fastest);
        inner.servers.iter().for_each(|server| server.note_response(Duration::from_millis(20)));
        inner.servers[0].note_useless(UpstreamError::Rcode(5), inner.options.next_after);
        assert_eq!(inner.order(), [1, 2, 0]);
        assert!(!inner.servers[0].is_in_backoff());
    }

    #[test]
    fn the_mean_is_that_of_the_answers_that_were_used() {
        let inner = servers(UpstreamStrategy::Fastest);
        let needs = Arc::clone(&inner.needs);
        let upstreams = Upstreams::of(inner.servers.clone(), inner.options.clone(), &needs);
        let mean = || upstreams.stats()[0].response;
        inner.servers[0].note_useless(UpstreamError::Rcode(2), inner.options.next_after);
        assert_eq!(mean(), None, "nothing was answered");
        inner.servers[0].note_response(Duration::from_millis(20));
        assert_eq!(mean(), Some(Duration::from_millis(20)));
        inner.servers[0].note_useless(UpstreamError::Rcode(2), inner.options.next_after);
        inner.servers[0].note_slower_than(Duration::from_millis(500));
        assert_eq!(mean(), Some(Duration::from_millis(20)));
        inner.servers[0].note_response(Duration::from_millis(30));
        assert_eq!(mean(), Some(Duration::from_millis(22)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_habit_is_forgotten_after_a_while() {
        let habit = Habit::default();
        assert!(!habit.is_known());
        habit.note();
        assert!(habit.is_known());
        tokio::time::advance(HABIT_KEEP).await;
        assert!(!habit.is_known());
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
