//! Measures the resolver against others, as `RESULTS-DNS.md` shows it. Everything is on loopback; the
//! contenders of a row take turns within one run, and a ratio is the median of the ratios of
//! neighbouring turns, with the lowest and the highest.
//!
//! `dns-bench TIDEGATE [--rounds N] [--seconds S] [--rows hits,mix,…] [--out FILE]`
//!
//! `dns-bench load ADDRESS hits|misses|doh SECONDS` puts a server under load that runs already, for a
//! profiler; its upstream must know `bench.example` (`dns-bench authority FOLDER` runs one).

mod contender;
mod doh;
mod generator;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::contender::{
    Contender, NAMES, TidegateOptions, TidegateServer, ask, query,
};
use crate::generator::{LoadResult, load};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time after which a server has given back the memory that its start or a change took.
const SETTLED: Duration = Duration::from_secs(15);

/// Names of the large list.
const LISTED: usize = 1_000_000;

/// Queries in flight on the hit rows, and on rows whose latency is told.
const WINDOW: usize = 512;
const NARROW_WINDOW: usize = 64;

/// Socket buffer of dnsperf's clients and outstanding queries.
const DNSPERF_SOCKETS: &str = "32";

struct Bench {
    binary: PathBuf,
    rounds: usize,
    time: Duration,
    folder: PathBuf,
    upstream: Contender,
    list: PathBuf,
    report: String,
}

/// One turn of one contender.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    qps: f64,
    cpu_us: f64,
    p99_us: f64,
    lost: u64,
    sent: u64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.2} ({least:.2}–{most:.2})", median(values.to_vec()))
}

/// Ratios of one contender's turns to another's, turn by turn.
fn ratios(ours: &[Turn], theirs: &[Turn], figure: impl Fn(&Turn) -> f64) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(a, b)| figure(a) / figure(b)).collect()
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let first = args.next().context("usage: dns-bench TIDEGATE [--rounds N] [--seconds S] [--rows …] [--out FILE]")?;
    match first.as_str() {
        "echo" => return generator::echo(args.next().context("echo PORT")?.parse()?),
        "load" => return load_one(args),
        "authority" => {
            let folder = PathBuf::from(args.next().context("authority FOLDER")?);
            std::fs::create_dir_all(&folder)?;
            let authority = Contender::nsd(&folder)?;
            println!("{}", authority.address);
            // Until it is killed.
            loop {
                std::thread::park();
            }
        }
        _ => {}
    }
    let (mut rounds, mut seconds, mut rows, mut out) = (5, 1.2, String::new(), None);
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--rounds" => rounds = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            "--rows" => rows = value,
            "--out" => out = Some(PathBuf::from(value)),
            _ => bail!("there is no {flag}"),
        }
    }
    let binary = std::fs::canonicalize(&first).with_context(|| format!("{first} is not there"))?;
    let folder = std::env::temp_dir().join(format!("dns-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let list = folder.join("million.txt");
    let names: String = (0..LISTED).map(|n| format!("ad{n}.listed{}.example\n", n % 977)).collect();
    std::fs::write(&list, names)?;
    let upstream = Contender::nsd(&folder)?;
    let time = Duration::from_secs_f64(seconds);
    let mut bench = Bench { binary, rounds, time, folder, upstream, list, report: String::new() };
    let all: [(&str, fn(&mut Bench) -> Result<()>); 9] = [
        ("hits", Bench::hits),
        ("streams", Bench::streams),
        ("misses", Bench::misses),
        ("l1", Bench::l1),
        ("switches", Bench::switches),
        ("list", Bench::large_list),
        ("log", Bench::query_log),
        ("home", Bench::home),
        ("idle", Bench::idle),
    ];
    for (name, row) in all {
        if !rows.is_empty() && !rows.split(',').any(|one| one == name) {
            continue;
        }
        let since = Instant::now();
        eprintln!("{name} …");
        if let Err(error) = row(&mut bench) {
            eprintln!("{name}: {error:#}");
            writeln!(bench.report, "### {name}\n\nnot measured: {error:#}\n")?;
        }
        eprintln!("{name}: {:.0} s", since.elapsed().as_secs_f64());
    }
    let report = format!("{}{}", bench.head()?, bench.report);
    let folder = bench.folder.clone();
    drop(bench);
    let _ = std::fs::remove_dir_all(folder);
    match out {
        Some(file) => std::fs::write(file, report)?,
        None => println!("{report}"),
    }
    Ok(())
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map_or(String::new(), |output| {
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    })
}

impl Bench {
    fn head(&self) -> Result<String> {
        let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
        let version = |program: &str, args: &[&str], word: &str| {
            let text = output(program, args);
            text.lines().find(|line| line.contains(word)).unwrap_or_default().trim().to_owned()
        };
        Ok(format!(
            "# Resolver: results\n\n{}, commit `{}`; {} × {}, Linux {}, load {} at the end. {} rounds of {:.1} s per contender and \
             row, contenders in turns; a ratio is the median of the turns' ratios, with the lowest and the highest. \
             Processor time is the server's own, from /proc. Unbound has the same socket buffers (4 MB) and runs with \
             1 and with 2 threads; the better one counts. Upstream of all: nsd with {NAMES} names.\n\n\
             {}; {}; {}; {}; command: `bench/dns/run TIDEGATE`.\n\n",
            output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            output("git", &["rev-parse", "--short", "HEAD"]),
            std::thread::available_parallelism()?,
            model.split(':').nth(1).unwrap_or("an unknown processor").trim(),
            output("uname", &["-r"]),
            std::fs::read_to_string("/proc/loadavg")?.split_whitespace().next().unwrap_or_default(),
            self.rounds,
            self.time.as_secs_f64(),
            version(&self.binary.display().to_string(), &["--version"], "tidegate"),
            version("unbound", &["-V"], "Version"),
            version("pdns_recursor", &["--version"], "PowerDNS Recursor"),
            version("dnsmasq", &["--version"], "Dnsmasq version"),
        ))
    }

    /// A policy with the large list, its names blocked for everybody.
    fn policy(&self, list: bool, log: bool, rules: bool) -> serde_json::Value {
        let mut policy = json!({
            "lists": [],
            "groups": [{"id": "default", "log": if log { "all" } else { "nothing" }}],
        });
        if list {
            policy["lists"] = json!([{"id": "million", "url": "file:million.txt"}]);
        }
        if rules {
            policy["rules"] = json!(["||blocked.example^", "@@||allowed.example^", "/^ad[0-9]+[.]/"]);
            policy["clients"] = json!([{"id": "box", "addresses": ["192.168.7.7"], "group": "default"}]);
        } else {
            policy["rate_limit"] = json!({"per_second": 0});
        }
        policy
    }

    fn tidegate(&self, name: &str, policy: serde_json::Value) -> Result<TidegateServer> {
        let has_list = policy["lists"].as_array().is_some_and(|lists| !lists.is_empty());
        let folder = contender::new_folder(&self.folder, "tidegate")?;
        // Files of lists are read from one folder only.
        let lists = folder.join("tidegate-data/dns/lists/files");
        std::fs::create_dir_all(&lists)?;
        std::os::unix::fs::symlink(&self.list, lists.join("million.txt"))?;
        let options = TidegateOptions {
            policy: Some(policy),
            folder: Some(folder),
            ..TidegateOptions::new(name, &self.binary)
        };
        let server = TidegateServer::start(&self.folder, self.upstream.address, &options)?;
        if has_list {
            // Its own refresh may have begun; then this one says so, and the names come all the same.
            let _ = server.run(&self.binary, &["dns", "lists", "refresh", "million"]);
            wait_until_blocked(server.server.address, Duration::from_secs(60))?;
        }
        Ok(server)
    }

    /// Fills a cache and checks that it answers.
    fn warm(server: SocketAddr) -> Result<()> {
        let mut queries = Vec::new();
        for number in 0..NAMES {
            let name = format!("h{number}.bench.example");
            queries.extend([query(&name, 1, false), query(&name, 28, false), query(&name, 65, false)]);
            queries.push(query(&format!("no{number}.bench.example"), 1, false));
        }
        for _ in 0..2 {
            let mut rest = queries.iter();
            load(server, 32, Duration::from_secs(30), || rest.next().cloned())?;
        }
        let reply = ask(server, &query("h7.bench.example", 1, false), Duration::from_secs(2));
        ensure!(reply.is_some_and(|reply| reply[3] & 0xf == 0), "{server} does not answer");
        Ok(())
    }

    fn turn(&self, server: &Contender, window: usize, mut next: impl FnMut() -> Vec<u8>) -> Result<Turn> {
        let before = server.cpu()?;
        let result = load(server.address, window, self.time, || Some(next()))?;
        let cpu = server.cpu()? - before;
        Ok(turn_of(&result, cpu))
    }

    fn table(&mut self, title: &str, names: &[String], turns: &[Vec<Turn>], latency: bool) -> Result<()> {
        writeln!(self.report, "### {title}\n")?;
        let more = if latency { " p99 |" } else { "" };
        writeln!(self.report, "| server | QPS, median | CPU per query | lost |{more}")?;
        writeln!(self.report, "|---|---|---|---|{}", if latency { "---|" } else { "" })?;
        for (name, turns) in names.iter().zip(turns) {
            let of = |figure: fn(&Turn) -> f64| median(turns.iter().map(figure).collect());
            let (lost, sent) = turns.iter().fold((0, 0), |(l, s), t| (l + t.lost, s + t.sent));
            write!(
                self.report,
                "| {name} | {:.0} | {:.2} µs | {:.3} % |",
                of(|t| t.qps),
                of(|t| t.cpu_us),
                100.0 * lost as f64 / sent.max(1) as f64,
            )?;
            if latency {
                write!(self.report, " {:.0} µs |", of(|t| t.p99_us))?;
            }
            writeln!(self.report)?;
        }
        writeln!(self.report)?;
        Ok(())
    }

    fn aim(&mut self, what: &str, found: &str, aim: &str, is_met: bool) -> Result<()> {
        let word = if is_met { "met" } else { "missed" };
        writeln!(self.report, "- {what}: **{found}**, aim {aim}: {word}")?;
        Ok(())
    }

    /// Hits over UDP: plain, mixed with EDNS, blocked; then the same plain ones by dnsperf.
    fn hits(&mut self) -> Result<()> {
        let ours = self.tidegate("Tidegate, log and list of 1 M", self.policy(true, true, true))?;
        let up = self.upstream.address;
        let others = [
            Contender::unbound(&self.folder, up, 1)?,
            Contender::unbound(&self.folder, up, 2)?,
            Contender::pdns(&self.folder, up)?,
            Contender::dnsmasq(&self.folder, up)?,
            Contender::echo(&self.folder)?,
        ];
        let all: Vec<&Contender> = std::iter::once(&ours.server).chain(&others).collect();
        for server in &all[..5] {
            Self::warm(server.address)?;
        }
        let names: Vec<String> = all.iter().map(|server| server.name.clone()).collect();
        let plain: Vec<Vec<u8>> =
            (0..NAMES).map(|n| query(&format!("h{n}.bench.example"), 1, false)).collect();
        let mut turns = vec![Vec::new(); all.len()];
        for _ in 0..self.rounds {
            for (index, server) in all.iter().enumerate() {
                let mut at = 0;
                turns[index].push(self.turn(server, WINDOW, || {
                    at = (at + 7) % plain.len();
                    plain[at].clone()
                })?);
            }
        }
        self.table("Hits over UDP, 1,000 names, no EDNS, own generator", &names, &turns, false)?;
        let best = usize::from(median(turns[2].iter().map(|t| t.qps).collect()) > median(turns[1].iter().map(|t| t.qps).collect())) + 1;
        let qps = ratios(&turns[0], &turns[best], |t| t.qps);
        let cheaper = if median(turns[1].iter().map(|t| t.cpu_us).collect()) < median(turns[2].iter().map(|t| t.cpu_us).collect()) { 1 } else { 2 };
        let cpu = ratios(&turns[cheaper], &turns[0], |t| t.cpu_us);
        let echo = ratios(&turns[0], &turns[5], |t| t.cpu_us);
        self.aim("QPS against Unbound's best", &spread(&qps), "≥ 1.2", median(qps.clone()) >= 1.2)?;
        self.aim("Unbound's CPU per query to ours", &spread(&cpu), "≥ 1.3", median(cpu.clone()) >= 1.3)?;
        self.aim("our CPU per query to the echo's", &spread(&echo), "≤ 1.25", median(echo.clone()) <= 1.25)?;
        writeln!(self.report)?;

        // A mix with EDNS: addresses of both kinds, HTTPS without data, names that do not exist.
        let mix: Vec<Vec<u8>> = (0..NAMES)
            .flat_map(|n| {
                let name = format!("h{n}.bench.example");
                [
                    query(&name, 1, true),
                    query(&name, 28, true),
                    query(&name, 65, true),
                    query(&format!("no{n}.bench.example"), 1, true),
                ]
            })
            .collect();
        let blocked: Vec<Vec<u8>> = (0..NAMES)
            .map(|n| query(&format!("ad{n}.listed{}.example", n % 977), 1, false))
            .collect();
        let mut some = vec![Vec::new(); 4];
        for _ in 0..self.rounds {
            for (index, (server, source)) in
                [(all[0], &mix), (all[best], &mix), (all[0], &plain), (all[0], &blocked)].iter().enumerate()
            {
                let mut at = 0;
                some[index].push(self.turn(server, WINDOW, || {
                    at = (at + 7) % source.len();
                    source[at].clone()
                })?);
            }
        }
        let titles = ["Tidegate, mix", &format!("{}, mix", names[best]), "Tidegate, hits", "Tidegate, blocked"];
        self.table("Mix with EDNS (A, AAAA, HTTPS, NXDOMAIN), and blocked names", &titles.map(str::to_owned), &some, false)?;
        let mixed = ratios(&some[0], &some[1], |t| t.qps);
        let block = ratios(&some[3], &some[2], |t| t.qps);
        self.aim("mix against Unbound", &spread(&mixed), "≥ 1.1", median(mixed.clone()) >= 1.1)?;
        self.aim("blocked against hits", &spread(&block), "≥ 1.0", median(block.clone()) >= 1.0)?;
        writeln!(self.report)?;

        let file = self.folder.join("queries.txt");
        std::fs::write(&file, (0..NAMES).map(|n| format!("h{n}.bench.example A\n")).collect::<String>())?;
        let mut perf = vec![Vec::new(); all.len()];
        for _ in 0..self.rounds.min(3) {
            for (index, server) in all.iter().enumerate() {
                let before = server.cpu()?;
                let (qps, lost, sent) = self.dnsperf(&file, server.address.port(), &["-m", "udp", "-c", DNSPERF_SOCKETS, "-q", "200"])?;
                let cpu_us = (server.cpu()? - before) * 1e6 / sent.max(1) as f64;
                perf[index].push(Turn { qps, cpu_us, p99_us: 0.0, lost, sent });
            }
        }
        self.table("The same hits by dnsperf, 32 sockets (it costs more per query than the servers)", &names, &perf, false)?;
        let by_dnsperf = ratios(&perf[0], &perf[best], |t| t.qps);
        self.aim("QPS under dnsperf against Unbound", &spread(&by_dnsperf), "≥ 1.0", median(by_dnsperf.clone()) >= 1.0)?;
        writeln!(self.report)?;
        Ok(())
    }

    /// Runs dnsperf and returns queries per second, lost and sent ones.
    fn dnsperf(&self, file: &Path, port: u16, args: &[&str]) -> Result<(f64, u64, u64)> {
        let seconds = format!("{}", self.time.as_secs_f64().ceil() as u64);
        let output = Command::new("dnsperf")
            .args(["-s", "127.0.0.1", "-p", &port.to_string(), "-l", &seconds, "-d"])
            .arg(file)
            .args(args)
            .output()
            .context("dnsperf")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let figure = |label: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(label));
            line.and_then(|line| line.split(':').nth(1)?.split_whitespace().next()?.parse::<f64>().ok())
        };
        let qps = figure("Queries per second").with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
        let lost = figure("Queries lost").unwrap_or(0.0) as u64;
        Ok((qps, lost, figure("Queries sent").unwrap_or(0.0) as u64))
    }

    /// TCP, TLS and HTTPS by dnsperf.
    fn streams(&mut self) -> Result<()> {
        let ours = self.tidegate("Tidegate", self.policy(false, true, true))?;
        let theirs = [
            Contender::unbound(&self.folder, self.upstream.address, 1)?,
            Contender::unbound(&self.folder, self.upstream.address, 2)?,
        ];
        let file = self.folder.join("queries.txt");
        std::fs::write(&file, (0..NAMES).map(|n| format!("h{n}.bench.example A\n")).collect::<String>())?;
        let queries: Vec<Vec<u8>> =
            (0..NAMES).map(|n| query(&format!("h{n}.bench.example"), 1, false)).collect();
        let queries = Arc::new(queries);
        Self::warm(ours.server.address)?;
        for server in &theirs {
            Self::warm(server.address)?;
        }
        for (title, mode, aim) in [("TCP, 20 connections, pipelined", "tcp", 1.0), ("DNS over TLS", "dot", 1.0), ("DNS over HTTPS (HTTP/2, 8 connections, 16 streams each)", "doh", 1.0)] {
            let mut turns = vec![Vec::new(); 3];
            for _ in 0..self.rounds.min(4) {
                let all = std::iter::once(&ours.server).chain(&theirs);
                for (index, server) in all.enumerate() {
                    let ports: Vec<u16> = std::fs::read_to_string(server.folder.join("ports"))
                        .map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
                        .unwrap_or_default();
                    let port = match (mode, index) {
                        ("tcp", _) => server.address.port(),
                        ("dot", 0) => ours.dot,
                        ("doh", 0) => ours.http,
                        ("dot", _) => ports[0],
                        _ => ports[1],
                    };
                    let before = server.cpu()?;
                    let (qps, lost, sent) = if mode == "doh" {
                        let address = SocketAddr::from(([127, 0, 0, 1], port));
                        let (answered, seconds) = doh::load(address, Arc::clone(&queries), self.time)?;
                        (answered as f64 / seconds, 0, answered)
                    } else {
                        self.dnsperf(&file, port, &["-m", mode, "-c", "20", "-q", "400"])?
                    };
                    let cpu_us = (server.cpu()? - before) * 1e6 / sent.max(1) as f64;
                    turns[index].push(Turn { qps, cpu_us, p99_us: 0.0, lost, sent });
                }
            }
            let names = ["Tidegate", &theirs[0].name, &theirs[1].name].map(str::to_owned);
            self.table(title, &names, &turns, false)?;
            let best = 1 + usize::from(median(turns[2].iter().map(|t| t.qps).collect()) > median(turns[1].iter().map(|t| t.qps).collect()));
            let ratio = ratios(&turns[0], &turns[best], |t| t.qps);
            self.aim("QPS against Unbound's best", &spread(&ratio), &format!("≥ {aim:.1}"), median(ratio.clone()) >= aim)?;
            writeln!(self.report)?;
        }
        Ok(())
    }

    /// One query in ten is a miss; then all are.
    fn misses(&mut self) -> Result<()> {
        let ours = self.tidegate("Tidegate", self.policy(false, true, true))?;
        let theirs = [
            Contender::unbound(&self.folder, self.upstream.address, 1)?,
            Contender::unbound(&self.folder, self.upstream.address, 2)?,
        ];
        let all: Vec<&Contender> = std::iter::once(&ours.server).chain(&theirs).collect();
        for server in &all {
            Self::warm(server.address)?;
        }
        let names: Vec<String> = all.iter().map(|server| server.name.clone()).collect();
        let mut fresh = 0_u64;
        for (title, one_in) in [("10 % misses", 10), ("100 % misses", 1)] {
            let mut turns = vec![Vec::new(); 3];
            for _ in 0..self.rounds {
                for (index, server) in all.iter().enumerate() {
                    let mut at = 0;
                    turns[index].push(self.turn(server, NARROW_WINDOW, || {
                        at += 1;
                        if at % one_in == 0 {
                            fresh += 1;
                            query(&format!("m{fresh}.miss.bench.example"), 1, false)
                        } else {
                            query(&format!("h{}.bench.example", at % NAMES), 1, false)
                        }
                    })?);
                }
            }
            self.table(&format!("{title}, 64 queries in flight"), &names, &turns, true)?;
            let best = 1 + usize::from(median(turns[2].iter().map(|t| t.qps).collect()) > median(turns[1].iter().map(|t| t.qps).collect()));
            let qps = ratios(&turns[0], &turns[best], |t| t.qps);
            let p99 = ratios(&turns[0], &turns[best], |t| t.p99_us);
            self.aim("QPS against Unbound's best", &spread(&qps), "≥ 1.0", median(qps.clone()) >= 1.0)?;
            self.aim("p99 against Unbound's best", &spread(&p99), "≤ 1.2", median(p99.clone()) <= 1.2)?;
            writeln!(self.report)?;
        }
        Ok(())
    }

    /// Answers from the store of others, with the memory cold.
    fn l1(&mut self) -> Result<()> {
        const COUNT: usize = 4_000;
        let (mut redis, port) = Contender::redis(&self.folder)?;
        let options = TidegateOptions {
            store: Some(format!("redis://127.0.0.1:{port}")),
            ..TidegateOptions::new("Tidegate on Redis", &self.binary)
        };
        let start = || TidegateServer::start(&self.folder, self.upstream.address, &options);
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        let first = start()?;
        let stored = |n: usize| query(&format!("s{n}.l1.bench.example"), 1, false);
        let mut all = (0..COUNT).map(stored);
        load(first.server.address, NARROW_WINDOW, Duration::from_secs(30), || all.next())?;
        std::thread::sleep(Duration::from_secs(1));
        drop(first);
        for round in 0..self.rounds.min(3) {
            let server = start()?;
            std::thread::sleep(Duration::from_millis(500));
            for (kind, turns) in [(0, &mut hits), (1, &mut misses)] {
                let mut all = (0..COUNT).map(|n| match kind {
                    0 => stored(n),
                    _ => query(&format!("r{round}-{n}.l1.bench.example"), 1, false),
                });
                let before = server.server.cpu()?;
                let result = load(server.server.address, NARROW_WINDOW, Duration::from_secs(30), || all.next())?;
                // The store is written behind the replies.
                std::thread::sleep(Duration::from_millis(300));
                turns.push(turn_of(&result, server.server.cpu()? - before));
            }
        }
        let _ = redis.kill();
        let _ = redis.wait();
        self.table("L1 hits (memory cold) on Redis, and misses", &["L1 hits", "misses"].map(str::to_owned), &[hits.clone(), misses.clone()], true)?;
        let ratio = ratios(&misses, &hits, |t| t.cpu_us);
        self.aim("CPU per miss to CPU per L1 hit", &spread(&ratio), "≥ 3", median(ratio.clone()) >= 3.0)?;
        writeln!(self.report)?;
        Ok(())
    }

    /// Policy, log and list, on and off.
    fn switches(&mut self) -> Result<()> {
        let variants = [
            ("all on", true, true, true),
            ("no list", false, true, true),
            ("no log", true, false, true),
            ("no rules, clients, rate limit", true, true, false),
            ("all off", false, false, false),
        ];
        let mut servers = Vec::new();
        for (name, list, log, rules) in variants {
            let server = self.tidegate(name, self.policy(list, log, rules))?;
            Self::warm(server.server.address)?;
            servers.push(server);
        }
        let plain: Vec<Vec<u8>> =
            (0..NAMES).map(|n| query(&format!("h{n}.bench.example"), 1, false)).collect();
        let mut turns = vec![Vec::new(); servers.len()];
        for _ in 0..self.rounds {
            for (index, server) in servers.iter().enumerate() {
                let mut at = 0;
                turns[index].push(self.turn(&server.server, WINDOW, || {
                    at = (at + 7) % plain.len();
                    plain[at].clone()
                })?);
            }
        }
        let names: Vec<String> = variants.iter().map(|(name, ..)| (*name).to_owned()).collect();
        self.table("Policy, log and list of 1 M, on and off (hits)", &names, &turns, false)?;
        let cost = ratios(&turns[4], &turns[0], |t| t.qps);
        self.aim("QPS with all off to all on", &spread(&cost), "≤ 1.15", median(cost.clone()) <= 1.15)?;
        writeln!(self.report)?;
        Ok(())
    }

    /// A list of a million names: memory, build, reload, `why`, start.
    fn large_list(&mut self) -> Result<()> {
        let without = self.tidegate("without", self.policy(false, true, true))?;
        let with = self.tidegate("with", self.policy(false, true, true))?;
        std::thread::sleep(SETTLED);
        let base = with.server.memory("VmRSS")?;
        let policy = self.policy(true, true, true);
        std::fs::write(with.server.folder.join("policy.json"), policy.to_string())?;
        with.run(&self.binary, &["dns", "apply", "policy.json"])?;
        let since = Instant::now();
        let _ = with.run(&self.binary, &["dns", "lists", "refresh", "million"]);
        wait_until_blocked(with.server.address, Duration::from_secs(60))?;
        let build = since.elapsed();
        std::thread::sleep(SETTLED);
        let loaded = with.server.memory("VmRSS")?;
        // Once more, with a name more, so that it is built again.
        let mut text = std::fs::read_to_string(&self.list)?;
        text.push_str("one-more.listed.example\n");
        std::fs::write(&self.list, text)?;
        let _ = std::fs::write(format!("/proc/{}/clear_refs", with.server.pid()), "5");
        let _ = with.run(&self.binary, &["dns", "lists", "refresh", "million"]);
        let peak = with.server.memory("VmHWM")?;
        let mut why = Vec::new();
        for n in 0..5 {
            let since = Instant::now();
            let told = with.run(&self.binary, &["dns", "why", &format!("ad{}.listed{}.example", n * 199_999, n * 199_999 % 977)])?;
            ensure!(told.starts_with("blocked"), "{told}");
            why.push(since.elapsed().as_secs_f64() * 1_000.0);
        }
        let none = {
            let since = Instant::now();
            with.run(&self.binary, &["dns", "upstreams"])?;
            since.elapsed().as_secs_f64() * 1_000.0
        };
        drop(without);
        let set = measure_hash_set();
        // Stopped as by a power cut, and started again in its folder.
        let folder = with.server.folder.clone();
        let keep = self.folder.join("kept");
        let _ = Command::new("cp").args(["-r"]).arg(&folder).arg(&keep).status()?;
        drop(with);
        let mut starts = Vec::new();
        for _ in 0..self.rounds.min(3) {
            let copy = contender::new_folder(&self.folder, "start")?;
            let _ = Command::new("cp").args(["-r"]).arg(keep.join(".")).arg(&copy).status()?;
            let options = TidegateOptions { folder: Some(copy), ..TidegateOptions::new("started", &self.binary) };
            let since = Instant::now();
            let server = TidegateServer::start(&self.folder, self.upstream.address, &options)?;
            wait_until_blocked(server.server.address, Duration::from_secs(30))?;
            starts.push(since.elapsed().as_secs_f64());
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let grown = megabytes(loaded.saturating_sub(base));
        let peak_ratio = megabytes(peak.saturating_sub(base)) / grown.max(0.1);
        writeln!(self.report, "### A list of a million names\n")?;
        self.aim("memory", &format!("{grown:.1} MB (a HashSet<String>: {:.1} MB)", megabytes(set)), "≤ 25 MB", grown <= 25.0)?;
        self.aim("peak while it is reloaded, to that", &format!("{peak_ratio:.2}"), "≤ 2", peak_ratio <= 2.0)?;
        self.aim("fetched, built and in force", &format!("{:.2} s", build.as_secs_f64()), "< 2 s", build.as_secs_f64() < 2.0)?;
        let told = median(why.clone()) - none;
        self.aim("`why`, less an empty command", &format!("{told:.1} ms"), "< 5 ms", told < 5.0)?;
        self.aim("start to first filtered answer", &format!("{:.2} s", median(starts.clone())), "< 1 s", median(starts) < 1.0)?;
        writeln!(self.report)?;
        Ok(())
    }

    #[cfg(not(feature = "log"))]
    fn query_log(&mut self) -> Result<()> {
        bail!("this program was built without the feature `log`")
    }

    /// The query log: bytes per row and search, by the library itself.
    #[cfg(feature = "log")]
    fn query_log(&mut self) -> Result<()> {
        const ROWS: u64 = 10_000_000;
        const RARE_ONE_IN: u64 = 1_000_003;
        let folder = contender::new_folder(&self.folder, "log")?;
        let options = dns::QueryLogOptions { max_bytes: 4 << 30, ..dns::QueryLogOptions::new(folder.clone()) };
        let log = dns::QueryLog::open(options)?;
        let mut random = fastrand::Rng::with_seed(1);
        let since = Instant::now();
        let start_ms = 1_795_000_000_000_i64;
        let mut done = 0;
        while done < ROWS {
            let rows = (0..50_000).map(|index| {
                let mut row = log_row(&mut random, start_ms + ((done + index) * 50) as i64);
                // So few that a search has to look at the whole log for them.
                if (done + index) % RARE_ONE_IN == 0 {
                    row.name = format!("rare{}.example", done + index).into();
                }
                row
            });
            log.append(rows.collect());
            done += 50_000;
            log.flush(store::Millis(start_ms + (done * 50) as i64))?;
        }
        let written = since.elapsed();
        let bytes = folder_bytes(&folder)?;
        let filter = dns::LogFilter { name: Some("rare".to_owned()), ..dns::LogFilter::default() };
        let since = Instant::now();
        let found = log.search(&filter, None, 100);
        let search = since.elapsed();
        ensure!(found.rows.len() as u64 == ROWS.div_ceil(RARE_ONE_IN), "{} rows found", found.rows.len());
        let sqlite = sqlite_bytes_per_row(&self.folder)?;
        let per_row = bytes as f64 / ROWS as f64;
        writeln!(self.report, "### Query log, 10 M rows\n")?;
        self.aim("bytes per row", &format!("{per_row:.1}"), "≤ 16", per_row <= 16.0)?;
        self.aim("to SQLite with two indexes", &format!("{:.2} ({sqlite:.1} bytes)", per_row / sqlite), "≤ 0.2", per_row / sqlite <= 0.2)?;
        self.aim("search by a part of a name", &format!("{:.2} s, {} rows", search.as_secs_f64(), found.rows.len()), "< 1 s", search.as_secs_f64() < 1.0)?;
        writeln!(self.report, "- written in {:.1} s ({:.0} ns per row)\n", written.as_secs_f64(), written.as_nanos() as f64 / ROWS as f64)?;
        Ok(())
    }

    /// Fifty clients with 20 queries per second in total, for a while, scaled to a day.
    fn home(&mut self) -> Result<()> {
        // Some writes come every few minutes only.
        let seconds = 320_u64;
        let server = self.tidegate("home", self.policy(false, true, true))?;
        Self::warm(server.server.address)?;
        // What the warm-up left to write, hits above all, is no part of the load.
        std::thread::sleep(Duration::from_secs(70));
        let written = || -> Result<u64> {
            let io = std::fs::read_to_string(format!("/proc/{}/io", server.server.pid()))?;
            let line = io.lines().find(|line| line.starts_with("write_bytes")).context("write_bytes")?;
            Ok(line.split_whitespace().nth(1).context("a figure")?.parse()?)
        };
        let clients: Vec<std::net::UdpSocket> = (0..50_u8)
            .map(|client| {
                let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::new(127, 0, 1, client + 1), 0))?;
                socket.set_read_timeout(Some(Duration::from_millis(500)))?;
                Ok(socket)
            })
            .collect::<Result<_>>()?;
        let (before, folder_before) = (written()?, folder_bytes(&server.server.folder)?);
        let mut random = fastrand::Rng::with_seed(2);
        let since = Instant::now();
        for number in 0..seconds * 20 {
            // One in ten is a name that nobody asked for today.
            let name = match random.u8(..10) {
                0 => format!("m{number}-home.miss.bench.example"),
                _ => format!("h{}.bench.example", random.usize(..200)),
            };
            let client = &clients[random.usize(..clients.len())];
            client.send_to(&query(&name, 1, true), server.server.address)?;
            let _ = client.recv(&mut [0; 1_500]);
            let due = Duration::from_millis(50 * (number + 1));
            std::thread::sleep(due.saturating_sub(since.elapsed()));
        }
        std::thread::sleep(Duration::from_secs(6));
        let day = 86_400.0 / seconds as f64;
        let on_disk = (written()? - before) as f64 * day / 1e6;
        let grown = (folder_bytes(&server.server.folder)?.saturating_sub(folder_before)) as f64 * day / 1e6;
        writeln!(self.report, "### Home load, 50 clients, 20 queries per second in total, {seconds} s scaled to a day\n")?;
        self.aim("bytes written to disk, log and store", &format!("{on_disk:.0} MB (files grow by {grown:.0} MB)"), "≤ 100 MB", on_disk <= 100.0)?;
        writeln!(self.report)?;
        Ok(())
    }

    /// Memory of a server that was just started, with the default list.
    fn idle(&mut self) -> Result<()> {
        let options = TidegateOptions::new("idle", &self.binary);
        let server = TidegateServer::start(&self.folder, self.upstream.address, &options)?;
        std::thread::sleep(SETTLED);
        let bytes = server.server.memory("VmRSS")? as f64 / 1e6;
        let others = [Contender::unbound(&self.folder, self.upstream.address, 1)?, Contender::dnsmasq(&self.folder, self.upstream.address)?];
        writeln!(self.report, "### Idle memory with the default list, {} s after the start\n", SETTLED.as_secs())?;
        self.aim("resident, `--only dns`", &format!("{bytes:.1} MB"), "≤ 60 MB", bytes <= 60.0)?;
        for other in &others {
            writeln!(self.report, "- {}: {:.1} MB", other.name, other.memory("VmRSS")? as f64 / 1e6)?;
        }
        writeln!(self.report)?;
        Ok(())
    }
}

/// Puts a running server under load.
fn load_one(mut args: impl Iterator<Item = String>) -> Result<()> {
    const USAGE: &str = "load ADDRESS hits|misses|doh SECONDS";
    let server: SocketAddr = args.next().context(USAGE)?.parse()?;
    let kind = args.next().context(USAGE)?;
    let time = Duration::from_secs_f64(args.next().context(USAGE)?.parse()?);
    let known = |n: usize| query(&format!("h{}.bench.example", n % NAMES), 1, false);
    if kind == "doh" {
        let (answered, seconds) = doh::load(server, Arc::new((0..NAMES).map(known).collect()), time)?;
        println!("{:.0} per second", answered as f64 / seconds);
        return Ok(());
    }
    let (mut at, start) = (0, std::process::id());
    let window = if kind == "hits" { WINDOW } else { NARROW_WINDOW };
    let result = load(server, window, time, || {
        at += 1;
        Some(match kind.as_str() {
            "misses" => query(&format!("m{start}-{at}.miss.bench.example"), 1, false),
            _ => known(at),
        })
    })?;
    println!("{:.0} per second, {} lost, 99 % within {:.0} µs", result.qps(), result.lost, result.p99_us);
    Ok(())
}

fn turn_of(result: &LoadResult, cpu: f64) -> Turn {
    Turn {
        qps: result.qps(),
        cpu_us: cpu * 1e6 / result.received.max(1) as f64,
        p99_us: result.p99_us,
        lost: result.lost,
        sent: result.sent,
    }
}

/// Waits until a name of the large list is blocked.
fn wait_until_blocked(server: SocketAddr, most: Duration) -> Result<()> {
    let (since, packet) = (Instant::now(), query("ad999999.listed528.example", 1, false));
    loop {
        let reply = ask(server, &packet, Duration::from_millis(200));
        if reply.is_some_and(|reply| reply.ends_with(&[0, 0, 0, 0]) && reply[7] == 1) {
            return Ok(());
        }
        ensure!(since.elapsed() < most, "the list is not in force after {most:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let data = entry.metadata()?;
        sum += if data.is_dir() { folder_bytes(&entry.path())? } else { data.len() };
    }
    Ok(sum)
}

#[cfg(feature = "log")]
fn log_row(random: &mut fastrand::Rng, at_ms: i64) -> dns::LoggedQuery {
    // Names by a distribution like Zipf's.
    let rank = (20_000_f64.powf(random.f64()) - 1.0) as u32;
    let is_blocked = rank % 5 == 0;
    dns::LoggedQuery {
        number: 0,
        at: store::Millis(at_ms),
        client: format!("192.168.1.{}", random.u8(10..35)).into(),
        client_id: "".into(),
        group: "default".into(),
        name: format!("www.name{rank}.site{}.example", rank % 300).into(),
        qtype: [1, 28, 65][random.usize(..3)],
        rcode: if rank % 20 == 0 { 3 } else { 0 },
        outcome: if is_blocked { dns::QueryOutcome::Blocked } else { dns::QueryOutcome::Cached },
        tier: dns::CacheTier::Memory,
        protocol: dns::QueryProtocol::Udp,
        list: if is_blocked { "default" } else { "" }.into(),
        upstream: "9.9.9.9".into(),
        answer: format!("192.0.2.{}", rank % 250).into(),
        duration_us: if random.u8(..10) == 0 { random.u32(500..40_000) } else { 0 },
    }
}

/// Resident bytes of a set of the same names as text.
fn measure_hash_set() -> u64 {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1_024
    };
    let before = resident();
    let set: std::collections::HashSet<String> =
        (0..LISTED).map(|n| format!("ad{n}.listed{}.example", n % 977)).collect();
    let after = resident();
    std::hint::black_box(&set);
    after.saturating_sub(before)
}

/// Rows of the same shape in SQLite, with indexes on name and client.
#[cfg(feature = "log")]
fn sqlite_bytes_per_row(folder: &Path) -> Result<f64> {
    let script = r#"
import random, sqlite3, sys, os
rows = 200000
path = sys.argv[1]
db = sqlite3.connect(path)
db.execute('create table q (at integer, client text, grp text, name text, qtype integer, rcode integer, outcome text, tier text, protocol text, list text, upstream text, answer text, duration integer)')
random.seed(1)
def row(i):
    rank = int(20000 ** random.random() - 1)
    blocked = rank % 5 == 0
    return (1795000000000 + i * 50, '192.168.1.%d' % random.randrange(10, 35), 'default', 'www.name%d.site%d.example' % (rank, rank % 300), random.choice([1, 28, 65]), 3 if rank % 20 == 0 else 0, 'blocked' if blocked else 'cached', 'l0', 'udp', 'default' if blocked else '', '9.9.9.9', '192.0.2.%d' % (rank % 250), random.randrange(500, 40000) if random.randrange(10) == 0 else 0)
db.executemany('insert into q values (?,?,?,?,?,?,?,?,?,?,?,?,?)', (row(i) for i in range(rows)))
db.execute('create index by_name on q(name)')
db.execute('create index by_client on q(client)')
db.commit()
db.execute('vacuum')
db.close()
print(os.path.getsize(path) / rows)
"#;
    let output = Command::new("python3").args(["-c", script]).arg(folder.join("log.sqlite")).output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    text.parse().with_context(|| format!("sqlite3: {}", String::from_utf8_lossy(&output.stderr)))
}
