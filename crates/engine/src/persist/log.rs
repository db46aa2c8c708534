//! The frame of a record: what makes a torn or altered log noticed.
//!
//! ```text
//! length u32 | crc32c u32 | number u64 | payload (length bytes)
//! ```
//! Little endian. The checksum covers everything but itself. The two highest bits of the length
//! word are flags: `MORE`, the effects go on in the next record of the same number, and `MARK`, the
//! payload is no effect but the number of the last record known to have reached the disk.

/// Bytes of a record before its payload.
pub const HEADER: usize = 16;

/// The longest payload of one record; longer effects go on in the next.
pub const MOST: usize = 1 << 28;

const MORE: u32 = 1 << 31;
const MARK: u32 = 1 << 30;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Effects, the last part of them or all.
    Effects,
    /// Effects that go on in the next record.
    Part,
    /// Says up to which record the log was on disk when this was written.
    Mark,
}

/// The first record of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodedRecord<'a> {
    /// A record that is whole and true.
    Record {
        /// Its kind.
        kind: RecordKind,
        /// Its number.
        lsn: u64,
        /// Effects, or the number a mark tells.
        payload: &'a [u8],
        /// Bytes of the whole record.
        length: usize,
    },
    /// Nothing: the bytes are at their end.
    End,
    /// Not enough bytes yet to tell; so many are needed.
    Short(usize),
    /// Not a record.
    Bad(RecordFault),
}

/// The reason why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFault {
    /// The length is beyond what is ever written.
    Length,
    /// The checksum does not fit the content.
    Checksum,
}

/// Adds a record with these effects, or several if they are very long.
pub fn append_record(out: &mut Vec<u8>, lsn: u64, effects: &[u8]) {
    for (head, payload) in frames(lsn, effects) {
        out.reserve(HEADER + payload.len());
        out.extend_from_slice(&head);
        out.extend_from_slice(payload);
    }
}

/// The record with these effects, or several if they are very long: the bytes of each before its
/// payload, and the payload.
pub fn frames(lsn: u64, effects: &[u8]) -> impl Iterator<Item = ([u8; HEADER], &[u8])> {
    let mut rest = Some(effects);
    std::iter::from_fn(move || {
        let (part, after) = match rest?.split_at_checked(MOST) {
            Some((part, after)) if !after.is_empty() => (part, Some(after)),
            _ => (rest?, None),
        };
        rest = after;
        let flags = if rest.is_some() { MORE } else { 0 };
        Some((head(lsn, flags, part), part))
    })
}

/// Adds a mark: `synced` and all records before it are on disk. `lsn` is the last record's number.
pub fn append_mark(out: &mut Vec<u8>, lsn: u64, synced: u64) {
    let payload = synced.to_le_bytes();
    out.extend_from_slice(&head(lsn, MARK, &payload));
    out.extend_from_slice(&payload);
}

/// The bytes of a record before its payload.
fn head(lsn: u64, flags: u32, payload: &[u8]) -> [u8; HEADER] {
    // At most MOST, so it fits below the flags.
    let word = u32::try_from(payload.len()).unwrap_or(u32::MAX) | flags;
    let length = word.to_le_bytes();
    let number = lsn.to_le_bytes();
    let crc = checksum(&length, &number, payload).to_le_bytes();
    let mut head = [0; HEADER];
    let bytes = length.into_iter().chain(crc).chain(number);
    head.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    head
}

fn checksum(head: &[u8], number: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(head);
    let crc = crc32c::crc32c_append(crc, number);
    crc32c::crc32c_append(crc, payload)
}

/// Reads the record at the beginning of `bytes`.
pub fn decode(bytes: &[u8]) -> DecodedRecord<'_> {
    if bytes.is_empty() {
        return DecodedRecord::End;
    }
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return DecodedRecord::Short(HEADER);
    };
    let Some((crc, rest)) = rest.split_first_chunk::<4>() else {
        return DecodedRecord::Short(HEADER);
    };
    let Some((number, rest)) = rest.split_first_chunk::<8>() else {
        return DecodedRecord::Short(HEADER);
    };
    let word = u32::from_le_bytes(*head);
    let length = (word & !(MORE | MARK)) as usize;
    if length > MOST {
        return DecodedRecord::Bad(RecordFault::Length);
    }
    let Some(payload) = rest.get(..length) else { return DecodedRecord::Short(HEADER + length) };
    if checksum(head, number, payload) != u32::from_le_bytes(*crc) {
        return DecodedRecord::Bad(RecordFault::Checksum);
    }
    let kind = match word & (MORE | MARK) {
        0 => RecordKind::Effects,
        MORE => RecordKind::Part,
        _ => RecordKind::Mark,
    };
    DecodedRecord::Record {
        kind,
        lsn: u64::from_le_bytes(*number),
        payload,
        length: HEADER + length,
    }
}

/// Looks for a true record numbered above `after` anywhere in `bytes`: where it starts. Tells a
/// log that is damaged in the middle from one that just ends early.
pub fn resync(bytes: &[u8], after: u64) -> Option<usize> {
    // A log that has n bytes left holds at most n / HEADER records more.
    let most = after.saturating_add((bytes.len() / HEADER) as u64).saturating_add(1);
    (0..bytes.len().saturating_sub(HEADER - 1)).find(|at| {
        let Some(rest) = bytes.get(*at..) else { return false };
        let plausible = rest
            .get(8..16)
            .and_then(|number| number.try_into().ok())
            .map(u64::from_le_bytes)
            .is_some_and(|number| number > after && number <= most);
        plausible && matches!(decode(rest), DecodedRecord::Record { .. })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let mut log = Vec::new();
        append_record(&mut log, 7, b"effects");
        append_mark(&mut log, 7, 6);
        let DecodedRecord::Record {
            kind: RecordKind::Effects,
            lsn: 7,
            payload: b"effects",
            length,
        } = decode(&log)
        else {
            panic!("{:?}", decode(&log))
        };
        let rest = &log[length..];
        let mark = 6u64.to_le_bytes();
        assert_eq!(
            decode(rest),
            DecodedRecord::Record {
                kind: RecordKind::Mark,
                lsn: 7,
                payload: &mark,
                length: rest.len()
            }
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut log = Vec::new();
        append_record(&mut log, 1, b"some effects of a command");
        for bit in 0..log.len() * 8 {
            let mut flipped = log.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&flipped), DecodedRecord::Record { .. }), "bit {bit}");
        }
    }

    #[test]
    fn every_cut_is_short() {
        let mut log = Vec::new();
        append_record(&mut log, 1, b"some effects");
        assert_eq!(decode(&[]), DecodedRecord::End);
        for end in 1..log.len() {
            assert!(matches!(decode(&log[..end]), DecodedRecord::Short(n) if n > end), "{end}");
        }
    }

    #[test]
    fn a_later_record_is_found_behind_garbage() {
        let mut log = vec![0xAB; 37];
        assert_eq!(resync(&log, 4), None);
        append_record(&mut log, 5, b"x");
        assert_eq!(resync(&log, 4), Some(37));
        assert_eq!(resync(&log, 5), None, "older than what is known already");
    }
}
