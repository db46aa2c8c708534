//! Effects back into the keyspace.
//!
//! They are run at the beginning of time: nothing expires while it is read, because what expired
//! was deleted by an effect of its own, and what was not must still be there for the effects that
//! follow.

use super::parts::Part;
use crate::{CommandOutcome, Engine, Now, Reply, SessionId};

/// Counts of the effects of one record.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ApplyCounts {
    /// Number of commands run.
    pub commands: u64,
    /// Number of them that answered with an error.
    pub errors: u64,
}

/// Bytes that are not effects, though their checksum is right: another version wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record is whole but does not hold effects of a known form")]
pub struct BadEffects;

/// Reads effects one by one.
#[derive(Debug)]
pub struct EffectReader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> EffectReader<'a> {
    /// Reads the effects of one record.
    pub fn new(effects: &'a [u8]) -> Self {
        Self { rest: effects }
    }

    fn word(&mut self) -> Result<usize, BadEffects> {
        let (word, rest) = self.rest.split_first_chunk::<4>().ok_or(BadEffects)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*word) as usize)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], BadEffects> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(BadEffects)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The database and the arguments of the next effect, in `argv`.
    ///
    /// # Errors
    /// The bytes are not effects.
    pub fn next(&mut self, argv: &mut Vec<&'a [u8]>) -> Result<Option<usize>, BadEffects> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let db = self.word()?;
        let count = self.word()?;
        // Each argument takes four bytes at least.
        if count == 0 || count > self.rest.len() / 4 {
            return Err(BadEffects);
        }
        argv.clear();
        for _ in 0..count {
            let length = self.word()?;
            argv.push(self.bytes(length)?);
        }
        Ok(Some(db))
    }
}

impl Engine {
    /// Opens a session to apply effects with.
    pub fn connect_loader(&mut self) -> SessionId {
        let id = self.connect("loader");
        if let Some(Some(session)) = self.core.sessions.get_mut(&id) {
            session.become_nobody();
            session.loading = true;
        }
        id
    }

    /// Runs the effects of one record. They are not gathered again.
    ///
    /// # Errors
    /// The bytes are not effects; nothing was run.
    pub fn apply(&mut self, loader: SessionId, effects: &[u8]) -> Result<ApplyCounts, BadEffects> {
        self.apply_narrowed(loader, effects, None)
    }

    /// Runs of the effects of one record what concerns one part of the keyspace.
    ///
    /// # Errors
    /// The bytes are not effects; nothing was run.
    pub fn apply_part(
        &mut self,
        loader: SessionId,
        effects: &[u8],
        part: Part<'_>,
    ) -> Result<ApplyCounts, BadEffects> {
        self.apply_narrowed(loader, effects, Some(part))
    }

    fn apply_narrowed(
        &mut self,
        loader: SessionId,
        effects: &[u8],
        part: Option<Part<'_>>,
    ) -> Result<ApplyCounts, BadEffects> {
        // The form is checked first, so that a record is applied whole or not at all.
        let mut reader = EffectReader { rest: effects };
        let mut argv = Vec::new();
        while let Some(db) = reader.next(&mut argv)? {
            if db >= self.core.dbs.len() {
                return Err(BadEffects);
            }
        }
        let gather = std::mem::replace(&mut self.core.effects.enabled, false);
        let mut applied = ApplyCounts::default();
        let mut reader = EffectReader { rest: effects };
        while let Ok(Some(db)) = reader.next(&mut argv) {
            if part.is_some_and(|part| !part.narrow(&mut argv)) {
                continue;
            }
            if let Some(Some(session)) = self.core.sessions.get_mut(&loader) {
                session.db = db;
            }
            applied.commands += 1;
            if let CommandOutcome::Reply(Reply::Error(_)) =
                self.execute(Now { unix_us: 0 }, loader, &argv)
            {
                applied.errors += 1;
            }
        }
        // No client is connected yet.
        drop(self.take_output());
        self.core.effects.enabled = gather;
        Ok(applied)
    }
}
