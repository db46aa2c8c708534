//! Memory: how much the keyspace takes, and what goes when there is too little.
//!
//! Bytes are counted only while `maxmemory` is set. Then `Memory::used` is the sum of
//! [`Core::entry_size`] over all entries: what a command may change is measured before it changes
//! and again when the command is over ([`Core::settle_memory`]).

use hashbrown::HashMap;

use crate::db::Entry;
use crate::engine::Core;

/// Bytes that a place in the hash table takes besides its entry (control byte, empty places).
const PLACE: usize = size_of::<Entry>() * 8 / 7 + 1;

/// What is known of memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Is anything counted?
    pub(crate) on: bool,
    /// Bytes of all entries, as of the last settlement.
    pub(crate) used: usize,
    /// Sizes, before the running command, of what it may have changed.
    before: HashMap<(usize, Box<[u8]>), usize>,
}

/// Bytes that an entry takes, its place in the table included.
pub(crate) fn entry_size(entry: &Entry) -> usize {
    PLACE + allocated(entry.key.len()) + entry.value.heap_size()
}

/// What an allocator takes for a request of `size` bytes: multiples of 16 for small ones.
pub(crate) fn allocated(size: usize) -> usize {
    if size == 0 { 0 } else { size.next_multiple_of(16) }
}

impl Core {
    /// Notes the size of a key that is about to be changed.
    pub(crate) fn memory_before(&mut self, db: usize, key: &[u8]) {
        let place = (db, Box::from(key));
        if self.memory.before.contains_key(&place) {
            return;
        }
        if let Some(entry) = self.dbs.get(db).and_then(|db| db.keys.get(key)) {
            let size = entry_size(entry);
            self.memory.before.insert(place, size);
        }
    }

    /// An entry came into the keyspace.
    pub(crate) fn memory_come(&mut self, _db: usize, entry: &Entry) {
        if self.memory.on {
            self.memory.used += entry_size(entry);
        }
    }

    /// An entry went.
    pub(crate) fn memory_gone(&mut self, db: usize, entry: &Entry) {
        if self.memory.on {
            // It may have changed since it was counted.
            let counted = self.memory.before.remove(&(db, entry.key.clone()));
            let size = counted.unwrap_or_else(|| entry_size(entry));
            self.memory.used = self.memory.used.saturating_sub(size);
        }
    }

    /// The command is over: counts what it changed.
    pub(crate) fn settle_memory(&mut self) {
        if self.memory.before.is_empty() {
            return;
        }
        for ((db, key), size) in std::mem::take(&mut self.memory.before) {
            if let Some(entry) = self.dbs.get(db).and_then(|db| db.keys.get(&key)) {
                let used = self.memory.used.saturating_sub(size);
                self.memory.used = used + entry_size(entry);
            }
        }
    }

    /// Starts or stops counting when the limit is set or lifted.
    pub(crate) fn count_memory(&mut self, on: bool) {
        self.memory.before.clear();
        self.memory.on = on;
        self.memory.used = match on {
            true => self.dbs.iter().flat_map(|db| db.keys.iter()).map(entry_size).sum(),
            false => 0,
        };
    }
}
