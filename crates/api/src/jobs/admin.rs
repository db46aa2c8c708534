//! What people call: look at jobs, lists, workers and counts; cancel, replay, pause; schedules.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{Cancelled, JobType, NewJob, ScheduleView, Stats, Which, WorkerView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::{JobBody, JobDetail, NewJobBody, ResultView};
use super::{job_id, queue, unknown};
use crate::app::App;
use crate::audit::Note;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, Path, Query};
use crate::section::Section;

/// How many rows a list gives when nothing is said, and at most.
const ROWS: usize = 50;
const ROWS_MAX: usize = 200;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(get))
            .routes(routes!(dead))
            .routes(routes!(stats))
            .routes(routes!(workers))
            .routes(routes!(schedules)),
        operator: OpenApiRouter::new()
            .routes(routes!(cancel))
            .routes(routes!(replay))
            .routes(routes!(pause))
            .routes(routes!(resume))
            .routes(routes!(put_schedule, delete_schedule))
            .routes(routes!(pause_schedule))
            .routes(routes!(resume_schedule)),
        ..Section::default()
    }
}

/// A job with everything there is to know about it.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Id of the job.")),
    responses((status = 200, description = "The job.", body = JobDetail)))]
async fn get(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobDetail>, ApiError> {
    let view = queue(&app)?.view(&job_id(&id)?).await?.ok_or_else(unknown)?;
    Ok(Json(view.into()))
}

/// Which part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Page {
    /// How many to leave out at the start.
    #[serde(default)]
    from: usize,
    /// How many to give; 50 if left out, 200 at most.
    limit: Option<usize>,
}

impl Page {
    fn most(&self) -> usize {
        self.limit.unwrap_or(ROWS).clamp(1, ROWS_MAX)
    }
}

/// Which list, and which part of it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// `waiting`, `active`, `delayed`, `dead` or `finished`.
    state: String,
    /// How many to leave out at the start.
    #[serde(default)]
    from: usize,
    /// How many to give; 50 if left out, 200 at most.
    limit: Option<usize>,
}

/// A row of a list.
#[derive(Debug, Serialize, ToSchema)]
struct Row {
    /// Id of the job.
    id: String,
    /// The job, if it can be read.
    job: Option<JobBody>,
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
struct Rows {
    /// In the list's order.
    jobs: Vec<Row>,
}

/// Jobs in one state.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(ListQuery),
    responses((status = 200, description = "A part of the list.", body = Rows)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Rows>, ApiError> {
    let which = match query.state.as_str() {
        "waiting" => Which::Waiting,
        "active" => Which::Active,
        "delayed" => Which::Delayed,
        "dead" => Which::Dead,
        "finished" => Which::Finished,
        _ => {
            let message = "a state is waiting, active, delayed, dead or finished";
            return Err(ApiError::invalid_field("state", message));
        }
    };
    let page = Page { from: query.from, limit: query.limit };
    // No list is this long; sums stay within bounds.
    let from = page.from.min(1 << 40);
    let jobs = queue(&app)?.list(which, from, page.most()).await?;
    let row = |(id, job): (jobs::JobId, Option<jobs::Job>)| Row {
        id: id.to_string(),
        job: job.map(JobBody::from),
    };
    Ok(Json(Rows { jobs: jobs.into_iter().map(row).collect() }))
}

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
struct DeadRow {
    /// Id of the job.
    id: String,
    /// The job, if it can be read.
    job: Option<JobBody>,
    /// What its last attempt came to.
    result: Option<ResultView>,
}

/// Dead letters.
#[derive(Debug, Serialize, ToSchema)]
struct DeadRows {
    /// Newest first.
    jobs: Vec<DeadRow>,
}

/// The dead letters, newest first, each with why it is there.
#[utoipa::path(get, path = "/api/v1/jobs/dead", tag = "jobs", params(Page),
    responses((status = 200, description = "A part of the list.", body = DeadRows)))]
async fn dead(
    State(app): State<App>,
    Query(page): Query<Page>,
) -> Result<Json<DeadRows>, ApiError> {
    let queue = queue(&app)?;
    let found = queue.list(Which::Dead, page.from.min(1 << 40), page.most()).await?;
    let mut rows = Vec::with_capacity(found.len());
    for (id, job) in found {
        let result = queue.result(&id).await?.map(ResultView::from);
        rows.push(DeadRow { id: id.to_string(), job: job.map(JobBody::from), result });
    }
    Ok(Json(DeadRows { jobs: rows }))
}

/// How many jobs are where.
#[derive(Debug, Serialize, ToSchema)]
struct JobStats {
    /// In line.
    waiting: usize,
    /// Running.
    active: usize,
    /// Waiting for their time.
    delayed: usize,
    /// Schedules.
    schedules: usize,
    /// In the dead letters.
    dead: usize,
    /// Ended and kept for a while.
    finished: usize,
    /// Live workers.
    workers: usize,
    /// Jobs that succeeded, ever.
    processed: u64,
    /// Attempts that failed, ever.
    failed: u64,
    /// How long the jobs that succeeded ran in all.
    processing_ms: u64,
    /// Job types that are paused.
    paused: Vec<String>,
}

impl From<Stats> for JobStats {
    fn from(stats: Stats) -> JobStats {
        JobStats {
            waiting: stats.waiting,
            active: stats.active,
            delayed: stats.delayed,
            schedules: stats.cron,
            dead: stats.dead,
            finished: stats.finished,
            workers: stats.workers,
            processed: stats.processed,
            failed: stats.failed,
            processing_ms: stats.processing_ms,
            paused: stats.paused,
        }
    }
}

/// How many jobs are where.
#[utoipa::path(get, path = "/api/v1/jobs/stats", tag = "jobs",
    responses((status = 200, description = "Counts.", body = JobStats)))]
async fn stats(State(app): State<App>) -> Result<Json<JobStats>, ApiError> {
    Ok(Json(queue(&app)?.stats().await?.into()))
}

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
struct WorkerRow {
    /// Its id.
    id: String,
    /// Its stack.
    stack: String,
    /// Where it is.
    region: String,
    /// What it can do.
    capabilities: Vec<String>,
    /// Has it told lately that it lives?
    alive: bool,
    /// When it last did, in milliseconds since 1970.
    heartbeat_ms: Option<i64>,
    /// The job types it takes; null is all.
    types: Option<Vec<String>>,
}

impl From<WorkerView> for WorkerRow {
    fn from(view: WorkerView) -> WorkerRow {
        WorkerRow {
            id: view.info.server_id,
            stack: view.info.stack,
            region: view.info.region,
            capabilities: view.info.capabilities,
            alive: view.alive,
            heartbeat_ms: view.heartbeat,
            types: view.types,
        }
    }
}

/// The workers.
#[derive(Debug, Serialize, ToSchema)]
struct Workers {
    /// All that are registered.
    workers: Vec<WorkerRow>,
}

/// The workers that are registered.
#[utoipa::path(get, path = "/api/v1/jobs/workers", tag = "jobs",
    responses((status = 200, description = "All of them.", body = Workers)))]
async fn workers(State(app): State<App>) -> Result<Json<Workers>, ApiError> {
    let workers = queue(&app)?.workers().await?;
    Ok(Json(Workers { workers: workers.into_iter().map(WorkerRow::from).collect() }))
}

/// Why a job is cancelled.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Cancel {
    /// For people.
    reason: String,
}

/// What was done to a job.
#[derive(Debug, Serialize, ToSchema)]
struct Done {
    /// Id of the job.
    id: String,
    /// `ended`, `asked` (it runs and was told to stop), `replayed`, `stored`, `changed`,
    /// `removed`, `paused` or `resumed`.
    outcome: &'static str,
}

/// Cancel a job: one that has not started ends, one that runs is asked to stop.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", request_body = Cancel,
    params(("id" = String, Path, description = "Id of the job.")),
    responses((status = 200, description = "Done.", body = Done),
        (status = 409, description = "It has ended already.", body = ErrorBody)))]
async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(body): Json<Cancel>,
) -> Result<impl IntoResponse, ApiError> {
    let outcome = match queue(&app)?.cancel(&job_id(&id)?, &body.reason).await? {
        Cancelled::Ended => "ended",
        Cancelled::Asked => "asked",
    };
    Ok((Extension(Note::new("job.cancel", &id)), Json(Done { id, outcome })))
}

/// Run a job that has ended once more, with all its attempts.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/replay", tag = "jobs",
    params(("id" = String, Path, description = "Id of the job.")),
    responses((status = 200, description = "In line again.", body = Done),
        (status = 409, description = "It has not ended.", body = ErrorBody)))]
async fn replay(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.replay(&job_id(&id)?).await?;
    Ok((Extension(Note::new("job.replay", &id)), Json(Done { id, outcome: "replayed" })))
}

/// A job type and whether it is paused.
#[derive(Debug, Serialize, ToSchema)]
struct TypeState {
    /// The type.
    #[serde(rename = "type")]
    kind: String,
    /// Does no job of it start?
    paused: bool,
}

/// Let no job of a type start until it is resumed. What runs goes on.
#[utoipa::path(post, path = "/api/v1/jobs/types/{type}/pause", tag = "jobs",
    params(("type" = String, Path, description = "The job type.")),
    responses((status = 200, description = "Paused.", body = TypeState)))]
async fn pause(
    State(app): State<App>,
    Path(kind): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.pause(&JobType::parse(kind.as_str())?).await?;
    let note = Note::new("job_type.pause", &kind);
    Ok((Extension(note), Json(TypeState { kind, paused: true })))
}

/// Let jobs of a type start again.
#[utoipa::path(post, path = "/api/v1/jobs/types/{type}/resume", tag = "jobs",
    params(("type" = String, Path, description = "The job type.")),
    responses((status = 200, description = "Resumed.", body = TypeState)))]
async fn resume(
    State(app): State<App>,
    Path(kind): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.resume(&JobType::parse(kind.as_str())?).await?;
    let note = Note::new("job_type.resume", &kind);
    Ok((Extension(note), Json(TypeState { kind, paused: false })))
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
    let found = queue(&app)?.schedules(page.from.min(1 << 40), page.most()).await?;
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
    let new = NewJob::try_from(body)?.id(jobs::JobId::parse(id.as_str())?);
    let done = queue(&app)?.schedule(new).await?;
    let outcome = if done.new { "stored" } else { "changed" };
    Ok((Extension(Note::new("schedule.put", &id)), Json(Done { id, outcome })))
}

/// Stop a schedule for good. What it has in line or running goes on.
#[utoipa::path(delete, path = "/api/v1/jobs/schedules/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Id of the schedule.")),
    responses((status = 200, description = "Gone.", body = Done)))]
async fn delete_schedule(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.unschedule(&job_id(&id)?).await?;
    Ok((Extension(Note::new("schedule.delete", &id)), Json(Done { id, outcome: "removed" })))
}

/// Let a schedule pass its occurrences by until it is resumed.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/pause", tag = "jobs",
    params(("id" = String, Path, description = "Id of the schedule.")),
    responses((status = 200, description = "Paused.", body = Done)))]
async fn pause_schedule(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.pause_schedule(&job_id(&id)?).await?;
    Ok((Extension(Note::new("schedule.pause", &id)), Json(Done { id, outcome: "paused" })))
}

/// Let a paused schedule run again, from its next occurrence on.
#[utoipa::path(post, path = "/api/v1/jobs/schedules/{id}/resume", tag = "jobs",
    params(("id" = String, Path, description = "Id of the schedule.")),
    responses((status = 200, description = "Resumed.", body = Done)))]
async fn resume_schedule(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.resume_schedule(&job_id(&id)?).await?;
    Ok((Extension(Note::new("schedule.resume", &id)), Json(Done { id, outcome: "resumed" })))
}
