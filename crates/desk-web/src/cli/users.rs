//! `tidegate desk users`: users and their sessions.

use clap::Subcommand;
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, number, segment, text};

use super::items;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum UsersSubcommand {
    /// List users, the one seen last first; or those with a text in their id
    #[command(before_help = "Examples:
  tidegate desk users list
  tidegate desk users list --text anna --json")]
    #[command(alias = "ls")]
    List {
        /// Only users with this text in their id
        #[arg(long)]
        text: Option<String>,
        /// Most users to list
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show a user and their devices
    #[command(before_help = "Examples:
  tidegate desk users show 123")]
    Show {
        /// Id of the user
        user: String,
    },
    /// Block a user on every instance and device
    #[command(before_help = "Examples:
  tidegate desk users block 123 --reason spam
  tidegate desk users block 123 --until 2026-12-01T00:00:00Z")]
    Block {
        /// Id of the user
        user: String,
        /// Reason shown to people
        #[arg(long)]
        reason: Option<String>,
        /// End of the block, as 2026-12-01T00:00:00Z; until it is lifted if left out
        #[arg(long)]
        until: Option<String>,
    },
    /// Lift the block of a user; the status before it comes back
    #[command(before_help = "Examples:
  tidegate desk users unblock 123")]
    Unblock {
        /// Id of the user
        user: String,
    },
    /// Log a user out, on every device or on one
    #[command(before_help = "Examples:
  tidegate desk users logout 123
  tidegate desk users logout 123 --session MTIz~0123456789abcdef0123456789abcdef")]
    Logout {
        /// Id of the user
        user: String,
        /// Only this session
        #[arg(long)]
        session: Option<String>,
    },
    /// Delete everything that is kept about a user
    #[command(before_help = "Examples:
  tidegate desk users erase 123 --yes")]
    Erase {
        /// Id of the user
        user: String,
        /// Really delete it
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) fn run(client: &Client, verb: UsersSubcommand, output: &Output) -> Outcome {
    let path = |user: &str| format!("/api/v1/users/{}", segment(user));
    match verb {
        UsersSubcommand::List { text, limit } => list(client, text.as_deref(), limit, output),
        UsersSubcommand::Show { user } => show(client, &path(&user), output),
        UsersSubcommand::Block { user, reason, until } => {
            let mut body = json!({ "status": "blocked" });
            if let Some(reason) = reason {
                body["reason"] = reason.into();
            }
            if let Some(until) = until {
                body["until"] = until.into();
            }
            done(output, &client.patch(&path(&user), &body)?, &format!("blocked {user}"))
        }
        UsersSubcommand::Unblock { user } => {
            let answer = client.delete(&format!("{}/block", path(&user)))?;
            let said = match answer["status"].as_str() {
                Some(status) => format!("unblocked {user}, who is {status} again"),
                None => format!("{user} was not blocked"),
            };
            done(output, &answer, &said)
        }
        UsersSubcommand::Logout { user, session } => {
            let one = session.map(|id| format!("/{}", segment(&id))).unwrap_or_default();
            let answer = client.delete(&format!("{}/sessions{one}", path(&user)))?;
            let ended = number(&answer, "ended");
            done(output, &answer, &format!("sessions ended: {ended}"))
        }
        UsersSubcommand::Erase { user, yes } => erase(client, &user, yes, output),
    }
}

/// Deletes everything that is kept about a user.
pub(super) fn erase(client: &Client, user: &str, yes: bool, output: &Output) -> Outcome {
    if !yes {
        return Err(Failure::usage(format!(
            "everything that is kept about {user} would be deleted"
        ))
        .next(format!("tidegate desk users erase {user} --yes")));
    }
    let answer = client.delete(&format!("/api/v1/users/{}?erase=true", segment(user)))?;
    done(output, &answer, &format!("erased {user}"))
}

fn done(output: &Output, answer: &Value, said: &str) -> Outcome {
    if output.json {
        return output.value(answer);
    }
    output.note(said);
    Ok(())
}

fn list(client: &Client, part: Option<&str>, limit: usize, output: &Output) -> Outcome {
    let query = part.map(|part| format!("&text={}", segment(part))).unwrap_or_default();
    let limit = limit.clamp(1, 1_000);
    let found = items(&client.get(&format!("/api/v1/users?limit={limit}{query}"))?);
    if output.json {
        return output.value(&found);
    }
    if found.is_empty() {
        output.note("no users");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| {
            vec![
                text(one, "id"),
                text(one, "status"),
                text(one, "device_id"),
                number(one, "sessions"),
                text(one, "seen_at"),
            ]
        })
        .collect();
    output.table(&["USER", "STATUS", "DEVICE", "SESSIONS", "LAST SEEN"], &rows)
}

fn show(client: &Client, path: &str, output: &Output) -> Outcome {
    let user = client.get(path)?;
    let sessions = client.get_all(&format!("{path}/sessions"))?;
    if output.json {
        return output.value(&json!({ "user": user, "sessions": sessions }));
    }
    output.line(&format!("{}  {}", text(&user, "id"), text(&user, "status")))?;
    if user["block"].is_object() {
        output.line(&format!("blocked: {}", text(&user["block"], "reason")))?;
    }
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|one| {
            vec![
                text(one, "id"),
                text(one, "device_id"),
                text(one, "ip_address"),
                text(one, "opened_at"),
                text(one, "seen_at"),
            ]
        })
        .collect();
    output.table(&["SESSION", "DEVICE", "ADDRESS", "OPENED", "LAST SEEN"], &rows)
}
