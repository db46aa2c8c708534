//! For tests: an app on a test store, and short ways to call it.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "for tests only")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use store::Store;
use tower::ServiceExt;

use crate::auth::{NewToken, Role, Secret};
use crate::service::OpenService;
use crate::store::StoreService;
use crate::{App, AppParts, Settings};

pub const ADMIN: &str = "tg_admin_for_tests";

/// An app with these services and the store's own.
pub fn test_app(
    store: Store,
    settings: Settings,
    mut services: Vec<OpenService>,
    admin_token: Option<Secret>,
) -> App {
    services.push(OpenService { service: &StoreService, running: Arc::new(StoreService) });
    // A handful of pointers for each test.
    let known_services: &'static [_] =
        services.iter().map(|open| open.service).collect::<Vec<_>>().leak();
    App::new(AppParts {
        store,
        services,
        known_services,
        settings,
        admin_token,
        instance: "test".to_owned(),
        shown_settings: Vec::new(),
    })
}

#[derive(Debug)]
pub struct Fixture {
    pub app: App,
    router: Router,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

/// A body as it was sent.
#[derive(Debug)]
pub struct SentBody {
    pub status: u16,
    pub coding: String,
    pub cache: String,
    pub bytes: usize,
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct Events {
    pub status: StatusCode,
    body: Body,
    text: String,
}

impl Events {
    /// The id and data of the next event of a name, others passed over; `None` at the end.
    pub async fn next(&mut self, name: &str) -> Option<(String, Value)> {
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
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The code of the error envelope.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The value of a series in the text of `/metrics`, by name and labels as they are written.
    pub fn series(&self, series: &str) -> Option<f64> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// The answer of a gRPC call.
#[derive(Debug)]
pub struct GrpcAnswer {
    pub status: u32,
    pub message: String,
    /// The message behind its prefix; empty if the call failed.
    pub body: Vec<u8>,
}

/// A message with the prefix of gRPC.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), message].concat()
}

/// A body that does not end by itself.
#[derive(Debug)]
pub struct Pieces(Body);

impl Pieces {
    /// The next piece, which must come.
    pub async fn next(&mut self) -> String {
        let wait = std::time::Duration::from_secs(20);
        let frame = tokio::time::timeout(wait, self.0.frame()).await.unwrap().unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    }
}

impl Fixture {
    pub fn new(t: &impl AsRef<Store>) -> Fixture {
        Fixture::with(t, Settings::default())
    }

    pub fn with(t: &impl AsRef<Store>, settings: Settings) -> Fixture {
        Fixture::running(t, settings, Vec::new())
    }

    /// With services that are open already, besides the store's own.
    pub fn running(
        t: &impl AsRef<Store>,
        settings: Settings,
        services: Vec<OpenService>,
    ) -> Fixture {
        Fixture::on(t.as_ref().clone(), settings, services)
    }

    /// An instance on which these services of the product do not run.
    pub fn without(t: &impl AsRef<Store>, services: crate::service::Services) -> Fixture {
        let app = App::new(AppParts {
            store: t.as_ref().clone(),
            services: Vec::new(),
            known_services: services,
            settings: Settings::default(),
            admin_token: Some(Secret::new(ADMIN)),
            instance: "test".to_owned(),
            shown_settings: Vec::new(),
        });
        Fixture { router: crate::app(app.clone()), app }
    }

    /// On a store of its own, as a second instance has it.
    pub fn on(store: Store, settings: Settings, services: Vec<OpenService>) -> Fixture {
        let app = test_app(store, settings, services, Some(Secret::new(ADMIN)));
        Fixture { router: crate::app(app.clone()), app }
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    /// What a GET sends over the wire.
    pub async fn weigh(&self, path: &str, token: &str, accepts: &str) -> SentBody {
        let mut request = Request::get(path).header("accept-encoding", accepts);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.weigh_request(request.body(Body::empty()).unwrap()).await
    }

    /// A request, and the answer as it was sent.
    pub async fn weigh_request(&self, request: Request<Body>) -> SentBody {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let header = |name: &str| {
            parts.headers.get(name).map_or_else(String::new, |v| v.to_str().unwrap().to_owned())
        };
        SentBody {
            status: parts.status.as_u16(),
            coding: header("content-encoding"),
            cache: header("cache-control"),
            bytes: body.collect().await.unwrap().to_bytes().len(),
        }
    }

    /// A gRPC call whose body is sent as it is.
    pub async fn grpc(&self, token: &str, path: &str, body: Vec<u8>) -> GrpcAnswer {
        let mut request = Request::post(path)
            .version(axum::http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::from(body)).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200, "gRPC has its own statuses");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let head = response.headers().clone();
        let collected = response.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or(head);
        let text = |name: &str| trailers.get(name).map_or("", |value| value.to_str().unwrap());
        GrpcAnswer {
            status: text("grpc-status").parse().unwrap(),
            message: text("grpc-message").to_owned(),
            body: collected.to_bytes().get(5..).unwrap_or_default().to_vec(),
        }
    }

    /// A POST whose body is sent as it is; returns status, kind and body of the answer.
    pub async fn post_bytes(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> (u16, String, Vec<u8>) {
        let request = headers
            .iter()
            .fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        let request = request.body(Body::from(body)).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let kind =
            response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        (status, kind.unwrap_or_default(), body)
    }

    /// Opens a stream of server-sent events.
    pub async fn listen(&self, request: Request<Body>) -> Events {
        let response = self.router.clone().oneshot(request).await.unwrap();
        Events { status: response.status(), body: response.into_body(), text: String::new() }
    }

    /// A call with a token and, unless it is null, a JSON body.
    pub async fn call(&self, token: &str, what: &str, body: Value) -> Answer {
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

    /// A call of the admin with an idempotency key.
    pub async fn keyed(&self, key: &str, what: &str, body: Value) -> Answer {
        let (method, path) = what.split_once(' ').unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {ADMIN}"))
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("", &format!("GET {path}"), Value::Null).await
    }

    /// The body of a GET as the admin, piece by piece.
    pub async fn stream(&self, path: &str) -> Pieces {
        let request = Request::get(path).header("authorization", format!("Bearer {ADMIN}"));
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Pieces(response.into_body())
    }

    /// What the trail says, newest first.
    pub async fn trail(&self) -> Vec<Value> {
        let trail = self.admin("GET /api/v1/audit?limit=500", Value::Null).await.json();
        trail["items"].as_array().unwrap().clone()
    }

    pub async fn admin(&self, what: &str, body: Value) -> Answer {
        self.call(ADMIN, what, body).await
    }

    /// A token of the given role.
    pub async fn token(&self, role: Role) -> String {
        let new = NewToken { name: format!("a {role}"), role, scopes: Vec::new() };
        let (_, secret) =
            self.app.auth().create_token(self.app.store(), new, "the test").await.unwrap();
        secret.reveal().to_owned()
    }
}
