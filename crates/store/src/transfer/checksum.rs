//! Checksums of keys that do not depend on the order in which a store gives elements.
//!
//! Each element (a field with its value, a member with its score, an element of a list with its
//! index …) is hashed to 128 bits, and the hashes of a key are added up. The sum of the keys of a
//! store is the same on both sides of a copy, however sets are ordered and wherever a large value is
//! cut. It is compared within one process only and is never stored.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    ops::AddAssign,
};

use foldhash::quality::FixedState;

use super::STRING_PIECE;

/// The sum over keys or elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u128);

impl AddAssign for Checksum {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Checksum {
    fn add(&mut self, kind: u8, parts: &[&[u8]]) {
        let half = |seed: u64| {
            let mut hasher = FixedState::with_seed(seed).build_hasher();
            hasher.write_u8(kind);
            for part in parts {
                hasher.write_usize(part.len());
                hasher.write(part);
            }
            hasher.finish()
        };
        let (high, low) = (half(0x7469_6465), half(0x6761_7465));
        self.0 = self.0.wrapping_add(u128::from(high) << 64 | u128::from(low));
    }
}

/// The checksum of one key, made from the commands that rebuild it, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySum {
    sum: Checksum,
    /// Bytes of the string, or elements of the list, so far.
    length: u64,
    /// Deadline of the key, in ms.
    pub(crate) expires_at: Option<i64>,
}

impl KeySum {
    /// The sum, which also counts the key itself.
    pub(crate) fn value(&self) -> Checksum {
        let mut sum = self.sum;
        sum.add(b'k', &[]);
        sum
    }

    pub(crate) fn add<T: AsRef<[u8]>>(&mut self, argv: &[T]) {
        let arg = |at: usize| argv.get(at).map(AsRef::as_ref).unwrap_or_default();
        let rest = |from: usize| argv.get(from..).unwrap_or_default();
        match arg(0) {
            b"SET" | b"APPEND" => {
                for piece in arg(2).chunks(STRING_PIECE) {
                    self.sum.add(b'v', &[&self.length.to_le_bytes(), piece]);
                    self.length += piece.len() as u64;
                }
            }
            b"HSET" => {
                for pair in rest(2).chunks_exact(2) {
                    self.pair(b'h', pair);
                }
            }
            b"HPEXPIREAT" => {
                for field in rest(5) {
                    self.sum.add(b'f', &[field.as_ref(), arg(2)]);
                }
            }
            b"RPUSH" => {
                for element in rest(2) {
                    self.sum.add(b'l', &[&self.length.to_le_bytes(), element.as_ref()]);
                    self.length += 1;
                }
            }
            b"SADD" => rest(2).iter().for_each(|member| self.sum.add(b's', &[member.as_ref()])),
            b"ZADD" => {
                let from = if arg(2) == b"PASTLIMITS" { 3 } else { 2 };
                for pair in rest(from).chunks_exact(2) {
                    if let [score, member] = pair {
                        self.sum.add(b'z', &[&score_bits(score.as_ref()), member.as_ref()]);
                    }
                }
            }
            // An entry that is trimmed at once: how an empty stream is made.
            b"XADD" if arg(2) == b"MAXLEN" => {}
            b"XADD" => {
                let parts: Vec<&[u8]> = rest(2).iter().map(AsRef::as_ref).collect();
                self.sum.add(b'e', &parts);
            }
            b"XSETID" => self.sum.add(b'i', &[arg(2), arg(4), arg(6)]),
            b"XGROUP" if arg(1) == b"CREATE" => self.sum.add(b'g', &[arg(3), arg(4), arg(6)]),
            b"XGROUP" => self.sum.add(b'c', &[arg(3), arg(4)]),
            // Consumer, entry and how often it was delivered. The time is not compared: a server tells
            // it as an age.
            b"XCLAIM" => self.sum.add(b'p', &[arg(2), arg(3), arg(5), arg(9)]),
            b"PEXPIREAT" => {
                self.sum.add(b't', &[arg(2)]);
                self.expires_at = std::str::from_utf8(arg(2)).ok().and_then(|ms| ms.parse().ok());
            }
            _ => {}
        }
    }

    fn pair<T: AsRef<[u8]>>(&mut self, kind: u8, pair: &[T]) {
        if let [one, other] = pair {
            self.sum.add(kind, &[one.as_ref(), other.as_ref()]);
        }
    }
}

/// A score as bits, so that `1` and `1.0` are the same; a store need not keep the sign of zero.
fn score_bits(text: &[u8]) -> [u8; 8] {
    let score = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    let score = score.unwrap_or(f64::NAN);
    (if score == 0.0 { 0.0f64 } else { score }).to_bits().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(commands: &[Vec<Vec<u8>>]) -> KeySum {
        let mut sum = KeySum::default();
        commands.iter().for_each(|argv| sum.add(argv));
        sum
    }

    fn sum(lines: &[&str]) -> Checksum {
        let commands: Vec<Vec<Vec<u8>>> = lines
            .iter()
            .map(|line| line.split(' ').map(|word| word.as_bytes().to_vec()).collect())
            .collect();
        of(&commands).value()
    }

    #[test]
    fn order_and_cuts_do_not_matter_where_the_store_gives_none() {
        assert_eq!(sum(&["SADD k a b c"]), sum(&["SADD k c", "SADD k b a"]));
        assert_eq!(sum(&["HSET k a 1 b 2"]), sum(&["HSET k b 2", "HSET k a 1"]));
        assert_eq!(sum(&["ZADD k 1 a 2 b"]), sum(&["ZADD k PASTLIMITS 2.0 b 1 a"]));
        assert_eq!(sum(&["RPUSH k a b c"]), sum(&["RPUSH k a", "RPUSH k b c"]));
        assert_eq!(
            sum(&["XCLAIM k g c 0 1-1 TIME 5 RETRYCOUNT 2 FORCE JUSTID"]),
            sum(&["XCLAIM k g c 0 1-1 IDLE 9 RETRYCOUNT 2 FORCE JUSTID"])
        );
    }

    #[test]
    fn every_difference_shows() {
        let all = [
            &["SET k a"][..],
            &["SET k b"],
            &["SET k"],
            &["RPUSH k a b"],
            &["RPUSH k b a"],
            &["SADD k a b"],
            &["SADD k ab"],
            &["HSET k a b"],
            &["HSET k b a"],
            &["ZADD k 1 a"],
            &["ZADD k 2 a"],
            &["SET k a", "PEXPIREAT k 1"],
            &["SET k a", "PEXPIREAT k 2"],
            &["XADD k 1-1 a b", "XSETID k 1-1 ENTRIESADDED 1 MAXDELETEDID 0-0"],
            &["XADD k 1-1 a b", "XSETID k 1-1 ENTRIESADDED 2 MAXDELETEDID 0-0"],
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(sum(one), sum(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_long_string_is_the_same_however_it_is_cut() {
        let long = vec![7u8; STRING_PIECE * 2 + 5];
        let set = |value: &[u8]| vec![b"SET".to_vec(), b"k".to_vec(), value.to_vec()];
        let append = |value: &[u8]| vec![b"APPEND".to_vec(), b"k".to_vec(), value.to_vec()];
        let whole = of(&[set(&long)]);
        let (head, tail) = long.split_at(STRING_PIECE);
        assert_eq!(of(&[set(head), append(tail)]).value(), whole.value());
    }
}
