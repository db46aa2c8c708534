//! Signing keys of tokens and passes, shared by all instances through the store.
//!
//! One key of each kind signs; older ones go on verifying until nothing they signed can be valid.
//! A key is bound to one algorithm: a token cannot choose another. Private keys are sealed with the
//! operator's secret if there is one, so that reading the store is not enough to sign.

use std::{collections::HashMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    aead, digest, hmac,
    rand::SystemRandom,
    signature::{self, Ed25519KeyPair, KeyPair, RsaKeyPair},
};
use serde_json::{Value, json};
use store::{Millis, Store, redis};

use crate::{Error, Room, address::random, keys::RoomKeys, token::TokenError};

/// Signature algorithm of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519; keys are made by the room.
    EdDsa,
    /// RSA with SHA-256; the operator makes the keys, because `ring` makes none.
    Rs256,
}

impl Algorithm {
    /// Returns the name in a token's header.
    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Rs256 => "RS256",
        }
    }
}

/// Time for which a retired key verifies: the longest a session can last.
const VERIFIES_MS: i64 = 7 * 86_400_000;
/// Interval at which keys are reloaded, and the minimum interval of reloads for unknown key ids.
const RELOAD_MS: i64 = 30_000;
const UNKNOWN_KEY_RELOAD_MS: i64 = 1_000;
/// Maximum number of keys.
const MAX_KEYS: usize = 64;

/// All keys that may verify, and which ones sign.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet {
    read_at: Millis,
    keys: HashMap<String, Arc<SigningKey>>,
    signs_tokens: Option<Arc<SigningKey>>,
    signs_passes: Option<Arc<SigningKey>>,
}

/// One key.
pub(crate) struct SigningKey {
    pub(crate) id: String,
    created: Millis,
    retired: Option<Millis>,
    /// It is stored sealed, or there is no secret to seal it with.
    may_sign: bool,
    material: Material,
}

enum Material {
    Hmac(hmac::Key),
    Ed25519(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Returns the HMAC tag of a message, if this is an HMAC key.
    pub(crate) fn tag(&self, message: &[u8]) -> Option<[u8; 16]> {
        let Material::Hmac(key) = &self.material else { return None };
        let mut tag = [0; 16];
        tag.copy_from_slice(hmac::sign(key, message).as_ref().get(..16)?);
        Some(tag)
    }

    /// Returns the algorithm of passes signed with this key.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        match self.material {
            Material::Hmac(_) => None,
            Material::Ed25519(_) => Some(Algorithm::EdDsa),
            Material::Rsa(_) => Some(Algorithm::Rs256),
        }
    }

    /// Signs a message, if this key signs passes.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        match &self.material {
            Material::Hmac(_) => None,
            Material::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
            Material::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut out)
                    .ok()?;
                Some(out)
            }
        }
    }

    /// Returns true if this is the signature of the message by this key, with this key's algorithm.
    pub(crate) fn verifies(&self, message: &[u8], signed: &[u8]) -> bool {
        let verified = match &self.material {
            Material::Hmac(_) => return false,
            Material::Ed25519(pair) => {
                signature::UnparsedPublicKey::new(&signature::ED25519, pair.public_key())
                    .verify(message, signed)
            }
            Material::Rsa(pair) => signature::UnparsedPublicKey::new(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                pair.public().as_ref(),
            )
            .verify(message, signed),
        };
        verified.is_ok()
    }

    fn jwk(&self) -> Option<Value> {
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        match &self.material {
            Material::Hmac(_) => None,
            Material::Ed25519(pair) => Some(json!({
                "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": self.id,
                "x": url.encode(pair.public_key().as_ref()),
            })),
            Material::Rsa(pair) => {
                let parts = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                Some(json!({
                    "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id,
                    "n": url.encode(parts.n), "e": url.encode(parts.e),
                }))
            }
        }
    }
}

impl KeySet {
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<SigningKey>> {
        self.keys.get(id)
    }

    pub(crate) fn for_tokens(&self) -> Result<&SigningKey, Error> {
        self.signs_tokens.as_deref().ok_or(Error::Token(TokenError::NoKey))
    }

    pub(crate) fn for_passes(&self) -> Result<&SigningKey, Error> {
        self.signs_passes.as_deref().ok_or(Error::Token(TokenError::NoKey))
    }

    fn read(records: HashMap<String, String>, secret: Option<&[u8; 32]>, now: Millis) -> Self {
        let mut set = Self { read_at: now, ..Self::default() };
        for (id, record) in records.into_iter().take(MAX_KEYS) {
            let Some(key) = read_key(&id, &record, secret) else {
                tracing::warn!(key = %id, "a signing key could not be read; is the secret right?");
                continue;
            };
            if key.retired.is_some_and(|at| now.0 - at.0 > VERIFIES_MS) {
                continue;
            }
            let key = Arc::new(key);
            if key.retired.is_none() && key.may_sign {
                let signs = match key.algorithm() {
                    None => &mut set.signs_tokens,
                    Some(_) => &mut set.signs_passes,
                };
                let newer = |old: &Arc<SigningKey>| (key.created, &key.id) > (old.created, &old.id);
                if signs.as_ref().is_none_or(newer) {
                    *signs = Some(Arc::clone(&key));
                }
            }
            set.keys.insert(id, key);
        }
        set
    }
}

fn read_key(id: &str, record: &str, secret: Option<&[u8; 32]>) -> Option<SigningKey> {
    let record: Value = serde_json::from_str(record).ok()?;
    let stored = record.get("key")?.as_str()?;
    let bytes = unseal(stored, id, secret)?;
    let material = material(record.get("kind")?.as_str()?, &bytes)?;
    Some(SigningKey {
        id: id.to_owned(),
        created: Millis(record.get("created_ms")?.as_i64()?),
        retired: record.get("retired_ms").and_then(Value::as_i64).map(Millis),
        // A key from before there was a secret goes on verifying, and signs nothing more.
        may_sign: secret.is_none() || stored.starts_with("sealed."),
        material,
    })
}

fn material(kind: &str, bytes: &[u8]) -> Option<Material> {
    Some(match kind {
        "HMAC" => Material::Hmac(hmac::Key::new(hmac::HMAC_SHA256, bytes)),
        "EdDSA" => Material::Ed25519(Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes).ok()?),
        // PKCS#8, or PKCS#1 as older versions of openssl write it.
        "RS256" => {
            let pair = RsaKeyPair::from_pkcs8(bytes).or_else(|_| RsaKeyPair::from_der(bytes));
            Material::Rsa(Box::new(pair.ok()?))
        }
        _ => return None,
    })
}

/// Encodes a key for storage: plain without a secret, else encrypted and bound to its id.
fn seal(bytes: &[u8], id: &str, secret: Option<&[u8; 32]>) -> Result<String, Error> {
    let Some(secret) = secret else { return Ok(format!("plain.{}", STANDARD.encode(bytes))) };
    let nonce: [u8; 12] = random()?;
    let mut sealed = bytes.to_vec();
    let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, secret).map(aead::LessSafeKey::new);
    key.and_then(|key| {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, aead::Aad::from(id.as_bytes()), &mut sealed)
    })
    .map_err(|_| Error::Token(TokenError::NoKey))?;
    Ok(format!("sealed.{}.{}", STANDARD.encode(nonce), STANDARD.encode(sealed)))
}

fn unseal(text: &str, id: &str, secret: Option<&[u8; 32]>) -> Option<Vec<u8>> {
    let mut parts = text.split('.');
    match parts.next()? {
        "plain" => STANDARD.decode(parts.next()?).ok(),
        "sealed" => {
            let nonce: [u8; 12] = STANDARD.decode(parts.next()?).ok()?.try_into().ok()?;
            let mut sealed = STANDARD.decode(parts.next()?).ok()?;
            let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, secret?).ok()?;
            let nonce = aead::Nonce::assume_unique_for_key(nonce);
            let opened = aead::LessSafeKey::new(key)
                .open_in_place(nonce, aead::Aad::from(id.as_bytes()), &mut sealed)
                .ok()?;
            Some(opened.to_vec())
        }
        _ => None,
    }
}

/// Returns true if this is a signing key sealed with another secret.
fn is_foreign(id: &str, record: &str, secret: Option<&[u8; 32]>) -> bool {
    let Ok(record) = serde_json::from_str::<Value>(record) else { return false };
    let stored = record["key"].as_str().unwrap_or_default();
    let signs = record["retired_ms"].is_null();
    signs && stored.starts_with("sealed.") && unseal(stored, id, secret).is_none()
}

/// Reads the keys, and makes those that are missing. Refuses keys that other instances sealed with
/// another secret: what they sign would be worth nothing here, and the other way round.
pub(crate) async fn open(
    store: &Store,
    keys: &RoomKeys,
    secret: Option<&[u8; 32]>,
) -> Result<KeySet, Error> {
    let records = records(store, keys).await?;
    if records.iter().any(|(id, record)| is_foreign(id, record, secret)) {
        return Err(Error::Sealed);
    }
    let set = KeySet::read(records, secret, store.now());
    let mut missing = Vec::new();
    if set.signs_tokens.is_none() {
        missing.push(("HMAC", random::<32>()?.to_vec()));
    }
    if set.signs_passes.is_none() {
        missing.push(("EdDSA", fresh_ed25519()?));
    }
    if missing.is_empty() {
        return Ok(set);
    }
    let mut made = Vec::new();
    for (kind, bytes) in missing {
        let id = fresh_id()?;
        write(store, keys, secret, (&id, kind, &bytes), store.now()).await?;
        made.push(id);
    }
    // Another instance may have made keys at the same time. With our secret, all of them verify and
    // the newest signs; with another, only one of the two may stay: the one that made the oldest.
    let records = self::records(store, keys).await?;
    if !holds_oldest(&records, secret) {
        redis::cmd("HDEL")
            .arg(&keys.signing)
            .arg(&made)
            .query_async::<()>(&mut store.clone())
            .await?;
        return Err(Error::Sealed);
    }
    Ok(KeySet::read(records, secret, store.now()))
}

/// Returns true if the oldest sealed signing key was sealed with our secret.
fn holds_oldest(records: &HashMap<String, String>, secret: Option<&[u8; 32]>) -> bool {
    let signing = records.iter().filter_map(|(id, text)| {
        let record: Value = serde_json::from_str(text).ok()?;
        let sealed = record["key"].as_str()?.starts_with("sealed.");
        let signs = sealed && record["retired_ms"].is_null();
        signs.then(|| (record["created_ms"].as_i64().unwrap_or(0), id, text))
    });
    signing.min().is_none_or(|(_, id, text)| !is_foreign(id, text, secret))
}

async fn records(store: &Store, keys: &RoomKeys) -> Result<HashMap<String, String>, Error> {
    Ok(redis::cmd("HGETALL").arg(&keys.signing).query_async(&mut store.clone()).await?)
}

async fn load(store: &Store, keys: &RoomKeys, secret: Option<&[u8; 32]>) -> Result<KeySet, Error> {
    Ok(KeySet::read(records(store, keys).await?, secret, store.now()))
}

/// Stores a key that signs from `created` on: its id, kind and bytes.
async fn write(
    store: &Store,
    keys: &RoomKeys,
    secret: Option<&[u8; 32]>,
    (id, kind, bytes): (&str, &str, &[u8]),
    created: Millis,
) -> Result<(), Error> {
    let record = json!({
        "kind": kind, "created_ms": created.0, "retired_ms": null,
        "key": seal(bytes, id, secret)?,
    });
    redis::cmd("HSET")
        .arg(&keys.signing)
        .arg(id)
        .arg(record.to_string())
        .query_async::<()>(&mut store.clone())
        .await?;
    Ok(())
}

/// Returns the time at which a key was created, in ms.
fn created_ms(record: &Value) -> i64 {
    record["created_ms"].as_i64().unwrap_or(0)
}

/// The records a new key changes: older keys for the same things are retired (`Some`), those that
/// verify no more are removed (`None`).
fn changes_by<'a>(
    records: &'a HashMap<String, String>,
    made: &str,
    now: Millis,
) -> Vec<(&'a str, Option<Value>)> {
    let read = |id: &str| serde_json::from_str::<Value>(records.get(id)?).ok();
    let Some(new) = read(made) else { return Vec::new() };
    let for_tokens = |record: &Value| record["kind"] == "HMAC";
    let mut changes = Vec::new();
    for id in records.keys() {
        let Some(mut record) = read(id) else { continue };
        let is_older = (created_ms(&record), id.as_str()) < (created_ms(&new), made);
        match record["retired_ms"].as_i64() {
            Some(at) if now.0 - at > VERIFIES_MS => changes.push((id.as_str(), None)),
            None if is_older && for_tokens(&record) == for_tokens(&new) => {
                record["retired_ms"] = now.0.into();
                changes.push((id.as_str(), Some(record)));
            }
            _ => {}
        }
    }
    changes
}

/// Makes the id of a key that was made here.
fn fresh_id() -> Result<String, Error> {
    Ok(format!("{:08x}", u32::from_be_bytes(random()?)))
}

/// Derives the id of an imported key from its public half, so that instances that import the same
/// file at the same time store one key and not two that retire each other.
fn imported_id(material: &Material) -> Option<String> {
    let public = match material {
        Material::Hmac(_) => return None,
        Material::Ed25519(pair) => pair.public_key().as_ref(),
        Material::Rsa(pair) => pair.public().as_ref(),
    };
    let digest = digest::digest(&digest::SHA256, public);
    Some(digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Decodes a private key in PEM: PKCS#8, or PKCS#1 for RSA.
fn decode_pem(pem: &str) -> Option<Vec<u8>> {
    let body = ["PRIVATE KEY", "RSA PRIVATE KEY"].into_iter().find_map(|label| {
        let (_, rest) = pem.split_once(&format!("-----BEGIN {label}-----"))?;
        Some(rest.split_once(&format!("-----END {label}-----"))?.0)
    })?;
    STANDARD.decode(body.split_whitespace().collect::<String>()).ok()
}

fn fresh_ed25519() -> Result<Vec<u8>, Error> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map(|document| document.as_ref().to_vec())
        .map_err(|_| Error::Token(TokenError::NoKey))
}

impl Room {
    /// The public keys that verify passes, as a JSON Web Key Set. Read from the store each time: a key
    /// that another instance made a moment ago has signed passes already.
    pub async fn jwks(&self) -> Result<Value, Error> {
        let set = match self.reload_keys().await {
            Err(error) if error.is_unavailable() => self.0.signing.load_full(),
            set => set?,
        };
        let mut keys: Vec<_> = set.keys.values().collect();
        keys.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        Ok(json!({ "keys": keys.iter().filter_map(|key| key.jwk()).collect::<Vec<_>>() }))
    }

    /// Makes new keys sign from now on. What the old ones signed stays valid. An RSA key that signs passes
    /// stays: the operator made it, and importing another rotates it.
    pub async fn rotate_keys(&self) -> Result<(), Error> {
        self.new_key(&fresh_id()?, "HMAC", &random::<32>()?).await?;
        if self.pass_algorithm().await? == Algorithm::EdDsa {
            self.use_eddsa().await?;
        }
        tracing::info!("signing keys rotated");
        Ok(())
    }

    /// Makes a fresh Ed25519 key sign passes from now on, whatever signed them before.
    pub async fn use_eddsa(&self) -> Result<(), Error> {
        self.new_key(&fresh_id()?, "EdDSA", &fresh_ed25519()?).await
    }

    /// The algorithm passes are signed with now, on every instance.
    pub async fn pass_algorithm(&self) -> Result<Algorithm, Error> {
        Ok(self.pass_key().await?.0)
    }

    /// The algorithm passes are signed with now, and the id (`kid`) of the key that signs them.
    pub async fn pass_key(&self) -> Result<(Algorithm, String), Error> {
        let set = self.reload_keys().await?;
        let key = set.for_passes()?;
        Ok((key.algorithm().unwrap_or(Algorithm::EdDsa), key.id.clone()))
    }

    /// Makes a key of the operator's sign passes from now on: RSA of at least 2,048 bits (RS256) or
    /// Ed25519 (EdDSA), as PKCS#8 in PEM; RSA also as PKCS#1. A key that signs already stays as it is:
    /// then the answer is `false`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    pub async fn import_pass_key(&self, pem: &str) -> Result<bool, Error> {
        let bad = || {
            let allowed =
                "a private key in PEM without a passphrase: RSA of 2,048 to 4,096 bits, or Ed25519";
            Error::invalid("key", allowed)
        };
        let bytes = decode_pem(pem).ok_or_else(bad)?;
        let (kind, material) = ["EdDSA", "RS256"]
            .into_iter()
            .find_map(|kind| Some((kind, material(kind, &bytes)?)))
            .ok_or_else(bad)?;
        let id = imported_id(&material).ok_or_else(bad)?;
        if self.pass_key().await.is_ok_and(|(_, signs)| signs == id) {
            return Ok(false);
        }
        self.new_key(&id, kind, &bytes).await?;
        Ok(true)
    }

    /// Stores a key and retires the older ones that sign the same things. Of two made at the same
    /// time the newer one stays: if each retired the other, none would sign.
    async fn new_key(&self, made: &str, kind: &str, bytes: &[u8]) -> Result<(), Error> {
        let inner = &self.0;
        let secret = inner.options.secret.as_ref();
        let (store, keys) = (&inner.store, &inner.keys);
        let now = store.now();
        // The newest signs, so this one is newer than all, whatever the clocks of others say.
        let before = records(store, keys).await?;
        let newest =
            before.values().filter_map(|text| Some(created_ms(&serde_json::from_str(text).ok()?)));
        let created = Millis(now.0.max(newest.max().unwrap_or(0).saturating_add(1)));
        write(store, keys, secret, (made, kind, bytes), created).await?;
        let records = records(store, keys).await?;
        let mut pipe = redis::pipe();
        let mut changes = 0;
        for (id, change) in changes_by(&records, made, now) {
            match change {
                Some(record) => pipe.hset(&keys.signing, id, record.to_string()).ignore(),
                None => pipe.hdel(&keys.signing, id).ignore(),
            };
            changes += 1;
        }
        if changes > 0 {
            pipe.query_async::<()>(&mut store.clone()).await?;
        }
        self.reload_keys().await?;
        Ok(())
    }

    /// Returns the cached keys, at most half a minute old.
    pub(crate) async fn key_set(&self) -> Result<Arc<KeySet>, Error> {
        let set = self.0.signing.load_full();
        if self.now().0.abs_diff(set.read_at.0) < RELOAD_MS as u64 {
            return Ok(set);
        }
        match self.reload_keys().await {
            Ok(set) => Ok(set),
            // Cached keys verify and sign while the store is unavailable.
            Err(error) if error.is_unavailable() => Ok(set),
            Err(error) => Err(error),
        }
    }

    /// Returns the key of an id, after reloading once in case another instance created it.
    pub(crate) async fn key(&self, id: &str) -> Result<Arc<SigningKey>, Error> {
        let set = self.key_set().await?;
        if let Some(key) = set.get(id) {
            return Ok(Arc::clone(key));
        }
        if self.now().0.abs_diff(set.read_at.0) >= UNKNOWN_KEY_RELOAD_MS as u64
            && let Some(key) = self.reload_keys().await?.get(id)
        {
            return Ok(Arc::clone(key));
        }
        Err(Error::Token(TokenError::UnknownKey))
    }

    async fn reload_keys(&self) -> Result<Arc<KeySet>, Error> {
        let inner = &self.0;
        let set = load(&inner.store, &inner.keys, inner.options.secret.as_ref()).await?;
        let set = Arc::new(set);
        inner.signing.store(Arc::clone(&set));
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_first_starts_with_different_secrets_one_stays() {
        let record = |id: &str, secret: &[u8; 32], at: i64| {
            let key = seal(b"key", id, Some(secret)).unwrap();
            let record =
                json!({ "kind": "HMAC", "created_ms": at, "retired_ms": null, "key": key });
            (id.to_owned(), record.to_string())
        };
        let (ours, theirs) = ([1; 32], [2; 32]);
        for (at, id) in [(5, "b"), (4, "z"), (9, "a")] {
            let records = HashMap::from([record("m", &ours, 5), record(id, &theirs, at)]);
            assert_ne!(holds_oldest(&records, Some(&ours)), holds_oldest(&records, Some(&theirs)));
        }
        assert!(holds_oldest(&HashMap::new(), Some(&ours)));
    }

    #[test]
    fn of_two_keys_made_at_the_same_time_one_goes_on_signing() {
        let record = |id: &str, kind: &str, at: i64| {
            let record = json!({ "kind": kind, "created_ms": at, "retired_ms": null, "key": "" });
            (id.to_owned(), record.to_string())
        };
        for (at, other) in [(5, "b"), (5, "z"), (4, "b"), (6, "z")] {
            let records = HashMap::from([
                record("m", "EdDSA", 5),
                record(other, "RS256", at),
                record("t", "HMAC", 1),
            ]);
            let retired: Vec<&str> = ["m", other]
                .into_iter()
                .flat_map(|made| changes_by(&records, made, Millis(7)))
                .map(|(id, _)| id)
                .collect();
            assert_eq!(retired.len(), 1, "{at} {other}: {retired:?}");
            assert_ne!(retired, ["t"], "another purpose");
        }
    }

    #[test]
    fn a_sealed_key_opens_only_with_its_secret_and_under_its_id() {
        let secret = [7; 32];
        let sealed = seal(b"key", "a", Some(&secret)).unwrap();
        assert!(!sealed.contains(&STANDARD.encode(b"key")));
        assert_eq!(unseal(&sealed, "a", Some(&secret)).as_deref(), Some(&b"key"[..]));
        assert_eq!(unseal(&sealed, "b", Some(&secret)), None);
        assert_eq!(unseal(&sealed, "a", Some(&[8; 32])), None);
        assert_eq!(unseal(&sealed, "a", None), None);
        let plain = seal(b"key", "a", None).unwrap();
        assert_eq!(unseal(&plain, "a", None).as_deref(), Some(&b"key"[..]));
        for bad in ["", "plain", "sealed.x", "sealed.AAAA.AAAA", "other.AAAA"] {
            assert_eq!(unseal(bad, "a", Some(&secret)), None, "{bad}");
        }
    }
}
