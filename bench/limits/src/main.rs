//! One contender of the limits benchmark, for so many seconds: `limits-bench CONTENDER SECONDS [URL]`.
//!
//! The process says `ready` and waits for a line, so that the driver (`run`) can note the CPU time of Redis;
//! then it checks 10,000 identities with 50 calls in flight, and prints one line of JSON: checks, seconds, CPU
//! seconds of this process. Limits are high enough that nothing is denied, but for the contender that is
//! about denials.

use std::{
    io::{BufRead, Write},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use desk::{
    Identity, PolicyName, Prefix,
    limit::{CalendarPeriod, LimitAlgorithm, Limiter, Policy, WhenStoreDown},
};
use jiff::tz::TimeZone;
use store::Store;

/// Identities that are checked.
const IDENTITIES: usize = 10_000;
/// Calls in flight.
const CONCURRENCY: usize = 50;
const MINUTE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, contender, seconds, rest @ ..] = arguments.as_slice() else {
        bail!("usage: limits-bench CONTENDER SECONDS [URL] [TOKEN]");
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    // One worker thread, as a Node process has; governor and the traffic layer are measured on one too.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let url = rest.first().map(String::as_str);
    let token = rest.get(1).map(String::as_str).unwrap_or_default();
    let (kind, name) = contender.split_once('-').unwrap_or((contender, ""));
    runtime.block_on(async {
        match kind {
            "redis" => ours(url.context("no URL")?, name, 0, time).await,
            "builtin" => ours("embedded:", name, 0, time).await,
            "prepay" => ours(url.context("no URL")?, name, 1_000, time).await,
            "denials" => denials(url.context("no URL")?, time).await,
            "smallest" => smallest(url.context("no URL")?, name, time).await,
            "memory" => memory(url.context("no URL")?, name).await,
            "grpc" => grpc(url.context("no URL")?, token, time).await,
            "governor" => governor(time).await,
            "traffic" => {
                let requests = web::requests::AppRequests::default();
                let method = http::Method::GET;
                in_process(time, move || {
                    move |index: usize| {
                        let routes = ["/a/{id}", "/b", "/c/{id}/d", "/e"];
                        requests.record(
                            &web::requests::CountedRequest {
                                route: Some(routes[index % 4]),
                                method: &method,
                                end: web::requests::RequestEnd::Status(200),
                                is_refused: false,
                                took: Duration::from_micros(1_500 + (index as u64 % 64) * 40),
                                trace_id: None,
                            },
                            store::Millis(1_790_000_000_000),
                        );
                    }
                })
            }
            other => bail!("no contender {other}"),
        }
    })
}

/// Identities as others have them: text.
fn keys(index: usize) -> String {
    format!("user:{}", index % IDENTITIES)
}

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
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok((Instant::now(), cpu()))
}

fn report((started, used): (Instant, f64), checks: u64, bad: u64) -> Result<()> {
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu() - used);
    let line = serde_json::json!({ "checks": checks, "seconds": seconds, "cpu": cpu, "bad": bad });
    println!("{line}");
    Ok(())
}

/// Runs calls until the time is over; each returns true if it went as it should.
async fn drive<F: Future<Output = bool> + Send + 'static>(
    time: Duration,
    call: impl Fn(usize) -> F + Send + Sync + 'static,
) -> Result<()> {
    let call = Arc::new(call);
    let (checks, bad) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    // Connections, scripts and memory are there before the clock runs.
    for index in 0..200 {
        call(index).await;
    }
    let start = ready()?;
    let tasks: Vec<_> = (0..CONCURRENCY)
        .map(|task| {
            let (call, checks, bad, stop) =
                (Arc::clone(&call), Arc::clone(&checks), Arc::clone(&bad), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task as u64);
                while !stop.load(Ordering::Relaxed) {
                    if !call(random.usize(0..IDENTITIES)).await {
                        bad.fetch_add(1, Ordering::Relaxed);
                    }
                    // What is decided in process would keep the thread.
                    if checks.fetch_add(1, Ordering::Relaxed) % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    report(start, checks.load(Ordering::Relaxed), bad.load(Ordering::Relaxed))
}

/// Runs a function on this thread until the time is over.
fn in_process<F: FnMut(usize)>(time: Duration, make: impl FnOnce() -> F) -> Result<()> {
    let mut call = make();
    (0..IDENTITIES).for_each(&mut call);
    let start = ready()?;
    let mut checks = 0_u64;
    while start.0.elapsed() < time {
        for index in 0..4_096 {
            call(index * 7);
        }
        checks += 4_096;
    }
    report(start, checks, 0)
}

fn algorithm(name: &str) -> Result<LimitAlgorithm> {
    Ok(match name {
        "fixed" => LimitAlgorithm::Fixed,
        "sliding" => LimitAlgorithm::Sliding,
        "counter" => LimitAlgorithm::Counter,
        "bucket" => LimitAlgorithm::Bucket { burst: None },
        "calendar" => LimitAlgorithm::Calendar { period: CalendarPeriod::Day, zone: TimeZone::UTC },
        other => bail!("no algorithm {other}"),
    })
}

fn policy(name: &str, limit: u64, prepay: u32) -> Result<Policy> {
    let policy = Policy::new(Some(PolicyName::parse("bench")?), algorithm(name)?, limit, MINUTE)?;
    let policy = policy.when_store_down(WhenStoreDown::Closed, Duration::from_secs(10))?;
    Ok(policy.with_prepay(prepay)?)
}

/// Limits that deny nothing within a slice: those that remember each unit take at most 1,000.
fn limit_of(name: &str) -> u64 {
    if matches!(name, "fixed" | "sliding") { 1_000 } else { 1_000_000 }
}

async fn ours(url: &str, name: &str, prepay: u32, time: Duration) -> Result<()> {
    let store = Store::open(url).await?;
    let limiter = Limiter::new(&store, &Prefix::default())?;
    let policy = Arc::new(policy(name, limit_of(name), prepay)?);
    drive(time, move |index| {
        let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
        async move {
            let identity = Identity::user(&index.to_string());
            limiter.check(&identity, &[&*policy], 1).await.is_ok_and(|one| one.allowed)
        }
    })
    .await
}

/// The other limiter in process, called as ours is: by as many tasks, for the same identities.
async fn governor(time: Duration) -> Result<()> {
    let quota = governor::Quota::per_minute(NonZeroU32::MAX);
    let limiter = Arc::new(governor::RateLimiter::keyed(quota));
    drive(time, move |index| {
        let limiter = Arc::clone(&limiter);
        async move { limiter.check_key(&keys(index)).is_ok() }
    })
    .await
}

/// Checks that are known to be denied.
async fn denials(url: &str, time: Duration) -> Result<()> {
    let store = Store::open(url).await?;
    let limiter = Limiter::new(&store, &Prefix::default())?;
    let policy = Arc::new(policy("counter", 1, 0)?);
    for index in 0..IDENTITIES {
        for _ in 0..2 {
            limiter.check(&Identity::user(&index.to_string()), &[&*policy], 1).await?;
        }
    }
    drive(time, move |index| {
        let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
        async move {
            let identity = Identity::user(&index.to_string());
            limiter.check(&identity, &[&*policy], 1).await.is_ok_and(|one| !one.allowed)
        }
    })
    .await
}

/// The smallest script that does the same for one limit and one check, over one multiplexed connection.
async fn smallest(url: &str, name: &str, time: Duration) -> Result<()> {
    let (source, limit) = match name {
        "fixed" => (
            "local n = redis.call('ZCARD', KEYS[1]) if n >= tonumber(ARGV[1]) then return 0 end \
             redis.call('ZADD', KEYS[1], ARGV[2], ARGV[4]) \
             if n == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end return 1",
            1_000,
        ),
        "sliding" => (
            "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] - ARGV[3]) \
             if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end \
             redis.call('ZADD', KEYS[1], ARGV[2], ARGV[4]) redis.call('PEXPIRE', KEYS[1], ARGV[3]) return 1",
            1_000,
        ),
        "counter" => (
            "local w = tonumber(ARGV[3]) local start = ARGV[2] - ARGV[2] % w \
             local h = redis.call('HMGET', KEYS[1], 's', 'n', 'b') local s, n, b = tonumber(h[1]) or start, tonumber(h[2]) or 0, tonumber(h[3]) or 0 \
             if s < start then b = (s == start - w) and n or 0 n = 0 end \
             if b * (1 - (ARGV[2] - start) / w) + n + 1 > tonumber(ARGV[1]) then return 0 end \
             redis.call('HSET', KEYS[1], 's', start, 'n', n + 1, 'b', b) redis.call('PEXPIRE', KEYS[1], 2 * w) return 1",
            1_000_000,
        ),
        "bucket" => (
            "local now, per = tonumber(ARGV[2]), ARGV[3] / ARGV[1] \
             local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + per \
             if tat - now > tonumber(ARGV[3]) then return 0 end \
             redis.call('SET', KEYS[1], tat, 'PX', math.ceil(tat - now) + 1) return 1",
            1_000_000,
        ),
        other => bail!("no script {other}"),
    };
    let script = Arc::new(redis::Script::new(source));
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let numbers = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    drive(time, move |index| {
        let (script, mut connection) = (Arc::clone(&script), connection.clone());
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let now = 1_790_000_000_000 + begun.elapsed().as_millis() as u64;
        async move {
            let mut call = script.key(format!("smallest:{index}"));
            call.arg(limit).arg(now).arg(60_000).arg(number);
            call.invoke_async::<i64>(&mut connection).await.is_ok_and(|allowed| allowed == 1)
        }
    })
    .await
}

/// Bytes of one identity in Redis, with one unit and with a hundred.
async fn memory(url: &str, name: &str) -> Result<()> {
    let store = Store::open(url).await?;
    let limiter = Limiter::new(&store, &Prefix::default())?;
    let policy = policy(name, 1_000, 0)?;
    let mut bytes = Vec::new();
    for units in [1, 100] {
        let () = redis_cmd("FLUSHALL").query_async(&mut store.clone()).await?;
        for _ in 0..units {
            limiter.check(&Identity::user("123456"), &[&policy], 1).await?;
        }
        let keys: Vec<String> =
            redis_cmd("KEYS").arg("ha:*").query_async(&mut store.clone()).await?;
        let mut sum = 0_u64;
        for key in keys {
            let used: u64 =
                redis_cmd("MEMORY").arg("USAGE").arg(key).query_async(&mut store.clone()).await?;
            sum += used;
        }
        bytes.push(sum);
    }
    println!("{}", serde_json::json!({ "one": bytes[0], "hundred": bytes[1] }));
    Ok(())
}

fn redis_cmd(name: &str) -> store::redis::Cmd {
    store::redis::cmd(name)
}

/// `ShouldRateLimit` of a running server, eight connections of HTTP/2.
async fn grpc(address: &str, token: &str, time: Duration) -> Result<()> {
    let mut senders = Vec::new();
    for _ in 0..8 {
        let socket = tokio::net::TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(socket).await?;
        tokio::spawn(connection);
        senders.push(sender);
    }
    let senders = Arc::new(senders);
    let (uri, token) = (
        format!("http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        format!("Bearer {token}"),
    );
    drive(time, move |index| {
        let sender = senders[index % senders.len()].clone();
        let (uri, token) = (uri.clone(), token.clone());
        async move { ask(sender, uri, token, index).await.unwrap_or(false) }
    })
    .await
}

async fn ask(
    sender: h2::client::SendRequest<bytes::Bytes>,
    uri: String,
    token: String,
    index: usize,
) -> Result<bool> {
    let field = |tag: u8, content: &[u8]| [&[tag << 3 | 2, content.len() as u8], content].concat();
    let entry = [field(1, b"user"), field(2, index.to_string().as_bytes())].concat();
    let message = [field(1, b"bench"), field(2, &field(1, &entry))].concat();
    let body = [&[0, 0, 0, 0, message.len() as u8], message.as_slice()].concat();
    let request = http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", token)
        .body(())?;
    let mut sender = sender.ready().await?;
    let (response, mut stream) = sender.send_request(request, false)?;
    stream.send_data(body.into(), true)?;
    let mut body = response.await?.into_body();
    let mut is_ok = false;
    while let Some(data) = body.data().await {
        let data = data?;
        // Behind five bytes of prefix: overall_code is 1.
        is_ok |= data.get(5..7) == Some(&[8, 1]);
        body.flow_control().release_capacity(data.len())?;
    }
    body.trailers().await?;
    Ok(is_ok)
}
