//! Answers made here: blocked replies, local records, answers with parts taken out.
//!
//! Also the way to look into a cached answer: its records, with the names in them in full.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    CLASS_IN, HEADER_BYTES, MESSAGE_MAX_BYTES, RecordSpan,
    answer::{CachedAnswer, Lifetime, TtlBounds},
    flag, read_u16, read_u32, rtype,
};
use crate::name::{DomainName, Question};

/// Pointers followed in one name; each leads backwards, so this only ends hostile chains sooner.
const POINTERS_MAX: usize = 64;

/// Longest text that sums an answer up.
const SUMMARY_MAX_BYTES: usize = 80;

/// A record with its data in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainRecord {
    pub(crate) owner: DomainName,
    pub(crate) rtype: u16,
    pub(crate) ttl: u32,
    pub(crate) data: Vec<u8>,
}

impl PlainRecord {
    /// Returns the SOA record that lets clients keep a negative reply (RFC 2308 §5).
    pub(crate) fn negative_soa(owner: DomainName, ttl: u32) -> Self {
        let mut data = b"\x09localhost\x00\x06nobody\x07invalid\x00".to_vec();
        for number in [1, 3_600, 600, 86_400, ttl] {
            data.extend_from_slice(&u32::to_be_bytes(number));
        }
        Self { owner, rtype: rtype::SOA, ttl, data }
    }

    /// Returns the record of an address.
    pub(crate) fn address(owner: DomainName, ttl: u32, address: IpAddr) -> Self {
        let (rtype, data) = match address {
            IpAddr::V4(address) => (rtype::A, address.octets().to_vec()),
            IpAddr::V6(address) => (rtype::AAAA, address.octets().to_vec()),
        };
        Self { owner, rtype, ttl, data }
    }

    /// Returns an alias.
    pub(crate) fn alias(owner: DomainName, ttl: u32, target: &DomainName) -> Self {
        Self { owner, rtype: rtype::CNAME, ttl, data: target.as_wire().to_vec() }
    }

    /// Returns the address in the data.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.rtype {
            rtype::A => <[u8; 4]>::try_from(self.data.as_slice()).ok().map(IpAddr::from),
            rtype::AAAA => <[u8; 16]>::try_from(self.data.as_slice()).ok().map(IpAddr::from),
            _ => None,
        }
    }

    /// Returns the name that the record leads to, of an alias or a service binding.
    pub(crate) fn target(&self) -> Option<DomainName> {
        match self.rtype {
            rtype::CNAME | rtype::DNAME => DomainName::from_wire(&self.data).ok(),
            rtype::SVCB | rtype::HTTPS => {
                let end = name_end(&self.data, 2)?;
                let name = DomainName::from_wire(self.data.get(2..end)?).ok()?;
                // The root stands for the owner itself.
                (!name.is_root()).then_some(name)
            }
            _ => None,
        }
    }

    /// Returns the addresses that a service binding hints at.
    pub(crate) fn hints(&self) -> Vec<IpAddr> {
        let mut hints = Vec::new();
        for (key, value) in self.parameters() {
            match key {
                4 => hints.extend(value.chunks_exact(4).filter_map(|bytes| {
                    Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)))
                })),
                6 => hints.extend(value.chunks_exact(16).filter_map(|bytes| {
                    Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)))
                })),
                _ => {}
            }
        }
        hints
    }

    /// Iterates over the parameters of a service binding (RFC 9460 §2.2).
    fn parameters(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let is_binding = matches!(self.rtype, rtype::SVCB | rtype::HTTPS);
        let start = is_binding.then(|| name_end(&self.data, 2)).flatten();
        let mut rest = start.and_then(|start| self.data.get(start..)).unwrap_or_default();
        std::iter::from_fn(move || {
            let (key, length) = (read_u16(rest, 0)?, usize::from(read_u16(rest, 2)?));
            let value = rest.get(4..4 + length)?;
            rest = rest.get(4 + length..)?;
            Some((key, value))
        })
    }

    /// Takes parameters out of a service binding; true if there was one. A key that is mandatory is
    /// taken out of that list too.
    pub(crate) fn remove_parameters(&mut self, keys: &[u16]) -> bool {
        if !self.parameters().any(|(key, _)| keys.contains(&key)) {
            return false;
        }
        let Some(start) = name_end(&self.data, 2) else { return false };
        let mut data = self.data.get(..start).unwrap_or_default().to_vec();
        for (key, value) in self.parameters() {
            if keys.contains(&key) {
                continue;
            }
            let mut value = value.to_vec();
            if key == 0 {
                let left = value
                    .chunks_exact(2)
                    .filter(|pair| read_u16(pair, 0).is_some_and(|key| !keys.contains(&key)));
                value = left.flatten().copied().collect();
                if value.is_empty() {
                    continue;
                }
            }
            data.extend_from_slice(&key.to_be_bytes());
            data.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_be_bytes());
            data.extend_from_slice(&value);
        }
        self.data = data;
        true
    }
}

fn name_end(data: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match data.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(*length),
            _ => return None,
        }
    }
}

/// Reads a name that may be compressed; returns it with the offset behind its place.
fn read_name(wire: &[u8], start: usize) -> Option<(DomainName, usize)> {
    let mut name = Vec::new();
    let (mut at, mut end) = (start, None);
    for _ in 0..POINTERS_MAX {
        loop {
            let length = *wire.get(at)?;
            match length {
                0 => {
                    name.push(0);
                    let name = DomainName::from_wire(&name).ok()?;
                    return Some((name, end.unwrap_or(at + 1)));
                }
                1..=63 => {
                    let next = at + 1 + usize::from(length);
                    name.extend_from_slice(wire.get(at..next)?);
                    at = next;
                    if name.len() > 255 {
                        return None;
                    }
                }
                192.. => {
                    let target = usize::from(read_u16(wire, at)? & 0x3fff);
                    if target >= at {
                        return None;
                    }
                    end = end.or(Some(at + 2));
                    at = target;
                    break;
                }
                _ => return None,
            }
        }
    }
    None
}

/// Copies the data of a record, with names in full.
fn plain_data(wire: &[u8], span: RecordSpan) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    // Bytes before the names, and how many names there are.
    let (before, names) = match span.rtype {
        2 | 3 | 4 | rtype::CNAME | 7 | 8 | 9 | 12 | rtype::DNAME => (0, 1),
        rtype::SOA | 14 | 17 => (0, 2),
        15 => (2, 1),
        33 => (6, 1),
        _ => return Some(wire.get(span.data..span.end)?.to_vec()),
    };
    data.extend_from_slice(wire.get(span.data..span.data + before)?);
    let mut at = span.data + before;
    for _ in 0..names {
        let (name, end) = read_name(wire, at)?;
        data.extend_from_slice(name.as_wire());
        at = end;
    }
    data.extend_from_slice(wire.get(at..span.end)?);
    Some(data)
}

impl CachedAnswer {
    /// Makes an answer of records; none if it is longer than a message may be.
    pub(crate) fn build(
        question: &Question,
        rcode: u16,
        is_authoritative: bool,
        sections: [&[PlainRecord]; 3],
    ) -> Option<Self> {
        let authority = if is_authoritative { flag::AA } else { 0 };
        Self::build_flagged(question, authority | rcode, sections)
    }

    /// The same, with flags and response code.
    fn build_flagged(
        question: &Question,
        flags: u16,
        sections: [&[PlainRecord]; 3],
    ) -> Option<Self> {
        let flags = flag::QR | flag::RA | flags;
        let mut wire = vec![0, 0];
        wire.extend_from_slice(&flags.to_be_bytes());
        wire.extend_from_slice(&[0, 1]);
        for section in sections {
            wire.extend_from_slice(&u16::try_from(section.len()).ok()?.to_be_bytes());
        }
        wire.extend_from_slice(question.name.as_wire());
        wire.extend_from_slice(&question.qtype.to_be_bytes());
        wire.extend_from_slice(&question.qclass.to_be_bytes());
        for record in sections.into_iter().flatten() {
            if record.owner == question.name && !question.name.is_root() {
                wire.extend_from_slice(&[0xc0, 12]);
            } else {
                wire.extend_from_slice(record.owner.as_wire());
            }
            wire.extend_from_slice(&record.rtype.to_be_bytes());
            wire.extend_from_slice(&CLASS_IN.to_be_bytes());
            wire.extend_from_slice(&record.ttl.to_be_bytes());
            wire.extend_from_slice(&u16::try_from(record.data.len()).ok()?.to_be_bytes());
            wire.extend_from_slice(&record.data);
        }
        if wire.len() > MESSAGE_MAX_BYTES {
            return None;
        }
        let ttl = sections.into_iter().flatten().map(|record| record.ttl).min().unwrap_or(0);
        Self::index(wire, &Lifetime::constant(ttl, TtlBounds::default()))
    }

    /// Returns the records of a section: 0 answer, 1 authority, 2 additional.
    pub(crate) fn records(&self, section: usize) -> Vec<PlainRecord> {
        let mut records = Vec::new();
        let wire = self.as_wire();
        let mut at = self.question_end();
        for current in 0..=section.min(2) {
            for _ in 0..read_u16(wire, 6 + 2 * current).unwrap_or(0) {
                let Some(span) = RecordSpan::read(wire, at) else { return records };
                at = span.end;
                if current != section {
                    continue;
                }
                let record = || {
                    let (owner, _) = read_name(wire, span.owner)?;
                    let ttl = read_u32(wire, span.ttl)?;
                    Some(PlainRecord {
                        owner,
                        rtype: span.rtype,
                        ttl,
                        data: plain_data(wire, span)?,
                    })
                };
                records.extend(record());
            }
        }
        records
    }

    /// Returns the addresses in the answer section.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.records(0).iter().filter_map(PlainRecord::ip).collect()
    }

    /// Returns a short text of the answer, for logs: addresses, or the first target or type.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let records = self.records(0);
        for record in &records {
            let part = match (record.ip(), record.target()) {
                (Some(address), _) => address.to_string(),
                (None, Some(target)) if record.rtype == rtype::CNAME => format!("CNAME {target}"),
                (None, Some(target)) => target.to_string(),
                (None, None) => continue,
            };
            if text.len() + part.len() + 2 > SUMMARY_MAX_BYTES {
                break;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&part);
        }
        text
    }

    /// Returns the denial of a name below the one that this answer denies (RFC 8020), or of the same
    /// name with another type. None if this is not an NXDOMAIN, or denies the end of a chain of
    /// aliases.
    pub(crate) fn denial_of(&self, question: &Question) -> Option<Self> {
        if !self.is_denial() {
            return None;
        }
        let authority = self.records(1);
        authority.iter().any(|record| record.rtype == rtype::SOA).then_some(())?;
        // That the name does not exist was validated, or was not, for all that follows from it.
        let validated = read_u16(self.as_wire(), 2)? & flag::AD;
        Self::build_flagged(question, super::rcode::NXDOMAIN | validated, [&[], &authority, &[]])
    }

    /// Returns true if the answer says that the name asked for does not exist; false for the end of a
    /// chain of aliases.
    pub(crate) fn is_denial(&self) -> bool {
        self.rcode() == super::rcode::NXDOMAIN && read_u16(self.as_wire(), 6) == Some(0)
    }

    pub(super) fn question_end(&self) -> usize {
        super::skip_name(self.as_wire(), HEADER_BYTES).map_or(HEADER_BYTES, |end| end + 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::AnswerKind;

    fn question(name: &str, qtype: u16) -> Question {
        Question { name: name.parse().unwrap(), qtype, qclass: 1 }
    }

    #[test]
    fn an_answer_made_here_is_read_as_any_other() {
        let asked = question("www.example.com", 1);
        let target: DomainName = "edge.example.net".parse().unwrap();
        let records = [
            PlainRecord::alias(asked.name.clone(), 300, &target),
            PlainRecord::address(target.clone(), 60, [192, 0, 2, 1].into()),
        ];
        let answer = CachedAnswer::build(&asked, 0, false, [&records, &[], &[]]).unwrap();
        assert_eq!((answer.stored_ttl(), answer.rcode()), (60, 0));
        assert_eq!(answer.records(0), records);
        assert_eq!(answer.addresses(), [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(answer.summary(), "CNAME edge.example.net, 192.0.2.1");
        // And after the upstream's way, with compression.
        let bounds = TtlBounds::default();
        let again = CachedAnswer::normalise(answer.as_wire(), &asked, AnswerKind::Plain, bounds);
        assert_eq!(again.unwrap().records(0), records);
    }

    #[test]
    fn a_denial_covers_the_names_below() {
        let asked = question("gone.example", 1);
        let soa = [PlainRecord::negative_soa("example".parse().unwrap(), 60)];
        let denial = CachedAnswer::build(&asked, 3, false, [&[], &soa, &[]]).unwrap();
        let below = denial.denial_of(&question("a.gone.example", 28)).unwrap();
        assert_eq!((below.rcode(), below.stored_ttl()), (3, 60));
        assert_eq!(below.records(1), soa);
        let alias = [PlainRecord::alias(asked.name.clone(), 60, &"x.example".parse().unwrap())];
        let chain = CachedAnswer::build(&asked, 3, false, [&alias, &soa, &[]]).unwrap();
        assert_eq!(chain.denial_of(&question("a.gone.example", 28)), None);
    }

    #[test]
    fn parameters_are_taken_out_of_service_bindings() {
        // 1 . alpn=h2 ipv4hint=192.0.2.1 ech=… mandatory=alpn,ech
        let mut data = vec![0, 1, 0];
        data.extend_from_slice(&[0, 0, 0, 4, 0, 1, 0, 5]);
        data.extend_from_slice(&[0, 1, 0, 3, 2, b'h', b'2']);
        data.extend_from_slice(&[0, 4, 0, 4, 192, 0, 2, 1]);
        data.extend_from_slice(&[0, 5, 0, 2, 9, 9]);
        let owner: DomainName = "a.example".parse().unwrap();
        let mut record = PlainRecord { owner, rtype: rtype::HTTPS, ttl: 60, data };
        assert_eq!(record.hints(), [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(record.target(), None);
        assert!(record.remove_parameters(&[5]));
        assert!(!record.remove_parameters(&[5]));
        let keys: Vec<u16> = record.parameters().map(|(key, _)| key).collect();
        assert_eq!(keys, [0, 1, 4]);
        assert_eq!(record.parameters().next(), Some((0, &[0, 1][..])));
    }
}
