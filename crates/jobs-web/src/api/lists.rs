//! Lists: jobs by state, type and text; lanes, workers, counts.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{
    Cursor, DeadLetterGroup, Filter, FoundJob, HeldJob, JobCounts, JobEndReason, JobList, LaneView,
    Millis, SortKey, WorkerActivity, WorkerId, WorkerView,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::{ErrorView, JobBody, JobState, ReasonView, ResultView, TargetBody};
use crate::error::JobsApiError;
use crate::service::JobsState;
use web::ApiError;
use web::Routes;
use web::audit::Note;
use web::extract::{Json, Path, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        viewer: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(dead))
            .routes(routes!(dead_groups))
            .routes(routes!(stats))
            .routes(routes!(workers))
            .routes(routes!(types))
            .routes(routes!(lanes))
            .routes(routes!(unroutable)),
        operator: OpenApiRouter::new().routes(routes!(drain_worker)).routes(routes!(resume_worker)),
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

/// Order of a list of jobs.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum JobSort {
    /// Time of dispatch.
    CreatedAt,
    /// Time at which they come due.
    DueAt,
    /// Time at which they ended.
    EndedAt,
    /// Priority.
    Priority,
    /// Type.
    Type,
    /// Time they waited.
    WaitedMs,
    /// Time they ran.
    TookMs,
}

impl From<JobSort> for SortKey {
    fn from(sort: JobSort) -> SortKey {
        match sort {
            JobSort::CreatedAt => SortKey::CreatedAt,
            JobSort::DueAt => SortKey::DueAt,
            JobSort::EndedAt => SortKey::EndedAt,
            JobSort::Priority => SortKey::Priority,
            JobSort::Type => SortKey::Type,
            JobSort::WaitedMs => SortKey::Waited,
            JobSort::TookMs => SortKey::Took,
        }
    }
}

/// Direction of an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SortOrder {
    /// The smallest first.
    #[default]
    Asc,
    /// The largest first.
    Desc,
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
    /// Only jobs that this worker runs, or ran last.
    worker_id: Option<String>,
    /// Only jobs of this priority.
    #[param(minimum = 1, maximum = 10)]
    priority: Option<u8>,
    /// Only jobs with this text in the name or message of their latest error, in any case.
    error: Option<String>,
    /// Only jobs that ended for this reason.
    #[param(inline)]
    end_reason: Option<ReasonView>,
    /// Only dead letters of this group; see the groups of dead letters.
    group: Option<String>,
    /// Only jobs dispatched at this time or later.
    earliest_created_at: Option<Timestamp>,
    /// Only jobs dispatched before this time.
    latest_created_at: Option<Timestamp>,
    /// Order of the jobs; that of the list if left out. The first 10,000 jobs of the list are put in
    /// order.
    #[param(inline)]
    sort: Option<JobSort>,
    /// Direction of the order; `asc` if left out.
    #[param(inline)]
    order: Option<SortOrder>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue at: `next_cursor` of the last answer. Left out: at the beginning.
    cursor: Option<String>,
}

impl ListQuery {
    fn filter(&self) -> Filter {
        let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Filter {
            which: self.state.map(JobList::from),
            job_type: full(&self.job_type),
            text: full(&self.text),
            worker_id: full(&self.worker_id),
            priority: self.priority,
            error: full(&self.error),
            reason: self.end_reason.map(JobEndReason::from),
            group: full(&self.group),
            earliest_created_at: self.earliest_created_at.map(|at| at.0),
            latest_created_at: self.latest_created_at.map(|at| at.0),
        }
    }
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
    /// Time at which it comes due, if it is delayed.
    due_at: Option<Timestamp>,
    /// The worker that runs it, or made its latest attempt.
    worker_id: Option<String>,
    /// Time at which that worker claimed it.
    claimed_at: Option<Timestamp>,
    /// Time at which its latest attempt ended.
    ended_at: Option<Timestamp>,
    /// Time it waited for its first attempt, or has waited so far.
    waited_ms: Option<u64>,
    /// Run time of its latest attempt, or time it has run so far.
    took_ms: Option<u64>,
    /// The error of its latest attempt.
    error: Option<ErrorView>,
    /// Reason for which it ended without success.
    end_reason: Option<ReasonView>,
}

impl ListedJob {
    fn new(found: FoundJob, now: Millis) -> ListedJob {
        let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ListedJob {
            waited_ms: found.waited(now).map(whole),
            took_ms: found.took(now).map(whole),
            id: found.id.to_string(),
            status: found.status.into(),
            job: found.job.map(JobBody::from),
            due_at: found.due.map(Timestamp::from),
            worker_id: found.worker_id,
            claimed_at: found.claimed_at.map(Timestamp::from),
            ended_at: found.ended_at.map(Timestamp::from),
            error: found.error.map(ErrorView::from),
            end_reason: found.reason.map(ReasonView::from),
        }
    }
}

/// List jobs by state, type, text, worker, priority, error and time. A page may be empty without being
/// the last: one call looks at 10,000 jobs at most.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListQuery),
    responses((status = 200, description = "A page of jobs.", body = Page<ListedJob>)))]
async fn list(
    State(state): State<JobsState>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ListedJob>>, JobsApiError> {
    let filter = query.filter();
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let now = state.jobs.now();
    let view = |found: Vec<FoundJob>| -> Vec<ListedJob> {
        found.into_iter().map(|found| ListedJob::new(found, now)).collect()
    };
    let Some(sort) = query.sort else {
        if query.order.is_some() {
            let message = "order is for a list with sort; name what to sort by";
            return Err(ApiError::invalid_field("order", message).into());
        }
        let from: Option<Cursor> = page.parse_cursor(|text| text.parse().ok())?;
        let (found, next) = state.jobs.find(&filter, from, page.limit()?).await?;
        return Ok(Json(Page::new(view(found), next)));
    };
    let (offset, limit) = (page.offset()?, page.limit()?);
    let sort = (sort.into(), query.order == Some(SortOrder::Desc));
    let (found, more) = state.jobs.find_sorted(&filter, sort, offset, limit).await?;
    let next = more.then_some(offset + found.len());
    Ok(Json(Page::new(view(found), next)))
}

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
struct DeadLetter {
    /// Id of the job.
    id: String,
    /// The job, if it can be read.
    job: Option<JobBody>,
    /// The result of its last attempt; kept for a day.
    result: Option<ResultView>,
    /// The error of its last attempt.
    error: Option<ErrorView>,
    /// Reason for which it is a dead letter.
    end_reason: Option<ReasonView>,
    /// The worker that made its last attempt.
    worker_id: Option<String>,
    /// Time at which it became a dead letter.
    ended_at: Option<Timestamp>,
}

/// Selects dead letters and a page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeadQuery {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    job_type: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// Only jobs with this text in the name or message of their error, in any case.
    error: Option<String>,
    /// Only jobs that ended for this reason.
    #[param(inline)]
    end_reason: Option<ReasonView>,
    /// Only jobs of this group.
    group: Option<String>,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue at: `next_cursor` of the last answer. Left out: at the beginning.
    cursor: Option<String>,
}

impl DeadQuery {
    fn filter(&self) -> Filter {
        let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Filter {
            which: Some(JobList::Dead),
            job_type: full(&self.job_type),
            text: full(&self.text),
            error: full(&self.error),
            reason: self.end_reason.map(JobEndReason::from),
            group: full(&self.group),
            ..Filter::default()
        }
    }
}

/// List the dead letters, newest first, each with its error and the reason for which it is one.
#[utoipa::path(get, path = "/api/v1/jobs/dead", tag = "jobs", params(DeadQuery),
    operation_id = "list_dead_letters",
    responses((status = 200, description = "A page of dead letters.", body = Page<DeadLetter>)))]
async fn dead(
    State(state): State<JobsState>,
    Query(query): Query<DeadQuery>,
) -> Result<Json<Page<DeadLetter>>, JobsApiError> {
    let queue = &state.jobs;
    let filter = query.filter();
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let from: Option<Cursor> = page.parse_cursor(|text| text.parse().ok())?;
    let (found, next) = queue.find(&filter, from, page.limit()?).await?;
    let mut items = Vec::with_capacity(found.len());
    for found in found {
        let result = queue.result(&found.id).await?.map(ResultView::from);
        items.push(DeadLetter {
            id: found.id.to_string(),
            job: found.job.map(JobBody::from),
            result,
            error: found.error.map(ErrorView::from),
            end_reason: found.reason.map(ReasonView::from),
            worker_id: found.worker_id,
            ended_at: found.ended_at.map(Timestamp::from),
        });
    }
    Ok(Json(Page::new(items, next)))
}

/// Dead letters of one type and reason whose errors differ in numbers and ids only.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetterGroup)]
struct DeadGroupView {
    /// Name of the group, for the filter `group`.
    group: String,
    /// The type of the jobs.
    #[serde(rename = "type")]
    job_type: String,
    /// Reason for which they are dead letters.
    end_reason: Option<ReasonView>,
    /// The error of the newest.
    error: ErrorView,
    /// Number of jobs.
    count: usize,
    /// Time at which the newest became a dead letter.
    newest_at: Option<Timestamp>,
    /// Time at which the oldest became one.
    oldest_at: Option<Timestamp>,
    /// Id of the newest.
    example_id: String,
}

impl From<DeadLetterGroup> for DeadGroupView {
    fn from(group: DeadLetterGroup) -> DeadGroupView {
        DeadGroupView {
            group: group.group,
            job_type: group.job_type,
            end_reason: group.reason.map(ReasonView::from),
            error: group.error.into(),
            count: group.count,
            newest_at: group.newest.map(Timestamp::from),
            oldest_at: group.oldest.map(Timestamp::from),
            example_id: group.example.to_string(),
        }
    }
}

/// List the dead letters by error, the most frequent first. The newest 10,000 are counted.
#[utoipa::path(get, path = "/api/v1/jobs/dead/groups", tag = "jobs", params(DeadQuery),
    operation_id = "list_dead_letter_groups",
    responses((status = 200, description = "A page of groups.", body = Page<DeadGroupView>)))]
async fn dead_groups(
    State(state): State<JobsState>,
    Query(query): Query<DeadQuery>,
) -> Result<Json<Page<DeadGroupView>>, JobsApiError> {
    let groups = state.jobs.dead_groups(&query.filter(), 0).await?.groups;
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    Ok(Json(cut(groups.into_iter().map(DeadGroupView::from).collect(), &page)?))
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

/// Get the counts of jobs by state.
#[utoipa::path(get, path = "/api/v1/jobs/stats", tag = "jobs", operation_id = "get_job_stats",
    responses((status = 200, description = "Counts.", body = JobStats)))]
async fn stats(State(state): State<JobsState>) -> Result<Json<JobStats>, JobsApiError> {
    Ok(Json(state.jobs.stats().await?.into()))
}

/// A job that a worker holds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HeldJob)]
struct HeldView {
    /// Id of the job.
    id: String,
    /// Its type.
    #[serde(rename = "type")]
    job_type: String,
    /// Time at which it was claimed.
    claimed_at: Option<Timestamp>,
}

impl From<HeldJob> for HeldView {
    fn from(held: HeldJob) -> HeldView {
        HeldView {
            id: held.id.to_string(),
            job_type: held.job_type,
            claimed_at: held.claimed_at.map(Timestamp::from),
        }
    }
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
    /// Number of jobs it runs at once, if it said so.
    slots: Option<u32>,
    /// Number of jobs it holds now.
    running: usize,
    /// At most 20 of those, the longest running first.
    jobs: Vec<HeldView>,
    /// True if it is drained: it completes what it holds and claims nothing more.
    draining: bool,
    /// Jobs it completed in the latest five minutes.
    completed: u64,
    /// Attempts that failed in the latest five minutes.
    failed: u64,
    /// Attempts that ended per minute, over the latest five minutes or since its first.
    per_minute: f64,
}

impl WorkerRow {
    fn new(view: WorkerView, activity: WorkerActivity) -> WorkerRow {
        WorkerRow {
            id: view.info.worker_id,
            stack: view.info.stack,
            region: view.info.region,
            capabilities: view.info.capabilities,
            alive: view.alive,
            heartbeat_at: view.heartbeat.map(|at| Timestamp(Millis(at))),
            types: view.types,
            slots: view.slots,
            running: activity.running,
            jobs: activity.jobs.into_iter().map(HeldView::from).collect(),
            draining: view.draining,
            completed: activity.completed,
            failed: activity.failed,
            per_minute: activity.per_minute,
        }
    }
}

/// List the registered workers, what they run and how much they get done.
#[utoipa::path(get, path = "/api/v1/jobs/workers", tag = "jobs", params(PageQuery),
    operation_id = "list_workers",
    responses((status = 200, description = "A page of workers.", body = Page<WorkerRow>)))]
async fn workers(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<WorkerRow>>, JobsApiError> {
    let page = cut(state.jobs.workers().await?, &page)?;
    let names: Vec<&str> = page.items.iter().map(|view| view.info.worker_id.as_str()).collect();
    let activity = state.jobs.worker_activity(&names).await?;
    let rows = page.items.into_iter().zip(activity);
    let items = rows.map(|(view, activity)| WorkerRow::new(view, activity)).collect();
    Ok(Json(Page { items, next_cursor: page.next_cursor }))
}

/// A worker and whether it is drained.
#[derive(Debug, Serialize, ToSchema)]
struct DrainState {
    /// Its id.
    id: String,
    /// True if it claims nothing more.
    draining: bool,
}

/// Drain a worker: it completes what it holds and claims nothing more, until it is resumed or leaves.
/// Workers of the library, over HTTP and `exec` heed it; a v1 worker claims without asking.
#[utoipa::path(post, path = "/api/v1/jobs/workers/{worker_id}/drain", tag = "jobs",
    operation_id = "drain_worker",
    params(("worker_id" = String, Path, description = "Id of the worker.")),
    responses((status = 200, description = "It drains.", body = DrainState)))]
async fn drain_worker(
    State(state): State<JobsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.drain(&WorkerId::parse(id.as_str())?).await?;
    let note = Note::new("worker.drain", &id);
    Ok((Extension(note), Json(DrainState { id, draining: true })))
}

/// Let a drained worker claim jobs again.
#[utoipa::path(post, path = "/api/v1/jobs/workers/{worker_id}/resume", tag = "jobs",
    operation_id = "resume_worker",
    params(("worker_id" = String, Path, description = "Id of the worker.")),
    responses((status = 200, description = "It claims again.", body = DrainState)))]
async fn resume_worker(
    State(state): State<JobsState>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.undrain(&WorkerId::parse(id.as_str())?).await?;
    let note = Note::new("worker.resume", &id);
    Ok((Extension(note), Json(DrainState { id, draining: false })))
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

/// A job type and how many of its jobs are in which state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobType, example = json!({
    "type": "mail", "waiting": 3, "active": 1, "delayed": 0, "dead": 2, "oldest_waiting_ms": 1500, "workers": 2, "paused": false
}))]
struct TypeBody {
    /// Name of the type.
    #[serde(rename = "type")]
    job_type: String,
    /// Waiting jobs.
    waiting: usize,
    /// Active jobs.
    active: usize,
    /// Delayed jobs, of the next 5,000.
    delayed: usize,
    /// Dead letters, of the newest 5,000.
    dead: usize,
    /// Time since its oldest waiting job was dispatched or came due; null if none waits.
    oldest_waiting_ms: Option<u64>,
    /// Live workers that name the type among those they take.
    workers: usize,
    /// Is it paused?
    paused: bool,
}

/// List the job types that have jobs, workers or a pause, by name.
#[utoipa::path(get, path = "/api/v1/jobs/types", tag = "jobs", operation_id = "list_job_types",
    params(PageQuery),
    responses((status = 200, description = "A page of job types.", body = Page<TypeBody>)))]
async fn types(
    State(state): State<JobsState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TypeBody>>, JobsApiError> {
    let overview = state.jobs.overview(0).await?;
    let rows = crate::types::rows(&overview).into_iter().map(|(job_type, row)| TypeBody {
        job_type,
        waiting: row.counts.waiting,
        active: row.counts.active,
        delayed: row.counts.delayed,
        dead: row.counts.dead,
        oldest_waiting_ms: row
            .counts
            .oldest
            .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        workers: row.workers,
        paused: row.counts.paused,
    });
    Ok(Json(cut(rows.collect(), &page)?))
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
