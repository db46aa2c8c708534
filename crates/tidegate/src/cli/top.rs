//! `tidegate top`: queues, job types, workers and the store on one screen, anew every other second.
//!
//! On a terminal it takes the alternate screen, so that what was there before is back afterwards; `q` ends it.
//! Anywhere else it prints once.

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;
use web::cli::top::{TopSection, lay_out};
use web::cli::{Client, Context, Exit, Failure, Outcome, Output, Tone, interval};

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopScreenArgs {
    /// Time between two screens
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    every: Duration,
    /// Print it once, also on a terminal
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &TopScreenArgs, context: &Context<'_>) -> Outcome {
    let output = context.output;
    let client = Client::new(context)?;
    let interactive = io::stdout().is_terminal() && io::stdin().is_terminal() && !args.once;
    if output.json {
        return output
            .value(&json!({ "server": client.base(), "sections": read(&client, context)? }));
    }
    if !interactive {
        let sections = read(&client, context)?;
        let screen = lay_out(&sections, output, usize::MAX, usize::MAX);
        return output.line(&screen.join("\n"));
    }
    let first = read(&client, context)?;
    let screen = Screen::take(output)?;
    let outcome = follow(&client, context, args, first);
    drop(screen);
    outcome
}

/// Shows screens until a key or a lost terminal ends it.
fn follow(
    client: &Client,
    context: &Context<'_>,
    args: &TopScreenArgs,
    first: Vec<TopSection>,
) -> Outcome {
    let output = context.output;
    let mut sections = first;
    let mut problem: Option<&str> = None;
    loop {
        let (lines, columns) = size();
        let head = format!("tidegate top  {}", client.base());
        let state = match &problem {
            Some(problem) => output.paint(Tone::Bad, problem),
            None => output.paint(Tone::Dim, "q quits"),
        };
        let body = lay_out(&sections, output, lines.saturating_sub(3), columns);
        let mut text =
            format!("\x1b[H{}  {state}\x1b[K\r\n\x1b[K\r\n", output.paint(Tone::Strong, &head));
        text.push_str(
            &body.iter().map(|line| format!("{line}\x1b[K")).collect::<Vec<_>>().join("\r\n"),
        );
        text.push_str("\x1b[J");
        output.text(&text)?;
        if is_ended(args.every)? {
            return Ok(());
        }
        match read(client, context) {
            Ok(read) => (sections, problem) = (read, None),
            // What was last seen stays on the screen.
            Err(failure) if failure.exit == Exit::Unreachable => {
                problem = Some("no answer; trying again");
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Asks every service; one that does not run there has no section.
fn read(client: &Client, context: &Context<'_>) -> Outcome<Vec<TopSection>> {
    let mut sections = Vec::new();
    for service in context.services {
        match service.top(client) {
            Ok(found) => sections.extend(found),
            Err(failure) if failure.exit == Exit::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(sections)
}

fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => (24, 80),
    }
}

/// Waits for a key; true for one that quits, or when nobody is there any more.
fn is_ended(wait: Duration) -> Outcome<bool> {
    let input = io::stdin();
    let mut asked = [PollFd::new(&input, PollFlags::IN)];
    let wait = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(&mut asked, Some(&wait)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(Failure::failed(format!("cannot read the terminal: {error}"))),
    }
    let mut keys = [0; 16];
    let read = input.lock().read(&mut keys).unwrap_or(0);
    // Ctrl-C and Ctrl-D are keys here, because the terminal sends no signals for them.
    let quits = keys.iter().take(read).any(|key| matches!(key, b'q' | b'Q' | 3 | 4));
    Ok(read == 0 || quits)
}

/// The terminal while it is ours; given back as it was.
struct Screen<'a> {
    output: &'a Output,
    before: Termios,
}

impl<'a> Screen<'a> {
    fn take(output: &'a Output) -> Outcome<Screen<'a>> {
        let failed =
            |error| Failure::failed(format!("cannot use the terminal: {error}")).next("--once");
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut ours = before.clone();
        ours.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &ours).map_err(failed)?;
        let screen = Screen { output, before };
        // The alternate screen, without a cursor.
        output.text("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.output.text("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
