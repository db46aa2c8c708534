//! Commands about the client's own connection: PING ECHO QUIT RESET SELECT AUTH HELLO.

use crate::command::{ALLOW_BUSY, CommandRow, Ctx, FAST, LOADING, NO_AUTH, NOSCRIPT, STALE};
use crate::error::{Error, SYNTAX};
use crate::session::Replies;
use crate::{Reply, admin::acl, admin::client, args, number};

/// The version of Redis whose behaviour this is.
pub(crate) const VERSION: &str = "7.0.15";

const FLAGS: u32 = NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[
    CommandRow::new("ping", -1, FAST, ping),
    CommandRow::new("echo", 2, LOADING | STALE | FAST, |ctx| Ok(Reply::bulk(ctx.arg(1)))),
    CommandRow::new("quit", -1, FLAGS, quit),
    CommandRow::new("reset", 1, FLAGS, reset),
    CommandRow::new("select", 2, LOADING | STALE | FAST, select),
    CommandRow::new("auth", -2, FLAGS, auth),
    CommandRow::new("hello", -1, FLAGS, hello),
];

fn ping(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    if ctx.argv.len() > 2 {
        return Err(Error::arity("ping"));
    }
    if ctx.session.subscribed() && ctx.session.resp == 2 {
        return Ok(Reply::Array(vec![Reply::bulk("pong"), Reply::bulk(ctx.arg(1))]));
    }
    Ok(match ctx.argv.get(1) {
        Some(message) => Reply::bulk(message),
        None => Reply::status("PONG"),
    })
}

fn quit(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.close();
    Ok(Reply::Ok)
}

fn reset(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    ctx.core.discard_transaction(ctx.session);
    ctx.core.unsubscribe_all(ctx.session);
    ctx.core.tracking.forget(ctx.session.id);
    ctx.core.monitors.retain(|id| *id != ctx.session.id);
    let session = &mut *ctx.session;
    session.db = 0;
    session.resp = 2;
    session.name.clear();
    session.replies = Replies::On;
    session.no_evict = false;
    session.no_touch = false;
    if !session.trusted {
        session.become_default(&ctx.core.acl);
    }
    Ok(Reply::status("RESET"))
}

fn select(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let number = args::int_in(ctx.arg(1), i64::from(i32::MIN), i64::from(i32::MAX))?;
    match usize::try_from(number).ok().filter(|n| *n < ctx.core.dbs.len()) {
        Some(number) => {
            ctx.session.db = number;
            Ok(Reply::Ok)
        }
        None => Err(Error::fixed("ERR DB index is out of range")),
    }
}

fn auth(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let (user, password) = match ctx.argv {
        [_, password] => {
            if ctx.core.acl.owner.is_none() && ctx.core.acl.default_user().needs_no_password() {
                return Err(Error::fixed(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?",
                ));
            }
            (acl::DEFAULT, *password)
        }
        [_, user, password] => (*user, *password),
        _ => return Err(SYNTAX),
    };
    ctx.log_in(user, password)?;
    Ok(Reply::Ok)
}

fn hello(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let mut protocol = None;
    if let Some(version) = ctx.argv.get(1) {
        let version = number::parse_i64(version)
            .ok_or(Error::fixed("ERR Protocol version is not an integer or out of range"))?;
        protocol = u8::try_from(version).ok().filter(|v| matches!(v, 2 | 3));
        if protocol.is_none() {
            return Err(Error::fixed("NOPROTO unsupported protocol version"));
        }
    }
    let mut rest = ctx.argv.get(2..).unwrap_or_default();
    while let [word, tail @ ..] = rest {
        rest = match tail {
            [user, password, tail @ ..] if args::is(word, "AUTH") => {
                ctx.log_in(user, password)?;
                tail
            }
            [name, tail @ ..] if args::is(word, "SETNAME") => {
                client::set_name(ctx, name)?;
                tail
            }
            _ => {
                return Err(Error::about("ERR Syntax error in HELLO option '", word, "'"));
            }
        };
    }
    if !ctx.session.authenticated {
        return Err(Error::fixed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and select \
             the RESP protocol version at the same time",
        ));
    }
    ctx.session.resp = protocol.unwrap_or(ctx.session.resp);
    let pairs = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(VERSION)),
        ("proto", Reply::Int(i64::from(ctx.session.resp))),
        ("id", Reply::Int(i64::try_from(ctx.session.id.0).unwrap_or(i64::MAX))),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
        ("modules", Reply::Array(Vec::new())),
    ];
    Ok(Reply::Map(pairs.into_iter().map(|(name, value)| (Reply::bulk(name), value)).collect()))
}

impl Ctx<'_> {
    /// Closes the session once its reply is sent.
    pub(crate) fn close(&mut self) {
        if !self.session.closing {
            self.session.closing = true;
            self.core.output.closing.push(self.session.id);
        }
    }
}
