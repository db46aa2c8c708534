//! Settings: at the start by [`Config`], later by `CONFIG SET`.

use std::time::Duration;

mod commands;
mod output;
mod params;

pub(crate) use commands::{COMMANDS, Hook};
pub use output::{OutputLimit, OutputLimits};

use crate::memory::EvictionPolicy;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of databases.
    pub databases: usize,
    /// Seeds every choice made by chance and the hashing of keys.
    pub seed: u64,
    /// Password that `AUTH` and `HELLO … AUTH` must show; none if empty.
    pub requirepass: Vec<u8>,
    /// Writes are refused above this many bytes; 0 for no limit.
    pub maxmemory: u64,
    /// Eviction policy when memory is full.
    pub maxmemory_policy: EvictionPolicy,
    /// True to record effects for a log.
    pub log_effects: bool,
    /// Refuse scripts that touch keys they did not declare.
    pub strict_scripts: bool,
    /// Refuse scripts that touch keys of several cluster slots.
    pub strict_slots: bool,
    /// Time since some moment in the past, from a clock that never goes back. It only serves to
    /// stop scripts; without it their instructions are counted instead, at 100 million a second.
    pub script_clock: Option<fn() -> Duration>,
    /// Other clients get `BUSY` when a script runs for longer than this (`lua-time-limit`).
    pub script_busy_ms: u64,
    /// A script that has written nothing is stopped after this time; 0 for never.
    pub script_deadline_ms: u64,
    /// One that has written is stopped after this time, and what it wrote stays, as when it fails
    /// half way; 0 for never.
    pub script_deadline_written_ms: u64,
    /// Bytes a script may use, besides what the interpreter holds anyway.
    pub script_memory: usize,
    /// May clients call DEBUG? Redis's own tests do.
    pub debug_commands: bool,
    /// Facts about the process around the engine, for INFO and CONFIG.
    pub server: ServerInfo,
    /// `client-output-buffer-limit`
    pub output_limits: OutputLimits,
    /// `client-query-buffer-limit`: bytes that may come of a client and not be run yet.
    pub query_buffer_max: usize,
    /// Bits of `notify-keyspace-events`.
    pub notify_events: u32,
    /// Number of keys sampled to choose the one to evict.
    pub maxmemory_samples: usize,
    /// LFU log factor: the greater, the slower the counts of uses rise.
    pub lfu_log_factor: u32,
    /// Minutes after which they fall by one.
    pub lfu_decay_time: u32,
    /// No argument and no string is longer than this many bytes.
    pub proto_max_bulk_len: u64,
    /// A hash with more fields than this, or a longer field or value, is no `listpack`.
    pub hash_max_listpack_entries: usize,
    /// See [`Config::hash_max_listpack_entries`].
    pub hash_max_listpack_value: usize,
    /// A set of integers with more members than this is no `intset`.
    pub set_max_intset_entries: usize,
    /// A sorted set with more members than this, or a longer member, is no `listpack`.
    pub zset_max_listpack_entries: usize,
    /// See [`Config::zset_max_listpack_entries`].
    pub zset_max_listpack_value: usize,
    /// A HyperLogLog of more bytes than this has all its registers written out.
    pub hll_sparse_max_bytes: usize,
    /// Entries in one node of a stream; approximate trimming drops whole nodes.
    pub stream_node_max_entries: usize,
    /// Bytes in one node of a stream.
    pub stream_node_max_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            databases: 16,
            seed: 0,
            requirepass: Vec::new(),
            maxmemory: 0,
            maxmemory_policy: EvictionPolicy::NoEviction,
            log_effects: false,
            strict_scripts: false,
            strict_slots: false,
            script_clock: None,
            script_busy_ms: 5000,
            script_deadline_ms: 10_000,
            script_deadline_written_ms: 60_000,
            script_memory: 64 << 20,
            debug_commands: false,
            server: ServerInfo::default(),
            output_limits: OutputLimits::default(),
            query_buffer_max: 1 << 30,
            notify_events: 0,
            maxmemory_samples: 5,
            lfu_log_factor: 10,
            lfu_decay_time: 1,
            proto_max_bulk_len: 512 << 20,
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            set_max_intset_entries: 512,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            hll_sparse_max_bytes: 3000,
            stream_node_max_entries: 100,
            stream_node_max_bytes: 4096,
        }
    }
}

/// Facts about the process around the engine, for INFO and CONFIG, which the engine cannot know.
#[derive(Debug, Clone, Default)]
pub struct ServerInfo {
    /// The port of the RESP listener; 0 if there is none.
    pub port: u16,
    /// The process's number.
    pub process_id: u32,
    /// 40 hexadecimal digits that name this run.
    pub run_id: String,
    /// The folder with the data; empty if there is none.
    pub dir: String,
}
