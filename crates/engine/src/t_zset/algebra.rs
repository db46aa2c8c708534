//! ZUNION, ZINTER, ZDIFF and what stores or counts their results.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::{Zset, ZsetLimits};
use crate::Reply;
use crate::args;
use crate::command::Ctx;
use crate::error::{Error, SYNTAX, WRONG_TYPE};
use crate::notify::Class;
use crate::pack::Elem;
use crate::t_set::{Arguments, Set, limit_of, peek, store_result};
use crate::value::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Inter,
    Diff,
}

#[derive(Debug, Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn join(self, a: f64, b: f64) -> f64 {
        match self {
            Aggregate::Sum => not_nan(a + b),
            Aggregate::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Aggregate::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

/// Opposite infinities make zero.
fn not_nan(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// A set or sorted set that goes in; members of a set have score 1.
#[derive(Debug, Clone, Copy)]
enum SourceSet<'c> {
    Zset(&'c Zset),
    Set(&'c Set),
    Nothing,
}

impl<'c> SourceSet<'c> {
    fn len(&self) -> usize {
        match self {
            SourceSet::Zset(zset) => zset.len(),
            SourceSet::Set(set) => set.len(),
            SourceSet::Nothing => 0,
        }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            SourceSet::Zset(zset) => zset.score(member),
            SourceSet::Set(set) => set.contains(member).then_some(1.0),
            SourceSet::Nothing => None,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Elem<'c>, f64)> + use<'c> {
        let (zset, set) = match *self {
            SourceSet::Zset(zset) => (Some(zset.iter()), None),
            SourceSet::Set(set) => (None, Some(set.iter())),
            SourceSet::Nothing => (None, None),
        };
        zset.into_iter().flatten().chain(set.into_iter().flatten().map(|elem| (elem, 1.0)))
    }
}

pub(super) fn zunion(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    answer(ctx, Operation::Union, "zunion")
}

pub(super) fn zinter(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    answer(ctx, Operation::Inter, "zinter")
}

pub(super) fn zdiff(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    answer(ctx, Operation::Diff, "zdiff")
}

pub(super) fn zunionstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    store(ctx, Operation::Union, "zunionstore")
}

pub(super) fn zinterstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    store(ctx, Operation::Inter, "zinterstore")
}

pub(super) fn zdiffstore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    store(ctx, Operation::Diff, "zdiffstore")
}

fn answer(ctx: &mut Ctx<'_>, operation: Operation, name: &str) -> Result<Reply, Error> {
    let (keys, options) = keys_and_options(ctx, 1, name)?;
    let options = Options::parse(options, keys.len(), operation, true)?;
    let nested = ctx.session.resp > 2;
    let mut found = Vec::new();
    for (member, score) in compute(ctx, operation, keys, &options) {
        let member = Reply::Bulk(member);
        match (options.with_scores, nested) {
            (false, _) => found.push(member),
            (true, false) => found.extend([member, Reply::Double(score)]),
            (true, true) => found.push(Reply::Array(vec![member, Reply::Double(score)])),
        }
    }
    Ok(Reply::Array(found))
}

fn store(ctx: &mut Ctx<'_>, operation: Operation, name: &str) -> Result<Reply, Error> {
    let (keys, options) = keys_and_options(ctx, 2, name)?;
    let options = Options::parse(options, keys.len(), operation, false)?;
    let limits = ZsetLimits::of(&ctx.core.config);
    let zset = Zset::of(&compute(ctx, operation, keys, &options), limits);
    let (key, len) = (ctx.arg(1), zset.len());
    store_result(ctx, key, (len > 0).then_some(Value::Zset(zset)), Class::Zset, name);
    Ok(len.into())
}

pub(super) fn zintercard(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (keys, options) = keys_and_options(ctx, 1, "zintercard")?;
    let limit = limit_of(options)?;
    let mut sources = sources(ctx, keys);
    sources.sort_by_key(SourceSet::len);
    let Some((smallest, others)) = sources.split_first() else { return Ok(Reply::Int(0)) };
    let in_all = smallest.iter().filter(|(elem, _)| {
        let mut scratch = [0; 36];
        let member = elem.bytes(&mut scratch);
        others.iter().all(|source| source.score(member).is_some())
    });
    Ok(in_all.take(if limit == 0 { usize::MAX } else { limit }).count().into())
}

/// `numkeys key …` from position `at` on and what follows. Keys are looked up before anything else
/// is read, so a wrong type comes before a wrong option.
fn keys_and_options<'a>(
    ctx: &mut Ctx<'a>,
    at: usize,
    name: &str,
) -> Result<(Arguments<'a>, Arguments<'a>), Error> {
    let count = args::int(ctx.arg(at))?;
    if count < 1 {
        return Err(Error::new(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    let rest = ctx.argv.get(at + 1..).unwrap_or_default();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (keys, options) = rest.split_at_checked(count).ok_or(SYNTAX)?;
    for key in keys {
        let entry = ctx.entry(key);
        if entry.is_some_and(|entry| !matches!(entry.value, Value::Zset(_) | Value::Set(_))) {
            return Err(WRONG_TYPE);
        }
    }
    Ok((keys, options))
}

#[derive(Debug)]
struct Options {
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

impl Options {
    fn parse(
        mut rest: &[&[u8]],
        keys: usize,
        operation: Operation,
        may_have_scores: bool,
    ) -> Result<Options, Error> {
        let mut options =
            Options { weights: vec![1.0; keys], aggregate: Aggregate::Sum, with_scores: false };
        let weighs = operation != Operation::Diff;
        while let [option, after @ ..] = rest {
            if weighs && args::is(option, "WEIGHTS") && after.len() >= keys {
                let (weights, after) = after.split_at(keys);
                for (to, from) in options.weights.iter_mut().zip(weights) {
                    *to = args::float(from)
                        .map_err(|_| Error::fixed("ERR weight value is not a float"))?;
                }
                rest = after;
            } else if let [word, after @ ..] = after
                && weighs
                && args::is(option, "AGGREGATE")
            {
                options.aggregate = if args::is(word, "SUM") {
                    Aggregate::Sum
                } else if args::is(word, "MIN") {
                    Aggregate::Min
                } else if args::is(word, "MAX") {
                    Aggregate::Max
                } else {
                    return Err(SYNTAX);
                };
                rest = after;
            } else if may_have_scores && args::is(option, "WITHSCORES") {
                options.with_scores = true;
                rest = after;
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(options)
    }
}

fn sources<'c>(ctx: &'c Ctx<'_>, keys: &[&[u8]]) -> Vec<SourceSet<'c>> {
    let (core, db) = (&*ctx.core, ctx.session.db);
    keys.iter()
        .map(|key| match (peek::<Zset>(core, db, key), peek::<Set>(core, db, key)) {
            (Some(zset), _) => SourceSet::Zset(zset),
            (None, Some(set)) => SourceSet::Set(set),
            (None, None) => SourceSet::Nothing,
        })
        .collect()
}

/// The result in order of score and member.
fn compute(
    ctx: &Ctx<'_>,
    operation: Operation,
    keys: &[&[u8]],
    options: &Options,
) -> Vec<(Vec<u8>, f64)> {
    let mut sources: Vec<(SourceSet<'_>, f64)> =
        sources(ctx, keys).into_iter().zip(options.weights.iter().copied()).collect();
    if operation != Operation::Diff {
        sources.sort_by_key(|(source, _)| source.len());
    }
    let mut found: Vec<(Vec<u8>, f64)> = match operation {
        Operation::Union => {
            let mut scores: HashMap<Vec<u8>, f64> = HashMap::new();
            for (source, weight) in &sources {
                for (elem, score) in source.iter() {
                    let score = not_nan(weight * score);
                    scores
                        .entry(elem.to_vec())
                        .and_modify(|old| *old = options.aggregate.join(*old, score))
                        .or_insert(score);
                }
            }
            scores.into_iter().collect()
        }
        Operation::Inter => {
            let Some(((smallest, weight), others)) = sources.split_first() else {
                return Vec::new();
            };
            let in_all = |(elem, score): (Elem<'_>, f64)| {
                let member = elem.to_vec();
                let mut total = not_nan(weight * score);
                for (source, weight) in others {
                    total = options.aggregate.join(total, weight * source.score(&member)?);
                }
                Some((member, total))
            };
            smallest.iter().filter_map(in_all).collect()
        }
        Operation::Diff => {
            let Some(((first, _), others)) = sources.split_first() else { return Vec::new() };
            let only = |(elem, score): (Elem<'_>, f64)| {
                let member = elem.to_vec();
                let elsewhere = others.iter().any(|(source, _)| source.score(&member).is_some());
                (!elsewhere).then_some((member, score))
            };
            first.iter().filter_map(only).collect()
        }
    };
    found.sort_unstable_by(|(a, a_score), (b, b_score)| {
        a_score.partial_cmp(b_score).unwrap_or(Ordering::Equal).then_with(|| a.cmp(b))
    });
    found
}
