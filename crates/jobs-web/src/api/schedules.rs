//! Schedules: jobs that run again and again.

use axum::extract::State;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use jobs::{Cron, NewJob, RunOutcome, ScheduleRun, ScheduleView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::InSchedule;
use super::admin::{ActionOutcome, ActionReply, done};
use super::new_id;
use super::view::{JobBody, JobIdempotencyKey, NewJobBody};
use crate::error::JobsApiError;
use crate::service::JobsState;
use web::Routes;
use web::error::{ApiError, ErrorBody};
use web::extract::{Json, Path, Query};
use web::idempotency::{IdempotencyKey, once};
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
            .routes(routes!(run_schedule).layer(from_fn(once)))
            .routes(routes!(pause_schedule))
            .routes(routes!(resume_schedule)),
        ..Routes::default()
    }
}

/// The outcome of a run of a schedule.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RunOutcome)]
enum RunOutcomeView {
    /// It waits for a worker, or for its next attempt.
    Waiting,
    /// A worker runs it.
    Active,
    /// It succeeded.
    Completed,
    /// It was cancelled.
    Failed,
    /// It failed for good.
    Dead,
    /// It did not start, because the run before it had not ended.
    Skipped,
    /// Its job is not kept any more.
    Removed,
}

/// A run of a schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ScheduleRun)]
struct RunView {
    /// Id of the job.
    id: String,
    /// Time at which it was put in line.
    started_at: Timestamp,
    /// Its outcome so far.
    outcome: RunOutcomeView,
    /// Time at which it ended.
    ended_at: Option<Timestamp>,
}

impl From<ScheduleRun> for RunView {
    fn from(run: ScheduleRun) -> RunView {
        RunView {
            id: run.id.to_string(),
            started_at: run.started.into(),
            outcome: match run.outcome {
                RunOutcome::Waiting => RunOutcomeView::Waiting,
                RunOutcome::Active => RunOutcomeView::Active,
                RunOutcome::Completed => RunOutcomeView::Completed,
                RunOutcome::Failed => RunOutcomeView::Failed,
                RunOutcome::Dead => RunOutcomeView::Dead,
                RunOutcome::Skipped => RunOutcomeView::Skipped,
                RunOutcome::Removed => RunOutcomeView::Removed,
            },
            ended_at: run.ended.map(Timestamp::from),
        }
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
    /// The cron expression in English.
    description: String,
    /// Its latest five runs, newest first.
    runs: Vec<RunView>,
}

impl From<ScheduleView> for ScheduleRow {
    fn from(view: ScheduleView) -> ScheduleRow {
        let when = &view.job.schedule;
        let cron = when.cron.as_deref().unwrap_or_default();
        ScheduleRow {
            description: Cron::parse(cron, when.timezone.as_deref())
                .map(|cron| cron.describe())
                .unwrap_or_default(),
            runs: view.runs.into_iter().map(RunView::from).collect(),
            job: view.job.into(),
            next_at: view.next.into(),
            paused: view.paused,
        }
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
    params(("id" = String, Path, description = "Id of the schedule."), JobIdempotencyKey),
    responses((status = 200, description = "Stored.", body = ActionReply),
        (status = 409, description = "A job of this id is no schedule, or the idempotency key was \
            used for another request.", body = ErrorBody)))]
async fn put_schedule(
    State(state): State<JobsState>,
    Path(id): Path<String>,
    key: JobIdempotencyKey,
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

/// Delete a schedule. Its waiting and active jobs go on.
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

/// Run a schedule now, beside its occurrences; also while it is paused. The answer names the job.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/run", tag = "jobs", operation_id = "run_schedule",
    params(InSchedule, IdempotencyKey),
    responses((status = 200, description = "It is in line.", body = ActionReply),
        (status = 409, description = "Its run before has not ended, and they must not overlap; or the \
            idempotency key was used for another request.", body = ErrorBody)))]
async fn run_schedule(
    State(state): State<JobsState>,
    InSchedule { id }: InSchedule,
) -> Result<impl IntoResponse, JobsApiError> {
    let job = state.jobs.run_schedule(&id).await?;
    Ok(done("schedule.run", &job, ActionOutcome::Dispatched))
}

/// Pause a schedule: it skips its occurrences until it is resumed.
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

/// Resume a paused schedule, from its next occurrence on.
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
