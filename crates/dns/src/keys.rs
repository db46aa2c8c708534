//! Every Redis key of the resolver. No other file builds one.
//!
//! Names of answers and of their metadata are those of the documented schema, which programs of
//! others read and write too. On a Cluster the metadata has one hash tag; answers have none, so two
//! of them never meet in one script or transaction: a queried name chooses its own slot. All else
//! of the resolver begins with `resolver:`, because clearing the cache deletes every key below
//! `dns:` and `dnsmeta:`.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::{Key, Layout};

use crate::name::DomainName;

/// Pattern of the keys that hold answers.
pub(crate) const ANSWER_PATTERN: &str = "dns:*";

/// Beginning of the keys that hold answers.
const ANSWER_PREFIX: &[u8] = b"dns:";

/// Name, type and class of a query: the identity of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Name.
    pub name: DomainName,
    /// Type, such as 1 for A.
    pub qtype: u16,
    /// Class; 1 is IN.
    pub qclass: u16,
}

impl Question {
    /// Reads the name of a key that holds an answer; the name in it may end in a dot. Returns none if
    /// the key has another shape, or holds another spelling of a name than the resolver writes.
    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let rest = key.strip_prefix(ANSWER_PREFIX)?;
        let (rest, qclass) = split_number(rest)?;
        let (name, qtype) = split_number(rest)?;
        let name = DomainName::parse(name).ok()?;
        Some(Self { name, qtype, qclass })
    }
}

/// Splits off the number behind the last colon. The name before it may hold colons.
fn split_number(text: &[u8]) -> Option<(&[u8], u16)> {
    let colon = text.iter().rposition(|byte| *byte == b':')?;
    let (rest, number) = (text.get(..colon)?, text.get(colon + 1..)?);
    Some((rest, std::str::from_utf8(number).ok()?.parse().ok()?))
}

/// Keys of the cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheKeys {
    layout: Layout,
    /// ZSET of the keys of all answers; score = soft expiry, Unix seconds.
    pub(crate) expiry_index: Key,
}

impl CacheKeys {
    pub(crate) fn of(layout: Layout) -> Self {
        Self {
            layout,
            expiry_index: match layout {
                Layout::Standalone => Key::raw("dnsmeta:expiry:index"),
                Layout::Cluster => Key::raw("{dnsmeta}:expiry:index"),
            },
        }
    }

    /// HASH: one answer. `msg` is the message in wire form; `soft_expiry` and `created_at` are Unix
    /// seconds, the latter of the first time it was stored; `stored_ttl` and `auth_ttl` are seconds.
    /// `msg_do`, `soft_expiry_do`, `stored_ttl_do` and `auth_ttl_do` are the same of the answer with
    /// DNSSEC signatures. TTL = `stored_ttl` + the lesser of it and the grace period (1 h).
    pub(crate) fn answer(&self, question: &Question) -> Key {
        let Question { name, qtype, qclass } = question;
        Key::raw(format!("dns:{name}:{qtype}:{qclass}"))
    }

    /// HASH: the same, as some writers spell it: with the last dot of the name. Only read and deleted.
    pub(crate) fn dotted_answer(&self, question: &Question) -> Key {
        let Question { name, qtype, qclass } = question;
        Key::raw(format!("dns:{name}.:{qtype}:{qclass}"))
    }

    /// Returns the key of an answer as it was read from the expiry index or by SCAN.
    pub(crate) fn listed_answer(&self, key: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(key).ok()?;
        text.as_bytes().starts_with(ANSWER_PREFIX).then(|| Key::raw(text))
    }

    /// STRING: `1` while an instance refreshes an answer. TTL 10 s.
    pub(crate) fn refresh_lock(&self, answer: &Key) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("dnsmeta:refresh:{answer}")),
            Layout::Cluster => Key::raw(format!("{{dnsmeta}}:refresh:{answer}")),
        }
    }

    /// STRING: number of hits of an answer. TTL = the window, from the last increment.
    pub(crate) fn hits(&self, answer: &Key) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("dnsmeta:hit:{answer}")),
            Layout::Cluster => Key::raw(format!("{{dnsmeta}}:hit:{answer}")),
        }
    }

    /// STRING: number of hits by which the sweeper decides between refreshing and deleting. TTL = its
    /// window; without a window it is not written.
    pub(crate) fn sweep_hits(&self, answer: &Key) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("dnsmeta:hit:sweep:{answer}")),
            Layout::Cluster => Key::raw(format!("{{dnsmeta}}:hit:sweep:{answer}")),
        }
    }

    /// Pattern of the keys that hold metadata.
    pub(crate) fn metadata_pattern(&self) -> &'static str {
        match self.layout {
            Layout::Standalone => "dnsmeta:*",
            Layout::Cluster => "{dnsmeta}:*",
        }
    }
}

/// Keys by which instances tell each other of changes.
#[derive(Clone, Debug)]
pub(crate) struct InstanceKeys {
    /// STRING: number of times the cache was cleared; an instance that sees another number than it
    /// knows drops what it holds in memory.
    pub(crate) generation: Key,
    /// Channel: the new generation, published after a clear.
    pub(crate) cleared: Key,
}

impl InstanceKeys {
    pub(crate) fn new() -> Self {
        Self {
            generation: Key::raw("resolver:cache:generation"),
            cleared: Key::raw("resolver:cache:cleared"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> Question {
        Question { name: name.parse().unwrap(), qtype: 28, qclass: 1 }
    }

    fn all(layout: Layout) -> Vec<String> {
        let keys = CacheKeys::of(layout);
        let answer = keys.answer(&question("Example.COM."));
        let keys = [
            answer.clone(),
            keys.dotted_answer(&question("example.com")),
            keys.refresh_lock(&answer),
            keys.hits(&answer),
            keys.sweep_hits(&answer),
            keys.expiry_index.clone(),
        ];
        keys.iter().map(Key::to_string).collect()
    }

    #[test]
    fn names_are_the_documented_ones() {
        assert_eq!(
            all(Layout::Standalone),
            [
                "dns:example.com:28:1",
                "dns:example.com.:28:1",
                "dnsmeta:refresh:dns:example.com:28:1",
                "dnsmeta:hit:dns:example.com:28:1",
                "dnsmeta:hit:sweep:dns:example.com:28:1",
                "dnsmeta:expiry:index",
            ]
        );
    }

    #[test]
    fn metadata_of_a_cluster_shares_a_slot() {
        let keys = all(Layout::Cluster);
        assert_eq!(keys[0], "dns:example.com:28:1");
        assert_eq!(keys[2], "{dnsmeta}:refresh:dns:example.com:28:1");
        let slots = keys[2..].iter().map(|key| Key::raw(key.as_str()).slot());
        assert_eq!(slots.collect::<std::collections::HashSet<_>>().len(), 1);
    }

    #[test]
    fn nothing_else_is_deleted_by_a_clear() {
        let keys = InstanceKeys::new();
        for key in [keys.generation, keys.cleared] {
            assert!(key.as_str().starts_with("resolver:"), "{key}");
        }
    }

    #[test]
    fn a_key_is_read_back_as_its_question() {
        let keys = CacheKeys::of(Layout::Standalone);
        for name in ["example.com", "", r"a\.b.c", "a:b:1:1.test", "{dnsmeta}.evil.test", r"\000.x"]
        {
            let question = question(name);
            for key in [keys.answer(&question), keys.dotted_answer(&question)] {
                assert_eq!(Question::from_key(key.as_str().as_bytes()), Some(question.clone()));
            }
        }
    }

    #[test]
    fn keys_of_another_shape_are_no_questions() {
        for key in
            ["dns:", "dns:a", "dns:a:1", "dns:a:1:x", "dns:a:1:65536", "dns:a..b:1:1", "x:a:1:1"]
        {
            assert_eq!(Question::from_key(key.as_bytes()), None, "{key}");
        }
    }
}
