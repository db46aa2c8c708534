//! SAVE BGSAVE BGREWRITEAOF LASTSAVE WAITAOF SHUTDOWN, and what INFO tells of the log.
//!
//! The engine keeps no files. Whoever does tells it how far the log is ([`Engine::log_made`],
//! [`Engine::log_synced`]) and when a snapshot is made ([`Engine::save_began`],
//! [`Engine::save_ended`]); commands leave what they want in [`crate::Output`] and wait.

use crate::blocked::KeyWait;
use crate::command::{
    ADMIN, ALLOW_BUSY, CommandRow, Ctx, FAST, LOADING, NO_ASYNC_LOADING, NO_MULTI, NOSCRIPT, STALE,
};
use crate::engine::{Core, Engine};
use crate::error::{Error, SYNTAX};
use crate::{Now, Reply, SessionId, args};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("lastsave", 1, LOADING | STALE | FAST, lastsave),
    CommandRow::new("save", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, save),
    CommandRow::new("bgsave", -1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, bgsave),
    CommandRow::new("bgrewriteaof", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, bgrewriteaof),
    CommandRow::new("waitaof", 4, NOSCRIPT, waitaof),
    CommandRow::new(
        "shutdown",
        -1,
        ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY,
        shutdown,
    ),
];

/// Status of the log, as the store reports it.
#[derive(Debug, Default)]
pub(crate) struct LogStatus {
    /// The last record that was made, and the last that is on disk.
    made: u64,
    synced: u64,
    /// Bytes of the log since the snapshot, and of the snapshot.
    pub(crate) log_bytes: u64,
    pub(crate) base_bytes: u64,
    /// The snapshot being made, and since when.
    pub(crate) saving: Option<SaveReason>,
    pub(crate) began_ms: i64,
    /// Snapshots begun, made, and failed since one was made.
    begun: u64,
    pub(crate) saves: u64,
    pub(crate) failures: u64,
    /// Duration of the last one in seconds.
    pub(crate) took_s: Option<i64>,
    /// The number of changes that are in the last.
    pub(crate) dirty: u64,
    dirty_at_start: u64,
    /// Sessions in SAVE, each with the number of the snapshot it waits for.
    savers: Vec<(SessionId, u64)>,
    /// Sessions in WAITAOF.
    syncers: Vec<Syncer>,
}

/// The reason of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SaveReason {
    /// SAVE or BGSAVE.
    Save,
    /// BGREWRITEAOF, or because the log has grown long.
    Rewrite,
}

/// A session in WAITAOF.
#[derive(Debug, Clone, Copy)]
struct Syncer {
    session: SessionId,
    /// The record that must be on disk.
    record: u64,
    /// Does it wait for nothing else?
    alone: bool,
}

const MEMORY_ONLY: Error =
    Error::fixed("ERR this store is kept in memory only: there is nowhere to save to");
const SAVING: Error = Error::fixed("ERR Background save already in progress");

fn lastsave(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Int(ctx.core.saved_at_ms / 1000))
}

/// Waits for a snapshot of all there is now, while others go on.
fn save(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.can_save()?;
    if ctx.core.keeping.saving == Some(SaveReason::Save) {
        return Err(SAVING);
    }
    let number = ctx.core.ask_for_snapshot(SaveReason::Save, ctx.now);
    ctx.core.keeping.savers.push((ctx.session.id, number));
    Ok(ctx.block(KeyWait {
        keys: &[],
        deadline_ms: None,
        serve: |_, _| None,
        on_timeout: Reply::Ok,
        argv: None,
    }))
}

fn bgsave(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let schedule = match ctx.argv {
        [_] => false,
        [_, word] if args::is(word, "SCHEDULE") => true,
        _ => return Err(SYNTAX),
    };
    ctx.core.can_save()?;
    let running = ctx.core.keeping.saving;
    match running {
        Some(SaveReason::Save) => return Err(SAVING),
        Some(SaveReason::Rewrite) if !schedule => {
            return Err(Error::fixed(
                "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE \
                 SCHEDULE in order to schedule a BGSAVE whenever possible.",
            ));
        }
        _ => {}
    }
    ctx.core.ask_for_snapshot(SaveReason::Save, ctx.now);
    let later = running.is_some();
    Ok(Reply::status(if later {
        "Background saving scheduled"
    } else {
        "Background saving started"
    }))
}

fn bgrewriteaof(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.can_save()?;
    let running = ctx.core.keeping.saving;
    if running == Some(SaveReason::Rewrite) {
        return Err(Error::fixed("ERR Background append only file rewriting already in progress"));
    }
    ctx.core.ask_for_snapshot(SaveReason::Rewrite, ctx.now);
    Ok(Reply::status(if running.is_some() {
        "Background append only file rewriting scheduled"
    } else {
        "Background append only file rewriting started"
    }))
}

/// Answers when what was written before is on disk. There are no replicas.
fn waitaof(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let local = args::int_in(ctx.arg(1), 0, 1)?;
    let replicas = args::positive(ctx.arg(2))?;
    let deadline_ms = args::timeout_ms(ctx.now, ctx.arg(3))?;
    let logs = ctx.core.config.log_effects;
    if local == 1 && !logs {
        return Err(Error::fixed(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    // What a transaction has done so far becomes the next record.
    let unlogged = u64::from(!ctx.core.effects.bytes().is_empty());
    let record = ctx.core.keeping.made + unlogged;
    let there = i64::from(logs && ctx.core.keeping.synced >= record);
    let answer = Reply::Array(vec![Reply::Int(there), Reply::Int(0)]);
    if replicas == 0 && there >= local {
        return Ok(answer);
    }
    let reply = ctx.block(KeyWait {
        keys: &[],
        deadline_ms,
        serve: |_, _| None,
        on_timeout: answer,
        argv: None,
    });
    if ctx.session.blocked.is_some() && logs && there == 0 {
        ctx.core.output.durable = true;
        let (session, alone, sessions) = (ctx.session.id, replicas == 0, &ctx.core.sessions);
        // Where nothing is ever brought to disk, those whose time was up stay in the list.
        let waits =
            |other: &Syncer| other.session != session && sessions.contains_key(&other.session);
        ctx.core.keeping.syncers.retain(waits);
        ctx.core.keeping.syncers.push(Syncer { session, record, alone });
    }
    Ok(reply)
}

fn shutdown(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (mut save, mut nosave, mut abort) = (false, false, false);
    for word in ctx.argv.iter().skip(1) {
        match () {
            () if args::is(word, "SAVE") => save = true,
            () if args::is(word, "NOSAVE") => nosave = true,
            () if args::is(word, "NOW") || args::is(word, "FORCE") => {}
            () if args::is(word, "ABORT") => abort = true,
            () => return Err(SYNTAX),
        }
    }
    if (save && nosave) || (abort && ctx.argv.len() > 2) {
        return Err(SYNTAX);
    }
    if abort {
        return Err(Error::fixed("ERR No shutdown in progress."));
    }
    if let Some(busy) = &ctx.core.busy {
        if !nosave {
            return Err(busy.clone());
        }
        ctx.core.scripts.control().stop();
    }
    if save {
        ctx.core.can_save()?;
        ctx.core.ask_for_snapshot(SaveReason::Save, ctx.now);
    }
    ctx.core.output.shutdown = true;
    // There is no answer but the end of the connection.
    ctx.session.closing = true;
    ctx.core.output.closing.push(ctx.session.id);
    Ok(Reply::none())
}

impl Core {
    /// Is there a log, and thus files to write a snapshot to?
    fn can_save(&self) -> Result<(), Error> {
        match &self.deny_writes {
            _ if !self.config.log_effects => Err(MEMORY_ONLY),
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Requests a snapshot of the current data from the owner of the log; returns its number.
    fn ask_for_snapshot(&mut self, why: SaveReason, now: Now) -> u64 {
        self.output.snapshot = true;
        let keeping = &mut self.keeping;
        if keeping.saving.is_none() {
            keeping.saving = Some(why);
            keeping.began_ms = now.ms();
        }
        keeping.begun + 1
    }
}

impl Engine {
    /// A record was made of the effects so far; how long log and snapshot are.
    pub fn log_made(&mut self, record: u64) {
        self.core.keeping.made = record;
    }

    /// Reports the bytes of the log since the snapshot, and of the snapshot.
    pub fn log_sizes(&mut self, log_bytes: u64, base_bytes: u64) {
        self.core.keeping.log_bytes = log_bytes;
        self.core.keeping.base_bytes = base_bytes;
    }

    /// Records up to this one are on disk: those who waited for that are answered.
    pub fn log_synced(&mut self, record: u64) {
        let core = &mut self.core;
        core.keeping.synced = record;
        if core.keeping.syncers.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut core.keeping.syncers);
        let (done, waiting) = waiting.into_iter().partition(|syncer| syncer.record <= record);
        core.keeping.syncers = waiting;
        let done: Vec<Syncer> = done;
        for Syncer { session, alone, .. } in done {
            let answer = Reply::Array(vec![Reply::Int(1), Reply::Int(0)]);
            core.end_wait(session, "WAITAOF", answer, alone);
        }
    }

    /// A snapshot begins, of all there is up to now.
    pub fn save_began(&mut self, now: Now) {
        let keeping = &mut self.core.keeping;
        keeping.saving.get_or_insert(SaveReason::Rewrite);
        keeping.began_ms = now.ms();
        keeping.begun += 1;
        keeping.dirty_at_start = self.core.dirty;
    }

    /// The snapshot is made, or could not be: those who waited are answered.
    pub fn save_ended(&mut self, now: Now, made: bool) {
        let keeping = &mut self.core.keeping;
        keeping.saving = None;
        keeping.took_s = Some((now.ms() - keeping.began_ms).max(0) / 1000);
        if made {
            keeping.saves += 1;
            keeping.failures = 0;
            keeping.dirty = keeping.dirty_at_start;
            self.core.saved_at_ms = now.ms();
        } else {
            keeping.failures += 1;
        }
        let (begun, savers) = (keeping.begun, std::mem::take(&mut keeping.savers));
        for (session, number) in savers {
            if number > begun {
                self.core.keeping.savers.push((session, number));
                continue;
            }
            let answer = match made {
                true => Reply::Ok,
                false => Reply::Error(Error::fixed("ERR the snapshot could not be written")),
            };
            self.core.end_wait(session, "SAVE", answer, true);
        }
    }
}

impl Core {
    /// Ends the wait of a session if it is in this command, or changes what it is told when its
    /// time is up.
    fn end_wait(&mut self, id: SessionId, command: &str, answer: Reply, now: bool) {
        let Some(Some(session)) = self.sessions.get_mut(&id) else { return };
        let in_it = |name: Option<&Vec<u8>>| name.is_some_and(|name| args::is(name, command));
        let Some(blocked) = &mut session.blocked else { return };
        if in_it(blocked.argv.first()) {
            blocked.on_timeout = answer;
            if now {
                self.unblock(id, crate::UnblockMode::Timeout);
            }
        }
    }
}
