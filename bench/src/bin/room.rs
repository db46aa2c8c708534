//! The waiting room with many waiting: joining, heartbeats, questions, the gate, memory, restart.
//!
//!   room fill URL N      fill a queue; ids go to N.ids; ends by SIGKILL
//!   room lib URL N       open it again (the time is shown) and measure the library
//!   room ratio URL N     in process against the original scripts on Redis, in turns
//!   room http URL N      the same calls over HTTP, from another process
//!   room count URL N C   C calls of the kind ONLY names and no measuring, to run under callgrind; the
//!                        difference to a run with none is what a call costs
//!   room serve URL       (used by http) the server, until its input ends
//!   room plot            draws what lib and http left in the file named by POINTS
//!
//! URL is `embedded:FOLDER` or `redis://…`. SECONDS (default 1) is how long a round is and ROUNDS
//! (default 5) how many there are of each call; TASKS (default 2 in process, 32 on Redis, 50 against the
//! original scripts, which are called from as many connections) is how many ask at once through the
//! library, CLIENTS (default 32) how many connections over HTTP; ONLY names one call to measure alone.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::{Disk, Figures, Server, setting};
use room::{
    AdmissionRate, NewPosition, Options, PositionId, QueueConfig, QueueId, Room, SessionStart,
    Visitor, VisitorPriority,
};
use store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Positions whose holders call while it is measured: with so many none calls twice in a second, which
/// would have nothing to write.
const SAMPLE: usize = 1_000_000;
/// Who calls at the same time where our calls are set against the original scripts, on both sides.
const CALLERS: u64 = 50;
/// Visitors inside while it is measured.
const INSIDE: usize = 1_000;
const AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    runtime.block_on(async {
        match args[..] {
            ["fill", url, n] => fill(url, n.parse()?).await,
            ["lib", url, n] => library(url, n.parse()?).await,
            ["ratio", url, n] => ratio(url, n.parse()?).await,
            ["http", url, n] => http(url, n.parse()?).await,
            ["count", url, n, calls] => count(url, n.parse()?, calls.parse()?).await,
            ["serve", url] => serve(url).await,
            ["plot"] => draw(),
            _ => bail!("room fill|lib|ratio|http URL N, room count URL N C, or room plot"),
        }
    })
}

fn queue() -> Result<QueueId> {
    Ok(QueueId::parse("bench")?)
}

async fn open(url: &str) -> Result<Room> {
    let store = Store::open(url).await?;
    Ok(Room::open(store, Options::default()).await?)
}

fn newcomer(n: u64) -> NewPosition {
    let [.., a, b, c] = n.to_be_bytes();
    NewPosition {
        address: Some(std::net::Ipv4Addr::new(10, a, b, c).into()),
        user_agent: AGENT.to_owned(),
        ..NewPosition::default()
    }
}

/// A queue with `n` waiting, with every documented field.
async fn fill(url: &str, n: u64) -> Result<()> {
    let room = open(url).await?;
    let queue = queue()?;
    let config = QueueConfig {
        max_active: 0,
        max_queue_size: 0,
        admission: AdmissionRate { count: 0, per_seconds: 1, burst: 1 },
        ..QueueConfig::default()
    };
    room.create_queue(&queue, config).await?;
    // The one the empty bucket lets in.
    room.enqueue(&queue, newcomer(0)).await?;
    let before = memory(&room).await?;
    let start = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let (room, queue, next) = (room.clone(), queue.clone(), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= n {
                    return Ok::<_, room::Error>(ids);
                }
                let id = room.enqueue(&queue, newcomer(at)).await?.position.id;
                if at % (n / SAMPLE as u64).max(1) == 0 {
                    ids.push(id.to_string());
                }
            }
        }));
    }
    let mut ids = Vec::new();
    for task in tasks {
        ids.extend(task.await??);
    }
    let took = start.elapsed();
    let after = memory(&room).await?;
    println!(
        "filled {n} in {:.1} s ({:.0} enqueues/s), {:.0} bytes each",
        took.as_secs_f64(),
        n as f64 / took.as_secs_f64(),
        (after as f64 - before as f64) / n as f64
    );
    std::fs::write(format!("{n}.ids"), ids.join("\n"))?;
    // The next one to open the store finds it as a crash leaves it.
    Command::new("kill").args(["-9", &std::process::id().to_string()]).status()?;
    bail!("still alive")
}

/// Resident memory of the store: the process's for the built-in one, what the server says for Redis.
async fn memory(room: &Room) -> Result<u64> {
    if room.store().embedded().is_some() {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        return Ok(kib * 1024);
    }
    let info: String =
        store::redis::cmd("INFO").arg("memory").query_async(&mut room.store().clone()).await?;
    let line =
        info.lines().find_map(|line| line.strip_prefix("used_memory_rss:")).context("no line")?;
    Ok(line.trim().parse()?)
}

fn ids(n: u64) -> Result<Vec<PositionId>> {
    let text = std::fs::read_to_string(format!("{n}.ids")).context("run fill first")?;
    text.lines().map(|line| Ok(PositionId::parse(line)?)).collect()
}

/// Visitors who are inside, by their passes.
async fn passes(room: &Room, queue: &QueueId) -> Result<Vec<String>> {
    let mut passes = Vec::new();
    while passes.len() < INSIDE {
        let admitted = room.admit_by_hand(queue, INSIDE - passes.len()).await?.ids;
        if admitted.is_empty() {
            bail!("nobody could be let in");
        }
        for id in admitted {
            match room.start_session(queue, &id, &Visitor::default()).await? {
                SessionStart::Active { session, .. } => {
                    passes.push(room.issue_pass(&session).await?)
                }
                other => bail!("{other:?}"),
            }
        }
    }
    Ok(passes)
}

/// Calls per second in each round, and times of calls.
struct Measured {
    per_second: Vec<f64>,
    /// In nanoseconds, sorted.
    times: Vec<u64>,
}

impl Measured {
    /// In microseconds, the time that this share of the calls needed at most.
    fn at(&self, share: f64) -> f64 {
        let at = (self.times.len() as f64 * share) as usize;
        let at = at.min(self.times.len().saturating_sub(1));
        self.times.get(at).copied().unwrap_or(0) as f64 / 1e3
    }

    fn show(&self, backend: &str, n: u64, what: &str) -> Result<()> {
        let rate = Figures::of(self.per_second.clone());
        println!(
            "| {n} | {what} | {:.0} ({:.0}–{:.0}) | {:.1} | {:.1} | {:.1} |",
            rate.median,
            rate.low,
            rate.high,
            self.at(0.5),
            self.at(0.99),
            self.at(0.999)
        );
        if let Ok(points) = std::env::var("POINTS") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(points)?;
            writeln!(file, "{n} {backend} {what} {:.3}", self.at(0.5))?;
        }
        Ok(())
    }
}

fn head() {
    println!("| waiting | call | calls/s, median (low–high) | p50 µs | p99 µs | p99.9 µs |");
    println!("|---|---|---|---|---|---|");
}

/// Draws the points of a run.
fn draw() -> Result<()> {
    let points = std::fs::read_to_string(std::env::var("POINTS").context("name POINTS")?)?;
    let colours =
        ["#036", "#69c", "#063", "#6c9", "#c33", "#e99", "#c93", "#ec9", "#333", "#777", "#939"];
    let mut lines: Vec<bench::plot::Line> = Vec::new();
    for row in points.lines() {
        let words: Vec<&str> = row.split(' ').collect();
        let [n, backend, what, time] = words[..] else { bail!("odd line {row:?}") };
        let name = format!("{what} {backend}");
        let point = (n.parse()?, time.parse()?);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => {
                let colour = colours[lines.len() % colours.len()];
                lines.push(bench::plot::Line { name, colour, points: vec![point] });
            }
        }
    }
    let above = "microseconds for one call (half need less)";
    print!("{}", bench::plot::plot(above, "visitors waiting", &lines));
    Ok(())
}

/// Is this call to be measured?
fn wanted(what: &str) -> bool {
    std::env::var("ONLY").map_or(true, |only| only == what)
}

fn span() -> Duration {
    Duration::from_secs(setting("SECONDS", 1))
}

/// Rounds of `many` tasks at once, each of which gives the times of its calls until a moment.
async fn rounds<F, O>(many: usize, task: F) -> Result<Measured>
where
    F: Fn(usize, Instant) -> O,
    O: Future<Output = Result<Vec<u64>>> + Send + 'static,
{
    let mut measured = Measured { per_second: Vec::new(), times: Vec::new() };
    for round in 0..usize::try_from(setting("ROUNDS", 5))? {
        let start = Instant::now();
        let until = start + span();
        let tasks: Vec<_> =
            (0..many).map(|n| tokio::spawn(task(round * 7_919 + n, until))).collect();
        let before = measured.times.len();
        for task in tasks {
            measured.times.extend(task.await??);
        }
        let calls = measured.times.len() - before;
        measured.per_second.push(calls as f64 / start.elapsed().as_secs_f64());
    }
    measured.times.sort_unstable();
    Ok(measured)
}

/// A call from `many` tasks at once, each with numbers of its own.
async fn measure<F, O>(many: usize, call: F) -> Result<Measured>
where
    F: Fn(usize) -> O + Clone + Send + 'static,
    O: Future<Output = Result<()>> + Send,
{
    rounds(many, |first, until| {
        let call = call.clone();
        async move {
            let (mut times, mut n) = (Vec::new(), first);
            while Instant::now() < until {
                let from = Instant::now();
                call(n).await?;
                times.push(nanos(from));
                n += many;
            }
            Ok(times)
        }
    })
    .await
}

fn nanos(from: Instant) -> u64 {
    u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

async fn heartbeats(room: &Room, ids: &Arc<Vec<PositionId>>, many: usize) -> Result<Measured> {
    let (room, queue, ids) = (room.clone(), queue()?, Arc::clone(ids));
    measure(many, move |n| {
        let (room, queue, id) = (room.clone(), queue.clone(), ids[n % ids.len()]);
        async move {
            room.heartbeat(&queue, &id, Some(VisitorPriority::NORMAL), None).await?;
            Ok(())
        }
    })
    .await
}

async fn enqueues(room: &Room, many: usize) -> Result<Measured> {
    let (room, queue) = (room.clone(), queue()?);
    measure(many, move |n| {
        let (room, queue) = (room.clone(), queue.clone());
        async move {
            room.enqueue(&queue, newcomer(n as u64)).await?;
            Ok(())
        }
    })
    .await
}

async fn library(url: &str, n: u64) -> Result<()> {
    let start = Instant::now();
    let room = open(url).await?;
    let (queue, ids) = (queue()?, Arc::new(ids(n)?));
    let position = room.status(&queue, &ids[ids.len() / 2]).await?;
    println!(
        "{url}: {n} waiting; open and first answer (position {:?}) after {:.2} s",
        position.number,
        start.elapsed().as_secs_f64()
    );
    let (backend, many) = match room.store().embedded() {
        Some(_) => ("built-in", 2),
        None => ("redis", 32),
    };
    let many = usize::try_from(setting("TASKS", many))?;
    head();
    if wanted("heartbeat") {
        heartbeats(&room, &ids, many).await?.show(backend, n, "heartbeat")?;
    }
    let asked = {
        let (room, queue, ids) = (room.clone(), queue.clone(), Arc::clone(&ids));
        move |n: usize| {
            let (room, queue, id) = (room.clone(), queue.clone(), ids[n % ids.len()]);
            async move {
                room.status(&queue, &id).await?;
                Ok(())
            }
        }
    };
    if wanted("status") {
        measure(many, asked).await?.show(backend, n, "status")?;
    }
    if wanted("enqueue") {
        enqueues(&room, many).await?.show(backend, n, "enqueue")?;
    }
    if !wanted("gate") {
        return Ok(());
    }
    let passes = Arc::new(passes(&room, &queue).await?);
    let gated = move |n: usize| {
        let (room, queue, passes) = (room.clone(), queue.clone(), Arc::clone(&passes));
        async move {
            room.verify_pass(&queue, &passes[n % passes.len()]).await?;
            Ok(())
        }
    };
    measure(2, gated).await?.show(backend, n, "gate")?;
    Ok(())
}

/// So many calls and nothing else.
async fn count(url: &str, n: u64, calls: usize) -> Result<()> {
    let room = open(url).await?;
    let (queue, ids) = (queue()?, Arc::new(ids(n)?));
    let many = usize::try_from(setting("TASKS", 1))?;
    let what = std::env::var("ONLY").unwrap_or_else(|_| "heartbeat".to_owned());
    let mut tasks = Vec::new();
    for first in 0..many {
        let (room, queue, ids, what) =
            (room.clone(), queue.clone(), Arc::clone(&ids), what.clone());
        tasks.push(tokio::spawn(async move {
            for n in (first..calls).step_by(many) {
                let id = &ids[n % ids.len()];
                match what.as_str() {
                    "enqueue" => _ = room.enqueue(&queue, newcomer(n as u64)).await?,
                    "status" => _ = room.status(&queue, id).await?,
                    _ => {
                        _ = room.heartbeat(&queue, id, Some(VisitorPriority::NORMAL), None).await?
                    }
                }
            }
            Ok::<_, room::Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// In turns: calls in process, and the original script on Redis under redis-benchmark.
async fn ratio(url: &str, n: u64) -> Result<()> {
    let room = open(url).await?;
    let ids = Arc::new(ids(n)?);
    let redis = Server::redis(Disk::EverySecond)?;
    let fill = "for i = 0, tonumber(ARGV[1]) - 1 do local id = string.format('%012d', i) \
        redis.call('HSET', 'position:' .. id, 'status', 'waiting', 'last_heartbeat', '1') \
        redis.call('ZADD', 'heartbeat:active', 1, id) end";
    let client = store::redis::Client::open(redis.url())?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(
            &store::redis::AsyncConnectionConfig::new()
                .set_response_timeout(Some(Duration::from_secs(200))),
        )
        .await?;
    let _: () =
        store::redis::cmd("EVAL").arg(fill).arg(0).arg(n).query_async(&mut connection).await?;
    println!("| waiting | call | in process/s | script on redis/s | ratio, median (low–high) |");
    println!("|---|---|---|---|---|");
    let many = usize::try_from(setting("TASKS", CALLERS))?;
    for (what, script) in [
        ("heartbeat", include_str!("../../heartbeat.lua")),
        ("enqueue", include_str!("../../enqueue.lua")),
    ] {
        if !wanted(what) {
            continue;
        }
        let sha: String = store::redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await?;
        let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..setting("TURNS", 5) {
            let mine = match what {
                "heartbeat" => heartbeats(&room, &ids, many).await?,
                _ => enqueues(&room, many).await?,
            };
            let mine = Figures::of(mine.per_second).median;
            let other = redis_benchmark(redis.port, n, what, &sha)?;
            ratios.push(mine / other);
            ours.push(mine);
            theirs.push(other);
        }
        println!(
            "| {n} | {what} | {:.0} | {:.0} | {} |",
            Figures::of(ours).median,
            Figures::of(theirs).median,
            Figures::of(ratios)
        );
    }
    Ok(())
}

fn redis_benchmark(port: u16, n: u64, what: &str, sha: &str) -> Result<f64> {
    let mut command = Command::new("redis-benchmark");
    let callers = CALLERS.to_string();
    command.args(["-p", &port.to_string(), "-n", "100000", "-c", &callers, "--csv"]);
    match what {
        "heartbeat" => command
            .args(["-r", &n.to_string(), "EVALSHA", sha, "2", "position:__rand_int__"])
            .args(["heartbeat:active", "__rand_int__", "1704067260", "1800"]),
        // Names nobody has yet, mostly: each call enqueues a visitor.
        _ => command
            .args(["-r", "999999999999", "EVALSHA", sha, "5", "queue:bench:waiting:0"])
            .args(["queue:bench:positions", "position:__rand_int__", "ipmap:bench:__rand_int__"])
            .args(["heartbeat:active", "__rand_int__", "1704067260", "a1b2c3d4e5f6a7b8", "1800"])
            .arg("{}"),
    };
    let out = command.output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().next_back().context("redis-benchmark said nothing")?;
    let figure = line.split("\",\"").nth(1).with_context(|| format!("odd line {line:?}"))?;
    Ok(figure.trim_matches('"').parse()?)
}

/// The server as the product runs it: HTTP, the room and its keeper.
async fn serve(url: &str) -> Result<()> {
    // As the product logs.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::new("info"))
        .init();
    let room = open(url).await?;
    let stop = tokio_util::sync::CancellationToken::new();
    let keeper = room::RoomMaintenance::new(room.clone());
    tokio::spawn({
        let stop = stop.clone();
        async move { keeper.run(stop).await }
    });
    let app = web::App::new(web::AppParts {
        store: room.store().clone(),
        services: vec![room_web::RoomService::on(room, 600)],
        known_services: &[],
        // Every visitor has an address of its own, as behind a proxy.
        settings: web::Settings {
            trusted_proxies: vec!["127.0.0.1/32".parse()?],
            ..web::Settings::default()
        },
        admin_token: None,
        instance: "bench".to_owned(),
        shown_settings: Vec::new(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let server = web::serve::Server::new(app, listener);
    println!("{}", server.address()?.port());
    tokio::spawn(server.run(stop, Duration::ZERO));
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

async fn http(url: &str, n: u64) -> Result<()> {
    let queue = queue()?;
    let (tokens, passes) = {
        let room = open(url).await?;
        let mut tokens = Vec::new();
        for id in ids(n)?.iter().take(SAMPLE) {
            tokens.push(room.position_token(&room.status(&queue, id).await?).await?);
        }
        (tokens, passes(&room, &queue).await?)
    };
    let mut child = Command::new(std::env::current_exe()?)
        .args(["serve", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let out = child.stdout.take().context("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
    let port: u16 = line.trim().parse().context("the server did not start")?;
    println!("{url}: {n} waiting, over HTTP");
    head();
    let call = |head: &str, body: &str, extra: &[String]| -> Vec<Vec<u8>> {
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
        };
        let one = |(n, extra): (usize, &String)| {
            let from =
                format!("x-forwarded-for: 10.{}.{}.{}\r\n", n >> 16 & 255, n >> 8 & 255, n & 255);
            format!("{head} HTTP/1.1\r\nhost: x\r\n{from}{extra}{length}\r\n{body}").into_bytes()
        };
        extra.iter().enumerate().map(one).collect()
    };
    let bearer: Vec<String> =
        tokens.iter().map(|token| format!("authorization: Bearer {token}\r\n")).collect();
    let cookie: Vec<String> =
        passes.iter().map(|pass| format!("cookie: wr_bench={pass}\r\n")).collect();
    for (what, requests) in [
        ("heartbeat", call("POST /api/v1/queues/bench/heartbeat", "{}", &bearer)),
        ("status", call("GET /api/v1/queues/bench/status", "", &bearer)),
        ("gate", call("GET /gate/forward/bench", "", &cookie)),
        ("enqueue", call("POST /api/v1/queues/bench/enqueue", "{}", &vec![String::new(); SAMPLE])),
    ] {
        if wanted(what) {
            load(port, requests)?.show("http", n, what)?;
        }
    }
    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}

/// Asks over many connections that are kept, each waiting for its answer. On one thread of its own, so
/// that the load costs the server's cores as little as can be.
fn load(port: u16, requests: Vec<Vec<u8>>) -> Result<Measured> {
    let many = usize::try_from(setting("CLIENTS", 32))?;
    let requests = Arc::new(requests);
    let ask = move |first: usize, until: Instant| {
        let requests = Arc::clone(&requests);
        async move {
            let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
            socket.set_nodelay(true)?;
            let (mut times, mut n) = (Vec::with_capacity(1 << 16), first);
            let mut buffer = Vec::with_capacity(1 << 14);
            let mut from = Instant::now();
            while from < until {
                socket.write_all(&requests[n % requests.len()]).await?;
                answer(&mut socket, &mut buffer).await?;
                let now = Instant::now();
                times.push(u64::try_from((now - from).as_nanos())?);
                from = now;
                n += many;
            }
            Ok(times)
        }
    };
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(rounds(many, ask))
    };
    std::thread::spawn(run).join().map_err(|_| anyhow::anyhow!("the load broke off"))?
}

/// Reads one answer, which must be a good one.
async fn answer(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    loop {
        if socket.read_buf(buffer).await? == 0 {
            bail!("the server closed the connection");
        }
        let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") else { continue };
        let head = &buffer[..end];
        if !head.starts_with(b"HTTP/1.1 20") {
            bail!("{}", String::from_utf8_lossy(head));
        }
        let mut length = 0;
        if let Some(at) = memchr::memmem::find(head, b"\r\ncontent-length: ") {
            for digit in head[at + 18..].iter().take_while(|byte| byte.is_ascii_digit()) {
                length = length * 10 + usize::from(digit - b'0');
            }
        }
        while buffer.len() < end + 4 + length {
            if socket.read_buf(buffer).await? == 0 {
                bail!("the server closed the connection");
            }
        }
        return Ok(());
    }
}
