//! The list type: structure, then its API, then its commands.

use crate::command::Command;

/// A list.
#[derive(Debug, Clone, Default)]
pub(crate) struct List {}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
