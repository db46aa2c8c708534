//! Queries as clients send them: header, one question, perhaps an OPT record.

use super::{
    CLASS_IN, HEADER_BYTES, PLAIN_UDP_MAX_BYTES, RecordSpan, UDP_MAX_BYTES, flag, rcode, read_u16,
    read_u32, rtype,
};
use crate::{
    name::Question,
    name::{DomainName, NAME_MAX_BYTES},
};

/// A valid query, borrowed from the packet it came in.
#[derive(Clone, Copy, Debug)]
pub struct WireQuery<'a> {
    packet: &'a [u8],
    /// Offset behind the question's name.
    name_end: usize,
    qtype: u16,
    edns: Option<Edns>,
}

/// The OPT record of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    /// Largest answer the client takes over UDP.
    pub udp_size: u16,
    /// The client asks for DNSSEC records.
    pub dnssec_ok: bool,
    /// Offset of the options in the packet.
    options: usize,
    /// Offset behind them.
    options_end: usize,
}

/// Kind of an answer. An answer of one kind is never given to a query of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// Without DNSSEC records.
    Plain,
    /// With DNSSEC records: DO was set.
    Signed,
    /// The upstream was asked not to validate: CD was set.
    Unchecked,
    /// Both: DO and CD were set.
    SignedUnchecked,
}

impl AnswerKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Signed, Self::Unchecked, Self::SignedUnchecked];

    /// Returns the kind of answer that a query with these flags gets.
    pub fn of(dnssec_ok: bool, checking_disabled: bool) -> Self {
        match (dnssec_ok, checking_disabled) {
            (false, false) => Self::Plain,
            (true, false) => Self::Signed,
            (false, true) => Self::Unchecked,
            (true, true) => Self::SignedUnchecked,
        }
    }

    /// Returns true if DNSSEC records belong into the answer.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Signed | Self::SignedUnchecked)
    }

    /// Returns true if validation is left to the client.
    pub fn is_unchecked(self) -> bool {
        matches!(self, Self::Unchecked | Self::SignedUnchecked)
    }
}

/// A packet that is not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Too short, or a response: no reply.
    Drop,
    /// A reply with this code.
    Reply {
        /// Response code.
        rcode: u16,
        /// Offset behind the question section; 12 if it could not be read.
        question_end: usize,
        /// The OPT record, as far as it was read.
        edns: Option<Edns>,
    },
}

impl<'a> WireQuery<'a> {
    /// Reads a packet; checks everything that does not depend on policy.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Rejection> {
        let refuse = |rcode, question_end| Rejection::Reply { rcode, question_end, edns: None };
        let malformed = refuse(rcode::FORMERR, HEADER_BYTES);
        if packet.len() < HEADER_BYTES {
            return Err(Rejection::Drop);
        }
        let word = |at| read_u16(packet, at).ok_or(Rejection::Drop);
        let flags = word(2)?;
        if flags & flag::QR != 0 {
            return Err(Rejection::Drop);
        }
        if flags & flag::OPCODE != 0 {
            return Err(refuse(rcode::NOTIMP, HEADER_BYTES));
        }
        let (questions, answers) = (word(4)?, word(6)?);
        let (authorities, additionals) = (word(8)?, word(10)?);
        if questions != 1 {
            return Err(malformed);
        }
        let name_end = question_name_end(packet).ok_or(malformed)?;
        let qtype = read_u16(packet, name_end).ok_or(malformed)?;
        let qclass = read_u16(packet, name_end + 2).ok_or(malformed)?;
        let question_end = name_end + 4;
        let malformed = refuse(rcode::FORMERR, question_end);

        let mut edns = None;
        let mut version = 0;
        let mut at = question_end;
        let records = [answers, authorities, additionals];
        for (section, count) in records.into_iter().enumerate() {
            for _ in 0..count {
                let span = RecordSpan::read(packet, at).ok_or(malformed)?;
                at = span.end;
                if span.rtype != rtype::OPT {
                    continue;
                }
                // The owner of an OPT record is the root, RFC 6891 §6.1.2.
                let is_root = packet.get(span.owner) == Some(&0);
                if section != 2 || edns.is_some() || !is_root || !options_fit(packet, span) {
                    return Err(malformed);
                }
                let fields = read_u32(packet, span.ttl).ok_or(malformed)?.to_be_bytes();
                version = fields[1];
                edns = Some(Edns {
                    udp_size: span.class,
                    dnssec_ok: fields[2] & 0x80 != 0,
                    options: span.data,
                    options_end: span.end,
                });
            }
        }
        let refuse = |rcode| Rejection::Reply { rcode, question_end, edns };
        if version > 0 {
            return Err(refuse(rcode::BADVERS));
        }
        // A zone transfer is refused before its authority section is found odd.
        if qclass != CLASS_IN || matches!(qtype, rtype::AXFR | rtype::IXFR) {
            return Err(refuse(rcode::REFUSED));
        }
        if answers != 0 || authorities != 0 || qtype == rtype::OPT {
            return Err(refuse(rcode::FORMERR));
        }
        Ok(Self { packet, name_end, qtype, edns })
    }

    /// Returns the message id.
    pub fn id(&self) -> u16 {
        read_u16(self.packet, 0).unwrap_or_default()
    }

    /// Returns the name in wire form, as the client spelled it.
    pub fn name(&self) -> &'a [u8] {
        self.packet.get(HEADER_BYTES..self.name_end).unwrap_or_default()
    }

    /// Returns the question section, as the client spelled it.
    pub fn question_bytes(&self) -> &'a [u8] {
        self.packet.get(HEADER_BYTES..self.name_end + 4).unwrap_or_default()
    }

    /// Returns the type asked for.
    pub fn qtype(&self) -> u16 {
        self.qtype
    }

    /// Returns the question with its name in lower case. Allocates: not for the hit path.
    pub fn question(&self) -> Question {
        // The name was checked when the packet was read.
        let name = DomainName::from_wire(self.name()).unwrap_or_else(|_| DomainName::root());
        Question { name, qtype: self.qtype, qclass: CLASS_IN }
    }

    /// Returns the OPT record.
    pub fn edns(&self) -> Option<Edns> {
        self.edns
    }

    /// Returns the options of the OPT record by code.
    pub fn options(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let range = self.edns.map_or(0..0, |edns| edns.options..edns.options_end);
        let mut rest = self.packet.get(range).unwrap_or_default();
        std::iter::from_fn(move || {
            let (code, length) = (read_u16(rest, 0)?, usize::from(read_u16(rest, 2)?));
            let data = rest.get(4..4 + length)?;
            rest = rest.get(4 + length..)?;
            Some((code, data))
        })
    }

    /// Returns true if the client asks for recursion.
    pub fn is_recursion_desired(&self) -> bool {
        self.flags() & flag::RD != 0
    }

    /// Returns the kind of answer the client asks for.
    pub fn kind(&self) -> AnswerKind {
        AnswerKind::of(self.is_dnssec_ok(), self.flags() & flag::CD != 0)
    }

    /// Returns true if the client wants to learn whether the upstream validated: RFC 6840 §5.7.
    pub fn wants_authenticated(&self) -> bool {
        self.is_dnssec_ok() || self.flags() & flag::AD != 0
    }

    /// Returns the size of the largest answer over UDP.
    pub fn udp_limit(&self) -> usize {
        self.edns.map_or(PLAIN_UDP_MAX_BYTES, |edns| {
            usize::from(edns.udp_size).clamp(PLAIN_UDP_MAX_BYTES, UDP_MAX_BYTES)
        })
    }

    pub(super) fn packet(&self) -> &'a [u8] {
        self.packet
    }

    pub(super) fn is_dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    pub(super) fn flags(&self) -> u16 {
        read_u16(self.packet, 2).unwrap_or_default()
    }
}

/// Returns the offset behind the question's name. It is the first name of the message, so a pointer
/// in it could only point into the header.
fn question_name_end(packet: &[u8]) -> Option<usize> {
    let mut at = HEADER_BYTES;
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        match length {
            0 => break,
            1..=63 => at += length,
            _ => return None,
        }
        if at - HEADER_BYTES >= NAME_MAX_BYTES {
            return None;
        }
    }
    Some(at)
}

/// Returns true if the options of an OPT record end where its data ends.
fn options_fit(packet: &[u8], span: RecordSpan) -> bool {
    let mut at = span.data;
    while at < span.end {
        match read_u16(packet, at + 2) {
            Some(length) if at + 4 <= span.end => at += 4 + usize::from(length),
            _ => return false,
        }
    }
    at == span.end
}
