//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_jobs_web as jobs_web;

mod api;
mod calls;
mod credentials;
mod metrics;
