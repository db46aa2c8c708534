//! Every Redis key of the desk. No other file builds one.
//!
//! In the standalone layout the names are those of the documented schema; in the cluster layout the
//! identity a limit counts for, or the user, is the hash tag, so that everything one script touches
//! lives in one slot. Counters are single keys and stay untagged.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::fmt;

use store::{
    Key, Layout,
    key_map::{KeyMap, Place},
    limit::Rule,
};

use crate::{
    identity::Identity,
    ids::{AgentId, AppName, ConversationId, InstanceId, PolicyName, Prefix, UserId},
    traffic::EndpointName,
    users::UserSessionId,
};

/// What follows the prefix in keys that hold secrets: sessions with the hashes of their tokens. Tools
/// that inspect keys must not show them.
pub const SECRET_KEYS: [&str; 1] = ["session:"];

/// The end of a limit's key: `#` and the policy, nothing for the default policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicySuffix<'a>(Option<&'a PolicyName>);

impl fmt::Display for PolicySuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, "#{name}"),
            None => Ok(()),
        }
    }
}

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
        let suffix = PolicySuffix(policy);
        match rule {
            Rule::Fixed { .. } => self.rate_limit(identifier, suffix),
            Rule::Sliding { .. } => self.sliding_limit(identifier, suffix),
            Rule::Counter { .. } => self.counter_limit(identifier, suffix),
            Rule::Bucket { .. } => self.bucket_limit(identifier, suffix),
            Rule::Calendar { .. } => self.quota(identifier, suffix),
            Rule::Concurrent { .. } => self.concurrent_limit(identifier, suffix),
        }
    }

    /// Returns every key that may count for an identity under a policy, and that of its refunds.
    pub(crate) fn all(&self, identifier: &Identity, policy: Option<&PolicyName>) -> Vec<Key> {
        let suffix = PolicySuffix(policy);
        vec![
            self.rate_limit(identifier, suffix),
            self.sliding_limit(identifier, suffix),
            self.counter_limit(identifier, suffix),
            self.bucket_limit(identifier, suffix),
            self.quota(identifier, suffix),
            self.concurrent_limit(identifier, suffix),
            self.refunds(identifier),
        ]
    }

    /// ZSET of units allowed in a `fixed` window, which opens with the first; score = Unix
    /// milliseconds. TTL = the rest of the window + 1 s. Anyone may write.
    pub(crate) fn rate_limit(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}rate_limit:{tagged}{policy}"))
    }

    /// ZSET of units allowed in a `sliding` window; unique members, score = Unix milliseconds. TTL =
    /// the window + 1 s. Anyone may write.
    pub(crate) fn sliding_limit(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}sliding_limit:{tagged}{policy}"))
    }

    /// HASH `start_ms`, `now`, `before`: two windows of a `counter`. TTL = until the younger window
    /// counts no more + 1 s. Read-only for others.
    pub(crate) fn counter_limit(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}counter_limit:{tagged}{policy}"))
    }

    /// STRING: credits of a `bucket` and the Unix milliseconds at which they were counted. TTL =
    /// until it is full + 1 s. Read-only for others.
    pub(crate) fn bucket_limit(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}bucket_limit:{tagged}{policy}"))
    }

    /// HASH `start_ms`, `end_ms`, `used`: the period of a `calendar` limit. TTL = until it ends +
    /// 1 s. Read-only for others.
    pub(crate) fn quota(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}quota:{tagged}{policy}"))
    }

    /// ZSET of leased units of a `concurrent` limit; score = end of the lease, Unix milliseconds.
    /// TTL = the longest lease + 1 s. Read-only for others.
    pub(crate) fn concurrent_limit(&self, identifier: &Identity, policy: PolicySuffix<'_>) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}concurrent_limit:{tagged}{policy}"))
    }

    /// ZSET of refunds that were made to an identity, so that a repeated one counts once; score = Unix
    /// milliseconds. TTL 60 s, renewed. Read-only for others.
    pub(crate) fn refunds(&self, identifier: &Identity) -> Key {
        let prefix = &self.prefix;
        let tagged = self.layout.tag(identifier);
        Key::raw(format!("{prefix}limit_refunds:{tagged}"))
    }
}

/// Policies and blocks
#[derive(Clone, Debug)]
pub(crate) struct BookKeys {
    /// HASH of policies: name to JSON. No TTL. Read-only for others: change them by the API.
    pub(crate) policies: Key,
    /// HASH of domains for proxies: name to the JSON of their rules. No TTL. Read-only for others: change them
    /// by the API.
    pub(crate) domains: Key,
    /// ZSET of blocks: policy and identity with `#` between; score = end, Unix milliseconds. No TTL; what has
    /// ended goes with the next change. Read-only for others.
    pub(crate) blocks: Key,
    /// STRING: number of the last change of policies and blocks. No TTL. Read-only for others.
    pub(crate) version: Key,
}

impl BookKeys {
    pub(crate) fn new(layout: Layout, prefix: &Prefix) -> Self {
        // One script changes them, so they share a slot in a cluster.
        Self {
            policies: match layout {
                Layout::Standalone => Key::raw(format!("{prefix}limits:policies")),
                Layout::Cluster => Key::raw(format!("{prefix}{{limits}}:policies")),
            },
            domains: match layout {
                Layout::Standalone => Key::raw(format!("{prefix}limits:domains")),
                Layout::Cluster => Key::raw(format!("{prefix}{{limits}}:domains")),
            },
            blocks: match layout {
                Layout::Standalone => Key::raw(format!("{prefix}limits:blocks")),
                Layout::Cluster => Key::raw(format!("{prefix}{{limits}}:blocks")),
            },
            version: match layout {
                Layout::Standalone => Key::raw(format!("{prefix}limits:version")),
                Layout::Cluster => Key::raw(format!("{prefix}{{limits}}:version")),
            },
        }
    }
}

/// Use of policies
#[derive(Clone, Debug)]
pub(crate) struct UsageKeys {
    prefix: Prefix,
    /// SET of names of policies whose use is counted, at most 1,000; `~` is the default policy. No TTL.
    /// Read-only for others.
    pub(crate) names: Key,
}

impl UsageKeys {
    pub(crate) fn new(prefix: &Prefix) -> Self {
        Self { prefix: prefix.clone(), names: Key::raw(format!("{prefix}limit_names")) }
    }

    /// HASH `allowed`, `denied`, `near`, `shadow`, `degraded`: requests at one policy. No TTL. Read-only for
    /// others.
    pub(crate) fn stats(&self, policy: &str) -> Key {
        let prefix = &self.prefix;
        Key::raw(format!("{prefix}limit_stats:{policy}"))
    }

    /// ZSET of identities that hit a policy most in one Unix hour; score = requests. TTL 2 h. Read-only for
    /// others.
    pub(crate) fn top(&self, policy: &str, hour: i64) -> Key {
        let prefix = &self.prefix;
        Key::raw(format!("{prefix}limit_top:{policy}:{hour}"))
    }

    /// ZSET of identities that a policy denied most in one Unix hour; score = requests. TTL 2 h. Read-only for
    /// others.
    pub(crate) fn top_denied(&self, policy: &str, hour: i64) -> Key {
        let prefix = &self.prefix;
        Key::raw(format!("{prefix}limit_top_denied:{policy}:{hour}"))
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
    /// between. No TTL; an instance goes 11 s after its last report. Read-only for others.
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
    /// HASH of the response times of all requests: number of a bucket to requests in it, as of one endpoint. No
    /// TTL. Read-only for others.
    pub(crate) all_times: Key,
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
            all_times: Key::raw(format!("{base}requests:response_times")),
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

    /// HASH of the response times of one endpoint: number of a bucket to requests in it; 17 buckets per
    /// decade, from 100 µs to 1,000 s. No TTL. Read-only for others.
    pub(crate) fn response_times(&self, endpoint: &EndpointName) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}response_times:{endpoint}"))
    }

    /// HASH of the last report of one instance of another program, by status and endpoint: its start in Unix
    /// nanoseconds, requests since then, and their response times by bucket. TTL 2 days since the last report.
    /// Read-only for others.
    pub(crate) fn reports(&self, reporter: &InstanceId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}reports:{reporter}"))
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

/// SET of apps whose traffic is kept beside the program's own, at most 100. No TTL. Read-only for others.
pub(crate) fn apps(prefix: &Prefix) -> Key {
    Key::raw(format!("{prefix}apps"))
}

/// A key of traffic that others may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedKey {
    /// The app; none is the program itself.
    pub(crate) app: Option<AppName>,
    /// The endpoint; none for a total.
    pub(crate) endpoint: Option<String>,
}

/// Returns a pattern of SCAN that every [`CountedKey`] matches.
pub(crate) fn counted_pattern(prefix: &Prefix) -> String {
    let escaped: String = prefix
        .to_string()
        .chars()
        .flat_map(|c| {
            let special = matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
            special.then_some('\\').into_iter().chain([c])
        })
        .collect();
    format!("{escaped}*requests:*")
}

/// Reads the name of a key of traffic that others may write.
pub(crate) fn counted_key(prefix: &Prefix, key: &[u8]) -> Option<CountedKey> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(prefix.to_string().as_str())?;
    let (app, rest) = split_app(rest);
    let app = match app.strip_prefix("app:").and_then(|app| app.strip_suffix(':')) {
        Some(name) => Some(AppName::parse(name).ok()?),
        None => None,
    };
    let endpoint = match rest.strip_prefix("requests:")? {
        "total" | "accepted" => None,
        rest => Some(rest.strip_prefix("endpoint:")?.to_owned()),
    };
    Some(CountedKey { app, endpoint })
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

/// ZSET of users by id; score = when they were last seen to log in, check in or change, Unix milliseconds.
/// The newest 100,000. TTL 30 days since the last of them. Read-only for others.
pub(crate) fn users(prefix: &Prefix) -> Key {
    Key::raw(format!("{prefix}users"))
}

/// CHANNEL on which the id of a user is published when their status or a session changes. Anyone may
/// publish.
pub(crate) fn user_events(prefix: &Prefix) -> Key {
    Key::raw(format!("{prefix}user_events"))
}

/// Keys of the chat. In the cluster layout all of them share the hash tag `{chat}`, because one script
/// touches conversations and agents.
#[derive(Clone, Debug)]
pub(crate) struct ChatKeys {
    /// What all of them begin with: `ha:`, or `ha:{chat}:` in the cluster layout.
    base: String,
    /// HASH `generation`, `active`, `unread` and `load:<agent>`: marks the published state as whole, and the
    /// sizes its keys must have. TTL 1,800 s, renewed; without it the state is rebuilt from the archive.
    /// Read-only for others.
    pub(crate) ready: Key,
    /// ZSET of open conversations; score = Unix milliseconds of the last message. TTL 3,600 s, renewed.
    /// Read-only for others.
    pub(crate) active: Key,
    /// ZSET of conversations with unread messages; score = rank × 10¹³ + (10¹³ − Unix milliseconds of the
    /// first unanswered message), rank 4 for urgent to 1 for low: ZREVRANGE has the most urgent first. TTL
    /// 3,600 s, renewed. Read-only for others.
    pub(crate) unread: Key,
    /// ZSET of conversations that need an agent; score as in the unread ones, with the rank that ageing
    /// gives. No TTL. Read-only for others.
    pub(crate) waiting: Key,
    /// ZSET of conversations whose agent must reply; score = deadline, Unix milliseconds. No TTL. Read-only
    /// for others.
    pub(crate) due: Key,
    /// HASH of assignments that the archive does not have yet, by conversation. No TTL. Read-only for others.
    pub(crate) pending: Key,
    /// HASH of what assignment must know of agents, by `<id>:<field>`: `capacity`, `status`, `chosen`,
    /// `chosen_until_ms`, `last_ms`, `active_ms`, `teams`, `skills`, `disabled`, `misses`. No TTL. Read-only for others.
    pub(crate) agents: Key,
    /// ZSET of agents; score = end of the longest lease of a connection, Unix milliseconds. No TTL.
    /// Read-only for others.
    pub(crate) leases: Key,
    /// ZSET of visitors with a live connection; score = end, Unix milliseconds. No TTL. Read-only for others.
    pub(crate) visitors: Key,
    /// STREAM of live events, about the last 10,000. No TTL. Read-only for others.
    pub(crate) events: Key,
    /// STRING: id of the archive that all instances use. No TTL. Read-only for others.
    pub(crate) archive: Key,
    /// HASH: lease of the instance that does the periodic work. No TTL. Read-only for others.
    pub(crate) leader: Key,
    /// HASH: lease of the instance that rebuilds the published state. No TTL. Read-only for others.
    pub(crate) rebuild: Key,
}

impl ChatKeys {
    pub(crate) fn new(layout: Layout, prefix: &Prefix) -> Self {
        let base = match layout {
            Layout::Standalone => prefix.to_string(),
            Layout::Cluster => format!("{prefix}{{chat}}:"),
        };
        Self {
            ready: Key::raw(format!("{base}chat:ready")),
            active: Key::raw(format!("{base}chat:conversations:active")),
            unread: Key::raw(format!("{base}chat:conversations:unread")),
            waiting: Key::raw(format!("{base}chat:conversations:waiting")),
            due: Key::raw(format!("{base}chat:conversations:due")),
            pending: Key::raw(format!("{base}chat:assignments:pending")),
            agents: Key::raw(format!("{base}chat:agents")),
            leases: Key::raw(format!("{base}chat:agents:leases")),
            visitors: Key::raw(format!("{base}chat:visitors:present")),
            events: Key::raw(format!("{base}chat:events")),
            archive: Key::raw(format!("{base}chat:archive")),
            leader: Key::raw(format!("{base}chat:leader")),
            rebuild: Key::raw(format!("{base}chat:rebuild")),
            base,
        }
    }

    /// STRING: `online`, `away`, `busy` or `offline`. TTL 1,800 s, renewed. Read-only for others.
    pub(crate) fn presence(&self, agent: &AgentId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}admin:{agent}:presence"))
    }

    /// SET of conversations assigned to an agent. TTL 3,600 s, renewed. Read-only for others.
    pub(crate) fn assignments(&self, agent: &AgentId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}admin:{agent}:assignments"))
    }

    /// ZSET of an agent's connections; score = end of the lease, Unix milliseconds. TTL 3,600 s, renewed.
    /// Read-only for others.
    pub(crate) fn connections(&self, agent: &AgentId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:agent:{agent}:connections"))
    }

    /// ZSET of an agent's connections with a tab in the foreground; score = end, Unix milliseconds. TTL 120 s,
    /// renewed. Read-only for others.
    pub(crate) fn foreground(&self, agent: &AgentId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:agent:{agent}:foreground"))
    }

    /// HASH of the numbers on an agent's dashboard: `total_active`, `assigned_to_me`, `unread_count`,
    /// `avg_response_time` (minutes), `resolved_today`. TTL 300 s, renewed while the agent is there. Read-only
    /// for others.
    pub(crate) fn dashboard(&self, agent: &AgentId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:admin:dashboard:{agent}"))
    }

    /// HASH of what scripts must know of a conversation: `status`, `rank`, `assignee`, `assign_no`, `event_no`,
    /// `waiting_ms`, `queued_ms`, `queue_score`, `team`, `skills`, `last_agent`, `missed`. No TTL while it is
    /// open, 3,600 s afterwards. Read-only for others.
    pub(crate) fn conversation(&self, conversation: &ConversationId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:conversation:{conversation}"))
    }

    /// LIST of the last 100 messages, newest first, as JSON; without notes. TTL 3,600 s, renewed while the
    /// conversation is open. Read-only for others.
    pub(crate) fn messages(&self, conversation: &ConversationId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:conversation:{conversation}:messages"))
    }

    /// STRING: the agent that a one-use ticket for a socket is for. TTL 30 s. Read-only for others.
    pub(crate) fn ticket(&self, hash: &str) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:ticket:{hash}"))
    }

    /// ZSET of those who look at a conversation; score = end, Unix milliseconds. TTL 60 s, renewed.
    /// Read-only for others.
    pub(crate) fn viewers(&self, conversation: &ConversationId) -> Key {
        let base = &self.base;
        Key::raw(format!("{base}chat:conversation:{conversation}:viewers"))
    }
}

/// What the keys of the chat begin with in the standalone layout.
const CHAT: [&str; 2] = ["admin:", "chat:"];
const CHAT_TAG: &str = "{chat}:";

/// Groups of keys `GROUP:IDENTITY`, with `#` and a policy behind the identity or not.
const LIMITS: [&str; 7] = [
    "rate_limit:",
    "sliding_limit:",
    "counter_limit:",
    "bucket_limit:",
    "quota:",
    "concurrent_limit:",
    "limit_refunds:",
];
const USERS: [&str; 2] = ["user:", "user_status:"];
const SESSION: &str = "session:";
/// Groups whose name is the hash tag: one script touches all of its keys.
const TAGGED_GROUPS: [&str; 2] = ["connections", "limits"];

/// The keys of the desk in both layouts, for moving from one to the other.
#[derive(Clone, Debug, Default)]
pub struct DeskKeyMap {
    prefix: Prefix,
}

impl DeskKeyMap {
    /// For keys with this prefix.
    pub fn new(prefix: &Prefix) -> Self {
        Self { prefix: prefix.clone() }
    }
}

impl KeyMap for DeskKeyMap {
    fn place(&self, key: &[u8], to: Layout, _: &[Vec<u8>]) -> Option<Place> {
        let prefix = self.prefix.to_string();
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&prefix)?;
        let moved = match to {
            Layout::Cluster => to_cluster(rest),
            Layout::Standalone => to_standalone(rest),
        };
        // All other keys are single ones, which both layouts spell the same.
        let rest = moved.unwrap_or_else(|| rest.to_owned());
        Some(Place::Key(format!("{prefix}{rest}").into()))
    }
}

fn to_cluster(rest: &str) -> Option<String> {
    if CHAT.iter().any(|start| rest.starts_with(start)) {
        return Some(format!("{CHAT_TAG}{rest}"));
    }
    if let Some((group, identity)) = split_group(rest, &LIMITS) {
        let (identity, policy) = identity.split_at(identity.find('#').unwrap_or(identity.len()));
        return Some(format!("{group}{{{identity}}}{policy}"));
    }
    if let Some((group, user)) = split_group(rest, &USERS) {
        let (user, more) = user.split_at(user.find(':').unwrap_or(user.len()));
        return Some(format!("{group}{{{user}}}{more}"));
    }
    if let Some(id) = rest.strip_prefix(SESSION) {
        let user = UserSessionId::parse(id)?.user().clone();
        return Some(format!("{SESSION}{{{user}}}:{id}"));
    }
    let (app, rest) = split_app(rest);
    let (group, rest) = rest.split_once(':').filter(|(group, _)| TAGGED_GROUPS.contains(group))?;
    Some(format!("{app}{{{group}}}:{rest}"))
}

fn to_standalone(rest: &str) -> Option<String> {
    if let Some(rest) = rest.strip_prefix(CHAT_TAG) {
        return Some(rest.to_owned());
    }
    let untagged = |group: &str, rest: &str| {
        let (tag, more) = rest.strip_prefix('{')?.split_once('}')?;
        Some(format!("{group}{tag}{more}"))
    };
    if let Some((group, rest)) = split_group(rest, &LIMITS).or_else(|| split_group(rest, &USERS)) {
        return untagged(group, rest);
    }
    if let Some(rest) = rest.strip_prefix(SESSION) {
        let (_, id) = rest.strip_prefix('{')?.split_once("}:")?;
        return Some(format!("{SESSION}{id}"));
    }
    let (app, rest) = split_app(rest);
    let (group, rest) = rest.strip_prefix('{')?.split_once("}:")?;
    TAGGED_GROUPS.contains(&group).then(|| format!("{app}{group}:{rest}"))
}

fn split_group<'a>(rest: &'a str, groups: &[&'static str]) -> Option<(&'static str, &'a str)> {
    groups.iter().find_map(|group| Some((*group, rest.strip_prefix(group)?)))
}

/// `app:NAME:` at the beginning, and what follows.
fn split_app(rest: &str) -> (&str, &str) {
    let name = rest.strip_prefix("app:").and_then(|rest| rest.split_once(':'));
    rest.split_at(name.map_or(0, |(name, _)| "app:".len() + name.len() + 1))
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
            Rule::Sliding { limit, window },
            Rule::Counter { limit, window },
            Rule::Bucket { burst: 1, count: 1, per: window },
            Rule::Calendar { limit: 5, start: Millis(0), end: Millis(1) },
            Rule::Concurrent { limit, lease: window },
        ];
        let login = PolicyName::parse("login").unwrap();
        let each = rules.iter().flat_map(|rule| {
            [keys.limit(rule, identity, None), keys.limit(rule, identity, Some(&login))]
        });
        each.chain([keys.refunds(identity)]).collect()
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
    fn keys_that_others_count_under_are_read_and_no_others() {
        let prefix = Prefix::default();
        let read = |key: &str| counted_key(&prefix, key.as_bytes());
        let shop = AppName::parse("shop").unwrap();
        for app in [None, Some(shop)] {
            let keys = TrafficKeys::new(Layout::Standalone, &prefix, app.as_ref());
            let endpoint = EndpointName::new("GET", Some("/api/users/:id"));
            let name = Some("GET /api/users/:id".to_owned());
            let found = CountedKey { app: app.clone(), endpoint: name };
            assert_eq!(read(keys.endpoint(&endpoint).as_str()), Some(found));
            assert_eq!(read(keys.total.as_str()), Some(CountedKey { app, endpoint: None }));
            let others =
                [&keys.speed, &keys.outcomes, &keys.endpoints, &keys.errors, &keys.seconds(1)];
            for other in others {
                assert_eq!(read(other.as_str()), None, "{other}");
            }
        }
        assert_eq!(read("ha:app:a b:requests:total"), None);
        assert_eq!(read("xy:requests:total"), None);
        assert_eq!(counted_pattern(&prefix), "ha:*requests:*");
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

    fn chat(layout: Layout) -> Vec<Key> {
        let keys = ChatKeys::new(layout, &Prefix::default());
        let agent = AgentId::parse("123").unwrap();
        let conversation = ConversationId::parse("456").unwrap();
        vec![
            keys.presence(&agent),
            keys.assignments(&agent),
            keys.active.clone(),
            keys.unread.clone(),
            keys.messages(&conversation),
            keys.dashboard(&agent),
            keys.conversation(&conversation),
            keys.ready.clone(),
            keys.waiting.clone(),
            keys.connections(&agent),
        ]
    }

    #[test]
    fn the_chat_has_the_documented_names_and_one_slot_in_a_cluster() {
        let names: Vec<String> = chat(Layout::Standalone).into_iter().map(String::from).collect();
        assert_eq!(
            names[..6],
            [
                "ha:admin:123:presence",
                "ha:admin:123:assignments",
                "ha:chat:conversations:active",
                "ha:chat:conversations:unread",
                "ha:chat:conversation:456:messages",
                "ha:chat:admin:dashboard:123",
            ]
        );
        let slots: HashSet<u16> = chat(Layout::Cluster).iter().map(Key::slot).collect();
        assert_eq!(slots.len(), 1);
        let map = DeskKeyMap::default();
        for (one, other) in chat(Layout::Standalone).iter().zip(&chat(Layout::Cluster)) {
            let place = |key: &Key, to| map.place(key.as_str().as_bytes(), to, &[]);
            assert_eq!(place(one, Layout::Cluster), Some(Place::Key(other.as_str().into())));
            assert_eq!(place(other, Layout::Standalone), Some(Place::Key(one.as_str().into())));
        }
    }

    #[test]
    fn cluster_names_of_one_identity_share_a_slot() {
        for identity in [Identity::ip([192, 0, 2, 1].into()), Identity::user("a b{c}")] {
            let slots: HashSet<u16> =
                all(Layout::Cluster, &identity).iter().map(Key::slot).collect();
            assert_eq!(slots.len(), 1, "{identity:?}");
        }
    }

    #[test]
    fn every_key_has_a_place_in_the_other_layout_and_back() {
        let user = UserId::parse("123").unwrap();
        let session = UserSessionId::parse(&format!("MTIz~{}", "0".repeat(32))).unwrap();
        let shop = AppName::parse("shop").unwrap();
        let identities = ["192.168.1.100", "user:123", "2001:db8::/64"];
        let [one, other] = [Layout::Standalone, Layout::Cluster].map(|layout| {
            let users = UserKeys::new(layout, &Prefix::default(), &user);
            let mut keys: Vec<Key> = identities
                .iter()
                .flat_map(|identity| all(layout, &Identity::raw(identity).unwrap()))
                .collect();
            keys.extend([users.user.clone(), users.status.clone(), users.sessions.clone()]);
            keys.push(users.session(&session));
            for app in [None, Some(&shop)] {
                let traffic = TrafficKeys::new(layout, &Prefix::default(), app);
                keys.extend([traffic.connections, traffic.connections_max, traffic.instances]);
                keys.extend([traffic.total, traffic.endpoints, traffic.all_times]);
            }
            keys
        });
        let map = DeskKeyMap::default();
        for (one, other) in one.iter().zip(&other) {
            let place = |key: &Key, to| map.place(key.as_str().as_bytes(), to, &[]);
            assert_eq!(place(one, Layout::Cluster), Some(Place::Key(other.as_str().into())));
            assert_eq!(place(other, Layout::Standalone), Some(Place::Key(one.as_str().into())));
        }
        assert_eq!(map.place(b"other:key", Layout::Cluster, &[]), None);
    }
}
