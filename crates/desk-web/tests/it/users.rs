//! Users and sessions over HTTP.

use serde_json::{Value, json};
use store::redis::{self, AsyncCommands};
use testkit::{TestStore, each_store};
use web::testing::Fixture;

use crate::support::{Instance, fixture, put_policy, worker};

async fn open(f: &Fixture, token: &str, user: &str, device: &str) -> Value {
    let got = f
        .call(
            token,
            &format!("POST /api/v1/users/{user}/sessions"),
            json!({ "device_id": device, "ip_address": "203.0.113.7" }),
        )
        .await;
    assert_eq!(got.status, 201, "{}", got.text);
    got.json()
}

async fn check(f: &Fixture, token: &str, user_token: &Value) -> Value {
    let got = f.call(token, "POST /api/v1/users/check", json!({ "token": user_token })).await;
    assert_eq!(got.status, 200, "{}", got.text);
    got.json()
}

fn user_key(t: &TestStore, user: &str) -> String {
    match t.store.layout() {
        store::Layout::Standalone => format!("ha:user:{user}"),
        store::Layout::Cluster => format!("ha:user:{{{user}}}"),
    }
}

each_store! {
    async fn a_session_is_opened_checked_listed_and_ended(t: TestStore) {
        let f = fixture(&t.store);
        let app = worker(&f, &["users"]).await;
        let phone = open(&f, &app, "123", "iPhone_12_ABC123").await;
        let laptop = open(&f, &app, "123", "laptop").await;
        assert!(phone["token"].as_str().unwrap().starts_with("du_"));
        let seen = check(&f, &app, &phone["token"]).await;
        assert_eq!((&seen["valid"], &seen["user_id"], &seen["status"]), (&json!(true), &json!("123"), &json!("login")));
        assert_eq!(seen["capabilities"], json!({ "view": true, "post": true, "chat": true }));
        let devices = f.call(&app, "GET /api/v1/users/123/sessions", Value::Null).await.json();
        assert_eq!(devices["items"].as_array().unwrap().len(), 2);
        assert_eq!(devices["items"][0]["ip_address"], "203.0.113.0", "truncated by default");
        let one = format!("DELETE /api/v1/users/123/sessions/{}", phone["session_id"].as_str().unwrap());
        assert_eq!(f.call(&app, &one, Value::Null).await.json()["ended"], 1);
        assert_eq!(check(&f, &app, &phone["token"]).await["valid"], false);
        assert_eq!(check(&f, &app, &laptop["token"]).await["valid"], true, "devices are independent");
        assert_eq!(f.call(&app, &one, Value::Null).await.code(), "USER_SESSION_NOT_FOUND");
        f.call(&app, "DELETE /api/v1/users/123/sessions", Value::Null).await;
        assert_eq!(check(&f, &app, &laptop["token"]).await["valid"], false);
        let ids = json!(["du_", "du_x.y", phone["session_id"], "123", ""]);
        for wrong in ids.as_array().unwrap() {
            assert_eq!(check(&f, &app, wrong).await["valid"], false, "{wrong}");
        }
    }

    async fn a_block_counts_everywhere_and_outlives_logins(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        let app = worker(&a.web, &["users"]).await;
        let session = open(&a.web, &app, "9", "phone").await;
        assert_eq!(check(&b.web, &app, &session["token"]).await["valid"], true);
        let blocked = a.web.call(&app, "PATCH /api/v1/users/9", json!({ "status": "blocked", "reason": "spam" })).await;
        assert_eq!(blocked.json()["previous_status"], "login", "{}", blocked.text);
        for instance in [&a, &b] {
            let seen = check(&instance.web, &app, &session["token"]).await;
            assert_eq!((&seen["valid"], &seen["block"]["reason"]), (&json!(false), &json!("spam")));
            assert_eq!(seen["capabilities"]["view"], false);
        }
        let again = b.web.call(&app, "POST /api/v1/users/9/sessions", json!({ "device_id": "x" })).await;
        assert_eq!((again.status.as_u16(), again.code().as_str()), (403, "USER_BLOCKED"));
        a.web.call(&app, "PATCH /api/v1/users/9", json!({ "status": "login" })).await;
        assert_eq!(check(&b.web, &app, &session["token"]).await["valid"], true);
        a.stop().await;
        b.stop().await;
    }

    async fn open_streams_end_with_a_block_also_one_that_another_program_wrote(t: TestStore) {
        let (a, b) = (Instance::start(&t.store, "a"), Instance::start(&t.another().await, "b"));
        let app = worker(&a.web, &["users"]).await;
        let watch = async |user: &str| {
            let request = axum::http::Request::get(format!("/api/v1/users/{user}/watch"))
                .header("authorization", format!("Bearer {app}"));
            b.web.listen(request.body(axum::body::Body::empty()).unwrap()).await
        };
        for user in ["api", "plain", "logout"] {
            open(&a.web, &app, user, "phone").await;
        }
        let (mut api, mut plain, mut logout) = (watch("api").await, watch("plain").await, watch("logout").await);
        for stream in [&mut api, &mut plain, &mut logout] {
            assert_eq!(stream.next("status").await.unwrap().1["status"], "login");
        }
        a.web.call(&app, "PATCH /api/v1/users/api", json!({ "status": "blocked" })).await;
        assert_eq!(api.next("ended").await.unwrap().1["reason"], "blocked");
        t.store.clone().hset::<_, _, _, ()>(user_key(&t, "plain"), "status", "blocked").await.unwrap();
        assert_eq!(plain.next("ended").await.unwrap().1["reason"], "blocked");
        a.web.call(&app, "DELETE /api/v1/users/logout/sessions", Value::Null).await;
        assert_eq!(logout.next("ended").await.unwrap().1["reason"], "logged_out");
        for stream in [&mut api, &mut plain, &mut logout] {
            assert!(stream.next("status").await.is_none(), "the stream is over");
        }
        a.stop().await;
        b.stop().await;
    }

    async fn no_request_succeeds_after_the_answer_to_a_logout(t: TestStore) {
        let (a, b) = (fixture(&t.store), fixture(&t.another().await));
        let app = worker(&a, &["users"]).await;
        let session = open(&a, &app, "5", "phone").await;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let requests = (0..1_000).map(|number| {
            let (web, app, token, is_over) = (if number % 2 == 0 { &a } else { &b }, &app, &session["token"], &is_over);
            async move {
                let was_over = is_over.load(std::sync::atomic::Ordering::SeqCst);
                let seen = check(web, app, token).await;
                assert!(!(was_over && seen["valid"] == true), "valid after the logout");
            }
        });
        let logout = async {
            tokio::task::yield_now().await;
            a.call(&app, "DELETE /api/v1/users/5/sessions", Value::Null).await;
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        };
        tokio::join!(futures_util::future::join_all(requests), logout);
        assert_eq!(check(&b, &app, &session["token"]).await["valid"], false);
        let left: i64 = redis::cmd("EXISTS").arg(user_key(&t, "5")).query_async(&mut t.store.clone()).await.unwrap();
        assert_eq!(left, 0, "nothing was revived");
    }

    async fn a_check_charges_policies_in_the_same_call(t: TestStore) {
        let f = fixture(&t.store);
        put_policy(&f, "posts", json!({ "limit": 1, "window_seconds": 60, "algorithm": "fixed" })).await;
        t.store.clone().hset_multiple::<_, _, _, ()>(user_key(&t, "7"), &[("device_id", "x"), ("active", "true")]).await.unwrap();
        let body = json!({ "user_id": "7", "policies": ["posts"] });
        let first = f.admin("POST /api/v1/users/check", body.clone()).await.json();
        assert_eq!((&first["valid"], &first["limits"]["allowed"]), (&json!(true), &json!(true)));
        let second = f.admin("POST /api/v1/users/check", body).await.json();
        assert_eq!((&second["valid"], &second["status"], &second["limits"]["allowed"]), (&json!(false), &json!("login"), &json!(false)));
        let unknown = f.admin("POST /api/v1/users/check", json!({ "user_id": "nobody", "policies": ["posts"] })).await.json();
        assert_eq!((&unknown["valid"], &unknown["limits"]), (&json!(false), &Value::Null));
        for body in [json!({}), json!({ "token": "a", "user_id": "b" })] {
            assert_eq!(f.admin("POST /api/v1/users/check", body).await.status, 400);
        }
    }

    async fn an_erased_user_leaves_no_key_with_their_id(t: TestStore) {
        let a = Instance::start(&t.store, "a");
        put_policy(&a.web, "p", json!({ "limit": 5, "window_seconds": 600, "algorithm": "sliding" })).await;
        open(&a.web, web::testing::ADMIN, "erika-77", "phone").await;
        let inline = json!({ "name": "adhoc", "limit": 3, "window_seconds": 600 });
        for body in [
            json!({ "identity": { "user": "erika-77" }, "policies": ["p"] }),
            json!({ "identity": { "user": "erika-77" }, "policy": inline }),
            json!({ "identity": { "user": "erika-77" }, "policy": { "limit": 3, "window_seconds": 600 } }),
        ] {
            assert_eq!(a.web.admin("POST /api/v1/ratelimit/check", body).await.json()["allowed"], true);
        }
        let charged = json!({ "identity": { "user": "erika-77" }, "policies": ["login_account"] });
        let charged = a.web.admin("POST /api/v1/ratelimit/check", charged).await.json();
        let refund = json!({ "identity": { "user": "erika-77" }, "policies": ["api"],
            "request_id": charged["request_id"], "charged_at": charged["charged_at"] });
        assert_eq!(a.web.admin("POST /api/v1/ratelimit/refund", refund).await.status, 200);
        a.web.admin("PUT /api/v1/ratelimit/p/user/erika-77/block", json!({ "for_ms": 600_000 })).await;
        a.web.admin("PATCH /api/v1/users/erika-77", json!({ "status": "blocked" })).await;
        crate::support::wait_until("the use of the inline policy is counted", async || {
            let stats = a.web.admin("GET /api/v1/ratelimit/stats", Value::Null).await.json();
            stats["items"].as_array().unwrap().iter().any(|one| one["policy"] == "adhoc")
        })
        .await;
        assert_eq!(a.web.admin("DELETE /api/v1/users/erika-77", Value::Null).await.status, 400, "it must be said");
        let gone = a.web.admin("DELETE /api/v1/users/erika-77?erase=true", Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        a.stop().await;
        let mut store = t.store.clone();
        let keys: Vec<String> = redis::cmd("KEYS").arg("ha:*").query_async(&mut store).await.unwrap();
        for key in keys {
            assert!(!key.contains("erika-77"), "{key}");
            let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut store).await.unwrap();
            if kind == "zset" {
                let members: Vec<String> = store.zrange(&key, 0, -1).await.unwrap();
                assert!(!members.iter().any(|member| member.contains("erika-77")), "{key}: {members:?}");
            }
        }
    }

    async fn a_lifted_block_gives_back_the_status_before_it(t: TestStore) {
        let f = fixture(&t.store);
        let admin = web::testing::ADMIN;
        open(&f, admin, "anna", "phone").await;
        let lift = async || f.admin("DELETE /api/v1/users/anna/block", Value::Null).await.json();
        assert_eq!((&lift().await["removed"], &lift().await["status"]), (&json!(false), &Value::Null));
        for status in ["anonymous", "login"] {
            f.admin("PATCH /api/v1/users/anna", json!({ "status": status })).await;
            f.admin("PATCH /api/v1/users/anna", json!({ "status": "blocked", "reason": "spam" })).await;
            let lifted = lift().await;
            assert_eq!((&lifted["removed"], &lifted["status"]), (&json!(true), &json!(status)));
            assert_eq!(f.admin("GET /api/v1/users/anna", Value::Null).await.json()["status"], status);
        }
        let trail = f.trail().await;
        assert!(trail.iter().any(|entry| entry["action"] == "user.unblock" && entry["target"] == "anna"), "{trail:?}");
    }

    async fn users_are_listed_and_found(t: TestStore) {
        let f = fixture(&t.store);
        for user in ["anna", "bert", "annabel"] {
            open(&f, web::testing::ADMIN, user, "phone").await;
        }
        let ids = |page: Value| -> Vec<String> {
            let mut ids: Vec<String> = page["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids(f.admin("GET /api/v1/users", Value::Null).await.json()), ["anna", "annabel", "bert"]);
        assert_eq!(ids(f.admin("GET /api/v1/users?text=anna", Value::Null).await.json()), ["anna", "annabel"]);
        assert_eq!(f.admin("GET /api/v1/users/nobody", Value::Null).await.code(), "USER_NOT_FOUND");
        let wrong = f.admin("PATCH /api/v1/users/anna", json!({ "status": "login", "reason": "x" })).await;
        assert_eq!((wrong.status.as_u16(), &wrong.json()["error"]["details"]["field"]), (400, &json!("reason")));
    }
}
