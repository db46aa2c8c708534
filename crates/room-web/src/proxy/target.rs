//! Request target and host in their one normalised form (RFC 3986 §6.2.2): the form the guard
//! judges is the form the site receives, byte for byte. A target that sites read in different ways
//! is refused with 400.
//!
//! ```text
//! /a/%7euser/./b     -> /a/~user/b      unreserved characters are decoded, dot segments removed
//! /caf%c3%a9/{x}     -> /caf%C3%A9/%7Bx%7D   everything else is encoded, with capitals
//! /a%2fb /a\b /a%00  -> 400             a separator or a control character in disguise
//! //a  /..;/a  /%zz  -> 400             another host to some, a dot segment to others, no encoding
//! /a;v=1/b  /a//b  /a%3Fb               forwarded as they are, if every reading of them belongs
//!                                       to the same queue ([`RequestTarget::readings`])
//! ```

use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Uri, Version, header};

/// Path and query of a request, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestTarget {
    path: String,
    query: Option<String>,
}

impl RequestTarget {
    /// Normalises the target of a request, or says why it is refused.
    pub(super) fn of(uri: &Uri) -> Result<RequestTarget, &'static str> {
        let path = normalise(uri.path())?;
        Ok(RequestTarget { path, query: uri.query().map(str::to_owned) })
    }

    /// The path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Path and query, as they are forwarded.
    pub(super) fn to_uri(&self) -> Result<Uri, &'static str> {
        let text = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        };
        let whole: PathAndQuery = text.parse().map_err(|_| "the address is not valid")?;
        Ok(Uri::from(whole))
    }

    /// Has the path an encoded slash?
    pub(super) fn has_encoded_slash(&self) -> bool {
        self.path.contains("%2F")
    }

    /// Every way in which sites read the path, decoded: with and without parameters of segments
    /// (`;v=1`), empty segments, an encoded `?` or `#` as the end, an encoded slash as a slash.
    pub(super) fn readings(&self) -> Vec<String> {
        readings(&self.path)
    }
}

/// One way to read a path, and whether it makes a difference.
type Step = (bool, fn(&str) -> String);

/// Decoded readings of a normalised path; the first is the literal one.
pub(super) fn readings(path: &str) -> Vec<String> {
    let steps: [Step; 4] = [
        (path.contains("%3F") || path.contains("%23"), |path| {
            let end = [path.find("%3F"), path.find("%23")].into_iter().flatten().min();
            path.get(..end.unwrap_or(path.len())).unwrap_or_default().to_owned()
        }),
        (path.contains("%2F"), |path| path.replace("%2F", "/")),
        (path.contains(';') || path.contains("%3B"), |path| {
            let bare: Vec<&str> = path.split('/').map(without_parameters).collect();
            bare.join("/")
        }),
        (
            path.contains("//")
                || path.contains("%2F")
                || path.contains(';')
                || path.contains("%3B"),
            |path| {
                let mut one = String::with_capacity(path.len());
                for c in path.chars() {
                    if c != '/' || !one.ends_with('/') {
                        one.push(c);
                    }
                }
                one
            },
        ),
    ];
    let mut all = vec![path.to_owned()];
    for (_, step) in steps.iter().filter(|(applies, _)| *applies) {
        for at in 0..all.len() {
            let read = step(&all[at]);
            if !all.contains(&read) {
                all.push(read);
            }
        }
    }
    all.iter().map(|path| decode(path)).collect()
}

fn without_parameters(segment: &str) -> &str {
    let end = [segment.find(';'), segment.find("%3B")].into_iter().flatten().min();
    segment.get(..end.unwrap_or(segment.len())).unwrap_or_default()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Characters that stand for themselves in a path: unreserved, sub-delims, `:`, `@` and the slash.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@/".contains(&byte)
}

/// A path in its normalised form, or why it is refused.
pub(super) fn normalise(path: &str) -> Result<String, &'static str> {
    if !path.starts_with('/') {
        return Err("the address is not a path");
    }
    remove_dots(&encode(path)?)
}

/// Decodes what is unreserved and encodes everything that does not stand for itself.
fn encode(path: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let byte = match first {
            b'%' => {
                let digit = |at: usize| after.get(at).and_then(|&c| char::from(c).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return Err("the path has a % without two hexadecimal digits");
                };
                rest = after.get(2..).unwrap_or_default();
                (high * 16 + low) as u8
            }
            byte => byte,
        };
        match byte {
            b'\\' => return Err("the path has a backslash"),
            0..=31 | 127 => return Err("the path has a control character"),
            byte if is_unreserved(byte) || (first != b'%' && is_plain(byte)) => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    // A site that decodes twice would read something else than was judged.
    let mut rest = out.as_str();
    while let Some((_, after)) = rest.split_once("%25") {
        let inner = after.get(..2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let matters = |byte: u8| is_plain(byte) || byte < 32 || matches!(byte, 127 | b'\\' | b'%');
        if inner.is_some_and(matters) {
            return Err("the path is encoded twice");
        }
        rest = after;
    }
    Ok(out)
}

/// Removes dot segments (RFC 3986 §5.2.4). Refuses those that only some sites take for one.
fn remove_dots(path: &str) -> Result<String, &'static str> {
    let is_dots = |segment: &str| matches!(segment, "." | "..");
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        // An encoded `?` or `#` ends the path to some sites, parameters end a segment to others.
        let mut parts = segment.split("%2F").flat_map(|part| part.split("%3F"));
        let hidden =
            parts.any(|part| part.split("%23").any(|part| is_dots(without_parameters(part))));
        if hidden && !is_dots(segment) {
            return Err("the path has a disguised dot segment");
        }
        match segment {
            "." => {}
            ".." => {
                if kept.pop().is_some_and(str::is_empty) {
                    return Err("the path has a dot segment after an empty one");
                }
            }
            segment => {
                kept.push(segment);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    let path = format!("/{}", kept.join("/"));
    match path.starts_with("//") {
        true => Err("the path begins with two slashes"),
        false => Ok(path),
    }
}

/// Each `%XX` but an encoded slash as its byte; what is no UTF-8 then is replaced.
fn decode(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|&c| char::from(c).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) if (high, low) != (2, 15) => {
                out.push((high * 16 + low) as u8);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The host a request is for, normalised: lower case, without a dot at its end. `None` if the
/// request names none, as HTTP/1.0 may.
pub(super) fn host_of(
    headers: &HeaderMap,
    uri: &Uri,
    version: Version,
) -> Result<Option<HeaderValue>, &'static str> {
    let mut given = headers.get_all(header::HOST).iter();
    let (first, more) = (given.next(), given.next());
    if more.is_some() {
        return Err("there is more than one Host header");
    }
    let named = match first {
        Some(host) => Some(normalise_host(host.to_str().map_err(|_| BAD_HOST)?)?),
        None => None,
    };
    let target = uri.authority().map(|host| normalise_host(host.as_str())).transpose()?;
    let host = match (named, target) {
        (Some(named), Some(target)) if named != target => {
            return Err("the Host header is not the host of the address");
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) if version == Version::HTTP_10 => return Ok(None),
        (None, None) => return Err("the Host header is missing"),
    };
    HeaderValue::from_str(&host).map(Some).map_err(|_| BAD_HOST)
}

const BAD_HOST: &str = "the Host header is not a host name with an optional port";

/// `host` or `host:port`: lower case, without a dot at the end; an international name in its ASCII
/// form (`xn--`).
pub(super) fn normalise_host(text: &str) -> Result<String, &'static str> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or(BAD_HOST)?;
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| BAD_HOST)?;
            let port = match rest.strip_prefix(':') {
                Some(port) => port,
                None if rest.is_empty() => "",
                None => return Err(BAD_HOST),
            };
            (format!("[{address}]"), port)
        }
        None => {
            let (name, port) = text.split_once(':').unwrap_or((text, ""));
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let label = |label: &str| {
                let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                !label.is_empty() && label.bytes().all(named)
            };
            if name.len() > 253 || !name.split('.').all(label) {
                return Err(BAD_HOST);
            }
            (name, port)
        }
    };
    if port.is_empty() {
        return Ok(name);
    }
    let number: u16 = match port.bytes().all(|byte| byte.is_ascii_digit()) {
        true => port.parse().map_err(|_| BAD_HOST)?,
        false => return Err(BAD_HOST),
    };
    Ok(format!("{name}:{number}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_has_one_form() {
        for (given, expect) in [
            ("/", "/"),
            ("/checkout", "/checkout"),
            ("/%63heck%6Fut", "/checkout"),
            ("/%43heckout", "/Checkout"),
            ("/a/./b/../c", "/a/c"),
            ("/a/%2e/b/%2E%2e/c", "/a/c"),
            ("/checkout/..", "/"),
            ("/checkout/%2e%2e", "/"),
            ("/checkout/pay/../..", "/"),
            ("/checkout/.%2e/", "/"),
            ("/checkout/.", "/checkout/"),
            ("/../../x", "/x"),
            ("/a/..b/...", "/a/..b/..."),
            ("/a%20b%3f%23", "/a%20b%3F%23"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/a%3bv", "/a%3Bv"),
            ("/a//b", "/a//b"),
            ("/%e2%82%ac", "/%E2%82%AC"),
            ("/€/{a}|\"<^>`[x]", "/%E2%82%AC/%7Ba%7D%7C%22%3C%5E%3E%60%5Bx%5D"),
            ("/group%2fproject", "/group%2Fproject"),
            ("/100%25", "/100%25"),
            ("/50%2520off", "/50%2520off"),
            ("/~a/!$&'()*+,=:@", "/~a/!$&'()*+,=:@"),
            ("/%21%40", "/%21%40"),
        ] {
            assert_eq!(normalise(given).as_deref(), Ok(expect), "{given}");
        }
    }

    #[test]
    fn a_path_that_sites_read_differently_is_refused() {
        for bad in [
            "",
            "*",
            "checkout",
            "//evil.example/x",
            "/a/..//b",
            "/a//../b",
            "/a\\b",
            "/a%5cb",
            "/%5C%5cevil",
            "/a%00b",
            "/a\0b",
            "/a%0d%0ab",
            "/a\tb",
            "/%7f",
            "/\u{7f}",
            "/%",
            "/%2",
            "/%zz",
            "/%2x/",
            "/..;/a",
            "/..;x=1/a",
            "/..%3b/a",
            "/.;/a",
            "/a/%2e%2e;/b",
            "/..%2fa",
            "/a%2f..%2fb",
            "/a%2f%2e%2e",
            "/%252e%252e/a",
            "/%252fa",
            "/%25%32%65/a",
            "/%2525",
            "/%255c",
            "/%2563heckout",
            "/%2500",
            "/..%3Fa",
            "/a/..%23",
        ] {
            assert!(normalise(bad).is_err(), "{bad:?} is {:?}", normalise(bad));
        }
    }

    #[test]
    fn a_path_is_read_in_every_way_a_site_may_read_it() {
        let check = |path: &str, expect: &[&str]| {
            let mut all = readings(&normalise(path).unwrap());
            all.sort();
            assert_eq!(all, expect, "{path}");
        };
        check("/a%20b", &["/a b"]);
        check("/a;v=1/b", &["/a/b", "/a;v=1/b"]);
        check("/a//b", &["/a//b", "/a/b"]);
        check("/a%3Fb", &["/a", "/a?b"]);
        check("/a%2Fb", &["/a%2Fb", "/a/b"]);
        check("/a/;x/b", &["/a//b", "/a/;x/b", "/a/b"]);
    }

    #[test]
    fn a_host_has_one_form() {
        for (given, expect) in [
            ("tickets.example", "tickets.example"),
            ("TICKETS.Example.", "tickets.example"),
            ("tickets.example.:8080", "tickets.example:8080"),
            ("tickets.example:", "tickets.example"),
            ("tickets.example:0080", "tickets.example:80"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0::1]:443", "[2001:db8::1]:443"),
            ("my_host", "my_host"),
        ] {
            assert_eq!(normalise_host(given).as_deref(), Ok(expect), "{given}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "user@a",
            "a@b:80",
            "a:b",
            "a:99999",
            "a:80:80",
            "a b",
            "a/b",
            "a,b",
            "a%2eb",
            "bücher.example",
            "[::1",
            "[::1]x",
            "[fe80::1%25eth0]",
            "::1",
            "a?b",
            "a#b",
            "a\\b",
        ] {
            assert!(normalise_host(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_host_is_named_once() {
        let check = |hosts: &[&'static str], uri: &str, version: Version| {
            let headers: HeaderMap =
                hosts.iter().map(|h| (header::HOST, HeaderValue::from_static(h))).collect();
            host_of(&headers, &uri.parse().unwrap(), version)
                .map(|host| host.map(|host| host.to_str().unwrap().to_owned()))
        };
        let v11 = Version::HTTP_11;
        assert_eq!(check(&["A.example."], "/", v11), Ok(Some("a.example".into())));
        assert_eq!(check(&["a"], "http://A./x", v11), Ok(Some("a".into())));
        assert_eq!(check(&[], "https://a:8443/x", Version::HTTP_2), Ok(Some("a:8443".into())));
        assert_eq!(check(&[], "/", Version::HTTP_10), Ok(None));
        assert!(check(&[], "/", v11).is_err());
        assert!(check(&["a", "a"], "/", v11).is_err());
        assert!(check(&["a"], "http://b/x", v11).is_err());
        assert!(check(&["a"], "http://user@a/x", v11).is_err());
    }

    proptest! {
        /// Normalising is done once for all, and leaves nothing for the site to resolve.
        #[test]
        fn the_normalised_form_is_final(path in "/([a-cA-C./;%\\\\ ?#é]|%2[eEfF5]|%5[cC]|%6[13]|%3[bBfF]|%25|%0[0a]){0,24}") {
            let path = path.split(['?', '#']).next().unwrap();
            if let Ok(once) = normalise(path) {
                prop_assert_eq!(normalise(&once), Ok(once.clone()));
                prop_assert!(once.starts_with('/') && !once.starts_with("//"));
                prop_assert!(once.bytes().all(|b| is_plain(b) || b == b'%'));
                for reading in readings(&once) {
                    let dots = reading.split('/').any(|s| matches!(s, "." | ".."));
                    prop_assert!(!dots, "{} reads {}", once, reading);
                    prop_assert!(!reading.contains('\\') && !reading.chars().any(char::is_control));
                }
                let uri: Uri = once.parse().unwrap();
                prop_assert_eq!(uri.path(), once.as_str(), "what is judged is what is sent");
            }
        }
    }
}
