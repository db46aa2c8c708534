//! Replies without records: errors and empty answers, with our own OPT record.

use super::{
    HEADER_BYTES, UDP_MAX_BYTES, WireQuery, flag, put,
    query::{Edns, Rejection},
    read_u16, rtype,
};

/// Bytes of an OPT record without options.
pub(super) const OPT_BYTES: usize = 11;

/// Option code of extended errors, RFC 8914.
const EXTENDED_ERROR_OPTION: u16 = 15;

/// An extended error (RFC 8914), given to clients that sent an OPT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedError<'a> {
    /// Code, such as 3 for a stale answer.
    pub code: u16,
    /// Short text, at most 64 bytes are sent.
    pub text: &'a str,
}

impl ExtendedError<'_> {
    /// Stale answer, RFC 8914 §4.4.
    pub const STALE: ExtendedError<'static> = ExtendedError { code: 3, text: "" };
    /// No reachable authority, RFC 8914 §4.23.
    pub const NO_REACHABLE_AUTHORITY: ExtendedError<'static> = ExtendedError { code: 22, text: "" };

    /// Returns the text as it is sent.
    fn short_text(&self) -> &[u8] {
        let mut end = self.text.len().min(64);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        self.text.as_bytes().get(..end).unwrap_or_default()
    }
}

/// Returns the bytes that the OPT record of a reply takes.
pub(super) fn opt_bytes(edns: Option<Edns>, error: Option<ExtendedError<'_>>) -> usize {
    match (edns, error) {
        (None, _) => 0,
        (Some(_), None) => OPT_BYTES,
        (Some(_), Some(error)) => OPT_BYTES + 6 + error.short_text().len(),
    }
}

/// Writes our own OPT record and returns the offset behind it. What a client or an upstream sent in
/// theirs is never repeated, but for DO.
pub(super) fn write_opt(
    out: &mut [u8],
    at: usize,
    edns: Edns,
    rcode: u16,
    error: Option<ExtendedError<'_>>,
) -> Option<usize> {
    let [size_high, size_low] = u16::try_from(UDP_MAX_BYTES).ok()?.to_be_bytes();
    let dnssec_ok = if edns.dnssec_ok { 0x80 } else { 0 };
    let extended_rcode = u8::try_from(rcode >> 4).ok()?;
    let options = error.map_or(0, |error| 6 + error.short_text().len());
    let [length_high, length_low] = u16::try_from(options).ok()?.to_be_bytes();
    let [type_high, type_low] = rtype::OPT.to_be_bytes();
    put(
        out,
        at,
        &[
            0,
            type_high,
            type_low,
            size_high,
            size_low,
            extended_rcode,
            0,
            dnssec_ok,
            0,
            length_high,
            length_low,
        ],
    )?;
    let mut at = at + OPT_BYTES;
    if let Some(error) = error {
        let text = error.short_text();
        put(out, at, &EXTENDED_ERROR_OPTION.to_be_bytes())?;
        put(out, at + 2, &u16::try_from(2 + text.len()).ok()?.to_be_bytes())?;
        put(out, at + 4, &error.code.to_be_bytes())?;
        put(out, at + 6, text)?;
        at += 6 + text.len();
    }
    Some(at)
}

/// Writes the reply to a packet that is not resolved and returns its length; none if there is to be
/// no reply. It is never longer than the packet and an OPT record.
pub fn write_error(packet: &[u8], rejection: Rejection, out: &mut [u8]) -> Option<usize> {
    let Rejection::Reply { rcode, question_end, edns } = rejection else { return None };
    write_empty(packet, question_end, edns, rcode, None, out)
}

/// Writes a reply without records to a query and returns its length; none if the buffer is too small.
pub fn write_reply(
    query: &WireQuery<'_>,
    rcode: u16,
    error: Option<ExtendedError<'_>>,
    out: &mut [u8],
) -> Option<usize> {
    let question_end = HEADER_BYTES + query.question_bytes().len();
    write_empty(query.packet(), question_end, query.edns(), rcode, error, out)
}

fn write_empty(
    packet: &[u8],
    question_end: usize,
    edns: Option<Edns>,
    rcode: u16,
    error: Option<ExtendedError<'_>>,
    out: &mut [u8],
) -> Option<usize> {
    let asked = read_u16(packet, 2)?;
    let flags = flag::QR
        | flag::RA
        | (asked & (flag::OPCODE | flag::RD | flag::CD))
        | (rcode & flag::RCODE);
    let question = packet.get(HEADER_BYTES..question_end)?;
    put(out, 0, packet.get(..2)?)?;
    put(out, 2, &flags.to_be_bytes())?;
    put(out, 4, &u16::from(!question.is_empty()).to_be_bytes())?;
    put(out, 6, &[0; 4])?;
    put(out, 10, &u16::from(edns.is_some()).to_be_bytes())?;
    put(out, HEADER_BYTES, question)?;
    match edns {
        Some(edns) => write_opt(out, question_end, edns, rcode, error),
        None => Some(question_end),
    }
}
