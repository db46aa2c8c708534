//! The keyspace: lookup for reading and writing, adding, deleting; expiry on access.
//!
//! Nobody sees a key past its deadline: every lookup through [`Ctx`] checks it first and deletes
//! what is due. Commands reach keys only through the methods of `Ctx` below, and say what they
//! changed with [`Ctx::changed`] or [`Ctx::changed_by`], which is what wakes WATCHers, counts as
//! dirty and sends keyspace events.

use crate::command::Ctx;
use crate::engine::Core;
use crate::error::Error;
use crate::notify::Class;
use crate::table::{Keyed, Table};
use crate::value::{Kind, Value};

/// No deadline.
pub(crate) const NEVER: i64 = i64::MAX;

/// One key with its value, deadline and age.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Box<[u8]>,
    pub(crate) value: Value,
    /// Milliseconds since the epoch at which the key dies; [`NEVER`] for most.
    pub(crate) expires_at: i64,
    /// Seconds since the epoch (low bits) of the last access, for OBJECT IDLETIME and LRU.
    pub(crate) used_at: u32,
    /// Bytes accounted for this entry when memory is limited.
    pub(crate) size: u32,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// One of the numbered databases.
#[derive(Debug, Default)]
pub(crate) struct Db {
    pub(crate) keys: Table<Entry>,
    /// How many keys have a deadline.
    pub(crate) expiring: usize,
}

impl Core {
    /// Deletes the key if its deadline has passed. True if it was deleted.
    pub(crate) fn expire_if_due(&mut self, db: usize, key: &[u8], now_ms: i64) -> bool {
        let due = self.dbs.get(db).is_some_and(|d| {
            d.expiring > 0 && d.keys.get(key).is_some_and(|entry| entry.expires_at <= now_ms)
        });
        if due {
            self.remove_entry(db, key);
            self.stats.expired_keys += 1;
            self.effects.push(db, &[b"DEL", key]);
            self.touch(db, key);
            self.notify(db, Class::Expired, "expired", key);
        }
        due
    }

    /// Takes a key out of the keyspace, without events. The one place where keys go.
    pub(crate) fn remove_entry(&mut self, db: usize, key: &[u8]) -> Option<Entry> {
        let db = self.dbs.get_mut(db)?;
        let entry = db.keys.remove(key)?;
        if entry.expires_at != NEVER {
            db.expiring -= 1;
        }
        Some(entry)
    }

    /// Puts a key into the keyspace, without events. The one place where keys come.
    /// A former value is given back.
    pub(crate) fn insert_entry(&mut self, db: usize, entry: Entry) -> Option<Entry> {
        let db = self.dbs.get_mut(db)?;
        if entry.expires_at != NEVER {
            db.expiring += 1;
        }
        let old = db.keys.insert(entry);
        if old.as_ref().is_some_and(|entry| entry.expires_at != NEVER) {
            db.expiring -= 1;
        }
        old
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
    pub(crate) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (db, now) = (self.session.db, self.now.ms());
        self.core.expire_if_due(db, key, now);
        let core = &mut *self.core;
        let found = core.dbs.get_mut(db)?.keys.get_mut(key);
        match found {
            Some(entry) => {
                core.stats.keyspace_hits += 1;
                entry.used_at = (now / 1000) as u32;
                Some(entry)
            }
            None => {
                core.stats.keyspace_misses += 1;
                None
            }
        }
    }

    /// The live entry of a key, for writing: no hit or miss is counted.
    pub(crate) fn entry_mut(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (db, now) = (self.session.db, self.now.ms());
        self.core.expire_if_due(db, key, now);
        let entry = self.core.dbs.get_mut(db)?.keys.get_mut(key)?;
        entry.used_at = (now / 1000) as u32;
        Some(entry)
    }

    /// Does the key exist? Counts no hit and does not mark it used.
    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        let (db, now) = (self.session.db, self.now.ms());
        self.core.expire_if_due(db, key, now);
        self.db().keys.contains(key)
    }

    /// The typed value of a key for reading; `WRONGTYPE` if it holds another type.
    pub(crate) fn read<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&K>, Error> {
        self.entry(key).map(|entry| K::of(&entry.value)).transpose()
    }

    /// The typed value of a key for writing, if it exists.
    pub(crate) fn write<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&mut K>, Error> {
        self.entry_mut(key).map(|entry| K::of_mut(&mut entry.value)).transpose()
    }

    /// The typed value of a key for writing, made with `make` when absent.
    /// Whoever makes one must leave it non-empty or call [`Ctx::drop_if`].
    pub(crate) fn write_or<K: Kind>(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> K,
    ) -> Result<&mut K, Error> {
        if self.entry_mut(key).is_none() {
            self.put(key, make().into_value(), NEVER);
        }
        match self.db().keys.get_mut(key) {
            Some(entry) => K::of_mut(&mut entry.value),
            None => Err(Error::fixed("ERR internal error: a key just added is gone")),
        }
    }

    /// Sets a key to a value with a deadline ([`NEVER`] for none), whatever it held before.
    /// Sends no events.
    pub(crate) fn put(&mut self, key: &[u8], value: Value, expires_at: i64) -> Option<Entry> {
        let (db, used_at) = (self.session.db, (self.now.ms() / 1000) as u32);
        self.core.insert_entry(db, Entry { key: key.into(), value, expires_at, used_at, size: 0 })
    }

    /// Changes the deadline of a key that exists.
    pub(crate) fn set_deadline(&mut self, key: &[u8], expires_at: i64) -> bool {
        let db = self.db();
        let Some(entry) = db.keys.get_mut(key) else { return false };
        let before = std::mem::replace(&mut entry.expires_at, expires_at);
        match (before == NEVER, expires_at == NEVER) {
            (true, false) => db.expiring += 1,
            (false, true) => db.expiring -= 1,
            _ => {}
        }
        true
    }

    /// Deletes a key without events; true if it was there and alive.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let (db, now) = (self.session.db, self.now.ms());
        self.core.expire_if_due(db, key, now);
        self.core.remove_entry(db, key).is_some()
    }

    /// A command changed the key: one more dirty, WATCHers are told, the event is sent.
    pub(crate) fn changed(&mut self, class: Class, event: &str, key: &[u8]) {
        self.changed_by(1, class, event, key);
    }

    /// As [`Ctx::changed`], with `n` changes.
    pub(crate) fn changed_by(&mut self, n: u64, class: Class, event: &str, key: &[u8]) {
        let db = self.session.db;
        self.core.dirty += n;
        self.core.touch(db, key);
        self.core.notify(db, class, event, key);
    }

    /// Deletes the key if `empty` holds for it after a command took something out, and says so.
    pub(crate) fn drop_if(&mut self, key: &[u8], empty: bool) {
        if empty && self.remove(key) {
            let db = self.session.db;
            self.core.touch(db, key);
            self.core.notify(db, Class::Generic, "del", key);
        }
    }
}
