//! Bulk actions for operators: jobs selected by state, type and text.

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use jobs::{BulkAction, Filter, JobEndReason, JobList, Jobs};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::lists::ListName;
use super::view::ReasonView;
use crate::error::{JobsApiError, api_error};
use crate::service::JobsState;
use web::ApiError;
use web::Routes;
use web::audit::Note;
use web::extract::Json;
use web::format::rfc3339;
use web::time::Timestamp;

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

/// Selects jobs. `all`, `state` or one of the other filters is required.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "state": "dead", "type": "mail" }))]
struct BulkSelection {
    /// Every job of the list; not together with another filter than `state`.
    all: bool,
    /// In which list they are; each call says which lists it knows, and the first of them counts
    /// if left out.
    state: Option<ListName>,
    /// Only jobs of this type.
    #[serde(rename = "type")]
    job_type: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result. Case matters.
    text: Option<String>,
    /// Only jobs that this worker runs, or ran last.
    worker_id: Option<String>,
    /// Only jobs of this priority.
    priority: Option<u8>,
    /// Only jobs with this text in the name or message of their latest error, in any case.
    error: Option<String>,
    /// Only jobs that ended for this reason.
    end_reason: Option<ReasonView>,
    /// Only dead letters of this group.
    group: Option<String>,
    /// Only jobs dispatched at this time or later.
    earliest_created_at: Option<Timestamp>,
    /// Only jobs dispatched before this time.
    latest_created_at: Option<Timestamp>,
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
    fn filter(&self, which: Option<JobList>) -> Filter {
        Filter {
            which,
            job_type: self.job_type.clone(),
            text: self.text.clone(),
            worker_id: self.worker_id.clone(),
            priority: self.priority,
            error: self.error.clone(),
            reason: self.end_reason.map(JobEndReason::from),
            group: self.group.clone(),
            earliest_created_at: self.earliest_created_at.map(|at| at.0),
            latest_created_at: self.latest_created_at.map(|at| at.0),
        }
    }

    /// Refuses a choice that names nothing: a forgotten filter must not mean every job.
    fn check(&self) -> Result<(), JobsApiError> {
        let narrowed = self.filter(None) != Filter::default();
        match (self.all, narrowed || self.state.is_some()) {
            (false, false) => Err(ApiError::invalid_field(
                "all",
                "name the jobs by state, type, text or another filter, or send {\"all\": true} to mean every one",
            )
            .into()),
            (true, _) if narrowed => Err(ApiError::invalid_field(
                "all",
                "all means every job: leave it out, or leave out every filter but state",
            )
            .into()),
            _ => Ok(()),
        }
    }
}

/// A selection for the record.
fn shown(filter: &Filter) -> String {
    let mut words = vec![filter.which.map_or("any", JobList::as_str).to_owned()];
    let given = [
        ("type", filter.job_type.clone()),
        ("text", filter.text.clone()),
        ("worker_id", filter.worker_id.clone()),
        ("priority", filter.priority.map(|priority| priority.to_string())),
        ("error", filter.error.clone()),
        ("end_reason", filter.reason.map(|reason| reason.as_str().to_owned())),
        ("group", filter.group.clone()),
        ("earliest_created_at", filter.earliest_created_at.map(|at| rfc3339(at.0))),
        ("latest_created_at", filter.latest_created_at.map(|at| rfc3339(at.0))),
    ];
    for (name, value) in given {
        words.extend(value.map(|value| format!("{name}={value}")));
    }
    words.join(" ")
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
    let filter = choice.filter(Some(which));
    let shown = shown(&filter);
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

/// Delete many ended jobs. `state` is `dead` or `finished`.
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
