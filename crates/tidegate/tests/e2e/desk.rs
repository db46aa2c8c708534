//! The desk in the running program: its command, its settings, and its sums when instances die.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testkit::RedisServer;

use crate::process::{Tidegate, run, text};

/// A connection that has had an answer, and stays open.
fn connect(gate: &Tidegate) -> TcpStream {
    let address = gate.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

/// Asks until a number in the traffic of all instances is as wanted; returns how long it took.
#[track_caller]
fn until_connections(gate: &Tidegate, wanted: impl Fn(u64) -> bool) -> Duration {
    let start = Instant::now();
    gate.until_json("/api/v1/metrics", |seen| {
        wanted(seen["connections"]["current"].as_u64().unwrap())
    });
    start.elapsed()
}

/// A stream of events that has begun, and stays open.
fn follow(gate: &Tidegate) -> TcpStream {
    let address = gate.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let token = gate.token();
    let head = format!(
        "GET /api/v1/metrics/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

#[test]
fn the_sum_of_connections_is_right_after_one_of_three_instances_was_killed() {
    let redis = RedisServer::start();
    // All from one address: more than one visitor would have.
    let args = ["--set", "http.max_connections_per_address=10000"];
    let mut gates: Vec<Tidegate> = (0..3).map(|_| Tidegate::start(&redis.url(), &args)).collect();
    let some = |gate: &Tidegate, connections: usize, streams: usize| -> Vec<TcpStream> {
        let open = (0..connections).map(|_| connect(gate));
        open.chain((0..streams).map(|_| follow(gate))).collect()
    };
    let mut open: Vec<Vec<TcpStream>> =
        vec![some(&gates[0], 100, 10), some(&gates[1], 400, 100), some(&gates[2], 100, 10)];
    // The command itself is a connection, too.
    until_connections(&gates[0], |count| (720..725).contains(&count));
    let mut killed = gates.remove(1);
    killed.signal("-KILL");
    killed.wait();
    let took = until_connections(&gates[0], |count| (220..225).contains(&count));
    // Eleven seconds of a lease, and three to the next report.
    assert!(took < Duration::from_secs(15), "{took:?}");
    open.clear();
    until_connections(&gates[0], |count| count < 5);
}

/// So many checks of one identity over four connections; half of them go to each instance. Calls
/// `midway` once, after a third. Returns the number that were allowed.
fn hit(gates: &[Tidegate], policy: &str, count: usize, midway: &(dyn Fn() + Sync)) -> usize {
    let (done, called) = (AtomicUsize::new(0), AtomicBool::new(false));
    let body = format!("{{\"identity\":{{\"user\":\"hot\"}},\"policies\":[\"{policy}\"]}}");
    let tokens: Vec<String> = gates.iter().map(|gate| gate.token()).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (gate, token) = (&gates[client % gates.len()], &tokens[client % gates.len()]);
                let (body, done, called) = (&body, &done, &called);
                scope.spawn(move || {
                    let agent: ureq::Agent =
                        ureq::Agent::config_builder().http_status_as_error(false).build().into();
                    let mut allowed = 0;
                    for _ in 0..count / 4 {
                        let sent = agent
                            .post(format!("{}/api/v1/ratelimit/check", gate.base))
                            .header("authorization", format!("Bearer {token}"))
                            .content_type("application/json")
                            .send(body.as_str());
                        // Whoever was killed answers nothing.
                        let told =
                            sent.ok().and_then(|mut got| got.body_mut().read_to_string().ok());
                        allowed +=
                            usize::from(told.is_some_and(|told| told.contains("\"allowed\":true")));
                        if done.fetch_add(1, Ordering::SeqCst) > count / 3
                            && !called.swap(true, Ordering::SeqCst)
                        {
                            midway();
                        }
                    }
                    allowed
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

#[test]
fn two_instances_allow_exactly_the_limit_and_never_more_when_one_is_killed_midway() {
    let (redis, kept) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let archive = format!("desk.archive={}", kept.path().join("desk.sqlite3").display());
    // A busy machine may be slow; it is not to decide without the store.
    let args = ["--set", "desk.limit_timeout=10s", "--set", &archive];
    for killed in [false, true] {
        let gates: Vec<Tidegate> = (0..2).map(|_| Tidegate::start(&redis.url(), &args)).collect();
        for (algorithm, window) in [
            ("fixed", "--window=1h"),
            ("sliding", "--window=1h"),
            ("counter", "--window=300d"),
            ("bucket", "--window=300d"),
            ("calendar", "--period=year"),
            ("concurrent", "--window=1h"),
        ] {
            if killed && algorithm != "counter" {
                continue;
            }
            let policy = format!("{algorithm}-{killed}");
            let set =
                ["desk", "limits", "set", &policy, "--limit=100", window, "--algorithm", algorithm];
            let set = gates[0].run(&set);
            assert!(set.status.success(), "{}", text(&set.stderr));
            let known = || gates[1].get(&format!("/api/v1/ratelimit/policies/{policy}")).0;
            let start = Instant::now();
            while known() != 200 {
                assert!(start.elapsed() < testkit::HANG, "the policy did not arrive");
            }
            let allowed = hit(&gates, &policy, 1_000, &|| {
                if killed {
                    gates[1].signal("-KILL");
                }
            });
            if killed {
                assert!((1..=100).contains(&allowed), "{allowed}");
            } else {
                assert_eq!(allowed, 100, "{algorithm}");
            }
        }
    }
}

#[test]
fn a_made_up_address_or_host_changes_nothing_and_a_trusted_proxy_does() {
    let ask = |gate: &Tidegate, headers: &[(&str, &str)]| {
        let url = format!("{}/gate/limit/forward/site", gate.base);
        crate::gates::send("GET", &url, headers, "").status
    };
    let with_policy = |args: &[&str]| {
        let gate = Tidegate::start("embedded:", args);
        let set = [
            "desk",
            "limits",
            "set",
            "site",
            "--limit",
            "2",
            "--window",
            "1h",
            "--algorithm",
            "sliding",
        ];
        let set = gate.run(&set);
        assert!(set.status.success(), "{}", text(&set.stderr));
        gate
    };
    let gate = with_policy(&[]);
    let made_up = [
        ("x-forwarded-for", "198.51.100.1"),
        ("x-real-ip", "198.51.100.2"),
        ("forwarded", "for=198.51.100.3"),
        ("host", "localhost"),
    ];
    let answers: Vec<u16> = made_up.iter().map(|header| ask(&gate, &[*header])).collect();
    assert_eq!(answers, [204, 204, 429, 429], "all are this machine");
    // What nobody is trusted for is told.
    let doctor = run(gate.path(), &["doctor", "--json"]);
    let told = text(&doctor.stdout);
    assert!(
        told.contains("1 requests came with") && told.contains("no proxy is trusted"),
        "{told}"
    );
    assert!(
        told.contains("desk: otlp") && told.contains("programs on other machines need a token"),
        "{told}"
    );

    let gate = with_policy(&["--set", "http.trusted_proxies=127.0.0.0/8"]);
    let from = |address: &str| ask(&gate, &[("x-forwarded-for", address)]);
    assert_eq!((from("198.51.100.1"), from("198.51.100.1"), from("198.51.100.1")), (204, 204, 429));
    assert_eq!(from("198.51.100.1, 198.51.100.9"), 204, "the nearest hop that is no proxy counts");
    let v6 = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(from);
    assert_eq!(v6, [204, 204, 429], "one /64");
}

#[test]
fn the_prefix_of_the_schemas_variable_counts_when_nothing_else_sets_it() {
    let folder = tempfile::tempdir().unwrap();
    let show = |prefix: &str, args: &[&str]| {
        let mut command = crate::process::command(folder.path(), args);
        command.env("REDIS_KEY_PREFIX", prefix).output().unwrap()
    };
    let told = show("shop:", &["config", "show", "--json"]);
    assert!(text(&told.stdout).contains("shop:"), "{}", text(&told.stdout));
    let told = show("shop:", &["config", "show", "--json", "--set", "desk.prefix=mine:"]);
    assert!(text(&told.stdout).contains("mine:") && !text(&told.stdout).contains("shop:"));
    for bad in ["shop", "{shop}:", "sh op:"] {
        let told = show(bad, &["config", "check"]);
        assert_eq!(told.status.code(), Some(2), "{bad}");
        let said = text(&told.stderr);
        assert!(said.contains("desk.prefix") && said.contains("end in :"), "{said}");
    }
}

#[test]
fn a_denied_check_has_an_exit_code_of_its_own() {
    let gate = Tidegate::start("embedded:", &[]);
    let set = gate.run(&["desk", "limits", "set", "p", "--limit", "1", "--window", "1h"]);
    assert!(set.status.success(), "{}", text(&set.stderr));
    let check = || gate.run(&["desk", "limits", "check", "p", "--user", "1"]).status.code();
    assert_eq!((check(), check()), (Some(0), Some(6)));
    let reset = gate.run(&["desk", "limits", "reset", "p", "--user", "1"]);
    assert!(reset.status.success(), "{}", text(&reset.stderr));
    assert_eq!(check(), Some(0));
    let unknown = gate.run(&["desk", "limits", "check", "none", "--user", "1"]);
    assert_eq!(unknown.status.code(), Some(3));
    let erase = gate.run(&["desk", "users", "erase", "1"]);
    assert_eq!(erase.status.code(), Some(2), "it must be said");
    let doctor = run(gate.path(), &["doctor", "--json"]);
    assert!(text(&doctor.stdout).contains("desk: eviction"), "{}", text(&doctor.stdout));
}

/// Posts JSON with a token and returns the answer.
fn post(gate: &Tidegate, path: &str, token: &str, body: &serde_json::Value) -> serde_json::Value {
    let mut answer = ureq::post(format!("{}{path}", gate.base))
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .send(body.to_string())
        .unwrap();
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}

#[test]
fn desk_archive_tools_work_beside_a_server_and_without_one() {
    let gate = Tidegate::start("embedded:", &[]);
    let session = serde_json::json!({ "name": "Eva" });
    let opened = post(&gate, "/api/v1/widget/sessions", "", &session);
    let (visitor, token) =
        (opened["visitor"]["id"].as_str().unwrap(), opened["token"].as_str().unwrap());
    let first = serde_json::json!({ "message": { "content": "Where is my parcel?" } });
    let started = post(&gate, "/api/v1/widget/conversations", token, &first);
    let id = started["conversation"]["id"].as_str().unwrap().to_owned();
    let good = |args: &[&str]| {
        let done = gate.run(args);
        assert!(done.status.success(), "{args:?}: {}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stdout)
    };
    assert!(good(&["desk", "archive", "check", "--json"]).contains("\"is_sound\": true"));
    good(&["desk", "archive", "backup", "backup"]);
    assert!(gate.path().join("backup/desk.sqlite3").is_file());
    let all = good(&["desk", "export"]);
    assert!(all.contains("Where is my parcel?"), "{all}");
    let own = good(&["desk", "export", "--user", visitor]);
    for kind in ["header", "visitor", "conversation", "message", "user", "session"] {
        assert!(own.contains(&format!("\"kind\":\"{kind}\"")), "no {kind} in {own}");
    }
    let nobody = gate.run(&["desk", "export", "--user", "nobody"]);
    assert_eq!(nobody.status.code(), Some(3), "{}", text(&nobody.stderr));
    let tail = good(&["desk", "conversations", "tail", &id, "--for", "100ms"]);
    assert!(tail.contains("Where is my parcel?"), "{tail}");
    // Nobody moves an archive away under a server.
    let refused = gate.run(&["desk", "archive", "move", "moved.sqlite3"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(!gate.path().join("moved.sqlite3").exists());

    let folder = gate.stop();
    let moved = run(folder.path(), &["desk", "archive", "move", "moved.sqlite3"]);
    assert!(moved.status.success(), "{}{}", text(&moved.stdout), text(&moved.stderr));
    let place = format!("desk.archive={}", folder.path().join("moved.sqlite3").display());
    let gate = Tidegate::start_in(folder, "embedded:", &["--set", &place]);
    let kept = gate.json(&format!("/api/v1/conversations/{id}"));
    assert_eq!(kept["visitor"]["name"], "Eva");
    let erased = gate.run(&["desk", "erase", visitor, "--yes"]);
    assert!(erased.status.success(), "{}", text(&erased.stderr));
    assert_eq!(gate.get(&format!("/api/v1/conversations/{id}")).0, 404);
}

#[test]
fn an_instance_with_another_archive_than_the_first_refuses_to_start() {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = redis.url();
    let first = Tidegate::start(&url, &[]);
    let args = ["--listen", "127.0.0.1:0", "--set", "resp.listen=off"];
    let second = |more: &[&str]| {
        let mut command = crate::process::command(folder.path(), &["serve", "--store", &url]);
        command.args(args).args(more).env("TIDEGATE_ROOM_SECRET", "5e".repeat(32));
        command.output().unwrap()
    };
    // Nobody chose the archive in its data folder, and it is another one all the same.
    let refused = second(&[]);
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    for part in ["another archive", "desk.archive", "postgres://", "server.only"] {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    // Both ways that it names work.
    let beside = tempfile::tempdir().unwrap();
    let without = Tidegate::start_in(beside, &url, &["--only", "room,jobs"]);
    assert_eq!(without.get("/readyz").0, 200);
    let archive = first.path().join("tidegate-data/desk.sqlite3");
    let same = format!("desk.archive={}", archive.display());
    let other = Tidegate::start(&url, &["--set", &same]);
    assert_eq!(other.get("/readyz").0, 200);
}
