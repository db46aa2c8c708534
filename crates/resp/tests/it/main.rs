//! The built-in store as clients in other languages see it: over a socket.
#![allow(clippy::unwrap_used, missing_docs)]

extern crate tidegate_resp as resp;

mod acl;
mod bounds;
mod busy;
mod migrate;
mod session;
mod support;
mod tracking;
