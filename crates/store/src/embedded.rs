//! The built-in store: the engine behind one lock, called directly.
//!
//! [`Embedded`] is a cheap clone over one engine. Every call goes through a [`LockedBatch`]: take
//! the lock, run commands, write the log, release, and only then hand out replies. Invariant:
//! nobody learns of a change, be it by a reply, a message or an unblocked call, before the change
//! is where its mode of durability wants it: in the log's file in every mode, on disk with
//! `always`.
//!
//! Read in this order: [`Embedded`], [`LockedBatch`], `embedded/value.rs` (redis-rs's commands and
//! values on one side, the engine's on the other), `embedded/session.rs` (calls that wait),
//! `embedded/files.rs` (what is in the folder), `embedded/log.rs` (how it is written),
//! `embedded/commit.rs` (when, and when replies go out), `embedded/combining.rs` (callers that find
//! the lock taken), `embedded/busy.rs` (slow scripts), `embedded/sync.rs`
//! (how the log reaches the disk), `embedded/replay.rs` and `embedded/open.rs` (how it is read
//! back), `embedded/compact.rs` (how it stays short), `embedded/background.rs` (the threads),
//! `embedded/check.rs` and `embedded/freeze.rs` (looking at a folder from outside).

mod background;
mod busy;
mod check;
mod combining;
mod commit;
mod compact;
mod disk;
mod files;
mod freeze;
mod listener;
mod log;
mod migrate;
mod open;
mod replay;
mod session;
mod sync;
#[cfg(test)]
mod tests;
mod usage;
mod value;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub use engine::{
    Buffers, CommandOutcome, Error as EngineError, OutputLimit, OutputLimits, Reply, SessionId,
    Traffic, format_double, split_quoted,
};
use engine::{Config, Engine, EngineOutput, Garbage, Now, ScriptControl};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::busy::BusyStore;
pub use self::check::{CheckReport, TornTail, check, repair};
pub use self::combining::QueuedCommands;
pub use self::commit::Commit;
pub(crate) use self::freeze::rebuild;
pub use self::replay::bytes_read;
pub(crate) use self::session::{BlockingSession, OwnSession};
use self::{
    background::{BackgroundThreads, Compaction},
    busy::{LentOutput, Listeners},
    combining::{CombiningQueue, StateGuard},
    commit::{CommitHandle, GroupCommit},
    disk::Disk,
    log::{LogRecovery, LogWriter},
    sync::{Durable, WorkSignal},
    value::{Argv, reply_value},
};
use crate::{
    Clock, Error, Fsync, Layout, Options,
    subscribe::{Publisher, PubsubMessage},
};

/// Most expired keys removed under one lock, so that callers wait for it 100 µs at most.
const SWEEP_BATCH: usize = 200;
/// Logs shorter than this are not compacted, as in Redis.
const COMPACT_MIN_BYTES: u64 = 64 << 20;
/// Data of less than this is compacted in one part: read once, and in memory twice meanwhile.
const PART_MIN_BYTES: u64 = 16 << 20;
/// Time a health check waits for the lock before it checks for a running script.
const STATUS_LOCK_TIMEOUT: Duration = Duration::from_millis(10);
/// Arguments longer than this get disk space made for them before the command runs.
const LARGE_ARGUMENT_BYTES: usize = 16 << 10;

/// The built-in store. A cheap clone; its threads end with the last one.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<StoreInner>,
    _background: Arc<BackgroundThreads>,
    /// Records of this handle do not ask for an fsync.
    is_relaxed: bool,
}

/// State shared by all clones and the background threads.
struct StoreInner {
    state: Mutex<StoreState>,
    /// Commands of callers that found the lock taken, for the lock holder to run.
    queue: Arc<CombiningQueue>,
    clock: Clock,
    /// Fsync mode; `CONFIG SET appendfsync` changes it.
    fsync: AtomicU8,
    durable: watch::Sender<Durable>,
    /// The last record in the log's file, readable without the lock.
    written: AtomicU64,
    sync_signal: WorkSignal,
    /// Signals the background thread to make a snapshot.
    signal: WorkSignal,
    /// True once a client has asked the process to end.
    ending: watch::Sender<bool>,
    end_when_saved: AtomicBool,
    /// Values that take long to free.
    garbage: Mutex<Vec<Garbage>>,
    /// `client-output-buffer-limit`, readable without the store's lock.
    output_limits: Mutex<OutputLimits>,
    /// `client-query-buffer-limit`, readable without the store's lock.
    query_buffer_max: AtomicUsize,
    address: String,
    /// Control of the script that has the lock.
    control: ScriptControl,
    listeners: Listeners,
    /// Output of the batch whose script runs.
    lent: LentOutput,
    /// Sessions that ended while a script had the lock.
    leaving: Mutex<Vec<SessionId>>,
}

/// The state behind the lock.
struct StoreState {
    engine: Engine,
    /// None for a store in memory.
    log: Option<LogWriter>,
    /// The session of everything that goes through [`crate::Store`] itself.
    common: SessionId,
    targets: HashMap<SessionId, DeliveryTarget>,
    /// Deliveries that wait for a record to be written, or with `always` to reach the disk.
    held: VecDeque<(u64, PendingDelivery)>,
    group_commit: GroupCommit,
}

/// A message to a session that is not the reply to the command it just sent.
#[derive(Debug)]
pub struct Delivery {
    /// Whose it is.
    pub session: SessionId,
    /// The reply to a call that was blocked, or a pushed message.
    pub reply: Reply,
}

/// A delivery to hand out once the records before it are durable.
#[derive(Debug)]
enum PendingDelivery {
    /// A session.
    Delivery(Delivery),
    /// A call in the process whose command the lock holder ran.
    Answer {
        answer: oneshot::Sender<Reply>,
        reply: Reply,
        /// True if some of the records are its own.
        changed: bool,
    },
}

impl PendingDelivery {
    /// Replaces the reply by the error of the log, for callers whose records were not written.
    fn fail(&mut self, error: &EngineError) {
        match self {
            Self::Delivery(Delivery { reply: Reply::Push(_), .. })
            | Self::Answer { changed: false, .. } => {}
            Self::Delivery(Delivery { reply, .. }) | Self::Answer { reply, .. } => {
                *reply = Reply::Error(error.clone());
            }
        }
    }

    fn hand_out(self, targets: &HashMap<SessionId, DeliveryTarget>) {
        match self {
            Self::Delivery(delivery) => {
                if let Some(target) = targets.get(&delivery.session) {
                    target.deliver(delivery);
                }
            }
            // A caller that has gone wants no answer.
            Self::Answer { answer, reply, .. } => drop(answer.send(reply)),
        }
    }
}

/// A listener: takes deliveries for many sessions. Called under the store's lock: must not
/// block and must not call back into the store.
pub trait Listener: Send + Sync + fmt::Debug {
    /// Takes a delivery for one of the sessions.
    fn deliver(&self, delivery: Delivery);
    /// Disconnects a session once its replies are sent.
    fn close(&self, session: SessionId);
    /// Reports that more of the log may have reached the disk.
    fn synced(&self);
    /// Listens on this port from now on, on none if 0. The error is sent to the client that asked.
    fn listen(&self, _: u16) -> Result<(), String> {
        Err(CANNOT_LISTEN.to_owned())
    }
    /// Serves clients while a slow script has the lock: they get `BUSY`, or kill it. Called about
    /// once in a millisecond on the thread of the script.
    fn busy(&self, _: &mut BusyStore<'_, '_>) {}
}

/// Error for a client whose `CONFIG SET port` failed.
const CANNOT_LISTEN: &str = "Unable to listen on this port. Check server logs.";

/// The receiver of a session's deliveries.
#[derive(Debug)]
enum DeliveryTarget {
    /// A caller that waits for one delivery at a time, so that one slot is enough.
    Channel(mpsc::Sender<Delivery>),
    /// A subscription.
    Publisher(Publisher),
    /// A listener.
    Listener(Arc<dyn Listener>),
}

impl DeliveryTarget {
    fn deliver(&self, delivery: Delivery) {
        match self {
            // Full or closed: the caller that waited was dropped.
            Self::Channel(sender) => drop(sender.try_send(delivery)),
            Self::Publisher(publisher) => {
                if let Some(message) = published(delivery.reply) {
                    publisher.deliver(message);
                }
            }
            Self::Listener(listener) => listener.deliver(delivery),
        }
    }
}

/// The message in a push; none in the confirmation of a subscription.
fn published(reply: Reply) -> Option<PubsubMessage> {
    let (Reply::Push(items) | Reply::Array(items)) = reply else { return None };
    let mut items = items.into_iter().map(|item| match item {
        Reply::Bulk(bytes) => bytes,
        _ => Vec::new(),
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let pattern = match items.next()?.as_slice() {
        b"message" => None,
        b"pmessage" => Some(text(items.next()?)),
        _ => return None,
    };
    let channel = text(items.next()?);
    Some(PubsubMessage::Published { channel, pattern, payload: items.next()?.into() })
}

impl Embedded {
    /// Opens `embedded:`, in memory only, or `embedded:PATH`, kept in a folder. Reads the folder,
    /// which may take a while.
    pub(crate) fn open(url: &str, options: &Options, clock: Clock) -> Result<Self, Error> {
        let path = url.strip_prefix("embedded:").unwrap_or(url);
        if path.is_empty() {
            return Self::start(None, options, clock);
        }
        let folder = open::lock(Path::new(path))?;
        Self::start(Some(Arc::new(folder)), options, clock)
    }

    fn start(disk: Option<Arc<dyn Disk>>, options: &Options, clock: Clock) -> Result<Self, Error> {
        let on_disk = disk.is_some();
        let (shared, compaction) = StoreInner::open(disk, options, clock)?;
        let background = BackgroundThreads::start(Arc::clone(&shared), on_disk, compaction)
            .map_err(|error| Error::invalid(format!("cannot start the store: {error}")))?;
        Ok(Self { shared, _background: Arc::new(background), is_relaxed: false })
    }

    /// Returns a handle whose records do not ask for an fsync.
    pub(crate) fn relaxed(&self) -> Self {
        Self { is_relaxed: true, ..self.clone() }
    }

    /// Runs one command of a caller that shares the common session.
    pub(crate) async fn command(&self, cmd: &Cmd) -> RedisResult<Value> {
        // Nothing here waits, so a caller in a loop would never let others run.
        tokio::task::coop::consume_budget().await;
        let ran = self.shared.try_batch().map(|mut batch| {
            let common = batch.common();
            batch.is_relaxed = self.is_relaxed;
            let outcome = Argv::of(cmd).with(|argv| batch.execute(common, argv));
            batch.is_relaxed = false;
            batch.run_queue();
            (outcome, batch.commit_shared())
        });
        let reply = match ran {
            Some((outcome, commit)) => commit.settle(self, settled(outcome)).await,
            None => self.queue_command(cmd).await,
        };
        Ok(reply_value(reply))
    }

    /// Runs a pipeline under one lock.
    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        tokio::task::coop::consume_budget().await;
        if pipeline.is_transaction() {
            let (reply, commit) = match self.enter().await {
                Ok(mut batch) => {
                    let common = batch.common();
                    batch.is_relaxed = self.is_relaxed;
                    let reply = transaction(&mut batch, common, pipeline);
                    (reply, batch.commit_shared())
                }
                Err(busy) => (Reply::Error(busy), CommitHandle::Ended(Commit::Done)),
            };
            return Ok(vec![reply_value(commit.settle(self, reply).await).extract_error()?]);
        }
        let (replies, commit) = {
            let mut batch = match self.enter().await {
                Ok(batch) => batch,
                Err(busy) => {
                    let commands = pipeline.cmd_iter().skip(offset).take(count);
                    let refuse = |cmd| Argv::of(cmd).with(|argv| self.refused(argv, &busy));
                    return Ok(commands.map(|cmd| reply_value(refuse(cmd))).collect());
                }
            };
            let common = batch.common();
            batch.is_relaxed = self.is_relaxed;
            let mut replies = Vec::with_capacity(count);
            for cmd in pipeline.cmd_iter().skip(offset).take(count) {
                let outcome = Argv::of(cmd).with(|argv| batch.execute(common, argv));
                replies.push(settled(outcome));
            }
            (replies, batch.commit_shared())
        };
        let failed = commit.wait(self).await.err();
        let told = |reply| match &failed {
            Some(error) => Reply::Error(error.clone()),
            None => reply,
        };
        Ok(replies.into_iter().map(|reply| reply_value(told(reply))).collect())
    }

    /// Returns the address of the data, and the reason if the store is unavailable.
    pub(crate) fn status(&self) -> (String, Option<String>) {
        let reason = loop {
            if let Some(state) = self.shared.try_lock_briefly(STATUS_LOCK_TIMEOUT) {
                let trouble = state.log.as_ref().and_then(|log| log.trouble.as_ref());
                break trouble.map(|trouble| format!("writes are refused: {}", trouble.reason));
            }
            if self.shared.control.busy().is_some() {
                break Some("a script runs for long".to_owned());
            }
        };
        (self.shared.address.clone(), reason)
    }

    /// Takes the lock for a number of commands.
    pub fn batch(&self) -> LockedBatch<'_> {
        self.shared.batch()
    }

    /// The store's clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Makes the log as short as can be, in the background; nothing for a store in memory.
    pub fn compact(&self) {
        self.shared.signal.work();
    }

    /// Number of scripts refused so far because their keys do not share a cluster slot; see
    /// [`Options::strict_scripts`].
    pub fn slots_crossed(&self) -> u64 {
        self.shared.lock().engine.slots_crossed()
    }

    /// Waits until a client asks the process to end (`SHUTDOWN`). The program should
    /// end it then.
    pub async fn asked_to_end(&self) {
        let mut ending = self.shared.ending.subscribe();
        // The sender lives as long as this store.
        let _ = ending.wait_for(|asked| *asked).await;
    }
}

/// Time that only goes forward, by which the engine stops scripts.
fn since_first_asked() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

impl StoreInner {
    /// An engine, filled from its folder if it has one.
    fn open(
        disk: Option<Arc<dyn Disk>>,
        options: &Options,
        clock: Clock,
    ) -> Result<(Arc<Self>, Compaction), Error> {
        let mut config = Config::default();
        let address = disk.as_ref().map_or_else(|| "memory".to_owned(), |disk| disk.shown());
        configure(&mut config, options);
        if disk.is_some() {
            config.server.dir = address.clone();
        }
        // A second keyspace to compact in knows no bound: what is there is there.
        let mut second = config.clone();
        second.maxmemory = 0;
        config.log_effects = disk.is_some();
        let mut engine = Engine::new(config);
        let log = disk.map(|disk| open::open(disk, &mut engine)).transpose()?;
        let common = engine.connect_trusted("store");
        let synced = log.as_ref().map_or(0, |log| log.synced);
        engine.log_made(synced);
        engine.log_synced(synced);
        if let Some(log) = &log {
            engine.log_sizes(log.bytes(), log.base_bytes);
        }
        engine.show_setting("appendfsync", options.fsync.name());
        let (control, listeners) = (engine.script_control(), Listeners::default());
        let queue = Arc::new(CombiningQueue::default());
        // While a script runs, the common session is its own.
        let aside = engine.connect_trusted("store");
        let lent = LentOutput::default();
        busy::serve(&control, &listeners, &queue, &lent, aside, &clock);
        listener::follow_settings(&mut engine, &listeners);
        migrate::allow(&mut engine);
        let state = StoreState {
            engine,
            log,
            common,
            targets: HashMap::new(),
            held: VecDeque::new(),
            group_commit: GroupCommit::default(),
        };
        let shared = Arc::new(Self {
            state: Mutex::new(state),
            queue,
            clock,
            fsync: AtomicU8::new(options.fsync as u8),
            durable: watch::Sender::new(Durable { synced, failed: 0 }),
            written: AtomicU64::new(synced),
            sync_signal: WorkSignal::default(),
            signal: WorkSignal::default(),
            ending: watch::Sender::new(false),
            end_when_saved: AtomicBool::new(false),
            garbage: Mutex::default(),
            output_limits: Mutex::default(),
            query_buffer_max: AtomicUsize::new(engine::Config::default().query_buffer_max),
            address,
            control,
            listeners,
            lent,
            leaving: Mutex::default(),
        });
        let least = options.compact_at.unwrap_or(COMPACT_MIN_BYTES);
        Ok((shared, Compaction { least, config: second, least_part: PART_MIN_BYTES }))
    }

    fn batch(&self) -> LockedBatch<'_> {
        self.begin(self.lock())
    }

    fn begin<'a>(&'a self, mut state: StateGuard<'a>) -> LockedBatch<'a> {
        let now = Now::from_millis(self.clock.now().0);
        let (mut denied, mut first) = (false, 0);
        let StoreState { engine, log, .. } = &mut *state;
        if let Some(log) = log {
            first = log.lsn;
            let before = log.trouble.is_some();
            if let Err(trouble) = log.make_room() {
                denied = true;
                if !before {
                    engine.deny_writes(Some(trouble.reply()));
                    // What found room before is written.
                    self.after_write(&mut state);
                }
            }
        }
        LockedBatch {
            shared: self,
            state,
            now,
            due: Vec::new(),
            closing: Vec::new(),
            denied,
            first,
            own: None,
            served: 0,
            write_now: false,
            is_relaxed: false,
            ended: false,
        }
    }

    /// Ends the sessions of those who have gone while a script had the lock.
    fn disconnect_leaving(&self) {
        let leaving = std::mem::take(&mut *self.leaving.lock());
        if !leaving.is_empty() {
            let mut batch = self.batch();
            leaving.into_iter().for_each(|session| batch.disconnect(session));
            drop(batch.commit());
        }
    }

    /// Takes a sample of the rates that INFO shows.
    fn sample_rates(&self) {
        let now = Now::from_millis(self.clock.now().0);
        self.lock().engine.sample_rates(now);
    }

    /// Takes out keys that are past their deadline, a bounded number of them at a time.
    fn sweep(&self) {
        loop {
            let mut batch = self.batch();
            // A key that comes back has its deadline with it.
            batch.is_relaxed = true;
            let now = batch.now;
            let began = Instant::now();
            let swept = batch.state.engine.sweep(now, SWEEP_BATCH);
            batch.state.engine.kept_waiting(now, "expire-cycle", began.elapsed());
            batch.gather();
            drop(batch.commit());
            if swept < SWEEP_BATCH {
                break;
            }
        }
    }

    fn fsync(&self) -> Fsync {
        Fsync::numbered(self.fsync.load(Ordering::Relaxed))
    }

    /// Frees what took too long to free under the lock.
    fn free_garbage(&self) {
        let garbage = std::mem::take(&mut *self.garbage.lock());
        drop(garbage);
    }

    /// Tells the engine what becomes of a snapshot, and those who waited for it.
    fn save(&self, change: impl FnOnce(&mut Engine, Now)) {
        let mut batch = self.batch();
        let now = batch.now;
        change(&mut batch.state.engine, now);
        batch.gather();
        drop(batch.commit());
    }

    /// Returns the recovery the log needs, if it failed.
    fn trouble(&self) -> Option<LogRecovery> {
        let state = self.lock();
        state.log.as_ref()?.trouble.as_ref().map(|trouble| trouble.cure)
    }

    /// Tries to write what found the disk full before.
    fn write_again(&self) {
        let mut state = self.lock();
        let Some(log) = &mut state.log else { return };
        match log.write_again() {
            Ok(()) => {
                tracing::info!("the store's log is written again");
                state.after_sync();
                self.after_write(&mut state);
            }
            Err(error) => tracing::debug!(%error, "the store's log still cannot be written"),
        }
    }

    fn has_log(&self) -> bool {
        self.lock().log.is_some()
    }

    /// Is the log so long that a new base is worth it: as long as the base, and no less than this?
    fn is_long(&self, least: u64) -> bool {
        let state = self.lock();
        state
            .log
            .as_ref()
            .filter(|log| log.trouble.is_none())
            .is_some_and(|log| log.bytes() >= least.max(log.base_bytes))
    }

    /// Brings everything to disk at the end.
    fn close(&self) {
        let mut state = self.lock();
        if let Some(log) = &mut state.log
            && let Err(error) = log.close()
        {
            tracing::error!(%error, "the store's log could not be brought to disk at the end");
        }
    }
}

/// Runs one command on the engine, and tells it how long that took.
fn run(engine: &mut Engine, now: Now, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
    if argv.first().is_some_and(|name| shows_usage(name)) {
        engine.show_usage(usage::of_process());
    }
    let began = Instant::now();
    let outcome = engine.execute(now, session, argv);
    engine.took(now, session, argv, began.elapsed());
    outcome
}

/// Does a command of this name show what the process uses?
fn shows_usage(name: &[u8]) -> bool {
    matches!(name, [b'i' | b'I' | b'm' | b'M', ..])
        && (name.eq_ignore_ascii_case(b"info") || name.eq_ignore_ascii_case(b"memory"))
}

/// Applies options to the engine's configuration.
fn configure(config: &mut Config, options: &Options) {
    config.seed = fastrand::u64(..);
    config.maxmemory = options.maxmemory.unwrap_or(0);
    config.maxmemory_policy = options.maxmemory_policy;
    config.strict_scripts = options.strict_scripts;
    // Only there do keys of one script carry the tags that keep them together.
    config.strict_slots = options.strict_scripts && options.layout == Some(Layout::Cluster);
    config.script_clock = Some(since_first_asked);
    config.server.process_id = std::process::id();
    config.server.run_id =
        (0..40).filter_map(|_| char::from_digit(fastrand::u32(..16), 16)).collect();
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

/// Returns the reply. Blocking commands are rejected on the shared session (see `reject_blocking`),
/// so `Blocked` cannot occur here.
fn settled(outcome: CommandOutcome) -> Reply {
    match outcome {
        CommandOutcome::Reply(reply) => reply,
        CommandOutcome::Blocked { .. } => Reply::Nil,
    }
}

/// Runs a pipeline as one transaction. What was wrong with a command says more than that the
/// transaction was discarded, so the first such error is the answer.
fn transaction(batch: &mut LockedBatch<'_>, session: SessionId, pipeline: &Pipeline) -> Reply {
    let mut refused = None;
    batch.execute(session, &[b"MULTI"]);
    for cmd in pipeline.cmd_iter() {
        let outcome = Argv::of(cmd).with(|argv| batch.execute(session, argv));
        if let CommandOutcome::Reply(Reply::Error(error)) = outcome {
            refused.get_or_insert(error);
        }
    }
    let reply = settled(batch.execute(session, &[b"EXEC"]));
    refused.map_or(reply, Reply::Error)
}

/// The lock, held for a number of commands. Dropping it commits.
pub struct LockedBatch<'a> {
    shared: &'a StoreInner,
    state: StateGuard<'a>,
    now: Now,
    due: Vec<PendingDelivery>,
    closing: Vec<SessionId>,
    /// Writes were refused from the start.
    denied: bool,
    /// The last record made before.
    first: u64,
    /// The last record made before queued requests of other callers ran.
    own: Option<u64>,
    /// Number of queued requests of other callers that were run.
    served: u32,
    /// A caller waits for the log to be written.
    write_now: bool,
    /// Records made now do not ask for an fsync.
    is_relaxed: bool,
    ended: bool,
}

impl LockedBatch<'_> {
    fn common(&self) -> SessionId {
        self.state.common
    }

    /// Returns the time for these commands, in milliseconds since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.now.ms()
    }

    /// Runs one command.
    pub fn execute(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        let refused = self.refuse_without_room(argv);
        let outcome = run(&mut self.state.engine, self.now, session, argv);
        self.after_command(refused);
        outcome
    }

    /// Refuses writes to a command with large arguments for which the disk has no room; returns true
    /// if it does.
    fn refuse_without_room(&mut self, argv: &[&[u8]]) -> bool {
        let StoreState { engine, log: Some(log), .. } = &mut *self.state else { return false };
        let length = argv.iter().map(|argument| argument.len()).sum::<usize>();
        if self.denied || length <= LARGE_ARGUMENT_BYTES {
            return false;
        }
        let refusal = log.make_room_for(length).err();
        let refused = refusal.is_some();
        if refused {
            engine.deny_writes(refusal);
        }
        refused
    }

    fn after_command(&mut self, refused: bool) {
        if refused {
            self.state.engine.deny_writes(None);
        }
        self.gather();
    }

    /// Takes the effects to log and the deliveries from the engine.
    fn gather(&mut self) {
        let StoreState { engine, log, .. } = &mut *self.state;
        if let Some(log) = log {
            let effects = engine.effects();
            if !effects.is_empty() {
                log.append(effects, self.is_relaxed);
                engine.clear_effects();
                engine.log_made(log.lsn);
            }
        }
        if engine.has_deliveries() {
            let output = engine.take_output();
            self.handle(output);
        }
    }

    /// Handles the side effects of commands besides their own replies.
    fn handle(&mut self, output: EngineOutput) {
        self.closing.extend(output.closing);
        let deliveries = output.deliveries.into_iter();
        self.due.extend(
            deliveries
                .map(|(session, reply)| PendingDelivery::Delivery(Delivery { session, reply })),
        );
        let shared = self.shared;
        if output.snapshot {
            shared.signal.work();
        }
        if output.durable && shared.fsync() != Fsync::No {
            shared.sync_signal.work();
        }
        if output.shutdown {
            tracing::info!("a client asked the process to end");
            // With a snapshot first, if it asked for one too.
            if output.snapshot {
                shared.end_when_saved.store(true, Ordering::Relaxed);
            } else {
                shared.ending.send_replace(true);
            }
        }
        if output.settings {
            let engine = &self.state.engine;
            *shared.output_limits.lock() = engine.output_limits();
            shared.query_buffer_max.store(engine.query_buffer_max(), Ordering::Relaxed);
            if let Some(fsync) = engine.setting("appendfsync").and_then(|name| Fsync::named(&name))
            {
                shared.fsync.store(fsync as u8, Ordering::Relaxed);
            }
        }
        for (level, text) in output.script_logs {
            let text = String::from_utf8_lossy(&text);
            match level {
                0 => tracing::debug!(%text, "a script says"),
                1 | 2 => tracing::info!(%text, "a script says"),
                _ => tracing::warn!(%text, "a script says"),
            }
        }
        if !output.garbage.is_empty() {
            shared.garbage.lock().push(output.garbage);
        }
    }

    fn open(&mut self, target: DeliveryTarget) -> SessionId {
        let id = self.state.engine.connect_trusted("store");
        self.state.targets.insert(id, target);
        id
    }

    /// Opens a session for a client at `address`, whose deliveries go to a listener.
    pub fn connect(&mut self, address: &str, listener: Arc<dyn Listener>) -> SessionId {
        let id = self.state.engine.connect(address);
        self.attach(id, listener);
        id
    }

    /// Says where the deliveries of a session go that was opened [while a script ran](BusyStore::connect).
    pub fn attach(&mut self, session: SessionId, listener: Arc<dyn Listener>) {
        self.state.targets.insert(session, DeliveryTarget::Listener(listener));
    }

    /// Ends a session.
    pub fn disconnect(&mut self, session: SessionId) {
        self.state.engine.disconnect(session);
        self.state.targets.remove(&session);
        self.gather();
    }

    /// Ends a session's waiting: what to answer, or nothing if the reply is on its way already.
    pub fn timed_out(&mut self, session: SessionId) -> Option<Reply> {
        let reply = self.state.engine.timed_out(self.now, session);
        self.gather();
        reply
    }
}

impl Drop for LockedBatch<'_> {
    fn drop(&mut self) {
        // What a command did before it panicked is in memory and nowhere else: only a new base
        // makes the log true again.
        if std::thread::panicking()
            && let Some(log) = &mut self.state.log
        {
            log.fail_sync(&std::io::Error::other("a command panicked"));
        }
        self.finish();
    }
}

impl fmt::Debug for LockedBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedBatch").field("now", &self.now).finish_non_exhaustive()
    }
}
