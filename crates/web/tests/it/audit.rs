use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use web::auth::Role;

use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn every_change_is_in_the_trail_with_who_and_what(t: TestStore) {
        let f = Fixture::new(&t);
        let made = f.admin("POST /api/v1/tokens", json!({"name": "a", "role": "viewer"})).await;
        f.admin("POST /api/v1/tokens", json!({"name": "", "role": "viewer"})).await;
        let viewer = f.token(Role::Viewer).await;
        f.call(&viewer, "POST /api/v1/tokens", json!({"name": "b", "role": "admin"})).await;
        f.admin("GET /api/v1/tokens", Value::Null).await;

        let trail = f.admin("GET /api/v1/audit", Value::Null).await.json();
        let entries = trail["items"].as_array().unwrap();
        assert_eq!(entries.len(), 3, "{trail:#}");
        assert_eq!((&entries[0]["outcome"], &entries[0]["who"]), (&json!("refused"), &json!("a viewer")));
        assert_eq!((&entries[0]["status"], &entries[0]["action"]), (&json!(403), &json!("POST /api/v1/tokens")));
        assert_eq!(entries[1]["outcome"], "refused");
        assert_eq!(entries[2]["outcome"], "ok");
        assert_eq!(entries[2]["action"], "token.create");
        assert_eq!(entries[2]["who"], "admin token of test");
        assert_eq!(entries[2]["instance"], "test");
        assert_eq!(entries[2]["token_id"].as_str().unwrap().len(), 12);
        assert_eq!(entries[2]["target"], made.json()["token"]["id"]);
        assert_eq!(entries[2]["request_id"], made.header("x-request-id"));
        assert_eq!(entries[2]["after"]["name"], "a");
        assert!(!trail.to_string().contains(made.json()["secret"].as_str().unwrap()));
    }

    async fn the_trail_is_read_page_by_page(t: TestStore) {
        let f = Fixture::new(&t);
        for name in ["a", "b", "c"] {
            f.admin("POST /api/v1/tokens", json!({"name": name, "role": "viewer"})).await;
        }
        let mut names = Vec::new();
        let mut path = "GET /api/v1/audit?limit=2".to_owned();
        loop {
            let page = f.admin(&path, Value::Null).await.json();
            names.extend(page["items"].as_array().unwrap().iter().map(|e| e["after"]["name"].clone()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            path = format!("GET /api/v1/audit?limit=2&cursor={next}");
        }
        assert_eq!(names, ["c", "b", "a"]);
        for bad in ["limit=0", "limit=1001", "limit=x", "cursor=1", "cursor=-", "cursor=1-2-3", "before=1-2"] {
            let got = f.admin(&format!("GET /api/v1/audit?{bad}"), Value::Null).await;
            assert_eq!(got.status.as_u16(), 400, "{bad}");
        }
    }

    async fn a_flood_of_wrong_tokens_does_not_fill_the_trail(t: TestStore) {
        let f = Fixture::new(&t);
        let viewer = f.token(Role::Viewer).await;
        for n in 0..50 {
            f.call(&format!("tg_admin_guess_{n}"), "GET /api/v1/me", Value::Null).await;
            f.call(&viewer, "POST /api/v1/tokens", json!({})).await;
            f.get("/api/v1/me").await;
        }
        let trail = f.trail().await;
        assert_eq!(trail.len(), 2, "{trail:#?}");
        assert_eq!((&trail[1]["action"], &trail[1]["who"]), (&json!("auth.refused"), &json!("unknown")));
        // The rest of them are summed up when the server stops, or a minute is over.
        let stop = CancellationToken::new();
        stop.cancel();
        web::audit::run(f.app.clone(), stop).await;
        let trail = f.trail().await;
        let times = |n: usize| trail[n]["after"]["times"].as_u64();
        assert_eq!((trail.len(), times(0), times(1)), (4, Some(49), Some(49)), "{trail:#?}");
    }

    async fn the_trail_cannot_be_read_round_it_or_deleted(t: TestStore) {
        let f = Fixture::new(&t);
        f.admin("POST /api/v1/tokens", json!({"name": "a", "role": "viewer"})).await;
        for key in ["tidegate:audit", "tidegate:audit-pending", "tidegate:tokens", "tidegate:none", "tidegate%5Cx3aaudit"] {
            let what = format!("/api/v1/store/key?key={key}");
            for method in ["DELETE", "GET"] {
                let got = f.admin(&format!("{method} {what}"), Value::Null).await;
                assert_eq!((got.status.as_u16(), got.code().as_str()), (403, "PROTECTED_KEY"), "{method} {key}");
            }
        }
        let trail = f.trail().await;
        assert!(trail.iter().any(|entry| entry["action"] == "token.create"), "{trail:#?}");
        assert!(trail.iter().any(|entry| entry["action"] == "DELETE /api/v1/store/key" && entry["outcome"] == "refused"));
    }

    async fn what_a_crash_interrupts_is_in_the_trail_as_unknown(t: TestStore) {
        use store::redis::AsyncCommands;
        let f = Fixture::new(&t);
        let announced = json!({"id": "", "at_ms": t.store.now().0, "who": "ann", "token_id": "x", "role": "admin",
            "action": "POST /api/v1/tokens", "target": "/api/v1/tokens", "outcome": "", "status": 0, "client": "",
            "request_id": "r", "instance": "gone"});
        let _: i64 = t.store.clone().hset("tidegate:audit-pending", "one", announced.to_string()).await.unwrap();
        web::audit::sweep(&f.app).await.unwrap();
        assert!(f.trail().await.is_empty(), "it may still be under way");
        t.clock.advance(std::time::Duration::from_secs(121));
        web::audit::sweep(&f.app).await.unwrap();
        web::audit::sweep(&f.app).await.unwrap();
        let trail = f.trail().await;
        assert_eq!(trail.len(), 1, "{trail:#?}");
        assert_eq!((&trail[0]["outcome"], &trail[0]["who"], &trail[0]["instance"]), (&json!("unknown"), &json!("ann"), &json!("gone")));
    }

    async fn logging_in_and_out_is_in_the_trail(t: TestStore) {
        let f = Fixture::new(&t);
        let form = |path: &str, body: String, cookie: &str| {
            Request::post(path)
                .header("sec-fetch-site", "same-origin")
                .header("content-type", "application/x-www-form-urlencoded")
                .header("cookie", cookie)
                .body(Body::from(body))
                .unwrap()
        };
        let opened = f.send(form("/login", format!("token={ADMIN}"), "")).await;
        let cookie = opened.header("set-cookie").split(';').next().unwrap().to_owned();
        f.send(form("/logout", String::new(), &cookie)).await;
        f.send(form("/logout", String::new(), &cookie)).await;
        let trail = f.trail().await;
        let acts: Vec<_> = trail.iter().map(|entry| (entry["action"].as_str().unwrap(), entry["who"].as_str().unwrap())).collect();
        let who = "admin token of test";
        assert_eq!(acts, [("session.close", who), ("session.open", who)]);
    }

    async fn without_a_trail_no_change_is_made(t: TestStore) {
        use store::redis::AsyncCommands;
        let f = Fixture::new(&t);
        // The place of announcements has another type: nothing can be announced.
        let _: () = t.store.clone().set("tidegate:audit-pending", "x").await.unwrap();
        let got = f.admin("POST /api/v1/tokens", json!({"name": "a", "role": "viewer"})).await;
        assert!(got.status.is_server_error(), "{}", got.text);
        let tokens = f.admin("GET /api/v1/tokens", Value::Null).await.json();
        assert!(tokens["items"].as_array().unwrap().iter().all(|token| token["name"] != "a"));
    }
}

/// A client that hangs up at any moment has the change and its entry, or neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_up_does_not_separate_a_change_from_its_entry() {
    let server = testkit::RedisServer::start();
    let proxy = testkit::Proxy::start(server.port(), 7).await.unwrap();
    let store = store::Store::open(&proxy.url()).await.unwrap();
    let f = Fixture::on(store, web::Settings::default(), Vec::new());
    f.admin("GET /api/v1/me", Value::Null).await;
    proxy.delay(Duration::from_millis(20));
    for n in 0..24_u64 {
        let call =
            f.admin("POST /api/v1/tokens", json!({"name": format!("t{n}"), "role": "admin"}));
        // Dropping the call is what the server does when the client goes away.
        let _ = tokio::time::timeout(Duration::from_millis(5 + n * 8), call).await;
    }
    f.app.join().await;
    proxy.heal();
    let tokens = f.admin("GET /api/v1/tokens", Value::Null).await.json();
    let made: BTreeSet<String> = tokens["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|token| token["created_by"] != "first start")
        .map(|token| token["id"].as_str().unwrap().to_owned())
        .collect();
    let trail = f.trail().await;
    let lines: BTreeSet<String> = trail
        .iter()
        .filter(|entry| entry["action"] == "token.create" && entry["outcome"] == "ok")
        .map(|entry| entry["target"].as_str().unwrap().to_owned())
        .collect();
    assert!(!made.is_empty() && made.len() < 25, "{}", made.len());
    assert_eq!(made, lines);
}
