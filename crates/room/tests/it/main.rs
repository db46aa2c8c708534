#![allow(clippy::unwrap_used, missing_docs)]

mod admit;
mod gate;
mod join;
mod model;
mod order;
mod queue;
mod schedule;
mod session;
mod silence;
mod support;
mod together;
mod token;
mod traps;
mod trouble_redis;
mod watch;
