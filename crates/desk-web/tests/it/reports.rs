//! Traffic that other programs report as JSON.

use serde_json::{Value, json};
use testkit::each_store;

use crate::support::{Instance, wait_until};

fn row(status: u16, count: u64) -> Value {
    json!({ "method": "GET", "route": "/api/users/:id", "status": status, "duration_ms": 20, "count": count })
}

each_store! {
    async fn a_programs_requests_are_kept_under_its_name_and_not_under_ours(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        for instance in [&a, &b] {
            let report = json!({ "app": "shop", "items": [row(200, 5), row(500, 1)] });
            let done = instance.web.admin("POST /api/v1/metrics/requests", report).await;
            assert_eq!(done.status, 204, "{}", done.text);
        }
        let seen = async || a.web.admin("GET /api/v1/metrics?app=shop", Value::Null).await.json();
        wait_until("both have written", async || seen().await["requests"]["total"] == 12).await;
        assert_eq!(seen().await["errors"], 2);
        let endpoints = a.web.admin("GET /api/v1/metrics/endpoints?app=shop", Value::Null).await.json();
        assert_eq!(endpoints["items"][0]["endpoint"], "GET /api/users/:id");
        assert_eq!(endpoints["items"][0]["requests"], 12);
        let apps = a.web.admin("GET /api/v1/metrics/apps", Value::Null).await.json();
        assert_eq!(apps["items"].as_array().unwrap().len(), 1, "{apps}");
        a.stop().await;
        b.stop().await;
    }

    async fn a_report_that_cannot_be_meant_is_refused_and_counts_nothing(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let many: Vec<Value> = (0..1_001).map(|_| row(200, 1)).collect();
        for (items, field) in [
            (json!(many), "items"),
            (json!([row(200, 1), row(99, 1)]), "items[1].status"),
            (json!([row(200, 0)]), "items[0].count"),
            (json!([{ "method": "GET", "status": 200, "duration_ms": 86_400_001 }]), "items[0].duration_ms"),
        ] {
            let refused = a.web.admin("POST /api/v1/metrics/requests", json!({ "app": "shop", "items": items })).await;
            assert_eq!(refused.status, 400, "{}", refused.text);
            assert_eq!(refused.json()["error"]["details"]["field"], field);
        }
        let refused = a.web.admin("POST /api/v1/metrics/requests", json!({ "app": "a:b", "items": [] })).await;
        assert_eq!(refused.status, 400);
        let apps = a.web.admin("GET /api/v1/metrics/apps", Value::Null).await.json();
        assert_eq!(apps["items"], json!([]), "nothing was kept");
        a.stop().await;
    }
}
