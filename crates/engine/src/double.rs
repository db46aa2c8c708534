//! Floats as C's `printf` writes them with `%.17g` and the like, which is what clients read.

/// A float as `%.17g` prints it; `inf`, `-inf` and `nan` as Redis spells them.
pub fn format_double(value: f64) -> Vec<u8> {
    format_g(value, 17)
}

/// A float as `%.<digits>g` prints it, for 1 to 17 significant digits.
pub fn format_g(value: f64, digits: usize) -> Vec<u8> {
    if value.is_nan() {
        return b"nan".to_vec();
    }
    if value.is_infinite() {
        return if value > 0.0 { b"inf".to_vec() } else { b"-inf".to_vec() };
    }
    let digits = digits.clamp(1, 17);
    // Rounded once, to this many digits; what follows only moves the point.
    let text = format!("{:.*e}", digits - 1, value);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let all: String = mantissa.chars().filter(|c| *c != '.').collect();
    let kept = all.trim_end_matches('0');
    let kept = if kept.is_empty() { "0" } else { kept };
    let mut out = String::with_capacity(24);
    out.push_str(sign);
    if exponent < -4 || exponent >= i32::try_from(digits).unwrap_or(17) {
        let (first, rest) = kept.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            out.push('.');
            out.push_str(rest);
        }
        out.push('e');
        out.push(if exponent < 0 { '-' } else { '+' });
        out.push_str(&format!("{:02}", exponent.unsigned_abs()));
    } else if exponent < 0 {
        out.push_str("0.");
        (1..exponent.unsigned_abs()).for_each(|_| out.push('0'));
        out.push_str(kept);
    } else {
        let whole = exponent.unsigned_abs() as usize + 1;
        if kept.len() <= whole {
            out.push_str(kept);
            (kept.len()..whole).for_each(|_| out.push('0'));
        } else {
            let (before, after) = kept.split_at(whole);
            out.push_str(before);
            out.push('.');
            out.push_str(after);
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_c_does() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (3.0e5, "300000"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (123456.789, "123456.789"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (5e-324, "4.9406564584124654e-324"),
            (1_704_067_200_123_456.0, "1704067200123456"),
        ] {
            assert_eq!(String::from_utf8(format_double(value)).unwrap(), text);
        }
        assert_eq!(format_g(1_704_067_200_123_456.0, 14), b"1.7040672001235e+15");
        assert_eq!(format_g(99_999_999_999_999.9, 14), b"1e+14");
        assert_eq!(format_g(0.1, 14), b"0.1");
    }
}
