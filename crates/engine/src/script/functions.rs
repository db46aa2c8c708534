//! Functions: FUNCTION and FCALL. Libraries of Lua functions that stay until they are deleted.
//!
//! A library is loaded by running its text once, which registers its functions; they live in an
//! interpreter of their own, apart from that of scripts. What a library is, is its text: that is
//! what goes to the log, to snapshots and into FUNCTION DUMP.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::lua::{ChunkRef, Vm};
use super::source::{self, ScriptFlags};
use super::wire::{LuaTable, LuaValue, PackedValue};
use super::{MAX_SOURCE, NO_VM, run_chunk};
use crate::command::{
    self, ALLOW_BUSY, CommandRow, Ctx, DENYOOM, LOADING, MAY_REPLICATE, MOVABLE_KEYS,
    NO_MANDATORY_KEYS, NOSCRIPT, READONLY, SKIP_MONITOR, STALE, WRITE,
};
use crate::engine::Core;
use crate::error::Error;
use crate::extra::dump::{BAD_CHECKSUM, PayloadReader, open, push_string, seal};
use crate::{Reply, args, number, scan, split_quoted};

const FCALL: u32 =
    NOSCRIPT | SKIP_MONITOR | MAY_REPLICATE | NO_MANDATORY_KEYS | STALE | MOVABLE_KEYS;
const FCALL_RO: u32 = NOSCRIPT | SKIP_MONITOR | NO_MANDATORY_KEYS | STALE | READONLY | MOVABLE_KEYS;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("fcall", -3, FCALL, |ctx| call(ctx, false)),
    CommandRow::new("fcall_ro", -3, FCALL_RO, |ctx| call(ctx, true)),
    CommandRow::new("function", -2, 0, command::container).subcommands(&[
        CommandRow::new("delete", 3, NOSCRIPT | WRITE, delete),
        CommandRow::new("dump", 2, NOSCRIPT, dump),
        CommandRow::new("flush", -2, NOSCRIPT | WRITE, flush),
        CommandRow::new("help", 2, LOADING | STALE, help),
        CommandRow::new("kill", 2, NOSCRIPT | ALLOW_BUSY, |ctx| {
            ctx.core.scripts.control().kill(true)
        }),
        CommandRow::new("list", -2, NOSCRIPT, list),
        CommandRow::new("load", -3, NOSCRIPT | WRITE | DENYOOM, load),
        CommandRow::new("restore", -3, NOSCRIPT | WRITE | DENYOOM, restore),
        CommandRow::new("stats", 2, NOSCRIPT | ALLOW_BUSY, stats),
    ]),
];

/// A library may take so long to load.
const LOAD_MS: u64 = 500;
/// Header of a library in a dump.
const DUMPED_LIBRARY: u8 = 245;
const BAD_NAME: &str = "ERR Library names can only contain letters, numbers, or underscores(_) and \
                        must be at least one character long";

/// All functions, and the interpreter they live in.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// Made with the first library.
    pub(super) vm: Option<Box<Vm>>,
    all: Libraries,
    /// The function that runs: its name and the command that called it.
    running: Option<(String, Vec<Vec<u8>>)>,
}

/// Libraries by name, and their functions by name in lower case.
#[derive(Debug, Default)]
struct Libraries {
    by_name: BTreeMap<Vec<u8>, Library>,
    functions: HashMap<Vec<u8>, (u32, ScriptFlags, String)>,
}

#[derive(Debug)]
struct Library {
    code: Box<[u8]>,
    functions: BTreeMap<Vec<u8>, Function>,
}

#[derive(Debug)]
struct Function {
    /// Its number in the interpreter.
    id: u32,
    flags: ScriptFlags,
    description: Option<Vec<u8>>,
}

impl Functions {
    /// Numbers of libraries and functions.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let libraries = self.all.by_name.values();
        (self.all.by_name.len(), libraries.map(|library| library.functions.len()).sum())
    }

    /// Bytes the interpreter takes.
    pub(crate) fn vm_memory(&self) -> usize {
        self.vm.as_ref().map_or(0, |vm| vm.used_memory())
    }

    /// Bytes that the texts take.
    pub(crate) fn memory(&self) -> usize {
        self.all.by_name.values().map(|library| library.code.len() + 256).sum()
    }

    /// The texts of all libraries.
    pub(crate) fn codes(&self) -> impl Iterator<Item = &[u8]> {
        self.all.by_name.values().map(|library| &*library.code)
    }

    /// Drops what the interpreter holds of a library.
    fn forget(&self, library: &Library) {
        if let Some(vm) = &self.vm {
            library.functions.values().for_each(|function| vm.forget_function(function.id));
        }
    }
}

impl Libraries {
    fn link(&mut self, name: Vec<u8>, library: Library) {
        for (function, about) in &library.functions {
            let shown = String::from_utf8_lossy(function).into_owned();
            let entry = self.functions.entry(function.to_ascii_lowercase());
            entry.or_insert((about.id, about.flags, shown));
        }
        self.by_name.insert(name, library);
    }

    fn unlink(&mut self, name: &[u8]) -> Option<Library> {
        let library = self.by_name.remove(name)?;
        for (function, about) in &library.functions {
            let lower = function.to_ascii_lowercase();
            if self.functions.get(&lower).is_some_and(|(id, ..)| *id == about.id) {
                self.functions.remove(&lower);
            }
        }
        Some(library)
    }

    /// A function of the library whose name is taken.
    fn collision(&self, library: &Library) -> Result<(), Error> {
        let taken = |name: &&Vec<u8>| self.functions.contains_key(&name.to_ascii_lowercase());
        match library.functions.keys().find(taken) {
            Some(name) => Err(Error::about("ERR Function ", name, " already exists")),
            None => Ok(()),
        }
    }
}

/// The name that a library gives itself in its first line, and where its Lua begins.
fn header(code: &[u8]) -> Result<(Vec<u8>, usize), Error> {
    const INVALID: Error = Error::fixed("ERR Invalid library metadata");
    if !code.starts_with(b"#!") {
        return Err(Error::fixed("ERR Missing library metadata"));
    }
    let end = memchr::memchr(b'\n', code).ok_or(INVALID)?;
    let line = code.get(2..end).unwrap_or_default();
    let words = split_quoted(line).ok_or(INVALID)?;
    let mut words = words.iter().map(Vec::as_slice);
    let first = line.first().is_some_and(|byte| !byte.is_ascii_whitespace());
    let engine = if first { words.next().unwrap_or_default() } else { b"" };
    let mut name: Option<&[u8]> = None;
    for word in words {
        match word.split_at_checked(5) {
            Some((key, value)) if args::is(key, "NAME=") => {
                if name.replace(value).is_some() {
                    return Err(Error::fixed(
                        "ERR Invalid metadata value, name argument was given multiple times",
                    ));
                }
            }
            _ => return Err(Error::about("ERR Invalid metadata value given: ", word, "")),
        }
    }
    let name = name.ok_or(Error::fixed("ERR Library name was not given"))?;
    if name.is_empty() || !name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') {
        return Err(Error::fixed(BAD_NAME));
    }
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(Error::about("ERR Engine '", engine, "' not found"));
    }
    Ok((name.to_vec(), end))
}

/// Runs the text of a library, which registers its functions.
fn create(core: &mut Core, code: &[u8], skip: usize) -> Result<Library, Error> {
    const NAME: &str = "@user_function";
    let refuse = |text: &[u8]| Error::new([b"ERR ", text].concat());
    if code.len() > MAX_SOURCE {
        return Err(refuse(b"Error compiling function: the library is too long"));
    }
    let prepared =
        source::prepare(code.get(skip..).unwrap_or_default()).map_err(|(line, text)| {
            let place = format!("Error compiling function: user_function:{line}: ");
            refuse(&[place.as_bytes(), &text].concat())
        })?;
    let control = core.scripts.control();
    let functions = &mut core.scripts.functions;
    if functions.vm.is_none() {
        let vm = Vm::new(control.clone()).map_err(|error| {
            Error::new(format!("ERR the script interpreter cannot be started: {error}"))
        })?;
        functions.vm = Some(Box::new(vm));
    }
    let vm = functions.vm.as_deref().ok_or(NO_VM)?;
    let source = prepared.kept.unwrap_or(prepared.source);
    control.begin_load(&core.config, LOAD_MS);
    let registered = vm.load_library(&source, NAME, core.config.script_memory);
    control.end();
    let registered = registered.map_err(|text| refuse(&text))?;
    let library = Library { code: code.into(), functions: read_registered(&registered) };
    if library.functions.is_empty() {
        return Err(refuse(b"No functions registered"));
    }
    Ok(library)
}

/// Reads the answer of the prelude: a list of tables with name, number, flags, description.
fn read_registered(packed: &[u8]) -> BTreeMap<Vec<u8>, Function> {
    let Some(PackedValue::Tree(LuaValue::Table(list))) = PackedValue::tree(packed) else {
        return BTreeMap::new();
    };
    list.array.iter().filter_map(read_function).collect()
}

fn read_function(value: &LuaValue<'_>) -> Option<(Vec<u8>, Function)> {
    let LuaValue::Table(table) = value else { return None };
    let text = |key: &str| match field(table, key) {
        Some(LuaValue::String(text)) => Some(text.to_vec()),
        _ => None,
    };
    let Some(LuaValue::Number(id)) = field(table, "id") else { return None };
    let mut flags = ScriptFlags::default();
    if let Some(LuaValue::Table(names)) = field(table, "flags") {
        for name in &names.array {
            match name {
                LuaValue::String(b"no-writes") => flags.no_writes = true,
                LuaValue::String(b"allow-oom") => flags.allow_oom = true,
                LuaValue::String(b"allow-stale") => flags.allow_stale = true,
                LuaValue::String(b"no-cluster") => flags.no_cluster = true,
                LuaValue::String(b"allow-cross-slot-keys") => flags.allow_cross_slot = true,
                _ => {}
            }
        }
    }
    Some((text("name")?, Function { id: *id as u32, flags, description: text("description") }))
}

fn field<'t, 'a>(table: &'t LuaTable<'a>, key: &str) -> Option<&'t LuaValue<'a>> {
    let found = table.hash.iter().find(|(name, _)| *name == LuaValue::String(key.as_bytes()));
    found.map(|(_, value)| value)
}

fn load(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let words = ctx.argv.get(2..).unwrap_or_default();
    let Some((code, options)) = words.split_last() else {
        return Err(Error::fixed("ERR Function code is missing"));
    };
    let mut replace = false;
    for option in options {
        if !args::is(option, "REPLACE") {
            return Err(Error::about("ERR Unknown option given: ", option, ""));
        }
        replace = true;
    }
    let (name, skip) = header(code)?;
    let all = &mut ctx.core.scripts.functions.all;
    if !replace && all.by_name.contains_key(&name) {
        return Err(Error::about("ERR Library '", &name, "' already exists"));
    }
    // The one it replaces comes back if anything is wrong with it.
    let old = all.unlink(&name);
    let made = create(ctx.core, code, skip).and_then(|library| {
        let functions = &ctx.core.scripts.functions;
        functions.all.collision(&library).inspect_err(|_| functions.forget(&library))?;
        Ok(library)
    });
    let functions = &mut ctx.core.scripts.functions;
    match (made, old) {
        (Ok(library), old) => {
            if let Some(old) = old {
                functions.forget(&old);
            }
            functions.all.link(name.clone(), library);
            ctx.core.dirty += 1;
            Ok(Reply::Bulk(name))
        }
        (Err(error), Some(old)) => {
            functions.all.link(name, old);
            Err(error)
        }
        (Err(error), None) => Err(error),
    }
}

fn delete(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = ctx.arg(2);
    let functions = &mut ctx.core.scripts.functions;
    let library = functions.all.unlink(name).ok_or(Error::fixed("ERR Library not found"))?;
    functions.forget(&library);
    ctx.core.dirty += 1;
    Ok(Reply::Ok)
}

fn flush(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    match ctx.argv {
        [_, _] => {}
        [_, _, word] if args::is(word, "SYNC") || args::is(word, "ASYNC") => {}
        [_, _, _] => {
            return Err(Error::fixed("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
        }
        _ => return Err(Error::subcommand(ctx.argv)),
    }
    ctx.core.scripts.functions = Functions::default();
    ctx.core.dirty += 1;
    Ok(Reply::Ok)
}

fn list(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (mut with_code, mut pattern) = (false, None);
    let mut words = ctx.argv.iter().skip(2);
    while let Some(word) = words.next() {
        match () {
            () if !with_code && args::is(word, "WITHCODE") => with_code = true,
            () if pattern.is_none() && args::is(word, "LIBRARYNAME") => {
                let missing = Error::fixed("ERR library name argument was not given");
                pattern = Some(words.next().ok_or(missing)?);
            }
            () => return Err(Error::about("ERR Unknown argument ", word, "")),
        }
    }
    let libraries = ctx.core.scripts.functions.all.by_name.iter();
    let fits = |name: &[u8]| pattern.is_none_or(|pattern| scan::matches(pattern, name, true));
    let found = libraries.filter(|(name, _)| fits(name)).map(|(name, library)| {
        let functions = library.functions.iter().map(|(name, function)| describe(name, function));
        let mut about = vec![
            (Reply::bulk("library_name"), Reply::bulk(name)),
            (Reply::bulk("engine"), Reply::bulk("LUA")),
            (Reply::bulk("functions"), Reply::Array(functions.collect())),
        ];
        if with_code {
            about.push((Reply::bulk("library_code"), Reply::bulk(&library.code)));
        }
        Reply::Map(about)
    });
    Ok(Reply::Array(found.collect()))
}

fn describe(name: &[u8], function: &Function) -> Reply {
    let flags = &function.flags;
    let flags = [
        (flags.no_writes, "no-writes"),
        (flags.allow_oom, "allow-oom"),
        (flags.allow_stale, "allow-stale"),
        (flags.no_cluster, "no-cluster"),
        (flags.allow_cross_slot, "allow-cross-slot-keys"),
    ];
    let flags = flags.iter().filter(|(on, _)| *on).map(|(_, name)| Reply::status(name)).collect();
    Reply::Map(vec![
        (Reply::bulk("name"), Reply::bulk(name)),
        (Reply::bulk("description"), Reply::bulk_or_nil(function.description.as_ref())),
        (Reply::bulk("flags"), Reply::Set(flags)),
    ])
}

fn stats(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let functions = &ctx.core.scripts.functions;
    let running = match (&functions.running, &ctx.core.busy) {
        (Some((name, argv)), _) => Reply::Map(vec![
            (Reply::bulk("name"), Reply::bulk(name)),
            (Reply::bulk("command"), Reply::bulks(argv)),
            (
                Reply::bulk("duration_ms"),
                Reply::Int(ctx.core.scripts.control().elapsed_ms().unwrap_or(0)),
            ),
        ]),
        (None, Some(busy)) => return Err(busy.clone()),
        (None, None) => Reply::Nil,
    };
    let (libraries, count) = functions.counts();
    let counts = Reply::Map(vec![
        (Reply::bulk("libraries_count"), libraries.into()),
        (Reply::bulk("functions_count"), count.into()),
    ]);
    Ok(Reply::Map(vec![
        (Reply::bulk("running_script"), running),
        (Reply::bulk("engines"), Reply::Map(vec![(Reply::bulk("LUA"), counts)])),
    ]))
}

fn dump(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut payload = Vec::new();
    for code in ctx.core.scripts.functions.codes() {
        payload.push(DUMPED_LIBRARY);
        push_string(&mut payload, code);
    }
    Ok(Reply::Bulk(seal(payload)))
}

/// Handling of existing libraries by FUNCTION RESTORE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestorePolicy {
    Flush,
    Append,
    Replace,
}

fn restore(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let policy = match ctx.argv.get(3..) {
        None | Some([]) => RestorePolicy::Append,
        Some([word]) if args::is(word, "APPEND") => RestorePolicy::Append,
        Some([word]) if args::is(word, "REPLACE") => RestorePolicy::Replace,
        Some([word]) if args::is(word, "FLUSH") => RestorePolicy::Flush,
        Some([_]) => {
            return Err(Error::fixed(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
        Some(_) => return Err(Error::subcommand(ctx.argv)),
    };
    let payload = open(ctx.arg(2)).ok_or(BAD_CHECKSUM)?;
    let mut new = Libraries::default();
    let read = read_libraries(ctx.core, payload, &mut new);
    let joined = read.and_then(|()| join(ctx.core, &new, policy));
    let functions = &mut ctx.core.scripts.functions;
    if let Err(error) = joined {
        new.by_name.values().for_each(|library| functions.forget(library));
        return Err(error);
    }
    for (name, library) in new.by_name {
        functions.all.link(name, library);
    }
    ctx.core.dirty += 1;
    Ok(Reply::Ok)
}

fn read_libraries(core: &mut Core, payload: &[u8], new: &mut Libraries) -> Result<(), Error> {
    const FAILED: Error = Error::fixed("ERR failed loading the given functions payload");
    let mut reader = PayloadReader::new(payload);
    while !reader.is_empty() {
        if reader.byte().ok() != Some(DUMPED_LIBRARY) {
            return Err(Error::fixed("ERR given type is not a function"));
        }
        let code = reader.string().map_err(|_| FAILED)?;
        let (name, skip) = header(&code)?;
        if new.by_name.contains_key(&name) {
            return Err(Error::about("ERR Library '", &name, "' already exists"));
        }
        let library = create(core, &code, skip)?;
        let collision = new.collision(&library);
        new.link(name, library);
        collision?;
    }
    Ok(())
}

/// Makes room for new libraries, or says what stands in their way.
fn join(core: &mut Core, new: &Libraries, policy: RestorePolicy) -> Result<(), Error> {
    let functions = &mut core.scripts.functions;
    let mut old = Vec::new();
    let mut result = Ok(());
    if policy == RestorePolicy::Flush {
        let names: Vec<Vec<u8>> = functions.all.by_name.keys().cloned().collect();
        old.extend(names.into_iter().filter_map(|n| functions.all.unlink(&n).map(|l| (n, l))));
    }
    for (name, library) in &new.by_name {
        if policy == RestorePolicy::Replace {
            old.extend(functions.all.unlink(name).map(|library| (name.clone(), library)));
        }
        if functions.all.by_name.contains_key(name) {
            result = Err(Error::about("ERR Library ", name, " already exists"));
            break;
        }
        // Others that will be replaced too must not stand in the way yet.
        if policy != RestorePolicy::Replace {
            result = functions.all.collision(library);
        }
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() && policy == RestorePolicy::Replace {
        result = new.by_name.values().try_for_each(|library| functions.all.collision(library));
    }
    for (name, library) in old {
        match result {
            Ok(()) => functions.forget(&library),
            Err(_) => functions.all.link(name, library),
        }
    }
    result
}

impl Functions {
    /// Returns the flags of the function with this name.
    pub(super) fn flags(&self, name: &[u8]) -> Option<ScriptFlags> {
        self.all.functions.get(&name.to_ascii_lowercase()).map(|(_, flags, _)| *flags)
    }
}

fn call(ctx: &mut Ctx<'_>, read_only: bool) -> Result<Reply, Error> {
    let functions = &ctx.core.scripts.functions;
    let found = functions.all.functions.get(&ctx.arg(1).to_ascii_lowercase());
    let Some((id, flags, name)) = found.cloned() else {
        return Err(Error::fixed("ERR Function not found"));
    };
    let given = ctx.argv.len().saturating_sub(3);
    let Some(keys) = number::parse_i64(ctx.arg(2)) else {
        return Err(Error::fixed("ERR Bad number of keys provided"));
    };
    let keys = match usize::try_from(keys) {
        Ok(keys) if keys > given => {
            return Err(Error::fixed("ERR Number of keys can't be greater than number of args"));
        }
        Ok(keys) => keys,
        Err(_) => return Err(Error::fixed("ERR Number of keys can't be negative")),
    };
    let argv = ctx.argv.iter().map(|argument| argument.to_vec()).collect();
    ctx.core.scripts.functions.running = Some((name.clone(), argv));
    let reply = run_chunk(ctx, ChunkRef::Function(id), flags, name.into(), keys, read_only);
    ctx.core.scripts.functions.running = None;
    reply
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "FUNCTION",
        &[
            ("DELETE <library-name>", "Delete a library."),
            ("DUMP", "All libraries as bytes that RESTORE reads."),
            ("FLUSH [ASYNC|SYNC]", "Delete all libraries."),
            ("KILL", "Stop the function that runs."),
            ("LIST [LIBRARYNAME <pattern>] [WITHCODE]", "What libraries there are."),
            ("LOAD [REPLACE] <function-code>", "Take in a library."),
            ("RESTORE <payload> [FLUSH|APPEND|REPLACE]", "Take in what DUMP gave."),
            ("STATS", "What runs, and how many functions there are."),
        ],
    ))
}
