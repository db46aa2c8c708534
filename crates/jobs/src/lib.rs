//! A job queue on the BridgeMQ v1 schema: routes jobs to workers in any language.

mod backoff;
pub mod cron;
mod error;
mod ids;
mod job;
mod json;
mod route;

pub use store::Millis;

pub use crate::{
    backoff::{Growth, WAIT_MAX},
    cron::Cron,
    error::Error,
    ids::{JobId, JobType, NAME_MAX, Namespace, ServerId},
    job::{
        Backoff, CatchUp, Job, JobError, JobResult, Malformed, NewJob, OnParentFailure, Overlap,
        PARENTS_MAX, PAYLOAD_MAX, Priority, Progress, RateLimit, Retry, Schedule, Shape, Status,
        Task,
    },
    route::{Labels, Mode, Route, Server, Target},
};
