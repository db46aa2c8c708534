//! Periods of the calendar in a time zone.
//!
//! A period starts with the first instant of its second, minute, hour, day, week, month or year on the clocks of
//! the zone, and ends where the next one starts: a day in which the clocks change has 23 or 25
//! hours. Invariant: periods leave no gap and do not overlap.

use jiff::{Timestamp, ToSpan, Zoned, civil::Weekday, tz::TimeZone};
use serde::{Deserialize, Serialize};
use store::Millis;

use crate::Error;

/// The length of a calendar limit's period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalendarPeriod {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour of the zone's clocks.
    Hour,
    /// A day.
    Day,
    /// A week, from Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl CalendarPeriod {
    /// All periods, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the name in settings and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the start and the end of the period that holds `now`.
    ///
    /// ```
    /// use tidegate_desk::limit::CalendarPeriod;
    /// use store::Millis;
    ///
    /// // 2026-03-29, when clocks in Berlin go forward: the day has 23 hours.
    /// let zone = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    /// let (start, end) = CalendarPeriod::Day.bounds(Millis(1_774_780_000_000), &zone).unwrap();
    /// assert_eq!((end.0 - start.0) / 3_600_000, 23);
    /// ```
    pub fn bounds(self, now: Millis, zone: &TimeZone) -> Result<(Millis, Millis), Error> {
        match self {
            Self::Second => return Ok(multiple(now, 1_000)),
            Self::Minute => return Ok(multiple(now, 60_000)),
            Self::Hour => return hour(now, zone),
            Self::Day | Self::Week | Self::Month | Self::Year => {}
        }
        let bounds = || -> Result<(Zoned, Zoned), jiff::Error> {
            let at = Timestamp::from_millisecond(now.0)?.to_zoned(zone.clone());
            let date = at.date();
            let (first, next) = match self {
                Self::Second | Self::Minute | Self::Hour | Self::Day => (date, date.tomorrow()?),
                Self::Week => {
                    let back = i64::from(date.weekday().since(Weekday::Monday));
                    let monday = date.checked_sub(back.days())?;
                    (monday, monday.checked_add(7.days())?)
                }
                Self::Month => {
                    (date.first_of_month(), date.first_of_month().checked_add(1.month())?)
                }
                Self::Year => (date.first_of_year(), date.first_of_year().checked_add(1.year())?),
            };
            // Where midnight does not occur, the day starts with the first instant after it.
            Ok((first.to_zoned(zone.clone())?, next.to_zoned(zone.clone())?))
        };
        let (start, end) = bounds().map_err(no_such_time)?;
        let millis = |at: Zoned| Millis(at.timestamp().as_millisecond());
        Ok((millis(start), millis(end)))
    }
}

/// The seconds or minutes of every zone: offsets are whole minutes.
fn multiple(now: Millis, length_ms: i64) -> (Millis, Millis) {
    let start = now.0 - now.0.rem_euclid(length_ms);
    (Millis(start), Millis(start + length_ms))
}

/// The hour that holds `now`: from where the zone's clocks show a full hour, or change, to where
/// they next do. An hour that occurs twice is two periods; where clocks change by half an hour,
/// one lasts half an hour.
fn hour(now: Millis, zone: &TimeZone) -> Result<(Millis, Millis), Error> {
    const HOUR_MS: i64 = 3_600_000;
    let at = |ms: i64| Timestamp::from_millisecond(ms).map_err(no_such_time);
    let offset_ms = i64::from(zone.to_offset(at(now.0)?).seconds()) * 1_000;
    let full = now.0 - (now.0 + offset_ms).rem_euclid(HOUR_MS);
    let millis = |change: jiff::tz::TimeZoneTransition<'_>| change.timestamp().as_millisecond();
    // Transitions are strictly before or after the time they are asked for.
    let last = zone.preceding(at(now.0 + 1)?).next().map_or(i64::MIN, millis);
    let next = zone.following(at(now.0)?).next().map_or(i64::MAX, millis);
    Ok((Millis(full.max(last)), Millis((full + HOUR_MS).min(next))))
}

fn no_such_time(error: jiff::Error) -> Error {
    Error::invalid("period", format!("no such time: {error}"))
}

impl std::str::FromStr for CalendarPeriod {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|period| period.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid("period", "one of second, minute, hour, day, week, month and year")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn at(text: &str) -> Millis {
        Millis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn periods_leave_no_gap_across_clock_changes_and_month_ends() {
        // Clocks change at midnight in Santiago and Beirut, by half an hour on Lord Howe Island.
        for name in [
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "America/Santiago",
            "Asia/Kathmandu",
        ] {
            let zone = zone(name);
            for period in CalendarPeriod::ALL {
                let mut now = at("2024-01-30T00:00:00Z");
                let stop = match period {
                    CalendarPeriod::Second => at("2024-01-30T00:01:00Z"),
                    CalendarPeriod::Minute => at("2024-01-30T02:00:00Z"),
                    CalendarPeriod::Hour => at("2024-12-31T00:00:00Z"),
                    _ => at("2032-03-02T00:00:00Z"),
                };
                let mut steps = 0;
                while now < stop {
                    let (start, end) = period.bounds(now, &zone).unwrap();
                    assert!(start <= now && now < end, "{name} {period:?} {now}: {start} {end}");
                    let (next_start, _) = period.bounds(end, &zone).unwrap();
                    assert_eq!(
                        next_start, end,
                        "{name} {period:?}: a gap or an overlap after {now}"
                    );
                    let (same, _) = period.bounds(Millis(end.0 - 1), &zone).unwrap();
                    assert_eq!(same, start, "{name} {period:?}: the last instant belongs to it");
                    now = end;
                    steps += 1;
                }
                assert!(steps > 7);
            }
        }
    }

    #[test]
    fn a_day_of_a_clock_change_has_23_or_25_hours() {
        for (name, noon, hours) in [
            ("Europe/Berlin", "2026-03-29T10:00:00Z", 23),
            ("Europe/Berlin", "2026-10-25T11:00:00Z", 25),
            ("America/New_York", "2026-03-08T16:00:00Z", 23),
            ("America/New_York", "2026-11-01T17:00:00Z", 25),
            ("America/Santiago", "2026-09-06T15:00:00Z", 23),
            ("UTC", "2026-03-29T12:00:00Z", 24),
        ] {
            let (start, end) = CalendarPeriod::Day.bounds(at(noon), &zone(name)).unwrap();
            assert_eq!((end.0 - start.0) / HOUR_MS, hours, "{name} {noon}");
        }
    }

    #[test]
    fn months_weeks_and_years_start_where_the_calendar_says() {
        let berlin = zone("Europe/Berlin");
        let start = |period: CalendarPeriod, now: &str| period.bounds(at(now), &berlin).unwrap().0;
        assert_eq!(
            start(CalendarPeriod::Month, "2024-02-29T23:30:00Z"),
            at("2024-02-29T23:00:00Z")
        );
        assert_eq!(
            start(CalendarPeriod::Month, "2024-02-29T22:30:00Z"),
            at("2024-01-31T23:00:00Z")
        );
        assert_eq!(start(CalendarPeriod::Week, "2026-11-15T12:00:00Z"), at("2026-11-08T23:00:00Z"));
        assert_eq!(start(CalendarPeriod::Year, "2026-01-01T00:00:00Z"), at("2025-12-31T23:00:00Z"));
    }
}
