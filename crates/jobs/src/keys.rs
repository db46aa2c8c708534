//! Every key of the job queue. The first group is the v1 schema, byte for byte in the standalone
//! layout; the second stands beside it and is ours.
//!
//! In the cluster layout the namespace is a hash tag, so that all keys of a namespace share a slot;
//! a namespace that holds a hash tag already is left as it is.

#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::{fmt, sync::Arc};

use store::{
    Key, Layout,
    key_map::{KeyMap, Place},
};

use crate::{
    Namespace,
    route::{PoolId, RouteId},
};

// Groups whose keys scripts build themselves, because only they know which job, type or lane it is.
const DATA: &str = "jobs:data:";
const STATUS: &str = "jobs:status:";
const RESULT: &str = "jobs:result:";
const LOCK: &str = "jobs:lock:";
const ATTEMPT: &str = "jobs:attempt:";
const RUNNING: &str = "ratelimit:concurrent:";
const MINUTE: &str = "ratelimit:minute:";
const STARTS: &str = "jobs:starts:";
const READY: &str = "jobs:ready:";
const PARKED: &str = "jobs:parked:";
const LANE: &str = "jobs:lane:";
/// Stands between the parts of a name that has two.
const SEPARATOR: &str = ":";

/// Names under which scripts know the groups of keys that they build, as `prefix .. DATA_KEY .. id`.
pub(crate) const SCRIPT_CONSTANTS: [(&str, &str); 12] = [
    ("DATA_KEY", DATA),
    ("STATUS_KEY", STATUS),
    ("RESULT_KEY", RESULT),
    ("LOCK_KEY", LOCK),
    ("ATTEMPT_KEY", ATTEMPT),
    ("RUNNING_KEY", RUNNING),
    ("MINUTE_KEY", MINUTE),
    ("STARTS_KEY", STARTS),
    ("READY_KEY", READY),
    ("PARKED_KEY", PARKED),
    ("LANE_KEY", LANE),
    ("KEY_SEPARATOR", SEPARATOR),
];

/// The keys of one namespace. A cheap clone.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    /// The keys of a namespace, as a store's layout spells them.
    pub fn new(namespace: &Namespace, layout: Layout) -> Self {
        let name = namespace.as_str();
        let tagged = name.split_once('{').is_some_and(|(_, rest)| rest.find('}') > Some(0));
        let prefix = match layout {
            Layout::Cluster if !tagged => format!("{{{name}}}:"),
            _ => format!("{name}:"),
        };
        Self { prefix: prefix.into() }
    }

    /// Keys of an earlier layout, which maintenance takes over: routes, routes of a worker, types that
    /// somebody waited for.
    pub(crate) fn earlier(&self, worker_id: Option<&str>) -> [Key; 2] {
        let routes = match worker_id {
            None => self.key("jobs:routes"),
            Some(worker_id) => self.of("jobs:routes:", worker_id),
        };
        [routes, self.key("jobs:blocked")]
    }

    /// Returns the prefix of all keys, the last colon included.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, rest: impl fmt::Display) -> Key {
        Key::raw(format!("{}{rest}", self.prefix))
    }

    fn of(&self, group: &str, name: &str) -> Key {
        let mut key = String::with_capacity(self.prefix.len() + group.len() + name.len());
        key.push_str(&self.prefix);
        key.push_str(group);
        key.push_str(name);
        Key::raw(key)
    }
}

/// The v1 schema.
impl Keys {
    /// string: a worker's metadata as JSON.
    pub fn worker(&self, worker_id: &str) -> Key {
        self.of("workers:", worker_id)
    }

    /// string: when a worker was last alive, in ms; expires when it is not.
    pub fn heartbeat(&self, worker_id: &str) -> Key {
        self.of("workers:heartbeat:", worker_id)
    }

    /// set: ids of the registered workers.
    pub fn workers(&self) -> Key {
        self.key("workers:active")
    }

    /// string: a job as JSON.
    pub fn data(&self, id: &str) -> Key {
        self.of(DATA, id)
    }

    /// string: a job's state.
    pub fn status(&self, id: &str) -> Key {
        self.of(STATUS, id)
    }

    /// string: what the latest attempt came to, as JSON; expires after a day.
    pub fn result(&self, id: &str) -> Key {
        self.of(RESULT, id)
    }

    /// string: the worker that runs a job; expires unless renewed.
    pub fn lock(&self, id: &str) -> Key {
        self.of(LOCK, id)
    }

    /// string: how far a job is, as JSON.
    pub fn progress(&self, id: &str) -> Key {
        self.of("jobs:progress:", id)
    }

    /// list: waiting ids.
    pub fn waiting(&self) -> Key {
        self.key("jobs:waiting")
    }

    /// set: ids that run.
    pub fn active(&self) -> Key {
        self.key("jobs:active")
    }

    /// zset: ids for later; score = when, in ms.
    pub fn delayed(&self) -> Key {
        self.key("jobs:delayed")
    }

    /// zset: ids of schedules; score = next occurrence, in ms.
    pub fn cron(&self) -> Key {
        self.key("jobs:cron")
    }

    /// list: ids of dead jobs, newest first.
    pub fn deadletter(&self) -> Key {
        self.key("jobs:deadletter")
    }

    /// string: how many jobs of a type run.
    pub fn running(&self, job_type: &str) -> Key {
        self.of(RUNNING, job_type)
    }

    /// string: how many jobs of a type started in this minute, of those with a limit.
    pub fn minute(&self, job_type: &str) -> Key {
        self.of(MINUTE, job_type)
    }

    /// set: types that must not start.
    pub fn paused(&self) -> Key {
        self.key("queues:paused")
    }

    /// string: the scheduler that leads; expires unless renewed.
    pub fn scheduler_lock(&self) -> Key {
        self.key("scheduler:lock")
    }

    /// string: how many jobs succeeded.
    pub fn processed(&self) -> Key {
        self.key("metrics:jobs:processed")
    }

    /// string: how many attempts failed.
    pub fn failed(&self) -> Key {
        self.key("metrics:jobs:failed")
    }

    /// string: how many milliseconds the jobs that succeeded took.
    pub fn spent(&self) -> Key {
        self.key("metrics:processing:time")
    }

    /// stream: what happened to jobs, the latest ten thousand or so entries.
    pub fn events(&self) -> Key {
        self.key("events:stream")
    }
}

/// Beside the v1 schema.
impl Keys {
    /// hash: marks of the waiting list, how many pools were seen, the latest claim of each worker,
    /// the workers that drain.
    pub fn index(&self) -> Key {
        self.key("jobs:index")
    }

    /// list: waiting ids that some v1 producer pushed and that have no lane yet.
    pub fn unindexed(&self) -> Key {
        self.key("jobs:strays")
    }

    /// zset: waiting ids without data; score = when they are given up, in ms.
    pub fn limbo(&self) -> Key {
        self.key("jobs:limbo")
    }

    /// zset: pools, each as the JSON of what a worker must offer; score = the how many-th it is.
    pub fn pools(&self) -> Key {
        self.key("jobs:pools")
    }

    /// zset: workers that jobs named; score = the how many-th time since it had none.
    pub fn pinned(&self) -> Key {
        self.key("jobs:pinned")
    }

    /// zset: lanes of a pool that hold jobs, as `route priority maxConcurrent maxPerMinute type`;
    /// score = (10 - priority) * 10^14 + number of the first job or less, and 2 * 10^15 more while
    /// the lane is parked.
    pub(crate) fn ready(&self, pool: &PoolId) -> Key {
        self.key(format_args!("{READY}{pool}"))
    }

    /// zset: those of one type among the lanes of a pool that hold jobs.
    pub(crate) fn ready_of(&self, pool: &PoolId, job_type: &str) -> Key {
        self.key(format_args!("{READY}{pool}{SEPARATOR}{job_type}"))
    }

    /// zset: types whose lanes are parked, because they are paused or at a limit; score = when to
    /// look again, in ms, and infinite until a place is free.
    pub fn parked(&self) -> Key {
        self.key("jobs:parked")
    }

    /// zset: `pool lane` of the parked lanes of a type; score as in `jobs:ready`.
    pub fn parked_of(&self, job_type: &str) -> Key {
        self.of(PARKED, job_type)
    }

    /// list: number and id of each waiting job of one route and priority.
    pub(crate) fn lane(&self, route: &RouteId, priority: u8) -> Key {
        self.key(format_args!("{LANE}{route}{SEPARATOR}{priority}"))
    }

    /// hash: id to `token worker type` of who runs it.
    pub fn claims(&self) -> Key {
        // Its entry `-`, which is no job, keeps a server from packing it.
        self.key("jobs:claims")
    }

    /// zset: ids that run under a lease of their own, as renewed ones do; score = its end, in ms.
    pub fn leases(&self) -> Key {
        self.key("jobs:leases")
    }

    /// zset: ids that run and have a timeout; score = until when their attempt must have ended, in ms.
    pub fn deadlines(&self) -> Key {
        self.key("jobs:deadlines")
    }

    /// hash: id to `since`, of jobs with a timeout that wait; to `deadline attempts worker` once a v1
    /// worker runs one.
    pub fn timed(&self) -> Key {
        self.key("jobs:timed")
    }

    /// hash: id to when, in ms, the server ended an attempt of a v1 worker, which may not know that.
    pub fn overruns(&self) -> Key {
        self.key("jobs:overruns")
    }

    /// zset: tokens of claims; score = until when the jobs they took are held, in ms, unless renewed.
    pub fn claim_leases(&self) -> Key {
        self.key("jobs:terms")
    }

    /// hash: token of a claim to how many of the jobs it took still run and were not renewed.
    pub fn claim_counts(&self) -> Key {
        self.key("jobs:held")
    }

    /// list: when the latest jobs of a type started, in ms, of those with a limit per minute.
    pub fn starts(&self, job_type: &str) -> Key {
        self.of(STARTS, job_type)
    }

    /// list: `ms id` of ended jobs, newest first.
    pub fn finished(&self) -> Key {
        self.key("jobs:finished")
    }

    /// hash: id to reason, of running jobs that shall stop.
    pub fn cancelled(&self) -> Key {
        self.key("jobs:cancelled")
    }

    /// zset: ids that must start by then, in ms.
    pub fn expiring(&self) -> Key {
        self.key("jobs:expiring")
    }

    /// string: until when an idempotency key of a job type counts, the job dispatched under it, and
    /// a digest of the request.
    pub fn once(&self, job_type: &str, key: &str) -> Key {
        // A type that can be dispatched holds no space, so no two pairs share a key.
        self.key(format_args!("jobs:once:{job_type} {key}"))
    }

    /// string: `token worker type` of the claim under which a job was completed.
    pub fn attempt(&self, id: &str) -> Key {
        self.of(ATTEMPT, id)
    }

    /// list: failed attempts of a job as JSON, oldest first, the latest few.
    pub fn history(&self, id: &str) -> Key {
        self.of("jobs:history:", id)
    }

    /// list: log lines of a job, the latest few.
    pub fn log(&self, id: &str) -> Key {
        self.of("jobs:log:", id)
    }

    /// set: jobs a job still waits for.
    pub fn pending(&self, id: &str) -> Key {
        self.of("jobs:pending:", id)
    }

    /// set: jobs that wait for a job.
    pub fn children(&self, id: &str) -> Key {
        self.of("jobs:children:", id)
    }

    /// set: jobs that ended because a job failed, which come back with it.
    pub fn orphans(&self, id: &str) -> Key {
        self.of("jobs:orphans:", id)
    }

    /// set: ids that other jobs wait for.
    pub fn parents(&self) -> Key {
        self.key("jobs:parents")
    }

    /// list: ended ids that other jobs wait for.
    pub fn settled(&self) -> Key {
        self.key("jobs:settled")
    }

    /// hash: worker to the types it takes, of workers that take only some.
    pub fn handles(&self) -> Key {
        self.key("jobs:handles")
    }

    /// hash: worker to the number of jobs it runs at once, of workers that said so.
    pub fn slots(&self) -> Key {
        self.key("jobs:slots")
    }

    /// hash: how many jobs a worker completed and failed in each of the latest minutes, as
    /// `MINUTE c` and `MINUTE f`; expires an hour after its last job.
    pub fn tally(&self, worker_id: &str) -> Key {
        self.of("jobs:tally:", worker_id)
    }

    /// list: the latest five runs of a schedule, newest first: when it came due, the id of the job,
    /// and, once known, how that ended and when.
    pub fn runs(&self, schedule: &str) -> Key {
        self.of("jobs:runs:", schedule)
    }

    /// set: ids of schedules that are paused.
    pub fn cron_paused(&self) -> Key {
        self.key("jobs:cron:paused")
    }

    /// All that is kept of a job that has ended, its state first.
    pub(crate) fn of_ended(&self, id: &str) -> [Key; 8] {
        [
            self.status(id),
            self.data(id),
            self.result(id),
            self.progress(id),
            self.log(id),
            self.history(id),
            self.orphans(id),
            self.attempt(id),
        ]
    }

    /// channel: a lane has got its first job, a place of a type is free, something is due earlier.
    pub(crate) fn wake(&self) -> Key {
        self.key("jobs:wake")
    }

    /// channel: ids of jobs that ended.
    pub(crate) fn done(&self) -> Key {
        self.key("jobs:done")
    }

    /// channel: ids of running jobs that shall stop, and `progress ID` of jobs whose progress changed.
    pub(crate) fn signal(&self) -> Key {
        self.key("jobs:signal")
    }
}

/// The keys of one namespace in both layouts, for moving from one to the other.
#[derive(Clone, Debug)]
pub struct JobsKeyMap {
    standalone: Keys,
    cluster: Keys,
}

impl JobsKeyMap {
    /// For this namespace.
    pub fn new(namespace: &Namespace) -> Self {
        let [standalone, cluster] =
            [Layout::Standalone, Layout::Cluster].map(|layout| Keys::new(namespace, layout));
        Self { standalone, cluster }
    }
}

impl KeyMap for JobsKeyMap {
    fn place(&self, key: &[u8], to: Layout, _: &[Vec<u8>]) -> Option<Place> {
        let (from, to) = match to {
            Layout::Cluster => (&self.standalone, &self.cluster),
            Layout::Standalone => (&self.cluster, &self.standalone),
        };
        let rest = key.strip_prefix(from.prefix().as_bytes())?;
        Some(Place::Key([to.prefix().as_bytes(), rest].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standalone_keys_are_those_of_v1() {
        let keys = Keys::new(&Namespace::default(), Layout::Standalone);
        for (key, text) in [
            (keys.worker("w1"), "bridge:workers:w1"),
            (keys.heartbeat("w1"), "bridge:workers:heartbeat:w1"),
            (keys.workers(), "bridge:workers:active"),
            (keys.data("j"), "bridge:jobs:data:j"),
            (keys.status("j"), "bridge:jobs:status:j"),
            (keys.result("j"), "bridge:jobs:result:j"),
            (keys.lock("j"), "bridge:jobs:lock:j"),
            (keys.progress("j"), "bridge:jobs:progress:j"),
            (keys.waiting(), "bridge:jobs:waiting"),
            (keys.active(), "bridge:jobs:active"),
            (keys.delayed(), "bridge:jobs:delayed"),
            (keys.cron(), "bridge:jobs:cron"),
            (keys.deadletter(), "bridge:jobs:deadletter"),
            (keys.running("t"), "bridge:ratelimit:concurrent:t"),
            (keys.minute("t"), "bridge:ratelimit:minute:t"),
            (keys.paused(), "bridge:queues:paused"),
            (keys.scheduler_lock(), "bridge:scheduler:lock"),
            (keys.events(), "bridge:events:stream"),
        ] {
            assert_eq!(key.as_str(), text);
        }
    }

    #[test]
    fn cluster_keys_share_the_namespace_as_hash_tag() {
        let keys = Keys::new(&Namespace::default(), Layout::Cluster);
        assert_eq!(keys.waiting().as_str(), "{bridge}:jobs:waiting");
        assert_eq!(keys.data("{x}").slot(), keys.waiting().slot());
        let tagged = Namespace::parse("a{b}").unwrap();
        let keys = Keys::new(&tagged, Layout::Cluster);
        assert_eq!(keys.waiting().as_str(), "a{b}:jobs:waiting");
        let odd = Keys::new(&Namespace::parse("a{}b").unwrap(), Layout::Cluster);
        assert_eq!(odd.data("1").slot(), odd.data("2").slot());
    }

    #[test]
    fn every_key_has_a_place_in_the_other_layout_and_back() {
        for name in ["bridge", "a{b}", "a:b"] {
            let namespace = Namespace::parse(name).unwrap();
            let map = JobsKeyMap::new(&namespace);
            let [one, other] = [Layout::Standalone, Layout::Cluster].map(|layout| {
                let keys = Keys::new(&namespace, layout);
                [
                    keys.waiting(),
                    keys.data("j"),
                    keys.worker("w"),
                    keys.once("t", "k"),
                    keys.index(),
                ]
            });
            for (one, other) in one.iter().zip(&other) {
                let place = |key: &Key, to| map.place(key.as_str().as_bytes(), to, &[]);
                assert_eq!(place(one, Layout::Cluster), Some(Place::Key(other.as_str().into())));
                assert_eq!(place(other, Layout::Standalone), Some(Place::Key(one.as_str().into())));
            }
        }
        let map = JobsKeyMap::new(&Namespace::default());
        assert_eq!(map.place(b"bridgehead:1", Layout::Cluster, &[]), None);
        assert_eq!(map.place(b"bridge:1", Layout::Standalone, &[]), None);
    }
}
