//! The overview of a queue: counts, types, workers, lanes, and the first jobs of two lists.
//!
//! It is read in five calls, each of which asks for what the one before has found: the lists; what stands
//! in them; how long the lanes are; their first jobs; the documents of these. Only a queue with many
//! workers, pools or types takes more.

use std::{collections::HashMap, time::Duration};

use serde::de::DeserializeOwned;
use store::{Key, redis};

use crate::{
    Census, Error, Job, JobCounts, JobId, JobProgress, JobResult, Jobs, LaneView, WorkerView,
    census::{CHUNK, COUNTED_MAX, HEADS_MAX, add_types},
    ids::TOMB,
    inspect::{LaneTable, add_counts, read_counts},
    keys::Keys,
    lanes::{ListedLane, add_listed, add_pools},
    reads::{Replies, add_texts},
    route::Pool,
    workers::{add_worker_scan, add_workers, read_workers},
};

/// Workers, and pools, read in the first call; more take calls of their own.
const MEMBERS_TOGETHER: usize = 200;

/// Documents read in one call; payloads come along.
const DOCUMENTS_TOGETHER: usize = 64;

/// A queue at a moment.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Jobs by state.
    pub counts: JobCounts,
    /// Jobs by type, and what is known of the queue as a whole.
    pub census: Census,
    /// All registered workers.
    pub workers: Vec<WorkerView>,
    /// The lanes in which jobs wait.
    pub lanes: Vec<LaneView>,
    /// Some active jobs.
    pub active: Vec<ListedJob<JobProgress>>,
    /// The newest dead letters.
    pub dead: Vec<ListedJob<JobResult>>,
}

/// A job of a list.
#[derive(Clone, Debug)]
pub struct ListedJob<T> {
    /// Its id.
    pub id: JobId,
    /// The job, if it can be read.
    pub job: Option<Job>,
    /// What is shown with it: progress or result.
    pub with: Option<T>,
}

impl Overview {
    /// Returns the lanes that no live worker may claim from.
    pub fn unroutable(&self) -> impl Iterator<Item = &LaneView> {
        self.lanes.iter().filter(|lane| !lane.routable)
    }
}

/// The first of the five calls: the lists of a queue.
struct QueueLists {
    counts: JobCounts,
    workers: Vec<String>,
    pools: Vec<Pool>,
    delayed: Vec<String>,
    dead: Vec<String>,
    active: Vec<String>,
    /// Types that claims name.
    claimed: Vec<String>,
    leader: Option<String>,
    /// The schedule that comes due next, and when.
    next_schedule: Vec<(String, f64)>,
}

/// The second: what stands in the lists.
struct QueueMembers {
    workers: Vec<WorkerView>,
    lanes: LaneTable,
    active: Vec<ListedJob<JobProgress>>,
    dead: Vec<ListedJob<JobResult>>,
}

impl Jobs {
    /// Reads the overview, with at most `shown` jobs of each list.
    pub async fn overview(&self, shown: usize) -> Result<Overview, Error> {
        let lists = self.read_lists().await?;
        let QueueMembers { workers, lanes, active, dead } =
            self.read_members(&lists, shown).await?;
        let mut counts = lists.counts.clone();
        counts.workers = workers.iter().filter(|worker| worker.alive).count();
        let mut census = self.begin_census(&counts, &lists);
        let lengths = self.count_running(&mut census, &lists.claimed, &lanes).await?;
        let lanes = lanes.views(&lengths, &workers, &counts.paused);
        self.count_waiting(&mut census, &lanes).await?;
        census.rest = census.missing(&counts);
        Ok(Overview { counts, census, workers, lanes, active, dead })
    }

    async fn read_lists(&self) -> Result<QueueLists, Error> {
        let keys = self.keys();
        let mut pipe = redis::pipe();
        add_counts(&mut pipe, keys);
        add_worker_scan(&mut pipe, keys, 0);
        add_pools(&mut pipe, keys);
        let top = COUNTED_MAX.cast_signed() - 1;
        pipe.zrange(keys.delayed(), 0, top)
            .lrange(keys.deadletter(), 0, top)
            .get(keys.scheduler_lock())
            .zrange_withscores(keys.cron(), 0, 0);
        pipe.cmd("HSCAN").arg(keys.claims()).arg(0).arg("COUNT").arg(CHUNK);
        pipe.cmd("SSCAN").arg(keys.active()).arg(0).arg("COUNT").arg(CHUNK);
        let mut replies = self.read(&pipe).await?;
        Ok(QueueLists {
            counts: read_counts(&mut replies)?,
            workers: self.worker_names(replies.take()?).await?,
            pools: self.rest_of_pools(&mut replies).await?,
            delayed: replies.take()?,
            dead: replies.take()?,
            leader: replies.take()?,
            next_schedule: replies.take()?,
            claimed: self.claimed_types(replies.take()?).await?,
            active: replies.take::<(u64, Vec<String>)>()?.1,
        })
    }

    /// Reads workers, lanes and the jobs that are shown; learns the types of those that are counted.
    async fn read_members(&self, lists: &QueueLists, shown: usize) -> Result<QueueMembers, Error> {
        let (keys, QueueLists { workers, pools, .. }) = (self.keys(), lists);
        let active: Vec<&String> = lists.active.iter().take(shown).collect();
        let dead: Vec<&String> = lists.dead.iter().filter(|id| *id != TOMB).take(shown).collect();
        let mut unknown = self.unknown_types(lists.delayed.iter().chain(&lists.dead));
        let more_unknown = unknown.split_off(unknown.len().min(CHUNK));
        let mut pipe = redis::pipe();
        add_members(&mut pipe, keys, workers, pools);
        let active_keys = active.iter().flat_map(|id| [keys.data(id), keys.progress(id)]);
        add_texts(&mut pipe, active_keys.collect());
        let dead_keys = dead.iter().flat_map(|id| [keys.data(id), keys.result(id)]);
        add_texts(&mut pipe, dead_keys.collect());
        add_types(&mut pipe, keys, &unknown);
        let mut replies = self.read(&pipe).await?;
        let (workers, listed) = self.rest_of_members(&mut replies, workers, pools).await?;
        let active = listed_jobs(&mut replies, &active)?;
        let dead = listed_jobs(&mut replies, &dead)?;
        self.learn_types(&unknown, replies.take_each(unknown.len())?).await?;
        self.find_types(&more_unknown).await?;
        Ok(QueueMembers { workers, lanes: LaneTable::new(keys, pools, listed), active, dead })
    }

    /// Counts what needs no further call: delayed jobs and dead letters, and how late schedules are.
    fn begin_census(&self, counts: &JobCounts, lists: &QueueLists) -> Census {
        let mut census = Census::of(counts, lists.leader.clone());
        if let Some((_, due)) = lists.next_schedule.first() {
            let late = self.now().0.saturating_sub(*due as i64).max(0).unsigned_abs();
            census.schedules_late = Duration::from_millis(late);
        }
        for job_type in self.known_types(&lists.delayed) {
            census.named(job_type.as_str()).delayed += 1;
        }
        for job_type in self.known_types(&lists.dead) {
            census.named(job_type.as_str()).dead += 1;
        }
        census
    }

    /// Counts active jobs by type, and returns the length of each lane: the third call.
    async fn count_running(
        &self,
        census: &mut Census,
        claimed: &[String],
        table: &LaneTable,
    ) -> Result<Vec<usize>, Error> {
        let (keys, lanes) = (self.keys(), table.keys());
        let mut types: Vec<String> = census.types.keys().chain(claimed).cloned().collect();
        types.extend(table.job_types().map(str::to_owned));
        types.sort();
        types.dedup();
        let ((lanes, more_lanes), (first_types, more_types)) =
            (lanes.split_at(lanes.len().min(CHUNK)), types.split_at(types.len().min(CHUNK)));
        let mut pipe = redis::pipe();
        lanes.iter().for_each(|lane| _ = pipe.llen(lane));
        add_texts(&mut pipe, first_types.iter().map(|name| keys.running(name)).collect());
        let mut replies = self.read(&pipe).await?;
        // An entry is a number and an id.
        let halves = replies.take_each::<usize>(lanes.len())?;
        let mut lengths: Vec<usize> = halves.into_iter().map(|length| length / 2).collect();
        let mut running: Vec<Option<i64>> = replies.take_texts(first_types.len())?;
        lengths.extend(self.lengths(more_lanes).await?);
        for types in more_types.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            add_texts(&mut pipe, types.iter().map(|name| keys.running(name)).collect());
            running.extend(self.read(&pipe).await?.take_texts::<i64>(types.len())?);
        }
        for (name, count) in types.iter().zip(running) {
            let count = usize::try_from(count.unwrap_or(0)).unwrap_or(0);
            if count > 0 {
                census.named(name).active = count;
            }
        }
        Ok(lengths)
    }

    /// Takes the records of workers and the lanes of pools, and reads those that were not asked for yet.
    pub(crate) async fn rest_of_members(
        &self,
        replies: &mut Replies,
        names: &[String],
        pools: &[Pool],
    ) -> Result<(Vec<WorkerView>, Vec<Vec<ListedLane>>), Error> {
        let ((names, more_names), (pools, more_pools)) = (first(names), first(pools));
        let mut workers = read_workers(replies, names.len())?;
        let mut listed = self.rest_of_listed(replies, pools).await?;
        workers.extend(self.worker_views(more_names).await?);
        listed.extend(self.listed(more_pools).await?);
        Ok((workers, listed))
    }

    /// Counts waiting jobs by type, and looks at the first jobs of lanes for the oldest: the fourth call and the
    /// fifth.
    async fn count_waiting(&self, census: &mut Census, lanes: &[LaneView]) -> Result<(), Error> {
        let mut heads: Vec<(String, Key)> = Vec::new();
        let mut heads_of: HashMap<&str, usize> = HashMap::new();
        for lane in lanes {
            let job_type = lane.route.job_type.as_str();
            let waiting: usize = lane.waiting.iter().sum();
            census.named(job_type).waiting += waiting;
            if !lane.routable && !lane.paused {
                census.unroutable += waiting;
            }
            let (route, _) = lane.route.name();
            for (priority, _) in (1u8..).zip(lane.waiting).filter(|(_, length)| *length > 0) {
                let taken = heads_of.entry(job_type).or_default();
                if *taken < HEADS_MAX {
                    *taken += 1;
                    heads.push((job_type.to_owned(), self.keys().lane(&route, priority)));
                }
            }
        }
        for heads in heads.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            heads.iter().for_each(|(_, lane)| _ = pipe.lindex(lane, 1));
            let ids: Vec<Option<String>> = self.read(&pipe).await?.take_each(heads.len())?;
            let found =
                heads.iter().zip(ids).filter_map(|((job_type, _), id)| Some((job_type, id?)));
            let found: Vec<(&String, String)> = found.collect();
            for found in found.chunks(DOCUMENTS_TOGETHER) {
                let mut pipe = redis::pipe();
                add_texts(&mut pipe, found.iter().map(|(_, id)| self.keys().data(id)).collect());
                let data: Vec<Option<Vec<u8>>> = self.read(&pipe).await?.take_texts(found.len())?;
                for ((job_type, id), data) in found.iter().zip(data) {
                    let job =
                        data.and_then(|data| Job::parse(JobId::stored(id.as_str()), &data).ok());
                    let Some(job) = job else { continue };
                    let age = self.now().0.saturating_sub(job.due().0).max(0).unsigned_abs();
                    let counts = census.named(job_type);
                    counts.oldest = counts.oldest.max(Some(Duration::from_millis(age)));
                }
            }
        }
        Ok(())
    }
}

/// Adds reads of the records of workers and of the lanes of pools, as many as fit into one call.
pub(crate) fn add_members(
    pipe: &mut redis::Pipeline,
    keys: &Keys,
    names: &[String],
    pools: &[Pool],
) {
    add_workers(pipe, keys, first(names).0);
    add_listed(pipe, keys, first(pools).0);
}

/// Splits what is read in the first call from the rest.
fn first<T>(members: &[T]) -> (&[T], &[T]) {
    members.split_at(members.len().min(MEMBERS_TOGETHER))
}

/// Takes the document of each job, and what is shown with it.
fn listed_jobs<T: DeserializeOwned>(
    replies: &mut Replies,
    ids: &[&String],
) -> Result<Vec<ListedJob<T>>, Error> {
    let texts: Vec<Option<Vec<u8>>> = replies.take_texts(2 * ids.len())?;
    let listed = ids.iter().zip(texts.as_chunks::<2>().0).map(|(id, [data, with])| {
        let id = JobId::stored(id.as_str());
        ListedJob {
            job: data.as_ref().and_then(|data| Job::parse(id.clone(), data).ok()),
            with: with.as_ref().and_then(|with| serde_json::from_slice(with).ok()),
            id,
        }
    });
    Ok(listed.collect())
}
