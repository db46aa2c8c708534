//! Who needs no pass, and which queue a request belongs to.
//!
//! Both look at paths, and a site may read a path otherwise than it is written: `/%61dmin` is
//! `/admin` to many. So a path without a pass must be written plainly, and a path is brought to its
//! plain form before its queue is looked up.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use room::QueueId;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The header a program shows its token in. It is not handed to the site.
const BYPASS: HeaderName = HeaderName::from_static("x-wr-bypass");
/// The fewest characters of a token: it must not be guessed.
const SHORTEST: usize = 20;
/// The most tokens: each request with one is compared with all.
const MOST: usize = 256;

/// A path that needs no pass: one, or with `/` or `/*` at its end all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPath {
    path: String,
    below: bool,
}

impl OpenPath {
    /// Reads `/healthz`, `/static/` or `/static/*`.
    pub fn parse(text: &str) -> Result<OpenPath, String> {
        let path = text.strip_suffix('*').unwrap_or(text);
        let below = path.ends_with('/');
        if !text.starts_with('/') {
            return Err(format!("{text:?} does not begin with /"));
        }
        if path.contains('*') || (path.len() < text.len() && !below) {
            return Err(format!(
                "{text:?}: a * may only stand for all below a path, as in /static/*"
            ));
        }
        if !is_plain(path) || path.contains(['?', '#']) {
            return Err(format!("{text:?} is not a plain path"));
        }
        Ok(OpenPath { path: path.to_owned(), below })
    }

    fn covers(&self, path: &str) -> bool {
        match self.below {
            true => path.starts_with(&self.path),
            false => path == self.path,
        }
    }
}

/// Can a path be read in one way only?
fn is_plain(path: &str) -> bool {
    !path.contains("..") && !path.contains("//") && !path.contains(['%', '\\', ';'])
}

/// Tokens with which programs need no pass. Only their hashes are kept.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Vec<[u8; 32]>);

impl Tokens {
    /// Reads a file's text: one token in a line; empty lines and those with `#` first are left out.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            if line.len() < SHORTEST || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "line {number} is not a token: {SHORTEST} or more letters, digits and signs \
                     without spaces"
                ));
            }
            if tokens.len() == MOST {
                return Err(format!("more than {MOST} tokens"));
            }
            tokens.push(Sha256::digest(line).into());
        }
        Ok(Tokens(tokens))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn hold(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.iter().fold(false, |found, known| found | bool::from(known.ct_eq(&given)))
    }
}

/// Who needs no pass.
#[derive(Debug, Clone, Default)]
pub struct Bypass {
    /// Paths anybody may ask for.
    pub paths: Vec<OpenPath>,
    /// Networks from which anything may be asked for.
    pub networks: Vec<IpNet>,
    /// Tokens with which anything may be asked for.
    pub tokens: Tokens,
}

impl Bypass {
    pub(super) fn allows(&self, path: &str, ip: IpAddr, headers: &HeaderMap) -> bool {
        let open = || is_plain(path) && self.paths.iter().any(|open| open.covers(path));
        let near = || self.networks.iter().any(|network| network.contains(&ip));
        let known = || {
            let shown = headers.get(&BYPASS).filter(|_| !self.tokens.is_empty());
            shown.is_some_and(|token| self.tokens.hold(token.as_bytes()))
        };
        open() || near() || known()
    }
}

/// Part of a site that has a queue of its own: a host, a path with all below it, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    host: Option<String>,
    /// Without a slash at the end.
    path: String,
    queue: QueueId,
}

impl Route {
    /// Reads `/checkout = checkout`, `tickets.example = tickets` or `tickets.example/vip = vip`.
    pub fn parse(text: &str) -> Result<Route, String> {
        let wrong =
            || format!("{text:?} is not a route like /checkout=checkout or shop.example/=shop");
        let (place, queue) = text.split_once('=').ok_or_else(wrong)?;
        let (place, queue) = (place.trim(), queue.trim());
        let queue = QueueId::parse(queue).map_err(|error| format!("{text:?}: {error}"))?;
        let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        let named = |c: char| c.is_ascii_alphanumeric() || "-.:[]_".contains(c);
        let odd = path.contains(['?', '#', '*']) || path.starts_with("//");
        if place.is_empty() || !host.chars().all(named) || odd {
            return Err(wrong());
        }
        let host = (!host.is_empty()).then(|| host.to_ascii_lowercase());
        Ok(Route { host, path: plain(path).trim_end_matches('/').to_owned(), queue })
    }

    /// The queue.
    pub fn queue(&self) -> &QueueId {
        &self.queue
    }

    fn covers(&self, host: &str, path: &str) -> bool {
        let here = self.host.as_deref().is_none_or(|named| {
            named == host || host.rsplit_once(':').is_some_and(|(name, _)| name == named)
        });
        here && path
            .strip_prefix(self.path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The queue of a request; none if no route is for it. A route with a host comes before one
/// without, a longer path before a shorter.
pub(super) fn route<'a>(routes: &'a [Route], host: &str, path: &str) -> Option<&'a QueueId> {
    if routes.is_empty() {
        return None;
    }
    let (host, path) = (host.to_ascii_lowercase(), plain(path));
    routes
        .iter()
        .filter(|route| route.covers(&host, &path))
        .max_by_key(|route| (route.host.is_some(), route.path.len()))
        .map(Route::queue)
}

/// The path as most sites read it: decoded once, one slash after another, without dots and
/// parameters of segments.
fn plain(path: &str) -> String {
    let decoded = decode(path).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    format!("/{}", segments.join("/"))
}

fn decode(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|&c| char::from(c).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(paths: &[&str]) -> Bypass {
        let paths = paths.iter().map(|text| OpenPath::parse(text).unwrap()).collect();
        Bypass { paths, ..Bypass::default() }
    }

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9));

    #[test]
    fn open_paths_are_open_and_nothing_that_only_looks_like_them() {
        let open = open(&["/healthz", "/static/*", "/docs/"]);
        let headers = HeaderMap::new();
        for path in ["/healthz", "/static/a.css", "/static/", "/docs/a/b"] {
            assert!(open.allows(path, FAR, &headers), "{path}");
        }
        for path in [
            "/",
            "/healthz/x",
            "/healthzz",
            "/static",
            "/static/../admin",
            "/static/%2e%2e/admin",
            "/static//admin",
            "/static/..;/admin",
            "/static/\\admin",
            "/x/static/a",
        ] {
            assert!(!open.allows(path, FAR, &headers), "{path}");
        }
        for bad in ["", "static/", "/a*", "/*/b", "/a/**", "/a?b", "/a/../b", "/a%20b"] {
            assert!(OpenPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn programs_pass_with_a_token_and_friends_from_their_network() {
        let token = "3b8f0c5de7a94c21b6d0";
        let tokens =
            Tokens::parse(&format!("# partners\n\n{token}\n  another-token-of-24-signs \n"));
        let networks = vec!["10.0.0.0/8".parse().unwrap()];
        let rules = Bypass { tokens: tokens.unwrap(), networks, ..Bypass::default() };
        assert_eq!(rules.tokens.len(), 2);
        let shows = |text: &str| HeaderMap::from_iter([(BYPASS, text.parse().unwrap())]);
        assert!(rules.allows("/", FAR, &shows(token)));
        assert!(rules.allows("/", FAR, &shows("another-token-of-24-signs")));
        assert!(rules.allows("/", "10.1.2.3".parse().unwrap(), &HeaderMap::new()));
        for wrong in ["", "# partners", "3b8f0c5de7a94c21b6d", "3b8f0c5de7a94c21b6d0 "] {
            assert!(!rules.allows("/", FAR, &shows(wrong)), "{wrong:?}");
        }
        assert!(!Bypass::default().allows("/", FAR, &shows("")));
        assert!(!format!("{rules:?}").contains(token));
        for bad in ["short", "twenty signs and spaces in it", &"0123456789abcdef0123\n".repeat(257)]
        {
            assert!(Tokens::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_belongs_to_the_nearest_route() {
        let routes: Vec<Route> =
            ["/checkout = checkout", "/checkout/gift/=gift", "VIP.example=vip"]
                .map(|text| Route::parse(text).unwrap())
                .into();
        let check = |host: &str, path: &str, expect: Option<&str>| {
            let found = route(&routes, host, path).map(QueueId::as_str);
            assert_eq!(found, expect, "{host} {path}");
        };
        check("shop.example", "/", None);
        check("shop.example", "/checkouts", None);
        check("shop.example", "/checkout", Some("checkout"));
        check("shop.example", "/checkout/pay", Some("checkout"));
        check("shop.example", "/checkout/gift", Some("gift"));
        check("vip.EXAMPLE:8080", "/checkout", Some("vip"));
        // Written in another way, it is the same part of the site.
        for path in
            ["/%63heckout", "//checkout/", "/a/../checkout", "/./checkout;v=1/x", "/\\checkout"]
        {
            check("shop.example", path, Some("checkout"));
        }
        check("shop.example", "/../..", None);
        check("shop.example", "/%zz%", None);
        for bad in ["", "/a", "=a", "/a=", "/a=Not A Queue", "a b/=q", "/a*=q", "http://a/=q"] {
            assert!(Route::parse(bad).is_err(), "{bad}");
        }
    }
}
