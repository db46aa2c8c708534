//! Who is on the other side: the peer's address, or what a trusted proxy says about it.
//!
//! Forwarded headers count only when the peer itself is a configured proxy. Then the list is read
//! from the right and the first address that is not a proxy wins, because everything to the left
//! of it was written by strangers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use ipnet::IpNet;

use crate::error::ApiError;

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
    /// Works out the client from the peer and the headers.
    pub fn of(peer: Peer, headers: &HeaderMap, trusted: &[IpNet]) -> Client {
        let peer_ip = canonical(peer.addr.ip());
        let trusts = |ip: IpAddr| trusted.iter().any(|net| net.contains(&ip));
        if !trusts(peer_ip) {
            return Client { ip: peer_ip, secure: peer.tls };
        }
        let mut ip = peer_ip;
        for hop in hops(headers).into_iter().rev() {
            // An address we cannot read ends the chain: what is left of it proves nothing.
            let Some(hop) = hop else { break };
            ip = hop;
            if !trusts(ip) {
                break;
            }
        }
        Client { ip, secure: peer.tls || forwarded_https(headers) }
    }

    /// The address as a limit should count it: IPv4 whole, IPv6 by its /64.
    pub fn bucket(&self) -> IpAddr {
        bucket(self.ip)
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

/// The chain of addresses, nearest last. `Forwarded` (RFC 7239) wins over `X-Forwarded-For`.
fn hops(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let forwarded: Vec<Option<IpAddr>> = values(headers, header::FORWARDED.as_str())
        .filter_map(|element| {
            element.split(';').find_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                name.trim().eq_ignore_ascii_case("for").then(|| parse_hop(value))
            })
        })
        .collect();
    let mut chain = if forwarded.is_empty() {
        values(headers, "x-forwarded-for").map(parse_hop).collect()
    } else {
        forwarded
    };
    let surplus = chain.len().saturating_sub(MAX_HOPS);
    chain.drain(..surplus);
    chain
}

fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(name)
        .into_iter()
        // A header that is not text is one hop nobody can read.
        .flat_map(|value| value.to_str().unwrap_or("?").split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`, each also in quotes.
fn parse_hop(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let ip = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|addr| addr.ip()))
        .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok())?;
    Some(canonical(ip))
}

fn forwarded_https(headers: &HeaderMap) -> bool {
    let proto = values(headers, header::FORWARDED.as_str())
        .last()
        .and_then(|element| {
            element.split(';').find_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                name.trim()
                    .eq_ignore_ascii_case("proto")
                    .then(|| value.trim().trim_matches('"').to_owned())
            })
        })
        .or_else(|| values(headers, "x-forwarded-proto").last().map(str::to_owned));
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

    fn check(peer: &str, headers: &[(&str, &str)], expect: &str) {
        let trusted: Vec<IpNet> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|net| net.parse().unwrap()).collect();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: axum::http::HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let peer = Peer { addr: SocketAddr::new(peer.parse().unwrap(), 1), tls: false };
        let client = Client::of(peer, &map, &trusted);
        assert_eq!(client.ip, expect.parse::<IpAddr>().unwrap(), "{headers:?}");
    }

    #[test]
    fn forwarded_headers_of_a_stranger_do_not_count() {
        check("203.0.113.9", &[], "203.0.113.9");
        check("203.0.113.9", &[("x-forwarded-for", "1.2.3.4")], "203.0.113.9");
        check("203.0.113.9", &[("forwarded", "for=1.2.3.4")], "203.0.113.9");
        check("127.0.0.1", &[("x-forwarded-for", "1.2.3.4")], "127.0.0.1");
        check("::ffff:203.0.113.9", &[("x-forwarded-for", "1.2.3.4")], "203.0.113.9");
    }

    #[test]
    fn a_proxys_word_is_read_from_the_right() {
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4")], "1.2.3.4");
        check("10.0.0.1", &[("x-forwarded-for", "6.6.6.6, 1.2.3.4")], "1.2.3.4");
        check("10.0.0.1", &[("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.1.1.1")], "1.2.3.4");
        check(
            "10.0.0.1",
            &[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "1.2.3.4")],
            "1.2.3.4",
        );
        check("10.0.0.1", &[("x-forwarded-for", "6.6.6.6,junk,10.1.1.1")], "10.1.1.1");
        check("10.0.0.1", &[("x-forwarded-for", "junk")], "10.0.0.1");
        check("10.0.0.1", &[("x-forwarded-for", "")], "10.0.0.1");
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4:5678")], "1.2.3.4");
        check("::ffff:10.0.0.1", &[("x-forwarded-for", "1.2.3.4")], "1.2.3.4");
        check("10.0.0.1", &[("x-forwarded-for", "::ffff:1.2.3.4")], "1.2.3.4");
        check("fd00::1", &[("x-forwarded-for", "[2001:db8::1]:443")], "2001:db8::1");
        check("10.0.0.1", &[("x-forwarded-for", "10.9.9.9")], "10.9.9.9");
    }

    #[test]
    fn the_standard_header_wins_over_the_old_one() {
        check(
            "10.0.0.1",
            &[("forwarded", "for=1.2.3.4;proto=https"), ("x-forwarded-for", "6.6.6.6")],
            "1.2.3.4",
        );
        check("10.0.0.1", &[("forwarded", "For=\"[2001:db8::9]:80\"")], "2001:db8::9");
        check("10.0.0.1", &[("forwarded", "for=_hidden, for=10.2.2.2")], "10.2.2.2");
        check("10.0.0.1", &[("forwarded", "for=6.6.6.6, for=unknown")], "10.0.0.1");
    }

    #[test]
    fn an_ipv6_limit_counts_the_subscriber() {
        assert_eq!(
            bucket("2001:db8:1:2:3:4:5:6".parse().unwrap()),
            "2001:db8:1:2::".parse::<IpAddr>().unwrap()
        );
    }
}
