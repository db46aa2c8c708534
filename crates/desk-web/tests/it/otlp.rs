//! Traffic over OTLP, on every store: HTTP with protobuf and JSON, gRPC, restarts, bounds.

use serde_json::{Value, json};
use testkit::each_store;
use web::testing::framed;

use crate::protobuf::{self, fields, number_of};
use crate::support::{Instance, wait_until, worker};

const GRPC: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json");

fn attribute(tag: u32, key: &str, value: &str) -> Vec<u8> {
    let value = match value.parse::<u64>() {
        Ok(number) => protobuf::number(3, number),
        Err(_) => protobuf::bytes(1, value),
    };
    protobuf::bytes(tag, [protobuf::bytes(1, key), protobuf::bytes(2, value)].concat())
}

/// A data point: so many requests of 20 ms to a route, since a start.
fn point(route: &str, status: u64, count: u64, start: u64) -> Vec<u8> {
    let sum = (0.02 * count as f64).to_bits();
    protobuf::bytes(
        1,
        [
            protobuf::fixed(2, start),
            protobuf::fixed(4, count),
            protobuf::fixed(5, sum),
            attribute(9, "http.request.method", "GET"),
            attribute(9, "http.route", route),
            attribute(9, "http.response.status_code", &status.to_string()),
        ]
        .concat(),
    )
}

/// A histogram with these points; 1 is delta, 2 is cumulative.
fn durations(points: &[Vec<u8>], temporality: u64) -> Vec<u8> {
    let histogram = [points.concat(), protobuf::number(2, temporality)].concat();
    let name = protobuf::bytes(1, "http.server.request.duration");
    protobuf::bytes(2, [name, protobuf::bytes(9, histogram)].concat())
}

/// An export of one instance of the app `shop`.
fn export(instance: &str, metrics: &[Vec<u8>]) -> Vec<u8> {
    let resource =
        [attribute(1, "service.name", "shop"), attribute(1, "service.instance.id", instance)];
    protobuf::bytes(
        1,
        [protobuf::bytes(1, resource.concat()), protobuf::bytes(2, metrics.concat())].concat(),
    )
}

async fn send(a: &Instance, body: Vec<u8>) -> Vec<u8> {
    let (status, kind, body) = a.web.post_bytes("/v1/metrics", &[PROTOBUF], body).await;
    assert_eq!(
        (status, kind.as_str()),
        (200, "application/x-protobuf"),
        "{}",
        String::from_utf8_lossy(&body)
    );
    body
}

async fn shop(a: &Instance) -> Value {
    a.web.admin("GET /api/v1/metrics?app=shop", Value::Null).await.json()
}

async fn until_total(a: &Instance, total: u64) {
    wait_until(&format!("{total} requests"), async || shop(a).await["requests"]["total"] == total)
        .await;
}

/// Number of the shop's endpoints on each page of a thousand.
async fn pages_of_endpoints(a: &Instance) -> Vec<usize> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let call = format!("GET /api/v1/metrics/endpoints?app=shop&limit=1000{cursor}");
        let page = a.web.admin(&call, Value::Null).await.json();
        pages.push(page["items"].as_array().unwrap().len());
        let Some(next) = page["next_cursor"].as_str() else { return pages };
        cursor = format!("&cursor={next}");
    }
}

each_store! {
    async fn cumulative_and_delta_count_once_and_a_restart_goes_on(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        send(&a, export("w1", &[durations(&[point("/x", 200, 10, 5), point("/x", 500, 2, 5)], 2)])).await;
        // Grown, and sent to another instance of ours; then once more, as after a lost reply.
        for to in [&b, &a] {
            send(to, export("w1", &[durations(&[point("/x", 200, 15, 5), point("/x", 500, 2, 5)], 2)])).await;
        }
        until_total(&a, 17).await;
        // A new start is a restart of that worker; another worker counts for itself.
        send(&a, export("w1", &[durations(&[point("/x", 200, 3, 9)], 2)])).await;
        send(&b, export("w2", &[durations(&[point("/x", 200, 4, 1)], 2)])).await;
        until_total(&a, 24).await;
        for _ in 0..2 {
            send(&a, export("w3", &[durations(&[point("/x", 404, 5, 0)], 1)])).await;
        }
        until_total(&a, 34).await;
        let seen = shop(&a).await;
        assert_eq!((&seen["errors"], &seen["requests"]["server_errors"]), (&json!(12), &json!(2)));
        let endpoints = a.web.admin("GET /api/v1/metrics/endpoints?app=shop", Value::Null).await.json();
        assert_eq!(endpoints["items"][0]["endpoint"], "GET /x");
        assert!((18..=22).contains(&endpoints["items"][0]["p99_ms"].as_u64().unwrap()), "{endpoints}");
        a.stop().await;
        b.stop().await;
    }

    async fn series_that_start_one_after_the_other_are_no_restart(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        // The same endpoint and status twice, as protocols or hosts make it, the second seen later.
        let round = |first: u64, second: u64| durations(&[point("/x", 200, first, 5), point("/x", 200, second, 8)], 2);
        send(&a, export("w1", &[durations(&[point("/x", 200, 10, 5)], 2)])).await;
        for (first, second) in [(10, 1), (12, 4), (12, 4)] {
            send(&a, export("w1", &[round(first, second)])).await;
        }
        until_total(&a, 16).await;
        a.stop().await;
    }

    async fn other_metrics_are_told_in_partial_success(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let other = protobuf::bytes(2, [protobuf::bytes(1, "process.cpu.time"), protobuf::bytes(5, protobuf::bytes(1, []))].concat());
        let answer = fields(&send(&a, export("w1", &[other.clone(), durations(&[point("/x", 200, 1, 5)], 2)])).await);
        let told = answer[0].1.fields();
        assert_eq!(number_of(&told, 1), 1);
        assert!(told[1].1.text().contains("process.cpu.time"), "{told:?}");
        assert_eq!(send(&a, export("w1", &[durations(&[point("/x", 200, 1, 5)], 2)])).await, b"", "nothing to tell");
        until_total(&a, 1).await;
        let body = json!({ "resourceMetrics": [{ "scopeMetrics": [{ "metrics": [{ "name": "a.b", "gauge": { "dataPoints": [{}, {}] } }] }] }] });
        let (status, kind, body) = a.web.post_bytes("/v1/metrics", &[JSON], body.to_string().into_bytes()).await;
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, kind.as_str()), (200, "application/json"));
        assert_eq!(answer["partialSuccess"]["rejectedDataPoints"], "2");
        a.stop().await;
    }

    async fn grpc_and_json_say_the_same(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let message = export("w1", &[durations(&[point("/x", 200, 3, 0)], 1)]);
        let got = a.web.grpc("", GRPC, framed(&message)).await;
        assert_eq!((got.status, got.body.len()), (0, 0), "{got:?}");
        let json = json!({ "resourceMetrics": [{
            "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "shop" } }] },
            "scopeMetrics": [{ "metrics": [
                { "name": "http.server.request.duration", "histogram": { "aggregationTemporality": 1, "dataPoints": [
                    { "count": "2", "sum": 0.04, "attributes": [{ "key": "http.route", "value": { "stringValue": "/y" } }] }] } },
                { "name": "http.server.active_requests", "sum": { "aggregationTemporality": 2, "dataPoints": [{ "asInt": "7" }] } },
            ] }],
        }] });
        let (status, _, body) = a.web.post_bytes("/v1/metrics", &[JSON], json.to_string().into_bytes()).await;
        assert_eq!((status, body.as_slice()), (200, b"{}".as_slice()));
        until_total(&a, 5).await;
        assert_eq!(shop(&a).await["connections"]["current"], 7);
        a.stop().await;
    }

    async fn a_hundred_thousand_invented_routes_stay_a_thousand_series_and_one(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        for round in 0..20 {
            let points: Vec<_> = (0..5_000).map(|n| point(&format!("/{round}/{n}"), 200, 1, 0)).collect();
            send(&a, export("w1", &[durations(&points, 1)])).await;
        }
        until_total(&a, 100_000).await;
        // A flush of so many is written in several calls, the totals first.
        wait_until("a thousand series and one", async || pages_of_endpoints(&a).await == [1_000, 1]).await;
        a.stop().await;
    }

    async fn a_body_that_is_none_is_refused_and_counts_nothing(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let gzip = ("content-encoding", "gzip");
        for (headers, body, status) in [
            (vec![PROTOBUF], b"hello".to_vec(), 400),
            (vec![PROTOBUF], b"\x0a\xff\xff".to_vec(), 400),
            (vec![JSON], b"\x0a\x03".to_vec(), 400),
            (vec![JSON], br#"{"resourceMetrics":3}"#.to_vec(), 400),
            (vec![("content-type", "text/plain")], vec![], 415),
            (vec![], vec![], 415),
            (vec![PROTOBUF, gzip], b"no gzip".to_vec(), 400),
            (vec![PROTOBUF, ("content-encoding", "br")], vec![], 415),
        ] {
            let (got, _, told) = a.web.post_bytes("/v1/metrics", &headers, body.clone()).await;
            assert_eq!(got, status, "{headers:?} {body:?}: {}", String::from_utf8_lossy(&told));
        }
        assert_eq!(a.web.grpc("", GRPC, framed(b"\xff\xff")).await.status, 3);
        assert_eq!(a.web.grpc("", GRPC, vec![1, 2]).await.status, 3);
        let apps = a.web.admin("GET /api/v1/metrics/apps", Value::Null).await.json();
        assert_eq!(apps["items"], json!([]));
        a.stop().await;
    }

    async fn from_elsewhere_a_token_is_needed(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let body = || export("w1", &[durations(&[point("/x", 200, 1, 0)], 1)]);
        let through = [PROTOBUF, ("x-forwarded-for", "203.0.113.7")];
        assert_eq!(a.web.post_bytes("/v1/metrics", &through, body()).await.0, 401, "a proxy says it is not from here");
        let wrong = [PROTOBUF, ("authorization", "Bearer tg_wrong")];
        assert_eq!(a.web.post_bytes("/v1/metrics", &wrong, body()).await.0, 401);
        let other = format!("Bearer {}", worker(&a.web, &["limits"]).await);
        assert_eq!(a.web.post_bytes("/v1/metrics", &[PROTOBUF, ("authorization", &other)], body()).await.0, 403);
        let own = format!("Bearer {}", worker(&a.web, &["traffic"]).await);
        let headers = [PROTOBUF, ("x-forwarded-for", "203.0.113.7"), ("authorization", own.as_str())];
        assert_eq!(a.web.post_bytes("/v1/metrics", &headers, body()).await.0, 200);
        a.stop().await;
    }
}
