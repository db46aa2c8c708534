//! The resolver: forwards, caches and filters DNS queries; its cache outlives the process.
//!
//! Read in this order: `name.rs` (names and their two spellings), `keys.rs`, `wire.rs` (messages),
//! `l1.rs` (the cache in the store), `l0.rs` (the cache in memory),
//! `upstream.rs` (the servers queries are forwarded to),
//! `resolver.rs` (a query in, a reply out), `listen.rs` (UDP and TCP).

mod error;
mod keys;
mod l0;
mod l1;
mod listen;
mod name;
mod resolver;
mod upstream;
pub mod wire;

pub use crate::{
    error::Error,
    keys::Question,
    l0::{FrontTable, L0, L0Entry, L0Key, L0Stats},
    l1::{DueAnswer, L1, L1Options, RefreshLock, StoredAnswer, StoredEntry},
    listen::{ListenOptions, ListenStats, Listeners},
    name::{DomainName, NameError},
    resolver::{
        HitResult, RefreshPreset, Resolver, ResolverOptions, StaleOptions, SweepReport, Transport,
    },
    upstream::{
        UpstreamAddress, UpstreamError, UpstreamOptions, UpstreamProtocol, UpstreamStats,
        UpstreamStrategy, Upstreams,
    },
};
