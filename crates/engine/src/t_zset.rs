//! The zset type: structure, then its API, then its commands.

use crate::command::Command;

/// A zset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Zset {}

/// The commands of this file.
pub(crate) const COMMANDS: &[Command] = &[];
