//! The one count of requests. The middleware records each request once, when it ends; `/metrics`,
//! the charts of the overview and services that keep traffic read this count, and nothing counts
//! beside it.
//!
//! Counts are kept per program ([`AppRequests`]: this one, or another whose requests pass through),
//! route template and method. Invariants: memory is bounded, whatever paths and methods clients make
//! up; recording asks no store and waits for nobody but another request to the same endpoint; for
//! each endpoint, statuses and aborted requests add up to the requests.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::Method;
use parking_lot::{Mutex, RwLock};
use store::Millis;
use store::histogram::{self, BUCKETS, Buckets};

use crate::metrics::Exposition;

/// Most routes told apart per program; all others are one.
const ROUTES_MAX: usize = 1_000;
/// The route of requests beyond [`ROUTES_MAX`].
const OTHER: &str = "other";
/// The route of requests that matched none.
const UNMATCHED: &str = "unmatched";
/// Programs told apart.
const APPS_MAX: usize = 64;
/// The program behind the reverse proxy, by the name it has here; a service may call it otherwise.
pub const GUARDED_APP: &str = "guard";
/// Seconds whose requests are kept, for readers that come every second.
const SECONDS_KEPT: usize = 128;

/// Upper bounds of the histogram in `/metrics`, in seconds; each is an edge of a bucket.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// It was answered with this status.
    Status(u16),
    /// The client disconnected before it was answered.
    Aborted,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct CountedRequest<'a> {
    /// The template of the route it matched, never the path itself; none if it matched none.
    pub route: Option<&'a str>,
    /// Its method.
    pub method: &'a Method,
    /// Its outcome.
    pub end: RequestEnd,
    /// It was turned away by a limit, a credential check, a size limit or a drain, and reached no
    /// handler.
    pub is_refused: bool,
    /// Time from its arrival to the head of its answer.
    pub took: Duration,
    /// The trace in which it was recorded.
    pub trace_id: Option<u128>,
}

/// The count of requests and connections of this process.
#[derive(Debug, Default)]
pub struct RequestCounter {
    own: Arc<AppRequests>,
    others: RwLock<HashMap<String, Arc<AppRequests>>>,
    /// Open connections of all listeners.
    connections: AtomicUsize,
    templates: ArcSwap<PathTemplates>,
}

impl RequestCounter {
    /// Begins to count a request that is forwarded to another program, by the template of its path.
    pub fn forward(
        &self,
        app: &str,
        method: &Method,
        path: &str,
        store: &store::Store,
    ) -> ForwardedRequest {
        ForwardedRequest {
            requests: self.of_app(app),
            store: store.clone(),
            route: self.templates.load().apply(path),
            method: method.clone(),
            started: tokio::time::Instant::now(),
            trace_id: None,
            ended: false,
        }
    }

    /// Sets the templates of paths whose routes are not known.
    pub fn set_templates(&self, templates: Arc<PathTemplates>) {
        self.templates.store(templates);
    }

    /// Returns the requests of this program.
    pub fn own(&self) -> &Arc<AppRequests> {
        &self.own
    }

    /// Returns the requests of another program, whose requests pass through this one. Programs
    /// beyond the most that are told apart are one.
    pub fn of_app(&self, app: &str) -> Arc<AppRequests> {
        if let Some(known) = self.others.read().get(app) {
            return Arc::clone(known);
        }
        let mut others = self.others.write();
        let is_full = others.len() >= APPS_MAX && !others.contains_key(app);
        let name = if is_full { OTHER } else { app };
        Arc::clone(others.entry(name.to_owned()).or_default())
    }

    /// Returns the other programs by name.
    pub fn others(&self) -> Vec<(String, Arc<AppRequests>)> {
        let others = self.others.read();
        others.iter().map(|(name, requests)| (name.clone(), Arc::clone(requests))).collect()
    }

    /// Returns the open connections of all listeners.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection; returns how many there are.
    pub(crate) fn add_connection(&self) -> usize {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a connection that ended; returns how many are left.
    pub(crate) fn remove_connection(&self) -> usize {
        // Only what was added is removed, so it cannot go below 0.
        self.connections.fetch_sub(1, Ordering::Relaxed).saturating_sub(1)
    }
}

/// The requests of one program.
#[derive(Debug)]
pub struct AppRequests {
    endpoints: RwLock<HashMap<String, RouteEndpoints>>,
    /// Routes of probes and assets, which are no traffic.
    excluded: OnceLock<HashSet<String>>,
    /// Requests of the last seconds: the second's low 32 bits, then its requests.
    seconds: [AtomicU64; SECONDS_KEPT],
}

/// The endpoints of a route, by method.
type RouteEndpoints = Vec<(&'static str, Arc<Endpoint>)>;

#[derive(Debug)]
struct Endpoint {
    is_excluded: bool,
    counts: Mutex<EndpointCounts>,
    exemplars: Mutex<RequestExemplars>,
}

/// The latest request in a trace, for each bucket of the histogram in `/metrics`: the id of its
/// trace, and its time.
type RequestExemplars = [Option<(u128, Duration)>; SECONDS.len() + 1];

impl Default for AppRequests {
    fn default() -> AppRequests {
        AppRequests {
            endpoints: RwLock::default(),
            excluded: OnceLock::new(),
            seconds: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// Counts of one endpoint.
#[derive(Debug, Clone)]
pub struct EndpointCounts {
    /// Answers by status, in the order in which they first occurred.
    pub statuses: Vec<(u16, u64)>,
    /// Requests whose client disconnected.
    pub aborted: u64,
    /// Requests that reached no handler.
    pub refused: u64,
    /// Times to the head of the answer.
    pub times: Box<Buckets>,
    /// Sum of those times.
    pub total_time: Duration,
}

impl Default for EndpointCounts {
    fn default() -> EndpointCounts {
        EndpointCounts {
            statuses: Vec::new(),
            aborted: 0,
            refused: 0,
            times: Box::new([0; BUCKETS]),
            total_time: Duration::ZERO,
        }
    }
}

impl EndpointCounts {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.statuses.iter().map(|(_, count)| count).sum::<u64>() + self.aborted
    }

    fn add(&mut self, request: &CountedRequest<'_>) {
        match request.end {
            RequestEnd::Aborted => self.aborted += 1,
            RequestEnd::Status(status) => {
                match self.statuses.iter_mut().find(|(known, _)| *known == status) {
                    Some((_, count)) => *count += 1,
                    None => self.statuses.push((status, 1)),
                }
            }
        }
        self.refused += u64::from(request.is_refused);
        self.total_time = self.total_time.saturating_add(request.took);
        if let Some(count) = self.times.get_mut(histogram::bucket(request.took)) {
            *count += 1;
        }
    }

    /// Returns what was counted after `before`, an earlier copy of the same counts.
    fn since(&self, before: Option<&EndpointCounts>) -> EndpointCounts {
        let Some(before) = before else { return self.clone() };
        let earlier = |index: usize| before.statuses.get(index).map_or(0, |(_, count)| *count);
        let statuses = self.statuses.iter().enumerate();
        EndpointCounts {
            // Statuses keep their places.
            statuses: statuses
                .map(|(index, (status, count))| (*status, count - earlier(index)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            aborted: self.aborted - before.aborted,
            refused: self.refused - before.refused,
            times: Box::new(std::array::from_fn(|index| {
                let count = |counts: &Buckets| counts.get(index).copied().unwrap_or(0);
                count(&self.times) - count(&before.times)
            })),
            total_time: self.total_time.saturating_sub(before.total_time),
        }
    }
}

/// Sums over all endpoints of a program, probes and assets included.
#[derive(Debug, Clone)]
pub(crate) struct RequestSums {
    pub(crate) requests: u64,
    /// Answers with a status of 500 or above.
    pub(crate) failures: u64,
    pub(crate) times: Box<Buckets>,
}

impl AppRequests {
    /// Names the routes of probes and assets: they are counted for `/metrics`, and are no traffic.
    pub(crate) fn exclude(&self, routes: HashSet<String>) {
        // Set when the router is made; a second router of the same app has the same routes.
        self.excluded.get_or_init(|| routes);
    }

    /// Counts a request that has ended.
    pub fn record(&self, request: &CountedRequest<'_>, now: Millis) {
        let endpoint = self.endpoint(request.route.unwrap_or(UNMATCHED), request.method);
        if !endpoint.is_excluded {
            self.count_second(now.as_secs());
        }
        if let Some(trace_id) = request.trace_id {
            let seconds = request.took.as_secs_f64();
            let bucket = SECONDS.partition_point(|bound| *bound < seconds);
            if let Some(exemplar) = endpoint.exemplars.lock().get_mut(bucket) {
                *exemplar = Some((trace_id, request.took));
            }
        }
        endpoint.counts.lock().add(request);
    }

    fn endpoint(&self, route: &str, method: &Method) -> Arc<Endpoint> {
        let method = method_word(method);
        let find = |methods: &RouteEndpoints| {
            let found = methods.iter().find(|(known, _)| *known == method);
            found.map(|(_, endpoint)| Arc::clone(endpoint))
        };
        if let Some(known) = self.endpoints.read().get(route).and_then(find) {
            return known;
        }
        let mut endpoints = self.endpoints.write();
        let is_full = endpoints.len() >= ROUTES_MAX && !endpoints.contains_key(route);
        let route = if is_full { OTHER } else { route };
        let methods = endpoints.entry(route.to_owned()).or_default();
        if let Some(known) = find(methods) {
            return known;
        }
        let is_excluded = self.excluded.get().is_some_and(|routes| routes.contains(route));
        let (counts, exemplars) = (Mutex::default(), Mutex::new([None; SECONDS.len() + 1]));
        let endpoint = Arc::new(Endpoint { is_excluded, counts, exemplars });
        methods.push((method, Arc::clone(&endpoint)));
        endpoint
    }

    fn count_second(&self, second: i64) {
        let low = second.cast_unsigned() & u64::from(u32::MAX);
        let index = usize::try_from(low).unwrap_or(0) % SECONDS_KEPT;
        let Some(slot) = self.seconds.get(index) else { return };
        // A slot of an earlier second starts anew. A clock that was set back counts in the slot of
        // the later second, if there is one.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
            Some(if known >> 32 == low { known + 1 } else { low << 32 | 1 })
        });
    }

    /// Returns the sums over all endpoints.
    pub(crate) fn sums(&self) -> RequestSums {
        let mut sums = RequestSums { requests: 0, failures: 0, times: Box::new([0; BUCKETS]) };
        for (_, _, endpoint) in self.all() {
            let counts = endpoint.counts.lock();
            sums.requests += counts.requests();
            let failed = counts.statuses.iter().filter(|(status, _)| *status >= 500);
            sums.failures += failed.map(|(_, count)| count).sum::<u64>();
            sums.times.iter_mut().zip(counts.times.iter()).for_each(|(sum, count)| *sum += count);
        }
        sums
    }

    /// Returns every endpoint: route, method, counts.
    fn all(&self) -> Vec<(String, &'static str, Arc<Endpoint>)> {
        let endpoints = self.endpoints.read();
        let mut all = Vec::with_capacity(endpoints.len());
        for (route, methods) in endpoints.iter() {
            for (method, endpoint) in methods {
                all.push((route.clone(), *method, Arc::clone(endpoint)));
            }
        }
        all
    }

    /// Writes the counts for Prometheus.
    pub(crate) fn write_metrics(&self, text: &mut String, format: Exposition) {
        let mut all = self.all();
        all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let counts: Vec<WrittenEndpoint<'_>> = all
            .iter()
            .map(|(route, method, endpoint)| WrittenEndpoint {
                route,
                method,
                counts: endpoint.counts.lock().clone(),
                exemplars: *endpoint.exemplars.lock(),
            })
            .collect();
        // Writing to a String cannot fail.
        let _ = write_requests(text, format, &counts);
    }
}

/// An endpoint that is being written.
struct WrittenEndpoint<'a> {
    route: &'a str,
    method: &'static str,
    counts: EndpointCounts,
    exemplars: RequestExemplars,
}

fn write_requests(
    text: &mut String,
    format: Exposition,
    all: &[WrittenEndpoint<'_>],
) -> Result<(), std::fmt::Error> {
    let title = format.title_of_counter("tidegate_http_requests_total");
    writeln!(text, "# HELP {title} Requests answered.")?;
    writeln!(text, "# TYPE {title} counter")?;
    for WrittenEndpoint { route, method, counts, .. } in all {
        for (status, count) in &counts.statuses {
            writeln!(
                text,
                "tidegate_http_requests_total{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}} {count}"
            )?;
        }
    }
    let title = format.title_of_counter("tidegate_http_requests_aborted_total");
    writeln!(text, "# HELP {title} Requests whose client left.")?;
    writeln!(text, "# TYPE {title} counter")?;
    let aborted = all.iter().filter(|endpoint| endpoint.counts.aborted > 0);
    for WrittenEndpoint { route, method, counts, .. } in aborted {
        writeln!(
            text,
            "tidegate_http_requests_aborted_total{{route=\"{route}\",method=\"{method}\"}} {}",
            counts.aborted
        )?;
    }
    writeln!(text, "# HELP tidegate_http_request_seconds Time to the answer's head.")?;
    writeln!(text, "# TYPE tidegate_http_request_seconds histogram")?;
    for same_route in all.chunk_by(|a, b| a.route == b.route) {
        let Some(WrittenEndpoint { route, .. }) = same_route.first() else { continue };
        let below = |bound: Duration| -> u64 {
            let within = 0..=histogram::bucket(bound);
            let counts =
                same_route.iter().filter_map(|endpoint| endpoint.counts.times.get(within.clone()));
            counts.flatten().sum()
        };
        let bounds =
            SECONDS.iter().map(|bound| (bound.to_string(), Duration::from_secs_f64(*bound)));
        for (index, (bound, length)) in
            bounds.chain([("+Inf".to_owned(), Duration::MAX)]).enumerate()
        {
            let count = below(length);
            write!(
                text,
                "tidegate_http_request_seconds_bucket{{route=\"{route}\",le=\"{bound}\"}} {count}"
            )?;
            let mut exemplars =
                same_route.iter().filter_map(|endpoint| *endpoint.exemplars.get(index)?);
            if let (Exposition::OpenMetrics, Some((trace_id, took))) = (format, exemplars.next()) {
                write!(text, " # {{trace_id=\"{trace_id:032x}\"}} {}", took.as_secs_f64())?;
            }
            text.push('\n');
        }
        let count = below(Duration::MAX);
        let sum: Duration = same_route.iter().map(|endpoint| endpoint.counts.total_time).sum();
        writeln!(
            text,
            "tidegate_http_request_seconds_sum{{route=\"{route}\"}} {}",
            sum.as_secs_f64()
        )?;
        writeln!(text, "tidegate_http_request_seconds_count{{route=\"{route}\"}} {count}")?;
    }
    Ok(())
}

/// Reads what was counted since it last read. Each reader has its own place, so any number of them
/// may read the same count.
#[derive(Debug, Default)]
pub struct RequestReader {
    endpoints: HashMap<(String, &'static str), EndpointCounts>,
    seconds: HashMap<i64, u64>,
}

/// The requests counted between two reads, without those to probes and assets.
#[derive(Debug, Default)]
pub struct RequestDelta {
    /// Endpoints with requests.
    pub endpoints: Vec<EndpointDelta>,
    /// Requests of each second, by Unix second.
    pub seconds: Vec<(i64, u64)>,
}

/// The requests of one endpoint between two reads.
#[derive(Debug)]
pub struct EndpointDelta {
    /// The template of its route; none for requests that matched none.
    pub route: Option<String>,
    /// The method, `OTHER` if it is none of the nine of HTTP.
    pub method: &'static str,
    /// The counts.
    pub counts: EndpointCounts,
}

impl RequestReader {
    /// Reads what is new.
    pub fn read(&mut self, requests: &AppRequests, now: Millis) -> RequestDelta {
        // The seconds first: a request that comes in between is then in the endpoints, and its
        // second is read next time.
        let seconds = self.read_seconds(requests, now.as_secs());
        let mut endpoints = Vec::new();
        let all = requests.all().into_iter().filter(|(.., endpoint)| !endpoint.is_excluded);
        for (route, method, endpoint) in all {
            let counts = endpoint.counts.lock();
            let key = (route, method);
            let known = self.endpoints.get(&key);
            if known.is_some_and(|known| known.requests() == counts.requests()) {
                continue;
            }
            let (new, counts) = (counts.since(known), counts.clone());
            let route = Some(key.0.clone()).filter(|route| route != UNMATCHED);
            endpoints.push(EndpointDelta { route, method, counts: new });
            self.endpoints.insert(key, counts);
        }
        RequestDelta { endpoints, seconds }
    }

    fn read_seconds(&mut self, requests: &AppRequests, now: i64) -> Vec<(i64, u64)> {
        let mut new = Vec::new();
        for slot in &requests.seconds {
            let packed = slot.load(Ordering::Relaxed);
            let (low, count) = (packed >> 32, packed & u64::from(u32::MAX));
            if count == 0 {
                continue;
            }
            // The second nearest to now with these low bits.
            let behind = (now.cast_unsigned() as u32).wrapping_sub(low as u32).cast_signed();
            let second = now - i64::from(behind);
            let known = self.seconds.insert(second, count).unwrap_or(0);
            if count > known {
                new.push((second, count - known));
            }
        }
        let kept = i64::try_from(SECONDS_KEPT).unwrap_or(i64::MAX);
        self.seconds.retain(|second, _| (now - second).abs() <= 2 * kept);
        new
    }
}

/// Counts a request when it ends; one that is dropped before was aborted by its client.
#[derive(Debug)]
pub(crate) struct RequestGuard<'a> {
    pub(crate) requests: &'a AppRequests,
    pub(crate) store: &'a store::Store,
    pub(crate) route: Option<&'a str>,
    pub(crate) method: &'a Method,
    pub(crate) started: tokio::time::Instant,
    pub(crate) trace_id: Option<u128>,
    pub(crate) ended: bool,
}

impl RequestGuard<'_> {
    /// Counts the answer; returns the time it took.
    pub(crate) fn answered(mut self, status: u16, is_refused: bool) -> Duration {
        let took = self.record(RequestEnd::Status(status), is_refused);
        self.ended = true;
        took
    }

    fn record(&self, end: RequestEnd, is_refused: bool) -> Duration {
        let (route, method, took) = (self.route, self.method, self.started.elapsed());
        let request =
            CountedRequest { route, method, end, is_refused, took, trace_id: self.trace_id };
        self.requests.record(&request, self.store.now());
        took
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.record(RequestEnd::Aborted, false);
        }
    }
}

/// A request that is forwarded to another program: counted when it ends, and when it is dropped before,
/// as aborted by its client.
#[derive(Debug)]
pub struct ForwardedRequest {
    requests: Arc<AppRequests>,
    store: store::Store,
    route: String,
    method: Method,
    started: tokio::time::Instant,
    trace_id: Option<u128>,
    ended: bool,
}

impl ForwardedRequest {
    /// Names the trace it belongs to, for an exemplar.
    pub fn set_trace(&mut self, context: Option<store::trace::TraceContext>) {
        self.trace_id = context.filter(|context| context.sampled).map(|context| context.trace_id);
    }

    /// Counts the answer; `is_refused` if the request was turned away and not forwarded.
    pub fn answered(mut self, status: u16, is_refused: bool) {
        self.record(RequestEnd::Status(status), is_refused);
        self.ended = true;
    }

    fn record(&self, end: RequestEnd, is_refused: bool) {
        let (route, method) = (Some(self.route.as_str()), &self.method);
        let (took, trace_id) = (self.started.elapsed(), self.trace_id);
        let request = CountedRequest { route, method, end, is_refused, took, trace_id };
        self.requests.record(&request, self.store.now());
    }
}

impl Drop for ForwardedRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.record(RequestEnd::Aborted, false);
        }
    }
}

/// Most templates of [`PathTemplates`].
const TEMPLATES_MAX: usize = 1_000;
/// Longest path that is looked at, in bytes; longer ones are one route.
const PATH_MAX: usize = 1_024;
/// Hex digits from which on a segment is an id.
const HEX_ID_DIGITS: usize = 16;

/// Templates for paths of programs whose routes are not known: the first one that matches. Without one,
/// numbers, UUIDs and long hex strings become `:id`.
///
/// ```
/// use tidegate_web::requests::PathTemplates;
///
/// let templates = PathTemplates::parse("/u/:name, /static/*").unwrap();
/// assert_eq!(templates.apply("/u/anna"), "/u/:name");
/// assert_eq!(templates.apply("/static/a/b.css"), "/static/*");
/// assert_eq!(templates.apply("/orders/17/lines"), "/orders/:id/lines");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathTemplates(Vec<String>);

impl PathTemplates {
    /// Parses templates separated by commas them: `:name` stands for one segment, `*` at the end for the
    /// rest.
    ///
    /// # Errors
    /// A template that does not start with `/`, has a brace or a space, or a `*` before its end; more
    /// than 1,000.
    pub fn parse(text: &str) -> Result<PathTemplates, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let mut templates = Vec::new();
        for item in items {
            let is_bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '{' | '}');
            if !item.starts_with('/') || item.contains(is_bad) || item.len() > 200 {
                return Err(format!("{item:?} is not a template; write /users/:id or /static/*"));
            }
            if item.strip_suffix("/*").unwrap_or(item).contains('*') {
                return Err(format!("{item:?}: a * stands at the end, as a segment of its own"));
            }
            templates.push(item.to_owned());
        }
        if templates.len() > TEMPLATES_MAX {
            return Err(format!("at most {TEMPLATES_MAX} templates"));
        }
        Ok(PathTemplates(templates))
    }

    /// Returns the template of a path.
    pub fn apply(&self, path: &str) -> String {
        if path.len() > PATH_MAX {
            return OTHER.to_owned();
        }
        if let Some(known) = self.0.iter().find(|template| matches_template(template, path)) {
            return known.clone();
        }
        let segments = path.split('/').map(|segment| if is_id(segment) { ":id" } else { segment });
        segments.collect::<Vec<_>>().join("/")
    }
}

fn matches_template(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (Some("*"), Some(_)) | (None, None) => return true,
            (Some(name), Some(segment)) if name.starts_with(':') && !segment.is_empty() => {}
            (Some(word), Some(segment)) if word == segment => {}
            _ => return false,
        }
    }
}

/// Returns true for a number, a UUID or a long hex string.
fn is_id(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let hex = segment.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_number = digits > 0 && digits == segment.len();
    let is_hex = hex >= HEX_ID_DIGITS && hex == segment.len() && digits > 0;
    let is_uuid = segment.len() == 36
        && hex == 32
        && segment
            .bytes()
            .enumerate()
            .all(|(at, byte)| (byte == b'-') == matches!(at, 8 | 13 | 18 | 23));
    is_number || is_hex || is_uuid
}

/// Methods are the client's to choose, so unknown ones share one word.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(route: Option<&str>, status: u16) -> CountedRequest<'_> {
        let took = Duration::from_millis(3);
        let end = RequestEnd::Status(status);
        let is_refused = status == 429;
        CountedRequest { route, method: &Method::GET, end, is_refused, took, trace_id: None }
    }

    #[test]
    fn each_reader_gets_every_request_once() {
        let requests = AppRequests::default();
        let mut readers = [(RequestReader::default(), 0), (RequestReader::default(), 0)];
        for round in 0..50_u16 {
            let now = Millis(1_790_000_000_000 + i64::from(round) * 700);
            for number in 0..round % 7 {
                requests.record(&request(Some("/a/{id}"), 200 + number * 100), now);
            }
            for (reader, seen) in &mut readers {
                let delta = reader.read(&requests, now);
                let count: u64 = delta.endpoints.iter().map(|one| one.counts.requests()).sum();
                let by_time: u64 =
                    delta.endpoints.iter().flat_map(|one| one.counts.times.iter()).sum();
                let by_second: u64 = delta.seconds.iter().map(|(_, count)| count).sum();
                assert_eq!((count, count), (by_time, by_second));
                *seen += count;
            }
        }
        for (_, seen) in readers {
            assert_eq!(seen, requests.sums().requests);
        }
    }

    #[test]
    fn ids_in_paths_become_one_template_unless_told_otherwise() {
        let none = PathTemplates::default();
        for (path, template) in [
            ("/", "/"),
            ("/users/17", "/users/:id"),
            ("/users/17/orders/9f86d081884c7d65", "/users/:id/orders/:id"),
            (
                "/files/3F2504E0-4F89-11D3-9A0C-0305E82C3301.pdf",
                "/files/3F2504E0-4F89-11D3-9A0C-0305E82C3301.pdf",
            ),
            ("/files/3F2504E0-4F89-11D3-9A0C-0305E82C3301", "/files/:id"),
            ("/cafe/decade/facade", "/cafe/decade/facade"),
            ("/v2/items", "/v2/items"),
            ("/feedfacefeedface", "/feedfacefeedface"),
            ("//7/", "//:id/"),
        ] {
            assert_eq!(none.apply(path), template);
        }
        let told = PathTemplates::parse("/users/:name,/users/17/*,/year/2026").unwrap();
        assert_eq!(told.apply("/users/17"), "/users/:name", "the first that matches");
        assert_eq!(told.apply("/users/17/a/b"), "/users/17/*");
        assert_eq!(told.apply("/year/2026"), "/year/2026");
        assert_eq!(told.apply("/users/"), "/users/");
        assert_eq!(none.apply(&"/a".repeat(600)), OTHER);
        for bad in ["users", "/a b", "/{id}", "/*/a", "/a*"] {
            assert!(PathTemplates::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invented_routes_and_methods_stay_within_the_bound() {
        let requests = AppRequests::default();
        let method = Method::from_bytes(b"BREW").unwrap();
        for number in 0..5_000 {
            let route = format!("/{number}");
            let one = CountedRequest { method: &method, ..request(Some(&route), 200) };
            requests.record(&one, Millis(0));
        }
        assert_eq!(requests.all().len(), ROUTES_MAX + 1);
        assert!(requests.all().iter().all(|(_, method, _)| *method == "OTHER"));
        assert_eq!(requests.sums().requests, 5_000);
    }

    #[test]
    fn probes_are_in_the_metrics_and_are_no_traffic() {
        let requests = AppRequests::default();
        requests.exclude(["/livez".to_owned()].into());
        requests.record(&request(Some("/livez"), 200), Millis(5_000));
        requests.record(&request(None, 404), Millis(5_000));
        let delta = RequestReader::default().read(&requests, Millis(6_000));
        assert_eq!((delta.endpoints.len(), &delta.endpoints[0].route), (1, &None));
        assert_eq!(delta.seconds, [(5, 1)]);
        let mut text = String::new();
        requests.write_metrics(&mut text, Exposition::Prometheus);
        for line in [
            "tidegate_http_requests_total{route=\"/livez\",method=\"GET\",status=\"200\"} 1",
            "tidegate_http_requests_total{route=\"unmatched\",method=\"GET\",status=\"404\"} 1",
            "tidegate_http_request_seconds_bucket{route=\"/livez\",le=\"0.0025\"} 0",
            "tidegate_http_request_seconds_bucket{route=\"/livez\",le=\"0.005\"} 1",
            "tidegate_http_request_seconds_count{route=\"unmatched\"} 1",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}\n{text}");
        }
        let traced = CountedRequest { trace_id: Some(0xab), ..request(Some("/livez"), 200) };
        requests.record(&traced, Millis(5_000));
        let (mut open, mut plain) = (String::new(), String::new());
        requests.write_metrics(&mut open, Exposition::OpenMetrics);
        requests.write_metrics(&mut plain, Exposition::Prometheus);
        let exemplar = format!("le=\"0.005\"}} 2 # {{trace_id=\"{:032x}\"}} 0.003\n", 0xab);
        assert!(open.contains(&exemplar), "{open}");
        assert!(!plain.contains("trace_id"), "{plain}");
        assert!(SECONDS.iter().all(|bound| {
            let bound = Duration::from_secs_f64(*bound);
            histogram::upper_edge(histogram::bucket(bound)) == Some(bound)
        }));
    }
}
