//! Commands on consumer groups.

use super::group::claim_command;
use super::read::{c_text, consumer_of, no_group};
use super::{Group, Id, PendingStreamEntry, Stream, entry_reply};
use crate::Reply;
use crate::args;
use crate::command::Ctx;
use crate::error::{Error, SYNTAX};
use crate::notify::Class;

const KEY_MUST_EXIST: Error = Error::fixed(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to \
     use the MKSTREAM option to create an empty stream automatically.",
);

/// The error for a subcommand whose arguments make no sense.
pub(super) fn bad_subcommand(ctx: &Ctx<'_>) -> Error {
    let word = ctx.arg(1);
    let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
    text.extend_from_slice(word.get(..128).unwrap_or(word));
    text.extend_from_slice(b"'. Try ");
    text.extend_from_slice(&ctx.arg(0).to_ascii_uppercase());
    text.extend_from_slice(b" HELP.");
    Error::new(text)
}

/// `NOGROUP` for a key that is there.
pub(super) fn missing_group(key: &[u8], group: &[u8]) -> Error {
    let mut text = b"NOGROUP No such consumer group '".to_vec();
    text.extend_from_slice(c_text(group));
    text.extend_from_slice(b"' for key name '");
    text.extend_from_slice(c_text(key));
    text.push(b'\'');
    Error::new(text)
}

/// The options after the id of CREATE and SETID.
struct GroupOptions {
    make_stream: bool,
    read: Option<i64>,
}

impl GroupOptions {
    fn parse(ctx: &Ctx<'_>, creates: bool) -> Result<GroupOptions, Error> {
        let mut options = GroupOptions { make_stream: false, read: None };
        let mut rest = ctx.argv.get(5..).unwrap_or_default();
        while let [option, after @ ..] = rest {
            if creates && args::is(option, "MKSTREAM") {
                options.make_stream = true;
                rest = after;
            } else if let [value, after @ ..] = after
                && args::is(option, "ENTRIESREAD")
            {
                let read = args::int(value)?;
                if read < -1 {
                    return Err(Error::fixed("ERR value for ENTRIESREAD must be positive or -1"));
                }
                options.read = Some(read).filter(|read| *read >= 0);
                rest = after;
            } else {
                return Err(bad_subcommand(ctx));
            }
        }
        Ok(options)
    }
}

pub(super) fn create(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, id) = (ctx.arg(2), ctx.arg(3), ctx.arg(4));
    let options = GroupOptions::parse(ctx, true)?;
    let stream = ctx.write::<Stream>(key)?;
    if stream.is_none() && !options.make_stream {
        return Err(KEY_MUST_EXIST);
    }
    if ctx.argv.len() > 8 {
        return Err(bad_subcommand(ctx));
    }
    let last = match id {
        b"$" => ctx.write::<Stream>(key)?.map_or(Id::MIN, |stream| stream.last),
        id => Id::parse(id, 0)?,
    };
    let stream = ctx.write_or(key, Stream::default)?;
    if stream.groups.contains_key(name) {
        return Err(Error::fixed("BUSYGROUP Consumer Group name already exists"));
    }
    let group = Group { last, read: options.read, ..Group::default() };
    stream.groups.insert(name.into(), group);
    ctx.changed(Class::Stream, "xgroup-create", key);
    if id == b"$" {
        let (last, read) = (last.text(), options.read.unwrap_or(-1).to_string());
        ctx.effect(&[
            b"XGROUP",
            b"CREATE",
            key,
            name,
            &last,
            b"MKSTREAM",
            b"ENTRIESREAD",
            read.as_bytes(),
        ]);
    }
    Ok(Reply::Ok)
}

/// The group that a subcommand names; an error if key or group is missing.
fn group_of<'c>(ctx: &'c mut Ctx<'_>) -> Result<&'c mut Group, Error> {
    let (key, name) = (ctx.arg(2), ctx.arg(3));
    let Some(stream) = ctx.write::<Stream>(key)? else { return Err(KEY_MUST_EXIST) };
    stream.groups.get_mut(name).ok_or_else(|| missing_group(key, name))
}

pub(super) fn set_id(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, id) = (ctx.arg(2), ctx.arg(4));
    let options = GroupOptions::parse(ctx, false)?;
    group_of(ctx)?;
    let last = match id {
        b"$" => ctx.write::<Stream>(key)?.map_or(Id::MIN, |stream| stream.last),
        id => Id::parse_any(id, 0)?,
    };
    let group = group_of(ctx)?;
    group.last = last;
    group.read = options.read;
    ctx.changed(Class::Stream, "xgroup-setid", key);
    Ok(Reply::Ok)
}

pub(super) fn destroy(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(2), ctx.arg(3));
    let Some(stream) = ctx.write::<Stream>(key)? else { return Err(KEY_MUST_EXIST) };
    if stream.groups.remove(name).is_none() {
        return Ok(Reply::Int(0));
    }
    ctx.changed(Class::Stream, "xgroup-destroy", key);
    // Sessions blocked on the group get an error: it is gone.
    let db = ctx.db_index();
    ctx.core.key_ready(db, key);
    Ok(Reply::Int(1))
}

pub(super) fn create_consumer(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, group, name) = (ctx.arg(2), ctx.arg(3), ctx.arg(4));
    if group_of(ctx)?.consumers.contains_key(name) {
        return Ok(Reply::Int(0));
    }
    consumer_of(ctx, key, group, name)?;
    Ok(Reply::Int(1))
}

pub(super) fn delete_consumer(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(2), ctx.arg(4));
    let Some(pending) = group_of(ctx)?.remove_consumer(name) else { return Ok(Reply::Int(0)) };
    ctx.changed(Class::Stream, "xgroup-delconsumer", key);
    Ok(pending.into())
}

pub(super) fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(super::info::help_lines(
        "XGROUP",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a new consumer group. Options are:",
            "    * MKSTREAM",
            "      Create the empty stream if it does not exist.",
            "    * ENTRIESREAD entries_read",
            "      Set the group's entries_read counter (internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a new consumer in the specified group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Remove the specified consumer.",
            "DESTROY <key> <groupname>",
            "    Remove the specified group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the current group ID and entries_read counter.",
        ],
    ))
}

pub(super) fn xack(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, argv) = (ctx.arg(1), ctx.arg(2), ctx.argv);
    let stream = ctx.write::<Stream>(key)?;
    let Some(group) = stream.and_then(|stream| stream.groups.get_mut(name)) else {
        return Ok(Reply::Int(0));
    };
    let ids: Vec<Id> = argv.iter().skip(3).map(|id| Id::parse(id, 0)).collect::<Result<_, _>>()?;
    let acknowledged = ids.into_iter().filter(|id| group.forget(*id).is_some()).count();
    ctx.core.dirty += acknowledged as u64;
    Ok(acknowledged.into())
}

pub(super) fn xpending(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let (range, now_ms) = (pending_range(ctx.argv)?, ctx.now.ms());
    let stream = ctx.read::<Stream>(key)?;
    let Some(group) = stream.and_then(|stream| stream.groups.get(name)) else {
        return Err(no_group(key, name, ""));
    };
    let Some(range) = range else { return Ok(pending_summary(group)) };
    let ids: Box<dyn Iterator<Item = (&Id, &PendingStreamEntry)>> = match range.consumer {
        _ if range.start > range.end => Box::new(std::iter::empty()),
        None => Box::new(group.pending.range(range.start..=range.end)),
        Some(consumer) => {
            let Some(consumer) = group.consumers.get(consumer) else {
                return Ok(Reply::Array(Vec::new()));
            };
            let ids = consumer.pending.range(range.start..=range.end);
            Box::new(ids.filter_map(|id| group.pending.get_key_value(id)))
        }
    };
    let found = ids
        .filter(|(_, pending)| range.idle_ms == 0 || now_ms - pending.delivered_ms >= range.idle_ms)
        .take(range.count)
        .map(|(id, pending)| {
            Reply::Array(vec![
                (*id).into(),
                Reply::bulk(&pending.consumer),
                Reply::Int((now_ms - pending.delivered_ms).max(0)),
                Reply::Int(pending.count),
            ])
        });
    Ok(Reply::Array(found.collect()))
}

fn pending_summary(group: &Group) -> Reply {
    let ends = group.pending.keys().next().zip(group.pending.keys().next_back());
    let Some((first, last)) = ends else {
        return Reply::Array(vec![Reply::Int(0), Reply::Nil, Reply::Nil, Reply::NilArray]);
    };
    let consumers = group.consumers.iter().filter(|(_, consumer)| !consumer.pending.is_empty());
    let consumers = consumers.map(|(name, consumer)| {
        Reply::bulks([name.to_vec(), consumer.pending.len().to_string().into_bytes()])
    });
    Reply::Array(vec![
        group.pending.len().into(),
        (*first).into(),
        (*last).into(),
        Reply::Array(consumers.collect()),
    ])
}

/// The range XPENDING lists.
struct PendingRange<'a> {
    idle_ms: i64,
    start: Id,
    end: Id,
    count: usize,
    consumer: Option<&'a [u8]>,
}

fn pending_range<'a>(argv: &[&'a [u8]]) -> Result<Option<PendingRange<'a>>, Error> {
    let rest = match argv.len() {
        3 => return Ok(None),
        6..=9 => argv.get(3..).unwrap_or_default(),
        _ => return Err(SYNTAX),
    };
    let (idle_ms, rest) = match rest {
        [word, idle, rest @ ..] if args::is(word, "IDLE") => {
            let idle = args::int(idle)?;
            if argv.len() < 8 {
                return Err(SYNTAX);
            }
            (idle, rest)
        }
        _ => (0, rest),
    };
    let [start, end, count, rest @ ..] = rest else { return Err(SYNTAX) };
    let count = usize::try_from(args::int(count)?).unwrap_or(0);
    let (start, end) = (Id::parse_start(start)?, Id::parse_end(end)?);
    Ok(Some(PendingRange { idle_ms, start, end, count, consumer: rest.first().copied() }))
}

/// The options behind the ids of XCLAIM.
#[derive(Debug, Default)]
struct ClaimOptions {
    force: bool,
    just_id: bool,
    delivered_ms: Option<i64>,
    count: Option<i64>,
    last: Id,
}

impl ClaimOptions {
    fn parse(mut rest: &[&[u8]], now_ms: i64) -> Result<ClaimOptions, Error> {
        let mut options = ClaimOptions::default();
        let number = |bytes: &[u8], name: &str| {
            args::int(bytes)
                .map_err(|_| Error::new(format!("ERR Invalid {name} option argument for XCLAIM")))
        };
        while let [option, after @ ..] = rest {
            rest = match after {
                after if args::is(option, "FORCE") => {
                    options.force = true;
                    after
                }
                after if args::is(option, "JUSTID") => {
                    options.just_id = true;
                    after
                }
                [idle, after @ ..] if args::is(option, "IDLE") => {
                    options.delivered_ms = Some(now_ms.wrapping_sub(number(idle, "IDLE")?));
                    after
                }
                [time, after @ ..] if args::is(option, "TIME") => {
                    options.delivered_ms = Some(number(time, "TIME")?);
                    after
                }
                [count, after @ ..] if args::is(option, "RETRYCOUNT") => {
                    options.count = Some(number(count, "RETRYCOUNT")?).filter(|n| *n >= 0);
                    after
                }
                [last, after @ ..] if args::is(option, "LASTID") => {
                    options.last = Id::parse(last, 0)?;
                    after
                }
                _ => {
                    let mut text = b"ERR Unrecognized XCLAIM option '".to_vec();
                    text.extend_from_slice(c_text(option));
                    text.push(b'\'');
                    return Err(Error::new(text));
                }
            };
        }
        Ok(options)
    }
}

pub(super) fn xclaim(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, consumer) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    let now_ms = ctx.now.ms();
    if ctx.write::<Stream>(key)?.is_none_or(|stream| !stream.groups.contains_key(name)) {
        return Err(no_group(key, name, ""));
    }
    let min_idle = args::int(ctx.arg(4))
        .map_err(|_| Error::fixed("ERR Invalid min-idle-time argument for XCLAIM"))?
        .max(0);
    let rest = ctx.argv.get(5..).unwrap_or_default();
    let ids: Vec<Id> = rest.iter().map_while(|id| Id::parse(id, 0).ok()).collect();
    let options = ClaimOptions::parse(rest.get(ids.len()..).unwrap_or_default(), now_ms)?;
    // A time to come makes no sense, except where a log is read and there is no time at all.
    let sane = |ms: &i64| (0..=now_ms).contains(ms) || ctx.session.loading;
    let delivered_ms = options.delivered_ms.filter(sane).unwrap_or(now_ms);

    let mut last_moved = None;
    if let Some(group) = ctx.write::<Stream>(key)?.and_then(|s| s.groups.get_mut(name))
        && options.last > group.last
    {
        group.last = options.last;
        last_moved = Some(group.read);
    }
    ctx.effect(&[]);
    let mut found = Vec::new();
    for id in ids {
        let claim = EntryClaim { key, name, consumer, min_idle, delivered_ms };
        match claim.take(ctx, id, options.count, options.just_id, options.force)? {
            ClaimOutcome::Taken(reply) => {
                found.push(reply);
                last_moved = None;
            }
            ClaimOutcome::Gone => last_moved = None,
            ClaimOutcome::Not => {}
        }
    }
    if let Some(read) = last_moved {
        let (last, read) = (options.last.text(), read.unwrap_or(-1).to_string());
        ctx.effect(&[b"XGROUP", b"SETID", key, name, &last, b"ENTRIESREAD", read.as_bytes()]);
        ctx.core.dirty += 1;
    }
    Ok(Reply::Array(found))
}

/// A consumer's wish to get entries.
#[derive(Debug, Clone, Copy)]
struct EntryClaim<'a> {
    key: &'a [u8],
    name: &'a [u8],
    consumer: &'a [u8],
    min_idle: i64,
    delivered_ms: i64,
}

/// The outcome of a claim.
enum ClaimOutcome {
    /// The entry is the consumer's.
    Taken(Reply),
    /// The entry was pending and is in the stream no more.
    Gone,
    Not,
}

impl EntryClaim<'_> {
    fn take(
        &self,
        ctx: &mut Ctx<'_>,
        id: Id,
        count: Option<i64>,
        just_id: bool,
        force: bool,
    ) -> Result<ClaimOutcome, Error> {
        let now_ms = ctx.now.ms();
        let Some(stream) = ctx.write::<Stream>(self.key)? else { return Ok(ClaimOutcome::Not) };
        let entry = stream.get(id).map(|entry| entry_reply(&entry));
        let Some(group) = stream.groups.get_mut(self.name) else { return Ok(ClaimOutcome::Not) };
        let Some(entry) = entry else {
            let Some(pending) = group.forget(id) else { return Ok(ClaimOutcome::Not) };
            let last = group.last;
            ctx.core.dirty += 1;
            claim_command(
                self.key,
                self.name,
                id,
                &pending,
                Some(last),
                &mut |argv: &[&[u8]]| {
                    ctx.effect(argv);
                },
            );
            return Ok(ClaimOutcome::Gone);
        };
        let before = match group.pending.get(&id) {
            Some(pending) if self.min_idle > 0 && now_ms - pending.delivered_ms < self.min_idle => {
                return Ok(ClaimOutcome::Not);
            }
            Some(pending) => pending.count,
            // A new one begins with one delivery, which is then counted up like any other.
            None if force => 1,
            None => return Ok(ClaimOutcome::Not),
        };
        let (consumer, _) = consumer_of(ctx, self.key, self.name, self.consumer)?;
        let count = count.unwrap_or(if just_id { before } else { before + 1 });
        let pending = PendingStreamEntry { consumer, delivered_ms: self.delivered_ms, count };
        let Some(group) = ctx.write::<Stream>(self.key)?.and_then(|s| s.groups.get_mut(self.name))
        else {
            return Ok(ClaimOutcome::Not);
        };
        group.assign(id, pending.clone(), now_ms);
        let last = group.last;
        ctx.core.dirty += 1;
        claim_command(self.key, self.name, id, &pending, Some(last), &mut |argv: &[&[u8]]| {
            ctx.effect(argv);
        });
        Ok(ClaimOutcome::Taken(if just_id { id.into() } else { entry }))
    }
}

pub(super) fn xautoclaim(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, consumer) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    // The key is looked up first, though its type matters only after all arguments are read.
    let wrong_type = ctx.write::<Stream>(key).err();
    let min_idle = args::int(ctx.arg(4))
        .map_err(|_| Error::fixed("ERR Invalid min-idle-time argument for XAUTOCLAIM"))?
        .max(0);
    let start = Id::parse_start(ctx.arg(5))?;
    let (mut count, mut just_id) = (100usize, false);
    let mut rest = ctx.argv.get(6..).unwrap_or_default();
    while let [option, after @ ..] = rest {
        rest = match after {
            [value, after @ ..] if args::is(option, "COUNT") => {
                let most = i64::MAX / 16;
                let wanted = args::int(value).ok().filter(|n| (1..=most).contains(n));
                let wanted = wanted.ok_or(Error::fixed("ERR COUNT must be > 0"))?;
                count = usize::try_from(wanted).unwrap_or(usize::MAX);
                after
            }
            after if args::is(option, "JUSTID") => {
                just_id = true;
                after
            }
            _ => return Err(SYNTAX),
        };
    }
    if let Some(error) = wrong_type {
        return Err(error);
    }
    let group = ctx.write::<Stream>(key)?.and_then(|stream| stream.groups.get(name));
    let Some(group) = group else { return Err(no_group(key, name, "")) };
    // Ten times as many are looked at as are wanted, and one more says where to go on.
    let attempts = count.saturating_mul(10);
    let mut ids: std::collections::VecDeque<Id> =
        group.pending.range(start..).take(attempts.saturating_add(1)).map(|(id, _)| *id).collect();
    ctx.effect(&[]);
    let claim = EntryClaim { key, name, consumer, min_idle, delivered_ms: ctx.now.ms() };
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..attempts {
        if found.len() + gone.len() == count {
            break;
        }
        let Some(id) = ids.pop_front() else { break };
        match claim.take(ctx, id, None, just_id, false)? {
            ClaimOutcome::Taken(reply) => found.push(reply),
            ClaimOutcome::Gone => gone.push(id.into()),
            ClaimOutcome::Not => {}
        }
    }
    let next = ids.front().copied().unwrap_or(Id::MIN);
    Ok(Reply::Array(vec![next.into(), Reply::Array(found), Reply::Array(gone)]))
}
