//! The resolver: forwards, caches and filters DNS queries; its cache outlives the process.
//!
//! Read in this order: `name.rs` (names and their two spellings), `keys.rs`, `wire.rs` (messages).

#[expect(dead_code, reason = "the cache is not built yet")]
mod keys;
mod name;
pub mod wire;

pub use crate::{
    keys::Question,
    name::{DomainName, NameError},
};
