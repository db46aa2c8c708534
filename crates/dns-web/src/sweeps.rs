//! Sweeps of the cache by this instance: the last one, and sums of the last 24 hours.

use std::collections::VecDeque;
use std::sync::Arc;

use dns::SweepReport;
use parking_lot::Mutex;
use store::Millis;

/// Hours that are summed up.
const HOURS: i64 = 24;

/// The sweeps. A cheap clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SweepHistory(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    last: Option<(Millis, SweepReport)>,
    /// By hour since 1970, oldest first.
    hours: VecDeque<(i64, SweepSums)>,
}

/// Sums of sweeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SweepSums {
    pub(crate) sweeps: u64,
    pub(crate) refreshed: u64,
    /// Nobody asked for them.
    pub(crate) cold: u64,
    /// Above the cap.
    pub(crate) evicted: u64,
    /// Members of the index without an answer.
    pub(crate) reconciled: u64,
    /// Expired in memory.
    pub(crate) dropped: u64,
}

impl SweepSums {
    fn add(&mut self, other: SweepSums) {
        self.sweeps += other.sweeps;
        self.refreshed += other.refreshed;
        self.cold += other.cold;
        self.evicted += other.evicted;
        self.reconciled += other.reconciled;
        self.dropped += other.dropped;
    }
}

impl SweepHistory {
    /// Notes a sweep.
    pub(crate) fn add(&self, report: SweepReport, now: Millis) {
        let mut inner = self.0.lock();
        inner.last = Some((now, report));
        let hour = now.as_secs().div_euclid(3_600);
        let sums = SweepSums {
            sweeps: 1,
            refreshed: report.refreshed as u64,
            cold: report.cold as u64,
            evicted: report.evicted as u64,
            reconciled: report.reconciled as u64,
            dropped: report.dropped as u64,
        };
        match inner.hours.back_mut() {
            Some((last, known)) if *last == hour => known.add(sums),
            _ => inner.hours.push_back((hour, sums)),
        }
        while inner.hours.front().is_some_and(|(first, _)| *first <= hour - HOURS) {
            inner.hours.pop_front();
        }
    }

    /// Returns the last sweep and its time.
    pub(crate) fn last(&self) -> Option<(Millis, SweepReport)> {
        self.0.lock().last
    }

    /// Returns the sums of the last 24 hours.
    pub(crate) fn day(&self, now: Millis) -> SweepSums {
        let hour = now.as_secs().div_euclid(3_600);
        let mut sums = SweepSums::default();
        for (at, one) in &self.0.lock().hours {
            if *at > hour - HOURS {
                sums.add(*one);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_last_day() {
        let history = SweepHistory::default();
        let report = SweepReport { refreshed: 3, cold: 1, ..SweepReport::default() };
        let hour = 3_600_000;
        for at in [0, 1, 30, 31] {
            history.add(report, Millis(at * hour));
        }
        let day = history.day(Millis(31 * hour));
        assert_eq!((day.sweeps, day.refreshed, day.cold), (2, 6, 2));
        assert_eq!(history.last(), Some((Millis(31 * hour), report)));
        assert_eq!(history.day(Millis(100 * hour)), SweepSums::default());
    }
}
