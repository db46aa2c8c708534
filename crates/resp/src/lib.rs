//! The built-in store over RESP2 and RESP3: redis-cli and workers in other languages reach it.
//!
//! One thread serves all clients. In each turn it reads what has come, runs it under one lock of
//! the store, writes the log once, and only then sends replies. Invariant: no reply leaves before
//! the store says that the replies may be sent.
//!
//! Read in this order: [`RespListener`] here, `listener.rs` (the loop), `client.rs` (one
//! connection), `codec.rs` (bytes to arguments, replies to bytes), `stream.rs` (plain or TLS),
//! `throttle.rs` (wrong passwords).

mod client;
mod codec;
mod listener;
mod stream;
mod throttle;

pub use store;

pub use crate::codec::{CommandDecoder, DecodeStep, RequestLimits, encode};
pub use crate::listener::{Config, Error, RespListener};
pub use crate::stream::TlsSource;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
