//! A user, and how it is described.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::catalogue::{self, Numbers};
use crate::admin::command_info::CATEGORIES;

/// A password as it is kept.
pub(super) type Hash = [u8; 32];

pub(super) fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// A user: its passwords and permissions.
#[derive(Debug, Clone)]
pub(crate) struct User {
    name: Box<[u8]>,
    pub(super) on: bool,
    /// Any password will do.
    pub(super) nopass: bool,
    /// Are values for RESTORE looked at closely? They always are; it is only kept.
    pub(super) sanitize: Option<bool>,
    pub(super) passwords: Vec<Hash>,
    /// Root permissions: the rules without parentheses.
    pub(super) root: Selector,
    /// Selectors: further permissions, each checked on its own.
    pub(super) selectors: Vec<Selector>,
}

/// Reading a key.
pub(super) const READ: u8 = 1;
/// Changing a key.
pub(super) const WRITE: u8 = 2;

/// Rights that hold together: these commands on these keys and channels.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    pub(super) all_keys: bool,
    pub(super) all_channels: bool,
    /// Nothing was taken away since all commands were given.
    pub(super) all_commands: bool,
    /// All commands were given at first, so also those that may come one day.
    pub(super) subtractive: bool,
    pub(super) commands: Numbers,
    /// By the number of a command that is not allowed: first arguments with which it is.
    pub(super) first_arguments: BTreeMap<usize, Vec<Box<[u8]>>>,
    /// Patterns of keys, each for reading, writing or both.
    pub(super) keys: Vec<(u8, Box<[u8]>)>,
    /// Patterns of keys that are excluded, whatever the others say.
    pub(super) excluded: Vec<Box<[u8]>>,
    pub(super) channels: Vec<Box<[u8]>>,
}

impl User {
    /// A new user: off, without rights. `acl-pubsub-default` says whether to all channels.
    pub(super) fn new(name: &[u8], all_channels: bool) -> User {
        User {
            name: Box::from(name),
            on: false,
            nopass: false,
            sanitize: None,
            passwords: Vec::new(),
            root: Selector::new(all_channels),
            selectors: Vec::new(),
        }
    }

    /// A user who needs no password and may do everything.
    pub(super) fn all_powerful(name: &[u8]) -> User {
        let mut user = User::new(name, true);
        (user.on, user.nopass, user.root.all_keys) = (true, true, true);
        user.root.allow_all();
        user
    }

    /// Its name.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Can anyone be this user without a password?
    pub(super) fn is_open(&self) -> bool {
        self.on && self.nopass
    }

    /// Does it need no password at all?
    pub(crate) fn needs_no_password(&self) -> bool {
        self.nopass
    }

    /// Can one log in with this password?
    pub(super) fn admits(&self, password: &[u8]) -> bool {
        let given = hash(password);
        self.on && (self.nopass || self.passwords.iter().any(|known| is_same(known, &given)))
    }

    /// This password is the only one from now on; none is needed if it is empty.
    pub(super) fn set_password(&mut self, password: &[u8]) {
        self.passwords.clear();
        self.nopass = password.is_empty();
        if !password.is_empty() {
            self.passwords.push(hash(password));
        }
    }

    /// Is there nothing that it may not do?
    pub(super) fn may_do_everything(&self) -> bool {
        self.all_selectors()
            .any(|s| s.all_commands && s.all_keys && s.excluded.is_empty() && s.all_channels)
    }

    pub(super) fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.selectors)
    }

    /// Number of rules it has.
    pub(super) fn rules(&self) -> usize {
        let of = |selector: &Selector| {
            let first = selector.first_arguments.values().map(Vec::len).sum::<usize>();
            1 + first + selector.keys.len() + selector.excluded.len() + selector.channels.len()
        };
        self.passwords.len() + self.all_selectors().map(of).sum::<usize>()
    }

    /// Words that say how it can log in.
    pub(super) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.on { "on" } else { "off" }];
        if self.nopass {
            flags.push("nopass");
        }
        flags.extend(self.sanitize.map(|on| match on {
            true => "sanitize-payload",
            false => "skip-sanitize-payload",
        }));
        flags
    }

    /// All of it as the rules that would make it.
    pub(super) fn describe(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> =
            self.flags().iter().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.passwords.iter().map(|hash| [b"#", &*hex(hash)].concat()));
        words.push(self.root.describe());
        for selector in &self.selectors {
            words.push([b"(", &*selector.describe(), b")"].concat());
        }
        words.join(&b' ')
    }
}

/// Takes as long for a near miss as for a wide one.
fn is_same(known: &Hash, given: &Hash) -> bool {
    known.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Hexadecimal digits, lower case.
pub(super) fn hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| DIGITS.get(usize::from(n)).copied().unwrap_or(b'0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

impl Selector {
    /// No rights, but to all channels if so told.
    pub(super) fn new(all_channels: bool) -> Selector {
        Selector {
            all_keys: false,
            all_channels,
            all_commands: false,
            subtractive: false,
            commands: Numbers::none(),
            first_arguments: BTreeMap::new(),
            keys: Vec::new(),
            excluded: Vec::new(),
            channels: Vec::new(),
        }
    }

    pub(super) fn allow_all(&mut self) {
        (self.all_commands, self.subtractive) = (true, true);
        self.commands = Numbers::all();
        self.first_arguments.clear();
    }

    pub(super) fn allow_none(&mut self) {
        (self.all_commands, self.subtractive) = (false, false);
        self.commands = Numbers::none();
        self.first_arguments.clear();
    }

    /// Allows a command with all its subcommands, or takes it away.
    pub(super) fn allow(&mut self, number: usize, on: bool) {
        let parts = catalogue::all().get(number).map_or(0..0, |entry| entry.parts.clone());
        self.first_arguments.remove(&number);
        self.all_commands &= on;
        for number in std::iter::once(number).chain(parts) {
            self.commands.set(number, on);
        }
    }

    /// Allows the commands of a category, or takes them away.
    pub(super) fn allow_category(&mut self, category: usize, on: bool) {
        for (number, entry) in catalogue::all().iter().enumerate() {
            if entry.is_in(category) {
                self.allow(number, on);
            }
        }
    }

    /// Its keys as rules.
    pub(super) fn describe_keys(&self) -> Vec<u8> {
        let rule = |(access, pattern): &(u8, Box<[u8]>)| {
            let sign: &[u8] = match *access {
                READ => b"%R~",
                WRITE => b"%W~",
                _ => b"~",
            };
            [sign, pattern].concat()
        };
        let all = self.all_keys.then(|| b"~*".to_vec());
        let excluded = self.excluded.iter().map(|pattern| [b"-~", &**pattern].concat());
        let rules = all.into_iter().chain(self.keys.iter().map(rule)).chain(excluded);
        rules.collect::<Vec<_>>().join(&b' ')
    }

    /// The channels and patterns of channels that it names.
    pub(super) fn channels(&self) -> impl Iterator<Item = &[u8]> {
        self.channels.iter().map(|channel| &**channel)
    }

    /// Its channels as rules.
    pub(super) fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let rules = self.channels.iter().map(|pattern| [b"&", &**pattern].concat());
        rules.collect::<Vec<_>>().join(&b' ')
    }

    /// Its commands as rules: all or none at first, then categories for as long as one says more
    /// that is right than that is wrong, then single commands.
    pub(super) fn describe_commands(&self) -> Vec<u8> {
        let adds = !self.subtractive;
        let (sign, other) = if adds { ("+", "-") } else { ("-", "+") };
        let mut words = vec![format!("{other}@all").into_bytes()];
        // What the words say so far, and what is left to be said by categories.
        let mut said = Selector::new(false);
        if self.subtractive {
            said.allow_all();
        }
        let mut left = self.clone();
        let mut used = [false; CATEGORIES.len()];
        while let Some(best) = left.best_category(adds, &used) {
            let (Some(used), Some(name)) = (used.get_mut(best), CATEGORIES.get(best)) else {
                break;
            };
            *used = true;
            said.allow_category(best, adds);
            left.allow_category(best, !adds);
            words.push(format!("{sign}@{name}").into_bytes());
        }
        for (number, entry) in catalogue::all().iter().enumerate() {
            let on = self.commands.has(number);
            if on != said.commands.has(number) {
                said.allow(number, on);
                words.push(format!("{}{}", if on { '+' } else { '-' }, entry.name).into_bytes());
            }
            let first = self.first_arguments.get(&number).filter(|_| !on);
            for argument in first.into_iter().flatten() {
                words.push([b"+", entry.name.as_bytes(), b"|", argument].concat());
            }
        }
        words.join(&b' ')
    }

    /// The category that is nearest to what is left: with the fewest commands that differ, and of
    /// those the one with the most that do not.
    fn best_category(&self, adds: bool, used: &[bool]) -> Option<usize> {
        let count = |category: usize| {
            let numbers = catalogue::all().iter().enumerate();
            let inside = numbers.filter(|(_, entry)| entry.is_in(category));
            inside.fold((0i32, 0i32), |(same, other), (number, _)| {
                if self.commands.has(number) == adds {
                    (same + 1, other)
                } else {
                    (same, other + 1)
                }
            })
        };
        let free = used.iter().enumerate().filter(|(_, used)| !**used);
        let near = free.map(|(category, _)| (category, count(category)));
        let near = near.filter(|(_, (same, other))| same > other);
        near.min_by_key(|(_, (same, other))| (*other, -*same)).map(|(category, _)| category)
    }

    /// All of it as rules.
    fn describe(&self) -> Vec<u8> {
        let mut words = Vec::new();
        let keys = self.describe_keys();
        if !keys.is_empty() {
            words.push(keys);
        }
        if !self.all_channels {
            words.push(b"resetchannels".to_vec());
        }
        let channels = self.describe_channels();
        if !channels.is_empty() {
            words.push(channels);
        }
        words.push(self.describe_commands());
        words.join(&b' ')
    }
}
