//! The flags that describe a queue, and spans of time as people write them.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::config::value::{Rate, Value as _};

/// Settings of a queue. What is left out keeps its value, or has its default.
#[derive(Debug, Default, Args)]
pub(crate) struct Settings {
    /// What people call it
    #[arg(long)]
    name: Option<String>,
    /// Where admitted visitors go
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// How fast people are let in: 10/s, 500/m, 2000/h, 5/10s
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// How many may be let in at once after a lull; one second's worth of the rate if left out
    #[arg(long, requires = "rate")]
    burst: Option<u32>,
    /// People inside at once, those on their way included; 0 is no limit
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_active: Option<u32>,
    /// Sessions one address may have at once: a number, 0 for no limit, or share (of --max-active)
    #[arg(long, value_name = "NUMBER", value_parser = address_limit)]
    max_active_per_address: Option<Value>,
    /// People who may wait; 0 is no limit
    #[arg(long, value_name = "NUMBER")]
    max_waiting: Option<u32>,
    /// How levels get ahead: skip (part of the line, once) or strict (always first)
    #[arg(long, value_parser = ["skip", "strict"])]
    policy: Option<String>,
    /// With strict, one admission in this many goes to level 0; 0 is none
    #[arg(long, value_name = "NUMBER")]
    reserved_share: Option<u32>,
    /// How long an admitted visitor has to arrive
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    claim_window: Option<u64>,
    /// How long a silent place is held beyond three missed polls
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    hold: Option<u64>,
    /// Time between polls when the wait is not known
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    heartbeat: Option<u64>,
    /// A session ends after this long without activity
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    session_timeout: Option<u64>,
    /// A session ends after this long whatever happens
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    session_max: Option<u64>,
    /// How long a session lasts that a gate started for a visitor without a cookie, until the cookie
    /// comes back once
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    provisional_timeout: Option<u64>,
    /// Let gates start sessions for programs too, not only for people who go to a page
    #[arg(long, value_name = "BOOL")]
    admit_programs: Option<bool>,
    /// Whether activity renews a session
    #[arg(long, value_name = "BOOL")]
    session_renewal: Option<bool>,
    /// What makes two visitors the same one: token, or also their address (ip)
    #[arg(long, value_parser = ["token", "ip"])]
    duplicates: Option<String>,
    /// Keep plain network addresses beside their keyed hashes
    #[arg(long, value_name = "BOOL")]
    store_addresses: Option<bool>,
    /// Colour of the waiting page, such as '#0a7d5c'; '' is the usual one
    #[arg(long)]
    color: Option<String>,
    /// Logo on the waiting page: https://…, /path/on/the/site or data:image/…;base64,…; '' is the
    /// usual one
    #[arg(long, value_name = "URL")]
    logo: Option<String>,
}

impl Settings {
    /// The settings that were named, as the API takes them.
    pub(crate) fn body(&self) -> Map<String, Value> {
        let admission = self.rate.map(|rate| {
            let mut admission = json!({ "count": rate.count, "per_seconds": rate.per_seconds });
            if let Some(burst) = self.burst {
                admission["burst"] = burst.into();
            }
            admission
        });
        let fields = [
            ("name", json!(self.name)),
            ("target_url", json!(self.target)),
            ("admission", json!(admission)),
            ("max_active_users", json!(self.max_active)),
            ("max_active_per_address", json!(self.max_active_per_address)),
            ("max_queue_size", json!(self.max_waiting)),
            ("priority_policy", json!(self.policy)),
            ("reserved_share", json!(self.reserved_share)),
            ("claim_window_seconds", json!(self.claim_window)),
            ("hold_seconds", json!(self.hold)),
            ("heartbeat_interval_seconds", json!(self.heartbeat)),
            ("session_timeout_seconds", json!(self.session_timeout)),
            ("session_max_seconds", json!(self.session_max)),
            ("provisional_timeout_seconds", json!(self.provisional_timeout)),
            ("admit_programs", json!(self.admit_programs)),
            ("session_renewal", json!(self.session_renewal)),
            ("duplicates", json!(self.duplicates)),
            ("store_addresses", json!(self.store_addresses)),
            ("brand_color", json!(self.color)),
            ("brand_logo", json!(self.logo)),
        ];
        fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Reads a number of sessions, or `share`.
fn address_limit(text: &str) -> Result<Value, String> {
    match text {
        "share" => Ok(Value::from(text)),
        number => number
            .parse::<u32>()
            .map(Value::from)
            .map_err(|_| format!("{text:?} is not a number or share")),
    }
}

/// Reads a span in whole seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let span = std::time::Duration::parse(text, None)?;
    if span.subsec_nanos() != 0 {
        return Err(format!("{text:?} is not in whole seconds"));
    }
    Ok(span.as_secs())
}

/// Seconds as they can be typed again, in the largest unit that is exact.
pub(crate) fn span(seconds: u64) -> String {
    for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
        if seconds >= unit && seconds.is_multiple_of(unit) {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_as_it_can_be_typed() {
        for text in ["5s", "90s", "2m", "3h", "7d"] {
            assert_eq!(span(seconds(text).unwrap()), text);
        }
        assert!(seconds("1500ms").is_err());
        assert!(seconds("soon").is_err());
    }

    #[test]
    fn only_what_was_named_is_sent() {
        assert!(Settings::default().body().is_empty());
        let some = Settings { max_active: Some(0), ..Settings::default() };
        assert_eq!(Value::Object(some.body()), json!({ "max_active_users": 0 }));
    }
}
