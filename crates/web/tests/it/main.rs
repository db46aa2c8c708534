//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_web as web;

mod access;
mod audit;
mod dashboard;
mod health;
mod history;
mod idempotency;
mod live;
mod middleware;
mod serve;
mod service;
mod store;
mod webhook;
mod weight;
