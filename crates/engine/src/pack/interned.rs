//! Words that many hashes share: field names, states, queue names.
//!
//! A word seen often gets a number and is stored once for the whole process; a number is never
//! given to another word, so it can be read without a lock. There are few numbers and it takes
//! many sightings to earn one, so that chance content does not use them up. Which words are shared
//! changes how much memory a hash takes and nothing else.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use parking_lot::Mutex;

/// Numbers there are: twelve bits in an encoding.
const NUMBERS: usize = 4096;
/// Longer words are not shared.
const WORD_MAX: usize = 160;
/// Shorter words gain nothing.
const WORD_MIN: usize = 2;
/// Sightings before a word is shared.
const SIGHTINGS: u8 = 32;
/// Places in which candidates are counted.
const CANDIDATES: usize = 4096;

static WORDS: [OnceLock<Box<[u8]>>; NUMBERS] = [const { OnceLock::new() }; NUMBERS];

static KNOWN: Mutex<InternTable> = Mutex::new(InternTable {
    numbers: HashTable::new(),
    next: 0,
    candidates: [InternCandidate { print: 0, seen: 0 }; CANDIDATES],
});

#[derive(Debug)]
struct InternTable {
    numbers: HashTable<u16>,
    next: u16,
    candidates: [InternCandidate; CANDIDATES],
}

/// A word on its way to a number: part of its hash, and how often it was seen more than others
/// that fall into the same place.
#[derive(Debug, Clone, Copy)]
struct InternCandidate {
    print: u16,
    seen: u8,
}

fn hash(word: &[u8]) -> u64 {
    FixedState::with_seed(0x7469_6465).hash_one(word)
}

/// The word with this number.
pub(super) fn word(number: u16) -> &'static [u8] {
    WORDS.get(usize::from(number)).and_then(OnceLock::get).map_or(&[], |word| word)
}

/// The number of a word, if it is shared.
pub(super) fn find(bytes: &[u8]) -> Option<u16> {
    if !(WORD_MIN..=WORD_MAX).contains(&bytes.len()) {
        return None;
    }
    KNOWN.lock().find(hash(bytes), bytes)
}

/// As [`find`], for a word about to be stored: it is counted, and may become shared.
pub(super) fn note(bytes: &[u8]) -> Option<u16> {
    if !(WORD_MIN..=WORD_MAX).contains(&bytes.len()) {
        return None;
    }
    let hash = hash(bytes);
    let mut known = KNOWN.lock();
    known.find(hash, bytes).or_else(|| known.count(hash, bytes))
}

impl InternTable {
    fn find(&self, hash: u64, bytes: &[u8]) -> Option<u16> {
        self.numbers.find(hash, |number| word(*number) == bytes).copied()
    }

    fn count(&mut self, hash: u64, bytes: &[u8]) -> Option<u16> {
        let place = (hash >> 20) as usize % CANDIDATES;
        let print = (hash >> 48) as u16;
        let candidate = self.candidates.get_mut(place)?;
        if candidate.print != print || candidate.seen == 0 {
            candidate.seen = candidate.seen.saturating_sub(1);
            if candidate.seen == 0 {
                *candidate = InternCandidate { print, seen: 1 };
            }
            return None;
        }
        candidate.seen += 1;
        let number = self.next;
        if candidate.seen < SIGHTINGS || usize::from(number) >= NUMBERS {
            candidate.seen = candidate.seen.min(SIGHTINGS);
            return None;
        }
        candidate.seen = 0;
        WORDS.get(usize::from(number))?.set(bytes.into()).ok()?;
        self.next += 1;
        self.numbers.insert_unique(hash, number, |number| self::hash(word(*number)));
        Some(number)
    }
}
