//! A job and what is stored of it: the JSON documents of the v1 schema.
//!
//! [`Job::parse`] reads what any producer wrote and forgives what can be forgiven; a job that
//! cannot be understood is a [`Malformed`] with its reason, never a panic and never a poisoned
//! queue. [`Job::to_text`] writes v1's fields in v1's order and leaves out what is at its default,
//! never writing `null`.

mod new;
#[cfg(test)]
mod tests;

pub use self::new::{NewJob, PARENTS_MAX, Task};

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use store::{Millis, trace::TraceContext};

use crate::{
    Error, JobId, JobType,
    backoff::Growth,
    json::{self, Fields},
    route::JobTarget,
    text::{MESSAGE_MAX, NOTE_MAX, STACK_MAX, clip_owned},
};

/// Largest payload a caller may dispatch: 256 KiB. A queue moves references well and files badly.
pub const PAYLOAD_MAX: usize = 256 * 1024;

/// A job as it is stored.
#[derive(Clone, Debug)]
pub struct Job {
    /// Id of the job.
    pub id: JobId,
    /// The job type.
    pub job_type: JobType,
    /// Input of the handler, as JSON text.
    pub payload: Box<RawValue>,
    /// Start time, if not at once.
    pub schedule: Schedule,
    /// Retry policy.
    pub retry: Retry,
    /// Higher goes first.
    pub priority: Priority,
    /// Jobs that must have ended before this one may start.
    pub depends_on: Vec<JobId>,
    /// The workers that may claim it.
    pub target: JobTarget,
    /// Whatever the producer wants to keep with it.
    pub metadata: Map<String, Value>,
    /// Time of the dispatch.
    pub created_at: Millis,
    /// Failures that were retried so far.
    pub attempts: u32,
    /// Limits that are shared by all jobs of this type.
    pub rate_limit: RateLimit,
    /// Time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Not started by then: it is not started at all.
    pub expires_at: Option<Millis>,
    /// Workers it must not go to again; see `rerouteOn` of [`Retry`].
    pub avoid: Vec<String>,
    /// Policy for a job it depends on that does not succeed.
    pub on_parent_failure: OnParentFailure,
}

/// Priority of a job: 1 to 10, 5 by default, higher first. First come, first served within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The lowest priority.
    pub const LOWEST: Self = Self(1);
    /// The default priority.
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

    /// Reads a stored number, which v1 does not check.
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

/// Start time of a job. All empty: at once.
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
    /// Policy for an occurrence that comes due while the previous one has not ended.
    pub overlap: Overlap,
    /// Policy for occurrences that came due while no scheduler ran.
    pub catch_up: CatchUp,
}

/// Policy for a cron occurrence that comes due while the previous one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// The occurrence is left out. All occurrences run under the schedule's own id, as in v1.
    #[default]
    Skip,
    /// Each occurrence is a job of its own, named `ID@MILLISECONDS`.
    Allow,
}

/// Policy for cron occurrences that came due while no scheduler ran.
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

/// Policy for a job when one that it depends on does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnParentFailure {
    /// It fails too, without having run.
    #[default]
    Fail,
    /// It runs all the same, once all have ended.
    Run,
}

/// Retry policy of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Retries after the first attempt: a job runs at most `attempts + 1` times. 3 by default.
    pub attempts: u32,
    /// Delay between attempts.
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

/// Delay before a retry; see [`Backoff::wait`]. By default 2 s, doubling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Growth of the delay.
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

/// Limits shared by all jobs of a type. A stored zero lets none start; a dispatch refuses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Most jobs that may run at once, in all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Most jobs that may start in any 60 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_minute: Option<u32>,
}

/// The reason why a stored job cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedJob(pub String);

/// The fields of a job that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobFormat {
    /// Only fields that differ from their default. A waiting job takes some 450 bytes of Redis in all.
    #[default]
    Lean,
    /// Every field v1's own dispatch writes, for v1 handlers that read `job.metadata` and the like
    /// without looking whether it is there.
    Full,
}

/// Name under which a job's metadata carry the ids of its trace (W3C Trace Context), so that workers
/// of v1 have them too.
pub(crate) const TRACEPARENT: &str = "traceparent";

impl Job {
    /// Returns the trace that it was dispatched in, if its metadata name one.
    pub fn trace(&self) -> Option<TraceContext> {
        self.metadata.get(TRACEPARENT)?.as_str()?.parse().ok()
    }

    /// Takes over the trace in which it is dispatched, unless its producer named one.
    pub(crate) fn carry_trace(&mut self, context: Option<TraceContext>) {
        if let Some(context) = context
            && !self.metadata.contains_key(TRACEPARENT)
        {
            self.metadata.insert(TRACEPARENT.to_owned(), context.to_string().into());
        }
    }

    /// A job with everything at its default.
    fn plain(id: JobId, job_type: JobType, payload: Box<RawValue>) -> Self {
        Self {
            id,
            job_type,
            payload,
            schedule: Schedule::default(),
            retry: Retry::default(),
            priority: Priority::NORMAL,
            depends_on: Vec::new(),
            target: JobTarget::default(),
            metadata: Map::new(),
            created_at: Millis(0),
            attempts: 0,
            rate_limit: RateLimit::default(),
            timeout: None,
            expires_at: None,
            avoid: Vec::new(),
            on_parent_failure: OnParentFailure::default(),
        }
    }

    /// Reads a stored job. `id` is the id it was found under, which counts; the one inside may be
    /// missing.
    pub fn parse(id: JobId, text: &[u8]) -> Result<Self, MalformedJob> {
        let text = std::str::from_utf8(text).map_err(|_| malformed("not UTF-8"))?;
        let fields = Fields::parse(text)
            .map_err(|error| malformed(format!("not a JSON object: {error}")))?;
        let mut job_type = None;
        let mut job = Self::plain(id, JobType::stored(""), empty_object());
        for (name, value) in fields.iter() {
            match name {
                "type" => job_type = read::<String>(value),
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
                "target" => job.target = JobTarget::parse(value)?,
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
        match job_type {
            Some(job_type) if !job_type.is_empty() => job.job_type = JobType::stored(job_type),
            _ => return Err(malformed("it has no type")),
        }
        Ok(job)
    }

    /// The job as it is stored.
    pub fn to_text(&self, shape: JobFormat) -> String {
        let full = shape == JobFormat::Full;
        let mut out = String::with_capacity(self.payload.get().len() + 128);
        out.push_str("{\"jobId\":");
        json::push_str(&mut out, self.id.as_str());
        out.push_str(",\"type\":");
        json::push_str(&mut out, self.job_type.as_str());
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
        if full || self.target != JobTarget::default() {
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

    /// Returns the time from which on it may run: that of the dispatch, or the one it was put off to.
    pub fn due(&self) -> Millis {
        match (self.schedule.run_at, self.schedule.delay) {
            (Some(at), _) => at.max(self.created_at),
            (None, Some(delay)) => self.created_at + delay,
            (None, None) => self.created_at,
        }
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
    pub fn is_cron(&self) -> bool {
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

/// The result of one attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Did the handler succeed?
    pub success: bool,
    /// The return value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// Time at which it ended, in milliseconds since 1970.
    #[serde(default)]
    pub completed_at: i64,
    /// Run time of the handler in milliseconds.
    #[serde(default)]
    pub processing_time: u64,
}

impl JobResult {
    /// The return value as a type; nothing is read as `null`.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.data.as_ref().map_or("null", |data| data.get()))
    }
}

/// The error of a failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Stack trace, if the language has one.
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

    /// The error with its texts cut to what is kept of them: 8 KiB of message, 16 KiB of stack
    /// trace, 1 KiB of name.
    pub(crate) fn clipped(self) -> Self {
        Self {
            message: clip_owned(self.message, MESSAGE_MAX),
            stack: self.stack.map(|stack| clip_owned(stack, STACK_MAX)),
            name: self.name.map(|name| clip_owned(name, NOTE_MAX)),
        }
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

/// Progress of a running job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// 0 to 100.
    pub percent: f64,
    /// The current step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whatever the handler wants to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    /// Time of the report, in milliseconds since 1970.
    #[serde(default)]
    pub updated_at: i64,
}

/// Value of a job's status key. v1 never writes `failed`; here it means "ended without success
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

    /// Returns true if nothing more happens to the job on its own.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Dead)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub(crate) fn malformed(reason: impl Into<String>) -> MalformedJob {
    MalformedJob(reason.into())
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
