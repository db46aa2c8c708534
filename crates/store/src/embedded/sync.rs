//! Bringing the log to disk: once a second, or as fast as the disk can while replies wait for it.
//!
//! The fsync runs outside the lock, so everything that was written while one was under way shares
//! the next.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{Delivery, Due, Shared, State, files};
use crate::Fsync;

/// How far the log is on disk, for those who wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Durable {
    /// Records up to this one are on disk.
    pub(super) synced: u64,
    /// Records up to this one, and above `synced`, may never be.
    pub(super) failed: u64,
}

/// Tells a thread that there is work, or that it is over.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Rung {
    pub(super) work: bool,
    /// Commands were left for whoever has the lock, and nobody has it.
    pub(super) serve: bool,
    pub(super) stop: bool,
}

impl Bell {
    pub(super) fn work(&self) {
        self.rung.lock().work = true;
        self.changed.notify_one();
    }

    pub(super) fn serve(&self) {
        self.rung.lock().serve = true;
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        self.rung.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits until the bell rings, at most so long; takes the work off.
    pub(super) fn wait(&self, most: Duration) -> Rung {
        let mut rung = self.rung.lock();
        if !rung.work && !rung.serve && !rung.stop {
            self.changed.wait_for(&mut rung, most);
        }
        let now = *rung;
        (rung.work, rung.serve) = (false, false);
        now
    }
}

/// How often the log is brought to disk when nobody waits for it.
const EVERY: Duration = Duration::from_secs(1);

/// The thread's work until the bell says stop.
pub(super) fn run(shared: &Shared, bell: &Bell) {
    let mut looked = Instant::now();
    loop {
        let rung = bell.wait(EVERY);
        if rung.stop {
            break;
        }
        if looked.elapsed() >= EVERY {
            looked = Instant::now();
            shared.look_for_log();
        }
        if rung.work || shared.fsync() == Fsync::Everysec {
            shared.sync();
        }
    }
}

impl Shared {
    /// Looks whether the log is still in its folder; refuses writes if it is not.
    pub(super) fn look_for_log(&self) {
        let (disk, file, logs) = {
            let state = self.lock();
            let Some(log) = state.log.as_ref().filter(|log| log.trouble.is_none()) else { return };
            (Arc::clone(&log.disk), Arc::clone(&log.file), log.manifest.logs.clone())
        };
        // The last, but for the moment in which a new one has been made and is not used yet.
        let mut names = logs.into_iter().rev().map(files::log_name);
        if names.any(|name| disk.holds(&name, file.as_ref())) {
            return;
        }
        let mut state = self.lock();
        let Some(log) = &mut state.log else { return };
        // Else the log goes on in another file since.
        if Arc::ptr_eq(&log.file, &file) && log.trouble.is_none() {
            log.vanish();
            state.after_sync();
            self.tell_durable(&state);
        }
    }

    /// Brings what is written so far to disk.
    pub(super) fn sync(&self) {
        let (sealed, file, lsn) = {
            let state = self.lock();
            let Some(log) = &state.log else { return };
            if log.trouble.is_some() || log.written <= log.synced {
                return;
            }
            (log.sealed.clone(), Arc::clone(&log.file), log.written)
        };
        let result = sealed.iter().chain([&file]).try_for_each(|file| file.sync());
        let mut state = self.lock();
        let Some(log) = &mut state.log else { return };
        match result {
            Ok(()) => {
                log.sealed.retain(|kept| !sealed.iter().any(|done| Arc::ptr_eq(done, kept)));
                log.synced(lsn);
            }
            Err(error) => {
                let in_use = Arc::ptr_eq(&log.file, &file)
                    || log.sealed.iter().any(|kept| Arc::ptr_eq(kept, &file));
                // Else a new base has taken the place of that file meanwhile.
                if in_use {
                    log.fail_sync(&error);
                }
            }
        }
        state.after_sync();
        self.tell_durable(&state);
    }

    /// Tells those who wait how far the log is.
    pub(super) fn tell_durable(&self, state: &State) {
        let Some(log) = &state.log else { return };
        let failed = if log.trouble.is_some() { log.lsn } else { 0 };
        self.durable.send_if_modified(|durable| {
            let now = Durable { synced: log.synced, failed: failed.max(durable.failed) };
            let changed = *durable != now;
            *durable = now;
            changed
        });
        for port in self.ports.lock().iter() {
            port.synced();
        }
    }
}

impl State {
    /// Hands out what waited for the disk, and denies writes if there is trouble.
    pub(super) fn after_sync(&mut self) {
        let Some(log) = &self.log else { return };
        let trouble = log.trouble.as_ref().map(|trouble| trouble.reply());
        self.engine.deny_writes(trouble);
        self.engine.log_synced(log.synced);
        if self.engine.has_deliveries() {
            let output = self.engine.take_output();
            let deliveries = output.deliveries.into_iter();
            let due = |(session, reply)| Due::Delivery(Delivery { session, reply });
            self.held.extend(deliveries.map(|delivery| (log.synced, due(delivery))));
        }
        let synced = log.synced;
        self.hand_out(synced);
    }

    /// Hands out what waited for records up to this one, and if there is trouble what waits for
    /// later ones too.
    pub(super) fn hand_out(&mut self, up_to: u64) {
        let Some(log) = &self.log else { return };
        while let Some((lsn, _)) = self.held.front() {
            let late = *lsn > up_to;
            if late && log.trouble.is_none() {
                break;
            }
            let Some((_, mut due)) = self.held.pop_front() else { break };
            if late && let Some(trouble) = &log.trouble {
                due.fail(&trouble.reply());
            }
            due.hand_out(&self.outlets);
        }
    }
}
