//! What can be said on the command line: nouns, then verbs. Each help page starts with examples.
//!
//! A new noun gets a variant in [`Command`], a file in `cli/` with its verbs, and a line in
//! [`run`]. Commands about data talk to the running server through `client.rs`, because the
//! built-in store has one owner.

mod config;
mod jobs;
#[cfg(test)]
mod reference;
mod room;
mod store;
pub(crate) mod token;

pub(crate) use jobs::supervisor::{ARGUMENT as SUPERVISE, run as supervise};

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::load::{Loaded, Sources};
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::{client, demo, doctor, serve};

/// Flow control for whatever arrives faster than it can be served.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    before_help = "Examples:
  tidegate                                   run everything, data in ./tidegate-data
  tidegate demo                              the same with made-up traffic, to look around
  tidegate serve --only room --store redis://10.0.0.5
  tidegate room create sale --rate 500/m     a waiting room that lets in 500 a minute
  tidegate jobs dispatch mail '{\"to\":\"ann\"}'  a job for whoever takes its type
  tidegate room guard --origin http://127.0.0.1:3000 --rate 500/m --max-active 1000
  tidegate doctor                            look for what could go wrong
  tidegate config show --origin              every setting and where it came from
  tidegate token create --role operator --name 'on call'",
    after_help = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 not allowed, 5 unreachable.
Documentation: /docs on the running server.",
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Read this TOML file instead of looking in the usual places
    #[arg(long, global = true, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    /// Set any setting: --set http.max_body=4mb (again for more)
    #[arg(long, global = true, value_name = "NAME=VALUE", help_heading = "Configuration")]
    pub(crate) set: Vec<String>,
    /// Where the data is: embedded:PATH, redis://…, redis+sentinel://…, redis+cluster://…
    #[arg(long, global = true, value_name = "URL", help_heading = "Configuration")]
    pub(crate) store: Option<String>,
    /// Folder for the built-in store and the admin token
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Configuration")]
    pub(crate) data: Option<String>,
    /// Address and port for dashboard and API
    #[arg(long, global = true, value_name = "ADDRESS", help_heading = "Configuration")]
    pub(crate) listen: Option<String>,
    /// Run only these services: room, jobs
    #[arg(long, global = true, value_name = "SERVICES", help_heading = "Configuration")]
    pub(crate) only: Option<String>,
    /// Talk to the server at this URL instead of the local one
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TIDEGATE_SERVER",
        help_heading = "Talking to a server"
    )]
    pub(crate) server: Option<String>,
    /// Read the token from this file instead of the data folder (or TIDEGATE_TOKEN)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Talking to a server")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates (PEM) by which a server over https is known, instead of the usual ones
    #[arg(long, global = true, value_name = "FILE", help_heading = "Talking to a server")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print only data and errors
    #[arg(long, short, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// No colours; NO_COLOR does the same
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) no_color: bool,
}

/// The nouns.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the services (what `tidegate` alone does)
    #[command(before_help = "Examples:
  tidegate serve
  tidegate serve --listen 0.0.0.0:7070 --data /var/lib/tidegate
  tidegate serve --only jobs --store redis+sentinel://s1,s2,s3/mymaster")]
    Serve,
    /// Run everything with made-up traffic, in a store that is thrown away
    #[command(before_help = "Examples:
  tidegate demo                              a ticket sale and the work behind it, live
  tidegate demo --listen 127.0.0.1:0         on any free port
  tidegate demo --store redis://127.0.0.1    on a server, where the data stays")]
    Demo,
    /// Look for what could go wrong, and say how to fix it
    #[command(before_help = "Examples:
  tidegate doctor
  tidegate doctor --store redis://10.0.0.5 --json")]
    Doctor,
    /// Ask a running server whether it can do its work
    #[command(before_help = "Examples:
  tidegate health                            exit code 0: ready, 1: not ready, 5: no answer
  tidegate health --server https://tidegate.example --json")]
    Health,
    /// Show and check the configuration
    #[command(before_help = "Examples:
  tidegate config show --origin
  tidegate config check --config /etc/tidegate/tidegate.toml
  tidegate config reference                  every setting with default, unit and bounds")]
    Config {
        #[command(subcommand)]
        verb: config::Verb,
    },
    /// Manage the tokens that people and programs log in with
    #[command(before_help = "Examples:
  tidegate token ls
  tidegate token create --role worker --name 'mail worker' --scope jobs:type=mail
  tidegate token revoke 4f2a91c07b3e
  tidegate token reset-admin")]
    Token {
        #[command(subcommand)]
        verb: token::Verb,
    },
    /// Run waiting rooms: make and change queues, let people in, watch
    #[command(before_help = "Examples:
  tidegate room ls
  tidegate room create spring-sale --rate 500/m --max-active 1000 --target https://shop.example/
  tidegate room pause spring-sale
  tidegate room admit spring-sale 50
  tidegate room watch spring-sale")]
    Room {
        #[command(subcommand)]
        verb: room::Verb,
    },
    /// Dispatch jobs, look at them, steer them, and work on them with any command
    #[command(before_help = "Examples:
  tidegate jobs dispatch mail '{\"to\":\"ann@example.org\"}'
  tidegate jobs exec --type mail -- ./send-mail.sh
  tidegate jobs ls --state waiting
  tidegate jobs dead
  tidegate jobs tail")]
    Jobs {
        #[command(subcommand)]
        verb: jobs::Verb,
    },
    /// Serve and check the built-in store
    #[command(before_help = "Examples:
  tidegate store serve --listen 127.0.0.1:6400
  tidegate store check /var/lib/tidegate/store")]
    Store {
        #[command(subcommand)]
        verb: store::Verb,
    },
    /// Print completions for a shell
    #[command(before_help = "Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Reads the command line; wrong usage ends the process with code 2.
pub(crate) fn parse() -> Cli {
    Cli::parse()
}

/// Does what was asked.
pub(crate) fn run(cli: Cli, output: &Output) -> Outcome {
    let global = &cli.global;
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(global.sources()?, output),
        Command::Demo => demo::run(global, output),
        Command::Doctor => doctor::run(global, output),
        Command::Health => health(global, output),
        Command::Config { verb } => config::run(verb, global, output),
        Command::Token { verb } => token::run(verb, global, output),
        Command::Room { verb } => room::run(verb, global, output),
        Command::Jobs { verb } => jobs::run(verb, global, output),
        Command::Store { verb } => store::run(verb, global, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
            output.text(&String::from_utf8_lossy(&script))
        }
    }
}

fn health(global: &Global, output: &Output) -> Outcome {
    let (ready, told) = client::ready(global)?;
    if output.json {
        output.value(&told)?;
    }
    let reasons: Vec<String> = told["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|check| check["ok"] == false)
        .map(|check| {
            let text = |name: &str| check[name].as_str().unwrap_or("?").to_owned();
            format!("{}: {}", text("name"), text("reason"))
        })
        .collect();
    match ready {
        true if output.json => Ok(()),
        true => output.line("ready"),
        false => Err(Failure::failed(format!("not ready: {}", reasons.join("; ")))
            .next("tidegate doctor, and the server's log")),
    }
}

impl Global {
    /// Where settings come from, given these flags and the environment.
    pub(crate) fn sources(&self) -> Outcome<Sources> {
        let mut flags = Vec::new();
        let named = [
            ("store.url", "--store", &self.store),
            ("server.data", "--data", &self.data),
            ("http.listen", "--listen", &self.listen),
            ("server.only", "--only", &self.only),
        ];
        for pair in &self.set {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Failure::usage(format!("--set {pair}: write --set section.name=value"))
                    .next("tidegate config reference")
            })?;
            flags.push((name.trim().to_owned(), value.trim().to_owned(), "--set".to_owned()));
        }
        for (name, flag, value) in named {
            if let Some(value) = value {
                flags.push((name.to_owned(), value.clone(), flag.to_owned()));
            }
        }
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(Sources { file: self.config.clone(), flags, env })
    }

    /// The settings, or all mistakes in them.
    pub(crate) fn load(&self) -> Outcome<Loaded> {
        load(&self.sources()?)
    }
}

/// The settings, or all mistakes in them.
pub(crate) fn load(sources: &Sources) -> Outcome<Loaded> {
    sources.load().map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|p| format!("\n  {p}")).collect();
        Failure::new(Exit::Usage, format!("the configuration has mistakes:{}", told.concat()))
            .next("tidegate config reference   (every setting with its values)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples_before_anything_else() {
        fn walk(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                let parent = command.get_before_help().map(ToString::to_string).unwrap_or_default();
                let own = sub.get_before_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    own.starts_with("Examples:") || parent.contains(path.trim()),
                    "{path} has no examples"
                );
                walk(sub, &path);
            }
        }
        walk(&Cli::command(), "tidegate");
    }
}
