//! The workers that are there.
//!
//! A worker registers with its metadata and then says that it lives, by a key that expires. v1
//! workers do the same; ours send the first heartbeat at once. Invariant: a worker without a
//! heartbeat is dead, whatever its metadata says.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use store::{
    Millis,
    redis::{self, AsyncCommands as _},
};

use crate::{
    Error, JobId, JobType, Jobs, Labels, WorkerId, config::seconds, inspect::holder, keys::Keys,
    reads::Replies,
};

/// Most running jobs that one look at the activity of all workers reads.
const HELD_MAX: usize = 10_000;

/// Most running jobs that are named of one worker.
const HELD_SHOWN: usize = 20;

/// Minutes over which a worker's rate is taken, the running one included.
const RATE_MINUTES: i64 = 5;

/// Most workers whose counts a process keeps until it writes them.
const TALLIES_MAX: usize = 10_000;

/// Most workers that are listed, and those whose records are read in one call.
const WORKERS_MAX: usize = 10_000;
const WORKERS_TOGETHER: usize = 200;

/// Adds a part of a scan of the names of workers.
pub(crate) fn add_worker_scan(pipe: &mut redis::Pipeline, keys: &Keys, cursor: u64) {
    pipe.cmd("SSCAN").arg(keys.workers()).arg(cursor).arg("COUNT").arg(500);
}

/// Adds reads of the records of workers.
pub(crate) fn add_workers(pipe: &mut redis::Pipeline, keys: &Keys, names: &[String]) {
    for name in names {
        pipe.get(keys.worker(name))
            .get(keys.heartbeat(name))
            .hget(keys.handles(), name)
            .hget(keys.slots(), name)
            .hget(keys.index(), drain_field(name));
    }
}

/// Takes the records of so many workers; those that cannot be read are left out.
pub(crate) fn read_workers(replies: &mut Replies, count: usize) -> Result<Vec<WorkerView>, Error> {
    let mut views = Vec::with_capacity(count);
    for _ in 0..count {
        let parts: Vec<Option<String>> = replies.take_each(5)?;
        let [info, heartbeat, types, slots, draining] = parts.as_slice() else { continue };
        let Some(info) = info.as_ref().and_then(|info| serde_json::from_str(info).ok()) else {
            continue;
        };
        views.push(WorkerView {
            info,
            alive: heartbeat.is_some(),
            heartbeat: heartbeat.as_ref().and_then(|at| at.parse().ok()),
            types: types.as_ref().map(|types| types.lines().map(str::to_owned).collect()),
            slots: slots.as_ref().and_then(|slots| slots.parse().ok()),
            draining: draining.is_some(),
        });
    }
    Ok(views)
}

/// Jobs that workers completed and failed since that was last written, by worker.
pub(crate) type Tallies = HashMap<String, (u64, u64)>;

/// A worker's metadata as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerInfo {
    /// Its id.
    #[serde(rename = "serverId")]
    pub worker_id: String,
    /// Its stack.
    #[serde(default)]
    pub stack: String,
    /// Its region.
    #[serde(default)]
    pub region: String,
    /// Its capabilities.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Time of its registration, in milliseconds since 1970.
    #[serde(default)]
    pub last_seen: i64,
    /// Its process.
    #[serde(default)]
    pub pid: u32,
    /// Its machine.
    #[serde(default)]
    pub hostname: String,
}

/// A worker as it stands.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its metadata.
    pub info: WorkerInfo,
    /// Has it a heartbeat?
    pub alive: bool,
    /// Time of its latest heartbeat, in milliseconds since 1970.
    pub heartbeat: Option<i64>,
    /// The job types it takes; `None` is all.
    pub types: Option<Vec<String>>,
    /// Number of jobs it runs at once, if it said so.
    pub slots: Option<u32>,
    /// Is it drained? It completes what it holds and claims nothing more.
    pub draining: bool,
}

/// A job that a worker holds.
#[derive(Clone, Debug)]
pub struct HeldJob {
    /// Id of the job.
    pub id: JobId,
    /// Its type.
    pub job_type: String,
    /// Time at which it was claimed.
    pub claimed_at: Option<Millis>,
}

/// The work of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerActivity {
    /// Number of jobs it holds.
    pub running: usize,
    /// Some of them, the longest running first.
    pub jobs: Vec<HeldJob>,
    /// Jobs completed in the latest five minutes.
    pub completed: u64,
    /// Attempts that failed in the latest five minutes.
    pub failed: u64,
    /// Attempts that ended per minute, over the latest five minutes or since its first.
    pub per_minute: f64,
}

impl WorkerView {
    /// Its labels, as far as routing goes.
    pub fn labels(&self) -> Option<Labels> {
        Some(Labels {
            worker_id: WorkerId::parse(self.info.worker_id.as_str()).ok()?,
            stack: self.info.stack.clone(),
            region: self.info.region.clone(),
            capabilities: self.info.capabilities.clone(),
        })
    }

    /// Does it take jobs of this type?
    pub fn takes(&self, job_type: &JobType) -> bool {
        self.types.as_ref().is_none_or(|types| types.iter().any(|name| job_type == name.as_str()))
    }
}

impl Jobs {
    /// Registers a worker and sends its first heartbeat. `types` are the job types it takes, if
    /// not all; `slots` is the number of jobs it runs at once, for people.
    pub async fn register(
        &self,
        labels: &Labels,
        types: Option<&[JobType]>,
        hostname: &str,
        slots: Option<u32>,
    ) -> Result<(), Error> {
        let keys = self.keys();
        let worker_id = labels.worker_id.as_str();
        let now = self.now();
        let info = WorkerInfo {
            worker_id: worker_id.to_owned(),
            stack: labels.stack.clone(),
            region: labels.region.clone(),
            capabilities: labels.capabilities.clone(),
            last_seen: now.0,
            pid: std::process::id(),
            hostname: hostname.to_owned(),
        };
        let info = serde_json::to_string(&info).unwrap_or_default();
        let mut pipe = redis::pipe();
        pipe.atomic()
            .set(keys.worker(worker_id), info)
            .ignore()
            .sadd(keys.workers(), worker_id)
            .ignore();
        match types {
            Some(types) => {
                let types: Vec<&str> = types.iter().map(JobType::as_str).collect();
                pipe.hset(keys.handles(), worker_id, types.join("\n")).ignore();
            }
            None => _ = pipe.hdel(keys.handles(), worker_id).ignore(),
        }
        match slots {
            Some(slots) => _ = pipe.hset(keys.slots(), worker_id, slots).ignore(),
            None => _ = pipe.hdel(keys.slots(), worker_id).ignore(),
        }
        let ttl = seconds(self.config().lock_ttl);
        pipe.set_ex(keys.heartbeat(worker_id), now, ttl).ignore();
        self.take_tally(worker_id, &mut pipe);
        let mut store = self.store().clone();
        let () = pipe.query_async(&mut store).await?;
        Ok(())
    }

    /// Returns the job types a registered worker takes, `None` inside for all of them; `None` when
    /// no such worker is registered.
    pub async fn worker_types(
        &self,
        worker_id: &WorkerId,
    ) -> Result<Option<Option<Vec<String>>>, Error> {
        let keys = self.keys();
        let mut pipe = redis::pipe();
        pipe.sismember(keys.workers(), worker_id.as_str()).hget(keys.handles(), worker_id.as_str());
        let (registered, types): (bool, Option<String>) =
            pipe.query_async(&mut self.store().clone()).await?;
        let types = types.map(|types| types.split('\n').map(str::to_owned).collect());
        Ok(registered.then_some(types))
    }

    /// Says that a worker lives.
    pub async fn heartbeat(&self, worker_id: &WorkerId) -> Result<(), Error> {
        let mut store = self.store().clone();
        let ttl = seconds(self.config().lock_ttl);
        let key = self.keys().heartbeat(worker_id.as_str());
        let mut pipe = redis::pipe();
        pipe.set_ex(key, self.now(), ttl).ignore();
        self.take_tally(worker_id.as_str(), &mut pipe);
        let () = pipe.query_async(&mut store).await?;
        Ok(())
    }

    /// Takes a worker off the list. Jobs it holds are not touched.
    pub async fn unregister(&self, worker_id: &WorkerId) -> Result<(), Error> {
        let keys = self.keys();
        let name = worker_id.as_str();
        let mut store = self.store().clone();
        let () = redis::pipe()
            .atomic()
            .del(keys.worker(name))
            .ignore()
            .del(keys.heartbeat(name))
            .ignore()
            .srem(keys.workers(), name)
            .ignore()
            .hdel(keys.handles(), name)
            .ignore()
            .hdel(keys.slots(), name)
            .ignore()
            .hdel(keys.index(), &[format!("r:{name}"), format!("r:{name} 2"), drain_field(name)])
            .ignore()
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// All registered workers, at most 10,000.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, Error> {
        let mut pipe = redis::pipe();
        add_worker_scan(&mut pipe, self.keys(), 0);
        let names = self.worker_names(self.read(&pipe).await?.take()?).await?;
        self.worker_views(&names).await
    }

    /// Returns the names of all registered workers, from the first part of a scan on.
    pub(crate) async fn worker_names(
        &self,
        first: (u64, Vec<String>),
    ) -> Result<Vec<String>, Error> {
        let (mut cursor, mut names) = first;
        while cursor != 0 && names.len() < WORKERS_MAX {
            let mut pipe = redis::pipe();
            add_worker_scan(&mut pipe, self.keys(), cursor);
            let (next, found): (u64, Vec<String>) = self.read(&pipe).await?.take()?;
            names.extend(found);
            cursor = next;
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Returns the workers of these names that can be read.
    pub(crate) async fn worker_views(&self, names: &[String]) -> Result<Vec<WorkerView>, Error> {
        let mut views = Vec::with_capacity(names.len());
        for names in names.chunks(WORKERS_TOGETHER) {
            let mut pipe = redis::pipe();
            add_workers(&mut pipe, self.keys(), names);
            views.extend(read_workers(&mut self.read(&pipe).await?, names.len())?);
        }
        Ok(views)
    }

    /// Lets a registered worker complete what it holds and claim nothing more, until it is
    /// [let go on](Jobs::undrain) or leaves. It holds for workers of this library, over HTTP and `exec`;
    /// v1 workers claim without asking, and are not reached.
    pub async fn drain(&self, worker_id: &WorkerId) -> Result<(), Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let registered: bool = store.sismember(keys.workers(), worker_id.as_str()).await?;
        if !registered {
            return Err(Error::NoWorker(worker_id.clone()));
        }
        let () = store.hset(keys.index(), drain_field(worker_id.as_str()), self.now()).await?;
        Ok(())
    }

    /// Lets a drained worker claim again.
    pub async fn undrain(&self, worker_id: &WorkerId) -> Result<(), Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let (registered,): (bool,) = redis::pipe()
            .atomic()
            .sismember(keys.workers(), worker_id.as_str())
            .hdel(keys.index(), drain_field(worker_id.as_str()))
            .ignore()
            .publish(keys.wake(), "free")
            .ignore()
            .query_async(&mut store)
            .await?;
        if registered { Ok(()) } else { Err(Error::NoWorker(worker_id.clone())) }
    }

    /// Returns what workers do now and did in the latest minutes, in the order of their names. Reads at
    /// most 10,000 running jobs.
    pub async fn worker_activity(&self, names: &[&str]) -> Result<Vec<WorkerActivity>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let mut held: HashMap<String, Vec<HeldJob>> = HashMap::new();
        let (mut cursor, mut read) = (0u64, 0);
        loop {
            let (next, found): (u64, Vec<(String, String)>) = redis::cmd("HSCAN")
                .arg(keys.claims())
                .arg(cursor)
                .arg("COUNT")
                .arg(500)
                .query_async(&mut store)
                .await?;
            read += found.len();
            for (id, claim) in found {
                let (Some(worker_id), claimed_at) = holder(Some(&claim), None) else { continue };
                let job_type = claim.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
                let job = HeldJob { id: JobId::stored(id), job_type, claimed_at };
                held.entry(worker_id).or_default().push(job);
            }
            cursor = next;
            if cursor == 0 || read >= HELD_MAX {
                break;
            }
        }
        let minute = self.now().0 / 60_000;
        let mut all = Vec::with_capacity(names.len());
        for chunk in names.chunks(200) {
            let mut pipe = redis::pipe();
            chunk.iter().for_each(|name| _ = pipe.hgetall(keys.tally(name)));
            let tallies: Vec<HashMap<String, u64>> = pipe.query_async(&mut store).await?;
            for (name, tally) in chunk.iter().zip(tallies) {
                let mut jobs = held.remove(*name).unwrap_or_default();
                // HSCAN may answer an entry twice.
                jobs.sort_by(|a, b| {
                    (a.claimed_at, a.id.as_str()).cmp(&(b.claimed_at, b.id.as_str()))
                });
                jobs.dedup_by(|a, b| a.id == b.id);
                let running = jobs.len();
                jobs.truncate(HELD_SHOWN);
                let activity = WorkerActivity { running, jobs, ..WorkerActivity::default() };
                all.push(activity.with_tally(&tally, minute, self.now()));
            }
        }
        Ok(all)
    }

    /// Counts ended attempts of a worker; written with its next heartbeat.
    pub(crate) fn tally(&self, worker_id: &str, completed: u64, failed: u64) {
        let mut tallies = self.inner.tallies.lock();
        if let Some(counts) = tallies.get_mut(worker_id) {
            counts.0 += completed;
            counts.1 += failed;
        } else if tallies.len() < TALLIES_MAX {
            tallies.insert(worker_id.to_owned(), (completed, failed));
        }
    }

    /// Adds the writing of a worker's counts to a pipeline.
    fn take_tally(&self, worker_id: &str, pipe: &mut redis::Pipeline) {
        let counts = self.inner.tallies.lock().remove(worker_id);
        let Some((completed, failed)) = counts else { return };
        let key = self.keys().tally(worker_id);
        let minute = self.now().0 / 60_000;
        for (word, count) in [("c", completed), ("f", failed)] {
            if count > 0 {
                pipe.hincr(&key, format!("{minute} {word}"), count).ignore();
            }
        }
        // A worker beats several times a minute, so what is older went in earlier rounds.
        let old: Vec<String> = (RATE_MINUTES..RATE_MINUTES + 10)
            .flat_map(|ago| ["c", "f"].map(|word| format!("{} {word}", minute - ago)))
            .collect();
        pipe.hdel(&key, old).ignore();
        pipe.expire(&key, 3_600).ignore();
    }

    /// Writes the counts of workers that have no heartbeat in this process.
    pub(crate) async fn flush_tallies(&self) -> Result<(), Error> {
        let names: Vec<String> = self.inner.tallies.lock().keys().take(1_000).cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        names.iter().for_each(|name| self.take_tally(name, &mut pipe));
        let () = pipe.query_async(&mut self.store().clone()).await?;
        Ok(())
    }
}

impl WorkerActivity {
    /// Adds up the latest minutes of a worker's counts.
    fn with_tally(mut self, tally: &HashMap<String, u64>, minute: i64, now: Millis) -> Self {
        let mut first = minute;
        for (field, count) in tally {
            let Some((at, word)) = field.split_once(' ') else { continue };
            let Some(at) = at.parse().ok().filter(|at| *at > minute - RATE_MINUTES) else {
                continue;
            };
            first = first.min(at);
            match word {
                "c" => self.completed += count,
                _ => self.failed += count,
            }
        }
        let seconds = ((now.0 - first * 60_000).max(1_000)) as f64 / 1_000.0;
        self.per_minute = (self.completed + self.failed) as f64 * 60.0 / seconds;
        self
    }
}

/// Field of the index that marks a worker as drained.
fn drain_field(worker_id: &str) -> String {
    format!("d:{worker_id}")
}
