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
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

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

/// Dispatches with 64 tasks, each one at a time.
async fn sixty_four<F, Fut>(count: usize, dispatch: F) -> Result<()>
where
    F: Fn(usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (next, dispatch) = (next.clone(), dispatch.clone());
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return Ok::<(), anyhow::Error>(());
                    }
                    dispatch(i).await?;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn tidegate(url: &str, scenario: &str, count: usize, concurrency: usize) -> Result<()> {
    use jobs::{Config, Jobs, Labels, NewJob, worker::{Payload, State, Worker}};
    let jobs = Jobs::new(store::Store::open(url).await?, Config::default())?;
    let new = |i: usize| NewJob::new("noop", &body(i));
    let bulk = async |count: usize| -> Result<()> {
        for first in (0..count).step_by(1_000) {
            let batch = (first..count.min(first + 1_000)).map(new).collect::<Result<Vec<_>, _>>()?;
            for outcome in jobs.dispatch_all(batch).await {
                outcome?;
            }
        }
        Ok(())
    };
    async fn noop(Payload(body): Payload<Body>, State(counter): State<Counter>) {
        counter.ran(body.i);
    }
    let counter = Counter::new(count);
    let cancel = tokio_util::sync::CancellationToken::new();
    let start = |concurrency: usize| {
        let worker = Worker::new(&jobs, Labels::new("bench")?, counter.clone())
            .handle("noop", noop)
            .concurrency(concurrency);
        Ok::<_, anyhow::Error>(tokio::spawn(worker.run(cancel.clone())))
    };
    match scenario {
        "single" => {
            jobs.stats().await?;
            let begun = ready()?;
            let jobs = jobs.clone();
            sixty_four(count, move |i| {
                let jobs = jobs.clone();
                async move {
                    jobs.dispatch(NewJob::new("noop", &body(i))?).await?;
                    Ok(())
                }
            })
            .await?;
            report(begun, count, Vec::new())
        }
        "bulk" | "fill" => {
            jobs.stats().await?;
            let begun = ready()?;
            bulk(count).await?;
            report(begun, count, Vec::new())
        }
        "process" => {
            bulk(count).await?;
            let begun = ready()?;
            let worker = start(concurrency)?;
            counter.done.notified().await;
            // It ends when every outcome is written.
            cancel.cancel();
            worker.await??;
            report(begun, count, Vec::new())?;
            anyhow::ensure!(jobs.stats().await?.processed == count as u64, "not all are done");
            Ok(())
        }
        _ => {
            let worker = start(10)?;
            while jobs.stats().await?.workers == 0 {}
            tokio::time::sleep(Duration::from_millis(300)).await;
            let begun = ready()?;
            for i in 0..count {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counter.sent(i);
                jobs.dispatch(new(i)?).await?;
            }
            counter.done.notified().await;
            report(begun, count, counter.times())?;
            cancel.cancel();
            worker.await??;
            Ok(())
        }
    }
}

/// Microseconds per claim of one job, and per job in claims of 64, behind jobs for others.
async fn claims_behind(store: &store::Store, ahead: usize, round: usize) -> Result<(f64, f64)> {
    use jobs::{Config, Jobs, Labels, Namespace, NewJob, Target};
    let namespace = Namespace::parse(format!("behind-{ahead}-{round}"))?;
    let jobs = Jobs::new(store.clone(), Config { namespace, ..Config::default() })?;
    let (ones, most, calls) = (1_000, 64, 40);
    let foreign = |i| Ok(NewJob::new("noop", &body(i))?.target(Target::default().capability("gpu")));
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

async fn bullmq_rs(url: &str, scenario: &str, count: usize, concurrency: usize) -> Result<()> {
    use bullmq::worker::{CancellationToken, ProcessorFn};
    use bullmq::{Job, Queue, QueueOptions, Worker, WorkerOptions};
    let mut options = QueueOptions::default();
    options.connection.url = url.to_owned();
    let queue = Arc::new(Queue::with_options("bench", options).await?);
    let bulk = async |count: usize| -> Result<()> {
        for first in (0..count).step_by(1_000) {
            let batch = (first..count.min(first + 1_000))
                .map(|i| bullmq::BulkJob::new("noop", body(i)))
                .collect();
            queue.add_bulk(batch).await?;
        }
        Ok(())
    };
    let counter = Counter::new(count);
    let start = async |concurrency: usize| {
        let counter = counter.clone();
        let processor: ProcessorFn = Arc::new(move |job: Job, _: CancellationToken| {
            let counter = counter.clone();
            Box::pin(async move {
                counter.ran(job.data()["i"].as_u64().unwrap_or(0) as usize);
                Ok(serde_json::Value::Null)
            })
        });
        let mut options = WorkerOptions { concurrency, ..WorkerOptions::default() };
        options.connection.url = url.to_owned();
        Worker::with_options("bench", processor, options).await
    };
    match scenario {
        "single" => {
            let begun = ready()?;
            let queue = queue.clone();
            sixty_four(count, move |i| {
                let queue = queue.clone();
                async move {
                    queue.add("noop", body(i)).await?;
                    Ok(())
                }
            })
            .await?;
            report(begun, count, Vec::new())
        }
        "bulk" | "fill" => {
            let begun = ready()?;
            bulk(count).await?;
            report(begun, count, Vec::new())
        }
        "process" => {
            bulk(count).await?;
            let begun = ready()?;
            let worker = start(concurrency).await?;
            counter.done.notified().await;
            report(begun, count, Vec::new())?;
            drop(worker);
            std::process::exit(0);
        }
        _ => {
            let _worker = start(10).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            let begun = ready()?;
            for i in 0..count {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counter.sent(i);
                queue.add("noop", body(i)).await?;
            }
            counter.done.notified().await;
            report(begun, count, counter.times())?;
            std::process::exit(0);
        }
    }
}

async fn apalis_redis(url: &str, scenario: &str, count: usize, concurrency: usize) -> Result<()> {
    use apalis::prelude::*;
    use apalis_redis::{Config, RedisStorage};
    let conn = apalis_redis::connect(url).await?;
    let storage = RedisStorage::<Body, _>::new(conn).with_config(Config::default().batch_size(100));
    let mut pusher = storage.clone();
    let mut bulk = async |count: usize| -> Result<()> {
        for first in (0..count).step_by(1_000) {
            let batch: Vec<Body> = (first..count.min(first + 1_000)).map(body).collect();
            pusher.push_bulk(batch).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        }
        Ok(())
    };
    async fn noop(task: Body, counter: Data<Counter>) {
        counter.ran(task.i);
    }
    let counter = Counter::new(count);
    let start = |concurrency: usize| {
        let worker = WorkerBuilder::new("bench")
            .backend(storage.clone())
            .data(counter.clone())
            .concurrency(concurrency)
            .build(noop);
        tokio::spawn(worker.run())
    };
    match scenario {
        "single" => {
            let begun = ready()?;
            sixty_four(count, move |i| {
                let mut storage = storage.clone();
                async move {
                    storage.push(body(i)).await.map_err(|error| anyhow::anyhow!("{error}"))
                }
            })
            .await?;
            report(begun, count, Vec::new())
        }
        "bulk" | "fill" => {
            let begun = ready()?;
            bulk(count).await?;
            report(begun, count, Vec::new())
        }
        "process" => {
            bulk(count).await?;
            let begun = ready()?;
            let _worker = start(concurrency);
            counter.done.notified().await;
            report(begun, count, Vec::new())?;
            std::process::exit(0);
        }
        _ => {
            let _worker = start(10);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let begun = ready()?;
            for i in 0..count {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counter.sent(i);
                pusher.push(body(i)).await.map_err(|error| anyhow::anyhow!("{error}"))?;
            }
            counter.done.notified().await;
            report(begun, count, counter.times())?;
            std::process::exit(0);
        }
    }
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
            let runtime = runtime()?;
            let (url, scenario, count, concurrency) = (word(2), word(3), number(4, 1_000), number(5, 10));
            runtime.block_on(async {
                match word(1) {
                    "tidegate" | "tidegate-built-in" => tidegate(url, scenario, count, concurrency).await,
                    "bullmq-official" => bullmq_rs(url, scenario, count, concurrency).await,
                    "apalis-redis" => apalis_redis(url, scenario, count, concurrency).await,
                    other => bail!("there is no {other:?}"),
                }
            })
        }
        _ => bail!("jobs-bench run [ROUNDS] [COUNT] [SCENARIOS,…] | foreign [ROUNDS] [AHEAD]"),
    }
}
