//! What people look at: jobs by state, type and text; lanes, workers, counts.

use axum::extract::State;
use jobs::{Cursor, Filter, Found, LaneView, Stats, Which, WorkerView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::queue;
use super::view::{JobBody, ResultView, TargetBody};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Json, Query};
use crate::section::Section;

/// How many rows a list gives when nothing is said, and at most.
const ROWS: usize = 50;
const ROWS_MAX: usize = 200;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(dead))
            .routes(routes!(stats))
            .routes(routes!(workers))
            .routes(routes!(lanes))
            .routes(routes!(unroutable)),
        ..Section::default()
    }
}

/// Which part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// How many to leave out at the start.
    #[serde(default)]
    from: usize,
    /// How many to give; 50 if left out, 200 at most.
    limit: Option<usize>,
}

impl Page {
    pub(super) fn from(&self) -> usize {
        // No list is this long; sums stay within bounds.
        self.from.min(1 << 40)
    }

    pub(super) fn most(&self) -> usize {
        most(self.limit)
    }
}

fn most(limit: Option<usize>) -> usize {
    limit.unwrap_or(ROWS).clamp(1, ROWS_MAX)
}

/// The list of a name.
pub(super) fn which(state: &str) -> Result<Which, ApiError> {
    Which::parse(state).ok_or_else(|| {
        let message = "a state is waiting, active, delayed, dead or finished";
        ApiError::invalid_field("state", message)
    })
}

/// Which jobs, and which part of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// `waiting`, `active`, `delayed`, `dead` or `finished`; all if left out.
    state: Option<String>,
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    kind: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// Go on where an earlier page ended: its `next`.
    from: Option<String>,
    /// How many to give; 50 if left out, 200 at most.
    limit: Option<usize>,
}

/// A row of a list.
#[derive(Debug, Serialize, ToSchema)]
struct Row {
    /// Id of the job.
    id: String,
    /// `waiting`, `active`, `completed`, `failed`, `delayed`, `cron` or `dead`.
    status: &'static str,
    /// The job, if it can be read.
    job: Option<JobBody>,
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
struct Rows {
    /// In the list's order.
    jobs: Vec<Row>,
    /// Where the next page begins, if there may be more. A page may be empty and not the last: one
    /// call looks at 10000 jobs at most.
    next: Option<String>,
}

/// Jobs by state, type and text, page by page.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListQuery),
    responses((status = 200, description = "A part of the list.", body = Rows)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Rows>, ApiError> {
    let full = |text: &String| !text.is_empty();
    let filter = Filter {
        which: query.state.as_deref().filter(|s| !s.is_empty()).map(which).transpose()?,
        kind: query.kind.filter(full),
        text: query.text.filter(full),
    };
    let from: Option<Cursor> = match query.from.as_deref().filter(|from| !from.is_empty()) {
        Some(from) => Some(from.parse().map_err(|_| {
            ApiError::invalid_field("from", "this is not the `next` of an earlier page")
        })?),
        None => None,
    };
    let (found, next) = queue(&app)?.find(&filter, from, most(query.limit)).await?;
    let row = |found: Found| Row {
        id: found.id.to_string(),
        status: found.status.as_str(),
        job: found.job.map(JobBody::from),
    };
    Ok(Json(Rows {
        jobs: found.into_iter().map(row).collect(),
        next: next.map(|next| next.to_string()),
    }))
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
#[utoipa::path(get, path = "/api/v1/jobs/dead", tag = "jobs", params(Page), operation_id = "dead_jobs",
    responses((status = 200, description = "A part of the list.", body = DeadRows)))]
async fn dead(
    State(app): State<App>,
    Query(page): Query<Page>,
) -> Result<Json<DeadRows>, ApiError> {
    let queue = queue(&app)?;
    let found = queue.list(Which::Dead, page.from(), page.most()).await?;
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

/// Jobs in line that wait for the same workers.
#[derive(Debug, Serialize, ToSchema)]
struct Lane {
    /// Their type.
    #[serde(rename = "type")]
    kind: String,
    /// Which workers may take them.
    target: TargetBody,
    /// Workers that may not, because they failed one of them before.
    avoid: Vec<String>,
    /// How many of the type may run at once.
    max_concurrent: Option<u32>,
    /// How many of the type may start in any minute.
    max_per_minute: Option<u32>,
    /// How many wait; one that was taken a moment ago may still be counted.
    waiting: usize,
    /// How many of these per priority, from 1 to 10.
    by_priority: Vec<usize>,
    /// Is there a live worker that may take them?
    routable: bool,
    /// Is their type paused?
    paused: bool,
}

impl From<LaneView> for Lane {
    fn from(view: LaneView) -> Lane {
        Lane {
            kind: view.route.kind.to_string(),
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

/// Lanes.
#[derive(Debug, Serialize, ToSchema)]
struct Lanes {
    /// The longest first.
    lanes: Vec<Lane>,
}

impl From<Vec<LaneView>> for Lanes {
    fn from(views: Vec<LaneView>) -> Lanes {
        let mut lanes: Vec<Lane> = views.into_iter().map(Lane::from).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.waiting));
        lanes.truncate(1_000);
        Lanes { lanes }
    }
}

/// What waits for which workers: jobs in line by type and target, at most 1000 lanes.
#[utoipa::path(get, path = "/api/v1/jobs/lanes", tag = "jobs", operation_id = "job_lanes",
    responses((status = 200, description = "The lanes.", body = Lanes)))]
async fn lanes(State(app): State<App>) -> Result<Json<Lanes>, ApiError> {
    Ok(Json(queue(&app)?.lanes().await?.into()))
}

/// Jobs in line that no live worker may take.
#[utoipa::path(get, path = "/api/v1/jobs/unroutable", tag = "jobs", operation_id = "unroutable_jobs",
    responses((status = 200, description = "Their lanes; none is good.", body = Lanes)))]
async fn unroutable(State(app): State<App>) -> Result<Json<Lanes>, ApiError> {
    Ok(Json(queue(&app)?.unroutable().await?.into()))
}
