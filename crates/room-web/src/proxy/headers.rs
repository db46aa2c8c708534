//! Headers forwarded by the proxy: hop-by-hop headers are removed, and untrusted claims about the client
//! are replaced.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use room::{QueueId, SessionId};

use super::origin::OriginServer;
use crate::forward_auth;
use web::client::{self, Client, Peer};
use web::settings::Settings;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Sent to the site, so that a proxy in front of itself detects the loop.
const GUARDED: HeaderName = HeaderName::from_static("x-wr-guarded");
/// Command of the site about the visitor's session.
const COMMAND: HeaderName = HeaderName::from_static("wr-command");

/// Headers of one connection (RFC 9110, 7.6.1), besides those that `Connection` names.
const HOP: [HeaderName; 9] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes hop-by-hop headers.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
}

/// Returns the protocol of an upgrade request over HTTP/1.1.
pub(super) fn upgrade_of(request: &Request) -> Option<HeaderValue> {
    let headers = request.headers();
    let asks = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let mut wanted = headers.get_all(header::UPGRADE).iter();
    let (first, more) = (wanted.next()?, wanted.next());
    // In an unknown protocol the proxy cannot see where requests end, so it is not allowed.
    let known = more.is_none() && first.as_bytes().eq_ignore_ascii_case(b"websocket");
    let plain = request.method() == Method::GET && request.version() == Version::HTTP_11;
    (asks && known && plain).then(|| first.clone())
}

/// Headers that override method, URL or host of a request.
const OVERRIDES: [&str; 9] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-original-uri",
    "x-original-method",
    "x-original-host",
    "x-rewrite-url",
    "x-host",
];

/// Returns true if a header of this name could make a site read a request as another one than was
/// checked. To CGI and WSGI names with `_` equal those with `-`, so all of them could.
pub(crate) fn is_override(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.contains('_') || OVERRIDES.contains(&name)
}

/// Removes headers that could make the site read the request as another one than was checked.
fn drop_overrides(headers: &mut HeaderMap) {
    let overrides: Vec<HeaderName> =
        headers.keys().filter(|name| is_override(name)).cloned().collect();
    for name in overrides {
        headers.remove(name);
    }
}

/// Removes headers that are not for the site.
pub(super) fn to_origin(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    strip(headers);
    drop_overrides(headers);
    // The length is taken from the body.
    headers.remove(header::CONTENT_LENGTH);
    one_cookie_line(headers);
    // Only the proxy may set these.
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-wr-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade.clone());
    }
}

/// Tells the site which span its work is part of. Where nothing is recorded here, what the client said
/// goes through as it is.
pub(super) fn traced(headers: &mut HeaderMap) {
    if let Some(context) = store::trace::current()
        && let Ok(value) = HeaderValue::from_str(&context.to_string())
    {
        headers.insert(HeaderName::from_static("traceparent"), value);
    }
}

/// HTTP/2 may send cookies in pieces; HTTP/1.1 knows one line of them (RFC 9113, 8.2.3).
fn one_cookie_line(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() > 1
        && let Ok(line) = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, line);
    }
}

/// Sets the forwarding headers: the client and the trusted proxies it came through. Others are removed
/// first.
pub(super) fn forwarded(
    headers: &mut HeaderMap,
    peer: Peer,
    client: Client,
    host: Option<&HeaderValue>,
    settings: &Settings,
) {
    let chain = client::address_chain(peer, headers, settings);
    let chain = chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    client::strip_forwarding_headers(headers, settings);
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(FORWARDED_FOR, &chain);
    put(FORWARDED_PROTO, if client.secure { "https" } else { "http" });
    put(REAL_IP, &client.ip.to_string());
    if let Some(host) = host {
        headers.insert(FORWARDED_HOST, host.clone());
    }
}

/// Adds the headers with proxy, queue and session of the visitor.
pub(super) fn named(
    headers: &mut HeaderMap,
    guard: &QueueId,
    queue: &QueueId,
    session: Option<&SessionId>,
) {
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(GUARDED, guard.as_str());
    put(forward_auth::QUEUE, queue.as_str());
    if let Some(session) = session {
        put(forward_auth::SESSION, &session.to_string());
    }
}

/// Returns true if a proxy of this name sent this request.
pub(super) fn is_guarded(headers: &HeaderMap, guard: &QueueId) -> bool {
    headers.get_all(&GUARDED).iter().any(|value| value.as_bytes() == guard.as_str().as_bytes())
}

/// Removes headers that are not for the visitor, and returns the site's command. A redirect to the
/// site's own address is rewritten to stay behind the proxy.
pub(super) fn from_origin(
    headers: &mut HeaderMap,
    switched: bool,
    origin: &OriginServer,
) -> Option<String> {
    let upgrade = headers.get(header::UPGRADE).cloned().filter(|_| switched);
    strip(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    let sent = headers.get(header::LOCATION).and_then(|to| to.to_str().ok());
    let here = sent.and_then(|to| HeaderValue::from_str(origin.path_of(to)?).ok());
    if let Some(here) = here {
        headers.insert(header::LOCATION, here);
    }
    headers.remove(&COMMAND).and_then(|command| command.to_str().ok().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
            .collect()
    }

    #[test]
    fn what_is_about_one_connection_stays_behind() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "secret"),
            ("upgrade", "websocket"),
            ("x-wr-session", "forged"),
            ("content-length", "9"),
            ("x-kept", "1"),
        ]);
        to_origin(&mut headers, None);
        assert_eq!(headers, map(&[("x-kept", "1")]));
    }

    #[test]
    fn cookies_in_pieces_become_one_line() {
        let mut headers = HeaderMap::new();
        for piece in ["a=1", "b=2; c=3"] {
            headers.append(header::COOKIE, HeaderValue::from_static(piece));
        }
        to_origin(&mut headers, None);
        assert_eq!(headers, map(&[("cookie", "a=1; b=2; c=3")]));
    }

    #[test]
    fn a_redirect_to_the_site_itself_stays_on_this_side() {
        let origin = OriginServer::parse("http://10.0.0.7:3000").unwrap();
        let mut sent =
            map(&[("location", "http://10.0.0.7:3000/login"), ("wr-command", "complete")]);
        assert_eq!(from_origin(&mut sent, false, &origin).as_deref(), Some("complete"));
        assert_eq!(sent, map(&[("location", "/login")]));
        let mut away = map(&[("location", "https://pay.example/")]);
        from_origin(&mut away, false, &origin);
        assert_eq!(away["location"], "https://pay.example/");
    }

    fn forward(headers: &mut HeaderMap, trusted: bool) {
        let peer = Peer { addr: "10.0.0.9:1".parse().unwrap(), tls: false };
        let trusted_proxies = match trusted {
            true => vec!["10.0.0.0/8".parse().unwrap()],
            false => Vec::new(),
        };
        let settings = Settings { trusted_proxies, ..Settings::default() };
        let client = Client::of(peer, headers, &settings);
        let host = HeaderValue::from_static("shop.example");
        forwarded(headers, peer, client, Some(&host), &settings);
    }

    #[test]
    fn the_site_is_told_who_asks_by_us_alone() {
        let claims = [
            ("x-forwarded-for", "6.6.6.6, 1.2.3.4"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-port", "443"),
            ("x-real-ip", "6.6.6.6"),
            ("cf-connecting-ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
        ];
        let mut headers = map(&claims);
        forward(&mut headers, false);
        let expect = map(&[
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-proto", "http"),
            ("x-real-ip", "10.0.0.9"),
            ("x-forwarded-host", "shop.example"),
        ]);
        assert_eq!(headers, expect);

        let mut headers = map(&claims);
        forward(&mut headers, true);
        let expect = map(&[
            ("x-forwarded-for", "1.2.3.4, 10.0.0.9"),
            ("x-forwarded-proto", "https"),
            ("x-real-ip", "1.2.3.4"),
            ("x-forwarded-host", "shop.example"),
        ]);
        assert_eq!(headers, expect);
    }

    #[test]
    fn nothing_makes_the_site_read_another_request_than_was_judged() {
        let mut headers = map(&[
            ("x_forwarded_for", "1.2.3.4"),
            ("x_wr_session", "forged"),
            ("x-wr_session", "forged"),
            ("content_length", "3"),
            ("x-http-method-override", "DELETE"),
            ("x-http-method", "DELETE"),
            ("x-method-override", "DELETE"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/admin"),
            ("x-kept", "1"),
        ]);
        to_origin(&mut headers, None);
        assert_eq!(headers, map(&[("x-kept", "1")]));
    }

    #[test]
    fn only_a_websocket_is_changed_to() {
        let asks = |method: &str, protocol: &[&str]| {
            let mut request = Request::builder().method(method).header("connection", "Upgrade");
            for name in protocol {
                request = request.header("upgrade", *name);
            }
            upgrade_of(&request.body(axum::body::Body::empty()).unwrap()).is_some()
        };
        assert!(asks("GET", &["WebSocket"]));
        assert!(!asks("POST", &["websocket"]));
        assert!(!asks("GET", &["websocket", "h2c"]));
        for other in ["h2c", "H2C", "TLS/1.0", "raw", "websocket, raw"] {
            assert!(!asks("GET", &[other]), "{other}");
        }
    }
}
