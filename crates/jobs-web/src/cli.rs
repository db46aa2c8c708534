//! `tidegate jobs`: the job queue from the command line.
//!
//! Every verb is one or two calls of the running server's API. `dispatch.rs` has the flags that
//! describe a job, `schedules.rs` recurring jobs, `tail.rs` the live view, `exec.rs` the worker that
//! runs any command.

mod dispatch;
mod exec;
mod schedules;
pub(super) mod supervisor;
mod tail;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use web::cli::Context;
use web::cli::client::{Client, value_of};
use web::cli::top::TopSection;
use web::cli::{Exit, Failure, Outcome, Output, Tone, WatchFlag, number, segment, text};

/// Dispatch jobs, look at them, steer them, and work on them with any command
#[derive(Debug, Parser)]
#[command(
    name = "jobs",
    before_help = "Examples:
  tidegate jobs dispatch mail '{\"to\":\"ann@example.org\"}'
  tidegate jobs exec --type mail -- ./send-mail.sh
  tidegate jobs ls --state waiting
  tidegate jobs dead
  tidegate jobs tail"
)]
pub(crate) struct JobsCommand {
    #[command(subcommand)]
    pub(crate) verb: JobsSubcommand,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsSubcommand {
    /// Dispatch a job, or many from a file
    #[command(before_help = "Examples:
  tidegate jobs dispatch mail '{\"to\":\"ann@example.org\"}'
  tidegate jobs dispatch mail @message.json --delay 10m --priority 8
  tidegate jobs dispatch report '{}' --idempotency-key report-2026-11 --wait 60s
  tidegate jobs dispatch film '{\"file\":\"a.mov\"}' --capability gpu --region eu --timeout 10m
  jq -c '{type:\"mail\",payload:.}' users.json | tidegate jobs dispatch --bulk -")]
    Dispatch(Box<dispatch::DispatchArgs>),
    /// List jobs by state, type and text
    #[command(before_help = "Examples:
  tidegate jobs ls
  tidegate jobs ls --state waiting --type mail --limit 100
  tidegate jobs ls --state finished --sort took_ms --reverse --from 1h
  tidegate jobs ls --state active --worker mailer-1
  tidegate jobs ls --text ann@example.org --json | jq -r '.[].id'")]
    #[command(alias = "list")]
    Ls {
        /// waiting, active, delayed, dead or finished; all if left out
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        choice: SelectionArgs,
        /// Sort by created_at, due_at, ended_at, priority, type, waited_ms or took_ms
        #[arg(long, value_name = "FIELD")]
        sort: Option<String>,
        /// The largest first
        #[arg(long, requires = "sort")]
        reverse: bool,
        /// Most jobs to list
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Show everything about a job: state, result, attempts, log
    #[command(before_help = "Examples:
  tidegate jobs show q7Xb2LmK9a
  tidegate jobs show q7Xb2LmK9a --json | jq .result.data")]
    Show {
        /// Id of the job
        id: String,
    },
    /// Run jobs now: those that wait for their time, and those that are dead
    #[command(before_help = "Examples:
  tidegate jobs retry q7Xb2LmK9a
  tidegate jobs retry --all --type mail --dry-run   shows which: the delayed jobs of a type
  tidegate jobs retry --all --type mail --yes       runs them now
  tidegate jobs retry --all --state dead --text Timeout --yes")]
    Retry(BulkArgs),
    /// Cancel jobs: those that wait end, those that run are asked to stop
    #[command(before_help = "Examples:
  tidegate jobs cancel q7Xb2LmK9a --reason 'wrong file'
  tidegate jobs cancel --all --type mail --dry-run  shows which: the waiting jobs of a type
  tidegate jobs cancel --all --type mail --yes      cancels them
  tidegate jobs cancel --all --state delayed --yes")]
    Cancel(BulkArgs),
    /// List dead letters with why they are there; or remove them
    #[command(before_help = "Examples:
  tidegate jobs dead
  tidegate jobs dead --by-error
  tidegate jobs dead --type mail --json
  tidegate jobs dead --remove --text 'no such user' --dry-run
  tidegate jobs dead --remove --text 'no such user' --yes")]
    Dead {
        #[command(flatten)]
        choice: SelectionArgs,
        /// Most jobs to list
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Count them by error instead of listing them
        #[arg(long, conflicts_with = "remove")]
        by_error: bool,
        /// Forget them instead of listing them
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Run jobs that have ended once more, with all their attempts
    #[command(before_help = "Examples:
  tidegate jobs replay q7Xb2LmK9a
  tidegate jobs replay q7Xb2LmK9a --payload '{\"to\":\"bob@example.org\"}'
  tidegate jobs replay --all --type mail --text Timeout --dry-run
  tidegate jobs replay --all --type mail --text Timeout --yes")]
    Replay {
        #[command(flatten)]
        many: BulkArgs,
        /// Another payload: JSON, @FILE, or - for standard input
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Let no job of a type start until it is resumed; what runs goes on
    #[command(before_help = "Examples:
  tidegate jobs pause mail")]
    Pause {
        /// The job type
        job_type: String,
    },
    /// Let jobs of a type start again
    #[command(before_help = "Examples:
  tidegate jobs resume mail")]
    Resume {
        /// The job type
        job_type: String,
    },
    /// Jobs that run again and again: list, store, pause, remove, preview
    #[command(before_help = "Examples:
  tidegate jobs schedules
  tidegate jobs schedules put nightly --cron '30 3 * * *' --timezone Europe/Berlin clean-up
  tidegate jobs schedules preview '0 9 * * 1-5' --timezone America/New_York
  tidegate jobs schedules run nightly
  tidegate jobs schedules pause nightly
  tidegate jobs schedules resume nightly
  tidegate jobs schedules rm nightly
  tidegate jobs schedules ls --json")]
    Schedules {
        #[command(subcommand)]
        verb: Option<schedules::SchedulesSubcommand>,
    },
    /// List workers, what they run and how much they get done; drain one
    #[command(before_help = "Examples:
  tidegate jobs workers ls
  tidegate jobs workers drain mailer-1     it completes what it holds and claims nothing more
  tidegate jobs workers resume mailer-1
  tidegate jobs workers --json | jq -r '.[] | select(.alive | not) | .id'")]
    Workers {
        #[command(subcommand)]
        verb: Option<WorkersSubcommand>,
    },
    /// Counts by state, waiting jobs by lane, and unroutable jobs
    #[command(before_help = "Examples:
  tidegate jobs stats
  tidegate jobs stats --watch
  tidegate jobs stats --json | jq .unroutable")]
    Stats {
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Watch what happens to jobs, as it happens
    #[command(before_help = "Examples:
  tidegate jobs tail
  tidegate jobs tail --job q7Xb2LmK9a
  tidegate jobs tail --cursor 0 --json | jq -c 'select(.event == \"dead\")'")]
    Tail(tail::Tail),
    /// Work on jobs by running a command for each: payload on standard input, exit code decides
    #[command(
        before_help = "Examples:
  tidegate jobs exec --type thumbnail -- ./make-thumbnail.sh
  tidegate jobs exec --type mail --type sms --concurrency 8 -- python3 send.py
  tidegate jobs exec --type film --capability gpu --lease 2m -- sh -c 'ffmpeg -i - out.mp4'
  tidegate jobs exec --type report --drain -- ./report     until none is left, then end",
        after_help = "The command gets the payload (JSON) on standard input and in its environment
  TIDEGATE_JOB_ID, TIDEGATE_JOB_TYPE, TIDEGATE_JOB_ATTEMPT (the first is 1),
  TIDEGATE_JOB_RETRIES (how many there may be), TIDEGATE_JOB_DEADLINE_MS (since 1970) and
  TIDEGATE_JOB_TIMEOUT_MS, the latter two only if the job has a timeout, and TRACEPARENT if it is
  part of a trace.

Variables of ours, such as TIDEGATE_TOKEN, are not passed on to the command; --pass-env names
exceptions. `--token-file FILE --pass-env TIDEGATE_TOKEN` works with the token in the file, and gives
the command the one in the environment, which may have fewer rights.

Its exit code decides:
  0      done; standard output is the result: JSON as it is, not a byte changed; other text as a
         text, without the line break at its end; what is not UTF-8 as {\"base64\": \"...\"}
  75     not now: later, after --snooze-for, and the attempt does not count
  100    failed for good: to the dead letters
  101    give the job up: it ends without a dead letter
  other  failed; the job's own retry policy decides (error name Exit1 for code 1, Signal9 for a
         signal, Timeout for the job's timeout; skip_on and reroute_on go by that)
A result the server does not take, such as one of more than 1 MiB, makes a dead letter (BadResult).

Standard error is shown, kept in the job's log, and its end is the error message. A line
`::progress 40 half way` there says how far the job is.

The command, and all it started, gets SIGTERM when its job is cancelled, past its timeout or its lease
lost, and SIGKILL after --kill-after; the same when this program ends in whatever way, kill -9
included. What a command leaves running when it ends is killed 2 s later, before the job is reported.
On SIGTERM or SIGINT no more jobs are claimed; running commands have --grace to end, then they are
stopped and their jobs handed back without counting the attempt. A second signal does that at once."
    )]
    Exec(exec::Exec),
}

/// The verbs for workers; `ls` if none is given.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkersSubcommand {
    /// List workers
    #[command(before_help = "Examples:
  tidegate jobs workers ls
  tidegate jobs workers ls --watch=5s")]
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Let a worker complete what it holds and claim nothing more
    Drain {
        /// Id of the worker
        id: String,
    },
    /// Let a drained worker claim again
    Resume {
        /// Id of the worker
        id: String,
    },
}

impl Default for WorkersSubcommand {
    fn default() -> WorkersSubcommand {
        WorkersSubcommand::Ls { watch: WatchFlag::default() }
    }
}

/// Selects jobs.
#[derive(Debug, Args)]
pub(crate) struct SelectionArgs {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result
    #[arg(long)]
    text: Option<String>,
    /// Only jobs that this worker runs, or ran last
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Only jobs of this priority, 1 to 10
    #[arg(long, value_name = "NUMBER")]
    priority: Option<u8>,
    /// Only jobs with this text in the name or message of their latest error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only jobs that ended for this reason: attempts_used, fatal, poison, skip_on, malformed,
    /// expired, dependency or cancelled
    #[arg(long, value_name = "REASON")]
    end_reason: Option<String>,
    /// Only dead letters of this group, as `tidegate jobs dead --by-error` shows it
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only jobs dispatched since then: a time such as 2026-11-17T09:30:00Z, or an age such as 2h
    #[arg(long, alias = "since", value_name = "TIME", value_parser = moment)]
    from: Option<jiff::Timestamp>,
    /// Only jobs dispatched before then: a time, or an age
    #[arg(long, alias = "until", value_name = "TIME", value_parser = moment)]
    to: Option<jiff::Timestamp>,
}

impl SelectionArgs {
    /// The filters that were given: flag, name in the API, value.
    fn given(&self) -> Vec<(&'static str, &'static str, String)> {
        let time = |at: &Option<jiff::Timestamp>| at.map(|at| at.to_string());
        let all = [
            ("--type", "type", self.job_type.clone()),
            ("--text", "text", self.text.clone()),
            ("--worker", "worker_id", self.worker.clone()),
            ("--priority", "priority", self.priority.map(|priority| priority.to_string())),
            ("--error", "error", self.error.clone()),
            ("--end-reason", "end_reason", self.end_reason.clone()),
            ("--group", "group", self.group.clone()),
            ("--from", "earliest_created_at", time(&self.from)),
            ("--to", "latest_created_at", time(&self.to)),
        ];
        all.into_iter().filter_map(|(flag, name, value)| Some((flag, name, value?))).collect()
    }
}

/// A time, or how long ago it was, for a flag.
fn moment(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let age = time(text).map_err(|_| {
        format!("{text:?} is neither a time such as 2026-11-17T09:30:00Z nor an age such as 2h")
    })?;
    jiff::Timestamp::now().checked_sub(age).map_err(|error| error.to_string())
}

/// The word that many jobs are meant.
#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Really do it to all that fit
    #[arg(long)]
    yes: bool,
    /// Only show which jobs fit, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

/// One or more jobs by id, or all that fit.
#[derive(Debug, Args)]
pub(crate) struct BulkArgs {
    /// Ids of jobs
    #[arg(value_name = "ID", conflicts_with_all = ["all", "state", "job_type", "text", "worker",
        "priority", "error", "end_reason", "group", "from", "to"])]
    ids: Vec<String>,
    /// All jobs that fit --state, --type and the other filters
    #[arg(long)]
    all: bool,
    /// In this state
    #[arg(long, requires = "all")]
    state: Option<String>,
    #[command(flatten)]
    choice: SelectionArgs,
    #[command(flatten)]
    consent: Consent,
    /// Reason shown to people
    #[arg(long)]
    reason: Option<String>,
}

pub(crate) fn run(verb: JobsSubcommand, context: &Context<'_>) -> Outcome {
    let client = Client::new(context)?;
    let output = context.output;
    match verb {
        JobsSubcommand::Dispatch(dispatch) => dispatch::run(&client, *dispatch, output),
        JobsSubcommand::Ls { state, choice, sort, reverse, limit, watch } => {
            let list = JobsQuery {
                state: state.as_deref(),
                choice: &choice,
                sort: sort.as_deref(),
                reverse,
            };
            watch.run(output, || ls(&client, &list, limit, output))
        }
        JobsSubcommand::Show { id } => show(&client, &id, output),
        JobsSubcommand::Retry(many) => change(&client, "retry", &many, None, output),
        JobsSubcommand::Cancel(many) => change(&client, "cancel", &many, None, output),
        JobsSubcommand::Dead { choice, limit, by_error: true, .. } => {
            dead_groups(&client, &choice, limit, output)
        }
        JobsSubcommand::Dead { choice, limit, remove: true, consent, .. } => {
            let bulk = BulkCall {
                verb: "remove",
                shown: "dead --remove",
                state: "dead",
                choice: &choice,
                reason: None,
            };
            bulk.run(&client, &consent, limit, output)
        }
        JobsSubcommand::Dead { choice, limit, remove: false, .. } => {
            dead(&client, &choice, limit, output)
        }
        JobsSubcommand::Replay { many, payload } => {
            let payload = payload.map(|text| dispatch::payload(&text)).transpose()?;
            if payload.is_some() && many.all {
                return Err(Failure::usage("--payload is for jobs named by id, not for --all"));
            }
            change(&client, "replay", &many, payload, output)
        }
        JobsSubcommand::Pause { job_type } => pause(&client, &job_type, "pause", output),
        JobsSubcommand::Resume { job_type } => pause(&client, &job_type, "resume", output),
        JobsSubcommand::Schedules { verb } => schedules::run(&client, verb, output),
        JobsSubcommand::Workers { verb } => match verb.unwrap_or_default() {
            WorkersSubcommand::Ls { watch } => watch.run(output, || workers(&client, output)),
            WorkersSubcommand::Drain { id } => steer_worker(&client, &id, "drain", output),
            WorkersSubcommand::Resume { id } => steer_worker(&client, &id, "resume", output),
        },
        JobsSubcommand::Stats { watch } => watch.run(output, || stats(&client, output)),
        JobsSubcommand::Tail(tail) => tail::run(&client, &tail, output),
        JobsSubcommand::Exec(exec) => exec::run(client, exec, context),
    }
}

/// Says which job is not there, or not in the right state, and what to do next.
fn known(id: &str) -> impl FnOnce(Failure) -> Failure {
    let id = id.to_owned();
    move |mut failure| {
        let next = match failure.exit {
            Exit::NotFound => "tidegate jobs ls, to see which there are".to_owned(),
            Exit::Usage => format!("tidegate jobs show {id}"),
            _ => return failure,
        };
        failure.message = format!("{id}: {}", failure.message);
        failure.next(next)
    }
}

/// A number of jobs, for people.
fn count_of(jobs: impl Into<u64>) -> String {
    match jobs.into() {
        1 => "1 job".to_owned(),
        jobs => format!("{jobs} jobs"),
    }
}

/// A time such as `500ms`, `10s`, `5m`, `2h` or `7d`, for a flag.
fn time(text: &str) -> Result<Duration, String> {
    use web::config::value::Value as _;
    Duration::parse(text, None)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a time relative to now, for people.
fn ago(at: jiff::Timestamp) -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    let span = now.saturating_sub(at.as_millisecond());
    let seconds = span.unsigned_abs() / 1_000;
    let told = match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    };
    if span < 0 { format!("in {told}") } else { format!("{told} ago") }
}

/// Reads a time of an answer.
fn instant(value: &Value) -> Option<jiff::Timestamp> {
    value.as_str()?.parse().ok()
}

fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let parts: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    parts.join("&")
}

/// A list of jobs as it was asked for.
struct JobsQuery<'a> {
    state: Option<&'a str>,
    choice: &'a SelectionArgs,
    sort: Option<&'a str>,
    reverse: bool,
}

/// Pages through a list until there is enough or no more.
fn rows(client: &Client, list: &JobsQuery<'_>, limit: usize) -> Outcome<Vec<Value>> {
    let given = list.choice.given();
    let mut rows: Vec<Value> = Vec::new();
    let mut from: Option<String> = None;
    loop {
        let page = (limit.saturating_sub(rows.len())).min(1_000).to_string();
        let mut pairs = vec![
            ("state", list.state),
            ("sort", list.sort),
            ("order", list.reverse.then_some("desc")),
            ("cursor", from.as_deref()),
            ("limit", Some(page.as_str())),
        ];
        pairs.extend(given.iter().map(|(_, name, value)| (*name, Some(value.as_str()))));
        let mut answer = client.get(&format!("/api/v1/jobs?{}", query(&pairs)))?;
        rows.extend(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        from = answer["next_cursor"].as_str().map(str::to_owned);
        if from.is_none() || rows.len() >= limit {
            return Ok(rows);
        }
    }
}

/// A number of milliseconds of an answer, for people.
fn span(value: &Value) -> String {
    match value.as_u64() {
        None => "-".to_owned(),
        Some(ms @ 0..10_000) => format!("{ms}ms"),
        Some(ms @ 10_000..120_000) => format!("{}s", ms / 1_000),
        Some(ms @ 120_000..7_200_000) => format!("{}m", ms / 60_000),
        Some(ms) => format!("{}h", ms / 3_600_000),
    }
}

/// The error of a row or an attempt, or why a job is delayed.
fn problem(row: &Value) -> String {
    let error = &row["error"];
    if error.is_null() { String::new() } else { short(&told(error), 60) }
}

fn ls(client: &Client, list: &JobsQuery<'_>, limit: usize, output: &Output) -> Outcome {
    let rows = rows(client, list, limit.max(1))?;
    if output.json {
        return output.value(&rows);
    }
    if rows.is_empty() {
        let searched = list.state.is_some() || !list.choice.given().is_empty();
        output.note(match searched {
            true => "no job matches",
            false => "no jobs; `tidegate jobs dispatch TYPE PAYLOAD` makes one",
        });
        return Ok(());
    }
    let line = |row: &Value| {
        let job = &row["job"];
        let when = match row["status"].as_str() {
            Some("delayed") => &row["due_at"],
            Some("completed" | "failed" | "dead") => &row["ended_at"],
            Some("active") => &row["claimed_at"],
            _ => &job["created_at"],
        };
        vec![
            text(row, "id"),
            output.paint(tone(&row["status"]), &text(row, "status")),
            text(job, "type"),
            number(job, "priority"),
            format!("{}/{}", number(job, "attempts"), number(&job["retry"], "attempts")),
            instant(when).map(ago).unwrap_or_default(),
            row["worker_id"].as_str().unwrap_or("-").to_owned(),
            span(&row["waited_ms"]),
            span(&row["took_ms"]),
            match problem(row) {
                error if error.is_empty() => short(&job["payload"].to_string(), 50),
                error => error,
            },
        ]
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let head = [
        "ID",
        "STATE",
        "TYPE",
        "PRIO",
        "RETRIES",
        "WHEN",
        "WORKER",
        "WAITED",
        "RAN",
        "ERROR OR PAYLOAD",
    ];
    output.table(&head, &lines)
}

/// The beginning of a text, on one line.
fn short(text: &str, most: usize) -> String {
    let flat: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match flat.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", flat.get(..at).unwrap_or_default()),
        None => flat,
    }
}

/// The parts of a job that are shown as they were given, digit for digit.
#[derive(serde::Deserialize)]
struct Verbatim {
    job: VerbatimJob,
    #[serde(default)]
    result: Option<VerbatimResult>,
}

#[derive(serde::Deserialize)]
struct VerbatimJob {
    payload: Box<RawValue>,
}

/// A result, exactly as the server sent it.
#[derive(serde::Deserialize)]
struct VerbatimResult {
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

/// One JSON object with the fields of two, as they are written.
fn joined(one: &str, other: &str) -> String {
    match (one.trim_end().strip_suffix('}'), other.trim_start().strip_prefix('{')) {
        (Some(one), Some(other)) => format!("{one},{other}"),
        _ => one.to_owned(),
    }
}

fn show(client: &Client, id: &str, output: &Output) -> Outcome {
    let whole = client.get_text(&format!("/api/v1/jobs/{}", segment(id))).map_err(known(id))?;
    let mut log = client.get(&format!("/api/v1/jobs/{}/logs", segment(id)))?;
    if output.json {
        let log = json!({ "log": log["items"].take() });
        return output.line(&joined(&whole, &log.to_string()));
    }
    let view = value_of(&whole);
    let verbatim: Verbatim = serde_json::from_str(&whole)
        .map_err(|error| Failure::failed(format!("the server's answer does not fit: {error}")))?;
    let job = &view["job"];
    let mut lines: Vec<(&str, String)> = vec![
        ("id", text(job, "id")),
        ("type", text(job, "type")),
        ("state", output.paint(tone(&view["status"]), &text(&view, "status"))),
        ("priority", number(job, "priority")),
        (
            "retries",
            format!("{} of {}", number(job, "attempts"), number(&job["retry"], "attempts")),
        ),
        ("payload", short(verbatim.job.payload.get(), 2_000)),
    ];
    let when = |at: &Value| instant(at).map(|at| format!("{at} ({})", ago(at)));
    lines.extend(when(&job["created_at"]).map(|at| ("dispatched", at)));
    lines.extend(when(&view["due_at"]).map(|at| ("due", at)));
    lines.extend(view["worker_id"].as_str().map(|worker| ("worker", worker.to_owned())));
    lines.extend(when(&view["claimed_at"]).map(|at| ("claimed", at)));
    lines.extend(view["end_reason"].as_str().map(|reason| ("reason", reason.to_owned())));
    if job["target"] != json!({ "all": false }) {
        lines.push(("target", job["target"].to_string()));
    }
    if let Some(percent) = view["progress"]["percent"].as_f64() {
        lines.push(("progress", format!("{percent} % {}", text(&view["progress"], "message"))));
    }
    if let Some(pending) = view["pending"].as_array().filter(|pending| !pending.is_empty()) {
        let ids: Vec<&str> = pending.iter().filter_map(Value::as_str).collect();
        lines.push(("waits for", ids.join(" ")));
    }
    let result = &view["result"];
    if !result.is_null() {
        lines.extend(when(&result["completed_at"]).map(|at| ("ended", at)));
        lines.push(("took", format!("{} ms", number(result, "took_ms"))));
        match result["success"].as_bool() {
            Some(true) => {
                let data = verbatim.result.and_then(|result| result.data);
                let data = data.as_ref().map_or("null", |data| data.get());
                lines.push(("result", short(data, 2_000)));
            }
            _ => lines.push(("error", told(&result["error"]))),
        }
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in lines {
        output.line(&format!("{name:width$}  {value}"))?;
    }
    for attempt in view["history"].as_array().into_iter().flatten() {
        output.line(&format!(
            "attempt {}, {}, by {}, {} ms: {}",
            number(attempt, "attempt"),
            instant(&attempt["ended_at"]).map(ago).unwrap_or_default(),
            text(attempt, "worker_id"),
            number(attempt, "took_ms"),
            told(&attempt["error"])
        ))?;
    }
    for line in log["items"].as_array_mut().map(std::mem::take).unwrap_or_default() {
        let at = text(&line, "logged_at");
        output.line(&format!("{} {}", output.paint(Tone::Dim, &at), text(&line, "line")))?;
    }
    Ok(())
}

fn tone(status: &Value) -> Tone {
    match status.as_str() {
        Some("completed") => Tone::Good,
        Some("dead" | "failed") => Tone::Bad,
        Some("active") => Tone::Strong,
        _ => Tone::Dim,
    }
}

/// An error in one line.
fn told(error: &Value) -> String {
    let message = short(error["message"].as_str().unwrap_or_default(), 500);
    match error["name"].as_str() {
        Some(name) => format!("{name}: {message}"),
        None => message,
    }
}

fn dead(client: &Client, choice: &SelectionArgs, limit: usize, output: &Output) -> Outcome {
    let list = JobsQuery { state: Some("dead"), choice, sort: None, reverse: false };
    let letters = rows(client, &list, limit.max(1))?;
    if output.json {
        return output.value(&letters);
    }
    if letters.is_empty() {
        let searched = !choice.given().is_empty();
        output.note(if searched { "no dead letter matches" } else { "no dead letters" });
        return Ok(());
    }
    let line = |letter: &Value| {
        vec![
            text(letter, "id"),
            text(&letter["job"], "type"),
            instant(&letter["ended_at"]).map(ago).unwrap_or_default(),
            text(letter, "end_reason"),
            letter["worker_id"].as_str().unwrap_or("-").to_owned(),
            short(&told(&letter["error"]), 80),
        ]
    };
    let lines: Vec<Vec<String>> = letters.iter().map(line).collect();
    output.table(&["ID", "TYPE", "DIED", "REASON", "WORKER", "ERROR"], &lines)?;
    output.note("`tidegate jobs replay ID` runs one again, `--all --type TYPE` all of a type");
    Ok(())
}

fn dead_groups(client: &Client, choice: &SelectionArgs, limit: usize, output: &Output) -> Outcome {
    let limit = limit.clamp(1, 1_000).to_string();
    let given = choice.given();
    let known = ["type", "text", "error", "end_reason", "group"];
    if let Some((flag, ..)) = given.iter().find(|(_, name, _)| !known.contains(name)) {
        return Err(Failure::usage(format!("{flag} cannot be used with --by-error")));
    }
    let mut pairs: Vec<(&str, Option<&str>)> =
        given.iter().map(|(_, name, value)| (*name, Some(value.as_str()))).collect();
    pairs.push(("limit", Some(&limit)));
    let answer = client.get(&format!("/api/v1/jobs/dead/groups?{}", query(&pairs)))?;
    if output.json {
        return output.value(&answer["items"]);
    }
    let line = |group: &Value| {
        vec![
            text(group, "group"),
            number(group, "count"),
            text(group, "type"),
            text(group, "end_reason"),
            instant(&group["newest_at"]).map(ago).unwrap_or_default(),
            short(&told(&group["error"]), 80),
        ]
    };
    let lines: Vec<Vec<String>> =
        answer["items"].as_array().into_iter().flatten().map(line).collect();
    if lines.is_empty() {
        output.note("no dead letters");
        return Ok(());
    }
    output.table(&["GROUP", "JOBS", "TYPE", "REASON", "NEWEST", "ERROR"], &lines)?;
    output.note("`tidegate jobs replay --all --group GROUP --dry-run` shows the jobs of one");
    Ok(())
}

/// Does something to jobs named by id, or to all that fit.
fn change(
    client: &Client,
    verb: &'static str,
    many: &BulkArgs,
    payload: Option<Box<RawValue>>,
    output: &Output,
) -> Outcome {
    if many.all {
        // Said outright rather than left to the server, so that what is shown is what is changed.
        let usual = match verb {
            "cancel" => "waiting",
            "retry" => "delayed",
            _ => "dead",
        };
        let bulk = BulkCall {
            verb,
            shown: verb,
            state: many.state.as_deref().unwrap_or(usual),
            choice: &many.choice,
            reason: many.reason.as_deref(),
        };
        return bulk.run(client, &many.consent, SHOWN, output);
    }
    if many.ids.is_empty() {
        return Err(Failure::usage("which jobs?").next(format!(
            "tidegate jobs {verb} ID, or tidegate jobs {verb} --all --type TYPE --dry-run"
        )));
    }
    if many.consent.dry_run {
        return Err(Failure::usage("--dry-run is for --all; these jobs are named already"));
    }
    let mut body = serde_json::Map::new();
    if let Some(reason) = &many.reason {
        body.insert("reason".to_owned(), json!(reason));
    }
    let mut body = Value::Object(body).to_string();
    if let Some(payload) = payload {
        body = format!("{{\"payload\":{}}}", payload.get());
    }
    let mut done = Vec::new();
    let mut failed: Vec<Failure> = Vec::new();
    for id in &many.ids {
        let path = format!("/api/v1/jobs/{}/{verb}", segment(id));
        match client.post_text(&path, &body).map_err(known(id)) {
            Ok(answer) => {
                if !output.json {
                    output.line(&format!("{id} {}", text(&answer, "outcome")))?;
                }
                done.push(answer);
            }
            // One that cannot be changed does not keep the others.
            Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::Usage) => {
                failed.push(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    if output.json {
        output.value(&done)?;
    }
    // The last one is told as the failure of the command.
    let last = failed.pop();
    for failure in &failed {
        output.note(&failure.message);
    }
    last.map_or(Ok(()), Err)
}

/// Most jobs a dry run shows.
const SHOWN: usize = 50;

/// Something to do to all jobs that fit.
struct BulkCall<'a> {
    /// The server's name for it.
    verb: &'static str,
    /// The command, as a person writes it.
    shown: &'static str,
    state: &'a str,
    choice: &'a SelectionArgs,
    reason: Option<&'a str>,
}

impl BulkCall<'_> {
    /// Does it if the person has said that it is meant; shows what it would do otherwise.
    fn run(&self, client: &Client, consent: &Consent, limit: usize, output: &Output) -> Outcome {
        if consent.yes {
            return self.change_all(client, output);
        }
        let limit = limit.max(1);
        let list =
            JobsQuery { state: Some(self.state), choice: self.choice, sort: None, reverse: false };
        let mut rows = rows(client, &list, limit.saturating_add(1))?;
        let more = if rows.len() > limit { " or more" } else { "" };
        rows.truncate(limit);
        let count = count_of(u64::try_from(rows.len()).unwrap_or(u64::MAX));
        let would = format!("this would {} {count}{more} in state {}", self.verb, self.state);
        if !consent.dry_run {
            let command = format!("tidegate jobs {}{}", self.shown, self.flags());
            return Err(Failure::usage(format!("{would}, and nothing was done")).next(format!(
                "{command} --yes to do it, or --dry-run to see which jobs these are"
            )));
        }
        output.note(&format!("{would}; nothing was done"));
        if output.json {
            return output.value(&rows);
        }
        for row in &rows {
            output.line(&format!("{}  {}", text(row, "id"), text(&row["job"], "type")))?;
        }
        Ok(())
    }

    /// The flags that choose the same jobs again.
    fn flags(&self) -> String {
        let all = self.verb != "remove";
        let mut given = Vec::new();
        if all {
            given.push(("--state", self.state.to_owned()));
        }
        given.extend(self.choice.given().into_iter().map(|(flag, _, value)| (flag, value)));
        let mut flags = if all { " --all".to_owned() } else { String::new() };
        for (flag, value) in given {
            let plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "._:/@-".contains(c));
            let quoted = match plain && !value.is_empty() {
                true => value,
                false => format!("'{}'", value.replace('\'', "'\\''")),
            };
            flags.push_str(&format!(" {flag} {quoted}"));
        }
        flags
    }

    /// Does it, call by call until none is left.
    fn change_all(&self, client: &Client, output: &Output) -> Outcome {
        let mut body = serde_json::Map::new();
        body.insert("state".to_owned(), json!(self.state));
        body.extend(self.reason.map(|reason| ("reason".to_owned(), json!(reason))));
        for (_, name, value) in self.choice.given() {
            let value = match name {
                "priority" => json!(self.choice.priority),
                _ => json!(value),
            };
            body.insert(name.to_owned(), value);
        }
        let mut body = Value::Object(body);
        let (mut count, mut refused) = (0_u64, Vec::new());
        loop {
            let answer = client.post(&format!("/api/v1/jobs/{}", self.verb), &body);
            let mut answer = answer.map_err(|mut failure| {
                if count > 0 {
                    failure.message =
                        format!("{} changed, then: {}", count_of(count), failure.message);
                }
                failure
            })?;
            count += answer["count"].as_u64().unwrap_or(0);
            let items = answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            refused.extend(items.into_iter().filter(|item| item["changed"] == false));
            body["cursor"] = match answer["next_cursor"].take() {
                Value::Null => break,
                cursor => cursor,
            };
        }
        if output.json {
            return output.value(&json!({ "count": count, "items": refused }));
        }
        for row in &refused {
            output.note(&format!("{}: {}", text(row, "id"), text(row, "message")));
        }
        output.line(&count_of(count))
    }
}

fn pause(client: &Client, job_type: &str, verb: &str, output: &Output) -> Outcome {
    let path = format!("/api/v1/jobs/types/{}/{verb}", segment(job_type));
    let answer = client.post(&path, &json!({}))?;
    if output.json {
        return output.value(&answer);
    }
    output.note(&format!("{job_type} is {verb}d"));
    Ok(())
}

fn workers(client: &Client, output: &Output) -> Outcome {
    let answer = client.get("/api/v1/jobs/workers?limit=1000")?;
    if output.json {
        return output.value(&answer["items"]);
    }
    let list = |value: &Value| {
        let words: Vec<&str> =
            value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        words.join(",")
    };
    let rows: Vec<Vec<String>> = answer["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|worker| {
            let alive = worker["alive"].as_bool().unwrap_or(false);
            let (tone, word) = if alive { (Tone::Good, "alive") } else { (Tone::Bad, "silent") };
            let (tone, word) = match worker["draining"] == true {
                true if worker["running"] == 0 => (Tone::Warn, "drained"),
                true => (Tone::Warn, "draining"),
                false => (tone, word),
            };
            let slots = match worker["slots"].as_u64() {
                Some(slots) => format!("{} of {slots}", number(worker, "running")),
                None => number(worker, "running"),
            };
            vec![
                text(worker, "id"),
                output.paint(tone, word),
                slots,
                format!("{:.1}", worker["per_minute"].as_f64().unwrap_or(0.0)),
                number(worker, "failed"),
                instant(&worker["heartbeat_at"]).map(ago).unwrap_or_default(),
                text(worker, "stack"),
                text(worker, "region"),
                list(&worker["capabilities"]),
                if worker["types"].is_null() { "all".to_owned() } else { list(&worker["types"]) },
            ]
        })
        .collect();
    if rows.is_empty() {
        output.note("no workers; `tidegate jobs exec --type TYPE -- COMMAND` is one");
        return Ok(());
    }
    let head = [
        "ID",
        "STATE",
        "RUNNING",
        "PER MIN",
        "FAILED",
        "HEARTBEAT",
        "STACK",
        "REGION",
        "CAPABILITIES",
        "TYPES",
    ];
    output.table(&head, &rows)
}

fn steer_worker(client: &Client, id: &str, verb: &str, output: &Output) -> Outcome {
    let path = format!("/api/v1/jobs/workers/{}/{verb}", segment(id));
    let answer = client.post(&path, &json!({})).map_err(|failure| match failure.exit {
        Exit::NotFound => failure.next("tidegate jobs workers, to see which there are"),
        _ => failure,
    })?;
    if output.json {
        return output.value(&answer);
    }
    output.note(&match verb {
        "drain" => format!("{id} completes what it holds and claims nothing more"),
        _ => format!("{id} claims jobs again"),
    });
    Ok(())
}

/// Reads job types and workers for `tidegate top`, the busiest first.
pub(crate) fn top(client: &Client) -> Outcome<Vec<TopSection>> {
    let stats = client.get("/api/v1/jobs/stats")?;
    let types = client.get("/api/v1/jobs/types?limit=1000")?;
    let unroutable = client.get("/api/v1/jobs/unroutable?limit=1000")?;
    let workers = client.get("/api/v1/jobs/workers?limit=1000")?;
    let count = |name: &str| number(&stats, name);
    let summary = format!(
        "{} waiting, {} active, {} delayed, {} dead, {} processed",
        count("waiting"),
        count("active"),
        count("delayed"),
        count("dead"),
        count("processed")
    );
    let waiting_in_vain: Vec<String> = unroutable["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|lane| text(lane, "type"))
        .collect();
    let mut types: Vec<&Value> = types["items"].as_array().into_iter().flatten().collect();
    let busy = |row: &&Value, name: &str| std::cmp::Reverse(row[name].as_u64().unwrap_or(0));
    types.sort_by_key(|row| (busy(row, "waiting"), busy(row, "active"), busy(row, "dead")));
    let head = ["TYPE", "WAITING", "OLDEST", "ACTIVE", "DELAYED", "DEAD", "STATE"];
    let mut by_type = TopSection::new("Job types", summary, &head);
    by_type.rows = types
        .into_iter()
        .map(|row| {
            let name = text(row, "type");
            let state = match (row["paused"] == true, waiting_in_vain.contains(&name)) {
                (true, _) => "paused",
                (false, true) => "unroutable",
                (false, false) => "",
            };
            let oldest = row["oldest_waiting_ms"].as_u64().map(Duration::from_millis);
            vec![
                name,
                number(row, "waiting"),
                oldest.map_or("-".to_owned(), web::format::duration),
                number(row, "active"),
                number(row, "delayed"),
                number(row, "dead"),
                state.to_owned(),
            ]
        })
        .collect();
    let mut list: Vec<&Value> = workers["items"].as_array().into_iter().flatten().collect();
    list.sort_by_key(|worker| std::cmp::Reverse(worker["running"].as_u64().unwrap_or(0)));
    let alive = list.iter().filter(|worker| worker["alive"] == true).count();
    let running: u64 = list.iter().filter_map(|worker| worker["running"].as_u64()).sum();
    let summary = format!("{alive} alive, {running} jobs running");
    let head = ["WORKER", "STATE", "RUNNING", "SLOTS", "PER MIN", "FAILED"];
    let mut by_worker = TopSection::new("Workers", summary, &head);
    by_worker.rows = list
        .iter()
        .map(|worker| {
            let state = match (worker["alive"] == true, worker["draining"] == true) {
                (_, true) => "draining",
                (true, false) => "alive",
                (false, false) => "silent",
            };
            vec![
                text(worker, "id"),
                state.to_owned(),
                number(worker, "running"),
                number(worker, "slots"),
                format!("{:.1}", worker["per_minute"].as_f64().unwrap_or(0.0)),
                number(worker, "failed"),
            ]
        })
        .collect();
    Ok(vec![by_type, by_worker])
}

fn stats(client: &Client, output: &Output) -> Outcome {
    let mut stats = client.get("/api/v1/jobs/stats")?;
    let mut lanes = client.get("/api/v1/jobs/lanes?limit=1000")?;
    let lanes = lanes["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    if output.json {
        let unroutable: u64 = lanes
            .iter()
            .filter(|lane| lane["routable"] == false)
            .filter_map(|lane| lane["waiting"].as_u64())
            .sum();
        stats["unroutable"] = json!(unroutable);
        stats["lanes"] = json!(lanes);
        return output.value(&stats);
    }
    for name in ["waiting", "active", "delayed", "schedules", "dead", "finished", "workers"] {
        output.line(&format!("{name:10} {}", number(&stats, name)))?;
    }
    output.line(&format!(
        "{:10} {} in all, {} failed attempts",
        "processed",
        number(&stats, "processed"),
        number(&stats, "failed")
    ))?;
    let waiting: Vec<&Value> =
        lanes.iter().filter(|lane| lane["waiting"].as_u64().unwrap_or(0) > 0).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let line = |lane: &&Value| {
        let target = &lane["target"];
        let state = match (lane["paused"].as_bool(), lane["routable"].as_bool()) {
            (Some(true), _) => output.paint(Tone::Warn, "paused"),
            (_, Some(false)) => output.paint(Tone::Bad, "unroutable: no live worker matches"),
            _ => "waiting".to_owned(),
        };
        let target = if *target == json!({ "all": false }) {
            "any worker".to_owned()
        } else {
            target.to_string()
        };
        vec![text(lane, "type"), number(lane, "waiting"), target, state]
    };
    let lines: Vec<Vec<String>> = waiting.iter().map(line).collect();
    output.line("")?;
    output.table(&["TYPE", "WAITING", "FOR", "STATE"], &lines)
}
