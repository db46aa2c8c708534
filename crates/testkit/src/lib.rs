//! What tests share: both stores, real servers, clients. A dev-dependency only.
//!
//! - [`each_store!`] writes a test once and runs it on the built-in store and on a real server.
//! - [`scripts_test!`] checks a service's Lua files against their declarations.
//! - [`RedisServer`] is a server of one's own: started on a free port, ended on drop.
//!
//! A missing server is a failure with instructions, never a silent pass; `STORES=embedded` or
//! `STORES=redis` is the explicit way to leave one side out.

pub mod each_store;
mod process;
mod redis_server;
pub mod scripts;

pub use crate::{each_store::TestStore, redis_server::RedisServer};
