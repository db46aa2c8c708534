//! A table of names: one 64-bit word each, 60 bits of hash and 4 of flags.
//!
//! Open addressing with linear probing at a load of four fifths: ten bytes a name. The table is read
//! from disk as it is, and never changed.

use super::hash::FLAG_BITS;

/// The name itself is blocked.
pub(crate) const BLOCK_EXACT: u64 = 1;
/// All names below it are.
pub(crate) const BLOCK_BELOW: u64 = 2;
/// The name itself is allowed.
pub(crate) const ALLOW_EXACT: u64 = 4;
/// All names below it are.
pub(crate) const ALLOW_BELOW: u64 = 8;

/// Names by hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameTable {
    words: Box<[u64]>,
}

impl NameTable {
    /// Makes a table of words sorted by hash; words of the same hash are merged.
    pub(crate) fn build(sorted: impl Iterator<Item = u64> + Clone) -> Self {
        let (mut names, mut last) = (0, 0);
        for word in sorted.clone() {
            names += usize::from(word & !FLAG_BITS != last);
            last = word & !FLAG_BITS;
        }
        let mut table = Self::with_names(names);
        for word in sorted {
            table.put(word);
        }
        table
    }

    /// Makes an empty table for so many names.
    pub(crate) fn with_names(names: usize) -> Self {
        Self { words: vec![0; names + names / 4 + 1].into() }
    }

    /// Takes words as they were read from disk; none if they are no table.
    pub(crate) fn from_words(words: Vec<u64>) -> Option<Self> {
        let names = words.iter().filter(|word| **word != 0).count();
        // Without an empty slot a search would not end.
        (names < words.len()).then(|| Self { words: words.into() })
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the flags of a hash; zero if it is not in the table.
    pub(crate) fn flags(&self, hash: u64) -> u64 {
        if self.words.is_empty() {
            return 0;
        }
        let mut at = self.home(hash);
        loop {
            match self.words.get(at) {
                Some(0) => return 0,
                Some(word) if word & !FLAG_BITS == hash => return word & FLAG_BITS,
                Some(_) => at += 1,
                None => at = 0,
            }
        }
    }

    /// Adds a word. No more names may be added than the table was made for.
    pub(crate) fn put(&mut self, word: u64) {
        let mut at = self.home(word & !FLAG_BITS);
        loop {
            match self.words.get_mut(at) {
                Some(slot) if *slot == 0 || *slot & !FLAG_BITS == word & !FLAG_BITS => {
                    *slot |= word;
                    return;
                }
                Some(_) => at += 1,
                None => at = 0,
            }
        }
    }

    /// Scales a hash to the size of the table, which need not be a power of two.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.words.len() as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_no_other() {
        let mut words: Vec<u64> = (1..10_000_u64)
            .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !FLAG_BITS) | BLOCK_EXACT)
            .collect();
        words.push(words[5] & !FLAG_BITS | ALLOW_BELOW);
        words.sort_unstable();
        let table = NameTable::build(words.iter().copied());
        assert_eq!(table.words().iter().filter(|word| **word != 0).count(), 9_999);
        assert!(table.words().len() * 8 <= 10_000 * 10 + 16);
        for word in &words {
            assert_ne!(table.flags(word & !FLAG_BITS) & word & FLAG_BITS, 0);
        }
        assert_eq!(table.flags(0x1230), 0);
        let again = NameTable::from_words(table.words().to_vec()).unwrap();
        assert_eq!(again, table);
        assert!(NameTable::from_words(vec![16, 32]).is_none(), "full");
        assert_eq!(NameTable::build(std::iter::empty()).flags(16), 0);
        assert_eq!(NameTable::default().flags(16), 0);
    }
}
