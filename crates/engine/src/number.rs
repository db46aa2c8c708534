//! Numbers as Redis reads and prints them: canonical integers, `strtod`, `%.17g`, and the 80-bit
//! long double that INCRBYFLOAT and HINCRBYFLOAT compute with.

use crate::extra::long_double;
pub(crate) use crate::extra::long_double::LongDouble;

/// A signed 64-bit integer in its one canonical form.
pub(crate) fn parse_i64(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits stay below 10^19, which fits.
        value = value * 10 + u64::from(digit);
    }
    match (negative, value) {
        (false, value) => i64::try_from(value).ok(),
        (true, value) => 0i64.checked_sub_unsigned(value),
    }
}

/// An unsigned 64-bit integer as `strtoull` of digits alone reads it.
pub(crate) fn parse_u64(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A float as `strtod` reads it (decimal, hexadecimal, `inf`), without `nan`, without anything
/// left over, and without what overflows or vanishes.
pub(crate) fn parse_f64(bytes: &[u8]) -> Option<f64> {
    // Plain integers are most of what comes, and are exact.
    if bytes.len() <= 15
        && let Some(n) = parse_i64(bytes)
    {
        return Some(n as f64);
    }
    let (negative, unsigned) = strip_sign(bytes);
    let value = match literal(unsigned)? {
        Literal::Infinite => f64::INFINITY,
        Literal::Hex(digits) => digits.to_f64()?,
        Literal::Decimal(text) => {
            let value: f64 = text.parse().ok()?;
            let zero = !mantissa_digits(text).any(|digit| digit != b'0');
            if value.is_infinite() || (value == 0.0 && !zero) {
                return None;
            }
            value
        }
    };
    Some(if negative { -value } else { value })
}

/// Decimal digits of an integer.
pub(crate) fn format_i64(value: i64) -> Vec<u8> {
    itoa::Buffer::new().format(value).as_bytes().to_vec()
}

/// A float as `%.17g` prints it; infinities are `inf` and `-inf`.
pub fn format_f64(value: f64) -> Vec<u8> {
    // Integers below 10^17 have at most 17 digits: printed whole.
    if value.fract() == 0.0 && value.abs() < 1e15 && !(value == 0.0 && value.is_sign_negative()) {
        return format_i64(value as i64);
    }
    format_g(value, 17)
}

/// A float as `%.{precision}g` prints it. `nan` and `inf` keep their sign, as in C.
pub fn format_g(value: f64, precision: usize) -> Vec<u8> {
    if value.is_nan() {
        return if value.is_sign_negative() { b"-nan".to_vec() } else { b"nan".to_vec() };
    }
    if value.is_infinite() {
        return if value < 0.0 { b"-inf".to_vec() } else { b"inf".to_vec() };
    }
    let precision = precision.max(1);
    let scientific = format!("{value:.*e}", precision - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.into_bytes();
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let significant = digits.iter().rposition(|d| *d != b'0').map_or(1, |last| last + 1);
    let digits = digits.get(..significant).unwrap_or(&digits);
    let mut out = sign.as_bytes().to_vec();
    let places = i32::try_from(precision).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= places {
        let (first, rest) = digits.split_at(1);
        out.extend_from_slice(first);
        if !rest.is_empty() {
            out.push(b'.');
            out.extend_from_slice(rest);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("e{sign}{:02}", exponent.unsigned_abs()).as_bytes());
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        for place in 0..whole {
            out.push(digits.get(place).copied().unwrap_or(b'0'));
        }
        if let Some(rest) = digits.get(whole..).filter(|rest| !rest.is_empty()) {
            out.push(b'.');
            out.extend_from_slice(rest);
        }
    }
    out
}

pub(crate) fn strip_sign(bytes: &[u8]) -> (bool, &[u8]) {
    match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, bytes),
    }
}

/// A literal as `strtod` reads it, without its sign.
pub(crate) enum Literal<'a> {
    Infinite,
    Hex(Hex),
    Decimal(&'a str),
}

/// A hexadecimal float: `mantissa × 2^exponent`, with a mark for nonzero digits cut off.
pub(crate) struct Hex {
    pub(crate) mantissa: u128,
    pub(crate) exponent: i64,
    pub(crate) sticky: bool,
}

pub(crate) fn literal(unsigned: &[u8]) -> Option<Literal<'_>> {
    if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
        return Some(Literal::Infinite);
    }
    if let [b'0', b'x' | b'X', rest @ ..] = unsigned {
        return hex(rest).map(Literal::Hex);
    }
    // Rust reads the same decimal grammar, plus words that are excluded here.
    if !unsigned.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
        || !unsigned.first().is_some_and(|b| b.is_ascii_digit() || *b == b'.')
    {
        return None;
    }
    std::str::from_utf8(unsigned).ok().map(Literal::Decimal)
}

fn mantissa_digits(text: &str) -> impl Iterator<Item = u8> + '_ {
    text.bytes().take_while(|b| !matches!(b, b'e' | b'E')).filter(u8::is_ascii_digit)
}

fn hex(text: &[u8]) -> Option<Hex> {
    let (mut mantissa, mut exponent, mut sticky) = (0u128, 0i64, false);
    let (mut seen_digit, mut seen_point) = (false, false);
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        if *byte == b'.' && !seen_point {
            seen_point = true;
        } else if let Some(digit) = char::from(*byte).to_digit(16) {
            seen_digit = true;
            if mantissa >> 124 == 0 {
                mantissa = mantissa << 4 | u128::from(digit);
                exponent -= if seen_point { 4 } else { 0 };
            } else {
                sticky |= digit != 0;
                exponent += if seen_point { 0 } else { 4 };
            }
        } else {
            break;
        }
        at += 1;
    }
    if !seen_digit {
        return None;
    }
    match text.get(at..) {
        None | Some([]) => {}
        Some([b'p' | b'P', power @ ..]) => {
            let (negative, digits) = strip_sign(power);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let power = digits
                .iter()
                .fold(0i64, |n, d| n.saturating_mul(10).saturating_add(i64::from(d - b'0')))
                .min(1 << 40);
            exponent += if negative { -power } else { power };
        }
        Some(_) => return None,
    }
    Some(Hex { mantissa, exponent, sticky })
}

impl Hex {
    /// The nearest double; none if it overflows or vanishes.
    fn to_f64(&self) -> Option<f64> {
        if self.mantissa == 0 {
            return Some(0.0);
        }
        let bits = i64::from(128 - self.mantissa.leading_zeros());
        // The exponent of the last bit a double of this size keeps.
        let lowest = (self.exponent + bits - 53).max(-1074);
        let cut = lowest - self.exponent;
        let kept = long_double::shift_right_even(self.mantissa, cut, self.sticky) as u64;
        if kept == 0 || self.exponent + bits > 1024 {
            return None;
        }
        // Both factors are exact, and so is their product, unless it overflows.
        let half = lowest / 2;
        let value = kept as f64 * 2f64.powi(half as i32) * 2f64.powi((lowest - half) as i32);
        value.is_finite().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_c_prints_17_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (0.1, "0.10000000000000001"),
            (1e15, "1000000000000000"),
            (1e17, "1e+17"),
            (123456789012345678.0, "1.2345678901234568e+17"),
            (12345678901234567.0, "12345678901234568"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (-1.5, "-1.5"),
            // A tie at the 17th digit goes to the even neighbour.
            (4503599627370497.0 / 4.0, "1125899906842624.2"),
            (4503599627370499.0 / 4.0, "1125899906842624.8"),
        ] {
            assert_eq!(String::from_utf8(format_f64(value)).unwrap(), text);
        }
        assert_eq!(format_g(0.1, 14), b"0.1");
        assert_eq!(format_g(1704067200123456.0, 14), b"1.7040672001235e+15");
    }

    #[test]
    fn floats_are_read_as_strtod_reads_them() {
        for (text, value) in [
            ("1", Some(1.0)),
            ("+1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e3", Some(1000.0)),
            ("-inf", Some(f64::NEG_INFINITY)),
            ("+Infinity", Some(f64::INFINITY)),
            ("0x10", Some(16.0)),
            ("0x1.8p1", Some(3.0)),
            ("-0x.8p-1", Some(-0.25)),
            ("0x1p-1074", Some(5e-324)),
            ("0x1.fffffffffffff8p0", Some(2.0)),
            ("0x1p1024", None),
            ("1e400", None),
            ("1e-400", None),
            ("0e-400", Some(0.0)),
            ("nan", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("1e", None),
            (".", None),
            ("0x", None),
            ("--1", None),
            ("infinit", None),
            ("1.2.3", None),
        ] {
            assert_eq!(parse_f64(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn integers_have_one_form() {
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        for text in ["9223372036854775808", "-9223372036854775809", "", "-", "-0", "01", "+1", "1 "]
        {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
    }
}
