//! Messages for tests.

use domain::{
    base::{
        Message, MessageBuilder, Name, Rtype, Ttl,
        iana::{Class, Rcode},
        message_builder::{AnswerBuilder, HashCompressor},
        opt::AllOptData,
    },
    rdata::{A, AllRecordData, Cname, Soa},
};

use crate::{DomainName, Question};

pub(crate) fn question(name: &str, qtype: u16) -> Question {
    Question { name: name.parse().unwrap(), qtype, qclass: 1 }
}

/// A query as a client would send it: RD set, the name spelled as given.
pub(crate) fn query(name: &str, qtype: u16) -> Vec<u8> {
    let mut packet = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(u8::try_from(label.len()).unwrap());
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&qtype.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    packet
}

/// The same with an OPT record.
pub(crate) fn query_with_opt(name: &str, qtype: u16, udp_size: u16, dnssec_ok: bool) -> Vec<u8> {
    let mut packet = query(name, qtype);
    packet[11] = 1;
    packet.extend_from_slice(&[0, 0, 41]);
    packet.extend_from_slice(&udp_size.to_be_bytes());
    packet.extend_from_slice(&[0, 0, if dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
    packet
}

pub(crate) type Builder = AnswerBuilder<HashCompressor<Vec<u8>>>;

/// The beginning of an answer.
pub(crate) fn answer(question: &Question, rcode: Rcode) -> Builder {
    let mut builder = MessageBuilder::from_target(HashCompressor::new(Vec::new())).unwrap();
    builder.header_mut().set_qr(true);
    builder.header_mut().set_rcode(rcode);
    let mut builder = builder.question();
    let name = wire_name(&question.name);
    builder.push((name, Rtype::from_int(question.qtype), Class::IN)).unwrap();
    builder.answer()
}

pub(crate) fn wire_name(name: &DomainName) -> Name<Vec<u8>> {
    Name::from_octets(name.as_wire().to_vec()).unwrap()
}

pub(crate) fn name(text: &str) -> Name<Vec<u8>> {
    wire_name(&text.parse().unwrap())
}

/// An answer with `count` addresses.
pub(crate) fn addresses(question: &Question, ttl: u32, count: u8) -> Vec<u8> {
    let mut builder = answer(question, Rcode::NOERROR);
    for last in 0..count {
        let record =
            (wire_name(&question.name), Ttl::from_secs(ttl), A::from_octets(192, 0, 2, last));
        builder.push(record).unwrap();
    }
    builder.finish().into_target()
}

/// A negative answer with the SOA record of `zone`.
pub(crate) fn negative(question: &Question, rcode: Rcode, ttl: u32, minimum: u32) -> Vec<u8> {
    let mut builder = answer(question, rcode).authority();
    builder.push((name("test"), Ttl::from_secs(ttl), soa(minimum))).unwrap();
    builder.finish().into_target()
}

pub(crate) fn soa(minimum: u32) -> Soa<Name<Vec<u8>>> {
    let seconds = Ttl::from_secs(3600);
    let minimum = Ttl::from_secs(minimum);
    Soa::new(name("ns.test"), name("root.test"), 7.into(), seconds, seconds, seconds, minimum)
}

pub(crate) fn alias(target: &str) -> Cname<Name<Vec<u8>>> {
    Cname::new(name(target))
}

/// Every record of a message but OPT: section, owner, class, TTL and data, names in lower case.
pub(crate) fn records(message: &[u8]) -> Vec<(usize, String, Class, u32, String)> {
    let message = Message::from_octets(message).unwrap();
    let (_, answer, authority, additional) = message.sections().unwrap();
    let mut found = Vec::new();
    for (section, records) in [answer, authority, additional].into_iter().enumerate() {
        for record in records {
            let record = record.unwrap();
            if record.rtype() == Rtype::OPT {
                continue;
            }
            let record = record.into_any_record::<AllRecordData<_, _>>().unwrap();
            let owner = record.owner().to_string().to_lowercase();
            let data = format!("{} {}", record.rtype(), record.data()).to_lowercase();
            found.push((section, owner, record.class(), record.ttl().as_secs(), data));
        }
    }
    found
}

/// The OPT record of a message: size, DO, extended errors.
pub(crate) fn opt(message: &[u8]) -> Option<(u16, bool, Vec<u16>)> {
    let message = Message::from_octets(message).unwrap();
    let opt = message.opt()?;
    let errors = opt.opt().iter::<AllOptData<_, _>>().filter_map(|option| match option {
        Ok(AllOptData::ExtendedError(error)) => Some(error.code().to_int()),
        _ => None,
    });
    Some((opt.udp_payload_size(), opt.dnssec_ok(), errors.collect()))
}
