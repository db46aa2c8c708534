//! The parts that values in Redis's format are made of: lengths, strings, checksum.

use crate::number;

/// The version of the format that Redis 7.0 writes.
const VERSION: u16 = 10;
/// The version that Redis 7.4 writes, where fields of hashes may have deadlines.
pub(super) const VERSION_7_4: u16 = 12;
/// Version and checksum at the end.
const FOOTER: usize = 10;

/// A payload that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadFormat;

/// Adds version and checksum to a payload.
pub(crate) fn seal(payload: Vec<u8>) -> Vec<u8> {
    seal_as(VERSION, payload)
}

/// As [`seal`], for a form that only this version knows.
pub(super) fn seal_as(version: u16, mut payload: Vec<u8>) -> Vec<u8> {
    payload.extend(version.to_le_bytes());
    let checksum = crc64(&payload);
    payload.extend(checksum.to_le_bytes());
    payload
}

/// The payload without version and checksum, if both are right.
pub(crate) fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (covered, checksum) = bytes.split_last_chunk::<8>()?;
    let (payload, version) = covered.split_last_chunk::<2>()?;
    let right = u16::from_le_bytes(*version) <= VERSION_7_4 && bytes.len() >= FOOTER;
    (right && crc64(covered) == u64::from_le_bytes(*checksum)).then_some(payload)
}

/// CRC-64 of Jones: reflected, without a first or last inversion.
fn crc64(bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = {
        let (mut table, mut n) = ([0; 256], 0);
        while n < 256 {
            let (mut crc, mut bit) = (n as u64, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 };
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| {
        let row = TABLE.get(usize::from(crc as u8 ^ byte)).copied().unwrap_or(0);
        row ^ crc >> 8
    })
}

/// Adds a length.
pub(super) fn push_len(out: &mut Vec<u8>, len: u64) {
    match len {
        0..64 => out.push(len as u8),
        64..16384 => out.extend([0x40 | (len >> 8) as u8, len as u8]),
        16384..=0xffff_ffff => {
            out.push(0x80);
            out.extend((len as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend(len.to_be_bytes());
        }
    }
}

/// Adds a string, short integers in their binary form.
pub(crate) fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.len() <= 11
        && let Some(n) = number::parse_i64(bytes)
    {
        if let Ok(n) = i8::try_from(n) {
            return out.extend([0xc0, n as u8]);
        }
        if let Ok(n) = i16::try_from(n) {
            out.push(0xc1);
            return out.extend(n.to_le_bytes());
        }
        if let Ok(n) = i32::try_from(n) {
            out.push(0xc2);
            return out.extend(n.to_le_bytes());
        }
    }
    push_len(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a payload from the front.
#[derive(Debug)]
pub(crate) struct PayloadReader<'a> {
    rest: &'a [u8],
}

/// A length, or the number of a special form of a string.
enum Len {
    Plain(u64),
    Special(u8),
}

impl<'a> PayloadReader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> PayloadReader<'a> {
        PayloadReader { rest: payload }
    }

    /// Is everything read?
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BadFormat> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(BadFormat)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFormat> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(BadFormat)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, BadFormat> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn len_or_special(&mut self) -> Result<Len, BadFormat> {
        let first = self.byte()?;
        Ok(match (first >> 6, first) {
            (0, _) => Len::Plain(u64::from(first)),
            (1, _) => Len::Plain(u64::from(first & 63) << 8 | u64::from(self.byte()?)),
            (3, _) => Len::Special(first & 63),
            (_, 0x80) => Len::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            (_, 0x81) => Len::Plain(u64::from_be_bytes(self.array()?)),
            _ => return Err(BadFormat),
        })
    }

    /// A length.
    pub(super) fn len(&mut self) -> Result<u64, BadFormat> {
        match self.len_or_special()? {
            Len::Plain(len) => Ok(len),
            Len::Special(_) => Err(BadFormat),
        }
    }

    /// Reads the number of items that follow, each of at least one byte.
    pub(super) fn count(&mut self) -> Result<usize, BadFormat> {
        let count = self.len()?;
        usize::try_from(count).ok().filter(|count| *count <= self.rest.len()).ok_or(BadFormat)
    }

    /// A string of any form.
    pub(crate) fn string(&mut self) -> Result<Vec<u8>, BadFormat> {
        match self.len_or_special()? {
            Len::Plain(len) => {
                let len = usize::try_from(len).map_err(|_| BadFormat)?;
                self.take(len).map(<[u8]>::to_vec)
            }
            Len::Special(0) => Ok(number::format_i64(i64::from(self.byte()? as i8))),
            Len::Special(1) => Ok(number::format_i64(i64::from(i16::from_le_bytes(self.array()?)))),
            Len::Special(2) => Ok(number::format_i64(i64::from(i32::from_le_bytes(self.array()?)))),
            Len::Special(3) => {
                let (packed, len) = (self.count()?, self.len()?);
                let packed = self.take(packed)?;
                let len = usize::try_from(len).map_err(|_| BadFormat)?;
                decompress(packed, len)
            }
            Len::Special(_) => Err(BadFormat),
        }
    }

    /// A score as eight bytes.
    pub(super) fn double(&mut self) -> Result<f64, BadFormat> {
        Ok(f64::from_le_bytes(self.array()?)).and_then(a_number)
    }

    /// A score as text behind its length, as old versions wrote it.
    pub(super) fn text_double(&mut self) -> Result<f64, BadFormat> {
        match self.byte()? {
            253 => Err(BadFormat),
            254 => Ok(f64::INFINITY),
            255 => Ok(f64::NEG_INFINITY),
            len => {
                let text = self.take(usize::from(len))?;
                number::parse_f64(text).ok_or(BadFormat).and_then(a_number)
            }
        }
    }
}

fn a_number(score: f64) -> Result<f64, BadFormat> {
    if score.is_nan() { Err(BadFormat) } else { Ok(score) }
}

/// Undoes LZF: runs of up to 32 bytes as they are, and references to up to 264 bytes not further
/// back than 8192.
fn decompress(packed: &[u8], len: usize) -> Result<Vec<u8>, BadFormat> {
    // Three bytes become 264 at the most.
    if len > packed.len().saturating_mul(100) {
        return Err(BadFormat);
    }
    let mut out = Vec::with_capacity(len);
    let mut reader = PayloadReader::new(packed);
    while !reader.is_empty() {
        let control = usize::from(reader.byte()?);
        if control < 32 {
            out.extend_from_slice(reader.take(control + 1)?);
            continue;
        }
        let mut count = control >> 5;
        if count == 7 {
            count += usize::from(reader.byte()?);
        }
        let back = ((control & 31) << 8 | usize::from(reader.byte()?)) + 1;
        let from = out.len().checked_sub(back).ok_or(BadFormat)?;
        // It may reach into what it makes itself.
        for from in from..from + count + 2 {
            out.push(out.get(from).copied().ok_or(BadFormat)?);
        }
        if out.len() > len {
            return Err(BadFormat);
        }
    }
    if out.len() == len { Ok(out) } else { Err(BadFormat) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn strings_come_back_whatever_their_form() {
        for text in ["", "0", "-1", "127", "-129", "32768", "-2147483649", "12345678901", "007"] {
            let mut out = Vec::new();
            push_string(&mut out, text.as_bytes());
            let mut reader = PayloadReader::new(&out);
            assert_eq!(reader.string().unwrap(), text.as_bytes());
            assert!(reader.is_empty());
        }
        for len in [63, 64, 16383, 16384, 70000] {
            let mut out = Vec::new();
            push_string(&mut out, &vec![b'x'; len]);
            assert_eq!(PayloadReader::new(&out).string().unwrap().len(), len);
        }
    }

    #[test]
    fn a_compressed_string_comes_back() {
        // "a", then 9 times what stands one back.
        assert_eq!(decompress(&[0, b'a', 0xe0, 0, 0], 10).unwrap(), b"aaaaaaaaaa");
        assert_eq!(decompress(&[0, b'a', 0xe0, 0, 0], 9), Err(BadFormat));
        assert_eq!(decompress(&[0, b'a', 0xe0, 0, 5], 10), Err(BadFormat));
    }
}
