use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use web::auth::{Role, Secret};

use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn a_token_is_shown_once_works_and_can_be_revoked(t: TestStore) {
        let f = Fixture::new(&t);
        let made = f.admin("POST /api/v1/tokens", json!({"name": "on call", "role": "operator"})).await;
        assert_eq!(made.status, StatusCode::CREATED);
        let secret = made.json()["secret"].as_str().unwrap().to_owned();
        let id = made.json()["token"]["id"].as_str().unwrap().to_owned();
        assert!(secret.starts_with("tg_operator_") && secret.len() > 50, "{secret}");

        let me = f.call(&secret, "GET /api/v1/me", Value::Null).await.json();
        assert_eq!(me["name"], "on call");
        let list = f.admin("GET /api/v1/tokens", Value::Null).await;
        assert!(!list.text.contains(&secret), "the list must not show secrets");
        let ids: Vec<Value> = list.json()["items"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
        assert!(ids.contains(&json!(id)), "{ids:?}");

        assert_eq!(f.admin(&format!("DELETE /api/v1/tokens/{id}"), Value::Null).await.status, StatusCode::OK);
        assert_eq!(f.call(&secret, "GET /api/v1/me", Value::Null).await.status, StatusCode::UNAUTHORIZED);
        assert_eq!(f.admin(&format!("DELETE /api/v1/tokens/{id}"), Value::Null).await.status, StatusCode::NOT_FOUND);
    }

    async fn a_role_opens_its_own_routes_and_no_others(t: TestStore) {
        let f = Fixture::new(&t);
        for (role, me, work, tokens) in [
            (Role::Worker, 403, 200, 403),
            (Role::Viewer, 200, 403, 403),
            (Role::Operator, 200, 200, 403),
            (Role::Admin, 200, 200, 200),
        ] {
            let token = f.token(role).await;
            for (path, expect) in
                [("/api/v1/me", me), ("/api/v1/worker/me", work), ("/api/v1/tokens", tokens)]
            {
                let got = f.call(&token, &format!("GET {path}"), Value::Null).await;
                assert_eq!(got.status.as_u16(), expect, "{role} {path}");
            }
        }
    }

    async fn a_bad_token_request_changes_nothing(t: TestStore) {
        let f = Fixture::new(&t);
        for body in [
            json!({}),
            json!({"name": "", "role": "viewer"}),
            json!({"name": "x\u{7}", "role": "viewer"}),
            json!({"name": "x".repeat(65), "role": "viewer"}),
            json!({"name": "x", "role": "king"}),
            json!({"name": "x", "role": "viewer", "scopes": ["jobs:type=a"]}),
            json!({"name": "x", "role": "worker", "scopes": ["banana"]}),
            json!({"name": "x", "role": "viewer", "more": 1}),
        ] {
            let got = f.admin("POST /api/v1/tokens", body.clone()).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{body}");
            assert_eq!(got.code(), "INVALID_REQUEST");
        }
        let list = f.admin("GET /api/v1/tokens", Value::Null).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "the admin token: {list}");
    }

    async fn a_session_cookie_cannot_be_used_from_another_site(t: TestStore) {
        let f = Fixture::new(&t);
        let cookie = f.app.auth().open_session(f.app.store(), ADMIN, &f.app.settings()).await.unwrap();
        let send = async |headers: &[(&str, &str)]| {
            let mut request = Request::builder()
                .method("POST")
                .uri("/api/v1/tokens")
                .header("host", "gate.example")
                .header("cookie", format!("other=1; tidegate_session={cookie}"))
                .header("content-type", "application/json");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let body = json!({"name": "x", "role": "viewer"}).to_string();
            f.send(request.body(Body::from(body)).unwrap()).await.status.as_u16()
        };
        assert_eq!(send(&[("sec-fetch-site", "same-origin")]).await, 201);
        assert_eq!(send(&[("sec-fetch-site", "none")]).await, 201);
        assert_eq!(send(&[("origin", "https://gate.example")]).await, 201);
        assert_eq!(send(&[]).await, 403);
        assert_eq!(send(&[("sec-fetch-site", "same-site")]).await, 403);
        assert_eq!(send(&[("sec-fetch-site", "cross-site")]).await, 403);
        assert_eq!(send(&[("sec-fetch-site", "cross-site"), ("origin", "https://gate.example")]).await, 403);
        assert_eq!(send(&[("origin", "https://evil.example")]).await, 403);
        assert_eq!(send(&[("origin", "null")]).await, 403);
        assert_eq!(send(&[("origin", "https://gate.example.evil")]).await, 403);
    }

    async fn a_session_ends_when_it_idles_and_when_its_token_goes(t: TestStore) {
        let f = Fixture::new(&t);
        let token = f.token(Role::Viewer).await;
        let open = async || f.app.auth().open_session(f.app.store(), &token, &f.app.settings()).await.unwrap();
        let status = async |cookie: &str| {
            let request = Request::get("/api/v1/me")
                .header("cookie", format!("tidegate_session={cookie}"))
                .body(Body::empty())
                .unwrap();
            f.send(request).await.status.as_u16()
        };
        let first = open().await;
        t.clock.advance(std::time::Duration::from_secs(7 * 3600));
        assert_eq!(status(&first).await, 200);
        let second = open().await;
        t.clock.advance(std::time::Duration::from_secs(9 * 3600));
        assert_eq!(status(&second).await, 401, "idle too long");

        let third = open().await;
        assert_eq!(status(&third).await, 200);
        let id = f.app.auth().tokens(f.app.store()).await.unwrap()[0].id.clone();
        f.app.auth().revoke_token(f.app.store(), &id).await.unwrap();
        assert_eq!(status(&third).await, 401, "its token is gone");
        assert_eq!(status("made-up").await, 401);
    }

    async fn the_first_admin_token_ends_everywhere_when_it_is_revoked(t: TestStore) {
        let one = Fixture::new(&t);
        let two = Fixture::on(t.another().await, web::Settings::default(), Vec::new());
        let other = one.token(Role::Admin).await;
        assert_eq!(two.admin("GET /api/v1/tokens", Value::Null).await.status, StatusCode::OK);
        let tokens = one.admin("GET /api/v1/tokens", Value::Null).await.json();
        let first = tokens["items"].as_array().unwrap().iter().find(|token| token["created_by"] == "first start");
        let id = first.unwrap()["id"].as_str().unwrap().to_owned();
        let gone = one.call(&other, &format!("DELETE /api/v1/tokens/{id}"), Value::Null).await;
        assert_eq!(gone.status, StatusCode::OK, "{}", gone.text);
        assert_eq!(one.admin("GET /api/v1/me", Value::Null).await.status, StatusCode::UNAUTHORIZED);
        let since = std::time::Instant::now();
        testkit::until("it has ended at the other instance", async || {
            let got = two.admin("POST /api/v1/tokens", json!({"name": "mine", "role": "admin"})).await;
            (got.status == StatusCode::UNAUTHORIZED).then_some(())
        })
        .await;
        assert!(since.elapsed() < std::time::Duration::from_secs(1), "{:?}", since.elapsed());
        // An instance that starts with it does not add it again, nor trust it while the store is away.
        let three = Fixture::on(t.another().await, web::Settings::default(), Vec::new());
        assert!(!three.app.auth().share_admin_token(three.app.store()).await.unwrap());
        assert_eq!(three.admin("GET /api/v1/me", Value::Null).await.status, StatusCode::UNAUTHORIZED);
        // A new one in its place works everywhere.
        let new = Secret::generate(Role::Admin).unwrap();
        assert!(three.app.auth().replace_admin_token(three.app.store(), &new).await.unwrap());
        for f in [&one, &two, &three] {
            assert_eq!(f.call(new.reveal(), "GET /api/v1/tokens", Value::Null).await.status, StatusCode::OK);
            assert_eq!(f.admin("GET /api/v1/me", Value::Null).await.status, StatusCode::UNAUTHORIZED);
        }
    }
}
