//! Records of answered queries, for the query log, statistics and webhooks.
//!
//! A listener collects the records of one batch of packets in a [`QueryBatch`] of its own and hands
//! them over once per batch: [`QueryQueue::extend`] takes one lock, copies, and wakes nobody. Readers
//! call [`QueryQueue::drain`] every so often (20 ms is a good rhythm). Invariants: a record is never
//! waited for, a full queue drops it and counts it; a batch that was drained once has the room for
//! the next, so that recording allocates nothing.
//!
//! Names in a record (client, group, list, upstream) are [`Label`]s: numbers, spelled out by
//! [`Labels`].

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use store::Millis;

/// Records that wait to be drained; at a million a second that is a tenth of a second.
const QUEUE_MAX: usize = 100_000;

/// Different labels. Ids of the policy are far fewer; ids that clients make up end here.
const LABELS_MAX: usize = 20_000;

/// Protocol a query came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueryProtocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// DNS over TLS.
    Tls,
    /// DNS over HTTPS.
    Https,
}

impl QueryProtocol {
    /// Every protocol.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Tcp, Self::Tls, Self::Https];

    /// Returns the name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
        }
    }
}

/// Outcome of a query; the words of the original where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueryOutcome {
    /// Answered from the cache.
    Cached,
    /// Answered by an upstream.
    Upstream,
    /// Answered from the cache after its expiry.
    Stale,
    /// Blocked by a list, a rule, a service or a schedule.
    Blocked,
    /// Rewritten by a rule.
    Rewritten,
    /// Answered with the address of a search engine's safe variant.
    SafeSearch,
    /// Answered from local records, the hosts file, or as a special-use name.
    Local,
    /// An answer with a private address was withheld.
    Rebinding,
    /// The client is not on the access list, or the query is refused.
    Refused,
    /// Above the rate limit.
    RateLimited,
    /// A malformed query.
    Invalid,
    /// No upstream answered.
    UpstreamError,
}

impl QueryOutcome {
    /// Every outcome.
    pub const ALL: [Self; 12] = [
        Self::Cached,
        Self::Upstream,
        Self::Stale,
        Self::Blocked,
        Self::Rewritten,
        Self::SafeSearch,
        Self::Local,
        Self::Rebinding,
        Self::Refused,
        Self::RateLimited,
        Self::Invalid,
        Self::UpstreamError,
    ];

    /// Returns the name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Upstream => "upstream",
            Self::Stale => "stale",
            Self::Blocked => "blocked",
            Self::Rewritten => "rewritten",
            Self::SafeSearch => "safe_search",
            Self::Local => "local",
            Self::Rebinding => "rebinding",
            Self::Refused => "refused",
            Self::RateLimited => "rate_limited",
            Self::Invalid => "invalid",
            Self::UpstreamError => "upstream_error",
        }
    }
}

/// Tier of the cache that had the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheTier {
    /// No cache was asked, or none had it.
    #[default]
    None,
    /// Memory of this instance: L0.
    Memory,
    /// The store: L1.
    Store,
}

impl CacheTier {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Memory, Self::Store];

    /// Returns the name in stored statistics and between instances, which stays as it is so that what is
    /// stored remains readable. People see `memory` and `store`.
    pub fn stored_name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory => "l0",
            Self::Store => "l1",
        }
    }
}

/// Number of a name, see [`Labels`]. Zero is the empty name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

impl Label {
    /// The empty name.
    pub const NONE: Self = Self(0);

    /// Returns true for the empty name.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Names by number, for the life of the process. A cheap clone.
#[derive(Clone, Debug, Default)]
pub struct Labels(Arc<RwLock<LabelTable>>);

#[derive(Debug, Default)]
struct LabelTable {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Labels {
    /// Returns the number of a name; the empty one's if there are too many names.
    pub fn label(&self, name: &str) -> Label {
        if name.is_empty() {
            return Label::NONE;
        }
        if let Some(number) = self.0.read().numbers.get(name) {
            return Label(*number);
        }
        let mut table = self.0.write();
        if let Some(number) = table.numbers.get(name) {
            return Label(*number);
        }
        if table.names.len() >= LABELS_MAX {
            return Label::NONE;
        }
        let name: Arc<str> = name.into();
        table.names.push(Arc::clone(&name));
        let number = u32::try_from(table.names.len()).unwrap_or(0);
        table.numbers.insert(name, number);
        Label(number)
    }

    /// Returns the name of a number; empty for [`Label::NONE`].
    pub fn name(&self, label: Label) -> Arc<str> {
        let table = self.0.read();
        let index = (label.0 as usize).checked_sub(1);
        index.and_then(|index| table.names.get(index)).cloned().unwrap_or_else(|| Arc::from(""))
    }
}

/// One answered query. Name and answer are in the batch: [`QueryBatch::iter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryRecord {
    /// Time the reply was made.
    pub at: Millis,
    /// Address of the client.
    pub client: IpAddr,
    /// Id of the client's entry in the policy, or the id it gave by DoH or DoT.
    pub client_id: Label,
    /// Id of its group.
    pub group: Label,
    /// Id of the list that decided; `rules`, `rules:GROUP`, `service:ID`, `schedule`, `timed_rule` for
    /// what is not a list.
    pub list: Label,
    /// Address of the upstream that answered.
    pub upstream: Label,
    /// Type asked for.
    pub qtype: u16,
    /// Response code.
    pub rcode: u16,
    /// Outcome.
    pub outcome: QueryOutcome,
    /// Tier of the cache.
    pub tier: CacheTier,
    /// Protocol.
    pub protocol: QueryProtocol,
    /// Time from query to reply; 0 for hits on a receiving thread, which are not timed one by one.
    pub duration_us: u32,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    record: QueryRecord,
    /// Ends of name and answer in the text; they begin where the row before ends.
    name_end: u32,
    answer_end: u32,
}

/// Records with their names and answers.
#[derive(Clone, Debug, Default)]
pub struct QueryBatch {
    rows: Vec<Row>,
    text: Vec<u8>,
}

impl QueryBatch {
    /// Adds a record. The name is in wire form, in any case; the answer is a short text such as
    /// `192.0.2.1`, empty if there is none.
    pub fn push(&mut self, record: QueryRecord, name: &[u8], answer: &str) {
        let end = |text: &[u8]| u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.text.extend(name.iter().map(u8::to_ascii_lowercase));
        let name_end = end(&self.text);
        self.text.extend_from_slice(answer.as_bytes());
        self.rows.push(Row { record, name_end, answer_end: end(&self.text) });
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true without records.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes all records and keeps the room.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.text.clear();
    }

    /// Iterates over records, each with its name in wire form (lower case) and its answer.
    pub fn iter(&self) -> impl Iterator<Item = (&QueryRecord, &[u8], &str)> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let (name_end, answer_end) = (row.name_end as usize, row.answer_end as usize);
            let name = self.text.get(start..name_end).unwrap_or_default();
            let answer = self.text.get(name_end..answer_end).unwrap_or_default();
            start = answer_end;
            (&row.record, name, std::str::from_utf8(answer).unwrap_or_default())
        })
    }

    fn append(&mut self, other: &Self) {
        let offset = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        self.text.extend_from_slice(&other.text);
        self.rows.extend(other.rows.iter().map(|row| Row {
            record: row.record,
            name_end: row.name_end.saturating_add(offset),
            answer_end: row.answer_end.saturating_add(offset),
        }));
    }
}

/// The queue between listeners and whoever reads records. A cheap clone.
#[derive(Clone, Debug, Default)]
pub struct QueryQueue(Arc<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    waiting: Mutex<QueryBatch>,
    dropped: AtomicU64,
}

impl QueryQueue {
    /// Adds records; those that find no room are dropped and counted. Wakes nobody.
    pub fn extend(&self, batch: &QueryBatch) {
        if batch.is_empty() {
            return;
        }
        let mut waiting = self.0.waiting.lock();
        if waiting.len() + batch.len() > QUEUE_MAX {
            drop(waiting);
            self.0.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
            return;
        }
        waiting.append(batch);
    }

    /// Exchanges the batch given, emptied, for the records that wait.
    pub fn drain(&self, batch: &mut QueryBatch) {
        batch.clear();
        std::mem::swap(batch, &mut *self.0.waiting.lock());
    }

    /// Returns the number of records dropped so far.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ms: i64) -> QueryRecord {
        QueryRecord {
            at: Millis(ms),
            client: [192, 0, 2, 1].into(),
            client_id: Label::NONE,
            group: Label::NONE,
            list: Label::NONE,
            upstream: Label::NONE,
            qtype: 1,
            rcode: 0,
            outcome: QueryOutcome::Cached,
            tier: CacheTier::Memory,
            protocol: QueryProtocol::Udp,
            duration_us: 3,
        }
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let queue = QueryQueue::default();
        let mut batch = QueryBatch::default();
        batch.push(record(1), b"\x03WwW\x00", "192.0.2.7");
        batch.push(record(2), b"\x00", "");
        queue.extend(&batch);
        batch.clear();
        batch.push(record(3), b"\x01a\x00", "::1");
        queue.extend(&batch);
        let mut drained = QueryBatch::default();
        queue.drain(&mut drained);
        let rows: Vec<_> =
            drained.iter().map(|(record, name, answer)| (record.at, name, answer)).collect();
        assert_eq!(
            rows,
            [
                (Millis(1), &b"\x03www\x00"[..], "192.0.2.7"),
                (Millis(2), &b"\x00"[..], ""),
                (Millis(3), &b"\x01a\x00"[..], "::1"),
            ]
        );
        queue.drain(&mut drained);
        assert!(drained.is_empty());
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = QueryQueue::default();
        let mut batch = QueryBatch::default();
        (0..1_000).for_each(|ms| batch.push(record(ms), b"\x00", ""));
        (0..101).for_each(|_| queue.extend(&batch));
        assert_eq!(queue.dropped(), 1_000);
        let mut drained = QueryBatch::default();
        queue.drain(&mut drained);
        assert_eq!(drained.len(), QUEUE_MAX);
    }

    #[test]
    fn names_keep_their_numbers() {
        let labels = Labels::default();
        let kids = labels.label("kids");
        assert_eq!((labels.label("kids"), &*labels.name(kids)), (kids, "kids"));
        assert_ne!(labels.label("adults"), kids);
        assert_eq!((labels.label(""), &*labels.name(Label::NONE)), (Label::NONE, ""));
    }
}
