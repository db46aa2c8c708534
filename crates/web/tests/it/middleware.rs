use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn every_error_has_the_envelope_and_the_requests_id(t: TestStore) {
        let f = Fixture::new(&t);
        for (token, what, body, status, code) in [
            ("", "GET /nowhere", Value::Null, 404, "NOT_FOUND"),
            ("", "GET /api/v1/nowhere", Value::Null, 404, "NOT_FOUND"),
            ("", "PUT /livez", Value::Null, 405, "METHOD_NOT_ALLOWED"),
            ("", "GET /api/v1/me", Value::Null, 401, "UNAUTHORIZED"),
            ("wrong", "GET /api/v1/me", Value::Null, 401, "UNAUTHORIZED"),
            (ADMIN, "POST /api/v1/tokens", json!([]), 400, "INVALID_REQUEST"),
            (ADMIN, "DELETE /api/v1/tokens/x", Value::Null, 404, "NOT_FOUND"),
        ] {
            let got = f.call(token, what, body).await;
            assert_eq!(got.status.as_u16(), status, "{what}");
            assert_eq!(got.header("content-type"), "application/json", "{what}");
            let json = got.json();
            assert_eq!(json["error"]["code"], code, "{what}");
            assert!(json["error"]["message"].as_str().unwrap().len() > 5);
            assert!(json["error"]["details"].is_object());
            assert_eq!(json["request_id"], got.header("x-request-id"));
            assert_eq!(got.header("x-request-id").len(), 32);
        }
    }

    async fn a_body_that_is_not_json_by_its_type_is_refused(t: TestStore) {
        let f = Fixture::new(&t);
        let request = Request::post("/api/v1/tokens")
            .header("authorization", format!("Bearer {ADMIN}"))
            .header("content-type", "text/plain")
            .body(Body::from(r#"{"name":"a","role":"viewer"}"#))
            .unwrap();
        assert_eq!(f.send(request).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    async fn a_large_body_is_refused_however_it_is_sent(t: TestStore) {
        let f = Fixture::with(&t, web::Settings { max_body: 1000, ..web::Settings::default() });
        let post = || {
            Request::post("/api/v1/tokens")
                .header("authorization", format!("Bearer {ADMIN}"))
                .header("content-type", "application/json")
        };
        let told = f.send(post().body(Body::from(vec![b' '; 1001])).unwrap()).await;
        assert_eq!(told.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(told.code(), "BODY_TOO_LARGE");
        let chunks = futures_util::stream::iter(
            std::iter::repeat_n(Ok::<_, Infallible>(Bytes::from_static(&[b' '; 100])), 100));
        let untold = f.send(post().body(Body::from_stream(chunks)).unwrap()).await;
        assert_eq!(untold.status, StatusCode::PAYLOAD_TOO_LARGE);
        let fits = f.send(post().body(Body::from(vec![b' '; 1000])).unwrap()).await;
        assert_eq!(fits.status, StatusCode::BAD_REQUEST, "read whole, and found not to be JSON");
    }

    async fn a_body_that_never_ends_is_given_up(t: TestStore) {
        let settings =
            web::Settings { body_timeout: Duration::from_millis(20), ..web::Settings::default() };
        let f = Fixture::with(&t, settings);
        let never = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let request = Request::post("/api/v1/tokens")
            .header("authorization", format!("Bearer {ADMIN}"))
            .header("content-type", "application/json")
            .body(Body::from_stream(never))
            .unwrap();
        let got = f.send(request).await;
        assert_eq!(got.status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(got.code(), "BODY_TOO_SLOW");
    }

    async fn answers_carry_the_headers_that_keep_browsers_safe(t: TestStore) {
        let f = Fixture::new(&t);
        let got = f.get("/livez").await;
        assert_eq!(got.header("content-security-policy"), "default-src 'none'; frame-ancestors 'none'");
        assert_eq!(got.header("x-content-type-options"), "nosniff");
        assert_eq!(got.header("referrer-policy"), "no-referrer");
        assert_eq!(got.header("strict-transport-security"), "", "only over TLS");
    }

    async fn a_request_id_is_always_made_here(t: TestStore) {
        let asked = |name: &str| Request::get("/livez").header("x-request-id", name).body(Body::empty()).unwrap();
        let trusted = web::Settings {
            trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
            ..web::Settings::default()
        };
        for settings in [web::Settings::default(), trusted] {
            let f = Fixture::with(&t, settings);
            let mut seen = Vec::new();
            for given in ["constant", "constant", "with space"] {
                let id = f.send(asked(given)).await.header("x-request-id").to_owned();
                assert!(id.len() == 32 && !seen.contains(&id), "{id}");
                seen.push(id);
            }
        }
    }
}
