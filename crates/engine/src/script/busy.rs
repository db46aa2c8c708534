//! Commands that other clients may run while a slow script blocks them: kill it, log in, begin a
//! transaction. Every other command gets `BUSY`.
//!
//! The script stands still meanwhile, half done. So nothing here looks at keys, serves who waits
//! for one, or makes room in memory.

use crate::engine::{self, CommandOutcome, Core};
use crate::error::Error;
use crate::session::SessionId;
use crate::{Now, Reply};

/// The engine in the middle of a script; see [`ScriptControl::while_busy`](super::ScriptControl).
#[derive(Debug)]
pub struct BusyContext<'a> {
    core: &'a mut Box<Core>,
    busy: Error,
}

impl<'a> BusyContext<'a> {
    pub(super) fn new(core: &'a mut Box<Core>, busy: Error) -> BusyContext<'a> {
        BusyContext { core, busy }
    }

    /// Opens a session for a client at `address`, as [`Engine::connect`](crate::Engine::connect).
    pub fn connect(&mut self, address: &str) -> SessionId {
        self.core.open_session(address)
    }

    /// Carries out one command for a session, or tells it `BUSY`.
    pub fn execute(&mut self, now: Now, id: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        let Some(mut session) = self.core.sessions.get_mut(&id).and_then(Option::take) else {
            return CommandOutcome::Reply(Reply::Error(self.busy.clone()));
        };
        self.core.busy = Some(self.busy.clone());
        let outcome = engine::run(self.core, &mut session, now, argv);
        self.core.busy = None;
        if let Some(place) = self.core.sessions.get_mut(&id) {
            *place = Some(session);
        }
        outcome
    }

    /// The protocol a session speaks, 2 or 3.
    pub fn protocol(&self, id: SessionId) -> u8 {
        self.core.session(id).map_or(2, |session| session.resp)
    }

    /// Has the session shown its password, or needs none?
    pub fn is_authenticated(&self, id: SessionId) -> bool {
        self.core.session(id).is_some_and(|session| self.core.is_authenticated(session))
    }

    /// Is the session over once its replies are sent?
    pub fn is_closing(&self, id: SessionId) -> bool {
        self.core.session(id).is_none_or(|session| session.closing)
    }
}
