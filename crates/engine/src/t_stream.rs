//! The stream type: structure, then its API, then its commands.

use crate::command::Command;

/// A stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {}

impl Stream {
    /// Bytes on the heap, in constant time.
    pub(crate) fn heap_size(&self) -> usize {
        0
    }
}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
