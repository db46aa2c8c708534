//! An argument of a script that takes any number of them.

use redis::{RedisWrite, ToRedisArgs};

/// One argument of a script whose arguments are of several kinds.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    /// Borrowed string.
    Str(&'a str),
    /// Owned string.
    String(String),
    /// A number, written out.
    Number(i64),
}

impl ToRedisArgs for Arg<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self {
            Self::Str(text) => out.write_arg(text.as_bytes()),
            Self::String(text) => out.write_arg(text.as_bytes()),
            Self::Number(number) => number.write_redis_args(out),
        }
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Str(text)
    }
}

impl From<String> for Arg<'_> {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<usize> for Arg<'_> {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
