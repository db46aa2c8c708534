//! Faults made on purpose, so that services can be tested against a store that misbehaves.
//!
//! Given in [`Options::faults`](crate::Options::faults), [`Faults`] stands in front of whatever
//! store there is, built in or a server, so one test covers both. Without it nothing is checked and
//! nothing costs.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult};

use crate::error;

/// The switchboard of a store's faults. A cheap clone; all clones switch the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate_store::Error> {
/// use tidegate_store::{Faults, Options, Store};
///
/// let faults = Faults::default();
/// let options = Options { faults: Some(faults.clone()), ..Options::default() };
/// let store = Store::open_with("embedded:", options).await?;
/// faults.go_away();
/// assert!(store.now() > tidegate_store::Millis(0) && !store.health().reachable);
/// faults.come_back();
/// assert!(store.health().reachable);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<FaultPlan>>);

#[derive(Debug, Default)]
struct FaultPlan {
    away: bool,
    delay: Duration,
    refuse: u32,
    lose: u32,
    chance: Option<(u32, fastrand::Rng)>,
    lost: u64,
    calls: u64,
}

impl Faults {
    /// Every call fails without being carried out, until [`Faults::come_back`].
    pub fn go_away(&self) {
        self.0.lock().away = true;
    }

    /// Ends all faults.
    pub fn come_back(&self) {
        let mut state = self.0.lock();
        *state = FaultPlan { lost: state.lost, calls: state.calls, ..FaultPlan::default() };
    }

    /// Every call takes so much longer.
    pub fn delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// The next so many calls fail without being carried out.
    pub fn refuse_next(&self, calls: u32) {
        self.0.lock().refuse = calls;
    }

    /// Executes the next so many calls but tells their callers that the store is
    /// unavailable. A script the store does not know yet does not count.
    pub fn lose_next_replies(&self, calls: u32) {
        self.0.lock().lose = calls;
    }

    /// One reply in so many is lost in the same way, by a seed.
    pub fn lose_replies(&self, one_in: u32, seed: u64) {
        self.0.lock().chance = Some((one_in.max(1), fastrand::Rng::with_seed(seed)));
    }

    /// Number of replies lost.
    pub fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Number of calls made; a pipeline is one.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Returns the reason why the store is out of reach, if it is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().away.then(|| "sent away by a test".to_owned())
    }

    /// Before a call: may it be made, and after how long?
    pub(crate) async fn before(&self) -> RedisResult<()> {
        let (refused, delay) = {
            let mut state = self.0.lock();
            state.calls += 1;
            let refused = state.away || state.refuse > 0;
            state.refuse = state.refuse.saturating_sub(1);
            (refused, state.delay)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if refused { Err(error::not_sent("sent away by a test")) } else { Ok(()) }
    }

    /// After a call: does its reply arrive?
    pub(crate) fn after<T>(&self, reply: RedisResult<T>) -> RedisResult<T> {
        if reply.as_ref().is_err_and(is_unknown_script) {
            return reply;
        }
        let mut state = self.0.lock();
        let by_chance = match &mut state.chance {
            Some((one_in, random)) => random.u32(0..*one_in) == 0,
            None => false,
        };
        if state.lose == 0 && !by_chance {
            return reply;
        }
        state.lose = state.lose.saturating_sub(1);
        state.lost += 1;
        Err(error::timed_out("the reply was lost by a test"))
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
