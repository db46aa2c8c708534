//! Backoff: the delay before the next attempt. Pure: randomness comes in as a number.

use std::time::Duration;

use crate::job::Backoff;

/// Growth of the delay from one retry to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    /// The same each time.
    Fixed,
    /// `delay`, `2 × delay`, `3 × delay`, …
    Linear,
    /// `delay`, `2 × delay`, `4 × delay`, …
    #[default]
    Exponential,
}

/// The longest wait there is, whatever a job asks for: 30 days. Keeps sums of a corrupt or hostile
/// job within what a clock can hold.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Backoff {
    /// The wait before retry number `attempt`, where the first retry is number 0, so that it waits
    /// `delay` with every growth. The cap comes before the jitter of ±25 %, which may exceed it,
    /// as in v1; `chance` is uniform in 0 to 1.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_jobs::{Backoff, Growth};
    ///
    /// let backoff = Backoff { delay: Duration::from_secs(2), ..Backoff::default() };
    /// assert_eq!(backoff.growth, Growth::Exponential);
    /// assert_eq!(backoff.wait(3, 0.5), Duration::from_secs(16));
    /// ```
    pub fn wait(&self, attempt: u32, chance: f64) -> Duration {
        let delay = self.delay.as_millis() as f64;
        let grown = match self.growth {
            Growth::Fixed => delay,
            Growth::Linear => delay * (f64::from(attempt) + 1.0),
            Growth::Exponential => delay * 2f64.powi(i32::try_from(attempt).unwrap_or(i32::MAX)),
        };
        let capped = match self.max_delay {
            Some(max) if !max.is_zero() => grown.min(max.as_millis() as f64),
            _ => grown,
        };
        let jittered = match self.jitter {
            true => capped * (0.75 + 0.5 * chance.clamp(0.0, 1.0)),
            false => capped,
        };
        let ms = jittered.floor().clamp(0.0, WAIT_MAX.as_millis() as f64);
        Duration::from_millis(ms as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(growth: Growth, max: Option<u64>, attempts: &[u32]) -> Vec<u128> {
        let backoff = Backoff {
            growth,
            delay: Duration::from_millis(2_000),
            max_delay: max.map(Duration::from_millis),
            jitter: false,
        };
        attempts.iter().map(|attempt| backoff.wait(*attempt, 0.5).as_millis()).collect()
    }

    #[test]
    fn the_first_retry_waits_the_base_delay_and_then_grows() {
        assert_eq!(waits(Growth::Fixed, None, &[0, 1, 2]), [2_000, 2_000, 2_000]);
        assert_eq!(waits(Growth::Linear, None, &[0, 1, 2]), [2_000, 4_000, 6_000]);
        assert_eq!(waits(Growth::Exponential, None, &[0, 1, 2, 3]), [2_000, 4_000, 8_000, 16_000]);
    }

    #[test]
    fn the_cap_holds_and_zero_is_none() {
        assert_eq!(waits(Growth::Exponential, Some(5_000), &[0, 1, 9]), [2_000, 4_000, 5_000]);
        assert_eq!(waits(Growth::Exponential, Some(0), &[2]), [8_000]);
    }

    #[test]
    fn jitter_is_a_quarter_either_way_after_the_cap() {
        let backoff = Backoff {
            growth: Growth::Fixed,
            delay: Duration::from_millis(1_000),
            max_delay: Some(Duration::from_millis(800)),
            jitter: true,
        };
        assert_eq!(backoff.wait(0, 0.0).as_millis(), 600);
        assert_eq!(backoff.wait(0, 0.5).as_millis(), 800);
        assert_eq!(backoff.wait(0, 1.0).as_millis(), 1_000);
    }

    #[test]
    fn no_attempt_number_overflows() {
        assert_eq!(waits(Growth::Exponential, None, &[5_000, u32::MAX]), [2_592_000_000; 2]);
        assert_eq!(waits(Growth::Linear, None, &[u32::MAX]), [2_592_000_000]);
    }
}
