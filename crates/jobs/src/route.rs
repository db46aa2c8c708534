//! Which worker may take which job. Pure; the verdicts are exactly those of v1's claim script.
//!
//! A [`Route`] is everything about a job that decides who may take it and when: type, target, limits
//! and workers to avoid. All jobs of one route and one priority wait in one lane, so a worker judges
//! a route once instead of every job each time.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Error, Job, JobType, ServerId,
    job::{Malformed, RateLimit, close_object, malformed},
    json::{self, Fields},
};

/// Which workers may take a job. Empty: every one.
///
/// Each list that is not empty is one condition, and all conditions must hold. With mode `any` a
/// condition holds when the worker has one of the listed values; with `all` the worker needs every
/// listed capability, while for stack and region, of which a worker has one, it is the same as
/// `any`. A named server is the only condition when there is one.
///
/// ```
/// use jobs::{Labels, Target};
///
/// let target = Target::default().capability("gpu").capability("ssd").region("eu").all();
/// let worker = Labels::new("w1")?.capabilities(["gpu", "ssd", "avx"]).region("eu");
/// assert!(target.matches(&worker));
/// # Ok::<(), jobs::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Only this worker.
    pub server: Server,
    /// Workers of one of these stacks.
    pub stack: Vec<String>,
    /// Workers with one or all of these capabilities.
    pub capabilities: Vec<String>,
    /// Workers in one of these regions.
    pub region: Vec<String>,
    /// Whether one capability is enough.
    pub mode: Mode,
}

/// Which worker a target names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Server {
    /// None in particular.
    #[default]
    Any,
    /// This one.
    Only(String),
    /// A stored `null` or something that is not a name: v1 never finds a worker for it.
    Nobody,
}

/// Whether one capability of a list is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One is enough.
    #[default]
    Any,
    /// All are needed.
    All,
}

/// What a worker is, as far as routing goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Its id.
    pub server: ServerId,
    /// Its stack, such as `rust`.
    pub stack: String,
    /// Where it is.
    pub region: String,
    /// What it can do.
    pub capabilities: Vec<String>,
}

impl Labels {
    /// A worker without stack, region or capabilities.
    pub fn new(server: impl Into<String>) -> Result<Self, Error> {
        let server = ServerId::parse(server)?;
        Ok(Self { server, stack: String::new(), region: String::new(), capabilities: Vec::new() })
    }

    /// Its stack.
    pub fn stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = stack.into();
        self
    }

    /// Where it is.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = region.into();
        self
    }

    /// What it can do.
    pub fn capabilities<T: Into<String>>(mut self, list: impl IntoIterator<Item = T>) -> Self {
        self.capabilities = list.into_iter().map(Into::into).collect();
        self
    }
}

impl Target {
    /// Only this worker.
    pub fn server(mut self, server: &ServerId) -> Self {
        self.server = Server::Only(server.to_string());
        self
    }

    /// Also workers of this stack.
    pub fn stack(mut self, stack: impl Into<String>) -> Self {
        self.stack.push(stack.into());
        self
    }

    /// Also workers with this capability, or only those with it as well if [`all`](Target::all).
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
        self.mode = Mode::All;
        self
    }

    /// May this worker take it?
    pub fn matches(&self, worker: &Labels) -> bool {
        match &self.server {
            Server::Only(server) => return worker.server == server.as_str(),
            Server::Nobody => return false,
            Server::Any => {}
        }
        let one = |list: &[String], value: &str| list.is_empty() || list.iter().any(|v| v == value);
        let capable = match self.mode {
            _ if self.capabilities.is_empty() => true,
            Mode::Any => self.capabilities.iter().any(|need| worker.capabilities.contains(need)),
            Mode::All => self.capabilities.iter().all(|need| worker.capabilities.contains(need)),
        };
        one(&self.stack, &worker.stack) && capable && one(&self.region, &worker.region)
    }

    /// Reads a stored target. What makes v1's script stop is malformed; what it passes over is
    /// passed over.
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
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
                    target.server = match serde_json::from_str(value) {
                        Ok(Value::String(server)) if server.is_empty() => Server::Any,
                        Ok(Value::String(server)) => Server::Only(server),
                        Ok(Value::Bool(false)) => Server::Any,
                        _ => Server::Nobody,
                    };
                }
                "stack" => target.stack = list("target.stack", value)?,
                "capabilities" => target.capabilities = list("target.capabilities", value)?,
                "region" => target.region = list("target.region", value)?,
                "mode" => target.mode = if value == "\"any\"" { Mode::Any } else { Mode::All },
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
        if let Server::Only(server) = &self.server {
            out.push_str(",\"server\":");
            json::push_str(out, server);
        }
        if self.mode == Mode::All {
            out.push_str(",\"mode\":\"all\"");
        }
        close_object(out, start);
    }
}

/// A stored list of labels. An element that is no text can match nothing, so it is kept as a text
/// that no worker has.
fn list(name: &str, text: &str) -> Result<Vec<String>, Malformed> {
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
pub struct Route {
    /// What kind of job.
    pub kind: JobType,
    /// Which workers.
    pub target: Target,
    /// How many at once and per minute.
    pub limit: RateLimit,
    /// Which workers not.
    pub avoid: Vec<String>,
}

/// A route's short name in keys: 64 bits of a digest of its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RouteId([u8; 11]);

impl RouteId {
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
struct Text<'a> {
    #[serde(rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<Cow<'a, str>>,
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

impl Route {
    /// The route of a job.
    pub fn of(job: &Job) -> Self {
        Self {
            kind: job.kind.clone(),
            target: job.target.clone(),
            limit: job.rate_limit,
            avoid: job.avoid.clone(),
        }
    }

    /// May this worker take jobs of this route?
    pub fn matches(&self, worker: &Labels) -> bool {
        self.target.matches(worker)
            && !self.avoid.iter().any(|server| worker.server == *server.as_str())
    }

    /// The one worker it names, if it names one.
    pub(crate) fn server(&self) -> Option<&str> {
        match &self.target.server {
            Server::Only(server) => Some(server),
            _ => None,
        }
    }

    /// The route as text, equal for equal routes.
    pub(crate) fn to_text(&self) -> String {
        let pinned = self.server().is_some();
        // A named server makes all other conditions void.
        fn open(pinned: bool, list: &[String]) -> Vec<Cow<'_, str>> {
            if pinned { Vec::new() } else { sorted(list) }
        }
        let text = Text {
            kind: Cow::Borrowed(self.kind.as_str()),
            server: self.server().map(Cow::Borrowed),
            nobody: self.target.server == Server::Nobody,
            stack: open(pinned, &self.target.stack),
            capabilities: open(pinned, &self.target.capabilities),
            region: open(pinned, &self.target.region),
            all: !pinned && self.target.mode == Mode::All && !self.target.capabilities.is_empty(),
            limit: self.limit,
            avoid: sorted(&self.avoid),
        };
        // Texts, numbers and lists serialise always.
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// Reads a stored route.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text: Text<'_> = serde_json::from_str(text).ok()?;
        let owned = |list: Vec<Cow<'_, str>>| list.into_iter().map(Cow::into_owned).collect();
        Some(Self {
            kind: JobType::stored(text.kind),
            target: Target {
                server: match (text.server, text.nobody) {
                    (Some(server), _) => Server::Only(server.into_owned()),
                    (None, true) => Server::Nobody,
                    (None, false) => Server::Any,
                },
                stack: owned(text.stack),
                capabilities: owned(text.capabilities),
                region: owned(text.region),
                mode: if text.all { Mode::All } else { Mode::Any },
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

    fn verdict(target: &str) -> Result<bool, Malformed> {
        Target::parse(target).map(|target| target.matches(&worker()))
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
        assert!(Target::default().matches(&bare));
        assert!(!Target::default().stack("node").matches(&bare));
        assert!(!Target::default().capability("gpu").matches(&bare));
    }

    #[test]
    fn equal_routes_have_equal_names_and_survive_storing() {
        let job = |target: &str| {
            let text =
                format!(r#"{{"type":"a","target":{target},"rateLimit":{{"maxConcurrent":2}}}}"#);
            Route::of(&Job::parse(crate::JobId::stored("x"), text.as_bytes()).unwrap())
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
            let read = Route::parse(&route.to_text()).unwrap();
            assert_eq!(read.name(), route.name());
            assert_eq!(read.matches(&worker()), route.matches(&worker()), "{route:?}");
        }
    }

    #[test]
    fn a_worker_to_avoid_is_avoided() {
        let mut route =
            Route::of(&Job::parse(crate::JobId::stored("x"), br#"{"type":"a"}"#).unwrap());
        assert!(route.matches(&worker()));
        route.avoid.push("w1".into());
        assert!(!route.matches(&worker()));
    }
}
