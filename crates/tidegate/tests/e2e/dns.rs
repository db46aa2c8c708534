//! The resolver of the running program: what `tidegate dns` asks and shows.

use std::net::UdpSocket;

use crate::process::{Tidegate, command, text};
use crate::wait::{LONG, eventually, until};

/// An upstream on loopback that answers every query of type A with 192.0.2.7, and all else with no
/// records, until it is dropped.
pub(crate) struct Upstream {
    address: String,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Upstream {
    pub(crate) fn start() -> Upstream {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 1_500];
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut buffer) else { continue };
                socket.send_to(&reply(&buffer[..length]), client).unwrap();
            }
        });
        Upstream { address, stop, thread: Some(thread) }
    }

    pub(crate) fn setting(&self) -> String {
        format!("dns.upstreams={}", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The header and question of a query, and one address if it asks for one.
fn reply(query: &[u8]) -> Vec<u8> {
    let mut end = 12;
    while query[end] != 0 {
        end += 1 + usize::from(query[end]);
    }
    let is_a = query[end + 1..end + 3] == [0, 1];
    let mut reply = query[..end + 5].to_vec();
    reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    if is_a {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 7]);
    }
    reply
}

#[test]
fn a_name_is_asked_for_kept_found_and_deleted() {
    let upstream = Upstream::start();
    let gate = Tidegate::start("embedded:store", &["--set", &upstream.setting()]);
    assert!(gate.banner.contains("DNS          127.0.0.1:"), "{}", gate.banner);
    let asked = gate.run(&["dns", "query", "Shop.Example", "--json"]);
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let asked: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(asked["rcode"], "NOERROR");
    assert_eq!(asked["answers"][0]["data"], "192.0.2.7");
    let over_tcp = gate.run(&["dns", "query", "shop.example", "--tcp", "--short"]);
    assert_eq!(text(&over_tcp.stdout), "192.0.2.7\n", "{}", text(&over_tcp.stderr));

    let tiers = || {
        let found = gate.json("/api/v1/dns/cache/answers?name=shop.example&type=A");
        let items = found["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["tier"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The store is written behind the reply.
    until("the tiers that hold the name", LONG, tiers, |tiers| tiers[..] == ["memory", "store"]);
    let deleted = gate.run(&["dns", "cache", "delete", "shop.example"]);
    assert!(text(&deleted.stderr).contains("deleted 1 answer"), "{}", text(&deleted.stderr));
    assert!(tiers().is_empty(), "{:?}", tiers());

    let refused = gate.run(&["dns", "cache", "clear"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(gate.run(&["dns", "cache", "clear", "--yes"]).status.success());
    let bad = gate.run(&["dns", "query", "a..b"]);
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad.stderr));
    let shown = text(&gate.run(&["dns", "upstreams"]).stdout);
    assert!(shown.contains(&upstream.address) && shown.contains("healthy"), "{shown}");

    // Queries are counted behind the reply.
    let counted =
        "tidegate_dns_queries_total{protocol=\"udp\",outcome=\"upstream\",rcode=\"NOERROR\"} ";
    until("the metrics", LONG, || gate.get("/metrics").1, |metrics| metrics.contains(counted));
    let ready = gate.json("/readyz");
    let checks = ready["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "dns_filtering"), "{ready}");
}

#[test]
fn the_cache_outlives_the_process_and_its_upstream() {
    let upstream = Upstream::start();
    let setting = upstream.setting();
    let gate = Tidegate::start("embedded:store", &["--set", &setting]);
    assert_eq!(text(&gate.run(&["dns", "query", "kept.example", "--short"]).stdout), "192.0.2.7\n");
    let stored = || gate.json("/api/v1/dns/cache/answers?name=kept.example&type=A").to_string();
    until("the tiers that hold the name", LONG, stored, |stored| stored.contains("\"store\""));
    let folder = gate.stop();
    drop(upstream);
    let gate = Tidegate::start_in(folder, "embedded:store", &["--set", &setting]);
    assert_eq!(text(&gate.run(&["dns", "query", "kept.example", "--short"]).stdout), "192.0.2.7\n");
    let unknown = gate.run(&["dns", "query", "other.example"]);
    assert!(text(&unknown.stdout).contains("SERVFAIL"), "{}", text(&unknown.stdout));
}

#[test]
fn a_name_is_blocked_explained_allowed_for_a_while_and_found_in_the_log() {
    let upstream = Upstream::start();
    let gate = Tidegate::start("embedded:store", &["--set", &upstream.setting()]);
    let run = |args: &[&str]| {
        let done = gate.run(&[&["dns"], args].concat());
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    run(&["block", "ads.example"]);
    assert_eq!(run(&["query", "www.ads.example", "--short"]), "0.0.0.0\n");
    assert!(run(&["why", "www.ads.example"]).starts_with("blocked"));
    run(&["allow", "www.ads.example", "--for", "10m"]);
    assert_eq!(run(&["query", "www.ads.example", "--short"]), "192.0.2.7\n");
    run(&["pause", "10m"]);
    assert_eq!(run(&["query", "other.ads.example", "--short"]), "192.0.2.7\n");
    run(&["resume"]);
    assert_eq!(run(&["query", "other.ads.example", "--short"]), "0.0.0.0\n");
    run(&["records", "add", "printer.home.arpa", "A", "192.168.1.9"]);
    assert_eq!(run(&["query", "printer.home.arpa", "--https", "--short"]), "192.168.1.9\n");
    let policy = run(&["export"]);
    let file = gate.path().join("policy.json");
    std::fs::write(&file, policy.replace("||ads.example^", "||news.example^")).unwrap();
    let plan = run(&["plan", "policy.json"]);
    assert!(plan.contains("rules[0]") && plan.contains("news.example"), "{plan}");
    run(&["apply", "policy.json"]);
    assert_eq!(run(&["query", "news.example", "--short"]), "0.0.0.0\n");
    for shows in [&["search", "news", "--outcome", "blocked"][..], &["top", "blocked-names"]] {
        until("what is shown", LONG, || run(shows), |shown| shown.contains("news.example"));
    }
    assert!(run(&["stats"]).contains("queries"));
    assert!(run(&["rules"]).contains("||news.example^"));
}

#[test]
fn a_second_server_on_the_port_is_refused_with_who_has_it() {
    let gate = Tidegate::start("embedded:", &[]);
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix("DNS")).unwrap();
    let address = line.split_whitespace().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--store", "embedded:", "--listen", "127.0.0.1:0"];
    let mut second = command(folder.path(), &args);
    second.args(["--set", "resp.listen=off", "--set", &format!("dns.listen={address}")]);
    let second = second.output().unwrap();
    let told = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("{address} is in use already by tidegate (process ")), "{told}");
    assert!(told.contains("dns.listen"), "{told}");

    let doctor = ["doctor", "--json", "--set", &format!("dns.listen={address}")];
    let findings = command(folder.path(), &doctor).output().unwrap();
    let findings: serde_json::Value = serde_json::from_slice(&findings.stdout).unwrap();
    let port = findings.as_array().unwrap().iter().find(|one| one["what"] == "dns.listen").unwrap();
    assert_eq!(port["state"], "bad", "{port}");
    assert!(port["found"].as_str().unwrap().contains("tidegate (process"), "{port}");
}

#[test]
fn the_resolver_can_be_left_out_or_run_alone() {
    let without = Tidegate::start("embedded:", &["--set", "dns.listen=off"]);
    assert!(!without.banner.contains("DNS "), "{}", without.banner);
    let alone = Tidegate::start("embedded:", &["--only", "dns"]);
    assert!(alone.banner.contains("DNS "), "{}", alone.banner);
    assert_eq!(alone.get("/api/v1/jobs/stats").0, 503, "the service is off here");
    assert_eq!(alone.get("/api/v1/dns/status").0, 200);
}

/// Sends bytes to an address of this machine and returns the answer.
fn exchange(address: &str, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    text(&answer)
}

/// Calls the API with a body.
fn call(gate: &Tidegate, method: &str, path: &str, body: &serde_json::Value) -> serde_json::Value {
    let address = gate.base.trim_start_matches("http://");
    let body = body.to_string();
    let answer = exchange(
        address,
        &format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             authorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            gate.token(),
            body.len()
        ),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
    serde_json::from_str(body).unwrap_or_default()
}

#[test]
fn the_block_page_says_why_and_takes_a_request_that_an_operator_decides() {
    let upstream = Upstream::start();
    let args = ["--set", &upstream.setting(), "--set", "dns.block_page_listen=127.0.0.1:0"];
    let gate = Tidegate::start("embedded:store", &args);
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix("Block page")).unwrap();
    let address =
        line.trim().trim_start_matches("http://").split_whitespace().next().unwrap().to_owned();
    assert!(gate.run(&["dns", "block", "ads.example"]).status.success());
    let page = |host: &str| {
        exchange(
            &address,
            &format!(
                "GET /x?y HTTP/1.1\r\nhost: {host}\r\naccept: text/html\r\nconnection: close\r\n\r\n"
            ),
        )
    };
    let blocked = page("www.Ads.example:80");
    assert!(blocked.starts_with("HTTP/1.1 403"), "{blocked}");
    assert!(blocked.contains("www.ads.example is blocked on this network"), "{blocked}");
    assert!(
        blocked.contains("||ads.example^") && blocked.contains("a rule of this network"),
        "{blocked}"
    );
    assert!(page("192.0.2.1").starts_with("HTTP/1.1 404"));
    assert!(page("free.example").contains("free.example is not blocked"));
    let ask = |origin: &str| {
        let form = "note=I+need+it";
        exchange(
            &address,
            &format!(
                "POST /.tidegate/allow-request HTTP/1.1\r\nhost: www.ads.example\r\norigin: {origin}\r\nconnection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
                form.len()
            ),
        )
    };
    assert!(ask("http://evil.example").starts_with("HTTP/1.1 403"), "the form of another site");
    for _ in 0..2 {
        let sent = ask("http://www.ads.example");
        assert!(sent.starts_with("HTTP/1.1 200"), "{sent}");
    }
    assert!(page("www.ads.example").contains("You asked to allow this name"));
    let requests = gate.json("/api/v1/dns/allow-requests");
    let items = requests["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "one client, one name, one request: {requests}");
    assert_eq!(
        (&items[0]["note"], &items[0]["state"]),
        (&"I need it".into(), &"waiting".into()),
        "{requests}"
    );
    let path = format!("/api/v1/dns/allow-requests/{}/decision", items[0]["id"].as_str().unwrap());
    call(&gate, "POST", &path, &serde_json::json!({ "decision": "deny" }));
    assert!(page("www.ads.example").contains("stays blocked"));
    let hour = serde_json::json!({ "decision": "allow", "duration_seconds": 3_600 });
    call(&gate, "POST", &path, &hour);
    assert!(page("www.ads.example").contains("is not blocked"), "{}", page("www.ads.example"));
    assert!(
        page("other.ads.example").contains("is blocked on this network"),
        "the others stay blocked"
    );
}

/// A receiver of HTTP requests: their bodies, as they come.
fn receiver() -> (String, std::sync::mpsc::Receiver<String>) {
    use std::io::{BufRead as _, Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, bodies) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() || sender.send(text(&body)).is_err() {
                return;
            }
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (address, bodies)
}

#[test]
fn webhooks_and_the_log_sink_are_told_of_queries() {
    let upstream = Upstream::start();
    let (hook, told) = receiver();
    let (sink, rows) = receiver();
    let gate = Tidegate::start(
        "embedded:store",
        &[
            "--set",
            &upstream.setting(),
            "--set",
            "webhooks.allowed_networks=127.0.0.0/8",
            "--set",
            &format!("dns.log_sink=http://{sink}/?query=INSERT"),
        ],
    );
    let target = serde_json::json!({ "name": "chat", "url": format!("http://{hook}/topic"), "format": "ntfy",
        "events": ["dns.blocked", "dns.client_new"], "context": "home" });
    call(&gate, "POST", "/api/v1/webhooks", &target);
    assert!(gate.run(&["dns", "block", "ads.example"]).status.success());
    let mut heard = String::new();
    eventually("both events", || {
        // Asked again and again: what nobody wants yet is not noted.
        gate.run(&["dns", "query", "ads.example", "--short"]);
        heard.extend(told.try_iter());
        heard.contains("ads.example was blocked for 127.0.0.1 by rules")
            && heard.contains("asked for the first time")
    });
    assert!(heard.contains("(dns.blocked) [home]"), "{heard}");
    let mut posted = String::new();
    eventually("a row in the sink", || {
        posted.extend(rows.try_iter());
        posted.contains("ads.example")
    });
    let row: serde_json::Value = serde_json::from_str(posted.lines().next().unwrap()).unwrap();
    assert_eq!((&row["qclass"], &row["client_ip"]), (&"IN".into(), &"127.0.0.1".into()), "{row}");
    let stats = gate.json("/api/v1/dns/queries/stats");
    assert!(stats["sink_sent"].as_u64().unwrap() > 0, "{stats}");
    drop(rows);
}

#[test]
fn lists_services_upstreams_imports_and_profiles_work_from_the_command_line() {
    let upstream = Upstream::start();
    let gate = Tidegate::start("embedded:store", &["--set", &upstream.setting()]);
    let run = |args: &[&str]| {
        let done = gate.run(&[&["dns"], args].concat());
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        text(&done.stdout) + &text(&done.stderr)
    };
    assert!(run(&["lists"]).contains("in use"));
    assert!(run(&["lists", "suggestions"]).contains("balanced"));
    run(&["query", "doubleclick.net", "--short"]);
    eventually("the query is in the log", || {
        run(&["search", "doubleclick"]).contains("doubleclick.net")
    });
    assert!(run(&["lists", "preview", "default", "--off"]).contains("doubleclick.net"));
    assert!(run(&["lists", "refresh"]).contains("default: unchanged"));
    run(&["services", "block", "tiktok"]);
    assert!(run(&["services"]).contains("default"));
    assert_eq!(run(&["query", "www.tiktok.com", "--short"]), "0.0.0.0\n");
    run(&["services", "unblock", "tiktok"]);
    let server = upstream.setting().replace("dns.upstreams=", "");
    assert!(run(&["upstreams", "test", &server, "--name", "shop.example"]).contains("192.0.2.7"));
    run(&["upstreams", "add", &server]);
    run(&["upstreams", "rm", &server]);
    std::fs::write(gate.path().join("custom.list"), "192.168.1.9 printer.lan\nnonsense x.lan\n")
        .unwrap();
    let dry = run(&["import", "custom.list"]);
    assert!(dry.contains("would import 1 records") && dry.contains("custom.list:2"), "{dry}");
    let done = run(&["import", "custom.list", "--yes"]);
    assert!(done.contains("imported 1 records"), "{done}");
    assert_eq!(run(&["query", "printer.lan", "--short"]), "192.168.1.9\n");
    assert!(!run(&["export", "--portable"]).contains("printer.lan"));
    run(&["query", "kept.example", "--short"]);
    assert!(run(&["cache", "refresh", "kept.example"]).contains("refreshed 1 answer"));
    assert!(run(&["cache", "sweep"]).contains("refreshed"));
    assert!(!run(&["problems"]).contains("error"));
    let profile = gate.run(&["dns", "profile", "--client", "tablet"]);
    assert_eq!(profile.status.code(), Some(2), "{}", text(&profile.stderr));
    assert!(text(&profile.stderr).contains("dns.tls_name"), "{}", text(&profile.stderr));
}
