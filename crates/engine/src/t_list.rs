//! The list type: structure, then its API, then its commands.
//!
//! A short list is one [`Pack`]; a long one is a [`Deque`] of chunks. Redis calls both `quicklist`.

mod deque;

use std::ops::ControlFlow;

use crate::Reply;
use crate::args;
use crate::blocked::{KeyWait, Serve};
use crate::command::{
    BLOCKING, CommandRow, Ctx, DENYOOM, FAST, MOVABLE_KEYS, NOSCRIPT, READONLY, WRITE,
};
use crate::error::{Error, NO_SUCH_KEY, NOT_POSITIVE, OUT_OF_RANGE, SYNTAX};
use crate::notify::Class;
use crate::pack::{Code, Elem, Pack};
use crate::pop::{self, PopEnd};
use deque::Deque;

/// Bytes up to which a list is one pack.
const PACKED_BYTES: usize = 512;

/// A list.
#[derive(Debug, Clone)]
pub(crate) enum List {
    Packed(Pack),
    Long(Box<Deque>),
}

/// One end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListEnd {
    Left,
    Right,
}

impl Default for List {
    fn default() -> List {
        List::Packed(Pack::default())
    }
}

impl List {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            List::Packed(pack) => pack.len(),
            List::Long(deque) => deque.len(),
        }
    }

    /// The word `OBJECT ENCODING` answers.
    pub(crate) fn encoding(&self) -> &'static str {
        "quicklist"
    }

    /// Bytes of heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            List::Packed(pack) => pack.heap_size(),
            List::Long(deque) => deque.heap_size(),
        }
    }

    /// Adds elements at one end, one after the other.
    pub(crate) fn push(&mut self, end: ListEnd, elements: &[&[u8]]) {
        let mut rest = elements;
        if let List::Packed(pack) = self {
            let more: usize = elements.iter().map(|e| e.len() + 1).sum();
            let mut edit = pack.edit(more.min(PACKED_BYTES));
            while let [element, after @ ..] = rest {
                let code = Code::of(element);
                if edit.byte_len() + code.len() > PACKED_BYTES {
                    break;
                }
                match end {
                    ListEnd::Left => edit.insert(edit.start(), &[code]),
                    ListEnd::Right => edit.push(&code),
                }
                rest = after;
            }
        }
        if !rest.is_empty() {
            let deque = self.long();
            rest.iter().for_each(|element| deque.push(end, &Code::of(element)));
        }
    }

    /// Takes an element from one end.
    pub(crate) fn pop(&mut self, end: ListEnd) -> Option<Vec<u8>> {
        match self {
            List::Packed(pack) => {
                let at = match end {
                    ListEnd::Left => pack.start(),
                    ListEnd::Right => pack.offset(pack.len().checked_sub(1)?),
                };
                let element = pack.at(at)?.0.to_vec();
                pack.edit(0).remove(at, 1);
                Some(element)
            }
            List::Long(deque) => deque.pop(end),
        }
    }

    /// The element at an index.
    pub(crate) fn get(&self, index: usize) -> Option<Elem<'_>> {
        match self {
            List::Packed(pack) if index < pack.len() => {
                pack.at(pack.offset(index)).map(|(elem, _)| elem)
            }
            List::Packed(_) => None,
            List::Long(deque) => deque.get(index),
        }
    }

    /// Replaces the element at an index; false if there is none.
    pub(crate) fn set(&mut self, index: usize, element: &[u8]) -> bool {
        if index >= self.len() {
            return false;
        }
        let code = Code::of(element);
        match self {
            List::Packed(pack) if pack.heap_size() + code.len() <= PACKED_BYTES => {
                let at = pack.offset(index);
                pack.edit(0).replace(at, &code);
                true
            }
            _ => self.long().set(index, &code),
        }
    }

    /// Puts an element in before the one at `index`, or at the end.
    pub(crate) fn insert(&mut self, index: usize, element: &[u8]) {
        let code = Code::of(element);
        match self {
            List::Packed(pack) if pack.heap_size() + code.len() <= PACKED_BYTES => {
                let at = pack.offset(index.min(pack.len()));
                pack.edit(code.len()).insert(at, &[code]);
            }
            _ => self.long().insert(index, &code),
        }
    }

    /// Drops elements from one end.
    pub(crate) fn drop_from(&mut self, end: ListEnd, count: usize) {
        match self {
            List::Packed(pack) => {
                let count = count.min(pack.len());
                let first = if end == ListEnd::Left { 0 } else { pack.len() - count };
                let at = pack.offset(first);
                if count > 0 {
                    pack.edit(0).remove(at, count);
                }
            }
            List::Long(deque) => deque.drop_from(end, count),
        }
    }

    /// Takes out elements equal to `element`, at most `most`, from one end on; answers how many.
    pub(crate) fn remove_equal(&mut self, element: &[u8], most: usize, from: ListEnd) -> usize {
        let code = Code::of(element);
        match self {
            List::Packed(_) => {
                let (mut found, mut index) = (Vec::new(), 0);
                let start = if from == ListEnd::Left { 0 } else { self.len().saturating_sub(1) };
                self.walk(start, from.other(), |_, encoding| {
                    if code.starts(encoding) {
                        found.push(if from == ListEnd::Left { index } else { start - index });
                    }
                    index += 1;
                    if found.len() == most {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                });
                found.sort_unstable();
                let List::Packed(pack) = self else { return 0 };
                for index in found.iter().rev() {
                    let at = pack.offset(*index);
                    pack.edit(0).remove(at, 1);
                }
                found.len()
            }
            List::Long(deque) => deque.remove_equal(&code, most, from),
        }
    }

    /// Walks over elements and their encodings from an index towards one end until `visit` breaks.
    pub(crate) fn walk<'l>(
        &'l self,
        index: usize,
        towards: ListEnd,
        mut visit: impl FnMut(Elem<'l>, &'l [u8]) -> ControlFlow<()>,
    ) {
        match self {
            List::Packed(pack) if index < pack.len() => match towards {
                ListEnd::Right => {
                    let mut offset = pack.offset(index);
                    while let Some((elem, after)) = pack.at(offset) {
                        if visit(elem, pack.rest(offset)).is_break() {
                            return;
                        }
                        offset = after;
                    }
                }
                ListEnd::Left => {
                    let mut offsets = Vec::with_capacity(index + 1);
                    let mut offset = pack.start();
                    while let Some((elem, after)) =
                        pack.at(offset).filter(|_| offsets.len() <= index)
                    {
                        offsets.push((offset, elem));
                        offset = after;
                    }
                    for (offset, elem) in offsets.into_iter().rev() {
                        if visit(elem, pack.rest(offset)).is_break() {
                            return;
                        }
                    }
                }
            },
            List::Packed(_) => {}
            List::Long(deque) => deque.walk(index, towards, visit),
        }
    }

    /// `count` elements as replies, from an index towards one end.
    pub(crate) fn replies(&self, index: usize, towards: ListEnd, count: usize) -> Vec<Reply> {
        let mut found = Vec::with_capacity(count.min(self.len()));
        if count > 0 {
            self.walk(index, towards, |elem, _| {
                found.push(Reply::Bulk(elem.to_vec()));
                if found.len() == count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        }
        found
    }

    /// The first index from the left of an element.
    fn position(&self, element: &[u8]) -> Option<usize> {
        let code = Code::of(element);
        let (mut index, mut found) = (0, None);
        self.walk(0, ListEnd::Right, |_, encoding| {
            if code.starts(encoding) {
                found = Some(index);
                return ControlFlow::Break(());
            }
            index += 1;
            ControlFlow::Continue(())
        });
        found
    }

    fn long(&mut self) -> &mut Deque {
        if let List::Packed(pack) = self {
            let mut deque = Deque::default();
            for elem in pack.iter() {
                deque.push(ListEnd::Right, &Code::of(elem.bytes(&mut [0; 36])));
            }
            *self = List::Long(Box::new(deque));
        }
        match self {
            List::Long(deque) => deque,
            List::Packed(_) => unreachable!("it was made long above"),
        }
    }
}

impl ListEnd {
    fn other(self) -> ListEnd {
        if self == ListEnd::Left { ListEnd::Right } else { ListEnd::Left }
    }

    fn push_event(self) -> &'static str {
        if self == ListEnd::Left { "lpush" } else { "rpush" }
    }

    fn pop_event(self) -> &'static str {
        if self == ListEnd::Left { "lpop" } else { "rpop" }
    }

    fn parse(bytes: &[u8]) -> Result<ListEnd, Error> {
        if args::is(bytes, "LEFT") {
            Ok(ListEnd::Left)
        } else if args::is(bytes, "RIGHT") {
            Ok(ListEnd::Right)
        } else {
            Err(SYNTAX)
        }
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("lpush", -3, WRITE | DENYOOM | FAST, lpush).keys(1, 1, 1),
    CommandRow::new("rpush", -3, WRITE | DENYOOM | FAST, rpush).keys(1, 1, 1),
    CommandRow::new("lpushx", -3, WRITE | DENYOOM | FAST, lpushx).keys(1, 1, 1),
    CommandRow::new("rpushx", -3, WRITE | DENYOOM | FAST, rpushx).keys(1, 1, 1),
    CommandRow::new("lpop", -2, WRITE | FAST, lpop).keys(1, 1, 1),
    CommandRow::new("rpop", -2, WRITE | FAST, rpop).keys(1, 1, 1),
    CommandRow::new("llen", 2, READONLY | FAST, llen).keys(1, 1, 1),
    CommandRow::new("lindex", 3, READONLY, lindex).keys(1, 1, 1),
    CommandRow::new("lrange", 4, READONLY, lrange).keys(1, 1, 1),
    CommandRow::new("ltrim", 4, WRITE, ltrim).keys(1, 1, 1),
    CommandRow::new("lrem", 4, WRITE, lrem).keys(1, 1, 1),
    CommandRow::new("lset", 4, WRITE | DENYOOM, lset).keys(1, 1, 1),
    CommandRow::new("linsert", 5, WRITE | DENYOOM, linsert).keys(1, 1, 1),
    CommandRow::new("lpos", -3, READONLY, lpos).keys(1, 1, 1),
    CommandRow::new("lmove", 5, WRITE | DENYOOM, lmove).keys(1, 2, 1),
    CommandRow::new("rpoplpush", 3, WRITE | DENYOOM, rpoplpush).keys(1, 2, 1),
    CommandRow::new("lmpop", -4, WRITE | MOVABLE_KEYS, pop::many::<ListEnd>),
    CommandRow::new("blpop", -3, WRITE | NOSCRIPT | BLOCKING, |ctx| {
        pop::blocking_one(ctx, ListEnd::Left)
    })
    .keys(1, -2, 1),
    CommandRow::new("brpop", -3, WRITE | NOSCRIPT | BLOCKING, |ctx| {
        pop::blocking_one(ctx, ListEnd::Right)
    })
    .keys(1, -2, 1),
    CommandRow::new("blmove", 6, WRITE | DENYOOM | NOSCRIPT | BLOCKING, blmove).keys(1, 2, 1),
    CommandRow::new("brpoplpush", 4, WRITE | DENYOOM | NOSCRIPT | BLOCKING, brpoplpush)
        .keys(1, 2, 1),
    CommandRow::new("blmpop", -5, WRITE | BLOCKING | MOVABLE_KEYS, pop::blocking_many::<ListEnd>),
];

fn lpush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    push(ctx, ListEnd::Left)
}

fn rpush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    push(ctx, ListEnd::Right)
}

fn lpushx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    push_if_exists(ctx, ListEnd::Left)
}

fn rpushx(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    push_if_exists(ctx, ListEnd::Right)
}

fn push_if_exists(ctx: &mut Ctx<'_>, end: ListEnd) -> Result<Reply, Error> {
    if ctx.write::<List>(ctx.arg(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    push(ctx, end)
}

fn push(ctx: &mut Ctx<'_>, end: ListEnd) -> Result<Reply, Error> {
    let (key, elements) = (ctx.arg(1), ctx.argv.get(2..).unwrap_or_default());
    let list = ctx.write_or(key, List::default)?;
    list.push(end, elements);
    let len = list.len();
    ctx.changed_by(elements.len() as u64, Class::List, end.push_event(), key);
    Ok(len.into())
}

fn lpop(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    pop(ctx, ListEnd::Left, "lpop")
}

fn rpop(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    pop(ctx, ListEnd::Right, "rpop")
}

fn pop(ctx: &mut Ctx<'_>, end: ListEnd, name: &str) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let count = match ctx.argv.get(2..) {
        None | Some([]) => None,
        Some([count]) => Some(positive(count, NOT_POSITIVE)?),
        Some(_) => return Err(Error::arity(name)),
    };
    let Some(list) = ctx.write::<List>(key)? else {
        return Ok(if count.is_some() { Reply::NilArray } else { Reply::Nil });
    };
    match count {
        None => {
            let element = list.pop(end);
            let empty = list.len() == 0;
            removed(ctx, key, end, 1, empty);
            Ok(element.map_or(Reply::Nil, Reply::Bulk))
        }
        Some(0) => Ok(Reply::Array(Vec::new())),
        Some(count) => Ok(Reply::Array(pop_many(ctx, key, end, count)?)),
    }
}

/// An integer that is not negative, or `error`.
fn positive(bytes: &[u8], error: Error) -> Result<usize, Error> {
    args::int(bytes).ok().and_then(|n| usize::try_from(n).ok()).ok_or(error)
}

/// Takes up to `count` elements from one end of a list that exists.
fn pop_many(
    ctx: &mut Ctx<'_>,
    key: &[u8],
    end: ListEnd,
    count: usize,
) -> Result<Vec<Reply>, Error> {
    let Some(list) = ctx.write::<List>(key)? else { return Ok(Vec::new()) };
    let start = if end == ListEnd::Left { 0 } else { list.len().saturating_sub(1) };
    let elements = list.replies(start, end.other(), count);
    list.drop_from(end, elements.len());
    let empty = list.len() == 0;
    removed(ctx, key, end, elements.len(), empty);
    Ok(elements)
}

/// Says that elements were taken from one end, and deletes the key if none is left.
fn removed(ctx: &mut Ctx<'_>, key: &[u8], end: ListEnd, count: usize, empty: bool) {
    ctx.changed_by(count as u64, Class::List, end.pop_event(), key);
    ctx.drop_if(key, empty);
}

fn llen(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    Ok(ctx.read::<List>(key)?.map_or(0, List::len).into())
}

/// An index that counts from the end when negative.
fn index_in(index: i64, len: usize) -> Option<usize> {
    if index >= 0 {
        usize::try_from(index).ok().filter(|index| *index < len)
    } else {
        usize::try_from(index.unsigned_abs()).ok().and_then(|back| len.checked_sub(back))
    }
}

/// A range of indexes as LRANGE understands it: first and how many.
pub(crate) fn range_in(start: i64, end: i64, len: usize) -> (usize, usize) {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let start = if start < 0 { start.saturating_add(len).max(0) } else { start };
    let end = if end < 0 { end.saturating_add(len) } else { end.min(len - 1) };
    if start > end || start >= len {
        return (0, 0);
    }
    (start as usize, (end - start + 1) as usize)
}

fn lindex(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, index) = (ctx.arg(1), ctx.arg(2));
    let Some(list) = ctx.read::<List>(key)? else { return Ok(Reply::Nil) };
    let place = index_in(args::int(index)?, list.len());
    Ok(place.and_then(|index| list.get(index)).map_or(Reply::Nil, |e| Reply::Bulk(e.to_vec())))
}

fn lrange(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let (start, end) = (args::int(ctx.arg(2))?, args::int(ctx.arg(3))?);
    let Some(list) = ctx.read::<List>(key)? else { return Ok(Reply::Array(Vec::new())) };
    let (start, count) = range_in(start, end, list.len());
    Ok(Reply::Array(list.replies(start, ListEnd::Right, count)))
}

fn ltrim(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let key = ctx.arg(1);
    let (start, end) = (args::int(ctx.arg(2))?, args::int(ctx.arg(3))?);
    let Some(list) = ctx.write::<List>(key)? else { return Ok(Reply::Ok) };
    let len = list.len();
    let (start, count) = range_in(start, end, len);
    let start = if count == 0 { len } else { start };
    list.drop_from(ListEnd::Left, start);
    list.drop_from(ListEnd::Right, len - start - count);
    ctx.changed_by((len - count) as u64, Class::List, "ltrim", key);
    ctx.drop_if(key, count == 0);
    Ok(Reply::Ok)
}

fn lrem(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, element) = (ctx.arg(1), ctx.arg(3));
    let count = args::int(ctx.arg(2))?;
    let Some(list) = ctx.write::<List>(key)? else { return Ok(Reply::Int(0)) };
    let from = if count < 0 { ListEnd::Right } else { ListEnd::Left };
    let most = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let removed = list.remove_equal(element, if most == 0 { usize::MAX } else { most }, from);
    let empty = list.len() == 0;
    if removed > 0 {
        ctx.changed_by(removed as u64, Class::List, "lrem", key);
        ctx.drop_if(key, empty);
    }
    Ok(removed.into())
}

fn lset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, index, element) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    let Some(list) = ctx.write::<List>(key)? else { return Err(NO_SUCH_KEY) };
    let index = index_in(args::int(index)?, list.len()).ok_or(OUT_OF_RANGE)?;
    list.set(index, element);
    ctx.changed(Class::List, "lset", key);
    Ok(Reply::Ok)
}

fn linsert(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, place, pivot, element) = (ctx.arg(1), ctx.arg(2), ctx.arg(3), ctx.arg(4));
    let after = if args::is(place, "AFTER") {
        1
    } else if args::is(place, "BEFORE") {
        0
    } else {
        return Err(SYNTAX);
    };
    let Some(list) = ctx.write::<List>(key)? else { return Ok(Reply::Int(0)) };
    let Some(index) = list.position(pivot) else { return Ok(Reply::Int(-1)) };
    list.insert(index + after, element);
    let len = list.len();
    ctx.changed(Class::List, "linsert", key);
    Ok(len.into())
}

fn lpos(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (key, element) = (ctx.arg(1), ctx.arg(2));
    let (mut rank, mut count, mut most) = (1i64, None, 0);
    let mut options = ctx.argv.get(3..).unwrap_or_default();
    while let [option, rest @ ..] = options {
        let [value, rest @ ..] = rest else { return Err(SYNTAX) };
        if args::is(option, "RANK") {
            // The least number has no positive counterpart: every match is past it.
            rank = match args::int(value)? {
                i64::MIN => -1,
                rank => rank,
            };
            if rank == 0 {
                return Err(Error::fixed(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                     second ... or use negative to start from the end of the list",
                ));
            }
        } else if args::is(option, "COUNT") {
            count = Some(positive(value, Error::fixed("ERR COUNT can't be negative"))?);
        } else if args::is(option, "MAXLEN") {
            most = positive(value, Error::fixed("ERR MAXLEN can't be negative"))?;
        } else {
            return Err(SYNTAX);
        }
        options = rest;
    }
    let none = if count.is_some() { Reply::Array(Vec::new()) } else { Reply::Nil };
    let Some(list) = ctx.read::<List>(key)? else { return Ok(none) };
    let towards = if rank < 0 { ListEnd::Left } else { ListEnd::Right };
    let start = if rank < 0 { list.len().saturating_sub(1) } else { 0 };
    let wanted = match count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => count,
    };
    let code = Code::of(element);
    let (mut seen, mut steps, mut found) = (0u64, 0usize, Vec::new());
    list.walk(start, towards, |_, encoding| {
        if code.starts(encoding) {
            seen += 1;
            if seen >= rank.unsigned_abs() {
                found.push(if rank < 0 { start - steps } else { steps }.into());
            }
        }
        steps += 1;
        if found.len() == wanted || steps == most {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    if count.is_some() {
        return Ok(Reply::Array(found));
    }
    Ok(found.pop().unwrap_or(Reply::Nil))
}

fn lmove(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (from, to) = (ListEnd::parse(ctx.arg(3))?, ListEnd::parse(ctx.arg(4))?);
    move_one(ctx, from, to)
}

fn rpoplpush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    move_one(ctx, ListEnd::Right, ListEnd::Left)
}

fn move_one(ctx: &mut Ctx<'_>, from: ListEnd, to: ListEnd) -> Result<Reply, Error> {
    let (source, target) = (ctx.arg(1), ctx.arg(2));
    if ctx.write::<List>(source)?.is_none() {
        return Ok(Reply::Nil);
    }
    ctx.write::<List>(target)?;
    let Some(list) = ctx.write::<List>(source)? else { return Ok(Reply::Nil) };
    let Some(element) = list.pop(from) else { return Ok(Reply::Nil) };
    ctx.write_or(target, List::default)?.push(to, &[&element]);
    let empty = ctx.write::<List>(source)?.is_some_and(|list| list.len() == 0);
    ctx.changed_by(0, Class::List, to.push_event(), target);
    ctx.changed(Class::List, from.pop_event(), source);
    ctx.drop_if(source, empty);
    Ok(Reply::Bulk(element))
}

impl PopEnd for ListEnd {
    fn read(word: &[u8]) -> Result<ListEnd, Error> {
        ListEnd::parse(word)
    }

    fn pop_first(
        self,
        ctx: &mut Ctx<'_>,
        keys: &[&[u8]],
        count: Option<usize>,
    ) -> Result<Option<Reply>, Error> {
        for key in keys {
            if ctx.write::<List>(key)?.is_none_or(|list| list.len() == 0) {
                continue;
            }
            let mut elements = pop_many(ctx, key, self, count.unwrap_or(1))?;
            let name: &[u8] = if self == ListEnd::Left { b"LPOP" } else { b"RPOP" };
            let second = match count {
                None => {
                    ctx.effect(&[name, key]);
                    elements.pop().unwrap_or(Reply::Nil)
                }
                Some(_) => {
                    let popped = elements.len().to_string();
                    ctx.effect(&[name, key, popped.as_bytes()]);
                    Reply::Array(elements)
                }
            };
            return Ok(Some(Reply::Array(vec![Reply::bulk(key), second])));
        }
        Ok(None)
    }

    fn serve_one(self) -> Serve {
        match self {
            ListEnd::Left => |ctx, key| pop::serve(ctx, key, ListEnd::Left, None),
            ListEnd::Right => |ctx, key| pop::serve(ctx, key, ListEnd::Right, None),
        }
    }
}

fn blmove(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (from, to) = (ListEnd::parse(ctx.arg(3))?, ListEnd::parse(ctx.arg(4))?);
    let deadline_ms = args::timeout(ctx.now, ctx.arg(5))?;
    blocking_move(ctx, from, to, deadline_ms, |ctx, key| {
        let (from, to) = (ListEnd::parse(ctx.arg(3)).ok()?, ListEnd::parse(ctx.arg(4)).ok()?);
        serve_move(ctx, key, from, to)
    })
}

fn brpoplpush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let deadline_ms = args::timeout(ctx.now, ctx.arg(3))?;
    blocking_move(ctx, ListEnd::Right, ListEnd::Left, deadline_ms, |ctx, key| {
        serve_move(ctx, key, ListEnd::Right, ListEnd::Left)
    })
}

fn blocking_move(
    ctx: &mut Ctx<'_>,
    from: ListEnd,
    to: ListEnd,
    deadline_ms: Option<i64>,
    serve: Serve,
) -> Result<Reply, Error> {
    let source = ctx.arg(1);
    if ctx.write::<List>(source)?.is_none() {
        let wait =
            KeyWait { keys: &[source], deadline_ms, serve, on_timeout: Reply::Nil, argv: None };
        return Ok(ctx.block(wait));
    }
    let reply = move_one(ctx, from, to)?;
    move_effect(ctx, from, to);
    Ok(reply)
}

/// Moves for a session that waited; a target of another type is its error.
fn serve_move(ctx: &mut Ctx<'_>, key: &[u8], from: ListEnd, to: ListEnd) -> Option<Reply> {
    if ctx.write::<List>(key).ok().flatten().is_none_or(|list| list.len() == 0) {
        return None;
    }
    Some(match move_one(ctx, from, to) {
        Ok(reply) => {
            move_effect(ctx, from, to);
            reply
        }
        Err(error) => Reply::Error(error),
    })
}

/// The effect of a move that might have waited: the move itself.
fn move_effect(ctx: &mut Ctx<'_>, from: ListEnd, to: ListEnd) {
    let name = |end| if end == ListEnd::Left { &b"LEFT"[..] } else { b"RIGHT" };
    ctx.effect(&[b"LMOVE", ctx.arg(1), ctx.arg(2), name(from), name(to)]);
}
