//! Scripts: EVAL EVALSHA EVAL_RO EVALSHA_RO SCRIPT.
//!
//! A script runs alone and to its end, as one command: what it wrote is one record of the log, and
//! stays if it fails half way. `script/lua.rs` holds the interpreter, `script/prelude/` what
//! scripts find in it, `script/control.rs` says when one must stop; the rest are the libraries and
//! the ways in and out for values.

mod busy;
mod cache;
pub(crate) mod cjson;
mod control;
mod convert;
mod functions;
mod lua;
pub(crate) mod order;
mod pattern;
mod random;
mod source;
pub(crate) mod wire;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::busy::BusyContext;
use self::cache::Cache;
use self::control::Control;
pub use self::control::ScriptControl;
use self::convert::LuaReply;
pub(crate) use self::functions::{COMMANDS as FUNCTIONS, Functions};
use self::lua::{ChunkRef, Vm};
use self::source::ScriptFlags;
use self::wire::{LuaValue, PackedValue};
use crate::args;
use crate::command::{
    self, ALLOW_BUSY, CommandRow, CommandSpec, Ctx, DENYOOM, FAST, LOADING, MAY_REPLICATE,
    MOVABLE_KEYS, NO_MANDATORY_KEYS, NOSCRIPT, READONLY, SKIP_MONITOR, STALE, ScriptRules, WRITE,
};
use crate::engine::Core;
use crate::error::{self, Error};
use crate::session::ClientSession;
use crate::{Config, Now, Reply, keys, number};

/// Redis version that scripts see.
const VERSION: &str = "7.0.15";
const VERSION_NUM: u32 = 0x0007_000f;

const EVAL: u32 =
    NOSCRIPT | SKIP_MONITOR | MAY_REPLICATE | NO_MANDATORY_KEYS | STALE | MOVABLE_KEYS;
const EVAL_RO: u32 = NOSCRIPT | SKIP_MONITOR | NO_MANDATORY_KEYS | STALE | READONLY | MOVABLE_KEYS;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("eval", -3, EVAL, eval),
    CommandRow::new("evalsha", -3, EVAL, evalsha),
    CommandRow::new("eval_ro", -3, EVAL_RO, eval_ro),
    CommandRow::new("evalsha_ro", -3, EVAL_RO, evalsha_ro),
    CommandRow::new("script", -2, 0, command::container).subcommands(&[
        CommandRow::new("debug", 3, NOSCRIPT, script_debug),
        CommandRow::new("exists", -3, NOSCRIPT, script_exists),
        CommandRow::new("flush", -2, NOSCRIPT, script_flush),
        CommandRow::new("help", 2, LOADING | STALE, script_help),
        CommandRow::new("kill", 2, NOSCRIPT | ALLOW_BUSY, script_kill),
        CommandRow::new("load", 3, NOSCRIPT | STALE, script_load),
    ]),
];

/// The interpreter and the scripts it knows.
#[derive(Default)]
pub(crate) struct Scripts {
    /// Made with the first script.
    vm: Option<Box<Vm>>,
    cache: Cache,
    /// The functions FCALL can call.
    pub(crate) functions: Functions,
    /// Absent only in a core that is moved out.
    control: Option<Arc<Control>>,
}

impl Scripts {
    pub(crate) fn new(config: &Config) -> Scripts {
        Scripts { control: Some(Arc::new(Control::new(config))), ..Scripts::default() }
    }

    /// Number of cached scripts.
    pub(crate) fn count(&self) -> usize {
        self.cache.len()
    }

    /// Bytes the cache takes.
    pub(crate) fn memory(&self) -> usize {
        self.cache.memory()
    }

    /// Bytes the interpreter takes.
    pub(crate) fn vm_memory(&self) -> usize {
        self.vm.as_ref().map_or(0, |vm| vm.used_memory())
    }

    /// A hold on running scripts.
    pub(crate) fn control(&self) -> Arc<Control> {
        self.control.clone().unwrap_or_default()
    }

    fn vm(&mut self) -> Result<&Vm, Error> {
        if self.vm.is_none() {
            let vm = Vm::new(self.control()).map_err(|error| {
                Error::new(format!("ERR the script interpreter cannot be started: {error}"))
            })?;
            self.vm = Some(Box::new(vm));
            self.cache.forget_compiled();
        }
        self.vm.as_deref().ok_or(NO_VM)
    }

    /// The number of the script with this text, which is taken in if it is new.
    fn load(&mut self, body: &[u8]) -> Result<u32, Error> {
        if let Some(id) = self.cache.find_body(body) {
            return Ok(id);
        }
        self.vm()?;
        let vm = self.vm.as_deref().ok_or(NO_VM)?;
        self.cache.add(body, |id, source| compile(vm, id, source)).map_err(Error::new)
    }
}

const NO_VM: Error = Error::fixed("ERR the script interpreter is in use");

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("cached", &self.count()).finish_non_exhaustive()
    }
}

/// Longest script. The interpreter counts lines and constants in 26 bits.
const MAX_SOURCE: usize = 16 << 20;

fn compile(vm: &Vm, id: u32, source: &[u8]) -> Result<(), Vec<u8>> {
    const NAME: &str = "@user_script";
    if source.len() > MAX_SOURCE {
        return Err(b"ERR Error compiling script (new function): the script is too long".to_vec());
    }
    let wrong = |message: &[u8]| [b"ERR Error compiling script (new function): ", message].concat();
    let prepared = source::prepare(source).map_err(|(line, message)| {
        wrong(&[format!("user_script:{line}: ").as_bytes(), &message].concat())
    })?;
    vm.compile(id, &prepared.source, NAME, false).map_err(|message| wrong(&message))?;
    // What does not compile was understood wrongly, or has too many locals by now: then the version
    // before it stays.
    if let Some(kept) = prepared.kept
        && vm.compile(id, &kept, NAME, false).is_err()
    {
        return Ok(());
    }
    if let Some(near) = prepared.near {
        let _ = vm.compile(id, &near, NAME, true);
    }
    Ok(())
}

fn eval(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    eval_body(ctx, false)
}

fn eval_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    eval_body(ctx, true)
}

fn evalsha(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    eval_sha(ctx, false)
}

fn evalsha_ro(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    eval_sha(ctx, true)
}

fn eval_body(ctx: &mut Ctx<'_>, read_only: bool) -> Result<Reply, Error> {
    let keys = key_count(ctx)?;
    let id = ctx.core.scripts.load(ctx.arg(1))?;
    run(ctx, id, keys, read_only)
}

fn eval_sha(ctx: &mut Ctx<'_>, read_only: bool) -> Result<Reply, Error> {
    const NO_SCRIPT: Error = Error::fixed("NOSCRIPT No matching script. Please use EVAL.");
    if ctx.arg(1).len() != 40 {
        return Err(NO_SCRIPT);
    }
    let keys = key_count(ctx)?;
    let id = ctx.core.scripts.cache.find_sha(ctx.arg(1)).ok_or(NO_SCRIPT)?;
    run(ctx, id, keys, read_only)
}

/// Reads the number of arguments that are keys.
fn key_count(ctx: &Ctx<'_>) -> Result<usize, Error> {
    let count = args::int(ctx.arg(2))?;
    let given = ctx.argv.len().saturating_sub(3);
    match usize::try_from(count) {
        Ok(count) if count > given => {
            Err(Error::fixed("ERR Number of keys can't be greater than number of args"))
        }
        Ok(count) => Ok(count),
        Err(_) => Err(Error::fixed("ERR Number of keys can't be negative")),
    }
}

/// May a script with these flags run now?
fn admit(ctx: &Ctx<'_>, flags: ScriptFlags, read_only: bool) -> Result<(), Error> {
    if flags.compatible || flags.no_writes {
        return Ok(());
    }
    if let Some(error) = &ctx.core.deny_writes
        && !ctx.session.loading
    {
        return Err(error.clone());
    }
    if read_only {
        return Err(Error::fixed(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    if ctx.core.lacks_replicas && !ctx.session.loading {
        return Err(error::NO_REPLICAS);
    }
    if ctx.core.out_of_memory && !flags.allow_oom {
        return Err(Error::fixed(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > \
             'maxmemory'",
        ));
    }
    Ok(())
}

/// The flags of a command; of one that runs a script which declares what it does, as it declares.
pub(crate) fn flags(ctx: &Ctx<'_>, command: &CommandSpec) -> u32 {
    let scripts = &ctx.core.scripts;
    let declared = match command.name {
        "eval" | "eval_ro" => match scripts.cache.find_body(ctx.arg(1)) {
            Some(id) => scripts.cache.get(id).map(|script| script.flags),
            None => source::header(ctx.arg(1)).ok().map(|header| header.flags),
        },
        "evalsha" | "evalsha_ro" => {
            let id = scripts.cache.find_sha(ctx.arg(1));
            id.and_then(|id| scripts.cache.get(id)).map(|script| script.flags)
        }
        "fcall" | "fcall_ro" => scripts.functions.flags(ctx.arg(1)),
        _ => None,
    };
    let Some(declared) = declared.filter(|flags| !flags.compatible) else { return command.flags };
    let mut flags = command.flags & !(STALE | DENYOOM | WRITE | MAY_REPLICATE);
    if !declared.no_writes {
        flags |= WRITE | if declared.allow_oom { 0 } else { DENYOOM };
    }
    flags
}

/// The permissions of the script.
fn rules(
    config: &Config,
    flags: ScriptFlags,
    keys: &[&[u8]],
    read_only: bool,
) -> Result<ScriptRules, Error> {
    let strict = config.strict_scripts && !flags.allow_undeclared;
    let mut rules = ScriptRules {
        declared: strict.then(|| keys.iter().map(|key| Box::from(*key)).collect()),
        one_slot: config.strict_slots && !flags.allow_cross_slot,
        read_only: read_only || (flags.no_writes && !flags.compatible),
        allow_oom: flags.allow_oom,
        ..ScriptRules::default()
    };
    if config.strict_slots {
        for key in keys {
            let slot = keys::slot(key);
            if *rules.slot.get_or_insert(slot) != slot {
                return Err(Error::fixed("CROSSSLOT Keys in request don't hash to the same slot"));
            }
        }
    }
    Ok(rules)
}

fn run(ctx: &mut Ctx<'_>, id: u32, key_count: usize, read_only: bool) -> Result<Reply, Error> {
    ctx.core.scripts.vm()?;
    let scripts = &mut ctx.core.scripts;
    let vm = scripts.vm.as_deref().ok_or(NO_VM)?;
    scripts
        .cache
        .ensure_compiled(id, |id, source| compile(vm, id, source), |id| vm.forget(id))
        .map_err(Error::new)?;
    let Some(script) = scripts.cache.get(id) else { return Err(NO_VM) };
    let (flags, name) = (script.flags, Arc::clone(&script.sha));
    run_chunk(ctx, ChunkRef::Script(id), flags, name, key_count, read_only)
}

/// Runs what is compiled, with the keys and arguments that follow the third word.
fn run_chunk(
    ctx: &mut Ctx<'_>,
    chunk: ChunkRef,
    flags: ScriptFlags,
    name: Arc<str>,
    key_count: usize,
    read_only: bool,
) -> Result<Reply, Error> {
    admit(ctx, flags, read_only)?;
    let given = ctx.argv.get(3..).unwrap_or_default();
    let (keys, arguments) = given.split_at_checked(key_count).unwrap_or((given, &[]));
    let rules = rules(&ctx.core.config, flags, keys, read_only)
        .inspect_err(|_| ctx.core.stats.slots_crossed += 1)?;
    ctx.core.script_error = None;
    ctx.core.tracking.script_begins(ctx.session.id, keys);
    if !ctx.core.monitors.is_empty() {
        ctx.show_monitors();
    }
    let lent = CoreLoan::new(ctx, chunk, rules, name);
    let (outcome, resp3) = lent.run(keys, arguments);
    drop(lent);
    ctx.core.tracking.script_ends();
    // What its commands did is in the log; EVAL itself did nothing.
    ctx.effect(&[]);
    let reply = convert::reply(outcome, resp3);
    if !reply.is_error() {
        ctx.core.script_error = None;
    }
    Ok(reply)
}

/// The core while it is with the interpreter. Comes back even if something panics.
struct CoreLoan<'c> {
    home: &'c mut Box<Core>,
    vm: Option<Box<Vm>>,
    chunk: ChunkRef,
    memory: usize,
}

impl<'c> CoreLoan<'c> {
    fn new(
        ctx: &'c mut Ctx<'_>,
        chunk: ChunkRef,
        rules: ScriptRules,
        name: Arc<str>,
    ) -> CoreLoan<'c> {
        let home = &mut *ctx.core;
        let memory = home.config.script_memory;
        let vm = place_of_vm(home, chunk).take();
        if let Some(vm) = &vm {
            vm.control().begin(&home.config, matches!(chunk, ChunkRef::Function(_)));
            vm.lend(home, |running| running.begin(ctx.session, ctx.now, rules, name));
        }
        CoreLoan { home, vm, chunk, memory }
    }

    fn run(&self, keys: &[&[u8]], arguments: &[&[u8]]) -> (lua::ScriptOutcome, bool) {
        let Some(vm) = self.vm.as_deref() else { return (lua::ScriptOutcome::Nil, false) };
        (vm.run(self.chunk, keys, arguments, self.memory), vm.resp3())
    }
}

impl Drop for CoreLoan<'_> {
    fn drop(&mut self) {
        if let Some(vm) = self.vm.take() {
            vm.take_back(self.home);
            vm.control().end();
            *place_of_vm(self.home, self.chunk) = Some(vm);
        }
    }
}

/// Scripts and functions have an interpreter each.
fn place_of_vm(core: &mut Core, chunk: ChunkRef) -> &mut Option<Box<Vm>> {
    match chunk {
        ChunkRef::Script(_) => &mut core.scripts.vm,
        ChunkRef::Function(_) => &mut core.scripts.functions.vm,
    }
}

/// The script that is running, with everything it can reach.
#[derive(Debug)]
pub(crate) struct RunningScript {
    world: World,
    /// Of the script, for errors.
    name: Arc<str>,
    /// Commands that have a number, as scripts spell them.
    numbered: Vec<(&'static CommandSpec, Box<[u8]>)>,
}

/// The engine state that the commands of a script work on.
#[derive(Debug)]
struct World {
    /// The engine's while a script runs, an empty one at other times.
    core: Box<Core>,
    lent: bool,
    /// Not the caller's: a script can SELECT another database without the caller seeing it.
    session: ClientSession,
    now: Now,
    rules: ScriptRules,
}

/// Spellings of commands that get a number; others are looked up by name each time.
const NUMBERED_MOST: usize = 1000;

impl RunningScript {
    /// Nothing runs yet.
    fn idle() -> RunningScript {
        let world = World {
            core: Box::default(),
            lent: false,
            session: ClientSession::new(crate::SessionId(0), String::new()),
            now: Now::from_millis(0),
            rules: ScriptRules::default(),
        };
        RunningScript { world, name: Arc::default(), numbered: Vec::new() }
    }

    /// A script begins that `caller` has called.
    fn begin(&mut self, caller: &ClientSession, now: Now, rules: ScriptRules, name: Arc<str>) {
        let session = &mut self.world.session;
        session.id = caller.id;
        session.db = caller.db;
        session.resp = 2;
        session.in_script = true;
        session.in_exec = caller.in_exec;
        session.loading = caller.loading;
        session.trusted = caller.trusted;
        session.no_touch = caller.no_touch;
        session.restricted = caller.restricted;
        if caller.restricted {
            // For checks, and for the log of what they refuse.
            session.user.clone_from(&caller.user);
            session.address.clone_from(&caller.address);
            session.name.clone_from(&caller.name);
            session.last_command = caller.last_command;
        }
        self.world.now = now;
        self.world.rules = rules;
        self.name = name;
    }

    /// `redis.call` with the packed list of `count` arguments.
    fn call(&mut self, control: &Control, packed: &[u8], count: usize) -> LuaReply {
        let Some(PackedValue::Tree(LuaValue::Table(list))) = PackedValue::tree(packed) else {
            return LuaReply::Misuse(BAD_ARGUMENTS.to_vec());
        };
        let Some(numbers) = texts_of_numbers(&list.array, count) else {
            return LuaReply::Misuse(BAD_ARGUMENTS.to_vec());
        };
        let argv = argv_of(&list.array, &numbers);
        match command::find_for_script(&argv) {
            Ok(command) => self.world.run(control, command, &argv),
            Err(error) => {
                self.world.core.count_error_in_script(&error);
                LuaReply::Error(convert::error_text(&error))
            }
        }
    }

    /// The number of a command that is called by this name, if it gets one.
    fn number_of(&mut self, name: &[u8]) -> Option<u32> {
        let command = command::find(name).filter(|command| command.parts.is_empty())?;
        let number = u32::try_from(self.numbered.len()).ok()?;
        if self.numbered.len() >= NUMBERED_MOST {
            return None;
        }
        self.numbered.push((command, name.into()));
        let slow = u32::from(command.flags & FAST == 0);
        Some(number << 1 | slow)
    }

    /// `redis.call` of a numbered command with arguments that are all strings.
    fn call_numbered(&mut self, control: &Control, number: u32, args: &[&[u8]]) -> LuaReply {
        let Some((command, name)) = self.numbered.get((number >> 1) as usize) else {
            return LuaReply::Misuse(BAD_ARGUMENTS.to_vec());
        };
        let mut argv: SmallVec<[&[u8]; 16]> = SmallVec::new();
        argv.push(name);
        argv.extend_from_slice(args);
        self.world.run(control, command, &argv)
    }

    /// May the script call this? None if there is no such command.
    fn may_call(&self, packed: &[u8]) -> Option<bool> {
        let Some(PackedValue::Tree(LuaValue::Table(list))) = PackedValue::tree(packed) else {
            return None;
        };
        let numbers = texts_of_numbers(&list.array, list.array.len())?;
        let argv = argv_of(&list.array, &numbers);
        let command = command::find_with_subcommand(&argv).ok()?;
        let session = &self.world.session;
        let user = session.user.as_ref().filter(|_| session.restricted);
        Some(user.is_none_or(|user| user.check(command, &argv).is_ok()))
    }

    /// `redis.log`
    fn log(&mut self, level: u8, text: Vec<u8>) {
        self.world.core.output.script_log(level, text);
    }
}

impl World {
    fn run(
        &mut self,
        control: &Control,
        command: &'static CommandSpec,
        argv: &[&[u8]],
    ) -> LuaReply {
        if !self.lent {
            return LuaReply::Error(
                b"ERR redis.call/pcall can only be called inside a script invocation".to_vec(),
            );
        }
        let mut ctx = Ctx { core: &mut self.core, session: &mut self.session, now: self.now, argv };
        if let Err(error) = command::check_from_script(&mut ctx, command, &mut self.rules) {
            return LuaReply::Error(convert::error_text(&error));
        }
        if command.flags & WRITE != 0 && control.begin_write().is_err() {
            return LuaReply::Killed;
        }
        let reply = command::call(&mut ctx, command);
        convert::answer(reply, self.session.resp == 3)
    }
}

const BAD_ARGUMENTS: &[u8] = b"ERR Lua redis lib command arguments must be strings or integers";

/// The numbers among the arguments as text. None if there is anything but strings and numbers.
fn texts_of_numbers(values: &[LuaValue<'_>], count: usize) -> Option<SmallVec<[Vec<u8>; 4]>> {
    // Nils at the end do not show up in the list.
    if values.len() != count {
        return None;
    }
    let mut texts = SmallVec::new();
    for value in values {
        match value {
            LuaValue::String(_) => {}
            LuaValue::Number(n) => texts.push(number::format_f64(*n)),
            _ => return None,
        }
    }
    Some(texts)
}

/// The arguments of a call, with the numbers among them as text.
fn argv_of<'a>(values: &[LuaValue<'a>], numbers: &'a [Vec<u8>]) -> SmallVec<[&'a [u8]; 16]> {
    let mut numbers = numbers.iter();
    let text = |value: &LuaValue<'a>| match value {
        LuaValue::String(s) => *s,
        _ => numbers.next().map(Vec::as_slice).unwrap_or_default(),
    };
    values.iter().map(text).collect()
}

fn script_load(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let id = ctx.core.scripts.load(ctx.arg(2))?;
    Ok(Reply::bulk_or_nil(ctx.core.scripts.cache.get(id).map(|script| script.sha.as_bytes())))
}

fn script_exists(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let cache = &ctx.core.scripts.cache;
    let known = ctx.argv.iter().skip(2).map(|sha| cache.find_sha(sha).is_some().into());
    Ok(Reply::Array(known.collect()))
}

fn script_flush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    match ctx.argv.get(2) {
        None => {}
        Some(mode) if args::is(mode, "SYNC") || args::is(mode, "ASYNC") => {}
        Some(_) => return Err(Error::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
    }
    if ctx.argv.len() > 3 {
        return Err(Error::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    let scripts = &mut ctx.core.scripts;
    scripts.cache = Cache::default();
    scripts.vm = None;
    Ok(Reply::Ok)
}

fn script_kill(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.scripts.control().kill(false)
}

fn script_debug(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mode = ctx.arg(2);
    if args::is(mode, "NO") {
        return Ok(Reply::Ok);
    }
    if args::is(mode, "YES") || args::is(mode, "SYNC") {
        return Err(Error::fixed("ERR there is no script debugger here"));
    }
    Err(Error::fixed("ERR Use SCRIPT DEBUG YES/SYNC/NO"))
}

fn script_help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    const LINES: &[&str] = &[
        "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DEBUG (YES|SYNC|NO)",
        "    Set the debug mode for subsequent scripts executed.",
        "EXISTS <sha1> [<sha1> ...]",
        "    Return information about the existence of the scripts in the script cache.",
        "FLUSH [ASYNC|SYNC]",
        "    Flush the Lua scripts cache. Very dangerous on replicas.",
        "    When called without the optional mode argument, the behavior is determined by the",
        "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
        "    * ASYNC: Asynchronously flush the scripts cache.",
        "    * SYNC: Synchronously flush the scripts cache.",
        "KILL",
        "    Kill the currently executing Lua script.",
        "LOAD <script>",
        "    Load a script into the scripts cache without executing it.",
        "HELP",
        "    Prints this help.",
    ];
    Ok(Reply::Array(LINES.iter().map(|line| Reply::status(line)).collect()))
}
