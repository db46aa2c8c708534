//! The set type: structure, then its API, then its commands.
//!
//! A set of integers is an [`Ints`] (`intset`) up to the configured size. Any other set is called
//! `hashtable`, as in Redis, but lies in one [`Pack`] while it is small.

mod ints;

use std::collections::HashSet;

use crate::Reply;
use crate::admin::config::Config;
use crate::args;
use crate::command::{CommandRow, Ctx, DENYOOM, FAST, MOVABLE_KEYS, READONLY, WRITE};
use crate::db::NEVER;
use crate::engine::Core;
use crate::error::{Error, NOT_POSITIVE, SYNTAX};
use crate::notify::Class;
use crate::number;
use crate::pack::{Code, Elem, Pack};
use crate::scan::{self, ScanRequest};
use crate::t_hash::{REPEATED_MAX, TOO_OFTEN, sample};
use crate::table::{Table, TableEntry};
use crate::value::{Value, ValueType};
use ints::Ints;

/// Members up to which a set that is no `intset` stays packed.
const PACKED_MEMBERS: usize = 64;
/// Bytes of a member up to which it stays packed.
const PACKED_BYTES: usize = 128;

/// A set.
#[derive(Debug, Clone)]
pub(crate) enum Set {
    Ints(Ints),
    Packed(Pack),
    Table(Box<LargeSet>),
}

/// A large set.
#[derive(Debug, Clone)]
pub(crate) struct LargeSet {
    members: Table<Member>,
    /// Bytes of heap of all members.
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Member(Box<[u8]>);

impl TableEntry for Member {
    fn key(&self) -> &[u8] {
        &self.0
    }
}

/// The limit of an `intset`, and what a table needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetLimits {
    ints: usize,
    seed: u64,
}

impl SetLimits {
    /// The limits for sets.
    pub(crate) fn of(config: &Config) -> SetLimits {
        SetLimits { ints: config.set_max_intset_entries.min(1 << 30), seed: config.seed }
    }
}

impl Default for Set {
    fn default() -> Set {
        Set::Ints(Ints::default())
    }
}

impl Set {
    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.len(),
            Set::Packed(pack) => pack.len(),
            Set::Table(big) => big.members.len(),
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        if let Set::Ints(_) = self { "intset" } else { "hashtable" }
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.heap_size(),
            Set::Packed(pack) => pack.heap_size(),
            Set::Table(big) => {
                size_of::<LargeSet>()
                    + big.bytes
                    + big.members.len() * (size_of::<Member>() + 1) * 4 / 3
            }
        }
    }

    /// Is this a member?
    pub(crate) fn contains(&self, member: &[u8]) -> bool {
        match self {
            Set::Ints(ints) => number::parse_i64(member).is_some_and(|n| ints.contains(n)),
            Set::Packed(pack) => pack.find(&Code::of(member), None, 1).is_some(),
            Set::Table(big) => big.members.contains(member),
        }
    }

    fn contains_elem(&self, elem: Elem<'_>) -> bool {
        match (self, elem) {
            (Set::Ints(ints), Elem::Int(n)) => ints.contains(n),
            _ => self.contains(elem.bytes(&mut [0; 36])),
        }
    }

    /// Puts a member in; true if it is new.
    pub(crate) fn add(&mut self, member: &[u8], limits: SetLimits) -> bool {
        if let Set::Ints(ints) = self {
            if let Some(n) = number::parse_i64(member) {
                let new = ints.insert(n);
                if new && ints.len() > limits.ints {
                    self.leave_ints(limits);
                }
                return new;
            }
            self.leave_ints(limits);
        }
        if let Set::Packed(pack) = self {
            let code = Code::of(member);
            if pack.find(&code, None, 1).is_some() {
                return false;
            }
            if pack.len() < PACKED_MEMBERS && member.len() <= PACKED_BYTES {
                pack.edit(code.len()).push(&code);
                return true;
            }
            let mut big = LargeSet { members: Table::with_seed(limits.seed), bytes: 0 };
            for elem in pack.iter() {
                big.add(elem.bytes(&mut [0; 36]));
            }
            *self = Set::Table(Box::new(big));
        }
        match self {
            Set::Table(big) => big.add(member),
            Set::Ints(_) | Set::Packed(_) => false,
        }
    }

    /// Takes a member out; true if it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            Set::Ints(ints) => number::parse_i64(member).is_some_and(|n| ints.remove(n)),
            Set::Packed(pack) => match pack.find(&Code::of(member), None, 1) {
                Some(at) => {
                    pack.edit(0).remove(at, 1);
                    true
                }
                None => false,
            },
            Set::Table(big) => match big.members.remove(member) {
                Some(member) => {
                    big.bytes -= member.0.len();
                    true
                }
                None => false,
            },
        }
    }

    /// All members; integers of an `intset` in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Elem<'_>> {
        let (ints, pack, members) = match self {
            Set::Ints(ints) => (Some(ints.iter()), None, None),
            Set::Packed(pack) => (None, Some(pack.iter()), None),
            Set::Table(big) => (None, None, Some(big.members.iter())),
        };
        let ints = ints.into_iter().flatten().map(Elem::Int);
        let members = members.into_iter().flatten().map(|member| Elem::Bytes(&member.0));
        ints.chain(pack.into_iter().flatten()).chain(members)
    }

    /// A member by chance, each as likely as any other.
    pub(crate) fn random(&self, rng: &mut fastrand::Rng) -> Option<Elem<'_>> {
        if self.len() == 0 {
            return None;
        }
        match self {
            Set::Ints(ints) => ints.get(rng.usize(..ints.len())).map(Elem::Int),
            Set::Packed(pack) => {
                pack.at(pack.offset(rng.usize(..pack.len()))).map(|(elem, _)| elem)
            }
            Set::Table(big) => big.members.random(rng).map(|member| Elem::Bytes(&member.0)),
        }
    }

    /// Reports about `count` members from `cursor` on; see [`Table::scan`].
    pub(crate) fn scan<'s>(
        &'s self,
        cursor: u64,
        count: usize,
        mut report: impl FnMut(Elem<'s>),
    ) -> u64 {
        match self {
            Set::Table(big) => {
                big.members.scan(cursor, count, |member| report(Elem::Bytes(&member.0)))
            }
            Set::Ints(_) | Set::Packed(_) => {
                self.iter().for_each(report);
                0
            }
        }
    }

    fn leave_ints(&mut self, limits: SetLimits) {
        if let Set::Ints(ints) = std::mem::replace(self, Set::Packed(Pack::default())) {
            for n in ints.iter() {
                self.add(itoa::Buffer::new().format(n).as_bytes(), limits);
            }
        }
    }
}

impl LargeSet {
    fn add(&mut self, member: &[u8]) -> bool {
        if self.members.contains(member) {
            return false;
        }
        self.bytes += member.len();
        self.members.insert(Member(member.into()));
        true
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("sadd", -3, WRITE | DENYOOM | FAST, sadd).keys(1, 1, 1),
    CommandRow::new("srem", -3, WRITE | FAST, srem).keys(1, 1, 1),
    CommandRow::new("smove", 4, WRITE | FAST, smove).keys(1, 2, 1),
    CommandRow::new("sismember", 3, READONLY | FAST, sismember).keys(1, 1, 1),
    CommandRow::new("smismember", -3, READONLY | FAST, smismember).keys(1, 1, 1),
    CommandRow::new("scard", 2, READONLY | FAST, scard).keys(1, 1, 1),
    CommandRow::new("spop", -2, WRITE | FAST, spop).keys(1, 1, 1),
    CommandRow::new("srandmember", -2, READONLY, srandmember).keys(1, 1, 1),
    CommandRow::new("sscan", -3, READONLY, sscan).keys(1, 1, 1),
    CommandRow::new("smembers", 2, READONLY, sinter).keys(1, 1, 1),
    CommandRow::new("sinter", -2, READONLY, sinter).keys(1, -1, 1),
    CommandRow::new("sinterstore", -3, WRITE | DENYOOM, sinterstore).keys(1, -1, 1),
    CommandRow::new("sintercard", -3, READONLY | MOVABLE_KEYS, sintercard),
    CommandRow::new("sunion", -2, READONLY, sunion).keys(1, -1, 1),
    CommandRow::new("sunionstore", -3, WRITE | DENYOOM, sunionstore).keys(1, -1, 1),
    CommandRow::new("sdiff", -2, READONLY, sdiff).keys(1, -1, 1),
    CommandRow::new("sdiffstore", -3, WRITE | DENYOOM, sdiffstore).keys(1, -1, 1),
];

fn sadd(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let limits = SetLimits::of(&ctx.core.config);
    let set = ctx.write_or(key, Set::default)?;
    let added = argv.iter().skip(2).filter(|member| set.add(member, limits)).count();
    if added > 0 {
        ctx.changed_by(added as u64, Class::Set, "sadd", key);
    }
    Ok(added.into())
}

fn srem(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let Some(set) = ctx.write::<Set>(key)? else { return Ok(Reply::Int(0)) };
    let removed = argv.iter().skip(2).filter(|member| set.remove(member)).count();
    let empty = set.len() == 0;
    if removed > 0 {
        ctx.changed_by(removed as u64, Class::Set, "srem", key);
        ctx.drop_if(key, empty);
    }
    Ok(removed.into())
}

fn smove(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (source, target, member) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    ctx.entry_mut(target);
    if ctx.entry_mut(source).is_none() {
        return Ok(Reply::Int(0));
    }
    let there = ctx.write::<Set>(source)?.is_some_and(|set| set.contains(member));
    ctx.write::<Set>(target)?;
    if source == target || !there {
        return Ok(there.into());
    }
    let limits = SetLimits::of(&ctx.core.config);
    let empty = ctx.write::<Set>(source)?.is_some_and(|set| {
        set.remove(member);
        set.len() == 0
    });
    ctx.changed(Class::Set, "srem", source);
    ctx.drop_if(source, empty);
    if ctx.write_or(target, Set::default)?.add(member, limits) {
        ctx.changed(Class::Set, "sadd", target);
    }
    Ok(Reply::Int(1))
}

fn sismember(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, member) = (ctx.arg(1), ctx.arg(2));
    Ok(ctx.read::<Set>(key)?.is_some_and(|set| set.contains(member)).into())
}

fn smismember(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let set = ctx.read::<Set>(key)?;
    let found =
        argv.iter().skip(2).map(|member| set.is_some_and(|set| set.contains(member)).into());
    Ok(Reply::Array(found.collect()))
}

fn scard(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Set>(key)?.map_or(0, Set::len).into())
}

fn bulk(elem: Elem<'_>) -> Reply {
    Reply::Bulk(elem.to_vec())
}

fn spop(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut rng = ctx.core.rng.fork();
    let count = match ctx.argv.get(2..) {
        None | Some([]) => None,
        Some([count]) => {
            let count = args::int(count).ok().and_then(|n| usize::try_from(n).ok());
            Some(count.ok_or(NOT_POSITIVE)?)
        }
        Some(_) => return Err(SYNTAX),
    };
    let limits = SetLimits::of(&ctx.core.config);
    let Some(set) = ctx.write::<Set>(key)? else {
        return Ok(if count.is_some() { Reply::Set(Vec::new()) } else { Reply::Nil });
    };
    if count == Some(0) {
        return Ok(Reply::Set(Vec::new()));
    }
    let wanted = count.unwrap_or(1).min(set.len());
    let rest = set.len() - wanted;
    let taken: Vec<Vec<u8>> = if rest == 0 {
        set.iter().map(Elem::to_vec).collect()
    } else if rest.saturating_mul(5) > wanted {
        (0..wanted)
            .filter_map(|_| {
                let member = set.random(&mut rng)?.to_vec();
                set.remove(&member);
                Some(member)
            })
            .collect()
    } else {
        // Few stay: a new set of those is less work than taking out the many.
        let mut stay = HashSet::with_capacity(rest);
        while stay.len() < rest {
            let Some(member) = set.random(&mut rng) else { break };
            stay.insert(member.to_vec());
        }
        let taken = set.iter().map(Elem::to_vec).filter(|m| !stay.contains(m)).collect();
        let mut ordered: Vec<_> = stay.into_iter().collect();
        ordered.sort_unstable();
        *set = Set::default();
        ordered.iter().for_each(|member| {
            set.add(member, limits);
        });
        taken
    };
    ctx.changed_by(taken.len() as u64, Class::Set, "spop", key);
    ctx.drop_if(key, rest == 0);
    if rest == 0 && count.is_some() {
        ctx.effect(&[b"DEL", key]);
    } else {
        let mut effect: Vec<&[u8]> = vec![b"SREM", key];
        effect.extend(taken.iter().map(Vec::as_slice));
        ctx.effect(&effect);
    }
    let mut taken = taken.into_iter().map(Reply::Bulk);
    match count {
        None => Ok(taken.next().unwrap_or(Reply::Nil)),
        Some(_) => Ok(Reply::Set(taken.collect())),
    }
}

fn srandmember(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut rng = ctx.core.rng.fork();
    let count = match ctx.argv.get(2..) {
        None | Some([]) => {
            let set = ctx.read::<Set>(key)?;
            return Ok(set.and_then(|set| set.random(&mut rng)).map_or(Reply::Nil, bulk));
        }
        Some([count]) => args::int_in(count, -i64::MAX, i64::MAX)?,
        Some(_) => return Err(SYNTAX),
    };
    let Some(set) = ctx.read::<Set>(key)? else { return Ok(Reply::Array(Vec::new())) };
    if count < -REPEATED_MAX {
        return Err(TOO_OFTEN);
    }
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let found = if count < 0 || wanted == 1 {
        (0..wanted).filter_map(|_| set.random(&mut rng)).map(bulk).collect()
    } else if wanted.saturating_mul(3) > set.len() {
        sample(set.iter(), set.len(), wanted, &mut rng).map(bulk).collect()
    } else {
        let mut seen = HashSet::with_capacity(wanted);
        let mut found = Vec::with_capacity(wanted);
        while found.len() < wanted {
            let Some(member) = set.random(&mut rng) else { break };
            if seen.insert(member.to_vec()) {
                found.push(bulk(member));
            }
        }
        found
    };
    Ok(Reply::Array(found))
}

fn sscan(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let cursor = scan::cursor(ctx.arg(2))?;
    let scan = ScanRequest::read(ctx, 2);
    let Some(set) = ctx.read::<Set>(key)? else { return Ok(ScanRequest::reply(0, Vec::new())) };
    // Options are looked at only when there is something to scan.
    let scan = scan?;
    let mut found = Vec::new();
    let next = set.scan(cursor, scan.count, |member| {
        if scan.fits(member.bytes(&mut [0; 36])) {
            found.push(bulk(member));
        }
    });
    Ok(ScanRequest::reply(next, found))
}

fn sinter(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(1..).unwrap_or_default();
    let mut found = Vec::new();
    intersect(ctx, keys, |elem| {
        found.push(bulk(elem));
        true
    })?;
    Ok(Reply::Set(found))
}

fn sintercard(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (keys, rest) = numbered_keys(ctx.argv)?;
    let limit = limit_of(rest)?;
    let mut count = 0usize;
    intersect(ctx, keys, |_| {
        count += 1;
        limit == 0 || count < limit
    })?;
    Ok(count.into())
}

/// Some arguments of a command.
pub(crate) type Arguments<'a> = &'a [&'a [u8]];

/// `numkeys key …`, and what follows.
pub(crate) fn numbered_keys<'a>(
    argv: Arguments<'a>,
) -> Result<(Arguments<'a>, Arguments<'a>), Error> {
    let count = argv.get(1).and_then(|count| args::int(count).ok()).filter(|n| *n > 0);
    let count = count.ok_or(Error::fixed("ERR numkeys should be greater than 0"))?;
    usize::try_from(count)
        .ok()
        .and_then(|count| argv.get(2..)?.split_at_checked(count))
        .ok_or(Error::fixed("ERR Number of keys can't be greater than number of args"))
}

/// Nothing or `LIMIT limit`, as often as one likes; 0 for no limit.
pub(crate) fn limit_of(mut options: &[&[u8]]) -> Result<usize, Error> {
    let mut limit = 0;
    while let [option, rest @ ..] = options {
        let [value, rest @ ..] = rest else { return Err(SYNTAX) };
        if !args::is(option, "LIMIT") {
            return Err(SYNTAX);
        }
        limit = args::int(value)
            .ok()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or(Error::fixed("ERR LIMIT can't be negative"))?;
        options = rest;
    }
    Ok(limit)
}

/// The value of a key that was looked up just before, without any marks.
pub(crate) fn peek<'c, K: ValueType>(core: &'c Core, db: usize, key: &[u8]) -> Option<&'c K> {
    core.dbs.get(db)?.keys.get(key).and_then(|entry| K::of(&entry.value).ok())
}

/// Reports each member that all sets have, until `report` says false.
fn intersect(
    ctx: &mut Ctx<'_>,
    keys: &[&[u8]],
    mut report: impl FnMut(Elem<'_>) -> bool,
) -> Result<(), Error> {
    let mut missing = false;
    for key in keys {
        missing |= ctx.read::<Set>(key)?.is_none();
    }
    if missing {
        return Ok(());
    }
    let (core, db) = (&*ctx.core, ctx.session.db);
    let mut sets: Vec<&Set> = keys.iter().filter_map(|key| peek(core, db, key)).collect();
    sets.sort_by_key(|set| set.len());
    if let [smallest, others @ ..] = sets.as_slice() {
        for elem in smallest.iter() {
            if others.iter().all(|set| set.contains_elem(elem)) && !report(elem) {
                break;
            }
        }
    }
    Ok(())
}

fn sinterstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(2..).unwrap_or_default();
    let limits = SetLimits::of(&ctx.core.config);
    let mut set = Set::default();
    intersect(ctx, keys, |elem| {
        set.add(elem.bytes(&mut [0; 36]), limits);
        true
    })?;
    Ok(store(ctx, set, "sinterstore"))
}

/// Puts a result into the key that is the command's first argument; an empty one deletes it.
fn store(ctx: &mut Ctx<'_>, set: Set, event: &str) -> Reply {
    let key = ctx.arg(1);
    let len = set.len();
    store_result(ctx, key, (len > 0).then_some(Value::Set(set)), Class::Set, event);
    len.into()
}

/// Puts the result of a command into a key, or deletes the key when there is none.
pub(crate) fn store_result(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    value: Option<Value>,
    class: Class,
    event: &str,
) {
    let existed = ctx.exists(key);
    match value {
        Some(value) => {
            ctx.put(key, value, NEVER);
            ctx.changed(class, event, key);
        }
        None if existed => {
            ctx.remove(key);
            ctx.changed(Class::Generic, "del", key);
        }
        None => {}
    }
}

fn sunion(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(1..).unwrap_or_default();
    Ok(Reply::Set(union(ctx, keys)?.iter().map(bulk).collect()))
}

fn sunionstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(2..).unwrap_or_default();
    let set = union(ctx, keys)?;
    Ok(store(ctx, set, "sunionstore"))
}

fn union(ctx: &mut Ctx<'_>, keys: &[&[u8]]) -> Result<Set, Error> {
    for key in keys {
        ctx.read::<Set>(key)?;
    }
    let limits = SetLimits::of(&ctx.core.config);
    let mut all = Set::default();
    for set in keys.iter().filter_map(|key| peek::<Set>(ctx.core, ctx.session.db, key)) {
        for elem in set.iter() {
            all.add(elem.bytes(&mut [0; 36]), limits);
        }
    }
    Ok(all)
}

fn sdiff(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(1..).unwrap_or_default();
    Ok(Reply::Set(difference(ctx, keys)?.iter().map(bulk).collect()))
}

fn sdiffstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(2..).unwrap_or_default();
    let set = difference(ctx, keys)?;
    Ok(store(ctx, set, "sdiffstore"))
}

/// The members of the first set that none of the others has.
fn difference(ctx: &mut Ctx<'_>, keys: &[&[u8]]) -> Result<Set, Error> {
    for key in keys {
        ctx.read::<Set>(key)?;
    }
    let limits = SetLimits::of(&ctx.core.config);
    let (core, db) = (&*ctx.core, ctx.session.db);
    let mut result = Set::default();
    let Some((first, others)) = keys.split_first() else { return Ok(result) };
    let Some(set) = peek::<Set>(core, db, first) else { return Ok(result) };
    if others.contains(first) {
        return Ok(result);
    }
    let mut others: Vec<&Set> = others.iter().filter_map(|key| peek(core, db, key)).collect();
    // Either look each member of the first up in all others, or take the members of all others
    // out of a copy of the first.
    let looking_up = set.len().saturating_mul(others.len() + 1) / 2;
    let taking_out = set.len() + others.iter().map(|other| other.len()).sum::<usize>();
    if looking_up <= taking_out {
        others.sort_by_key(|other| std::cmp::Reverse(other.len()));
        for elem in set.iter() {
            if !others.iter().any(|other| other.contains_elem(elem)) {
                result.add(elem.bytes(&mut [0; 36]), limits);
            }
        }
        return Ok(result);
    }
    for elem in set.iter() {
        result.add(elem.bytes(&mut [0; 36]), limits);
    }
    for elem in others.iter().flat_map(|other| other.iter()) {
        if result.len() == 0 {
            break;
        }
        result.remove(elem.bytes(&mut [0; 36]));
    }
    Ok(result)
}
