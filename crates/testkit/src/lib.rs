//! What tests share: every store, real servers, clients. A dev-dependency only.
//!
//! - [`each_store!`] writes a test once and runs it on the built-in store and on real servers.
//! - [`scripts_test!`] checks a service's Lua files against their declarations.
//! - [`RedisServer`], [`Cluster`] and [`Sentinel`] are servers of one's own: started on free ports,
//!   ended on drop, also when the test is killed.
//! - [`Proxy`] stands between a store and its server and misbehaves on command.
//! - [`until`] waits for a condition, with an end.
//!
//! A missing server is a failure with instructions, never a silent pass; `STORES=embedded` or
//! `STORES=redis,valkey` is the explicit way to leave some stores out.

mod cluster;
mod dragonfly;
pub mod each_store;
mod process;
mod proxy;
mod redis_server;
pub mod scripts;
mod sentinel;
pub mod tls;
mod wait;

pub use crate::{
    cluster::Cluster,
    dragonfly::DragonflyRules,
    each_store::TestStore,
    proxy::Proxy,
    redis_server::RedisServer,
    sentinel::Sentinel,
    wait::{until, until_blocking},
};
