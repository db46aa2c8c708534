//! Every key the HTTP side keeps for itself. Nothing else builds a key in this crate.
//!
//! Both layouts spell them the same: single keys are never two in one script, and those of webhooks
//! share a hash tag.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::key_map::{KeyMap, Place};
use store::webhook::OutboxKeys;
use store::{Key, Layout};

/// The keys of the HTTP side, which both layouts spell the same: a move knows them as ours.
#[derive(Debug)]
pub(crate) struct FrameKeyMap;

impl KeyMap for FrameKeyMap {
    fn place(&self, key: &[u8], _: Layout, _: &[Vec<u8>]) -> Option<Place> {
        key.starts_with(b"tidegate:").then(|| Place::Key(key.to_vec()))
    }
}

/// hash: sha-256 of a token in hex → its record as JSON (`id`, `name`, `role`, `scopes`, …).
pub(crate) fn tokens() -> Key {
    Key::raw("tidegate:tokens")
}

/// hash: sha-256 of a revoked admin token in hex → when it was revoked, in ms. A start adds none of
/// these again.
pub(crate) fn revoked() -> Key {
    Key::raw("tidegate:revoked")
}

/// zset: failed logins from one address (named by its sha-256); score = when, in ms.
pub(crate) fn login(address_hash: &str) -> Key {
    Key::raw(format!("tidegate:login:{address_hash}"))
}

/// string: one dashboard session as JSON; the name carries the sha-256 of the cookie in hex.
pub(crate) fn session(cookie_hash: &str) -> Key {
    Key::raw(format!("tidegate:session:{cookie_hash}"))
}

/// string: the response of a creating call, encrypted, by a sha-256 of credential, call and idempotency
/// key; gone after a day.
pub(crate) fn idempotency(hash: &str) -> Key {
    Key::raw(format!("tidegate:idempotency:{hash}"))
}

/// stream: the audit trail, capped; one entry for every change made by a person or a program.
pub(crate) fn audit() -> Key {
    Key::raw("tidegate:audit")
}

/// string: when an instance last tried whether the store takes writes, in milliseconds since 1970;
/// gone after a minute.
pub(crate) fn write_probe() -> Key {
    Key::raw("tidegate:write-probe")
}

/// hash: request id → the audit entry of a change under way, as JSON. What a crash leaves here goes
/// to the trail with the outcome `unknown`.
pub(crate) fn audit_pending() -> Key {
    Key::raw("tidegate:audit-pending")
}

/// The beginning of the history's keys.
pub(crate) const HISTORY_PREFIX: &str = "tidegate:history:";

/// hash: name of a series of the history → its number in rows, its kind, the day it was last written;
/// the marks `@10s`, `@1m`, `@1h` are the last rows made from finer ones.
pub(crate) fn history_series() -> Key {
    Key::raw("tidegate:history:series")
}

/// hash: a chunk of the history (resolution, number in its ring): `epoch`, and rows with the values of all
/// series at one moment.
pub(crate) fn history_chunk(resolution: &str, number: i64) -> Key {
    Key::raw(format!("tidegate:history:{resolution}:{number}"))
}

/// hash: target of a webhook → its settings as JSON, URL and secret sealed.
pub(crate) fn webhook_targets() -> Key {
    Key::raw("tidegate:{webhooks}:targets")
}

/// hash: id of a delivery → the delivery as JSON, in line or dead.
pub(crate) fn webhook_deliveries() -> Key {
    Key::raw("tidegate:{webhooks}:deliveries")
}

/// zset: lanes of deliveries, as `target subject`; score = time of the next attempt, in ms.
pub(crate) fn webhook_due() -> Key {
    Key::raw("tidegate:{webhooks}:due")
}

/// zset: ids of deliveries that were given up; score = when, in ms.
pub(crate) fn webhook_dead() -> Key {
    Key::raw("tidegate:{webhooks}:dead")
}

/// list: the latest attempts as JSON, newest first.
pub(crate) fn webhook_log() -> Key {
    Key::raw("tidegate:{webhooks}:log")
}

/// hash: target → number of its deliveries in line.
pub(crate) fn webhook_pending() -> Key {
    Key::raw("tidegate:{webhooks}:pending")
}

/// hash: alarm, as `type subject` → time since which it is raised, in ms.
pub(crate) fn webhook_alarms() -> Key {
    Key::raw("tidegate:{webhooks}:alarms")
}

/// zset: ids of the latest events; score = when, in ms.
pub(crate) fn webhook_seen() -> Key {
    Key::raw("tidegate:{webhooks}:seen")
}

/// hash: reader of a service's events → its place.
pub(crate) fn webhook_cursors() -> Key {
    Key::raw("tidegate:{webhooks}:cursors")
}

/// list: ids of the deliveries of one target and one subject, in order.
pub(crate) fn webhook_lane(lane: &str) -> Key {
    Key::raw(format!("tidegate:{{webhooks}}:lane:{lane}"))
}

/// hash: the instance that sends webhooks: owner, token, until_ms.
pub(crate) fn webhook_leader() -> Key {
    Key::raw("tidegate:webhook-leader")
}

/// Returns the keys of webhooks.
pub(crate) fn webhooks() -> OutboxKeys {
    OutboxKeys {
        targets: webhook_targets(),
        deliveries: webhook_deliveries(),
        due: webhook_due(),
        dead: webhook_dead(),
        log: webhook_log(),
        pending: webhook_pending(),
        alarms: webhook_alarms(),
        seen: webhook_seen(),
        cursors: webhook_cursors(),
        lane: webhook_lane,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_keys_are_known_in_both_layouts_and_keep_their_names() {
        for key in [tokens(), audit(), history_series(), write_probe()] {
            let key = key.as_str().as_bytes();
            for layout in [Layout::Standalone, Layout::Cluster] {
                assert_eq!(FrameKeyMap.place(key, layout, &[]), Some(Place::Key(key.to_vec())));
            }
        }
        assert_eq!(FrameKeyMap.place(b"other:program", Layout::Cluster, &[]), None);
    }
}
