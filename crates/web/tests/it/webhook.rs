//! Webhooks with a real receiver: an HTTP server of this test's own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{TestStore, until};
use web::seal::Seal;
use web::testing::Fixture;
use web::webhook::{Event, deliver_due};
use web::{App, Settings};

/// A receiver, and what it got.
#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    /// Answers to give, the first first; 200 when there is none.
    answers: Arc<Mutex<Vec<StatusCode>>>,
    /// Requests that are never answered.
    hangs: Arc<Mutex<usize>>,
}

impl Receiver {
    /// Starts it on a free port and returns its URL.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let router = Router::new().route("/hook", post(take)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    fn bodies(&self) -> Vec<Value> {
        self.got.lock().iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect()
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    receiver.got.lock().push((headers, String::from_utf8(body.to_vec()).unwrap()));
    let hangs = {
        let mut left = receiver.hangs.lock();
        let hangs = *left > 0;
        *left = left.saturating_sub(1);
        hangs
    };
    if hangs {
        std::future::pending::<()>().await;
    }
    let mut answers = receiver.answers.lock();
    if answers.is_empty() { StatusCode::OK } else { answers.remove(0) }
}

fn fixture(t: &TestStore) -> Fixture {
    let webhook_networks = vec!["127.0.0.0/8".parse().unwrap()];
    let f = Fixture::with(t, Settings { webhook_networks, ..Settings::default() });
    f.app.webhooks().set_seal(Seal::new([7; 32]));
    f
}

/// Makes a webhook; returns its id and its secret.
async fn create(f: &Fixture, body: Value) -> (String, String) {
    let made = f.admin("POST /api/v1/webhooks", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made.json()["webhook"]["id"]), text(&made.json()["secret"]))
}

async fn emit(app: &App, subject: &str, text: &str) {
    let event = Event {
        id: None,
        kind: "store.not_writable",
        subject: subject.to_owned(),
        text: text.to_owned(),
        data: json!({}),
    };
    app.webhooks().emit(event).await.unwrap();
}

fn texts(receiver: &Receiver) -> Vec<String> {
    receiver.bodies().iter().map(|body| body["text"].as_str().unwrap().to_owned()).collect()
}

testkit::each_store! {
    async fn an_event_arrives_signed_and_the_signature_can_be_verified(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let url = receiver.start().await;
        let (id, secret) = create(&f, json!({ "name": "on call", "url": url })).await;
        emit(&f.app, "store", "It is full.").await;
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        let (headers, body) = receiver.got.lock()[0].clone();
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("tidegate-event"), "store.not_writable");
        assert!(header("tidegate-delivery").ends_with(&id));
        let event: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&event["type"], &event["text"], &event["state"]), (&json!("store.not_writable"), &json!("It is full."), &json!("happened")));
        let signature = header("tidegate-signature");
        let (time, tag) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        let expected = ring::hmac::sign(&key, format!("{time}.{body}").as_bytes());
        assert_eq!(tag, web::auth::hex(expected.as_ref()));
        let attempts = f.admin(&format!("GET /api/v1/webhooks/{id}/attempts"), Value::Null).await.json();
        assert_eq!((&attempts["items"][0]["outcome"], &attempts["items"][0]["http_status"]), (&json!("delivered"), &json!(200)));
    }

    async fn events_about_one_subject_arrive_in_order_also_when_one_fails(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let url = receiver.start().await;
        create(&f, json!({ "name": "on call", "url": url, "max_per_minute": 6000 })).await;
        *receiver.answers.lock() = vec![StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_GATEWAY];
        for n in 1..=3 {
            emit(&f.app, "store", &format!("event {n}")).await;
        }
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        assert_eq!(deliver_due(&f.app).await.unwrap(), 0, "the retry is not due yet");
        t.clock.advance(Duration::from_secs(7));
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        t.clock.advance(Duration::from_secs(10));
        assert_eq!(deliver_due(&f.app).await.unwrap(), 0, "the second wait is longer");
        t.clock.advance(Duration::from_secs(30));
        while deliver_due(&f.app).await.unwrap() > 0 {}
        assert_eq!(texts(&receiver), ["event 1", "event 1", "event 1", "event 2", "event 3"]);
    }

    async fn what_cannot_be_delivered_becomes_a_dead_letter_that_can_be_sent_again(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let url = receiver.start().await;
        let (id, _) = create(&f, json!({ "name": "on call", "url": url })).await;
        *receiver.answers.lock() = vec![StatusCode::INTERNAL_SERVER_ERROR; 10];
        emit(&f.app, "store", "lost").await;
        for _ in 0..10 {
            assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
            t.clock.advance(Duration::from_secs(2 * 86_400));
        }
        assert_eq!(deliver_due(&f.app).await.unwrap(), 0);
        let path = format!("/api/v1/webhooks/{id}/dead-letters");
        let dead = f.admin(&format!("GET {path}"), Value::Null).await.json()["items"].clone();
        assert_eq!((dead.as_array().unwrap().len(), &dead[0]["attempts"]), (1, &json!(10)));
        let delivery = dead[0]["delivery_id"].as_str().unwrap();
        let resend = format!("POST {path}/{delivery}/resend");
        assert_eq!(f.admin(&resend, Value::Null).await.status, StatusCode::ACCEPTED);
        assert_eq!(f.admin(&resend, Value::Null).await.status, StatusCode::NOT_FOUND);
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        assert_eq!(texts(&receiver).len(), 11);
        let dead = f.admin(&format!("GET {path}"), Value::Null).await.json()["items"].clone();
        assert_eq!(dead, json!([]));
    }

    async fn a_delivery_of_an_instance_that_dies_is_sent_by_another(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let other = Fixture::on(t.another().await, (*f.app.settings()).clone(), Vec::new());
        other.app.webhooks().set_seal(Seal::new([7; 32]));
        let url = receiver.start().await;
        create(&f, json!({ "name": "on call", "url": url })).await;
        *receiver.hangs.lock() = 1;
        emit(&f.app, "store", "once").await;
        let dying = tokio::spawn({
            let app = f.app.clone();
            async move { deliver_due(&app).await }
        });
        until("the receiver has it", async || (receiver.got.lock().len() == 1).then_some(())).await;
        assert_eq!(deliver_due(&other.app).await.unwrap(), 0, "it is leased");
        dying.abort();
        t.clock.advance(Duration::from_secs(31));
        assert_eq!(deliver_due(&other.app).await.unwrap(), 1);
        assert_eq!(deliver_due(&other.app).await.unwrap(), 0);
        let ids: Vec<_> = receiver.got.lock().iter().map(|(headers, _)| headers["tidegate-delivery"].clone()).collect();
        assert_eq!((ids.len(), &ids[0]), (2, &ids[1]), "under the same id, for the receiver to tell");
    }

    async fn a_target_gets_no_more_than_its_rate(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let url = receiver.start().await;
        create(&f, json!({ "name": "slow", "url": url, "max_per_minute": 60 })).await;
        for n in 0..8 {
            emit(&f.app, &format!("subject {n}"), "x").await;
        }
        assert_eq!(deliver_due(&f.app).await.unwrap(), 5, "a burst");
        assert_eq!(deliver_due(&f.app).await.unwrap(), 0);
        t.clock.advance(Duration::from_secs(2));
        assert_eq!(deliver_due(&f.app).await.unwrap(), 2, "one a second");
    }

    async fn private_addresses_are_refused_unless_allowed(t: TestStore) {
        let f = Fixture::new(&t);
        f.app.webhooks().set_seal(Seal::new([7; 32]));
        for url in ["http://127.0.0.1:9/", "http://[::1]/", "http://169.254.169.254/latest", "https://user:pw@example.org/", "gopher://example.org/"] {
            let refused = f.admin("POST /api/v1/webhooks", json!({ "name": "x", "url": url })).await;
            assert_eq!((refused.status, &refused.json()["error"]["details"]["field"]), (StatusCode::BAD_REQUEST, &json!("url")), "{url}");
        }
        // A name is judged by its addresses when something is sent.
        let receiver = Receiver::default();
        let port = receiver.start().await.rsplit(':').next().unwrap().to_owned();
        let (id, _) = create(&f, json!({ "name": "x", "url": format!("http://localhost:{port}") })).await;
        emit(&f.app, "store", "x").await;
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        assert!(receiver.got.lock().is_empty());
        let dead = f.admin(&format!("GET /api/v1/webhooks/{id}/dead-letters"), Value::Null).await;
        assert!(dead.text.contains("private or reserved"), "{}", dead.text);
    }

    async fn a_webhook_is_made_once_changed_tested_and_deleted_and_all_of_it_is_audited(t: TestStore) {
        let (f, receiver) = (fixture(&t), Receiver::default());
        let url = receiver.start().await;
        let body = json!({ "name": "chat", "url": url, "format": "slack" });
        let create = async |body: &Value| {
            let request = axum::http::Request::post("/api/v1/webhooks")
                .header("authorization", format!("Bearer {}", web::testing::ADMIN))
                .header("content-type", "application/json")
                .header("idempotency-key", "k-1");
            f.send(request.body(axum::body::Body::from(body.to_string())).unwrap()).await
        };
        let (first, second) = (create(&body).await, create(&body).await);
        assert_eq!((first.status, second.status), (StatusCode::CREATED, StatusCode::OK), "{}", second.text);
        assert_eq!(first.json(), second.json());
        let other = create(&json!({ "name": "other", "url": url })).await;
        assert_eq!((other.status, other.code()), (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_REUSED".to_owned()));
        let id = first.json()["webhook"]["id"].as_str().unwrap().to_owned();
        let shown = f.admin(&format!("GET /api/v1/webhooks/{id}"), Value::Null).await;
        assert!(!shown.text.contains("/hook") && !shown.text.contains("whsec_"), "{}", shown.text);
        let stored: Vec<(String, String)> = store::redis::cmd("HGETALL").arg("tidegate:{webhooks}:targets")
            .query_async(&mut t.store.clone()).await.unwrap();
        assert!(!stored[0].1.contains("/hook") && !stored[0].1.contains("whsec_"), "sealed: {}", stored[0].1);
        let wrong = f.admin(&format!("PATCH /api/v1/webhooks/{id}"), json!({ "events": ["room.closed"] })).await;
        assert_eq!(wrong.json()["error"]["details"]["field"], "events", "{}", wrong.text);
        let changed = f.admin(&format!("PATCH /api/v1/webhooks/{id}"), json!({ "name": "team chat" })).await;
        assert_eq!(changed.json()["name"], "team chat");
        let tested = f.admin(&format!("POST /api/v1/webhooks/{id}/test"), Value::Null).await;
        assert_eq!(tested.status, StatusCode::ACCEPTED);
        assert_eq!(deliver_due(&f.app).await.unwrap(), 1);
        assert_eq!(receiver.bodies()[0], json!({ "text": "This is a test of Tidegate's webhooks. (webhook.test)" }));
        for page in ["/webhooks".to_owned(), format!("/webhooks/{id}")] {
            let page = f.admin(&format!("GET {page}"), Value::Null).await;
            assert_eq!(page.status, StatusCode::OK, "{}", page.text);
            assert!(page.text.contains("team chat") && !page.text.contains("whsec_"), "{}", page.text);
        }
        assert_eq!(f.admin(&format!("DELETE /api/v1/webhooks/{id}"), Value::Null).await.status, StatusCode::OK);
        assert_eq!(f.admin(&format!("GET /api/v1/webhooks/{id}"), Value::Null).await.status, StatusCode::NOT_FOUND);
        let trail = f.trail().await;
        let actions: Vec<&str> = trail.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
        for action in ["webhook.create", "webhook.change", "webhook.test", "webhook.delete"] {
            assert!(actions.contains(&action), "{actions:?}");
        }
        assert!(!serde_json::to_string(&trail).unwrap().contains("whsec_"));
    }
}
