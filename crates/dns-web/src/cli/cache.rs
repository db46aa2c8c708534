//! `tidegate dns cache`.

use clap::Subcommand;
use serde_json::{Value, json};
use web::cli::client::Client;
use web::cli::{Failure, Outcome, Output, number, segment, text};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheSubcommand {
    /// Show both tiers, hits and refreshes; the default
    Stats,
    /// Show the cached answers of a name
    Find {
        /// The name
        name: String,
        /// Only this type
        #[arg(long = "type", value_name = "TYPE")]
        rtype: Option<String>,
    },
    /// Delete the answers of a name, so that upstreams are queried again
    Delete {
        /// The name
        name: String,
        /// Only this type
        #[arg(long = "type", value_name = "TYPE")]
        rtype: Option<String>,
    },
    /// Query the upstreams again for the cached answers of a name
    Refresh {
        /// The name
        name: String,
        /// Only this type
        #[arg(long = "type", value_name = "TYPE")]
        rtype: Option<String>,
    },
    /// Sweep now: drop what expired, keep the limit, refresh what is about to expire
    Sweep,
    /// Delete all answers, on all instances
    Clear {
        /// Really do it
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(client: &Client, verb: Option<CacheSubcommand>, output: &Output) -> Outcome {
    match verb.unwrap_or(CacheSubcommand::Stats) {
        CacheSubcommand::Stats => stats(client, output),
        CacheSubcommand::Find { name, rtype } => find(client, &name, rtype.as_deref(), output),
        CacheSubcommand::Delete { name, rtype } => delete(client, &name, rtype.as_deref(), output),
        CacheSubcommand::Refresh { name, rtype } => {
            let path = format!("/api/v1/dns/cache/answers/{}/refresh", segment(&name));
            let found = client.post(&with_type(path, rtype.as_deref(), '?'), &json!({}))?;
            if output.json {
                return output.value(&found);
            }
            output
                .note(&format!("refreshed {}", count_of(found["refreshed"].as_u64().unwrap_or(0))));
            Ok(())
        }
        CacheSubcommand::Sweep => {
            let found = client.post("/api/v1/dns/cache/sweep", &json!({}))?;
            if output.json {
                return output.value(&found);
            }
            output.note(&format!(
                "refreshed {}, removed {}",
                count_of(found["refreshed"].as_u64().unwrap_or(0)),
                count_of(
                    found["removed_cold"].as_u64().unwrap_or(0)
                        + found["removed_above_cap"].as_u64().unwrap_or(0)
                )
            ));
            Ok(())
        }
        CacheSubcommand::Clear { yes } => clear(client, yes, output),
    }
}

fn stats(client: &Client, output: &Output) -> Outcome {
    let found = client.get("/api/v1/dns/cache")?;
    if output.json {
        return output.value(&found);
    }
    let stored = match &found["store_answers"] {
        Value::Null => "unknown: the store is unavailable".to_owned(),
        count => count_of(count.as_u64().unwrap_or(0)),
    };
    let limit = match found["store_max_answers"].as_u64().unwrap_or(0) {
        0 => "no limit".to_owned(),
        limit => format!("at most {limit}"),
    };
    let bytes = |name: &str| {
        let (number, unit) =
            web::format::bytes(web::series::float(found[name].as_u64().unwrap_or(0)));
        format!("{number} {unit}")
    };
    let memory = format!(
        "{}, {} of {}",
        count_of(found["memory_answers"].as_u64().unwrap_or(0)),
        bytes("memory_bytes"),
        bytes("memory_max_bytes")
    );
    output.line(&format!("memory  {memory}"))?;
    output.line(&format!("store   {stored}, {limit}"))?;
    let count = |name: &str| number(&found, name);
    output.line(&format!(
        "hits    {} fresh, {} stale",
        count("fresh_hits"),
        count("stale_hits")
    ))?;
    output.line(&format!(
        "refreshed  {} hot, {} warm, {} by the sweep",
        count("hot_refreshes"),
        count("warm_refreshes"),
        count("sweep_refreshes")
    ))
}

fn with_type(path: String, rtype: Option<&str>, joint: char) -> String {
    match rtype {
        Some(rtype) => format!("{path}{joint}type={}", segment(rtype)),
        None => path,
    }
}

fn find(client: &Client, name: &str, rtype: Option<&str>, output: &Output) -> Outcome {
    let path = format!("/api/v1/dns/cache/answers?limit=1000&name={}", segment(name));
    let found = client.get(&with_type(path, rtype, '&'))?;
    let items = found["items"].as_array().cloned().unwrap_or_default();
    if output.json {
        return output.value(&items);
    }
    if items.is_empty() {
        output.note(&format!("nothing is kept of {name}"));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let records = item["records"].as_array().cloned().unwrap_or_default();
            let data: Vec<String> = records.iter().map(|record| text(record, "data")).collect();
            let answer = if data.is_empty() { text(item, "rcode") } else { data.join(", ") };
            let remaining = item["remaining_seconds"].as_u64().unwrap_or(0);
            let fresh = if remaining == 0 { "stale".to_owned() } else { format!("{remaining} s") };
            vec![text(item, "type"), text(item, "tier"), fresh, number(item, "hits"), answer]
        })
        .collect();
    output.table(&["TYPE", "TIER", "FRESH FOR", "HITS", "ANSWER"], &rows)
}

fn delete(client: &Client, name: &str, rtype: Option<&str>, output: &Output) -> Outcome {
    let path = format!("/api/v1/dns/cache/answers/{}", segment(name));
    let found = client.delete(&with_type(path, rtype, '?'))?;
    done(&found, output)
}

fn clear(client: &Client, yes: bool, output: &Output) -> Outcome {
    if !yes {
        return Err(Failure::usage("this deletes all answers, on all instances")
            .next("tidegate dns cache clear --yes"));
    }
    done(&client.post("/api/v1/dns/cache/clear", &json!({}))?, output)
}

fn done(found: &Value, output: &Output) -> Outcome {
    if output.json {
        return output.value(found);
    }
    output.note(&format!("deleted {}", count_of(found["deleted"].as_u64().unwrap_or(0))));
    Ok(())
}

/// A number of answers, for people.
fn count_of(answers: u64) -> String {
    match answers {
        1 => "1 answer".to_owned(),
        answers => format!("{answers} answers"),
    }
}
