//! Deadlines of single fields (HEXPIRE and its kin of Redis 7.4): structure, then commands.
//!
//! A hash gets a [`FieldDeadlines`] beside its fields when the first of them gets a deadline, and
//! is a table from then on; a hash without pays nothing. Nobody sees a field past its deadline:
//! every lookup of a key deletes those that are due first (`db.rs`), and the sweep deletes those
//! nobody asks for (`expire.rs`). Every name in `FieldDeadlines` is a field of the hash.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{Hash, HashLimits};
use crate::command::{CommandRow, Ctx, DENYOOM, FAST, READONLY, WRITE};
use crate::db::NEVER;
use crate::engine::Core;
use crate::error::Error;
use crate::expire::{NO_TIMER, Unit};
use crate::notify::Class;
use crate::value::Value;
use crate::{Reply, args, number};

/// The latest deadline a field can have, in milliseconds since the epoch, as in Redis.
pub(crate) const DEADLINE_MAX: i64 = (1 << 46) - 1;
/// Fields that one effect names at most.
const EFFECT_FIELDS: usize = 512;

/// Deadlines of the fields of a hash.
#[derive(Debug, Clone)]
pub(crate) struct FieldDeadlines {
    by_name: HashMap<Arc<[u8]>, i64>,
    by_time: BTreeSet<(i64, Arc<[u8]>)>,
    /// Bytes of all names.
    bytes: usize,
    /// Number of the timer that will look at the hash. Stays when the last deadline is lifted, so
    /// that setting and lifting in turn does not add timers.
    timer: u32,
}

impl FieldDeadlines {
    fn new() -> FieldDeadlines {
        FieldDeadlines {
            by_name: HashMap::new(),
            by_time: BTreeSet::new(),
            bytes: 0,
            timer: NO_TIMER,
        }
    }

    fn set(&mut self, name: &[u8], at_ms: i64) {
        let shared = match self.by_name.get_key_value(name) {
            Some((shared, before)) => {
                self.by_time.remove(&(*before, Arc::clone(shared)));
                Arc::clone(shared)
            }
            None => {
                self.bytes += name.len();
                Arc::from(name)
            }
        };
        self.by_name.insert(Arc::clone(&shared), at_ms);
        self.by_time.insert((at_ms, shared));
    }

    /// Lifts a deadline; true if there was one.
    pub(super) fn remove(&mut self, name: &[u8]) -> bool {
        let Some((shared, at_ms)) = self.by_name.remove_entry(name) else { return false };
        self.bytes -= shared.len();
        self.by_time.remove(&(at_ms, shared));
        true
    }

    fn first(&self) -> i64 {
        self.by_time.first().map_or(NEVER, |(at_ms, _)| *at_ms)
    }

    fn pop_due(&mut self, now_ms: i64) -> Option<Arc<[u8]>> {
        if self.first() > now_ms {
            return None;
        }
        let (_, name) = self.by_time.pop_first()?;
        self.by_name.remove(&name);
        self.bytes -= name.len();
        Some(name)
    }

    /// Bytes of heap, with its own box.
    pub(super) fn heap_size(&self) -> usize {
        /// An entry of each index with its share of empty places, and the counters of the `Arc`.
        const EACH: usize = (size_of::<(Arc<[u8]>, i64)>() + 1) * 8 / 7
            + size_of::<(i64, Arc<[u8]>)>() * 3 / 2
            + 2 * size_of::<usize>();
        size_of::<FieldDeadlines>() + self.bytes + self.by_name.len() * EACH
    }
}

impl Hash {
    fn deadlines(&self) -> Option<&FieldDeadlines> {
        match self {
            Hash::Packed(_) => None,
            Hash::Table(big) => big.deadlines.as_deref(),
        }
    }

    /// The deadline of a field, if it has one.
    pub(crate) fn deadline(&self, name: &[u8]) -> Option<i64> {
        self.deadlines()?.by_name.get(name).copied()
    }

    /// The first deadline of all fields; [`NEVER`] if none has one.
    pub(crate) fn next_deadline(&self) -> i64 {
        self.deadlines().map_or(NEVER, FieldDeadlines::first)
    }

    /// Will there be no field left at this moment?
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        self.deadlines().is_some_and(|deadlines| {
            deadlines.by_name.len() == self.len()
                && deadlines.by_time.last().is_some_and(|(last, _)| *last <= now_ms)
        })
    }

    /// Fields with a deadline, the first to die first.
    pub(crate) fn expiring(&self) -> impl Iterator<Item = (i64, &[u8])> {
        let all = self.deadlines().into_iter().flat_map(|deadlines| &deadlines.by_time);
        all.map(|(at_ms, name)| (*at_ms, &**name))
    }

    /// Gives a field that is there a deadline.
    pub(crate) fn set_deadline(&mut self, name: &[u8], at_ms: i64, limits: HashLimits) {
        let big = self.table(limits.seed);
        big.deadlines.get_or_insert_with(|| Box::new(FieldDeadlines::new())).set(name, at_ms);
    }

    /// Lifts the deadline of a field; true if it had one.
    pub(crate) fn clear_deadline(&mut self, name: &[u8]) -> bool {
        match self {
            Hash::Packed(_) => false,
            Hash::Table(big) => big.deadlines.as_mut().is_some_and(|all| all.remove(name)),
        }
    }

    /// As [`Hash::set`] for one field, whose deadline stays; returns it.
    pub(crate) fn set_and_keep_deadline(
        &mut self,
        name: &[u8],
        value: &[u8],
        limits: HashLimits,
    ) -> Option<i64> {
        let deadline = self.deadline(name);
        self.set(&[name, value], limits);
        if let Some(at_ms) = deadline {
            self.set_deadline(name, at_ms, limits);
        }
        deadline
    }

    /// Deletes up to `most` fields that are due; returns their names.
    fn take_due(&mut self, now_ms: i64, most: usize) -> Vec<Arc<[u8]>> {
        let Hash::Table(big) = self else { return Vec::new() };
        let mut due = Vec::new();
        while due.len() < most
            && let Some(name) = big.deadlines.as_mut().and_then(|all| all.pop_due(now_ms))
        {
            big.remove(&name);
            due.push(name);
        }
        due
    }
}

impl Value {
    /// Are there fields past their deadline?
    pub(crate) fn has_due_fields(&self, now_ms: i64) -> bool {
        matches!(self, Value::Hash(hash) if hash.next_deadline() <= now_ms)
    }

    /// The timer of the fields' deadlines; [`NO_TIMER`] for most values.
    pub(crate) fn field_timer(&self) -> u32 {
        match self {
            Value::Hash(hash) => hash.deadlines().map_or(NO_TIMER, |all| all.timer),
            _ => NO_TIMER,
        }
    }

    /// Returns the number of the timer and its deadline, if there is one.
    pub(crate) fn field_timer_mut(&mut self) -> Option<(i64, &mut u32)> {
        let Value::Hash(Hash::Table(big)) = self else { return None };
        let deadlines = big.deadlines.as_mut()?;
        let first = deadlines.first();
        (first != NEVER).then_some((first, &mut deadlines.timer))
    }

    /// The timer fired, or was another key's: it is not there any more.
    pub(crate) fn forget_field_timer(&mut self) {
        let Value::Hash(Hash::Table(big)) = self else { return };
        if let Some(deadlines) = &mut big.deadlines {
            deadlines.timer = NO_TIMER;
            if deadlines.by_name.is_empty() {
                big.deadlines = None;
            }
        }
    }
}

impl Core {
    /// Deletes up to `most` fields of a hash that are due, and the key with its last one, and says
    /// so. How many it were. A pause of clients does not hold this back: a field that only looks
    /// deleted would have to be hidden from every command.
    pub(crate) fn expire_fields(
        &mut self,
        db: usize,
        key: &[u8],
        now_ms: i64,
        most: usize,
    ) -> usize {
        if self.memory.on {
            self.memory_before(db, key);
        }
        let entry = self.dbs.get_mut(db).and_then(|db| db.keys.get_mut(key));
        let Some(Value::Hash(hash)) = entry.map(|entry| &mut entry.value) else { return 0 };
        let due = hash.take_due(now_ms, most);
        if due.is_empty() {
            return 0;
        }
        let is_empty = hash.len() == 0;
        self.stats.expired_fields += due.len() as u64;
        if is_empty {
            let entry = self.remove_entry(db, key);
            if let Some(entry) = entry.filter(|_| self.lazyfree.expire) {
                self.free_entry(entry);
            }
            self.effects.push(db, &[b"DEL", key]);
        } else if self.effects.enabled {
            for names in due.chunks(EFFECT_FIELDS) {
                let mut argv: Vec<&[u8]> = vec![b"HDEL", key];
                argv.extend(names.iter().map(|name| &**name));
                self.effects.push(db, &argv);
            }
        }
        self.touch(db, key, None);
        self.notify(db, Class::Hash, "hexpired", key);
        if is_empty {
            self.notify(db, Class::Generic, "del", key);
        }
        due.len()
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("hexpire", -6, WRITE | DENYOOM | FAST, hexpire).keys(1, 1, 1),
    CommandRow::new("hpexpire", -6, WRITE | DENYOOM | FAST, hpexpire).keys(1, 1, 1),
    CommandRow::new("hexpireat", -6, WRITE | DENYOOM | FAST, hexpireat).keys(1, 1, 1),
    CommandRow::new("hpexpireat", -6, WRITE | DENYOOM | FAST, hpexpireat).keys(1, 1, 1),
    CommandRow::new("httl", -5, READONLY | FAST, httl).keys(1, 1, 1),
    CommandRow::new("hpttl", -5, READONLY | FAST, hpttl).keys(1, 1, 1),
    CommandRow::new("hexpiretime", -5, READONLY | FAST, hexpiretime).keys(1, 1, 1),
    CommandRow::new("hpexpiretime", -5, READONLY | FAST, hpexpiretime).keys(1, 1, 1),
    CommandRow::new("hpersist", -5, WRITE | FAST, hpersist).keys(1, 1, 1),
];

/// The answer for a field that is not there.
const NO_FIELD: Reply = Reply::Int(-2);
/// The answer for a field without a deadline.
const NO_DEADLINE: Reply = Reply::Int(-1);

fn hexpire(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Seconds, ctx.now.ms(), "hexpire")
}

fn hpexpire(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Millis, ctx.now.ms(), "hpexpire")
}

fn hexpireat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Seconds, 0, "hexpireat")
}

fn hpexpireat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set(ctx, Unit::Millis, 0, "hpexpireat")
}

/// The moment an argument means that counts from `from_ms`.
pub(super) fn moment(
    argument: &[u8],
    unit: Unit,
    from_ms: i64,
    command: &str,
) -> Result<i64, Error> {
    let value = args::int(argument)?;
    if value < 0 {
        return Err(Error::fixed("ERR invalid expire time, must be >= 0"));
    }
    let ms = match unit {
        Unit::Seconds => value.checked_mul(1000),
        Unit::Millis => Some(value),
    };
    ms.and_then(|ms| ms.checked_add(from_ms))
        .filter(|at_ms| *at_ms <= DEADLINE_MAX)
        .ok_or_else(|| Error::new(format!("ERR invalid expire time in '{command}' command")))
}

/// Condition under which a field gets the deadline. No deadline counts as one that never comes.
#[derive(Debug, Clone, Copy)]
enum Condition {
    Always,
    /// `NX`
    Without,
    /// `XX`
    With,
    /// `GT`
    Later,
    /// `LT`
    Earlier,
}

impl Condition {
    fn parse(word: &[u8]) -> Condition {
        match () {
            () if args::is(word, "NX") => Condition::Without,
            () if args::is(word, "XX") => Condition::With,
            () if args::is(word, "GT") => Condition::Later,
            () if args::is(word, "LT") => Condition::Earlier,
            () => Condition::Always,
        }
    }

    fn holds(self, before: Option<i64>, at_ms: i64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Without => before.is_none(),
            Condition::With => before.is_some(),
            Condition::Later => before.is_some_and(|before| at_ms > before),
            Condition::Earlier => before.is_none_or(|before| at_ms < before),
        }
    }
}

/// The names behind `FIELDS` and their number, which stand from argument `at` on. `not_positive`
/// is said of a number that is none.
pub(super) fn names<'a>(
    argv: &'a [&'a [u8]],
    at: usize,
    not_positive: Error,
) -> Result<&'a [&'a [u8]], Error> {
    let (word, rest) = match argv.get(at..) {
        Some([word, rest @ ..]) => (*word, rest),
        _ => (&b""[..], &[][..]),
    };
    if !args::is(word, "FIELDS") {
        return Err(Error::fixed(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    let Some((count, names)) = rest.split_first() else { return Err(not_positive) };
    let count = number::parse_i64(count).filter(|count| *count > 0).ok_or(not_positive)?;
    if usize::try_from(count) != Ok(names.len()) {
        return Err(Error::fixed(
            "ERR The `numfields` parameter must match the number of arguments",
        ));
    }
    Ok(names)
}

fn set(ctx: &mut Ctx<'_>, unit: Unit, from_ms: i64, command: &str) -> Result<Reply, Error> {
    let (key, now_ms) = (ctx.arg(1), ctx.now.ms());
    // A key of another type is the first thing that is said, as in Redis.
    ctx.write::<Hash>(key)?;
    let at_ms = moment(ctx.arg(2), unit, from_ms, command)?;
    let condition = Condition::parse(ctx.arg(3));
    let fields_at = if matches!(condition, Condition::Always) { 3 } else { 4 };
    let not_positive = Error::fixed("ERR Parameter `numFields` should be greater than 0");
    let names = names(ctx.argv, fields_at, not_positive)?;
    let limits = HashLimits::of(&ctx.core.config);
    let Some(hash) = ctx.write::<Hash>(key)? else {
        return Ok(Reply::Array(vec![NO_FIELD; names.len()]));
    };
    let (mut updated, mut deleted): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
    let mut set_one = |name| {
        if hash.get(name).is_none() {
            return NO_FIELD;
        }
        if !condition.holds(hash.deadline(name), at_ms) {
            return Reply::Int(0);
        }
        if at_ms <= now_ms {
            hash.remove(name);
            deleted.push(name);
            return Reply::Int(2);
        }
        hash.set_deadline(name, at_ms, limits);
        updated.push(name);
        Reply::Int(1)
    };
    let replies = names.iter().map(|name| set_one(*name)).collect();
    let is_empty = hash.len() == 0;
    if !(updated.is_empty() && deleted.is_empty()) {
        ctx.arm_fields(key);
        ctx.core.stats.expired_fields += deleted.len() as u64;
        let event = if deleted.is_empty() { "hexpire" } else { "hdel" };
        ctx.changed_by((updated.len() + deleted.len()) as u64, Class::Hash, event, key);
        ctx.drop_if(key, is_empty);
        if !deleted.is_empty() {
            ctx.effect(&[&[b"HDEL", key], &deleted[..]].concat());
        }
        if !updated.is_empty() {
            let (at, count) = (number::format_i64(at_ms), updated.len().to_string());
            let head: [&[u8]; 5] = [b"HPEXPIREAT", key, &at, b"FIELDS", count.as_bytes()];
            ctx.effect(&[&head[..], &updated[..]].concat());
        }
    }
    Ok(Reply::Array(replies))
}

fn httl(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let now_ms = ctx.now.ms();
    when(ctx, |at_ms| (at_ms - now_ms + 999) / 1000)
}

fn hpttl(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let now_ms = ctx.now.ms();
    when(ctx, |at_ms| at_ms - now_ms)
}

fn hexpiretime(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    when(ctx, |at_ms| (at_ms + 999) / 1000)
}

fn hpexpiretime(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    when(ctx, |at_ms| at_ms)
}

pub(super) const NOT_POSITIVE: Error =
    Error::fixed("ERR Number of fields must be a positive integer");

fn when(ctx: &mut Ctx<'_>, show: impl Fn(i64) -> i64) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let hash = ctx.read::<Hash>(key)?;
    let one = |name: &&[u8]| match hash.filter(|hash| hash.get(name).is_some()) {
        None => NO_FIELD,
        Some(hash) => hash.deadline(name).map_or(NO_DEADLINE, |at_ms| Reply::Int(show(at_ms))),
    };
    Ok(Reply::Array(names(argv, 2, NOT_POSITIVE)?.iter().map(one).collect()))
}

fn hpersist(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let mut hash = ctx.write::<Hash>(key)?;
    let mut lifted = false;
    let mut one = |name: &&[u8]| match hash.as_mut().filter(|hash| hash.get(name).is_some()) {
        None => NO_FIELD,
        Some(hash) => {
            let had_one = hash.clear_deadline(name);
            lifted |= had_one;
            if had_one { Reply::Int(1) } else { NO_DEADLINE }
        }
    };
    let replies = names(argv, 2, NOT_POSITIVE)?.iter().map(&mut one).collect();
    if lifted {
        ctx.changed(Class::Hash, "hpersist", key);
    }
    Ok(Reply::Array(replies))
}
