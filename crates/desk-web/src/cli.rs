//! `tidegate desk`: traffic, limits, users and the support chat from the command line.
//!
//! Every verb is one or two calls of the running server's API, but for those about the archive, which open it.

mod agents;
mod archive;
mod conversations;
mod import;
mod limits;
mod users;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use serde_json::Value;
use web::cli::client::Client;
use web::cli::{Context, Outcome, Output, number, segment, text};

/// Look at traffic, limit requests, control users and their sessions, run the support chat
#[derive(Debug, Parser)]
#[command(
    name = "desk",
    before_help = "Examples:
  tidegate desk traffic
  tidegate desk limits set search --limit 20 --window 1m --algorithm sliding
  tidegate desk limits check search --ip 203.0.113.7
  tidegate desk users block 123 --reason spam
  tidegate desk agents add anna@example.org --name Anna
  tidegate desk conversations list --view unassigned
  tidegate desk archive backup /backup/desk-2026-11-17"
)]
pub(crate) struct DeskCommand {
    #[command(subcommand)]
    pub(crate) verb: DeskSubcommand,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum DeskSubcommand {
    /// Requests, errors and connections of an app, over all instances
    #[command(before_help = "Examples:
  tidegate desk traffic
  tidegate desk traffic --app shop --json | jq .requests.per_second")]
    Traffic {
        /// Name of the app; this program if left out
        #[arg(long)]
        app: Option<String>,
    },
    /// Endpoints with their requests, errors and response times
    #[command(before_help = "Examples:
  tidegate desk endpoints --sort p99
  tidegate desk endpoints --app shop --limit 10")]
    Endpoints {
        /// Name of the app; this program if left out
        #[arg(long)]
        app: Option<String>,
        /// Order
        #[arg(long, default_value = "requests", value_parser = ["requests", "errors", "p99"])]
        sort: String,
        /// Most endpoints to list
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Policies: list, store, check, block, reset, import, and who hits them most
    Limits {
        #[command(subcommand)]
        verb: limits::LimitsSubcommand,
    },
    /// Users: list, show, block, unblock, log out, erase
    Users {
        #[command(subcommand)]
        verb: users::UsersSubcommand,
    },
    /// Agents of the chat: add, list, set, disable, reset the password
    Agents {
        #[command(subcommand)]
        verb: agents::AgentsSubcommand,
    },
    /// Conversations of the chat: list, show, assign, resolve, merge, tail
    Conversations {
        #[command(subcommand)]
        verb: conversations::ConversationsSubcommand,
    },
    /// The archive of the chat: check, back up, move between SQLite and Postgres
    Archive {
        #[command(subcommand)]
        verb: archive::ArchiveSubcommand,
    },
    /// Write the archive as JSON lines, or everything about one person
    #[command(before_help = "Examples:
  tidegate desk export --to desk.jsonl
  tidegate desk export | gzip > desk.jsonl.gz
  tidegate desk export --user v~42 --to anna.jsonl")]
    Export {
        /// Only what is kept about this user
        #[arg(long, value_name = "ID")]
        user: Option<String>,
        /// File to make; standard output if left out
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Read JSON lines into the archive; what it has already stays as it is
    #[command(before_help = "Examples:
  tidegate desk import desk.jsonl
  gunzip -c desk.jsonl.gz | tidegate desk import -
  tidegate desk import from-chatwoot.jsonl --skip-bad")]
    Import {
        /// File, or - for standard input
        file: PathBuf,
        /// Leave out bad lines and what belongs to them, instead of importing nothing
        #[arg(long)]
        skip_bad: bool,
    },
    /// Delete everything that is kept about a user, conversations and files included
    #[command(before_help = "Examples:
  tidegate desk erase v~42 --yes")]
    Erase {
        /// Id of the user
        user: String,
        /// Really delete it
        #[arg(long)]
        yes: bool,
    },
    /// Numbers of the chat: waiting, assigned, resolved, agents
    #[command(before_help = "Examples:
  tidegate desk stats")]
    Stats,
}

pub(crate) fn run(verb: DeskSubcommand, context: &Context<'_>) -> Outcome {
    let client = || Client::new(context);
    let output = context.output;
    match verb {
        DeskSubcommand::Traffic { app } => traffic(&client()?, app.as_deref(), output),
        DeskSubcommand::Endpoints { app, sort, limit } => {
            endpoints(&client()?, app.as_deref(), &sort, limit, output)
        }
        DeskSubcommand::Limits { verb } => limits::run(&client()?, verb, output),
        DeskSubcommand::Users { verb } => users::run(&client()?, verb, output),
        DeskSubcommand::Agents { verb } => agents::run(&client()?, verb, output),
        DeskSubcommand::Conversations { verb } => conversations::run(&client()?, verb, output),
        DeskSubcommand::Archive { verb } => archive::run(verb, context),
        DeskSubcommand::Export { user, to } => {
            archive::export(context, user.as_deref(), to.as_deref())
        }
        DeskSubcommand::Import { file, skip_bad } => archive::import(context, &file, skip_bad),
        DeskSubcommand::Erase { user, yes } => users::erase(&client()?, &user, yes, output),
        DeskSubcommand::Stats => conversations::stats(&client()?, output),
    }
}

fn traffic(client: &Client, app: Option<&str>, output: &Output) -> Outcome {
    let query = app.map(|app| format!("?app={}", segment(app))).unwrap_or_default();
    let seen = client.get(&format!("/api/v1/metrics{query}"))?;
    if output.json {
        return output.value(&seen);
    }
    let (requests, connections) = (&seen["requests"], &seen["connections"]);
    let rows = [
        ("requests", number(requests, "total")),
        ("accepted", number(requests, "accepted")),
        ("refused", number(requests, "refused")),
        ("in the total alone", number(requests, "total_only")),
        ("limited (429)", number(requests, "limited")),
        ("errors (4xx, 5xx)", number(&seen, "errors")),
        ("aborted", number(requests, "aborted")),
        ("per second", number(requests, "per_second")),
        ("most per second", number(requests, "max_per_second")),
        ("connections", number(connections, "current")),
        ("most connections", number(connections, "max_since_startup")),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    output.table(&["WHAT", "VALUE"], &rows)
}

fn endpoints(
    client: &Client,
    app: Option<&str>,
    sort: &str,
    limit: usize,
    output: &Output,
) -> Outcome {
    let app = app.map(|app| format!("&app={}", segment(app))).unwrap_or_default();
    let limit = limit.clamp(1, 1_000);
    let found = client.get(&format!("/api/v1/metrics/endpoints?sort={sort}&limit={limit}{app}"))?;
    let items = items(&found);
    if output.json {
        return output.value(&items);
    }
    if items.is_empty() {
        output.note("no requests yet");
        return Ok(());
    }
    let ms = |one: &Value, name: &str| {
        one[name].as_u64().map_or("–".to_owned(), |ms| format!("{ms} ms"))
    };
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|one| {
            vec![
                text(one, "endpoint"),
                number(one, "requests"),
                number(one, "errors"),
                format!("{} %", one["error_percent"]),
                ms(one, "p50_ms"),
                ms(one, "p99_ms"),
            ]
        })
        .collect();
    output.table(&["ENDPOINT", "REQUESTS", "ERRORS", "SHARE", "P50", "P99"], &rows)
}

/// The items of a list.
fn items(answer: &Value) -> Vec<Value> {
    answer["items"].as_array().cloned().unwrap_or_default()
}
