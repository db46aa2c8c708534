//! Credentials of calls that last.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jobs_web::JobsService;
use serde_json::{Value, json};
use web::auth::Role;
use web::testing::{ADMIN, Fixture};

testkit::each_store! {
    async fn a_claim_by_a_person_is_announced_before_it_is_made(t: TestStore) {
        use store::redis::AsyncCommands;
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        let f = Fixture::running(&t, web::Settings::default(), vec![JobsService::on(jobs, "test")]);
        let body = json!({ "worker_id": "w", "types": ["mail"], "wait_ms": 30_000 });
        let announced = async {
            let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
            loop {
                let pending: Vec<String> = t.store.clone().hvals("tidegate:audit-pending").await.unwrap();
                if pending.iter().any(|entry| entry.contains("job.claim")) {
                    break;
                }
                assert!(tokio::time::Instant::now() < deadline, "{pending:?}");
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            assert!(f.trail().await.iter().all(|entry| entry["action"] != "job.claim"), "nothing is claimed yet");
            f.admin("POST /api/v1/jobs", json!({ "type": "mail" })).await.json()["id"].clone()
        };
        let (claimed, id) = tokio::join!(f.admin("POST /api/v1/jobs/claim", body), announced);
        assert_eq!(claimed.json()["items"].as_array().unwrap().len(), 1, "{}", claimed.text);
        let trail = f.trail().await;
        let entry = trail.iter().find(|entry| entry["action"] == "job.claim").unwrap();
        assert_eq!((&entry["target"], &entry["outcome"]), (&id, &json!("ok")));
        // One that comes to nothing leaves nothing behind.
        f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": "w" })).await;
        assert_eq!(f.trail().await.iter().filter(|entry| entry["action"] == "job.claim").count(), 1);
        let pending: Vec<String> = t.store.clone().hvals("tidegate:audit-pending").await.unwrap();
        assert_eq!(pending, Vec::<String>::new());
        // And without a trail nothing is claimed.
        f.admin("POST /api/v1/jobs", json!({ "type": "mail" })).await;
        let _: () = t.store.clone().set("tidegate:audit-pending", "x").await.unwrap();
        let refused = f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": "w" })).await;
        assert!(refused.status.is_server_error(), "{}", refused.text);
        let _: i64 = t.store.clone().del("tidegate:audit-pending").await.unwrap();
        let claimed = f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": "w" })).await;
        assert_eq!(claimed.json()["items"].as_array().unwrap().len(), 1, "it was not taken: {}", claimed.text);
    }

    async fn a_scope_that_means_nothing_is_refused(t: TestStore) {
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        let f = Fixture::running(&t, web::Settings::default(), vec![JobsService::on(jobs, "test")]);
        for scopes in [
            json!(["jobs:typ=mail"]),
            json!(["jobs:queue=mail"]),
            json!(["jobs:type="]),
            json!(["jobs:type=mail", "jobs:type=a b"]),
            json!(["jobs:namespace=a b"]),
        ] {
            let body = json!({ "name": "x", "role": "worker", "scopes": scopes });
            let got = f.admin("POST /api/v1/tokens", body.clone()).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (400, "INVALID_REQUEST"), "{body}");
        }
        let list = f.admin("GET /api/v1/tokens", Value::Null).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "the admin token: {list}");
        let typo = json!({"name": "x", "role": "worker", "scopes": ["jobs:typ=mail"]});
        let told = f.admin("POST /api/v1/tokens", typo).await.text;
        assert!(told.contains("jobs:type=NAME") && told.contains("jobs:namespace=NAME"), "{told}");
    }

    async fn streams_and_long_polls_end_with_their_credential(t: TestStore) {
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        let services = vec![JobsService::on(jobs, "test")];
        let one = Fixture::running(&t, web::Settings::default(), services.clone());
        let two = Fixture::on(t.another().await, web::Settings::default(), services);
        let token = one.token(Role::Operator).await;
        let cookie = two.app.auth().open_session(two.app.store(), &token, &two.app.settings()).await.unwrap();
        let other = two.app.auth().open_session(two.app.store(), ADMIN, &two.app.settings()).await.unwrap();
        let get = |path: &str, name: &str, value: String| Request::get(path).header(name, value).body(Body::empty()).unwrap();
        let mut bearer = two.listen(get("/api/v1/jobs/events", "authorization", format!("Bearer {token}"))).await;
        let mut session = two.listen(get("/api/v1/live?topics=overview", "cookie", format!("tidegate_session={cookie}"))).await;
        let mut unharmed = two.listen(get("/api/v1/live?topics=overview", "cookie", format!("tidegate_session={other}"))).await;
        assert!(bearer.status.is_success() && session.status.is_success());
        let id = one.admin("POST /api/v1/jobs", json!({"type": "mail"})).await.json()["id"].as_str().unwrap().to_owned();
        let revoke = async {
            let tokens = one.app.auth().tokens(one.app.store()).await.unwrap();
            let found = tokens.iter().find(|token| token.role == Role::Operator).unwrap();
            one.app.auth().revoke_token(one.app.store(), &found.id).await.unwrap();
            std::time::Instant::now()
        };
        let path = format!("GET /api/v1/jobs/{id}/wait?wait_ms=30000");
        let wait = two.call(&token, &path, Value::Null);
        let claim = two.call(&token, "POST /api/v1/jobs/claim", json!({"worker_id": "w", "types": ["none"], "wait_ms": 30000}));
        let (waited, claimed, since) = tokio::join!(wait, claim, revoke);
        assert_eq!(waited.status, StatusCode::UNAUTHORIZED);
        assert_eq!(claimed.status, StatusCode::UNAUTHORIZED);
        assert!(bearer.next("never").await.is_none(), "the stream has ended");
        assert!(session.next("never").await.is_none(), "the session's, too");
        assert!(since.elapsed() < std::time::Duration::from_secs(1), "{:?}", since.elapsed());
        // Logging out ends the streams of that session.
        unharmed.next("part").await.expect("another session's goes on");
        one.app.auth().close_session(one.app.store(), &other).await.unwrap();
        assert!(unharmed.next("never").await.is_none());
    }
}
