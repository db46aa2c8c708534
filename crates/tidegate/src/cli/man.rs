//! packaging/man: manual pages, written from the command line itself. One page for the program, one for each
//! noun with all its verbs.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Command};

/// Returns the pages by file name.
fn pages() -> BTreeMap<String, String> {
    let mut root = super::command();
    root.build();
    let nouns: Vec<&Command> =
        root.get_subcommands().filter(|command| command.get_name() != "help").collect();
    let mut pages = BTreeMap::new();
    pages.insert("tidegate.1".to_owned(), program(&root, &nouns));
    for noun in nouns {
        pages.insert(format!("tidegate-{}.1", noun.get_name()), page(noun));
    }
    pages
}

/// Writes the page of the program.
fn program(root: &Command, nouns: &[&Command]) -> String {
    let mut out = head("tidegate", root);
    out.push_str(
        ".SH SYNOPSIS\n.B tidegate\n[\\fIOPTIONS\\fR] [\\fICOMMAND\\fR]\n.SH DESCRIPTION\n",
    );
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "{}.", roff(&about(root)));
    out.push_str(
        "Without a command it runs everything, with the data in ./tidegate-data.\n.SH COMMANDS\n",
    );
    for noun in nouns {
        let _ = writeln!(
            out,
            ".TP\n.BR tidegate\\-{} (1)\n{}",
            roff(noun.get_name()),
            roff(&about(noun))
        );
    }
    out.push_str(".SH OPTIONS\n");
    options(&mut out, root, |_| true);
    examples(&mut out, root);
    out.push_str(EXIT_STATUS);
    out.push_str(FILES);
    out.push_str(".SH SEE ALSO\n");
    let others: Vec<String> =
        nouns.iter().map(|noun| format!(".BR tidegate\\-{} (1)", roff(noun.get_name()))).collect();
    let _ = writeln!(
        out,
        "{}\n.PP\nThe documentation is at /docs on the running server.",
        others.join(",\n")
    );
    out
}

/// Writes the page of a noun.
fn page(noun: &Command) -> String {
    let name = noun.get_name();
    let mut out = head(&format!("tidegate-{name}"), noun);
    let verbs: Vec<&Command> =
        noun.get_subcommands().filter(|command| command.get_name() != "help").collect();
    out.push_str(".SH SYNOPSIS\n");
    let _ = writeln!(out, "{}", usage(noun));
    let _ = writeln!(out, ".SH DESCRIPTION\n{}.", roff(&about(noun)));
    options(&mut out, noun, |argument| !argument.is_global_set());
    examples(&mut out, noun);
    if !verbs.is_empty() {
        out.push_str(".SH COMMANDS\n");
        for verb in verbs {
            section(&mut out, verb, &format!("tidegate {name}"));
        }
    }
    out.push_str(".SH COMMON OPTIONS\n");
    options(&mut out, noun, Arg::is_global_set);
    out.push_str(EXIT_STATUS);
    out.push_str(".SH SEE ALSO\n.BR tidegate (1)\n");
    out
}

/// Writes a verb, and those below it.
fn section(out: &mut String, verb: &Command, parent: &str) {
    let path = format!("{parent} {}", verb.get_name());
    let _ = writeln!(out, ".SS {}\n{}.\n.PP\n{}", roff(&path), roff(&about(verb)), usage(verb));
    options(out, verb, |argument| !argument.is_global_set());
    if let Some(after) = verb.get_after_help() {
        let _ = writeln!(out, ".PP\n.nf\n{}\n.fi", roff(&after.to_string()));
    }
    if let Some(text) = example_lines(verb) {
        let _ = writeln!(out, ".PP\nExamples:\n.PP\n.RS 4\n.nf\n{text}\n.fi\n.RE");
    }
    for sub in verb.get_subcommands().filter(|command| command.get_name() != "help") {
        section(out, sub, &path);
    }
}

fn head(name: &str, command: &Command) -> String {
    format!(
        ".\\\" Written by `cargo xtask codegen` from the command line. Do not edit.\n\
         .TH {} 1 \"\" \"Tidegate {}\" \"Tidegate\"\n.SH NAME\n{} \\- {}\n",
        roff(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION"),
        roff(name),
        roff(&about(command))
    )
}

fn about(command: &Command) -> String {
    let text = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.trim_end_matches('.').to_owned()
}

fn usage(command: &Command) -> String {
    let text = command.clone().render_usage().to_string();
    format!(".nf\n{}\n.fi", roff(text.trim_start_matches("Usage: ").trim_end()))
}

/// Writes the arguments that are shown in the help.
fn options(out: &mut String, command: &Command, wanted: impl Fn(&Arg) -> bool) {
    for argument in command.get_arguments().filter(|argument| wanted(argument)) {
        if argument.is_hide_set() || matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let takes = argument.get_action().takes_values();
        let value =
            argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let value = value.filter(|_| takes).map(|value| format!(" \\fI{}\\fR", roff(&value)));
        let value = value.unwrap_or_default();
        let spelled = match (argument.get_short(), argument.get_long()) {
            (Some(short), Some(long)) => {
                format!("\\fB\\-{short}\\fR, \\fB\\-\\-{}\\fR{value}", roff(long))
            }
            (None, Some(long)) => format!("\\fB\\-\\-{}\\fR{value}", roff(long)),
            _ => format!("\\fI{}\\fR", roff(&argument.get_id().to_string().to_uppercase())),
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, ".TP\n{spelled}\n{}", roff(&help));
    }
}

fn examples(out: &mut String, command: &Command) {
    if let Some(text) = example_lines(command) {
        let _ = writeln!(out, ".SH EXAMPLES\n.nf\n{text}\n.fi");
    }
}

fn example_lines(command: &Command) -> Option<String> {
    let text = command.get_before_help()?.to_string();
    let lines: Vec<String> =
        text.lines().filter(|line| *line != "Examples:").map(|line| roff(line.trim())).collect();
    Some(lines.join("\n"))
}

/// Escapes text for roff: backslashes, hyphens that must stay hyphens, and control characters at the start of a
/// line.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

const EXIT_STATUS: &str = "\
.SH EXIT STATUS
.TP
.B 0
done
.TP
.B 1
tried and failed
.TP
.B 2
wrong usage: flags, settings, input
.TP
.B 3
not found
.TP
.B 4
the credential is missing, wrong, or not enough
.TP
.B 5
the server or the store cannot be reached
.TP
.B 6
a limit denied what was asked
";

const FILES: &str = "\
.SH FILES
.TP
.I ./tidegate\\-data
the built\\-in store, the admin token and other secrets, unless \\-\\-data names another folder
.TP
.I ./tidegate.toml, /etc/tidegate/tidegate.toml
settings
.SH ENVIRONMENT
.TP
.B TIDEGATE_SERVER
URL of the server that commands talk to
.TP
.B TIDEGATE_TOKEN
the token to talk to it with
.TP
.B NO_COLOR
prints without colours
";

#[test]
fn every_manual_page_is_up_to_date() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/man"));
    let made = pages();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(folder).unwrap();
        for file in std::fs::read_dir(folder).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        for (name, page) in &made {
            std::fs::write(folder.join(name), page).unwrap();
        }
    }
    let kept: BTreeMap<String, String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(kept == made, "packaging/man is out of date: run `cargo xtask codegen`");
}

#[test]
fn the_manual_pages_can_be_formatted_without_a_warning() {
    use std::io::Write as _;
    use std::process::{Command as Program, Stdio};
    for (name, page) in pages() {
        let mut groff = Program::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-z", "-k"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("groff is installed");
        groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = groff.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "{name}: {told}");
    }
}
