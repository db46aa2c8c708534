//! The identity a request is charged to.
//!
//! An identity is typed, so that a header with the text `user:1` is never user 1, and its spelling
//! in a key is bounded. Invariant: two different identities never have the same spelling; those
//! that count as one (two addresses of one IPv6 network) always do.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ring::digest;

use crate::Error;

/// Longest value that is spelled out in a key; a longer one is hashed.
const PLAIN_MAX: usize = 64;

/// The identity a request is charged to.
///
/// ```
/// use tidegate_desk::Identity;
/// assert_eq!(Identity::ip("192.168.1.100".parse().unwrap()).as_str(), "192.168.1.100");
/// assert_eq!(Identity::ip("2001:db8::1".parse().unwrap()).as_str(), "2001:db8::/64");
/// assert_eq!(Identity::user("123").as_str(), "user:123");
/// assert!(Identity::key("{x}").as_str().starts_with("key:~"), "unusual values are hashed");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(String);

impl Identity {
    /// Maximum length of a raw identifier in bytes.
    pub const RAW_MAX: usize = 200;

    /// The identity of a network address: an IPv4 address, or the /64 of an IPv6 address, which is
    /// what one customer has.
    pub fn ip(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::v4(v4),
            IpAddr::V6(v6) => {
                let mut segments = v6.segments();
                segments[4..].fill(0);
                Self(format!("{}/64", std::net::Ipv6Addr::from(segments)))
            }
        }
    }

    fn v4(address: Ipv4Addr) -> Self {
        Self(address.to_string())
    }

    /// The identity of a user.
    pub fn user(id: &str) -> Self {
        Self(spelled("user:", id))
    }

    /// The identity of an API key, or of anything else that the caller names.
    pub fn key(id: &str) -> Self {
        Self(spelled("key:", id))
    }

    /// An identifier as another program spells it in a key: `203.0.113.7`, `user:123`. The caller
    /// answers for its meaning. Refuses text that is empty, longer than 200 bytes, or has `#`,
    /// braces, spaces or control characters.
    pub fn raw(text: &str) -> Result<Self, Error> {
        let is_bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '#' | '{' | '}');
        if text.is_empty() || text.len() > Self::RAW_MAX || text.contains(is_bad) {
            return Err(Error::invalid(
                "identifier",
                "1 to 200 bytes without #, braces, spaces and control characters; use a typed \
                 identity for any other value",
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the spelling in keys.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.0)
    }
}

/// A value as it stands in a key, behind its kind: itself when it is short and plain, else `~` and a
/// hash. `~` is not a plain character, so no plain value looks like a hash.
fn spelled(kind: &str, value: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    if (1..=PLAIN_MAX).contains(&value.len()) && value.bytes().all(is_plain) {
        return [kind, value].concat();
    }
    let digest = digest::digest(&digest::SHA256, value.as_bytes());
    let hex = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}"));
    format!("{kind}~{}", hex.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn two_addresses_of_one_network_share_an_identity_and_others_do_not() {
        let ip = |text: &str| Identity::ip(text.parse().unwrap());
        assert_eq!(ip("2001:db8::1"), ip("2001:db8::ffff:1"));
        assert_ne!(ip("2001:db8:0:1::1"), ip("2001:db8::1"));
        assert_eq!(ip("::ffff:192.0.2.1"), ip("192.0.2.1"));
        assert_ne!(ip("192.0.2.1"), ip("192.0.2.2"));
    }

    #[test]
    fn no_two_identities_share_a_spelling_and_its_length_is_bounded() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut seen: HashMap<String, (u8, String)> = HashMap::new();
        let alphabet: Vec<char> = "ab1:~{}# .@-_/\n\u{e9}".chars().collect();
        for round in 0..20_000 {
            let length = random.usize(0..if round % 50 == 0 { 400 } else { 6 });
            let value: String =
                (0..length).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
            for (kind, identity) in [(0, Identity::user(&value)), (1, Identity::key(&value))] {
                assert!(identity.as_str().len() <= 70, "{identity:?}");
                assert!(!identity.as_str().contains(['#', '{', '}', ' ', '\n']), "{identity:?}");
                let known = seen.insert(identity.to_string(), (kind, value.clone()));
                assert!(known.is_none_or(|known| known == (kind, value.clone())), "{identity:?}");
            }
        }
        for text in ["user:1", "key:1", "127.0.0.1", "::1", "::/64"] {
            for identity in [Identity::user(text), Identity::key(text)] {
                assert_ne!(identity.as_str(), text);
                assert!(text.parse().map(Identity::ip).ok().is_none_or(|ip| ip != identity));
            }
        }
    }

    #[test]
    fn a_raw_identifier_cannot_reach_another_key_or_slot() {
        for bad in ["", "a#login", "{a}", "a}", "a b", "a\u{0}", &"x".repeat(201)] {
            assert!(Identity::raw(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Identity::raw("user:123").unwrap(), Identity::user("123"));
        assert_eq!(Identity::raw("203.0.113.7").unwrap(), Identity::ip([203, 0, 113, 7].into()));
    }
}
