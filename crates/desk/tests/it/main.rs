#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_desk as desk;

mod archive;
mod chat;
mod chat_model;
mod chat_rules;
mod cluster_redis;
mod descriptor;
mod example_redis;
mod limit;
mod limit_redis;
mod merge;
mod outage_redis;
mod outgoing;
mod prepay;
mod report;
mod support;
mod timing;
mod tower_layer;
mod traffic;
mod traps;
mod users;
