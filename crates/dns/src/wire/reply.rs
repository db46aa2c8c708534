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

/// Option code of cookies, RFC 7873.
const COOKIE_OPTION: u16 = 10;

/// Option code of padding, RFC 7830.
const PADDING_OPTION: u16 = 12;

/// Option code of the idle timeout of TCP, RFC 7828.
pub(crate) const KEEPALIVE_OPTION: u16 = 11;

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
    /// A signed answer was changed by policy, RFC 8914 §4.18.
    pub const FILTERED: ExtendedError<'static> = ExtendedError { code: 17, text: "" };
    /// The client may not query here, RFC 8914 §4.19.
    pub const PROHIBITED: ExtendedError<'static> = ExtendedError { code: 18, text: "" };
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

/// Options of a reply's OPT record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyOptions<'a> {
    /// Extended error.
    pub error: Option<ExtendedError<'a>>,
    /// Cookie: the client's eight bytes, then the server's sixteen (RFC 9018).
    pub cookie: Option<[u8; 24]>,
    /// Idle timeout of the connection in units of 100 ms (RFC 7828), for clients that ask for it.
    pub keepalive: Option<u16>,
    /// Block to whose multiple a reply is padded (RFC 8467); 0 for none.
    pub padding_block: usize,
}

impl<'a> ReplyOptions<'a> {
    /// Returns options with an extended error only.
    pub fn with_error(error: ExtendedError<'a>) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    /// Bytes of the options, without padding.
    fn bytes(&self) -> usize {
        self.error.map_or(0, |error| 6 + error.short_text().len())
            + self.cookie.map_or(0, |cookie| 4 + cookie.len())
            + self.keepalive.map_or(0, |_| 6)
    }
}

/// Returns the bytes that the OPT record of a reply takes at least.
pub(super) fn opt_bytes(edns: Option<Edns>, options: ReplyOptions<'_>) -> usize {
    edns.map_or(0, |_| OPT_BYTES + options.bytes())
}

/// Writes one option and returns the offset behind it.
fn put_option(out: &mut [u8], at: usize, code: u16, parts: &[&[u8]]) -> Option<usize> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    put(out, at, &code.to_be_bytes())?;
    put(out, at + 2, &u16::try_from(length).ok()?.to_be_bytes())?;
    let mut at = at + 4;
    for part in parts {
        put(out, at, part)?;
        at += part.len();
    }
    Some(at)
}

/// Writes zeros up to a multiple of the block, as far as the buffer goes.
fn put_padding(out: &mut [u8], at: usize, block: usize) -> Option<usize> {
    let start = at + 4;
    let end = start.next_multiple_of(block).min(out.len());
    let Some(length) = end.checked_sub(start) else { return Some(at) };
    put(out, at, &PADDING_OPTION.to_be_bytes())?;
    put(out, at + 2, &u16::try_from(length).ok()?.to_be_bytes())?;
    out.get_mut(start..end)?.fill(0);
    Some(end)
}

/// Writes our own OPT record and returns the offset behind it. What a client or an upstream sent in
/// theirs is never repeated, but for DO.
pub(super) fn write_opt(
    out: &mut [u8],
    at: usize,
    edns: Edns,
    rcode: u16,
    options: ReplyOptions<'_>,
) -> Option<usize> {
    let [size_high, size_low] = u16::try_from(UDP_MAX_BYTES).ok()?.to_be_bytes();
    let dnssec_ok = if edns.dnssec_ok { 0x80 } else { 0 };
    let extended_rcode = u8::try_from(rcode >> 4).ok()?;
    let [type_high, type_low] = rtype::OPT.to_be_bytes();
    put(
        out,
        at,
        &[0, type_high, type_low, size_high, size_low, extended_rcode, 0, dnssec_ok, 0, 0, 0],
    )?;
    let start = at + OPT_BYTES;
    let mut at = start;
    if let Some(cookie) = options.cookie {
        at = put_option(out, at, COOKIE_OPTION, &[&cookie])?;
    }
    if let Some(keepalive) = options.keepalive {
        at = put_option(out, at, KEEPALIVE_OPTION, &[&keepalive.to_be_bytes()])?;
    }
    if let Some(error) = options.error {
        let parts: [&[u8]; 2] = [&error.code.to_be_bytes(), error.short_text()];
        at = put_option(out, at, EXTENDED_ERROR_OPTION, &parts)?;
    }
    if options.padding_block > 0 {
        at = put_padding(out, at, options.padding_block)?;
    }
    put(out, start - 2, &u16::try_from(at - start).ok()?.to_be_bytes())?;
    Some(at)
}

/// Writes the reply to a packet that is not resolved and returns its length; none if there is to be
/// no reply. It is never longer than the packet and an OPT record.
pub fn write_error(packet: &[u8], rejection: Rejection, out: &mut [u8]) -> Option<usize> {
    let Rejection::Reply { rcode, question_end, edns } = rejection else { return None };
    write_empty(packet, question_end, edns, rcode, ReplyOptions::default(), out)
}

/// Writes a reply without records to a query and returns its length; none if the buffer is too small.
pub fn write_reply(
    query: &WireQuery<'_>,
    rcode: u16,
    options: ReplyOptions<'_>,
    out: &mut [u8],
) -> Option<usize> {
    let question_end = HEADER_BYTES + query.question_bytes().len();
    write_empty(query.packet(), question_end, query.edns(), rcode, options, out)
}

/// Writes a truncated reply without records, so that the client asks again over TCP.
pub fn write_truncated(query: &WireQuery<'_>, out: &mut [u8]) -> Option<usize> {
    let length = write_reply(query, 0, ReplyOptions::default(), out)?;
    let flags = read_u16(out, 2)? | flag::TC;
    put(out, 2, &flags.to_be_bytes())?;
    Some(length)
}

fn write_empty(
    packet: &[u8],
    question_end: usize,
    edns: Option<Edns>,
    rcode: u16,
    options: ReplyOptions<'_>,
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
        Some(edns) => write_opt(out, question_end, edns, rcode, options),
        None => Some(question_end),
    }
}
