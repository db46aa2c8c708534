//! The store's own threads: one that takes out expired keys, mends a log in trouble and has it
//! compacted when it is long; one that brings the log to disk; one that compacts, while it does.
//!
//! They end, and are waited for, when the last handle goes. Then what is left is brought to disk.

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
    Shared,
    compact::{self, Failed},
    log::Cure,
    sync::{self, Bell},
};

/// How often expired keys are looked for. Expiry on access hides them sooner; ten times a second
/// as Redis does keeps memory and `expired` events close to the deadline.
const TICK: Duration = Duration::from_millis(100);
/// How long after a failed attempt to compact or to start over the next is made.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Owns the threads.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// When and how a log is compacted.
#[derive(Debug, Clone)]
pub(super) struct Compaction {
    /// Logs shorter than this are left alone.
    pub(super) least: u64,
    /// The settings of the second keyspace.
    pub(super) config: Config,
}

impl Keeper {
    /// Starts the threads; the second is for a store that has a log.
    pub(super) fn start(
        shared: Arc<Shared>,
        on_disk: bool,
        compaction: Compaction,
    ) -> io::Result<Self> {
        let mut keeper = Self { shared, threads: Vec::new() };
        let shared = Arc::clone(&keeper.shared);
        keeper.spawn("store", move || keep(&shared, &shared.bell, &compaction))?;
        if on_disk {
            let shared = Arc::clone(&keeper.shared);
            keeper.spawn("store-sync", move || sync::run(&shared, &shared.sync_bell))?;
        }
        Ok(keeper)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.bell.stop();
        self.shared.sync_bell.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        self.shared.close();
    }
}

fn keep(shared: &Shared, bell: &Bell, compaction: &Compaction) {
    // Work that stops half way when the bell says so.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut running: Option<thread::ScopedJoinHandle<'_, Result<(), Failed>>> = None;
        let mut pause = Pause::default();
        let mut asked = false;
        loop {
            let rung = bell.wait(TICK);
            asked |= rung.work;
            if rung.serve {
                shared.serve_left();
            }
            if rung.stop {
                stop.store(true, Ordering::Relaxed);
                break;
            }
            if let Some(ended) = running.take_if(|running| running.is_finished()) {
                pause.after(&report(ended));
            }
            shared.see_off();
            shared.take_out_garbage();
            match shared.trouble() {
                None => shared.sweep(),
                Some(Cure::WriteAgain) => shared.write_again(),
                // A compaction under way ends by itself first.
                Some(Cure::StartOver) if running.is_none() && pause.over() => {
                    let result = compact::start_over(shared, &stop);
                    if let Err(error) = &result {
                        tracing::warn!(%error, "the store could not start a new log yet");
                    }
                    pause.after(&result.is_ok());
                    continue;
                }
                Some(Cure::StartOver) => {}
            }
            let wanted = asked || (pause.over() && shared.is_long(compaction.least));
            if wanted && running.is_none() && shared.has_log() {
                asked = false;
                shared.save(Engine::save_began);
                let stop = &stop;
                let config = compaction.config.clone();
                let thread = thread::Builder::new().name("store-compact".to_owned());
                let work = move || {
                    let result = compact::compact(shared, config, stop);
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

/// Says how a compaction ended: did it?
fn report(ended: thread::ScopedJoinHandle<'_, Result<(), Failed>>) -> bool {
    match ended.join() {
        Ok(Ok(())) => {
            tracing::info!("the log was compacted");
            true
        }
        Ok(Err(Failed::Stopped | Failed::Replay(super::replay::Fault::Stopped))) => true,
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
struct Pause {
    until: Option<Instant>,
    length: Duration,
}

impl Pause {
    fn over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    fn after(&mut self, succeeded: &bool) {
        if *succeeded {
            *self = Self::default();
        } else {
            self.length = (self.length * 2).clamp(RETRY, RETRY_MOST);
            self.until = Some(Instant::now() + self.length);
        }
    }
}
