//! Header fields that tell the state of limits (draft-ietf-httpapi-ratelimit-headers-11), as text: the
//! same for the server and for programs that use the limiter as a library.

use std::time::Duration;

/// Returns an item of `RateLimit-Policy`: `"api";q=100;w=900`. Without a window it is a number of
/// requests at once. The name must be printable ASCII without quotes and backslashes.
///
/// ```
/// use std::time::Duration;
/// use tidegate_store::limit::header;
///
/// let item = header::policy_item("api", 100, Some(Duration::from_secs(900)));
/// assert_eq!(item, "\"api\";q=100;w=900");
/// assert_eq!(header::state_item("api", 42, Duration::from_millis(310_001)), "\"api\";r=42;t=311");
/// ```
pub fn policy_item(policy: &str, limit: u64, window: Option<Duration>) -> String {
    let unit = if window.is_none() { ";qu=\"concurrent-requests\"" } else { "" };
    let window = window.map(|window| format!(";w={}", ceil_seconds(window).max(1)));
    format!("\"{policy}\";q={limit}{unit}{}", window.unwrap_or_default())
}

/// Returns an item of `RateLimit`: `"api";r=42;t=311`, with the time until more is free or, after a
/// denial, until the request would be allowed.
pub fn state_item(policy: &str, remaining: u64, wait: Duration) -> String {
    format!("\"{policy}\";r={remaining};t={}", ceil_seconds(wait))
}

/// Returns a time in whole seconds, rounded up: who waits that long has waited long enough.
pub fn ceil_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
