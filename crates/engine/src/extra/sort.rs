//! SORT: the elements of a list, set or sorted set in another order, by weights and with values
//! from other keys.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use crate::command::{self, CommandRow, Ctx, DENYOOM, MOVABLE_KEYS, READONLY, WRITE};
use crate::db::NEVER;
use crate::error::{Error, SYNTAX, WRONG_TYPE};
use crate::notify::Class;
use crate::t_list::{List, ListEnd};
use crate::value::{Value, ValueType};
use crate::{Reply, args, number};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("sort", -2, WRITE | DENYOOM | MOVABLE_KEYS, sort).keys(1, 1, 1),
    CommandRow::new("sort_ro", -2, READONLY | MOVABLE_KEYS, sort_ro).keys(1, 1, 1),
];

fn sort(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let order = SortOptions::read(ctx, "sort")?;
    run(ctx, order)
}

fn sort_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let order = SortOptions::read(ctx, "sort_ro")?;
    run(ctx, order)
}

/// The options of SORT.
#[derive(Debug, Default)]
struct SortOptions<'a> {
    descending: bool,
    alpha: bool,
    skip: i64,
    most: Option<i64>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> SortOptions<'a> {
    fn read(ctx: &Ctx<'a>, name: &str) -> Result<SortOptions<'a>, Error> {
        let (argv, may_store) = (ctx.argv, name == "sort");
        let reads_all = may_read_all(ctx, name);
        let mut order = SortOptions::default();
        let mut rest = argv.get(2..).unwrap_or_default();
        loop {
            rest = match rest {
                [] => return Ok(order),
                [word, tail @ ..] if args::is(word, "ASC") => {
                    order.descending = false;
                    tail
                }
                [word, tail @ ..] if args::is(word, "DESC") => {
                    order.descending = true;
                    tail
                }
                [word, tail @ ..] if args::is(word, "ALPHA") => {
                    order.alpha = true;
                    tail
                }
                [word, skip, most, tail @ ..] if args::is(word, "LIMIT") => {
                    order.skip = args::int(skip)?;
                    order.most = Some(args::int(most)?).filter(|n| *n >= 0);
                    tail
                }
                [word, key, tail @ ..] if may_store && args::is(word, "STORE") => {
                    order.store = Some(*key);
                    tail
                }
                [word, pattern, tail @ ..] if args::is(word, "BY") => {
                    if !reads_all && pattern.contains(&b'*') {
                        return Err(denied("BY"));
                    }
                    order.by = Some(*pattern);
                    tail
                }
                [word, pattern, tail @ ..] if args::is(word, "GET") => {
                    if !reads_all {
                        return Err(denied("GET"));
                    }
                    order.get.push(*pattern);
                    tail
                }
                _ => return Err(SYNTAX),
            };
        }
    }
}

/// May the user of the session read whatever a pattern leads to?
fn may_read_all(ctx: &Ctx<'_>, name: &str) -> bool {
    let user = ctx.session.user.as_ref().filter(|_| ctx.session.restricted);
    let command = command::find(name.as_bytes());
    user.zip(command).is_none_or(|(user, command)| user.may_read_all(command, ctx.argv))
}

/// May the user of the session read a key that a pattern leads to? One that is excluded from all
/// keys reads as one that is not there.
fn may_read(ctx: &Ctx<'_>, key: &[u8]) -> bool {
    let user = ctx.session.user.as_ref().filter(|_| ctx.session.restricted);
    let command = ctx.argv.first().and_then(|name| command::find(name));
    user.zip(command).is_none_or(|(user, command)| user.may_read_by(command, ctx.argv, key))
}

fn denied(option: &str) -> Error {
    Error::new(format!("ERR {option} option of SORT denied due to insufficient ACL permissions."))
}

/// An element with what it is sorted by.
#[derive(Debug)]
struct SortItem {
    element: Vec<u8>,
    score: f64,
    word: Option<Vec<u8>>,
}

fn run(ctx: &mut Ctx<'_>, mut order: SortOptions<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let (elements, is_set) = match ctx.entry(key).map(|entry| &entry.value) {
        None => (Vec::new(), false),
        Some(Value::List(list)) => {
            let mut elements = Vec::with_capacity(list.len());
            list.walk(0, ListEnd::Right, |element, _| {
                elements.push(element.to_vec());
                ControlFlow::Continue(())
            });
            (elements, false)
        }
        Some(Value::Set(set)) => (set.iter().map(|member| member.to_vec()).collect(), true),
        Some(Value::Zset(zset)) => {
            (zset.iter().map(|(member, _)| member.to_vec()).collect(), false)
        }
        Some(_) => return Err(WRONG_TYPE),
    };
    let mut items: Vec<SortItem> =
        elements.into_iter().map(|element| SortItem { element, score: 0.0, word: None }).collect();

    // A BY without a star weighs all alike: the order stays. A set has none to stay in, so where
    // the result must be the same every time, it is sorted by its members.
    let mut keep_order = order.by.is_some_and(|pattern| !pattern.contains(&b'*'));
    if keep_order && is_set && (order.store.is_some() || ctx.session.in_script) {
        (keep_order, order.alpha, order.by) = (false, true, None);
    }
    if keep_order {
        if order.descending && !is_set {
            items.reverse();
        }
    } else {
        weigh(ctx, &order, &mut items)?;
        items.sort_by(|x, y| compare(&order, x, y));
    }

    let length = items.len() as i64;
    let skip = order.skip.clamp(0, length) as usize;
    let most = order.most.map_or(usize::MAX, |most| most.min(length) as usize);
    let chosen: Vec<Vec<u8>> =
        items.into_iter().skip(skip).take(most).map(|item| item.element).collect();
    let mut out: Vec<Option<Vec<u8>>> = Vec::new();
    for element in chosen {
        if order.get.is_empty() {
            out.push(Some(element));
            continue;
        }
        for pattern in &order.get {
            out.push(look_up(ctx, pattern, &element));
        }
    }
    match order.store {
        None => {
            Ok(Reply::Array(out.into_iter().map(|v| v.map_or(Reply::Nil, Reply::Bulk)).collect()))
        }
        Some(target) => Ok(store(ctx, target, out)),
    }
}

fn store(ctx: &mut Ctx<'_>, target: &[u8], out: Vec<Option<Vec<u8>>>) -> Reply {
    let values: Vec<Vec<u8>> = out.into_iter().map(Option::unwrap_or_default).collect();
    if values.is_empty() {
        if ctx.remove(target) {
            ctx.changed(Class::Generic, "del", target);
        }
        return Reply::Int(0);
    }
    let slices: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    let mut list = List::default();
    list.push(ListEnd::Right, &slices);
    ctx.put(target, list.into_value(), NEVER);
    ctx.changed_by(values.len() as u64, Class::List, "sortstore", target);
    // Weights and values came from keys that a later reader of the log may find changed.
    let mut effect: Vec<&[u8]> = vec![b"RPUSH", target];
    effect.extend(slices);
    ctx.effect(&[b"DEL", target]);
    ctx.effect(&effect);
    values.len().into()
}

/// Finds what each element is sorted by.
fn weigh(ctx: &mut Ctx<'_>, order: &SortOptions<'_>, items: &mut [SortItem]) -> Result<(), Error> {
    let mut all_numbers = true;
    for item in items {
        let weight = match order.by {
            Some(pattern) => look_up(ctx, pattern, &item.element),
            None => Some(item.element.clone()),
        };
        let Some(weight) = weight else { continue };
        if order.alpha {
            item.word = Some(weight);
        } else {
            match number::parse_f64(&weight) {
                Some(score) => item.score = score,
                // An empty weight reads as nothing, which is 0.
                None => all_numbers &= weight.is_empty(),
            }
        }
    }
    if all_numbers {
        return Ok(());
    }
    Err(Error::fixed("ERR One or more scores can't be converted into double"))
}

fn compare(order: &SortOptions<'_>, x: &SortItem, y: &SortItem) -> Ordering {
    let ascending = if order.alpha {
        x.word.cmp(&y.word)
    } else {
        x.score.total_cmp(&y.score).then_with(|| x.element.cmp(&y.element))
    };
    if order.descending { ascending.reverse() } else { ascending }
}

/// The value that a pattern means for an element: the element itself (`#`), the string at the
/// pattern with the element in place of the star, or a field of the hash there (`…->field`).
fn look_up(ctx: &mut Ctx<'_>, pattern: &[u8], element: &[u8]) -> Option<Vec<u8>> {
    if pattern == b"#" {
        return Some(element.to_vec());
    }
    let star = memchr::memchr(b'*', pattern)?;
    let (before, after) = (pattern.get(..star)?, pattern.get(star + 1..)?);
    let arrow = memchr::memmem::find(after, b"->").filter(|at| at + 2 < after.len());
    let (after, field) = match arrow {
        Some(at) => (after.get(..at)?, after.get(at + 2..)),
        None => (after, None),
    };
    let key = [before, element, after].concat();
    if !may_read(ctx, &key) {
        return None;
    }
    match (&ctx.entry(&key)?.value, field) {
        (Value::Hash(hash), Some(field)) => hash.get(field).map(|value| value.to_vec()),
        (Value::Str(string), None) => Some(string.to_bytes()),
        _ => None,
    }
}
