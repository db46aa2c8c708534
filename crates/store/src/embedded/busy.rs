//! Slow scripts: how in-process callers wait for the lock without blocking a runtime
//! thread, and when they and clients of a listener get `BUSY`.
//!
//! A script holds the lock until it ends. Once it has run for longer than `busy-reply-threshold`,
//! the engine calls back from the middle of it, on its own thread, so that a listener can answer
//! its clients; callers in the process see the same by themselves when the lock cannot be had.
//!
//! A script can share its batch with commands that ran before it. What these left to be written and
//! handed out is lent to the callback, so that nobody's reply waits for the end of another's script.

use std::{
    collections::{HashMap, VecDeque},
    io, mem,
    sync::Arc,
    time::Duration,
};

use engine::{CommandOutcome, Error, Now, Reply, ScriptControl, SessionId};
use parking_lot::Mutex;

use super::{
    DeliveryTarget, Embedded, Listener, LockedBatch, PendingDelivery, StoreInner,
    combining::CombiningQueue,
    log::{LogFailure, LogWriter},
    settled,
};
use crate::{Clock, Fsync};

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

/// Output of the commands that ran before a script in the same batch.
pub(super) struct BatchOutput {
    pub(super) log: Option<LogWriter>,
    pub(super) targets: HashMap<SessionId, DeliveryTarget>,
    pub(super) held: VecDeque<(u64, PendingDelivery)>,
    pub(super) due: Vec<PendingDelivery>,
    /// Some of the records are the batch's own.
    pub(super) changed: bool,
    /// Writes were refused from the start.
    pub(super) denied: bool,
    pub(super) fsync: Fsync,
    /// Records up to this one may be answered.
    pub(super) settled: u64,
}

impl BatchOutput {
    /// Writes the records and hands out the deliveries, as the end of the batch would. Returns the
    /// last record that may be answered.
    fn settle(&mut self) -> Result<u64, Error> {
        let failed = if self.denied { None } else { self.write().err() };
        if !self.denied {
            let written = self.log.as_ref().map_or(0, |log| log.written);
            for (lsn, mut due) in self.held.drain(..) {
                if let Some(error) = failed.as_ref().filter(|_| lsn > written) {
                    due.fail(error);
                }
                due.hand_out(&self.targets);
            }
        }
        for mut due in self.due.drain(..) {
            if let Some(error) = &failed {
                due.fail(error);
            }
            due.hand_out(&self.targets);
        }
        match failed {
            // A caller that only read is answered even if nothing can be written.
            Some(error) if self.changed => Err(error),
            _ => Ok(self.settled),
        }
    }

    /// Writes the records, and with `always` brings them to disk: the thread that does so otherwise
    /// waits for the script.
    fn write(&mut self) -> Result<(), Error> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.write().map_err(LogFailure::reply)?;
        if self.fsync == Fsync::Always && log.written > self.settled {
            let synced: io::Result<()> =
                log.sealed.iter().chain([&log.file]).try_for_each(|file| file.sync());
            if let Err(error) = synced {
                log.fail_sync(&error);
                log.write().map_err(LogFailure::reply)?;
            }
            self.settled = log.written;
        }
        Ok(())
    }
}

/// The place where a batch leaves its output while a script of it runs.
pub(super) type LentOutput = Arc<Mutex<Option<BatchOutput>>>;

/// The parts of a batch that are lent, and given back when this is dropped: a command that panics
/// must not take the log with it.
pub(super) struct OutputLoan<'a> {
    lent: &'a LentOutput,
    log: &'a mut Option<LogWriter>,
    targets: &'a mut HashMap<SessionId, DeliveryTarget>,
    held: &'a mut VecDeque<(u64, PendingDelivery)>,
    due: &'a mut Vec<PendingDelivery>,
}

impl Drop for OutputLoan<'_> {
    fn drop(&mut self) {
        if let Some(output) = self.lent.lock().take() {
            *self.log = output.log;
            *self.targets = output.targets;
            *self.held = output.held;
            *self.due = output.due;
        }
    }
}

impl LockedBatch<'_> {
    /// Runs a command that may run a script. While it runs, a listener can settle what ran before it
    /// in this batch: [`BusyStore::settle`].
    pub fn execute_script(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        let refused = self.refuse_without_room(argv);
        let (changed, denied, fsync) = (self.changed(), self.denied, self.shared.fsync());
        let lent = &self.shared.lent;
        let super::StoreState { engine, log, targets, held, .. } = &mut *self.state;
        let settled = log.as_ref().map_or(0, |log| log.synced);
        *lent.lock() = Some(BatchOutput {
            log: log.take(),
            targets: mem::take(targets),
            held: mem::take(held),
            due: mem::take(&mut self.due),
            changed,
            denied,
            fsync,
            settled,
        });
        let loan = OutputLoan { lent, log, targets, held, due: &mut self.due };
        let outcome = super::run(engine, self.now, session, argv);
        drop(loan);
        self.after_command(refused);
        outcome
    }
}

/// The store in the middle of a slow script.
pub struct BusyStore<'a, 'b> {
    engine: &'a mut engine::BusyContext<'b>,
    now: Now,
    lent: &'a LentOutput,
}

impl std::fmt::Debug for BusyStore<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BusyStore").field("now", &self.now).finish_non_exhaustive()
    }
}

impl BusyStore<'_, '_> {
    /// Opens a session for a client at `address`; to be [attached](super::LockedBatch::attach) later.
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.engine.connect(address)
    }

    /// Writes what commands before the script changed in its batch, and hands out their deliveries.
    /// Their replies may be sent then, and those that wait for records up to the one it returns.
    ///
    /// # Errors
    /// The log cannot be written: the error is sent in place of their replies.
    pub fn settle(&mut self) -> Result<u64, Error> {
        self.lent.lock().as_mut().map_or(Ok(0), BatchOutput::settle)
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
    lent: &LentOutput,
    session: SessionId,
    clock: &Clock,
) {
    let (listeners, queue, clock) = (Arc::clone(listeners), Arc::clone(queue), clock.clone());
    let lent = Arc::clone(lent);
    control.while_busy(move |engine| {
        let now = Now::from_millis(clock.now().0);
        let listeners = listeners.lock().clone();
        for listener in listeners {
            listener.busy(&mut BusyStore { engine, now, lent: &lent });
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
