//! Every Redis key of the waiting room. No other file builds one.
//!
//! In the standalone layout the names are those of the documented schema; in the cluster layout the
//! queue id is the hash tag, so that everything one script touches lives in one slot. Sign-of-life
//! times, which the schema keeps in one set, are then one set per queue.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::{
    Key, Layout,
    key_map::{KeyMap, MemberPlace, Place},
};

use crate::ids::{PositionId, QueueId, SessionId};

/// Prefixes of keys that hold secrets: signing keys, the keys under which addresses are hashed, and
/// sessions with the hashes of their passes. Tools that inspect keys must not show them.
pub const SECRET_KEYS: [&str; 3] = ["room:signing", "room:address-key:", "session:"];

/// Keys that belong to the service as a whole.
#[derive(Clone, Debug)]
pub(crate) struct RoomKeys {
    /// SET of the ids of all queues.
    pub(crate) queues: Key,
    /// HASH of signing keys: key id to sealed key.
    pub(crate) signing: Key,
}

impl RoomKeys {
    pub(crate) fn new() -> Self {
        Self { queues: Key::raw("queues"), signing: Key::raw("room:signing") }
    }

    /// STRING: the key of one day under which addresses are hashed. Expires after two days.
    pub(crate) fn address_key(&self, day: i64) -> Key {
        Key::raw(format!("room:address-key:{day}"))
    }

    /// ZSET: requests of one client for one action within the window; member = request id,
    /// score = Unix milliseconds. TTL = the window.
    pub(crate) fn rate_limit(&self, layout: Layout, identifier: &str, action: &str) -> Key {
        Key::raw(format!("ratelimit:{}:{action}", layout.tag(identifier)))
    }
}

/// Keys of one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueKeys {
    layout: Layout,
    queue: String,
    /// HASH: name, target_url, limits, rates, status and the other settings.
    pub(crate) meta: Key,
    /// HASH: last ticket, lifetime counters, clocks, admissions of the last minutes.
    pub(crate) state: Key,
    /// ZSET of waiting positions; score = admission order: the ticket (microseconds), or a half between
    /// two others for those who skip ahead.
    pub(crate) positions: Key,
    /// LISTs of waiting positions by priority (lanes), first come first.
    pub(crate) lanes: [Key; 4],
    /// LISTs: the compacted part of a lane while it is being compacted.
    pub(crate) spares: [Key; 4],
    /// ZSET of waiting positions; score = last heartbeat, Unix seconds.
    pub(crate) heartbeat: Key,
    /// ZSET of admitted positions; score = end of the admission window, Unix milliseconds.
    pub(crate) admitted: Key,
    /// SET of active sessions.
    pub(crate) active: Key,
    /// ZSET of active sessions; score = deadline, Unix milliseconds.
    pub(crate) deadlines: Key,
    /// STRING: admissions the rate allows now.
    pub(crate) tokens: Key,
    /// STRING: Unix seconds, with milliseconds, at which the tokens were counted.
    pub(crate) last_update: Key,
    /// STREAM of events, capped.
    pub(crate) events: Key,
}

impl QueueKeys {
    pub(crate) fn of(layout: Layout, queue: &QueueId) -> Self {
        let q = layout.tag(queue.as_str());
        Self {
            layout,
            queue: queue.to_string(),
            meta: Key::raw(format!("queue:{q}:meta")),
            state: Key::raw(format!("queue:{q}:state")),
            positions: Key::raw(format!("queue:{q}:positions")),
            lanes: std::array::from_fn(|p| Key::raw(format!("queue:{q}:waiting:{p}"))),
            spares: std::array::from_fn(|p| Key::raw(format!("queue:{q}:waiting:{p}:spare"))),
            heartbeat: match layout {
                Layout::Standalone => Key::raw("heartbeat:active"),
                Layout::Cluster => Key::raw(format!("heartbeat:{q}:active")),
            },
            admitted: Key::raw(format!("queue:{q}:admitted")),
            active: Key::raw(format!("queue:{q}:sessions:active")),
            deadlines: Key::raw(format!("queue:{q}:sessions:deadlines")),
            tokens: Key::raw(format!("admission:{q}:tokens")),
            last_update: Key::raw(format!("admission:{q}:last_update")),
            events: Key::raw(format!("queue:{q}:events")),
        }
    }

    /// HASH: one position. TTL 30 min by default, refreshed by each heartbeat. While its session is active
    /// the TTL is the session's hard limit and one hour: no heartbeats arrive then, and the session must
    /// find it when it ends. `ticket` is the number drawn; `metadata` is always a JSON object.
    pub(crate) fn position(&self, id: &PositionId) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("position:{id}")),
            Layout::Cluster => Key::raw(format!("position:{{{}}}:{id}", self.queue)),
        }
    }

    /// HASH: one session. TTL 1 h by default, refreshed by each activity. `token` is the SHA-256 of the
    /// pass, as `sha256:<hex>`, so that read access to the store is not enough to use it.
    pub(crate) fn session(&self, id: &SessionId) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("session:{id}")),
            Layout::Cluster => Key::raw(format!("session:{{{}}}:{id}", self.queue)),
        }
    }

    /// STRING: reason for which a token is revoked, in the operator's own word if there was one. TTL = as
    /// long as any copy of it could be valid.
    pub(crate) fn revocation(&self, token_id: &str) -> Key {
        match self.layout {
            Layout::Standalone => Key::raw(format!("revocation:{token_id}")),
            Layout::Cluster => Key::raw(format!("revocation:{{{}}}:{token_id}", self.queue)),
        }
    }

    /// STRING: the position enqueued from one address. TTL as the position's.
    pub(crate) fn ipmap(&self, ip_hash: &str) -> Key {
        Key::raw(format!("ipmap:{}:{ip_hash}", self.layout.tag(&self.queue)))
    }

    /// ZSET of admitted positions and active sessions of one address; score = time of the last check. Those
    /// that ended are dropped when the address seems full. TTL = hard limit of a session + 1 h.
    pub(crate) fn address_sessions(&self, ip_hash: &str) -> Key {
        Key::raw(format!("queue:{}:sessions:address:{ip_hash}", self.layout.tag(&self.queue)))
    }

    /// STRING: the position made under an idempotency key, by the key's SHA-256. TTL 10 min by default.
    pub(crate) fn once(&self, key_hash: &str) -> Key {
        Key::raw(format!("once:{}:{key_hash}", self.layout.tag(&self.queue)))
    }

    /// STRING: number of uses of an invite.
    pub(crate) fn invite(&self, invite_id: &str) -> Key {
        Key::raw(format!("invite:{}:{invite_id}", self.layout.tag(&self.queue)))
    }

    /// HASH: counters of one hour, `YYYYMMDDHH`. TTL 24 h.
    pub(crate) fn stats(&self, hour: &str) -> Key {
        Key::raw(format!("stats:{}:hourly:{hour}", self.layout.tag(&self.queue)))
    }

    /// HASH: the hours of one day, `YYYYMMDD`; field = hour, `00` to `23`, value = its counters as JSON. Copied
    /// from the hourly counters once a minute. TTL 31 days.
    pub(crate) fn daily_stats(&self, day: &str) -> Key {
        Key::raw(format!("stats:{}:daily:{day}", self.layout.tag(&self.queue)))
    }

    /// STRING: the latest position of a visitor whom the site or an invite named, by the SHA-256 of that user id.
    /// TTL = hard limit of a session + the time a position is held.
    pub(crate) fn usermap(&self, user_hash: &str) -> Key {
        Key::raw(format!("usermap:{}:{user_hash}", self.layout.tag(&self.queue)))
    }
}

/// Beginnings of keys whose next part is a queue.
const OF_QUEUE: [&str; 7] =
    ["queue:", "admission:", "ipmap:", "usermap:", "once:", "invite:", "stats:"];
/// Beginnings of keys that name their queue in the cluster layout only.
const POSITION: &str = "position:";
const SESSION: &str = "session:";
const REVOCATION: &str = "revocation:";
const HEARTBEATS: &str = "heartbeat:active";
const RATE_LIMIT: &str = "ratelimit:";

/// The keys of the waiting room in both layouts, for moving from one to the other. A key belongs to it
/// if it names a queue there is; what programs of others keep under similar names stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoomKeyMap;

impl KeyMap for RoomKeyMap {
    fn place(&self, key: &[u8], to: Layout, queues: &[Vec<u8>]) -> Option<Place> {
        let key = std::str::from_utf8(key).ok()?;
        let queues: Vec<&str> =
            queues.iter().filter_map(|queue| std::str::from_utf8(queue).ok()).collect();
        if key == "queues" || key == "room:signing" || key.starts_with("room:address-key:") {
            return Some(Place::Key(key.into()));
        }
        match to {
            Layout::Cluster => to_cluster(key, &queues),
            Layout::Standalone => to_standalone(key, &queues),
        }
    }

    fn scope_index(&self) -> Option<&'static str> {
        Some("queues")
    }
}

fn to_cluster(key: &str, queues: &[&str]) -> Option<Place> {
    let plain = |text: &str| !text.is_empty() && !text.contains([':', '{', '}']);
    let tagged = |start: &str, queue: &str, rest: &str| format!("{start}{{{queue}}}:{rest}");
    if let Some((start, rest)) = split_start(key, &OF_QUEUE) {
        let (queue, rest) = rest.split_once(':')?;
        return queues.contains(&queue).then(|| Place::Key(tagged(start, queue, rest).into()));
    }
    if key == HEARTBEATS {
        let place = |queue: &&str| MemberPlace {
            witness: tagged(POSITION, queue, "").into(),
            key: tagged("heartbeat:", queue, "active").into(),
        };
        return Some(Place::Members(queues.iter().map(place).collect()));
    }
    if let Some((start, id)) = split_start(key, &[POSITION, SESSION]).filter(|(_, id)| plain(id)) {
        let keys = queues.iter().map(|queue| ((*queue).into(), tagged(start, queue, id).into()));
        return Some(Place::Field { field: "queue_id", keys: keys.collect() });
    }
    if let Some(id) = key.strip_prefix(REVOCATION).filter(|id| plain(id) && !queues.is_empty()) {
        // Nothing tells the queue of a pass whose session is gone; it is revoked in every queue.
        let keys = queues.iter().map(|queue| tagged(REVOCATION, queue, id).into());
        return Some(Place::Every(keys.collect()));
    }
    let (identifier, action) = key.strip_prefix(RATE_LIMIT)?.rsplit_once(':')?;
    let is_ours = plain(action) && !identifier.is_empty() && !identifier.contains(['{', '}']);
    is_ours.then(|| Place::Key(tagged(RATE_LIMIT, identifier, action).into()))
}

fn to_standalone(key: &str, queues: &[&str]) -> Option<Place> {
    let (start, rest) = key.split_once('{')?;
    let (tag, rest) = rest.split_once("}:")?;
    if start == RATE_LIMIT && !tag.is_empty() && !rest.is_empty() {
        return Some(Place::Key(format!("{start}{tag}:{rest}").into()));
    }
    if !queues.contains(&tag) {
        return None;
    }
    match start {
        "heartbeat:" if rest == "active" => Some(Place::Merged(HEARTBEATS.into())),
        POSITION | SESSION | REVOCATION => Some(Place::Key(format!("{start}{rest}").into())),
        _ if OF_QUEUE.contains(&start) => Some(Place::Key(format!("{start}{tag}:{rest}").into())),
        _ => None,
    }
}

/// The beginning of a key that is among these, and the rest.
fn split_start<'a>(key: &'a str, starts: &[&'static str]) -> Option<(&'static str, &'a str)> {
    starts.iter().find_map(|start| Some((*start, key.strip_prefix(start)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_secrets_are_listed_as_such() {
        let session = SessionId::parse("a1b2c3d4-e5f6-4890-abcd-ef1234567890").unwrap();
        for layout in [Layout::Standalone, Layout::Cluster] {
            let room = RoomKeys::new();
            let queue = QueueKeys::of(layout, &QueueId::parse("concert").unwrap());
            for key in [room.signing.clone(), room.address_key(20_000), queue.session(&session)] {
                assert!(SECRET_KEYS.iter().any(|start| key.as_str().starts_with(start)), "{key:?}");
            }
        }
    }

    fn all(layout: Layout) -> Vec<String> {
        let k = QueueKeys::of(layout, &QueueId::parse("concert-tickets").unwrap());
        let position = PositionId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap();
        let session = SessionId::parse("a1b2c3d4-e5f6-4890-abcd-ef1234567890").unwrap();
        let mut keys = vec![
            k.meta.clone(),
            k.positions.clone(),
            k.heartbeat.clone(),
            k.active.clone(),
            k.tokens.clone(),
            k.last_update.clone(),
            k.position(&position),
            k.session(&session),
            k.revocation("abc"),
            k.ipmap("a1b2c3d4e5f6"),
            k.stats("2024010112"),
            k.daily_stats("20240101"),
            k.usermap("ab12"),
        ];
        keys.extend(k.lanes.iter().cloned());
        keys.iter().map(Key::to_string).collect()
    }

    #[test]
    fn standalone_names_are_the_documented_ones() {
        assert_eq!(
            all(Layout::Standalone),
            [
                "queue:concert-tickets:meta",
                "queue:concert-tickets:positions",
                "heartbeat:active",
                "queue:concert-tickets:sessions:active",
                "admission:concert-tickets:tokens",
                "admission:concert-tickets:last_update",
                "position:550e8400-e29b-41d4-a716-446655440000",
                "session:a1b2c3d4-e5f6-4890-abcd-ef1234567890",
                "revocation:abc",
                "ipmap:concert-tickets:a1b2c3d4e5f6",
                "stats:concert-tickets:hourly:2024010112",
                "stats:concert-tickets:daily:20240101",
                "usermap:concert-tickets:ab12",
                "queue:concert-tickets:waiting:0",
                "queue:concert-tickets:waiting:1",
                "queue:concert-tickets:waiting:2",
                "queue:concert-tickets:waiting:3",
            ]
        );
        let k = RoomKeys::new();
        let limit = k.rate_limit(Layout::Standalone, "192.168.1.1", "enqueue");
        assert_eq!(limit.as_str(), "ratelimit:192.168.1.1:enqueue");
    }

    #[test]
    fn cluster_names_of_one_queue_share_a_slot() {
        let slots: std::collections::HashSet<u16> =
            all(Layout::Cluster).iter().map(|key| Key::raw(key.as_str()).slot()).collect();
        assert_eq!(slots.len(), 1);
    }

    /// Every key of a queue and of the room, in one layout.
    fn every(layout: Layout) -> Vec<String> {
        let k = QueueKeys::of(layout, &QueueId::parse("concert-tickets").unwrap());
        let room = RoomKeys::new();
        let mut keys = all(layout);
        let more = [
            k.state.clone(),
            k.admitted.clone(),
            k.deadlines.clone(),
            k.events.clone(),
            k.address_sessions("a1"),
            k.once("a1"),
            k.invite("a1"),
            room.queues.clone(),
            room.signing.clone(),
            room.address_key(20_000),
            room.rate_limit(layout, "192.168.1.1", "enqueue"),
        ];
        keys.extend(more.iter().chain(&k.spares).map(Key::to_string));
        keys
    }

    #[test]
    fn every_key_has_a_place_in_the_other_layout_and_back() {
        let queues = vec![b"concert-tickets".to_vec(), b"other".to_vec()];
        for (one, other) in every(Layout::Standalone).iter().zip(every(Layout::Cluster)) {
            let there = RoomKeyMap.place(one.as_bytes(), Layout::Cluster, &queues).unwrap();
            let back = RoomKeyMap.place(other.as_bytes(), Layout::Standalone, &queues).unwrap();
            match there {
                Place::Key(key) => assert_eq!(key, other.as_bytes()),
                Place::Field { field, keys } => {
                    assert_eq!(field, "queue_id");
                    assert!(keys.contains(&(queues[0].clone(), other.clone().into())), "{other}");
                }
                Place::Every(keys) => assert!(keys.contains(&other.clone().into()), "{other}"),
                Place::Members(places) => {
                    assert_eq!(places[0].key, other.as_bytes());
                    assert_eq!(places[0].witness, b"position:{concert-tickets}:");
                }
                Place::Merged(_) => panic!("{one}"),
            }
            assert!(
                [Place::Key(one.clone().into()), Place::Merged(one.clone().into())].contains(&back)
            );
        }
    }

    #[test]
    fn keys_of_other_programs_have_no_place() {
        let queues = vec![b"sale".to_vec()];
        for key in ["stats:daily:2024", "queue:mail", "session:a:b", "x", "once:{sale}:1", "{a}:b"]
        {
            assert_eq!(RoomKeyMap.place(key.as_bytes(), Layout::Cluster, &queues), None, "{key}");
        }
        for key in ["stats:{daily}:2024", "queue:sale:meta", "{sale}:x", "foo:{sale}:x", "x"] {
            assert_eq!(
                RoomKeyMap.place(key.as_bytes(), Layout::Standalone, &queues),
                None,
                "{key}"
            );
        }
    }
}
