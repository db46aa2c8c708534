//! The text of a script: its first line, and what is done to the rest before it is compiled.
//!
//! The interpreter knows more of Lua than 5.1 does. What is no Lua for Redis is none here either,
//! and `"\d"` is `"d"`.
//!
//! Redis's interpreter keeps the caller of a function in C on the stack even if the call is the
//! last thing it does (`return redis.call(…)`), and so can name the line of an error in it. Ours
//! gives the place up, so such returns are put in parentheses, which makes them ordinary calls.
//! That is done only where it changes nothing else: in the main function, of which only the first
//! value counts, and elsewhere for functions known to return one value.
//!
//! The globals scripts use most (`KEYS`, `ARGV`, `redis.call`) lie behind read-only tables, and
//! finding it there takes longer than most of what is done with it. So it is given to the main
//! function as arguments, and a first line of locals takes them, where nobody can tell: nothing is
//! assigned to these names, and there is no `...` that could show them.

use std::ops::Range;

use super::cjson::strtod;
use crate::split_quoted;

/// Flags from the `#!` line of a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ScriptFlags {
    /// There is no `#!` line: the script is held to what it does, not to what it says.
    pub(super) compatible: bool,
    pub(super) no_writes: bool,
    pub(super) allow_oom: bool,
    pub(super) allow_stale: bool,
    pub(super) no_cluster: bool,
    pub(super) allow_cross_slot: bool,
    /// Dragonfly's `--!df flags=allow-undeclared-keys`.
    pub(super) allow_undeclared: bool,
}

/// The first line, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShebangLine {
    pub(super) flags: ScriptFlags,
    /// Bytes before the Lua begins.
    pub(super) skip: usize,
}

/// Reads the first line; an error is the text for the caller.
pub(super) fn header(body: &[u8]) -> Result<ShebangLine, Vec<u8>> {
    let mut flags = ScriptFlags { compatible: true, ..ScriptFlags::default() };
    if !body.starts_with(b"#!") {
        flags.allow_undeclared = dragonfly_flags(body);
        return Ok(ShebangLine { flags, skip: 0 });
    }
    let Some(skip) = memchr::memchr(b'\n', body) else {
        return Err(b"ERR Invalid script shebang".to_vec());
    };
    let line = body.get(..skip).unwrap_or_default();
    let words = split_quoted(line).unwrap_or_default();
    let mut words = words.iter().map(Vec::as_slice);
    let refuse = |text: &str, what: &[u8]| Err([b"ERR ", text.as_bytes(), what].concat());
    match words.next() {
        Some(b"#!lua") => flags.compatible = false,
        Some(engine) => return refuse("Unexpected engine in script shebang: ", engine),
        None => return refuse("Invalid engine in script shebang", b""),
    }
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return refuse("Unknown lua shebang option: ", word);
        };
        if list.is_empty() {
            continue;
        }
        for flag in list.split(|byte| *byte == b',') {
            match flag {
                b"no-writes" => flags.no_writes = true,
                b"allow-oom" => flags.allow_oom = true,
                b"allow-stale" => flags.allow_stale = true,
                b"no-cluster" => flags.no_cluster = true,
                b"allow-cross-slot-keys" => flags.allow_cross_slot = true,
                _ => return refuse("Unexpected flag in script shebang: ", flag),
            }
        }
    }
    flags.allow_undeclared = dragonfly_flags(body.get(skip + 1..).unwrap_or_default());
    Ok(ShebangLine { flags, skip })
}

/// Does the first line that is not empty allow undeclared keys?
fn dragonfly_flags(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    let Some(rest) = body.strip_prefix(b"--!df flags=") else { return false };
    let list = rest.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    list.split(|byte| *byte == b',').any(|flag| flag == b"allow-undeclared-keys")
}

/// A script prepared for the interpreter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreparedSource {
    /// The same for the interpreter as the script is for Lua 5.1.
    pub(super) source: Vec<u8>,
    /// The same with its last calls made ordinary; absent if there is nothing to do.
    pub(super) kept: Option<Vec<u8>>,
    /// The same again, to be called with `KEYS`, `ARGV` and `redis.call`; absent if it cannot be.
    pub(super) near: Option<Vec<u8>>,
}

/// Prepares a script; an error is line and message of what is no Lua 5.1. Line numbers stay.
pub(super) fn prepare(source: &[u8]) -> Result<PreparedSource, (usize, Vec<u8>)> {
    let Some(tokens) = tokens(source) else {
        // Something has no end. The interpreter says so better.
        return Ok(PreparedSource { source: source.to_vec(), kept: None, near: None });
    };
    if let Some((at, message)) = foreign(source, &tokens) {
        let before = source.get(..at).unwrap_or_default();
        return Err((memchr::memchr_iter(b'\n', before).count() + 1, message));
    }
    let escapes = escapes(source, &tokens);
    let mut calls =
        SourceScan { source, tokens: &tokens, aliases: aliases(source, &tokens) }.edits();
    let changed = !calls.is_empty();
    calls.extend_from_slice(&escapes);
    calls.sort_by_key(|edit| edit.at());
    let kept = changed.then(|| edited(source, &calls));
    let near = nearer(source, &tokens).map(|locals| {
        calls.extend_from_slice(&locals);
        calls.sort_by_key(|edit| edit.at());
        edited(source, &calls)
    });
    Ok(PreparedSource { source: edited(source, &escapes), kept, near })
}

/// Returns the line that makes `KEYS`, `ARGV` and `redis.call` locals, if that is invisible and of
/// use.
fn nearer(source: &[u8], tokens: &[LuaToken]) -> Option<Vec<SourceEdit>> {
    let text = |n: usize| {
        let token = tokens.get(n).filter(|token| token.kind != LuaTokenKind::String);
        token.and_then(|token| source.get(token.at.clone())).unwrap_or_default()
    };
    let before = |n: usize| n.checked_sub(1).map_or(&b""[..], text);
    let mut edits = vec![SourceEdit::Insert(0, b"local KEYS,ARGV,__redis_call=... ")];
    let mut uses = 0;
    for n in 0..tokens.len() {
        let joined = before(n.saturating_sub(1)) == b".";
        let field = before(n) == b":" || (before(n) == b"." && !joined);
        match text(n) {
            b"__redis_call" => return None,
            b"." if joined && before(n) == b"." => return None,
            // Whatever is assigned to them is refused; and no error may call them something else.
            b"KEYS" | b"ARGV" if !field => match (before(n), text(n + 1)) {
                (b"#", _) | (_, b"[") | (b"(" | b",", b")") | (b"(", b",") => uses += 1,
                _ => return None,
            },
            b"redis" if !field => {
                if text(n + 1) != b"." {
                    return None;
                }
                if text(n + 2) == b"call" && text(n + 3) == b"(" && before(n) != b"function" {
                    uses += 1;
                    edits.push(SourceEdit::Insert(tokens.get(n)?.at.start, b"__redis_call"));
                    for token in tokens.get(n..n + 3)? {
                        edits.extend(token.at.clone().map(SourceEdit::Delete));
                    }
                }
            }
            _ => {}
        }
    }
    (uses > 0).then_some(edits)
}

/// A change to the text.
#[derive(Debug, Clone, Copy)]
enum SourceEdit {
    /// Put these bytes in there.
    Insert(usize, &'static [u8]),
    /// Take the byte there out.
    Delete(usize),
}

impl SourceEdit {
    fn at(self) -> usize {
        match self {
            SourceEdit::Insert(at, _) | SourceEdit::Delete(at) => at,
        }
    }
}

fn edited(source: &[u8], edits: &[SourceEdit]) -> Vec<u8> {
    let mut out = Vec::with_capacity(source.len() + edits.len());
    let mut done = 0;
    for edit in edits {
        out.extend_from_slice(source.get(done..edit.at()).unwrap_or_default());
        done = edit.at();
        match edit {
            SourceEdit::Insert(_, bytes) => out.extend_from_slice(bytes),
            SourceEdit::Delete(_) => done += 1,
        }
    }
    out.extend_from_slice(source.get(done..).unwrap_or_default());
    out
}

/// Backslashes that mean nothing in 5.1.
fn escapes(source: &[u8], tokens: &[LuaToken]) -> Vec<SourceEdit> {
    let mut edits = Vec::new();
    for token in tokens.iter().filter(|token| token.kind == LuaTokenKind::String) {
        if !matches!(source.get(token.at.start), Some(b'"' | b'\'')) {
            continue;
        }
        let mut at = token.at.start + 1;
        while at < token.at.end {
            if source.get(at) != Some(&b'\\') {
                at += 1;
                continue;
            }
            match source.get(at + 1) {
                Some(b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v') => {}
                Some(b'\\' | b'"' | b'\'' | b'\n' | b'\r' | b'0'..=b'9') | None => {}
                Some(_) => edits.push(SourceEdit::Delete(at)),
            }
            at += 2;
        }
    }
    edits
}

/// Finds syntax that the interpreter understands and 5.1 does not; returns its offset and 5.1's
/// error.
fn foreign(source: &[u8], tokens: &[LuaToken]) -> Option<(usize, Vec<u8>)> {
    let text = |n: usize| {
        let token = tokens.get(n).filter(|token| token.kind != LuaTokenKind::String);
        token.and_then(|token| source.get(token.at.clone())).unwrap_or_default()
    };
    let near = |what: &str, n: usize| {
        let near = tokens.get(n).and_then(|token| source.get(token.at.clone()));
        let near = near.unwrap_or(b"<eof>");
        [what.as_bytes(), b" near '", near, b"'"].concat()
    };
    for (n, token) in tokens.iter().enumerate() {
        let at = token.at.start;
        match token.kind {
            LuaTokenKind::Number
                if strtod(text(n)).is_none_or(|(_, length)| length != text(n).len()) =>
            {
                return Some((at, near("malformed number", n)));
            }
            LuaTokenKind::Symbol => {
                let joined = source.get(at + 1).copied().unwrap_or(0);
                let (wrong, where_) = match (text(n), joined) {
                    (b"&" | b"|" | b"!" | b"?", _) => (true, n),
                    (b"~", next) => (next != b'=', n),
                    (b"<", b'<') | (b">", b'>') | (b":", b':') | (b"-", b'>') => (true, n + 1),
                    _ => (false, n),
                };
                if wrong {
                    return Some((at, near("unexpected symbol", where_)));
                }
            }
            LuaTokenKind::Name => {
                let next = tokens.get(n + 1);
                let name_next = next.is_some_and(|next| next.kind == LuaTokenKind::Name);
                let before = n.checked_sub(1).map(text).unwrap_or_default();
                let field = matches!(before, b"." | b":" | b"local" | b"function" | b",");
                let wrong = match text(n) {
                    b"goto" | b"const" => name_next && !keyword(text(n + 1)) && !field,
                    b"continue" => {
                        !field
                            && matches!(text(n + 1), b"end" | b"else" | b"elseif" | b"until" | b";")
                            && !matches!(before, b"=" | b"return" | b"(" | b"," | b"{" | b"[")
                            && !operator(before)
                    }
                    _ => false,
                };
                if wrong {
                    return Some((at, near("'=' expected", n + 1)));
                }
            }
            _ => {}
        }
    }
    None
}

/// May a value follow after this?
fn operator(text: &[u8]) -> bool {
    matches!(
        text,
        b"and"
            | b"or"
            | b"not"
            | b"+"
            | b"-"
            | b"*"
            | b"/"
            | b"%"
            | b"^"
            | b"#"
            | b"<"
            | b">"
            | b"="
            | b"."
            | b"in"
            | b"until"
            | b"if"
            | b"while"
            | b"elseif"
    )
}

fn keyword(text: &[u8]) -> bool {
    const KEYWORDS: &[&[u8]] = &[
        b"and",
        b"break",
        b"do",
        b"else",
        b"elseif",
        b"end",
        b"false",
        b"for",
        b"function",
        b"if",
        b"in",
        b"local",
        b"nil",
        b"not",
        b"or",
        b"repeat",
        b"return",
        b"then",
        b"true",
        b"until",
        b"while",
    ];
    KEYWORDS.contains(&text)
}

#[derive(Debug, Clone, PartialEq)]
struct LuaToken {
    kind: LuaTokenKind,
    at: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum LuaTokenKind {
    Name,
    String,
    Number,
    Symbol,
}

/// Names, strings, numbers and symbols in the order of the text.
fn tokens(source: &[u8]) -> Option<Vec<LuaToken>> {
    let mut tokens = Vec::new();
    let byte = |at: usize| source.get(at).copied().unwrap_or(0);
    let mut at = 0;
    while at < source.len() {
        let from = at;
        let kind = match byte(at) {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => {
                at += 1;
                continue;
            }
            b'-' if byte(at + 1) == b'-' => {
                at = match long_bracket(source, at + 2) {
                    Some(end) => end?,
                    None => {
                        let rest = source.get(at..)?;
                        at + memchr::memchr(b'\n', rest).unwrap_or(rest.len())
                    }
                };
                continue;
            }
            b'[' if long_bracket(source, at).is_some() => {
                at = long_bracket(source, at)??;
                LuaTokenKind::String
            }
            quote @ (b'"' | b'\'') => {
                at += 1;
                while byte(at) != quote {
                    if at >= source.len() {
                        return None;
                    }
                    at += if byte(at) == b'\\' { 2 } else { 1 };
                }
                at += 1;
                LuaTokenKind::String
            }
            b'0'..=b'9' => {
                while byte(at).is_ascii_alphanumeric()
                    || matches!(byte(at), b'.' | b'_')
                    || (matches!(byte(at), b'+' | b'-')
                        && matches!(byte(at - 1), b'e' | b'E' | b'p' | b'P'))
                {
                    at += 1;
                }
                LuaTokenKind::Number
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => {
                while byte(at).is_ascii_alphanumeric() || byte(at) == b'_' || byte(at) >= 0x80 {
                    at += 1;
                }
                LuaTokenKind::Name
            }
            _ => {
                at += 1;
                LuaTokenKind::Symbol
            }
        };
        tokens.push(LuaToken { kind, at: from..at });
    }
    Some(tokens)
}

/// The end of the long bracket that begins at `at`: none if there is none, `Some(None)` if it has
/// no end.
fn long_bracket(source: &[u8], at: usize) -> Option<Option<usize>> {
    if source.get(at) != Some(&b'[') {
        return None;
    }
    let level = source.iter().skip(at + 1).take_while(|byte| **byte == b'=').count();
    let begin = at + 2 + level;
    if source.get(begin - 1) != Some(&b'[') {
        return None;
    }
    let close = [&b"]"[..], &vec![b'='; level], b"]"].concat();
    let rest = source.get(begin..).unwrap_or_default();
    Some(memchr::memmem::find(rest, &close).map(|end| begin + end + close.len()))
}

/// Functions that return one value and may raise an error, as they are usually written.
const SINGLE: &[&str] = &[
    "error",
    "redis.call",
    "redis.pcall",
    "redis.sha1hex",
    "cjson.decode",
    "cjson.encode",
    "cmsgpack.pack",
    "struct.pack",
    "tonumber",
    "table.concat",
    "string.format",
    "string.rep",
    "string.sub",
];

/// Names that stand for `redis.call` or `redis.pcall` all through the script.
fn aliases<'s>(source: &'s [u8], tokens: &[LuaToken]) -> Vec<&'s [u8]> {
    let text =
        |n: usize| tokens.get(n).and_then(|token| source.get(token.at.clone())).unwrap_or_default();
    let mut found: Vec<&[u8]> = Vec::new();
    for n in 0..tokens.len() {
        let declared = text(n) == b"local"
            && text(n + 2) == b"="
            && text(n + 3) == b"redis"
            && text(n + 4) == b"."
            && matches!(text(n + 5), b"call" | b"pcall")
            && !matches!(text(n + 6), b"." | b"(" | b"[" | b":" | b"{");
        if declared {
            found.push(text(n + 1));
        }
    }
    // Only if nothing else is ever called so.
    found.retain(|name| {
        let mut declarations = 0;
        (0..tokens.len()).filter(|n| text(*n) == *name).all(|n| {
            if n > 0 && text(n - 1) == b"local" {
                declarations += 1;
                return declarations == 1;
            }
            let field = n > 0 && matches!(text(n - 1), b"." | b":" | b"function");
            !field && matches!(text(n + 1), b"(")
        })
    });
    found
}

struct SourceScan<'s> {
    source: &'s [u8],
    tokens: &'s [LuaToken],
    aliases: Vec<&'s [u8]>,
}

impl<'s> SourceScan<'s> {
    fn text(&self, n: usize) -> &'s [u8] {
        let token = self.tokens.get(n).filter(|token| token.kind != LuaTokenKind::String);
        token.and_then(|token| self.source.get(token.at.clone())).unwrap_or_default()
    }

    /// Parentheses to put in.
    fn edits(&self) -> Vec<SourceEdit> {
        let mut edits = Vec::new();
        // Blocks that end with `end`; true for functions.
        let mut blocks: Vec<bool> = Vec::new();
        for n in 0..self.tokens.len() {
            match self.text(n) {
                b"function" => blocks.push(true),
                // `while … do` and `for … do` are one block.
                b"if" | b"do" => blocks.push(false),
                b"end" => {
                    blocks.pop();
                }
                b"return" => {
                    let main = !blocks.contains(&true);
                    if let Some((from, to)) = self.returned(n, main) {
                        edits.push(SourceEdit::Insert(from, b"("));
                        edits.push(SourceEdit::Insert(to, b")"));
                    }
                }
                _ => {}
            }
        }
        edits
    }

    /// Returns the begin and end of the one call that `return` at token `n` gives back, if that is
    /// to be put in parentheses.
    fn returned(&self, n: usize, main: bool) -> Option<(usize, usize)> {
        let first = n + 1;
        let mut last = first;
        let (mut nesting, mut blocks) = (0usize, 0usize);
        while last < self.tokens.len() {
            match self.text(last) {
                b"function" | b"if" | b"do" => blocks += 1,
                b"end" if blocks > 0 => blocks -= 1,
                b"end" | b"else" | b"elseif" | b"until" | b";" if blocks == 0 => break,
                b"(" | b"{" | b"[" => nesting += 1,
                b")" | b"}" | b"]" => nesting = nesting.checked_sub(1)?,
                // Several values.
                b"," if nesting == 0 && blocks == 0 => return None,
                _ => {}
            }
            last += 1;
        }
        if last == first || blocks > 0 || nesting > 0 {
            return None;
        }
        let call = matches!(self.text(last - 1), b")" | b"}")
            || self.tokens.get(last - 1).is_some_and(|token| token.kind == LuaTokenKind::String);
        if !call || (!main && !self.single(first, last)) {
            return None;
        }
        Some((self.tokens.get(first)?.at.start, self.tokens.get(last - 1)?.at.end))
    }

    /// Are the tokens one call of a function that returns one value?
    fn single(&self, first: usize, last: usize) -> bool {
        let mut at = first;
        let mut name = Vec::new();
        while self.tokens.get(at).is_some_and(|token| token.kind == LuaTokenKind::Name)
            || self.text(at) == b"."
        {
            name.extend_from_slice(self.text(at));
            at += 1;
        }
        let known = SINGLE.iter().any(|known| known.as_bytes() == name)
            || self.aliases.iter().any(|alias| *alias == name);
        if !known || self.text(at) != b"(" {
            return false;
        }
        // The parenthesis that opens here must be the one that closes last.
        let mut nesting = 0usize;
        for n in at..last {
            match self.text(n) {
                b"(" => nesting += 1,
                b")" => nesting = nesting.saturating_sub(1),
                _ => {}
            }
            if nesting == 0 {
                return n + 1 == last;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(source: &str) -> String {
        let prepared = prepare(source.as_bytes()).unwrap();
        let bytes = prepared.kept.unwrap_or(prepared.source);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn last_calls_become_ordinary_ones() {
        for (source, kept_source) in [
            ("return redis.call('get', KEYS[1])", "return (redis.call('get', KEYS[1]))"),
            ("return f(x).y:z{1}", "return (f(x).y:z{1})"),
            ("return error 'x' -- done", "return (error 'x') -- done"),
            (
                "if x then return f() else return g() end",
                "if x then return (f()) else return (g()) end",
            ),
            ("return 1", "return 1"),
            ("return", "return"),
            ("return f(), 1", "return f(), 1"),
            (
                "local function f() return g(1) end return f()",
                "local function f() return g(1) end return (f())",
            ),
            (
                "local function f() return redis.call('x') end",
                "local function f() return (redis.call('x')) end",
            ),
            (
                "local function f() return redis.call('x') .. y() end",
                "local function f() return redis.call('x') .. y() end",
            ),
            (
                "local r = redis.call\nlocal function f() return r('x') end",
                "local r = redis.call\nlocal function f() return (r('x')) end",
            ),
            (
                "local r = redis.call\nr = g\nlocal function f() return r('x') end",
                "local r = redis.call\nr = g\nlocal function f() return r('x') end",
            ),
            ("return [[return f()]]", "return ([[return f()]])"),
            (
                "for i = 1, 2 do if x then return f() end end",
                "for i = 1, 2 do if x then return (f()) end end",
            ),
            (
                "return function() return error('x') end",
                "return function() return (error('x')) end",
            ),
            ("return f(function() return g() end)", "return (f(function() return g() end))"),
            ("repeat return f() until true", "repeat return (f()) until true"),
        ] {
            assert_eq!(kept(source), kept_source);
        }
    }

    #[test]
    fn what_is_used_most_comes_near_where_nobody_can_tell() {
        let near = |source: &str| {
            let near = prepare(source.as_bytes()).unwrap().near;
            near.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let start = "local KEYS,ARGV,__redis_call=... ";
        for (source, expected) in [
            ("return redis.call('get', KEYS[1])", "return (__redis_call('get', KEYS[1]))"),
            ("return 'a'..KEYS[1]..#ARGV[2]", "return 'a'..KEYS[1]..#ARGV[2]"),
            ("f(unpack(KEYS)) t.KEYS = 1", "f(unpack(KEYS)) t.KEYS = 1"),
            ("return #KEYS == 5, unpack(ARGV, 2)", "return #KEYS == 5, unpack(ARGV, 2)"),
            ("redis . call ( 'x' ) redis.pcall('y')", "__redis_call   ( 'x' ) redis.pcall('y')"),
        ] {
            assert_eq!(near(source).as_deref(), Some(&*format!("{start}{expected}")), "{source}");
        }
        for source in [
            "return 1",
            "KEYS = {} return KEYS[1]",
            "local KEYS, x = 1, 2 return ARGV[1]",
            "return KEYS[1], ...",
            "local f = function(...) return ARGV[1] end",
            "local r = redis return r.call('x', KEYS[1])",
            "local redis = {} redis.call('x')",
            "return __redis_call(KEYS[1])",
            "return ARGV + 1",
            "return KEYS",
        ] {
            assert_eq!(near(source), None, "{source}");
        }
        assert!(near("redis.call = f redis.call('x')").unwrap().contains("redis.call = f "));
    }

    #[test]
    fn what_is_no_lua_for_redis_is_none_here() {
        for (source, message) in [
            ("return 1LL", "malformed number near '1LL'"),
            ("return 0b11", "malformed number near '0b11'"),
            ("return 1_000", "malformed number near '1_000'"),
            ("return 7 & 2", "unexpected symbol near '&'"),
            ("return a ~ b", "unexpected symbol near '~'"),
            ("return a << b", "unexpected symbol near '<'"),
            ("while true do continue end", "'=' expected near 'end'"),
            ("goto done", "'=' expected near 'done'"),
            ("const x = 1", "'=' expected near 'x'"),
        ] {
            assert_eq!(prepare(source.as_bytes()), Err((1, message.as_bytes().to_vec())));
        }
        for source in [
            "local continue = 1 return continue",
            "local goto, const = 1, 2 return goto + const",
            "x.continue = 1 return x.goto",
            "if a then f(continue) end",
            "if continue then x = continue end",
            "return a ~= b, 0x1F, 1e5, .5, 3., 1e-7",
        ] {
            assert!(prepare(source.as_bytes()).is_ok(), "{source}");
        }
    }

    #[test]
    fn backslashes_without_meaning_go() {
        let source =
            |text: &str| String::from_utf8(prepare(text.as_bytes()).unwrap().source).unwrap();
        assert_eq!(source(r#"x = "\\d\d\n\/\x41" "#), r#"x = "\\dd\n/x41" "#);
        assert_eq!(source(r"x = [[\d]] -- \d"), r"x = [[\d]] -- \d");
    }

    #[test]
    fn no_text_is_too_strange() {
        let words =
            ["return", "f", "(", ")", "end", "function", "[[", "]]", "'", "--", "=", "if", " "];
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let text: String =
                (0..rng.usize(0..20)).filter_map(|_| rng.choice(words.iter()).copied()).collect();
            let _ = prepare(text.as_bytes());
        }
    }

    #[test]
    fn the_first_line_is_read() {
        let flags = |body: &str| header(body.as_bytes()).map(|header| header.flags);
        assert!(flags("return 1").unwrap().compatible);
        assert!(flags("--!df flags=allow-undeclared-keys\nreturn 1").unwrap().allow_undeclared);
        assert!(!flags("--!df flags=disable-atomicity\nreturn 1").unwrap().allow_undeclared);
        let strict = flags("#!lua flags=no-writes,allow-oom\nreturn 1").unwrap();
        assert!(strict.no_writes && strict.allow_oom && !strict.compatible);
        for (body, text) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!not-lua\n", "ERR Unexpected engine in script shebang: #!not-lua"),
            ("#!lua badger\n", "ERR Unknown lua shebang option: badger"),
            ("#!lua flags=x\n", "ERR Unexpected flag in script shebang: x"),
        ] {
            assert_eq!(header(body.as_bytes()), Err(text.as_bytes().to_vec()));
        }
    }
}
