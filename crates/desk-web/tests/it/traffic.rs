//! Traffic of this program, from the frame's count to the keys.

use serde_json::{Value, json};
use store::redis::AsyncCommands;
use testkit::each_store;

use crate::support::{Instance, wait_until};

each_store! {
    async fn requests_are_counted_once_over_instances_and_probes_are_not(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        for instance in [&a, &b] {
            instance.web.get("/livez").await;
            instance.web.get("/no/such/path").await;
            instance.web.get("/api/v1/users").await;
            instance.web.admin("GET /api/v1/users", Value::Null).await;
        }
        // Reading is a request of its own, which is why the numbers are read from the store.
        let number = async |key: &str| t.store.clone().get::<_, Option<i64>>(key).await.unwrap().unwrap_or(0);
        wait_until("both have written", async || number("ha:requests:total").await == 6).await;
        assert_eq!(number("ha:requests:accepted").await, 4, "two were refused: no credential");
        assert_eq!(number("ha:errors:total").await, 4);
        assert_eq!(number("ha:requests:endpoint:GET /api/v1/users").await, 4);
        assert_eq!(number("ha:errors:endpoint:GET /api/v1/users").await, 2);
        let seen = a.web.admin("GET /api/v1/metrics", Value::Null).await.json();
        let requests = &seen["requests"];
        assert_eq!((&requests["total"], &requests["refused"]), (&json!(6), &json!(2)));
        assert_eq!((&requests["succeeded"], &requests["client_errors"]), (&json!(2), &json!(4)));
        let endpoints = a.web.admin("GET /api/v1/metrics/endpoints?sort=errors", Value::Null).await.json();
        let names: Vec<&str> = endpoints["items"].as_array().unwrap().iter().map(|one| one["endpoint"].as_str().unwrap()).collect();
        assert!(names.contains(&"UNMATCHED") && names.contains(&"GET /api/v1/users"), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("livez")), "{names:?}");
        a.stop().await;
        b.stop().await;
    }

    async fn clients_that_hang_up_are_counted_as_aborted_and_leave_nothing_open(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        for _ in 0..3 {
            // A body that never comes: the handler waits until the client is gone.
            let never = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
            let request = axum::http::Request::post("/api/v1/ratelimit/check")
                .header("authorization", format!("Bearer {}", web::testing::ADMIN))
                .header("content-type", "application/json")
                .body(axum::body::Body::from_stream(never))
                .unwrap();
            let hung_up = tokio::time::timeout(std::time::Duration::from_millis(50), a.web.send(request)).await;
            assert!(hung_up.is_err(), "nothing was answered");
        }
        let outcome = async |name: &str| {
            let count: Option<i64> = t.store.clone().hget("ha:requests:outcomes", name).await.unwrap();
            count.unwrap_or(0)
        };
        wait_until("all are counted", async || outcome("aborted").await == 3).await;
        let total: i64 = t.store.clone().get("ha:requests:total").await.unwrap();
        assert_eq!(total, 3);
        a.stop().await;
    }

    async fn a_stop_writes_the_last_requests_and_a_kill_loses_no_sum(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        a.web.admin("GET /api/v1/users", Value::Null).await;
        a.stop().await;
        let number = async |key: &str| t.store.clone().get::<_, Option<i64>>(key).await.unwrap().unwrap_or(0);
        assert_eq!(number("ha:requests:total").await, 1);
        b.web.admin("GET /api/v1/users", Value::Null).await;
        wait_until("the other has written", async || number("ha:requests:total").await == 2).await;
        b.kill();
        assert_eq!(number("ha:requests:total").await, 2);
    }

    async fn a_reset_needs_a_name_and_leaves_limits_and_users(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        a.web.admin("PATCH /api/v1/users/1", json!({ "status": "blocked" })).await;
        let number = async || t.store.clone().get::<_, Option<i64>>("ha:requests:total").await.unwrap().unwrap_or(0);
        wait_until("something is counted", async || number().await > 0).await;
        for body in [json!({}), json!({ "app": "shop", "all": true }), json!({ "all": false })] {
            assert_eq!(a.web.admin("POST /api/v1/metrics/reset", body).await.status, 400);
        }
        let done = a.web.admin("POST /api/v1/metrics/reset", json!({ "all": true })).await;
        assert_eq!((done.status.as_u16(), &done.json()["apps"]), (200, &json!(1)));
        assert_eq!(a.web.admin("GET /api/v1/users/1", Value::Null).await.json()["status"], "blocked");
        a.stop().await;
    }

    async fn history_and_stream_tell_the_numbers(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        a.web.admin("GET /api/v1/users", Value::Null).await;
        for step in ["1s", "10s", "1m", "1h"] {
            let got = a.web.admin(&format!("GET /api/v1/metrics/history?step={step}"), Value::Null).await;
            assert_eq!(got.status, 200, "{}", got.text);
            assert!(got.json()["requests"].as_array().unwrap().len() >= 48, "{step}");
        }
        let request = axum::http::Request::get("/api/v1/metrics/stream")
            .header("authorization", format!("Bearer {}", web::testing::ADMIN));
        let mut events = a.web.listen(request.body(axum::body::Body::empty()).unwrap()).await;
        assert!(events.next("traffic").await.unwrap().1["requests"]["total"].is_u64());
        a.stop().await;
    }
}
