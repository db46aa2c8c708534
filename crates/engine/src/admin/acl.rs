//! Users: who may log in, run which commands, touch which keys and channels.
//!
//! `acl/user.rs` is a user and what it is described by, `acl/rules.rs` the words that change one,
//! `acl/check.rs` the decision about one command, `acl/log.rs` the list of what was refused,
//! `acl/commands.rs` the ACL command. Users live as long as the process: as in Redis without a
//! file for them, a restart leaves the default user alone.

mod catalogue;
mod check;
mod commands;
mod log;
mod rules;
mod secrets;
mod user;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use self::check::Denial;
pub(crate) use self::commands::COMMANDS;
pub(crate) use self::log::DenialContext;
use self::log::{AclLog, DenialReason};
pub(crate) use self::secrets::shown;
pub(crate) use self::user::User;
use crate::command::{CommandSpec, Ctx};
use crate::engine::Core;
use crate::error::Error;
use crate::session::ClientSession;

/// The name of the user that sessions begin with.
pub(crate) const DEFAULT: &[u8] = b"default";

/// No more users than this.
const USERS_MAX: usize = 10_000;

/// All users, and what was refused.
#[derive(Debug)]
pub(crate) struct Acl {
    users: BTreeMap<Box<[u8]>, Arc<User>>,
    /// Also in the map.
    default: Arc<User>,
    /// Whose password `AUTH` without a name means while the default user needs none.
    pub(crate) owner: Option<Box<[u8]>>,
    /// Wrong passwords so far.
    pub(crate) wrong_passwords: u64,
    log: AclLog,
}

impl Default for Acl {
    fn default() -> Acl {
        let default = Arc::new(User::all_powerful(DEFAULT));
        let users = BTreeMap::from([(Box::from(DEFAULT), Arc::clone(&default))]);
        Acl { users, default, owner: None, wrong_passwords: 0, log: AclLog::default() }
    }
}

impl Acl {
    /// The user of this name.
    pub(crate) fn user(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// The user that sessions begin with.
    pub(crate) fn default_user(&self) -> &Arc<User> {
        &self.default
    }

    /// Must a session log in before it can do anything?
    pub(crate) fn asks_for_password(&self) -> bool {
        !self.default.is_open()
    }

    fn put(&mut self, user: &Arc<User>) {
        if user.name() == DEFAULT {
            self.default = Arc::clone(user);
        }
        self.users.insert(Box::from(user.name()), Arc::clone(user));
    }
}

impl ClientSession {
    /// The session is this user's from now on.
    pub(crate) fn become_user(&mut self, user: &Arc<User>) {
        self.restricted = !user.may_do_everything();
        self.user = Some(Arc::clone(user));
    }

    /// The session is the default user's again, as it began.
    pub(crate) fn become_default(&mut self, acl: &Acl) {
        self.become_user(acl.default_user());
        self.authenticated = !acl.asks_for_password();
    }

    /// The process's own: nothing is refused to it for want of rights.
    pub(crate) fn become_nobody(&mut self) {
        self.user = None;
        self.restricted = false;
        self.authenticated = true;
    }

    fn is_of(&self, name: &[u8]) -> bool {
        self.user.as_ref().is_some_and(|user| user.name() == name)
    }
}

impl Core {
    /// Has the session shown a password, or needs none?
    pub(crate) fn is_authenticated(&self, session: &ClientSession) -> bool {
        session.authenticated || !self.acl.asks_for_password()
    }

    /// Sets the one password of the default user; none if empty.
    pub(crate) fn set_default_password(&mut self, password: &[u8]) {
        let mut user = User::clone(self.acl.default_user());
        user.set_password(password);
        self.change_user(Arc::new(user));
    }

    /// A user is as given from now on, also for the sessions that are its own already, but for the
    /// one that runs the command.
    fn change_user(&mut self, user: Arc<User>) {
        self.acl.put(&user);
        for session in self.sessions.values_mut().flatten() {
            if session.is_of(user.name()) {
                session.become_user(&user);
            }
        }
    }
}

impl Ctx<'_> {
    /// Makes the session the user's who has this name and password. What fails is noted. A password
    /// under the name of the default user, who needs none, is the owner's: many clients put that
    /// name before a password that was given without one.
    pub(crate) fn log_in(&mut self, name: &[u8], password: &[u8]) -> Result<(), Error> {
        let acl = &self.core.acl;
        let meant = name == DEFAULT && !password.is_empty() && acl.default.needs_no_password();
        let owner = acl.owner.clone().filter(|_| meant);
        let name = owner.as_deref().unwrap_or(name);
        match self.core.acl.user(name).filter(|user| user.admits(password)).cloned() {
            Some(user) => {
                self.session.become_user(&user);
                self.session.authenticated = true;
                Ok(())
            }
            None => {
                let place = self.place();
                self.core.acl.wrong_passwords += 1;
                self.note_refusal(DenialReason::Auth, place, self.arg(0).to_vec(), name.to_vec());
                Err(Error::fixed("WRONGPASS invalid username-password pair or user is disabled."))
            }
        }
    }

    /// May the user of the session run the command with these arguments? What it may not is noted.
    pub(crate) fn permit(
        &mut self,
        command: &'static CommandSpec,
        place: DenialContext,
    ) -> Result<(), Denial> {
        if !self.session.restricted {
            return Ok(());
        }
        let Some(user) = self.session.user.clone() else { return Ok(()) };
        user.check(command, self.argv).inspect_err(|denied| {
            let (reason, object) = match denied {
                Denial::Command => (DenialReason::Command, command.full_name.clone().into_bytes()),
                Denial::Key(at) => (DenialReason::Key, self.arg(*at).to_vec()),
                Denial::Channel(at) => (DenialReason::Channel, self.arg(*at).to_vec()),
            };
            self.note_refusal(reason, place, object, user.name().to_vec());
        })
    }

    /// Returns the context in which a client's command is checked.
    pub(crate) fn place(&self) -> DenialContext {
        let queued = self.session.multi.is_some() || self.session.in_exec;
        if queued { DenialContext::Multi } else { DenialContext::TopLevel }
    }

    fn note_refusal(
        &mut self,
        reason: DenialReason,
        place: DenialContext,
        object: Vec<u8>,
        user: Vec<u8>,
    ) {
        let most = self.core.setting("acllog-max-len", "128");
        let most = crate::number::parse_u64(&most).and_then(|n| usize::try_from(n).ok());
        let mut client = crate::admin::client::describe(self, self.session);
        client.truncate(client.trim_ascii_end().len());
        let at_ms = self.now.ms();
        let entry = log::AclLogEntry { count: 1, reason, place, object, user, at_ms, client };
        self.core.acl.log.add(entry, most.unwrap_or(usize::MAX));
    }
}
