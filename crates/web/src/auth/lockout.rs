//! Failed logins, counted per address in the store, so that all instances count together. A try is
//! charged before its token is looked at: tries at the same moment cannot outrun the count. While the
//! store is away nobody can try.

use std::net::IpAddr;
use std::time::Duration;

use store::Store;
use store::limit::{self, LimitCheck, Rule, WINDOW_MOST};

use super::{Auth, digest, random_hex};
use crate::error::ApiError;
use crate::keys;
use crate::settings::Settings;

impl Auth {
    /// Charges a try to log in; gives how long to wait when there were too many.
    pub(crate) async fn charge_login(
        &self,
        store: &Store,
        address: IpAddr,
        settings: &Settings,
    ) -> Result<Option<Duration>, ApiError> {
        let rule = Rule::Sliding {
            limit: settings.login_tries.clamp(1, WINDOW_MOST),
            window: settings.login_lock.max(Duration::from_millis(1)),
        };
        // The id is ours, never the request's: one from outside would let tries count once.
        let request_id = random_hex::<16>()?;
        let check = LimitCheck { key: login_key(address), rule, cost: 1, request_id };
        let outcome = limit::check(store, &check).await?;
        Ok((!outcome.allowed).then_some(outcome.retry))
    }

    /// Forgives failed logins after a good one.
    pub(crate) async fn forgive_logins(
        &self,
        store: &Store,
        address: IpAddr,
    ) -> Result<(), ApiError> {
        Ok(limit::reset(store, &login_key(address)).await?)
    }
}

fn login_key(address: IpAddr) -> store::Key {
    keys::login(&digest(&address.to_string()))
}
