//! Durations and rates as people write them: `5m`, `500/min`.

/// Formats seconds as they can be typed again, in the largest exact unit.
pub(crate) fn span(seconds: u64) -> String {
    for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
        if seconds >= unit && seconds.is_multiple_of(unit) {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}

/// Formats a rate as pages show it and as it can be typed there: `500/min`, `10/s`, `5/10s`.
pub(crate) fn rate(count: u32, per_seconds: u32) -> String {
    match per_seconds {
        1 => format!("{count}/s"),
        60 => format!("{count}/min"),
        3_600 => format!("{count}/h"),
        86_400 => format!("{count}/day"),
        other => format!("{count}/{other}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_the_unit_of_its_period() {
        for (per_seconds, text) in
            [(1, "7/s"), (60, "7/min"), (3_600, "7/h"), (86_400, "7/day"), (10, "7/10s")]
        {
            assert_eq!(rate(7, per_seconds), text);
        }
    }
}
