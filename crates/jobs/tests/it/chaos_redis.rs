//! A storm: workers and schedulers killed at random, replies lost after the script ran, the server
//! killed and restarted, a failover. On real servers only: the built-in store has no connections to
//! lose, and its own crashes are the store's tests.
//!
//! What must hold at the end: every job that was acknowledged has completed, exactly once by the
//! store's own count; nothing is left over; and what a dead worker held runs again within its lease
//! and five seconds. `CHAOS_JOBS=100000` runs the whole of it; ./test runs a smaller storm.
//!
//! What a server may lose is the server's promise, so it is chosen here: with `appendfsync always`
//! nothing acknowledged is lost by a kill; a failover may lose what no replica had yet, so the
//! producer waits for a replica (`WAIT`), and a completion that is lost makes the job run again.

use std::{
    collections::BTreeMap,
    env,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use jobs::{
    Config, Fault, Jobs, Labels, NewJob,
    worker::{Attempt, Payload, State, Worker},
};
use store::{
    Options, Store, Timeouts,
    redis::{self, AsyncCommands as _},
};
use testkit::{Proxy, RedisServer, Sentinel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::*;

const LEASE: Duration = Duration::from_secs(2);
const RECOVERY: Duration = Duration::from_secs(5);

/// Jobs at the end of the storm that are not done before it is over, so that somebody holds them when
/// everybody dies.
const LAST: usize = 10;

/// What handlers know of all jobs.
struct Ledger {
    /// How often each job's handler ran.
    runs: Vec<AtomicU32>,
    /// From this job on, handlers wait for the end of the storm.
    waits_from: usize,
    storm_over: CancellationToken,
}

type Runs = Arc<Ledger>;

impl Ledger {
    fn new(count: usize, waits_from: usize) -> Runs {
        let runs = (0..count).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { runs, waits_from, storm_over: CancellationToken::new() })
    }
}

fn config() -> Config {
    Config {
        lock_ttl: LEASE,
        heartbeat: Duration::from_millis(500),
        // Every job may be unlucky as often as the storm likes.
        poison_after: 1_000,
        events_max: 1_000,
        ..Config::default()
    }
}

/// A queue through connections of its own, as another process has them.
async fn open(url: &str) -> Jobs {
    let options = Options {
        timeouts: Timeouts {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(5),
            patience: Duration::from_millis(200),
            heartbeat: Duration::from_millis(500),
        },
        ..Options::default()
    };
    loop {
        // Whoever starts while the server is away tries again.
        match Store::open_with(url, options.clone()).await {
            Ok(store) => return Jobs::new(store, config()).unwrap(),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn work(
    Payload(n): Payload<usize>,
    State(runs): State<Runs>,
    attempt: Attempt,
) -> Result<usize, Fault> {
    runs.runs[n].fetch_add(1, Ordering::Relaxed);
    if n >= runs.waits_from {
        runs.storm_over.cancelled().await;
    }
    if n % 97 == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if n % 50 == 0 && attempt.number == 1 {
        return Err(Fault::new("the first time it fails"));
    }
    Ok(n)
}

/// Starts a worker. Aborting the task is its sudden death: nothing is handed back or said.
fn start_worker(url: &str, runs: &Runs, stop: &CancellationToken) -> JoinHandle<()> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("w{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let (url, runs, stop) = (url.to_owned(), runs.clone(), stop.clone());
    tokio::spawn(async move {
        while !stop.is_cancelled() {
            let jobs = open(&url).await;
            let worker = Worker::new(&jobs, Labels::new(name.as_str()).unwrap(), runs.clone())
                .handle("work", work)
                .background(false);
            // A worker that cannot register starts anew, as its supervisor would have it.
            if worker.run(stop.clone()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    })
}

fn start_background(url: &str, stop: &CancellationToken) -> JoinHandle<()> {
    let (url, stop) = (url.to_owned(), stop.clone());
    tokio::spawn(async move {
        let name = format!("roles-{}", fastrand_name());
        open(&url).await.run_background(&name, stop).await;
    })
}

fn fastrand_name() -> String {
    jobs::JobId::random().to_string()
}

fn new_job(n: usize) -> NewJob {
    let job = NewJob::new("work", &n).unwrap().id(jobs::JobId::parse(format!("j{n}")).unwrap());
    let backoff = jobs::Retry {
        attempts: 1_000,
        backoff: jobs::Backoff {
            growth: jobs::Growth::Fixed,
            delay: Duration::from_millis(50),
            max_delay: None,
            jitter: false,
        },
        ..jobs::Retry::default()
    };
    let job = job.retry(backoff);
    if n % 10 == 3 { job.delay(Duration::from_millis(n as u64 % 700)) } else { job }
}

/// Dispatches jobs under ids of their own, again and again until each is acknowledged.
async fn dispatch(jobs: &Jobs, numbers: std::ops::Range<usize>) {
    let numbers: Vec<usize> = numbers.collect();
    for chunk in numbers.chunks(200) {
        let mut left: Vec<usize> = chunk.to_vec();
        while !left.is_empty() {
            let outcomes =
                jobs.dispatch_all(left.iter().map(|n| new_job(*n)).collect::<Vec<_>>()).await;
            left = left
                .into_iter()
                .zip(outcomes)
                .filter(|(_, done)| done.is_err())
                .map(|(n, _)| n)
                .collect();
            if !left.is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// How many jobs the store says have completed, past any proxy.
async fn processed(store: &Store) -> u64 {
    let done: Result<Option<u64>, _> = store.clone().get("bridge:metrics:jobs:processed").await;
    done.ok().flatten().unwrap_or(0)
}

/// Who runs what.
async fn claims(store: &Store) -> BTreeMap<String, String> {
    let mut claims = Raw(store.clone()).hash("bridge:jobs:claims").await;
    claims.remove("-");
    claims
}

async fn check(store: &Store, count: usize, runs: &Runs) {
    for (n, runs) in runs.runs.iter().enumerate() {
        assert!(runs.load(Ordering::Relaxed) > 0, "job j{n} is said to have run");
    }
    check_store(store, count).await;
}

async fn check_store(store: &Store, count: usize) {
    let raw = Raw(store.clone());
    check_invariants(&raw).await;
    let names: Vec<usize> = (0..count).collect();
    for chunk in names.chunks(1_000) {
        let keys: Vec<String> = chunk.iter().map(|n| format!("bridge:jobs:status:j{n}")).collect();
        let found: Vec<Option<String>> =
            redis::cmd("MGET").arg(keys).query_async(&mut store.clone()).await.unwrap();
        for (n, status) in chunk.iter().zip(found) {
            assert_eq!(status.as_deref(), Some("completed"), "job j{n}");
        }
    }
    let finished: usize = raw.call(&["LLEN", "bridge:jobs:finished"]).await;
    assert_eq!(finished, count, "ended once each");
    assert_eq!(processed(store).await, count as u64, "completed once each");
    for (place, command) in
        [("waiting", "LLEN"), ("active", "SCARD"), ("delayed", "ZCARD"), ("deadletter", "LLEN")]
    {
        let left: usize = raw.call(&[command, &format!("bridge:jobs:{place}")]).await;
        assert_eq!(left, 0, "left in {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_completes_twice_in_a_storm() {
    let count: usize = env::var("CHAOS_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(12_000);
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let proxy = Proxy::start(server.port(), 7).await.unwrap();
    let (url, direct) = (proxy.url(), server.url());
    let runs = Ledger::new(count, count - LAST);
    let stop = CancellationToken::new();
    let look = open(&direct).await;
    let done = Arc::new(AtomicBool::new(false));

    let producer = tokio::spawn({
        let url = url.clone();
        async move {
            let jobs = open(&url).await;
            dispatch(&jobs, 0..count).await;
        }
    });
    proxy.lose_replies(150);
    let killer = tokio::spawn({
        let (url, runs, stop, done) = (url.clone(), runs.clone(), stop.clone(), done.clone());
        async move {
            let mut workers: Vec<_> = (0..20).map(|_| start_worker(&url, &runs, &stop)).collect();
            let mut background: Vec<_> = (0..2).map(|_| start_background(&url, &stop)).collect();
            let (mut chance, mut killed) = (0x9E37_79B9_7F4A_7C15_u64, 0);
            while !done.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(120)).await;
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pick = (chance >> 33) as usize;
                workers[pick % 20].abort();
                workers[pick % 20] = start_worker(&url, &runs, &stop);
                killed += 1;
                if killed % 8 == 0 {
                    let pick = pick / 20 % 2;
                    background[pick].abort();
                    background[pick] = start_background(&url, &stop);
                }
            }
            (workers, background, killed)
        }
    });

    // Two sudden deaths of the server on the way; its log brings it back.
    let started = Instant::now();
    let limit = Duration::from_secs(60) + Duration::from_millis(5 * count as u64);
    let mut restarts = 0;
    // The last tenth is for the measured end below.
    let target = count as u64 * 9 / 10;
    loop {
        let so_far = processed(look.store()).await;
        if so_far >= target {
            break;
        }
        if restarts < 2 && so_far > count as u64 * (restarts + 1) / 3 {
            restarts += 1;
            server.kill();
            server.restart();
        }
        if env::var_os("CHAOS_TALK").is_some() && started.elapsed().subsec_millis() < 60 {
            let stats = look.stats().await;
            eprintln!("{:?} {so_far} {stats:?} lost {}", started.elapsed(), proxy.lost());
        }
        assert!(started.elapsed() < limit, "{so_far} of {count} after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(restarts, 2, "the server was killed");
    producer.await.unwrap();

    // The end: everybody dies at once with jobs in flight, one scheduler and four workers come.
    done.store(true, Ordering::Relaxed);
    let (workers, background, killed) = killer.await.unwrap();
    testkit::until("the last jobs are held", async || {
        let held = claims(look.store()).await;
        (count - LAST..count).all(|n| held.contains_key(&format!("j{n}"))).then_some(())
    })
    .await;
    workers.iter().chain(&background).for_each(JoinHandle::abort);
    let lost = proxy.lost();
    proxy.heal();
    let held = claims(look.store()).await;
    assert!(!held.is_empty(), "nobody held anything");
    let calm = CancellationToken::new();
    let died = Instant::now();
    runs.storm_over.cancel();
    let last: Vec<_> = (0..4).map(|_| start_worker(&url, &runs, &calm)).collect();
    let background = start_background(&url, &calm);
    // What the dead held is taken back: nothing is under a claim of theirs any more.
    let mut recovered = None;
    while recovered.is_none() || processed(look.store()).await < count as u64 {
        assert!(died.elapsed() < Duration::from_secs(60) + limit / 10, "it does not end");
        if recovered.is_none()
            && !claims(look.store()).await.iter().any(|(id, claim)| held.get(id) == Some(claim))
        {
            recovered = Some(died.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again: u32 =
        runs.runs.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u32>() - count as u32;
    eprintln!(
        "{count} jobs in {:?}: {killed} workers killed, {lost} replies lost, {restarts} restarts, \
         {} held at the end, taken back after {recovered:?}, all done after {:?}; {again} runs more \
         than jobs",
        started.elapsed(),
        held.len(),
        died.elapsed(),
    );
    assert!(lost > 0, "no reply was lost");
    assert!(
        recovered.is_some_and(|took| took <= LEASE + RECOVERY),
        "taken back after {recovered:?}"
    );
    calm.cancel();
    for task in last {
        task.await.unwrap();
    }
    background.await.unwrap();
    check(look.store(), count, &runs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_workers_jobs_run_again_within_their_lease_and_five_seconds() {
    let server = RedisServer::start();
    let jobs = open(&server.url()).await;
    let runs = Ledger::new(100, 100);
    dispatch(&jobs, 0..100).await;
    let stop = CancellationToken::new();
    let background = start_background(&server.url(), &stop);
    let mut claimer = jobs.claimer(Labels::new("doomed").unwrap());
    let mut held = 0;
    while held < 100 {
        held += claimer.claim(128).await.unwrap().leases.len();
    }
    // It says nothing any more.
    drop(claimer);
    let died = Instant::now();
    let worker = start_worker(&server.url(), &runs, &stop);
    while processed(jobs.store()).await < 100 {
        assert!(died.elapsed() < LEASE + RECOVERY, "not recovered in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    worker.await.unwrap();
    background.await.unwrap();
    check(jobs.store(), 100, &runs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_and_doubles_nothing_that_a_replica_had() {
    let count = 2_000;
    let mut sentinel = Sentinel::start();
    let url = sentinel.url();
    let runs = Ledger::new(count, count);
    let stop = CancellationToken::new();
    let jobs = open(&url).await;
    dispatch(&jobs, 0..count).await;
    // On a connection of its own: `WAIT` is about what came before its own latest write.
    let first = sentinel.master().unwrap();
    let mut direct = sentinel.servers()[first].connection().unwrap();
    let () = redis::cmd("SET").arg("mark").arg(1).query(&mut direct).unwrap();
    let has: usize = redis::cmd("WAIT").arg(2).arg(20_000).query(&mut direct).unwrap();
    assert_eq!(has, 2, "both replicas have every job");
    let mut tasks: Vec<_> = (0..4).map(|_| start_worker(&url, &runs, &stop)).collect();
    tasks.push(start_background(&url, &stop));
    let started = Instant::now();
    while processed(jobs.store()).await < count as u64 / 4 {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let master = sentinel.master().unwrap();
    sentinel.servers()[master].kill();
    while processed(jobs.store()).await < count as u64 {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "{} done",
            processed(jobs.store()).await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    check(jobs.store(), count, &runs).await;
}

/// A worker in a process of its own: the test below, told to be one.
struct WorkerProcess(Child);

const BE_A_WORKER: &str = "CHAOS_WORKER_OF";

impl WorkerProcess {
    fn start(url: &str) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["chaos_redis::workers_killed_as_processes_lose_nothing", "--exact"])
            .env(BE_A_WORKER, url)
            // It ends when this end of the pipe does, so none outlives the test.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for WorkerProcess {
    /// `SIGKILL`.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn be_a_worker(url: &str) {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let name = format!("w{}-0", std::process::id());
    let jobs = open(url).await;
    async fn slow(Payload(n): Payload<usize>) -> Result<usize, Fault> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(n)
    }
    let worker = Worker::new(&jobs, Labels::new(name.as_str()).unwrap(), ()).handle("work", slow);
    worker.background(false).run(CancellationToken::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_killed_as_processes_lose_nothing() {
    if let Ok(url) = env::var(BE_A_WORKER) {
        return be_a_worker(&url).await;
    }
    let count = 4_000;
    let server = RedisServer::start();
    let url = server.url();
    let jobs = open(&url).await;
    dispatch(&jobs, 0..count).await;
    let stop = CancellationToken::new();
    let background = start_background(&url, &stop);
    let limit = Duration::from_secs(120);
    let (started, mut killed) = (Instant::now(), 0);
    let mut workers: Vec<_> = (0..6).map(|_| WorkerProcess::start(&url)).collect();
    while processed(jobs.store()).await < count as u64 / 2 {
        assert!(started.elapsed() < limit, "{} done", processed(jobs.store()).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
        // One that has jobs in flight dies in the middle of them.
        let held = claims(jobs.store()).await;
        let busy = |worker: &WorkerProcess| {
            let name = format!(" w{}-", worker.0.id());
            held.values().any(|claim| claim.contains(&name))
        };
        if let Some(worker) = workers.iter_mut().rev().find(|worker| busy(worker)) {
            *worker = WorkerProcess::start(&url);
            killed += 1;
        }
    }
    assert!(killed > 0, "none was killed with jobs in hand");
    // All at once, and what they held is taken back in time.
    workers.clear();
    let (died, held) = (Instant::now(), claims(jobs.store()).await);
    while claims(jobs.store()).await.iter().any(|(id, claim)| held.get(id) == Some(claim)) {
        assert!(died.elapsed() < LEASE + RECOVERY, "not taken back in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    workers.extend((0..2).map(|_| WorkerProcess::start(&url)));
    while processed(jobs.store()).await < count as u64 {
        assert!(started.elapsed() < limit, "{} done", processed(jobs.store()).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(workers);
    stop.cancel();
    background.await.unwrap();
    check_store(jobs.store(), count).await;
}
