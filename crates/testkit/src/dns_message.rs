//! DNS messages as a test writes and reads them: slow, strict, and not a line in common with the
//! resolver's own code.

use anyhow::{Context, bail, ensure};

/// Flags of a header.
pub mod dns_flag {
    #![allow(missing_docs)]
    pub const QR: u16 = 0x8000;
    pub const AA: u16 = 0x0400;
    pub const TC: u16 = 0x0200;
    pub const RD: u16 = 0x0100;
    pub const RA: u16 = 0x0080;
    pub const Z: u16 = 0x0040;
    pub const AD: u16 = 0x0020;
    pub const CD: u16 = 0x0010;
}

/// A query to be sent. Public fields, so that a test can make it as wrong as it likes.
#[derive(Clone, Debug)]
pub struct DnsQuery {
    /// Message id.
    pub id: u16,
    /// Flags and opcode.
    pub flags: u16,
    /// Name in wire form.
    pub name: Vec<u8>,
    /// Type.
    pub qtype: u16,
    /// Class.
    pub qclass: u16,
    /// OPT record.
    pub edns: Option<QueryEdns>,
}

/// The OPT record of a query.
#[derive(Clone, Debug)]
pub struct QueryEdns {
    /// Size of the client's buffer.
    pub size: u16,
    /// Version.
    pub version: u8,
    /// Flags; 0x8000 is DO.
    pub flags: u16,
    /// Options by code.
    pub options: Vec<(u16, Vec<u8>)>,
}

impl Default for QueryEdns {
    fn default() -> Self {
        Self { size: 1_232, version: 0, flags: 0, options: Vec::new() }
    }
}

impl DnsQuery {
    /// Makes a query with RD set, class IN, without EDNS.
    pub fn new(name: &str, qtype: u16) -> Self {
        Self {
            id: fastrand::u16(..),
            flags: dns_flag::RD,
            name: wire_name(name),
            qtype,
            qclass: 1,
            edns: None,
        }
    }

    /// Adds an OPT record.
    pub fn edns(mut self, edns: QueryEdns) -> Self {
        self.edns = Some(edns);
        self
    }

    /// Adds an OPT record with DO set.
    pub fn dnssec_ok(self) -> Self {
        self.edns(QueryEdns { flags: 0x8000, ..QueryEdns::default() })
    }

    /// Sets more flags.
    pub fn flag(mut self, flag: u16) -> Self {
        self.flags |= flag;
        self
    }

    /// Returns the message.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = Vec::new();
        wire.extend(self.id.to_be_bytes());
        wire.extend(self.flags.to_be_bytes());
        wire.extend([0, 1, 0, 0, 0, 0, 0, u8::from(self.edns.is_some())]);
        wire.extend(&self.name);
        wire.extend(self.qtype.to_be_bytes());
        wire.extend(self.qclass.to_be_bytes());
        if let Some(edns) = &self.edns {
            wire.extend(edns.to_wire());
        }
        wire
    }
}

impl QueryEdns {
    /// Returns the record.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = vec![0, 0, 41];
        wire.extend(self.size.to_be_bytes());
        wire.extend([0, self.version]);
        wire.extend(self.flags.to_be_bytes());
        let mut options = Vec::new();
        for (code, data) in &self.options {
            options.extend(code.to_be_bytes());
            options.extend((data.len() as u16).to_be_bytes());
            options.extend(data);
        }
        wire.extend((options.len() as u16).to_be_bytes());
        wire.extend(options);
        wire
    }
}

/// Returns a name in wire form; the empty one is the root.
pub fn wire_name(name: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend(label.as_bytes());
    }
    wire.push(0);
    wire
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsRecord {
    /// Owner in lower case, with a final dot.
    pub name: String,
    /// Type.
    pub rtype: u16,
    /// Class.
    pub class: u16,
    /// TTL.
    pub ttl: u32,
    /// Data, with names in full and in lower case where the type may have compressed ones.
    pub data: Vec<u8>,
}

/// The OPT record of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyEdns {
    /// Size of the server's buffer.
    pub size: u16,
    /// Version.
    pub version: u8,
    /// Flags; 0x8000 is DO.
    pub flags: u16,
    /// Options by code.
    pub options: Vec<(u16, Vec<u8>)>,
}

impl ReplyEdns {
    /// Returns the data of an option.
    pub fn option(&self, code: u16) -> Option<&[u8]> {
        self.options.iter().find(|(known, _)| *known == code).map(|(_, data)| data.as_slice())
    }
}

/// A message that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsMessage {
    /// Message id.
    pub id: u16,
    /// Flags, without the response code.
    pub flags: u16,
    /// Response code with its upper bits of the OPT record.
    pub rcode: u16,
    /// Bytes of the question section.
    pub question: Vec<u8>,
    /// Records of answer, authority and additional section, without the OPT record.
    pub sections: [Vec<DnsRecord>; 3],
    /// OPT record.
    pub edns: Option<ReplyEdns>,
    /// Length of the message.
    pub length: usize,
}

impl DnsMessage {
    /// Reads a message. Every byte must belong to something.
    pub fn read(wire: &[u8]) -> anyhow::Result<Self> {
        ensure!(wire.len() >= 12, "shorter than a header");
        let word = |at: usize| u16::from_be_bytes([wire[at], wire[at + 1]]);
        let flags = word(2);
        let mut at = 12;
        for _ in 0..word(4) {
            at = read_name(wire, at)?.1 + 4;
        }
        let question = wire.get(12..at).context("question breaks off")?.to_vec();
        let mut sections: [Vec<DnsRecord>; 3] = Default::default();
        let (mut edns, mut upper) = (None, 0);
        for (section, records) in sections.iter_mut().enumerate() {
            for _ in 0..word(6 + 2 * section) {
                let (name, fixed) = read_name(wire, at)?;
                let head = wire.get(fixed..fixed + 10).context("record breaks off")?;
                let rtype = u16::from_be_bytes([head[0], head[1]]);
                let class = u16::from_be_bytes([head[2], head[3]]);
                let ttl = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                let length = usize::from(u16::from_be_bytes([head[8], head[9]]));
                let data_at = fixed + 10;
                at = data_at + length;
                let data = wire.get(data_at..at).context("data breaks off")?;
                if rtype == 41 {
                    ensure!(section == 2 && name == "." && edns.is_none(), "a second or odd OPT");
                    upper = (ttl >> 24) as u16;
                    edns = Some(ReplyEdns {
                        size: class,
                        version: (ttl >> 16) as u8,
                        flags: ttl as u16,
                        options: read_options(data)?,
                    });
                    continue;
                }
                let data = read_data(wire, rtype, data_at, data)?;
                records.push(DnsRecord { name, rtype, class, ttl, data });
            }
        }
        ensure!(at == wire.len(), "{} bytes behind the last record", wire.len() - at);
        let rcode = flags & 0xf | upper << 4;
        let (id, flags, length) = (word(0), flags & 0xfff0, wire.len());
        Ok(Self { id, flags, rcode, question, sections, edns, length })
    }

    /// Returns the records of the answer section.
    pub fn answers(&self) -> &[DnsRecord] {
        &self.sections[0]
    }

    /// Returns the records of the authority section.
    pub fn authorities(&self) -> &[DnsRecord] {
        &self.sections[1]
    }

    /// Returns true if a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if any section has a record of a type.
    pub fn has_type(&self, rtype: u16) -> bool {
        self.sections.iter().flatten().any(|record| record.rtype == rtype)
    }
}

fn read_options(data: &[u8]) -> anyhow::Result<Vec<(u16, Vec<u8>)>> {
    let (mut options, mut rest) = (Vec::new(), data);
    while !rest.is_empty() {
        ensure!(rest.len() >= 4, "an option breaks off");
        let code = u16::from_be_bytes([rest[0], rest[1]]);
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        options.push((code, rest.get(4..4 + length).context("an option breaks off")?.to_vec()));
        rest = &rest[4 + length..];
    }
    Ok(options)
}

/// Reads a name and returns it with the offset behind it.
fn read_name(wire: &[u8], start: usize) -> anyhow::Result<(String, usize)> {
    let (mut name, mut at, mut end, mut bytes) = (String::new(), start, None, 0);
    loop {
        let length = usize::from(*wire.get(at).context("a name breaks off")?);
        match length {
            0 => break,
            1..=63 => {
                let label = wire.get(at + 1..at + 1 + length).context("a label breaks off")?;
                name.push_str(&label.escape_ascii().to_string().to_lowercase());
                name.push('.');
                at += 1 + length;
                bytes += 1 + length;
                ensure!(bytes < 255, "a name of more than 255 bytes");
            }
            192.. => {
                let low = *wire.get(at + 1).context("a pointer breaks off")?;
                let target = (length & 0x3f) << 8 | usize::from(low);
                ensure!(target < at, "a pointer that does not lead back");
                end.get_or_insert(at + 2);
                at = target;
            }
            _ => bail!("a label of an unknown kind"),
        }
    }
    if name.is_empty() {
        name.push('.');
    }
    Ok((name, end.unwrap_or(at + 1)))
}

/// Returns data with its names in full, for the types whose names may be compressed.
fn read_data(wire: &[u8], rtype: u16, at: usize, data: &[u8]) -> anyhow::Result<Vec<u8>> {
    let end = at + data.len();
    let mut out = Vec::new();
    let (fixed, names) = match rtype {
        2 | 5 | 12 | 39 => (0, 1),
        15 => (2, 1),
        33 => (6, 1),
        6 => (0, 2),
        _ => return Ok(data.to_vec()),
    };
    out.extend(data.get(..fixed).context("data is too short")?);
    let mut next = at + fixed;
    for _ in 0..names {
        let (name, behind) = read_name(wire, next)?;
        out.extend(name.as_bytes());
        next = behind;
    }
    ensure!(next <= end, "a name leads out of its record");
    out.extend(&wire[next..end]);
    Ok(out)
}
