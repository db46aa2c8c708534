//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod audit;
mod dashboard;
mod health;
mod live;
mod middleware;
mod serve;
mod service;
mod store;
