//! Strings as arrays of bits: SETBIT GETBIT BITCOUNT BITPOS BITOP BITFIELD.
//!
//! Bit 0 is the highest of the first byte, and past the end of a string all bits are 0.

use crate::Reply;
use crate::command::{CommandRow, Ctx, DENYOOM, FAST, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::{Error, SYNTAX};
use crate::notify::Class;
use crate::t_string::Str;
use crate::value::Value;
use crate::{args, number};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("setbit", 4, WRITE | DENYOOM, setbit).keys(1, 1, 1),
    CommandRow::new("getbit", 3, READONLY | FAST, getbit).keys(1, 1, 1),
    CommandRow::new("bitcount", -2, READONLY, bitcount).keys(1, 1, 1),
    CommandRow::new("bitpos", -3, READONLY, bitpos).keys(1, 1, 1),
    CommandRow::new("bitop", -4, WRITE | DENYOOM, bitop).keys(2, -1, 1),
    CommandRow::new("bitfield", -2, WRITE | DENYOOM, bitfield).keys(1, 1, 1),
    CommandRow::new("bitfield_ro", -2, READONLY | FAST, bitfield_ro).keys(1, 1, 1),
];

const BAD_OFFSET: Error = Error::fixed("ERR bit offset is not an integer or out of range");
const BAD_BIT: Error = Error::fixed("ERR bit is not an integer or out of range");
const BAD_TYPE: Error = Error::fixed(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);

/// Bits that a string may have, by `proto-max-bulk-len`. What was written once is replayed.
fn bits_max(ctx: &Ctx<'_>) -> u64 {
    if ctx.session.loading {
        u64::MAX
    } else {
        ctx.core.config.proto_max_bulk_len.saturating_mul(8)
    }
}

fn offset(bytes: &[u8], most: u64) -> Result<u64, Error> {
    let offset = number::parse_i64(bytes).ok_or(BAD_OFFSET)?;
    u64::try_from(offset).ok().filter(|bit| *bit < most).ok_or(BAD_OFFSET)
}

/// Bit `at` of `bytes`.
fn bit(bytes: &[u8], at: u64) -> bool {
    let byte = usize::try_from(at / 8).ok().and_then(|n| bytes.get(n)).copied().unwrap_or(0);
    byte >> (7 - at % 8) & 1 == 1
}

/// Sets bit `at`, which must lie within `bytes`.
fn set_bit(bytes: &mut [u8], at: u64, on: bool) {
    if let Some(byte) = usize::try_from(at / 8).ok().and_then(|n| bytes.get_mut(n)) {
        let mask = 1 << (7 - at % 8);
        *byte = if on { *byte | mask } else { *byte & !mask };
    }
}

/// The string's bytes for reading; nothing if the key is absent.
fn bytes_of(ctx: &mut Ctx<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    Ok(ctx.read::<Str>(key)?.map(Str::to_bytes))
}

/// Changes the string's bytes, made if absent and grown with zeros to hold bit `last`. `change`
/// hears whether it was made or grown.
fn change<R>(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    last: u64,
    change: impl FnOnce(&mut [u8], bool) -> R,
) -> Result<R, Error> {
    let absent = ctx.write::<Str>(key)?.is_none();
    let bytes = ctx.write_or(key, || Str::Raw(Box::default()))?.bytes_mut();
    let needed = usize::try_from(last / 8).unwrap_or(usize::MAX).saturating_add(1);
    let grown = bytes.len() < needed;
    if grown {
        bytes.resize(needed, 0);
    }
    Ok(change(bytes, absent || grown))
}

fn setbit(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let at = offset(ctx.arg(2), bits_max(ctx))?;
    let on = match number::parse_i64(ctx.arg(3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(BAD_BIT),
    };
    let (was, grown) = change(ctx, key, at, |bytes, grown| {
        let was = bit(bytes, at);
        set_bit(bytes, at, on);
        (was, grown)
    })?;
    if grown || was != on {
        ctx.changed(Class::String, "setbit", key);
    }
    Ok(was.into())
}

fn getbit(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let at = offset(ctx.arg(2), bits_max(ctx))?;
    let key = ctx.arg(1);
    let string = ctx.read::<Str>(key)?;
    Ok(string.is_some_and(|string| string.with_bytes(|bytes| bit(bytes, at))).into())
}

/// Does the range count in bits?
fn unit(word: &[u8]) -> Result<bool, Error> {
    match () {
        () if args::is(word, "BIT") => Ok(true),
        () if args::is(word, "BYTE") => Ok(false),
        () => Err(SYNTAX),
    }
}

/// The bits from `start` to `end`, both given in bits or bytes and from the end if negative, as
/// first bit and number of bits.
fn range(len: usize, start: i64, end: i64, in_bits: bool) -> (u64, u64) {
    let scale = if in_bits { 1 } else { 8 };
    let total = i64::try_from(len).unwrap_or(i64::MAX / 8) * 8 / scale;
    let from_end = |n: i64| if n < 0 { n.saturating_add(total).max(0) } else { n };
    let (start, end) = (from_end(start), from_end(end).min(total - 1));
    if start > end {
        return (0, 0);
    }
    ((start * scale) as u64, ((end - start + 1) * scale) as u64)
}

fn bitcount(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let Some(bytes) = bytes_of(ctx, key)? else { return Ok(Reply::Int(0)) };
    let (first, count) = match argv.get(2..).unwrap_or_default() {
        [] => (0, bytes.len() as u64 * 8),
        [start, end, rest @ ..] if rest.len() <= 1 => {
            let (start, end) = (args::int(start)?, args::int(end)?);
            if start < 0 && end < 0 && start > end {
                return Ok(Reply::Int(0));
            }
            let in_bits = rest.first().map_or(Ok(false), |word| unit(word))?;
            range(bytes.len(), start, end, in_bits)
        }
        _ => return Err(SYNTAX),
    };
    let end = first + count;
    // Whole bytes at once, the ragged ends bit by bit.
    let (inner_start, inner_end) = (first.div_ceil(8), end / 8);
    let ones: u64 = if inner_start <= inner_end {
        let inner = bytes.get(inner_start as usize..inner_end as usize).unwrap_or_default();
        let edges = (first..inner_start * 8).chain(inner_end * 8..end);
        inner.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
            + edges.filter(|at| bit(&bytes, *at)).count() as u64
    } else {
        (first..end).filter(|at| bit(&bytes, *at)).count() as u64
    };
    Ok(Reply::Int(ones as i64))
}

fn bitpos(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let wanted = match args::int(ctx.arg(2))? {
        0 => false,
        1 => true,
        _ => return Err(Error::fixed("ERR The bit argument must be 1 or 0.")),
    };
    let Some(bytes) = bytes_of(ctx, key)? else {
        return Ok(Reply::Int(if wanted { -1 } else { 0 }));
    };
    let mut open_end = true;
    let (first, count) = match argv.get(3..).unwrap_or_default() {
        [] => (0, bytes.len() as u64 * 8),
        [start, rest @ ..] if rest.len() <= 2 => {
            let start = args::int(start)?;
            let in_bits = rest.get(1).map_or(Ok(false), |word| unit(word))?;
            let end = match rest.first() {
                Some(end) => {
                    open_end = false;
                    args::int(end)?
                }
                None => i64::MAX,
            };
            range(bytes.len(), start, end, in_bits)
        }
        _ => return Err(SYNTAX),
    };
    if count == 0 {
        return Ok(Reply::Int(-1));
    }
    let end = first + count;
    let skip = if wanted { 0x00 } else { 0xff };
    let mut at = first;
    while at < end {
        if at % 8 == 0 && bytes.get((at / 8) as usize) == Some(&skip) {
            at += 8;
        } else if bit(&bytes, at) == wanted {
            return Ok(Reply::Int(at as i64));
        } else {
            at += 1;
        }
    }
    // Past the end of the string there are only zeros, unless the caller drew a line himself.
    Ok(Reply::Int(if !wanted && open_end { end as i64 } else { -1 }))
}

fn bitop(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (name, target, argv) = (ctx.arg(1), ctx.arg(2), ctx.argv);
    let sources = argv.get(3..).unwrap_or_default();
    let fold: fn(u8, u8) -> u8 = match () {
        () if args::is(name, "AND") => |a, b| a & b,
        () if args::is(name, "OR") => |a, b| a | b,
        () if args::is(name, "XOR") => |a, b| a ^ b,
        () if args::is(name, "NOT") => |a, _| !a,
        () => return Err(SYNTAX),
    };
    if args::is(name, "NOT") && sources.len() != 1 {
        return Err(Error::fixed("ERR BITOP NOT must be called with a single source key."));
    }
    let mut strings = Vec::with_capacity(sources.len());
    for key in sources {
        strings.push(bytes_of(ctx, key)?.unwrap_or_default());
    }
    let longest = strings.iter().map(Vec::len).max().unwrap_or(0);
    let mut strings = strings.into_iter();
    let mut result = strings.next().unwrap_or_default();
    result.resize(longest, 0);
    if sources.len() == 1 {
        if args::is(name, "NOT") {
            result.iter_mut().for_each(|byte| *byte = fold(*byte, 0));
        }
    } else {
        for string in strings {
            let padded = string.iter().copied().chain(std::iter::repeat(0));
            result.iter_mut().zip(padded).for_each(|(byte, other)| *byte = fold(*byte, other));
        }
    }
    if longest > 0 {
        ctx.put(target, Value::Str(Str::Raw(Box::new(result))), NEVER);
        ctx.changed(Class::String, "set", target);
    } else if ctx.remove(target) {
        ctx.changed(Class::Generic, "del", target);
    }
    Ok(longest.into())
}

/// Handling of a number that does not fit its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Debug, Clone, Copy)]
enum BitfieldAction {
    Get,
    Set(i64),
    Add(i64),
}

/// One step of BITFIELD.
#[derive(Debug, Clone, Copy)]
struct BitfieldStep {
    at: u64,
    bits: u32,
    signed: bool,
    overflow: Overflow,
    action: BitfieldAction,
}

impl BitfieldStep {
    fn read(&self, bytes: &[u8]) -> i128 {
        let raw = (0..u64::from(self.bits))
            .fold(0i128, |value, n| value << 1 | i128::from(bit(bytes, self.at + n)));
        self.fold(raw)
    }

    fn write(&self, bytes: &mut [u8], value: i128) {
        for n in 0..self.bits {
            set_bit(bytes, self.at + u64::from(n), value >> (self.bits - 1 - n) & 1 == 1);
        }
    }

    /// The number that the low bits of `value` mean in this field.
    fn fold(&self, value: i128) -> i128 {
        let size = 1i128 << self.bits;
        let value = value.rem_euclid(size);
        if self.signed && value >= size / 2 { value - size } else { value }
    }

    /// `value` made to fit, or nothing if it must not be written.
    fn fit(&self, value: i128) -> Option<i128> {
        let size = 1i128 << self.bits;
        let (least, most) = if self.signed { (-size / 2, size / 2 - 1) } else { (0, size - 1) };
        match self.overflow {
            _ if (least..=most).contains(&value) => Some(value),
            Overflow::Wrap => Some(self.fold(value)),
            Overflow::Saturate => Some(value.clamp(least, most)),
            Overflow::Fail => None,
        }
    }

    /// The value to write, and to answer, when the field holds `old`.
    fn outcome(&self, old: i128) -> Option<(i128, i128)> {
        match self.action {
            BitfieldAction::Get => Some((old, old)),
            // A negative number set into an unsigned field counts as the large one it looks like.
            BitfieldAction::Set(new) if !self.signed => {
                self.fit(i128::from(new as u64)).map(|new| (new, old))
            }
            BitfieldAction::Set(new) => self.fit(i128::from(new)).map(|new| (new, old)),
            BitfieldAction::Add(by) => self.fit(old + i128::from(by)).map(|new| (new, new)),
        }
    }
}

fn steps(argv: &[&[u8]], bits_max: u64) -> Result<Vec<BitfieldStep>, Error> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut rest = argv.get(2..).unwrap_or_default();
    loop {
        let action;
        let (kind, place);
        match rest {
            [] => return Ok(steps),
            [word, name, tail @ ..] if args::is(word, "OVERFLOW") => {
                overflow = match () {
                    () if args::is(name, "WRAP") => Overflow::Wrap,
                    () if args::is(name, "SAT") => Overflow::Saturate,
                    () if args::is(name, "FAIL") => Overflow::Fail,
                    () => return Err(Error::fixed("ERR Invalid OVERFLOW type specified")),
                };
                rest = tail;
                continue;
            }
            [word, a, b, tail @ ..] if args::is(word, "GET") => {
                (kind, place, action, rest) = (a, b, None, tail);
            }
            [word, a, b, number, tail @ ..] if args::is(word, "SET") => {
                (kind, place, action, rest) = (a, b, Some((number, false)), tail);
            }
            [word, a, b, number, tail @ ..] if args::is(word, "INCRBY") => {
                (kind, place, action, rest) = (a, b, Some((number, true)), tail);
            }
            _ => return Err(SYNTAX),
        }
        let (signed, width) = match kind {
            [b'i', width @ ..] => (true, width),
            [b'u', width @ ..] => (false, width),
            _ => return Err(BAD_TYPE),
        };
        let most = if signed { 64 } else { 63 };
        let bits = number::parse_i64(width).filter(|n| (1..=most).contains(n)).ok_or(BAD_TYPE)?;
        let at = match place {
            [b'#', index @ ..] => number::parse_i64(index)
                .and_then(|index| index.checked_mul(bits))
                .and_then(|at| u64::try_from(at).ok())
                .filter(|at| *at < bits_max)
                .ok_or(BAD_OFFSET)?,
            _ => offset(place, bits_max)?,
        };
        let action = match action {
            None => BitfieldAction::Get,
            Some((number, false)) => BitfieldAction::Set(args::int(number)?),
            Some((number, true)) => BitfieldAction::Add(args::int(number)?),
        };
        steps.push(BitfieldStep { at, bits: bits as u32, signed, overflow, action });
    }
}

/// Runs the steps in order: answers for each, and how many changed something.
fn run(steps: &[BitfieldStep], bytes: &mut [u8], grown: bool) -> (Vec<Reply>, u64) {
    let mut changes = 0;
    let replies = steps.iter().map(|step| {
        let old = step.read(bytes);
        let Some((new, answer)) = step.outcome(old) else { return Reply::Nil };
        if !matches!(step.action, BitfieldAction::Get) {
            step.write(bytes, new);
            changes += u64::from(grown || new != old);
        }
        Reply::Int(answer as i64)
    });
    (replies.collect(), changes)
}

fn bitfield(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let steps = steps(ctx.argv, bits_max(ctx))?;
    let last = steps
        .iter()
        .filter(|step| !matches!(step.action, BitfieldAction::Get))
        .map(|step| step.at + u64::from(step.bits) - 1)
        .max();
    let Some(last) = last else {
        let mut bytes = bytes_of(ctx, key)?.unwrap_or_default();
        return Ok(Reply::Array(run(&steps, &mut bytes, false).0));
    };
    let (replies, changes) = change(ctx, key, last, |bytes, grown| run(&steps, bytes, grown))?;
    if changes > 0 {
        ctx.changed_by(changes, Class::String, "setbit", key);
    }
    Ok(Reply::Array(replies))
}

fn bitfield_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let steps = steps(ctx.argv, bits_max(ctx))?;
    if steps.iter().any(|step| !matches!(step.action, BitfieldAction::Get)) {
        return Err(Error::fixed("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    let mut bytes = bytes_of(ctx, key)?.unwrap_or_default();
    Ok(Reply::Array(run(&steps, &mut bytes, false).0))
}
