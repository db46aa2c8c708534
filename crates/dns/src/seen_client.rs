//! Clients that were seen, by all instances together: which are new, and which are not known yet.

use store::{Millis, Store, redis};

use crate::{Error, keys::PeopleKeys};

/// Most clients that are remembered; those not seen for the longest time go first.
const CLIENTS_MAX: isize = 10_000;

/// A client that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenClient {
    /// Address or id, as the log has it.
    pub client: String,
    /// Last time.
    pub seen_at: Millis,
}

/// The clients in the store. A cheap clone.
#[derive(Clone, Debug)]
pub struct SeenClients {
    store: Store,
    keys: PeopleKeys,
}

impl SeenClients {
    /// Opens the clients of a store.
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone(), keys: PeopleKeys::new() }
    }

    /// Notes that clients were seen. Returns those that no instance had seen before.
    pub async fn note(&self, clients: &[String], now: Millis) -> Result<Vec<String>, Error> {
        if clients.is_empty() {
            return Ok(Vec::new());
        }
        let key = &self.keys.seen_clients;
        let mut pipe = redis::pipe();
        for client in clients {
            pipe.cmd("ZADD").arg(key).arg("NX").arg(now.0).arg(client);
            pipe.cmd("ZADD").arg(key).arg("XX").arg(now.0).arg(client).ignore();
        }
        pipe.cmd("ZREMRANGEBYRANK").arg(key).arg(0).arg(-(CLIENTS_MAX + 1)).ignore();
        let added: Vec<u64> = pipe.query_async(&mut self.store.clone()).await?;
        let new = clients.iter().zip(added).filter(|(_, added)| *added > 0);
        Ok(new.map(|(client, _)| client.clone()).collect())
    }

    /// Returns the clients seen last, the latest first.
    pub async fn latest(&self, limit: usize) -> Result<Vec<SeenClient>, Error> {
        let last = isize::try_from(limit).unwrap_or(CLIENTS_MAX).min(CLIENTS_MAX) - 1;
        if last < 0 {
            return Ok(Vec::new());
        }
        let found: Vec<(String, f64)> = redis::cmd("ZREVRANGE")
            .arg(&self.keys.seen_clients)
            .arg(0)
            .arg(last)
            .arg("WITHSCORES")
            .query_async(&mut self.store.clone())
            .await?;
        let seen = found.into_iter().map(|(client, ms)| {
            // Scores are milliseconds, which a double holds exactly.
            SeenClient { client, seen_at: Millis(ms as i64) }
        });
        Ok(seen.collect())
    }

    /// Forgets a client; false if it was not known.
    pub async fn forget(&self, client: &str) -> Result<bool, Error> {
        let removed: u64 = redis::cmd("ZREM")
            .arg(&self.keys.seen_clients)
            .arg(client)
            .query_async(&mut self.store.clone())
            .await?;
        Ok(removed > 0)
    }
}
