//! Blocked sessions: the keys each waits for, and the order in which they are served.
//!
//! A command that finds nothing to take calls [`Ctx::block`] and returns what that returns. When a
//! key appears that someone waits for ([`Core::key_ready`], called by whatever adds a key), it is
//! looked at after the outermost command, transaction or script is over: sessions are served in
//! the order in which they came, by the function their command named, until nothing is left.

use crate::command::{self, Ctx};
use crate::engine::{CommandOutcome, Core, Engine};
use crate::error::Error;
use crate::{Now, Reply, SessionId};

/// Tries to carry out a blocked command on the key that became ready, in the waiting session's
/// name: `ctx.argv` is what [`KeyWait::argv`] said. None if there is nothing for it (the key holds
/// another type, or nothing new): the session waits on.
pub(crate) type Serve = fn(ctx: &mut Ctx<'_>, key: &[u8]) -> Option<Reply>;

/// A wait of a blocking command.
#[derive(Debug)]
pub(crate) struct KeyWait<'k> {
    /// The keys, of which any will do.
    pub(crate) keys: &'k [&'k [u8]],
    /// Deadline in milliseconds since the epoch; see [`crate::args::timeout`].
    pub(crate) deadline_ms: Option<i64>,
    /// Function that goes on when one of the keys is there.
    pub(crate) serve: Serve,
    /// The answer when time is up; also when the command must not wait (in MULTI, in a script).
    pub(crate) on_timeout: Reply,
    /// The command as `serve` shall see it, if not as it came (XREAD with `$` resolved).
    pub(crate) argv: Option<Vec<Vec<u8>>>,
}

/// A session that waits.
#[derive(Debug)]
pub(crate) struct BlockedSession {
    /// Its place in the order of coming.
    ticket: u64,
    db: usize,
    keys: Vec<Box<[u8]>>,
    serve: Option<Serve>,
    pub(crate) on_timeout: Reply,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) deadline_ms: Option<i64>,
    /// Run time of the command before it blocked.
    pub(crate) took: std::time::Duration,
}

impl Ctx<'_> {
    /// Makes the session wait. The command returns at once what this returns: nothing yet, or
    /// the timeout's answer where waiting is not allowed.
    pub(crate) fn block(&mut self, wait: KeyWait<'_>) -> Reply {
        if self.session.in_script || self.session.in_exec {
            return wait.on_timeout;
        }
        let argv = wait.argv.unwrap_or_else(|| self.argv.iter().map(|a| a.to_vec()).collect());
        self.core.tickets += 1;
        let (ticket, db, id) = (self.core.tickets, self.session.db, self.session.id);
        let mut keys: Vec<Box<[u8]>> = wait.keys.iter().map(|key| Box::from(*key)).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            self.db().waiting.entry(key.clone()).or_default().insert(ticket, id);
        }
        self.core.blocked += 1;
        self.session.blocked = Some(Box::new(BlockedSession {
            ticket,
            db,
            keys,
            serve: Some(wait.serve),
            on_timeout: wait.on_timeout,
            argv,
            deadline_ms: wait.deadline_ms,
            took: std::time::Duration::ZERO,
        }));
        Reply::none()
    }

    /// The command waits until clients are no longer paused, and is then carried out from the
    /// start.
    pub(crate) fn postpone(&mut self, until_ms: i64) -> Reply {
        self.core.tickets += 1;
        self.core.postponed.insert(self.core.tickets, self.session.id);
        self.core.blocked += 1;
        self.session.blocked = Some(Box::new(BlockedSession {
            ticket: self.core.tickets,
            db: self.session.db,
            keys: Vec::new(),
            serve: None,
            on_timeout: Reply::none(),
            argv: self.argv.iter().map(|a| a.to_vec()).collect(),
            deadline_ms: Some(until_ms),
            took: std::time::Duration::ZERO,
        }));
        Reply::none()
    }
}

impl Core {
    /// Someone may wait for this key: it is looked at when the outermost command is over.
    pub(crate) fn key_ready(&mut self, db: usize, key: &[u8]) {
        let waiting = self
            .dbs
            .get(db)
            .is_some_and(|db| !db.waiting.is_empty() && db.waiting.contains_key(key));
        if waiting && !self.ready.iter().any(|(d, k)| *d == db && **k == *key) {
            self.ready.push((db, key.into()));
        }
    }

    /// Everything in a database has changed: all that someone waits for there is looked at.
    pub(crate) fn all_ready(&mut self, db: usize) {
        let Some(waiting) = self.dbs.get(db).map(|db| &db.waiting) else { return };
        let known = self.ready.len();
        for key in waiting.keys() {
            if !self.ready.iter().take(known).any(|(d, k)| *d == db && k == key) {
                self.ready.push((db, key.clone()));
            }
        }
    }

    /// Takes a session that no longer waits out of all queues.
    pub(crate) fn forget_blocked(&mut self, blocked: &BlockedSession) {
        self.blocked = self.blocked.saturating_sub(1);
        self.postponed.remove(&blocked.ticket);
        let Some(db) = self.dbs.get_mut(blocked.db) else { return };
        for key in &blocked.keys {
            if let Some(queue) = db.waiting.get_mut(key) {
                queue.remove(&blocked.ticket);
                if queue.is_empty() {
                    db.waiting.remove(key);
                }
            }
        }
    }

    /// Serves those who wait for the keys that became ready, and for those this makes ready.
    pub(crate) fn serve_blocked(self: &mut Box<Self>, now: Now) {
        while !self.ready.is_empty() {
            for (db, key) in std::mem::take(&mut self.ready) {
                self.serve_key(now, db, &key);
            }
        }
    }

    fn serve_key(self: &mut Box<Self>, now: Now, db: usize, key: &[u8]) {
        let Some(queue) = self.dbs.get(db).and_then(|db| db.waiting.get(key)) else { return };
        // A session that blocks meanwhile waits for the next round.
        for id in queue.values().copied().collect::<Vec<_>>() {
            self.expire_if_due(db, key, now.ms());
            let Some(mut session) = self.sessions.get_mut(&id).and_then(Option::take) else {
                continue;
            };
            self.serve_session(now, db, key, &mut session);
            if let Some(place) = self.sessions.get_mut(&id) {
                *place = Some(session);
            }
        }
    }

    fn serve_session(
        self: &mut Box<Self>,
        now: Now,
        db: usize,
        key: &[u8],
        session: &mut crate::session::ClientSession,
    ) {
        let Some(blocked) = session.blocked.take() else { return };
        let Some(serve) = blocked.serve else {
            session.blocked = Some(blocked);
            return;
        };
        let argv: Vec<&[u8]> = blocked.argv.iter().map(Vec::as_slice).collect();
        let before = std::mem::replace(&mut session.db, db);
        self.tracking.current = Some(session.id);
        let began = self.clock();
        let mut ctx = Ctx { core: self, session, now, argv: &argv };
        let reply = ctx.served(|ctx| serve(ctx, key));
        session.db = before;
        self.tracking.current = None;
        match reply {
            Some(reply) => {
                if let Ok(command) = command::find_with_subcommand(&argv) {
                    self.stats.of_mut(command).failed += u64::from(reply.is_error());
                    let since = |began| self.clock().unwrap_or_default().saturating_sub(began);
                    let took = blocked.took + began.map_or(std::time::Duration::ZERO, since);
                    self.time_in_session(now, session, command, &argv, took);
                }
                self.forget_blocked(&blocked);
                self.deliver(session, reply);
            }
            None => session.blocked = Some(blocked),
        }
    }
}

/// The way [`Engine::unblock`] ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnblockMode {
    /// As if time were up.
    Timeout,
    /// With the error `UNBLOCKED`.
    Error,
}

impl Engine {
    /// Time is up for a session whose command answered [`CommandOutcome::Blocked`]: ends the wait
    /// and answers. None if it does not wait (any more): then its answer is among the deliveries of
    /// [`Engine::take_output`], or was taken before. Also none if a command that a pause held back
    /// was carried out and now waits for a key: then [`Engine::waits_until`] has changed.
    pub fn timed_out(&mut self, now: Now, id: SessionId) -> Option<Reply> {
        let session = self.core.sessions.get_mut(&id)?.as_mut()?;
        let blocked = session.blocked.take()?;
        self.core.forget_blocked(&blocked);
        if blocked.serve.is_none() {
            let argv: Vec<&[u8]> = blocked.argv.iter().map(Vec::as_slice).collect();
            return match self.execute(now, id, &argv) {
                CommandOutcome::Reply(reply) => Some(reply),
                CommandOutcome::Blocked { .. } => None,
            };
        }
        let session = self.core.sessions.get(&id)?.as_ref()?;
        Some(if session.silent() { Reply::none() } else { blocked.on_timeout })
    }

    /// Returns the deadline of a blocked session: `Some(None)` is for ever, `None` if it does not
    /// wait.
    pub fn waits_until(&self, id: SessionId) -> Option<Option<i64>> {
        let session = self.core.sessions.get(&id)?.as_ref()?;
        session.blocked.as_ref().map(|blocked| blocked.deadline_ms)
    }

    /// Ends a session's wait before its time; the answer is among the deliveries. False if it
    /// does not wait.
    pub fn unblock(&mut self, id: SessionId, how: UnblockMode) -> bool {
        self.core.unblock(id, how)
    }
}

impl Core {
    /// See [`Engine::unblock`].
    pub(crate) fn unblock(&mut self, id: SessionId, how: UnblockMode) -> bool {
        let Some(Some(session)) = self.sessions.get_mut(&id) else { return false };
        let waits = session.blocked.as_ref().is_some_and(|blocked| blocked.serve.is_some());
        let Some(blocked) = session.blocked.take_if(|_| waits) else { return false };
        let quiet = session.silent();
        self.forget_blocked(&blocked);
        let reply = match how {
            UnblockMode::Timeout => blocked.on_timeout,
            UnblockMode::Error => {
                Reply::Error(Error::fixed("UNBLOCKED client unblocked via CLIENT UNBLOCK"))
            }
        };
        if !quiet {
            self.output.deliveries.push((id, reply));
        }
        true
    }
}
