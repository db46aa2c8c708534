//! Tokens: random words that stand for a role. Shown once when made; the store keeps their hash.

use std::fmt;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use store::redis::AsyncCommands;
use store::{Millis, Store};
use utoipa::ToSchema;

use super::{AdminToken, Auth, FRESH, Principal, Role, STALE, digest, random_hex};
use crate::error::ApiError;
use crate::keys;
use crate::service::Services;

/// Most tokens an installation keeps.
const MOST_TOKENS: usize = 1000;
/// Longest accepted credential; longer ones are not hashed.
const LONGEST: usize = 256;
/// `created_by` of the admin token of an installation.
const FIRST_START: &str = "first start";

/// A secret that never shows in debug output or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// A new token of 192 random bits for a role.
    pub fn generate(role: Role) -> Result<Secret, ApiError> {
        Ok(Secret(format!("tg_{role}_{}", random_hex::<24>()?)))
    }

    /// The secret itself. Use it only where it must be shown or compared.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A token as the store keeps it and the API shows it: everything but the secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Short id, the start of the secret's hash.
    pub id: String,
    /// Its name, chosen by the person who made it.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The scopes a worker's token is narrowed to; empty means no narrowing.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Time at which it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Name of the token it was made with.
    pub created_by: String,
}

/// A request for a new token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "mail worker", "role": "worker", "scopes": ["jobs:type=mail"] }))]
pub struct NewToken {
    /// Its name: 1 to 64 characters, no control characters.
    #[schema(min_length = 1, max_length = 64, example = "mail worker")]
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The scopes a worker's token is narrowed to, such as `jobs:type=mail`, `jobs:namespace=shop` or
    /// `limits`; at most 16. Others are refused.
    #[serde(default)]
    #[schema(max_items = 16)]
    pub scopes: Vec<String>,
}

impl Token {
    fn principal(&self) -> Principal {
        Principal {
            token_id: self.id.clone(),
            name: self.name.clone(),
            role: self.role,
            scopes: self.scopes.clone(),
        }
    }
}

impl NewToken {
    fn check(&self, services: Services) -> Result<(), ApiError> {
        let plain = |text: &str, most: usize| {
            !text.trim().is_empty()
                && text.chars().count() <= most
                && !text.chars().any(char::is_control)
        };
        if !plain(&self.name, 64) {
            return Err(ApiError::invalid_field("name", "a name has 1 to 64 printable characters"));
        }
        if self.scopes.len() > 16 || !self.scopes.iter().all(|scope| plain(scope, 128)) {
            return Err(ApiError::invalid_field(
                "scopes",
                "at most 16 scopes of 1 to 128 printable characters",
            ));
        }
        if self.role != Role::Worker && !self.scopes.is_empty() {
            return Err(ApiError::invalid_field("scopes", "only a worker's token has scopes"));
        }
        for scope in &self.scopes {
            check_scope(scope, services)
                .map_err(|message| ApiError::invalid_field("scopes", message))?;
        }
        Ok(())
    }
}

/// Checks a scope with the service it is about.
fn check_scope(scope: &str, services: Services) -> Result<(), String> {
    services.iter().find_map(|service| service.check_scope(scope)).unwrap_or_else(|| {
        let known: Vec<&str> =
            services.iter().flat_map(|service| service.scopes().iter().copied()).collect();
        Err(format!("unknown scope {scope:?}; use {}", known.join(" or ")))
    })
}

impl Auth {
    /// Whose token this is, or `None`.
    pub async fn by_token(
        &self,
        store: &Store,
        token: &str,
    ) -> Result<Option<Principal>, ApiError> {
        if token.len() > LONGEST {
            return Ok(None);
        }
        let hash = digest(token);
        self.by_token_hash(store, &hash).await
    }

    pub(super) async fn by_token_hash(
        &self,
        store: &Store,
        hash: &str,
    ) -> Result<Option<Principal>, ApiError> {
        if let Some(principal) = self.remembered(hash, FRESH) {
            return Ok(Some(principal));
        }
        let admin = self.admin_of(hash);
        match self.look_up(store, hash, admin.is_some()).await {
            Ok(Some(token)) => {
                let principal = token.principal();
                self.remember(hash, &principal);
                Ok(Some(principal))
            }
            Ok(None) => {
                self.forget(hash);
                if let Some(admin) = admin {
                    admin.revoked.store(true, Ordering::Relaxed);
                }
                Ok(None)
            }
            Err(error) => match (self.remembered(hash, STALE), admin) {
                (Some(principal), _) => Ok(Some(principal)),
                // The owner of the data folder must get in during an outage.
                (None, Some(admin)) if !admin.revoked.load(Ordering::Relaxed) => {
                    Ok(Some(self.admin_record(hash, store.now()).principal()))
                }
                (None, _) => Err(error),
            },
        }
    }

    /// The record of a token. The admin token of this installation is added if it is missing, as at
    /// the first start or after the store was emptied, but never once it was revoked.
    async fn look_up(
        &self,
        store: &Store,
        hash: &str,
        is_admin: bool,
    ) -> Result<Option<Token>, ApiError> {
        let mut data = store.clone();
        let found: Option<String> =
            data.hget(keys::tokens(), hash).await.map_err(store::Error::from)?;
        if let Some(record) = found {
            return serde_json::from_str(&record)
                .map(Some)
                .map_err(|error| ApiError::internal(&error));
        }
        if !is_admin || is_revoked(store, hash).await? {
            return Ok(None);
        }
        let token = self.admin_record(hash, store.now());
        let json = serde_json::to_string(&token).map_err(|error| ApiError::internal(&error))?;
        let _: bool = data.hset_nx(keys::tokens(), hash, json).await.map_err(store::Error::from)?;
        // Revoked on another instance between the two? Then what was added goes again.
        if is_revoked(store, hash).await? {
            let _: i64 = data.hdel(keys::tokens(), hash).await.map_err(store::Error::from)?;
            return Ok(None);
        }
        Ok(Some(token))
    }

    fn admin_record(&self, hash: &str, now: Millis) -> Token {
        Token {
            id: short_id(hash),
            name: format!("admin token of {}", self.instance),
            role: Role::Admin,
            scopes: Vec::new(),
            created_ms: now.0,
            created_by: FIRST_START.to_owned(),
        }
    }

    /// Makes a token and returns it with its secret, which is shown this once.
    pub async fn create_token(
        &self,
        store: &Store,
        new: NewToken,
        by: &str,
    ) -> Result<(Token, Secret), ApiError> {
        new.check(self.services)?;
        let mut data = store.clone();
        let count: usize = data.hlen(keys::tokens()).await.map_err(store::Error::from)?;
        if count >= MOST_TOKENS {
            return Err(ApiError::conflict(
                "TOO_MANY_TOKENS",
                format!("there are {MOST_TOKENS} tokens already; revoke some first"),
            ));
        }
        let secret = Secret::generate(new.role)?;
        let token = record(&secret, &new, store.now(), by);
        put(store, &secret, &token).await?;
        Ok((token, secret))
    }

    /// Lets other instances on the same store accept this installation's admin token. Says `false`
    /// when it was revoked; then it is not added again.
    pub async fn share_admin_token(&self, store: &Store) -> Result<bool, ApiError> {
        let Some(admin) = self.admin.load_full() else { return Ok(true) };
        let found = self.look_up(store, &admin.hash, true).await?;
        admin.revoked.store(found.is_none(), Ordering::Relaxed);
        Ok(found.is_some())
    }

    /// Puts a new admin token in the place of this installation's: the old one is revoked, the new
    /// one works on every instance. Does nothing when it is the same.
    pub async fn replace_admin_token(
        &self,
        store: &Store,
        secret: &Secret,
    ) -> Result<bool, ApiError> {
        let new = AdminToken::of(secret);
        let old = self.admin.load_full();
        if old.as_ref().is_some_and(|old| old.hash == new.hash) {
            return Ok(false);
        }
        let hash = new.hash.clone();
        self.admin.store(Some(new.into()));
        if let Some(old) = old {
            self.revoke_hash(store, &old.hash, true).await?;
        }
        self.look_up(store, &hash, true).await?;
        Ok(true)
    }

    /// All tokens, newest first. There are at most a thousand.
    pub async fn tokens(&self, store: &Store) -> Result<Vec<Token>, ApiError> {
        let records: Vec<String> =
            store.clone().hvals(keys::tokens()).await.map_err(store::Error::from)?;
        let mut tokens: Vec<Token> =
            records.iter().filter_map(|record| serde_json::from_str(record).ok()).collect();
        tokens.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then_with(|| a.id.cmp(&b.id)));
        Ok(tokens)
    }

    /// Revokes a token by its short id; its sessions end with it. `None` when there is none.
    pub async fn revoke_token(&self, store: &Store, id: &str) -> Result<Option<Token>, ApiError> {
        let all: Vec<(String, String)> =
            store.clone().hgetall(keys::tokens()).await.map_err(store::Error::from)?;
        for (hash, json) in all {
            let Ok(token) = serde_json::from_str::<Token>(&json) else { continue };
            if token.id == id {
                self.revoke_hash(store, &hash, token.created_by == FIRST_START).await?;
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// Revokes a token. One that an installation would add again by itself is marked first, so that
    /// no instance does.
    async fn revoke_hash(&self, store: &Store, hash: &str, mark: bool) -> Result<(), ApiError> {
        let mut data = store.clone();
        if mark {
            let _: i64 = data
                .hset(keys::revoked(), hash, store.now().0)
                .await
                .map_err(store::Error::from)?;
        }
        let _: i64 = data.hdel(keys::tokens(), hash).await.map_err(store::Error::from)?;
        if let Some(admin) = self.admin_of(hash) {
            admin.revoked.store(true, Ordering::Relaxed);
        }
        self.forget_all();
        Ok(())
    }
}

async fn is_revoked(store: &Store, hash: &str) -> Result<bool, ApiError> {
    Ok(store.clone().hexists(keys::revoked(), hash).await.map_err(store::Error::from)?)
}

/// Returns the short id of a token: the start of its hash.
fn short_id(hash: &str) -> String {
    hash.chars().take(12).collect()
}

fn record(secret: &Secret, new: &NewToken, now: Millis, by: &str) -> Token {
    Token {
        id: short_id(&digest(secret.reveal())),
        name: new.name.trim().to_owned(),
        role: new.role,
        scopes: new.scopes.clone(),
        created_ms: now.0,
        created_by: by.to_owned(),
    }
}

async fn put(store: &Store, secret: &Secret, token: &Token) -> Result<(), ApiError> {
    let json = serde_json::to_string(token).map_err(|error| ApiError::internal(&error))?;
    let _: i64 = store
        .clone()
        .hset(keys::tokens(), digest(secret.reveal()), json)
        .await
        .map_err(store::Error::from)?;
    Ok(())
}
