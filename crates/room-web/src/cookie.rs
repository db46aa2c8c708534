//! The cookie of a visitor, one per queue. It holds, one after the other: a random key for a visitor
//! who is about to enqueue, the token of the position, the pass of the session. One cookie at a time,
//! because some proxies forward only one.

use axum::http::{HeaderMap, HeaderValue, header};
use room::{QueueId, VisitorSession};
use store::Millis;

use web::ApiError;

/// Lifetime of the token of a position in the browser. The state of the position decides its validity.
const POSITION_SECONDS: i64 = 86_400;
/// Lifetime of the key of a visitor who is about to enqueue.
const FRESH_SECONDS: i64 = 600;
/// Prefix of the key of a visitor who is about to enqueue.
const FRESH: &str = "new.";

/// Returns the cookie's name. Letters, digits and underscores only: some proxies read no others.
pub(crate) fn name(queue: &QueueId) -> String {
    format!("wr_{}", queue.as_str().replace('-', "_"))
}

/// Returns the value of the visitor's cookie for a queue.
pub(crate) fn read<'h>(headers: &'h HeaderMap, queue: &QueueId) -> Option<&'h str> {
    let name = name(queue);
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// Sets the token of a position.
pub(crate) fn position(
    queue: &QueueId,
    token: &str,
    secure: bool,
) -> Result<HeaderValue, ApiError> {
    set(queue, token, POSITION_SECONDS, secure)
}

/// Sets the pass of a session, to be kept for as long as the session can last.
pub(crate) fn pass(
    session: &VisitorSession,
    token: &str,
    now: Millis,
    secure: bool,
) -> Result<HeaderValue, ApiError> {
    renewed(&session.queue, token, session.hard_until, now, secure)
}

/// Sets a pass that replaces the one that was sent.
pub(crate) fn renewed(
    queue: &QueueId,
    token: &str,
    hard_until: Millis,
    now: Millis,
    secure: bool,
) -> Result<HeaderValue, ApiError> {
    set(queue, token, (hard_until.as_secs() - now.as_secs()).max(60), secure)
}

/// Sets a key for a visitor who is about to enqueue: a browser that sends it back keeps cookies, and
/// repeated calls enqueue once.
pub(crate) fn fresh(queue: &QueueId, key: &str, secure: bool) -> Result<HeaderValue, ApiError> {
    set(queue, &format!("{FRESH}{key}"), FRESH_SECONDS, secure)
}

/// Returns the key of a visitor who is about to enqueue, if the value is one.
pub(crate) fn fresh_key(value: &str) -> Option<&str> {
    let key = value.strip_prefix(FRESH)?;
    let plain = key.len() <= 64 && key.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain && room::check_key(key).is_ok()).then_some(key)
}

fn set(queue: &QueueId, value: &str, seconds: i64, secure: bool) -> Result<HeaderValue, ApiError> {
    let secure = if secure { "; Secure" } else { "" };
    let name = name(queue);
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).map_err(|error| ApiError::internal(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (header::COOKIE, HeaderValue::from_str(line).unwrap())).collect()
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let queue = QueueId::parse("spring-sale").unwrap();
        assert_eq!(name(&queue), "wr_spring_sale");
        let found = headers(&["a=b; xwr_spring_sale=1", "wr_spring=2;wr_spring_sale=wrp1.a.b "]);
        assert_eq!(read(&found, &queue), Some("wrp1.a.b"));
        assert_eq!(read(&headers(&["wr_spring_sale"]), &queue), None);
    }

    #[test]
    fn a_fresh_key_is_plain() {
        let key = "6f1c0b8f5a9d4e7c8b2a3d4e5f60718a";
        assert_eq!(fresh_key(&format!("new.{key}")), Some(key));
        for bad in ["new.", "new.0123abcd", &format!("new.{key};"), &format!("wrp1.{key}")] {
            assert_eq!(fresh_key(bad), None, "{bad}");
        }
    }
}
