//! `tidegate jobs schedules`: jobs that run again and again.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::dispatch::{JobOptions, payload, set, with_payload};
use super::{ago, instant, query, segment, short, text};
use web::cli::client::Client;
use web::cli::{Exit, Failure, Outcome};
use web::cli::{Output, Tone};

/// The verbs; `ls` if none is given.
#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesSubcommand {
    /// List schedules, the next to come first
    #[command(alias = "list")]
    Ls,
    /// Store a schedule, or change the one of this id
    Put {
        /// Id of the schedule
        id: String,
        /// Job type
        #[arg(value_name = "TYPE")]
        job_type: String,
        /// Input of the handler: JSON, @FILE, or - for standard input
        #[arg(value_name = "PAYLOAD")]
        payload: Option<String>,
        /// Cron expression: five fields, or six with seconds first
        #[arg(long)]
        cron: String,
        /// The IANA time zone the expression is read in; UTC if left out
        #[arg(long)]
        timezone: Option<String>,
        /// If an occurrence comes due before the previous one has ended: skip or allow
        #[arg(long)]
        overlap: Option<String>,
        /// Missed occurrences to make up for: last, none or all
        #[arg(long)]
        catch_up: Option<String>,
        #[command(flatten)]
        options: Box<JobOptions>,
    },
    /// Delete a schedule; its waiting and active occurrences continue
    Rm {
        /// Id of the schedule
        id: String,
    },
    /// Run a schedule now, beside its occurrences
    Run {
        /// Id of the schedule
        id: String,
    },
    /// Pause a schedule: occurrences are skipped until it is resumed
    Pause {
        /// Id of the schedule
        id: String,
    },
    /// Resume a paused schedule from its next occurrence on
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
        /// Number of occurrences to show
        #[arg(long, default_value_t = 5)]
        limit: u32,
    },
}

fn known(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.next("tidegate jobs schedules ls"),
        _ => failure,
    }
}

pub(crate) fn run(client: &Client, verb: Option<SchedulesSubcommand>, output: &Output) -> Outcome {
    let done = |answer: Value| match output.json {
        true => output.value(&answer),
        false => output.line(&format!("{} {}", text(&answer, "id"), text(&answer, "outcome"))),
    };
    let path = |id: &str| format!("/api/v1/jobs/schedules/{}", segment(id));
    match verb.unwrap_or(SchedulesSubcommand::Ls) {
        SchedulesSubcommand::Ls => ls(client, output),
        SchedulesSubcommand::Put {
            id,
            job_type,
            payload: given,
            cron,
            timezone,
            overlap,
            catch_up,
            options,
        } => {
            let given = given.as_deref().map(payload).transpose()?;
            let mut body = Map::new();
            set(&mut body, "type", Some(job_type));
            set(&mut body, "cron", Some(cron));
            set(&mut body, "timezone", timezone);
            set(&mut body, "overlap", overlap);
            set(&mut body, "catch_up", catch_up);
            options.write(&mut body);
            done(client.put_text(&path(&id), &with_payload(body, given))?)
        }
        SchedulesSubcommand::Rm { id } => done(client.delete(&path(&id)).map_err(known)?),
        SchedulesSubcommand::Run { id } => {
            done(client.post(&format!("{}/run", path(&id)), &json!({})).map_err(known)?)
        }
        SchedulesSubcommand::Pause { id } => {
            done(client.post(&format!("{}/pause", path(&id)), &json!({})).map_err(known)?)
        }
        SchedulesSubcommand::Resume { id } => {
            done(client.post(&format!("{}/resume", path(&id)), &json!({})).map_err(known)?)
        }
        SchedulesSubcommand::Preview { cron, timezone, limit } => {
            let limit = limit.to_string();
            let query = query(&[
                ("cron", Some(&cron)),
                ("timezone", timezone.as_deref()),
                ("limit", Some(&limit)),
            ]);
            let answer = client.get(&format!("/api/v1/jobs/preview?{query}"))?;
            if output.json {
                return output.value(&answer["items"]);
            }
            for at in answer["items"].as_array().into_iter().flatten().filter_map(instant) {
                output.line(&format!("{at} ({})", ago(at)))?;
            }
            Ok(())
        }
    }
}

fn ls(client: &Client, output: &Output) -> Outcome {
    let all = client.get_all("/api/v1/jobs/schedules")?;
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
            false => instant(&schedule["next_at"])
                .map(|at| format!("{at} ({})", ago(at)))
                .unwrap_or_default(),
        };
        vec![
            text(job, "id"),
            text(job, "type"),
            text(job, "cron"),
            text(schedule, "description"),
            job["timezone"].as_str().unwrap_or("UTC").to_owned(),
            next,
            schedule["runs"][0]["outcome"].as_str().unwrap_or("-").to_owned(),
            short(&job["payload"].to_string(), 40),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output.table(&["ID", "TYPE", "CRON", "IN WORDS", "ZONE", "NEXT", "LAST RUN", "PAYLOAD"], &rows)
}
