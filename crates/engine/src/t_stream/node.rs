//! A node of a stream: some entries one behind the other in one buffer.
//!
//! Entries with the same field names as the node's first hold only their values. A node fills up
//! where Redis's would, because trimming with `~` drops whole nodes and tells how many entries
//! that were: so each node counts the bytes that Redis's encoding of it would take, entries
//! deleted since included.

use super::id::Id;
use crate::number;
use crate::pack::{Code, Elem, Pack};

/// Most entries and bytes of one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLimits {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// Some entries of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamNode {
    /// The id of the first entry ever put in.
    pub(crate) base: Id,
    /// The id of the last entry ever put in.
    pub(super) last: Id,
    /// The field names of the first entry ever put in.
    names: Pack,
    /// Entries: differences to the base id, length of the rest, number of fields (0: the node's
    /// names, values follow; else names and values follow in turn).
    entries: Vec<u8>,
    pub(crate) live: u32,
    /// Entries deleted from the node.
    dead: u32,
    /// Bytes in Redis's encoding.
    counted: usize,
}

/// An entry as it lies in a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamEntry<'s> {
    pub(crate) id: Id,
    /// The names, where they are the node's.
    names: Option<&'s Pack>,
    body: &'s [u8],
}

impl<'s> StreamEntry<'s> {
    /// Are its names those of the node's first entry?
    pub(crate) fn has_names_of_node(&self) -> bool {
        self.names.is_some()
    }

    /// Names and values in turn.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Elem<'s>> + use<'s> {
        let (mut names, mut rest) = (self.names.map(Pack::iter), self.body);
        let mut name_next = true;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            if let Some(names) = &mut names {
                name_next = !name_next;
                if !name_next {
                    return names.next();
                }
            }
            let (elem, size) = Elem::read(rest);
            rest = rest.get(size..).unwrap_or_default();
            Some(elem)
        })
    }
}

fn push_varint(mut n: u64, bytes: &mut Vec<u8>) {
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (mut n, mut shift) = (0u64, 0);
    loop {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(n);
        }
        shift += 7;
    }
}

impl StreamNode {
    /// An empty node whose first entry will have this id and these fields.
    pub(super) fn new(id: Id, fields: &[&[u8]]) -> StreamNode {
        let mut names = Pack::default();
        {
            let mut edit = names.edit(0);
            fields.iter().step_by(2).for_each(|name| edit.push(&Code::shared(name)));
        }
        let pairs = fields.len() / 2;
        let counted = 7
            + counted_int(1)
            + counted_int(0)
            + counted_int(pairs as i64)
            + fields.iter().step_by(2).map(|name| counted_string(name)).sum::<usize>()
            + counted_int(0);
        StreamNode { base: id, last: id, names, entries: Vec::new(), live: 0, dead: 0, counted }
    }

    pub(super) fn heap_size(&self) -> usize {
        self.entries.capacity() + self.names.heap_size()
    }

    /// Must an entry with these fields go into a new node?
    pub(super) fn is_full(&self, fields: &[&[u8]], limits: NodeLimits) -> bool {
        // As much as one node can hold in Redis.
        const MOST: usize = 1 << 30;
        let most = if limits.bytes == 0 { MOST } else { limits.bytes.min(MOST) };
        let total: usize = fields.iter().map(|bytes| bytes.len()).sum();
        self.counted + total >= most
            || (limits.entries > 0 && (self.live + self.dead) as usize >= limits.entries)
    }

    /// Adds an entry behind all others.
    pub(super) fn push(&mut self, id: Id, fields: &[&[u8]]) {
        let same = fields.len() / 2 == self.names.len()
            && self.names.iter().zip(fields.iter().step_by(2)).all(|(a, b)| a == **b);
        let pairs = fields.len() / 2;
        let mut body = Vec::new();
        push_varint(if same { 0 } else { pairs as u64 }, &mut body);
        for (name, value) in fields.as_chunks::<2>().0.iter().map(|[name, value]| (name, value)) {
            if !same {
                Code::shared(name).push_to(&mut body);
            }
            Code::of(value).push_to(&mut body);
        }
        push_varint(id.ms.wrapping_sub(self.base.ms), &mut self.entries);
        push_varint(id.seq.wrapping_sub(self.base.seq), &mut self.entries);
        push_varint(body.len() as u64, &mut self.entries);
        self.entries.extend_from_slice(&body);
        self.count_entry(id, fields, same);
        self.live += 1;
        self.last = id;
    }

    fn count_entry(&mut self, id: Id, fields: &[&[u8]], same: bool) {
        let pairs = (fields.len() / 2) as i64;
        let flags = if same { 2 } else { 0 };
        let parts = if same { pairs + 3 } else { 2 * pairs + 4 };
        let names = if same {
            0
        } else {
            counted_int(pairs)
                + fields.iter().step_by(2).map(|name| counted_string(name)).sum::<usize>()
        };
        if self.live > 0 {
            let before = i64::from(self.live);
            self.counted += counted_int(before + 1) - counted_int(before);
        }
        self.counted += counted_int(flags)
            + counted_int(id.ms.wrapping_sub(self.base.ms) as i64)
            + counted_int(id.seq.wrapping_sub(self.base.seq) as i64)
            + names
            + fields.iter().skip(1).step_by(2).map(|value| counted_string(value)).sum::<usize>()
            + counted_int(parts);
    }

    /// Gives unused memory back: nothing more will be added.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// The entry at an offset, and the offset after it.
    fn at(&self, offset: usize) -> Option<(StreamEntry<'_>, usize)> {
        let start = self.entries.get(offset..)?;
        let mut rest = start;
        let ms = self.base.ms.wrapping_add(read_varint(&mut rest)?);
        let seq = self.base.seq.wrapping_add(read_varint(&mut rest)?);
        let size = read_varint(&mut rest)? as usize;
        let mut body = rest.get(..size)?;
        let after = offset + (start.len() - rest.len()) + size;
        let names = (read_varint(&mut body)? == 0).then_some(&self.names);
        Some((StreamEntry { id: Id { ms, seq }, names, body }, after))
    }

    /// The field names of the first entry ever put in.
    pub(crate) fn names(&self) -> impl Iterator<Item = Elem<'_>> {
        self.names.iter()
    }

    /// Was nothing put in yet?
    pub(super) fn is_untouched(&self) -> bool {
        self.live == 0 && self.dead == 0
    }

    /// All entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = StreamEntry<'_>> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (entry, after) = self.at(offset)?;
            offset = after;
            Some(entry)
        })
    }

    /// Takes an entry out; true if it was there.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        let mut offset = 0;
        while let Some((entry, after)) = self.at(offset) {
            if entry.id == id {
                self.drop_bytes(offset, after, 1);
                return true;
            }
            offset = after;
        }
        false
    }

    /// Takes out entries from the first on while `go_on` holds; answers how many.
    pub(super) fn remove_first(&mut self, mut go_on: impl FnMut(Id) -> bool) -> u32 {
        let (mut offset, mut count) = (0, 0);
        while let Some((entry, after)) = self.at(offset) {
            if !go_on(entry.id) {
                break;
            }
            offset = after;
            count += 1;
        }
        self.drop_bytes(0, offset, count);
        count
    }

    fn drop_bytes(&mut self, from: usize, to: usize, count: u32) {
        self.entries.drain(from..to);
        let number = |n: u32| counted_int(n.into());
        let before = number(self.live) + number(self.dead);
        self.live -= count;
        self.dead += count;
        self.counted = self.counted + number(self.live) + number(self.dead) - before;
    }
}

/// Bytes of an integer in a listpack, with the length behind it.
fn counted_int(n: i64) -> usize {
    match n {
        0..=127 => 2,
        -4096..=4095 => 3,
        -32768..=32767 => 4,
        -8388608..=8388607 => 5,
        -2147483648..=2147483647 => 6,
        _ => 10,
    }
}

/// Bytes of a string in a listpack, with the length behind it.
fn counted_string(bytes: &[u8]) -> usize {
    if let Some(n) = number::parse_i64(bytes) {
        return counted_int(n);
    }
    let size = match bytes.len() {
        len @ ..64 => 1 + len,
        len @ 64..4096 => 2 + len,
        len => 5 + len,
    };
    size + match size {
        ..128 => 1,
        128..16383 => 2,
        16383..2097151 => 3,
        2097151..268435455 => 4,
        _ => 5,
    }
}
