//! Three thin layers over a socket: [`Patient`] gives up on a client that does not read, [`Prompt`]
//! on one that does not finish the head of its request, and [`Prefixed`] gives back bytes that were
//! read to see which protocol is spoken.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Fails a write that has made no progress for a given time.
#[derive(Debug)]
pub(crate) struct Patient<I> {
    io: I,
    within: Duration,
    /// Running while a write waits for room.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<I> Patient<I> {
    pub(crate) fn new(io: I, within: Duration) -> Patient<I> {
        Patient { io, within, stalled: None }
    }

    /// Passes a finished write through; otherwise starts or checks the clock.
    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let within = self.within;
        let clock = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, buf);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.watch(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watch(cx, poll)
    }
}

/// Whether a request is being answered; while none is, bytes that arrive are the head of the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answering(Arc<AtomicBool>);

impl Answering {
    pub(crate) fn set(&self, answering: bool) {
        self.0.store(answering, Ordering::Relaxed);
    }
}

/// Fails a read when the head of a request has begun to arrive and is not there within a given time.
/// A connection on which nothing has begun may idle; that has a limit of its own.
#[derive(Debug)]
pub(crate) struct Prompt<I> {
    io: I,
    within: Duration,
    answering: Answering,
    /// Running from the first byte of a head to its last.
    head: Option<Pin<Box<Sleep>>>,
}

impl<I> Prompt<I> {
    pub(crate) fn new(io: I, within: Duration, answering: Answering) -> Prompt<I> {
        Prompt { io, within, answering, head: None }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Prompt<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.answering.0.load(Ordering::Relaxed) {
            this.head = None;
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut this.io).poll_read(cx, buf);
        if poll.is_ready() && buf.filled().len() > before && this.head.is_none() {
            this.head = Some(Box::pin(tokio::time::sleep(this.within)));
        }
        // Bytes that trickle in do not help: the clock runs from the first.
        if let Some(clock) = &mut this.head
            && clock.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "a slow head")));
        }
        poll
    }
}

/// Hands out `prefix` first, then what the socket has.
#[derive(Debug)]
pub(crate) struct Prefixed<I> {
    prefix: Vec<u8>,
    given: usize,
    io: I,
}

impl<I> Prefixed<I> {
    pub(crate) fn new(prefix: Vec<u8>, io: I) -> Prefixed<I> {
        Prefixed { prefix, given: 0, io }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Prefixed<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = this.prefix.get(this.given..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(rest.get(..length).unwrap_or_default());
        this.given += length;
        if this.given == this.prefix.len() {
            this.prefix = Vec::new();
            this.given = 0;
        }
        Poll::Ready(Ok(()))
    }
}

/// What is written goes through these layers as it is.
macro_rules! writes_through {
    ($($name:ident),*) => {$(
        impl<I: AsyncWrite + Unpin> AsyncWrite for $name<I> {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.io).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.io.is_write_vectored()
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.io).poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.io).poll_shutdown(cx)
            }
        }
    )*};
}

writes_through!(Prompt, Prefixed);
