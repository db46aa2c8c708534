//! The keys that sign what visitors carry, shared by all instances through the store.
//!
//! One key of each kind signs; older ones go on verifying until nothing they signed can be valid.
//! A key is bound to one algorithm: a token cannot choose another. Private keys are sealed with the
//! operator's secret if there is one, so that reading the store is not enough to sign.

use std::{collections::HashMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    aead, hmac,
    rand::SystemRandom,
    signature::{self, Ed25519KeyPair, KeyPair, RsaKeyPair},
};
use serde_json::{Value, json};
use store::{Millis, Store, redis};

use crate::{Error, Room, address::random, keys::RoomKeys, token::Fault};

/// How a pass is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519; keys are made by the room.
    EdDsa,
    /// RSA with SHA-256; keys are given by the operator.
    Rs256,
}

impl Algorithm {
    /// The name in a token's header.
    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Rs256 => "RS256",
        }
    }
}

/// How long a key verifies after it stopped signing: as long as a session can last at most.
const VERIFIES_MS: i64 = 7 * 86_400_000;
/// How often other instances' changes are looked for, and how often an unknown key id may make us
/// look.
const RELOAD_MS: i64 = 30_000;
const UNKNOWN_MS: i64 = 1_000;
/// Keys kept at most.
const MOST_KEYS: usize = 64;

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
    /// The tag of a message, for a key of that kind.
    pub(crate) fn tag(&self, message: &[u8]) -> Option<[u8; 16]> {
        let Material::Hmac(key) = &self.material else { return None };
        let mut tag = [0; 16];
        tag.copy_from_slice(hmac::sign(key, message).as_ref().get(..16)?);
        Some(tag)
    }

    /// The algorithm of passes this key is for.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        match self.material {
            Material::Hmac(_) => None,
            Material::Ed25519(_) => Some(Algorithm::EdDsa),
            Material::Rsa(_) => Some(Algorithm::Rs256),
        }
    }

    /// The signature of a message, for a key of that kind.
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

    /// Is this the signature of the message by this key, with this key's own algorithm?
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
        self.signs_tokens.as_deref().ok_or(Error::Token(Fault::NoKey))
    }

    pub(crate) fn for_passes(&self) -> Result<&SigningKey, Error> {
        self.signs_passes.as_deref().ok_or(Error::Token(Fault::NoKey))
    }

    fn read(records: HashMap<String, String>, secret: Option<&[u8; 32]>, now: Millis) -> Self {
        let mut set = Self { read_at: now, ..Self::default() };
        for (id, record) in records.into_iter().take(MOST_KEYS) {
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
        "RS256" => Material::Rsa(Box::new(RsaKeyPair::from_pkcs8(bytes).ok()?)),
        _ => return None,
    })
}

/// A key as it is stored: plain without a secret, else encrypted under it and bound to its id.
fn seal(bytes: &[u8], id: &str, secret: Option<&[u8; 32]>) -> Result<String, Error> {
    let Some(secret) = secret else { return Ok(format!("plain.{}", STANDARD.encode(bytes))) };
    let nonce: [u8; 12] = random()?;
    let mut sealed = bytes.to_vec();
    let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, secret).map(aead::LessSafeKey::new);
    key.and_then(|key| {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, aead::Aad::from(id.as_bytes()), &mut sealed)
    })
    .map_err(|_| Error::Token(Fault::NoKey))?;
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

/// Is this a key that signs, sealed with another secret than ours?
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
        made.push(write(store, keys, secret, kind, &bytes).await?);
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

/// Was the oldest sealed key that signs sealed with our secret?
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

async fn write(
    store: &Store,
    keys: &RoomKeys,
    secret: Option<&[u8; 32]>,
    kind: &str,
    bytes: &[u8],
) -> Result<String, Error> {
    let id = format!("{:08x}", u32::from_be_bytes(random()?));
    let record = json!({
        "kind": kind, "created_ms": store.now().0, "retired_ms": null,
        "key": seal(bytes, &id, secret)?,
    });
    redis::cmd("HSETNX")
        .arg(&keys.signing)
        .arg(&id)
        .arg(record.to_string())
        .query_async::<()>(&mut store.clone())
        .await?;
    Ok(id)
}

fn fresh_ed25519() -> Result<Vec<u8>, Error> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map(|document| document.as_ref().to_vec())
        .map_err(|_| Error::Token(Fault::NoKey))
}

impl Room {
    /// The public keys that verify passes, as a JSON Web Key Set.
    pub async fn jwks(&self) -> Result<Value, Error> {
        let set = self.key_set().await?;
        let mut keys: Vec<_> = set.keys.values().collect();
        keys.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        Ok(json!({ "keys": keys.iter().filter_map(|key| key.jwk()).collect::<Vec<_>>() }))
    }

    /// Makes new keys sign from now on. What the old ones signed stays valid. An RSA key that signs passes
    /// stays: the operator made it, and importing another rotates it.
    pub async fn rotate_keys(&self) -> Result<(), Error> {
        self.new_key("HMAC", &random::<32>()?).await?;
        if self.pass_algorithm().await? == Algorithm::EdDsa {
            self.new_key("EdDSA", &fresh_ed25519()?).await?;
        }
        tracing::info!("signing keys rotated");
        Ok(())
    }

    /// Makes a fresh Ed25519 key sign passes from now on, whatever signed them before.
    pub async fn use_eddsa(&self) -> Result<(), Error> {
        self.new_key("EdDSA", &fresh_ed25519()?).await
    }

    /// The algorithm passes are signed with now, on every instance.
    pub async fn pass_algorithm(&self) -> Result<Algorithm, Error> {
        let set = self.reload_keys().await?;
        Ok(set.for_passes()?.algorithm().unwrap_or(Algorithm::EdDsa))
    }

    /// Makes a key of the operator's sign passes from now on: PKCS#8 in PEM, RSA of at least 2,048
    /// bits (RS256) or Ed25519 (EdDSA).
    pub async fn import_pass_key(&self, pem: &str) -> Result<(), Error> {
        let bad = || Error::invalid("key", "PKCS#8 in PEM: RSA of 2,048 bits and more, or Ed25519");
        let body: String = pem
            .trim()
            .strip_prefix("-----BEGIN PRIVATE KEY-----")
            .and_then(|rest| rest.strip_suffix("-----END PRIVATE KEY-----"))
            .ok_or_else(bad)?
            .split_whitespace()
            .collect();
        let bytes = STANDARD.decode(body).map_err(|_| bad())?;
        let kind = ["EdDSA", "RS256"].into_iter().find(|kind| material(kind, &bytes).is_some());
        self.new_key(kind.ok_or_else(bad)?, &bytes).await
    }

    /// Stores a key and retires the others that sign the same things.
    async fn new_key(&self, kind: &str, bytes: &[u8]) -> Result<(), Error> {
        let inner = &self.0;
        let secret = inner.options.secret.as_ref();
        let (store, keys) = (&inner.store, &inner.keys);
        let made = write(store, keys, secret, kind, bytes).await?;
        let records = records(store, keys).await?;
        let now = store.now();
        let mut pipe = redis::pipe();
        let mut changes = 0;
        for (id, record) in &records {
            let Ok(mut record) = serde_json::from_str::<Value>(record) else { continue };
            let for_tokens = |kind: &Value| kind == "HMAC";
            let same = for_tokens(&record["kind"]) == (kind == "HMAC");
            match record["retired_ms"].as_i64() {
                Some(at) if now.0 - at > VERIFIES_MS => {
                    pipe.hdel(&keys.signing, id).ignore();
                    changes += 1;
                }
                None if same && *id != made => {
                    record["retired_ms"] = now.0.into();
                    pipe.hset(&keys.signing, id, record.to_string()).ignore();
                    changes += 1;
                }
                _ => {}
            }
        }
        if changes > 0 {
            pipe.query_async::<()>(&mut store.clone()).await?;
        }
        self.reload_keys().await?;
        Ok(())
    }

    /// The keys as known here, half a minute old at most.
    pub(crate) async fn key_set(&self) -> Result<Arc<KeySet>, Error> {
        let set = self.0.signing.load_full();
        if self.now().0.abs_diff(set.read_at.0) < RELOAD_MS as u64 {
            return Ok(set);
        }
        match self.reload_keys().await {
            Ok(set) => Ok(set),
            // What is known verifies and signs on while the store is away.
            Err(error) if error.is_unavailable() => Ok(set),
            Err(error) => Err(error),
        }
    }

    /// The key of an id, after looking once whether another instance made it.
    pub(crate) async fn key(&self, id: &str) -> Result<Arc<SigningKey>, Error> {
        let set = self.key_set().await?;
        if let Some(key) = set.get(id) {
            return Ok(Arc::clone(key));
        }
        if self.now().0.abs_diff(set.read_at.0) >= UNKNOWN_MS as u64
            && let Some(key) = self.reload_keys().await?.get(id)
        {
            return Ok(Arc::clone(key));
        }
        Err(Error::Token(Fault::UnknownKey))
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
