//! The refresh lock: of all instances, one refreshes an answer.
//!
//! Its value is `1`, as the schema says, so it does not tell who holds it. Invariant: only the
//! instance that took a lock removes it, and only while it is certain to be its own: within the
//! lock's TTL by its own monotonic clock.

use store::{Key, redis};
use tokio::time::Instant;

use super::L1;
use crate::{Error, name::Question};

/// A lock that this instance took.
#[derive(Debug)]
pub struct RefreshLock {
    key: Key,
    ends: Instant,
}

impl L1 {
    /// Takes the refresh lock of a question; none if an instance holds it.
    pub async fn lock_refresh(&self, question: &Question) -> Result<Option<RefreshLock>, Error> {
        let key = self.0.keys.refresh_lock(&self.0.keys.answer(question));
        let ttl = self.0.options.lock_ttl;
        // Counted from before the request, so that the lock never ends earlier than thought.
        let ends = Instant::now() + ttl;
        let mut take = redis::cmd("SET");
        take.arg(&key).arg("1").arg("NX").arg("EX").arg(ttl.as_secs().max(1));
        let mut store = self.0.relaxed.clone();
        let taken: Option<String> = take.query_async(&mut store).await?;
        Ok(taken.map(|_| RefreshLock { key, ends }))
    }

    /// Gives a refresh lock back. One that may have ended is left alone: it may be another's by now.
    pub async fn unlock_refresh(&self, lock: RefreshLock) -> Result<bool, Error> {
        if Instant::now() >= lock.ends {
            return Ok(false);
        }
        let mut store = self.0.relaxed.clone();
        let deleted: u64 = redis::cmd("DEL").arg(&lock.key).query_async(&mut store).await?;
        Ok(deleted > 0)
    }
}
