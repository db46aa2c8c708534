//! Background threads of the store: one that removes expired keys, recovers a failed log and has it
//! compacted when it is long; one that fsyncs the log; one that compacts, for as long as that
//! takes.
//!
//! They end, and are joined, when the last handle is dropped. Then the log is fsynced.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use engine::{Config, Engine};

use super::{
    StoreInner,
    compact::{self, CompactionError},
    log::LogRecovery,
    sync::{self, WorkSignal},
};

/// Interval of the sweep for expired keys. Expiry on access hides them sooner; ten times a second
/// as Redis does keeps memory and `expired` events close to the deadline.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Delay after a failed compaction or recovery before the next attempt.
const RETRY_DELAY: Duration = Duration::from_secs(2);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Owns the threads.
pub(super) struct BackgroundThreads {
    shared: Arc<StoreInner>,
    threads: Vec<JoinHandle<()>>,
}

/// Settings of compaction.
#[derive(Debug, Clone)]
pub(super) struct Compaction {
    /// Logs shorter than this are left alone.
    pub(super) least: u64,
    /// The settings of the second keyspace.
    pub(super) config: Config,
    /// Bytes that are not divided further when the second keyspace is made in parts.
    pub(super) least_part: u64,
}

impl BackgroundThreads {
    /// Starts the threads; the second is for a store that has a log.
    pub(super) fn start(
        shared: Arc<StoreInner>,
        on_disk: bool,
        compaction: Compaction,
    ) -> io::Result<Self> {
        let mut background = Self { shared, threads: Vec::new() };
        let shared = Arc::clone(&background.shared);
        background.spawn("store", move || keep(&shared, &shared.signal, &compaction))?;
        if on_disk {
            let shared = Arc::clone(&background.shared);
            background.spawn("store-sync", move || sync::run(&shared, &shared.sync_signal))?;
        }
        Ok(background)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        self.shared.signal.stop();
        self.shared.sync_signal.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        self.shared.close();
    }
}

fn keep(shared: &StoreInner, signal: &WorkSignal, compaction: &Compaction) {
    // Work that stops half way when the signal says so.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut running: Option<thread::ScopedJoinHandle<'_, Result<(), CompactionError>>> = None;
        let mut pause = RetryBackoff::default();
        let mut asked = false;
        loop {
            let wakeup = signal.wait(SWEEP_INTERVAL);
            asked |= wakeup.work;
            if wakeup.serve {
                shared.run_queued();
            }
            if wakeup.stop {
                stop.store(true, Ordering::Relaxed);
                break;
            }
            if let Some(ended) = running.take_if(|running| running.is_finished()) {
                pause.after(&report(ended));
            }
            shared.disconnect_leaving();
            shared.free_garbage();
            shared.sample_rates();
            match shared.trouble() {
                None => shared.sweep(),
                Some(LogRecovery::WriteAgain) => shared.write_again(),
                // A running compaction is not interrupted.
                Some(LogRecovery::StartOver) if running.is_none() && pause.over() => {
                    let result = compact::start_over(shared, &stop);
                    if let Err(error) = &result {
                        tracing::warn!(%error, "the store could not start a new log yet");
                    }
                    pause.after(&result.is_ok());
                    continue;
                }
                Some(LogRecovery::StartOver) => {}
            }
            let wanted = asked || (pause.over() && shared.is_long(compaction.least));
            if wanted && running.is_none() && shared.has_log() {
                asked = false;
                shared.save(Engine::save_began);
                let stop = &stop;
                let thread = thread::Builder::new().name("store-compact".to_owned());
                let work = move || {
                    let result = compact::compact(shared, compaction, stop);
                    shared.save(|engine, now| engine.save_ended(now, result.is_ok()));
                    if shared.end_when_saved.load(Ordering::Relaxed) {
                        shared.ending.send_replace(true);
                    }
                    result
                };
                match thread.spawn_scoped(scope, work) {
                    Ok(thread) => running = Some(thread),
                    Err(error) => {
                        tracing::warn!(%error, "no thread to compact the log");
                        shared.save(|engine, now| engine.save_ended(now, false));
                    }
                }
            }
        }
        if let Some(running) = running {
            report(running);
        }
    });
}

/// Logs how a compaction ended; returns false if it failed.
fn report(ended: thread::ScopedJoinHandle<'_, Result<(), CompactionError>>) -> bool {
    match ended.join() {
        Ok(Ok(())) => {
            tracing::info!("the log was compacted");
            true
        }
        Ok(Err(
            CompactionError::Stopped | CompactionError::Replay(super::replay::ReplayError::Stopped),
        )) => true,
        Ok(Err(error)) => {
            tracing::error!(%error, "the log could not be compacted; it stays as it is");
            false
        }
        Err(_) => {
            tracing::error!("compacting the log panicked");
            false
        }
    }
}

/// Growing pauses after failures.
#[derive(Default)]
struct RetryBackoff {
    until: Option<Instant>,
    length: Duration,
}

impl RetryBackoff {
    fn over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    fn after(&mut self, succeeded: &bool) {
        if *succeeded {
            *self = Self::default();
        } else {
            self.length = (self.length * 2).clamp(RETRY_DELAY, RETRY_DELAY_MAX);
            self.until = Some(Instant::now() + self.length);
        }
    }
}
