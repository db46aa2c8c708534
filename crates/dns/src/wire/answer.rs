//! Answers as the cache holds them: normalised once, replayed as bytes.
//!
//! A [`CachedAnswer`] is a whole message in wire form: id 0, question in lower case, names compressed,
//! TTLs as they were when it was stored, no OPT record. Invariants: offsets of TTLs and truncation points between
//! RRsets lie inside the message, and no pointer leads behind a point, so that every point is a valid
//! message. A replay copies it and writes over id, flags, question, counts and TTLs; pointers stay
//! valid because the question keeps its place and its length.
//!
//! ```text
//!  0        12         question end      point          point                   end
//!  ┌────────┬──────────┬───────────────┬──────────────┬───────────────────────┐ ┌─────┐
//!  │ header │ question │ RRset: answer │ RRset: answer│ RRset: authority  …   │ │ OPT │
//!  └────────┴──────────┴────────▲──────┴──▲───────────┴──▲────────────────────┘ └─────┘
//!                       offsets of TTLs ──┴──────────────┘           appended by a replay
//! ```

use domain::{
    base::{
        Message, MessageBuilder, Name, ParsedName, Rtype, Ttl,
        iana::{Class, Rcode},
        message_builder::{HashCompressor, PushError, RecordSectionBuilder},
        rdata::UnknownRecordData,
        record::ParsedRecord,
        wire::ParseError,
    },
    rdata::{AllRecordData, Soa},
};

use super::{
    AnswerKind, HEADER_BYTES, MESSAGE_MAX_BYTES, PLAIN_UDP_MAX_BYTES, RecordSpan, WireQuery, flag,
    put, rcode, read_u16, read_u32,
    reply::{ReplyOptions, opt_bytes, write_opt},
    rtype,
};
use crate::name::Question;

/// Longest TTL, RFC 2181 §8; one with the highest bit set counts as zero.
const TTL_MAX_SECONDS: u32 = i32::MAX as u32;

/// Room for an OPT record with options when the points between RRsets are left out.
const OPT_ROOM_BYTES: usize = 96;

/// Bounds of the TTLs of stored answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlBounds {
    /// Least TTL in seconds. An answer whose TTL is 0 is not stored all the same.
    pub min_seconds: u32,
    /// Greatest TTL in seconds.
    pub max_seconds: u32,
    /// Greatest TTL of a negative answer in seconds.
    pub max_negative_seconds: u32,
}

impl Default for TtlBounds {
    /// The source's TTL, at most a day; at most three hours for negative answers (RFC 2308 §5).
    fn default() -> Self {
        Self { min_seconds: 0, max_seconds: 86_400, max_negative_seconds: 10_800 }
    }
}

/// Error of an answer that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The message is damaged.
    #[error("the answer is malformed")]
    Malformed,
    /// The message is a query, or answers another question.
    #[error("the answer is to another question")]
    OtherQuestion,
    /// The message is truncated; ask over TCP.
    #[error("the answer is truncated")]
    Truncated,
    /// The response code says that the server could not answer this query.
    #[error("the answer has response code {0}")]
    Rcode(u16),
}

/// An answer that can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedAnswer {
    wire: Box<[u8]>,
    question_end: u16,
    /// Offsets of TTL fields, ascending.
    ttls: Box<[u16]>,
    /// Ends of RRsets, ascending; empty if the whole always fits.
    truncation_points: Box<[TruncationPoint]>,
    auth_ttl: u32,
    stored_ttl: u32,
}

/// A place where the message may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TruncationPoint {
    end: u16,
    /// TTL fields before the end.
    ttls: u16,
    /// Records by section.
    counts: [u16; 3],
}

/// TTLs of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayTtl {
    /// A fresh answer: each TTL less the time since it was stored, at least 1, at most the cap.
    Fresh {
        /// Seconds since the answer was stored.
        age_seconds: u32,
        /// Greatest TTL given to clients; `u32::MAX` for none.
        cap_seconds: u32,
    },
    /// A stale answer (RFC 8767 §4): each TTL at most this.
    Stale {
        /// Seconds.
        ttl_seconds: u32,
    },
}

impl ReplayTtl {
    fn apply(self, stored: u32) -> u32 {
        match self {
            Self::Fresh { age_seconds, cap_seconds } => {
                stored.saturating_sub(age_seconds).max(1).min(stored).min(cap_seconds)
            }
            Self::Stale { ttl_seconds } => stored.max(1).min(ttl_seconds),
        }
    }
}

impl CachedAnswer {
    /// Checks and normalises a message: an upstream's answer, or one from the store. Records that the
    /// kind does not ask for are left out.
    pub fn normalise(
        message: &[u8],
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
    ) -> Result<Self, AnswerError> {
        let message = Message::from_octets(message).map_err(|_| AnswerError::Malformed)?;
        let header = message.header();
        if !header.qr() || header.opcode().to_int() != 0 || !asks(&message, question) {
            return Err(AnswerError::OtherQuestion);
        }
        if header.tc() {
            return Err(AnswerError::Truncated);
        }
        let rcode = message.opt_rcode().to_int();
        if !matches!(rcode, rcode::NOERROR | rcode::NXDOMAIN) {
            return Err(AnswerError::Rcode(rcode));
        }
        let source = SourceRecords::read(&message, question, kind)?;
        let lifetime = source.lifetime(question, rcode, bounds);
        let wire = source.build(question, kind, header.ad(), rcode, &lifetime)?;
        Self::index(wire, &lifetime).ok_or(AnswerError::Malformed)
    }

    /// Finds TTLs and truncation points in a message that was just built.
    pub(super) fn index(wire: Vec<u8>, lifetime: &Lifetime) -> Option<Self> {
        let needs_points = wire.len() + OPT_ROOM_BYTES > PLAIN_UDP_MAX_BYTES;
        let question_end = super::skip_name(&wire, HEADER_BYTES)? + 4;
        let (mut ttls, mut points) = (Vec::new(), Vec::new());
        let mut at = question_end;
        let mut counts = [0_u16; 3];
        let mut last: Option<RecordSpan> = None;
        for section in 0..3 {
            for _ in 0..read_u16(&wire, 6 + 2 * section)? {
                let span = RecordSpan::read(&wire, at)?;
                let continues = last.is_some_and(|last| is_same_rrset(&wire, last, span));
                if needs_points && !continues {
                    let ttls = u16::try_from(ttls.len()).ok()?;
                    points.push(TruncationPoint { end: u16::try_from(at).ok()?, ttls, counts });
                }
                ttls.push(u16::try_from(span.ttl).ok()?);
                *counts.get_mut(section)? += 1;
                at = span.end;
                last = Some(span);
            }
            last = None;
        }
        (at == wire.len()).then_some(())?;
        Some(Self {
            wire: wire.into_boxed_slice(),
            question_end: u16::try_from(question_end).ok()?,
            ttls: ttls.into_boxed_slice(),
            truncation_points: points.into_boxed_slice(),
            auth_ttl: lifetime.auth_ttl,
            stored_ttl: lifetime.stored_ttl,
        })
    }

    /// Returns the message in wire form.
    pub fn as_wire(&self) -> &[u8] {
        &self.wire
    }

    /// Returns the TTL the source gave, in seconds; 0 if the answer must not be stored.
    pub fn auth_ttl(&self) -> u32 {
        self.auth_ttl
    }

    /// Returns the time for which the answer is fresh, in seconds; 0 if it must not be stored.
    pub fn stored_ttl(&self) -> u32 {
        self.stored_ttl
    }

    /// Returns the response code.
    pub fn rcode(&self) -> u16 {
        read_u16(&self.wire, 2).unwrap_or_default() & flag::RCODE
    }

    /// Returns the memory that the answer takes, in bytes.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>()
            + self.wire.len()
            + 2 * self.ttls.len()
            + size_of_val(&*self.truncation_points)
    }

    /// Writes the answer to a query and returns its length; none if the query is to another name or
    /// the buffer is too small. An answer longer than the limit is cut at whole RRsets.
    pub fn replay(
        &self,
        query: &WireQuery<'_>,
        ttl: ReplayTtl,
        options: ReplyOptions<'_>,
        limit_bytes: usize,
        out: &mut [u8],
    ) -> Option<usize> {
        let question = query.question_bytes();
        if HEADER_BYTES + question.len() != usize::from(self.question_end) {
            return None;
        }
        let edns = query.edns();
        let stored_flags = read_u16(&self.wire, 2)?;
        let mut flags = flag::QR | flag::RA | (stored_flags & (flag::RCODE | flag::AA));
        flags |= query.flags() & (flag::RD | flag::CD);
        if query.wants_authenticated() {
            flags |= stored_flags & flag::AD;
        }
        // Rather no text of an error than fewer records.
        let options = match self.wire.len() + opt_bytes(edns, options) <= limit_bytes {
            true => options,
            false => ReplyOptions { error: None, ..options },
        };
        let room = limit_bytes.checked_sub(opt_bytes(edns, options))?;
        let whole = self.whole()?;
        let last = if self.wire.len() <= room { whole } else { self.truncation_at(room) };
        // RFC 2181 §9: only for what the client needs. With an answer the authority section is a
        // courtesy, but for the proofs that a validating client checks.
        let needs_authority = whole.counts[0] == 0 || query.is_dnssec_ok();
        if last.counts[0] != whole.counts[0]
            || (needs_authority && last.counts[1] != whole.counts[1])
        {
            flags |= flag::TC;
        }
        let end = usize::from(last.end);
        put(out, 0, self.wire.get(..end)?)?;
        put(out, 0, &query.id().to_be_bytes())?;
        put(out, 2, &flags.to_be_bytes())?;
        for (section, count) in last.counts.into_iter().enumerate() {
            let opt = u16::from(section == 2 && edns.is_some());
            put(out, 6 + 2 * section, &(count + opt).to_be_bytes())?;
        }
        put(out, HEADER_BYTES, question)?;
        for &at in self.ttls.get(..usize::from(last.ttls))? {
            let at = usize::from(at);
            let stored = read_u32(out, at)?;
            put(out, at, &ttl.apply(stored).to_be_bytes())?;
        }
        match edns {
            Some(edns) => write_opt(out, end, edns, 0, options),
            None => Some(end),
        }
    }

    /// Returns the point behind the last record.
    fn whole(&self) -> Option<TruncationPoint> {
        let mut counts = [0; 3];
        for (section, count) in counts.iter_mut().enumerate() {
            *count = read_u16(&self.wire, 6 + 2 * section)?;
        }
        let end = u16::try_from(self.wire.len()).ok()?;
        Some(TruncationPoint { end, ttls: u16::try_from(self.ttls.len()).ok()?, counts })
    }

    /// Returns the last point that fits, at least the one behind the question.
    fn truncation_at(&self, room: usize) -> TruncationPoint {
        let fits = self.truncation_points.partition_point(|point| usize::from(point.end) <= room);
        let last = fits.checked_sub(1).and_then(|index| self.truncation_points.get(index)).copied();
        last.unwrap_or(TruncationPoint { end: self.question_end, ttls: 0, counts: [0; 3] })
    }
}

/// Returns true if two neighbours have the same owner, type and class. Names are compressed, so the
/// same owner is the same pointer, or the pointer to the first one's place.
fn is_same_rrset(wire: &[u8], first: RecordSpan, second: RecordSpan) -> bool {
    let same_owner = || {
        let first_owner = wire.get(first.owner..first.ttl - 4)?;
        let second_owner = wire.get(second.owner..second.ttl - 4)?;
        let pointer = read_u16(wire, second.owner)?;
        let to_first = pointer >= 0xc000 && usize::from(pointer & 0x3fff) == first.owner;
        Some(first_owner == second_owner || to_first)
    };
    (first.rtype, first.class) == (second.rtype, second.class) && same_owner() == Some(true)
}

/// Returns true if a message has exactly this question.
fn asks(message: &Message<&[u8]>, question: &Question) -> bool {
    let Ok(sole) = message.sole_question() else { return false };
    let Ok(name) = Name::from_slice(question.name.as_wire()) else { return false };
    *sole.qname() == *name
        && sole.qtype().to_int() == question.qtype
        && sole.qclass().to_int() == question.qclass
}

/// Lifetime of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    auth_ttl: u32,
    stored_ttl: u32,
    bounds: TtlBounds,
    /// TTL of the SOA record of a negative answer.
    negative_ttl: Option<u32>,
}

impl Lifetime {
    /// Returns the lifetime of an answer made here.
    pub(super) fn constant(ttl: u32, bounds: TtlBounds) -> Self {
        Self { auth_ttl: ttl, stored_ttl: ttl, bounds, negative_ttl: None }
    }

    /// Returns the TTL that a record is stored with.
    fn of_record(&self, rtype: Rtype, ttl: u32) -> u32 {
        let ttl = match self.negative_ttl {
            Some(negative) if rtype == Rtype::SOA => ttl.min(negative),
            _ => ttl,
        };
        // What is not stored is passed on as it is.
        if self.stored_ttl == 0 { ttl } else { self.bounds.clamp(ttl, self.negative_ttl.is_some()) }
    }
}

impl TtlBounds {
    fn clamp(self, ttl: u32, is_negative: bool) -> u32 {
        let max = match is_negative {
            true => self.max_seconds.min(self.max_negative_seconds),
            false => self.max_seconds,
        };
        if ttl == 0 { 0 } else { ttl.max(self.min_seconds).min(max) }
    }
}

/// Name or data of a record that borrows from the message.
type Borrowed<'a> = ParsedName<&'a [u8]>;

/// Data of a record: parsed where it may hold compressed names, else as bytes.
#[derive(Debug)]
enum SourceData<'a> {
    Names(AllRecordData<&'a [u8], Borrowed<'a>>),
    Bytes(UnknownRecordData<&'a [u8]>),
}

#[derive(Debug)]
struct SourceRecord<'a> {
    owner: Borrowed<'a>,
    rtype: Rtype,
    class: Class,
    ttl: u32,
    data: SourceData<'a>,
}

/// Records of a message by section, without those that are not cached.
#[derive(Debug, Default)]
struct SourceRecords<'a> {
    sections: [Vec<SourceRecord<'a>>; 3],
}

impl<'a> SourceRecords<'a> {
    fn read(
        message: &'a Message<&'a [u8]>,
        question: &Question,
        kind: AnswerKind,
    ) -> Result<Self, AnswerError> {
        let malformed = |_: ParseError| AnswerError::Malformed;
        let (_, answer, authority, additional) = message.sections().map_err(malformed)?;
        let mut records = Self::default();
        for (section, found) in [answer, authority, additional].into_iter().enumerate() {
            for record in found {
                let record = record.map_err(malformed)?;
                let rtype = record.rtype().to_int();
                match rtype {
                    rtype::OPT if section != 2 => return Err(AnswerError::Malformed),
                    rtype::OPT | rtype::TSIG => continue,
                    // RFC 4035 §3.2.1: only for those who ask for them.
                    rtype::RRSIG | rtype::NSEC | rtype::NSEC3
                        if !kind.is_signed() && ![rtype, rtype::ANY].contains(&question.qtype) =>
                    {
                        continue;
                    }
                    _ => {}
                }
                if let Some(records) = records.sections.get_mut(section) {
                    records.push(SourceRecord::read(record).map_err(malformed)?);
                }
            }
        }
        Ok(records)
    }

    fn lifetime(&self, question: &Question, rcode: u16, bounds: TtlBounds) -> Lifetime {
        let [answer, authority, _] = &self.sections;
        let answers = answer.iter().map(|record| record.ttl).min();
        let has_type = answer
            .iter()
            .any(|record| question.qtype == rtype::ANY || record.rtype.to_int() == question.qtype);
        let is_negative = rcode == rcode::NXDOMAIN || !has_type;
        // RFC 2308 §5: the lesser of the SOA's own TTL and its MINIMUM; without an SOA a negative
        // answer is not stored.
        let negative_ttl = authority.iter().find_map(|record| match &record.data {
            SourceData::Names(AllRecordData::Soa(soa)) => Some(record.ttl.min(minimum(soa))),
            _ => None,
        });
        let negative_ttl = is_negative.then(|| negative_ttl.unwrap_or(0));
        let auth_ttl = answers.into_iter().chain(negative_ttl).min().unwrap_or(0);
        let stored_ttl = bounds.clamp(auth_ttl, is_negative);
        Lifetime { auth_ttl, stored_ttl, bounds, negative_ttl }
    }

    fn build(
        &self,
        question: &Question,
        kind: AnswerKind,
        is_authenticated: bool,
        rcode: u16,
        lifetime: &Lifetime,
    ) -> Result<Vec<u8>, AnswerError> {
        let too_long = |_: PushError| AnswerError::Malformed;
        let mut builder = MessageBuilder::from_target(HashCompressor::new(Vec::with_capacity(512)))
            .map_err(|_| AnswerError::Malformed)?;
        builder.set_push_limit(MESSAGE_MAX_BYTES);
        let header = builder.header_mut();
        header.set_qr(true);
        header.set_rd(true);
        header.set_ra(true);
        header.set_ad(is_authenticated);
        header.set_cd(kind.is_unchecked());
        header.set_rcode(if rcode == rcode::NXDOMAIN { Rcode::NXDOMAIN } else { Rcode::NOERROR });
        let name = Name::from_slice(question.name.as_wire()).map_err(|_| AnswerError::Malformed)?;
        let mut builder = builder.question();
        let (qtype, qclass) = (Rtype::from_int(question.qtype), Class::from_int(question.qclass));
        builder.push((name, qtype, qclass)).map_err(too_long)?;
        let [answers, authorities, additionals] = &self.sections;
        let mut builder = builder.answer();
        for record in answers {
            record.push(&mut builder, lifetime).map_err(too_long)?;
        }
        let mut builder = builder.authority();
        for record in authorities {
            record.push(&mut builder, lifetime).map_err(too_long)?;
        }
        let mut builder = builder.additional();
        for record in additionals {
            record.push(&mut builder, lifetime).map_err(too_long)?;
        }
        Ok(builder.finish().into_target())
    }
}

fn minimum<N>(soa: &Soa<N>) -> u32 {
    bounded_ttl(soa.minimum())
}

fn bounded_ttl(ttl: Ttl) -> u32 {
    if ttl.as_secs() > TTL_MAX_SECONDS { 0 } else { ttl.as_secs() }
}

impl<'a> SourceRecord<'a> {
    fn read(record: ParsedRecord<'a, &'a [u8]>) -> Result<Self, ParseError> {
        let rtype = record.rtype();
        let (class, ttl) = (record.class(), bounded_ttl(record.ttl()));
        // Only in these types a name may be compressed (RFC 3597 §4, and SRV, NAPTR and DNAME of
        // servers older than it). All else is passed on byte for byte.
        let (owner, data) = match rtype.to_int() {
            2..=9 | 12 | 14 | 15 | 17 | 33 | 35 | rtype::DNAME => {
                let (owner, data) = record.into_any_record()?.into_owner_and_data();
                (owner, SourceData::Names(data))
            }
            _ => {
                let record = record.into_record::<UnknownRecordData<_>>()?;
                let record = record.ok_or(ParseError::form_error("record without data"))?;
                let (owner, data) = record.into_owner_and_data();
                let length = data.data().len();
                if (rtype == Rtype::A && length != 4) || (rtype == Rtype::AAAA && length != 16) {
                    return Err(ParseError::form_error("address of another length"));
                }
                (owner, SourceData::Bytes(data))
            }
        };
        Ok(Self { owner, rtype, class, ttl, data })
    }

    fn push<T>(
        &self,
        builder: &mut impl RecordSectionBuilder<T>,
        life: &Lifetime,
    ) -> Result<(), PushError>
    where
        T: domain::base::wire::Composer,
    {
        let ttl = Ttl::from_secs(life.of_record(self.rtype, self.ttl));
        match &self.data {
            SourceData::Names(data) => builder.push((&self.owner, self.class, ttl, data)),
            SourceData::Bytes(data) => builder.push((&self.owner, self.class, ttl, data)),
        }
    }
}
