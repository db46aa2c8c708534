//! The string type: structure, then its API, then its commands. Bits are in `extra/bitops.rs`.

use crate::command::{CommandRow, Ctx, DENYOOM, FAST, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::{Error, NOT_FLOAT, NOT_INTEGER, OVERFLOW, SYNTAX};
use crate::expire::{Unit, deadline};
use crate::notify::Class;
use crate::number::LongDouble;
use crate::value::Value;
use crate::{Reply, args, number};

/// A string.
#[derive(Debug, Clone)]
pub(crate) enum Str {
    /// The canonical digits of an integer.
    Int(i64),
    /// Bytes as they were set.
    Bytes(Box<[u8]>),
    /// Bytes that were changed in place, with room to grow.
    #[expect(clippy::box_collection, reason = "a vector itself would make every value larger")]
    Raw(Box<Vec<u8>>),
}

/// Longer strings are `raw`, shorter ones `embstr`.
const EMBEDDED_MAX: usize = 44;
const TOO_LONG: Error =
    Error::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

impl Str {
    /// A string with this content.
    pub(crate) fn new(bytes: &[u8]) -> Str {
        match number::parse_i64(bytes) {
            Some(n) => Str::Int(n),
            None => Str::Bytes(bytes.into()),
        }
    }

    /// The content.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Str::Int(n) => number::format_i64(*n),
            Str::Bytes(bytes) => bytes.to_vec(),
            Str::Raw(bytes) => bytes.to_vec(),
        }
    }

    /// The content, shown to `read` without a copy.
    pub(crate) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Str::Int(n) => read(itoa::Buffer::new().format(*n).as_bytes()),
            Str::Bytes(bytes) => read(bytes),
            Str::Raw(bytes) => read(bytes),
        }
    }

    /// The content to be changed in place.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Str::Raw(_)) {
            let bytes = match std::mem::replace(self, Str::Int(0)) {
                Str::Bytes(bytes) => bytes.into_vec(),
                other => other.to_bytes(),
            };
            *self = Str::Raw(Box::new(bytes));
        }
        match self {
            Str::Raw(bytes) => bytes,
            Str::Int(_) | Str::Bytes(_) => unreachable!("it was made raw above"),
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.with_bytes(<[u8]>::len)
    }

    /// Bytes on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Str::Int(_) => 0,
            Str::Bytes(bytes) => crate::memory::allocated(bytes.len()),
            Str::Raw(bytes) => {
                crate::memory::allocated(size_of::<Vec<u8>>())
                    + crate::memory::allocated(bytes.capacity())
            }
        }
    }

    /// The content as an integer, if it is one.
    pub(crate) fn to_int(&self) -> Option<i64> {
        match self {
            Str::Int(n) => Some(*n),
            Str::Bytes(bytes) => number::parse_i64(bytes),
            Str::Raw(bytes) => number::parse_i64(bytes),
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Str::Int(_) => "int",
            Str::Bytes(bytes) if bytes.len() <= EMBEDDED_MAX => "embstr",
            Str::Bytes(_) | Str::Raw(_) => "raw",
        }
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("get", 2, READONLY | FAST, get).keys(1, 1, 1),
    CommandRow::new("set", -3, WRITE | DENYOOM, set).keys(1, 1, 1),
    CommandRow::new("setnx", 3, WRITE | DENYOOM | FAST, setnx).keys(1, 1, 1),
    CommandRow::new("setex", 4, WRITE | DENYOOM, setex).keys(1, 1, 1),
    CommandRow::new("psetex", 4, WRITE | DENYOOM, psetex).keys(1, 1, 1),
    CommandRow::new("getset", 3, WRITE | DENYOOM | FAST, getset).keys(1, 1, 1),
    CommandRow::new("getdel", 2, WRITE | FAST, getdel).keys(1, 1, 1),
    CommandRow::new("getex", -2, WRITE | FAST, getex).keys(1, 1, 1),
    CommandRow::new("append", 3, WRITE | DENYOOM | FAST, append).keys(1, 1, 1),
    CommandRow::new("strlen", 2, READONLY | FAST, strlen).keys(1, 1, 1),
    CommandRow::new("setrange", 4, WRITE | DENYOOM, setrange).keys(1, 1, 1),
    CommandRow::new("getrange", 4, READONLY, getrange).keys(1, 1, 1),
    CommandRow::new("substr", 4, READONLY, getrange).keys(1, 1, 1),
    CommandRow::new("mget", -2, READONLY | FAST, mget).keys(1, -1, 1),
    CommandRow::new("mset", -3, WRITE | DENYOOM, mset).keys(1, -1, 2),
    CommandRow::new("msetnx", -3, WRITE | DENYOOM, msetnx).keys(1, -1, 2),
    CommandRow::new("incr", 2, WRITE | DENYOOM | FAST, incr).keys(1, 1, 1),
    CommandRow::new("decr", 2, WRITE | DENYOOM | FAST, decr).keys(1, 1, 1),
    CommandRow::new("incrby", 3, WRITE | DENYOOM | FAST, incrby).keys(1, 1, 1),
    CommandRow::new("decrby", 3, WRITE | DENYOOM | FAST, decrby).keys(1, 1, 1),
    CommandRow::new("incrbyfloat", 3, WRITE | DENYOOM | FAST, incrbyfloat).keys(1, 1, 1),
    CommandRow::new("lcs", -3, READONLY, lcs).keys(1, 2, 1),
];

fn get(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Str>(key)?.map_or(Reply::Nil, |s| Reply::Bulk(s.to_bytes())))
}

/// Handling of the deadline.
#[derive(Debug, Clone, Copy)]
enum ExpiryOption<'a> {
    /// SET forgets it, GETEX leaves it alone.
    Unsaid,
    Keep,
    Persist,
    /// A span from now.
    In(&'a [u8], Unit),
    /// A moment.
    At(&'a [u8], Unit),
}

impl ExpiryOption<'_> {
    /// The moment meant, in milliseconds since the epoch, if one is.
    fn moment(self, now_ms: i64, command: &str) -> Result<Option<i64>, Error> {
        match self {
            ExpiryOption::In(argument, unit) => {
                deadline(argument, unit, now_ms, true, command).map(Some)
            }
            ExpiryOption::At(argument, unit) => {
                deadline(argument, unit, 0, true, command).map(Some)
            }
            ExpiryOption::Unsaid | ExpiryOption::Keep | ExpiryOption::Persist => Ok(None),
        }
    }
}

/// The option that names a deadline at the head of `words`, and how many words it takes. The
/// same option may come again; another one may not.
fn until<'a>(words: &[&'a [u8]], so_far: ExpiryOption<'a>) -> Option<ExpiryOption<'a>> {
    let [word, argument, ..] = words else { return None };
    let free = matches!(so_far, ExpiryOption::Unsaid);
    match () {
        () if args::is(word, "EX")
            && (free || matches!(so_far, ExpiryOption::In(_, Unit::Seconds))) =>
        {
            Some(ExpiryOption::In(argument, Unit::Seconds))
        }
        () if args::is(word, "PX")
            && (free || matches!(so_far, ExpiryOption::In(_, Unit::Millis))) =>
        {
            Some(ExpiryOption::In(argument, Unit::Millis))
        }
        () if args::is(word, "EXAT")
            && (free || matches!(so_far, ExpiryOption::At(_, Unit::Seconds))) =>
        {
            Some(ExpiryOption::At(argument, Unit::Seconds))
        }
        () if args::is(word, "PXAT")
            && (free || matches!(so_far, ExpiryOption::At(_, Unit::Millis))) =>
        {
            Some(ExpiryOption::At(argument, Unit::Millis))
        }
        () => None,
    }
}

fn set(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, value) = (ctx.arg(1), ctx.arg(2));
    let (mut nx, mut xx, mut get, mut when) = (false, false, false, ExpiryOption::Unsaid);
    let mut equal = None;
    let mut rest = ctx.argv.get(3..).unwrap_or_default();
    while let [word, tail @ ..] = rest {
        match () {
            () if args::is(word, "NX") && !xx && equal.is_none() => nx = true,
            () if args::is(word, "XX") && !nx && equal.is_none() => xx = true,
            () if args::is(word, "IFEQ") && !nx && !xx && equal.is_none() && !tail.is_empty() => {
                equal = tail.first();
                rest = tail.get(1..).unwrap_or_default();
                continue;
            }
            () if args::is(word, "GET") => get = true,
            () if args::is(word, "KEEPTTL")
                && matches!(when, ExpiryOption::Unsaid | ExpiryOption::Keep) =>
            {
                when = ExpiryOption::Keep;
            }
            () => {
                when = until(rest, when).ok_or(SYNTAX)?;
                rest = tail.get(1..).unwrap_or_default();
                continue;
            }
        }
        rest = tail;
    }
    let moment = when.moment(ctx.now.ms(), "set")?;
    let old = if get {
        ctx.read::<Str>(key)?.map_or(Reply::Nil, |s| Reply::Bulk(s.to_bytes()))
    } else {
        Reply::Nil
    };
    if let Some(equal) = equal
        && ctx.write::<Str>(key)?.is_none_or(|held| held.with_bytes(|bytes| bytes != *equal))
    {
        return Ok(old);
    }
    let current = ctx.entry_mut(key).map(|entry| entry.expires_at);
    if (nx && current.is_some()) || (xx && current.is_none()) {
        return Ok(old);
    }
    let at = match when {
        ExpiryOption::Keep => current.unwrap_or(NEVER),
        _ => moment.unwrap_or(NEVER),
    };
    store(ctx, key, value, at, moment.is_some());
    Ok(if get { old } else { Reply::Ok })
}

/// Sets a key, says so, and writes a deadline into the effect as a moment.
fn store(ctx: &mut Ctx<'_>, key: &[u8], value: &[u8], at: i64, expires: bool) {
    ctx.put(key, Value::Str(Str::new(value)), at.min(if expires { NEVER - 1 } else { NEVER }));
    ctx.changed(Class::String, "set", key);
    if expires {
        let db = ctx.db_index();
        ctx.core.notify(db, Class::Generic, "expire", key);
        ctx.effect(&[b"SET", key, value, b"PXAT", &number::format_i64(at)]);
    }
}

fn setnx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, value) = (ctx.arg(1), ctx.arg(2));
    if ctx.entry_mut(key).is_some() {
        return Ok(Reply::Int(0));
    }
    store(ctx, key, value, NEVER, false);
    Ok(Reply::Int(1))
}

fn setex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let at = deadline(ctx.arg(2), Unit::Seconds, ctx.now.ms(), true, "setex")?;
    store(ctx, ctx.arg(1), ctx.arg(3), at, true);
    Ok(Reply::Ok)
}

fn psetex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let at = deadline(ctx.arg(2), Unit::Millis, ctx.now.ms(), true, "psetex")?;
    store(ctx, ctx.arg(1), ctx.arg(3), at, true);
    Ok(Reply::Ok)
}

fn getset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let old = get(ctx)?;
    store(ctx, ctx.arg(1), ctx.arg(2), NEVER, false);
    Ok(old)
}

fn getdel(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let old = get(ctx)?;
    if ctx.remove(key) {
        ctx.changed(Class::Generic, "del", key);
        ctx.effect(&[b"DEL", key]);
    }
    Ok(old)
}

fn getex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, now_ms) = (ctx.arg(1), ctx.now.ms());
    let mut when = ExpiryOption::Unsaid;
    let mut rest = ctx.argv.get(2..).unwrap_or_default();
    while let [word, tail @ ..] = rest {
        if args::is(word, "PERSIST") && matches!(when, ExpiryOption::Unsaid | ExpiryOption::Persist)
        {
            when = ExpiryOption::Persist;
            rest = tail;
        } else {
            when = until(rest, when).ok_or(SYNTAX)?;
            rest = tail.get(1..).unwrap_or_default();
        }
    }
    let Some(string) = ctx.read::<Str>(key)? else { return Ok(Reply::Nil) };
    let reply = Reply::Bulk(string.to_bytes());
    match when.moment(now_ms, "getex")? {
        Some(at) if matches!(when, ExpiryOption::At(..)) && at <= now_ms => {
            ctx.remove(key);
            ctx.changed(Class::Generic, "del", key);
            ctx.effect(&[b"DEL", key]);
        }
        Some(at) => {
            ctx.set_deadline(key, at.min(NEVER - 1));
            ctx.changed(Class::Generic, "expire", key);
            ctx.effect(&[b"PEXPIREAT", key, &number::format_i64(at)]);
        }
        None if matches!(when, ExpiryOption::Persist) => {
            let expires = ctx.entry_mut(key).is_some_and(|entry| entry.expires_at != NEVER);
            if expires {
                ctx.set_deadline(key, NEVER);
                ctx.changed(Class::Generic, "persist", key);
                ctx.effect(&[b"PERSIST", key]);
            }
        }
        None => {}
    }
    Ok(reply)
}

/// A string is at most as long as an argument may be.
fn length_max(ctx: &Ctx<'_>) -> usize {
    usize::try_from(ctx.core.config.proto_max_bulk_len).unwrap_or(usize::MAX)
}

/// The length a string has after a change, if that is allowed.
fn fits(length: Option<usize>, most: usize) -> Result<usize, Error> {
    length.filter(|n| *n <= most).ok_or(TOO_LONG)
}

fn append(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, value, most) = (ctx.arg(1), ctx.arg(2), length_max(ctx));
    let length = match ctx.write::<Str>(key)? {
        Some(string) => {
            let length = fits(string.len().checked_add(value.len()), most)?;
            string.bytes_mut().extend_from_slice(value);
            length
        }
        None => {
            ctx.put(key, Value::Str(Str::new(value)), NEVER);
            value.len()
        }
    };
    ctx.changed(Class::String, "append", key);
    Ok(length.into())
}

fn strlen(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Str>(key)?.map_or(0, Str::len).into())
}

fn setrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, value) = (ctx.arg(1), ctx.arg(3));
    let offset = args::int(ctx.arg(2))?;
    let offset = usize::try_from(offset).map_err(|_| Error::fixed("ERR offset is out of range"))?;
    let length = ctx.write::<Str>(key)?.map(|string| string.len());
    if value.is_empty() {
        return Ok(length.unwrap_or(0).into());
    }
    let end = fits(offset.checked_add(value.len()), length_max(ctx))?;
    let bytes = ctx.write_or(key, || Str::Raw(Box::default()))?.bytes_mut();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    if let Some(part) = bytes.get_mut(offset..end) {
        part.copy_from_slice(value);
    }
    let length = bytes.len();
    ctx.changed(Class::String, "setrange", key);
    Ok(length.into())
}

fn getrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let (start, end) = (args::int(ctx.arg(2))?, args::int(ctx.arg(3))?);
    let Some(string) = ctx.read::<Str>(key)? else { return Ok(Reply::Bulk(Vec::new())) };
    if start < 0 && end < 0 && start > end {
        return Ok(Reply::Bulk(Vec::new()));
    }
    Ok(string.with_bytes(|bytes| {
        let length = bytes.len() as i64;
        let from_end = |n: i64| if n < 0 { n.saturating_add(length).max(0) } else { n };
        let (start, end) = (from_end(start), from_end(end).min(length - 1));
        if start > end {
            return Reply::Bulk(Vec::new());
        }
        Reply::bulk(bytes.get(start as usize..=end as usize).unwrap_or_default())
    }))
}

fn mget(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let keys = ctx.argv.get(1..).unwrap_or_default();
    let values = keys.iter().map(|key| match ctx.read::<Str>(key) {
        Ok(Some(string)) => Reply::Bulk(string.to_bytes()),
        Ok(None) | Err(_) => Reply::Nil,
    });
    Ok(Reply::Array(values.collect()))
}

fn mset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let pairs = pairs(ctx, "mset")?;
    for (key, value) in pairs {
        store(ctx, key, value, NEVER, false);
    }
    Ok(Reply::Ok)
}

fn msetnx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let pairs = pairs(ctx, "msetnx")?;
    for (key, _) in &pairs {
        if ctx.entry_mut(key).is_some() {
            return Ok(Reply::Int(0));
        }
    }
    for (key, value) in pairs {
        store(ctx, key, value, NEVER, false);
    }
    Ok(Reply::Int(1))
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

fn pairs<'a>(ctx: &Ctx<'a>, command: &str) -> Result<Pairs<'a>, Error> {
    let (pairs, rest) = ctx.argv.get(1..).unwrap_or_default().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Error::arity(command));
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

fn incr(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    add(ctx, 1)
}

fn decr(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    add(ctx, -1)
}

fn incrby(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let by = args::int(ctx.arg(2))?;
    add(ctx, by)
}

fn decrby(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let by = args::int(ctx.arg(2))?;
    let by = by.checked_neg().ok_or(Error::fixed("ERR decrement would overflow"))?;
    add(ctx, by)
}

fn add(ctx: &mut Ctx<'_>, by: i64) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let new = match ctx.write::<Str>(key)? {
        Some(string) => {
            let old = string.to_int().ok_or(NOT_INTEGER)?;
            let new = old.checked_add(by).ok_or(OVERFLOW)?;
            *string = Str::Int(new);
            new
        }
        None => {
            ctx.put(key, Value::Str(Str::Int(by)), NEVER);
            by
        }
    };
    ctx.changed(Class::String, "incrby", key);
    Ok(Reply::Int(new))
}

fn incrbyfloat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let old = match ctx.write::<Str>(key)? {
        Some(Str::Int(n)) => LongDouble::from_i64(*n),
        Some(string) => string.with_bytes(LongDouble::parse).ok_or(NOT_FLOAT)?,
        None => LongDouble::from_i64(0),
    };
    let by = LongDouble::parse(ctx.arg(2)).ok_or(NOT_FLOAT)?;
    let new = old
        .add(by)
        .filter(|sum| sum.is_finite())
        .ok_or(Error::fixed("ERR increment would produce NaN or Infinity"))?
        .to_human();
    *ctx.write_or(key, || Str::Int(0))? = Str::Bytes(new.as_slice().into());
    ctx.changed(Class::String, "incrbyfloat", key);
    ctx.effect(&[b"SET", key, &new, b"KEEPTTL"]);
    Ok(Reply::Bulk(new))
}

/// A run that two strings have in common: first and last place in each.
#[derive(Debug, Clone, Copy)]
struct Match {
    a: (usize, usize),
    b: (usize, usize),
}

fn lcs(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut text = |n: usize| {
        let key = ctx.arg(n);
        match ctx.read::<Str>(key) {
            Ok(string) => Ok(string.map(Str::to_bytes).unwrap_or_default()),
            Err(_) => Err(Error::fixed("ERR The specified keys must contain string values")),
        }
    };
    // Both are looked up before either is refused.
    let (a, b) = (text(1), text(2));
    let (a, b) = (a?, b?);
    let (mut indexes, mut length, mut with_length, mut least) = (false, false, false, 0);
    let mut options = args::Args::from(ctx.argv, 3);
    while let Some(word) = options.next() {
        match () {
            () if args::is(word, "IDX") => indexes = true,
            () if args::is(word, "LEN") => length = true,
            () if args::is(word, "WITHMATCHLEN") => with_length = true,
            () if args::is(word, "MINMATCHLEN") => least = options.int()?.max(0),
            () => return Err(SYNTAX),
        }
    }
    if indexes && length {
        return Err(Error::fixed(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    if (a.len() + 1).saturating_mul(b.len() + 1).saturating_mul(4) > length_max(ctx) {
        return Err(Error::fixed(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = Lengths::of(&a, &b);
    let total = table.at(a.len(), b.len());
    if length {
        return Ok((total as usize).into());
    }
    let runs = table.runs(&a, &b);
    if !indexes {
        let common = runs
            .iter()
            .rev()
            .flat_map(|run| a.get(run.a.0..=run.a.1).unwrap_or_default().iter().copied());
        return Ok(Reply::Bulk(common.collect()));
    }
    let place = |(first, last): (usize, usize)| Reply::Array(vec![first.into(), last.into()]);
    let matches = runs
        .iter()
        .map(|run| (run, run.a.1 - run.a.0 + 1))
        .filter(|(_, size)| *size as i64 >= least)
        .map(|(run, size)| {
            let mut row = vec![place(run.a), place(run.b)];
            if with_length {
                row.push(size.into());
            }
            Reply::Array(row)
        });
    Ok(Reply::Map(vec![
        (Reply::bulk("matches"), Reply::Array(matches.collect())),
        (Reply::bulk("len"), (total as usize).into()),
    ]))
}

/// For each pair of prefixes, how long their longest common subsequence is.
#[derive(Debug)]
struct Lengths {
    cells: Vec<u32>,
    width: usize,
}

impl Lengths {
    fn of(a: &[u8], b: &[u8]) -> Lengths {
        let width = b.len() + 1;
        let mut lengths = Lengths { cells: vec![0; (a.len() + 1) * width], width };
        for (i, x) in a.iter().enumerate() {
            for (j, y) in b.iter().enumerate() {
                let longest = if x == y {
                    lengths.at(i, j) + 1
                } else {
                    lengths.at(i, j + 1).max(lengths.at(i + 1, j))
                };
                if let Some(cell) = lengths.cells.get_mut((i + 1) * width + j + 1) {
                    *cell = longest;
                }
            }
        }
        lengths
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.cells.get(i * self.width + j).copied().unwrap_or(0)
    }

    /// The runs of one longest common subsequence, last first.
    fn runs(&self, a: &[u8], b: &[u8]) -> Vec<Match> {
        let mut runs: Vec<Match> = Vec::new();
        let mut open: Option<Match> = None;
        let (mut i, mut j) = (a.len(), b.len());
        while i > 0 && j > 0 {
            if a.get(i - 1) == b.get(j - 1) {
                (i, j) = (i - 1, j - 1);
                open = Some(match open {
                    Some(run) if run.a.0 == i + 1 && run.b.0 == j + 1 => {
                        Match { a: (i, run.a.1), b: (j, run.b.1) }
                    }
                    other => {
                        runs.extend(other);
                        Match { a: (i, i), b: (j, j) }
                    }
                });
            } else {
                if self.at(i - 1, j) > self.at(i, j - 1) {
                    i -= 1;
                } else {
                    j -= 1;
                }
                runs.extend(open.take());
            }
        }
        runs.extend(open);
        runs
    }
}
