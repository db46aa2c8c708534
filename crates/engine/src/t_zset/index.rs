//! From a member's hash to the leaf that holds it, in about nine bytes per member.
//!
//! Holds hashes and leaf numbers only; whether the member is the one looked for is seen in the
//! leaf. Entries lie sorted in segments by the leading bits of the hash, so a scan goes through
//! hashes in order and its cursor stays true however segments split.

/// Entries that a segment holds before it splits.
const SEGMENT_MAX: usize = 256;
/// More leading bits are never used; segments then grow instead.
const DEPTH_MAX: u32 = 22;

/// Entries by hash.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Segment number for each value of the first `depth` bits of a hash.
    directory: Vec<u32>,
    segments: Vec<IndexSegment>,
    depth: u32,
    len: usize,
}

#[derive(Debug, Clone, Default)]
struct IndexSegment {
    /// Hash in the high half, leaf in the low half, ascending.
    entries: Vec<u64>,
    depth: u32,
}

fn entry(hash: u32, leaf: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(leaf)
}

fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

/// The first `bits` bits of a hash.
fn leading(hash: u32, bits: u32) -> usize {
    if bits == 0 { 0 } else { (hash >> (32 - bits)) as usize }
}

impl IndexSegment {
    /// Number of entries below this one. Hashes are even, so it is nearly where its share of
    /// the segment's hash space says.
    fn place(&self, entry: u64) -> usize {
        let share = u64::from(hash_of(entry) << self.depth);
        let mut place = ((share * self.entries.len() as u64) >> 32) as usize;
        while place > 0 && self.entries.get(place - 1).is_some_and(|found| *found >= entry) {
            place -= 1;
        }
        while self.entries.get(place).is_some_and(|found| *found < entry) {
            place += 1;
        }
        place
    }
}

impl Index {
    fn segment_of(&self, hash: u32) -> Option<usize> {
        self.directory.get(leading(hash, self.depth)).map(|number| *number as usize)
    }

    /// Bytes of heap, about.
    pub(super) fn heap_size(&self) -> usize {
        self.len * size_of::<u64>() * 9 / 8
            + self.segments.len() * (size_of::<IndexSegment>() + size_of::<u32>())
    }

    /// Leaves that may hold a member with this hash.
    pub(super) fn leaves(&self, hash: u32) -> impl Iterator<Item = u32> {
        let segment = self.segment_of(hash).and_then(|number| self.segments.get(number));
        let entries = segment.map_or(&[][..], |segment| {
            segment.entries.get(segment.place(entry(hash, 0))..).unwrap_or_default()
        });
        entries.iter().take_while(move |found| hash_of(**found) == hash).map(|found| *found as u32)
    }

    /// Adds a member.
    pub(super) fn insert(&mut self, hash: u32, leaf: u32) {
        if self.segments.is_empty() {
            self.directory.push(0);
            self.segments.push(IndexSegment::default());
        }
        self.len += 1;
        loop {
            let Some(number) = self.segment_of(hash) else { return };
            let Some(segment) = self.segments.get_mut(number) else { return };
            if segment.entries.len() < SEGMENT_MAX || segment.depth >= DEPTH_MAX {
                let entries = &mut segment.entries;
                if entries.len() == entries.capacity() {
                    entries.reserve_exact((entries.len() / 8).max(4));
                }
                let entry = entry(hash, leaf);
                let place = segment.place(entry);
                segment.entries.insert(place, entry);
                return;
            }
            self.split(number, hash);
        }
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, hash: u32, leaf: u32) {
        let entry = entry(hash, leaf);
        let Some(segment) = self.segment_of(hash).and_then(|number| self.segments.get_mut(number))
        else {
            return;
        };
        let place = segment.place(entry);
        if segment.entries.get(place) == Some(&entry) {
            segment.entries.remove(place);
            if segment.entries.len() * 2 < segment.entries.capacity() {
                segment.entries.shrink_to(segment.entries.len() * 5 / 4);
            }
            self.len -= 1;
        }
    }

    /// A member went from one leaf to another.
    pub(super) fn moved(&mut self, hash: u32, from: u32, to: u32) {
        let (old, new) = (entry(hash, from), entry(hash, to));
        let Some(segment) = self.segment_of(hash).and_then(|number| self.segments.get_mut(number))
        else {
            return;
        };
        let place = segment.place(old);
        let Some(found) = segment.entries.get_mut(place).filter(|found| **found == old) else {
            return;
        };
        *found = new;
        // Only entries of the same hash can be out of order now.
        let mut place = place;
        while place > 0 && segment.entries.get(place - 1).is_some_and(|before| *before > new) {
            segment.entries.swap(place - 1, place);
            place -= 1;
        }
        while segment.entries.get(place + 1).is_some_and(|after| *after < new) {
            segment.entries.swap(place, place + 1);
            place += 1;
        }
    }

    /// Reports hash and leaf of about `count` members from `cursor` on, each pair once, and returns
    /// the cursor to go on with; 0 starts a scan, and 0 comes back when it is complete.
    pub(super) fn scan(&self, cursor: u64, count: usize, mut report: impl FnMut(u32, u32)) -> u64 {
        let Ok(mut from) = u32::try_from(cursor) else { return 0 };
        let mut left = count.max(1);
        let mut last = None;
        loop {
            let Some(segment) = self.segment_of(from).and_then(|n| self.segments.get(n)) else {
                return 0;
            };
            let start = segment.place(entry(from, 0));
            for found in segment.entries.iter().skip(start) {
                let hash = hash_of(*found);
                if left == 0 && last.is_some_and(|last| hash_of(last) != hash) {
                    return hash.into();
                }
                if last != Some(*found) {
                    report(hash, *found as u32);
                    last = Some(*found);
                }
                left = left.saturating_sub(1);
            }
            // The first hash of the next segment.
            let step = 1u64 << (32 - segment.depth);
            let Ok(next) = u32::try_from((u64::from(from) / step + 1) * step) else { return 0 };
            if left == 0 {
                return next.into();
            }
            from = next;
        }
    }

    fn split(&mut self, number: usize, hash: u32) {
        let Some(old) = self.segments.get_mut(number) else { return };
        if old.depth == self.depth {
            self.directory = self.directory.iter().flat_map(|n| [*n, *n]).collect();
            self.depth += 1;
        }
        old.depth += 1;
        let depth = old.depth;
        let high_prefix = leading(hash, depth) | 1;
        let border = entry((high_prefix as u32) << (32 - depth), 0);
        let at = old.entries.partition_point(|entry| *entry < border);
        let high = old.entries.split_off(at);
        old.entries.shrink_to_fit();
        let new = self.segments.len() as u32;
        self.segments.push(IndexSegment { entries: high, depth });
        let width = 1usize << (self.depth - depth);
        let first = high_prefix * width;
        self.directory.iter_mut().skip(first).take(width).for_each(|slot| *slot = new);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn entries_are_found_moved_and_removed() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut index, mut model) = (Index::default(), BTreeSet::new());
        for step in 0..40_000u32 {
            // Few hashes at first, so that some are shared.
            let hash = if step % 3 == 0 { rng.u32(..50) << 20 } else { rng.u32(..) };
            let leaf = rng.u32(..1000);
            if model.insert((hash, leaf)) {
                index.insert(hash, leaf);
            }
            if step % 5 == 0 {
                let (hash, leaf) = *model.range((rng.u32(..), 0)..).next().unwrap_or(&(hash, leaf));
                model.remove(&(hash, leaf));
                index.remove(hash, leaf);
            }
            if step % 7 == 0 {
                let (hash, leaf) = *model.range((rng.u32(..), 0)..).next().unwrap_or(&(hash, leaf));
                let to = rng.u32(1000..2000);
                if model.contains(&(hash, leaf)) && !model.contains(&(hash, to)) {
                    model.remove(&(hash, leaf));
                    model.insert((hash, to));
                    index.moved(hash, leaf, to);
                }
            }
        }
        for (hash, _) in &model {
            let found: Vec<u32> = index.leaves(*hash).collect();
            let expected: Vec<u32> =
                model.range((*hash, 0)..=(*hash, u32::MAX)).map(|(_, leaf)| *leaf).collect();
            assert_eq!(found, expected);
        }
        let (mut cursor, mut seen) = (0, Vec::new());
        loop {
            cursor = index.scan(cursor, 7, |hash, leaf| seen.push((hash, leaf)));
            if cursor == 0 {
                break;
            }
        }
        assert!(seen.iter().copied().eq(model.iter().copied()));
    }

    #[test]
    fn many_members_of_one_hash_are_all_kept() {
        let mut index = Index::default();
        (0..2_000).for_each(|leaf| index.insert(7, leaf));
        assert_eq!(index.leaves(7).count(), 2_000);
        assert_eq!(index.leaves(8).count(), 0);
        let mut seen = 0;
        let next = index.scan(0, 10, |_, _| seen += 1);
        assert_eq!(seen, 2_000);
        assert_eq!(index.scan(next, 10, |_, _| seen += 1), 0);
        assert_eq!(seen, 2_000);
    }
}
