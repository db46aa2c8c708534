#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod claim;
mod keys;
mod support;
mod v1;
