//! A connection that changed its protocol (WebSocket): bytes are passed on until either side ends,
//! the session does, or nothing was sent for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Time at which bytes last went through a tunnel, in either direction.
#[derive(Debug, Clone)]
pub(super) struct Traffic(Arc<Mutex<Instant>>);

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Traffic {
    /// Returns the time of the last bytes.
    pub(super) fn last(&self) -> Instant {
        *self.0.lock()
    }

    /// Returns once nothing went through for `limit`.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let until = self.last() + limit;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// One end of a tunnel; what is read from it is noted as traffic.
#[derive(Debug)]
pub(super) struct TunnelEnd<T> {
    inner: T,
    traffic: Traffic,
}

impl<T> TunnelEnd<T> {
    pub(super) fn new(inner: T, traffic: &Traffic) -> TunnelEnd<T> {
        TunnelEnd { inner, traffic: traffic.clone() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TunnelEnd<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            *self.traffic.0.lock() = Instant::now();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TunnelEnd<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
