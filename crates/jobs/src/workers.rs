//! The workers that are there.
//!
//! A worker registers with its metadata and then says that it lives, by a key that expires. v1
//! workers do the same; ours send the first heartbeat at once. Invariant: a worker without a
//! heartbeat is dead, whatever its metadata says.

use serde::{Deserialize, Serialize};
use store::redis::{self, AsyncCommands as _};

use crate::{Error, JobType, Jobs, Labels, WorkerId, config::seconds};

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
    /// not all.
    pub async fn register(
        &self,
        labels: &Labels,
        types: Option<&[JobType]>,
        hostname: &str,
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
        let ttl = seconds(self.config().lock_ttl);
        pipe.set_ex(keys.heartbeat(worker_id), now, ttl).ignore();
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
        let () = store.set_ex(key, self.now(), ttl).await?;
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
            .hdel(keys.index(), &[format!("r:{name}"), format!("r:{name} 2")])
            .ignore()
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// All registered workers, at most 10,000.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, Error> {
        let keys = self.keys();
        let mut store = self.store().clone();
        let (mut cursor, mut names) = (0u64, Vec::<String>::new());
        loop {
            let (next, found): (u64, Vec<String>) = redis::cmd("SSCAN")
                .arg(keys.workers())
                .arg(cursor)
                .arg("COUNT")
                .arg(500)
                .query_async(&mut store)
                .await?;
            names.extend(found);
            cursor = next;
            if cursor == 0 || names.len() >= 10_000 {
                break;
            }
        }
        names.sort();
        names.dedup();
        let mut views = Vec::with_capacity(names.len());
        for chunk in names.chunks(200) {
            let mut pipe = redis::pipe();
            for name in chunk {
                pipe.get(keys.worker(name)).get(keys.heartbeat(name)).hget(keys.handles(), name);
            }
            let parts: Vec<Option<String>> = pipe.query_async(&mut store).await?;
            for part in parts.chunks_exact(3) {
                let [info, heartbeat, types] = part else { continue };
                let Some(info) = info.as_ref().and_then(|info| serde_json::from_str(info).ok())
                else {
                    continue;
                };
                views.push(WorkerView {
                    info,
                    alive: heartbeat.is_some(),
                    heartbeat: heartbeat.as_ref().and_then(|at| at.parse().ok()),
                    types: types.as_ref().map(|types| types.lines().map(str::to_owned).collect()),
                });
            }
        }
        Ok(views)
    }
}
