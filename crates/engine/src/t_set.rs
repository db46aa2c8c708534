//! The set type: structure, then its API, then its commands.

use crate::command::Command;

/// A set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Set {}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
