//! MULTI EXEC DISCARD WATCH UNWATCH.

use crate::command::{
    self, ALLOW_BUSY, CommandRow, CommandSpec, Ctx, FAST, LOADING, NOSCRIPT, SKIP_SLOWLOG, STALE,
};
use crate::engine::Core;
use crate::error::{self, Error};
use crate::session::ClientSession;
use crate::{Reply, SessionId, admin::acl};

/// The commands queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub(crate) queue: Vec<Vec<Vec<u8>>>,
    /// A command was refused while queueing: EXEC will refuse too.
    pub(crate) broken: bool,
    /// Flags of all queued commands, together.
    pub(crate) flags: u32,
}

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("multi", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, multi),
    CommandRow::new("exec", 1, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG, exec),
    CommandRow::new("discard", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, discard),
    CommandRow::new("watch", -2, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, watch)
        .keys(1, -1, 1),
    CommandRow::new("unwatch", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, unwatch),
];

fn multi(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.session.multi.is_some() {
        return Err(Error::fixed("ERR MULTI calls can not be nested"));
    }
    ctx.session.multi = Some(Box::default());
    Ok(Reply::Ok)
}

fn discard(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.session.multi.is_none() {
        return Err(Error::fixed("ERR DISCARD without MULTI"));
    }
    ctx.core.discard_transaction(ctx.session);
    Ok(Reply::Ok)
}

fn exec(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.session.multi.is_none() {
        return Err(Error::fixed("ERR EXEC without MULTI"));
    }
    // A watched key that has died since counts as changed.
    let now_ms = ctx.now.ms();
    for (db, key) in std::mem::take(&mut ctx.session.watching) {
        ctx.core.expire_if_due(db, &key, now_ms);
        ctx.session.watching.push((db, key));
    }
    let changed = ctx.core.cas_broken.contains(&ctx.session.id);
    let Some(multi) = ctx.session.multi.take() else { return Ok(Reply::NilArray) };
    ctx.core.discard_transaction(ctx.session);
    if multi.broken {
        return Err(error::EXEC_ABORT);
    }
    if changed {
        return Ok(Reply::NilArray);
    }
    let mut replies = Vec::with_capacity(multi.queue.len());
    ctx.session.in_exec = true;
    for argv in &multi.queue {
        let argv: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        let mut inner =
            Ctx { core: &mut *ctx.core, session: &mut *ctx.session, now: ctx.now, argv: &argv };
        let reply = match command::find_with_subcommand(&argv) {
            Ok(command) => match inner.permit(command, acl::DenialContext::Multi) {
                Err(denied) => {
                    let error = denied.error_in_exec();
                    inner.core.count_error(&error, false);
                    Reply::Error(error)
                }
                Ok(()) => run_queued(&mut inner, command),
            },
            Err(error) => Reply::Error(error),
        };
        replies.push(reply);
    }
    ctx.session.in_exec = false;
    Ok(Reply::Array(replies))
}

/// Runs a command of a transaction and notes how long it took.
fn run_queued(ctx: &mut Ctx<'_>, command: &'static CommandSpec) -> Reply {
    let began = ctx.core.clock();
    let reply = command::call(ctx, command);
    if let (Some(began), Some(now)) = (began, ctx.core.clock()) {
        let took = now.saturating_sub(began);
        ctx.core.time_in_session(ctx.now, ctx.session, command, ctx.argv, took);
    }
    reply
}

fn watch(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.session.multi.is_some() {
        return Err(Error::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let (db, id) = (ctx.session.db, ctx.session.id);
    for key in ctx.argv.iter().skip(1) {
        if ctx.session.watching.iter().any(|(d, k)| *d == db && **k == **key) {
            continue;
        }
        ctx.exists(key);
        ctx.session.watching.push((db, Box::from(*key)));
        ctx.db().watched.entry(Box::from(*key)).or_default().push(id);
    }
    Ok(Reply::Ok)
}

fn unwatch(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.unwatch_all(ctx.session);
    Ok(Reply::Ok)
}

impl Core {
    /// Ends MULTI without carrying anything out.
    pub(crate) fn discard_transaction(&mut self, session: &mut ClientSession) {
        session.multi = None;
        let queued = std::mem::take(&mut session.queued_bytes);
        self.memory.clients = self.memory.clients.saturating_sub(queued);
        self.unwatch_all(session);
    }

    /// The session watches nothing any more.
    pub(crate) fn unwatch_all(&mut self, session: &mut ClientSession) {
        if session.watching.is_empty() {
            return;
        }
        let id = session.id;
        for (db, key) in session.watching.drain(..) {
            let Some(db) = self.dbs.get_mut(db) else { continue };
            if let Some(watchers) = db.watched.get_mut(&key) {
                watchers.retain(|watcher| *watcher != id);
                if watchers.is_empty() {
                    db.watched.remove(&key);
                }
            }
        }
        self.cas_broken.remove(&id);
    }

    /// A key changed, by this session or by nobody in particular: sessions that WATCH it will see
    /// their EXEC refused, those that hold it in a cache are told.
    pub(crate) fn touch(&mut self, db: usize, key: &[u8], by: Option<SessionId>) {
        if self.is_tracking() {
            self.key_changed(key, by);
        }
        let Some(db) = self.dbs.get(db) else { return };
        if db.watched.is_empty() {
            return;
        }
        if let Some(watchers) = db.watched.get(key) {
            self.cas_broken.extend(watchers.iter().copied());
        }
    }

    /// A whole database changes: so does every watched key that is there now or will be.
    pub(crate) fn touch_all(&mut self, db: usize, fits: impl Fn(&Core, &[u8]) -> bool) {
        let Some(watched) = self.dbs.get(db).map(|db| &db.watched) else { return };
        let hit: Vec<SessionId> = watched
            .iter()
            .filter(|(key, _)| fits(self, key))
            .flat_map(|(_, watchers)| watchers.iter().copied())
            .collect();
        self.cas_broken.extend(hit);
    }
}
