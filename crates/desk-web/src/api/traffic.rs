//! Traffic: totals, endpoints, history, a live stream, reset. Programs that report their own traffic
//! are in modules of their own.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use bytes::Bytes;
use desk::traffic::{EndpointTraffic, Traffic, TrafficSnapshot, apps};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use web::audit::Note;
use web::extract::{Json, Query};
use web::page::{Page, PageQuery};
use web::sse::{self, Sse};
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::{ScopeCheck, TrafficScope, parse_app};
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Reconnect delay of a client that lost the stream.
const RETRY: Duration = Duration::from_secs(2);
/// Interval between events of the stream.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// Whole seconds whose counts may still be on their way to the store.
const SETTLED_AFTER_SECONDS: i64 = 2;

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        any_role: OpenApiRouter::new()
            .routes(routes!(get))
            .routes(routes!(endpoints))
            .routes(routes!(history))
            .routes(routes!(list_apps))
            .routes(routes!(stream)),
        operator: OpenApiRouter::new().routes(routes!(reset)),
        ..Routes::default()
    }
}

/// Selects the app.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AppQuery {
    /// Name of the app; this program if left out.
    app: Option<String>,
}

/// Open connections.
#[derive(Debug, Serialize, ToSchema)]
struct ConnectionCounts {
    /// Open now, over all live instances.
    current: u64,
    /// Most since the first of the live instances started.
    max_since_startup: u64,
}

/// Numbers of requests.
#[derive(Debug, Serialize, ToSchema)]
struct RequestCounts {
    /// All requests: accepted, refused, and those that are in the total alone.
    total: u64,
    /// Requests that reached a handler.
    accepted: u64,
    /// Requests turned away by a limit, a credential check, a size limit or a drain.
    refused: u64,
    /// Requests that another program added to `ha:requests:total` alone; 0 where Tidegate counts.
    total_only: u64,
    /// Answers with status 429.
    limited: u64,
    /// Requests whose client disconnected.
    aborted: u64,
    /// Answers with a status of 200 to 299.
    succeeded: u64,
    /// Answers with a status of 300 to 399.
    redirected: u64,
    /// Answers with a status of 400 to 499.
    client_errors: u64,
    /// Answers with a status of 500 or above.
    server_errors: u64,
    /// Requests that another program counted without an outcome; 0 where Tidegate counts.
    without_outcome: u64,
    /// Requests per second over the last ten whole seconds.
    per_second: u64,
    /// Most requests in one whole second.
    max_per_second: u64,
}

/// Traffic of an app over all of its instances.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Traffic)]
struct TrafficView {
    /// Time of the answer.
    read_at: Timestamp,
    /// Name of the app; null for this program.
    #[schema(required)]
    app: Option<String>,
    /// Connections.
    connections: ConnectionCounts,
    /// Requests. Succeeded, redirected, client errors, server errors, aborted and those without an outcome add up
    /// to the total.
    requests: RequestCounts,
    /// Answers with a status of 400 or above.
    errors: u64,
    /// Instances that are alive.
    instances: Vec<TrafficInstance>,
}

/// An instance that is alive.
#[derive(Debug, Serialize, ToSchema)]
struct TrafficInstance {
    /// Its id, new with each start.
    id: String,
    /// Its open connections.
    connections: u64,
    /// Time until which it counts unless it reports again.
    expires_at: Timestamp,
}

async fn read(
    state: &DeskState,
    app: Option<&str>,
    traffic: &Traffic,
) -> Result<TrafficView, desk::Error> {
    let seen = traffic.snapshot().await?;
    let instances = traffic.instances().await?.into_iter().map(|one| TrafficInstance {
        id: one.id,
        connections: one.connections,
        expires_at: one.until.into(),
    });
    Ok(TrafficView { instances: instances.collect(), ..view(state, app, &seen) })
}

fn view(state: &DeskState, app: Option<&str>, seen: &TrafficSnapshot) -> TrafficView {
    let [succeeded, redirected, client_errors, server_errors] = seen.by_class;
    TrafficView {
        read_at: state.app.store().now().into(),
        app: app.map(str::to_owned),
        connections: ConnectionCounts {
            current: seen.connections,
            max_since_startup: seen.connections_max,
        },
        requests: RequestCounts {
            total: seen.total,
            accepted: seen.accepted,
            refused: seen.refused,
            total_only: seen.total_only,
            limited: seen.limited,
            aborted: seen.aborted,
            succeeded,
            redirected,
            client_errors,
            server_errors,
            without_outcome: seen.without_outcome,
            per_second: seen.speed_per_second,
            max_per_second: seen.max_speed_per_second,
        },
        errors: seen.errors,
        instances: Vec::new(),
    }
}

/// Get the traffic of an app over all of its instances.
#[utoipa::path(get, path = "/api/v1/metrics", tag = "desk", operation_id = "get_traffic", params(AppQuery),
    responses((status = 200, description = "The numbers.", body = TrafficView)))]
async fn get(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Query(query): Query<AppQuery>,
) -> Result<Json<TrafficView>, DeskApiError> {
    let traffic = state.desk.traffic_of(parse_app(query.app.as_deref())?.as_ref());
    Ok(Json(read(&state, query.app.as_deref(), &traffic).await?))
}

/// An app whose traffic is kept.
#[derive(Debug, Serialize, ToSchema)]
struct TrafficApp {
    /// Its name.
    name: String,
}

/// List the apps whose traffic is kept beside this program's own.
#[utoipa::path(get, path = "/api/v1/metrics/apps", tag = "desk", operation_id = "list_traffic_apps",
    params(PageQuery),
    responses((status = 200, description = "A page of apps.", body = Page<TrafficApp>)))]
async fn list_apps(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TrafficApp>>, DeskApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = apps(&state.desk.store, &state.desk.prefix).await?;
    let names = found.iter().skip(offset).take(limit);
    let items = names.map(|name| TrafficApp { name: name.to_string() }).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// Order of endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndpointOrder {
    /// Most requests first.
    #[default]
    Requests,
    /// Most errors first.
    Errors,
    /// Slowest first, by the 99th percentile.
    P99,
}

impl EndpointOrder {
    /// Sorts endpoints.
    pub(crate) fn sort(self, endpoints: &mut [EndpointTraffic]) {
        endpoints.sort_by(|a, b| {
            let by_key = match self {
                EndpointOrder::Requests => b.requests.cmp(&a.requests),
                EndpointOrder::Errors => b.errors.cmp(&a.errors),
                EndpointOrder::P99 => b.p99.cmp(&a.p99),
            };
            by_key.then_with(|| a.endpoint.cmp(&b.endpoint))
        });
    }
}

/// Selects and sorts endpoints.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EndpointsQuery {
    /// Name of the app; this program if left out.
    app: Option<String>,
    /// Order; `requests` if left out.
    #[param(inline)]
    sort: Option<EndpointOrder>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    cursor: Option<String>,
}

/// Traffic of one endpoint.
#[derive(Debug, Serialize, ToSchema)]
struct EndpointStats {
    /// The endpoint: method and route template, `UNMATCHED` or `OTHER`.
    endpoint: String,
    /// Requests.
    requests: u64,
    /// Answers with a status of 400 or above.
    errors: u64,
    /// Share of errors in percent.
    error_percent: f64,
    /// Response time that half of the requests were below, within 10 %.
    #[schema(required)]
    p50_ms: Option<u64>,
    /// The same for 90 %.
    #[schema(required)]
    p90_ms: Option<u64>,
    /// The same for 99 %.
    #[schema(required)]
    p99_ms: Option<u64>,
}

/// List endpoints with their requests, errors and response times.
#[utoipa::path(get, path = "/api/v1/metrics/endpoints", tag = "desk", operation_id = "list_endpoints",
    params(EndpointsQuery),
    responses((status = 200, description = "A page of endpoints.", body = Page<EndpointStats>)))]
async fn endpoints(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Query(query): Query<EndpointsQuery>,
) -> Result<Json<Page<EndpointStats>>, DeskApiError> {
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (offset, limit) = (page.offset()?, page.limit()?);
    let traffic = state.desk.traffic_of(parse_app(query.app.as_deref())?.as_ref());
    let mut found = traffic.endpoints().await?;
    query.sort.unwrap_or_default().sort(&mut found);
    let ms = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 1e3).round() as u64);
    let items = found.iter().skip(offset).take(limit).map(|one| EndpointStats {
        endpoint: one.endpoint.to_string(),
        requests: one.requests,
        errors: one.errors,
        error_percent: error_percent(one),
        p50_ms: ms(one.p50),
        p90_ms: ms(one.p90),
        p99_ms: ms(one.p99),
    });
    Ok(Json(Page::at(offset, limit, items.collect())))
}

/// The share of errors of an endpoint in percent, with two digits.
pub(crate) fn error_percent(one: &EndpointTraffic) -> f64 {
    if one.requests == 0 {
        return 0.0;
    }
    (one.errors as f64 / one.requests as f64 * 10_000.0).round() / 100.0
}

/// Step of a history.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
enum HistoryStep {
    /// Each second of the last ten minutes.
    #[default]
    #[serde(rename = "1s")]
    Second,
    /// Ten seconds each, of the last two hours.
    #[serde(rename = "10s")]
    TenSeconds,
    /// Each minute of the last two days.
    #[serde(rename = "1m")]
    Minute,
    /// Each hour of the last 90 days.
    #[serde(rename = "1h")]
    Hour,
}

/// Selects a history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Name of the app; this program if left out.
    app: Option<String>,
    /// Step: `1s`, `10s`, `1m` or `1h`; `1s` if left out.
    #[param(inline)]
    step: Option<HistoryStep>,
}

/// Requests over time.
#[derive(Debug, Serialize, ToSchema)]
struct TrafficHistory {
    /// Start of the first step.
    started_at: Timestamp,
    /// Length of a step.
    step_seconds: i64,
    /// Requests in each step, oldest first.
    requests: Vec<i64>,
}

/// Get requests over time: by second for ten minutes, by ten seconds for two hours, by minute for two days, by
/// hour for 90 days.
#[utoipa::path(get, path = "/api/v1/metrics/history", tag = "desk", operation_id = "get_traffic_history",
    params(HistoryQuery),
    responses((status = 200, description = "The numbers.", body = TrafficHistory)))]
async fn history(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<TrafficHistory>, DeskApiError> {
    let traffic = state.desk.traffic_of(parse_app(query.app.as_deref())?.as_ref());
    let now = state.app.store().now().as_secs() - SETTLED_AFTER_SECONDS;
    let (first, step_seconds, requests) = match query.step.unwrap_or_default() {
        HistoryStep::Second => (now - 599, 1, traffic.seconds(now - 599, now).await?),
        HistoryStep::TenSeconds => {
            let last = now - now.rem_euclid(10) - 1;
            let recent = sum_by(10, &traffic.seconds(last - 599, last).await?);
            let before = long_ago(&state, query.app.as_deref(), last - 599, 10, 660).await?;
            (last - 7_199, 10, [before, recent].concat())
        }
        HistoryStep::Minute => {
            let last = now.div_euclid(60);
            ((last - 2_879) * 60, 60, traffic.minutes(last - 2_879, last).await?)
        }
        HistoryStep::Hour => {
            let first = (now.div_euclid(3_600) - 47) * 60;
            let recent = sum_by(60, &traffic.minutes(first, first + 2_879).await?);
            let before = long_ago(&state, query.app.as_deref(), first * 60, 3_600, 2_112).await?;
            ((first * 60) - 2_112 * 3_600, 3_600, [before, recent].concat())
        }
    };
    let started_at = Timestamp(store::Millis(first * 1_000));
    Ok(Json(TrafficHistory { started_at, step_seconds, requests }))
}

/// Requests of so many steps before a second, from the product's history, which keeps what the counters of
/// single seconds and minutes no longer have.
async fn long_ago(
    state: &DeskState,
    app: Option<&str>,
    end: i64,
    step: i64,
    count: i64,
) -> Result<Vec<i64>, DeskApiError> {
    let series = match app {
        None => "desk.requests".to_owned(),
        Some(app) => format!("desk.app.{app}.requests"),
    };
    let first = end - count * step;
    let (from, to) = (store::Millis(first * 1_000), store::Millis(end * 1_000));
    let wanted = Duration::from_secs(step.unsigned_abs());
    let history = state.app.series().history();
    let range =
        history.read(&[series.as_str()], from, to, Some(wanted)).await.map_err(ApiError::from)?;
    let mut requests = vec![0; usize::try_from(count).unwrap_or(0)];
    if range.step != wanted {
        return Ok(requests);
    }
    for (index, value) in range.lines.iter().flatten().enumerate() {
        let at = range.from.as_secs() + i64::try_from(index).unwrap_or(0) * step;
        let place = usize::try_from((at - first).div_euclid(step)).ok();
        let (Some(rate), Some(slot)) = (value, place.and_then(|place| requests.get_mut(place)))
        else {
            continue;
        };
        // The history keeps requests per second.
        *slot = (rate * step as f64).round() as i64;
    }
    Ok(requests)
}

fn sum_by(count: usize, numbers: &[i64]) -> Vec<i64> {
    numbers.chunks(count).map(|part| part.iter().sum()).collect()
}

/// Follow the traffic of an app: one event each second with the numbers of `GET /api/v1/metrics`.
#[utoipa::path(get, path = "/api/v1/metrics/stream", tag = "desk", operation_id = "follow_traffic",
    params(AppQuery),
    responses((status = 200, description = "Events `traffic` with the numbers.",
        content_type = "text/event-stream", body = String)))]
async fn stream(
    State(state): State<DeskState>,
    _: ScopeCheck<TrafficScope>,
    Query(query): Query<AppQuery>,
) -> Result<impl IntoResponse, DeskApiError> {
    let traffic = state.desk.traffic_of(parse_app(query.app.as_deref())?.as_ref());
    let app = state.app.clone();
    let follower = TrafficFollower { state, traffic, app: query.app, is_first: true };
    Ok(Sse::following(&app, RETRY, futures_util::stream::unfold(follower, TrafficFollower::next)))
}

struct TrafficFollower {
    state: DeskState,
    traffic: Traffic,
    app: Option<String>,
    is_first: bool,
}

impl TrafficFollower {
    async fn next(mut self) -> Option<(Bytes, TrafficFollower)> {
        if !std::mem::take(&mut self.is_first) {
            tokio::time::sleep(EVENT_INTERVAL).await;
        }
        let seen = match read(&self.state, self.app.as_deref(), &self.traffic).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::debug!(%error, "traffic not read; the client comes back");
                return None;
            }
        };
        let data = serde_json::to_string(&seen).ok()?;
        Some((sse::event("traffic", None, &data), self))
    }
}

/// The traffic to delete: of one app, or all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "app": "shop" }))]
struct TrafficReset {
    /// Name of the app.
    app: Option<String>,
    /// True for this program and every app.
    all: Option<bool>,
}

/// The outcome of a reset.
#[derive(Debug, Serialize, ToSchema)]
struct TrafficResetResult {
    /// Number of apps whose traffic was deleted, this program included.
    apps: usize,
}

/// Delete the traffic of an app, or all of it; limits, users and sessions stay.
#[utoipa::path(post, path = "/api/v1/metrics/reset", tag = "desk", operation_id = "reset_traffic",
    request_body = TrafficReset,
    responses((status = 200, description = "Deleted.", body = TrafficResetResult)))]
async fn reset(
    State(state): State<DeskState>,
    Json(body): Json<TrafficReset>,
) -> Result<impl IntoResponse, DeskApiError> {
    let (targets, what) = match (body.app.as_deref(), body.all) {
        (Some(app), None | Some(false)) => {
            let name = parse_app(Some(app))?;
            if name.is_none() {
                return Err(
                    ApiError::invalid_field("app", "name an app, or set all to true").into()
                );
            }
            (vec![state.desk.traffic_of(name.as_ref())], app.to_owned())
        }
        (None, Some(true)) => {
            let mut targets = vec![state.desk.traffic.clone()];
            for app in apps(&state.desk.store, &state.desk.prefix).await? {
                targets.push(state.desk.traffic_of(Some(&app)));
            }
            (targets, "all".to_owned())
        }
        _ => {
            let message = "name an app, or say {\"all\": true}";
            return Err(ApiError::invalid_field("app", message).into());
        }
    };
    for target in &targets {
        target.reset().await?;
    }
    let note = Note::new("traffic.reset", what);
    Ok((Extension(note), Json(TrafficResetResult { apps: targets.len() })))
}
