//! What tests share: every store, real servers, clients. A dev-dependency only.
//!
//! - [`each_store!`] writes a test once and runs it on the built-in store and on real servers.
//! - [`scripts_test!`] checks a service's Lua files against their declarations.
//! - [`each_archive!`] writes a test of the chat once and runs it on stores and archives.
//! - [`RedisServer`], [`PostgresServer`], [`Cluster`] and [`Sentinel`] are servers of one's own: started on free ports,
//!   ended on drop, also when the test is killed.
//! - [`DnsServer`] is a DNS server of one's own: nsd, Unbound, PowerDNS Recursor or dnsmasq.
//! - [`Proxy`] stands between a store and its server and misbehaves on command.
//! - [`content`](content()) reads everything in a store, to compare two of them.
//! - [`until`] waits for a condition, with an end.
//!
//! A missing server is a failure with instructions, never a silent pass; `STORES=embedded` or
//! `STORES=redis,valkey` is the explicit way to leave some stores out.

mod cluster;
mod content;
pub mod dns_message;
mod dns_server;
mod dragonfly;
pub mod each_store;
mod port;
mod postgres_server;
mod process;
mod proxy;
mod redis_server;
pub mod scripts;
mod sentinel;
pub mod tls;
mod wait;

pub use crate::{
    cluster::Cluster,
    content::content,
    dns_server::{DnsServer, TestZone, run_dns_client},
    dragonfly::DragonflyRules,
    each_store::TestStore,
    port::{reserve_address, reserve_port},
    postgres_server::{PostgresServer, TestArchive, is_left_out},
    proxy::{Cutter, Proxy},
    redis_server::RedisServer,
    sentinel::Sentinel,
    wait::{HANG, until, until_blocking},
};
