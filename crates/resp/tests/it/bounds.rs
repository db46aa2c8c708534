//! What clients may not do to others: guess passwords, leave replies unread, hold memory that
//! nobody counts, read the keys of the process itself.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use resp::TlsSource;
use store::redis::AsyncCommands;

use crate::support::{Served, serve, until};

/// As the program sets an open port up.
fn restrict(served: &Served) {
    let embedded = served.store.embedded().unwrap();
    embedded.set_user("owner", &["reset", "on", ">long-password", "~*", "&*", "+@all"]).unwrap();
    embedded.set_owner("owner");
    let rules = [
        "reset",
        "on",
        "nopass",
        "~*",
        "&*",
        "+@all",
        "-~tidegate:*",
        "-~room:signing",
        "-acl",
        "+acl|whoami",
        "-config|set",
        "-debug",
        "-flushall",
        "-flushdb",
        "-swapdb",
        "-monitor",
        "-slowlog|get",
    ];
    embedded.set_user("default", &rules).unwrap();
}

fn redis_cli(served: &Served, args: &[&str]) -> String {
    let port = served.address.port().to_string();
    let output = Command::new("redis-cli").args(["-p", &port]).args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_user_reaches_everything_but_control_keys() {
    let served = serve(|_| {}).await;
    let mut store = served.store.clone();
    let _: () = store.hset("tidegate:tokens", "f", "secret").await.unwrap();
    let _: () = store.set("tidegate:s", "secret").await.unwrap();
    let _: () = store.hset("room:signing", "f", "secret").await.unwrap();
    restrict(&served);
    let attempts: &[&[&str]] = &[
        &["HSET", "tidegate:tokens", "x", "y"],
        &["HGETALL", "tidegate:tokens"],
        &["HGETALL", "room:signing"],
        &["DUMP", "room:signing"],
        &["COPY", "tidegate:tokens", "mine"],
        &["COPY", "mine", "tidegate:tokens", "REPLACE"],
        &["RENAME", "tidegate:tokens", "mine"],
        &["RENAME", "mine", "tidegate:tokens"],
        &["DEL", "mine", "tidegate:tokens"],
        &["UNLINK", "tidegate:s"],
        &["EXPIRE", "tidegate:s", "1"],
        &["MOVE", "tidegate:s", "1"],
        &["OBJECT", "ENCODING", "tidegate:s"],
        &["MEMORY", "USAGE", "tidegate:s"],
        &["RESTORE", "tidegate:s", "0", "x"],
        &["SORT", "mine", "STORE", "tidegate:s"],
        &["BITOP", "OR", "mine", "tidegate:s"],
        &["SUNIONSTORE", "mine", "tidegate:s"],
        &["ZUNIONSTORE", "mine", "1", "tidegate:s"],
        &["XREAD", "STREAMS", "tidegate:audit", "0"],
        &["MIGRATE", "127.0.0.1", "1", "tidegate:s", "0", "100"],
        &["MIGRATE", "127.0.0.1", "1", "", "0", "100", "KEYS", "tidegate:s"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "tidegate:s"],
        &["EVAL", "return redis.call('GET', 'tide'..'gate:s')", "0"],
        &["EVAL", "return redis.call('SET', 'tide'..'gate:s', 'x')", "0"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["SWAPDB", "0", "1"],
        &["DEBUG", "OBJECT", "tidegate:s"],
        &["MONITOR"],
        &["SLOWLOG", "GET"],
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"],
        &["ACL", "SETUSER", "default", "~*", "+@all"],
        &["ACL", "SETUSER", "mallory", "on", "nopass", "~*", "+@all"],
        &["ACL", "LIST"],
        &["ACL", "GETUSER", "owner"],
    ];
    assert_eq!(redis_cli(&served, &["SET", "mine", "1"]), "OK\n");
    for attempt in attempts {
        let told = redis_cli(&served, attempt);
        let words = ["NOPERM", "can't access", "DEBUG command not allowed"];
        let denied = words.iter().any(|word| told.contains(word));
        assert!(denied && !told.contains("secret"), "{attempt:?}: {told}");
    }
    // A transaction, and a key that only a pattern leads to.
    let mut client = served.client();
    client.send("MULTI\r\nGET tidegate:s\r\nEXEC\r\n");
    client.until("EXECABORT");
    client.until("\r\n");
    client.send("RPUSH l s\r\nSORT l BY nosort GET tidegate:* GET #\r\n");
    client.expect(":1\r\n*2\r\n$-1\r\n$1\r\ns\r\n");
    assert_eq!(store.get::<_, String>("tidegate:s").await.unwrap(), "secret");
    assert_eq!(store.hlen::<_, i64>("tidegate:tokens").await.unwrap(), 1);
    // Names may be listed, and all else works.
    assert!(redis_cli(&served, &["KEYS", "*"]).contains("tidegate:s"));
    assert_eq!(redis_cli(&served, &["EVAL", "return redis.call('GET', 'mine')", "0"]), "1\n");
    // The password lifts it, with and without the name, and RESET takes it away again.
    for login in [
        "AUTH long-password",
        "AUTH owner long-password",
        "AUTH default long-password",
        "HELLO 2 AUTH owner long-password",
        "HELLO 2 AUTH default long-password",
    ] {
        let mut client = served.client();
        client.send(format!("{login}\r\nGET tidegate:s\r\nRESET\r\nGET tidegate:s\r\n"));
        client.until("$6\r\nsecret\r\n+RESET\r\n-NOPERM");
    }
    // A wrong one is told and counted under any name.
    for (at, guess) in ["AUTH x", "AUTH default x", "HELLO 3 AUTH default x"].iter().enumerate() {
        let mut client = served.client();
        client.send(format!("{guess}\r\n"));
        client.expect("-WRONGPASS");
        assert_eq!(served.info("stats", "acl_access_denied_auth").await, (at + 1).to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_people_use_need_no_password() {
    let served = serve(|_| {}).await;
    restrict(&served);
    let script = "import redis,sys\n\
        r=redis.Redis(port=int(sys.argv[1]))\n\
        p=r.pipeline(); p.set('a',1); p.incr('a'); print(p.execute())\n\
        try: r.get('tidegate:x')\n\
        except redis.exceptions.NoPermissionError as e: print('refused')\n\
        u='redis://:long-password@127.0.0.1:'+sys.argv[1]\n\
        print(redis.Redis.from_url(u).get('tidegate:x'))\n";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", script, &served.address.port().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "[True, 2]\nrefused\nNone\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn wrong_passwords_are_counted_and_answered_later_and_later() {
    let served = serve(|_| {}).await;
    served.store.embedded().unwrap().set_password("secret");
    let (mut guesses, began) = (served.client(), Instant::now());
    for _ in 0..6 {
        guesses.send("AUTH wrong\r\n");
        guesses.until("user is disabled.\r\n");
    }
    // The first three at once, then 50, 100 and 200 ms.
    assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    // What is sent behind a guess waits too; who knows the password does not.
    // Each guess waits twice as long as the one before: 400 ms, 800 ms, 1.6 s …
    let mut owner = served.client();
    let mut wrong = 6;
    let unharmed = (0..4).any(|_| {
        guesses.send("AUTH wrong\r\nPING\r\n");
        wrong += 1;
        owner = served.client();
        owner.send("AUTH secret\r\nPING\r\n");
        owner.expect("+OK\r\n+PONG\r\n");
        let waits = !guesses.has_reply();
        guesses.until("user is disabled.\r\n");
        guesses.until("-NOAUTH Authentication required.\r\n");
        waits
    });
    assert!(unharmed, "the owner waits as long as who guesses");
    assert_eq!(served.info("stats", "acl_access_denied_auth").await, wrong.to_string());
    // Many at once in a transaction wait as long as one by one: at least 800 ms and 1.6 s.
    let asked = Instant::now();
    owner.send("MULTI\r\nAUTH wrong\r\nAUTH wrong\r\nEXEC\r\n");
    owner.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    owner.until("disabled.\r\n-WRONGPASS");
    assert!(asked.elapsed() >= Duration::from_millis(2_400), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn connections_without_a_password_are_few_and_do_not_stay() {
    let served = serve(|config| {
        config.login_timeout = Duration::from_millis(300);
        config.max_unauthenticated = 2;
    })
    .await;
    served.store.embedded().unwrap().set_password("secret");
    let mut known = served.client();
    known.send("AUTH secret\r\n");
    known.expect("+OK\r\n");
    let mut strangers: Vec<_> = (0..5).map(|_| served.client()).collect();
    for stranger in &mut strangers {
        assert_eq!(stranger.rest(), "");
    }
    known.send("PING\r\n");
    known.expect("+PONG\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_speaks_tls_with_a_certificate() {
    let certificates = testkit::tls::Certificates::make().unwrap();
    let config = server_config(certificates.folder());
    let served = serve(move |c| c.tls = Some(TlsSource::new(move || Arc::clone(&config)))).await;
    let mut store = served.store.clone();
    let big = "x".repeat(3 << 20);
    let _: () = store.set("big", &big).await.unwrap();
    // Authority and server bear the same name here, which OpenSSL takes for a certificate that
    // signs itself.
    let tls = ["--tls", "--insecure"];
    let run = |args: &[&str]| redis_cli(&served, &[&tls[..], args].concat());
    assert_eq!(run(&["SET", "a", "1"]), "OK\n");
    assert_eq!(run(&["GET", "a"]), "1\n");
    assert_eq!(run(&["GET", "big"]).len(), big.len() + 1);
    // Without TLS there is nothing to be had.
    let mut plain = served.client();
    plain.send("GET a\r\n");
    assert!(!plain.rest().contains("$1"));
}

fn server_config(folder: &std::path::Path) -> Arc<rustls::ServerConfig> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let chain = CertificateDer::pem_file_iter(folder.join("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

/// Publishes until the subscriber is cut off: how much it had left unread before, in bytes.
async fn publish_until_cut(served: &Served, message: &[u8]) -> usize {
    let mut store = served.store.clone();
    let mut sent = 0;
    loop {
        let heard: i64 = store.publish("news", message).await.unwrap();
        if heard == 0 {
            return sent;
        }
        sent += message.len();
        assert!(sent < 200 << 20, "nobody was cut off");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_closed_at_the_limit_of_its_class() {
    let served = serve(|_| {}).await;
    let mut admin = served.client();
    admin.send("CONFIG SET client-output-buffer-limit \"pubsub 1mb 0 0\"\r\n");
    admin.expect("+OK\r\n");
    admin.send("CONFIG GET client-output-buffer-limit\r\n");
    admin.until("normal 0 0 0 slave 268435456 67108864 60 pubsub 1048576 0 0\r\n");
    admin.send("CONFIG SET client-output-buffer-limit \"guest 1mb 0 0\"\r\n");
    admin.expect("-ERR");
    admin.until("\r\n");
    let mut listens = served.client();
    listens.send("SUBSCRIBE news\r\n");
    listens.expect("*3\r\n");
    let sent = publish_until_cut(&served, &vec![b'x'; 100_000]).await;
    // The sockets themselves hold some of it.
    assert!(sent < 40 << 20, "{sent} bytes");
}

#[tokio::test]
async fn a_soft_limit_closes_after_its_seconds() {
    let served = serve(|_| {}).await;
    let mut admin = served.client();
    admin.send("CONFIG SET client-output-buffer-limit \"pubsub 0 64kb 1\"\r\n");
    admin.expect("+OK\r\n");
    let mut listens = served.client();
    listens.send("SUBSCRIBE news\r\n");
    listens.expect("*3\r\n");
    let mut store = served.store.clone();
    let _: i64 = store.publish("news", vec![b'x'; 32 << 20]).await.unwrap();
    // Nothing more is sent: the time alone closes it.
    until("the subscriber was not cut off", || {
        !redis_cli(&served, &["CLIENT", "LIST", "TYPE", "pubsub"]).contains("cmd=subscribe")
    });
}

#[tokio::test]
async fn a_client_that_sends_more_than_the_query_buffer_holds_is_closed() {
    let served = serve(|_| {}).await;
    let mut admin = served.client();
    admin.send("CONFIG SET client-query-buffer-limit 1mb\r\n");
    admin.expect("+OK\r\n");
    admin.send("CONFIG GET client-query-buffer-limit\r\n");
    admin.until("1048576\r\n");
    let mut small = served.client();
    small.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n");
    small.send(vec![b'x'; 1_000_000]);
    small.send("\r\n");
    small.expect("+OK\r\n");
    let mut large = served.client();
    large.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n");
    // It may be closed before all is sent, and what is not read makes that a reset.
    let _ = large.stream.write_all(&vec![b'x'; 2_000_000]);
    let mut rest = Vec::new();
    let end = large.stream.read_to_end(&mut rest).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    admin.send("STRLEN k\r\n");
    admin.expect(":1000000\r\n");
}

async fn used(served: &Served) -> usize {
    served.info("memory", "used_memory").await.parse().unwrap()
}

#[tokio::test]
async fn what_clients_hold_counts_as_memory_in_use() {
    let served = serve(|_| {}).await;
    let before = used(&served).await;
    // Queued in a transaction.
    let mut queues = served.client();
    queues.send("MULTI\r\n");
    queues.expect("+OK\r\n");
    queues.send(format!("SET k {}\r\n", "x".repeat(60_000)).repeat(100));
    for _ in 0..100 {
        queues.expect("+QUEUED\r\n");
    }
    let queued = used(&served).await;
    assert!(queued > before + 6_000_000, "{before} and then {queued}");
    queues.send("DISCARD\r\n");
    queues.expect("+OK\r\n");
    assert!(used(&served).await < before + 1_000_000);
    // Announced and partly sent: what was sent counts, and not much more.
    let mut sends = served.client();
    sends.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
    sends.send(vec![b'x'; 4 << 20]);
    let mut most = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while most < before + (4 << 20) {
        most = used(&served).await;
        assert!(Instant::now() < deadline, "{before} and then {most}");
    }
    assert!(most < before + (10 << 20), "{before} and then {most}");
    drop(sends);
    let deadline = Instant::now() + Duration::from_secs(60);
    while used(&served).await > before + 1_000_000 {
        assert!(Instant::now() < deadline, "it still counts after the end");
    }
    // Not read.
    let mut store = served.store.clone();
    let _: () = store.set("big", vec![b'x'; 1 << 20]).await.unwrap();
    let before = used(&served).await;
    let mut lazy = served.client();
    lazy.send("GET big\r\n".repeat(40));
    let deadline = Instant::now() + Duration::from_secs(60);
    while used(&served).await < before + (20 << 20) {
        assert!(Instant::now() < deadline, "unread replies do not count");
    }
    let resident: usize = served.info("memory", "used_memory_rss").await.parse().unwrap();
    assert!(resident > used(&served).await, "{resident}");
}

#[tokio::test]
async fn queued_commands_count_against_the_limit() {
    let served = serve(|_| {}).await;
    let mut admin = served.client();
    admin.send("CONFIG SET maxmemory 5mb\r\n");
    admin.expect("+OK\r\n");
    let mut queues = served.client();
    queues.send("MULTI\r\n");
    queues.expect("+OK\r\n");
    queues.send(format!("SET k {}\r\n", "x".repeat(60_000)).repeat(200));
    queues.until("-OOM");
    admin.send("SET a 1\r\n");
    admin.expect("-OOM");
}
