//! The 80-bit extended float of x86: what Redis calls `long double` there.
//!
//! Only what INCRBYFLOAT, HINCRBYFLOAT and timeouts need: reading, adding, printing `%.17Lf`.
//! Every operation rounds once, to nearest, ties to even, as the hardware and glibc do.

use smallvec::SmallVec;

use crate::number::{Literal, literal, strip_sign};

/// Exponent of the last bit of the smallest number, and of the largest.
const EXPONENT_MIN: i64 = -16445;
const EXPONENT_MAX: i64 = 16320;
/// Longer texts are not read as numbers (Redis reads them through a buffer of this size).
const TEXT_MAX: usize = 5 * 1024;

/// An extended float that is not `nan`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LongDouble {
    negative: bool,
    /// `mantissa × 2^exponent`; the leading bit is set unless the number is tiny or zero.
    mantissa: u64,
    exponent: i64,
    infinite: bool,
}

impl LongDouble {
    const ZERO: LongDouble =
        LongDouble { negative: false, mantissa: 0, exponent: EXPONENT_MIN, infinite: false };

    /// Reads what `strtold` reads, to the end; no `nan`, nothing that overflows or vanishes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<LongDouble> {
        if bytes.len() >= TEXT_MAX {
            return None;
        }
        let (negative, unsigned) = strip_sign(bytes);
        match literal(unsigned)? {
            Literal::Infinite => Some(LongDouble { negative, infinite: true, ..LongDouble::ZERO }),
            Literal::Hex(hex) => {
                let value = round(negative, hex.mantissa, hex.exponent, hex.sticky);
                (!value.infinite && (value.mantissa != 0 || hex.mantissa == 0)).then_some(value)
            }
            Literal::Decimal(text) => decimal(negative, text),
        }
    }

    /// The same value: 64 bits hold every integer of this size.
    pub(crate) fn from_i64(value: i64) -> LongDouble {
        round(value < 0, u128::from(value.unsigned_abs()), 0, false)
    }

    /// Neither infinite nor (as no value of this type ever is) `nan`.
    pub(crate) fn is_finite(self) -> bool {
        !self.infinite
    }

    /// The sum; none if it has no value (`inf - inf`).
    pub(crate) fn add(self, other: LongDouble) -> Option<LongDouble> {
        match (self.infinite, other.infinite) {
            (true, true) => return (self.negative == other.negative).then_some(self),
            (true, false) => return Some(self),
            (false, true) => return Some(other),
            (false, false) => {}
        }
        if other.mantissa == 0 {
            // 0 + -0 is 0; only -0 + -0 is -0.
            let negative = self.negative && (self.mantissa != 0 || other.negative);
            return Some(LongDouble { negative, ..self });
        }
        if self.mantissa == 0 {
            return Some(other);
        }
        let (large, small) = if (self.exponent, self.mantissa) >= (other.exponent, other.mantissa) {
            (self, other)
        } else {
            (other, self)
        };
        // 62 guard bits; what falls below them only matters as "something was there".
        let a = u128::from(large.mantissa) << 62;
        let distance = large.exponent - small.exponent;
        let b = u128::from(small.mantissa) << 62;
        let (b, sticky) = match u32::try_from(distance) {
            Ok(d) if d < 128 => (b >> d, d > 0 && b & ((1u128 << d) - 1) != 0),
            _ => (0, true),
        };
        let sum = if large.negative == small.negative { a + b } else { a - b - u128::from(sticky) };
        if sum == 0 && !sticky {
            return Some(LongDouble::ZERO);
        }
        Some(round(large.negative, sum, large.exponent - 62, sticky))
    }

    /// A thousandfold, rounded up to an integer; none if it does not fit 64 bits. For timeouts
    /// in seconds.
    pub(crate) fn thousandfold_ceil(self) -> Option<i64> {
        if self.infinite {
            return None;
        }
        let product = round(self.negative, u128::from(self.mantissa) * 1000, self.exponent, false);
        let magnitude = u128::from(product.mantissa);
        let (whole, rest) = match product.exponent {
            e if e >= 0 => (magnitude.checked_shl(u32::try_from(e).ok()?)?, false),
            e if e > -128 => (magnitude >> -e, magnitude & ((1u128 << -e) - 1) != 0),
            _ => (0, magnitude != 0),
        };
        if product.exponent >= 64 {
            return (magnitude == 0).then_some(0);
        }
        let whole = i128::try_from(whole).ok()?;
        let value = match product.negative {
            true => -whole,
            false => whole + i128::from(rest),
        };
        i64::try_from(value).ok()
    }

    /// As `%.17Lf` prints it, without trailing zeros.
    pub(crate) fn to_human(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        if self.negative {
            out.push(b'-');
        }
        if self.infinite {
            out.extend_from_slice(b"inf");
            return out;
        }
        if self.exponent >= 0 {
            let mut big = BigUint::from(u128::from(self.mantissa));
            big.shift_left(self.exponent as u32);
            out.extend(big.into_decimal());
            return out;
        }
        // 5^17 has 40 bits, so the product fits, and 2^17 goes into the exponent.
        let scaled = u128::from(self.mantissa) * 5u128.pow(17);
        let shift = self.exponent + 17;
        let units =
            if shift >= 0 { scaled << shift } else { shift_right_even(scaled, -shift, false) };
        let one = 10u128.pow(17);
        out.extend_from_slice((units / one).to_string().as_bytes());
        let fraction = units % one;
        if fraction != 0 {
            out.push(b'.');
            out.extend_from_slice(format!("{fraction:017}").as_bytes());
            let kept = out.iter().rposition(|b| *b != b'0').map_or(0, |last| last + 1);
            out.truncate(kept);
        }
        if out == b"-0" { b"0".to_vec() } else { out }
    }
}

/// `value >> by`, rounded to nearest, ties to even; `sticky` says that there was more below.
pub(crate) fn shift_right_even(value: u128, by: i64, sticky: bool) -> u128 {
    if by <= 0 {
        return value << (-by).min(127);
    }
    if by > 128 {
        return 0;
    }
    let (kept, half, below) = if by == 128 {
        (0, value >> 127 == 1, value << 1 != 0)
    } else {
        (value >> by, value >> (by - 1) & 1 == 1, value & ((1u128 << (by - 1)) - 1) != 0)
    };
    kept + u128::from(half && (below || sticky || kept & 1 == 1))
}

/// The extended float nearest to `value × 2^exponent`.
fn round(negative: bool, value: u128, exponent: i64, sticky: bool) -> LongDouble {
    if value == 0 {
        return LongDouble { negative, ..LongDouble::ZERO };
    }
    let bits = i64::from(128 - value.leading_zeros());
    let mut shift = (bits - 64).max(EXPONENT_MIN - exponent);
    let mut mantissa = shift_right_even(value, shift, sticky);
    if mantissa >> 64 != 0 {
        // Rounding carried into a 65th bit; only zeros are below it.
        mantissa >>= 1;
        shift += 1;
    }
    let exponent = exponent + shift;
    if exponent > EXPONENT_MAX {
        return LongDouble { negative, infinite: true, ..LongDouble::ZERO };
    }
    LongDouble { negative, mantissa: mantissa as u64, exponent, infinite: false }
}

fn decimal(negative: bool, text: &str) -> Option<LongDouble> {
    // The grammar was checked for its letters only; the float parser checks the rest.
    text.parse::<f64>().ok()?;
    let (mantissa, power) = match text.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power_of(power)),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = whole.bytes().chain(fraction.bytes()).skip_while(|b| *b == b'0');
    let mut big = BigUint::default();
    let mut count = 0i64;
    for digit in digits {
        big.multiply_add(10, u32::from(digit.wrapping_sub(b'0')));
        count += 1;
    }
    if count == 0 {
        return Some(LongDouble { negative, ..LongDouble::ZERO });
    }
    let power = power.saturating_sub(i64::try_from(fraction.len()).ok()?);
    // Far outside what the type can hold: 10^4932 is the largest, 10^-4951 the smallest.
    if count + power > 4940 || count + power < -4990 {
        return None;
    }
    let mut sticky = false;
    let exponent = if power >= 0 {
        big.multiply_power(5, power as u32);
        power
    } else {
        // Room for a quotient of more than 64 bits whatever the divisor.
        let room = u32::try_from(-power).ok()? * 3 + 96;
        big.shift_left(room);
        sticky = big.divide_power(5, u32::try_from(-power).ok()?);
        power - i64::from(room)
    };
    let (top, cut, more) = big.top();
    let value = round(negative, top, exponent + i64::from(cut), sticky || more);
    (!value.infinite && value.mantissa != 0).then_some(value)
}

fn power_of(text: &str) -> i64 {
    let (negative, digits) = strip_sign(text.as_bytes());
    let power = digits
        .iter()
        .fold(0i64, |n, d| n.saturating_mul(10).saturating_add(i64::from(d.wrapping_sub(b'0'))))
        .min(1 << 40);
    if negative { -power } else { power }
}

/// An unsigned integer of any size; limbs from the lowest, no zeros on top.
#[derive(Debug, Default)]
struct BigUint(SmallVec<[u32; 16]>);

impl From<u128> for BigUint {
    fn from(mut value: u128) -> BigUint {
        let mut limbs = SmallVec::new();
        while value != 0 {
            limbs.push(value as u32);
            value >>= 32;
        }
        BigUint(limbs)
    }
}

impl BigUint {
    fn multiply_add(&mut self, factor: u32, add: u32) {
        let mut carry = u64::from(add);
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry != 0 {
            self.0.push(carry as u32);
        }
    }

    fn multiply_power(&mut self, base: u32, mut power: u32) {
        while power > 0 {
            let step = power.min(13);
            self.multiply_add(base.pow(step), 0);
            power -= step;
        }
    }

    /// Divides by `base^power`, where `base` is at most 5; true if there is a remainder.
    fn divide_power(&mut self, base: u32, mut power: u32) -> bool {
        let mut remainder = false;
        while power > 0 {
            let step = power.min(13);
            remainder |= self.divide(base.pow(step)) != 0;
            power -= step;
        }
        remainder
    }

    fn divide(&mut self, divisor: u32) -> u32 {
        let mut rest = 0u64;
        for limb in self.0.iter_mut().rev() {
            let value = rest << 32 | u64::from(*limb);
            *limb = (value / u64::from(divisor)) as u32;
            rest = value % u64::from(divisor);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        rest as u32
    }

    fn shift_left(&mut self, by: u32) {
        if self.0.is_empty() {
            return;
        }
        if !by.is_multiple_of(32) {
            self.multiply_add(1 << (by % 32), 0);
        }
        self.0.insert_many(0, std::iter::repeat_n(0, by as usize / 32));
    }

    /// The four highest limbs, how many bits lie below them, and whether any of those is set.
    fn top(&self) -> (u128, u32, bool) {
        let below = self.0.len().saturating_sub(4);
        let (low, high) = self.0.split_at(below);
        let top = high.iter().rev().fold(0u128, |value, limb| value << 32 | u128::from(*limb));
        (top, below as u32 * 32, low.iter().any(|limb| *limb != 0))
    }

    fn into_decimal(mut self) -> Vec<u8> {
        let mut groups = Vec::new();
        while !self.0.is_empty() {
            groups.push(self.divide(1_000_000_000));
        }
        let mut out = groups.pop().unwrap_or(0).to_string().into_bytes();
        for group in groups.iter().rev() {
            out.extend_from_slice(format!("{group:09}").as_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let sum = LongDouble::parse(a.as_bytes())
            .unwrap()
            .add(LongDouble::parse(b.as_bytes()).unwrap())
            .unwrap();
        String::from_utf8(sum.to_human()).unwrap()
    }

    #[test]
    fn sums_are_those_of_the_hardware() {
        for (a, b, result) in [
            ("3", "1.1", "4.1"),
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("1", "-1.23", "-0.23"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1e30", "1", "1000000000000000000024696061952"),
            ("-0", "-0", "0"),
            ("1e-20", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("0x1p3", "0", "8"),
            ("9223372036854775807", "1", "9223372036854775808"),
        ] {
            assert_eq!(sum(a, b), result, "{a} + {b}");
        }
    }

    #[test]
    fn what_no_long_double_holds_is_refused() {
        for text in ["1e5000", "1e-5000", "nan", "", "1e", "abc", " 1", "1e99999999999"] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
        assert!(LongDouble::parse(b"1e4932").unwrap().is_finite());
        assert!(LongDouble::parse(b"1e-4950").is_some());
    }

    #[test]
    fn timeouts_round_up_to_milliseconds() {
        let ms = |text: &str| LongDouble::parse(text.as_bytes()).unwrap().thousandfold_ceil();
        assert_eq!(ms("0"), Some(0));
        assert_eq!(ms("1"), Some(1000));
        assert_eq!(ms("0.0001"), Some(1));
        assert_eq!(ms("-0.5"), Some(-500));
        assert_eq!(ms("1e30"), None);
        assert_eq!(ms("inf"), None);
    }
}
