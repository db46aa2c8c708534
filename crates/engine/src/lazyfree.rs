//! Freeing what takes long where nobody waits for it: `UNLINK`, flushed databases, and what the
//! `lazyfree-*` settings say.
//!
//! The engine starts no thread. It hands such values out with [`Output::garbage`](crate::Output),
//! and counts them when the caller drops them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::db::KeyEntry;
use crate::engine::Core;
use crate::value::Value;

/// Values with fewer parts than this are freed at once, as in Redis.
const WORTH: usize = 64;
/// Elements of a long list that go with one call to the allocator, about.
const PER_NODE: usize = 128;

/// Counters of values that are freed later.
#[derive(Debug, Default)]
pub(crate) struct Lazyfree {
    counts: Arc<Counts>,
    /// `lazyfree-lazy-user-del`: DEL is UNLINK.
    pub(crate) user_del: bool,
    /// `lazyfree-lazy-expire`
    pub(crate) expire: bool,
    /// `lazyfree-lazy-eviction`
    pub(crate) eviction: bool,
}

#[derive(Debug, Default)]
struct Counts {
    pending: AtomicU64,
    freed: AtomicU64,
}

/// A value that counts itself when it is dropped.
struct CountedValue {
    value: Option<Box<dyn Any + Send>>,
    objects: u64,
    counts: Arc<Counts>,
}

impl Drop for CountedValue {
    fn drop(&mut self) {
        self.value = None;
        self.counts.freed.fetch_add(self.objects, Ordering::Relaxed);
        self.counts.pending.fetch_sub(self.objects, Ordering::Relaxed);
    }
}

impl Lazyfree {
    /// Number of values still to be freed.
    pub(crate) fn pending(&self) -> u64 {
        self.counts.pending.load(Ordering::Relaxed)
    }

    /// Number of values freed since the counters were last set to zero.
    pub(crate) fn freed(&self) -> u64 {
        self.counts.freed.load(Ordering::Relaxed)
    }

    /// `CONFIG RESETSTAT`
    pub(crate) fn reset(&self) {
        self.counts.freed.store(0, Ordering::Relaxed);
    }

    /// Keeps a setting, if it is one of these.
    pub(crate) fn set(&mut self, name: &str, value: &[u8]) {
        let on = value == b"yes";
        match name {
            "lazyfree-lazy-user-del" => self.user_del = on,
            "lazyfree-lazy-expire" => self.expire = on,
            "lazyfree-lazy-eviction" => self.eviction = on,
            _ => {}
        }
    }
}

impl Core {
    /// Hands something out to be freed later that counts as so many objects.
    pub(crate) fn free_later(&mut self, value: Box<dyn Any + Send>, objects: u64) {
        let counts = Arc::clone(&self.lazyfree.counts);
        counts.pending.fetch_add(objects, Ordering::Relaxed);
        self.output.garbage.0.push(Box::new(CountedValue { value: Some(value), objects, counts }));
    }

    /// Frees what a key held: later if that takes long.
    pub(crate) fn free_entry(&mut self, entry: KeyEntry) {
        if entry.value.parts() > WORTH {
            self.free_later(Box::new(entry), 1);
        }
    }
}

impl Value {
    /// About how many calls to the allocator it takes to free this.
    fn parts(&self) -> usize {
        match self {
            Value::Str(_) => 1,
            Value::List(list) => list.len() / PER_NODE,
            Value::Set(set) if set.encoding() == "hashtable" => set.len(),
            Value::Hash(hash) if hash.encoding() == "hashtable" => hash.len(),
            Value::Zset(zset) if zset.encoding() == "skiplist" => zset.len(),
            Value::Set(_) | Value::Hash(_) | Value::Zset(_) => 1,
            Value::Stream(stream) => stream.parts(),
        }
    }
}
