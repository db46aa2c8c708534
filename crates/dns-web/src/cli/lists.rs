//! Lists and services from the command line: state, fetch, preview, suggestions; block with a word.

use clap::Subcommand;
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, number, segment, text};

use super::policy::{PartSubcommand, parts};

/// Lists of names.
#[derive(Debug, Subcommand)]
pub(crate) enum ListsSubcommand {
    #[command(flatten)]
    Part(PartSubcommand),
    /// Fetch one now, or all of them
    Refresh {
        /// Id; all if left out
        id: Option<String>,
        /// Put a copy to use that lost more than half of its rules
        #[arg(long, requires = "id")]
        confirmed: bool,
    },
    /// Show what a list would change, against the queries of the last day
    Preview {
        /// Id
        id: String,
        /// Source of a list that is not in use yet
        #[arg(long)]
        url: Option<String>,
        /// Show what would change without the list
        #[arg(long, conflicts_with = "url")]
        off: bool,
    },
    /// Show suggested lists, and what each costs
    Suggestions,
}

pub(super) fn lists(client: &Client, verb: Option<ListsSubcommand>, output: &Output) -> Outcome {
    let part =
        |verb| parts(client, "lists", &["id", "action", "enabled", "url"], Some(verb), output);
    match verb.unwrap_or(ListsSubcommand::Part(PartSubcommand::Ls)) {
        ListsSubcommand::Part(PartSubcommand::Ls) => states(client, output),
        ListsSubcommand::Part(verb) => part(verb),
        ListsSubcommand::Refresh { id, confirmed } => refresh(client, id, confirmed, output),
        ListsSubcommand::Preview { id, url, off } => preview(client, &id, url, !off, output),
        ListsSubcommand::Suggestions => suggestions(client, output),
    }
}

fn states(client: &Client, output: &Output) -> Outcome {
    let items = client.get_all("/api/v1/dns/list-states")?;
    if output.json {
        return output.value(&items);
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let state = match (&item["error"], item["enabled"] == true, item["is_loaded"] == true) {
                (_, false, _) => "off".to_owned(),
                (Value::String(error), ..) => format!("failed: {error}"),
                _ if item["shrunk_to"].is_u64() => "waits for --confirmed".to_owned(),
                (_, _, true) => "in use".to_owned(),
                _ => "not loaded".to_owned(),
            };
            let unique =
                item["unique_names"].as_u64().map_or_else(|| "–".to_owned(), |n| n.to_string());
            vec![text(item, "id"), number(item, "rules"), unique, text(item, "fetched_at"), state]
        })
        .collect();
    output.table(&["ID", "RULES", "ONLY HERE", "FETCHED", "STATE"], &rows)
}

fn refresh(client: &Client, id: Option<String>, confirmed: bool, output: &Output) -> Outcome {
    let Some(id) = id else {
        let found = client.post("/api/v1/dns/list-refreshes", &json!({}))?;
        if output.json {
            return output.value(&found);
        }
        for (field, word) in [
            ("replaced", "replaced"),
            ("unchanged", "unchanged"),
            (
                "need_confirmation",
                "lost more than half of its rules, see lists refresh ID --confirmed",
            ),
            ("failed", "failed"),
        ] {
            for id in found[field].as_array().into_iter().flatten().filter_map(Value::as_str) {
                output.line(&format!("{id}: {word}"))?;
            }
        }
        return Ok(());
    };
    let path = format!("/api/v1/dns/lists/{}/refresh", segment(&id));
    let found = client.post(&path, &json!({ "confirmed": confirmed }))?;
    if output.json {
        return output.value(&found);
    }
    if found["needs_confirmation"] == true {
        return Err(Failure::failed(format!(
            "the new copy of {id} lost more than half of its rules"
        ))
        .next(format!("tidegate dns lists refresh {id} --confirmed")));
    }
    let word = if found["replaced"] == true { "has a new copy" } else { "has nothing new" };
    output.note(&format!("{id} {word}"));
    Ok(())
}

fn preview(
    client: &Client,
    id: &str,
    url: Option<String>,
    enabled: bool,
    output: &Output,
) -> Outcome {
    let mut body = json!({ "enabled": enabled });
    if let Some(url) = url {
        body["url"] = json!(url);
    }
    let found = client.post(&format!("/api/v1/dns/lists/{}/preview", segment(id)), &body)?;
    if output.json {
        return output.value(&found);
    }
    output.note(&format!(
        "of {} queries of the last day, {} more would be blocked and {} fewer",
        found["queries"], found["newly_blocked"], found["no_longer_blocked"]
    ));
    let names = found["names"].as_array().cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|one| {
            vec![
                text(one, "name"),
                text(one, "before"),
                text(one, "after"),
                text(one, "list"),
                number(one, "queries"),
            ]
        })
        .collect();
    output.table(&["NAME", "NOW", "THEN", "BY", "QUERIES"], &rows)
}

fn suggestions(client: &Client, output: &Output) -> Outcome {
    let items = client.get_all("/api/v1/dns/list-suggestions")?;
    if output.json {
        return output.value(&items);
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let used = if item["in_use"] == true { "in use" } else { "" };
            vec![
                text(item, "choice"),
                text(item, "id"),
                match item["names"].is_u64() {
                    true => number(item, "names"),
                    false => format!("< {}", number(item, "names_below")),
                },
                used.to_owned(),
                text(item, "url"),
            ]
        })
        .collect();
    output.table(&["CHOICE", "ID", "NAMES", "", "SOURCE"], &rows)
}

/// Services.
#[derive(Debug, Subcommand)]
pub(crate) enum ServicesSubcommand {
    /// List them, and the groups they are blocked for; the default
    #[command(alias = "list")]
    Ls,
    /// Block a service
    Block {
        /// Id
        id: String,
        /// For this group
        #[arg(long, default_value = "default")]
        group: String,
    },
    /// Stop blocking a service
    Unblock {
        /// Id
        id: String,
        /// For this group
        #[arg(long, default_value = "default")]
        group: String,
    },
}

pub(super) fn services(
    client: &Client,
    verb: Option<ServicesSubcommand>,
    output: &Output,
) -> Outcome {
    let path = |group: &str, id: &str| {
        format!("/api/v1/dns/groups/{}/services/{}", segment(group), segment(id))
    };
    match verb.unwrap_or(ServicesSubcommand::Ls) {
        ServicesSubcommand::Ls => {
            let items = client.get_all("/api/v1/dns/services")?;
            if output.json {
                return output.value(&items);
            }
            let rows: Vec<Vec<String>> = items
                .iter()
                .map(|item| {
                    let groups = item["blocked_groups"].as_array().cloned().unwrap_or_default();
                    let groups: Vec<&str> = groups.iter().filter_map(Value::as_str).collect();
                    vec![text(item, "id"), text(item, "name"), groups.join(", ")]
                })
                .collect();
            output.table(&["ID", "NAME", "BLOCKED FOR"], &rows)
        }
        ServicesSubcommand::Block { id, group } => {
            let made = client.put_text(&path(&group, &id), "{}")?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("{id} is blocked for group {group}"));
            Ok(())
        }
        ServicesSubcommand::Unblock { id, group } => {
            let made = client.delete(&path(&group, &id))?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("{id} is no longer blocked for group {group}"));
            Ok(())
        }
    }
}
