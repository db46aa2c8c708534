//! Tokens of sessions: `du_<id>.<secret>`.
//!
//! The id names the user and the session, so that on a cluster everything about a user is found in
//! one slot; it proves nothing. The secret has 192 bits; only its SHA-256 is stored, which without
//! the secret is of no use.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest;

use crate::{
    Error, UserId,
    random::{random, random_hex},
};

/// Length of a secret as text.
const SECRET_CHARS: usize = 32;

/// Length of the random part of an id as text.
const ID_CHARS: usize = 32;

/// Id of a user's session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UserSessionId {
    user: UserId,
    random: String,
}

impl UserSessionId {
    /// Parses an id; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (user, random) = text.split_once('~')?;
        let user = String::from_utf8(URL_SAFE_NO_PAD.decode(user).ok()?).ok()?;
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if random.len() != ID_CHARS || !random.bytes().all(is_hex) {
            return None;
        }
        Some(Self { user: UserId::parse(&user).ok()?, random: random.to_owned() })
    }

    /// Returns the user.
    pub fn user(&self) -> &UserId {
        &self.user
    }
}

impl fmt::Display for UserSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}", URL_SAFE_NO_PAD.encode(self.user.as_str()), self.random)
    }
}

impl fmt::Debug for UserSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserSessionId({self})")
    }
}

/// The token of a session. Whoever has its text is the user.
pub struct UserToken {
    session: UserSessionId,
    secret: String,
}

impl UserToken {
    pub(crate) fn fresh(user: &UserId) -> Result<Self, Error> {
        let session = UserSessionId { user: user.clone(), random: random_hex::<16>()? };
        Ok(Self { session, secret: URL_SAFE_NO_PAD.encode(random::<24>()?) })
    }

    /// Parses a token; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix("du_")?.rsplit_once('.')?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if secret.len() != SECRET_CHARS || !secret.bytes().all(is_plain) {
            return None;
        }
        Some(Self { session: UserSessionId::parse(id)?, secret: secret.to_owned() })
    }

    /// Returns the id of the session.
    pub fn session(&self) -> &UserSessionId {
        &self.session
    }

    /// Returns the hash that is stored.
    pub(crate) fn hash(&self) -> String {
        let digest = digest::digest(&digest::SHA256, self.secret.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The whole token, to be handed to the user once.
impl fmt::Display for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "du_{}.{}", self.session, self.secret)
    }
}

impl fmt::Debug for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserToken(du_{}.…)", self.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_is_never_logged() {
        for user in ["123", "anna@example.org", "a.b~c-d_e", "ünïcode"] {
            let token = UserToken::fresh(&UserId::parse(user).unwrap()).unwrap();
            let text = token.to_string();
            let read = UserToken::parse(&text).unwrap();
            assert_eq!((read.session(), read.hash()), (token.session(), token.hash()));
            assert_eq!(read.session().user().as_str(), user);
            assert!(!format!("{token:?}").contains(&token.secret));
            for bad in [
                text.replace("du_", ""),
                text.replace('.', ""),
                format!("{text}x"),
                text.to_uppercase(),
            ] {
                assert!(
                    UserToken::parse(&bad).is_none_or(|read| read.hash() != token.hash()),
                    "{bad}"
                );
            }
        }
    }
}
