//! Replies of commands become Lua values, and what a script returns becomes a reply, by Redis's
//! rules: numbers lose their fraction, a missing value is `false`, arrays end at the first nil.

use super::lua::ScriptOutcome;
use super::pattern::{Capture, PatternMatch};
use super::wire::{LuaTable, LuaValue, PackedValue, Writer};
use crate::error::Error;
use crate::number::format_f64;
use crate::reply::Reply;

// Reply to Lua -----------------------------------------------------------------------------------

/// A reply as `redis.call` gives it to Lua.
#[derive(Debug, PartialEq)]
pub(super) enum LuaReply {
    Nil,
    False,
    True,
    /// The status `OK`.
    Okay,
    Number(f64),
    String(Vec<u8>),
    /// A status, to become `{ok=…}`.
    Status(Vec<u8>),
    /// A short list of strings, numbers and false.
    List(Vec<Reply>),
    /// A packed table.
    Table(Vec<u8>),
    /// An error of a command, to be raised or to become `{err=…}`.
    Error(Vec<u8>),
    /// An error in the way the command was called.
    Misuse(Vec<u8>),
    /// The script was stopped.
    Killed,
}

/// The text of an error as scripts see it: with a code, without line breaks around it.
pub(super) fn error_text(error: &Error) -> Vec<u8> {
    let text = error.text();
    let trim = |text: &[u8]| {
        let first = text.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(text.len());
        let last = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(first, |n| n + 1);
        text.get(first..last).unwrap_or_default().to_vec()
    };
    match memchr::memchr(b' ', text) {
        Some(space) => {
            let (code, message) = text.split_at(space + 1);
            [code.to_vec(), trim(message)].concat()
        }
        None => [b"ERR ".to_vec(), trim(text)].concat(),
    }
}

/// Converts a command's reply. With `resp3` the script asked for the types of RESP3.
pub(super) fn answer(reply: Reply, resp3: bool) -> LuaReply {
    match reply {
        Reply::Ok => LuaReply::Okay,
        Reply::Status(text) => LuaReply::Status(text.into_owned()),
        Reply::Error(error) => LuaReply::Error(error_text(&error)),
        Reply::Int(n) => LuaReply::Number(n as f64),
        Reply::Bulk(bytes) => LuaReply::String(bytes),
        Reply::Nil | Reply::NilArray if resp3 => LuaReply::Nil,
        Reply::Nil | Reply::NilArray => LuaReply::False,
        Reply::Bool(b) if resp3 => {
            if b {
                LuaReply::True
            } else {
                LuaReply::False
            }
        }
        Reply::Bool(b) => LuaReply::Number(f64::from(u8::from(b))),
        Reply::Double(n) if !resp3 => LuaReply::String(format_f64(n)),
        Reply::BigNumber(digits) | Reply::Decimal(digits) if !resp3 => LuaReply::String(digits),
        Reply::Verbatim(_, text) if !resp3 => LuaReply::String(text),
        Reply::Array(items) if !resp3 && is_short(&items) => LuaReply::List(items),
        Reply::Several(mut replies) => match replies.is_empty() {
            true => LuaReply::False,
            false => answer(replies.swap_remove(0), resp3),
        },
        other => {
            let mut writer = Writer::on(Vec::with_capacity(64));
            write(&mut writer, &other, resp3);
            LuaReply::Table(writer.into_bytes())
        }
    }
}

/// A list that can be made in Lua without a look at the memory it takes.
fn is_short(items: &[Reply]) -> bool {
    const ITEMS: usize = 1024;
    const BYTES: usize = 64 << 10;
    let mut bytes = 0;
    items.len() <= ITEMS
        && items.iter().all(|item| match item {
            Reply::Bulk(text) => {
                bytes += text.len();
                bytes <= BYTES
            }
            Reply::Int(_) | Reply::Nil | Reply::NilArray => true,
            _ => false,
        })
}

fn write(writer: &mut Writer, reply: &Reply, resp3: bool) {
    match reply {
        Reply::Ok => field(writer, b"ok", |w| w.string(b"OK")),
        Reply::Status(text) => field(writer, b"ok", |w| w.string(text)),
        Reply::Error(error) => {
            writer.pairs(2);
            writer.string(b"err");
            writer.string(&error_text(error));
            writer.string(b"ignore_error_stats_update");
            writer.bool(true);
        }
        Reply::Int(n) => writer.number(*n as f64),
        Reply::Bulk(bytes) => writer.string(bytes),
        Reply::Nil | Reply::NilArray => {
            if resp3 {
                writer.nil();
            } else {
                writer.bool(false);
            }
        }
        Reply::Array(items) | Reply::Push(items) | Reply::Several(items) => {
            array(writer, items, resp3);
        }
        Reply::Set(items) if !resp3 => array(writer, items, resp3),
        Reply::Set(items) => field(writer, b"set", |w| {
            w.pairs(items.len());
            for item in items {
                write(w, item, resp3);
                w.bool(true);
            }
        }),
        Reply::Map(pairs) if !resp3 => {
            writer.array(pairs.len() * 2);
            for (key, value) in pairs {
                write(writer, key, resp3);
                write(writer, value, resp3);
            }
        }
        Reply::Map(pairs) => field(writer, b"map", |w| {
            w.pairs(pairs.len());
            for (key, value) in pairs {
                write(w, key, resp3);
                write(w, value, resp3);
            }
        }),
        Reply::Double(n) if resp3 => field(writer, b"double", |w| w.number(*n)),
        Reply::Double(n) => writer.string(&format_f64(*n)),
        Reply::Decimal(digits) if resp3 => {
            let n = crate::number::parse_f64(digits).unwrap_or_default();
            field(writer, b"double", |w| w.number(n));
        }
        Reply::Decimal(digits) => writer.string(digits),
        Reply::Bool(b) if resp3 => writer.bool(*b),
        Reply::Bool(b) => writer.number(f64::from(u8::from(*b))),
        Reply::BigNumber(digits) if resp3 => field(writer, b"big_number", |w| w.string(digits)),
        Reply::BigNumber(digits) => writer.string(digits),
        Reply::Verbatim(format, text) if resp3 => field(writer, b"verbatim_string", |w| {
            w.pairs(2);
            w.string(b"string");
            w.string(text);
            w.string(b"format");
            w.string(format);
        }),
        Reply::Verbatim(_, text) => writer.string(text),
    }
}

fn field(writer: &mut Writer, name: &[u8], value: impl FnOnce(&mut Writer)) {
    writer.pairs(1);
    writer.string(name);
    value(writer);
}

fn array(writer: &mut Writer, items: &[Reply], resp3: bool) {
    writer.array(items.len());
    for item in items {
        write(writer, item, resp3);
    }
}

/// The keys and arguments of a script.
pub(super) fn input(keys: &[&[u8]], args: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = keys.iter().chain(args).map(|arg| arg.len() + 5).sum();
    let mut writer = Writer::on(Vec::with_capacity(bytes + 16));
    writer.array(2);
    for list in [keys, args] {
        writer.array(list.len());
        for item in list {
            writer.string(item);
        }
    }
    writer.into_bytes()
}

/// A match for the prelude: from, to, captures; and how many these are together.
pub(super) fn captures(subject: &[u8], found: &PatternMatch) -> (Vec<u8>, usize) {
    let mut writer = Writer::default();
    let count = found.captures.len() + 2;
    writer.array(count);
    writer.number((found.from + 1) as f64);
    writer.number(found.to as f64);
    for capture in &found.captures {
        match capture {
            Capture::Unfinished => writer.bool(false),
            Capture::Position(at) => writer.number((at + 1) as f64),
            Capture::Range(from, to) => {
                writer.string(subject.get(*from..*to).unwrap_or_default());
            }
        }
    }
    (writer.into_bytes(), count)
}

// Lua to reply -----------------------------------------------------------------------------------

/// Replies nest no deeper; Redis gives the same error in the same place, only further down.
const MAX_DEPTH: usize = 1000;
/// Nor have they more parts.
const MAX_PARTS: usize = 8 << 20;

/// Converts what a script returned. With `resp3` the script asked for the types of RESP3.
pub(super) fn reply(outcome: ScriptOutcome, resp3: bool) -> Reply {
    let packed = match &outcome {
        ScriptOutcome::Nil => return Reply::Nil,
        ScriptOutcome::Bool(b) => return boolean(*b, resp3),
        ScriptOutcome::Number(n) => return Reply::Int(integer(*n)),
        ScriptOutcome::String(_) => {
            let ScriptOutcome::String(bytes) = outcome else { return Reply::Nil };
            return Reply::Bulk(bytes);
        }
        ScriptOutcome::Error(text) => return Reply::Error(Error::new(trim_end(text))),
        ScriptOutcome::Tree(bytes) => {
            if let Some(reply) = flat(bytes, resp3) {
                return reply;
            }
            PackedValue::tree(bytes)
        }
        ScriptOutcome::Graph(bytes) => PackedValue::graph(bytes),
    };
    let Some(packed) = packed else { return Reply::Nil };
    let mut reading = ReplyReader { packed: &packed, resp3, parts: 0 };
    let reply = reading.value(&packed.root(), 0);
    if reading.parts > MAX_PARTS {
        return Reply::Error(Error::fixed("ERR the script's reply is too large"));
    }
    reply
}

/// The reply for an array without tables or nils in it.
fn flat(packed: &[u8], resp3: bool) -> Option<Reply> {
    let mut items = Vec::new();
    PackedValue::flat(packed, |count, value| {
        items.reserve(count);
        items.push(match value {
            LuaValue::String(s) => Reply::bulk(s),
            LuaValue::Bool(b) => boolean(b, resp3),
            LuaValue::Number(n) => Reply::Int(integer(n)),
            _ => Reply::Nil,
        });
    })?;
    Some(Reply::Array(items))
}

fn boolean(b: bool, resp3: bool) -> Reply {
    match (b, resp3) {
        (_, true) => Reply::Bool(b),
        (true, false) => Reply::Int(1),
        (false, false) => Reply::Nil,
    }
}

/// A number without its fraction, as a C cast does it on the machines Redis runs on.
fn integer(n: f64) -> i64 {
    if n >= -(2f64.powi(63)) && n < 2f64.powi(63) { n as i64 } else { i64::MIN }
}

fn trim_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |n| n + 1);
    text.get(..end).unwrap_or_default()
}

/// A C string: up to the first zero byte.
fn c_string(text: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// One line: no line breaks.
fn line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect()
}

struct ReplyReader<'p, 'a> {
    packed: &'p PackedValue<'a>,
    resp3: bool,
    parts: usize,
}

impl<'a> ReplyReader<'_, 'a> {
    fn value(&mut self, value: &LuaValue<'a>, depth: usize) -> Reply {
        self.parts += 1;
        match value {
            LuaValue::String(s) => Reply::bulk(s),
            LuaValue::Bool(b) => boolean(*b, self.resp3),
            LuaValue::Number(n) => Reply::Int(integer(*n)),
            LuaValue::Table(_) | LuaValue::Ref(_) => {
                if depth >= MAX_DEPTH {
                    return Reply::Error(Error::fixed("ERR reached lua stack limit"));
                }
                let packed = self.packed;
                match packed.table(value) {
                    Some(table) if self.parts <= MAX_PARTS => self.table(table, depth),
                    _ => Reply::Nil,
                }
            }
            LuaValue::Nil | LuaValue::Null | LuaValue::Other(_) => Reply::Nil,
        }
    }

    fn table(&mut self, table: &LuaTable<'a>, depth: usize) -> Reply {
        if table.hash.is_empty() {
            return self.array(table, depth);
        }
        if let Some(LuaValue::String(text)) = table.field(b"err") {
            return Reply::Error(Error::new(trim_end(c_string(text))));
        }
        if let Some(LuaValue::String(text)) = table.field(b"ok") {
            return Reply::Status(line(c_string(text)).into());
        }
        if let Some(LuaValue::Number(n)) = table.field(b"double") {
            return Reply::Double(*n);
        }
        if let Some(LuaValue::String(digits)) = table.field(b"big_number") {
            return Reply::BigNumber(line(digits));
        }
        let packed = self.packed;
        let inner = |name| table.field(name).and_then(|value| packed.table(value));
        if let Some(verbatim) = inner(b"verbatim_string")
            && let Some(LuaValue::String(format)) = verbatim.field(b"format")
            && let Some(LuaValue::String(text)) = verbatim.field(b"string")
        {
            let mut kind = [b' '; 3];
            for (to, from) in kind.iter_mut().zip(c_string(format)) {
                *to = *from;
            }
            return Reply::Verbatim(kind, text.to_vec());
        }
        if let Some(map) = inner(b"map") {
            return Reply::Map(
                pairs(map)
                    .map(|(key, value)| (self.value(&key, depth + 1), self.value(value, depth + 1)))
                    .collect(),
            );
        }
        if let Some(set) = inner(b"set") {
            return Reply::Set(
                pairs(set).map(|(member, _)| self.value(&member, depth + 1)).collect(),
            );
        }
        self.array(table, depth)
    }

    fn array(&mut self, table: &LuaTable<'a>, depth: usize) -> Reply {
        let mut items = Vec::with_capacity(table.array.len());
        for value in table.array.iter().take_while(|value| **value != LuaValue::Nil) {
            items.push(self.value(value, depth + 1));
        }
        // Values may lie among the pairs, too, if they were put in out of order.
        if items.len() == table.array.len() && !table.hash.is_empty() {
            let mut rest: Vec<(usize, &LuaValue<'a>)> = table
                .hash
                .iter()
                .filter_map(|(key, value)| match key {
                    LuaValue::Number(n) if *n >= 1.0 && n.fract() == 0.0 => {
                        Some((*n as usize, value))
                    }
                    _ => None,
                })
                .collect();
            rest.sort_unstable_by_key(|(n, _)| *n);
            for (n, value) in rest {
                if n != items.len() + 1 || *value == LuaValue::Nil {
                    break;
                }
                items.push(self.value(value, depth + 1));
            }
        }
        Reply::Array(items)
    }
}

/// All pairs of a table.
fn pairs<'t, 'a>(
    table: &'t LuaTable<'a>,
) -> impl Iterator<Item = (LuaValue<'a>, &'t LuaValue<'a>)> {
    let numbered = table.array.iter().enumerate().filter(|(_, value)| **value != LuaValue::Nil);
    numbered
        .map(|(n, value)| (LuaValue::Number((n + 1) as f64), value))
        .chain(table.hash.iter().map(|(key, value)| (key.clone(), value)))
}
