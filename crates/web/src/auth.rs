//! Authentication. A credential is a bearer token or a dashboard session; both are random, and only
//! their SHA-256 is kept (they carry 192 bits, so a slow hash would add nothing but a lever for
//! overload). The admin token of this installation is a token like any other, with one difference:
//! it works while the store is away, unless this instance has seen it revoked.
//!
//! Read [`Auth`], then `token.rs` (tokens), `session.rs` (cookies), `require.rs` (what stands in
//! front of every guarded route), `credential.rs` (ends streams with their credential),
//! `lockout.rs` (failed logins), `login_link.rs` (links that log in once), `refusals.rs` (bounds the audit lines about refused callers).

pub mod credential;
mod lockout;
pub mod login_link;
pub(crate) mod refusals;
pub mod require;
pub(crate) mod session;
mod token;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::service::Services;

pub use self::session::DashboardSession;
pub use self::token::{NewToken, Secret, Token};

/// The permissions of a credential. Each role may do what the ones before it may, except that a worker
/// sees nothing but the work routes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Enqueue, claim and finish work; nothing else.
    Worker,
    /// Look at everything, change nothing.
    Viewer,
    /// Run things day to day: admit, pause, retry, cancel.
    Operator,
    /// Everything, tokens and settings included.
    Admin,
}

impl Role {
    /// All roles, least first.
    pub const ALL: [Role; 4] = [Role::Worker, Role::Viewer, Role::Operator, Role::Admin];

    /// The word used in JSON, in the CLI and on pages.
    pub fn word(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        Role::ALL
            .into_iter()
            .find(|role| role.word() == text)
            .ok_or_else(|| format!("no role {text:?}: use worker, viewer, operator or admin"))
    }
}

/// The one who asks, known and checked. Take it as a handler argument on guarded routes.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, ToSchema)]
pub struct Principal {
    /// Short id of the token behind the credential.
    pub token_id: String,
    /// The token's name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The scopes a worker's token is narrowed to, such as `jobs:type=mail`; empty means no narrowing.
    pub scopes: Vec<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Principal, ApiError> {
        parts
            .extensions
            .get::<Principal>()
            .cloned()
            .ok_or_else(|| ApiError::unauthorized("this route needs a credential"))
    }
}

/// Checks credentials. Remembers good ones for a moment, so that the store is asked once per burst,
/// and for longer while the store is away, so that operators are not locked out by an outage.
#[derive(Debug)]
pub struct Auth {
    admin: ArcSwapOption<AdminToken>,
    /// Name of this instance, part of its admin token's name.
    instance: String,
    /// The services whose scopes tokens may have.
    services: Services,
    seen: Mutex<HashMap<String, CachedCredential>>,
    /// Login links that were not used yet.
    links: Mutex<Vec<login_link::LoginLink>>,
    pub(crate) refusals: refusals::Refusals,
}

/// The admin token of this installation, whose secret lies in the data folder.
#[derive(Debug)]
struct AdminToken {
    hash: String,
    /// Set once this instance has seen it revoked; then it does not work during an outage either.
    revoked: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Clone)]
struct CachedCredential {
    principal: Principal,
    at: Instant,
}

/// Good credentials are asked about again after this long. A session is remembered by its cookie and
/// by its token, and streams look every [`credential::LOOK_EVERY`], so a revocation counts everywhere
/// after at most three times this: within a second.
const FRESH: Duration = Duration::from_millis(250);
/// While the store is away, a credential that was good this long ago still counts.
const STALE: Duration = Duration::from_secs(600);
/// Bound of the memory; when full it starts over.
const REMEMBERED: usize = 4096;

impl Auth {
    /// Checks against the given admin token and the tokens in the store.
    pub fn new(admin_token: Option<&Secret>, instance: &str, services: Services) -> Auth {
        Auth {
            services,
            admin: ArcSwapOption::new(admin_token.map(|token| AdminToken::of(token).into())),
            instance: instance.to_owned(),
            seen: Mutex::default(),
            links: Mutex::default(),
            refusals: refusals::Refusals::default(),
        }
    }

    /// The admin token, if this is the hash of it.
    fn admin_of(&self, hash: &str) -> Option<std::sync::Arc<AdminToken>> {
        use subtle::ConstantTimeEq;
        self.admin.load_full().filter(|admin| admin.hash.as_bytes().ct_eq(hash.as_bytes()).into())
    }

    fn remembered(&self, hash: &str, within: Duration) -> Option<Principal> {
        let seen = self.seen.lock();
        seen.get(hash).filter(|seen| seen.at.elapsed() <= within).map(|seen| seen.principal.clone())
    }

    fn remember(&self, hash: &str, principal: &Principal) {
        let mut seen = self.seen.lock();
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert(
            hash.to_owned(),
            CachedCredential { principal: principal.clone(), at: Instant::now() },
        );
    }

    fn forget(&self, hash: &str) {
        self.seen.lock().remove(hash);
    }

    /// Forgets all, so that a revocation on this instance counts at once.
    fn forget_all(&self) {
        self.seen.lock().clear();
    }
}

impl AdminToken {
    fn of(secret: &Secret) -> AdminToken {
        AdminToken { hash: digest(secret.reveal()), revoked: false.into() }
    }
}

/// SHA-256 in hex.
pub(crate) fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// Writes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// Random bytes in hex, from the operating system.
pub fn random_hex<const N: usize>() -> Result<String, ApiError> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(&error))?;
    Ok(hex(&bytes))
}
