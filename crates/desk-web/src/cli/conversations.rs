//! `tidegate desk conversations` and `stats`.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, interval, number, segment, text};

use super::items;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum ConversationsSubcommand {
    /// List conversations
    #[command(before_help = "Examples:
  tidegate desk conversations list
  tidegate desk conversations list --view unassigned --sort urgency
  tidegate desk conversations list --text invoice --json")]
    #[command(alias = "ls")]
    List {
        /// View
        #[arg(long, default_value = "all", value_parser = ["unassigned", "all", "unread", "snoozed"])]
        view: String,
        /// Status: open, pending or resolved
        #[arg(long)]
        status: Option<String>,
        /// Words in messages, or the beginning of a visitor's name or address
        #[arg(long)]
        text: Option<String>,
        /// Order
        #[arg(long, default_value = "recent", value_parser = ["recent", "urgency"])]
        sort: String,
        /// Most conversations to list
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show a conversation with its last messages
    #[command(before_help = "Examples:
  tidegate desk conversations show cnv_0199…")]
    Show {
        /// Id of the conversation
        conversation: String,
    },
    /// Assign a conversation to an agent, or put it back into the queue
    #[command(before_help = "Examples:
  tidegate desk conversations assign cnv_0199… anna@example.org
  tidegate desk conversations assign cnv_0199… anna@example.org --anyway
  tidegate desk conversations assign cnv_0199…")]
    Assign {
        /// Id of the conversation
        conversation: String,
        /// Id or e-mail address of the agent; the queue if left out
        agent: Option<String>,
        /// Also when the agent is not there, or has as many as they may have
        #[arg(long)]
        anyway: bool,
    },
    /// Resolve a conversation
    #[command(before_help = "Examples:
  tidegate desk conversations resolve cnv_0199…")]
    Resolve {
        /// Id of the conversation
        conversation: String,
    },
    /// Merge a conversation into another one of the same visitor
    #[command(before_help = "Examples:
  tidegate desk conversations merge cnv_0199… --into cnv_019a…")]
    Merge {
        /// Id of the conversation, which is resolved
        conversation: String,
        /// Id of the one that gets its messages
        #[arg(long)]
        into: String,
    },
    /// Print the last messages of a conversation, and new ones as they come
    #[command(before_help = "Examples:
  tidegate desk conversations tail cnv_0199…
  tidegate desk conversations tail cnv_0199… --for 1m --json | jq .content")]
    Tail {
        /// Id of the conversation
        conversation: String,
        /// End after this long, such as 30s; with Ctrl-C if left out
        #[arg(long = "for", value_name = "TIME")]
        most: Option<String>,
    },
}

pub(crate) fn run(client: &Client, verb: ConversationsSubcommand, output: &Output) -> Outcome {
    let path = |id: &str| format!("/api/v1/conversations/{}", segment(id));
    match verb {
        ConversationsSubcommand::List { view, status, text, sort, limit } => {
            let mut query = format!("?view={view}&sort={sort}&limit={}", limit.clamp(1, 1_000));
            for (name, value) in [("status", status), ("text", text)] {
                if let Some(value) = value {
                    query.push_str(&format!("&{name}={}", segment(&value)));
                }
            }
            list(&items(&client.get(&format!("/api/v1/conversations{query}"))?), output)
        }
        ConversationsSubcommand::Show { conversation } => {
            let path = path(&conversation);
            let found = client.get(&path)?;
            let messages = items(&client.get(&format!("{path}/messages?limit=50"))?);
            if output.json {
                return output.value(&json!({ "conversation": found, "messages": messages }));
            }
            list(std::slice::from_ref(&found), output)?;
            let rows: Vec<Vec<String>> = messages
                .iter()
                .map(|message| {
                    let name = message["sender"]["name"].as_str().unwrap_or_default().to_owned();
                    vec![
                        number(message, "seq"),
                        text(message, "created_at"),
                        text(message, "sender_role"),
                        name,
                        text(message, "content"),
                    ]
                })
                .collect();
            output.table(&["NO", "TIME", "BY", "NAME", "TEXT"], &rows)
        }
        ConversationsSubcommand::Assign { conversation, agent, anyway } => {
            let agent = agent.map(|agent| super::agents::find(client, &agent)).transpose()?;
            let body = json!({ "agent_id": agent, "over_capacity": anyway });
            let answer = client.post(&format!("{}/assign", path(&conversation)), &body)?;
            let said = match answer["assignee"]["name"].as_str() {
                Some(name) => format!("assigned {conversation} to {name}"),
                None => format!("{conversation} waits for an agent"),
            };
            done(output, &answer, &said)
        }
        ConversationsSubcommand::Resolve { conversation } => {
            let answer = client.patch(&path(&conversation), &json!({ "status": "resolved" }))?;
            done(output, &answer, &format!("resolved {conversation}"))
        }
        ConversationsSubcommand::Merge { conversation, into } => {
            let body = json!({ "into": into });
            let answer = client.post(&format!("{}/merge", path(&conversation)), &body)?;
            done(output, &answer, &format!("merged {conversation} into {into}"))
        }
        ConversationsSubcommand::Tail { conversation, most } => {
            let most = most.map(|text| interval(&text).map_err(Failure::usage)).transpose()?;
            tail(client, &path(&conversation), most, output)
        }
    }
}

fn done(output: &Output, answer: &Value, said: &str) -> Outcome {
    if output.json {
        return output.value(answer);
    }
    output.note(said);
    Ok(())
}

/// Interval at which new messages are asked for.
const TAIL_EVERY: Duration = Duration::from_secs(1);

fn tail(client: &Client, path: &str, most: Option<Duration>, output: &Output) -> Outcome {
    let started = Instant::now();
    let mut answer = client.get(&format!("{path}/messages?limit=10"))?;
    let mut seq = 0;
    loop {
        for message in items(&answer) {
            seq = message["seq"].as_i64().unwrap_or(seq);
            if output.json {
                output.line(&message.to_string())?;
                continue;
            }
            let name = message["sender"]["name"].as_str().unwrap_or_default();
            let who = format!("{} {name}", text(&message, "sender_role"));
            let time = text(&message, "created_at");
            output.line(&format!("{time}  {}  {}", who.trim_end(), text(&message, "content")))?;
        }
        if most.is_some_and(|most| started.elapsed() >= most) || output.is_unread() {
            return Ok(());
        }
        if !answer["has_more"].as_bool().unwrap_or(false) || seq == 0 {
            std::thread::sleep(
                most.map_or(TAIL_EVERY, |most| {
                    TAIL_EVERY.min(most.saturating_sub(started.elapsed()))
                }),
            );
        }
        answer = client.get(&format!("{path}/messages?after_seq={seq}&limit=100"))?;
    }
}

fn list(found: &[Value], output: &Output) -> Outcome {
    if output.json {
        return output.value(&found);
    }
    if found.is_empty() {
        output.note("no conversations");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| {
            let name = |value: &Value| value["name"].as_str().unwrap_or("–").to_owned();
            vec![
                text(one, "id"),
                text(one, "status"),
                text(one, "priority"),
                name(&one["assignee"]),
                name(&one["visitor"]),
                number(one, "unread_agent"),
                one["last_message"]["preview"]
                    .as_str()
                    .unwrap_or_default()
                    .chars()
                    .take(40)
                    .collect(),
            ]
        })
        .collect();
    output.table(
        &["CONVERSATION", "STATUS", "PRIORITY", "AGENT", "VISITOR", "UNREAD", "LAST MESSAGE"],
        &rows,
    )
}

/// The numbers.
pub(crate) fn stats(client: &Client, output: &Output) -> Outcome {
    let found = client.get("/api/v1/dashboard")?;
    if output.json {
        return output.value(&found);
    }
    let totals = &found["totals"];
    let mut rows = Vec::new();
    for name in ["open", "waiting", "assigned", "unread", "resolved_today", "sla_at_risk"] {
        rows.push(vec![name.replace('_', " "), number(totals, name)]);
    }
    let online = found["availability"]["agents_online"].as_i64().unwrap_or(0);
    rows.push(vec!["agents online".to_owned(), online.to_string()]);
    output.table(&["WHAT", "VALUE"], &rows)
}
