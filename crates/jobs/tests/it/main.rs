#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cancel;
mod claim;
mod depend;
mod dispatch;
mod keeper;
mod keys;
mod scheduler;
mod support;
mod v1;
mod wait;
mod walk;
mod worker;
