//! Commands on keys of any type: DEL EXISTS TYPE RENAME COPY MOVE SCAN KEYS OBJECT …

use crate::command::{CommandRow, Ctx, FAST, LOADING, READONLY, STALE, WRITE, container, help};
use crate::db::KeyEntry;
use crate::error::{Error, NO_SUCH_KEY, SYNTAX};
use crate::notify::Class;
use crate::scan::{ScanRequest, matches};
use crate::t_string::Str;
use crate::value::Value;
use crate::{Reply, args, memory};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("del", -2, WRITE, del).keys(1, -1, 1),
    CommandRow::new("unlink", -2, WRITE | FAST, unlink).keys(1, -1, 1),
    CommandRow::new("exists", -2, READONLY | FAST, exists).keys(1, -1, 1),
    CommandRow::new("touch", -2, READONLY | FAST, touch).keys(1, -1, 1),
    CommandRow::new("type", 2, READONLY | FAST, type_of).keys(1, 1, 1),
    CommandRow::new("rename", 3, WRITE, rename).keys(1, 2, 1),
    CommandRow::new("renamenx", 3, WRITE | FAST, renamenx).keys(1, 2, 1),
    CommandRow::new("copy", -3, WRITE | crate::command::DENYOOM, copy).keys(1, 2, 1),
    CommandRow::new("move", 3, WRITE | FAST, move_key).keys(1, 1, 1),
    CommandRow::new("randomkey", 1, READONLY, randomkey),
    CommandRow::new("keys", 2, READONLY, keys),
    CommandRow::new("scan", -2, READONLY, scan),
    CommandRow::new("object", -2, 0, container).subcommands(OBJECT),
];

const OBJECT: &[CommandRow] = &[
    CommandRow::new("encoding", 3, READONLY, encoding).keys(2, 2, 1),
    CommandRow::new("freq", 3, READONLY, freq).keys(2, 2, 1),
    CommandRow::new("idletime", 3, READONLY, idletime).keys(2, 2, 1),
    CommandRow::new("refcount", 3, READONLY, refcount).keys(2, 2, 1),
    CommandRow::new("help", 2, LOADING | STALE, object_help),
];

const SAME_OBJECT: Error = Error::fixed("ERR source and destination objects are the same");
const BAD_DB: Error = Error::fixed("ERR DB index is out of range");

fn del(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let later = ctx.core.lazyfree.user_del;
    delete(ctx, later)
}

fn unlink(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    delete(ctx, true)
}

fn delete(ctx: &mut Ctx<'_>, later: bool) -> Result<Reply, Error> {
    let mut deleted = 0usize;
    for key in ctx.argv.iter().skip(1) {
        if let Some(entry) = ctx.take(key) {
            if later {
                ctx.core.free_entry(entry);
            }
            ctx.changed(Class::Generic, "del", key);
            deleted += 1;
        }
    }
    Ok(deleted.into())
}

fn exists(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let argv = ctx.argv;
    let found = argv.iter().skip(1).filter(|key| ctx.entry_untouched(key).is_some()).count();
    Ok(found.into())
}

fn touch(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let argv = ctx.argv;
    let found = argv.iter().skip(1).filter(|key| ctx.entry(key).is_some()).count();
    Ok(found.into())
}

fn type_of(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let name = ctx.entry_untouched(key).map_or("none", |entry| entry.value.type_name());
    Ok(Reply::status(name))
}

fn rename(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    rename_to(ctx, false).map(|_| Reply::Ok)
}

fn renamenx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    rename_to(ctx, true).map(Reply::from)
}

/// True if the key has its new name.
fn rename_to(ctx: &mut Ctx<'_>, only_if_free: bool) -> Result<bool, Error> {
    let (from, to, db) = (ctx.arg(1), ctx.arg(2), ctx.db_index());
    if ctx.entry_mut(from).is_none() {
        return Err(NO_SUCH_KEY);
    }
    if from == to || (only_if_free && ctx.exists(to)) {
        return Ok(false);
    }
    ctx.remove(to);
    let Some(entry) = ctx.core.remove_entry(db, from) else { return Err(NO_SUCH_KEY) };
    ctx.put(to, entry.value, entry.expires_at);
    ctx.changed(Class::Generic, "rename_from", from);
    ctx.touched(db, to);
    ctx.core.notify(db, Class::Generic, "rename_to", to);
    Ok(true)
}

/// The database that an argument names.
fn database(ctx: &Ctx<'_>, argument: &[u8]) -> Result<usize, Error> {
    let index = args::int_in(argument, i64::from(i32::MIN), i64::from(i32::MAX))?;
    usize::try_from(index).ok().filter(|n| *n < ctx.core.dbs.len()).ok_or(BAD_DB)
}

fn copy(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (from, to, db, now_ms) = (ctx.arg(1), ctx.arg(2), ctx.db_index(), ctx.now.ms());
    let (mut target, mut replace) = (db, false);
    let mut options = args::Args::from(ctx.argv, 3);
    while let Some(word) = options.next() {
        match () {
            () if args::is(word, "REPLACE") => replace = true,
            () if args::is(word, "DB") && options.left() > 0 => {
                target = database(ctx, options.need()?)?;
            }
            () => return Err(SYNTAX),
        }
    }
    if target == db && from == to {
        return Err(SAME_OBJECT);
    }
    let Some(entry) = ctx.entry(from) else { return Ok(Reply::Int(0)) };
    let (value, expires_at) = (entry.value.clone(), entry.expires_at);
    ctx.core.expire_if_due(target, to, now_ms);
    if ctx.core.peek(target, to, now_ms).is_some() {
        if !replace {
            return Ok(Reply::Int(0));
        }
        ctx.core.remove_entry(target, to);
    }
    ctx.core.put_value(target, to, value, expires_at, now_ms);
    ctx.core.dirty += 1;
    ctx.touched(target, to);
    ctx.core.notify(target, Class::Generic, "copy_to", to);
    Ok(Reply::Int(1))
}

fn move_key(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, db, now_ms) = (ctx.arg(1), ctx.db_index(), ctx.now.ms());
    let target = database(ctx, ctx.arg(2))?;
    if target == db {
        return Err(SAME_OBJECT);
    }
    if ctx.entry_mut(key).is_none() {
        return Ok(Reply::Int(0));
    }
    ctx.core.expire_if_due(target, key, now_ms);
    if ctx.core.peek(target, key, now_ms).is_some() {
        return Ok(Reply::Int(0));
    }
    let Some(entry) = ctx.core.remove_entry(db, key) else { return Ok(Reply::Int(0)) };
    ctx.core.put_value(target, key, entry.value, entry.expires_at, now_ms);
    ctx.changed(Class::Generic, "move_from", key);
    ctx.touched(target, key);
    ctx.core.notify(target, Class::Generic, "move_to", key);
    Ok(Reply::Int(1))
}

fn randomkey(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    const TRIES: usize = 100;
    let (db, now_ms) = (ctx.db_index(), ctx.now.ms());
    let mut tries = 0;
    loop {
        tries += 1;
        let core = &mut *ctx.core;
        let Some(db_ref) = core.dbs.get(db) else { return Ok(Reply::Nil) };
        let Some(entry) = db_ref.keys.random(&mut core.rng) else { return Ok(Reply::Nil) };
        let key = entry.key.to_vec();
        // Each round either answers or deletes a key that was due, unless those are kept now.
        let last = ctx.core.keeps_expired && tries == TRIES;
        if !ctx.core.expire_if_due(db, &key, now_ms) || last {
            return Ok(Reply::Bulk(key));
        }
    }
}

fn keys(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (pattern, now_ms) = (ctx.arg(1), ctx.now.ms());
    let all = pattern == b"*";
    let found = ctx
        .db()
        .keys
        .iter()
        .filter(|entry| !entry.is_due(now_ms) && (all || matches(pattern, &entry.key, false)))
        .map(|entry| Reply::bulk(&entry.key));
    Ok(Reply::Array(found.collect()))
}

fn scan(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let scan = ScanRequest::read(ctx, 1)?;
    let (db, now_ms) = (ctx.db_index(), ctx.now.ms());
    let (mut found, mut due) = (Vec::new(), Vec::new());
    let next = ctx.db().keys.scan(scan.cursor, scan.count, |entry| {
        if !scan.fits(&entry.key) {
            return;
        }
        let typed = scan
            .type_name
            .is_none_or(|name| name.eq_ignore_ascii_case(entry.value.type_name().as_bytes()));
        if entry.is_due(now_ms) {
            due.push(entry.key.clone());
        } else if typed {
            found.push(Reply::bulk(&entry.key));
        }
    });
    for key in due {
        ctx.core.expire_if_due(db, &key, now_ms);
    }
    Ok(ScanRequest::reply(next, found))
}

/// The entry that OBJECT asks about; asking is no use of the key.
fn object<'c>(ctx: &'c mut Ctx<'_>) -> Option<&'c KeyEntry> {
    let key = ctx.arg(2);
    ctx.entry_untouched(key)
}

fn encoding(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::bulk_or_nil(object(ctx).map(|entry| entry.value.encoding())))
}

fn idletime(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let now_s = (ctx.now.ms() / 1000) as u32;
    let counts_uses = ctx.core.config.maxmemory_policy.counts_uses();
    let Some(used_at) = object(ctx).map(|entry| entry.used_at) else { return Ok(Reply::Nil) };
    if counts_uses {
        return Err(Error::fixed(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that \
             when switching between policies at runtime LRU and LFU data will take some time to \
             adjust.",
        ));
    }
    Ok(Reply::Int(i64::from(now_s.saturating_sub(used_at))))
}

fn freq(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (now_ms, config) = (ctx.now.ms(), &ctx.core.config);
    let (counts_uses, decay) = (config.maxmemory_policy.counts_uses(), config.lfu_decay_time);
    let Some(mark) = object(ctx).map(|entry| entry.used_at) else { return Ok(Reply::Nil) };
    if !counts_uses {
        return Err(Error::fixed(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please \
             note that when switching between policies at runtime LRU and LFU data will take \
             some time to adjust.",
        ));
    }
    Ok(Reply::Int(i64::from(memory::uses(mark, now_ms, decay))))
}

fn refcount(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let shares = ctx.core.config.maxmemory == 0 || ctx.core.config.maxmemory_policy.shares();
    Ok(object(ctx).map_or(Reply::Nil, |entry| match entry.value {
        // Redis shares the small integers among all keys and says so with a full counter.
        Value::Str(Str::Int(0..10_000)) if shares => Reply::Int(i64::from(i32::MAX)),
        _ => Reply::Int(1),
    }))
}

fn object_help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(help(
        "OBJECT",
        &[
            ("ENCODING <key>", "How the value of <key> is held in memory."),
            ("FREQ <key>", "How often <key> is used, on a logarithmic scale."),
            ("IDLETIME <key>", "Seconds since <key> was last used."),
            ("REFCOUNT <key>", "How many references the value of <key> has."),
        ],
    ))
}
