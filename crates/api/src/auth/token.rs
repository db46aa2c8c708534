//! Tokens: random words that stand for a role. Shown once when made; the store keeps their hash.

use std::fmt;

use serde::{Deserialize, Serialize};
use store::redis::AsyncCommands;
use store::{Millis, Store};
use utoipa::ToSchema;

use super::{Auth, FRESH, Principal, Role, STALE, digest, local_admin, random_hex};
use crate::error::ApiError;
use crate::keys;

/// Most tokens an installation keeps.
const MOST_TOKENS: usize = 1000;
/// Longest accepted credential; longer ones are not hashed.
const LONGEST: usize = 256;

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
    /// What it is for, in the words of who made it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What a worker's token is narrowed to; empty means no narrowing.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_ms: i64,
    /// Who made it.
    pub created_by: String,
}

/// What is needed to make a token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// What it is for: 1 to 64 characters, no control characters.
    #[schema(min_length = 1, max_length = 64, example = "mail worker")]
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What a worker's token is narrowed to, such as `jobs:queue=mail`; at most 16.
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
    fn check(&self) -> Result<(), ApiError> {
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
        Ok(())
    }
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
        if self.is_admin(hash) {
            return Ok(Some(local_admin()));
        }
        if let Some(principal) = self.remembered(hash, FRESH) {
            return Ok(Some(principal));
        }
        let found: Result<Option<String>, _> = store.clone().hget(keys::tokens(), hash).await;
        match found.map_err(store::Error::from) {
            Ok(Some(record)) => {
                let token: Token =
                    serde_json::from_str(&record).map_err(|error| ApiError::internal(&error))?;
                let principal = token.principal();
                self.remember(hash, &principal);
                Ok(Some(principal))
            }
            Ok(None) => {
                self.forget(hash);
                Ok(None)
            }
            Err(error) => match self.remembered(hash, STALE) {
                Some(principal) => Ok(Some(principal)),
                None => Err(error.into()),
            },
        }
    }

    /// Makes a token and returns it with its secret, which is shown this once.
    pub async fn create_token(
        &self,
        store: &Store,
        new: NewToken,
        by: &str,
    ) -> Result<(Token, Secret), ApiError> {
        new.check()?;
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

    /// Lets other instances on the same store accept this installation's admin token.
    pub async fn share_admin_token(
        &self,
        store: &Store,
        secret: &Secret,
        instance: &str,
    ) -> Result<(), ApiError> {
        let new = NewToken {
            name: format!("admin token of {instance}"),
            role: Role::Admin,
            scopes: Vec::new(),
        };
        let token = record(secret, &new, store.now(), "first start");
        let json = serde_json::to_string(&token).map_err(|error| ApiError::internal(&error))?;
        let _: bool = store
            .clone()
            .hset_nx(keys::tokens(), digest(secret.reveal()), json)
            .await
            .map_err(store::Error::from)?;
        Ok(())
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
                let _: i64 =
                    store.clone().hdel(keys::tokens(), hash).await.map_err(store::Error::from)?;
                self.forget_all();
                return Ok(Some(token));
            }
        }
        Ok(None)
    }
}

fn record(secret: &Secret, new: &NewToken, now: Millis, by: &str) -> Token {
    Token {
        id: digest(secret.reveal()).chars().take(12).collect(),
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
