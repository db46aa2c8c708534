//! Three thin layers over a socket: [`WriteTimeout`] gives up on a client that does not read, [`HeaderTimeout`]
//! on one that does not finish the head of its request, and [`PrefixedIo`] gives back bytes that were
//! read to see which protocol is spoken.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that has made no progress for a given time.
#[derive(Debug)]
pub(crate) struct WriteTimeout<I> {
    io: I,
    within: Duration,
    /// Running while a write waits for room.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<I> WriteTimeout<I> {
    pub(crate) fn new(io: I, within: Duration) -> WriteTimeout<I> {
        WriteTimeout { io, within, stalled: None }
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

impl<I: AsyncRead + Unpin> AsyncRead for WriteTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<I> {
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

/// True while a request is being answered; while none is, bytes that arrive are the head of the next.
/// Counts both beginnings and ends, so that a request is noticed also by who looks only afterwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestPhase(Arc<AtomicU32>);

impl RequestPhase {
    /// A request begins or ends to be answered.
    pub(crate) fn turn(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The time the head of a request has from its first byte on. Bytes that trickle in do not help.
#[derive(Debug)]
pub(super) struct HeadClock {
    within: Duration,
    /// Time at which the first byte of an incomplete head arrived.
    since: Option<Instant>,
    /// Running while a head is waited for. Most are there at once and need none.
    clock: Option<Pin<Box<Sleep>>>,
}

impl HeadClock {
    pub(super) fn new(within: Duration) -> HeadClock {
        HeadClock { within, since: None, clock: None }
    }

    /// Forgets the head: it is complete.
    pub(super) fn reset(&mut self) {
        (self.since, self.clock) = (None, None);
    }

    /// Passes on a read that is done while a head is incomplete, unless its time is over.
    /// `begins` says that this read has bytes of it.
    pub(super) fn pass(
        &mut self,
        read: Poll<io::Result<()>>,
        begins: bool,
    ) -> Poll<io::Result<()>> {
        if begins {
            self.since.get_or_insert_with(Instant::now);
        }
        match self.since {
            Some(since) if since.elapsed() >= self.within => HeadClock::overdue(),
            _ => read,
        }
    }

    /// Waits with a read that is not done, until the time of the head is over.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(since) = self.since else { return Poll::Pending };
        let until = since + self.within;
        let clock = self.clock.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        ready!(clock.as_mut().poll(cx));
        HeadClock::overdue()
    }

    fn overdue() -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "a slow head")))
    }
}

/// Fails a read when the head of a request has begun to arrive and is not there within a given time.
/// A connection on which nothing has begun may idle; that has a limit of its own.
#[derive(Debug)]
pub(crate) struct HeaderTimeout<I> {
    io: I,
    answering: RequestPhase,
    /// Value of `answering` at the last poll.
    turns: u32,
    clock: HeadClock,
}

impl<I> HeaderTimeout<I> {
    pub(crate) fn new(io: I, within: Duration, answering: RequestPhase) -> HeaderTimeout<I> {
        HeaderTimeout { io, answering, turns: 0, clock: HeadClock::new(within) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HeaderTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let turns = this.answering.0.load(Ordering::Relaxed);
        if turns != this.turns {
            this.turns = turns;
            this.clock.reset();
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut this.io).poll_read(cx, buf);
        match poll.is_ready() {
            _ if turns % 2 == 1 => poll,
            true => this.clock.pass(poll, buf.filled().len() > before),
            false => this.clock.wait(cx),
        }
    }
}

/// Hands out `prefix` first, then what the socket has.
#[derive(Debug)]
pub(crate) struct PrefixedIo<I> {
    prefix: Vec<u8>,
    given: usize,
    io: I,
}

impl<I> PrefixedIo<I> {
    pub(crate) fn new(prefix: Vec<u8>, io: I) -> PrefixedIo<I> {
        PrefixedIo { prefix, given: 0, io }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefixedIo<I> {
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

/// Passes writes through a layer unchanged.
macro_rules! writes_through {
    ($($name:ident),*) => {$(
        impl<I: ::tokio::io::AsyncWrite + Unpin> ::tokio::io::AsyncWrite for $name<I> {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.io).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bufs: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.io.is_write_vectored()
            }

            fn poll_flush(mut self: ::std::pin::Pin<&mut Self>, cx: &mut ::std::task::Context<'_>) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.io).poll_flush(cx)
            }

            fn poll_shutdown(mut self: ::std::pin::Pin<&mut Self>, cx: &mut ::std::task::Context<'_>) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.io).poll_shutdown(cx)
            }
        }
    )*};
}

pub(super) use writes_through;

writes_through!(HeaderTimeout, PrefixedIo);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::{sleep, timeout};

    use super::*;

    fn prompt() -> (DuplexStream, RequestPhase, HeaderTimeout<DuplexStream>) {
        let (client, server) = tokio::io::duplex(64);
        let answering = RequestPhase::default();
        let io = HeaderTimeout::new(server, Duration::from_secs(1), answering.clone());
        (client, answering, io)
    }

    async fn read(io: &mut HeaderTimeout<DuplexStream>) -> Option<io::Result<usize>> {
        timeout(Duration::from_secs(5), io.read(&mut [0; 64])).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_must_be_there_in_time() {
        let (mut client, _, mut io) = prompt();
        assert!(read(&mut io).await.is_none(), "nothing has begun");
        client.write_all(b"GET").await.unwrap();
        assert_eq!(read(&mut io).await.unwrap().unwrap(), 3);
        let error = read(&mut io).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (mut client, _, mut io) = prompt();
        let trickle = async {
            loop {
                client.write_all(b"x").await.unwrap();
                sleep(Duration::from_millis(400)).await;
            }
        };
        let reads = async { while !matches!(read(&mut io).await, Some(Err(_))) {} };
        let ended = timeout(Duration::from_millis(1_300), async {
            tokio::select! { () = trickle => {}, () = reads => {} }
        });
        assert!(ended.await.is_ok(), "the time runs from the first byte");
    }

    #[tokio::test(start_paused = true)]
    async fn between_requests_and_after_a_change_of_protocols_there_is_time() {
        let (mut client, answering, mut io) = prompt();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(read(&mut io).await.unwrap().is_ok());
        // Answered at once, with nobody reading meanwhile.
        answering.turn();
        answering.turn();
        assert!(read(&mut io).await.is_none(), "idle is not slow");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(read(&mut io).await.unwrap().is_ok());
        // The answer changes the protocol and so does not end.
        answering.turn();
        client.write_all(b"hello").await.unwrap();
        assert_eq!(read(&mut io).await.unwrap().unwrap(), 5);
        assert!(read(&mut io).await.is_none(), "a socket may be silent");
    }
}
