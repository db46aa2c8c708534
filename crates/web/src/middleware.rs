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
use store::trace::{SpanKind, TraceContext, TraceSpan};
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use crate::app::App;
use crate::auth::Role;
use crate::auth::require;
use crate::client::{self, Client, Peer};
use crate::error::ApiError;
use crate::requests::RequestGuard;
use crate::{extract, grpc, metrics, openapi, ui};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

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
    if request.headers().contains_key(&settings.client_address_header)
        && !client::is_trusted(peer, &settings)
    {
        metrics::untrusted_forwarding();
    }
    let id = new_id(app.store().now());
    let proxy_id = client::is_trusted(peer, &settings).then(|| id_of(request.headers())).flatten();
    let proxy_id = proxy_id.map(tracing::field::display);
    let method = request.method().clone();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let route = matched.unwrap_or("unmatched");
    let page = wants_page(&request).then(|| request.headers().clone());
    let is_grpc = grpc::is_grpc(request.headers());
    request.extensions_mut().insert(client);
    request.extensions_mut().insert(RequestId(id.clone()));

    let mut trace = request_trace(request.headers(), &method, route);
    let context = trace.context();
    let trace_id = context.map(|context| tracing::field::display(context.trace_id_text()));
    let span =
        tracing::info_span!("request", id = %id, proxy_id, %method, route = %route, trace_id);
    let guard = RequestGuard {
        requests: app.requests().own(),
        store: app.store(),
        route: matched,
        method: &method,
        started: Instant::now(),
        trace_id: context.filter(|context| context.sampled).map(|context| context.trace_id),
        ended: false,
    };
    let work = async {
        let query = request.uri().query().unwrap_or_default();
        let known = match app.known_names() {
            Some(known) if !query.is_empty() => known.check_query(route, &method, query),
            _ => Ok(()),
        };
        let most = app.max_body_of(route).unwrap_or(settings.max_body);
        let limited = known.and_then(|()| limit_body(request, most, settings.body_timeout));
        let checked = match limited {
            Ok(request) => refuse_unwanted_body(&app, route, &method, request).await,
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
    .instrument(span.clone());
    let mut response = store::trace::scope_if(context, work).await;

    let is_refused = is_refused(&response);
    // Calls of gRPC are counted by the status an HTTP client would have had.
    let status = response.status();
    if is_grpc {
        render_grpc_error(&mut response, matched.is_some());
    } else {
        render_error(&app, &mut response, &id, page.as_ref()).await;
    }
    secure(&mut response, client.secure);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let took = guard.answered(status.as_u16(), is_refused);
    end_trace(&mut trace, status);
    span.in_scope(|| {
        tracing::debug!(status = status.as_u16(), took_us = micros(took), "answered");
    });
    response
}

/// Marks the answer to a request that was turned away before it reached a handler, where the answer
/// is no error: a redirect to the login, a page. Errors that turn away carry the mark themselves.
#[derive(Debug, Clone, Copy)]
pub struct RefusalMark;

fn is_refused(response: &Response) -> bool {
    let extensions = response.extensions();
    extensions.get::<RefusalMark>().is_some()
        || extensions.get::<ApiError>().is_some_and(ApiError::is_refusal)
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

/// The trace that the caller is in. Only its ids are taken over, and only if they are well formed;
/// of two different ones nobody can tell which is right (W3C Trace Context, 3.2).
pub fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(TRACE_PARENT).iter();
    let context = values.next()?.to_str().ok()?.parse().ok();
    context.filter(|_| values.next().is_none())
}

/// Begins the span of a request, in the trace of its caller. `route` is the template of its path:
/// the path itself may hold what is not for traces.
pub fn request_trace(headers: &HeaderMap, method: &Method, route: &str) -> TraceSpan {
    let name = || format!("{method} {route}").into();
    let mut span = TraceSpan::begin(SpanKind::Server, trace_of(headers), name);
    span.set("http.request.method", || method.to_string());
    span.set("http.route", || route.to_owned());
    span
}

/// Notes the answer to a request in its span.
pub fn end_trace(span: &mut TraceSpan, status: StatusCode) {
    span.set("http.response.status_code", || status.as_u16());
    if status.is_server_error() {
        span.fail(|| status.to_string());
    }
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

/// The error of a response: one that our handlers gave, or one of the router itself.
fn error_of(response: &mut Response) -> Option<ApiError> {
    response.extensions_mut().remove::<ApiError>().or_else(|| {
        (response.status() == StatusCode::METHOD_NOT_ALLOWED).then(|| {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                "this path takes other methods; the Allow header lists them",
            )
        })
    })
}

/// Writes an error as a client of gRPC understands it.
fn render_grpc_error(response: &mut Response, is_known_method: bool) {
    if let Some(fault) = error_of(response) {
        *response = grpc::failure(&fault, is_known_method);
    }
}

/// Writes the envelope for errors our handlers gave and for those of the router itself.
async fn render_error(app: &App, response: &mut Response, id: &str, page: Option<&HeaderMap>) {
    let Some(fault) = error_of(response) else { return };
    let (kind, body) = if let Some(headers) = page {
        let viewer = require::identify(app, headers, &Method::GET).await.ok();
        let viewer = viewer.filter(|viewer| viewer.role >= Role::Viewer);
        let page = app.error_page(&fault, id, ui::theme(headers), viewer);
        ("text/html; charset=utf-8", page)
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
    connect-src 'self'; frame-src 'self'; img-src 'self' data:; font-src 'self'; manifest-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

fn secure(response: &mut Response, over_tls: bool) {
    let is_page = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let policy = if is_page { PAGE_POLICY } else { DATA_POLICY };
    let headers = response.headers_mut();
    // A page whose own policy names sites that may frame it: the older header knows no list of sites.
    let own = headers.get(header::CONTENT_SECURITY_POLICY).and_then(|value| value.to_str().ok());
    let is_framable = own.is_some_and(|policy| {
        policy.contains("frame-ancestors") && !policy.contains("frame-ancestors 'none'")
    });
    let mut put = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    put(header::CONTENT_SECURITY_POLICY, policy);
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(header::REFERRER_POLICY, "no-referrer");
    if !is_framable {
        put(header::X_FRAME_OPTIONS, "DENY");
    }
    put(OPENER_POLICY, "same-origin");
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

/// Characters of `grpc-message` that are encoded: all but printable ASCII, and the percent sign.
const GRPC_UNSAFE: &AsciiSet = &CONTROLS.add(b'%');

/// Percent-encodes the message of a gRPC status.
pub(crate) fn percent_grpc(text: &str) -> String {
    utf8_percent_encode(text, GRPC_UNSAFE).to_string()
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
                    .refusing()
            }
            BodyError::Slow(_) => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "BODY_TOO_SLOW", error.to_string())
                    .header(header::CONNECTION, HeaderValue::from_static("close"))
                    .refusing()
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
