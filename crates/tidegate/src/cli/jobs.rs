//! `tidegate jobs`: the job queue from the command line.
//!
//! Every verb is one or two calls of the running server's API. `dispatch.rs` has the flags that
//! describe a job, `schedules.rs` recurring jobs, `tail.rs` the live view, `exec.rs` the worker that
//! runs any command.

mod dispatch;
mod exec;
mod schedules;
mod tail;

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Global;
use super::room::{number, segment, text};
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Output, Tone};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Dispatch a job, or many from a file
    #[command(before_help = "Examples:
  tidegate jobs dispatch mail '{\"to\":\"ann@example.org\"}'
  tidegate jobs dispatch mail @message.json --delay 10m --priority 8
  tidegate jobs dispatch report '{}' --key report-2026-11 --wait 60s
  tidegate jobs dispatch film '{\"file\":\"a.mov\"}' --capability gpu --region eu --timeout 10m
  jq -c '{type:\"mail\",payload:.}' users.json | tidegate jobs dispatch --bulk -")]
    Dispatch(Box<dispatch::Dispatch>),
    /// List jobs by state, type and text
    #[command(before_help = "Examples:
  tidegate jobs ls
  tidegate jobs ls --state waiting --type mail --limit 100
  tidegate jobs ls --text ann@example.org --json | jq -r '.[].id'")]
    Ls {
        /// waiting, active, delayed, dead or finished; all if left out
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        choice: Choice,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: usize,
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
  tidegate jobs retry --all --type mail           every delayed job of a type
  tidegate jobs retry --all --state dead --text Timeout")]
    Retry(Many),
    /// Cancel jobs: those that wait end, those that run are asked to stop
    #[command(before_help = "Examples:
  tidegate jobs cancel q7Xb2LmK9a --reason 'wrong file'
  tidegate jobs cancel --all --type mail          every waiting job of a type
  tidegate jobs cancel --all --state delayed")]
    Cancel(Many),
    /// List dead letters with why they are there; or remove them
    #[command(before_help = "Examples:
  tidegate jobs dead
  tidegate jobs dead --type mail --json
  tidegate jobs dead --remove --text 'no such user'")]
    Dead {
        #[command(flatten)]
        choice: Choice,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Forget them instead of listing them
        #[arg(long)]
        remove: bool,
    },
    /// Run jobs that have ended once more, with all their attempts
    #[command(before_help = "Examples:
  tidegate jobs replay q7Xb2LmK9a
  tidegate jobs replay q7Xb2LmK9a --payload '{\"to\":\"bob@example.org\"}'
  tidegate jobs replay --all --type mail --text Timeout")]
    Replay {
        #[command(flatten)]
        many: Many,
        /// Another payload: JSON, @FILE, or - for standard input
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Let no job of a type start until it is resumed; what runs goes on
    #[command(before_help = "Examples:
  tidegate jobs pause mail")]
    Pause {
        /// The job type
        kind: String,
    },
    /// Let jobs of a type start again
    #[command(before_help = "Examples:
  tidegate jobs resume mail")]
    Resume {
        /// The job type
        kind: String,
    },
    /// Jobs that run again and again: list, store, pause, remove, preview
    #[command(before_help = "Examples:
  tidegate jobs schedules
  tidegate jobs schedules put nightly --cron '30 3 * * *' --timezone Europe/Berlin clean-up
  tidegate jobs schedules preview '0 9 * * 1-5' --timezone America/New_York
  tidegate jobs schedules pause nightly
  tidegate jobs schedules resume nightly
  tidegate jobs schedules rm nightly
  tidegate jobs schedules ls --json")]
    Schedules {
        #[command(subcommand)]
        verb: Option<schedules::Verb>,
    },
    /// List workers, what they take, and whether they live
    #[command(before_help = "Examples:
  tidegate jobs workers
  tidegate jobs workers --json | jq -r '.[] | select(.alive | not) | .id'")]
    Workers,
    /// How many jobs are where, what waits for which workers, what no worker can take
    #[command(before_help = "Examples:
  tidegate jobs stats
  tidegate jobs stats --json | jq .unroutable")]
    Stats,
    /// Watch what happens to jobs, as it happens
    #[command(before_help = "Examples:
  tidegate jobs tail
  tidegate jobs tail --job q7Xb2LmK9a
  tidegate jobs tail --after 0 --json | jq -c 'select(.event == \"dead\")'")]
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
  TIDEGATE_JOB_TIMEOUT_MS, the latter two only if the job has a timeout.

Its exit code decides:
  0      done; standard output is the result, as JSON if it is JSON and as text otherwise
  75     not now: later, after --snooze-for, and the attempt does not count
  100    failed for good: to the dead letters
  101    give the job up: it ends without a dead letter
  other  failed; the job's own retry policy decides (error name Exit1 for code 1, Signal9 for a
         signal, Timeout for the job's timeout; skip_on and reroute_on go by that)

Standard error is shown, kept in the job's log, and its end is the error message. A line
`::progress 40 half way` there says how far the job is.

A cancelled job's command, one past its timeout and one whose lease is lost gets SIGTERM, and SIGKILL
after --kill-after. On SIGTERM or SIGINT no more jobs are claimed; running commands have --grace to
end, then they are stopped and their jobs handed back without counting the attempt. A second signal
does that at once."
    )]
    Exec(exec::Exec),
}

/// Which jobs.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only jobs with this text in their id, the job itself or its result
    #[arg(long)]
    text: Option<String>,
}

/// One or more jobs by id, or all that fit.
#[derive(Debug, Args)]
pub(crate) struct Many {
    /// Ids of jobs
    #[arg(value_name = "ID", conflicts_with_all = ["all", "state", "kind", "text"])]
    ids: Vec<String>,
    /// All jobs that fit --state, --type and --text
    #[arg(long)]
    all: bool,
    /// In this state
    #[arg(long, requires = "all")]
    state: Option<String>,
    #[command(flatten)]
    choice: Choice,
    /// Why, for people
    #[arg(long)]
    reason: Option<String>,
}

pub(crate) fn run(verb: Verb, global: &Global, output: &Output) -> Outcome {
    let client = Client::new(global)?;
    match verb {
        Verb::Dispatch(dispatch) => dispatch::run(&client, *dispatch, output),
        Verb::Ls { state, choice, limit } => ls(&client, state, &choice, limit, output),
        Verb::Show { id } => show(&client, &id, output),
        Verb::Retry(many) => change(&client, "retry", &many, None, output),
        Verb::Cancel(many) => change(&client, "cancel", &many, None, output),
        Verb::Dead { choice, limit, remove } => match remove {
            true => bulk(&client, "remove", Some("dead"), &choice, None, output),
            false => dead(&client, &choice, limit, output),
        },
        Verb::Replay { many, payload } => {
            let payload = payload.map(|text| dispatch::payload(&text)).transpose()?;
            if payload.is_some() && many.all {
                return Err(Failure::usage("--payload is for jobs named by id, not for --all"));
            }
            change(&client, "replay", &many, payload, output)
        }
        Verb::Pause { kind } => pause(&client, &kind, "pause", output),
        Verb::Resume { kind } => pause(&client, &kind, "resume", output),
        Verb::Schedules { verb } => schedules::run(&client, verb, output),
        Verb::Workers => workers(&client, output),
        Verb::Stats => stats(&client, output),
        Verb::Tail(tail) => tail::run(&client, &tail, output),
        Verb::Exec(exec) => exec::run(client, exec, output),
    }
}

/// What to do next when a job is not there, or not in the right state.
fn known(id: &str) -> impl FnOnce(Failure) -> Failure {
    let id = id.to_owned();
    move |failure| match failure.exit {
        Exit::NotFound => failure.next("tidegate jobs ls, to see which there are"),
        Exit::Usage => failure.next(format!("tidegate jobs show {id}")),
        _ => failure,
    }
}

/// A time such as `500ms`, `10s`, `5m`, `2h` or `7d`, for a flag.
fn time(text: &str) -> Result<Duration, String> {
    use crate::config::value::Value as _;
    Duration::parse(text, None)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago or ahead something is, for people.
fn ago(at_ms: i64) -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    let span = now.saturating_sub(at_ms);
    let seconds = span.unsigned_abs() / 1_000;
    let told = match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    };
    if span < 0 { format!("in {told}") } else { format!("{told} ago") }
}

/// A moment as people and programs read it.
fn moment(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.to_string())
}

fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let parts: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    parts.join("&")
}

/// Pages through a list until there is enough or no more.
fn rows(
    client: &Client,
    state: Option<&str>,
    choice: &Choice,
    limit: usize,
) -> Outcome<Vec<Value>> {
    let mut rows: Vec<Value> = Vec::new();
    let mut from: Option<String> = None;
    loop {
        let page = (limit.saturating_sub(rows.len())).min(200).to_string();
        let query = query(&[
            ("state", state),
            ("type", choice.kind.as_deref()),
            ("text", choice.text.as_deref()),
            ("from", from.as_deref()),
            ("limit", Some(&page)),
        ]);
        let mut answer = client.get(&format!("/api/v1/jobs?{query}"))?;
        rows.extend(answer["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default());
        from = answer["next"].as_str().map(str::to_owned);
        if from.is_none() || rows.len() >= limit {
            return Ok(rows);
        }
    }
}

fn ls(
    client: &Client,
    state: Option<String>,
    choice: &Choice,
    limit: usize,
    output: &Output,
) -> Outcome {
    let rows = rows(client, state.as_deref(), choice, limit.max(1))?;
    if output.json {
        return output.value(&rows);
    }
    if rows.is_empty() {
        output.note("no jobs; `tidegate jobs dispatch TYPE PAYLOAD` makes one");
        return Ok(());
    }
    let line = |row: &Value| {
        let job = &row["job"];
        vec![
            text(row, "id"),
            text(row, "status"),
            text(job, "type"),
            number(job, "priority"),
            format!("{}/{}", number(job, "attempts"), number(&job["retry"], "attempts")),
            job["created_at_ms"].as_i64().map(ago).unwrap_or_default(),
            short(&job["payload"].to_string(), 50),
        ]
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    output.table(&["ID", "STATE", "TYPE", "PRIO", "RETRIES", "DISPATCHED", "PAYLOAD"], &lines)
}

/// The beginning of a text, on one line.
fn short(text: &str, most: usize) -> String {
    let flat: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match flat.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", flat.get(..at).unwrap_or_default()),
        None => flat,
    }
}

fn show(client: &Client, id: &str, output: &Output) -> Outcome {
    let mut view = client.get(&format!("/api/v1/job/{}", segment(id))).map_err(known(id))?;
    let mut log = client.get(&format!("/api/v1/job/{}/logs", segment(id)))?;
    if output.json {
        view["log"] = log["lines"].take();
        return output.value(&view);
    }
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
        ("payload", short(&job["payload"].to_string(), 2_000)),
    ];
    let when = |at: &Value| at.as_i64().map(|at| format!("{} ({})", moment(at), ago(at)));
    lines.extend(when(&job["created_at_ms"]).map(|at| ("dispatched", at)));
    lines.extend(when(&view["due_at_ms"]).map(|at| ("due", at)));
    lines.extend(view["worker"].as_str().map(|worker| ("worker", worker.to_owned())));
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
        lines.extend(when(&result["completed_at_ms"]).map(|at| ("ended", at)));
        lines.push(("took", format!("{} ms", number(result, "took_ms"))));
        match result["success"].as_bool() {
            Some(true) => lines.push(("result", short(&result["data"].to_string(), 2_000))),
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
            attempt["at_ms"].as_i64().map(ago).unwrap_or_default(),
            text(attempt, "worker"),
            number(attempt, "took_ms"),
            told(&attempt["error"])
        ))?;
    }
    for line in log["lines"].as_array_mut().map(std::mem::take).unwrap_or_default() {
        let at = line["at_ms"].as_i64().map(moment).unwrap_or_default();
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

fn dead(client: &Client, choice: &Choice, limit: usize, output: &Output) -> Outcome {
    let found = rows(client, Some("dead"), choice, limit.max(1))?;
    let mut letters = Vec::with_capacity(found.len());
    for row in found {
        let id = text(&row, "id");
        // One that was replayed a moment ago is no dead letter any more.
        let path = format!("/api/v1/job/{}", segment(&id));
        let result = client.get(&path).map(|view| view["result"].clone()).unwrap_or(Value::Null);
        letters.push(json!({ "id": id, "job": row["job"], "result": result }));
    }
    if output.json {
        return output.value(&letters);
    }
    if letters.is_empty() {
        output.note("no dead letters");
        return Ok(());
    }
    let line = |letter: &Value| {
        vec![
            text(letter, "id"),
            text(&letter["job"], "type"),
            letter["result"]["completed_at_ms"].as_i64().map(ago).unwrap_or_default(),
            short(&told(&letter["result"]["error"]), 80),
        ]
    };
    let lines: Vec<Vec<String>> = letters.iter().map(line).collect();
    output.table(&["ID", "TYPE", "DIED", "WHY"], &lines)?;
    output.note("`tidegate jobs replay ID` runs one again, `--all --type TYPE` all of a type");
    Ok(())
}

/// Does something to jobs named by id, or to all that fit.
fn change(
    client: &Client,
    verb: &str,
    many: &Many,
    payload: Option<Box<serde_json::value::RawValue>>,
    output: &Output,
) -> Outcome {
    if many.all {
        return bulk(
            client,
            verb,
            many.state.as_deref(),
            &many.choice,
            many.reason.as_deref(),
            output,
        );
    }
    if many.ids.is_empty() {
        return Err(Failure::usage("which jobs?")
            .next(format!("tidegate jobs {verb} ID, or tidegate jobs {verb} --all --type TYPE")));
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
    for id in &many.ids {
        let path = format!("/api/v1/job/{}/{verb}", segment(id));
        let answer = client.post_text(&path, &body).map_err(known(id))?;
        if !output.json {
            output.line(&format!("{id} {}", text(&answer, "outcome")))?;
        }
        done.push(answer);
    }
    if output.json { output.value(&done) } else { Ok(()) }
}

/// Does something to all jobs that fit, call by call until none is left.
fn bulk(
    client: &Client,
    verb: &str,
    state: Option<&str>,
    choice: &Choice,
    reason: Option<&str>,
    output: &Output,
) -> Outcome {
    let mut body = serde_json::Map::new();
    let given = [
        ("state", state),
        ("type", choice.kind.as_deref()),
        ("text", choice.text.as_deref()),
        ("reason", reason),
    ];
    for (name, value) in given {
        body.extend(value.map(|value| (name.to_owned(), json!(value))));
    }
    let body = Value::Object(body);
    let mut count = 0;
    let refused = loop {
        let mut answer = client.post(&format!("/api/v1/jobs/{verb}"), &body)?;
        let changed = answer["count"].as_u64().unwrap_or(0);
        count += changed;
        if answer["more"] != true || changed == 0 {
            break answer["refused"].as_array_mut().map(std::mem::take).unwrap_or_default();
        }
    };
    if output.json {
        return output.value(&json!({ "count": count, "refused": refused }));
    }
    for row in &refused {
        output.note(&format!("{}: {}", text(row, "id"), text(row, "message")));
    }
    output.line(&format!("{count} jobs"))
}

fn pause(client: &Client, kind: &str, verb: &str, output: &Output) -> Outcome {
    let path = format!("/api/v1/jobs/types/{}/{verb}", segment(kind));
    let answer = client.post(&path, &json!({}))?;
    if output.json {
        return output.value(&answer);
    }
    output.note(&format!("{kind} is {verb}d"));
    Ok(())
}

fn workers(client: &Client, output: &Output) -> Outcome {
    let answer = client.get("/api/v1/jobs/workers")?;
    if output.json {
        return output.value(&answer["workers"]);
    }
    let list = |value: &Value| {
        let words: Vec<&str> =
            value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        words.join(",")
    };
    let rows: Vec<Vec<String>> = answer["workers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|worker| {
            let alive = worker["alive"].as_bool().unwrap_or(false);
            let (tone, word) = if alive { (Tone::Good, "alive") } else { (Tone::Bad, "silent") };
            vec![
                text(worker, "id"),
                output.paint(tone, word),
                worker["heartbeat_ms"].as_i64().map(ago).unwrap_or_default(),
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
    output.table(&["ID", "STATE", "HEARD", "STACK", "REGION", "CAPABILITIES", "TYPES"], &rows)
}

fn stats(client: &Client, output: &Output) -> Outcome {
    let mut stats = client.get("/api/v1/jobs/stats")?;
    let mut lanes = client.get("/api/v1/jobs/lanes")?;
    let lanes = lanes["lanes"].as_array_mut().map(std::mem::take).unwrap_or_default();
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
            (_, Some(false)) => output.paint(Tone::Bad, "no worker can take these"),
            _ => "in line".to_owned(),
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
