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

    /// `wrong number of arguments` for the command called `name`.
    pub(crate) fn arity(name: &str) -> Error {
        Error::new(format!("ERR wrong number of arguments for '{name}' command"))
    }
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
pub(crate) const EXEC_ABORT: Error =
    Error::fixed("EXECABORT Transaction discarded because of previous errors.");
