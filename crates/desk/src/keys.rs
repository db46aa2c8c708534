//! Every Redis key of the desk. No other file builds one.
//!
//! In the standalone layout the names are those of the documented schema; in the cluster layout the
//! identity a limit counts for, or the user, is the hash tag, so that everything one script touches
//! lives in one slot. Counters are single keys and stay untagged.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::{Key, Layout, limit::Rule};

use crate::{
    identity::Identity,
    ids::{AppName, PolicyName, Prefix, UserId},
    traffic::EndpointName,
    users::UserSessionId,
};

/// What follows the prefix in keys that hold secrets: sessions with the hashes of their tokens. Tools
/// that inspect keys must not show them.
pub const SECRET_KEYS: [&str; 1] = ["session:"];

/// Keys of rate limits.
#[derive(Clone, Debug)]
pub(crate) struct LimitKeys {
    layout: Layout,
    prefix: Prefix,
}

impl LimitKeys {
    pub(crate) fn new(layout: Layout, prefix: &Prefix) -> Self {
        Self { layout, prefix: prefix.clone() }
    }

    /// Returns the key that counts for an identity under a policy. The default policy has the bare
    /// key, any other a suffix of its own, so that two policies never share a key.
    pub(crate) fn limit(
        &self,
        rule: &Rule,
        identifier: &Identity,
        policy: Option<&PolicyName>,
    ) -> Key {
        let suffix = policy.map(|name| format!("#{name}")).unwrap_or_default();
        match rule {
            Rule::Fixed { .. } => self.rate_limit(identifier, &suffix),
            Rule::Window { .. } => self.sliding_limit(identifier, &suffix),
            Rule::Counter { .. } => self.counter_limit(identifier, &suffix),
            Rule::Bucket { .. } => self.bucket_limit(identifier, &suffix),
            Rule::Calendar { .. } => self.quota(identifier, &suffix),
            Rule::Concurrent { .. } => self.concurrent_limit(identifier, &suffix),
        }
    }

    /// ZSET of units allowed in a `fixed` window, which opens with the first; score = Unix
    /// milliseconds. TTL = the rest of the window + 1 s. Anyone may write.
    pub(crate) fn rate_limit(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}rate_limit:{tagged}{policy}"))
    }

    /// ZSET of units allowed in a `sliding` window; unique members, score = Unix milliseconds. TTL =
    /// the window + 1 s. Anyone may write.
    pub(crate) fn sliding_limit(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}sliding_limit:{tagged}{policy}"))
    }

    /// HASH `start_ms`, `now`, `before`: two windows of a `counter`. TTL = until the younger window
    /// counts no more + 1 s. Read-only for others.
    pub(crate) fn counter_limit(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}counter_limit:{tagged}{policy}"))
    }

    /// STRING: credits of a `bucket` and the Unix milliseconds at which they were counted. TTL =
    /// until it is full + 1 s. Read-only for others.
    pub(crate) fn bucket_limit(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}bucket_limit:{tagged}{policy}"))
    }

    /// HASH `start_ms`, `end_ms`, `used`: the period of a `calendar` limit. TTL = until it ends +
    /// 1 s. Read-only for others.
    pub(crate) fn quota(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}quota:{tagged}{policy}"))
    }

    /// ZSET of leased units of a `concurrent` limit; score = end of the lease, Unix milliseconds.
    /// TTL = the longest lease + 1 s. Read-only for others.
    pub(crate) fn concurrent_limit(&self, identifier: &Identity, policy: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}concurrent_limit:{tagged}{policy}"))
    }

    /// STRING that exists once a refund was made, so that a repeated one counts once. TTL 60 s.
    /// Read-only for others.
    pub(crate) fn refund(&self, identifier: &Identity, refund_id: &str) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}limit_refund:{tagged}:{refund_id}"))
    }
}

/// Traffic of one app: `<base>` is the prefix, or `<prefix>app:<app>:` for another program
#[derive(Clone, Debug)]
pub(crate) struct TrafficKeys {
    base: String,
    /// STRING: open HTTP connections of all live instances. No TTL. Read-only for others.
    pub(crate) connections: Key,
    /// STRING: most open HTTP connections since the first of the live instances started. No TTL.
    /// Read-only for others.
    pub(crate) connections_max: Key,
    /// HASH of live instances: open connections and end of the lease in Unix milliseconds, with a space
    /// between. No TTL; an instance goes 15 s after its last report. Read-only for others.
    pub(crate) instances: Key,
    /// STRING: requests in total. No TTL. Anyone may write, by INCRBY.
    pub(crate) total: Key,
    /// STRING: requests that reached a handler. No TTL. Anyone may write, by INCRBY.
    pub(crate) accepted: Key,
    /// STRING: requests per second over ten whole seconds. No TTL. Read-only for others.
    pub(crate) speed: Key,
    /// STRING: most requests in one whole second. No TTL. Read-only for others.
    pub(crate) speed_max: Key,
    /// STRING: responses with a status of 400 or above. No TTL. Anyone may write, by INCRBY.
    pub(crate) errors: Key,
    /// HASH `2xx`, `3xx`, `4xx`, `5xx` and `aborted`, which add up to the total, and beside them `refused`
    /// and `limited` (429). No TTL. Read-only for others.
    pub(crate) outcomes: Key,
    /// SET of endpoints that have counters of their own, at most 1,000. No TTL. Read-only for others.
    pub(crate) endpoints: Key,
}

impl TrafficKeys {
    pub(crate) fn new(layout: Layout, prefix: &Prefix, app: Option<&AppName>) -> Self {
        let base = app.map_or_else(|| prefix.to_string(), |app| format!("{prefix}app:{app}:"));
        // One script publishes connections, so its keys share a slot in a cluster.
        Self {
            connections: match layout {
                Layout::Standalone => Key::raw(format!("{base}connections:http:current")),
                Layout::Cluster => Key::raw(format!("{base}{{connections}}:http:current")),
            },
            connections_max: match layout {
                Layout::Standalone => Key::raw(format!("{base}connections:http:max_since_startup")),
                Layout::Cluster => {
                    Key::raw(format!("{base}{{connections}}:http:max_since_startup"))
                }
            },
            instances: match layout {
                Layout::Standalone => Key::raw(format!("{base}connections:instances")),
                Layout::Cluster => Key::raw(format!("{base}{{connections}}:instances")),
            },
            total: Key::raw(format!("{base}requests:total")),
            accepted: Key::raw(format!("{base}requests:accepted")),
            speed: Key::raw(format!("{base}requests:speed_per_second")),
            speed_max: Key::raw(format!("{base}requests:max_speed_per_second")),
            errors: Key::raw(format!("{base}errors:total")),
            outcomes: Key::raw(format!("{base}requests:outcomes")),
            endpoints: Key::raw(format!("{base}requests:endpoints")),
            base,
        }
    }

    /// STRING: requests to one endpoint, `GET /api/users/:id`. No TTL. Anyone may write, by INCRBY.
    pub(crate) fn endpoint(&self, endpoint: &EndpointName) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}requests:endpoint:{endpoint}"))
    }

    /// STRING: errors of one endpoint. No TTL. Anyone may write, by INCRBY.
    pub(crate) fn endpoint_errors(&self, endpoint: &EndpointName) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}errors:endpoint:{endpoint}"))
    }

    /// HASH of the response times of one endpoint: number of a bucket to requests in it; each bucket is
    /// 15 % wider than the one before. No TTL. Read-only for others.
    pub(crate) fn response_times(&self, endpoint: &EndpointName) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}response_times:{endpoint}"))
    }

    /// HASH of requests in each second of one minute, by Unix second. TTL 11 min. Read-only for others.
    pub(crate) fn seconds(&self, minute: i64) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}requests:seconds:{minute}"))
    }

    /// HASH of requests in each minute of one hour, by Unix minute. TTL 49 h. Read-only for others.
    pub(crate) fn minutes(&self, hour: i64) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}requests:minutes:{hour}"))
    }
}

/// Keys of one user
#[derive(Clone, Debug)]
pub(crate) struct UserKeys {
    layout: Layout,
    prefix: Prefix,
    user_id: UserId,
    /// HASH `device_id`, `login_time`, `last_seen`, `status`, `active` and `ip_address` of the latest login;
    /// times in Unix milliseconds. TTL 604,800 s since the last request. Anyone may write; deleting it logs
    /// the user out everywhere.
    pub(crate) user: Key,
    /// HASH `status`, `reason`, `until_ms` and where a block came from, so that it outlives sessions. No TTL;
    /// there is none unless the user is blocked. Read-only for others.
    pub(crate) status: Key,
    /// ZSET of the user's sessions, one per device; score = login, Unix milliseconds. TTL 30 days since the
    /// last login. Read-only for others.
    pub(crate) sessions: Key,
}

impl UserKeys {
    pub(crate) fn new(layout: Layout, prefix: &Prefix, user_id: &UserId) -> Self {
        let user = layout.tag(user_id);
        Self {
            layout,
            prefix: prefix.clone(),
            user_id: user_id.clone(),
            status: Key::raw(format!("{prefix}user_status:{user}")),
            sessions: Key::raw(format!("{prefix}user:{user}:sessions")),
            user: Key::raw(format!("{prefix}user:{user}")),
        }
    }

    /// HASH of one session: `token_hash` (SHA-256 of the secret), `device_id`, `ip_address`, `opened_ms`,
    /// `seen_ms`. TTL 604,800 s since the last request, 30 days at most. Read-only for others.
    pub(crate) fn session(&self, session_id: &UserSessionId) -> Key {
        let (prefix, user_id) = (&self.prefix, &self.user_id);
        match self.layout {
            Layout::Standalone => Key::raw(format!("{prefix}session:{session_id}")),
            Layout::Cluster => Key::raw(format!("{prefix}session:{{{user_id}}}:{session_id}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use store::Millis;

    use super::*;

    /// Every key of one identity, under the default policy and a named one.
    fn all(layout: Layout, identity: &Identity) -> Vec<Key> {
        let keys = LimitKeys::new(layout, &Prefix::default());
        let (limit, window) = (5, Duration::from_secs(60));
        let rules = [
            Rule::Fixed { limit, window },
            Rule::Window { limit, window },
            Rule::Counter { limit, window },
            Rule::Bucket { burst: 1, count: 1, per: window },
            Rule::Calendar { limit: 5, start: Millis(0), end: Millis(1) },
            Rule::Concurrent { limit, lease: window },
        ];
        let login = PolicyName::parse("login").unwrap();
        let each = rules.iter().flat_map(|rule| {
            [keys.limit(rule, identity, None), keys.limit(rule, identity, Some(&login))]
        });
        each.chain([keys.refund(identity, "r1")]).collect()
    }

    #[test]
    fn standalone_names_are_the_documented_ones() {
        let names: Vec<String> = all(Layout::Standalone, &Identity::raw("192.168.1.100").unwrap())
            .iter()
            .map(Key::to_string)
            .collect();
        assert_eq!(
            names[..4],
            [
                "ha:rate_limit:192.168.1.100",
                "ha:rate_limit:192.168.1.100#login",
                "ha:sliding_limit:192.168.1.100",
                "ha:sliding_limit:192.168.1.100#login",
            ]
        );
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        let user = all(Layout::Standalone, &Identity::user("123"));
        assert_eq!(user[0].as_str(), "ha:rate_limit:user:123");
    }

    #[test]
    fn traffic_has_the_documented_names() {
        let keys = TrafficKeys::new(Layout::Standalone, &Prefix::default(), None);
        let endpoint = EndpointName::new("GET", Some("/api/users"));
        let names = [
            &keys.connections,
            &keys.connections_max,
            &keys.accepted,
            &keys.total,
            &keys.speed,
            &keys.speed_max,
            &keys.endpoint(&endpoint),
            &keys.errors,
            &keys.endpoint_errors(&endpoint),
            &keys.response_times(&endpoint),
        ];
        assert_eq!(
            names.map(Key::as_str),
            [
                "ha:connections:http:current",
                "ha:connections:http:max_since_startup",
                "ha:requests:accepted",
                "ha:requests:total",
                "ha:requests:speed_per_second",
                "ha:requests:max_speed_per_second",
                "ha:requests:endpoint:GET /api/users",
                "ha:errors:total",
                "ha:errors:endpoint:GET /api/users",
                "ha:response_times:GET /api/users",
            ]
        );
        let shop = AppName::parse("shop").unwrap();
        let shop = TrafficKeys::new(Layout::Cluster, &Prefix::default(), Some(&shop));
        assert_eq!(shop.total.as_str(), "ha:app:shop:requests:total");
        assert_eq!(shop.connections.slot(), shop.instances.slot());
        assert_eq!(shop.connections.slot(), shop.connections_max.slot());
    }

    #[test]
    fn users_have_the_documented_names_and_one_slot_in_a_cluster() {
        let user = UserId::parse("123").unwrap();
        let session = UserSessionId::parse(&format!("MTIz~{}", "0".repeat(32))).unwrap();
        let all = |layout: Layout| {
            let keys = UserKeys::new(layout, &Prefix::default(), &user);
            [keys.user.clone(), keys.status.clone(), keys.sessions.clone(), keys.session(&session)]
        };
        let names = all(Layout::Standalone).map(String::from);
        assert_eq!(names[..3], ["ha:user:123", "ha:user_status:123", "ha:user:123:sessions"]);
        assert!(names[3].starts_with("ha:session:MTIz~"));
        assert!(SECRET_KEYS.iter().any(|start| names[3].starts_with(&format!("ha:{start}"))));
        let slots: HashSet<u16> = all(Layout::Cluster).iter().map(Key::slot).collect();
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn cluster_names_of_one_identity_share_a_slot() {
        for identity in [Identity::ip([192, 0, 2, 1].into()), Identity::user("a b{c}")] {
            let slots: HashSet<u16> =
                all(Layout::Cluster, &identity).iter().map(Key::slot).collect();
            assert_eq!(slots.len(), 1, "{identity:?}");
        }
    }
}
