//! Plays the files in `tests/scenarios`: steps of a client, upstreams that follow a script, and time
//! that passes when a step says so.
//!
//! A file is a list of lines; `;` begins a comment. Indented lines belong to the line above them.
//!
//! ```text
//! set KEY VALUE                     before the first query: servers, strategy, refresh, min_ttl, …
//! policy JSON                       the policy to start with
//! server N answer NAME TYPE RCODE [aa] [ad] [do]     what upstream N says; `do`: to queries with DO
//!   an NAME TTL TYPE DATA           a record of the answer (au: authority, ad: additional section)
//! server N mode MODE                normal, silent, slow MS, garbage, wrong-id, wrong-name, truncated,
//!                                   no-edns, lower-case, servfail, refused, closed
//! query NAME TYPE [do] [cd] [ad] [norec] [edns] [edns1] [size N] [tcp] [ecs] [xN]   asks (N at once)
//! expect RCODE [hit|miss] [tc] [-tc] [aa] [-aa] [ad] [-ad] [opt] [-opt] [ede N] [count N] [below MS]
//!   an NAME TTL[..TTL] TYPE DATA    exactly these records, in this order
//!   au NAME TTL[..TTL] TYPE
//! expect drop                       no reply
//! asked N COUNT                     upstream N got so many queries since the last such line
//! time SECONDS                      passes
//! sweep [refreshed N] [cold N] [evicted N] [dropped N]
//! stored NAME TYPE yes|no           in the cache in the store
//! backoff N yes|no                  upstream N is asked last
//! clear
//! ```

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use dns::{
    FrontTable, HitResult, Policy, QueryClient, QueryProtocol, RefreshPreset, Resolver,
    ResolverOptions, UpstreamStrategy,
};
use testkit::{
    TestStore,
    dns_message::{DnsMessage, DnsQuery, DnsRecord, QueryEdns, dns_flag, wire_name},
    each_store, until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
};

each_store! {
    async fn every_scenario_is_played(t: TestStore) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 25, "{} scenarios", files.len());
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            Box::pin(play(&t, &name, &std::fs::read_to_string(&file).unwrap())).await;
        }
    }
}

fn type_number(word: &str) -> u16 {
    let known = [
        ("A", 1),
        ("NS", 2),
        ("CNAME", 5),
        ("SOA", 6),
        ("PTR", 12),
        ("HINFO", 13),
        ("MX", 15),
        ("TXT", 16),
        ("AAAA", 28),
        ("RRSIG", 46),
        ("NSEC", 47),
        ("HTTPS", 65),
        ("ANY", 255),
    ];
    known
        .iter()
        .find_map(|(name, number)| (*name == word).then_some(*number))
        .or_else(|| word.strip_prefix("TYPE")?.parse().ok())
        .unwrap_or_else(|| panic!("no type {word}"))
}

fn rcode_number(word: &str) -> u16 {
    let known = [
        ("NOERROR", 0),
        ("FORMERR", 1),
        ("SERVFAIL", 2),
        ("NXDOMAIN", 3),
        ("NOTIMP", 4),
        ("REFUSED", 5),
        ("BADVERS", 16),
    ];
    let found = known.iter().find_map(|(name, number)| (*name == word).then_some(*number));
    found.unwrap_or_else(|| panic!("no response code {word}"))
}

fn record_data(rtype: u16, text: &str) -> Vec<u8> {
    match rtype {
        1 => text.parse::<std::net::Ipv4Addr>().unwrap().octets().into(),
        28 => text.parse::<std::net::Ipv6Addr>().unwrap().octets().into(),
        2 | 5 | 12 => wire_name(text),
        // MINIMUM alone; the rest is the same everywhere.
        6 => {
            let minimum: u32 = text.parse().unwrap();
            let numbers = [1, 3_600, 600, 86_400, minimum].map(u32::to_be_bytes).concat();
            [wire_name("ns.test"), wire_name("host.test"), numbers].concat()
        }
        16 => [&[text.len() as u8], text.as_bytes()].concat(),
        _ => text.as_bytes().to_vec(),
    }
}

/// The form in which [`DnsMessage`] shows data.
fn shown_data(rtype: u16, text: &str) -> Vec<u8> {
    match rtype {
        2 | 5 | 12 => format!("{}.", text.trim_end_matches('.')).into_bytes(),
        _ => record_data(rtype, text),
    }
}

/// Owner, time to live, type and data.
type SectionRecord = (String, u32, u16, Vec<u8>);

#[derive(Clone, Debug, Default)]
struct Answer {
    flags: u16,
    sections: [Vec<SectionRecord>; 3],
}

#[derive(Clone, Debug, Default)]
struct ServerState {
    answers: HashMap<(String, u16, bool), Answer>,
    mode: String,
    seen: usize,
}

impl ServerState {
    /// The delay and the messages with which a query is answered.
    fn reply(&mut self, wire: &[u8], is_tcp: bool) -> (Duration, Vec<Vec<u8>>) {
        self.seen += 1;
        let query = DnsMessage::read(wire).unwrap();
        let name_end = wire.len().min(12 + query.question.len()) - 4;
        let name = String::from_utf8_lossy(&wire_to_text(&wire[12..name_end])).to_lowercase();
        let qtype = u16::from_be_bytes([wire[name_end], wire[name_end + 1]]);
        let edns = query.edns.clone();
        let is_signed = edns.as_ref().is_some_and(|edns| edns.flags & 0x8000 != 0);
        let find = |signed| self.answers.get(&(name.clone(), qtype, signed)).cloned();
        let answer = is_signed.then(|| find(true)).flatten().or_else(|| find(false));
        let answer = answer.unwrap_or(Answer { flags: 2, ..Answer::default() });
        let message = |flags: u16, answer: &Answer, edns: bool| {
            let mut out = wire[..2].to_vec();
            out.extend((dns_flag::QR | dns_flag::RD | dns_flag::RA | flags).to_be_bytes());
            out.extend([0, 1]);
            for section in &answer.sections {
                out.extend((section.len() as u16).to_be_bytes());
            }
            out[11] += u8::from(edns);
            out.extend(&query.question);
            for (owner, ttl, rtype, data) in answer.sections.iter().flatten() {
                out.extend(wire_name(owner));
                out.extend(rtype.to_be_bytes());
                out.extend([0, 1]);
                out.extend(ttl.to_be_bytes());
                out.extend((data.len() as u16).to_be_bytes());
                out.extend(data);
            }
            if edns {
                let do_bit = if is_signed { 0x80 } else { 0 };
                out.extend([0, 0, 41, 4, 208, 0, 0, do_bit, 0, 0, 0]);
            }
            out
        };
        let whole = message(answer.flags, &answer, edns.is_some());
        let mut words = self.mode.split_whitespace();
        let mode = words.next().unwrap_or("normal");
        let delay = Duration::from_millis(words.next().map_or(0, |ms| ms.parse().unwrap()));
        let empty = Answer::default();
        let messages = match mode {
            "normal" | "slow" => vec![whole],
            "silent" => vec![],
            "servfail" => vec![message(2, &empty, edns.is_some())],
            "refused" => vec![message(5, &empty, edns.is_some())],
            "garbage" => vec![b"not a message".to_vec(), wire[..14].to_vec(), vec![0xff; 60]],
            "truncated" if !is_tcp => vec![message(dns_flag::TC, &empty, edns.is_some())],
            "truncated" => vec![whole],
            "no-edns" if edns.is_some() => vec![message(1, &empty, false)],
            "no-edns" => vec![whole],
            // Forged ones first, then the true one.
            "wrong-id" => {
                let mut forged = whole.clone();
                forged[0] ^= 0x55;
                let last = forged.len() - 12;
                forged[last] ^= 1;
                vec![forged, whole]
            }
            "wrong-name" => {
                let mut forged = whole.clone();
                forged[13] = b'#';
                vec![forged, whole]
            }
            "only-forged" => {
                let mut forged = whole.clone();
                forged[1] ^= 0x55;
                vec![forged.clone(), forged]
            }
            "lower-case" => {
                let mut lower = whole.clone();
                lower[12..name_end].make_ascii_lowercase();
                vec![lower]
            }
            mode => panic!("no mode {mode}"),
        };
        (delay, messages)
    }
}

fn wire_to_text(name: &[u8]) -> Vec<u8> {
    let (mut text, mut at) = (Vec::new(), 0);
    while at < name.len() && name[at] != 0 {
        let end = at + 1 + usize::from(name[at]);
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend(&name[at + 1..end]);
        at = end;
    }
    text
}

/// An upstream that follows the script.
struct PlayedServer {
    address: SocketAddr,
    state: Arc<Mutex<ServerState>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// Queries up to the last `asked`.
    counted: usize,
}

impl PlayedServer {
    async fn start() -> Self {
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, Arc::new(udp));
            }
        };
        let address = tcp.local_addr().unwrap();
        let state = Arc::new(Mutex::new(ServerState::default()));
        let over_udp = tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                let mut buffer = [0; 4_096];
                while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                    let (delay, messages) = state.lock().unwrap().reply(&buffer[..length], false);
                    let udp = Arc::clone(&udp);
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        for message in messages {
                            udp.send_to(&message, from).await.unwrap();
                        }
                    });
                }
            }
        });
        let over_tcp = tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((mut client, _)) = tcp.accept().await {
                    let state = Arc::clone(&state);
                    tokio::spawn(async move {
                        while let Ok(length) = client.read_u16().await {
                            let mut wire = vec![0; length.into()];
                            client.read_exact(&mut wire).await.unwrap();
                            let (delay, messages) = state.lock().unwrap().reply(&wire, true);
                            tokio::time::sleep(delay).await;
                            for message in messages {
                                client.write_u16(message.len() as u16).await.unwrap();
                                client.write_all(&message).await.unwrap();
                            }
                        }
                    });
                }
            }
        });
        Self { address, state, tasks: vec![over_udp, over_tcp], counted: 0 }
    }
}

impl Drop for PlayedServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// One step with the lines that belong to it.
struct Step<'a> {
    number: usize,
    words: Vec<&'a str>,
    more: Vec<Vec<&'a str>>,
    text: &'a str,
}

fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split(';').next().unwrap().trim_end();
        let words: Vec<_> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        match steps.last_mut() {
            Some(last) if line.starts_with(' ') => last.more.push(words),
            _ => steps.push(Step { number: index + 1, words, more: Vec::new(), text: line }),
        }
    }
    steps
}

fn milliseconds(word: &str) -> Duration {
    Duration::from_millis(word.parse().unwrap())
}

fn seconds(word: &str) -> Duration {
    Duration::from_secs(word.parse().unwrap())
}

fn set(options: &mut ResolverOptions, key: &str, value: &str) {
    let number = || value.parse().unwrap();
    match key {
        "strategy" => {
            options.upstream.strategy = match value {
                "failover" => UpstreamStrategy::Failover,
                "load_balance" => UpstreamStrategy::LoadBalance,
                "weighted" => UpstreamStrategy::Weighted,
                "fastest" => UpstreamStrategy::Fastest,
                _ => panic!("no strategy {value}"),
            }
        }
        "refresh" => {
            options.refresh = match value {
                "off" => RefreshPreset::Off,
                "aggressive" => RefreshPreset::Aggressive,
                "balanced" => RefreshPreset::Balanced,
                "conservative" => RefreshPreset::Conservative,
                _ => panic!("no preset {value}"),
            }
        }
        "timeout" => options.upstream.timeout = milliseconds(value),
        "next_after" => options.upstream.next_after = milliseconds(value),
        "client_timeout" => options.client_timeout = milliseconds(value),
        "min_ttl" => options.ttl_bounds.min_seconds = number(),
        "max_ttl" => options.ttl_bounds.max_seconds = number(),
        "max_negative_ttl" => options.ttl_bounds.max_negative_seconds = number(),
        "client_ttl_cap" => options.client_ttl_cap = Some(seconds(value)),
        "stale_max_age" => options.stale.max_age = seconds(value),
        "stale_ttl" => options.stale.ttl = seconds(value),
        "stale_excluded" => options.stale.excluded = vec![value.parse().unwrap()],
        "grace" => options.l1.grace = seconds(value),
        "max_keys" => options.l1.max_keys = number().into(),
        "sweep_hit_window" => options.l1.sweep_hit_window = Some(seconds(value)),
        _ => panic!("no setting {key}"),
    }
}

async fn play(t: &TestStore, file: &str, text: &str) {
    let steps = steps(text);
    let mut options = ResolverOptions { refresh: RefreshPreset::Off, ..ResolverOptions::default() };
    options.default_policy = Policy::default();
    options.upstream.timeout = Duration::from_millis(300);
    let mut count = 1;
    for step in &steps {
        match step.words[..] {
            ["set", "servers", number] => count = number.parse().unwrap(),
            ["set", key, value] => set(&mut options, key, value),
            ["policy", ..] => {
                let json = step.text.trim_start_matches("policy").trim();
                options.default_policy = serde_json::from_str(json).unwrap();
            }
            _ => {}
        }
    }
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(PlayedServer::start().await);
    }
    let address = |server: &PlayedServer| server.address.to_string().parse().unwrap();
    options.upstream.servers = servers.iter().map(address).collect();
    let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
    let mut scene = Scene { t, resolver, servers, front: FrontTable::new(64), last: None };
    for step in &steps {
        let place = format!("{file}:{}: {}", step.number, step.text);
        if let Err(error) = scene.act(step).await {
            panic!("{place}: {error}");
        }
    }
    scene.resolver.clear().await.unwrap();
    scene.resolver.close().await;
}

/// The last reply and how it came.
struct LastReply {
    message: Option<DnsMessage>,
    is_hit: bool,
    took: Duration,
}

struct Scene<'a> {
    t: &'a TestStore,
    resolver: Resolver,
    servers: Vec<PlayedServer>,
    front: FrontTable,
    last: Option<LastReply>,
}

impl Scene<'_> {
    fn server(&mut self, word: &str) -> &mut PlayedServer {
        let number: usize = word.parse().unwrap();
        &mut self.servers[number - 1]
    }

    async fn act(&mut self, step: &Step<'_>) -> Result<(), String> {
        match step.words[..] {
            ["set" | "policy", ..] => Ok(()),
            ["server", number, "answer", name, qtype, rcode, ref flags @ ..] => {
                let mut answer = Answer { flags: rcode_number(rcode), ..Answer::default() };
                for flag in flags {
                    answer.flags |= match *flag {
                        "aa" => dns_flag::AA,
                        "ad" => dns_flag::AD,
                        "do" => 0,
                        flag => panic!("no flag {flag}"),
                    };
                }
                for line in &step.more {
                    let [section, owner, ttl, rtype, data] = line[..] else { panic!("{line:?}") };
                    let section = ["an", "au", "ad"].iter().position(|known| *known == section);
                    let rtype = type_number(rtype);
                    let record =
                        (owner.to_owned(), ttl.parse().unwrap(), rtype, record_data(rtype, data));
                    answer.sections[section.unwrap()].push(record);
                }
                let key = (
                    name.trim_end_matches('.').to_owned(),
                    type_number(qtype),
                    flags.contains(&"do"),
                );
                self.server(number).state.lock().unwrap().answers.insert(key, answer);
                Ok(())
            }
            ["server", number, "mode", ref mode @ ..] => {
                self.server(number).state.lock().unwrap().mode = mode.join(" ");
                Ok(())
            }
            ["query", name, qtype, ref more @ ..] => self.query(name, qtype, more).await,
            ["expect", ref more @ ..] => self.expect(more, &step.more),
            ["asked", number, count] => {
                let count: usize = count.parse().unwrap();
                let server = self.server(number);
                let (state, counted) = (Arc::clone(&server.state), server.counted);
                let seen = || state.lock().unwrap().seen - counted;
                let since = Instant::now();
                // A refresh in the background may still be on its way.
                while seen() < count && since.elapsed() < Duration::from_secs(20) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let found = seen();
                server.counted += found;
                (found == count).then_some(()).ok_or(format!("asked {found} times"))
            }
            ["time", amount] => {
                self.t.clock.advance(seconds(amount));
                Ok(())
            }
            ["sweep", ref more @ ..] => {
                let report = self.resolver.sweep().await.map_err(|error| error.to_string())?;
                for pair in more.chunks(2) {
                    let [what, number] = pair else { panic!("{pair:?}") };
                    let found = match *what {
                        "refreshed" => report.refreshed,
                        "cold" => report.cold,
                        "evicted" => report.evicted,
                        "dropped" => report.dropped,
                        what => panic!("nothing is called {what}"),
                    };
                    if found.to_string() != *number {
                        return Err(format!("{report:?}"));
                    }
                }
                Ok(())
            }
            ["stored", name, qtype, expected] => {
                let question = dns::Question {
                    name: name.parse().unwrap(),
                    qtype: type_number(qtype),
                    qclass: 1,
                };
                let (resolver, is_expected) = (self.resolver.clone(), expected == "yes");
                // The store is written behind the reply.
                until("the store is as expected", async || {
                    let entry = resolver.l1().get(&question, resolver.now()).await.unwrap();
                    (entry.plain.is_some() == is_expected).then_some(())
                })
                .await;
                Ok(())
            }
            ["stored", name, qtype, "for", seconds] => {
                let question = dns::Question {
                    name: name.parse().unwrap(),
                    qtype: type_number(qtype),
                    qclass: 1,
                };
                let (resolver, least) = (self.resolver.clone(), seconds.parse::<i64>().unwrap());
                // A refresh ends behind the reply that caused it.
                until("the store has a fresh answer", async || {
                    let now = resolver.now();
                    let entry = resolver.l1().get(&question, now).await.unwrap();
                    entry.plain.filter(|stored| stored.remaining(now) >= least).map(|_| ())
                })
                .await;
                Ok(())
            }
            ["backoff", number, expected] => {
                let number: usize = number.parse().unwrap();
                let stats = self.resolver.upstreams().stats();
                let is_in_backoff = stats[number - 1].is_in_backoff;
                (is_in_backoff == (expected == "yes")).then_some(()).ok_or(format!("{stats:?}"))
            }
            ["clear"] => {
                self.resolver.clear().await.map_err(|error| error.to_string())?;
                Ok(())
            }
            _ => Err("no such step".to_owned()),
        }
    }

    async fn query(&mut self, name: &str, qtype: &str, more: &[&str]) -> Result<(), String> {
        let mut query = DnsQuery::new(name, type_number(qtype));
        let mut edns = None::<QueryEdns>;
        let (mut protocol, mut times) = (QueryProtocol::Udp, 1);
        let mut words = more.iter();
        while let Some(word) = words.next() {
            match *word {
                "do" => edns.get_or_insert_default().flags = 0x8000,
                "cd" => query.flags |= dns_flag::CD,
                "ad" => query.flags |= dns_flag::AD,
                "norec" => query.flags &= !dns_flag::RD,
                "edns" => _ = edns.get_or_insert_default(),
                "edns1" => edns.get_or_insert_default().version = 1,
                "size" => {
                    edns.get_or_insert_default().size = words.next().unwrap().parse().unwrap()
                }
                "tcp" => protocol = QueryProtocol::Tcp,
                "ecs" => {
                    let subnet = (8, vec![0, 1, 24, 0, 198, 51, 100]);
                    edns.get_or_insert_default().options.push(subnet);
                }
                word if word.starts_with('x') => times = word[1..].parse().unwrap(),
                word => return Err(format!("no word {word}")),
            }
        }
        query.edns = edns;
        let (wire, client) = (query.to_wire(), QueryClient::local(protocol));
        let since = Instant::now();
        let mut out = [0; 1_232];
        let hit = match protocol {
            QueryProtocol::Udp if times == 1 => {
                let now = self.resolver.now();
                self.resolver.answer_hit(&mut self.front, &wire, client, now, &mut out)
            }
            _ => HitResult::Miss,
        };
        let (reply, is_hit) = match hit {
            HitResult::Reply(length) => (Some(out[..length].to_vec()), true),
            HitResult::Drop => (None, false),
            HitResult::Miss => {
                let asked = (0..times).map(|_| self.resolver.answer(&wire, client));
                let mut replies = futures_util::future::join_all(asked).await;
                let first = replies.swap_remove(0);
                if replies.iter().any(|other| *other != first) {
                    return Err("replies differ".to_owned());
                }
                (first, false)
            }
        };
        let message = match reply {
            Some(reply) => Some(DnsMessage::read(&reply).map_err(|error| error.to_string())?),
            None => None,
        };
        if let Some(message) = &message
            && (message.id != query.id || message.question != wire[12..12 + message.question.len()])
        {
            return Err(format!("another id or question: {message:?}"));
        }
        self.last = Some(LastReply { message, is_hit, took: since.elapsed() });
        Ok(())
    }

    fn expect(&mut self, more: &[&str], lines: &[Vec<&str>]) -> Result<(), String> {
        let last = self.last.as_ref().ok_or("no query before")?;
        if more == ["drop"] {
            return last.message.is_none().then_some(()).ok_or("there is a reply".to_owned());
        }
        let reply = last.message.as_ref().ok_or("no reply")?;
        let (rcode, more) = more.split_first().ok_or("what?")?;
        let fail = |what: &str| Err(format!("{what}: {reply:?}"));
        if reply.rcode != rcode_number(rcode) {
            return fail("response code");
        }
        let mut words = more.iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().unwrap().parse::<usize>().unwrap();
            let holds = match *word {
                "hit" => last.is_hit,
                "miss" => !last.is_hit,
                "tc" => reply.has(dns_flag::TC),
                "-tc" => !reply.has(dns_flag::TC),
                "aa" => reply.has(dns_flag::AA),
                "-aa" => !reply.has(dns_flag::AA),
                "ad" => reply.has(dns_flag::AD),
                "-ad" => !reply.has(dns_flag::AD),
                "ra" => reply.has(dns_flag::RA),
                "opt" => reply.edns.is_some(),
                "-opt" => reply.edns.is_none(),
                "count" => reply.answers().len() == number(),
                "ede" => {
                    let option = reply.edns.as_ref().and_then(|edns| edns.option(15));
                    let code =
                        option.map(|data| usize::from(u16::from_be_bytes([data[0], data[1]])));
                    code == Some(number())
                }
                "below" => last.took < Duration::from_millis(number() as u64),
                word => return Err(format!("no word {word}")),
            };
            if !holds {
                return fail(&format!("{word} after {:?}", last.took));
            }
        }
        for (index, (section, records)) in ["an", "au"].into_iter().zip(&reply.sections).enumerate()
        {
            let expected: Vec<_> = lines.iter().filter(|line| line[0] == section).collect();
            if expected.is_empty() {
                continue;
            }
            if expected.len() != records.len() {
                return fail("number of records");
            }
            for (line, record) in expected.into_iter().zip(records) {
                if !fits(line, record) {
                    return fail(&format!("section {index}, {line:?}"));
                }
            }
        }
        Ok(())
    }
}

fn fits(line: &[&str], record: &DnsRecord) -> bool {
    let (least, most) = line[2].split_once("..").unwrap_or((line[2], line[2]));
    let rtype = type_number(line[3]);
    record.name.trim_end_matches('.') == line[1]
        && (least.parse().unwrap()..=most.parse().unwrap()).contains(&record.ttl)
        && record.rtype == rtype
        && line.get(4).is_none_or(|data| shown_data(rtype, data) == record.data)
}
