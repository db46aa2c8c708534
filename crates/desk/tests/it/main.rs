#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_desk as desk;

mod cluster_redis;
mod example_redis;
mod limit;
mod limit_redis;
mod prepay;
mod support;
mod traffic;
mod traps;
mod users;
