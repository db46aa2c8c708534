#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

extern crate tidegate_jobs as jobs;

mod cancel;
mod chaos_redis;
mod claim;
mod cluster_redis;
mod depend;
mod dispatch;
mod foreign_redis;
mod keys;
mod maintenance;
mod scheduler;
mod support;
mod understand;
mod v1;
mod wait;
mod walk;
mod worker;
