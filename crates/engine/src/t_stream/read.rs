//! XREAD and XREADGROUP, which may wait.

use std::sync::Arc;

use super::group::{StreamExtent, claim_command};
use super::{Id, PendingStreamEntry, Stream, entry_reply};
use crate::Reply;
use crate::args;
use crate::blocked::KeyWait;
use crate::command::Ctx;
use crate::error::{Error, SYNTAX};
use crate::notify::Class;

/// Entries that a read which waited answers with at most, if no COUNT was given.
const WAITED_COUNT: usize = 1000;

/// The arguments of XREAD or XREADGROUP.
#[derive(Debug)]
struct ReadQuery<'a> {
    /// Wait until when, if at all.
    block: Option<Option<i64>>,
    /// 0 for all.
    count: usize,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    keys: &'a [&'a [u8]],
    ids: &'a [&'a [u8]],
}

/// From where on a stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadFrom {
    /// Entries after this id.
    Id(Id),
    /// Entries that no consumer of the group got.
    New,
}

impl<'a> ReadQuery<'a> {
    fn parse(ctx: &Ctx<'a>, grouped: bool) -> Result<ReadQuery<'a>, Error> {
        let mut query =
            ReadQuery { block: None, count: 0, group: None, no_ack: false, keys: &[], ids: &[] };
        let mut rest = ctx.argv.get(1..).unwrap_or_default();
        while let [option, after @ ..] = rest {
            rest = match after {
                [timeout, after @ ..] if args::is(option, "BLOCK") => {
                    if ctx.session.in_script {
                        let mut text = b"ERR ".to_vec();
                        text.extend_from_slice(ctx.arg(0));
                        text.extend_from_slice(
                            b" command is not allowed with BLOCK option from scripts",
                        );
                        return Err(Error::new(text));
                    }
                    query.block = Some(args::timeout_ms(ctx.now, timeout)?);
                    after
                }
                [count, after @ ..] if args::is(option, "COUNT") => {
                    query.count = usize::try_from(args::int(count)?).unwrap_or(0);
                    after
                }
                [_, ..] if args::is(option, "STREAMS") => {
                    if after.len() % 2 != 0 {
                        return Err(Error::fixed(
                            "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
                        ));
                    }
                    (query.keys, query.ids) = after.split_at(after.len() / 2);
                    break;
                }
                [group, consumer, after @ ..] if args::is(option, "GROUP") => {
                    if !grouped {
                        return Err(Error::fixed(
                            "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                        ));
                    }
                    query.group = Some((group, consumer));
                    after
                }
                after if args::is(option, "NOACK") => {
                    if !grouped {
                        return Err(Error::fixed(
                            "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                        ));
                    }
                    query.no_ack = true;
                    after
                }
                _ => return Err(SYNTAX),
            };
        }
        if query.keys.is_empty() {
            return Err(SYNTAX);
        }
        if grouped && query.group.is_none() {
            return Err(Error::fixed("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(query)
    }
}

pub(super) fn xread(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    read(ctx, false)
}

pub(super) fn xreadgroup(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    read(ctx, true)
}

fn read(ctx: &mut Ctx<'_>, grouped: bool) -> Result<Reply, Error> {
    let query = ReadQuery::parse(ctx, grouped)?;
    let mut starts = Vec::with_capacity(query.keys.len());
    for (key, id) in query.keys.iter().zip(query.ids) {
        starts.push(start(ctx, &query, key, id)?);
    }
    // Reads by a group are recorded as effects of their own.
    ctx.effect(&[]);
    let mut found = Vec::new();
    for (key, start) in query.keys.iter().zip(&starts) {
        let most = if query.count == 0 { usize::MAX } else { query.count };
        let Some(stream) = ctx.read::<Stream>(key)? else { continue };
        let group = query.group.and_then(|(group, _)| stream.groups.get(group));
        let (after, own) = match (*start, group) {
            (ReadFrom::Id(id), None) => (id, false),
            (ReadFrom::Id(id), Some(_)) => (id, true),
            (ReadFrom::New, group) => (group.map_or(Id::MAX, |group| group.last), false),
        };
        let there = own || stream.len() > 0 && stream.last_live().is_some_and(|id| id > after);
        if !there {
            continue;
        }
        let entries = match query.group {
            None => plain(stream, after, most),
            Some(_) if own => history(ctx, &query, key, after, most)?,
            Some(_) => grouped_new(ctx, &query, key, after, most)?,
        };
        found.push((Reply::bulk(key), entries));
    }
    if !found.is_empty() {
        return Ok(streams_reply(ctx, found));
    }
    let Some(deadline_ms) = query.block else { return Ok(Reply::NilArray) };
    // `$` is what it was when the session began to wait.
    let mut argv: Vec<Vec<u8>> = ctx.argv.iter().map(|arg| arg.to_vec()).collect();
    let first_id = argv.len() - query.ids.len();
    for (arg, start) in argv.iter_mut().skip(first_id).zip(&starts) {
        if let ReadFrom::Id(id) = start {
            *arg = id.text();
        }
    }
    Ok(ctx.block(KeyWait {
        keys: query.keys,
        deadline_ms,
        serve: if grouped { serve_group } else { serve },
        on_timeout: Reply::NilArray,
        argv: Some(argv),
    }))
}

/// Checks key and group, and reads where to start.
fn start(
    ctx: &mut Ctx<'_>,
    query: &ReadQuery<'_>,
    key: &[u8],
    id: &[u8],
) -> Result<ReadFrom, Error> {
    let stream = ctx.read::<Stream>(key)?;
    if let Some((group, _)) = query.group
        && stream.is_none_or(|stream| !stream.groups.contains_key(group))
    {
        return Err(no_group(key, group, " in XREADGROUP with GROUP option"));
    }
    match id {
        b"$" if query.group.is_some() => Err(Error::fixed(
            "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the \
             history of this consumer by specifying a proper ID, or use the > ID to get new \
             messages. The $ ID would just return an empty result set.",
        )),
        b"$" => Ok(ReadFrom::Id(stream.map_or(Id::MIN, |stream| stream.last))),
        b"+" if query.group.is_some() => Err(Error::fixed(
            "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the \
             history of this consumer by specifying a proper ID, or use the > ID to get new \
             messages. The + ID would just return an empty result set.",
        )),
        // The last entry, as from Redis 7.4 on; of an empty stream the next one.
        b"+" => Ok(ReadFrom::Id(stream.map_or(Id::MIN, |stream| {
            stream.last_live().and_then(Id::previous).unwrap_or(stream.last)
        }))),
        b">" if query.group.is_none() => Err(Error::fixed(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> \
             <consumer> option.",
        )),
        b">" => Ok(ReadFrom::New),
        id => Id::parse(id, 0).map(ReadFrom::Id),
    }
}

/// A name as C prints it: up to the first zero byte.
pub(super) fn c_text(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// `NOGROUP` for a key and a group, of which one is missing.
pub(super) fn no_group(key: &[u8], group: &[u8], where_: &str) -> Error {
    let mut text = b"NOGROUP No such key '".to_vec();
    text.extend_from_slice(c_text(key));
    text.extend_from_slice(b"' or consumer group '");
    text.extend_from_slice(c_text(group));
    text.push(b'\'');
    text.extend_from_slice(where_.as_bytes());
    Error::new(text)
}

fn streams_reply(ctx: &Ctx<'_>, found: Vec<(Reply, Reply)>) -> Reply {
    if ctx.session.resp > 2 {
        return Reply::Map(found);
    }
    Reply::Array(found.into_iter().map(|(key, list)| Reply::Array(vec![key, list])).collect())
}

/// The first id after one; the greatest has none after it and stands for itself.
fn following(id: Id) -> Id {
    id.next().unwrap_or(Id::MIN)
}

fn plain(stream: &Stream, after: Id, most: usize) -> Reply {
    let entries = stream.range(following(after), Id::MAX).take(most);
    Reply::Array(entries.map(|entry| entry_reply(&entry)).collect())
}

/// Entries that the consumer got already and has not acknowledged.
fn history(
    ctx: &mut Ctx<'_>,
    query: &ReadQuery<'_>,
    key: &[u8],
    after: Id,
    most: usize,
) -> Result<Reply, Error> {
    let Some((group_name, consumer)) = query.group else { return Ok(Reply::Array(Vec::new())) };
    let now_ms = ctx.now.ms();
    let (name, _) = consumer_of(ctx, key, group_name, consumer)?;
    let Some(stream) = ctx.write::<Stream>(key)? else { return Ok(Reply::Array(Vec::new())) };
    let Some(group) = stream.groups.get(group_name) else { return Ok(Reply::Array(Vec::new())) };
    let ids: Vec<Id> = group
        .consumers
        .get(&name)
        .map(|c| c.pending.range(following(after)..).take(most).copied().collect())
        .unwrap_or_default();
    let mut replies = Vec::with_capacity(ids.len());
    let mut claims: Vec<Vec<Vec<u8>>> = Vec::new();
    for id in ids {
        let Some(reply) = stream.get(id).map(|entry| entry_reply(&entry)) else {
            replies.push(Reply::Array(vec![id.into(), Reply::NilArray]));
            continue;
        };
        replies.push(reply);
        if let Some(group) = stream.groups.get_mut(group_name)
            && let Some(pending) = group.pending.get_mut(&id)
        {
            pending.delivered_ms = now_ms;
            pending.count += 1;
            claim_command(key, group_name, id, pending, None, &mut |argv: &[&[u8]]| {
                claims.push(argv.iter().map(|arg| arg.to_vec()).collect());
            });
        }
    }
    tell(ctx, &claims);
    ctx.core.dirty += 1;
    Ok(Reply::Array(replies))
}

fn tell(ctx: &mut Ctx<'_>, commands: &[Vec<Vec<u8>>]) {
    for command in commands {
        let argv: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        ctx.effect(&argv);
    }
}

/// Returns the consumer's name as the group keeps it; a new consumer is created, with an effect.
pub(super) fn consumer_of(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    group: &[u8],
    name: &[u8],
) -> Result<(Arc<[u8]>, bool), Error> {
    let now_ms = ctx.now.ms();
    let Some(found) = ctx.write::<Stream>(key)?.and_then(|stream| stream.groups.get_mut(group))
    else {
        return Err(no_group(key, group, ""));
    };
    let (kept, new) = found.consumer(name, now_ms);
    if new {
        ctx.core.dirty += 1;
        let db = ctx.db_index();
        ctx.core.notify(db, Class::Stream, "xgroup-createconsumer", key);
        ctx.effect(&[b"XGROUP", b"CREATECONSUMER", key, group, name]);
    }
    Ok((kept, new))
}

/// Entries that no consumer of the group got; they become pending for this one.
fn grouped_new(
    ctx: &mut Ctx<'_>,
    query: &ReadQuery<'_>,
    key: &[u8],
    after: Id,
    most: usize,
) -> Result<Reply, Error> {
    let Some((group_name, consumer)) = query.group else { return Ok(Reply::Array(Vec::new())) };
    let delivered_ms = ctx.now.ms();
    let (name, _) = consumer_of(ctx, key, group_name, consumer)?;
    let Some(stream) = ctx.write::<Stream>(key)? else { return Ok(Reply::Array(Vec::new())) };
    let position = StreamExtent::of(stream);
    let (ids, replies): (Vec<Id>, Vec<Reply>) = stream
        .range(following(after), Id::MAX)
        .take(most)
        .map(|entry| (entry.id, entry_reply(&entry)))
        .unzip();
    let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
    if let Some(group) = stream.groups.get_mut(group_name) {
        for id in &ids {
            group.advance(&position, *id);
            if !query.no_ack {
                let pending = PendingStreamEntry { consumer: name.clone(), delivered_ms, count: 1 };
                claim_command(key, group_name, *id, &pending, None, &mut |argv: &[&[u8]]| {
                    commands.push(argv.iter().map(|arg| arg.to_vec()).collect());
                });
                group.assign(*id, pending, delivered_ms);
            }
        }
        commands.push(vec![
            b"XGROUP".to_vec(),
            b"SETID".to_vec(),
            key.to_vec(),
            group_name.to_vec(),
            group.last.text(),
            b"ENTRIESREAD".to_vec(),
            group.read.unwrap_or(-1).to_string().into_bytes(),
        ]);
    }
    tell(ctx, &commands);
    ctx.core.dirty += 1;
    Ok(Reply::Array(replies))
}

/// Returns the id from which a blocked session reads a key.
fn waited_for(query: &ReadQuery<'_>, key: &[u8]) -> Option<Id> {
    let at = query.keys.iter().position(|found| *found == key)?;
    Id::parse(query.ids.get(at)?, 0).ok()
}

fn serve(ctx: &mut Ctx<'_>, key: &[u8]) -> Option<Reply> {
    let query = ReadQuery::parse(ctx, false).ok()?;
    let after = waited_for(&query, key)?;
    let most = if query.count == 0 { WAITED_COUNT } else { query.count };
    let stream = ctx.read::<Stream>(key).ok()??;
    if stream.last <= after {
        return None;
    }
    let entries = plain(stream, after, most);
    Some(streams_reply(ctx, vec![(Reply::bulk(key), entries)]))
}

fn serve_group(ctx: &mut Ctx<'_>, key: &[u8]) -> Option<Reply> {
    let query = ReadQuery::parse(ctx, true).ok()?;
    let (group, _) = query.group?;
    let Some(stream) = ctx.read::<Stream>(key).ok().flatten() else {
        return Some(Reply::Error(Error::fixed("UNBLOCKED the stream key no longer exists")));
    };
    let Some(group) = stream.groups.get(group) else {
        return Some(Reply::Error(Error::fixed(
            "NOGROUP the consumer group this client was blocked on no longer exists",
        )));
    };
    let after = group.last;
    if stream.last <= after {
        return None;
    }
    let most = if query.count == 0 { WAITED_COUNT } else { query.count };
    let entries = match grouped_new(ctx, &query, key, after, most) {
        Ok(entries) => entries,
        Err(error) => return Some(Reply::Error(error)),
    };
    Some(streams_reply(ctx, vec![(Reply::bulk(key), entries)]))
}
