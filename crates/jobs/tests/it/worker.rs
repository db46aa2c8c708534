//! The worker: handlers, outcomes, stopping.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use jobs::store::trace::{self, SpanExporter, SpanRecord, TraceContext};
use jobs::{
    Fault, JobId, JobOutcome, Jobs, Labels, NewJob, Status, Task,
    testing::Harness,
    worker::{
        Attempt, Cancel, Deadline, JobRequest, Logger, ParentResults, Payload, Reporter, State,
        Worker,
    },
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::support::*;

const SOON: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

impl Task for Add {
    const TYPE: &'static str = "add";

    fn defaults(job: NewJob) -> NewJob {
        job.priority(6).attempts(1)
    }
}

async fn add(task: Add, State(offset): State<i64>, attempt: Attempt) -> Result<i64, Fault> {
    match (task.a, attempt.number) {
        (13, _) => Err(Fault::dead("unlucky")),
        (14, 1) => Err(Fault::named("Flaky", "first time")),
        (15, _) => panic!("cannot add {}", task.a),
        _ => Ok(task.a + task.b + offset),
    }
}

fn harness(t: &TestStore) -> Harness {
    Harness::new(t.store.clone(), t.clock.clone(), jobs::Config::default()).unwrap()
}

use testkit::TestStore;

/// Runs a worker in the background until stopped.
struct Running {
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), jobs::Error>>,
}

impl Running {
    fn start<S: Clone + Send + Sync + 'static>(worker: Worker<S>) -> Self {
        let cancel = CancellationToken::new();
        let task = tokio::spawn(worker.run(cancel.clone()));
        Self { cancel, task }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn labels(name: &str) -> Labels {
    Labels::new(name).unwrap()
}

/// The spans of this process, kept.
#[derive(Clone, Default)]
struct KeptSpans(Arc<std::sync::Mutex<Vec<SpanRecord>>>);

impl SpanExporter for KeptSpans {
    fn samples(&self, _: u128) -> bool {
        true
    }

    fn export(&self, span: SpanRecord) {
        self.0.lock().unwrap().push(span);
    }
}

impl KeptSpans {
    /// A process has one exporter, and tests of one process share it.
    fn start() -> &'static KeptSpans {
        static KEPT: std::sync::OnceLock<KeptSpans> = std::sync::OnceLock::new();
        KEPT.get_or_init(|| {
            let kept = KeptSpans::default();
            assert!(trace::set_exporter(Box::new(kept.clone())));
            kept
        })
    }

    fn of(&self, trace_id: u128) -> Vec<SpanRecord> {
        let spans = self.0.lock().unwrap();
        spans.iter().filter(|span| span.context.trace_id == trace_id).cloned().collect()
    }
}

/// Tells the trace it runs in, and dispatches another job.
async fn in_a_trace(State(jobs): State<Jobs>) -> Result<(String, JobId), Fault> {
    let inside = trace::current().map(|context| context.to_string()).unwrap_or_default();
    let next = jobs.dispatch(NewJob::new("b", &8).unwrap()).await.unwrap();
    Ok((inside, next.id))
}

/// Everything that was logged, as lines.
#[derive(Clone, Default)]
struct LogLines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl LogLines {
    /// Takes what is logged on this thread from now on.
    fn take(&self) -> tracing::subscriber::DefaultGuard {
        let lines = self.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// The one line that ends with a message.
    fn line(&self, message: &str) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let mut found = text.lines().filter(|line| line.ends_with(message));
        let line = found.next().unwrap_or_else(|| panic!("no {message:?} in {text}")).to_owned();
        assert_eq!(found.next(), None);
        line
    }
}

async fn ended(jobs: &Jobs, id: &JobId) -> (Status, Option<jobs::JobResult>) {
    jobs.wait(id, SOON).await.unwrap()
}

// On one thread, so that what handlers log comes to the subscriber of this thread.
#[tokio::test]
async fn each_attempt_runs_in_a_span_that_names_it() {
    let log = LogLines::default();
    let _taken = log.take();
    let h = Harness::embedded().await.unwrap();
    let drained = put(h.jobs(), job("mail").attempts(1)).await;
    let fail_first = async |attempt: Attempt| {
        tokio::task::yield_now().await;
        tracing::info!("working on {}", attempt.number);
        if attempt.number == 1 { Err(Fault::new("try again")) } else { Ok(()) }
    };
    let worker = Worker::new(h.jobs(), labels("w1"), ()).handle("mail", fail_first);
    h.drain(worker).await.unwrap();
    for attempt in [1, 2] {
        let line = log.line(&format!("working on {attempt}"));
        let fields = format!("job={drained} job_type=mail attempt={attempt} worker=w1");
        assert!(line.contains(&format!("attempt{{{fields}}}: ")), "{line}");
    }

    let store = store::Store::open("embedded:").await.unwrap();
    let jobs = Jobs::new(store, jobs::Config::default()).unwrap();
    let id = put(&jobs, job("news")).await;
    let worker = Worker::new(&jobs, labels("w2"), ());
    let running = Running::start(worker.handle("news", async || tracing::warn!("in a runner")));
    ended(&jobs, &id).await;
    running.stop().await;
    let line = log.line("in a runner");
    let fields = format!("job={id} job_type=news attempt=1 worker=w2");
    assert!(line.contains(&format!("attempt{{{fields}}}: ")), "{line}");
}

testkit::each_store! {
    async fn a_typed_handler_gets_its_payload_and_its_result_is_kept(t: TestStore) {
        let h = harness(&t);
        let new = NewJob::of(&Add { a: 1, b: 2 }).unwrap();
        let id = put(h.jobs(), new).await;
        h.assert_dispatched("add", |job| job.priority.get() == 6).await;
        h.assert_not_dispatched("sub").await;
        let ran = h.drain(Worker::new(h.jobs(), labels("w1"), 100).task(add)).await.unwrap();
        assert_eq!(ran, 1);
        let result = h.jobs().result(&id).await.unwrap().unwrap();
        assert_eq!(result.data.unwrap().get(), "103");
        check_invariants(&Raw::of(&t)).await;
    }

    async fn outcomes_are_values(t: TestStore) {
        let h = harness(&t);
        let dead = put(h.jobs(), NewJob::of(&Add { a: 13, b: 0 }).unwrap()).await;
        let flaky = put(h.jobs(), NewJob::of(&Add { a: 14, b: 0 }).unwrap()).await;
        let panics = put(h.jobs(), NewJob::of(&Add { a: 15, b: 0 }).unwrap().attempts(0)).await;
        let bad = put(h.jobs(), NewJob::new("add", &"no numbers").unwrap()).await;
        let ran = h.drain(Worker::new(h.jobs(), labels("w1"), 0).task(add)).await.unwrap();
        assert_eq!(ran, 5, "one was retried");
        for (id, status, name) in [
            (&dead, Status::Dead, Some("Dead")),
            (&flaky, Status::Completed, None),
            (&panics, Status::Dead, Some("Panic")),
            (&bad, Status::Dead, Some("BadPayload")),
        ] {
            let view = h.jobs().view(id).await.unwrap().unwrap();
            assert_eq!(view.status, status, "{id}");
            let error = view.result.unwrap().error;
            assert_eq!(error.as_ref().and_then(|error| error.name.as_deref()), name, "{id}");
            if name == Some("Panic") {
                assert_eq!(error.unwrap().message, "cannot add 15");
            }
        }
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_handler_may_return_anyhows_result(t: TestStore) {
        async fn read(Payload(file): Payload<String>) -> anyhow::Result<usize> {
            let text = std::fs::read_to_string(&file);
            let text = text.with_context(|| format!("cannot read {file:?}"));
            Ok(text.context("no greeting")?.len())
        }
        let h = harness(&t);
        let found = put(h.jobs(), NewJob::new("read", &"/dev/null").unwrap()).await;
        let missing = put(h.jobs(), NewJob::new("read", &"no such file").unwrap().attempts(0)).await;
        h.drain(Worker::new(h.jobs(), labels("w1"), ()).handle("read", read)).await.unwrap();
        let result = h.jobs().result(&found).await.unwrap().unwrap();
        assert_eq!(result.data_as::<usize>().unwrap(), 0);
        let result = h.jobs().result(&missing).await.unwrap().unwrap();
        assert!(!result.success);
        assert!(result.data_as::<Option<usize>>().unwrap().is_none());
        let error = result.error.unwrap();
        assert_eq!(error.name.as_deref(), Some("Error"));
        let chain = "no greeting: cannot read \"no such file\": No such file or directory (os error 2)";
        assert_eq!(error.message, chain);
    }

    async fn drain_moves_the_clock_to_what_comes_due(t: TestStore) {
        let h = harness(&t);
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let start = h.clock().now();
        put(h.jobs(), job("tick").delay(Duration::from_secs(3_600))).await;
        put(h.jobs(), job("tick").delay(Duration::from_secs(60))).await;
        put(h.jobs(), job("tick").max_per_minute(1)).await;
        put(h.jobs(), job("tick").max_per_minute(1)).await;
        let worker = Worker::new(h.jobs(), labels("w1"), Arc::clone(&seen)).handle(
            "tick",
            async |State(seen): State<Arc<std::sync::Mutex<Vec<u64>>>>, jobs: Jobs| {
                let at = jobs.now();
                seen.lock().unwrap().push(at.0 as u64);
            },
        );
        assert_eq!(h.drain(worker).await.unwrap(), 4);
        let seen: Vec<_> = seen.lock().unwrap().iter().map(|at| at - start.0 as u64).collect();
        assert_eq!(seen, [0, 60_000, 60_000, 3_600_000]);
    }

    async fn a_snoozed_job_comes_back_without_counting(t: TestStore) {
        let h = harness(&t);
        let count = Arc::new(AtomicUsize::new(0));
        let id = put(h.jobs(), job("nap").attempts(0)).await;
        let worker = Worker::new(h.jobs(), labels("w1"), Arc::clone(&count)).handle(
            "nap",
            async |State(count): State<Arc<AtomicUsize>>, attempt: Attempt| {
                assert_eq!((attempt.number, attempt.most), (1, 1));
                match count.fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => JobOutcome::Snooze(Duration::from_secs(60)),
                    _ => JobOutcome::Done(None),
                }
            },
        );
        assert_eq!(h.drain(worker).await.unwrap(), 3);
        assert_eq!(h.jobs().status(&id).await.unwrap(), Some(Status::Completed));
    }

    async fn a_flow_hands_results_on(t: TestStore) {
        let h = harness(&t);
        let a = put(h.jobs(), NewJob::of(&Add { a: 1, b: 2 }).unwrap()).await;
        let b = put(h.jobs(), NewJob::of(&Add { a: 3, b: 4 }).unwrap()).await;
        let sum = put(h.jobs(), job("sum").depends_on([a, b])).await;
        let worker = Worker::new(h.jobs(), labels("w1"), 0).task(add).handle(
            "sum",
            async |parents: ParentResults| {
                let read = |r: &jobs::JobResult| r.data.as_ref().unwrap().get().parse::<i64>().unwrap();
                Ok::<i64, Fault>(parents.0.values().map(read).sum())
            },
        );
        h.drain(worker).await.unwrap();
        let result = h.jobs().result(&sum).await.unwrap().unwrap();
        assert_eq!(result.data.unwrap().get(), "10");
    }

    async fn a_worker_stopped_at_any_moment_loses_and_doubles_nothing(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let ran = Arc::new(AtomicUsize::new(0));
        for outcome in jobs.dispatch_all((0..3_000).map(|_| job("quick"))).await {
            outcome.unwrap();
        }
        // Quick jobs go in and out with the claims; each stop finds another one under way.
        for (round, stop_after) in [1, 40, 127, 128, 200, 300].into_iter().enumerate() {
            let (before, cancel) = (ran.load(Ordering::SeqCst), CancellationToken::new());
            let state = (Arc::clone(&ran), before + stop_after, cancel.clone());
            let worker = Worker::new(&jobs, labels("w1"), state).handle(
                "quick",
                async |State((ran, stop_at, cancel)): State<(Arc<AtomicUsize>, usize, CancellationToken)>| {
                    if ran.fetch_add(1, Ordering::SeqCst) + 1 == stop_at {
                        cancel.cancel();
                    }
                },
            );
            let concurrency = [1, 50, 200][round % 3];
            tokio::time::timeout(SOON, worker.concurrency(concurrency).background(false).run(cancel))
                .await
                .unwrap()
                .unwrap();
            let left = 3_000 - ran.load(Ordering::SeqCst);
            let stats = jobs.stats().await.unwrap();
            assert_eq!((stats.processed, stats.active), (ran.load(Ordering::SeqCst) as u64, 0));
            assert_eq!(stats.waiting, left, "what did not run is in line again");
            check_invariants(&raw).await;
        }
    }

    async fn a_running_worker_works_off_many_jobs(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let seen = Arc::new(AtomicUsize::new(0));
        let worker = Worker::new(&jobs, labels("w1"), Arc::clone(&seen))
            .handle("count", async |State(seen): State<Arc<AtomicUsize>>| {
                seen.fetch_add(1, Ordering::SeqCst);
            })
            .concurrency(20);
        let running = Running::start(worker);
        for outcome in jobs.dispatch_all((0..500).map(|_| job("count"))).await {
            outcome.unwrap();
        }
        let last = put(&jobs, job("count").priority(1)).await;
        assert_eq!(ended(&jobs, &last).await.0, Status::Completed);
        running.stop().await;
        assert_eq!(seen.load(Ordering::SeqCst), 501);
        assert_eq!(jobs.stats().await.unwrap().processed, 501);
        assert!(raw.set("bridge:workers:active").await.is_empty());
        check_invariants(&raw).await;
    }

    async fn a_stopping_worker_hands_back_what_has_not_ended(t: TestStore) {
        let (jobs, raw) = (queue(&t), Raw::of(&t));
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(put(&jobs, job("slow")).await);
        }
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let worker = Worker::new(&jobs, labels("w1"), started)
            .handle(
                "slow",
                async |State(started): State<tokio::sync::mpsc::UnboundedSender<()>>, cancel: Cancel| {
                    started.send(()).unwrap();
                    cancel.cancelled().await;
                    Err::<(), _>(Fault::new("interrupted"))
                },
            )
            .concurrency(2)
            .prefetch(2)
            .grace(Duration::from_millis(50));
        let running = Running::start(worker);
        for _ in 0..2 {
            starts.recv().await.unwrap();
        }
        running.stop().await;
        let mut waiting = raw.list("bridge:jobs:waiting").await;
        waiting.sort();
        let mut expected: Vec<_> = all.iter().map(ToString::to_string).collect();
        expected.sort();
        assert_eq!(waiting, expected);
        for id in &all {
            let data = raw.json(&format!("bridge:jobs:data:{id}")).await;
            assert_eq!(data["attempts"], 0, "no attempt was burnt");
        }
        check_invariants(&raw).await;
    }

    async fn a_stopping_worker_lets_running_jobs_end(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("short")).await;
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let worker = Worker::new(&jobs, labels("w1"), (Arc::clone(&gate), started)).handle(
            "short",
            async |State((gate, started)): State<(
                Arc<tokio::sync::Semaphore>,
                tokio::sync::mpsc::UnboundedSender<()>,
            )>| {
                started.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
            },
        );
        let running = Running::start(worker);
        starts.recv().await.unwrap();
        running.cancel.cancel();
        gate.add_permits(1);
        running.task.await.unwrap().unwrap();
        assert_eq!(jobs.status(&id).await.unwrap(), Some(Status::Completed));
    }

    async fn a_cancelled_job_is_told_to_stop(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("long")).await;
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let worker = Worker::new(&jobs, labels("w1"), started).handle(
            "long",
            async |State(started): State<tokio::sync::mpsc::UnboundedSender<()>>, cancel: Cancel| {
                started.send(()).unwrap();
                cancel.cancelled().await;
                Err::<(), _>(Fault::new("interrupted"))
            },
        );
        let running = Running::start(worker);
        starts.recv().await.unwrap();
        jobs.cancel(&id, "enough").await.unwrap();
        let (status, result) = ended(&jobs, &id).await;
        assert_eq!(status, Status::Failed);
        let error = result.unwrap().error.unwrap();
        assert_eq!((error.name.as_deref(), error.message.as_str()), (Some("Cancelled"), "enough"));
        running.stop().await;
        check_invariants(&Raw::of(&t)).await;
    }

    async fn a_job_that_takes_too_long_fails(t: TestStore) {
        let jobs = queue(&t);
        let id = put(&jobs, job("long").timeout(Duration::from_millis(20)).attempts(0)).await;
        let worker = Worker::new(&jobs, labels("w1"), ()).handle(
            "long",
            async |cancel: Cancel, deadline: Deadline| {
                assert!(deadline.0.is_some());
                cancel.cancelled().await;
            },
        );
        let running = Running::start(worker);
        let (status, result) = ended(&jobs, &id).await;
        assert_eq!(status, Status::Dead);
        assert_eq!(result.unwrap().error.unwrap().name.as_deref(), Some("Timeout"));
        running.stop().await;
    }

    async fn layers_see_every_job(t: TestStore) {
        let jobs = queue(&t);
        let seen = Arc::new(AtomicUsize::new(0));
        let id = put(&jobs, job("a")).await;
        let late = put(&jobs, job("b").attempts(0)).await;
        let counter = Arc::clone(&seen);
        let worker = Worker::new(&jobs, labels("w1"), ())
            .handle("a", async || ())
            .handle("b", async |cancel: Cancel| cancel.cancelled().await)
            .layer(tower::timeout::TimeoutLayer::new(Duration::from_millis(50)))
            .layer(tower::util::MapRequestLayer::new(move |call: JobRequest| {
                counter.fetch_add(1, Ordering::SeqCst);
                call
            }));
        let running = Running::start(worker);
        assert_eq!(ended(&jobs, &id).await.0, Status::Completed);
        let (status, result) = ended(&jobs, &late).await;
        assert_eq!(status, Status::Dead);
        assert_eq!(result.unwrap().error.unwrap().name.as_deref(), Some("Timeout"));
        running.stop().await;
        assert_eq!(seen.load(Ordering::SeqCst), 2);
    }

    async fn progress_and_log_lines_come_from_the_handler(t: TestStore) {
        let h = harness(&t);
        let id = put(h.jobs(), NewJob::new("a", &7).unwrap()).await;
        let worker = Worker::new(h.jobs(), labels("w1"), ()).handle(
            "a",
            async |Payload(n): Payload<u32>, progress: Reporter, log: Logger, id: JobId| {
                log.line(format!("{id} has {n}")).await;
                progress.set(50.0, "half way").await;
            },
        );
        h.drain(worker).await.unwrap();
        let progress = h.jobs().progress(&id).await.unwrap().unwrap();
        assert_eq!((progress.percent, progress.message.as_deref()), (50.0, Some("half way")));
        assert_eq!(h.jobs().logs(&id).await.unwrap()[0].1, format!("{id} has 7"));
    }

    async fn a_handler_runs_in_the_trace_that_its_job_was_dispatched_in(t: TestStore) {
        let spans = KeptSpans::start();
        let h = harness(&t);
        let request = TraceContext::random();
        let new = NewJob::new("a", &7).unwrap().once("key", SOON);
        let id = trace::scope(request, h.jobs().dispatch(new.clone())).await.unwrap().id;
        // Another request under the same key is the same job, though its trace is another one.
        let again = trace::scope(TraceContext::random(), h.jobs().dispatch(new)).await.unwrap();
        assert_eq!((&again.id, again.new), (&id, false));
        let worker =
            Worker::new(h.jobs(), labels("w1"), h.jobs().clone()).handle("a", in_a_trace);
        h.drain(worker).await.unwrap();
        let result = h.jobs().result(&id).await.unwrap().unwrap();
        let (inside, next): (String, JobId) = result.data_as().unwrap();

        let spans = spans.of(request.trace_id);
        let named = |name: &str| {
            let found = spans.iter().find(|span| span.name == name);
            found.unwrap_or_else(|| panic!("no {name:?} in {spans:#?}"))
        };
        let (dispatched, claimed) = (named("dispatch a"), named("claim a"));
        assert_eq!(dispatched.parent, Some(request.span_id));
        assert_eq!(named("script dispatch_unique").parent, Some(dispatched.context.span_id));
        assert_eq!(claimed.parent, Some(dispatched.context.span_id));
        assert_eq!(named("attempt a").parent, Some(claimed.context.span_id));
        assert_eq!(inside, named("attempt a").context.to_string());
        // What it dispatches goes on from there, and the metadata say so to workers of v1.
        assert_eq!(named("dispatch b").parent, Some(named("attempt a").context.span_id));
        let job = h.jobs().get(&next).await.unwrap().unwrap();
        assert_eq!(job.trace(), Some(named("dispatch b").context));
        let carried = job.metadata.get("traceparent").and_then(|value| value.as_str());
        assert_eq!(carried, Some(named("dispatch b").context.to_string().as_str()));
    }

    async fn a_worker_without_handlers_or_with_a_bad_type_is_refused(t: TestStore) {
        let jobs = queue(&t);
        let cancel = CancellationToken::new();
        assert!(Worker::new(&jobs, labels("w1"), ()).run(cancel.clone()).await.is_err());
        let worker = Worker::new(&jobs, labels("w1"), ()).handle("a b", async || ());
        assert!(worker.run(cancel).await.is_err());
    }
}
