//! Lists: jobs by state, type and text; lanes, workers, counts.

use axum::extract::State;
use jobs::{Cursor, Filter, FoundJob, JobCounts, JobList, LaneView, Millis, WorkerView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::{JobBody, JobState, ResultView, TargetBody};
use crate::error::JobsApiError;
use crate::service::JobsState;
use web::ApiError;
use web::Routes;
use web::extract::{Json, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(dead))
            .routes(routes!(stats))
            .routes(routes!(workers))
            .routes(routes!(lanes))
            .routes(routes!(unroutable)),
        ..Routes::default()
    }
}

/// A list of jobs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JobList)]
pub(super) enum ListName {
    /// Jobs that wait for a worker.
    Waiting,
    /// Jobs that a worker runs.
    Active,
    /// Jobs that start later, retries among them.
    Delayed,
    /// Dead letters.
    Dead,
    /// Completed and failed jobs that are kept for a while.
    Finished,
}

impl From<ListName> for JobList {
    fn from(name: ListName) -> JobList {
        match name {
            ListName::Waiting => JobList::Waiting,
            ListName::Active => JobList::Active,
            ListName::Delayed => JobList::Delayed,
            ListName::Dead => JobList::Dead,
            ListName::Finished => JobList::Finished,
        }
    }
}

/// Cuts a page out of a list that is read whole.
fn cut<T>(items: Vec<T>, query: &PageQuery) -> Result<Page<T>, ApiError> {
    let (offset, limit) = (query.offset()?, query.limit()?);
    let items: Vec<T> = items.into_iter().skip(offset).take(limit).collect();
    Ok(Page::at(offset, limit, items))
}

/// Selects jobs and a page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The list; all of them if left out.
    #[param(inline)]
    state: Option<ListName>,
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    job_type: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue at: `next_cursor` of the last answer. Left out: at the beginning.
    cursor: Option<String>,
}

/// A job of a list.
#[derive(Debug, Serialize, ToSchema)]
struct ListedJob {
    /// Id of the job.
    id: String,
    /// Its state.
    status: JobState,
    /// The job, if it can be read.
    job: Option<JobBody>,
}

/// List jobs by state, type and text. A page may be empty without being the last: one call looks at
/// 10,000 jobs at most.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListQuery),
    responses((status = 200, description = "A page of jobs.", body = Page<ListedJob>)))]
async fn list(
    State(state): State<JobsState>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ListedJob>>, JobsApiError> {
    let full = |text: &String| !text.is_empty();
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let filter = Filter {
        which: query.state.map(JobList::from),
        job_type: query.job_type.filter(full),
        text: query.text.filter(full),
    };
    let from: Option<Cursor> = page.parse_cursor(|text| text.parse().ok())?;
    let (found, next) = state.jobs.find(&filter, from, page.limit()?).await?;
    let item = |found: FoundJob| ListedJob {
        id: found.id.to_string(),
        status: found.status.into(),
        job: found.job.map(JobBody::from),
    };
    Ok(Json(Page::new(found.into_iter().map(item).collect(), next)))
}

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
struct DeadLetter {
    /// Id of the job.
    id: String,
    /// The job, if it can be read.
    job: Option<JobBody>,
    /// The result of its last attempt.
    result: Option<ResultView>,
}

/// List the dead letters, newest first, each with its error.
#[utoipa::path(get, path = "/api/v1/jobs/dead", tag = "jobs", params(PageQuery),
    operation_id = "list_dead_letters",
    responses((status = 200, description = "A page of dead letters.", body = Page<DeadLetter>)))]
async fn dead(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<DeadLetter>>, JobsApiError> {
    let queue = &state.jobs;
    let (offset, limit) = (page.offset()?, page.limit()?);
    let found = queue.list(JobList::Dead, offset, limit).await?;
    let mut items = Vec::with_capacity(found.len());
    for (id, job) in found {
        let result = queue.result(&id).await?.map(ResultView::from);
        items.push(DeadLetter { id: id.to_string(), job: job.map(JobBody::from), result });
    }
    Ok(Json(Page::at(offset, limit, items)))
}

/// Counts of jobs by state.
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
    /// Total run time of the jobs that succeeded.
    processing_ms: u64,
    /// Job types that are paused.
    paused: Vec<String>,
}

impl From<JobCounts> for JobStats {
    fn from(stats: JobCounts) -> JobStats {
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

/// Counts of jobs by state.
#[utoipa::path(get, path = "/api/v1/jobs/stats", tag = "jobs", operation_id = "get_job_stats",
    responses((status = 200, description = "Counts.", body = JobStats)))]
async fn stats(State(state): State<JobsState>) -> Result<Json<JobStats>, JobsApiError> {
    Ok(Json(state.jobs.stats().await?.into()))
}

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
struct WorkerRow {
    /// Its id.
    id: String,
    /// Its stack.
    stack: String,
    /// Its region.
    region: String,
    /// Its capabilities.
    capabilities: Vec<String>,
    /// True if its heartbeat is recent.
    alive: bool,
    /// Time of its last heartbeat.
    heartbeat_at: Option<Timestamp>,
    /// The job types it takes; null is all.
    types: Option<Vec<String>>,
}

impl From<WorkerView> for WorkerRow {
    fn from(view: WorkerView) -> WorkerRow {
        WorkerRow {
            id: view.info.worker_id,
            stack: view.info.stack,
            region: view.info.region,
            capabilities: view.info.capabilities,
            alive: view.alive,
            heartbeat_at: view.heartbeat.map(|at| Timestamp(Millis(at))),
            types: view.types,
        }
    }
}

/// List the registered workers.
#[utoipa::path(get, path = "/api/v1/jobs/workers", tag = "jobs", params(PageQuery),
    operation_id = "list_workers",
    responses((status = 200, description = "A page of workers.", body = Page<WorkerRow>)))]
async fn workers(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<WorkerRow>>, JobsApiError> {
    let workers = state.jobs.workers().await?;
    Ok(Json(cut(workers.into_iter().map(WorkerRow::from).collect(), &page)?))
}

/// Waiting jobs that wait for the same workers.
#[derive(Debug, Serialize, ToSchema)]
struct Lane {
    /// Their type.
    #[serde(rename = "type")]
    job_type: String,
    /// The workers that may claim them.
    target: TargetBody,
    /// Workers that may not, because they failed one of them before.
    avoid: Vec<String>,
    /// Most jobs of the type that may run at once.
    max_concurrent: Option<u32>,
    /// Most jobs of the type that may start in any minute.
    max_per_minute: Option<u32>,
    /// Number of waiting jobs; one that was just claimed may still be counted.
    waiting: usize,
    /// Waiting jobs per priority, from 1 to 10.
    by_priority: Vec<usize>,
    /// Is there a live worker that may take them?
    routable: bool,
    /// Is their type paused?
    paused: bool,
}

impl From<LaneView> for Lane {
    fn from(view: LaneView) -> Lane {
        Lane {
            job_type: view.route.job_type.to_string(),
            target: view.route.target.into(),
            avoid: view.route.avoid,
            max_concurrent: view.route.limit.max_concurrent,
            max_per_minute: view.route.limit.max_per_minute,
            waiting: view.waiting.iter().sum(),
            by_priority: view.waiting.to_vec(),
            routable: view.routable,
            paused: view.paused,
        }
    }
}

/// Sorts lanes, the longest first.
fn longest_first(views: Vec<LaneView>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = views.into_iter().map(Lane::from).collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.waiting));
    lanes
}

/// List the lanes: waiting jobs by type and target, the longest first.
#[utoipa::path(get, path = "/api/v1/jobs/lanes", tag = "jobs", operation_id = "list_lanes",
    params(PageQuery),
    responses((status = 200, description = "A page of lanes.", body = Page<Lane>)))]
async fn lanes(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Lane>>, JobsApiError> {
    Ok(Json(cut(longest_first(state.jobs.lanes().await?), &page)?))
}

/// List the lanes of unroutable jobs: waiting jobs that no live worker matches.
#[utoipa::path(get, path = "/api/v1/jobs/unroutable", tag = "jobs", operation_id = "list_unroutable",
    params(PageQuery),
    responses((status = 200, description = "A page of lanes; none is good.", body = Page<Lane>)))]
async fn unroutable(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Lane>>, JobsApiError> {
    Ok(Json(cut(longest_first(state.jobs.unroutable().await?), &page)?))
}
