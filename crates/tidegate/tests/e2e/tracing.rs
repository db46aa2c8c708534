//! Traces, as a collector of this test's own receives them over OTLP.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Tidegate, command, text};
use crate::wait::{LONG, until};

/// A span as it arrived, ids in hexadecimal digits.
#[derive(Clone, Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    attributes: HashMap<String, String>,
    service: String,
}

/// A collector: an HTTP server that decodes OTLP in both encodings.
#[derive(Clone)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    heads: Arc<Mutex<Vec<String>>>,
    url: String,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = Collector { spans: Arc::default(), heads: Arc::default(), url };
        let server = collector.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                server.answer(socket.unwrap());
            }
        });
        collector
    }

    fn answer(&self, socket: TcpStream) {
        let mut reader = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_lowercase();
        let value = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let mut body = vec![0; value("content-length:").parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        let spans = match value("content-type:").as_str() {
            "application/json" => from_json(&serde_json::from_slice(&body).unwrap()),
            "application/x-protobuf" => from_protobuf(&body),
            other => panic!("{other}"),
        };
        self.spans.lock().unwrap().extend(spans);
        self.heads.lock().unwrap().push(head);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }

    /// Waits until a trace has spans of these names; gives all of it.
    fn until(&self, trace: &str, names: &[&str]) -> Vec<Span> {
        let of_trace = || -> Vec<Span> {
            let all = self.spans.lock().unwrap();
            all.iter().filter(|span| span.trace == trace).cloned().collect()
        };
        until("spans of the trace", LONG, of_trace, |spans| {
            names.iter().all(|name| spans.iter().any(|span| span.name == *name))
        })
    }
}

fn from_json(request: &Value) -> Vec<Span> {
    let mut spans = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let attributes = |value: &Value| -> HashMap<String, String> {
        let pair = |pair: &Value| {
            let value = &pair["value"];
            let text = value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap();
            (pair["key"].as_str().unwrap().to_owned(), text.to_owned())
        };
        list(value).iter().map(pair).collect()
    };
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for resource in list(&request["resourceSpans"]) {
        let service = attributes(&resource["resource"]["attributes"])["service.name"].clone();
        for span in list(&resource["scopeSpans"]).iter().flat_map(|scope| list(&scope["spans"])) {
            let nanos = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
            assert!(nanos("endTimeUnixNano") >= nanos("startTimeUnixNano"));
            spans.push(Span {
                trace: word(&span["traceId"]),
                id: word(&span["spanId"]),
                parent: word(&span["parentSpanId"]),
                name: word(&span["name"]),
                kind: span["kind"].as_u64().unwrap(),
                attributes: attributes(&span["attributes"]),
                service: service.clone(),
            });
        }
    }
    spans
}

/// The fields of a message of Protocol Buffers: number, and the value as bytes or as a number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    let mut found = Vec::new();
    let varint = |bytes: &mut &[u8]| {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    };
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (length, number) = match tag & 7 {
            0 => (0, varint(&mut bytes)),
            1 => (8, 0),
            2 => (usize::try_from(varint(&mut bytes)).unwrap(), 0),
            5 => (4, 0),
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        found.push((tag >> 3, content.to_vec(), number));
        bytes = rest;
    }
    found
}

fn from_protobuf(request: &[u8]) -> Vec<Span> {
    let all = |message: &[u8], number: u64| -> Vec<(Vec<u8>, u64)> {
        let found = fields(message).into_iter().filter(|(field, ..)| *field == number);
        found.map(|(_, content, number)| (content, number)).collect()
    };
    let one = |message: &[u8], number: u64| {
        all(message, number).into_iter().next().map(|(content, _)| content).unwrap_or_default()
    };
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let word = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let attributes = |message: &[u8], number: u64| -> HashMap<String, String> {
        let pair = |(pair, _): (Vec<u8>, u64)| {
            let value = one(&pair, 2);
            let text = match fields(&value).remove(0) {
                (1, text, _) => word(text),
                (3, _, number) => number.cast_signed().to_string(),
                other => panic!("{other:?}"),
            };
            (word(one(&pair, 1)), text)
        };
        all(message, number).into_iter().map(pair).collect()
    };
    let mut spans = Vec::new();
    for (resource_spans, _) in all(request, 1) {
        let service = attributes(&one(&resource_spans, 1), 1)["service.name"].clone();
        for (span, _) in all(&resource_spans, 2).iter().flat_map(|(scope, _)| all(scope, 2)) {
            spans.push(Span {
                trace: hex(one(&span, 1)),
                id: hex(one(&span, 2)),
                parent: hex(one(&span, 4)),
                name: word(one(&span, 5)),
                kind: all(&span, 6)[0].1,
                attributes: attributes(&span, 9),
                service: service.clone(),
            });
        }
    }
    spans
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn post(gate: &Tidegate, path: &str, traceparent: &str, body: &Value) -> Value {
    let mut answer = ureq::post(format!("{}{path}", gate.base))
        .header("authorization", format!("Bearer {}", gate.token()))
        .header("traceparent", traceparent)
        .content_type("application/json")
        .send(body.to_string())
        .unwrap();
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}

#[test]
fn one_trace_goes_from_http_dispatch_over_claim_to_an_exec_child() {
    for protocol in ["http/protobuf", "http/json"] {
        let collector = Collector::start();
        let settings = [
            format!("otel.endpoint={}", collector.url),
            format!("otel.protocol={protocol}"),
            "otel.headers=x-team=gate%20keepers".to_owned(),
            // Nothing begins here; what the caller samples is recorded all the same.
            "otel.sample_ratio=0".to_owned(),
        ];
        let sets: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let gate = Tidegate::start("embedded:", &sets);
        let context = format!("00-{TRACE}-{CALLER}-01");
        let job = json!({ "type": "mail", "payload": { "to": "ann" } });
        let made = post(&gate, "/api/v1/jobs", &context, &job);
        let id = made["id"].as_str().unwrap();

        // The job carries its trace where v1 workers look, too.
        let stored = gate.json(&format!("/api/v1/jobs/{id}"))["job"]["metadata"]["traceparent"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(stored.starts_with(&format!("00-{TRACE}-")), "{stored}");

        let program = crate::process::binary().display();
        let script =
            format!("echo \"$TRACEPARENT\"; {program} jobs dispatch next '{{}}' >/dev/null");
        let exec = ["jobs", "exec", "--type", "mail", "--drain"];
        let args = [&exec[..], &sets, &["--", "sh", "-c", &script]].concat();
        let done = command(gate.path(), &args)
            // That of the worker itself is not that of its jobs.
            .env("TRACEPARENT", "00-11111111111111111111111111111111-2222222222222222-00")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));

        let complete = "POST /api/v1/jobs/{id}/complete";
        let names = [
            "POST /api/v1/jobs",
            "dispatch mail",
            "script dispatch",
            "claim mail",
            "script claim",
            "attempt mail",
            complete,
            "script complete",
            "dispatch next",
        ];
        let spans = collector.until(TRACE, &names);
        let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
        let parent_of = |name: &str| {
            let parent = &named(name).parent;
            let found = spans.iter().find(|span| span.id == *parent);
            found.map_or("the caller", |span| span.name.as_str())
        };
        assert_eq!(named("POST /api/v1/jobs").parent, CALLER);
        assert_eq!(parent_of("dispatch mail"), "POST /api/v1/jobs");
        assert_eq!(parent_of("script dispatch"), "dispatch mail");
        assert_eq!(stored, format!("00-{TRACE}-{}-01", named("dispatch mail").id));
        assert_eq!(parent_of("claim mail"), "dispatch mail");
        assert_eq!(parent_of("script claim"), "claim mail");
        assert_eq!(parent_of("attempt mail"), "claim mail");
        assert_eq!(parent_of(complete), "attempt mail");
        assert_eq!(parent_of("script complete"), complete);
        // Everything hangs together: each span's parent is another one, or the caller's.
        let ids: HashSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
        assert_eq!(ids.len(), spans.len());
        for span in &spans {
            assert!(span.parent == CALLER || ids.contains(span.parent.as_str()), "{span:?}");
        }
        // The child, and what it dispatched, are in the same trace, below its attempt.
        let view = gate.json(&format!("/api/v1/jobs/{id}"));
        let attempt = named("attempt mail");
        assert_eq!(view["result"]["data"], format!("00-{TRACE}-{}-01", attempt.id), "{view}");
        let dispatched: Vec<&Span> =
            spans.iter().filter(|span| span.name == "POST /api/v1/jobs").collect();
        assert!(dispatched.iter().any(|span| span.parent == attempt.id), "{spans:#?}");

        assert_eq!((attempt.kind, named("dispatch mail").kind), (5, 4));
        let about = |name: &str| attempt.attributes.get(name).map(String::as_str);
        assert_eq!(about("messaging.message.id"), Some(id));
        assert_eq!(
            (about("tidegate.job.outcome"), about("process.exit.code")),
            (Some("completed"), Some("0"))
        );
        let status = &named(complete).attributes["http.response.status_code"];
        assert_eq!((status.as_str(), attempt.service.as_str()), ("200", "tidegate"));
        let heads = collector.heads.lock().unwrap();
        assert!(heads.iter().all(|head| head.contains("x-team: gate keepers")), "{heads:?}");
        drop(heads);

        // No other trace began: the ratio is 0. And the numbers lead to the trace.
        assert!(collector.spans.lock().unwrap().iter().all(|span| span.trace == TRACE));
        let mut scraped = ureq::get(format!("{}/metrics", gate.base))
            .header("authorization", format!("Bearer {}", gate.token()))
            .header("accept", "application/openmetrics-text")
            .call()
            .unwrap();
        let scraped = scraped.body_mut().read_to_string().unwrap();
        let exemplar = |line: &&str| {
            line.starts_with("tidegate_http_request_seconds_bucket{route=\"/api/v1/jobs\"")
                && line.contains(&format!("# {{trace_id=\"{TRACE}\"}}"))
        };
        assert!(scraped.lines().any(|line| exemplar(&line)), "{scraped}");
        assert!(scraped.contains("tidegate_trace_spans_total{outcome=\"exported\"}"), "{scraped}");
    }
}

#[test]
fn without_a_collector_nothing_is_recorded_and_traces_of_others_pass_through() {
    let gate = Tidegate::start("embedded:", &[]);
    let context = format!("00-{TRACE}-{CALLER}-01");
    let mail = json!({ "type": "mail" });
    let traced = post(&gate, "/api/v1/jobs", &context, &mail);
    let plain = post(&gate, "/api/v1/jobs", "00-not-a-traceparent", &mail);
    let metadata = |made: &Value| {
        let path = format!("/api/v1/jobs/{}", made["id"].as_str().unwrap());
        gate.json(&path)["job"]["metadata"].clone()
    };
    assert_eq!(metadata(&traced), json!({ "traceparent": context }));
    assert_eq!(metadata(&plain), json!({}));
    let claim = json!({ "worker_id": "w", "limit": 2 });
    let claimed = post(&gate, "/api/v1/jobs/claim", &context, &claim);
    assert_eq!(claimed["items"][0]["traceparent"], context);
    assert_eq!(claimed["items"][1].get("traceparent"), None);
    let (_, scraped) = gate.get("/metrics");
    assert!(!scraped.contains("tidegate_trace_spans_total{"), "{scraped}");
    assert!(!gate.log().contains("traces are exported"), "{}", gate.log());
}

#[test]
fn a_collector_that_does_not_answer_costs_only_its_spans() {
    // It takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("otel.endpoint=http://{}", silent.local_addr().unwrap());
    let mut gate = Tidegate::start("embedded:", &["--set", &endpoint]);
    let scraped = |name: &str| {
        let (_, text) = gate.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse::<f64>().unwrap())
    };
    let before = scraped("tidegate_resident_bytes");
    let (deadline, started) = (Instant::now() + Duration::from_secs(150), Instant::now());
    let (url, token) = (format!("{}/api/v1/jobs", gate.base), gate.token());
    let mut count = 0_u32;
    while scraped("tidegate_trace_spans_total{outcome=\"dropped\"}") < 500.0 {
        // Several spans each: the request, the dispatch, its script.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let agent = ureq::Agent::new_with_defaults();
                    for _ in 0..100 {
                        let bearer = format!("Bearer {token}");
                        let request = agent.post(&url).header("authorization", bearer);
                        request.content_type("application/json").send("{\"type\":\"a\"}").unwrap();
                    }
                });
            }
        });
        count += 400;
        assert!(Instant::now() < deadline, "nothing is dropped after {count} requests");
    }
    // Had requests waited for the collector, each would have taken its five seconds.
    let mean = started.elapsed() * 4 / count;
    assert!(mean < Duration::from_secs(1), "{mean:?}");
    let grown = scraped("tidegate_resident_bytes") - before;
    assert!(grown < 64.0 * 1024.0 * 1024.0, "{grown} bytes more");
    // The stop does not wait for it either, but for a moment: an answer to each of two requests would
    // take ten seconds.
    let stopping = Instant::now();
    gate.signal("-TERM");
    assert_eq!(gate.wait(), 0, "{}", gate.log());
    assert!(stopping.elapsed() < Duration::from_secs(10), "{:?}", stopping.elapsed());
    let told = gate.log().matches("spans are lost").count();
    assert!(told <= 1, "{}", gate.log());
}

#[test]
fn the_settings_of_traces_are_checked_and_their_secrets_hidden() {
    let folder = tempfile::tempdir().unwrap();
    for (setting, told) in [
        ("otel.endpoint=grpc://127.0.0.1:4317", "not the URL of a collector"),
        ("otel.headers=secret-without-a-name", "header 1 is not like"),
        ("otel.sample_ratio=1.5", "1.5 is not between 0 and 1"),
        ("otel.service_name=", "1 to 128 bytes"),
        ("otel.protocol=grpc", "is not one of http/protobuf, http/json"),
    ] {
        let checked = crate::process::run(folder.path(), &["config", "check", "--set", setting]);
        let error = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(2), "{setting}: {error}");
        assert!(error.contains(told) && !error.contains("secret-without"), "{setting}: {error}");
    }
    let collector = Collector::start();
    let endpoint = format!("otel.endpoint={}", collector.url);
    let headers = "otel.headers=authorization=Bearer%20s3cret";
    let sets = ["--set", endpoint.as_str(), "--set", headers];
    for args in [&["config", "show"][..], &["config", "show", "--json"]] {
        let shown = crate::process::run(folder.path(), &[args, &sets[..]].concat());
        let shown = text(&shown.stdout);
        assert!(shown.contains("authorization=…") && !shown.contains("s3cret"), "{shown}");
    }
    let free = ["--set", "http.listen=127.0.0.1:0", "--set", "resp.listen=127.0.0.1:0"];
    let doctor = |sets: &[&str]| {
        let found = crate::process::run(folder.path(), &[&["doctor"], &free[..], sets].concat());
        text(&found.stdout)
    };
    let found = doctor(&sets);
    assert!(found.contains("takes spans"), "{found}");
    assert!(collector.heads.lock().unwrap()[0].contains("authorization: bearer s3cret"));
    let found = doctor(&["--set", "otel.endpoint=http://127.0.0.1:9"]);
    assert!(found.contains("FAIL  traces") && found.contains("check otel.endpoint"), "{found}");
    assert!(!doctor(&[]).contains("traces"));
}
