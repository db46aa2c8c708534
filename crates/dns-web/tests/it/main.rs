//! The resolver over HTTP, through the router, on every store.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_dns_web as dns_web;

mod cache;
mod doh;
mod operations;
mod policy;
mod support;
