//! Finds endpoints and apps that other programs count by plain `INCRBY`, with a slow walk through the
//! keys.
//!
//! A program that only speaks Redis puts nothing on the lists of endpoints and apps, by which traffic is
//! read. The walk looks at some keys each second, so that it costs nothing that would be noticed, and puts
//! on the lists what it finds. Invariant: the lists stay within their bounds.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use store::{Store, redis};
use tokio_util::sync::CancellationToken;

use super::{ENDPOINTS_MAX, EndpointName, list_app};
use crate::{
    AppName, Error, Prefix,
    keys::{self, CountedKey, TrafficKeys},
    scripts::admit_names,
};

/// Keys that one step looks at.
const STEP_KEYS: usize = 1_000;

/// Interval between steps, and between the end of a walk and the next one.
const STEP_INTERVAL: Duration = Duration::from_secs(1);
const WALK_INTERVAL: Duration = Duration::from_secs(5);

/// Most names of which it is remembered that they were put on a list.
const REMEMBERED_MAX: usize = 10_000;

/// Walks through the keys of a store in search of traffic that other programs count.
#[derive(Debug)]
pub struct TrafficFinder {
    store: Store,
    prefix: Prefix,
    walk: Mutex<Walk>,
}

/// How far the walk has come.
#[derive(Debug, Default)]
struct Walk {
    /// Servers that are left, with the place to go on from.
    left: Vec<(String, u64)>,
    /// Names that were put on their list, and the minute since which: a reset takes them off again.
    listed: (i64, HashSet<(Option<AppName>, String)>),
}

impl TrafficFinder {
    /// Creates a finder; it walks while [`TrafficFinder::run`] runs.
    pub fn new(store: &Store, prefix: &Prefix) -> Self {
        Self { store: store.clone(), prefix: prefix.clone(), walk: Mutex::default() }
    }

    /// Walks until cancelled. `endpoints_most` tells the most endpoints of an app.
    pub async fn run(&self, cancel: CancellationToken, endpoints_most: impl Fn() -> usize) {
        let mut pause = STEP_INTERVAL;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = match self.step(endpoints_most()).await {
                Ok(true) => WALK_INTERVAL,
                Ok(false) => STEP_INTERVAL,
                Err(error) => {
                    tracing::debug!(%error, "traffic that others count was not looked for");
                    WALK_INTERVAL
                }
            };
        }
    }

    /// Looks at the next keys. Returns true at the end of a walk.
    ///
    /// # Errors
    /// The store is out of reach; the walk begins again.
    pub async fn step(&self, endpoints_most: usize) -> Result<bool, Error> {
        let mut left = std::mem::take(&mut self.walk.lock().left);
        if left.is_empty() {
            // In a cluster every server has keys of its own.
            let servers = self.store.on_every_node(&redis::cmd("PING")).await?;
            left = servers.into_iter().map(|(address, _)| (address, 0)).collect();
        }
        let Some((address, cursor)) = left.pop() else { return Ok(true) };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(keys::counted_pattern(&self.prefix));
        scan.arg("COUNT").arg(STEP_KEYS);
        let reply = self.store.on_node(&address, &scan).await?;
        let (next, found): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply)
            .map_err(|error| store::Error::Decode { message: error.to_string() })?;
        self.put_on_lists(&found, endpoints_most).await?;
        if next != 0 {
            left.push((address, next));
        }
        let is_end = left.is_empty();
        self.walk.lock().left = left;
        Ok(is_end)
    }

    async fn put_on_lists(&self, found: &[Vec<u8>], endpoints_most: usize) -> Result<(), Error> {
        let minute = self.store.now().as_secs().div_euclid(60);
        let mut new: BTreeMap<Option<AppName>, Vec<String>> = BTreeMap::new();
        {
            let mut walk = self.walk.lock();
            if walk.listed.0 != minute || walk.listed.1.len() >= REMEMBERED_MAX {
                walk.listed = (minute, HashSet::new());
            }
            for key in found {
                let Some(CountedKey { app, endpoint }) = keys::counted_key(&self.prefix, key)
                else {
                    continue;
                };
                // An app is on its list once it has a name at all; the empty name stands for that.
                if app.is_some() && walk.listed.1.insert((app.clone(), String::new())) {
                    new.entry(app.clone()).or_default();
                }
                let Some(name) = endpoint.filter(|name| EndpointName::is_countable(name)) else {
                    continue;
                };
                if walk.listed.1.insert((app.clone(), name.clone())) {
                    new.entry(app).or_default().push(name);
                }
            }
        }
        for (app, names) in new {
            if let Some(app) = &app {
                match list_app(&self.store, &keys::apps(&self.prefix), app).await {
                    Ok(()) => {}
                    // There are as many as are kept.
                    Err(Error::Invalid { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            if names.is_empty() {
                continue;
            }
            let keys = TrafficKeys::new(self.store.layout(), &self.prefix, app.as_ref());
            let _: Vec<redis::Value> = admit_names::run(
                &self.store,
                admit_names::Keys { known: &keys.endpoints },
                admit_names::Args { most: endpoints_most.min(ENDPOINTS_MAX), names },
            )
            .await?;
        }
        Ok(())
    }
}
