//! The engine: databases, sessions, scripts, and the way a command takes through them.

use std::collections::{HashMap, HashSet};

use crate::command::{self, Ctx};
use crate::config::Config;
use crate::db::Db;
use crate::effect::Effects;
use crate::session::{Session, SessionId};
use crate::{Now, Reply};

/// An in-memory Redis.
///
/// ```
/// use engine::{Config, Engine, Now, Outcome, Reply};
///
/// let mut engine = Engine::new(Config::default());
/// let session = engine.connect("127.0.0.1:5000");
/// let now = Now::from_millis(1_700_000_000_000);
/// engine.execute(now, session, &[b"SET", b"greeting", b"hello"]);
/// let outcome = engine.execute(now, session, &[b"GET", b"greeting"]);
/// assert_eq!(outcome, Outcome::Reply(Reply::Bulk(b"hello".to_vec())));
/// ```
#[derive(Debug)]
pub struct Engine {
    pub(crate) core: Core,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was carried out (or queued, or refused): this is the answer.
    Reply(Reply),
    /// The session waits for a key. The answer comes later by [`Engine::take_output`], or by
    /// [`Engine::timed_out`] when `deadline_ms` passes first.
    Blocked {
        /// When waiting ends, in milliseconds since the epoch; never if absent.
        deadline_ms: Option<i64>,
    },
}

/// What commands caused besides their own replies, to be taken after each call.
#[derive(Debug, Default)]
pub struct Output {
    /// Effects for the log, empty if nothing changed. See `effect.rs` for the encoding.
    pub effects: Vec<u8>,
    /// Replies and messages for other sessions (or, for pub/sub, the same), in order.
    pub deliveries: Vec<(SessionId, Reply)>,
    /// Sessions that must be disconnected once their deliveries are sent (`CLIENT KILL`, `QUIT`).
    pub closing: Vec<SessionId>,
}

/// Everything a command can reach. Cheap to move: scripts borrow it whole.
#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) dbs: Vec<Db>,
    pub(crate) sessions: HashMap<SessionId, Option<Box<Session>>>,
    pub(crate) next_session: u64,
    pub(crate) stats: Stats,
    /// Changes since the start.
    pub(crate) dirty: u64,
    pub(crate) effects: Effects,
    pub(crate) output: Output,
    pub(crate) rng: fastrand::Rng,
    /// Commands that write are refused with this; see [`Engine::deny_writes`].
    pub(crate) deny_writes: Option<crate::Error>,
    /// Sessions that WATCH a key.
    pub(crate) watched: HashMap<(usize, Vec<u8>), Vec<SessionId>>,
    /// Sessions one of whose WATCHed keys has changed.
    pub(crate) cas_broken: HashSet<SessionId>,
}

/// Counters for INFO.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) commands: u64,
    pub(crate) keyspace_hits: u64,
    pub(crate) keyspace_misses: u64,
    pub(crate) expired_keys: u64,
    pub(crate) evicted_keys: u64,
}

impl Engine {
    /// An empty engine.
    pub fn new(config: Config) -> Engine {
        let core = Core {
            dbs: (0..config.databases.max(1)).map(|_| Db::with_seed(config.seed)).collect(),
            rng: fastrand::Rng::with_seed(config.seed),
            effects: Effects::new(config.log_effects),
            config,
            ..Core::default()
        };
        Engine { core }
    }

    /// Opens a session for a client at `address`.
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.core.next_session += 1;
        let id = SessionId(self.core.next_session);
        let authenticated = self.core.config.requirepass.is_empty();
        let session = Session::new(id, address.to_owned(), authenticated);
        self.core.sessions.insert(id, Some(Box::new(session)));
        id
    }

    /// Ends a session: it waits for nothing, watches nothing, hears nothing any more.
    pub fn disconnect(&mut self, id: SessionId) {
        self.core.sessions.remove(&id);
        self.core.cas_broken.remove(&id);
    }

    /// Carries out one command for a session.
    pub fn execute(&mut self, now: Now, id: SessionId, argv: &[&[u8]]) -> Outcome {
        let Some(mut session) = self.core.sessions.get_mut(&id).and_then(Option::take) else {
            return Outcome::Reply(Reply::Error(crate::Error::fixed("ERR no such session")));
        };
        let reply =
            command::process(&mut Ctx { core: &mut self.core, session: &mut session, now, argv });
        if let Some(place) = self.core.sessions.get_mut(&id) {
            *place = Some(session);
        }
        Outcome::Reply(reply)
    }

    /// The waiting of a session is over, because its deadline passed or its client gave up: the
    /// answer to send, or nothing if it does not wait any more (the reply is among the deliveries).
    pub fn timed_out(&mut self, now: Now, id: SessionId) -> Option<Reply> {
        let _ = (now, id);
        None
    }

    /// Deletes keys whose deadline has passed, at most `most` of them; how many it were.
    pub fn sweep(&mut self, now: Now, most: usize) -> usize {
        let _ = (now, most);
        0
    }

    /// What the last calls caused besides their replies.
    pub fn take_output(&mut self) -> Output {
        let mut output = std::mem::take(&mut self.core.output);
        output.effects = self.core.effects.take();
        output
    }
}

impl Db {
    fn with_seed(seed: u64) -> Db {
        Db { keys: crate::table::Table::with_seed(seed), expiring: 0 }
    }
}
