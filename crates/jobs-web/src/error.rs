//! Errors of the job queue as clients see them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jobs::Error;
use serde_json::json;
use web::ApiError;

/// An error of a call about jobs. Handlers return it, so that `?` works on errors of the queue, of the
/// store and of the frame alike.
#[derive(Debug)]
pub(crate) struct JobsApiError(ApiError);

impl From<ApiError> for JobsApiError {
    fn from(error: ApiError) -> JobsApiError {
        JobsApiError(error)
    }
}

impl From<store::Error> for JobsApiError {
    fn from(error: store::Error) -> JobsApiError {
        JobsApiError(error.into())
    }
}

impl From<Error> for JobsApiError {
    fn from(error: Error) -> JobsApiError {
        JobsApiError(api_error(error))
    }
}

impl From<JobsApiError> for ApiError {
    fn from(error: JobsApiError) -> ApiError {
        error.0
    }
}

impl IntoResponse for JobsApiError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// 404: there is no job of this id.
pub(crate) fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "JOB_NOT_FOUND", "there is no job of this id")
}

/// Translates an error of the queue.
pub(crate) fn api_error(error: Error) -> ApiError {
    match error {
        Error::Invalid { message } => ApiError::invalid(message),
        Error::NotFound(_) => unknown(),
        Error::NoWorker(_) => ApiError::new(
            StatusCode::NOT_FOUND,
            "WORKER_NOT_FOUND",
            "there is no worker of this id; list them with GET /api/v1/jobs/workers",
        ),
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
        Error::KeyReused(id) => web::idempotency::reused().details(json!({ "id": id.as_str() })),
        Error::LeaseLost(_) => ApiError::conflict(
            "LEASE_LOST",
            "this worker no longer holds the job; its result does not count",
        ),
        Error::Overdue(_) => ApiError::conflict(
            "JOB_TIMED_OUT",
            "the attempt has run longer than the job's timeout_ms allows; it ends as a timeout, \
             and what was done for it does not count",
        ),
        Error::Malformed { reason, .. } => {
            ApiError::conflict("JOB_MALFORMED", "the stored job cannot be understood")
                .details(json!({ "reason": reason }))
        }
        Error::Store(error) => error.into(),
        other => ApiError::internal(&other),
    }
}
