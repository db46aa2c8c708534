//! Names and ids. Each is parsed once, at the edge, into a type that cannot hold a separator of the
//! keyspace, a hash tag or a control character.

use std::fmt;

use store::Millis;
use uuid::Uuid;

use crate::Error;

/// The name of a queue: a lower-case letter or digit, then up to 62 of `a-z`, `0-9` and `-`.
///
/// ```
/// use tidegate_room::QueueId;
/// assert!(QueueId::parse("concert-tickets").is_ok());
/// for bad in ["", "-a", "A", "a:waiting:0", "a b", "{a}", "ü"] {
///     assert!(QueueId::parse(bad).is_err(), "{bad}");
/// }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(String);

impl QueueId {
    /// Maximum length of a name.
    pub const MAX: usize = 63;

    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut bytes = text.bytes();
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let good = text.len() <= Self::MAX
            && bytes.next().is_some_and(word)
            && bytes.all(|b| word(b) || b == b'-');
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::invalid(
                "queue_id",
                "1 to 63 characters of a-z, 0-9 and -, the first not a -",
            ))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueId({})", self.0)
    }
}

macro_rules! uuid_id {
    ($(#[$meta:meta])* $name:ident, $field:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Parses the usual 36 characters, in lower case.
            pub fn parse(text: &str) -> Result<Self, Error> {
                match Uuid::try_parse(text) {
                    Ok(id) if id.hyphenated().encode_lower(&mut [0; 36]) == text => Ok(Self(id)),
                    _ => Err(Error::invalid($field, "a UUID of 36 lower-case characters")),
                }
            }

            /// Returns the id's 16 bytes.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.into_bytes()
            }

            /// Creates an id from its 16 bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.hyphenated())
            }
        }
    };
}

uuid_id! {
    /// Id of a position in a queue: a UUIDv7 whose time bits are the microsecond of enqueueing, so that
    /// ids sort in the order of arrival.
    PositionId, "position_id"
}

uuid_id! {
    /// Id of a session on the protected site; also the id (`jti`) of its pass.
    SessionId, "session_id"
}

impl PositionId {
    /// Creates the id of a ticket (microseconds since 1970) drawn at `now`; `chance` fills the random
    /// bits. The last bit tells whether the time bits are, to the second, the time of the clock.
    pub(crate) fn of_ticket(ticket: u64, now: Millis, chance: [u8; 8]) -> Self {
        let (ms, us) = (ticket / 1000, ticket % 1000);
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        let fraction = us << 2;
        bytes[6] = 0x70 | (fraction >> 8) as u8;
        bytes[7] = (fraction & 0xff) as u8;
        bytes[8..].copy_from_slice(&chance);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        let exact = i64::try_from(ms / 1000) == Ok(now.as_secs());
        bytes[15] = (bytes[15] & 0xfe) | u8::from(exact);
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns the microsecond in the id's time bits.
    ///
    /// ```
    /// use tidegate_room::PositionId;
    /// let id = PositionId::parse("019b76da-a800-71f4-8000-000000000000").unwrap();
    /// assert_eq!(id.enqueued_us(), 1_767_225_600_000_125);
    /// ```
    pub fn enqueued_us(self) -> u64 {
        let bytes = self.to_bytes();
        let ms = bytes[..6].iter().fold(0, |ms, b| ms << 8 | u64::from(*b));
        let fraction = u64::from(bytes[6] & 0x0f) << 8 | u64::from(bytes[7]);
        ms * 1000 + (fraction >> 2)
    }

    /// Returns true if the time bits are the time of enqueueing; otherwise only the record has it.
    pub(crate) fn is_exact(self) -> bool {
        let bytes = self.to_bytes();
        bytes[6] >> 4 == 7 && bytes[15] & 1 == 1
    }
}

impl SessionId {
    pub(crate) fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

/// Priority of a visitor: 0 normal, 1 elevated, 2 VIP, 3 premium. Above 0 it needs proof: a signed
/// invite or an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitorPriority(u8);

impl VisitorPriority {
    /// Normal: the default.
    pub const NORMAL: VisitorPriority = VisitorPriority(0);
    /// Elevated: skips a tenth of the queue.
    pub const ELEVATED: VisitorPriority = VisitorPriority(1);
    /// VIP: skips half of the queue.
    pub const VIP: VisitorPriority = VisitorPriority(2);
    /// Premium: goes first.
    pub const PREMIUM: VisitorPriority = VisitorPriority(3);

    /// Creates a priority from its number, 0 to 3.
    pub fn parse(number: u8) -> Result<Self, Error> {
        if number <= 3 {
            Ok(Self(number))
        } else {
            Err(Error::invalid("priority", "a number from 0 to 3"))
        }
    }

    /// Returns the number, 0 to 3.
    pub fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_767_225_600_000);

    #[test]
    fn an_id_says_whether_its_time_is_the_clocks() {
        let of = |ticket, chance| PositionId::of_ticket(ticket, NOW, [chance; 8]).is_exact();
        for chance in [0, 0xff] {
            assert!(of(1_767_225_600_000_000, chance) && of(1_767_225_600_999_999, chance));
            assert!(!of(1_767_225_601_000_000, chance) && !of(1_767_225_599_999_999, chance));
        }
    }

    #[test]
    fn ids_sort_as_their_tickets() {
        let tickets = [
            1_767_225_600_000_000u64,
            1_767_225_600_000_001,
            1_767_225_600_000_999,
            1_767_225_600_001_000,
        ];
        let ids: Vec<_> =
            tickets.iter().map(|t| PositionId::of_ticket(*t, NOW, [0xff; 8]).to_string()).collect();
        assert!(ids.is_sorted(), "{ids:?}");
        for (ticket, id) in tickets.iter().zip(&ids) {
            let id = PositionId::parse(id).unwrap();
            assert_eq!(id.enqueued_us(), *ticket);
            assert_eq!(Uuid::from_bytes(id.to_bytes()).get_version_num(), 7);
        }
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = SessionId::fresh().to_string();
        assert!(SessionId::parse(&id).is_ok());
        for bad in
            [id.to_uppercase(), id.replace('-', ""), format!("{{{id}}}"), format!("urn:uuid:{id}")]
        {
            let lower = bad.chars().any(|c| c.is_ascii_alphabetic()) || bad.len() != 36;
            assert!(!lower || SessionId::parse(&bad).is_err(), "{bad}");
        }
    }
}
