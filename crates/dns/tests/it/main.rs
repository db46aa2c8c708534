#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_dns as dns;

mod bad_input;
mod cluster_redis;
mod faults;
mod filter;
mod fuzz;
mod l1;
mod listen;
mod peers;
mod policy_store;
mod query_log;
mod recorder;
mod resolve;
mod scenario;
mod statistics;
mod support;
mod tls;
mod upstream;
