//! `tidegate jobs schedules`: jobs that run again and again.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::dispatch::{JobOptions, payload, set, with_payload};
use super::{ago, moment, query, segment, short, text};
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Output, Tone};

/// The verbs; `ls` if none is given.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List schedules, the next to come first
    Ls,
    /// Store a schedule, or change the one of this id
    Put {
        /// Id of the schedule
        id: String,
        /// What kind of job
        #[arg(value_name = "TYPE")]
        kind: String,
        /// What the handler gets: JSON, @FILE, or - for standard input
        #[arg(value_name = "PAYLOAD")]
        payload: Option<String>,
        /// When: five fields, or six with seconds first
        #[arg(long)]
        cron: String,
        /// The IANA time zone the expression is read in; UTC if left out
        #[arg(long)]
        timezone: Option<String>,
        /// When one comes while the one before has not ended: skip or allow
        #[arg(long)]
        overlap: Option<String>,
        /// What of missed ones is made up for: last, none or all
        #[arg(long)]
        catch_up: Option<String>,
        #[command(flatten)]
        options: Box<JobOptions>,
    },
    /// Stop a schedule for good; what it has in line or running goes on
    Rm {
        /// Id of the schedule
        id: String,
    },
    /// Let a schedule pass its occurrences by until it is resumed
    Pause {
        /// Id of the schedule
        id: String,
    },
    /// Let a paused schedule run again, from its next occurrence on
    Resume {
        /// Id of the schedule
        id: String,
    },
    /// Show when an expression comes due next, without storing anything
    Preview {
        /// The expression
        cron: String,
        /// The IANA time zone it is read in; UTC if left out
        #[arg(long)]
        timezone: Option<String>,
        /// How many occurrences to show
        #[arg(long, default_value_t = 5)]
        count: u32,
    },
}

fn known(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.next("tidegate jobs schedules ls"),
        _ => failure,
    }
}

pub(crate) fn run(client: &Client, verb: Option<Verb>, output: &Output) -> Outcome {
    let done = |answer: Value| match output.json {
        true => output.value(&answer),
        false => output.line(&format!("{} {}", text(&answer, "id"), text(&answer, "outcome"))),
    };
    let path = |id: &str| format!("/api/v1/jobs/schedules/{}", segment(id));
    match verb.unwrap_or(Verb::Ls) {
        Verb::Ls => ls(client, output),
        Verb::Put { id, kind, payload: given, cron, timezone, overlap, catch_up, options } => {
            let given = given.as_deref().map(payload).transpose()?;
            let mut body = Map::new();
            set(&mut body, "type", Some(kind));
            set(&mut body, "cron", Some(cron));
            set(&mut body, "timezone", timezone);
            set(&mut body, "overlap", overlap);
            set(&mut body, "catch_up", catch_up);
            options.write(&mut body);
            done(client.put_text(&path(&id), &with_payload(body, given))?)
        }
        Verb::Rm { id } => done(client.delete(&path(&id)).map_err(known)?),
        Verb::Pause { id } => {
            done(client.post(&format!("{}/pause", path(&id)), &json!({})).map_err(known)?)
        }
        Verb::Resume { id } => {
            done(client.post(&format!("{}/resume", path(&id)), &json!({})).map_err(known)?)
        }
        Verb::Preview { cron, timezone, count } => {
            let count = count.to_string();
            let query = query(&[
                ("cron", Some(&cron)),
                ("timezone", timezone.as_deref()),
                ("count", Some(&count)),
            ]);
            let answer = client.get(&format!("/api/v1/jobs/preview?{query}"))?;
            if output.json {
                return output.value(&answer["next_ms"]);
            }
            for at in answer["next_ms"].as_array().into_iter().flatten().filter_map(Value::as_i64) {
                output.line(&format!("{} ({})", moment(at), ago(at)))?;
            }
            Ok(())
        }
    }
}

fn ls(client: &Client, output: &Output) -> Outcome {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let path = format!("/api/v1/jobs/schedules?limit=200&from={}", all.len());
        let mut page = client.get(&path)?;
        let page = page["schedules"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let last = page.len() < 200;
        all.extend(page);
        if last {
            break;
        }
    }
    if output.json {
        return output.value(&all);
    }
    if all.is_empty() {
        output.note(
            "no schedules; `tidegate jobs schedules put ID --cron '0 3 * * *' TYPE` makes one",
        );
        return Ok(());
    }
    let row = |schedule: &Value| {
        let job = &schedule["job"];
        let next = match schedule["paused"] == true {
            true => output.paint(Tone::Warn, "paused"),
            false => schedule["next_ms"]
                .as_i64()
                .map(|at| format!("{} ({})", moment(at), ago(at)))
                .unwrap_or_default(),
        };
        vec![
            text(job, "id"),
            text(job, "type"),
            text(job, "cron"),
            job["timezone"].as_str().unwrap_or("UTC").to_owned(),
            next,
            short(&job["payload"].to_string(), 40),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output.table(&["ID", "TYPE", "CRON", "ZONE", "NEXT", "PAYLOAD"], &rows)
}
