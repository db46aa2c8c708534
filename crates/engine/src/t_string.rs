//! The string type: structure, then its API, then its commands.

use crate::Reply;
use crate::command::{Command, Ctx, DENYOOM, FAST, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::{Error, NOT_INTEGER, OVERFLOW};
use crate::notify::Class;
use crate::number;
use crate::value::Value;

/// A string: an integer when it looks like one, else bytes.
#[derive(Debug, Clone)]
pub(crate) enum Str {
    Int(i64),
    Bytes(Box<[u8]>),
}

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
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Str::Int(_) => 0,
            Str::Bytes(bytes) => crate::memory::allocated(bytes.len()),
        }
    }

    /// The content as an integer, if it is one.
    pub(crate) fn to_int(&self) -> Option<i64> {
        match self {
            Str::Int(n) => Some(*n),
            Str::Bytes(bytes) => number::parse_i64(bytes),
        }
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[
    Command::new("get", 2, READONLY | FAST, get).keys(1, 1, 1),
    Command::new("set", 3, WRITE | DENYOOM, set).keys(1, 1, 1),
    Command::new("incr", 2, WRITE | DENYOOM | FAST, incr).keys(1, 1, 1),
];

fn get(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Str>(key)?.map_or(Reply::Nil, |s| Reply::Bulk(s.to_bytes())))
}

fn set(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, value) = (ctx.arg(1), ctx.arg(2));
    ctx.put(key, Value::Str(Str::new(value)), NEVER);
    ctx.changed(Class::String, "set", key);
    Ok(Reply::Ok)
}

fn incr(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    add(ctx, 1)
}

fn add(ctx: &mut Ctx<'_>, by: i64) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let old = match ctx.write::<Str>(key)? {
        Some(s) => s.to_int().ok_or(NOT_INTEGER)?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    *ctx.write_or(key, || Str::Int(0))? = Str::Int(new);
    ctx.changed(Class::String, "incrby", key);
    Ok(Reply::Int(new))
}
