//! Traces to a collector, by OTLP over HTTP, when `otel.endpoint` is set.
//!
//! Spans are made all over the workspace (`store::trace`) and meet here: [`SpanQueue`] is the
//! exporter of this process. Invariants: taking a span never waits for the collector; the queue is
//! bounded, and what does not fit is dropped and counted; a batch is tried a few times and then given
//! up, so a collector that is gone costs nothing but its spans.
//!
//! The encoding is ours (`encode.rs`, a page of code for the one message that is sent), because the
//! crates of OpenTelemetry would bring ten for it; ARCHITECTURE.md has the reasons.
//!
//! Read in this order: this file (queue and task), `settings.rs` (kinds of settings), `encode.rs`.

mod encode;
mod settings;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use metrics::{counter, gauge};
use parking_lot::Mutex;
use store::trace::{SpanExporter, SpanRecord, set_exporter};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::OtelSettings;
use crate::doctor::Finding;
use crate::outbound::{self, OutboundError};
use crate::webhook::address::TargetUrl;

pub use self::settings::{CollectorHeaders, CollectorUrl, OtlpProtocol, SampleRatio, ServiceLabel};

/// Most spans that wait for the collector; a few hundred bytes each, 16 kB at the very most.
pub const QUEUE_MAX: usize = 4_096;
/// Most spans in one request, and spans that are sent without waiting for the next round.
const BATCH_MAX: usize = 512;
/// Time between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// Time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before a batch is sent again; after the last one it is given up.
const RETRY_DELAYS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Time for what is left when the process ends.
const LAST_ROUND: Duration = Duration::from_secs(3);

/// The spans of this process that wait for the collector.
#[derive(Debug)]
struct SpanQueue {
    spans: Mutex<VecDeque<SpanRecord>>,
    /// Wakes the task: there is a batch.
    batch: Notify,
    ratio: SampleRatio,
}

impl SpanQueue {
    fn new(ratio: SampleRatio) -> SpanQueue {
        SpanQueue { spans: Mutex::default(), batch: Notify::new(), ratio }
    }

    /// Takes the oldest spans, at most a batch.
    fn take(&self) -> Vec<SpanRecord> {
        let mut spans = self.spans.lock();
        let count = spans.len().min(BATCH_MAX);
        let batch = spans.drain(..count).collect();
        count_waiting(spans.len());
        batch
    }
}

/// The queue as the exporter of the process.
struct QueueExporter(Arc<SpanQueue>);

impl SpanExporter for QueueExporter {
    fn samples(&self, trace_id: u128) -> bool {
        self.0.ratio.samples(trace_id)
    }

    fn export(&self, span: SpanRecord) {
        let mut spans = self.0.spans.lock();
        if spans.len() >= QUEUE_MAX {
            drop(spans);
            count_spans("dropped", 1);
            return;
        }
        spans.push_back(span);
        let count = spans.len();
        drop(spans);
        if count == BATCH_MAX {
            self.0.batch.notify_one();
        }
    }
}

fn count_spans(outcome: &'static str, count: usize) {
    counter!("tidegate_trace_spans_total", "outcome" => outcome).increment(count as u64);
}

fn count_waiting(count: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a bounded count fits a float exactly")]
    gauge!("tidegate_trace_spans_waiting").set(count as f64);
}

/// The export of traces, running.
#[derive(Debug)]
pub struct TraceExport {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Starts the export of traces if a collector is set, as the exporter of this process. `instance` is
/// its name, `program` the part of it that runs here. Must be called on a runtime.
pub fn start(
    settings: &OtelSettings,
    instance: &str,
    program: &'static str,
) -> Option<TraceExport> {
    let collector = Collector::new(settings, instance, program)?;
    let queue = Arc::new(SpanQueue::new(settings.sample_ratio));
    if !set_exporter(Box::new(QueueExporter(Arc::clone(&queue)))) {
        return None;
    }
    tracing::info!(collector = %collector.url.origin(), "traces are exported");
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(collector, queue, stop.clone()));
    Some(TraceExport { stop, task })
}

impl TraceExport {
    /// Sends what is left, as far as a few seconds allow, and ends.
    pub async fn finish(self) {
        self.stop.cancel();
        // It has a deadline of its own.
        let _ = self.task.await;
    }
}

async fn run(collector: Collector, queue: Arc<SpanQueue>, stop: CancellationToken) {
    let mut reach = Reach::Unknown;
    // Cancelled a while after `stop`: nothing is sent any more, whatever was under way.
    let ended = CancellationToken::new();
    let sending = async {
        loop {
            tokio::select! {
                () = queue.batch.notified() => {}
                () = tokio::time::sleep(ROUND) => {}
                () = stop.cancelled() => {}
            }
            let last = stop.is_cancelled();
            loop {
                let batch = queue.take();
                if batch.is_empty() {
                    break;
                }
                let count = batch.len();
                let delivered = tokio::select! {
                    biased;
                    () = ended.cancelled() => Err(ExportError::later("the process ends")),
                    delivered = collector.deliver(&batch, &stop) => delivered,
                };
                reach = reach.note(&collector, delivered.as_ref().err());
                match delivered {
                    Ok(rejected) => {
                        count_spans("rejected", rejected.min(count));
                        count_spans("exported", count.saturating_sub(rejected));
                    }
                    Err(_) => count_spans("failed", count),
                }
            }
            if last {
                break;
            }
        }
    };
    let ending = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_ROUND).await;
        ended.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = sending => {}
        () = ending => {}
    }
}

/// The state of the collector as the log has it: told when it changes, not for each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Unknown,
    Good,
    Bad,
}

impl Reach {
    fn note(self, collector: &Collector, error: Option<&ExportError>) -> Reach {
        match (self, error) {
            (Reach::Bad, Some(_)) => {}
            (_, Some(error)) => {
                let collector = collector.url.origin();
                tracing::warn!(
                    collector,
                    error = error.message,
                    "spans are being dropped; logged once"
                );
            }
            (Reach::Bad, None) => {
                tracing::info!(
                    collector = collector.url.origin(),
                    "the collector takes spans again"
                );
            }
            (Reach::Unknown | Reach::Good, None) => {}
        }
        if error.is_some() { Reach::Bad } else { Reach::Good }
    }
}

/// The reason why a batch was not taken.
#[derive(Debug)]
struct ExportError {
    message: String,
    /// Sending it again may help, after this long if the collector says so.
    retry: Option<Option<Duration>>,
}

impl ExportError {
    fn later(message: impl Into<String>) -> ExportError {
        ExportError { message: message.into(), retry: Some(None) }
    }
}

/// The collector, and what every request to it has in common.
#[derive(Debug)]
struct Collector {
    url: TargetUrl,
    headers: CollectorHeaders,
    protocol: OtlpProtocol,
    resource: Vec<(&'static str, String)>,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

impl Collector {
    fn new(settings: &OtelSettings, instance: &str, program: &'static str) -> Option<Collector> {
        let url = settings.endpoint.0.as_deref()?;
        let resource = vec![
            ("service.name", settings.service_name.0.clone()),
            ("service.instance.id", format!("{instance}/{program}")),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        Some(Collector {
            // It was checked when it was read.
            url: TargetUrl::parse(url, &anywhere()).ok()?,
            headers: settings.headers.clone(),
            protocol: settings.protocol,
            resource,
            tls: OnceLock::new(),
        })
    }

    /// Sends a batch, again if that may help. Returns how many spans the collector did not want.
    async fn deliver(
        &self,
        batch: &[SpanRecord],
        stop: &CancellationToken,
    ) -> Result<usize, ExportError> {
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let error = match self.send(batch).await {
                Ok(rejected) => return Ok(rejected),
                Err(error) => error,
            };
            let (Some(asked), Some(delay)) = (error.retry, delays.next()) else {
                return Err(error);
            };
            let delay = asked.unwrap_or(delay).min(Duration::from_secs(30));
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // Once more, right now, and that is it.
                () = stop.cancelled() => return self.send(batch).await,
            }
        }
    }

    async fn send(&self, batch: &[SpanRecord]) -> Result<usize, ExportError> {
        let body = self.protocol.encode(&self.resource, batch);
        match tokio::time::timeout(REQUEST_TIMEOUT, self.post(body)).await {
            Ok(answer) => answer,
            Err(_) => Err(ExportError::later("no answer in time")),
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<usize, ExportError> {
        let later = ExportError::later;
        let mut request = Request::post(self.url.path())
            .header(header::HOST, self.url.authority())
            .header(header::CONTENT_TYPE, self.protocol.content_type())
            .header(header::USER_AGENT, concat!("Tidegate/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close");
        for (name, value) in &self.headers.0 {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| ExportError { message: error.to_string(), retry: None })?;
        let addresses = self.url.resolve(&anywhere()).await.map_err(|error| match error {
            OutboundError::Failed(reason) | OutboundError::Refused(reason) => later(reason),
        })?;
        let tls = match self.url.is_https() {
            true => Some((self.url.host(), self.tls()?)),
            false => None,
        };
        let answer = outbound::send(&addresses, tls, request).await.map_err(later)?;
        match answer.status {
            status if status.is_success() => Ok(self.protocol.rejected(&answer.body)),
            // The ones that OTLP names as worth another try.
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => {
                Err(ExportError { message: status.to_string(), retry: Some(answer.retry_after) })
            }
            status => {
                let text = String::from_utf8_lossy(&answer.body);
                let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
                Err(ExportError { message: format!("{status} {text}"), retry: None })
            }
        }
    }

    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, ExportError> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let config = crate::serve::tls::client(None)
            .map_err(|error| ExportError::later(crate::error::chain(&error)))?;
        Ok(Arc::clone(self.tls.get_or_init(|| Arc::new(config))))
    }
}

/// The collector is named by whoever runs the server, and is mostly on this machine.
fn anywhere() -> [IpNet; 2] {
    [
        Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(),
        Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into(),
    ]
}

/// Asks the collector to take a request without spans. `None` if there is no collector.
pub async fn check(settings: &OtelSettings) -> Option<Finding> {
    let collector = Collector::new(settings, "doctor", "doctor")?;
    let shown = collector.url.origin();
    Some(match collector.send(&[]).await {
        Ok(_) => Finding::good("traces", format!("{shown} takes spans")),
        Err(error) => Finding::bad(
            "traces",
            format!("{shown}: {}", error.message),
            "start the collector, or check otel.endpoint, otel.protocol and otel.headers",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use store::trace::{SpanKind, TraceContext};
    use tokio::time::Instant;

    use super::*;

    fn span() -> SpanRecord {
        SpanRecord {
            name: Cow::Borrowed("one"),
            kind: SpanKind::Internal,
            context: TraceContext::random(),
            parent: None,
            link: None,
            start: Duration::from_secs(1),
            end: Duration::from_secs(2),
            attributes: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn the_queue_is_bounded_and_gives_batches() {
        let queue = Arc::new(SpanQueue::new(SampleRatio::ALL));
        let exporter = QueueExporter(Arc::clone(&queue));
        for _ in 0..QUEUE_MAX + 1_000 {
            exporter.export(span());
        }
        assert_eq!(queue.spans.lock().len(), QUEUE_MAX);
        let batches: Vec<usize> = std::iter::from_fn(|| Some(queue.take().len()))
            .take_while(|count| *count > 0)
            .collect();
        assert_eq!(batches, [BATCH_MAX; QUEUE_MAX / BATCH_MAX]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_silent_collector_only_so_long() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = OtelSettings {
            endpoint: CollectorUrl(Some(format!("http://{}", silent.local_addr().unwrap()))),
            protocol: OtlpProtocol::Protobuf,
            headers: CollectorHeaders(Vec::new()),
            service_name: ServiceLabel("test".to_owned()),
            sample_ratio: SampleRatio::ALL,
        };
        // In the middle of a request, between two, and before the first.
        for running in [2_000, 6_500, 0] {
            let collector = Collector::new(&settings, "one", "test").unwrap();
            let queue = Arc::new(SpanQueue::new(SampleRatio::ALL));
            let exporter = QueueExporter(Arc::clone(&queue));
            for _ in 0..3 * BATCH_MAX {
                exporter.export(span());
            }
            let stop = CancellationToken::new();
            let task = tokio::spawn(run(collector, queue, stop.clone()));
            tokio::time::sleep(Duration::from_millis(running)).await;
            let stopped = Instant::now();
            stop.cancel();
            task.await.unwrap();
            let taken = stopped.elapsed();
            assert!(taken <= LAST_ROUND + Duration::from_millis(100), "{running}: {taken:?}");
        }
    }
}
