//! Time: what `now` is, and who says so.
//!
//! Nothing else in the product asks what time it is; everything takes `now` as an argument, and it
//! comes from a [`Clock`]. Invariant: within one process a clock does not run backwards by less
//! than [`STEP`]; a greater step back is a correction of the clock, is taken, and is logged.
//!
//! A manual clock on a real server moves only the product's time, never the server's. So a deadline
//! is a stored score that scripts compare with `now`, and a TTL given to the server is relative
//! (`PX`, `PEXPIRE`), generous, and decides nothing. An absolute expiry (`PXAT`, `EXPIREAT`) taken
//! from a manual clock would lie in the server's past and delete at once: never use one.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use redis::{FromRedisValue, ParsingError, RedisWrite, ToRedisArgs, ToSingleRedisArg, Value};

/// Steps back up to this are hidden by standing still; see the module's text.
pub const STEP: Duration = Duration::from_secs(60);

/// Wall time in milliseconds since 1970.
///
/// ```
/// use std::time::Duration;
/// use tidegate_store::Millis;
///
/// let start = Millis(1_000);
/// let later = start + Duration::from_millis(500);
/// assert_eq!(later.to_string(), "1500");
/// assert_eq!(later.since(start), Duration::from_millis(500));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

impl Millis {
    /// Returns the time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Millis) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The same moment in whole seconds, rounded down.
    pub fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000)
    }
}

fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Millis {
    type Output = Millis;
    fn add(self, duration: Duration) -> Millis {
        Millis(self.0.saturating_add(as_millis(duration)))
    }
}

impl AddAssign<Duration> for Millis {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Millis {
    type Output = Millis;
    fn sub(self, duration: Duration) -> Millis {
        Millis(self.0.saturating_sub(as_millis(duration)))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ToRedisArgs for Millis {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        self.0.write_redis_args(out);
    }
}

impl ToSingleRedisArg for Millis {}

impl FromRedisValue for Millis {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        i64::from_redis_value(value).map(Millis)
    }
}

/// The source of `now`. A cheap clone; all clones agree.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: ClockSource,
    /// The latest time returned, so that a small step back stands still.
    latest: AtomicI64,
}

#[derive(Debug)]
enum ClockSource {
    System,
    /// The server's time at an instant of this process's monotonic clock; the system's before the
    /// first measurement.
    Server(RwLock<Option<ClockMeasurement>>),
    Manual(Arc<AtomicI64>),
}

/// The server's time as it was measured once.
#[derive(Clone, Copy, Debug)]
struct ClockMeasurement {
    /// The server's time,
    server_ms: i64,
    /// when this process's monotonic clock showed this,
    at: Instant,
    /// give or take so much.
    doubt: Duration,
}

impl ClockMeasurement {
    fn now(&self) -> i64 {
        self.server_ms.saturating_add(as_millis(self.at.elapsed()))
    }

    /// Returns the possible drift of two good clocks since then: 100 µs a second, and the initial
    /// uncertainty.
    fn doubt_now(&self) -> Duration {
        self.doubt + self.at.elapsed() / 10_000
    }
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self::of(ClockSource::System)
    }

    /// The clock of the server a store is opened on: measured with `TIME` at each connect and with
    /// each heartbeat, carried on by the monotonic clock in between. Give one to one store only.
    pub fn server() -> Self {
        Self::of(ClockSource::Server(RwLock::new(None)))
    }

    /// A clock that stands until its hands are moved, for tests.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_store::{Clock, Millis};
    ///
    /// let (clock, hands) = Clock::manual(Millis(1_000));
    /// hands.advance(Duration::from_secs(1));
    /// assert_eq!(clock.now(), Millis(2_000));
    /// ```
    pub fn manual(start: Millis) -> (Self, ManualClock) {
        let hands = Arc::new(AtomicI64::new(start.0));
        (Self::of(ClockSource::Manual(Arc::clone(&hands))), ManualClock(hands))
    }

    /// Returns the current time.
    pub fn now(&self) -> Millis {
        let reading = match &self.0.source {
            ClockSource::Manual(hands) => return Millis(hands.load(Ordering::SeqCst)),
            ClockSource::System => system_now(),
            ClockSource::Server(anchor) => match *anchor.read() {
                Some(measured) => measured.now(),
                None => system_now(),
            },
        };
        self.settle(reading)
    }

    /// Is this a clock that [`Clock::server`] made?
    pub(crate) fn follows_server(&self) -> bool {
        matches!(self.0.source, ClockSource::Server(_))
    }

    /// Takes a measurement of the server's time: `server` was true somewhere between `asked` and
    /// now, most likely half way. A slow answer says little, so one that is less certain than what
    /// is known counts only if it contradicts it.
    pub(crate) fn measured(&self, server: Millis, asked: Instant) {
        if let ClockSource::Server(known) = &self.0.source {
            let doubt = asked.elapsed() / 2;
            let new = ClockMeasurement { server_ms: server.0, at: asked + doubt, doubt };
            let mut known = known.write();
            let better = known.is_none_or(|known| {
                let apart =
                    Millis(new.now().max(known.now())).since(Millis(new.now().min(known.now())));
                let certain = known.doubt_now();
                new.doubt <= certain || apart > new.doubt + certain + Duration::from_millis(1)
            });
            if better {
                *known = Some(new);
            }
        }
    }

    fn of(source: ClockSource) -> Self {
        Self(Arc::new(Inner { source, latest: AtomicI64::new(i64::MIN) }))
    }

    /// Hides a small step back by standing still, and takes a great one.
    fn settle(&self, reading: i64) -> Millis {
        // Mostly of the same millisecond as the reading before it; to look costs less than to change.
        if self.0.latest.load(Ordering::Relaxed) == reading {
            return Millis(reading);
        }
        let latest = self.0.latest.fetch_max(reading, Ordering::Relaxed);
        if reading >= latest {
            return Millis(reading);
        }
        if latest.saturating_sub(reading) <= as_millis(STEP) {
            return Millis(latest);
        }
        // Only the caller that resets the mark tells about it.
        let reset =
            self.0.latest.compare_exchange(latest, reading, Ordering::Relaxed, Ordering::Relaxed);
        if reset.is_ok() {
            tracing::warn!(from_ms = latest, to_ms = reading, "the clock was set back");
        }
        Millis(reading)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks the system for the time")]
fn system_now() -> i64 {
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => as_millis(since),
        Err(before) => -as_millis(before.duration()),
    }
}

/// Returns the machine's time since 1970, with nanoseconds. For traces, which show it and decide nothing
/// by it.
#[expect(clippy::disallowed_methods, reason = "shown in traces only, and with nanoseconds")]
pub(crate) fn machine_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The hands of a manual clock. A cheap clone; all clones move the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Returns the time the clock shows.
    pub fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::SeqCst))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(as_millis(by), Ordering::SeqCst);
    }

    /// Sets the clock, also back.
    pub fn set(&self, to: Millis) {
        self.0.store(to.0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_step_back_stands_still_and_a_great_one_is_taken() {
        let clock = Clock::server();
        let asked = Instant::now();
        clock.measured(Millis(10_000_000), asked);
        let before = clock.now();
        assert!(before >= Millis(10_000_000));

        clock.measured(Millis(9_990_000), Instant::now());
        assert!(clock.now() >= before, "ten seconds back are hidden");

        clock.measured(Millis(5_000_000), Instant::now());
        let now = clock.now();
        assert!(now >= Millis(5_000_000) && now < Millis(9_000_000), "{now}");
    }

    #[test]
    fn a_slow_answer_does_not_move_a_clock_that_knows_better() {
        let clock = Clock::server();
        clock.measured(Millis(10_000_000), Instant::now());
        // Asked two seconds ago: the server's time is a second off by half the way, within doubt.
        let slow = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        clock.measured(Millis(9_999_500), slow);
        assert!(
            clock.now().since(Millis(10_000_000)) < Duration::from_millis(400),
            "{}",
            clock.now()
        );
        // As slow, but a minute apart: another server, or its clock was set.
        let slow = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        clock.measured(Millis(10_060_000), slow);
        assert!(clock.now() >= Millis(10_060_000), "{}", clock.now());
    }

    #[test]
    fn a_server_clock_is_the_system_clock_until_measured() {
        let (server, system) = (Clock::server().now(), Clock::system().now());
        assert!(system.since(server) < Duration::from_secs(10));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Millis(i64::MAX) + Duration::MAX, Millis(i64::MAX));
        assert_eq!(Millis(i64::MIN) - Duration::MAX, Millis(i64::MIN));
        assert_eq!(Millis(-1).as_secs(), -1);
    }
}
