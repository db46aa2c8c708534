//! A hash table that can be scanned with a cursor while it changes.
//!
//! Keeps the promise of `SCAN`: what is there from the first call to the last is reported. Entries
//! lie in segments by the leading bits of their *scan position* (a rotation of the hash), so a
//! cursor is a place in hash space and stays true however segments split. A segment splits when it
//! is full, alone: growing never stops the world.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

/// Entries that a segment holds before it splits: a full table of 512 buckets.
const SEGMENT_MAX: usize = 448;
/// More leading bits are never used; segments then grow instead.
const DEPTH_MAX: u32 = 22;
/// Bits of a scan position that a cursor carries.
const CURSOR_BITS: u32 = 48;

/// An entry of a [`Table`]: anything that knows its own key.
pub(crate) trait TableEntry {
    /// The bytes the entry is found by; they never change while it is in a table.
    fn key(&self) -> &[u8];
}

/// A hash table from keys to the entries that hold them.
#[derive(Debug, Clone)]
pub(crate) struct Table<T> {
    /// Segment number for each value of the first `depth` bits of a scan position.
    directory: Vec<u32>,
    segments: Vec<TableSegment<T>>,
    depth: u32,
    len: usize,
    hasher: FixedState,
}

/// Position of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableSlot {
    segment: usize,
    bucket: usize,
}

#[derive(Debug, Clone)]
struct TableSegment<T> {
    entries: HashTable<T>,
    /// Number of leading bits all entries share, and those bits.
    depth: u32,
    prefix: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table::with_seed(0)
    }
}

/// Rotated so that neither the bits hashbrown probes by nor its tag bits choose the segment.
fn position(hash: u64) -> u64 {
    hash.rotate_left(32)
}

fn cursor_of(hash: u64) -> u64 {
    position(hash) >> (64 - CURSOR_BITS)
}

/// The first `bits` bits of a scan position.
fn leading(position: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { position >> (64 - bits) }
}

impl<T> Table<T> {
    /// An empty table whose hashes depend on `seed`, so that outsiders cannot choose collisions.
    pub(crate) fn with_seed(seed: u64) -> Self {
        Table {
            directory: Vec::new(),
            segments: Vec::new(),
            depth: 0,
            len: 0,
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Is there none?
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in no promised order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flat_map(|segment| segment.entries.iter())
    }

    /// Bytes of heap the table itself takes, without what entries point to.
    pub(crate) fn heap_size(&self) -> usize {
        self.directory.capacity() * size_of::<u32>()
            + self.segments.capacity() * size_of::<TableSegment<T>>()
            + self.segments.iter().map(|s| s.entries.allocation_size()).sum::<usize>()
    }

    fn segment_of(&self, hash: u64) -> Option<usize> {
        let slot = leading(position(hash), self.depth) as usize;
        self.directory.get(slot).map(|number| *number as usize)
    }
}

impl<T: TableEntry> Table<T> {
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The entry with this key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&T> {
        let hash = self.hash(key);
        let segment = self.segments.get(self.segment_of(hash)?)?;
        segment.entries.find(hash, |entry| entry.key() == key)
    }

    /// The entry with this key, to change (never its key).
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut T> {
        let hash = self.hash(key);
        let number = self.segment_of(hash)?;
        self.segments.get_mut(number)?.entries.find_mut(hash, |entry| entry.key() == key)
    }

    /// Returns the position of the entry with this key, valid until the table next changes.
    pub(crate) fn place(&self, key: &[u8]) -> Option<TableSlot> {
        self.place_of(self.hash(key), key)
    }

    fn place_of(&self, hash: u64, key: &[u8]) -> Option<TableSlot> {
        let segment = self.segment_of(hash)?;
        let entries = &self.segments.get(segment)?.entries;
        let bucket = entries.find_bucket_index(hash, |entry| entry.key() == key)?;
        Some(TableSlot { segment, bucket })
    }

    /// The entry at a place.
    pub(crate) fn at(&self, place: TableSlot) -> Option<&T> {
        self.segments.get(place.segment)?.entries.get_bucket(place.bucket)
    }

    /// The entry at a place, to change (never its key).
    pub(crate) fn at_mut(&mut self, place: TableSlot) -> Option<&mut T> {
        self.segments.get_mut(place.segment)?.entries.get_bucket_mut(place.bucket)
    }

    /// A short name for a key, by which [`Table::named`] finds it again: several keys may share
    /// one, though hardly any do.
    pub(crate) fn name_of(&self, key: &[u8]) -> u64 {
        self.hash(key)
    }

    /// All entries with their names, to change (never their keys), in no promised order.
    pub(crate) fn iter_named_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let hasher = &self.hasher;
        let entries = self.segments.iter_mut().flat_map(|segment| segment.entries.iter_mut());
        entries.map(move |entry| (hasher.hash_one(entry.key()), entry))
    }

    /// An entry of this name that `fits`.
    pub(crate) fn named(&self, name: u64, fits: impl Fn(&T) -> bool) -> Option<&T> {
        let segment = self.segments.get(self.segment_of(name)?)?;
        segment.entries.find(name, |entry| fits(entry) && self.hash(entry.key()) == name)
    }

    /// Is there an entry with this key?
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// The [name](Table::name_of) of a key, and where its entry lies.
    pub(crate) fn named_place(&self, key: &[u8]) -> (u64, Option<TableSlot>) {
        let name = self.hash(key);
        (name, self.place_of(name, key))
    }

    /// Puts an entry in of whose key it is known that there is none. `name` is that of its key.
    pub(crate) fn insert_new(&mut self, name: u64, entry: T) {
        self.insert_hashed(name, entry, false);
    }

    /// Puts an entry in; one with the same key is replaced and given back.
    pub(crate) fn insert(&mut self, entry: T) -> Option<T> {
        self.insert_hashed(self.hash(entry.key()), entry, true)
    }

    fn insert_hashed(&mut self, hash: u64, entry: T, may_be_there: bool) -> Option<T> {
        if self.segments.is_empty() {
            self.directory.push(0);
            self.segments.push(TableSegment { entries: HashTable::new(), depth: 0, prefix: 0 });
        }
        loop {
            let number = self.segment_of(hash)?;
            let hasher = &self.hasher;
            let segment = self.segments.get_mut(number)?;
            if may_be_there
                && let Some(old) = segment.entries.find_mut(hash, |e| e.key() == entry.key())
            {
                return Some(std::mem::replace(old, entry));
            }
            if segment.entries.len() < SEGMENT_MAX || segment.depth >= DEPTH_MAX {
                segment.entries.insert_unique(hash, entry, |e| hasher.hash_one(e.key()));
                self.len += 1;
                return None;
            }
            self.split(number);
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<T> {
        let hash = self.hash(key);
        let number = self.segment_of(hash)?;
        let hasher = &self.hasher;
        let segment = self.segments.get_mut(number)?;
        let found = segment.entries.find_entry(hash, |entry| entry.key() == key).ok()?;
        let (entry, _) = found.remove();
        self.len -= 1;
        if self.len == 0 {
            self.directory = Vec::new();
            self.segments = Vec::new();
            self.depth = 0;
        } else if segment.entries.len() * 8 < segment.entries.capacity() {
            segment.entries.shrink_to_fit(|e| hasher.hash_one(e.key()));
        }
        Some(entry)
    }

    /// Reports about `count` entries from `cursor` on and returns the cursor to go on with; 0
    /// starts a scan, and 0 comes back when it is complete.
    pub(crate) fn scan<'t>(
        &'t self,
        cursor: u64,
        count: usize,
        mut report: impl FnMut(&'t T),
    ) -> u64 {
        let end = 1u64 << CURSOR_BITS;
        let mut cursor = cursor;
        let mut left = count.max(1);
        while cursor < end {
            let slot = leading(cursor << (64 - CURSOR_BITS), self.depth) as usize;
            let Some(segment) =
                self.directory.get(slot).and_then(|number| self.segments.get(*number as usize))
            else {
                return 0;
            };
            let mut found: Vec<(u64, &T)> = segment
                .entries
                .iter()
                .map(|entry| (cursor_of(self.hash(entry.key())), entry))
                .filter(|(place, _)| *place >= cursor)
                .collect();
            if found.len() > left {
                found.sort_unstable_by_key(|(place, _)| *place);
                // Entries at one place cannot be told apart by a cursor: they go together.
                let last = found.get(left - 1).map_or(cursor, |(place, _)| *place);
                found.iter().take_while(|(place, _)| *place <= last).for_each(|(_, e)| report(e));
                let next = last + 1;
                return if next >= end { 0 } else { next };
            }
            left -= found.len();
            found.iter().for_each(|(_, entry)| report(entry));
            cursor = (segment.prefix + 1) << (CURSOR_BITS - segment.depth);
            if left == 0 {
                break;
            }
        }
        if cursor >= end { 0 } else { cursor }
    }

    /// An entry by chance, each as likely as any other.
    pub(crate) fn random(&self, rng: &mut fastrand::Rng) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        let widest = self.segments.iter().map(|s| s.entries.num_buckets()).max()?;
        loop {
            let slot = rng.usize(..self.directory.len());
            let segment = self.segments.get(*self.directory.get(slot)? as usize)?;
            // A segment with fewer leading bits stands in more slots of the directory, so it is
            // refused as much more often.
            let stands_in = 1u64 << (self.depth - segment.depth).min(32);
            if stands_in > 1 && rng.u64(..stands_in) != 0 {
                continue;
            }
            if let Some(entry) = segment.entries.get_bucket(rng.usize(..widest)) {
                return Some(entry);
            }
        }
    }

    fn split(&mut self, number: usize) {
        let Some(old) = self.segments.get_mut(number) else { return };
        if old.depth == self.depth {
            self.directory = self.directory.iter().flat_map(|n| [*n, *n]).collect();
            self.depth += 1;
        }
        let depth = old.depth + 1;
        let prefix = old.prefix << 1;
        let entries = std::mem::take(&mut old.entries);
        let hasher = &self.hasher;
        let mut halves = [HashTable::new(), HashTable::new()];
        for entry in entries {
            let hash = hasher.hash_one(entry.key());
            let half = (leading(position(hash), depth) & 1) as usize;
            if let Some(table) = halves.get_mut(half) {
                table.insert_unique(hash, entry, |e: &T| hasher.hash_one(e.key()));
            }
        }
        let [low, high] = halves;
        *old = TableSegment { entries: low, depth, prefix };
        let new = self.segments.len() as u32;
        self.segments.push(TableSegment { entries: high, depth, prefix: prefix | 1 });
        let width = 1usize << (self.depth - depth);
        let first = (prefix as usize | 1) * width;
        self.directory.iter_mut().skip(first).take(width).for_each(|slot| *slot = new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TableEntry for Vec<u8> {
        fn key(&self) -> &[u8] {
            self
        }
    }

    fn name(n: usize) -> Vec<u8> {
        format!("key:{n}").into_bytes()
    }

    #[test]
    fn what_goes_in_is_found_and_comes_out() {
        let mut table = Table::with_seed(7);
        for n in 0..10_000 {
            assert_eq!(table.insert(name(n)), None);
        }
        assert_eq!(table.insert(name(5)), Some(name(5)));
        assert_eq!(table.len(), 10_000);
        for n in (0..10_000).step_by(2) {
            assert_eq!(table.remove(&name(n)), Some(name(n)));
        }
        assert!((0..10_000).all(|n| table.contains(&name(n)) == (n % 2 == 1)));
        for n in (1..10_000).step_by(2) {
            table.remove(&name(n));
        }
        assert!(table.is_empty());
        assert_eq!(table.heap_size(), 0);
    }

    #[test]
    fn a_scan_reports_what_stays_however_the_table_changes() {
        let mut table = Table::with_seed(7);
        for n in 0..3_000 {
            table.insert(name(n));
        }
        let mut seen = std::collections::BTreeSet::new();
        let (mut cursor, mut step) = (0, 0);
        loop {
            cursor = table.scan(cursor, 10, |entry| {
                seen.insert(entry.clone());
            });
            if cursor == 0 {
                break;
            }
            for n in 0..50 {
                table.insert(name(10_000 + step * 50 + n));
            }
            table.remove(&name(1_000 + step));
            step += 1;
        }
        assert!((0..1_000).all(|n| seen.contains(&name(n))), "a key that stayed was missed");
    }

    #[test]
    fn chance_is_even() {
        let mut table = Table::with_seed(7);
        for n in 0..1_000 {
            table.insert(name(n));
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..100_000 {
            *counts.entry(table.random(&mut rng).cloned()).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 1_000);
        // 100 each are expected; 6 standard deviations leave room for chance.
        assert!(counts.values().all(|n| (40..160).contains(n)));
    }
}
