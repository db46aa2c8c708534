//! Commands, pipelines, protocols, waiting, messages, limits.

use std::time::{Duration, Instant};

use store::redis::AsyncCommands;

use crate::support::{Served, serve, until};

#[tokio::test]
async fn a_pipeline_is_answered_in_order() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("SET a 1\r\n*2\r\n$4\r\nINCR\r\n$1\r\na\r\nGET a\r\nNOSUCH x\r\n");
    client.expect("+OK\r\n:2\r\n$1\r\n2\r\n");
    client.expect("-ERR unknown command 'NOSUCH', with args beginning with: 'x' \r\n");
}

#[tokio::test]
async fn the_socket_and_the_store_see_one_keyspace() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("SET greeting hello\r\n");
    client.expect("+OK\r\n");
    let mut store = served.store.clone();
    assert_eq!(store.get::<_, String>("greeting").await.unwrap(), "hello");
}

#[tokio::test]
async fn hello_switches_to_resp3_and_reset_back() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("HSET h f v\r\nHGETALL h\r\nGET none\r\n");
    client.expect(":1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n$-1\r\n");
    client.send("HELLO 3\r\n");
    client.expect("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n");
    let mut rest = String::new();
    while !rest.ends_with("$7\r\nmodules\r\n*0\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.stream, &mut byte).unwrap();
        rest.push(char::from(byte[0]));
    }
    client.send("HGETALL h\r\nGET none\r\nRESET\r\nGET none\r\n");
    client.expect("%1\r\n$1\r\nf\r\n$1\r\nv\r\n_\r\n+RESET\r\n$-1\r\n");
}

/// Until so many clients wait for a key.
pub(crate) async fn until_blocked(served: &Served, count: usize) {
    until_clients(served, "blocked_clients", count).await;
}

async fn until_clients(served: &Served, name: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = served.info("clients", name).await;
        if found == count.to_string() {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {found}, not {count}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_waiting_client_that_goes_away_takes_nothing() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    for more in ["", "PING\r\n"] {
        let mut waits = served.client();
        waits.send("BLPOP list 0\r\n");
        until_blocked(&served, 1).await;
        waits.send(more);
        drop(waits);
        until_blocked(&served, 0).await;
        client.send("RPUSH list x\r\nLPOP list\r\n");
        client.expect(":1\r\n$1\r\nx\r\n");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_as_soon_as_it_waits_takes_nothing() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    // More than a socket's buffers hold at first.
    let behind = "PING\r\n".repeat(60_000);
    for round in 0..20 {
        let mut waits = served.client();
        waits.send("PING\r\n");
        waits.expect("+PONG\r\n");
        // While this runs, the command and the end of the connection both arrive.
        client.send("EVAL 'for i = 1, 2000000 do end return 1' 0\r\n");
        waits.send("BLPOP list 0\r\n");
        if round % 4 == 3 {
            waits.send(&behind);
        }
        drop(waits);
        client.expect(":1\r\n");
        until_clients(&served, "connected_clients", 1).await;
        client.send("RPUSH list x\r\nLPOP list\r\n");
        client.expect(":1\r\n$1\r\nx\r\n");
    }
}

#[tokio::test]
async fn a_waiting_client_is_served_by_another_and_goes_on() {
    let served = serve(|_| {}).await;
    let (mut waits, mut pushes) = (served.client(), served.client());
    waits.send("BLPOP list 0\r\nPING\r\n");
    // It waits once the engine says so.
    until_blocked(&served, 1).await;
    pushes.send("RPUSH list x\r\n");
    pushes.expect(":1\r\n");
    waits.expect("*2\r\n$4\r\nlist\r\n$1\r\nx\r\n+PONG\r\n");
}

#[tokio::test]
async fn waiting_ends_at_its_time() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("BLPOP list 0.05\r\nPING\r\n");
    client.expect("*-1\r\n+PONG\r\n");
}

#[tokio::test]
async fn messages_reach_listeners_from_any_door() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("SUBSCRIBE news\r\n");
    client.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let mut store = served.store.clone();
    assert_eq!(store.publish::<_, _, i64>("news", "tide").await.unwrap(), 1);
    client.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$4\r\ntide\r\n");
}

#[tokio::test]
async fn quit_says_ok_and_closes_and_nothing_after_it_runs() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("QUIT\r\nSET after 1\r\n");
    assert_eq!(client.rest(), "+OK\r\n");
    let mut store = served.store.clone();
    assert!(!store.exists::<_, bool>("after").await.unwrap());
}

#[tokio::test]
async fn nonsense_is_named_and_ends_the_connection() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("*1\r\n:1\r\n");
    assert_eq!(client.rest(), "-ERR Protocol error: expected '$', got ':'\r\n");
}

#[tokio::test]
async fn a_web_page_cannot_speak_to_the_port() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 1\r\n");
    assert_eq!(client.rest(), "");
    let mut store = served.store.clone();
    assert!(!store.exists::<_, bool>("a").await.unwrap());
}

#[tokio::test]
async fn one_client_too_many_is_told_so() {
    let served = serve(|config| config.max_clients = 1).await;
    let mut first = served.client();
    first.send("PING\r\n");
    first.expect("+PONG\r\n");
    assert_eq!(served.client().rest(), "-ERR max number of clients reached\r\n");
    assert_eq!(served.info("stats", "rejected_connections").await, "1");
}

#[tokio::test]
async fn traffic_and_rates_are_counted() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    let counter = async |name| served.info("stats", name).await.parse::<u64>().unwrap();
    // What comes is counted before it is run, what goes once the socket has taken it.
    for _ in 0..1_000 {
        client.send("PING\r\n");
        client.expect("+PONG\r\n");
    }
    assert_eq!(counter("total_net_input_bytes").await, 6_000);
    while counter("total_net_output_bytes").await < 7_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counter("total_reads_processed").await, 1_000);
    assert_eq!(counter("total_writes_processed").await, 1_000);
    // A thousand calls within the samples of the last 1.6 s.
    let rate = async |name| served.info("stats", name).await.parse::<f64>().unwrap();
    while rate("instantaneous_ops_per_sec").await < 100.0 {
        client.send("PING\r\n".repeat(100));
        client.expect("+PONG\r\n".repeat(100));
    }
    assert!(rate("instantaneous_input_kbps").await > 0.0);
    assert!(rate("instantaneous_output_kbps").await > 0.0);
    assert!(served.info("cpu", "used_cpu_user").await.parse::<f64>().unwrap() >= 0.0);
    assert!(counter("total_net_input_bytes").await > 6_000);
    client.send("CONFIG RESETSTAT\r\n");
    client.expect("+OK\r\n");
    assert!(counter("total_net_input_bytes").await < 6_000);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let served = serve(|_| {}).await;
    let mut store = served.store.clone();
    let _: () = store.set("big", vec![b'x'; 1 << 20]).await.unwrap();
    let mut admin = served.client();
    admin.send("CONFIG SET client-output-buffer-limit \"normal 1mb 0 0\"\r\n");
    admin.expect("+OK\r\n");
    let mut client = served.client();
    client.send("GET big\r\n".repeat(100));
    // What is in flight arrives; 100 MiB never do.
    let mut got = Vec::new();
    let _ = std::io::Read::read_to_end(&mut client.stream, &mut got);
    assert!(got.len() < 90 << 20, "{} bytes came", got.len());
}

#[tokio::test]
async fn a_silent_client_is_closed_and_a_listening_one_is_not() {
    let served = serve(|config| config.idle = Duration::from_millis(100)).await;
    let mut listens = served.client();
    listens.send("SUBSCRIBE news\r\n");
    listens.expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert_eq!(served.client().rest(), "");
    let mut store = served.store.clone();
    assert_eq!(store.publish::<_, _, i64>("news", "tide").await.unwrap(), 1);
    listens.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$4\r\ntide\r\n");
}

#[tokio::test]
async fn a_password_is_asked_for_when_set() {
    let served = serve(|_| {}).await;
    served.store.embedded().unwrap().set_password("secret");
    let mut client = served.client();
    client.send("GET a\r\nAUTH wrong\r\nAUTH secret\r\nGET a\r\n");
    client.expect("-NOAUTH Authentication required.\r\n");
    client.expect("-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.expect("+OK\r\n$-1\r\n");
    // The process itself never needs one.
    let mut store = served.store.clone();
    assert!(!store.exists::<_, bool>("a").await.unwrap());
}

#[tokio::test]
async fn what_takes_long_is_in_the_slow_log() {
    type Slow = (i64, i64, i64, Vec<String>, String, String);
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("CONFIG SET slowlog-log-slower-than 0\r\nPING pong\r\n");
    client.expect("+OK\r\n$4\r\npong\r\n");
    client.send("CONFIG SET slowlog-log-slower-than 60000000\r\nPING quick\r\n");
    client.expect("+OK\r\n$5\r\nquick\r\n");
    let mut store = served.store.clone();
    let slow: Vec<Slow> =
        store::redis::cmd("SLOWLOG").arg("GET").query_async(&mut store).await.unwrap();
    let (_, at, took, command, address, _) = &slow[0];
    assert_eq!(command, &["PING", "pong"]);
    assert!(*at > 0 && *took >= 0 && address.starts_with("127.0.0.1:"), "{slow:?}");
}

#[tokio::test]
async fn a_command_that_waited_is_in_the_slow_log_once_it_is_served() {
    let served = serve(|_| {}).await;
    let (mut waiter, mut client) = (served.client(), served.client());
    client.send("CONFIG SET slowlog-log-slower-than 0\r\n");
    client.expect("+OK\r\n");
    waiter.send("BLPOP l 0\r\n");
    while served.info("clients", "blocked_clients").await != "1" {
        tokio::task::yield_now().await;
    }
    client.send("MULTI\r\nLPUSH l foo\r\nSLOWLOG RESET\r\nEXEC\r\nSLOWLOG GET 1\r\n");
    client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n+OK\r\n");
    waiter.expect("*2\r\n$1\r\nl\r\n$3\r\nfoo\r\n");
    let entry = client.until("127.0.0.1:");
    assert!(entry.contains("*3\r\n$5\r\nBLPOP\r\n$1\r\nl\r\n$1\r\n0\r\n"), "{entry}");
}

#[tokio::test]
async fn times_of_commands_are_counted() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    client.send("CONFIG RESETSTAT\r\nSET a b\r\nMULTI\r\nSET a b\r\nEXEC\r\nCLIENT ID\r\n");
    client.expect("+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n:");
    client.until("\r\n");
    client.send("LATENCY HISTOGRAM set client nosuch\r\n");
    let parts = "$5\r\ncalls\r\n";
    client.expect(format!("*4\r\n$9\r\nclient|id\r\n*4\r\n{parts}:1\r\n$14\r\nhistogram_usec\r\n"));
    client.until("$3\r\nset\r\n");
    client.expect(format!("*4\r\n{parts}:2\r\n$14\r\nhistogram_usec\r\n*"));
    let usec = served.info("commandstats", "cmdstat_set").await;
    assert!(usec.starts_with("calls=2,usec="), "{usec}");
    let percentiles = served.info("latencystats", "latency_percentiles_usec_set").await;
    let names: Vec<_> = percentiles.split(',').map(|part| part.split('=').next()).collect();
    assert_eq!(names, [Some("p50"), Some("p99"), Some("p99.9")], "{percentiles}");
    let mut client = served.client();
    client.send("CONFIG SET latency-tracking no\r\nCONFIG RESETSTAT\r\nSET a b\r\n");
    client.expect("+OK\r\n+OK\r\n+OK\r\n");
    client.send("CONFIG SET latency-tracking yes\r\n");
    client.expect("+OK\r\n");
    assert_eq!(served.info("latencystats", "latency_percentiles_usec_set").await, "");
}

#[tokio::test]
async fn buffers_of_connections_are_shown_and_given_back() {
    let served = serve(|_| {}).await;
    let (mut client, mut other) = (served.client(), served.client());
    let mut buffer = |name: &str| {
        client.send("CLIENT LIST\r\n");
        let length: usize = client.until("\r\n").trim_start_matches('$').trim().parse().unwrap();
        let mut list = vec![0; length + 2];
        std::io::Read::read_exact(&mut client.stream, &mut list).unwrap();
        let list = String::from_utf8(list).unwrap();
        let line = list.lines().find(|line| line.contains(name)).unwrap();
        let of = |field: &str| {
            let words = line.split(' ');
            let value = words.filter_map(|word| word.strip_prefix(field)).next().unwrap();
            value.parse::<usize>().unwrap()
        };
        of("qbuf=") + of("qbuf-free=")
    };
    other.send("CLIENT SETNAME other\r\n");
    other.expect("+OK\r\n");
    assert!((16_384..32_768).contains(&buffer("name=other")));
    other.send(format!("SET x {}\r\n", "A".repeat(400)));
    other.expect("+OK\r\n");
    let long = "A".repeat(400_000);
    other.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$400000\r\n{long}\r\n"));
    other.expect("+OK\r\n");
    assert!(buffer("name=other") > 32_768);
    // What is not needed is given back while it speaks, and all but a little when it is silent.
    until("much is given back", || {
        other.send("PING\r\n");
        other.expect("+PONG\r\n");
        buffer("name=other") < 400_000
    });
    until("nearly all is given back", || buffer("name=other") <= 4_096);
}

#[tokio::test]
async fn another_port_is_opened_on_request() {
    let served = serve(|_| {}).await;
    let mut client = served.client();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = taken.local_addr().unwrap().port();
    client.send(format!("CONFIG SET maxmemory 10000001 port {used}\r\n"));
    client.expect("-ERR CONFIG SET failed (possibly related to argument 'port') - Unable to ");
    client.expect("listen on this port. Check server logs.\r\n");
    client.send("CONFIG GET maxmemory\r\n");
    client.expect("*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n");
    client.send(format!("CONFIG GET port\r\nCONFIG SET port {}\r\n", served.address.port()));
    let port = served.address.port().to_string();
    client.expect(format!("*2\r\n$4\r\nport\r\n${}\r\n{port}\r\n+OK\r\n", port.len()));
    drop(taken);
    client.send(format!("CONFIG SET port {used}\r\nPING\r\n"));
    client.expect("+OK\r\n+PONG\r\n");
    let mut fresh = std::net::TcpStream::connect(("127.0.0.1", used)).unwrap();
    std::io::Write::write_all(&mut fresh, b"PING\r\n").unwrap();
    let mut got = [0; 7];
    std::io::Read::read_exact(&mut fresh, &mut got).unwrap();
    assert_eq!(&got, b"+PONG\r\n");
    assert_eq!(served.listening().port(), used);
    let old = std::net::TcpStream::connect(served.address);
    assert!(old.is_err(), "the old port is closed");
}
