//! Who is asking. A credential is a bearer token or a dashboard session; both are random, and only
//! their SHA-256 is kept (they carry 192 bits, so a slow hash would add nothing but a lever for
//! overload). The admin token of this installation works even while the store is away.
//!
//! Read [`Auth`], then `token.rs` (tokens), `session.rs` (cookies), `guard.rs` (what stands in
//! front of every guarded route).

pub mod guard;
pub(crate) mod session;
mod token;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::settings::Settings;

pub use self::session::Session;
pub use self::token::{NewToken, Secret, Token};

/// What a credential may do. Each role may do what the ones before it may, except that a worker
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
    /// What it may do.
    pub role: Role,
    /// What a worker's token is narrowed to, such as `jobs:queue=mail`; empty means no narrowing.
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

/// Checks credentials. Remembers good ones for a few seconds, so that the store is asked once per
/// burst, and for longer while the store is away, so that operators are not locked out by an outage.
#[derive(Debug)]
pub struct Auth {
    /// SHA-256 of this installation's admin token, when it has one.
    admin: Option<String>,
    seen: Mutex<HashMap<String, Seen>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Debug, Clone)]
struct Seen {
    principal: Principal,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    locked: bool,
    until: Instant,
}

/// Good credentials are asked about again after this long: a revoked token works no longer than this.
const FRESH: Duration = Duration::from_secs(1);
/// While the store is away, a credential that was good this long ago still counts.
const STALE: Duration = Duration::from_secs(600);
/// Bound of both memories; when full they start over.
const REMEMBERED: usize = 4096;

impl Auth {
    /// Checks against the given admin token and the tokens in the store.
    pub fn new(admin_token: Option<&Secret>) -> Auth {
        Auth {
            admin: admin_token.map(|token| digest(token.reveal())),
            seen: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    fn is_admin(&self, hash: &str) -> bool {
        use subtle::ConstantTimeEq;
        self.admin.as_ref().is_some_and(|admin| admin.as_bytes().ct_eq(hash.as_bytes()).into())
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
        seen.insert(hash.to_owned(), Seen { principal: principal.clone(), at: Instant::now() });
    }

    fn forget(&self, hash: &str) {
        self.seen.lock().remove(hash);
    }

    /// How long this address has to wait before it may try to log in, if it has to.
    pub(crate) fn locked(&self, address: IpAddr) -> Option<Duration> {
        let failures = self.failures.lock();
        let found = failures.get(&address)?;
        (found.locked && found.until > Instant::now()).then(|| found.until - Instant::now())
    }

    /// Counts a failed login; the last of the allowed tries locks the address.
    pub(crate) fn failed(&self, address: IpAddr, settings: &Settings) {
        let mut failures = self.failures.lock();
        if failures.len() >= REMEMBERED {
            failures.retain(|_, entry| entry.until > Instant::now());
        }
        if failures.len() >= REMEMBERED {
            failures.clear();
        }
        let until = Instant::now() + settings.login_lock;
        let entry = failures.entry(address).or_insert(Failures { count: 0, locked: false, until });
        if entry.until <= Instant::now() {
            *entry = Failures { count: 0, locked: false, until };
        }
        entry.count += 1;
        entry.until = until;
        entry.locked = entry.count >= settings.login_tries;
    }

    /// A good login forgives the failed ones.
    pub(crate) fn succeeded(&self, address: IpAddr) {
        self.failures.lock().remove(&address);
    }

    /// Forgets all, so that a revocation on this instance counts at once.
    fn forget_all(&self) {
        self.seen.lock().clear();
    }
}

/// The admin of this installation, whose token lies in the data folder.
fn local_admin() -> Principal {
    Principal {
        token_id: "local".to_owned(),
        name: "admin token".to_owned(),
        role: Role::Admin,
        scopes: Vec::new(),
    }
}

/// SHA-256 in hex.
pub(crate) fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// Random bytes in hex, from the operating system.
pub(crate) fn random_hex<const N: usize>() -> Result<String, ApiError> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(&error))?;
    Ok(hex(&bytes))
}
