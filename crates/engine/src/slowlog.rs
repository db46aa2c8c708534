//! SLOWLOG: commands that took long, the latest first.
//!
//! The engine has no clock, so whoever embeds it measures and reports ([`Engine::took`]).

use std::collections::VecDeque;

use crate::command::{self, ADMIN, Command, Ctx, LOADING, STALE};
use crate::engine::Engine;
use crate::error::Error;
use crate::{Now, Reply, SessionId, number};

/// Arguments of an entry are cut after this many, and each after so many bytes.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_MAX: usize = 128;

/// The log.
#[derive(Debug)]
pub(crate) struct Slowlog {
    entries: VecDeque<Slow>,
    next_id: i64,
    most: usize,
    /// Quicker commands are not noted; negative for none at all.
    pub(crate) slower_than_us: i64,
}

#[derive(Debug)]
struct Slow {
    id: i64,
    at_s: i64,
    took_us: i64,
    argv: Vec<Vec<u8>>,
    address: String,
    name: Vec<u8>,
}

impl Default for Slowlog {
    fn default() -> Slowlog {
        Slowlog { entries: VecDeque::new(), next_id: 0, most: 128, slower_than_us: 10_000 }
    }
}

impl Slowlog {
    /// Keeps no more than so many entries.
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most;
        self.entries.truncate(most);
    }
}

impl Engine {
    /// Tells how long a command took, for SLOWLOG. Cheap if it was quick.
    pub fn took(&mut self, now: Now, id: SessionId, argv: &[&[u8]], took_us: i64) {
        let log = &mut self.core.slowlog;
        if log.slower_than_us < 0 || took_us < log.slower_than_us || log.most == 0 {
            return;
        }
        let session = self.core.sessions.get(&id).and_then(Option::as_ref);
        let skipped = command::find_with_subcommand(argv)
            .is_ok_and(|command| command.flags & command::SKIP_SLOWLOG != 0);
        if skipped {
            return;
        }
        log.entries.push_front(Slow {
            id: log.next_id,
            at_s: now.ms() / 1000,
            took_us,
            argv: shorten(argv),
            address: session.map(|s| s.address.clone()).unwrap_or_default(),
            name: session.map(|s| s.name.clone()).unwrap_or_default(),
        });
        log.next_id += 1;
        log.entries.truncate(log.most);
    }
}

fn shorten(argv: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for (n, argument) in argv.iter().enumerate() {
        if n + 1 == ARGUMENTS_MAX && argv.len() > ARGUMENTS_MAX {
            let more = argv.len() - ARGUMENTS_MAX + 1;
            kept.push(format!("... ({more} more arguments)").into_bytes());
            break;
        }
        match argument.get(..ARGUMENT_MAX).filter(|_| argument.len() > ARGUMENT_MAX) {
            None => kept.push(argument.to_vec()),
            Some(head) => {
                let mut head = head.to_vec();
                let more = argument.len() - ARGUMENT_MAX;
                head.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
                kept.push(head);
            }
        }
    }
    kept
}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[Command::new("slowlog", -2, 0, command::container)
    .subcommands(&[
        Command::new("get", -2, ADMIN | LOADING | STALE, get),
        Command::new("len", 2, ADMIN | LOADING | STALE, |ctx| {
            Ok(ctx.core.slowlog.entries.len().into())
        }),
        Command::new("reset", 2, ADMIN | LOADING | STALE, |ctx| {
            ctx.core.slowlog.entries.clear();
            Ok(Reply::Ok)
        }),
        Command::new("help", 2, LOADING | STALE, help),
    ])];

fn get(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let most = match ctx.argv {
        [_, _] => 10,
        [_, _, count] => {
            let count = number::parse_i64(count)
                .filter(|count| *count >= -1)
                .ok_or(Error::fixed("ERR count should be greater than or equal to -1"))?;
            usize::try_from(count).unwrap_or(usize::MAX)
        }
        _ => return Err(Error::arity("slowlog|get")),
    };
    let entries = ctx.core.slowlog.entries.iter().take(most).map(|slow| {
        Reply::Array(vec![
            Reply::Int(slow.id),
            Reply::Int(slow.at_s),
            Reply::Int(slow.took_us),
            Reply::bulks(&slow.argv),
            Reply::bulk(&slow.address),
            Reply::bulk(&slow.name),
        ])
    });
    Ok(Reply::Array(entries.collect()))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "SLOWLOG",
        &[
            ("GET [<count>]", "The latest entries: number, time, microseconds, command, client."),
            ("LEN", "How many entries there are."),
            ("RESET", "Forget them."),
        ],
    ))
}
