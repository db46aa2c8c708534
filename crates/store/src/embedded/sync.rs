//! Fsync of the log: once a second, or as fast as the disk can while replies wait for it. Records that are
//! [relaxed](crate::Store::relaxed) do not ask for one: they share that of others, or wait for some seconds.
//!
//! The fsync runs outside the lock, so everything that was written while one was under way shares
//! the next.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{Delivery, PendingDelivery, StoreInner, StoreState, files};
use crate::Fsync;

/// The durable position of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Durable {
    /// Records up to this one are on disk.
    pub(super) synced: u64,
    /// Records up to this one, and above `synced`, may never be.
    pub(super) failed: u64,
}

/// Signals a thread that there is work, or that it must stop.
#[derive(Debug, Default)]
pub(super) struct WorkSignal {
    wakeup: Mutex<Wakeup>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Wakeup {
    pub(super) work: bool,
    /// Requests are queued and the lock is free.
    pub(super) serve: bool,
    pub(super) stop: bool,
}

impl WorkSignal {
    pub(super) fn work(&self) {
        self.wakeup.lock().work = true;
        self.changed.notify_one();
    }

    pub(super) fn serve(&self) {
        self.wakeup.lock().serve = true;
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        self.wakeup.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits for a signal, at most so long, and clears it.
    pub(super) fn wait(&self, most: Duration) -> Wakeup {
        let mut wakeup = self.wakeup.lock();
        if !wakeup.work && !wakeup.serve && !wakeup.stop {
            self.changed.wait_for(&mut wakeup, most);
        }
        let now = *wakeup;
        (wakeup.work, wakeup.serve) = (false, false);
        now
    }
}

/// Interval of fsync when no reply waits for it.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of fsync while all records are relaxed. Each fsync writes whole pages, also of a program that has
/// little to say.
const RELAXED_SYNC_INTERVAL: Duration = Duration::from_secs(15);

/// Runs the sync thread until it is told to stop.
pub(super) fn run(shared: &StoreInner, signal: &WorkSignal) {
    let mut looked = Instant::now();
    let mut synced = Instant::now();
    loop {
        let wakeup = signal.wait(SYNC_INTERVAL);
        if wakeup.stop {
            break;
        }
        if looked.elapsed() >= SYNC_INTERVAL {
            looked = Instant::now();
            shared.look_for_log();
        }
        let is_due = || synced.elapsed() >= RELAXED_SYNC_INTERVAL || shared.has_strict();
        if wakeup.work || shared.fsync() == Fsync::Everysec && is_due() {
            synced = Instant::now();
            shared.sync();
        }
    }
}

impl StoreInner {
    /// Checks that the log is still in its folder; refuses writes if it is not.
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

    /// Are there records that must be on disk within a second?
    fn has_strict(&self) -> bool {
        self.lock().log.as_ref().is_some_and(|log| log.strict > log.synced)
    }

    /// Fsyncs the log up to the last record written.
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

    /// Publishes the durable position of the log.
    pub(super) fn tell_durable(&self, state: &StoreState) {
        let Some(log) = &state.log else { return };
        let failed = if log.trouble.is_some() { log.lsn } else { 0 };
        self.durable.send_if_modified(|durable| {
            let now = Durable { synced: log.synced, failed: failed.max(durable.failed) };
            let changed = *durable != now;
            *durable = now;
            changed
        });
        for listener in self.listeners.lock().iter() {
            listener.synced();
        }
    }
}

impl StoreState {
    /// Hands out deliveries that waited for the disk, and denies writes if the log failed.
    pub(super) fn after_sync(&mut self) {
        let Some(log) = &self.log else { return };
        let trouble = log.trouble.as_ref().map(|trouble| trouble.reply());
        self.engine.deny_writes(trouble);
        self.engine.log_synced(log.synced);
        if self.engine.has_deliveries() {
            let output = self.engine.take_output();
            let deliveries = output.deliveries.into_iter();
            let due = |(session, reply)| PendingDelivery::Delivery(Delivery { session, reply });
            self.held.extend(deliveries.map(|delivery| (log.synced, due(delivery))));
        }
        let synced = log.synced;
        self.hand_out(synced);
    }

    /// Hands out deliveries that waited for records up to this one, and if the log failed those
    /// that wait for later ones too.
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
            due.hand_out(&self.targets);
        }
    }
}
