//! The history over HTTP: what charts are drawn from, for the dashboard and for programs.

use std::time::Duration;

use axum::extract::State;
use axum::middleware::from_fn;
use serde::{Deserialize, Serialize};
use store::Millis;
use store::history::{RESOLUTIONS, SeriesKind};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::compress;
use crate::error::ApiError;
use crate::extract::{Json, Query};
use crate::page::{Page, PageQuery};
use crate::routes::Routes;
use crate::time::Timestamp;

/// Most series of one answer.
const SERIES_MAX: usize = 64;
/// Range that is read when the caller does not say.
const SPAN_DEFAULT: Duration = Duration::from_secs(900);

/// The series and the range to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Names of series, separated by commas; at most 64. A series of durations takes a percentile:
    /// `http.latency:p99`, in milliseconds.
    #[param(max_length = 10000, example = "http.requests,http.latency:p99")]
    series: String,
    /// Beginning of the range. Left out: `span_seconds` before its end.
    from: Option<Timestamp>,
    /// End of the range. Left out: now.
    to: Option<Timestamp>,
    /// Length of the range, in place of `from`.
    #[param(minimum = 1, maximum = 7776000, default = 900)]
    span_seconds: Option<u64>,
    /// Seconds from one sample to the next. Rounded up to what is kept for so long: 1 s for 10 minutes, 10 s for
    /// 2 hours, 1 min for 2 days, 1 h for 90 days. Left out: as fits the range.
    #[param(minimum = 1, maximum = 7776000)]
    step: Option<u64>,
}

/// Samples of some series at the same moments.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = History, example = json!({
    "first_at": "2026-11-17T09:30:00.000Z", "now_at": "2026-11-17T09:45:00.000Z", "step_seconds": 10,
    "lines": [{ "series": "room.waiting", "values": [12.0, null, 14.5] }]
}))]
struct HistoryView {
    /// Beginning of the first step.
    first_at: Timestamp,
    /// The time on the store's clock.
    now_at: Timestamp,
    /// Seconds from one sample to the next.
    step_seconds: u64,
    /// One line for each series, in the order they were asked for.
    lines: Vec<HistoryLineView>,
}

/// Samples of one series.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HistoryLine)]
struct HistoryLineView {
    /// Its name, as it was asked for.
    series: String,
    /// One value for each step, oldest first; null where there is none, which is not the same as 0.
    values: Vec<Option<f64>>,
}

/// Get the history of series, as the charts of the dashboard show it.
#[utoipa::path(get, path = "/api/v1/history", tag = "health", operation_id = "read_history", params(HistoryQuery),
    responses((status = 200, description = "The samples.", body = HistoryView)))]
async fn read(
    State(app): State<App>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryView>, ApiError> {
    let names: Vec<&str> = query.series.split(',').filter(|name| !name.is_empty()).collect();
    if names.is_empty() || names.len() > SERIES_MAX {
        return Err(ApiError::invalid_field("series", "name 1 to 64 series, separated by commas"));
    }
    let now = app.store().now();
    let to = query.to.map_or(now, |to| to.0);
    let from = match (query.from, query.span_seconds) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_field(
                "span_seconds",
                "give from or span_seconds, not both",
            ));
        }
        (Some(from), None) => from.0,
        (None, span) => to - span.map_or(SPAN_DEFAULT, Duration::from_secs),
    };
    check_range(from, to, now)?;
    if query.step == Some(0) {
        return Err(ApiError::invalid_field("step", "a step is at least 1 second"));
    }
    let step = query.step.map(Duration::from_secs);
    let range = app.series().history().read(&names, from, to, step).await?;
    let lines = names
        .into_iter()
        .zip(range.lines)
        .map(|(name, values)| HistoryLineView {
            series: name.to_owned(),
            values: values.into_iter().map(|value| value.map(shorten)).collect(),
        })
        .collect();
    Ok(Json(HistoryView {
        first_at: range.from.into(),
        now_at: now.into(),
        step_seconds: range.step.as_secs(),
        lines,
    }))
}

/// Refuses a range that cannot be meant.
fn check_range(from: Millis, to: Millis, now: Millis) -> Result<(), ApiError> {
    let kept = RESOLUTIONS.last().map_or(Duration::ZERO, store::history::Resolution::retention);
    if from > to {
        return Err(ApiError::invalid_field("from", "the range ends before it begins"));
    }
    if now.since(from) > kept + Duration::from_secs(24 * 3_600)
        || to.since(now) > Duration::from_secs(24 * 3_600)
    {
        return Err(ApiError::invalid_field(
            "from",
            "the history goes back 90 days, and not beyond today",
        ));
    }
    Ok(())
}

/// Three digits after the point are more than a chart shows.
fn shorten(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// The rule by which samples are put together over longer steps and several instances.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SeriesRule {
    /// The mean over time.
    Gauge,
    /// The highest over time.
    Peak,
    /// A count in the store, read per second.
    Total,
    /// A count of each instance, read per second, added up.
    Rate,
    /// A value of each instance, added up.
    Level,
    /// Durations, of which percentiles are read.
    Histogram,
}

/// A series of the history.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Series, example = json!({ "name": "room.waiting", "kind": "gauge" }))]
struct SeriesView {
    /// Its name.
    name: String,
    /// The rule by which its samples are put together.
    kind: SeriesRule,
}

/// List the series that have a history.
#[utoipa::path(get, path = "/api/v1/history/series", tag = "health", operation_id = "list_series", params(PageQuery),
    responses((status = 200, description = "The series, by name.", body = Page<SeriesView>)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<SeriesView>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    let series = app.series().history().series().await?;
    let view = |series: store::history::SeriesInfo| SeriesView {
        name: series.name,
        kind: match series.kind {
            SeriesKind::Gauge => SeriesRule::Gauge,
            SeriesKind::Peak => SeriesRule::Peak,
            SeriesKind::Total => SeriesRule::Total,
            SeriesKind::Rate => SeriesRule::Rate,
            SeriesKind::Level => SeriesRule::Level,
            SeriesKind::Histogram => SeriesRule::Histogram,
        },
    };
    let items = series.into_iter().skip(offset).take(limit).map(view).collect();
    Ok(Json(Page::at(offset, limit, items)))
}

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(read))
            .layer(from_fn(compress::handle))
            .routes(routes!(list)),
        ..Routes::default()
    }
}
