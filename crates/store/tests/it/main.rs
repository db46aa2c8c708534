//! What every store must do, before any service relies on it.
#![allow(clippy::unwrap_used, missing_docs)]

mod commands;
mod script;
