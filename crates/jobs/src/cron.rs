//! Cron expressions in time zones: when a schedule comes due. Pure.
//!
//! The grammar is the one v1's parser takes: five fields, or six with seconds first; fewer are
//! filled up from the left (second 0, the rest `*`); names in any case; 7 is Sunday; `L`, `5L`,
//! `1#2`, `a-b/n`, `a/n`, `*/n`; `?` in the day fields; `@hourly` and its kin. Day of month and day
//! of week are alternatives when both are given.
//!
//! **Daylight saving.** A schedule with given hours runs once a day whatever the clock does: a time
//! that is skipped runs later by as much as was skipped (02:30 at 03:30), a time that comes twice
//! runs the first time. A schedule for every hour (the hour field starts with `*`) goes by elapsed
//! time: it runs in both of the repeated hours and not in the skipped one.

use std::{fmt, str::FromStr};

use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time, Weekday},
    tz::{Offset, TimeZone},
};
use store::Millis;

use crate::Error;

/// Most missed occurrences of one schedule that are made up for: 100.
pub const CATCH_UP_MAX: usize = 100;

/// Years in which the next occurrence is searched for: 29 February may be eight years away, and with
/// a weekday alternative never longer.
const YEARS_AHEAD: i16 = 10;

/// A parsed expression in a time zone.
///
/// ```
/// use tidegate_jobs::{Cron, Millis};
///
/// let cron = Cron::parse("30 3 * * 1-5", Some("Europe/Berlin"))?;
/// let next = cron.next_after(Millis(1_767_225_600_000)); // Thursday 2026-01-01T00:00:00Z
/// assert_eq!(next, Some(Millis(1_767_234_600_000))); // 02:30 UTC
/// # Ok::<(), tidegate_jobs::Error>(())
/// ```
#[derive(Clone)]
pub struct Cron {
    text: String,
    seconds: u64,
    minutes: u64,
    hours: u64,
    /// The hour field starts with `*`.
    every_hour: bool,
    days: Days,
    months: u64,
    zone: TimeZone,
}

/// The days that match.
#[derive(Clone, Debug, Default)]
struct Days {
    of_month: u64,
    last_of_month: bool,
    any_of_month: bool,
    of_week: u64,
    /// Bit 8 × weekday + n for the n-th of the month, n = 6 for the last.
    nth_of_week: u64,
    any_of_week: bool,
}

impl Cron {
    /// Parses an expression. Without a time zone it is read in UTC.
    pub fn parse(expression: &str, timezone: Option<&str>) -> Result<Self, Error> {
        let zone = match timezone {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name)
                .map_err(|_| Error::invalid(format!("{name:?} is not a known time zone")))?,
        };
        let wrong = |why: String| {
            Error::invalid(format!("cron expression {:?}: {why}", shorten(expression)))
        };
        let trimmed = expression.trim();
        let spelled = match trimmed.to_ascii_lowercase().as_str() {
            "@yearly" => "0 0 0 1 1 *".to_owned(),
            "@monthly" => "0 0 0 1 * *".to_owned(),
            "@weekly" => "0 0 0 * * 0".to_owned(),
            "@daily" => "0 0 0 * * *".to_owned(),
            "@hourly" => "0 0 * * * *".to_owned(),
            "@minutely" => "0 * * * * *".to_owned(),
            "@secondly" => "* * * * * *".to_owned(),
            other if other.starts_with('@') => return Err(wrong("this name is not known".into())),
            other => other.to_owned(),
        };
        let given: Vec<&str> = spelled.split_ascii_whitespace().collect();
        if given.len() > 6 {
            return Err(wrong(format!("it has {} fields, more than 6", given.len())));
        }
        let mut fields = ["0", "*", "*", "*", "*", "*"];
        let start = fields.len() - given.len();
        fields[start..].copy_from_slice(&given);
        let [second, minute, hour, day, month, weekday] = fields;

        let seconds = SECOND.parse(second).map_err(wrong)?;
        let minutes = MINUTE.parse(minute).map_err(wrong)?;
        let hours = HOUR.parse(hour).map_err(wrong)?;
        let months = MONTH.parse(month).map_err(wrong)?;
        let days = Days::parse(day, weekday).map_err(wrong)?;
        let cron = Self {
            text: trimmed.to_owned(),
            seconds,
            minutes,
            hours,
            every_hour: hour.starts_with('*'),
            days,
            months,
            zone,
        };
        if !cron.can_match() {
            return Err(wrong("there is no such day".into()));
        }
        Ok(cron)
    }

    /// The first occurrence after a moment; `None` only when there is none for ten years.
    pub fn next_after(&self, after: Millis) -> Option<Millis> {
        // Occurrences are whole seconds.
        let from = after.0.div_euclid(1_000) + 1;
        let first = Timestamp::from_second(from).ok()?;
        let local = self.zone.to_datetime(first);
        // A skipped time of the day before may run today.
        let mut day = local.date().yesterday().ok()?;
        let last_year = local.year().checked_add(YEARS_AHEAD)?;
        while day.year() <= last_year {
            if self.months & bit(day.month()) == 0 {
                day = day.last_of_month().tomorrow().ok()?;
                continue;
            }
            if self.days.match_on(day)
                && let Some(second) = self.first_on(day, from)
            {
                return Some(Millis(second.checked_mul(1_000)?));
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    /// The occurrences after one moment up to and with another, oldest first, at most `most`: of
    /// more than that the latest.
    pub(crate) fn between(&self, after: Millis, until: Millis, most: usize) -> Vec<Millis> {
        let mut found = std::collections::VecDeque::new();
        let mut at = after;
        // Bounded work for a schedule of every second after a long outage: only the end counts.
        let window = i64::try_from(most).unwrap_or(i64::MAX).saturating_mul(1_000);
        let coarse = until.0.saturating_sub(at.0) > window.saturating_mul(1_000);
        if coarse && self.seconds.count_ones() > 1 {
            at = Millis(until.0.saturating_sub(window));
        }
        let mut steps = 0;
        while let Some(next) = self.next_after(at) {
            if next > until || steps > 100_000 {
                break;
            }
            if found.len() == most {
                found.pop_front();
            }
            found.push_back(next);
            at = next;
            steps += 1;
        }
        found.into()
    }

    /// The expression as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Describes the expression in English: "at 03:30 from Monday to Friday".
    ///
    /// ```
    /// use tidegate_jobs::Cron;
    ///
    /// let cron = Cron::parse("*/15 9-17 * * mon-fri", None)?;
    /// assert_eq!(
    ///     cron.describe(),
    ///     "every 15 minutes, during the hours 9 to 17, from Monday to Friday"
    /// );
    /// # Ok::<(), tidegate_jobs::Error>(())
    /// ```
    pub fn describe(&self) -> String {
        let mut parts = vec![self.time_in_words()];
        parts.extend(self.days_in_words());
        if self.months.count_ones() < 12 {
            parts.push(format!("in {}", list_in_words(self.months, 1..=12, &MONTH_NAMES)));
        }
        let clock = parts.first().is_some_and(|time| time.starts_with("at "));
        // "at 03:30 on Monday", but "every 5 minutes, on Monday".
        parts.join(if clock { " " } else { ", " })
    }

    /// The seconds, minutes and hours in words.
    fn time_in_words(&self) -> String {
        let single = |bits: u64| (bits.count_ones() == 1).then(|| bits.trailing_zeros());
        let hours: Vec<u32> = (0..24).filter(|hour| self.hours & 1 << hour != 0).collect();
        let whole_day = hours.len() == 24;
        let (second, minute) = (single(self.seconds), single(self.minutes));
        if let (Some(second), Some(minute), false) = (second, minute, whole_day)
            && hours.len() <= 6
        {
            let clock = |hour: &u32| match second {
                0 => format!("{hour:02}:{minute:02}"),
                _ => format!("{hour:02}:{minute:02}:{second:02}"),
            };
            let times: Vec<String> = hours.iter().map(clock).collect();
            return format!("at {}", join_in_words(&times));
        }
        let mut parts = Vec::new();
        match (second, minute) {
            (Some(0), Some(0)) => match is_step(self.hours, 24) {
                Some(_) => return steps_in_words(self.hours, 24, "hour"),
                None => parts.push("on the hour".to_owned()),
            },
            (Some(0), Some(minute)) => {
                let unit = if minute == 1 { "minute" } else { "minutes" };
                parts.push(format!("{minute} {unit} past each hour"));
            }
            (Some(0), None) => parts.push(steps_in_words(self.minutes, 60, "minute")),
            (Some(second), _) => {
                let unit = if second == 1 { "second" } else { "seconds" };
                parts.push(format!("{second} {unit} past the minute"));
                parts.push(steps_in_words(self.minutes, 60, "minute"));
            }
            (None, _) => {
                parts.push(steps_in_words(self.seconds, 60, "second"));
                if self.minutes.count_ones() < 60 {
                    parts.push(steps_in_words(self.minutes, 60, "minute"));
                }
            }
        }
        if !whole_day {
            let (first, last) = (hours.first().copied(), hours.last().copied());
            match (first, last) {
                (Some(first), Some(last))
                    if hours.len() > 2 && last - first + 1 == hours.len() as u32 =>
                {
                    parts.push(format!("during the hours {first} to {last}"));
                }
                _ if hours.len() > 3 && is_step(self.hours, 24).is_some() => {
                    parts.push(steps_in_words(self.hours, 24, "hour"));
                }
                _ => {
                    let hours: Vec<String> = hours.iter().map(ToString::to_string).collect();
                    let unit = if hours.len() == 1 { "hour" } else { "hours" };
                    parts.push(format!("during the {unit} {}", join_in_words(&hours)));
                }
            }
        }
        parts.join(", ")
    }

    /// The days in words; nothing for every day.
    fn days_in_words(&self) -> Option<String> {
        let days = &self.days;
        let of_month = (!days.any_of_month).then(|| {
            let mut words = Vec::new();
            if days.of_month != 0 {
                let named = list_in_words(days.of_month, 1..=31, &[]);
                let unit = if days.of_month.count_ones() == 1 { "day" } else { "days" };
                words.push(format!("{unit} {named} of the month"));
            }
            if days.last_of_month {
                words.push("the last day of the month".to_owned());
            }
            words.join(" and ")
        });
        let of_week = (!days.any_of_week).then(|| {
            let mut words = Vec::new();
            if days.of_week != 0 {
                words.push(list_in_words(days.of_week, 0..=6, &DAY_NAMES));
            }
            for weekday in 0..7 {
                for (nth, word) in [
                    (1, "first"),
                    (2, "second"),
                    (3, "third"),
                    (4, "fourth"),
                    (5, "fifth"),
                    (6, "last"),
                ] {
                    if days.nth_of_week & 1 << (8 * weekday + nth) != 0 {
                        let name = DAY_NAMES.get(weekday).copied().unwrap_or_default();
                        words.push(format!("the {word} {name} of the month"));
                    }
                }
            }
            join_in_words(&words)
        });
        let on = |words: String| match words.starts_with("from ") {
            true => words,
            false => format!("on {words}"),
        };
        match (of_month, of_week) {
            (None, None) => None,
            (Some(month), None) => Some(on(month)),
            (None, Some(week)) => Some(on(week)),
            (Some(month), Some(week)) => Some(format!("{} or {}", on(month), on(week))),
        }
    }

    /// The first occurrence of a matching day, at or after a second.
    fn first_on(&self, day: Date, from: i64) -> Option<i64> {
        let start = day.to_datetime(Time::midnight());
        let (start, end) = (civil_seconds(start), civil_seconds(start) + 86_400);
        self.stretches(day)
            .into_iter()
            .filter_map(|stretch| {
                let low = stretch.from.max(start).max(from + stretch.offset);
                let high = stretch.to.min(end);
                self.first_time(low, high).map(|civil| civil - stretch.offset)
            })
            .min()
    }

    /// The stretches of local time around a day within which it runs evenly, as second numbers.
    fn stretches(&self, day: Date) -> Vec<Stretch> {
        let noon = day.to_datetime(Time::constant(12, 0, 0, 0));
        let Ok(noon) = Offset::UTC.to_timestamp(noon) else { return Vec::new() };
        // No offset is beyond a day and a bit.
        let before = noon.as_second() - 2 * 86_400;
        let Ok(begin) = Timestamp::from_second(before) else { return Vec::new() };
        let mut offset = i64::from(self.zone.to_offset(begin).seconds());
        let mut stretches = Vec::with_capacity(3);
        let mut from = before + offset;
        for change in self.zone.following(begin) {
            let at = change.timestamp().as_second();
            if at > noon.as_second() + 2 * 86_400 {
                break;
            }
            let next = i64::from(change.offset().seconds());
            stretches.push(Stretch { from, to: at + offset, offset });
            from = at + next;
            if !self.every_hour {
                if next > offset {
                    // Skipped times run as if the clock had not been moved.
                    stretches.push(Stretch { from: at + offset, to: at + next, offset });
                } else {
                    // Repeated times have run already.
                    from = at + offset;
                }
            }
            offset = next;
        }
        stretches.push(Stretch { from, to: i64::MAX, offset });
        stretches
    }

    /// The first matching time of day in a range of local seconds that lies within one day.
    fn first_time(&self, low: i64, high: i64) -> Option<i64> {
        if low >= high {
            return None;
        }
        let midnight = low.div_euclid(86_400) * 86_400;
        let of_day = low - midnight;
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        let found = self.first_clock(hour as u32, minute as u32, second as u32)?;
        Some(midnight + found).filter(|civil| *civil < high)
    }

    /// The first matching time of day from this one on, in seconds.
    fn first_clock(&self, hour: u32, minute: u32, second: u32) -> Option<i64> {
        let low = |bits: u64| i64::from(bits.trailing_zeros());
        let this_hour = next_bit(self.hours, hour);
        if this_hour == Some(hour) {
            let this_minute = next_bit(self.minutes, minute);
            if this_minute == Some(minute)
                && let Some(second) = next_bit(self.seconds, second)
            {
                return Some(i64::from(hour * 3_600 + minute * 60 + second));
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return Some(i64::from(hour * 3_600 + minute * 60) + low(self.seconds));
            }
        }
        let hour = next_bit(self.hours, hour + u32::from(this_hour == Some(hour)))?;
        Some(i64::from(hour) * 3_600 + low(self.minutes) * 60 + low(self.seconds))
    }

    /// Is there a day at all?
    fn can_match(&self) -> bool {
        if self.days.any_of_month || !self.days.any_of_week || self.days.last_of_month {
            return true;
        }
        const LONGEST: [i8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        (1..=12).zip(LONGEST).any(|(month, longest)| {
            self.months & bit(month) != 0
                && (1..=longest).any(|day| self.days.of_month & bit(day) != 0)
        })
    }
}

const DAY_NAMES: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The step of bits that begin at zero and are evenly spaced over a range, if they are.
fn is_step(bits: u64, size: u32) -> Option<u32> {
    let step = size.checked_div(bits.count_ones()).filter(|step| *step > 0)?;
    let even = (0..size).all(|n| (bits & 1 << n != 0) == n.is_multiple_of(step));
    even.then_some(step)
}

/// "every 5 minutes", or "at the minutes 3 and 17 of the hour".
fn steps_in_words(bits: u64, size: u32, unit: &str) -> String {
    match is_step(bits, size) {
        Some(1) => format!("every {unit}"),
        Some(step) => format!("every {step} {unit}s"),
        None => {
            let plural = if bits.count_ones() == 1 { "" } else { "s" };
            format!("at {unit}{plural} {}", list_in_words(bits, 0..=size as usize - 1, &[]))
        }
    }
}

/// Lists the values of bits, by name where there are names: "Monday and Friday", "from Monday to
/// Friday", "1, 5 and 7".
fn list_in_words(bits: u64, range: std::ops::RangeInclusive<usize>, names: &[&str]) -> String {
    let first = *range.start();
    let values: Vec<usize> = range.filter(|n| bits & 1 << n != 0).collect();
    let word = |n: usize| match names.get(n - first) {
        Some(name) => (*name).to_owned(),
        None => n.to_string(),
    };
    match (values.first(), values.last()) {
        (Some(low), Some(high)) if values.len() > 2 && high - low + 1 == values.len() => {
            let from = if names.is_empty() { "" } else { "from " };
            format!("{from}{} to {}", word(*low), word(*high))
        }
        _ => join_in_words(&values.into_iter().map(word).collect::<Vec<_>>()),
    }
}

/// "a", "a and b", "a, b and c".
fn join_in_words(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cron").field("text", &self.text).field("zone", &self.zone).finish()
    }
}

impl FromStr for Cron {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text, None)
    }
}

/// Local time from `from` to before `to`, `offset` seconds ahead of UTC.
struct Stretch {
    from: i64,
    to: i64,
    offset: i64,
}

impl Days {
    fn parse(day: &str, weekday: &str) -> Result<Self, String> {
        let mut days = Days {
            any_of_month: matches!(day, "*" | "?"),
            any_of_week: matches!(weekday, "*" | "?"),
            ..Days::default()
        };
        for part in day.split(',') {
            match part {
                "l" => days.last_of_month = true,
                "?" => days.of_month |= DAY.parse("*")?,
                part => days.of_month |= DAY.parse(part)?,
            }
        }
        for part in weekday.split(',') {
            if let Some((name, nth)) = part.split_once('#') {
                let nth = nth.parse().ok().filter(|nth| (1..=5).contains(nth));
                let nth: u32 = nth.ok_or_else(|| format!("{part:?}: the week is 1 to 5"))?;
                days.nth_of_week |= 1 << (8 * (WEEKDAY.value(name)? % 7) + nth);
            } else if let Some(name) =
                part.strip_suffix('l').filter(|name| WEEKDAY.value(name).is_ok())
            {
                days.nth_of_week |= 1 << (8 * (WEEKDAY.value(name)? % 7) + 6);
            } else {
                let bits = WEEKDAY.parse(if part == "?" { "*" } else { part })?;
                // Seven is Sunday too.
                days.of_week |= (bits | bits >> 7) & 0x7f;
            }
        }
        Ok(days)
    }

    fn match_on(&self, day: Date) -> bool {
        match (self.any_of_month, self.any_of_week) {
            (true, true) => true,
            (false, true) => self.in_month(day),
            (true, false) => self.in_week(day),
            (false, false) => self.in_month(day) || self.in_week(day),
        }
    }

    fn in_month(&self, day: Date) -> bool {
        self.of_month & bit(day.day()) != 0 || self.last_of_month && day == day.last_of_month()
    }

    fn in_week(&self, day: Date) -> bool {
        let weekday = Weekday::to_sunday_zero_offset(day.weekday());
        let nth = (day.day() - 1) / 7 + 1;
        let last = day.day() + 7 > day.days_in_month();
        let is = |n: i8| {
            self.nth_of_week & (1u64 << (8 * u32::from(weekday as u8) + u32::from(n as u8))) != 0
        };
        self.of_week & bit(weekday) != 0 || is(nth) || last && is(6)
    }
}

/// One field: its name, its range, names of its values.
struct CronField {
    name: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const SECOND: CronField = CronField { name: "second", low: 0, high: 59, names: &[] };
const MINUTE: CronField = CronField { name: "minute", low: 0, high: 59, names: &[] };
const HOUR: CronField = CronField { name: "hour", low: 0, high: 23, names: &[] };
const DAY: CronField = CronField { name: "day of month", low: 1, high: 31, names: &[] };
const MONTH: CronField = CronField {
    name: "month",
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: CronField = CronField {
    name: "day of week",
    low: 0,
    high: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

impl CronField {
    /// The values of a field as bits.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let mut bits = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                None => (part, None),
                Some((range, step)) => {
                    let number = step.parse().ok().filter(|step| *step > 0);
                    let step: u32 = number.ok_or_else(|| self.wrong(part))?;
                    (range, Some(step))
                }
            };
            let (low, high) = match range.split_once('-') {
                _ if range == "*" => (self.low, if self.high == 7 { 6 } else { self.high }),
                Some((low, high)) => (self.value(low)?, self.value(high)?),
                None if step.is_some() => (self.value(range)?, self.high),
                None => (self.value(range)?, self.value(range)?),
            };
            if low > high {
                return Err(format!("{}: {part:?} runs backwards", self.name));
            }
            let step = usize::try_from(step.unwrap_or(1)).unwrap_or(usize::MAX);
            bits |= (low..=high).step_by(step).fold(0u64, |bits, value| bits | 1 << value);
        }
        Ok(bits)
    }

    fn value(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().position(|name| *name == text);
        let value = match named {
            Some(at) => u32::try_from(at).unwrap_or(0) + self.low,
            // `parse` would take a plus sign.
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map_err(|_| self.wrong(text))?
            }
            None => return Err(self.wrong(text)),
        };
        match value {
            value if (self.low..=self.high).contains(&value) => Ok(value),
            _ => Err(self.wrong(text)),
        }
    }

    fn wrong(&self, part: &str) -> String {
        format!("{}: {part:?} is not {} to {}", self.name, self.low, self.high)
    }
}

fn bit(at: i8) -> u64 {
    1 << at
}

/// The first set bit from a place on.
fn next_bit(bits: u64, from: u32) -> Option<u32> {
    if from >= 64 {
        return None;
    }
    let rest = bits >> from << from;
    (rest != 0).then(|| rest.trailing_zeros())
}

/// A local time as a number of seconds, as if it were UTC.
fn civil_seconds(time: DateTime) -> i64 {
    Offset::UTC.to_timestamp(time).map_or(0, Timestamp::as_second)
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Millis {
        Millis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    fn next(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(expression, Some(zone)).unwrap();
        let mut found = Vec::new();
        let mut from = at(after);
        for _ in 0..count {
            let Some(next) = cron.next_after(from) else { break };
            found.push(Timestamp::from_millisecond(next.0).unwrap().to_string());
            from = next;
        }
        found
    }

    fn check(expression: &str, zone: &str, after: &str, expected: &[&str]) {
        assert_eq!(next(expression, zone, after, expected.len()), expected, "{expression} {zone}");
    }

    #[test]
    fn expressions_are_told_in_words() {
        for (expression, words) in [
            ("* * * * *", "every minute"),
            ("*/5 * * * *", "every 5 minutes"),
            ("0 * * * *", "every hour"),
            ("15 * * * *", "15 minutes past each hour"),
            ("30 3 * * *", "at 03:30"),
            ("0 9,17 * * *", "at 09:00 and 17:00"),
            ("30 3 * * 1-5", "at 03:30 from Monday to Friday"),
            ("0 0 * * 0", "at 00:00 on Sunday"),
            ("0 0 1 * *", "at 00:00 on day 1 of the month"),
            ("0 0 L * *", "at 00:00 on the last day of the month"),
            ("0 8 * * 1#2", "at 08:00 on the second Monday of the month"),
            ("0 8 13 * 5", "at 08:00 on day 13 of the month or on Friday"),
            ("0 0 1 1 *", "at 00:00 on day 1 of the month in January"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("0 */2 * * *", "every 2 hours"),
            ("@daily", "at 00:00"),
            ("3,17 * * * *", "at minutes 3 and 17"),
            (
                "* 9-17 * * mon,wed",
                "every minute, during the hours 9 to 17, on Monday and Wednesday",
            ),
        ] {
            assert_eq!(Cron::parse(expression, None).unwrap().describe(), words, "{expression}");
        }
    }

    #[test]
    fn fields_are_read_as_v1_reads_them() {
        let after = "2026-01-01T00:00:00Z"; // a Thursday
        check("*/15 * * * *", "UTC", after, &["2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"]);
        check("30 */15 * * * *", "UTC", after, &["2026-01-01T00:00:30Z", "2026-01-01T00:15:30Z"]);
        check("5/20 9-10 * * *", "UTC", after, &["2026-01-01T09:05:00Z", "2026-01-01T09:25:00Z"]);
        check("0 0 * * MON", "UTC", after, &["2026-01-05T00:00:00Z"]);
        check("0 0 * * 7", "UTC", after, &["2026-01-04T00:00:00Z"]);
        check("0 0 * * 0", "UTC", after, &["2026-01-04T00:00:00Z"]);
        check("0 0 * Feb ?", "UTC", after, &["2026-02-01T00:00:00Z"]);
        check("0 0 L * *", "UTC", after, &["2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"]);
        check("0 0 * * 5L", "UTC", after, &["2026-01-30T00:00:00Z", "2026-02-27T00:00:00Z"]);
        check("0 0 * * 1#1", "UTC", after, &["2026-01-05T00:00:00Z", "2026-02-02T00:00:00Z"]);
        check(
            "0 0 13 * 5",
            "UTC",
            after,
            &["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"],
        );
        check("0 12 29 2 *", "UTC", after, &["2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"]);
        check("", "UTC", after, &["2026-01-01T00:01:00Z"]);
        check("5", "UTC", after, &["2026-01-02T00:00:00Z", "2026-01-02T00:01:00Z"]);
        check("@hourly", "UTC", after, &["2026-01-01T01:00:00Z"]);
        check("@Weekly", "UTC", after, &["2026-01-04T00:00:00Z"]);
        check("59 59 23 31 12 *", "UTC", after, &["2026-12-31T23:59:59Z"]);
    }

    #[test]
    fn an_occurrence_is_after_and_not_at_the_moment() {
        check("0 0 * * *", "UTC", "2026-01-01T00:00:00Z", &["2026-01-02T00:00:00Z"]);
        check("0 0 * * *", "UTC", "2025-12-31T23:59:59.999Z", &["2026-01-01T00:00:00Z"]);
        check("* * * * * *", "UTC", "2026-01-01T00:00:00.500Z", &["2026-01-01T00:00:01Z"]);
    }

    #[test]
    fn bad_expressions_say_what_is_wrong() {
        for (expression, why) in [
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day of month"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "day of week"),
            ("5-1 * * * *", "backwards"),
            ("*/0 * * * *", "minute"),
            ("a * * * *", "minute"),
            ("+5 * * * *", "minute"),
            ("? * * * *", "minute"),
            ("* * * * * * *", "7 fields"),
            ("0 0 30 2 *", "no such day"),
            ("0 0 31 4,6 *", "no such day"),
            ("0 0 * * 1#6", "week"),
            ("@reboot", "not known"),
            ("1,,2 * * * *", "minute"),
            ("- * * * *", "minute"),
        ] {
            let error = Cron::parse(expression, None).unwrap_err().to_string();
            assert!(error.contains(why), "{expression}: {error}");
        }
        assert!(Cron::parse("* * * * *", Some("Mars/Phobos")).is_err());
    }

    #[test]
    fn a_skipped_time_runs_later_by_as_much_as_was_skipped() {
        // Berlin, 29 March 2026: 02:00 becomes 03:00.
        check(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T00:00:00Z",
            &["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        );
        // Two times that fall together run once.
        check(
            "30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-29T00:00:00Z",
            &["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        );
        // Beirut, 29 March 2026: midnight itself is skipped.
        check(
            "15 0 29 3 *",
            "Asia/Beirut",
            "2026-03-28T00:00:00Z",
            &["2026-03-28T22:15:00Z", "2027-03-28T21:15:00Z"],
        );
    }

    #[test]
    fn a_repeated_time_runs_once_when_the_hour_is_given() {
        // Berlin, 25 October 2026: 03:00 becomes 02:00.
        check(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        );
    }

    #[test]
    fn every_hour_goes_by_elapsed_time() {
        check(
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30:00Z",
            &["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"],
        );
        check(
            "30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00:00Z",
            &["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"],
        );
        // Half an hour: Lord Howe, 5 April 2026, 02:00 becomes 01:30.
        check(
            "45 * * * *",
            "Australia/Lord_Howe",
            "2026-04-04T14:00:00Z",
            &["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-04T16:15:00Z"],
        );
    }

    #[test]
    fn missed_occurrences_are_bounded_to_the_latest() {
        let cron = Cron::parse("0 * * * *", None).unwrap();
        let from = at("2026-01-01T00:00:00Z");
        let found = cron.between(from, at("2026-01-01T03:00:00Z"), 100);
        assert_eq!(found.len(), 3);
        let found = cron.between(from, at("2026-02-01T00:30:00Z"), 2);
        assert_eq!(found, [at("2026-01-31T23:00:00Z"), at("2026-02-01T00:00:00Z")]);
        let secondly = Cron::parse("* * * * * *", None).unwrap();
        let found = secondly.between(from, at("2027-01-01T00:00:00Z"), 3);
        assert_eq!(found.last(), Some(&at("2027-01-01T00:00:00Z")));
        assert_eq!(found.len(), 3);
    }

    proptest::proptest! {
        #[test]
        fn each_occurrence_matches_and_none_is_left_out(
            minute in 0u32..60, hour in 0u32..24, start in 1_600_000_000i64..1_900_000_000,
        ) {
            let cron = Cron::parse(&format!("{minute} {hour} * * *"), Some("America/New_York")).unwrap();
            let zone = TimeZone::get("America/New_York").unwrap();
            let from = Timestamp::from_second(start).unwrap();
            let next = cron.next_after(Millis(from.as_millisecond())).unwrap();
            let next = Timestamp::from_millisecond(next.0).unwrap();
            proptest::prop_assert!(next > from);
            proptest::prop_assert!(next.as_second() - start <= 25 * 3_600);
            let local = zone.to_datetime(next);
            let plain = local.minute() as u32 == minute && local.hour() as u32 == hour;
            // Only in the skipped hour may it be later.
            proptest::prop_assert!(plain || hour == 2 && local.hour() == 3, "{local}");
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}", after in proptest::num::i64::ANY) {
            if let Ok(cron) = Cron::parse(&text, Some("Europe/Berlin")) {
                cron.next_after(Millis(after));
            }
        }
    }
}
