//! PFADD PFCOUNT PFMERGE: strings that estimate how many different elements were added.
//!
//! The content of the string is described in `hyperloglog/sketch.rs`.

mod sketch;

use crate::command::{ADMIN, CommandRow, Ctx, DENYOOM, FAST, MAY_REPLICATE, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::Error;
use crate::notify::Class;
use crate::t_string::Str;
use crate::value::Value;
use crate::{Reply, args};
use sketch::Corrupt;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("pfadd", -2, WRITE | DENYOOM | FAST, pfadd).keys(1, 1, 1),
    CommandRow::new("pfcount", -2, READONLY | MAY_REPLICATE, pfcount).keys(1, -1, 1),
    CommandRow::new("pfmerge", -2, WRITE | DENYOOM, pfmerge).keys(1, -1, 1),
    CommandRow::new("pfdebug", 3, WRITE | DENYOOM | ADMIN, pfdebug).keys(2, 2, 1),
    CommandRow::new("pfselftest", 1, ADMIN, pfselftest),
];

const NOT_A_SKETCH: Error = Error::fixed("WRONGTYPE Key is not a valid HyperLogLog string value.");

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Error {
        Error::fixed("INVALIDOBJ Corrupted HLL object detected")
    }
}

fn sparse_max(ctx: &Ctx<'_>) -> usize {
    ctx.core.config.hll_sparse_max_bytes
}

/// The sketch of a key, for reading.
fn read(ctx: &mut Ctx<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let found = ctx.read::<Str>(key)?.map(|string| match string {
        Str::Int(_) => Err(NOT_A_SKETCH),
        string => string
            .with_bytes(|b| if sketch::is_sketch(b) { Ok(b.to_vec()) } else { Err(NOT_A_SKETCH) }),
    });
    found.transpose()
}

/// Puts a changed sketch into its key, whose deadline stays.
fn write(ctx: &mut Ctx<'_>, key: &[u8], bytes: Vec<u8>) -> Result<(), Error> {
    match ctx.write::<Str>(key)? {
        Some(string) => *string.bytes_mut() = bytes,
        None => {
            ctx.put(key, Value::Str(Str::Raw(Box::new(bytes))), NEVER);
        }
    }
    Ok(())
}

fn pfadd(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, most) = (ctx.arg(1), sparse_max(ctx));
    let absent = match ctx.write::<Str>(key)? {
        None => {
            write(ctx, key, sketch::new())?;
            true
        }
        Some(Str::Int(_)) => return Err(NOT_A_SKETCH),
        Some(string) if !string.with_bytes(sketch::is_sketch) => return Err(NOT_A_SKETCH),
        Some(_) => false,
    };
    let elements = ctx.argv.get(2..).unwrap_or_default();
    let Some(string) = ctx.write::<Str>(key)? else { return Ok(Reply::Int(0)) };
    let bytes = string.bytes_mut();
    let mut raised = u64::from(absent);
    // A sketch that proves corrupt half way stays as it was.
    let before = sketch::is_sparse(bytes).then(|| bytes.clone());
    for element in elements {
        let (register, value) = sketch::place(element);
        match sketch::raise(bytes, register, value, most) {
            Ok(up) => raised += u64::from(up),
            Err(corrupt) => {
                *bytes = before.unwrap_or_default();
                return Err(corrupt.into());
            }
        }
    }
    if raised > 0 {
        sketch::forget_count(bytes);
        ctx.changed_by(raised, Class::String, "pfadd", key);
    }
    Ok((raised > 0).into())
}

fn pfcount(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    if ctx.argv.len() > 2 {
        let mut all = sketch::EMPTY;
        for key in ctx.argv.iter().skip(1) {
            if let Some(bytes) = read(ctx, key)? {
                sketch::merge(&bytes, &mut all)?;
            }
        }
        return Ok(reply(sketch::estimate(&all)));
    }
    let Some(mut bytes) = read(ctx, key)? else { return Ok(Reply::Int(0)) };
    if let Some(count) = sketch::kept_count(&bytes) {
        return Ok(reply(count));
    }
    let count = sketch::count(&bytes)?;
    // The count is part of the string: keeping it is a change, unless there must be none.
    if ctx.core.deny_writes.is_none() {
        sketch::keep_count(&mut bytes, count);
        write(ctx, key, bytes)?;
        let db = ctx.session.db;
        ctx.core.dirty += 1;
        ctx.touched(db, key);
        ctx.effect(&[b"PFCOUNT", key]);
    }
    Ok(reply(count))
}

fn reply(count: u64) -> Reply {
    Reply::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

fn pfmerge(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, most) = (ctx.arg(1), sparse_max(ctx));
    let (mut all, mut dense) = (sketch::EMPTY, false);
    for key in ctx.argv.iter().skip(1) {
        if let Some(bytes) = read(ctx, key)? {
            dense |= !sketch::is_sparse(&bytes);
            sketch::merge(&bytes, &mut all)?;
        }
    }
    let mut bytes = read(ctx, key)?.unwrap_or_else(sketch::new);
    if dense {
        sketch::make_dense(&mut bytes)?;
    }
    for (register, value) in all.into_iter().enumerate() {
        if value > 0 {
            sketch::raise(&mut bytes, register, value, most)?;
        }
    }
    sketch::forget_count(&mut bytes);
    write(ctx, key, bytes)?;
    ctx.changed(Class::String, "pfadd", key);
    Ok(Reply::Ok)
}

fn pfdebug(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (word, key) = (ctx.arg(1), ctx.arg(2));
    let Some(mut bytes) = read(ctx, key)? else {
        return Err(Error::fixed("ERR The specified key does not exist"));
    };
    let sparse = sketch::is_sparse(&bytes);
    let todense = args::is(word, "TODENSE");
    if (todense || args::is(word, "GETREG")) && sparse {
        sketch::make_dense(&mut bytes)?;
        write(ctx, key, bytes.clone())?;
        ctx.core.dirty += 1;
    }
    match () {
        () if todense => Ok(sparse.into()),
        () if args::is(word, "GETREG") => {
            let mut registers = sketch::EMPTY;
            sketch::merge(&bytes, &mut registers)?;
            Ok(Reply::Array(registers.iter().map(|n| Reply::Int(i64::from(*n))).collect()))
        }
        () if args::is(word, "DECODE") && sparse => Ok(Reply::bulk(sketch::describe(&bytes))),
        () if args::is(word, "DECODE") => Err(Error::fixed("ERR HLL encoding is not sparse")),
        () if args::is(word, "ENCODING") => {
            Ok(Reply::status(if sparse { "sparse" } else { "dense" }))
        }
        () => Err(Error::about("ERR Unknown PFDEBUG subcommand '", word, "'")),
    }
}

/// Adds many elements to a sketch in runs and to one in registers, and compares.
fn pfselftest(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    const ELEMENTS: u64 = 100_000;
    let most = sparse_max(ctx);
    let (mut sparse, mut dense) = (sketch::new(), sketch::new());
    sketch::make_dense(&mut dense)?;
    let seed = ctx.core.rng.u64(..);
    let mut next = 1;
    for n in 1..=ELEMENTS {
        let (register, value) = sketch::place(&(n ^ seed).to_le_bytes());
        sketch::raise(&mut sparse, register, value, most)?;
        sketch::raise(&mut dense, register, value, most)?;
        if n < next {
            continue;
        }
        let count = sketch::count(&sparse)?;
        if count != sketch::count(&dense)? {
            return Err(Error::fixed("TESTFAILED dense/sparse disagree"));
        }
        // Six times the standard error of 16384 registers, and one more for the smallest.
        if count.abs_diff(n) > n * 49 / 1000 + 1 {
            return Err(Error::new(format!("TESTFAILED Too big error. card:{n} counted:{count}")));
        }
        next *= 10;
    }
    Ok(Reply::Ok)
}
