//! Slow scripts: how in-process callers wait for the lock without blocking a runtime
//! thread, and when they and clients of a listener get `BUSY`.
//!
//! A script holds the lock until it ends. Once it has run for longer than `busy-reply-threshold`,
//! the engine calls back from the middle of it, on its own thread, so that a listener can answer
//! its clients; callers in the process see the same by themselves when the lock cannot be had.

use std::{sync::Arc, time::Duration};

use engine::{CommandOutcome, Error, Now, Reply, ScriptControl, SessionId};
use parking_lot::Mutex;

use super::{Embedded, Listener, LockedBatch, StoreInner, combining::CombiningQueue, settled};
use crate::Clock;

/// Time a caller blocks its thread on the lock: longer than any command but a script
/// holds it, so that a task is suspended only for a script.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_millis(10);
/// Times a caller that finds the lock taken yields to other tasks before it blocks
/// its thread: putting a thread to sleep and waking it takes longer than most commands.
const LOCK_YIELDS: usize = 256;
/// Interval at which a suspended caller tries the lock again.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(5);

/// Listeners, reachable also while a script has the lock.
pub(super) type Listeners = Arc<Mutex<Vec<Arc<dyn Listener>>>>;

/// The store in the middle of a slow script.
#[derive(Debug)]
pub struct BusyStore<'a, 'b> {
    engine: &'a mut engine::BusyContext<'b>,
    now: Now,
}

impl BusyStore<'_, '_> {
    /// Opens a session for a client at `address`; to be [attached](super::LockedBatch::attach) later.
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.engine.connect(address)
    }

    /// Runs one command of those that may run now; any other gets `BUSY`.
    pub fn execute(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        self.engine.execute(self.now, session, argv)
    }

    /// The protocol a session speaks, 2 or 3.
    pub fn protocol(&self, session: SessionId) -> u8 {
        self.engine.protocol(session)
    }

    /// Has the session shown its password, or needs none?
    pub fn is_authenticated(&self, session: SessionId) -> bool {
        self.engine.is_authenticated(session)
    }

    /// Is the session over once its replies are sent?
    pub fn is_closing(&self, session: SessionId) -> bool {
        self.engine.is_closing(session)
    }
}

/// Registers the callback that runs while a slow script has the lock: it lets listeners serve their
/// clients and refuses queued requests.
pub(super) fn serve(
    control: &ScriptControl,
    listeners: &Listeners,
    queue: &Arc<CombiningQueue>,
    session: SessionId,
    clock: &Clock,
) {
    let (listeners, queue, clock) = (Arc::clone(listeners), Arc::clone(queue), clock.clone());
    control.while_busy(move |engine| {
        let now = Now::from_millis(clock.now().0);
        let listeners = listeners.lock().clone();
        for listener in listeners {
            listener.busy(&mut BusyStore { engine, now });
        }
        queue.refuse(|argv| settled(engine.execute(now, session, argv)));
    });
}

impl Embedded {
    /// Takes the lock; when a script has it, without keeping the thread. The error is for the
    /// caller of [`Embedded::refused`].
    pub(super) async fn enter(&self) -> Result<LockedBatch<'_>, Error> {
        for _ in 0..LOCK_YIELDS {
            if let Some(batch) = self.shared.try_batch() {
                return Ok(batch);
            }
            tokio::task::yield_now().await;
        }
        if let Some(batch) = self.shared.try_batch_for(LOCK_TIMEOUT) {
            return Ok(batch);
        }
        loop {
            if let Some(busy) = self.shared.control.busy() {
                return Err(busy);
            }
            tokio::time::sleep(LOCK_POLL).await;
            if let Some(batch) = self.shared.try_batch() {
                return Ok(batch);
            }
        }
    }

    /// Takes the lock as [`Embedded::enter`] does, however long it takes.
    pub(super) async fn enter_at_last(&self) -> LockedBatch<'_> {
        loop {
            if let Ok(batch) = self.enter().await {
                return batch;
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }

    /// Returns the answer to a command that cannot run because of a slow script. Only the
    /// script's end can be asked for.
    pub(super) fn refused(&self, argv: &[&[u8]], busy: &Error) -> Reply {
        let kills = |name: &[u8]| {
            matches!(argv, [first, second] if first.eq_ignore_ascii_case(name)
                && second.eq_ignore_ascii_case(b"KILL"))
        };
        match () {
            () if kills(b"SCRIPT") => self.shared.control.kill(false),
            () if kills(b"FUNCTION") => self.shared.control.kill(true),
            () => Reply::Error(busy.clone()),
        }
    }

    /// Takes the lock if it is free.
    pub fn try_batch(&self) -> Option<LockedBatch<'_>> {
        self.shared.try_batch()
    }
}

impl StoreInner {
    pub(super) fn try_batch(&self) -> Option<LockedBatch<'_>> {
        self.try_lock().map(|state| self.begin(state))
    }

    pub(super) fn try_batch_for(&self, most: Duration) -> Option<LockedBatch<'_>> {
        self.state.try_lock_for(most).map(|state| self.begin(self.locked(state)))
    }
}
