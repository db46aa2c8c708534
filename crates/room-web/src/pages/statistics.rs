//! Statistics of a queue by hour and day, and their export.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use room::{Hour, Queue, QueueId, Room, StatsStep};
use serde::Deserialize;
use store::Millis;

use crate::api::HourView;
use crate::error::api_error;
use crate::service::RoomState;
use web::ApiError;
use web::extract::{Path, Query};
use web::format;
use web::icon::Icon;
use web::series::float;
use web::ui;

const HOUR_MS: i64 = 3_600_000;

/// Reads the step of a query; hours unless it says day.
pub(super) fn step_of(word: Option<&str>) -> StatsStep {
    match word {
        Some("day") => StatsStep::Day,
        _ => StatsStep::Hour,
    }
}

fn word(step: StatsStep) -> &'static str {
    match step {
        StatsStep::Hour => "hour",
        StatsStep::Day => "day",
    }
}

/// Length of a step, and how many of them a page shows: two days by hour, or all by day.
fn extent(step: StatsStep) -> (i64, i64) {
    match step {
        StatsStep::Hour => (HOUR_MS, 48),
        StatsStep::Day => (24 * HOUR_MS, room::HISTORY_DAYS),
    }
}

/// Reads the rows that a page shows.
async fn read(
    room: &Room,
    id: &QueueId,
    step: StatsStep,
    now: Millis,
) -> Result<Vec<Hour>, room::Error> {
    let (length, shown) = extent(step);
    room.stats_history(id, step, Millis(now.0 - length * shown), Millis(now.0 + 1)).await
}

/// Renders the tab.
pub(super) async fn tab(room: &Room, queue: &Queue, step: StatsStep) -> Markup {
    let id = &queue.id;
    let now = room.store().now();
    let rows = match read(room, id, step, now).await {
        Ok(rows) => rows,
        Err(error) => return html! { div.notice.bad role="alert" { (error) } },
    };
    let address = |other: StatsStep| format!("/room/{id}?view=statistics&step={}", word(other));
    let export =
        |kind: &str| format!("/room/{id}/statistics/export?step={}&format={kind}", word(step));
    let choices = html! {
        nav.ranges aria-label="Step" {
            @for (other, title) in [(StatsStep::Hour, "By hour"), (StatsStep::Day, "By day")] {
                a href=(address(other)) aria-current=[(other == step).then_some("true")] { (title) }
            }
        }
        span.actions.end {
            a.btn.s href=(export("csv")) download { (Icon::COPY) "CSV" }
            a.btn.s href=(export("json")) download { (Icon::COPY) "JSON" }
        }
    };
    let title = match step {
        StatsStep::Hour => "The last 48 hours",
        StatsStep::Day => "The last 31 days",
    };
    html! {
        div.toolbar { (choices) }
        (ui::card_flush("", title, &html! { span.small.dim { "in UTC" } }, &html! {
            @if rows.is_empty() {
                (ui::empty(Icon::CLOCK, "No numbers yet", "They appear as soon as somebody enqueues, and are kept for 31 days.", &html! {}))
            } @else {
                (bars(&rows, step, now))
                (table(&rows, step))
            }
        }))
    }
}

/// Draws enqueued and admitted visitors as pairs of bars, each at its time, the latest on the right.
fn bars(rows: &[Hour], step: StatsStep, now: Millis) -> Markup {
    let (length, shown) = extent(step);
    let latest = now.0.div_euclid(length);
    let first = latest - shown + 1;
    let slots: Vec<(i64, &Hour)> = rows
        .iter()
        .map(|row| (row.start.0.div_euclid(length) - first, row))
        .filter(|(slot, _)| (0..shown).contains(slot))
        .collect();
    let tick = |slot: i64| slot_label(Millis((first + slot) * length), step);
    let most = rows.iter().map(|row| row.counts.enqueued.max(row.counts.admitted)).max();
    let most = float(most.unwrap_or(0)).max(1.0);
    let height = |count: u64| float(count) / most * 100.0;
    let label = format!(
        "Enqueued and admitted per {}, up to {} at once",
        word(step),
        format::count(most as u64)
    );
    html! {
        div.count-bars.chart {
            ul.legend { li.c1 { "enqueued" } li.c2 { "admitted" } }
            div.plot-box {
                div.y aria-hidden="true" { span { (format::short(most)) } span { "0" } }
                svg viewBox=(format!("0 0 {} 100", shown * 10)) preserveAspectRatio="none" role="img" aria-label=(label) {
                    path.rule.base d=(format!("M0 100H{}", shown * 10)) {}
                    @for (slot, row) in slots {
                        @for (at, class, count) in [(1, "bar c1", row.counts.enqueued), (5, "bar c2", row.counts.admitted)] {
                            @let tall = height(count);
                            rect class=(class) x=(slot * 10 + at) y=(format!("{:.2}", 100.0 - tall)) width="4" height=(format!("{tall:.2}")) {
                                title { (label_of(row, step)) ": " (format::count(count)) @if class == "bar c1" { " enqueued" } @else { " admitted" } }
                            }
                        }
                    }
                }
                div.x aria-hidden="true" { span { (tick(0)) } span { (tick(shown / 2)) } span { (tick(shown - 1)) } }
            }
        }
    }
}

/// `2026-11-17 11:00`, or `2026-11-17`.
fn label_of(row: &Hour, step: StatsStep) -> String {
    slot_label(row.start, step)
}

fn slot_label(start: Millis, step: StatsStep) -> String {
    let time = format::rfc3339(start.0);
    let length = match step {
        StatsStep::Hour => 16,
        StatsStep::Day => 10,
    };
    time.chars().take(length).collect::<String>().replace('T', " ")
}

fn table(rows: &[Hour], step: StatsStep) -> Markup {
    let wait = |wait: Option<std::time::Duration>| wait.map_or("–".to_owned(), format::duration);
    html! {
        div.table-wrap tabindex="0" { table.table.cards.dense {
            thead { tr {
                th { @if step == StatsStep::Day { "Day" } @else { "Hour" } }
                th.r { "Enqueued" } th.r { "Admitted" } th.r { "Sessions" } th.r { "Completed" } th.r { "Expired" } th.r { "Cancelled" } th.r { "No-shows" } th.r { "Peak" } th.r { "Mean wait" } th.r { "p90" }
            } }
            tbody {
                @for row in rows.iter().rev() {
                    tr data-key=(row.hour) {
                        td.nowrap { b { (label_of(row, step)) } }
                        @for (name, count) in [
                            ("Enqueued", row.counts.enqueued), ("Admitted", row.counts.admitted), ("Sessions", row.counts.sessions_started),
                            ("Completed", row.counts.completed), ("Expired", row.counts.expired), ("Cancelled", row.counts.cancelled),
                            ("No-shows", row.counts.no_shows), ("Peak", row.peak_queue_size),
                        ] { td.r data-label=(name) { (format::count(count)) } }
                        td.r data-label="Mean wait" { (wait(row.average_wait)) }
                        td.r data-label="p90" { (wait(row.percentiles.map(|[_, p90, _]| p90))) }
                    }
                }
            }
        } }
    }
}

/// Query of the export.
#[derive(Debug, Deserialize)]
pub(crate) struct StatsExportQuery {
    step: Option<String>,
    format: Option<String>,
}

/// Serves all rows there are as a file.
pub(crate) async fn export(
    State(state): State<RoomState>,
    Path(id): Path<String>,
    Query(query): Query<StatsExportQuery>,
) -> Result<Response, ApiError> {
    let id = QueueId::parse(&id).map_err(|_| ApiError::not_found("queue not found"))?;
    let step = match query.step.as_deref() {
        None | Some("hour" | "day") => step_of(query.step.as_deref()),
        Some(_) => return Err(ApiError::invalid_field("step", "hour or day")),
    };
    let now = state.app.store().now();
    let rows = state
        .room
        .stats_history(&id, step, Millis(0), Millis(now.0 + 1))
        .await
        .map_err(api_error)?;
    let views: Vec<HourView> = rows.iter().map(HourView::of).collect();
    let (kind, ending, body) = match query.format.as_deref() {
        None | Some("csv") => ("text/csv; charset=utf-8", "csv", csv(&views)),
        Some("json") => {
            let json = serde_json::to_string_pretty(&views);
            ("application/json", "json", json.map_err(|error| ApiError::internal(&error))? + "\n")
        }
        Some(_) => return Err(ApiError::invalid_field("format", "csv or json")),
    };
    let name = format!("attachment; filename=\"{id}-by-{}.{ending}\"", word(step));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// Writes rows as CSV (RFC 4180): numbers and times only, so nothing needs quotes.
fn csv(rows: &[HourView]) -> String {
    let mut text = String::from(
        "started_at,enqueued,admitted,sessions_started,completed,expired,cancelled,no_shows,\
         sessions_expired,terminated,peak_queue_size,average_wait_ms,wait_p50_ms,wait_p90_ms,wait_p99_ms\r\n",
    );
    for row in rows {
        text.push_str(&row.cells().join(","));
        text.push_str("\r\n");
    }
    text
}
