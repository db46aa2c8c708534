//! The site behind the proxy: its URL, and the connections to it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderValue, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use web::serve::tls::{self, TlsError};

/// Maximum of idle connections to the site, and their idle timeout.
const MAX_IDLE_CONNECTIONS: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// URL of the protected site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginServer {
    scheme: Scheme,
    authority: Authority,
}

impl OriginServer {
    /// Reads `http://host:port` or `https://host`.
    pub fn parse(text: &str) -> Result<OriginServer, String> {
        let wrong = || format!("{text:?} is not an origin like http://127.0.0.1:3000");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        let scheme = uri.scheme().filter(|s| **s == Scheme::HTTP || **s == Scheme::HTTPS);
        match (scheme, uri.authority()) {
            (Some(_), Some(_)) if !bare => Err(format!(
                "{text:?} has a path; an origin is only scheme, host and port, and visitors' paths \
                 are kept as they are"
            )),
            (Some(scheme), Some(authority)) if !authority.as_str().contains('@') => {
                Ok(OriginServer { scheme: scheme.clone(), authority: authority.clone() })
            }
            _ => Err(wrong()),
        }
    }

    /// Returns true if it is reached over TLS.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns the site's own `Host`.
    pub(super) fn host(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.authority.as_str()).ok()
    }

    /// Returns the URL of a path of the site.
    pub(super) fn uri(&self, path: Option<PathAndQuery>) -> Option<Uri> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path.unwrap_or(PathAndQuery::from_static("/")))
            .build()
            .ok()
    }

    /// Returns the path of a URL, if it is the site's own.
    pub(super) fn path_of<'a>(&self, address: &'a str) -> Option<&'a str> {
        let rest = address.strip_prefix(self.scheme.as_str())?.strip_prefix("://")?;
        let rest = rest.strip_prefix(self.authority.as_str())?;
        match rest.as_bytes().first() {
            None => Some("/"),
            // Two slashes would be another site.
            Some(b'/') if !rest.starts_with("//") => Some(rest),
            _ => None,
        }
    }
}

impl fmt::Display for OriginServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

/// Connection pool to the site.
pub(super) type Pool = Client<HttpsConnector<HttpConnector>, Body>;

/// Creates the pool of a site. The certificate of a site over https is verified with the certificate
/// authorities in the file `ca`, or must be one of them; without a file with the system's.
pub(super) fn pool(ca: Option<&Path>, connect_timeout: Duration) -> Result<Pool, TlsError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    connector.enforce_http(false);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls::client(ca)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_and_host() {
        for good in [
            "http://127.0.0.1:3000",
            "http://shop/",
            "http://[::1]:80",
            "https://shop.example",
            "https://shop.example:8443/",
        ] {
            let origin = OriginServer::parse(good).unwrap();
            assert_eq!(origin.to_string(), good.trim_end_matches('/'));
        }
        for bad in ["", "127.0.0.1:3000", "http://", "http://a/b", "http://u:p@a", "ftp://a"] {
            assert!(OriginServer::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_of_the_site_itself_is_known() {
        let origin = OriginServer::parse("http://10.0.0.7:3000").unwrap();
        let check = |address: &str, expect: Option<&str>| {
            assert_eq!(origin.path_of(address), expect, "{address}");
        };
        check("http://10.0.0.7:3000/login?next=/", Some("/login?next=/"));
        check("http://10.0.0.7:3000", Some("/"));
        check("http://10.0.0.7:3000//evil.example", None);
        check("http://10.0.0.7:30001/", None);
        check("https://10.0.0.7:3000/", None);
        check("/login", None);
    }
}
