//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod audit;
mod dashboard;
mod fixture;
mod front;
mod guard;
mod health;
mod jobs;
mod live;
mod openapi;
mod room;
mod room_limits;
mod room_stream;
mod serve;
mod store;
mod waiting;
