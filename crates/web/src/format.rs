//! Numbers, sizes and times as people read them.

use std::cell::Cell;
use std::time::Duration;

use maud::{Markup, html};

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1,234`, `12.4 k`, `3.1 M`: at most four digits of number.
pub fn short(number: f64) -> String {
    let (value, unit) = match number.abs() {
        n if n >= 1e9 => (number / 1e9, " G"),
        n if n >= 1e6 => (number / 1e6, " M"),
        n if n >= 1e4 => (number / 1e3, " k"),
        _ => (number, ""),
    };
    let text = match value.abs() {
        v if v >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", count(v.round() as u64))
        }
        v if v >= 100.0 || (v.fract() == 0.0) => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    };
    format!("{text}{unit}")
}

/// Number of things that are counted, such as visitors: without a fraction, also where it is a mean.
pub fn whole(number: f64) -> String {
    short(number.round())
}

/// `10 /s`, `200 /min`, `5 / 10 s`: so many in so many seconds.
pub fn rate(count: u32, per_seconds: u32) -> String {
    let number = self::count(count.into());
    match per_seconds {
        1 => format!("{number} /s"),
        60 => format!("{number} /min"),
        3_600 => format!("{number} /h"),
        86_400 => format!("{number} /day"),
        other => format!("{number} / {other} s"),
    }
}

/// `12.4` and `MB`.
pub fn bytes(number: f64) -> (String, &'static str) {
    let (value, unit) = match number {
        n if n >= 1_099_511_627_776.0 => (n / 1_099_511_627_776.0, "TB"),
        n if n >= 1_073_741_824.0 => (n / 1_073_741_824.0, "GB"),
        n if n >= 1_048_576.0 => (n / 1_048_576.0, "MB"),
        n if n >= 1024.0 => (n / 1024.0, "KB"),
        n => (n, "B"),
    };
    let text = if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    };
    (text, unit)
}

/// `3 d 4 h`, `12 min`, `41 s`: the two largest units, the second one only if there is some of it.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (large, unit, small, of_unit) = match seconds {
        0 => return format!("{} ms", duration.as_millis()),
        1..60 => return format!("{seconds} s"),
        60..3600 => (seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => (seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => (seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    };
    match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {of_unit}"),
    }
}

/// Milliseconds left, as a duration.
pub fn millis(ms: i64) -> String {
    duration(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// `4.2` and `ms`, or `1.3` and `s`.
pub fn latency(ms: f64) -> (String, &'static str) {
    match ms {
        n if n >= 1000.0 => (format!("{:.1}", n / 1000.0), "s"),
        n if n >= 10.0 => (format!("{n:.0}"), "ms"),
        n => (format!("{n:.1}"), "ms"),
    }
}

/// A moment: UTC in the page, "3 min ago" once scripts run.
pub fn moment(ms: i64) -> Markup {
    html! { time datetime=(rfc3339(ms)) data-ms=(ms) { (rfc3339(ms)) } }
}

/// A message as a sentence: with a capital letter and a full stop.
pub fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let stop = if message.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", letters.as_str())
}

/// RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(ms: i64) -> String {
    match rfc3339_bytes(ms) {
        Some(text) => String::from_utf8_lossy(&text).into_owned(),
        None => rfc3339_any(ms),
    }
}

fn rfc3339_any(ms: i64) -> String {
    // Out of range is a time nobody has: the year 9999 is shown instead.
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}

thread_local! {
    /// The last day that was written: its number since 1970, and its date.
    static LAST_DAY: Cell<(i64, [u8; 10])> = const { Cell::new((-1, [0; 10])) };
}

/// As [`rfc3339`], without an allocation, for moments from 1970 to 9999. Lists are full of moments, and
/// most of them are of one day, so the date is worked out once per day.
pub(crate) fn rfc3339_bytes(ms: i64) -> Option<[u8; 24]> {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    /// The first moment of the year 10000.
    const END_MS: i64 = 253_402_300_800_000;
    if !(0..END_MS).contains(&ms) {
        return None;
    }
    let (day, mut left) = (ms / DAY_MS, ms % DAY_MS);
    let (known, mut date) = LAST_DAY.get();
    if known != day {
        date = rfc3339_any(ms).as_bytes().get(..10)?.try_into().ok()?;
        LAST_DAY.set((day, date));
    }
    let mut text = *b"0000-00-00T00:00:00.000Z";
    text[..10].copy_from_slice(&date);
    // From the last digit of the milliseconds to the first one of the hours.
    for (at, base) in
        [(22, 10), (21, 10), (20, 10), (18, 10), (17, 6), (15, 10), (14, 6), (12, 10), (11, 10)]
    {
        text[at] = b'0' + u8::try_from(left % base).ok()?;
        left /= base;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_the_same_by_both_ways() {
        let days = [0, 1, 59, 60, 365, 11_016, 11_017, 20_774, 47_540, 47_541, 2_932_894];
        for day in days {
            for of_day in [0, 1, 999, 1_000, 59_999, 3_599_999, 43_200_000, 86_399_999] {
                let ms = day * 86_400_000 + of_day;
                assert_eq!(rfc3339(ms), rfc3339_any(ms), "{ms}");
            }
        }
        assert_eq!(rfc3339(1_794_907_800_123), "2026-11-17T09:30:00.123Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc3339_bytes(253_402_300_800_000), None);
        assert!(rfc3339(i64::MAX).starts_with("9999-12-3"));
    }

    #[test]
    fn a_duration_has_no_empty_second_unit() {
        let told = |seconds: u64| duration(Duration::from_secs(seconds));
        assert_eq!(duration(Duration::from_millis(40)), "40 ms");
        assert_eq!([told(41), told(60), told(61)], ["41 s", "1 min", "1 min 1 s"]);
        assert_eq!([told(3600), told(3659), told(5400)], ["1 h", "1 h", "1 h 30 min"]);
        assert_eq!([told(86_400), told(90_000), told(172_800)], ["1 d", "1 d 1 h", "2 d"]);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(9999.0), "9,999");
        assert_eq!(short(-1740.2), "-1,740");
        assert_eq!(short(12_400.0), "12.4 k");
        assert_eq!(short(3_100_000.0), "3.1 M");
        assert_eq!(whole(3.75), "4");
        assert_eq!(bytes(1536.0), ("1.5".to_owned(), "KB"));
        assert_eq!(latency(0.42).0, "0.4");
        assert_eq!(rate(200, 60), "200 /min");
        assert_eq!(rate(1_500, 1), "1,500 /s");
        assert_eq!(rate(5, 10), "5 / 10 s");
    }

    #[test]
    fn times_are_readable() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(text(41), "41 s");
        assert_eq!(text(60), "1 min");
        assert_eq!(text(125), "2 min 5 s");
        assert_eq!(text(7260), "2 h 1 min");
        assert_eq!(text(273_600), "3 d 4 h");
    }

    #[test]
    fn dates_are_right_across_leap_years() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999Z");
    }
}
