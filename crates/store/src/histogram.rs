//! Durations in buckets: small, exact to add up over instances, and good for quantiles.
//!
//! There are 17 buckets per decade from 100 µs to 1,000 s, with edges such as 1, 2.5 and 5 ms, so
//! that round bounds of Prometheus fall on an edge. A bucket is at most 16.7 % wide, and a quantile
//! is the geometric middle of its bucket, hence within 8.1 % of the true one.

use std::time::Duration;

/// Number of buckets: one up to 100 µs, 17 for each of seven decades, one above.
pub const BUCKETS: usize = 2 + STEPS.len() * DECADES;

/// Upper edges of the first decade in microseconds; each further decade has ten times as much.
const STEPS: [u64; 17] =
    [115, 130, 150, 175, 200, 225, 250, 290, 330, 380, 440, 500, 575, 660, 760, 870, 1_000];

/// Upper edge of the first bucket in microseconds.
const FIRST_US: u64 = 100;

const DECADES: usize = 7;

/// Counts of durations, one per bucket.
pub type Buckets = [u64; BUCKETS];

/// Returns the bucket of a duration: the first whose upper edge is not below it.
///
/// ```
/// use std::time::Duration;
/// use tidegate_store::histogram::{bucket, upper_edge};
///
/// let edge = upper_edge(bucket(Duration::from_micros(2_400)));
/// assert_eq!(edge, Some(Duration::from_micros(2_500)));
/// ```
pub fn bucket(duration: Duration) -> usize {
    // Rounded up, so that what is longer than an edge by a nanosecond is above it.
    let us = duration.as_nanos().div_ceil(1_000);
    let mut us = u64::try_from(us).unwrap_or(u64::MAX);
    if us <= FIRST_US {
        return 0;
    }
    for decade in 0..DECADES {
        if us <= FIRST_US * 10 {
            let step = STEPS.partition_point(|edge| *edge < us);
            return 1 + decade * STEPS.len() + step;
        }
        us = us.div_ceil(10);
    }
    BUCKETS - 1
}

/// Returns the upper edge of a bucket; none for the last, which has none.
pub fn upper_edge(bucket: usize) -> Option<Duration> {
    let Some(index) = bucket.checked_sub(1) else {
        return Some(Duration::from_micros(FIRST_US));
    };
    let (decade, step) = (index / STEPS.len(), index % STEPS.len());
    if decade >= DECADES {
        return None;
    }
    let edge = STEPS.get(step)?;
    let factor = 10_u64.pow(u32::try_from(decade).ok()?);
    Some(Duration::from_micros(edge * factor))
}

/// Returns the duration that stands for a bucket: the geometric middle of its edges.
fn middle(bucket: usize) -> Duration {
    let above = upper_edge(bucket);
    let below = bucket.checked_sub(1).and_then(upper_edge);
    match (below, above) {
        (Some(below), Some(above)) => {
            Duration::from_secs_f64((below.as_secs_f64() * above.as_secs_f64()).sqrt())
        }
        (None, Some(edge)) | (Some(edge), None) => edge,
        (None, None) => Duration::ZERO,
    }
}

/// Returns the duration below which a share of the counted ones were: 0.99 is p99. `None` without
/// any.
pub fn quantile(counts: &Buckets, share: f64) -> Option<Duration> {
    let total: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
    if total == 0 {
        return None;
    }
    // The one of this rank, from 1.
    let rank = ((total as f64 * share).ceil() as u64).clamp(1, total);
    let mut seen = 0_u64;
    let found = counts.iter().position(|count| {
        seen = seen.saturating_add(*count);
        seen >= rank
    });
    found.map(middle)
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

    #[test]
    fn an_edge_belongs_to_the_bucket_below_it() {
        for index in 0..BUCKETS - 1 {
            let edge = upper_edge(index).unwrap();
            assert_eq!(bucket(edge), index, "{edge:?}");
            assert_eq!(bucket(edge + Duration::from_nanos(1)), index + 1, "{edge:?}");
        }
        assert_eq!(upper_edge(BUCKETS - 1), None);
        assert_eq!(upper_edge(BUCKETS - 2), Some(Duration::from_secs(1_000)));
    }
}
