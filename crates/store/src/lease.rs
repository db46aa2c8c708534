//! Leases: locks that run out, with a fencing token; and a leader chosen by one.
//!
//! A lease is a hash with owner, token and deadline; scripts compare the deadline with `now`, so
//! nothing depends on a TTL. Invariants: at most one owner holds a live lease; every change of
//! holder gives a greater token. What a holder writes should carry its token and be refused when a
//! greater one has been seen, because a holder that was paused does not know that it lost.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Key, Millis, Store,
    scripts::{lease_release, lease_renew, lease_take},
};

/// Time for which the last token outlives its lease at least. A clock set back by less does no
/// harm.
const TOKEN_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// A lease by name, seen by one possible owner.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store, key: tidegate_store::Key) -> Result<(), tidegate_store::Error> {
/// use std::time::Duration;
/// use tidegate_store::lease::{FencedLease, LeaseOutcome};
///
/// let lease = FencedLease::new(&store, key, "worker-7f3a", Duration::from_secs(30));
/// match lease.take().await? {
///     LeaseOutcome::Held(held) => println!("mine, token {}, until {}", held.token, held.until),
///     LeaseOutcome::Busy { owner, until } => println!("{owner} has it until {until}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FencedLease {
    store: Store,
    key: Key,
    owner: String,
    ttl: Duration,
}

/// A lease in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Greater than that of every holder before.
    pub token: u64,
    /// Time at which it runs out unless renewed.
    pub until: Millis,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// It is ours, newly or still.
    Held(LeaseGrant),
    /// Another owner has it.
    Busy {
        /// The holder.
        owner: String,
        /// The end of the lease, unless it is renewed.
        until: Millis,
    },
}

impl FencedLease {
    /// Names a lease. `owner` must be unique among all processes that try for it and new for each
    /// start of one; `ttl` is how long a holder may be silent.
    pub fn new(store: &Store, key: Key, owner: impl Into<String>, ttl: Duration) -> Self {
        Self { store: store.clone(), key, owner: owner.into(), ttl }
    }

    /// Takes the lease if it is free or already ours. Doing it twice does no harm.
    pub async fn take(&self) -> Result<LeaseOutcome, Error> {
        let keys = lease_take::Keys { lease: &self.key };
        let args = lease_take::Args {
            now_ms: self.store.now(),
            owner: &self.owner,
            ttl_ms: self.ttl_ms(),
            keep_ms: self.keep_ms(),
        };
        let (word, what, until): (String, String, Millis) =
            lease_take::run(&self.store, keys, args).await?;
        match word.as_str() {
            "taken" => Ok(LeaseOutcome::Held(LeaseGrant { token: token(&what)?, until })),
            _ => Ok(LeaseOutcome::Busy { owner: what, until }),
        }
    }

    /// Holds the lease for longer. `None` when it ran out or was taken: the holder must stop.
    pub async fn renew(&self, held: LeaseGrant) -> Result<Option<LeaseGrant>, Error> {
        let keys = lease_renew::Keys { lease: &self.key };
        let args = lease_renew::Args {
            now_ms: self.store.now(),
            owner: &self.owner,
            token: held.token,
            ttl_ms: self.ttl_ms(),
            keep_ms: self.keep_ms(),
        };
        // A renewal that a power cut takes lets the lease run out sooner.
        let reply: Vec<String> = lease_renew::run(&self.store.relaxed(), keys, args).await?;
        match reply.as_slice() {
            [word, until] if word == "renewed" => {
                let until = until.parse().map_err(|_| unreadable(until))?;
                Ok(Some(LeaseGrant { until: Millis(until), ..held }))
            }
            _ => Ok(None),
        }
    }

    /// Gives the lease back. `false` when it was no longer ours.
    pub async fn release(&self, held: LeaseGrant) -> Result<bool, Error> {
        let keys = lease_release::Keys { lease: &self.key };
        let args = lease_release::Args { owner: &self.owner, token: held.token };
        let (word,): (String,) = lease_release::run(&self.store, keys, args).await?;
        Ok(word == "released")
    }

    fn ttl_ms(&self) -> i64 {
        i64::try_from(self.ttl.as_millis()).unwrap_or(i64::MAX)
    }

    fn keep_ms(&self) -> i64 {
        i64::try_from(self.ttl.saturating_add(TOKEN_RETENTION).as_millis()).unwrap_or(i64::MAX)
    }
}

fn token(text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| unreadable(text))
}

fn unreadable(text: &str) -> Error {
    Error::Decode { message: format!("a lease has no number but {text:?}") }
}

/// One of several processes that want to lead. It leads while it holds the lease and renews in
/// time; by its own clock it stops leading when the lease runs out, also when the store is away.
#[derive(Debug)]
pub struct LeaderCandidate {
    lease: FencedLease,
    state: watch::Sender<Option<LeaseGrant>>,
}

impl LeaderCandidate {
    /// Stands for election on a lease.
    pub fn new(lease: FencedLease) -> Self {
        Self { lease, state: watch::Sender::new(None) }
    }

    /// The lease we lead by, if we lead now.
    pub fn leading(&self) -> Option<LeaseGrant> {
        let held = *self.state.borrow();
        held.filter(|held| held.until > self.lease.store.now())
    }

    /// Tells changes: `Some` with a new token on becoming leader, a later deadline on renewal, and
    /// `None` on losing it. Compare `until` with the clock before relying on it.
    pub fn watch(&self) -> watch::Receiver<Option<LeaseGrant>> {
        self.state.subscribe()
    }

    /// One round: renews what we have or tries to get it. What fails leaves us leading until the
    /// deadline we know.
    pub async fn tick(&self) -> Result<Option<LeaseGrant>, Error> {
        let before = self.leading();
        let outcome = match before {
            Some(held) => self.lease.renew(held).await,
            None => self.lease.take().await.map(|take| match take {
                LeaseOutcome::Held(held) => Some(held),
                LeaseOutcome::Busy { .. } => None,
            }),
        };
        let now = match &outcome {
            Ok(now) => *now,
            Err(_) => self.leading(),
        };
        if before.map(|held| held.token) != now.map(|held| held.token) {
            let (key, owner) = (&self.lease.key, &self.lease.owner);
            tracing::info!(%key, %owner, token = now.map(|held| held.token), "leadership changed");
        }
        self.state.send_if_modified(|state| std::mem::replace(state, now) != now);
        outcome.map(|_| now)
    }

    /// Rounds at a third of the lease's time, a little earlier or later each, until cancelled; then
    /// gives the lease back so that another leads at once.
    pub async fn run(&self, cancel: CancellationToken) {
        loop {
            if let Err(error) = self.tick().await {
                tracing::warn!(key = %self.lease.key, %error, "leader lease not reached");
            }
            let pause = self.lease.ttl.mul_f64((0.8 + 0.4 * fastrand::f64()) / 3.0);
            tokio::select! {
                () = cancel.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.resign().await;
    }

    /// Stops leading and gives the lease back.
    pub async fn resign(&self) {
        let Some(held) = self.state.send_replace(None) else { return };
        if let Err(error) = self.lease.release(held).await {
            // It expires on its own.
            tracing::debug!(key = %self.lease.key, %error, "leader lease not given back");
        }
    }
}
