//! The job queue against its rivals: BullMQ for Node, `bullmq-official` and `apalis-redis`.
//!
//! `jobs-bench run [ROUNDS] [COUNT] [SCENARIOS]` takes turns: within each round every contender does
//! every scenario in a process of its own, on one Redis that is emptied before. The process says when
//! it is ready, the driver notes the server's CPU time, and lets it go. Figures are the median over
//! rounds, the least and the best in brackets. `jobs-bench one …` is such a process. `jobs-bench foreign [ROUNDS]
//! [AHEAD]` times claims with that many jobs for other workers ahead, and with none.
//!
//! Jobs do nothing; payloads have 100 bytes. `single` is 64 tasks that dispatch one at a time, `bulk` a
//! thousand in a call, `process@C` a backlog worked off with concurrency C until the last job's end is
//! written, `latency` a job every 5 ms to an idle worker, `memory` what a waiting job takes in Redis.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jobs::{Labels, NewJob};
use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Body {
    i: usize,
    p: String,
}

fn body(i: usize) -> Body {
    Body { i, p: "x".repeat(85) }
}

/// What a process tells about its run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Report {
    count: usize,
    wall: f64,
    cpu: f64,
    p50: Option<f64>,
    p99: Option<f64>,
    #[serde(default)]
    redis_cpu: f64,
    #[serde(default)]
    bytes: f64,
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Tells the driver, and waits for its word.
fn ready() -> Result<(Instant, f64)> {
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok((Instant::now(), cpu()))
}

fn report((started, used): (Instant, f64), count: usize, mut times: Vec<f64>) -> Result<()> {
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu() - used);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
    let report = Report { count, wall, cpu, p50: at(0.5), p99: at(0.99), ..Report::default() };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Counts jobs and tells when all have run.
#[derive(Clone)]
struct Counter {
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
    /// When each job was dispatched, in nanoseconds after the start, and how long it took to start.
    sent: Arc<Vec<AtomicUsize>>,
    took: Arc<Vec<AtomicUsize>>,
    zero: Instant,
}

impl Counter {
    fn new(count: usize) -> Counter {
        let zeros = || Arc::new((0..count).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        Counter {
            left: Arc::new(AtomicUsize::new(count)),
            done: Arc::default(),
            sent: zeros(),
            took: zeros(),
            zero: Instant::now(),
        }
    }

    fn now(&self) -> usize {
        self.zero.elapsed().as_nanos() as usize
    }

    fn sent(&self, i: usize) {
        self.sent[i].store(self.now(), Ordering::Relaxed);
    }

    fn ran(&self, i: usize) {
        self.took[i].store(self.now() - self.sent[i].load(Ordering::Relaxed), Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
    }

    fn times(&self) -> Vec<f64> {
        self.took.iter().map(|ns| ns.load(Ordering::Relaxed) as f64 / 1e6).collect()
    }
}

/// A queue as the scenarios need it.
trait Contender: Clone + Send + Sync + 'static {
    /// What runs jobs until it is stopped.
    type Worker;

    /// Dispatches one job.
    fn one(&self, i: usize) -> impl Future<Output = Result<()>> + Send;

    /// Dispatches jobs in one call.
    fn many(&self, jobs: Range<usize>) -> impl Future<Output = Result<()>>;

    /// Starts a worker of that concurrency, and is done when it can work.
    fn start(&self, concurrency: usize, counter: Counter) -> impl Future<Output = Result<Self::Worker>>;

    /// Is done when the outcomes of all jobs that have run are written, if the worker can tell.
    fn stop(&self, worker: Self::Worker, ran: usize) -> impl Future<Output = Result<()>>;
}

/// Plays a scenario.
async fn play(queue: impl Contender, scenario: &str, count: usize, concurrency: usize) -> Result<()> {
    let bulk = async || -> Result<()> {
        for first in (0..count).step_by(1_000) {
            queue.many(first..count.min(first + 1_000)).await?;
        }
        Ok(())
    };
    let counter = Counter::new(count);
    match scenario {
        "single" => {
            let begun = ready()?;
            sixty_four(count, queue.clone()).await?;
            report(begun, count, Vec::new())
        }
        "bulk" | "fill" => {
            let begun = ready()?;
            bulk().await?;
            report(begun, count, Vec::new())
        }
        "process" => {
            bulk().await?;
            let begun = ready()?;
            let worker = queue.start(concurrency, counter.clone()).await?;
            counter.done.notified().await;
            queue.stop(worker, count).await?;
            report(begun, count, Vec::new())
        }
        _ => {
            let worker = queue.start(10, counter.clone()).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            let begun = ready()?;
            for i in 0..count {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counter.sent(i);
                queue.one(i).await?;
            }
            counter.done.notified().await;
            report(begun, count, counter.times())?;
            queue.stop(worker, count).await
        }
    }
}

/// Dispatches with 64 tasks, each one at a time.
async fn sixty_four(count: usize, queue: impl Contender) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (next, queue) = (next.clone(), queue.clone());
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return Ok::<(), anyhow::Error>(());
                    }
                    queue.one(i).await?;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

#[derive(Clone)]
struct Tidegate(jobs::Jobs);

impl Tidegate {
    async fn open(url: &str) -> Result<Tidegate> {
        let jobs = jobs::Jobs::new(store::Store::open(url).await?, jobs::Config::default())?;
        // The connection stands before anything is measured.
        jobs.stats().await?;
        Ok(Tidegate(jobs))
    }
}

impl Contender for Tidegate {
    type Worker = (CancellationToken, JoinHandle<Result<(), jobs::Error>>);

    async fn one(&self, i: usize) -> Result<()> {
        self.0.dispatch(NewJob::new("noop", &body(i))?).await?;
        Ok(())
    }

    async fn many(&self, jobs: Range<usize>) -> Result<()> {
        let batch = jobs.map(|i| NewJob::new("noop", &body(i))).collect::<Result<Vec<_>, _>>()?;
        for outcome in self.0.dispatch_all(batch).await {
            outcome?;
        }
        Ok(())
    }

    async fn start(&self, concurrency: usize, counter: Counter) -> Result<Self::Worker> {
        use jobs::worker::{Payload, State, Worker};
        async fn noop(Payload(body): Payload<Body>, State(counter): State<Counter>) {
            counter.ran(body.i);
        }
        let cancel = CancellationToken::new();
        let worker = Worker::new(&self.0, Labels::new("bench")?, counter).handle("noop", noop);
        let task = tokio::spawn(worker.concurrency(concurrency).run(cancel.clone()));
        Ok((cancel, task))
    }

    async fn stop(&self, (cancel, task): Self::Worker, ran: usize) -> Result<()> {
        // It ends when every outcome is written.
        cancel.cancel();
        task.await??;
        anyhow::ensure!(self.0.stats().await?.processed == ran as u64, "not all are done");
        Ok(())
    }
}

#[derive(Clone)]
struct BullMq {
    url: String,
    queue: Arc<bullmq::Queue>,
}

impl BullMq {
    async fn open(url: &str) -> Result<BullMq> {
        let mut options = bullmq::QueueOptions::default();
        options.connection.url = url.to_owned();
        let queue = Arc::new(bullmq::Queue::with_options("bench", options).await?);
        Ok(BullMq { url: url.to_owned(), queue })
    }
}

impl Contender for BullMq {
    type Worker = bullmq::Worker;

    async fn one(&self, i: usize) -> Result<()> {
        self.queue.add("noop", body(i)).await?;
        Ok(())
    }

    async fn many(&self, jobs: Range<usize>) -> Result<()> {
        self.queue.add_bulk(jobs.map(|i| bullmq::BulkJob::new("noop", body(i))).collect()).await?;
        Ok(())
    }

    async fn start(&self, concurrency: usize, counter: Counter) -> Result<Self::Worker> {
        use bullmq::worker::ProcessorFn;
        let processor: ProcessorFn = Arc::new(move |job: bullmq::Job, _| {
            let counter = counter.clone();
            Box::pin(async move {
                counter.ran(job.data()["i"].as_u64().unwrap_or(0) as usize);
                Ok(serde_json::Value::Null)
            })
        });
        let mut options = bullmq::WorkerOptions { concurrency, ..Default::default() };
        options.connection.url = self.url.clone();
        Ok(bullmq::Worker::with_options("bench", processor, options).await?)
    }

    /// It cannot tell, so it is counted when the last handler has ended.
    async fn stop(&self, worker: Self::Worker, _: usize) -> Result<()> {
        std::mem::forget(worker);
        Ok(())
    }
}

#[derive(Clone)]
struct Apalis(ApalisStorage);

type ApalisStorage = apalis_redis::RedisStorage<Body, apalis_redis::ConnectionManager>;

impl Apalis {
    async fn open(url: &str) -> Result<Apalis> {
        let config = apalis_redis::Config::default().batch_size(100);
        Ok(Apalis(ApalisStorage::new(apalis_redis::connect(url).await?).with_config(config)))
    }
}

impl Contender for Apalis {
    type Worker = ();

    async fn one(&self, i: usize) -> Result<()> {
        use apalis::prelude::TaskSink as _;
        self.0.clone().push(body(i)).await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    async fn many(&self, jobs: Range<usize>) -> Result<()> {
        use apalis::prelude::TaskSink as _;
        let batch = jobs.map(body).collect();
        self.0.clone().push_bulk(batch).await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    async fn start(&self, concurrency: usize, counter: Counter) -> Result<Self::Worker> {
        use apalis::prelude::{Data, WorkerBuilder, WorkerBuilderExt as _};
        async fn noop(task: Body, counter: Data<Counter>) {
            counter.ran(task.i);
        }
        let worker = WorkerBuilder::new("bench").backend(self.0.clone()).data(counter);
        tokio::spawn(worker.concurrency(concurrency).build(noop).run());
        Ok(())
    }

    /// It cannot tell, so it is counted when the last handler has ended.
    async fn stop(&self, (): Self::Worker, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Microseconds per claim of one job, and per job in claims of 64, behind jobs for others.
async fn claims_behind(store: &store::Store, ahead: usize, round: usize) -> Result<(f64, f64)> {
    use jobs::{Config, Jobs, Namespace, JobTarget};
    let namespace = Namespace::parse(format!("behind-{ahead}-{round}"))?;
    let jobs = Jobs::new(store.clone(), Config { namespace, ..Config::default() })?;
    let (ones, most, calls) = (1_000, 64, 40);
    let foreign = |i| Ok(NewJob::new("noop", &body(i))?.target(JobTarget::default().capability("gpu")));
    let own = |i| Ok(NewJob::new("noop", &body(i))?);
    for first in (0..ahead).step_by(1_000) {
        let batch = (first..ahead.min(first + 1_000)).map(foreign).collect::<Result<Vec<_>>>()?;
        for outcome in jobs.dispatch_all(batch).await {
            outcome?;
        }
    }
    let batch = (0..1 + ones + most * calls).map(own).collect::<Result<Vec<_>>>()?;
    for outcome in jobs.dispatch_all(batch).await {
        outcome?;
    }
    let mut claimer = jobs.claimer(Labels::new("bench")?);
    // The first learns the routes.
    anyhow::ensure!(claimer.claim(1).await?.leases.len() == 1, "nothing to claim");
    let started = Instant::now();
    for _ in 0..ones {
        anyhow::ensure!(claimer.claim(1).await?.leases.len() == 1, "a claim found nothing");
    }
    let one = started.elapsed().as_secs_f64() * 1e6 / ones as f64;
    let started = Instant::now();
    for _ in 0..calls {
        anyhow::ensure!(claimer.claim(most).await?.leases.len() == most, "a claim found too few");
    }
    Ok((one, started.elapsed().as_secs_f64() * 1e6 / (most * calls) as f64))
}

async fn foreign(rounds: usize, ahead: usize) -> Result<()> {
    let redis = Redis::start()?;
    println!("| Store | jobs for others ahead | µs per claim of one | µs per job in claims of 64 |");
    println!("|---|---|---|---|");
    for (name, url) in [("Redis", redis.url()), ("built-in", "embedded:".to_owned())] {
        let store = store::Store::open(&url).await?;
        let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for round in 0..rounds {
            for (ahead, found) in [0, ahead].into_iter().zip(&mut found) {
                let (one, many) = claims_behind(&store, ahead, round).await?;
                found.0.push(one);
                found.1.push(many);
            }
        }
        let [none, many] = found.map(|(one, many)| (median(one), median(many)));
        println!("| {name} | 0 | {:.0} | {:.1} |", none.0, none.1);
        let (one, each) = (many.0 / none.0, many.1 / none.1);
        println!("| {name} | {ahead} | {:.0} ({one:.2} ×) | {:.1} ({each:.2} ×) |", many.0, many.1);
    }
    Ok(())
}

/// A server that ends with this value.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Result<Redis> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server")?;
        let redis = Redis { child, port };
        for _ in 0..100 {
            if redis.ask(&["PING"]).is_ok() {
                return Ok(redis);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("redis-server does not answer")
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn ask(&self, words: &[&str]) -> Result<redis::Value> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        Ok(redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)?)
    }

    fn info(&self, section: &str, name: &str) -> Result<f64> {
        let text: String = redis::from_redis_value(self.ask(&["INFO", section])?)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("no {name}"))?.parse()?)
    }

    fn cpu(&self) -> Result<f64> {
        Ok(self.info("cpu", "used_cpu_user")? + self.info("cpu", "used_cpu_sys")?)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One contender, one scenario, in a process of its own.
fn turn(redis: &Redis, system: &str, scenario: &str, count: usize) -> Result<Report> {
    redis.ask(&["FLUSHALL"])?;
    redis.ask(&["SCRIPT", "FLUSH"])?;
    let (name, concurrency) = scenario.split_once('@').unwrap_or((scenario, "10"));
    let mut command = if system == "bullmq-node" {
        let mut command = Command::new("node");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/node/bullmq.mjs")).arg(redis.port.to_string());
        command
    } else {
        let url = if system == "tidegate-built-in" { "embedded:".to_owned() } else { redis.url() };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["one", system, &url]);
        command
    };
    let name = if name == "memory" { "fill" } else { name };
    command.args([name, &count.to_string(), concurrency]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let first = lines.next().context("it said nothing")??;
    anyhow::ensure!(first == "ready", "{system} {scenario}: {first}");
    let (cpu, memory) = (redis.cpu()?, redis.info("memory", "used_memory")?);
    child.stdin.take().context("stdin")?.write_all(b"go\n")?;
    let mut report: Report = serde_json::from_str(&lines.next().context("it broke off")??)?;
    report.redis_cpu = redis.cpu()? - cpu;
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{system} {scenario}: {status}");
    if scenario == "memory" {
        report.bytes = (redis.info("memory", "used_memory")? - memory) / count as f64;
    }
    Ok(report)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(rounds: usize, count: usize, scenarios: &[&str]) -> Result<()> {
    let systems = ["tidegate", "tidegate-built-in", "bullmq-node", "bullmq-official", "apalis-redis"];
    let redis = Redis::start()?;
    let mut found: std::collections::BTreeMap<(usize, usize), Vec<Report>> = Default::default();
    for round in 0..rounds {
        for (s, scenario) in scenarios.iter().enumerate() {
            for (c, system) in systems.iter().enumerate() {
                let count = match (*system, scenario.split('@').next().unwrap_or_default()) {
                    (_, "latency") => 300,
                    ("tidegate-built-in", "memory") => continue,
                    (_, "memory") => 50_000,
                    // It cannot start on a backlog of 8,000 or more.
                    ("apalis-redis", "process") => count.min(7_000),
                    ("bullmq-node", "process") if *scenario == "process@1" => count.min(5_000),
                    _ => count,
                };
                match turn(&redis, system, scenario, count) {
                    Ok(report) => found.entry((s, c)).or_default().push(report),
                    Err(error) => eprintln!("round {round}: {system} {scenario}: {error:#}"),
                }
            }
        }
    }
    println!("| Scenario | System | jobs/s median (least to best) | client CPU µs/job | Redis CPU µs/job | more |");
    println!("|---|---|---|---|---|---|");
    for ((s, c), reports) in found {
        let of = |f: fn(&Report) -> f64| reports.iter().map(f).collect::<Vec<_>>();
        let speed = of(|r| r.count as f64 / r.wall);
        let best = speed.iter().copied().fold(0.0, f64::max);
        let least = speed.iter().copied().fold(f64::INFINITY, f64::min);
        let scenario = scenarios[s];
        let more = match scenario {
            "memory" => format!("{:.1} bytes per waiting job", median(of(|r| r.bytes))),
            "latency" => format!(
                "p50 {:.2} ms, p99 {:.2} ms",
                median(of(|r| r.p50.unwrap_or(f64::NAN))),
                median(of(|r| r.p99.unwrap_or(f64::NAN)))
            ),
            _ => String::new(),
        };
        let each = |f: fn(&Report) -> f64| median(of(f)) * 1e6;
        println!(
            "| {scenario} | {} | {:.0} ({least:.0} to {best:.0}) | {:.1} | {:.1} | {more} |",
            systems[c],
            median(speed),
            each(|r| r.cpu / r.count as f64),
            each(|r| r.redis_cpu / r.count as f64),
        );
    }
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |n: usize| args.get(n).map(String::as_str).unwrap_or_default();
    let number = |n: usize, default: usize| word(n).parse().unwrap_or(default);
    match word(0) {
        "run" => {
            let scenarios = match word(3) {
                "" => "single,bulk,process@1,process@50,process@200,latency,memory",
                given => given,
            };
            run(number(1, 3), number(2, 20_000), &scenarios.split(',').collect::<Vec<_>>())
        }
        "foreign" => runtime()?.block_on(foreign(number(1, 3), number(2, 100_000))),
        "one" => {
            let (url, scenario, count, concurrency) = (word(2), word(3), number(4, 1_000), number(5, 10));
            runtime()?.block_on(async {
                match word(1) {
                    "tidegate" | "tidegate-built-in" => {
                        play(Tidegate::open(url).await?, scenario, count, concurrency).await
                    }
                    "bullmq-official" => play(BullMq::open(url).await?, scenario, count, concurrency).await,
                    "apalis-redis" => play(Apalis::open(url).await?, scenario, count, concurrency).await,
                    other => bail!("there is no {other:?}"),
                }
            })?;
            // Workers of others go on for as long as the process does.
            std::process::exit(0)
        }
        _ => bail!("jobs-bench run [ROUNDS] [COUNT] [SCENARIOS,…] | foreign [ROUNDS] [AHEAD]"),
    }
}
