//! Redis semantics in memory: data types, commands, Lua.
//!
//! The engine is synchronous and does no I/O, has no clock and starts no thread: whoever embeds it
//! passes the time in, keeps the files and owns the sockets. The same sequence of calls gives the
//! same state and the same replies.
//!
//! Read [`Engine`] first, then `command.rs` (how a command is found and run), `db.rs` (the
//! keyspace), one of the `t_*.rs` files (a data type and its commands).

mod acl;
mod args;
mod bitops;
mod blocked;
mod client;
mod command;
mod command_info;
mod config;
mod connection;
mod db;
mod debug;
mod dump;
mod effect;
mod engine;
mod error;
mod expire;
mod generic;
mod geo;
mod hyperloglog;
mod info;
mod keys;
mod latency;
mod lazyfree;
mod memory;
mod migrate;
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
mod server;
mod session;
mod slowlog;
mod sort;
mod t_hash;
mod t_list;
mod t_set;
mod t_stream;
mod t_string;
mod t_zset;
mod table;
mod tracking;
mod value;

pub use blocked::Unblock;
pub use config::{Config, OutputLimit, OutputLimits, ServerInfo};
pub use engine::{Engine, Garbage, Outcome, Output};
pub use error::Error;
pub use memory::Policy;
pub use migrate::{Migrated, Migration};
pub use number::{format_f64 as format_double, format_g};
pub use quoted::split_quoted;
pub use reply::Reply;
pub use script::{Meanwhile, ScriptControl};
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
