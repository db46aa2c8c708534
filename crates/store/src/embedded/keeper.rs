//! The store's own thread: takes out expired keys a bounded number at a time.
//!
//! It ends, and is waited for, when the last handle goes.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use super::Shared;

/// How often expired keys are looked for. Expiry on access hides them sooner; ten times a second
/// as Redis does keeps memory and `expired` events close to the deadline.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Owns the thread.
pub(super) struct Keeper {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let asked = Arc::clone(&stop);
        let thread =
            thread::Builder::new().name("store".to_owned()).spawn(move || keep(&shared, &asked))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread panicked");
        }
    }
}

fn keep(shared: &Shared, stop: &Stop) {
    let mut asked = stop.asked.lock();
    while !*asked {
        if stop.changed.wait_for(&mut asked, SWEEP_EVERY).timed_out() {
            shared.sweep();
        }
    }
}
