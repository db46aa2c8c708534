//! The sorted set type: structure and API. Its commands are in the files below.
//!
//! A small sorted set is one [`Pack`] of members and scores in order; a large one is a [`Tree`].
//! The reply of `OBJECT ENCODING` follows Redis's limits: a sorted set past them stays packed for
//! as long as that is the better choice, with the pack's mark set.

mod algebra;
mod commands;
mod index;
mod range;
mod tree;

use std::cmp::Ordering;
use std::ops::ControlFlow;

use crate::admin::config::Config;
use crate::pack::{Code, Elem, PACK_MAX, Pack, compare};
use range::LexRange;
use tree::Tree;

pub(crate) use commands::{COMMANDS, zadd};
pub(crate) use range::ScoreRange;

/// Entries up to which a sorted set past Redis's limits stays packed.
const PACKED_ENTRIES: usize = 32;
/// Bytes up to which it stays packed.
const PACKED_BYTES: usize = 4096;

/// A sorted set.
#[derive(Debug, Clone)]
pub(crate) enum Zset {
    /// Members and scores in turn.
    Packed(Pack),
    Tree(Box<Tree>),
}

/// The limits of `OBJECT ENCODING`, and what a tree needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZsetLimits {
    entries: usize,
    value: usize,
    seed: u64,
}

impl ZsetLimits {
    /// The limits for sorted sets.
    pub(crate) fn of(config: &Config) -> ZsetLimits {
        ZsetLimits {
            entries: config.zset_max_listpack_entries,
            value: config.zset_max_listpack_value,
            seed: config.seed,
        }
    }
}

/// The options of ZADD.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ZaddOptions {
    /// Only add.
    pub(crate) nx: bool,
    /// Only change.
    pub(crate) xx: bool,
    /// Change only to a greater score.
    pub(crate) gt: bool,
    /// Change only to a lesser score.
    pub(crate) lt: bool,
    /// The score is to be added to the old one.
    pub(crate) incr: bool,
}

/// The outcome of an addition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ZaddOutcome {
    /// The member is new, with this score.
    New(f64),
    /// The member has this score now.
    Changed(f64),
    /// The member has this score already.
    Same(f64),
    /// The options forbid it.
    Refused,
    /// The sum is not a number: nothing was done.
    NotANumber,
}

/// An option of ZADD in snapshots: the set was past the limits of a listpack.
pub(crate) const PAST_LIMITS: &str = "PASTLIMITS";

impl Default for Zset {
    fn default() -> Zset {
        Zset::Packed(Pack::default())
    }
}

impl Zset {
    /// A sorted set of all these members, each different. Whether it is within the limits is
    /// known before the first goes in, for past them a negative zero keeps its sign.
    pub(crate) fn of(members: &[(Vec<u8>, f64)], limits: ZsetLimits) -> Zset {
        let mut pack = Pack::default();
        let long = |(member, _): &(Vec<u8>, f64)| member.len() > limits.value;
        if members.len() > limits.entries || members.iter().any(long) {
            pack.edit(0).set_flag();
        }
        let mut zset = Zset::Packed(pack);
        for (member, score) in members {
            zset.insert(member, *score, limits);
        }
        zset
    }

    /// From now on it is past the limits of a listpack, however few members it has.
    pub(crate) fn exceed_limits(&mut self) {
        if let Zset::Packed(pack) = self {
            pack.edit(0).set_flag();
        }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Zset::Packed(pack) => pack.len() / 2,
            Zset::Tree(tree) => tree.len(),
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Zset::Packed(pack) if !pack.flag() => "listpack",
            _ => "skiplist",
        }
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Zset::Packed(pack) => pack.heap_size(),
            Zset::Tree(tree) => tree.heap_size(),
        }
    }

    /// The score of a member.
    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Zset::Packed(pack) => {
                let (_, after) = pack.at(pack.find(&Code::of(member), None, 2)?)?;
                pack.at(after).map(|(score, _)| score.score())
            }
            Zset::Tree(tree) => tree.score(&Code::of(member).bytes()),
        }
    }

    /// Rank: the number of members before this one.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        match self {
            Zset::Packed(pack) => {
                let found = pack.find(&Code::of(member), None, 2)?;
                let (mut offset, mut elements) = (pack.start(), 0);
                while offset < found {
                    offset = pack.at(offset)?.1;
                    elements += 1;
                }
                Some(elements / 2)
            }
            Zset::Tree(tree) => tree.rank(&Code::of(member).bytes()).map(|(rank, _)| rank),
        }
    }

    /// Adds a member or changes its score.
    pub(crate) fn add(
        &mut self,
        member: &[u8],
        score: f64,
        when: ZaddOptions,
        limits: ZsetLimits,
    ) -> ZaddOutcome {
        let mut score = score;
        if let Some(old) = self.score(member) {
            if when.nx {
                return ZaddOutcome::Refused;
            }
            if when.incr {
                score += old;
            }
            if score.is_nan() {
                return ZaddOutcome::NotANumber;
            }
            if (when.lt && score >= old) || (when.gt && score <= old) {
                return ZaddOutcome::Refused;
            }
            if score == old {
                return ZaddOutcome::Same(score);
            }
            match self {
                Zset::Packed(pack) => {
                    let code = Code::of(member);
                    if let Some(at) = pack.find(&code, None, 2) {
                        pack.edit(8).remove(at, 2);
                    }
                    insert(pack, &code, score);
                }
                Zset::Tree(tree) => tree.rescore(&Code::of(member).bytes(), score),
            }
            return ZaddOutcome::Changed(score);
        }
        if when.xx {
            return ZaddOutcome::Refused;
        }
        self.insert(member, score, limits);
        ZaddOutcome::New(score)
    }

    fn insert(&mut self, member: &[u8], score: f64, limits: ZsetLimits) {
        let code = Code::of(member);
        if let Zset::Packed(pack) = self {
            let count = pack.len() / 2 + 1;
            if !pack.flag() && (count > limits.entries || member.len() > limits.value) {
                pack.edit(0).set_flag();
            }
            let full = pack.flag()
                && (count > PACKED_ENTRIES || pack.heap_size() + code.len() > PACKED_BYTES);
            if !full && pack.len() + 2 <= PACK_MAX {
                return insert(pack, &code, score);
            }
            let mut tree = Tree::with_seed(limits.seed);
            for (elem, score) in pairs(pack) {
                tree.insert(&Code::of(elem.bytes(&mut [0; 36])).bytes(), score);
            }
            *self = Zset::Tree(Box::new(tree));
        }
        if let Zset::Tree(tree) = self {
            tree.insert(&code.bytes(), score);
        }
    }

    /// Takes a member out; its score if it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        match self {
            Zset::Packed(pack) => {
                let at = pack.find(&Code::of(member), None, 2)?;
                let (score, _) = pack.at(pack.at(at)?.1)?;
                let score = score.score();
                pack.edit(0).remove(at, 2);
                Some(score)
            }
            Zset::Tree(tree) => tree.remove(&Code::of(member).bytes()),
        }
    }

    /// Takes `count` members out from a rank on.
    pub(crate) fn remove_range(&mut self, rank: usize, count: usize) {
        let count = count.min(self.len().saturating_sub(rank));
        match self {
            Zset::Packed(pack) if count > 0 => {
                let at = pack.offset(2 * rank);
                pack.edit(0).remove(at, 2 * count);
            }
            Zset::Packed(_) => {}
            Zset::Tree(tree) => tree.remove_range(rank, count),
        }
    }

    /// All members with their scores, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Elem<'_>, f64)> {
        let (packed, tree) = match self {
            Zset::Packed(pack) => (Some(pairs(pack)), None),
            Zset::Tree(tree) => (None, Some(tree.iter())),
        };
        packed.into_iter().flatten().chain(tree.into_iter().flatten())
    }

    /// Walks over members from a rank on, forwards or backwards, until `visit` breaks.
    pub(crate) fn walk<'z>(
        &'z self,
        rank: usize,
        backwards: bool,
        mut visit: impl FnMut(Elem<'z>, f64) -> ControlFlow<()>,
    ) {
        match self {
            Zset::Packed(pack) if backwards => {
                let before: Vec<_> = pairs(pack).take(rank + 1).collect();
                if before.len() == rank + 1 {
                    for (elem, score) in before.into_iter().rev() {
                        if visit(elem, score).is_break() {
                            return;
                        }
                    }
                }
            }
            Zset::Packed(pack) => {
                for (elem, score) in pairs(pack).skip(rank) {
                    if visit(elem, score).is_break() {
                        return;
                    }
                }
            }
            Zset::Tree(tree) => tree.walk(rank, backwards, visit),
        }
    }

    /// `count` members with their scores, from a rank on.
    pub(crate) fn slice(&self, rank: usize, count: usize, backwards: bool) -> Vec<(Elem<'_>, f64)> {
        let mut found = Vec::with_capacity(count.min(self.len()));
        if count > 0 {
            self.walk(rank, backwards, |elem, score| {
                found.push((elem, score));
                if found.len() == count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        }
        found
    }

    /// First rank and number of the members in a range of scores.
    pub(crate) fn score_range(&self, range: &ScoreRange) -> (usize, usize) {
        let count = |before: &dyn Fn(f64) -> bool| match self {
            Zset::Packed(pack) => pairs(pack).take_while(|(_, score)| before(*score)).count(),
            Zset::Tree(tree) => tree.count_scores(before),
        };
        let first = count(&|score| !range.reaches(score));
        let end = count(&|score| !range.exceeds(score));
        (first, end.saturating_sub(first))
    }

    /// First rank and number of the members in a range of names, for members of one score. With
    /// several scores the answer is that of a search from one end, as in Redis.
    pub(crate) fn lex_range(&self, range: &LexRange<'_>, backwards: bool) -> (usize, usize) {
        match self {
            Zset::Packed(pack) => {
                let members: Vec<Elem<'_>> = pairs(pack).map(|(elem, _)| elem).collect();
                let reaches = |elem: &Elem<'_>| range.reaches(*elem);
                let exceeds = |elem: &Elem<'_>| range.exceeds(*elem);
                if range.is_empty()
                    || !members.last().is_some_and(reaches)
                    || members.first().is_none_or(exceeds)
                {
                    return (0, 0);
                }
                if backwards {
                    let Some(last) = members.iter().rposition(|elem| !exceeds(elem)) else {
                        return (0, 0);
                    };
                    let inside = members.iter().take(last + 1).rev().take_while(|e| reaches(e));
                    let count = inside.count();
                    return (last + 1 - count, count);
                }
                let Some(first) = members.iter().position(reaches) else { return (0, 0) };
                (first, members.iter().skip(first).take_while(|elem| !exceeds(elem)).count())
            }
            Zset::Tree(tree) => {
                if range.is_empty() {
                    return (0, 0);
                }
                let first = tree.count_members(|elem| !range.reaches(elem));
                let end = tree.count_members(|elem| !range.exceeds(elem));
                (first, end.saturating_sub(first))
            }
        }
    }

    /// Reports about `count` members from `cursor` on.
    pub(crate) fn scan<'z>(
        &'z self,
        cursor: u64,
        count: usize,
        mut report: impl FnMut(Elem<'z>, f64),
    ) -> u64 {
        match self {
            Zset::Packed(pack) => {
                pairs(pack).for_each(|(elem, score)| report(elem, score));
                0
            }
            Zset::Tree(tree) => tree.scan(cursor, count, report),
        }
    }
}

/// Members and scores of a pack.
fn pairs(pack: &Pack) -> impl Iterator<Item = (Elem<'_>, f64)> {
    let mut elements = pack.iter();
    std::iter::from_fn(move || Some((elements.next()?, elements.next()?.score())))
}

/// Puts a member that is not there into its place.
fn insert(pack: &mut Pack, member: &Code<'_>, score: f64) {
    // Within its limits Redis keeps whole scores as integers, which have no negative zero.
    let score = if score == 0.0 && !pack.flag() { 0.0 } else { score };
    let elem = member.elem();
    let mut offset = pack.start();
    while let Some((found, after)) = pack.at(offset) {
        let Some((found_score, next)) = pack.at(after) else { break };
        let found_score = found_score.score();
        if found_score > score
            || (found_score == score && compare(found, elem) == Ordering::Greater)
        {
            break;
        }
        offset = next;
    }
    let score = Code::score(score);
    let mut edit = pack.edit(member.len() + score.len());
    let offset = offset.max(edit.start());
    edit.insert(offset, &[*member, score]);
}
