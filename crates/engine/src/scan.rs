//! The SCAN family: reading `MATCH`, `COUNT`, `TYPE`; and the pattern language.

use crate::command::Ctx;
use crate::error::{Error, NOT_INTEGER, SYNTAX};
use crate::{Reply, args, number};

/// The arguments of SCAN, HSCAN, SSCAN and ZSCAN.
#[derive(Debug)]
pub(crate) struct ScanRequest<'a> {
    /// Cursor; 0 at the start.
    pub(crate) cursor: u64,
    /// About how many entries to look at.
    pub(crate) count: usize,
    /// Report only what matches.
    pub(crate) pattern: Option<&'a [u8]>,
    /// Report only keys of this type (SCAN alone).
    pub(crate) type_name: Option<&'a [u8]>,
    /// Report fields without their values, or members without their scores (HSCAN and ZSCAN alone).
    pub(crate) no_values: bool,
}

impl<'a> ScanRequest<'a> {
    /// Reads the cursor, which is argument `at`, and the options after it. `TYPE` is an option
    /// of SCAN itself, where the cursor is argument 1.
    pub(crate) fn read(ctx: &Ctx<'a>, at: usize) -> Result<ScanRequest<'a>, Error> {
        let cursor = cursor(ctx.arg(at))?;
        let mut scan =
            ScanRequest { cursor, count: 10, pattern: None, type_name: None, no_values: false };
        let mut options = ctx.argv.get(at + 1..).unwrap_or_default().iter();
        while let Some(word) = options.next() {
            if (args::is(word, "NOVALUES") && args::is(ctx.arg(0), "HSCAN"))
                || (args::is(word, "NOSCORES") && args::is(ctx.arg(0), "ZSCAN"))
            {
                scan.no_values = true;
                continue;
            }
            let value = options.next();
            match value {
                Some(value) if args::is(word, "COUNT") => {
                    let count = number::parse_i64(value).ok_or(NOT_INTEGER)?;
                    if count < 1 {
                        return Err(SYNTAX);
                    }
                    scan.count = usize::try_from(count).unwrap_or(usize::MAX);
                }
                Some(value) if args::is(word, "MATCH") => {
                    scan.pattern = (**value != *b"*").then_some(*value);
                }
                Some(value) if at == 1 && args::is(word, "TYPE") => {
                    scan.type_name = Some(*value);
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(scan)
    }

    /// Does `name` match, or is no pattern given?
    pub(crate) fn fits(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| matches(pattern, name, false))
    }

    /// The answer: the next cursor and what was found.
    pub(crate) fn reply(next: u64, found: Vec<Reply>) -> Reply {
        Reply::Array(vec![Reply::Bulk(next.to_string().into_bytes()), Reply::Array(found)])
    }
}

/// A cursor as a client gives it.
pub(crate) fn cursor(bytes: &[u8]) -> Result<u64, Error> {
    // `strtoul` reads a sign, and turns the number around for a minus.
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        _ => (false, bytes),
    };
    let cursor = number::parse_u64(digits).ok_or(Error::fixed("ERR invalid cursor"))?;
    Ok(if negative { cursor.wrapping_neg() } else { cursor })
}

/// Most stars of a pattern, with something behind each.
const STARS_MAX: usize = 1_000;

/// Does `text` match the glob `pattern` (`*`, `?`, `[a-z]`, `[^a]`, `\x`)?
///
/// Takes no more than pattern × text steps: a star is only ever tried again where the text goes
/// on, so no chain of stars can make it slow. As in Redis, which gives up at this depth, nothing
/// matches behind more than a thousand stars.
pub(crate) fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        // Not even `*` matches nothing: so it is in Redis.
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // Where to go back to: behind the last star, and the text it would take next.
    let mut star: Option<(usize, usize)> = None;
    let mut stars = 0;
    loop {
        let step = match pattern.get(p) {
            Some(b'*') => {
                while pattern.get(p + 1) == Some(&b'*') {
                    p += 1;
                }
                p += 1;
                stars += usize::from(p < pattern.len());
                if stars > STARS_MAX {
                    return false;
                }
                star = Some((p, t));
                continue;
            }
            None if t == text.len() => return true,
            None => None,
            Some(_) => match text.get(t) {
                None => return false,
                Some(byte) => one(pattern, p, *byte, ignore_case),
            },
        };
        match (step, star) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after, from))) if from < text.len() => {
                p = after;
                t = from + 1;
                star = Some((after, t));
            }
            _ => return false,
        }
    }
}

/// Matches one byte against the pattern at `p`; gives the place behind what matched.
fn one(pattern: &[u8], p: usize, byte: u8, ignore_case: bool) -> Option<usize> {
    let fold = |b: u8| if ignore_case { b.to_ascii_lowercase() } else { b };
    match pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let (fits, next) = class(pattern, p + 1, byte, ignore_case);
            fits.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => {
            (fold(*pattern.get(p + 1)?) == fold(byte)).then_some(p + 2)
        }
        literal => (fold(*literal) == fold(byte)).then_some(p + 1),
    }
}

/// Matches one byte against a class whose content starts at `p`; gives the place behind it. A
/// class that is not closed ends with the pattern.
fn class(pattern: &[u8], mut p: usize, byte: u8, ignore_case: bool) -> (bool, usize) {
    let fold = |b: u8| if ignore_case { b.to_ascii_lowercase() } else { b };
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut found = false;
    loop {
        match (pattern.get(p), pattern.get(p + 1), pattern.get(p + 2)) {
            (None, ..) => return (found != negated, p),
            (Some(b'\\'), Some(escaped), _) => {
                found |= *escaped == byte;
                p += 2;
            }
            (Some(b']'), ..) => return (found != negated, p + 1),
            (Some(low), Some(b'-'), Some(high)) => {
                let (low, high) = if low > high { (high, low) } else { (low, high) };
                let (low, high) = (fold(*low), fold(*high));
                found |= (low..=high).contains(&fold(byte));
                p += 3;
            }
            (Some(literal), ..) => {
                found |= fold(*literal) == fold(byte);
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_matches_behind_more_than_a_thousand_stars() {
        let text = vec![b'a'; 2_000];
        assert!(matches(&b"*?".repeat(1_000), &text, false));
        assert!(!matches(&b"*?".repeat(1_001), &text, false));
        assert!(matches(&[b"*?".repeat(1_000), b"**".to_vec()].concat(), &text, false));
        assert!(matches(&b"*".repeat(5_000), &text, false));
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", false),
            ("a*", "a", true),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("a\\", "a\\", true),
            ("*a*b*c", "xaybzc", true),
            ("*a*b*c", "xaybzcd", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern}");
        }
        assert!(matches(b"MAX*", b"maxmemory", true));
    }

    #[test]
    fn many_stars_stay_quick() {
        let text = [b'a'; 100_000];
        assert!(!matches(b"a*a*a*a*a*a*a*a*a*b", &text, false));
    }
}
