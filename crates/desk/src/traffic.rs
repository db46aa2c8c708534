//! Traffic of an app over all of its instances: requests, errors, response times, connections.
//!
//! [`Traffic::record`] adds up in process and asks the store nothing; [`Traffic::flush`], once a
//! second, writes the sums as increments of plain numbers, so that other programs may count along
//! with `INCRBY`. Connections are leases: each instance reports its own number, and the sum over
//! live instances is published. Invariants: a request is counted once or, when the instance dies or
//! a reply gets lost, not at all; no number goes below 0; memory and keys are bounded, whatever
//! paths clients make up.
//!
//! Read in this order: `endpoint.rs`, [`Traffic`] here, `histogram.rs`, `read.rs`.

mod endpoint;
mod histogram;
mod read;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::{
    Store,
    counter::{CounterTarget, Counters, Missing},
};
use tokio_util::sync::CancellationToken;

use self::histogram::BUCKETS;
pub use self::{
    endpoint::EndpointName,
    read::{EndpointTraffic, READ_MAX_BUCKETS, TrafficSnapshot},
};
use crate::{
    AppName, Error, InstanceId, Prefix,
    keys::TrafficKeys,
    scripts::{admit_endpoints, raise, report_connections},
};

/// Most endpoints of an app that are told apart; all others are `OTHER`.
pub const ENDPOINTS_MAX: usize = 1_000;

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Time after its last report for which an instance counts as live.
const INSTANCE_LEASE: Duration = Duration::from_secs(15);

/// Most different counters that wait to be written: those of 1,000 endpoints with about fifty
/// different response times each.
const WAITING_MAX: usize = 60_000;

/// Time after which all instances have flushed a second.
const SETTLED_AFTER_SECONDS: i64 = 2;

/// Whole seconds over which the speed is measured.
const SPEED_SECONDS: i64 = 10;

/// Most seconds that wait to be written, when the store is away for long. Totals keep the rest.
const SECONDS_MAX: usize = 3_600;

const KEEP_SECONDS: Duration = Duration::from_secs(11 * 60);
const KEEP_MINUTES: Duration = Duration::from_secs(49 * 60 * 60);

/// Counts the traffic of one app on one instance. A cheap clone; all clones count together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_desk::Error> {
/// use std::time::Duration;
/// use tidegate_desk::{InstanceId, Prefix, traffic::{FinishedRequest, RequestOutcome, Traffic}};
///
/// let store = store::Store::open("embedded:").await?;
/// let traffic = Traffic::new(&store, &Prefix::default(), None, InstanceId::parse("web-1")?);
/// let connection = traffic.open_connection();
/// traffic.record(&FinishedRequest {
///     method: "GET",
///     route: Some("/api/users/:id"),
///     outcome: RequestOutcome::Status(200),
///     is_refused: false,
///     duration: Duration::from_millis(12),
/// });
/// traffic.flush().await?;
/// let seen = traffic.snapshot().await?;
/// assert_eq!((seen.total, seen.accepted, seen.connections), (1, 1, 1));
/// drop(connection);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Traffic(Arc<TrafficInner>);

#[derive(Debug)]
struct TrafficInner {
    store: Store,
    keys: TrafficKeys,
    instance: InstanceId,
    counters: Counters,
    connections: AtomicU64,
    sums: Mutex<TrafficSums>,
    /// Endpoints that are known to have counters of their own, at most [`ENDPOINTS_MAX`].
    admitted: Mutex<HashSet<EndpointName>>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedRequest<'a> {
    /// Its method.
    pub method: &'a str,
    /// The template of the route it matched, never the path itself; none if it matched none.
    pub route: Option<&'a str>,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// It was turned away by a limit, a credential check, a size limit or a drain, and reached no
    /// handler.
    pub is_refused: bool,
    /// Time from its arrival to its end.
    pub duration: Duration,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was answered with this status.
    Status(u16),
    /// The client disconnected before it was answered.
    Aborted,
}

/// Counts since the last flush.
#[derive(Debug, Default)]
struct TrafficSums {
    total: i64,
    accepted: i64,
    errors: i64,
    outcomes: [i64; OUTCOMES.len()],
    seconds: HashMap<i64, i64>,
    endpoints: HashMap<EndpointName, EndpointSums>,
}

impl TrafficSums {
    /// Takes everything but endpoints that have come up since it was asked which of them have
    /// counters of their own; these wait for the next flush.
    fn take(&mut self, asked: &HashSet<EndpointName>) -> Self {
        let mut taken = std::mem::take(self);
        let endpoints = std::mem::take(&mut taken.endpoints).into_iter();
        (taken.endpoints, self.endpoints) = endpoints.partition(|(name, _)| asked.contains(name));
        taken
    }
}

#[derive(Debug)]
struct EndpointSums {
    requests: i64,
    errors: i64,
    times: Box<[u32; BUCKETS]>,
}

/// Fields of the outcomes; the first five add up to the total.
const OUTCOMES: [&str; 7] = ["2xx", "3xx", "4xx", "5xx", "aborted", "refused", "limited"];
const REFUSED: usize = 5;
const LIMITED: usize = 6;

impl Traffic {
    /// Creates a counter for one app: the program itself, or another one by name. `instance` must
    /// be new for each start of an instance.
    pub fn new(
        store: &Store,
        prefix: &Prefix,
        app: Option<&AppName>,
        instance: InstanceId,
    ) -> Self {
        Self(Arc::new(TrafficInner {
            keys: TrafficKeys::new(store.layout(), prefix, app),
            counters: Counters::new(store, WAITING_MAX),
            instance,
            connections: AtomicU64::new(0),
            sums: Mutex::default(),
            admitted: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            store: store.clone(),
        }))
    }

    /// Counts a request that has ended.
    pub fn record(&self, request: &FinishedRequest<'_>) {
        let name = EndpointName::new(request.method, request.route);
        let second = self.0.store.now().as_secs();
        let (class, status) = match request.outcome {
            RequestOutcome::Status(status) => (usize::from((status / 100).clamp(2, 5)) - 2, status),
            RequestOutcome::Aborted => (4, 0),
        };
        let is_error = i64::from(status >= 400);
        let mut sums = self.0.sums.lock();
        sums.total += 1;
        sums.errors += is_error;
        sums.outcomes[class] += 1;
        sums.outcomes[LIMITED] += i64::from(status == 429);
        if request.is_refused {
            sums.outcomes[REFUSED] += 1;
        } else {
            sums.accepted += 1;
        }
        *sums.seconds.entry(second).or_default() += 1;
        if sums.seconds.len() > SECONDS_MAX {
            let oldest = second - KEEP_SECONDS.as_secs().cast_signed();
            sums.seconds.retain(|second, _| *second > oldest);
        }
        let is_full = sums.endpoints.len() >= ENDPOINTS_MAX && !sums.endpoints.contains_key(&name);
        let name = if is_full { EndpointName::other() } else { name };
        let endpoint = sums.endpoints.entry(name).or_default();
        endpoint.requests += 1;
        endpoint.errors += is_error;
        let bucket = &mut endpoint.times[histogram::bucket(request.duration)];
        *bucket = bucket.saturating_add(1);
    }

    /// Counts an open connection until the guard is dropped.
    pub fn open_connection(&self) -> ConnectionGuard {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(self.0.clone())
    }

    /// Returns the connections that are open on this instance.
    pub fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Returns the counts that were lost, because a reply got lost or too many waited.
    pub fn missing(&self) -> Missing {
        self.0.counters.missing()
    }

    /// Writes what was counted, reports the connections and publishes the speed. What certainly was
    /// not written is written with the next flush.
    pub async fn flush(&self) -> Result<(), Error> {
        let TrafficInner { store, keys, counters, .. } = &*self.0;
        let _one = self.0.flushing.lock().await;
        let asked: HashSet<EndpointName> = self.0.sums.lock().endpoints.keys().cloned().collect();
        // While the store is away counts stay in process, where endpoints are bounded, too.
        let admitted = self.admit(&asked).await?;
        let sums = self.0.sums.lock().take(&asked);
        let plain = |key: &store::Key| CounterTarget::Key { key: key.clone(), keep: None };
        let field = |key: store::Key, field: String, keep: Option<Duration>| CounterTarget::Field {
            key,
            field,
            keep,
        };
        for (key, by) in [
            (&keys.total, sums.total),
            (&keys.accepted, sums.accepted),
            (&keys.errors, sums.errors),
        ] {
            counters.add(plain(key), by);
        }
        for (name, by) in OUTCOMES.iter().zip(sums.outcomes) {
            counters.add(field(keys.outcomes.clone(), (*name).to_owned(), None), by);
        }
        for (second, by) in sums.seconds {
            let (minute, hour) = (second.div_euclid(60), second.div_euclid(3_600));
            let seconds = keys.seconds(minute);
            counters.add(field(seconds, second.to_string(), Some(KEEP_SECONDS)), by);
            counters.add(field(keys.minutes(hour), minute.to_string(), Some(KEEP_MINUTES)), by);
        }
        for (name, endpoint) in sums.endpoints {
            let name = if admitted.contains(&name) { name } else { EndpointName::other() };
            counters.add(plain(&keys.endpoint(&name)), endpoint.requests);
            counters.add(plain(&keys.endpoint_errors(&name)), endpoint.errors);
            let times = keys.response_times(&name);
            for (bucket, count) in
                endpoint.times.iter().enumerate().filter(|(_, count)| **count > 0)
            {
                counters.add(field(times.clone(), bucket.to_string(), None), i64::from(*count));
            }
        }
        let written = counters.flush().await;
        let now = store.now();
        let (_, _, _): (String, u64, u64) = report_connections::run(
            store,
            report_connections::Keys {
                instances: &keys.instances,
                current: &keys.connections,
                max: &keys.connections_max,
            },
            report_connections::Args {
                now_ms: now,
                instance: self.0.instance.as_str(),
                connections: self.connections(),
                until_ms: now + INSTANCE_LEASE,
            },
        )
        .await?;
        written?;
        self.publish_speed(now.as_secs()).await
    }

    /// Flushes every second until cancelled, and once more then. Connections that are open at that time
    /// count until the lease of the instance ends.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut stop = false;
        while !stop {
            tokio::select! {
                () = cancel.cancelled() => stop = true,
                () = tokio::time::sleep(FLUSH_INTERVAL) => {}
            }
            if let Err(error) = self.flush().await {
                tracing::warn!(%error, "traffic not written");
            }
        }
    }

    /// Asks for counters of their own for endpoints that have none yet; returns those of the given
    /// that do.
    async fn admit(&self, names: &HashSet<EndpointName>) -> Result<HashSet<EndpointName>, Error> {
        let (known, new): (Vec<_>, Vec<_>) = {
            let admitted = self.0.admitted.lock();
            let names = names.iter().filter(|name| **name != EndpointName::other()).cloned();
            names.partition(|name| admitted.contains(name))
        };
        let mut found: HashSet<EndpointName> = known.into_iter().collect();
        if !new.is_empty() {
            let keys = admit_endpoints::Keys { endpoints: &self.0.keys.endpoints };
            let names = new.iter().map(EndpointName::as_str);
            let args = admit_endpoints::Args { most: ENDPOINTS_MAX, names };
            let reply: Vec<store::redis::Value> =
                admit_endpoints::run(&self.0.store, keys, args).await?;
            let has_own = reply.into_iter().skip(1).map(|item| item == store::redis::Value::Int(1));
            let new = new.into_iter().zip(has_own).filter(|(_, has_own)| *has_own);
            found.extend(new.map(|(name, _)| name));
            self.0.admitted.lock().extend(found.iter().cloned());
        }
        Ok(found)
    }

    /// Publishes the speed from seconds that every instance has flushed. All instances read the same
    /// numbers, so it does not matter which one writes last.
    async fn publish_speed(&self, now_second: i64) -> Result<(), Error> {
        let TrafficInner { store, keys, .. } = &*self.0;
        let last = now_second - SETTLED_AFTER_SECONDS;
        let counts = self.seconds(last - SPEED_SECONDS + 1, last).await?;
        let sum: i64 = counts.iter().sum();
        let speed = (sum + SPEED_SECONDS / 2) / SPEED_SECONDS;
        let mut connection = store.clone();
        let () = store::redis::cmd("SET")
            .arg(&keys.speed)
            .arg(speed)
            .query_async(&mut connection)
            .await?;
        if let Some(most) = counts.into_iter().max().filter(|most| *most > 0) {
            let args = raise::Args { value: most };
            let (_,): (String,) =
                raise::run(store, raise::Keys { number: &keys.speed_max }, args).await?;
        }
        Ok(())
    }
}

impl Default for EndpointSums {
    fn default() -> Self {
        Self { requests: 0, errors: 0, times: Box::new([0; BUCKETS]) }
    }
}

/// An open connection: counted until dropped.
#[derive(Debug)]
pub struct ConnectionGuard(Arc<TrafficInner>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        // Added once by whoever made the guard, so it cannot go below 0.
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
