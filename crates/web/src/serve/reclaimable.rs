//! A socket that is lent to the HTTP machinery and can be had back once that has ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The lender's side.
pub(super) struct IoHandle<I>(Arc<Mutex<Option<I>>>);

/// The borrower's side: works as the socket until the lender takes it back.
pub(super) struct ReclaimableIo<I>(Arc<Mutex<Option<I>>>);

/// Lends a socket.
pub(super) fn lend<I>(io: I) -> (IoHandle<I>, ReclaimableIo<I>) {
    let shared = Arc::new(Mutex::new(Some(io)));
    (IoHandle(shared.clone()), ReclaimableIo(shared))
}

impl<I> IoHandle<I> {
    /// The socket back. The borrower gets errors from now on.
    pub(super) fn take(&self) -> Option<I> {
        self.0.lock().take()
    }
}

fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
}

impl<I: AsyncRead + Unpin> AsyncRead for ReclaimableIo<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.0.lock().as_mut() {
            Some(io) => Pin::new(io).poll_read(cx, buf),
            None => gone(),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ReclaimableIo<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.0.lock().as_mut() {
            Some(io) => Pin::new(io).poll_write(cx, buf),
            None => gone(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.0.lock().as_mut() {
            Some(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            None => gone(),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.lock().as_mut() {
            Some(io) => Pin::new(io).poll_flush(cx),
            None => gone(),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.lock().as_mut() {
            Some(io) => Pin::new(io).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
