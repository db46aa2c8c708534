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
    /// Where the site is
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
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
    /// Path that needs no pass; one that ends with / stands for all below it (again for more)
    #[arg(long, value_name = "PATH")]
    open_path: Vec<String>,
}

pub(crate) fn run(flags: &Flags, global: &Global, output: &Output) -> Outcome {
    let mut sources = global.sources()?;
    // Here `--listen` means visitors: dashboard and API stay where the settings say.
    for (name, ..) in &mut sources.flags {
        if name == "http.listen" {
            *name = "guard.listen".to_owned();
        }
    }
    let rate = flags.rate.map(|rate| format!("{}/{}s", rate.count, rate.per_seconds));
    let paths = (!flags.open_path.is_empty()).then(|| flags.open_path.join(","));
    let named = [
        ("guard.origin", "--origin", flags.origin.clone()),
        ("guard.rate", "--rate", rate),
        ("guard.max_active", "--max-active", flags.max_active.map(|most| most.to_string())),
        ("guard.queue", "--queue", flags.queue.clone()),
        ("guard.when_down", "--when-down", flags.when_down.clone()),
        ("guard.host", "--host", flags.host.clone()),
        ("guard.open_paths", "--open-path", paths),
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
