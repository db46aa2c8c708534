//! Stopping a running script: the limits it runs into, and SCRIPT KILL.
//!
//! The engine has no clock and is locked while a script runs. Whoever embeds it can hold a
//! [`ScriptControl`], which works without that lock: it tells whether a script keeps everybody
//! waiting, and kills it as `SCRIPT KILL` does, that is, only while it has written nothing.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::BusyContext;
use crate::engine::Core;
use crate::error::Error;
use crate::{Config, Reply};

const RUNNING: u32 = 1 << 0;
/// It was called by FCALL, not EVAL.
const FUNCTION: u32 = 1 << 1;
/// It has called a command that writes.
const WROTE: u32 = 1 << 2;
/// A client asked it to stop.
const KILLED: u32 = 1 << 3;
/// Its time is up.
const OVERDUE: u32 = 1 << 4;
/// It has run for longer than others should wait.
const BUSY: u32 = 1 << 5;

/// Instructions taken for a millisecond where no clock was given. An interpreter on a machine of
/// today executes some 100 to 300 million in a second.
const INSTRUCTIONS_PER_MS: u64 = 100_000;

/// The state of the running script, and its limits.
#[derive(Debug, Default)]
pub(crate) struct Control {
    state: AtomicU32,
    clock: Option<fn() -> Duration>,
    started_us: AtomicU64,
    busy_ms: AtomicU64,
    deadline_ms: AtomicU64,
    deadline_written_ms: AtomicU64,
    /// Serves others while a script keeps them waiting, and when it last did.
    server: OnceLock<BusyCallback>,
    served_ms: AtomicU64,
}

/// The callback given to [`ScriptControl::while_busy`].
struct BusyCallback(Box<dyn Fn(&mut BusyContext<'_>) + Send + Sync>);

impl fmt::Debug for BusyCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyCallback").finish_non_exhaustive()
    }
}

impl Control {
    pub(super) fn new(config: &Config) -> Control {
        let control = Control { clock: config.script_clock, ..Control::default() };
        control.configure(config);
        control
    }

    fn configure(&self, config: &Config) {
        self.busy_ms.store(config.script_busy_ms, Ordering::Relaxed);
        self.deadline_ms.store(config.script_deadline_ms, Ordering::Relaxed);
        self.deadline_written_ms.store(config.script_deadline_written_ms, Ordering::Relaxed);
    }

    /// A script begins.
    pub(super) fn begin(&self, config: &Config, function: bool) {
        self.configure(config);
        if let Some(clock) = self.clock {
            self.started_us.store(micros(clock()), Ordering::Relaxed);
        }
        self.state.store(RUNNING | if function { FUNCTION } else { 0 }, Ordering::Release);
    }

    /// A library is loaded, for which there is little time.
    pub(super) fn begin_load(&self, config: &Config, limit_ms: u64) {
        self.begin(config, true);
        self.deadline_ms.store(limit_ms, Ordering::Relaxed);
    }

    /// It is over.
    pub(super) fn end(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// The script is about to write, if nobody has killed it by now. From then on nobody can.
    pub(super) fn begin_write(&self) -> Result<(), ()> {
        let wrote = |state| (state & KILLED == 0).then_some(state | WROTE);
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, wrote) {
            Ok(_) => Ok(()),
            Err(_) => Err(()),
        }
    }

    /// Has it written?
    pub(super) fn has_written(&self) -> bool {
        self.state.load(Ordering::Acquire) & WROTE != 0
    }

    /// Must the script stop?
    pub(super) fn must_stop(&self) -> bool {
        self.state.load(Ordering::Acquire) & (KILLED | OVERDUE) != 0
    }

    /// Looks at the clock, or at the instructions executed so far if there is none. Is it time to
    /// let others have a word? That is once in a millisecond, after the script has become busy.
    pub(super) fn look(&self, executed: u64) -> bool {
        let elapsed_ms = match self.clock {
            Some(clock) => {
                let started = self.started_us.load(Ordering::Relaxed);
                micros(clock()).saturating_sub(started) / 1000
            }
            None => executed / INSTRUCTIONS_PER_MS,
        };
        let past = |limit: &AtomicU64| {
            let limit = limit.load(Ordering::Relaxed);
            limit > 0 && elapsed_ms >= limit
        };
        let mut set = if past(&self.busy_ms) { BUSY } else { 0 };
        let deadline =
            if self.has_written() { &self.deadline_written_ms } else { &self.deadline_ms };
        if past(deadline) {
            set |= OVERDUE;
        }
        if set != 0 {
            self.state.fetch_or(set, Ordering::AcqRel);
        }
        set & BUSY != 0
            && self.server.get().is_some()
            && self.served_ms.swap(elapsed_ms, Ordering::Relaxed) != elapsed_ms
    }

    /// Lets others have a word while the script waits.
    pub(super) fn serve(&self, core: &mut Box<Core>) {
        if let Some(server) = self.server.get()
            && let Some(busy) = self.busy()
        {
            (server.0)(&mut BusyContext::new(core, busy));
        }
    }

    /// Returns the BUSY error that other clients get while a slow script runs.
    fn busy(&self) -> Option<Error> {
        let state = self.state.load(Ordering::Acquire);
        let function = state & FUNCTION != 0;
        (state & BUSY != 0).then_some(if function { BUSY_FUNCTION } else { BUSY_EVAL })
    }

    /// The script must stop whatever it has done: everything ends.
    pub(crate) fn stop(&self) {
        self.state.fetch_or(OVERDUE, Ordering::AcqRel);
    }

    /// Returns the time it has run, if there is a clock.
    pub(super) fn elapsed_ms(&self) -> Option<i64> {
        let now = micros((self.clock?)());
        let elapsed = now.saturating_sub(self.started_us.load(Ordering::Relaxed)) / 1000;
        i64::try_from(elapsed).ok()
    }

    /// Returns the error for the caller of a script that was stopped.
    pub(super) fn death(&self) -> Vec<u8> {
        if self.state.load(Ordering::Acquire) & KILLED != 0 {
            return b"ERR Script killed by user with SCRIPT KILL...".to_vec();
        }
        b"ERR Script killed: it ran for longer than scripts may".to_vec()
    }

    /// `SCRIPT KILL` or, for functions, `FUNCTION KILL`.
    pub(crate) fn kill(&self, function: bool) -> Result<Reply, Error> {
        let mut refused = NOT_BUSY;
        let kill = |state: u32| {
            if state & RUNNING == 0 {
                refused = NOT_BUSY;
            } else if state & WROTE != 0 {
                refused = UNKILLABLE;
            } else if function != (state & FUNCTION != 0) {
                refused = if function { BUSY_EVAL } else { BUSY_FUNCTION };
            } else {
                return Some(state | KILLED);
            }
            None
        };
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, kill) {
            Ok(_) => Ok(Reply::Ok),
            Err(_) => Err(refused),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

const NOT_BUSY: Error = Error::fixed("NOTBUSY No scripts in execution right now.");
const UNKILLABLE: Error = Error::fixed(
    "UNKILLABLE Sorry the script already executed write commands against the dataset. You can \
     either wait the script termination or kill the server in a hard way using the SHUTDOWN \
     NOSAVE command.",
);
const BUSY_EVAL: Error = Error::fixed(
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
);
const BUSY_FUNCTION: Error = Error::fixed(
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
);

/// A hold on the script that is running, for use while the engine is locked by it.
///
/// ```
/// use tidegate_engine::{Config, Engine, Reply};
///
/// let engine = Engine::new(Config::default());
/// let control = engine.script_control();
/// assert!(!control.is_running());
/// assert!(control.kill(false).is_error(), "there is none to kill");
/// ```
#[derive(Debug, Clone)]
pub struct ScriptControl(pub(crate) Arc<Control>);

impl ScriptControl {
    /// Is a script running right now?
    pub fn is_running(&self) -> bool {
        self.0.state.load(Ordering::Acquire) & RUNNING != 0
    }

    /// Returns the BUSY error to answer instead of waiting, if there is a script that has run
    /// for longer than `script_busy_ms`.
    pub fn busy(&self) -> Option<Error> {
        self.0.busy()
    }

    /// Has `serve` called about once in a millisecond while a slow script runs, on
    /// the thread that runs the script. To be set once: a second call changes nothing.
    pub fn while_busy(&self, serve: impl Fn(&mut BusyContext<'_>) + Send + Sync + 'static) {
        self.0.server.get_or_init(|| BusyCallback(Box::new(serve)));
    }

    /// Answers `SCRIPT KILL` (or `FUNCTION KILL`): the script is stopped at its next step, unless
    /// it has written something.
    pub fn kill(&self, function: bool) -> Reply {
        self.0.kill(function).unwrap_or_else(Reply::Error)
    }
}
