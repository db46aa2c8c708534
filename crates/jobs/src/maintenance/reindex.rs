//! The side indexes, kept true: unindexed ids get their lanes, lanes their entries, tombstones are cleared, idle
//! pools forgotten.

use std::{collections::HashMap, time::Duration};

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
};

use super::JobsMaintenance;
use crate::{
    Error, JobRoute, Priority,
    lanes::{LaneRef, Lanes, ListedLane},
    route::{Pool, PoolId},
    scripts,
};

/// Interval at which the lanes are counted.
const CHECK: Duration = Duration::from_secs(10);

/// Idle time after which a pool is forgotten.
const IDLE: Duration = Duration::from_secs(30);

/// Most entries handled in one call.
const BATCH: usize = 200;

/// Tombstones allowed beside an eighth of the waiting list.
const TOMBS: usize = 64;

impl JobsMaintenance {
    /// Returns how many unindexed ids got their lane.
    pub(super) async fn reindex(&self) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        self.limbo().await?;
        self.unpark().await?;
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
            self.compact(false).await?;
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

    /// Waiting ids that had no data: they get their lane once it is there, and go when it does not
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
                    .rpush(keys.unindexed(), &id)
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

    /// Compares the lanes with the line. If waiting jobs have no lane, or lanes are full of what is
    /// not in line any more, twice in a row, everything is indexed again.
    async fn count(&self, live: usize, now: Millis) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        self.take_over().await?;
        let strays: usize = store.llen(keys.unindexed()).await?;
        let pools = self.jobs.pools().await?;
        let all = self.jobs.listed(&pools).await?;
        let mut lanes: HashMap<Key, usize> = HashMap::new();
        let (mut idle, mut wrong) = (Vec::new(), Vec::new());
        for (pool, listed) in pools.iter().zip(&all) {
            if listed.is_empty() && !pool.is_open() {
                idle.push(pool.clone());
            }
            lanes.extend(listed.iter().map(|lane| (keys.lane(&lane.route, lane.priority), 0)));
        }
        let (names, mut entries): (Vec<Key>, usize) = (lanes.keys().cloned().collect(), 0);
        for (name, length) in names.iter().zip(self.jobs.lengths(&names).await?) {
            entries += length;
            lanes.insert(name.clone(), length);
        }
        for (pool, listed) in pools.iter().zip(&all) {
            for lane in listed {
                let empty = lanes.get(&keys.lane(&lane.route, lane.priority)) == Some(&0);
                if empty || lane.parked && !self.is_parked(pool, lane).await? {
                    wrong.push((pool.id, lane.clone()));
                }
            }
        }
        self.mend_lanes("true", &wrong).await?;
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
            tracing::warn!(live, entries, "lanes do not match the queue; rebuilding the index");
            let listed: Vec<(PoolId, ListedLane)> = pools
                .iter()
                .zip(all)
                .flat_map(|(pool, lanes)| lanes.into_iter().map(|lane| (pool.id, lane)))
                .collect();
            self.mend_lanes("clear", &listed).await?;
            self.compact(true).await?;
        }
        self.forget(idle, now).await
    }

    /// Is a lane that ranks behind all others known to wait for a place?
    async fn is_parked(&self, pool: &Pool, lane: &ListedLane) -> Result<bool, Error> {
        let keys = self.jobs.keys();
        let job_type = lane.job_type.as_str();
        let (entry, listed): (Option<f64>, Option<f64>) = redis::pipe()
            .zscore(keys.parked_of(job_type), format!("{} {}", pool.id, lane.member))
            .zscore(keys.parked(), job_type)
            .query_async(&mut self.jobs.store().clone())
            .await?;
        Ok(entry.is_some() && listed.is_some())
    }

    /// Makes entries of lanes true, or clears the lanes.
    async fn mend_lanes(&self, mode: &str, lanes: &[(PoolId, ListedLane)]) -> Result<(), Error> {
        let keys = self.jobs.keys();
        for lanes in lanes.chunks(BATCH) {
            let (_, held): (String, usize) = scripts::reindex::run(
                self.jobs.store(),
                scripts::reindex::Keys {
                    keys: lanes.iter().flat_map(|(pool, lane)| lane.keys(keys, pool)),
                },
                scripts::reindex::Args {
                    mode,
                    members: lanes.iter().map(|(_, lane)| lane.member.as_str()),
                },
            )
            .await?;
            tracing::debug!(mode, lanes = lanes.len(), held, "entries of lanes made true");
        }
        Ok(())
    }

    /// Has lanes looked at again whose type has a free place though nobody said so: v1 workers give
    /// places back, and programs resume types, without a word.
    pub(super) async fn unpark(&self) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let cursor = self.memory.lock().parked_cursor;
        let (next, job_types): (u64, Vec<(String, f64)>) = redis::cmd("ZSCAN")
            .arg(keys.parked())
            .arg(cursor)
            .arg("COUNT")
            .arg(BATCH)
            .query_async(&mut store)
            .await?;
        self.memory.lock().parked_cursor = next;
        for (job_type, due) in job_types {
            if due.is_finite() {
                continue;
            }
            let (paused, running, parked): (bool, Option<i64>, Vec<String>) = redis::pipe()
                .sismember(keys.paused(), &job_type)
                .get(keys.running(&job_type))
                .zrange(keys.parked_of(&job_type), 0, 99)
                .query_async(&mut store)
                .await?;
            let most = parked.iter().map(|entry| {
                // The third word of a lane, after its pool.
                let most = entry.split(' ').nth(3).and_then(|most| most.parse().ok());
                most.unwrap_or(i64::MAX)
            });
            let free = most.max().is_none_or(|most| running.unwrap_or(0) < most);
            if free && !paused {
                let () = redis::pipe()
                    .atomic()
                    .cmd("ZADD")
                    .arg(keys.parked())
                    .arg("XX")
                    .arg(0)
                    .arg(&job_type)
                    .ignore()
                    .publish(keys.wake(), "free")
                    .ignore()
                    .query_async(&mut store)
                    .await?;
            }
        }
        Ok(())
    }

    /// Lists the lanes of an earlier layout, which named its routes in registries and said in the
    /// index which of their lanes hold jobs.
    async fn take_over(&self) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut store = self.jobs.store().clone();
        let mut registries = vec![keys.earlier(None)];
        let (mut workers, mut masks, mut cursor) = (Vec::new(), Vec::new(), 0u64);
        let [routes, blocked] = keys.earlier(None);
        let known: usize = store.exists(&[&routes, &blocked]).await?;
        let marked: bool = store.hexists(keys.index(), "layout").await?;
        if known == 0 && marked {
            return Ok(());
        }
        loop {
            let (next, fields): (u64, Vec<(String, String)>) = redis::cmd("HSCAN")
                .arg(keys.index())
                .arg(cursor)
                .arg("COUNT")
                .arg(BATCH)
                .query_async(&mut store)
                .await?;
            for (field, _) in fields {
                if field.starts_with("m:") {
                    masks.push(field);
                } else if let Some(worker_id) = field.strip_prefix("v:").filter(|s| !s.is_empty()) {
                    workers.push(worker_id.to_owned());
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        registries.extend(workers.iter().map(|worker_id| keys.earlier(Some(worker_id))));
        let mut listed = 0;
        for [registry, _] in &registries {
            let texts: HashMap<String, String> = store.hgetall(registry).await?;
            let routes: Vec<JobRoute> =
                texts.values().filter_map(|text| JobRoute::parse(text)).collect();
            for routes in routes.chunks(BATCH / 10) {
                listed += self.list(routes).await?;
            }
        }
        for masks in masks.chunks(BATCH) {
            let () = store.hdel(keys.index(), masks).await?;
        }
        let mut pipe = redis::pipe();
        pipe.hset(keys.index(), "layout", 2).ignore().del(&blocked).ignore();
        registries.iter().for_each(|[registry, _]| _ = pipe.del(registry).ignore());
        let () = pipe.query_async(&mut store).await?;
        if listed > 0 {
            tracing::info!(listed, "lanes of an earlier layout taken over");
        }
        Ok(())
    }

    /// Lists the lanes of some routes that hold jobs. Returns how many do.
    async fn list(&self, routes: &[JobRoute]) -> Result<usize, Error> {
        let keys = self.jobs.keys();
        let mut lanes = Lanes::default();
        for route in routes {
            for priority in (1..=10).filter_map(|priority| Priority::new(priority).ok()) {
                lanes.number(keys, &LaneRef::at(route, priority));
            }
        }
        let count = lanes.count();
        let (all_keys, rest) = lanes.into_parts();
        let (_, listed): (String, usize) = scripts::list::run(
            self.jobs.store(),
            scripts::list::Keys { index: keys.index(), keys: all_keys },
            scripts::list::Args { wake: keys.wake(), lanes: count, rest },
        )
        .await?;
        Ok(listed)
    }

    async fn compact(&self, anew: bool) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let (_, tombs): (String, usize) = scripts::compact::run(
            self.jobs.store(),
            scripts::compact::Keys {
                waiting: keys.waiting(),
                index: keys.index(),
                unindexed: keys.unindexed(),
            },
            scripts::compact::Args { now_ms: self.jobs.now(), anew: i32::from(anew) },
        )
        .await?;
        tracing::debug!(tombs, "tombstones removed from the waiting list");
        Ok(())
    }

    /// Takes pools out of their registry that have been idle for long.
    async fn forget(&self, idle: Vec<Pool>, now: Millis) -> Result<(), Error> {
        let keys = self.jobs.keys();
        let mut known = HashMap::new();
        let mut due = Vec::new();
        {
            let mut memory = self.memory.lock();
            for pool in idle {
                let since = memory.idle_pools.get(&pool.id).copied().unwrap_or(now);
                if now.since(since) < IDLE {
                    known.insert(pool.id, since);
                } else {
                    due.push(pool);
                }
            }
            memory.idle_pools = known;
        }
        for batch in due.chunks(BATCH) {
            let (mut all_keys, mut rest) = (Vec::new(), Vec::new());
            for pool in batch {
                let (registry, entry, field) = self.jobs.registration(pool);
                all_keys.extend([keys.ready(&pool.id), registry]);
                // How many pools were seen in all is not forgotten.
                rest.extend([entry, if pool.worker().is_some() { field } else { String::new() }]);
            }
            let keys = scripts::forget::Keys { index: keys.index(), keys: all_keys };
            let args = scripts::forget::Args { rest };
            let (_, count): (String, usize) =
                scripts::forget::run(self.jobs.store(), keys, args).await?;
            tracing::debug!(count, "idle pools forgotten");
        }
        Ok(())
    }
}
