//! Addresses that events may be sent to. A URL is an operator's, but whoever may make a webhook must not be able
//! to reach what only this machine reaches (server-side request forgery): loopback, private networks,
//! the metadata service of a cloud. The address that was checked is the one that is used, so a name
//! cannot point elsewhere a moment later (DNS rebinding).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::Uri;
use axum::http::uri::Scheme;
use ipnet::IpNet;

use crate::outbound::OutboundError;

/// Longest URL.
const LONGEST: usize = 2_048;

/// The URL of a target, checked.
#[derive(Clone, Debug)]
pub(crate) struct TargetUrl {
    uri: Uri,
    is_https: bool,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

impl TargetUrl {
    /// Reads `http://…` or `https://…`. An address in it must be one that events may be sent to; a name
    /// is looked up when something is sent.
    pub(crate) fn parse(text: &str, allowed: &[IpNet]) -> Result<TargetUrl, String> {
        let wrong = || "a URL such as https://example.org/hook".to_owned();
        if text.len() > LONGEST {
            return Err(format!("a URL has at most {LONGEST} bytes"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err("a URL without a user name and a password".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        if host.is_empty() || port == 0 {
            return Err(wrong());
        }
        if let Ok(ip) = host.parse() {
            check(ip, allowed)?;
        }
        Ok(TargetUrl { uri, is_https, host, port })
    }

    /// Scheme and host, which may be shown.
    pub(crate) fn origin(&self) -> String {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        format!("{}://{authority}", if self.is_https { "https" } else { "http" })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.is_https
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The value of the `Host` header.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// The path and the query, as they are requested.
    pub(crate) fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// Looks the host up. Returns addresses that may be used, and only those.
    pub(crate) async fn resolve(
        &self,
        allowed: &[IpNet],
    ) -> Result<Vec<SocketAddr>, OutboundError> {
        resolve(&self.host, self.port, allowed).await
    }
}

/// Looks a host up. Returns addresses that may be used, and only those.
pub(crate) async fn resolve(
    host: &str,
    port: u16,
    allowed: &[IpNet],
) -> Result<Vec<SocketAddr>, OutboundError> {
    let found: Vec<SocketAddr> = match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.collect(),
        Err(error) => return Err(OutboundError::Failed(format!("{host}: {error}"))),
    };
    let mut refusal = None;
    let mut usable = Vec::new();
    for address in found {
        match check(address.ip(), allowed) {
            Ok(()) => usable.push(address),
            Err(reason) => refusal = Some(reason),
        }
    }
    match (usable.is_empty(), refusal) {
        (false, _) => Ok(usable),
        (true, Some(reason)) => Err(OutboundError::Refused(reason)),
        (true, None) => Err(OutboundError::Failed(format!("{host} has no address"))),
    }
}

/// Refuses an address that is not public, unless its network is allowed.
fn check(ip: IpAddr, allowed: &[IpNet]) -> Result<(), String> {
    if is_public(ip) || allowed.iter().any(|network| network.contains(&ip)) {
        return Ok(());
    }
    Err(format!(
        "{ip} is a private or reserved address; allow its network with webhooks.allowed_networks"
    ))
}

/// Tells whether an address is one of the public internet (IANA's special-purpose registries).
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || (a == 198 && (b == 18 || b == 19));
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // Unspecified, loopback, and the old form of an IPv4 address.
        [0, 0, 0, 0, 0, 0, ..] => false,
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        // 6to4 holds an IPv4 address; Teredo and its neighbours are special.
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        // Everything public is in 2000::/3 today.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_reserved_addresses_are_refused_in_every_spelling() {
        for ip in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(check(ip.parse().unwrap(), &[]).is_err(), "{ip}");
        }
        for ip in [
            "1.1.1.1",
            "100.63.0.1",
            "172.32.0.1",
            "2606:4700::1",
            "2002:101:101::",
            "::ffff:1.1.1.1",
        ] {
            assert!(check(ip.parse().unwrap(), &[]).is_ok(), "{ip}");
        }
        let allowed = ["10.0.0.0/8".parse().unwrap()];
        assert!(check("10.9.9.9".parse().unwrap(), &allowed).is_ok());
        assert!(check("127.0.0.1".parse().unwrap(), &allowed).is_err());
    }

    #[test]
    fn a_url_is_http_with_a_host_and_nothing_to_hide() {
        for good in ["https://example.org/hook?x=1", "http://example.org:8080", "https://1.1.1.1/"]
        {
            assert!(TargetUrl::parse(good, &[]).is_ok(), "{good}");
        }
        for bad in [
            "",
            "example.org",
            "ftp://example.org",
            "https://",
            "https://user:secret@example.org/",
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "https://[fe80::1]/",
            "file:///etc/passwd",
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.1",
            "http://example.org:0/",
        ] {
            assert!(TargetUrl::parse(bad, &[]).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_the_addresses_it_has() {
        let url = TargetUrl::parse("http://localhost:9/", &[]).unwrap();
        assert!(matches!(url.resolve(&[]).await, Err(OutboundError::Refused(_))));
        let allowed = ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let usable = url.resolve(&allowed).await.unwrap();
        assert!(usable.iter().all(|address| address.ip().is_loopback()), "{usable:?}");
    }
}
