//! Settings. Every bound has a default and a reason.

use std::time::Duration;

use crate::{Error, JobFormat, Namespace};

/// Settings of a queue. Start from `Config::default()` and change what differs.
///
/// ```
/// use tidegate_jobs::{Config, Namespace};
///
/// let config = Config { namespace: Namespace::parse("mail")?, ..Config::default() };
/// config.check()?;
/// # Ok::<(), tidegate_jobs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose keys. Default `bridge`, as v1.
    pub namespace: Namespace,
    /// Length of a lease: 30 s as v1, least 1 s, most 1 day. A job
    /// whose worker died is reclaimed after this; a live worker renews at a third of it.
    pub lock_ttl: Duration,
    /// Heartbeat interval of a worker: 10 s as v1. Must be less than `lock_ttl`.
    pub heartbeat: Duration,
    /// Time for which results are kept: 24 h, as v1.
    pub result_ttl: Duration,
    /// Most completed and failed jobs that are kept: 100,000, some 40 MB of Redis.
    pub keep_finished: usize,
    /// Time for which completed and failed jobs are kept: 24 h, as long as their results.
    pub keep_finished_for: Duration,
    /// Most dead letters that are kept: 10,000; the oldest go first.
    pub keep_dead: usize,
    /// Time for which dead letters are kept: 30 days.
    pub keep_dead_for: Duration,
    /// Approximate number of events that are kept: 10,000. 0 writes none.
    pub events_max: usize,
    /// Most failed attempts kept in the history of a job: 20.
    pub history_max: usize,
    /// Most log lines of a job that are kept: 200, each at most 4 KiB.
    pub log_max: usize,
    /// Number of times a job may take its worker down before it becomes a dead letter: 3.
    pub poison_after: u32,
    /// Time an id without data may wait before it is dropped: 60 s. A producer that
    /// writes in another order than v1's has this long to finish.
    pub limbo: Duration,
    /// The fields of a job that are written.
    pub shape: JobFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            lock_ttl: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            result_ttl: Duration::from_secs(24 * 60 * 60),
            keep_finished: 100_000,
            keep_finished_for: Duration::from_secs(24 * 60 * 60),
            keep_dead: 10_000,
            keep_dead_for: Duration::from_secs(30 * 24 * 60 * 60),
            events_max: 10_000,
            history_max: 20,
            log_max: 200,
            poison_after: 3,
            limbo: Duration::from_secs(60),
            shape: JobFormat::default(),
        }
    }
}

impl Config {
    /// Says what is wrong, if something is.
    pub fn check(&self) -> Result<(), Error> {
        let day = Duration::from_secs(24 * 60 * 60);
        if self.lock_ttl < Duration::from_secs(1) || self.lock_ttl > day {
            return Err(Error::invalid("lock_ttl must be 1 second to 1 day"));
        }
        if self.heartbeat.is_zero() || self.heartbeat >= self.lock_ttl {
            return Err(Error::invalid("heartbeat must be above zero and less than lock_ttl"));
        }
        if self.result_ttl < Duration::from_secs(1) {
            return Err(Error::invalid("result_ttl must be at least 1 second"));
        }
        if self.history_max == 0 || self.poison_after == 0 {
            return Err(Error::invalid("history_max and poison_after must be at least 1"));
        }
        Ok(())
    }
}

/// Whole seconds for the server, rounded up so that a TTL never ends early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
