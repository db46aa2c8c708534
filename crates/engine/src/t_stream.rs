//! The stream type: structure, then its API, then its commands.

use crate::command::Command;

/// A stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
