//! Numbers for Prometheus. Every crate reports through the `metrics` facade; this module is the
//! recorder behind it and writes `/metrics`. Labels come from closed sets (route templates, never
//! paths), so their number is bounded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::{Counter, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Bounds of the latency histograms, in seconds.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The recorder of this process, installed on first use. There is one per process by the nature of
/// the facade; when somebody else installed one first, ours stays empty and says so in the log.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics stays empty");
        }
        describe();
        handle
    })
}

fn describe() {
    metrics::describe_counter!("tidegate_http_requests_total", "Requests answered.");
    metrics::describe_histogram!("tidegate_http_request_seconds", "Time to the answer's head.");
    metrics::describe_gauge!("tidegate_http_connections", "Open connections.");
    metrics::describe_counter!("tidegate_http_connections_refused_total", "Connections refused.");
    metrics::describe_counter!("tidegate_panics_total", "Panics caught; each is a bug.");
    metrics::describe_gauge!("tidegate_sse_streams", "Open server-sent event streams.");
    metrics::describe_gauge!("tidegate_store_up", "1 while the store answers.");
    metrics::describe_counter!(
        "tidegate_resp_auth_failures_total",
        "Wrong passwords shown at the RESP port."
    );
    metrics::describe_gauge!("tidegate_uptime_seconds", "Seconds since start.");
    metrics::describe_gauge!("tidegate_resident_bytes", "Resident memory of the process.");
    metrics::describe_gauge!("tidegate_open_files", "Open file descriptors.");
}

thread_local! {
    /// The metrics this thread has counted before: finding a metric by its labels takes longer than
    /// counting. As many as there are routes, methods and statuses.
    static KNOWN: RefCell<HashMap<String, RouteMetrics>> = RefCell::default();
}

/// The metrics of a route.
struct RouteMetrics {
    seconds: Histogram,
    /// By method and status.
    requests: Vec<(&'static str, StatusCode, Counter)>,
}

pub(crate) fn answered(route: &str, method: &Method, status: StatusCode, took: Duration) {
    let method = method_word(method);
    KNOWN.with_borrow_mut(|known| {
        if !known.contains_key(route) {
            let seconds = histogram!("tidegate_http_request_seconds", "route" => route.to_owned());
            known.insert(route.to_owned(), RouteMetrics { seconds, requests: Vec::new() });
        }
        let Some(found) = known.get_mut(route) else { return };
        found.seconds.record(took.as_secs_f64());
        let same = |(m, s, _): &&(&'static str, StatusCode, Counter)| *m == method && *s == status;
        if let Some((.., counter)) = found.requests.iter().find(same) {
            return counter.increment(1);
        }
        let counter = counter!("tidegate_http_requests_total", "route" => route.to_owned(),
            "method" => method, "status" => status.as_str().to_owned());
        counter.increment(1);
        found.requests.push((method, status, counter));
    });
}

/// Methods are the client's to choose, so unknown ones share one label.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

pub(crate) fn panicked() {
    counter!("tidegate_panics_total").increment(1);
}

pub(crate) fn connections(open: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a count of sockets fits a float exactly")]
    gauge!("tidegate_http_connections").set(open as f64);
}

pub(crate) fn refused(why: &'static str) {
    counter!("tidegate_http_connections_refused_total", "why" => why).increment(1);
}

pub(crate) fn store_up(up: bool) {
    gauge!("tidegate_store_up").set(if up { 1.0 } else { 0.0 });
}
