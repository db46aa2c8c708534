//! Business hours: when a team is there, and time that counts while it is.

use jiff::{civil, tz::TimeZone};
use serde_json::{Value, json};
use store::Millis;

use crate::Error;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Most days to look ahead for an open one.
const LOOK_AHEAD_DAYS: i64 = 60;

/// A day without business.
pub type Holiday = civil::Date;

/// Business hours of a team: intervals of each weekday, holidays, time zone. Without any interval it is
/// always open.
#[derive(Clone, Debug, PartialEq)]
pub struct BusinessHours {
    zone_name: String,
    zone: TimeZone,
    /// Minutes of the day, from and to, by weekday from Monday on.
    week: [Vec<(u16, u16)>; 7],
    holidays: Vec<Holiday>,
}

impl Default for BusinessHours {
    fn default() -> Self {
        Self {
            zone_name: "UTC".to_owned(),
            zone: TimeZone::UTC,
            week: Default::default(),
            holidays: Vec::new(),
        }
    }
}

impl BusinessHours {
    /// Parses `{"time_zone": "Europe/Berlin", "week": {"mon": [["09:00", "12:00"]]}, "holidays":
    /// ["2026-12-25"]}`; every field may be left out.
    ///
    /// # Errors
    /// An unknown field, time zone or day; intervals that overlap or end before they begin.
    pub fn parse(json: &Value) -> Result<Self, Error> {
        let bad = |message: String| Error::invalid("hours", message);
        let fields = json.as_object().ok_or_else(|| bad("an object".to_owned()))?;
        let mut hours = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "time_zone" => {
                    let zone = value.as_str().unwrap_or_default();
                    hours.zone = TimeZone::get(zone).map_err(|_| {
                        bad(format!("{zone:?} is not a time zone such as Europe/Berlin"))
                    })?;
                    hours.zone_name = zone.to_owned();
                }
                "week" => {
                    for (day, intervals) in value.as_object().into_iter().flatten() {
                        let at = DAYS.iter().position(|known| known == day).ok_or_else(|| {
                            bad(format!("{day:?} is none of {}", DAYS.join(", ")))
                        })?;
                        hours.week[at] = parse_day(intervals).map_err(bad)?;
                    }
                }
                "holidays" => {
                    for day in value.as_array().into_iter().flatten().take(400) {
                        let day = day.as_str().unwrap_or_default();
                        hours.holidays.push(day.parse().map_err(|_| {
                            bad(format!("{day:?} is not a day such as 2026-12-25"))
                        })?);
                    }
                }
                _ => {
                    return Err(bad(format!(
                        "unknown field {name:?}; known: time_zone, week, holidays"
                    )));
                }
            }
        }
        Ok(hours)
    }

    /// Returns the JSON that [`parse`](Self::parse) reads.
    pub fn to_json(&self) -> Value {
        let text = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        let week: serde_json::Map<String, Value> = DAYS
            .iter()
            .zip(&self.week)
            .filter(|(_, intervals)| !intervals.is_empty())
            .map(|(day, intervals)| {
                let intervals: Vec<Value> =
                    intervals.iter().map(|(from, to)| json!([text(*from), text(*to)])).collect();
                ((*day).to_owned(), Value::Array(intervals))
            })
            .collect();
        let holidays: Vec<String> = self.holidays.iter().map(ToString::to_string).collect();
        json!({ "time_zone": self.zone_name, "week": week, "holidays": holidays })
    }

    fn is_always_open(&self) -> bool {
        self.week.iter().all(Vec::is_empty)
    }

    /// Tells whether it is open at a moment.
    pub fn is_open(&self, at: Millis) -> bool {
        self.open_interval(at, 0).is_some_and(|(from, _)| from <= at.0)
    }

    /// Returns when it opens next; the moment itself while it is open, none within 60 days.
    pub fn next_open(&self, at: Millis) -> Option<Millis> {
        self.open_interval(at, LOOK_AHEAD_DAYS).map(|(from, _)| Millis(from.max(at.0)))
    }

    /// Adds business time to a moment.
    pub fn add(&self, at: Millis, mut ms: i64) -> Millis {
        let mut now = at.0;
        // Each round uses up one interval; a year of them is enough for every promise.
        for _ in 0..2_000 {
            let Some((from, to)) = self.open_interval(Millis(now), LOOK_AHEAD_DAYS) else { break };
            now = now.max(from);
            if to - now >= ms {
                return Millis(now.saturating_add(ms));
            }
            ms -= to - now;
            now = to;
        }
        Millis(now.saturating_add(ms))
    }

    /// Returns the interval that is open at a moment or is the next to open, within some days.
    fn open_interval(&self, at: Millis, days: i64) -> Option<(i64, i64)> {
        if self.is_always_open() {
            return Some((i64::MIN / 4, i64::MAX / 4));
        }
        let moment = jiff::Timestamp::from_millisecond(at.0).ok()?;
        let mut day = moment.to_zoned(self.zone.clone()).date();
        for _ in 0..=days {
            if !self.holidays.contains(&day) {
                let at_weekday = usize::try_from(day.weekday().to_monday_zero_offset()).ok()?;
                for (from, to) in &self.week[at_weekday] {
                    let (from, to) = (self.moment(day, *from)?, self.moment(day, *to)?);
                    if at.0 < to && from < to {
                        return Some((from, to));
                    }
                }
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    fn moment(&self, day: civil::Date, minutes: u16) -> Option<i64> {
        let (day, minutes) =
            if minutes == 1_440 { (day.tomorrow().ok()?, 0) } else { (day, minutes) };
        let (hour, minute) = (i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?);
        let zoned = day.at(hour, minute, 0, 0).to_zoned(self.zone.clone()).ok()?;
        Some(zoned.timestamp().as_millisecond())
    }
}

fn parse_day(intervals: &Value) -> Result<Vec<(u16, u16)>, String> {
    let mut found: Vec<(u16, u16)> = Vec::new();
    let list = intervals.as_array().ok_or("a day is a list of [from, to]")?;
    if list.len() > 10 {
        return Err("a day has at most 10 intervals".to_owned());
    }
    for interval in list {
        let pair = interval.as_array().filter(|pair| pair.len() == 2);
        let [from, to] = pair.map(Vec::as_slice).ok_or("an interval is [from, to]")? else {
            return Err("an interval is [from, to]".to_owned());
        };
        let (from, to) = (parse_minutes(from)?, parse_minutes(to)?);
        if from >= to || found.last().is_some_and(|(_, before)| *before > from) {
            return Err("intervals end after they begin, in order, without overlap".to_owned());
        }
        found.push((from, to));
    }
    Ok(found)
}

fn parse_minutes(value: &Value) -> Result<u16, String> {
    let text = value.as_str().unwrap_or_default();
    let time = text.split_once(':').and_then(|(hour, minute)| {
        let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
        (minute < 60 && hour * 60 + minute <= 1_440).then_some(hour * 60 + minute)
    });
    time.ok_or_else(|| format!("{text:?} is not a time such as 09:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> BusinessHours {
        BusinessHours::parse(&json!({
            "time_zone": "Europe/Berlin",
            "week": { "mon": [["09:00", "12:00"], ["13:00", "17:00"]], "tue": [["09:00", "17:00"]] },
            "holidays": ["2026-03-31"],
        }))
        .unwrap()
    }

    fn at(text: &str) -> Millis {
        Millis(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn business_time_counts_in_several_intervals_over_holidays_and_the_change_of_the_clock() {
        let hours = berlin();
        // Monday 30 March 2026, the day after the clock changed: 09:00 is 07:00 UTC.
        assert!(!hours.is_open(at("2026-03-30T06:59:59Z")));
        assert!(hours.is_open(at("2026-03-30T07:00:00Z")));
        assert!(!hours.is_open(at("2026-03-30T10:30:00Z")), "lunch");
        assert_eq!(hours.next_open(at("2026-03-30T10:30:00Z")), Some(at("2026-03-30T11:00:00Z")));
        // From 11:50: ten minutes before lunch, the rest after it.
        assert_eq!(hours.add(at("2026-03-30T09:50:00Z"), 20 * 60_000), at("2026-03-30T11:10:00Z"));
        // Past Monday: Tuesday is a holiday, so next Monday.
        assert_eq!(hours.add(at("2026-03-30T14:50:00Z"), 20 * 60_000), at("2026-04-06T07:10:00Z"));
        // The Monday before, in winter time: 09:00 is 08:00 UTC.
        assert!(!hours.is_open(at("2026-03-23T07:30:00Z")));
        assert_eq!(BusinessHours::parse(&hours.to_json()).unwrap(), hours);
    }

    #[test]
    fn without_intervals_it_is_always_open_and_bad_hours_are_refused() {
        let always = BusinessHours::default();
        assert!(always.is_open(at("2026-03-29T01:00:00Z")));
        assert_eq!(always.add(Millis(5), 7), Millis(12));
        for bad in [
            json!({ "week": { "monday": [] } }),
            json!({ "week": { "mon": [["10:00", "09:00"]] } }),
            json!({ "week": { "mon": [["09:00", "12:00"], ["11:00", "13:00"]] } }),
            json!({ "week": { "mon": [["25:00", "26:00"]] } }),
            json!({ "time_zone": "Mars/Olympus" }),
            json!({ "holidays": ["christmas"] }),
            json!({ "unknown": 1 }),
            json!([]),
        ] {
            assert!(BusinessHours::parse(&bad).is_err(), "{bad}");
        }
    }
}
