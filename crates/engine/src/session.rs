//! A session: what the engine knows of one client.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::admin::acl::User;
use crate::blocked::BlockedSession;
use crate::command::CommandSpec;
use crate::engine::{Core, Engine};
use crate::multi::Multi;

/// Names a session; given by [`crate::Engine::connect`]. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The state of one client.
#[derive(Debug)]
pub(crate) struct ClientSession {
    pub(crate) id: SessionId,
    /// The selected database.
    pub(crate) db: usize,
    /// 2 or 3.
    pub(crate) resp: u8,
    /// Has it shown a password, or was none needed when it began?
    pub(crate) authenticated: bool,
    /// Whose it is; nobody's if it is the process's own, or a script's whose caller may do
    /// everything.
    pub(crate) user: Option<Arc<User>>,
    /// Is there anything that its user may not do? Then each command is checked.
    pub(crate) restricted: bool,
    /// `CLIENT SETNAME`
    pub(crate) name: Vec<u8>,
    /// `CLIENT SETINFO`: the client's library and its version.
    pub(crate) lib_name: Vec<u8>,
    pub(crate) lib_version: Vec<u8>,
    /// The peer's address, for `CLIENT LIST`.
    pub(crate) address: String,
    /// A script runs in this session: no blocking, no MULTI, no reply to a client.
    pub(crate) in_script: bool,
    /// EXEC runs in this session: blocking commands answer at once.
    pub(crate) in_exec: bool,
    /// Effects of a log are run in this session: no limits of memory, nothing is denied.
    pub(crate) loading: bool,
    /// Belongs to the process itself: clients can neither pause nor end it.
    pub(crate) trusted: bool,
    /// Lookups do not mark keys as used.
    pub(crate) no_touch: bool,
    /// Commands queued since MULTI.
    pub(crate) multi: Option<Box<Multi>>,
    /// Keys under WATCH, each with its database.
    pub(crate) watching: Vec<(usize, Box<[u8]>)>,
    /// The wait of a blocked session.
    pub(crate) blocked: Option<Box<BlockedSession>>,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) replies: Replies,
    /// To be closed once its replies are sent.
    pub(crate) closing: bool,
    /// `CLIENT NO-EVICT`
    pub(crate) no_evict: bool,
    /// Milliseconds since the epoch of its first and its last command.
    pub(crate) created_ms: i64,
    pub(crate) last_ms: i64,
    /// Its last command.
    pub(crate) last_command: Option<&'static CommandSpec>,
    pub(crate) buffers: Buffers,
    /// Bytes of the commands queued since MULTI.
    pub(crate) queued_bytes: usize,
}

/// Buffer sizes of a session's connection, in bytes; see [`Engine::show_buffers`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Input that is not run yet.
    pub unread: usize,
    /// Room for more of that.
    pub room: usize,
    /// Output that is not sent yet.
    pub unsent: usize,
}

/// The subscriptions of a session.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    pub(crate) channels: HashSet<Box<[u8]>>,
    pub(crate) patterns: HashSet<Box<[u8]>>,
    pub(crate) shards: HashSet<Box<[u8]>>,
}

/// `CLIENT REPLY`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    On,
    /// This command and the next are not answered.
    SkipNext,
    /// This command is not answered.
    Skip,
    Off,
}

impl ClientSession {
    pub(crate) fn new(id: SessionId, address: String) -> ClientSession {
        ClientSession {
            id,
            db: 0,
            resp: 2,
            authenticated: true,
            user: None,
            restricted: false,
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_version: Vec::new(),
            address,
            in_script: false,
            in_exec: false,
            loading: false,
            trusted: false,
            no_touch: false,
            multi: None,
            watching: Vec::new(),
            blocked: None,
            subscriptions: Subscriptions::default(),
            replies: Replies::On,
            closing: false,
            no_evict: false,
            created_ms: 0,
            last_ms: 0,
            last_command: None,
            buffers: Buffers::default(),
            queued_bytes: 0,
        }
    }

    /// Does it listen to anything? Then, in RESP2, it can do little else.
    pub(crate) fn subscribed(&self) -> bool {
        let s = &self.subscriptions;
        !(s.channels.is_empty() && s.patterns.is_empty() && s.shards.is_empty())
    }

    /// Bytes that it takes: what its connection holds and what it queued.
    pub(crate) fn memory(&self) -> usize {
        let Buffers { unread, room, unsent } = self.buffers;
        unread + room + unsent + self.queued_bytes
    }

    /// Are its answers held back (`CLIENT REPLY OFF`)?
    pub(crate) fn silent(&self) -> bool {
        self.replies != Replies::On
    }
}

impl Core {
    /// A session, unless its own command is running.
    pub(crate) fn session(&self, id: SessionId) -> Option<&ClientSession> {
        self.sessions.get(&id).and_then(Option::as_ref).map(|session| &**session)
    }
}

impl Engine {
    /// Tells what the connection of a session holds: CLIENT LIST shows it, and it counts as memory
    /// in use.
    pub fn show_buffers(&mut self, id: SessionId, buffers: Buffers) {
        if let Some(Some(session)) = self.core.sessions.get_mut(&id) {
            let before = session.memory();
            session.buffers = buffers;
            let clients = &mut self.core.memory.clients;
            *clients = (*clients + session.memory()).saturating_sub(before);
        }
    }

    /// Has the session shown its password, or needs none?
    pub fn is_authenticated(&self, id: SessionId) -> bool {
        self.core.session(id).is_some_and(|session| self.core.is_authenticated(session))
    }

    /// Does the session listen to channels?
    pub fn is_subscribed(&self, id: SessionId) -> bool {
        self.core.session(id).is_some_and(ClientSession::subscribed)
    }

    /// Is the session over once its replies are sent? Nothing more of it may run.
    pub fn is_closing(&self, id: SessionId) -> bool {
        self.core.session(id).is_none_or(|session| session.closing)
    }

    /// Sessions that begin from now on must show this password; none if empty.
    pub fn set_password(&mut self, password: &[u8]) {
        self.core.config.requirepass = password.to_vec();
        self.core.set_default_password(password);
    }
}
