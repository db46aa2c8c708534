//! `tidegate room guard`: the server with its guard switched on, by flags.

use clap::Args;

use crate::cli::Global;
use crate::config::value::Rate;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::serve;

/// What to guard. Every flag is a setting of `[guard]`; `--listen` is where visitors come to.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Where the site is: http://127.0.0.1:3000, https://shop.internal
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Certificates (PEM) by which a site over https is known, instead of the system's
    #[arg(long, value_name = "FILE")]
    origin_ca: Option<String>,
    /// How fast people are let in: 10/s, 500/m, 2000/h, 5/10s
    #[arg(long)]
    rate: Option<Rate>,
    /// People inside at once, those on their way included; 0 is no limit
    #[arg(long, value_name = "NUMBER")]
    max_active: Option<u32>,
    /// The queue visitors wait in; made if it is not there
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// While the store is away: let newcomers through (open) or turn them away (closed)
    #[arg(long, value_parser = ["open", "closed"])]
    when_down: Option<String>,
    /// Which host the site sees: the visitor's (keep) or its own (origin)
    #[arg(long, value_parser = ["keep", "origin"])]
    host: Option<String>,
    /// A queue of its own for a part of the site: /checkout=checkout, tickets.example=tickets
    /// (again for more)
    #[arg(long, value_name = "PLACE=QUEUE")]
    route: Vec<String>,
    /// Path that needs no pass; /static/* stands for all below it (again for more)
    #[arg(long, value_name = "PATH")]
    open_path: Vec<String>,
    /// Network that needs no pass, such as 10.0.0.0/8 (again for more)
    #[arg(long, value_name = "NETWORK")]
    open_network: Vec<String>,
    /// File with tokens; programs that show one as X-WR-Bypass need no pass
    #[arg(long, value_name = "FILE")]
    bypass_file: Option<String>,
}

pub(crate) fn run(flags: &Flags, global: &Global, output: &Output) -> Outcome {
    let mut sources = global.sources()?;
    // Here `--listen` means visitors: dashboard and API stay where the settings say.
    for (name, _, flag) in &mut sources.flags {
        if flag == "--listen" {
            *name = "guard.listen".to_owned();
        }
    }
    let rate = flags.rate.map(|rate| format!("{}/{}s", rate.count, rate.per_seconds));
    // What is named here comes on top of what is set elsewhere.
    let set = crate::cli::load(&sources)?;
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
    let loaded = crate::cli::load(&sources)?;
    if loaded.config.guard.origin.0.is_none() {
        return Err(Failure::usage("there is nothing to guard")
            .next("tidegate room guard --origin http://127.0.0.1:3000"));
    }
    serve::run(sources, output)
}
