//! The hash type: structure, then its API, then its commands.
//!
//! A small hash is one [`Pack`] of fields and values in the order in which they came; a large one
//! is a [`Table`]. What `OBJECT ENCODING` says follows Redis's limits, not the structure: a hash
//! past them stays packed for as long as that is the better choice, with the pack's mark set.
//! Deadlines of fields are kept beside them; see `t_hash/expiry.rs`.

pub(crate) mod combined;
pub(crate) mod expiry;

use self::expiry::FieldDeadlines;
use crate::Reply;
use crate::admin::config::Config;
use crate::args;
use crate::command::{CommandRow, Ctx, DENYOOM, FAST, READONLY, WRITE};
use crate::error::{Error, NOT_FLOAT, OVERFLOW, SYNTAX};
use crate::notify::Class;
use crate::number::LongDouble;
use crate::pack::{Code, Elem, PACK_MAX, Pack};
use crate::scan::{self, ScanRequest};
use crate::table::{Table, TableEntry};

/// Fields up to which a hash past Redis's limits stays packed.
const PACKED_FIELDS: usize = 128;
/// Bytes of a field or value up to which it stays packed.
const PACKED_BYTES: usize = 512;
/// Elements that a command with a count and repetition may answer with.
pub(crate) const REPEATED_MAX: i64 = 1 << 24;
pub(crate) const TOO_MANY: Error = Error::fixed("ERR value is out of range");
pub(crate) const TOO_OFTEN: Error = Error::fixed(
    "ERR value is out of range, this store answers with at most 16777216 repeated elements",
);

/// A hash.
#[derive(Debug, Clone)]
pub(crate) enum Hash {
    /// Fields and values in turn.
    Packed(Pack),
    /// Too many or too long for that.
    Table(Box<LargeHash>),
}

/// A large hash.
#[derive(Debug, Clone)]
pub(crate) struct LargeHash {
    fields: Table<HashField>,
    /// Bytes of heap of all fields.
    bytes: usize,
    /// There once a field has a deadline.
    deadlines: Option<Box<FieldDeadlines>>,
}

/// A field and its value in one allocation: length of the name (one byte, or 255 and four), name,
/// value.
#[derive(Debug, Clone)]
struct HashField(Box<[u8]>);

/// The limits of `OBJECT ENCODING`, and what a table needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashLimits {
    entries: usize,
    value: usize,
    seed: u64,
}

impl HashLimits {
    /// The limits for hashes.
    pub(crate) fn of(config: &Config) -> HashLimits {
        HashLimits {
            entries: config.hash_max_listpack_entries,
            value: config.hash_max_listpack_value,
            seed: config.seed,
        }
    }
}

impl HashField {
    fn new(name: &[u8], value: &[u8]) -> HashField {
        let mut bytes = Vec::with_capacity(name.len() + value.len() + 5);
        match u8::try_from(name.len()) {
            Ok(len) if len < u8::MAX => bytes.push(len),
            _ => {
                bytes.push(u8::MAX);
                let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&len.to_le_bytes());
            }
        }
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
        HashField(bytes.into_boxed_slice())
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let (len, rest) = match &*self.0 {
            [u8::MAX, a, b, c, d, rest @ ..] => {
                (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest)
            }
            [len, rest @ ..] => (usize::from(*len), rest),
            [] => (0, &[][..]),
        };
        rest.split_at_checked(len).unwrap_or((rest, &[]))
    }

    fn pair(&self) -> (Elem<'_>, Elem<'_>) {
        let (name, value) = self.parts();
        (Elem::Bytes(name), Elem::Bytes(value))
    }
}

impl TableEntry for HashField {
    fn key(&self) -> &[u8] {
        self.parts().0
    }
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::Packed(Pack::default())
    }
}

impl Hash {
    /// Number of fields.
    pub(crate) fn len(&self) -> usize {
        match self {
            Hash::Packed(pack) => pack.len() / 2,
            Hash::Table(big) => big.fields.len(),
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Hash::Packed(pack) if !pack.flag() => "listpack",
            _ => "hashtable",
        }
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Hash::Packed(pack) => pack.heap_size(),
            Hash::Table(big) => {
                let deadlines = big.deadlines.as_ref().map_or(0, |all| all.heap_size());
                let places = big.fields.len() * (size_of::<HashField>() + 1) * 4 / 3;
                size_of::<LargeHash>() + big.bytes + places + deadlines
            }
        }
    }

    /// The value of a field.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Elem<'_>> {
        match self {
            Hash::Packed(pack) => {
                let (plain, word) = (Code::of(name), Code::word(name));
                let (_, after) = pack.at(pack.find(&plain, word.as_ref(), 2)?)?;
                pack.at(after).map(|(value, _)| value)
            }
            Hash::Table(big) => big.fields.get(name).map(|field| field.pair().1),
        }
    }

    /// Sets fields, given as name and value in turn, and lifts their deadlines; answers how many
    /// are new.
    pub(crate) fn set(&mut self, pairs: &[&[u8]], limits: HashLimits) -> usize {
        let mut created = 0;
        let mut rest = pairs.as_chunks::<2>().0;
        if let Hash::Packed(pack) = self {
            let more = pairs.iter().take(2 * PACKED_FIELDS).map(|bytes| bytes.len() + 1).sum();
            let mut edit = pack.edit(more);
            let mut flag = edit.flag();
            while let [[name, value], after @ ..] = rest {
                let longest = name.len().max(value.len());
                flag |= longest > limits.value || edit.len() / 2 > limits.entries;
                let full = flag && (longest > PACKED_BYTES || edit.len() / 2 > PACKED_FIELDS);
                if full || edit.len() + 2 > PACK_MAX {
                    break;
                }
                let (plain, word) = (Code::of(name), Code::word(name));
                match edit.find(&plain, word.as_ref(), 2).and_then(|at| edit.at(at)) {
                    Some((_, after)) => edit.replace(after, &Code::shared(value)),
                    None => {
                        edit.push(&Code::shared(name));
                        edit.push(&Code::shared(value));
                        created += 1;
                    }
                }
                rest = after;
            }
            flag |= edit.len() / 2 > limits.entries;
            if flag {
                edit.set_flag();
            }
        }
        if rest.is_empty() && !(self.len() > PACKED_FIELDS && self.encoding() == "hashtable") {
            return created;
        }
        let big = self.table(limits.seed);
        for [name, value] in rest {
            created += usize::from(big.set(name, value));
        }
        created
    }

    /// Takes a field out; true if it was there.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        match self {
            Hash::Packed(pack) => {
                let (plain, word) = (Code::of(name), Code::word(name));
                let Some(at) = pack.find(&plain, word.as_ref(), 2) else { return false };
                pack.edit(0).remove(at, 2);
                true
            }
            Hash::Table(big) => {
                if let Some(deadlines) = &mut big.deadlines {
                    deadlines.remove(name);
                }
                big.remove(name)
            }
        }
    }

    /// All fields with their values; in the order in which they came while the hash is small.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Elem<'_>, Elem<'_>)> {
        let (mut packed, fields) = match self {
            Hash::Packed(pack) => (Some(pack.iter()), None),
            Hash::Table(big) => (None, Some(big.fields.iter())),
        };
        let packed = std::iter::from_fn(move || {
            let elements = packed.as_mut()?;
            Some((elements.next()?, elements.next()?))
        });
        packed.chain(fields.into_iter().flatten().map(HashField::pair))
    }

    /// A field by chance, each as likely as any other.
    pub(crate) fn random(&self, rng: &mut fastrand::Rng) -> Option<(Elem<'_>, Elem<'_>)> {
        match self {
            Hash::Packed(pack) if pack.len() >= 2 => {
                let (name, after) = pack.at(pack.offset(2 * rng.usize(..pack.len() / 2)))?;
                Some((name, pack.at(after)?.0))
            }
            Hash::Packed(_) => None,
            Hash::Table(big) => big.fields.random(rng).map(HashField::pair),
        }
    }

    /// Reports about `count` fields from `cursor` on; see [`Table::scan`].
    pub(crate) fn scan<'h>(
        &'h self,
        cursor: u64,
        count: usize,
        mut report: impl FnMut(Elem<'h>, Elem<'h>),
    ) -> u64 {
        match self {
            Hash::Packed(_) => {
                self.iter().for_each(|(name, value)| report(name, value));
                0
            }
            Hash::Table(big) => big.fields.scan(cursor, count, |field| {
                let (name, value) = field.pair();
                report(name, value);
            }),
        }
    }

    fn table(&mut self, seed: u64) -> &mut LargeHash {
        if let Hash::Packed(_) = self {
            let mut big = LargeHash { fields: Table::with_seed(seed), bytes: 0, deadlines: None };
            for (name, value) in self.iter() {
                big.set(name.bytes(&mut [0; 36]), value.bytes(&mut [0; 36]));
            }
            *self = Hash::Table(Box::new(big));
        }
        match self {
            Hash::Table(big) => big,
            Hash::Packed(_) => unreachable!("it was made a table above"),
        }
    }
}

impl LargeHash {
    fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let field = HashField::new(name, value);
        self.bytes += field.0.len();
        match self.fields.insert(field) {
            Some(old) => {
                self.bytes -= old.0.len();
                if let Some(deadlines) = &mut self.deadlines {
                    deadlines.remove(name);
                }
                false
            }
            None => true,
        }
    }

    /// Takes a field out and leaves the deadlines alone; true if it was there.
    fn remove(&mut self, name: &[u8]) -> bool {
        let field = self.fields.remove(name);
        self.bytes -= field.as_ref().map_or(0, |field| field.0.len());
        field.is_some()
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("hset", -4, WRITE | DENYOOM | FAST, hset).keys(1, 1, 1),
    CommandRow::new("hmset", -4, WRITE | DENYOOM | FAST, hmset).keys(1, 1, 1),
    CommandRow::new("hsetnx", 4, WRITE | DENYOOM | FAST, hsetnx).keys(1, 1, 1),
    CommandRow::new("hget", 3, READONLY | FAST, hget).keys(1, 1, 1),
    CommandRow::new("hmget", -3, READONLY | FAST, hmget).keys(1, 1, 1),
    CommandRow::new("hgetall", 2, READONLY, hgetall).keys(1, 1, 1),
    CommandRow::new("hkeys", 2, READONLY, hkeys).keys(1, 1, 1),
    CommandRow::new("hvals", 2, READONLY, hvals).keys(1, 1, 1),
    CommandRow::new("hlen", 2, READONLY | FAST, hlen).keys(1, 1, 1),
    CommandRow::new("hstrlen", 3, READONLY | FAST, hstrlen).keys(1, 1, 1),
    CommandRow::new("hexists", 3, READONLY | FAST, hexists).keys(1, 1, 1),
    CommandRow::new("hdel", -3, WRITE | FAST, hdel).keys(1, 1, 1),
    CommandRow::new("hincrby", 4, WRITE | DENYOOM | FAST, hincrby).keys(1, 1, 1),
    CommandRow::new("hincrbyfloat", 4, WRITE | DENYOOM | FAST, hincrbyfloat).keys(1, 1, 1),
    CommandRow::new("hscan", -3, READONLY, hscan).keys(1, 1, 1),
    CommandRow::new("hrandfield", -2, READONLY, hrandfield).keys(1, 1, 1),
];

fn hset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set_fields(ctx, "hset").map(Reply::from)
}

fn hmset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    set_fields(ctx, "hmset").map(|_| Reply::Ok)
}

fn set_fields(ctx: &mut Ctx<'_>, name: &str) -> Result<usize, Error> {
    let key = ctx.arg(1);
    let pairs = ctx.argv.get(2..).unwrap_or_default();
    if pairs.len() % 2 != 0 {
        return Err(Error::arity(name));
    }
    let limits = HashLimits::of(&ctx.core.config);
    let created = ctx.write_or(key, Hash::default)?.set(pairs, limits);
    ctx.changed_by(pairs.len() as u64 / 2, Class::Hash, "hset", key);
    Ok(created)
}

fn hsetnx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, value) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    if ctx.write::<Hash>(key)?.is_some_and(|hash| hash.get(name).is_some()) {
        return Ok(Reply::Int(0));
    }
    let limits = HashLimits::of(&ctx.core.config);
    ctx.write_or(key, Hash::default)?.set(&[name, value], limits);
    ctx.changed(Class::Hash, "hset", key);
    Ok(Reply::Int(1))
}

/// The value as a reply.
fn bulk(elem: Elem<'_>) -> Reply {
    Reply::Bulk(elem.to_vec())
}

fn hget(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let hash = ctx.read::<Hash>(key)?;
    Ok(hash.and_then(|hash| hash.get(name)).map_or(Reply::Nil, bulk))
}

fn hmget(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let hash = ctx.read::<Hash>(key)?;
    let values = argv.iter().skip(2).map(|name| hash.and_then(|hash| hash.get(name)));
    Ok(Reply::Array(values.map(|value| value.map_or(Reply::Nil, bulk)).collect()))
}

fn hgetall(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(hash) = ctx.read::<Hash>(key)? else { return Ok(Reply::Map(Vec::new())) };
    Ok(Reply::Map(hash.iter().map(|(name, value)| (bulk(name), bulk(value))).collect()))
}

fn hkeys(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(hash) = ctx.read::<Hash>(key)? else { return Ok(Reply::Array(Vec::new())) };
    Ok(Reply::Array(hash.iter().map(|(name, _)| bulk(name)).collect()))
}

fn hvals(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(hash) = ctx.read::<Hash>(key)? else { return Ok(Reply::Array(Vec::new())) };
    Ok(Reply::Array(hash.iter().map(|(_, value)| bulk(value)).collect()))
}

fn hlen(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Hash>(key)?.map_or(0, Hash::len).into())
}

fn hstrlen(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let hash = ctx.read::<Hash>(key)?;
    Ok(hash.and_then(|hash| hash.get(name)).map_or(0, Elem::byte_len).into())
}

fn hexists(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    Ok(ctx.read::<Hash>(key)?.is_some_and(|hash| hash.get(name).is_some()).into())
}

fn hdel(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let Some(hash) = ctx.write::<Hash>(key)? else { return Ok(Reply::Int(0)) };
    let deleted = argv.iter().skip(2).filter(|name| hash.remove(name)).count();
    let empty = hash.len() == 0;
    if deleted > 0 {
        ctx.changed_by(deleted as u64, Class::Hash, "hdel", key);
        ctx.drop_if(key, empty);
    }
    Ok(deleted.into())
}

fn hincrby(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let by = args::int(ctx.arg(3))?;
    let old = match ctx.write::<Hash>(key)?.and_then(|hash| hash.get(name)) {
        None => 0,
        Some(Elem::Int(n)) => n,
        Some(elem) => args::int(elem.bytes(&mut [0; 36]))
            .map_err(|_| Error::fixed("ERR hash value is not an integer"))?,
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    let limits = HashLimits::of(&ctx.core.config);
    let text = crate::number::format_i64(new);
    ctx.write_or(key, Hash::default)?.set_and_keep_deadline(name, &text, limits);
    ctx.changed(Class::Hash, "hincrby", key);
    Ok(Reply::Int(new))
}

fn hincrbyfloat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let by = LongDouble::parse(ctx.arg(3)).ok_or(NOT_FLOAT)?;
    if !by.is_finite() {
        return Err(Error::fixed("ERR value is NaN or Infinity"));
    }
    let old = match ctx.write::<Hash>(key)?.and_then(|hash| hash.get(name)) {
        None => LongDouble::from_i64(0),
        Some(Elem::Int(n)) => LongDouble::from_i64(n),
        Some(elem) => LongDouble::parse(elem.bytes(&mut [0; 36]))
            .ok_or(Error::fixed("ERR hash value is not a float"))?,
    };
    let sum = old.add(by).filter(|sum| sum.is_finite());
    let sum = sum.ok_or(Error::fixed("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_human();
    let limits = HashLimits::of(&ctx.core.config);
    let hash = ctx.write_or(key, Hash::default)?;
    let deadline = hash.set_and_keep_deadline(name, &text, limits);
    ctx.changed(Class::Hash, "hincrbyfloat", key);
    ctx.effect(&[b"HSET", key, name, &text]);
    if let Some(at_ms) = deadline {
        let at = crate::number::format_i64(at_ms);
        ctx.effect(&[b"HPEXPIREAT", key, &at, b"FIELDS", b"1", name]);
    }
    Ok(Reply::Bulk(text))
}

fn hscan(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let cursor = scan::cursor(ctx.arg(2))?;
    let scan = ScanRequest::read(ctx, 2);
    let Some(hash) = ctx.read::<Hash>(key)? else { return Ok(ScanRequest::reply(0, Vec::new())) };
    // Options are looked at only when there is something to scan.
    let scan = scan?;
    let mut found = Vec::new();
    let next = hash.scan(cursor, scan.count, |name, value| {
        if scan.fits(name.bytes(&mut [0; 36])) {
            found.push(bulk(name));
            if !scan.no_values {
                found.push(bulk(value));
            }
        }
    });
    Ok(ScanRequest::reply(next, found))
}

fn hrandfield(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut rng = ctx.core.rng.fork();
    if ctx.argv.len() == 2 {
        let hash = ctx.read::<Hash>(key)?;
        return Ok(hash
            .and_then(|hash| hash.random(&mut rng))
            .map_or(Reply::Nil, |(n, _)| bulk(n)));
    }
    let count = args::int_in(ctx.arg(2), -i64::MAX, i64::MAX)?;
    let with_values = match ctx.argv.get(3..) {
        None | Some([]) => false,
        Some([word]) if args::is(word, "WITHVALUES") => true,
        Some(_) => return Err(SYNTAX),
    };
    if with_values && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
        return Err(TOO_MANY);
    }
    let nested = ctx.session.resp > 2;
    let Some(hash) = ctx.read::<Hash>(key)? else { return Ok(Reply::Array(Vec::new())) };
    if count < -REPEATED_MAX {
        return Err(TOO_OFTEN);
    }
    let mut found = Vec::new();
    let mut answer = |(name, value): (Elem<'_>, Elem<'_>)| match (with_values, nested) {
        (false, _) => found.push(bulk(name)),
        (true, false) => found.extend([bulk(name), bulk(value)]),
        (true, true) => found.push(Reply::Array(vec![bulk(name), bulk(value)])),
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 || wanted == 1 {
        (0..wanted).filter_map(|_| hash.random(&mut rng)).for_each(answer);
    } else if wanted.saturating_mul(3) > hash.len() || matches!(hash, Hash::Packed(_)) {
        sample(hash.iter(), hash.len(), wanted, &mut rng).for_each(answer);
    } else {
        let mut seen = std::collections::HashSet::with_capacity(wanted);
        while seen.len() < wanted {
            let Some(pair) = hash.random(&mut rng) else { break };
            if seen.insert(pair.0.to_vec()) {
                answer(pair);
            }
        }
    }
    Ok(Reply::Array(found))
}

/// `wanted` of `len` items, each as likely as any other, in their order.
pub(crate) fn sample<T>(
    items: impl Iterator<Item = T>,
    len: usize,
    wanted: usize,
    rng: &mut fastrand::Rng,
) -> impl Iterator<Item = T> {
    let (mut left, mut wanted) = (len, wanted);
    items.filter(move |_| {
        let taken = rng.usize(..left.max(1)) < wanted;
        left = left.saturating_sub(1);
        wanted -= usize::from(taken);
        taken
    })
}
