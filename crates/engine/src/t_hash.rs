//! The hash type: structure, then its API, then its commands.

use crate::command::Command;

/// A hash.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hash {}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
