//! The policy from the command line: pause and resume, allow and block, rules, lists, groups, clients,
//! records, and the whole document.

use std::io::Read as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, Tone, segment, text};
use web::config::value::Value as _;

/// Whom a command is about.
#[derive(Debug, Args)]
pub(crate) struct ScopeArgs {
    /// Only this group
    #[arg(long, value_name = "GROUP", conflicts_with = "client")]
    group: Option<String>,
    /// Only this client, by id or address
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
}

impl ScopeArgs {
    fn into_body(self, mut body: Value) -> Value {
        if let Some(group) = self.group {
            body["group"] = json!(group);
        }
        if let Some(client) = self.client {
            body["client"] = json!(client);
        }
        body
    }

    fn shown(body: &Value) -> String {
        match (body["group"].as_str(), body["client"].as_str()) {
            (Some(group), _) => format!("for group {group}"),
            (_, Some(client)) => format!("for client {client}"),
            _ => "for everybody".to_owned(),
        }
    }
}

/// A time such as `10m`, for a flag.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    Duration::parse(text, Some(("1s", "30d")))
}

/// A pause to begin.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Length, such as 10m or 1h
    #[arg(value_name = "TIME", value_parser = time)]
    length: Duration,
    #[command(flatten)]
    scope: ScopeArgs,
}

pub(super) fn pause(client: &Client, args: PauseArgs, output: &Output) -> Outcome {
    let body = args.scope.into_body(json!({ "duration_seconds": args.length.as_secs().max(1) }));
    let made = client.post("/api/v1/dns/pauses", &body)?;
    if output.json {
        return output.value(&made);
    }
    let ends = text(&made, "ends_at");
    output.note(&format!("filtering is paused {} until {ends}", ScopeArgs::shown(&made)));
    Ok(())
}

pub(super) fn resume(client: &Client, scope: ScopeArgs, output: &Output) -> Outcome {
    let path = match (&scope.group, &scope.client) {
        (Some(group), _) => format!("/api/v1/dns/pauses?group={}", segment(group)),
        (_, Some(id)) => format!("/api/v1/dns/pauses?client={}", segment(id)),
        _ => "/api/v1/dns/pauses".to_owned(),
    };
    let ended = client.delete(&path)?;
    if output.json {
        return output.value(&ended);
    }
    output.note(match ended["ended"].as_u64() {
        Some(0) | None => "nothing was paused",
        _ => "filtering again",
    });
    Ok(())
}

/// A name to allow or to block.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The name, with all names below it
    name: String,
    /// Only for so long, such as 1h; it ends by itself
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    length: Option<Duration>,
    /// Take the rule back
    #[arg(long, conflicts_with = "length")]
    undo: bool,
    #[command(flatten)]
    scope: ScopeArgs,
}

pub(super) fn decide(client: &Client, action: &str, args: NameArgs, output: &Output) -> Outcome {
    let name = args.name.trim_end_matches('.').to_ascii_lowercase();
    let rule = if action == "allow" { format!("@@||{name}^") } else { format!("||{name}^") };
    if args.undo {
        let mut path = format!("/api/v1/dns/rules?rule={}", segment(&rule));
        if let Some(group) = &args.scope.group {
            path.push_str(&format!("&group={}", segment(group)));
        }
        client.delete(&path)?;
        output.note(&format!("the rule {rule} is removed"));
        return Ok(());
    }
    let made = match args.length {
        Some(length) => {
            let body = json!({ "name": name, "action": action, "duration_seconds": length.as_secs().max(1) });
            client.post("/api/v1/dns/timed-rules", &args.scope.into_body(body))?
        }
        None if args.scope.client.is_some() => {
            return Err(Failure::usage("a rule for one client needs an end")
                .next("add --for 1h, or put the client into a group of its own"));
        }
        None => client.post("/api/v1/dns/rules", &args.scope.into_body(json!({ "rule": rule })))?,
    };
    if output.json {
        return output.value(&made);
    }
    let verb = if action == "allow" { "allowed" } else { "blocked" };
    let end = match made["ends_at"].as_str() {
        Some(end) => format!(" until {end}"),
        None => String::new(),
    };
    output.note(&format!("{name} is {verb} {}{end}", ScopeArgs::shown(&made)));
    Ok(())
}

/// Parts of the policy that have an id.
#[derive(Debug, Subcommand)]
pub(crate) enum PartSubcommand {
    /// List them; the default
    #[command(alias = "list")]
    Ls,
    /// Add one, or replace it: fields as JSON, @FILE, or - for standard input
    Put {
        /// Id
        id: String,
        /// The fields
        fields: String,
    },
    /// Remove one
    Rm {
        /// Id
        id: String,
    },
}

/// Lists a part of the policy, with these fields as columns.
pub(super) fn parts(
    client: &Client,
    part: &str,
    columns: &[&str],
    verb: Option<PartSubcommand>,
    output: &Output,
) -> Outcome {
    let path = format!("/api/v1/dns/{part}");
    match verb.unwrap_or(PartSubcommand::Ls) {
        PartSubcommand::Ls => list(client, &path, columns, output),
        PartSubcommand::Put { id, fields } => {
            let fields = read_json(&fields)?;
            let made = client.put_text(&format!("{path}/{}", segment(&id)), &fields.to_string())?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("{id} is in place"));
            Ok(())
        }
        PartSubcommand::Rm { id } => {
            client.delete(&format!("{path}/{}", segment(&id)))?;
            output.note(&format!("{id} is removed"));
            Ok(())
        }
    }
}

fn list(client: &Client, path: &str, columns: &[&str], output: &Output) -> Outcome {
    let items = client.get_all(path)?;
    if output.json {
        return output.value(&items);
    }
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let texts = items.iter().map(|item| match item {
                Value::String(text) => text.clone(),
                other => other["id"].as_str().unwrap_or("…").to_owned(),
            });
            texts.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    let rows: Vec<Vec<String>> =
        items.iter().map(|item| columns.iter().map(|name| cell(&item[*name])).collect()).collect();
    let head: Vec<String> = columns.iter().map(|name| name.to_uppercase()).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    output.table(&head, &rows)
}

/// Rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RulesSubcommand {
    /// List them; the default
    #[command(alias = "list")]
    Ls,
    /// Add a rule in the syntax of AdGuard
    Add {
        /// The rule, such as '||ads.example^'
        rule: String,
        /// Only for this group
        #[arg(long)]
        group: Option<String>,
    },
    /// Remove a rule
    Rm {
        /// The rule, as it was added
        rule: String,
        /// The group it holds for
        #[arg(long)]
        group: Option<String>,
    },
}

pub(super) fn rules(client: &Client, verb: Option<RulesSubcommand>, output: &Output) -> Outcome {
    match verb.unwrap_or(RulesSubcommand::Ls) {
        RulesSubcommand::Ls => list(client, "/api/v1/dns/rules", &["rule", "group"], output),
        RulesSubcommand::Add { rule, group } => {
            let mut body = json!({ "rule": rule });
            if let Some(group) = group {
                body["group"] = json!(group);
            }
            let made = client.post("/api/v1/dns/rules", &body)?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("{} holds {}", text(&made, "rule"), ScopeArgs::shown(&made)));
            Ok(())
        }
        RulesSubcommand::Rm { rule, group } => {
            let mut path = format!("/api/v1/dns/rules?rule={}", segment(&rule));
            if let Some(group) = group {
                path.push_str(&format!("&group={}", segment(&group)));
            }
            client.delete(&path)?;
            output.note(&format!("{rule} is removed"));
            Ok(())
        }
    }
}

/// Records answered here.
#[derive(Debug, Subcommand)]
pub(crate) enum RecordsSubcommand {
    /// List them; the default
    #[command(alias = "list")]
    Ls,
    /// Add a record
    Add {
        /// The name, or *.NAME for all names below it
        name: String,
        /// The type, such as A or CNAME
        #[arg(value_name = "TYPE")]
        record_type: String,
        /// The data, as in a zone file
        value: String,
        /// TTL in seconds
        #[arg(long)]
        ttl: Option<u32>,
    },
    /// Remove the records of a name, or some of them
    Rm {
        /// The name
        name: String,
        /// Only this type
        #[arg(value_name = "TYPE")]
        record_type: Option<String>,
        /// Only this data
        value: Option<String>,
    },
}

pub(super) fn records(
    client: &Client,
    verb: Option<RecordsSubcommand>,
    output: &Output,
) -> Outcome {
    match verb.unwrap_or(RecordsSubcommand::Ls) {
        RecordsSubcommand::Ls => {
            list(client, "/api/v1/dns/records", &["name", "type", "ttl_seconds", "value"], output)
        }
        RecordsSubcommand::Add { name, record_type, value, ttl } => {
            let mut body = json!({ "name": name, "type": record_type, "value": value });
            if let Some(ttl) = ttl {
                body["ttl_seconds"] = json!(ttl);
            }
            let made = client.post("/api/v1/dns/records", &body)?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("{name} is answered here"));
            Ok(())
        }
        RecordsSubcommand::Rm { name, record_type, value } => {
            let mut path = format!("/api/v1/dns/records?name={}", segment(&name));
            for (field, given) in [("type", record_type), ("value", value)] {
                if let Some(given) = given {
                    path.push_str(&format!("&{field}={}", segment(&given)));
                }
            }
            client.delete(&path)?;
            output.note(&format!("{name} is no longer answered here"));
            Ok(())
        }
    }
}

/// Reads JSON given as such, as @FILE or as - for standard input.
fn read_json(given: &str) -> Outcome<Value> {
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("{given}: {error}"));
    let text = match given.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| wrong(&error))?,
        None if given == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| wrong(&error))?;
            text
        }
        None => given.to_owned(),
    };
    serde_json::from_str(&text).map_err(|error| wrong(&error))
}

/// A policy document in a file.
#[derive(Debug, Args)]
pub(crate) struct DocumentArgs {
    /// File with the document in JSON, or - for standard input
    file: String,
}

/// Reads a policy document from a file, or from standard input.
pub(super) fn read_document(file: &str) -> Outcome<Value> {
    let given = if file == "-" { "-".to_owned() } else { format!("@{file}") };
    let document = read_json(&given)?;
    // What `export` writes may be given as it is.
    Ok(match document.get("policy") {
        Some(policy) => policy.clone(),
        None => document,
    })
}

/// Shows what a document would change; true if something would.
fn show_plan(client: &Client, policy: &Value, output: &Output) -> Outcome<Value> {
    let plan = client.post("/api/v1/dns/policy/plan", &json!({ "policy": policy }))?;
    if output.json {
        return Ok(plan);
    }
    let differences = plan["differences"].as_array().cloned().unwrap_or_default();
    for one in &differences {
        output.line(&output.paint(Tone::Strong, &text(one, "field")))?;
        for (sign, tone, value) in
            [("-", Tone::Bad, &one["before"]), ("+", Tone::Good, &one["after"])]
        {
            if !value.is_null() {
                output.line(&output.paint(tone, &format!("  {sign} {value}")))?;
            }
        }
    }
    if differences.is_empty() {
        output.note("nothing would change");
    }
    Ok(plan)
}

pub(super) fn plan(client: &Client, args: &DocumentArgs, output: &Output) -> Outcome {
    let plan = show_plan(client, &read_document(&args.file)?, output)?;
    if output.json { output.value(&plan) } else { Ok(()) }
}

pub(super) fn apply(client: &Client, args: &DocumentArgs, output: &Output) -> Outcome {
    let policy = read_document(&args.file)?;
    let plan = show_plan(client, &policy, output)?;
    if plan["is_empty"] == true {
        return if output.json { output.value(&plan) } else { Ok(()) };
    }
    let body = json!({ "version": plan["version"], "policy": policy });
    let saved = client.put_text("/api/v1/dns/policy", &body.to_string())?;
    if output.json {
        return output.value(&saved);
    }
    output.note(&format!("the policy has version {} now", saved["version"]));
    Ok(())
}
