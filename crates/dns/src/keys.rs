//! Every Redis key of the resolver. No other file builds one.
//!
//! Names of answers and of their metadata are those of the documented schema, which programs of
//! others read and write too. On a Cluster the metadata has one hash tag; answers have none, so two
//! of them never meet in one script or transaction: a queried name chooses its own slot. All else
//! of the resolver begins with `resolver:`, because clearing the cache deletes every key below
//! `dns:` and `dnsmeta:`.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::{
    Key, Layout,
    key_map::{KeyMap, Place},
};

use crate::name::{DomainName, Question};

/// Keys that hold secrets: of DNS cookies, and of hashed client addresses. Tools that inspect keys must not show
/// them.
pub const SECRET_KEYS: [&str; 2] = ["resolver:cookie:secret", "resolver:log:key"];

/// Pattern of the keys that hold answers.
pub(crate) const ANSWER_PATTERN: &str = "dns:*";

/// Beginning of the keys that hold answers.
const ANSWER_PREFIX: &[u8] = b"dns:";

/// Reads the name of a key that holds an answer; the name in it may end in a dot. Returns none if the
/// key has another shape, or holds another spelling of a name than the resolver writes.
pub(crate) fn question_from_key(key: &[u8]) -> Option<Question> {
    let rest = key.strip_prefix(ANSWER_PREFIX)?;
    let (rest, qclass) = split_number(rest)?;
    let (name, qtype) = split_number(rest)?;
    let name = DomainName::parse(name).ok()?;
    Some(Question { name, qtype, qclass })
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
    /// Channel: the new generation, published after a clear; or the key of an answer that was deleted.
    pub(crate) cleared: Key,
    /// STRING: 16 bytes, the secret of DNS cookies, the same for all instances.
    pub(crate) cookie_secret: Key,
}

impl InstanceKeys {
    pub(crate) fn new() -> Self {
        Self {
            generation: Key::raw("resolver:cache:generation"),
            cookie_secret: Key::raw("resolver:cookie:secret"),
            cleared: Key::raw("resolver:cache:cleared"),
        }
    }
}

/// Keys of the policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyKeys {
    /// HASH: the policy. `version` counts its saves, `document` is JSON, `changed_at` Unix
    /// milliseconds, `request_id` that of the last save.
    pub(crate) policy: Key,
    /// Channel: the new version, published after a save.
    pub(crate) changed: Key,
}

impl PolicyKeys {
    pub(crate) fn new() -> Self {
        Self { policy: Key::raw("resolver:policy"), changed: Key::raw("resolver:policy:changed") }
    }
}

/// Keys by which instances find each other and search each other's logs.
#[derive(Clone, Debug)]
pub(crate) struct SharedLogKeys {
    /// HASH: the instances by name, each as JSON with the time of its last announcement.
    pub(crate) instances: Key,
    /// STRING: key of hashed client addresses, 64 hexadecimal digits, the same for all instances.
    pub(crate) hash_key: Key,
    /// Channel: a request to all instances, as JSON.
    pub(crate) requests: Key,
}

impl SharedLogKeys {
    pub(crate) fn new() -> Self {
        Self {
            instances: Key::raw("resolver:instances"),
            hash_key: Key::raw("resolver:log:key"),
            requests: Key::raw("resolver:search"),
        }
    }

    /// LIST: answers of instances to a request, as JSON. TTL 60 s.
    pub(crate) fn answers(&self, id: &str) -> Key {
        Key::raw(format!("resolver:search:{id}"))
    }
}

/// Keys of what is known of people and devices that use the resolver.
#[derive(Clone, Debug)]
pub(crate) struct PeopleKeys {
    /// HASH: requests to allow a blocked name by id, each as JSON. At most 500.
    pub(crate) allow_requests: Key,
    /// ZSET of the clients that were seen, as the log writes them; score = last time, Unix
    /// milliseconds. At most 10,000.
    pub(crate) seen_clients: Key,
}

impl PeopleKeys {
    pub(crate) fn new() -> Self {
        Self {
            allow_requests: Key::raw("resolver:allow_requests"),
            seen_clients: Key::raw("resolver:clients"),
        }
    }
}

/// Keys of the statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatisticsKeys {
    layout: Layout,
}

impl StatisticsKeys {
    pub(crate) fn of(layout: Layout) -> Self {
        Self { layout }
    }

    /// HASH: queries of an hour (`h`) or a day (`d`) since 1970, by field: `n` all, then a letter and a
    /// value: `o` outcome, `c` tier, `t` type, `r` response code, `p` protocol, `a` client, `b` blocked
    /// by client, `g` group, `l` list, `u` upstream, `d` duration in steps, four to a
    /// power of two of µs. A day is written once it has been over for a day. TTL 90 days or a year.
    pub(crate) fn counts(&self, step: &str, bucket: i64) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("resolver:stats:{step}{bucket}")),
            Layout::Cluster => Key::raw(format!("{{resolver:stats:{step}{bucket}}}")),
        }
    }

    /// ZSET of the names asked for in an hour or a day; score = number of queries. TTL 8 days or a year.
    pub(crate) fn names(&self, step: &str, bucket: i64) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("resolver:stats:{step}{bucket}:names")),
            Layout::Cluster => Key::raw(format!("{{resolver:stats:{step}{bucket}}}:names")),
        }
    }

    /// ZSET of the names blocked in an hour or a day; score = number of queries. TTL 8 days or a year.
    pub(crate) fn blocked(&self, step: &str, bucket: i64) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("resolver:stats:{step}{bucket}:blocked")),
            Layout::Cluster => Key::raw(format!("{{resolver:stats:{step}{bucket}}}:blocked")),
        }
    }
}

/// The keys of the resolver in both layouts, for moving from one to the other. Members of the expiry
/// index are keys of answers, which both spell the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct DnsKeyMap;

impl KeyMap for DnsKeyMap {
    fn place(&self, key: &[u8], to: Layout, _: &[Vec<u8>]) -> Option<Place> {
        if let Some(place) = place_statistics(key, to) {
            return Some(place);
        }
        if key.starts_with(ANSWER_PREFIX) || key.starts_with(b"resolver:") {
            return Some(Place::Key(key.to_vec()));
        }
        let (from, to): (&[u8], &[u8]) = match to {
            Layout::Cluster => (b"dnsmeta:", b"{dnsmeta}:"),
            Layout::Standalone => (b"{dnsmeta}:", b"dnsmeta:"),
        };
        Some(Place::Key([to, key.strip_prefix(from)?].concat()))
    }
}

/// The place of a key of the statistics, whose hour or day is the hash tag.
fn place_statistics(key: &[u8], to: Layout) -> Option<Place> {
    let key = std::str::from_utf8(key).ok()?;
    let moved = match to {
        Layout::Cluster => {
            let rest = key.strip_prefix("resolver:stats:")?;
            let (bucket, more) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
            format!("{{resolver:stats:{bucket}}}{more}")
        }
        Layout::Standalone => {
            let (bucket, more) = key.strip_prefix("{resolver:stats:")?.split_once('}')?;
            format!("resolver:stats:{bucket}{more}")
        }
    };
    Some(Place::Key(moved.into()))
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
        let policy = PolicyKeys::new();
        let log = SharedLogKeys::new();
        let shared = [log.answers("x"), log.instances, log.hash_key, log.requests];
        let statistics = StatisticsKeys::of(Layout::Standalone);
        let counts = ["h", "d"].map(|step| statistics.counts(step, 1));
        for key in shared.iter().chain(&counts) {
            assert!(key.as_str().starts_with("resolver:"), "{key}");
        }
        for key in
            [keys.generation, keys.cleared, keys.cookie_secret, policy.policy, policy.changed]
        {
            assert!(key.as_str().starts_with("resolver:"), "{key}");
        }
    }

    #[test]
    fn keys_with_secrets_are_listed_as_such() {
        let secrets = [InstanceKeys::new().cookie_secret, SharedLogKeys::new().hash_key];
        assert_eq!(secrets.each_ref().map(Key::as_str), SECRET_KEYS);
    }

    #[test]
    fn a_key_is_read_back_as_its_question() {
        let keys = CacheKeys::of(Layout::Standalone);
        for name in ["example.com", "", r"a\.b.c", "a:b:1:1.test", "{dnsmeta}.evil.test", r"\000.x"]
        {
            let question = question(name);
            for key in [keys.answer(&question), keys.dotted_answer(&question)] {
                assert_eq!(question_from_key(key.as_str().as_bytes()), Some(question.clone()));
            }
        }
    }

    #[test]
    fn keys_of_another_shape_are_no_questions() {
        for key in
            ["dns:", "dns:a", "dns:a:1", "dns:a:1:x", "dns:a:1:65536", "dns:a..b:1:1", "x:a:1:1"]
        {
            assert_eq!(question_from_key(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn every_key_has_a_place_in_the_other_layout_and_back() {
        let pairs = all(Layout::Standalone).into_iter().zip(all(Layout::Cluster));
        let instance = InstanceKeys::new().generation.to_string();
        let [hour, hour_tagged] = [Layout::Standalone, Layout::Cluster].map(StatisticsKeys::of);
        let statistics = [
            (hour.counts("h", 7).to_string(), hour_tagged.counts("h", 7).to_string()),
            (hour.names("h", 7).to_string(), hour_tagged.names("h", 7).to_string()),
        ];
        for (one, other) in pairs.chain([(instance.clone(), instance)]).chain(statistics) {
            let place = |key: &str, to| DnsKeyMap.place(key.as_bytes(), to, &[]);
            assert_eq!(place(&one, Layout::Cluster), Some(Place::Key(other.clone().into())));
            assert_eq!(place(&other, Layout::Standalone), Some(Place::Key(one.into())));
        }
        assert_eq!(DnsKeyMap.place(b"dnsmasq:x", Layout::Cluster, &[]), None);
    }
}
