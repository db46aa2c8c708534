//! MIGRATE: moves keys to another server.
//!
//! The engine opens no connections: it writes down what is to be said to the other server, and
//! whoever embeds it says it ([`Engine::on_migrate`]). A key is deleted here only when the other
//! side has answered that it has it.

use std::time::Duration;

use crate::args;
use crate::command::{CommandRow, Ctx, MOVABLE_KEYS, WRITE};
use crate::db::NEVER;
use crate::engine::Engine;
use crate::error::{Error, SYNTAX};
use crate::extra::dump;
use crate::notify::Class;
use crate::{Reply, number};

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] =
    &[CommandRow::new("migrate", -6, WRITE | MOVABLE_KEYS, migrate).keys(3, 3, 1)];

/// Words for another server.
#[derive(Debug)]
pub struct Migration<'a> {
    /// Its name or address.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// Timeout of the connection, and of each piece of the answer.
    pub timeout: Duration,
    /// Commands as clients send them, one after the other.
    pub commands: &'a [u8],
    /// Number of commands: each is answered with one line.
    pub count: usize,
}

/// The outcome of a [`Migration`].
#[derive(Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// No connection could be made.
    Unreachable,
    /// It broke off while the commands were sent: how many arrived is not known.
    Unsent,
    /// The lines that were answered, without their ends; fewer than commands if it broke off.
    Answered(Vec<Vec<u8>>),
}

type Send = dyn Fn(&Migration<'_>) -> MigrationOutcome + std::marker::Send;

/// Callback that sends commands to another server.
#[derive(Default)]
pub(crate) struct Messenger(Option<Box<Send>>);

impl std::fmt::Debug for Messenger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Messenger").field(&self.0.is_some()).finish()
    }
}

impl Engine {
    /// Has `send` called to speak to other servers for MIGRATE. Everybody waits meanwhile, as in
    /// Redis.
    pub fn on_migrate(
        &mut self,
        send: impl Fn(&Migration<'_>) -> MigrationOutcome + std::marker::Send + 'static,
    ) {
        self.core.messenger = Messenger(Some(Box::new(send)));
    }
}

/// The options of MIGRATE.
#[derive(Debug, Default)]
struct Options<'a> {
    copy: bool,
    replace: bool,
    user: Option<&'a [u8]>,
    password: Option<&'a [u8]>,
    keys: Vec<&'a [u8]>,
}

fn options<'a>(ctx: &Ctx<'a>) -> Result<Options<'a>, Error> {
    let mut options = Options { keys: vec![ctx.arg(3)], ..Options::default() };
    let mut words = args::Args::from(ctx.argv, 6);
    while let Some(word) = words.next() {
        match () {
            () if args::is(word, "COPY") => options.copy = true,
            () if args::is(word, "REPLACE") => options.replace = true,
            () if args::is(word, "AUTH") => options.password = Some(words.next().ok_or(SYNTAX)?),
            () if args::is(word, "AUTH2") => {
                options.user = Some(words.next().ok_or(SYNTAX)?);
                options.password = Some(words.next().ok_or(SYNTAX)?);
            }
            () if args::is(word, "KEYS") => {
                if !ctx.arg(3).is_empty() {
                    return Err(Error::fixed(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the \
                         empty string",
                    ));
                }
                options.keys = words.by_ref().collect();
            }
            () => return Err(SYNTAX),
        }
    }
    Ok(options)
}

fn migrate(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let options = options(ctx)?;
    let timeout = args::int(ctx.arg(5))?;
    let db = args::int(ctx.arg(4))?;
    let timeout = u64::try_from(timeout).ok().filter(|ms| *ms > 0).unwrap_or(1000);
    let mut said = EncodedCommands::default();
    match (options.user, options.password) {
        (Some(user), Some(password)) => said.command(&[b"AUTH", user, password]),
        (None, Some(password)) => said.command(&[b"AUTH", password]),
        _ => {}
    }
    said.command(&[b"SELECT", &number::format_i64(db)]);
    let before = said.count;
    let keys = add_keys(ctx, &options, &mut said);
    if keys.is_empty() {
        return Ok(Reply::status("NOKEY"));
    }
    let answered = send(ctx, timeout, &said)?;
    let refused = answered.iter().find(|line| line.starts_with(b"-"));
    // What the other side has is deleted here, whatever became of the rest.
    let greeted = answered.iter().take(before).all(|line| !line.starts_with(b"-"));
    let mut moved: Vec<&[u8]> = Vec::new();
    if greeted && !options.copy {
        for (key, line) in keys.iter().zip(answered.iter().skip(before)) {
            if !line.starts_with(b"-") && ctx.remove(key) {
                ctx.changed(Class::Generic, "del", key);
                moved.push(key);
            }
        }
    }
    match moved.is_empty() {
        true => ctx.effect(&[]),
        false => ctx.effect(&[&[&b"DEL"[..]], &moved[..]].concat()),
    }
    match refused {
        Some(line) => {
            let reason = line.get(1..).unwrap_or_default();
            Err(Error::new([b"ERR Target instance replied with error: ", reason].concat()))
        }
        None if answered.len() < said.count => {
            Err(Error::fixed("IOERR error or timeout reading to target instance"))
        }
        None => Ok(Reply::Ok),
    }
}

/// Commands as clients send them.
#[derive(Debug, Default)]
struct EncodedCommands {
    bytes: Vec<u8>,
    count: usize,
}

impl EncodedCommands {
    fn command(&mut self, argv: &[&[u8]]) {
        self.count += 1;
        self.bytes.extend_from_slice(format!("*{}\r\n", argv.len()).as_bytes());
        for word in argv {
            self.bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }
}

/// Adds what makes each key on the other side; the keys that are there.
fn add_keys<'a>(
    ctx: &mut Ctx<'_>,
    options: &Options<'a>,
    said: &mut EncodedCommands,
) -> Vec<&'a [u8]> {
    let now_ms = ctx.now.ms();
    let mut found = Vec::new();
    for key in &options.keys {
        let Some(entry) = ctx.entry(key) else { continue };
        let ttl = match entry.expires_at {
            NEVER => 0,
            at => (at - now_ms).max(1),
        };
        let (ttl, payload) = (number::format_i64(ttl), dump::payload(&entry.value));
        let mut argv: Vec<&[u8]> = vec![b"RESTORE", key, &ttl, &payload];
        if options.replace {
            argv.push(b"REPLACE");
        }
        said.command(&argv);
        found.push(*key);
    }
    found
}

fn send(ctx: &Ctx<'_>, timeout_ms: u64, said: &EncodedCommands) -> Result<Vec<Vec<u8>>, Error> {
    const UNREACHABLE: Error = Error::fixed("IOERR error or timeout connecting to the client");
    let host = std::str::from_utf8(ctx.arg(1)).map_err(|_| UNREACHABLE)?;
    let port = number::parse_i64(ctx.arg(2)).and_then(|port| u16::try_from(port).ok());
    let migration = Migration {
        host,
        port: port.ok_or(UNREACHABLE)?,
        timeout: Duration::from_millis(timeout_ms),
        commands: &said.bytes,
        count: said.count,
    };
    let messenger = ctx.core.messenger.0.as_ref();
    match messenger.map_or(MigrationOutcome::Unreachable, |send| send(&migration)) {
        MigrationOutcome::Unreachable => Err(UNREACHABLE),
        MigrationOutcome::Unsent => {
            Err(Error::fixed("IOERR error or timeout writing to target instance"))
        }
        MigrationOutcome::Answered(lines) => Ok(lines),
    }
}
