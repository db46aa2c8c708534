//! Persistence: encodes and decodes the log and snapshots, bytes in, bytes out. Files are opened
//! elsewhere.
//!
//! The log is a sequence of records, each the effects of one command, script or transaction, framed
//! with its length, a checksum and its number (`persist/log.rs`). A snapshot is the same kind of
//! records, holding commands that rebuild every key (`persist/snapshot.rs`). Both are read back by
//! running the effects (`persist/load.rs`), so there is one way into the keyspace. What clients ask
//! for is in `persist/commands.rs`, and how a log is replayed for a part of the keyspace at a time
//! in `persist/parts.rs`. Invariant: whatever the bytes are, reading them ends with the state as of
//! some record, or with an error; never with a panic, and never with a value nobody wrote.

mod commands;
mod load;
mod log;
mod parts;
mod snapshot;

pub(crate) use commands::{COMMANDS, LogStatus, SaveReason};
pub use load::{ApplyCounts, BadEffects, EffectReader};
pub use log::{
    DecodedRecord, HEADER, MOST, RecordFault, RecordKind, append_mark, append_record, decode,
    frames, resync,
};
pub use parts::{KeyParts, Part, PartPlan};
pub use snapshot::{SnapshotCursor, SnapshotStep, append_effect};

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

    /// Effects recorded since they were last cleared, for the log; see `effect.rs`.
    pub fn effects(&self) -> &[u8] {
        self.core.effects.bytes()
    }

    /// Clears the recorded effects.
    pub fn clear_effects(&mut self) {
        self.core.effects.clear();
    }

    /// Number of keys in all databases.
    pub fn key_count(&self) -> usize {
        self.core.dbs.iter().map(|db| db.keys.len()).sum()
    }

    /// Refuses commands that write, with this error, until told otherwise: what the keeper of the
    /// log does while it cannot be written. Reads go on.
    pub fn deny_writes(&mut self, error: Option<Error>) {
        self.core.deny_writes = error;
    }
}
