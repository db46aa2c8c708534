//! The keyspace in parts, so that effects can be replayed for one part at a time.
//!
//! Compaction replays a log into a second keyspace. Part by part, only a fraction of the data is in
//! memory twice, for the price of reading the log once per part. Invariant: keys that one effect
//! reads or writes together (`RENAME`, `LMOVE`, `SUNIONSTORE`) are linked and in the same part, so
//! a part replayed alone holds the same values as it would among all others. Effects that name
//! several keys but treat each by itself (`MSET`, `DEL`) link nothing: each part runs its share.
//!
//! A part is not bound to a database: a key is in the same part in all of them, so `MOVE` and
//! `SWAPDB` need no links.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashMap;

use super::{
    load::{BadEffects, EffectReader},
    snapshot::SnapshotCursor,
};
use crate::command::{self, CommandSpec};
use crate::keys::{self, Positions};
use crate::{Engine, memory};

/// Keys that are not linked are told apart by so many bits of their hash.
const BUCKET_BITS: u32 = 12;

/// Finds out how to divide a keyspace into parts: what is linked, and how much memory what takes.
#[derive(Debug)]
pub struct PartPlan {
    hasher: FixedState,
    /// Hashes of linked keys, each with another one of the same part. A tree by parents, whose root
    /// is its own.
    links: HashMap<u64, u64>,
    /// Bytes of memory by bucket.
    weights: Vec<u64>,
}

/// Says which part a key belongs to.
#[derive(Debug)]
pub struct KeyParts {
    hasher: FixedState,
    /// Hashes of linked keys, each with that of the one by which all linked to it go.
    links: HashMap<u64, u64>,
    /// The part of each bucket.
    parts: Vec<u16>,
    count: usize,
}

/// One of the parts.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    parts: &'a KeyParts,
    number: usize,
}

fn bucket(hash: u64) -> usize {
    (hash >> (64 - BUCKET_BITS)) as usize
}

impl PartPlan {
    /// A plan that knows of nothing yet. `seed` keeps outsiders from choosing keys that all go to
    /// one part.
    pub fn new(seed: u64) -> Self {
        Self {
            hasher: FixedState::with_seed(seed),
            links: HashMap::new(),
            weights: vec![0; 1 << BUCKET_BITS],
        }
    }

    /// Takes note of keys that the effects of one record need together. All records must have been
    /// seen before keys are weighed.
    ///
    /// # Errors
    /// The bytes are not effects.
    pub fn link(&mut self, effects: &[u8]) -> Result<(), BadEffects> {
        let mut reader = EffectReader { rest: effects };
        let mut argv = Vec::new();
        while reader.next(&mut argv)?.is_some() {
            if let Keys::Together(positions) = Keys::of(&argv) {
                let mut hashes = positions
                    .iter()
                    .filter_map(|at| argv.get(*at))
                    .map(|key| self.hasher.hash_one(*key));
                if let Some(first) = hashes.next() {
                    let others: Vec<u64> = hashes.collect();
                    others.into_iter().for_each(|other| self.join(first, other));
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, one: u64, other: u64) {
        let (one, other) = (self.root(one), self.root(other));
        self.links.insert(one, one);
        self.links.insert(other, one);
    }

    /// The key by which all that are linked to this one go; shortens the way there.
    fn root(&mut self, hash: u64) -> u64 {
        let mut at = hash;
        while let Some(&parent) = self.links.get(&at)
            && parent != at
        {
            let next = self.links.get(&parent).copied().unwrap_or(parent);
            self.links.insert(at, next);
            at = next;
        }
        at
    }

    /// Divides the keyspace into about `count` parts without knowing what its keys weigh. What is
    /// linked stays together.
    pub fn split_evenly(mut self, count: u64) -> KeyParts {
        self.weights.fill(1);
        self.split(count, 1)
    }

    fn weigh(&mut self, key: &[u8], bytes: u64) {
        let hash = self.hasher.hash_one(key);
        let root = if self.links.is_empty() { hash } else { self.root(hash) };
        if let Some(weight) = self.weights.get_mut(bucket(root)) {
            *weight += bytes;
        }
    }

    /// Divides what was weighed into parts of a `share`th of the whole each, about, and of no less
    /// than `least` bytes. What is linked, or one large key, may make a part larger.
    pub fn split(mut self, share: u64, least: u64) -> KeyParts {
        let hashes: Vec<u64> = self.links.keys().copied().collect();
        let links = hashes.into_iter().map(|hash| (hash, self.root(hash))).collect();
        let most = (self.weights.iter().sum::<u64>() / share.max(1)).max(least);
        let mut buckets: Vec<(usize, u64)> = self.weights.iter().copied().enumerate().collect();
        // The largest first, each where it fits: no two parts could be one.
        buckets.sort_unstable_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        let mut loads: Vec<u64> = vec![0];
        let mut parts = vec![0; buckets.len()];
        for (bucket, weight) in buckets {
            let fits = loads.iter().position(|load| *load == 0 || *load + weight <= most);
            let number = fits.unwrap_or_else(|| {
                loads.push(0);
                loads.len() - 1
            });
            if let (Some(load), Some(part)) = (loads.get_mut(number), parts.get_mut(bucket)) {
                *load += weight;
                // There are no more parts than buckets.
                *part = u16::try_from(number).unwrap_or(0);
            }
        }
        KeyParts { hasher: self.hasher, links, parts, count: loads.len() }
    }
}

impl KeyParts {
    /// Everything in one part.
    pub fn whole() -> Self {
        Self {
            hasher: FixedState::with_seed(0),
            links: HashMap::new(),
            parts: vec![0; 1 << BUCKET_BITS],
            count: 1,
        }
    }

    /// All parts, one after another.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        (0..self.count).map(|number| Part { parts: self, number })
    }

    fn number_of(&self, key: &[u8]) -> usize {
        let hash = self.hasher.hash_one(key);
        let root = self.links.get(&hash).copied().unwrap_or(hash);
        self.parts.get(bucket(root)).copied().unwrap_or(0).into()
    }
}

impl Part<'_> {
    /// Is it the first, which also holds what belongs to no key?
    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Does this key belong to it?
    pub(super) fn holds(&self, key: &[u8]) -> bool {
        self.parts.count == 1 || self.parts.number_of(key) == self.number
    }

    /// Leaves of an effect in `argv` what concerns this part. False if that is nothing.
    pub(super) fn narrow(&self, argv: &mut Vec<&[u8]>) -> bool {
        if self.parts.count == 1 {
            return true;
        }
        match Keys::of(argv) {
            Keys::None => true,
            Keys::Together(positions) => {
                positions.first().and_then(|at| argv.get(*at)).is_some_and(|key| self.holds(key))
            }
            Keys::Each { width } => {
                let (mut at, mut mine) = (0, false);
                argv.retain(|argument| {
                    if at > 0 && (at - 1) % width == 0 {
                        mine = self.holds(argument);
                    }
                    at += 1;
                    at == 1 || mine
                });
                argv.len() > 1
            }
        }
    }
}

/// The keys of an effect.
#[derive(Debug, PartialEq)]
enum Keys {
    /// It has none: it concerns every part.
    None,
    /// Everything behind the name is a key, or a key and what goes with it, `width` arguments each;
    /// none has to do with another.
    Each { width: usize },
    /// The effect on one key may depend on the others.
    Together(Positions),
}

impl Keys {
    fn of(argv: &[&[u8]]) -> Self {
        let Ok(command) = command::find_with_subcommand(argv) else { return Self::None };
        match Self::width(command, argv.len()) {
            Some(width) => Self::Each { width },
            None => match keys::positions(command, argv) {
                Some(positions) if !positions.is_empty() => Self::Together(positions),
                _ => Self::None,
            },
        }
    }

    fn width(command: &CommandSpec, count: usize) -> Option<usize> {
        let width = match command.name {
            "del" | "unlink" => 1,
            // All of its keys were absent when it became an effect.
            "mset" | "msetnx" => 2,
            _ => return None,
        };
        (!command.is_subcommand && (count - 1).is_multiple_of(width)).then_some(width)
    }
}

impl Engine {
    /// Adds about `count` keys from `cursor` on to what a plan knows of; where to go on, if there
    /// are more.
    pub fn weigh(
        &self,
        cursor: SnapshotCursor,
        count: usize,
        plan: &mut PartPlan,
    ) -> Option<SnapshotCursor> {
        let step = self.walk(cursor, count, |_, entry| {
            plan.weigh(&entry.key, memory::entry_size(entry) as u64);
        });
        step.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(line: &str) -> Keys {
        Keys::of(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn only_effects_that_need_several_keys_at_once_link_them() {
        let at = |positions: &[usize]| Keys::Together(positions.iter().copied().collect());
        assert_eq!(keys("FLUSHALL"), Keys::None);
        assert_eq!(keys("SWAPDB 0 1"), Keys::None);
        assert_eq!(keys("SET a 1"), at(&[1]));
        assert_eq!(keys("XGROUP CREATE s g 0"), at(&[2]));
        assert_eq!(keys("RENAME a b"), at(&[1, 2]));
        assert_eq!(keys("ZUNIONSTORE d 2 a b"), at(&[1, 3, 4]));
        assert_eq!(keys("DEL a b c"), Keys::Each { width: 1 });
        assert_eq!(keys("MSET a 1 b 2"), Keys::Each { width: 2 });
    }

    #[test]
    fn linked_keys_are_in_one_part_and_parts_are_even() {
        let mut plan = PartPlan::new(7);
        let effect = |words: &[&str]| {
            let mut effects = crate::effect::Effects::new(true);
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            effects.push(0, &words);
            effects.take()
        };
        for n in 0..100 {
            let names = [format!("k{n}"), format!("k{}", n + 100), format!("k{}", n + 200)];
            plan.link(&effect(&["RENAME", &names[0], &names[1]])).unwrap();
            plan.link(&effect(&["LMOVE", &names[2], &names[1], "LEFT", "LEFT"])).unwrap();
            plan.link(&effect(&["MSET", &names[0], "1", "other", "2"])).unwrap();
        }
        for n in 0..10_000 {
            plan.weigh(format!("k{n}").as_bytes(), 100);
        }
        let parts = plan.split(4, 1);
        assert!((4..=5).contains(&parts.iter().count()), "{}", parts.iter().count());
        for n in 0..100 {
            let number = |n: usize| parts.number_of(format!("k{n}").as_bytes());
            assert_eq!([number(n + 100), number(n + 200)], [number(n); 2]);
        }
        for part in parts.iter() {
            let keys = (0..10_000).filter(|n| part.holds(format!("k{n}").as_bytes())).count();
            assert!(keys <= 2_500, "{keys}");
        }
    }
}
