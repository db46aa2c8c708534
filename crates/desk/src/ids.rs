//! Names and ids. Each is parsed once, at the edge, into a type that cannot hold a separator of the
//! keyspace, a hash tag or a control character.

use std::{fmt, sync::Arc};

use crate::Error;

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $field:literal, $max:literal, $alphabet:expr, $says:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Maximum length in bytes.
            pub const MAX: usize = $max;

            #[doc = concat!("Parses ", $says, ".")]
            pub fn parse(text: &str) -> Result<Self, Error> {
                let alphabet: fn(char) -> bool = $alphabet;
                if (1..=Self::MAX).contains(&text.len()) && text.chars().all(alphabet) {
                    Ok(Self(text.into()))
                } else {
                    Err(Error::invalid($field, $says))
                }
            }

            /// Returns the text.
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
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

/// A character of an id that others choose: anything that can be printed and separates nothing.
fn is_plain(c: char) -> bool {
    !c.is_control() && !c.is_whitespace() && !matches!(c, ':' | '{' | '}' | '#')
}

name! {
    /// Name of a rate-limit policy.
    PolicyName, "policy", 32,
    |c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'),
    "1 to 32 characters of a-z, 0-9, _ and -"
}

impl PolicyName {
    /// Ends the name under which a preview of a policy counts; no policy can have it.
    const PREVIEW_MARK: char = '~';

    /// Returns the name under which the preview of this policy counts.
    pub(crate) fn preview(&self) -> Self {
        Self(format!("{}{}", self.0, Self::PREVIEW_MARK).into())
    }

    /// Returns the policy of which this is the preview.
    pub fn previewed(&self) -> Option<&str> {
        self.0.strip_suffix(Self::PREVIEW_MARK)
    }

    /// Parses a name under which something was counted: of a policy or of its preview.
    pub(crate) fn parse_counted(text: &str) -> Result<Self, Error> {
        match text.strip_suffix(Self::PREVIEW_MARK) {
            Some(policy) => Self::parse(policy).map(|policy| policy.preview()),
            None => Self::parse(text),
        }
    }
}

name! {
    /// Name of a program whose traffic is counted apart.
    AppName, "app", 64,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
    "1 to 64 characters of a-z, A-Z, 0-9, _, - and ."
}

name! {
    /// Id of an instance of the program, new with each start.
    InstanceId, "instance_id", 64,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
    "1 to 64 characters of a-z, A-Z, 0-9, _, - and ."
}

name! {
    /// Id of a user, as the app that owns the users spells it.
    UserId, "user_id", 128, is_plain,
    "1 to 128 bytes without spaces, control characters, :, {, } and #"
}

/// A character of an id of the chat.
fn is_id(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

name! {
    /// Id of a conversation: `cnv_` and 32 hexadecimal digits, when made here.
    ConversationId, "conversation_id", 64, is_id,
    "1 to 64 characters of a-z, A-Z, 0-9, _ and -"
}

name! {
    /// Id of an agent: `agt_` and 32 hexadecimal digits, when made here.
    AgentId, "agent_id", 64, is_id,
    "1 to 64 characters of a-z, A-Z, 0-9, _ and -"
}

name! {
    /// Id of a team.
    TeamId, "team_id", 64, is_id,
    "1 to 64 characters of a-z, A-Z, 0-9, _ and -"
}

/// Makes ids that sort by time.
pub(crate) fn fresh(start: &str) -> String {
    format!("{start}_{}", uuid::Uuid::now_v7().simple())
}

impl ConversationId {
    pub(crate) fn fresh() -> Self {
        Self(fresh("cnv").into())
    }
}

impl AgentId {
    pub(crate) fn fresh() -> Self {
        Self(fresh("agt").into())
    }
}

impl TeamId {
    pub(crate) fn fresh() -> Self {
        Self(fresh("team").into())
    }
}

/// The start of every key: `ha:` unless set.
///
/// ```
/// use tidegate_desk::Prefix;
/// assert_eq!(Prefix::default().as_str(), "ha:");
/// assert!(Prefix::parse("shop:desk:").is_ok());
/// for bad in ["", "ha", "{ha}:", "h a:", "ha:\n"] {
///     assert!(Prefix::parse(bad).is_err(), "{bad:?}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prefix(String);

impl Prefix {
    /// Maximum length in bytes.
    pub const MAX: usize = 64;

    /// Parses a prefix: at most 64 bytes that end in `:`, without braces, spaces and control
    /// characters. A brace would decide the cluster slot of every key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let is_allowed = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '{' | '}');
        if text.len() <= Self::MAX && text.ends_with(':') && text.chars().all(is_allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::invalid(
                "prefix",
                "must end in : and have at most 64 bytes, none of them a brace or a space, such as ha:",
            ))
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("ha:".to_owned())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_hold_a_separator_a_hash_tag_or_a_control_character() {
        for bad in ["", "a:b", "{a}", "a b", "a\n", "a#b", "a\u{7f}", &"x".repeat(129)] {
            assert!(UserId::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["123", "ü", "anna@example.org", "a-b_c.d~e"] {
            assert!(UserId::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", "Api", "a b", "a#b", "a:b", &"x".repeat(33)] {
            assert!(PolicyName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
