//! L0: the cache in memory, bounded by bytes.
//!
//! Shards with SIEVE eviction, shared by all threads, and in front of them a small table per thread
//! that only its own thread touches ([`FrontTable`]). A read takes one shared lock at most and changes
//! nothing but two atomics of the entry.
//!
//! Invariants: the bytes of a shard never exceed its share; an entry that was replaced or removed is
//! retired and no front table serves it any more; after a [`clear`](L0::clear) no entry of before is
//! served, because it carries an older generation.
//!
//! ```text
//!  thread ──▶ FrontTable (direct mapped, own) ──▶ shard (RwLock): table of slots ──▶ Arc<L0Entry>
//!                                                         newest ⇄ … ⇄ hand ⇄ … ⇄ oldest   (SIEVE)
//! ```

use std::{
    hash::{BuildHasher as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::RwLock;
use store::Millis;

use crate::{
    l1::StoredAnswer,
    name::NAME_MAX_BYTES,
    name::Question,
    query_record::{Label, QueryBatch, QueryOutcome},
    wire::{AnswerKind, WireQuery},
};

/// Shards of the cache.
const SHARDS: usize = 32;

/// Memory of an entry besides its answer and its key: slot, table, pointers.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// Scope of answers that are good for every client; those of a group's own upstreams have the number of
/// their route.
pub(crate) const SHARED_SCOPE: u8 = 0;

/// First scope of answers made here for a profile.
pub(crate) const PROFILE_SCOPE: u8 = 128;

/// Marks the end of the list.
const NONE: u32 = u32::MAX;

/// Name, type and kind of a query, folded to lower case, on the stack.
#[derive(Clone, Copy)]
pub struct L0Key {
    bytes: [u8; NAME_MAX_BYTES + 4],
    length: usize,
}

impl L0Key {
    /// Returns the key of a query.
    pub fn of_query(query: &WireQuery<'_>) -> Self {
        Self::new(query.name(), query.qtype(), query.kind(), SHARED_SCOPE)
    }

    /// Returns the key of a question.
    pub fn of_question(question: &Question, kind: AnswerKind) -> Self {
        Self::new(question.name.as_wire(), question.qtype, kind, SHARED_SCOPE)
    }

    /// Returns the key of an answer that is good for some clients only.
    pub(crate) fn in_scope(name: &[u8], qtype: u16, kind: AnswerKind, scope: u8) -> Self {
        Self::new(name, qtype, kind, scope)
    }

    fn new(name: &[u8], qtype: u16, kind: AnswerKind, scope: u8) -> Self {
        let mut bytes = [0; NAME_MAX_BYTES + 4];
        let length = name.len().min(NAME_MAX_BYTES);
        // Length bytes are below `A`, so the whole name is folded in one pass.
        for (to, from) in bytes.iter_mut().zip(&name[..length]) {
            *to = from.to_ascii_lowercase();
        }
        let [high, low] = qtype.to_be_bytes();
        bytes[length..length + 4].copy_from_slice(&[high, low, kind as u8, scope]);
        Self { bytes, length: length + 4 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the name in lower case, the kind of answer and the scope.
    pub(crate) fn parts(&self) -> (&[u8], u8, u8) {
        let name = self.length.saturating_sub(4);
        (&self.bytes[..name], self.bytes[name + 2], self.bytes[name + 3])
    }
}

impl std::fmt::Debug for L0Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "L0Key({})", self.as_bytes().escape_ascii())
    }
}

/// Facts about an answer that was made here.
#[derive(Clone, Debug)]
pub(crate) struct LocalNote {
    /// Generation of the filter it was made by; no other may serve it.
    pub(crate) filter_generation: u32,
    pub(crate) outcome: QueryOutcome,
    /// List that decided.
    pub(crate) list: Label,
    /// Extended error: code and text.
    pub(crate) error: Option<(u16, Box<str>)>,
}

/// Facts about an answer besides the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryNote {
    /// Server that gave it.
    pub(crate) upstream: Label,
    pub(crate) local: Option<LocalNote>,
}

/// An answer in memory.
#[derive(Debug)]
pub struct L0Entry {
    key: Box<[u8]>,
    hash: u64,
    generation: u64,
    /// The answer and its lifetime.
    pub stored: StoredAnswer,
    /// End of the grace period, Unix seconds.
    pub hard_expiry: i64,
    pub(crate) note: EntryNote,
    /// Short text of the answer.
    pub(crate) summary: Box<str>,
    /// Profiles that may have the answer as it is: a bit each, below the generation of the filter.
    passes: [AtomicU64; 2],
    /// Hits since the last decay.
    hits: AtomicU32,
    /// What is left of the hits before it.
    past_hits: AtomicU32,
    /// A refresh was started.
    refreshing: AtomicBool,
    /// Read since the hand of SIEVE passed.
    visited: AtomicBool,
    /// Replaced or removed.
    retired: AtomicBool,
}

impl L0Entry {
    fn size_bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES + self.key.len() + self.summary.len() + self.stored.answer.size_bytes()
    }

    /// Returns true if it was decided that a profile may have the answer as it is.
    pub(crate) fn passes(&self, profile: usize, generation: u32) -> bool {
        self.passes.get(profile / 32).is_some_and(|word| {
            let word = word.load(Ordering::Relaxed);
            (word >> 32) as u32 == generation && word >> (profile % 32) & 1 == 1
        })
    }

    /// Notes that a profile may have the answer as it is.
    pub(crate) fn note_pass(&self, profile: usize, generation: u32) {
        let Some(word) = self.passes.get(profile / 32) else { return };
        let bit = 1_u64 << (profile % 32);
        let noted = |current: u64| match (current >> 32) as u32 == generation {
            true => Some(current | bit),
            false => Some(u64::from(generation) << 32 | bit),
        };
        // Of two that note at the same time, both succeed in turn.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted);
    }

    /// Returns true if the answer was made here, or is good for some clients only.
    pub(crate) fn is_shared(&self) -> bool {
        self.key.last() == Some(&SHARED_SCOPE)
    }

    /// Counts a hit.
    pub fn count_hit(&self) {
        // One thread's addition may be lost to another's; the count decides nothing but a refresh.
        self.hits.store(self.hits.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the hits of late: those since the last decay and what is left of earlier ones.
    pub fn hits(&self) -> u32 {
        let past = self.past_hits.load(Ordering::Relaxed);
        self.hits.load(Ordering::Relaxed).saturating_add(past)
    }

    /// Halves the count, and returns the hits since the last decay.
    pub(crate) fn decay_hits(&self) -> u32 {
        let hits = self.hits.swap(0, Ordering::Relaxed);
        let past = self.past_hits.load(Ordering::Relaxed);
        self.past_hits.store(past.saturating_add(hits) / 2, Ordering::Relaxed);
        hits
    }

    /// Claims the refresh of this entry; false if it is claimed already.
    pub(crate) fn claim_refresh(&self) -> bool {
        !self.refreshing.load(Ordering::Relaxed) && !self.refreshing.swap(true, Ordering::Relaxed)
    }

    /// Gives the claim back.
    pub(crate) fn release_refresh(&self) {
        self.refreshing.store(false, Ordering::Relaxed);
    }

    /// Returns true if the entry may be served: not replaced, not cleared, within its grace period.
    fn is_live(&self, generation: u64, now_seconds: i64) -> bool {
        self.generation == generation
            && now_seconds < self.hard_expiry
            && !self.retired.load(Ordering::Relaxed)
    }

    fn visit(&self) {
        // Reading first keeps the cache line shared between threads.
        if !self.visited.load(Ordering::Relaxed) {
            self.visited.store(true, Ordering::Relaxed);
        }
    }
}

/// Contents of the cache in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L0Stats {
    /// Entries, stale ones included.
    pub entries: usize,
    /// Bytes they take.
    pub bytes: usize,
    /// Most bytes.
    pub max_bytes: usize,
    /// Entries removed to make room.
    pub evictions: u64,
}

/// The cache in memory.
#[derive(Debug)]
pub struct L0 {
    shards: Box<[RwLock<Shard>]>,
    shard_max_bytes: usize,
    /// Keyed anew in every process, so that nobody can choose names that collide.
    hasher: RandomState,
    generation: AtomicU64,
    evictions: AtomicU64,
}

impl L0 {
    /// Makes an empty cache of at most this many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_max_bytes: max_bytes / SHARDS,
            hasher: RandomState::default(),
            generation: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Returns the entry of a key, fresh or stale.
    pub fn get(&self, key: &L0Key, now: Millis) -> Option<Arc<L0Entry>> {
        self.get_hashed(key, self.hash(key), now)
    }

    fn get_hashed(&self, key: &L0Key, hash: u64, now: Millis) -> Option<Arc<L0Entry>> {
        let shard = self.shard(hash).read();
        let entry = shard.find(hash, key.as_bytes())?;
        if !entry.is_live(self.generation(), now.as_secs()) {
            return None;
        }
        entry.visit();
        Some(Arc::clone(entry))
    }

    /// Puts an answer in, in place of the one there is. An answer with TTL 0, or larger than a shard's
    /// share, is not kept.
    pub fn insert(
        &self,
        key: &L0Key,
        stored: StoredAnswer,
        grace: Duration,
        generation: u64,
    ) -> Arc<L0Entry> {
        self.insert_noted(key, stored, grace, generation, EntryNote::default())
    }

    /// The same, with facts about the answer.
    pub(crate) fn insert_noted(
        &self,
        key: &L0Key,
        stored: StoredAnswer,
        grace: Duration,
        generation: u64,
        note: EntryNote,
    ) -> Arc<L0Entry> {
        let hash = self.hash(key);
        let entry = Arc::new(L0Entry {
            note,
            summary: stored.answer.summary().into(),
            passes: [AtomicU64::new(0), AtomicU64::new(0)],
            key: key.as_bytes().into(),
            hash,
            generation,
            hard_expiry: stored.hard_expiry(grace),
            stored,
            hits: AtomicU32::new(0),
            past_hits: AtomicU32::new(0),
            refreshing: AtomicBool::new(false),
            visited: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        });
        // Something was cleared since the caller began: what it brings may be of before.
        if entry.stored.stored_ttl > 0
            && generation == self.generation()
            && entry.size_bytes() <= self.shard_max_bytes
        {
            let evicted = self.shard(hash).write().insert(Arc::clone(&entry), self.shard_max_bytes);
            self.evictions.fetch_add(evicted, Ordering::Relaxed);
        }
        entry
    }

    /// Removes the entry of a key.
    pub fn remove(&self, key: &L0Key) -> bool {
        let hash = self.hash(key);
        self.shard(hash).write().remove(hash, key.as_bytes())
    }

    /// Drops everything. What is in front tables is not served any more.
    pub fn clear(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.shards.iter().for_each(|shard| *shard.write() = Shard::default());
    }

    /// Removes the entries whose grace period is over, and visits the others. Returns how many were
    /// removed.
    pub fn sweep(&self, now: Millis, mut visit: impl FnMut(&L0Entry)) -> usize {
        let mut removed = 0;
        for shard in &self.shards {
            let (mut dead, mut live) = (Vec::new(), Vec::new());
            for entry in shard.read().entries() {
                match now.as_secs() < entry.hard_expiry {
                    true => live.push(Arc::clone(entry)),
                    false => dead.push((entry.hash, entry.key.clone())),
                }
            }
            live.iter().for_each(|entry| visit(entry));
            let mut shard = shard.write();
            for (hash, key) in dead {
                // It may have been replaced by a fresh one in between.
                let expired =
                    shard.find(hash, &key).is_some_and(|e| now.as_secs() >= e.hard_expiry);
                removed += usize::from(expired && shard.remove(hash, &key));
            }
        }
        removed
    }

    /// Returns the number of clears so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the contents.
    pub fn stats(&self) -> L0Stats {
        let mut stats = L0Stats {
            max_bytes: self.shard_max_bytes * SHARDS,
            evictions: self.evictions.load(Ordering::Relaxed),
            ..L0Stats::default()
        };
        for shard in &self.shards {
            let shard = shard.read();
            stats.entries += shard.table.len();
            stats.bytes += shard.bytes;
        }
        stats
    }

    /// Returns the number of entries that are stale. Looks at all of them.
    pub fn count_stale(&self, now: Millis) -> usize {
        let is_stale = |entry: &&Arc<L0Entry>| entry.stored.remaining(now) <= 0;
        self.shards.iter().map(|shard| shard.read().entries().filter(is_stale).count()).sum()
    }

    fn hash(&self, key: &L0Key) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // The table inside a shard uses the upper and the lower bits.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl L0Entry {
    /// Returns the question and the kind of the entry.
    pub fn question(&self) -> Option<(Question, AnswerKind)> {
        let (name, rest) = self.key.split_at_checked(self.key.len().checked_sub(4)?)?;
        let [high, low, kind, _scope] = *rest else { return None };
        let name = crate::DomainName::from_wire(name).ok()?;
        let qtype = u16::from_be_bytes([high, low]);
        let kind = AnswerKind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        Some((Question { name, qtype, qclass: crate::wire::CLASS_IN }, kind))
    }
}

/// A slot of a shard: an entry and its neighbours in the order of insertion.
#[derive(Debug)]
struct Slot {
    entry: Arc<L0Entry>,
    newer: u32,
    older: u32,
}

/// A shard: a table of slots, and SIEVE's list through them.
#[derive(Debug)]
struct Shard {
    table: HashTable<u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Where the search for a victim goes on, from old to new.
    hand: u32,
    bytes: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            hand: NONE,
            bytes: 0,
        }
    }
}

impl Shard {
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)?.as_ref()
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    fn index_of(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is_key = |index: &u32| self.slot(*index).is_some_and(|slot| *slot.entry.key == *key);
        self.table.find(hash, is_key).copied()
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<&Arc<L0Entry>> {
        Some(&self.slot(self.index_of(hash, key)?)?.entry)
    }

    fn entries(&self) -> impl Iterator<Item = &Arc<L0Entry>> {
        self.slots.iter().flatten().map(|slot| &slot.entry)
    }

    /// Returns the number of entries evicted to make room.
    fn insert(&mut self, entry: Arc<L0Entry>, max_bytes: usize) -> u64 {
        let (hash, size) = (entry.hash, entry.size_bytes());
        // A refreshed answer is as much in use as the one it replaces.
        if let Some(replaced) = self.find(hash, &entry.key) {
            entry.visited.store(replaced.visited.load(Ordering::Relaxed), Ordering::Relaxed);
            entry.past_hits.store(replaced.hits() / 2, Ordering::Relaxed);
            self.remove(hash, &entry.key);
        }
        let mut evicted = 0;
        while self.bytes + size > max_bytes && self.evict_one() {
            evicted += 1;
        }
        let older = self.newest;
        let slot = Some(Slot { entry, newer: NONE, older });
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.slots.get_mut(index as usize) {
                    *place = slot;
                }
                index
            }
            None => {
                self.slots.push(slot);
                // A shard's share of memory holds far fewer entries than this.
                u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
            }
        };
        match self.slot_mut(older) {
            Some(neighbour) => neighbour.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.bytes += size;
        let slots = &self.slots;
        let hash_of = |index: &u32| {
            slots.get(*index as usize).and_then(Option::as_ref).map_or(0, |slot| slot.entry.hash)
        };
        self.table.insert_unique(hash, index, hash_of);
        evicted
    }

    fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        match self.index_of(hash, key) {
            Some(index) => self.take(index),
            None => false,
        }
    }

    /// Takes an entry out of table and list.
    fn take(&mut self, index: u32) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize).and_then(Option::take) else {
            return false;
        };
        slot.entry.retired.store(true, Ordering::Relaxed);
        if let Ok(found) = self.table.find_entry(slot.entry.hash, |other| *other == index) {
            found.remove();
        }
        match self.slot_mut(slot.newer) {
            Some(neighbour) => neighbour.older = slot.older,
            None => self.newest = slot.older,
        }
        match self.slot_mut(slot.older) {
            Some(neighbour) => neighbour.newer = slot.newer,
            None => self.oldest = slot.newer,
        }
        if self.hand == index {
            self.hand = slot.newer;
        }
        self.free.push(index);
        self.bytes -= slot.entry.size_bytes();
        true
    }

    /// SIEVE: from the hand towards newer entries, the first that was not read since the hand passed.
    fn evict_one(&mut self) -> bool {
        // After a whole turn every mark is gone, so the second turn ends at its first step.
        for _ in 0..=self.table.len() {
            let index = if self.slot(self.hand).is_some() { self.hand } else { self.oldest };
            let Some(slot) = self.slot(index) else { return false };
            if slot.entry.visited.swap(false, Ordering::Relaxed) {
                self.hand = slot.newer;
                continue;
            }
            self.hand = index;
            return self.take(index);
        }
        false
    }
}

/// A table of one thread in front of the shards: direct mapped, so that a hit is one comparison.
#[derive(Debug)]
pub struct FrontTable {
    pub(crate) entries: FrontEntries,
    /// Records of queries that were answered and not handed over yet.
    pub(crate) records: QueryBatch,
}

impl FrontTable {
    /// Makes an empty table; the number of slots is rounded up to a power of two.
    pub fn new(slots: usize) -> Self {
        let slots = vec![None; slots.next_power_of_two()].into_boxed_slice();
        Self { entries: FrontEntries(slots), records: QueryBatch::default() }
    }

    /// Returns the entry of a key, fresh or stale, from here or from the shards.
    pub fn get(&mut self, l0: &L0, key: &L0Key, now: Millis) -> Option<&Arc<L0Entry>> {
        self.entries.get(l0, key, now)
    }
}

/// Entries of a front table, by hash.
#[derive(Debug)]
pub(crate) struct FrontEntries(Box<[Option<Arc<L0Entry>>]>);

impl FrontEntries {
    pub(crate) fn get(&mut self, l0: &L0, key: &L0Key, now: Millis) -> Option<&Arc<L0Entry>> {
        let hash = l0.hash(key);
        let index = hash as usize & (self.0.len() - 1);
        let slot = self.0.get_mut(index)?;
        let is_hit = slot.as_ref().is_some_and(|entry| {
            entry.hash == hash
                && *entry.key == *key.as_bytes()
                && entry.is_live(l0.generation(), now.as_secs())
        });
        if is_hit {
            slot.as_ref().inspect(|entry| entry.visit())
        } else {
            *slot = Some(l0.get_hashed(key, hash, now)?);
            slot.as_ref()
        }
    }
}

#[cfg(test)]
mod tests;
