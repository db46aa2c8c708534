//! What people call about one job or one type: look, cancel, retry, replay, remove; pause, resume.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{Cancelled, JobId, JobType, Retried};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view::JobDetail;
use super::{InJob, queue, unknown};
use crate::app::App;
use crate::audit::Note;
use crate::error::{ApiError, ErrorBody};
use crate::extract::{Json, OptionalJson, Path};
use crate::section::Section;

/// The routes.
pub(super) fn section() -> Section {
    Section {
        viewer: OpenApiRouter::new().routes(routes!(get)).routes(routes!(logs)),
        operator: OpenApiRouter::new()
            .routes(routes!(cancel))
            .routes(routes!(retry))
            .routes(routes!(replay))
            .routes(routes!(remove))
            .routes(routes!(pause))
            .routes(routes!(resume)),
        ..Section::default()
    }
}

/// A job with everything there is to know about it.
#[utoipa::path(get, path = "/api/v1/job/{id}", tag = "jobs",
    params(InJob),
    responses((status = 200, description = "The job.", body = JobDetail)))]
async fn get(State(app): State<App>, InJob { id }: InJob) -> Result<Json<JobDetail>, ApiError> {
    let view = queue(&app)?.view(&id).await?.ok_or_else(unknown)?;
    Ok(Json(view.into()))
}

/// One line of a job's log.
#[derive(Debug, Serialize, ToSchema)]
struct LogLine {
    /// When, in milliseconds since 1970.
    at_ms: i64,
    /// What.
    line: String,
}

/// A job's log.
#[derive(Debug, Serialize, ToSchema)]
struct Log {
    /// Oldest first; the latest few are kept.
    lines: Vec<LogLine>,
}

/// What a job's handlers have written to its log.
#[utoipa::path(get, path = "/api/v1/job/{id}/logs", tag = "jobs", operation_id = "job_logs",
    params(InJob),
    responses((status = 200, description = "The log.", body = Log)))]
async fn logs(State(app): State<App>, InJob { id }: InJob) -> Result<Json<Log>, ApiError> {
    let jobs = queue(&app)?;
    let lines = jobs.logs(&id).await?;
    if lines.is_empty() && jobs.status(&id).await?.is_none() {
        return Err(unknown());
    }
    let line = |(at_ms, line)| LogLine { at_ms, line };
    Ok(Json(Log { lines: lines.into_iter().map(line).collect() }))
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
pub(super) struct Done {
    /// Id of the job.
    pub(super) id: String,
    /// `ended`, `asked` (it runs and was told to stop), `due`, `replayed`, `stored`, `changed`,
    /// `removed`, `paused` or `resumed`.
    pub(super) outcome: &'static str,
}

/// The answer to a change, on record as `act`.
pub(super) fn done(
    act: &'static str,
    id: &JobId,
    outcome: &'static str,
) -> (Extension<Note>, Json<Done>) {
    (Extension(Note::new(act, id.as_str())), Json(Done { id: id.to_string(), outcome }))
}

/// Cancel a job: one that has not started ends, one that runs is asked to stop.
#[utoipa::path(post, path = "/api/v1/job/{id}/cancel", tag = "jobs", request_body = Option<Cancel>,
    params(InJob),
    responses((status = 200, description = "Done.", body = Done),
        (status = 409, description = "It has ended already.", body = ErrorBody)))]
async fn cancel(
    State(app): State<App>,
    InJob { id }: InJob,
    OptionalJson(body): OptionalJson<Cancel>,
) -> Result<impl IntoResponse, ApiError> {
    let outcome = match queue(&app)?.cancel(&id, &body.reason).await? {
        Cancelled::Ended => "ended",
        Cancelled::Asked => "asked",
    };
    Ok(done("job.cancel", &id, outcome))
}

/// Run a job now: one that waits for its time or for its next attempt is due at once, one that has
/// ended runs once more.
#[utoipa::path(post, path = "/api/v1/job/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(InJob),
    responses((status = 200, description = "`due` or `replayed`.", body = Done),
        (status = 409, description = "It is in line or runs already.", body = ErrorBody)))]
async fn retry(State(app): State<App>, InJob { id }: InJob) -> Result<impl IntoResponse, ApiError> {
    let outcome = match queue(&app)?.retry(&id).await? {
        Retried::Due => "due",
        Retried::Replayed => "replayed",
    };
    Ok(done("job.retry", &id, outcome))
}

/// Forget a job that has ended: its data, result, history and log.
#[utoipa::path(delete, path = "/api/v1/job/{id}", tag = "jobs", operation_id = "remove_job",
    params(InJob),
    responses((status = 200, description = "Gone.", body = Done),
        (status = 409, description = "It has not ended.", body = ErrorBody)))]
async fn remove(
    State(app): State<App>,
    InJob { id }: InJob,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.remove(&id).await?;
    Ok(done("job.remove", &id, "removed"))
}

/// How to replay a job.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Replay {
    /// Another payload instead of the one it had: any JSON, at most 256 KiB.
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
}

/// Run a job that has ended once more, with all its attempts, perhaps with another payload.
#[utoipa::path(post, path = "/api/v1/job/{id}/replay", tag = "jobs", request_body = Option<Replay>,
    params(InJob),
    responses((status = 200, description = "In line again.", body = Done),
        (status = 409, description = "It has not ended.", body = ErrorBody)))]
async fn replay(
    State(app): State<App>,
    InJob { id }: InJob,
    OptionalJson(body): OptionalJson<Replay>,
) -> Result<impl IntoResponse, ApiError> {
    queue(&app)?.replay_with(&id, body.payload).await?;
    Ok(done("job.replay", &id, "replayed"))
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
