//! Traffic counters, rate limits, users and sessions, shared by every instance of an app.
//!
//! The desk keeps its state under the names of a documented Redis schema (prefix `ha:`), so that
//! programs in any language take part with plain commands. Invariant: what the schema says others
//! may write is honoured, and what is published is correct whatever instance crashes when.
//!
//! Read in this order: `keys.rs` (all names), `ids.rs`, `identity.rs`, then [`limit`],
//! [`traffic`] and [`users`]; the support chat is [`archive`] and [`chat`].

pub mod archive;
pub mod chat;
mod error;
mod identity;
mod ids;
mod keys;
pub mod limit;
mod random;
mod scripts;
#[cfg(feature = "tower")]
pub mod tower;
pub mod traffic;
pub mod users;

pub use store;

pub use crate::{
    error::Error,
    identity::Identity,
    ids::{AgentId, AppName, ConversationId, InstanceId, PolicyName, Prefix, TeamId, UserId},
    keys::{DeskKeyMap, SECRET_KEYS},
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
