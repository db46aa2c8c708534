//! The HTTP side without a socket: each test calls the router.
#![allow(clippy::unwrap_used, missing_docs)]

mod api;
mod credentials;
