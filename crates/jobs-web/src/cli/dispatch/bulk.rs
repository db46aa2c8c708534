//! `tidegate jobs dispatch --bulk`: one job per line, some hundred in each call.
//!
//! Invariants: no line is dispatched twice, because each has an idempotency key made of the key of the
//! run and its number, so that a call without an answer can be repeated; a run that stops says which
//! lines are in and how to go on. A file is read to its end before the first job is dispatched: a line
//! that is not JSON is found while nothing has happened yet.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::{count_of, joined};
use super::text;
use web::cli::Output;
use web::cli::Progress;
use web::cli::client::Client;
use web::cli::{Exit, Failure, Outcome};

/// Most jobs and most bytes of one call: below the largest body that servers accept by
/// default.
const JOBS: usize = 500;
const BYTES: usize = 512 * 1024;
/// Retries of a call without an answer, and the delay before each.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// A line to dispatch.
struct InputLine {
    number: u64,
    body: String,
}

/// The fields of a job that make a repeated dispatch harmless.
#[derive(Deserialize)]
struct Identity {
    id: Option<IgnoredAny>,
    idempotency_key: Option<IgnoredAny>,
}

/// Reads a line as a job. One that has neither an id nor a key of its own gets a key of this run.
fn parse(number: u64, line: &str, key: &str) -> Outcome<Option<InputLine>> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| {
        Failure::usage(format!("line {number} {why}"))
            .next("one job per line, such as {\"type\":\"mail\",\"payload\":{}}")
    };
    let body: &RawValue =
        serde_json::from_str(line).map_err(|error| wrong(format!("is not JSON: {error}")))?;
    if !line.starts_with('{') {
        return Err(wrong("is not a JSON object".to_owned()));
    }
    // Whatever else is wrong with it is for the server to say, which answers for each job.
    let identity = serde_json::from_str(body.get()).ok();
    let keyed = match identity {
        Some(Identity { id: None, idempotency_key: None }) => {
            let own = json!({ "idempotency_key": format!("{key}:{number}") }).to_string();
            let own = if is_empty_object(line) { own } else { joined(&own, line) };
            Some(own)
        }
        _ => None,
    };
    Ok(Some(InputLine { number, body: keyed.unwrap_or_else(|| line.to_owned()) }))
}

fn is_empty_object(line: &str) -> bool {
    line.chars().filter(|c| !c.is_whitespace()).eq("{}".chars())
}

/// Dispatches the jobs of a file from a line on. A line that is refused does not keep the others; the
/// exit code tells.
pub(super) fn run(
    client: &Client,
    file: &str,
    key: Option<&str>,
    from: u64,
    output: &Output,
) -> Outcome {
    let key = key.map_or_else(random_key, str::to_owned);
    let mut total = 0;
    let reader: Box<dyn BufRead> = if file == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let named = |error: std::io::Error| Failure::usage(format!("{file}: {error}"));
        let mut opened = File::open(file).map_err(named)?;
        let about = opened.metadata().map_err(named)?;
        // A pipe or a device has to be taken as it comes.
        if about.is_file() {
            total = about.len();
            check(BufReader::new(&opened), &key, from)?;
            opened.rewind().map_err(named)?;
        }
        Box::new(BufReader::new(opened))
    };
    let mut run = BulkRun {
        client,
        output,
        again: format!("tidegate jobs dispatch --bulk {file} --idempotency-key {key}"),
        in_until: from.saturating_sub(1),
        dispatched: 0,
        refused: 0,
    };
    let read = Arc::new(AtomicU64::new(0));
    // Where the ids go to the same terminal, they show how far it is.
    let hidden = total == 0 || std::io::stdout().is_terminal();
    let _progress = (!hidden).then(|| {
        let read = read.clone();
        Progress::of_bytes(output, "dispatching", total, move || read.load(Ordering::Relaxed))
    });
    let mut batch = Vec::new();
    let mut bytes = 0;
    for (number, line) in (1..).zip(reader.lines()) {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                run.send(&mut batch)?;
                return Err(run.stopped(Failure::usage(format!("line {number}: {error}"))));
            }
        };
        read.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
        if number < from {
            continue;
        }
        let line = match parse(number, &line, &key) {
            Ok(Some(line)) => line,
            Ok(None) => continue,
            Err(failure) => {
                // What came before it is good, and in order.
                run.send(&mut batch)?;
                return Err(run.stopped(failure));
            }
        };
        if batch.len() >= JOBS || bytes + line.body.len() > BYTES {
            run.send(&mut batch)?;
            bytes = 0;
        }
        bytes += line.body.len();
        batch.push(line);
    }
    run.send(&mut batch)?;
    output.note(&format!("{} dispatched, {} refused", run.dispatched, run.refused));
    match run.refused {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Usage, "1 job was refused; see above")),
        refused => {
            let jobs = count_of(refused);
            Err(Failure::new(Exit::Usage, format!("{jobs} were refused; see above")))
        }
    }
}

fn random_key() -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
    format!("bulk-{random}")
}

/// Reads a file to its end.
fn check(reader: impl BufRead, key: &str, from: u64) -> Outcome {
    for (number, line) in (1..).zip(reader.lines()) {
        let line = line.map_err(|error| Failure::usage(format!("line {number}: {error}")));
        let good = match line {
            Ok(_) if number < from => continue,
            Ok(line) => parse(number, &line, key).map(drop),
            Err(failure) => Err(failure),
        };
        good.map_err(|mut failure| {
            failure.message.push_str("; nothing was dispatched");
            failure
        })?;
    }
    Ok(())
}

/// A run that has dispatched every line up to some number.
struct BulkRun<'a> {
    client: &'a Client,
    output: &'a Output,
    /// The command that goes on.
    again: String,
    /// Every line up to this one has been dispatched or refused.
    in_until: u64,
    dispatched: u64,
    refused: u64,
}

impl BulkRun<'_> {
    /// Dispatches a batch, again if there is no answer, and prints what became of each line.
    fn send(&mut self, batch: &mut Vec<InputLine>) -> Outcome {
        let Some(last) = batch.last().map(|line| line.number) else { return Ok(()) };
        let bodies: Vec<&str> = batch.iter().map(|line| line.body.as_str()).collect();
        let body = format!("{{\"jobs\":[{}]}}", bodies.join(","));
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match self.client.post_text("/api/v1/jobs/bulk", &body) {
                Err(failure) if failure.exit == Exit::Unreachable && tries < TRIES => {
                    std::thread::sleep(PAUSE);
                }
                answer => break answer,
            }
        };
        let answer = answer.map_err(|failure| self.stopped(failure))?;
        let outcomes = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if outcomes.len() != batch.len() {
            let told = "the server's answer does not say what became of each job";
            return Err(self.stopped(Failure::failed(told)));
        }
        for (line, outcome) in batch.drain(..).zip(outcomes) {
            self.tell(line.number, outcome)?;
        }
        self.in_until = last;
        Ok(())
    }

    fn tell(&mut self, line: u64, outcome: &Value) -> Outcome {
        if outcome["id"].is_string() {
            self.dispatched += 1;
        } else {
            self.refused += 1;
            self.output.note(&format!("line {line}: {}", text(outcome, "message")));
        }
        if self.output.json {
            let mut outcome = outcome.clone();
            outcome["line"] = json!(line);
            return self.output.line(&outcome.to_string());
        }
        match outcome["id"].as_str() {
            Some(id) => self.output.line(id),
            None => Ok(()),
        }
    }

    /// Says with a failure which lines are in, and how to go on.
    fn stopped(&self, mut failure: Failure) -> Failure {
        let (dispatched, refused) = (self.dispatched, self.refused);
        let told = match self.in_until {
            0 => "nothing was dispatched before it".to_owned(),
            until => {
                format!("lines up to {until} are done: {dispatched} dispatched, {refused} refused")
            }
        };
        failure.message = format!("{}; {told}", failure.message);
        // Under the same key, what did get in without its answer is not dispatched once more.
        failure.next(format!("{} --from-line {}", self.again, self.in_until + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_identity_gets_one_and_is_otherwise_left_alone() {
        let body = |line: &str| parse(7, line, "k").unwrap().map(|line| line.body);
        assert_eq!(body("  "), None);
        let line = "{\"type\":\"a\",\"payload\":1.10}";
        let keyed = "{\"idempotency_key\":\"k:7\",\"type\":\"a\",\"payload\":1.10}";
        assert_eq!(body(line).as_deref(), Some(keyed));
        assert_eq!(body("{ }").as_deref(), Some("{\"idempotency_key\":\"k:7\"}"));
        for own in ["{\"type\":\"a\",\"id\":\"x\"}", "{\"idempotency_key\":\"y\",\"type\":\"a\"}"] {
            assert_eq!(body(own).as_deref(), Some(own));
        }
        // Wrong in another way: the server says so.
        assert_eq!(body("{\"id\":1,\"id\":2}").as_deref(), Some("{\"id\":1,\"id\":2}"));
        for wrong in ["no", "[1]", "{\"a\":", "7"] {
            assert!(parse(7, wrong, "k").is_err_and(|failure| failure.message.contains("line 7")));
        }
    }
}
