//! The interpreter: one per engine, with Redis's globals, a memory limit and a clock.
//!
//! Scripts run in LuaJIT without its compiler, for which instructions can be counted. What they
//! see is built by `prelude/*.lua`; here are the functions it calls. While a script runs, the whole
//! keyspace lies in [`Host::slot`], where `redis.call` finds it; [`Vm::run`] takes it back,
//! whatever happens.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use mlua::state::{GcIncParams, GcMode};
use mlua::{
    BString, Either, Function, HookTriggers, Lua, LuaOptions, LuaString, StdLib, Table, Value,
    VmState,
};
use parking_lot::Mutex;

use super::control::Control;
use super::convert::{self, LuaReply};
use super::random::Random;
use super::wire::{PackedValue, Writer};
use super::{RunningScript, cjson, pattern};
use crate::Reply;
use crate::engine::Core;
use crate::extra::{cmsgpack, structs};

/// Instructions between two looks at the clock. One of them can work on a string as long as the
/// memory of a script (`a .. b`, `a < b`), which takes some milliseconds, so there cannot be many.
const INSTRUCTIONS: u32 = 1_000;

/// State shared by the interpreter's functions.
#[derive(Debug)]
pub(super) struct Host {
    /// The script that runs, with the keyspace.
    slot: Mutex<RunningScript>,
    /// Says when a script must stop.
    control: Arc<Control>,
    random: Mutex<Random>,
    /// Bytes the interpreter may hold while a script runs.
    limit: AtomicUsize,
    /// Instructions executed by the running script, roughly.
    executed: AtomicU64,
    /// Does the interpreter hold little?
    small: AtomicBool,
}

/// The interpreter.
#[derive(Debug)]
pub(crate) struct Vm {
    lua: Lua,
    host: Arc<Host>,
    run: Function,
    compile: Function,
    forget: Function,
    load_library: Function,
    run_function: Function,
    forget_function: Function,
}

/// The chunk to run, by its number.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChunkRef {
    Script(u32),
    Function(u32),
}

/// The outcome of a script.
#[derive(Debug)]
pub(super) enum ScriptOutcome {
    Nil,
    Bool(bool),
    Number(f64),
    String(Vec<u8>),
    /// A packed table.
    Tree(Vec<u8>),
    Graph(Vec<u8>),
    /// The text of an error.
    Error(Vec<u8>),
}

/// Returns the reply of `redis.call` for Lua, and its kind if it is more than a plain value.
type Given = (Value, Option<u8>);

/// Below this the interpreter lets its memory grow to several times what is in use before it
/// collects, which takes much less of the time of small scripts.
const SMALL: usize = 4 << 20;

impl Vm {
    /// A new interpreter.
    pub(super) fn new(control: Arc<Control>) -> mlua::Result<Vm> {
        let libs = StdLib::TABLE
            | StdLib::STRING
            | StdLib::MATH
            | StdLib::BIT
            | StdLib::JIT
            | StdLib::PACKAGE;
        let lua = Lua::new_with(libs, LuaOptions::new().catch_rust_panics(false))?;
        let host = Arc::new(Host {
            slot: Mutex::new(RunningScript::idle()),
            control,
            random: Mutex::new(Random::default()),
            limit: AtomicUsize::new(0),
            executed: AtomicU64::new(0),
            small: AtomicBool::new(false),
        });
        let functions = host_functions(&lua, &host)?;
        let prelude: Table = prelude(&lua)?.call(functions)?;
        let hooked = Arc::clone(&host);
        // For all threads: one for the main thread would be taken out by the first coroutine.
        lua.set_global_hook(
            HookTriggers::new().every_nth_instruction(INSTRUCTIONS),
            move |lua, _| {
                hooked.tick(u64::from(INSTRUCTIONS));
                hooked.arm(lua);
                hooked.pace(lua);
                if hooked.control.must_stop() {
                    return Err(mlua::Error::runtime("script killed"));
                }
                Ok(VmState::Continue)
            },
        )?;
        let get = |name: &str| prelude.get(name);
        Ok(Vm {
            run: get("run")?,
            compile: get("compile")?,
            forget: get("forget")?,
            load_library: get("load_library")?,
            run_function: get("run_function")?,
            forget_function: get("forget_function")?,
            lua,
            host,
        })
    }

    /// Bytes the interpreter holds.
    pub(super) fn used_memory(&self) -> usize {
        if self.lua.used_memory() < SMALL {
            // What is garbage would count until the interpreter has grown to several times this.
            let _ = self.lua.gc_collect();
        }
        self.lua.used_memory()
    }

    /// Compiles a script under a number, in place of what was compiled under it; `near` says that
    /// it is to be called with what it uses most. An error is the compiler's message, and changes
    /// nothing.
    pub(super) fn compile(
        &self,
        id: u32,
        source: &[u8],
        name: &str,
        near: bool,
    ) -> Result<(), Vec<u8>> {
        match self.compile.call::<Option<BString>>((id, BString::from(source), name, near)) {
            Ok(None) => Ok(()),
            Ok(Some(message)) => Err(message.into()),
            Err(error) => Err(error.to_string().into_bytes()),
        }
    }

    /// Drops what was compiled under a number.
    pub(super) fn forget(&self, id: u32) {
        // Removing a key from a table cannot fail.
        let _ = self.forget.call::<()>(id);
    }

    /// Loads a library of functions; answers with what it registered, packed. `memory` as in
    /// [`Vm::run`].
    pub(super) fn load_library(
        &self,
        source: &[u8],
        name: &str,
        memory: usize,
    ) -> Result<Vec<u8>, Vec<u8>> {
        self.limit(memory);
        let result = self
            .load_library
            .call::<(Option<BString>, Option<BString>)>((BString::from(source), name));
        self.host.disarm(&self.lua);
        match result {
            Ok((Some(packed), _)) => Ok(packed.into()),
            Ok((None, text)) => Err(text.unwrap_or_default().into()),
            Err(error) => Err(error.to_string().into_bytes()),
        }
    }

    /// Drops a function of a library.
    pub(super) fn forget_function(&self, id: u32) {
        // Removing a key from a table cannot fail.
        let _ = self.forget_function.call::<()>(id);
    }

    /// Allows the next run to use `memory` on top of what the interpreter holds already.
    fn limit(&self, memory: usize) {
        self.host.pace(&self.lua);
        self.host.executed.store(0, Ordering::Relaxed);
        self.host.limit.store(self.lua.used_memory().saturating_add(memory), Ordering::Relaxed);
    }

    /// Says when what runs here must stop.
    pub(super) fn control(&self) -> &Control {
        &self.host.control
    }

    /// Puts the keyspace where `redis.call` finds it, and says what runs.
    pub(super) fn lend(&self, core: &mut Box<Core>, begin: impl FnOnce(&mut RunningScript)) {
        let mut running = self.host.slot.lock();
        mem::swap(core, &mut running.world.core);
        running.world.lent = true;
        begin(&mut running);
    }

    /// Takes it out again.
    pub(super) fn take_back(&self, core: &mut Box<Core>) {
        let mut running = self.host.slot.lock();
        if mem::replace(&mut running.world.lent, false) {
            mem::swap(core, &mut running.world.core);
        }
    }

    /// Did the script ask for the types of RESP3?
    pub(super) fn resp3(&self) -> bool {
        self.host.slot.lock().world.session.resp == 3
    }

    /// Runs a compiled script with keys and arguments on what was lent. `memory` is what it may
    /// use on top of what the interpreter holds already.
    pub(super) fn run(
        &self,
        chunk: ChunkRef,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        memory: usize,
    ) -> ScriptOutcome {
        let host = &self.host;
        self.limit(memory);
        let (run, id) = match chunk {
            ChunkRef::Script(id) => (&self.run, id),
            ChunkRef::Function(id) => (&self.run_function, id),
        };
        // As one string, which is unpacked faster than lists are made from here.
        let input = self.lua.create_string(convert::input(keys, arguments));
        let result = input.and_then(|input| {
            host.arm(&self.lua);
            run.call::<(u8, Option<BString>, Option<f64>)>((id, input))
        });
        host.disarm(&self.lua);
        let outcome = match result {
            Ok((0, _, n)) => ScriptOutcome::Number(n.unwrap_or(0.0)),
            Ok((1, s, _)) => ScriptOutcome::String(s.unwrap_or_default().into()),
            Ok((2, s, _)) => ScriptOutcome::Tree(s.unwrap_or_default().into()),
            Ok((3, s, _)) => ScriptOutcome::Graph(s.unwrap_or_default().into()),
            Ok((5, ..)) => ScriptOutcome::Bool(false),
            Ok((6, ..)) => ScriptOutcome::Bool(true),
            Ok((7 | 8, s, _)) => ScriptOutcome::Error(s.unwrap_or_default().into()),
            Ok(_) => ScriptOutcome::Nil,
            Err(_) if host.control.must_stop() => ScriptOutcome::Error(host.control.death()),
            Err(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                let first = first.strip_prefix("memory error: ").unwrap_or(first);
                let name = Arc::clone(&host.slot.lock().name);
                ScriptOutcome::Error(format!("ERR Error running script {name}, {first}").into())
            }
        };
        // A script that needed much leaves much behind; the next need not pay for it.
        if self.lua.used_memory() > memory / 4 {
            // Nothing that runs on collection belongs to scripts, so it does not fail.
            let _ = self.lua.gc_collect();
        }
        outcome
    }
}

impl Host {
    /// Runs a command for a script: its answer, and a number that the prelude knows if that is
    /// more than a plain value. The memory limit is off while the answer is made: it is bounded,
    /// or packed into one string.
    fn call(
        &self,
        lua: &Lua,
        run: impl FnOnce(&mut RunningScript, &Control) -> LuaReply,
    ) -> mlua::Result<Given> {
        let answer = run(&mut self.slot.lock(), &self.control);
        let (value, kind) = match answer {
            LuaReply::Number(n) => return Ok((Value::Number(n), None)),
            LuaReply::False => return Ok((Value::Boolean(false), None)),
            LuaReply::True => return Ok((Value::Boolean(true), None)),
            LuaReply::Nil => return Ok((Value::Nil, None)),
            LuaReply::Okay => return Ok((Value::Nil, Some(1))),
            LuaReply::List(items) => {
                self.disarm(lua);
                let list = lua.create_sequence_from(items.into_iter().map(item));
                self.arm(lua);
                return Ok((Value::Table(list?), None));
            }
            LuaReply::String(s) => (s, None),
            LuaReply::Status(s) => (s, Some(2)),
            LuaReply::Table(packed) => (packed, Some(3)),
            LuaReply::Error(text) => (text, Some(4)),
            LuaReply::Misuse(text) => (text, Some(5)),
            LuaReply::Killed => (self.control.death(), Some(6)),
        };
        self.disarm(lua);
        let value = lua.create_string(value);
        self.arm(lua);
        Ok((Value::String(value?), kind))
    }

    /// Runs a command by its number.
    fn call_numbered(&self, lua: &Lua, number: u32, args: &[&[u8]]) -> mlua::Result<Given> {
        // What is quick is counted, and timed by the hook.
        match number & 1 {
            0 => _ = self.executed.fetch_add(100, Ordering::Relaxed),
            _ => self.tick(100),
        }
        self.call(lua, |running, control| running.call_numbered(control, number, args))
    }

    /// Lets the interpreter collect more seldom while it holds little.
    fn pace(&self, lua: &Lua) {
        let small = lua.used_memory() < SMALL;
        if self.small.swap(small, Ordering::Relaxed) != small {
            let pause = if small { 800 } else { 200 };
            lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(pause)));
        }
    }

    fn arm(&self, lua: &Lua) {
        // The interpreter was made with an allocator that knows limits.
        let _ = lua.set_memory_limit(self.limit.load(Ordering::Relaxed));
    }

    fn disarm(&self, lua: &Lua) {
        let _ = lua.set_memory_limit(0);
    }

    /// Counts work done and says whether it is time to stop.
    fn stop(&self) -> impl FnMut(u64) -> bool {
        |steps| {
            self.tick(steps);
            self.control.must_stop()
        }
    }

    /// Counts work done and looks at the clock. When others have waited for long they have a word.
    fn tick(&self, instructions: u64) {
        let executed = self.executed.fetch_add(instructions, Ordering::Relaxed);
        if self.control.look(executed.saturating_add(instructions))
            && let Some(mut running) = self.slot.try_lock()
            && running.world.lent
        {
            self.control.serve(&mut running.world.core);
        }
    }
}

/// The functions the prelude is built on. None of them raises an error.
fn host_functions(lua: &Lua, host: &Arc<Host>) -> mlua::Result<Table> {
    let t = lua.create_table()?;
    t.set("version", super::VERSION)?;
    t.set("version_num", super::VERSION_NUM)?;
    t.set("null", Value::NULL)?;
    running_functions(lua, host, &t)?;
    redis_functions(lua, host, &t)?;
    library_functions(lua, host, &t)?;
    Ok(t)
}

fn running_functions(lua: &Lua, host: &Arc<Host>, t: &Table) -> mlua::Result<()> {
    let h = Arc::clone(host);
    t.set(
        "arm",
        lua.create_function(move |lua, ()| {
            h.arm(lua);
            Ok(())
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "disarm",
        lua.create_function(move |lua, ()| {
            h.disarm(lua);
            Ok(())
        })?,
    )?;
    let h = Arc::clone(host);
    t.set("dead", lua.create_function(move |_, ()| Ok(h.control.must_stop()))?)?;
    let h = Arc::clone(host);
    t.set(
        "spend",
        lua.create_function(move |_, cost: f64| {
            // A byte copied takes about a tenth of the time of an instruction.
            h.tick(cost as u64 / 10);
            Ok(h.control.must_stop())
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "death",
        lua.create_function(move |lua, ()| {
            h.disarm(lua);
            Ok(BString::from(h.control.death()))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "where",
        lua.create_function(move |lua, ()| {
            h.disarm(lua);
            Ok(place(lua))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set("random", lua.create_function(move |_, ()| Ok(h.random.lock().next()))?)?;
    let h = Arc::clone(host);
    t.set(
        "randomseed",
        lua.create_function(move |_, seed: f64| {
            h.random.lock().seed(seed as i64 as i32);
            Ok(())
        })?,
    )?;
    Ok(())
}

/// The source of the prelude: one chunk, in the order its parts need. `prelude/base.lua` has a map.
const PRELUDE: &str = concat!(
    include_str!("prelude/base.lua"),
    include_str!("prelude/errors.lua"),
    include_str!("prelude/limits.lua"),
    include_str!("prelude/redis.lua"),
    include_str!("prelude/values.lua"),
    include_str!("prelude/cjson.lua"),
    include_str!("prelude/cmsgpack.lua"),
    include_str!("prelude/struct.lua"),
    include_str!("prelude/string.lua"),
    include_str!("prelude/globals.lua"),
    include_str!("prelude/run.lua"),
    include_str!("prelude/functions.lua"),
);

/// The prelude's bytecode without debug names and lines, which nobody is shown: they take as much
/// room again. Compiled once, in an interpreter of its own, which keeps what that leaves behind.
fn prelude(lua: &Lua) -> mlua::Result<Function> {
    static STRIPPED: OnceLock<Vec<u8>> = OnceLock::new();
    const NAME: &str = "=prelude";
    if STRIPPED.get().is_none() {
        let scratch = Lua::new_with(StdLib::STRING, LuaOptions::new())?;
        let whole = scratch.load(PRELUDE).set_name(NAME).into_function()?;
        let dump: Function = scratch.globals().get::<Table>("string")?.get("dump")?;
        let bytes: LuaString = dump.call((whole, true))?;
        STRIPPED.get_or_init(|| bytes.as_bytes().to_vec());
    }
    let bytes = STRIPPED.get().map(Vec::as_slice).unwrap_or_default();
    lua.load(bytes).set_name(NAME).into_function()
}

/// Source and line of the script's function nearest to the top of the stack.
fn place(lua: &Lua) -> (Option<BString>, Option<i64>) {
    // This function and the handler that called it are the first two.
    for level in 2..40 {
        let found = lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let name = source.source.as_deref().unwrap_or_default().to_owned();
            (source.what != "C" && name != "=prelude")
                .then(|| (name, frame.current_line().and_then(|line| i64::try_from(line).ok())))
        });
        match found {
            None => break,
            Some(None) => {}
            Some(Some((name, line))) => return (Some(name.into()), Some(line.unwrap_or(-1))),
        }
    }
    (None, None)
}

fn redis_functions(lua: &Lua, host: &Arc<Host>, t: &Table) -> mlua::Result<()> {
    let h = Arc::clone(host);
    t.set(
        "call",
        lua.create_function(move |lua, (packed, count): (BString, usize)| {
            h.tick(100);
            h.call(lua, |running, control| running.call(control, &packed, count))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "number_of",
        lua.create_function(move |_, name: BString| Ok(h.slot.lock().number_of(&name)))?,
    )?;
    t.set("calls", numbered_calls(lua, host)?)?;
    let h = Arc::clone(host);
    t.set(
        "name",
        lua.create_function(move |lua, ()| {
            h.disarm(lua);
            Ok(h.slot.lock().name.to_string())
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "setresp",
        lua.create_function(move |_, version: u8| {
            h.slot.lock().world.session.resp = version;
            Ok(())
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "acl_check",
        lua.create_function(move |_, packed: BString| Ok(h.slot.lock().may_call(&packed)))?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "sha1hex",
        lua.create_function(move |lua, bytes: LuaString| {
            h.disarm(lua);
            Ok(super::cache::sha1hex(&bytes.as_bytes()))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "log",
        lua.create_function(move |_, (level, text): (u8, BString)| {
            h.slot.lock().log(level, text.into());
            Ok(())
        })?,
    )?;
    Ok(())
}

/// An element of a short list for Lua.
fn item(reply: Reply) -> Either<f64, Either<bool, Either<String, BString>>> {
    match reply {
        Reply::Int(n) => Either::Left(n as f64),
        Reply::Bulk(bytes) => Either::Right(Either::Right(match String::from_utf8(bytes) {
            Ok(text) => Either::Left(text),
            Err(error) => Either::Right(error.into_bytes().into()),
        })),
        _ => Either::Right(Either::Left(false)),
    }
}

/// Functions that call a command with nothing but strings: by the number of strings with the name,
/// each taking the command's number and then everything. In place of the name any value will do.
fn numbered_calls(lua: &Lua, host: &Arc<Host>) -> mlua::Result<Table> {
    let calls = lua.create_table()?;
    macro_rules! add {
        ($($text:ident)*) => {{
            let h = Arc::clone(host);
            calls.push(lua.create_function(
                move |lua, (number, _, $($text,)*): (u32, bool, $(add!(@type $text),)*)| {
                    h.call_numbered(lua, number, &[$($text.as_slice(),)*])
                },
            )?)?;
        }};
        (@type $text:ident) => { BString };
    }
    add!();
    add!(a);
    add!(a b);
    add!(a b c);
    add!(a b c d);
    add!(a b c d e);
    add!(a b c d e f);
    add!(a b c d e f g);
    add!(a b c d e f g i);
    add!(a b c d e f g i j);
    add!(a b c d e f g i j k);
    add!(a b c d e f g i j k l);
    Ok(calls)
}

/// A packed result, or the text of an error.
fn done(lua: &Lua, host: &Host, result: Result<Vec<u8>, Vec<u8>>) -> (bool, BString) {
    host.disarm(lua);
    match result {
        Ok(bytes) => (true, bytes.into()),
        Err(text) => (false, text.into()),
    }
}

fn read(packed: &[u8], graph: bool) -> Result<PackedValue<'_>, Vec<u8>> {
    let read = if graph { PackedValue::graph(packed) } else { PackedValue::tree(packed) };
    read.ok_or_else(|| b"value cannot be read".to_vec())
}

fn library_functions(lua: &Lua, host: &Arc<Host>, t: &Table) -> mlua::Result<()> {
    let h = Arc::clone(host);
    t.set(
        "json_encode",
        lua.create_function(move |lua, (packed, graph, settings): (BString, bool, BString)| {
            let most = h.limit.load(Ordering::Relaxed);
            let mut stop = h.stop();
            let result = read(&packed, graph).and_then(|value| {
                let settings = cjson::CjsonSettings::read(&settings);
                settings.encode(&value, most, &mut stop).map_err(Into::into)
            });
            Ok(done(lua, &h, result))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "json_decode",
        lua.create_function(move |lua, (text, settings): (LuaString, BString)| {
            h.disarm(lua);
            Ok(match cjson::CjsonSettings::read(&settings).decode(&text.as_bytes()) {
                Ok((packed, graph)) => (u8::from(graph), BString::from(packed)),
                Err(message) => (2, message.into()),
            })
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "msgpack_pack",
        lua.create_function(move |lua, (packed, graph, count): (BString, bool, usize)| {
            let most = h.limit.load(Ordering::Relaxed);
            let mut stop = h.stop();
            let result = read(&packed, graph)
                .and_then(|value| cmsgpack::pack(&value, count, most, &mut stop));
            Ok(done(lua, &h, result))
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "msgpack_unpack",
        lua.create_function(move |lua, (bytes, limit, offset): (LuaString, f64, f64)| {
            h.disarm(lua);
            Ok(match cmsgpack::unpack(&bytes.as_bytes(), limit as i64, offset as i64) {
                Ok(found) => {
                    let kind = u8::from(found.graph);
                    (kind, BString::from(found.packed), found.count, found.next)
                }
                Err(message) => (2, message.into(), 0, 0),
            })
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "struct_pack",
        lua.create_function(
            move |lua, (fmt, packed, graph, count): (BString, BString, bool, usize)| {
                let result =
                    read(&packed, graph).and_then(|value| structs::pack(&fmt, &value, count));
                Ok(done(lua, &h, result))
            },
        )?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "struct_unpack",
        lua.create_function(move |lua, (fmt, data, at): (BString, LuaString, f64)| {
            h.disarm(lua);
            let mut writer = Writer::default();
            Ok(match structs::unpack(&fmt, &data.as_bytes(), at as i64, &mut writer) {
                Ok(count) => (true, BString::from(writer.into_bytes()), count),
                Err(message) => (false, message.into(), 0),
            })
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "struct_size",
        lua.create_function(move |lua, fmt: BString| {
            h.disarm(lua);
            Ok(match structs::size(&fmt) {
                Ok(size) => (Some(size), None),
                Err(message) => (None, Some(BString::from(message))),
            })
        })?,
    )?;
    let h = Arc::clone(host);
    t.set(
        "match",
        lua.create_function(move |lua, (s, p, init): (LuaString, LuaString, usize)| {
            h.disarm(lua);
            let (s, p) = (s.as_bytes(), p.as_bytes());
            Ok(match pattern::find(&s, &p, init.saturating_sub(1), &mut h.stop()) {
                Ok(None) => (0, None, 0, false),
                Ok(Some(found)) => {
                    let (packed, count) = convert::captures(&s, &found);
                    let unfinished = found.captures.contains(&pattern::Capture::Unfinished);
                    (1, Some(BString::from(packed)), count, unfinished)
                }
                Err(pattern::Error::Stopped) => (3, Some(h.control.death().into()), 0, false),
                Err(pattern::Error::Malformed(text)) => (2, Some(text.into()), 0, false),
            })
        })?,
    )?;
    t.set(
        "find_plain",
        lua.create_function(move |_, (s, p, init): (LuaString, LuaString, usize)| {
            let (s, p) = (s.as_bytes(), p.as_bytes());
            let from = init.saturating_sub(1);
            let rest = s.get(from..).unwrap_or_default();
            Ok(memchr::memmem::find(rest, &p).map(|at| from + at + 1))
        })?,
    )?;
    Ok(())
}
