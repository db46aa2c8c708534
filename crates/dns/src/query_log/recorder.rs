//! The recorder: takes records of answered queries off the queue and gives the log what the policy
//! lets it keep.
//!
//! Invariant: it decides by the policy at the time of the record's arrival; nothing that the policy
//! excludes reaches the log, not even its live tail.

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use hashbrown::HashTable;
use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use store::Millis;

use super::{LoggedQuery, QueryLog};
use crate::{
    DomainName,
    policy::{GroupLog, LoggedAddresses, Policy},
    query_record::{Label, Labels, QueryBatch, QueryOutcome, QueryQueue, QueryRecord},
};

/// Counts of the recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    /// Records taken off the queue.
    pub seen: u64,
    /// Records that the policy keeps out of the log.
    pub left_out: u64,
    /// Records that found no room in the queue.
    pub dropped: u64,
}

/// Part of the policy about the log.
#[derive(Debug, Default)]
struct LogRules {
    groups: HashMap<String, GroupLog>,
    exclude_names: Vec<DomainName>,
    exclude_networks: Vec<IpNet>,
    exclude_ids: Vec<String>,
    sample_one_in: u64,
    addresses: LoggedAddresses,
}

impl LogRules {
    fn new(policy: &Policy) -> Self {
        let log = &policy.log;
        let network = |text: &String| {
            text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
        };
        Self {
            groups: policy.all_groups().into_iter().map(|group| (group.id, group.log)).collect(),
            exclude_names: log.exclude_names.iter().filter_map(|name| name.parse().ok()).collect(),
            exclude_networks: log.exclude_clients.iter().filter_map(network).collect(),
            exclude_ids: log.exclude_clients.clone(),
            sample_one_in: u64::from(log.sample_one_in.max(1)),
            addresses: log.addresses,
        }
    }

    fn keeps(&self, record: &QueryRecord, name: &DomainName, group: &str, client_id: &str) -> bool {
        match self.groups.get(group).copied().unwrap_or_default() {
            GroupLog::All => {}
            GroupLog::Blocked if record.outcome == QueryOutcome::Blocked => {}
            GroupLog::Blocked | GroupLog::Nothing => return false,
        }
        if self.exclude_networks.iter().any(|network| network.contains(&record.client))
            || self.exclude_ids.iter().any(|id| !id.is_empty() && id == client_id)
        {
            return false;
        }
        if self.exclude_names.is_empty() {
            return true;
        }
        let mut names = std::iter::successors(Some(name.clone()), DomainName::parent);
        !names.any(|name| self.exclude_names.contains(&name))
    }
}

/// Names of the labels of one batch, each looked up once.
struct LabelNames<'a> {
    labels: &'a Labels,
    known: HashMap<Label, Arc<str>, foldhash::fast::RandomState>,
}

impl<'a> LabelNames<'a> {
    fn new(labels: &'a Labels) -> Self {
        Self { labels, known: HashMap::default() }
    }

    fn get(&mut self, label: Label) -> Arc<str> {
        Arc::clone(self.known.entry(label).or_insert_with(|| self.labels.name(label)))
    }
}

/// Records of a batch that differ in nothing but their time, within the hour.
#[derive(Debug)]
struct AlikeGroup {
    /// The first of them.
    record: QueryRecord,
    name: DomainName,
    is_kept: bool,
    count: u64,
    /// Texts of the last row made of it, once there is one.
    texts: Option<RowTexts>,
}

/// Texts that rows share.
#[derive(Debug)]
struct RowTexts {
    name: Arc<str>,
    client: Arc<str>,
    client_id: Arc<str>,
    group: Arc<str>,
    list: Arc<str>,
    upstream: Arc<str>,
    answer: Arc<str>,
}

/// The records of a batch, those that are alike together: of a busy second most are, and what is
/// counted of them is counted once.
#[derive(Debug, Default)]
struct AlikeRecords {
    table: HashTable<(u64, u32)>,
    groups: Vec<AlikeGroup>,
    hasher: foldhash::fast::RandomState,
}

impl AlikeRecords {
    /// Returns the group of a record, which it is added to; none if its name is damaged.
    fn find_or_add(
        &mut self,
        record: &QueryRecord,
        name: &[u8],
        is_kept: impl FnOnce(&DomainName) -> bool,
    ) -> Option<&mut AlikeGroup> {
        let facts = |record: &QueryRecord| QueryRecord {
            at: Millis(record.at.as_secs().div_euclid(3_600)),
            ..*record
        };
        let own = facts(record);
        let hash = self.hasher.hash_one((own, name));
        let groups = &self.groups;
        let is_alike = |(other, index): &(u64, u32)| {
            let group = groups.get(*index as usize);
            *other == hash
                && group.is_some_and(|group| {
                    facts(&group.record) == own && group.name.as_wire() == name
                })
        };
        let index = match self.table.find(hash, is_alike) {
            Some((_, index)) => *index,
            None => {
                let name = DomainName::from_wire(name).ok()?;
                let index = u32::try_from(self.groups.len()).ok()?;
                let is_kept = is_kept(&name);
                let (count, texts) = (0, None);
                self.groups.push(AlikeGroup { record: *record, name, is_kept, count, texts });
                self.table.insert_unique(hash, (hash, index), |(hash, _)| *hash);
                index
            }
        };
        let group = self.groups.get_mut(index as usize)?;
        group.count += 1;
        Some(group)
    }
}

/// Takes records off the queue. A cheap clone.
#[derive(Clone, Debug)]
pub struct QueryRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: QueryQueue,
    labels: Labels,
    log: QueryLog,
    rules: ArcSwap<LogRules>,
    /// Key of hashed addresses, the same on all instances.
    hash_key: [u8; 32],
    seen: AtomicU64,
    left_out: AtomicU64,
}

impl QueryRecorder {
    /// Makes a recorder with the policy as it is.
    pub fn new(
        queue: QueryQueue,
        labels: Labels,
        log: QueryLog,
        hash_key: [u8; 32],
        policy: &Policy,
    ) -> Self {
        Self(Arc::new(Inner {
            queue,
            labels,
            log,
            rules: ArcSwap::from_pointee(LogRules::new(policy)),
            hash_key,
            seen: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }))
    }

    /// Applies a new policy.
    pub fn set_policy(&self, policy: &Policy) {
        self.0.rules.store(Arc::new(LogRules::new(policy)));
    }

    /// Takes all records that wait and logs those that are kept. `each` sees every record with its name,
    /// whether the policy lets the name be kept, and how many such records there were: those that differ
    /// in nothing but their time are told once. The batch is room that is used again.
    pub fn drain(
        &self,
        batch: &mut QueryBatch,
        mut each: impl FnMut(&QueryRecord, &DomainName, bool, u64),
    ) {
        let inner = &self.0;
        inner.queue.drain(batch);
        if batch.is_empty() {
            return;
        }
        let rules = inner.rules.load();
        let mut rows = Vec::new();
        let (mut room, mut dropped, mut left_out) = (inner.log.room(), 0, 0);
        let mut names = LabelNames::new(&inner.labels);
        let mut alike = AlikeRecords::default();
        let first = inner.seen.fetch_add(batch.len() as u64, Ordering::Relaxed);
        for ((record, name, answer), number) in batch.iter().zip(first..) {
            let group = alike.find_or_add(record, name, |name| {
                let (group, client_id) = (names.get(record.group), names.get(record.client_id));
                rules.keeps(record, name, &group, &client_id)
            });
            let Some(group) = group else { continue };
            if !group.is_kept || !number.is_multiple_of(rules.sample_one_in) {
                left_out += 1;
                continue;
            }
            // A row that finds no room is not made.
            if room == 0 {
                dropped += 1;
                continue;
            }
            room -= 1;
            let texts = group.texts.get_or_insert_with(|| RowTexts {
                name: group.name.to_string().into(),
                client: self.shown_address(record.client, rules.addresses).into(),
                client_id: names.get(record.client_id),
                group: names.get(record.group),
                list: names.get(record.list),
                upstream: names.get(record.upstream),
                answer: answer.into(),
            });
            if &*texts.answer != answer {
                texts.answer = answer.into();
            }
            rows.push(LoggedQuery {
                number: 0,
                at: record.at,
                client: Arc::clone(&texts.client),
                client_id: Arc::clone(&texts.client_id),
                group: Arc::clone(&texts.group),
                name: Arc::clone(&texts.name),
                qtype: record.qtype,
                rcode: record.rcode,
                outcome: record.outcome,
                tier: record.tier,
                protocol: record.protocol,
                list: Arc::clone(&texts.list),
                upstream: Arc::clone(&texts.upstream),
                answer: Arc::clone(&texts.answer),
                duration_us: record.duration_us,
            });
        }
        for AlikeGroup { record, name, is_kept, count, .. } in &alike.groups {
            each(record, name, *is_kept, *count);
        }
        inner.left_out.fetch_add(left_out, Ordering::Relaxed);
        inner.log.append(rows);
        if dropped > 0 {
            inner.log.count_dropped(dropped);
        }
    }

    /// Returns an address as the log keeps it under the present policy.
    pub fn logged_address(&self, address: IpAddr) -> String {
        self.shown_address(address, self.0.rules.load().addresses)
    }

    fn shown_address(&self, address: IpAddr, form: LoggedAddresses) -> String {
        let address = address.to_canonical();
        match (form, address) {
            (LoggedAddresses::Full, address) => address.to_string(),
            (LoggedAddresses::Truncated, IpAddr::V4(v4)) => {
                Ipv4Addr::from(u32::from(v4) & !0xff).to_string()
            }
            (LoggedAddresses::Truncated, IpAddr::V6(v6)) => {
                Ipv6Addr::from(u128::from(v6) >> 64 << 64).to_string()
            }
            (LoggedAddresses::Hashed, address) => {
                let mut hash = Sha256::new();
                hash.update(self.0.hash_key);
                hash.update(address.to_string());
                let digest = hash.finalize();
                digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }

    /// Returns the counts.
    pub fn stats(&self) -> RecorderStats {
        RecorderStats {
            seen: self.0.seen.load(Ordering::Relaxed),
            left_out: self.0.left_out.load(Ordering::Relaxed),
            dropped: self.0.queue.dropped(),
        }
    }
}
