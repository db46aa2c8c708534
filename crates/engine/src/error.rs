//! Every error text a Redis client can see.
//!
//! An [`Error`] is the text after the `-` of an error reply, code first (`ERR`, `WRONGTYPE`, …).

use std::borrow::Cow;
use std::fmt;

/// An error reply: code and message, as it goes over the wire without the leading `-`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Cow<'static, [u8]>);

impl Error {
    /// An error with a fixed text.
    pub const fn fixed(text: &'static str) -> Error {
        Error(Cow::Borrowed(text.as_bytes()))
    }

    /// An error with a made text. Line breaks become spaces, for they would end the reply early.
    pub fn new(text: impl Into<Vec<u8>>) -> Error {
        let mut text: Vec<u8> = text.into();
        for byte in &mut text {
            if *byte == b'\r' || *byte == b'\n' {
                *byte = b' ';
            }
        }
        Error(Cow::Owned(text))
    }

    /// The text, code first.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// The code: the first word.
    pub fn code(&self) -> &[u8] {
        self.0.split(|b| *b == b' ').next().unwrap_or_default()
    }

    /// An error with a word of the client's in it, which ends, as in C, at its first zero byte.
    pub(crate) fn about(before: &str, word: &[u8], after: &str) -> Error {
        let mut text = before.as_bytes().to_vec();
        text.extend_from_slice(c_string(word));
        text.extend_from_slice(after.as_bytes());
        Error::new(text)
    }

    /// A subcommand that exists was given arguments that fit none of its forms.
    pub(crate) fn subcommand(argv: &[&[u8]]) -> Error {
        let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
        let word = c_string(argv.get(1).copied().unwrap_or_default());
        text.extend_from_slice(word.get(..128).unwrap_or(word));
        text.extend_from_slice(b"'. Try ");
        text.extend(argv.first().copied().unwrap_or_default().to_ascii_uppercase());
        text.extend_from_slice(b" HELP.");
        Error::new(text)
    }

    /// `wrong number of arguments` for the command called `name`.
    pub(crate) fn arity(name: &str) -> Error {
        Error::new(format!("ERR wrong number of arguments for '{name}' command"))
    }
}

/// Returns the bytes before the first zero byte, which C takes for the string.
pub(crate) fn c_string(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl std::error::Error for Error {}

pub(crate) const WRONG_TYPE: Error =
    Error::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const SYNTAX: Error = Error::fixed("ERR syntax error");
pub(crate) const NOT_INTEGER: Error = Error::fixed("ERR value is not an integer or out of range");
pub(crate) const NOT_FLOAT: Error = Error::fixed("ERR value is not a valid float");
pub(crate) const NO_SUCH_KEY: Error = Error::fixed("ERR no such key");
pub(crate) const OVERFLOW: Error = Error::fixed("ERR increment or decrement would overflow");
pub(crate) const OUT_OF_RANGE: Error = Error::fixed("ERR index out of range");
pub(crate) const NOT_POSITIVE: Error = Error::fixed("ERR value is out of range, must be positive");
pub(crate) const NO_AUTH: Error = Error::fixed("NOAUTH Authentication required.");
pub(crate) const OUT_OF_MEMORY: Error =
    Error::fixed("OOM command not allowed when used memory > 'maxmemory'.");
pub(crate) const NO_REPLICAS: Error = Error::fixed("NOREPLICAS Not enough good replicas to write.");
pub(crate) const EXEC_ABORT: Error =
    Error::fixed("EXECABORT Transaction discarded because of previous errors.");
