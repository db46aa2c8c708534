//! The job queue over HTTP: request and response types, handlers, and who may call them.
//!
//! Handlers extract, call the `jobs` crate and translate; nothing here decides anything about the
//! service. `work.rs` is what producers and workers call, `admin.rs` what people who look and
//! operators call about one job, `lists.rs` and `bulk.rs` about many, `schedules.rs` about recurring
//! ones, `events.rs` what happens as it happens, `cancellations.rs` what a worker shall stop, `view.rs`
//! the bodies of all.
//!
//! Paths: one job is `/api/v1/jobs/{id}`. Beside it stand the fixed segments of [`RESERVED_IDS`], so no
//! job may be dispatched under one of those names; a job that some other program stored under one is
//! listed, and can be worked on, but not addressed.

mod admin;
mod bulk;
mod cancellations;
mod events;
mod lists;
mod schedules;
mod view;
mod work;

use jobs::JobId;
use web::extract::in_path;
use web::{ApiError, Routes};

use crate::error::{JobsApiError, unknown};
use crate::service::JobsState;

/// The routes.
pub(crate) fn routes() -> Routes<JobsState> {
    work::routes()
        .merge(admin::routes())
        .merge(lists::routes())
        .merge(bulk::routes())
        .merge(schedules::routes())
        .merge(events::routes())
        .merge(cancellations::routes())
}

/// Fixed segments below `/api/v1/jobs`, which are no ids of jobs.
pub(crate) const RESERVED_IDS: [&str; 16] = [
    "bulk",
    "cancel",
    "cancellations",
    "claim",
    "dead",
    "events",
    "lanes",
    "preview",
    "remove",
    "replay",
    "retry",
    "schedules",
    "stats",
    "types",
    "unroutable",
    "workers",
];

/// Parses the id of a job or schedule to be stored.
fn new_id(text: String) -> Result<JobId, JobsApiError> {
    if RESERVED_IDS.contains(&text.as_str()) {
        let message = format!("{text:?} is part of an address of the API; choose another id");
        return Err(ApiError::invalid_field("id", message).into());
    }
    Ok(JobId::parse(text)?)
}

fn job_id(text: &str) -> Result<JobId, ApiError> {
    // An invalid id cannot exist, so answer 404 rather than 400.
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

#[cfg(test)]
mod tests {
    use super::*;
    use web::service::Service as _;

    #[test]
    fn every_fixed_segment_beside_an_id_is_reserved() {
        let document = crate::service::JobsService.document();
        let mut segments: Vec<&str> = document
            .paths
            .paths
            .keys()
            .filter_map(|path| path.strip_prefix("/api/v1/jobs/")?.split('/').next())
            .filter(|segment| !segment.starts_with('{'))
            .collect();
        segments.sort_unstable();
        segments.dedup();
        assert_eq!(segments, RESERVED_IDS);
    }
}
