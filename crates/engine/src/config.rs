//! What can be set from outside: at the start by [`Config`], later by `CONFIG SET`.

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
    /// Refuse scripts that touch keys they did not declare or keys of several cluster slots.
    pub strict_scripts: bool,
    /// Bits of `notify-keyspace-events`.
    pub(crate) notify_events: u32,
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
            notify_events: 0,
        }
    }
}
