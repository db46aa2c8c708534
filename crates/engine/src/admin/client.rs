//! CLIENT: who is connected, names, kills, pauses, replies on and off.

use crate::blocked::UnblockMode;
use crate::command::{self, ADMIN, CommandRow, Ctx, LOADING, NOSCRIPT, STALE};
use crate::engine::Core;
use crate::error::{Error, SYNTAX};
use crate::session::{Buffers, ClientSession, Replies};
use crate::{Reply, SessionId, args, extra::tracking, number};

const FLAGS: u32 = NOSCRIPT | LOADING | STALE;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("client", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("id", 2, FLAGS, id),
        CommandRow::new("info", 2, FLAGS, info),
        CommandRow::new("list", -2, FLAGS | ADMIN, list),
        CommandRow::new("getname", 2, FLAGS, getname),
        CommandRow::new("setname", 3, FLAGS, setname),
        CommandRow::new("setinfo", 4, FLAGS, setinfo),
        CommandRow::new("kill", -3, FLAGS | ADMIN, kill),
        CommandRow::new("pause", -3, FLAGS | ADMIN, pause),
        CommandRow::new("unpause", 2, FLAGS | ADMIN, unpause),
        CommandRow::new("reply", 3, FLAGS, reply),
        CommandRow::new("unblock", -3, FLAGS | ADMIN, unblock),
        CommandRow::new("no-evict", 3, FLAGS | ADMIN, no_evict),
        CommandRow::new("no-touch", 3, FLAGS, no_touch),
        CommandRow::new("capa", -3, FLAGS, |_| Ok(Reply::Ok)),
        CommandRow::new("getredir", 2, FLAGS, tracking::getredir),
        CommandRow::new("tracking", -3, FLAGS, tracking::tracking),
        CommandRow::new("trackinginfo", 2, FLAGS, tracking::trackinginfo),
        CommandRow::new("caching", 3, FLAGS, tracking::caching),
        CommandRow::new("help", 2, LOADING | STALE, help),
    ])];

/// Clients wait until then with what they send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientPause {
    pub(crate) until_ms: i64,
    pub(crate) writes_only: bool,
}

impl Core {
    /// Returns the time until which CLIENT PAUSE holds back a command with these flags, if it does.
    pub(crate) fn paused_until(&mut self, flags: u32, now_ms: i64) -> Option<i64> {
        let pause = self.pause?;
        if pause.until_ms <= now_ms {
            self.pause = None;
            return None;
        }
        let held = !pause.writes_only || flags & (command::WRITE | command::MAY_REPLICATE) != 0;
        held.then_some(pause.until_ms)
    }

    /// Do clients have to wait?
    pub(crate) fn is_paused(&self, now: crate::Now) -> bool {
        self.pause.is_some_and(|pause| pause.until_ms > now.ms())
    }

    /// A session by its number, unless it is the one that runs the command.
    fn other(&self, id: SessionId) -> Option<&ClientSession> {
        self.sessions.get(&id)?.as_deref()
    }

    /// Ends another session at once; its connection is to be closed.
    pub(crate) fn kill(&mut self, id: SessionId) {
        self.end_session(id);
        self.output.closing.push(id);
    }
}

fn id(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::Int(i64::try_from(ctx.session.id.0).unwrap_or(i64::MAX)))
}

fn info(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let line = describe(ctx, ctx.session);
    Ok(Reply::Verbatim(*b"txt", line))
}

/// All clients, this one included, by number. What the process opened for itself is none.
fn all<'c>(ctx: &'c Ctx<'_>) -> Vec<&'c ClientSession> {
    let others = ctx.core.sessions.values().filter_map(|session| session.as_deref());
    let others = others.filter(|session| !session.trusted);
    let mut all: Vec<&ClientSession> = others.chain([&*ctx.session]).collect();
    all.sort_unstable_by_key(|session| session.id);
    all
}

fn list(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut lines = Vec::new();
    match ctx.argv {
        [_, _] => all(ctx).iter().for_each(|session| lines.extend(describe(ctx, session))),
        [_, _, word, kind] if args::is(word, "TYPE") => {
            let kind = ClientKind::parse(kind)?;
            for session in all(ctx).iter().filter(|session| ClientKind::of(session) == kind) {
                lines.extend(describe(ctx, session));
            }
        }
        [_, _, word, ids @ ..] if args::is(word, "ID") && !ids.is_empty() => {
            for id in ids {
                let id = number::parse_i64(id).ok_or(Error::fixed("ERR Invalid client ID"))?;
                let found = all(ctx).into_iter().find(|s| i64::try_from(s.id.0) == Ok(id));
                lines.extend(found.map(|session| describe(ctx, session)).unwrap_or_default());
            }
        }
        _ => return Err(SYNTAX),
    }
    Ok(Reply::Verbatim(*b"txt", lines))
}

/// The kinds of client that LIST and KILL know; only two exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    Normal,
    Pubsub,
    Master,
    Replica,
}

impl ClientKind {
    fn parse(word: &[u8]) -> Result<ClientKind, Error> {
        match () {
            () if args::is(word, "NORMAL") => Ok(ClientKind::Normal),
            () if args::is(word, "PUBSUB") => Ok(ClientKind::Pubsub),
            () if args::is(word, "MASTER") => Ok(ClientKind::Master),
            () if args::is(word, "REPLICA") || args::is(word, "SLAVE") => Ok(ClientKind::Replica),
            () => Err(Error::about("ERR Unknown client type '", word, "'")),
        }
    }

    fn of(session: &ClientSession) -> ClientKind {
        if session.subscribed() { ClientKind::Pubsub } else { ClientKind::Normal }
    }
}

fn local_address(ctx: &Ctx<'_>) -> String {
    format!("127.0.0.1:{}", ctx.core.config.server.port)
}

/// Bytes of a command as a client sends it.
fn sent_bytes(argv: &[&[u8]]) -> usize {
    let line = |n: usize| 3 + n.checked_ilog10().unwrap_or(0) as usize + 1;
    line(argv.len()) + argv.iter().map(|word| line(word.len()) + word.len() + 2).sum::<usize>()
}

/// A session as one line of CLIENT LIST.
pub(crate) fn describe(ctx: &Ctx<'_>, session: &ClientSession) -> Vec<u8> {
    let mut flags = String::new();
    let mut mark = |on: bool, letter: char| {
        if on {
            flags.push(letter);
        }
    };
    mark(ctx.core.monitors.contains(&session.id), 'O');
    mark(session.subscribed(), 'P');
    mark(session.multi.is_some(), 'x');
    mark(session.blocked.is_some(), 'b');
    flags.push_str(ctx.core.tracking.letters(session.id));
    let mut mark = |on: bool, letter: char| {
        if on {
            flags.push(letter);
        }
    };
    mark(ctx.core.cas_broken.contains(&session.id), 'd');
    mark(session.closing, 'c');
    mark(session.no_evict, 'e');
    mark(session.no_touch, 'T');
    if flags.is_empty() {
        flags.push('N');
    }
    let now_ms = ctx.now.ms();
    let seconds = |since: i64| now_ms.saturating_sub(since).max(0) / 1000;
    let queued = session.multi.as_ref().map_or(-1, |m| i64::try_from(m.queue.len()).unwrap_or(0));
    let s = &session.subscriptions;
    let Buffers { unread, room, unsent } = session.buffers;
    let own = if session.id == ctx.session.id { sent_bytes(ctx.argv) } else { 0 };
    let (unread, room) = (unread.max(own), room.saturating_sub(own.saturating_sub(unread)));
    let total = 1024 + unread + room + unsent;
    let mut line = format!(
        "id={} addr={} laddr={} fd=0 name=",
        session.id.0,
        session.address,
        local_address(ctx)
    )
    .into_bytes();
    line.extend_from_slice(&session.name);
    line.extend_from_slice(
        format!(
            " age={} idle={} flags={flags} db={} sub={} psub={} ssub={} multi={queued} \
             qbuf={unread} qbuf-free={room} argv-mem=0 multi-mem=0 rbs=1024 rbp=0 obl=0 oll=0 \
             omem={unsent} tot-mem={total} \
             events=r cmd={} user=",
            seconds(session.created_ms),
            seconds(session.last_ms),
            session.db,
            s.channels.len(),
            s.patterns.len(),
            s.shards.len(),
            session
                .last_command
                .map_or_else(|| "NULL".to_owned(), |command| command.full_name.clone()),
        )
        .as_bytes(),
    );
    line.extend_from_slice(session.user.as_ref().map_or(&b"(superuser)"[..], |user| user.name()));
    let redirect = ctx.core.tracking.redirect(session.id);
    line.extend_from_slice(format!(" redir={redirect} resp={}", session.resp).as_bytes());
    for (name, value) in [("lib-name", &session.lib_name), ("lib-ver", &session.lib_version)] {
        line.extend_from_slice(format!(" {name}=").as_bytes());
        line.extend_from_slice(value);
    }
    line.push(b'\n');
    line
}

fn getname(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = &ctx.session.name;
    Ok(if name.is_empty() { Reply::Nil } else { Reply::bulk(name) })
}

fn setname(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = ctx.arg(2);
    set_name(ctx, name)?;
    Ok(Reply::Ok)
}

/// Names the session; printable ASCII without spaces only.
pub(crate) fn set_name(ctx: &mut Ctx<'_>, name: &[u8]) -> Result<(), Error> {
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(Error::fixed(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    ctx.session.name = name.to_vec();
    Ok(())
}

/// Redis has this from 7.2 on; clients send it at connect, and CLIENT LIST shows it.
fn setinfo(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (attribute, value) = (ctx.arg(2), ctx.arg(3));
    if !args::is(attribute, "LIB-NAME") && !args::is(attribute, "LIB-VER") {
        return Err(Error::about("ERR Unrecognized option '", attribute, "'"));
    }
    if !value.iter().all(u8::is_ascii_graphic) {
        let name = String::from_utf8_lossy(attribute).to_lowercase();
        return Err(Error::new(format!(
            "ERR {name} cannot contain spaces, newlines or special characters."
        )));
    }
    match args::is(attribute, "LIB-NAME") {
        true => ctx.session.lib_name = value.to_vec(),
        false => ctx.session.lib_version = value.to_vec(),
    }
    Ok(Reply::Ok)
}

/// Filter of CLIENT KILL.
#[derive(Debug)]
struct KillFilter<'a> {
    id: Option<i64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    kind: Option<ClientKind>,
    user: Option<Vec<u8>>,
    /// Only connections at least so many seconds old.
    age_seconds: Option<i64>,
    skip_me: bool,
}

fn kill(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut victims = KillFilter {
        id: None,
        address: None,
        local: None,
        kind: None,
        user: None,
        age_seconds: None,
        skip_me: true,
    };
    let old_style = ctx.argv.len() == 3;
    if old_style {
        victims.address = Some(ctx.arg(2));
        victims.skip_me = false;
    } else {
        read_victims(ctx, &mut victims)?;
    }
    let (own, now_ms) = (ctx.session.id, ctx.now.ms());
    let chosen: Vec<SessionId> = all(ctx)
        .into_iter()
        .filter(|session| {
            victims.id.is_none_or(|id| i64::try_from(session.id.0) == Ok(id))
                && victims.address.is_none_or(|a| a == session.address.as_bytes())
                && victims.local.is_none_or(|a| a == local_address(ctx).as_bytes())
                && victims.kind.is_none_or(|kind| kind == ClientKind::of(session))
                && victims.user.as_ref().is_none_or(|name| {
                    session.user.as_ref().is_some_and(|user| user.name() == name)
                })
                && victims.age_seconds.is_none_or(|seconds| {
                    now_ms.saturating_sub(session.created_ms) / 1000 >= seconds
                })
                && !(session.id == own && victims.skip_me)
                && !session.trusted
        })
        .map(|session| session.id)
        .collect();
    for id in &chosen {
        if *id == own {
            ctx.close();
        } else {
            ctx.core.kill(*id);
        }
    }
    match (old_style, chosen.is_empty()) {
        (true, true) => Err(Error::fixed("ERR No such client")),
        (true, false) => Ok(Reply::Ok),
        (false, _) => Ok(chosen.len().into()),
    }
}

fn read_victims<'a>(ctx: &Ctx<'a>, victims: &mut KillFilter<'a>) -> Result<(), Error> {
    for pair in ctx.argv.get(2..).unwrap_or_default().chunks(2) {
        let [word, value] = pair else { return Err(SYNTAX) };
        match () {
            () if args::is(word, "ID") => {
                let id = number::parse_i64(value).filter(|id| *id > 0);
                victims.id =
                    Some(id.ok_or(Error::fixed("ERR client-id should be greater than 0"))?);
            }
            () if args::is(word, "TYPE") => victims.kind = Some(ClientKind::parse(value)?),
            () if args::is(word, "ADDR") => victims.address = Some(value),
            () if args::is(word, "LADDR") => victims.local = Some(value),
            () if args::is(word, "MAXAGE") => {
                let no_number = Error::fixed("ERR maxage is not an integer or out of range");
                let age = number::parse_i64(value).ok_or(no_number)?;
                if age <= 0 {
                    return Err(Error::fixed("ERR maxage should be greater than 0"));
                }
                victims.age_seconds = Some(age);
            }
            () if args::is(word, "USER") => {
                let user = ctx.core.acl.user(value);
                victims.user = Some(
                    user.ok_or_else(|| Error::about("ERR No such user '", value, "'"))?
                        .name()
                        .to_vec(),
                );
            }
            () if args::is(word, "SKIPME") && args::is(value, "YES") => victims.skip_me = true,
            () if args::is(word, "SKIPME") && args::is(value, "NO") => victims.skip_me = false,
            () => return Err(SYNTAX),
        }
    }
    Ok(())
}

fn pause(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let writes_only = match ctx.argv {
        [_, _, _] => false,
        [_, _, _, word] if args::is(word, "WRITE") => true,
        [_, _, _, word] if args::is(word, "ALL") => false,
        [_, _, _, _] => return Err(Error::fixed("ERR CLIENT PAUSE mode must be WRITE or ALL")),
        _ => return Err(Error::subcommand(ctx.argv)),
    };
    let until_ms = args::timeout_ms(ctx.now, ctx.arg(2))?.unwrap_or(ctx.now.ms());
    // A longer or stricter pause that runs already is not cut short.
    let running = ctx.core.pause.filter(|pause| pause.until_ms > ctx.now.ms());
    ctx.core.pause = Some(ClientPause {
        until_ms: running.map_or(until_ms, |pause| pause.until_ms.max(until_ms)),
        writes_only: running.map_or(writes_only, |pause| pause.writes_only && writes_only),
    });
    Ok(Reply::Ok)
}

fn unpause(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.pause = None;
    Ok(Reply::Ok)
}

fn reply(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let word = ctx.arg(2);
    let replies = &mut ctx.session.replies;
    match () {
        () if args::is(word, "ON") => {
            *replies = Replies::On;
            return Ok(Reply::Ok);
        }
        () if args::is(word, "OFF") => *replies = Replies::Off,
        () if args::is(word, "SKIP") => {
            if *replies != Replies::Off {
                *replies = Replies::SkipNext;
            }
        }
        () => return Err(SYNTAX),
    }
    Ok(Reply::none())
}

fn unblock(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let how = match ctx.argv {
        [_, _, _] => UnblockMode::Timeout,
        [_, _, _, word] if args::is(word, "TIMEOUT") => UnblockMode::Timeout,
        [_, _, _, word] if args::is(word, "ERROR") => UnblockMode::Error,
        [_, _, _, _] => {
            return Err(Error::fixed("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
        _ => return Err(Error::subcommand(ctx.argv)),
    };
    let id = args::int(ctx.arg(2))?;
    let Ok(id) = u64::try_from(id) else { return Ok(Reply::Int(0)) };
    let id = SessionId(id);
    let known = ctx.core.other(id).is_some();
    Ok((known && ctx.core.unblock(id, how)).into())
}

fn no_evict(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let word = ctx.arg(2);
    ctx.session.no_evict = match () {
        () if args::is(word, "ON") => true,
        () if args::is(word, "OFF") => false,
        () => return Err(SYNTAX),
    };
    Ok(Reply::Ok)
}

fn no_touch(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let word = ctx.arg(2);
    ctx.session.no_touch = match () {
        () if args::is(word, "ON") => true,
        () if args::is(word, "OFF") => false,
        () => return Err(SYNTAX),
    };
    Ok(Reply::Ok)
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "CLIENT",
        &[
            ("CACHING (YES|NO)", "Track what the next command reads, or do not."),
            ("GETNAME", "The name of this connection."),
            ("GETREDIR", "Which connection is told of invalid keys: 0 this one, -1 none."),
            ("ID", "The number of this connection."),
            ("INFO", "What is known of this connection."),
            ("KILL <ip:port>", "Close the connection from there."),
            ("KILL <option> <value> [...]", "Close those with this ID, ADDR, LADDR, TYPE, USER."),
            ("LIST [TYPE <type>] [ID <id> ...]", "What is known of all connections."),
            ("NO-EVICT (ON|OFF)", "Keep this connection when memory is short."),
            ("NO-TOUCH (ON|OFF)", "Do not count what this connection does as use of keys."),
            ("PAUSE <timeout> [WRITE|ALL]", "Let clients wait for so many milliseconds."),
            ("REPLY (ON|OFF|SKIP)", "Answer this connection or not."),
            ("SETINFO <option> <value>", "Take note of the client library."),
            ("SETNAME <name>", "Name this connection."),
            ("TRACKING (ON|OFF) [<option> ...]", "Tell this connection when keys it read change."),
            ("TRACKINGINFO", "How this connection tracks keys."),
            ("UNBLOCK <clientid> [TIMEOUT|ERROR]", "End the wait of another connection."),
            ("UNPAUSE", "End a pause."),
        ],
    ))
}
