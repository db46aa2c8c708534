use axum::http::StatusCode;
use serde_json::Value;

use crate::fixture::{ADMIN, Fixture};

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
        let settings = api::Settings { open_metrics: true, ..api::Settings::default() };
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
