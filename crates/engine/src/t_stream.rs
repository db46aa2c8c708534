//! The stream type: structure and API. Its commands are in the files below.
//!
//! Entries lie in [`node::Node`]s by the id of the first entry each node ever had. Ids only grow:
//! `last` is the greatest ever given, whether its entry is still there or not.

mod commands;
mod group;
mod group_commands;
mod id;
mod info;
mod node;
mod read;

use std::collections::BTreeMap;

use crate::Reply;
use crate::admin::config::Config;
use crate::command::{
    BLOCKING, CommandRow, DENYOOM, FAST, LOADING, MOVABLE_KEYS, READONLY, STALE, WRITE, container,
};
pub(crate) use group::{Consumer, Group, PendingStreamEntry};
pub(crate) use id::Id;
pub(crate) use node::StreamNode;
pub(crate) use node::{NodeLimits, StreamEntry};

/// A stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    nodes: BTreeMap<Id, StreamNode>,
    len: u64,
    /// The greatest id ever given.
    pub(crate) last: Id,
    /// The id of the first entry; least of all if there is none.
    first: Id,
    /// The greatest id of an entry that XDEL took out.
    pub(crate) max_deleted: Id,
    /// Entries ever added.
    pub(crate) added: u64,
    pub(crate) groups: BTreeMap<Box<[u8]>, Group>,
    /// Bytes of heap of all nodes.
    bytes: usize,
}

/// Target of a trim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TrimTo {
    Length(u64),
    /// Entries below this id go.
    Id(Id),
}

/// Options of a trim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trim {
    pub(crate) to: TrimTo,
    /// Drop whole nodes only.
    pub(crate) nodes_only: bool,
    /// Drop no more entries than this; 0 for no limit.
    pub(crate) limit: u64,
}

impl NodeLimits {
    pub(crate) fn of(config: &Config) -> NodeLimits {
        NodeLimits { entries: config.stream_node_max_entries, bytes: config.stream_node_max_bytes }
    }
}

impl Stream {
    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// About how many pieces of memory it is made of, in constant time.
    pub(crate) fn parts(&self) -> usize {
        let first = self.groups.values().next().map_or(0, |group| group.pending.len());
        self.nodes.len() + self.groups.len() * (1 + first)
    }

    /// Bytes of heap, about.
    pub(crate) fn heap_size(&self) -> usize {
        let groups: usize = self.groups.values().map(Group::heap_size).sum();
        self.bytes + self.nodes.len() * (size_of::<StreamNode>() + size_of::<Id>()) * 3 / 2 + groups
    }

    /// Adds an entry with an id greater than all before. Fields are name and value in turn.
    pub(crate) fn push(&mut self, id: Id, fields: &[&[u8]], limits: NodeLimits) {
        let mut fresh = true;
        if let Some(mut node) = self.nodes.last_entry() {
            let node = node.get_mut();
            fresh = node.is_full(fields, limits);
            if fresh {
                self.bytes -= node.heap_size();
                node.shrink();
                self.bytes += node.heap_size();
            }
        }
        if fresh {
            self.nodes.insert(id, StreamNode::new(id, fields));
        }
        if let Some(mut node) = self.nodes.last_entry() {
            let node = node.get_mut();
            if !fresh {
                self.bytes -= node.heap_size();
            }
            node.push(id, fields);
            self.bytes += node.heap_size();
        }
        self.len += 1;
        self.added += 1;
        self.last = id;
        if self.len == 1 {
            self.first = id;
        }
    }

    /// Entries from `start` to `end`, both included.
    pub(crate) fn range(&self, start: Id, end: Id) -> impl Iterator<Item = StreamEntry<'_>> {
        let from = self.nodes.range(..=start).next_back().map_or(start, |(id, _)| *id);
        let nodes = (start <= end).then(|| self.nodes.range(from..=end));
        let entries = nodes.into_iter().flatten().flat_map(|(_, node)| node.iter());
        entries.skip_while(move |e| e.id < start).take_while(move |e| e.id <= end)
    }

    /// Entries from `end` to `start`, both included.
    pub(crate) fn range_back(&self, start: Id, end: Id) -> impl Iterator<Item = StreamEntry<'_>> {
        let from = self.nodes.range(..=start).next_back().map_or(start, |(id, _)| *id);
        let nodes = (start <= end).then(|| self.nodes.range(from..=end).rev());
        let entries = nodes
            .into_iter()
            .flatten()
            .flat_map(|(_, node)| node.iter().collect::<Vec<_>>().into_iter().rev());
        entries.skip_while(move |e| e.id > end).take_while(move |e| e.id >= start)
    }

    /// Is there an entry with this id?
    pub(crate) fn get(&self, id: Id) -> Option<StreamEntry<'_>> {
        self.range(id, id).next()
    }

    /// The id of the last entry that is there.
    pub(crate) fn last_live(&self) -> Option<Id> {
        self.nodes.values().next_back()?.iter().last().map(|entry| entry.id)
    }

    /// Takes an entry out, as XDEL does; true if it was there.
    pub(crate) fn delete(&mut self, id: Id) -> bool {
        let Some((key, node)) = self.nodes.range_mut(..=id).next_back() else { return false };
        let (key, before) = (*key, node.heap_size());
        if !node.remove(id) {
            return false;
        }
        let (after, empty) = (node.heap_size(), node.live == 0);
        if empty {
            self.nodes.remove(&key);
        }
        self.bytes = self.bytes - before + if empty { 0 } else { after };
        self.len -= 1;
        self.max_deleted = self.max_deleted.max(id);
        if id == self.first || self.len == 0 {
            self.find_first();
        }
        true
    }

    /// Takes out entries from the first on; answers how many.
    pub(crate) fn trim(&mut self, trim: &Trim) -> u64 {
        let mut deleted = 0;
        while let Some(mut first) = self.nodes.first_entry() {
            let node = first.get_mut();
            let entries = u64::from(node.live);
            if let TrimTo::Length(most) = trim.to
                && self.len <= most
            {
                break;
            }
            if trim.limit > 0 && deleted + entries > trim.limit {
                break;
            }
            let whole = match trim.to {
                TrimTo::Length(most) => self.len - entries >= most,
                TrimTo::Id(least) => node.last < least,
            };
            if whole {
                self.bytes -= node.heap_size();
                first.remove();
                self.len -= entries;
                deleted += entries;
                continue;
            }
            if trim.nodes_only {
                break;
            }
            let mut left = self.len;
            let removed = u64::from(node.remove_first(|id| {
                let goes = match trim.to {
                    TrimTo::Length(most) => left > most,
                    TrimTo::Id(least) => id < least,
                };
                left -= u64::from(goes);
                goes
            }));
            if node.live == 0 {
                self.bytes -= node.heap_size();
                first.remove();
            }
            self.len -= removed;
            deleted += removed;
            break;
        }
        if deleted > 0 {
            self.find_first();
        }
        deleted
    }

    fn find_first(&mut self) {
        let first = self.nodes.values().next().and_then(|node| node.iter().next());
        self.first = first.map_or(Id::MIN, |entry| entry.id);
    }

    /// The id of the first entry; least of all if there is none.
    pub(crate) fn first(&self) -> Id {
        self.first
    }

    /// Nodes there are, and ids of their first entries.
    pub(crate) fn node_ids(&self) -> impl ExactSizeIterator<Item = Id> {
        self.nodes.keys().copied()
    }

    /// The nodes, in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &StreamNode> {
        self.nodes.values()
    }

    /// Begins a node that was written elsewhere. None if it does not belong behind the last.
    pub(crate) fn begin_node(&mut self, base: Id, names: &[Vec<u8>]) -> Option<()> {
        if self.nodes.last_key_value().is_some_and(|(before, _)| *before >= base) {
            return None;
        }
        let fields: Vec<&[u8]> = names.iter().flat_map(|name| [name.as_slice(), b""]).collect();
        let node = StreamNode::new(base, &fields);
        self.bytes += node.heap_size();
        self.nodes.insert(base, node);
        Some(())
    }

    /// Adds an entry to the node begun last; one that was deleted only counts. None if its id is
    /// not greater than all before.
    pub(crate) fn push_to_node(&mut self, id: Id, fields: &[&[u8]], deleted: bool) -> Option<()> {
        let mut node = self.nodes.last_entry()?;
        let node = node.get_mut();
        let first = node.is_untouched() && id >= node.base && self.last < id;
        if !(first || (id > node.last && id > self.last)) || fields.is_empty() {
            return None;
        }
        self.bytes -= node.heap_size();
        node.push(id, fields);
        if deleted {
            node.remove(id);
        }
        self.bytes += node.heap_size();
        self.last = id;
        if !deleted {
            self.len += 1;
            if self.len == 1 {
                self.first = id;
            }
        }
        Some(())
    }

    /// Number of entries ever added up to this id, if that can be known.
    pub(crate) fn entries_up_to(&self, id: Id) -> Option<i64> {
        group::StreamExtent::of(self).distance(id)
    }

    /// Tells the commands that rebuild the stream, for a snapshot.
    pub(crate) fn rebuild(&self, key: &[u8], mut command: impl FnMut(&[&[u8]])) {
        for entry in self.range(Id::MIN, Id::MAX) {
            let id = entry.id.text();
            let fields: Vec<Vec<u8>> = entry.fields().map(|elem| elem.to_vec()).collect();
            let mut argv: Vec<&[u8]> = vec![b"XADD", key, &id];
            argv.extend(fields.iter().map(Vec::as_slice));
            command(&argv);
        }
        let last = self.last.text();
        if self.len == 0 {
            // A stream without entries is one whose only entry is trimmed at once.
            let id = if self.last == Id::MIN { b"0-1".to_vec() } else { last.clone() };
            command(&[b"XADD", key, b"MAXLEN", b"0", &id, b"x", b"y"]);
        }
        let (added, deleted) = (self.added.to_string(), self.max_deleted.text());
        command(&[
            b"XSETID",
            key,
            &last,
            b"ENTRIESADDED",
            added.as_bytes(),
            b"MAXDELETEDID",
            &deleted,
        ]);
        for (name, group) in &self.groups {
            group.rebuild(key, name, &mut command);
        }
    }
}

/// An entry as a reply: its id, then names and values in one row.
fn entry_reply(entry: &StreamEntry<'_>) -> Reply {
    let fields = entry.fields().map(|elem| Reply::Bulk(elem.to_vec())).collect();
    Reply::Array(vec![entry.id.into(), Reply::Array(fields)])
}

/// The commands of streams.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("xadd", -5, WRITE | DENYOOM | FAST, commands::xadd).keys(1, 1, 1),
    CommandRow::new("xlen", 2, READONLY | FAST, commands::xlen).keys(1, 1, 1),
    CommandRow::new("xrange", -4, READONLY, commands::xrange).keys(1, 1, 1),
    CommandRow::new("xrevrange", -4, READONLY, commands::xrevrange).keys(1, 1, 1),
    CommandRow::new("xdel", -3, WRITE | FAST, commands::xdel).keys(1, 1, 1),
    CommandRow::new("xtrim", -4, WRITE, commands::xtrim).keys(1, 1, 1),
    CommandRow::new("xsetid", -3, WRITE | DENYOOM | FAST, commands::xsetid).keys(1, 1, 1),
    CommandRow::new("xread", -4, READONLY | BLOCKING | MOVABLE_KEYS, read::xread),
    CommandRow::new("xreadgroup", -7, WRITE | BLOCKING | MOVABLE_KEYS, read::xreadgroup),
    CommandRow::new("xack", -4, WRITE | FAST, group_commands::xack).keys(1, 1, 1),
    CommandRow::new("xpending", -3, READONLY, group_commands::xpending).keys(1, 1, 1),
    CommandRow::new("xclaim", -6, WRITE | FAST, group_commands::xclaim).keys(1, 1, 1),
    CommandRow::new("xautoclaim", -6, WRITE | FAST, group_commands::xautoclaim).keys(1, 1, 1),
    CommandRow::new("xgroup", -2, 0, container).subcommands(&[
        CommandRow::new("create", -5, WRITE | DENYOOM, group_commands::create).keys(2, 2, 1),
        CommandRow::new("createconsumer", 5, WRITE | DENYOOM, group_commands::create_consumer)
            .keys(2, 2, 1),
        CommandRow::new("delconsumer", 5, WRITE, group_commands::delete_consumer).keys(2, 2, 1),
        CommandRow::new("destroy", 4, WRITE, group_commands::destroy).keys(2, 2, 1),
        CommandRow::new("setid", -5, WRITE, group_commands::set_id).keys(2, 2, 1),
        CommandRow::new("help", 2, LOADING | STALE, group_commands::help),
    ]),
    CommandRow::new("xinfo", -2, 0, container).subcommands(&[
        CommandRow::new("consumers", 4, READONLY, info::consumers).keys(2, 2, 1),
        CommandRow::new("groups", 3, READONLY, info::groups).keys(2, 2, 1),
        CommandRow::new("stream", -3, READONLY, info::stream).keys(2, 2, 1),
        CommandRow::new("help", 2, LOADING | STALE, info::help),
    ]),
];
