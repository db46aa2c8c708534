use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use store::redis::{self, AsyncCommands as _};
use web::auth::Role;
use web::testing::{ADMIN, Fixture};

const CREATE: &str = "POST /api/v1/tokens";

fn token(name: &str) -> Value {
    json!({"name": name, "role": "viewer"})
}

async fn count(f: &Fixture) -> usize {
    f.admin("GET /api/v1/tokens", Value::Null).await.json()["items"].as_array().unwrap().len()
}

/// The one record there is: its key and content.
async fn record(f: &Fixture) -> (String, Value) {
    let mut data = f.app.store().clone();
    let (_, found): (u64, Vec<String>) = redis::cmd("SCAN")
        .arg(0)
        .arg("MATCH")
        .arg("tidegate:idempotency:*")
        .arg("COUNT")
        .arg(1_000)
        .query_async(&mut data)
        .await
        .unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let text: String = data.get(&found[0]).await.unwrap();
    (found[0].clone(), serde_json::from_str(&text).unwrap())
}

testkit::each_store! {
    async fn a_repeated_request_gets_the_first_response_and_makes_nothing(t: TestStore) {
        let f = Fixture::new(&t);
        let before = count(&f).await;
        let first = f.keyed("k1", CREATE, token("a")).await;
        assert_eq!(first.status, StatusCode::CREATED);
        assert_eq!(first.header("idempotent-replayed"), "");
        let again = f.keyed("k1", CREATE, token("a")).await;
        assert_eq!(again.status, StatusCode::CREATED);
        assert_eq!(again.text, first.text, "the secret too");
        assert_eq!(again.header("idempotent-replayed"), "true");
        assert_eq!(again.header("content-type"), first.header("content-type"));
        assert_eq!(count(&f).await, before + 1);
        let made = f.trail().await.iter().filter(|entry| entry["action"] == "token.create").count();
        assert_eq!(made, 1, "a repetition changes nothing, so it has no entry");
        let other = f.keyed("k2", CREATE, token("a")).await;
        assert_ne!(other.text, first.text);
        assert_eq!(count(&f).await, before + 2);
    }

    async fn another_request_under_the_same_key_is_refused(t: TestStore) {
        let f = Fixture::new(&t);
        assert_eq!(f.keyed("k1", CREATE, token("a")).await.status, StatusCode::CREATED);
        let other = f.keyed("k1", CREATE, token("b")).await;
        assert_eq!((other.status, other.code().as_str()), (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_REUSED"));
    }

    async fn a_refused_request_leaves_its_key_free(t: TestStore) {
        let f = Fixture::new(&t);
        assert_eq!(f.keyed("k1", CREATE, token("")).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(f.keyed("k1", CREATE, token("a")).await.status, StatusCode::CREATED);
    }

    async fn a_key_belongs_to_the_credential_it_was_sent_with(t: TestStore) {
        let f = Fixture::new(&t);
        let first = f.keyed("k1", CREATE, token("a")).await;
        let second = f.token(Role::Admin).await;
        let request = Request::post("/api/v1/tokens")
            .header("authorization", format!("Bearer {second}"))
            .header("content-type", "application/json")
            .header("idempotency-key", "k1");
        let other = f.send(request.body(Body::from(token("a").to_string())).unwrap()).await;
        assert_eq!(other.status, StatusCode::CREATED);
        assert_ne!(other.text, first.text);
    }

    async fn the_store_holds_neither_the_response_nor_the_key_to_it(t: TestStore) {
        let f = Fixture::new(&t);
        let made = f.keyed("k1", CREATE, token("a")).await.json();
        let (name, record) = record(&f).await;
        let secret = made["secret"].as_str().unwrap();
        let sealed = record["response"][1].as_array().unwrap().iter();
        let sealed: Vec<u8> = sealed.map(|byte| byte.as_u64().unwrap() as u8).collect();
        for hidden in [secret, ADMIN, "secret"] {
            assert!(!record.to_string().contains(hidden) && !name.contains(hidden), "{hidden}");
            let found = sealed.windows(hidden.len()).any(|part| part == hidden.as_bytes());
            assert!(!found, "{hidden}");
        }
    }

    async fn a_request_that_was_cut_off_is_not_made_again(t: TestStore) {
        let f = Fixture::new(&t);
        assert_eq!(f.keyed("k1", CREATE, token("a")).await.status, StatusCode::CREATED);
        let before = count(&f).await;
        // As a crash leaves it: reserved, and without a response.
        let (name, mut record) = record(&f).await;
        record["response"] = Value::Null;
        let mut data = f.app.store().clone();
        let _: () = data.set(&name, record.to_string()).await.unwrap();
        let again = f.keyed("k1", CREATE, token("a")).await;
        assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_IN_USE"));
        assert_eq!(again.header("retry-after"), "1");
        record["started_ms"] = json!(0);
        let _: () = data.set(&name, record.to_string()).await.unwrap();
        let again = f.keyed("k1", CREATE, token("a")).await;
        assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "OUTCOME_UNKNOWN"));
        assert_eq!(count(&f).await, before);
    }

    async fn requests_at_the_same_moment_make_one(t: TestStore) {
        let f = Fixture::new(&t);
        let before = count(&f).await;
        let all = futures_util::future::join_all((0..8).map(|_| f.keyed("k1", CREATE, token("a")))).await;
        for answer in &all {
            let code = if answer.status == StatusCode::CREATED { String::new() } else { answer.code() };
            assert!(code.is_empty() || code == "IDEMPOTENCY_KEY_IN_USE", "{}", answer.text);
        }
        assert!(all.iter().any(|answer| answer.status == StatusCode::CREATED));
        assert_eq!(count(&f).await, before + 1);
    }

    async fn a_key_that_is_none_is_refused_by_name(t: TestStore) {
        let f = Fixture::new(&t);
        for key in ["", &"x".repeat(201)] {
            let got = f.keyed(key, CREATE, token("a")).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST);
            assert_eq!(got.json()["error"]["details"]["field"], "Idempotency-Key");
        }
    }
}
