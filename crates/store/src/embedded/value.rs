//! Commands and replies, as redis-rs has them and as the engine has them.
//!
//! Values have the shapes of RESP2, as on a connection to a server, so that a service cannot tell
//! the stores apart.

use engine::{Error, Reply};
use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

/// The arguments of a command, borrowed from it wherever they lie there ready.
#[expect(clippy::large_enum_variant, reason = "lives on the stack, for one call")]
pub(super) enum Argv<'a> {
    Borrowed(SmallVec<[&'a [u8]; 16]>),
    /// redis-rs keeps the cursor of a scan to itself and only writes it when it packs a command.
    Packed(Vec<u8>),
}

impl<'a> Argv<'a> {
    pub(super) fn of(cmd: &'a Cmd) -> Self {
        let mut borrowed = SmallVec::new();
        for arg in cmd.args_iter() {
            match arg {
                Arg::Simple(bytes) => borrowed.push(bytes),
                _ => return Self::Packed(cmd.get_packed_command()),
            }
        }
        Self::Borrowed(borrowed)
    }

    pub(super) fn with<T>(&self, run: impl FnOnce(&[&[u8]]) -> T) -> T {
        match self {
            Self::Borrowed(argv) => run(argv),
            Self::Packed(packed) => run(&unpack(packed)),
        }
    }
}

/// The arguments of a packed command: `*2\r\n$4\r\nSCAN\r\n$1\r\n0\r\n`. Ends early on anything
/// that redis-rs would not have written.
fn unpack(packed: &[u8]) -> Vec<&[u8]> {
    fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        Some((bytes.get(1..end)?, bytes.get(end + 2..)?))
    }
    let mut argv = Vec::new();
    let mut rest = line(packed).map(|(_, rest)| rest);
    while let Some((length, after)) = rest.and_then(line) {
        let length = std::str::from_utf8(length).ok().and_then(|n| n.parse::<usize>().ok());
        let Some(length) = length else { break };
        let Some(argument) = after.get(..length) else { break };
        argv.push(argument);
        rest = after.get(length + 2..);
    }
    argv
}

/// A reply as a connection that speaks RESP2 would give it.
pub(super) fn reply_value(reply: Reply) -> Value {
    let values = |items: Vec<Reply>| Value::Array(items.into_iter().map(reply_value).collect());
    match reply {
        Reply::Ok => Value::Okay,
        Reply::Status(text) => Value::SimpleString(String::from_utf8_lossy(&text).into_owned()),
        Reply::Error(error) => error_value(&error),
        Reply::Int(n) => Value::Int(n),
        Reply::Bulk(bytes)
        | Reply::BigNumber(bytes)
        | Reply::Decimal(bytes)
        | Reply::Verbatim(_, bytes) => Value::BulkString(bytes),
        Reply::Nil | Reply::NilArray => Value::Nil,
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Several(items) => {
            values(items)
        }
        Reply::Map(pairs) => values(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()),
        Reply::Double(n) => Value::BulkString(engine::format_double(n)),
        Reply::Bool(b) => Value::Int(i64::from(b)),
    }
}

/// redis-rs makes server errors only by parsing them.
fn error_value(error: &Error) -> Value {
    let mut line = Vec::with_capacity(error.text().len() + 3);
    line.push(b'-');
    line.extend_from_slice(String::from_utf8_lossy(error.text()).as_bytes());
    line.extend_from_slice(b"\r\n");
    redis::parse_redis_value(&line).unwrap_or(Value::Nil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_unpacked_with_its_cursor() {
        let mut cmd = redis::cmd("SSCAN");
        cmd.arg("a set").cursor_arg(42).arg("MATCH").arg("*\r\n*");
        Argv::of(&cmd).with(|argv| {
            assert_eq!(argv, [&b"SSCAN"[..], b"a set", b"42", b"MATCH", b"*\r\n*"]);
        });
    }

    #[test]
    fn errors_keep_code_and_text() {
        let value = error_value(&Error::fixed("NOSCRIPT No matching script. Please use EVAL."));
        let error = value.extract_error().unwrap_err();
        assert_eq!(error.kind(), redis::ErrorKind::Server(redis::ServerErrorKind::NoScript));
        let value = error_value(&Error::fixed("WRONGTYPE Operation"));
        assert_eq!(value.extract_error().unwrap_err().code(), Some("WRONGTYPE"));
    }
}
