//! Deadlines: an index of what ends when, swept in bounded batches.
//!
//! A sorted set holds members by deadline. Sweeping claims what is due by giving it a new deadline
//! a little later, and forgets it once it was handled; so a sweeper that dies loses nothing, and
//! two that sweep at once share the work. Handlers run at least once and must bear a second time.

use std::time::Duration;

use crate::{
    Error, Key, Millis, Store,
    scripts::{expiry_claim, expiry_done},
};

/// The most members one claim hands out.
pub const BATCH_MOST: u32 = 1_000;

/// An index of deadlines in one key.
///
/// ```no_run
/// # async fn example(store: tidegate_store::Store, key: tidegate_store::Key) -> Result<(), tidegate_store::Error> {
/// use std::time::Duration;
/// use tidegate_store::expiry::Deadlines;
///
/// let deadlines = Deadlines::new(&store, key, Duration::from_secs(30));
/// deadlines.set("session-1", store.now() + Duration::from_secs(600)).await?;
/// let due = deadlines.claim(100).await?;
/// for member in due.members() {
///     println!("{member} is over");
/// }
/// deadlines.done(&due).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Deadlines {
    store: Store,
    key: Key,
    grace: Duration,
}

/// Members that were due, claimed for handling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueMembers {
    again: Millis,
    members: Vec<(String, Millis)>,
}

impl DueMembers {
    /// The members, earliest deadline first.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.iter().map(|(member, _)| member.as_str())
    }

    /// The members with the deadlines they had.
    pub fn with_deadlines(&self) -> impl ExactSizeIterator<Item = (&str, Millis)> {
        self.members.iter().map(|(member, deadline)| (member.as_str(), *deadline))
    }

    /// Was nothing due?
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl Deadlines {
    /// An index in `key`. `grace` is how long a claimed member may take to be handled before it
    /// comes up again.
    pub fn new(store: &Store, key: Key, grace: Duration) -> Self {
        Self { store: store.clone(), key, grace }
    }

    /// Sets or moves a member's deadline.
    pub async fn set(&self, member: &str, deadline: Millis) -> Result<(), Error> {
        let mut store = self.store.clone();
        let cmd = redis::cmd("ZADD").arg(&self.key).arg(deadline).arg(member).to_owned();
        cmd.query_async::<()>(&mut store).await?;
        Ok(())
    }

    /// Takes a member out. `false` when it was not in.
    pub async fn remove(&self, member: &str) -> Result<bool, Error> {
        let mut store = self.store.clone();
        let cmd = redis::cmd("ZREM").arg(&self.key).arg(member).to_owned();
        Ok(cmd.query_async(&mut store).await?)
    }

    /// The earliest deadline, past or not; when to sweep next.
    pub async fn next(&self) -> Result<Option<Millis>, Error> {
        let mut store = self.store.clone();
        let cmd = redis::cmd("ZRANGE").arg(&self.key).arg(0).arg(0).arg("WITHSCORES").to_owned();
        let first: Vec<(String, f64)> = cmd.query_async(&mut store).await?;
        Ok(first.first().map(|(_, deadline)| millis(*deadline)))
    }

    /// Claims at most `most` members that are due. Call [`Deadlines::done`] when they are handled.
    pub async fn claim(&self, most: u32) -> Result<DueMembers, Error> {
        let now = self.store.now();
        let again = now + self.grace.max(Duration::from_millis(1));
        let keys = expiry_claim::Keys { deadlines: &self.key };
        let most = most.clamp(1, BATCH_MOST);
        let args = expiry_claim::Args { now_ms: now, most, again_ms: again };
        let reply: Vec<String> = expiry_claim::run(&self.store, keys, args).await?;
        let mut members = Vec::with_capacity(reply.len() / 2);
        for pair in reply.get(1..).unwrap_or_default().chunks_exact(2) {
            let deadline: f64 = pair[1].parse().map_err(|_| Error::Decode {
                message: format!("a deadline is not a number: {:?}", pair[1]),
            })?;
            members.push((pair[0].clone(), millis(deadline)));
        }
        Ok(DueMembers { again, members })
    }

    /// Forgets what was handled, except members that got a new deadline meanwhile. Returns how many
    /// were forgotten.
    pub async fn done(&self, due: &DueMembers) -> Result<u32, Error> {
        if due.is_empty() {
            return Ok(0);
        }
        let keys = expiry_done::Keys { deadlines: &self.key };
        let args = expiry_done::Args { again_ms: due.again, members: due.members() };
        let (_, forgotten): (String, u32) = expiry_done::run(&self.store, keys, args).await?;
        Ok(forgotten)
    }
}

/// Scores are doubles; a deadline in milliseconds is exact in one.
fn millis(score: f64) -> Millis {
    Millis(score as i64)
}
