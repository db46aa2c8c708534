//! Which other sites' pages may call for a visitor: those of the origins a queue lists, and of its
//! target. Answers preflights and adds the headers; what is not allowed gets none, and the browser
//! keeps the answer from the page. What is the same for everybody may be read by everybody.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use room::SessionId;

use super::site::{OWN_PATH, Site};
use crate::app::App;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const ASKED: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, last-event-id");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-request-id, x-wr-location",
);
/// How long browsers may remember a preflight.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// What a path is about.
enum About<'p> {
    /// The calls of a queue's visitors.
    Queue(&'p str),
    /// A session.
    Session(&'p str),
    /// The same for everybody.
    Everybody,
}

fn about(path: &str) -> Option<About<'_>> {
    let path = path.strip_prefix(OWN_PATH).unwrap_or(path);
    if path == "/.well-known/jwks.json" {
        return Some(About::Everybody);
    }
    let rest = path.strip_prefix("/api/v1/")?;
    if let Some(rest) = rest.strip_prefix("queues/") {
        let (queue, call) = rest.split_once('/')?;
        return Some(if call == "now" { About::Everybody } else { About::Queue(queue) });
    }
    let rest = rest.strip_prefix("sessions/")?;
    Some(About::Session(rest.split('/').next().unwrap_or(rest)))
}

/// The middleware.
pub(crate) async fn handle(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(about) = about(request.uri().path()) else { return next.run(request).await };
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        let mut response = next.run(request).await;
        vary(response.headers_mut());
        return response;
    };
    let granted = match about {
        About::Everybody => Some((HeaderValue::from_static("*"), false)),
        about => allows(&app, &about, &origin).await.then_some((origin, true)),
    };
    let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let preflight = request.method() == Method::OPTIONS && asks;
    let mut response = match preflight {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    if let Some((origin, credentials)) = granted {
        let mut put = |name: HeaderName, value: HeaderValue| headers.insert(name, value);
        put(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if credentials {
            let yes = HeaderValue::from_static("true");
            put(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        if preflight {
            put(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            put(header::ACCESS_CONTROL_ALLOW_HEADERS, ASKED);
            put(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        } else {
            put(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
    vary(headers);
    response
}

fn vary(headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

async fn allows(app: &App, about: &About<'_>, origin: &HeaderValue) -> bool {
    let Some(room) = &app.services().room else { return false };
    let queue = match about {
        About::Queue(name) => room::QueueId::parse(name).ok(),
        About::Session(id) => match SessionId::parse(id) {
            Ok(id) => room.queue_of_session(&id).await.ok(),
            Err(_) => None,
        },
        About::Everybody => None,
    };
    let (Some(queue), Ok(origin)) = (queue, origin.to_str()) else { return false };
    // A queue that cannot be read allows nobody.
    room.queue_lately(&queue).await.is_ok_and(|queue| Site::of(&queue.config).allows(origin))
}
