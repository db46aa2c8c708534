//! L1: the cache in the store, shared by all instances and by programs of others.
//!
//! One hash per name, type and class, as the seed's schema says. It holds up to two answers: the plain
//! one in the seed's fields, and the one with signatures in fields of its own, which other programs
//! ignore. Answers to CD queries are not kept here.
//!
//! Invariants: what another writer left is checked before it is used, and what cannot be used is a
//! miss; `created_at` is the time of the first store; the answer's key and its member in the expiry
//! index change together where they share a server. The TTL of a key only cleans up: freshness is
//! `soft_expiry` compared with `now`.
//!
//! Read on in `l1/lock.rs` (one refresh at a time), `l1/index.rs` (sweep, cap and clear).

mod index;
mod lock;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::{
    Key, Layout, Millis, Store, StoreKind,
    batcher::{Batchable, Batcher},
    counter::{CounterTarget, Counters, Missing},
    redis::{self, Pipeline},
};

pub use self::{index::DueAnswer, lock::RefreshLock};
use crate::{
    Error,
    keys::{CacheKeys, InstanceKeys, question_from_key},
    name::Question,
    wire::{AnswerKind, CachedAnswer, TtlBounds},
};

/// Different answers whose hits wait to be written.
const COUNTERS_MAX: usize = 20_000;

/// Least time between two writes of hits by the sweep: each counter costs a write of its own.
const FLUSH_INTERVAL: Duration = Duration::from_secs(60);

/// Batches of reads under way at the same time: one is answered while the next is collected and sent.
const READ_BATCHES: usize = 2;

/// Members of the expiry index looked at to find out whether another writer ends names in a dot.
const DOTTED_SAMPLE: isize = 100;

/// Farthest soft expiry that is believed, RFC 2181 §8: the longest TTL.
const SOFT_EXPIRY_MAX_SECONDS: i64 = i32::MAX as i64;

/// TTLs of stored answers were bounded when they were stored.
const AS_STORED: TtlBounds =
    TtlBounds { min_seconds: 0, max_seconds: u32::MAX, max_negative_seconds: u32::MAX };

/// Options of the cache in the store.
#[derive(Clone, Debug)]
pub struct L1Options {
    /// Most answers; 0 for no cap. Default 10,000.
    pub max_keys: u64,
    /// Longest time for which an expired answer is kept. Default 1 h. It is kept no longer than it was
    /// fresh, so only answers with a TTL of at least this reach it.
    pub grace: Duration,
    /// Time after which a refresh lock ends by itself. Default 10 s.
    pub lock_ttl: Duration,
    /// Window in which hits are counted. Default 5 min.
    pub hit_window: Duration,
    /// Window in which hits are counted for the sweeper, which deletes answers without any. Without one it
    /// refreshes the answers that have hits within `hit_window`, and leaves the others to expire. Default
    /// none.
    pub sweep_hit_window: Option<Duration>,
}

impl Default for L1Options {
    fn default() -> Self {
        Self {
            max_keys: 10_000,
            grace: Duration::from_secs(3_600),
            lock_ttl: Duration::from_secs(10),
            hit_window: Duration::from_secs(300),
            sweep_hit_window: None,
        }
    }
}

/// The cache in the store. A cheap clone; all clones share counters and memos.
#[derive(Clone, Debug)]
pub struct L1(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    /// For answers and hits: what a power cut takes is asked for again.
    relaxed: Store,
    keys: CacheKeys,
    instance: InstanceKeys,
    options: L1Options,
    /// The cap, which may change while the process runs.
    max_keys: AtomicU64,
    hits: Counters,
    /// True once a key was seen whose name ends in a dot; such spellings are then read too.
    has_dotted: AtomicBool,
    reads: Batcher<AnswerRead>,
    count: Mutex<Option<index::KeyCount>>,
    /// Time of the last write of hits by the sweep.
    flushed_at: Mutex<Option<Millis>>,
}

/// An answer from the store.
#[derive(Clone, Debug)]
pub struct StoredAnswer {
    /// The answer.
    pub answer: Arc<CachedAnswer>,
    /// End of freshness, Unix seconds.
    pub soft_expiry: i64,
    /// Time for which it was fresh, in seconds.
    pub stored_ttl: u32,
    /// TTL its source gave, in seconds.
    pub auth_ttl: u32,
}

impl StoredAnswer {
    /// Returns the answer as it is stored now.
    pub fn new(answer: Arc<CachedAnswer>, now: Millis) -> Self {
        let (stored_ttl, auth_ttl) = (answer.stored_ttl(), answer.auth_ttl());
        Self { answer, soft_expiry: now.as_secs() + i64::from(stored_ttl), stored_ttl, auth_ttl }
    }

    /// Returns the seconds until the end of freshness; zero or negative if it is stale.
    pub fn remaining(&self, now: Millis) -> i64 {
        self.soft_expiry.saturating_sub(now.as_secs())
    }

    /// Returns the seconds since the answer was stored.
    pub fn age(&self, now: Millis) -> u32 {
        u32::try_from(i64::from(self.stored_ttl) - self.remaining(now)).unwrap_or(0)
    }

    /// Returns the end of the grace period, Unix seconds.
    pub fn hard_expiry(&self, grace: Duration) -> i64 {
        self.soft_expiry.saturating_add(grace_seconds(self.stored_ttl, grace))
    }
}

fn grace_seconds(ttl: u32, grace: Duration) -> i64 {
    i64::try_from(grace.as_secs()).unwrap_or(i64::MAX).min(i64::from(ttl))
}

/// The answers of one question.
#[derive(Clone, Debug, Default)]
pub struct StoredEntry {
    /// The answer without DNSSEC records.
    pub plain: Option<StoredAnswer>,
    /// The answer with them.
    pub signed: Option<StoredAnswer>,
    /// Time of the first store, Unix seconds.
    pub created_at: Option<i64>,
}

impl StoredEntry {
    /// Returns the answer of a kind; none for kinds that are not stored.
    pub fn of_kind(&self, kind: AnswerKind) -> Option<&StoredAnswer> {
        match kind {
            AnswerKind::Plain => self.plain.as_ref(),
            AnswerKind::Signed => self.signed.as_ref(),
            AnswerKind::Unchecked | AnswerKind::SignedUnchecked => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.plain.is_none() && self.signed.is_none()
    }
}

/// Fields of one kind of answer.
struct Fields {
    msg: &'static str,
    soft_expiry: &'static str,
    stored_ttl: &'static str,
    auth_ttl: &'static str,
}

const PLAIN: Fields = Fields {
    msg: "msg",
    soft_expiry: "soft_expiry",
    stored_ttl: "stored_ttl",
    auth_ttl: "auth_ttl",
};

const SIGNED: Fields = Fields {
    msg: "msg_do",
    soft_expiry: "soft_expiry_do",
    stored_ttl: "stored_ttl_do",
    auth_ttl: "auth_ttl_do",
};

const CREATED_AT: &str = "created_at";

impl Fields {
    fn of(kind: AnswerKind) -> Option<&'static Self> {
        match kind {
            AnswerKind::Plain => Some(&PLAIN),
            AnswerKind::Signed => Some(&SIGNED),
            AnswerKind::Unchecked | AnswerKind::SignedUnchecked => None,
        }
    }

    fn all(&self) -> [&'static str; 4] {
        [self.msg, self.soft_expiry, self.stored_ttl, self.auth_ttl]
    }
}

/// Result of reading the fields of one kind.
enum FieldsRead {
    Answer(StoredAnswer),
    /// Absent, or of another writer with a value that cannot be used.
    Miss,
    /// The message is damaged: to be removed.
    Damaged,
}

impl L1 {
    /// Opens the cache on a store.
    pub fn new(store: &Store, options: L1Options) -> Self {
        Self(Arc::new(Inner {
            store: store.clone(),
            relaxed: store.relaxed(),
            keys: CacheKeys::of(store.layout()),
            instance: InstanceKeys::new(),
            max_keys: AtomicU64::new(options.max_keys),
            options,
            hits: Counters::new(&store.relaxed(), COUNTERS_MAX),
            has_dotted: AtomicBool::new(false),
            reads: Batcher::new(READ_BATCHES),
            count: Mutex::new(None),
            flushed_at: Mutex::new(None),
        }))
    }

    /// Returns the most answers that are kept; 0 for no cap.
    pub fn max_keys(&self) -> u64 {
        self.0.max_keys.load(Ordering::Relaxed)
    }

    /// Changes the cap; the next sweep keeps it.
    pub fn set_max_keys(&self, max_keys: u64) {
        self.0.max_keys.store(max_keys, Ordering::Relaxed);
    }

    /// Returns the options.
    pub fn options(&self) -> &L1Options {
        &self.0.options
    }

    /// Looks at a sample of the expiry index for names that end in a dot, as some writers spell them.
    /// Without any, their spelling is not looked for with every miss.
    pub async fn detect_dotted_names(&self) -> Result<bool, Error> {
        let mut store = self.0.store.clone();
        let sample: Vec<Vec<u8>> = redis::cmd("ZRANDMEMBER")
            .arg(&self.0.keys.expiry_index)
            .arg(DOTTED_SAMPLE)
            .query_async(&mut store)
            .await?;
        sample.iter().for_each(|member| self.note_spelling(member));
        Ok(self.0.has_dotted.load(Ordering::Relaxed))
    }

    /// Remembers that some writer ends names in a dot, if this key says so.
    fn note_spelling(&self, key: &[u8]) {
        if let Some(question) = question_from_key(key)
            && self.0.keys.dotted_answer(&question).as_str().as_bytes() == key
        {
            self.0.has_dotted.store(true, Ordering::Relaxed);
        }
    }

    /// Reads the answers of a question. Whatever cannot be used is left out; what is damaged is removed.
    pub async fn get(&self, question: &Question, now: Millis) -> Result<StoredEntry, Error> {
        let entry = self.read(&self.0.keys.answer(question), question, now).await?;
        if !entry.is_empty() || !self.0.has_dotted.load(Ordering::Relaxed) {
            return Ok(entry);
        }
        self.read(&self.0.keys.dotted_answer(question), question, now).await
    }

    async fn read(
        &self,
        key: &Key,
        question: &Question,
        now: Millis,
    ) -> Result<StoredEntry, Error> {
        let store = &self.0.store;
        let read = AnswerRead(key.clone());
        let values = match store.kind() {
            // In this process there is no way that calls could share.
            StoreKind::Embedded => read.send(store).await,
            _ => self.0.reads.call(store, read).await,
        };
        let values = match values {
            Err(store::Error::WrongType { .. }) => {
                return Box::pin(self.read_legacy(key, question, now)).await;
            }
            values => values?,
        };
        let (plain, rest) = values.split_at(values.len().min(4));
        let (signed, created) = rest.split_at(rest.len().min(4));
        let mut entry = StoredEntry {
            created_at: created.first().and_then(|value| number(value.as_deref())),
            ..StoredEntry::default()
        };
        let mut damaged = Vec::new();
        for (kind, values) in [(AnswerKind::Plain, plain), (AnswerKind::Signed, signed)] {
            let found = match read_fields(values, question, kind, now, self.0.options.grace) {
                FieldsRead::Answer(answer) => Some(answer),
                FieldsRead::Miss => None,
                FieldsRead::Damaged => {
                    damaged.extend(Fields::of(kind).map(Fields::all).into_iter().flatten());
                    None
                }
            };
            match kind {
                AnswerKind::Signed => entry.signed = found,
                _ => entry.plain = found,
            }
        }
        if !damaged.is_empty() {
            tracing::debug!(%key, "a damaged answer in the store is removed");
            // Boxed as the above: most answers are sound, and many queries wait here.
            Box::pin(self.remove_damaged(key, &entry, damaged)).await?;
        }
        Ok(entry)
    }

    /// Removes fields of an answer, or all of it if nothing else is left.
    async fn remove_damaged(
        &self,
        key: &Key,
        entry: &StoredEntry,
        damaged: Vec<&'static str>,
    ) -> Result<(), Error> {
        if entry.is_empty() {
            return self.remove(std::slice::from_ref(key)).await;
        }
        let mut store = self.0.store.clone();
        redis::cmd("HDEL").arg(key).arg(damaged).query_async::<()>(&mut store).await?;
        Ok(())
    }

    /// Reads an answer of the time before hashes, a string whose TTL is the key's, and rewrites it.
    /// Any other type is removed.
    async fn read_legacy(
        &self,
        key: &Key,
        question: &Question,
        now: Millis,
    ) -> Result<StoredEntry, Error> {
        let mut store = self.0.store.clone();
        let read = redis::cmd("GET").arg(key).query_async(&mut store).await;
        let wire: Option<Vec<u8>> = match read.map_err(store::Error::from) {
            Err(store::Error::WrongType { .. }) => None,
            read => read?,
        };
        let ttl_ms: i64 = redis::cmd("PTTL").arg(key).query_async(&mut store).await?;
        let answer = wire.and_then(|wire| {
            CachedAnswer::normalise(&wire, question, AnswerKind::Plain, AS_STORED).ok()
        });
        self.remove(std::slice::from_ref(key)).await?;
        // Without a TTL its age is unknown: stale, so that it is refreshed when it is asked for.
        let remaining = if ttl_ms < 0 { 0 } else { ttl_ms.div_euclid(1_000) };
        let Some(answer) = answer.filter(|answer| answer.stored_ttl() > 0) else {
            return Ok(StoredEntry::default());
        };
        let stored = StoredAnswer {
            soft_expiry: now.as_secs() + remaining,
            stored_ttl: answer.stored_ttl().max(u32::try_from(remaining).unwrap_or(u32::MAX)),
            auth_ttl: answer.auth_ttl(),
            answer: Arc::new(answer),
        };
        self.put(question, AnswerKind::Plain, &stored, &StoredEntry::default(), now).await?;
        Ok(StoredEntry { plain: Some(stored), signed: None, created_at: Some(now.as_secs()) })
    }

    /// Stores an answer beside what the entry holds of the other kind, as it was read last. Kinds that
    /// are not kept here, and answers that must not be stored, are left out.
    pub async fn put(
        &self,
        question: &Question,
        kind: AnswerKind,
        stored: &StoredAnswer,
        known: &StoredEntry,
        now: Millis,
    ) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        match self.add_put(&mut pipe, question, kind, stored, known, now) {
            Some((key, score)) => self.write_with_index(pipe, &key, score).await,
            None => Ok(()),
        }
    }

    /// Stores answers, all with one call where they share a server. Returns the first failure, and stores
    /// the others all the same.
    pub(crate) async fn put_all(
        &self,
        answers: &[PendingAnswer],
        now: Millis,
    ) -> Result<(), Error> {
        if answers.len() > 1 && self.0.store.layout() == Layout::Standalone {
            let mut pipe = redis::pipe();
            pipe.atomic();
            let mut entries = Vec::with_capacity(answers.len());
            for PendingAnswer { question, kind, stored, known, .. } in answers {
                entries.extend(self.add_put(&mut pipe, question, *kind, stored, known, now));
            }
            if entries.is_empty() {
                return Ok(());
            }
            let mut index = redis::cmd("ZADD");
            index.arg(&self.0.keys.expiry_index);
            for (key, score) in &entries {
                index.arg(*score).arg(key);
            }
            pipe.add_command(index).ignore();
            let mut store = self.0.relaxed.clone();
            match pipe.query_async::<()>(&mut store).await.map_err(store::Error::from) {
                // One of them found something else in its place: each by itself.
                Err(store::Error::Refused(_) | store::Error::WrongType { .. }) => {}
                written => return Ok(written?),
            }
        }
        let mut result = Ok(());
        for PendingAnswer { question, kind, stored, known, .. } in answers {
            let written = self.put(question, *kind, stored, known, now).await;
            result = result.and(written);
        }
        result
    }

    /// Adds the commands that store an answer; returns its key and its score in the expiry index. None
    /// if it is not stored.
    fn add_put(
        &self,
        pipe: &mut Pipeline,
        question: &Question,
        kind: AnswerKind,
        stored: &StoredAnswer,
        known: &StoredEntry,
        now: Millis,
    ) -> Option<(Key, i64)> {
        let fields = Fields::of(kind)?;
        if stored.stored_ttl == 0 {
            return None;
        }
        let grace = self.0.options.grace;
        let other = match kind {
            AnswerKind::Signed => known.plain.as_ref(),
            _ => known.signed.as_ref(),
        };
        let other = other.filter(|other| other.hard_expiry(grace) > now.as_secs());
        let hard_expiry = stored.hard_expiry(grace);
        let hard_expiry =
            other.map_or(hard_expiry, |other| other.hard_expiry(grace).max(hard_expiry));
        let index_score =
            other.map_or(stored.soft_expiry, |other| other.soft_expiry.min(stored.soft_expiry));

        let key = self.0.keys.answer(question);
        let mut set = redis::cmd("HSET");
        set.arg(&key).arg(fields.msg).arg(stored.answer.as_wire());
        set.arg(fields.soft_expiry).arg(stored.soft_expiry);
        set.arg(fields.stored_ttl).arg(stored.stored_ttl);
        if stored.auth_ttl > 0 {
            set.arg(fields.auth_ttl).arg(stored.auth_ttl);
        }
        pipe.add_command(set).ignore();
        pipe.hset_nx(&key, CREATED_AT, now.as_secs()).ignore();
        pipe.expire(&key, hard_expiry.saturating_sub(now.as_secs()).max(1)).ignore();
        Some((key, index_score))
    }

    /// Runs a transaction on an answer and puts its key into the expiry index. On a Cluster the two
    /// live on different servers; a crash in between leaves an answer that is only missing from the
    /// index, and the next store of it puts it there.
    async fn write_with_index(
        &self,
        mut pipe: Pipeline,
        key: &Key,
        score: i64,
    ) -> Result<(), Error> {
        let mut store = self.0.relaxed.clone();
        let index = &self.0.keys.expiry_index;
        let written = match store.layout() {
            Layout::Standalone => {
                pipe.zadd(index, key, score).ignore();
                pipe.query_async::<()>(&mut store).await
            }
            Layout::Cluster => match pipe.query_async::<()>(&mut store).await {
                Ok(()) => {
                    let mut add = redis::cmd("ZADD");
                    add.arg(index).arg(score).arg(key);
                    add.query_async::<()>(&mut store).await
                }
                failed => failed,
            },
        };
        match written.map_err(store::Error::from) {
            // A transaction may hide the code of the command that was refused.
            Err(error @ (store::Error::Refused(_) | store::Error::WrongType { .. })) => {
                let kind: String = redis::cmd("TYPE").arg(key).query_async(&mut store).await?;
                if matches!(kind.as_str(), "hash" | "none") {
                    return Err(error.into());
                }
                // Another writer left something else there: the next store finds the place free.
                self.remove(std::slice::from_ref(key)).await
            }
            written => Ok(written?),
        }
    }

    /// Counts hits of a question, to be written with the next [`flush_hits`](Self::flush_hits). Returns
    /// false if too many different ones wait already.
    pub fn add_hits(&self, question: &Question, hits: u32) -> bool {
        let key = self.0.keys.answer(question);
        let options = &self.0.options;
        let target =
            CounterTarget::Key { key: self.0.keys.hits(&key), keep: Some(options.hit_window) };
        let mut counted = self.0.hits.add(target, i64::from(hits));
        if options.sweep_hit_window.is_some() {
            let (key, keep) = (self.0.keys.sweep_hits(&key), options.sweep_hit_window);
            counted &= self.0.hits.add(CounterTarget::Key { key, keep }, i64::from(hits));
        }
        counted
    }

    /// Writes the hits that wait, if there are any and none were written within the last minute.
    pub(crate) async fn flush_hits_if_due(&self, now: Millis) -> Result<(), Error> {
        let is_due = self.0.hits.waiting() > 0 && {
            let mut flushed_at = self.0.flushed_at.lock();
            // A clock that was set back makes it due, too.
            let is_due = flushed_at.is_none_or(|at| now < at || now.since(at) >= FLUSH_INTERVAL);
            if is_due {
                *flushed_at = Some(now);
            }
            is_due
        };
        if is_due {
            self.flush_hits().await?;
        }
        Ok(())
    }

    /// Writes the hits that wait.
    pub async fn flush_hits(&self) -> Result<usize, Error> {
        Ok(self.0.hits.flush().await?)
    }

    /// Returns the hits that were lost.
    pub fn missing_hits(&self) -> Missing {
        self.0.hits.missing()
    }

    /// Returns the hits of a question within the window.
    pub async fn hits(&self, question: &Question) -> Result<u64, Error> {
        let mut store = self.0.store.clone();
        let key = self.0.keys.hits(&self.0.keys.answer(question));
        let hits: Option<Vec<u8>> = redis::cmd("GET").arg(key).query_async(&mut store).await?;
        Ok(number(hits.as_deref()).and_then(|hits| u64::try_from(hits).ok()).unwrap_or(0))
    }

    /// Removes the answers of a question, with their metadata.
    pub async fn delete(&self, question: &Question) -> Result<(), Error> {
        let keys = &self.0.keys;
        self.remove(&[keys.answer(question), keys.dotted_answer(question)]).await
    }
}

/// An answer on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct PendingAnswer {
    pub(crate) question: Question,
    pub(crate) kind: AnswerKind,
    pub(crate) stored: StoredAnswer,
    /// The entry as it was read before.
    pub(crate) known: StoredEntry,
    /// Generation of the cache in memory at that time.
    pub(crate) generation: u64,
}

/// A read of all fields of an answer.
#[derive(Clone, Debug)]
struct AnswerRead(Key);

/// Values of the fields of both kinds, and the time of the first store.
type FieldValues = Vec<Option<Vec<u8>>>;

impl AnswerRead {
    fn command(&self) -> redis::Cmd {
        let mut read = redis::cmd("HMGET");
        read.arg(&self.0).arg(&PLAIN.all()).arg(&SIGNED.all()).arg(CREATED_AT);
        read
    }

    async fn send(&self, store: &Store) -> Result<FieldValues, store::Error> {
        Ok(self.command().query_async(&mut store.clone()).await?)
    }
}

impl Batchable for AnswerRead {
    type Context = Store;
    type Answer = FieldValues;
    type Error = store::Error;

    fn size(&self) -> usize {
        self.0.as_str().len()
    }

    async fn send_batch(store: &Store, calls: &[Self]) -> Result<Vec<FieldValues>, store::Error> {
        if let [call] = calls {
            return Ok(vec![call.send(store).await?]);
        }
        let mut pipe = redis::pipe();
        for call in calls {
            pipe.add_command(call.command());
        }
        Ok(pipe.query_async(&mut store.clone()).await?)
    }

    /// What another writer left under one key fails the call for all.
    fn should_retry_individually(error: &store::Error) -> bool {
        matches!(error, store::Error::WrongType { .. } | store::Error::Refused(_))
    }
}

fn number(value: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(value?).ok()?.parse().ok()
}

/// Reads the fields of one kind, in the order of [`Fields::all`].
fn read_fields(
    values: &[Option<Vec<u8>>],
    question: &Question,
    kind: AnswerKind,
    now: Millis,
    grace: Duration,
) -> FieldsRead {
    let [Some(msg), soft_expiry, stored_ttl, auth_ttl] = values else { return FieldsRead::Miss };
    let Ok(answer) = CachedAnswer::normalise(msg, question, kind, AS_STORED) else {
        return FieldsRead::Damaged;
    };
    let Some(soft_expiry) = number(soft_expiry.as_deref()) else { return FieldsRead::Miss };
    // Optional in the schema; where it is there, it must be a TTL.
    let ttl_of = |value: &Option<Vec<u8>>, default: u32| match value {
        None => Some(default),
        Some(_) => number(value.as_deref())
            .and_then(|ttl| u32::try_from(ttl).ok())
            .filter(|ttl| i64::from(*ttl) <= SOFT_EXPIRY_MAX_SECONDS),
    };
    let Some(stored_ttl) = ttl_of(stored_ttl, answer.stored_ttl()) else { return FieldsRead::Miss };
    let Some(auth_ttl) = ttl_of(auth_ttl, 0) else { return FieldsRead::Miss };
    let remaining = soft_expiry.saturating_sub(now.as_secs());
    if soft_expiry <= 0 || remaining > SOFT_EXPIRY_MAX_SECONDS {
        return FieldsRead::Miss;
    }
    // A clock that was set back would make an answer fresher than it ever was.
    let stored_ttl = stored_ttl.max(u32::try_from(remaining).unwrap_or(0));
    let stored = StoredAnswer { answer: Arc::new(answer), soft_expiry, stored_ttl, auth_ttl };
    match stored.hard_expiry(grace) > now.as_secs() {
        true => FieldsRead::Answer(stored),
        false => FieldsRead::Miss,
    }
}
