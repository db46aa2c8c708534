//! Queues from the command line.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use serde_json::Value;
use testkit::RedisServer;

use crate::process::{Tidegate, command, run, text};

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Enqueues a visitor.
fn enqueue(gate: &Tidegate, queue: &str) -> Value {
    let mut answer = ureq::post(format!("{}/api/v1/queues/{queue}/enqueue", gate.base))
        .content_type("application/json")
        .send("{}")
        .unwrap();
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}

#[test]
fn a_queue_is_run_from_the_command_line() {
    let gate = Tidegate::start("embedded:", &[]);
    assert!(text(&gate.run(&["room", "ls"]).stderr).contains("no queues yet"));
    let made = gate.run(&[
        "room",
        "create",
        "sale",
        "--rate",
        "500/m",
        "--max-active",
        "1",
        "--name",
        "Spring sale",
        "--session-timeout",
        "10m",
        "--json",
    ]);
    let made = json(&made);
    assert_eq!(made["admission"]["count"], 500);
    assert_eq!(made["admission"]["per_seconds"], 60);
    assert_eq!(made["session_timeout_seconds"], 600);
    let list = text(&gate.run(&["room", "ls"]).stdout);
    assert!(
        list.contains("sale") && list.contains("500/m") && list.contains("Spring sale"),
        "{list}"
    );

    assert_eq!(enqueue(&gate, "sale")["status"], "admitted");
    let second = enqueue(&gate, "sale");
    assert_eq!(second["status"], "waiting");
    let waiting = json(&gate.run(&["room", "positions", "sale", "--json"]));
    assert_eq!(waiting[0]["position_id"], second["position_id"]);

    // As full as it may be: by hand does not change that, a higher limit does.
    let none = gate.run(&["room", "admit", "sale"]);
    assert!(none.status.success() && text(&none.stderr).contains("nobody was admitted"));
    assert!(gate.run(&["room", "pause", "sale"]).status.success());
    assert!(gate.run(&["room", "set", "sale", "--max-active", "2"]).status.success());
    let admitted = gate.run(&["room", "admit", "sale", "5"]);
    assert_eq!(text(&admitted.stdout).trim(), second["position_id"].as_str().unwrap());
    let resumed = json(&gate.run(&["room", "resume", "sale", "--json"]));
    assert_eq!(resumed["status"], "active");

    assert!(gate.run(&["room", "message", "sale", "back at noon"]).status.success());
    assert!(gate.run(&["room", "message", "sale", "--lang", "de", "um zwölf"]).status.success());
    let shown = json(&gate.run(&["room", "show", "sale", "--json"]));
    assert_eq!(shown["message"]["en"], "back at noon");
    assert_eq!(shown["message"]["de"], "um zwölf");
    assert!(gate.run(&["room", "message", "sale"]).status.success());
    assert_eq!(
        json(&gate.run(&["room", "show", "sale", "--json"]))["message"],
        serde_json::json!({})
    );

    let stats = json(&gate.run(&["room", "stats", "sale", "--json"]));
    assert_eq!(stats["total_admitted"], 2);
    assert!(text(&gate.run(&["room", "stats", "sale"]).stdout).contains("admitted in total"));

    let invite = gate.run(&["room", "invite", "sale", "--priority", "2", "--uses", "3"]);
    assert!(text(&invite.stdout).starts_with("wri1."), "{}", text(&invite.stderr));
    let position = second["position_id"].as_str().unwrap();
    assert!(gate.run(&["room", "revoke", "--position", position, "sale"]).status.success());
    assert!(gate.run(&["room", "rotate-keys"]).status.success());

    let refused = gate.run(&["room", "rm", "sale"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--yes"), "{}", text(&refused.stderr));
    assert!(gate.run(&["room", "reset", "sale", "--yes"]).status.success());
    let closed = json(&gate.run(&["room", "maintenance", "sale", "--yes", "--json"]));
    assert_eq!(closed["status"], "maintenance");
    assert!(gate.run(&["room", "rm", "sale", "--yes"]).status.success());
    assert_eq!(json(&gate.run(&["room", "ls", "--json"])), serde_json::json!([]));
}

#[test]
fn a_session_is_listed_and_taken_away() {
    let gate = Tidegate::start("embedded:", &[]);
    json(&gate.run(&["room", "create", "sale", "--json"]));
    let position = enqueue(&gate, "sale");
    let mut answer = ureq::post(format!("{}/api/v1/queues/sale/start-session", gate.base))
        .header("authorization", format!("Bearer {}", position["token"].as_str().unwrap()))
        .send_empty()
        .unwrap();
    let session: Value =
        serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    let list = json(&gate.run(&["room", "sessions", "sale", "--json"]));
    assert_eq!(list[0]["session_id"], session["session_id"]);
    let id = session["session_id"].as_str().unwrap();
    let revoked = gate.run(&["room", "revoke", "--session", id, "--reason", "abuse_detected"]);
    assert!(revoked.status.success());
    assert_eq!(json(&gate.run(&["room", "sessions", "sale", "--json"])), serde_json::json!([]));
    let events = gate.json("/api/v1/admin/queues/sale/events");
    assert!(events.to_string().contains("abuse_detected"), "{events}");
}

#[test]
fn what_goes_wrong_with_a_queue_says_what_to_do_next() {
    let gate = Tidegate::start("embedded:", &[]);
    let check = |args: &[&str], code: i32, word: &str| {
        let got = gate.run(args);
        let told = text(&got.stderr);
        assert_eq!(got.status.code(), Some(code), "{args:?}: {told}");
        assert!(told.contains(word), "{args:?}: {told}");
    };
    check(&["room", "show", "none"], 3, "tidegate room create none");
    check(&["room", "stats", "none"], 3, "tidegate room create none");
    check(&["room", "watch", "none"], 3, "tidegate room ls");
    check(&["room", "admit", "../tokens"], 3, "queue not found");
    check(&["room", "create", "Not A Name"], 2, "1 to 63 characters");
    check(&["room", "create", "sale", "--rate", "fast"], 2, "500/m");
    check(&["room", "create", "sale", "--session-timeout", "1s"], 2, "session_timeout");
    assert!(gate.run(&["room", "create", "sale"]).status.success());
    check(&["room", "create", "sale"], 2, "room set sale");
    check(&["room", "set", "sale"], 2, "nothing to set");
    check(&["room", "revoke", "--session", "nonsense"], 3, "session");
    check(&["room", "ls", "--server", "http://127.0.0.1:1"], 5, "--server");
    std::fs::write(gate.path().join("bad"), "tg_admin_wrong_wrong_wrong").unwrap();
    check(&["room", "ls", "--token-file", "bad"], 4, "not valid");
    let viewer = gate.run(&["token", "create", "--role", "viewer", "--name", "v"]);
    std::fs::write(gate.path().join("viewer"), &viewer.stdout).unwrap();
    check(&["room", "pause", "sale", "--token-file", "viewer"], 4, "role operator");
    let lone = tempfile::tempdir().unwrap();
    assert_eq!(run(lone.path(), &["room", "ls"]).status.code(), Some(4));
}

#[test]
fn watching_shows_each_event_once_and_in_order() {
    let redis = RedisServer::start();
    let gate = Tidegate::start(&redis.url(), &[]);
    assert!(gate.run(&["room", "create", "sale", "--max-active", "1"]).status.success());
    enqueue(&gate, "sale"); // before the watch: not shown
    let mut child = command(gate.path(), &["room", "watch", "sale", "--json", "--every", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!((first["kind"].as_str(), first["admitted"].as_u64()), (Some("numbers"), Some(1)));

    let places: Vec<Value> = (0..3).map(|_| enqueue(&gate, "sale")).collect();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let line = next();
        if line["kind"] == "event" && line["type"] == "waitingroom.position.enqueued.v1" {
            seen.push(line["data"]["position_id"].clone());
        }
    }
    let joined: Vec<Value> = places.iter().map(|place| place["position_id"].clone()).collect();
    assert_eq!(seen, joined);

    // The reader goes away: the command ends by itself, without a fuss.
    drop(lines);
    enqueue(&gate, "sale");
    assert!(child.wait().unwrap().success());
    let some = gate.run(&["room", "watch", "sale", "--lines", "1"]);
    assert!(some.status.success());
    assert_eq!(text(&some.stdout).lines().count(), 1, "{}", text(&some.stdout));
}

fn keys_in(store: &str, password: &[&str]) -> String {
    let host = store.trim_start_matches("redis://").trim_end_matches('/');
    let port = host.rsplit(':').next().unwrap();
    let got = std::process::Command::new("redis-cli")
        .args(["-p", port])
        .args(password)
        .args(["HVALS", "room:signing"])
        .output()
        .unwrap();
    text(&got.stdout)
}

#[test]
fn signing_keys_are_sealed_with_a_secret_of_the_data_folder() {
    use std::os::unix::fs::PermissionsExt;
    let mut gate = Tidegate::start("embedded:{data}", &[]);
    let file = gate.path().join("tidegate-data/room-secret");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let port = gate.banner.lines().find_map(|line| line.trim().strip_prefix("RESP")).unwrap();
    let refused = keys_in(port.trim(), &[]);
    assert!(refused.contains("NOPERM") && !refused.contains("sealed."), "{refused}");
    let file = gate.path().join("tidegate-data/store-password");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let password = std::fs::read_to_string(&file).unwrap();
    let file = gate.path().join("tidegate-data/room-secret");
    let keys = keys_in(port.trim(), &["--no-auth-warning", "-a", password.trim()]);
    assert!(keys.contains("sealed.") && !keys.contains("plain."), "{keys}");
    let secret = std::fs::read_to_string(&file).unwrap();
    assert!(!gate.log().contains(secret.trim()), "the secret is in the log");
    assert!(gate.run(&["room", "create", "sale", "--max-active", "1"]).status.success());
    enqueue(&gate, "sale");
    let token = enqueue(&gate, "sale")["token"].as_str().unwrap().to_owned();
    gate.signal("-TERM");
    gate.wait();

    // The same secret after a restart: what visitors hold is still good.
    let folder = std::mem::replace(&mut gate.folder, tempfile::tempdir().unwrap());
    let mut again = Tidegate::start_in(folder, "embedded:{data}", &[]);
    let status = ureq::get(format!("{}/api/v1/queues/sale/status", again.base))
        .header("authorization", format!("Bearer {token}"))
        .call()
        .unwrap();
    assert_eq!(status.status(), 200);
    again.signal("-TERM");
    again.wait();

    // Another secret: it says so instead of voiding everything in silence.
    std::fs::write(again.path().join("tidegate-data/room-secret"), "ab".repeat(32)).unwrap();
    let refused = again.run(&["serve", "--listen", "127.0.0.1:0", "--set", "resp.listen=off"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("room.secret_file"), "{}", text(&refused.stderr));
}

#[test]
fn instances_on_one_store_share_a_secret_they_are_given() {
    let redis = RedisServer::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "5a".repeat(32)).unwrap();
    let setting = format!("room.secret_file={}", file.path().display());
    let one = Tidegate::start(&redis.url(), &["--set", &setting]);
    let two = Tidegate::start(&redis.url(), &["--set", &setting]);
    assert!(keys_in(&redis.url(), &[]).contains("sealed."));
    assert!(one.run(&["room", "create", "sale"]).status.success());
    let position = enqueue(&one, "sale");
    let status = ureq::get(format!("{}/api/v1/queues/sale/status", two.base))
        .header("authorization", format!("Bearer {}", position["token"].as_str().unwrap()))
        .call()
        .unwrap();
    assert_eq!(status.status(), 200);

    // One that was not given it is told; so is one with a secret that is none.
    let folder = tempfile::tempdir().unwrap();
    let url = redis.url();
    let args = ["serve", "--store", &url, "--listen", "127.0.0.1:0"];
    assert_eq!(run(folder.path(), &args).status.code(), Some(1));
    let by_variable = command(folder.path(), &args).env("TIDEGATE_ROOM_SECRET", "short").output();
    let by_variable = by_variable.unwrap();
    assert_eq!(by_variable.status.code(), Some(2), "{}", text(&by_variable.stderr));
    assert!(text(&by_variable.stderr).contains("64 hexadecimal digits"));
}

/// Verifies a pass with the published keys in another implementation (Node's crypto), and returns its
/// header.
fn verify_elsewhere(gate: &Tidegate, pass: &str) -> Value {
    const SCRIPT: &str = "
        const crypto = require('crypto');
        const [pass, keys] = process.argv.slice(1);
        const [header, claims, signature] = pass.split('.');
        const read = (part) => JSON.parse(Buffer.from(part, 'base64url'));
        const { kid, alg } = read(header);
        const jwk = JSON.parse(keys).keys.find((key) => key.kid === kid);
        if (!jwk || jwk.alg !== alg) throw new Error('no such key: ' + kid);
        const key = crypto.createPublicKey({ key: jwk, format: 'jwk' });
        const hash = { RS256: 'RSA-SHA256', EdDSA: null }[alg];
        const signed = Buffer.from(header + '.' + claims);
        if (!crypto.verify(hash, signed, key, Buffer.from(signature, 'base64url'))) {
            throw new Error('not signed by ' + kid);
        }
        console.log(JSON.stringify(read(header)));";
    let keys = gate.get("/.well-known/jwks.json").1;
    let node =
        std::process::Command::new("node").args(["-e", SCRIPT, pass, &keys]).output().unwrap();
    json(&node)
}

/// A pass of the queue `sale`.
fn pass_of(gate: &Tidegate) -> String {
    let position = enqueue(gate, "sale");
    let mut answer = ureq::post(format!("{}/api/v1/queues/sale/start-session", gate.base))
        .header("authorization", format!("Bearer {}", position["token"].as_str().unwrap()))
        .send_empty()
        .unwrap();
    let session = answer.body_mut().read_to_string().unwrap();
    let session: Value = serde_json::from_str(&session).unwrap();
    session["session_token"].as_str().unwrap_or_else(|| panic!("{session}")).to_owned()
}

/// Does the gate of an instance let the bearer of a pass through?
fn passes(gate: &Tidegate, pass: &str) -> bool {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().into();
    let asked = agent
        .get(format!("{}/gate/forward/sale", gate.base))
        .header("authorization", format!("Bearer {pass}"));
    asked.call().unwrap().status() == 200
}

fn openssl(folder: &std::path::Path, args: &[&str]) {
    let made =
        std::process::Command::new("openssl").args(args).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
}

#[test]
fn passes_are_rs256_on_every_instance_with_a_key_made_by_openssl() {
    let redis = RedisServer::start();
    let keys = tempfile::tempdir().unwrap();
    let rsa = ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"];
    openssl(keys.path(), &[&["genpkey"], &rsa[..], &["one.pem"]].concat());
    openssl(keys.path(), &["genrsa", "-traditional", "-out", "two.pem", "3072"]);
    let one = format!("room.pass_key_file={}", keys.path().join("one.pem").display());
    let two = keys.path().join("two.pem").display().to_string();

    // Named by the setting of both, which start at the same time.
    let url = redis.url();
    let start = |args: &[&str]| Tidegate::start(&url, args);
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(|| start(&["--set", &one]));
        let b = scope.spawn(|| start(&["--set", &one]));
        (a.join().unwrap(), b.join().unwrap())
    });
    json(&a.run(&["room", "create", "sale", "--rate", "1000/s", "--json"]));
    let first = json(&a.run(&["room", "pass-key", "--json"]));
    assert_eq!(first["algorithm"], "RS256");
    assert_eq!(json(&b.run(&["room", "pass-key", "--json"])), first);
    let old = pass_of(&a);
    let header = verify_elsewhere(&b, &old);
    assert_eq!((&header["alg"], &header["kid"]), (&first["algorithm"], &first["kid"]));
    assert!(passes(&a, &old) && passes(&b, &old));

    // Rotated by command on one: the other follows, and what the old key signed stays good.
    let shown = b.run(&["room", "pass-key", "--file", &two]);
    assert!(text(&shown.stdout).starts_with("RS256 "), "{}", text(&shown.stderr));
    let second = json(&a.run(&["room", "pass-key", "--json"]));
    assert_ne!(second["kid"], first["kid"]);
    let new = pass_of(&b);
    assert_eq!(verify_elsewhere(&a, &new)["kid"], second["kid"]);
    assert_eq!(verify_elsewhere(&a, &old)["kid"], first["kid"]);
    for gate in [&a, &b] {
        assert!(passes(gate, &old) && passes(gate, &new));
    }

    // And back to a key that is made here.
    let back = json(&a.run(&["room", "pass-key", "--ed25519", "--json"]));
    assert_eq!(back["algorithm"], "EdDSA");
    assert_eq!(verify_elsewhere(&b, &pass_of(&a))["alg"], "EdDSA");
    // The setting counts again at the next start.
    let again = start(&["--set", &one]);
    assert_eq!(json(&again.run(&["room", "pass-key", "--json"])), first);
    assert!(passes(&again, &new));
}

#[test]
fn a_wrong_pass_key_says_how_to_make_one() {
    let folder = tempfile::tempdir().unwrap();
    openssl(folder.path(), &["genrsa", "-out", "small.pem", "1024"]);
    openssl(
        folder.path(),
        &["genrsa", "-aes128", "-passout", "pass:x", "-out", "locked.pem", "2048"],
    );
    for name in ["none.pem", "small.pem", "locked.pem"] {
        let setting = format!("room.pass_key_file={name}");
        let args = ["serve", "--store", "embedded:", "--listen", "127.0.0.1:0", "--set"];
        let got =
            run(folder.path(), &[&args[..], &[&setting, "--set", "resp.listen=off"]].concat());
        let told = text(&got.stderr);
        assert_eq!(got.status.code(), Some(2), "{name}: {told}");
        assert!(told.contains("room.pass_key_file") && told.contains("openssl genpkey"), "{told}");
    }
    let gate = Tidegate::start("embedded:", &[]);
    let got = gate.run(&["room", "pass-key", "--file", "nowhere.pem"]);
    assert_eq!(got.status.code(), Some(2), "{}", text(&got.stderr));
    let small = folder.path().join("small.pem").display().to_string();
    let got = gate.run(&["room", "pass-key", "--file", &small]);
    assert!(!got.status.success() && text(&got.stderr).contains("2,048"), "{}", text(&got.stderr));
}
