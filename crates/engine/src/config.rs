//! What can be set from outside: at the start by [`Config`], later by `CONFIG SET`.

use std::time::Duration;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// How many numbered databases there are.
    pub databases: usize,
    /// Seeds every choice made by chance and the hashing of keys.
    pub seed: u64,
    /// Password that `AUTH` and `HELLO … AUTH` must show; none if empty.
    pub requirepass: Vec<u8>,
    /// Writes are refused above this many bytes; 0 for no limit.
    pub maxmemory: u64,
    /// Gather effects for a log?
    pub log_effects: bool,
    /// Refuse scripts that touch keys they did not declare.
    pub strict_scripts: bool,
    /// Refuse scripts that touch keys of several cluster slots.
    pub strict_slots: bool,
    /// Time since some moment in the past, from a clock that never goes back. It only serves to
    /// stop scripts; without it their instructions are counted instead, at 100 million a second.
    pub script_clock: Option<fn() -> Duration>,
    /// Others are told `BUSY` when a script runs for longer than this (`lua-time-limit`).
    pub script_busy_ms: u64,
    /// A script that has written nothing is stopped after this time; 0 for never.
    pub script_deadline_ms: u64,
    /// One that has written is stopped after this time, and what it wrote stays, as when it fails
    /// half way; 0 for never.
    pub script_deadline_written_ms: u64,
    /// Bytes a script may use, besides what the interpreter holds anyway.
    pub script_memory: usize,
    /// Bits of `notify-keyspace-events`.
    pub(crate) notify_events: u32,
    /// A hash with more fields than this, or a longer field or value, is no `listpack`.
    pub(crate) hash_max_listpack_entries: usize,
    /// See [`Config::hash_max_listpack_entries`].
    pub(crate) hash_max_listpack_value: usize,
    /// A set of integers with more members than this is no `intset`.
    pub(crate) set_max_intset_entries: usize,
    /// A sorted set with more members than this, or a longer member, is no `listpack`.
    pub(crate) zset_max_listpack_entries: usize,
    /// See [`Config::zset_max_listpack_entries`].
    pub(crate) zset_max_listpack_value: usize,
    /// Entries in one node of a stream; approximate trimming drops whole nodes.
    pub(crate) stream_node_max_entries: usize,
    /// Bytes in one node of a stream.
    pub(crate) stream_node_max_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            databases: 16,
            seed: 0,
            requirepass: Vec::new(),
            maxmemory: 0,
            log_effects: false,
            strict_scripts: false,
            strict_slots: false,
            script_clock: None,
            script_busy_ms: 5000,
            script_deadline_ms: 10_000,
            script_deadline_written_ms: 60_000,
            script_memory: 64 << 20,
            notify_events: 0,
            hash_max_listpack_entries: 128,
            hash_max_listpack_value: 64,
            set_max_intset_entries: 512,
            zset_max_listpack_entries: 128,
            zset_max_listpack_value: 64,
            stream_node_max_entries: 100,
            stream_node_max_bytes: 4096,
        }
    }
}
