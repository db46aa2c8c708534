//! `cjson`: JSON as Redis's library reads and writes it, quirks included.
//!
//! Slashes are escaped, an empty table is an object, numbers have 14 digits, `null` is a value of
//! its own, and reading takes numbers that JSON does not know (`0x1F`, `inf`). Nothing here
//! recurses, so depth is bounded by the settings alone.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::order;
use super::wire::{LuaTable, LuaValue, MAX_DEPTH, PackedValue, Writer};
use crate::number::format_g;

/// Whatever the settings say, Lua's stack in Redis has room for no more.
const MAX_ENCODE_DEPTH: usize = 4000;
/// Values between two questions whether to go on.
const STEPS: u64 = 10_000;

/// Settings made by `cjson.encode_sparse_array` and its like.
#[derive(Debug, Clone, Copy)]
pub(super) struct CjsonSettings {
    sparse_convert: bool,
    sparse_ratio: u32,
    sparse_safe: u32,
    encode_depth: usize,
    decode_depth: usize,
    /// 0: refused, 1: written as they are, 2: written as `null`.
    encode_invalid: u8,
    decode_invalid: bool,
    precision: usize,
}

impl Default for CjsonSettings {
    fn default() -> CjsonSettings {
        CjsonSettings {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: 1000,
            decode_depth: 1000,
            encode_invalid: 0,
            decode_invalid: true,
            precision: 14,
        }
    }
}

impl CjsonSettings {
    /// The settings as the prelude packs them.
    pub(super) fn read(packed: &[u8]) -> CjsonSettings {
        let Some(PackedValue::Tree(LuaValue::Table(table))) = PackedValue::tree(packed) else {
            return CjsonSettings::default();
        };
        let n = |i| match table.at(i) {
            Some(LuaValue::Number(n)) => *n as u32,
            _ => 0,
        };
        CjsonSettings {
            sparse_convert: n(1) == 1,
            sparse_ratio: n(2),
            sparse_safe: n(3),
            encode_depth: n(4) as usize,
            decode_depth: n(5) as usize,
            encode_invalid: n(6) as u8,
            decode_invalid: n(7) == 1,
            precision: n(8) as usize,
        }
    }

    /// Writes a value as JSON, at most `most` bytes of it. `stop` is told how much was done and
    /// says whether that was enough.
    pub(super) fn encode(
        &self,
        packed: &PackedValue<'_>,
        most: usize,
        stop: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Vec<u8>, String> {
        let mut steps = 0;
        let mut encoder = Encoder { settings: self, packed, out: Vec::new(), open: Vec::new() };
        let root = packed.root();
        encoder.value(&root)?;
        while let Some(open) = encoder.open.last_mut() {
            let Some((key, value)) = open.next() else {
                encoder.out.push(if open.array.is_some() { b']' } else { b'}' });
                encoder.open.pop();
                continue;
            };
            if !open.first {
                encoder.out.push(b',');
            }
            open.first = false;
            if let Some(key) = key {
                encoder.key(&key)?;
            }
            encoder.value(value)?;
            steps += 1;
            if encoder.out.len() > most || (steps % STEPS == 0 && stop(STEPS)) {
                return Err("not enough memory".to_owned());
            }
        }
        Ok(encoder.out)
    }

    /// Reads JSON and packs it for Lua; true if as a graph.
    pub(super) fn decode(&self, text: &[u8]) -> Result<(Vec<u8>, bool), String> {
        if text.len() >= 2 && text.iter().take(2).any(|byte| *byte == 0) {
            return Err("JSON parser does not support UTF-16 or UTF-32".to_owned());
        }
        let mut decoder = JsonDecoder { settings: self, text, at: 0, nodes: Vec::new() };
        let (root, depth) = decoder.document()?;
        Ok(pack(&decoder.nodes, &root, depth))
    }
}

// Writing ----------------------------------------------------------------------------------------

struct Encoder<'p, 'a> {
    settings: &'p CjsonSettings,
    packed: &'p PackedValue<'a>,
    out: Vec<u8>,
    open: Vec<EncodeFrame<'p, 'a>>,
}

/// An array or object being written.
struct EncodeFrame<'p, 'a> {
    table: &'p LuaTable<'a>,
    /// Number of values of the array; an object if absent.
    array: Option<usize>,
    next: usize,
    first: bool,
    /// The pairs of an object in the order of their keys in Lua 5.1.
    order: Vec<u32>,
}

impl<'p, 'a> EncodeFrame<'p, 'a> {
    /// The next value, and its key in an object.
    fn next(&mut self) -> Option<(Option<Cow<'p, LuaValue<'a>>>, &'p LuaValue<'a>)> {
        const NIL: &LuaValue<'static> = &LuaValue::Nil;
        if let Some(length) = self.array {
            if self.next >= length {
                return None;
            }
            self.next += 1;
            return Some((None, self.table.at(self.next).unwrap_or(NIL)));
        }
        while let Some(value) = self.table.array.get(self.next) {
            self.next += 1;
            if *value != LuaValue::Nil {
                return Some((Some(Cow::Owned(LuaValue::Number(self.next as f64))), value));
            }
        }
        let place = *self.order.get(self.next - self.table.array.len())?;
        let (key, value) = self.table.hash.get(place as usize)?;
        self.next += 1;
        Some((Some(Cow::Borrowed(key)), value))
    }
}

impl<'p, 'a> Encoder<'p, 'a> {
    fn value(&mut self, value: &'p LuaValue<'a>) -> Result<(), String>
    where
        'a: 'p,
    {
        match value {
            LuaValue::Nil | LuaValue::Null => self.out.extend_from_slice(b"null"),
            LuaValue::Bool(true) => self.out.extend_from_slice(b"true"),
            LuaValue::Bool(false) => self.out.extend_from_slice(b"false"),
            LuaValue::Number(n) => self.number(*n)?,
            LuaValue::String(s) => escape(&mut self.out, s),
            LuaValue::Other(name) => return Err(cannot(name, "type not supported")),
            LuaValue::Table(_) | LuaValue::Ref(_) => {
                let table = self.packed.table(value).ok_or("value cannot be read")?;
                return self.begin(table);
            }
        }
        Ok(())
    }

    fn begin(&mut self, table: &'p LuaTable<'a>) -> Result<(), String> {
        let depth = self.open.len() + 1;
        if depth > self.settings.encode_depth.min(MAX_ENCODE_DEPTH) {
            return Err(format!("Cannot serialise, excessive nesting ({depth})"));
        }
        let array = self.array_length(table)?;
        let order = if array.is_some() { Vec::new() } else { order::of(table) };
        self.out.push(if array.is_some() { b'[' } else { b'{' });
        self.open.push(EncodeFrame { table, array, next: 0, first: true, order });
        Ok(())
    }

    /// The number of values if the table is an array: it has nothing but whole positive keys, and
    /// not too few of them.
    fn array_length(&self, table: &LuaTable<'a>) -> Result<Option<usize>, String> {
        let mut max = table.array.len();
        let mut items = table.array.iter().filter(|value| **value != LuaValue::Nil).count();
        for (key, _) in &table.hash {
            match key {
                LuaValue::Number(k) if *k >= 1.0 && k.floor() == *k => {
                    max = max.max(*k as usize);
                    items += 1;
                }
                _ => return Ok(None),
            }
        }
        let settings = self.settings;
        let few = max > items.saturating_mul(settings.sparse_ratio as usize);
        if settings.sparse_ratio > 0 && few && max > settings.sparse_safe as usize {
            if !settings.sparse_convert {
                return Err(cannot(b"table", "excessively sparse array"));
            }
            return Ok(None);
        }
        Ok((max > 0).then_some(max))
    }

    fn key(&mut self, key: &LuaValue<'a>) -> Result<(), String> {
        match key {
            LuaValue::String(s) => escape(&mut self.out, s),
            LuaValue::Number(n) => {
                self.out.push(b'"');
                self.number(*n)?;
                self.out.push(b'"');
            }
            other => return Err(cannot(type_name(other), "table key must be a number or string")),
        }
        self.out.push(b':');
        Ok(())
    }

    fn number(&mut self, n: f64) -> Result<(), String> {
        if !n.is_finite() {
            match self.settings.encode_invalid {
                0 => return Err(cannot(b"number", "must not be NaN or Inf")),
                1 if !n.is_nan() => {}
                keep => {
                    self.out.extend_from_slice(if keep == 1 { b"nan" } else { b"null" });
                    return Ok(());
                }
            }
        }
        if n.fract() == 0.0 && n.abs() < 1e14 && self.settings.precision == 14 && n != 0.0 {
            self.out.extend_from_slice(itoa::Buffer::new().format(n as i64).as_bytes());
        } else {
            self.out.extend(format_g(n, self.settings.precision));
        }
        Ok(())
    }
}

fn cannot(what: &[u8], why: &str) -> String {
    format!("Cannot serialise {}: {why}", String::from_utf8_lossy(what))
}

fn type_name<'a>(value: &LuaValue<'a>) -> &'a [u8] {
    match value {
        LuaValue::Nil => b"nil",
        LuaValue::Bool(_) => b"boolean",
        LuaValue::Number(_) => b"number",
        LuaValue::String(_) => b"string",
        LuaValue::Null => b"userdata",
        LuaValue::Table(_) | LuaValue::Ref(_) => b"table",
        LuaValue::Other(name) => name,
    }
}

/// Writes a string in quotes.
fn escape(out: &mut Vec<u8>, s: &[u8]) {
    out.reserve(s.len() + 2);
    out.push(b'"');
    let mut plain = 0;
    for (i, byte) in s.iter().enumerate() {
        let code = match byte {
            b'"' | b'\\' | b'/' => *byte,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            0..=0x1f | 0x7f => b'u',
            _ => continue,
        };
        out.extend_from_slice(s.get(plain..i).unwrap_or_default());
        plain = i + 1;
        out.push(b'\\');
        out.push(code);
        if code == b'u' {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let digit = |n: u8| HEX.get(usize::from(n)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out.extend_from_slice(s.get(plain..).unwrap_or_default());
    out.push(b'"');
}

// Reading ----------------------------------------------------------------------------------------

/// A value read; arrays and objects lie in a list of their own.
#[derive(Debug, Clone)]
enum JsonValue<'t> {
    Null,
    Bool(bool),
    Number(f64),
    String(Cow<'t, [u8]>),
    Node(usize),
}

#[derive(Debug)]
enum JsonNode<'t> {
    Array(Vec<JsonValue<'t>>),
    Object(Vec<(Cow<'t, [u8]>, JsonValue<'t>)>),
}

struct JsonDecoder<'s, 't> {
    settings: &'s CjsonSettings,
    text: &'t [u8],
    at: usize,
    nodes: Vec<JsonNode<'t>>,
}

enum JsonToken<'t> {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Colon,
    Comma,
    End,
    Value(JsonValue<'t>),
    Wrong(&'static str),
}

impl JsonToken<'_> {
    fn found(&self) -> &'static str {
        match self {
            JsonToken::ObjectBegin => "T_OBJ_BEGIN",
            JsonToken::ObjectEnd => "T_OBJ_END",
            JsonToken::ArrayBegin => "T_ARR_BEGIN",
            JsonToken::ArrayEnd => "T_ARR_END",
            JsonToken::Colon => "T_COLON",
            JsonToken::Comma => "T_COMMA",
            JsonToken::End => "T_END",
            JsonToken::Value(JsonValue::String(_)) => "T_STRING",
            JsonToken::Value(JsonValue::Number(_)) => "T_NUMBER",
            JsonToken::Value(JsonValue::Bool(_)) => "T_BOOLEAN",
            JsonToken::Value(_) => "T_NULL",
            JsonToken::Wrong(what) => what,
        }
    }
}

impl<'t> JsonDecoder<'_, 't> {
    /// The value of the whole text, and how deep it is.
    fn document(&mut self) -> Result<(JsonValue<'t>, usize), String> {
        // Arrays and objects not yet closed, each with the key its value gets in the one around.
        let mut open: Vec<(usize, Cow<'t, [u8]>)> = Vec::new();
        let mut depth = 0;
        let mut key = Cow::Borrowed(&b""[..]);
        let (mut token, mut index) = self.token();
        loop {
            let value = match token {
                JsonToken::Value(value) => value,
                JsonToken::ArrayBegin | JsonToken::ObjectBegin => {
                    let array = matches!(token, JsonToken::ArrayBegin);
                    if open.len() >= self.settings.decode_depth {
                        return Err(format!(
                            "Found too many nested data structures ({}) at character {}",
                            open.len() + 1,
                            self.at
                        ));
                    }
                    open.push((self.nodes.len(), std::mem::take(&mut key)));
                    depth = depth.max(open.len());
                    self.nodes.push(if array {
                        JsonNode::Array(Vec::new())
                    } else {
                        JsonNode::Object(Vec::new())
                    });
                    (token, index) = self.token();
                    match (&token, array) {
                        (JsonToken::ArrayEnd, true) | (JsonToken::ObjectEnd, false) => {}
                        (_, true) => continue,
                        (_, false) => {
                            (key, token, index) = self.key(token, index)?;
                            continue;
                        }
                    }
                    let Some((node, outer)) = open.pop() else {
                        return Err(wrong("value", &token, index));
                    };
                    key = outer;
                    JsonValue::Node(node)
                }
                _ => return Err(wrong("value", &token, index)),
            };
            // A value is complete; put it where it belongs, and close what ends after it.
            let mut value = value;
            loop {
                let Some((node, _)) = open.last() else {
                    (token, index) = self.token();
                    if !matches!(token, JsonToken::End) {
                        return Err(wrong("the end", &token, index));
                    }
                    return Ok((value, depth));
                };
                let node = *node;
                let array = match self.nodes.get_mut(node) {
                    Some(JsonNode::Array(values)) => {
                        values.push(value);
                        true
                    }
                    Some(JsonNode::Object(pairs)) => {
                        pairs.push((std::mem::take(&mut key), value));
                        false
                    }
                    None => return Err("value cannot be read".to_owned()),
                };
                (token, index) = self.token();
                match (&token, array) {
                    (JsonToken::ArrayEnd, true) | (JsonToken::ObjectEnd, false) => {
                        value = JsonValue::Node(node);
                        if let Some((_, outer)) = open.pop() {
                            key = outer;
                        }
                    }
                    (JsonToken::Comma, true) => {
                        (token, index) = self.token();
                        break;
                    }
                    (JsonToken::Comma, false) => {
                        (token, index) = self.token();
                        (key, token, index) = self.key(token, index)?;
                        break;
                    }
                    (_, true) => return Err(wrong("comma or array end", &token, index)),
                    (_, false) => return Err(wrong("comma or object end", &token, index)),
                }
            }
        }
    }

    /// The key in `token`, and the token after the colon.
    fn key(
        &mut self,
        token: JsonToken<'t>,
        index: usize,
    ) -> Result<(Cow<'t, [u8]>, JsonToken<'t>, usize), String> {
        let JsonToken::Value(JsonValue::String(key)) = token else {
            return Err(wrong("object key string", &token, index));
        };
        let (token, index) = self.token();
        if !matches!(token, JsonToken::Colon) {
            return Err(wrong("colon", &token, index));
        }
        let (token, index) = self.token();
        Ok((key, token, index))
    }

    /// The byte `n` ahead; 0 past the end, as the text ends with one in C.
    fn peek(&self, n: usize) -> u8 {
        self.text.get(self.at + n).copied().unwrap_or(0)
    }

    fn rest(&self) -> &'t [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next token and where it begins.
    fn token(&mut self) -> (JsonToken<'t>, usize) {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let index = self.at;
        let byte = self.peek(0);
        let single = match byte {
            b'{' => JsonToken::ObjectBegin,
            b'}' => JsonToken::ObjectEnd,
            b'[' => JsonToken::ArrayBegin,
            b']' => JsonToken::ArrayEnd,
            b',' => JsonToken::Comma,
            b':' => JsonToken::Colon,
            0 => return (JsonToken::End, index),
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if !self.settings.decode_invalid && invalid_number(self.rest()) {
                    return (JsonToken::Wrong("invalid number"), index);
                }
                return (self.number(), index);
            }
            b'f' | b'i' | b'I' | b'n' | b'N' | b't' | b'+' => {
                for (word, value) in [
                    (&b"true"[..], JsonValue::Bool(true)),
                    (b"false", JsonValue::Bool(false)),
                    (b"null", JsonValue::Null),
                ] {
                    if self.rest().starts_with(word) {
                        self.at += word.len();
                        return (JsonToken::Value(value), index);
                    }
                }
                if self.settings.decode_invalid && invalid_number(self.rest()) {
                    return (self.number(), index);
                }
                return (JsonToken::Wrong("invalid token"), index);
            }
            _ => return (JsonToken::Wrong("invalid token"), index),
        };
        self.at += 1;
        (single, index)
    }

    fn number(&mut self) -> JsonToken<'t> {
        match strtod(self.rest()) {
            Some((value, length)) => {
                self.at += length;
                JsonToken::Value(JsonValue::Number(value))
            }
            None => JsonToken::Wrong("invalid number"),
        }
    }

    /// A string; an error is placed where it is found, not where the string begins.
    fn string(&mut self) -> (JsonToken<'t>, usize) {
        let index = self.at;
        self.at += 1;
        let begin = self.at;
        let plain = memchr::memchr2(b'"', b'\\', self.rest()).unwrap_or(self.rest().len());
        let head = self.rest().get(..plain).unwrap_or_default();
        if self.peek(plain) == b'"' && !head.contains(&0) {
            self.at = begin + plain + 1;
            return (JsonToken::Value(JsonValue::String(Cow::Borrowed(head))), index);
        }
        let mut out = Vec::with_capacity(head.len() + 16);
        loop {
            match self.peek(0) {
                b'"' => break,
                0 => return (JsonToken::Wrong("unexpected end of string"), self.at),
                b'\\' => {
                    let escaped = match self.peek(1) {
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 0x08,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 0x0c,
                        b'r' => b'\r',
                        b'u' => {
                            let Some((character, length)) = unicode_escape(self.rest()) else {
                                return (JsonToken::Wrong("invalid unicode escape code"), self.at);
                            };
                            utf8(&mut out, character);
                            self.at += length;
                            continue;
                        }
                        _ => return (JsonToken::Wrong("invalid escape code"), self.at),
                    };
                    out.push(escaped);
                    self.at += 2;
                }
                byte => {
                    out.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        (JsonToken::Value(JsonValue::String(Cow::Owned(out))), index)
    }
}

fn wrong(expected: &str, token: &JsonToken<'_>, index: usize) -> String {
    format!("Expected {expected} but found {} at character {}", token.found(), index + 1)
}

/// Is this something that `strtod` takes for a number and JSON does not?
fn invalid_number(text: &[u8]) -> bool {
    let first = text.first().copied().unwrap_or(0);
    if first == b'+' {
        return true;
    }
    let text = if first == b'-' { text.get(1..).unwrap_or_default() } else { text };
    match text {
        [b'0', b'x' | b'X' | b'0'..=b'9', ..] => true,
        [..=b'9', ..] | [] => false,
        _ => {
            let head = text.get(..3).unwrap_or_default();
            head.eq_ignore_ascii_case(b"inf") || head.eq_ignore_ascii_case(b"nan")
        }
    }
}

/// The character of `\uXXXX`, or of two of these that make up one, and how long it is written.
fn unicode_escape(text: &[u8]) -> Option<(u32, usize)> {
    let unit = hex4(text.get(2..6)?)?;
    if unit & 0xf800 != 0xd800 {
        return Some((unit, 6));
    }
    if unit & 0x400 != 0 || text.get(6..8)? != b"\\u" {
        return None;
    }
    let low = hex4(text.get(8..12)?)?;
    if low & 0xfc00 != 0xdc00 {
        return None;
    }
    Some(((((unit & 0x3ff) << 10) | (low & 0x3ff)) + 0x1_0000, 12))
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |n, digit| Some(n << 4 | char::from(*digit).to_digit(16)?))
}

/// Writes a character as UTF-8.
fn utf8(out: &mut Vec<u8>, character: u32) {
    // Lone surrogates were refused, so this is a character.
    let mut buffer = [0; 4];
    let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
}

/// The number at the start of `text` as C's `strtod` reads it, and how long it is written.
pub(crate) fn strtod(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let negative = text.first() == Some(&b'-');
    let body = text.get(sign..)?;
    let (value, length) = if starts_with(body, b"infinity") {
        (f64::INFINITY, 8)
    } else if starts_with(body, b"inf") {
        (f64::INFINITY, 3)
    } else if starts_with(body, b"nan") {
        (f64::NAN, 3 + nan_payload(body.get(3..).unwrap_or_default()))
    } else if let Some(found) = hexadecimal(body) {
        found
    } else {
        decimal(body)?
    };
    Some((if negative { -value } else { value }, sign + length))
}

fn starts_with(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word))
}

/// The length of `(…)` after `nan`.
fn nan_payload(text: &[u8]) -> usize {
    if text.first() != Some(&b'(') {
        return 0;
    }
    let end = text.iter().skip(1).position(|b| !(b.is_ascii_alphanumeric() || *b == b'_'));
    match end.and_then(|end| text.get(end + 1).map(|byte| (end, *byte))) {
        Some((end, b')')) => end + 2,
        _ => 0,
    }
}

fn digits(text: &[u8], from: usize) -> usize {
    text.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count()
}

fn exponent(text: &[u8], at: usize, letter: u8) -> usize {
    if text.get(at).is_none_or(|byte| byte.to_ascii_lowercase() != letter) {
        return 0;
    }
    let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
    match digits(text, at + 1 + sign) {
        0 => 0,
        n => 1 + sign + n,
    }
}

fn decimal(text: &[u8]) -> Option<(f64, usize)> {
    let whole = digits(text, 0);
    let mut length = whole;
    let mut fraction = 0;
    if text.get(whole) == Some(&b'.') {
        fraction = digits(text, whole + 1);
        length += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }
    length += exponent(text, length, b'e');
    let written = std::str::from_utf8(text.get(..length)?).ok()?;
    Some((written.parse().ok()?, length))
}

fn hexadecimal(text: &[u8]) -> Option<(f64, usize)> {
    if !matches!(text, [b'0', b'x' | b'X', ..]) {
        return None;
    }
    let (mut mantissa, mut exponent2, mut count, mut at, mut dot) = (0u64, 0i32, 0, 2, false);
    loop {
        let byte = text.get(at).copied().unwrap_or(0);
        if byte == b'.' && !dot {
            dot = true;
            at += 1;
            continue;
        }
        let Some(digit) = char::from(byte).to_digit(16) else { break };
        count += 1;
        at += 1;
        if mantissa >> 58 == 0 {
            mantissa = mantissa << 4 | u64::from(digit);
            exponent2 -= if dot { 4 } else { 0 };
        } else {
            // Too many digits for a float: only whether there is anything behind matters.
            mantissa |= u64::from(digit != 0);
            exponent2 = exponent2.saturating_add(if dot { 0 } else { 4 });
        }
    }
    if count == 0 {
        return None;
    }
    let written = exponent(text, at, b'p');
    if written > 0 {
        let power = std::str::from_utf8(text.get(at + 1..at + written)?).ok()?;
        let limit = if power.starts_with('-') { -100_000 } else { 100_000 };
        exponent2 = exponent2.saturating_add(power.parse().unwrap_or(limit));
    }
    Some((scale(mantissa as f64, exponent2), at + written))
}

/// `value` times two to the power `exponent`.
fn scale(mut value: f64, exponent: i32) -> f64 {
    let mut left = exponent.clamp(-5000, 5000);
    while left != 0 {
        let step = left.clamp(-1000, 1000);
        value *= 2f64.powi(step);
        left -= step;
    }
    value
}

/// Packs what was read: as a tree if Lua can unpack it, else as a list of tables.
fn pack(nodes: &[JsonNode<'_>], root: &JsonValue<'_>, depth: usize) -> (Vec<u8>, bool) {
    let mut writer = Writer::default();
    if depth < MAX_DEPTH {
        write(&mut writer, nodes, root);
        return (writer.into_bytes(), false);
    }
    writer.array(nodes.len());
    for node in nodes {
        write_node(&mut writer, node, &mut |writer, value| match value {
            JsonValue::Node(n) => {
                writer.array(1);
                writer.number((n + 1) as f64);
            }
            other => write(writer, &[], other),
        });
    }
    (writer.into_bytes(), true)
}

fn write(writer: &mut Writer, nodes: &[JsonNode<'_>], value: &JsonValue<'_>) {
    match value {
        JsonValue::Null => writer.null(),
        JsonValue::Bool(b) => writer.bool(*b),
        JsonValue::Number(n) => writer.number(*n),
        JsonValue::String(s) => writer.string(s),
        JsonValue::Node(n) => match nodes.get(*n) {
            Some(node) => {
                write_node(writer, node, &mut |writer, value| write(writer, nodes, value));
            }
            None => writer.nil(),
        },
    }
}

fn write_node(
    writer: &mut Writer,
    node: &JsonNode<'_>,
    value_of: &mut dyn FnMut(&mut Writer, &JsonValue<'_>),
) {
    match node {
        JsonNode::Array(values) => {
            writer.array(values.len());
            for value in values {
                value_of(writer, value);
            }
        }
        JsonNode::Object(pairs) => {
            let kept = last_of_each(pairs);
            writer.pairs(kept.len());
            for (key, value) in kept {
                writer.string(key);
                value_of(writer, value);
            }
        }
    }
}

/// Each key with its last value.
fn last_of_each<'p, 't>(
    pairs: &'p [(Cow<'t, [u8]>, JsonValue<'t>)],
) -> Vec<(&'p [u8], &'p JsonValue<'t>)> {
    let mut kept: Vec<(&[u8], &JsonValue<'t>)> = Vec::with_capacity(pairs.len());
    let mut places: HashMap<&[u8], usize> = HashMap::new();
    for (key, value) in pairs {
        let known = if pairs.len() <= 16 {
            kept.iter().position(|(k, _)| *k == &**key)
        } else {
            places.get(&**key).copied()
        };
        match known.and_then(|place| kept.get_mut(place)) {
            Some(pair) => pair.1 = value,
            None => {
                if pairs.len() > 16 {
                    places.insert(key, kept.len());
                }
                kept.push((key, value));
            }
        }
    }
    kept
}
