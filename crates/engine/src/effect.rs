//! Effects: the changes of a command, a script or a transaction, as commands that make the same
//! change again whenever they are run: the content of one record of the log.
//!
//! By default a command that changed something is its own effect. One that depends on time or
//! chance replaces itself with [`crate::command::Ctx::effect`] (`EXPIRE` by `PEXPIREAT`, `SPOP` by
//! `SREM`, `INCRBYFLOAT` by `SET`).

/// Effects recorded since they were last taken. Encoded as, for each effect:
/// database `u32`, number of arguments `u32`, then each argument as length `u32` and bytes; all
/// little endian.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// True if effects are recorded; a store that is never written to disk needs none.
    pub(crate) enabled: bool,
    bytes: Vec<u8>,
    /// The running command said itself what its effects are.
    pub(crate) replaced: bool,
}

impl Effects {
    /// Creates an empty list of effects.
    pub(crate) fn new(enabled: bool) -> Effects {
        Effects { enabled, ..Effects::default() }
    }

    /// Adds one effect.
    pub(crate) fn push(&mut self, db: usize, argv: &[&[u8]]) {
        if !self.enabled {
            return;
        }
        let length = argv.iter().map(|argument| argument.len() + 4).sum::<usize>();
        self.bytes.reserve(length + 8);
        self.word(db);
        self.word(argv.len());
        for argument in argv {
            self.word(argument.len());
            self.bytes.extend_from_slice(argument);
        }
    }

    /// Takes the recorded effects; empty if nothing changed.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the effects recorded so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Clears the recorded effects, and keeps the buffer unless it is unusually large.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > 1 << 20 {
            self.bytes = Vec::new();
        }
    }

    fn word(&mut self, n: usize) {
        // Arguments are bounded far below 4 GiB by `proto-max-bulk-len`.
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }
}
