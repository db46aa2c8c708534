//! Deadlines of keys: the index that says when to look at which key, the bounded sweep that
//! deletes what nobody asks for, and the TTL commands. A second index says when to look at which
//! hash that has fields with deadlines (`t_hash/expiry.rs`).
//!
//! A key has at most one timer, and it is never later than the key's deadline. Moving a deadline
//! into the future leaves the timer alone; when it fires and the key lives on, it is set again.
//! So refreshing a TTL costs nothing, and the index never holds more timers than there are keys.

use std::collections::BTreeMap;

use hashbrown::HashSet;

use crate::command::{CommandRow, Ctx, FAST, READONLY, WRITE};
use crate::db::{Db, KeyEntry, NEVER};
use crate::engine::Core;
use crate::error::Error;
use crate::notify::Class;
use crate::value::Value;
use crate::{Now, Reply, args, number};

/// The key has no timer.
pub(crate) const NO_TIMER: u32 = u32::MAX;
/// Timers of this many milliseconds share a bucket, which fires when all of them are due.
const BUCKET_MS: i64 = 32;
/// Largest step back of a clock after which sweeping is still on time.
const CLOCK_BACK_MS: i64 = 24 * 60 * 60 * 1000;
/// A bucket with more timers than this is searched by hash, not one by one.
const SMALL: usize = 32;

/// Timers: the time at which to look at each key, by the key's number in its table.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Buckets count from here, so that their numbers are small.
    base_ms: i64,
    buckets: BTreeMap<u32, TimerBucket>,
    /// Some keys with a deadline have no timer yet, because they were loaded: there is no time
    /// then.
    unarmed: bool,
}

#[derive(Debug)]
enum TimerBucket {
    Few(Vec<u64>),
    Many(HashSet<u64>),
}

impl TimerBucket {
    fn add(&mut self, name: u64) {
        match self {
            TimerBucket::Few(names) if names.len() < SMALL => names.push(name),
            TimerBucket::Few(names) => {
                *self = TimerBucket::Many(names.drain(..).chain([name]).collect());
            }
            TimerBucket::Many(names) => {
                names.insert(name);
            }
        }
    }

    fn remove(&mut self, name: u64) {
        match self {
            TimerBucket::Few(names) => {
                if let Some(at) = names.iter().position(|n| *n == name) {
                    names.swap_remove(at);
                }
            }
            TimerBucket::Many(names) => {
                names.remove(&name);
            }
        }
    }

    fn pop(&mut self) -> Option<u64> {
        match self {
            TimerBucket::Few(names) => names.pop(),
            TimerBucket::Many(names) => {
                let name = *names.iter().next()?;
                names.take(&name)
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            TimerBucket::Few(names) => names.is_empty(),
            TimerBucket::Many(names) => names.is_empty(),
        }
    }
}

impl Timers {
    /// Is there nothing that will have to be looked at?
    pub(crate) fn is_idle(&self) -> bool {
        self.buckets.is_empty() && !self.unarmed
    }

    /// Sees to it that the entry called `name` in its table is looked at by its deadline. `timer`
    /// is the one it has.
    pub(crate) fn arm(&mut self, name: u64, deadline_ms: i64, timer: &mut u32, now_ms: i64) {
        if now_ms <= 0 {
            self.unarmed = true;
            return;
        }
        if self.buckets.is_empty() {
            // No deadline to come lies before this, even if the clock is put back a little.
            self.base_ms = now_ms.saturating_sub(CLOCK_BACK_MS);
        }
        let number = deadline_ms.saturating_sub(self.base_ms).div_euclid(BUCKET_MS);
        let number = u32::try_from(number.max(0)).unwrap_or(NO_TIMER).min(NO_TIMER - 1);
        if *timer <= number {
            return;
        }
        self.disarm(name, *timer);
        *timer = number;
        self.buckets.entry(number).or_insert_with(|| TimerBucket::Few(Vec::new())).add(name);
    }

    /// As [`Timers::arm`], for the first deadline of the value's fields, if it has any.
    pub(crate) fn arm_fields(&mut self, name: u64, value: &mut Value, now_ms: i64) {
        if let Some((deadline_ms, timer)) = value.field_timer_mut() {
            self.arm(name, deadline_ms, timer, now_ms);
        }
    }

    /// Takes a timer out, if `number` is one.
    pub(crate) fn disarm(&mut self, name: u64, number: u32) {
        if number != NO_TIMER
            && let Some(bucket) = self.buckets.get_mut(&number)
        {
            bucket.remove(name);
            if bucket.is_empty() {
                self.buckets.remove(&number);
            }
        }
    }

    /// Any timer: the bucket at or behind a moment chosen by chance, and one of its timers.
    fn random(&self, rng: &mut fastrand::Rng) -> Option<(u32, u64)> {
        /// Steps into a bucket that has to be walked through.
        const STEPS: usize = 256;
        let (first, last) = (self.buckets.first_key_value()?.0, self.buckets.last_key_value()?.0);
        let (number, bucket) = self.buckets.range(rng.u32(*first..=*last)..).next()?;
        let name = match bucket {
            TimerBucket::Few(names) => names.get(rng.usize(..names.len().max(1))).copied(),
            TimerBucket::Many(names) => {
                names.iter().nth(rng.usize(..names.len().min(STEPS))).copied()
            }
        };
        Some((*number, name?))
    }

    /// The next timer that is due, taken out.
    fn pop(&mut self, now_ms: i64) -> Option<(u32, u64)> {
        let mut first = self.buckets.first_entry()?;
        let number = *first.key();
        let end = (i64::from(number) + 1).saturating_mul(BUCKET_MS) - 1;
        if self.base_ms.saturating_add(end) > now_ms {
            return None;
        }
        let name = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        Some((number, name?))
    }
}

impl Db {
    /// A few keys that have a deadline, chosen by chance.
    pub(crate) fn some_expiring(&self, rng: &mut fastrand::Rng, most: usize) -> Vec<&KeyEntry> {
        /// Tries for each key wanted. Where fewer have a deadline, their timers name them.
        const TRIES: usize = 16;
        let mut found = Vec::with_capacity(most);
        if self.expiring.saturating_mul(TRIES) >= self.keys.len() || self.timers.unarmed {
            for _ in 0..most * TRIES {
                if found.len() >= most {
                    break;
                }
                found.extend(self.keys.random(rng).filter(|entry| entry.expires_at != NEVER));
            }
            return found;
        }
        // Timers of keys that have lost their deadline stay until they fire: look a bit further.
        for _ in 0..most * 4 {
            let named = self.timers.random(rng);
            let Some((number, name)) = named.filter(|_| found.len() < most) else { break };
            found.extend(self.keys.named(name, |e| e.timer == number && e.expires_at != NEVER));
        }
        found
    }

    /// A few of the keys whose timers fire first. Their deadlines are about the next to come: a
    /// timer is never later than the deadline.
    pub(crate) fn first_expiring(&self, most: usize) -> Vec<&KeyEntry> {
        let names = self.timers.buckets.iter().flat_map(|(number, bucket)| {
            let names: Vec<u64> = match bucket {
                TimerBucket::Few(names) => names.clone(),
                TimerBucket::Many(names) => names.iter().take(most).copied().collect(),
            };
            names.into_iter().map(|name| (*number, name))
        });
        let live = |(number, name): (u32, u64)| {
            self.keys.named(name, |e| e.timer == number && e.expires_at != NEVER)
        };
        names.take(most * 4).filter_map(live).take(most).collect()
    }

    /// Gives a timer to every key that was loaded with a deadline, now that it is known what time
    /// it is.
    fn arm_loaded(&mut self, now_ms: i64) {
        if now_ms <= 0 || !(self.timers.unarmed || self.field_timers.unarmed) {
            return;
        }
        self.timers.unarmed = false;
        self.field_timers.unarmed = false;
        for (name, entry) in self.keys.iter_named_mut() {
            if entry.expires_at != NEVER && entry.timer == NO_TIMER {
                self.timers.arm(name, entry.expires_at, &mut entry.timer, now_ms);
            }
            self.field_timers.arm_fields(name, &mut entry.value, now_ms);
        }
    }

    /// The entry is gone: so are its timers.
    pub(crate) fn forget_timers(&mut self, entry: &KeyEntry) {
        let of_fields = entry.value.field_timer();
        if entry.timer != NO_TIMER || of_fields != NO_TIMER {
            let name = self.keys.name_of(&entry.key);
            self.timers.disarm(name, entry.timer);
            self.field_timers.disarm(name, of_fields);
        }
    }
}

impl Core {
    /// Looks at no more than `budget` keys and fields whose timers fired, and deletes those that
    /// are due. How many it looked at.
    pub(crate) fn sweep(&mut self, now: Now, budget: usize) -> usize {
        let now_ms = now.ms();
        let mut left = budget;
        for number in 0..self.dbs.len() {
            if let Some(db) = self.dbs.get_mut(number) {
                db.arm_loaded(now_ms);
            }
            while let Some(db) = self.dbs.get_mut(number) {
                if left == 0 {
                    return budget;
                }
                let Some((bucket, name)) = db.timers.pop(now_ms) else { break };
                left -= 1;
                let Some(entry) = db.keys.named(name, |entry| entry.timer == bucket) else {
                    continue;
                };
                let key = entry.key.clone();
                let Some(entry) = db.keys.get_mut(&key) else { continue };
                entry.timer = NO_TIMER;
                if entry.expires_at <= now_ms {
                    self.expire_now(number, &key);
                } else if entry.expires_at != NEVER {
                    db.timers.arm(name, entry.expires_at, &mut entry.timer, now_ms);
                }
            }
            self.sweep_fields(number, now_ms, &mut left);
        }
        budget - left
    }

    /// Deletes fields that are due, as long as something is left of the budget. A hash with more of
    /// them than that gets its timer back and is the next to be looked at.
    fn sweep_fields(&mut self, number: usize, now_ms: i64, left: &mut usize) {
        while *left > 0
            && let Some(db) = self.dbs.get_mut(number)
            && let Some((bucket, name)) = db.field_timers.pop(now_ms)
        {
            let found = db.keys.named(name, |entry| entry.value.field_timer() == bucket);
            let Some(key) = found.map(|entry| entry.key.clone()) else {
                *left -= 1;
                continue;
            };
            if let Some(entry) = db.keys.get_mut(&key) {
                entry.value.forget_field_timer();
            }
            *left -= self.expire_fields(number, &key, now_ms, *left).max(1);
            if let Some(db) = self.dbs.get_mut(number)
                && let Some(entry) = db.keys.get_mut(&key)
            {
                db.field_timers.arm_fields(name, &mut entry.value, now_ms);
            }
        }
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("expire", -3, WRITE | FAST, expire).keys(1, 1, 1),
    CommandRow::new("pexpire", -3, WRITE | FAST, pexpire).keys(1, 1, 1),
    CommandRow::new("expireat", -3, WRITE | FAST, expireat).keys(1, 1, 1),
    CommandRow::new("pexpireat", -3, WRITE | FAST, pexpireat).keys(1, 1, 1),
    CommandRow::new("ttl", 2, READONLY | FAST, ttl).keys(1, 1, 1),
    CommandRow::new("pttl", 2, READONLY | FAST, pttl).keys(1, 1, 1),
    CommandRow::new("expiretime", 2, READONLY | FAST, expiretime).keys(1, 1, 1),
    CommandRow::new("pexpiretime", 2, READONLY | FAST, pexpiretime).keys(1, 1, 1),
    CommandRow::new("persist", 2, WRITE | FAST, persist).keys(1, 1, 1),
];

/// Milliseconds in a unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Millis,
}

/// The moment an argument like `EX 10` or `PXAT 1700000000000` means, in milliseconds since the
/// epoch. `from_ms` is now for a span and 0 for a moment. Refuses what is not positive if
/// `positive`, and what overflows, in the words of Redis.
pub(crate) fn deadline(
    argument: &[u8],
    unit: Unit,
    from_ms: i64,
    positive: bool,
    command: &str,
) -> Result<i64, Error> {
    let invalid = || Error::new(format!("ERR invalid expire time in '{command}' command"));
    let value = args::int(argument)?;
    if positive && value <= 0 {
        return Err(invalid());
    }
    let value = match unit {
        Unit::Seconds => value.checked_mul(1000).ok_or_else(invalid)?,
        Unit::Millis => value,
    };
    value.checked_add(from_ms).ok_or_else(invalid)
}

fn expire(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Seconds, true, "expire")
}

fn pexpire(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Millis, true, "pexpire")
}

fn expireat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Seconds, false, "expireat")
}

fn pexpireat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Millis, false, "pexpireat")
}

#[derive(Debug, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

fn conditions(words: &[&[u8]]) -> Result<Conditions, Error> {
    let mut found = Conditions::default();
    for word in words {
        match () {
            () if args::is(word, "NX") => found.nx = true,
            () if args::is(word, "XX") => found.xx = true,
            () if args::is(word, "GT") => found.gt = true,
            () if args::is(word, "LT") => found.lt = true,
            () => return Err(Error::about("ERR Unsupported option ", word, "")),
        }
    }
    if found.nx && (found.xx || found.gt || found.lt) {
        return Err(Error::fixed(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if found.gt && found.lt {
        return Err(Error::fixed("ERR GT and LT options at the same time are not compatible"));
    }
    Ok(found)
}

fn set(ctx: &mut Ctx<'_>, unit: Unit, span: bool, command: &str) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let now_ms = ctx.now.ms();
    let conditions = conditions(ctx.argv.get(3..).unwrap_or_default())?;
    let from = if span { now_ms } else { 0 };
    let at = deadline(ctx.arg(2), unit, from, false, command)?;
    let Some(entry) = ctx.entry_mut(key) else { return Ok(Reply::Int(0)) };
    let current = entry.expires_at;
    let refused = (conditions.nx && current != NEVER)
        || (conditions.xx && current == NEVER)
        || (conditions.gt && (current == NEVER || at <= current))
        || (conditions.lt && current != NEVER && at >= current);
    if refused {
        return Ok(Reply::Int(0));
    }
    if at <= now_ms {
        ctx.remove(key);
        ctx.changed(Class::Generic, "del", key);
        ctx.effect(&[b"DEL", key]);
    } else {
        // A deadline at the very end of time is none to the keyspace.
        ctx.set_deadline(key, at.min(NEVER - 1));
        ctx.changed(Class::Generic, "expire", key);
        ctx.effect(&[b"PEXPIREAT", key, &number::format_i64(at)]);
    }
    Ok(Reply::Int(1))
}

fn ttl(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let now_ms = ctx.now.ms();
    when(ctx, |at| ((at - now_ms).max(0) + 500) / 1000)
}

fn pttl(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let now_ms = ctx.now.ms();
    when(ctx, |at| (at - now_ms).max(0))
}

fn expiretime(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    when(ctx, |at| at.saturating_add(500) / 1000)
}

fn pexpiretime(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    when(ctx, |at| at)
}

/// Asking for a deadline is no use of the key.
fn when(ctx: &mut Ctx<'_>, show: impl Fn(i64) -> i64) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(Reply::Int(match ctx.entry_untouched(key).map(|entry| entry.expires_at) {
        None => -2,
        Some(NEVER) => -1,
        Some(at) => show(at),
    }))
}

fn persist(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let has_deadline = ctx.entry_mut(key).is_some_and(|entry| entry.expires_at != NEVER);
    if has_deadline {
        ctx.set_deadline(key, NEVER);
        ctx.changed(Class::Generic, "persist", key);
    }
    Ok(has_deadline.into())
}
