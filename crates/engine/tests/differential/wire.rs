//! RESP2 and RESP3 as the tests need them: one tree for what either side answers.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use engine::Reply;

/// A reply as it stands on the wire, types and all.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wire {
    Status(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    /// `$-1`
    NilBulk,
    /// `*-1`
    NilArray,
    /// `_`
    Null,
    Array(Vec<Wire>),
    Map(Vec<(Wire, Wire)>),
    Set(Vec<Wire>),
    Push(Vec<Wire>),
    Double(Vec<u8>),
    Bool(bool),
    Big(Vec<u8>),
    Verbatim(Vec<u8>),
}

impl Wire {
    /// What the engine's reply looks like in this protocol; several if it is several.
    pub(crate) fn of(reply: &Reply, resp: u8) -> Vec<Wire> {
        match reply {
            Reply::Several(replies) => replies.iter().flat_map(|r| Wire::of(r, resp)).collect(),
            other => vec![Wire::one(other, resp)],
        }
    }

    fn one(reply: &Reply, resp: u8) -> Wire {
        let three = resp == 3;
        let all = |items: &[Reply]| items.iter().flat_map(|r| Wire::of(r, resp)).collect();
        match reply {
            Reply::Ok => Wire::Status(b"OK".to_vec()),
            Reply::Status(text) => Wire::Status(text.to_vec()),
            Reply::Error(error) => Wire::Error(error.text().to_vec()),
            Reply::Int(n) => Wire::Int(*n),
            Reply::Bulk(bytes) => Wire::Bulk(bytes.clone()),
            Reply::Nil | Reply::NilArray if three => Wire::Null,
            Reply::Nil => Wire::NilBulk,
            Reply::NilArray => Wire::NilArray,
            Reply::Array(items) => Wire::Array(all(items)),
            Reply::Map(pairs) if three => Wire::Map(
                pairs.iter().map(|(k, v)| (Wire::one(k, resp), Wire::one(v, resp))).collect(),
            ),
            Reply::Map(pairs) => Wire::Array(
                pairs.iter().flat_map(|(k, v)| [Wire::one(k, resp), Wire::one(v, resp)]).collect(),
            ),
            Reply::Set(items) if three => Wire::Set(all(items)),
            Reply::Set(items) => Wire::Array(all(items)),
            Reply::Push(items) if three => Wire::Push(all(items)),
            Reply::Push(items) => Wire::Array(all(items)),
            Reply::Double(value) if three => Wire::Double(engine::format_double(*value)),
            Reply::Double(value) => Wire::Bulk(engine::format_double(*value)),
            Reply::Decimal(digits) if three => Wire::Double(digits.clone()),
            Reply::Decimal(digits) => Wire::Bulk(digits.clone()),
            Reply::Bool(value) if three => Wire::Bool(*value),
            Reply::Bool(value) => Wire::Int(i64::from(*value)),
            Reply::BigNumber(digits) if three => Wire::Big(digits.clone()),
            Reply::BigNumber(digits) => Wire::Bulk(digits.clone()),
            Reply::Verbatim(format, text) if three => {
                let mut whole = format.to_vec();
                whole.push(b':');
                whole.extend_from_slice(text);
                Wire::Verbatim(whole)
            }
            Reply::Verbatim(_, text) => Wire::Bulk(text.clone()),
            Reply::Several(_) => Wire::Error(b"several replies inside another".to_vec()),
        }
    }

    /// The same with every list sorted, pairs kept together: for replies whose order is free.
    pub(crate) fn sorted(self, pairs: bool) -> Wire {
        match self {
            Wire::Array(items) if pairs && items.len() % 2 == 0 => {
                let mut items: Vec<_> = items.chunks(2).map(<[Wire]>::to_vec).collect();
                items.sort();
                Wire::Array(items.into_iter().flatten().collect())
            }
            Wire::Array(items) => {
                let mut items: Vec<_> = items.into_iter().map(|i| i.sorted(pairs)).collect();
                items.sort();
                Wire::Array(items)
            }
            Wire::Set(mut items) => {
                items.sort();
                Wire::Set(items)
            }
            Wire::Map(mut items) => {
                items.sort();
                Wire::Map(items)
            }
            other => other,
        }
    }

    /// Only the types, and the length of lists.
    pub(crate) fn shape(self) -> Wire {
        let blank = Vec::new;
        match self {
            Wire::Status(_) => Wire::Status(blank()),
            Wire::Error(_) => Wire::Error(blank()),
            Wire::Int(_) => Wire::Int(0),
            Wire::Bulk(_) => Wire::Bulk(blank()),
            Wire::Double(_) => Wire::Double(blank()),
            Wire::Big(_) => Wire::Big(blank()),
            Wire::Verbatim(_) => Wire::Verbatim(blank()),
            Wire::Array(items) => Wire::Array(items.into_iter().map(Wire::shape).collect()),
            Wire::Set(items) => Wire::Set(items.into_iter().map(Wire::shape).collect()),
            Wire::Push(items) => Wire::Push(items.into_iter().map(Wire::shape).collect()),
            Wire::Map(items) => {
                Wire::Map(items.into_iter().map(|(k, v)| (k.shape(), v.shape())).collect())
            }
            other => other,
        }
    }

    /// Are these two the same but for integers that differ by no more than `slack`?
    pub(crate) fn near(&self, other: &Wire, slack: i64) -> bool {
        match (self, other) {
            (Wire::Int(a), Wire::Int(b)) => a.abs_diff(*b) <= slack.unsigned_abs(),
            (Wire::Array(a), Wire::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.near(b, slack))
            }
            (Wire::Map(a), Wire::Map(b)) => {
                let pair = |((k, v), (l, w)): (&(Wire, Wire), &(Wire, Wire))| {
                    k.near(l, slack) && v.near(w, slack)
                };
                a.len() == b.len() && a.iter().zip(b).all(pair)
            }
            (a, b) => a == b,
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match self {
            Wire::Status(b) => write!(f, "+{}", text(b)),
            Wire::Error(b) => write!(f, "-{}", text(b)),
            Wire::Int(n) => write!(f, ":{n}"),
            Wire::Bulk(b) => write!(f, "\"{}\"", text(b)),
            Wire::NilBulk => write!(f, "$-1"),
            Wire::NilArray => write!(f, "*-1"),
            Wire::Null => write!(f, "_"),
            Wire::Array(items) => f.debug_list().entries(items).finish(),
            Wire::Map(pairs) => f.debug_map().entries(pairs.iter().map(|(k, v)| (k, v))).finish(),
            Wire::Set(items) => {
                write!(f, "~")?;
                f.debug_list().entries(items).finish()
            }
            Wire::Push(items) => {
                write!(f, ">")?;
                f.debug_list().entries(items).finish()
            }
            Wire::Double(b) => write!(f, ",{}", text(b)),
            Wire::Bool(b) => write!(f, "#{b}"),
            Wire::Big(b) => write!(f, "({}", text(b)),
            Wire::Verbatim(b) => write!(f, "={}", text(b)),
        }
    }
}

/// A connection to Redis.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        // Long enough for a busy machine; a reply that never comes fails the test.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Connection { writer: stream.try_clone().unwrap(), reader: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, argv: &[Vec<u8>]) {
        let mut out = Vec::new();
        encode(argv, &mut out);
        self.writer.write_all(&out).unwrap();
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).unwrap();
    }

    pub(crate) fn receive(&mut self) -> Wire {
        self.read().expect("a reply of Redis")
    }

    fn line(&mut self) -> std::io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        if line.len() < 2 {
            return Err(std::io::Error::other("the connection was closed"));
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn bytes(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; count + 2];
        self.reader.read_exact(&mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn many(&mut self, count: i64) -> std::io::Result<Vec<Wire>> {
        (0..count).map(|_| self.read()).collect()
    }

    fn read(&mut self) -> std::io::Result<Wire> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().unwrap();
        let number = || std::str::from_utf8(rest).unwrap().parse::<i64>().unwrap();
        Ok(match kind {
            b'+' => Wire::Status(rest.to_vec()),
            b'-' => Wire::Error(rest.to_vec()),
            b':' => Wire::Int(number()),
            b'$' if number() < 0 => Wire::NilBulk,
            b'*' if number() < 0 => Wire::NilArray,
            b'$' => Wire::Bulk(self.bytes(number() as usize)?),
            b'*' => Wire::Array(self.many(number())?),
            b'~' => Wire::Set(self.many(number())?),
            b'>' => Wire::Push(self.many(number())?),
            b'%' => Wire::Map(
                (0..number())
                    .map(|_| Ok((self.read()?, self.read()?)))
                    .collect::<std::io::Result<_>>()?,
            ),
            b'_' => Wire::Null,
            b',' => Wire::Double(rest.to_vec()),
            b'#' => Wire::Bool(rest == b"t"),
            b'(' => Wire::Big(rest.to_vec()),
            b'=' => Wire::Verbatim(self.bytes(number() as usize)?),
            other => panic!("Redis sent {:?}", char::from(*other)),
        })
    }
}

/// A command as an array of bulk strings.
pub(crate) fn encode(argv: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", argv.len()).as_bytes());
    for argument in argv {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Splits a line into arguments: words, or `"…"` with `\xHH`, `\n`, `\r`, `\t`, `\\`, `\"`.
pub(crate) fn words(line: &str) -> Vec<Vec<u8>> {
    let mut argv = Vec::new();
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b' ' {
            at += 1;
            continue;
        }
        let mut word = Vec::new();
        if bytes[at] == b'"' {
            at += 1;
            while bytes[at] != b'"' {
                if bytes[at] == b'\\' {
                    at += 1;
                    match bytes[at] {
                        b'n' => word.push(b'\n'),
                        b'r' => word.push(b'\r'),
                        b't' => word.push(b'\t'),
                        b'x' => {
                            let digits = std::str::from_utf8(&bytes[at + 1..at + 3]).unwrap();
                            word.push(u8::from_str_radix(digits, 16).unwrap());
                            at += 2;
                        }
                        other => word.push(other),
                    }
                } else {
                    word.push(bytes[at]);
                }
                at += 1;
            }
            at += 1;
        } else {
            while at < bytes.len() && bytes[at] != b' ' {
                word.push(bytes[at]);
                at += 1;
            }
        }
        argv.push(word);
    }
    argv
}

/// A command as it could be typed again.
pub(crate) fn show(argv: &[Vec<u8>]) -> String {
    let word = |bytes: &Vec<u8>| {
        let plain = !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_graphic() && *b != b'"');
        let escaped = bytes.escape_ascii().to_string().replace("\\'", "'");
        if plain { String::from_utf8_lossy(bytes).into_owned() } else { format!("\"{escaped}\"") }
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}
