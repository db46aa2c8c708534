//! The settings of the built-in store, from the command line to what a Redis client sees.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::process::{Tidegate, run};

const SETTINGS: [(&str, &str); 3] = [
    ("store.fsync", "always"),
    ("store.max_memory", "64mb"),
    ("store.max_memory_policy", "allkeys-lru"),
];

/// Sends one line to the port and reads until the other side is silent or has what is wanted.
fn ask(stream: &mut TcpStream, line: &str, until: &str) -> String {
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&got).contains(until) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{line}: only {}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(got).unwrap()
}

#[test]
fn settings_of_the_store_reach_it_and_shutdown_ends_the_process() {
    let sets: Vec<String> =
        SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let folder = tempfile::tempdir().unwrap();
    let shown = run(folder.path(), &[&["config", "show", "--json"], &args[..]].concat());
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    for (name, value) in SETTINGS {
        let found = shown.as_array().unwrap().iter().find(|s| s["name"] == name).unwrap();
        assert_eq!(found["value"], value, "{name}");
    }

    let mut gate = Tidegate::start("embedded:{data}", &args);
    let address = gate.banner.split("redis://").nth(1).unwrap().split_whitespace().next().unwrap();
    let mut stream = TcpStream::connect(address.trim_end_matches('/')).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for (name, value) in
        [("appendfsync", "always"), ("maxmemory", "67108864"), ("maxmemory-policy", "allkeys-lru")]
    {
        let told = ask(&mut stream, &format!("CONFIG GET {name}"), &format!("\r\n{value}\r\n"));
        assert!(told.contains(&format!("\r\n{name}\r\n")), "{told}");
    }
    ask(&mut stream, "CONFIG GET appendonly", "\r\nyes\r\n");
    ask(&mut stream, "INFO memory", "maxmemory_policy:allkeys-lru\r\n");
    ask(&mut stream, "INFO persistence", "aof_enabled:1\r\n");
    ask(&mut stream, "SET kept 1", "+OK\r\n");

    ask(&mut stream, "SHUTDOWN", "-NOPERM");
    let password = gate.path().join("tidegate-data/store-password");
    let password = std::fs::read_to_string(password).unwrap();
    ask(&mut stream, &format!("AUTH {}", password.trim()), "+OK\r\n");
    stream.write_all(b"SHUTDOWN\r\n").unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "the end of the connection is the answer");
    assert_eq!(gate.wait(), 0, "{}", gate.log());
}

#[test]
fn wrong_passwords_on_the_resp_port_are_counted_in_the_metrics() {
    let gate = Tidegate::start("embedded:", &[]);
    let address = gate.banner.split("redis://").nth(1).unwrap().split_whitespace().next().unwrap();
    let mut stream = TcpStream::connect(address.trim_end_matches('/')).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ask(&mut stream, "AUTH wrong", "-WRONGPASS");
    ask(&mut stream, "HELLO 3 AUTH somebody wrong", "-WRONGPASS");
    let (status, text) = gate.get("/metrics");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("tidegate_resp_auth_failures_total 2\n"), "{text}");
}
