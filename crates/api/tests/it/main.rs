//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod audit;
mod fixture;
mod front;
mod health;
mod openapi;
