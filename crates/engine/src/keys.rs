//! Key extraction: the arguments of a command that are keys, and the cluster slot of a key.

use smallvec::SmallVec;

use crate::args;
use crate::command::{CommandSpec, MOVABLE_KEYS};
use crate::number::parse_i64;

/// Positions of arguments that are keys.
pub(crate) type Positions = SmallVec<[usize; 8]>;

/// The positions of the keys of a command. None if the arguments make no sense (a number of keys
/// that is none, or too large).
pub(crate) fn positions(command: &CommandSpec, argv: &[&[u8]]) -> Option<Positions> {
    if command.flags & MOVABLE_KEYS == 0 {
        return Some(range(command.keys, argv.len()));
    }
    match command.name {
        "zunionstore" | "zinterstore" | "zdiffstore" => counted(argv, 2, Some(1)),
        "zunion" | "zinter" | "zdiff" | "zintercard" | "sintercard" | "lmpop" | "zmpop" => {
            counted(argv, 1, None)
        }
        "eval" | "eval_ro" | "evalsha" | "evalsha_ro" | "fcall" | "fcall_ro" | "blmpop"
        | "bzmpop" => counted(argv, 2, None),
        "xread" | "xreadgroup" => streams(argv),
        "sort" => Some(sort(argv)),
        "georadius" | "georadiusbymember" => Some(georadius(argv)),
        "migrate" => Some(migrate(argv)),
        _ => Some(range(command.keys, argv.len())),
    }
}

/// The keys from the first to the last at a fixed step; a negative last counts from the end.
fn range((first, last, step): (i32, i32, i32), count: usize) -> Positions {
    let (Ok(first), Ok(step)) = (usize::try_from(first), usize::try_from(step)) else {
        return Positions::new();
    };
    if first == 0 || step == 0 {
        return Positions::new();
    }
    let last = match usize::try_from(last) {
        Ok(last) => last.min(count.saturating_sub(1)),
        Err(_) => count.saturating_sub(last.unsigned_abs() as usize),
    };
    (first..=last).step_by(step).collect()
}

/// A number of keys at `number_at`, the keys behind it, and perhaps one key before.
fn counted(argv: &[&[u8]], number_at: usize, before: Option<usize>) -> Option<Positions> {
    let number = parse_i64(argv.get(number_at)?)?;
    let number = usize::try_from(number).ok()?;
    let first = number_at + 1;
    if number > argv.len().saturating_sub(first) {
        return None;
    }
    Some(before.into_iter().chain(first..first + number).collect())
}

/// `… STREAMS key key id id`
fn streams(argv: &[&[u8]]) -> Option<Positions> {
    let mut at = 1;
    while let Some(word) = argv.get(at) {
        if args::is(word, "STREAMS") {
            let rest = argv.len() - at - 1;
            return (rest > 0 && rest.is_multiple_of(2))
                .then(|| (at + 1..at + 1 + rest / 2).collect());
        }
        at += match () {
            () if args::is(word, "BLOCK") || args::is(word, "COUNT") => 2,
            () if args::is(word, "GROUP") => 3,
            () if args::is(word, "NOACK") => 1,
            () => return None,
        };
    }
    None
}

fn sort(argv: &[&[u8]]) -> Positions {
    let mut found: Positions = SmallVec::from_slice(&[1]);
    let mut at = 2;
    while let Some(word) = argv.get(at) {
        match () {
            () if args::is(word, "LIMIT") => at += 2,
            () if args::is(word, "GET") || args::is(word, "BY") => at += 1,
            // The last one counts.
            () if args::is(word, "STORE") && at + 1 < argv.len() => {
                found.truncate(1);
                found.push(at + 1);
                at += 1;
            }
            () => {}
        }
        at += 1;
    }
    found
}

fn georadius(argv: &[&[u8]]) -> Positions {
    let after = |option: &str| {
        let words = argv.get(..argv.len().saturating_sub(1)).unwrap_or_default();
        words.iter().skip(5).position(|word| args::is(word, option)).map(|found| found + 6)
    };
    std::iter::once(1).chain(after("STORE")).chain(after("STOREDIST")).collect()
}

fn migrate(argv: &[&[u8]]) -> Positions {
    let mut at = 6;
    while let Some(word) = argv.get(at) {
        at += match () {
            () if args::is(word, "KEYS") => {
                return match argv.get(3) {
                    Some([]) => (at + 1..argv.len()).collect(),
                    _ => Positions::new(),
                };
            }
            () if args::is(word, "AUTH") => 2,
            () if args::is(word, "AUTH2") => 3,
            () => 1,
        };
    }
    SmallVec::from_slice(&[3])
}

/// The cluster slot of a key: of what stands between the first `{` and the next `}`, unless that
/// is nothing, else of the whole key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = memchr::memchr(b'{', key).and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = memchr::memchr(b'}', rest)?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % 16384
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{foo}.bar"), 12182);
        assert_eq!(slot(b"x{foo}{bar}"), 12182);
        assert_eq!(slot(b"{}foo"), slot(b"{}foo"));
        assert_ne!(slot(b"{}foo"), slot(b"{}bar"));
    }
}
