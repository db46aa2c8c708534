//! The query log from the command line: search and tail.

use std::io::BufRead as _;

use clap::Args;
use serde_json::Value;
use web::cli::client::{Client, value_of};
use web::cli::{Failure, Outcome, Output, Tone, segment, text};

/// Selects queries.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Text in the name
    name: Option<String>,
    /// Text in the client's address or id
    #[arg(long)]
    client: Option<String>,
    /// Only this type
    #[arg(long = "type", value_name = "TYPE")]
    rtype: Option<String>,
    /// Only this outcome: blocked, cached, upstream, local, …
    #[arg(long)]
    outcome: Option<String>,
    /// Text in the list or rule that decided
    #[arg(long)]
    list: Option<String>,
    /// Text in the answer
    #[arg(long)]
    answer: Option<String>,
    /// Earliest time, such as 2026-11-17T09:00:00Z
    #[arg(long, alias = "since", value_name = "TIME")]
    from: Option<String>,
    /// Time before which queries were answered
    #[arg(long, alias = "until", value_name = "TIME")]
    to: Option<String>,
}

impl LogArgs {
    fn query(&self) -> String {
        let fields = [
            ("name", &self.name),
            ("client", &self.client),
            ("type", &self.rtype),
            ("outcome", &self.outcome),
            ("list", &self.list),
            ("answer", &self.answer),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let given = fields
            .iter()
            .filter_map(|(name, value)| Some(format!("&{name}={}", segment(value.as_deref()?))));
        given.collect()
    }
}

/// A search.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    #[command(flatten)]
    select: LogArgs,
    /// Most queries to show
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

pub(super) fn search(client: &Client, args: &SearchArgs, output: &Output) -> Outcome {
    let path = format!("/api/v1/dns/queries?limit={}{}", args.limit, args.select.query());
    let found = client.get(&path)?;
    let items = found["items"].as_array().cloned().unwrap_or_default();
    if output.json {
        return output.value(&items);
    }
    let rows: Vec<Vec<String>> = items.iter().map(cells).collect();
    output.table(&HEAD, &rows)?;
    let silent = found["silent_instances"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = silent.iter().filter_map(Value::as_str).collect();
    if !names.is_empty() {
        output.note(&format!("did not answer in time: {}", names.join(", ")));
    }
    Ok(())
}

const HEAD: [&str; 8] = ["TIME", "CLIENT", "NAME", "TYPE", "OUTCOME", "ANSWER", "BY", "MS"];

fn cells(item: &Value) -> Vec<String> {
    let client = match text(item, "client_id") {
        id if id.is_empty() => text(item, "client"),
        id => id,
    };
    let answer = match text(item, "answer") {
        answer if answer.is_empty() => text(item, "rcode"),
        answer => answer,
    };
    let by = match text(item, "list") {
        list if list.is_empty() => text(item, "upstream"),
        list => list,
    };
    vec![
        text(item, "answered_at"),
        client,
        text(item, "name"),
        text(item, "type"),
        text(item, "outcome"),
        answer,
        by,
        item["duration_ms"].to_string(),
    ]
}

pub(super) fn tail(client: &Client, select: &LogArgs, output: &Output) -> Outcome {
    let path = format!("/api/v1/dns/queries/tail?{}", select.query().trim_start_matches('&'));
    let stream = client.follow(&path, None)?;
    for line in stream.lines() {
        let line =
            line.map_err(|error| Failure::unreachable(format!("the stream broke off: {error}")))?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let item = value_of(data);
        if !item["name"].is_string() {
            output.note("some queries were too many to show");
            continue;
        }
        if output.json {
            output.line(data)?;
            continue;
        }
        let cells = cells(&item);
        let tone = match item["outcome"].as_str() {
            Some("blocked" | "rebinding") => Tone::Bad,
            Some("upstream_error" | "refused" | "invalid" | "rate_limited") => Tone::Warn,
            _ => Tone::Dim,
        };
        let get = |index: usize| cells.get(index).map_or("", String::as_str);
        output.line(&format!(
            "{}  {:<20} {:<6} {:<40} {} {}",
            output.paint(Tone::Dim, get(0)),
            get(1),
            get(3),
            get(2),
            output.paint(tone, get(4)),
            get(5)
        ))?;
    }
    Ok(())
}
