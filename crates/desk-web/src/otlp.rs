//! Traffic that other programs report with OpenTelemetry: `POST /v1/metrics` (protobuf or JSON) and
//! `MetricsService/Export` over gRPC, on the HTTP port.
//!
//! Three metrics count: `http.server.request.duration` in seconds, the older `http.server.duration` in
//! milliseconds, and `http.server.active_requests`. `service.name` is the app, `service.instance.id` the
//! instance. Everything else is told in `partial_success` and is no error. Invariant: a program that
//! sends both durations, as during a migration, is counted once.
//!
//! Read [`Export`] (what is made of a request), then `message.rs` (its encoding).

mod message;

use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use desk::traffic::ReportedRequests;
use desk::{AppName, InstanceId};
use prost::Message;
use utoipa_axum::{router::OpenApiRouter, routes};
use web::auth::require::{Need, identify_if_any};
use web::client::{self, Client, Peer};
use web::grpc::{self, GrpcMessage};
use web::{ApiError, Routes, extract};

use self::message::{
    AnyValue, ExponentialPoint, ExportMetricsRequest, ExportMetricsResponse, HistogramPoint,
    KeyValue, Metric, PartialSuccess, ResourceMetrics,
};
use crate::api::require_scope;
use crate::config::OtlpAccess;
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Path of the method over gRPC.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Most data points of one export.
const POINTS_MAX: usize = 200_000;
/// Most different resources, instances of programs, in one export.
const RESOURCES_MAX: usize = 1_000;
/// Most names of metrics in the message of `partial_success`.
const NAMES_TOLD: usize = 10;
/// The app of programs that do not say their name, as the specification spells it.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// The routes. They are public because a program on the same machine needs no credential.
pub(crate) fn routes() -> Routes<DeskState> {
    let public = OpenApiRouter::new().routes(routes!(export_http));
    let grpc: OpenApiRouter<DeskState> = Router::new().route(GRPC_PATH, post(export_grpc)).into();
    Routes { public: public.merge(grpc), ..Routes::default() }
}

/// The one who calls, as far as OTLP asks.
struct Caller {
    client: Client,
    peer: Peer,
    headers: HeaderMap,
}

impl Caller {
    fn of(request: &Request, state: &DeskState) -> Caller {
        let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
        let client = Client::of(peer, request.headers(), &state.app.settings());
        Caller { client, peer, headers: request.headers().clone() }
    }

    /// Returns true for a program on this machine. A request that came through a proxy is from
    /// elsewhere, whether or not the proxy is trusted to say from where.
    fn is_local(&self) -> bool {
        self.peer.addr.ip().to_canonical().is_loopback()
            && self.client.ip.is_loopback()
            && !self.headers.keys().any(client::is_forwarding_header)
            && !self.headers.contains_key(header::VIA)
    }
}

/// Checks that a caller may report traffic.
async fn authorize(state: &DeskState, caller: &Caller) -> Result<(), ApiError> {
    let access = **state.desk.otlp.load();
    if access == OtlpAccess::Off {
        let message = "OTLP is switched off here; desk.otlp switches it on";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "OTLP_OFF", message).refusing());
    }
    let post = axum::http::Method::POST;
    match identify_if_any(&state.app, &caller.headers, &post, Need::Worker).await? {
        Some(principal) => require_scope(&principal, "traffic"),
        None if access == OtlpAccess::Open => Ok(()),
        None if access == OtlpAccess::Local && caller.is_local() => Ok(()),
        None => Err(ApiError::unauthorized(
            "from another machine this needs a worker's token with scope traffic: set \
             OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token>",
        )
        .refusing()),
    }
}

/// Encoding of a body over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEncoding {
    Protobuf,
    Json,
}

impl BodyEncoding {
    fn of(headers: &HeaderMap) -> Result<BodyEncoding, ApiError> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        match kind.to_ascii_lowercase().as_str() {
            "application/x-protobuf" => Ok(BodyEncoding::Protobuf),
            "application/json" => Ok(BodyEncoding::Json),
            _ => Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UNSUPPORTED_MEDIA_TYPE",
                "send the body as application/x-protobuf or application/json",
            )),
        }
    }

    fn read(self, content: &[u8]) -> Result<ExportMetricsRequest, ApiError> {
        match self {
            BodyEncoding::Protobuf => ExportMetricsRequest::decode(content).map_err(|error| {
                ApiError::invalid(format!("this is not an ExportMetricsServiceRequest: {error}"))
            }),
            BodyEncoding::Json => extract::read_json(content),
        }
    }

    fn write(self, response: &ExportMetricsResponse) -> Result<Response, ApiError> {
        Ok(match self {
            BodyEncoding::Protobuf => {
                let kind = [(header::CONTENT_TYPE, "application/x-protobuf")];
                (kind, response.encode_to_vec()).into_response()
            }
            BodyEncoding::Json => extract::Json(response).into_response(),
        })
    }
}

/// Report traffic with OpenTelemetry (OTLP/HTTP).
///
/// Takes an `ExportMetricsServiceRequest` as protobuf or JSON, with gzip or without. The durations of HTTP
/// servers and their active requests are counted under `service.name`; other metrics are reported in
/// `partialSuccess`. A program on the same machine needs no credential, unless `desk.otlp` says so.
#[utoipa::path(post, path = "/v1/metrics", tag = "desk", operation_id = "export_otlp_metrics",
    request_body(content((serde_json::Value = "application/json"), (Vec<u8> = "application/x-protobuf"))),
    responses((status = 200, description = "Counted; `partialSuccess` reports what was not.", body = serde_json::Value),
        (status = 401, description = "A token is needed.", body = web::error::ErrorBody),
        (status = 403, description = "The token's role or scope is not enough.", body = web::error::ErrorBody),
        (status = 404, description = "OTLP is switched off.", body = web::error::ErrorBody)))]
async fn export_http(
    State(state): State<DeskState>,
    request: Request,
) -> Result<Response, DeskApiError> {
    let caller = Caller::of(&request, &state);
    authorize(&state, &caller).await?;
    let encoding = BodyEncoding::of(&caller.headers)?;
    let body = extract::read(request.into_body()).await?;
    let coding = caller.headers.get(header::CONTENT_ENCODING).map(|coding| coding.as_bytes());
    let content = match coding {
        None | Some(b"identity") => body,
        Some(b"gzip") => extract::gunzip(&body)?,
        Some(_) => {
            let message = "the body may be compressed with gzip, or not at all";
            let error = ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UNSUPPORTED_MEDIA_TYPE",
                message,
            );
            return Err(error.into());
        }
    };
    let response = take_in(&state, encoding.read(&content)?).await?;
    Ok(encoding.write(&response)?)
}

async fn export_grpc(
    State(state): State<DeskState>,
    request: Request,
) -> Result<Response, DeskApiError> {
    let caller = Caller::of(&request, &state);
    authorize(&state, &caller).await?;
    let GrpcMessage(message) = GrpcMessage::from_request(request, &state).await?;
    let request = BodyEncoding::Protobuf.read(&message)?;
    Ok(grpc::reply(&take_in(&state, request).await?.encode_to_vec()))
}

/// Counts what a request reports.
async fn take_in(
    state: &DeskState,
    request: ExportMetricsRequest,
) -> Result<ExportMetricsResponse, DeskApiError> {
    if request.resource_metrics.len() > RESOURCES_MAX {
        let message = format!("at most {RESOURCES_MAX} resources in one export");
        return Err(ApiError::invalid(message).into());
    }
    let mut rejected = Rejections::default();
    let mut exports = Vec::with_capacity(request.resource_metrics.len());
    let mut points = 0;
    for resource in &request.resource_metrics {
        let export = Export::of(resource, &mut rejected);
        points += export.requests.len();
        if points > POINTS_MAX {
            let message = format!("at most {POINTS_MAX} data points in one export");
            return Err(ApiError::invalid(message).into());
        }
        exports.push(export);
    }
    for export in exports.iter().filter(|export| !export.is_empty()) {
        let traffic = state.desk.reported(&export.app).await?;
        if !export.requests.is_empty() {
            traffic.report(&export.instance, &export.requests).await?;
        }
        if let Some(active) = export.active {
            traffic.report_connections(&export.instance, active).await?;
        }
    }
    Ok(ExportMetricsResponse { partial_success: rejected.told() })
}

/// Data points that were not counted.
#[derive(Debug, Default)]
struct Rejections {
    points: i64,
    /// Names of their metrics, the first few.
    names: Vec<String>,
}

impl Rejections {
    fn add(&mut self, name: &str, points: usize) {
        self.points = self.points.saturating_add(i64::try_from(points).unwrap_or(i64::MAX));
        if self.names.len() < NAMES_TOLD && !self.names.iter().any(|known| known == name) {
            self.names.push(name.chars().take(100).collect());
        }
    }

    fn told(self) -> Option<PartialSuccess> {
        (self.points > 0).then(|| PartialSuccess {
            rejected_data_points: self.points,
            error_message: format!(
                "only the durations and active requests of HTTP servers are counted; not {}",
                self.names.join(", ")
            ),
        })
    }
}

/// The traffic that one instance of a program reports.
#[derive(Debug)]
struct Export {
    app: AppName,
    instance: InstanceId,
    requests: Vec<ReportedRequests>,
    active: Option<u64>,
}

impl Export {
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.active.is_none()
    }

    fn of(resource: &ResourceMetrics, rejected: &mut Rejections) -> Export {
        let attributes = resource.resource.as_ref().map(|one| one.attributes.as_slice());
        let attributes = attributes.unwrap_or_default();
        let (app, instance) = names_of(attributes);
        let mut export = Export { app, instance, requests: Vec::new(), active: None };
        let metrics = || resource.scope_metrics.iter().flat_map(|scope| &scope.metrics);
        // During a migration a program sends both; the older one counts only by itself.
        let is_new = metrics().any(|metric| metric.name == "http.server.request.duration");
        for metric in metrics() {
            let name = metric.name.as_str();
            let was_read = match name {
                "http.server.request.duration" => export.read_durations(metric, 1.0),
                "http.server.duration" if is_new => true,
                "http.server.duration" => export.read_durations(metric, 0.001),
                "http.server.active_requests" => export.read_active(metric),
                _ => false,
            };
            if !was_read {
                rejected.add(name, metric.points());
            }
        }
        export
    }

    /// Reads durations in units of so many seconds; false if they are of another kind.
    fn read_durations(&mut self, metric: &Metric, unit: f64) -> bool {
        if let Some(histogram) = &metric.histogram {
            let Some(is_delta) = is_delta(histogram.aggregation_temporality) else { return false };
            for point in histogram.data_points.iter().filter(|point| point.is_recorded()) {
                let times = explicit_times(point, unit);
                self.add(
                    &point.attributes,
                    point.count,
                    times,
                    start(is_delta, point.start_time_unix_nano),
                );
            }
            return true;
        }
        let Some(histogram) = &metric.exponential_histogram else { return false };
        let Some(is_delta) = is_delta(histogram.aggregation_temporality) else { return false };
        for point in histogram.data_points.iter().filter(|point| point.is_recorded()) {
            let times = exponential_times(point, unit);
            self.add(
                &point.attributes,
                point.count,
                times,
                start(is_delta, point.start_time_unix_nano),
            );
        }
        true
    }

    fn add(
        &mut self,
        attributes: &[KeyValue],
        count: u64,
        times: Vec<(Duration, u64)>,
        since_start: Option<u64>,
    ) {
        let find = |names: [&str; 2]| {
            names
                .iter()
                .find_map(|name| attributes.iter().find(|one| one.key == *name)?.value.as_ref())
        };
        let text = |names: [&str; 2]| find(names).and_then(AnyValue::text);
        let status =
            find(["http.response.status_code", "http.status_code"]).and_then(AnyValue::integer);
        let status = status.and_then(|status| u16::try_from(status).ok());
        let status = status.filter(|status| (100..=599).contains(status));
        // Without a status nothing was answered; where there is no error either, all that is known is
        // that the request was served.
        let failed = attributes.iter().any(|one| one.key == "error.type");
        let fallback = if failed { 500 } else { 200 };
        self.requests.push(ReportedRequests {
            method: text(["http.request.method", "http.method"]).unwrap_or("OTHER").to_owned(),
            route: text(["http.route", "http.route"]).map(with_slash),
            status: status.unwrap_or(fallback),
            requests: count,
            times,
            since_start,
        });
    }

    /// Reads the number of requests under way; false if it is of another kind.
    fn read_active(&mut self, metric: &Metric) -> bool {
        let Some(sum) = &metric.sum else { return false };
        if is_delta(sum.aggregation_temporality) != Some(false) {
            return false;
        }
        let active: f64 = sum.data_points.iter().map(|point| point.number()).sum();
        // A cast of what is out of range saturates.
        self.active = Some(self.active.unwrap_or(0).saturating_add(active.max(0.0) as u64));
        true
    }
}

/// Frameworks spell routes with a slash in front or without.
fn with_slash(route: &str) -> String {
    if route.starts_with('/') { route.to_owned() } else { format!("/{route}") }
}

/// The start of counts since then; none of counts since the last report.
fn start(is_delta: bool, start_nanos: u64) -> Option<u64> {
    (!is_delta).then_some(start_nanos)
}

/// `AggregationTemporality`: 1 is delta, 2 cumulative; others mean nothing.
fn is_delta(temporality: i32) -> Option<bool> {
    match temporality {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    }
}

/// App and instance of a resource. A program that does not name its instance is known by its process.
fn names_of(attributes: &[KeyValue]) -> (AppName, InstanceId) {
    let find = |name: &str| {
        let value = attributes.iter().find(|one| one.key == name)?.value.as_ref()?;
        value.text().map(str::to_owned).or_else(|| value.integer().map(|number| number.to_string()))
    };
    let app = find("service.name").unwrap_or_default();
    let instance = find("service.instance.id").filter(|id| !id.is_empty()).unwrap_or_else(|| {
        let parts = ["host.name", "process.pid"].into_iter().filter_map(&find);
        parts.collect::<Vec<_>>().join("-")
    });
    let app =
        AppName::parse(&plain(&app, AppName::MAX)).or_else(|_| AppName::parse(UNKNOWN_SERVICE));
    let instance = InstanceId::parse(&plain(&instance, InstanceId::MAX));
    let instance = instance.or_else(|_| InstanceId::parse("otlp"));
    #[expect(clippy::expect_used, reason = "constants of the alphabet")]
    (app.expect("a valid name"), instance.expect("a valid id"))
}

/// A name in the alphabet of apps and instances.
fn plain(text: &str, most: usize) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.chars().map(|c| if is_plain(c) { c } else { '-' }).take(most).collect()
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::MAX)
}

/// The times of a histogram: each bucket stands for the geometric middle of its bounds, and where all
/// are in one bucket, their mean does.
fn explicit_times(point: &HistogramPoint, unit: f64) -> Vec<(Duration, u64)> {
    let mean = point.sum.filter(|_| point.count > 0).map(|sum| sum / point.count as f64);
    let filled = point.bucket_counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let filled: Vec<(usize, u64)> = filled.map(|(index, count)| (index, *count)).collect();
    if let (Some(mean), 0 | 1) = (mean, filled.len()) {
        return vec![(seconds(mean * unit), point.count)];
    }
    let bound =
        |index: Option<usize>| index.and_then(|index| point.explicit_bounds.get(index)).copied();
    let times = filled.into_iter().map(|(index, count)| {
        let (below, above) = (bound(index.checked_sub(1)), bound(Some(index)));
        let middle = match (below.filter(|below| *below > 0.0), above) {
            (Some(below), Some(above)) => (below * above).sqrt(),
            (None, Some(above)) => above / 2.0,
            (Some(below), None) => point.max.map_or(below, |max| (below * max.max(below)).sqrt()),
            (None, None) => mean.unwrap_or(0.0),
        };
        (seconds(middle * unit), count)
    });
    times.collect()
}

/// The times of an exponential histogram, whose bucket `i` reaches from `base^i` to `base^(i + 1)`.
fn exponential_times(point: &ExponentialPoint, unit: f64) -> Vec<(Duration, u64)> {
    let mut times = vec![(Duration::ZERO, point.zero_count)];
    // A scale outside of this makes all buckets one, or finer than any clock.
    let scale = point.scale.clamp(-10, 20);
    let exponent = 2.0_f64.powi(-scale);
    for (index, count) in point.positive.iter().flat_map(|all| all.bucket_counts.iter().enumerate())
    {
        let offset = point.positive.as_ref().map_or(0, |all| all.offset);
        let index = f64::from(offset) + index as f64;
        times.push((seconds(((index + 0.5) * exponent).exp2() * unit), *count));
    }
    times.retain(|(_, count)| *count > 0);
    times
}

#[cfg(test)]
mod tests;
