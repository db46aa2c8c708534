//! Sources of lists: files, and URLs behind the [`Fetch`](crate::Fetch) trait.
//!
//! A host is resolved by the bootstrap servers, because the system's resolver may be this program. An
//! address of a private network is refused unless it is allowed: a list's URL must not become a way to
//! read what only this machine can reach.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

use super::{Inner, rule::LINE_MAX_BYTES};
use crate::{
    policy::ListSource,
    remote::{FetchReply, FetchRequest, RemoteError, Validators},
    upstream::Bootstrap,
};

/// Longest list.
const LIST_MAX_BYTES: usize = 128 << 20;

/// Redirects that are followed.
const REDIRECTS_MAX: usize = 3;

/// Time until the header of a reply is there.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for the whole list.
const LIST_TIMEOUT: Duration = Duration::from_secs(300);

/// Reads the text of a source, into a file if one is given; none if it has nothing new.
pub(super) async fn fetch(
    lists: &Inner,
    source: &ListSource,
    allow_private: bool,
    bootstrap: &Bootstrap,
    validators: Validators,
    into: Option<&Path>,
) -> Result<Option<(Vec<u8>, Validators)>, String> {
    if let Some(name) = source.url.strip_prefix("file:") {
        let folder = lists.folder.as_ref().ok_or("there is no folder of lists")?;
        let path = folder.file_path(name);
        let too_long = format!("the file has more than {LIST_MAX_BYTES} bytes");
        let length = tokio::fs::metadata(&path).await.map(|meta| meta.len());
        let length = length.map_err(|error| format!("{}: {error}", path.display()))?;
        if length > LIST_MAX_BYTES as u64 {
            return Err(too_long);
        }
        let text = match into {
            Some(into) => tokio::fs::copy(&path, into).await.map(|_| Vec::new()),
            None => tokio::fs::read(&path).await,
        };
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(Some((text, Validators::default())));
    }
    let download = download(lists, source, allow_private, bootstrap, validators, into);
    let done = tokio::time::timeout(LIST_TIMEOUT, download).await;
    done.unwrap_or_else(|_| Err("the list did not come within 5 minutes".to_owned()))
}

async fn download(
    lists: &Inner,
    source: &ListSource,
    allow_private: bool,
    bootstrap: &Bootstrap,
    mut validators: Validators,
    into: Option<&Path>,
) -> Result<Option<(Vec<u8>, Validators)>, String> {
    let fetch = lists.fetch.as_ref().ok_or("this program cannot fetch lists")?;
    let mut url = source.url.clone();
    for _ in 0..=REDIRECTS_MAX {
        let (host, port) = host_and_port(&url).ok_or_else(|| format!("{url:?} is not a URL"))?;
        let found = bootstrap.resolve(&host).await;
        let found = found.map_err(|error| format!("{host} cannot be resolved: {error}"))?;
        let (usable, private): (Vec<IpAddr>, Vec<IpAddr>) =
            found.into_iter().partition(|address| allow_private || !is_private(*address));
        if usable.is_empty() {
            let shown = private.first().map(IpAddr::to_string).unwrap_or_default();
            return Err(format!(
                "{host} is on a private network ({shown}); allow that with list_refresh.allow_private"
            ));
        }
        let request = FetchRequest {
            url: url.clone(),
            addresses: usable.into_iter().map(|address| SocketAddr::new(address, port)).collect(),
            validators: std::mem::take(&mut validators),
            timeout: HEADER_TIMEOUT,
        };
        let sent = request.validators.clone();
        match fetch.fetch(request).await.map_err(|error| error.to_string())? {
            FetchReply::NotModified => return Ok(None),
            FetchReply::Redirect { location } => {
                url = join(&url, &location)
                    .ok_or_else(|| format!("redirected to {location:?}, which is not followed"))?;
                validators = sent;
            }
            FetchReply::Body { validators, mut body } => {
                let text = receive(&mut body, into).await?;
                return Ok(Some((text, validators)));
            }
        }
    }
    Err(format!("more than {REDIRECTS_MAX} redirects"))
}

/// Receives a list into a file, or into memory without one.
async fn receive(
    body: &mut (impl Stream<Item = Result<Bytes, RemoteError>> + Unpin),
    into: Option<&Path>,
) -> Result<Vec<u8>, String> {
    let not_written = |error: std::io::Error| format!("cannot be written to disk: {error}");
    let mut file = into.map(std::fs::File::create).transpose().map_err(not_written)?;
    let (mut text, mut length) = (Vec::new(), 0);
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| error.to_string())?;
        length += chunk.len();
        if length > LIST_MAX_BYTES {
            return Err(format!("the list has more than {LIST_MAX_BYTES} bytes"));
        }
        // Of a file only the beginning, which shows whether it is a list.
        let kept = match &mut file {
            Some(file) => {
                file.write_all(&chunk).map_err(not_written)?;
                LINE_MAX_BYTES.saturating_sub(text.len()).min(chunk.len())
            }
            None => chunk.len(),
        };
        text.extend_from_slice(chunk.get(..kept).unwrap_or_default());
    }
    if looks_like_page(&text) {
        return Err("the source is a web page, not a list".to_owned());
    }
    Ok(text)
}

/// Returns true for an HTML page, such as a login or an error with status 200.
fn looks_like_page(text: &[u8]) -> bool {
    let start = text.get(..LINE_MAX_BYTES.min(text.len())).unwrap_or_default();
    let start = String::from_utf8_lossy(start).to_ascii_lowercase();
    let start = start.trim_start();
    start.starts_with("<!doctype") || start.starts_with("<html")
}

/// Returns the host and the port of a URL.
fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (rest, default) = match url.strip_prefix("https://") {
        Some(rest) => (rest, 443),
        None => (url.strip_prefix("http://")?, 80),
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    if authority.contains('@') {
        return None;
    }
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if rest.is_empty() => default,
            None => return None,
        };
        return Some((host.to_owned(), port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (authority, default),
    };
    (!host.is_empty() && port != 0).then(|| (host.to_ascii_lowercase(), port))
}

/// Returns the URL a redirect leads to; none if it leaves HTTPS or is of another kind.
fn join(url: &str, location: &str) -> Option<String> {
    let scheme_end = url.find("://")? + 3;
    let scheme = url.get(..scheme_end)?;
    let joined = if location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("http://") {
        (scheme == "http://").then(|| location.to_owned())?
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}{rest}")
    } else if location.contains("://") {
        return None;
    } else {
        let authority_end =
            url.get(scheme_end..)?.find(['/', '?', '#']).map_or(url.len(), |at| scheme_end + at);
        let base = url.get(..authority_end)?;
        if location.starts_with('/') {
            format!("{base}{location}")
        } else {
            let path = url.get(authority_end..)?.split(['?', '#']).next()?;
            let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
            format!("{base}{folder}{location}")
        }
    };
    host_and_port(&joined).map(|_| joined)
}

/// Returns true for addresses that are not of the public Internet.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
                || first == 0
                // Shared address space of carriers, RFC 6598; benchmarks, RFC 2544.
                || (first == 100 && second & 0xc0 == 64)
                || (first == 198 && second & 0xfe == 18)
                || first >= 240
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_private(IpAddr::V4(mapped)),
            None => {
                let first = address.segments()[0];
                address.is_loopback()
                    || address.is_unspecified()
                    || address.is_multicast()
                    || first & 0xfe00 == 0xfc00
                    || first & 0xffc0 == 0xfe80
                    || first & 0xffc0 == 0xfec0
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_redirects_are_read() {
        assert_eq!(host_and_port("https://a.example/x"), Some(("a.example".to_owned(), 443)));
        assert_eq!(host_and_port("http://[::1]:81/"), Some(("::1".to_owned(), 81)));
        for url in ["ftp://a", "https://", "https://u@a.example/", "https://a:0/", "https://a:x/"] {
            assert_eq!(host_and_port(url), None, "{url}");
        }
        let base = "https://a.example/lists/x.txt?y";
        for (location, joined) in [
            ("https://b.example/z", Some("https://b.example/z")),
            ("//b.example/z", Some("https://b.example/z")),
            ("/z", Some("https://a.example/z")),
            ("z.txt", Some("https://a.example/lists/z.txt")),
            ("http://b.example/z", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(join(base, location).as_deref(), joined, "{location}");
        }
    }

    #[test]
    fn private_addresses_are_known() {
        for text in [
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "192.168.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "224.0.0.1",
        ] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "100.128.0.1", "2606:4700::1111", "192.0.2.1"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }
}
