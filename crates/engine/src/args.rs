//! Reading arguments: integers, floats, options, with the errors Redis gives.

use crate::error::{Error, NOT_FLOAT, NOT_INTEGER};
use crate::number;

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

/// A float, `inf` included, `nan` not.
pub(crate) fn float(bytes: &[u8]) -> Result<f64, Error> {
    number::parse_f64(bytes).ok_or(NOT_FLOAT)
}

/// Is this option word `word` (given in capitals)?
pub(crate) fn is(bytes: &[u8], word: &str) -> bool {
    bytes.eq_ignore_ascii_case(word.as_bytes())
}
