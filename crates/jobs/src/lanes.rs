//! Lanes: the waiting jobs of one route and one priority, and where those that hold jobs are listed.
//!
//! ```text
//! pool (what a worker must offer)   jobs:ready:POOL        lanes that hold jobs, best first
//!   `- type                         jobs:ready:POOL:TYPE   those of one type
//!        `- lane (route, priority)  jobs:lane:ROUTE:P      number, id, number, id, ...
//! ```
//!
//! A worker is in few pools, so a claim looks at a few sorted sets, however many types, targets and
//! limits there are. Scripts that put jobs in line take the lanes first and then name a lane by its
//! number. Invariants: a lane that holds jobs is listed in all its pools, by a score that is at most
//! the rank of its first job; an entry without a lane is dropped when a claim meets it.

use std::collections::HashMap;

use store::{
    Key,
    redis::{self, AsyncCommands as _},
    script::Arg,
};

use crate::{
    Error, Job, JobRoute, JobType, Jobs, Priority, RateLimit,
    keys::Keys,
    reads::Replies,
    route::{Pool, PoolId, RouteId},
};

/// Number of lanes of a pool that are read at a time, of pools in one call, and of names of pools.
const CHUNK: usize = 500;
const POOLS_TOGETHER: usize = 500;
const PAGE: usize = 5_000;

/// From this score on a lane is parked; see `rank.lua`.
const PARKED: f64 = 2e15;

/// A route by its name, and everything a script wants to know of it.
#[derive(Clone, Debug)]
pub(crate) struct LaneRef {
    pub(crate) route: RouteId,
    pub(crate) priority: Priority,
    limit: RateLimit,
    job_type: JobType,
    pools: Vec<Pool>,
}

impl LaneRef {
    /// Returns the lane of a job.
    pub(crate) fn of(job: &Job) -> Self {
        Self::at(&JobRoute::of(job), job.priority)
    }

    /// Returns the lane of a route and a priority.
    pub(crate) fn at(route: &JobRoute, priority: Priority) -> Self {
        let (name, _) = route.name();
        let (limit, job_type) = (route.limit, route.job_type.clone());
        Self { route: name, priority, limit, job_type, pools: route.pools() }
    }

    /// Returns the type of its jobs.
    pub(crate) fn job_type(&self) -> &JobType {
        &self.job_type
    }

    fn member(&self) -> String {
        let number = |most: Option<u32>| most.map(|most| most.to_string()).unwrap_or_default();
        let Self { route, priority, limit, job_type, .. } = self;
        let (concurrent, minute) = (number(limit.max_concurrent), number(limit.max_per_minute));
        format!("{route} {} {concurrent} {minute} {job_type}", priority.get())
    }
}

/// The lanes of one call.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    known: HashMap<(RouteId, Priority), usize>,
    keys: Vec<Key>,
    args: Vec<Arg<'static>>,
}

impl Lanes {
    /// The lane of one place.
    pub(crate) fn one(keys: &Keys, place: &LaneRef) -> Self {
        let mut lanes = Self::default();
        lanes.number(keys, place);
        lanes
    }

    /// The number of a lane in this call.
    pub(crate) fn number(&mut self, keys: &Keys, place: &LaneRef) -> usize {
        let next = self.known.len() + 1;
        *self.known.entry((place.route, place.priority)).or_insert_with(|| {
            self.keys.push(keys.lane(&place.route, place.priority.get()));
            self.args.extend([
                Arg::Number(place.priority.get().into()),
                Arg::String(place.member()),
                place.pools.len().into(),
            ]);
            for pool in &place.pools {
                self.keys.push(keys.ready(&pool.id));
                self.keys.push(keys.ready_of(&pool.id, place.job_type.as_str()));
                let (registry, entry, field) = registration(keys, pool);
                self.keys.push(registry);
                self.args.extend([
                    Arg::String(format!("{} {}", pool.id, place.job_type)),
                    Arg::String(entry),
                    Arg::String(field),
                ]);
            }
            next
        })
    }

    /// Returns the number of lanes.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// The keys and arguments of the lanes, to be followed by those of the jobs.
    pub(crate) fn into_parts<'a>(self) -> (Vec<Key>, Vec<Arg<'a>>) {
        (self.keys, self.args)
    }
}

/// Returns the registry key of a pool, its entry, and the index field that counts such entries. Of the
/// pool that everybody knows the field is empty.
fn registration(keys: &Keys, pool: &Pool) -> (Key, String, String) {
    match pool.worker() {
        Some(worker_id) => (keys.pinned(), worker_id.to_owned(), format!("v:{worker_id}")),
        None if pool.is_open() => (keys.pools(), String::new(), String::new()),
        None => (keys.pools(), pool.text.clone(), "v:".to_owned()),
    }
}

/// A lane as it is listed in a pool.
#[derive(Clone, Debug)]
pub(crate) struct ListedLane {
    pub(crate) member: String,
    pub(crate) route: RouteId,
    pub(crate) priority: u8,
    pub(crate) limit: RateLimit,
    pub(crate) job_type: JobType,
    pub(crate) parked: bool,
}

impl ListedLane {
    fn read(member: &str, score: f64) -> Option<Self> {
        let mut words = member.splitn(5, ' ');
        let mut next = || words.next();
        let (route, priority) = (RouteId::read(next()?)?, next()?.parse().ok()?);
        let limit = |text: &str| if text.is_empty() { None } else { text.parse().ok() };
        let limit = RateLimit { max_concurrent: limit(next()?), max_per_minute: limit(next()?) };
        let job_type = JobType::stored(next()?);
        let parked = score >= PARKED;
        Some(Self { member: member.to_owned(), route, priority, limit, job_type, parked })
    }

    /// Of a lane as it is listed: the lane and both sets it is listed in.
    pub(crate) fn keys(&self, keys: &Keys, pool: &PoolId) -> [Key; 3] {
        [
            keys.lane(&self.route, self.priority),
            keys.ready(pool),
            keys.ready_of(pool, self.job_type.as_str()),
        ]
    }
}

/// Adds reads of the registered pools.
pub(crate) fn add_pools(pipe: &mut redis::Pipeline, keys: &Keys) {
    for key in [keys.pools(), keys.pinned()] {
        pipe.zrange(key, 0, PAGE.cast_signed() - 1);
    }
}

/// Adds reads of the lanes that are listed in some pools.
pub(crate) fn add_listed(pipe: &mut redis::Pipeline, keys: &Keys, pools: &[Pool]) {
    for pool in pools {
        pipe.zrange_withscores(keys.ready(&pool.id), 0, CHUNK.cast_signed() - 1);
    }
}

impl Jobs {
    /// All pools that are registered, and the one that everybody knows.
    pub(crate) async fn pools(&self) -> Result<Vec<Pool>, Error> {
        let mut pipe = redis::pipe();
        add_pools(&mut pipe, self.keys());
        self.rest_of_pools(&mut self.read(&pipe).await?).await
    }

    /// Takes the registered pools, and reads those that were not asked for yet.
    pub(crate) async fn rest_of_pools(&self, replies: &mut Replies) -> Result<Vec<Pool>, Error> {
        let (shared, pinned): (Vec<String>, Vec<String>) = (replies.take()?, replies.take()?);
        let mut pools = vec![Pool::open()];
        for text in self.rest_of_page(&self.keys().pools(), shared).await? {
            pools.extend(Pool::parse(&text));
        }
        let pinned = self.rest_of_page(&self.keys().pinned(), pinned).await?;
        pools.extend(pinned.iter().map(|worker_id| Pool::of_worker(worker_id)));
        Ok(pools)
    }

    async fn rest_of_page(
        &self,
        key: &Key,
        mut members: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let mut store = self.store().clone();
        let mut is_full = members.len() == PAGE;
        while is_full {
            let from = members.len().cast_signed();
            let page: Vec<String> = store.zrange(key, from, from + PAGE.cast_signed() - 1).await?;
            is_full = page.len() == PAGE;
            members.extend(page);
        }
        Ok(members)
    }

    /// The lanes that are listed in each of some pools, in the order of the pools.
    pub(crate) async fn listed(&self, pools: &[Pool]) -> Result<Vec<Vec<ListedLane>>, Error> {
        let mut all = Vec::with_capacity(pools.len());
        for pools in pools.chunks(POOLS_TOGETHER) {
            let mut pipe = redis::pipe();
            add_listed(&mut pipe, self.keys(), pools);
            all.extend(self.rest_of_listed(&mut self.read(&pipe).await?, pools).await?);
        }
        Ok(all)
    }

    /// Takes the lanes of some pools, and reads those that were not asked for yet.
    pub(crate) async fn rest_of_listed(
        &self,
        replies: &mut Replies,
        pools: &[Pool],
    ) -> Result<Vec<Vec<ListedLane>>, Error> {
        let mut store = self.store().clone();
        let mut all = Vec::with_capacity(pools.len());
        let first: Vec<Vec<(String, f64)>> = replies.take_each(pools.len())?;
        for (pool, mut page) in pools.iter().zip(first) {
            let mut lanes: Vec<ListedLane> = Vec::new();
            let mut from = 0;
            loop {
                let count = page.len();
                from += count.cast_signed();
                let read = |(member, score): &(String, f64)| ListedLane::read(member, *score);
                lanes.extend(page.iter().filter_map(read));
                if count < CHUNK {
                    break;
                }
                let (ready, to) = (self.keys().ready(&pool.id), from + CHUNK.cast_signed() - 1);
                page = store.zrange_withscores(ready, from, to).await?;
            }
            all.push(lanes);
        }
        Ok(all)
    }

    /// Returns the number of entries of each lane.
    pub(crate) async fn lengths(&self, lanes: &[Key]) -> Result<Vec<usize>, Error> {
        let mut store = self.store().clone();
        let mut lengths = Vec::with_capacity(lanes.len());
        for lanes in lanes.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            lanes.iter().for_each(|lane| _ = pipe.llen(lane));
            let page: Vec<usize> = pipe.query_async(&mut store).await?;
            lengths.extend(page.into_iter().map(|length| length / 2));
        }
        Ok(lengths)
    }

    /// Returns what maintenance needs to remove a pool from its registry.
    pub(crate) fn registration(&self, pool: &Pool) -> (Key, String, String) {
        registration(self.keys(), pool)
    }
}
