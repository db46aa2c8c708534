//! The waiting room over HTTP.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use room_web::RoomService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;
use web::auth::Role;

use web::testing::{ADMIN, Answer, Fixture};

pub(crate) async fn fixture(t: &TestStore) -> (Fixture, room::RoomMaintenance) {
    let room = room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
    let keeper = room::RoomMaintenance::new(room.clone());
    let services = vec![RoomService::on(room, 600)];
    (Fixture::running(t, Settings::default(), services), keeper)
}

pub(crate) async fn queue(f: &Fixture) {
    let body = json!({ "id": "concert", "name": "Concert", "target_url": "https://shop.example/",
        "max_active": 1, "admission": { "count": 60, "per_seconds": 60 } });
    let made = f.admin("POST /api/v1/admin/queues", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
}

pub(crate) async fn enqueue(f: &Fixture) -> (Value, String) {
    let enqueued = f.call("", "POST /api/v1/queues/concert/enqueue", Value::Null).await;
    assert_eq!(enqueued.status, StatusCode::CREATED, "{}", enqueued.text);
    let body = enqueued.json();
    let token = body["token"].as_str().unwrap().to_owned();
    let cookie = enqueued.header("set-cookie");
    assert!(cookie.starts_with("wr_concert=wrp1.") && cookie.contains("HttpOnly; SameSite=Lax"));
    (body, token)
}

async fn with_cookie(f: &Fixture, what: &str, cookie: &str) -> Answer {
    let (method, path) = what.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).header("cookie", cookie);
    f.send(request.body(Body::empty()).unwrap()).await
}

testkit::each_store! {
    async fn queues_and_invites_are_made_once_per_idempotency_key(t: TestStore) {
        let (f, _) = fixture(&t).await;
        for (call, body, other) in [
            ("POST /api/v1/admin/queues", json!({ "id": "concert" }), json!({ "id": "opera" })),
            ("PUT /api/v1/admin/queues/ballet", json!({ "name": "Ballet" }), json!({ "name": "Opera" })),
            ("POST /api/v1/admin/queues/concert/invites", json!({ "priority": 2 }), json!({ "priority": 3 })),
        ] {
            let first = f.keyed("one", call, body.clone()).await;
            assert_eq!(first.status, StatusCode::CREATED, "{call}: {}", first.text);
            let again = f.keyed("one", call, body).await;
            assert_eq!((again.status, &again.text), (StatusCode::CREATED, &first.text), "{call}");
            assert_eq!(again.header("etag"), first.header("etag"), "{call}");
            let refused = f.keyed("one", call, other).await;
            assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_REUSED"), "{call}");
        }
        let list = f.admin("GET /api/v1/admin/queues", Value::Null).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 2, "{list}");
    }

    async fn a_repeated_admission_or_rotation_is_made_once_per_idempotency_key(t: TestStore) {
        let (f, _) = fixture(&t).await;
        let made = f.admin("POST /api/v1/admin/queues", json!({ "id": "concert", "admission": { "count": 0 } })).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
        for _ in 0..3 {
            f.call("", "POST /api/v1/queues/concert/enqueue", json!({})).await;
        }
        let admit = "POST /api/v1/admin/queues/concert/admit";
        let first = f.keyed("one", admit, json!({ "count": 1 })).await;
        assert_eq!((first.status, &first.json()["admitted"]), (StatusCode::OK, &json!(1)), "{}", first.text);
        assert_eq!(f.keyed("one", admit, json!({ "count": 1 })).await.text, first.text);
        assert_eq!(f.keyed("one", admit, json!({ "count": 2 })).await.code(), "IDEMPOTENCY_KEY_REUSED");
        let queue = f.admin("GET /api/v1/admin/queues/concert", Value::Null).await.json();
        assert_eq!(queue["waiting"], 2, "{queue}");

        let keys = async || f.get("/.well-known/jwks.json").await.json()["keys"].as_array().unwrap().len();
        let before = keys().await;
        for _ in 0..2 {
            let rotated = f.keyed("two", "POST /api/v1/admin/keys/rotate", json!({})).await;
            assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.text);
        }
        assert_eq!(keys().await, before + 1);
    }

    async fn a_visitor_joins_waits_comes_in_and_goes(t: TestStore) {
        let (f, keeper) = fixture(&t).await;
        queue(&f).await;
        let (first, first_token) = enqueue(&f).await;
        assert_eq!(first["status"], "admitted");
        let (second, token) = enqueue(&f).await;
        assert_eq!((&second["status"], &second["position"]), (&json!("waiting"), &json!(1)));
        assert!(second["ticket"].as_u64() > first["ticket"].as_u64());
        assert_eq!((&second["heartbeat_timeout_seconds"], &first["admission_expires_in_seconds"]), (&json!(480), &json!(120)));
        assert!(second["expires_at"].as_str().unwrap().starts_with("2026-01-01T00:08:"), "{second}");
        assert_eq!((&first["admission_expires_at"], &second["position_display"]), (&json!("2026-01-01T00:02:00.000Z"), &json!(1)));
        assert_eq!(second["server_time"], "2026-01-01T00:00:00.000Z");
        let again = f.call(&token, "POST /api/v1/queues/concert/enqueue", Value::Null).await;
        assert_eq!((again.status, &again.json()["position_id"]), (StatusCode::OK, &second["position_id"]));

        let beat = f.call(&token, "POST /api/v1/queues/concert/heartbeat", json!({ "visible": true })).await;
        assert_eq!((beat.status, &beat.json()["ahead"]), (StatusCode::OK, &json!(0)));
        let cookie = format!("a=b; wr_concert={token}");
        let seen = with_cookie(&f, "GET /api/v1/queues/concert/status", &cookie).await;
        assert_eq!((seen.status, &seen.json()["queue_length"]), (StatusCode::OK, &json!(1)));
        let early = f.call(&token, "POST /api/v1/queues/concert/start-session", Value::Null).await;
        assert_eq!(early.status, StatusCode::ACCEPTED);

        let came = f.call(&first_token, "POST /api/v1/queues/concert/start-session", Value::Null).await;
        assert_eq!(came.status, StatusCode::OK, "{}", came.text);
        let session = came.json();
        assert_eq!(session["redirect_url"], "https://shop.example/");
        let pass = session["session_token"].as_str().unwrap();
        let queue = room::QueueId::parse("concert").unwrap();
        let room = &room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        assert!(room.check_pass(&queue, pass).await.is_ok());
        let path = format!("/api/v1/sessions/{}", session["session_id"].as_str().unwrap());
        // The id proves nothing, nor does another visitor's token; the pass and the own token do.
        for what in ["GET", "DELETE"] {
            let refused = f.call("", &format!("{what} {path}"), Value::Null).await;
            assert_eq!((refused.status, refused.code().as_str()), (StatusCode::UNAUTHORIZED, "BAD_TOKEN"));
        }
        for what in ["activity", "complete"] {
            for stranger in ["", token.as_str(), "wrp1.AAAA.AAAA", "eyJ.eyJ.x", ADMIN] {
                let refused = f.call(stranger, &format!("POST {path}/{what}"), Value::Null).await;
                assert_eq!((refused.status, refused.code().as_str()), (StatusCode::UNAUTHORIZED, "BAD_TOKEN"));
                assert!(!refused.text.contains("eyJ"), "no pass for strangers");
            }
        }
        let seen = with_cookie(&f, &format!("GET {path}"), &format!("wr_concert={pass}")).await;
        assert_eq!(seen.json()["status"], "active", "{}", seen.text);
        assert_eq!(f.call(pass, &format!("POST {path}/activity"), Value::Null).await.json()["page_views"], 1);
        assert_eq!(f.call(&first_token, &format!("POST {path}/activity"), Value::Null).await.json()["page_views"], 2);
        let done = f.call(pass, &format!("POST {path}/complete"), Value::Null).await;
        assert_eq!(done.json()["status"], "terminated");
        let over = f.call(pass, &format!("POST {path}/activity"), Value::Null).await;
        assert_eq!((over.status, over.code().as_str()), (StatusCode::GONE, "SESSION_EXPIRED"));

        t.clock.advance(std::time::Duration::from_secs(2));
        keeper.tick().await.unwrap();
        let status = f.call(&token, "GET /api/v1/queues/concert/status", Value::Null).await;
        assert_eq!(status.json()["admitted"], true);
        let target = status.json()["redirect_url"].as_str().unwrap().to_owned();
        let ticket = target.strip_prefix("https://shop.example/?wrtoken=").unwrap();
        assert_eq!(room.check_redirect_token(&queue, ticket).await.unwrap().position.to_string(), second["position_id"].as_str().unwrap());
        let left = f.call(&token, "DELETE /api/v1/queues/concert/position", Value::Null).await;
        assert_eq!(left.json()["status"], "cancelled");
        let left = f.call(&token, "POST /api/v1/queues/concert/leave", Value::Null).await;
        assert_eq!((left.status, &left.json()["status"]), (StatusCode::OK, &json!("cancelled")));
        assert_eq!(left.json()["ended_at"], "2026-01-01T00:00:02.000Z");
        let gone = f.call(&token, "GET /api/v1/queues/concert/status", Value::Null).await;
        assert_eq!((gone.status, gone.code().as_str()), (StatusCode::GONE, "POSITION_EXPIRED"));
        let details = &gone.json()["error"]["details"];
        assert_eq!((&details["reason"], &details["enqueue_url"]), (&json!("cancelled"), &json!("/_wr/concert")));
    }

    async fn bad_visitors_get_clear_errors(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let code = async |token: &str, what: &str, body: Value| {
            let answer = f.call(token, what, body).await;
            (answer.status.as_u16(), answer.code())
        };
        let enqueue = "POST /api/v1/queues/concert/enqueue";
        assert_eq!(code("", enqueue, json!({ "priority": 3 })).await, (403, "PRIORITY_NOT_ALLOWED".into()));
        assert_eq!(code("", enqueue, json!({ "invite": "wri1.x.y" })).await, (401, "BAD_TOKEN".into()));
        for short in ["5f0c", "ann@example.com", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
            assert_eq!(code("", enqueue, json!({ "visitor_id": short })).await.0, 400, "{short}");
        }
        let port = json!({ "id": "far", "target_url": "https://x.example:99999/" });
        assert_eq!(f.admin("POST /api/v1/admin/queues", port).await.status, StatusCode::BAD_REQUEST);
        let big = json!({ "metadata": { "a": "x".repeat(2_000) } });
        assert_eq!(code("", enqueue, big).await, (413, "METADATA_TOO_LARGE".into()));
        assert_eq!(code("", "GET /api/v1/queues/concert/status", Value::Null).await, (401, "BAD_TOKEN".into()));
        assert_eq!(code("wrp1.AAAA.AAAA", "GET /api/v1/queues/concert/status", Value::Null).await.0, 401);
        for nowhere in ["nowhere", "A:b"] {
            let what = format!("POST /api/v1/queues/{nowhere}/enqueue");
            assert_eq!(code("", &what, Value::Null).await, (404, "QUEUE_NOT_FOUND".into()));
            let what = format!("GET /api/v1/queues/{nowhere}/status");
            assert_eq!(code("", &what, Value::Null).await, (404, "QUEUE_NOT_FOUND".into()));
        }
        assert_eq!(code("", "GET /api/v1/sessions/xyz", Value::Null).await, (404, "SESSION_NOT_FOUND".into()));
        let jwks = f.get("/.well-known/jwks.json").await;
        assert_eq!(jwks.json()["keys"][0]["kty"], "OKP");
        assert!(jwks.header("cache-control").contains("max-age=300"));
        let now = f.get("/api/v1/queues/concert/now").await.json();
        assert_eq!((&now["status"], &now["total_admitted"], &now["poll"]["divisor"]), (&json!("active"), &json!(0), &json!(10)));
    }

    async fn a_rate_may_be_a_fraction_and_polls_have_bounds_to_set(t: TestStore) {
        let (f, _) = fixture(&t).await;
        let base = "/api/v1/admin/queues/concert";
        for (rate, count, per) in [(json!(0.5), 1, 2), (json!(8.333), 8333, 1000), (json!(10), 10, 1), (json!(0), 0, 1)] {
            let put = f.admin(&format!("PUT {base}"), json!({ "admission_rate": rate })).await.json();
            assert_eq!((&put["admission"]["count"], &put["admission"]["per_seconds"]), (&json!(count), &json!(per)));
        }
        assert_eq!(f.admin(&format!("PATCH {base}"), json!({ "admission_rate": 0.00001 })).await.status, StatusCode::BAD_REQUEST);
        let body = json!({ "poll_floor_seconds": 2, "poll_ceiling_seconds": 10, "user_agent_bytes": 128, "heartbeat_timeout_seconds": 90 });
        let set = f.admin(&format!("PATCH {base}"), body).await.json();
        for (field, value) in [("poll_floor_seconds", 2), ("poll_ceiling_seconds", 10), ("user_agent_bytes", 128), ("heartbeat_timeout_seconds", 90)] {
            assert_eq!(set[field], value, "{field}");
        }
    }

    async fn an_admin_chooses_the_key_of_passes(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        const RSA: &str = include_str!("../../../room/tests/it/fixtures/rsa-for-tests-only.pem");
        t.clock.advance(std::time::Duration::from_secs(1));
        let set = f.admin("PUT /api/v1/admin/keys/pass", json!({ "pem": RSA })).await;
        assert_eq!((set.status, &set.json()["algorithm"]), (StatusCode::OK, &json!("RS256")), "{}", set.text);
        assert_eq!(f.get("/.well-known/jwks.json").await.json()["keys"][0]["alg"], "RS256");
        let audit = f.admin("GET /api/v1/audit", Value::Null).await;
        assert!(audit.text.contains("keys.pass") && !audit.text.contains("PRIVATE"), "{}", audit.text);
        let bad = f.admin("PUT /api/v1/admin/keys/pass", json!({ "pem": "x" })).await;
        assert_eq!(bad.status, StatusCode::BAD_REQUEST);
        t.clock.advance(std::time::Duration::from_secs(1));
        let back = f.admin("PUT /api/v1/admin/keys/pass", json!({})).await;
        assert_eq!(back.json()["algorithm"], "EdDSA", "{}", back.text);
    }

    async fn an_operator_says_why_a_session_ends_and_whose_it_is(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let token = f.call("", "POST /api/v1/queues/concert/enqueue", json!({})).await.json()["token"].as_str().unwrap().to_owned();
        let session = f.call(&token, "POST /api/v1/queues/concert/start-session", Value::Null).await.json();
        let path = format!("/api/v1/admin/sessions/{}", session["session_id"].as_str().unwrap());
        let named = f.admin(&format!("PUT {path}/user"), json!({ "user_id": "user-123" })).await;
        assert_eq!(named.json()["user_id"], "user-123", "{}", named.text);
        let bad = f.admin(&format!("DELETE {path}?reason=no%20good"), Value::Null).await;
        assert_eq!(bad.status, StatusCode::BAD_REQUEST);
        let ended = f.admin(&format!("DELETE {path}?reason=abuse_detected"), Value::Null).await;
        assert_eq!(ended.json()["reason"], "admin_revoked", "{}", ended.text);
        let events = f.admin("GET /api/v1/admin/queues/concert/events", Value::Null).await;
        assert!(events.text.contains("abuse_detected"), "{}", events.text);
    }

    async fn a_queue_is_put_whole_and_only_over_the_version_that_was_read(t: TestStore) {
        let (f, _) = fixture(&t).await;
        let base = "/api/v1/admin/queues/concert";
        let made = f.admin(&format!("PUT {base}"), json!({ "max_queue_size": 7, "reserved_share": 9 })).await;
        assert_eq!((made.status, made.header("etag")), (StatusCode::CREATED, "\"1\""), "{}", made.text);
        f.admin(&format!("POST {base}/message"), json!({ "text": { "en": "soon" } })).await;
        let put = f.admin(&format!("PUT {base}"), json!({ "max_queue_size": 8, "heartbeat_timeout_seconds": 330 })).await;
        assert_eq!((put.status, put.header("etag")), (StatusCode::OK, "\"3\""), "{}", put.text);
        let now = f.admin(&format!("GET {base}"), Value::Null).await;
        assert_eq!(now.header("etag"), "\"3\"");
        let now = now.json();
        assert_eq!((&now["max_queue_size"], &now["reserved_share"]), (&json!(8), &json!(5)), "what was left out has its default");
        assert_eq!((&now["heartbeat_timeout_seconds"], &now["hold_seconds"]), (&json!(330), &json!(150)));
        assert_eq!(now["message"]["en"], "soon");

        let stale = |version: &'static str, method: &'static str| {
            let request = Request::builder().method(method).uri(base).header("if-match", version)
                .header("authorization", format!("Bearer {ADMIN}")).header("content-type", "application/json");
            f.send(request.body(Body::from("{\"name\":\"Other\"}")).unwrap())
        };
        for method in ["PUT", "PATCH"] {
            let refused = stale("\"2\"", method).await;
            assert_eq!((refused.status, refused.code().as_str()), (StatusCode::PRECONDITION_FAILED, "VERSION_CONFLICT"));
            assert_eq!(stale("W/x", method).await.status, StatusCode::BAD_REQUEST);
        }
        assert_eq!(stale("\"3\"", "PUT").await.json()["name"], "Other");

        for (path, body, field) in [
            (base, json!({ "heartbeat_timeout_seconds": 330, "hold_seconds": 150 }), "heartbeat_timeout_seconds"),
            (base, json!({ "heartbeat_timeout_seconds": 5 }), "heartbeat_timeout_seconds"),
            (base, json!({ "heartbeat_timeout_seconds": 239 }), "heartbeat_timeout_seconds"),
            (base, json!({ "hold_seconds": 59 }), "hold_seconds"),
            (base, json!({ "admission_rate": 1_000_001 }), "admission_rate"),
            ("/api/v1/admin/queues/No%20Name", json!({}), "queue_id"),
        ] {
            let bad = f.admin(&format!("PUT {path}"), body).await;
            assert_eq!((bad.status, &bad.json()["error"]["details"]["field"]), (StatusCode::BAD_REQUEST, &json!(field)), "{}", bad.text);
        }
        let none = f.admin("GET /api/v1/admin/queues", Value::Null).await.json();
        assert_eq!(none["items"].as_array().map(Vec::len), Some(1));
    }

    async fn all_sessions_are_ended_by_one_call_that_is_confirmed(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let (_, token) = enqueue(&f).await;
        enqueue(&f).await;
        let came = f.call(&token, "POST /api/v1/queues/concert/start-session", Value::Null).await.json();
        let all = "POST /api/v1/admin/queues/concert/revoke-all";
        assert_eq!(f.admin(all, json!({})).await.status, StatusCode::BAD_REQUEST);
        let ended = f.admin(all, json!({ "confirm": "concert" })).await;
        assert_eq!((ended.status, ended.json()), (StatusCode::OK, json!({ "positions": 0, "sessions": 1 })));
        let room = &room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        let queue = room::QueueId::parse("concert").unwrap();
        assert!(room.check_pass(&queue, came["session_token"].as_str().unwrap()).await.is_err());
        assert_eq!(room.queue(&queue).await.unwrap().waiting, 1);
        let viewer = f.token(Role::Viewer).await;
        assert_eq!(f.call(&viewer, all, json!({ "confirm": "concert" })).await.status, StatusCode::FORBIDDEN);
    }

    async fn operators_run_queues_by_role(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        let operator = f.token(Role::Operator).await;
        let viewer = f.token(Role::Viewer).await;
        let base = "/api/v1/admin/queues/concert";
        let paused = f.call(&operator, &format!("POST {base}/pause"), Value::Null).await;
        assert_eq!(paused.json()["status"], "paused", "{}", paused.text);
        let refused = f.call(&viewer, &format!("POST {base}/resume"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        let (_, token) = enqueue(&f).await;
        let told = f.call(&operator, &format!("POST {base}/message"), json!({ "text": { "en": "soon" } })).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.text);
        let seen = f.call(&token, "GET /api/v1/queues/concert/status", Value::Null).await.json();
        assert_eq!((&seen["paused"], &seen["message"]["en"]), (&json!(true), &json!("soon")));
        assert_eq!(seen["estimated_wait"]["reason"], "paused");
        f.call(&operator, &format!("POST {base}/resume"), Value::Null).await;
        let admitted = f.call(&operator, &format!("POST {base}/admit"), json!({ "count": 5 })).await;
        assert_eq!(admitted.json()["admitted"], 1);
        let rate = f.call(&operator, &format!("POST {base}/rate"), json!({ "count": 500, "per_seconds": 60 })).await;
        assert_eq!(rate.json()["admission"], json!({ "count": 500, "per_seconds": 60, "burst": 9 }));
        let version = rate.json()["version"].as_u64().unwrap();
        let changed = f.admin(&format!("PATCH {base}"), json!({ "max_queue_size": 7 })).await;
        assert_eq!((changed.json()["max_queue_size"].as_u64(), changed.json()["version"].as_u64()), (Some(7), Some(version + 1)));
        let bad = f.admin(&format!("PATCH {base}"), json!({ "hold_seconds": 1 })).await;
        assert_eq!((bad.status, &bad.json()["error"]["details"]["field"]), (StatusCode::BAD_REQUEST, &json!("hold_seconds")));
        assert_eq!(f.admin(&format!("PATCH {base}"), json!({ "nonsense": 1 })).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(f.admin("POST /api/v1/admin/queues", json!({ "id": "concert" })).await.code(), "QUEUE_EXISTS");

        let invite = f.call(&operator, &format!("POST {base}/invites"), json!({ "priority": 2 })).await;
        assert_eq!(invite.status, StatusCode::CREATED, "{}", invite.text);
        let body = json!({ "invite": invite.json()["invite"], "priority": 2 });
        let vip = f.call("", "POST /api/v1/queues/concert/enqueue", body.clone()).await;
        assert_eq!((vip.status, &vip.json()["priority"]), (StatusCode::CREATED, &json!(2)), "{}", vip.text);
        let used = f.call("", "POST /api/v1/queues/concert/enqueue", body).await;
        assert_eq!((used.status, used.code().as_str()), (StatusCode::CONFLICT, "INVITE_USED"));

        for priority in [0, 4] {
            let bad = f.call(&operator, &format!("POST {base}/invites"), json!({ "priority": priority })).await;
            assert_eq!((bad.status, &bad.json()["error"]["details"]["field"]), (StatusCode::BAD_REQUEST, &json!("priority")));
        }

        let stats = f.call(&viewer, &format!("GET {base}/stats"), Value::Null).await;
        assert_eq!(stats.json()["total_enqueued"], 2, "{}", stats.text);
        for field in ["total_waiting", "total_active", "total_expired", "average_wait_ms", "admission_rate",
            "last_admission_at", "peak_queue_size", "total_no_shows", "total_sessions_started"] {
            assert!(!stats.json()[field].is_null(), "{field} of {}", stats.text);
        }
        let hour = &stats.json()["hours"][0];
        assert_eq!((&hour["enqueued"], &hour["peak_queue_size"]), (&json!(2), &json!(1)));
        assert!(hour["wait_p50_ms"].as_u64().is_some_and(|wait| wait < 1_000), "{hour}");
        assert_eq!(hour["started_at"], "2026-01-01T00:00:00.000Z");
        let positions = f.call(&viewer, &format!("GET {base}/positions"), Value::Null).await;
        let positions = positions.json()["items"].as_array().unwrap().clone();
        assert_eq!(positions.len(), 1);
        let one = format!("GET {base}/positions/{}", positions[0]["position_id"].as_str().unwrap());
        assert_eq!(f.call(&viewer, &one, Value::Null).await.json()["position_id"], positions[0]["position_id"]);
        assert_eq!(f.call(&viewer, &format!("GET {base}/positions/xyz"), Value::Null).await.code(), "POSITION_NOT_FOUND");
        let events = f.call(&viewer, &format!("GET {base}/events"), Value::Null).await;
        assert_eq!(events.json()["items"][0]["type"], "waitingroom.queue.created.v1");
        assert_eq!(f.admin("POST /api/v1/admin/keys/rotate", Value::Null).await.json()["rotated"], true);
        let unsure = f.admin(&format!("DELETE {base}"), Value::Null).await;
        assert_eq!(unsure.status, StatusCode::BAD_REQUEST, "needs confirmation");
        let deleted = f.admin(&format!("DELETE {base}?confirm=concert"), Value::Null).await;
        assert_eq!(deleted.json()["positions"], 2, "{}", deleted.text);
        assert_eq!(f.admin(&format!("GET {base}"), Value::Null).await.code(), "QUEUE_NOT_FOUND");
    }

    async fn an_instance_without_the_room_says_so(t: TestStore) {
        let f = Fixture::without(&t, &[&RoomService]);
        let answer = f.get("/api/v1/queues/concert/now").await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_OFF"));
    }

    async fn lists_come_in_pages_and_unknown_names_are_refused(t: TestStore) {
        let (f, _maintenance) = fixture(&t).await;
        queue(&f).await;
        for id in ["a", "b"] {
            f.admin("POST /api/v1/admin/queues", json!({ "id": id })).await;
        }
        for _ in 0..4 {
            enqueue(&f).await;
        }
        let queues = "/api/v1/admin/queues";
        for (path, field, whole) in [
            (queues.to_owned(), "id", 3),
            (format!("{queues}/concert/positions"), "position_id", 3),
            (format!("{queues}/concert/positions?state=admitted"), "position_id", 1),
            (format!("{queues}/concert/events"), "id", 6),
        ] {
            let joint = if path.contains('?') { '&' } else { '?' };
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            for page in 0.. {
                assert!(page < 9, "{path} has no end");
                let page = f.admin(&format!("GET {path}{joint}limit=2{cursor}"), Value::Null).await;
                assert_eq!(page.status, StatusCode::OK, "{}", page.text);
                let page = page.json();
                seen.extend(page["items"].as_array().unwrap().iter().map(|item| item[field].to_string()));
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            assert_eq!(seen.len(), whole, "{path}: {seen:?}");
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), whole, "{path}: each once");
        }
        let enqueue_path = "POST /api/v1/queues/concert/enqueue";
        for (what, body, field) in [
            (format!("GET {queues}?from=1"), Value::Null, "from"),
            (format!("GET {queues}/concert/positions?count=1"), Value::Null, "count"),
            (format!("GET {queues}/concert/positions?state=lost"), Value::Null, "state"),
            (format!("GET {queues}/concert/sessions?limit=0"), Value::Null, "limit"),
            (format!("GET {queues}/concert/events?cursor=x"), Value::Null, "cursor"),
            (format!("DELETE {queues}/concert"), Value::Null, "confirm"),
            (format!("POST {queues}"), json!({ "id": "c", "max_active_users": 1 }), "max_active_users"),
            (format!("POST {queues}"), json!({ "name": "c" }), "id"),
            (format!("PATCH {queues}/concert"), json!({ "duplicates": "face" }), "duplicates"),
            (format!("POST {queues}/concert/admit"), json!({ "count": "many" }), "count"),
            (enqueue_path.to_owned(), json!({ "visitor": "x" }), "visitor"),
            (format!("{enqueue_path}?token=x"), Value::Null, "token"),
        ] {
            let got = f.admin(&what, body).await;
            let details = &got.json()["error"]["details"]["field"];
            assert_eq!((got.status.as_u16(), got.code().as_str(), details), (400, "INVALID_REQUEST", &json!(field)), "{what}: {}", got.text);
            assert!(!got.text.contains("u32") && !got.text.contains("expected"), "{}", got.text);
        }
    }

    async fn a_missing_body_never_resets_a_queue(t: TestStore) {
        let (f, _keeper) = fixture(&t).await;
        let path = "/api/v1/admin/queues/small";
        let made = f.admin(&format!("PUT {path}"), json!({ "name": "Small", "max_active": 1 })).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
        for what in ["PUT", "PATCH"] {
            let got = f.admin(&format!("{what} {path}"), Value::Null).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (400, "INVALID_REQUEST"), "{what}");
        }
        for what in ["admit", "rate", "message", "invites", "reset", "revoke-all", "maintenance"] {
            let got = f.admin(&format!("POST {path}/{what}"), Value::Null).await;
            assert_eq!(got.status.as_u16(), 400, "{what}");
        }
        assert_eq!(f.admin(&format!("DELETE {path}"), Value::Null).await.status.as_u16(), 400);
        let kept = f.admin(&format!("GET {path}"), Value::Null).await.json();
        assert_eq!((&kept["name"], &kept["max_active"]), (&json!("Small"), &json!(1)));
    }
}
