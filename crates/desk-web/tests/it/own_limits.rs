//! The product's own limits: public calls and logins.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use testkit::each_store;
use web::testing::{ADMIN, Answer, Fixture};

use crate::support::{fixture, put_policy};

async fn log_in(f: &Fixture, token: &str) -> Answer {
    let request = Request::post("/login")
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(format!("token={token}")))
        .unwrap();
    f.send(request).await
}

each_store! {
    async fn public_calls_are_limited_by_address_and_probes_and_assets_are_not(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "api", json!({ "limit": 3, "window_seconds": 900, "algorithm": "sliding" })).await;
        for left in ["2", "1", "0"] {
            let got = f.get("/api/openapi.json").await;
            assert_eq!((got.status, got.header("x-ratelimit-remaining")), (StatusCode::OK, left));
            assert_eq!(got.header("ratelimit-policy"), "\"api\";q=3;w=900");
        }
        let denied = f.get("/api/openapi.json").await;
        assert_eq!((denied.status, denied.code().as_str()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED"));
        let details = &denied.json()["error"]["details"];
        assert_eq!(details["policy"], "api");
        assert_eq!(details["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
        let wait: u64 = denied.header("retry-after").parse().unwrap();
        assert!(wait >= 1 && wait * 1_000 >= details["retry_after_ms"].as_u64().unwrap());
        // Who waits that long is allowed.
        t.clock.advance(std::time::Duration::from_secs(wait));
        assert_eq!(f.get("/api/openapi.json").await.status, StatusCode::OK);
        for path in ["/livez", "/readyz", "/favicon.ico"] {
            for _ in 0..5 {
                assert_eq!(f.get(path).await.status, StatusCode::OK, "{path}");
            }
        }
        for _ in 0..5 {
            let got = f.admin("GET /api/v1/ratelimit/policies", Value::Null).await;
            assert_eq!((got.status, got.header("ratelimit")), (StatusCode::OK, ""), "callers with a credential are not");
        }
    }

    async fn failed_logins_are_limited_by_address_and_then_blocked(t: TestStore) {
        let f = fixture(&t.store);
        for number in 0..5 {
            let got = log_in(&f, &format!("tg_admin_wrong{number}")).await;
            assert_eq!(got.status, StatusCode::UNAUTHORIZED);
            assert_eq!(got.header("ratelimit-policy"), "\"login_ip\";q=5;w=900, \"login_account\";q=10;w=900");
            assert!(got.header("ratelimit").starts_with(&format!("\"login_ip\";r={};", 4 - number)), "{}", got.header("ratelimit"));
            t.clock.advance(std::time::Duration::from_millis(1_100));
        }
        let denied = log_in(&f, ADMIN).await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied.header("ratelimit-policy"), "\"login_ip\";q=5;w=900");
        assert_eq!(denied.header("retry-after"), "900", "as long as the block that it begins");
        // The block lasts as long as the window, from the denial on.
        t.clock.advance(std::time::Duration::from_secs(14 * 60));
        assert_eq!(log_in(&f, ADMIN).await.status, StatusCode::TOO_MANY_REQUESTS);
        t.clock.advance(std::time::Duration::from_secs(60));
        assert_eq!(log_in(&f, ADMIN).await.status, StatusCode::SEE_OTHER, "who waited as told is let in");
        for _ in 0..4 {
            assert_eq!(log_in(&f, ADMIN).await.status, StatusCode::SEE_OTHER, "a good one forgives");
        }
    }

    async fn a_policy_of_the_product_can_be_changed_and_comes_back(t: TestStore) {
        let f = fixture(&t.store);
        let shown = async || f.admin("GET /api/v1/ratelimit/policies/api", Value::Null).await.json();
        assert_eq!(shown().await["limit"], 100);
        assert_eq!((&shown().await["window_ms"], &shown().await["is_stored"]), (&json!(900_000), &json!(false)));
        put_policy(&f, "api", json!({ "limit": 7, "window_seconds": 60 })).await;
        assert_eq!((&shown().await["limit"], &shown().await["is_stored"]), (&json!(7), &json!(true)));
        f.admin("DELETE /api/v1/ratelimit/policies/api", Value::Null).await;
        assert_eq!(shown().await["limit"], 100);
        let trail = f.trail().await;
        assert!(trail.iter().any(|entry| entry["action"] == "policy.put" && entry["target"] == "api"), "{trail:?}");
    }
}
