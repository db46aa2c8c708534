//! Memory: how much the keyspace takes, and what goes when there is too little.
//!
//! Every write is counted only while `maxmemory` is set. Then `MemoryUsage::used` is the sum of
//! [`entry_size`] over all entries: what a command may change is measured before it changes and
//! again when the command is over ([`Core::settle_memory`]). Without a limit nobody needs the sum but
//! INFO: the entries are measured when it asks if they are few, else some at each sweep
//! ([`MemorySurvey`]).

use hashbrown::HashMap;

use crate::args;
use crate::command::{self, CommandRow, Ctx, READONLY};
use crate::db::{KeyEntry, NEVER};
use crate::engine::Core;
use crate::error::{Error, SYNTAX};
use crate::notify::Class;
use crate::{Now, Reply};

/// Bytes that a place in the hash table takes (entry, control byte, empty places).
const PLACE: usize = size_of::<KeyEntry>() * 8 / 7 + 1;
/// Bytes that an empty engine is said to take, so that a limit below is never met.
const BASE: usize = 64 * 1024;
/// Bytes that a session is said to take.
const SESSION: usize = 1024;
/// Most keys evicted before one command; the next command goes on.
const EVICT_MAX: usize = 1000;
/// Most keys that are measured when somebody asks.
const MEASURED_AT_ONCE: usize = 16_384;
/// Keys that are measured at each sweep where there are more.
const MEASURED_AT_SWEEP: usize = 1_000;
/// A new key's count of uses, so that it is not the first to go.
const LFU_START: u8 = 5;

/// Memory accounting.
#[derive(Debug, Default)]
pub(crate) struct MemoryUsage {
    /// Is anything counted?
    pub(crate) on: bool,
    /// Bytes of all entries, as of the last settlement.
    pub(crate) used: usize,
    /// Bytes that clients hold: what came, what is queued, what is not sent.
    pub(crate) clients: usize,
    /// The most there ever was.
    pub(crate) peak: usize,
    /// Sizes, before the running command, of what it may have changed.
    before: HashMap<(usize, Box<[u8]>), usize>,
    survey: MemorySurvey,
    pool: EvictionPool,
}

/// A walk over all keys, some at a time, that adds up what they take.
#[derive(Debug, Default)]
struct MemorySurvey {
    db: usize,
    cursor: u64,
    /// Keys and bytes seen on this walk.
    seen: MeasuredKeys,
    /// Those of the last complete walk.
    last: MeasuredKeys,
    /// The number of changes when this walk began, and when the last one did.
    began: u64,
    complete: Option<u64>,
}

/// A number of keys with the bytes they take together.
#[derive(Debug, Default, Clone, Copy)]
struct MeasuredKeys {
    keys: usize,
    bytes: usize,
}

impl MeasuredKeys {
    fn add(&mut self, entry: &KeyEntry) {
        self.keys += 1;
        self.bytes += entry_size(entry);
    }

    /// The bytes of so many keys, if they are like these.
    fn bytes_of(self, keys: usize) -> usize {
        (self.bytes as u128 * keys as u128 / self.keys.max(1) as u128) as usize
    }
}

/// The worst keys seen by the policy, best first.
#[derive(Debug, Default)]
struct EvictionPool {
    policy: EvictionPolicy,
    candidates: Vec<EvictionCandidate>,
}

/// A key that may go next. The lower its worth, the sooner.
#[derive(Debug)]
struct EvictionCandidate {
    worth: i64,
    db: usize,
    key: Box<[u8]>,
}

impl EvictionPool {
    /// As many as Redis keeps (`EVPOOL_SIZE`).
    const MOST: usize = 16;

    fn consider(&mut self, worth: i64, db: usize, key: &[u8]) {
        let full = self.candidates.len() >= EvictionPool::MOST;
        if full && self.candidates.first().is_some_and(|best| best.worth <= worth) {
            return;
        }
        if let Some(at) = self.candidates.iter().position(|c| c.db == db && *c.key == *key) {
            self.candidates.remove(at);
        } else if full {
            self.candidates.remove(0);
        }
        let at = self.candidates.partition_point(|candidate| candidate.worth > worth);
        self.candidates.insert(at, EvictionCandidate { worth, db, key: key.into() });
    }

    fn take(&mut self) -> Option<EvictionCandidate> {
        self.candidates.pop()
    }
}

/// `maxmemory-policy`: which keys go when memory is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// None: writes are refused.
    #[default]
    NoEviction,
    /// Those not used for the longest time.
    AllKeysLru,
    /// Those used least often.
    AllKeysLfu,
    /// Any.
    AllKeysRandom,
    /// As [`EvictionPolicy::AllKeysLru`], among keys with a deadline.
    VolatileLru,
    /// As [`EvictionPolicy::AllKeysLfu`], among keys with a deadline.
    VolatileLfu,
    /// Any with a deadline.
    VolatileRandom,
    /// Those whose deadline comes first.
    VolatileTtl,
}

impl EvictionPolicy {
    /// All of them by the names CONFIG knows.
    pub(crate) const NAMES: [(&'static str, EvictionPolicy); 8] = [
        ("volatile-lru", EvictionPolicy::VolatileLru),
        ("volatile-lfu", EvictionPolicy::VolatileLfu),
        ("volatile-random", EvictionPolicy::VolatileRandom),
        ("volatile-ttl", EvictionPolicy::VolatileTtl),
        ("allkeys-lru", EvictionPolicy::AllKeysLru),
        ("allkeys-lfu", EvictionPolicy::AllKeysLfu),
        ("allkeys-random", EvictionPolicy::AllKeysRandom),
        ("noeviction", EvictionPolicy::NoEviction),
    ];

    /// The name CONFIG knows it by.
    pub fn name(self) -> &'static str {
        EvictionPolicy::NAMES
            .iter()
            .find(|(_, policy)| *policy == self)
            .map_or("noeviction", |p| p.0)
    }

    /// The policy of this name.
    pub fn parse(name: &str) -> Option<EvictionPolicy> {
        EvictionPolicy::NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|p| p.1)
    }

    /// Does `used_at` hold a count of uses?
    pub(crate) fn counts_uses(self) -> bool {
        matches!(self, EvictionPolicy::AllKeysLfu | EvictionPolicy::VolatileLfu)
    }

    /// May equal small integers be one object (as Redis reports it)?
    pub(crate) fn shares(self) -> bool {
        !self.counts_uses()
            && !matches!(self, EvictionPolicy::AllKeysLru | EvictionPolicy::VolatileLru)
    }

    fn volatile(self) -> bool {
        matches!(
            self,
            EvictionPolicy::VolatileLru
                | EvictionPolicy::VolatileLfu
                | EvictionPolicy::VolatileRandom
                | EvictionPolicy::VolatileTtl
        )
    }
}

/// Bytes that an entry takes, its place in the table included.
pub(crate) fn entry_size(entry: &KeyEntry) -> usize {
    PLACE + allocated(entry.key.len()) + entry.value.heap_size()
}

/// Returns the bytes an allocator takes for a request of `size` bytes: multiples of 16 for small
/// ones.
pub(crate) fn allocated(size: usize) -> usize {
    if size == 0 { 0 } else { size.next_multiple_of(16) }
}

/// The mark an entry gets when it is made.
pub(crate) fn first_use(policy: EvictionPolicy, now_ms: i64) -> u32 {
    match policy.counts_uses() {
        true => minutes(now_ms) << 8 | u32::from(LFU_START),
        false => (now_ms / 1000) as u32,
    }
}

/// The mark of a key that RESTORE says was last used some time ago, or often.
pub(crate) fn restored_use(
    policy: EvictionPolicy,
    now_ms: i64,
    idle_seconds: Option<i64>,
    frequency: Option<u8>,
) -> u32 {
    match (policy.counts_uses(), frequency, idle_seconds) {
        (true, Some(frequency), _) => minutes(now_ms) << 8 | u32::from(frequency),
        (false, _, Some(idle)) => (now_ms / 1000).saturating_sub(idle).max(0) as u32,
        _ => first_use(policy, now_ms),
    }
}

/// Minutes since the epoch, the last 16 bits.
fn minutes(now_ms: i64) -> u32 {
    (now_ms / 60_000) as u32 & 0xffff
}

/// Returns the LFU counter of a key: logarithmic, decaying while the key is not used.
pub(crate) fn uses(mark: u32, now_ms: i64, decay_minutes: u32) -> u8 {
    let since = minutes(now_ms).wrapping_sub(mark >> 8) & 0xffff;
    let periods = since.checked_div(decay_minutes).unwrap_or(0);
    (mark as u8).saturating_sub(u8::try_from(periods).unwrap_or(u8::MAX))
}

impl Core {
    /// The mark of an entry that is used now.
    pub(crate) fn next_use(&mut self, mark: u32, now_ms: i64) -> u32 {
        if !self.config.maxmemory_policy.counts_uses() {
            return (now_ms / 1000) as u32;
        }
        let count = uses(mark, now_ms, self.config.lfu_decay_time);
        let above = f64::from(count.saturating_sub(LFU_START));
        let chance = 1.0 / (above * f64::from(self.config.lfu_log_factor) + 1.0);
        let more = count < u8::MAX && self.rng.f64() < chance;
        minutes(now_ms) << 8 | u32::from(count + u8::from(more))
    }

    /// Notes the size of a key that is about to be changed.
    pub(crate) fn memory_before(&mut self, db: usize, key: &[u8]) {
        let place = (db, Box::from(key));
        if self.memory.before.contains_key(&place) {
            return;
        }
        if let Some(entry) = self.dbs.get(db).and_then(|db| db.keys.get(key)) {
            let size = entry_size(entry);
            self.memory.before.insert(place, size);
        }
    }

    /// An entry went.
    pub(crate) fn memory_gone(&mut self, db: usize, entry: &KeyEntry) {
        if self.memory.on {
            // It may have changed since it was counted.
            let counted = self.memory.before.remove(&(db, entry.key.clone()));
            let size = counted.unwrap_or_else(|| entry_size(entry));
            self.memory.used = self.memory.used.saturating_sub(size);
        }
    }

    /// The command is over: counts what it changed.
    pub(crate) fn settle_memory(&mut self) {
        if self.memory.before.is_empty() {
            return;
        }
        for ((db, key), size) in std::mem::take(&mut self.memory.before) {
            if let Some(entry) = self.dbs.get(db).and_then(|db| db.keys.get(&key)) {
                let used = self.memory.used.saturating_sub(size);
                self.memory.used = used + entry_size(entry);
            }
        }
        self.memory.peak = self.memory.peak.max(self.used_memory());
    }

    /// Starts or stops counting when the limit is set or lifted.
    pub(crate) fn count_memory(&mut self) {
        self.memory.before.clear();
        self.memory.on = self.config.maxmemory > 0;
        self.memory.used = match self.memory.on {
            true => self.dbs.iter().flat_map(|db| db.keys.iter()).map(entry_size).sum(),
            false => 0,
        };
    }

    /// Bytes that clients take.
    pub(crate) fn client_memory(&self) -> usize {
        self.sessions.len() * SESSION + self.memory.clients
    }

    /// Bytes the process takes, as the system sees it; as counted where nobody told.
    pub(crate) fn resident_memory(&self) -> usize {
        match self.usage.resident_bytes {
            0 => self.used_memory(),
            bytes => bytes,
        }
    }

    /// Bytes in use: counted while there is a limit, else measured as of the last walk.
    pub(crate) fn used_memory(&self) -> usize {
        let rest = BASE + self.client_memory();
        if self.memory.on {
            return rest + self.memory.used;
        }
        let keys = self.dbs.iter().map(|db| db.keys.len()).sum::<usize>();
        if keys <= MEASURED_AT_ONCE {
            return rest
                + self.dbs.iter().flat_map(|db| db.keys.iter()).map(entry_size).sum::<usize>();
        }
        let MemorySurvey { seen, last, complete, .. } = &self.memory.survey;
        let like = if complete.is_some() || seen.keys == 0 { last } else { seen };
        rest + like.bytes_of(keys)
    }

    /// Measures some more keys, unless every write is counted or nothing has changed since the last
    /// walk.
    pub(crate) fn survey_memory(&mut self) {
        let survey = &mut self.memory.survey;
        let at_start = survey.db == 0 && survey.cursor == 0;
        if self.memory.on || (at_start && survey.complete == Some(self.dirty)) {
            return;
        }
        if at_start {
            survey.began = self.dirty;
        }
        let before = survey.seen.keys;
        while let Some(db) = self.dbs.get(survey.db) {
            let left = (before + MEASURED_AT_SWEEP).saturating_sub(survey.seen.keys);
            if left == 0 {
                return;
            }
            if !db.keys.is_empty() {
                let seen = &mut survey.seen;
                survey.cursor = db.keys.scan(survey.cursor, left, |entry| seen.add(entry));
            }
            if db.keys.is_empty() || survey.cursor == 0 {
                survey.db += 1;
                survey.cursor = 0;
            }
        }
        survey.db = 0;
        survey.last = std::mem::take(&mut survey.seen);
        survey.complete = Some(survey.began);
        self.memory.peak = self.memory.peak.max(self.used_memory());
    }

    /// Makes room before a command, as the policy says. True if memory is still full. While clients
    /// are paused nothing goes, and what runs then is not refused.
    pub(crate) fn make_room(&mut self, now: Now) -> bool {
        if !self.memory.on || self.is_paused(now) {
            return false;
        }
        let limit = usize::try_from(self.config.maxmemory).unwrap_or(usize::MAX);
        for _ in 0..EVICT_MAX {
            if self.used_memory() <= limit {
                return false;
            }
            let Some((db, key)) = self.victim(now) else { return true };
            self.evict(db, &key);
        }
        self.used_memory() > limit
    }

    /// The key to go next.
    fn victim(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        match self.config.maxmemory_policy {
            EvictionPolicy::NoEviction => None,
            EvictionPolicy::AllKeysRandom | EvictionPolicy::VolatileRandom => {
                self.samples(1).into_iter().next().map(|(db, entry)| (db, entry.key.clone()))
            }
            _ => self.worst(now),
        }
    }

    /// A few keys of each database that the policy lets go, by chance.
    fn samples(&mut self, most: usize) -> Vec<(usize, &KeyEntry)> {
        let policy = self.config.maxmemory_policy;
        let rng = &mut self.rng;
        let mut found = Vec::new();
        for (number, db) in self.dbs.iter().enumerate() {
            if db.keys.is_empty() || (policy.volatile() && db.expiring == 0) {
                continue;
            }
            if policy == EvictionPolicy::VolatileTtl {
                found.extend(db.first_expiring(most).into_iter().map(|entry| (number, entry)));
            }
            if policy.volatile() {
                found.extend(db.some_expiring(rng, most).into_iter().map(|e| (number, e)));
            } else {
                let some = (0..most).filter_map(|_| db.keys.random(rng));
                found.extend(some.map(|entry| (number, entry)));
            }
        }
        found
    }

    /// The worst key of the eviction pool, after a few more were considered for it: the worst keys
    /// seen so far, so that each one evicted is the worst of many samples (Redis `evict.c`).
    fn worst(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        let policy = self.config.maxmemory_policy;
        let decay = self.config.lfu_decay_time;
        let worth = |entry: &KeyEntry| match policy {
            EvictionPolicy::AllKeysLru | EvictionPolicy::VolatileLru => i64::from(entry.used_at),
            EvictionPolicy::AllKeysLfu | EvictionPolicy::VolatileLfu => {
                i64::from(uses(entry.used_at, now.ms(), decay))
            }
            _ => entry.expires_at,
        };
        let mut pool = std::mem::take(&mut self.memory.pool);
        if pool.policy != policy {
            pool = EvictionPool { policy, candidates: Vec::new() };
        }
        for (db, entry) in self.samples(self.config.maxmemory_samples.max(1)) {
            pool.consider(worth(entry), db, &entry.key);
        }
        let found = loop {
            let Some(candidate) = pool.take() else { break None };
            let EvictionCandidate { worth: then, db, key } = candidate;
            let entry = self.dbs.get(db).and_then(|db| db.keys.get(&key));
            let fits = |entry: &&KeyEntry| !policy.volatile() || entry.expires_at != NEVER;
            // One that was used since is no candidate any more.
            if entry.filter(fits).is_some_and(|entry| worth(entry) <= then) {
                break Some((db, key));
            }
        };
        self.memory.pool = pool;
        found
    }

    fn evict(&mut self, db: usize, key: &[u8]) {
        let entry = self.remove_entry(db, key);
        if let Some(entry) = entry.filter(|_| self.lazyfree.eviction) {
            self.free_entry(entry);
        }
        self.stats.evicted_keys += 1;
        self.effects.push(db, &[b"DEL", key]);
        self.touch(db, key, None);
        self.notify(db, Class::Evicted, "evicted", key);
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("memory", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("usage", -3, READONLY, usage).keys(2, 2, 1),
        CommandRow::new("doctor", 2, 0, doctor),
        CommandRow::new("stats", 2, 0, stats),
        CommandRow::new("purge", 2, 0, |_| Ok(Reply::Ok)),
        CommandRow::new("malloc-stats", 2, 0, |_| {
            Ok(Reply::bulk("Stats not supported for the current allocator"))
        }),
        CommandRow::new("help", 2, command::LOADING | command::STALE, help),
    ])];

fn usage(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut words = args::Args::from(ctx.argv, 3);
    while let Some(word) = words.next() {
        // Sizes are known without sampling; the option is read and checked all the same.
        if !args::is(word, "SAMPLES") || words.int()? < 0 {
            return Err(SYNTAX);
        }
    }
    let (db, key) = (ctx.session.db, ctx.arg(2));
    Ok(ctx.core.peek(db, key, ctx.now.ms()).map_or(Reply::Nil, |entry| entry_size(entry).into()))
}

fn doctor(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Verbatim(
        *b"txt",
        b"Nothing unusual: memory is counted per key and freed with it.".to_vec(),
    ))
}

fn stats(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let used = ctx.core.used_memory();
    let keys: usize = ctx.core.dbs.iter().map(|db| db.keys.len()).sum();
    let rest = BASE + ctx.core.client_memory();
    let data = used.saturating_sub(rest);
    let mut lines: Vec<(Reply, Reply)> = Vec::new();
    let mut line = |name: &str, value: Reply| lines.push((Reply::bulk(name), value));
    line("peak.allocated", ctx.core.memory.peak.max(used).into());
    line("total.allocated", used.into());
    line("startup.allocated", BASE.into());
    line("replication.backlog", Reply::Int(0));
    line("clients.slaves", Reply::Int(0));
    line("clients.normal", ctx.core.client_memory().into());
    line("cluster.links", Reply::Int(0));
    line("aof.buffer", Reply::Int(0));
    line("lua.caches", Reply::Int(0));
    line("functions.caches", ctx.core.scripts.functions.memory().into());
    for (number, db) in ctx.core.dbs.iter().enumerate().filter(|(_, db)| !db.keys.is_empty()) {
        line(
            &format!("db.{number}"),
            Reply::Map(vec![
                (Reply::bulk("overhead.hashtable.main"), db.keys.heap_size().into()),
                (Reply::bulk("overhead.hashtable.expires"), (db.expiring * 16).into()),
                (Reply::bulk("overhead.hashtable.slot-to-keys"), Reply::Int(0)),
            ]),
        );
    }
    line("overhead.total", rest.into());
    line("keys.count", keys.into());
    line("keys.bytes-per-key", data.checked_div(keys).unwrap_or(0).into());
    line("dataset.bytes", data.into());
    line("dataset.percentage", Reply::Double(data as f64 * 100.0 / used as f64));
    line("peak.percentage", Reply::Double(100.0));
    line("allocator.allocated", used.into());
    line("allocator.active", used.into());
    line("allocator.resident", ctx.core.resident_memory().into());
    line("allocator-fragmentation.ratio", Reply::Double(1.0));
    line("allocator-fragmentation.bytes", Reply::Int(0));
    line("allocator-rss.ratio", Reply::Double(1.0));
    line("allocator-rss.bytes", Reply::Int(0));
    line("rss-overhead.ratio", Reply::Double(1.0));
    line("rss-overhead.bytes", Reply::Int(0));
    line("fragmentation", Reply::Double(1.0));
    line("fragmentation.bytes", Reply::Int(0));
    Ok(Reply::Map(lines))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "MEMORY",
        &[
            ("DOCTOR", "Say what is unusual about memory."),
            ("MALLOC-STATS", "Statistics of the allocator, where it has any."),
            ("PURGE", "Give unused pages back, where the allocator can."),
            ("STATS", "Where memory goes, in numbers."),
            ("USAGE <key> [SAMPLES <count>]", "Bytes a key and its value take."),
        ],
    ))
}
