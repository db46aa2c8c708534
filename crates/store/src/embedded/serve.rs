//! Commands left with whoever has the lock.
//!
//! A call that finds the lock taken does not wait for it: it leaves its command and lets its thread
//! do something else. Whoever has the lock runs what was left along with its own, so that the
//! store's memory stays with one processor and one write of the log is for all of them. Invariant:
//! a command that was left is run, or refused because a script takes too long, without anybody
//! else coming by: who releases the lock looks once more afterwards, and the keeper goes on where
//! that would take too long. A caller that runs a slow script for another is kept as if it had come
//! after it.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicUsize, Ordering, fence},
};

use engine::{Error, Reply};
use parking_lot::{Mutex, MutexGuard};
use redis::Cmd;
use tokio::sync::oneshot;

use super::{Batch, Due, Embedded, Shared, State, settled, value::Argv};

/// How many commands of others are run under one lock at most.
const SERVED_MOST: usize = 256;
/// How often a caller looks again at most whether commands were left while it released the lock.
const ROUNDS: usize = 4;

/// What was left for whoever has the lock.
#[derive(Debug, Default)]
pub(super) struct Left {
    queue: Mutex<VecDeque<Request>>,
    /// How many are in the queue, readable without its lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Request {
    what: What,
    answer: oneshot::Sender<Reply>,
}

#[derive(Debug)]
enum What {
    /// To be run for the common session.
    Command(Cmd),
    /// All records so far are to be written. Are some of them the caller's?
    Write { changed: bool },
}

impl Left {
    fn push(&self, what: What) -> oneshot::Receiver<Reply> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.queue.lock();
        queue.push_back(Request { what, answer });
        self.count.store(queue.len(), Ordering::Relaxed);
        receiver
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn pop(&self) -> Option<Request> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock();
        let request = queue.pop_front();
        self.count.store(queue.len(), Ordering::Relaxed);
        request
    }

    /// Answers commands that were left in another way than by running them.
    pub(super) fn refuse(&self, mut answer: impl FnMut(&[&[u8]]) -> Reply) {
        let mut queue = self.queue.lock();
        for Request { what, answer: caller } in std::mem::take(&mut *queue) {
            match what {
                // A caller that has gone wants no answer.
                What::Command(cmd) => drop(caller.send(Argv::of(&cmd).with(&mut answer))),
                What::Write { .. } => queue.push_back(Request { what, answer: caller }),
            }
        }
        self.count.store(queue.len(), Ordering::Relaxed);
    }
}

/// What the lock guards, for whoever has it. What was left for them is seen to when it is released.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    // Dropped after the lock is released.
    _after: Option<After<'a>>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

struct After<'a>(&'a Shared);

impl Drop for After<'_> {
    fn drop(&mut self) {
        // A thread that panics runs nothing more.
        if std::thread::panicking() {
            self.0.bell.serve();
        } else {
            self.0.serve_left();
        }
    }
}

impl Shared {
    /// Takes the lock, however long that takes.
    pub(super) fn lock(&self) -> Locked<'_> {
        self.locked(self.state.lock())
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        self.state.try_lock().map(|state| self.locked(state))
    }

    /// The lock just taken.
    pub(super) fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Locked<'a> {
        Locked { state, _after: Some(After(self)) }
    }

    /// Runs what was left while the lock was being released.
    pub(super) fn serve_left(&self) {
        for _ in 0..ROUNDS {
            // Either this sees what was left, or whoever left it sees that the lock is free.
            fence(Ordering::SeqCst);
            if self.left.is_empty() {
                return;
            }
            // Whoever has the lock now looks afterwards.
            let Some(state) = self.state.try_lock() else { return };
            let mut batch = self.begin(Locked { state, _after: None });
            batch.serve();
            drop(batch.commit());
        }
        self.bell.serve();
    }

    /// Leaves something for whoever has the lock; runs it here if nobody has it any more.
    fn leave(&self, what: What) -> oneshot::Receiver<Reply> {
        let receiver = self.left.push(what);
        fence(Ordering::SeqCst);
        if let Some(mut batch) = self.try_batch() {
            batch.serve();
            drop(batch.commit());
        }
        receiver
    }

    /// Has all records written by whoever has the lock.
    pub(super) async fn leave_write(&self, changed: bool) -> Result<(), Error> {
        match answer(self.leave(What::Write { changed })).await {
            Reply::Error(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Embedded {
    /// Has a command run by whoever has the lock.
    pub(super) async fn leave(&self, cmd: &Cmd) -> Reply {
        answer(self.shared.leave(What::Command(cmd.clone()))).await
    }
}

async fn answer(receiver: oneshot::Receiver<Reply>) -> Reply {
    receiver.await.unwrap_or_else(|_| {
        // Its thread panicked in the middle.
        Reply::Error(Error::fixed("ERR the command was cut short and may have been done"))
    })
}

impl Batch<'_> {
    /// Runs what others have left, as much of it as may be under one lock.
    pub(super) fn serve(&mut self) {
        let common = self.common();
        self.own = Some(self.last_record());
        for _ in 0..SERVED_MOST {
            let Some(Request { what, answer }) = self.shared.left.pop() else { return };
            // A caller that has gone wants nothing done.
            if answer.is_closed() {
                continue;
            }
            self.served += 1;
            let (reply, changed) = match what {
                What::Command(cmd) => {
                    let before = self.last_record();
                    let outcome = Argv::of(&cmd).with(|argv| self.execute(common, argv));
                    (settled(outcome), self.last_record() > before)
                }
                What::Write { changed } => {
                    self.write_now = true;
                    (Reply::Ok, changed)
                }
            };
            self.due.push(Due::Answer { answer, reply, changed });
        }
    }

    /// Are some of the records those of the batch's own commands?
    pub(super) fn changed(&self) -> bool {
        self.own.unwrap_or_else(|| self.last_record()) > self.first
    }

    fn last_record(&self) -> u64 {
        self.state.log.as_ref().map_or(0, |log| log.lsn)
    }
}
