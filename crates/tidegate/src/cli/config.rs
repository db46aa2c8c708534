//! `tidegate config`: show, check, reference.

use clap::Subcommand;
use serde::Serialize;

use super::Global;
use crate::config::load::{find, shown};
use crate::config::{SECTIONS, reference};
use crate::failure::Outcome;
use crate::output::{Output, Tone};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print every setting as TOML
    Show {
        /// Say where each value came from
        #[arg(long)]
        origin: bool,
    },
    /// Check the configuration and change nothing
    Check,
    /// Print the reference page: every setting with default, unit and bounds
    Reference,
}

/// One setting, for `--json`.
#[derive(Debug, Serialize)]
struct Shown {
    name: &'static str,
    value: String,
    origin: String,
    default: &'static str,
    live: bool,
}

pub(crate) fn run(verb: Verb, global: &Global, output: &Output) -> Outcome {
    match verb {
        Verb::Show { origin } => show(global, output, origin),
        Verb::Check => {
            let loaded = global.load()?;
            let from = loaded.file.map_or_else(
                || "no file; defaults, environment and flags".to_owned(),
                |path| path.display().to_string(),
            );
            output.line(&format!("{} {from}", output.paint(Tone::Good, "good:")))
        }
        Verb::Reference => output.text(&reference::page()),
    }
}

fn show(global: &Global, output: &Output, origin: bool) -> Outcome {
    let loaded = global.load()?;
    if output.json {
        let all: Vec<Shown> = loaded
            .values
            .iter()
            .filter_map(|(name, given)| {
                let setting = find(name)?;
                Some(Shown {
                    name: setting.name,
                    value: shown(&given.text),
                    origin: given.origin.to_string(),
                    default: setting.default,
                    live: setting.live,
                })
            })
            .collect();
        return output.value(&all);
    }
    let mut text = String::new();
    for (section, _) in SECTIONS {
        text.push_str(&format!("[{section}]\n"));
        let prefix = format!("{section}.");
        for (name, given) in loaded.values.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let field = name.trim_start_matches(&prefix);
            let line = format!("{field} = {}", toml::Value::String(shown(&given.text)));
            text.push_str(&line);
            if origin {
                let note = format!("# {}", given.origin);
                let pad = 48_usize.saturating_sub(line.chars().count()).max(1);
                text.extend(std::iter::repeat_n(' ', pad));
                text.push_str(&output.paint(Tone::Dim, &note));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    output.text(text.trim_end_matches('\n'))?;
    output.text("\n")
}
