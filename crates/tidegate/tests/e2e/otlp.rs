//! Traffic of programs that know nothing of us: a Node app instrumented by OpenTelemetry in a cluster of
//! four, and a site behind the guard.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde_json::Value;

use crate::gates::send;
use crate::process::Tidegate;
use crate::site::Site;

/// The app, ended on drop with all of its workers.
struct Shop {
    child: Child,
    base: String,
    /// Lines that it prints after the port.
    lines: Receiver<String>,
}

impl Shop {
    fn start(gate: &Tidegate, temporality: &str) -> Shop {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/otlp");
        assert!(
            folder.join("node_modules").exists(),
            "./test installs the packages of {}",
            folder.display()
        );
        let mut child = Command::new("node")
            .args(["--require", "@opentelemetry/auto-instrumentations-node/register", "shop.cjs"])
            .current_dir(folder)
            .env("OTEL_SERVICE_NAME", "shop")
            .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("{}/v1/metrics", gate.base))
            .env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
            .env("OTEL_METRICS_EXPORTER", "otlp")
            .env("OTEL_SEMCONV_STABILITY_OPT_IN", "http/dup")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "500")
            .env("OTEL_METRIC_EXPORT_TIMEOUT", "500")
            .env("OTEL_TRACES_EXPORTER", "none")
            .env("OTEL_LOGS_EXPORTER", "none")
            .env("OTEL_NODE_RESOURCE_DETECTORS", "env,host,process")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Warnings of the instrumentation may come first.
        let port = lines.find_map(|line| line.unwrap().trim().parse::<u16>().ok()).expect("a port");
        let (sender, received) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Nobody may listen any more.
            lines.map_while(Result::ok).for_each(|line| _ = sender.send(line));
        });
        Shop { child, base: format!("http://127.0.0.1:{port}"), lines: received }
    }

    /// So many requests, from four clients at once.
    fn ask(&self, path: &str, count: usize) {
        let base = self.base.as_str();
        std::thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    for number in 0..count / 4 {
                        let path = path.replace('N', &format!("{client}{number}"));
                        send("GET", &format!("{base}{path}"), &[], "");
                    }
                });
            }
        });
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // Its standard input ends, and with it the workers.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Asks until the traffic of an app is as wanted.
#[track_caller]
fn until_traffic(gate: &Tidegate, app: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    gate.until_json(&format!("/api/v1/metrics?app={app}"), wanted)
}

fn endpoints(gate: &Tidegate, app: &str) -> Vec<(String, u64)> {
    let found = gate.json(&format!("/api/v1/metrics/endpoints?app={app}"));
    let items = found["items"].as_array().unwrap().iter();
    items
        .map(|one| {
            (one["endpoint"].as_str().unwrap().to_owned(), one["requests"].as_u64().unwrap())
        })
        .collect()
}

fn all_workers_are_counted_once(temporality: &str) {
    let gate = Tidegate::start("embedded:", &[]);
    let shop = Shop::start(&gate, temporality);
    shop.ask("/users/N", 200);
    shop.ask("/fail", 12);
    let seen = until_traffic(&gate, "shop", |seen| seen["requests"]["total"] == 212);
    assert_eq!((&seen["errors"], &seen["requests"]["server_errors"]), (&12.into(), &12.into()));
    let told = endpoints(&gate, "shop");
    assert_eq!(told, [("GET /users/:id".to_owned(), 200), ("GET /fail".to_owned(), 12)]);
    // Later reports of the same counts change nothing, and a worker that comes in place of another
    // counts on.
    send("GET", &format!("{}/crash", shop.base), &[], "");
    until_traffic(&gate, "shop", |seen| seen["requests"]["total"] == 213);
    let line = shop.lines.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(line, "replaced");
    shop.ask("/users/N", 40);
    until_traffic(&gate, "shop", |seen| seen["requests"]["total"] == 253);
}

#[test]
fn four_workers_of_node_are_counted_once_cumulative() {
    all_workers_are_counted_once("cumulative");
}

#[test]
fn four_workers_of_node_are_counted_once_delta() {
    all_workers_are_counted_once("delta");
}

#[test]
fn whatever_passes_the_guard_is_counted_without_touching_the_site() {
    let site = Site::echo();
    let routes = "desk.routes=/shelf/:name,/static/*";
    let guard = Tidegate::guard(&["--origin", &site.url(), "--open-path", "/*", "--set", routes]);
    let base = guard.guarded();
    // The templates are there before the first request is counted.
    until_traffic(&guard, "site", |seen| seen["requests"]["total"] == 0);
    for path in [
        "/users/17",
        "/users/18?page=2",
        "/users/6f1c2f7e-3b0a-4c55-9d3f-0d6c1c2b3a4f",
        "/orders/9f86d081884c7d659a2feaa0c55ad015",
        "/shelf/17",
        "/static/app/main.js",
        "/private",
    ] {
        send("GET", &format!("{base}{path}"), &[], "");
    }
    let seen = until_traffic(&guard, "site", |seen| seen["requests"]["total"] == 7);
    assert_eq!((&seen["requests"]["accepted"], &seen["errors"]), (&7.into(), &1.into()));
    let mut told = endpoints(&guard, "site");
    told.sort();
    let expected = [
        ("GET /orders/:id", 1),
        ("GET /private", 1),
        ("GET /shelf/:name", 1),
        ("GET /static/*", 1),
        ("GET /users/:id", 3),
    ];
    assert_eq!(told, expected.map(|(name, count)| (name.to_owned(), count)));
}
