//! Flags that describe a queue, and durations as people write them.

use clap::Args;
use serde_json::{Map, Value, json};

use web::config::value::{Rate, Value as _};

/// Settings of a queue. An omitted one keeps its value, or has its default.
#[derive(Debug, Default, Args)]
pub(crate) struct QueueArgs {
    /// Display name
    #[arg(long)]
    name: Option<String>,
    /// URL admitted visitors are sent to
    #[arg(long, value_name = "URL", alias = "target")]
    target_url: Option<String>,
    /// Rate of admission: 10/s, 500/m, 2000/h, 5/10s
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Burst: admissions at once after a lull; one second's worth of the rate if omitted
    #[arg(long, requires = "rate")]
    burst: Option<u32>,
    /// Visitors admitted or active at once; 0 is no limit
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_active: Option<u32>,
    /// Visitors from one address admitted or active at once: a number, 0 for no limit, or share (of --max-active)
    #[arg(long, value_name = "NUMBER", value_parser = address_limit)]
    max_active_per_address: Option<Value>,
    /// Visitors who may wait; 0 is no limit
    #[arg(long, value_name = "NUMBER", alias = "max-waiting")]
    max_queue_size: Option<u32>,
    /// Priority policy: skip (part of the queue, once) or strict (always first)
    #[arg(long, value_parser = ["skip", "strict"], alias = "policy")]
    priority_policy: Option<String>,
    /// With strict, one admission in this many goes to priority 0; 0 is none
    #[arg(long, value_name = "NUMBER")]
    reserved_share: Option<u32>,
    /// Time an admitted visitor has to start a session
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    admission_window: Option<u64>,
    /// Time a position without heartbeats is held beyond three missed polls
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    hold: Option<u64>,
    /// Time between polls when the wait is not known
    #[arg(long, value_name = "TIME", value_parser = seconds, alias = "heartbeat")]
    heartbeat_interval: Option<u64>,
    /// Time without activity after which a session ends
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    session_timeout: Option<u64>,
    /// Hard limit of a session
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    session_max: Option<u64>,
    /// Duration of a provisional session: started for a visitor without a cookie, until the cookie
    /// comes back once
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    provisional_timeout: Option<u64>,
    /// Let proxies start sessions for programs too, not only for a person's navigation
    #[arg(long, value_name = "BOOL")]
    admit_programs: Option<bool>,
    /// Renew a session with activity
    #[arg(long, value_name = "BOOL")]
    session_renewal: Option<bool>,
    /// Rule by which two visitors count as the same: token, or also their address (ip)
    #[arg(long, value_parser = ["token", "ip"])]
    duplicates: Option<String>,
    /// Store plain network addresses besides their keyed hashes
    #[arg(long, value_name = "BOOL")]
    store_addresses: Option<bool>,
    /// Colour of the waiting page, such as '#0a7d5c'; '' for the default
    #[arg(long, alias = "color")]
    brand_color: Option<String>,
    /// Logo on the waiting page: https://…, /path/on/the/site or data:image/…;base64,…; '' for the
    /// default
    #[arg(long, value_name = "URL", alias = "logo")]
    brand_logo: Option<String>,
}

impl QueueArgs {
    /// Returns the given settings as an API body.
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
            ("target_url", json!(self.target_url)),
            ("admission", json!(admission)),
            ("max_active", json!(self.max_active)),
            ("max_active_per_address", json!(self.max_active_per_address)),
            ("max_queue_size", json!(self.max_queue_size)),
            ("priority_policy", json!(self.priority_policy)),
            ("reserved_share", json!(self.reserved_share)),
            ("admission_window_seconds", json!(self.admission_window)),
            ("hold_seconds", json!(self.hold)),
            ("heartbeat_interval_seconds", json!(self.heartbeat_interval)),
            ("session_timeout_seconds", json!(self.session_timeout)),
            ("session_max_seconds", json!(self.session_max)),
            ("provisional_timeout_seconds", json!(self.provisional_timeout)),
            ("admit_programs", json!(self.admit_programs)),
            ("session_renewal", json!(self.session_renewal)),
            ("duplicates", json!(self.duplicates)),
            ("store_addresses", json!(self.store_addresses)),
            ("brand_color", json!(self.brand_color)),
            ("brand_logo", json!(self.brand_logo)),
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

/// Parses a duration in whole seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let span = std::time::Duration::parse(text, None)?;
    if span.subsec_nanos() != 0 {
        return Err(format!("{text:?} is not in whole seconds"));
    }
    Ok(span.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::span;

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
        assert!(QueueArgs::default().body().is_empty());
        let some = QueueArgs { max_active: Some(0), ..QueueArgs::default() };
        assert_eq!(Value::Object(some.body()), json!({ "max_active": 0 }));
    }
}
