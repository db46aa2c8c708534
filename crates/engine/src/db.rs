//! The keyspace: lookup for reading and writing, adding, deleting; expiry on access.
//!
//! Nobody sees a key, or a field of a hash, past its deadline: every lookup through [`Ctx`] checks
//! it first and deletes what is due. Commands reach keys only through the methods of `Ctx` below,
//! and say what they changed with [`Ctx::changed`] or [`Ctx::changed_by`], which is what wakes
//! WATCHers, counts as dirty and sends keyspace events.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::SessionId;
use crate::command::Ctx;
use crate::engine::Core;
use crate::error::Error;
use crate::expire::{NO_TIMER, Timers};
use crate::memory;
use crate::notify::Class;
use crate::table::{Table, TableEntry, TableSlot};
use crate::value::{Value, ValueType};

/// No deadline.
pub(crate) const NEVER: i64 = i64::MAX;

/// One key with its value, deadline and age.
#[derive(Debug, Clone)]
pub(crate) struct KeyEntry {
    pub(crate) key: Box<[u8]>,
    pub(crate) value: Value,
    /// Milliseconds since the epoch at which the key dies; [`NEVER`] for most.
    pub(crate) expires_at: i64,
    /// Seconds since the epoch (low bits) of the last access, for OBJECT IDLETIME and LRU.
    pub(crate) used_at: u32,
    /// Number of the timer that will look at the key; `expire.rs` alone reads and writes it.
    pub(crate) timer: u32,
}

impl KeyEntry {
    /// An entry that has just been made.
    pub(crate) fn new(key: &[u8], value: Value, expires_at: i64, used_at: u32) -> KeyEntry {
        KeyEntry { key: key.into(), value, expires_at, used_at, timer: NO_TIMER }
    }

    /// Is it past its deadline, or is every field of the hash?
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        self.expires_at <= now_ms || matches!(&self.value, Value::Hash(hash) if hash.is_due(now_ms))
    }
}

impl TableEntry for KeyEntry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// One of the numbered databases.
#[derive(Debug, Default)]
pub(crate) struct Db {
    pub(crate) keys: Table<KeyEntry>,
    /// Number of keys with a deadline.
    pub(crate) expiring: usize,
    /// Timers of those keys.
    pub(crate) timers: Timers,
    /// Timers of hashes that have fields with a deadline.
    pub(crate) field_timers: Timers,
    /// Sessions that WATCH a key. Belongs to the number, not to the content: SWAPDB leaves it.
    pub(crate) watched: HashMap<Box<[u8]>, Vec<SessionId>>,
    /// Sessions that wait for a key, in the order in which they came. Stays on SWAPDB too.
    pub(crate) waiting: HashMap<Box<[u8]>, BTreeMap<u64, SessionId>>,
}

impl Db {
    /// An empty database whose hashes depend on `seed`.
    pub(crate) fn with_seed(seed: u64) -> Db {
        Db { keys: Table::with_seed(seed), ..Db::default() }
    }
}

impl Core {
    /// Deletes the key if its deadline has passed, and fields whose deadline has. True if the key
    /// was deleted.
    pub(crate) fn expire_if_due(&mut self, db: usize, key: &[u8], now_ms: i64) -> bool {
        let Some(found) = self.dbs.get(db) else { return false };
        if found.expiring == 0 && found.field_timers.is_idle() {
            return false;
        }
        let Some(entry) = found.keys.get(key) else { return false };
        if entry.expires_at <= now_ms {
            self.expire_now(db, key);
            return true;
        }
        let gone = entry.is_due(now_ms);
        if entry.value.has_due_fields(now_ms) {
            self.expire_fields(db, key, now_ms, usize::MAX);
        }
        gone
    }

    /// Deletes a key whose deadline has passed, and says so. While clients are paused it stays,
    /// and nobody sees it.
    pub(crate) fn expire_now(&mut self, db: usize, key: &[u8]) {
        if self.keeps_expired {
            return;
        }
        let entry = self.remove_entry(db, key);
        if let Some(entry) = entry.filter(|_| self.lazyfree.expire) {
            self.free_entry(entry);
        }
        self.stats.expired_keys += 1;
        self.effects.push(db, &[b"DEL", key]);
        self.touch(db, key, None);
        self.notify(db, Class::Expired, "expired", key);
    }

    /// Takes a key out of the keyspace, without events. The one place where keys go.
    pub(crate) fn remove_entry(&mut self, db: usize, key: &[u8]) -> Option<KeyEntry> {
        let number = db;
        let db = self.dbs.get_mut(number)?;
        let entry = db.keys.remove(key)?;
        if entry.expires_at != NEVER {
            db.expiring -= 1;
        }
        db.forget_timers(&entry);
        self.memory_gone(number, &entry);
        self.stream_gone(number, &entry);
        Some(entry)
    }

    /// Wakes sessions that wait to read the stream with a group: the stream is gone.
    fn stream_gone(&mut self, db: usize, entry: &KeyEntry) {
        if matches!(entry.value, Value::Stream(_)) {
            self.key_ready(db, &entry.key);
        }
    }

    /// Puts a key into the keyspace, or another value into a key, without events but that the key
    /// is new. The one place where keys come. A former value is given back. Sessions that wait
    /// for the key will be looked at.
    pub(crate) fn put_value(
        &mut self,
        db: usize,
        key: &[u8],
        value: Value,
        expires_at: i64,
        now_ms: i64,
    ) -> Option<Value> {
        let number = db;
        let mut value = value;
        // It may come from another key.
        value.forget_field_timer();
        if matches!(value, Value::List(_) | Value::Zset(_) | Value::Stream(_)) {
            self.key_ready(number, key);
        }
        if self.memory.on {
            self.memory_before(number, key);
        }
        let used_at = memory::first_use(self.config.maxmemory_policy, now_ms);
        let db = self.dbs.get_mut(number)?;
        let (name, place) = db.keys.named_place(key);
        let Some(place) = place else {
            let mut entry = KeyEntry::new(key, value, expires_at, used_at);
            if expires_at != NEVER {
                db.expiring += 1;
                db.timers.arm(name, expires_at, &mut entry.timer, now_ms);
            }
            db.field_timers.arm_fields(name, &mut entry.value, now_ms);
            if self.memory.on {
                self.memory.used += memory::entry_size(&entry);
            }
            db.keys.insert_new(name, entry);
            self.notify(number, Class::New, "new", key);
            return None;
        };
        let entry = db.keys.at_mut(place)?;
        db.expiring += usize::from(expires_at != NEVER);
        db.expiring -= usize::from(entry.expires_at != NEVER);
        entry.expires_at = expires_at;
        entry.used_at = used_at;
        if expires_at != NEVER {
            db.timers.arm(name, expires_at, &mut entry.timer, now_ms);
        }
        let old = std::mem::replace(&mut entry.value, value);
        db.field_timers.disarm(name, old.field_timer());
        db.field_timers.arm_fields(name, &mut entry.value, now_ms);
        if matches!(old, Value::Stream(_)) {
            self.key_ready(number, key);
        }
        Some(old)
    }

    fn mark_used(&mut self, db: usize, place: TableSlot, now_ms: i64) {
        if self.config.maxmemory_policy.counts_uses() {
            let entry = self.dbs.get(db).and_then(|db| db.keys.at(place));
            let mark = entry.map_or(0, |entry| entry.used_at);
            let mark = self.next_use(mark, now_ms);
            if let Some(entry) = self.dbs.get_mut(db).and_then(|db| db.keys.at_mut(place)) {
                entry.used_at = mark;
            }
        } else if let Some(entry) = self.dbs.get_mut(db).and_then(|db| db.keys.at_mut(place)) {
            entry.used_at = (now_ms / 1000) as u32;
        }
    }

    /// The live entry of a key in any database, without marks, statistics or accounting.
    pub(crate) fn peek(&self, db: usize, key: &[u8], now_ms: i64) -> Option<&KeyEntry> {
        self.dbs.get(db)?.keys.get(key).filter(|entry| !entry.is_due(now_ms))
    }
}

impl Ctx<'_> {
    /// The number of the session's database.
    pub(crate) fn db_index(&self) -> usize {
        self.session.db
    }

    /// The session's database.
    pub(crate) fn db(&mut self) -> &mut Db {
        let index = self.session.db;
        // `SELECT` lets no other index in; the first database always exists.
        let index = if index < self.core.dbs.len() { index } else { 0 };
        #[expect(clippy::indexing_slicing, reason = "the index was checked on the line above")]
        &mut self.core.dbs[index]
    }

    /// The live entry of a key, for reading: counts hits and misses, marks it used.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Option<&KeyEntry> {
        let (db, now) = (self.session.db, self.now.ms());
        let core = &mut *self.core;
        let mut place = core.dbs.get(db)?.keys.place(key);
        if let Some(found) = place {
            let entry = core.dbs.get(db)?.keys.at(found)?;
            if entry.expires_at <= now {
                core.expire_now(db, key);
                place = None;
            } else if entry.value.has_due_fields(now) {
                core.expire_fields(db, key, now, usize::MAX);
                place = core.dbs.get(db)?.keys.place(key);
            }
        }
        let Some(place) = place else {
            core.stats.keyspace_misses += 1;
            core.notify(db, Class::KeyMiss, "keymiss", key);
            return None;
        };
        core.stats.keyspace_hits += 1;
        if !self.session.no_touch {
            core.mark_used(db, place, now);
        }
        core.dbs.get(db)?.keys.at(place)
    }

    /// As [`Ctx::entry`], but without marking it used (TTL, OBJECT, TYPE).
    pub(crate) fn entry_untouched(&mut self, key: &[u8]) -> Option<&KeyEntry> {
        let before = std::mem::replace(&mut self.session.no_touch, true);
        let found = self.entry(key).is_some();
        self.session.no_touch = before;
        if !found {
            return None;
        }
        self.db().keys.get(key)
    }

    /// The live entry of a key, for writing: no hit or miss is counted.
    pub(crate) fn entry_mut(&mut self, key: &[u8]) -> Option<&mut KeyEntry> {
        let place = self.place_mut(key)?;
        self.core.dbs.get_mut(self.session.db)?.keys.at_mut(place)
    }

    /// Returns the slot of the live entry of a key, for writing.
    fn place_mut(&mut self, key: &[u8]) -> Option<TableSlot> {
        let (db, now) = (self.session.db, self.now.ms());
        let core = &mut *self.core;
        let mut place = core.dbs.get(db)?.keys.place(key)?;
        let entry = core.dbs.get(db)?.keys.at(place)?;
        if entry.expires_at <= now {
            core.expire_now(db, key);
            return None;
        }
        if entry.value.has_due_fields(now) {
            core.expire_fields(db, key, now, usize::MAX);
            place = core.dbs.get(db)?.keys.place(key)?;
        }
        if core.memory.on {
            core.memory_before(db, key);
        }
        core.mark_used(db, place, now);
        Some(place)
    }

    /// Does the key exist? Counts no hit and does not mark it used.
    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        let (db, now) = (self.session.db, self.now.ms());
        !self.core.expire_if_due(db, key, now) && self.db().keys.contains(key)
    }

    /// The typed value of a key for reading; `WRONGTYPE` if it holds another type.
    pub(crate) fn read<K: ValueType>(&mut self, key: &[u8]) -> Result<Option<&K>, Error> {
        self.entry(key).map(|entry| K::of(&entry.value)).transpose()
    }

    /// The typed value of a key for writing, if it exists.
    pub(crate) fn write<K: ValueType>(&mut self, key: &[u8]) -> Result<Option<&mut K>, Error> {
        self.entry_mut(key).map(|entry| K::of_mut(&mut entry.value)).transpose()
    }

    /// The typed value of a key for writing, made with `make` when absent.
    /// A caller that creates one must leave it non-empty or call [`Ctx::drop_if`].
    pub(crate) fn write_or<K: ValueType>(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> K,
    ) -> Result<&mut K, Error> {
        let mut place = self.place_mut(key);
        if place.is_none() {
            self.put(key, make().into_value(), NEVER);
            if self.core.memory.on {
                self.core.memory_before(self.session.db, key);
            }
            place = self.db().keys.place(key);
        }
        match place.and_then(|place| self.db().keys.at_mut(place)) {
            Some(entry) => K::of_mut(&mut entry.value),
            None => Err(Error::fixed("ERR internal error: a key just added is gone")),
        }
    }

    /// Sets a key to a value with a deadline ([`NEVER`] for none), whatever it held before.
    /// Sends no events.
    pub(crate) fn put(&mut self, key: &[u8], value: Value, expires_at: i64) -> Option<Value> {
        let db = self.session.db;
        self.core.put_value(db, key, value, expires_at, self.now.ms())
    }

    /// Changes the deadline of a key that exists.
    pub(crate) fn set_deadline(&mut self, key: &[u8], expires_at: i64) -> bool {
        let now_ms = self.now.ms();
        let db = self.db();
        let (name, place) = db.keys.named_place(key);
        let Some(entry) = place.and_then(|place| db.keys.at_mut(place)) else { return false };
        let before = std::mem::replace(&mut entry.expires_at, expires_at);
        match (before == NEVER, expires_at == NEVER) {
            (true, false) => db.expiring += 1,
            (false, true) => db.expiring -= 1,
            _ => {}
        }
        if expires_at != NEVER {
            db.timers.arm(name, expires_at, &mut entry.timer, now_ms);
        }
        true
    }

    /// Sees to it that a hash whose fields got deadlines is looked at by the first of them.
    pub(crate) fn arm_fields(&mut self, key: &[u8]) {
        let now_ms = self.now.ms();
        let db = self.db();
        let (name, place) = db.keys.named_place(key);
        if let Some(entry) = place.and_then(|place| db.keys.at_mut(place)) {
            db.field_timers.arm_fields(name, &mut entry.value, now_ms);
        }
    }

    /// Deletes a key without events; true if it was there and alive.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.take(key).is_some()
    }

    /// As [`Ctx::remove`], and gives what was there.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<KeyEntry> {
        let (db, now) = (self.session.db, self.now.ms());
        if self.core.expire_if_due(db, key, now) {
            return None;
        }
        self.core.remove_entry(db, key)
    }

    /// Records a change of the key: counts it, invalidates WATCH and caches, publishes the event.
    pub(crate) fn changed(&mut self, class: Class, event: &str, key: &[u8]) {
        self.changed_by(1, class, event, key);
    }

    /// As [`Ctx::changed`], with `n` changes.
    pub(crate) fn changed_by(&mut self, n: u64, class: Class, event: &str, key: &[u8]) {
        let db = self.session.db;
        self.core.dirty += n;
        self.touched(db, key);
        self.core.notify(db, class, event, key);
    }

    /// Deletes the key if `empty` holds for it after a command took something out, and says so.
    pub(crate) fn drop_if(&mut self, key: &[u8], empty: bool) {
        if empty && self.remove(key) {
            let db = self.session.db;
            self.touched(db, key);
            self.core.notify(db, Class::Generic, "del", key);
        }
    }

    /// The running command changed a key: WATCHers are told, and those who hold it in a cache.
    pub(crate) fn touched(&mut self, db: usize, key: &[u8]) {
        // What a script changes, nobody in particular has changed.
        let by = (!self.session.in_script).then_some(self.session.id);
        self.core.touch(db, key, by);
    }
}
