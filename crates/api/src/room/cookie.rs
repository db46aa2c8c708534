//! The one cookie a visitor has per queue. It holds, one after the other: a key made up for a
//! visitor who is about to join, the token of the place, the pass of the session. One cookie at a
//! time, because some proxies hand on only one.

use axum::http::{HeaderMap, HeaderValue, header};
use room::{QueueId, Session};
use store::Millis;

use crate::error::ApiError;

/// How long a browser keeps the token of a place. The room's state decides what it is worth.
const PLACE_SECONDS: i64 = 86_400;
/// How long a browser keeps the key of a visitor who is about to join.
const FRESH_SECONDS: i64 = 600;
/// What the key of a visitor who is about to join begins with.
const FRESH: &str = "new.";

/// The cookie's name. Letters, digits and underscores only: some proxies read no others.
pub(crate) fn name(queue: &QueueId) -> String {
    format!("wr_{}", queue.as_str().replace('-', "_"))
}

/// What the visitor's cookie for a queue says.
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

/// Sets the token of a place.
pub(crate) fn place(queue: &QueueId, token: &str, secure: bool) -> Result<HeaderValue, ApiError> {
    set(queue, token, PLACE_SECONDS, secure)
}

/// Sets the pass of a session, to be kept for as long as the session can last.
pub(crate) fn pass(
    session: &Session,
    token: &str,
    now: Millis,
    secure: bool,
) -> Result<HeaderValue, ApiError> {
    renewed(&session.queue, token, session.hard_until, now, secure)
}

/// Sets a pass in place of the one that was shown.
pub(crate) fn renewed(
    queue: &QueueId,
    token: &str,
    hard_until: Millis,
    now: Millis,
    secure: bool,
) -> Result<HeaderValue, ApiError> {
    set(queue, token, (hard_until.as_secs() - now.as_secs()).max(60), secure)
}

/// Sets a key for a visitor who is about to join: whoever sends it back takes cookies, and joins
/// once however often the call is repeated.
pub(crate) fn fresh(queue: &QueueId, key: &str, secure: bool) -> Result<HeaderValue, ApiError> {
    set(queue, &format!("{FRESH}{key}"), FRESH_SECONDS, secure)
}

/// The key of a visitor who is about to join, if the cookie is one.
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
