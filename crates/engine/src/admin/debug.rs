//! DEBUG: the few doors that tests of Redis knock at. Off unless `enable-debug-command` is on.

use crate::command::{self, ADMIN, CommandRow, Ctx, LOADING, NOSCRIPT, PROTECTED, STALE};
use crate::error::{Error, NO_SUCH_KEY};
use crate::{Reply, args, scan};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] =
    &[CommandRow::new("debug", -2, ADMIN | NOSCRIPT | LOADING | STALE | PROTECTED, debug)];

fn debug(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let word = ctx.arg(1);
    let argument = ctx.arg(2);
    match (ctx.argv.len(), ()) {
        (3, ()) if args::is(word, "SET-ACTIVE-EXPIRE") => {
            ctx.core.sweep_stopped = argument == b"0";
            Ok(Reply::Ok)
        }
        (3, ()) if args::is(word, "OBJECT") => object(ctx, argument),
        (4, ()) if args::is(word, "STRINGMATCH-LEN") => {
            let length = usize::try_from(args::int(argument)?).unwrap_or(0);
            let text = vec![b'a'; length.min(1 << 24)];
            Ok(scan::matches(ctx.arg(3), &text, false).into())
        }
        (3, ()) if args::is(word, "PROTOCOL") => protocol(argument),
        // These change how Redis is built inside; here there is nothing to change.
        _ if [
            "QUICKLIST-PACKED-THRESHOLD",
            "LISTPACK",
            "CHANGE-REPL-ID",
            "JMAP",
            "SET-DISABLE-DENY-SCRIPTS",
            "REPLICATE",
            "RELOAD",
            "LOADAOF",
            "HTSTATS-KEY",
        ]
        .iter()
        .any(|known| args::is(word, known)) =>
        {
            Ok(Reply::Ok)
        }
        (2, ()) if args::is(word, "HELP") => Ok(command::help(
            "DEBUG",
            &[
                ("OBJECT <key>", "How a value is held in memory."),
                ("PROTOCOL <type>", "A reply of each type of the protocol."),
                ("SET-ACTIVE-EXPIRE <0|1>", "Let keys die only when they are looked at."),
                ("STRINGMATCH-LEN <len> <pattern>", "Match a pattern against many letters."),
            ],
        )),
        _ => Err(Error::subcommand(ctx.argv)),
    }
}

fn object(ctx: &mut Ctx<'_>, key: &[u8]) -> Result<Reply, Error> {
    let now_s = ctx.now.ms() / 1000;
    let entry = ctx.entry_untouched(key).ok_or(NO_SUCH_KEY)?;
    let line = format!(
        "Value at:0x0 refcount:1 encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{}",
        entry.value.encoding(),
        entry.value.heap_size(),
        entry.used_at,
        now_s.saturating_sub(i64::from(entry.used_at)),
    );
    Ok(Reply::Status(line.into_bytes().into()))
}

/// A reply of each type, for clients to try their parsers on.
fn protocol(kind: &[u8]) -> Result<Reply, Error> {
    let numbers = |n: i64| (0..n).map(Reply::Int).collect::<Vec<_>>();
    Ok(match kind {
        b"string" => Reply::bulk("Hello World"),
        b"integer" => Reply::Int(12345),
        b"double" => Reply::Double(3141.0 / 1000.0),
        b"null" => Reply::Nil,
        b"array" => Reply::Array(numbers(3)),
        b"set" => Reply::Set(numbers(3)),
        b"map" => Reply::Map((0..3).map(|n| (Reply::Int(n), Reply::Bool(n == 1))).collect()),
        b"bignum" => Reply::BigNumber(b"1234567999999999999999999999999999999".to_vec()),
        b"true" => Reply::Bool(true),
        b"false" => Reply::Bool(false),
        b"verbatim" => Reply::Verbatim(*b"txt", b"This is a verbatim\nstring".to_vec()),
        _ => {
            return Err(Error::fixed(
                "ERR Wrong protocol type name. Please use one of the following: \
             string|integer|double|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    })
}
