//! The schema's Example Usage from Node, block by block, beside the running program: on the built-in store
//! through its Redis port, and on a Redis that both use.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::RedisServer;

use crate::gates::send;
use crate::process::Tidegate;

/// A Node program that runs one block of the example at a time.
struct NodeProgram {
    child: Child,
    blocks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl NodeProgram {
    fn start(script: &str, port: u16) -> NodeProgram {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clients = here.join("tests/clients");
        assert!(
            clients.join("node_modules").exists(),
            "the clients are not installed: run `npm ci` in {} (./test does)",
            clients.display()
        );
        let mut child = Command::new("timeout")
            .args(["120", "node", script, &port.to_string()])
            .arg(clients)
            .current_dir(here.join("../desk/tests/example"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (blocks, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        NodeProgram { child, blocks, answers: BufReader::new(answers) }
    }

    fn run(&mut self, block: &str) -> Value {
        writeln!(self.blocks, "{block}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{block} answered {answer:?}"))
    }

    fn end(mut self) {
        drop(self.blocks);
        assert!(self.child.wait().unwrap().success());
    }
}

fn call(gate: &Tidegate, method: &str, path: &str, body: &Value) -> Value {
    let token = format!("Bearer {}", gate.token());
    let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = send(method, &format!("{}{path}", gate.base), &headers, &body);
    assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn check(gate: &Tidegate) -> (bool, Value) {
    let seen = call(gate, "POST", "/api/v1/users/check", &json!({ "user_id": "123" }));
    (seen["valid"] == true, seen["status"].clone())
}

fn runs_beside(gate: &Tidegate, mut node: NodeProgram) {
    // What Node writes, the program honours.
    for (block, valid, status) in [
        ("login", true, json!("login")),
        ("touch", true, json!("login")),
        ("disable", false, json!("blocked")),
        ("enable", true, json!("login")),
        ("logout", false, Value::Null),
    ] {
        node.run(block);
        assert_eq!(check(gate), (valid, status), "{block}");
    }

    // What the program writes, Node reads; and a login of Node's does not end a block.
    call(gate, "POST", "/api/v1/users/123/sessions", &json!({ "device_id": "Pixel_9" }));
    assert_eq!(node.run("validate"), "ok");
    call(gate, "PATCH", "/api/v1/users/123", &json!({ "status": "blocked", "reason": "spam" }));
    assert_eq!(node.run("validate"), "User disabled");
    node.run("login");
    assert_eq!(check(gate), (false, json!("blocked")));
    assert_eq!(node.run("validate"), "User disabled");
    assert_eq!(call(gate, "DELETE", "/api/v1/users/123/block", &Value::Null)["status"], "login");
    assert_eq!(node.run("validate"), "ok");
    call(gate, "DELETE", "/api/v1/users/123/sessions", &Value::Null);
    assert_eq!(node.run("validate"), "Session expired");
    node.run("touch");
    assert_eq!(check(gate), (false, Value::Null), "half a hash is no login");

    // Node counts along, and its endpoint appears.
    node.run("count");
    let start = Instant::now();
    loop {
        let found = gate.json("/api/v1/metrics/endpoints?limit=1000");
        let items = found["items"].as_array().unwrap();
        let own = items.iter().find(|one| one["endpoint"] == "GET /api/forum/questions");
        if let Some(own) = own {
            assert_eq!(own["requests"], 1);
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{found}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let read = node.run("read");
    let number =
        |index: usize| read[index].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    assert!(number(0) > number(1) && number(1) > 0, "total, one more than accepted: {read}");
    assert!(number(3) < 50, "connections: {read}");

    // Hits of both are in the same sets.
    assert_eq!(node.run("hit"), json!([1, 1]));
    for algorithm in ["fixed", "sliding"] {
        let policy = json!({ "limit": 5, "window_seconds": 900, "algorithm": algorithm });
        let body = json!({ "identifier": "192.168.1.100", "policy": policy });
        let seen = call(gate, "POST", "/api/v1/ratelimit/check", &body);
        assert_eq!(
            (&seen["allowed"], &seen["limits"][0]["remaining"]),
            (&json!(true), &json!(3)),
            "{algorithm}"
        );
    }
    assert_eq!(node.run("hit"), json!([3, 3]));
    node.end();
}

fn on_the_built_in_store(script: &str) {
    let gate = Tidegate::start("embedded:", &[]);
    let line = gate.banner.lines().find_map(|line| line.trim().strip_prefix("RESP")).unwrap();
    let port = line.trim().rsplit(':').next().unwrap().parse().unwrap();
    runs_beside(&gate, NodeProgram::start(script, port));
}

fn on_redis(script: &str) {
    let redis = RedisServer::start();
    let gate = Tidegate::start(&redis.url(), &[]);
    runs_beside(&gate, NodeProgram::start(script, redis.port()));
}

#[test]
fn the_example_usage_runs_from_node_redis_beside_the_program() {
    on_the_built_in_store("node_redis.mjs");
    on_redis("node_redis.mjs");
}

#[test]
fn the_example_usage_runs_from_ioredis_beside_the_program() {
    on_the_built_in_store("ioredis.mjs");
    on_redis("ioredis.mjs");
}
