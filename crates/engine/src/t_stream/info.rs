//! XINFO.

use super::group::StreamExtent;
use super::group_commands::{bad_subcommand, missing_group};
use super::{Id, Stream, entry_reply};
use crate::Reply;
use crate::args;
use crate::command::Ctx;
use crate::error::{Error, NO_SUCH_KEY};

fn word(text: &str) -> Reply {
    Reply::bulk(text)
}

fn int_or_nil(n: Option<i64>) -> Reply {
    n.map_or(Reply::Nil, Reply::Int)
}

pub(super) fn consumers(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, name, now_ms) = (ctx.arg(2), ctx.arg(3), ctx.now.ms());
    let Some(stream) = ctx.read::<Stream>(key)? else { return Err(NO_SUCH_KEY) };
    let Some(group) = stream.groups.get(name) else { return Err(missing_group(key, name)) };
    let consumers = group.consumers.iter().map(|(name, consumer)| {
        Reply::Map(vec![
            (word("name"), Reply::bulk(name)),
            (word("pending"), consumer.pending.len().into()),
            (word("idle"), Reply::Int((now_ms - consumer.seen_ms).max(0))),
            // Of Redis 7.2.
            (
                word("inactive"),
                Reply::Int(consumer.active_ms.map_or(-1, |at| (now_ms - at).max(0))),
            ),
        ])
    });
    Ok(Reply::Array(consumers.collect()))
}

pub(super) fn groups(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(2);
    let Some(stream) = ctx.read::<Stream>(key)? else { return Err(NO_SUCH_KEY) };
    let position = StreamExtent::of(stream);
    let groups = stream.groups.iter().map(|(name, group)| {
        Reply::Map(vec![
            (word("name"), Reply::bulk(name)),
            (word("consumers"), group.consumers.len().into()),
            (word("pending"), group.pending.len().into()),
            (word("last-delivered-id"), group.last.into()),
            (word("entries-read"), int_or_nil(group.read)),
            (word("lag"), int_or_nil(position.lag(group))),
        ])
    });
    Ok(Reply::Array(groups.collect()))
}

pub(super) fn stream(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(2);
    let full = full_count(ctx);
    let Some(stream) = ctx.read::<Stream>(key)? else { return Err(NO_SUCH_KEY) };
    let full = full?;
    let ids: Vec<[u8; 16]> = stream.node_ids().map(Id::to_bytes).collect();
    let mut map = vec![
        (word("length"), Reply::Int(stream.len() as i64)),
        (word("radix-tree-keys"), ids.len().into()),
        (word("radix-tree-nodes"), radix_nodes(&ids).into()),
        (word("last-generated-id"), stream.last.into()),
        (word("max-deleted-entry-id"), stream.max_deleted.into()),
        (word("entries-added"), Reply::Int(stream.added as i64)),
        (word("recorded-first-entry-id"), stream.first().into()),
    ];
    match full {
        None => {
            let first = stream.range(Id::MIN, Id::MAX).next();
            let last = stream.range_back(Id::MIN, Id::MAX).next();
            map.extend([
                (word("groups"), stream.groups.len().into()),
                (word("first-entry"), first.map_or(Reply::Nil, |entry| entry_reply(&entry))),
                (word("last-entry"), last.map_or(Reply::Nil, |entry| entry_reply(&entry))),
            ]);
        }
        Some(count) => {
            let entries = stream.range(Id::MIN, Id::MAX).take(count);
            let entries = entries.map(|entry| entry_reply(&entry)).collect();
            map.extend([
                (word("entries"), Reply::Array(entries)),
                (word("groups"), full_groups(stream, count)),
            ]);
        }
    }
    Ok(Reply::Map(map))
}

/// With `FULL [COUNT count]`: how much of each list to show.
fn full_count(ctx: &Ctx<'_>) -> Result<Option<usize>, Error> {
    let count = match ctx.argv.get(3..).unwrap_or_default() {
        [] => return Ok(None),
        [full] if args::is(full, "FULL") => 10,
        [full, count, n] if args::is(full, "FULL") && args::is(count, "COUNT") => args::int(n)?,
        _ => return Err(bad_subcommand(ctx)),
    };
    Ok(Some(match count {
        0 => usize::MAX,
        ..0 => 10,
        _ => usize::try_from(count).unwrap_or(usize::MAX),
    }))
}

fn full_groups(stream: &Stream, count: usize) -> Reply {
    let position = StreamExtent::of(stream);
    let groups = stream.groups.iter().map(|(name, group)| {
        let pending = group.pending.iter().take(count).map(|(id, pending)| {
            Reply::Array(vec![
                (*id).into(),
                Reply::bulk(&pending.consumer),
                Reply::Int(pending.delivered_ms),
                Reply::Int(pending.count),
            ])
        });
        let consumers = group.consumers.iter().map(|(name, consumer)| {
            let ids = consumer.pending.iter().take(count);
            let pending =
                ids.filter_map(|id| group.pending.get_key_value(id)).map(|(id, pending)| {
                    Reply::Array(vec![
                        (*id).into(),
                        Reply::Int(pending.delivered_ms),
                        Reply::Int(pending.count),
                    ])
                });
            Reply::Map(vec![
                (word("name"), Reply::bulk(name)),
                (word("seen-time"), Reply::Int(consumer.seen_ms)),
                (word("pel-count"), consumer.pending.len().into()),
                (word("pending"), Reply::Array(pending.collect())),
            ])
        });
        Reply::Map(vec![
            (word("name"), Reply::bulk(name)),
            (word("last-delivered-id"), group.last.into()),
            (word("entries-read"), int_or_nil(group.read)),
            (word("lag"), int_or_nil(position.lag(group))),
            (word("pel-count"), group.pending.len().into()),
            (word("pending"), Reply::Array(pending.collect())),
            (word("consumers"), Reply::Array(consumers.collect())),
        ])
    });
    Reply::Array(groups.collect())
}

/// Nodes of the radix tree that Redis would keep these keys in: one for each fork, one for each
/// stretch without fork, one for each end. Keys are sorted and of one length.
fn radix_nodes(keys: &[[u8; 16]]) -> usize {
    if keys.is_empty() { 1 } else { nodes_below(keys, 0) }
}

fn nodes_below(keys: &[[u8; 16]], depth: usize) -> usize {
    let ([first, ..], [.., last]) = (keys, keys) else { return 0 };
    let shared = first.iter().zip(last).skip(depth).take_while(|(a, b)| a == b).count();
    let fork = depth + shared;
    let stretch = usize::from(shared > 0);
    if fork >= first.len() {
        return stretch + 1;
    }
    let branches = keys.chunk_by(|a, b| a.get(fork) == b.get(fork));
    stretch + 1 + branches.map(|keys| nodes_below(keys, fork + 1)).sum::<usize>()
}

/// The answer to `… HELP` from lines as Redis has them.
pub(super) fn help_lines(command: &str, lines: &[&str]) -> Reply {
    let first = format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let lines = std::iter::once(first)
        .chain(lines.iter().map(|line| (*line).to_owned()))
        .chain(["HELP".to_owned(), "    Prints this help.".to_owned()]);
    Reply::Array(lines.map(|line| Reply::Status(line.into_bytes().into())).collect())
}

pub(super) fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(help_lines(
        "XINFO",
        &[
            "CONSUMERS <key> <groupname>",
            "    Show consumers of <groupname>.",
            "GROUPS <key>",
            "    Show the stream consumer groups.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Show information about the stream.",
        ],
    ))
}
