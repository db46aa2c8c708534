//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_room_web as room_web;

mod api;
mod limits;
mod metrics;
mod proxy;
mod run;
mod secrets;
mod stream;
mod waiting_page;
