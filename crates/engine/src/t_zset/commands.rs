//! The commands on one sorted set.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::algebra::{zdiff, zdiffstore, zinter, zintercard, zinterstore, zunion, zunionstore};
use super::range::{LexRange, ScoreRange};
use super::{PAST_LIMITS, ZaddOptions, ZaddOutcome, Zset, ZsetLimits};
use crate::Reply;
use crate::args;
use crate::blocked::Serve;
use crate::command::{
    BLOCKING, CommandRow, Ctx, DENYOOM, FAST, MOVABLE_KEYS, NOSCRIPT, READONLY, WRITE,
};
use crate::error::{Error, NOT_POSITIVE, SYNTAX};
use crate::notify::Class;
use crate::number;
use crate::pack::Elem;
use crate::pop::{self, PopEnd};
use crate::scan::{self, ScanRequest};
use crate::t_hash::{REPEATED_MAX, TOO_MANY, TOO_OFTEN, sample};
use crate::t_list::range_in;
use crate::t_set::store_result;
use crate::value::Value;

/// The commands of sorted sets.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("zadd", -4, WRITE | DENYOOM | FAST, zadd).keys(1, 1, 1),
    CommandRow::new("zincrby", 4, WRITE | DENYOOM | FAST, zincrby).keys(1, 1, 1),
    CommandRow::new("zrem", -3, WRITE | FAST, zrem).keys(1, 1, 1),
    CommandRow::new("zcard", 2, READONLY | FAST, zcard).keys(1, 1, 1),
    CommandRow::new("zcount", 4, READONLY | FAST, zcount).keys(1, 1, 1),
    CommandRow::new("zlexcount", 4, READONLY | FAST, zlexcount).keys(1, 1, 1),
    CommandRow::new("zscore", 3, READONLY | FAST, zscore).keys(1, 1, 1),
    CommandRow::new("zmscore", -3, READONLY | FAST, zmscore).keys(1, 1, 1),
    CommandRow::new("zrank", -3, READONLY | FAST, zrank).keys(1, 1, 1),
    CommandRow::new("zrevrank", -3, READONLY | FAST, zrevrank).keys(1, 1, 1),
    CommandRow::new("zrange", -4, READONLY, zrange).keys(1, 1, 1),
    CommandRow::new("zrangestore", -5, WRITE | DENYOOM, zrangestore).keys(1, 2, 1),
    CommandRow::new("zrevrange", -4, READONLY, zrevrange).keys(1, 1, 1),
    CommandRow::new("zrangebyscore", -4, READONLY, zrangebyscore).keys(1, 1, 1),
    CommandRow::new("zrevrangebyscore", -4, READONLY, zrevrangebyscore).keys(1, 1, 1),
    CommandRow::new("zrangebylex", -4, READONLY, zrangebylex).keys(1, 1, 1),
    CommandRow::new("zrevrangebylex", -4, READONLY, zrevrangebylex).keys(1, 1, 1),
    CommandRow::new("zremrangebyrank", 4, WRITE, zremrangebyrank).keys(1, 1, 1),
    CommandRow::new("zremrangebyscore", 4, WRITE, zremrangebyscore).keys(1, 1, 1),
    CommandRow::new("zremrangebylex", 4, WRITE, zremrangebylex).keys(1, 1, 1),
    CommandRow::new("zpopmin", -2, WRITE | FAST, zpopmin).keys(1, 1, 1),
    CommandRow::new("zpopmax", -2, WRITE | FAST, zpopmax).keys(1, 1, 1),
    CommandRow::new("zmpop", -4, WRITE | MOVABLE_KEYS, pop::many::<ZsetEnd>),
    CommandRow::new("zunion", -3, READONLY | MOVABLE_KEYS, zunion),
    CommandRow::new("zinter", -3, READONLY | MOVABLE_KEYS, zinter),
    CommandRow::new("zdiff", -3, READONLY | MOVABLE_KEYS, zdiff),
    CommandRow::new("zintercard", -3, READONLY | MOVABLE_KEYS, zintercard),
    CommandRow::new("zunionstore", -4, WRITE | DENYOOM | MOVABLE_KEYS, zunionstore).keys(1, 1, 1),
    CommandRow::new("zinterstore", -4, WRITE | DENYOOM | MOVABLE_KEYS, zinterstore).keys(1, 1, 1),
    CommandRow::new("zdiffstore", -4, WRITE | DENYOOM | MOVABLE_KEYS, zdiffstore).keys(1, 1, 1),
    CommandRow::new("zscan", -3, READONLY, zscan).keys(1, 1, 1),
    CommandRow::new("bzpopmin", -3, WRITE | NOSCRIPT | FAST | BLOCKING, |ctx| {
        pop::blocking_one(ctx, ZsetEnd::Min)
    })
    .keys(1, -2, 1),
    CommandRow::new("bzpopmax", -3, WRITE | NOSCRIPT | FAST | BLOCKING, |ctx| {
        pop::blocking_one(ctx, ZsetEnd::Max)
    })
    .keys(1, -2, 1),
    CommandRow::new("bzmpop", -5, WRITE | BLOCKING | MOVABLE_KEYS, pop::blocking_many::<ZsetEnd>),
    CommandRow::new("zrandmember", -2, READONLY, zrandmember).keys(1, 1, 1),
];

pub(crate) fn zadd(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    add(ctx, ZaddOptions::default())
}

fn zincrby(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    add(ctx, ZaddOptions { incr: true, ..ZaddOptions::default() })
}

fn add(ctx: &mut Ctx<'_>, mut when: ZaddOptions) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut rest = ctx.argv.get(2..).unwrap_or_default();
    let (mut count_changed, mut past_limits) = (false, false);
    while let [option, after @ ..] = rest {
        match () {
            () if ctx.session.loading && args::is(option, PAST_LIMITS) => past_limits = true,
            () if args::is(option, "NX") => when.nx = true,
            () if args::is(option, "XX") => when.xx = true,
            () if args::is(option, "GT") => when.gt = true,
            () if args::is(option, "LT") => when.lt = true,
            () if args::is(option, "CH") => count_changed = true,
            () if args::is(option, "INCR") => when.incr = true,
            () => break,
        }
        rest = after;
    }
    let (pairs, odd) = rest.as_chunks::<2>();
    if pairs.is_empty() || !odd.is_empty() {
        return Err(SYNTAX);
    }
    if when.nx && when.xx {
        return Err(Error::fixed("ERR XX and NX options at the same time are not compatible"));
    }
    if (when.nx && (when.gt || when.lt)) || (when.gt && when.lt) {
        return Err(Error::fixed(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if when.incr && pairs.len() > 1 {
        return Err(Error::fixed("ERR INCR option supports a single increment-element pair"));
    }
    let scores: SmallVec<[f64; 8]> =
        pairs.iter().map(|[score, _]| args::float(score)).collect::<Result<_, _>>()?;
    let none = if when.incr { Reply::Nil } else { Reply::Int(0) };
    if when.xx && ctx.write::<Zset>(key)?.is_none() {
        return Ok(none);
    }
    let limits = ZsetLimits::of(&ctx.core.config);
    let zset = ctx.write_or(key, Zset::default)?;
    if past_limits {
        zset.exceed_limits();
    }
    let (mut added, mut changed, mut last) = (0usize, 0usize, None);
    for ([_, member], score) in pairs.iter().zip(scores) {
        match zset.add(member, score, when, limits) {
            ZaddOutcome::New(score) => {
                added += 1;
                last = Some(score);
            }
            ZaddOutcome::Changed(score) => {
                changed += 1;
                last = Some(score);
            }
            ZaddOutcome::Same(score) => last = Some(score),
            ZaddOutcome::Refused => {}
            ZaddOutcome::NotANumber => {
                return Err(Error::fixed("ERR resulting score is not a number (NaN)"));
            }
        }
    }
    if added + changed > 0 {
        let event = if when.incr { "zincr" } else { "zadd" };
        ctx.changed_by((added + changed) as u64, Class::Zset, event, key);
    }
    if when.incr {
        return Ok(last.map_or(Reply::Nil, Reply::Double));
    }
    Ok(if count_changed { added + changed } else { added }.into())
}

fn zrem(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let Some(zset) = ctx.write::<Zset>(key)? else { return Ok(Reply::Int(0)) };
    let removed = argv.iter().skip(2).filter(|member| zset.remove(member).is_some()).count();
    let empty = zset.len() == 0;
    removed_from(ctx, key, removed, empty, "zrem");
    Ok(removed.into())
}

/// Says that members were taken out, and deletes the key if none is left.
fn removed_from(ctx: &mut Ctx<'_>, key: &[u8], count: usize, empty: bool, event: &str) {
    if count > 0 {
        ctx.changed_by(count as u64, Class::Zset, event, key);
        ctx.drop_if(key, empty);
    }
}

fn zcard(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<Zset>(key)?.map_or(0, Zset::len).into())
}

fn zcount(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let range = ScoreRange::parse(ctx.arg(2), ctx.arg(3))?;
    let key = ctx.arg(1);
    Ok(ctx.read::<Zset>(key)?.map_or(0, |zset| zset.score_range(&range).1).into())
}

fn zlexcount(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let range = LexRange::parse(ctx.arg(2), ctx.arg(3))?;
    let key = ctx.arg(1);
    Ok(ctx.read::<Zset>(key)?.map_or(0, |zset| zset.lex_range(&range, false).1).into())
}

fn zscore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, member) = (ctx.arg(1), ctx.arg(2));
    let score = ctx.read::<Zset>(key)?.and_then(|zset| zset.score(member));
    Ok(score.map_or(Reply::Nil, Reply::Double))
}

fn zmscore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, argv) = (ctx.arg(1), ctx.argv);
    let zset = ctx.read::<Zset>(key)?;
    let scores = argv
        .iter()
        .skip(2)
        .map(|member| zset.and_then(|zset| zset.score(member)).map_or(Reply::Nil, Reply::Double));
    Ok(Reply::Array(scores.collect()))
}

fn zrank(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    rank(ctx, |_, rank| rank)
}

fn zrevrank(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    rank(ctx, |zset, rank| zset.len() - 1 - rank)
}

/// `ZRANK key member [WITHSCORE]`; the option is of Redis 7.2.
fn rank(ctx: &mut Ctx<'_>, count: impl Fn(&Zset, usize) -> usize) -> Result<Reply, Error> {
    let (key, member) = (ctx.arg(1), ctx.arg(2));
    let with_score = match ctx.argv.get(3..) {
        None | Some([]) => false,
        Some([word]) if args::is(word, "WITHSCORE") => true,
        // As Redis 7.0 answers, which does not know the option.
        Some(_) => return Err(Error::arity(&String::from_utf8_lossy(ctx.arg(0)).to_lowercase())),
    };
    let zset = ctx.read::<Zset>(key)?;
    let rank = zset.and_then(|zset| zset.rank(member).map(|rank| count(zset, rank)));
    if !with_score {
        return Ok(rank.map_or(Reply::Nil, Reply::from));
    }
    let score = zset.and_then(|zset| zset.score(member));
    Ok(rank.zip(score).map_or(Reply::NilArray, |(rank, score)| {
        Reply::Array(vec![rank.into(), Reply::Double(score)])
    }))
}

/// The order a range refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeBy {
    Rank,
    Score,
    Lex,
}

/// A range with its options, as ZRANGE and its elders give it.
#[derive(Debug)]
struct RangeQuery<'a> {
    key: &'a [u8],
    borders: Borders<'a>,
    backwards: bool,
    with_scores: bool,
    offset: i64,
    limit: i64,
}

#[derive(Debug)]
enum Borders<'a> {
    Rank(i64, i64),
    Score(ScoreRange),
    Lex(LexRange<'a>),
}

impl<'a> RangeQuery<'a> {
    /// `key min max [options]`; `by` and `backwards` are options where they are not given.
    fn parse(
        args: &'a [&'a [u8]],
        by: Option<RangeBy>,
        backwards: Option<bool>,
        store: bool,
    ) -> Result<RangeQuery<'a>, Error> {
        let [key, min, max, rest @ ..] = args else { return Err(SYNTAX) };
        let (mut by_option, mut back_option) = (by, backwards);
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut rest = rest;
        while let [option, after @ ..] = rest {
            rest = after;
            if !store && args::is(option, "WITHSCORES") {
                with_scores = true;
            } else if let [first, count, after @ ..] = after
                && args::is(option, "LIMIT")
            {
                offset = args::int(first)?;
                limit = args::int(count)?;
                rest = after;
            } else if back_option.is_none() && args::is(option, "REV") {
                back_option = Some(true);
            } else if by_option.is_none() && args::is(option, "BYLEX") {
                by_option = Some(RangeBy::Lex);
            } else if by_option.is_none() && args::is(option, "BYSCORE") {
                by_option = Some(RangeBy::Score);
            } else {
                return Err(SYNTAX);
            }
        }
        let (by, backwards) = (by_option.unwrap_or(RangeBy::Rank), back_option.unwrap_or(false));
        if limit != -1 && by == RangeBy::Rank {
            return Err(Error::fixed(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == RangeBy::Lex {
            return Err(Error::fixed(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (min, max) = if backwards && by != RangeBy::Rank { (max, min) } else { (min, max) };
        let borders = match by {
            RangeBy::Rank => Borders::Rank(args::int(min)?, args::int(max)?),
            RangeBy::Score => Borders::Score(ScoreRange::parse(min, max)?),
            RangeBy::Lex => Borders::Lex(LexRange::parse(min, max)?),
        };
        Ok(RangeQuery { key, borders, backwards, with_scores, offset, limit })
    }

    /// The members it asks for, in the order in which it asks.
    fn find<'z>(&self, zset: &'z Zset) -> Vec<(Elem<'z>, f64)> {
        let (first, count) = match &self.borders {
            Borders::Rank(start, end) => {
                let (start, count) = range_in(*start, *end, zset.len());
                let start =
                    if self.backwards { (zset.len() - count).saturating_sub(start) } else { start };
                (start, count)
            }
            Borders::Score(range) => zset.score_range(range),
            Borders::Lex(range) => zset.lex_range(range, self.backwards),
        };
        let Some(skipped) = usize::try_from(self.offset).ok().filter(|n| *n < count) else {
            return Vec::new();
        };
        let wanted = usize::try_from(self.limit).unwrap_or(usize::MAX).min(count - skipped);
        let from = if self.backwards { first + count - 1 - skipped } else { first + skipped };
        zset.slice(from, wanted, self.backwards)
    }
}

fn zrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, None, None)
}

fn zrevrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, Some(RangeBy::Rank), Some(true))
}

fn zrangebyscore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, Some(RangeBy::Score), Some(false))
}

fn zrevrangebyscore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, Some(RangeBy::Score), Some(true))
}

fn zrangebylex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, Some(RangeBy::Lex), Some(false))
}

fn zrevrangebylex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    range(ctx, Some(RangeBy::Lex), Some(true))
}

fn range(ctx: &mut Ctx<'_>, by: Option<RangeBy>, backwards: Option<bool>) -> Result<Reply, Error> {
    let args = ctx.argv.get(1..).unwrap_or_default();
    let query = RangeQuery::parse(args, by, backwards, false)?;
    let resp = ctx.session.resp;
    let Some(zset) = ctx.read::<Zset>(query.key)? else { return Ok(Reply::Array(Vec::new())) };
    Ok(members(query.find(zset), query.with_scores, resp > 2))
}

/// Members as a reply: alone, with scores in one row, or with scores in pairs.
fn members(found: Vec<(Elem<'_>, f64)>, with_scores: bool, nested: bool) -> Reply {
    let bulk = |elem: Elem<'_>| Reply::Bulk(elem.to_vec());
    Reply::Array(match (with_scores, nested) {
        (false, _) => found.into_iter().map(|(elem, _)| bulk(elem)).collect(),
        (true, false) => {
            found.into_iter().flat_map(|(elem, score)| [bulk(elem), Reply::Double(score)]).collect()
        }
        (true, true) => found
            .into_iter()
            .map(|(elem, score)| Reply::Array(vec![bulk(elem), Reply::Double(score)]))
            .collect(),
    })
}

fn zrangestore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let args = ctx.argv.get(2..).unwrap_or_default();
    let query = RangeQuery::parse(args, None, None, true)?;
    let limits = ZsetLimits::of(&ctx.core.config);
    let mut result = Zset::default();
    if let Some(zset) = ctx.read::<Zset>(query.key)? {
        for (elem, score) in query.find(zset) {
            result.add(elem.bytes(&mut [0; 36]), score, ZaddOptions::default(), limits);
        }
    }
    let (key, len) = (ctx.arg(1), result.len());
    store_result(ctx, key, (len > 0).then_some(Value::Zset(result)), Class::Zset, "zrangestore");
    Ok(len.into())
}

fn zremrangebyrank(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (start, end) = (args::int(ctx.arg(2))?, args::int(ctx.arg(3))?);
    remove_range(ctx, "zremrangebyrank", |zset| range_in(start, end, zset.len()))
}

fn zremrangebyscore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let range = ScoreRange::parse(ctx.arg(2), ctx.arg(3))?;
    remove_range(ctx, "zremrangebyscore", |zset| zset.score_range(&range))
}

fn zremrangebylex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let range = LexRange::parse(ctx.arg(2), ctx.arg(3))?;
    remove_range(ctx, "zremrangebylex", |zset| zset.lex_range(&range, false))
}

fn remove_range(
    ctx: &mut Ctx<'_>,
    event: &str,
    find: impl FnOnce(&Zset) -> (usize, usize),
) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let Some(zset) = ctx.write::<Zset>(key)? else { return Ok(Reply::Int(0)) };
    let (first, count) = find(zset);
    zset.remove_range(first, count);
    let empty = zset.len() == 0;
    removed_from(ctx, key, count, empty, event);
    Ok(count.into())
}

/// The end from which members are popped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZsetEnd {
    Min,
    Max,
}

impl ZsetEnd {
    fn event(self) -> &'static str {
        if self == ZsetEnd::Min { "zpopmin" } else { "zpopmax" }
    }

    fn command(self) -> &'static [u8] {
        if self == ZsetEnd::Min { b"ZPOPMIN" } else { b"ZPOPMAX" }
    }
}

fn zpopmin(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    pop(ctx, ZsetEnd::Min)
}

fn zpopmax(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    pop(ctx, ZsetEnd::Max)
}

fn pop(ctx: &mut Ctx<'_>, end: ZsetEnd) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let count = match ctx.argv.get(2..) {
        None | Some([]) => None,
        Some([count]) => {
            let count = args::int(count).ok().and_then(|n| usize::try_from(n).ok());
            Some(count.ok_or(NOT_POSITIVE)?)
        }
        Some(_) => return Err(SYNTAX),
    };
    if ctx.write::<Zset>(key)?.is_none() || count == Some(0) {
        return Ok(Reply::Array(Vec::new()));
    }
    let nested = ctx.session.resp > 2 && count.is_some();
    Ok(Reply::Array(pop_many(ctx, key, end, count.unwrap_or(1), nested)?))
}

/// Pops up to `count` members with their scores, in one row or in pairs.
fn pop_many(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    end: ZsetEnd,
    count: usize,
    nested: bool,
) -> Result<Vec<Reply>, Error> {
    let Some(zset) = ctx.write::<Zset>(key)? else { return Ok(Vec::new()) };
    let count = count.min(zset.len());
    let last = zset.len() - usize::from(zset.len() > 0);
    let from = if end == ZsetEnd::Min { 0 } else { last };
    let found = members(zset.slice(from, count, end == ZsetEnd::Max), true, nested);
    zset.remove_range(if end == ZsetEnd::Min { 0 } else { zset.len() - count }, count);
    let empty = zset.len() == 0;
    removed_from(ctx, key, count, empty, end.event());
    Ok(if let Reply::Array(found) = found { found } else { Vec::new() })
}

impl PopEnd for ZsetEnd {
    fn read(word: &[u8]) -> Result<ZsetEnd, Error> {
        match () {
            () if args::is(word, "MIN") => Ok(ZsetEnd::Min),
            () if args::is(word, "MAX") => Ok(ZsetEnd::Max),
            () => Err(SYNTAX),
        }
    }

    fn pop_first(
        self,
        ctx: &mut Ctx<'_>,
        keys: &[&[u8]],
        count: Option<usize>,
    ) -> Result<Option<Reply>, Error> {
        for key in keys {
            if ctx.write::<Zset>(key)?.is_none_or(|zset| zset.len() == 0) {
                continue;
            }
            let popped = pop_many(ctx, key, self, count.unwrap_or(1), count.is_some())?;
            let mut reply = vec![Reply::bulk(key)];
            match count {
                None => {
                    ctx.effect(&[self.command(), key]);
                    reply.extend(popped);
                }
                Some(_) => {
                    ctx.effect(&[self.command(), key, popped.len().to_string().as_bytes()]);
                    reply.push(Reply::Array(popped));
                }
            }
            return Ok(Some(Reply::Array(reply)));
        }
        Ok(None)
    }

    fn serve_one(self) -> Serve {
        match self {
            ZsetEnd::Min => |ctx, key| pop::serve(ctx, key, ZsetEnd::Min, None),
            ZsetEnd::Max => |ctx, key| pop::serve(ctx, key, ZsetEnd::Max, None),
        }
    }
}

fn zscan(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let cursor = scan::cursor(ctx.arg(2))?;
    let scan = ScanRequest::read(ctx, 2);
    let Some(zset) = ctx.read::<Zset>(key)? else { return Ok(ScanRequest::reply(0, Vec::new())) };
    // Options are looked at only when there is something to scan.
    let scan = scan?;
    let mut found = Vec::new();
    let next = zset.scan(cursor, scan.count, |member, score| {
        if scan.fits(member.bytes(&mut [0; 36])) {
            found.push(Reply::Bulk(member.to_vec()));
            if !scan.no_values {
                found.push(Reply::Bulk(number::format_f64(score)));
            }
        }
    });
    Ok(ScanRequest::reply(next, found))
}

fn zrandmember(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let mut rng = ctx.core.rng.fork();
    if ctx.argv.len() == 2 {
        let Some(zset) = ctx.read::<Zset>(key)? else { return Ok(Reply::Nil) };
        let found = zset.slice(rng.usize(..zset.len().max(1)), 1, false);
        return Ok(found.first().map_or(Reply::Nil, |(elem, _)| Reply::Bulk(elem.to_vec())));
    }
    let count = args::int_in(ctx.arg(2), -i64::MAX, i64::MAX)?;
    let with_scores = match ctx.argv.get(3..) {
        None | Some([]) => false,
        Some([word]) if args::is(word, "WITHSCORES") => true,
        Some(_) => return Err(SYNTAX),
    };
    if with_scores && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
        return Err(TOO_MANY);
    }
    let resp = ctx.session.resp;
    let Some(zset) = ctx.read::<Zset>(key)? else { return Ok(Reply::Array(Vec::new())) };
    if count < -REPEATED_MAX {
        return Err(TOO_OFTEN);
    }
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let len = zset.len();
    let found = if count < 0 || wanted == 1 {
        (0..wanted).flat_map(|_| zset.slice(rng.usize(..len.max(1)), 1, false)).collect()
    } else if wanted.saturating_mul(3) > len || matches!(zset, Zset::Packed(_)) {
        sample(zset.iter(), len, wanted, &mut rng).collect()
    } else {
        let mut ranks = HashSet::with_capacity(wanted);
        let mut found = Vec::with_capacity(wanted);
        while ranks.len() < wanted {
            let rank = rng.usize(..len);
            if ranks.insert(rank) {
                found.extend(zset.slice(rank, 1, false));
            }
        }
        found
    };
    Ok(members(found, with_scores, resp > 2))
}
