//! Clients that people use, unchanged, each with a small suite of its own in `tests/clients/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::served::Served;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

#[track_caller]
fn check(output: std::io::Result<Output>, what: &str) {
    let output = output.unwrap_or_else(|error| panic!("{what} cannot be started: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.ends_with("done\n"),
        "{what} failed ({}):\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[track_caller]
fn node(suite: &str, port: u16) {
    assert!(
        folder().join("node_modules").exists(),
        "the clients are not installed: run `npm ci` in {} (./test does)",
        folder().display()
    );
    let output = Command::new("timeout")
        .args(["120", "node", suite, &port.to_string()])
        .current_dir(folder())
        .output();
    check(output, suite);
}

#[test]
fn ioredis_works() {
    let served = Served::start();
    node("ioredis.mjs", served.port);
}

#[test]
fn node_redis_works() {
    let served = Served::start();
    node("node_redis.mjs", served.port);
}

#[test]
fn bullmq_runs_a_queue_and_a_worker() {
    let served = Served::start();
    node("bullmq.mjs", served.port);
}

/// A Python that has redis-py, installed into the build folder if need be.
fn python() -> PathBuf {
    let has_it = |python: &Path| {
        let tried = Command::new(python).args(["-c", "import redis"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    for python in ["python3", "/usr/bin/python3"].map(PathBuf::from) {
        if has_it(&python) {
            return python;
        }
    }
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redis-py");
    let python = venv.join("bin/python3");
    if !has_it(&python) {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).output();
        let installed =
            Command::new(&python).args(["-m", "pip", "install", "--quiet", "redis"]).output();
        assert!(
            has_it(&python),
            "redis-py is missing: install the package python3-redis, or let pip install redis \
             ({made:?}, {installed:?})"
        );
    }
    python
}

#[test]
fn redis_py_works() {
    let served = Served::start();
    let mut command = Command::new("timeout");
    let port = served.port.to_string();
    command.arg("120").arg(python()).args(["redis_py.py", &port]);
    check(command.current_dir(folder()).output(), "redis_py.py");
}

#[test]
fn redis_cli_works() {
    let served = Served::start();
    let port = served.port.to_string();
    let cli = |args: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(args).output();
        let output = output.unwrap_or_else(|error| {
            panic!("redis-cli cannot be started, install redis-tools: {error}")
        });
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(cli(&["PING"]), "PONG\n");
    assert_eq!(cli(&["SET", "a", "two words"]), "OK\n");
    assert_eq!(cli(&["GET", "a"]), "two words\n");
    assert_eq!(cli(&["-3", "HSET", "h", "f", "1"]), "1\n");
    assert_eq!(cli(&["-3", "HGETALL", "h"]), "f 1\n");
    assert_eq!(cli(&["-r", "3", "INCR", "n"]), "1\n2\n3\n");
    assert_eq!(cli(&["EVAL", "return {1, KEYS[1]}", "1", "k"]), "1\nk\n");
    assert_eq!(cli(&["--scan", "--pattern", "h*"]), "h\n");
    assert!(cli(&["LPUSH", "a", "x"]).starts_with("WRONGTYPE"));
    assert!(cli(&["INFO", "server"]).contains("redis_version:7."));
    assert!(cli(&["--bigkeys"]).contains("keys in the keyspace"));
}
