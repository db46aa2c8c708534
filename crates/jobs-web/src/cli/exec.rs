//! `tidegate jobs exec`: makes any command a worker.
//!
//! One loop claims; each job runs as a task that starts the command under a supervisor
//! (`supervisor.rs`), renews the lease, and reports what came of it. Invariants: a job is reported
//! once, by its exit code, or handed back; no command, nor anything it started, outlives this process,
//! its job's report, lease, timeout or cancellation; the result is what the command printed, byte for
//! byte; only the server's word that the lease is lost, or the end of its time, counts as a lost lease.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io::BufRead;
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
use store::trace::{self, SpanKind, TraceContext, TraceSpan};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::supervisor::{self, SupervisorOrder, SupervisorReport};
use super::{millis, segment, time};
use web::cli::Context as CommandContext;
use web::cli::Output;
use web::cli::client::Client;
use web::cli::{Failure, Outcome};

/// Time one call waits for jobs. Short, so that a worker that is told to stop need not wait long
/// for the answer, which may have jobs in it.
const POLL_MS: u64 = 2_000;
/// Most bytes of a log line, and most lines that wait for the next call.
const LINE: usize = 4_000;
const LINES: usize = 200;
/// Bytes of standard error that become the error message, and bytes that are left when the server
/// refuses that.
const MESSAGE: usize = 2_000;
const SHORT_MESSAGE: usize = 100;
/// Most bytes of a progress message.
const PROGRESS_MESSAGE: usize = 500;
/// Most bytes of log lines in one call.
const LOG_CALL_BYTES: usize = 128 * 1024;
/// Time limit for reporting that a command which ran too long was stopped.
const REPORTING: Duration = Duration::from_secs(10);
/// Time one call listens for cancellations. Bounded, so that a connection that has died without a
/// word is found out; the next call begins with all that hold.
const LISTEN: Duration = Duration::from_secs(60);
/// Most cancellations kept for jobs that are not running here yet.
const CANCELLED_MAX: usize = 10_000;
/// Delay before a retry when the system cannot start another process.
const CROWDED: Duration = Duration::from_secs(1);

/// Exit codes with a meaning of their own.
const SNOOZE: i32 = 75;
const DEAD: i32 = 100;
const GIVE_UP: i32 = 101;

/// The jobs to claim, and the command to run for each.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Claim jobs of this type (repeatable); all if left out
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Id of this worker; host and process if left out
    #[arg(long = "worker-id", alias = "worker", value_name = "ID")]
    worker: Option<String>,
    /// Its stack, which jobs may ask for
    #[arg(long, default_value = "")]
    stack: String,
    /// Its region, which jobs may ask for
    #[arg(long, default_value = "")]
    region: String,
    /// Capability that jobs may require (repeatable)
    #[arg(long, value_name = "NAME")]
    capability: Vec<String>,
    /// Number of commands that run at once
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// Length of the lease on a job; renewed while the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    lease: Duration,
    /// Time that running commands have to finish after a stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    grace: Duration,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    kill_after: Duration,
    /// Delay of a job whose command exits with code 75
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    snooze_for: Duration,
    /// Give the command this variable of the environment although its name begins with TIDEGATE_
    /// (repeatable)
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// End when there is nothing left to claim
    #[arg(long)]
    drain: bool,
    /// The command and its arguments, after --
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn lease(text: &str) -> Result<Duration, String> {
    use web::config::value::Value as _;
    Duration::parse(text, Some(("1s", "1d")))
}

pub(crate) fn run(client: Client, exec: Exec, context: &CommandContext<'_>) -> Outcome {
    let (output, otel) = (context.output, context.load()?.config.otel);
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
    let worker = Arc::new(ExecWorker {
        client: Arc::new(client),
        exec,
        name,
        output: *output,
        stop: CancellationToken::new(),
        now: CancellationToken::new(),
        broken: Mutex::default(),
        cancelled: Mutex::default(),
    });
    let name = worker.name.clone();
    let done = runtime.block_on(async {
        let traces = web::otel::start(&otel, &name, "jobs exec");
        let done = worker.work().await;
        if let Some(traces) = traces {
            traces.finish().await;
        }
        done
    });
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

struct ExecWorker {
    client: Arc<Client>,
    exec: Exec,
    name: String,
    output: Output,
    /// No more claims.
    stop: CancellationToken,
    /// Stop running commands.
    now: CancellationToken,
    /// The reason why the command cannot be run at all.
    broken: Mutex<Option<Failure>>,
    /// Jobs that shall stop, by id and token of the lease, with the reason.
    cancelled: Mutex<HashMap<(String, u64), String>>,
}

/// A cancellation, as the server tells it.
#[derive(Debug, Deserialize)]
struct CancellationEvent {
    id: String,
    token: u64,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct ClaimAnswer {
    items: Vec<LeaseAnswer>,
    more: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct LeaseAnswer {
    job: LeasedJob,
    token: u64,
    attempt: u32,
    #[serde(default)]
    traceparent: Option<String>,
}

impl LeaseAnswer {
    /// The trace that its attempt is part of.
    fn trace(&self) -> Option<TraceContext> {
        self.traceparent.as_deref()?.parse().ok()
    }
}

#[derive(Debug, Clone, Deserialize)]
struct LeasedJob {
    id: String,
    #[serde(rename = "type")]
    job_type: String,
    payload: Box<RawValue>,
    timeout_ms: Option<u64>,
    retry: LeasedRetry,
}

#[derive(Debug, Clone, Deserialize)]
struct LeasedRetry {
    attempts: u32,
}

/// The reason why a command was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StopReason {
    /// Somebody cancelled the job, for this reason.
    Cancelled(String),
    Lost,
    Timeout,
    Stopping,
}

/// The result of a command.
struct CommandResult {
    /// Its exit code, or the signal that ended it.
    code: Result<i32, i32>,
    stdout: Vec<u8>,
    /// The end of standard error.
    said: String,
    why: Option<StopReason>,
}

/// The consequence of a refused call for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The lease is not held any more, or the job is gone.
    Gone,
    /// The token does not count, or not for this.
    Credential,
    /// The call is not valid; the same call again would not be either.
    Invalid,
    /// The server is away, busy or broken; later may be better.
    Later,
}

impl Refusal {
    fn of(failure: &Failure) -> Refusal {
        match (failure.status, failure.code.as_deref()) {
            (Some(409), Some("LEASE_LOST" | "JOB_TIMED_OUT")) | (Some(404 | 410), _) => {
                Refusal::Gone
            }
            (Some(401 | 403), _) => Refusal::Credential,
            (Some(408 | 425 | 429), _) => Refusal::Later,
            (Some(400..=499), _) => Refusal::Invalid,
            _ => Refusal::Later,
        }
    }
}

/// A command that runs under its supervisor.
struct RunningCommand {
    supervisor: Child,
    control: UnixStream,
}

impl ExecWorker {
    async fn work(self: Arc<Self>) -> Outcome {
        let watch = tokio::spawn(Arc::clone(&self).watch_signals()?);
        let listener = Arc::clone(&self);
        // It ends with the process, wherever it waits.
        std::thread::Builder::new()
            .spawn(move || listener.listen())
            .context("cannot start a thread")?;
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
                    let none = claimed.items.is_empty() && !claimed.more;
                    for lease in claimed.items {
                        // There are as many places as were asked for.
                        let place = Arc::clone(&places).acquire_owned().await.context("places")?;
                        let trace = self.attempt_trace(&lease);
                        let context = trace.context();
                        let (worker, span) =
                            (Arc::clone(&self), self.attempt_span(&lease, context));
                        let attempt = async move {
                            worker.run(lease, trace).await;
                            drop(place);
                        };
                        running.spawn(trace::scope_if(context, attempt.instrument(span)));
                    }
                    while running.try_join_next().is_some() {}
                    if self.exec.drain && none {
                        break Ok(());
                    }
                }
                Err(failure) if !reached || Refusal::of(&failure) != Refusal::Later => {
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
        match self.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => finished,
        }
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

    /// Listens for cancellations of this worker's jobs, as long as the process runs. Renewals tell of
    /// them as well, but only now and then.
    fn listen(&self) {
        let path = format!("/api/v1/jobs/cancellations?worker_id={}", segment(&self.name));
        loop {
            match self.client.follow(&path, Some(LISTEN)) {
                Ok(reader) => {
                    for line in reader.lines() {
                        // Broken off, or its time is over.
                        let Ok(line) = line else { break };
                        let told = line.strip_prefix("data: ").map(serde_json::from_str);
                        if let Some(Ok(CancellationEvent { id, token, reason })) = told {
                            let mut all =
                                self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
                            if all.len() >= CANCELLED_MAX {
                                all.clear();
                            }
                            all.insert((id, token), reason);
                        }
                    }
                }
                // A server that does not know the call.
                Err(failure) if Refusal::of(&failure) == Refusal::Gone => return,
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    async fn claim(&self, limit: usize) -> Outcome<ClaimAnswer> {
        let types = Some(&self.exec.types).filter(|types| !types.is_empty());
        let body = json!({
            "worker_id": self.name,
            "stack": self.exec.stack,
            "region": self.exec.region,
            "capabilities": self.exec.capability,
            "types": types,
            "limit": limit,
            "wait_ms": if self.exec.drain { 0 } else { POLL_MS },
            "lease_ms": millis(self.exec.lease),
            // A command that ran too long is stopped here, and that takes a while.
            "timeout_grace_ms": millis(self.exec.kill_after + REPORTING).min(600_000),
            "hostname": hostname(),
            "slots": self.exec.concurrency,
        });
        let text = self.call("/api/v1/jobs/claim".to_owned(), body.to_string().into()).await?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the server's answer does not fit: {error}")))
    }

    /// A call off this thread, with the answer's text.
    async fn call(&self, path: String, body: Arc<str>) -> Outcome<String> {
        let (client, context) = (Arc::clone(&self.client), trace::current());
        let call = move || trace::sync_scope(context, || client.exchange(&path, &body));
        tokio::task::spawn_blocking(call).await.context("a call broke off")?
    }

    /// The body of a call about a job under this worker's lease.
    fn body(&self, lease: &LeaseAnswer, mut more: Value) -> String {
        more["worker_id"] = json!(self.name);
        more["token"] = json!(lease.token);
        more.to_string()
    }

    /// A call about a job under this worker's lease.
    async fn about(&self, lease: &LeaseAnswer, act: &str, body: Arc<str>) -> Outcome<Value> {
        let path = format!("/api/v1/jobs/{}/{act}", segment(&lease.job.id));
        let text = self.call(path, body).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// A call that renews the lease. It must be answered while that is still of use.
    async fn renewing(&self, lease: &LeaseAnswer, act: &str, mut more: Value) -> Outcome<Value> {
        more["lease_ms"] = json!(millis(self.exec.lease));
        let call = self.about(lease, act, self.body(lease, more).into());
        match timeout(self.renew_every(), call).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::unreachable("the server does not answer in time")),
        }
    }

    fn renew_every(&self) -> Duration {
        self.exec.lease / 3
    }

    /// Time between SIGTERM and SIGKILL for a command whose lease runs out.
    fn last_grace(&self) -> Duration {
        self.exec.kill_after.min(self.renew_every())
    }

    fn warn(&self, lease: &LeaseAnswer, message: &str) {
        self.output.note(&format!("job {}: {message}", lease.job.id));
    }

    /// The span around one attempt, with the fields that a Rust worker's has.
    fn attempt_span(&self, lease: &LeaseAnswer, context: Option<TraceContext>) -> Span {
        let trace_id = context.map(|context| tracing::field::display(context.trace_id_text()));
        tracing::info_span!(
            "attempt",
            job = %lease.job.id,
            job_type = %lease.job.job_type,
            attempt = lease.attempt,
            worker = %self.name,
            trace_id,
        )
    }

    /// The attempt in the trace of its job, as a Rust worker's.
    fn attempt_trace(&self, lease: &LeaseAnswer) -> TraceSpan {
        let name = || format!("attempt {}", lease.job.job_type).into();
        let mut span = TraceSpan::begin(SpanKind::Consumer, lease.trace(), name);
        span.set("messaging.system", || "tidegate");
        span.set("messaging.operation.type", || "process");
        span.set("messaging.destination.name", || lease.job.job_type.clone());
        span.set("messaging.message.id", || lease.job.id.clone());
        span.set("tidegate.worker.id", || self.name.clone());
        span.set("tidegate.job.attempt", || lease.attempt);
        span
    }

    /// Runs one job to its end and reports it.
    async fn run(&self, lease: LeaseAnswer, mut trace: TraceSpan) {
        let started = Instant::now();
        tracing::info!("attempt started");
        let attended = match self.start(&lease) {
            Ok(running) => self.attend(&lease, running).await,
            Err(error) => Err((error.raw_os_error(), error.to_string())),
        };
        let ended = match attended {
            Ok(ended) => ended,
            Err((number, message)) => return self.unstartable(&lease, number, &message).await,
        };
        let took_ms = millis(started.elapsed());
        let (word, done) = self.settle(&lease, &ended, took_ms).await;
        let word = match done {
            Ok(answer) => answer["outcome"].as_str().unwrap_or(word).to_owned(),
            Err(failure) => {
                self.warn(&lease, &failure.message);
                "lost".to_owned()
            }
        };
        trace.set("process.exit.code", || i64::from(ended.code.unwrap_or(-1)));
        trace.set("tidegate.job.outcome", || word.clone());
        if matches!(word.as_str(), "failed" | "dead" | "retried" | "lost") {
            trace.fail(|| word.clone());
        }
        tracing::info!(outcome = word, exit = ended.code.ok(), took_ms, "attempt ended");
        let line = if self.output.json {
            let code = ended.code.ok();
            json!({ "id": lease.job.id, "type": lease.job.job_type, "attempt": lease.attempt,
                    "outcome": word, "exit": code, "took_ms": took_ms })
            .to_string()
        } else {
            let (id, job_type, attempt) = (&lease.job.id, &lease.job.job_type, lease.attempt);
            format!("{id}  {job_type}  attempt {attempt}  {word}  {took_ms} ms")
        };
        // A reader that went away ends the process; the report is out already.
        if let Err(failure) = self.output.line(&line) {
            self.output.note(&failure.message);
        }
    }

    /// Hands a job back whose command could not be started: not the job's fault, and somebody else may
    /// have the program. Unless the system is merely short of processes or memory, this worker ends.
    async fn unstartable(&self, lease: &LeaseAnswer, number: Option<i32>, message: &str) {
        use rustix::io::Errno;
        let crowded = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
        let program = self.exec.command.first().map(String::as_str).unwrap_or_default();
        let told = format!("cannot run {program:?}: {message}");
        if let Err(failure) = self.report(lease, "release", self.body(lease, json!({}))).await {
            self.warn(lease, &format!("not handed back: {}", failure.message));
        }
        if crowded.iter().any(|error| Some(error.raw_os_error()) == number) {
            self.warn(lease, &told);
            sleep(CROWDED).await;
            return;
        }
        let failure = match number == Some(Errno::NOEXEC.raw_os_error()) {
            true => Failure::failed(told)
                .next("a script begins with a line such as #!/bin/sh; or run it with its program: -- sh FILE"),
            false => Failure::failed(told).next("name a program that can be run: -- ./work.sh"),
        };
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.stop.cancel();
    }

    /// Starts the supervisor, which starts the command when [`attend`](Worker::attend) orders it to.
    fn start(&self, lease: &LeaseAnswer) -> std::io::Result<RunningCommand> {
        let (control, command) = supervisor::start()?;
        let mut command = Command::from(command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            if is_own(&name) && !self.exec.pass_env.iter().any(|passed| name == passed.as_str()) {
                command.env_remove(name);
            }
        }
        match trace::current() {
            Some(context) => command.env("TRACEPARENT", context.to_string()),
            // That of this process is not the job's.
            None => command.env_remove("TRACEPARENT"),
        };
        command.env("TIDEGATE_JOB_ID", &lease.job.id);
        command.env("TIDEGATE_JOB_TYPE", &lease.job.job_type);
        command.env("TIDEGATE_JOB_ATTEMPT", lease.attempt.to_string());
        command.env("TIDEGATE_JOB_RETRIES", lease.job.retry.attempts.to_string());
        if let Some(limit) = lease.job.timeout_ms {
            let now = jiff::Timestamp::now().as_millisecond();
            let deadline = now.saturating_add(i64::try_from(limit).unwrap_or(i64::MAX));
            command.env("TIDEGATE_JOB_TIMEOUT_MS", limit.to_string());
            command.env("TIDEGATE_JOB_DEADLINE_MS", deadline.to_string());
        }
        let supervisor = command.spawn()?;
        control.set_nonblocking(true)?;
        Ok(RunningCommand { supervisor, control: UnixStream::from_std(control)? })
    }

    /// Feeds a command, listens to it, keeps its lease, and stops it when it must. Fails with number
    /// and text of the system's error if it cannot be started.
    async fn attend(
        &self,
        lease: &LeaseAnswer,
        running: RunningCommand,
    ) -> Result<CommandResult, (Option<i32>, String)> {
        let RunningCommand { mut supervisor, control } = running;
        let (reports, mut orders) = control.into_split();
        let payload = lease.job.payload.get().as_bytes();
        let order = SupervisorOrder {
            command: self.exec.command.clone(),
            payload_bytes: u64::try_from(payload.len()).unwrap_or(u64::MAX),
            kill_after_ms: millis(self.exec.kill_after),
            orphan_kill_after_ms: millis(self.last_grace()),
        };
        let wrong = |error: std::io::Error| (error.raw_os_error(), error.to_string());
        let mut line = serde_json::to_vec(&order).map_err(|error| (None, error.to_string()))?;
        line.push(b'\n');
        line.extend_from_slice(payload);
        orders.write_all(&line).await.map_err(wrong)?;

        let said = Arc::new(Mutex::new(StderrTail::default()));
        let stdout = supervisor.stdout.take();
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
        let stderr = supervisor.stderr.take();
        let hear = tokio::spawn({
            let said = Arc::clone(&said);
            let (output, id) = (self.output, lease.job.id.clone());
            async move {
                let Some(stderr) = stderr else { return };
                let mut lines = BufReader::new(stderr);
                let (mut line, mut begins) = (Vec::new(), true);
                while let Ok(1..) = read_line(&mut lines, &mut line).await {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let warning = {
                        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                        said.add(text, begins)
                    };
                    if let Some(warning) = warning {
                        output.note(&format!("job {id}: {warning}"));
                    }
                    begins = line.ends_with(b"\n");
                    line.clear();
                }
            }
        });
        let mut why = None;
        let (group, end) = {
            let end = follow(reports);
            tokio::pin!(end);
            tokio::select! {
                end = &mut end => end,
                reason = self.guard(lease, &said) => {
                    // One that does not take orders any more has ended, or is found out below.
                    let _ = orders.write_all(&[supervisor::STOP]).await;
                    let grace = match reason {
                        StopReason::Lost => self.last_grace(),
                        _ => self.exec.kill_after,
                    };
                    why = Some(reason);
                    match timeout(grace, &mut end).await {
                        Ok(end) => end,
                        Err(_) => {
                            let _ = orders.write_all(&[supervisor::KILL]).await;
                            end.await
                        }
                    }
                }
            }
        };
        let code = match end {
            Some(SupervisorReport::Refused(number, message)) => return Err((number, message)),
            Some(SupervisorReport::Exited(code)) => Ok(code),
            Some(SupervisorReport::Killed(signal)) => Err(signal),
            // Somebody killed the supervisor: the command must not outlive it.
            Some(SupervisorReport::Started(_)) | None => {
                let group = group.and_then(Pid::from_raw);
                signal(group, Signal::KILL);
                self.warn(lease, "the process that supervises the command was killed");
                Err(Signal::KILL.as_raw())
            }
        };
        // Everything that could hold the output open has ended; but for what the system would not let
        // the supervisor kill.
        let patience = Duration::from_secs(2);
        let stdout = timeout(patience, keep).await.ok().and_then(Result::ok).unwrap_or_default();
        let _ = timeout(patience, hear).await;
        let _ = timeout(patience, supervisor.wait()).await;
        self.flush(lease, &said).await;
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(CommandResult { code, stdout, said: said.end(), why })
    }

    /// Renews the lease, passes on what the command says, and ends when it must be stopped.
    async fn guard(&self, lease: &LeaseAnswer, said: &Mutex<StderrTail>) -> StopReason {
        let started = Instant::now();
        let limit = lease.job.timeout_ms.map(|ms| started + Duration::from_millis(ms));
        let expired = async {
            match limit {
                Some(limit) => sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expired => StopReason::Timeout,
            why = self.keep(lease, said) => why,
            () = self.now.cancelled() => StopReason::Stopping,
        }
    }

    /// Renews the lease until it is lost or the job is cancelled. A refused call is not a lost lease:
    /// that is what the server says is one, and one that was not renewed in time, for whatever reason.
    async fn keep(&self, lease: &LeaseAnswer, said: &Mutex<StderrTail>) -> StopReason {
        let every = self.renew_every();
        // A command that does not stop at once still ends before the lease does.
        let held = self.exec.lease.saturating_sub(self.last_grace());
        let (mut renewed, mut asked, mut heard) = (Instant::now(), Instant::now(), Instant::now());
        let mut warned = false;
        loop {
            sleep(Duration::from_millis(100).min(every)).await;
            let key = (lease.job.id.clone(), lease.token);
            let cancelled =
                self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            if let Some(reason) = cancelled {
                return StopReason::Cancelled(reason);
            }
            let news = said.lock().unwrap_or_else(PoisonError::into_inner).has_news();
            let now = Instant::now();
            let answer = if news && heard.elapsed() >= Duration::from_secs(1) {
                heard = now;
                self.flush(lease, said).await
            } else if renewed.elapsed() >= every && asked.elapsed() >= every / 4 {
                asked = now;
                Some(self.renewing(lease, "renew", json!({})).await)
            } else {
                None
            };
            match answer {
                Some(Ok(answer)) if answer["cancelled"] == true => {
                    let reason = answer["reason"].as_str().unwrap_or_default();
                    return StopReason::Cancelled(reason.to_owned());
                }
                // The server counts from when it got the call, which is not before it was made.
                Some(Ok(_)) => renewed = now,
                Some(Err(failure)) if Refusal::of(&failure) == Refusal::Gone => {
                    return StopReason::Lost;
                }
                Some(Err(failure)) if !warned => {
                    warned = true;
                    self.warn(lease, &format!("the lease was not renewed: {}", failure.message));
                }
                _ => {}
            }
            if renewed.elapsed() >= held {
                return StopReason::Lost;
            }
        }
    }

    /// Sends what the command has said since the last time, if anything. Gives the latest answer that
    /// says something about the lease.
    async fn flush(&self, lease: &LeaseAnswer, said: &Mutex<StderrTail>) -> Option<Outcome<Value>> {
        let (lines, progress) = said.lock().unwrap_or_else(PoisonError::into_inner).news();
        let mut answer = None;
        let mut batches = batches(lines);
        while let Some(mut lines) = batches.pop_front() {
            let told = self.renewing(lease, "log", json!({ "lines": lines })).await;
            match told.as_ref().map_err(Refusal::of) {
                Ok(_) => answer = Some(told),
                // Too large for this server, perhaps: in two parts.
                Err(Refusal::Invalid) if lines.len() > 1 => {
                    let rest = lines.split_off(lines.len() / 2);
                    batches.push_front(rest);
                    batches.push_front(lines);
                }
                Err(Refusal::Invalid) => self.refused(lease, said, "a log line", &told),
                Err(Refusal::Later) => {
                    let rest = batches.into_iter().flatten();
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.put_back(lines.into_iter().chain(rest).collect(), progress);
                    return Some(told);
                }
                Err(Refusal::Gone | Refusal::Credential) => return Some(told),
            }
        }
        if let Some((percent, message)) = progress {
            let body = json!({ "percent": percent, "message": message });
            let told = self.renewing(lease, "progress", body).await;
            match told.as_ref().map_err(Refusal::of) {
                Err(Refusal::Invalid) => self.refused(lease, said, "its progress", &told),
                _ => answer = Some(told),
            }
        }
        answer
    }

    /// Says once per job that the server did not take something which the job can do without.
    fn refused(
        &self,
        lease: &LeaseAnswer,
        said: &Mutex<StderrTail>,
        what: &str,
        answer: &Outcome<Value>,
    ) {
        let first = said.lock().unwrap_or_else(PoisonError::into_inner).warn_of_refusal();
        if let (true, Err(failure)) = (first, answer) {
            self.warn(lease, &format!("the server refused {what}: {}", failure.message));
        }
    }

    /// Says what came of a job. Which word stands for it, and what the server said.
    async fn settle(
        &self,
        lease: &LeaseAnswer,
        ended: &CommandResult,
        took_ms: u64,
    ) -> (&'static str, Outcome<Value>) {
        let fail = |name: String, message: String, fatal: bool| async move {
            ("failed", self.fail(lease, &name, &message, fatal, took_ms).await)
        };
        let hand_back = || async {
            ("released", self.report(lease, "release", self.body(lease, json!({}))).await)
        };
        match (&ended.why, ended.code) {
            (Some(StopReason::Lost), _) => ("lost", Ok(Value::Null)),
            (Some(StopReason::Cancelled(reason)), _) => {
                ("cancelled", self.stop_job(lease, reason, took_ms).await.map(|_| Value::Null))
            }
            (Some(StopReason::Stopping), _) => hand_back().await,
            (Some(StopReason::Timeout), _) => {
                let ms = lease.job.timeout_ms.unwrap_or(0);
                fail("Timeout".to_owned(), format!("it ran longer than {ms} ms"), false).await
            }
            (None, Ok(0)) => ("completed", self.complete(lease, &ended.stdout, took_ms).await),
            (None, Ok(SNOOZE)) => {
                let body = json!({ "wait_ms": millis(self.exec.snooze_for) });
                ("snoozed", self.report(lease, "snooze", self.body(lease, body)).await)
            }
            (None, Ok(GIVE_UP)) => ("stopped", self.stop_job(lease, &ended.said, took_ms).await),
            (None, Ok(code)) => fail(format!("Exit{code}"), ended.said.clone(), code == DEAD).await,
            // A service manager that stops this worker signals its commands as well.
            (None, Err(signal)) if signal == Signal::TERM.as_raw() && self.stop.is_cancelled() => {
                hand_back().await
            }
            (None, Err(signal)) => {
                let message = match ended.said.as_str() {
                    "" => format!("ended by signal {signal}"),
                    said => said.to_owned(),
                };
                fail(format!("Signal{signal}"), message, false).await
            }
        }
    }

    /// Completes a job with what its command printed. A result that the server does not take makes a
    /// dead letter that says so: the command has done its work, and would print the same again.
    async fn complete(&self, lease: &LeaseAnswer, stdout: &[u8], took_ms: u64) -> Outcome<Value> {
        let most = jobs::RESULT_MAX;
        let why = if stdout.len() > most {
            format!("the command succeeded, but printed more than {most} bytes")
        } else {
            let result = result(stdout);
            let size = result.len();
            if size > most {
                format!(
                    "the command succeeded, but its output has {size} bytes as JSON, more than {most}"
                )
            } else {
                let body = self.body(lease, json!({ "took_ms": took_ms }));
                let open = body.strip_suffix('}').unwrap_or(&body);
                let body = format!("{open},\"result\":{result}}}");
                let answer = self.report(lease, "complete", body).await;
                match answer {
                    Err(failure) if Refusal::of(&failure) == Refusal::Invalid => format!(
                        "the command succeeded, but the server refused its output of {size} bytes as JSON: {}",
                        failure.message
                    ),
                    answer => return answer,
                }
            }
        };
        self.warn(lease, &why);
        self.fail(lease, "BadResult", &why, true, took_ms).await
    }

    async fn fail(
        &self,
        lease: &LeaseAnswer,
        name: &str,
        message: &str,
        fatal: bool,
        took_ms: u64,
    ) -> Outcome<Value> {
        let body = |message: &str| {
            let error = json!({ "name": name, "message": message });
            self.body(lease, json!({ "took_ms": took_ms, "error": error, "fatal": fatal }))
        };
        self.report_briefly(lease, "fail", message, body).await
    }

    async fn stop_job(&self, lease: &LeaseAnswer, reason: &str, took_ms: u64) -> Outcome<Value> {
        let body = |reason: &str| self.body(lease, json!({ "reason": reason, "took_ms": took_ms }));
        self.report_briefly(lease, "stop", reason, body).await
    }

    /// Reports with a text of the command's, and with only the beginning of it if the server does not
    /// take it all: that a job failed must not be lost with the words for it.
    async fn report_briefly(
        &self,
        lease: &LeaseAnswer,
        act: &str,
        text: &str,
        body: impl Fn(&str) -> String,
    ) -> Outcome<Value> {
        match self.report(lease, act, body(text)).await {
            Err(failure) if Refusal::of(&failure) == Refusal::Invalid => {
                let short: String = text.chars().take(SHORT_MESSAGE).collect();
                self.report(lease, act, body(&short)).await
            }
            answer => answer,
        }
    }

    /// Says what came of a job, again and again until the server has answered. Once this worker is to
    /// stop at once, for the length of a lease at most.
    async fn report(&self, lease: &LeaseAnswer, act: &str, body: String) -> Outcome<Value> {
        let body: Arc<str> = body.into();
        let until = Instant::now() + self.exec.lease;
        let mut asked = 0_u32;
        loop {
            let answer = self.about(lease, act, Arc::clone(&body)).await;
            let over = self.now.is_cancelled() && Instant::now() >= until;
            match answer {
                Err(failure) if Refusal::of(&failure) == Refusal::Later && !over => {
                    asked += 1;
                    if asked == 1 {
                        self.warn(lease, &format!("{}; trying again", failure.message));
                    }
                    sleep(Duration::from_millis(500)).await;
                }
                // An earlier try may have got through without its answer: then the job is done, and
                // its lease is gone with it.
                Err(failure) if asked > 0 && Refusal::of(&failure) == Refusal::Gone => {
                    return Ok(json!({ "outcome": "reported" }));
                }
                answer => return answer,
            }
        }
    }
}

/// Is this a variable of ours: a credential, a setting, or something about another job?
fn is_own(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"TIDEGATE_")
}

/// Reads what a supervisor reports, until its last word or its end. The group of the command, if it was
/// started, and that word.
async fn follow(reports: OwnedReadHalf) -> (Option<i32>, Option<SupervisorReport>) {
    let mut lines = BufReader::new(reports).lines();
    let mut group = None;
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(SupervisorReport::Started(pid)) => group = Some(pid),
            Ok(report) => return (group, Some(report)),
            Err(_) => break,
        }
    }
    (group, None)
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // It may have ended by itself.
        let _ = kill_process_group(group, signal);
    }
}

/// Converts standard output to JSON: unchanged if it is JSON; else a text without
/// the line break at its end; and bytes that are no text as `{"base64": "…"}`.
fn result(stdout: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(stdout) else {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(stdout);
        return json!({ "base64": encoded }).to_string();
    };
    if let Ok(json) = serde_json::from_str::<&RawValue>(text) {
        return json.get().to_owned();
    }
    let line = text.strip_suffix('\n').unwrap_or(text);
    match line.strip_suffix('\r').unwrap_or(line) {
        "" => "null".to_owned(),
        text => Value::from(text).to_string(),
    }
}

/// Splits log lines into parts that fit into one call each.
fn batches(lines: Vec<String>) -> VecDeque<Vec<String>> {
    let mut batches = VecDeque::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for line in lines {
        if bytes + line.len() > LOG_CALL_BYTES && !batch.is_empty() {
            batches.push_back(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += line.len();
        batch.push(line);
    }
    batches.extend(Some(batch).filter(|batch| !batch.is_empty()));
    batches
}

/// Reads a line, at most [`LINE`] bytes of it in one piece.
async fn read_line(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<usize> {
    let most = u64::try_from(LINE).unwrap_or(u64::MAX);
    reader.take(most).read_until(b'\n', line).await
}

/// The end of a command's standard error.
#[derive(Debug, Default)]
struct StderrTail {
    /// For the log: the latest that have not been sent.
    lines: VecDeque<String>,
    /// For the error message.
    last: VecDeque<String>,
    progress: Option<(f64, String)>,
    warned_of_progress: bool,
    warned_of_refusal: bool,
}

impl StderrTail {
    /// Takes a line, or another part of one that is too long. Gives a warning about the first line
    /// that looks like progress and is none; such a line is one like any other.
    fn add(&mut self, line: String, begins: bool) -> Option<String> {
        let mut warning = None;
        if begins && let Some(told) = line.strip_prefix("::progress ") {
            let (percent, message) = told.trim().split_once(' ').unwrap_or((told.trim(), ""));
            let number = percent.trim_end_matches('%').parse::<f64>().ok();
            if let Some(percent) = number.filter(|percent| percent.is_finite()) {
                let message = message.trim().chars().take(PROGRESS_MESSAGE).collect();
                self.progress = Some((percent.clamp(0.0, 100.0), message));
                return None;
            }
            if !std::mem::replace(&mut self.warned_of_progress, true) {
                let percent: String = percent.chars().take(40).collect();
                warning =
                    Some(format!("{percent:?} is not a percentage; write ::progress 40 half way"));
            }
        }
        {
            use std::io::Write;
            // Nobody can be told that standard error is gone.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.clone());
        self.last.push_back(line);
        while self.last.iter().map(String::len).sum::<usize>() > MESSAGE && self.last.len() > 1 {
            self.last.pop_front();
        }
        warning
    }

    /// Takes back what could not be sent; what is newer stays.
    fn put_back(&mut self, lines: Vec<String>, progress: Option<(f64, String)>) {
        for line in lines.into_iter().rev() {
            if self.lines.len() < LINES {
                self.lines.push_front(line);
            }
        }
        self.progress = self.progress.take().or(progress);
    }

    /// Is this the first refusal?
    fn warn_of_refusal(&mut self) -> bool {
        !std::mem::replace(&mut self.warned_of_refusal, true)
    }

    fn has_news(&self) -> bool {
        !self.lines.is_empty() || self.progress.is_some()
    }

    fn news(&mut self) -> (Vec<String>, Option<(f64, String)>) {
        (std::mem::take(&mut self.lines).into(), self.progress.take())
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
    fn output_is_kept_byte_for_byte() {
        for (printed, kept) in [
            (&b""[..], "null"),
            (b"\n", "null"),
            (b" {\"a\": 1}\n", "{\"a\": 1}"),
            (
                b"{\"z\":1,\"a\":123456789012345678901234567890,\"c\":1.10, \"a\":1e999}",
                "{\"z\":1,\"a\":123456789012345678901234567890,\"c\":1.10, \"a\":1e999}",
            ),
            (b"17\n", "17"),
            (b"hello there\n", "\"hello there\""),
            (b"  two\nlines \n\n", "\"  two\\nlines \\n\""),
            (b"\0\x1b", "\"\\u0000\\u001b\""),
            (b"{\"a\":", "\"{\\\"a\\\":\""),
            (b"\xff\xfe\n", "{\"base64\":\"//4K\"}"),
        ] {
            assert_eq!(result(printed), kept);
        }
    }

    #[test]
    fn only_the_word_that_the_lease_is_lost_means_that() {
        let failure = |status: u16, code: Option<&str>| {
            let mut failure = Failure::failed("");
            (failure.status, failure.code) = (Some(status), code.map(str::to_owned));
            Refusal::of(&failure)
        };
        assert_eq!(failure(409, Some("LEASE_LOST")), Refusal::Gone);
        assert_eq!(failure(404, None), Refusal::Gone);
        assert_eq!(failure(409, Some("CONFLICT")), Refusal::Invalid);
        assert_eq!((failure(400, None), failure(413, None)), (Refusal::Invalid, Refusal::Invalid));
        assert_eq!(
            (failure(401, None), failure(403, None)),
            (Refusal::Credential, Refusal::Credential)
        );
        assert_eq!((failure(429, None), failure(500, None)), (Refusal::Later, Refusal::Later));
        assert_eq!(Refusal::of(&Failure::unreachable("")), Refusal::Later);
    }

    #[test]
    fn lines_go_in_calls_of_bounded_size() {
        assert!(batches(Vec::new()).is_empty());
        let sizes = [1, LOG_CALL_BYTES, 5, 5, LOG_CALL_BYTES - 10, 1];
        let batches = batches(sizes.map(|size| "x".repeat(size)).into());
        let counts: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(counts, [1, 1, 3, 1]);
    }

    #[test]
    fn progress_is_taken_out_of_what_is_said() {
        let mut said = StderrTail::default();
        let mut warnings = Vec::new();
        for line in ["one", "::progress 40 half way", "::progress odd", "::progress NaN", "two"] {
            warnings.extend(said.add(line.to_owned(), true));
        }
        // The rest of a line that is too long is no line of its own.
        assert_eq!(said.add("::progress 90".to_owned(), false), None);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let rest = ["one", "::progress odd", "::progress NaN", "two", "::progress 90"];
        assert_eq!(said.end(), rest.join("\n"));
        let (lines, progress) = said.news();
        assert_eq!(lines, rest);
        assert_eq!(progress, Some((40.0, "half way".to_owned())));
        assert!(!said.has_news());

        for (told, percent) in [("150%", 100.0), ("-5", 0.0), ("1e3", 100.0)] {
            assert_eq!(said.add(format!("::progress {told}"), true), None);
            assert_eq!(said.news().1, Some((percent, String::new())));
        }
        for odd in ["inf", "-inf", "1e999", "nan", "%", ""] {
            said.add(format!("::progress {odd}"), true);
            assert_eq!(said.news().1, None);
        }
    }

    #[test]
    fn the_latest_lines_are_kept_and_unsent_ones_come_back_before_them() {
        let mut said = StderrTail::default();
        for n in 0..=LINES {
            said.add(n.to_string(), true);
        }
        let (lines, _) = said.news();
        assert_eq!((lines.len(), lines[0].as_str()), (LINES, "1"));
        said.add("new".to_owned(), true);
        said.put_back(lines, Some((5.0, String::new())));
        let (lines, progress) = said.news();
        assert_eq!(
            (lines.len(), lines[0].as_str(), lines[LINES - 1].as_str()),
            (LINES, "2", "new")
        );
        assert_eq!(progress, Some((5.0, String::new())));
    }
}
