//! A job and what is stored of it: the JSON documents of the v1 schema.
//!
//! [`Job::parse`] reads what any producer wrote and forgives what can be forgiven; a job that
//! cannot be understood is a [`Malformed`] with its reason, never a panic and never a poisoned
//! queue. [`Job::to_text`] writes v1's fields in v1's order and leaves out what is at its default,
//! never writing `null`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use store::Millis;

use crate::{
    Error, JobId, JobType,
    backoff::Growth,
    json::{self, Fields},
    route::{Server, Target},
};

/// Largest payload a caller may dispatch: 256 KiB. A queue moves references well and files badly.
pub const PAYLOAD_MAX: usize = 256 * 1024;

/// A job as it is stored.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which job.
    pub id: JobId,
    /// What kind of job.
    pub kind: JobType,
    /// What the handler gets, as JSON text.
    pub payload: Box<RawValue>,
    /// When it runs, if not at once.
    pub schedule: Schedule,
    /// How often it may fail, and how long it waits in between.
    pub retry: Retry,
    /// Higher goes first.
    pub priority: Priority,
    /// Jobs that must have ended before this one may start.
    pub depends_on: Vec<JobId>,
    /// Which workers may take it.
    pub target: Target,
    /// Whatever the producer wants to keep with it.
    pub metadata: Map<String, Value>,
    /// When it was dispatched.
    pub created_at: Millis,
    /// Failures that were retried so far.
    pub attempts: u32,
    /// Limits that are shared by all jobs of this type.
    pub rate_limit: RateLimit,
    /// How long one attempt may run.
    pub timeout: Option<Duration>,
    /// Not started by then: it is not started at all.
    pub expires_at: Option<Millis>,
    /// Workers it must not go to again; see `rerouteOn` of [`Retry`].
    pub avoid: Vec<String>,
    /// What happens when a job it depends on does not succeed.
    pub on_parent_failure: OnParentFailure,
}

/// How urgent a job is: 1 to 10, 5 by default, higher first. First come, first served within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The lowest priority.
    pub const LOWEST: Self = Self(1);
    /// What a job has when nothing is said.
    pub const NORMAL: Self = Self(5);
    /// The highest priority.
    pub const HIGHEST: Self = Self(10);

    /// A priority from 1 to 10.
    pub fn new(level: u8) -> Result<Self, Error> {
        match level {
            1..=10 => Ok(Self(level)),
            _ => Err(Error::invalid(format!("priority {level} is not 1 to 10"))),
        }
    }

    /// The level, 1 to 10.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Does v1 put it at the front of the waiting list?
    pub(crate) fn is_high(self) -> bool {
        self.0 >= 7
    }

    /// What a stored number means, which v1 does not check.
    fn stored(level: f64) -> Self {
        if level.is_nan() || level == 0.0 {
            return Self::NORMAL;
        }
        Self(level.floor().clamp(1.0, 10.0) as u8)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// When a job runs. All empty: at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// After this long.
    pub delay: Option<Duration>,
    /// At this moment; beats `delay`.
    pub run_at: Option<Millis>,
    /// Again and again, by this cron expression; beats both.
    pub cron: Option<String>,
    /// The IANA time zone the expression is read in; UTC when absent.
    pub timezone: Option<String>,
    /// What happens when an occurrence comes while the one before it has not ended.
    pub overlap: Overlap,
    /// What happens to occurrences that came while no scheduler ran.
    pub catch_up: CatchUp,
}

/// What happens when a cron occurrence comes while the one before it has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// The occurrence is left out. All occurrences run under the schedule's own id, as in v1.
    #[default]
    Skip,
    /// Each occurrence is a job of its own, named `ID@MILLISECONDS`.
    Allow,
}

/// What happens to cron occurrences that came while no scheduler ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// The latest one runs, late.
    #[default]
    Last,
    /// None runs; the next is the first in the future.
    None,
    /// Each runs, at most [`CATCH_UP_MAX`](crate::cron::CATCH_UP_MAX) of them. Needs
    /// [`Overlap::Allow`], else it is as `Last`.
    All,
}

/// What happens to a job when one that it depends on does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnParentFailure {
    /// It fails too, without having run.
    #[default]
    Fail,
    /// It runs all the same, once all have ended.
    Run,
}

/// How often a job may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Retries after the first attempt: a job runs at most `attempts + 1` times. 3 by default.
    pub attempts: u32,
    /// How long to wait in between.
    pub backoff: Backoff,
    /// Errors of these names are not retried.
    pub skip_on: Vec<String>,
    /// Errors of these names send the job to another worker at once: this worker does not get it
    /// again, and a target that names this worker is dropped.
    pub reroute_on: Vec<String>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 3,
            backoff: Backoff::default(),
            skip_on: Vec::new(),
            reroute_on: Vec::new(),
        }
    }
}

/// How long to wait before a retry; see [`Backoff::wait`]. By default 2 s, doubling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// How the wait grows.
    pub growth: Growth,
    /// The first wait.
    pub delay: Duration,
    /// The longest wait.
    pub max_delay: Option<Duration>,
    /// Spread the wait by ±25 %.
    pub jitter: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            growth: Growth::Exponential,
            delay: Duration::from_secs(2),
            max_delay: None,
            jitter: false,
        }
    }
}

/// Limits shared by all jobs of a type. Zero stops the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// How many may run at once, in all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// How many may start in any 60 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_minute: Option<u32>,
}

/// Why a stored job cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// How much of a job is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// What is not at its default. A waiting job takes some 450 bytes of Redis in all.
    #[default]
    Lean,
    /// Every field v1's own dispatch writes, for v1 handlers that read `job.metadata` and the like
    /// without looking whether it is there.
    Full,
}

impl Job {
    /// Reads a stored job. `id` is the id it was found under, which counts; the one inside may be
    /// missing.
    pub fn parse(id: JobId, text: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(text).map_err(|_| malformed("not UTF-8"))?;
        let fields = Fields::parse(text)
            .map_err(|error| malformed(format!("not a JSON object: {error}")))?;
        let mut kind = None;
        let mut job = Self {
            id,
            kind: JobType::stored(""),
            payload: empty_object(),
            schedule: Schedule::default(),
            retry: Retry::default(),
            priority: Priority::NORMAL,
            depends_on: Vec::new(),
            target: Target::default(),
            metadata: Map::new(),
            created_at: Millis(0),
            attempts: 0,
            rate_limit: RateLimit::default(),
            timeout: None,
            expires_at: None,
            avoid: Vec::new(),
            on_parent_failure: OnParentFailure::default(),
        };
        for (name, value) in fields.iter() {
            match name {
                "type" => kind = read::<String>(value),
                "payload" if value != "null" => {
                    job.payload = serde_json::from_str(value).unwrap_or_else(|_| empty_object());
                }
                "schedule" => job.schedule = Schedule::parse(value),
                "retry" => job.retry = Retry::parse(value),
                "priority" => {
                    job.priority = number(value).map_or(Priority::NORMAL, Priority::stored)
                }
                "dependsOn" => {
                    let ids: Vec<String> = read(value).unwrap_or_default();
                    job.depends_on = ids.into_iter().map(JobId::stored).collect();
                }
                "target" => job.target = Target::parse(value)?,
                "metadata" => job.metadata = read(value).unwrap_or_default(),
                "createdAt" => job.created_at = millis(value).unwrap_or_default(),
                "attempts" => job.attempts = count(value).unwrap_or(0),
                "rateLimit" => job.rate_limit = RateLimit::parse(value),
                "timeout" => job.timeout = duration(value).filter(|timeout| !timeout.is_zero()),
                "expiresAt" => job.expires_at = millis(value),
                "avoid" => job.avoid = read(value).unwrap_or_default(),
                "onParentFailure" => job.on_parent_failure = read(value).unwrap_or_default(),
                _ => {}
            }
        }
        match kind {
            Some(kind) if !kind.is_empty() => job.kind = JobType::stored(kind),
            _ => return Err(malformed("it has no type")),
        }
        Ok(job)
    }

    /// The job as it is stored.
    pub fn to_text(&self, shape: Shape) -> String {
        let full = shape == Shape::Full;
        let mut out = String::with_capacity(self.payload.get().len() + 128);
        out.push_str("{\"jobId\":");
        json::push_str(&mut out, self.id.as_str());
        out.push_str(",\"type\":");
        json::push_str(&mut out, self.kind.as_str());
        out.push_str(",\"payload\":");
        out.push_str(self.payload.get());
        if full || self.schedule != Schedule::default() {
            out.push_str(",\"schedule\":");
            self.schedule.write(&mut out);
        }
        out.push_str(",\"retry\":");
        self.retry.write(&mut out, full);
        if full || self.priority != Priority::NORMAL {
            push(&mut out, "priority", self.priority.0);
        }
        if full || !self.depends_on.is_empty() {
            out.push_str(",\"dependsOn\":");
            json::push_list(&mut out, &self.depends_on);
        }
        if full || self.target != Target::default() {
            out.push_str(",\"target\":");
            self.target.write(&mut out);
        }
        if full || !self.metadata.is_empty() {
            out.push_str(",\"metadata\":");
            out.push_str(&serde_json::to_string(&self.metadata).unwrap_or_else(|_| "{}".into()));
        }
        push(&mut out, "createdAt", self.created_at);
        push(&mut out, "attempts", self.attempts);
        if self.rate_limit != RateLimit::default() {
            out.push_str(",\"rateLimit\":");
            let limit = serde_json::to_string(&self.rate_limit);
            out.push_str(&limit.unwrap_or_else(|_| "{}".into()));
        }
        if let Some(timeout) = self.timeout {
            push(&mut out, "timeout", timeout.as_millis());
        }
        if let Some(expires_at) = self.expires_at {
            push(&mut out, "expiresAt", expires_at);
        }
        if !self.avoid.is_empty() {
            out.push_str(",\"avoid\":");
            json::push_list(&mut out, &self.avoid);
        }
        if self.on_parent_failure != OnParentFailure::default() {
            out.push_str(",\"onParentFailure\":\"run\"");
        }
        out.push('}');
        out
    }

    /// The payload as a type. `{}` is also read as "nothing", because v1 writes that for it.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let text = self.payload.get();
        serde_json::from_str(text).or_else(|error| match text {
            "{}" => serde_json::from_str("null").map_err(|_: serde_json::Error| error),
            _ => Err(error),
        })
    }

    /// Is it a recurring job that runs under its own id?
    pub(crate) fn is_cron(&self) -> bool {
        self.schedule.cron.is_some()
    }
}

impl Schedule {
    fn parse(text: &str) -> Self {
        let mut schedule = Self::default();
        let Ok(fields) = Fields::parse(text) else { return schedule };
        for (name, value) in fields.iter() {
            match name {
                "delay" => schedule.delay = duration(value).filter(|delay| !delay.is_zero()),
                "runAt" => schedule.run_at = millis(value).filter(|at| at.0 != 0),
                "cron" => schedule.cron = read(value).filter(|cron: &String| !cron.is_empty()),
                "timezone" => {
                    schedule.timezone = read(value).filter(|zone: &String| !zone.is_empty())
                }
                "overlap" => schedule.overlap = read(value).unwrap_or_default(),
                "catchUp" => schedule.catch_up = read(value).unwrap_or_default(),
                _ => {}
            }
        }
        schedule
    }

    fn write(&self, out: &mut String) {
        let start = out.len();
        if let Some(delay) = self.delay {
            push(out, "delay", delay.as_millis());
        }
        if let Some(cron) = &self.cron {
            out.push_str(",\"cron\":");
            json::push_str(out, cron);
        }
        if let Some(run_at) = self.run_at {
            push(out, "runAt", run_at);
        }
        if let Some(timezone) = &self.timezone {
            out.push_str(",\"timezone\":");
            json::push_str(out, timezone);
        }
        if self.overlap == Overlap::Allow {
            out.push_str(",\"overlap\":\"allow\"");
        }
        match self.catch_up {
            CatchUp::Last => {}
            CatchUp::None => out.push_str(",\"catchUp\":\"none\""),
            CatchUp::All => out.push_str(",\"catchUp\":\"all\""),
        }
        close_object(out, start);
    }
}

impl Retry {
    fn parse(text: &str) -> Self {
        let mut retry = Self::default();
        let Ok(fields) = Fields::parse(text) else { return retry };
        for (name, value) in fields.iter() {
            match name {
                "attempts" => retry.attempts = count(value).unwrap_or(retry.attempts),
                "backoff" => retry.backoff = Backoff::parse(value),
                "skipOn" => retry.skip_on = read(value).unwrap_or_default(),
                "rerouteOn" => retry.reroute_on = read(value).unwrap_or_default(),
                _ => {}
            }
        }
        retry
    }

    fn write(&self, out: &mut String, full: bool) {
        let start = out.len();
        push(out, "attempts", self.attempts);
        if full || self.backoff != Backoff::default() {
            out.push_str(",\"backoff\":");
            self.backoff.write(out);
        }
        for (name, list) in [("skipOn", &self.skip_on), ("rerouteOn", &self.reroute_on)] {
            if !list.is_empty() {
                out.push_str(",\"");
                out.push_str(name);
                out.push_str("\":");
                json::push_list(out, list);
            }
        }
        close_object(out, start);
    }
}

impl Backoff {
    fn parse(text: &str) -> Self {
        let mut backoff = Self::default();
        let Ok(fields) = Fields::parse(text) else { return backoff };
        for (name, value) in fields.iter() {
            match name {
                "type" => {
                    backoff.growth = match read::<String>(value).as_deref() {
                        Some("exponential") => Growth::Exponential,
                        Some("linear") => Growth::Linear,
                        // v1 takes a type it does not know as "always the same".
                        _ => Growth::Fixed,
                    };
                }
                "delay" => backoff.delay = duration(value).unwrap_or(backoff.delay),
                "maxDelay" => backoff.max_delay = duration(value).filter(|max| !max.is_zero()),
                "jitter" => backoff.jitter = value == "true",
                _ => {}
            }
        }
        backoff
    }

    fn write(&self, out: &mut String) {
        let start = out.len();
        out.push_str(match self.growth {
            Growth::Fixed => ",\"type\":\"fixed\"",
            Growth::Linear => ",\"type\":\"linear\"",
            Growth::Exponential => ",\"type\":\"exponential\"",
        });
        push(out, "delay", self.delay.as_millis());
        if let Some(max) = self.max_delay {
            push(out, "maxDelay", max.as_millis());
        }
        if self.jitter {
            out.push_str(",\"jitter\":true");
        }
        close_object(out, start);
    }
}

impl RateLimit {
    fn parse(text: &str) -> Self {
        let mut limit = Self::default();
        let Ok(fields) = Fields::parse(text) else { return limit };
        for (name, value) in fields.iter() {
            match name {
                "maxConcurrent" => limit.max_concurrent = count(value),
                "maxPerMinute" => limit.max_per_minute = count(value),
                _ => {}
            }
        }
        limit
    }
}

/// What one attempt came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Did the handler succeed?
    pub success: bool,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// When it ended, in milliseconds since 1970.
    #[serde(default)]
    pub completed_at: i64,
    /// How long the handler ran, in milliseconds.
    #[serde(default)]
    pub processing_time: u64,
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Where it came from, when the language can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// The class of error, which `skipOn` and `rerouteOn` go by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl JobError {
    /// An error of a class.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { message: message.into(), stack: None, name: Some(name.into()) }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) if self.message.is_empty() => f.write_str(name),
            Some(name) => write!(f, "{name}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// How far a running job is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whatever the handler wants to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    /// When it said so, in milliseconds since 1970.
    #[serde(default)]
    pub updated_at: i64,
}

/// What a job's status key may hold. v1 never writes `failed`; here it means "ended without success
/// and without a place in the dead letters": cancelled or expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// In line.
    Waiting,
    /// Running.
    Active,
    /// Ended with success.
    Completed,
    /// Cancelled, or expired before it started.
    Failed,
    /// Waiting for its time, for a retry, or for other jobs.
    Delayed,
    /// A schedule that has not run yet.
    Cron,
    /// Ended without success; in the dead letters.
    Dead,
}

impl Status {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Delayed => "delayed",
            Self::Cron => "cron",
            Self::Dead => "dead",
        }
    }

    /// Reads the stored word.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "waiting" => Self::Waiting,
            "active" => Self::Active,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "delayed" => Self::Delayed,
            "cron" => Self::Cron,
            "dead" => Self::Dead,
            _ => return None,
        })
    }

    /// Will nothing more happen to the job by itself?
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Dead)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub(crate) fn malformed(reason: impl Into<String>) -> Malformed {
    Malformed(reason.into())
}

pub(crate) fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Appends `,"name":value`.
fn push(out: &mut String, name: &str, value: impl fmt::Display) {
    use fmt::Write as _;
    // Writing to a string does not fail.
    let _ = write!(out, ",\"{name}\":{value}");
}

/// Makes an object of the `,"name":value` parts that were appended since `start`.
pub(crate) fn close_object(out: &mut String, start: usize) {
    if out.len() == start {
        out.push('{');
    } else {
        out.replace_range(start..=start, "{");
    }
    out.push('}');
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// A number, or a text that is one, as a lenient language would take it.
fn number(text: &str) -> Option<f64> {
    match read::<Value>(text)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

fn count(text: &str) -> Option<u32> {
    // Saturates; a negative count is none at all.
    number(text).map(|number| number as u32)
}

fn millis(text: &str) -> Option<Millis> {
    text.parse().ok().or_else(|| number(text).map(|number| number as i64)).map(Millis)
}

fn duration(text: &str) -> Option<Duration> {
    number(text).filter(|ms| *ms >= 0.0).map(|ms| Duration::from_millis(ms as u64))
}

/// A payload type that knows its job type, so that dispatch and handler agree.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail { to: String }
///
/// impl jobs::Task for SendMail {
///     const TYPE: &'static str = "send-mail";
/// }
///
/// let job = jobs::NewJob::of(&SendMail { to: "ann@example.org".into() })?;
/// # Ok::<(), jobs::Error>(())
/// ```
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The job type.
    const TYPE: &'static str;

    /// What every job of this type starts from: retries, priority, target and so on.
    fn defaults(job: NewJob) -> NewJob {
        job
    }
}

/// A job to be dispatched. Start from [`NewJob::new`] or [`NewJob::of`] and say what differs.
///
/// ```
/// use std::time::Duration;
/// use jobs::{NewJob, Target};
///
/// let job = NewJob::new("render", &serde_json::json!({"frame": 7}))?
///     .priority(8)
///     .delay(Duration::from_secs(60))
///     .target(Target::default().capability("gpu").region("eu"));
/// # Ok::<(), jobs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewJob {
    pub(crate) job: Job,
    pub(crate) id: Option<JobId>,
    pub(crate) once: Option<Once>,
    problem: Option<String>,
}

/// A key under which a job is dispatched once.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) key: String,
    pub(crate) keep: Duration,
}

impl NewJob {
    /// A job of a type with a payload.
    pub fn new(kind: impl Into<String>, payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::value::to_raw_value(payload)
            .map_err(|error| Error::invalid(format!("the payload is not JSON: {error}")))?;
        Self::raw(kind, payload)
    }

    /// A job of a type with a payload that is JSON text already.
    pub fn raw(kind: impl Into<String>, payload: Box<RawValue>) -> Result<Self, Error> {
        let kind = JobType::parse(kind)?;
        if payload.get().len() > PAYLOAD_MAX {
            return Err(Error::invalid(format!(
                "the payload has {} bytes, more than {PAYLOAD_MAX}",
                payload.get().len()
            )));
        }
        let payload = if payload.get() == "null" { empty_object() } else { payload };
        let job = Job {
            id: JobId::stored(""),
            kind,
            payload,
            schedule: Schedule::default(),
            retry: Retry::default(),
            priority: Priority::NORMAL,
            depends_on: Vec::new(),
            target: Target::default(),
            metadata: Map::new(),
            created_at: Millis(0),
            attempts: 0,
            rate_limit: RateLimit::default(),
            timeout: None,
            expires_at: None,
            avoid: Vec::new(),
            on_parent_failure: OnParentFailure::default(),
        };
        Ok(Self { job, id: None, once: None, problem: None })
    }

    /// A job made of a typed payload.
    pub fn of<T: Task>(payload: &T) -> Result<Self, Error> {
        Self::new(T::TYPE, payload).map(T::defaults)
    }

    /// Its id, instead of a random one. Dispatching an id that exists changes nothing and reports
    /// the job that is there.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// How urgent it is, 1 to 10.
    pub fn priority(mut self, level: u8) -> Self {
        match Priority::new(level) {
            Ok(priority) => self.job.priority = priority,
            Err(error) => self.note(error.to_string()),
        }
        self
    }

    /// Runs it after a while.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.job.schedule.delay = Some(delay);
        self
    }

    /// Runs it at a moment.
    pub fn run_at(mut self, at: Millis) -> Self {
        self.job.schedule.run_at = Some(at);
        self
    }

    /// Runs it again and again; see [`Jobs::schedule`](crate::Jobs::schedule).
    pub fn cron(mut self, expression: impl Into<String>) -> Self {
        self.job.schedule.cron = Some(expression.into());
        self
    }

    /// The whole schedule.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.job.schedule = schedule;
        self
    }

    /// The time zone of its cron expression.
    pub fn timezone(mut self, zone: impl Into<String>) -> Self {
        self.job.schedule.timezone = Some(zone.into());
        self
    }

    /// What happens when occurrences overlap.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.job.schedule.overlap = overlap;
        self
    }

    /// What happens to missed occurrences.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.job.schedule.catch_up = catch_up;
        self
    }

    /// How often it may fail.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.job.retry = retry;
        self
    }

    /// Retries after the first attempt.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.job.retry.attempts = attempts;
        self
    }

    /// How long it waits before a retry.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.job.retry.backoff = backoff;
        self
    }

    /// Which workers may take it.
    pub fn target(mut self, target: Target) -> Self {
        self.job.target = target;
        self
    }

    /// Runs it after these have ended. At most [`PARENTS_MAX`].
    pub fn depends_on(mut self, parents: impl IntoIterator<Item = JobId>) -> Self {
        self.job.depends_on.extend(parents);
        self
    }

    /// What happens when one that it depends on does not succeed.
    pub fn on_parent_failure(mut self, policy: OnParentFailure) -> Self {
        self.job.on_parent_failure = policy;
        self
    }

    /// Keeps something with it.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.job.metadata.insert(name.into(), value.into());
        self
    }

    /// How many of its type may run at once.
    pub fn max_concurrent(mut self, most: u32) -> Self {
        self.job.rate_limit.max_concurrent = Some(most);
        self
    }

    /// How many of its type may start in any minute.
    pub fn max_per_minute(mut self, most: u32) -> Self {
        self.job.rate_limit.max_per_minute = Some(most);
        self
    }

    /// How long one attempt may run.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.job.timeout = Some(timeout);
        self
    }

    /// Does not start it after this moment.
    pub fn expires_at(mut self, at: Millis) -> Self {
        self.job.expires_at = Some(at);
        self
    }

    /// Dispatches it once: as long as `keep` has not passed, another dispatch under the same key
    /// changes nothing and reports this job.
    pub fn once(mut self, key: impl Into<String>, keep: Duration) -> Self {
        let key = key.into();
        if key.is_empty() || key.len() > 256 || key.chars().any(char::is_control) {
            self.note("an idempotency key is 1 to 256 bytes without control characters".to_owned());
        }
        self.once = Some(Once { key, keep });
        self
    }

    /// Keeps the first problem for the dispatch to report.
    fn note(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// The job under an id, if nothing is wrong with it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(problem) = &self.problem {
            return Err(Error::invalid(problem.clone()));
        }
        if self.job.depends_on.len() > PARENTS_MAX {
            return Err(Error::invalid(format!(
                "a job depends on {} others, more than {PARENTS_MAX}",
                self.job.depends_on.len()
            )));
        }
        if self.job.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::invalid("a timeout of zero would let no attempt run"));
        }
        if matches!(self.job.target.server, Server::Nobody) {
            return Err(Error::invalid("the target names no worker at all"));
        }
        Ok(())
    }
}

/// How many jobs one job may depend on: 10,000. They are read in one script.
pub const PARENTS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Job, Malformed> {
        Job::parse(JobId::stored("j1"), text.as_bytes())
    }

    fn sample() -> Job {
        let mut new = NewJob::new("mail", &serde_json::json!({"to": "ann"})).unwrap();
        new.job.id = JobId::stored("j1");
        new.job.created_at = Millis(1_732_376_323_000);
        new.job
    }

    #[test]
    fn a_lean_job_has_what_a_v1_worker_needs_and_no_more() {
        assert_eq!(
            sample().to_text(Shape::Lean),
            r#"{"jobId":"j1","type":"mail","payload":{"to":"ann"},"retry":{"attempts":3},"createdAt":1732376323000,"attempts":0}"#
        );
    }

    #[test]
    fn a_full_job_is_what_v1_dispatch_writes() {
        assert_eq!(
            sample().to_text(Shape::Full),
            concat!(
                r#"{"jobId":"j1","type":"mail","payload":{"to":"ann"},"schedule":{},"#,
                r#""retry":{"attempts":3,"backoff":{"type":"exponential","delay":2000}},"priority":5,"#,
                r#""dependsOn":[],"target":{},"metadata":{},"createdAt":1732376323000,"attempts":0}"#
            )
        );
    }

    #[test]
    fn every_field_survives_writing_and_reading() {
        let new = NewJob::new("mail", &[1, 2])
            .unwrap()
            .priority(9)
            .schedule(Schedule {
                delay: Some(Duration::from_millis(5)),
                run_at: Some(Millis(7)),
                cron: Some("0 3 * * *".into()),
                timezone: Some("Europe/Berlin".into()),
                overlap: Overlap::Allow,
                catch_up: CatchUp::All,
            })
            .retry(Retry {
                attempts: 7,
                backoff: Backoff {
                    growth: Growth::Linear,
                    delay: Duration::from_millis(10),
                    max_delay: Some(Duration::from_millis(90)),
                    jitter: true,
                },
                skip_on: vec!["Fatal".into()],
                reroute_on: vec!["Gpu".into()],
            })
            .target(Target::default().stack("rust").capability("gpu").region("eu").all())
            .depends_on([JobId::stored("p1"), JobId::stored("p2")])
            .on_parent_failure(OnParentFailure::Run)
            .metadata("a", "b")
            .max_concurrent(2)
            .max_per_minute(30)
            .timeout(Duration::from_secs(3))
            .expires_at(Millis(99));
        let mut job = new.job;
        job.id = JobId::stored("j1");
        job.attempts = 2;
        job.created_at = Millis(5);
        job.avoid = vec!["w1".into()];
        for shape in [Shape::Lean, Shape::Full] {
            let text = job.to_text(shape);
            assert!(!text.contains("null"), "{text}");
            let read = parse(&text).unwrap();
            assert_eq!(read.to_text(shape), text);
            assert_eq!(format!("{read:?}"), format!("{job:?}"));
        }
    }

    #[test]
    fn a_job_of_another_producer_is_read_with_v1_defaults() {
        let job = parse(r#"{"type":"x"}"#).unwrap();
        assert_eq!(job.retry, Retry::default());
        assert_eq!(job.priority, Priority::NORMAL);
        assert_eq!(job.payload.get(), "{}");
        let job = parse(r#"{"type":"x","priority":"9","createdAt":1.7e12,"payload":null,"rateLimit":null,"schedule":null,"metadata":null,"dependsOn":null,"retry":null}"#).unwrap();
        assert_eq!(job.priority.get(), 9);
        assert_eq!(job.created_at, Millis(1_700_000_000_000));
        for (stored, level) in
            [("11", 10), ("6.9", 6), ("0", 5), ("-3", 1), ("\"x\"", 5), ("[]", 5)]
        {
            let job = parse(&format!(r#"{{"type":"x","priority":{stored}}}"#)).unwrap();
            assert_eq!(job.priority.get(), level, "{stored}");
        }
    }

    #[test]
    fn poison_is_told_with_its_reason() {
        for (text, reason) in [
            ("", "not a JSON object"),
            ("[1]", "not a JSON object"),
            (r#"{"payload":1}"#, "it has no type"),
            (r#"{"type":null}"#, "it has no type"),
            (r#"{"type":"x","target":{"stack":null}}"#, "target.stack"),
            (r#"{"type":"x","target":{"region":"eu"}}"#, "target.region"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(Job::parse(JobId::stored("a"), b"\xff").is_err());
        let deep =
            format!(r#"{{"type":"x","payload":{}1{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
        assert!(parse(&deep).is_ok(), "a payload is not looked into");
    }

    #[test]
    fn a_lone_surrogate_in_a_payload_stays_as_it_is() {
        let job = parse(r#"{"type":"x","payload":{"a":"\ud800"}}"#).unwrap();
        assert_eq!(job.payload.get(), r#"{"a":"\ud800"}"#);
    }

    #[test]
    fn results_leave_out_what_is_absent() {
        let result = JobResult {
            success: true,
            data: None,
            error: None,
            completed_at: 5,
            processing_time: 2,
        };
        assert_eq!(
            serde_json::to_string(&result).unwrap(),
            r#"{"success":true,"completedAt":5,"processingTime":2}"#
        );
        let read: JobResult = serde_json::from_str(
            r#"{"success":false,"error":{},"completedAt":5,"processingTime":2}"#,
        )
        .unwrap();
        assert_eq!(read.error, Some(JobError::default()));
    }

    #[test]
    fn a_bad_new_job_is_refused_with_its_first_problem() {
        let job = NewJob::new("x", &()).unwrap();
        assert_eq!(job.job.payload.get(), "{}");
        assert!(job.clone().priority(11).check().is_err());
        assert!(job.clone().once("", Duration::ZERO).check().is_err());
        assert!(job.clone().timeout(Duration::ZERO).check().is_err());
        assert!(NewJob::new("x y", &()).is_err());
        assert!(NewJob::new("x", &"y".repeat(PAYLOAD_MAX)).is_err());
        job.check().unwrap();
    }
}
