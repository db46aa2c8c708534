//! Server-sent events. A handler gives a stream of encoded events; over HTTP/1.1 the accept loop
//! takes the socket back from the HTTP machinery and writes them itself (see `serve/events.rs`), so
//! that an idle stream costs a small task instead of two buffers. Over HTTP/2 it is an ordinary body.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use crate::app::App;

/// A comment goes out after this long without an event, so that proxies keep the stream open.
pub const PING_EVERY: Duration = Duration::from_secs(15);
/// The comment.
pub const PING: Bytes = Bytes::from_static(b": ping\n\n");

/// One event, encoded. `data` may have several lines.
///
/// ```
/// assert_eq!(&tidegate_web::sse::event("position", Some("7"), "12")[..], b"event: position\nid: 7\ndata: 12\n\n");
/// ```
pub fn event(name: &str, id: Option<&str>, data: &str) -> Bytes {
    let mut text = String::with_capacity(name.len() + data.len() + 32);
    text.push_str("event: ");
    text.push_str(name);
    if let Some(id) = id {
        text.push_str("\nid: ");
        text.push_str(id);
    }
    for line in data.lines() {
        text.push_str("\ndata: ");
        text.push_str(line);
    }
    if data.is_empty() {
        text.push_str("\ndata: ");
    }
    text.push_str("\n\n");
    Bytes::from(text)
}

/// A stream of encoded events as a response. It ends when the stream ends, the client goes away, or
/// the server stops; browsers then come back by themselves.
#[derive(Debug)]
pub struct Sse(Response);

/// The events of a response, for whoever writes them: the body, or the accept loop.
#[derive(Clone)]
pub(crate) struct EventsSlot(Arc<Mutex<Option<Events>>>);

impl EventsSlot {
    /// The events, once.
    pub(crate) fn take(&self) -> Option<Events> {
        self.0.lock().take()
    }

    /// Ends the events when `end` does.
    pub(crate) fn until(&self, end: impl Future<Output = ()> + Send + 'static) {
        let mut slot = self.0.lock();
        *slot = slot.take().map(|events| events.take_until(end).boxed());
    }
}

impl Sse {
    /// As [`new`](Sse::new), for a stream that is followed for long: says at once that it has begun,
    /// and how soon a client that lost it shall come back.
    pub fn following(
        app: &App,
        retry: Duration,
        events: impl futures_util::Stream<Item = Bytes> + Send + 'static,
    ) -> Sse {
        let hello = Bytes::from(format!("retry: {}\n: hello\n\n", retry.as_millis()));
        Sse::new(app, futures_util::stream::iter([hello]).chain(events))
    }

    /// Sends what the stream gives, each item one event made by [`event`], until the app stops.
    pub fn new(app: &App, events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Sse {
        let events = events.take_until(app.stopped()).boxed();
        let taken = EventsSlot(Arc::new(Mutex::new(Some(events))));
        let body = futures_util::stream::unfold((taken.clone(), None), next);
        let mut response = Body::from_stream(body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // nginx would otherwise hold events back.
        headers
            .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response.extensions_mut().insert(taken);
        Sse(response)
    }
}

impl IntoResponse for Sse {
    fn into_response(self) -> Response {
        self.0
    }
}

type Events = BoxStream<'static, Bytes>;

/// The body's next piece. The events are taken when the body is first asked, so the accept loop can
/// be quicker and take them for itself.
async fn next(
    (taken, events): (EventsSlot, Option<Events>),
) -> Option<(Result<Bytes, Infallible>, (EventsSlot, Option<Events>))> {
    let mut events = match events {
        Some(events) => events,
        None => taken.take()?,
    };
    match tokio::time::timeout(PING_EVERY, events.next()).await {
        Ok(Some(frame)) => Some((Ok(frame), (taken, Some(events)))),
        Ok(None) => None,
        Err(_) => Some((Ok(PING), (taken, Some(events)))),
    }
}
