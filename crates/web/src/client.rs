//! The client of a request: the peer's address, or the one a trusted proxy names.
//!
//! One header counts, the one of the setting `http.client_address_header`, and only when the peer
//! is in `http.trusted_proxies`. Its list is read from the right and the first address that is not
//! a proxy's wins, because everything to the left of it was written by strangers. Every other header
//! of this kind ([`is_forwarding_header`]) counts nowhere and is not forwarded to a site.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

use crate::error::ApiError;
use crate::settings::Settings;

/// The peer of the connection, put into each request by the accept loop.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Address of the other end of the socket.
    pub addr: SocketAddr,
    /// The connection is encrypted here.
    pub tls: bool,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer { addr: SocketAddr::from(([127, 0, 0, 1], 0)), tls: false }
    }
}

/// The client as the services should see it. Take it as a handler argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The visitor's address.
    pub ip: IpAddr,
    /// The visitor's connection is encrypted, here or at a trusted proxy.
    pub secure: bool,
}

impl Client {
    /// Works out the client from the peer and the header trusted proxies set.
    pub fn of(peer: Peer, headers: &HeaderMap, settings: &Settings) -> Client {
        let secure = peer.tls || (is_trusted(peer, settings) && is_https(headers, settings));
        let peer_ip = canonical(peer.addr.ip());
        let ip = address_chain(peer, headers, settings).first().copied().unwrap_or(peer_ip);
        Client { ip, secure }
    }

    /// The address as a limit should count it: IPv4 whole, IPv6 by its /64.
    pub fn bucket(&self) -> IpAddr {
        bucket(self.ip)
    }
}

/// Tells whether the peer is a proxy whose word counts.
pub fn is_trusted(peer: Peer, settings: &Settings) -> bool {
    settings.trusts(canonical(peer.addr.ip()))
}

/// Returns the addresses a request came through: the client's, then those of trusted proxies, the
/// peer last. Nothing a stranger wrote is among them, so the list may be forwarded to a site.
pub fn address_chain(peer: Peer, headers: &HeaderMap, settings: &Settings) -> Vec<IpAddr> {
    let mut chain = vec![canonical(peer.addr.ip())];
    let mut hops = hops(headers, &settings.client_address_header).into_iter().rev();
    while chain.last().is_some_and(|ip| settings.trusts(*ip)) && chain.len() <= MAX_HOPS {
        // An address that cannot be read ends the chain: what is left of it proves nothing.
        let Some(Some(hop)) = hops.next() else { break };
        chain.push(hop);
    }
    chain.reverse();
    chain
}

/// Headers that claim who asks, from where or for which host, besides `X-Forwarded-*`. Proxies,
/// content delivery networks and frameworks know them; a program behind us may believe them.
const FORWARDING_HEADERS: [&str; 36] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "client-ip",
    "cluster-client-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "forwarded-for",
    "front-end-https",
    "proxy-client-ip",
    "remote-addr",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-host",
    "x-http-host-override",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-remote-addr",
    "x-original-uri",
    "x-original-url",
    "x-originating-ip",
    "x-proxyuser-ip",
    "x-real-ip",
    "x-remote-addr",
    "x-remote-ip",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// Tells whether a header claims who asks, from where or for which host. Underscores count as
/// hyphens, because WSGI and CGI programs cannot tell them apart.
pub fn is_forwarding_header(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name.starts_with("x-forwarded-") || FORWARDING_HEADERS.contains(&name.as_str())
}

/// Removes every header that claims who asks, the configured one too. The one who forwards the
/// request says it anew, from [`Client`] and [`address_chain`].
pub fn strip_forwarding_headers(headers: &mut HeaderMap, settings: &Settings) {
    let configured = settings.client_address_header.as_str().replace('_', "-");
    let is_claim = |name: &HeaderName| {
        is_forwarding_header(name) || name.as_str().replace('_', "-") == configured
    };
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
}

/// IPv4 whole, IPv6 by its /64, because one subscriber owns a whole /64.
pub fn bucket(ip: IpAddr) -> IpAddr {
    match canonical(ip) {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    }
}

/// Most hops looked at; longer chains are an attack or a loop.
const MAX_HOPS: usize = 32;

/// The addresses a header lists, nearest last; `None` for one that cannot be read.
fn hops(headers: &HeaderMap, name: &HeaderName) -> Vec<Option<IpAddr>> {
    let parse = if *name == header::FORWARDED { parse_element } else { parse_address };
    elements(headers, name).map(|text| text.and_then(parse)).collect()
}

/// The elements of a list header, over all its lines; `None` for one that is not text.
///
/// Commas inside quotes split too. So a quote that a stranger leaves open cannot swallow what the
/// proxy adds behind it, and the halves of a quoted text are not read (see [`parse_element`]).
fn elements<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl DoubleEndedIterator<Item = Option<&'h str>> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
    let pieces: Vec<&[u8]> = lines.into_iter().flat_map(|l| l.split(|b| *b == b',')).collect();
    pieces
        .into_iter()
        .map(|piece| std::str::from_utf8(piece).ok().map(str::trim))
        .filter(|piece| *piece != Some(""))
}

/// The address in an element of `Forwarded` (RFC 7239, section 4): `for=192.0.2.1;proto=https`.
fn parse_element(element: &str) -> Option<IpAddr> {
    parse_address(parameter(element, "for")?)
}

/// A parameter of an element of `Forwarded`, without quotes. One that is there twice, or an element
/// with half a quoted text in it, says nothing.
fn parameter<'e>(element: &'e str, name: &str) -> Option<&'e str> {
    if element.matches('"').count() % 2 == 1 {
        return None;
    }
    let mut found = element.split(';').filter_map(|pair| {
        let (given, value) = pair.split_once('=')?;
        given.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    });
    let value = found.next().filter(|_| found.next().is_none())?;
    match value.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"'),
        None => Some(value),
    }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`. The port may be
/// a made-up word, as RFC 7239 allows.
fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(canonical(ip));
    }
    let (ip, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, port) = rest.split_once(']')?;
            (IpAddr::V6(ip.parse().ok()?), port)
        }
        None => {
            let (ip, _) = text.split_once(':')?;
            (IpAddr::V4(ip.parse().ok()?), text.get(ip.len()..)?)
        }
    };
    let is_port = |port: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !port.is_empty() && port.bytes().all(known)
    };
    let fits = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    fits.then(|| canonical(ip))
}

/// Tells whether the nearest proxy was reached over TLS: by `proto` of `Forwarded` if that is the
/// header that counts, else by `X-Forwarded-Proto`, which every documented proxy sets itself.
fn is_https(headers: &HeaderMap, settings: &Settings) -> bool {
    let proto = if settings.client_address_header == header::FORWARDED {
        let nearest = elements(headers, &header::FORWARDED).next_back().flatten();
        nearest.and_then(|element| parameter(element, "proto"))
    } else {
        let name = HeaderName::from_static("x-forwarded-proto");
        elements(headers, &name).next_back().flatten()
    };
    proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Client, ApiError> {
        parts
            .extensions
            .get::<Client>()
            .copied()
            .ok_or_else(|| ApiError::internal(&"the front did not name the client"))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn settings(header: &str) -> Settings {
        let nets = ["10.0.0.0/8", "fd00::/8"].iter().map(|net| net.parse().unwrap()).collect();
        let client_address_header = header.parse().unwrap();
        Settings { trusted_proxies: nets, client_address_header, ..Settings::default() }
    }

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        map
    }

    fn peer(ip: &str) -> Peer {
        Peer { addr: SocketAddr::new(ip.parse().unwrap(), 1), tls: false }
    }

    #[track_caller]
    fn check_by(header: &str, from: &str, headers: &[(&str, &str)], expect: &str) {
        let client = Client::of(peer(from), &map(headers), &settings(header));
        assert_eq!(client.ip, expect.parse::<IpAddr>().unwrap(), "{headers:?}");
    }

    #[track_caller]
    fn check(from: &str, headers: &[(&str, &str)], expect: &str) {
        check_by("X-Forwarded-For", from, headers, expect);
    }

    #[test]
    fn headers_of_a_stranger_do_not_count() {
        check("203.0.113.9", &[], "203.0.113.9");
        check("203.0.113.9", &[("x-forwarded-for", "1.2.3.4")], "203.0.113.9");
        check("203.0.113.9", &[("forwarded", "for=1.2.3.4")], "203.0.113.9");
        check("127.0.0.1", &[("x-forwarded-for", "1.2.3.4")], "127.0.0.1");
        check("::ffff:203.0.113.9", &[("x-forwarded-for", "1.2.3.4")], "203.0.113.9");
        let spoofed = map(&[("x-forwarded-proto", "https")]);
        assert!(!Client::of(peer("203.0.113.9"), &spoofed, &settings("x-forwarded-for")).secure);
    }

    #[test]
    fn a_list_is_read_from_the_right() {
        let check = |value: &str, expect: &str| {
            check("10.0.0.1", &[("x-forwarded-for", value)], expect);
        };
        check("1.2.3.4", "1.2.3.4");
        check("6.6.6.6, 1.2.3.4", "1.2.3.4");
        check("6.6.6.6, 1.2.3.4, 10.1.1.1", "1.2.3.4");
        check("6.6.6.6 ,\t1.2.3.4 , , 10.1.1.1 ,", "1.2.3.4");
        check("6.6.6.6,junk,10.1.1.1", "10.1.1.1");
        check("6.6.6.6,\u{ff}\u{fe}, 1.2.3.4", "1.2.3.4");
        check("junk", "10.0.0.1");
        check("", "10.0.0.1");
        check("10.9.9.9", "10.9.9.9");
        check("6.6.6.6, 10.0.0.1, 10.0.0.1", "6.6.6.6");
        let chain = format!("6.6.6.6{}", ", 10.1.1.1".repeat(MAX_HOPS + 5));
        check(&chain, "10.1.1.1");
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "1.2.3.4")];
        check("10.0.0.1", &lines, "1.2.3.4");
        let lines = [("x-forwarded-for", "1.2.3.4"), ("x-forwarded-for", "10.1.1.1")];
        check("10.0.0.1", &lines, "1.2.3.4");
    }

    #[test]
    fn an_address_may_have_a_port_and_brackets() {
        let check = |value: &str, expect: &str| {
            check("fd00::1", &[("x-forwarded-for", value)], expect);
        };
        check("1.2.3.4:5678", "1.2.3.4");
        check("::ffff:1.2.3.4", "1.2.3.4");
        check("2001:db8::1", "2001:db8::1");
        check("[2001:db8::1]", "2001:db8::1");
        check("[2001:db8::1]:443", "2001:db8::1");
        for wrong in [
            "1.2.3.4:",
            "1.2.3.4:8 0",
            "[1.2.3.4]",
            "[2001:db8::1]443",
            "[2001:db8::1",
            "1.2.3",
            "01.2.3.4",
            "0x1.2.3.4",
            "1.2.3.4/8",
            "fe80::1%eth0",
            "localhost",
        ] {
            check(wrong, "fd00::1");
        }
        super::tests::check("::ffff:10.0.0.1", &[("x-forwarded-for", "1.2.3.4")], "1.2.3.4");
    }

    #[test]
    fn only_the_configured_header_counts() {
        let all = [
            ("forwarded", "for=6.6.6.1"),
            ("x-real-ip", "6.6.6.2"),
            ("x-forwarded-for", "6.6.6.3"),
            ("cf-connecting-ip", "6.6.6.4"),
            ("x-client-ip", "6.6.6.5"),
        ];
        check_by("Forwarded", "10.0.0.1", &all, "6.6.6.1");
        check_by("X-Real-IP", "10.0.0.1", &all, "6.6.6.2");
        check_by("X-Forwarded-For", "10.0.0.1", &all, "6.6.6.3");
        check_by("CF-Connecting-IP", "10.0.0.1", &all, "6.6.6.4");
        check_by("X-Visitor", "10.0.0.1", &all, "10.0.0.1");
        check_by("X-Visitor", "10.0.0.1", &[("x-visitor", "1.2.3.4")], "1.2.3.4");
    }

    #[test]
    fn the_standard_header_is_read_as_rfc_7239_says() {
        let check = |value: &str, expect: &str| {
            check_by("Forwarded", "10.0.0.1", &[("forwarded", value)], expect);
        };
        check("for=1.2.3.4;proto=https;by=10.0.0.1", "1.2.3.4");
        check("by=10.0.0.1; For=\"[2001:db8::9]:80\"", "2001:db8::9");
        check("for=\"1.2.3.4:_port\"", "1.2.3.4");
        check("for=_hidden, for=10.2.2.2", "10.2.2.2");
        check("for=6.6.6.6, for=unknown", "10.0.0.1");
        check("for=6.6.6.6, for=_gazonk", "10.0.0.1");
        // The nearest proxy says nothing about whom it was asked by.
        check("for=6.6.6.6, by=10.0.0.1", "10.0.0.1");
        // Quotes that strangers leave open or smuggle into a host do not move anything.
        check("for=\", for=1.2.3.4", "1.2.3.4");
        check("for=1.2.3.4;host=\"a,for=6.6.6.6\"", "10.0.0.1");
        check("for=1.2.3.4;host=\"a,for=6.6.6.6,b\"", "10.0.0.1");
        check("for=1.2.3.4;for=6.6.6.6", "10.0.0.1");
    }

    #[test]
    fn tls_at_the_proxy_is_told_by_the_header_that_belongs_to_it() {
        let is_secure = |header: &str, headers: &[(&str, &str)]| {
            Client::of(peer("10.0.0.1"), &map(headers), &settings(header)).secure
        };
        let old = [("x-forwarded-proto", "https"), ("forwarded", "for=1.2.3.4;proto=http")];
        let new = [("x-forwarded-proto", "http"), ("forwarded", "for=1.2.3.4;proto=https")];
        assert!(is_secure("x-forwarded-for", &old) && !is_secure("x-forwarded-for", &new));
        assert!(is_secure("forwarded", &new) && !is_secure("forwarded", &old));
        let added = [("x-forwarded-proto", "https"), ("x-forwarded-proto", "http")];
        assert!(!is_secure("x-forwarded-for", &added), "the nearest proxy's counts");
    }

    #[test]
    fn what_is_forwarded_holds_nothing_a_stranger_wrote() {
        let headers = map(&[("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.1.1.1")]);
        let chain = address_chain(peer("10.0.0.1"), &headers, &settings("x-forwarded-for"));
        let expect: Vec<IpAddr> =
            ["1.2.3.4", "10.1.1.1", "10.0.0.1"].iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(chain, expect);

        let mut claims = map(&[
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-ssl", "on"),
            ("X_Forwarded_For", "1.2.3.4"),
            ("x_real_ip", "1.2.3.4"),
            ("true-client-ip", "1.2.3.4"),
            ("x-original-url", "/admin"),
            ("x-visitor", "1.2.3.4"),
            ("x_visitor", "1.2.3.4"),
            ("accept", "*/*"),
        ]);
        strip_forwarding_headers(&mut claims, &settings("X-Visitor"));
        assert_eq!(claims, map(&[("accept", "*/*")]));
    }

    #[test]
    fn an_ipv6_limit_counts_the_subscriber() {
        assert_eq!(
            bucket("2001:db8:1:2:3:4:5:6".parse().unwrap()),
            "2001:db8:1:2::".parse::<IpAddr>().unwrap()
        );
    }
}
