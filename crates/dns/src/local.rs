//! Names answered here: records of the policy, the hosts file, special-use names.
//!
//! Order: records, then the hosts file, then special-use names; a name with servers of its own in the
//! policy is not treated as special. Invariant: a name that has a record of any type is answered here
//! for every type, with NODATA where there is none, so that no query for it leaves.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use domain::{
    base::{
        Name, Rtype,
        rdata::ComposeRecordData as _,
        scan::{IterScanner, Scanner as _},
    },
    rdata::ZoneRecordData,
};

use crate::{
    lists::parse_type,
    name::DomainName,
    policy::{LocalRecord, PolicyError},
    wire::{PlainRecord, rtype},
};

/// Aliases followed from one local name to the next.
const ALIASES_MAX: usize = 16;

/// TTL of records from the hosts file.
const HOSTS_TTL_SECONDS: u32 = 60;

/// Entries of the hosts file that are read.
const HOSTS_MAX: usize = 100_000;

/// Top-level names that are never forwarded: RFC 6761, 7686, 8375, 9476.
const NEVER_FORWARDED: [&str; 4] = ["invalid", "onion", "alt", "home.arpa"];

/// Reads the data of a record as zone files have it; returns it in wire form, names in full.
pub(crate) fn parse_data(rtype: u16, text: &str) -> Result<Vec<u8>, String> {
    if let Some(generic) = text.strip_prefix("\\#") {
        return parse_generic(rtype, generic);
    }
    let words = split_words(text)?;
    // Text without quotes is one string, as people mean it.
    let words = match rtype == 16 && !text.contains('"') {
        true => vec![text.to_owned()],
        false => words,
    };
    check_type(rtype)?;
    let mut scanner = IterScanner::<_, Vec<u8>>::new(words);
    let data: ZoneRecordData<Vec<u8>, Name<Vec<u8>>> =
        ZoneRecordData::scan(Rtype::from_int(rtype), &mut scanner)
            .map_err(|error| format!("{text:?} is not data of this type: {error}"))?;
    if scanner.continues() {
        return Err(format!("{text:?} has more words than this type takes"));
    }
    let mut wire = Vec::new();
    // The target is a vector, which takes everything.
    let composed = data.compose_rdata(&mut wire);
    composed.map_err(|_| format!("{text:?} is too long"))?;
    if wire.len() > 4_096 {
        return Err("has more than 4,096 bytes".to_owned());
    }
    Ok(wire)
}

/// Refuses types that no record has: OPT and those of queries only.
fn check_type(rtype: u16) -> Result<(), String> {
    if rtype == rtype::OPT || (128..=255).contains(&rtype) || rtype == 0 {
        return Err(format!("type {rtype} is not a type of records"));
    }
    Ok(())
}

/// Reads data of any type, RFC 3597 §5: its length and its bytes in hexadecimal.
fn parse_generic(rtype: u16, text: &str) -> Result<Vec<u8>, String> {
    check_type(rtype)?;
    let invalid = || "after \\# come the length and the bytes in hexadecimal".to_owned();
    let mut words = text.split_whitespace();
    let length: usize = words.next().and_then(|word| word.parse().ok()).ok_or_else(invalid)?;
    let digits: Vec<u8> = words.flat_map(str::bytes).collect();
    let bytes = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes = bytes.collect::<Option<Vec<u8>>>().ok_or_else(invalid)?;
    if bytes.len() != length || length > 4_096 {
        return Err(invalid());
    }
    // Of these types others read the data; it has to be of their length.
    match (rtype, length) {
        (rtype::A, 4) | (rtype::AAAA, 16) => Ok(bytes),
        (rtype::A | rtype::AAAA, _) => Err("an address of another length".to_owned()),
        (rtype::CNAME, _) => Err("write the name of an alias as a name".to_owned()),
        _ => Ok(bytes),
    }
}

/// Splits at spaces; quotes keep words together, a backslash keeps the character after it.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut in_quotes, mut has_word) = (false, false);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => (in_quotes, has_word) = (!in_quotes, true),
            '\\' => {
                word.push(character);
                word.extend(characters.next());
                has_word = true;
            }
            character if character.is_ascii_whitespace() && !in_quotes => {
                if has_word {
                    words.push(std::mem::take(&mut word));
                    has_word = false;
                }
            }
            character => {
                word.push(character);
                has_word = true;
            }
        }
    }
    if in_quotes {
        return Err("a quote is not closed".to_owned());
    }
    if has_word {
        words.push(word);
    }
    Ok(words)
}

/// Answer of local records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalAnswer {
    /// Records; none for NODATA.
    Records(Vec<PlainRecord>),
    /// Aliases that lead to a name which is not answered here.
    Alias(Vec<PlainRecord>, DomainName),
    /// The name does not exist.
    NoName,
}

#[derive(Clone, Debug, Default)]
struct NameRecords {
    /// Type, TTL, data.
    records: Vec<(u16, u32, Vec<u8>)>,
}

/// Records answered here, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalRecords {
    names: HashMap<DomainName, NameRecords>,
    /// Records of `*.name`, by name.
    wildcards: HashMap<DomainName, NameRecords>,
    /// Names of addresses, from records and the hosts file.
    hosts: HashMap<DomainName, NameRecords>,
}

impl LocalRecords {
    /// Reads records. Refuses bad data, aliases beside other records, and aliases that lead in a
    /// circle.
    pub(crate) fn new(records: &[LocalRecord]) -> Result<Self, PolicyError> {
        let mut local = Self::default();
        for (index, record) in records.iter().enumerate() {
            let field = |name: &str| format!("records[{index}].{name}");
            let rtype = parse_type(&record.record_type).ok_or_else(|| {
                let reason = format!("{:?} is not a record type", record.record_type);
                PolicyError::new(field("type"), reason)
            })?;
            let (table, text) = match record.name.strip_prefix("*.") {
                Some(parent) => (&mut local.wildcards, parent),
                None => (&mut local.names, record.name.as_str()),
            };
            let name = crate::policy::parse_name(&field("name"), text)?;
            let data = parse_data(rtype, record.value.trim())
                .map_err(|reason| PolicyError::new(field("value"), reason))?;
            if record.ttl_seconds > 604_800 {
                let reason = "is more than a week, 604,800";
                return Err(PolicyError::new(field("ttl_seconds"), reason));
            }
            let known = &mut table.entry(name).or_default().records;
            let has_alias = known.iter().any(|(other, ..)| *other == rtype::CNAME);
            if has_alias || (rtype == rtype::CNAME && !known.is_empty()) {
                let reason = format!("{} has a CNAME, which stands alone", record.name);
                return Err(PolicyError::new(field("type"), reason));
            }
            known.push((rtype, record.ttl_seconds, data));
        }
        for (index, record) in records.iter().enumerate() {
            if !record.name.starts_with("*.")
                && let Ok(name) = record.name.parse::<DomainName>()
                && local.loops(&name)
            {
                let reason = format!("the aliases from {} lead in a circle", record.name);
                return Err(PolicyError::new(format!("records[{index}].value"), reason));
            }
        }
        local.add_reverse();
        Ok(local)
    }

    fn loops(&self, start: &DomainName) -> bool {
        let mut seen = HashSet::new();
        let mut name = start.clone();
        while let Some(target) = self.alias(&name) {
            if !seen.insert(name) || seen.len() > ALIASES_MAX {
                return true;
            }
            name = target;
        }
        false
    }

    fn alias(&self, name: &DomainName) -> Option<DomainName> {
        let found = self.find_name(name)?;
        let alias = found.records.iter().find(|(rtype, ..)| *rtype == rtype::CNAME)?;
        DomainName::from_wire(&alias.2).ok()
    }

    /// Adds the reverse names of addresses that have none of their own.
    fn add_reverse(&mut self) {
        let mut reverse: HashMap<DomainName, NameRecords> = HashMap::new();
        for (name, records) in &self.names {
            for (rtype, ttl, data) in &records.records {
                let record = PlainRecord {
                    owner: name.clone(),
                    rtype: *rtype,
                    ttl: *ttl,
                    data: data.clone(),
                };
                if let Some(reverse_name) = record.ip().and_then(reverse_name)
                    && !self.names.contains_key(&reverse_name)
                {
                    let pointer = (rtype::PTR, *ttl, name.as_wire().to_vec());
                    reverse.entry(reverse_name).or_default().records.push(pointer);
                }
            }
        }
        self.hosts.extend(reverse);
    }

    /// Adds the entries of a hosts file. Names that have records keep those.
    pub(crate) fn add_hosts(&mut self, text: &str) {
        let mut count = 0;
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
            for (position, word) in words.enumerate() {
                let Ok(name) = word.parse::<DomainName>() else { continue };
                if name.is_root() || count >= HOSTS_MAX || is_localhost(&name) {
                    continue;
                }
                count += 1;
                let record = PlainRecord::address(name.clone(), HOSTS_TTL_SECONDS, address);
                let known = &mut self.hosts.entry(name.clone()).or_default().records;
                let entry = (record.rtype, record.ttl, record.data);
                if !known.contains(&entry) {
                    known.push(entry);
                }
                if position == 0
                    && let Some(reverse) = reverse_name(address)
                {
                    let known = &mut self.hosts.entry(reverse).or_default().records;
                    if known.is_empty() {
                        let data = name.as_wire().to_vec();
                        known.push((rtype::PTR, HOSTS_TTL_SECONDS, data));
                    }
                }
            }
        }
    }

    fn find_name(&self, name: &DomainName) -> Option<&NameRecords> {
        if let Some(found) = self.names.get(name).or_else(|| self.hosts.get(name)) {
            return Some(found);
        }
        if self.wildcards.is_empty() {
            return None;
        }
        // The closest wildcard counts, RFC 4592.
        let mut parents = std::iter::successors(name.parent(), DomainName::parent);
        parents.find_map(|parent| self.wildcards.get(&parent))
    }

    /// Answers a question about a local name; none if the name is not local.
    pub(crate) fn find(&self, name: &DomainName, qtype: u16) -> Option<LocalAnswer> {
        if self.names.is_empty() && self.hosts.is_empty() && self.wildcards.is_empty() {
            return None;
        }
        let mut answer = Vec::new();
        let mut name = name.clone();
        for _ in 0..=ALIASES_MAX {
            let Some(found) = self.find_name(&name) else {
                let is_first = answer.is_empty();
                return (!is_first).then_some(LocalAnswer::Alias(answer, name));
            };
            let fits = |rtype: u16| rtype == qtype || qtype == rtype::ANY || rtype == rtype::CNAME;
            let mut next = None;
            for (rtype, ttl, data) in &found.records {
                if !fits(*rtype) {
                    continue;
                }
                let (owner, data) = (name.clone(), data.clone());
                let record = PlainRecord { owner, rtype: *rtype, ttl: *ttl, data };
                if *rtype == rtype::CNAME && qtype != rtype::CNAME && qtype != rtype::ANY {
                    next = record.target();
                }
                answer.push(record);
            }
            match next {
                Some(target) => name = target,
                None => return Some(LocalAnswer::Records(answer)),
            }
        }
        Some(LocalAnswer::Records(answer))
    }
}

/// Returns the reverse name of an address.
pub(crate) fn reverse_name(address: IpAddr) -> Option<DomainName> {
    let text = match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let mut text = String::new();
            for byte in address.octets().iter().rev() {
                text.push_str(&format!("{:x}.{:x}.", byte & 0xf, byte >> 4));
            }
            text + "ip6.arpa"
        }
    };
    text.parse().ok()
}

fn is_localhost(name: &DomainName) -> bool {
    name.labels().last() == Some(b"localhost")
}

/// Returns true if a name is another or below it, given as text.
fn is_below(name: &DomainName, parent: &str) -> bool {
    let text = name.to_string();
    text.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns true for names of addresses that are not of the public Internet (RFC 6303, RFC 7793).
fn is_private_reverse(name: &DomainName) -> bool {
    // Between carriers and their customers, 100.64.0.0/10.
    let is_shared = |octets: [u8; 4]| octets[0] == 100 && octets[1] & 0xc0 == 64;
    let labels: Vec<&[u8]> = name.labels().collect();
    let number = |label: &[u8]| std::str::from_utf8(label).ok()?.parse::<u8>().ok();
    match labels.as_slice() {
        [rest @ .., b"in-addr", b"arpa"] if !rest.is_empty() => {
            let mut octets = [0; 4];
            let known = rest.iter().rev().take(4).map(|label| number(label));
            let mut count = 0;
            for (octet, value) in octets.iter_mut().zip(known) {
                let Some(value) = value else { return false };
                *octet = value;
                count += 1;
            }
            let address = Ipv4Addr::from(octets);
            match count {
                1 => matches!(octets[0], 0 | 10 | 127),
                2 => {
                    matches!(octets[0], 0 | 10 | 127)
                        || (octets[0] == 172 && octets[1] & 0xf0 == 16)
                        || is_shared(octets)
                        || matches!((octets[0], octets[1]), (192, 168) | (169, 254))
                }
                _ => {
                    address.is_private()
                        || address.is_loopback()
                        || address.is_link_local()
                        || address.is_documentation()
                        || is_shared(octets)
                        || octets[0] == 0
                        || address == Ipv4Addr::BROADCAST
                }
            }
        }
        [rest @ .., b"ip6", b"arpa"] if rest.len() >= 2 => {
            let digit = |label: &&[u8]| match label {
                [digit @ (b'0'..=b'9' | b'a'..=b'f')] => {
                    u8::from_str_radix(std::str::from_utf8(&[*digit]).ok()?, 16).ok()
                }
                _ => None,
            };
            let digits: Option<Vec<u8>> = rest.iter().rev().map(digit).collect();
            let Some(digits) = digits else { return false };
            if digits.len() == 32 {
                let mut octets = [0; 16];
                for (octet, pair) in octets.iter_mut().zip(digits.chunks_exact(2)) {
                    *octet = pair[0] << 4 | pair[1];
                }
                let address = Ipv6Addr::from(octets);
                if address.is_loopback() || address.is_unspecified() {
                    return true;
                }
            }
            matches!(digits.as_slice(), [0xf, 0xc | 0xd, ..])
                || matches!(digits.as_slice(), [0xf, 0xe, 0x8..=0xb, ..])
                || matches!(digits.as_slice(), [2, 0, 0, 1, 0, 0xd, 0xb, 8, ..])
        }
        _ => false,
    }
}

/// Endpoints by which clients find encrypted ones of this resolver (DDR, RFC 9462).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesignatedEndpoints {
    /// Name in the certificate; without one nothing is offered.
    pub name: Option<String>,
    /// Port of DoT.
    pub tls_port: Option<u16>,
    /// Port of DoH.
    pub https_port: Option<u16>,
}

impl DesignatedEndpoints {
    fn records(&self, owner: &DomainName) -> Vec<PlainRecord> {
        let target = self.name.as_ref().and_then(|name| name.parse::<DomainName>().ok());
        let Some(target) = target.filter(|target| !target.is_root()) else { return Vec::new() };
        let mut records = Vec::new();
        let mut add = |priority: u16, alpn: &[u8], port: u16, path: &[u8]| {
            let mut data = priority.to_be_bytes().to_vec();
            data.extend_from_slice(target.as_wire());
            let mut put = |key: u16, value: &[u8]| {
                data.extend_from_slice(&key.to_be_bytes());
                data.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_be_bytes());
                data.extend_from_slice(value);
            };
            put(1, alpn);
            put(3, &port.to_be_bytes());
            if !path.is_empty() {
                put(7, path);
            }
            records.push(PlainRecord { owner: owner.clone(), rtype: rtype::SVCB, ttl: 300, data });
        };
        if let Some(port) = self.https_port {
            add(1, b"\x02h2\x08http/1.1", port, b"/dns-query{?dns}");
        }
        if let Some(port) = self.tls_port {
            add(2, b"\x03dot", port, b"");
        }
        records
    }
}

/// Answers a question about a special-use name; none for every other.
pub(crate) fn find_special(
    name: &DomainName,
    qtype: u16,
    endpoints: &DesignatedEndpoints,
) -> Option<LocalAnswer> {
    if is_localhost(name) {
        let address: Option<IpAddr> = match qtype {
            rtype::A => Some(Ipv4Addr::LOCALHOST.into()),
            rtype::AAAA => Some(Ipv6Addr::LOCALHOST.into()),
            _ => None,
        };
        let record = address.map(|address| PlainRecord::address(name.clone(), 3_600, address));
        return Some(LocalAnswer::Records(record.into_iter().collect()));
    }
    if is_below(name, "resolver.arpa") {
        // Forwarded, it would tell clients of another resolver's endpoints.
        let is_ddr = name.to_string() == "_dns.resolver.arpa" && qtype == rtype::SVCB;
        let records = if is_ddr { endpoints.records(name) } else { Vec::new() };
        return Some(LocalAnswer::Records(records));
    }
    let is_denied = NEVER_FORWARDED.iter().any(|parent| is_below(name, parent))
        || is_below(name, "use-application-dns.net")
        || is_private_reverse(name);
    is_denied.then_some(LocalAnswer::NoName)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    fn record(name: &str, record_type: &str, value: &str) -> LocalRecord {
        LocalRecord {
            name: name.to_owned(),
            record_type: record_type.to_owned(),
            value: value.to_owned(),
            ttl_seconds: 300,
        }
    }

    fn records(entries: &[(&str, &str, &str)]) -> Result<LocalRecords, PolicyError> {
        let entries: Vec<_> = entries.iter().map(|(n, t, v)| record(n, t, v)).collect();
        LocalRecords::new(&entries)
    }

    fn types(answer: Option<LocalAnswer>) -> Vec<u16> {
        match answer {
            Some(LocalAnswer::Records(records)) => records.iter().map(|r| r.rtype).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn records_of_every_type_are_answered() {
        let local = records(&[
            ("nas.lan", "A", "192.168.1.5"),
            ("nas.lan", "AAAA", "fd00::5"),
            ("nas.lan", "TXT", "hello world"),
            ("nas.lan", "TXT", "\"two\" \"parts\""),
            ("nas.lan", "MX", "10 mail.lan."),
            ("nas.lan", "CAA", "0 issue \"ca.example\""),
            ("_x._tcp.lan", "SRV", "1 2 443 nas.lan"),
            ("nas.lan", "TYPE65400", "\\# 2 beef"),
            ("*.apps.lan", "A", "192.168.1.6"),
            ("www.lan", "CNAME", "nas.lan"),
            ("out.lan", "CNAME", "www.example.com"),
        ])
        .unwrap();
        assert_eq!(types(local.find(&name("nas.lan"), 1)), [1]);
        assert_eq!(types(local.find(&name("nas.lan"), 16)), [16, 16]);
        assert_eq!(types(local.find(&name("nas.lan"), 65_400)), [65_400]);
        assert_eq!(types(local.find(&name("nas.lan"), 99)), [0_u16; 0], "NODATA");
        assert_eq!(types(local.find(&name("www.lan"), 1)), [5, 1], "followed");
        assert_eq!(types(local.find(&name("x.y.apps.lan"), 1)), [1], "wildcard");
        assert_eq!(local.find(&name("apps.lan"), 1), None, "below only");
        assert_eq!(types(local.find(&name("5.1.168.192.in-addr.arpa"), 12)), [12], "reverse");
        match local.find(&name("out.lan"), 1) {
            Some(LocalAnswer::Alias(records, target)) => {
                assert_eq!((records.len(), target), (1, name("www.example.com")));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(local.find(&name("other.lan"), 1), None);
    }

    #[test]
    fn bad_records_are_refused_with_their_field() {
        for (entries, field) in [
            (&[("a.lan", "A", "nope")][..], "records[0].value"),
            (&[("a.lan", "A", "192.0.2.1 192.0.2.2")], "records[0].value"),
            (&[("a.lan", "NOPE", "x")], "records[0].type"),
            (&[("a..lan", "A", "192.0.2.1")], "records[0].name"),
            (&[("a.lan", "OPT", "x")], "records[0].value"),
            (&[("a.lan", "TXT", "\"open")], "records[0].value"),
            (&[("a.lan", "A", "192.0.2.1"), ("a.lan", "CNAME", "b.lan")], "records[1].type"),
            (&[("a.lan", "CNAME", "b.lan"), ("b.lan", "CNAME", "a.lan")], "records[0].value"),
            (&[("a.lan", "CNAME", "a.lan")], "records[0].value"),
            (&[("*.a.lan", "CNAME", "x.a.lan"), ("b.lan", "CNAME", "y.a.lan")], "records[1].value"),
        ] {
            let error = records(entries).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }

    #[test]
    fn the_hosts_file_is_read() {
        let mut local = records(&[("nas.lan", "A", "192.168.1.5")]).unwrap();
        local.add_hosts(
            "127.0.0.1 localhost\n192.168.1.9 tv.lan tv # x\n192.168.1.8 nas.lan\nbad line\n",
        );
        assert_eq!(types(local.find(&name("tv"), 1)), [1]);
        assert_eq!(types(local.find(&name("9.1.168.192.in-addr.arpa"), 12)), [12]);
        match local.find(&name("nas.lan"), 1) {
            Some(LocalAnswer::Records(found)) => assert_eq!(found[0].data, [192, 168, 1, 5]),
            other => panic!("{other:?}"),
        }
        assert_eq!(local.find(&name("localhost"), 1), None, "special, not from the file");
    }

    #[test]
    fn special_names_never_leave() {
        let none = DesignatedEndpoints::default();
        let find = |text: &str, qtype| find_special(&name(text), qtype, &none);
        assert_eq!(types(find("localhost", 1)), [1]);
        assert_eq!(types(find("a.localhost", 16)), [0_u16; 0]);
        assert_eq!(types(find("_dns.resolver.arpa", 64)), [0_u16; 0]);
        for text in [
            "x.invalid",
            "hidden.onion",
            "x.alt",
            "home.arpa",
            "use-application-dns.net",
            "1.1.168.192.in-addr.arpa",
            "10.in-addr.arpa",
            "16.172.in-addr.arpa",
            "1.2.0.192.in-addr.arpa",
            "2.0.192.in-addr.arpa",
            "100.51.198.in-addr.arpa",
            "64.100.in-addr.arpa",
            "1.0.127.100.in-addr.arpa",
            "8.b.d.0.1.0.0.2.ip6.arpa",
            "d.f.ip6.arpa",
            "1.0.8.e.f.ip6.arpa",
        ] {
            assert_eq!(find(text, 12), Some(LocalAnswer::NoName), "{text}");
        }
        for text in [
            "example.com",
            "1.1.1.1.in-addr.arpa",
            "172.in-addr.arpa",
            "168.192.example",
            "128.100.in-addr.arpa",
            "0.192.in-addr.arpa",
            "9.b.d.0.1.0.0.2.ip6.arpa",
            "x.test",
            "in-addr.arpa",
            "notinvalid",
        ] {
            assert_eq!(find(text, 1), None, "{text}");
        }
        let ours = DesignatedEndpoints {
            name: Some("dns.example".to_owned()),
            tls_port: Some(853),
            https_port: Some(443),
        };
        let offered = find_special(&name("_dns.resolver.arpa"), 64, &ours);
        assert_eq!(types(offered), [64, 64]);
    }
}
