//! What goes to disk and comes back: bytes in, bytes out. Files are opened elsewhere.
//!
//! The log is a sequence of records, each the effects of one command, script or transaction, framed
//! with its length, a checksum and its number (`persist/log.rs`). A snapshot is the same kind of
//! records, holding commands that rebuild every key (`persist/snapshot.rs`). Both are read back by
//! running the effects (`persist/load.rs`), so there is one way into the keyspace. What clients ask
//! for is in `persist/commands.rs`. Invariant:
//! whatever the bytes are, reading them ends with the state as of some record, or with an error;
//! never with a panic, and never with a value nobody wrote.

mod commands;
mod load;
mod log;
mod snapshot;

pub(crate) use commands::{COMMANDS, Keeping, Saving};
pub use load::{Applied, BadEffects};
pub use log::{Decoded, Fault, HEADER, Kind, MOST, append_mark, append_record, decode, resync};
pub use snapshot::{SnapshotCursor, SnapshotStep};

use crate::{Engine, Error, SessionId};

impl Engine {
    /// Opens a session for the process that embeds the engine: it needs no password, and clients
    /// can neither pause nor end it.
    pub fn connect_trusted(&mut self, address: &str) -> SessionId {
        let id = self.connect(address);
        if let Some(Some(session)) = self.core.sessions.get_mut(&id) {
            session.become_nobody();
            session.trusted = true;
        }
        id
    }

    /// Is there anything that [`Engine::take_output`] would give besides effects?
    pub fn has_deliveries(&self) -> bool {
        let output = &self.core.output;
        !output.deliveries.is_empty()
            || !output.closing.is_empty()
            || output.snapshot
            || output.shutdown
            || output.durable
            || output.settings
            || !output.script_logs.is_empty()
            || !output.garbage.0.is_empty()
    }

    /// Effects gathered since they were last cleared, for the log; see `effect.rs`.
    pub fn effects(&self) -> &[u8] {
        self.core.effects.bytes()
    }

    /// Forgets the gathered effects.
    pub fn clear_effects(&mut self) {
        self.core.effects.clear();
    }

    /// How many keys there are, in all databases.
    pub fn key_count(&self) -> usize {
        self.core.dbs.iter().map(|db| db.keys.len()).sum()
    }

    /// Refuses commands that write, with this error, until told otherwise: what the keeper of the
    /// log does while it cannot be written. Reads go on.
    pub fn deny_writes(&mut self, error: Option<Error>) {
        self.core.deny_writes = error;
    }
}
