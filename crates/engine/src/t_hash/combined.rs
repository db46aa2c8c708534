//! Commands of Redis 8 that read or set fields and change their deadlines in one step: HGETDEL,
//! HGETEX, HSETEX.

use super::expiry::{NOT_POSITIVE, moment, names};
use super::{Hash, HashLimits, bulk};
use crate::command::{CommandRow, Ctx, DENYOOM, FAST, WRITE};
use crate::error::Error;
use crate::expire::Unit;
use crate::notify::Class;
use crate::{Reply, args, number};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("hgetdel", -5, WRITE | FAST, hgetdel).keys(1, 1, 1),
    CommandRow::new("hgetex", -5, WRITE | FAST, hgetex).keys(1, 1, 1),
    CommandRow::new("hsetex", -6, WRITE | DENYOOM | FAST, hsetex).keys(1, 1, 1),
];

/// Change of deadlines that a command asks for.
#[derive(Debug, Clone, Copy)]
enum DeadlineChange {
    /// HGETEX leaves deadlines alone, HSETEX lifts them.
    Unsaid,
    /// `KEEPTTL`
    Keep,
    /// `PERSIST`
    Lift,
    /// `EX`, `PX`, `EXAT` or `PXAT`: this moment in milliseconds since the epoch.
    Set(i64),
}

/// Reads `EX seconds` and its kin from argument `at` on; `None` if the word is another.
fn deadline(ctx: &Ctx<'_>, at: usize, command: &str) -> Option<Result<i64, Error>> {
    let (word, now_ms) = (ctx.argv.get(at)?, ctx.now.ms());
    let (unit, from_ms) = match () {
        () if args::is(word, "EX") => (Unit::Seconds, now_ms),
        () if args::is(word, "PX") => (Unit::Millis, now_ms),
        () if args::is(word, "EXAT") => (Unit::Seconds, 0),
        () if args::is(word, "PXAT") => (Unit::Millis, 0),
        () => return None,
    };
    Some(match ctx.argv.get(at + 1) {
        Some(argument) => moment(argument, unit, from_ms, command),
        None => Err(Error::fixed("ERR missing expire time")),
    })
}

/// Records `HPEXPIREAT` for these fields.
fn effect_of_deadline(ctx: &mut Ctx<'_>, key: &[u8], at_ms: i64, names: &[&[u8]]) {
    let (at, count) = (number::format_i64(at_ms), names.len().to_string());
    let head: [&[u8]; 5] = [b"HPEXPIREAT", key, &at, b"FIELDS", count.as_bytes()];
    ctx.effect(&[&head[..], names].concat());
}

fn hgetdel(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    // A key of another type is the first thing that is said, as in Redis.
    let hash = ctx.write::<Hash>(key)?;
    let names = names(argv, 2, NOT_POSITIVE)?;
    let Some(hash) = hash else { return Ok(Reply::Array(vec![Reply::Nil; names.len()])) };
    let mut deleted: Vec<&[u8]> = Vec::new();
    let mut take = |name| {
        let Some(value) = hash.get(name).map(bulk) else { return Reply::Nil };
        hash.remove(name);
        deleted.push(name);
        value
    };
    let values = names.iter().map(|name| take(*name)).collect();
    let is_empty = hash.len() == 0;
    if !deleted.is_empty() {
        ctx.changed_by(deleted.len() as u64, Class::Hash, "hdel", key);
        ctx.drop_if(key, is_empty);
        ctx.effect(&[&[b"HDEL", key], &deleted[..]].concat());
    }
    Ok(Reply::Array(values))
}

fn hgetex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv, now_ms) = (ctx.arg(1), ctx.argv, ctx.now.ms());
    ctx.write::<Hash>(key)?;
    let (change, fields_at) = match deadline(ctx, 2, "hgetex") {
        Some(at_ms) => (DeadlineChange::Set(at_ms?), 4),
        None if args::is(ctx.arg(2), "PERSIST") => (DeadlineChange::Lift, 3),
        None => (DeadlineChange::Unsaid, 2),
    };
    let names = names(argv, fields_at, NOT_POSITIVE)?;
    let limits = HashLimits::of(&ctx.core.config);
    let Some(hash) = ctx.write::<Hash>(key)? else {
        return Ok(Reply::Array(vec![Reply::Nil; names.len()]));
    };
    let mut changed: Vec<&[u8]> = Vec::new();
    let mut read = |name| {
        let Some(value) = hash.get(name).map(bulk) else { return Reply::Nil };
        let did = match change {
            DeadlineChange::Unsaid | DeadlineChange::Keep => false,
            DeadlineChange::Lift => hash.clear_deadline(name),
            DeadlineChange::Set(at_ms) if at_ms <= now_ms => hash.remove(name),
            DeadlineChange::Set(at_ms) => {
                hash.set_deadline(name, at_ms, limits);
                true
            }
        };
        if did {
            changed.push(name);
        }
        value
    };
    let values = names.iter().map(|name| read(*name)).collect();
    let is_empty = hash.len() == 0;
    if changed.is_empty() {
        return Ok(Reply::Array(values));
    }
    let count = changed.len() as u64;
    match change {
        DeadlineChange::Set(at_ms) if at_ms <= now_ms => {
            ctx.core.stats.expired_fields += count;
            ctx.changed_by(count, Class::Hash, "hdel", key);
            ctx.drop_if(key, is_empty);
            ctx.effect(&[&[b"HDEL", key], &changed[..]].concat());
        }
        DeadlineChange::Set(at_ms) => {
            ctx.arm_fields(key);
            ctx.changed_by(count, Class::Hash, "hexpire", key);
            effect_of_deadline(ctx, key, at_ms, &changed);
        }
        _ => {
            ctx.changed_by(count, Class::Hash, "hpersist", key);
            let count = count.to_string();
            let head: [&[u8]; 4] = [b"HPERSIST", key, b"FIELDS", count.as_bytes()];
            ctx.effect(&[&head[..], &changed[..]].concat());
        }
    }
    Ok(Reply::Array(values))
}

/// The fields HSETEX may set.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FieldCondition {
    Any,
    /// `FXX`: all of them are there.
    Present,
    /// `FNX`: none of them is there.
    Absent,
}

/// The arguments of an HSETEX.
struct SetRequest<'a> {
    condition: FieldCondition,
    change: DeadlineChange,
    /// Names and values in turn.
    pairs: &'a [&'a [u8]],
}

impl<'a> SetRequest<'a> {
    fn read(ctx: &Ctx<'a>) -> Result<SetRequest<'a>, Error> {
        let arity = || Error::arity("hsetex");
        let (mut condition, mut change) = (FieldCondition::Any, DeadlineChange::Unsaid);
        let mut at = 2;
        while let Some(word) = ctx.argv.get(at) {
            let is_free = matches!(change, DeadlineChange::Unsaid);
            let two_deadlines = Error::fixed(
                "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
            );
            let wanted = match () {
                () if args::is(word, "FXX") => Some(FieldCondition::Present),
                () if args::is(word, "FNX") => Some(FieldCondition::Absent),
                () => None,
            };
            if args::is(word, "FIELDS") {
                let [count, pairs @ ..] = ctx.argv.get(at + 1..).unwrap_or_default() else {
                    return Err(arity());
                };
                if pairs.len() < 2 {
                    return Err(arity());
                }
                let count = number::parse_i64(count)
                    .filter(|count| (1..=i64::from(i32::MAX)).contains(count))
                    .ok_or(Error::fixed("ERR invalid number of fields"))?;
                if usize::try_from(count * 2) != Ok(pairs.len()) {
                    return Err(arity());
                }
                return Ok(SetRequest { condition, change, pairs });
            } else if let Some(wanted) = wanted {
                if condition != FieldCondition::Any {
                    return Err(Error::fixed(
                        "ERR Only one of FXX or FNX arguments can be specified",
                    ));
                }
                condition = wanted;
                at += 1;
            } else if args::is(word, "KEEPTTL") {
                if !is_free {
                    return Err(two_deadlines);
                }
                change = DeadlineChange::Keep;
                at += 1;
            } else if let Some(at_ms) = deadline(ctx, at, "hsetex") {
                if !is_free {
                    return Err(two_deadlines);
                }
                change = DeadlineChange::Set(at_ms?);
                at += 2;
            } else {
                let word = String::from_utf8_lossy(word);
                return Err(Error::new(format!("ERR unknown argument: {word}")));
            }
        }
        Err(arity())
    }
}

fn hsetex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, now_ms) = (ctx.arg(1), ctx.now.ms());
    let SetRequest { condition, change, pairs } = SetRequest::read(ctx)?;
    let limits = HashLimits::of(&ctx.core.config);
    let names: Vec<&[u8]> = pairs.iter().copied().step_by(2).collect();
    let hash = ctx.write::<Hash>(key)?;
    let is_there = |name: &&[u8]| hash.as_ref().is_some_and(|hash| hash.get(name).is_some());
    let holds = match condition {
        FieldCondition::Any => true,
        FieldCondition::Present => names.iter().all(is_there),
        FieldCondition::Absent => !names.iter().any(is_there),
    };
    if !holds {
        return Ok(Reply::Int(0));
    }
    let hash = ctx.write_or(key, Hash::default)?;
    let mut is_past = false;
    match change {
        DeadlineChange::Keep => {
            for pair in pairs.chunks_exact(2) {
                hash.set_and_keep_deadline(pair[0], pair[1], limits);
            }
        }
        DeadlineChange::Set(at_ms) => {
            hash.set(pairs, limits);
            is_past = at_ms <= now_ms;
            for name in &names {
                if is_past {
                    hash.remove(name);
                } else {
                    hash.set_deadline(name, at_ms, limits);
                }
            }
        }
        DeadlineChange::Unsaid | DeadlineChange::Lift => {
            hash.set(pairs, limits);
        }
    }
    let is_empty = hash.len() == 0;
    ctx.changed_by(names.len() as u64, Class::Hash, "hset", key);
    if let DeadlineChange::Set(at_ms) = change {
        let event = if is_past { "hdel" } else { "hexpire" };
        let db = ctx.session.db;
        ctx.core.notify(db, Class::Hash, event, key);
        if is_past {
            ctx.core.stats.expired_fields += names.len() as u64;
            ctx.drop_if(key, is_empty);
            ctx.effect(&[&[b"HDEL", key], &names[..]].concat());
        } else {
            ctx.arm_fields(key);
            ctx.effect(&[&[b"HSET", key], pairs].concat());
            effect_of_deadline(ctx, key, at_ms, &names);
        }
    }
    Ok(Reply::Int(1))
}
