//! The hit path's own reader and writer of DNS messages.
//!
//! A hit reads the question and the OPT record of a query and replays the bytes of a cached answer:
//! it decodes nothing and allocates nothing. Invariants: bounds are checked before every read, and a
//! compression pointer may only point backwards. Everything that is not a hit (checking an upstream's
//! answer, building records) is done with the `domain` crate.
//!
//! Read in this order: the helpers here, `query.rs` (what clients send), `answer.rs` (what the cache
//! holds and replays), `reply.rs` (replies without records), `local.rs` (answers made here).

mod answer;
mod local;
mod query;
mod reply;

pub use self::{
    answer::{AnswerError, CachedAnswer, ReplayTtl, TtlBounds},
    query::{AnswerKind, Edns, Rejection, WireQuery},
    reply::{ExtendedError, ReplyOptions, write_error, write_reply, write_truncated},
};
pub(crate) use self::{local::PlainRecord, reply::KEEPALIVE_OPTION};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 12;

/// Largest answer over UDP that is never fragmented (DNS flag day 2020).
pub const UDP_MAX_BYTES: usize = 1_232;

/// Largest answer over UDP to a client without EDNS, RFC 1035 §4.2.1.
pub(crate) const PLAIN_UDP_MAX_BYTES: usize = 512;

/// Largest message, by the length field of TCP.
pub const MESSAGE_MAX_BYTES: usize = 65_535;

/// Response codes.
pub mod rcode {
    /// No error.
    pub const NOERROR: u16 = 0;
    /// The query is malformed.
    pub const FORMERR: u16 = 1;
    /// The query could not be answered.
    pub const SERVFAIL: u16 = 2;
    /// The name does not exist.
    pub const NXDOMAIN: u16 = 3;
    /// The operation is not implemented.
    pub const NOTIMP: u16 = 4;
    /// The query is refused by policy.
    pub const REFUSED: u16 = 5;
    /// The EDNS version is not supported.
    pub const BADVERS: u16 = 16;
    /// The server's cookie is absent or not good.
    pub const BADCOOKIE: u16 = 23;
}

/// Record types that the resolver treats in a way of their own.
pub mod rtype {
    /// An IPv4 address.
    pub const A: u16 = 1;
    /// A host's name by its address.
    pub const PTR: u16 = 12;
    /// A host's hardware and system; the reply to ANY (RFC 8482).
    pub const HINFO: u16 = 13;
    /// An alias.
    pub const CNAME: u16 = 5;
    /// The start of a zone.
    pub const SOA: u16 = 6;
    /// An IPv6 address.
    pub const AAAA: u16 = 28;
    /// A delegated subtree of aliases.
    pub const DNAME: u16 = 39;
    /// EDNS.
    pub const OPT: u16 = 41;
    /// A signature.
    pub const RRSIG: u16 = 46;
    /// Denial of existence.
    pub const NSEC: u16 = 47;
    /// Hashed denial of existence.
    pub const NSEC3: u16 = 50;
    /// A service binding.
    pub const SVCB: u16 = 64;
    /// A service binding of HTTPS.
    pub const HTTPS: u16 = 65;
    /// A signature of the message.
    pub const TSIG: u16 = 250;
    /// Incremental zone transfer.
    pub const IXFR: u16 = 251;
    /// Zone transfer.
    pub const AXFR: u16 = 252;
    /// Any type.
    pub const ANY: u16 = 255;
}

/// Class IN.
pub const CLASS_IN: u16 = 1;

/// Bits of the third and fourth byte of a header.
pub(crate) mod flag {
    /// A response.
    pub(crate) const QR: u16 = 0x8000;
    pub(crate) const OPCODE: u16 = 0x7800;
    /// Authoritative.
    pub(crate) const AA: u16 = 0x0400;
    /// Truncated.
    pub(crate) const TC: u16 = 0x0200;
    /// Recursion desired.
    pub(crate) const RD: u16 = 0x0100;
    /// Recursion available.
    pub(crate) const RA: u16 = 0x0080;
    /// Authenticated data.
    pub(crate) const AD: u16 = 0x0020;
    /// Checking disabled.
    pub(crate) const CD: u16 = 0x0010;
    pub(crate) const RCODE: u16 = 0x000f;
}

pub(crate) fn read_u16(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

pub(crate) fn read_u32(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Writes bytes into a buffer; none if they do not fit.
pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    out.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

/// Returns the offset behind a name. A pointer must point backwards; where it points to is not
/// followed.
pub(crate) fn skip_name(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = *message.get(at)?;
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + usize::from(length),
            192.. => {
                let target = usize::from(read_u16(message, at)? & 0x3fff);
                return (target < at).then_some(at + 2);
            }
            _ => return None,
        }
        if at - start >= crate::name::NAME_MAX_BYTES {
            return None;
        }
    }
}

/// Position of one record in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordSpan {
    /// Offset of the owner's name.
    pub(crate) owner: usize,
    pub(crate) rtype: u16,
    pub(crate) class: u16,
    /// Offset of the TTL.
    pub(crate) ttl: usize,
    /// Offset of the data.
    pub(crate) data: usize,
    /// Offset behind the data.
    pub(crate) end: usize,
}

impl RecordSpan {
    pub(crate) fn read(message: &[u8], owner: usize) -> Option<Self> {
        let fixed = skip_name(message, owner)?;
        let length = usize::from(read_u16(message, fixed + 8)?);
        let (data, end) = (fixed + 10, fixed + 10 + length);
        if end > message.len() {
            return None;
        }
        Some(Self {
            owner,
            rtype: read_u16(message, fixed)?,
            class: read_u16(message, fixed + 2)?,
            ttl: fixed + 4,
            data,
            end,
        })
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests;
