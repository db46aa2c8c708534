//! `tidegate jobs exec`: makes any command a worker.
//!
//! One loop claims; each job runs as a task that feeds the command, renews the lease, and reports
//! what came of it. Invariants: a job is reported once, by its exit code, or handed back; no command
//! outlives this process's grace, nor its job's lease, timeout or cancellation.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{millis, segment, time};
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;

/// How long one call waits for jobs. Short, so that a worker that is told to stop need not wait long
/// for the answer, which may have jobs in it.
const POLL_MS: u64 = 2_000;
/// How much of a log line is kept, and how many lines wait for the next call.
const LINE: usize = 4_000;
const LINES: usize = 200;
/// How much of standard error becomes the error message.
const MESSAGE: usize = 2_000;

/// Exit codes with a meaning of their own.
const SNOOZE: i32 = 75;
const DEAD: i32 = 100;
const GIVE_UP: i32 = 101;

/// Which jobs, and how to run them.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Take jobs of this type (again for more); all if left out
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Name of this worker; host and process if left out
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Its stack, which jobs may ask for
    #[arg(long, default_value = "")]
    stack: String,
    /// Its region, which jobs may ask for
    #[arg(long, default_value = "")]
    region: String,
    /// What it can do, which jobs may ask for (again for more)
    #[arg(long, value_name = "NAME")]
    capability: Vec<String>,
    /// How many commands run at once
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// How long a job is kept without a sign of life; renewed by itself
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    lease: Duration,
    /// How long running commands may go on after a stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    grace: Duration,
    /// How long a command may take to end after SIGTERM, before SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    kill_after: Duration,
    /// How long a job waits whose command ended with code 75
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    snooze_for: Duration,
    /// End when there is nothing left to claim
    #[arg(long)]
    drain: bool,
    /// The command and its arguments, after --
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn lease(text: &str) -> Result<Duration, String> {
    use crate::config::value::Value as _;
    Duration::parse(text, Some(("1s", "1d")))
}

pub(crate) fn run(client: Client, exec: Exec, output: &Output) -> Outcome {
    let program = exec.command.first().map(String::as_str).unwrap_or_default();
    if !runnable(program) {
        return Err(Failure::usage(format!("there is no command {program:?} to run"))
            .next("name a program on the PATH, or a file that may be executed: -- ./work.sh"));
    }
    let name = exec.worker.clone().unwrap_or_else(own_name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let worker = Arc::new(Worker {
        client: Arc::new(client),
        exec,
        name,
        output: *output,
        stop: CancellationToken::new(),
        now: CancellationToken::new(),
    });
    let done = runtime.block_on(worker.work());
    // A call that still waits for its answer ends with the process.
    runtime.shutdown_background();
    done
}

/// Is there such a program?
fn runnable(program: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return executable(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| executable(&folder.join(program)))
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn own_name() -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let host: String = hostname().chars().filter(|c| fits(*c)).take(80).collect();
    format!("{host}-{}", std::process::id())
}

struct Worker {
    client: Arc<Client>,
    exec: Exec,
    name: String,
    output: Output,
    /// No more claims.
    stop: CancellationToken,
    /// Stop running commands.
    now: CancellationToken,
}

#[derive(Debug, Deserialize)]
struct Claimed {
    leases: Vec<Lease>,
    more: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct Lease {
    job: Job,
    token: u64,
    attempt: u32,
}

#[derive(Debug, Clone, Deserialize)]
struct Job {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    payload: Box<RawValue>,
    timeout_ms: Option<u64>,
    retry: Retry,
}

#[derive(Debug, Clone, Deserialize)]
struct Retry {
    attempts: u32,
}

/// Why a command was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Cancelled,
    Lost,
    Timeout,
    Stopping,
}

/// What came of a command.
struct Ended {
    /// Its exit code, or the signal that ended it.
    code: Result<i32, i32>,
    stdout: Vec<u8>,
    /// The end of standard error.
    said: String,
    why: Option<Why>,
}

impl Worker {
    async fn work(self: Arc<Self>) -> Outcome {
        let watch = tokio::spawn(Arc::clone(&self).watch_signals()?);
        let places = Arc::new(Semaphore::new(usize::from(self.exec.concurrency)));
        let mut running = JoinSet::new();
        let (mut trouble, mut reached) = (0_u32, false);
        let finished = loop {
            let place = tokio::select! {
                () = self.stop.cancelled() => break Ok(()),
                place = Arc::clone(&places).acquire_owned() => place.context("places")?,
            };
            drop(place);
            let free = places.available_permits().clamp(1, 128);
            match self.claim(free).await {
                Ok(claimed) => {
                    (trouble, reached) = (0, true);
                    let none = claimed.leases.is_empty() && !claimed.more;
                    for lease in claimed.leases {
                        // There are as many places as were asked for.
                        let place = Arc::clone(&places).acquire_owned().await.context("places")?;
                        let worker = Arc::clone(&self);
                        running.spawn(async move {
                            worker.run(lease).await;
                            drop(place);
                        });
                    }
                    while running.try_join_next().is_some() {}
                    if self.exec.drain && none {
                        break Ok(());
                    }
                }
                Err(failure) if !reached || failure.exit != Exit::Unreachable => {
                    break Err(failure);
                }
                Err(failure) => {
                    trouble += 1;
                    if trouble == 1 {
                        self.output.note(&format!("{}; waiting for it", failure.message));
                    }
                    let wait = Duration::from_millis(500 * u64::from(trouble.min(10)));
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = self.stop.cancelled() => {}
                    }
                }
            }
        };
        // A drain waits for its own jobs as long as they take; a stop gives them the grace.
        let ended = async { while running.join_next().await.is_some() {} };
        tokio::pin!(ended);
        tokio::select! {
            () = &mut ended => {}
            () = async { self.stop.cancelled().await; sleep(self.exec.grace).await } => {
                self.now.cancel();
                ended.await;
            }
        }
        watch.abort();
        let path = format!("/api/v1/jobs/workers/{}", segment(&self.name));
        let client = Arc::clone(&self.client);
        // It falls off the list by itself when it cannot say so.
        let _ = tokio::task::spawn_blocking(move || client.delete(&path)).await;
        finished
    }

    /// The first signal stops claiming, the second stops commands.
    fn watch_signals(self: Arc<Self>) -> Outcome<impl Future<Output = ()> + Send + 'static> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut term = signal(SignalKind::terminate()).context("cannot watch for signals")?;
        let mut int = signal(SignalKind::interrupt()).context("cannot watch for signals")?;
        Ok(async move {
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                if self.stop.is_cancelled() {
                    self.now.cancel();
                } else {
                    self.output
                        .note("stopping; running commands may end, a second signal stops them");
                    self.stop.cancel();
                }
            }
        })
    }

    async fn claim(&self, most: usize) -> Outcome<Claimed> {
        let types = Some(&self.exec.types).filter(|types| !types.is_empty());
        let body = json!({
            "worker": self.name,
            "stack": self.exec.stack,
            "region": self.exec.region,
            "capabilities": self.exec.capability,
            "types": types,
            "most": most,
            "wait_ms": if self.exec.drain { 0 } else { POLL_MS },
            "lease_ms": millis(self.exec.lease),
            "hostname": hostname(),
        });
        let text = self.call("/api/v1/jobs/claim".to_owned(), body).await?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the server's answer does not fit: {error}")))
    }

    /// A call off this thread, with the answer's text.
    async fn call(&self, path: String, body: Value) -> Outcome<String> {
        let client = Arc::clone(&self.client);
        tokio::task::spawn_blocking(move || client.exchange(&path, &body.to_string()))
            .await
            .context("a call broke off")?
    }

    /// A call about a job under this worker's lease.
    async fn about(&self, lease: &Lease, act: &str, mut more: Value) -> Outcome<Value> {
        more["worker"] = json!(self.name);
        more["token"] = json!(lease.token);
        let path = format!("/api/v1/job/{}/{act}", segment(&lease.job.id));
        let text = self.call(path, more).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Runs one job to its end and reports it.
    async fn run(&self, lease: Lease) {
        let started = Instant::now();
        let ended = match self.start(&lease) {
            Ok(child) => self.attend(&lease, child).await,
            Err(error) => {
                self.output.note(&format!("cannot run the command: {error}"));
                // Not the job's fault: somebody else may have the program.
                let _ = self.report(&lease, "release", json!({})).await;
                self.stop.cancel();
                return;
            }
        };
        let took_ms = millis(started.elapsed());
        let (word, done) = self.settle(&lease, &ended, took_ms).await;
        let word = match done {
            Ok(answer) => answer["outcome"].as_str().unwrap_or(word).to_owned(),
            Err(failure) => {
                self.output.note(&format!("job {}: {}", lease.job.id, failure.message));
                "lost".to_owned()
            }
        };
        let line = if self.output.json {
            let code = ended.code.ok();
            json!({ "id": lease.job.id, "type": lease.job.kind, "attempt": lease.attempt,
                    "outcome": word, "exit": code, "took_ms": took_ms })
            .to_string()
        } else {
            let (id, kind, attempt) = (&lease.job.id, &lease.job.kind, lease.attempt);
            format!("{id}  {kind}  attempt {attempt}  {word}  {took_ms} ms")
        };
        // A reader that went away ends the process; the report is out already.
        if let Err(failure) = self.output.line(&line) {
            self.output.note(&failure.message);
        }
    }

    fn start(&self, lease: &Lease) -> std::io::Result<Child> {
        let mut words = self.exec.command.iter();
        let mut command = Command::new(words.next().map(String::as_str).unwrap_or_default());
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command.env("TIDEGATE_JOB_ID", &lease.job.id);
        command.env("TIDEGATE_JOB_TYPE", &lease.job.kind);
        command.env("TIDEGATE_JOB_ATTEMPT", lease.attempt.to_string());
        command.env("TIDEGATE_JOB_RETRIES", lease.job.retry.attempts.to_string());
        if let Some(limit) = lease.job.timeout_ms {
            let now = jiff::Timestamp::now().as_millisecond();
            let deadline = now.saturating_add(i64::try_from(limit).unwrap_or(i64::MAX));
            command.env("TIDEGATE_JOB_TIMEOUT_MS", limit.to_string());
            command.env("TIDEGATE_JOB_DEADLINE_MS", deadline.to_string());
        }
        command.spawn()
    }

    /// Feeds a command, listens to it, keeps its lease, and stops it when it must.
    async fn attend(&self, lease: &Lease, mut child: Child) -> Ended {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let said = Arc::new(Mutex::new(Said::default()));
        let payload = lease.job.payload.clone();
        let feed = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command that does not read its input is free not to.
                let _ = stdin.write_all(payload.get().as_bytes()).await;
                let _ = stdin.write_all(b"\n").await;
            }
        });
        let keep = tokio::spawn(async move {
            let (mut kept, mut chunk) = (Vec::new(), [0; 8192]);
            let Some(mut stdout) = stdout else { return kept };
            while let Ok(count @ 1..) = stdout.read(&mut chunk).await {
                // One more than fits tells that it does not fit; the rest is read and dropped.
                let room = (jobs::RESULT_MAX + 1).saturating_sub(kept.len());
                kept.extend_from_slice(chunk.get(..count.min(room)).unwrap_or_default());
            }
            kept
        });
        let hear = tokio::spawn({
            let said = Arc::clone(&said);
            async move {
                let Some(stderr) = stderr else { return };
                let mut lines = BufReader::new(stderr);
                let mut line = Vec::new();
                while let Ok(1..) = read_line(&mut lines, &mut line).await {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.add(text);
                    line.clear();
                }
            }
        });
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let mut why = None;
        let status = {
            let end = child.wait();
            tokio::pin!(end);
            tokio::select! {
                status = &mut end => status,
                reason = self.guard(lease, &said) => {
                    why = Some(reason);
                    signal(group, Signal::TERM);
                    match timeout(self.exec.kill_after, &mut end).await {
                        Ok(status) => status,
                        Err(_) => {
                            signal(group, Signal::KILL);
                            end.await
                        }
                    }
                }
            }
        };
        feed.abort();
        // What the command left behind may still hold its output open.
        let mut keep = keep;
        let stdout = match timeout(Duration::from_secs(2), &mut keep).await {
            Ok(kept) => kept.unwrap_or_default(),
            Err(_) => {
                signal(group, Signal::KILL);
                timeout(Duration::from_secs(2), keep)
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .unwrap_or_default()
            }
        };
        let _ = timeout(Duration::from_secs(1), hear).await;
        self.flush(lease, &said).await;
        use std::os::unix::process::ExitStatusExt;
        let code = match status {
            Ok(status) => status.code().ok_or_else(|| status.signal().unwrap_or(0)),
            Err(_) => Err(0),
        };
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        Ended { code, stdout, said: said.end(), why }
    }

    /// Renews the lease, passes on what the command says, and ends when it must be stopped.
    async fn guard(&self, lease: &Lease, said: &Mutex<Said>) -> Why {
        let started = Instant::now();
        let limit = lease.job.timeout_ms.map(|ms| started + Duration::from_millis(ms));
        let expired = async {
            match limit {
                Some(limit) => sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        let keep = async {
            let every = self.exec.lease / 3;
            let (mut renewed, mut heard) = (Instant::now(), Instant::now());
            loop {
                sleep(Duration::from_millis(100).min(every)).await;
                let news = said.lock().unwrap_or_else(PoisonError::into_inner).has_news();
                let due =
                    renewed.elapsed() >= every || news && heard.elapsed() >= Duration::from_secs(1);
                if !due {
                    continue;
                }
                heard = Instant::now();
                let answer = if news {
                    self.flush(lease, said).await
                } else {
                    Some(
                        self.about(lease, "renew", json!({ "lease_ms": millis(self.exec.lease) }))
                            .await,
                    )
                };
                match answer {
                    Some(Ok(answer)) if answer["cancelled"] == true => return Why::Cancelled,
                    Some(Ok(_)) => renewed = Instant::now(),
                    Some(Err(failure)) if failure.exit != Exit::Unreachable => return Why::Lost,
                    // Away: what is not renewed in time is somebody else's.
                    Some(Err(_)) if renewed.elapsed() >= self.exec.lease => return Why::Lost,
                    _ => {}
                }
            }
        };
        tokio::select! {
            () = expired => Why::Timeout,
            why = keep => why,
            () = self.now.cancelled() => Why::Stopping,
        }
    }

    /// Sends what the command has said since the last time, if anything.
    async fn flush(&self, lease: &Lease, said: &Mutex<Said>) -> Option<Outcome<Value>> {
        let (lines, progress) = said.lock().unwrap_or_else(PoisonError::into_inner).news();
        let lease_ms = millis(self.exec.lease);
        let mut answer = None;
        if !lines.is_empty() {
            let body = json!({ "lines": lines, "lease_ms": lease_ms });
            answer = Some(self.about(lease, "log", body).await);
        }
        if let Some((percent, message)) = progress {
            let body = json!({ "percent": percent, "message": message, "lease_ms": lease_ms });
            answer = Some(self.about(lease, "progress", body).await);
        }
        answer
    }

    /// Says what came of a job. Which word stands for it, and what the server said.
    async fn settle(
        &self,
        lease: &Lease,
        ended: &Ended,
        took_ms: u64,
    ) -> (&'static str, Outcome<Value>) {
        let failed = |name: String, message: String| json!({ "took_ms": took_ms, "error": { "name": name, "message": message } });
        match (ended.why, ended.code) {
            (Some(Why::Lost), _) => ("lost", Ok(Value::Null)),
            (Some(Why::Cancelled), _) => {
                let body = json!({ "reason": "cancelled while it ran", "took_ms": took_ms });
                ("cancelled", self.report(lease, "stop", body).await.map(|_| Value::Null))
            }
            (Some(Why::Stopping), _) => {
                ("released", self.report(lease, "release", json!({})).await)
            }
            (Some(Why::Timeout), _) => {
                let ms = lease.job.timeout_ms.unwrap_or(0);
                let body = failed("Timeout".to_owned(), format!("it ran longer than {ms} ms"));
                ("failed", self.report(lease, "fail", body).await)
            }
            (None, Ok(0)) if ended.stdout.len() > jobs::RESULT_MAX => {
                let most = jobs::RESULT_MAX;
                let body =
                    failed("BadResult".to_owned(), format!("it printed more than {most} bytes"));
                ("failed", self.report(lease, "fail", body).await)
            }
            (None, Ok(0)) => {
                let body = json!({ "took_ms": took_ms, "result": result(&ended.stdout) });
                ("completed", self.report(lease, "complete", body).await)
            }
            (None, Ok(SNOOZE)) => {
                let body = json!({ "wait_ms": millis(self.exec.snooze_for) });
                ("snoozed", self.report(lease, "snooze", body).await)
            }
            (None, Ok(GIVE_UP)) => {
                let body = json!({ "reason": ended.said, "took_ms": took_ms });
                ("stopped", self.report(lease, "stop", body).await)
            }
            (None, Ok(code)) => {
                let mut body = failed(format!("Exit{code}"), ended.said.clone());
                body["fatal"] = json!(code == DEAD);
                ("failed", self.report(lease, "fail", body).await)
            }
            (None, Err(signal)) => {
                let message = match ended.said.as_str() {
                    "" => format!("ended by signal {signal}"),
                    said => said.to_owned(),
                };
                let body = failed(format!("Signal{signal}"), message);
                ("failed", self.report(lease, "fail", body).await)
            }
        }
    }

    /// Says what came of a job, again and again while the server is away and the lease may hold.
    async fn report(&self, lease: &Lease, act: &str, body: Value) -> Outcome<Value> {
        let until = Instant::now() + self.exec.lease;
        let mut asked = 0;
        loop {
            let answer = self.about(lease, act, body.clone()).await;
            match answer {
                Err(failure) if failure.exit == Exit::Unreachable && Instant::now() < until => {
                    asked += 1;
                    sleep(Duration::from_millis(500)).await;
                }
                // An earlier try may have got through without its answer: then the job is done, and
                // its lease is gone with it.
                Err(failure) if asked > 0 && failure.message.contains("(HTTP 409)") => {
                    return Ok(json!({ "outcome": "reported" }));
                }
                answer => return answer,
            }
        }
    }
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // It may have ended by itself.
        let _ = kill_process_group(group, signal);
    }
}

/// What a command printed, as JSON if it is JSON, else as a text.
fn result(stdout: &[u8]) -> Value {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    match text {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
    }
}

/// Reads a line, at most [`LINE`] bytes of it in one piece.
async fn read_line(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<usize> {
    let most = u64::try_from(LINE).unwrap_or(u64::MAX);
    reader.take(most).read_until(b'\n', line).await
}

/// What a command said on standard error.
#[derive(Debug, Default)]
struct Said {
    /// For the log.
    lines: Vec<String>,
    /// For the error message.
    last: VecDeque<String>,
    progress: Option<(f64, String)>,
}

impl Said {
    fn add(&mut self, line: String) {
        if let Some(told) = line.strip_prefix("::progress ") {
            let (percent, message) = told.trim().split_once(' ').unwrap_or((told.trim(), ""));
            if let Ok(percent) = percent.trim_end_matches('%').parse::<f64>() {
                self.progress = Some((percent, message.trim().to_owned()));
                return;
            }
        }
        {
            use std::io::Write;
            // Nobody can be told that standard error is gone.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        if self.lines.len() < LINES {
            self.lines.push(line.clone());
        }
        self.last.push_back(line);
        while self.last.iter().map(String::len).sum::<usize>() > MESSAGE && self.last.len() > 1 {
            self.last.pop_front();
        }
    }

    fn has_news(&self) -> bool {
        !self.lines.is_empty() || self.progress.is_some()
    }

    fn news(&mut self) -> (Vec<String>, Option<(f64, String)>) {
        (std::mem::take(&mut self.lines), self.progress.take())
    }

    fn end(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        lines.join("\n").trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_json_if_it_can_be_and_text_otherwise() {
        assert_eq!(result(b""), Value::Null);
        assert_eq!(result(b" {\"a\": 1}\n"), json!({ "a": 1 }));
        assert_eq!(result(b"17\n"), json!(17));
        assert_eq!(result(b"hello there\n"), json!("hello there"));
    }

    #[test]
    fn progress_is_taken_out_of_what_is_said() {
        let mut said = Said::default();
        for line in ["one", "::progress 40 half way", "::progress odd", "two"] {
            said.add(line.to_owned());
        }
        assert_eq!(said.end(), "one\n::progress odd\ntwo");
        let (lines, progress) = said.news();
        assert_eq!(lines, ["one", "::progress odd", "two"]);
        assert_eq!(progress, Some((40.0, "half way".to_owned())));
        assert!(!said.has_news());
    }
}
