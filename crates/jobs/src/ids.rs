//! Names and ids, each validated once.
//!
//! Ids from callers are parsed against a stated alphabet, so that they cannot break out of a key.
//! Ids read from the store were written by any program in any language and are taken as they are:
//! there a name only ever ends a key, so it cannot collide with another one.

use std::{borrow::Borrow, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// Longest name or id a caller may give. Keys are sent with every call, so they stay short.
pub const NAME_MAX: usize = 128;

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $what:literal, $allowed:literal, |$byte:ident| $test:expr) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes a name given by a caller, or says what is wrong with it.
            pub fn parse(text: impl Into<String>) -> Result<Self, Error> {
                let text = text.into();
                let fits = |$byte: u8| $test;
                if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(fits) {
                    return Err(Error::invalid(format!(
                        "{} {:?} is not 1 to {NAME_MAX} of {}",
                        $what, shorten(&text), $allowed
                    )));
                }
                Self::refuse_reserved(text)
            }

            /// Takes a name as some program stored it.
            #[allow(dead_code, reason = "not every name is read from the store")]
            pub(crate) fn stored(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::parse(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// Id of a job. Ours are ten letters and digits; other producers use UUIDs or anything else.
    JobId, "job id", "A-Z a-z 0-9 . _ - @",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@')
);

name!(
    /// Type of a job: selects the handler, and is the unit of pausing and limits.
    JobType, "job type", "A-Z a-z 0-9 . _ - : /",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/')
);

name!(
    /// Id of a worker. `active` is refused: its key is taken by the set of all workers.
    WorkerId, "worker id", "A-Z a-z 0-9 . _ -",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
);

name!(
    /// Whose keys: everything of one namespace starts with it. May be a hash tag such as `{mail}`.
    Namespace, "namespace", "A-Z a-z 0-9 . _ - : / { }",
    |byte| byte.is_ascii_alphanumeric()
        || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/' | b'{' | b'}')
);

impl JobId {
    /// A new random id: ten of 62 letters and digits, 59 bits. Short, because each waiting job
    /// holds its id five times; [`dispatch`](crate::Jobs::dispatch) finds a clash and draws again.
    ///
    /// ```
    /// let id = tidegate_jobs::JobId::random();
    /// assert_eq!(id.as_str().len(), 10);
    /// ```
    pub fn random() -> Self {
        Self((0..10).map(|_| fastrand::alphanumeric()).collect())
    }

    /// The id of a job that another program may have stored, whose alphabet is its own: up to 512
    /// bytes without control characters. Only for looking one up; ours are [parsed](Self::parse).
    pub fn foreign(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        if text.is_empty() || text.len() > 512 || text.chars().any(char::is_control) {
            return Err(Error::invalid("no job has an id like this"));
        }
        Self::refuse_reserved(text)
    }

    fn refuse_reserved(text: String) -> Result<Self, Error> {
        // A lone dash marks a removed entry of the waiting list.
        match text.as_str() {
            TOMB => Err(Error::invalid("job id \"-\" is reserved")),
            _ => Ok(Self(text)),
        }
    }
}

/// Tombstone in the waiting list where a job was taken out of the middle. No job ever has
/// this id, so a v1 worker that pops it drops it.
pub(crate) const TOMB: &str = "-";

impl JobType {
    /// A type that another program may have chosen, whose alphabet is its own: up to 512 bytes
    /// without control characters. Only for claiming, pausing and the like; jobs of ours are
    /// dispatched under a [parsed](Self::parse) one.
    pub fn foreign(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        if text.is_empty() || text.len() > 512 || text.chars().any(char::is_control) {
            return Err(Error::invalid("no job has a type like this"));
        }
        Ok(Self(text))
    }

    fn refuse_reserved(text: String) -> Result<Self, Error> {
        Ok(Self(text))
    }
}

impl WorkerId {
    fn refuse_reserved(text: String) -> Result<Self, Error> {
        match text.as_str() {
            "active" => Err(Error::invalid("worker id \"active\" is reserved")),
            _ => Ok(Self(text)),
        }
    }
}

impl Namespace {
    fn refuse_reserved(text: String) -> Result<Self, Error> {
        Ok(Self(text))
    }
}

impl Default for Namespace {
    /// `bridge`, as v1.
    fn default() -> Self {
        Self("bridge".to_owned())
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_break_a_key_are_refused() {
        for bad in ["", "a b", "a\n", "a{b", "é", "a:b", &"x".repeat(129)] {
            assert!(JobId::parse(bad).is_err(), "{bad:?}");
            assert!(WorkerId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(JobId::parse("-").is_err());
        assert!(WorkerId::parse("active").is_err());
        assert!(WorkerId::parse("heartbeat:x").is_err());
        assert!(JobType::parse("email:send").is_ok());
        assert!(Namespace::parse("{mail}").is_ok());
    }

    #[test]
    fn an_error_names_what_is_allowed_and_stays_short() {
        let error = JobId::parse("x y".repeat(1_000)).unwrap_err().to_string();
        assert!(error.contains("A-Z a-z 0-9 . _ - @"), "{error}");
        assert!(error.len() < 200, "{error}");
    }
}
