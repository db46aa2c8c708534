//! `tidegate token`: ls, create, revoke.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Global;
use crate::client::Client;
use crate::failure::Outcome;
use crate::output::Output;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List all tokens
    Ls,
    /// Make a token; its secret is printed this once
    Create {
        /// What it may do: worker, viewer, operator or admin
        #[arg(long, value_parser = ["worker", "viewer", "operator", "admin"])]
        role: String,
        /// What it is for
        #[arg(long)]
        name: String,
        /// Narrow a worker's token, such as jobs:queue=mail (again for more)
        #[arg(long)]
        scope: Vec<String>,
    },
    /// Revoke a token; its sessions end with it
    Revoke {
        /// Short id, as `tidegate token ls` shows it
        id: String,
    },
}

pub(crate) fn run(verb: Verb, global: &Global, output: &Output) -> Outcome {
    let client = Client::new(global)?;
    match verb {
        Verb::Ls => {
            let answer = client.get("/api/v1/tokens")?;
            if output.json {
                return output.value(&answer["tokens"]);
            }
            let rows: Vec<Vec<String>> = answer["tokens"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|token| {
                    let text = |name: &str| token[name].as_str().unwrap_or_default().to_owned();
                    let scopes = token["scopes"].as_array().into_iter().flatten();
                    let scopes: Vec<&str> = scopes.filter_map(Value::as_str).collect();
                    vec![text("id"), text("role"), text("name"), scopes.join(" ")]
                })
                .collect();
            output.table(&["ID", "ROLE", "NAME", "SCOPES"], &rows)
        }
        Verb::Create { role, name, scope } => {
            let body = json!({ "role": role, "name": name, "scopes": scope });
            let answer = client.post("/api/v1/tokens", &body)?;
            if output.json {
                return output.value(&answer);
            }
            output.note("The secret, shown this once:");
            output.line(answer["secret"].as_str().unwrap_or_default())
        }
        Verb::Revoke { id } => {
            let answer = client.delete(&format!("/api/v1/tokens/{id}"))?;
            if output.json {
                return output.value(&answer);
            }
            output.note(&format!("revoked {}", answer["name"].as_str().unwrap_or(&id)));
            Ok(())
        }
    }
}
