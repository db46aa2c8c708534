//! Redis semantics in memory: data types, commands, Lua.
//!
//! The engine is synchronous and does no I/O, has no clock and starts no thread: the embedding
//! program passes the time in, keeps the files and owns the sockets. The same sequence of calls
//! gives the same state and the same replies.
//!
//! Read [`Engine`] first, then `command.rs` (how a command is found and run), `db.rs` (the
//! keyspace), one of the `t_*.rs` files (a data type and its commands), `expire.rs`, `script.rs`
//! and `persist.rs`. That is the core; `admin/` holds commands for operators, `extra/` what is
//! there for completeness.

mod admin;
mod args;
mod blocked;
mod command;
mod connection;
mod db;
mod effect;
mod engine;
mod error;
mod expire;
mod extra;
mod generic;
mod keys;
mod lazyfree;
mod memory;
mod multi;
mod notify;
mod number;
mod pack;
pub mod persist;
mod pop;
mod pubsub;
mod quoted;
mod reply;
mod scan;
mod script;
mod session;
mod t_hash;
mod t_list;
mod t_set;
mod t_stream;
mod t_string;
mod t_zset;
mod table;
mod value;

pub use admin::config::{Config, OutputLimit, OutputLimits, ServerInfo};
pub use admin::traffic::{ProcessUsage, Traffic};
pub use blocked::UnblockMode;
pub use engine::{CommandOutcome, Engine, EngineOutput, Garbage};
pub use error::Error;
pub use extra::migrate::{Migration, MigrationOutcome};
pub use memory::EvictionPolicy;
pub use number::{format_f64 as format_double, format_g};
pub use quoted::split_quoted;
pub use reply::Reply;
pub use script::{BusyContext, ScriptControl};
pub use session::{Buffers, SessionId};

/// A moment in time as the engine sees it: microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Microseconds since the Unix epoch.
    pub unix_us: i64,
}

impl Now {
    /// The moment `ms` milliseconds after the epoch.
    pub fn from_millis(ms: i64) -> Now {
        Now { unix_us: ms.saturating_mul(1000) }
    }

    /// Milliseconds since the epoch, rounded down.
    pub fn ms(self) -> i64 {
        self.unix_us.div_euclid(1000)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
