//! docs/cli.md, written from the command line itself.

use std::fmt::Write;

use clap::Command;

/// The page.
fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    let mut root = super::command().term_width(100);
    root.build();
    // Writing to a String cannot fail, here and below.
    let _ = write!(page, "\n## tidegate\n\n```text\n{}```\n", help(&mut root.clone()));
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        section(&mut page, command, "tidegate", 2);
    }
    page
}

fn section(page: &mut String, command: &Command, parent: &str, depth: usize) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n{} {name}\n\n{about}.\n\n", "#".repeat(depth));
    if let Some(examples) = command.get_before_help() {
        let _ = write!(page, "```sh\n{}\n```\n\n", trimmed(&examples.to_string()));
    }
    let mut own = String::new();
    for argument in command.get_arguments() {
        if argument.is_global_set() || matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let text = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let value =
            argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let takes = argument.get_action().takes_values();
        let spelled = match (argument.get_long(), value) {
            (Some(long), Some(value)) if takes => format!("--{long} <{value}>"),
            (Some(long), _) => format!("--{long}"),
            (None, Some(value)) => format!("<{value}>"),
            (None, None) => argument.get_id().to_string(),
        };
        let _ = writeln!(own, "| `{spelled}` | {text} |");
    }
    if !own.is_empty() {
        let _ = write!(page, "| Argument | |\n|---|---|\n{own}\n");
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        section(page, sub, &name, depth + 1);
    }
}

/// The lines of the examples without their heading and indent.
fn trimmed(examples: &str) -> String {
    let lines = examples.lines().filter(|line| *line != "Examples:");
    lines.map(str::trim).collect::<Vec<_>>().join("\n")
}

fn help(command: &mut Command) -> String {
    let help = command.render_help().to_string();
    help.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask codegen` from crates/tidegate/src/cli.rs. Do not edit. -->
# Command line

Nouns, then verbs. Data goes to standard output, messages to standard error; `-o json` (or `--json`) prints
JSON, `-o tsv` tab-separated values, `--watch` prints a list again and again; `NO_COLOR` or `--no-color` leaves colours out. Commands about data talk to the running server, found
through the data folder or named with `--server`, with the token from the data folder,
`--token-file` or `TIDEGATE_TOKEN`.

| Exit code | Means |
|---|---|
| 0 | done |
| 1 | tried and failed |
| 2 | wrong usage: flags, settings, input |
| 3 | not found |
| 4 | the credential is missing, wrong, or not enough |
| 5 | the server or the store cannot be reached |
| 6 | a limit denied what was asked (`desk limits check`) |
";

#[test]
fn the_command_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let made = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == made, "docs/cli.md is out of date: run `cargo xtask codegen`");
}
