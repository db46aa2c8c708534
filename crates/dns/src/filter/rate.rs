//! Rate limit per client network, in process.
//!
//! GCRA in a fixed table of atomics: each slot holds a tag of its network and the time at which its
//! bucket would be full again. Invariants: no network gets more than burst + rate × time; a look takes
//! no lock and allocates nothing. Networks that share all their slots share a bucket, which makes the
//! limit stricter, never looser.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use foldhash::fast::RandomState;
use store::Millis;

/// Slots; a slot is eight bytes.
const SLOTS: usize = 1 << 16;

/// Slots a network may be in.
const WAYS: usize = 4;

/// Bits of a slot that hold the time in microseconds since the limiter was made: 2.2 years.
const TIME_BITS: u32 = 46;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Jitter of the clock that counts as none having been set back.
const CLOCK_SLACK_US: u64 = 1_000_000;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateRule {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
    pub(crate) ipv4_prefix: u8,
    pub(crate) ipv6_prefix: u8,
}

/// Buckets of all networks.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    start: Millis,
}

impl RateLimiter {
    pub(crate) fn new(now: Millis) -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { slots, hasher: RandomState::default(), start: now }
    }

    /// Takes one query of a client out of its bucket; false if it is empty.
    pub(crate) fn take(&self, rule: RateRule, client: IpAddr, now: Millis) -> bool {
        if rule.per_second == 0 {
            return true;
        }
        let hash = self.hash(rule, client);
        let tag = (hash >> TIME_BITS).max(1) << TIME_BITS;
        // Milliseconds of the clock are enough: a bucket is full after burst / rate.
        let now_us = now.since(self.start).as_micros().min(u128::from(TIME_MASK / 2)) as u64;
        let cost_us = 1_000_000 / u64::from(rule.per_second).max(1);
        let cost_us = cost_us.max(1);
        let allowance_us = cost_us.saturating_mul(u64::from(rule.burst.max(1)) - 1);
        let home = hash as usize % SLOTS;
        let mut chosen = home;
        for way in 0..WAYS {
            let at = (home + way) % SLOTS;
            let slot = self.slots[at].load(Ordering::Relaxed);
            if slot & !TIME_MASK == tag {
                chosen = at;
                break;
            }
            // Free, or of a network whose bucket is full again.
            if slot & TIME_MASK <= now_us {
                chosen = at;
                break;
            }
        }
        let slot = &self.slots[chosen];
        let mut current = slot.load(Ordering::Relaxed);
        loop {
            // No bucket was ever this empty: the clock was set back. It starts full again rather than
            // to refuse everybody until the old time is reached.
            let is_ahead = (current & TIME_MASK) > now_us + allowance_us + cost_us + CLOCK_SLACK_US;
            let known = if is_ahead { 0 } else { current & TIME_MASK };
            let full_at = known.max(now_us);
            if full_at - now_us > allowance_us {
                return false;
            }
            // Another network's tag stays while its bucket is not full: the two share it.
            let is_shared = current & !TIME_MASK != tag && known > now_us;
            let kept_tag = if is_shared { current & !TIME_MASK } else { tag };
            let next = kept_tag | (full_at + cost_us).min(TIME_MASK);
            match slot.compare_exchange_weak(current, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => current = seen,
            }
        }
    }

    fn hash(&self, rule: RateRule, client: IpAddr) -> u64 {
        let (bits, prefix, width) = match client {
            IpAddr::V4(address) => (u128::from(u32::from(address)), rule.ipv4_prefix, 32),
            IpAddr::V6(address) => (u128::from(address), rule.ipv6_prefix, 128),
        };
        let dropped = u32::from(width - prefix.min(width));
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u8(width);
        hasher.write_u128(bits.checked_shr(dropped).unwrap_or(0));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: RateRule = RateRule { per_second: 10, burst: 5, ipv4_prefix: 24, ipv6_prefix: 64 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_gets_its_burst_and_then_its_rate() {
        let limiter = RateLimiter::new(Millis(0));
        let take = |client: &str, ms| limiter.take(RULE, address(client), Millis(ms));
        let at_once = (0..20).filter(|_| take("192.0.2.1", 1_000)).count();
        assert_eq!(at_once, 5);
        assert!(!take("192.0.2.77", 1_000), "the same network");
        assert!(take("198.51.100.1", 1_000) && take("2001:db8::1", 1_000), "others");
        assert!(take("192.0.2.1", 1_100) && !take("192.0.2.1", 1_100));
        let later = (0..20).filter(|_| take("192.0.2.1", 60_000)).count();
        assert_eq!(later, 5, "no more than the burst");
        let unlimited = RateRule { per_second: 0, ..RULE };
        assert!((0..100).all(|_| limiter.take(unlimited, address("192.0.2.1"), Millis(1))));
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let limiter = RateLimiter::new(Millis(0));
        let take = |ms| limiter.take(RULE, address("192.0.2.1"), Millis(ms));
        let hour = 3_600_000;
        assert_eq!((0..20).filter(|_| take(2 * hour)).count(), 5);
        assert_eq!((0..20).filter(|_| take(hour)).count(), 5, "an hour back: a full bucket");
        assert!(!take(hour) && take(hour + 100), "and then the rate");
    }

    proptest! {
        /// Over any window, whatever the order and the spacing of queries.
        #[test]
        fn never_more_than_burst_and_rate(
            per_second in 1_u32..200,
            burst in 1_u32..50,
            steps in prop::collection::vec((0_u64..400, 1_usize..20), 1..60),
        ) {
            let rule = RateRule { per_second, burst, ..RULE };
            let limiter = RateLimiter::new(Millis(0));
            let (mut now, mut taken) = (0_i64, Vec::new());
            for (wait, queries) in steps {
                now += i64::try_from(wait).unwrap();
                let got = (0..queries)
                    .filter(|_| limiter.take(rule, address("192.0.2.1"), Millis(now)))
                    .count();
                taken.push((now, got));
            }
            for (index, (start, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for (at, got) in &taken[index..] {
                    sum += got;
                    // A whole number of microseconds per query may round the rate up a little.
                    let most = f64::from(burst)
                        + f64::from(per_second) * 1.001 * (at - start) as f64 / 1_000.0 + 1.0;
                    prop_assert!(sum as f64 <= most, "{} > {}", sum, most);
                }
            }
        }
    }
}
