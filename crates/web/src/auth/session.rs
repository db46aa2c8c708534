//! Dashboard sessions: a random cookie whose hash names a record in the store, so that every
//! instance knows it. A session ends when its token is revoked, when it idles, or when it is old.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use store::Store;
use store::redis::AsyncCommands;

use super::{Auth, FRESH, Principal, STALE, digest, random_hex};
use crate::cookies;
use crate::error::ApiError;
use crate::keys;
use crate::settings::Settings;

/// Cookie name on plain HTTP. Behind TLS the name gets the `__Host-` prefix, so that no other host
/// of the domain can set it.
const COOKIE: &str = "tidegate_session";
const SECURE_COOKIE: &str = "__Host-tidegate_session";
/// A session's last use is written back at most this often.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// A session as the store keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DashboardSession {
    token_hash: String,
    created_ms: i64,
    seen_ms: i64,
}

/// Asks for a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionQuery<'a> {
    /// The hash of its cookie.
    pub(super) hash: &'a str,
    pub(super) settings: &'a Settings,
    /// True if asking counts as a use of it: an open stream must not keep a session alive that nobody
    /// uses.
    pub(super) touch: bool,
}

impl Auth {
    /// Opens a session for the holder of a token; returns the secret value of its cookie.
    pub async fn open_session(
        &self,
        store: &Store,
        token: &str,
        settings: &Settings,
    ) -> Result<String, ApiError> {
        let cookie = random_hex::<24>()?;
        write_session(store, &digest(&cookie), digest(token), settings).await?;
        Ok(cookie)
    }

    /// Whose session this is, or `None` when it is unknown, ended, or its token is revoked.
    pub async fn by_session(
        &self,
        store: &Store,
        cookie: &str,
        settings: &Settings,
    ) -> Result<Option<Principal>, ApiError> {
        if cookie.len() > 128 {
            return Ok(None);
        }
        let hash = digest(cookie);
        self.session_of(store, SessionQuery { hash: &hash, settings, touch: true }).await
    }

    /// Whose session this is.
    pub(super) async fn session_of(
        &self,
        store: &Store,
        query: SessionQuery<'_>,
    ) -> Result<Option<Principal>, ApiError> {
        let hash = query.hash;
        if let Some(principal) = self.remembered(hash, FRESH) {
            return Ok(Some(principal));
        }
        match self.ask(store, query).await {
            Ok(Some(principal)) => {
                self.remember(hash, &principal);
                Ok(Some(principal))
            }
            Ok(None) => {
                self.forget(hash);
                Ok(None)
            }
            Err(error) => match self.remembered(hash, STALE) {
                Some(principal) => Ok(Some(principal)),
                None => Err(error),
            },
        }
    }

    async fn ask(
        &self,
        store: &Store,
        SessionQuery { hash, settings, touch }: SessionQuery<'_>,
    ) -> Result<Option<Principal>, ApiError> {
        let json: Option<String> =
            store.clone().get(keys::session(hash)).await.map_err(store::Error::from)?;
        let Some(mut session) =
            json.and_then(|json| serde_json::from_str::<DashboardSession>(&json).ok())
        else {
            return Ok(None);
        };
        let now = store.now().0;
        let idle = elapsed(now, session.seen_ms);
        if idle > settings.session_idle || elapsed(now, session.created_ms) > settings.session_max {
            return Ok(None);
        }
        let principal = self.by_token_hash(store, &session.token_hash).await?;
        if touch && principal.is_some() && idle > TOUCH_EVERY {
            session.seen_ms = now;
            write(store, hash, &session, settings).await?;
        }
        Ok(principal)
    }

    /// Ends a session. Ending one that is gone is fine.
    pub async fn close_session(&self, store: &Store, cookie: &str) -> Result<(), ApiError> {
        let hash = digest(cookie);
        self.forget(&hash);
        let _: i64 = store.clone().del(keys::session(&hash)).await.map_err(store::Error::from)?;
        Ok(())
    }
}

/// Writes a session that begins now, by the hashes of its cookie and of its token.
pub(super) async fn write_session(
    store: &Store,
    hash: &str,
    token_hash: String,
    settings: &Settings,
) -> Result<(), ApiError> {
    let now = store.now().0;
    let session = DashboardSession { token_hash, created_ms: now, seen_ms: now };
    write(store, hash, &session, settings).await
}

fn elapsed(now_ms: i64, since_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0))
}

async fn write(
    store: &Store,
    hash: &str,
    session: &DashboardSession,
    settings: &Settings,
) -> Result<(), ApiError> {
    let json = serde_json::to_string(session).map_err(|error| ApiError::internal(&error))?;
    // The deadline is in the record; the TTL only sweeps up.
    let seconds = settings.session_idle.as_secs().max(1);
    let _: () = store
        .clone()
        .set_ex(keys::session(hash), json, seconds)
        .await
        .map_err(store::Error::from)?;
    Ok(())
}

/// The session cookie among the request's cookies.
pub(crate) fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    cookies::value_of(headers, SECURE_COOKIE).or_else(|| cookies::value_of(headers, COOKIE))
}

/// The header that sets the cookie.
pub(crate) fn set_cookie(value: &str, secure: bool, life: Duration) -> HeaderValue {
    let name = if secure { SECURE_COOKIE } else { COOKIE };
    let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
    // The value is our own hex, so this cannot fail; an empty header is the safe answer if it did.
    cookies::set(name, value, seconds, secure).unwrap_or_else(|| HeaderValue::from_static(""))
}

/// The header that removes the cookie.
pub(crate) fn clear_cookie(secure: bool) -> HeaderValue {
    set_cookie("", secure, Duration::ZERO)
}
