//! ACL: users, what they may do, what was refused.

use std::sync::Arc;

use hashbrown::HashSet;

use super::rules::{has_spaces, join_parentheses};
use super::user::{Selector, User, hex};
use super::{DEFAULT, Denial, USERS_MAX, catalogue};
use crate::admin::command_info::CATEGORIES;
use crate::command::{self, ADMIN, CommandRow, Ctx, LOADING, NOSCRIPT, STALE};
use crate::error::{Error, c_string};
use crate::session::ClientSession;
use crate::{Engine, Reply, SessionId, args};

const OPEN: u32 = NOSCRIPT | LOADING | STALE;
const FLAGS: u32 = ADMIN | OPEN;

/// The commands of this file.
pub(crate) const COMMANDS: &[CommandRow] = &[CommandRow::new("acl", -2, 0, command::container)
    .subcommands(&[
        CommandRow::new("cat", -2, OPEN, cat),
        CommandRow::new("deluser", -3, FLAGS, deluser),
        CommandRow::new("dryrun", -4, FLAGS, dryrun),
        CommandRow::new("genpass", -2, OPEN, genpass),
        CommandRow::new("getuser", 3, FLAGS, getuser),
        CommandRow::new("help", 2, LOADING | STALE, help),
        CommandRow::new("list", 2, FLAGS, list),
        CommandRow::new("load", 2, FLAGS, |_| Err(NO_FILE)),
        CommandRow::new("log", -2, FLAGS, log),
        CommandRow::new("save", 2, FLAGS, |_| Err(NO_FILE)),
        CommandRow::new("setuser", -3, FLAGS, setuser),
        CommandRow::new("users", 2, FLAGS, users),
        CommandRow::new("whoami", 2, OPEN, whoami),
    ])];

const NO_FILE: Error = Error::fixed(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users \
     via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis \
     configuration file set) in order to store users in the Redis configuration.",
);

fn whoami(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::bulk_or_nil(ctx.session.user.as_ref().map(|user| user.name())))
}

fn users(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(Reply::bulks(ctx.core.acl.users.keys()))
}

fn list(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let line = |user: &Arc<User>| [b"user ", user.name(), b" ", &*user.describe()].concat();
    Ok(Reply::bulks(ctx.core.acl.users.values().map(line)))
}

fn cat(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    match ctx.argv {
        [_, _] => Ok(Reply::bulks(CATEGORIES)),
        [_, _, name] => {
            let Some(category) = catalogue::category(c_string(name)) else {
                let name = c_string(name);
                let name = name.get(..128).unwrap_or(name);
                return Err(Error::about("ERR Unknown category '", name, "'"));
            };
            let inside = catalogue::all().iter().filter(|entry| entry.is_in(category));
            Ok(Reply::bulks(inside.map(|entry| &entry.name)))
        }
        _ => Err(Error::subcommand(ctx.argv)),
    }
}

fn getuser(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let Some(user) = ctx.core.acl.user(ctx.arg(2)) else { return Ok(Reply::Nil) };
    let flags = user.flags().into_iter().map(Reply::bulk).collect();
    let mut parts = vec![
        (Reply::bulk("flags"), Reply::Set(flags)),
        (Reply::bulk("passwords"), Reply::bulks(user.passwords.iter().map(|hash| hex(hash)))),
    ];
    parts.extend(describe(&user.root));
    let selectors = user.selectors.iter().map(|selector| Reply::Map(describe(selector).into()));
    parts.push((Reply::bulk("selectors"), Reply::Array(selectors.collect())));
    Ok(Reply::Map(parts))
}

fn describe(selector: &Selector) -> [(Reply, Reply); 3] {
    [
        (Reply::bulk("commands"), Reply::Bulk(selector.describe_commands())),
        (Reply::bulk("keys"), Reply::Bulk(selector.describe_keys())),
        (Reply::bulk("channels"), Reply::Bulk(selector.describe_channels())),
    ]
}

fn setuser(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let name = ctx.arg(2);
    if has_spaces(name) {
        return Err(Error::fixed("ERR Usernames can't contain spaces or null characters"));
    }
    let words = join_parentheses(ctx.argv.get(3..).unwrap_or_default()).map_err(|word| {
        Error::about("ERR Unmatched parenthesis in acl selector starting at '", word, "'.")
    })?;
    let all_channels = ctx.core.setting("acl-pubsub-default", "resetchannels") == *b"allchannels";
    let old = ctx.core.acl.user(name).cloned();
    if old.is_none() && ctx.core.acl.users.len() >= USERS_MAX {
        return Err(Error::new(format!("ERR there cannot be more than {USERS_MAX} users")));
    }
    let user = changed(old.as_deref(), name, &words, all_channels)?;
    if let Some(old) = old {
        ctx.end_sessions(|session| listens_in_vain(session, &old, &user));
    }
    ctx.core.change_user(Arc::clone(&user));
    if ctx.session.is_of(name) {
        ctx.session.become_user(&user);
    }
    Ok(Reply::Ok)
}

/// The user as rules make it. A rule that is wrong leaves everything as it was.
fn changed(
    old: Option<&User>,
    name: &[u8],
    words: &[Vec<u8>],
    all_channels: bool,
) -> Result<Arc<User>, Error> {
    let mut user = old.map_or_else(|| User::new(name, all_channels), User::clone);
    for word in words {
        user.apply(word, all_channels).map_err(|wrong| {
            let why = format!("': {}", wrong.text());
            Error::about("ERR Error in ACL SETUSER modifier '", word, &why)
        })?;
    }
    Ok(Arc::new(user))
}

impl Engine {
    /// Makes or changes a user by the rules of `ACL SETUSER`, for the process that embeds the
    /// engine.
    ///
    /// # Errors
    /// The name of the first rule that is wrong; nothing is changed then.
    pub fn set_user(&mut self, name: &str, rules: &[&str]) -> Result<(), Error> {
        let words: Vec<Vec<u8>> = rules.iter().map(|rule| rule.as_bytes().to_vec()).collect();
        let old = self.core.acl.user(name.as_bytes()).cloned();
        let user = changed(old.as_deref(), name.as_bytes(), &words, false)?;
        self.core.change_user(user);
        Ok(())
    }

    /// Names the user whose password `AUTH` without a name, or with that of the default user, means
    /// while the default user needs none.
    pub fn set_owner(&mut self, name: &str) {
        self.core.acl.owner = Some(name.as_bytes().into());
    }

    /// Wrong passwords shown since the start, as INFO tells by `acl_access_denied_auth`.
    pub fn wrong_passwords(&self) -> u64 {
        self.core.acl.wrong_passwords
    }
}

/// Does a session of the old user listen to what the new one may not? Not asked of channels it
/// could listen to before and after by the same rule.
fn listens_in_vain(session: &ClientSession, old: &User, new: &User) -> bool {
    if !session.is_of(old.name()) || !session.subscribed() {
        return false;
    }
    let still_named: HashSet<&[u8]> = new.all_selectors().flat_map(Selector::channels).collect();
    let had_all = old.all_selectors().any(|selector| selector.all_channels);
    let mut named = old.all_selectors().flat_map(Selector::channels);
    if !had_all && named.all(|channel| still_named.contains(channel)) {
        return false;
    }
    let subscriptions = &session.subscriptions;
    let channels = subscriptions.channels.iter().chain(&subscriptions.shards);
    channels.into_iter().any(|channel| !new.may_listen(channel, false))
        || subscriptions.patterns.iter().any(|pattern| !new.may_listen(pattern, true))
}

fn deluser(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let names = ctx.argv.get(2..).unwrap_or_default();
    if names.iter().any(|name| c_string(name) == DEFAULT) {
        return Err(Error::fixed("ERR The 'default' user cannot be removed"));
    }
    let mut deleted = 0usize;
    for name in names {
        if ctx.core.acl.users.remove(*name).is_none() {
            continue;
        }
        deleted += 1;
        ctx.end_sessions(|session| session.is_of(name));
        if ctx.session.is_of(name) {
            let default = Arc::clone(ctx.core.acl.default_user());
            ctx.session.become_user(&default);
            ctx.session.authenticated = false;
        }
    }
    Ok(deleted.into())
}

impl Ctx<'_> {
    /// Ends the sessions for which this is so; this one once its reply is sent.
    fn end_sessions(&mut self, is_so: impl Fn(&ClientSession) -> bool) {
        let others = self.core.sessions.values().flatten();
        let ending: Vec<SessionId> =
            others.filter(|session| is_so(session)).map(|session| session.id).collect();
        for id in ending {
            self.core.kill(id);
        }
        if is_so(self.session) {
            self.close();
        }
    }
}

fn genpass(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    const BITS_MAX: i64 = 4096;
    let bits = match ctx.argv {
        [_, _] => 256,
        [_, _, bits] => args::int(bits)?,
        _ => return Err(Error::subcommand(ctx.argv)),
    };
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(Error::new(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a \
             positive number up to {BITS_MAX}"
        )));
    }
    // Not from the engine's own generator: its seed would give the password away.
    let mut random = [0; BITS_MAX as usize / 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::new(format!("ERR the system gives no random bytes: {error}")))?;
    let mut password = hex(&random);
    password.truncate(usize::try_from((bits + 3) / 4).unwrap_or(0));
    Ok(Reply::Bulk(password))
}

fn log(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let count = match ctx.argv {
        [_, _] => 10,
        [_, _, word] if args::is(word, "RESET") => {
            ctx.core.acl.log.clear();
            return Ok(Reply::Ok);
        }
        [_, _, count] => usize::try_from(args::int(count)?).unwrap_or(0),
        _ => return Err(Error::subcommand(ctx.argv)),
    };
    Ok(ctx.core.acl.log.describe(count, ctx.now.ms()))
}

fn dryrun(ctx: &mut Ctx<'_>) -> Result<Reply, Error> {
    let Some(user) = ctx.core.acl.user(ctx.arg(2)) else {
        return Err(Error::about("ERR User '", ctx.arg(2), "' not found"));
    };
    let argv = ctx.argv.get(3..).unwrap_or_default();
    let Ok(command) = command::find_with_subcommand(argv) else {
        return Err(Error::about("ERR Command '", ctx.arg(3), "' not found"));
    };
    if !command.arity_fits(argv.len()) {
        return Err(Error::arity(&command.full_name));
    }
    let denied = match user.check(command, argv) {
        Ok(()) => return Ok(Reply::Ok),
        Err(denied) => denied,
    };
    let argument = |at: usize| c_string(argv.get(at).copied().unwrap_or_default());
    let (before, word, after) = match denied {
        Denial::Command => ("run", command.full_name.as_bytes(), "command"),
        Denial::Key(at) => ("access", argument(at), "key"),
        Denial::Channel(at) => ("access", argument(at), "channel"),
    };
    let before = format!("This user has no permissions to {before} the '");
    Ok(Reply::Bulk([before.as_bytes(), word, b"' ", after.as_bytes()].concat()))
}

fn help(_: &mut Ctx<'_>) -> Result<Reply, Error> {
    Ok(command::help(
        "ACL",
        &[
            ("CAT [<category>]", "Categories of commands, or the commands of one."),
            ("DELUSER <username> [<username> ...]", "Delete users and close their connections."),
            ("DRYRUN <username> <command> [<arg> ...]", "Could the user run this?"),
            ("GENPASS [<bits>]", "Make up a password."),
            ("GETUSER <username>", "What a user may do."),
            ("LIST", "All users, each as the rules that make it."),
            ("LOAD", "Read users from their file: there is none."),
            ("LOG [<count>|RESET]", "What was refused, or forget that."),
            ("SAVE", "Write users to their file: there is none."),
            ("SETUSER <username> [<rule> ...]", "Make or change a user."),
            ("USERS", "Names of users."),
            ("WHOAMI", "The user of this connection."),
        ],
    ))
}
