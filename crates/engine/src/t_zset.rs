//! The zset type: structure, then its API, then its commands.

use crate::command::Command;

/// A zset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Zset {}

impl Zset {
    /// Bytes on the heap, in constant time.
    pub(crate) fn heap_size(&self) -> usize {
        0
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
