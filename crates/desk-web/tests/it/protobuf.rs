//! As much of protobuf as tests need to write requests and read answers, apart from the code under test.

/// A field of bytes: a text or a message.
pub(crate) fn bytes(tag: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(u64::from(tag << 3 | 2)), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field with a number.
pub(crate) fn number(tag: u32, number: u64) -> Vec<u8> {
    [varint(u64::from(tag << 3)), varint(number)].concat()
}

/// A field of eight bytes.
pub(crate) fn fixed(tag: u32, number: u64) -> Vec<u8> {
    [varint(u64::from(tag << 3 | 1)), number.to_le_bytes().to_vec()].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Field {
    pub(crate) fn fields(&self) -> Vec<(u32, Field)> {
        match self {
            Field::Bytes(bytes) => fields(bytes),
            Field::Number(_) => panic!("no message: {self:?}"),
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Field::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Field::Number(number) => number.to_string(),
        }
    }
}

/// The fields of a message, in order.
pub(crate) fn fields(message: &[u8]) -> Vec<(u32, Field)> {
    let (mut found, mut at) = (Vec::new(), 0);
    let read = |at: &mut usize| {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let byte = message[*at];
            *at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    };
    while at < message.len() {
        let key = read(&mut at);
        let value = match key & 7 {
            0 => Field::Number(read(&mut at)),
            2 => {
                let length = read(&mut at) as usize;
                at += length;
                Field::Bytes(message[at - length..at].to_vec())
            }
            other => panic!("wire type {other}"),
        };
        found.push(((key >> 3) as u32, value));
    }
    found
}

/// The first field of a tag, as a number; 0 if there is none.
pub(crate) fn number_of(fields: &[(u32, Field)], tag: u32) -> u64 {
    match fields.iter().find(|(known, _)| *known == tag) {
        Some((_, Field::Number(number))) => *number,
        _ => 0,
    }
}
