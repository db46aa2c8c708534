//! When a script keeps everybody waiting: how callers in the process come by the lock without
//! keeping their threads, and what they and clients of a listener are told after a while.
//!
//! A script holds the lock until it ends. Once it has run for longer than `busy-reply-threshold`,
//! the engine calls back from the middle of it, on its own thread, so that a listener can answer
//! its clients; callers in the process see the same by themselves when the lock cannot be had.

use std::{sync::Arc, time::Duration};

use engine::{Error, Now, Outcome, Reply, ScriptControl, SessionId};
use parking_lot::Mutex;

use super::{Batch, Embedded, Port, Shared, serve::Left, settled};
use crate::Clock;

/// How long a caller keeps its thread waiting for the lock: longer than any command but a script
/// holds it, so that a task is put aside only for one.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);
/// How often a caller that finds the lock taken lets other tasks have their turn before it keeps
/// its thread waiting: putting a thread to sleep and waking it takes longer than most commands.
const TURNS: usize = 256;
/// How often a caller that was put aside looks again.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// Listeners, reachable also while a script has the lock.
pub(super) type Ports = Arc<Mutex<Vec<Arc<dyn Port>>>>;

/// The store in the middle of a script that keeps everybody waiting.
#[derive(Debug)]
pub struct Meanwhile<'a, 'b> {
    engine: &'a mut engine::Meanwhile<'b>,
    now: Now,
}

impl Meanwhile<'_, '_> {
    /// Opens a session for a client at `address`; to be [attached](Batch::attach) later.
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.engine.connect(address)
    }

    /// Runs one command of those that may run now; any other is told `BUSY`.
    pub fn execute(&mut self, session: SessionId, argv: &[&[u8]]) -> Outcome {
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

/// Has listeners called while a script keeps everybody waiting, and answers what was left for
/// whoever has the lock.
pub(super) fn serve(
    control: &ScriptControl,
    ports: &Ports,
    left: &Arc<Left>,
    session: SessionId,
    clock: &Clock,
) {
    let (ports, left, clock) = (Arc::clone(ports), Arc::clone(left), clock.clone());
    control.while_busy(move |engine| {
        let now = Now::from_millis(clock.now().0);
        let ports = ports.lock().clone();
        for port in ports {
            port.busy(&mut Meanwhile { engine, now });
        }
        left.refuse(|argv| settled(engine.execute(now, session, argv)));
    });
}

impl Embedded {
    /// Takes the lock; when a script has it, without keeping the thread. The error is for the
    /// caller of [`Embedded::refused`].
    pub(super) async fn enter(&self) -> Result<Batch<'_>, Error> {
        for _ in 0..TURNS {
            if let Some(batch) = self.shared.try_batch() {
                return Ok(batch);
            }
            tokio::task::yield_now().await;
        }
        if let Some(batch) = self.shared.try_batch_for(PATIENCE) {
            return Ok(batch);
        }
        loop {
            if let Some(busy) = self.shared.control.busy() {
                return Err(busy);
            }
            tokio::time::sleep(LOOK).await;
            if let Some(batch) = self.shared.try_batch() {
                return Ok(batch);
            }
        }
    }

    /// Takes the lock as [`Embedded::enter`] does, however long it takes.
    pub(super) async fn enter_at_last(&self) -> Batch<'_> {
        loop {
            if let Ok(batch) = self.enter().await {
                return batch;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The answer to a command that cannot run because a script keeps everybody waiting. Only the
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

    /// Takes the lock if nobody has it.
    pub fn try_batch(&self) -> Option<Batch<'_>> {
        self.shared.try_batch()
    }
}

impl Shared {
    pub(super) fn try_batch(&self) -> Option<Batch<'_>> {
        self.try_lock().map(|state| self.begin(state))
    }

    pub(super) fn try_batch_for(&self, most: Duration) -> Option<Batch<'_>> {
        self.state.try_lock_for(most).map(|state| self.begin(self.locked(state)))
    }
}
