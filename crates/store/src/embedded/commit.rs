//! Commit of a batch: when its records are written, and when its replies may be sent.
//!
//! A listener ends a batch with [`LockedBatch::commit`], which writes the log immediately for all
//! its clients. Calls in the process end theirs with `commit_shared`, a group commit: callers yield
//! once, and the first to resume writes everyone's records in one `write(2)`. A caller that is
//! alone learns that from the writes before and writes immediately. Invariant: a reply is sent
//! after everything that ran before it is written, or not at all. `docs/batching.md` compares this
//! with the other two kinds of batching.

use std::{fmt, sync::atomic::Ordering};

use engine::{Error, Reply};

use super::{DeliveryTarget, Embedded, LockedBatch, StoreInner, StoreState};
use crate::Fsync;

/// Largest unwritten log, in bytes, that is left for a shared write.
const SHARED_WRITE_MAX_BYTES: usize = 64 << 10;
/// Fewest calls in one write that are worth a yield: with fewer, yielding costs more than it
/// saves.
const WORTH_CALLS: u32 = 4;
/// Most calls that write immediately before a shared write is tried again.
const BACKOFF_MAX_CALLS: u32 = 256;

/// Says when the replies of a batch may be handed out.
#[derive(Debug)]
pub enum Commit {
    /// Now.
    Done,
    /// After the log is on disk up to this record.
    At(u64),
    /// Never: the log could not be written, and this error is sent in their place.
    Failed(Error),
}

impl Commit {
    /// Waits until replies may be sent, or an error in their place.
    pub async fn wait(self, embedded: &Embedded) -> Result<(), Error> {
        let lsn = match self {
            Self::Done => return Ok(()),
            Self::Failed(error) => return Err(error),
            Self::At(lsn) => lsn,
        };
        let mut durable = embedded.shared.durable.subscribe();
        let reached = durable.wait_for(|now| now.synced >= lsn || now.failed >= lsn).await;
        match reached {
            Ok(now) if now.synced >= lsn => Ok(()),
            _ => Err(lost()),
        }
    }

    /// Returns whether the replies may be sent; nothing if that is not known yet.
    pub fn poll(&self, embedded: &Embedded) -> Option<Result<(), Error>> {
        match self {
            Self::Done => Some(Ok(())),
            Self::Failed(error) => Some(Err(error.clone())),
            Self::At(lsn) => {
                let durable = *embedded.shared.durable.borrow();
                match () {
                    () if durable.synced >= *lsn => Some(Ok(())),
                    () if durable.failed >= *lsn => Some(Err(lost())),
                    () => None,
                }
            }
        }
    }
}

fn lost() -> Error {
    Error::fixed("MISCONF Errors writing to the AOF file: the last fsync failed")
}

/// The commit of a call in this process.
#[derive(Debug)]
pub(super) enum CommitHandle<'a> {
    /// Its records are written as far as they can be.
    Ended(Commit),
    /// It shares a write.
    Shared(SharedWrite<'a>),
}

impl CommitHandle<'_> {
    /// Waits until replies may be sent, or an error in their place.
    pub(super) async fn wait(self, embedded: &Embedded) -> Result<(), Error> {
        match self {
            Self::Ended(Commit::Done) => Ok(()),
            Self::Ended(commit) => commit.wait(embedded).await,
            Self::Shared(write) => write.wait().await,
        }
    }

    /// Waits as [`Self::wait`] does; returns the reply, or the error in its place.
    pub(super) async fn settle(self, embedded: &Embedded, reply: Reply) -> Reply {
        self.wait(embedded).await.map_or_else(Reply::Error, |()| reply)
    }
}

/// A call whose reply waits for a write it shares with others. Dropping it half way leaves
/// nothing that others would have to wait for.
pub(super) struct SharedWrite<'a> {
    shared: &'a StoreInner,
    /// The last record that must be written.
    lsn: u64,
    /// True if some of the records are its own.
    changed: bool,
}

impl SharedWrite<'_> {
    async fn wait(self) -> Result<(), Error> {
        // Lets other callers add their records to this write.
        tokio::task::yield_now().await;
        if self.is_written() {
            return Ok(());
        }
        let written = self.shared.try_lock().map(|mut state| self.write(&mut state));
        match written {
            Some(written) => written,
            None => self.shared.queue_write(self.changed).await,
        }
    }

    fn is_written(&self) -> bool {
        self.shared.written.load(Ordering::Acquire) >= self.lsn
    }

    /// Writes the records of all callers since the last write.
    fn write(&self, state: &mut StoreState) -> Result<(), Error> {
        match self.shared.write(state) {
            Err(error) if self.changed && !self.is_written() => Err(error),
            // A caller that only read is answered even if nothing can be written.
            _ => Ok(()),
        }
    }
}

impl Drop for SharedWrite<'_> {
    fn drop(&mut self) {
        // Deliveries may wait for these records. The lock holder writes them, the background thread
        // at the latest.
        if !self.is_written()
            && let Some(mut state) = self.shared.try_lock()
        {
            // The caller was dropped; the others that share the write see the error themselves.
            let _ = self.shared.write(&mut state);
        }
    }
}

impl fmt::Debug for SharedWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lsn, changed, .. } = self;
        f.debug_struct("SharedWrite").field("lsn", lsn).field("changed", changed).finish()
    }
}

/// Adaptive group commit: backs off exponentially while writes carry fewer than [`WORTH_CALLS`]
/// calls.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    /// Calls that will share the next write.
    sharing_calls: u32,
    /// Calls left that write immediately.
    backoff_left: u32,
    /// Length of the current backoff in calls.
    backoff: u32,
}

impl GroupCommit {
    /// Records calls and reports whether they shall share a write.
    fn should_share(&mut self, calls: u32) -> bool {
        if self.backoff_left > 0 {
            self.backoff_left -= 1;
            return false;
        }
        self.sharing_calls = self.sharing_calls.saturating_add(calls);
        true
    }

    /// Adapts to the number of calls that shared the write.
    fn record_write(&mut self) {
        match std::mem::take(&mut self.sharing_calls) {
            0 => {}
            1..WORTH_CALLS => {
                self.backoff = (self.backoff * 2).clamp(1, BACKOFF_MAX_CALLS);
                self.backoff_left = self.backoff;
            }
            _ => self.backoff = 0,
        }
    }
}

impl<'a> LockedBatch<'a> {
    /// Ends the batch: writes the log, delivers and releases the lock. Replies may be
    /// sent to clients once the commit says so.
    #[must_use = "replies may be handed out only through it"]
    pub fn commit(mut self) -> Commit {
        self.finish()
    }

    /// Ends the batch of a call in this process, whose records may be written with those of others.
    #[must_use = "replies may be handed out only through it"]
    pub(super) fn commit_shared(mut self) -> CommitHandle<'a> {
        self.try_share().map_or_else(|| CommitHandle::Ended(self.finish()), CommitHandle::Shared)
    }

    /// Leaves the records for a shared write, if there are some and that is worth it.
    fn try_share(&mut self) -> Option<SharedWrite<'a>> {
        let StoreState { log, held, group_commit, .. } = &mut *self.state;
        let log = log.as_mut()?;
        let shares = !self.denied
            && !self.write_now
            && log.written < log.lsn
            && log.unwritten() < SHARED_WRITE_MAX_BYTES
            && self.closing.is_empty()
            && self.shared.fsync() != Fsync::Always
            && group_commit.should_share(1 + self.served);
        if !shares {
            return None;
        }
        let lsn = log.lsn;
        held.extend(self.due.drain(..).map(|due| (lsn, due)));
        self.ended = true;
        let changed = self.changed();
        Some(SharedWrite { shared: self.shared, lsn, changed })
    }

    pub(super) fn finish(&mut self) -> Commit {
        if std::mem::replace(&mut self.ended, true) {
            return Commit::Done;
        }
        let mut commit = Commit::Done;
        let mut failed = None;
        let mut hold = 0;
        // A store that refuses writes anyway goes on answering; what expires meanwhile is written
        // with the rest.
        if !self.denied {
            if let Err(error) = self.shared.write(&mut self.state) {
                // A caller that only read is answered even if nothing can be written.
                if self.changed() {
                    commit = Commit::Failed(error.clone());
                }
                failed = Some(error);
            } else if let Some(log) = &self.state.log
                && log.written > log.synced
                && self.shared.fsync() == Fsync::Always
            {
                hold = log.written;
                commit = Commit::At(hold);
                self.shared.sync_signal.work();
            }
        }
        let StoreState { engine, log, targets, held, .. } = &mut *self.state;
        if let Some(log) = log {
            engine.log_sizes(log.bytes(), log.base_bytes);
        }
        // Delivery targets never block, so they are used under the lock, which keeps deliveries in
        // order.
        for mut due in self.due.drain(..) {
            if let Some(error) = &failed {
                due.fail(error);
            }
            if hold > 0 {
                held.push_back((hold, due));
            } else {
                due.hand_out(targets);
            }
        }
        for session in self.closing.drain(..) {
            if let Some(DeliveryTarget::Listener(listener)) = targets.get(&session) {
                listener.close(session);
            }
        }
        commit
    }
}

impl StoreInner {
    /// Writes all records there are, and hands out what waited only for that. An error is for those
    /// whose records are not written; commands that would change something are refused from then
    /// on.
    pub(super) fn write(&self, state: &mut StoreState) -> Result<(), Error> {
        let StoreState { engine, log, group_commit, .. } = state;
        let Some(log) = log else { return Ok(()) };
        let failed = log.write().err().map(|trouble| trouble.reply());
        if let Some(error) = &failed {
            engine.deny_writes(Some(error.clone()));
        }
        group_commit.record_write();
        self.after_write(state);
        failed.map_or(Ok(()), Err)
    }

    /// Publishes the position written, and hands out what waited only for that.
    pub(super) fn after_write(&self, state: &mut StoreState) {
        let Some(log) = &state.log else { return };
        self.written.store(log.written, Ordering::Release);
        if !state.held.is_empty() {
            let up_to = if self.fsync() == Fsync::Always { log.synced } else { log.written };
            state.hand_out(up_to);
        }
    }
}
