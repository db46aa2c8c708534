//! Rate limits of clients, on the keys of the schema: enqueues by network, polls by position.

use std::{net::IpAddr, time::Duration};

use ring::digest;
use store::{
    Key, Store,
    limit::{self, CheckOutcome, LimitCache, LimitCacheOptions, LimitCheck, Prepay, Rule},
};

use crate::{Error, PositionId, Room};

/// Polls of a position in a minute, after a burst of half as many. Far above the interval the server asks
/// for.
pub const POLLS_PER_MINUTE: u32 = 60;

const POLL_RULE: Rule = Rule::Bucket {
    burst: POLLS_PER_MINUTE / 2,
    count: POLLS_PER_MINUTE,
    per: Duration::from_secs(60),
};

/// Polls drawn ahead. Polling is the hot path: most polls are counted without the store. What is drawn is
/// spent within a minute, in which the bucket fills anyway, so nothing is given back.
const POLLS_DRAWN: Prepay = Prepay { units: 8, refunds: None };
const POLLS_SPENT_WITHIN: Duration = Duration::from_secs(60);

/// Most positions with polls drawn ahead; those of others are counted by the store one by one.
const POLLERS_MAX: usize = 262_144;

/// The polls of one position by one way, a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PollName {
    position: PositionId,
    action: &'static str,
}

impl From<&PollName> for PollName {
    fn from(name: &PollName) -> Self {
        name.clone()
    }
}

/// Creates the cache of the limits of polls.
pub(crate) fn poll_cache(store: &Store) -> LimitCache<PollName> {
    let options = LimitCacheOptions { spend_within: POLLS_SPENT_WITHIN, prepaid_max: POLLERS_MAX };
    LimitCache::new(store, options)
}

impl Room {
    /// Charges one call of a client to a sliding window: at most `most` in any `window`. `identifier`
    /// names the client (see [`Room::client_of`]), `action` the call; a repeated `request_id` counts once.
    pub async fn charge_call(
        &self,
        identifier: &str,
        action: &'static str,
        most: u32,
        window: Duration,
        request_id: &str,
    ) -> Result<CheckOutcome, Error> {
        // An identifier may hold anything; unless it is plain it is hashed.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
        let identifier = match identifier {
            name if (1..=64).contains(&name.len()) && name.bytes().all(plain) => name.to_owned(),
            name => {
                let digest = digest::digest(&digest::SHA256, name.as_bytes());
                digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
            }
        };
        let check = LimitCheck {
            key: self.limit_key(&identifier, action),
            rule: Rule::Sliding { limit: most, window },
            cost: 1,
            request_id: request_id.to_owned(),
        };
        Ok(limit::check(&self.0.store, &check).await?)
    }

    /// Charges a poll to a position, which has [`POLLS_PER_MINUTE`] for each `action`, over all instances.
    /// While the store is unavailable this instance counts alone.
    pub async fn charge_poll(
        &self,
        position: &PositionId,
        action: &'static str,
    ) -> Result<CheckOutcome, Error> {
        let (cache, name) = (&self.0.polls, PollName { position: *position, action });
        if let Some(known) = cache.find(&name, &POLL_RULE, 1, true, self.now()) {
            return Ok(known);
        }
        let check = LimitCheck {
            key: self.limit_key(&position.to_string(), action),
            rule: POLL_RULE,
            cost: 1,
            request_id: format!("{:032x}", fastrand::u128(..)),
        };
        match cache.check(&name, &check, Some(POLLS_DRAWN)).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                tracing::debug!(%error, "polls are counted by this instance alone");
                Ok(cache.check_alone(&check).await?)
            }
        }
    }

    /// Returns the name of the client at an address: its keyed hash, never the address.
    pub async fn client_of(&self, address: IpAddr) -> Result<String, Error> {
        self.0.addresses.hash(&self.0.store, &self.0.keys, address).await
    }

    fn limit_key(&self, identifier: &str, action: &str) -> Key {
        self.0.keys.rate_limit(self.0.store.layout(), identifier, action)
    }
}
