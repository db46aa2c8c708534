//! SLOWLOG: commands that took long, the latest first.
//!
//! The engine has no clock, so the embedding program measures and reports ([`Engine::took`]).

use std::collections::VecDeque;
use std::time::Duration;

use crate::command::{self, ADMIN, CommandRow, CommandSpec, Ctx, LOADING, STALE};
use crate::engine::{Core, Engine};
use crate::error::Error;
use crate::session::ClientSession;
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

    fn push(&mut self, slow: Slow) {
        self.entries.push_front(Slow { id: self.next_id, ..slow });
        self.next_id += 1;
        self.entries.truncate(self.most);
    }
}

impl Engine {
    /// Tells how long the last command of a session took, for SLOWLOG, LATENCY and INFO. If it
    /// waits now, that is noted when it is served.
    pub fn took(&mut self, now: Now, id: SessionId, argv: &[&[u8]], took: Duration) {
        let Some(command) = self.core.called.take() else { return };
        let Some(Some(session)) = self.core.sessions.get_mut(&id) else { return };
        match &mut session.blocked {
            Some(blocked) => {
                blocked.took = took;
                self.core.stats.of_mut(command).total += took;
            }
            None => {
                if self.core.note_time(now, command, took)
                    && let Some(session) = self.core.session(id)
                {
                    let slow = Slow::of(now, session, argv, took);
                    self.core.slowlog.push(slow);
                }
            }
        }
    }
}

impl Core {
    /// Returns the time, if the embedding program provided a clock.
    pub(crate) fn clock(&self) -> Option<Duration> {
        self.config.script_clock.map(|clock| clock())
    }

    /// A command of a session is over and took so long.
    pub(crate) fn time_in_session(
        &mut self,
        now: Now,
        session: &ClientSession,
        command: &'static CommandSpec,
        argv: &[&[u8]],
        took: Duration,
    ) {
        if self.note_time(now, command, took) {
            self.slowlog.push(Slow::of(now, session, argv, took));
        }
    }

    /// Counts how long a command took. Is it one for the log?
    fn note_time(&mut self, now: Now, command: &'static CommandSpec, took: Duration) -> bool {
        let stats = self.stats.of_mut(command);
        stats.total += took;
        if !self.latency.untracked {
            stats.took.add(took);
        }
        if self.latency.threshold_ms > 0 {
            let fast = command.flags & command::FAST != 0;
            self.latency.note(now, if fast { "fast-command" } else { "command" }, took);
        }
        let log = &self.slowlog;
        log.slower_than_us >= 0
            && microseconds(took) >= log.slower_than_us
            && log.most > 0
            && command.flags & command::SKIP_SLOWLOG == 0
    }
}

fn microseconds(took: Duration) -> i64 {
    i64::try_from(took.as_micros()).unwrap_or(i64::MAX)
}

impl Slow {
    fn of(now: Now, session: &ClientSession, argv: &[&[u8]], took: Duration) -> Slow {
        Slow {
            id: 0,
            at_s: now.ms() / 1000,
            took_us: microseconds(took),
            argv: shorten(&crate::admin::acl::shown(argv)),
            address: session.address.clone(),
            name: session.name.clone(),
        }
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
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("slowlog", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("get", -2, ADMIN | LOADING | STALE, get),
        CommandRow::new("len", 2, ADMIN | LOADING | STALE, |ctx| {
            Ok(ctx.core.slowlog.entries.len().into())
        }),
        CommandRow::new("reset", 2, ADMIN | LOADING | STALE, |ctx| {
            ctx.core.slowlog.entries.clear();
            Ok(Reply::Ok)
        }),
        CommandRow::new("help", 2, LOADING | STALE, help),
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
