//! Checks, policies, blocks and leases over HTTP.

use serde_json::{Value, json};
use store::redis::AsyncCommands;
use testkit::each_store;

use crate::support::{Instance, check_user, fixture, put_policy, wait_until, worker};

const CHECK: &str = "POST /api/v1/ratelimit/check";

each_store! {
    async fn a_check_takes_both_forms_and_answers_with_headers_to_copy(t: TestStore) {
        let f = fixture(&t.store);
        let token = worker(&f, &["limits"]).await;
        let policy = json!({ "name": "search", "limit": 2, "window_seconds": 60, "algorithm": "sliding" });
        let body = json!({ "identifier": "203.0.113.7", "policy": policy });
        let first = f.call(&token, CHECK, body.clone()).await;
        assert_eq!(first.status, 200, "{}", first.text);
        let first = first.json();
        assert_eq!((&first["allowed"], &first["degraded"]), (&json!(true), &json!(false)));
        assert_eq!(first["limits"][0]["remaining"], 1);
        assert_eq!(first["headers"]["RateLimit-Policy"], "\"search\";q=2;w=60");
        assert!(first["headers"]["RateLimit"].as_str().unwrap().starts_with("\"search\";r=1;t="));
        f.call(&token, CHECK, body.clone()).await;
        let denied = f.call(&token, CHECK, body).await;
        assert_eq!(denied.status, 200, "a denial is 200 too");
        let denied = denied.json();
        assert_eq!((&denied["allowed"], &denied["limits"][0]["remaining"]), (&json!(false), &json!(0)));
        let wait: u64 = denied["headers"]["Retry-After"].as_str().unwrap().parse().unwrap();
        assert!(wait >= 1 && wait * 1_000 >= denied["retry_after_ms"].as_u64().unwrap());

        put_policy(&f, "api", json!({ "limit": 5, "window_seconds": 60 })).await;
        put_policy(&f, "login", json!({ "limit": 1, "window_seconds": 60, "algorithm": "fixed" })).await;
        let both = json!({ "identity": { "ip": "203.0.113.7" }, "policies": ["api", "login"], "cost": 1 });
        assert_eq!(f.call(&token, CHECK, both.clone()).await.json()["allowed"], true);
        let denied = f.call(&token, CHECK, both).await.json();
        assert_eq!(denied["allowed"], false);
        assert_eq!(denied["limits"][0]["remaining"], 4, "a denial by one charges none");
    }

    async fn the_seeds_bare_key_is_that_of_the_default_policy(t: TestStore) {
        let f = fixture(&t.store);
        let policy = json!({ "limit": 3, "window_ms": 60_000, "algorithm": "sliding" });
        let body = json!({ "identifier": "192.168.1.100", "policy": policy });
        assert_eq!(f.admin(CHECK, body).await.json()["allowed"], true);
        let key = match t.store.layout() {
            store::Layout::Standalone => "ha:sliding_limit:192.168.1.100",
            store::Layout::Cluster => "ha:sliding_limit:{192.168.1.100}",
        };
        assert_eq!(t.store.clone().zcard::<_, i64>(key).await.unwrap(), 1);
    }

    async fn a_policy_reaches_another_instance_within_a_second(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        put_policy(&a.web, "tiny", json!({ "limit": 1, "window_seconds": 60, "algorithm": "fixed" })).await;
        wait_until("the other instance knows the policy", async || {
            b.web.admin("GET /api/v1/ratelimit/policies/tiny", Value::Null).await.status == 200
        })
        .await;
        assert_eq!(a.web.admin(CHECK, check_user("tiny", "1")).await.json()["allowed"], true);
        assert_eq!(b.web.admin(CHECK, check_user("tiny", "1")).await.json()["allowed"], false, "one count");
        // A block and its end reach it, too.
        let at = "/api/v1/ratelimit/tiny/user/2/block";
        a.web.admin(&format!("PUT {at}"), json!({ "for_ms": 600_000 })).await;
        wait_until("the other instance knows the block", async || {
            b.web.admin(CHECK, check_user("tiny", "2")).await.json()["limits"][0]["decided_by"] == "block"
        })
        .await;
        a.web.admin(&format!("DELETE {at}"), Value::Null).await;
        wait_until("the other instance knows its end", async || {
            b.web.admin(CHECK, json!({ "identity": { "user": "2" }, "policies": ["tiny"], "cost": 0 })).await.json()["allowed"] == true
        })
        .await;
        a.stop().await;
        b.stop().await;
    }

    async fn of_a_thousand_hits_over_two_instances_exactly_the_limit_is_allowed(t: TestStore) {
        let stores = [t.store.clone(), t.another().await, t.another().await, t.another().await];
        let instances = stores.each_ref().map(fixture);
        let app = worker(&instances[0], &["limits"]).await;
        let app = app.as_str();
        for algorithm in ["fixed", "sliding", "counter", "bucket", "calendar", "concurrent"] {
            let body = match algorithm {
                "calendar" => json!({ "algorithm": algorithm, "limit": 100, "period": "year" }),
                _ => json!({ "algorithm": algorithm, "limit": 100, "window_seconds": 86_400 }),
            };
            for instance in &instances {
                put_policy(instance, "exact", body.clone()).await;
            }
            let user = format!("u-{algorithm}");
            let hits = (0..1_000_usize).map(|number| {
                let instance = &instances[number % instances.len()];
                let body = check_user("exact", &user);
                async move { instance.call(app, CHECK, body).await.json()["allowed"] == true }
            });
            let allowed = futures_util::future::join_all(hits).await.into_iter().filter(|ok| *ok).count();
            assert_eq!(allowed, 100, "{algorithm}");
        }
    }

    async fn shadow_exempt_networks_overrides_and_block_lists_act(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "p", json!({ "limit": 1, "window_seconds": 60, "algorithm": "fixed", "shadow": true })).await;
        for _ in 0..3 {
            assert_eq!(f.admin(CHECK, check_user("p", "a")).await.json()["allowed"], true, "shadow never denies");
        }
        put_policy(&f, "q", json!({ "limit": 1, "window_seconds": 60, "exempt": ["10.0.0.0/8"],
            "blocked": ["203.0.113.0/24", "user:mallory"], "overrides": [{ "identity": "user:vip", "limit": 3 }] })).await;
        let decide = async |identity: Value| f.admin(CHECK, json!({ "identity": identity, "policies": ["q"] })).await.json();
        for _ in 0..3 {
            let got = decide(json!({ "ip": "10.1.2.3" })).await;
            assert_eq!((&got["allowed"], &got["limits"][0]["decided_by"]), (&json!(true), &json!("exemption")));
        }
        for identity in [json!({ "ip": "203.0.113.9" }), json!({ "user": "mallory" })] {
            let got = decide(identity).await;
            assert_eq!((&got["allowed"], &got["limits"][0]["decided_by"]), (&json!(false), &json!("block_list")));
        }
        let vip: Vec<bool> = vec![
            decide(json!({ "user": "vip" })).await["allowed"] == true,
            decide(json!({ "user": "vip" })).await["allowed"] == true,
            decide(json!({ "user": "vip" })).await["allowed"] == true,
            decide(json!({ "user": "vip" })).await["allowed"] == true,
        ];
        assert_eq!(vip, [true, true, true, false]);
    }

    async fn units_come_back_and_leases_are_held_renewed_and_released(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "c", json!({ "limit": 2, "window_seconds": 60, "algorithm": "calendar", "period": "day" }).as_object().map(|body| {
            let mut body = body.clone();
            body.remove("window_seconds");
            Value::Object(body)
        }).unwrap()).await;
        let charged = f.admin(CHECK, json!({ "identity": { "user": "1" }, "policies": ["c"], "cost": 2 })).await.json();
        assert_eq!(charged["limits"][0]["remaining"], 0);
        let refund = json!({ "identity": { "user": "1" }, "policies": ["c"], "cost": 2,
            "request_id": charged["request_id"], "charged_at": charged["charged_at"] });
        for units in [2, 0] {
            let got = f.admin("POST /api/v1/ratelimit/refund", refund.clone()).await;
            assert_eq!((got.status.as_u16(), &got.json()["units"]), (200, &json!([units])), "repeated, it counts once");
        }
        let left = f.admin("GET /api/v1/ratelimit/c/user/1", Value::Null).await.json();
        assert_eq!(left["limits"][0]["remaining"], 2);

        put_policy(&f, "exports", json!({ "limit": 1, "window_seconds": 30, "algorithm": "concurrent" })).await;
        let ask = json!({ "identity": { "user": "1" }, "policy": "exports" });
        let held = f.admin("POST /api/v1/ratelimit/acquire", ask.clone()).await.json();
        assert_eq!((&held["acquired"], &held["lease_ms"]), (&json!(true), &json!(30_000)));
        let full = f.admin("POST /api/v1/ratelimit/acquire", ask.clone()).await.json();
        assert_eq!((&full["acquired"], &full["lease_id"]), (&json!(false), &Value::Null));
        let holder = json!({ "identity": { "user": "1" }, "policy": "exports", "lease_id": held["lease_id"] });
        assert_eq!(f.admin("POST /api/v1/ratelimit/renew", holder.clone()).await.json()["renewed"], true);
        assert_eq!(f.admin("POST /api/v1/ratelimit/release", holder.clone()).await.json()["units"], 1);
        assert_eq!(f.admin("POST /api/v1/ratelimit/release", holder).await.json()["units"], 0);
        assert_eq!(f.admin("POST /api/v1/ratelimit/acquire", ask).await.json()["acquired"], true);
    }

    async fn use_of_policies_is_counted_over_instances_with_the_busiest_identities(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        put_policy(&a.web, "s", json!({ "limit": 5, "window_seconds": 600, "algorithm": "sliding" })).await;
        wait_until("both know the policy", async || {
            b.web.admin("GET /api/v1/ratelimit/policies/s", Value::Null).await.status == 200
        })
        .await;
        for number in 0..20 {
            let web = if number % 2 == 0 { &a.web } else { &b.web };
            web.admin(CHECK, check_user("s", "busy")).await;
        }
        a.web.admin(CHECK, check_user("s", "calm")).await;
        wait_until("all are counted", async || {
            let stats = a.web.admin("GET /api/v1/ratelimit/stats", Value::Null).await.json();
            let found = stats["items"].as_array().unwrap().iter().find(|one| one["policy"] == "s").cloned();
            found.is_some_and(|one| {
                (&one["allowed"], &one["denied"]) == (&json!(6), &json!(15))
                    && one["top"][0] == json!({ "identity": "user:busy", "hits": 20, "denied": 15 })
            })
        })
        .await;
        a.stop().await;
        b.stop().await;
    }

    async fn another_rule_is_tried_on_live_traffic_and_then_applied(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        let body = json!({ "algorithm": "sliding", "limit": 4, "window_seconds": 3600, "exempt": ["10.0.0.0/8"], "block_ms": 1000 });
        put_policy(&a.web, "p", body).await;
        let path = "/api/v1/ratelimit/policies/p";
        for bad in [json!({ "limit": 0, "window_ms": 1000 }), json!({ "limit": 5 }), json!({ "limit": 5, "window_ms": 1000, "period": "day" })] {
            let got = a.web.admin(&format!("PUT {path}/preview"), bad.clone()).await;
            assert_eq!(got.status, 400, "{bad}: {}", got.text);
        }
        assert_eq!(a.web.admin(&format!("POST {path}/preview/apply"), Value::Null).await.code(), "NO_PREVIEW");
        let tried = json!({ "algorithm": "fixed", "limit": 2, "window_ms": 3_600_000 });
        let got = a.web.admin(&format!("PUT {path}/preview"), tried.clone()).await;
        assert_eq!((got.status.as_u16(), &got.json()["limit"]), (200, &json!(4)), "{}", got.text);
        let mut allowed = 0;
        for _ in 0..6 {
            let got = a.web.admin("POST /api/v1/ratelimit/check", check_user("p", "u")).await.json();
            allowed += u64::from(got["allowed"] == true);
            assert_eq!(got["limits"].as_array().unwrap().len(), 1, "nobody is told of the trial");
        }
        assert_eq!(allowed, 4, "the policy goes on as it is");
        wait_until("the trial is counted", async || {
            let stats = a.web.admin("GET /api/v1/ratelimit/stats", Value::Null).await.json();
            let items = stats["items"].as_array().unwrap();
            assert!(items.iter().all(|one| !one["policy"].as_str().unwrap().contains('~')));
            // After the first denial the user is blocked for a second, and blocked requests are charged nothing.
            items.iter().any(|one| one["policy"] == "p" && one["preview"] == json!({ "requests": 5, "denied": 3 }))
        }).await;
        let got = a.web.admin(&format!("POST {path}/preview/apply"), Value::Null).await.json();
        assert_eq!((&got["algorithm"], &got["limit"], &got["preview"]), (&json!("fixed"), &json!(2), &Value::Null));
        assert_eq!((&got["exempt"], &got["block_ms"]), (&json!(["10.0.0.0/8"]), &json!(1000)), "the rest stays");
        let got = a.web.admin(&format!("PATCH {path}"), json!({ "algorithm": "bucket", "burst": 3, "shadow": true })).await.json();
        assert_eq!((&got["algorithm"], &got["burst"], &got["limit"], &got["exempt"]), (&json!("bucket"), &json!(3), &json!(2), &json!(["10.0.0.0/8"])));
        let got = a.web.admin(&format!("PATCH {path}"), json!({ "algorithm": "counter" })).await.json();
        assert_eq!((&got["burst"], &got["shadow"]), (&Value::Null, &json!(true)));
        assert_eq!(a.web.admin(&format!("PATCH {path}"), json!({ "limit": 0 })).await.status, 400);
        a.web.admin(&format!("PUT {path}/preview"), tried).await;
        assert_eq!(a.web.admin(&format!("DELETE {path}/preview"), Value::Null).await.json()["removed"], true);
        assert_eq!(a.web.admin(&format!("DELETE {path}/preview"), Value::Null).await.json()["removed"], false);
        assert_eq!(a.web.admin("PUT /api/v1/ratelimit/policies/none/preview", json!({ "limit": 1, "window_ms": 1000 })).await.status, 404);
        a.stop().await;
    }

    async fn a_change_of_a_policy_leaves_what_it_does_not_name(t: TestStore) {
        let f = fixture(&t.store);
        let path = "/api/v1/ratelimit/policies/p";
        put_policy(&f, "p", json!({ "limit": 5, "window_seconds": 60, "exempt": ["10.0.0.0/8"], "block_ms": 1_000,
            "overrides": [{ "identity": "user:vip", "limit": 50 }] })).await;
        let change = async |body: Value| {
            let got = f.admin(&format!("PATCH {path}"), body).await;
            assert_eq!(got.status, 200, "{}", got.text);
            got.json()
        };
        let changed = change(json!({ "limit": 6, "window_seconds": 120 })).await;
        assert_eq!((&changed["limit"], &changed["window_ms"]), (&json!(6), &json!(120_000)));
        assert_eq!((&changed["exempt"], &changed["block_ms"]), (&json!(["10.0.0.0/8"]), &json!(1_000)));
        let changed = change(json!({ "exempt": [], "blocked": ["user:mallory"], "block_ms": 0, "timeout_ms": 80 })).await;
        assert_eq!((&changed["exempt"], &changed["blocked"]), (&json!([]), &json!(["user:mallory"])));
        assert_eq!((&changed["block_ms"], &changed["timeout_ms"]), (&Value::Null, &json!(80)));
        assert_eq!(changed["overrides"][0]["limit"], 50);
        // To the calendar and back.
        let quota = change(json!({ "algorithm": "calendar", "period": "month", "time_zone": "Europe/Berlin" })).await;
        assert_eq!((&quota["window_ms"], &quota["period"]), (&Value::Null, &json!("month")));
        assert_eq!(change(json!({ "period": "day" })).await["time_zone"], "Europe/Berlin");
        let bad = f.admin(&format!("PATCH {path}"), json!({ "window_seconds": 60 })).await;
        assert_eq!(bad.status, 400, "a calendar has no window: {}", bad.text);
        let back = change(json!({ "algorithm": "bucket", "window_seconds": 60, "burst": 9 })).await;
        assert_eq!((&back["period"], &back["burst"]), (&Value::Null, &json!(9)));
        assert_eq!(change(json!({ "burst": 0 })).await["burst"], Value::Null);
    }

    async fn a_denial_that_blocks_tells_the_time_of_the_block(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "p", json!({ "limit": 1, "window_seconds": 10, "algorithm": "fixed", "block_ms": 60_000 })).await;
        let check = async || f.admin(CHECK, check_user("p", "x")).await.json();
        assert_eq!(check().await["allowed"], true);
        let denied = check().await;
        assert_eq!((&denied["allowed"], &denied["headers"]["Retry-After"]), (&json!(false), &json!("60")));
        t.clock.advance(std::time::Duration::from_millis(59_999));
        assert_eq!(check().await["limits"][0]["decided_by"], "block");
        t.clock.advance(std::time::Duration::from_millis(1));
        assert_eq!(check().await["allowed"], true, "who waited as told is allowed");
        for body in [json!({}), json!({ "for_ms": 1, "for_seconds": 1 }), json!({ "for_seconds": 0 })] {
            assert_eq!(f.admin("PUT /api/v1/ratelimit/p/user/x/block", body).await.status, 400);
        }
        assert_eq!(f.admin("PUT /api/v1/ratelimit/p/user/x/block", json!({ "for_seconds": 5 })).await.status, 200);
        assert_eq!(check().await["limits"][0]["decided_by"], "block");
    }

    async fn a_scope_binds_every_call(t: TestStore) {
        let f = fixture(&t.store);
        let (users, limits) = (worker(&f, &["users"]).await, worker(&f, &["limits"]).await);
        put_policy(&f, "p", json!({ "limit": 5, "window_seconds": 60 })).await;
        assert_eq!(f.call(&users, CHECK, check_user("p", "1")).await.status, 403);
        assert_eq!(f.call(&limits, CHECK, check_user("p", "1")).await.status, 200);
        assert_eq!(f.call(&limits, "GET /api/v1/ratelimit/policies", Value::Null).await.status, 200);
        assert_eq!(f.call(&limits, "GET /api/v1/users", Value::Null).await.status, 403);
        assert_eq!(f.call(&users, "GET /api/v1/metrics", Value::Null).await.status, 403);
        assert_eq!(f.call(&users, "GET /api/v1/users", Value::Null).await.status, 200);
        let wrong = f.admin("POST /api/v1/tokens", json!({ "name": "x", "role": "worker", "scopes": ["limit"] })).await;
        assert!(wrong.status == 400 && wrong.text.contains("limits"), "{}", wrong.text);
    }
}
