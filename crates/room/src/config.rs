//! Settings of a queue, with every bound and its reason.
//!
//! [`QueueConfig`] is a plain struct; [`QueueConfig::check`] refuses what is out of bounds before
//! anything is stored, and `fields` is the stored form: the documented fields of
//! `queue:{id}:meta` and ours beside them.

use std::{collections::HashMap, time::Duration};

use serde_json::{Map, Value};

use crate::Error;

/// Default, minimum and maximum of a setting.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Name of the setting in errors.
    pub name: &'static str,
    /// Default value.
    pub default: u64,
    /// Minimum.
    pub least: u64,
    /// Maximum.
    pub most: u64,
}

impl Bound {
    const fn new(name: &'static str, default: u64, least: u64, most: u64) -> Self {
        Self { name, default, least, most }
    }

    fn check(&self, value: u64) -> Result<(), Error> {
        if (self.least..=self.most).contains(&value) {
            Ok(())
        } else {
            Err(Error::invalid(self.name, format!("from {} to {}", self.least, self.most)))
        }
    }
}

/// Visitors admitted or active at once; 0 is no limit. The maximum is far above any site and keeps
/// arithmetic in scripts exact.
pub const MAX_ACTIVE: Bound = Bound::new("max_active", 1_000, 0, 10_000_000);
/// Visitors from one address admitted or active at once; 0 is no limit. See [`QueueConfig::max_active_per_address`].
pub const MAX_ACTIVE_PER_ADDRESS: Bound = Bound::new("max_active_per_address", 0, 0, 10_000_000);
/// Visitors who may wait; 0 is no limit.
pub const MAX_QUEUE_SIZE: Bound = Bound::new("max_queue_size", 50_000, 0, 100_000_000);
/// Admissions per period; 0 admits nobody except by hand, from the moment it is set. More than a million
/// per second is no limit at all.
pub const RATE_COUNT: Bound = Bound::new("admission.count", 10, 0, 1_000_000);
/// The period in seconds, up to a day.
pub const RATE_PER: Bound = Bound::new("admission.per_seconds", 1, 1, 86_400);
/// Burst: admissions at once after a lull. By default one second's worth of the rate, at least one.
pub const RATE_BURST: Bound = Bound::new("admission.burst", 10, 1, 1_000_000);
/// Admission window: seconds an admitted visitor has to start a session. Two minutes: a phone must be
/// picked up.
pub const ADMISSION_WINDOW: Bound = Bound::new("admission_window", 120, 5, 3_600);
/// Seconds a position without heartbeats is held beyond three missed polls. Browsers run timers of
/// hidden tabs once a minute, phones sleep: five minutes by default, never below one.
pub const HOLD: Bound = Bound::new("hold", 300, 60, 86_400);
/// Seconds between polls when the wait is not known.
pub const HEARTBEAT_INTERVAL: Bound = Bound::new("heartbeat_interval", 10, 1, 60);
/// Minimum of seconds between polls, near the front.
pub const POLL_FLOOR: Bound = Bound::new("poll_floor", 5, 1, 60);
/// Maximum of seconds between polls, far from the front. Timers of hidden tabs run once a minute anyway.
pub const POLL_CEILING: Bound = Bound::new("poll_ceiling", 60, 5, 120);
/// Seconds without activity after which a session ends.
pub const SESSION_TIMEOUT: Bound = Bound::new("session_timeout", 1_800, 10, 86_400);
/// Seconds a provisional session lasts: one started for a visitor without a cookie, until the cookie
/// comes back once. A minute: a slow page on a slow phone requests its images within that.
pub const PROVISIONAL_TIMEOUT: Bound = Bound::new("provisional_timeout", 60, 5, 3_600);
/// Hard limit of a session, in seconds.
pub const SESSION_MAX: Bound = Bound::new("session_max", 14_400, 10, 604_800);
/// Under the strict policy, one admission in this many is reserved for priority 0; 0 reserves none.
pub const RESERVED_SHARE: Bound = Bound::new("reserved_share", 5, 0, 1_000);
/// Bytes of the user agent that are stored. 64 keep a record compact in Redis.
pub const USER_AGENT_BYTES: Bound = Bound::new("user_agent_bytes", 64, 0, 512);

/// Rate of admission: `count` per `per_seconds`, and `burst` at once after a lull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionRate {
    /// Admissions in a period.
    pub count: u32,
    /// The period in seconds.
    pub per_seconds: u32,
    /// Burst: admissions at once after a lull.
    pub burst: u32,
}

impl AdmissionRate {
    /// Creates a rate of `count` per `per_seconds`, with a burst of one second's worth.
    ///
    /// ```
    /// use tidegate_room::AdmissionRate;
    /// assert_eq!(AdmissionRate::new(500, 60).burst, 9);
    /// assert_eq!(AdmissionRate::new(1, 60).burst, 1);
    /// ```
    pub fn new(count: u32, per_seconds: u32) -> Self {
        Self { count, per_seconds, burst: count.div_ceil(per_seconds.max(1)).max(1) }
    }

    /// Returns the same rate with another burst.
    pub fn with_burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Returns the admissions per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.count) / f64::from(self.per_seconds.max(1))
    }
}

impl Default for AdmissionRate {
    fn default() -> Self {
        Self::new(10, 1)
    }
}

/// Policy by which priorities above 0 get ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityPolicy {
    /// Priority 1 skips a tenth of the queue, priority 2 half of it, priority 3 goes first, when enqueueing.
    #[default]
    Skip,
    /// Priority 3 before 2 before 1 before 0, with a share reserved for priority 0.
    Strict,
}

impl PriorityPolicy {
    /// Returns the stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            PriorityPolicy::Skip => "skip",
            PriorityPolicy::Strict => "strict",
        }
    }

    /// Reads the stored name.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "skip" => Ok(PriorityPolicy::Skip),
            "strict" => Ok(PriorityPolicy::Strict),
            _ => Err(Error::invalid("priority_policy", "skip or strict")),
        }
    }
}

/// Rule by which two visitors count as the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The same signed token (or idempotency key). A campus behind one address is many visitors.
    #[default]
    Token,
    /// Also the same network address.
    Ip,
}

impl Duplicates {
    /// Returns the stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Duplicates::Token => "token",
            Duplicates::Ip => "ip",
        }
    }

    /// Reads the stored name.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "token" => Ok(Duplicates::Token),
            "ip" => Ok(Duplicates::Ip),
            _ => Err(Error::invalid("duplicates", "token or ip")),
        }
    }
}

/// Status of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueStatus {
    /// Visitors are admitted.
    Active,
    /// Visitors may enqueue and keep their positions; nobody is admitted; clocks stand still.
    Paused,
    /// Nobody may enqueue; positions are kept; nobody is admitted; clocks stand still.
    Maintenance,
}

impl QueueStatus {
    /// Returns the stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueStatus::Active => "active",
            QueueStatus::Paused => "paused",
            QueueStatus::Maintenance => "maintenance",
        }
    }

    /// Reads the stored name; a queue being deleted counts as closed.
    pub(crate) fn read(text: &str) -> Self {
        match text {
            "active" => QueueStatus::Active,
            "paused" => QueueStatus::Paused,
            _ => QueueStatus::Maintenance,
        }
    }
}

/// The settings of a queue.
///
/// ```
/// use tidegate_room::{QueueConfig, AdmissionRate};
/// let config = QueueConfig {
///     name: "Summer tour".into(),
///     target_url: "https://example.com/checkout".into(),
///     admission: AdmissionRate::new(500, 60),
///     ..QueueConfig::default()
/// };
/// assert!(config.check().is_ok());
/// assert!(QueueConfig { target_url: "javascript:alert(1)".into(), ..config }.check().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QueueConfig {
    /// Display name; up to 200 characters.
    pub name: String,
    /// URL admitted visitors are sent to, `http` or `https`; may be empty.
    pub target_url: String,
    /// Visitors admitted or active at once; 0 is no limit. See [`MAX_ACTIVE`].
    pub max_active: u32,
    /// Visitors from one address (IPv6: one /64) who may be admitted or active at once; 0 is no limit.
    /// Those beyond it wait, and others are admitted before them. `None` is its share of `max_active`: a tenth, but up to 20 as long as that is no more than half of it, so that a
    /// household or a small office fits into a small room and nobody fills a room alone.
    pub max_active_per_address: Option<u32>,
    /// Visitors who may wait; 0 is no limit. See [`MAX_QUEUE_SIZE`].
    pub max_queue_size: u32,
    /// Rate of admission.
    pub admission: AdmissionRate,
    /// Policy by which priorities above 0 get ahead.
    pub policy: PriorityPolicy,
    /// Under the strict policy, one admission in this many goes to priority 0. See [`RESERVED_SHARE`].
    pub reserved_share: u32,
    /// Time an admitted visitor has to start a session. See [`ADMISSION_WINDOW`].
    pub admission_window: Duration,
    /// Time a position without heartbeats is held beyond three missed polls. See [`HOLD`].
    pub hold: Duration,
    /// Time between polls when the wait is not known. See [`HEARTBEAT_INTERVAL`].
    pub heartbeat_interval: Duration,
    /// Minimum time between polls. See [`POLL_FLOOR`].
    pub poll_floor: Duration,
    /// Maximum time between polls. See [`POLL_CEILING`].
    pub poll_ceiling: Duration,
    /// Time without activity after which a session ends. See [`SESSION_TIMEOUT`].
    pub session_timeout: Duration,
    /// Time after which a session started for a visitor without a cookie ends unless the cookie comes
    /// back. See [`PROVISIONAL_TIMEOUT`].
    pub provisional_timeout: Duration,
    /// True if proxies may start sessions also for requests that are not a person's navigation.
    pub admit_programs: bool,
    /// Hard limit of a session. See [`SESSION_MAX`].
    pub session_max: Duration,
    /// True if activity renews a session; otherwise it ends `session_timeout` after it started.
    pub session_renewal: bool,
    /// Rule by which two visitors count as the same.
    pub duplicates: Duplicates,
    /// True if plain network addresses are stored besides their keyed hashes.
    pub store_addresses: bool,
    /// Bytes of the user agent that are stored. See [`USER_AGENT_BYTES`].
    pub user_agent_bytes: u32,
    /// The operator's message to waiting visitors, by language tag; each up to 1,000 characters.
    pub message: Map<String, Value>,
    /// Settings of the layers above (routes, cookies, pages), kept as they are; up to 16 KiB.
    pub attributes: Map<String, Value>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        let seconds = |bound: Bound| Duration::from_secs(bound.default);
        Self {
            name: String::new(),
            target_url: String::new(),
            max_active: 1_000,
            max_active_per_address: None,
            max_queue_size: 50_000,
            admission: AdmissionRate::default(),
            policy: PriorityPolicy::default(),
            reserved_share: 5,
            admission_window: seconds(ADMISSION_WINDOW),
            hold: seconds(HOLD),
            heartbeat_interval: seconds(HEARTBEAT_INTERVAL),
            poll_floor: seconds(POLL_FLOOR),
            poll_ceiling: seconds(POLL_CEILING),
            session_timeout: seconds(SESSION_TIMEOUT),
            session_max: seconds(SESSION_MAX),
            provisional_timeout: seconds(PROVISIONAL_TIMEOUT),
            admit_programs: false,
            session_renewal: true,
            duplicates: Duplicates::default(),
            store_addresses: false,
            user_agent_bytes: 64,
            message: Map::new(),
            attributes: Map::new(),
        }
    }
}

impl QueueConfig {
    /// Returns true if one address may have only a part of `max_active`.
    pub(crate) fn limits_addresses(&self) -> bool {
        self.max_active_per_address.unwrap_or(self.max_active) > 0
    }

    /// Returns the sessions one address may have at once; 0 is no limit. The same as `address_limit.lua`.
    pub(crate) fn address_limit(&self) -> u32 {
        let share = self.max_active.div_ceil(10).max(self.max_active.div_ceil(2).min(20));
        self.max_active_per_address.unwrap_or(share)
    }

    /// Rejects a value out of bounds, naming the field.
    pub fn check(&self) -> Result<(), Error> {
        if self.name.chars().count() > 200 || self.name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "up to 200 characters, none of them control"));
        }
        check_target(&self.target_url)?;
        MAX_ACTIVE.check(self.max_active.into())?;
        MAX_ACTIVE_PER_ADDRESS.check(self.max_active_per_address.unwrap_or(0).into())?;
        MAX_QUEUE_SIZE.check(self.max_queue_size.into())?;
        RATE_COUNT.check(self.admission.count.into())?;
        RATE_PER.check(self.admission.per_seconds.into())?;
        RATE_BURST.check(self.admission.burst.into())?;
        RESERVED_SHARE.check(self.reserved_share.into())?;
        if self.reserved_share == 1 {
            return Err(Error::invalid("reserved_share", "0, or 2 and more"));
        }
        for (bound, value) in [
            (ADMISSION_WINDOW, self.admission_window),
            (HOLD, self.hold),
            (HEARTBEAT_INTERVAL, self.heartbeat_interval),
            (POLL_FLOOR, self.poll_floor),
            (POLL_CEILING, self.poll_ceiling),
            (SESSION_TIMEOUT, self.session_timeout),
            (SESSION_MAX, self.session_max),
            (PROVISIONAL_TIMEOUT, self.provisional_timeout),
        ] {
            if value.subsec_nanos() != 0 {
                return Err(Error::invalid(bound.name, "whole seconds"));
            }
            bound.check(value.as_secs())?;
        }
        if self.poll_floor > self.poll_ceiling || self.heartbeat_interval > self.poll_ceiling {
            return Err(Error::invalid(
                "poll_ceiling",
                "not below poll_floor and heartbeat_interval",
            ));
        }
        if self.session_max < self.session_timeout {
            return Err(Error::invalid("session_max", "not below session_timeout"));
        }
        USER_AGENT_BYTES.check(self.user_agent_bytes.into())?;
        for (language, text) in &self.message {
            let tag = !language.is_empty()
                && language.len() <= 35
                && language.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            let short = text.as_str().is_some_and(|text| text.chars().count() <= 1_000);
            if !tag || !short || self.message.len() > 100 {
                return Err(Error::invalid(
                    "message",
                    "up to 100 language tags, each with up to 1,000 characters",
                ));
            }
        }
        if Value::Object(self.attributes.clone()).to_string().len() > 16 * 1024 {
            return Err(Error::invalid("attributes", "up to 16 KiB of JSON"));
        }
        Ok(())
    }

    /// Returns the time without a heartbeat after which a position expires: three polls at the longest
    /// interval, and the hold.
    pub fn heartbeat_timeout(&self) -> Duration {
        self.hold + 3 * self.poll_ceiling
    }

    /// Sets the hold so that a position expires after this time without a heartbeat.
    pub fn set_heartbeat_timeout(&mut self, timeout: Duration) {
        self.hold = timeout.saturating_sub(3 * self.poll_ceiling);
    }

    /// Returns the TTL of a position's record in seconds. It only cleans up; the deadline decides.
    pub(crate) fn position_ttl(&self) -> u64 {
        1_800.max(self.heartbeat_timeout().as_secs() + 600)
    }

    /// Returns the TTL of a session's record in seconds. It only cleans up; the deadline decides.
    pub(crate) fn session_ttl(&self) -> u64 {
        3_600.max(self.session_timeout.as_secs() + 600)
    }

    /// Returns the stored form.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let seconds = |duration: Duration| duration.as_secs().to_string();
        let object = |map: &Map<String, Value>| match map.is_empty() {
            true => String::new(),
            false => Value::Object(map.clone()).to_string(),
        };
        let rate = &self.admission;
        let per_second = match rate.count % rate.per_seconds.max(1) {
            0 => (rate.count / rate.per_seconds.max(1)).to_string(),
            _ => format!("{:.6}", rate.per_second()).trim_end_matches('0').to_owned(),
        };
        vec![
            ("name", self.name.clone()),
            ("target_url", self.target_url.clone()),
            ("max_active", self.max_active.to_string()),
            (
                "max_active_per_address",
                self.max_active_per_address.map(|most| most.to_string()).unwrap_or_default(),
            ),
            ("max_queue_size", self.max_queue_size.to_string()),
            ("admission_rate", per_second),
            ("admission_count", rate.count.to_string()),
            ("admission_per_seconds", rate.per_seconds.to_string()),
            ("admission_burst", rate.burst.to_string()),
            ("priority_policy", self.policy.as_str().to_owned()),
            ("reserved_share", self.reserved_share.to_string()),
            ("claim_window_seconds", seconds(self.admission_window)),
            ("hold_seconds", seconds(self.hold)),
            ("heartbeat_interval_seconds", seconds(self.heartbeat_interval)),
            ("heartbeat_timeout_seconds", seconds(self.heartbeat_timeout())),
            ("poll_floor_seconds", seconds(self.poll_floor)),
            ("poll_ceiling_seconds", seconds(self.poll_ceiling)),
            ("session_timeout_seconds", seconds(self.session_timeout)),
            ("session_max_seconds", seconds(self.session_max)),
            ("provisional_timeout_seconds", seconds(self.provisional_timeout)),
            ("admit_programs", u8::from(self.admit_programs).to_string()),
            ("session_renewal", u8::from(self.session_renewal).to_string()),
            ("duplicates", self.duplicates.as_str().to_owned()),
            ("store_addresses", u8::from(self.store_addresses).to_string()),
            ("user_agent_bytes", self.user_agent_bytes.to_string()),
            ("message", object(&self.message)),
            ("attributes", object(&self.attributes)),
            ("position_ttl", self.position_ttl().to_string()),
            ("session_ttl", self.session_ttl().to_string()),
        ]
    }

    /// Reads the stored form; a missing or unreadable field (a queue made by hand) has its default.
    pub(crate) fn read(fields: &HashMap<String, String>) -> Self {
        let default = Self::default();
        let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u32>().ok());
        let seconds = |name: &str, default: Duration| {
            number(name).map_or(default, |n| Duration::from_secs(n.into()))
        };
        let object = |name: &str| {
            fields
                .get(name)
                .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
                .unwrap_or_default()
        };
        let admission = AdmissionRate {
            count: number("admission_count").unwrap_or(1),
            per_seconds: number("admission_per_seconds").unwrap_or(1).max(1),
            burst: number("admission_burst").unwrap_or(1),
        };
        Self {
            name: text("name"),
            target_url: text("target_url"),
            max_active: number("max_active").unwrap_or(default.max_active),
            max_active_per_address: number("max_active_per_address"),
            max_queue_size: number("max_queue_size").unwrap_or(default.max_queue_size),
            admission,
            policy: PriorityPolicy::parse(&text("priority_policy")).unwrap_or_default(),
            reserved_share: number("reserved_share").unwrap_or(0),
            admission_window: seconds("claim_window_seconds", default.admission_window),
            hold: seconds("hold_seconds", default.hold),
            heartbeat_interval: seconds("heartbeat_interval_seconds", default.heartbeat_interval),
            poll_floor: seconds("poll_floor_seconds", default.poll_floor),
            poll_ceiling: seconds("poll_ceiling_seconds", default.poll_ceiling),
            session_timeout: seconds("session_timeout_seconds", default.session_timeout),
            session_max: seconds("session_max_seconds", default.session_max),
            provisional_timeout: seconds(
                "provisional_timeout_seconds",
                default.provisional_timeout,
            ),
            admit_programs: text("admit_programs") == "1",
            session_renewal: text("session_renewal") != "0",
            duplicates: Duplicates::parse(&text("duplicates")).unwrap_or_default(),
            store_addresses: text("store_addresses") == "1",
            user_agent_bytes: number("user_agent_bytes").unwrap_or(default.user_agent_bytes),
            message: object("message"),
            attributes: object("attributes"),
        }
    }
}

/// Rejects a target that is not an absolute `http` or `https` URL with a host and without user info.
fn check_target(url: &str) -> Result<(), Error> {
    let bad = || Error::invalid("target_url", "an http or https URL of up to 2,048 characters");
    if url.is_empty() {
        return Ok(());
    }
    let rest =
        url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).ok_or_else(bad)?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let plain = url.len() <= 2_048
        && url.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'\\' | b'"' | b'<' | b'>'));
    let (name, port) = match host.rsplit_once(':') {
        // The colons of an IPv6 address are inside its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let named = !name.is_empty()
        && !name.contains('@')
        && (name.starts_with('[') == name.ends_with(']'))
        && (name.starts_with('[') || !name.contains([':', '[', ']']))
        && port.is_none_or(|port| {
            port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n > 0)
        });
    if plain && named { Ok(()) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> QueueConfig {
        QueueConfig {
            name: "Concert".into(),
            target_url: "https://example.com/x".into(),
            admission: AdmissionRate::new(500, 60),
            message: [("en".to_owned(), Value::from("soon"))].into_iter().collect(),
            ..QueueConfig::default()
        }
    }

    #[test]
    fn what_is_stored_is_read_back() {
        let stored: HashMap<String, String> =
            config().fields().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        assert_eq!(QueueConfig::read(&stored), config());
        assert_eq!(stored["admission_rate"], "8.333333");
        assert_eq!(stored["position_ttl"], "1800");
        assert_eq!(stored["session_ttl"], "3600");
    }

    #[test]
    fn bounds_are_named() {
        let check = |config: QueueConfig| match config.check() {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let c = config;
        let seconds = Duration::from_secs;
        assert_eq!(check(QueueConfig { hold: seconds(59), ..c() }), "hold");
        assert_eq!(check(QueueConfig { admission_window: seconds(0), ..c() }), "admission_window");
        assert_eq!(
            check(QueueConfig { admission: AdmissionRate::new(1, 0), ..c() }),
            "admission.per_seconds"
        );
        assert_eq!(check(QueueConfig { session_max: seconds(60), ..c() }), "session_max");
        assert_eq!(check(QueueConfig { reserved_share: 1, ..c() }), "reserved_share");
        assert_eq!(check(QueueConfig { name: "a\nb".into(), ..c() }), "name");
        let message = [("e n".to_owned(), Value::from("x"))].into_iter().collect();
        assert_eq!(check(QueueConfig { message, ..c() }), "message");
    }

    #[test]
    fn a_target_is_a_plain_web_address() {
        for good in [
            "https://shop.example",
            "http://127.0.0.1:3000/a?b=c",
            "https://x.example:65535",
            "https://[2001:db8::1]/",
            "https://[2001:db8::1]:8443/a:b",
            "",
        ] {
            assert!(check_target(good).is_ok(), "{good}");
        }
        for bad in [
            "javascript:alert(1)",
            "//evil.example",
            "https://",
            "https:evil",
            "https://a@evil/",
            "https:///x",
            "/checkout",
            "https://a\\@b",
            "https://a b",
            "ftp://a",
            "https://:80",
            "https://x.example:99999/",
            "https://x.example:0/",
            "https://x.example:/",
            "https://x.example:+80/",
            "https://x.example:80:80/",
            "https://[2001:db8::1]:70000/",
            "https://[2001:db8::1/",
        ] {
            assert!(check_target(bad).is_err(), "{bad}");
        }
    }
}
