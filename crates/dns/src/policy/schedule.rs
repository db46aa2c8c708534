//! Windows of a week in a time zone.
//!
//! A window is a matter of the clock on the wall: 22:00 to 06:00 is what the clock shows, so on the
//! night of a change to or from summer time it is an hour shorter or longer, and an hour that the
//! clock shows twice is inside or outside both times. Invariant: between a moment and its
//! [`next_change`](CheckedSchedule::next_change) the schedule does not change.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _, civil::Weekday, tz::TimeZone};
use store::Millis;

use super::{
    check::PolicyError,
    document::{ScheduleWindow, WeekSchedule},
};

/// Most windows of one schedule.
const WINDOWS_MAX: usize = 100;

/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// Days in which a change is looked for: a week, and one for a window that began the day before.
const SEARCH_DAYS: i8 = 8;

/// A schedule that is valid.
#[derive(Clone, Debug)]
pub struct CheckedSchedule {
    zone: TimeZone,
    windows: Vec<CheckedWindow>,
}

#[derive(Clone, Copy, Debug)]
struct CheckedWindow {
    /// Days on which it starts; the lowest bit is Monday.
    days: u8,
    start: u16,
    /// At most the start if it is on the next day.
    end: u16,
}

impl CheckedWindow {
    fn new(window: &ScheduleWindow) -> Result<Self, String> {
        let days = window.days.iter().fold(0, |days, day| days | 1 << (*day as u8));
        if days == 0 {
            return Err("names no day, so it never starts".to_owned());
        }
        let (start, end) = (minute_of_day(&window.start)?, minute_of_day(&window.end)?);
        if start == end || start == DAY_MINUTES {
            return Err(format!(
                "from {} to {} never starts; a whole day is 00:00 to 24:00",
                window.start, window.end
            ));
        }
        Ok(Self { days, start, end })
    }

    fn has_day(self, day: u8) -> bool {
        self.days & (1 << day) != 0
    }

    /// Returns true if the window is on at this minute of this day.
    fn is_on(self, day: u8, minute: u16) -> bool {
        let yesterday = (day + 6) % 7;
        if self.start < self.end {
            self.has_day(day) && (self.start..self.end).contains(&minute)
        } else {
            (self.has_day(day) && minute >= self.start)
                || (self.has_day(yesterday) && minute < self.end)
        }
    }
}

/// Reads `HH:MM`, up to 24:00.
fn minute_of_day(text: &str) -> Result<u16, String> {
    let parse = || {
        let (hours, minutes) = text.split_once(':')?;
        let is_pair = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        if !is_pair(hours) || !is_pair(minutes) {
            return None;
        }
        let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
        (minutes < 60 && hours * 60 + minutes <= DAY_MINUTES).then_some(hours * 60 + minutes)
    };
    parse().ok_or_else(|| format!("{text:?} is not a time; write one such as 07:30"))
}

impl CheckedSchedule {
    /// Reads a schedule; refuses one that never starts.
    pub fn new(schedule: &WeekSchedule) -> Result<Self, PolicyError> {
        let zone = TimeZone::get(&schedule.time_zone).map_err(|_| {
            let reason = format!(
                "{:?} is not a time zone; write one such as Europe/Berlin",
                schedule.time_zone
            );
            PolicyError::new("time_zone", reason)
        })?;
        if schedule.windows.is_empty() || schedule.windows.len() > WINDOWS_MAX {
            let reason = match schedule.windows.len() {
                0 => "has no window, so the schedule never starts".to_owned(),
                many => format!("has {many} windows; at most {WINDOWS_MAX} are kept"),
            };
            return Err(PolicyError::new("windows", reason));
        }
        let windows = schedule.windows.iter().enumerate().map(|(index, window)| {
            CheckedWindow::new(window)
                .map_err(|reason| PolicyError::new(format!("windows[{index}]"), reason))
        });
        Ok(Self { zone, windows: windows.collect::<Result<_, _>>()? })
    }

    /// Returns true if any window is on.
    pub fn is_on(&self, at: Millis) -> bool {
        Timestamp::from_millisecond(at.0).is_ok_and(|at| self.is_on_at(at))
    }

    fn is_on_at(&self, at: Timestamp) -> bool {
        let local = self.zone.to_datetime(at);
        let day = day_index(local.weekday());
        let minute = u16::try_from(local.hour()).unwrap_or(0) * 60
            + u16::try_from(local.minute()).unwrap_or(0);
        self.windows.iter().any(|window| window.is_on(day, minute))
    }

    /// Returns the next moment at which the schedule goes on or off; none if that is more than a week
    /// away.
    pub fn next_change(&self, at: Millis) -> Option<Millis> {
        let now = Timestamp::from_millisecond(at.0).ok()?;
        let state = self.is_on_at(now);
        let today = self.zone.to_datetime(now).date();
        let end = now.checked_add(Duration::from_secs(8 * 86_400)).ok()?;
        // The schedule changes where a window begins or ends on the wall, or where the wall's clock is
        // set. Each moment found is looked at, so one too many does no harm.
        let mut moments = Vec::new();
        let days = (-1..=SEARCH_DAYS).filter_map(|offset| today.checked_add(offset.days()).ok());
        for date in days {
            let midnight = date.at(0, 0, 0, 0);
            for window in &self.windows {
                for minute in [window.start, window.end] {
                    let Ok(wall) = midnight.checked_add(i64::from(minute).minutes()) else {
                        continue;
                    };
                    let found = self.zone.to_ambiguous_timestamp(wall);
                    moments.extend(found.earlier().ok());
                    moments.extend(found.later().ok());
                }
            }
        }
        let jumps = self.zone.following(now).map(|jump| jump.timestamp());
        moments.extend(jumps.take_while(|jump| *jump <= end).take(16));
        moments.retain(|moment| *moment > now);
        moments.sort();
        let change = moments.into_iter().find(|moment| self.is_on_at(*moment) != state)?;
        Some(Millis(change.as_millisecond()))
    }
}

fn day_index(day: Weekday) -> u8 {
    u8::try_from(day.to_monday_zero_offset()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::WeekDay::{Fri, Mon, Sat, Sun, Thu, Tue, Wed};

    fn window(days: &[usize], start: &str, end: &str) -> ScheduleWindow {
        let week = [Mon, Tue, Wed, Thu, Fri, Sat, Sun];
        let days = days.iter().map(|day| week[*day]).collect();
        ScheduleWindow { days, start: start.to_owned(), end: end.to_owned() }
    }

    fn schedule(zone: &str, windows: Vec<ScheduleWindow>) -> CheckedSchedule {
        CheckedSchedule::new(&WeekSchedule { time_zone: zone.to_owned(), windows }).unwrap()
    }

    fn at(text: &str) -> Millis {
        Millis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn a_window_may_pass_midnight() {
        // Friday evening to Saturday morning.
        let night = schedule("Europe/Berlin", vec![window(&[4], "22:00", "06:00")]);
        for (moment, is_on) in [
            ("2026-11-20T20:59:59Z", false),
            ("2026-11-20T21:00:00Z", true),
            ("2026-11-21T04:59:59Z", true),
            ("2026-11-21T05:00:00Z", false),
            ("2026-11-21T22:00:00Z", false),
        ] {
            assert_eq!(night.is_on(at(moment)), is_on, "{moment}");
        }
        assert_eq!(night.next_change(at("2026-11-18T00:00:00Z")), Some(at("2026-11-20T21:00:00Z")));
        assert_eq!(night.next_change(at("2026-11-20T21:00:00Z")), Some(at("2026-11-21T05:00:00Z")));
    }

    #[test]
    fn a_whole_week_never_changes() {
        let always = schedule("UTC", vec![window(&[0, 1, 2, 3, 4, 5, 6], "00:00", "24:00")]);
        assert!(always.is_on(at("2026-11-20T23:59:59Z")));
        assert_eq!(always.next_change(at("2026-11-20T12:00:00Z")), None);
    }

    #[test]
    fn schedules_that_never_start_are_refused() {
        let refuse = |zone: &str, windows: Vec<ScheduleWindow>| {
            let schedule = WeekSchedule { time_zone: zone.to_owned(), windows };
            CheckedSchedule::new(&schedule).unwrap_err().to_string()
        };
        assert!(refuse("UTC", vec![]).contains("never starts"));
        assert!(refuse("UTC", vec![window(&[], "08:00", "09:00")]).contains("never starts"));
        assert!(refuse("UTC", vec![window(&[1], "08:00", "08:00")]).contains("never starts"));
        assert!(refuse("UTC", vec![window(&[1], "24:00", "08:00")]).contains("never starts"));
        assert!(refuse("UTC", vec![window(&[1], "8:00", "09:00")]).contains("is not a time"));
        assert!(refuse("UTC", vec![window(&[1], "08:00", "24:01")]).contains("is not a time"));
        assert!(refuse("Mars/Base", vec![window(&[1], "08:00", "09:00")]).contains("time zone"));
    }

    /// Zones with changes at odd hours and by half an hour, and one without.
    const ZONES: [&str; 5] =
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "UTC"];

    /// Days around which clocks are set in one of them.
    const DAYS: [&str; 6] = [
        "2026-03-07T00:00:00Z",
        "2026-03-28T00:00:00Z",
        "2026-04-03T00:00:00Z",
        "2026-04-23T00:00:00Z",
        "2026-10-24T00:00:00Z",
        "2026-10-30T00:00:00Z",
    ];

    /// The minutes of the week at which a window is on, one by one.
    fn minutes_of(window: &ScheduleWindow) -> Vec<bool> {
        let mut week = vec![false; 7 * 1_440];
        let (start, end) = (minute_of_day(&window.start), minute_of_day(&window.end));
        let (start, end) = (usize::from(start.unwrap()), usize::from(end.unwrap()));
        let length = if end > start { end - start } else { end + 1_440 - start };
        for day in &window.days {
            for minute in 0..length {
                week[((*day as usize) * 1_440 + start + minute) % (7 * 1_440)] = true;
            }
        }
        week
    }

    fn any_window() -> impl Strategy<Value = ScheduleWindow> {
        (prop::collection::vec(0_usize..7, 1..4), 0_u16..1_440, 1_u16..1_440).prop_map(
            |(days, start, length)| {
                let end = (start + length) % 1_440;
                let text = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
                window(&days, &text(start), &text(end))
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Minute by minute over four days around a change of the clocks.
        #[test]
        fn a_schedule_equals_its_minutes(
            zone in prop::sample::select(&ZONES[..]),
            day in prop::sample::select(&DAYS[..]),
            windows in prop::collection::vec(any_window(), 1..4),
        ) {
            let mut week = vec![false; 7 * 1_440];
            for window in &windows {
                week.iter_mut().zip(minutes_of(window)).for_each(|(on, also)| *on |= also);
            }
            let schedule = schedule(zone, windows);
            let zone = TimeZone::get(zone).unwrap();
            let start = at(day).0 / 60_000 * 60_000;
            let mut change = schedule.next_change(Millis(start - 60_000));
            let mut before = schedule.is_on(Millis(start - 60_000));
            for minute in 0..4 * 1_440 {
                let now = Millis(start + minute * 60_000);
                let wall = zone.to_datetime(Timestamp::from_millisecond(now.0).unwrap());
                let index = usize::from(day_index(wall.weekday())) * 1_440
                    + usize::try_from(wall.hour()).unwrap() * 60
                    + usize::try_from(wall.minute()).unwrap();
                let is_on = schedule.is_on(now);
                prop_assert_eq!(is_on, week[index], "{}", wall);
                prop_assert_eq!(change == Some(now), is_on != before, "{}", wall);
                if is_on != before {
                    change = schedule.next_change(now);
                    before = is_on;
                }
            }
        }
    }
}
