//! Policy: one versioned document in the store, the same on all instances.
//!
//! [`PolicyStore`] loads and saves it: a save names the version it began with, and one that comes too
//! late changes nothing. A saved document is announced on a channel; an instance that may have missed
//! an announcement reads the whole document again.
//!
//! Read on in `policy/document.rs` (what can be said), `policy/check.rs` (what is refused),
//! `policy/schedule.rs` (windows of a week).

mod check;
mod document;
mod schedule;

use std::{sync::Arc, time::Duration};

use store::{Millis, Store, redis};
use tokio_util::sync::CancellationToken;

pub(crate) use self::check::{ClientAddress, parse_mac, parse_name, parse_networks};
pub use self::{
    check::PolicyError,
    document::{
        AccessPolicy, BlockMode, BlockReply, BlockedService, ClientEntry, ClientGroup,
        CustomService, DEFAULT_GROUP, DomainUpstreams, FilterPause, GroupLog, GroupSchedule,
        ListAction, ListRefreshPolicy, ListSource, LocalRecord, LogPolicy, LoggedAddresses, Policy,
        PolicyScope, RateLimitPolicy, RebindingPolicy, ScheduleAction, ScheduleWindow,
        SearchEngine, StrategyName, TimedRule, UpstreamPolicy, UpstreamServer, WeekDay,
        WeekSchedule,
    },
    schedule::CheckedSchedule,
};
use crate::{Error, keys::PolicyKeys, scripts::save_policy};

/// Longest document, in bytes of JSON.
const DOCUMENT_MAX_BYTES: usize = 4 << 20;

/// Time between two looks at the version, in case an announcement was lost without a trace.
const POLL: Duration = Duration::from_secs(10);

/// Wait before the store is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// A version of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyVersion {
    /// Version: 0 before the first save, one more with each.
    pub version: u64,
    /// The document.
    pub policy: Policy,
    /// Time of the save.
    pub changed_at: Option<Millis>,
}

/// The policy in the store. A cheap clone.
#[derive(Clone, Debug)]
pub struct PolicyStore {
    store: Store,
    keys: Arc<PolicyKeys>,
    default: Arc<Policy>,
}

impl PolicyStore {
    /// Opens the policy of a store. `default` is in force until one is saved, and the first change
    /// starts from it.
    pub fn new(store: &Store, default: Policy) -> Self {
        let (keys, default) = (Arc::new(PolicyKeys::new()), Arc::new(default));
        Self { store: store.clone(), keys, default }
    }

    /// Returns the policy that is in force until one is saved.
    pub(crate) fn default_version(&self) -> PolicyVersion {
        PolicyVersion { policy: Policy::clone(&self.default), ..PolicyVersion::default() }
    }

    /// Reads the policy; the default one with version 0 if none was saved.
    pub async fn load(&self) -> Result<PolicyVersion, Error> {
        let mut store = self.store.clone();
        let (version, document, changed_at): (Option<u64>, Option<Vec<u8>>, Option<i64>) =
            redis::cmd("HMGET")
                .arg(&self.keys.policy)
                .arg(&["version", "document", "changed_at"])
                .query_async(&mut store)
                .await?;
        let (Some(version), Some(document)) = (version, document) else {
            return Ok(self.default_version());
        };
        let policy = serde_json::from_slice(&document).map_err(|error| {
            Error::from(PolicyError::new("policy", format!("the stored document: {error}")))
        })?;
        Ok(PolicyVersion { version, policy, changed_at: changed_at.map(Millis) })
    }

    /// Replaces the policy and tells all instances. Refuses one that is not valid, and one that was
    /// made from another version than the current ([`Error::Conflict`]).
    pub async fn save(&self, expected: u64, policy: Policy) -> Result<PolicyVersion, Error> {
        policy.check()?;
        let document = serde_json::to_vec(&policy)
            .map_err(|error| PolicyError::new("policy", error.to_string()))?;
        if document.len() > DOCUMENT_MAX_BYTES {
            let reason =
                format!("the document has {} bytes, at most 4 MiB are kept", document.len());
            return Err(PolicyError::new("policy", reason).into());
        }
        let mut request_id = [0_u8; 16];
        // Without randomness a lost reply shows as a conflict, nothing worse.
        let request_id = match getrandom::fill(&mut request_id) {
            Ok(()) => request_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            Err(_) => String::new(),
        };
        let now = self.store.now();
        let keys = save_policy::Keys { policy: &self.keys.policy };
        let expected_text = expected.to_string();
        let args = save_policy::Args {
            expected: &expected_text,
            document: &document,
            now_ms: now,
            request_id: &request_id,
        };
        let (result, version): (String, u64) = save_policy::run(&self.store, keys, args).await?;
        if result == "conflict" {
            return Err(Error::Conflict { expected, current: version });
        }
        self.announce(version).await;
        Ok(PolicyVersion { version, policy, changed_at: Some(now) })
    }

    /// Changes the policy as a function says, again if another change came in between.
    pub async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Policy) -> Result<T, Error>,
    ) -> Result<(PolicyVersion, T), Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let PolicyVersion { version, mut policy, .. } = self.load().await?;
            let result = change(&mut policy)?;
            match self.save(version, policy).await {
                Ok(saved) => return Ok((saved, result)),
                Err(Error::Conflict { .. }) if attempt < 10 => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn announce(&self, version: u64) {
        let mut store = self.store.clone();
        let published = redis::cmd("PUBLISH").arg(&self.keys.changed).arg(version).to_owned();
        // The document is saved: without the announcement others see it when they look next.
        if let Err(error) = published.query_async::<()>(&mut store).await {
            tracing::warn!(%error, "a change of the policy was not announced");
        }
    }

    /// Calls with every new version until cancelled: after an announcement, after a gap, and in any
    /// case every 10 s.
    pub async fn follow(
        &self,
        mut known: u64,
        cancel: CancellationToken,
        mut apply: impl FnMut(PolicyVersion),
    ) {
        while !cancel.is_cancelled() {
            let subscribed = self.store.subscribe(&[self.keys.changed.as_str()], &[]).await;
            let Ok(mut changes) = subscribed else {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => continue,
                }
            };
            loop {
                let wait = match self.load().await {
                    Ok(loaded) => {
                        if loaded.version != known {
                            known = loaded.version;
                            apply(loaded);
                        }
                        POLL
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the policy cannot be read");
                        RETRY
                    }
                };
                let message = tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(wait) => continue,
                    message = changes.recv() => message,
                };
                if message.is_none() {
                    break;
                }
            }
        }
    }
}
