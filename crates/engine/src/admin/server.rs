//! Commands about the server as a whole: TIME DBSIZE FLUSHALL SWAPDB WAIT ROLE MONITOR …

use crate::blocked::KeyWait;
use crate::command::{
    self, ADMIN, CommandRow, Ctx, FAST, LOADING, NO_ASYNC_LOADING, NOSCRIPT, READONLY, STALE, WRITE,
};
use crate::db::Db;
use crate::error::{Error, SYNTAX};
use crate::{Reply, args, number};

/// Flags of commands that change the cluster.
const CLUSTER: u32 = ADMIN | STALE | NO_ASYNC_LOADING;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("time", 1, LOADING | STALE | FAST, time),
    CommandRow::new("dbsize", 1, READONLY | FAST, |ctx| Ok(ctx.db().keys.len().into())),
    CommandRow::new("flushdb", -1, WRITE, flushdb),
    CommandRow::new("flushall", -1, WRITE, flushall),
    CommandRow::new("swapdb", 3, WRITE | FAST, swapdb),
    CommandRow::new("wait", 3, NOSCRIPT, wait),
    CommandRow::new("role", 1, NOSCRIPT | LOADING | STALE | FAST, role),
    CommandRow::new("monitor", 1, ADMIN | NOSCRIPT | LOADING | STALE, monitor),
    CommandRow::new("replicaof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, replicaof),
    CommandRow::new("slaveof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, replicaof),
    CommandRow::new("readonly", 1, LOADING | STALE | FAST, cluster_off),
    CommandRow::new("readwrite", 1, LOADING | STALE | FAST, cluster_off),
    CommandRow::new("asking", 1, FAST, cluster_off),
    CommandRow::new("cluster", -2, 0, command::container).subcommands(&[
        CommandRow::new("addslots", -3, CLUSTER, cluster_off),
        CommandRow::new("addslotsrange", -4, CLUSTER, cluster_off),
        CommandRow::new("bumpepoch", 2, CLUSTER, cluster_off),
        CommandRow::new("count-failure-reports", 3, ADMIN | STALE, cluster_off),
        CommandRow::new("countkeysinslot", 3, STALE, cluster_off),
        CommandRow::new("delslots", -3, CLUSTER, cluster_off),
        CommandRow::new("delslotsrange", -4, CLUSTER, cluster_off),
        CommandRow::new("failover", -2, CLUSTER, cluster_off),
        CommandRow::new("flushslots", 2, CLUSTER, cluster_off),
        CommandRow::new("forget", 3, CLUSTER, cluster_off),
        CommandRow::new("getkeysinslot", 4, STALE, cluster_off),
        CommandRow::new("help", 2, LOADING | STALE, cluster_off),
        CommandRow::new("info", 2, STALE, cluster_off),
        CommandRow::new("keyslot", 3, STALE, cluster_off),
        CommandRow::new("links", 2, STALE, cluster_off),
        CommandRow::new("meet", -4, CLUSTER, cluster_off),
        CommandRow::new("myid", 2, STALE, cluster_off),
        CommandRow::new("nodes", 2, STALE, cluster_off),
        CommandRow::new("replicas", 3, ADMIN | STALE, cluster_off),
        CommandRow::new("replicate", 3, CLUSTER, cluster_off),
        CommandRow::new("reset", -2, ADMIN | NOSCRIPT | STALE, cluster_off),
        CommandRow::new("saveconfig", 2, CLUSTER, cluster_off),
        CommandRow::new("set-config-epoch", 3, CLUSTER, cluster_off),
        CommandRow::new("setslot", -4, CLUSTER, cluster_off),
        CommandRow::new("shards", 2, STALE, cluster_off),
        CommandRow::new("slaves", 3, ADMIN | STALE, cluster_off),
        CommandRow::new("slots", 2, STALE, cluster_off),
    ]),
    CommandRow::new("lolwut", -1, READONLY | FAST, lolwut),
    CommandRow::new("module", -2, 0, command::container).subcommands(&[
        CommandRow::new("list", 2, ADMIN | NOSCRIPT, |_| Ok(Reply::Array(Vec::new()))),
        CommandRow::new("help", 2, LOADING | STALE, |_| {
            Ok(command::help("MODULE", &[("LIST", "Loaded modules: none.")]))
        }),
    ]),
];

fn time(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let us = ctx.now.unix_us;
    Ok(Reply::bulks([
        number::format_i64(us.div_euclid(1_000_000)),
        number::format_i64(us.rem_euclid(1_000_000)),
    ]))
}

/// `SYNC` and `ASYNC` are both understood; there is one way to do it.
fn flush_mode(ctx: &Ctx<'_>) -> Result<(), Error> {
    match ctx.argv {
        [_] => Ok(()),
        [_, word] if args::is(word, "SYNC") || args::is(word, "ASYNC") => Ok(()),
        _ => Err(SYNTAX),
    }
}

fn flushdb(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    flush_mode(ctx)?;
    let db = ctx.session.db;
    ctx.core.all_keys_changed();
    if empty(ctx, db) {
        ctx.effect(&[b"FLUSHDB"]);
    }
    Ok(Reply::Ok)
}

fn flushall(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    flush_mode(ctx)?;
    let mut any = false;
    ctx.core.all_keys_changed();
    for db in 0..ctx.core.dbs.len() {
        any |= empty(ctx, db);
    }
    if any {
        ctx.effect(&[b"FLUSHALL"]);
    }
    Ok(Reply::Ok)
}

/// Takes all keys out of a database. True if there were any.
fn empty(ctx: &mut Ctx<'_>, number: usize) -> bool {
    ctx.core.touch_all(number, |core, key| {
        core.dbs.get(number).is_some_and(|db| db.keys.contains(key))
    });
    let seed = ctx.core.config.seed;
    let Some(db) = ctx.core.dbs.get_mut(number) else { return false };
    let count = db.keys.len();
    let fresh = Db::with_seed(seed);
    let old = Db {
        keys: std::mem::replace(&mut db.keys, fresh.keys),
        expiring: std::mem::take(&mut db.expiring),
        timers: std::mem::take(&mut db.timers),
        field_timers: std::mem::take(&mut db.field_timers),
        ..Db::default()
    };
    ctx.core.dirty += count as u64;
    ctx.core.all_ready(number);
    if ctx.core.memory.on {
        ctx.core.count_memory();
    }
    // Freeing many keys takes long: the caller does it after it has released the lock.
    ctx.core.free_later(Box::new(old), count as u64);
    count > 0
}

fn swapdb(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let index = |argument: &[u8], which: &str| {
        number::parse_i64(argument)
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(|| Error::new(format!("ERR invalid {which} DB index")))
    };
    let a = index(ctx.arg(1), "first")?;
    let b = index(ctx.arg(2), "second")?;
    let count = ctx.core.dbs.len();
    let valid = |n: i32| usize::try_from(n).ok().filter(|n| *n < count);
    let (Some(a), Some(b)) = (valid(a), valid(b)) else {
        return Err(Error::fixed("ERR DB index is out of range"));
    };
    ctx.core.dirty += 1;
    if a == b {
        return Ok(Reply::Ok);
    }
    for (own, other) in [(a, b), (b, a)] {
        ctx.core.touch_all(own, |core, key| {
            let there = |n: usize| core.dbs.get(n).is_some_and(|db| db.keys.contains(key));
            there(own) || there(other)
        });
    }
    let (low, high) = (a.min(b), a.max(b));
    let (left, right) = ctx.core.dbs.split_at_mut(high);
    if let (Some(x), Some(y)) = (left.get_mut(low), right.first_mut()) {
        std::mem::swap(&mut x.keys, &mut y.keys);
        std::mem::swap(&mut x.expiring, &mut y.expiring);
        std::mem::swap(&mut x.timers, &mut y.timers);
        std::mem::swap(&mut x.field_timers, &mut y.field_timers);
    }
    // Keys that others wait for may have come by the exchange, or gone.
    ctx.core.all_ready(a);
    ctx.core.all_ready(b);
    Ok(Reply::Ok)
}

/// There are no replicas to wait for, so time passes and none has answered.
fn wait(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let replicas = args::int(ctx.arg(1))?;
    let deadline_ms = args::timeout_ms(ctx.now, ctx.arg(2))?;
    if replicas <= 0 {
        return Ok(Reply::Int(0));
    }
    Ok(ctx.block(KeyWait {
        keys: &[],
        deadline_ms,
        serve: |_, _| None,
        on_timeout: Reply::Int(0),
        argv: None,
    }))
}

fn role(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Array(vec![Reply::bulk("master"), Reply::Int(0), Reply::Array(Vec::new())]))
}

fn monitor(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.session.in_exec {
        return Err(Error::fixed("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    let id = ctx.session.id;
    if !ctx.core.monitors.contains(&id) {
        ctx.core.monitors.push(id);
    }
    Ok(Reply::Ok)
}

fn replicaof(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if args::is(ctx.arg(1), "NO") && args::is(ctx.arg(2), "ONE") {
        return Ok(Reply::Ok);
    }
    Err(Error::fixed("ERR this server cannot be a replica"))
}

fn cluster_off(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Err(Error::fixed("ERR This instance has cluster support disabled"))
}

fn lolwut(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    let text = format!("Tidegate, as Redis ver. {}\n", crate::connection::VERSION);
    Ok(Reply::Verbatim(*b"txt", text.into_bytes()))
}
