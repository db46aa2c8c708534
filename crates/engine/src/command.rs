//! The command table: name, arity, flags, key positions, function; and the way to a function.
//!
//! Each `t_*.rs` and its siblings list their own commands as `COMMANDS`; [`find`] looks through
//! all of them.

use std::sync::LazyLock;

use hashbrown::HashMap;

use crate::engine::Core;
use crate::error::{self, Error};
use crate::session::Session;
use crate::{Now, Reply, generic, t_hash, t_list, t_set, t_stream, t_string, t_zset};

/// What a command's function works with.
#[derive(Debug)]
pub(crate) struct Ctx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) session: &'a mut Session,
    pub(crate) now: Now,
    /// The command's name and its arguments.
    pub(crate) argv: &'a [&'a [u8]],
}

impl<'a> Ctx<'a> {
    /// Argument `n`, where 0 is the command's name. Arity was checked, so an absent one is empty.
    pub(crate) fn arg(&self, n: usize) -> &'a [u8] {
        self.argv.get(n).copied().unwrap_or_default()
    }

    /// Says what the running command did, in place of the command itself. With an empty list the
    /// command leaves nothing in the log.
    pub(crate) fn effect(&mut self, argv: &[&[u8]]) {
        self.core.effects.replaced = true;
        if !argv.is_empty() {
            let db = self.session.db;
            self.core.effects.push(db, argv);
        }
    }
}

/// A command's function: an answer, or the error to send.
pub(crate) type Run = fn(&mut Ctx<'_>) -> Result<Reply, Error>;

/// The command may change keys.
pub(crate) const WRITE: u32 = 1 << 0;
/// The command only reads keys.
pub(crate) const READONLY: u32 = 1 << 1;
/// Refused when memory is full.
pub(crate) const DENYOOM: u32 = 1 << 2;
/// For administrators.
pub(crate) const ADMIN: u32 = 1 << 3;
/// Part of pub/sub.
pub(crate) const PUBSUB: u32 = 1 << 4;
/// Not allowed in scripts.
pub(crate) const NOSCRIPT: u32 = 1 << 5;
/// May wait for a key.
pub(crate) const BLOCKING: u32 = 1 << 6;
/// Allowed while loading.
pub(crate) const LOADING: u32 = 1 << 7;
/// Allowed on a stale replica.
pub(crate) const STALE: u32 = 1 << 8;
/// Not shown to MONITOR.
pub(crate) const SKIP_MONITOR: u32 = 1 << 9;
/// Not in the slow log.
pub(crate) const SKIP_SLOWLOG: u32 = 1 << 10;
/// Constant or logarithmic time.
pub(crate) const FAST: u32 = 1 << 11;
/// Allowed without a password.
pub(crate) const NO_AUTH: u32 = 1 << 12;
/// May send out replication traffic though it writes nothing (PUBLISH, EVAL).
pub(crate) const MAY_REPLICATE: u32 = 1 << 13;
/// Not allowed inside MULTI.
pub(crate) const NO_MULTI: u32 = 1 << 14;
/// Its keys are found by a function of its own.
pub(crate) const MOVABLE_KEYS: u32 = 1 << 15;
/// Allowed while a script runs for too long.
pub(crate) const ALLOW_BUSY: u32 = 1 << 16;

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Command {
    /// Lower case; a subcommand has its own name only.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i32,
    pub(crate) flags: u32,
    /// Position of the first key, of the last (negative: from the end) and the step between.
    pub(crate) keys: (i32, i32, i32),
    pub(crate) run: Run,
    pub(crate) subcommands: &'static [Command],
}

impl Command {
    pub(crate) const fn new(name: &'static str, arity: i32, flags: u32, run: Run) -> Command {
        Command { name, arity, flags, keys: (0, 0, 0), run, subcommands: &[] }
    }

    pub(crate) const fn keys(mut self, first: i32, last: i32, step: i32) -> Command {
        self.keys = (first, last, step);
        self
    }

    pub(crate) const fn subcommands(mut self, subcommands: &'static [Command]) -> Command {
        self.subcommands = subcommands;
        self
    }

    fn arity_fits(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let arity = i64::from(self.arity);
        if arity >= 0 { count == arity } else { count >= -arity }
    }
}

static TABLE: LazyLock<HashMap<&'static [u8], &'static Command>> = LazyLock::new(|| {
    [
        generic::COMMANDS,
        t_string::COMMANDS,
        t_hash::COMMANDS,
        t_list::COMMANDS,
        t_set::COMMANDS,
        t_zset::COMMANDS,
        t_stream::COMMANDS,
    ]
    .into_iter()
    .flatten()
    .map(|command| (command.name.as_bytes(), command))
    .collect()
});

/// The command of this name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0u8; 32];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    TABLE.get(&*lower).copied()
}

/// The way of a command that a client sent: refuse it, queue it, or run it.
pub(crate) fn process(ctx: &mut Ctx<'_>) -> Reply {
    let command = match check(ctx) {
        Ok(command) => command,
        Err(error) => return Reply::Error(error),
    };
    call(ctx, command)
}

/// Is there such a command, has it the right number of arguments, may this session run it?
fn check(ctx: &mut Ctx<'_>) -> Result<&'static Command, Error> {
    let name = ctx.arg(0);
    let Some(command) = find(name) else { return Err(unknown(ctx.argv)) };
    if !command.arity_fits(ctx.argv.len()) {
        return Err(Error::arity(command.name));
    }
    if !ctx.session.authenticated && command.flags & NO_AUTH == 0 {
        return Err(error::NO_AUTH);
    }
    Ok(command)
}

fn unknown(argv: &[&[u8]]) -> Error {
    let cut = |bytes: &[u8], most: usize| bytes.get(..most).unwrap_or(bytes).to_vec();
    let mut text = b"ERR unknown command '".to_vec();
    text.extend(cut(argv.first().copied().unwrap_or_default(), 128));
    text.extend_from_slice(b"', with args beginning with: ");
    let mut shown = 0;
    for argument in argv.iter().skip(1) {
        if shown >= 128 {
            break;
        }
        let argument = cut(argument, 128 - shown);
        shown += argument.len() + 3;
        text.push(b'\'');
        text.extend(argument);
        text.extend_from_slice(b"' ");
    }
    Error::new(text)
}

/// Runs a command that may run, for a client, a transaction or a script, and gathers its effect.
pub(crate) fn call(ctx: &mut Ctx<'_>, command: &'static Command) -> Reply {
    if command.flags & WRITE != 0
        && let Some(error) = &ctx.core.deny_writes
        && !ctx.session.loading
    {
        return Reply::Error(error.clone());
    }
    let dirty = ctx.core.dirty;
    let replaced = std::mem::take(&mut ctx.core.effects.replaced);
    ctx.core.stats.commands += 1;
    let reply = (command.run)(ctx).unwrap_or_else(Reply::Error);
    if ctx.core.dirty != dirty && !ctx.core.effects.replaced {
        let db = ctx.session.db;
        ctx.core.effects.push(db, ctx.argv);
    }
    ctx.core.effects.replaced = replaced;
    reply
}
