//! Estimate of the wait, or the reason there is none.
//!
//! A range from measured admissions, not from the configured rate; never zero while waiting; none while
//! the queue is paused or before enough was measured.

use std::time::Duration;

use store::Millis;

use crate::{QueueStatus, snapshot::QueueSnapshot};

/// Estimated wait of a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Optimistic estimate.
    pub low: Duration,
    /// Likely estimate.
    pub likely: Duration,
    /// Pessimistic estimate.
    pub high: Duration,
}

/// Reason for which there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEstimate {
    /// The position does not wait.
    NotWaiting,
    /// The queue is paused or closed.
    Paused,
    /// Too few visitors were admitted to measure a rate.
    NoData,
}

impl NoEstimate {
    /// Returns the name used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            NoEstimate::NotWaiting => "not_waiting",
            NoEstimate::Paused => "paused",
            NoEstimate::NoData => "no_data",
        }
    }
}

/// Admissions needed before a rate counts as measured.
const MIN_SAMPLES: u64 = 10;
/// Minutes the rate is measured over.
const WINDOW_MINUTES: i64 = 5;
/// Longest estimate in seconds; beyond it the number means nothing.
const MAX_WAIT_SECONDS: f64 = 7.0 * 86_400.0;

/// Pace of a queue, in admissions per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    slow: f64,
    likely: f64,
    fast: f64,
}

impl Pace {
    /// Measures the pace of a queue.
    pub(crate) fn of(snapshot: &QueueSnapshot, now: Millis) -> Result<Pace, NoEstimate> {
        let configured = snapshot.config.admission.per_second();
        let minute = now.0.div_euclid(60_000);
        let within = now.0.rem_euclid(60_000) as f64 / 1000.0;
        let recent: Vec<(i64, u64)> =
            snapshot.minutes().filter(|(of, _)| (minute - 10..=minute).contains(of)).collect();
        let released: u64 = recent
            .iter()
            .filter(|(of, _)| *of > minute - WINDOW_MINUTES)
            .map(|(_, count)| count)
            .sum();
        let oldest = recent
            .iter()
            .map(|(of, _)| *of)
            .min()
            .unwrap_or(minute)
            .max(minute - WINDOW_MINUTES + 1);
        let span = (minute - oldest) as f64 * 60.0 + within.max(1.0);
        let measured = (released >= MIN_SAMPLES).then(|| released as f64 / span);
        let rate_bound = snapshot.free().is_none_or(|free| free > 0);
        let rate = match measured {
            Some(measured) if configured > 0.0 => measured.min(configured),
            Some(measured) => measured,
            None if rate_bound && configured > 0.0 => configured,
            None => return Err(NoEstimate::NoData),
        };

        // The spread comes from whole minutes of the last ten, if there are enough of them.
        let mut whole: Vec<u64> = Vec::new();
        for of in oldest_of(&recent, minute)..minute {
            whole.push(recent.iter().find(|(m, _)| *m == of).map_or(0, |(_, count)| *count));
        }
        whole.sort_unstable();
        let percentile = |share: f64| {
            whole.get(((whole.len() - 1) as f64 * share).round() as usize).map(|c| *c as f64 / 60.0)
        };
        let (slow, fast) = if measured.is_some() && whole.len() >= 3 {
            (percentile(0.2).unwrap_or(rate).min(rate), percentile(0.8).unwrap_or(rate).max(rate))
        } else {
            (rate * 0.8, rate * 1.25)
        };
        Ok(Pace { slow: slow.max(rate / 4.0), likely: rate, fast })
    }
}

/// Estimates the wait of the visitor with this number in line.
pub(crate) fn estimate(number: u64, snapshot: &QueueSnapshot) -> Result<Estimate, NoEstimate> {
    if snapshot.status != QueueStatus::Active {
        return Err(NoEstimate::Paused);
    }
    let Pace { slow, likely, fast } = snapshot.pace?;
    let need = number.max(1) as f64;
    let wait = |rate: f64| {
        Duration::from_secs_f64((need / rate.max(1e-9)).clamp(1.0, MAX_WAIT_SECONDS).ceil())
    };
    Ok(Estimate { low: wait(fast), likely: wait(likely), high: wait(slow) })
}

fn oldest_of(recent: &[(i64, u64)], minute: i64) -> i64 {
    recent.iter().map(|(of, _)| *of).min().unwrap_or(minute).max(minute - 10)
}

/// Divisor of the estimated wait that gives the interval between polls, within the queue's bounds.
pub const POLL_DIVISOR: u32 = 10;

/// Returns the delay before the next poll: a tenth of the wait, within the queue's bounds.
pub(crate) fn next_poll(
    estimate: &Result<Estimate, NoEstimate>,
    snapshot: &QueueSnapshot,
) -> Duration {
    let config = &snapshot.config;
    match estimate {
        Ok(estimate) => {
            (estimate.likely / POLL_DIVISOR).clamp(config.poll_floor, config.poll_ceiling)
        }
        Err(_) => config.heartbeat_interval,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{AdmissionRate, QueueConfig};

    fn snapshot(rate: AdmissionRate, minutes: &[(i64, u64)]) -> QueueSnapshot {
        let mut state = HashMap::new();
        for (minute, count) in minutes {
            state.insert(format!("minute_{}", minute % 16), minute.to_string());
            state.insert(format!("admitted_{}", minute % 16), count.to_string());
        }
        QueueSnapshot {
            at: Millis(0),
            config: QueueConfig { admission: rate, max_active: 0, ..QueueConfig::default() },
            status: QueueStatus::Active,
            version: 1,
            created: Millis(0),
            updated: Millis(0),
            waiting: 0,
            admitted: 0,
            active: 0,
            state,
            floor: Millis(0),
            pace: Err(NoEstimate::NoData),
        }
    }

    /// The estimate by a snapshot read now.
    fn estimate(
        position: u64,
        snapshot: &QueueSnapshot,
        now: Millis,
    ) -> Result<Estimate, NoEstimate> {
        let pace = Pace::of(snapshot, now);
        super::estimate(position, &QueueSnapshot { pace, ..snapshot.clone() })
    }

    const NOW: Millis = Millis(1_000 * 60_000);

    #[test]
    fn before_anything_is_measured_the_rate_counts_if_it_is_what_binds() {
        let mut p = snapshot(AdmissionRate::new(10, 1), &[]);
        let e = estimate(100, &p, NOW).unwrap();
        assert_eq!(e.likely, Duration::from_secs(10));
        assert!(e.low < e.likely && e.likely < e.high);
        p.config.max_active = 5;
        p.active = 5;
        assert_eq!(estimate(100, &p, NOW), Err(NoEstimate::NoData), "a full site says nothing");
    }

    #[test]
    fn the_measured_rate_counts_once_there_is_one() {
        let minutes: Vec<_> = (990..1000).map(|m| (m, 60)).collect();
        let p = snapshot(AdmissionRate::new(10, 1), &minutes);
        let e = estimate(60, &p, Millis(NOW.0 + 1)).unwrap();
        assert!((59..=63).contains(&e.likely.as_secs()), "{e:?}");
    }

    #[test]
    fn it_is_never_zero_and_never_known_while_paused() {
        let mut p = snapshot(AdmissionRate::new(1000, 1), &[]);
        assert!(estimate(1, &p, NOW).unwrap().low >= Duration::from_secs(1));
        p.status = QueueStatus::Paused;
        assert_eq!(estimate(1, &p, NOW), Err(NoEstimate::Paused));
        let none = snapshot(AdmissionRate::new(0, 1), &[]);
        assert_eq!(estimate(1, &none, NOW), Err(NoEstimate::NoData));
    }

    #[test]
    fn a_whole_sale_takes_what_the_rate_says() {
        // 45,000 visitors at 500 a minute: the last one waits 90 minutes.
        let p = snapshot(AdmissionRate::new(500, 60), &[]);
        assert_eq!(estimate(45_000, &p, NOW).unwrap().likely, Duration::from_secs(90 * 60));
        assert_eq!(estimate(22_500, &p, NOW).unwrap().likely, Duration::from_secs(45 * 60));
    }

    #[test]
    fn polls_come_more_often_near_the_front() {
        let p = snapshot(AdmissionRate::new(1, 1), &[]);
        let poll = |position| next_poll(&estimate(position, &p, NOW), &p).as_secs();
        assert_eq!((poll(1), poll(100), poll(10_000)), (5, 10, 60));
    }
}
