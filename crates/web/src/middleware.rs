//! The middleware around every request, guarded or not: an id, a span, the client's address, limits on
//! the body, one error envelope, headers that keep browsers safe, counts and times, and a panic in
//! a handler that stays in that request.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Body as HttpBody, Frame, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use store::Millis;
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use crate::app::App;
use crate::client::{self, Client, Peer};
use crate::error::ApiError;
use crate::{extract, metrics, openapi, ui};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request, made here.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// The id kept in a request's extensions.
pub fn request_id(extensions: &Extensions) -> String {
    extensions.get::<RequestId>().map_or_else(String::new, |id| id.0.clone())
}

/// The middleware around everything.
pub async fn handle(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let settings = app.settings();
    let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
    let client = Client::of(peer, request.headers(), &settings);
    let id = new_id(app.store().now());
    let proxy_id = client::is_trusted(peer, &settings).then(|| id_of(request.headers())).flatten();
    let proxy_id = proxy_id.map(tracing::field::display);
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let page = wants_page(&request).then(|| ui::theme(request.headers()));
    request.extensions_mut().insert(client);
    request.extensions_mut().insert(RequestId(id.clone()));

    let span = tracing::info_span!("request", id = %id, proxy_id, %method, route = %route);
    let started = Instant::now();
    let mut response = async {
        let query = request.uri().query().unwrap_or_default();
        let known = match app.known_names() {
            Some(known) if !query.is_empty() => known.check_query(&route, &method, query),
            _ => Ok(()),
        };
        let limited =
            known.and_then(|()| limit_body(request, settings.max_body, settings.body_timeout));
        let checked = match limited {
            Ok(request) => refuse_unwanted_body(&app, &route, &method, request).await,
            Err(error) => Err(error),
        };
        match checked {
            Ok(request) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
                Ok(response) => response,
                Err(panic) => {
                    metrics::panicked();
                    ApiError::internal(&panic_text(panic.as_ref())).into_response()
                }
            },
            Err(error) => error.into_response(),
        }
    }
    .instrument(span.clone())
    .await;

    render_error(&app, &mut response, &id, page);
    secure(&mut response, client.secure);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let took = started.elapsed();
    app.meter().answered(response.status(), took);
    metrics::answered(&route, &method, response.status(), took);
    span.in_scope(|| {
        tracing::debug!(status = response.status().as_u16(), took_us = micros(took), "answered");
    });
    response
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// Makes the id of a request. It is always ours: limits and the audit trail are keyed by it, and an
/// id from outside could be sent twice. Nobody gains by guessing one.
fn new_id(now: Millis) -> String {
    let ms = u64::try_from(now.0).unwrap_or(0);
    let chance = std::array::from_fn(|_| fastrand::u8(..));
    uuid::Builder::from_unix_timestamp_millis(ms, &chance).into_uuid().simple().to_string()
}

/// The id a proxy gave the request, for the log only: through many proxies it is the visitor's.
fn id_of(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let known = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    ((1..=64).contains(&id.len()) && id.bytes().all(known)).then(|| id.to_owned())
}

/// A browser that navigates: errors become pages, not JSON.
fn wants_page(request: &Request) -> bool {
    let path = request.uri().path();
    !path.starts_with("/api/")
        && request
            .headers()
            .get(header::ACCEPT)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|accept| accept.contains("text/html"))
}

/// Writes the envelope for errors our handlers gave and for those of the router itself.
fn render_error(app: &App, response: &mut Response, id: &str, page: Option<Option<&'static str>>) {
    let fault = match response.extensions_mut().remove::<ApiError>() {
        Some(fault) => fault,
        None => match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                "this path takes other methods; the Allow header lists them",
            ),
            _ => return,
        },
    };
    let (kind, body) = if let Some(theme) = page {
        ("text/html; charset=utf-8", app.error_page(&fault, id, theme))
    } else {
        let json = serde_json::to_string(&fault.body(id)).unwrap_or_else(|_| "{}".to_owned());
        ("application/json", json)
    };
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    *response.body_mut() = Body::from(body);
}

/// The policy of our own pages: nothing from elsewhere, no inline script or style.
pub const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; font-src 'self'; manifest-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

fn secure(response: &mut Response, over_tls: bool) {
    let is_page = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let policy = if is_page { PAGE_POLICY } else { DATA_POLICY };
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    put(header::CONTENT_SECURITY_POLICY, policy);
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(header::REFERRER_POLICY, "no-referrer");
    put(header::X_FRAME_OPTIONS, "DENY");
    put(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    if over_tls {
        put(header::STRICT_TRANSPORT_SECURITY, "max-age=31536000");
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "of unknown kind".to_owned()))
}

/// Unreserved characters and `/` stay; everything else is encoded.
const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// The few ASCII characters a header or an attribute could stumble over.
const UNSAFE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'^');

/// Percent-encodes everything but unreserved characters and `/`.
pub fn percent(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// Percent-encodes characters that are not ASCII, and the few ASCII ones a header or an attribute
/// could stumble over; leaves the rest of an address as it is.
pub fn percent_foreign(text: &str) -> String {
    utf8_percent_encode(text, UNSAFE).to_string()
}

/// The reason a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// More bytes than the server takes.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// It took too long.
    #[error("the body did not arrive within {0:?}")]
    Slow(Duration),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
}

impl From<&BodyError> for ApiError {
    fn from(error: &BodyError) -> ApiError {
        match error {
            BodyError::TooLarge(most) => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", error.to_string())
                    .details(serde_json::json!({ "max_bytes": most }))
                    .header(header::CONNECTION, HeaderValue::from_static("close"))
            }
            BodyError::Slow(_) => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "BODY_TOO_SLOW", error.to_string())
                    .header(header::CONNECTION, HeaderValue::from_static("close"))
            }
            BodyError::Broken(_) => ApiError::invalid("the body broke off before it was complete"),
        }
    }
}

/// Refuses JSON with fields in it where a call takes no body: a field that is ignored is a mistake that nobody
/// notices.
async fn refuse_unwanted_body(
    app: &App,
    route: &str,
    method: &Method,
    request: Request,
) -> Result<Request, ApiError> {
    let unwanted = app.known_names().is_some_and(|known| known.takes_no_body(route, method));
    if !unwanted || request.body().is_end_stream() || !extract::is_json(request.headers()) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    openapi::check_no_fields(&extract::read(body).await?)?;
    Ok(Request::from_parts(parts, Body::empty()))
}

/// Refuses a body that says it is too large, and watches the others as they arrive.
fn limit_body(request: Request, most: usize, within: Duration) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(Request::from_parts(parts, body));
    }
    if body.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err((&BodyError::TooLarge(most)).into());
    }
    let watched = LimitedBody {
        inner: body,
        left: most,
        most,
        within,
        until: Instant::now() + within,
        deadline: None,
    };
    Ok(Request::from_parts(parts, Body::new(watched)))
}

struct LimitedBody {
    inner: Body,
    left: usize,
    most: usize,
    within: Duration,
    until: Instant,
    /// Running while a part is waited for. Most bodies are there at once and need none.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(length) {
                    Some(left) => {
                        self.left = left;
                        Poll::Ready(Some(Ok(frame)))
                    }
                    None => Poll::Ready(Some(Err(BodyError::TooLarge(self.most)))),
                }
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let until = self.until;
                let clock =
                    self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                match clock.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(BodyError::Slow(self.within)))),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
