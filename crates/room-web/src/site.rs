//! Origins and paths of a queue: destinations of redirects, and origins allowed by CORS.
//!
//! `return_to` comes from the address bar, so it is untrusted: it is used only if it is a plain path,
//! or a URL of an origin the queue allows. Otherwise the queue's own target is used; there is no open
//! redirect.

use room::QueueConfig;
use serde_json::{Map, Value};

use web::ApiError;

/// Maximum length of an address.
const MAX_ADDRESS_BYTES: usize = 2_048;
/// Maximum of origins or paths per queue.
const MAX_ENTRIES: usize = 64;
/// Path prefix of all of our URLs on a protected site.
pub(crate) const OWN_PATH: &str = "/_wr";

const ORIGINS: &str = "allowed_origins";
const PATHS: &str = "allowed_paths";

/// The origins and paths of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Site {
    target: String,
    /// Origins besides that of the target.
    pub(crate) origins: Vec<String>,
    /// Paths visitors may be sent to, with all below them; none means all.
    pub(crate) paths: Vec<String>,
}

/// Destination of a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A path on the site the request was for.
    Here(String),
    /// Another site.
    Elsewhere(String),
}

impl Site {
    /// Reads a queue's settings.
    pub(crate) fn of(config: &QueueConfig) -> Site {
        let list = |name: &str| -> Vec<String> {
            let values = config.attributes.get(name).and_then(Value::as_array);
            values.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Site { target: config.target_url.clone(), origins: list(ORIGINS), paths: list(PATHS) }
    }

    /// Writes origins and paths into a queue's settings, after [`check_origins`] and
    /// [`check_paths`].
    fn put(attributes: &mut Map<String, Value>, name: &str, list: &[String]) {
        let list: Vec<Value> = list.iter().map(|text| Value::from(text.as_str())).collect();
        match list.is_empty() {
            true => attributes.remove(name),
            false => attributes.insert(name.to_owned(), Value::Array(list)),
        };
    }

    /// Writes the origins.
    pub(crate) fn put_origins(attributes: &mut Map<String, Value>, list: &[String]) {
        Self::put(attributes, ORIGINS, list);
    }

    /// Writes the paths.
    pub(crate) fn put_paths(attributes: &mut Map<String, Value>, list: &[String]) {
        Self::put(attributes, PATHS, list);
    }

    /// Returns true if pages of this origin may call for the queue's visitors.
    pub(crate) fn allows(&self, origin: &str) -> bool {
        let Some(origin) = parse_origin(origin) else { return false };
        self.origins.contains(&origin) || self.target_origin().as_ref() == Some(&origin)
    }

    /// Returns the destination of a visitor who asked for `return_to` on the site `host`.
    pub(crate) fn target(&self, host: Option<&str>, return_to: Option<&str>) -> Destination {
        let origin = self.target_origin();
        let is_here = |origin: &str| {
            let there = origin.split_once("://").map(|(_, host)| host);
            there.is_some() && there == host
        };
        let on = |origin: Option<String>, path: String| match origin {
            Some(origin) if !is_here(&origin) => Destination::Elsewhere(format!("{origin}{path}")),
            _ => Destination::Here(path),
        };
        match return_to.and_then(|text| self.accept(host, text)) {
            Some((None, path)) => on(origin, path),
            Some((asked, path)) => on(asked, path),
            None => match split(&self.target) {
                Some((origin, path)) => on(Some(origin), path),
                None => Destination::Here("/".to_owned()),
            },
        }
    }

    /// The origin (none if it is a plain path) and path of an address that may be gone to.
    fn accept(&self, host: Option<&str>, text: &str) -> Option<(Option<String>, String)> {
        let (origin, path) = match text.starts_with('/') {
            true => (None, checked_path(text)?),
            false => {
                let (origin, path) = split(text)?;
                let here = origin.split_once("://").is_some_and(|(_, there)| Some(there) == host);
                if !here && !self.allows(&origin) {
                    return None;
                }
                (Some(origin), path)
            }
        };
        let bare = path.split(['?', '#']).next().unwrap_or_default();
        // A redirect back to the waiting page would loop.
        if below(bare, OWN_PATH) {
            return None;
        }
        let allowed = self.paths.is_empty() || self.paths.iter().any(|top| below(bare, top));
        allowed.then_some((origin, path))
    }

    fn target_origin(&self) -> Option<String> {
        split(&self.target).map(|(origin, _)| origin)
    }
}

impl Destination {
    /// The address, for a `Location` header or a link.
    pub(crate) fn address(&self) -> &str {
        match self {
            Destination::Here(path) => path,
            Destination::Elsewhere(url) => url,
        }
    }

    /// The origin, if it is another site.
    pub(crate) fn origin(&self) -> Option<String> {
        match self {
            Destination::Here(_) => None,
            Destination::Elsewhere(url) => split(url).map(|(origin, _)| origin),
        }
    }

    /// The address with one more parameter in its query.
    pub(crate) fn with(&self, name: &str, value: &str) -> String {
        let (rest, fragment) = match self.address().split_once('#') {
            Some((rest, fragment)) => (rest, format!("#{fragment}")),
            None => (self.address(), String::new()),
        };
        let joint = if rest.contains('?') { '&' } else { '?' };
        format!("{rest}{joint}{name}={value}{fragment}")
    }
}

/// Checks a list of origins and writes them in one way.
pub(crate) fn check_origins(list: &[String]) -> Result<Vec<String>, ApiError> {
    let parsed: Option<Vec<String>> = list.iter().map(|text| parse_origin(text)).collect();
    parsed.filter(|list| list.len() <= MAX_ENTRIES).ok_or_else(|| {
        ApiError::invalid_field(ORIGINS, "up to 64 origins such as https://shop.example")
    })
}

/// Checks a list of paths.
pub(crate) fn check_paths(list: &[String]) -> Result<Vec<String>, ApiError> {
    let plain = |text: &str| checked_path(text).filter(|path| !path.contains(['?', '#']));
    let parsed: Option<Vec<String>> = list.iter().map(|text| plain(text)).collect();
    parsed
        .filter(|list| list.len() <= MAX_ENTRIES)
        .ok_or_else(|| ApiError::invalid_field(PATHS, "up to 64 paths such as /checkout"))
}

/// Returns true if a path is `top` or below it. `/shop` is not below `/sho`.
fn below(path: &str, top: &str) -> bool {
    let top = top.trim_end_matches('/');
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The origin and the checked path of an absolute address.
fn split(url: &str) -> Option<(String, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let origin = parse_origin(&format!("{scheme}://{authority}"))?;
    let path = match path {
        path if path.starts_with('/') => checked_path(path)?,
        path => checked_path(&format!("/{path}"))?,
    };
    Some((origin, path))
}

/// `scheme://host[:port]`, nothing else, in lower case and without the scheme's own port.
pub(crate) fn parse_origin(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (scheme, authority) = lower.split_once("://")?;
    let usual = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return None,
    };
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (format!("[{address}]"), rest.strip_prefix(':').or(rest.is_empty().then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (authority.to_owned(), Some("")),
        },
    };
    let named = host.starts_with('[')
        || (!host.is_empty()
            && host.len() <= 253
            && host.split('.').all(|label| !label.is_empty() && !label.starts_with('-'))
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.'));
    let port = port?;
    let counts = port.is_empty() && !authority.ends_with(':')
        || port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n > 0);
    (named && counts).then(|| match port {
        "" => format!("{scheme}://{host}"),
        port if port == usual => format!("{scheme}://{host}"),
        port => format!("{scheme}://{host}:{port}"),
    })
}

/// A path with its query and fragment, if every browser and server reads it as one. What is not
/// ASCII is percent-encoded.
pub(crate) fn checked_path(text: &str) -> Option<String> {
    if text.len() > MAX_ADDRESS_BYTES || !text.starts_with('/') {
        return None;
    }
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.chars().any(odd) {
        return None;
    }
    // A server behind may decode, even twice, before it looks.
    let mut bare = text.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    for _ in 0..4 {
        if bare.contains("//") || bare.contains('\\') || bare.chars().any(char::is_control) {
            return None;
        }
        if bare.split('/').any(|segment| matches!(segment, "." | "..")) {
            return None;
        }
        bare = decoded(&bare);
    }
    Some(web::middleware::percent_foreign(text))
}

/// Each `%xx` of an ASCII character as that character.
fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).and_then(|two| u8::from_str_radix(two, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(byte) => {
                out.push(char::from(byte).to_ascii_lowercase());
                rest = &rest[at + 3..];
            }
            None => {
                out.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            target: "https://shop.example/sale".into(),
            origins: vec!["https://tickets.example:8443".into()],
            paths: Vec::new(),
        }
    }

    fn goes(return_to: &str) -> String {
        site().target(Some("shop.example"), Some(return_to)).address().to_owned()
    }

    #[test]
    fn a_plain_path_is_gone_to() {
        for path in [
            "/",
            "/checkout?sku=9&back=https://other.example/#top",
            "/a%20b/c;d=e,f",
            "/sale/%E2%82%AC",
            "/~user/index.html?q=a//b",
        ] {
            assert_eq!(goes(path), path);
        }
        assert_eq!(goes("/straße?q=ü"), "/stra%C3%9Fe?q=%C3%BC");
    }

    #[test]
    fn open_redirects_are_not_followed() {
        for bad in [
            "//evil.example",
            "///evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "/\\/evil.example",
            "https:evil.example",
            "https:/evil.example",
            "https://evil.example",
            "HTTPS://EVIL.example/",
            "http:\\\\evil.example",
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
            "file:///etc/passwd",
            "%2f%2fevil.example",
            "/%2f%2fevil.example",
            "/%2fevil.example",
            "/%5cevil.example",
            "/%252fevil.example",
            "/%255cevil.example",
            "/.//evil.example",
            "/..//evil.example",
            "/%2e%2e/evil",
            "/./evil",
            "/a/../..//evil.example",
            "https://shop.example@evil.example/",
            "https://shop.example:pass@evil.example/",
            "https://evil.example#@shop.example/",
            "https://evil.example?@shop.example/",
            "https://evil.example\\@shop.example/",
            "https://shop.example\\.evil.example/",
            "https://shop.example.evil.example/",
            "https://evilshop.example/",
            "https://shop.example:444/",
            "http://shop.example.:80/",
            "https://shop.example%2eevil.example/",
            "https://shop.example%00.evil.example/",
            "https://[::1]evil/",
            "https://sh\u{f6}p.example/",
            "https://\u{ff53}hop.example/",
            "https://shop\u{3002}example/",
            "/\t/evil.example",
            "/\n/evil.example",
            "/\r\nSet-Cookie: a=b",
            "\t//evil.example",
            " //evil.example",
            " https://evil.example",
            "/\u{0}/evil.example",
            "/\u{85}/evil.example",
            "/\u{2028}/evil.example",
            "/\u{a0}/evil.example",
            "/%00",
            "/%0d%0aset-cookie:a=b",
            "evil.example",
            "",
            "?x=1",
            "/_wr/concert",
            "/_wr",
            "/%5fwr/../_wr/x",
            "https://",
            "https://:443/",
            "https:///shop.example",
        ] {
            assert_eq!(goes(bad), "/sale", "{bad:?}");
        }
        assert_eq!(goes(&format!("/{}", "a".repeat(3_000))), "/sale");
    }

    #[test]
    fn an_allowed_origin_is_gone_to() {
        assert_eq!(goes("https://tickets.example:8443/a?b"), "https://tickets.example:8443/a?b");
        assert_eq!(goes("https://SHOP.example:443/a"), "/a", "the same site");
        assert_eq!(goes("https://shop.example?x=1"), "/?x=1");
        assert_eq!(goes("https://tickets.example/a"), "/sale", "another port is another origin");
        let away = site().target(Some("gate.example"), Some("/a"));
        assert_eq!(away, Destination::Elsewhere("https://shop.example/a".into()));
        assert_eq!(away.origin().as_deref(), Some("https://shop.example"));
        let none = Site::default();
        assert_eq!(none.target(Some("any.example"), Some("/a")), Destination::Here("/a".into()));
        assert_eq!(none.target(None, Some("https://any.example/")), Destination::Here("/".into()));
        assert_eq!(
            none.target(Some("any.example"), Some("https://any.example/x")),
            Destination::Here("/x".into())
        );
    }

    #[test]
    fn paths_can_be_narrowed() {
        let site = Site { paths: vec!["/checkout".into(), "/cart/".into()], ..site() };
        let goes = |text: &str| site.target(Some("shop.example"), Some(text)).address().to_owned();
        assert_eq!(goes("/checkout?sku=9"), "/checkout?sku=9");
        assert_eq!(goes("/checkout/pay"), "/checkout/pay");
        assert_eq!(goes("/cart"), "/cart");
        for other in ["/checkout2", "/admin", "/", "/checkout/../admin", "/checkout%2f..%2fadmin"] {
            assert_eq!(goes(other), "/sale", "{other}");
        }
    }

    #[test]
    fn a_parameter_goes_before_the_fragment() {
        let at = |path: &str| Destination::Here(path.into()).with("t", "1");
        assert_eq!(at("/a"), "/a?t=1");
        assert_eq!(at("/a?b=c#d"), "/a?b=c&t=1#d");
    }

    #[test]
    fn origins_are_written_in_one_way() {
        let list = |text: &str| check_origins(&[text.to_owned()]).ok().map(|list| list[0].clone());
        assert_eq!(list("HTTPS://Shop.Example:443").as_deref(), Some("https://shop.example"));
        assert_eq!(list("http://127.0.0.1:3000").as_deref(), Some("http://127.0.0.1:3000"));
        assert_eq!(list("http://[::1]:3000").as_deref(), Some("http://[::1]:3000"));
        for bad in [
            "*",
            "https://*",
            "https://a/",
            "https://a:",
            "https://a:0",
            "a",
            "https://a:99999",
            "https://a@b",
        ] {
            assert_eq!(list(bad), None, "{bad}");
        }
        assert!(check_paths(&["/a".into()]).is_ok());
        assert!(check_paths(&["a".into()]).is_err() && check_paths(&["/a?b".into()]).is_err());
    }
}
