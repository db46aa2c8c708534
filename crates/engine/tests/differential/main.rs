//! The engine against a real Redis: the same commands to both, equal replies.
//!
//! `harness.rs` has what a case is written with, `wire.rs` the protocol, one file per command
//! group the hand-written cases, `walk.rs` the seeded random walk over all commands.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

extern crate tidegate_engine as engine;

mod acl;
mod dump;
mod functions;
mod generic;
mod geo;
mod harness;
mod hashes;
mod hyperloglog;
mod lists;
mod script;
mod server;
mod sets;
mod streams;
mod strings;
mod tracking;
mod walk;
mod wire;
mod zsets;
