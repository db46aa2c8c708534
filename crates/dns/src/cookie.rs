//! DNS cookies (RFC 7873) in the form of RFC 9018: proof that a client gets what is sent to it.
//!
//! The secret is in the store, so that a cookie of one instance is good at all others.

use std::net::IpAddr;

use store::{Millis, Store, redis};

use crate::{Error, keys::InstanceKeys, wire::WireQuery};

/// Option code.
const COOKIE_OPTION: u16 = 10;

/// Oldest cookie that is good, in seconds, and how far ahead of the clock one may be.
const AGE_MAX_SECONDS: u32 = 3_600;
const AHEAD_MAX_SECONDS: u32 = 300;

/// Secret of all instances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CookieSecret([u8; 16]);

/// Cookie of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryCookie {
    /// The client sent none.
    None,
    /// Of a length that no cookie has.
    Malformed,
    /// A cookie.
    Good {
        /// Cookie of the reply.
        reply: [u8; 24],
        /// The client has shown a cookie that was given to its address.
        is_proven: bool,
    },
}

impl CookieSecret {
    /// Draws a secret.
    pub(crate) fn draw() -> Self {
        let mut secret = [0; 16];
        // Without randomness cookies could be forged, and then prove nothing: the rate limit holds for
        // all but loopback then.
        let _ = getrandom::fill(&mut secret);
        Self(secret)
    }

    /// Reads the secret of all instances, drawn by the first.
    pub(crate) async fn load(store: &Store) -> Result<Self, Error> {
        let (mut store, key) = (store.clone(), InstanceKeys::new().cookie_secret);
        let drawn = Self::draw();
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&drawn.0[..]).arg("NX");
        set.query_async::<Option<String>>(&mut store).await?;
        let kept: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(&mut store).await?;
        let kept = kept.and_then(|kept| kept.try_into().ok());
        Ok(kept.map_or(drawn, Self))
    }

    /// Looks at the cookie of a query and makes that of the reply. Allocates nothing.
    pub(crate) fn check(&self, query: &WireQuery<'_>, client: IpAddr, now: Millis) -> QueryCookie {
        let Some((_, cookie)) = query.options().find(|(code, _)| *code == COOKIE_OPTION) else {
            return QueryCookie::None;
        };
        if cookie.len() != 8 && !(16..=40).contains(&cookie.len()) {
            return QueryCookie::Malformed;
        }
        let (Some(Ok(from_client)), from_server) =
            (cookie.get(..8).map(<[u8; 8]>::try_from), cookie.get(8..).unwrap_or_default())
        else {
            return QueryCookie::Malformed;
        };
        let now_seconds = now.as_secs() as u32;
        let mut reply = [0; 24];
        reply[..8].copy_from_slice(&from_client);
        reply[8..].copy_from_slice(&self.server_cookie(from_client, now_seconds, client));
        let is_proven = self.is_ours(from_client, from_server, client, now_seconds);
        QueryCookie::Good { reply, is_proven }
    }

    fn is_ours(&self, from_client: [u8; 8], theirs: &[u8], client: IpAddr, now: u32) -> bool {
        let Some(Ok(time)) = theirs.get(4..8).map(<[u8; 4]>::try_from) else { return false };
        let time = u32::from_be_bytes(time);
        // RFC 1982: times are compared across the wrap of 2106.
        let age = now.wrapping_sub(time) as i32;
        if age > AGE_MAX_SECONDS as i32 || age < -(AHEAD_MAX_SECONDS as i32) {
            return false;
        }
        let ours = self.server_cookie(from_client, time, client);
        // In constant time, so that a cookie cannot be found byte by byte.
        theirs.len() == ours.len()
            && theirs.iter().zip(&ours).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }

    /// RFC 9018 §4: version, three reserved bytes, time, hash.
    fn server_cookie(&self, from_client: [u8; 8], time: u32, client: IpAddr) -> [u8; 16] {
        let mut cookie = [0; 16];
        cookie[0] = 1;
        cookie[4..8].copy_from_slice(&time.to_be_bytes());
        let mut input = [0; 32];
        input[..8].copy_from_slice(&from_client);
        input[8..16].copy_from_slice(&cookie[..8]);
        let length = match client {
            IpAddr::V4(address) => {
                input[16..20].copy_from_slice(&address.octets());
                20
            }
            IpAddr::V6(address) => {
                input[16..32].copy_from_slice(&address.octets());
                32
            }
        };
        let hash = siphash24(&self.0, &input[..length]);
        cookie[8..].copy_from_slice(&hash.to_le_bytes());
        cookie
    }
}

/// SipHash-2-4 (Aumasson and Bernstein, 2012).
fn siphash24(key: &[u8; 16], input: &[u8]) -> u64 {
    let half = |at: usize| {
        let bytes = key.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let (low, high) = (half(0), half(8));
    let mut v = [
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ];
    let mut chunks = input.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        v[3] ^= word;
        (0..2).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    let mut last = [0; 8];
    last.iter_mut().zip(chunks.remainder()).for_each(|(to, from)| *to = *from);
    last[7] = input.len() as u8;
    let word = u64::from_le_bytes(last);
    v[3] ^= word;
    (0..2).for_each(|_| round(&mut v));
    v[0] ^= word;
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_paper() {
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(&key, &input), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn the_cookie_is_that_of_the_rfc() {
        // RFC 9018, appendix A.1.
        let secret = CookieSecret([
            0xe5, 0xe9, 0x73, 0xe5, 0xa6, 0xb2, 0xa4, 0x3f, 0x48, 0xe7, 0xdc, 0x84, 0x9e, 0x37,
            0xbf, 0xcf,
        ]);
        let from_client = [0x24, 0x64, 0xc4, 0xab, 0xcf, 0x10, 0xc9, 0x57];
        let client = IpAddr::from([198, 51, 100, 100]);
        let cookie = secret.server_cookie(from_client, 1_559_731_985, client);
        assert_eq!(
            cookie,
            [0x01, 0, 0, 0, 0x5c, 0xf7, 0x9f, 0x11, 0x1f, 0x81, 0x30, 0xc3, 0xee, 0xe2, 0x94, 0x80]
        );
        let is_ours =
            |cookie: &[u8], client: IpAddr, now| secret.is_ours(from_client, cookie, client, now);
        assert!(is_ours(&cookie, client, 1_559_731_985 + 3_600));
        assert!(!is_ours(&cookie, client, 1_559_731_985 + 3_601), "too old");
        assert!(!is_ours(&cookie, client, 1_559_731_985 - 301), "from the future");
        assert!(!is_ours(&cookie, [198, 51, 100, 101].into(), 1_559_731_985), "of another");
        assert!(!is_ours(&cookie[..15], client, 1_559_731_985));
    }
}
