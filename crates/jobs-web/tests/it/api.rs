//! The job queue over HTTP.

use axum::http::StatusCode;
use jobs_web::JobsService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;
use web::auth::{NewToken, Role};

use web::testing::Fixture;

fn fixture(t: &TestStore) -> Fixture {
    let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
    let services = vec![JobsService::on(jobs, "test")];
    Fixture::running(t, Settings::default(), services)
}

async fn dispatch(f: &Fixture, body: Value) -> String {
    let made = f.admin("POST /api/v1/jobs", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    made.json()["id"].as_str().unwrap().to_owned()
}

/// Claims one job, which must be there.
async fn claim(f: &Fixture, token: &str) -> Value {
    let got = f.call(token, "POST /api/v1/jobs/claim", json!({ "worker_id": "w1" })).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.text);
    let leases = got.json()["items"].clone();
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
            let mut body = json!({ "worker_id": "w1", "token": lease["token"] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let renewed = f.call(&worker, &format!("POST /api/v1/jobs/{id}/renew"), held(json!({ "lease_ms": 90_000 }))).await;
        assert_eq!(renewed.status, StatusCode::OK, "{}", renewed.text);
        assert!(renewed.json()["expires_at"].as_str() > lease["expires_at"].as_str());
        assert_eq!(renewed.json()["cancelled"], false);
        let told = f.call(&worker, &format!("POST /api/v1/jobs/{id}/progress"), held(json!({ "percent": 40 }))).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.text);
        let seen = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json();
        assert_eq!((&seen["status"], &seen["worker_id"]), (&json!("active"), &json!("w1")));
        assert_eq!(seen["progress"]["percent"], 40.0);

        let stranger = json!({ "worker_id": "w2", "token": lease["token"] });
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
            let lease = claim(&f, web::testing::ADMIN).await;
            let body = json!({ "worker_id": "w1", "token": lease["token"], "error": { "name": "Odd", "message": "no" } });
            let failed = f.admin(&format!("POST /api/v1/jobs/{id}/fail"), body).await;
            assert_eq!((failed.status, &failed.json()["outcome"]), (StatusCode::OK, &json!(outcome)), "{}", failed.text);
        }
        let dead = f.admin("GET /api/v1/jobs/dead", Value::Null).await.json();
        assert_eq!((&dead["items"][0]["id"], &dead["items"][0]["result"]["error"]["name"]), (&json!(id), &json!("Odd")));
        let history = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json()["history"].clone();
        assert_eq!(history.as_array().unwrap().len(), 2);
        let again = f.admin(&format!("POST /api/v1/jobs/{id}/replay"), Value::Null).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        let twice = f.admin(&format!("POST /api/v1/jobs/{id}/replay"), Value::Null).await;
        assert_eq!((twice.status, twice.code().as_str()), (StatusCode::CONFLICT, "JOB_STATE"));
        let list = f.admin("GET /api/v1/jobs?state=waiting", Value::Null).await.json();
        assert_eq!(list["items"][0]["id"], json!(id));
        let ended = f.admin(&format!("POST /api/v1/jobs/{id}/cancel"), json!({ "reason": "enough" })).await;
        assert_eq!(ended.json()["outcome"], "ended", "{}", ended.text);
    }

    async fn a_claim_waits_for_a_job(t: TestStore) {
        let f = fixture(&t);
        let body = json!({ "worker_id": "w1", "types": ["mail"], "wait_ms": 20_000 });
        let (got, ()) = tokio::join!(f.admin("POST /api/v1/jobs/claim", body), async {
            // Not before the worker is there, so that it is the wait that finds the job.
            let workers = async || f.admin("GET /api/v1/jobs/workers", Value::Null).await.json();
            while workers().await["items"].as_array().unwrap().is_empty() {}
            dispatch(&f, json!({ "type": "other" })).await;
            dispatch(&f, json!({ "type": "mail" })).await;
        });
        assert_eq!(got.json()["items"][0]["job"]["type"], "mail", "{}", got.text);
    }

    async fn paused_types_and_schedules_wait(t: TestStore) {
        let f = fixture(&t);
        dispatch(&f, json!({ "type": "mail" })).await;
        assert_eq!(f.admin("POST /api/v1/jobs/types/mail/pause", Value::Null).await.status, StatusCode::OK);
        let none = f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": "w1" })).await;
        assert_eq!(none.json()["items"], json!([]));
        assert_eq!(f.admin("POST /api/v1/jobs/types/mail/resume", Value::Null).await.status, StatusCode::OK);
        claim(&f, web::testing::ADMIN).await;

        let nightly = "/api/v1/jobs/schedules/nightly";
        let body = json!({ "type": "clean", "cron": "30 3 * * *", "timezone": "Europe/Berlin" });
        assert_eq!(f.admin(&format!("PUT {nightly}"), body.clone()).await.json()["outcome"], "stored");
        assert_eq!(f.admin(&format!("PUT {nightly}"), body).await.json()["outcome"], "changed");
        assert_eq!(f.admin(&format!("POST {nightly}/pause"), Value::Null).await.status, StatusCode::OK);
        let list = f.admin("GET /api/v1/jobs/schedules", Value::Null).await.json();
        assert_eq!((&list["items"][0]["job"]["id"], &list["items"][0]["paused"]), (&json!("nightly"), &json!(true)));
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
        let none = f.call(mailer, "POST /api/v1/jobs/claim", json!({ "worker_id": "w1" })).await;
        assert_eq!((none.status, &none.json()["items"]), (StatusCode::OK, &json!([])));
        for (what, body) in [
            ("POST /api/v1/jobs".to_owned(), json!({ "type": "other" })),
            ("POST /api/v1/jobs/claim".to_owned(), json!({ "worker_id": "w1", "types": ["other"] })),
            (format!("POST /api/v1/jobs/{other}/complete"), json!({ "worker_id": "w1", "token": 1 })),
            (format!("GET /api/v1/jobs/{other}/wait?wait_ms=0"), Value::Null),
            (format!("GET /api/v1/jobs/{other}"), Value::Null),
            (format!("POST /api/v1/jobs/{other}/cancel"), Value::Null),
        ] {
            assert_eq!(f.call(mailer, &what, body).await.status, StatusCode::FORBIDDEN, "{what}");
        }
        let mixed = json!({ "jobs": [{ "type": "mail" }, { "type": "other" }, { "type": "mail", "priority": 11 }] });
        let bulk = f.call(mailer, "POST /api/v1/jobs/bulk", mixed).await.json();
        let codes: Vec<_> = bulk["items"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect();
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
            ("POST /api/v1/jobs", json!({ "type": "mail", "run_at": -1 }), 400, "INVALID_REQUEST"),
            ("POST /api/v1/jobs/claim", json!({ "worker_id": "w1", "lease_ms": 1 }), 400, "INVALID_REQUEST"),
            ("GET /api/v1/jobs?state=odd", Value::Null, 400, "INVALID_REQUEST"),
            ("GET /api/v1/jobs/none", Value::Null, 404, "JOB_NOT_FOUND"),
            ("GET /api/v1/jobs/none/wait", Value::Null, 404, "JOB_NOT_FOUND"),
            ("POST /api/v1/jobs/none/cancel", Value::Null, 404, "JOB_NOT_FOUND"),
            ("POST /api/v1/jobs/none/complete", json!({ "worker_id": "w1", "token": 1 }), 404, "JOB_NOT_FOUND"),
        ] {
            let got = f.admin(what, body).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (status, code), "{what}: {}", got.text);
        }
        let off = Fixture::without(&t, &[&JobsService]);
        assert_eq!(off.admin("GET /api/v1/jobs/stats", Value::Null).await.code(), "SERVICE_OFF");
    }

    async fn a_job_of_any_name_but_a_reserved_one_can_be_reached(t: TestStore) {
        let f = fixture(&t);
        dispatch(&f, json!({ "type": "mail", "id": "id@1.x_-", "payload": 1 })).await;
        let seen = f.admin("GET /api/v1/jobs/id@1.x_-", Value::Null).await.json();
        assert_eq!((&seen["job"]["id"], &seen["job"]["payload"]), (&json!("id@1.x_-"), &json!(1)));
        for name in ["stats", "claim", "dead", "schedules", "events"] {
            let refused = f.admin("POST /api/v1/jobs", json!({ "type": "mail", "id": name })).await;
            assert_eq!((refused.code().as_str(), &refused.json()["error"]["details"]["field"]), ("INVALID_REQUEST", &json!("id")));
        }
        // One that another program stored is listed.
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        let stats = jobs::NewJob::new("mail", &1).unwrap().id(jobs::JobId::parse("stats").unwrap());
        jobs.dispatch(stats).await.unwrap();
        let list = f.admin("GET /api/v1/jobs?state=waiting", Value::Null).await.json();
        assert_eq!(list["items"][1]["id"], "stats");
        // Stored by a program with names of its own.
        let mut store = t.store.clone();
        let data = r#"{"jobId":"order:7 a/b","type":"mail","payload":{}}"#;
        let key = match t.store.layout() {
            store::Layout::Standalone => "bridge:jobs:data:order:7 a/b",
            store::Layout::Cluster => "{bridge}:jobs:data:order:7 a/b",
        };
        let () = store::redis::AsyncCommands::set(&mut store, key, data).await.unwrap();
        let seen = f.admin("GET /api/v1/jobs/order:7%20a%2Fb", Value::Null).await;
        assert_eq!(seen.json()["job"]["id"], "order:7 a/b", "{}", seen.text);
    }

    async fn jobs_are_found_by_state_type_and_text(t: TestStore) {
        let f = fixture(&t);
        for n in 0..5 {
            dispatch(&f, json!({ "type": "mail", "id": format!("m{n}"), "payload": { "to": format!("user{n}") } })).await;
            dispatch(&f, json!({ "type": "film", "id": format!("f{n}"), "delay_ms": 1_000 * (n + 1) })).await;
        }
        let ids = async |query: &str| {
            let (mut ids, mut from) = (Vec::new(), String::new());
            for _ in 0..20 {
                let page = f.admin(&format!("GET /api/v1/jobs?{query}&cursor={from}"), Value::Null).await;
                assert_eq!(page.status, StatusCode::OK, "{}", page.text);
                let page = page.json();
                ids.extend(page["items"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()));
                match page["next_cursor"].as_str() {
                    Some(next) => from = next.to_owned(),
                    None => return ids,
                }
            }
            panic!("the list does not end");
        };
        assert_eq!(ids("limit=3").await, ["m0", "m1", "m2", "m3", "m4", "f0", "f1", "f2", "f3", "f4"]);
        assert_eq!(ids("type=film&limit=2").await, ["f0", "f1", "f2", "f3", "f4"]);
        assert_eq!(ids("state=waiting&text=user3").await, ["m3"]);
        assert_eq!(ids("state=active").await, [""; 0]);
        let row = f.admin("GET /api/v1/jobs?type=film&limit=1", Value::Null).await.json()["items"][0].clone();
        assert_eq!((&row["status"], &row["job"]["type"]), (&json!("delayed"), &json!("film")));
        assert_eq!(f.admin("GET /api/v1/jobs?cursor=odd", Value::Null).await.status, StatusCode::BAD_REQUEST);
    }

    async fn many_jobs_are_changed_in_one_call(t: TestStore) {
        let f = fixture(&t);
        for n in 0..4 {
            dispatch(&f, json!({ "type": "mail", "id": format!("m{n}"), "retry": { "attempts": 0 } })).await;
            dispatch(&f, json!({ "type": "film", "id": format!("f{n}") })).await;
        }
        let many = async |what: &str, body: Value| {
            let got = f.admin(&format!("POST /api/v1/jobs/{what}"), body).await;
            assert_eq!(got.status, StatusCode::OK, "{}", got.text);
            let got = got.json();
            let items = got["items"].as_array().unwrap();
            assert!(items.iter().all(|item| item["changed"] == true), "{got}");
            assert_eq!((items.len(), &got["next_cursor"]), (got["count"].as_u64().unwrap() as usize, &Value::Null), "{got}");
            got["count"].as_u64().unwrap()
        };
        assert_eq!(many("cancel", json!({ "type": "film", "reason": "no" })).await, 4);
        for _ in 0..4 {
            let lease = claim(&f, web::testing::ADMIN).await;
            let body = json!({ "worker_id": "w1", "token": lease["token"], "error": { "message": lease["job"]["id"] } });
            let path = format!("POST /api/v1/jobs/{}/fail", lease["job"]["id"].as_str().unwrap());
            assert_eq!(f.admin(&path, body).await.json()["outcome"], "dead");
        }
        assert_eq!(many("replay", json!({ "text": "m3" })).await, 1);
        assert_eq!(many("retry", json!({ "state": "dead", "text": "m2" })).await, 1);
        assert_eq!(many("remove", json!({ "state": "dead" })).await, 2);
        assert_eq!(many("remove", json!({ "state": "finished" })).await, 4);
        let stats = f.admin("GET /api/v1/jobs/stats", Value::Null).await.json();
        assert_eq!((&stats["waiting"], &stats["dead"]), (&json!(2), &json!(0)));
        assert_eq!(f.admin("GET /api/v1/jobs/m0", Value::Null).await.code(), "JOB_NOT_FOUND");
        let wrong = f.admin("POST /api/v1/jobs/replay", json!({ "state": "waiting" })).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text);
    }

    async fn a_worker_puts_off_hands_back_logs_and_stops(t: TestStore) {
        let f = fixture(&t);
        let id = dispatch(&f, json!({ "type": "mail" })).await;
        let act = async |act: &str, more: Value| {
            let lease = claim(&f, web::testing::ADMIN).await;
            let mut body = json!({ "worker_id": "w1", "token": lease["token"] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let got = f.admin(&format!("POST /api/v1/jobs/{id}/{act}"), body.clone()).await;
            assert_eq!(got.status, StatusCode::OK, "{}", got.text);
            (got.json(), body)
        };
        let (released, body) = act("release", json!({})).await;
        assert_eq!(released["outcome"], "released");
        let twice = f.admin(&format!("POST /api/v1/jobs/{id}/release"), body).await;
        assert_eq!(twice.code(), "LEASE_LOST");
        let (snoozed, _) = act("snooze", json!({ "wait_ms": 60_000 })).await;
        assert_eq!(snoozed["outcome"], "snoozed");
        let now = f.admin(&format!("POST /api/v1/jobs/{id}/retry"), Value::Null).await;
        assert_eq!(now.json()["outcome"], "due", "{}", now.text);
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        jobs.scheduler().tick().await.unwrap();
        let (retry, _) = act("fail", json!({ "error": { "message": "x" }, "retry_in_ms": 0 })).await;
        assert_eq!((&retry["outcome"], &retry["retry_in_ms"]), (&json!("retry"), &json!(0)));
        let (logged, body) = act("log", json!({ "lines": ["one", "two"] })).await;
        assert_eq!(logged["cancelled"], false);
        let log = f.admin(&format!("GET /api/v1/jobs/{id}/logs"), Value::Null).await.json();
        assert_eq!((&log["items"][0]["line"], &log["items"][1]["line"]), (&json!("one"), &json!("two")));
        let body = json!({ "worker_id": "w1", "token": body["token"], "reason": "enough" });
        let stopped = f.admin(&format!("POST /api/v1/jobs/{id}/stop"), body).await;
        assert_eq!(stopped.json()["outcome"], "stopped", "{}", stopped.text);
        let seen = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json();
        assert_eq!((&seen["status"], &seen["result"]["error"]["message"]), (&json!("failed"), &json!("enough")));
        let again = f.admin(&format!("POST /api/v1/jobs/{id}/replay"), json!({ "payload": { "to": "bob" } })).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        let seen = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json();
        assert_eq!((&seen["status"], &seen["job"]["payload"]), (&json!("waiting"), &json!({ "to": "bob" })));
        assert_eq!(f.admin("DELETE /api/v1/jobs/workers/w1", Value::Null).await.status, StatusCode::OK);
        let stats = f.admin("GET /api/v1/jobs/stats", Value::Null).await.json();
        assert_eq!(stats["workers"], 0);
    }

    async fn jobs_nobody_can_take_are_seen(t: TestStore) {
        let f = fixture(&t);
        dispatch(&f, json!({ "type": "mail", "target": { "region": ["eu"], "capabilities": ["gpu"] }, "priority": 9 })).await;
        let lanes = f.admin("GET /api/v1/jobs/unroutable", Value::Null).await.json()["items"].clone();
        assert_eq!((&lanes[0]["type"], &lanes[0]["waiting"]), (&json!("mail"), &json!(1)), "{lanes}");
        assert_eq!(lanes[0]["target"], json!({ "capabilities": ["gpu"], "region": ["eu"], "all": false }));
        assert_eq!(lanes[0]["by_priority"][8], 1);
        let body = json!({ "worker_id": "w1", "region": "eu", "capabilities": ["gpu"], "types": ["other"] });
        f.admin("POST /api/v1/jobs/claim", body).await;
        let lanes = f.admin("GET /api/v1/jobs/unroutable", Value::Null).await.json()["items"].clone();
        assert_eq!(lanes.as_array().unwrap().len(), 1, "a worker for other types is no help: {lanes}");
        let body = json!({ "worker_id": "w2", "region": "eu", "capabilities": ["gpu"], "types": ["mail"] });
        f.admin("POST /api/v1/jobs/claim", body).await;
        let lanes = f.admin("GET /api/v1/jobs/unroutable", Value::Null).await.json()["items"].clone();
        assert_eq!(lanes, json!([]));
    }

    async fn the_server_ends_what_runs_longer_than_its_timeout(t: TestStore) {
        let f = fixture(&t);
        dispatch(&f, json!({ "type": "mail", "id": "m", "timeout_ms": 1000, "retry": { "attempts": 0 } })).await;
        let claimed = f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": "w1" })).await.json();
        let token = &claimed["items"][0]["token"];
        let held = json!({ "worker_id": "w1", "token": token });
        let renewed = f.admin("POST /api/v1/jobs/m/renew", held.clone()).await;
        assert_eq!(renewed.status, StatusCode::OK, "{}", renewed.text);
        t.clock.advance(std::time::Duration::from_secs(1));
        for act in ["renew", "complete", "release"] {
            let path = format!("POST /api/v1/jobs/m/{act}");
            let refused = f.admin(&path, held.clone()).await;
            assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "JOB_TIMED_OUT"), "{act}");
        }
        let jobs = jobs::Jobs::new(t.store.clone(), jobs::Config::default()).unwrap();
        jobs.maintenance().tick().await.unwrap();
        let view = f.admin("GET /api/v1/jobs/m", Value::Null).await.json();
        assert_eq!(view["status"], "dead", "{view}");
        assert_eq!(view["result"]["error"]["name"], "Timeout", "{view}");
        let refused = f.admin("POST /api/v1/jobs/m/complete", held).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "LEASE_LOST"));
        let grace = json!({ "worker_id": "w1", "timeout_grace_ms": 600_001 });
        assert_eq!(f.admin("POST /api/v1/jobs/claim", grace).await.status, StatusCode::BAD_REQUEST);
    }

    async fn a_narrowed_token_depends_only_on_jobs_of_its_types(t: TestStore) {
        let f = fixture(&t);
        let scopes = vec!["jobs:type=mail".to_owned()];
        let new = NewToken { name: "narrow".to_owned(), role: Role::Worker, scopes };
        let (_, secret) = f.app.auth().create_token(f.app.store(), new, "the test").await.unwrap();
        let token = secret.reveal();
        for (id, job_type) in [("own", "mail"), ("foreign", "bank")] {
            dispatch(&f, json!({ "type": job_type, "id": id })).await;
        }
        let ask = async |parent: &str| {
            f.call(token, "POST /api/v1/jobs", json!({ "type": "mail", "depends_on": [parent] })).await
        };
        assert_eq!(ask("own").await.status, StatusCode::CREATED);
        // A job of another type and one that is not there look the same.
        let (foreign, missing) = (ask("foreign").await, ask("missing").await);
        assert_eq!((foreign.status, missing.status), (StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST));
        assert_eq!(foreign.text.matches("foreign").count(), missing.text.matches("missing").count());
        let body = json!({ "jobs": [{ "type": "mail", "depends_on": ["foreign"] }, { "type": "mail" }] });
        let bulk = f.call(token, "POST /api/v1/jobs/bulk", body).await.json();
        assert_eq!((&bulk["items"][0]["new"], &bulk["items"][1]["new"]), (&json!(false), &json!(true)), "{bulk}");
    }

    async fn a_worker_hears_at_once_which_of_its_jobs_shall_stop(t: TestStore) {
        let f = fixture(&t);
        let mut tokens = Vec::new();
        for (id, worker) in [("before", "w1"), ("other", "w2"), ("after", "w1")] {
            dispatch(&f, json!({ "type": "mail", "id": id })).await;
            let claimed = f.admin("POST /api/v1/jobs/claim", json!({ "worker_id": worker })).await.json();
            assert_eq!(claimed["items"][0]["job"]["id"], id);
            tokens.push(claimed["items"][0]["token"].clone());
        }
        let cancel = async |id: &str, reason: &str| {
            f.admin(&format!("POST /api/v1/jobs/{id}/cancel"), json!({ "reason": reason })).await
        };
        cancel("before", "one").await;
        let mut body = f.stream("/api/v1/jobs/cancellations?worker_id=w1").await;
        let mut seen = String::new();
        while !seen.contains("before") {
            seen.push_str(&body.next().await);
        }
        cancel("other", "two").await;
        cancel("after", "three").await;
        while !seen.contains("after") {
            seen.push_str(&body.next().await);
        }
        let event = |id: &str, token: &Value, reason: &str| {
            format!("event: cancelled\ndata: {{\"id\":\"{id}\",\"token\":{token},\"reason\":\"{reason}\"}}\n\n")
        };
        assert!(seen.contains(&event("before", &tokens[0], "one")), "{seen}");
        assert!(seen.ends_with(&event("after", &tokens[2], "three")), "{seen}");
        assert!(!seen.contains("other"), "{seen}");
        let held = json!({ "worker_id": "w1", "token": tokens[0] });
        let renewed = f.admin("POST /api/v1/jobs/before/renew", held).await.json();
        assert_eq!((&renewed["cancelled"], &renewed["reason"]), (&json!(true), &json!("one")));
    }

    async fn events_are_followed_and_resumed(t: TestStore) {
        let f = fixture(&t);
        let one = dispatch(&f, json!({ "type": "mail" })).await;
        let two = dispatch(&f, json!({ "type": "mail" })).await;
        let follow = async |path: &str, until: &str| {
            let (mut seen, mut body) = (String::new(), f.stream(path).await);
            while !seen.contains(until) {
                seen.push_str(&body.next().await);
            }
            seen
        };
        let all = follow("/api/v1/jobs/events?cursor=0", &two).await;
        let first = all.split("\n\n").find(|event| event.contains(&one)).unwrap();
        assert!(first.contains("event: dispatched") && first.contains("\"happened_at\""), "{all}");
        let id = first.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
        let rest = follow(&format!("/api/v1/jobs/events?cursor={id}"), &two).await;
        assert!(!rest.contains(&one), "{rest}");
        let mine = follow(&format!("/api/v1/jobs/events?cursor=0&job_id={two}"), &two).await;
        assert!(!mine.contains(&one), "{mine}");
        let next = async {
            dispatch(&f, json!({ "type": "mail", "id": "later" })).await;
        };
        let (new, ()) = tokio::join!(follow("/api/v1/jobs/events?cursor=0", "later"), next);
        assert!(new.contains("\"later\""));
    }

    async fn a_bulk_call_names_what_it_means(t: TestStore) {
        let f = fixture(&t);
        for job_type in ["mail", "pay"] {
            let made = f.admin("POST /api/v1/jobs", json!({ "type": job_type })).await;
            assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
        }
        for verb in ["cancel", "retry", "replay", "remove"] {
            let path = format!("POST /api/v1/jobs/{verb}");
            for body in [
                Value::Null,
                json!({}),
                json!({ "limit": 5 }),
                json!({ "all": false }),
                json!({ "all": true, "type": "mail" }),
                json!({ "reason": "tidy" }),
            ] {
                let got = f.admin(&path, body.clone()).await;
                assert_eq!((got.status.as_u16(), got.code().as_str()), (400, "INVALID_REQUEST"), "{verb} {body}");
            }
        }
        let stats = f.admin("GET /api/v1/jobs/stats", Value::Null).await.json();
        assert_eq!(stats["waiting"], 2, "nothing was changed");
        let one = f.admin("POST /api/v1/jobs/cancel", json!({ "type": "mail" })).await.json();
        assert_eq!(one["count"], 1);
        let rest = f.admin("POST /api/v1/jobs/cancel", json!({ "all": true })).await.json();
        assert_eq!(rest["count"], 1);
    }

    async fn a_scope_binds_workers_too(t: TestStore) {
        let f = fixture(&t);
        let token = async |scopes: &[&str]| {
            let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            let new = NewToken { name: "w".into(), role: Role::Worker, scopes };
            f.app.auth().create_token(f.app.store(), new, "the test").await.unwrap().1.reveal().to_owned()
        };
        let (mail, pay, all) = (token(&["jobs:type=mail"]).await, token(&["jobs:type=pay"]).await, token(&[]).await);
        let claim = async |token: &str, worker: &str| f.call(token, "POST /api/v1/jobs/claim", json!({ "worker_id": worker })).await;
        assert_eq!(claim(&pay, "victim").await.status, StatusCode::OK);
        assert_eq!(claim(&all, "general").await.status, StatusCode::OK);
        for worker in ["victim", "general"] {
            assert_eq!(claim(&mail, worker).await.code(), "FORBIDDEN", "{worker}");
            let gone = f.call(&mail, &format!("DELETE /api/v1/jobs/workers/{worker}"), Value::Null).await;
            assert_eq!(gone.code(), "FORBIDDEN", "{worker}");
        }
        let workers = f.admin("GET /api/v1/jobs/workers", Value::Null).await.json();
        let victim = workers["items"].as_array().unwrap().iter().find(|w| w["id"] == "victim").unwrap();
        assert_eq!(victim["types"], json!(["pay"]), "unchanged");
        // Its own worker is its own.
        assert_eq!(claim(&mail, "mailer").await.status, StatusCode::OK);
        assert_eq!(claim(&mail, "mailer").await.status, StatusCode::OK);
        let gone = f.call(&mail, "DELETE /api/v1/jobs/workers/mailer", Value::Null).await;
        assert_eq!(gone.status, StatusCode::OK);
        // The id of a job of another type says nothing about it.
        dispatch(&f, json!({ "type": "pay", "id": "order-7" })).await;
        let taken = f.call(&mail, "POST /api/v1/jobs", json!({ "type": "mail", "id": "order-7" })).await;
        assert_eq!(taken.status, StatusCode::CONFLICT, "{}", taken.text);
        let many = f.call(&mail, "POST /api/v1/jobs/bulk", json!({ "jobs": [{ "type": "mail", "id": "order-7" }] })).await;
        assert_eq!(many.json()["items"][0]["id"], Value::Null, "{}", many.text);
    }

    async fn what_people_do_to_jobs_is_in_the_trail_and_what_workers_do_is_not(t: TestStore) {
        let f = fixture(&t);
        let worker = f.token(Role::Worker).await;
        let operator = f.token(Role::Operator).await;
        for token in [&worker, &operator] {
            f.call(token, "POST /api/v1/jobs", json!({ "type": "mail" })).await;
            let lease = claim(&f, token).await;
            let id = lease["job"]["id"].as_str().unwrap().to_owned();
            let held = json!({ "worker_id": "w1", "token": lease["token"] });
            let kept = f.call(token, &format!("POST /api/v1/jobs/{id}/renew"), held.clone()).await;
            assert_eq!(kept.status, StatusCode::OK, "{}", kept.text);
            let ended = f.call(token, &format!("POST /api/v1/jobs/{id}/stop"), held).await;
            assert_eq!(ended.status, StatusCode::OK, "{}", ended.text);
            f.call(token, "POST /api/v1/jobs/claim", json!({ "worker_id": "w1" })).await;
            f.call(token, "DELETE /api/v1/jobs/workers/w1", Value::Null).await;
        }
        let trail = f.trail().await;
        let acts: Vec<_> = trail.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
        assert_eq!(acts, ["worker.remove", "POST /api/v1/jobs/{id}/stop", "job.claim", "job.dispatch"]);
        assert!(trail.iter().all(|entry| entry["who"] == "a operator" && entry["outcome"] == "ok"), "{trail:#?}");
    }
}

testkit::each_store! {
    async fn a_worker_cannot_bring_a_cancelled_job_back(t: TestStore) {
        let f = fixture(&t);
        let id = dispatch(&f, json!({ "type": "mail", "retry": { "attempts": 3 } })).await;
        let lease = claim(&f, web::testing::ADMIN).await;
        let stop = format!("POST /api/v1/jobs/{id}/cancel");
        let asked = f.admin(&stop, json!({ "reason": "user asked" })).await;
        assert_eq!(asked.json()["outcome"], "asked", "{}", asked.text);
        let body = json!({ "worker_id": "w1", "token": lease["token"], "error": { "message": "no" } });
        let failed = f.admin(&format!("POST /api/v1/jobs/{id}/fail"), body).await;
        assert_eq!(failed.json()["outcome"], "cancelled", "{}", failed.text);
        let job = f.admin(&format!("GET /api/v1/jobs/{id}"), Value::Null).await.json();
        assert_eq!(job["status"], "failed", "{job}");
        assert_eq!(job["result"]["error"]["message"], "user asked", "{job}");
    }

    async fn bulk_answers_each_job_also_one_of_a_wrong_shape(t: TestStore) {
        let f = fixture(&t);
        let jobs = json!([{ "type": "a" }, { "type": "a", "priority": "high" }, { "type": "a", "odd": 1 }, 7, { "type": "a" }]);
        let got = f.admin("POST /api/v1/jobs/bulk", json!({ "jobs": jobs })).await;
        assert_eq!(got.status, StatusCode::OK, "{}", got.text);
        let outcomes = got.json()["items"].as_array().unwrap().clone();
        let good: Vec<bool> = outcomes.iter().map(|outcome| outcome["new"] == true).collect();
        assert_eq!(good, [true, false, false, false, true], "{}", got.text);
        for (index, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome["index"], index);
        }
        assert_eq!(outcomes[1]["code"], "INVALID_REQUEST");
        for outcome in &outcomes {
            let message = outcome["message"].as_str().unwrap_or_default();
            assert!(!message.contains("u8") && !message.contains("line 1"), "{}", got.text);
        }
        assert!(outcomes[2]["message"].as_str().unwrap().contains("odd"), "{}", got.text);
    }

    async fn a_repeated_run_of_a_schedule_under_one_idempotency_key_is_one_job(t: TestStore) {
        let f = fixture(&t);
        let nightly = json!({ "type": "a", "cron": "0 3 * * *" });
        let put = f.admin("PUT /api/v1/jobs/schedules/nightly", nightly).await;
        assert!(put.status.is_success(), "{}", put.text);
        let run = async |key| f.keyed(key, "POST /api/v1/jobs/schedules/nightly/run", json!({})).await;
        let first = run("one").await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.text);
        assert_eq!(run("one").await.text, first.text);
        let other = run("two").await;
        assert_eq!((other.status, other.code().as_str()), (StatusCode::CONFLICT, "JOB_STATE"), "{}", other.text);
        let jobs = f.admin("GET /api/v1/jobs?type=a", Value::Null).await.json();
        assert_eq!(jobs["items"].as_array().unwrap().len(), 1, "{jobs}");
    }

    async fn an_idempotency_key_header_makes_one_job(t: TestStore) {
        let f = fixture(&t);
        let send = |path: &str, body: Value| {
            let request = axum::http::Request::post(path)
                .header("authorization", format!("Bearer {}", web::testing::ADMIN))
                .header("content-type", "application/json")
                .header("idempotency-key", "order-7");
            f.send(request.body(axum::body::Body::from(body.to_string())).unwrap())
        };
        let first = send("/api/v1/jobs", json!({ "type": "a", "payload": 1 })).await;
        assert_eq!(first.status, StatusCode::CREATED, "{}", first.text);
        let again = send("/api/v1/jobs", json!({ "type": "a", "payload": 1 })).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        assert_eq!(first.json()["id"], again.json()["id"]);
        let other = send("/api/v1/jobs", json!({ "type": "a", "payload": 2 })).await;
        assert_eq!((other.status.as_u16(), other.code().as_str()), (409, "IDEMPOTENCY_KEY_REUSED"));
        let bulk = json!({ "jobs": [{ "type": "b" }, { "type": "b" }] });
        let one = send("/api/v1/jobs/bulk", bulk.clone()).await.json();
        let two = send("/api/v1/jobs/bulk", bulk).await.json();
        assert_eq!(one["items"][0]["id"], two["items"][0]["id"]);
        assert_ne!(one["items"][0]["id"], one["items"][1]["id"]);
        let put = |id: &str, body: Value| {
            let request = axum::http::Request::put(format!("/api/v1/jobs/schedules/{id}"))
                .header("authorization", format!("Bearer {}", web::testing::ADMIN))
                .header("content-type", "application/json")
                .header("idempotency-key", "order-7");
            f.send(request.body(axum::body::Body::from(body.to_string())).unwrap())
        };
        let nightly = json!({ "type": "a", "cron": "0 3 * * *" });
        let other = put("nightly", nightly).await;
        assert_eq!((other.status.as_u16(), other.code().as_str()), (409, "IDEMPOTENCY_KEY_REUSED"));
        let nightly = json!({ "type": "c", "cron": "0 3 * * *" });
        for _ in 0..2 {
            let stored = put("nightly", nightly.clone()).await;
            assert_eq!(stored.status, StatusCode::OK, "{}", stored.text);
        }
        let hourly = json!({ "type": "c", "cron": "0 * * * *" });
        for (id, body) in [("nightly", hourly.clone()), ("other", nightly)] {
            let other = put(id, body).await;
            assert_eq!(other.code(), "IDEMPOTENCY_KEY_REUSED", "{}", other.text);
        }
        // The key is free again when its schedule is.
        f.admin("DELETE /api/v1/jobs/schedules/nightly", Value::Null).await;
        let stored = put("hourly", hourly).await;
        assert_eq!(stored.status, StatusCode::OK, "{}", stored.text);
        let none = f.admin("POST /api/v1/jobs", json!({ "type": "a", "depends_on": ["nobody"] })).await;
        let details = &none.json()["error"]["details"];
        assert_eq!(details, &json!({ "field": "depends_on", "id": "nobody" }), "{}", none.text);
    }
}
