//! Consumer groups: who read what, and what was not acknowledged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Id, Stream};

/// A consumer group. An id is in `pending` exactly when it is in the `pending` of the consumer
/// named there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// The last id given to any consumer.
    pub(crate) last: Id,
    /// Entries read up to there, if known.
    pub(crate) read: Option<i64>,
    pub(crate) pending: BTreeMap<Id, PendingStreamEntry>,
    pub(crate) consumers: BTreeMap<Arc<[u8]>, Consumer>,
}

/// An entry given out and not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct PendingStreamEntry {
    pub(crate) consumer: Arc<[u8]>,
    pub(crate) delivered_ms: i64,
    pub(crate) count: i64,
}

/// One of those who share a group's entries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consumer {
    pub(crate) seen_ms: i64,
    /// Time at which it last got an entry, if ever. After a restart: when it got what is still
    /// pending.
    pub(crate) active_ms: Option<i64>,
    pub(crate) pending: BTreeSet<Id>,
}

impl Group {
    pub(super) fn heap_size(&self) -> usize {
        self.pending.len() * (size_of::<Id>() * 2 + size_of::<PendingStreamEntry>()) * 3 / 2
            + self.consumers.len() * (size_of::<Consumer>() + 64)
            + size_of::<Group>()
    }

    /// The consumer's name as the group keeps it, and whether it is new.
    pub(crate) fn consumer(&mut self, name: &[u8], now_ms: i64) -> (Arc<[u8]>, bool) {
        if let Some((name, _)) = self.consumers.get_key_value(name) {
            let name = name.clone();
            if let Some(consumer) = self.consumers.get_mut(&name) {
                consumer.seen_ms = now_ms;
            }
            return (name, false);
        }
        let name: Arc<[u8]> = name.into();
        self.consumers.insert(name.clone(), Consumer { seen_ms: now_ms, ..Consumer::default() });
        (name, true)
    }

    /// Makes an entry pending for a consumer, whoever had it before.
    pub(crate) fn assign(&mut self, id: Id, pending: PendingStreamEntry, now_ms: i64) {
        let to = pending.consumer.clone();
        // A log is read back at the beginning of time.
        let active_ms = now_ms.max(pending.delivered_ms);
        if let Some(before) = self.pending.insert(id, pending)
            && before.consumer != to
            && let Some(consumer) = self.consumers.get_mut(&before.consumer)
        {
            consumer.pending.remove(&id);
        }
        if let Some(consumer) = self.consumers.get_mut(&to) {
            consumer.active_ms = consumer.active_ms.max(Some(active_ms));
            consumer.pending.insert(id);
        }
    }

    /// An entry is pending no longer; true if it was.
    pub(crate) fn forget(&mut self, id: Id) -> Option<PendingStreamEntry> {
        let pending = self.pending.remove(&id)?;
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        Some(pending)
    }

    /// Takes a consumer out with all that is pending for it; answers how much that was.
    pub(crate) fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// Notes that an entry was given out: moves on the last id and the number of entries read.
    pub(super) fn advance(&mut self, stream: &StreamExtent, id: Id) {
        if id <= self.last {
            return;
        }
        match self.read {
            Some(read) if !stream.has_holes_from(id) => self.read = Some(read + 1),
            _ if stream.added > 0 => self.read = stream.distance(id),
            _ => {}
        }
        self.last = id;
    }

    pub(super) fn rebuild(&self, key: &[u8], name: &[u8], command: &mut impl FnMut(&[&[u8]])) {
        let (last, read) = (self.last.text(), self.read.unwrap_or(-1).to_string());
        command(&[b"XGROUP", b"CREATE", key, name, &last, b"ENTRIESREAD", read.as_bytes()]);
        for consumer in self.consumers.keys() {
            command(&[b"XGROUP", b"CREATECONSUMER", key, name, consumer]);
        }
        for (id, pending) in &self.pending {
            claim_command(key, name, *id, pending, None, command);
        }
    }
}

/// Tells the command that makes an entry pending as it is now.
pub(super) fn claim_command(
    key: &[u8],
    group: &[u8],
    id: Id,
    pending: &PendingStreamEntry,
    last: Option<Id>,
    command: &mut impl FnMut(&[&[u8]]),
) {
    let (id, time, count) =
        (id.text(), pending.delivered_ms.to_string(), pending.count.to_string());
    let last = last.map(Id::text);
    let mut argv: Vec<&[u8]> = vec![
        b"XCLAIM",
        key,
        group,
        &pending.consumer,
        b"0",
        &id,
        b"TIME",
        time.as_bytes(),
        b"RETRYCOUNT",
        count.as_bytes(),
        b"FORCE",
        b"JUSTID",
    ];
    if let Some(last) = &last {
        argv.extend([&b"LASTID"[..], last]);
    }
    command(&argv);
}

/// First and last entries of a stream and their count: the number of entries read depends on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExtent {
    len: u64,
    added: u64,
    first: Id,
    last: Id,
    max_deleted: Id,
}

impl StreamExtent {
    pub(super) fn of(stream: &Stream) -> StreamExtent {
        StreamExtent {
            len: stream.len(),
            added: stream.added,
            first: stream.first(),
            last: stream.last,
            max_deleted: stream.max_deleted,
        }
    }

    /// Was an entry deleted from this id on, other than from the stream's start?
    fn has_holes_from(&self, id: Id) -> bool {
        self.len > 0
            && self.max_deleted != Id::MIN
            && self.first <= self.max_deleted
            && id <= self.max_deleted
    }

    /// Number of entries ever added up to this id, if that can be known.
    pub(super) fn distance(&self, id: Id) -> Option<i64> {
        let added = self.added as i64;
        if self.added == 0 {
            return Some(0);
        }
        if id == self.last || (self.len == 0 && id <= self.last) {
            return Some(added);
        }
        if id > self.last {
            return None;
        }
        if self.max_deleted == Id::MIN || self.max_deleted < self.first {
            let gone = added - self.len as i64;
            if id < self.first {
                return Some(gone);
            }
            if id == self.first {
                return Some(gone + 1);
            }
        }
        None
    }

    /// Number of entries a group has yet to read, if that can be known.
    pub(super) fn lag(&self, group: &Group) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        let read = match group.read {
            Some(read) if !self.has_holes_from(group.last) => Some(read),
            _ => self.distance(group.last),
        };
        read.map(|read| self.added as i64 - read)
    }
}
