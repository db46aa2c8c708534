//! Routing: matches jobs to workers. Pure; the results are exactly those of v1's claim script.
//!
//! A [`Route`] is everything about a job that decides who may take it and when: type, target, limits
//! and workers to avoid. All jobs of one route and one priority wait in one lane, so a worker judges
//! a route once instead of every job each time.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Error, Job, JobType, WorkerId,
    job::{MalformedJob, RateLimit, close_object, malformed},
    json::{self, Fields},
};

/// The workers that may claim a job. Empty: every one.
///
/// Each list that is not empty is one condition, and all conditions must hold. With mode `any` a
/// condition holds when the worker has one of the listed values; with `all` the worker needs every
/// listed capability, while for stack and region, of which a worker has one, it is the same as
/// `any`. A named server is the only condition when there is one.
///
/// ```
/// use tidegate_jobs::{JobTarget, Labels};
///
/// let target = JobTarget::default().capability("gpu").capability("ssd").region("eu").all();
/// let worker = Labels::new("w1")?.capabilities(["gpu", "ssd", "avx"]).region("eu");
/// assert!(target.matches(&worker));
/// # Ok::<(), tidegate_jobs::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTarget {
    /// Only this worker.
    pub worker: TargetWorker,
    /// Workers of one of these stacks.
    pub stack: Vec<String>,
    /// Workers with one or all of these capabilities.
    pub capabilities: Vec<String>,
    /// Workers in one of these regions.
    pub region: Vec<String>,
    /// Match mode of the capabilities.
    pub mode: MatchMode,
}

/// The worker a target names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TargetWorker {
    /// None in particular.
    #[default]
    Any,
    /// This one.
    Only(String),
    /// A stored `null` or something that is not a name: v1 never finds a worker for it.
    Nobody,
}

/// Match mode of a list of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatchMode {
    /// One is enough.
    #[default]
    Any,
    /// All are needed.
    All,
}

/// The properties of a worker that routing looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Its id.
    pub worker_id: WorkerId,
    /// Its stack, such as `rust`.
    pub stack: String,
    /// Its region.
    pub region: String,
    /// Its capabilities.
    pub capabilities: Vec<String>,
}

impl Labels {
    /// A worker without stack, region or capabilities.
    pub fn new(worker_id: impl Into<String>) -> Result<Self, Error> {
        let worker_id = WorkerId::parse(worker_id)?;
        Ok(Self {
            worker_id,
            stack: String::new(),
            region: String::new(),
            capabilities: Vec::new(),
        })
    }

    /// Its stack.
    pub fn stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = stack.into();
        self
    }

    /// Its region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = region.into();
        self
    }

    /// Its capabilities.
    pub fn capabilities<T: Into<String>>(mut self, list: impl IntoIterator<Item = T>) -> Self {
        self.capabilities = list.into_iter().map(Into::into).collect();
        self
    }
}

impl JobTarget {
    /// Only this worker.
    pub fn worker(mut self, worker_id: &WorkerId) -> Self {
        self.worker = TargetWorker::Only(worker_id.to_string());
        self
    }

    /// Also workers of this stack.
    pub fn stack(mut self, stack: impl Into<String>) -> Self {
        self.stack.push(stack.into());
        self
    }

    /// Also workers with this capability, or only those with it as well if [`all`](JobTarget::all).
    pub fn capability(mut self, capability: impl Into<String>) -> Self {
        self.capabilities.push(capability.into());
        self
    }

    /// Also workers in this region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region.push(region.into());
        self
    }

    /// Every listed capability is needed.
    pub fn all(mut self) -> Self {
        self.mode = MatchMode::All;
        self
    }

    /// May this worker take it?
    pub fn matches(&self, worker: &Labels) -> bool {
        match &self.worker {
            TargetWorker::Only(worker_id) => return worker.worker_id == worker_id.as_str(),
            TargetWorker::Nobody => return false,
            TargetWorker::Any => {}
        }
        let one = |list: &[String], value: &str| list.is_empty() || list.iter().any(|v| v == value);
        let capable = match self.mode {
            _ if self.capabilities.is_empty() => true,
            MatchMode::Any => {
                self.capabilities.iter().any(|need| worker.capabilities.contains(need))
            }
            MatchMode::All => {
                self.capabilities.iter().all(|need| worker.capabilities.contains(need))
            }
        };
        one(&self.stack, &worker.stack) && capable && one(&self.region, &worker.region)
    }

    /// Adds what another target is content with, as pools of one route are.
    pub(crate) fn widen(&mut self, other: &Self) {
        for (list, more) in [
            (&mut self.stack, &other.stack),
            (&mut self.region, &other.region),
            (&mut self.capabilities, &other.capabilities),
        ] {
            for item in more {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
    }

    /// Reads a stored target. What makes v1's script stop is malformed; what it passes over is
    /// passed over.
    pub(crate) fn parse(text: &str) -> Result<Self, MalformedJob> {
        let mut target = Self::default();
        // A script finds no fields in a list or a text, and stops at a number, a bool or null.
        match text.as_bytes().first() {
            Some(b'{') => {}
            Some(b'[' | b'"') => return Ok(target),
            _ => return Err(malformed("target is not an object")),
        }
        let fields = Fields::parse(text).map_err(|error| malformed(format!("target: {error}")))?;
        for (name, value) in fields.iter() {
            match name {
                "server" => {
                    target.worker = match serde_json::from_str(value) {
                        Ok(Value::String(worker_id)) if worker_id.is_empty() => TargetWorker::Any,
                        Ok(Value::String(worker_id)) => TargetWorker::Only(worker_id),
                        Ok(Value::Bool(false)) => TargetWorker::Any,
                        _ => TargetWorker::Nobody,
                    };
                }
                "stack" => target.stack = list("target.stack", value)?,
                "capabilities" => target.capabilities = list("target.capabilities", value)?,
                "region" => target.region = list("target.region", value)?,
                "mode" => {
                    target.mode = if value == "\"any\"" { MatchMode::Any } else { MatchMode::All }
                }
                _ => {}
            }
        }
        Ok(target)
    }

    /// Appends the target as v1 stores it.
    pub(crate) fn write(&self, out: &mut String) {
        let start = out.len();
        for (name, list) in [
            (",\"stack\":", &self.stack),
            (",\"capabilities\":", &self.capabilities),
            (",\"region\":", &self.region),
        ] {
            if !list.is_empty() {
                out.push_str(name);
                json::push_list(out, list);
            }
        }
        if let TargetWorker::Only(worker_id) = &self.worker {
            out.push_str(",\"server\":");
            json::push_str(out, worker_id);
        }
        if self.mode == MatchMode::All {
            out.push_str(",\"mode\":\"all\"");
        }
        close_object(out, start);
    }
}

/// A stored list of labels. An element that is no text can match nothing, so it is kept as a text
/// that no worker has.
fn list(name: &str, text: &str) -> Result<Vec<String>, MalformedJob> {
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => Ok(items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => text,
                other => format!("\0{other}"),
            })
            .collect()),
        // A script counts no elements in an object, and `false` is as good as absent.
        Ok(Value::Object(_) | Value::Bool(false)) => Ok(Vec::new()),
        _ => Err(malformed(format!("{name} is not a list"))),
    }
}

/// Everything about a job that decides who may take it and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRoute {
    /// The job type.
    pub job_type: JobType,
    /// The target.
    pub target: JobTarget,
    /// Limits on concurrency and starts per minute.
    pub limit: RateLimit,
    /// Workers to avoid.
    pub avoid: Vec<String>,
}

/// Most pools a route is in.
const POOLS_MAX: usize = 16;

/// Requirements on a worker for the jobs of a route: one of its stacks, one of its regions, one of
/// its capabilities or all of them. A route that is content with one of several is in one pool for
/// each, so that a worker is in few pools, whatever the targets are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) target: JobTarget,
    pub(crate) avoid: Vec<String>,
    /// As it is stored.
    pub(crate) text: String,
}

impl Pool {
    fn new(target: JobTarget, avoid: Vec<String>) -> Self {
        // What it says of type and limits is not stored.
        let route =
            JobRoute { job_type: JobType::stored(""), target, limit: RateLimit::default(), avoid };
        let text = route.to_text();
        let text = text.strip_prefix("{\"type\":\"\"").unwrap_or(&text).trim_start_matches(',');
        let text = format!("{{{text}");
        Self { id: RouteId::of(&text), target: route.target, avoid: route.avoid, text }
    }

    /// The pool of jobs that ask for nothing.
    pub(crate) fn open() -> Self {
        Self::new(JobTarget::default(), Vec::new())
    }

    /// The pool of jobs that name a worker.
    pub(crate) fn of_worker(worker_id: &str) -> Self {
        let worker = TargetWorker::Only(worker_id.to_owned());
        Self::new(JobTarget { worker, ..JobTarget::default() }, Vec::new())
    }

    /// Reads a stored pool.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('{')?;
        let comma = if rest == "}" { "" } else { "," };
        let route = JobRoute::parse(&format!("{{\"type\":\"\"{comma}{rest}"))?;
        Some(Self {
            id: RouteId::of(text),
            target: route.target,
            avoid: route.avoid,
            text: text.to_owned(),
        })
    }

    /// May this worker take jobs from it?
    pub(crate) fn matches(&self, worker: &Labels) -> bool {
        self.target.matches(worker)
            && !self.avoid.iter().any(|worker_id| worker.worker_id == *worker_id.as_str())
    }

    /// The one worker it names, if it names one.
    pub(crate) fn worker(&self) -> Option<&str> {
        match &self.target.worker {
            TargetWorker::Only(worker_id) => Some(worker_id),
            _ => None,
        }
    }

    /// Does it ask for nothing? Every worker knows that one.
    pub(crate) fn is_open(&self) -> bool {
        self.text == "{}"
    }
}

/// A pool's short name in keys.
pub(crate) type PoolId = RouteId;

/// A route's short name in keys: 64 bits of a digest of its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RouteId([u8; 11]);

impl RouteId {
    /// Reads a name from a key.
    pub(crate) fn read(text: &str) -> Option<Self> {
        text.as_bytes().try_into().ok().map(Self)
    }

    fn of(text: &str) -> Self {
        const LETTERS: &[u8; 62] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let digest = sha1_smol::Sha1::from(text).digest().bytes();
        let mut rest = digest.iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Self(std::array::from_fn(|_| {
            let letter = LETTERS[(rest % 62) as usize];
            rest /= 62;
            letter
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        // Letters and digits only.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn sorted(list: &[String]) -> Vec<Cow<'_, str>> {
    let mut sorted: Vec<_> = list.iter().map(|item| Cow::Borrowed(item.as_str())).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// A route as it is stored: short names, sorted lists, so that equal routes have equal text.
#[derive(Serialize, Deserialize)]
struct RouteText<'a> {
    #[serde(rename = "type")]
    job_type: Cow<'a, str>,
    #[serde(rename = "server", default, skip_serializing_if = "Option::is_none")]
    worker_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nobody: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    capabilities: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    region: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    all: bool,
    #[serde(flatten)]
    limit: RateLimit,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    avoid: Vec<Cow<'a, str>>,
}

impl JobRoute {
    /// The route of a job.
    pub fn of(job: &Job) -> Self {
        Self {
            job_type: job.job_type.clone(),
            target: job.target.clone(),
            limit: job.rate_limit,
            avoid: job.avoid.clone(),
        }
    }

    /// May this worker take jobs of this route?
    pub fn matches(&self, worker: &Labels) -> bool {
        self.target.matches(worker)
            && !self.avoid.iter().any(|worker_id| worker.worker_id == *worker_id.as_str())
    }

    /// The one worker it names, if it names one.
    pub(crate) fn worker(&self) -> Option<&str> {
        match &self.target.worker {
            TargetWorker::Only(worker_id) => Some(worker_id),
            _ => None,
        }
    }

    /// The pools its jobs are in, at least one.
    pub(crate) fn pools(&self) -> Vec<Pool> {
        let nobody = || {
            vec![Pool::new(
                JobTarget { worker: TargetWorker::Nobody, ..JobTarget::default() },
                Vec::new(),
            )]
        };
        match &self.target.worker {
            TargetWorker::Only(worker_id) if self.avoid.contains(worker_id) => return nobody(),
            TargetWorker::Only(worker_id) => return vec![Pool::of_worker(worker_id)],
            TargetWorker::Nobody => return nobody(),
            TargetWorker::Any => {}
        }
        let JobTarget { stack, capabilities, region, mode, .. } = &self.target;
        // One of a list is one pool each; no list at all asks for nothing.
        fn each(list: &[String]) -> Vec<Vec<String>> {
            let one = |item: &Cow<'_, str>| vec![item.to_string()];
            if list.is_empty() { vec![Vec::new()] } else { sorted(list).iter().map(one).collect() }
        }
        let capable = match mode {
            MatchMode::All if sorted(capabilities).len() > 1 => vec![capabilities.clone()],
            _ => each(capabilities),
        };
        let (stacks, regions) = (each(stack), each(region));
        if stacks.len() * regions.len() * capable.len() > POOLS_MAX {
            return vec![Pool::new(self.target.clone(), self.avoid.clone())];
        }
        let mut pools = Vec::new();
        for stack in &stacks {
            for region in &regions {
                for capabilities in &capable {
                    let target = JobTarget {
                        worker: TargetWorker::Any,
                        stack: stack.clone(),
                        capabilities: capabilities.clone(),
                        region: region.clone(),
                        mode: if capabilities.len() > 1 { *mode } else { MatchMode::Any },
                    };
                    pools.push(Pool::new(target, self.avoid.clone()));
                }
            }
        }
        pools
    }

    /// The route as text, equal for equal routes.
    pub(crate) fn to_text(&self) -> String {
        let pinned = self.worker().is_some();
        // A named server makes all other conditions void.
        fn open(pinned: bool, list: &[String]) -> Vec<Cow<'_, str>> {
            if pinned { Vec::new() } else { sorted(list) }
        }
        let text = RouteText {
            job_type: Cow::Borrowed(self.job_type.as_str()),
            worker_id: self.worker().map(Cow::Borrowed),
            nobody: self.target.worker == TargetWorker::Nobody,
            stack: open(pinned, &self.target.stack),
            capabilities: open(pinned, &self.target.capabilities),
            region: open(pinned, &self.target.region),
            all: !pinned
                && self.target.mode == MatchMode::All
                && !self.target.capabilities.is_empty(),
            limit: self.limit,
            avoid: sorted(&self.avoid),
        };
        // Texts, numbers and lists serialise always.
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// Reads a stored route.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text: RouteText<'_> = serde_json::from_str(text).ok()?;
        let owned = |list: Vec<Cow<'_, str>>| list.into_iter().map(Cow::into_owned).collect();
        Some(Self {
            job_type: JobType::stored(text.job_type),
            target: JobTarget {
                worker: match (text.worker_id, text.nobody) {
                    (Some(worker_id), _) => TargetWorker::Only(worker_id.into_owned()),
                    (None, true) => TargetWorker::Nobody,
                    (None, false) => TargetWorker::Any,
                },
                stack: owned(text.stack),
                capabilities: owned(text.capabilities),
                region: owned(text.region),
                mode: if text.all { MatchMode::All } else { MatchMode::Any },
            },
            limit: text.limit,
            avoid: owned(text.avoid),
        })
    }

    /// Its short name and its text.
    pub(crate) fn name(&self) -> (RouteId, String) {
        let text = self.to_text();
        (RouteId::of(&text), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Labels {
        Labels::new("w1").unwrap().stack("node").region("eu").capabilities(["gpu", "mail"])
    }

    fn verdict(target: &str) -> Result<bool, MalformedJob> {
        JobTarget::parse(target).map(|target| target.matches(&worker()))
    }

    #[test]
    fn verdicts_are_those_of_v1() {
        for (target, expected) in [
            // No condition at all.
            ("{}", true),
            ("[]", true),
            ("\"x\"", true),
            (r#"{"unknown":["x"]}"#, true),
            (r#"{"mode":"all"}"#, true),
            (r#"{"stack":[],"capabilities":[],"region":[]}"#, true),
            // A named server is the only condition.
            (r#"{"server":"w1"}"#, true),
            (r#"{"server":"W1"}"#, false),
            (r#"{"server":"w2"}"#, false),
            (r#"{"server":"w1","stack":["rust"],"region":["us"]}"#, true),
            (r#"{"server":"w2","stack":["node"]}"#, false),
            (r#"{"server":""}"#, true),
            (r#"{"server":"","stack":["rust"]}"#, false),
            (r#"{"server":null}"#, false),
            (r#"{"server":7}"#, false),
            // One list.
            (r#"{"stack":["node"]}"#, true),
            (r#"{"stack":["Node"]}"#, false),
            (r#"{"stack":["rust","node"]}"#, true),
            (r#"{"stack":["rust"]}"#, false),
            (r#"{"region":["eu","us"]}"#, true),
            (r#"{"region":["us"]}"#, false),
            (r#"{"capabilities":["gpu"]}"#, true),
            (r#"{"capabilities":["gpu","fax"]}"#, true),
            (r#"{"capabilities":["fax"]}"#, false),
            (r#"{"capabilities":[7]}"#, false),
            (r#"{"capabilities":[7,"gpu"]}"#, true),
            // Several lists: all must hold, in mode any as well.
            (r#"{"stack":["node"],"region":["us"]}"#, false),
            (r#"{"stack":["node"],"region":["us"],"mode":"any"}"#, false),
            (
                r#"{"stack":["node"],"region":["eu"],"capabilities":["fax","mail"],"mode":"any"}"#,
                true,
            ),
            // Mode all: every capability, but one of the stacks and regions.
            (r#"{"capabilities":["gpu","mail"],"mode":"all"}"#, true),
            (r#"{"capabilities":["gpu","fax"],"mode":"all"}"#, false),
            (r#"{"stack":["rust","node"],"mode":"all"}"#, true),
            (r#"{"region":["us","eu"],"mode":"all"}"#, true),
            // Any other mode is as all.
            (r#"{"capabilities":["gpu","fax"],"mode":"ANY"}"#, false),
            (r#"{"capabilities":["gpu","fax"],"mode":""}"#, false),
            (r#"{"capabilities":["gpu","fax"],"mode":null}"#, false),
            (r#"{"capabilities":["gpu","fax"],"mode":"any"}"#, true),
            // An object counts no elements.
            (r#"{"stack":{}}"#, true),
            (r#"{"stack":{"a":"rust"}}"#, true),
        ] {
            assert_eq!(verdict(target), Ok(expected), "{target}");
        }
    }

    #[test]
    fn what_stops_v1_is_malformed() {
        for target in [
            "null",
            "7",
            "true",
            r#"{"stack":null}"#,
            r#"{"capabilities":"gpu"}"#,
            r#"{"region":1}"#,
        ] {
            assert!(verdict(target).is_err(), "{target}");
        }
    }

    #[test]
    fn a_worker_without_labels_matches_what_asks_for_none() {
        let bare = Labels::new("w9").unwrap();
        assert!(JobTarget::default().matches(&bare));
        assert!(!JobTarget::default().stack("node").matches(&bare));
        assert!(!JobTarget::default().capability("gpu").matches(&bare));
    }

    #[test]
    fn equal_routes_have_equal_names_and_survive_storing() {
        let job = |target: &str| {
            let text =
                format!(r#"{{"type":"a","target":{target},"rateLimit":{{"maxConcurrent":2}}}}"#);
            JobRoute::of(&Job::parse(crate::JobId::stored("x"), text.as_bytes()).unwrap())
        };
        let one = job(r#"{"stack":["b","a"],"region":["eu"],"mode":"all"}"#);
        let two = job(r#"{"region":["eu"],"stack":["a","b","a"]}"#);
        assert_eq!(one.name(), two.name());
        assert_ne!(one.name(), job("{}").name());
        let pinned = job(r#"{"server":"w1","stack":["b"]}"#);
        assert_eq!(pinned.to_text(), r#"{"type":"a","server":"w1","maxConcurrent":2}"#);
        for route in
            [one, pinned, job(r#"{"server":null}"#), job(r#"{"capabilities":[1],"mode":"all"}"#)]
        {
            let read = JobRoute::parse(&route.to_text()).unwrap();
            assert_eq!(read.name(), route.name());
            assert_eq!(read.matches(&worker()), route.matches(&worker()), "{route:?}");
        }
    }

    #[test]
    fn a_worker_matches_a_route_exactly_when_it_matches_one_of_its_pools() {
        let targets = [
            "{}",
            r#"{"server":"w1"}"#,
            r#"{"server":"w2","stack":["node"]}"#,
            r#"{"server":null}"#,
            r#"{"stack":["rust","node"],"region":["us","eu"]}"#,
            r#"{"stack":["rust","go"]}"#,
            r#"{"capabilities":["gpu","fax"]}"#,
            r#"{"capabilities":["gpu","fax"],"mode":"all"}"#,
            r#"{"capabilities":["gpu","mail"],"mode":"all","stack":["node","go"]}"#,
            r#"{"capabilities":["gpu"],"mode":"all"}"#,
            r#"{"capabilities":["a","b","c","d","gpu"],"stack":["a","b","c","node"]}"#,
        ];
        let workers = [
            worker(),
            Labels::new("w1").unwrap(),
            Labels::new("w2").unwrap().stack("go").region("us").capabilities(["fax"]),
        ];
        for target in targets {
            for avoid in ["[]", r#"["w1"]"#] {
                let text = format!(r#"{{"type":"a","target":{target},"avoid":{avoid}}}"#);
                let job = Job::parse(crate::JobId::stored("x"), text.as_bytes()).unwrap();
                let route = JobRoute::of(&job);
                let pools = route.pools();
                assert!(!pools.is_empty() && pools.len() <= POOLS_MAX);
                for pool in &pools {
                    assert_eq!(Pool::parse(&pool.text).unwrap().id, pool.id, "{text}");
                    assert_eq!(pool.is_open(), pool.id == Pool::open().id, "{text}");
                }
                for worker in &workers {
                    let one = pools.iter().any(|pool| {
                        let stored = Pool::parse(&pool.text).unwrap();
                        assert_eq!(stored.matches(worker), pool.matches(worker));
                        pool.matches(worker)
                    });
                    assert_eq!(one, route.matches(worker), "{text} {worker:?}");
                }
            }
        }
    }

    #[test]
    fn a_worker_to_avoid_is_avoided() {
        let mut route =
            JobRoute::of(&Job::parse(crate::JobId::stored("x"), br#"{"type":"a"}"#).unwrap());
        assert!(route.matches(&worker()));
        route.avoid.push("w1".into());
        assert!(!route.matches(&worker()));
    }
}
