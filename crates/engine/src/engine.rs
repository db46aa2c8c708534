//! The engine: databases, sessions, scripts, and the way a command takes through them.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::admin::client::ClientPause;
use crate::admin::config::Config;
use crate::admin::latency::{Histogram, Latency};
use crate::admin::slowlog::Slowlog;
use crate::admin::traffic::{ProcessUsage, Rates, Traffic};
use crate::command::{self, CommandSpec, Ctx};
use crate::db::Db;
use crate::effect::Effects;
use crate::extra::tracking::Tracking;
use crate::lazyfree::Lazyfree;
use crate::memory::MemoryUsage;
use crate::pubsub::Pubsub;
use crate::script::{ScriptControl, Scripts};
use crate::session::{ClientSession, Replies, SessionId};
use crate::{Now, Reply};

/// An in-memory Redis.
///
/// ```
/// use tidegate_engine::{CommandOutcome, Config, Engine, Now, Reply};
///
/// let mut engine = Engine::new(Config::default());
/// let session = engine.connect("127.0.0.1:5000");
/// let now = Now::from_millis(1_700_000_000_000);
/// engine.execute(now, session, &[b"SET", b"greeting", b"hello"]);
/// let outcome = engine.execute(now, session, &[b"GET", b"greeting"]);
/// assert_eq!(outcome, CommandOutcome::Reply(Reply::Bulk(b"hello".to_vec())));
/// ```
#[derive(Debug)]
pub struct Engine {
    pub(crate) core: Box<Core>,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandOutcome {
    /// It was carried out (or queued, or refused): this is the answer.
    Reply(Reply),
    /// The session waits for a key. The answer comes later by [`Engine::take_output`], or by
    /// [`Engine::timed_out`] when `deadline_ms` passes first.
    Blocked {
        /// Deadline of the wait in milliseconds since the epoch; none is for ever.
        deadline_ms: Option<i64>,
    },
}

/// Side effects of commands besides their own replies, to be taken after each call.
#[derive(Debug, Default)]
pub struct EngineOutput {
    /// Effects for the log, empty if nothing changed. See `effect.rs` for the encoding.
    pub effects: Vec<u8>,
    /// Replies and messages for other sessions, in order. Messages for the session that ran the
    /// command are here too: they go out before its reply.
    pub deliveries: Vec<(SessionId, Reply)>,
    /// Sessions that must be disconnected once their deliveries are sent (`CLIENT KILL`, `QUIT`).
    pub closing: Vec<SessionId>,
    /// Lines of scripts' `redis.log`, oldest first: level (0 debug to 3 warning) and text.
    pub script_logs: Vec<(u8, Vec<u8>)>,
    /// Someone asked for a snapshot (`SAVE`, `BGSAVE`, `BGREWRITEAOF`).
    pub snapshot: bool,
    /// Someone asked for the end (`SHUTDOWN`).
    pub shutdown: bool,
    /// Someone waits for the log to reach the disk (`WAITAOF`).
    pub durable: bool,
    /// Settings were changed (`CONFIG SET`); see [`Engine::setting`].
    pub settings: bool,
    /// Flushed values. Freeing them may take long: drop them where nobody waits.
    pub garbage: Garbage,
}

impl EngineOutput {
    /// A script logs something. What nobody takes is bounded.
    pub(crate) fn script_log(&mut self, level: u8, text: Vec<u8>) {
        const MOST: usize = 100;
        if self.script_logs.len() < MOST {
            self.script_logs.push((level, text));
        }
    }
}

/// Values nobody needs any more, of any kind; made to be dropped.
#[derive(Default)]
pub struct Garbage(pub(crate) Vec<Box<dyn std::any::Any + Send>>);

impl Garbage {
    /// Is there nothing?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Garbage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Garbage").field(&self.0.len()).finish()
    }
}

/// Everything a command can reach. Scripts borrow it whole, in its box.
#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) dbs: Vec<Db>,
    pub(crate) sessions: HashMap<SessionId, Option<Box<ClientSession>>, foldhash::fast::FixedState>,
    pub(crate) next_session: u64,
    pub(crate) stats: EngineStats,
    /// Counters of listeners.
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) rates: Rates,
    /// Figures of the process, as the system has them, as far as somebody told.
    pub(crate) usage: ProcessUsage,
    /// Changes since the start.
    pub(crate) dirty: u64,
    pub(crate) effects: Effects,
    pub(crate) output: EngineOutput,
    pub(crate) rng: fastrand::Rng,
    /// Commands that write are refused with this; see [`Engine::deny_writes`].
    pub(crate) deny_writes: Option<crate::Error>,
    /// The command comes in the middle of a script; this is for those that must not.
    pub(crate) busy: Option<crate::Error>,
    /// `min-replicas-to-write` asks for replicas, and there never are any.
    pub(crate) lacks_replicas: bool,
    /// The last error of a command in the script that runs; it is counted already.
    pub(crate) script_error: Option<crate::Error>,
    /// Keys past their deadline are not deleted now, because clients are paused.
    pub(crate) keeps_expired: bool,
    /// Sessions one of whose WATCHed keys has changed.
    pub(crate) cas_broken: HashSet<SessionId>,
    pub(crate) pubsub: Pubsub,
    pub(crate) tracking: Tracking,
    pub(crate) scripts: Scripts,
    pub(crate) memory: MemoryUsage,
    /// Was memory full when the running command started?
    pub(crate) out_of_memory: bool,
    /// Tickets given to sessions that began to wait.
    pub(crate) tickets: u64,
    /// Number of blocked sessions.
    pub(crate) blocked: usize,
    /// Keys that became ready while someone waits for them.
    pub(crate) ready: Vec<(usize, Box<[u8]>)>,
    /// Sessions that wait for the end of a pause, in the order of coming.
    pub(crate) postponed: BTreeMap<u64, SessionId>,
    /// `CLIENT PAUSE`
    pub(crate) pause: Option<ClientPause>,
    /// Sessions that see every command.
    pub(crate) monitors: Vec<SessionId>,
    pub(crate) acl: crate::admin::acl::Acl,
    pub(crate) slowlog: Slowlog,
    pub(crate) latency: Latency,
    pub(crate) lazyfree: Lazyfree,
    /// The command that ran last, until it is said how long it took.
    pub(crate) called: Option<&'static CommandSpec>,
    /// Settings that are only kept, by name.
    pub(crate) settings: HashMap<&'static str, Vec<u8>>,
    pub(crate) hook: crate::admin::config::Hook,
    pub(crate) messenger: crate::extra::migrate::Messenger,
    /// Status of the log.
    pub(crate) keeping: crate::persist::LogStatus,
    /// Times of the first command and of the last snapshot.
    pub(crate) started_ms: i64,
    pub(crate) saved_at_ms: i64,
    /// Does the sweep run? `DEBUG SET-ACTIVE-EXPIRE` stops it for tests.
    pub(crate) sweep_stopped: bool,
}

/// Counters for INFO.
#[derive(Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) connections: u64,
    pub(crate) commands: u64,
    pub(crate) keyspace_hits: u64,
    pub(crate) keyspace_misses: u64,
    pub(crate) expired_keys: u64,
    /// Fields of hashes that died, `expired_subkeys` in INFO.
    pub(crate) expired_fields: u64,
    pub(crate) evicted_keys: u64,
    /// Scripts refused because their keys do not share a slot.
    pub(crate) slots_crossed: u64,
    /// Error replies by code.
    pub(crate) errors: HashMap<Vec<u8>, u64>,
    /// By the command's number; as long as the highest that was tried asks for.
    per_command: Vec<CommandStats>,
}

/// Counters of one command.
#[derive(Debug, Default)]
pub(crate) struct CommandStats {
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Time taken, in total and per call, as far as it was reported.
    pub(crate) total: std::time::Duration,
    pub(crate) took: Histogram,
}

/// More error codes than this are counted together, so that scripts cannot fill memory with them.
const ERROR_CODES_MAX: usize = 128;

impl EngineStats {
    /// Counters of a command, to change.
    pub(crate) fn of_mut(&mut self, command: &'static CommandSpec) -> &mut CommandStats {
        let number = command.number;
        if self.per_command.len() <= number {
            self.per_command.resize_with(number + 1, CommandStats::default);
        }
        &mut self.per_command[number]
    }

    /// Counters of a command; none if it was never tried.
    pub(crate) fn of(&self, command: &'static CommandSpec) -> Option<&CommandStats> {
        self.per_command.get(command.number).filter(|stats| stats.calls + stats.rejected > 0)
    }

    /// An error was answered.
    pub(crate) fn count_error(&mut self, error: &crate::Error) {
        let code = error.code();
        if let Some(count) = self.errors.get_mut(code) {
            *count += 1;
        } else if self.errors.len() < ERROR_CODES_MAX {
            self.errors.insert(code.to_vec(), 1);
        }
    }
}

impl Engine {
    /// An empty engine.
    pub fn new(config: Config) -> Engine {
        let core = Box::new(Core {
            dbs: (0..config.databases.max(1)).map(|_| Db::with_seed(config.seed)).collect(),
            rng: fastrand::Rng::with_seed(config.seed),
            effects: Effects::new(config.log_effects),
            scripts: Scripts::new(&config),
            tracking: Tracking::with_seed(config.seed),
            config,
            ..Core::default()
        });
        let mut engine = Engine { core };
        engine.core.count_memory();
        let password = engine.core.config.requirepass.clone();
        engine.core.set_default_password(&password);
        engine
    }

    /// Opens a session for a client at `address`.
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.core.open_session(address)
    }

    /// Ends a session: it waits for nothing, watches nothing, hears nothing any more.
    pub fn disconnect(&mut self, id: SessionId) {
        self.core.end_session(id);
    }

    /// Carries out one command for a session.
    pub fn execute(&mut self, now: Now, id: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        let core = &mut self.core;
        let Some(mut session) = core.sessions.get_mut(&id).and_then(Option::take) else {
            return CommandOutcome::Reply(Reply::Error(crate::Error::fixed("ERR no such session")));
        };
        let before = core.output.deliveries.len();
        core.keeps_expired = !session.trusted && core.is_paused(now);
        core.tracking.current = Some(id);
        core.called = None;
        let outcome = run(core, &mut session, now, argv);
        core.tracking.command_ends(&session, argv);
        let pushes = session.resp == 3;
        if let Some(place) = core.sessions.get_mut(&id) {
            *place = Some(session);
        }
        core.tell_trackers_early();
        let replied = core.output.deliveries.len();
        if !core.ready.is_empty() {
            core.serve_blocked(now);
        }
        core.tell_trackers();
        let outcome = match outcome {
            CommandOutcome::Reply(reply) if pushes && core.output.deliveries.len() > before => {
                CommandOutcome::Reply(core.with_own_messages(id, before, replied, reply))
            }
            outcome => outcome,
        };
        if !core.postponed.is_empty() {
            self.resume(now);
        }
        outcome
    }

    /// Number of scripts refused so far because their keys do not share a cluster slot.
    pub fn slots_crossed(&self) -> u64 {
        self.core.stats.slots_crossed
    }

    /// A hold on whatever script is running, for use while the engine is locked by it.
    pub fn script_control(&self) -> ScriptControl {
        ScriptControl(self.core.scripts.control())
    }

    /// Carries out what a pause held back, if it is over.
    fn resume(&mut self, now: Now) {
        if self.core.is_paused(now) {
            return;
        }
        for id in std::mem::take(&mut self.core.postponed).into_values() {
            if let Some(reply) = self.timed_out(now, id) {
                self.core.output.deliveries.push((id, reply));
            }
        }
    }

    /// Deletes keys and fields of hashes whose deadline has passed, looking at no more than
    /// `budget` of them, and answers how many it looked at: if it was all of the budget, there is
    /// more to do at once. To be called every 50 ms or so.
    pub fn sweep(&mut self, now: Now, budget: usize) -> usize {
        if self.core.tracking.clients() > 0 {
            self.core.limit_tracking();
        }
        let still = self.core.sweep_stopped || self.core.is_paused(now);
        let swept = if still { 0 } else { self.core.sweep(now, budget) };
        self.core.settle_memory();
        self.core.survey_memory();
        self.core.tell_trackers();
        swept
    }

    /// The protocol a session speaks, 2 or 3: its replies are encoded by it. HELLO changes it, so
    /// ask after each command.
    pub fn protocol(&self, id: SessionId) -> u8 {
        self.core.session(id).map_or(2, |session| session.resp)
    }

    /// Takes the side effects of the last calls.
    pub fn take_output(&mut self) -> EngineOutput {
        let mut output = std::mem::take(&mut self.core.output);
        output.effects = self.core.effects.take();
        output
    }
}

pub(crate) fn run(
    core: &mut Box<Core>,
    session: &mut ClientSession,
    now: Now,
    argv: &[&[u8]],
) -> CommandOutcome {
    if argv.is_empty() {
        return CommandOutcome::Reply(Reply::none());
    }
    if session.blocked.is_some() {
        // The embedding program reads no further input while a session is blocked.
        return CommandOutcome::Reply(Reply::Error(crate::Error::fixed("ERR this session waits")));
    }
    if session.closing {
        return CommandOutcome::Reply(Reply::none());
    }
    let now_ms = now.ms();
    if session.last_ms == 0 {
        session.created_ms = now_ms;
    }
    session.last_ms = now_ms;
    if core.started_ms == 0 {
        core.started_ms = now_ms;
        core.saved_at_ms = now_ms;
    }
    let reply = command::process(&mut Ctx { core, session, now, argv });
    if let Some(blocked) = &session.blocked {
        return CommandOutcome::Blocked { deadline_ms: blocked.deadline_ms };
    }
    let silent = session.silent();
    session.replies = match session.replies {
        Replies::SkipNext => Replies::Skip,
        Replies::Skip => Replies::On,
        same => same,
    };
    CommandOutcome::Reply(if silent { reply.only_pushed() } else { reply })
}

impl Core {
    /// Opens a session for a client at `address`.
    pub(crate) fn open_session(&mut self, address: &str) -> SessionId {
        self.stats.connections += 1;
        self.next_session += 1;
        let id = SessionId(self.next_session);
        let mut session = ClientSession::new(id, address.to_owned());
        session.become_default(&self.acl);
        self.sessions.insert(id, Some(Box::new(session)));
        id
    }

    /// Ends a session: it waits for nothing, watches nothing, hears nothing any more.
    pub(crate) fn end_session(&mut self, id: SessionId) {
        let Some(Some(mut session)) = self.sessions.remove(&id) else { return };
        self.discard_transaction(&mut session);
        self.memory.clients = self.memory.clients.saturating_sub(session.memory());
        self.unsubscribe_all(&mut session);
        self.tracking.forget(id);
        self.monitors.retain(|monitor| *monitor != id);
        if let Some(blocked) = session.blocked.take() {
            self.forget_blocked(&blocked);
        }
    }

    /// A command's reply with the messages that its own session was sent meanwhile in their places:
    /// deliveries from number `before` on stand before it, those from `replied` on behind.
    fn with_own_messages(
        &mut self,
        id: SessionId,
        before: usize,
        replied: usize,
        reply: Reply,
    ) -> Reply {
        let is_own =
            |(to, reply): &(SessionId, Reply)| *to == id && matches!(reply, Reply::Push(_));
        let deliveries = &mut self.output.deliveries;
        if !deliveries.iter().skip(before).any(is_own) {
            return reply;
        }
        let (mut ahead, mut behind) = (Vec::new(), Vec::new());
        for (n, delivery) in (before..).zip(deliveries.split_off(before)) {
            match delivery {
                own if is_own(&own) && n < replied => ahead.push(own.1),
                own if is_own(&own) => behind.push(own.1),
                other => deliveries.push(other),
            }
        }
        match reply {
            Reply::Several(replies) => ahead.extend(replies),
            reply => ahead.push(reply),
        }
        ahead.extend(behind);
        Reply::Several(ahead)
    }

    /// A command of a client or of a script failed. What a script fails with because a command in
    /// it did is counted once.
    pub(crate) fn count_error(&mut self, error: &crate::Error, in_script: bool) {
        if in_script {
            return self.count_error_in_script(error);
        }
        let same = |known: crate::Error| error.text().starts_with(known.text());
        if !self.script_error.take().is_some_and(same) {
            self.stats.count_error(error);
        }
    }

    /// A command that a script called failed, or was refused.
    pub(crate) fn count_error_in_script(&mut self, error: &crate::Error) {
        self.stats.count_error(error);
        self.script_error = Some(error.clone());
    }

    /// Sends a session the answer it waited for.
    pub(crate) fn deliver(&mut self, session: &ClientSession, reply: Reply) {
        if let Reply::Error(error) = &reply {
            self.stats.count_error(error);
        }
        if !session.silent() {
            self.output.deliveries.push((session.id, reply));
        }
    }
}
