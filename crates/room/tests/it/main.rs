#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_room as room;

mod admit;
mod enqueue;
mod find;
mod model;
mod order;
mod pass_check;
mod queue;
mod schedule;
mod session;
mod share;
mod silence;
mod support;
mod together;
mod token;
mod traps;
mod trouble_redis;
mod watch;
