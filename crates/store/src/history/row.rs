//! The bytes of one row: the values of all series at one moment.
//!
//! ```text
//! entry   varint (distance to the number before << 2 | form), then by form:
//!         0  varint, zigzag: a whole number
//!         1  4 bytes: a fraction, as f32
//!         2  8 bytes: a large fraction, as f64
//!         3  varint length, then pairs of varints: distance to the bucket before, count
//! ```
//!
//! Entries stand in the order of their numbers. A series that is not in the row has no value then, which
//! is not the same as 0. A row that breaks off or makes no sense ends there.

/// Most bytes that one number takes in a row.
pub const NUMBER_MAX_BYTES: usize = 11;

/// The value of a series at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SeriesValue {
    /// A number.
    Number(f64),
    /// Counts by bucket, in the order of the buckets, without those that are 0.
    Buckets(Vec<(u8, u64)>),
}

/// A value as it stands in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowValue<'a> {
    Number(f64),
    Buckets(&'a [u8]),
}

impl RowValue<'_> {
    pub(super) fn to_value(self) -> SeriesValue {
        match self {
            RowValue::Number(number) => SeriesValue::Number(number),
            RowValue::Buckets(mut bytes) => {
                let (mut buckets, mut bucket) = (Vec::new(), 0_u64);
                while let (Some(distance), Some(count)) =
                    (take_varint(&mut bytes), take_varint(&mut bytes))
                {
                    bucket = bucket.saturating_add(distance);
                    let Ok(number) = u8::try_from(bucket) else { break };
                    buckets.push((number, count));
                }
                SeriesValue::Buckets(buckets)
            }
        }
    }
}

/// Encodes a row. Entries must be in the order of their numbers, each number once.
pub(super) fn encode<'a>(entries: impl IntoIterator<Item = (u16, &'a SeriesValue)>) -> Vec<u8> {
    let (mut row, mut before) = (Vec::new(), 0);
    for (number, value) in entries {
        let distance = u64::from(number.saturating_sub(before));
        before = number;
        match value {
            SeriesValue::Number(value) => put_number(&mut row, distance, *value),
            SeriesValue::Buckets(buckets) => {
                put_varint(&mut row, distance << 2 | 3);
                let (mut pairs, mut last) = (Vec::new(), 0);
                for (bucket, count) in buckets {
                    put_varint(&mut pairs, u64::from(bucket.saturating_sub(last)));
                    put_varint(&mut pairs, (*count).min(u64::from(u32::MAX)));
                    last = *bucket;
                }
                put_varint(&mut row, pairs.len() as u64);
                row.extend(pairs);
            }
        }
    }
    row
}

/// Whole numbers up to this are exact in an `f64`.
const WHOLE_MOST: f64 = 9_007_199_254_740_992.0;
/// Fractions from here on would lose more than a chart can show as `f32`.
const FRACTION_MOST: f64 = 1_048_576.0;

fn put_number(row: &mut Vec<u8>, distance: u64, value: f64) {
    if value.fract() == 0.0 && value.abs() < WHOLE_MOST / 16.0 {
        put_varint(row, distance << 2);
        #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^49")]
        let whole = value as i64;
        put_varint(row, (whole.unsigned_abs() << 1) | u64::from(whole < 0));
    } else if value.abs() < FRACTION_MOST {
        put_varint(row, distance << 2 | 1);
        #[expect(clippy::cast_possible_truncation, reason = "a chart shows no more digits")]
        row.extend((value as f32).to_le_bytes());
    } else {
        put_varint(row, distance << 2 | 2);
        row.extend(value.to_le_bytes());
    }
}

/// The entries of a row, in order.
pub(super) struct RowEntries<'a> {
    bytes: &'a [u8],
    number: u64,
}

impl<'a> RowEntries<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> RowEntries<'a> {
        RowEntries { bytes, number: 0 }
    }
}

impl<'a> Iterator for RowEntries<'a> {
    type Item = (u16, RowValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let head = take_varint(&mut self.bytes)?;
        self.number = self.number.saturating_add(head >> 2);
        let number = u16::try_from(self.number).ok()?;
        let value = match head & 3 {
            0 => {
                let whole = take_varint(&mut self.bytes)?;
                #[expect(clippy::cast_precision_loss, reason = "written from an f64")]
                let size = (whole >> 1) as f64;
                RowValue::Number(if whole & 1 == 1 { -size } else { size })
            }
            1 => RowValue::Number(f32::from_le_bytes(self.take()?).into()),
            2 => RowValue::Number(f64::from_le_bytes(self.take()?)),
            _ => {
                let length = usize::try_from(take_varint(&mut self.bytes)?).ok()?;
                let (buckets, rest) = self.bytes.split_at_checked(length)?;
                self.bytes = rest;
                RowValue::Buckets(buckets)
            }
        };
        let sound = !matches!(value, RowValue::Number(number) if !number.is_finite());
        sound.then_some((number, value))
    }
}

impl RowEntries<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "seven bits")]
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(place * 7)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(row: &[u8]) -> Vec<(u16, SeriesValue)> {
        RowEntries::of(row).map(|(number, raw)| (number, raw.to_value())).collect()
    }

    #[test]
    fn numbers_come_back_and_a_zero_takes_two_bytes() {
        let values = [0.0, 1.0, -3.0, 0.5, 1e6 + 0.5, 8_500_000.25, 70_000_000_000.0, -0.25];
        let entries: Vec<(u16, SeriesValue)> = values
            .iter()
            .enumerate()
            .map(|(at, v)| (at as u16 * 9, SeriesValue::Number(*v)))
            .collect();
        let row = encode(entries.iter().map(|(number, value)| (*number, value)));
        assert_eq!(decode(&row), entries);
        assert_eq!(encode([(7, &SeriesValue::Number(0.0))]).len(), 2);
        for value in values.into_iter().chain([f64::MAX, f64::MIN_POSITIVE, 1e15, 1e16]) {
            let length = encode([(u16::MAX, &SeriesValue::Number(value))]).len();
            assert!(length <= NUMBER_MAX_BYTES, "{value} takes {length}");
        }
    }

    #[test]
    fn buckets_come_back() {
        let value = SeriesValue::Buckets(vec![(0, 1), (7, 300), (47, 70_000)]);
        assert_eq!(decode(&encode([(3, &value)])), [(3, value)]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }

        #[test]
        fn what_breaks_off_keeps_what_stands_before(cut in 0_usize..30) {
            let values: Vec<SeriesValue> = (0..10).map(|n| SeriesValue::Number(f64::from(n) + 0.5)).collect();
            let row = encode(values.iter().enumerate().map(|(at, value)| (at as u16, value)));
            let decoded = decode(&row[..cut.min(row.len())]);
            prop_assert_eq!(decoded.len(), cut.min(row.len()) / 5);
        }
    }
}
