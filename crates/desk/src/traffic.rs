//! Traffic of an app over all of its instances: requests, errors, response times, connections.
//!
//! [`Traffic::record`] adds up in process and asks the store nothing; [`Traffic::flush`], once a
//! second, writes the sums as increments of plain numbers, so that other programs may count along
//! with `INCRBY`. Connections are leases: each instance reports its own number, and the sum over
//! live instances is published. Invariants: a request is counted once or, when the instance dies or
//! a reply gets lost, not at all; no number goes below 0; memory and keys are bounded, whatever
//! paths clients make up.
//!
//! Read in this order: `endpoint.rs`, [`Traffic`] here, `read.rs`, `report.rs` (what other programs
//! report), `finder.rs` (what they count by themselves).

mod endpoint;
mod finder;
mod read;
mod report;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::{
    Key, Millis, Store,
    counter::{CounterTarget, Counters, Missing},
    histogram::{self, BUCKETS, Buckets},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    endpoint::EndpointName,
    finder::TrafficFinder,
    read::{EndpointTraffic, InstanceTraffic, READ_MAX_BUCKETS, TrafficSnapshot},
    report::ReportedRequests,
};
use crate::{
    AppName, Error, InstanceId, Prefix,
    keys::{self, TrafficKeys},
    scripts::{admit_names, raise, report_connections},
};

/// Most endpoints of an app that are told apart; all others are `OTHER`.
pub const ENDPOINTS_MAX: usize = 1_000;

/// Most apps whose traffic is kept.
pub const APPS_MAX: usize = 100;

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Time after its last report for which an instance counts as live: one that was killed is gone from
/// the sum within 15 s, with the next report of another.
const INSTANCE_LEASE: Duration = Duration::from_secs(11);

/// Longest time between two reports of an instance, and between two writes of the same speed. What has
/// changed is written with the next flush.
const REPEAT_INTERVAL: Duration = Duration::from_secs(3);

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
    /// The Unix minute in which the app was put on the list of apps: another instance may take it off.
    listed_minute: AtomicI64,
    app: Option<AppName>,
    apps: Key,
    /// Most endpoints with counters of their own.
    endpoints_most: AtomicUsize,
    admitted: Mutex<AdmittedEndpoints>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
    reported: Mutex<Option<LastWrite>>,
    published: Mutex<Option<LastWrite>>,
}

/// Endpoints that are known to have counters of their own, at most [`ENDPOINTS_MAX`]. Known for a minute:
/// a reset on another instance takes them off the list.
#[derive(Debug, Default)]
struct AdmittedEndpoints {
    minute: i64,
    names: HashSet<EndpointName>,
}

impl AdmittedEndpoints {
    fn at(&mut self, minute: i64) -> &mut HashSet<EndpointName> {
        if self.minute != minute {
            *self = Self { minute, names: HashSet::new() };
        }
        &mut self.names
    }
}

/// A number that was written, and when: it is not written again at once.
#[derive(Clone, Copy, Debug)]
struct LastWrite {
    value: i64,
    at: Millis,
}

impl LastWrite {
    /// Returns true if the value may stay as it is. A clock that was set back knows nothing.
    fn stands(last: &Mutex<Option<Self>>, value: i64, now: Millis) -> bool {
        let last = *last.lock();
        last.is_some_and(|last| {
            last.value == value && last.at <= now && now < last.at + REPEAT_INTERVAL
        })
    }

    fn note(last: &Mutex<Option<Self>>, value: i64, at: Millis) {
        *last.lock() = Some(Self { value, at });
    }
}

/// Requests to one endpoint that were counted elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSum<'a> {
    /// Their method.
    pub method: &'a str,
    /// The template of the route they matched; none if they matched none.
    pub route: Option<&'a str>,
    /// Answers by status.
    pub statuses: &'a [(u16, u64)],
    /// Requests whose client disconnected.
    pub aborted: u64,
    /// Requests that reached no handler.
    pub refused: u64,
    /// Response times.
    pub times: &'a Buckets,
}

/// As [`EndpointSum`], with the name under which they are counted.
struct NamedSum<'a> {
    name: EndpointName,
    statuses: &'a [(u16, u64)],
    aborted: u64,
    refused: u64,
    times: &'a Buckets,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedRequest<'a> {
    /// Its method.
    pub method: &'a str,
    /// The template of the route it matched, never the path itself; none if it matched none.
    pub route: Option<&'a str>,
    /// Its outcome.
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
    fn add_second(&mut self, second: i64, by: i64) {
        *self.seconds.entry(second).or_default() += by;
        if self.seconds.len() > SECONDS_MAX {
            let oldest = second - KEEP_SECONDS.as_secs().cast_signed();
            self.seconds.retain(|second, _| *second > oldest);
        }
    }

    /// Returns the sums of an endpoint, or of all others when there are too many.
    fn endpoint(&mut self, name: EndpointName) -> &mut EndpointSums {
        let is_full = self.endpoints.len() >= ENDPOINTS_MAX && !self.endpoints.contains_key(&name);
        let name = if is_full { EndpointName::other() } else { name };
        self.endpoints.entry(name).or_default()
    }

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
    times: Box<Buckets>,
}

/// Fields of the outcomes; the first five add up to the total.
const OUTCOMES: [&str; 7] = ["2xx", "3xx", "4xx", "5xx", "aborted", "refused", "limited"];
const ABORTED: usize = 4;
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
        // A power cut may cost some seconds of counts.
        let store = store.relaxed();
        Self(Arc::new(TrafficInner {
            keys: TrafficKeys::new(store.layout(), prefix, app),
            listed_minute: AtomicI64::new(i64::MIN),
            app: app.cloned(),
            apps: keys::apps(prefix),
            endpoints_most: AtomicUsize::new(ENDPOINTS_MAX),
            counters: Counters::new(&store, WAITING_MAX),
            instance,
            connections: AtomicU64::new(0),
            sums: Mutex::default(),
            admitted: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            reported: Mutex::default(),
            published: Mutex::default(),
            store,
        }))
    }

    /// Counts a request that has ended.
    pub fn record(&self, request: &FinishedRequest<'_>) {
        let name = EndpointName::new(request.method, request.route);
        let second = self.0.store.now().as_secs();
        let (class, status) = match request.outcome {
            RequestOutcome::Status(status) => (class_of(status), status),
            RequestOutcome::Aborted => (ABORTED, 0),
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
        sums.add_second(second, 1);
        let endpoint = sums.endpoint(name);
        endpoint.requests += 1;
        endpoint.errors += is_error;
        endpoint.times[histogram::bucket(request.duration)] += 1;
    }

    /// Adds requests that were counted elsewhere: per endpoint, and per Unix second.
    pub fn add(&self, endpoints: &[EndpointSum<'_>], seconds: &[(i64, u64)]) {
        let named = endpoints.iter().map(|one| NamedSum {
            name: EndpointName::new(one.method, one.route),
            statuses: one.statuses,
            aborted: one.aborted,
            refused: one.refused,
            times: one.times,
        });
        self.add_named(named, seconds);
    }

    fn add_named<'a>(&self, endpoints: impl Iterator<Item = NamedSum<'a>>, seconds: &[(i64, u64)]) {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut sums = self.0.sums.lock();
        for one in endpoints {
            let (mut total, mut errors) = (one.aborted, 0);
            sums.outcomes[ABORTED] += signed(one.aborted);
            for (status, count) in one.statuses {
                total += count;
                errors += if *status >= 400 { *count } else { 0 };
                sums.outcomes[class_of(*status)] += signed(*count);
                sums.outcomes[LIMITED] += if *status == 429 { signed(*count) } else { 0 };
            }
            let refused = one.refused.min(total);
            sums.total += signed(total);
            sums.errors += signed(errors);
            sums.accepted += signed(total - refused);
            sums.outcomes[REFUSED] += signed(refused);
            let endpoint = sums.endpoint(one.name);
            endpoint.requests += signed(total);
            endpoint.errors += signed(errors);
            endpoint.times.iter_mut().zip(one.times).for_each(|(sum, count)| *sum += count);
        }
        for (second, count) in seconds {
            sums.add_second(*second, signed(*count));
        }
    }

    /// Sets the connections that are open on this instance, where they are counted elsewhere.
    pub fn set_connections(&self, open: u64) {
        self.0.connections.store(open, Ordering::Relaxed);
    }

    /// Sets the most endpoints that have counters of their own; those that have some keep them.
    pub fn set_endpoints_most(&self, most: usize) {
        self.0.endpoints_most.store(most.min(ENDPOINTS_MAX), Ordering::Relaxed);
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
        self.register().await?;
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
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                counters.add(field(times.clone(), bucket.to_string(), None), count);
                counters.add(field(keys.all_times.clone(), bucket.to_string(), None), count);
            }
        }
        let written = counters.flush().await;
        let now = store.now();
        let open = i64::try_from(self.connections()).unwrap_or(i64::MAX);
        if !LastWrite::stands(&self.0.reported, open, now) {
            self.renew_lease(now + INSTANCE_LEASE).await?;
            LastWrite::note(&self.0.reported, open, now);
        }
        written?;
        self.publish_speed(now.as_secs()).await
    }

    /// Takes this instance out of the sums, as its last call: it has no connections any more.
    pub async fn leave(&self) -> Result<(), Error> {
        self.set_connections(0);
        self.flush().await?;
        *self.0.reported.lock() = None;
        self.renew_lease(self.0.store.now()).await
    }

    /// Adds the app to the list of those whose traffic is kept. A flush does it, too.
    ///
    /// # Errors
    /// There are [`APPS_MAX`] apps already.
    pub async fn register(&self) -> Result<(), Error> {
        let TrafficInner { store, app, apps, listed_minute, .. } = &*self.0;
        let minute = self.minute();
        if let Some(app) = app.as_ref().filter(|_| listed_minute.load(Ordering::Relaxed) != minute)
        {
            list_app(store, apps, app).await?;
            listed_minute.store(minute, Ordering::Relaxed);
        }
        Ok(())
    }

    fn minute(&self) -> i64 {
        self.0.store.now().as_secs().div_euclid(60)
    }

    /// Reports the connections of this instance, which count until a time. Of another app none are
    /// open here.
    async fn renew_lease(&self, until: Millis) -> Result<(), Error> {
        let TrafficInner { store, keys, .. } = &*self.0;
        if self.0.app.is_some() && self.connections() == 0 {
            return Ok(());
        }
        let (_, _, _): (String, u64, u64) = report_connections::run(
            store,
            report_connections::Keys {
                instances: &keys.instances,
                current: &keys.connections,
                max: &keys.connections_max,
            },
            report_connections::Args {
                now_ms: store.now(),
                instance: self.0.instance.as_str(),
                connections: self.connections(),
                until_ms: until,
            },
        )
        .await?;
        Ok(())
    }

    /// Returns the app; none for the program itself.
    pub fn app(&self) -> Option<&AppName> {
        self.0.app.as_ref()
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
            let mut admitted = self.0.admitted.lock();
            let admitted = admitted.at(self.minute());
            let names = names.iter().filter(|name| **name != EndpointName::other()).cloned();
            names.partition(|name| admitted.contains(name))
        };
        let mut found: HashSet<EndpointName> = known.into_iter().collect();
        if !new.is_empty() {
            let keys = admit_names::Keys { known: &self.0.keys.endpoints };
            let names = new.iter().map(EndpointName::as_str);
            let args =
                admit_names::Args { most: self.0.endpoints_most.load(Ordering::Relaxed), names };
            let reply: Vec<store::redis::Value> =
                admit_names::run(&self.0.store, keys, args).await?;
            let has_own = reply.into_iter().skip(1).map(|item| item == store::redis::Value::Int(1));
            let new = new.into_iter().zip(has_own).filter(|(_, has_own)| *has_own);
            found.extend(new.map(|(name, _)| name));
            self.0.admitted.lock().at(self.minute()).extend(found.iter().cloned());
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
        let now = store.now();
        if LastWrite::stands(&self.0.published, speed, now) {
            return Ok(());
        }
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
        LastWrite::note(&self.0.published, speed, now);
        Ok(())
    }
}

/// Returns the names of the apps whose traffic is kept beside this program's own.
pub async fn apps(store: &Store, prefix: &Prefix) -> Result<Vec<AppName>, Error> {
    let names: Vec<String> = store::redis::cmd("SMEMBERS")
        .arg(keys::apps(prefix))
        .query_async(&mut store.clone())
        .await?;
    let mut apps: Vec<AppName> =
        names.iter().filter_map(|name| AppName::parse(name).ok()).take(APPS_MAX).collect();
    apps.sort_unstable();
    Ok(apps)
}

/// Adds an app to the list, unless there are too many.
async fn list_app(store: &Store, apps: &Key, app: &AppName) -> Result<(), Error> {
    let keys = admit_names::Keys { known: apps };
    let args = admit_names::Args { most: APPS_MAX, names: [app.as_str()] };
    let reply: Vec<store::redis::Value> = admit_names::run(store, keys, args).await?;
    if reply.get(1) == Some(&store::redis::Value::Int(1)) {
        return Ok(());
    }
    Err(Error::invalid("app", format!("there are {APPS_MAX} apps already; reset one that is gone")))
}

/// Returns the place of a status among the [`OUTCOMES`].
fn class_of(status: u16) -> usize {
    usize::from((status / 100).clamp(2, 5)) - 2
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
