//! Commands for operators: users, clients, settings, statistics.
//!
//! No data type and no service needs this; a reader of the core can skip it.

pub(crate) mod acl;
pub(crate) mod client;
pub(crate) mod command_info;
pub(crate) mod config;
pub(crate) mod debug;
pub(crate) mod info;
pub(crate) mod latency;
pub(crate) mod server;
pub(crate) mod slowlog;
pub(crate) mod traffic;
