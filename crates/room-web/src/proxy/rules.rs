//! Bypass rules, and the routes from requests to queues.
//!
//! Both use the normalised path (`target.rs`), which is the one the site gets. A path that needs no pass
//! must be unambiguous on top of that.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use room::QueueId;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::target::{self, RequestTarget};

/// The header a program shows its token in. It is not handed to the site.
const BYPASS: HeaderName = HeaderName::from_static("x-wr-bypass");
/// Minimum length of a token: it must not be guessable.
const MIN_TOKEN_LENGTH: usize = 20;
/// Maximum number of tokens: each request with one is compared with all.
const MAX_TOKENS: usize = 256;

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

/// Returns true if a path is unambiguous.
fn is_plain(path: &str) -> bool {
    !path.contains("..") && !path.contains("//") && !path.contains(['%', '\\', ';'])
}

/// Tokens with which programs need no pass. Only their hashes are kept.
#[derive(Debug, Clone, Default)]
pub struct BypassTokens(Vec<[u8; 32]>);

impl BypassTokens {
    /// Reads a file's text: one token in a line; empty lines and those with `#` first are left out.
    pub fn parse(text: &str) -> Result<BypassTokens, String> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            if line.len() < MIN_TOKEN_LENGTH || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "line {number} is not a token: {MIN_TOKEN_LENGTH} or more letters, digits and signs \
                     without spaces"
                ));
            }
            if tokens.len() == MAX_TOKENS {
                return Err(format!("more than {MAX_TOKENS} tokens"));
            }
            tokens.push(Sha256::digest(line).into());
        }
        Ok(BypassTokens(tokens))
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn hold(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.iter().fold(false, |found, known| found | bool::from(known.ct_eq(&given)))
    }
}

/// Requests that need no pass.
#[derive(Debug, Clone, Default)]
pub struct Bypass {
    /// Paths anybody may ask for.
    pub paths: Vec<OpenPath>,
    /// Networks from which anything may be asked for.
    pub networks: Vec<IpNet>,
    /// Tokens with which anything may be asked for.
    pub tokens: BypassTokens,
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
pub struct QueueRoute {
    host: Option<String>,
    /// Decoded, without a slash at the end; in lower case unless the case counts.
    path: String,
    queue: QueueId,
    /// `/Checkout` is another path than `/checkout`.
    case_sensitive: bool,
    /// `%2F` may be in a path below this one.
    encoded_slashes: bool,
}

impl QueueRoute {
    /// Reads `/checkout = checkout`, `tickets.example = tickets` or `tickets.example/vip = vip`,
    /// with `case-sensitive` and `encoded-slashes` behind the queue's name if wished.
    pub fn parse(text: &str) -> Result<QueueRoute, String> {
        let wrong =
            || format!("{text:?} is not a route like /checkout=checkout or shop.example/=shop");
        let (position, queue) = text.split_once('=').ok_or_else(wrong)?;
        let position = position.trim();
        let mut words = queue.split_whitespace();
        let queue = QueueId::parse(words.next().unwrap_or_default())
            .map_err(|error| format!("{text:?}: {error}"))?;
        let (mut case_sensitive, mut encoded_slashes) = (false, false);
        for word in words {
            match word {
                "case-sensitive" => case_sensitive = true,
                "encoded-slashes" => encoded_slashes = true,
                other => {
                    return Err(format!(
                        "{text:?}: {other:?} is not an option of a route; the options are \
                         case-sensitive and encoded-slashes"
                    ));
                }
            }
        }
        let (host, path) = position.split_at(position.find('/').unwrap_or(position.len()));
        let odd = path.contains(['?', '#', '*', ';']) || path.contains("//");
        if position.is_empty() || odd {
            return Err(wrong());
        }
        let host = match host {
            "" => None,
            host => Some(target::normalise_host(host).map_err(|_| wrong())?),
        };
        let path = match path {
            "" => String::new(),
            path => target::normalise(path).map_err(|why| format!("{text:?}: {why}"))?,
        };
        let read = target::readings(&path);
        let [path] = read.as_slice() else { return Err(wrong()) };
        let path = path.trim_end_matches('/');
        let path = if case_sensitive { path.to_owned() } else { path.to_lowercase() };
        Ok(QueueRoute { host, path, queue, case_sensitive, encoded_slashes })
    }

    /// The queue.
    pub fn queue(&self) -> &QueueId {
        &self.queue
    }

    /// Returns true if it covers a host (in lower case) and a path (decoded; also in lower case).
    fn covers(&self, host: &str, path: &str, lower: &str) -> bool {
        let here = self.host.as_deref().is_none_or(|named| {
            named == host || host.rsplit_once(':').is_some_and(|(name, _)| name == named)
        });
        let path = if self.case_sensitive { path } else { lower };
        here && path
            .strip_prefix(self.path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Returns the queue of a request; `Ok(None)` if no route covers it. A route with a host comes before one
/// without, a longer path before a shorter, one whose case counts before one whose does not.
///
/// Refuses a path that belongs to one route as some sites read it and to another as others do, and
/// an encoded slash where the route does not allow it.
pub(super) fn route<'a>(
    routes: &'a [QueueRoute],
    host: &str,
    target: &RequestTarget,
) -> Result<Option<&'a QueueId>, &'static str> {
    let nearest = |path: &str| {
        let lower = path.to_lowercase();
        routes
            .iter()
            .filter(|route| route.covers(host, path, &lower))
            .max_by_key(|route| (route.host.is_some(), route.path.len(), route.case_sensitive))
    };
    let mut found = target.readings().into_iter().map(|path| nearest(&path));
    let first = found.next().flatten();
    if found.any(|other| other != first) {
        return Err("the path can be read as one of another part of the site");
    }
    if target.has_encoded_slash() && !first.is_some_and(|route| route.encoded_slashes) {
        return Err("the path has an encoded slash");
    }
    Ok(first.map(QueueRoute::queue))
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
            BypassTokens::parse(&format!("# partners\n\n{token}\n  another-token-of-24-signs \n"));
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
            assert!(BypassTokens::parse(bad).is_err(), "{bad}");
        }
    }

    fn routes(texts: &[&str]) -> Vec<QueueRoute> {
        texts.iter().map(|text| QueueRoute::parse(text).unwrap()).collect()
    }

    /// The queue's name, "-" for none, "400" if refused.
    fn queue_of(routes: &[QueueRoute], host: &str, path: &str) -> String {
        let Ok(target) = RequestTarget::of(&path.parse().unwrap()) else { return "400".to_owned() };
        match route(routes, host, &target) {
            Ok(found) => found.map_or("-", QueueId::as_str).to_owned(),
            Err(_) => "400".to_owned(),
        }
    }

    #[test]
    fn a_request_belongs_to_the_nearest_route() {
        let routes = routes(&[
            "/checkout = checkout",
            "/checkout/gift/=gift",
            "VIP.example.=vip",
            "/Straße=s",
        ]);
        let check = |host: &str, path: &str, expect: &str| {
            assert_eq!(queue_of(&routes, host, path), expect, "{host} {path}");
        };
        for (path, expect) in [
            ("/", "-"),
            ("/checkouts", "-"),
            ("/checkout", "checkout"),
            ("/checkout?a=/../b", "checkout"),
            ("/checkout/pay", "checkout"),
            ("/checkout/gift", "gift"),
            // However it is written, it is the same part of the site.
            ("/%63heckout", "checkout"),
            ("/a/../checkout", "checkout"),
            ("/CHECKOUT/Gift", "gift"),
            ("/stra%C3%9Fe/x", "s"),
            ("/STRA%c3%9FE", "s"),
            ("/checkout/..", "-"),
            ("/checkout/%2e%2e", "-"),
            ("/checkout/gift/../pay", "checkout"),
            ("/other;v=1//x%3F", "-"),
            ("/checkout/a;v=1//x%3F", "checkout"),
            // As some sites read it, it is another one.
            ("/checkout;v=1/x", "400"),
            ("/checkout//gift", "400"),
            ("/a//checkout", "-"),
            ("/checkout%3Fx", "400"),
            ("/checkout%23", "400"),
            ("/checkout%3Bv", "400"),
            ("/checkout/;/gift", "400"),
            ("//checkout", "400"),
            ("/checkout%2Fgift", "400"),
            ("/checkout/a%2Fb", "400"),
        ] {
            check("shop.example", path, expect);
        }
        check("vip.example:8080", "/checkout", "vip");
        for bad in [
            "",
            "/a",
            "=a",
            "/a=",
            "/a=Not A Queue",
            "a b/=q",
            "/a*=q",
            "http://a/=q",
            "/a=q loud",
            "/a//b=q",
            "/a%2Fb=q",
            "/a;b=q",
            "/a\\b=q",
        ] {
            assert!(QueueRoute::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn case_and_encoded_slashes_are_settings_of_a_route() {
        let routes = routes(&["/Api = api case-sensitive encoded-slashes", "/api=lower"]);
        for (path, expect) in [
            ("/Api/x", "api"),
            ("/api/x", "lower"),
            ("/API/x", "lower"),
            ("/Api/group%2Fproject", "api"),
            ("/api/group%2Fproject", "400"),
            ("/Api/..%2Fapi", "400"),
            ("/Api%2F", "400"),
        ] {
            assert_eq!(queue_of(&routes, "shop.example", path), expect, "{path}");
        }
    }
}
