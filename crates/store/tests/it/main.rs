//! What every store must do, before any service relies on it.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_store as store;

mod blocking;
mod cluster_redis;
mod commands;
mod counter;
mod events;
mod expiry;
mod faults;
mod history;
mod lease;
mod limit;
mod limit_model;
mod outage_redis;
mod persist;
mod save;
mod script;
mod sentinel_redis;
mod subscribe;
mod tls_redis;
mod transfer;
mod webhook;
