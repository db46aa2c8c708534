//! BridgeMQ v1 clients in Python, with plain redis-py, mixed with ours on the same queue: against the
//! built-in store's RESP port and against Redis. `tests/v1/bridge.py` is their side.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use testkit::RedisServer;

use crate::process::{Tidegate, command, text};
use crate::wait::{LONG, until};

/// A Python that has redis-py.
pub(crate) fn python() -> &'static str {
    let has_it = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import redis"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_it);
    found.expect("redis-py is missing: install the package python3-redis (./test does)")
}

struct Bridge {
    url: String,
}

/// A worker that stops when its input closes.
struct Running(Child);

impl Bridge {
    fn command(&self, args: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/v1/bridge.py");
        let mut command = Command::new(python());
        command.arg("-B").arg(script).arg(&self.url).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Vec<String> {
        let done = self.command(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        text(&done.stdout).lines().map(str::to_owned).collect()
    }

    fn produce(&self, count: usize, job: Value) -> Vec<String> {
        self.run(&["produce", &count.to_string(), &job.to_string()])
    }

    fn worker(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

impl Running {
    /// Ends it and says what it ran.
    fn end(mut self) -> Vec<String> {
        drop(self.0.stdin.take());
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert!(self.0.wait().unwrap().success());
        out.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn jobs(gate: &Tidegate, args: &[&str]) -> Value {
    let mut all = vec!["jobs", "--json"];
    all.extend(args);
    let done = gate.run(&all);
    assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Waits until so many jobs wait and none runs or is delayed.
fn until_waiting(gate: &Tidegate, count: u64) {
    until(
        "jobs that wait",
        LONG,
        || jobs(gate, &["stats"]),
        |stats| stats["waiting"] == count && stats["active"] == 0 && stats["delayed"] == 0,
    );
}

fn story(gate: &Tidegate, url: String) {
    let bridge = Bridge { url };
    let both = json!({ "type": "both", "payload": { "n": 1 } });
    let mut once: Vec<String> = Vec::new();

    // Ours and v1's class side by side, jobs from producers of both kinds.
    let class = bridge.worker(&["class", "c1", "both,fail,plain"]);
    let mut ours = command(
        gate.path(),
        &[
            "jobs", "exec", "--json", "--worker", "tide", "--type", "both", "--type", "ours", "-c",
            "4", "--", "cat",
        ],
    );
    let ours = ours.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ours = Running(ours);
    once.extend(bridge.produce(40, both.clone()));
    let lines =
        "{\"type\":\"both\"}\n".repeat(40) + &"{\"type\":\"plain\",\"payload\":[1]}\n".repeat(5);
    std::fs::write(gate.path().join("many"), lines).unwrap();
    let made = gate.run(&["jobs", "dispatch", "--bulk", "many"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    once.extend(text(&made.stdout).lines().map(str::to_owned));
    once.extend(bridge.produce(5, json!({ "type": "both", "priority": 9 })));
    once.extend(bridge.produce(5, json!({ "type": "both", "schedule": { "delay": 300 } })));
    once.extend(bridge.produce(5, json!({ "type": "ours", "target": { "server": "tide" } })));
    let twice = bridge.produce(3, json!({ "type": "fail", "retry": { "attempts": 1, "backoff": { "type": "fixed", "delay": 0 } } }));
    until_waiting(gate, 0);

    // And v1's scripts: they honour targets, and the pause that ours sets.
    let script = bridge.worker(&["script", "s1", "python", "eu", "gpu,ssd"]);
    jobs(gate, &["pause", "hold"]);
    let held = bridge.produce(3, json!({ "type": "hold" }));
    let lines: String = [
        json!({ "type": "film", "target": { "capabilities": ["gpu", "ssd"], "all": true } }),
        json!({ "type": "film", "target": { "region": ["us", "eu"], "stack": ["python"] } }),
        json!({ "type": "film", "target": { "server": "s1" } }),
    ]
    .iter()
    .map(|job| format!("{job}\n"))
    .collect();
    std::fs::write(gate.path().join("many"), lines.repeat(5)).unwrap();
    let made = gate.run(&["jobs", "dispatch", "--bulk", "many"]);
    once.extend(text(&made.stdout).lines().map(str::to_owned));
    once.extend(bridge.produce(20, both));
    until_waiting(gate, 3);
    let workers = jobs(gate, &["workers"]);
    let alive: Vec<&str> = workers
        .as_array()
        .unwrap()
        .iter()
        .filter(|worker| worker["alive"] == true)
        .filter_map(|worker| worker["id"].as_str())
        .collect();
    assert_eq!(alive, ["c1", "s1", "tide"]);
    jobs(gate, &["resume", "hold"]);
    once.extend(held);
    until_waiting(gate, 0);

    let pid = ours.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut out = String::new();
    ours.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let row = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let by_ours: Vec<String> =
        out.lines().map(|line| row(line)["id"].as_str().unwrap().to_owned()).collect();
    assert!(by_ours.len() >= 5, "those that name it, at least");
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for id in by_ours.into_iter().chain(class.end()).chain(script.end()) {
        *runs.entry(id).or_default() += 1;
    }
    for id in &once {
        assert_eq!(runs.remove(id), Some(1), "runs of {id}");
    }
    for id in &twice {
        assert_eq!(runs.remove(id), Some(2), "runs of {id}, which fails");
        let view = jobs(gate, &["show", id]);
        assert_eq!(
            (&view["status"], &view["result"]["error"]["message"]),
            (&json!("dead"), &json!("as asked"))
        );
    }
    assert_eq!(runs, BTreeMap::new(), "nobody knows these");
    let mut args = vec!["check"];
    args.extend(once.iter().map(String::as_str));
    assert_eq!(bridge.run(&args), ["good"]);
    for id in once.iter().take(5) {
        assert_eq!(jobs(gate, &["show", id])["status"], "completed");
    }
}

#[test]
fn v1_clients_share_a_queue_on_the_built_in_store() {
    let gate = Tidegate::start("embedded:", &[]);
    let url = gate.banner.lines().find_map(|line| line.trim().strip_prefix("RESP")).unwrap();
    let url = url.trim().to_owned();
    story(&gate, url);
}

#[test]
fn v1_clients_share_a_queue_on_redis() {
    let redis = RedisServer::start();
    let gate = Tidegate::start(&redis.url(), &[]);
    story(&gate, redis.url());
}
