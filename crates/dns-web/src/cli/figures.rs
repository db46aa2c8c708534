//! Single decisions and sums: why, what-if, stats, top.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Outcome, Output, Tone, number, segment, text};

/// A name to explain.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The name
    name: String,
    /// The client, by address or id; this machine if left out
    #[arg(long)]
    client: Option<String>,
    /// The type
    #[arg(long = "type", value_name = "TYPE", default_value = "A")]
    rtype: String,
}

pub(super) fn why(client: &Client, args: &WhyArgs, output: &Output) -> Outcome {
    let mut path =
        format!("/api/v1/dns/why?name={}&type={}", segment(&args.name), segment(&args.rtype));
    if let Some(id) = &args.client {
        path.push_str(&format!("&client={}", segment(id)));
    }
    show(&client.get(&path)?, output)
}

fn show(decision: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(decision);
    }
    let outcome = text(decision, "outcome");
    let tone = if outcome == "blocked" { Tone::Bad } else { Tone::Good };
    let list = text(decision, "list");
    let by = if list.is_empty() { String::new() } else { format!("  by {list}") };
    let line = decision["line"].as_u64().map_or_else(String::new, |line| format!(", line {line}"));
    output.line(&format!("{}{by}{line}", output.paint(tone, &outcome)))?;
    if let Some(rule) = decision["rule"].as_str() {
        output.line(&format!("  {rule}"))?;
    }
    let steps = decision["steps"].as_array().cloned().unwrap_or_default();
    for step in &steps {
        output.line(&format!("{:<10} {}", text(step, "step"), text(step, "result")))?;
    }
    Ok(())
}

/// A name to explain under another policy.
#[derive(Debug, Args)]
pub(crate) struct WhatIfArgs {
    /// The name
    name: String,
    /// File with the policy in JSON, or - for standard input
    file: String,
    /// The client, by address or id; this machine if left out
    #[arg(long)]
    client: Option<String>,
}

pub(super) fn what_if(client: &Client, args: &WhatIfArgs, output: &Output) -> Outcome {
    let policy = super::policy::read_document(&args.file)?;
    let mut body = json!({ "name": args.name, "policy": policy });
    if let Some(id) = &args.client {
        body["client"] = json!(id);
    }
    show(&client.post("/api/v1/dns/what-if", &body)?, output)
}

/// A range of time.
#[derive(Debug, Args)]
pub(crate) struct RangeArgs {
    /// Beginning, such as 2026-11-17T00:00:00Z; 24 hours ago if left out
    #[arg(long, alias = "since", value_name = "TIME")]
    from: Option<String>,
    /// End; now if left out
    #[arg(long, alias = "until", value_name = "TIME")]
    to: Option<String>,
}

fn read(client: &Client, range: &RangeArgs) -> Outcome<Value> {
    let given = [("from", &range.from), ("to", &range.to)];
    let given = given
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", segment(value.as_deref()?))));
    client.get(&format!("/api/v1/dns/statistics?{}", given.collect::<Vec<_>>().join("&")))
}

pub(super) fn stats(client: &Client, range: &RangeArgs, output: &Output) -> Outcome {
    let found = read(client, range)?;
    if output.json {
        return output.value(&found);
    }
    let total = found["queries"].as_u64().unwrap_or(0);
    let share = |name: &str| {
        let part = found[name].as_u64().unwrap_or(0);
        let percent = (part * 100).checked_div(total).unwrap_or(0);
        format!("{part} ({percent} %)")
    };
    output.line(&format!("queries      {total}"))?;
    output.line(&format!("blocked      {}", share("blocked")))?;
    output.line(&format!("from memory  {}", share("memory_hits")))?;
    output.line(&format!("from store   {}", share("store_hits")))?;
    let ms = |name: &str| match found[name].as_u64() {
        Some(0) => "< 1 ms".to_owned(),
        Some(ms) => format!("{ms} ms"),
        None => "–".to_owned(),
    };
    output.line(&format!("p50, p95, p99  {}, {}, {}", ms("p50_ms"), ms("p95_ms"), ms("p99_ms")))
}

/// A table of the statistics.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TopTable {
    /// Names most asked for
    Names,
    /// Names most blocked
    BlockedNames,
    /// Clients with the most queries
    Clients,
    /// Clients with the most blocked queries
    BlockedClients,
    /// Groups
    Groups,
    /// Lists and rules that decided
    Lists,
    /// Upstreams
    Upstreams,
    /// Types
    Types,
    /// Outcomes
    Outcomes,
}

/// A table to show.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The table
    table: TopTable,
    #[command(flatten)]
    range: RangeArgs,
}

pub(super) fn top(client: &Client, args: &TopArgs, output: &Output) -> Outcome {
    let name = match args.table {
        TopTable::Names => "names",
        TopTable::BlockedNames => "blocked_names",
        TopTable::Clients => "clients",
        TopTable::BlockedClients => "blocked_clients",
        TopTable::Groups => "groups",
        TopTable::Lists => "lists",
        TopTable::Upstreams => "upstreams",
        TopTable::Types => "types",
        TopTable::Outcomes => "outcomes",
    };
    let found = read(client, &args.range)?;
    let rows = found[name].as_array().cloned().unwrap_or_default();
    if output.json {
        return output.value(&rows);
    }
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| vec![text(row, "value"), number(row, "queries")]).collect();
    output.table(&["VALUE", "QUERIES"], &rows)
}
