//! Web push: who sends is signed with ES256 (VAPID, RFC 8292), what is sent is encrypted for the browser
//! (RFC 8291, `aes128gcm` of RFC 8188).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

/// Size of a record, as RFC 8291 wants it.
const RECORD_BYTES: u32 = 4_096;

/// Most bytes that fit into the one record there is, with tag and delimiter.
const PLAIN_MOST: usize = 3_000;

/// Time for which a signature counts; push services take at most a day.
const SIGNED_S: i64 = 12 * 3_600;

/// The key pair with which this installation signs.
pub(crate) struct VapidKeys {
    pair: EcdsaKeyPair,
    /// The public key, uncompressed, base64url: browsers subscribe with it.
    pub(crate) public: String,
}

impl std::fmt::Debug for VapidKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VapidKeys").field("public", &self.public).finish_non_exhaustive()
    }
}

impl VapidKeys {
    /// Makes a key pair, as text.
    pub(crate) fn make() -> Result<String, ring::error::Unspecified> {
        let made =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())?;
        Ok(URL_SAFE_NO_PAD.encode(made.as_ref()))
    }

    /// Reads what [`make`](VapidKeys::make) wrote.
    pub(crate) fn parse(text: &str) -> Result<VapidKeys, String> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| error.to_string())?;
        let pair = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            &bytes,
            &SystemRandom::new(),
        )
        .map_err(|error| error.to_string())?;
        let public = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Ok(VapidKeys { pair, public })
    }

    /// Returns the value of `Authorization` for a push service.
    pub(crate) fn authorize(
        &self,
        endpoint: &str,
        contact: Option<&str>,
        now_s: i64,
    ) -> Result<String, String> {
        let mut claims = json!({ "aud": origin(endpoint), "exp": now_s + SIGNED_S });
        if let Some(contact) = contact {
            claims["sub"] = json!(contact);
        }
        let head = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ES256"}"#);
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
        let text = format!("{head}.{claims}");
        let signature = self
            .pair
            .sign(&SystemRandom::new(), text.as_bytes())
            .map_err(|_| "the notification cannot be signed".to_owned())?;
        let signature = URL_SAFE_NO_PAD.encode(signature.as_ref());
        Ok(format!("vapid t={text}.{signature}, k={}", self.public))
    }
}

/// Scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Encrypts a payload for a browser with these keys.
pub(crate) fn encrypt(p256dh: &str, auth: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = |what: &str| format!("the browser's {what} is wrong; it must subscribe again");
    let key = decode(p256dh).ok_or_else(|| wrong("key"))?;
    let auth = decode(auth).ok_or_else(|| wrong("secret"))?;
    let random = SystemRandom::new();
    let failed = |_: ring::error::Unspecified| "no random bytes".to_owned();
    let own = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(failed)?;
    let public = own.compute_public_key().map_err(failed)?;
    let mut salt = [0; 16];
    random.fill(&mut salt).map_err(failed)?;
    let shared = agree_ephemeral(own, &UnparsedPublicKey::new(&ECDH_P256, &key), <[u8]>::to_vec)
        .map_err(|_| wrong("key"))?;
    seal(&shared, &key, public.as_ref(), &auth, &salt, payload)
        .ok_or_else(|| "the notification cannot be encrypted".to_owned())
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// The body of the request: salt, size of a record, our public key, one record (RFC 8188 §2, RFC 8291 §3).
fn seal(
    shared: &[u8],
    theirs: &[u8],
    ours: &[u8],
    auth: &[u8],
    salt: &[u8; 16],
    payload: &[u8],
) -> Option<Vec<u8>> {
    if payload.len() > PLAIN_MOST {
        return None;
    }
    let mut input = [0; 32];
    let prk = Salt::new(HKDF_SHA256, auth).extract(shared);
    expand(&prk, &[b"WebPush: info\0", theirs, ours], &mut input)?;
    let prk = Salt::new(HKDF_SHA256, salt).extract(&input);
    let (mut key, mut nonce) = ([0; 16], [0; 12]);
    expand(&prk, &[b"Content-Encoding: aes128gcm\0"], &mut key)?;
    expand(&prk, &[b"Content-Encoding: nonce\0"], &mut nonce)?;
    let mut record = payload.to_vec();
    record.push(2); // the delimiter of the last record
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).ok()?)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)
        .ok()?;
    let mut body = salt.to_vec();
    body.extend_from_slice(&RECORD_BYTES.to_be_bytes());
    body.push(u8::try_from(ours.len()).ok()?);
    body.extend_from_slice(ours);
    body.append(&mut record);
    Some(body)
}

/// The length of what HKDF gives.
struct OutputLength(usize);

impl KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(prk: &Prk, info: &[&[u8]], into: &mut [u8]) -> Option<()> {
    prk.expand(info, OutputLength(into.len())).ok()?.fill(into).ok()
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey as VerifyingKey};

    use super::*;

    /// The example of RFC 8291, section 5 and appendix A.
    #[test]
    fn a_body_is_that_of_the_example_in_rfc_8291() {
        let bytes = |text: &str| decode(text).unwrap();
        let theirs = bytes(
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        );
        let ours = bytes(
            "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8",
        );
        let shared = bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let auth = bytes("BTBZMqHH6r4Tts7J_aSIgg");
        let salt: [u8; 16] = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let body = seal(
            &shared,
            &theirs,
            &ours,
            &auth,
            &salt,
            b"When I grow up, I want to be a watermelon",
        );
        assert_eq!(
            URL_SAFE_NO_PAD.encode(body.unwrap()),
            "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27ml\
             mlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPT\
             pK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
        );
    }

    #[test]
    fn keys_that_are_none_are_refused_and_a_payload_has_a_bound() {
        let good = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).unwrap();
        let good = URL_SAFE_NO_PAD.encode(good.compute_public_key().unwrap());
        let auth = URL_SAFE_NO_PAD.encode([1; 16]);
        assert!(encrypt(&good, &auth, b"hello").is_ok());
        assert!(encrypt(&URL_SAFE_NO_PAD.encode([4; 65]), &auth, b"hello").is_err());
        assert!(encrypt("*", &auth, b"hello").is_err());
        assert!(encrypt(&good, &auth, &[0; PLAIN_MOST + 1]).is_err());
    }

    #[test]
    fn a_signature_names_the_service_and_verifies() {
        let keys = VapidKeys::parse(&VapidKeys::make().unwrap()).unwrap();
        let header = keys
            .authorize("https://push.example:444/a/b?c", Some("mailto:a@b.example"), 1_000)
            .unwrap();
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(key, keys.public);
        let (text, signature) = token.rsplit_once('.').unwrap();
        let claims = String::from_utf8(decode(text.split_once('.').unwrap().1).unwrap()).unwrap();
        let claims: serde_json::Value = serde_json::from_str(&claims).unwrap();
        assert_eq!(claims["aud"], "https://push.example:444");
        assert_eq!(
            (claims["exp"].as_i64(), claims["sub"].as_str()),
            (Some(44_200), Some("mailto:a@b.example"))
        );
        VerifyingKey::new(&ECDSA_P256_SHA256_FIXED, decode(key).unwrap())
            .verify(text.as_bytes(), &decode(signature).unwrap())
            .unwrap();
    }
}
