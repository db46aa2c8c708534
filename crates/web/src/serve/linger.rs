//! Closing without a reset. A socket that is closed while bytes of the client are unread sends a
//! reset, and that can overtake the answer. So the answer is followed by an end of our side (FIN),
//! and what the client still sends is read and dropped for a while (nginx: `lingering_close`).
//! A stream of HTTP/2 has the same trouble: see [`LingerBody`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Time a client may go on sending after the answer, and the longest pause in it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes dropped; whoever sends more is reset.
const LINGER_MAX_BYTES: usize = 256 * 1024 * 1024;

/// Reads and drops what the client still sends, until it ends, within `timeout` and the limits.
pub(super) async fn drain<I: AsyncRead + Unpin>(io: &mut I, timeout: Duration) {
    let until = Instant::now() + timeout.min(LINGER_TIMEOUT);
    let mut left = LINGER_MAX_BYTES;
    let mut buffer = vec![0; 16 * 1024];
    while left > 0 {
        let silent = Instant::now() + SILENCE_TIMEOUT;
        match tokio::time::timeout_at(until.min(silent), io.read(&mut buffer)).await {
            Ok(Ok(read)) if read > 0 => left = left.saturating_sub(read),
            // The end, a broken connection, or silence.
            _ => return,
        }
    }
}

/// Sends a short answer, ends our side, and drops what the client sends for at most `timeout`.
pub(super) async fn answer<I>(io: &mut I, answer: &[u8], timeout: Duration)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let told = async {
        io.write_all(answer).await?;
        io.shutdown().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(timeout, told).await {
        drain(io, timeout).await;
    }
}

/// Tells whether a request body was left unread when its connection ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, unread: bool) {
        self.0.store(unread, Ordering::Relaxed);
    }
}

/// The body of a request, which notes when it has been read to its end.
pub(super) struct ReadBody<B> {
    inner: B,
    unread: Unread,
}

impl<B> ReadBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    /// Watches a body; an empty one is read already.
    pub(super) fn watch(inner: B, unread: &Unread) -> Body {
        let has_body = !inner.is_end_stream();
        unread.set(has_body);
        if has_body { Body::new(ReadBody { inner, unread: unread.clone() }) } else { Body::empty() }
    }
}

impl<B: HttpBody + Unpin> HttpBody for ReadBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let poll = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(poll, Poll::Ready(None)) || self.inner.is_end_stream() {
            self.unread.set(false);
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an HTTP/2 request. If it is dropped before its end, the rest is read and dropped for a
/// while. hyper would reset the stream after the answer, which RFC 9113 (8.1) allows, but clients drop
/// the answer together with the stream: curl does when both arrive at once.
pub(super) struct LingerBody<B>
where
    B: HttpBody + Send + Unpin + 'static,
{
    inner: Option<B>,
}

impl<B> LingerBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    /// Wraps a body, unless it is empty.
    pub(super) fn wrap(inner: B) -> Body {
        if inner.is_end_stream() {
            Body::empty()
        } else {
            Body::new(LingerBody { inner: Some(inner) })
        }
    }
}

impl<B> HttpBody for LingerBody<B>
where
    B: HttpBody + Send + Unpin + 'static,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let poll = Pin::new(inner).poll_frame(cx);
        // After an error there is nothing left to read.
        if matches!(poll, Poll::Ready(None | Some(Err(_)))) {
            self.inner = None;
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl<B> Drop for LingerBody<B>
where
    B: HttpBody + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let rest = self.inner.take().filter(|inner| !inner.is_end_stream());
        if let (Some(rest), Ok(runtime)) = (rest, tokio::runtime::Handle::try_current()) {
            // The streams of a connection are counted until they end, so these tasks are bounded too.
            runtime.spawn(drain_body(rest));
        }
    }
}

/// Reads and drops a body, until it ends, within the limits.
async fn drain_body<B: HttpBody + Unpin>(mut body: B) {
    let until = Instant::now() + LINGER_TIMEOUT;
    let mut left = LINGER_MAX_BYTES;
    while left > 0 {
        let silent = Instant::now() + SILENCE_TIMEOUT;
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        match tokio::time::timeout_at(until.min(silent), next).await {
            Ok(Some(Ok(frame))) => {
                left = left.saturating_sub(frame.data_ref().map_or(0, Buf::remaining));
            }
            // The end, a broken connection, or silence.
            _ => return,
        }
    }
}
