//! DUMP and RESTORE: values as the bytes that Redis writes and reads.
//!
//! A payload is the number of a form, the value in that form, a version and a checksum. Read
//! `dump/format.rs` first, then `dump/read.rs`.

mod format;
mod listpack;
mod read;
mod stream;
mod write;

pub(crate) use format::{PayloadReader, open, push_string, seal};

use crate::args::{self, Args};
use crate::command::{ASKING, CommandRow, Ctx, DENYOOM, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::{Error, SYNTAX};
use crate::notify::Class;
use crate::value::Value;
use crate::{Reply, memory};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("dump", 2, READONLY, dump).keys(1, 1, 1),
    CommandRow::new("restore", -4, WRITE | DENYOOM, restore).keys(1, 1, 1),
    CommandRow::new("restore-asking", -4, WRITE | DENYOOM | ASKING, restore).keys(1, 1, 1),
];

// The numbers of the forms.
const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const ZSET: u8 = 3;
const HASH: u8 = 4;
const ZSET_2: u8 = 5;
const HASH_ZIPMAP: u8 = 9;
const LIST_ZIPLIST: u8 = 10;
const SET_INTSET: u8 = 11;
const ZSET_ZIPLIST: u8 = 12;
const HASH_ZIPLIST: u8 = 13;
const LIST_QUICKLIST: u8 = 14;
const STREAM: u8 = 15;
const HASH_LISTPACK: u8 = 16;
const ZSET_LISTPACK: u8 = 17;
const LIST_QUICKLIST_2: u8 = 18;
const STREAM_2: u8 = 19;
const HASH_WITH_DEADLINES: u8 = 24;
const HASH_LISTPACK_WITH_DEADLINES: u8 = 25;

/// The answer to a payload whose end is not right, also of functions.
pub(crate) const BAD_CHECKSUM: Error =
    Error::fixed("ERR DUMP payload version or checksum are wrong");

fn dump(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(entry) = ctx.entry(key) else { return Ok(Reply::Nil) };
    Ok(Reply::Bulk(payload(&entry.value)))
}

/// A value in the form that RESTORE understands.
pub(crate) fn payload(value: &Value) -> Vec<u8> {
    let payload = write::value(value);
    if payload.first() == Some(&HASH_WITH_DEADLINES) {
        return format::seal_as(format::VERSION_7_4, payload);
    }
    seal(payload)
}

/// Options of RESTORE.
#[derive(Debug, Default)]
struct Options {
    replace: bool,
    absolute: bool,
    idle_seconds: Option<i64>,
    frequency: Option<u8>,
}

impl Options {
    fn parse(argv: &[&[u8]]) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = Args::from(argv, 4);
        while let Some(word) = words.next() {
            match () {
                () if args::is(word, "REPLACE") => options.replace = true,
                () if args::is(word, "ABSTTL") => options.absolute = true,
                () if args::is(word, "IDLETIME")
                    && words.left() > 0
                    && options.frequency.is_none() =>
                {
                    let idle = words.int()?;
                    if idle < 0 {
                        return Err(Error::fixed("ERR Invalid IDLETIME value, must be >= 0"));
                    }
                    options.idle_seconds = Some(idle);
                }
                () if args::is(word, "FREQ")
                    && words.left() > 0
                    && options.idle_seconds.is_none() =>
                {
                    let frequency = u8::try_from(words.int()?).map_err(|_| {
                        Error::fixed("ERR Invalid FREQ value, must be >= 0 and <= 255")
                    })?;
                    options.frequency = Some(frequency);
                }
                () => return Err(SYNTAX),
            }
        }
        Ok(options)
    }
}

fn restore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let options = Options::parse(ctx.argv)?;
    let (key, payload, now_ms) = (ctx.arg(1), ctx.arg(3), ctx.now.ms());
    if !options.replace && ctx.entry_mut(key).is_some() {
        return Err(Error::fixed("BUSYKEY Target key name already exists."));
    }
    let ttl = args::int(ctx.arg(2))?;
    if ttl < 0 {
        return Err(Error::fixed("ERR Invalid TTL value, must be >= 0"));
    }
    let content = open(payload).ok_or(BAD_CHECKSUM)?;
    let value =
        read::value(content, &ctx.core.config).map_err(|_| Error::fixed("ERR Bad data format"))?;
    let deleted = options.replace && ctx.remove(key);
    let expires_at = match ttl {
        0 => NEVER,
        ttl if options.absolute => ttl,
        ttl => ttl.saturating_add(now_ms),
    };
    if expires_at <= now_ms {
        if deleted {
            ctx.changed(Class::Generic, "del", key);
            ctx.effect(&[b"DEL", key]);
        }
        return Ok(Reply::Ok);
    }
    ctx.put(key, value, expires_at);
    let policy = ctx.core.config.maxmemory_policy;
    if let Some(entry) = ctx.db().keys.get_mut(key) {
        entry.used_at =
            memory::restored_use(policy, now_ms, options.idle_seconds, options.frequency);
    }
    ctx.changed(Class::Generic, "restore", key);
    let deadline = if expires_at == NEVER { 0 } else { expires_at }.to_string();
    ctx.effect(&[b"RESTORE", key, deadline.as_bytes(), payload, b"ABSTTL", b"REPLACE"]);
    Ok(Reply::Ok)
}
