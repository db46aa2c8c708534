use axum::http::StatusCode;
use serde_json::Value;

use store::{Options, Store};
use testkit::{RedisServer, until};

use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn a_live_process_with_a_store_is_ready(t: TestStore) {
        let f = Fixture::new(&t);
        assert_eq!(f.get("/livez").await.status, StatusCode::OK);
        let ready = f.get("/readyz").await;
        assert_eq!(ready.status, StatusCode::OK);
        assert_eq!(ready.json()["status"], "ready");
    }

    async fn a_stopping_process_is_alive_but_not_ready(t: TestStore) {
        let f = Fixture::new(&t);
        f.app.stop();
        assert_eq!(f.get("/livez").await.status, StatusCode::OK);
        let ready = f.get("/readyz").await;
        assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
        let checks = ready.json();
        let stopping = checks["checks"].as_array().unwrap().iter().find(|c| c["ok"] == false);
        assert_eq!(stopping.unwrap()["name"], "serving");
    }

    async fn metrics_need_a_token_and_count_requests(t: TestStore) {
        let f = Fixture::new(&t);
        assert_eq!(f.get("/metrics").await.status, StatusCode::UNAUTHORIZED);
        let text = f.call(ADMIN, "GET /metrics", Value::Null).await.text;
        assert!(text.contains("tidegate_http_requests_total"), "{text}");
        assert!(text.contains("tidegate_http_request_seconds_bucket"), "{text}");
    }

    async fn open_metrics_need_none(t: TestStore) {
        let settings = web::Settings { open_metrics: true, ..web::Settings::default() };
        assert_eq!(Fixture::with(&t, settings).get("/metrics").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_dead_store_is_named_as_the_reason() {
    let mut t = testkit::TestStore::redis().await;
    let f = Fixture::new(&t);
    t.server().unwrap().kill();
    let ready = f.get("/readyz").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ready.json()["checks"][0]["name"], "store");
    assert_eq!(ready.json()["checks"][0]["ok"], false);
    // The admin of this installation still gets in; a call that needs the store says so.
    let tokens = f.admin("GET /api/v1/tokens", Value::Null).await;
    assert_eq!(tokens.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(tokens.code(), "STORE_UNAVAILABLE");
    assert_eq!(tokens.header("retry-after"), "2");
    assert_eq!(f.admin("GET /api/v1/me", Value::Null).await.status, StatusCode::OK);
}

/// What `/readyz` says about writes: whether they are taken, and the reason.
async fn writes(f: &Fixture) -> (StatusCode, String) {
    let ready = f.get("/readyz").await;
    let checks = ready.json()["checks"].clone();
    let check = checks.as_array().unwrap().iter().find(|c| c["name"] == "writes").unwrap().clone();
    assert_eq!(check["ok"] == true, ready.status == StatusCode::OK, "{checks}");
    (ready.status, check["reason"].as_str().unwrap().to_owned())
}

/// Waits until `/readyz` says 503 and names a reason.
async fn not_ready(f: &Fixture, word: &str) {
    let last = until("not ready", async || {
        let (status, reason) = writes(f).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(reason)
    });
    let reason = last.await;
    assert!(reason.contains(word), "{reason}");
    assert_eq!(f.get("/livez").await.status, StatusCode::OK);
}

async fn ready_again(f: &Fixture) {
    until("ready", async || (writes(f).await.0 == StatusCode::OK).then_some(())).await;
}

#[tokio::test]
async fn a_redis_that_refuses_writes_is_not_ready_and_the_reason_is_told() {
    let server = RedisServer::start();
    let client = store::redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let mut tell = async |line: &str| {
        let mut words = line.split(' ');
        let mut command = store::redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query_async::<()>(&mut redis).await.unwrap();
    };
    let store = Store::open(&server.url()).await.unwrap();
    let f = Fixture::on(store, web::Settings::default(), Vec::new());
    assert_eq!(writes(&f).await.0, StatusCode::OK);
    for (break_it, mend_it, word) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "out of memory"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "lower its min-replicas-to-write",
        ),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "primary"),
    ] {
        tell(break_it).await;
        not_ready(&f, word).await;
        tell(mend_it).await;
        ready_again(&f).await;
    }
}

#[tokio::test]
async fn a_built_in_store_that_is_full_is_not_ready() {
    let full = Options { maxmemory: Some(1), ..Options::default() };
    let store = Store::open_with("embedded:", full).await.unwrap();
    let f = Fixture::on(store, web::Settings::default(), Vec::new());
    not_ready(&f, "out of memory").await;
}

#[tokio::test]
async fn a_built_in_store_whose_writes_fail_is_not_ready() {
    let store = testkit::TestStore::embedded().await;
    let f = Fixture::new(&store);
    assert_eq!(writes(&f).await.0, StatusCode::OK);
    store.faults.go_away();
    let gone = until("not ready", async || {
        let ready = f.get("/readyz").await;
        (ready.status == StatusCode::SERVICE_UNAVAILABLE).then(|| ready.json())
    });
    let told = gone.await;
    let all = told["checks"].as_array().unwrap();
    assert!(all.iter().filter(|check| check["ok"] == false).count() >= 2, "{told}");
    store.faults.come_back();
    ready_again(&f).await;
}
