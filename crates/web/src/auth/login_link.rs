//! One-time login links, such as the one `tidegate demo` prints.
//!
//! A link is good once, for ten minutes, and only for a browser on the machine the server runs on. Its
//! code is kept as a hash in the memory of this process: no log, store or other instance ever has it.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::HeaderMap;
use store::Store;

use super::session::write_session;
use super::{Auth, Principal, digest, random_hex};
use crate::client::{Client, Peer, is_forwarding_header};
use crate::error::ApiError;
use crate::settings::Settings;

/// The time for which a link is good.
pub const LINK_LIFE: Duration = Duration::from_secs(600);
/// The most links that are good at the same time; the oldest is dropped.
const MAX_LINKS: usize = 16;
/// The path of links, before the code.
pub(crate) const LINK_PATH: &str = "/login/once";

/// A link that was not used yet.
#[derive(Debug, Clone)]
pub(super) struct LoginLink {
    /// SHA-256 of its code.
    hash: String,
    /// SHA-256 of the token it logs in with.
    token_hash: String,
    /// The address of the listener, if it has one of its own.
    listener: IpAddr,
    until_ms: i64,
}

/// The outcome of using a link.
#[derive(Debug)]
pub(crate) enum LinkOutcome {
    /// The session was opened: the secret value of its cookie.
    Opened(String),
    /// The browser is on another machine; the link is still good.
    Elsewhere,
    /// The link was used, has expired, or never existed.
    Spent,
}

impl Auth {
    /// Makes a link that logs the holder of `token` in once; returns its path. `listener` is the address
    /// the server listens on: besides loopback, requests from it are from this machine.
    pub fn make_login_link(
        &self,
        store: &Store,
        token: &str,
        listener: IpAddr,
    ) -> Result<String, ApiError> {
        let code = random_hex::<24>()?;
        let now = store.now().0;
        let life = i64::try_from(LINK_LIFE.as_millis()).unwrap_or(0);
        let link = LoginLink {
            hash: digest(&code),
            token_hash: digest(token),
            listener,
            until_ms: now.saturating_add(life),
        };
        let mut links = self.links.lock();
        links.retain(|link| link.until_ms > now);
        if links.len() >= MAX_LINKS {
            links.remove(0);
        }
        links.push(link);
        Ok(format!("{LINK_PATH}/{code}"))
    }

    /// The one a link logs in, without using it up; `None` when the link is not good.
    pub(crate) async fn login_link_holder(
        &self,
        store: &Store,
        code: &str,
    ) -> Result<Option<Principal>, ApiError> {
        let Some(link) = self.find_link(store, code) else { return Ok(None) };
        self.by_token_hash(store, &link.token_hash).await
    }

    /// Uses a link up and opens the session it stands for.
    pub(crate) async fn use_login_link(
        &self,
        store: &Store,
        code: &str,
        is_local: impl Fn(IpAddr) -> bool,
        settings: &Settings,
    ) -> Result<LinkOutcome, ApiError> {
        let Some(link) = self.find_link(store, code) else { return Ok(LinkOutcome::Spent) };
        if !is_local(link.listener) {
            return Ok(LinkOutcome::Elsewhere);
        }
        // Of two requests at the same time one takes it out of the list.
        let taken = {
            let mut links = self.links.lock();
            let before = links.len();
            links.retain(|other| other.hash != link.hash);
            links.len() < before
        };
        if !taken {
            return Ok(LinkOutcome::Spent);
        }
        let cookie = random_hex::<24>()?;
        write_session(store, &digest(&cookie), link.token_hash, settings).await?;
        Ok(LinkOutcome::Opened(cookie))
    }

    fn find_link(&self, store: &Store, code: &str) -> Option<LoginLink> {
        if code.len() > 128 {
            return None;
        }
        let (hash, now) = (digest(code), store.now().0);
        let links = self.links.lock();
        links.iter().find(|link| link.hash == hash && link.until_ms > now).cloned()
    }
}

/// Tells whether a request comes straight from this machine: from loopback or from the listener's own
/// address, and through no proxy.
pub(crate) fn is_from_here(
    peer: Peer,
    client: Client,
    headers: &HeaderMap,
    listener: IpAddr,
) -> bool {
    let is_here = |ip: IpAddr| {
        let ip = ip.to_canonical();
        ip.is_loopback() || (!listener.is_unspecified() && ip == listener.to_canonical())
    };
    is_here(peer.addr.ip()) && is_here(client.ip) && !headers.keys().any(is_forwarding_header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_from_this_machine_and_through_no_proxy_count() {
        let check = |peer: &str, listener: &str, header: Option<&'static str>| {
            let ip: IpAddr = peer.parse().unwrap();
            let peer = Peer { addr: (ip, 1).into(), tls: false };
            let mut headers = HeaderMap::new();
            if let Some(name) = header {
                headers.insert(name, "127.0.0.1".parse().unwrap());
            }
            let client = Client { ip, secure: false };
            is_from_here(peer, client, &headers, listener.parse().unwrap())
        };
        assert!(check("127.0.0.1", "127.0.0.1", None));
        assert!(check("::ffff:127.0.0.1", "0.0.0.0", None));
        assert!(check("192.0.2.7", "192.0.2.7", None));
        assert!(!check("192.0.2.8", "192.0.2.7", None));
        assert!(!check("192.0.2.8", "0.0.0.0", None));
        assert!(!check("127.0.0.1", "127.0.0.1", Some("x-forwarded-for")));
        assert!(!check("127.0.0.1", "127.0.0.1", Some("forwarded")));
    }
}
