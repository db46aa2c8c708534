//! A large sorted set: a counted B+tree in order of score and member, and an [`Index`] from
//! members to leaves.
//!
//! Members lie once, encoded, in their leaf. Inner nodes hold how many entries are below each
//! child and the child's lowest score; where scores are equal the child's first member is looked
//! up in its first leaf. Every node knows its parent, so a rank is found from the leaf upwards.
//! No leaf and no node is empty, except for the root leaf of an empty tree.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::ops::ControlFlow;

use foldhash::fast::FixedState;

use super::index::Index;
use crate::pack::{Elem, compare};

/// Entries in a leaf at most.
const LEAF_MAX: usize = 64;
/// Bytes of members in a leaf, unless it holds one member only.
const LEAF_BYTES: usize = 16 << 10;
/// Below this many entries a leaf joins a neighbour, if both together stay below `LEAF_JOINED`.
const LEAF_MIN: usize = LEAF_MAX / 4;
const LEAF_JOINED: usize = LEAF_MAX * 3 / 4;
/// Children of a node at most.
const NODE_MAX: usize = 32;
const NODE_MIN: usize = NODE_MAX / 4;
const NODE_JOINED: usize = NODE_MAX * 3 / 4;
/// No leaf, no node.
const NONE: u32 = u32::MAX;

/// A large sorted set. Members come and go in their encoding (see `pack.rs`).
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    leaves: Vec<Leaf>,
    nodes: Vec<TreeNode>,
    free_leaves: Vec<u32>,
    free_nodes: Vec<u32>,
    /// A leaf if `height` is 0, else a node.
    root: u32,
    height: u32,
    len: usize,
    /// Bytes of all members.
    bytes: usize,
    index: Index,
    hasher: FixedState,
}

#[derive(Debug, Clone)]
struct Leaf {
    parent: u32,
    before: u32,
    after: u32,
    scores: Vec<f64>,
    /// End of each member in `members`.
    ends: Vec<u32>,
    /// The low byte of each member's hash.
    tags: Vec<u8>,
    members: Vec<u8>,
}

#[derive(Debug, Clone)]
struct TreeNode {
    parent: u32,
    children: Vec<Child>,
}

#[derive(Debug, Clone, Copy)]
struct Child {
    number: u32,
    /// Entries below.
    count: u32,
    lowest: f64,
}

/// Position of an entry.
#[derive(Debug, Clone, Copy)]
struct LeafPosition {
    leaf: u32,
    at: usize,
}

impl Leaf {
    fn new() -> Leaf {
        Leaf {
            parent: NONE,
            before: NONE,
            after: NONE,
            scores: Vec::new(),
            ends: Vec::new(),
            tags: Vec::new(),
            members: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.scores.len()
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 {
            0
        } else {
            self.ends.get(at - 1).map_or(self.members.len(), |end| *end as usize)
        }
    }

    /// The encoding of a member.
    fn member(&self, at: usize) -> &[u8] {
        let end = self.ends.get(at).map_or(0, |end| *end as usize);
        self.members.get(self.start(at)..end).unwrap_or_default()
    }

    fn elem(&self, at: usize) -> Elem<'_> {
        Elem::read(self.member(at)).0
    }

    fn score(&self, at: usize) -> f64 {
        self.scores.get(at).copied().unwrap_or_default()
    }

    fn lowest(&self) -> f64 {
        self.score(0)
    }

    /// Number of entries before this score and member.
    fn place(&self, score: f64, member: Elem<'_>) -> usize {
        let mut low = self.scores.partition_point(|s| *s < score);
        let mut high =
            low + self.scores.get(low..).map_or(0, |s| s.partition_point(|s| *s <= score));
        while low < high {
            let middle = low.midpoint(high);
            if compare(self.elem(middle), member) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn insert(&mut self, at: usize, score: f64, member: &[u8], tag: u8) {
        if self.len() == self.scores.capacity() {
            let more = (self.len() / 4).max(8);
            self.scores.reserve_exact(more);
            self.ends.reserve_exact(more);
            self.tags.reserve_exact(more);
        }
        let (from, end, size) = (self.start(at), self.members.len(), member.len());
        if end + size > self.members.capacity() {
            self.members.reserve_exact((end / 4).max(128).max(size));
        }
        self.members.resize(end + size, 0);
        self.members.copy_within(from..end, from + size);
        if let Some(place) = self.members.get_mut(from..from + size) {
            place.copy_from_slice(member);
        }
        self.scores.insert(at, score);
        self.tags.insert(at, tag);
        self.ends.insert(at, from as u32);
        self.ends.iter_mut().skip(at).for_each(|end| *end += size as u32);
    }

    fn remove(&mut self, at: usize, count: usize) {
        let (from, to) = (self.start(at), self.start(at + count));
        self.members.drain(from..to);
        self.scores.drain(at..at + count);
        self.tags.drain(at..at + count);
        self.ends.drain(at..at + count);
        self.ends.iter_mut().skip(at).for_each(|end| *end -= (to - from) as u32);
    }

    /// Cuts the entries from `at` on off into a new leaf.
    fn split_off(&mut self, at: usize) -> Leaf {
        let from = self.start(at);
        let mut right = Leaf {
            parent: self.parent,
            before: NONE,
            after: self.after,
            scores: self.scores.split_off(at),
            ends: self.ends.split_off(at),
            tags: self.tags.split_off(at),
            members: self.members.split_off(from),
        };
        right.ends.iter_mut().for_each(|end| *end -= from as u32);
        self.shrink();
        right
    }

    /// Takes over all entries of the next leaf.
    fn append(&mut self, right: &mut Leaf) {
        let from = self.members.len() as u32;
        self.members.append(&mut right.members);
        self.scores.append(&mut right.scores);
        self.tags.append(&mut right.tags);
        self.ends.extend(right.ends.drain(..).map(|end| end + from));
    }

    fn shrink(&mut self) {
        self.members.shrink_to_fit();
        self.scores.shrink_to_fit();
        self.tags.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

impl Tree {
    /// An empty tree whose hashes depend on `seed`.
    pub(crate) fn with_seed(seed: u64) -> Tree {
        Tree {
            leaves: vec![Leaf::new()],
            nodes: Vec::new(),
            free_leaves: Vec::new(),
            free_nodes: Vec::new(),
            root: 0,
            height: 0,
            len: 0,
            bytes: 0,
            index: Index::default(),
            hasher: FixedState::with_seed(seed),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of heap, about.
    pub(crate) fn heap_size(&self) -> usize {
        size_of::<Tree>()
            + self.leaves.capacity() * size_of::<Leaf>()
            + self.nodes.len() * (size_of::<TreeNode>() + NODE_MAX * size_of::<Child>())
            + (self.bytes + self.len * 13) * 5 / 4
            + self.index.heap_size()
    }

    fn hash(&self, member: &[u8]) -> u32 {
        (self.hasher.hash_one(member) >> 32) as u32
    }

    /// The score of a member.
    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        let place = self.find(member)?;
        self.leaf(place.leaf).map(|leaf| leaf.score(place.at))
    }

    /// Number of entries before a member, and its score.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        let place = self.find(member)?;
        Some((self.rank_of(place), self.leaf(place.leaf)?.score(place.at)))
    }

    /// Adds a member that is not there yet.
    pub(crate) fn insert(&mut self, member: &[u8], score: f64) {
        let hash = self.hash(member);
        let elem = Elem::read(member).0;
        let number = self.leaf_for(score, elem);
        let Some(leaf) = self.leaves.get_mut(number as usize) else { return };
        let at = leaf.place(score, elem);
        leaf.insert(at, score, member, hash as u8);
        let full = leaf.len() > LEAF_MAX || (leaf.members.len() > LEAF_BYTES && leaf.len() > 1);
        self.len += 1;
        self.bytes += member.len();
        self.index.insert(hash, number);
        self.recount(number, 1);
        if full {
            self.split_leaf(number, at);
        }
    }

    /// Takes a member out; its score if it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let place = self.find(member)?;
        let score = self.leaf(place.leaf)?.score(place.at);
        self.remove_at(place, 1);
        Some(score)
    }

    /// Gives a member that is there another score.
    pub(crate) fn rescore(&mut self, member: &[u8], score: f64) {
        let Some(place) = self.find(member) else { return };
        let Some(leaf) = self.leaves.get_mut(place.leaf as usize) else { return };
        // Most changes are small, or put the last one further back: the place stays.
        let stays = (place.at > 0 && leaf.score(place.at - 1) < score
            || leaf.before == NONE && place.at == 0)
            && match leaf.scores.get(place.at + 1) {
                Some(next) => score < *next,
                None => leaf.after == NONE,
            };
        if stays {
            if let Some(old) = leaf.scores.get_mut(place.at) {
                *old = score;
            }
            self.recount(place.leaf, 0);
            return;
        }
        self.remove_at(place, 1);
        self.insert(member, score);
    }

    /// Number of entries with scores for which `before` holds; it holds for a first part of all.
    pub(crate) fn count_scores(&self, before: impl Fn(f64) -> bool) -> usize {
        self.partition(|child, _| before(child.lowest), |leaf, at| before(leaf.score(at)))
    }

    /// Number of entries with members for which `before` holds; it holds for a first part of all.
    pub(crate) fn count_members(&self, before: impl Fn(Elem<'_>) -> bool) -> usize {
        self.partition(
            |child, level| {
                self.first_of(child.number, level).is_none_or(|leaf| before(leaf.elem(0)))
            },
            |leaf, at| before(leaf.elem(at)),
        )
    }

    /// Walks over entries from a rank on, forwards or backwards, until `visit` breaks.
    pub(crate) fn walk<'t>(
        &'t self,
        rank: usize,
        backwards: bool,
        mut visit: impl FnMut(Elem<'t>, f64) -> ControlFlow<()>,
    ) {
        let Some(LeafPosition { leaf, mut at }) = self.place_of(rank) else { return };
        let mut leaf = self.leaf(leaf);
        while let Some(found) = leaf {
            if backwards {
                for at in (0..=at).rev() {
                    if visit(found.elem(at), found.score(at)).is_break() {
                        return;
                    }
                }
                leaf = self.leaf(found.before);
                at = leaf.map_or(0, |leaf| leaf.len().saturating_sub(1));
            } else {
                for at in at..found.len() {
                    if visit(found.elem(at), found.score(at)).is_break() {
                        return;
                    }
                }
                leaf = self.leaf(found.after);
                at = 0;
            }
        }
    }

    /// All entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Elem<'_>, f64)> {
        let mut leaf = self.place_of(0).and_then(|place| self.leaf(place.leaf));
        let mut at = 0;
        std::iter::from_fn(move || {
            let mut found = leaf?;
            if at == found.len() {
                leaf = self.leaf(found.after);
                found = leaf?;
                at = 0;
            }
            at += 1;
            Some((found.elem(at - 1), found.score(at - 1)))
        })
    }

    /// Takes `count` entries out from a rank on.
    pub(crate) fn remove_range(&mut self, rank: usize, count: usize) {
        let mut left = count.min(self.len.saturating_sub(rank));
        while left > 0 {
            let Some(place) = self.place_of(rank) else { return };
            let here = self.leaf(place.leaf).map_or(0, |leaf| leaf.len() - place.at).min(left);
            if here == 0 {
                return;
            }
            self.remove_at(place, here);
            left -= here;
        }
    }

    /// Reports about `count` entries from `cursor` on; see [`Index::scan`].
    pub(crate) fn scan<'t>(
        &'t self,
        cursor: u64,
        count: usize,
        mut report: impl FnMut(Elem<'t>, f64),
    ) -> u64 {
        self.index.scan(cursor, count, |hash, leaf| {
            let Some(leaf) = self.leaf(leaf) else { return };
            for at in memchr::memchr_iter(hash as u8, &leaf.tags) {
                if self.hash(leaf.member(at)) == hash {
                    report(leaf.elem(at), leaf.score(at));
                }
            }
        })
    }

    fn leaf(&self, number: u32) -> Option<&Leaf> {
        self.leaves.get(number as usize)
    }

    fn node(&self, number: u32) -> Option<&TreeNode> {
        self.nodes.get(number as usize)
    }

    fn find(&self, member: &[u8]) -> Option<LeafPosition> {
        let hash = self.hash(member);
        self.index.leaves(hash).find_map(|number| {
            let leaf = self.leaf(number)?;
            memchr::memchr_iter(hash as u8, &leaf.tags)
                .find(|at| leaf.member(*at) == member)
                .map(|at| LeafPosition { leaf: number, at })
        })
    }

    /// The first leaf below a node of this level (0: it is a leaf itself).
    fn first_of(&self, number: u32, level: u32) -> Option<&Leaf> {
        let mut number = number;
        for _ in 0..level {
            number = self.node(number)?.children.first()?.number;
        }
        self.leaf(number)
    }

    /// The leaf in which an entry belongs.
    fn leaf_for(&self, score: f64, member: Elem<'_>) -> u32 {
        let mut number = self.root;
        for level in (0..self.height).rev() {
            let Some(node) = self.node(number) else { break };
            let not_after = |child: &Child| match child.lowest.partial_cmp(&score) {
                Some(Ordering::Less) => true,
                Some(Ordering::Equal) => self
                    .first_of(child.number, level)
                    .is_none_or(|leaf| compare(leaf.elem(0), member) != Ordering::Greater),
                _ => false,
            };
            let after = node.children.partition_point(not_after);
            number = node.children.get(after.saturating_sub(1)).map_or(NONE, |child| child.number);
        }
        number
    }

    fn partition(
        &self,
        child_before: impl Fn(&Child, u32) -> bool,
        entry_before: impl Fn(&Leaf, usize) -> bool,
    ) -> usize {
        let (mut number, mut count) = (self.root, 0);
        for level in (0..self.height).rev() {
            let Some(node) = self.node(number) else { break };
            let after = node.children.partition_point(|child| child_before(child, level));
            let last = after.saturating_sub(1);
            count +=
                node.children.iter().take(last).map(|child| child.count as usize).sum::<usize>();
            number = node.children.get(last).map_or(NONE, |child| child.number);
        }
        let Some(leaf) = self.leaf(number) else { return count };
        let (mut low, mut high) = (0, leaf.len());
        while low < high {
            let middle = low.midpoint(high);
            if entry_before(leaf, middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        count + low
    }

    fn rank_of(&self, place: LeafPosition) -> usize {
        let mut rank = place.at;
        let (mut number, mut parent) =
            (place.leaf, self.leaf(place.leaf).map_or(NONE, |leaf| leaf.parent));
        while let Some(node) = self.node(parent) {
            let before = node.children.iter().take_while(|child| child.number != number);
            rank += before.map(|child| child.count as usize).sum::<usize>();
            (number, parent) = (parent, node.parent);
        }
        rank
    }

    fn place_of(&self, rank: usize) -> Option<LeafPosition> {
        if rank >= self.len {
            return None;
        }
        let (mut number, mut left) = (self.root, rank);
        for _ in 0..self.height {
            let child = self.node(number)?.children.iter().find(|child| {
                let here = left < child.count as usize;
                if !here {
                    left -= child.count as usize;
                }
                here
            })?;
            number = child.number;
        }
        Some(LeafPosition { leaf: number, at: left })
    }

    /// A leaf has `more` entries now and perhaps another lowest score: tells the nodes above.
    fn recount(&mut self, leaf: u32, more: i64) {
        let Some(found) = self.leaf(leaf) else { return };
        let (mut number, mut parent, mut lowest) = (leaf, found.parent, found.lowest());
        while let Some(node) = self.nodes.get_mut(parent as usize) {
            if let Some(child) = node.children.iter_mut().find(|child| child.number == number) {
                child.count = (i64::from(child.count) + more) as u32;
                child.lowest = lowest;
            }
            lowest = node.children.first().map_or(lowest, |child| child.lowest);
            (number, parent) = (parent, node.parent);
        }
    }

    fn new_leaf(&mut self, leaf: Leaf) -> u32 {
        if let Some(number) = self.free_leaves.pop()
            && let Some(place) = self.leaves.get_mut(number as usize)
        {
            *place = leaf;
            return number;
        }
        if self.leaves.len() == self.leaves.capacity() {
            self.leaves.reserve_exact((self.leaves.len() / 4).max(4));
        }
        self.leaves.push(leaf);
        self.leaves.len() as u32 - 1
    }

    fn new_node(&mut self, node: TreeNode) -> u32 {
        if let Some(number) = self.free_nodes.pop()
            && let Some(place) = self.nodes.get_mut(number as usize)
        {
            *place = node;
            return number;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Splits a leaf that is too full; `at` is where the last entry went in.
    fn split_leaf(&mut self, number: u32, at: usize) {
        let Some(left) = self.leaves.get_mut(number as usize) else { return };
        // Entries that come in order fill leaves to the brim.
        let at_end = left.after == NONE && at + 1 == left.len();
        let cut = if at_end { left.len() - 1 } else { left.len() / 2 };
        let mut right = left.split_off(cut);
        right.before = number;
        let (parent, after, lowest, count) =
            (right.parent, right.after, right.lowest(), right.len() as u32);
        let new = self.new_leaf(right);
        if let Some(left) = self.leaves.get_mut(number as usize) {
            left.after = new;
        }
        if let Some(after) = self.leaves.get_mut(after as usize) {
            after.before = new;
        }
        self.entries_moved(new, 0, number);
        self.add_child(parent, number, Child { number: new, count, lowest }, 0);
    }

    /// Entries of a leaf from `from` on came from another leaf: tells the index.
    fn entries_moved(&mut self, leaf: u32, from: usize, source: u32) {
        let Some(found) = self.leaves.get(leaf as usize) else { return };
        for at in from..found.len() {
            let hash = (self.hasher.hash_one(found.member(at)) >> 32) as u32;
            self.index.moved(hash, source, leaf);
        }
    }

    /// Puts a new child beside one whose entries it took over. `level` is that of the children.
    fn add_child(&mut self, parent: u32, beside: u32, new: Child, level: u32) {
        if parent == NONE {
            let total = self.len as u32;
            let lowest = self.first_of(beside, level).map_or(0.0, Leaf::lowest);
            let old = Child { number: beside, count: total - new.count, lowest };
            let root = self.new_node(TreeNode { parent: NONE, children: vec![old, new] });
            self.set_parent(beside, level, root);
            self.set_parent(new.number, level, root);
            self.root = root;
            self.height += 1;
            return;
        }
        let Some(node) = self.nodes.get_mut(parent as usize) else { return };
        let Some(at) = node.children.iter().position(|child| child.number == beside) else {
            return;
        };
        if let Some(old) = node.children.get_mut(at) {
            old.count -= new.count;
        }
        node.children.insert(at + 1, new);
        let full = node.children.len() > NODE_MAX;
        let at_end = at + 2 == node.children.len();
        self.set_parent(new.number, level, parent);
        if full {
            self.split_node(parent, level + 1, at_end);
        }
    }

    fn set_parent(&mut self, number: u32, level: u32, parent: u32) {
        if level == 0 {
            if let Some(leaf) = self.leaves.get_mut(number as usize) {
                leaf.parent = parent;
            }
        } else if let Some(node) = self.nodes.get_mut(number as usize) {
            node.parent = parent;
        }
    }

    fn split_node(&mut self, number: u32, level: u32, at_end: bool) {
        let Some(node) = self.nodes.get_mut(number as usize) else { return };
        let cut = if at_end { node.children.len() - 1 } else { node.children.len() / 2 };
        let children = node.children.split_off(cut);
        let parent = node.parent;
        let count = children.iter().map(|child| child.count).sum();
        let lowest = children.first().map_or(0.0, |child| child.lowest);
        let moved: Vec<u32> = children.iter().map(|child| child.number).collect();
        let new = self.new_node(TreeNode { parent, children });
        for child in moved {
            self.set_parent(child, level - 1, new);
        }
        self.add_child(parent, number, Child { number: new, count, lowest }, level);
    }

    /// Takes out entries of one leaf.
    fn remove_at(&mut self, place: LeafPosition, count: usize) {
        let Some(leaf) = self.leaves.get_mut(place.leaf as usize) else { return };
        for at in place.at..place.at + count {
            let member = leaf.member(at);
            self.bytes -= member.len();
            self.index.remove((self.hasher.hash_one(member) >> 32) as u32, place.leaf);
        }
        leaf.remove(place.at, count);
        let left = leaf.len();
        self.len -= count;
        self.recount(place.leaf, -(count as i64));
        if left == 0 {
            self.drop_leaf(place.leaf);
        } else if left < LEAF_MIN {
            self.join_leaf(place.leaf);
        }
    }

    /// Takes an empty leaf out of the tree.
    fn drop_leaf(&mut self, number: u32) {
        let Some(leaf) = self.leaves.get_mut(number as usize) else { return };
        let (parent, before, after) = (leaf.parent, leaf.before, leaf.after);
        *leaf = Leaf::new();
        if parent == NONE {
            return;
        }
        if let Some(before) = self.leaves.get_mut(before as usize) {
            before.after = after;
        }
        if let Some(after) = self.leaves.get_mut(after as usize) {
            after.before = before;
        }
        self.free_leaves.push(number);
        self.drop_child(parent, number, 1);
    }

    /// Takes a child out of a node of this level.
    fn drop_child(&mut self, parent: u32, number: u32, level: u32) {
        let Some(node) = self.nodes.get_mut(parent as usize) else { return };
        node.children.retain(|child| child.number != number);
        let (left, above) = (node.children.len(), node.parent);
        if left == 0 && above != NONE {
            node.children = Vec::new();
            self.free_nodes.push(parent);
            return self.drop_child(above, parent, level + 1);
        }
        self.relow(parent);
        if above == NONE {
            self.lower_root();
        } else if left < NODE_MIN {
            self.join_node(parent, level);
        }
    }

    /// A node's first child is another now: tells the nodes above its lowest score.
    fn relow(&mut self, node: u32) {
        let Some(found) = self.node(node) else { return };
        let Some(first) = found.children.first() else { return };
        let (mut number, mut parent, mut lowest) = (node, found.parent, first.lowest);
        while let Some(node) = self.nodes.get_mut(parent as usize) {
            if let Some(child) = node.children.iter_mut().find(|child| child.number == number) {
                child.lowest = lowest;
            }
            lowest = node.children.first().map_or(lowest, |child| child.lowest);
            (number, parent) = (parent, node.parent);
        }
    }

    /// A root with one child gives way to it.
    fn lower_root(&mut self) {
        while self.height > 0 {
            let Some(node) = self.nodes.get_mut(self.root as usize) else { return };
            let [only] = node.children.as_slice() else { return };
            let only = only.number;
            node.children = Vec::new();
            self.free_nodes.push(self.root);
            self.root = only;
            self.height -= 1;
            self.set_parent(only, self.height, NONE);
        }
    }

    /// A child and the one after it, or the one before and the child, of the same parent.
    fn neighbours(&self, parent: u32, number: u32) -> Option<(Child, Child)> {
        let children = &self.node(parent)?.children;
        let at = children.iter().position(|child| child.number == number)?;
        let at = if at + 1 < children.len() { at } else { at.checked_sub(1)? };
        Some((*children.get(at)?, *children.get(at + 1)?))
    }

    fn join_leaf(&mut self, number: u32) {
        let Some(parent) = self.leaf(number).map(|leaf| leaf.parent) else { return };
        let Some((left, right)) = self.neighbours(parent, number) else { return };
        let (Some(a), Some(b)) = (self.leaf(left.number), self.leaf(right.number)) else { return };
        if a.len() + b.len() > LEAF_JOINED || a.members.len() + b.members.len() > LEAF_BYTES / 2 {
            return;
        }
        let Some(right_leaf) = self.leaves.get_mut(right.number as usize) else { return };
        let mut emptied = std::mem::replace(right_leaf, Leaf::new());
        (right_leaf.parent, right_leaf.before, right_leaf.after) =
            (emptied.parent, emptied.before, emptied.after);
        let Some(left_leaf) = self.leaves.get_mut(left.number as usize) else { return };
        let from = left_leaf.len();
        left_leaf.append(&mut emptied);
        self.entries_moved(left.number, from, right.number);
        if let Some(node) = self.nodes.get_mut(parent as usize)
            && let Some(child) = node.children.iter_mut().find(|child| child.number == left.number)
        {
            child.count += right.count;
        }
        self.drop_leaf(right.number);
    }

    fn join_node(&mut self, number: u32, level: u32) {
        let Some(parent) = self.node(number).map(|node| node.parent) else { return };
        let Some((left, right)) = self.neighbours(parent, number) else { return };
        let size = |number| self.node(number).map_or(NODE_MAX, |node| node.children.len());
        if size(left.number) + size(right.number) > NODE_JOINED {
            return;
        }
        let Some(emptied) = self.nodes.get_mut(right.number as usize) else { return };
        let children = std::mem::take(&mut emptied.children);
        for child in &children {
            self.set_parent(child.number, level - 1, left.number);
        }
        if let Some(node) = self.nodes.get_mut(left.number as usize) {
            node.children.extend(children);
        }
        if let Some(node) = self.nodes.get_mut(parent as usize)
            && let Some(child) = node.children.iter_mut().find(|child| child.number == left.number)
        {
            child.count += right.count;
        }
        self.free_nodes.push(right.number);
        self.drop_child(parent, right.number, level + 1);
    }
}

#[cfg(test)]
mod tests;
