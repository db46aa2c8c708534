//! Hashes of names and of all their parents, in one pass.
//!
//! Labels are hashed from the right, so that the hash of `a.b.c` goes on from that of `b.c`. The seed
//! is drawn at random once per data folder: nobody can choose names that collide. The function is our
//! own and must not change, because hashes are kept on disk.

use smallvec::SmallVec;

use crate::DomainName;

/// Lowest bits of a hash, which hold flags in a table.
pub(crate) const FLAG_BITS: u64 = 0xf;

/// Odd constants without structure: digits of π and e in hexadecimal.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const STEP: u64 = 0xb7e1_5162_8aed_2a6b;

/// Seed of all hashes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashSeed(pub(crate) u64);

/// Hashes of a name and its parents: the whole name first, then one label less each, without the
/// root.
pub(crate) type SuffixHashes = SmallVec<[u64; 8]>;

impl HashSeed {
    /// Returns the hashes of a name and its parents.
    pub(crate) fn suffixes(self, name: &DomainName) -> SuffixHashes {
        let labels: SmallVec<[&[u8]; 8]> = name.labels().collect();
        let mut state = self.0 ^ MULTIPLIER;
        let mut hashes: SuffixHashes = labels
            .iter()
            .rev()
            .map(|label| {
                state = fold_label(state, label);
                finish(state)
            })
            .collect();
        hashes.reverse();
        hashes
    }

    /// Returns the hash of a name.
    pub(crate) fn whole(self, name: &DomainName) -> u64 {
        self.suffixes(name).first().copied().unwrap_or_else(|| finish(self.0))
    }
}

fn fold_label(state: u64, label: &[u8]) -> u64 {
    // The length keeps "ab" + "c" apart from "a" + "bc".
    let mut state = multiply(state ^ label.len() as u64, STEP);
    for chunk in label.chunks(8) {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(chunk) {
            *to = *from;
        }
        state = multiply(state ^ u64::from_le_bytes(bytes), MULTIPLIER);
    }
    state
}

/// Clears the flags' bits and never returns zero, which marks an empty slot.
fn finish(state: u64) -> u64 {
    let hash = multiply(state, STEP) & !FLAG_BITS;
    if hash == 0 { FLAG_BITS + 1 } else { hash }
}

/// Folds the 128 bits of a product.
fn multiply(left: u64, right: u64) -> u64 {
    let product = u128::from(left ^ MULTIPLIER.rotate_left(17)) * u128::from(right | 1);
    let (high, low) = ((product >> 64) as u64, product as u64);
    high ^ low.rotate_left(29) ^ left
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn the_hash_of_a_parent_is_among_those_of_its_children() {
        let seed = HashSeed(7);
        let hashes = seed.suffixes(&name("a.b.example.com"));
        assert_eq!(hashes.len(), 4);
        for (index, parent) in
            ["a.b.example.com", "b.example.com", "example.com", "com"].into_iter().enumerate()
        {
            assert_eq!(hashes[index], seed.whole(&name(parent)), "{parent}");
        }
        assert_ne!(seed.whole(&name("ab.c")), seed.whole(&name("a.bc")));
        assert_ne!(seed.whole(&name("a.com")), HashSeed(8).whole(&name("a.com")));
    }

    #[test]
    fn hashes_of_many_names_differ_in_all_bits() {
        let seed = HashSeed(1);
        let mut seen = HashSet::new();
        let mut ones = [0_u32; 64];
        for number in 0..100_000 {
            let hash = seed.whole(&name(&format!("host{number}.example.com")));
            assert!(seen.insert(hash));
            ones.iter_mut().enumerate().for_each(|(bit, ones)| {
                *ones += u32::from(hash >> bit & 1 == 1);
            });
        }
        for (bit, ones) in ones.iter().enumerate().skip(4) {
            assert!((49_000..51_000).contains(ones), "bit {bit} is set in {ones}");
        }
    }
}
