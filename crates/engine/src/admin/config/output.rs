//! `client-output-buffer-limit`: how much a client may leave unread, by class.

use super::commands::bytes_of;
use crate::{Engine, number};

/// Limits on what a client of one class may leave unread; 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// A client above this many bytes is closed at once.
    pub hard_bytes: usize,
    /// A client above this many bytes for [`OutputLimit::soft_seconds`] is closed.
    pub soft_bytes: usize,
    /// See [`OutputLimit::soft_bytes`].
    pub soft_seconds: u64,
}

/// The limits of all classes; see `client-output-buffer-limit` in redis.conf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Clients that send commands and read replies.
    pub normal: OutputLimit,
    /// Replicas: there never are any, so this is only shown.
    pub replica: OutputLimit,
    /// Clients that listen to a channel or a pattern.
    pub pubsub: OutputLimit,
}

impl Default for OutputLimits {
    fn default() -> OutputLimits {
        let limit = |hard_bytes, soft_bytes, soft_seconds| OutputLimit {
            hard_bytes,
            soft_bytes,
            soft_seconds,
        };
        OutputLimits {
            normal: limit(0, 0, 0),
            replica: limit(256 << 20, 64 << 20, 60),
            pubsub: limit(32 << 20, 8 << 20, 60),
        }
    }
}

impl OutputLimits {
    /// These limits, changed as the words of a CONFIG SET say: class, hard, soft, seconds, and
    /// again.
    pub(super) fn changed(mut self, value: &[u8]) -> Result<OutputLimits, String> {
        let words: Vec<&[u8]> = value.split(|b| *b == b' ').filter(|w| !w.is_empty()).collect();
        let groups = words.chunks_exact(4);
        if words.is_empty() || !groups.remainder().is_empty() {
            return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
        }
        for group in groups {
            let &[class, hard, soft, seconds] = group else { continue };
            let limit = match class.to_ascii_lowercase().as_slice() {
                b"normal" => &mut self.normal,
                b"replica" | b"slave" => &mut self.replica,
                b"pubsub" => &mut self.pubsub,
                _ => {
                    return Err(
                        "Invalid client class specified in buffer limit configuration.".to_owned()
                    );
                }
            };
            let wrong =
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
            let bytes = |word| bytes_of(word).and_then(|n| usize::try_from(n).ok()).ok_or(wrong);
            *limit = OutputLimit {
                hard_bytes: bytes(hard)?,
                soft_bytes: bytes(soft)?,
                soft_seconds: number::parse_u64(seconds).ok_or(wrong)?,
            };
        }
        Ok(self)
    }

    /// As CONFIG GET shows them.
    pub(super) fn describe(&self) -> String {
        let all = [("normal", self.normal), ("slave", self.replica), ("pubsub", self.pubsub)];
        let one = |(class, limit): (&str, OutputLimit)| {
            format!("{class} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_seconds)
        };
        all.map(one).join(" ")
    }
}

impl Engine {
    /// The limits on what clients may leave unread, which the owner of the sockets enforces.
    pub fn output_limits(&self) -> OutputLimits {
        self.core.config.output_limits
    }

    /// The limit on what may come of a client and not be run yet, which the owner of the sockets
    /// enforces.
    pub fn query_buffer_max(&self) -> usize {
        self.core.config.query_buffer_max
    }
}
