//! Keys, and the two ways they are spelled.
//!
//! A [`Key`] is built in a service's `keys.rs` and nowhere else, so that every name in the keyspace
//! can be found in one file per service. In the `Standalone` layout names are exactly those of the
//! documented schemas; `Cluster` adds hash tags so that the keys of one script share a slot.

use std::fmt;

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The name of one value in the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// A key spelled as given. Only for a `keys.rs`, which says so with
    /// `#[expect(clippy::disallowed_methods, reason = "keys are built here")]`.
    pub fn raw(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cluster slot (0 to 16383) this key lives in: of the hash tag when it has one, else of
    /// the whole name.
    ///
    /// ```
    /// # #![allow(clippy::disallowed_methods)]
    /// use tidegate_store::Key;
    /// assert_eq!(Key::raw("{spring}:waiting").slot(), Key::raw("{spring}:positions").slot());
    /// assert_eq!(Key::raw("123456789").slot(), 12739);
    /// ```
    pub fn slot(&self) -> u16 {
        slot(self.0.as_bytes())
    }
}

/// The cluster slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % 16384
}

/// The part of a key that decides its slot: between the first `{` and the next `}`, if not empty.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(0) | None => key,
        Some(close) => &rest[..close],
    }
}

/// CRC-16/XMODEM, as the cluster specification asks.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc: u16, byte| {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
        }
        crc
    })
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.0)
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl ToRedisArgs for Key {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(self.0.as_bytes());
    }
}

impl ToSingleRedisArg for Key {}

/// The spelling of a service's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Byte for byte the documented schema.
    #[default]
    Standalone,
    /// With hash tags, so that the keys of one script live in one slot.
    Cluster,
}

impl Layout {
    /// `part` as it is spelled in this layout when it is what ties keys together: bare, or between
    /// braces.
    ///
    /// ```
    /// use tidegate_store::Layout;
    /// assert_eq!(format!("queue:{}:positions", Layout::Standalone.tag("spring")),
    /// "queue:spring:positions"); assert_eq!(format!("queue:{}:positions",
    /// Layout::Cluster.tag("spring")), "queue:{spring}:positions");
    /// ```
    pub fn tag(self, part: impl fmt::Display) -> impl fmt::Display {
        Tag { layout: self, part }
    }
}

struct Tag<T> {
    layout: Layout,
    part: T,
}

impl<T: fmt::Display> fmt::Display for Tag<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout {
            Layout::Standalone => self.part.fmt(f),
            Layout::Cluster => write!(f, "{{{}}}", self.part),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "keys are built here")]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_cluster_specification() {
        // Values from CLUSTER KEYSLOT of a real server.
        for (key, slot) in [
            ("", 0),
            ("foo", 12182),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(Key::raw(key).slot(), slot, "{key:?}");
        }
    }
}
