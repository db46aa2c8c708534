//! A disk that is full, read-only or gone under the running program: what callers are told, what
//! goes on, and that it comes back by itself.

use serde_json::{Value, json};
use store::redis::{self, Commands, Connection, RedisResult};

use crate::process::{Tidegate, command, in_namespace, run, text};
use crate::wait::{LONG, until};

/// A client of the RESP port.
fn connect(gate: &Tidegate) -> Connection {
    let url = gate.banner.split_whitespace().find(|word| word.starts_with("redis://")).unwrap();
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

/// Waits for `/readyz` to answer with this status: its checks, by name.
#[track_caller]
fn until_ready(gate: &Tidegate, wanted: u16) -> Value {
    let (_, body) = until("/readyz", LONG, || gate.get("/readyz"), |(status, _)| *status == wanted);
    let body: Value = serde_json::from_str(&body).unwrap();
    let checks = body["checks"].as_array().unwrap().iter();
    checks.map(|c| (c["name"].as_str().unwrap(), c.clone())).collect()
}

/// Tries to make a queue: status and body.
fn make_queue(gate: &Tidegate, id: &str) -> (u16, Value) {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent
        .post(format!("{}/api/v1/admin/queues", gate.base))
        .header("authorization", format!("Bearer {}", gate.token()))
        .header("content-type", "application/json")
        .send(json!({ "id": id }).to_string())
        .unwrap();
    let body = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&body).unwrap())
}

/// Nothing can be written, for this reason, and everything says so; reads go on.
#[track_caller]
fn refuses_writes(gate: &Tidegate, client: &mut Connection, reason: &str) {
    let checks = until_ready(gate, 503);
    assert_eq!(checks["store"]["ok"], true, "{checks}");
    assert_eq!(checks["writes"]["ok"], false, "{checks}");
    let told = checks["writes"]["reason"].as_str().unwrap();
    assert!(told.contains(reason) && told.contains("see to its disk and folder"), "{told}");
    let error = client.set::<_, _, ()>("refused", 1).unwrap_err();
    assert_eq!(error.code(), Some("MISCONF"), "{error}");
    assert!(error.to_string().contains(reason), "{error}");
    let (status, body) = make_queue(gate, "refused");
    assert_eq!(status, 503, "{body}");
    assert!(body["error"]["code"].is_string() && body["request_id"].is_string(), "{body}");
    assert_eq!(client.get::<_, i64>("kept").unwrap(), 1);
    assert_eq!(client.get::<_, Option<i64>>("refused").unwrap(), None);
    assert_eq!(gate.get("/api/v1/admin/queues/kept").0, 200);
    assert_eq!(gate.get("/livez").0, 200);
}

/// Writes are taken again, and what was there still is.
#[track_caller]
fn takes_writes(gate: &Tidegate, client: &mut Connection) {
    assert_eq!(until_ready(gate, 200)["writes"]["ok"], true);
    client.set::<_, _, ()>("after", 1).unwrap();
    assert_eq!(make_queue(gate, "after").0, 201);
    assert_eq!(client.get::<_, i64>("kept").unwrap(), 1);
    assert_eq!(gate.get("/api/v1/admin/queues/kept").0, 200);
}

#[test]
fn a_full_disk_stops_writes_only_and_until_there_is_room_again() {
    let gate = Tidegate::start_on_disk(24 << 20);
    let mut client = connect(&gate);
    client.set::<_, _, ()>("kept", 1).unwrap();
    assert_eq!(make_queue(&gate, "kept").0, 201);
    let large = vec![b'x'; 500_000];
    let told = (0..100).find_map(|n| client.set::<_, _, ()>(format!("large:{n}"), &large).err());
    let told = told.expect("the disk is full at some time");
    assert_eq!(told.code(), Some("MISCONF"), "{told}");
    // Something large is refused before there is no room for anything.
    let small = vec![b'x'; 10_000];
    let full = |result: RedisResult<()>| result.is_err();
    assert!((0..5_000).any(|n| full(client.set(format!("small:{n}"), &small))));
    refuses_writes(&gate, &mut client, "No space left on device");
    gate.remount(&format!("size={}", 64 << 20));
    takes_writes(&gate, &mut client);
    client.set::<_, _, ()>("large", &large).unwrap();
}

#[test]
fn a_folder_that_vanishes_stops_writes_until_it_is_back() {
    let gate = Tidegate::start("embedded:store", &[]);
    let mut client = connect(&gate);
    client.set::<_, _, ()>("kept", 1).unwrap();
    assert_eq!(make_queue(&gate, "kept").0, 201);
    let (store, away) = (gate.path().join("store"), gate.path().join("away"));
    std::fs::rename(&store, &away).unwrap();
    refuses_writes(&gate, &mut client, "the data folder was removed or replaced");
    std::fs::rename(&away, &store).unwrap();
    takes_writes(&gate, &mut client);
    drop(client);
    let again = Tidegate::start_in(gate.stop(), "embedded:store", &[]);
    assert_eq!(connect(&again).get::<_, i64>("after").unwrap(), 1);
}

#[test]
fn what_keeps_the_store_from_opening_is_told_with_what_to_do() {
    let first = Tidegate::start("embedded:store", &[]);
    connect(&first).set::<_, _, ()>("kept", "a-value-to-find-in-the-log").unwrap();
    let args = ["serve", "--store", "embedded:store", "--listen", "127.0.0.1:0"];
    let args = [&args[..], &["--set", "resp.listen=off"]].concat();
    let refused = |told: std::process::Output, words: [&str; 2]| {
        let shown = text(&told.stderr);
        assert_eq!(told.status.code(), Some(1), "{shown}");
        assert!(words.iter().all(|word| shown.contains(word)), "{shown}");
        assert!(!shown.contains("shows the kinds"), "{shown}");
    };
    refused(run(first.path(), &args), ["is in use by process", "stop process"]);

    let folder = first.stop();
    let plain = command(folder.path(), &args);
    let mut read_only =
        in_namespace("mount --bind store store && mount -o remount,bind,ro store", &plain);
    read_only.current_dir(folder.path());
    crate::process::set_environment(&mut read_only);
    refused(read_only.output().unwrap(), ["mounted read-only", "mount it for writing"]);
    let mut check = in_namespace(
        "mount --bind store store && mount -o remount,bind,ro store",
        &command(folder.path(), &["store", "check", "store"]),
    );
    check.current_dir(folder.path()).env_clear().env("PATH", std::env::var("PATH").unwrap());
    let checked = check.output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));

    let log = folder.path().join("store/log-1.tide");
    let mut bytes = std::fs::read(&log).unwrap();
    let value = b"a-value-to-find-in-the-log";
    let at = bytes.windows(value.len()).position(|found| found == value).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let told = run(folder.path(), &args);
    refused(told, ["is damaged at byte", "tidegate store check"]);
    assert_eq!(std::fs::read(&log).unwrap(), bytes, "nothing was changed");
    let repaired = run(folder.path(), &["store", "check", "store", "--repair", "repaired"]);
    assert!(folder.path().join("repaired/manifest").exists(), "{}", text(&repaired.stderr));
}
