//! Looking at jobs: one, many, counts. Nothing here changes anything.

use std::collections::{BTreeMap, HashMap};

use store::{
    Key, Millis,
    redis::{self, AsyncCommands as _},
};

use crate::{
    Error, FailedAttempt, Job, JobEndReason, JobId, JobLease, JobProgress, JobResult, Jobs, Labels,
    Status, WorkerId,
    claim::claim_time,
    keys::Keys,
    lanes::{ListedLane, add_pools},
    overview::add_members,
    reads::Replies,
    route::{JobRoute, Pool, RouteId},
    workers::{WorkerView, add_worker_scan},
};

/// Most jobs on one page of a list.
pub const PAGE_MAX: usize = 1_000;

/// Everything there is to know about one job.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The job.
    pub job: Job,
    /// Its state.
    pub status: Status,
    /// The result of its latest attempt.
    pub result: Option<JobResult>,
    /// Its progress.
    pub progress: Option<JobProgress>,
    /// The worker that runs it, or ran it last.
    pub worker_id: Option<String>,
    /// Time at which that worker claimed it.
    pub claimed_at: Option<Millis>,
    /// Reason for which it ended without success, if it did.
    pub reason: Option<JobEndReason>,
    /// Its failed attempts, oldest first.
    pub history: Vec<FailedAttempt>,
    /// Time at which it comes due, if it is delayed.
    pub due: Option<Millis>,
    /// Jobs it still waits for.
    pub pending: Vec<JobId>,
}

/// Counts of jobs by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JobCounts {
    /// In line.
    pub waiting: usize,
    /// Running.
    pub active: usize,
    /// Waiting for their time.
    pub delayed: usize,
    /// Schedules.
    pub cron: usize,
    /// In the dead letters.
    pub dead: usize,
    /// Ended and kept for a while.
    pub finished: usize,
    /// Live workers.
    pub workers: usize,
    /// Jobs that succeeded, ever.
    pub processed: u64,
    /// Attempts that failed, ever.
    pub failed: u64,
    /// Total run time of the jobs that succeeded, in milliseconds.
    pub processing_ms: u64,
    /// Job types that are paused.
    pub paused: Vec<String>,
}

/// Waiting jobs that wait at one place.
#[derive(Clone, Debug)]
pub struct LaneView {
    /// The route they share.
    pub route: JobRoute,
    /// Number of jobs per priority from 1 to 10; a job that was just claimed may
    /// still be counted.
    pub waiting: [usize; 10],
    /// Is there a live worker that may take them?
    pub routable: bool,
    /// Is their type paused?
    pub paused: bool,
}

/// A list of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobList {
    /// In line, the next for v1 first.
    Waiting,
    /// Running, in no order.
    Active,
    /// Waiting for their time, the next first.
    Delayed,
    /// Dead letters, newest first.
    Dead,
    /// Ended, newest first.
    Finished,
}

impl JobList {
    /// All of them, in the order in which a walk through everything takes them.
    pub const ALL: [Self; 5] =
        [Self::Active, Self::Waiting, Self::Delayed, Self::Dead, Self::Finished];

    /// The list of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|which| which.as_str() == text)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Delayed => "delayed",
            Self::Dead => "dead",
            Self::Finished => "finished",
        }
    }
}

impl Jobs {
    /// One job as it is stored, or `None`.
    pub async fn get(&self, id: &JobId) -> Result<Option<Job>, Error> {
        let mut store = self.store().clone();
        let data: Option<Vec<u8>> = store.get(self.keys().data(id.as_str())).await?;
        match data {
            None => Ok(None),
            Some(data) => match Job::parse(id.clone(), &data) {
                Ok(job) => Ok(Some(job)),
                Err(error) => Err(Error::Malformed { id: id.clone(), reason: error.to_string() }),
            },
        }
    }

    /// A job's state. A job whose result says success has completed, even where a slow v1 producer
    /// wrote `waiting` after the fact.
    pub async fn status(&self, id: &JobId) -> Result<Option<Status>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let (status, result, claimed, next): (Option<String>, Option<Vec<u8>>, bool, Option<f64>) =
            redis::pipe()
                .get(keys.status(id.as_str()))
                .get(keys.result(id.as_str()))
                .hexists(keys.claims(), id.as_str())
                .zscore(keys.cron(), id.as_str())
                .query_async(&mut store)
                .await?;
        let status = status.as_deref().and_then(Status::parse);
        Ok(settled_status(status, result.as_deref(), claimed || next.is_some()))
    }

    /// Returns the result of a job's latest attempt, or `None`.
    pub async fn result(&self, id: &JobId) -> Result<Option<JobResult>, Error> {
        let mut store = self.store().clone();
        let result: Option<Vec<u8>> = store.get(self.keys().result(id.as_str())).await?;
        Ok(result.and_then(|result| serde_json::from_slice(&result).ok()))
    }

    /// Returns the lease of a job by the parts that identify it, for a caller that kept them
    /// elsewhere. The store decides whether it is still held when it is used.
    pub async fn lease(
        &self,
        id: &JobId,
        worker: &WorkerId,
        token: u64,
    ) -> Result<JobLease, Error> {
        let mut store = self.store().clone();
        let data: Option<Vec<u8>> = store.get(self.keys().data(id.as_str())).await?;
        let data = data.ok_or_else(|| Error::NotFound(id.clone()))?;
        let malformed = |reason: String| Error::Malformed { id: id.clone(), reason };
        let job = Job::parse(id.clone(), &data).map_err(|error| malformed(error.to_string()))?;
        let text = String::from_utf8(data).map_err(|error| malformed(error.to_string()))?;
        Ok(JobLease::from_parts(job, text, worker.as_str(), token, Millis(0)))
    }

    /// Everything about one job, or `None`.
    pub async fn view(&self, id: &JobId) -> Result<Option<JobView>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let Some(job) = self.get(id).await? else { return Ok(None) };
        let name = id.as_str();
        type Parts = (
            Option<String>,
            Option<Vec<u8>>,
            Option<Vec<u8>>,
            Option<String>,
            Option<String>,
            Vec<Vec<u8>>,
            Option<f64>,
            Option<f64>,
            Option<String>,
            Vec<String>,
        );
        let (status, result, progress, claim, lock, history, due, next, attempt, pending): Parts =
            redis::pipe()
                .get(keys.status(name))
                .get(keys.result(name))
                .get(keys.progress(name))
                .hget(keys.claims(), name)
                .get(keys.lock(name))
                .lrange(keys.history(name), 0, -1)
                .zscore(keys.delayed(), name)
                .zscore(keys.cron(), name)
                .get(keys.attempt(name))
                .cmd("SRANDMEMBER")
                .arg(keys.pending(name))
                .arg(100)
                .query_async(&mut store)
                .await?;
        let stored = status.as_deref().and_then(Status::parse);
        let busy = claim.is_some() || next.is_some();
        let status = settled_status(stored, result.as_deref(), busy).unwrap_or(Status::Waiting);
        let (mut worker_id, mut claimed_at) = holder(claim.as_deref(), lock);
        let due = due.or(next).map(|due| Millis(due as i64));
        let result: Option<JobResult> =
            result.and_then(|result| serde_json::from_slice(&result).ok());
        let history: Vec<FailedAttempt> =
            history.iter().filter_map(|entry| serde_json::from_slice(entry).ok()).collect();
        let last = history.last();
        if status == Status::Completed {
            (worker_id, claimed_at) = holder(attempt.as_deref(), None);
        } else if let Some(last) = last.filter(|_| worker_id.is_none()) {
            worker_id = Some(last.worker_id.clone());
            claimed_at = last.claimed_at.map(Millis);
        }
        let error = result.as_ref().and_then(|result| result.error.as_ref());
        let error = error.or(last.map(|last| &last.error));
        let stored = last.and_then(|last| last.reason);
        let reason = JobEndReason::of(status, stored, Some(&job), error);
        Ok(Some(JobView {
            job,
            status,
            result,
            progress: progress.and_then(|progress| serde_json::from_slice(&progress).ok()),
            worker_id,
            claimed_at,
            reason,
            history,
            due,
            pending: pending.into_iter().map(JobId::stored).collect(),
        }))
    }

    /// A page of a list: ids with their jobs, where those can be read. At most [`PAGE_MAX`].
    pub async fn list(
        &self,
        which: JobList,
        from: usize,
        most: usize,
    ) -> Result<Vec<(JobId, Option<Job>)>, Error> {
        let mut ids = self.ids(which, from, most).await?;
        ids.retain(|id| id != crate::ids::TOMB);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let data: Vec<Key> = ids.iter().map(|id| self.keys().data(id)).collect();
        let mut store = self.store().clone();
        let data: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(data).query_async(&mut store).await?;
        Ok(ids
            .into_iter()
            .zip(data)
            .map(|(id, data)| {
                let id = JobId::stored(id);
                let job = data.and_then(|data| Job::parse(id.clone(), &data).ok());
                (id, job)
            })
            .collect())
    }

    /// A page of a list as it is stored: ids, and marks where a job was taken from the middle.
    pub(crate) async fn ids(
        &self,
        which: JobList,
        from: usize,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let most = most.clamp(1, PAGE_MAX);
        let start = isize::try_from(from).unwrap_or(isize::MAX);
        let end = start.saturating_add(isize::try_from(most).unwrap_or(1) - 1);
        Ok(match which {
            JobList::Waiting => store.lrange(keys.waiting(), start, end).await?,
            JobList::Dead => store.lrange(keys.deadletter(), start, end).await?,
            JobList::Delayed => store.zrange(keys.delayed(), start, end).await?,
            JobList::Finished => {
                let entries: Vec<String> = store.lrange(keys.finished(), start, end).await?;
                let id = |entry: String| match entry.split_once(' ') {
                    Some((_, id)) => id.to_owned(),
                    None => crate::ids::TOMB.to_owned(),
                };
                entries.into_iter().map(id).collect()
            }
            JobList::Active => {
                let (mut cursor, mut ids) = (0u64, Vec::new());
                loop {
                    let (next, found): (u64, Vec<String>) = redis::cmd("SSCAN")
                        .arg(keys.active())
                        .arg(cursor)
                        .arg("COUNT")
                        .arg(500)
                        .query_async(&mut store)
                        .await?;
                    ids.extend(found);
                    cursor = next;
                    if cursor == 0 || ids.len() >= from.saturating_add(most) {
                        break;
                    }
                }
                ids.into_iter().skip(from).take(most).collect()
            }
        })
    }

    /// Counts of jobs by state.
    pub async fn stats(&self) -> Result<JobCounts, Error> {
        let mut pipe = redis::pipe();
        add_counts(&mut pipe, self.keys());
        add_worker_scan(&mut pipe, self.keys(), 0);
        let mut replies = self.read(&pipe).await?;
        let mut counts = read_counts(&mut replies)?;
        let names = self.worker_names(replies.take()?).await?;
        counts.workers =
            self.worker_views(&names).await?.iter().filter(|worker| worker.alive).count();
        Ok(counts)
    }

    /// Lists the lanes of waiting jobs, and whether a live worker may claim from each.
    pub async fn lanes(&self) -> Result<Vec<LaneView>, Error> {
        let keys = self.keys();
        let mut pipe = redis::pipe();
        add_worker_scan(&mut pipe, keys, 0);
        add_pools(&mut pipe, keys);
        pipe.smembers(keys.paused());
        let mut replies = self.read(&pipe).await?;
        let names = self.worker_names(replies.take()?).await?;
        let pools = self.rest_of_pools(&mut replies).await?;
        let paused: Vec<String> = replies.take()?;
        let mut pipe = redis::pipe();
        add_members(&mut pipe, keys, &names, &pools);
        let mut replies = self.read(&pipe).await?;
        let (workers, listed) = self.rest_of_members(&mut replies, &names, &pools).await?;
        let table = LaneTable::new(keys, &pools, listed);
        let lengths = self.lengths(&table.keys()).await?;
        Ok(table.views(&lengths, &workers, &paused))
    }

    /// Waiting jobs that no live worker may take.
    pub async fn unroutable(&self) -> Result<Vec<LaneView>, Error> {
        let mut lanes = self.lanes().await?;
        lanes.retain(|lane| !lane.routable && lane.waiting.iter().sum::<usize>() > 0);
        Ok(lanes)
    }
}

/// Adds reads of the counts of jobs by state.
pub(crate) fn add_counts(pipe: &mut redis::Pipeline, keys: &Keys) {
    pipe.llen(keys.waiting())
        .hget(keys.index(), "tombs")
        .scard(keys.active())
        .zcard(keys.delayed())
        .zcard(keys.cron())
        .llen(keys.deadletter())
        .llen(keys.finished())
        .get(keys.processed())
        .get(keys.failed())
        .get(keys.spent())
        .smembers(keys.paused());
}

/// Takes the counts of jobs by state; workers are not among them.
pub(crate) fn read_counts(replies: &mut Replies) -> Result<JobCounts, Error> {
    let waiting: usize = replies.take()?;
    let tombs: Option<i64> = replies.take()?;
    let tombs = usize::try_from(tombs.unwrap_or(0)).unwrap_or(0);
    Ok(JobCounts {
        waiting: waiting.saturating_sub(tombs),
        active: replies.take()?,
        delayed: replies.take()?,
        cron: replies.take()?,
        dead: replies.take()?,
        finished: replies.take()?,
        processed: replies.take::<Option<u64>>()?.unwrap_or(0),
        failed: replies.take::<Option<u64>>()?.unwrap_or(0),
        processing_ms: replies.take::<Option<u64>>()?.unwrap_or(0),
        paused: replies.take()?,
        workers: 0,
    })
}

/// The lanes of all pools, by route.
pub(crate) struct LaneTable(Vec<(JobRoute, BTreeMap<u8, Key>)>);

impl LaneTable {
    /// A lane is listed in all its pools; what they ask for together is its target.
    pub(crate) fn new(keys: &Keys, pools: &[Pool], listed: Vec<Vec<ListedLane>>) -> Self {
        let mut routes: HashMap<RouteId, (JobRoute, BTreeMap<u8, Key>)> = HashMap::new();
        for (pool, lanes) in pools.iter().zip(listed) {
            for lane in lanes {
                let (route, priorities) = routes.entry(lane.route).or_insert_with(|| {
                    let (target, avoid) = (pool.target.clone(), pool.avoid.clone());
                    let route = JobRoute {
                        job_type: lane.job_type.clone(),
                        target,
                        limit: lane.limit,
                        avoid,
                    };
                    (route, BTreeMap::new())
                });
                route.target.widen(&pool.target);
                priorities.insert(lane.priority, keys.lane(&lane.route, lane.priority));
            }
        }
        Self(routes.into_values().collect())
    }

    /// Returns the keys of the lanes.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.0.iter().flat_map(|(_, lanes)| lanes.values().cloned()).collect()
    }

    /// Returns the types of the lanes.
    pub(crate) fn job_types(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(route, _)| route.job_type.as_str())
    }

    /// Returns the lanes in which jobs wait, given the length of each lane in the order of its
    /// [keys](LaneTable::keys).
    pub(crate) fn views(
        self,
        lengths: &[usize],
        workers: &[WorkerView],
        paused: &[String],
    ) -> Vec<LaneView> {
        let live: Vec<&WorkerView> =
            workers.iter().filter(|worker| worker.alive && !worker.draining).collect();
        let mut lengths = lengths.iter();
        let mut views = Vec::new();
        for (route, lanes) in self.0 {
            let mut waiting = [0; 10];
            for (priority, length) in lanes.into_keys().zip(&mut lengths) {
                if let Some(slot) = waiting.get_mut(usize::from(priority).wrapping_sub(1)) {
                    *slot = *length;
                }
            }
            if waiting.iter().all(|length| *length == 0) {
                continue;
            }
            let takes = |worker: &&WorkerView| {
                let labels: Option<Labels> = worker.labels();
                labels.is_some_and(|labels| route.matches(&labels)) && worker.takes(&route.job_type)
            };
            let paused = paused.iter().any(|job_type| route.job_type == *job_type.as_str());
            let routable = live.iter().any(takes);
            views.push(LaneView { route, waiting, routable, paused });
        }
        views
    }
}

/// Reads who holds a job and since when, from its claim and, for v1 workers, its lock.
pub(crate) fn holder(
    claim: Option<&str>,
    lock: Option<String>,
) -> (Option<String>, Option<Millis>) {
    let Some(claim) = claim else { return (lock, None) };
    let mut words = claim.split(' ');
    let token = words.next().and_then(|token| token.parse().ok()).unwrap_or(0);
    (words.next().map(str::to_owned), claim_time(token))
}

/// Derives the state of a job. `busy` is a job that is active, or a schedule,
/// whose result is that of an earlier run.
pub(crate) fn settled_status(
    status: Option<Status>,
    result: Option<&[u8]>,
    busy: bool,
) -> Option<Status> {
    let succeeded = || {
        let result = result.and_then(|result| serde_json::from_slice::<JobResult>(result).ok());
        result.is_some_and(|result| result.success)
    };
    match status {
        Some(Status::Waiting) | None if !busy && succeeded() => Some(Status::Completed),
        status => status,
    }
}
