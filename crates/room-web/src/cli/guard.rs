//! `tidegate room guard`: the server with its reverse proxy enabled by flags.

use clap::Args;

use web::cli::{Action, Context, Failure, Outcome};
use web::config::value::Rate;

/// Flags of the guard. Each is a setting of `[guard]`, except `--dashboard`.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Address and port for visitors, 127.0.0.1:8080 unless set
    // The global flag of this name is for dashboard and API. One of the same id replaces it in
    // the help of this command; its value arrives in `Global::listen` all the same.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address and port for dashboard and API, 127.0.0.1:7070 unless set
    #[arg(long, value_name = "ADDRESS")]
    dashboard: Option<String>,
    /// URL of the site: http://127.0.0.1:3000, https://shop.internal
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Certificate authorities (PEM) that verify a site over https, instead of the system's
    #[arg(long, value_name = "FILE")]
    origin_ca: Option<String>,
    /// Rate of admission: 10/s, 500/m, 2000/h, 5/10s
    #[arg(long)]
    rate: Option<Rate>,
    /// Visitors admitted or active at once; 0 is no limit
    #[arg(long, value_name = "NUMBER")]
    max_active: Option<u32>,
    /// Queue of the visitors; created if it does not exist
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// While the store is unavailable: let new visitors through (open) or turn them away (closed)
    #[arg(long, value_parser = ["open", "closed"])]
    when_down: Option<String>,
    /// Host sent to the site: the visitor's (keep) or its own (origin)
    #[arg(long, value_parser = ["keep", "origin"])]
    host: Option<String>,
    /// A queue of its own for a part of the site: /checkout=checkout, tickets.example=tickets
    /// (repeatable)
    #[arg(long, value_name = "PART=QUEUE")]
    route: Vec<String>,
    /// Path that needs no pass; /static/* stands for all below it (repeatable)
    #[arg(long, value_name = "PATH")]
    open_path: Vec<String>,
    /// Network that needs no pass, such as 10.0.0.0/8 (repeatable)
    #[arg(long, value_name = "NETWORK")]
    open_network: Vec<String>,
    /// File with tokens; programs that send one as X-WR-Bypass need no pass
    #[arg(long, value_name = "FILE")]
    bypass_file: Option<String>,
}

pub(crate) fn run(flags: &GuardArgs, context: &Context<'_>) -> Outcome<Action> {
    let mut sources = context.sources()?;
    // Here `--listen` means visitors; `--dashboard` moves dashboard and API.
    sources.flags.retain(|(_, _, flag)| flag != "--listen");
    let visitors = flags.listen.as_ref().or(context.global.listen.as_ref());
    for (name, flag, value) in [
        ("guard.listen", "--listen", visitors),
        ("http.listen", "--dashboard", flags.dashboard.as_ref()),
    ] {
        if let Some(value) = value {
            sources.flags.push((name.to_owned(), value.clone(), flag.to_owned()));
        }
    }
    let rate = flags.rate.map(|rate| format!("{}/{}s", rate.count, rate.per_seconds));
    // Lists given by flags extend those set elsewhere.
    let set = web::cli::load(&sources)?;
    let list = |name: &str, more: &[String]| {
        let before = set.values.get(name).map(|given| given.text.as_str());
        let all = before.into_iter().chain(more.iter().map(String::as_str));
        (!more.is_empty())
            .then(|| all.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(","))
    };
    let named = [
        ("guard.origin", "--origin", flags.origin.clone()),
        ("guard.rate", "--rate", rate),
        ("guard.max_active", "--max-active", flags.max_active.map(|most| most.to_string())),
        ("guard.queue", "--queue", flags.queue.clone()),
        ("guard.when_down", "--when-down", flags.when_down.clone()),
        ("guard.host", "--host", flags.host.clone()),
        ("guard.origin_ca", "--origin-ca", flags.origin_ca.clone()),
        ("guard.routes", "--route", list("guard.routes", &flags.route)),
        ("guard.open_paths", "--open-path", list("guard.open_paths", &flags.open_path)),
        ("guard.open_networks", "--open-network", list("guard.open_networks", &flags.open_network)),
        ("guard.bypass_file", "--bypass-file", flags.bypass_file.clone()),
    ];
    for (name, flag, value) in named {
        if let Some(value) = value {
            sources.flags.push((name.to_owned(), value, flag.to_owned()));
        }
    }
    let loaded = web::cli::load(&sources)?;
    if loaded.values.get("guard.origin").is_none_or(|given| given.text.is_empty()) {
        return Err(Failure::usage("no site to guard: --origin is missing")
            .next("tidegate room guard --origin http://127.0.0.1:3000"));
    }
    Ok(Action::Serve { sources, listen_flag: "--dashboard" })
}
