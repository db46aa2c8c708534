//! The output of commands. Data goes to standard output, messages to standard error; a reader that
//! went away ends the command without a fuss.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::Global;
use super::{Failure, Outcome};

/// The way a command prints.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON.
    pub json: bool,
    /// Print tab-separated values instead of tables.
    pub tsv: bool,
    quiet: bool,
    color: bool,
}

/// The form of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Columns for people.
    Table,
    /// JSON.
    Json,
    /// Tab-separated values with a head, for spreadsheets and `cut`.
    Tsv,
}

/// Colours, by meaning.
#[derive(Debug, Clone, Copy)]
pub enum Tone {
    /// Green.
    Good,
    /// Red.
    Bad,
    /// Yellow.
    Warn,
    /// Less visible.
    Dim,
    /// Bold.
    Strong,
}

impl Output {
    /// As the flags say.
    pub fn new(global: &Global) -> Output {
        let wanted = !global.no_color && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let tsv = global.output == Some(OutputFormat::Tsv);
        Output {
            json: global.json || global.output == Some(OutputFormat::Json),
            tsv,
            quiet: global.quiet,
            color: wanted && !tsv && io::stdout().is_terminal(),
        }
    }

    /// Plain text without colours, for tests.
    #[cfg(test)]
    pub(crate) fn plain() -> Output {
        Output { json: false, tsv: false, quiet: false, color: false }
    }

    /// Does somebody want to see how far long work is?
    pub fn shows_progress(&self) -> bool {
        !self.quiet && !self.json
    }

    /// Is there nobody left to read standard output? To be asked between two prints that may be far
    /// apart; printing itself finds out by itself.
    pub fn is_unread(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let out = io::stdout();
        let mut asked = [PollFd::new(&out, PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let [fd] = &mut asked;
        poll(std::slice::from_mut(fd), Some(&now)).is_ok()
            && asked.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
    }

    /// Data for standard output.
    pub fn text(&self, text: &str) -> Outcome {
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        match written {
            Ok(()) => Ok(()),
            // The reader has seen enough (`| head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(error) => Err(Failure::failed(format!("cannot write the output: {error}"))),
        }
    }

    /// One line of data.
    pub fn line(&self, line: &str) -> Outcome {
        self.text(&format!("{line}\n"))
    }

    /// Names and values below each other; with `-o tsv` a tab between.
    pub fn pairs(&self, rows: &[(&str, String)]) -> Outcome {
        if self.tsv {
            let rows: Vec<Vec<String>> =
                rows.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
            return self.table(&["NAME", "VALUE"], &rows);
        }
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
        let mut page = String::new();
        for (name, value) in rows {
            let name = self.paint(Tone::Dim, &format!("{name:width$}"));
            page.push_str(format!("{name}{value}").trim_end());
            page.push('\n');
        }
        self.text(&page)
    }

    /// A value as JSON.
    pub fn value(&self, value: &impl Serialize) -> Outcome {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        self.line(&text)
    }

    /// A message to the person, on standard error; silent with `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            // Nobody can be told that standard error is gone.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// The last word of a failed command.
    pub fn failure(&self, failure: &Failure) {
        let mut text = format!("error: {}\n", failure.message);
        if let Some(next) = &failure.next {
            text.push_str(&format!("  try: {next}\n"));
        }
        let _ = io::stderr().write_all(text.as_bytes()); // nobody left to tell
    }

    /// The text in a colour, on a terminal that has colours.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.color {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Warn => "33",
            Tone::Dim => "2",
            Tone::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Rows in columns, with a head.
    pub fn table(&self, head: &[&str], rows: &[Vec<String>]) -> Outcome {
        if self.tsv {
            let line = |cells: &mut dyn Iterator<Item = &str>| {
                // A tab or a line break in a cell would be another cell.
                let plain = |cell: &str| cell.replace(['\t', '\n', '\r'], " ");
                cells.map(plain).collect::<Vec<_>>().join("\t") + "\n"
            };
            let mut text = line(&mut head.iter().copied());
            for row in rows {
                text.push_str(&line(&mut row.iter().map(String::as_str)));
            }
            return self.text(&text);
        }
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(head.get(column).map_or(0, |name| name.len()))
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut text = String::new();
        let mut push = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (cell, width) in cells.zip(&widths) {
                line.push_str(cell);
                let pad = width.saturating_sub(cell.chars().count()) + 2;
                line.extend(std::iter::repeat_n(' ', pad));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        push(&mut head.iter().copied());
        for row in rows {
            push(&mut row.iter().map(String::as_str));
        }
        self.text(&text)
    }
}
