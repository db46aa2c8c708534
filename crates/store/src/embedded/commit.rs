//! Ending a batch: when its records are written, and when its replies may be told.
//!
//! A listener ends a batch with [`Batch::commit`], which writes the log at once for all its
//! clients. Calls in the process end theirs with `commit_soon`: where several callers are at work,
//! each lets the others have their turn first, and the one that comes back first writes the
//! records of all with one call. A caller that is alone finds that out and writes at once.
//! Invariant: a reply is told when everything that ran before it is written, or not at all.

use std::{fmt, sync::atomic::Ordering};

use engine::{Error, Reply};

use super::{Batch, Embedded, Outlet, Shared, State};
use crate::Fsync;

/// Records that are left for the next write together, in bytes; above that they are written.
const SHARED_MOST: usize = 64 << 10;
/// With fewer calls than this in one write, letting others have their turn costs more than it
/// saves.
const WORTH: u32 = 4;
/// How many calls at most write at once before it is tried again whether there is company.
const ALONE_MOST: u32 = 256;

/// Says when the replies of a batch may be handed out.
#[derive(Debug)]
pub enum Commit {
    /// Now.
    Done,
    /// When the log is on disk up to this record.
    At(u64),
    /// Never: the log could not be written, and this is to be told in their place.
    Failed(Error),
}

impl Commit {
    /// Waits until replies may be told, or an error must be in their place.
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

    /// May the replies be told by now? Nothing if that is not known yet.
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

/// How a call in the process was ended.
#[derive(Debug)]
pub(super) enum Soon<'a> {
    /// Its records are written as far as they can be.
    Ended(Commit),
    /// It shares a write.
    Sharing(Sharing<'a>),
}

impl Soon<'_> {
    /// Waits until replies may be told, or an error must be in their place.
    pub(super) async fn wait(self, embedded: &Embedded) -> Result<(), Error> {
        match self {
            Self::Ended(Commit::Done) => Ok(()),
            Self::Ended(commit) => commit.wait(embedded).await,
            Self::Sharing(sharing) => sharing.wait().await,
        }
    }

    /// The reply, or what must be told in its place.
    pub(super) async fn settle(self, embedded: &Embedded, reply: Reply) -> Reply {
        self.wait(embedded).await.map_or_else(Reply::Error, |()| reply)
    }
}

/// A call whose reply waits for records that are not written yet. Whoever drops it half way leaves
/// nothing behind that others would have to wait for.
pub(super) struct Sharing<'a> {
    shared: &'a Shared,
    /// The last record that must be written.
    lsn: u64,
    /// Are some of the records its own?
    changed: bool,
}

impl Sharing<'_> {
    async fn wait(self) -> Result<(), Error> {
        // The turn of others: their records go with these.
        tokio::task::yield_now().await;
        if self.is_written() {
            return Ok(());
        }
        let written = self.shared.try_lock().map(|mut state| self.write(&mut state));
        match written {
            Some(written) => written,
            None => self.shared.leave_write(self.changed).await,
        }
    }

    fn is_written(&self) -> bool {
        self.shared.written.load(Ordering::Acquire) >= self.lsn
    }

    /// Writes what all have added since the last write.
    fn write(&self, state: &mut State) -> Result<(), Error> {
        match self.shared.write(state) {
            Err(error) if self.changed && !self.is_written() => Err(error),
            // What only read goes on also when nothing can be written.
            _ => Ok(()),
        }
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        // Messages may wait for these records. Whoever has the lock now writes them, the keeper at
        // the latest.
        if !self.is_written()
            && let Some(mut state) = self.shared.try_lock()
        {
            // The caller has gone; those who share the write find the error by themselves.
            let _ = self.shared.write(&mut state);
        }
    }
}

impl fmt::Debug for Sharing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lsn, changed, .. } = self;
        f.debug_struct("Sharing").field("lsn", lsn).field("changed", changed).finish()
    }
}

/// Whether callers come in company, found out from what each write held.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Calls that share the next write.
    sharing: u32,
    /// Calls that write at once before it is tried again.
    alone: u32,
    /// How many those were the last time.
    pause: u32,
}

impl Company {
    /// Is it worth waiting for others?
    fn expected(&mut self, calls: u32) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        self.sharing = self.sharing.saturating_add(calls);
        true
    }

    /// The records so far are written.
    fn written(&mut self) {
        match std::mem::take(&mut self.sharing) {
            0 => {}
            1..WORTH => {
                self.pause = (self.pause * 2).clamp(1, ALONE_MOST);
                self.alone = self.pause;
            }
            _ => self.pause = 0,
        }
    }
}

impl<'a> Batch<'a> {
    /// Ends the batch: writes the log, delivers and releases the lock. What was executed may be
    /// told to clients once the commit says so.
    #[must_use = "replies may be handed out only through it"]
    pub fn commit(mut self) -> Commit {
        self.finish()
    }

    /// Ends the batch of a call in this process, whose records may be written with those of others.
    #[must_use = "replies may be handed out only through it"]
    pub(super) fn commit_soon(mut self) -> Soon<'a> {
        self.share().map_or_else(|| Soon::Ended(self.finish()), Soon::Sharing)
    }

    /// Leaves the records for a write together with others, if there are some and that is worth it.
    fn share(&mut self) -> Option<Sharing<'a>> {
        let State { log, held, company, .. } = &mut *self.state;
        let log = log.as_mut()?;
        let shares = !self.denied
            && !self.write_now
            && log.written < log.lsn
            && log.unwritten() < SHARED_MOST
            && self.closing.is_empty()
            && self.shared.fsync() != Fsync::Always
            && company.expected(1 + self.served);
        if !shares {
            return None;
        }
        let lsn = log.lsn;
        held.extend(self.due.drain(..).map(|due| (lsn, due)));
        self.ended = true;
        let changed = self.changed();
        Some(Sharing { shared: self.shared, lsn, changed })
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
                // What only read goes on also when nothing can be written.
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
                self.shared.sync_bell.work();
            }
        }
        let State { engine, log, outlets, held, .. } = &mut *self.state;
        if let Some(log) = log {
            engine.log_sizes(log.bytes(), log.base_bytes);
        }
        // Outlets never wait, so they may be used under the lock, which keeps deliveries in order.
        for mut due in self.due.drain(..) {
            if let Some(error) = &failed {
                due.fail(error);
            }
            if hold > 0 {
                held.push_back((hold, due));
            } else {
                due.hand_out(outlets);
            }
        }
        for session in self.closing.drain(..) {
            if let Some(Outlet::Port(port)) = outlets.get(&session) {
                port.close(session);
            }
        }
        commit
    }
}

impl Shared {
    /// Writes all records there are, and hands out what waited only for that. An error is for those
    /// whose records are not written; commands that would change something are refused from then on.
    pub(super) fn write(&self, state: &mut State) -> Result<(), Error> {
        let State { engine, log, company, .. } = state;
        let Some(log) = log else { return Ok(()) };
        let failed = log.write().err().map(|trouble| trouble.reply());
        if let Some(error) = &failed {
            engine.deny_writes(Some(error.clone()));
        }
        company.written();
        self.after_write(state);
        failed.map_or(Ok(()), Err)
    }

    /// Tells how far the log is written, and hands out what waited only for that.
    pub(super) fn after_write(&self, state: &mut State) {
        let Some(log) = &state.log else { return };
        self.written.store(log.written, Ordering::Release);
        if !state.held.is_empty() {
            let up_to = if self.fsync() == Fsync::Always { log.synced } else { log.written };
            state.hand_out(up_to);
        }
    }
}
