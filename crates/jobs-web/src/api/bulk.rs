//! Bulk actions for operators: jobs selected by state, type and text.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{BulkAction, Filter, JobList, Jobs};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::lists::ListName;
use crate::error::{JobsApiError, api_error};
use crate::service::JobsState;
use web::ApiError;
use web::Routes;
use web::audit::Note;
use web::extract::Json;

/// Most jobs one call changes.
const MOST: usize = 10_000;

/// The routes.
pub(super) fn routes() -> Routes<JobsState> {
    Routes {
        operator: OpenApiRouter::new()
            .routes(routes!(replay_many))
            .routes(routes!(retry_many))
            .routes(routes!(cancel_many))
            .routes(routes!(remove_many)),
        ..Routes::default()
    }
}

/// Selects jobs. At least one of `all`, `state`, `type` and `text` is required.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "state": "dead", "type": "mail" }))]
struct BulkSelection {
    /// Every job of the list; not together with `type` or `text`.
    all: bool,
    /// In which list they are; each call says which lists it knows, and the first of them counts
    /// if left out.
    state: Option<ListName>,
    /// Only jobs of this type.
    #[serde(rename = "type")]
    job_type: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// Most jobs to change: 1 to 10,000; 10,000 if left out.
    limit: Option<usize>,
    /// The `next_cursor` of the call before, to continue there.
    cursor: Option<String>,
    /// Reason shown to people; only where jobs are cancelled.
    reason: Option<String>,
}

/// The result for one job of a bulk action.
#[derive(Debug, Serialize, ToSchema)]
struct BulkOutcome {
    /// Id of the job.
    id: String,
    /// True if it was changed; false if it fits and could not be.
    changed: bool,
    /// The code of the error, if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The error in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// The result of a bulk action.
#[derive(Debug, Serialize, ToSchema)]
struct BulkReply {
    /// Number of jobs that were changed.
    count: usize,
    /// One outcome per job that fits: first those that were changed, then those that could not be.
    items: Vec<BulkOutcome>,
    /// Cursor for the next call; null when no more jobs fit.
    #[schema(required)]
    next_cursor: Option<String>,
}

impl BulkSelection {
    /// Refuses a choice that names nothing: a forgotten filter must not mean every job.
    fn check(&self) -> Result<(), JobsApiError> {
        let narrowed = self.job_type.is_some() || self.text.is_some();
        match (self.all, narrowed || self.state.is_some()) {
            (false, false) => Err(ApiError::invalid_field(
                "all",
                "name the jobs by state, type or text, or send {\"all\": true} to mean every one",
            )
            .into()),
            (true, _) if narrowed => Err(ApiError::invalid_field(
                "all",
                "all means every job: leave it out, or leave out type and text",
            )
            .into()),
            _ => Ok(()),
        }
    }
}

async fn change(
    jobs: &Jobs,
    choice: BulkSelection,
    known: &[JobList],
    bulk: BulkAction,
    action: &'static str,
) -> Result<impl IntoResponse + use<>, JobsApiError> {
    choice.check()?;
    let which = match choice.state {
        Some(state) => state.into(),
        None => known.first().copied().unwrap_or(JobList::Dead),
    };
    if !known.contains(&which) {
        let names: Vec<&str> = known.iter().map(|which| which.as_str()).collect();
        let message = format!("this call is for jobs that are {}", names.join(" or "));
        return Err(ApiError::invalid_field("state", message).into());
    }
    let shown = format!(
        "{} type={} text={}",
        which.as_str(),
        choice.job_type.as_deref().unwrap_or("*"),
        choice.text.as_deref().unwrap_or("*")
    );
    let filter = Filter { which: Some(which), job_type: choice.job_type, text: choice.text };
    let limit = match choice.limit.unwrap_or(MOST) {
        limit @ 1..=MOST => limit,
        _ => return Err(ApiError::invalid_field("limit", "a call changes 1 to 10,000 jobs").into()),
    };
    let from = match choice.cursor.as_deref() {
        None => None,
        Some(cursor) => Some(cursor.parse::<jobs::Cursor>().map_err(|_| {
            ApiError::invalid_field("cursor", "send the next_cursor of the call before")
        })?),
    };
    let done = jobs.bulk(&filter, &bulk, from, limit).await?;
    let count = done.done.len();
    let changed = done.done.into_iter().map(|id| BulkOutcome {
        id: id.to_string(),
        changed: true,
        code: None,
        message: None,
    });
    let refused = done.refused.into_iter().map(|(id, error)| {
        let error = api_error(error);
        BulkOutcome {
            id: id.to_string(),
            changed: false,
            code: Some(error.code()),
            message: Some(error.message().to_owned()),
        }
    });
    let body = BulkReply {
        count,
        items: changed.chain(refused).collect(),
        next_cursor: done.next.map(|place| place.to_string()),
    };
    Ok((Extension(Note::new(action, &shown)), Json(body)))
}

/// Run many ended jobs once more. `state` is `dead` or `finished`.
#[utoipa::path(post, path = "/api/v1/jobs/replay", tag = "jobs", operation_id = "replay_many", request_body = BulkSelection,
    responses((status = 200, description = "What was done.", body = BulkReply)))]
async fn replay_many(
    State(state): State<JobsState>,
    Json(choice): Json<BulkSelection>,
) -> Result<impl IntoResponse, JobsApiError> {
    change(
        &state.jobs,
        choice,
        &[JobList::Dead, JobList::Finished],
        BulkAction::Replay,
        "jobs.replay",
    )
    .await
}

/// Run many jobs now. `state` is `delayed` (they are due at once) or `dead` (they run once more).
#[utoipa::path(post, path = "/api/v1/jobs/retry", tag = "jobs", operation_id = "retry_many", request_body = BulkSelection,
    responses((status = 200, description = "What was done.", body = BulkReply)))]
async fn retry_many(
    State(state): State<JobsState>,
    Json(choice): Json<BulkSelection>,
) -> Result<impl IntoResponse, JobsApiError> {
    change(&state.jobs, choice, &[JobList::Delayed, JobList::Dead], BulkAction::Retry, "jobs.retry")
        .await
}

/// Cancel many jobs. `state` is `waiting`, `delayed` or `active`.
#[utoipa::path(post, path = "/api/v1/jobs/cancel", tag = "jobs", operation_id = "cancel_many", request_body = BulkSelection,
    responses((status = 200, description = "What was done.", body = BulkReply)))]
async fn cancel_many(
    State(state): State<JobsState>,
    Json(mut choice): Json<BulkSelection>,
) -> Result<impl IntoResponse, JobsApiError> {
    let bulk = BulkAction::Cancel(choice.reason.take().unwrap_or_default());
    let known = [JobList::Waiting, JobList::Delayed, JobList::Active];
    change(&state.jobs, choice, &known, bulk, "jobs.cancel").await
}

/// Forget many ended jobs. `state` is `dead` or `finished`.
#[utoipa::path(post, path = "/api/v1/jobs/remove", tag = "jobs", operation_id = "remove_many", request_body = BulkSelection,
    responses((status = 200, description = "What was done.", body = BulkReply)))]
async fn remove_many(
    State(state): State<JobsState>,
    Json(choice): Json<BulkSelection>,
) -> Result<impl IntoResponse, JobsApiError> {
    change(
        &state.jobs,
        choice,
        &[JobList::Dead, JobList::Finished],
        BulkAction::Remove,
        "jobs.remove",
    )
    .await
}
