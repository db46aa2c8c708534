//! Writes a stream of server-sent events straight to the socket. The HTTP machinery is gone by
//! then: what is left of a connection is its socket, a small task and a place in a channel.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::response::Parts;
use axum::http::{HeaderName, header};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::sse::{PING, PING_EVERY};

/// The head of a response and the events that follow it, on their way out of the HTTP machinery.
#[derive(Clone, Default)]
pub(super) struct Handover(Arc<Mutex<Option<(Parts, Events)>>>);

type Events = BoxStream<'static, Bytes>;

impl Handover {
    pub(super) fn put(&self, head: Parts, events: Events) {
        *self.0.lock() = Some((head, events));
    }

    pub(super) fn take(&self) -> Option<(Parts, Events)> {
        self.0.lock().take()
    }
}

/// The reason the HTTP machinery is given for ending the connection on its side.
#[derive(Debug, thiserror::Error)]
#[error("the socket was taken over for events")]
pub(super) struct TakenOver;

/// Told to browsers when the server stops: come back after this many milliseconds.
const GOODBYE: &[u8] = b"retry: 1000\nevent: goodbye\ndata: {}\n\n";

/// Writes head and events until either side has enough.
pub(super) async fn write<I>(mut io: I, head: Parts, mut events: Events, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    if io.write_all(head_text(&head).as_bytes()).await.is_err() {
        return;
    }
    let mut ping = Box::pin(tokio::time::sleep(PING_EVERY));
    loop {
        let mut byte = [0_u8; 8];
        let frame = tokio::select! {
            biased;
            () = stop.cancelled() => {
                // Best effort: the client may be gone already.
                let _ = chunk(&mut io, GOODBYE).await;
                None
            }
            frame = events.next() => frame,
            () = ping.as_mut() => Some(PING),
            // A client that says anything more, or leaves, has had enough.
            _ = io.read(&mut byte) => return,
        };
        let Some(frame) = frame else { break };
        if chunk(&mut io, &frame).await.is_err() {
            return;
        }
        ping.as_mut().reset(tokio::time::Instant::now() + PING_EVERY);
    }
    // The end of the body; a client that left does not need it.
    let _ = io.write_all(b"0\r\n\r\n").await;
    let _ = tokio::time::timeout(Duration::from_secs(1), io.shutdown()).await;
}

async fn chunk(io: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> std::io::Result<()> {
    let mut frame = Vec::with_capacity(data.len() + 16);
    frame.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    frame.extend_from_slice(data);
    frame.extend_from_slice(b"\r\n");
    io.write_all(&frame).await?;
    io.flush().await
}

fn head_text(head: &Parts) -> String {
    let mut text = String::with_capacity(512);
    // Writing to a String cannot fail.
    let _ = write!(text, "HTTP/1.1 {}\r\n", head.status);
    for (name, value) in &head.headers {
        if is_framing(name) {
            continue;
        }
        if let Ok(value) = value.to_str() {
            let _ = write!(text, "{name}: {value}\r\n");
        }
    }
    text.push_str("transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    text
}

fn is_framing(name: &HeaderName) -> bool {
    *name == header::CONTENT_LENGTH
        || *name == header::TRANSFER_ENCODING
        || *name == header::CONNECTION
}
