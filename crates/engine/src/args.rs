//! Reading arguments: integers, floats, options, with the errors Redis gives.

use crate::Now;
use crate::error::{Error, NOT_FLOAT, NOT_INTEGER, NOT_POSITIVE, SYNTAX};
use crate::number::{self, LongDouble};

/// A signed 64-bit integer written the one way Redis accepts: no spaces, plus or leading zeros.
pub(crate) fn int(bytes: &[u8]) -> Result<i64, Error> {
    number::parse_i64(bytes).ok_or(NOT_INTEGER)
}

/// An integer between two bounds.
pub(crate) fn int_in(bytes: &[u8], least: i64, most: i64) -> Result<i64, Error> {
    let n = int(bytes)?;
    if (least..=most).contains(&n) {
        return Ok(n);
    }
    Err(Error::new(format!("ERR value is out of range, value must between {least} and {most}")))
}

/// An integer from 0 on (`COUNT` and the like): `value is out of range, must be positive`.
pub(crate) fn positive(bytes: &[u8]) -> Result<i64, Error> {
    number::parse_i64(bytes).filter(|n| *n >= 0).ok_or(NOT_POSITIVE)
}

/// A float, `inf` included, `nan` not.
pub(crate) fn float(bytes: &[u8]) -> Result<f64, Error> {
    number::parse_f64(bytes).ok_or(NOT_FLOAT)
}

/// Is this option word `word` (given in capitals)?
pub(crate) fn is(bytes: &[u8], word: &str) -> bool {
    bytes.eq_ignore_ascii_case(word.as_bytes())
}

/// Returns the deadline of a wait, from a timeout in seconds, fractions allowed (BLPOP and its
/// kin). None is for ever.
pub(crate) fn timeout(now: Now, bytes: &[u8]) -> Result<Option<i64>, Error> {
    let seconds = LongDouble::parse(bytes)
        .ok_or(Error::fixed("ERR timeout is not a float or out of range"))?;
    // What does not fit wraps to the smallest integer, as the hardware does it.
    until(now, seconds.thousandfold_ceil().unwrap_or(i64::MIN))
}

/// Returns the deadline of a wait, from a timeout in whole milliseconds (XREAD BLOCK).
pub(crate) fn timeout_ms(now: Now, bytes: &[u8]) -> Result<Option<i64>, Error> {
    let ms = number::parse_i64(bytes)
        .ok_or(Error::fixed("ERR timeout is not an integer or out of range"))?;
    until(now, ms)
}

fn until(now: Now, ms: i64) -> Result<Option<i64>, Error> {
    match ms {
        ..0 => Err(Error::fixed("ERR timeout is negative")),
        0 => Ok(None),
        _ => Ok(Some(now.ms().saturating_add(ms))),
    }
}

/// A cursor over arguments, for commands with options.
///
/// ```ignore
/// let mut args = Args::from(ctx.argv, 3);
/// while let Some(word) = args.next() {
///     match () {
///         () if args::is(word, "COUNT") => count = args.int()?,
///         () => return Err(SYNTAX),
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub(crate) struct Args<'a> {
    argv: &'a [&'a [u8]],
    at: usize,
}

impl<'a> Args<'a> {
    /// From argument `at` on.
    pub(crate) fn from(argv: &'a [&'a [u8]], at: usize) -> Args<'a> {
        Args { argv, at }
    }

    /// The next argument, left where it is.
    pub(crate) fn peek(&self) -> Option<&'a [u8]> {
        self.argv.get(self.at).copied()
    }

    /// Number of arguments left.
    pub(crate) fn left(&self) -> usize {
        self.argv.len().saturating_sub(self.at)
    }

    /// The next argument; a syntax error if there is none.
    pub(crate) fn need(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or(SYNTAX)
    }

    /// The next argument as an integer.
    pub(crate) fn int(&mut self) -> Result<i64, Error> {
        int(self.need()?)
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.peek()?;
        self.at += 1;
        Some(argument)
    }
}
