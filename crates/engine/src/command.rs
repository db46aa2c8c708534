//! The command table: name, arity, flags, key positions, function; and the way to a function.
//!
//! Each `t_*.rs` and its siblings declare their commands as rows; [`commands`] is the one table
//! made of them, and a command's index in it is its identity. Never compare commands by address.

use std::ops::Range;
use std::sync::LazyLock;

use hashbrown::HashMap;

use crate::engine::Core;
use crate::error::{self, Error};
use crate::session::ClientSession;
use crate::{
    Now, Reply, admin::acl, admin::client, admin::command_info, admin::config, admin::debug,
    admin::info, admin::latency, admin::server, admin::slowlog, connection, expire, extra::bitops,
    extra::dump, extra::geo, extra::hyperloglog, extra::migrate, extra::sort, generic, keys,
    memory, multi, pubsub, script, t_hash, t_list, t_set, t_stream, t_string, t_zset,
};

/// The context in which a command runs.
#[derive(Debug)]
pub(crate) struct Ctx<'a> {
    /// In a box, so that a script can have it for as long as it runs.
    pub(crate) core: &'a mut Box<Core>,
    pub(crate) session: &'a mut ClientSession,
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

    /// Shows the command to those who MONITOR.
    pub(crate) fn show_monitors(&mut self) {
        let us = self.now.unix_us;
        let (seconds, micros) = (us.div_euclid(1_000_000), us.rem_euclid(1_000_000));
        let from = if self.session.in_script { "lua" } else { self.session.address.as_str() };
        let mut line = format!("{seconds}.{micros:06} [{} {from}]", self.session.db).into_bytes();
        for argument in acl::shown(self.argv) {
            line.extend_from_slice(b" \"");
            for byte in argument {
                match byte {
                    b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    b'\t' => line.extend_from_slice(b"\\t"),
                    7 => line.extend_from_slice(b"\\a"),
                    8 => line.extend_from_slice(b"\\b"),
                    b' '..=b'~' => line.push(*byte),
                    other => line.extend_from_slice(format!("\\x{other:02x}").as_bytes()),
                }
            }
            line.push(b'"');
        }
        for id in &self.core.monitors {
            self.core.output.deliveries.push((*id, Reply::Status(line.clone().into())));
        }
    }

    /// Runs `serve` for a session that waited, as [`call`] runs a command: with its effects
    /// gathered.
    pub(crate) fn served<T>(&mut self, serve: impl FnOnce(&mut Self) -> T) -> T {
        let replaced = std::mem::replace(&mut self.core.effects.replaced, false);
        let answer = serve(self);
        self.core.effects.replaced = replaced;
        self.core.settle_memory();
        answer
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
/// Needs a setting to be allowed at all (DEBUG).
pub(crate) const PROTECTED: u32 = 1 << 17;
/// Not allowed on a replica that loads while it serves; of no use here but shown by COMMAND.
pub(crate) const NO_ASYNC_LOADING: u32 = 1 << 18;
/// Keys are not all where they are said to be (SORT BY).
pub(crate) const NO_MANDATORY_KEYS: u32 = 1 << 19;
/// For a key whose slot is on its way to this node; of no use here but shown by COMMAND.
pub(crate) const ASKING: u32 = 1 << 20;

/// A command as the file that implements it declares it. Rows are `const`, so they have no one
/// address and no identity: [`commands`] copies each into the one table, where it gets its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandRow {
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: (i32, i32, i32),
    run: Run,
    subcommands: &'static [CommandRow],
}

impl CommandRow {
    pub(crate) const fn new(name: &'static str, arity: i32, flags: u32, run: Run) -> CommandRow {
        CommandRow { name, arity, flags, keys: (0, 0, 0), run, subcommands: &[] }
    }

    pub(crate) const fn keys(mut self, first: i32, last: i32, step: i32) -> CommandRow {
        self.keys = (first, last, step);
        self
    }

    pub(crate) const fn subcommands(mut self, subcommands: &'static [CommandRow]) -> CommandRow {
        self.subcommands = subcommands;
        self
    }
}

/// A command or subcommand in the one table. It is identified by its number.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    /// Index in [`commands`].
    pub(crate) number: usize,
    /// Lower case; a subcommand has its own name only.
    pub(crate) name: &'static str,
    /// The name with that of the container: `config|get`.
    pub(crate) full_name: String,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i32,
    pub(crate) flags: u32,
    /// Position of the first key, of the last (negative: from the end) and the step between.
    pub(crate) keys: (i32, i32, i32),
    pub(crate) run: Run,
    pub(crate) is_subcommand: bool,
    /// Numbers of its subcommands, which follow it in the table.
    pub(crate) parts: Range<usize>,
}

impl CommandSpec {
    pub(crate) fn subcommands(&self) -> &'static [CommandSpec] {
        commands().get(self.parts.clone()).unwrap_or_default()
    }

    pub(crate) fn arity_fits(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let arity = i64::from(self.arity);
        if arity >= 0 { count == arity } else { count >= -arity }
    }
}

static COMMANDS: LazyLock<Vec<CommandSpec>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut add = |row: &CommandRow, container: Option<&str>| {
        let number = all.len();
        all.push(CommandSpec {
            number,
            name: row.name,
            full_name: match container {
                Some(container) => format!("{container}|{}", row.name),
                None => row.name.to_owned(),
            },
            arity: row.arity,
            flags: row.flags,
            keys: row.keys,
            run: row.run,
            is_subcommand: container.is_some(),
            parts: number + 1..number + 1 + row.subcommands.len(),
        });
    };
    for row in rows() {
        add(row, None);
        row.subcommands.iter().for_each(|sub| add(sub, Some(row.name)));
    }
    all
});

static NUMBERS: LazyLock<HashMap<&'static [u8], usize, foldhash::fast::FixedState>> =
    LazyLock::new(|| all().map(|command| (command.name.as_bytes(), command.number)).collect());

/// The one table: every command, each followed by its subcommands.
pub(crate) fn commands() -> &'static [CommandSpec] {
    &COMMANDS
}

/// Every command, without subcommands.
pub(crate) fn all() -> impl Iterator<Item = &'static CommandSpec> {
    commands().iter().filter(|command| !command.is_subcommand)
}

/// Returns the rows that each file declares.
fn rows() -> impl Iterator<Item = &'static CommandRow> {
    [
        generic::COMMANDS,
        expire::COMMANDS,
        multi::COMMANDS,
        pubsub::COMMANDS,
        bitops::COMMANDS,
        sort::COMMANDS,
        hyperloglog::COMMANDS,
        geo::COMMANDS,
        dump::COMMANDS,
        script::COMMANDS,
        connection::COMMANDS,
        client::COMMANDS,
        config::COMMANDS,
        server::COMMANDS,
        acl::COMMANDS,
        crate::persist::COMMANDS,
        script::FUNCTIONS,
        info::COMMANDS,
        memory::COMMANDS,
        slowlog::COMMANDS,
        latency::COMMANDS,
        migrate::COMMANDS,
        command_info::COMMANDS,
        debug::COMMANDS,
        t_string::COMMANDS,
        t_hash::COMMANDS,
        t_hash::combined::COMMANDS,
        t_hash::expiry::COMMANDS,
        t_list::COMMANDS,
        t_set::COMMANDS,
        t_zset::COMMANDS,
        t_stream::COMMANDS,
    ]
    .into_iter()
    .flatten()
}

/// The command of this name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    let mut lower = [0u8; 32];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    commands().get(*NUMBERS.get(&*lower)?)
}

/// The command that these arguments call: a subcommand where there are any. The error says that
/// there is none.
pub(crate) fn find_with_subcommand(argv: &[&[u8]]) -> Result<&'static CommandSpec, Error> {
    let Some(command) = find(argv.first().copied().unwrap_or_default()) else {
        return Err(unknown(argv));
    };
    if command.parts.is_empty() {
        return Ok(command);
    }
    let Some(word) = argv.get(1) else { return Ok(command) };
    let found =
        command.subcommands().iter().find(|sub| word.eq_ignore_ascii_case(sub.name.as_bytes()));
    found.ok_or_else(|| unknown_subcommand(command, word))
}

/// The function of a command that only has subcommands: it is never called with one missing.
pub(crate) fn container(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = String::from_utf8_lossy(ctx.arg(0)).to_lowercase();
    Err(Error::arity(&name))
}

/// The answer to `… HELP`: each subcommand with what it does.
pub(crate) fn help(command: &str, lines: &[(&str, &str)]) -> Reply {
    let mut out =
        vec![format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")];
    for (usage, meaning) in lines.iter().chain(&[("HELP", "Prints this help.")]) {
        out.push((*usage).to_owned());
        out.push(format!("    {meaning}"));
    }
    Reply::Array(out.into_iter().map(|line| Reply::Status(line.into_bytes().into())).collect())
}

/// The way of a command that a client sent: refuse it, queue it, or run it.
pub(crate) fn process(ctx: &mut Ctx<'_>) -> Reply {
    let command = match find_with_subcommand(ctx.argv) {
        Ok(command) => command,
        Err(error) => return refuse(ctx, None, error),
    };
    ctx.session.last_command = Some(command);
    if let Err(error) = check(ctx, command) {
        return refuse(ctx, Some(command), error);
    }
    let flags = flags_now(ctx, command);
    if ctx.core.pause.is_some()
        && !ctx.session.trusted
        && let Some(until_ms) = ctx.core.paused_until(flags, ctx.now.ms())
    {
        return ctx.postpone(until_ms);
    }
    if let Some(multi) = &mut ctx.session.multi
        && !outside_of_transactions(command)
    {
        multi.flags |= flags;
        multi.queue.push(ctx.argv.iter().map(|argument| argument.to_vec()).collect());
        let bytes = queued_size(ctx.argv);
        ctx.session.queued_bytes += bytes;
        ctx.core.memory.clients += bytes;
        return Reply::status("QUEUED");
    }
    call(ctx, command)
}

/// The command's flags as they count now: EXEC adds those of what it will run, and a script that
/// declares flags says what it does.
fn flags_now(ctx: &Ctx<'_>, command: &CommandSpec) -> u32 {
    let core = &ctx.core;
    let asked = core.pause.is_some()
        || core.memory.on
        || core.deny_writes.is_some()
        || core.lacks_replicas
        || ctx.session.multi.is_some();
    if !asked {
        return command.flags;
    }
    let queued = ctx.session.multi.as_ref().filter(|_| command.name == "exec");
    script::flags(ctx, command) | queued.map_or(0, |multi| multi.flags)
}

/// May this session run the command with these arguments now?
fn check(ctx: &mut Ctx<'_>, command: &'static CommandSpec) -> Result<(), Error> {
    if !command.arity_fits(ctx.argv.len()) {
        return Err(Error::arity(&command.full_name));
    }
    if command.flags & PROTECTED != 0 && !ctx.core.config.debug_commands {
        return Err(Error::fixed(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \
             \"local\", you can run it from a local connection, otherwise you need to set this \
             option in the configuration file, and then restart the server.",
        ));
    }
    if !ctx.session.authenticated
        && command.flags & NO_AUTH == 0
        && ctx.core.acl.asks_for_password()
    {
        return Err(error::NO_AUTH);
    }
    if ctx.session.multi.is_some() && command.flags & NO_MULTI != 0 {
        return Err(Error::fixed("ERR Command not allowed inside a transaction"));
    }
    if ctx.session.restricted {
        let place = ctx.place();
        ctx.permit(command, place).map_err(|denied| denied.error(command))?;
    }
    if let Some(busy) = &ctx.core.busy {
        return if command.flags & ALLOW_BUSY == 0 { Err(busy.clone()) } else { Ok(()) };
    }
    let flags = flags_now(ctx, command);
    ctx.core.out_of_memory = false;
    if ctx.core.memory.on && !ctx.session.loading {
        let full = ctx.core.make_room(ctx.now);
        ctx.core.track_early();
        let ends_multi = matches!(command.name, "exec" | "discard" | "quit" | "reset");
        let queueing = ctx.session.multi.is_some() && (command.is_subcommand || !ends_multi);
        if full && (flags & DENYOOM != 0 || queueing) {
            return Err(error::OUT_OF_MEMORY);
        }
        ctx.core.out_of_memory = full;
    }
    if ctx.core.tracking.clients() > 0 {
        ctx.core.limit_tracking();
        ctx.core.track_early();
    }
    if let Some(error) = &ctx.core.deny_writes
        && (flags & WRITE != 0 || command.name == "ping")
        && !ctx.session.loading
    {
        return Err(error.clone());
    }
    if ctx.core.lacks_replicas && flags & WRITE != 0 && !ctx.session.loading {
        return Err(error::NO_REPLICAS);
    }
    if ctx.session.resp == 2 && ctx.session.subscribed() && !while_subscribed(command) {
        let name = &command.full_name;
        return Err(Error::new(format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
             RESET are allowed in this context"
        )));
    }
    Ok(())
}

/// Commands that a RESP2 session may run while it listens.
fn while_subscribed(command: &'static CommandSpec) -> bool {
    let named = matches!(
        command.name,
        "ping"
            | "subscribe"
            | "psubscribe"
            | "ssubscribe"
            | "unsubscribe"
            | "punsubscribe"
            | "sunsubscribe"
            | "quit"
            | "reset"
    );
    named && !command.is_subcommand
}

/// Commands that run at once even between MULTI and EXEC.
fn outside_of_transactions(command: &'static CommandSpec) -> bool {
    matches!(command.name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
        && !command.is_subcommand
}

/// The command is not run; a transaction it stands in will not be either.
fn refuse(ctx: &mut Ctx<'_>, command: Option<&'static CommandSpec>, error: Error) -> Reply {
    if let Some(command) = command {
        ctx.core.stats.of_mut(command).rejected += 1;
    }
    let mut error = error;
    if command.is_some_and(|command| command.name == "exec") {
        let mut text = b"EXECABORT Transaction discarded because of: ".to_vec();
        let reason = error.text();
        text.extend_from_slice(reason.strip_prefix(b"ERR ").unwrap_or(reason));
        error = Error::new(text);
        ctx.core.discard_transaction(ctx.session);
    } else if let Some(multi) = &mut ctx.session.multi {
        multi.broken = true;
    }
    ctx.core.stats.count_error(&error);
    Reply::Error(error)
}

fn unknown(argv: &[&[u8]]) -> Error {
    let cut = |bytes, most: usize| {
        let bytes = error::c_string(bytes);
        bytes.get(..most).unwrap_or(bytes).to_vec()
    };
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

fn unknown_subcommand(command: &CommandSpec, word: &[u8]) -> Error {
    let mut text = b"ERR unknown subcommand '".to_vec();
    let word = error::c_string(word);
    text.extend_from_slice(word.get(..128).unwrap_or(word));
    text.extend_from_slice(b"'. Try ");
    text.extend_from_slice(command.name.to_ascii_uppercase().as_bytes());
    text.extend_from_slice(b" HELP.");
    Error::new(text)
}

/// Runs a command that may run, for a client, a transaction or a script, and gathers its effect.
pub(crate) fn call(ctx: &mut Ctx<'_>, command: &'static CommandSpec) -> Reply {
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
    // Behind what EXEC ran; a script shows itself before what it calls.
    if !ctx.core.monitors.is_empty() && command.flags & (SKIP_MONITOR | ADMIN) == 0 {
        ctx.show_monitors();
    }
    ctx.core.called = Some(command);
    let stats = ctx.core.stats.of_mut(command);
    stats.calls += 1;
    if let Reply::Error(error) = &reply {
        stats.failed += 1;
        ctx.core.count_error(error, ctx.session.in_script);
    }
    if ctx.core.dirty != dirty && !ctx.core.effects.replaced && command.flags & WRITE != 0 {
        let db = ctx.session.db;
        ctx.core.effects.push(db, ctx.argv);
    }
    ctx.core.effects.replaced = replaced;
    ctx.track_reads(command);
    ctx.core.settle_memory();
    reply
}

/// The permissions of a running script, and what it has done so far. Made once per EVAL.
#[derive(Debug, Default)]
pub(crate) struct ScriptRules {
    /// The keys in KEYS, if only those may be touched (strict mode without the script's
    /// `allow-undeclared-keys`).
    pub(crate) declared: Option<Vec<Box<[u8]>>>,
    /// Must all keys share a cluster slot? Holds the slot of the first key seen.
    pub(crate) one_slot: bool,
    pub(crate) slot: Option<u16>,
    /// `EVAL_RO`, or a script that says `no-writes`.
    pub(crate) read_only: bool,
    /// The script says `allow-oom`.
    pub(crate) allow_oom: bool,
    /// It has called a command that may write: too late to stop it for want of memory.
    pub(crate) wrote: bool,
}

/// The command that `redis.call` with these arguments calls.
pub(crate) fn find_for_script(argv: &[&[u8]]) -> Result<&'static CommandSpec, Error> {
    find_with_subcommand(argv)
        .map_err(|_| Error::fixed("ERR Unknown Redis command called from script"))
}

/// May the script call this command with `ctx.argv`? The session must have `in_script` set.
/// Errors are as Redis words them for scripts, code first.
pub(crate) fn check_from_script(
    ctx: &mut Ctx<'_>,
    command: &'static CommandSpec,
    rules: &mut ScriptRules,
) -> Result<(), Error> {
    let checked = check_in_script(ctx, command, rules);
    if let Err(error) = &checked {
        ctx.core.stats.of_mut(command).rejected += 1;
        ctx.core.count_error_in_script(error);
    }
    checked
}

fn check_in_script(
    ctx: &mut Ctx<'_>,
    command: &'static CommandSpec,
    rules: &mut ScriptRules,
) -> Result<(), Error> {
    if !command.arity_fits(ctx.argv.len()) {
        return Err(Error::fixed("ERR Wrong number of args calling Redis command from script"));
    }
    if command.flags & NOSCRIPT != 0 {
        return Err(Error::fixed("ERR This Redis command is not allowed from script"));
    }
    if ctx.session.restricted {
        ctx.permit(command, acl::DenialContext::Script).map_err(acl::Denial::error_in_script)?;
    }
    if rules.read_only && command.flags & (WRITE | MAY_REPLICATE) != 0 {
        return Err(Error::fixed("ERR Write commands are not allowed from read-only scripts."));
    }
    let spared = rules.wrote || ctx.session.loading;
    if ctx.core.lacks_replicas && command.flags & WRITE != 0 && !spared {
        return Err(error::NO_REPLICAS);
    }
    if command.flags & DENYOOM != 0 && !rules.allow_oom && !rules.wrote && ctx.core.out_of_memory {
        return Err(error::OUT_OF_MEMORY);
    }
    rules.wrote |= command.flags & WRITE != 0;
    if rules.declared.is_some() || rules.one_slot {
        for position in keys::positions(command, ctx.argv).unwrap_or_default() {
            if let Err(error) = check_key(ctx.arg(position), rules) {
                ctx.core.stats.slots_crossed += u64::from(error == CROSSED_SLOTS);
                return Err(error);
            }
        }
    }
    Ok(())
}

const CROSSED_SLOTS: Error =
    Error::fixed("ERR Script attempted to access keys that do not hash to the same slot");

fn check_key(key: &[u8], rules: &mut ScriptRules) -> Result<(), Error> {
    let declared = rules.declared.as_ref();
    if declared.is_some_and(|declared| declared.iter().all(|known| **known != *key)) {
        let mut text = b"ERR script tried accessing undeclared key ".to_vec();
        text.extend_from_slice(key);
        return Err(Error::new(text));
    }
    if rules.one_slot && *rules.slot.get_or_insert_with(|| keys::slot(key)) != keys::slot(key) {
        return Err(CROSSED_SLOTS);
    }
    Ok(())
}

/// Bytes that a queued command takes.
fn queued_size(argv: &[&[u8]]) -> usize {
    let one = |argument: &&[u8]| size_of::<Vec<u8>>() + crate::memory::allocated(argument.len());
    size_of::<Vec<Vec<u8>>>() + argv.iter().map(one).sum::<usize>()
}
