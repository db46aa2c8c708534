//! Network addresses, kept only as keyed hashes.
//!
//! The key is random, shared through the store, and replaced each day; it is gone two days later, so
//! what is stored cannot be turned back into addresses. IPv6 counts by its /64, which is what one
//! customer has.

use std::net::IpAddr;

use parking_lot::RwLock;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use store::{Store, redis};

use crate::{Error, keys::RoomKeys};

const DAY_MS: i64 = 86_400_000;

/// Hashes addresses with today's key, which is read once.
#[derive(Debug, Default)]
pub(crate) struct AddressHasher(RwLock<Option<(i64, hmac::Key)>>);

impl AddressHasher {
    /// Returns the hash of an address: 16 hexadecimal characters.
    pub(crate) async fn hash(
        &self,
        store: &Store,
        keys: &RoomKeys,
        address: IpAddr,
    ) -> Result<String, Error> {
        let day = store.now().0.div_euclid(DAY_MS);
        let known = self.0.read().as_ref().filter(|(of, _)| *of == day).map(|(_, key)| key.clone());
        let key = match known {
            Some(key) => key,
            None => {
                let key = key_of_day(store, keys, day).await?;
                *self.0.write() = Some((day, key.clone()));
                key
            }
        };
        let tag = hmac::sign(&key, &network(address));
        Ok(tag.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Creates the key of a day unless another instance did, and reads it.
async fn key_of_day(store: &Store, keys: &RoomKeys, day: i64) -> Result<hmac::Key, Error> {
    let name = keys.address_key(day);
    let secret: String = random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let (_, secret): (redis::Value, String) = redis::pipe()
        .cmd("SET")
        .arg(&name)
        .arg(secret)
        .arg("NX")
        .arg("EX")
        .arg(2 * DAY_MS / 1000)
        .get(&name)
        .query_async(&mut store.clone())
        .await?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
}

/// The part of an address that identifies a customer.
fn network(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets()[..8].to_vec(),
    }
}

/// Returns random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        let message = "the operating system gave no random bytes".to_owned();
        Error::Store(store::Error::Invalid { message })
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_the_customer() {
        let n = |text: &str| network(text.parse().unwrap());
        assert_eq!(n("::ffff:192.0.2.1"), n("192.0.2.1"));
        assert_eq!(n("2001:db8::1"), n("2001:db8::ffff"));
        assert_ne!(n("2001:db8:0:1::1"), n("2001:db8::1"));
        assert_ne!(n("192.0.2.1"), n("192.0.2.2"));
    }
}
