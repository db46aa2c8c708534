//! The words that ACL SETUSER understands.

use super::catalogue;
use super::user::{self, Hash, READ, Selector, User, WRITE};
use crate::error::c_string;

/// The reason why a word is not a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleError {
    Unknown,
    Syntax,
    KeysAfterAll,
    ChannelsAfterAll,
    NoSuchPassword,
    NoHash,
    ArgumentOfSubcommand,
    TooMany,
}

impl RuleError {
    pub(super) fn text(self) -> &'static str {
        match self {
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and \
                 does not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid \
                 and does not have any effect. Try 'resetchannels' to start with an empty list of \
                 channels"
            }
            RuleError::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            RuleError::NoHash => {
                "The password hash must be exactly 64 characters and contain only lowercase \
                 hexadecimal characters"
            }
            RuleError::ArgumentOfSubcommand => {
                "Allowing first-arg of a subcommand is not supported"
            }
            RuleError::TooMany => "A user cannot have so many rules",
        }
    }
}

/// Passwords, patterns and first arguments of one user, together.
const RULES_MAX: usize = 10_000;

/// The words with those of one pair of parentheses put together. The error is the word whose
/// parenthesis is not closed.
pub(super) fn join_parentheses<'a>(words: &[&'a [u8]]) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut joined: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        match &mut open {
            Some((_, inside)) => {
                inside.push(b' ');
                inside.extend_from_slice(c_string(word));
                if word.ends_with(b")") {
                    joined.extend(open.take().map(|(_, inside)| inside));
                }
            }
            None if word.starts_with(b"(") && !word.ends_with(b")") => {
                open = Some((word, word.to_vec()));
            }
            None => joined.push(word.to_vec()),
        }
    }
    match open {
        Some((word, _)) => Err(word),
        None => Ok(joined),
    }
}

impl User {
    /// Changes the user as one word says. `all_channels` is what `acl-pubsub-default` gives.
    pub(super) fn apply(&mut self, word: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let name = c_string(word).to_ascii_lowercase();
        match (name.as_slice(), word) {
            (_, []) => {}
            (b"on", _) => self.on = true,
            (b"off", _) => self.on = false,
            (b"sanitize-payload", _) => self.sanitize = Some(true),
            (b"skip-sanitize-payload", _) => self.sanitize = Some(false),
            (b"nopass", _) => {
                self.nopass = true;
                self.passwords.clear();
            }
            (b"resetpass", _) => {
                self.nopass = false;
                self.passwords.clear();
            }
            (b"clearselectors", _) => self.selectors.clear(),
            (b"reset", _) => {
                *self = User::new(self.name(), all_channels);
                self.sanitize = Some(true);
            }
            (_, [b'>', password @ ..]) => self.add_password(user::hash(password)),
            (_, [b'#', digits @ ..]) => self.add_password(read_hash(digits)?),
            (_, [b'<', password @ ..]) => self.remove_password(user::hash(password))?,
            (_, [b'!', digits @ ..]) => self.remove_password(read_hash(digits)?)?,
            (_, [b'(', inside @ .., b')']) => {
                let mut selector = Selector::new(all_channels);
                // As in Redis, quotes that do not match leave nothing to read.
                for word in crate::split_quoted(inside).unwrap_or_default() {
                    selector.apply(&word)?;
                }
                self.selectors.push(selector);
            }
            _ => self.root.apply(word)?,
        }
        if self.rules() > RULES_MAX {
            return Err(RuleError::TooMany);
        }
        Ok(())
    }

    fn add_password(&mut self, hash: Hash) {
        self.nopass = false;
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
    }

    fn remove_password(&mut self, hash: Hash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| *known == hash);
        self.passwords.remove(at.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }
}

/// 64 hexadecimal digits, lower case.
fn read_hash(digits: &[u8]) -> Result<Hash, RuleError> {
    let mut hash = Hash::default();
    let fits = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 2 * hash.len() || !digits.iter().all(fits) {
        return Err(RuleError::NoHash);
    }
    let value = |digit: u8| if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 };
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |byte, digit| byte << 4 | value(*digit));
    }
    Ok(hash)
}

/// White space, or the zero byte that ends a string in C.
pub(super) fn has_spaces(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, 0 | 0x0b))
}

/// A pattern as it is kept.
fn pattern(bytes: &[u8]) -> Result<Box<[u8]>, RuleError> {
    if has_spaces(bytes) { Err(RuleError::Syntax) } else { Ok(Box::from(bytes)) }
}

impl Selector {
    fn apply(&mut self, word: &[u8]) -> Result<(), RuleError> {
        let name = c_string(word).to_ascii_lowercase();
        match (name.as_slice(), word) {
            (b"allkeys" | b"~*", _) => {
                (self.all_keys, self.keys, self.excluded) = (true, Vec::new(), Vec::new());
            }
            (b"resetkeys", _) => {
                (self.all_keys, self.keys, self.excluded) = (false, Vec::new(), Vec::new());
            }
            (b"allchannels" | b"&*", _) => {
                (self.all_channels, self.channels) = (true, Vec::new());
            }
            (b"resetchannels", _) => (self.all_channels, self.channels) = (false, Vec::new()),
            (b"allcommands" | b"+@all", _) => self.allow_all(),
            (b"nocommands" | b"-@all", _) => self.allow_none(),
            (_, [b'~' | b'%', ..]) => self.add_keys(word)?,
            // Not in Redis, which has no way to say "all keys but these".
            (_, [b'-', b'~', keys @ ..]) => {
                let keys = pattern(keys)?;
                if !self.excluded.contains(&keys) {
                    self.excluded.push(keys);
                }
            }
            (_, [b'&', channel @ ..]) => {
                if self.all_channels {
                    return Err(RuleError::ChannelsAfterAll);
                }
                let channel = pattern(channel)?;
                if !self.channels.contains(&channel) {
                    self.channels.push(channel);
                }
            }
            ([sign @ (b'+' | b'-'), b'@', category @ ..], _) => {
                let category = catalogue::category(category).ok_or(RuleError::Unknown)?;
                self.allow_category(category, *sign == b'+');
            }
            ([b'+', command @ ..], [_, spelled @ ..]) => self.add_command(command, spelled)?,
            ([b'-', command @ ..], _) => {
                let (number, _) = catalogue::find_named(command).ok_or(RuleError::Unknown)?;
                self.allow(number, false);
            }
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    /// `~pattern`, or `%`, what may be done with the keys, and then that.
    fn add_keys(&mut self, word: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        let (access, keys) = match word {
            [b'%', rest @ ..] => {
                let signs = rest.iter().position(|byte| *byte == b'~').unwrap_or(rest.len());
                let (signs, keys) = rest.split_at_checked(signs).unwrap_or((rest, &[]));
                let access = match signs.to_ascii_uppercase().as_slice() {
                    b"R" => READ,
                    b"W" => WRITE,
                    b"RW" | b"WR" => READ | WRITE,
                    _ => return Err(RuleError::Syntax),
                };
                (access, keys.strip_prefix(b"~").unwrap_or(keys))
            }
            _ => (READ | WRITE, word.get(1..).unwrap_or_default()),
        };
        let keys = pattern(keys)?;
        match self.keys.iter_mut().find(|(_, known)| *known == keys) {
            Some((known, _)) => *known |= access,
            None => self.keys.push((access, keys)),
        }
        Ok(())
    }

    /// `command`, `command|subcommand`, or `command|argument` for one that has no subcommands.
    /// The name comes in lower case, and as it was spelled.
    fn add_command(&mut self, name: &[u8], spelled: &[u8]) -> Result<(), RuleError> {
        let Some(bar) = memchr::memrchr(b'|', name) else {
            let (number, _) = catalogue::find_named(name).ok_or(RuleError::Unknown)?;
            self.allow(number, true);
            return Ok(());
        };
        let container = name.get(..bar).unwrap_or_default();
        let (number, entry) = catalogue::find_named(container).ok_or(RuleError::Unknown)?;
        if entry.is_part {
            return Err(RuleError::ArgumentOfSubcommand);
        }
        let argument = c_string(spelled).get(bar + 1..).unwrap_or_default();
        if argument.is_empty() {
            return Err(RuleError::Syntax);
        }
        if !entry.parts.is_empty() {
            let (number, _) = catalogue::find_named(name).ok_or(RuleError::Unknown)?;
            self.allow(number, true);
            return Ok(());
        }
        let known = self.first_arguments.entry(number).or_default();
        if !known.iter().any(|other| other.eq_ignore_ascii_case(argument)) {
            known.push(Box::from(argument));
        }
        Ok(())
    }
}
