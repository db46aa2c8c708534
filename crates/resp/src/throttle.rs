//! Wrong passwords: counted per address, answered later and later, logged now and then.
//!
//! A few mistakes cost nothing. After those each wrong password is answered later than the one
//! before, and those of one address one after the other, however many connections it has. While
//! that queue is long, its passwords are not even looked at: else the one that is not made to wait
//! would be the right one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Wrong passwords of one address that are answered at once.
const FREE_ATTEMPTS: u32 = 3;
/// The delay of the next one; it doubles with each.
const DELAY_FIRST: Duration = Duration::from_millis(50);
/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Longest delay of the answers to one address.
const QUEUE_MAX: Duration = Duration::from_secs(10);
/// Time without a wrong password after which an address is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are remembered; the one that failed longest ago goes first.
const ADDRESSES_MAX: usize = 4096;
/// There is at most one line in the log in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Wrong passwords by address.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    addresses: HashMap<IpAddr, Failures>,
    logged: Option<Instant>,
    /// Wrong passwords since the last line in the log.
    unlogged: u64,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// Time at which the answer to the last of them goes out.
    answered: Instant,
}

impl Throttle {
    /// Returns how long an address must wait before a password of it is looked at; nothing if it
    /// may try now.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let failures = self.addresses.get(&network(address))?;
        let queued = failures.answered.saturating_duration_since(now);
        (queued >= QUEUE_MAX).then_some(queued)
    }

    /// Counts a wrong password: when it may be answered.
    pub(crate) fn fail(&mut self, address: IpAddr, now: Instant) -> Instant {
        let network = network(address);
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&network) {
            self.forget_one(now);
        }
        let new = Failures { count: 0, last: now, answered: now };
        let failures = self.addresses.entry(network).or_insert(new);
        if now.saturating_duration_since(failures.last) > FORGET_AFTER {
            *failures = Failures { count: 0, last: now, answered: now };
        }
        failures.count = failures.count.saturating_add(1);
        metrics::counter!("tidegate_resp_auth_failures_total").increment(1);
        failures.last = now;
        failures.answered = failures.answered.max(now) + delay(failures.count);
        let (count, answered) = (failures.count, failures.answered);
        self.log(address, count, now);
        answered
    }

    fn log(&mut self, address: IpAddr, count: u32, now: Instant) {
        self.unlogged += 1;
        if self.logged.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            return;
        }
        self.logged = Some(now);
        let since_last_line = std::mem::take(&mut self.unlogged);
        tracing::warn!(
            %address,
            from_address = count,
            since_last_line,
            "wrong password on the RESP port"
        );
    }

    /// Makes room for one more address.
    fn forget_one(&mut self, now: Instant) {
        self.addresses.retain(|_, f| now.saturating_duration_since(f.last) <= FORGET_AFTER);
        if self.addresses.len() >= ADDRESSES_MAX {
            let oldest = self.addresses.iter().min_by_key(|(_, f)| f.last).map(|(a, _)| *a);
            oldest.map(|address| self.addresses.remove(&address));
        }
    }
}

/// The delay of an address's wrong password of this number.
fn delay(count: u32) -> Duration {
    match count.checked_sub(FREE_ATTEMPTS + 1) {
        None => Duration::ZERO,
        Some(doublings) => DELAY_FIRST.saturating_mul(1 << doublings.min(10)).min(DELAY_MAX),
    }
}

/// Returns the key of an address: an IPv4 address, or a /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_queue_and_are_forgotten() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..FREE_ATTEMPTS {
            assert_eq!(throttle.fail(address, start), start);
        }
        assert_eq!(throttle.fail(address, start), start + DELAY_FIRST);
        // In parallel they wait for each other.
        assert_eq!(throttle.fail(address, start), start + DELAY_FIRST * 3);
        assert_eq!(throttle.wait(address, start), None);
        while throttle.wait(address, start).is_none() {
            throttle.fail(address, start);
        }
        let queued = throttle.wait(address, start).unwrap();
        assert!((QUEUE_MAX..QUEUE_MAX + DELAY_MAX).contains(&queued), "{queued:?}");
        // Another address is not concerned.
        assert_eq!(throttle.fail("192.0.2.2".parse().unwrap(), start), start);
        let later = start + FORGET_AFTER + QUEUE_MAX * 2;
        assert_eq!(throttle.fail(address, later), later);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_and_their_number_is_bounded() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for host in 0..10u16 {
            throttle.fail(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, host).into(), now);
        }
        assert_eq!(throttle.addresses.len(), 1);
        for n in 0..10_000u32 {
            throttle.fail(IpAddr::V4(n.into()), now);
        }
        assert_eq!(throttle.addresses.len(), ADDRESSES_MAX);
    }
}
