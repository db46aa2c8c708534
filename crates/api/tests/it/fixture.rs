//! An app on a test store, and short ways to ask it things.

use api::auth::{NewToken, Role, Secret};
use api::{App, Parts, Services, Settings};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use testkit::TestStore;
use tower::ServiceExt;

pub(crate) const ADMIN: &str = "tg_admin_for_tests";

pub(crate) struct Fixture {
    pub(crate) app: App,
    router: Router,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

/// A stream of server-sent events.
pub(crate) struct Events {
    pub(crate) status: StatusCode,
    body: Body,
    text: String,
}

impl Events {
    /// The id and data of the next event of a name, others passed over; `None` at the end.
    pub(crate) async fn next(&mut self, name: &str) -> Option<(String, Value)> {
        let read = async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let event = event.to_owned();
                    self.text = rest.to_owned();
                    let field = |wanted: &str| {
                        let mut lines = event.lines();
                        lines.find_map(|line| line.strip_prefix(wanted)?.strip_prefix(": "))
                    };
                    if field("event") == Some(name) {
                        let data = serde_json::from_str(field("data").unwrap()).unwrap();
                        return Some((field("id").unwrap_or_default().to_owned(), data));
                    }
                }
                let frame = self.body.frame().await?.unwrap();
                if let Ok(data) = frame.into_data() {
                    self.text.push_str(std::str::from_utf8(&data).unwrap());
                }
            }
        };
        let limit = std::time::Duration::from_secs(30);
        tokio::time::timeout(limit, read).await.unwrap_or_else(|_| panic!("no event {name}"))
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The code of the error envelope.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A body that does not end by itself.
pub(crate) struct Pieces(Body);

impl Pieces {
    /// The next piece, which must come.
    pub(crate) async fn next(&mut self) -> String {
        let wait = std::time::Duration::from_secs(20);
        let frame = tokio::time::timeout(wait, self.0.frame()).await.unwrap().unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    }
}

impl Fixture {
    pub(crate) fn new(t: &TestStore) -> Fixture {
        Fixture::with(t, Settings::default())
    }

    pub(crate) fn with(t: &TestStore, settings: Settings) -> Fixture {
        Fixture::running(t, settings, Services::default())
    }

    /// With services that run.
    pub(crate) fn running(t: &TestStore, settings: Settings, services: Services) -> Fixture {
        Fixture::on(t.store.clone(), settings, services)
    }

    /// On a store of one's own, as a second instance has it.
    pub(crate) fn on(store: store::Store, settings: Settings, services: Services) -> Fixture {
        let app = App::new(Parts {
            store,
            services,
            settings,
            admin_token: Some(Secret::new(ADMIN)),
            instance: "test".to_owned(),
            shown_settings: Vec::new(),
        });
        Fixture { router: api::app(app.clone()), app }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    /// Opens a stream of server-sent events.
    pub(crate) async fn listen(&self, request: Request<Body>) -> Events {
        let response = self.router.clone().oneshot(request).await.unwrap();
        Events { status: response.status(), body: response.into_body(), text: String::new() }
    }

    /// A call with a token and, unless it is null, a JSON body.
    pub(crate) async fn call(&self, token: &str, what: &str, body: Value) -> Answer {
        let (method, path) = what.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = if body.is_null() {
            Body::empty()
        } else {
            request = request.header("content-type", "application/json");
            Body::from(body.to_string())
        };
        self.send(request.body(body).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("", &format!("GET {path}"), Value::Null).await
    }

    /// The body of a GET as the admin, piece by piece.
    pub(crate) async fn stream(&self, path: &str) -> Pieces {
        let request = Request::get(path).header("authorization", format!("Bearer {ADMIN}"));
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Pieces(response.into_body())
    }

    /// What the trail says, newest first.
    pub(crate) async fn trail(&self) -> Vec<Value> {
        let trail = self.admin("GET /api/v1/audit?limit=500", Value::Null).await.json();
        trail["entries"].as_array().unwrap().clone()
    }

    pub(crate) async fn admin(&self, what: &str, body: Value) -> Answer {
        self.call(ADMIN, what, body).await
    }

    /// A token of the given role.
    pub(crate) async fn token(&self, role: Role) -> String {
        let new = NewToken { name: format!("a {role}"), role, scopes: Vec::new() };
        let (_, secret) =
            self.app.auth().create_token(self.app.store(), new, "the test").await.unwrap();
        secret.reveal().to_owned()
    }
}
