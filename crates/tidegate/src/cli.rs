//! The command line: nouns, then verbs. Each help page starts with examples.
//!
//! The nouns here are about the installation; each service brings its own. Commands about data talk
//! to the running server through `web::cli::client`, because the built-in store has one owner.

mod config;
#[cfg(test)]
mod man;
#[cfg(test)]
mod reference;
mod store;
pub(crate) mod token;
mod top;
pub(crate) mod transfer;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use web::cli::{Action, CommandUse, Context, Failure, Global, Outcome, Output, client};
use web::service::Services;

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
  tidegate top                               queues, jobs, workers and the store on one screen
  tidegate doctor                            look for what could go wrong
  tidegate config show --origin              every setting and where it came from
  tidegate token create --role operator --name 'on call'",
    after_help = "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 not allowed, 5 unreachable, 6 denied by a limit.
Documentation: /docs on the running server.",
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
    /// Show queues, job types, workers and the store on one screen, live
    #[command(before_help = "Examples:
  tidegate top                               q quits
  tidegate top --every 5s
  tidegate top --once | less
  tidegate top --json | jq '.sections[].title'")]
    Top(top::TopScreenArgs),
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
    /// Back up, restore, move and check the store, or serve the built-in one alone
    #[command(before_help = "Examples:
  tidegate store backup monday.tide
  tidegate store restore monday.tide --store redis://127.0.0.1
  tidegate store move embedded:./tidegate-data redis://127.0.0.1
  tidegate store check /var/lib/tidegate/store
  tidegate store serve --listen 127.0.0.1:6400")]
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

/// The whole command line, those of the services included. Each command shows only the common flags that mean
/// something for it.
pub(crate) fn command() -> clap::Command {
    command_of(SERVICES)
}

fn command_of(services: Services) -> clap::Command {
    let nouns = services.iter().filter_map(|service| service.command());
    let mut root = Cli::command()
        .subcommands(nouns)
        .mut_subcommand("token", |token| token::with_scopes(token, services));
    let common: Vec<clap::Arg> =
        root.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
    let names: Vec<String> = root.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        root = root.mut_subcommand(&name, |sub| tailor(sub, &name, &common, services));
    }
    root
}

/// Common flags of commands that run a server.
const SERVING: &[&str] = &["config", "set", "store", "data", "listen", "only", "quiet", "no_color"];
/// Common flags of commands that look at settings or at a store, without a server.
const LOCAL: &[&str] =
    &["config", "set", "store", "data", "listen", "only", "output", "json", "quiet", "no_color"];
/// Common flags of commands that work on a store, without a server.
const STORING: &[&str] = &["config", "set", "store", "data", "output", "json", "quiet", "no_color"];
/// Common flags of commands that talk to a running server.
const TALKING: &[&str] =
    &["config", "data", "server", "token_file", "ca", "output", "json", "quiet", "no_color"];
/// Commands of the installation that are not like those of services, which talk to a server.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("serve", SERVING),
    ("demo", SERVING),
    ("store serve", &["config", "set", "store", "data", "listen", "quiet", "no_color"]),
    ("doctor", LOCAL),
    ("config", LOCAL),
    ("store", STORING),
    ("completions", &[]),
];

/// Returns the common flags that mean something for the command at `path`, if it is an exception.
fn exception(path: &str, services: Services) -> Option<&'static [&'static str]> {
    let of_installation = EXCEPTIONS.iter().find(|(name, _)| *name == path);
    let of_service = || {
        let (noun, words) = path.split_once(' ')?;
        let service = services.iter().find(|service| service.name() == noun)?;
        let (_, used) = service.command_uses().iter().find(|(name, _)| *name == words)?;
        Some(match used {
            CommandUse::Serving => SERVING,
            CommandUse::Local => LOCAL,
        })
    };
    of_installation.map(|(_, shown)| *shown).or_else(of_service)
}

/// Hides the common flags that mean nothing for the command at `path`, and for those below it.
fn tailor(
    command: clap::Command,
    path: &str,
    common: &[clap::Arg],
    services: Services,
) -> clap::Command {
    let exception = exception(path, services);
    let mut command = command;
    if exception.is_some() || !path.contains(' ') {
        let shown = exception.unwrap_or(TALKING);
        for argument in common {
            let is_own = command.get_arguments().any(|own| {
                own.get_id() == argument.get_id() || own.get_long() == argument.get_long()
            });
            if !is_own {
                let is_hidden = !shown.contains(&argument.get_id().as_str());
                let mut argument = argument.clone().hide(is_hidden);
                if path == "store serve" && argument.get_id() == "listen" {
                    argument = argument.help("Address and port for Redis clients");
                }
                command = command.arg(argument);
            }
        }
    }
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}");
        command = command.mut_subcommand(&name, |sub| tailor(sub, &path, common, services));
    }
    command
}

/// Prints the help of the command that the words name; a noun alone asks for it.
fn print_help(words: impl Iterator<Item = String>) -> ! {
    let mut at = command();
    at.build();
    for word in words {
        if let Some(sub) = at.find_subcommand(&word) {
            at = sub.clone();
        }
    }
    // Nobody can be told that standard output is gone.
    let _ = at.print_help();
    std::process::exit(0)
}

/// Does what the command line asks for; wrong usage ends the process with code 2.
pub(crate) fn run() -> Result<(), (Failure, Output)> {
    use clap::error::ErrorKind;
    let matches = command().try_get_matches().unwrap_or_else(|error| match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            print_help(std::env::args().skip(1))
        }
        _ => error.exit(),
    });
    let mut global = match Global::from_arg_matches(&matches) {
        Ok(global) => global,
        Err(error) => error.exit(),
    };
    global.fill_from_environment();
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
        Noun::Top(args) => top::run(&args, context),
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

    /// A service that is in no list: all the command line knows of one comes from its description.
    #[derive(Debug)]
    struct EchoService;

    impl web::service::Service for EchoService {
        fn name(&self) -> &'static str {
            "echo"
        }

        fn summary(&self) -> &'static str {
            "Says what it was told."
        }

        fn nav(&self) -> web::ui::NavItem {
            web::store::StoreService.nav()
        }

        fn scopes(&self) -> &'static [&'static str] {
            &["echo:word=WORD"]
        }

        fn command(&self) -> Option<clap::Command> {
            let verb = clap::Command::new;
            let command = clap::Command::new("echo").about("Says what it was told");
            Some(command.subcommands([verb("say"), verb("proxy"), verb("archive")]))
        }

        fn command_uses(&self) -> &'static [(&'static str, CommandUse)] {
            &[("proxy", CommandUse::Serving), ("archive", CommandUse::Local)]
        }

        fn open<'a>(
            &'a self,
            opening: web::service::Opening<'a>,
        ) -> std::pin::Pin<
            Box<
                dyn Future<Output = Outcome<std::sync::Arc<dyn web::service::RunningService>>>
                    + Send
                    + 'a,
            >,
        > {
            web::store::StoreService.open(opening)
        }
    }

    #[test]
    fn a_fifth_service_brings_its_command_with_its_flags_and_its_scopes() {
        let mut root = command_of(&[&EchoService]);
        root.build();
        let help = |words: &[&str]| {
            let mut at = &root;
            for word in words {
                at = at.find_subcommand(word).unwrap();
            }
            at.clone().render_help().to_string()
        };
        assert!(help(&[]).contains("Says what it was told"));
        assert!(help(&["echo", "say"]).contains("--token-file"));
        let proxy = help(&["echo", "proxy"]);
        assert!(proxy.contains("--listen") && !proxy.contains("--token-file"), "{proxy}");
        let archive = help(&["echo", "archive"]);
        assert!(archive.contains("--store") && archive.contains("--json"), "{archive}");
        assert!(!archive.contains("--token-file"), "{archive}");
        assert!(help(&["token", "create"]).contains("echo:word=WORD"));
    }

    #[test]
    fn a_command_shows_only_flags_that_mean_something_for_it() {
        let mut root = command();
        root.build();
        let help = |words: &[&str]| {
            let found = words.iter().fold(root.clone(), |at, word| {
                at.find_subcommand(word).unwrap_or_else(|| panic!("{words:?}")).clone()
            });
            found.clone().render_long_help().to_string()
        };
        for (words, shown, hidden) in [
            (
                &["room", "create"][..],
                &["--server", "--json", "--data"][..],
                &["--listen", "--only", "--store"][..],
            ),
            (
                &["serve"],
                &["--listen", "--only", "--store"],
                &["--server", "--token-file", "--json"],
            ),
            (&["room", "guard"], &["--listen", "--store"], &["--token-file", "--ca"]),
            (
                &["store", "backup"],
                &["--store", "--json"],
                &["--server", "--ca", "--listen", "--only"],
            ),
            (&["completions"], &[], &["--server", "--store", "--json", "--quiet"]),
        ] {
            let help = help(words);
            for flag in shown {
                assert!(help.contains(flag), "{words:?} {flag}\n{help}");
            }
            for flag in hidden {
                assert!(
                    !help.contains(&format!("{flag} ")) && !help.contains(&format!("{flag}\n")),
                    "{words:?} {flag}\n{help}"
                );
            }
        }
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
