//! The built-in store: the engine behind one lock, called directly.
//!
//! [`Embedded`] is a cheap clone over one engine. Every call goes through a [`Batch`]: take the
//! lock, run commands, write the log, release, and only then hand out replies. Invariant: nobody
//! learns of a change, be it by a reply, a message or an unblocked call, before the change is where
//! its mode of durability wants it: in the log's file in every mode, on disk with `always`.
//!
//! Read in this order: [`Embedded`], [`Batch`], `embedded/value.rs` (redis-rs's commands and values
//! on one side, the engine's on the other), `embedded/session.rs` (calls that wait),
//! `embedded/files.rs` (what is in the folder), `embedded/log.rs` (how it is written),
//! `embedded/commit.rs` (when, and when replies go out), `embedded/serve.rs` (callers that find the
//! lock taken), `embedded/busy.rs` (when a script keeps everybody waiting), `embedded/sync.rs` (how
//! the log reaches the disk), `embedded/replay.rs` and `embedded/open.rs` (how
//! it is read back), `embedded/compact.rs` (how it stays short), `embedded/keeper.rs` (the
//! threads), `embedded/check.rs` (looking at a folder from outside).

mod busy;
mod check;
mod commit;
mod compact;
mod disk;
mod files;
mod keeper;
mod log;
mod migrate;
mod open;
mod port;
mod replay;
mod serve;
mod session;
mod sync;
#[cfg(test)]
mod tests;
mod value;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub use engine::{
    Buffers, Error as EngineError, Outcome, OutputLimit, OutputLimits, Reply, SessionId,
    format_double, split_quoted,
};
use engine::{Config, Engine, Garbage, Now, Output, ScriptControl};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::busy::Meanwhile;
pub use self::check::{Report, Torn, check, repair};
pub use self::commit::Commit;
pub use self::replay::bytes_read;
pub(crate) use self::session::{Own, Waiting};
use self::{
    busy::Ports,
    commit::{Company, Soon},
    disk::Disk,
    keeper::{Compaction, Keeper},
    log::{Cure, Log},
    serve::{Left, Locked},
    sync::{Bell, Durable},
    value::{Argv, reply_value},
};
use crate::{
    Clock, Error, Fsync, Layout, Options,
    subscribe::{Message, Publisher},
};

/// How many expired keys are taken out under one lock, so that callers wait for it 100 µs at most.
const SWEEP_BATCH: usize = 200;
/// Logs shorter than this are not compacted, as in Redis.
const COMPACT_AT: u64 = 64 << 20;
/// How long a health check waits for the lock before it looks whether a script has it.
const STATUS: Duration = Duration::from_millis(10);
/// Arguments longer than this get disk space made for them before the command runs.
const LARGE: usize = 16 << 10;

/// The built-in store. A cheap clone; its threads end with the last one.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
}

/// What all clones and the keeper share.
struct Shared {
    state: Mutex<State>,
    /// What calls that found the lock taken have left for whoever has it.
    left: Arc<Left>,
    clock: Clock,
    /// When the log reaches the disk; `CONFIG SET appendfsync` changes it.
    fsync: AtomicU8,
    durable: watch::Sender<Durable>,
    /// The last record in the log's file, readable without the lock.
    written: AtomicU64,
    sync_bell: Bell,
    /// Rings for the thread that keeps things, which makes a snapshot then.
    bell: Bell,
    /// Has somebody asked the process to end?
    ending: watch::Sender<bool>,
    end_when_saved: AtomicBool,
    /// What takes long to free.
    garbage: Mutex<Vec<Garbage>>,
    /// `client-output-buffer-limit`, readable without the store's lock.
    output_limits: Mutex<OutputLimits>,
    address: String,
    /// A hold on the script that has the lock.
    control: ScriptControl,
    ports: Ports,
    /// Sessions that ended while a script had the lock.
    leaving: Mutex<Vec<SessionId>>,
}

/// What the lock guards.
struct State {
    engine: Engine,
    /// None for a store in memory.
    log: Option<Log>,
    /// The session of everything that goes through [`crate::Store`] itself.
    common: SessionId,
    outlets: HashMap<SessionId, Outlet>,
    /// What waits for a record to be written, or with `always` to reach the disk.
    held: VecDeque<(u64, Due)>,
    company: Company,
}

/// What one command caused for a session that did not ask for it just then.
#[derive(Debug)]
pub struct Delivery {
    /// Whose it is.
    pub session: SessionId,
    /// The reply to a call that was blocked, or a pushed message.
    pub reply: Reply,
}

/// What somebody is to be told once the records before it are where they belong.
#[derive(Debug)]
enum Due {
    /// A session.
    Delivery(Delivery),
    /// A call in the process, whose command somebody else ran.
    Answer {
        answer: oneshot::Sender<Reply>,
        reply: Reply,
        /// Are some of the records its own?
        changed: bool,
    },
}

impl Due {
    /// The records cannot be written: tells that to those whom it concerns.
    fn fail(&mut self, error: &EngineError) {
        match self {
            Self::Delivery(Delivery { reply: Reply::Push(_), .. })
            | Self::Answer { changed: false, .. } => {}
            Self::Delivery(Delivery { reply, .. }) | Self::Answer { reply, .. } => {
                *reply = Reply::Error(error.clone());
            }
        }
    }

    fn hand_out(self, outlets: &HashMap<SessionId, Outlet>) {
        match self {
            Self::Delivery(delivery) => {
                if let Some(outlet) = outlets.get(&delivery.session) {
                    outlet.deliver(delivery);
                }
            }
            // A caller that has gone wants no answer.
            Self::Answer { answer, reply, .. } => drop(answer.send(reply)),
        }
    }
}

/// Takes deliveries for many sessions, as a listener does. Called under the store's lock: must not
/// wait and must not call back into the store.
pub trait Port: Send + Sync + fmt::Debug {
    /// Something for one of the sessions.
    fn deliver(&self, delivery: Delivery);
    /// A session must be disconnected once what it was sent is out.
    fn close(&self, session: SessionId);
    /// More of the log may have reached the disk.
    fn synced(&self);
    /// Clients shall connect at this port from now on, at none if 0. The error is told to who asked.
    fn listen(&self, _: u16) -> Result<(), String> {
        Err(CANNOT_LISTEN.to_owned())
    }
    /// A script keeps everybody waiting: clients can be told so, or kill it. Called about once in
    /// a millisecond on the thread of the script.
    fn busy(&self, _: &mut Meanwhile<'_, '_>) {}
}

/// What a client is told whose `CONFIG SET port` cannot be.
const CANNOT_LISTEN: &str = "Unable to listen on this port. Check server logs.";

/// Where a session's deliveries go.
#[derive(Debug)]
enum Outlet {
    /// To somebody who waits for one at a time, so that one place is enough.
    Channel(mpsc::Sender<Delivery>),
    /// To a subscription.
    Publisher(Publisher),
    /// To a listener.
    Port(Arc<dyn Port>),
}

impl Outlet {
    fn deliver(&self, delivery: Delivery) {
        match self {
            // Full or closed: whoever waited has gone.
            Self::Channel(sender) => drop(sender.try_send(delivery)),
            Self::Publisher(publisher) => {
                if let Some(message) = published(delivery.reply) {
                    publisher.deliver(message);
                }
            }
            Self::Port(port) => port.deliver(delivery),
        }
    }
}

/// The message in a push; none in the confirmation of a subscription.
fn published(reply: Reply) -> Option<Message> {
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
    Some(Message::Published { channel, pattern, payload: items.next()?.into() })
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
        let (shared, compaction) = Shared::open(disk, options, clock)?;
        let keeper = Keeper::start(Arc::clone(&shared), on_disk, compaction)
            .map_err(|error| Error::invalid(format!("cannot start the store: {error}")))?;
        Ok(Self { shared, _keeper: Arc::new(keeper) })
    }

    /// Runs one command of a caller that shares the common session.
    pub(crate) async fn command(&self, cmd: &Cmd) -> RedisResult<Value> {
        // Nothing here waits, so a caller in a loop would never let others run.
        tokio::task::coop::consume_budget().await;
        let ran = self.shared.try_batch().map(|mut batch| {
            let common = batch.common();
            let outcome = Argv::of(cmd).with(|argv| batch.execute(common, argv));
            batch.serve();
            (outcome, batch.commit_soon())
        });
        let reply = match ran {
            Some((outcome, commit)) => commit.settle(self, settled(outcome)).await,
            None => self.leave(cmd).await,
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
                    let reply = transaction(&mut batch, common, pipeline);
                    (reply, batch.commit_soon())
                }
                Err(busy) => (Reply::Error(busy), Soon::Ended(Commit::Done)),
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
            let mut replies = Vec::with_capacity(count);
            for cmd in pipeline.cmd_iter().skip(offset).take(count) {
                let outcome = Argv::of(cmd).with(|argv| batch.execute(common, argv));
                replies.push(settled(outcome));
            }
            (replies, batch.commit_soon())
        };
        let failed = commit.wait(self).await.err();
        let told = |reply| match &failed {
            Some(error) => Reply::Error(error.clone()),
            None => reply,
        };
        Ok(replies.into_iter().map(|reply| reply_value(told(reply))).collect())
    }

    /// Where the data is, and what is wrong with the store if something is.
    pub(crate) fn status(&self) -> (String, Option<String>) {
        let reason = loop {
            if let Some(state) = self.shared.state.try_lock_for(STATUS) {
                let state = self.shared.locked(state);
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
    pub fn batch(&self) -> Batch<'_> {
        self.shared.batch()
    }

    /// The store's clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Makes the log as short as can be, in the background; nothing for a store in memory.
    pub fn compact(&self) {
        self.shared.bell.work();
    }

    /// How many scripts were refused so far because their keys do not share a cluster slot; see
    /// [`Options::strict_scripts`].
    pub fn slots_crossed(&self) -> u64 {
        self.shared.lock().engine.slots_crossed()
    }

    /// Waits until a client asks the process to end (`SHUTDOWN`). Whoever owns the process should
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

impl Shared {
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
        let (control, ports) = (engine.script_control(), Ports::default());
        let left = Arc::new(Left::default());
        // While a script runs, the common session is its own.
        let aside = engine.connect_trusted("store");
        busy::serve(&control, &ports, &left, aside, &clock);
        port::follow_settings(&mut engine, &ports);
        migrate::allow(&mut engine);
        let state = State {
            engine,
            log,
            common,
            outlets: HashMap::new(),
            held: VecDeque::new(),
            company: Company::default(),
        };
        let shared = Arc::new(Self {
            state: Mutex::new(state),
            left,
            clock,
            fsync: AtomicU8::new(options.fsync as u8),
            durable: watch::Sender::new(Durable { synced, failed: 0 }),
            written: AtomicU64::new(synced),
            sync_bell: Bell::default(),
            bell: Bell::default(),
            ending: watch::Sender::new(false),
            end_when_saved: AtomicBool::new(false),
            garbage: Mutex::default(),
            output_limits: Mutex::default(),
            address,
            control,
            ports,
            leaving: Mutex::default(),
        });
        let least = options.compact_at.unwrap_or(COMPACT_AT);
        Ok((shared, Compaction { least, config: second }))
    }

    fn batch(&self) -> Batch<'_> {
        self.begin(self.lock())
    }

    fn begin<'a>(&'a self, mut state: Locked<'a>) -> Batch<'a> {
        let now = Now::from_millis(self.clock.now().0);
        let (mut denied, mut first) = (false, 0);
        let State { engine, log, .. } = &mut *state;
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
        Batch {
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
            ended: false,
        }
    }

    /// Ends the sessions of those who have gone while a script had the lock.
    fn see_off(&self) {
        let leaving = std::mem::take(&mut *self.leaving.lock());
        if !leaving.is_empty() {
            let mut batch = self.batch();
            leaving.into_iter().for_each(|session| batch.disconnect(session));
            drop(batch.commit());
        }
    }

    /// Takes out keys that are past their deadline, a bounded number of them at a time.
    fn sweep(&self) {
        loop {
            let mut batch = self.batch();
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
    fn take_out_garbage(&self) {
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

    /// What would end the log's trouble, if it has one.
    fn trouble(&self) -> Option<Cure> {
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

/// Does a command of this name show how much memory the process takes?
fn shows_memory(name: &[u8]) -> bool {
    matches!(name, [b'i' | b'I' | b'm' | b'M', ..])
        && (name.eq_ignore_ascii_case(b"info") || name.eq_ignore_ascii_case(b"memory"))
}

/// Memory that the process takes, as the system sees it; 0 where it does not tell.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// What options say about the engine.
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

/// Only a session of its own may wait; on the common one `fit_to_share` lets nothing through that
/// does.
fn settled(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Reply(reply) => reply,
        Outcome::Blocked { .. } => Reply::Nil,
    }
}

/// Runs a pipeline as one transaction. What was wrong with a command says more than that the
/// transaction was discarded, so the first such error is the answer.
fn transaction(batch: &mut Batch<'_>, session: SessionId, pipeline: &Pipeline) -> Reply {
    let mut refused = None;
    batch.execute(session, &[b"MULTI"]);
    for cmd in pipeline.cmd_iter() {
        let outcome = Argv::of(cmd).with(|argv| batch.execute(session, argv));
        if let Outcome::Reply(Reply::Error(error)) = outcome {
            refused.get_or_insert(error);
        }
    }
    let reply = settled(batch.execute(session, &[b"EXEC"]));
    refused.map_or(reply, Reply::Error)
}

/// The lock, held for a number of commands. Dropping it commits.
pub struct Batch<'a> {
    shared: &'a Shared,
    state: Locked<'a>,
    now: Now,
    due: Vec<Due>,
    closing: Vec<SessionId>,
    /// Writes were refused from the start.
    denied: bool,
    /// The last record made before.
    first: u64,
    /// The last record made before others were served.
    own: Option<u64>,
    /// How many calls of others were served.
    served: u32,
    /// Somebody waits for the log to be written.
    write_now: bool,
    ended: bool,
}

impl Batch<'_> {
    fn common(&self) -> SessionId {
        self.state.common
    }

    /// What time it is for these commands, in milliseconds since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.now.ms()
    }

    /// Runs one command.
    pub fn execute(&mut self, session: SessionId, argv: &[&[u8]]) -> Outcome {
        let State { engine, log, .. } = &mut *self.state;
        let mut refused = false;
        if let Some(log) = log
            && !self.denied
        {
            let length = argv.iter().map(|argument| argument.len()).sum::<usize>();
            if length > LARGE
                && let Err(error) = log.make_room_for(length)
            {
                refused = true;
                engine.deny_writes(Some(error));
            }
        }
        if argv.first().is_some_and(|name| shows_memory(name)) {
            engine.show_resident(resident_bytes());
        }
        let began = Instant::now();
        let outcome = engine.execute(self.now, session, argv);
        engine.took(self.now, session, argv, began.elapsed());
        if refused {
            engine.deny_writes(None);
        }
        self.gather();
        outcome
    }

    /// Takes what the engine wants logged and delivered.
    fn gather(&mut self) {
        let State { engine, log, .. } = &mut *self.state;
        if let Some(log) = log {
            let effects = engine.effects();
            if !effects.is_empty() {
                log.append(effects);
                engine.clear_effects();
                engine.log_made(log.lsn);
            }
        }
        if engine.has_deliveries() {
            let output = engine.take_output();
            self.handle(output);
        }
    }

    /// What commands caused besides their own replies.
    fn handle(&mut self, output: Output) {
        self.closing.extend(output.closing);
        let deliveries = output.deliveries.into_iter();
        self.due
            .extend(deliveries.map(|(session, reply)| Due::Delivery(Delivery { session, reply })));
        let shared = self.shared;
        if output.snapshot {
            shared.bell.work();
        }
        if output.durable && shared.fsync() != Fsync::No {
            shared.sync_bell.work();
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

    fn open(&mut self, outlet: Outlet) -> SessionId {
        let id = self.state.engine.connect_trusted("store");
        self.state.outlets.insert(id, outlet);
        id
    }

    /// Opens a session for a client at `address`, whose deliveries go to a listener.
    pub fn connect(&mut self, address: &str, port: Arc<dyn Port>) -> SessionId {
        let id = self.state.engine.connect(address);
        self.attach(id, port);
        id
    }

    /// Says where the deliveries of a session go that was opened [meanwhile](Meanwhile::connect).
    pub fn attach(&mut self, session: SessionId, port: Arc<dyn Port>) {
        self.state.outlets.insert(session, Outlet::Port(port));
    }

    /// Ends a session.
    pub fn disconnect(&mut self, session: SessionId) {
        self.state.engine.disconnect(session);
        self.state.outlets.remove(&session);
        self.gather();
    }

    /// Ends a session's waiting: what to answer, or nothing if the reply is on its way already.
    pub fn timed_out(&mut self, session: SessionId) -> Option<Reply> {
        let reply = self.state.engine.timed_out(self.now, session);
        self.gather();
        reply
    }
}

impl Drop for Batch<'_> {
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

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("now", &self.now).finish_non_exhaustive()
    }
}
