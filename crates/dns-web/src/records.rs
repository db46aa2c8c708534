//! DNS messages as people and programs read them: header, records, extended errors.

use domain::base::iana::Rcode;
use domain::base::opt::AllOptData;
use domain::base::{Message, ParsedRecord, Rtype};
use domain::rdata::AllRecordData;
use serde::Serialize;
use utoipa::ToSchema;

/// Most records shown of one message.
const RECORDS_MAX: usize = 1_000;

/// A record of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = DnsRecord)]
pub(crate) struct RecordText {
    /// Name of its owner.
    #[schema(example = "shop.example")]
    pub(crate) name: String,
    /// Type.
    #[serde(rename = "type")]
    #[schema(example = "A")]
    pub(crate) rtype: String,
    /// TTL.
    pub(crate) ttl_seconds: u32,
    /// Data, as in a zone file.
    #[schema(example = "192.0.2.7")]
    pub(crate) data: String,
}

/// A message, read for people.
#[derive(Debug, Default, Serialize)]
pub(crate) struct MessageText {
    pub(crate) rcode: String,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) answers: Vec<RecordText>,
    pub(crate) authorities: Vec<RecordText>,
    pub(crate) additionals: Vec<RecordText>,
    /// Extended DNS errors: code and text.
    pub(crate) extended_errors: Vec<String>,
    pub(crate) is_truncated: bool,
}

impl MessageText {
    /// Reads a message; none if it is damaged.
    pub(crate) fn read(wire: &[u8]) -> Option<MessageText> {
        let message = Message::from_octets(wire).ok()?;
        let header = message.header();
        let flags = [
            (header.aa(), "aa"),
            (header.tc(), "tc"),
            (header.rd(), "rd"),
            (header.ra(), "ra"),
            (header.ad(), "ad"),
            (header.cd(), "cd"),
        ];
        let (_, answer, authority, additional) = message.sections().ok()?;
        let texts = |section: domain::base::message::RecordSection<'_, &[u8]>| {
            let records = section.take(RECORDS_MAX).map_while(Result::ok);
            records.filter(|record| record.rtype() != Rtype::OPT).map(record_text).collect()
        };
        let opt = message.opt();
        let rcode = match &opt {
            Some(opt) => opt.rcode(header).to_string(),
            None => Rcode::to_string(&header.rcode()),
        };
        let extended_errors = opt.iter().flat_map(|opt| {
            let errors = opt.opt().iter::<AllOptData<_, _>>();
            let errors = errors.filter_map(|option| match option {
                Ok(AllOptData::ExtendedError(error)) => Some(error.to_string()),
                _ => None,
            });
            errors.collect::<Vec<_>>()
        });
        Some(MessageText {
            rcode,
            flags: flags.into_iter().filter_map(|(set, word)| set.then_some(word)).collect(),
            answers: texts(answer),
            authorities: texts(authority),
            additionals: texts(additional),
            extended_errors: extended_errors.collect(),
            is_truncated: header.tc(),
        })
    }
}

fn record_text(record: ParsedRecord<'_, &[u8]>) -> RecordText {
    let (name, rtype) = (record.owner().to_string(), record.rtype().to_string());
    let ttl_seconds = record.ttl().as_secs();
    // A record whose data cannot be read is shown by its type alone.
    let data = record.into_any_record::<AllRecordData<_, _>>();
    let data = data.map_or_else(|_| "?".to_owned(), |record| record.data().to_string());
    RecordText { name, rtype, ttl_seconds, data }
}

/// Reads the name or number of a record type.
pub(crate) fn parse_type(text: &str) -> Option<u16> {
    let upper = text.to_ascii_uppercase();
    let known = upper.parse::<Rtype>().ok().map(Rtype::to_int);
    known.or_else(|| text.parse().ok())
}

/// Reads a response code by name or number.
pub(crate) fn parse_rcode(text: &str) -> Option<u16> {
    let known = (0..=23).find(|rcode| rcode_name(*rcode).eq_ignore_ascii_case(text));
    known.or_else(|| text.parse().ok())
}

/// Returns the name of a response code.
pub(crate) fn rcode_name(rcode: u16) -> String {
    match rcode {
        16 => "BADVERS".to_owned(),
        23 => "BADCOOKIE".to_owned(),
        rcode => match u8::try_from(rcode).ok().and_then(Rcode::checked_from_int) {
            Some(known) => known.to_string(),
            None => rcode.to_string(),
        },
    }
}

/// Returns the name of a record type.
pub(crate) fn type_name(rtype: u16) -> String {
    Rtype::from_int(rtype).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_by_name_and_number() {
        for (text, number) in
            [("a", 1), ("AAAA", 28), ("https", 65), ("TYPE65280", 65_280), ("15", 15)]
        {
            assert_eq!(parse_type(text), Some(number), "{text}");
        }
        assert_eq!(
            (parse_type(""), parse_type("nonsense"), parse_type("65536")),
            (None, None, None)
        );
        assert_eq!((type_name(1), type_name(65)), ("A".to_owned(), "HTTPS".to_owned()));
    }

    #[test]
    fn a_damaged_message_is_none() {
        for wire in [&[][..], &[0; 5], &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]] {
            assert!(MessageText::read(wire).is_none(), "{wire:?}");
        }
    }
}
