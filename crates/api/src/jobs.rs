//! The job queue over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `jobs` crate and translate; nothing here decides anything about the
//! service. `work.rs` is what producers and workers call, `admin.rs` what people who look and
//! operators call about one job, `lists.rs` and `bulk.rs` about many, `schedules.rs` about recurring
//! ones, `events.rs` what happens as it happens, `cancellations.rs` what a worker shall stop, `view.rs`
//! the bodies of all.
//!
//! Paths: what is about all jobs is under `/api/v1/jobs`, what is about one under `/api/v1/job/{id}`.
//! So a job of any id can be reached, even one called `stats`.

mod admin;
mod bulk;
mod cancellations;
mod events;
mod lists;
mod schedules;
mod view;
mod work;

use axum::extract::OriginalUri;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::any;
use utoipa_axum::router::OpenApiRouter;

use axum::http::StatusCode;
use jobs::{Error, JobId, JobType, Jobs, Namespace};
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::extract::in_path;
use crate::section::Section;

/// The routes.
pub(crate) fn section() -> Section {
    let moved = Section {
        public: OpenApiRouter::new()
            .route("/api/v1/jobs/{id}", any(one))
            .route("/api/v1/jobs/{id}/{act}", any(one)),
        ..Section::default()
    };
    work::section()
        .merge(admin::section())
        .merge(lists::section())
        .merge(bulk::section())
        .merge(schedules::section())
        .merge(events::section())
        .merge(cancellations::section())
        .merge(moved)
}

/// Who asks for one job among the many is sent to where it is. Needs no credential: it says nothing
/// about the job.
async fn one(OriginalUri(uri): OriginalUri) -> Response {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    match path.strip_prefix("/api/v1/jobs/") {
        Some(rest) => Redirect::permanent(&format!("/api/v1/job/{rest}")).into_response(),
        None => unknown().into_response(),
    }
}

/// Says what is wrong with a scope of a new worker's token. Tokens made earlier may have the older
/// spelling `jobs:queue=NAME`, which means `jobs:type=NAME`.
pub(crate) fn check_scope(scope: &str) -> Result<(), String> {
    let known = "use jobs:type=NAME or jobs:namespace=NAME";
    let checked = match scope.split_once('=') {
        Some(("jobs:type", name)) => JobType::parse(name).map(drop),
        Some(("jobs:namespace", name)) => Namespace::parse(name).map(drop),
        _ => return Err(format!("there is no scope {scope:?}: {known}")),
    };
    checked.map_err(|error| format!("the scope {scope:?} names nothing that can be: {error}"))
}

/// The queue, if it runs here.
fn queue(app: &App) -> Result<&Jobs, ApiError> {
    app.services().jobs.as_ref().ok_or_else(|| {
        ApiError::unavailable("SERVICE_OFF", "the job queue does not run on this instance")
    })
}

fn job_id(text: &str) -> Result<JobId, ApiError> {
    // A name that cannot be is a job that is not.
    JobId::foreign(text).map_err(|_| unknown())
}

in_path! {
    /// The job a path names.
    InJob {
        /// Id of the job.
        id: JobId
    } by job_id;

    /// The schedule a path names.
    InSchedule {
        /// Id of the schedule.
        id: JobId
    } by job_id;
}

fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "JOB_NOT_FOUND", "there is no job of this id")
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        match error {
            Error::Invalid { message } => ApiError::invalid(message),
            Error::NotFound(_) => unknown(),
            Error::Conflict { status, .. } => {
                ApiError::conflict("JOB_STATE", format!("this cannot be done: the job is {status}"))
                    .details(json!({ "status": status }))
            }
            Error::IsSchedule(_) => ApiError::conflict(
                "JOB_IS_SCHEDULE",
                "this is a schedule, and nothing of it is in line or runs; stop it with DELETE \
                 /api/v1/jobs/schedules/{id}, or pause it",
            ),
            Error::NoParent(id) => {
                let message = format!("there is no job {id} to depend on");
                ApiError::invalid_field("depends_on", message).details(json!({
                    "field": "depends_on",
                    "id": id.as_str(),
                }))
            }
            Error::KeyReused(id) => ApiError::conflict(
                "IDEMPOTENCY_KEY_REUSED",
                "this idempotency key was used for another request; use a new key, or repeat the \
                 request as it was",
            )
            .details(json!({ "id": id.as_str() })),
            Error::LeaseLost(_) => ApiError::conflict(
                "LEASE_LOST",
                "the job is not this worker's any more; what was done for it does not count",
            ),
            Error::Malformed { reason, .. } => {
                ApiError::conflict("JOB_MALFORMED", "the stored job cannot be understood")
                    .details(json!({ "reason": reason }))
            }
            Error::Store(error) => error.into(),
            other => ApiError::internal(&other),
        }
    }
}
