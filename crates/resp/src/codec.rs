//! Bytes to arguments, replies to bytes.
//!
//! The decoder takes what came so far and never looks at a byte twice, however a command is cut
//! into packets. It refuses what is malformed or too large with the words of Redis, after which
//! the connection must be closed: nothing behind such bytes can be trusted.

use std::ops::Range;

use smallvec::SmallVec;
use store::embedded::{Reply, format_double, split_quoted};

/// Limits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Arguments of one command.
    pub arguments: usize,
    /// Bytes of one argument.
    pub argument: usize,
    /// Has the client shown its password? Only then may it send much.
    pub authenticated: bool,
}

/// Bytes of an inline command, and of a line that announces a length.
const LINE_MAX: usize = 64 * 1024;
/// Limits for a client that has not authenticated.
const UNKNOWN_ARGUMENTS: usize = 10;
const UNKNOWN_ARGUMENT: usize = 16 * 1024;

/// The result of a decoding step.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeStep {
    /// A command: where its arguments are in the bytes. May be empty: an empty line is nothing.
    Command,
    /// More bytes are needed.
    Incomplete,
    /// The bytes make no sense: the error to send before the connection is closed.
    Malformed(String),
}

/// Reads commands out of a growing run of bytes.
#[derive(Debug, Default)]
pub struct CommandDecoder {
    /// Offset of the next byte to read.
    at: usize,
    /// Arguments still to come of a command that has begun.
    missing: usize,
    /// Length of the argument that has been announced.
    announced: Option<usize>,
    /// An inline command, whose arguments are not in the bytes as they stand.
    inline: Vec<Vec<u8>>,
    is_inline: bool,
    arguments: SmallVec<[Range<usize>; 16]>,
    /// The last command was read to its end.
    complete: bool,
}

impl CommandDecoder {
    /// Looks for the next command in `bytes`, which are the same as last time, with more at the
    /// end perhaps, less what [`CommandDecoder::forget`] said.
    pub fn next(&mut self, bytes: &[u8], limits: RequestLimits) -> DecodeStep {
        if std::mem::take(&mut self.complete) {
            self.arguments.clear();
            self.inline.clear();
        }
        match self.step(bytes, limits) {
            Ok(true) => {
                self.complete = true;
                DecodeStep::Command
            }
            Ok(false) => DecodeStep::Incomplete,
            Err(text) => DecodeStep::Malformed(text),
        }
    }

    /// The arguments of the command that [`CommandDecoder::next`] just found.
    pub fn arguments<'b>(&'b self, bytes: &'b [u8]) -> SmallVec<[&'b [u8]; 16]> {
        if self.is_inline {
            return self.inline.iter().map(Vec::as_slice).collect();
        }
        self.arguments.iter().map(|at| bytes.get(at.clone()).unwrap_or_default()).collect()
    }

    /// Number of bytes that are consumed; the caller drops them from the front.
    pub fn forget(&mut self) -> usize {
        if self.complete || (self.arguments.is_empty() && self.missing == 0) {
            self.arguments.clear();
            std::mem::take(&mut self.at)
        } else {
            0
        }
    }

    /// Number of bytes the argument being read still needs, to reserve room for it at once.
    pub fn wanted(&self, have: usize) -> usize {
        self.announced.map_or(0, |length| (self.at + length + 2).saturating_sub(have))
    }

    fn step(&mut self, bytes: &[u8], limits: RequestLimits) -> Result<bool, String> {
        if self.missing == 0 {
            self.is_inline = false;
            match bytes.get(self.at) {
                None => return Ok(false),
                Some(b'*') => {
                    let Some(line) = self.line(bytes, "too big mbulk count string")? else {
                        return Ok(false);
                    };
                    let count = integer(line)
                        .filter(|n| *n <= limits.arguments as i64)
                        .ok_or("invalid multibulk length")?;
                    let Some(count) = usize::try_from(count).ok().filter(|n| *n > 0) else {
                        return Ok(true);
                    };
                    if !limits.authenticated && count > UNKNOWN_ARGUMENTS {
                        return Err("unauthenticated multibulk length".to_owned());
                    }
                    self.missing = count;
                }
                Some(_) => return self.inline(bytes),
            }
        }
        while self.missing > 0 {
            let length = match self.announced {
                Some(length) => length,
                None => {
                    match bytes.get(self.at) {
                        None => return Ok(false),
                        Some(b'$') => {}
                        Some(other) => {
                            let other = char::from(*other);
                            return Err(format!("expected '$', got '{other}'"));
                        }
                    }
                    let Some(line) = self.line(bytes, "too big bulk count string")? else {
                        return Ok(false);
                    };
                    let length = integer(line)
                        .and_then(|n| usize::try_from(n).ok())
                        .filter(|n| *n <= limits.argument)
                        .ok_or("invalid bulk length")?;
                    if !limits.authenticated && length > UNKNOWN_ARGUMENT {
                        return Err("unauthenticated bulk length".to_owned());
                    }
                    *self.announced.insert(length)
                }
            };
            if bytes.len() < self.at + length + 2 {
                return Ok(false);
            }
            self.arguments.push(self.at..self.at + length);
            self.at += length + 2;
            self.announced = None;
            self.missing -= 1;
        }
        Ok(true)
    }

    /// The line at the current place without its first byte and its end, once it is whole.
    fn line<'b>(&mut self, bytes: &'b [u8], too_big: &str) -> Result<Option<&'b [u8]>, String> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\r', rest).filter(|end| end + 1 < rest.len()) else {
            return if rest.len() > LINE_MAX { Err(too_big.to_owned()) } else { Ok(None) };
        };
        self.at += end + 2;
        Ok(Some(rest.get(1..end).unwrap_or_default()))
    }

    fn inline(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', rest) else {
            let too_big = rest.len() > LINE_MAX;
            return if too_big { Err("too big inline request".to_owned()) } else { Ok(false) };
        };
        let line = rest.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.at += end + 1;
        self.is_inline = true;
        self.inline = split_quoted(line).ok_or("unbalanced quotes in request")?;
        Ok(true)
    }
}

/// An integer as `string2ll` reads it.
fn integer(digits: &[u8]) -> Option<i64> {
    // Most lengths are this short.
    if let [digit @ b'1'..=b'9'] = digits {
        return Some(i64::from(digit - b'0'));
    }
    let text = std::str::from_utf8(digits).ok()?;
    let canonical = text == "0"
        || text.strip_prefix('-').unwrap_or(text).starts_with(|c: char| ('1'..='9').contains(&c));
    if canonical { text.parse().ok() } else { None }
}

/// Appends a reply as RESP2 or RESP3.
pub fn encode(reply: &Reply, resp3: bool, out: &mut Vec<u8>) {
    match reply {
        Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
        Reply::Status(text) => line(out, b'+', text),
        Reply::Error(error) => line(out, b'-', error.text()),
        Reply::Int(n) => number(out, b':', *n),
        Reply::Bulk(bytes) => bulk(out, b'$', bytes),
        Reply::Nil if resp3 => out.extend_from_slice(b"_\r\n"),
        Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
        Reply::NilArray if resp3 => out.extend_from_slice(b"_\r\n"),
        Reply::NilArray => out.extend_from_slice(b"*-1\r\n"),
        Reply::Array(items) => list(out, b'*', items, resp3),
        Reply::Set(items) => list(out, if resp3 { b'~' } else { b'*' }, items, resp3),
        Reply::Push(items) => list(out, if resp3 { b'>' } else { b'*' }, items, resp3),
        Reply::Map(pairs) => {
            let (kind, count) = if resp3 { (b'%', pairs.len()) } else { (b'*', pairs.len() * 2) };
            number(out, kind, count as i64);
            for (key, value) in pairs {
                encode(key, resp3, out);
                encode(value, resp3, out);
            }
        }
        Reply::Double(value) if resp3 => line(out, b',', &format_double(*value)),
        Reply::Double(value) => bulk(out, b'$', &format_double(*value)),
        Reply::Decimal(digits) if resp3 => line(out, b',', digits),
        Reply::Decimal(digits) => bulk(out, b'$', digits),
        Reply::Bool(value) if resp3 => {
            out.extend_from_slice(if *value { b"#t\r\n" } else { b"#f\r\n" });
        }
        Reply::Bool(value) => number(out, b':', i64::from(*value)),
        Reply::BigNumber(digits) if resp3 => line(out, b'(', digits),
        Reply::BigNumber(digits) => bulk(out, b'$', digits),
        Reply::Verbatim(format, text) if resp3 => {
            number(out, b'=', text.len() as i64 + 4);
            out.extend_from_slice(format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Verbatim(_, text) => bulk(out, b'$', text),
        Reply::Several(replies) => replies.iter().for_each(|reply| encode(reply, resp3, out)),
    }
}

/// A line: line breaks within would end it early, so they become spaces.
fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend(text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }));
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, kind: u8, n: i64) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    number(out, kind, bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn list(out: &mut Vec<u8>, kind: u8, items: &[Reply], resp3: bool) {
    number(out, kind, items.len() as i64);
    items.iter().for_each(|item| encode(item, resp3, out));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: RequestLimits =
        RequestLimits { arguments: 1024, argument: 1024, authenticated: true };

    /// Every command in `bytes`, and what came after the last.
    fn decode(bytes: &[u8], cut: usize) -> (Vec<Vec<Vec<u8>>>, DecodeStep) {
        let (mut decoder, mut have, mut found) =
            (CommandDecoder::default(), Vec::new(), Vec::new());
        let mut last = DecodeStep::Incomplete;
        for part in bytes.chunks(cut.max(1)) {
            have.extend_from_slice(part);
            loop {
                last = decoder.next(&have, LIMITS);
                if last != DecodeStep::Command {
                    break;
                }
                found.push(decoder.arguments(&have).iter().map(|a| a.to_vec()).collect());
                let done = decoder.forget();
                have.drain(..done);
            }
            if let DecodeStep::Malformed(_) = last {
                break;
            }
        }
        (found, last)
    }

    fn command(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn commands_are_found_however_the_bytes_are_cut() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING \"a b\"\r\n*0\r\n*1\r\n$4\r\nPING\r\n";
        for cut in 1..=bytes.len() {
            let (found, _) = decode(bytes, cut);
            let expected =
                [command(&["GET", "a"]), command(&["PING", "a b"]), vec![], command(&["PING"])];
            assert_eq!(found, expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (bytes, text) in [
            (&b"*1\r\n:1\r\n"[..], "expected '$', got ':'"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*99999\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$2000\r\n", "invalid bulk length"),
            (b"GET \"a\r\n", "unbalanced quotes in request"),
        ] {
            assert_eq!(decode(bytes, 1).1, DecodeStep::Malformed(text.to_owned()));
        }
    }

    #[test]
    fn strangers_may_not_send_much() {
        let strangers = RequestLimits { authenticated: false, ..LIMITS };
        let mut decoder = CommandDecoder::default();
        let refused = DecodeStep::Malformed("unauthenticated multibulk length".to_owned());
        assert_eq!(decoder.next(b"*11\r\n", strangers), refused);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..512), cut in 1usize..32) {
            decode(&bytes, cut);
        }

        #[test]
        fn bytes_like_resp_do_not_make_it_panic(text in "[*$0-9a\r\n\"'x\\\\ -]{0,200}", cut in 1usize..32) {
            decode(text.as_bytes(), cut);
        }

        #[test]
        fn what_is_sent_is_read(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 1..9), cut in 1usize..64) {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            for word in &words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
            prop_assert_eq!(decode(&bytes, cut).0, vec![words]);
        }
    }
}
