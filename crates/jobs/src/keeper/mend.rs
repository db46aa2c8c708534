//! The side indexes, kept true: strays get their lanes, tombs are cleared, idle routes forgotten.

use std::{collections::HashMap, time::Duration};

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
};

use super::Keeper;
use crate::{Error, Route, scripts};

/// How often the lanes are counted.
const CHECK: Duration = Duration::from_secs(10);

/// How long a route must have been idle to be forgotten, and how many are forgotten in one call.
const IDLE: Duration = Duration::from_secs(30);
const FORGET: usize = 100;

/// How many tombs there may be beside an eighth of what is in line.
const TOMBS: usize = 64;

impl Keeper {
    /// Says how many strays got their lane.
    pub(super) async fn mend(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        self.limbo().await?;
        let mut placed = 0;
        // Strays are noted when a script opens the line, so a round that does nothing else opens it.
        for _ in 0..50 {
            let more = self.jobs.place_strays([]).await?;
            let found = self.jobs.ingest().await?;
            placed += found;
            if more + found == 0 {
                break;
            }
        }
        let (length, tombs): (usize, Option<usize>) = redis::pipe()
            .llen(keys.waiting())
            .hget(keys.index(), "tombs")
            .query_async(&mut store)
            .await?;
        let tombs = tombs.unwrap_or(0).min(length);
        if tombs > TOMBS + (length - tombs) / 8 {
            self.compact(None).await?;
        }
        let now = self.jobs.now();
        let due = {
            let mut memory = self.memory.lock();
            let due = memory.checked.is_none_or(|at| now.since(at) >= CHECK || now < at);
            if due {
                memory.checked = Some(now);
            }
            due
        };
        if due {
            self.count(length - tombs, now).await?;
        }
        Ok(placed)
    }

    /// Ids in line that had no data: they get their lane once it is there, and go when it does not
    /// come.
    async fn limbo(&self) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let ids: Vec<(String, i64)> = store.zrange_withscores(keys.limbo(), 0, 199).await?;
        for (id, until) in ids {
            let known: bool = store.exists(keys.data(&id)).await?;
            if known {
                let () = redis::pipe()
                    .atomic()
                    .zrem(keys.limbo(), &id)
                    .ignore()
                    .rpush(keys.strays(), &id)
                    .ignore()
                    .query_async(&mut store)
                    .await?;
            } else if Millis(until) <= self.jobs.now() {
                tracing::warn!(job = %id, "id in line without data dropped");
                let () = redis::pipe()
                    .atomic()
                    .lrem(keys.waiting(), 1, &id)
                    .ignore()
                    .zrem(keys.limbo(), &id)
                    .ignore()
                    .query_async(&mut store)
                    .await?;
            }
        }
        Ok(())
    }

    /// Compares the lanes with the line. If jobs in line have no lane, or lanes are full of what is
    /// not in line any more, twice in a row, everything gets its lane anew.
    async fn count(&self, live: usize, now: Millis) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let routes = self.jobs.routes_in_use().await?;
        let strays: usize = store.llen(keys.strays()).await?;
        let mut entries = 0;
        let mut lanes: Vec<(String, Vec<Key>)> = Vec::new();
        let mut idle = Vec::new();
        for (name, text, mask) in &routes {
            let Some(route) = Route::parse(text) else { continue };
            let (id, _) = route.name();
            if id.as_str() != name {
                continue;
            }
            let all: Vec<Key> = (1..=10).map(|priority| keys.lane(&id, priority)).collect();
            if *mask == 0 {
                idle.push((name.clone(), route.server().unwrap_or_default().to_owned(), all));
                continue;
            }
            let mut pipe = redis::pipe();
            all.iter().for_each(|lane| _ = pipe.llen(lane));
            let lengths: Vec<usize> = pipe.query_async(&mut store).await?;
            entries += lengths.iter().sum::<usize>() / 2;
            lanes.push((name.clone(), all));
        }
        let astray = entries + strays < live || entries > 2 * live + 10_000;
        let anew = {
            let mut memory = self.memory.lock();
            memory.astray = if astray { memory.astray + 1 } else { 0 };
            let anew = memory.astray >= 2;
            if anew {
                memory.astray = 0;
            }
            anew
        };
        if anew {
            tracing::warn!(live, entries, "lanes do not match the line; indexing anew");
            self.compact(Some(lanes)).await?;
        }
        self.forget(idle, now).await
    }

    async fn compact(&self, lanes: Option<Vec<(String, Vec<Key>)>>) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let anew = i32::from(lanes.is_some());
        let (rids, lanes): (Vec<String>, Vec<Vec<Key>>) =
            lanes.unwrap_or_default().into_iter().unzip();
        let (_, tombs): (String, usize) = scripts::compact::run(
            self.jobs.store(),
            scripts::compact::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                strays: keys.strays(),
                lanes: lanes.into_iter().flatten(),
            },
            scripts::compact::Args { now_ms: self.jobs.now(), anew, rids },
        )
        .await?;
        tracing::debug!(tombs, "tombs cleared out of the line");
        Ok(())
    }

    /// Takes routes out of the registry that have been idle for long.
    async fn forget(
        &self,
        idle: Vec<(String, String, Vec<Key>)>,
        now: Millis,
    ) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut known = HashMap::new();
        let mut due = Vec::new();
        {
            let mut memory = self.memory.lock();
            for (name, server, lanes) in idle {
                let since = memory.idle_routes.get(&name).copied().unwrap_or(now);
                if now.since(since) < IDLE {
                    known.insert(name, since);
                } else {
                    due.push((name, server, lanes));
                }
            }
            memory.idle_routes = known;
        }
        for batch in due.chunks(FORGET) {
            let (mut all_keys, mut rest) = (Vec::new(), Vec::new());
            for (name, server, lanes) in batch {
                all_keys.push(match server.as_str() {
                    "" => keys.routes(),
                    server => keys.routes_of(server),
                });
                all_keys.extend(lanes.iter().cloned());
                rest.extend([name.clone(), server.clone()]);
            }
            let keys = scripts::forget::Keys { index: keys.index(), keys: all_keys };
            let args = scripts::forget::Args { rest };
            let (_, count): (String, usize) =
                scripts::forget::run(self.jobs.store(), keys, args).await?;
            tracing::debug!(count, "idle routes forgotten");
        }
        Ok(())
    }
}
