//! Response times in buckets that grow by 15 %, so that a quantile is within 8 % and the buckets of
//! several instances can be added.

use std::time::Duration;

/// Number of buckets: from 100 µs to about 80 minutes.
pub(crate) const BUCKETS: usize = 128;

/// Upper edge of the first bucket.
const FIRST_US: f64 = 100.0;

/// Width of a bucket relative to the one before.
const GROWTH: f64 = 1.15;

/// Returns the bucket of a duration.
pub(crate) fn bucket(duration: Duration) -> usize {
    let us = duration.as_secs_f64() * 1e6;
    if us <= FIRST_US {
        return 0;
    }
    let index = ((us / FIRST_US).ln() / GROWTH.ln()).ceil();
    // The value is positive, and a cast of a greater one saturates.
    (index as usize).min(BUCKETS - 1)
}

/// Returns the duration that stands for a bucket: the geometric middle of its edges.
fn middle(bucket: usize) -> Duration {
    let exponent = bucket as f64 - if bucket == 0 { 0.0 } else { 0.5 };
    Duration::from_secs_f64(FIRST_US * GROWTH.powf(exponent) / 1e6)
}

/// Returns the duration below which a share of the requests were: 0.99 is p99. `None` without any.
pub(crate) fn quantile(counts: &[u64; BUCKETS], share: f64) -> Option<Duration> {
    let total: u64 = counts.iter().sum();
    // The request of this rank, from 1.
    let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    let found = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    if total == 0 { None } else { found.map(middle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_ten_percent() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let (mut counts, scale) = ([0; BUCKETS], random.f64() * 12.0);
            let mut times: Vec<f64> = (0..random.usize(1..2_000))
                .map(|_| 150e-6 * (scale * random.f64()).exp())
                .collect();
            for time in &times {
                counts[bucket(Duration::from_secs_f64(*time))] += 1;
            }
            times.sort_by(f64::total_cmp);
            for share in [0.5, 0.9, 0.99] {
                let rank = ((times.len() as f64 * share).ceil() as usize).max(1);
                let exact = times[rank - 1];
                let told = quantile(&counts, share).unwrap().as_secs_f64();
                assert!((told / exact - 1.0).abs() < 0.1, "{share}: {told} for {exact}");
            }
        }
        assert_eq!(quantile(&[0; BUCKETS], 0.5), None);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket(Duration::ZERO), 0);
    }
}
