//! The resolver when something breaks: processes killed, disks full, silent clients, several instances
//! of which one dies.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::dns_message::{DnsMessage, DnsQuery};
use testkit::{Cluster, DnsServer, RedisServer, TestZone, until_blocking};

use crate::dns_client::{Resolver, Transport, address_in_banner};
use crate::process::{Tidegate, text};

const A: u16 = 1;

fn authority() -> DnsServer {
    DnsServer::nsd(&[
        TestZone::new("fault.example", "*.one A 192.0.2.1"),
        TestZone::new("", "fault.example. NS ns.zone.example."),
    ])
}

fn start(store: &str, upstream: &str, args: &[&str]) -> Tidegate {
    let setting = format!("dns.upstreams={upstream}");
    Tidegate::start(store, &[&["--only", "dns", "--set", &setting], args].concat())
}

fn dns_address(gate: &Tidegate) -> SocketAddr {
    address_in_banner(gate, "DNS ")
}

fn resp_url(gate: &Tidegate) -> String {
    let word = gate.banner.split_whitespace().find(|word| word.starts_with("redis://"));
    word.unwrap_or_else(|| panic!("no RESP in {}", gate.banner)).to_owned()
}

fn socket(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

/// Asks over UDP and returns the answer.
#[track_caller]
fn ask(server: SocketAddr, name: &str) -> DnsMessage {
    let (socket, query) = (socket(server), DnsQuery::new(name, A));
    socket.send(&query.to_wire()).unwrap();
    let mut buffer = [0; 1_500];
    let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{name}: {error}"));
    DnsMessage::read(&buffer[..length]).unwrap()
}

#[track_caller]
fn is_answered(server: SocketAddr, name: &str) {
    let reply = ask(server, name);
    assert_eq!((reply.rcode, reply.answers().len()), (0, 1), "{name}: {reply:?}");
}

#[track_caller]
fn run(gate: &Tidegate, args: &[&str]) -> String {
    let done = gate.run(&[&["dns"], args].concat());
    assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

/// Kills without a word and starts again in the same folder.
fn kill_and_restart(mut gate: Tidegate, store: &str, upstream: &str, args: &[&str]) -> Tidegate {
    gate.signal("-KILL");
    gate.wait();
    let folder = std::mem::replace(&mut gate.folder, tempfile::tempdir().unwrap());
    let setting = format!("dns.upstreams={upstream}");
    let all = [&["--only", "dns", "--set", &setting], args].concat();
    Tidegate::start_in(folder, store, &all)
}

#[test]
fn a_kill_while_the_log_is_written_loses_no_block_that_was_whole() {
    let authority = authority();
    let upstream = authority.address().to_string();
    let mut gate = start("embedded:store", &upstream, &[]);
    for round in 0..3 {
        let server = dns_address(&gate);
        is_answered(server, &format!("first{round}.one.fault.example"));
        until_blocking("the query is in the log", || {
            run(&gate, &["search", &format!("first{round}"), "--json"])
                .contains("first")
                .then_some(())
        });
        // Killed in the middle of a stream of queries.
        let ending = Arc::new(AtomicBool::new(false));
        let asking = std::thread::spawn({
            let ending = Arc::clone(&ending);
            move || {
                let socket = socket(server);
                for number in 0_u64.. {
                    if ending.load(Ordering::Relaxed) {
                        return number;
                    }
                    let name = format!("load{}.one.fault.example", number % 500);
                    let _ = socket.send(&DnsQuery::new(&name, A).to_wire());
                    std::thread::sleep(Duration::from_micros(200));
                }
                0
            }
        });
        until_blocking("queries are logged", || {
            run(&gate, &["search", "load", "--json"]).contains("load").then_some(())
        });
        gate = kill_and_restart(gate, "embedded:store", &upstream, &[]);
        ending.store(true, Ordering::Relaxed);
        assert!(asking.join().unwrap() > 0);
        is_answered(dns_address(&gate), &format!("after{round}.one.fault.example"));
        // The log is read, with what was written before: the search does not fail on a torn tail.
        until_blocking("the log is searched", || {
            run(&gate, &["search", &format!("after{round}"), "--json"])
                .contains("after")
                .then_some(())
        });
    }
}

#[test]
fn a_kill_while_lists_are_swapped_leaves_one_of_both_whole() {
    let authority = authority();
    let upstream = authority.address().to_string();
    let mut gate = start("embedded:store", &upstream, &[]);
    // Files of lists are read from one folder only.
    let folder = gate.path().join("tidegate-data/dns/lists/files");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("names.txt");
    let write = |file: &std::path::Path, word: &str| {
        let names: String = (0..50_000).map(|n| format!("{word}{n}.listed.example\n")).collect();
        std::fs::write(file, names).unwrap();
    };
    write(&file, "old");
    run(&gate, &["lists", "put", "names", r#"{"url": "file:names.txt"}"#]);
    let _ = gate.run(&["dns", "lists", "refresh", "names"]);
    let is_blocked = |gate: &Tidegate, name: &str| run(gate, &["why", name]).starts_with("blocked");
    until_blocking("the list is in force", || {
        is_blocked(&gate, "old7.listed.example").then_some(())
    });
    for (round, word) in ["new", "old", "new"].into_iter().enumerate() {
        write(&file, word);
        let refresh = std::thread::spawn({
            let mut command =
                crate::process::command(gate.path(), &["dns", "lists", "refresh", "names"]);
            move || command.output()
        });
        // At another moment of the swap each time.
        std::thread::sleep(Duration::from_millis(20 + 40 * round as u64));
        gate = kill_and_restart(gate, "embedded:store", &upstream, &[]);
        let _ = refresh.join();
        let sets = ["old", "new"].map(|word| {
            let first = is_blocked(&gate, &format!("{word}0.listed.example"));
            let last = is_blocked(&gate, &format!("{word}49999.listed.example"));
            assert_eq!(first, last, "a list is there whole or not at all");
            first
        });
        assert!(sets.contains(&true), "the last good list, or the next one");
        is_answered(dns_address(&gate), &format!("after{round}.one.fault.example"));
    }
}

#[test]
fn a_thousand_silent_connections_do_not_touch_udp() {
    let authority = authority();
    let resolver = Resolver::start(&authority.address().to_string(), &[]);
    let mut silent = Vec::new();
    for number in 0..1_000 {
        let to = if number % 2 == 0 { resolver.udp } else { resolver.tls };
        // Refused or closed ones are as good: they are silent too.
        if let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
            if number % 3 == 0 {
                // Half of a length, and no more.
                let _ = stream.write_all(&[0]);
            }
            silent.push(stream);
        }
    }
    assert!(silent.len() >= 500, "{} connections", silent.len());
    let mut client = resolver.open(Transport::Udp);
    let since = Instant::now();
    for number in 0..200 {
        let query = DnsQuery::new(&format!("n{}.one.fault.example", number % 20), A);
        assert_eq!(client.ask(&query).answers().len(), 1);
    }
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    drop(silent);
    for transport in [Transport::Tcp, Transport::Tls] {
        let query = DnsQuery::new("www.one.fault.example", A);
        assert_eq!(resolver.ask(transport, &query).answers().len(), 1, "{transport:?}");
    }
}

#[test]
fn a_full_disk_stops_the_log_and_not_the_answers() {
    let authority = authority();
    let setting = format!("dns.upstreams={}", authority.address());
    let gate = Tidegate::start_on_disk_with(
        24 << 20,
        &["--only", "dns", "--set", &setting, "--set", "server.data=disk/data"],
    );
    let server = dns_address(&gate);
    is_answered(server, "before.one.fault.example");
    // Whatever is left of the disk is taken away.
    let filler = gate.disk().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    let mut bytes = 1 << 20;
    while bytes > 0 {
        // Large pieces first, then smaller ones, until not a byte more fits.
        if file.write_all(&vec![b'x'; bytes]).is_err() {
            bytes /= 2;
        }
    }
    for number in 0..200 {
        is_answered(server, &format!("full{number}.one.fault.example"));
    }
    until_blocking("the program says so", || {
        let log = gate.log();
        (log.contains("query log not written") && log.contains("No space left on device"))
            .then_some(())
    });
    is_answered(server, "before.one.fault.example");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    is_answered(server, "after.one.fault.example");
}

/// Clients that ask one server without a pause, and count what is not answered.
struct Load {
    ending: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(server: SocketAddr) -> Load {
        let (ending, answered, lost) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            Arc::<AtomicU64>::default(),
        );
        let thread = std::thread::spawn({
            let (ending, answered, lost) =
                (Arc::clone(&ending), Arc::clone(&answered), Arc::clone(&lost));
            move || {
                let socket = socket(server);
                socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut buffer = [0; 1_500];
                let mut number = 0_u64;
                while !ending.load(Ordering::Relaxed) {
                    number += 1;
                    let name = format!("pair{}.one.fault.example", number % 300);
                    let query = DnsQuery::new(&name, A);
                    socket.send(&query.to_wire()).unwrap();
                    let received = socket.recv(&mut buffer);
                    let good = received.is_ok_and(|length| {
                        DnsMessage::read(&buffer[..length])
                            .is_ok_and(|reply| reply.id == query.id && reply.answers().len() == 1)
                    });
                    let count = if good { &answered } else { &lost };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Load { ending, answered, lost, thread: Some(thread) }
    }

    fn end(mut self) -> (u64, u64) {
        self.ending.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        (self.answered.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}

/// Two instances and a fresh third on one store: what one changes the others see within a second, one
/// that is killed costs the others nothing, and a new one is warm at once.
fn pair(first: Tidegate, store: &str, upstream: &str, first_is_store: bool) {
    let second = start(store, upstream, &[]);
    let (one, other) = (dns_address(&first), dns_address(&second));
    is_answered(one, "seen.one.fault.example");
    is_answered(other, "seen.one.fault.example");

    run(&first, &["block", "seen.one.fault.example"]);
    let since = Instant::now();
    until_blocking("the other instance blocks too", || {
        (ask(other, "seen.one.fault.example").answers()[0].data == [0, 0, 0, 0]).then_some(())
    });
    assert!(since.elapsed() < Duration::from_secs(1), "seen after {:?}", since.elapsed());
    run(&second, &["block", "seen.one.fault.example", "--undo"]);
    until_blocking("and the first allows again", || {
        (ask(one, "seen.one.fault.example").answers()[0].data != [0, 0, 0, 0]).then_some(())
    });

    // Both warm, then one dies under load; where it holds the store, the other one goes.
    let (victim, survivor) = if first_is_store { (second, first) } else { (first, second) };
    let load = Load::start(dns_address(&survivor));
    until_blocking("all names are known", || {
        (load.answered.load(Ordering::Relaxed) > 1_000).then_some(())
    });
    let mut victim = victim;
    victim.signal("-KILL");
    victim.wait();
    let before = load.answered.load(Ordering::Relaxed);
    until_blocking("the other one goes on", || {
        (load.answered.load(Ordering::Relaxed) > before + 1_000).then_some(())
    });
    let (answered, lost) = load.end();
    assert_eq!(lost, 0, "of {answered}");

    // What the two knew is in the store: a fresh one asks the upstream for hardly anything.
    let stored = || run(&survivor, &["cache", "find", "pair299.one.fault.example", "--json"]);
    until_blocking("the answers are in the store", || stored().contains("store").then_some(()));
    let third = start(store, upstream, &[]);
    let since = Instant::now();
    let fresh = dns_address(&third);
    (0..300).for_each(|number| is_answered(fresh, &format!("pair{number}.one.fault.example")));
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    let upstreams: serde_json::Value =
        serde_json::from_str(&run(&third, &["upstreams", "--json"])).unwrap();
    let asked = find_number(&upstreams, "queries").expect("figures of the upstream");
    assert!(asked <= 30, "hit rate below 90 %: {asked} of 300 asked upstream: {upstreams}");
}

/// The first number under a key, at any depth.
fn find_number(value: &serde_json::Value, key: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| map.values().find_map(|value| find_number(value, key))),
        serde_json::Value::Array(items) => items.iter().find_map(|value| find_number(value, key)),
        _ => None,
    }
}

#[test]
fn instances_on_one_redis_share_everything() {
    let (authority, redis) = (authority(), RedisServer::start());
    let upstream = authority.address().to_string();
    let first = start(&redis.url(), &upstream, &[]);
    pair(first, &redis.url(), &upstream, false);
}

#[test]
fn instances_on_the_store_of_another_share_everything() {
    let authority = authority();
    let upstream = authority.address().to_string();
    let first = start("embedded:store", &upstream, &[]);
    // As the guide says: with the password from the data folder of the first.
    let password = first.path().join("tidegate-data/store-password");
    let password = std::fs::read_to_string(password).unwrap();
    let url = resp_url(&first).replace("redis://", &format!("redis://:{}@", password.trim()));
    pair(first, &url, &upstream, true);
}

#[test]
fn instances_on_a_cluster_share_everything() {
    let (authority, cluster) = (authority(), Cluster::start());
    let upstream = authority.address().to_string();
    let first = start(&cluster.url(), &upstream, &[]);
    pair(first, &cluster.url(), &upstream, false);
}

#[test]
fn real_caches_work_as_upstreams() {
    let authority = authority();
    let upstreams = [
        DnsServer::unbound(authority.address()),
        DnsServer::pdns_recursor(authority.address()),
        DnsServer::dnsmasq(authority.address()),
    ];
    for (number, server) in upstreams.iter().enumerate() {
        for prefix in ["", "tcp://"] {
            let upstream = format!("{prefix}{}", server.address());
            let gate = start("embedded:", &upstream, &[]);
            let address = dns_address(&gate);
            for _ in ["miss", "hit"] {
                is_answered(address, &format!("u{number}.one.fault.example"));
            }
            let gone = ask(address, "nobody.fault.example");
            assert_eq!((gone.rcode, gone.authorities().len()), (3, 1), "{upstream}: {gone:?}");
        }
    }
}
