//! COMMAND: what commands there are, how they are called, where their keys stand.

mod docs;
mod key_flags;

pub(crate) use self::key_flags::{Words, by_arguments as words_by_arguments, of as words_of};
use crate::command::{self, CommandRow, CommandSpec, Ctx, LOADING, STALE};
use crate::error::{Error, SYNTAX};
use crate::{Reply, args, keys, scan};

const FLAGS: u32 = LOADING | STALE;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("command", -1, FLAGS, command_all)
    .subcommands(&[
        CommandRow::new("count", 2, FLAGS, |_| Ok(command::all().count().into())),
        CommandRow::new("list", -2, FLAGS, list),
        CommandRow::new("info", -2, FLAGS, info),
        CommandRow::new("docs", -2, FLAGS, docs),
        CommandRow::new("getkeys", -4, FLAGS, getkeys),
        CommandRow::new("getkeysandflags", -4, FLAGS, getkeysandflags),
        CommandRow::new("help", 2, FLAGS, help),
    ])];

/// Flags that are shown, in the order in which Redis names them.
const NAMES: &[(u32, &str)] = &[
    (command::WRITE, "write"),
    (command::READONLY, "readonly"),
    (command::DENYOOM, "denyoom"),
    (command::ADMIN, "admin"),
    (command::PUBSUB, "pubsub"),
    (command::NOSCRIPT, "noscript"),
    (command::BLOCKING, "blocking"),
    (command::LOADING, "loading"),
    (command::STALE, "stale"),
    (command::SKIP_MONITOR, "skip_monitor"),
    (command::SKIP_SLOWLOG, "skip_slowlog"),
    (command::ASKING, "asking"),
    (command::FAST, "fast"),
    (command::NO_AUTH, "no_auth"),
    (command::NO_MANDATORY_KEYS, "no_mandatory_keys"),
    (command::MOVABLE_KEYS, "movablekeys"),
    (command::NO_ASYNC_LOADING, "no_async_loading"),
    (command::NO_MULTI, "no_multi"),
    (command::ALLOW_BUSY, "allow_busy"),
];

fn command_all(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Array(command::all().map(|command| describe(command, None)).collect()))
}

/// One command as COMMAND INFO shows it.
fn describe(command: &'static CommandSpec, container: Option<&CommandSpec>) -> Reply {
    let name = match container {
        Some(container) => format!("{}|{}", container.name, command.name),
        None => command.name.to_owned(),
    };
    let flags = NAMES.iter().filter(|(bit, _)| command.flags & bit != 0);
    let (first, last, step) = command.keys;
    let doc = docs::of(&name);
    let categories = categories(&name, command).into_iter();
    let categories = categories.map(|name| Reply::Status(format!("@{name}").into_bytes().into()));
    Reply::Array(vec![
        Reply::bulk(&name),
        Reply::Int(i64::from(command.arity)),
        Reply::Set(flags.map(|(_, name)| Reply::status(name)).collect()),
        Reply::Int(i64::from(first)),
        Reply::Int(i64::from(last)),
        Reply::Int(i64::from(step)),
        Reply::Set(categories.collect()),
        doc.map_or_else(|| Reply::Set(Vec::new()), docs::Doc::tips),
        doc.map_or_else(|| Reply::Set(Vec::new()), docs::Doc::key_specs),
        match command.subcommands() {
            [] => Reply::Set(Vec::new()),
            all => Reply::Array(all.iter().map(|sub| describe(sub, Some(command))).collect()),
        },
    ])
}

/// The categories that there are, in the order in which Redis names them.
pub(crate) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// The categories of a command: those that follow from its flags, and those it is said to have.
pub(crate) fn categories(name: &str, command: &CommandSpec) -> Vec<&'static str> {
    let has = |bit: u32| command.flags & bit != 0;
    let said = docs::of(name).map_or(&[][..], |doc| &doc.categories);
    let belongs = |category: &&&str| match **category {
        "write" => has(command::WRITE),
        "read" => has(command::READONLY) && !said.contains(&"scripting"),
        "admin" => has(command::ADMIN) || said.contains(&"admin"),
        "dangerous" => has(command::ADMIN) || said.contains(&"dangerous"),
        "pubsub" => has(command::PUBSUB),
        "blocking" => has(command::BLOCKING),
        "fast" => has(command::FAST),
        "slow" => !has(command::FAST),
        other => said.contains(&other),
    };
    CATEGORIES.iter().filter(belongs).copied().collect()
}

/// A command by its full name, `config|get`, with its container if it has one.
pub(crate) fn find(name: &[u8]) -> Option<(&'static CommandSpec, Option<&'static CommandSpec>)> {
    let mut parts = name.split(|b| *b == b'|');
    let container = command::find(parts.next()?)?;
    let Some(sub) = parts.next() else { return Some((container, None)) };
    let sub =
        container.subcommands().iter().find(|c| sub.eq_ignore_ascii_case(c.name.as_bytes()))?;
    parts.next().is_none().then_some((sub, Some(container)))
}

fn info(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let names = ctx.argv.get(2..).unwrap_or_default();
    if names.is_empty() {
        return command_all(ctx);
    }
    let one = |name: &&[u8]| match find(name) {
        Some((command, container)) => describe(command, container),
        None => Reply::Nil,
    };
    Ok(Reply::Array(names.iter().map(one).collect()))
}

fn docs(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let names = ctx.argv.get(2..).unwrap_or_default();
    let found: Vec<_> = match names {
        [] => command::all().map(|command| (command, None)).collect(),
        names => names.iter().filter_map(|name| find(name)).collect(),
    };
    let pairs = found.into_iter().map(|(command, container)| document(command, container));
    Ok(Reply::Map(pairs.collect()))
}

fn document(command: &'static CommandSpec, container: Option<&CommandSpec>) -> (Reply, Reply) {
    let name = match container {
        Some(container) => format!("{}|{}", container.name, command.name),
        None => command.name.to_owned(),
    };
    let mut parts = docs::of(&name).map(docs::Doc::parts).unwrap_or_default();
    if !command.parts.is_empty() {
        let subcommands = command.subcommands().iter().map(|sub| document(sub, Some(command)));
        parts.push((Reply::bulk("subcommands"), Reply::Map(subcommands.collect())));
    }
    (Reply::bulk(name), Reply::Map(parts))
}

fn list(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let names: Vec<String> = match ctx.argv {
        [_, _] => command::commands().iter().map(|command| command.full_name.clone()).collect(),
        [_, _, filter, kind, value] if args::is(filter, "FILTERBY") => {
            let all =
                command::commands().iter().map(|command| (command.full_name.clone(), command));
            match () {
                () if args::is(kind, "MODULE") => Vec::new(),
                () if args::is(kind, "PATTERN") => all
                    .filter(|(name, _)| scan::matches(value, name.as_bytes(), true))
                    .map(|(name, _)| name)
                    .collect(),
                () if args::is(kind, "ACLCAT") => all
                    .filter(|(name, command)| {
                        categories(name, command).iter().any(|c| c.as_bytes() == *value)
                    })
                    .map(|(name, _)| name)
                    .collect(),
                () => return Err(SYNTAX),
            }
        }
        _ => return Err(SYNTAX),
    };
    Ok(Reply::bulks(names))
}

fn getkeys(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let argv = ctx.argv.get(2..).unwrap_or_default();
    let (_, positions) = find_keys(argv)?;
    Ok(Reply::bulks(positions.iter().filter_map(|at| argv.get(*at))))
}

fn getkeysandflags(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let argv = ctx.argv.get(2..).unwrap_or_default();
    let (command, positions) = find_keys(argv)?;
    let name = &command.full_name;
    let words = words_by_arguments(name, argv).unwrap_or_else(|| words_of(name));
    let keys = positions.iter().filter_map(|at| argv.get(*at)).enumerate().map(|(n, key)| {
        let words = words.get(n).or(words.last()).copied().unwrap_or_default();
        let words = words.iter().map(|word| Reply::status(word)).collect();
        Reply::Array(vec![Reply::bulk(key), Reply::Set(words)])
    });
    Ok(Reply::Array(keys.collect()))
}

/// The command in these arguments and where its keys are.
fn find_keys(argv: &[&[u8]]) -> Result<(&'static CommandSpec, keys::Positions), Error> {
    let Ok(command) = command::find_with_subcommand(argv) else {
        return Err(Error::fixed("ERR Invalid command specified"));
    };
    if command.keys.0 == 0 && command.flags & command::MOVABLE_KEYS == 0 {
        return Err(Error::fixed("ERR The command has no key arguments"));
    }
    if !command.arity_fits(argv.len()) {
        return Err(Error::fixed("ERR Invalid number of arguments specified for command"));
    }
    let positions = keys::positions(command, argv).unwrap_or_default();
    if positions.is_empty() && command.flags & command::NO_MANDATORY_KEYS == 0 {
        return Err(Error::fixed("ERR Invalid arguments specified for command"));
    }
    Ok((command, positions))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "COMMAND",
        &[
            ("(no subcommand)", "All commands, as INFO shows them."),
            ("COUNT", "How many commands there are."),
            ("DOCS [<command-name> ...]", "What commands are for."),
            ("GETKEYS <full-command>", "The keys in a command."),
            ("GETKEYSANDFLAGS <full-command>", "The same with what the command does to each."),
            ("INFO [<command-name> ...]", "How commands are called."),
            ("LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]", "Names of commands."),
        ],
    ))
}
