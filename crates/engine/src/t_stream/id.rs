//! The id of an entry: milliseconds and a sequence number.

use std::fmt;

use crate::Reply;
use crate::error::Error;

const INVALID: Error = Error::fixed("ERR Invalid stream ID specified as stream command argument");

/// The id of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Id {
    pub(crate) ms: u64,
    pub(crate) seq: u64,
}

/// An id as XADD takes it: `ms-*` leaves the sequence number open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewId {
    Whole(Id),
    Milliseconds(u64),
}

impl Id {
    pub(crate) const MIN: Id = Id { ms: 0, seq: 0 };
    pub(crate) const MAX: Id = Id { ms: u64::MAX, seq: u64::MAX };

    /// `ms` or `ms-seq`; `missing` is the sequence number when there is none.
    pub(crate) fn parse(bytes: &[u8], missing: u64) -> Result<Id, Error> {
        match parts(bytes)? {
            (ms, None) => Ok(Id { ms: unsigned(ms)?, seq: missing }),
            (ms, Some(seq)) => Ok(Id { ms: unsigned(ms)?, seq: unsigned(seq)? }),
        }
    }

    /// As [`Id::parse`], and `-` and `+` for the least and the greatest.
    pub(crate) fn parse_any(bytes: &[u8], missing: u64) -> Result<Id, Error> {
        match bytes {
            b"-" => Ok(Id::MIN),
            b"+" => Ok(Id::MAX),
            _ => Id::parse(bytes, missing),
        }
    }

    /// The start of a range: `(` leaves the id itself out.
    pub(crate) fn parse_start(bytes: &[u8]) -> Result<Id, Error> {
        match bytes {
            [b'(', id @ ..] if !id.is_empty() => Id::parse(id, 0)?
                .next()
                .ok_or(Error::fixed("ERR invalid start ID for the interval")),
            _ => Id::parse_any(bytes, 0),
        }
    }

    /// The end of a range.
    pub(crate) fn parse_end(bytes: &[u8]) -> Result<Id, Error> {
        match bytes {
            [b'(', id @ ..] if !id.is_empty() => Id::parse(id, u64::MAX)?
                .previous()
                .ok_or(Error::fixed("ERR invalid end ID for the interval")),
            _ => Id::parse_any(bytes, u64::MAX),
        }
    }

    pub(crate) fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { ms: self.ms, seq }),
            None => self.ms.checked_add(1).map(|ms| Id { ms, seq: 0 }),
        }
    }

    pub(crate) fn previous(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { ms: self.ms, seq }),
            None => self.ms.checked_sub(1).map(|ms| Id { ms, seq: u64::MAX }),
        }
    }

    /// Big endian, so that bytes are ordered as ids are.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    pub(crate) fn text(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl From<Id> for Reply {
    fn from(id: Id) -> Reply {
        Reply::Bulk(id.text())
    }
}

impl NewId {
    pub(crate) fn parse(bytes: &[u8]) -> Result<NewId, Error> {
        match parts(bytes)? {
            (ms, Some(b"*")) => Ok(NewId::Milliseconds(unsigned(ms)?)),
            _ => Id::parse(bytes, 0).map(NewId::Whole),
        }
    }
}

fn parts(bytes: &[u8]) -> Result<(&[u8], Option<&[u8]>), Error> {
    if bytes.len() > 127 {
        return Err(INVALID);
    }
    Ok(match bytes.iter().position(|b| *b == b'-') {
        Some(at) => (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..)),
        None => (bytes, None),
    })
}

/// An unsigned number as `strtoull` reads it: spaces, a plus and zeros may come first.
fn unsigned(bytes: &[u8]) -> Result<u64, Error> {
    let digits = bytes.trim_ascii_start();
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    let text = std::str::from_utf8(digits).ok();
    let text = text.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(INVALID)
}
