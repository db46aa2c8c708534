//! Flat combining: a caller that finds the lock taken enqueues its command; the lock holder runs
//! the queue before it unlocks.
//!
//! The queued caller's thread is free meanwhile, the store's memory stays in one processor's cache,
//! and one write of the log covers all of them. Invariant: a queued command is run, or refused with
//! `BUSY` because a script takes too long, without any further call: the lock holder looks at the
//! queue once more after it has released the lock, and a background thread goes on where that would
//! take too long. A caller that runs a slow script for another is blocked as if it had called after
//! it. Two callers must not be: a listener runs the queue only after its own clients have their
//! replies and can be served meanwhile ([`QueuedCommands`]), and a health check leaves the queue to
//! the background thread. `docs/batching.md` compares this with the other two kinds of batching.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicUsize, Ordering, fence},
    time::Duration,
};

use engine::{Error, Reply};
use parking_lot::{Mutex, MutexGuard};
use redis::Cmd;
use tokio::sync::oneshot;

use super::{
    Commit, Embedded, LockedBatch, PendingDelivery, StoreInner, StoreState, settled, value::Argv,
};

/// Most queued requests run under one lock.
const REQUESTS_PER_LOCK: usize = 256;
/// Most rounds in which a caller looks for requests that were queued while it released the lock.
const DRAIN_ROUNDS: usize = 4;

/// Requests of callers that found the lock taken.
#[derive(Debug, Default)]
pub(super) struct CombiningQueue {
    queue: Mutex<VecDeque<QueuedRequest>>,
    /// Length of the queue, readable without its lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct QueuedRequest {
    work: QueuedWork,
    answer: oneshot::Sender<Reply>,
}

#[derive(Debug)]
enum QueuedWork {
    /// A command to run for the shared session; if it is relaxed, its records do not ask for an fsync.
    Command { cmd: Cmd, is_relaxed: bool },
    /// A write of all records so far; `changed` if some of them are the caller's.
    Write { changed: bool },
}

impl CombiningQueue {
    fn push(&self, work: QueuedWork) -> oneshot::Receiver<Reply> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.queue.lock();
        queue.push_back(QueuedRequest { work, answer });
        self.count.store(queue.len(), Ordering::Relaxed);
        receiver
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn pop(&self) -> Option<QueuedRequest> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock();
        let request = queue.pop_front();
        self.count.store(queue.len(), Ordering::Relaxed);
        request
    }

    /// Answers queued commands without running them.
    pub(super) fn refuse(&self, mut answer: impl FnMut(&[&[u8]]) -> Reply) {
        let mut queue = self.queue.lock();
        for QueuedRequest { work, answer: caller } in std::mem::take(&mut *queue) {
            match work {
                // A caller that was dropped wants no answer.
                QueuedWork::Command { cmd, .. } => {
                    drop(caller.send(Argv::of(&cmd).with(&mut answer)));
                }
                QueuedWork::Write { .. } => queue.push_back(QueuedRequest { work, answer: caller }),
            }
        }
        self.count.store(queue.len(), Ordering::Relaxed);
    }
}

/// The lock on the store's state. Releasing it runs the queue.
pub(super) struct StateGuard<'a> {
    state: MutexGuard<'a, StoreState>,
    // Dropped after the lock is released.
    _after: Option<QueueDrain<'a>>,
}

impl Deref for StateGuard<'_> {
    type Target = StoreState;

    fn deref(&self) -> &StoreState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut StoreState {
        &mut self.state
    }
}

struct QueueDrain<'a> {
    shared: &'a StoreInner,
    /// Runs the queue on this thread; otherwise a background thread does.
    here: bool,
}

impl Drop for QueueDrain<'_> {
    fn drop(&mut self) {
        // A thread that panics runs nothing more.
        if self.here && !std::thread::panicking() {
            self.shared.run_queued();
        } else if self.shared.has_queued() {
            self.shared.signal.serve();
        }
    }
}

/// Requests that were queued while the lock was held and may not have run yet. Dropping it
/// runs them on this thread; one of them may be a script that takes long.
#[must_use = "dropping it runs the commands"]
pub struct QueuedCommands<'a> {
    _after: Option<QueueDrain<'a>>,
}

impl std::fmt::Debug for QueuedCommands<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCommands").finish_non_exhaustive()
    }
}

impl<'a> LockedBatch<'a> {
    /// Ends the batch as [`LockedBatch::commit`] does, but lets the caller choose when queued
    /// requests run. The caller must first release everything that [`super::Listener::busy`]
    /// needs, or nobody could kill a script among them.
    pub fn commit_deferred(mut self) -> (Commit, QueuedCommands<'a>) {
        let after = self.state._after.take();
        (self.finish(), QueuedCommands { _after: after })
    }
}

impl StoreInner {
    /// Takes the lock, however long that takes.
    pub(super) fn lock(&self) -> StateGuard<'_> {
        self.locked(self.state.lock())
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Option<StateGuard<'_>> {
        self.state.try_lock().map(|state| self.locked(state))
    }

    /// Wraps the lock just taken.
    pub(super) fn locked<'a>(&'a self, state: MutexGuard<'a, StoreState>) -> StateGuard<'a> {
        StateGuard { state, _after: Some(QueueDrain { shared: self, here: true }) }
    }

    /// Takes the lock if it is free in time, for a caller that must not be blocked by a queued
    /// script when it releases the lock.
    pub(super) fn try_lock_briefly(&self, most: Duration) -> Option<StateGuard<'_>> {
        let state = self.state.try_lock_for(most)?;
        Some(StateGuard { state, _after: Some(QueueDrain { shared: self, here: false }) })
    }

    /// Returns true if requests are queued.
    fn has_queued(&self) -> bool {
        // Either this sees the queued request, or its caller sees that the lock is free.
        fence(Ordering::SeqCst);
        !self.queue.is_empty()
    }

    /// Runs requests that were queued while the lock was being released.
    pub(super) fn run_queued(&self) {
        for _ in 0..DRAIN_ROUNDS {
            if !self.has_queued() {
                return;
            }
            // The current lock holder looks at the queue after it unlocks.
            let Some(state) = self.state.try_lock() else { return };
            let mut batch = self.begin(StateGuard { state, _after: None });
            batch.run_queue();
            drop(batch.commit());
        }
        self.signal.serve();
    }

    /// Queues work for the lock holder; runs it here if the lock is free by now.
    fn queue_work(&self, work: QueuedWork) -> oneshot::Receiver<Reply> {
        let receiver = self.queue.push(work);
        fence(Ordering::SeqCst);
        if let Some(mut batch) = self.try_batch() {
            batch.run_queue();
            drop(batch.commit());
        }
        receiver
    }

    /// Has the lock holder write all records.
    pub(super) async fn queue_write(&self, changed: bool) -> Result<(), Error> {
        match answer(self.queue_work(QueuedWork::Write { changed })).await {
            Reply::Error(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Embedded {
    /// Has the lock holder run a command.
    pub(super) async fn queue_command(&self, cmd: &Cmd) -> Reply {
        let work = QueuedWork::Command { cmd: cmd.clone(), is_relaxed: self.is_relaxed };
        answer(self.shared.queue_work(work)).await
    }
}

async fn answer(receiver: oneshot::Receiver<Reply>) -> Reply {
    receiver.await.unwrap_or_else(|_| {
        // Its thread panicked in the middle.
        Reply::Error(Error::fixed("ERR the command was cut short and may have been done"))
    })
}

impl LockedBatch<'_> {
    /// Runs queued requests, at most [`REQUESTS_PER_LOCK`].
    pub(super) fn run_queue(&mut self) {
        let common = self.common();
        self.own = Some(self.last_record());
        for _ in 0..REQUESTS_PER_LOCK {
            let Some(QueuedRequest { work, answer }) = self.shared.queue.pop() else { return };
            // The command of a caller that was dropped is not run.
            if answer.is_closed() {
                continue;
            }
            self.served += 1;
            let (reply, changed) = match work {
                QueuedWork::Command { cmd, is_relaxed } => {
                    let before = self.last_record();
                    self.is_relaxed = is_relaxed;
                    let outcome = Argv::of(&cmd).with(|argv| self.execute(common, argv));
                    self.is_relaxed = false;
                    (settled(outcome), self.last_record() > before)
                }
                QueuedWork::Write { changed } => {
                    self.write_now = true;
                    (Reply::Ok, changed)
                }
            };
            self.due.push(PendingDelivery::Answer { answer, reply, changed });
        }
    }

    /// Returns true if some of the records are those of the batch's own commands.
    pub fn changed(&self) -> bool {
        self.own.unwrap_or_else(|| self.last_record()) > self.first
    }

    fn last_record(&self) -> u64 {
        self.state.log.as_ref().map_or(0, |log| log.lsn)
    }
}
