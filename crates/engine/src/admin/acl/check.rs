//! May a user run this command with these arguments?

use smallvec::SmallVec;

use super::catalogue::{self, CatalogueEntry, Channels};
use super::user::{READ, Selector, User, WRITE};
use crate::command::{CommandSpec, NO_AUTH};
use crate::error::Error;
use crate::{admin::command_info, error, keys, scan};

/// A denied access; the more specific is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denial {
    /// The command.
    Command,
    /// The key that is this argument.
    Key(usize),
    /// The channel that is this argument.
    Channel(usize),
}

impl Denial {
    /// Returns the error for the client that sent the command.
    pub(crate) fn error(self, command: &'static CommandSpec) -> Error {
        match self {
            Denial::Command => {
                let name = command.full_name.as_bytes();
                Error::about("NOPERM this user has no permissions to run the '", name, "' command")
            }
            Denial::Key(_) => Error::fixed(
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ),
            Denial::Channel(_) => Error::fixed(
                "NOPERM this user has no permissions to access one of the channels used as \
                 arguments",
            ),
        }
    }

    /// Returns the error in EXEC's reply for a command that could still be queued.
    pub(crate) fn error_in_exec(self) -> Error {
        let why = match self {
            Denial::Command => "no permission to execute the command or subcommand",
            Denial::Key(_) => "no permission to touch the specified keys",
            Denial::Channel(_) => "no permission to access one of the channels used as arguments",
        };
        Error::new(format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and \
             the EXEC call. This command is no longer allowed for the following reason: {why}"
        ))
    }

    /// Returns the error that a script gets.
    pub(crate) fn error_in_script(self) -> Error {
        Error::fixed(match self {
            Denial::Command => {
                "ERR The user executing the script can't run this command or subcommand"
            }
            Denial::Key(_) => {
                "ERR The user executing the script can't access at least one of the keys \
                 mentioned in the command arguments"
            }
            Denial::Channel(_) => {
                "ERR The user executing the script can't publish to the channel mentioned in the \
                 command"
            }
        })
    }
}

/// A command with its arguments, and what of them matters.
#[derive(Debug)]
struct AclRequest<'a> {
    number: usize,
    command: &'static CommandSpec,
    argv: &'a [&'a [u8]],
    entry: &'static CatalogueEntry,
    /// Positions of keys.
    keys: keys::Positions,
    /// Positions of channels.
    channels: std::ops::Range<usize>,
    /// Are they patterns of channels?
    patterns: bool,
}

impl<'a> AclRequest<'a> {
    fn new(command: &'static CommandSpec, argv: &'a [&'a [u8]]) -> Option<AclRequest<'a>> {
        let (number, entry) = catalogue::find(command)?;
        let (channels, patterns) = match entry.channels {
            Channels::None => (0..0, false),
            Channels::First => (1..2, false),
            Channels::All => (1..argv.len(), false),
            Channels::Patterns => (1..argv.len(), true),
        };
        let mut keys = keys::Positions::new();
        if entry.names_keys {
            keys = keys::positions(entry.command, argv).unwrap_or_default();
            keys.retain(|at| *at < argv.len());
        }
        Some(AclRequest { number, command, argv, entry, keys, channels, patterns })
    }

    fn argument(&self, at: usize) -> &'a [u8] {
        self.argv.get(at).copied().unwrap_or_default()
    }

    /// Positions of keys, each with what is done with it.
    fn keys_with_access(&self) -> SmallVec<[(usize, u8); 8]> {
        let CatalogueEntry { name, words, .. } = self.entry;
        let words = command_info::words_by_arguments(name, self.argv).unwrap_or(*words);
        let access = |n: usize| {
            let words = words.get(n).or(words.last()).copied().unwrap_or_default();
            words.iter().fold(0, |access, word| match *word {
                "access" => access | READ,
                "insert" | "delete" | "update" => access | WRITE,
                _ => access,
            })
        };
        self.keys.iter().enumerate().map(|(n, at)| (*at, access(n))).collect()
    }
}

impl User {
    /// May it run this command with these arguments?
    pub(crate) fn check(
        &self,
        command: &'static CommandSpec,
        argv: &[&[u8]],
    ) -> Result<(), Denial> {
        let request = AclRequest::new(command, argv).ok_or(Denial::Command)?;
        let mut worst = Denial::Command;
        for selector in self.all_selectors() {
            match selector.check(&request) {
                Ok(()) => return Ok(()),
                Err(denied) => worst = worst.max(denied),
            }
        }
        Err(worst)
    }

    /// May it run this command, and with the same rights read any key there is?
    pub(crate) fn may_read_all(&self, command: &'static CommandSpec, argv: &[&[u8]]) -> bool {
        let Some(request) = AclRequest::new(command, argv) else { return false };
        let reads_all = |selector: &Selector| {
            let all = |(access, keys): &(u8, Box<[u8]>)| access & READ != 0 && **keys == *b"*";
            selector.all_keys || selector.keys.iter().any(all)
        };
        self.all_selectors().any(|s| reads_all(s) && s.check(&request).is_ok())
    }

    /// May it read this key, which no argument of the command names?
    pub(crate) fn may_read_by(
        &self,
        command: &'static CommandSpec,
        argv: &[&[u8]],
        key: &[u8],
    ) -> bool {
        let Some(request) = AclRequest::new(command, argv) else { return false };
        let reads = |selector: &Selector| {
            let has = selector.all_keys || selector.has_key(key, READ);
            has && !selector.excludes(key) && selector.check(&request).is_ok()
        };
        self.all_selectors().any(reads)
    }

    /// May it listen to the channel, or to channels by this very pattern?
    pub(super) fn may_listen(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.all_selectors().any(|selector| selector.has_channel(channel, is_pattern))
    }
}

impl Selector {
    fn check(&self, request: &AclRequest<'_>) -> Result<(), Denial> {
        if !self.has_command(request) {
            return Err(Denial::Command);
        }
        if !self.all_keys && !request.keys.is_empty() {
            for (at, access) in request.keys_with_access() {
                if !self.has_key(request.argument(at), access) {
                    return Err(Denial::Key(at));
                }
            }
        }
        if !self.excluded.is_empty() {
            for at in &request.keys {
                if self.excludes(request.argument(*at)) {
                    return Err(Denial::Key(*at));
                }
            }
        }
        if !self.all_channels {
            for at in request.channels.clone() {
                if !self.has_channel(request.argument(at), request.patterns) {
                    return Err(Denial::Channel(at));
                }
            }
        }
        Ok(())
    }

    fn has_command(&self, request: &AclRequest<'_>) -> bool {
        if self.all_commands
            || request.command.flags & NO_AUTH != 0
            || self.commands.has(request.number)
        {
            return true;
        }
        let first = error::c_string(request.argument(1));
        let allowed = self.first_arguments.get(&request.number);
        request.argv.len() > 1
            && allowed.is_some_and(|all| all.iter().any(|word| word.eq_ignore_ascii_case(first)))
    }

    fn has_key(&self, key: &[u8], access: u8) -> bool {
        let fits = |(allowed, pattern): &(u8, Box<[u8]>)| {
            allowed & access == access && scan::matches(pattern, key, false)
        };
        self.keys.iter().any(fits)
    }

    fn excludes(&self, key: &[u8]) -> bool {
        let differs = |pattern: &[u8]| match (pattern.first(), key.first()) {
            // Most keys are none of them, and the first byte tells.
            (Some(first), Some(given)) => {
                !matches!(first, b'*' | b'?' | b'[' | b'\\') && first != given
            }
            _ => false,
        };
        self.excluded.iter().any(|pattern| !differs(pattern) && scan::matches(pattern, key, false))
    }

    fn has_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let mut channels = self.channels.iter().map(|allowed| &**allowed);
        self.all_channels
            || channels.any(|allowed| match is_pattern {
                true => allowed == channel,
                false => scan::matches(allowed, channel, false),
            })
    }
}
