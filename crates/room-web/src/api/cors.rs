//! CORS of the visitors' calls: allowed for the origins a queue lists and for its target. Answers
//! preflight requests and adds the headers; an origin that is not allowed gets none, and the browser
//! keeps the response from the page. Public calls allow every origin.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use room::SessionId;

use crate::service::RoomState;
use crate::site::{OWN_PATH, Site};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, last-event-id");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-request-id, x-wr-location",
);
/// Seconds for which browsers may cache a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Scope that decides which origins are allowed.
enum CorsScope<'p> {
    /// The calls of a queue's visitors.
    Queue(&'p str),
    /// A session.
    Session(&'p str),
    /// A public call.
    Everybody,
}

fn about(path: &str) -> Option<CorsScope<'_>> {
    let path = path.strip_prefix(OWN_PATH).unwrap_or(path);
    if path == "/.well-known/jwks.json" {
        return Some(CorsScope::Everybody);
    }
    let rest = path.strip_prefix("/api/v1/")?;
    if let Some(rest) = rest.strip_prefix("queues/") {
        let (queue, call) = rest.split_once('/')?;
        return Some(if call == "now" { CorsScope::Everybody } else { CorsScope::Queue(queue) });
    }
    let rest = rest.strip_prefix("sessions/")?;
    Some(CorsScope::Session(rest.split('/').next().unwrap_or(rest)))
}

/// The middleware.
pub(crate) async fn handle(
    State(state): State<RoomState>,
    request: Request,
    next: Next,
) -> Response {
    let Some(about) = about(request.uri().path()) else { return next.run(request).await };
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        let mut response = next.run(request).await;
        vary(response.headers_mut());
        return response;
    };
    let granted = match about {
        CorsScope::Everybody => Some((HeaderValue::from_static("*"), false)),
        about => allows(&state, &about, &origin).await.then_some((origin, true)),
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
            put(header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
            put(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
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

async fn allows(state: &RoomState, about: &CorsScope<'_>, origin: &HeaderValue) -> bool {
    let room = &state.room;
    let queue = match about {
        CorsScope::Queue(name) => room::QueueId::parse(name).ok(),
        CorsScope::Session(id) => match SessionId::parse(id) {
            Ok(id) => room.queue_of_session(&id).await.ok(),
            Err(_) => None,
        },
        CorsScope::Everybody => None,
    };
    let (Some(queue), Ok(origin)) = (queue, origin.to_str()) else { return false };
    // A queue that cannot be read allows no origin.
    room.cached_queue(&queue).await.is_ok_and(|queue| Site::of(&queue.config).allows(origin))
}
