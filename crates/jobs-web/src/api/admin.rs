//! Calls for people about one job or one job type: get, cancel, retry, replay, remove; pause, resume.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{CancelOutcome, JobId, JobType, RetryOutcome};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::InJob;
use super::view::JobDetail;
use crate::error::JobsApiError;
use crate::error::unknown;
use crate::service::JobsState;
use web::Routes;
use web::audit::Note;
use web::error::ErrorBody;
use web::extract::{Json, OptionalJson, Path, Query};
use web::page::{Page, PageQuery};
use web::time::Timestamp;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        viewer: OpenApiRouter::new().routes(routes!(get)).routes(routes!(logs)),
        operator: OpenApiRouter::new()
            .routes(routes!(cancel))
            .routes(routes!(retry))
            .routes(routes!(replay))
            .routes(routes!(remove))
            .routes(routes!(pause))
            .routes(routes!(resume)),
        ..Routes::default()
    }
}

/// Get a job with everything that is known about it.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(InJob),
    responses((status = 200, description = "The job.", body = JobDetail)))]
async fn get(
    State(state): State<JobsState>,
    InJob { id }: InJob,
) -> Result<Json<JobDetail>, JobsApiError> {
    let view = state.jobs.view(&id).await?.ok_or_else(unknown)?;
    Ok(Json(view.into()))
}

/// One line of a job's log.
#[derive(Debug, Serialize, ToSchema)]
struct LogLine {
    /// Time at which it was written.
    logged_at: Timestamp,
    /// The text of the line.
    line: String,
}

/// List the log lines of a job, oldest first; the latest few are kept.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs", tag = "jobs", operation_id = "list_logs",
    params(InJob, PageQuery),
    responses((status = 200, description = "A page of lines.", body = Page<LogLine>)))]
async fn logs(
    State(state): State<JobsState>,
    InJob { id }: InJob,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<LogLine>>, JobsApiError> {
    let jobs = &state.jobs;
    let (offset, limit) = (page.offset()?, page.limit()?);
    let lines = jobs.logs(&id).await?;
    if lines.is_empty() && jobs.status(&id).await?.is_none() {
        return Err(unknown().into());
    }
    let line = |(at, line)| LogLine { logged_at: Timestamp(jobs::Millis(at)), line };
    let lines = lines.into_iter().skip(offset).take(limit).map(line).collect();
    Ok(Json(Page::at(offset, limit, lines)))
}

/// The reason for a cancellation.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = CancelRequest, example = json!({ "reason": "ordered twice" }))]
struct CancelBody {
    /// For people.
    reason: String,
}

/// The outcome of an action on a job or schedule.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ActionOutcome {
    /// It has ended.
    Ended,
    /// It is active, and its worker was asked to stop.
    Asked,
    /// It is due at once.
    Due,
    /// It waits again, with all its attempts.
    Replayed,
    /// It was put in line.
    Dispatched,
    /// It is stored.
    Stored,
    /// It was there and has changed.
    Changed,
    /// It is gone.
    Removed,
    /// It is paused.
    Paused,
    /// It goes on.
    Resumed,
}

/// The result of an action on a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ActionReply {
    /// Id of the job.
    pub(super) id: String,
    /// The outcome.
    pub(super) outcome: ActionOutcome,
}

/// The answer to a change, on record as `act`.
pub(super) fn done(
    act: &'static str,
    id: &JobId,
    outcome: ActionOutcome,
) -> (Extension<Note>, Json<ActionReply>) {
    (Extension(Note::new(act, id.as_str())), Json(ActionReply { id: id.to_string(), outcome }))
}

/// Cancel a job: one that has not started ends, one that runs is asked to stop.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job", request_body = Option<CancelBody>,
    params(InJob),
    responses((status = 200, description = "Done.", body = ActionReply),
        (status = 409, description = "It has ended already.", body = ErrorBody)))]
async fn cancel(
    State(state): State<JobsState>,
    InJob { id }: InJob,
    OptionalJson(body): OptionalJson<CancelBody>,
) -> Result<impl IntoResponse, JobsApiError> {
    let outcome = match state.jobs.cancel(&id, &body.reason).await? {
        CancelOutcome::Ended => ActionOutcome::Ended,
        CancelOutcome::Asked => ActionOutcome::Asked,
    };
    Ok(done("job.cancel", &id, outcome))
}

/// Run a job now: one that waits for its time or for its next attempt is due at once, one that has
/// ended runs once more.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(InJob),
    responses((status = 200, description = "`due` or `replayed`.", body = ActionReply),
        (status = 409, description = "It is in line or runs already.", body = ErrorBody)))]
async fn retry(
    State(state): State<JobsState>,
    InJob { id }: InJob,
) -> Result<impl IntoResponse, JobsApiError> {
    let outcome = match state.jobs.retry(&id).await? {
        RetryOutcome::Due => ActionOutcome::Due,
        RetryOutcome::Replayed => ActionOutcome::Replayed,
    };
    Ok(done("job.retry", &id, outcome))
}

/// Delete a job that has ended: its data, result, history and log.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs", operation_id = "remove_job",
    params(InJob),
    responses((status = 200, description = "Gone.", body = ActionReply),
        (status = 409, description = "It has not ended.", body = ErrorBody)))]
async fn remove(
    State(state): State<JobsState>,
    InJob { id }: InJob,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.remove(&id).await?;
    Ok(done("job.remove", &id, ActionOutcome::Removed))
}

/// Options of a replay.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ReplayRequest, example = json!({ "payload": { "to": "ann@example.org" } }))]
struct ReplayBody {
    /// Another payload instead of the one it had: any JSON, at most 256 KiB.
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
}

/// Run a job that has ended once more, with all its attempts, optionally with another payload.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/replay", tag = "jobs", operation_id = "replay_job", request_body = Option<ReplayBody>,
    params(InJob),
    responses((status = 200, description = "In line again.", body = ActionReply),
        (status = 409, description = "It has not ended.", body = ErrorBody)))]
async fn replay(
    State(state): State<JobsState>,
    InJob { id }: InJob,
    OptionalJson(body): OptionalJson<ReplayBody>,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.replay_with(&id, body.payload).await?;
    Ok(done("job.replay", &id, ActionOutcome::Replayed))
}

/// A job type and whether it is paused.
#[derive(Debug, Serialize, ToSchema)]
struct TypeState {
    /// The type.
    #[serde(rename = "type")]
    job_type: String,
    /// Does no job of it start?
    paused: bool,
}

/// Pause a type: no job of it starts until it is resumed. Active jobs go on.
#[utoipa::path(post, path = "/api/v1/jobs/types/{type}/pause", tag = "jobs",
    operation_id = "pause_type",
    params(("type" = String, Path, description = "The job type.")),
    responses((status = 200, description = "Paused.", body = TypeState)))]
async fn pause(
    State(state): State<JobsState>,
    Path(job_type): Path<String>,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.pause(&JobType::foreign(job_type.as_str())?).await?;
    let note = Note::new("job_type.pause", &job_type);
    Ok((Extension(note), Json(TypeState { job_type, paused: true })))
}

/// Resume a paused type.
#[utoipa::path(post, path = "/api/v1/jobs/types/{type}/resume", tag = "jobs",
    operation_id = "resume_type",
    params(("type" = String, Path, description = "The job type.")),
    responses((status = 200, description = "Resumed.", body = TypeState)))]
async fn resume(
    State(state): State<JobsState>,
    Path(job_type): Path<String>,
) -> Result<impl IntoResponse, JobsApiError> {
    state.jobs.resume(&JobType::foreign(job_type.as_str())?).await?;
    let note = Note::new("job_type.resume", &job_type);
    Ok((Extension(note), Json(TypeState { job_type, paused: false })))
}
