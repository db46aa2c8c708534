//! The one door to data: one handle, several backends, scripts, keys, time.
//!
//! [`Store`] is a cheap clone that implements redis-rs's [`ConnectionLike`](redis::aio::ConnectionLike),
//! so typed commands, pipelines and [`script!`] work on it, and a service cannot tell which store it
//! runs on. Invariant: no call through a `Store` waits without a deadline; when the data is out of
//! reach the caller gets [`Error::Unavailable`].
//!
//! Read in this order: [`Store`] here, `options.rs` (what can be set), `connection.rs` (the seam
//! between the handle and its backends), `link.rs` (how a connection is kept), `script.rs`,
//! `key.rs`, `clock.rs`, `error.rs`. Building blocks that several services need stand on these:
//! [`lease`], [`limit`], [`events`], [`counter`], [`expiry`], [`histogram`], [`history`], [`webhook`]. `transfer.rs`
//! moves data between stores and files.
//!
//! The built-in store is the feature `embedded`, on by default. Without it the engine, Lua and
//! persistence are not compiled, opening `embedded:` fails, and what is left is a client for
//! servers.
//!
//! ```no_run
//! # async fn example() -> Result<(), tidegate_store::Error> {
//! use tidegate_store::redis::AsyncCommands;
//!
//! let mut store = tidegate_store::Store::open("redis://127.0.0.1:6379").await?;
//! store.set::<_, _, ()>("greeting", "hello").await?;
//! let text: String = store.get("greeting").await?;
//! # assert_eq!(text, "hello"); Ok(()) }
//! ```

pub mod batcher;
mod blocking;
pub mod clock;
mod connection;
pub mod counter;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
pub mod events;
pub mod expiry;
mod faults;
#[cfg(feature = "embedded")]
mod fsync;
pub mod histogram;
pub mod history;
mod key;
pub mod key_map;
pub mod lease;
pub mod limit;
mod link;
#[cfg(not(feature = "embedded"))]
mod no_embedded;
mod options;
pub mod script;
mod scripts;
mod server;
pub mod subscribe;
pub mod trace;
#[cfg(feature = "embedded")]
pub mod transfer;
pub mod webhook;

#[cfg(feature = "embedded")]
pub use engine::EvictionPolicy;
pub use redis;

#[cfg(feature = "embedded")]
pub use crate::fsync::Fsync;
pub use crate::{
    blocking::BlockingConnection,
    clock::{Clock, ManualClock, Millis},
    connection::{Health, Store, StoreKind},
    error::Error,
    faults::Faults,
    key::{Key, Layout},
    options::{Options, Timeouts},
    script::Script,
    subscribe::{PubsubMessage, Subscription},
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
