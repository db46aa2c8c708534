//! Sealing: secrets in the store are encrypted with a secret that is not in the store, so that reading
//! the store is not enough to use them.

use std::fmt;
use std::path::Path;

use ring::aead;

use crate::auth::{hex, random_hex};
use crate::cli::{Failure, Outcome, admin_token};
use crate::error::ApiError;

/// A key that seals. It never shows in debug output.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    /// Seals with these bytes.
    pub fn new(secret: [u8; 32]) -> Seal {
        Seal(secret)
    }

    /// Reads the secret from a file, which is made if it does not exist: 64 hexadecimal digits.
    pub fn read_or_make(path: &Path) -> Outcome<Seal> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let digits =
                    random_hex::<32>().map_err(|error| Failure::failed(error.message()))?;
                admin_token::write_private(path, &digits)?;
                digits
            }
            Err(error) => {
                return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
            }
        };
        parse_hex(text.trim()).and_then(|bytes| bytes.try_into().ok()).map(Seal).ok_or_else(|| {
            Failure::usage(format!("{} does not hold 64 hexadecimal digits", path.display()))
        })
    }

    /// Encrypts a text, bound to a name: under another name it cannot be opened.
    pub fn close(&self, name: &str, text: &str) -> Result<String, ApiError> {
        let fail = || ApiError::internal(&"cannot seal");
        let mut nonce = [0; aead::NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|error| ApiError::internal(&error))?;
        let mut sealed = text.as_bytes().to_vec();
        self.key()
            .ok_or_else(fail)?
            .seal_in_place_append_tag(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(name.as_bytes()),
                &mut sealed,
            )
            .map_err(|_| fail())?;
        Ok(format!("sealed.{}.{}", hex(&nonce), hex(&sealed)))
    }

    /// Opens what was sealed under a name with the same secret.
    pub fn open(&self, name: &str, sealed: &str) -> Option<String> {
        let (nonce, sealed) = sealed.strip_prefix("sealed.")?.split_once('.')?;
        let nonce: [u8; aead::NONCE_LEN] = parse_hex(nonce)?.try_into().ok()?;
        let mut sealed = parse_hex(sealed)?;
        let opened = self
            .key()?
            .open_in_place(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(name.as_bytes()),
                &mut sealed,
            )
            .ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }

    fn key(&self) -> Option<aead::LessSafeKey> {
        aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &self.0).ok().map(aead::LessSafeKey::new)
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_only_with_its_secret_and_under_its_name() {
        let seal = Seal::new([7; 32]);
        let sealed = seal.close("wh_1", "https://hooks.example/secret").unwrap();
        assert!(!sealed.contains("hooks"));
        assert_eq!(seal.open("wh_1", &sealed).as_deref(), Some("https://hooks.example/secret"));
        assert_eq!(seal.open("wh_2", &sealed), None);
        assert_eq!(Seal::new([8; 32]).open("wh_1", &sealed), None);
        for wrong in ["", "sealed.", "sealed.00.00", "plain.aa", "sealed.zz.zz"] {
            assert_eq!(seal.open("wh_1", wrong), None, "{wrong}");
        }
    }
}
