//! Addresses of upstreams: `udp://`, `tcp://`, `tls://`, `https://` and stamps, `sdns://`.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use crate::{DomainName, Error};

/// Longest address that is read.
const ADDRESS_MAX_BYTES: usize = 2_000;

/// Transport to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// UDP, and TCP for answers that are too long.
    Udp,
    /// TCP only.
    Tcp,
    /// DNS over TLS, RFC 7858.
    Tls,
    /// DNS over HTTPS, RFC 8484.
    Https,
}

impl UpstreamProtocol {
    /// Returns the scheme of addresses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Udp | Self::Tcp => 53,
            Self::Tls => 853,
            Self::Https => 443,
        }
    }

    /// Returns true if nobody on the way can read or change messages.
    pub(super) fn is_private(self) -> bool {
        matches!(self, Self::Tls | Self::Https)
    }
}

/// Address of an upstream.
///
/// ```
/// use tidegate_dns::{UpstreamAddress, UpstreamProtocol};
/// let upstream: UpstreamAddress = "tls://dns.example".parse()?;
/// assert_eq!(upstream.protocol(), UpstreamProtocol::Tls);
/// assert_eq!(upstream.to_string(), "tls://dns.example:853");
/// # Ok::<(), tidegate_dns::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamAddress {
    protocol: UpstreamProtocol,
    /// Name or address; the certificate is checked against it.
    host: String,
    port: u16,
    /// Path of the URL, with its slash; for HTTPS only.
    path: String,
    /// Addresses of the host; empty if others have to resolve it.
    addresses: Vec<IpAddr>,
}

impl UpstreamAddress {
    /// Returns the transport.
    pub fn protocol(&self) -> UpstreamProtocol {
        self.protocol
    }

    /// Returns the host, a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the addresses that are known without asking another server.
    pub(super) fn known_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port)).collect()
    }

    /// Returns the URL of a DoH upstream.
    pub(super) fn url(&self) -> String {
        let host = bracketed(&self.host);
        match self.port {
            443 => format!("https://{host}{}", self.path),
            port => format!("https://{host}:{port}{}", self.path),
        }
    }

    /// Returns true if the server's host is a name that other servers have to resolve.
    pub(crate) fn needs_bootstrap(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the address with those of its host, if any are given.
    pub(crate) fn with_bootstrap(mut self, addresses: Vec<IpAddr>) -> Self {
        if !addresses.is_empty() && self.host.parse::<IpAddr>().is_err() {
            self.addresses = addresses;
        }
        self
    }

    fn new(
        protocol: UpstreamProtocol,
        host: &str,
        port: u16,
        path: &str,
        addresses: Vec<IpAddr>,
    ) -> Result<Self, String> {
        if port == 0 {
            return Err("port 0 is not a port of a server".to_owned());
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => addresses,
        };
        let is_host = |host: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            host.bytes().all(fits) && host.parse::<DomainName>().is_ok_and(|name| !name.is_root())
        };
        if host.parse::<IpAddr>().is_err() && !is_host(&host) {
            return Err(format!("{host:?} is neither an address nor a host name"));
        }
        if addresses.is_empty() && !protocol.is_private() {
            return Err(format!(
                "{host:?} is not an address; write one such as 192.0.2.1:53 (names are for tls:// and https://)"
            ));
        }
        Ok(Self { protocol, host, port, path: path.to_owned(), addresses })
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > ADDRESS_MAX_BYTES {
            return Err(format!("an address has at most {ADDRESS_MAX_BYTES} bytes"));
        }
        let (protocol, rest) = match text.split_once("://") {
            None => (UpstreamProtocol::Udp, text),
            Some(("udp", rest)) => (UpstreamProtocol::Udp, rest),
            Some(("tcp", rest)) => (UpstreamProtocol::Tcp, rest),
            Some(("tls", rest)) => (UpstreamProtocol::Tls, rest),
            Some(("https", rest)) => (UpstreamProtocol::Https, rest),
            Some(("sdns", rest)) => return parse_stamp(rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "{scheme}:// is not known; use udp://, tcp://, tls://, https:// or sdns://"
                ));
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) if protocol == UpstreamProtocol::Https => rest.split_at(slash),
            None if protocol == UpstreamProtocol::Https => (rest, "/dns-query"),
            _ => (rest, ""),
        };
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains(['#', '?', '{']) {
            return Err(format!("{path:?} is not a path such as /dns-query"));
        }
        let (host, port) = split_port(authority, protocol.port())
            .ok_or_else(|| format!("{authority:?} is not a host with a port"))?;
        Self::new(protocol, host, port, path, Vec::new())
    }
}

/// Splits `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT` or a bare IPv6 address.
fn split_port(text: &str, default: u16) -> Option<(&str, u16)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, default));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<IpAddr>().ok()?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if port.is_empty() && !text.ends_with(':') {
        return Some((host, default));
    }
    Some((host, port.parse().ok()?))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            UpstreamProtocol::Https => f.write_str(&self.url()),
            protocol => {
                write!(f, "{}://{}:{}", protocol.as_str(), bracketed(&self.host), self.port)
            }
        }
    }
}

impl FromStr for UpstreamAddress {
    type Err = Error;

    /// Reads `ADDRESS[:PORT]`, with `udp://`, `tcp://`, `tls://` or `https://` before it, or a stamp.
    /// Host names are for the latter three: resolving one needs another server, and only TLS tells
    /// whether that one lied.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).map_err(|message| Error::Invalid { field: "upstream", message })
    }
}

/// Reads a stamp (<https://dnscrypt.info/stamps-specifications>). Its hashes of certificates are not
/// used: the certificate is checked by name, against the roots of trust.
fn parse_stamp(text: &str) -> Result<UpstreamAddress, String> {
    let broken = || "the stamp is damaged; copy it whole, from sdns:// on".to_owned();
    let bytes = base64_url(text).ok_or_else(broken)?;
    let (&kind, rest) = bytes.split_first().ok_or_else(broken)?;
    let protocol = match kind {
        0 => UpstreamProtocol::Udp,
        2 => UpstreamProtocol::Https,
        3 => UpstreamProtocol::Tls,
        1 => return Err("the stamp is of a DNSCrypt server, which is not supported".to_owned()),
        4 => return Err("the stamp is of a DoQ server, which is not supported".to_owned()),
        _ => return Err("the stamp is of a kind that is not supported".to_owned()),
    };
    // Eight bytes of properties say what the server promises; nothing follows from them here.
    let mut reader = StampReader(rest.get(8..).ok_or_else(broken)?);
    let address = reader.text().ok_or_else(broken)?;
    if protocol == UpstreamProtocol::Udp {
        let (host, port) = split_port(&address, 53).ok_or_else(broken)?;
        return UpstreamAddress::new(protocol, host, port, "", Vec::new());
    }
    reader.skip_set().ok_or_else(broken)?;
    let host = reader.text().ok_or_else(broken)?;
    let path = match protocol {
        UpstreamProtocol::Https => reader.text().ok_or_else(broken)?,
        _ => String::new(),
    };
    if protocol == UpstreamProtocol::Https && !path.starts_with('/') {
        return Err(broken());
    }
    // The address may be a port alone, or absent; the port of the host name counts for HTTPS.
    let (ip, address_port) = match address.strip_prefix(':') {
        Some(port) => ("", port.parse().map_err(|_| broken())?),
        None if address.is_empty() => ("", protocol.port()),
        None => split_port(&address, protocol.port()).ok_or_else(broken)?,
    };
    let (host, host_port) = split_port(&host, address_port).ok_or_else(broken)?;
    let addresses = ip.parse::<IpAddr>().into_iter().collect();
    UpstreamAddress::new(protocol, host, host_port, &path, addresses)
}

/// Reads the parts of a stamp, each with its length before it.
struct StampReader<'a>(&'a [u8]);

impl StampReader<'_> {
    fn text(&mut self) -> Option<String> {
        let (&length, rest) = self.0.split_first()?;
        let (text, rest) = rest.split_at_checked(usize::from(length))?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// Skips parts up to one whose length has no mark that another follows.
    fn skip_set(&mut self) -> Option<()> {
        loop {
            let (&length, rest) = self.0.split_first()?;
            self.0 = rest.get(usize::from(length & 0x7f)..)?;
            if length & 0x80 == 0 {
                return Some(());
            }
        }
    }
}

fn base64_url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> UpstreamAddress {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_in_every_form() {
        for (text, shown) in [
            ("192.0.2.1", "udp://192.0.2.1:53"),
            ("192.0.2.1:5353", "udp://192.0.2.1:5353"),
            ("udp://[2001:db8::1]:54", "udp://[2001:db8::1]:54"),
            ("2001:db8::1", "udp://[2001:db8::1]:53"),
            ("tcp://[2001:db8::1]", "tcp://[2001:db8::1]:53"),
            ("tls://DNS.example.", "tls://dns.example:853"),
            ("tls://192.0.2.1:8853", "tls://192.0.2.1:8853"),
            ("https://dns.example", "https://dns.example/dns-query"),
            ("https://dns.example:8443/q/x", "https://dns.example:8443/q/x"),
            ("https://[2001:db8::1]/q", "https://[2001:db8::1]/q"),
        ] {
            let parsed = address(text);
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(address(&parsed.to_string()), parsed);
        }
        assert!(address("tls://dns.example").needs_bootstrap());
        let known = address("tls://dns.example").with_bootstrap(vec!["192.0.2.7".parse().unwrap()]);
        assert_eq!(known.known_addresses(), ["192.0.2.7:853".parse().unwrap()]);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "dns.example",
            "udp://dns.example",
            "192.0.2.1:0",
            "192.0.2.1:99999",
            "192.0.2.1:",
            "ftp://192.0.2.1",
            "quic://192.0.2.1",
            "tls://",
            "tls://a b",
            "tls://[dns.example]",
            "https://user@dns.example/",
            "https://dns.example/a b",
            "https://dns.example/dns-query{?dns}",
            "sdns://",
            "sdns://AAAA",
            "sdns://!!!!",
        ] {
            assert!(text.parse::<UpstreamAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn stamps_are_read() {
        // Made by hand after the specification: kind, properties, address, hashes, host, path.
        let stamp = |kind: u8, parts: &[&[u8]]| {
            let mut bytes = vec![kind, 1, 0, 0, 0, 0, 0, 0, 0];
            parts.iter().for_each(|part| {
                bytes.push(u8::try_from(part.len()).unwrap());
                bytes.extend_from_slice(part);
            });
            format!("sdns://{}", encode(&bytes))
        };
        let plain = stamp(0, &[b"192.0.2.1:5300"]);
        assert_eq!(address(&plain).to_string(), "udp://192.0.2.1:5300");
        let https = stamp(2, &[b"192.0.2.1", &[7; 32], b"dns.example", b"/dns-query"]);
        assert_eq!(address(&https).to_string(), "https://dns.example/dns-query");
        assert_eq!(address(&https).known_addresses(), ["192.0.2.1:443".parse().unwrap()]);
        let https = stamp(2, &[b":8443", b"", b"dns.example", b"/q"]);
        assert_eq!(address(&https).to_string(), "https://dns.example:8443/q");
        let tls = stamp(3, &[b"[2001:db8::1]:853", b"", b"dns.example"]);
        assert_eq!(address(&tls).to_string(), "tls://dns.example:853");
        for kind in [1, 4, 5, 0x81] {
            let stamp = stamp(kind, &[b"192.0.2.1", b"", b"dns.example"]);
            let error = stamp.parse::<UpstreamAddress>().unwrap_err().to_string();
            assert!(error.contains("not supported"), "{error}");
        }
    }

    fn encode(bytes: &[u8]) -> String {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let mut three = [0; 3];
            three[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for place in 0..=chunk.len() {
                let index = bits >> (18 - 6 * place) & 0x3f;
                text.push(char::from(ALPHABET[index as usize]));
            }
        }
        text
    }
}
