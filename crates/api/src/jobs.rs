//! The job queue over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `jobs` crate and translate; nothing here decides anything about the
//! service. `work.rs` is what producers and workers call, `admin.rs` what people who look and
//! operators call, `view.rs` the bodies of both.

mod admin;
mod view;
mod work;

use axum::http::StatusCode;
use jobs::{Error, JobId, Jobs};
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::section::Section;

/// The routes.
pub(crate) fn section() -> Section {
    work::section().merge(admin::section())
}

/// The queue, if it runs here.
fn queue(app: &App) -> Result<&Jobs, ApiError> {
    app.services().jobs.as_ref().ok_or_else(|| {
        ApiError::unavailable("SERVICE_OFF", "the job queue does not run on this instance")
    })
}

fn job_id(text: &str) -> Result<JobId, ApiError> {
    // A name that cannot be is a job that is not.
    JobId::parse(text).map_err(|_| unknown())
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
