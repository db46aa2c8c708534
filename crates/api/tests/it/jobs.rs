//! The job queue over HTTP.

use api::auth::{NewToken, Role};
use api::{Services, Settings};
use axum::http::StatusCode;
use serde_json::{Value, json};
use testkit::TestStore;

use crate::fixture::Fixture;

fn fixture(t: &TestStore) -> Fixture {
    let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
    let services = Services { jobs: Some(jobs), ..Services::default() };
    Fixture::running(t, Settings::default(), services)
}

async fn dispatch(f: &Fixture, body: Value) -> String {
    let made = f.admin("POST /api/v1/jobs", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    made.json()["id"].as_str().unwrap().to_owned()
}

/// Claims one job, which must be there.
async fn claim(f: &Fixture, token: &str) -> Value {
    let got = f.call(token, "POST /api/v1/jobs/claim", json!({ "worker": "w1" })).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.text);
    let leases = got.json()["leases"].clone();
    assert_eq!(leases.as_array().unwrap().len(), 1, "{}", got.text);
    leases[0].clone()
}

testkit::each_store! {
    async fn a_job_is_dispatched_claimed_renewed_and_completed(t: TestStore) {
        let f = fixture(&t);
        let worker = f.token(Role::Worker).await;
        let id = dispatch(&f, json!({ "type": "mail", "payload": { "to": "ann" }, "priority": 8 })).await;
        let early = f.call(&worker, &format!("GET /api/v1/jobs/{id}/wait?wait_ms=1"), Value::Null).await;
        assert_eq!((early.status, &early.json()["status"]), (StatusCode::ACCEPTED, &json!("waiting")));
        let lease = claim(&f, &worker).await;
        assert_eq!(lease["job"]["payload"], json!({ "to": "ann" }));
        assert_eq!((&lease["job"]["id"], &lease["attempt"]), (&json!(id), &json!(1)));
        let held = |more: Value| {
            let mut body = json!({ "worker": "w1", "token": lease["token"] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let renewed = f.call(&worker, &format!("POST /api/v1/jobs/{id}/renew"), held(json!({ "lease_ms": 90_000 }))).await;
        assert_eq!(renewed.status, StatusCode::OK, "{}", renewed.text);
        assert!(renewed.json()["until_ms"].as_i64() > lease["until_ms"].as_i64());
        assert_eq!(renewed.json()["cancelled"], false);
        let told = f.call(&worker, &format!("POST /api/v1/jobs/{id}/progress"), held(json!({ "percent": 40 }))).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.text);
        let seen = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json();
        assert_eq!((&seen["status"], &seen["worker"]), (&json!("active"), &json!("w1")));
        assert_eq!(seen["progress"]["percent"], 40.0);

        let stranger = json!({ "worker": "w2", "token": lease["token"] });
        for act in ["renew", "complete"] {
            let refused = f.call(&worker, &format!("POST /api/v1/jobs/{id}/{act}"), stranger.clone()).await;
            assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "LEASE_LOST"));
        }
        let done = f.call(&worker, &format!("POST /api/v1/jobs/{id}/complete"), held(json!({ "result": [1, 2], "took_ms": 7 }))).await;
        assert_eq!((done.status, &done.json()["outcome"]), (StatusCode::OK, &json!("completed")), "{}", done.text);
        let end = f.call(&worker, &format!("GET /api/v1/jobs/{id}/wait"), Value::Null).await;
        assert_eq!((end.status, &end.json()["result"]["data"]), (StatusCode::OK, &json!([1, 2])));
        let stats = f.admin("GET /api/v1/jobs/stats", Value::Null).await.json();
        assert_eq!((&stats["processed"], &stats["active"], &stats["workers"]), (&json!(1), &json!(0), &json!(1)));
    }

    async fn a_failed_job_is_retried_then_dead_then_replayed(t: TestStore) {
        let f = fixture(&t);
        let id = dispatch(&f, json!({ "type": "mail", "retry": { "attempts": 1, "backoff": "fixed", "delay_ms": 0 } })).await;
        for outcome in ["retry", "dead"] {
            let lease = claim(&f, crate::fixture::ADMIN).await;
            let body = json!({ "worker": "w1", "token": lease["token"], "error": { "name": "Odd", "message": "no" } });
            let failed = f.admin(&format!("POST /api/v1/jobs/{id}/fail"), body).await;
            assert_eq!((failed.status, &failed.json()["outcome"]), (StatusCode::OK, &json!(outcome)), "{}", failed.text);
        }
        let dead = f.admin("GET /api/v1/jobs/dead", Value::Null).await.json();
        assert_eq!((&dead["jobs"][0]["id"], &dead["jobs"][0]["result"]["error"]["name"]), (&json!(id), &json!("Odd")));
        let history = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json()["history"].clone();
        assert_eq!(history.as_array().unwrap().len(), 2);
        let again = f.admin(&format!("POST /api/v1/jobs/{id}/replay"), Value::Null).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        let twice = f.admin(&format!("POST /api/v1/jobs/{id}/replay"), Value::Null).await;
        assert_eq!((twice.status, twice.code().as_str()), (StatusCode::CONFLICT, "JOB_STATE"));
        let list = f.admin("GET /api/v1/jobs?state=waiting", Value::Null).await.json();
        assert_eq!(list["jobs"][0]["id"], json!(id));
        let ended = f.admin(&format!("POST /api/v1/jobs/{id}/cancel"), json!({ "reason": "enough" })).await;
        assert_eq!(ended.json()["outcome"], "ended", "{}", ended.text);
    }

    async fn a_claim_waits_for_a_job(t: TestStore) {
        let f = fixture(&t);
        let body = json!({ "worker": "w1", "types": ["mail"], "wait_ms": 20_000 });
        let (got, ()) = tokio::join!(f.admin("POST /api/v1/jobs/claim", body), async {
            // Not before the worker is there, so that it is the wait that finds the job.
            let workers = async || f.admin("GET /api/v1/jobs/workers", Value::Null).await.json();
            while workers().await["workers"].as_array().unwrap().is_empty() {}
            dispatch(&f, json!({ "type": "other" })).await;
            dispatch(&f, json!({ "type": "mail" })).await;
        });
        assert_eq!(got.json()["leases"][0]["job"]["type"], "mail", "{}", got.text);
    }

    async fn paused_types_and_schedules_wait(t: TestStore) {
        let f = fixture(&t);
        dispatch(&f, json!({ "type": "mail" })).await;
        assert_eq!(f.admin("POST /api/v1/jobs/types/mail/pause", Value::Null).await.status, StatusCode::OK);
        let none = f.admin("POST /api/v1/jobs/claim", json!({ "worker": "w1" })).await;
        assert_eq!(none.json()["leases"], json!([]));
        assert_eq!(f.admin("POST /api/v1/jobs/types/mail/resume", Value::Null).await.status, StatusCode::OK);
        claim(&f, crate::fixture::ADMIN).await;

        let nightly = "/api/v1/jobs/schedules/nightly";
        let body = json!({ "type": "clean", "cron": "30 3 * * *", "timezone": "Europe/Berlin" });
        assert_eq!(f.admin(&format!("PUT {nightly}"), body.clone()).await.json()["outcome"], "stored");
        assert_eq!(f.admin(&format!("PUT {nightly}"), body).await.json()["outcome"], "changed");
        assert_eq!(f.admin(&format!("POST {nightly}/pause"), Value::Null).await.status, StatusCode::OK);
        let list = f.admin("GET /api/v1/jobs/schedules", Value::Null).await.json();
        assert_eq!((&list["schedules"][0]["job"]["id"], &list["schedules"][0]["paused"]), (&json!("nightly"), &json!(true)));
        assert_eq!(f.admin(&format!("POST {nightly}/resume"), Value::Null).await.status, StatusCode::OK);
        assert_eq!(f.admin(&format!("DELETE {nightly}"), Value::Null).await.status, StatusCode::OK);
        assert_eq!(f.admin(&format!("DELETE {nightly}"), Value::Null).await.code(), "JOB_NOT_FOUND");
    }

    async fn tokens_reach_what_they_are_for(t: TestStore) {
        let f = fixture(&t);
        let new = NewToken { name: "mailer".into(), role: Role::Worker, scopes: vec!["jobs:type=mail".into()] };
        let (_, secret) = f.app.auth().create_token(f.app.store(), new, "the test").await.unwrap();
        let mailer = secret.reveal();
        let other = dispatch(&f, json!({ "type": "other" })).await;
        let none = f.call(mailer, "POST /api/v1/jobs/claim", json!({ "worker": "w1" })).await;
        assert_eq!((none.status, &none.json()["leases"]), (StatusCode::OK, &json!([])));
        for (what, body) in [
            ("POST /api/v1/jobs".to_owned(), json!({ "type": "other" })),
            ("POST /api/v1/jobs/claim".to_owned(), json!({ "worker": "w1", "types": ["other"] })),
            (format!("POST /api/v1/jobs/{other}/complete"), json!({ "worker": "w1", "token": 1 })),
            (format!("GET /api/v1/jobs/{other}/wait?wait_ms=0"), Value::Null),
            (format!("GET /api/v1/jobs/{other}"), Value::Null),
            (format!("POST /api/v1/jobs/{other}/cancel"), Value::Null),
        ] {
            assert_eq!(f.call(mailer, &what, body).await.status, StatusCode::FORBIDDEN, "{what}");
        }
        let mixed = json!({ "jobs": [{ "type": "mail" }, { "type": "other" }, { "type": "mail", "priority": 11 }] });
        let bulk = f.call(mailer, "POST /api/v1/jobs/bulk", mixed).await.json();
        let codes: Vec<_> = bulk["outcomes"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect();
        assert_eq!(codes, [Value::Null, json!("FORBIDDEN"), json!("INVALID_REQUEST")]);
        let viewer = f.token(Role::Viewer).await;
        let refused = f.call(&viewer, "POST /api/v1/jobs", json!({ "type": "mail" })).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
    }

    async fn bad_calls_get_clear_errors(t: TestStore) {
        let f = fixture(&t);
        for (what, body, status, code) in [
            ("POST /api/v1/jobs", json!({}), 400, "INVALID_REQUEST"),
            ("POST /api/v1/jobs", json!({ "type": "mail", "cron": "* * * * *" }), 400, "INVALID_REQUEST"),
            ("POST /api/v1/jobs", json!({ "type": "mail", "run_at_ms": -1 }), 400, "INVALID_REQUEST"),
            ("POST /api/v1/jobs/claim", json!({ "worker": "w1", "lease_ms": 1 }), 400, "INVALID_REQUEST"),
            ("GET /api/v1/jobs?state=odd", Value::Null, 400, "INVALID_REQUEST"),
            ("GET /api/v1/jobs/none", Value::Null, 404, "JOB_NOT_FOUND"),
            ("GET /api/v1/jobs/none/wait", Value::Null, 404, "JOB_NOT_FOUND"),
            ("POST /api/v1/jobs/none/cancel", Value::Null, 404, "JOB_NOT_FOUND"),
            ("POST /api/v1/jobs/none/complete", json!({ "worker": "w1", "token": 1 }), 404, "JOB_NOT_FOUND"),
        ] {
            let got = f.admin(what, body).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (status, code), "{what}: {}", got.text);
        }
        let off = Fixture::new(&t);
        assert_eq!(off.admin("GET /api/v1/jobs/stats", Value::Null).await.code(), "SERVICE_OFF");
    }
}
