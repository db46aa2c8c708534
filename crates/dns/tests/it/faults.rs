//! Faults of what is around the resolver: the store, the clock, others on the network; and what the
//! original left in the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dns::{
    Policy, QueryClient, QueryProtocol, RefreshPreset, Resolver, ResolverOptions, UpstreamOptions,
};
use store::{Millis, Store};
use testkit::{
    RedisServer, Sentinel,
    dns_message::{DnsMessage, DnsQuery, QueryEdns},
    each_store, standalone_keys, until,
};

use crate::support::{ScriptedUpstream, address_reply, metadata, packet, run};

fn options(upstream: &ScriptedUpstream) -> ResolverOptions {
    ResolverOptions {
        upstream: UpstreamOptions {
            servers: vec![upstream.address()],
            ..UpstreamOptions::default()
        },
        default_policy: Policy::default(),
        refresh: RefreshPreset::Off,
        ..ResolverOptions::default()
    }
}

async fn answering(ttl: u32) -> ScriptedUpstream {
    ScriptedUpstream::start(move |query, _| vec![address_reply(query, ttl, 1)]).await
}

async fn ask(resolver: &Resolver, name: &str) -> DnsMessage {
    let reply = resolver.answer(&packet(name), QueryClient::local(QueryProtocol::Udp)).await;
    DnsMessage::read(&reply.unwrap()).unwrap()
}

#[track_caller]
fn is_answered(reply: &DnsMessage) {
    assert_eq!((reply.rcode, reply.answers().len()), (0, 1), "{reply:?}");
}

fn leaves_redis_out() -> bool {
    std::env::var("STORES").is_ok_and(|stores| !stores.is_empty() && !stores.contains("redis"))
}

each_store! {
    async fn a_clock_that_is_set_back_an_hour_leaves_no_query_unanswered(t: TestStore) {
        let upstream = answering(300).await;
        let mut options = options(&upstream);
        // Nobody is exempt but loopback, which is why this one comes from elsewhere.
        options.default_policy.rate_limit.per_second = 50;
        options.default_policy.rate_limit.burst = 100;
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        let client = QueryClient {
            address: [192, 168, 1, 7].into(),
            ..QueryClient::local(QueryProtocol::Udp)
        };
        let ask_all = async |word: &str| {
            for number in 0..50 {
                let name = format!("{word}{number}.test");
                let reply = resolver.answer(&packet(&name), client).await;
                let reply = DnsMessage::read(&reply.expect("a reply")).unwrap();
                is_answered(&reply);
                assert!(reply.answers()[0].ttl <= 300, "no TTL grows: {reply:?}");
            }
        };
        t.clock.advance(Duration::from_secs(7_200));
        ask_all("n").await;
        t.clock.set(Millis(t.clock.now().0 - 3_600_000));
        ask_all("n").await;
        ask_all("m").await;
        t.clock.advance(Duration::from_secs(3_700));
        ask_all("n").await;
    }

    async fn the_store_may_go_and_come_back(t: TestStore) {
        let upstream = answering(300).await;
        let resolver = Resolver::open(t.store.clone(), options(&upstream)).await.unwrap();
        is_answered(&ask(&resolver, "before.test").await);
        t.faults.go_away();
        for number in 0..20 {
            is_answered(&ask(&resolver, &format!("away{number}.test")).await);
            is_answered(&ask(&resolver, "before.test").await);
        }
        t.faults.come_back();
        // Stored again once the store is trusted again.
        let mut number = 0;
        until("answers are stored again", async || {
            number += 1;
            let name = format!("back{number}.test");
            is_answered(&ask(&resolver, &name).await);
            let question = crate::support::question(&name);
            let entry = resolver.l1().get(&question, resolver.now()).await;
            entry.ok()?.plain.map(|_| ())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_costs_one_query_some_milliseconds() {
    if leaves_redis_out() {
        return;
    }
    let (redis, upstream) = (RedisServer::start(), answering(300).await);
    let store = Store::open(&redis.url()).await.unwrap();
    let resolver = Resolver::open(store, options(&upstream)).await.unwrap();
    is_answered(&ask(&resolver, "before.test").await);
    redis.freeze();
    for number in 0..10 {
        let since = Instant::now();
        is_answered(&ask(&resolver, &format!("frozen{number}.test")).await);
        assert!(since.elapsed() < Duration::from_millis(1_500), "{:?}", since.elapsed());
    }
    redis.thaw();
    is_answered(&ask(&resolver, "after.test").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_the_store_leaves_no_query_unanswered() {
    if leaves_redis_out() {
        return;
    }
    let (mut sentinel, upstream) = (Sentinel::start(), answering(300).await);
    let store = Store::open(&sentinel.url()).await.unwrap();
    let resolver = Resolver::open(store, options(&upstream)).await.unwrap();
    is_answered(&ask(&resolver, "before.test").await);
    let master = sentinel.master().unwrap();
    sentinel.servers()[master].kill();
    let mut number = 0;
    until("the store has another master, and takes answers again", async || {
        number += 1;
        let name = format!("failover{number}.test");
        is_answered(&ask(&resolver, &name).await);
        is_answered(&ask(&resolver, "before.test").await);
        let stored = resolver.l1().get(&crate::support::question(&name), resolver.now()).await;
        stored.ok()?.plain.map(|_| ())
    })
    .await;
}

/// A spoofer who knows the server's address and the resolver's port, and guesses id and capitals: more
/// than one off the path can know. Nothing it sends is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoofer_is_never_believed() {
    const FORGED_PER_QUERY: usize = 100;
    // A minute before a release: `DNS_SPOOF_SECONDS=60`.
    let seconds = std::env::var("DNS_SPOOF_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = Duration::from_secs(seconds.unwrap_or(5));
    let forged = Arc::new(AtomicUsize::new(0));
    let upstream = ScriptedUpstream::start({
        let forged = Arc::clone(&forged);
        move |query, _| {
            let mut replies = Vec::new();
            for _ in 0..FORGED_PER_QUERY {
                // The name in lower case, as the spoofer asked for it; a guessed id.
                let mut reply = address_reply(query, 300, 66);
                let end = crate::support::question_end(query) - 4;
                reply[12..end].make_ascii_lowercase();
                let guess = fastrand::u16(..).to_be_bytes();
                if guess == query[..2] {
                    continue;
                }
                reply[..2].copy_from_slice(&guess);
                replies.push(reply);
            }
            forged.fetch_add(replies.len(), Ordering::Relaxed);
            replies.push(address_reply(query, 300, 1));
            replies
        }
    })
    .await;
    let store = Store::open("embedded:").await.unwrap();
    let resolver = Resolver::open(store, options(&upstream)).await.unwrap();
    let since = Instant::now();
    let mut number = 0;
    while number < 300 || since.elapsed() < seconds {
        number += 1;
        let reply = ask(&resolver, &format!("w{number}.spoofed-name-of-some-length.test")).await;
        is_answered(&reply);
        assert_eq!(reply.answers()[0].data, [192, 0, 2, 1], "forged");
    }
    assert!(forged.load(Ordering::Relaxed) >= number * (FORGED_PER_QUERY - 5));
    let stats = resolver.upstreams().stats();
    assert!(stats[0].dropped as usize >= number * 10, "dropped and counted: {stats:?}");
}

/// Beyond the rate limit a client without a cookie gets no more bytes than it sent.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_flooded_through_us() {
    let upstream = ScriptedUpstream::start(|query, is_tcp| {
        let mut reply = address_reply(query, 300, 1);
        if !is_tcp {
            reply[2] |= 2;
            return vec![reply];
        }
        reply[7] = 60;
        for last in 2..=60 {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, last]);
        }
        vec![reply]
    })
    .await;
    let mut options = options(&upstream);
    options.default_policy.rate_limit.per_second = 10;
    options.default_policy.rate_limit.burst = 20;
    options.default_policy.rate_limit.exempt = Vec::new();
    let store = Store::open("embedded:").await.unwrap();
    let resolver = Resolver::open(store, options).await.unwrap();
    for allowed in [true, false] {
        // A victim in a network that may ask, and one that may not.
        let address = if allowed { [192, 168, 9, 9] } else { [203, 0, 113, 9] };
        let client =
            QueryClient { address: address.into(), ..QueryClient::local(QueryProtocol::Udp) };
        let mut queries: Vec<Vec<u8>> = Vec::new();
        for name in ["large.test", "other.test", "x.invalid"] {
            queries.push(DnsQuery::new(name, 1).to_wire());
            queries.push(
                DnsQuery::new(name, 255)
                    .edns(QueryEdns { size: 4_096, ..Default::default() })
                    .to_wire(),
            );
            queries.push(DnsQuery::new(name, 1).dnssec_ok().to_wire());
            for cookie in [vec![1; 8], vec![1; 24], vec![1; 7]] {
                let edns = QueryEdns { options: vec![(10, cookie)], ..Default::default() };
                queries.push(DnsQuery::new(name, 1).edns(edns).to_wire());
            }
            queries.push(DnsQuery { qclass: 3, ..DnsQuery::new(name, 16) }.to_wire());
            let mut malformed = DnsQuery::new(name, 1).to_wire();
            malformed[5] = 2;
            queries.push(malformed);
        }
        let mut front = dns::FrontTable::new(64);
        let mut buffer = [0; 1_232];
        // The burst is spent first.
        for query in queries.iter().cycle().take(200) {
            let _ = resolver.answer_hit(&mut front, query, client, resolver.now(), &mut buffer);
        }
        let (mut bytes_in, mut bytes_out) = (0, 0);
        let since = resolver.now();
        for query in queries.iter().cycle().take(5_000) {
            bytes_in += query.len();
            let reply = match resolver.answer_hit(&mut front, query, client, since, &mut buffer) {
                dns::HitResult::Reply(length) => length,
                dns::HitResult::Drop => 0,
                dns::HitResult::Miss => panic!("a query above the limit goes no further"),
            };
            bytes_out += reply;
        }
        assert!(bytes_out <= bytes_in, "{bytes_out} for {bytes_in}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_off_the_access_list_is_refused_and_then_ignored() {
    let upstream = answering(300).await;
    let mut options = options(&upstream);
    options.default_policy.rate_limit.per_second = 5;
    options.default_policy.rate_limit.burst = 10;
    let store = Store::open("embedded:").await.unwrap();
    let resolver = Resolver::open(store, options).await.unwrap();
    let client =
        QueryClient { address: [203, 0, 113, 1].into(), ..QueryClient::local(QueryProtocol::Udp) };
    let mut codes = Vec::new();
    for _ in 0..50 {
        let reply = resolver.answer(&packet("www.test"), client).await;
        codes.push(reply.map(|reply| (reply[3] & 0xf, reply[2] & 2)));
    }
    assert!(codes[..10].iter().all(|code| *code == Some((5, 0))), "{codes:?}");
    // Then nothing, not even a truncated reply; what the rate allows in between is refused.
    assert!(codes[10..].iter().filter(|code| code.is_none()).count() >= 30, "{codes:?}");
    assert!(codes[10..].iter().flatten().all(|code| *code == (5, 0)), "{codes:?}");
    assert_eq!(upstream.seen().len(), 0);
}

/// The client behind a forwarder is known by the hardware address that the forwarder names.
#[tokio::test(flavor = "multi_thread")]
async fn forwarders_name_their_clients() {
    let upstream = answering(300).await;
    let mut options = options(&upstream);
    options.default_policy = serde_json::from_value(serde_json::json!({
        "access": {"forwarders": ["192.168.1.1"]},
        "groups": [{"id": "kids", "rules": ["||games.test^"]}],
        "clients": [{"id": "tablet", "addresses": ["02:00:5e:10:00:ff"], "group": "kids"}],
    }))
    .unwrap();
    let store = Store::open("embedded:").await.unwrap();
    let resolver = Resolver::open(store, options).await.unwrap();
    let mac = vec![2, 0, 0x5e, 0x10, 0, 0xff];
    let with = |option: (u16, Vec<u8>)| QueryEdns { options: vec![option], ..Default::default() };
    let ask = async |from: [u8; 4], edns: QueryEdns| {
        let query = DnsQuery::new("www.games.test", 1).edns(edns).to_wire();
        let client = QueryClient { address: from.into(), ..QueryClient::local(QueryProtocol::Udp) };
        let reply = resolver.answer(&query, client).await.unwrap();
        DnsMessage::read(&reply).unwrap().answers()[0].data.clone()
    };
    for _ in ["miss", "hit"] {
        for option in [
            (65_001, mac.clone()),
            (65_073, b"02:00:5e:10:00:ff".to_vec()),
            (65_073, b"AgBeEAD/".to_vec()),
        ] {
            let blocked = ask([192, 168, 1, 1], with(option.clone())).await;
            assert_eq!(blocked, [0, 0, 0, 0], "{option:?}");
            // From anybody else it counts for nothing.
            assert_eq!(ask([192, 168, 1, 2], with(option)).await, [192, 0, 2, 1]);
        }
        assert_eq!(ask([192, 168, 1, 1], with((65_001, vec![9; 6]))).await, [192, 0, 2, 1]);
    }
}

standalone_keys! {
    async fn what_the_original_left_is_read(t: TestStore) {
        let now = t.store.now().as_secs();
        let text = include_str!("../fixtures/beyond-ads-dns.jsonl");
        for line in text.lines() {
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            load_dumped(&t.store, &entry, now).await;
        }
        let upstream = ScriptedUpstream::start(|_, _| vec![]).await;
        let mut options = options(&upstream);
        options.upstream.timeout = Duration::from_millis(100);
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        for (name, qtype, rcode, answers) in [
            ("example.com", 1, 0, 1),
            ("www.example.com", 1, 0, 2),
            ("example.com", 28, 0, 0),
            ("nothing.example.com", 1, 3, 0),
            ("example.com", 16, 0, 1),
            ("a:b.example.com", 1, 0, 1),
            ("dotted.example.com", 1, 0, 1),
            ("legacy.example.com", 1, 0, 1),
        ] {
            let query = DnsQuery::new(name, qtype);
            let reply = resolver.answer(&query.to_wire(), QueryClient::local(QueryProtocol::Udp)).await;
            let reply = DnsMessage::read(&reply.unwrap()).unwrap();
            assert_eq!((reply.rcode, reply.answers().len()), (rcode, answers), "{name}: {reply:?}");
            assert!(reply.edns.is_none(), "the OPT record that was stored is never replayed");
            assert!(reply.answers().iter().all(|record| (1..=300).contains(&record.ttl)), "{reply:?}");
        }
        // A byte that does not print and a dot inside a label.
        let mut query = DnsQuery::new("", 1);
        query.name = b"\x05x.y\x07z\x07example\x03com\0".to_vec();
        let reply = resolver.answer(&query.to_wire(), QueryClient::local(QueryProtocol::Udp)).await;
        assert_eq!(DnsMessage::read(&reply.unwrap()).unwrap().answers().len(), 1);
        assert_eq!(upstream.seen().len(), 0, "all of it was known");
        // What is stale is asked for, and given as stale when nobody answers.
        let stale = ask(&resolver, "stale.example.com").await;
        assert_eq!(stale.answers()[0].ttl, 30);
        assert!(!upstream.seen().is_empty());
        // The form before hashes was rewritten.
        let kind: String = run(&t.store, &["TYPE", "dns:legacy.example.com:1:1"]).await;
        assert_eq!(kind, "hash");
        let hits: String = run(&t.store, &["GET", &metadata(&t.store, "hit:dns:example.com:1:1")]).await;
        assert_eq!(hits, "17");
    }
}

/// Puts one line of the dump into the store. Times in it are relative to now.
async fn load_dumped(store: &Store, entry: &serde_json::Value, now: i64) {
    let key = entry["key"].as_str().unwrap();
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    };
    let mut command = store::redis::Cmd::new();
    match entry["type"].as_str().unwrap() {
        "hash" => {
            command.arg("HSET").arg(key);
            for (field, value) in entry["fields"].as_object().unwrap() {
                command.arg(field);
                match (field.as_str(), value) {
                    ("msg", value) => command.arg(hex(value.as_str().unwrap())),
                    ("soft_expiry" | "created_at", value) => {
                        command.arg(now + value.as_i64().unwrap())
                    }
                    (_, value) => command.arg(value.as_i64().unwrap()),
                };
            }
        }
        "string" => _ = command.arg("SET").arg(key).arg(hex(entry["value"].as_str().unwrap())),
        "zset" => {
            command.arg("ZADD").arg(key);
            for (member, score) in entry["members"].as_object().unwrap() {
                command.arg(now + score.as_i64().unwrap()).arg(member);
            }
        }
        other => panic!("no type {other}"),
    }
    command.query_async::<()>(&mut store.clone()).await.unwrap();
    if let Some(ttl) = entry["ttl"].as_i64() {
        run::<()>(store, &["EXPIRE", key, &ttl.to_string()]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_all_connections() {
    let upstream = answering(300).await;
    let store = Store::open("embedded:").await.unwrap();
    let resolver = Resolver::open(store, options(&upstream)).await.unwrap();
    let listen = dns::ListenOptions {
        addresses: vec!["127.0.0.1:0".parse().unwrap()],
        tcp_max_connections: 8,
        ..dns::ListenOptions::default()
    };
    let listeners = dns::Listeners::open(&resolver, listen).await.unwrap();
    let address = listeners.addresses()[0];
    let is_done = Arc::new(AtomicBool::new(false));
    tokio::task::spawn_blocking({
        let is_done = Arc::clone(&is_done);
        move || {
            use std::io::{Read as _, Write as _};
            let greedy: Vec<_> =
                (0..20).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
            // Another address of this machine: another client.
            let socket = connect_from("127.0.0.2", address);
            let mut other = socket;
            other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let query = packet("www.test");
            other.write_all(&(query.len() as u16).to_be_bytes()).unwrap();
            other.write_all(&query).unwrap();
            let mut length = [0; 2];
            other.read_exact(&mut length).unwrap();
            drop(greedy);
            is_done.store(true, Ordering::SeqCst);
        }
    })
    .await
    .unwrap();
    assert!(is_done.load(Ordering::SeqCst));
    listeners.close().await;
}

/// Connects from a certain address.
fn connect_from(from: &str, to: std::net::SocketAddr) -> std::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(socket.connect(to)).unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}
