//! Behaviour of the engine alone: commands in, replies out, time as an argument.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_engine as engine;

mod acl;
mod expire;
mod hash;
mod hash_expiry;
mod kit;
mod list;
mod memory;
mod persist;
mod script;
mod script_hostile;
mod script_values;
mod server;
mod set;
mod stream;
mod waiting;
mod zset;
