//! The credential behind a request that lasts. Streams and long polls end when it does: revoked,
//! logged out, or expired.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::digest;
use super::require::token_of;
use super::session::{SessionQuery, cookie_of};
use crate::app::App;
use crate::error::ApiError;

/// Interval at which a stream checks that its credential is still good. Streams of one credential share
/// what they find.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The hash of what a request was let in with. Take it as a handler argument on guarded routes whose
/// answer takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A token.
    Token(String),
    /// A dashboard session.
    Session(String),
}

impl Credential {
    /// The credential among the headers, if there is one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Credential> {
        match token_of(headers) {
            Some(token) => Some(Credential::Token(digest(token))),
            None => cookie_of(headers).map(|cookie| Credential::Session(digest(cookie))),
        }
    }

    /// Waits until the credential is no longer good.
    pub async fn ended(self, app: App) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (auth, store) = (app.auth(), app.store());
            let found = match &self {
                Credential::Token(hash) => auth.by_token_hash(store, hash).await,
                Credential::Session(hash) => {
                    let settings = &app.settings();
                    auth.session_of(store, SessionQuery { hash, settings, touch: false }).await
                }
            };
            // An error means that nobody could say for longer than credentials are trusted.
            if !matches!(found, Ok(Some(_))) {
                return;
            }
        }
    }

    /// The answer of a long poll whose credential ended.
    pub fn refusal() -> ApiError {
        ApiError::unauthorized("this credential was revoked or has expired")
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Credential {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Credential, ApiError> {
        parts
            .extensions
            .get::<Credential>()
            .cloned()
            .ok_or_else(|| ApiError::unauthorized("this route needs a credential"))
    }
}
