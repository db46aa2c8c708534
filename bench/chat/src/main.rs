//! Load for the chat and its peers: `chat-bench MEASUREMENT CONFIGURATION`, the second in JSON. Prints one line of
//! JSON. The driver `run` starts servers and calls this for every measurement.
//!
//! Clients are written by hand, so that a thousand of them fit beside two servers on two cores: frames are
//! found in the bytes, and a message carries the time at which it was due.

mod library;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use wire::{Connection, Kind, Stream};

/// Width of a class of latencies.
const CLASS_US: u64 = 100;
/// Classes; the last is for everything longer.
const CLASSES: usize = 100_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, measurement, configuration] = arguments.as_slice() else {
        bail!("usage: chat-bench MEASUREMENT CONFIGURATION");
    };
    let configuration: Value = serde_json::from_str(configuration)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let told = runtime.block_on(async {
        match measurement.as_str() {
            "fanout" => fan_out(&configuration).await,
            "idle" => idle(&configuration).await,
            "latency" => latency(&configuration).await,
            "post" => post(&configuration).await,
            "get" => get(&configuration).await,
            "send" => library::send(&configuration).await,
            "assign" => library::assign(&configuration).await,
            other => bail!("no measurement {other}"),
        }
    })?;
    println!("{told}");
    Ok(())
}

/// Latencies by class.
struct Histogram(Vec<AtomicU32>);

impl Histogram {
    fn new() -> Histogram {
        Histogram((0..CLASSES).map(|_| AtomicU32::new(0)).collect())
    }

    fn add(&self, time: Duration) {
        let class = (time.as_micros() as u64 / CLASS_US) as usize;
        self.0[class.min(CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.iter().map(|class| class.load(Ordering::Relaxed) as usize).sum()
    }

    fn clear(&self) {
        self.0.iter().for_each(|class| class.store(0, Ordering::Relaxed));
    }

    /// The latency in milliseconds that this share is within.
    fn within(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil() as usize;
        let mut sum = 0;
        for (number, class) in self.0.iter().enumerate() {
            sum += class.load(Ordering::Relaxed) as usize;
            if sum >= wanted.max(1) {
                return (number as u64 + 1) as f64 * CLASS_US as f64 / 1_000.0;
            }
        }
        f64::INFINITY
    }
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("a text is missing in the configuration")
}

fn number(value: &Value) -> Result<usize> {
    Ok(value.as_u64().context("a number is missing in the configuration")? as usize)
}

/// Processor time of processes, in seconds.
fn cpu_of(pids: &[usize]) -> f64 {
    pids.iter()
        .map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<&str> =
                stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let ticks: u64 =
                [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
            ticks as f64 / 100.0
        })
        .sum()
}

/// Memory of a process, in bytes.
fn memory_of(pid: usize) -> Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<usize>()? * 1_024)
}

fn pids(configuration: &Value) -> Vec<usize> {
    let items = configuration["pids"].as_array().into_iter().flatten();
    items.filter_map(|item| item.as_u64().map(|pid| pid as usize)).collect()
}

/// Opens streams of events, spread over addresses and tokens. Says how many are ready.
async fn open_streams(
    kind: Kind,
    addresses: &[String],
    tokens: &[String],
    count: usize,
) -> Result<Vec<Stream>> {
    let mut streams = Vec::with_capacity(count);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        while tasks.len() >= 50 {
            if let Some(done) = tasks.join_next().await {
                streams.push(done??);
            }
        }
        let address = addresses[number % addresses.len()].clone();
        let token = tokens.get(number % tokens.len().max(1)).cloned().unwrap_or_default();
        tasks.spawn(async move { Stream::open(kind, &address, &token).await });
    }
    while let Some(done) = tasks.join_next().await {
        streams.push(done??);
    }
    Ok(streams)
}

/// Messages at several rates to all sockets; for each rate deliveries, latencies and the servers' processor time.
async fn fan_out(configuration: &Value) -> Result<Value> {
    let kind = Kind::parse(text(&configuration["kind"])?)?;
    let addresses = texts(&configuration["addresses"]);
    let tokens = texts(&configuration["tokens"]);
    let sockets = number(&configuration["sockets"])?;
    let seconds = configuration["seconds"].as_f64().context("seconds")?;
    let pids = pids(configuration);
    let begin = Instant::now();
    let histogram = Arc::new(Histogram::new());
    for stream in open_streams(kind, &addresses, &tokens, sockets).await? {
        let histogram = Arc::clone(&histogram);
        tokio::spawn(stream.follow(move |payload| {
            if let Some(due) = wire::due_of(payload) {
                histogram.add(begin.elapsed().saturating_sub(due));
            }
        }));
    }
    let (queue, sent) =
        (publishers(kind, configuration, &addresses, &tokens).await?, AtomicUsize::new(0));
    let mut rows = Vec::new();
    let rates: Vec<f64> =
        configuration["rates"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    for rate in std::iter::once(20.0).chain(rates.iter().copied()) {
        histogram.clear();
        sent.store(0, Ordering::Relaxed);
        let (start, cpu) = (Instant::now(), cpu_of(&pids));
        // The first is to warm up.
        let count = (rate * if rows.is_empty() && rate == 20.0 { 0.5 } else { seconds }) as usize;
        for message in 0..count {
            let due = start + Duration::from_secs_f64(message as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
            queue.send(due.duration_since(begin))?;
        }
        let expected = count * sockets;
        let deadline = Instant::now() + Duration::from_secs(3);
        while histogram.count() < expected && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (delivered, took) = (histogram.count(), start.elapsed().as_secs_f64());
        rows.push(json!({
            "rate": rate, "expected": expected, "delivered": delivered, "seconds": took,
            "p50_ms": histogram.within(0.5), "p99_ms": histogram.within(0.99),
            "cpu_us": (cpu_of(&pids) - cpu) * 1e6 / delivered.max(1) as f64,
        }));
    }
    rows.remove(0);
    Ok(json!({ "rows": rows }))
}

/// Those who send: what is put into the queue goes out at once.
async fn publishers(
    kind: Kind,
    configuration: &Value,
    addresses: &[String],
    tokens: &[String],
) -> Result<mpsc::UnboundedSender<Duration>> {
    let (queue, receiver) = mpsc::unbounded_channel::<Duration>();
    let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
    let conversations = texts(&configuration["conversations"]);
    let template = configuration["template"].as_str().unwrap_or_default().to_owned();
    let count = if kind == Kind::SocketIo { addresses.len() } else { 32 };
    for number in 0..count {
        let (address, receiver) =
            (addresses[number % addresses.len()].clone(), Arc::clone(&receiver));
        let path = conversations
            .get(number % conversations.len().max(1))
            .map(|id| format!("/api/v1/conversations/{id}/messages"))
            .unwrap_or_default();
        let token = tokens.get(number % tokens.len().max(1)).cloned().unwrap_or_default();
        let template = template.clone();
        let mut http = Connection::open(&address).await?;
        let mut own = match kind {
            Kind::SocketIo => Some(Stream::open(kind, &address, "").await?),
            _ => None,
        };
        tokio::spawn(async move {
            loop {
                let next = receiver.lock().await.recv().await;
                let Some(due) = next else { return Ok::<(), anyhow::Error>(()) };
                let content = wire::content_of(due);
                match &mut own {
                    Some(stream) => {
                        let data = template.replace("CONTENT", &content);
                        stream.send(&format!("42[\"send\",{data}]")).await?;
                    }
                    None => {
                        let body = format!("{{\"content\":\"{content}\"}}");
                        let status = http.call("POST", &path, &token, &body).await?.0;
                        anyhow::ensure!(status == 201, "POST {path}: {status}");
                    }
                }
            }
        });
    }
    Ok(queue)
}

/// Memory of a server per stream that waits.
async fn idle(configuration: &Value) -> Result<Value> {
    let kind = Kind::parse(text(&configuration["kind"])?)?;
    let (addresses, tokens) = (texts(&configuration["addresses"]), texts(&configuration["tokens"]));
    let (count, pid) = (number(&configuration["sockets"])?, number(&configuration["pids"][0])?);
    // The first ones make the server load what it needs for any.
    let first = open_streams(kind, &addresses, &tokens, 100).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = memory_of(pid)?;
    let rest = open_streams(kind, &addresses, &tokens, count).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = memory_of(pid)?;
    drop((first, rest));
    Ok(json!({ "bytes": after.saturating_sub(before) as f64 / count as f64 }))
}

/// Messages to one instance at a rate, and the time until a socket at the other has each.
async fn latency(configuration: &Value) -> Result<Value> {
    let (addresses, tokens) = (texts(&configuration["addresses"]), texts(&configuration["tokens"]));
    let rate = configuration["rate"].as_f64().context("rate")?;
    let seconds = configuration["seconds"].as_f64().context("seconds")?;
    let begin = Instant::now();
    let histogram = Arc::new(Histogram::new());
    // Visitors at the other instance, each with a conversation of their own.
    for visitor in texts(&configuration["visitors"]) {
        let stream = Stream::open(Kind::Visitor, &addresses[1], &visitor).await?;
        let histogram = Arc::clone(&histogram);
        tokio::spawn(stream.follow(move |payload| {
            if let Some(due) = wire::due_of(payload) {
                histogram.add(begin.elapsed().saturating_sub(due));
            }
        }));
    }
    let queue = publishers(Kind::Agent, configuration, &addresses[..1], &tokens).await?;
    let mut told = Value::Null;
    // The first run is to warm up.
    for time in [1.0, seconds] {
        histogram.clear();
        let (start, count) = (Instant::now(), (rate * time) as usize);
        for message in 0..count {
            let due = start + Duration::from_secs_f64(message as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
            queue.send(due.duration_since(begin))?;
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while histogram.count() < count && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        told = json!({
            "sent": count, "delivered": histogram.count(),
            "p50_ms": histogram.within(0.5), "p99_ms": histogram.within(0.99),
        });
    }
    Ok(told)
}

/// Messages over HTTP as fast as they are acknowledged.
async fn post(configuration: &Value) -> Result<Value> {
    let (addresses, tokens) = (texts(&configuration["addresses"]), texts(&configuration["tokens"]));
    let conversations = texts(&configuration["conversations"]);
    let time = Duration::from_secs_f64(configuration["seconds"].as_f64().context("seconds")?);
    let (begin, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..number(&configuration["connections"])? {
        let mut http = Connection::open(&addresses[number % addresses.len()]).await?;
        let path = format!(
            "/api/v1/conversations/{}/messages",
            conversations[number % conversations.len()]
        );
        let (token, done) = (tokens[number % tokens.len()].clone(), Arc::clone(&done));
        tasks.spawn(async move {
            let mut count = 0;
            while begin.elapsed() < time {
                count += 1;
                let body = format!(
                    "{{\"content\":\"message {count}\",\"client_id\":\"c{number}-{count}\"}}"
                );
                let status = http.call("POST", &path, &token, &body).await?.0;
                anyhow::ensure!(status == 201, "{status}");
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(json!({ "count": done.load(Ordering::Relaxed), "seconds": begin.elapsed().as_secs_f64() }))
}

/// One call after the other; median and p99 of the time each takes.
async fn get(configuration: &Value) -> Result<Value> {
    let (addresses, tokens) = (texts(&configuration["addresses"]), texts(&configuration["tokens"]));
    let mut http = Connection::open(&addresses[0]).await?;
    let mut times = Vec::new();
    let mut items = usize::MAX;
    let paths = texts(&configuration["paths"]);
    for round in 0..number(&configuration["calls"])? {
        let path = &paths[round % paths.len()];
        let start = Instant::now();
        let (status, body) = http.call("GET", path, &tokens[0], "").await?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(status == 200, "{path}: {status} {body}");
        let page: Value = serde_json::from_str(&body)?;
        items = items.min(page["items"].as_array().map_or(0, Vec::len));
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(json!({ "p50_ms": at(0.5), "p99_ms": at(0.99), "least_items": items }))
}
