//! Keyspace notifications: changes, published to subscribers of the key or the event.

use crate::engine::Core;

/// The classes of keyspace events, as in `notify-keyspace-events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Generic = 1 << 2,
    String = 1 << 3,
    List = 1 << 4,
    Set = 1 << 5,
    Hash = 1 << 6,
    Zset = 1 << 7,
    Expired = 1 << 8,
    Evicted = 1 << 9,
    Stream = 1 << 10,
    KeyMiss = 1 << 11,
    New = 1 << 14,
}

/// `K`: events go to `__keyspace@<db>__:<key>`.
pub(crate) const KEYSPACE: u32 = 1 << 0;
/// `E`: events go to `__keyevent@<db>__:<event>`.
pub(crate) const KEYEVENT: u32 = 1 << 1;
/// The class of modules' own types, which exist in the setting only.
const MODULE: u32 = 1 << 13;
/// `A`: all classes but misses and new keys.
const ALL: u32 = Class::Generic as u32
    | Class::String as u32
    | Class::List as u32
    | Class::Set as u32
    | Class::Hash as u32
    | Class::Zset as u32
    | Class::Expired as u32
    | Class::Evicted as u32
    | Class::Stream as u32
    | MODULE;

/// Letters of `notify-keyspace-events`, in the order in which Redis shows them.
const LETTERS: [(u8, u32); 11] = [
    (b'g', Class::Generic as u32),
    (b'$', Class::String as u32),
    (b'l', Class::List as u32),
    (b's', Class::Set as u32),
    (b'h', Class::Hash as u32),
    (b'z', Class::Zset as u32),
    (b'x', Class::Expired as u32),
    (b'e', Class::Evicted as u32),
    (b't', Class::Stream as u32),
    (b'd', MODULE),
    (b'n', Class::New as u32),
];

/// The bits that a setting like `KEA` stands for; none if a letter has no meaning.
pub(crate) fn parse(letters: &[u8]) -> Option<u32> {
    let mut flags = 0;
    for letter in letters {
        flags |= match letter {
            b'A' => ALL,
            b'K' => KEYSPACE,
            b'E' => KEYEVENT,
            b'm' => Class::KeyMiss as u32,
            other => LETTERS.iter().find(|(l, _)| l == other)?.1,
        };
    }
    Some(flags)
}

/// The letters for these bits, as CONFIG GET shows them.
pub(crate) fn letters(flags: u32) -> Vec<u8> {
    let mut out = Vec::new();
    if flags & ALL == ALL {
        // Redis shows no `n` here, though it is not part of `A`.
        out.push(b'A');
    } else {
        out.extend(LETTERS.iter().filter(|(_, bit)| flags & bit != 0).map(|(letter, _)| letter));
    }
    for (letter, bit) in [(b'K', KEYSPACE), (b'E', KEYEVENT), (b'm', Class::KeyMiss as u32)] {
        if flags & bit != 0 {
            out.push(letter);
        }
    }
    out
}

impl Core {
    /// Sends a keyspace event if that class is switched on.
    pub(crate) fn notify(&mut self, db: usize, class: Class, event: &str, key: &[u8]) {
        let flags = self.config.notify_events;
        if flags & class as u32 == 0 {
            return;
        }
        if flags & KEYSPACE != 0 {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(key);
            self.publish(&channel, event.as_bytes());
        }
        if flags & KEYEVENT != 0 {
            self.publish(format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }
}
