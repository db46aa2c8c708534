//! Rate limits of clients, on the keys of the schema.

use std::{net::IpAddr, time::Duration};

use ring::digest;
use store::limit::{self, Charge, LimitVerdict, Rule};

use crate::{Error, PositionId, Room};

impl Room {
    /// Charges one call of a client to a sliding window: at most `most` in any `window`. `identifier`
    /// names the client (see [`Room::client_of`]), `action` the call; a repeated `request_id` counts once.
    pub async fn take_limit(
        &self,
        identifier: &str,
        action: &'static str,
        most: u32,
        window: Duration,
        request_id: &str,
    ) -> Result<LimitVerdict, Error> {
        // An identifier may hold anything; unless it is plain it is hashed.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
        let identifier = match identifier {
            name if (1..=64).contains(&name.len()) && name.bytes().all(plain) => name.to_owned(),
            name => {
                let digest = digest::digest(&digest::SHA256, name.as_bytes());
                digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
            }
        };
        let key = self.0.keys.rate_limit(self.0.store.layout(), &identifier, action);
        let rule = Rule::Sliding { limit: most, window };
        Ok(limit::take(&self.0.store, request_id, &[Charge::one(key, rule)]).await?)
    }

    /// Takes `cost` tokens from a client's bucket for an action: `burst` at once, `per_minute` more each
    /// minute, shared by all instances. `draw_id` makes a repeated draw count once, see
    /// [`store::limit::take`].
    pub async fn draw_units(
        &self,
        identifier: &PositionId,
        action: &'static str,
        (burst, per_minute): (u32, u32),
        cost: u32,
        draw_id: &str,
    ) -> Result<LimitVerdict, Error> {
        let key = self.0.keys.rate_limit(self.0.store.layout(), &identifier.to_string(), action);
        let rule = Rule::Bucket { burst, count: per_minute, per: Duration::from_secs(60) };
        Ok(limit::take(&self.0.store, draw_id, &[Charge { key, rule, cost }]).await?)
    }

    /// Returns the name of the client at an address: its keyed hash, never the address.
    pub async fn client_of(&self, address: IpAddr) -> Result<String, Error> {
        self.0.addresses.hash(&self.0.store, &self.0.keys, address).await
    }
}
