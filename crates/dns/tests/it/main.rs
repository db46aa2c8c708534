#![allow(clippy::unwrap_used, missing_docs)]

mod cluster_redis;
mod l1;
mod support;
