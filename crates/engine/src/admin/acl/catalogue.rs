//! Commands by number, with what decides who may run them: a user's rights are a set of numbers.

use std::ops::Range;
use std::sync::LazyLock;

use crate::admin::command_info::{self, CATEGORIES, Words};
use crate::command::{self, CommandSpec};

/// One command or subcommand.
#[derive(Debug)]
pub(super) struct CatalogueEntry {
    /// `config|get`
    pub(super) name: &'static str,
    pub(super) command: &'static CommandSpec,
    /// Numbers of its subcommands.
    pub(super) parts: Range<usize>,
    pub(super) is_part: bool,
    /// A bit for each of [`CATEGORIES`].
    categories: u32,
    /// Access to its keys, unless that depends on the arguments.
    pub(super) words: &'static [Words],
    /// Arguments that are channels.
    pub(super) channels: Channels,
    /// Are arguments that stand where keys do keys?
    pub(super) names_keys: bool,
}

/// The arguments of a command that are channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channels {
    None,
    /// The first.
    First,
    /// All of them.
    All,
    /// All, and they are patterns.
    Patterns,
}

impl Channels {
    fn of(name: &str) -> Channels {
        match name {
            "publish" | "spublish" => Channels::First,
            "subscribe" | "ssubscribe" => Channels::All,
            "psubscribe" => Channels::Patterns,
            _ => Channels::None,
        }
    }
}

impl CatalogueEntry {
    pub(super) fn is_in(&self, category: usize) -> bool {
        self.categories >> category & 1 == 1
    }
}

static ENTRIES: LazyLock<Vec<CatalogueEntry>> = LazyLock::new(|| {
    let entry = |command: &'static CommandSpec| {
        let name = command.full_name.as_str();
        let found = command_info::categories(name, command);
        let bits = (0u32..).zip(CATEGORIES).filter(|(_, category)| found.contains(category));
        CatalogueEntry {
            parts: command.parts.clone(),
            is_part: command.is_subcommand,
            categories: bits.fold(0, |bits, (bit, _)| bits | 1 << bit),
            words: command_info::words_of(name),
            channels: Channels::of(name),
            // For the sake of clusters these stand where keys do.
            names_keys: !matches!(name, "spublish" | "ssubscribe" | "sunsubscribe" | "subscribe"),
            name,
            command,
        }
    };
    command::commands().iter().map(entry).collect()
});

/// Every command, each followed by its subcommands.
pub(super) fn all() -> &'static [CatalogueEntry] {
    &ENTRIES
}

/// A command with its number.
pub(super) fn find(command: &'static CommandSpec) -> Option<(usize, &'static CatalogueEntry)> {
    Some((command.number, ENTRIES.get(command.number)?))
}

/// The number of the command with this full name, in any case.
pub(super) fn find_named(name: &[u8]) -> Option<(usize, &'static CatalogueEntry)> {
    command_info::find(name).and_then(|(command, _)| find(command))
}

/// The number of a category, in any case.
pub(super) fn category(name: &[u8]) -> Option<usize> {
    CATEGORIES.iter().position(|category| name.eq_ignore_ascii_case(category.as_bytes()))
}

/// A set of command numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers([u64; WORDS]);

/// Room for this many words of 64 commands.
const WORDS: usize = 8;

impl Numbers {
    pub(super) fn none() -> Numbers {
        Numbers([0; WORDS])
    }

    pub(super) fn all() -> Numbers {
        Numbers([u64::MAX; WORDS])
    }

    pub(super) fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, number: usize, on: bool) {
        if let Some(word) = self.0.get_mut(number / 64) {
            let bit = 1 << (number % 64);
            if on { *word |= bit } else { *word &= !bit }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_number_that_fits() {
        assert!(all().len() <= WORDS * 64, "{}", all().len());
        for (number, entry) in all().iter().enumerate() {
            assert_eq!(find(entry.command).map(|(n, _)| n), Some(number), "{}", entry.name);
            assert_eq!(find_named(entry.name.as_bytes()).map(|(n, _)| n), Some(number));
        }
    }

    #[test]
    fn subcommands_follow_their_command() {
        for entry in all().iter().filter(|entry| !entry.is_part) {
            let names = all().get(entry.parts.clone()).unwrap_or_default();
            assert_eq!(names.len(), entry.command.subcommands().len(), "{}", entry.name);
            for part in names {
                assert!(part.name.starts_with(&format!("{}|", entry.name)), "{}", part.name);
            }
        }
    }
}
