//! The command-line kit, shared by the binary and by the commands of services: flags that every
//! command takes, the client of a running server, output, failures.

pub mod admin_token;
pub mod client;
mod failure;
mod json;
mod output;
mod progress;
pub mod top;
mod watch;

use std::path::PathBuf;

use clap::Args;

use crate::config::load::{LoadedConfig, Sources};
use crate::service::Services;

pub use self::client::Client;
pub use self::failure::{Exit, Failure, Outcome};
pub use self::json::{number, segment, text};
pub use self::output::{Output, OutputFormat, Tone};
pub use self::progress::{Progress, size_of};
pub use self::watch::{WatchFlag, interval};

/// Flags that every command takes.
#[derive(Debug, Default, Args)]
pub struct Global {
    /// Read this TOML file instead of looking in the usual places
    #[arg(long, global = true, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Set any setting: --set http.max_body=4mb (repeatable)
    #[arg(long, global = true, value_name = "NAME=VALUE", help_heading = "Configuration")]
    pub set: Vec<String>,
    /// URL of the store: embedded:PATH, redis://…, redis+sentinel://…, redis+cluster://…
    #[arg(long, global = true, value_name = "URL", help_heading = "Configuration")]
    pub store: Option<String>,
    /// Folder for the built-in store and the admin token
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Configuration")]
    pub data: Option<String>,
    /// Address and port for dashboard and API
    #[arg(long, global = true, value_name = "ADDRESS", help_heading = "Configuration")]
    pub listen: Option<String>,
    /// Run only these services, separated by commas
    #[arg(long, global = true, value_name = "SERVICES", help_heading = "Configuration")]
    pub only: Option<String>,
    /// Talk to the server at this URL instead of the local one (or TIDEGATE_SERVER)
    #[arg(long, global = true, value_name = "URL", help_heading = "Talking to a server")]
    pub server: Option<String>,
    /// Read the token from this file instead of the data folder (or TIDEGATE_TOKEN)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Talking to a server")]
    pub token_file: Option<PathBuf>,
    /// Certificate authorities (PEM) to trust for https, instead of the usual ones
    #[arg(long, global = true, value_name = "FILE", help_heading = "Talking to a server")]
    pub ca: Option<PathBuf>,
    /// Print lists as a table, as JSON, or as tab-separated values
    #[arg(long, short, global = true, value_name = "FORMAT", value_enum, help_heading = "Output")]
    pub output: Option<OutputFormat>,
    /// Print JSON; the same as -o json
    #[arg(long, global = true, conflicts_with = "output", help_heading = "Output")]
    pub json: bool,
    /// Print only data and errors
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// No colours; NO_COLOR does the same
    #[arg(long, global = true, help_heading = "Output")]
    pub no_color: bool,
}

impl Global {
    /// Takes from the environment what no flag named. Not by clap, which would show such a flag as a needed one in
    /// the usage of every mistake.
    pub fn fill_from_environment(&mut self) {
        let server = std::env::var("TIDEGATE_SERVER").ok().filter(|url| !url.is_empty());
        self.server = self.server.take().or(server);
    }
}

/// The context of a command.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The flags that every command takes.
    pub global: &'a Global,
    /// Its output.
    pub output: &'a Output,
    /// The services of the product.
    pub services: Services,
}

/// The work left after a command.
#[derive(Debug)]
pub enum Action {
    /// Nothing.
    Done,
    /// Run the server.
    Serve {
        /// The sources of its settings.
        sources: Sources,
        /// The option of the command that moves dashboard and API to another address.
        listen_flag: &'static str,
    },
}

/// Use of a command that talks to no running server. It decides which common flags apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandUse {
    /// Runs a server: where it listens, and on which store.
    Serving,
    /// Works on the data of this machine: settings, store, output.
    Local,
}

impl Context<'_> {
    /// Returns the sources of the settings: flags, environment, file.
    pub fn sources(&self) -> Outcome<Sources> {
        let global = self.global;
        let mut flags = Vec::new();
        let named = [
            ("store.url", "--store", &global.store),
            ("server.data", "--data", &global.data),
            ("http.listen", "--listen", &global.listen),
            ("server.only", "--only", &global.only),
        ];
        for pair in &global.set {
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
        Ok(Sources { services: self.services, file: global.config.clone(), flags, env })
    }

    /// The settings, or all mistakes in them.
    pub fn load(&self) -> Outcome<LoadedConfig> {
        load(&self.sources()?)
    }
}

/// The settings, or all mistakes in them.
pub fn load(sources: &Sources) -> Outcome<LoadedConfig> {
    sources.load().map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|p| format!("\n  {p}")).collect();
        Failure::new(Exit::Usage, format!("the configuration has mistakes:{}", told.concat()))
            .next("tidegate config reference   (every setting with its values)")
    })
}
