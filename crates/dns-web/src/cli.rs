//! `tidegate dns`: the resolver from the command line.
//!
//! `query.rs` asks a DNS server and needs no token; every other verb is one or two calls of the running
//! server's API. `policy.rs` and `lists.rs` change what is decided, `log.rs` shows what was, `figures.rs` sums it
//! up, `transfer.rs` moves the policy in and out.

mod cache;
mod figures;
mod lists;
mod log;
mod policy;
mod query;
mod transfer;

use clap::{Parser, Subcommand};
use web::cli::client::Client;
use web::cli::{Context, Outcome, Output, text};

/// Query names, and manage the resolver
#[derive(Debug, Parser)]
#[command(
    name = "dns",
    before_help = "Examples:
  tidegate dns query example.org
  tidegate dns block ads.example
  tidegate dns why ads.example
  tidegate dns pause 10m
  tidegate dns tail"
)]
pub(crate) struct DnsCommand {
    #[command(subcommand)]
    pub(crate) verb: DnsSubcommand,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum DnsSubcommand {
    /// Ask a DNS server for a name, the local one if none is named
    #[command(before_help = "Examples:
  tidegate dns query example.org
  tidegate dns query example.org MX --short
  tidegate dns query example.org AAAA --tcp --dnssec
  tidegate dns query example.org --at 9.9.9.9
  tidegate dns query example.org --https --at https://dns.example/dns-query
  tidegate dns query example.org --tls --at 9.9.9.9 --tls-name dns.quad9.net
  tidegate dns query example.org --json | jq -r '.answers[].data'")]
    Query(query::QueryArgs),
    /// Explain what a client gets for a name, and why
    #[command(before_help = "Examples:
  tidegate dns why ads.example
  tidegate dns why games.example --client tablet
  tidegate dns why ads.example --client 192.168.1.20 --type AAAA --json")]
    Why(figures::WhyArgs),
    /// Explain what a client would get under another policy, which is not saved
    #[command(
        name = "what-if",
        before_help = "Examples:
  tidegate dns what-if ads.example new-policy.json
  tidegate dns what-if games.example new-policy.json --client tablet"
    )]
    WhatIf(figures::WhatIfArgs),
    /// Show the figures of a range: queries, blocked share, hits, latency
    #[command(before_help = "Examples:
  tidegate dns stats
  tidegate dns stats --from 2026-11-01T00:00:00Z
  tidegate dns stats --json | jq .blocked")]
    Stats(figures::RangeArgs),
    /// List the most frequent names, clients, lists, upstreams or types
    #[command(before_help = "Examples:
  tidegate dns top names
  tidegate dns top blocked-names --from 2026-11-01T00:00:00Z
  tidegate dns top clients --json")]
    Top(figures::TopArgs),
    /// Watch queries as they are answered, on all instances
    #[command(before_help = "Examples:
  tidegate dns tail
  tidegate dns tail --client 192.168.1.20
  tidegate dns tail --outcome blocked --json | jq -r .name")]
    Tail(log::LogArgs),
    /// Search the query log of all instances
    #[command(before_help = "Examples:
  tidegate dns search shop
  tidegate dns search --client tablet --outcome blocked --limit 200
  tidegate dns search --answer 192.0.2.7 --json")]
    Search(log::SearchArgs),
    /// Lists of names to block or to allow
    #[command(before_help = "Examples:
  tidegate dns lists ls
  tidegate dns lists put ads '{\"url\":\"https://lists.example/ads.txt\"}'
  tidegate dns lists put default '{\"url\":\"embedded:default\"}'
  tidegate dns lists preview new --url https://lists.example/new.txt
  tidegate dns lists refresh
  tidegate dns lists suggestions
  tidegate dns lists rm ads")]
    Lists {
        #[command(subcommand)]
        verb: Option<lists::ListsSubcommand>,
    },
    /// Services that are blocked with a word
    #[command(before_help = "Examples:
  tidegate dns services ls
  tidegate dns services block tiktok --group kids
  tidegate dns services unblock tiktok --group kids")]
    Services {
        #[command(subcommand)]
        verb: Option<lists::ServicesSubcommand>,
    },
    /// Rules of your own, in the syntax of AdGuard
    #[command(before_help = "Examples:
  tidegate dns rules ls
  tidegate dns rules add '||ads.example^'
  tidegate dns rules add '@@||good.example^' --group kids
  tidegate dns rules rm '||ads.example^'")]
    Rules {
        #[command(subcommand)]
        verb: Option<policy::RulesSubcommand>,
    },
    /// Groups of clients
    #[command(before_help = "Examples:
  tidegate dns groups ls
  tidegate dns groups put kids '{\"name\":\"Kids\",\"safe_search\":[\"google\"],\"services\":[{\"id\":\"tiktok\"}]}'
  tidegate dns groups rm kids")]
    Groups {
        #[command(subcommand)]
        verb: Option<policy::PartSubcommand>,
    },
    /// Known clients
    #[command(before_help = "Examples:
  tidegate dns clients ls
  tidegate dns clients put tablet '{\"addresses\":[\"192.168.1.20\"],\"group\":\"kids\"}'
  tidegate dns clients rm tablet")]
    Clients {
        #[command(subcommand)]
        verb: Option<policy::PartSubcommand>,
    },
    /// Records answered here
    #[command(before_help = "Examples:
  tidegate dns records ls
  tidegate dns records add printer.home.arpa A 192.168.1.9
  tidegate dns records rm printer.home.arpa")]
    Records {
        #[command(subcommand)]
        verb: Option<policy::RecordsSubcommand>,
    },
    /// Servers that queries are forwarded to, and their health
    #[command(before_help = "Examples:
  tidegate dns upstreams ls
  tidegate dns upstreams test tls://dns.example --name example.org
  tidegate dns upstreams add tls://dns.example
  tidegate dns upstreams add 192.168.1.1 --domain home.example
  tidegate dns upstreams rm tls://dns.example
  tidegate dns upstreams --json | jq -r '.[] | select(.is_healthy | not) | .server'")]
    Upstreams {
        #[command(subcommand)]
        verb: Option<UpstreamsSubcommand>,
    },
    /// Show what is wrong, and what to do about it
    #[command(before_help = "Examples:
  tidegate dns problems
  tidegate dns problems --json")]
    Problems,
    /// Pause filtering for a while
    #[command(before_help = "Examples:
  tidegate dns pause 10m
  tidegate dns pause 1h --group kids")]
    Pause(policy::PauseArgs),
    /// Filter again
    #[command(before_help = "Examples:
  tidegate dns resume
  tidegate dns resume --group kids")]
    Resume(policy::ScopeArgs),
    /// Allow a name, for good or for a while
    #[command(before_help = "Examples:
  tidegate dns allow good.example
  tidegate dns allow games.example --for 1h --client tablet
  tidegate dns allow good.example --undo")]
    Allow(policy::NameArgs),
    /// Block a name, for good or for a while
    #[command(before_help = "Examples:
  tidegate dns block ads.example
  tidegate dns block video.example --for 2h --group kids
  tidegate dns block ads.example --undo")]
    Block(policy::NameArgs),
    /// Look into the cache, and delete from it
    #[command(before_help = "Examples:
  tidegate dns cache stats
  tidegate dns cache find example.org
  tidegate dns cache find example.org --type AAAA --json
  tidegate dns cache refresh example.org
  tidegate dns cache sweep
  tidegate dns cache delete example.org
  tidegate dns cache clear --yes")]
    Cache {
        #[command(subcommand)]
        verb: Option<cache::CacheSubcommand>,
    },
    /// Show what a policy document would change
    #[command(before_help = "Examples:
  tidegate dns export > policy.json
  tidegate dns plan policy.json")]
    Plan(policy::DocumentArgs),
    /// Put a policy document in place
    #[command(before_help = "Examples:
  tidegate dns apply policy.json
  tidegate dns apply - < policy.json")]
    Apply(policy::DocumentArgs),
    /// Print the policy document
    #[command(before_help = "Examples:
  tidegate dns export > policy.json
  tidegate dns export --portable > for-another-network.json")]
    Export(transfer::ExportArgs),
    /// Import settings of another resolver; reports by line what has no counterpart here
    #[command(before_help = "Examples:
  tidegate dns import AdGuardHome.yaml
  tidegate dns import AdGuardHome.yaml --yes
  tidegate dns import pi-hole-teleporter.tar.gz --replace --yes
  tidegate dns import config.yaml --format beyond-ads-dns --json")]
    Import(transfer::ImportArgs),
    /// Write a profile for Apple devices, or show the name for Android
    #[command(before_help = "Examples:
  tidegate dns profile --client tablet --out tablet.mobileconfig
  tidegate dns profile --address 192.168.1.2 --wifi-exception Office --out home.mobileconfig
  tidegate dns profile --client phone --android
  tidegate dns profile --client tablet --json")]
    Profile(transfer::ProfileArgs),
}

/// Servers that queries are forwarded to.
#[derive(Debug, Subcommand)]
pub(crate) enum UpstreamsSubcommand {
    /// List them; the default
    #[command(alias = "list")]
    Ls,
    /// Ask a server, in use or not
    Test {
        /// The server
        #[arg(value_name = "SERVER")]
        upstream: String,
        /// Name to ask for
        #[arg(long)]
        name: Option<String>,
    },
    /// Add a server to the policy
    Add {
        /// The server
        #[arg(value_name = "SERVER")]
        upstream: String,
        /// Only for queries of this domain and the names below it (repeatable)
        #[arg(long = "domain", value_name = "NAME")]
        domains: Vec<String>,
        /// Only for queries of this group
        #[arg(long, conflicts_with = "domains")]
        group: Option<String>,
    },
    /// Remove a server from the policy
    Rm {
        /// The server
        #[arg(value_name = "SERVER")]
        upstream: String,
        /// The one for queries of this domain
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
        /// The one for queries of this group
        #[arg(long, conflicts_with = "domain")]
        group: Option<String>,
    },
}

pub(crate) fn run(verb: DnsSubcommand, context: &Context<'_>) -> Outcome {
    let output = context.output;
    let verb = match verb {
        DnsSubcommand::Query(query) => return query::run(&query, context),
        verb => verb,
    };
    let client = &Client::new(context)?;
    match verb {
        DnsSubcommand::Query(_) => Ok(()),
        DnsSubcommand::Why(args) => figures::why(client, &args, output),
        DnsSubcommand::WhatIf(args) => figures::what_if(client, &args, output),
        DnsSubcommand::Stats(range) => figures::stats(client, &range, output),
        DnsSubcommand::Top(args) => figures::top(client, &args, output),
        DnsSubcommand::Tail(select) => log::tail(client, &select, output),
        DnsSubcommand::Search(args) => log::search(client, &args, output),
        DnsSubcommand::Lists { verb } => lists::lists(client, verb, output),
        DnsSubcommand::Services { verb } => lists::services(client, verb, output),
        DnsSubcommand::Rules { verb } => policy::rules(client, verb, output),
        DnsSubcommand::Groups { verb } => {
            policy::parts(client, "groups", &["id", "name", "lists", "services"], verb, output)
        }
        DnsSubcommand::Clients { verb } => {
            policy::parts(client, "clients", &["id", "name", "group", "addresses"], verb, output)
        }
        DnsSubcommand::Records { verb } => policy::records(client, verb, output),
        DnsSubcommand::Upstreams { verb } => upstreams(client, verb, output),
        DnsSubcommand::Problems => transfer::problems(client, output),
        DnsSubcommand::Pause(args) => policy::pause(client, args, output),
        DnsSubcommand::Resume(scope) => policy::resume(client, scope, output),
        DnsSubcommand::Allow(args) => policy::decide(client, "allow", args, output),
        DnsSubcommand::Block(args) => policy::decide(client, "block", args, output),
        DnsSubcommand::Cache { verb } => cache::run(client, verb, output),
        DnsSubcommand::Plan(args) => policy::plan(client, &args, output),
        DnsSubcommand::Apply(args) => policy::apply(client, &args, output),
        DnsSubcommand::Export(args) => transfer::export(client, &args, output),
        DnsSubcommand::Import(args) => transfer::import(client, &args, output),
        DnsSubcommand::Profile(args) => transfer::profile(client, &args, output),
    }
}

fn upstreams(client: &Client, verb: Option<UpstreamsSubcommand>, output: &Output) -> Outcome {
    let path = "/api/v1/dns/upstreams";
    match verb.unwrap_or(UpstreamsSubcommand::Ls) {
        UpstreamsSubcommand::Ls => list_upstreams(client, output),
        UpstreamsSubcommand::Test { upstream: server, name } => {
            let body = serde_json::json!({ "server": server, "name": name });
            let found = client.post(&format!("{path}/test"), &body)?;
            if output.json {
                return output.value(&found);
            }
            match found["is_ok"] == true {
                true => output.line(&format!(
                    "{}: {} {}",
                    text(&found, "server"),
                    text(&found, "result"),
                    text(&found, "answer")
                )),
                false => Err(web::cli::Failure::failed(format!(
                    "{}: {}",
                    text(&found, "server"),
                    text(&found, "result")
                ))
                .next("check its address, the network, and the firewall")),
            }
        }
        UpstreamsSubcommand::Add { upstream: server, domains, group } => {
            let body = serde_json::json!({ "address": server, "domains": domains, "group": group });
            let made = client.post(path, &body)?;
            if output.json {
                return output.value(&made);
            }
            output.note(&format!("queries are forwarded to {server}"));
            Ok(())
        }
        UpstreamsSubcommand::Rm { upstream: server, domain, group } => {
            let mut address = format!("{path}?server={}", web::cli::segment(&server));
            for (name, value) in [("domain", domain), ("group", group)] {
                if let Some(value) = value {
                    address.push_str(&format!("&{name}={}", web::cli::segment(&value)));
                }
            }
            client.delete(&address)?;
            output.note(&format!("{server} is removed"));
            Ok(())
        }
    }
}

fn list_upstreams(client: &Client, output: &Output) -> Outcome {
    let items = client.get_all("/api/v1/dns/upstreams")?;
    if output.json {
        return output.value(&items);
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let health = if item["is_healthy"] == true { "healthy" } else { "failing" };
            vec![
                text(item, "server"),
                health.to_owned(),
                web::cli::number(item, "queries"),
                web::cli::number(item, "failures"),
                item["response_ms"]
                    .as_u64()
                    .map_or_else(|| "–".to_owned(), |ms| format!("{ms} ms")),
            ]
        })
        .collect();
    output.table(&["SERVER", "HEALTH", "QUERIES", "FAILURES", "MEAN"], &rows)
}
