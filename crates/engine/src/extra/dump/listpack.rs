//! The packed forms that Redis keeps small values in: listpack, and what came before it.
//!
//! Each reader gives all elements, integers as their digits, or says that the bytes are not of
//! that form. Only listpacks are written.

use super::format::{BadFormat, PayloadReader};
use crate::number;

/// Elements of a packed form.
pub(super) type Elements = Vec<Vec<u8>>;

const END: u8 = 0xff;

/// Signed integer of the lowest `N` bytes, little endian.
fn int<const N: usize>(reader: &mut PayloadReader<'_>) -> Result<Vec<u8>, BadFormat> {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(reader.array::<N>()?).for_each(|(to, from)| *to = from);
    let shift = 64 - 8 * N as u32;
    Ok(number::format_i64(i64::from_le_bytes(bytes) << shift >> shift))
}

/// A listpack: size, number of elements, elements each with its length behind it.
pub(super) fn read_listpack(bytes: &[u8]) -> Result<Elements, BadFormat> {
    let mut reader = PayloadReader::new(bytes);
    let size = u32::from_le_bytes(reader.array()?);
    let count = u16::from_le_bytes(reader.array()?);
    if size as usize != bytes.len() || bytes.last() != Some(&END) {
        return Err(BadFormat);
    }
    let mut found = Vec::new();
    let mut left = bytes.len() - 6;
    loop {
        let first = reader.byte()?;
        if first == END {
            break;
        }
        let element = match first {
            0..0x80 => number::format_i64(i64::from(first)),
            0x80..0xc0 => reader.take(usize::from(first & 0x3f))?.to_vec(),
            0xc0..0xe0 => {
                let n = i16::from(first & 0x1f) << 8 | i16::from(reader.byte()?);
                number::format_i64(i64::from(n << 3 >> 3))
            }
            0xe0..0xf0 => {
                let len = usize::from(first & 0x0f) << 8 | usize::from(reader.byte()?);
                reader.take(len)?.to_vec()
            }
            0xf0 => {
                let len = u32::from_le_bytes(reader.array()?) as usize;
                reader.take(len)?.to_vec()
            }
            0xf1 => int::<2>(&mut reader)?,
            0xf2 => int::<3>(&mut reader)?,
            0xf3 => int::<4>(&mut reader)?,
            0xf4 => int::<8>(&mut reader)?,
            _ => return Err(BadFormat),
        };
        found.push(element);
        let size = left - reader.left();
        let mut back = Vec::with_capacity(5);
        push_back_length(&mut back, size);
        if reader.take(back.len())? != back {
            return Err(BadFormat);
        }
        left = reader.left();
    }
    let counted = count == u16::MAX || usize::from(count) == found.len();
    if counted && reader.is_empty() { Ok(found) } else { Err(BadFormat) }
}

/// Appends the length of an element in the form that is read backwards: seven bits a byte.
fn push_back_length(out: &mut Vec<u8>, len: usize) {
    let bytes = match len {
        ..128 => 1,
        128..16383 => 2,
        16383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    for n in (0..bytes).rev() {
        let mark = if n + 1 == bytes { 0 } else { 0x80 };
        out.push((len >> (7 * n)) as u8 & 0x7f | mark);
    }
}

/// A listpack under way.
#[derive(Debug)]
pub(super) struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Listpack {
    pub(super) fn new() -> Listpack {
        Listpack { bytes: vec![0; 6], count: 0 }
    }

    /// Adds a string; one that is an integer becomes one.
    pub(super) fn push(&mut self, element: &[u8]) {
        if let Some(n) = number::parse_i64(element) {
            return self.push_int(n);
        }
        let start = self.bytes.len();
        match element.len() {
            len @ 0..64 => self.bytes.push(0x80 | len as u8),
            len @ 64..4096 => self.bytes.extend([0xe0 | (len >> 8) as u8, len as u8]),
            len => {
                self.bytes.push(0xf0);
                self.bytes.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(element);
        self.close(start);
    }

    pub(super) fn push_int(&mut self, n: i64) {
        let start = self.bytes.len();
        let bytes = n.to_le_bytes();
        match n {
            0..=127 => self.bytes.push(n as u8),
            -4096..=4095 => self.bytes.extend([0xc0 | (n >> 8) as u8 & 0x1f, n as u8]),
            -32768..=32767 => {
                self.bytes.push(0xf1);
                self.bytes.extend(bytes.iter().take(2));
            }
            -8_388_608..=8_388_607 => {
                self.bytes.push(0xf2);
                self.bytes.extend(bytes.iter().take(3));
            }
            -2_147_483_648..=2_147_483_647 => {
                self.bytes.push(0xf3);
                self.bytes.extend(bytes.iter().take(4));
            }
            _ => {
                self.bytes.push(0xf4);
                self.bytes.extend(bytes);
            }
        }
        self.close(start);
    }

    fn close(&mut self, start: usize) {
        let size = self.bytes.len() - start;
        push_back_length(&mut self.bytes, size);
        self.count += 1;
    }

    /// The whole.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let size = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        self.bytes.splice(..6, size.to_le_bytes().into_iter().chain(count.to_le_bytes()));
        self.bytes
    }
}

/// A ziplist: size, place of the last element, number, elements each behind the length of the one
/// before.
pub(super) fn read_ziplist(bytes: &[u8]) -> Result<Elements, BadFormat> {
    let mut reader = PayloadReader::new(bytes);
    let size = u32::from_le_bytes(reader.array()?);
    reader.take(4)?;
    let count = u16::from_le_bytes(reader.array()?);
    if size as usize != bytes.len() {
        return Err(BadFormat);
    }
    let mut found = Vec::new();
    loop {
        match reader.byte()? {
            END => break,
            0xfe => drop(reader.take(4)?),
            _ => {}
        }
        let first = reader.byte()?;
        found.push(match first {
            0..0x40 => reader.take(usize::from(first))?.to_vec(),
            0x40..0x80 => {
                let len = usize::from(first & 0x3f) << 8 | usize::from(reader.byte()?);
                reader.take(len)?.to_vec()
            }
            0x80..0xc0 => {
                let len = u32::from_be_bytes(reader.array()?) as usize;
                reader.take(len)?.to_vec()
            }
            0xc0 => int::<2>(&mut reader)?,
            0xd0 => int::<4>(&mut reader)?,
            0xe0 => int::<8>(&mut reader)?,
            0xf0 => int::<3>(&mut reader)?,
            0xfe => int::<1>(&mut reader)?,
            0xf1..=0xfd => number::format_i64(i64::from(first & 0x0f) - 1),
            _ => return Err(BadFormat),
        });
    }
    let counted = count == u16::MAX || usize::from(count) == found.len();
    if counted && reader.is_empty() { Ok(found) } else { Err(BadFormat) }
}

/// A zipmap: number of pairs, names and values each behind its length, values with unused bytes.
pub(super) fn read_zipmap(bytes: &[u8]) -> Result<Elements, BadFormat> {
    let mut reader = PayloadReader::new(bytes);
    reader.byte()?;
    let mut found = Vec::new();
    loop {
        let len = match reader.byte()? {
            END => break,
            first => zipmap_len(first, &mut reader)?,
        };
        found.push(reader.take(len)?.to_vec());
        let first = reader.byte()?;
        let len = zipmap_len(first, &mut reader)?;
        let unused = usize::from(reader.byte()?);
        found.push(reader.take(len)?.to_vec());
        reader.take(unused)?;
    }
    if reader.is_empty() { Ok(found) } else { Err(BadFormat) }
}

fn zipmap_len(first: u8, reader: &mut PayloadReader<'_>) -> Result<usize, BadFormat> {
    match first {
        END => Err(BadFormat),
        254 => Ok(u32::from_le_bytes(reader.array()?) as usize),
        len => Ok(usize::from(len)),
    }
}

/// An intset: width of an integer in bytes, number, integers ascending.
pub(super) fn read_intset(bytes: &[u8]) -> Result<Elements, BadFormat> {
    let mut reader = PayloadReader::new(bytes);
    let width = u32::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?) as usize;
    if reader.left() != count.saturating_mul(width as usize) {
        return Err(BadFormat);
    }
    (0..count)
        .map(|_| match width {
            2 => int::<2>(&mut reader),
            4 => int::<4>(&mut reader),
            8 => int::<8>(&mut reader),
            _ => Err(BadFormat),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listpack_comes_back() {
        let mut elements: Elements = ["", "x", "0", "127", "128", "-1", "-4096", "4096", "-32769"]
            .iter()
            .map(|text| text.as_bytes().to_vec())
            .collect();
        for n in [8_388_608, -8_388_609, i64::from(i32::MAX) + 1, i64::MIN, i64::MAX] {
            elements.push(n.to_string().into_bytes());
        }
        elements.extend([63, 64, 127, 128, 4095, 4096, 20_000].map(|len| vec![b'a'; len]));
        let mut pack = Listpack::new();
        elements.iter().for_each(|element| pack.push(element));
        let bytes = pack.finish();
        assert_eq!(read_listpack(&bytes).unwrap(), elements);
        for cut in 0..bytes.len() {
            assert!(read_listpack(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn what_came_before_is_read() {
        let texts = |list: &[&str]| list.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>();
        let ziplist = [
            &[39, 0, 0, 0, 34, 0, 0, 0, 7, 0][..],
            &[0, 2, b'a', b'b'],
            &[4, 0xf3],
            &[2, 0xfe, 0x80],
            &[3, 0xc0, 0x2c, 1],
            &[4, 0xf0, 0, 0, 0x80],
            &[5, 0xd0, 0xff, 0xff, 0xff, 0x7f],
            &[6, 0x40, 1, b'c'],
            &[END],
        ]
        .concat();
        let expected = texts(&["ab", "2", "-128", "300", "-8388608", "2147483647", "c"]);
        assert_eq!(read_ziplist(&ziplist).unwrap(), expected);
        let zipmap = [&[2, 1, b'a', 2, 0, b'1', b'2', 3][..], b"key", &[1, 2, b'v', 0, 0, END]];
        assert_eq!(read_zipmap(&zipmap.concat()).unwrap(), texts(&["a", "12", "key", "v"]));
        let intset = [2, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 5, 0];
        assert_eq!(read_intset(&intset).unwrap(), texts(&["-1", "5"]));
        for bytes in [&ziplist[..], &zipmap.concat(), &intset] {
            for cut in 0..bytes.len() {
                let short = &bytes[..cut];
                assert!(read_ziplist(short).is_err() && read_zipmap(short).is_err());
                assert!(read_intset(short).is_err());
            }
        }
    }
}
