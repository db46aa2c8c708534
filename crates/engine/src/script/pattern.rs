//! Lua 5.1's patterns, matched with a count of steps.
//!
//! The interpreter's own matcher cannot be interrupted, and a pattern like `(.-)(.-)(.-)b` on a
//! long string takes years. This one asks every so often whether to go on.

/// The reason why a match failed with an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Error {
    /// The pattern is wrong.
    Malformed(&'static str),
    /// The script was stopped.
    Stopped,
}

/// A match of a pattern: from, to (exclusive), and the captures.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PatternMatch {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) captures: Vec<Capture>,
}

/// A capture of `(…)`: bytes, or with `()` a position. One without its `)` is an error, but only
/// for those who look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
    Range(usize, usize),
    Position(usize),
    Unfinished,
}

const MAX_CAPTURES: usize = 32;
/// Quantifiers and captures within each other. The interpreter's own matcher has the same limit.
const MAX_DEPTH: usize = 200;
/// Steps between two questions whether to go on.
const STEPS: u64 = 50_000;

/// The first match of `pattern` in `subject` from position `init` (counted from 0) on. `stop` is
/// told how much work was done and says whether that was enough.
pub(super) fn find(
    subject: &[u8],
    pattern: &[u8],
    init: usize,
    stop: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<PatternMatch>, Error> {
    // A pattern is a C string.
    let end = memchr::memchr(0, pattern).unwrap_or(pattern.len());
    let pattern = pattern.get(..end).unwrap_or_default();
    let (pattern, anchored) = match pattern.strip_prefix(b"^") {
        Some(rest) => (rest, true),
        None => (pattern, false),
    };
    let mut matcher = Matcher { subject, pattern, captures: Vec::new(), depth: 0, steps: 0, stop };
    for from in init..=subject.len() {
        matcher.captures.clear();
        matcher.depth = 0;
        if let Some(to) = matcher.at(from, 0)? {
            let captures = matcher.captured();
            return Ok(Some(PatternMatch { from, to, captures }));
        }
        if anchored {
            break;
        }
    }
    Ok(None)
}

#[derive(Debug, Clone, Copy)]
struct OpenCapture {
    from: usize,
    length: Length,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    Unfinished,
    Position,
    Bytes(usize),
}

struct Matcher<'m> {
    subject: &'m [u8],
    pattern: &'m [u8],
    captures: Vec<OpenCapture>,
    depth: usize,
    steps: u64,
    stop: &'m mut dyn FnMut(u64) -> bool,
}

type Match = Result<Option<usize>, Error>;

impl Matcher<'_> {
    fn step(&mut self) -> Result<(), Error> {
        self.steps += 1;
        if self.steps >= STEPS {
            self.steps = 0;
            if (self.stop)(STEPS) {
                return Err(Error::Stopped);
            }
        }
        Ok(())
    }

    /// The byte of the pattern at `p`; 0 at its end.
    fn pat(&self, p: usize) -> u8 {
        self.pattern.get(p).copied().unwrap_or(0)
    }

    /// Matches the pattern from `p` on at `s`: where the match ends.
    fn at(&mut self, s: usize, p: usize) -> Match {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::Malformed("pattern too complex"));
        }
        let result = self.here(s, p);
        self.depth -= 1;
        result
    }

    fn here(&mut self, mut s: usize, mut p: usize) -> Match {
        loop {
            self.step()?;
            if p >= self.pattern.len() {
                return Ok(Some(s));
            }
            match (self.pat(p), self.pat(p + 1)) {
                (b'(', b')') => return self.open(s, p + 2, Length::Position),
                (b'(', _) => return self.open(s, p + 1, Length::Unfinished),
                (b')', _) => return self.close(s, p + 1),
                (b'$', 0) if p + 1 == self.pattern.len() => {
                    return Ok((s == self.subject.len()).then_some(s));
                }
                (b'%', b'b') => match self.balance(s, p + 2)? {
                    Some(after) => (s, p) = (after, p + 4),
                    None => return Ok(None),
                },
                (b'%', b'f') => {
                    p += 2;
                    if self.pat(p) != b'[' {
                        return Err(Error::Malformed("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(p)?;
                    let before = s.checked_sub(1).and_then(|s| self.subject.get(s)).copied();
                    let after = self.subject.get(s).copied().unwrap_or(0);
                    if self.in_set(before.unwrap_or(0), p, end - 1)
                        || !self.in_set(after, p, end - 1)
                    {
                        return Ok(None);
                    }
                    p = end;
                }
                (b'%', digit @ b'0'..=b'9') => match self.back(s, digit)? {
                    Some(after) => (s, p) = (after, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.class_end(p)?;
                    let fits = self.fits(s, p, end);
                    match self.pat(end) {
                        b'?' => {
                            if fits && let Some(after) = self.at(s + 1, end + 1)? {
                                return Ok(Some(after));
                            }
                            p = end + 1;
                        }
                        b'*' => return self.most(s, p, end),
                        b'+' if fits => return self.most(s + 1, p, end),
                        b'-' => return self.least(s, p, end),
                        b'+' => return Ok(None),
                        _ if fits => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Returns the end of the single class that begins at `p`.
    fn class_end(&self, p: usize) -> Result<usize, Error> {
        match self.pat(p) {
            b'%' => {
                if p + 1 >= self.pattern.len() {
                    return Err(Error::Malformed("malformed pattern (ends with '%')"));
                }
                Ok(p + 2)
            }
            b'[' => {
                let mut p = p + 1;
                if self.pat(p) == b'^' {
                    p += 1;
                }
                // A bracket that comes first is one of the set.
                loop {
                    if p >= self.pattern.len() {
                        return Err(Error::Malformed("malformed pattern (missing ']')"));
                    }
                    let byte = self.pat(p);
                    p += 1;
                    if byte == b'%' && p < self.pattern.len() {
                        p += 1;
                    }
                    if self.pat(p) == b']' {
                        return Ok(p + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Does the byte at `s` fit the single class from `p` to `end`?
    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(byte) = self.subject.get(s).copied() else { return false };
        match self.pat(p) {
            b'.' => true,
            b'%' => in_class(byte, self.pat(p + 1)),
            b'[' => self.in_set(byte, p, end - 1),
            wanted => wanted == byte,
        }
    }

    /// Is the byte in the set whose brackets are at `p` and `end`?
    fn in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let mut p = p + 1;
        let wanted = if self.pat(p) == b'^' {
            p += 1;
            false
        } else {
            true
        };
        while p < end {
            if self.pat(p) == b'%' {
                p += 1;
                if in_class(byte, self.pat(p)) {
                    return wanted;
                }
            } else if self.pat(p + 1) == b'-' && p + 2 < end {
                p += 2;
                if (self.pat(p - 2)..=self.pat(p)).contains(&byte) {
                    return wanted;
                }
            } else if self.pat(p) == byte {
                return wanted;
            }
            p += 1;
        }
        !wanted
    }

    /// `%bxy`
    fn balance(&mut self, s: usize, p: usize) -> Match {
        if p + 1 >= self.pattern.len() {
            return Err(Error::Malformed("unbalanced pattern"));
        }
        let (open, close) = (self.pat(p), self.pat(p + 1));
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut level = 1usize;
        for at in s + 1..self.subject.len() {
            self.step()?;
            let byte = self.subject.get(at).copied().unwrap_or(0);
            if byte == close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                level += 1;
            }
        }
        Ok(None)
    }

    /// As many as possible, then fewer.
    fn most(&mut self, s: usize, p: usize, end: usize) -> Match {
        let mut count = 0;
        while self.fits(s + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(after) = self.at(s + count, end + 1)? {
                return Ok(Some(after));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// As few as possible, then more.
    fn least(&mut self, mut s: usize, p: usize, end: usize) -> Match {
        loop {
            if let Some(after) = self.at(s, end + 1)? {
                return Ok(Some(after));
            }
            if !self.fits(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, length: Length) -> Match {
        if self.captures.len() >= MAX_CAPTURES {
            return Err(Error::Malformed("too many captures"));
        }
        let level = self.captures.len();
        self.captures.push(OpenCapture { from: s, length });
        let found = self.at(s, p)?;
        if found.is_none() {
            self.captures.truncate(level);
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Match {
        let Some(level) = self.captures.iter().rposition(|c| c.length == Length::Unfinished) else {
            return Err(Error::Malformed("invalid pattern capture"));
        };
        self.set_length(level, |from| Length::Bytes(s - from));
        let found = self.at(s, p)?;
        if found.is_none() {
            self.set_length(level, |_| Length::Unfinished);
        }
        Ok(found)
    }

    fn set_length(&mut self, level: usize, length: impl FnOnce(usize) -> Length) {
        if let Some(capture) = self.captures.get_mut(level) {
            capture.length = length(capture.from);
        }
    }

    /// `%1`: the same bytes again.
    fn back(&mut self, s: usize, digit: u8) -> Match {
        let capture = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = match capture.and_then(|n| self.captures.get(n)) {
            Some(capture) if capture.length != Length::Unfinished => *capture,
            _ => return Err(Error::Malformed("invalid capture index")),
        };
        // A position has no length; 5.1 compares with a negative one, which never fits.
        let Length::Bytes(length) = capture.length else { return Ok(None) };
        self.steps += length as u64 / 16;
        let again = self.subject.get(s..s + length);
        let first = self.subject.get(capture.from..capture.from + length);
        Ok((again.is_some() && again == first).then_some(s + length))
    }

    fn captured(&self) -> Vec<Capture> {
        self.captures
            .iter()
            .map(|capture| match capture.length {
                Length::Unfinished => Capture::Unfinished,
                Length::Position => Capture::Position(capture.from),
                Length::Bytes(n) => Capture::Range(capture.from, capture.from + n),
            })
            .collect()
    }
}

/// Is the byte of the class that `%class` stands for?
fn in_class(byte: u8, class: u8) -> bool {
    let found = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | 0x09..=0x0d),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    found != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(subject: &str, pattern: &str) -> Result<Option<(usize, usize, usize)>, Error> {
        let found = find(subject.as_bytes(), pattern.as_bytes(), 0, &mut |_| false)?;
        Ok(found.map(|found| (found.from, found.to, found.captures.len())))
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (subject, pattern, found) in [
            ("hello", "l+", Some((2, 4, 0))),
            ("hello", "^l", None),
            ("hello", "o$", Some((4, 5, 0))),
            ("key=val", "(%w+)=(%w+)", Some((0, 7, 2))),
            ("f(a(b)c)d", "%b()", Some((1, 8, 0))),
            ("THE (quick) fox", "%f[%a]%a+", Some((0, 3, 0))),
            ("abcabc", "(abc)%1", Some((0, 6, 1))),
            ("[x]", "[]]", Some((2, 3, 0))),
            ("a-b", "[a%-]+", Some((0, 2, 0))),
            ("xyz", "()", Some((0, 0, 1))),
            ("", "", Some((0, 0, 0))),
            ("aaa", "a-b", None),
        ] {
            assert_eq!(matched(subject, pattern), Ok(found), "{pattern}");
        }
    }

    #[test]
    fn wrong_patterns_are_told() {
        for (pattern, text) in [
            ("%", "malformed pattern (ends with '%')"),
            ("[a", "malformed pattern (missing ']')"),
            ("a)", "invalid pattern capture"),
            ("%1", "invalid capture index"),
            ("%b(", "unbalanced pattern"),
            ("%fa", "missing '[' after '%f' in pattern"),
        ] {
            assert_eq!(matched("aaa", pattern), Err(Error::Malformed(text)), "{pattern}");
        }
        assert_eq!(matched("a", &"()".repeat(33)), Err(Error::Malformed("too many captures")));
        let long = "a".repeat(500);
        let deep = matched(&long, &"a?".repeat(500));
        assert_eq!(deep, Err(Error::Malformed("pattern too complex")));
    }

    #[test]
    fn a_bomb_can_be_stopped() {
        let subject = "a".repeat(100_000);
        let mut asked = 0;
        let bomb = "(.-)(.-)(.-)(.-)b";
        let result = find(subject.as_bytes(), bomb.as_bytes(), 0, &mut |_| {
            asked += 1;
            asked == 10
        });
        assert_eq!(result, Err(Error::Stopped));
    }

    #[test]
    fn no_pattern_is_too_strange() {
        let pieces =
            ["%", "a", "[", "]", "^", "-", "*", "(", ")", "%b", "%f", ".", "%1", "$", "\0"];
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..50_000 {
            let pattern: String =
                (0..rng.usize(0..10)).filter_map(|_| rng.choice(pieces.iter()).copied()).collect();
            let _ = find(b"ab(a)-a]", pattern.as_bytes(), rng.usize(0..9), &mut |_| false);
        }
    }
}
