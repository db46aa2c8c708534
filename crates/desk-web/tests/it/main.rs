//! The desk over HTTP, on every store.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod bad_input;
mod chat;
mod delivery;
mod envoy;
mod limits;
mod otlp;
mod own_limits;
mod protobuf;
mod reports;
mod support;
mod traffic;
mod users;
