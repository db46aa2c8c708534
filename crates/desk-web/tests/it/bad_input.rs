//! Bad input gets a clear error; nothing is charged, nothing stored, no 5xx.

use serde_json::{Value, json};
use store::redis;
use testkit::{TestStore, each_store};

use crate::support::{fixture, put_policy};

async fn keys(t: &TestStore) -> Vec<String> {
    let mut keys: Vec<String> =
        redis::cmd("KEYS").arg("ha:*").query_async(&mut t.store.clone()).await.unwrap();
    keys.sort_unstable();
    keys
}

each_store! {
    async fn a_check_that_cannot_work_is_refused_by_field_and_charges_nothing(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "small", json!({ "limit": 5, "window_seconds": 60 })).await;
        let before = keys(&t).await;
        let inline = |policy: Value| json!({ "identifier": "a", "policy": policy });
        let named = |body: Value| json!({ "identity": body, "policies": ["small"] });
        let cases: Vec<(Value, &str, &str)> = vec![
            (inline(json!({ "limit": 5, "window_seconds": 60, "algorithm": "leaky" })), "policy.algorithm", "leaky"),
            (inline(json!({ "limit": 0, "window_seconds": 60 })), "limit", "at least 1"),
            (inline(json!({ "limit": 5, "window_ms": 0 })), "limit", "between 1 ms and a year"),
            (inline(json!({ "limit": 5, "window_seconds": 40_000_000 })), "limit", "between 1 ms and a year"),
            (inline(json!({ "limit": 5, "window_seconds": 1, "window_ms": 1 })), "window_ms", "not both"),
            (inline(json!({ "limit": 1_001, "window_seconds": 60, "algorithm": "sliding" })), "limit", "use a counter"),
            (inline(json!({ "limit": 1_001, "window_seconds": 60, "algorithm": "fixed" })), "limit", "use a counter"),
            (inline(json!({ "limit": 5, "window_seconds": 60, "name": "a#b" })), "policy", "a-z"),
            (inline(json!({ "limit": 5, "window_seconds": 60, "name": "{a}" })), "policy", "a-z"),
            (inline(json!({ "limit": 9, "window_seconds": 60, "name": "small" })), "policy", "another name"),
            (json!({ "identifier": "a#b", "policies": ["small"] }), "identifier", "braces"),
            (json!({ "identifier": "{a}", "policies": ["small"] }), "identifier", "braces"),
            (json!({ "identifier": "a\u{7}", "policies": ["small"] }), "identifier", "control"),
            (json!({ "policies": ["small"] }), "identity", "who is charged"),
            (named(json!({})), "identity", "exactly one"),
            (named(json!({ "ip": "1.2.3.4", "user": "x" })), "identity", "exactly one"),
            (named(json!({ "ip": "nowhere" })), "identity.ip", "not an address"),
            (json!({ "identity": { "user": "x" }, "policies": [] }), "policies", "1 to 16"),
            (json!({ "identity": { "user": "x" }, "policies": vec!["small"; 17] }), "policies", "1 to 16"),
            (json!({ "identity": { "user": "x" }, "policies": ["small", "small"] }), "policies", "at most once"),
            (json!({ "identity": { "user": "x" }, "policies": ["small"], "cost": 6 }), "cost", "never be allowed"),
        ];
        for (body, field, message) in cases {
            let got = f.admin("POST /api/v1/ratelimit/check", body.clone()).await;
            assert_eq!(got.status, 400, "{body}: {}", got.text);
            let error = &got.json()["error"];
            assert_eq!(error["details"]["field"], field, "{body}: {}", got.text);
            assert!(error["message"].as_str().unwrap().contains(message), "{body}: {}", got.text);
        }
        let unknown = f.admin("POST /api/v1/ratelimit/check", json!({ "identity": { "user": "x" }, "policies": ["none"] })).await;
        assert_eq!((unknown.status.as_u16(), unknown.code().as_str()), (404, "POLICY_NOT_FOUND"));
        // Unusual values of a typed identity are hashed instead.
        let odd = f.admin("POST /api/v1/ratelimit/check", json!({ "identity": { "user": "a#b {c}\u{7}" }, "policies": ["small"], "cost": 0 })).await;
        assert_eq!(odd.status, 200, "{}", odd.text);
        assert_eq!(keys(&t).await, before, "nothing was charged or stored");
    }

    async fn a_batch_of_more_than_a_hundred_or_with_one_mistake_charges_nothing(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "p", json!({ "limit": 5, "window_seconds": 60 })).await;
        let before = keys(&t).await;
        let one = json!({ "identity": { "user": "x" }, "policies": ["p"] });
        let many = f.admin("POST /api/v1/ratelimit/check-batch", json!({ "checks": vec![one.clone(); 101] })).await;
        assert_eq!((many.status.as_u16(), &many.json()["error"]["details"]["field"]), (400, &json!("checks")));
        let mistake = json!({ "checks": [one, { "identity": { "user": "x" }, "policies": ["p"], "cost": 6 }] });
        assert_eq!(f.admin("POST /api/v1/ratelimit/check-batch", mistake).await.status, 400);
        put_policy(&f, "vip", json!({ "limit": 5, "window_seconds": 60, "overrides": [{ "identity": "user:v", "limit": 90 }] })).await;
        for mistake in [
            json!({ "identity": { "user": "x" }, "policies": ["p", "p"] }),
            json!({ "identity": { "user": "x" }, "policies": ["vip"], "cost": 6 }),
            json!({ "identity": { "user": "x" }, "policies": ["p"], "request_id": "r".repeat(129) }),
            json!({ "identity": { "user": "x" }, "policies": ["p"], "request_id": "" }),
        ] {
            let body = json!({ "checks": [{ "identity": { "user": "v" }, "policies": ["vip"], "cost": 6 }, mistake] });
            let got = f.admin("POST /api/v1/ratelimit/check-batch", body.clone()).await;
            assert_eq!(got.status, 400, "{body}: {}", got.text);
        }
        assert_eq!(keys(&t).await, before, "nothing was charged");
        let fine = json!({ "checks": vec![json!({ "identity": { "user": "x" }, "policies": ["p"] }); 7] });
        let got = f.admin("POST /api/v1/ratelimit/check-batch", fine).await.json();
        let allowed = got["items"].as_array().unwrap().iter().filter(|one| one["allowed"] == true).count();
        assert_eq!(allowed, 5);
    }

    async fn a_policy_that_cannot_work_is_not_stored(t: TestStore) {
        let f = fixture(&t.store);
        for (body, field) in [
            (json!({ "limit": 0, "window_seconds": 60 }), "limit"),
            (json!({ "limit": 5, "window_seconds": 60, "burst": 3 }), "burst"),
            (json!({ "limit": 5, "algorithm": "calendar" }), "period"),
            (json!({ "limit": 5, "algorithm": "calendar", "period": "day", "time_zone": "Mars" }), "time_zone"),
            (json!({ "limit": 5, "window_seconds": 60, "exempt": ["home"] }), "exempt"),
            (json!({ "limit": 5, "window_seconds": 60, "algorithm": "sliding", "prepay": 2 }), "prepay"),
            (json!({ "limit": 5, "window_seconds": 60, "timeout_ms": 60_000 }), "timeout_ms"),
        ] {
            let got = f.admin("PUT /api/v1/ratelimit/policies/p", body.clone()).await;
            assert_eq!((got.status.as_u16(), &got.json()["error"]["details"]["field"]), (400, &json!(field)), "{body}: {}", got.text);
        }
        let name = f.admin("PUT /api/v1/ratelimit/policies/A%23b", json!({ "limit": 5, "window_seconds": 60 })).await;
        assert_eq!(name.status, 400, "{}", name.text);
        assert!(keys(&t).await.is_empty());
    }
}
