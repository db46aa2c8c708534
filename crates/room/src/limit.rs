//! Limits on how often a client may call, on the documented keys.

use std::{net::IpAddr, time::Duration};

use ring::digest;
use store::limit::{self, Charge, Rule, Verdict};

use crate::{Error, PositionId, Room};

impl Room {
    /// Counts one call of a client for an action: at most `most` in any `window`. `identifier` is
    /// whatever names the client (see [`Room::client_of`]), `action` one of the API's words,
    /// `request_id` makes a repeated call count once.
    pub async fn take_limit(
        &self,
        identifier: &str,
        action: &'static str,
        most: u32,
        window: Duration,
        request_id: &str,
    ) -> Result<Verdict, Error> {
        // Anything may come in as a name; what is not plain is hashed.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
        let identifier = match identifier {
            name if (1..=64).contains(&name.len()) && name.bytes().all(plain) => name.to_owned(),
            name => {
                let digest = digest::digest(&digest::SHA256, name.as_bytes());
                digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
            }
        };
        let key = self.0.keys.rate_limit(self.0.store.layout(), &identifier, action);
        let rule = Rule::Window { limit: most, window };
        Ok(limit::take(&self.0.store, request_id, &[Charge::one(key, rule)]).await?)
    }

    /// Draws `cost` units from a client's bucket for an action: `burst` at once, `per_minute` more in
    /// a minute. All instances draw from the same. `draw_id` names this draw, see
    /// [`store::limit::take`].
    pub async fn draw_units(
        &self,
        identifier: &PositionId,
        action: &'static str,
        (burst, per_minute): (u32, u32),
        cost: u32,
        draw_id: &str,
    ) -> Result<Verdict, Error> {
        let key = self.0.keys.rate_limit(self.0.store.layout(), &identifier.to_string(), action);
        let rule = Rule::Bucket { burst, count: per_minute, per: Duration::from_secs(60) };
        Ok(limit::take(&self.0.store, draw_id, &[Charge { key, rule, cost }]).await?)
    }

    /// The name of the client at an address: its keyed hash, never the address.
    pub async fn client_of(&self, address: IpAddr) -> Result<String, Error> {
        self.0.addresses.hash(&self.0.store, &self.0.keys, address).await
    }
}
