//! Schedules: jobs that run again and again.

use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{NewJob, ScheduleView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::InSchedule;
use super::admin::{ActionOutcome, ActionReply, done};
use super::new_id;
use super::view::{IdempotencyKey, JobBody, NewJobBody};
use crate::error::JobsApiError;
use crate::service::JobsState;
use web::Routes;
use web::error::{ApiError, ErrorBody};
use web::extract::{Json, Path, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;

/// Most occurrences in one preview.
const PREVIEW_MAX: usize = 100;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(schedules)).routes(routes!(preview)),
        operator: OpenApiRouter::new()
            .routes(routes!(put_schedule, delete_schedule))
            .routes(routes!(pause_schedule))
            .routes(routes!(resume_schedule)),
        ..Routes::default()
    }
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
struct ScheduleRow {
    /// Its job.
    job: JobBody,
    /// Time of its next occurrence.
    next_at: Timestamp,
    /// Does it let its occurrences pass by?
    paused: bool,
}

impl From<ScheduleView> for ScheduleRow {
    fn from(view: ScheduleView) -> ScheduleRow {
        ScheduleRow { job: view.job.into(), next_at: view.next.into(), paused: view.paused }
    }
}

/// List the schedules, the next to come due first.
#[utoipa::path(get, path = "/api/v1/jobs/schedules", tag = "jobs", params(PageQuery),
    operation_id = "list_schedules",
    responses((status = 200, description = "A page of schedules.", body = Page<ScheduleRow>)))]
async fn schedules(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ScheduleRow>>, JobsApiError> {
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = state.jobs.schedules(offset, limit).await?;
    Ok(Json(Page::at(offset, limit, found.into_iter().map(ScheduleRow::from).collect())))
}

/// Store a schedule, or change the one of this id. The body is a job with `cron`. The call is safe
/// to repeat; with an `Idempotency-Key` another request under the same key is refused.
#[utoipa::path(put, path = "/api/v1/jobs/schedules/{id}", tag = "jobs", operation_id = "put_schedule", request_body = NewJobBody,
    params(("id" = String, Path, description = "Id of the schedule."), IdempotencyKey),
    responses((status = 200, description = "Stored.", body = ActionReply),
        (status = 409, description = "A job of this id is no schedule, or the idempotency key was \
            used for another request.", body = ErrorBody)))]
async fn put_schedule(
    State(state): State<JobsState>,
    Path(id): Path<String>,
    key: IdempotencyKey,
    Json(mut body): Json<NewJobBody>,
) -> Result<impl IntoResponse, JobsApiError> {
    if let Some(key) = key.key {
        body.use_key(key)?;
    }
    let id = new_id(id)?;
    let stored = state.jobs.schedule(NewJob::try_from(body)?.id(id.clone())).await?;
    let outcome = if stored.new { ActionOutcome::Stored } else { ActionOutcome::Changed };
    Ok(done("schedule.put", &id, outcome))
}

/// Stop a schedule for good. What it has in line or running goes on.
#[utoipa::path(delete, path = "/api/v1/jobs/schedules/{id}", tag = "jobs", operation_id = "delete_schedule",
    params(InSchedule),
    responses((status = 200, description = "Gone.", body = ActionReply)))]
async fn delete_schedule(
    State(state): State<JobsState>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.unschedule(&id).await?;
    Ok(done("schedule.delete", &id, ActionOutcome::Removed))
}

/// Let a schedule pass its occurrences by until it is resumed.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/pause", tag = "jobs", operation_id = "pause_schedule",
    params(InSchedule),
    responses((status = 200, description = "Paused.", body = ActionReply)))]
async fn pause_schedule(
    State(state): State<JobsState>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.pause_schedule(&id).await?;
    Ok(done("schedule.pause", &id, ActionOutcome::Paused))
}

/// Let a paused schedule run again, from its next occurrence on.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/resume", tag = "jobs", operation_id = "resume_schedule",
    params(InSchedule),
    responses((status = 200, description = "Resumed.", body = ActionReply)))]
async fn resume_schedule(
    State(state): State<JobsState>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.resume_schedule(&id).await?;
    Ok(done("schedule.resume", &id, ActionOutcome::Resumed))
}

/// An expression to try.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewQuery {
    /// The cron expression.
    cron: String,
    /// The IANA time zone it is read in; UTC if left out.
    timezone: Option<String>,
    /// Number of occurrences to return: 5 if left out, 100 at most.
    #[param(minimum = 1, maximum = 100, default = 5)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: now.
    cursor: Option<String>,
}

/// Preview the next occurrences of a cron expression without storing anything.
#[utoipa::path(get, path = "/api/v1/jobs/preview", tag = "jobs", params(PreviewQuery),
    operation_id = "preview_schedule",
    responses((status = 200, description = "A page of occurrences.", body = Page<Timestamp>)))]
async fn preview(
    State(state): State<JobsState>,
    Query(query): Query<PreviewQuery>,
) -> Result<Json<Page<Timestamp>>, JobsApiError> {
    let limit = match query.limit.unwrap_or(5) {
        limit @ 1..=PREVIEW_MAX => limit,
        _ => return Err(ApiError::invalid_field("limit", "a preview has 1 to 100 items").into()),
    };
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    // Years of four digits: what a cursor of ours holds, and what the time zones can reckon with.
    let read = |text: &str| text.parse().ok().filter(|at| (0..253_370_764_800_000).contains(at));
    let after = page.parse_cursor(read)?.map(jobs::Millis);
    let preview = state.jobs.preview(&query.cron, query.timezone.as_deref(), after, limit)?;
    let next = preview.next.last().filter(|_| preview.next.len() == limit).copied();
    let items = preview.next.into_iter().map(|at| Timestamp(jobs::Millis(at))).collect();
    Ok(Json(Page::new(items, next)))
}
