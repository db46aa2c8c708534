//! Commands on a stream's entries.

use super::id::NewId;
use super::{Id, NodeLimits, Stream, StreamEntry, Trim, TrimTo, entry_reply};
use crate::Reply;
use crate::args;
use crate::command::Ctx;
use crate::error::{Error, NO_SUCH_KEY, SYNTAX};
use crate::notify::Class;

/// Bytes of one entry's fields at most.
const ENTRY_MAX: usize = 1 << 30;

const TOO_LARGE: Error = Error::fixed("ERR Elements are too large to be stored");

/// The options that XADD and XTRIM share.
#[derive(Debug)]
struct Options<'a> {
    trim: Option<Trim>,
    no_make: bool,
    /// The id of XADD, and what follows it.
    id: Option<&'a [u8]>,
    rest: &'a [&'a [u8]],
}

impl<'a> Options<'a> {
    fn parse(ctx: &Ctx<'a>, adds: bool) -> Result<Options<'a>, Error> {
        let mut found = Options { trim: None, no_make: false, id: None, rest: &[] };
        let mut limit = None;
        let mut rest = ctx.argv.get(2..).unwrap_or_default();
        while let [option, after @ ..] = rest {
            let by_length = args::is(option, "MAXLEN");
            rest = if adds && **option == *b"*" {
                (found.id, found.rest) = (Some(*option), after);
                break;
            } else if !after.is_empty() && (by_length || args::is(option, "MINID")) {
                let (trim, after) = trim_to(&found, by_length, after)?;
                found.trim = Some(trim);
                after
            } else if let [value, after @ ..] = after
                && args::is(option, "LIMIT")
            {
                let most = args::int(value)?;
                if most < 0 {
                    return Err(Error::fixed("ERR The LIMIT argument must be >= 0."));
                }
                limit = Some(most.unsigned_abs());
                after
            } else if adds && args::is(option, "NOMKSTREAM") {
                found.no_make = true;
                after
            } else if adds {
                NewId::parse(option)?;
                (found.id, found.rest) = (Some(*option), after);
                break;
            } else {
                return Err(SYNTAX);
            };
        }
        found.check_limit(ctx, limit, adds)?;
        Ok(found)
    }

    fn check_limit(&mut self, ctx: &Ctx<'_>, limit: Option<u64>, adds: bool) -> Result<(), Error> {
        let Some(trim) = &mut self.trim else {
            if limit.is_some_and(|limit| limit > 0) {
                return Err(Error::fixed(
                    "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
                ));
            }
            if !adds {
                return Err(Error::fixed(
                    "ERR syntax error, XTRIM must be called with a trimming strategy",
                ));
            }
            return Ok(());
        };
        trim.limit = match limit {
            Some(_) if !trim.nodes_only => {
                return Err(Error::fixed(
                    "ERR syntax error, LIMIT cannot be used without the special ~ option",
                ));
            }
            Some(limit) => limit,
            None if trim.nodes_only => match 100 * ctx.core.config.stream_node_max_entries as u64 {
                0 => 10_000,
                most => most.min(1_000_000),
            },
            None => 0,
        };
        Ok(())
    }
}

/// `[~|=] threshold`, and what follows.
fn trim_to<'a>(
    found: &Options<'_>,
    by_length: bool,
    args: &'a [&'a [u8]],
) -> Result<(Trim, &'a [&'a [u8]]), Error> {
    if found.trim.is_some() {
        return Err(Error::fixed(
            "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
        ));
    }
    let (nodes_only, args) = match args {
        [sign, rest @ ..] if !rest.is_empty() && **sign == *b"~" => (true, rest),
        [sign, rest @ ..] if !rest.is_empty() && **sign == *b"=" => (false, rest),
        _ => (false, args),
    };
    let [threshold, rest @ ..] = args else { return Err(SYNTAX) };
    let to = if by_length {
        let most = args::int(threshold)?;
        let error = Error::fixed("ERR The MAXLEN argument must be >= 0.");
        TrimTo::Length(u64::try_from(most).map_err(|_| error)?)
    } else {
        TrimTo::Id(Id::parse(threshold, 0)?)
    };
    Ok((Trim { to, nodes_only, limit: 0 }, rest))
}

/// Records the result of a trim as an effect that trims the same when it is repeated.
fn exact(trim: &Trim, stream: &Stream) -> [Vec<u8>; 3] {
    let (word, threshold) = match trim.to {
        TrimTo::Length(most) => {
            let most = if trim.nodes_only { stream.len() } else { most };
            (b"MAXLEN".to_vec(), most.to_string().into_bytes())
        }
        TrimTo::Id(_) if trim.nodes_only && stream.len() == 0 => {
            (b"MINID".to_vec(), Id::MAX.text())
        }
        TrimTo::Id(_) if trim.nodes_only => (b"MINID".to_vec(), stream.first().text()),
        TrimTo::Id(least) => (b"MINID".to_vec(), least.text()),
    };
    [word, b"=".to_vec(), threshold]
}

pub(super) fn xadd(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let options = Options::parse(ctx, true)?;
    let fields = options.rest;
    let Some(given) = options.id.filter(|_| !fields.is_empty() && fields.len() % 2 == 0) else {
        return Err(Error::arity("xadd"));
    };
    let given = if given == b"*" { None } else { Some(NewId::parse(given)?) };
    if given == Some(NewId::Whole(Id::MIN)) {
        return Err(Error::fixed("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let last = match ctx.write::<Stream>(key)? {
        Some(stream) => stream.last,
        None if options.no_make => return Ok(Reply::Nil),
        None => Id::MIN,
    };
    if last == Id::MAX {
        return Err(Error::fixed(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let now = u64::try_from(ctx.now.ms()).unwrap_or(0);
    // No sequence number left is told with the words for elements too large: so Redis does it.
    let id = next_id(given, last, now).ok_or(TOO_LARGE)?;
    if id <= last {
        return Err(Error::fixed(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        ));
    }
    if fields.iter().map(|bytes| bytes.len()).sum::<usize>() > ENTRY_MAX {
        return Err(TOO_LARGE);
    }
    let limits = NodeLimits::of(&ctx.core.config);
    let stream = ctx.write_or(key, Stream::default)?;
    stream.push(id, fields, limits);
    let trimmed = options.trim.map_or(0, |trim| stream.trim(&trim));
    let done = options.trim.map(|trim| exact(&trim, stream));
    ctx.changed(Class::Stream, "xadd", key);
    let db = ctx.db_index();
    if trimmed > 0 {
        ctx.core.notify(db, Class::Stream, "xtrim", key);
    }
    let text = id.text();
    let mut effect: Vec<&[u8]> = vec![b"XADD", key];
    effect.extend(done.iter().flatten().map(Vec::as_slice));
    effect.push(&text);
    effect.extend(fields);
    ctx.effect(&effect);
    ctx.core.key_ready(db, key);
    Ok(Reply::Bulk(text))
}

fn next_id(given: Option<NewId>, last: Id, now: u64) -> Option<Id> {
    match given {
        Some(NewId::Whole(id)) => Some(id),
        Some(NewId::Milliseconds(ms)) if ms == last.ms => {
            last.seq.checked_add(1).map(|seq| Id { ms, seq })
        }
        Some(NewId::Milliseconds(ms)) => Some(Id { ms, seq: 0 }),
        None if now > last.ms => Some(Id { ms: now, seq: 0 }),
        None => last.next(),
    }
}

pub(super) fn xlen(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let len = ctx.read::<Stream>(key)?.map_or(0, Stream::len);
    Ok(Reply::Int(len as i64))
}

pub(super) fn xrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (start, end) = (Id::parse_start(ctx.arg(2))?, ctx.arg(3));
    range(ctx, start, Id::parse_end(end)?, false)
}

pub(super) fn xrevrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (start, end) = (Id::parse_start(ctx.arg(3))?, ctx.arg(2));
    range(ctx, start, Id::parse_end(end)?, true)
}

fn range(ctx: &mut Ctx<'_>, start: Id, end: Id, back: bool) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut count = None;
    let mut rest = ctx.argv.get(4..).unwrap_or_default();
    while let [option, after @ ..] = rest {
        let [value, after @ ..] = after else { return Err(SYNTAX) };
        if !args::is(option, "COUNT") {
            return Err(SYNTAX);
        }
        count = Some(usize::try_from(args::int(value)?).unwrap_or(0));
        rest = after;
    }
    let Some(stream) = ctx.read::<Stream>(key)? else { return Ok(Reply::Array(Vec::new())) };
    if count == Some(0) {
        return Ok(Reply::NilArray);
    }
    let most = count.unwrap_or(usize::MAX);
    let reply = |entry: StreamEntry<'_>| entry_reply(&entry);
    Ok(Reply::Array(if back {
        stream.range_back(start, end).take(most).map(reply).collect()
    } else {
        stream.range(start, end).take(most).map(reply).collect()
    }))
}

pub(super) fn xdel(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let Some(stream) = ctx.write::<Stream>(key)? else { return Ok(Reply::Int(0)) };
    let ids: Vec<Id> = argv.iter().skip(2).map(|id| Id::parse(id, 0)).collect::<Result<_, _>>()?;
    let deleted = ids.into_iter().filter(|id| stream.delete(*id)).count();
    if deleted > 0 {
        ctx.changed_by(deleted as u64, Class::Stream, "xdel", key);
    }
    Ok(deleted.into())
}

pub(super) fn xtrim(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(trim) = Options::parse(ctx, false)?.trim else { return Err(SYNTAX) };
    let Some(stream) = ctx.write::<Stream>(key)? else { return Ok(Reply::Int(0)) };
    let deleted = stream.trim(&trim);
    let done = exact(&trim, stream);
    if deleted > 0 {
        ctx.changed_by(deleted, Class::Stream, "xtrim", key);
        let [word, sign, threshold] = &done;
        ctx.effect(&[b"XTRIM", key, word, sign, threshold]);
    }
    Ok(Reply::Int(deleted as i64))
}

pub(super) fn xsetid(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let id = Id::parse(ctx.arg(2), 0)?;
    let (mut added, mut max_deleted) = (None, None);
    let mut rest = ctx.argv.get(3..).unwrap_or_default();
    while let [option, after @ ..] = rest {
        let [value, after @ ..] = after else { return Err(SYNTAX) };
        if args::is(option, "ENTRIESADDED") {
            let error = Error::fixed("ERR entries_added must be positive");
            added = Some(u64::try_from(args::int(value)?).map_err(|_| error)?);
        } else if args::is(option, "MAXDELETEDID") {
            let deleted = Id::parse(value, 0)?;
            if id < deleted {
                return Err(Error::fixed(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
            max_deleted = Some(deleted).filter(|deleted| *deleted != Id::MIN);
        } else {
            return Err(SYNTAX);
        }
        rest = after;
    }
    let Some(stream) = ctx.write::<Stream>(key)? else { return Err(NO_SUCH_KEY) };
    if stream.len() > 0 {
        if stream.last_live().is_some_and(|last| id < last) {
            return Err(Error::fixed(
                "ERR The ID specified in XSETID is smaller than the target stream top item",
            ));
        }
        if added.is_some_and(|added| stream.len() > added) {
            return Err(Error::fixed(
                "ERR The entries_added specified in XSETID is smaller than the target stream length",
            ));
        }
    }
    stream.last = id;
    stream.added = added.unwrap_or(stream.added);
    stream.max_deleted = max_deleted.unwrap_or(stream.max_deleted);
    ctx.changed(Class::Stream, "xsetid", key);
    Ok(Reply::Ok)
}
