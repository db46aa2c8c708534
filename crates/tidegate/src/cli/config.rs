//! `tidegate config`: show, check, reference.

use clap::Subcommand;
use serde::Serialize;

use web::cli::Context;
use web::cli::Outcome;
use web::cli::Tone;
use web::config::load::find;
use web::config::{reference, sections};

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
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

pub(crate) fn run(verb: ConfigVerb, context: &Context<'_>) -> Outcome {
    let output = context.output;
    match verb {
        ConfigVerb::Show { origin } => show(context, origin),
        ConfigVerb::Check => {
            let loaded = context.load()?;
            let from = loaded.file.map_or_else(
                || "no file; defaults, environment and flags".to_owned(),
                |path| path.display().to_string(),
            );
            output.line(&format!("{} {from}", output.paint(Tone::Good, "good:")))
        }
        ConfigVerb::Reference => output.text(&reference::page(context.services)),
    }
}

fn show(context: &Context<'_>, origin: bool) -> Outcome {
    let output = context.output;
    let loaded = context.load()?;
    if output.json {
        let all: Vec<Shown> = loaded
            .values
            .iter()
            .filter_map(|(name, given)| {
                let setting = find(context.services, name)?;
                Some(Shown {
                    name: setting.name,
                    value: (setting.shown)(&given.text),
                    origin: given.origin.to_string(),
                    default: setting.default,
                    live: setting.live,
                })
            })
            .collect();
        return output.value(&all);
    }
    let mut text = String::new();
    for section in sections(context.services) {
        text.push_str(&format!("[{}]\n", section.name));
        let prefix = format!("{}.", section.name);
        for setting in section.settings {
            let Some(given) = loaded.values.get(setting.name) else { continue };
            let field = setting.name.trim_start_matches(&prefix);
            let shown = toml::Value::String((setting.shown)(&given.text));
            let line = format!("{field} = {shown}");
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
