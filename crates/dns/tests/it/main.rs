#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_dns as dns;

mod cluster_redis;
mod l1;
mod listen;
mod resolve;
mod support;
mod upstream;
