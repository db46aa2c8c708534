//! Cookies of requests and answers.

use axum::http::{HeaderMap, HeaderValue, header};
use cookie::{Cookie, SameSite};

/// Returns the value of a cookie of a request.
pub fn value_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(Cookie::split_parse)
        .filter_map(Result::ok)
        .find(|cookie| cookie.name() == name)
        .and_then(|cookie| cookie.value_raw())
}

/// Returns the header that sets a cookie for all paths, closed to scripts and to other sites'
/// requests, for so many seconds; 0 removes it. `None` when the value cannot be in a header.
pub fn set(name: &str, value: &str, max_age_seconds: i64, secure: bool) -> Option<HeaderValue> {
    let cookie = Cookie::build((name, value))
        .path("/")
        .http_only(true)
        .same_site(SameSite::Lax)
        .max_age(cookie::time::Duration::seconds(max_age_seconds))
        .secure(secure);
    HeaderValue::from_str(&cookie.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_in_any_header_line() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; b=2=3;c=\"x\""));
        headers.append(header::COOKIE, HeaderValue::from_static("d=4"));
        assert_eq!(value_of(&headers, "a"), Some("1"));
        assert_eq!(value_of(&headers, "b"), Some("2=3"));
        assert_eq!(value_of(&headers, "d"), Some("4"));
        assert_eq!(value_of(&headers, "e"), None);
    }

    #[test]
    fn a_cookie_is_set_closed_to_scripts() {
        let text = set("a", "b", 60, true).unwrap();
        let text = text.to_str().unwrap();
        for part in ["a=b", "HttpOnly", "SameSite=Lax", "Secure", "Path=/", "Max-Age=60"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(set("a", "b\n", 60, true).is_none());
    }
}
