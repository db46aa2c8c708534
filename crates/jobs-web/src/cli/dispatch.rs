//! `tidegate jobs dispatch`: one job from flags, or many from lines of JSON (`bulk.rs`).

mod bulk;

use std::io::Read;
use std::time::Duration;

use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{millis, segment, text, time};
use web::cli::Output;
use web::cli::client::{Client, value_of};
use web::cli::{Failure, Outcome};

/// A job to dispatch.
#[derive(Debug, Args)]
pub(crate) struct DispatchArgs {
    /// Job type
    #[arg(value_name = "TYPE", required_unless_present = "bulk")]
    job_type: Option<String>,
    /// Input of the handler: JSON, @FILE, or - for standard input
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
    #[command(flatten)]
    options: JobOptions,
    /// Its id, instead of a random one
    #[arg(long)]
    id: Option<String>,
    /// Run after this long, such as 10m
    #[arg(long, value_name = "TIME", value_parser = time)]
    delay: Option<Duration>,
    /// Run at this moment: 2026-12-24T18:00:00Z, or milliseconds since 1970
    #[arg(long = "run-at", alias = "at", value_name = "MOMENT", value_parser = at, conflicts_with = "delay")]
    at: Option<i64>,
    /// Not started after this long, it is not started at all
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_in: Option<Duration>,
    /// Another dispatch under the same key within a day changes nothing and gives this job; with
    /// --bulk, line 7 has the key KEY:7 unless it has an id or a key of its own
    #[arg(long = "idempotency-key", alias = "key", value_name = "KEY")]
    key: Option<String>,
    /// Id of a job that must have ended before (repeatable)
    #[arg(long, value_name = "ID")]
    depends_on: Vec<String>,
    /// Wait this long for the end, and print the result
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    /// Dispatch many: a file (- is standard input) with one job per line, as in the HTTP API
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "job_type", "id", "wait", "payload", "delay", "at", "expires_in", "depends_on", "JobOptions",
    ])]
    bulk: Option<String>,
    /// Leave out the lines before this one: they are dispatched already
    #[arg(long, value_name = "LINE", requires = "bulk", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
}

/// Options that jobs and schedules have in common.
#[derive(Debug, Args)]
pub(crate) struct JobOptions {
    /// 1 to 10, higher first
    #[arg(long)]
    priority: Option<u8>,
    /// Retries after the first attempt
    #[arg(long, value_name = "NUMBER")]
    retries: Option<u32>,
    /// Growth of the delay between attempts: fixed, linear or exponential
    #[arg(long, value_name = "KIND")]
    backoff: Option<String>,
    /// The first wait between attempts
    #[arg(long, value_name = "TIME", value_parser = time)]
    retry_delay: Option<Duration>,
    /// The longest wait between attempts
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_retry_delay: Option<Duration>,
    /// Time limit of one attempt
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Only this worker may take it
    #[arg(long = "worker-id", alias = "worker", value_name = "ID")]
    worker: Option<String>,
    /// Only workers of this stack (again for others)
    #[arg(long)]
    stack: Vec<String>,
    /// Only workers with this capability (again for others)
    #[arg(long, value_name = "NAME")]
    capability: Vec<String>,
    /// Only workers in this region (again for others)
    #[arg(long)]
    region: Vec<String>,
    /// Workers need all of the capabilities, not just one
    #[arg(long)]
    all_capabilities: bool,
    /// Most jobs of its type that may run at once
    #[arg(long, value_name = "NUMBER")]
    max_concurrent: Option<u32>,
    /// Most jobs of its type that may start in any minute
    #[arg(long, value_name = "NUMBER")]
    max_per_minute: Option<u32>,
    /// Something to keep with it, as NAME=VALUE (repeatable)
    #[arg(long = "metadata", alias = "meta", value_name = "NAME=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn at(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse::<i64>() {
        return Ok(ms);
    }
    text.parse::<jiff::Timestamp>()
        .map(|at| at.as_millisecond())
        .map_err(|_| "write 2026-12-24T18:00:00Z, or milliseconds since 1970".to_owned())
}

/// A payload as it is given on the command line.
pub(super) fn payload(text: &str) -> Outcome<Box<RawValue>> {
    let text = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{path}: {error}")))?,
        None if text == "-" => {
            let mut read = String::new();
            let most = u64::try_from(jobs::PAYLOAD_MAX).unwrap_or(u64::MAX) + 1;
            std::io::stdin()
                .take(most)
                .read_to_string(&mut read)
                .map_err(|error| Failure::usage(format!("standard input: {error}")))?;
            // Read no further, it would not be taken for JSON.
            if read.trim().len() > jobs::PAYLOAD_MAX {
                let most = jobs::PAYLOAD_MAX;
                return Err(Failure::usage(format!("the payload has more than {most} bytes"))
                    .next("store it elsewhere, and dispatch where it is"));
            }
            read
        }
        None => text.to_owned(),
    };
    serde_json::from_str(text.trim()).map_err(|error| {
        Failure::usage(format!("the payload is not JSON: {error}"))
            .next("quote it for the shell: '{\"to\":\"ann\"}', or a text as '\"text\"'")
    })
}

impl JobOptions {
    /// As fields of a body.
    pub(super) fn write(self, body: &mut Map<String, Value>) {
        let mut retry = Map::new();
        set(&mut retry, "attempts", self.retries);
        set(&mut retry, "backoff", self.backoff);
        set(&mut retry, "delay_ms", self.retry_delay.map(millis));
        set(&mut retry, "max_delay_ms", self.max_retry_delay.map(millis));
        set(body, "retry", Some(retry).filter(|retry| !retry.is_empty()));
        let mut target = Map::new();
        set(&mut target, "server", self.worker);
        set(&mut target, "stack", Some(self.stack).filter(|list| !list.is_empty()));
        set(&mut target, "capabilities", Some(self.capability).filter(|list| !list.is_empty()));
        set(&mut target, "region", Some(self.region).filter(|list| !list.is_empty()));
        set(&mut target, "all", Some(true).filter(|_| self.all_capabilities));
        set(body, "target", Some(target).filter(|target| !target.is_empty()));
        let meta: Map<String, Value> =
            self.meta.into_iter().map(|(name, value)| (name, json!(value))).collect();
        set(body, "metadata", Some(meta).filter(|meta| !meta.is_empty()));
        set(body, "priority", self.priority);
        set(body, "timeout_ms", self.timeout.map(millis));
        set(body, "max_concurrent", self.max_concurrent);
        set(body, "max_per_minute", self.max_per_minute);
    }
}

pub(super) fn set(body: &mut Map<String, Value>, name: &str, value: Option<impl serde::Serialize>) {
    body.extend(value.map(|value| (name.to_owned(), json!(value))));
}

/// A body with the payload exactly as it was given, not as a parser would write it again.
pub(super) fn with_payload(body: Map<String, Value>, payload: Option<Box<RawValue>>) -> String {
    let text = Value::Object(body).to_string();
    match (payload, text.strip_suffix('}')) {
        (Some(payload), Some("{")) => format!("{{\"payload\":{}}}", payload.get()),
        (Some(payload), Some(open)) => format!("{open},\"payload\":{}}}", payload.get()),
        _ => text,
    }
}

pub(crate) fn run(client: &Client, dispatch: DispatchArgs, output: &Output) -> Outcome {
    if let Some(file) = &dispatch.bulk {
        return bulk::run(client, file, dispatch.key.as_deref(), dispatch.from_line, output);
    }
    let payload = dispatch.payload.as_deref().map(payload).transpose()?;
    let mut body = Map::new();
    set(&mut body, "type", dispatch.job_type);
    set(&mut body, "id", dispatch.id);
    set(&mut body, "delay_ms", dispatch.delay.map(millis));
    set(&mut body, "run_at", dispatch.at.map(web::format::rfc3339));
    set(&mut body, "idempotency_key", dispatch.key);
    let parents = Some(dispatch.depends_on).filter(|ids| !ids.is_empty());
    set(&mut body, "depends_on", parents);
    let expires = dispatch.expires_in.map(|length| {
        let now = jiff::Timestamp::now().as_millisecond();
        now.saturating_add(i64::try_from(millis(length)).unwrap_or(i64::MAX))
    });
    set(&mut body, "expires_at", expires.map(web::format::rfc3339));
    dispatch.options.write(&mut body);
    let answer = client.post_text("/api/v1/jobs", &with_payload(body, payload))?;
    let id = text(&answer, "id");
    if answer["new"] == false {
        output.note("it was there already; nothing changed");
    }
    match dispatch.wait {
        None if output.json => output.value(&answer),
        None => output.line(&id),
        Some(length) => {
            output.note(&format!("dispatched {id}"));
            wait(client, &id, length, output)
        }
    }
}

/// The result in an answer about the end of a job, as the worker gave it.
fn data_of(answer: &str) -> Option<Box<RawValue>> {
    #[derive(serde::Deserialize)]
    struct DispatchAnswer {
        result: Option<super::VerbatimResult>,
    }
    serde_json::from_str::<DispatchAnswer>(answer).ok()?.result?.data
}

/// Waits for the end of a job and prints its result; one that did not succeed is exit code 1.
fn wait(client: &Client, id: &str, length: Duration, output: &Output) -> Outcome {
    let until = std::time::Instant::now() + length;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let wait = millis(left).min(20_000);
        let whole =
            client.get_text(&format!("/api/v1/jobs/{}/wait?wait_ms={wait}", segment(id)))?;
        let answer = value_of(&whole);
        let result = &answer["result"];
        if answer["ended"] == true {
            if output.json {
                output.line(&whole)?;
            } else if result["success"] == true
                && let Some(data) = data_of(&whole)
            {
                output.line(data.get())?;
            }
            if result["success"] == true {
                return Ok(());
            }
            let why = super::told(&result["error"]);
            let told = format!("the job is {}: {why}", text(&answer, "status"));
            return Err(Failure::failed(told).next(format!("tidegate jobs show {id}")));
        }
        if left.is_zero() {
            let told = format!("the job has not ended; it is {}", text(&answer, "status"));
            return Err(Failure::failed(told).next(format!("tidegate jobs show {id}")));
        }
    }
}
