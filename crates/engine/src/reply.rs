//! Reply values, the same for RESP2, RESP3, Lua and redis-rs: the sender encodes them.

use std::borrow::Cow;

use crate::Error;

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// `+OK`
    Ok,
    /// A status line other than `OK`.
    Status(Cow<'static, [u8]>),
    /// An error.
    Error(Error),
    /// An integer.
    Int(i64),
    /// A binary-safe string.
    Bulk(Vec<u8>),
    /// The absent string: `$-1` in RESP2, `_` in RESP3.
    Nil,
    /// The absent array: `*-1` in RESP2, `_` in RESP3.
    NilArray,
    /// A list of replies.
    Array(Vec<Reply>),
    /// Pairs; a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// Members; an array in RESP2.
    Set(Vec<Reply>),
    /// Out of band data (pub/sub messages); an array in RESP2.
    Push(Vec<Reply>),
    /// A float; a bulk string of `%.17g` in RESP2.
    Double(f64),
    /// A float with the digits as they shall be shown; a bulk string of them in RESP2.
    Decimal(Vec<u8>),
    /// A boolean; `:1` or `:0` in RESP2.
    Bool(bool),
    /// An integer of any size, as decimal digits; a bulk string in RESP2.
    BigNumber(Vec<u8>),
    /// A string with a three-letter format; a bulk string in RESP2.
    Verbatim([u8; 3], Vec<u8>),
    /// Several replies one after the other (`SUBSCRIBE a b`), or none.
    Several(Vec<Reply>),
}

impl Reply {
    /// A status line with a fixed text.
    pub const fn status(text: &'static str) -> Reply {
        Reply::Status(Cow::Borrowed(text.as_bytes()))
    }

    /// A bulk string from anything that can be copied into one.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(bytes.as_ref().to_vec())
    }

    /// A bulk string, or nil.
    pub fn bulk_or_nil(bytes: Option<impl AsRef<[u8]>>) -> Reply {
        bytes.map_or(Reply::Nil, Reply::bulk)
    }

    /// An array of bulk strings.
    pub fn bulks<B: AsRef<[u8]>>(items: impl IntoIterator<Item = B>) -> Reply {
        Reply::Array(items.into_iter().map(Reply::bulk).collect())
    }

    /// No reply at all.
    pub const fn none() -> Reply {
        Reply::Several(Vec::new())
    }

    /// Keeps only what is sent while replies are off: messages, and confirmations of subscriptions.
    pub(crate) fn only_pushed(self) -> Reply {
        match self {
            Reply::Push(_) => self,
            Reply::Several(mut replies) => {
                replies.retain(|reply| matches!(reply, Reply::Push(_)));
                Reply::Several(replies)
            }
            _ => Reply::none(),
        }
    }

    /// Is this an error?
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

impl From<Error> for Reply {
    fn from(error: Error) -> Reply {
        Reply::Error(error)
    }
}

impl From<usize> for Reply {
    fn from(n: usize) -> Reply {
        Reply::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Reply {
    fn from(b: bool) -> Reply {
        Reply::Int(i64::from(b))
    }
}
