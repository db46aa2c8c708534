//! The keys that change at the source while it is copied.
//!
//! A server publishes an event for every key it changes (`notify-keyspace-events`). They are
//! collected until the copy asks for them. Events can get lost with a connection; then the tracker
//! knows that it does not know, and everything has to be compared again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::cmd;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::invalid;
use crate::{Error, PubsubMessage, Store, Subscription};

const SETTING: &str = "notify-keyspace-events";
/// Events of every class, by key.
const EVENTS: &str = "AE";
const PATTERN: &str = "__keyevent@*__:*";
/// Changed keys that are remembered; above, everything counts as changed.
const KEYS_MOST: usize = 1_000_000;
/// Time within which a published message comes back.
const ECHO_TIMEOUT: Duration = Duration::from_secs(30);

/// Collects the keys that change.
pub(crate) struct ChangeTracker {
    store: Store,
    shared: Arc<Mutex<ChangedKeys>>,
    /// The setting as it was before.
    before: String,
    /// Channel by which it is found out that all events have arrived.
    channel: String,
    echo: watch::Receiver<u64>,
    asked: u64,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct ChangedKeys {
    keys: BTreeSet<Vec<u8>>,
    /// Some changes are not known.
    has_gap: bool,
}

impl ChangeTracker {
    /// Starts to collect. Fails where the server does not let this user set it up.
    pub(crate) async fn start(store: &Store) -> Result<Self, Error> {
        let mut connection = store.clone();
        let before: Vec<String> =
            cmd("CONFIG").arg("GET").arg(SETTING).query_async(&mut connection).await?;
        let before = before.into_iter().nth(1).unwrap_or_default();
        let channel = format!("tidegate:copy:{:016x}", fastrand::u64(..));
        let subscription = store.subscribe(&[&channel], &[PATTERN]).await?;
        let events: String = format!(
            "{EVENTS}{}",
            before.chars().filter(|c| !EVENTS.contains(*c)).collect::<String>()
        );
        cmd("CONFIG")
            .arg("SET")
            .arg(SETTING)
            .arg(events)
            .query_async::<()>(&mut connection)
            .await?;
        let shared = Arc::new(Mutex::new(ChangedKeys::default()));
        let (told, echo) = watch::channel(0);
        let task = tokio::spawn(collect(subscription, channel.clone(), Arc::clone(&shared), told));
        let task = AbortOnDropHandle::new(task);
        Ok(Self { store: store.clone(), shared, before, channel, echo, asked: 0, _task: task })
    }

    /// Waits until every event of changes made until now has arrived, and takes the changed keys;
    /// none if some are not known.
    pub(crate) async fn take(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        self.asked += 1;
        let asked = self.asked;
        cmd("PUBLISH")
            .arg(&self.channel)
            .arg(asked)
            .query_async::<()>(&mut self.store.clone())
            .await?;
        let arrived = self.echo.wait_for(|seen| *seen >= asked);
        let lost = match tokio::time::timeout(ECHO_TIMEOUT, arrived).await {
            Ok(Ok(_)) => false,
            Ok(Err(_)) => return Err(invalid("the subscription to the source's events has ended")),
            // A connection that broke: the message is lost, and so may events be.
            Err(_) => true,
        };
        let mut changed = self.shared.lock();
        let has_gap = std::mem::take(&mut changed.has_gap) || lost;
        let keys = std::mem::take(&mut changed.keys).into_iter().collect();
        Ok((!has_gap).then_some(keys))
    }

    /// Stops, and leaves the setting as it was found.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        let mut restore = cmd("CONFIG");
        restore.arg("SET").arg(SETTING).arg(&self.before);
        Ok(restore.query_async::<()>(&mut self.store.clone()).await?)
    }
}

async fn collect(
    mut subscription: Subscription,
    channel: String,
    shared: Arc<Mutex<ChangedKeys>>,
    echo: watch::Sender<u64>,
) {
    while let Some(message) = subscription.recv().await {
        match message {
            PubsubMessage::Published { channel: at, payload, .. } if at == channel => {
                let seen = std::str::from_utf8(&payload).ok().and_then(|text| text.parse().ok());
                echo.send_replace(seen.unwrap_or_default());
            }
            PubsubMessage::Published { payload, .. } => {
                let mut changed = shared.lock();
                if changed.keys.len() < KEYS_MOST {
                    changed.keys.insert(payload.to_vec());
                } else {
                    changed.has_gap = true;
                }
            }
            PubsubMessage::Gap => shared.lock().has_gap = true,
        }
    }
}
