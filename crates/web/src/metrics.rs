//! Numbers for Prometheus. Every crate counts and times through the `metrics` facade; this module is
//! the recorder behind it and writes `/metrics`.
//!
//! There are two kinds of numbers. Counters and histograms that a process keeps ([`MetricScope::Process`])
//! go through the facade, and the sum over all instances is the truth. Figures that are in the store
//! ([`MetricScope::Store`]) are read when somebody asks, at most once a second, by
//! [`RunningService::readings`](crate::service::RunningService::readings); every instance tells the
//! same. Both are declared in a table of [`MetricInfo`]; docs/metrics.md is written from these tables.
//!
//! Requests are not counted here: `requests.rs` has the one count of them, and writes its lines itself.
//!
//! Read in this order: this file, `recorder.rs` (where numbers are kept), `exposition.rs` (the text),
//! `reference.rs` (the page).

mod exposition;
mod recorder;
pub mod reference;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{counter, gauge};
use tokio::time::Instant;

use crate::app::App;
use crate::process;
use crate::series::float;
use crate::service::Services;

pub use self::exposition::Exposition;
pub use self::recorder::{LABEL_VALUES_MAX, MetricsRecorder};

/// Bounds of histograms of requests and calls, in seconds.
pub const REQUEST_SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Bounds of histograms of work that takes between milliseconds and an hour, in seconds.
pub const WORK_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];
/// Bounds of histograms of people who wait, in seconds.
pub const PATIENCE_SECONDS: &[f64] =
    &[1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0];

/// Time for which figures that were read from the store count.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time a service has to read its figures; without them the rest is written all the same.
const READ_DEADLINE: Duration = Duration::from_secs(3);

/// The declaration of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricInfo {
    /// Its name. That of a counter ends in `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// The place where it is kept.
    pub scope: MetricScope,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its description, one sentence.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets, by these upper bounds.
    Histogram(&'static [f64]),
}

/// The place where a metric is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricScope {
    /// In each process: the sum over all instances is the truth.
    Process,
    /// In the store: every instance tells the same.
    Store,
}

impl MetricInfo {
    const fn new(
        kind: MetricKind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricInfo {
        MetricInfo { name, kind, scope: MetricScope::Process, labels, help }
    }

    /// Declares a counter of each process.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricInfo {
        MetricInfo::new(MetricKind::Counter, name, labels, help)
    }

    /// Declares a gauge of each process.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricInfo {
        MetricInfo::new(MetricKind::Gauge, name, labels, help)
    }

    /// Declares a histogram of each process, by the upper bounds of its buckets.
    pub const fn histogram(
        name: &'static str,
        bounds: &'static [f64],
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricInfo {
        MetricInfo::new(MetricKind::Histogram(bounds), name, labels, help)
    }

    /// Makes it a metric of the store.
    #[must_use]
    pub const fn in_store(self) -> MetricInfo {
        MetricInfo { scope: MetricScope::Store, ..self }
    }
}

/// A number that was read when `/metrics` was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the metric.
    pub name: &'static str,
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

impl Reading {
    /// A reading without labels.
    pub fn new(name: &'static str, value: f64) -> Reading {
        Reading { name, labels: Vec::new(), value }
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Reading {
        self.labels.push((name, value.into()));
        self
    }
}

/// The metrics of the frame.
pub const FRAME: &[MetricInfo] = &[
    MetricInfo::counter(
        "tidegate_http_requests_total",
        &["route", "method", "status"],
        "Requests answered.",
    ),
    MetricInfo::counter(
        "tidegate_http_requests_aborted_total",
        &["route", "method"],
        "Requests whose client left before the answer.",
    ),
    MetricInfo::histogram(
        "tidegate_http_request_seconds",
        REQUEST_SECONDS,
        &["route"],
        "Time from a request to the head of its answer.",
    ),
    MetricInfo::gauge("tidegate_http_connections", &[], "Open connections."),
    MetricInfo::counter(
        "tidegate_http_connections_refused_total",
        &["why"],
        "Connections refused because of a limit.",
    ),
    MetricInfo::counter("tidegate_panics_total", &[], "Panics caught; each is a bug."),
    MetricInfo::counter(
        UNTRUSTED_FORWARDING,
        &[],
        "Requests with the header of trusted proxies that came from nobody who is trusted.",
    ),
    MetricInfo::counter(
        "tidegate_resp_auth_failures_total",
        &[],
        "Wrong passwords shown at the RESP listener.",
    ),
    MetricInfo::gauge("tidegate_build_info", &["version"], "Always 1; the label is the version."),
    MetricInfo::gauge("tidegate_uptime_seconds", &[], "Time since the start of the process."),
    MetricInfo::gauge("tidegate_resident_bytes", &[], "Resident memory of the process."),
    MetricInfo::gauge("tidegate_open_files", &[], "Open file descriptors of the process."),
    MetricInfo::counter(
        "tidegate_webhook_attempts_total",
        &["outcome"],
        "Attempts to send a webhook: `delivered`, `failed`, `refused`.",
    ),
    MetricInfo::counter(
        "tidegate_trace_spans_total",
        &["outcome"],
        "Spans: `exported`, `rejected` by the collector, `failed` because it could not be reached, \
         `dropped` because too many waited.",
    ),
    MetricInfo::gauge(
        "tidegate_trace_spans_waiting",
        &[],
        "Spans that wait for the collector, as of the latest round.",
    ),
    MetricInfo::gauge(
        "tidegate_leader",
        &["role"],
        "1 on the instance that leads a background role, 0 on the others.",
    ),
    MetricInfo::gauge(
        "tidegate_scrape_success",
        &["service"],
        "1 if the figures of a service could be read for this answer.",
    ),
];

/// Returns the tables of the frame and of all services.
pub fn tables(services: Services) -> impl Iterator<Item = &'static MetricInfo> {
    FRAME.iter().chain(services.iter().flat_map(|service| service.metrics()))
}

/// The recorder of this process, installed on first use. There is one per process by the nature of
/// the facade; when somebody else installed one first, ours stays empty and says so in the log.
pub fn recorder() -> &'static MetricsRecorder {
    static RECORDER: OnceLock<&'static MetricsRecorder> = OnceLock::new();
    RECORDER.get_or_init(|| {
        // It lives as long as the process.
        let recorder: &'static MetricsRecorder = Box::leak(Box::default());
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics stays empty");
        }
        recorder
    })
}

/// Installs the recorder, and declares the metrics of the frame and of services. What is counted
/// before is lost, so this comes before the store is opened.
pub fn install(services: Services) {
    recorder().declare(tables(services));
}

/// The figures that were read last, and when.
#[derive(Debug, Default)]
pub(crate) struct ReadingCache(tokio::sync::Mutex<Option<(Instant, Arc<Vec<Reading>>)>>);

/// Reads the figures of the frame and of all services, at most once in [`READ_EVERY`].
pub(crate) async fn read(app: &App) -> Arc<Vec<Reading>> {
    // Held while the store is asked, so that of many at once only one asks.
    let mut cache = app.reading_cache().0.lock().await;
    if let Some((at, readings)) = cache.as_ref()
        && at.elapsed() < READ_EVERY
    {
        return Arc::clone(readings);
    }
    let mut readings = vec![
        Reading::new("tidegate_build_info", 1.0).label("version", env!("CARGO_PKG_VERSION")),
        Reading::new("tidegate_uptime_seconds", app.uptime().as_secs_f64()),
        Reading::new("tidegate_leader", f64::from(u8::from(app.webhooks().leads())))
            .label("role", "webhooks"),
    ];
    let resident = process::resident_bytes().map(float);
    let files = process::open_files().map(|files| float(files as u64));
    readings.extend(resident.map(|bytes| Reading::new("tidegate_resident_bytes", bytes)));
    readings.extend(files.map(|files| Reading::new("tidegate_open_files", files)));
    let reads = app.services().iter().map(async |open| {
        open.running.update_metrics();
        let read = tokio::time::timeout(READ_DEADLINE, open.running.readings(app)).await;
        (open.service.name(), read.unwrap_or_else(|_| Err("it took too long".to_owned())))
    });
    for (name, read) in futures_util::future::join_all(reads).await {
        let success = Reading::new("tidegate_scrape_success", f64::from(u8::from(read.is_ok())));
        readings.push(success.label("service", name));
        match read {
            Ok(read) => readings.extend(read),
            Err(reason) => tracing::warn!(service = name, reason, "figures not read for /metrics"),
        }
    }
    let readings = Arc::new(readings);
    *cache = Some((Instant::now(), Arc::clone(&readings)));
    readings
}

/// Name of the counter of requests whose word about the client did not count.
pub const UNTRUSTED_FORWARDING: &str = "tidegate_http_untrusted_forwarding_total";

pub(crate) fn panicked() {
    counter!("tidegate_panics_total").increment(1);
}

/// A request had the header of trusted proxies, and came from nobody who is trusted.
pub(crate) fn untrusted_forwarding() {
    counter!(UNTRUSTED_FORWARDING).increment(1);
}

pub(crate) fn connections(open: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a count of sockets fits a float exactly")]
    gauge!("tidegate_http_connections").set(open as f64);
}

pub(crate) fn refused(why: &'static str) {
    counter!("tidegate_http_connections_refused_total", "why" => why).increment(1);
}
