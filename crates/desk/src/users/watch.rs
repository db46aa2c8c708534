//! Watches users whose streams are open, so that these end when the user is blocked or logged out.
//!
//! A change made through this crate is published, and every instance looks at that user at once; a
//! change that another program wrote is found by looking at every watched user in turn, each at
//! least every four seconds. Invariant: a watch ends within a second of a published change, and
//! within five of any other; an outage of the store ends none.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use store::PubsubMessage;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{UserCheck, UserSessionId, UserStatus, Users};
use crate::{Error, UserId, keys};

/// Most users that one instance watches.
pub const WATCHED_MAX: usize = 100_000;

/// Parts into which the watched users are cut; one part is looked at every [`LOOK_INTERVAL`].
const PARTS: u64 = 8;

const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Users looked at at the same time.
const BATCH: usize = 100;

/// Wait before a subscription that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The standing of a watched user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The user may go on, with this status.
    Valid(UserStatus),
    /// The user is blocked.
    Blocked,
    /// The user is logged out, or the session has ended.
    Ended,
}

/// Watches users. A cheap clone; all clones watch together.
#[derive(Clone)]
pub struct UserWatcher(Arc<WatcherInner>);

struct WatcherInner {
    users: Users,
    watched: Mutex<HashMap<WatchKey, watch::Sender<WatchState>>>,
}

/// A user, or one session of theirs.
type WatchKey = (UserId, Option<UserSessionId>);

impl fmt::Debug for UserWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserWatcher").field("watched", &self.0.watched.lock().len()).finish()
    }
}

/// A watch on one user; ends when dropped.
#[derive(Debug)]
pub struct UserWatch {
    receiver: watch::Receiver<WatchState>,
    state: WatchState,
}

impl UserWatch {
    /// Returns the standing as of the last change that was waited for.
    pub fn state(&self) -> WatchState {
        self.state
    }

    /// Waits for another standing.
    pub async fn changed(&mut self) -> WatchState {
        loop {
            if self.receiver.changed().await.is_err() {
                // The watcher is gone, and with it whoever could tell.
                self.state = WatchState::Ended;
                return self.state;
            }
            let now = *self.receiver.borrow_and_update();
            if now != self.state {
                self.state = now;
                return now;
            }
        }
    }
}

impl UserWatcher {
    /// Creates a watcher; it looks while [`UserWatcher::run`] runs.
    pub fn new(users: &Users) -> Self {
        Self(Arc::new(WatcherInner { users: users.clone(), watched: Mutex::default() }))
    }

    /// Returns the number of users and sessions that are watched.
    pub fn watched(&self) -> usize {
        self.0.watched.lock().len()
    }

    /// Watches a user, or one session of theirs.
    ///
    /// # Errors
    /// More than [`WATCHED_MAX`] on this instance.
    pub async fn watch(
        &self,
        user: &UserId,
        session: Option<&UserSessionId>,
    ) -> Result<UserWatch, Error> {
        let key = (user.clone(), session.cloned());
        let receiver = {
            let mut watched = self.0.watched.lock();
            match watched.get(&key) {
                Some(sender) => sender.subscribe(),
                None if watched.len() >= WATCHED_MAX => {
                    let message = format!("this instance watches {WATCHED_MAX} users already");
                    return Err(Error::invalid("user_id", message));
                }
                None => {
                    let (sender, receiver) = watch::channel(WatchState::Ended);
                    watched.insert(key.clone(), sender);
                    receiver
                }
            }
        };
        // Looked at after it is watched: no change in between is missed.
        let state = self.look(&key).await?;
        self.tell(&key, state);
        Ok(UserWatch { receiver, state })
    }

    /// Looks for changes until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.follow() => {}
            () = self.look_in_turn() => {}
        }
    }

    /// Looks at users whose change was published.
    async fn follow(&self) {
        let channel = keys::user_events(&self.0.users.0.prefix);
        loop {
            let mut subscription = match self
                .0
                .users
                .0
                .store
                .subscribe(&[channel.as_str()], &[])
                .await
            {
                Ok(subscription) => subscription,
                Err(error) => {
                    tracing::debug!(%error, "changes of users are not heard; each is looked at in turn");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            while let Some(message) = subscription.recv().await {
                let keys: Vec<WatchKey> = match &message {
                    PubsubMessage::Gap => self.keys(|_| true),
                    PubsubMessage::Published { payload, .. } => {
                        let id = String::from_utf8_lossy(payload);
                        self.keys(|(user, _)| user.as_str() == id)
                    }
                };
                self.look_at(&keys).await;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Looks at every watched user in turn.
    async fn look_in_turn(&self) {
        for part in (0..PARTS).cycle() {
            tokio::time::sleep(LOOK_INTERVAL).await;
            self.forget_unwatched();
            let keys = self.keys(|key| part_of(key) == part);
            self.look_at(&keys).await;
        }
    }

    fn keys(&self, choose: impl Fn(&WatchKey) -> bool) -> Vec<WatchKey> {
        self.0.watched.lock().keys().filter(|key| choose(key)).cloned().collect()
    }

    async fn look_at(&self, keys: &[WatchKey]) {
        for batch in keys.chunks(BATCH) {
            let looks = batch.iter().map(|key| async move { (key, self.look(key).await) });
            for (key, state) in join_all(looks).await {
                match state {
                    Ok(state) => self.tell(key, state),
                    Err(error) => tracing::debug!(%error, "a watched user was not looked at"),
                }
            }
        }
    }

    async fn look(&self, (user, session): &WatchKey) -> Result<WatchState, Error> {
        let users = &self.0.users;
        let state = match users.standing(user, session.as_ref()).await? {
            UserCheck::Valid { status, .. } => WatchState::Valid(status),
            UserCheck::Blocked(_) => WatchState::Blocked,
            UserCheck::Unknown => WatchState::Ended,
        };
        Ok(state)
    }

    fn tell(&self, key: &WatchKey, state: WatchState) {
        if let Some(sender) = self.0.watched.lock().get(key) {
            sender.send_if_modified(|known| {
                let is_new = *known != state;
                *known = state;
                is_new
            });
        }
    }

    fn forget_unwatched(&self) {
        self.0.watched.lock().retain(|_, sender| sender.receiver_count() > 0);
    }
}

/// The part of the watched users that one belongs to.
fn part_of((user, _): &WatchKey) -> u64 {
    user.as_str()
        .bytes()
        .fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
        % PARTS
}
