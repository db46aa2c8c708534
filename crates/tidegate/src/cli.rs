//! The command line: nouns, then verbs. Each help page starts with examples.
//!
//! The nouns here are about the installation; each service brings its own. Commands about data talk
//! to the running server through `web::cli::client`, because the built-in store has one owner.

mod config;
#[cfg(test)]
mod reference;
mod store;
pub(crate) mod token;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use web::cli::{Action, Context, Failure, Global, Outcome, Output, client};

use crate::services::SERVICES;
use crate::{demo, doctor, logging, serve};

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
    pub(crate) command: Option<Noun>,
}

/// The nouns.
#[derive(Debug, Subcommand)]
pub(crate) enum Noun {
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
        verb: config::ConfigVerb,
    },
    /// Manage the tokens that people and programs log in with
    #[command(before_help = "Examples:
  tidegate token ls
  tidegate token create --role worker --name 'mail worker' --scope jobs:type=mail
  tidegate token revoke 4f2a91c07b3e
  tidegate token reset-admin")]
    Token {
        #[command(subcommand)]
        verb: token::TokenVerb,
    },
    /// Serve and check the built-in store
    #[command(before_help = "Examples:
  tidegate store serve --listen 127.0.0.1:6400
  tidegate store check /var/lib/tidegate/store")]
    Store {
        #[command(subcommand)]
        verb: store::StoreVerb,
    },
    /// Print completions for a shell
    #[command(before_help = "Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The whole command line, those of the services included.
pub(crate) fn command() -> clap::Command {
    let nouns = SERVICES.iter().filter_map(|service| service.command());
    Cli::command().subcommands(nouns)
}

/// Does what the command line asks for; wrong usage ends the process with code 2.
pub(crate) fn run() -> Result<(), (Failure, Output)> {
    let matches = command().get_matches();
    let global = match Global::from_arg_matches(&matches) {
        Ok(global) => global,
        Err(error) => error.exit(),
    };
    let output = Output::new(&global);
    let context = Context { global: &global, output: &output, services: SERVICES };
    dispatch(&matches, &context).map_err(|failure| (failure, output))
}

fn dispatch(matches: &ArgMatches, context: &Context<'_>) -> Outcome {
    if let Some((name, matches)) = matches.subcommand()
        && let Some(service) =
            SERVICES.iter().find(|service| service.name() == name && service.command().is_some())
    {
        if wants_log(context) {
            logging::start(&context.load()?.config.log)?;
        }
        return match service.run_command(matches, context)? {
            Action::Done => Ok(()),
            Action::Serve { sources, listen_flag } => {
                serve::run(sources, context.output, listen_flag)
            }
        };
    }
    let cli = Cli::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    match cli.command.unwrap_or(Noun::Serve) {
        Noun::Serve => serve::run(context.sources()?, context.output, "--listen"),
        Noun::Demo => demo::run(context),
        Noun::Doctor => doctor::run(context),
        Noun::Health => health(context),
        Noun::Config { verb } => config::run(verb, context),
        Noun::Token { verb } => token::run(verb, context),
        Noun::Store { verb } => store::run(verb, context),
        Noun::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "tidegate", &mut script);
            context.output.text(&String::from_utf8_lossy(&script))
        }
    }
}

/// A server logs always, a command of a service only when the level was named for it.
fn wants_log(context: &Context<'_>) -> bool {
    let by_flag =
        |pair: &String| pair.split('=').next().is_some_and(|name| name.trim() == "log.level");
    context.global.set.iter().any(by_flag) || std::env::var_os("TIDEGATE_LOG_LEVEL").is_some()
}

fn health(context: &Context<'_>) -> Outcome {
    let output = context.output;
    let (ready, told) = client::ready(context)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
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
        walk(&super::command(), "tidegate");
    }
}
