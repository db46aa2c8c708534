//! Schedules: jobs that run again and again.

use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{NewJob, ScheduleView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::admin::{Done, done};
use super::lists::Page;
use super::view::{JobBody, NewJobBody};
use super::{InSchedule, queue};
use crate::app::App;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, Path, Query};
use crate::section::Section;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        viewer: OpenApiRouter::new().routes(routes!(schedules)).routes(routes!(preview)),
        operator: OpenApiRouter::new()
            .routes(routes!(put_schedule, delete_schedule))
            .routes(routes!(pause_schedule))
            .routes(routes!(resume_schedule)),
        ..Section::default()
    }
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
struct ScheduleRow {
    /// Its job.
    job: JobBody,
    /// When it comes next, in milliseconds since 1970.
    next_ms: i64,
    /// Does it let its occurrences pass by?
    paused: bool,
}

impl From<ScheduleView> for ScheduleRow {
    fn from(view: ScheduleView) -> ScheduleRow {
        ScheduleRow { job: view.job.into(), next_ms: view.next.0, paused: view.paused }
    }
}

/// Schedules.
#[derive(Debug, Serialize, ToSchema)]
struct Schedules {
    /// The next to come first.
    schedules: Vec<ScheduleRow>,
}

/// Jobs that run again and again, the next to come first.
#[utoipa::path(get, path = "/api/v1/jobs/schedules", tag = "jobs", params(Page),
    responses((status = 200, description = "A part of the list.", body = Schedules)))]
async fn schedules(
    State(app): State<App>,
    Query(page): Query<Page>,
) -> Result<Json<Schedules>, ApiError> {
    let found = queue(&app)?.schedules(page.from(), page.most()).await?;
    Ok(Json(Schedules { schedules: found.into_iter().map(ScheduleRow::from).collect() }))
}

/// Store a schedule, or change the one of this id. The body is a job with `cron`.
#[utoipa::path(put, path = "/api/v1/jobs/schedules/{id}", tag = "jobs", request_body = NewJobBody,
    params(("id" = String, Path, description = "Id of the schedule.")),
    responses((status = 200, description = "Stored.", body = Done),
        (status = 409, description = "A job of this id is no schedule.", body = ErrorBody)))]
async fn put_schedule(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(body): Json<NewJobBody>,
) -> Result<impl IntoResponse, ApiError> {
    let id = jobs::JobId::parse(id)?;
    let stored = queue(&app)?.schedule(NewJob::try_from(body)?.id(id.clone())).await?;
    let outcome = if stored.new { "stored" } else { "changed" };
    Ok(done("schedule.put", &id, outcome))
}

/// Stop a schedule for good. What it has in line or running goes on.
#[utoipa::path(delete, path = "/api/v1/jobs/schedules/{id}", tag = "jobs",
    params(InSchedule),
    responses((status = 200, description = "Gone.", body = Done)))]
async fn delete_schedule(
    State(app): State<App>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.unschedule(&id).await?;
    Ok(done("schedule.delete", &id, "removed"))
}

/// Let a schedule pass its occurrences by until it is resumed.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/pause", tag = "jobs",
    params(InSchedule),
    responses((status = 200, description = "Paused.", body = Done)))]
async fn pause_schedule(
    State(app): State<App>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.pause_schedule(&id).await?;
    Ok(done("schedule.pause", &id, "paused"))
}

/// Let a paused schedule run again, from its next occurrence on.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/resume", tag = "jobs",
    params(InSchedule),
    responses((status = 200, description = "Resumed.", body = Done)))]
async fn resume_schedule(
    State(app): State<App>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.resume_schedule(&id).await?;
    Ok(done("schedule.resume", &id, "resumed"))
}

/// An expression to try.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct PreviewQuery {
    /// The cron expression.
    cron: String,
    /// The IANA time zone it is read in; UTC if left out.
    timezone: Option<String>,
    /// How many occurrences to give; 5 if left out, 100 at most.
    count: Option<usize>,
}

/// What a schedule would do.
#[derive(Debug, Serialize, ToSchema)]
struct PreviewView {
    /// The next occurrences, in milliseconds since 1970.
    next_ms: Vec<i64>,
}

/// When a cron expression comes due next, without storing anything.
#[utoipa::path(get, path = "/api/v1/jobs/preview", tag = "jobs", params(PreviewQuery),
    operation_id = "preview_schedule",
    responses((status = 200, description = "The next occurrences.", body = PreviewView)))]
async fn preview(
    State(app): State<App>,
    Query(query): Query<PreviewQuery>,
) -> Result<Json<PreviewView>, ApiError> {
    let count = query.count.unwrap_or(5);
    let preview = queue(&app)?.preview(&query.cron, query.timezone.as_deref(), count)?;
    Ok(Json(PreviewView { next_ms: preview.next }))
}
