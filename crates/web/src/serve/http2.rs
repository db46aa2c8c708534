//! HTTP/2 under the limits of HTTP/1.1: [`OpenStreams`] watches what is open on a connection and whether
//! the client reads, [`SentBody`] hands out a response in pieces so that this can be seen, and
//! [`HeadFrames`] fails a read when the head of a request does not arrive in time.
//!
//! hyper knows no such limits for HTTP/2: it waits for ever for a window to open.

use std::collections::HashMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::write_timeout::HeadClock;

/// Most bytes of responses a connection may have in memory before further requests on it wait. Over
/// HTTP/1.1 a connection has one response in memory, and the kernel takes most of it.
const UNSENT_MAX_BYTES: u64 = 256 * 1024;
/// Most bytes of responses all connections may have in memory before those end that have more unread than
/// they should.
const TOTAL_UNSENT_MAX_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes a response counts at most before its first piece is asked for: it may not be in memory at all.
const UNSEEN_MAX_BYTES: u64 = 1024 * 1024;
/// Requests of a connection that are answered at the same time. The size of a response is not known
/// before it is there, so only so many may turn up at once.
const FRESH_MAX: usize = 8;
/// Time after which a request no longer counts among those: it waits for something, as a long poll does.
const FRESH_TIME: Duration = Duration::from_millis(100);
/// Time a client that has more than that unread may leave it unread.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest piece of a response handed to HTTP/2 at once; it is buffered there out of sight.
const PIECE_BYTES: usize = 16 * 1024;
/// Time a client has to answer the announcement that the connection ends.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Http2Limits {
    /// Time it may be without a stream.
    pub(super) idle: Duration,
    /// Time a stream may wait for the client to read.
    pub(super) write: Duration,
}

/// The open streams of one connection. A cheap clone.
#[derive(Debug, Clone)]
pub(super) struct OpenStreams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<Http2State>,
    /// Told when there is room for another response.
    room: Notify,
    /// Told when all connections together have too much unread, and this one more than it should.
    alarm: Notify,
    /// Bytes of responses in memory, over all connections.
    total_unsent: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Http2State {
    open: HashMap<u64, ResponseProgress>,
    next_id: u64,
    /// Time at which the last stream ended, or the connection began.
    idle_since: Instant,
    /// Bytes of responses in memory, over all streams.
    unsent: u64,
    /// Number of streams whose response may turn up any moment.
    fresh: usize,
    fresh_max: usize,
}

/// The progress of a stream's response.
#[derive(Debug, Default, Clone, Copy)]
struct ResponseProgress {
    unsent: u64,
    is_fresh: bool,
    /// Since when there is something to send that the client does not take.
    stalled_since: Option<Instant>,
}

impl OpenStreams {
    /// The streams of a new connection; `total_unsent` is that of all connections.
    pub(super) fn new(total_unsent: Arc<AtomicU64>) -> OpenStreams {
        let state = Http2State {
            open: HashMap::new(),
            next_id: 0,
            idle_since: Instant::now(),
            unsent: 0,
            fresh: 0,
            fresh_max: FRESH_MAX,
        };
        OpenStreams(Arc::new(Inner {
            state: Mutex::new(state),
            room: Notify::new(),
            alarm: Notify::new(),
            total_unsent,
        }))
    }

    /// Lets any number of requests be answered at the same time.
    pub(super) fn without_fresh_limit(self) -> OpenStreams {
        self.0.state.lock().fresh_max = usize::MAX;
        self
    }

    /// A stream begins; it ends when the returned value is dropped.
    pub(super) fn open(&self) -> OpenStream {
        let mut state = self.0.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.open.insert(id, ResponseProgress::default());
        OpenStream { streams: self.clone(), id }
    }

    /// Tells whether no stream was ever opened.
    pub(super) fn is_unused(&self) -> bool {
        self.0.state.lock().next_id == 0
    }

    /// Waits until the connection has been idle, or a stream unread, for too long.
    pub(super) async fn overdue(&self, limits: Http2Limits) {
        let look = limits.write.min(CROWDED_TIMEOUT) / 4;
        loop {
            let now = Instant::now();
            let until = {
                let state = self.0.state.lock();
                if state.open.is_empty() {
                    state.idle_since + limits.idle
                } else {
                    let crowded = state.unsent > UNSENT_MAX_BYTES;
                    let within = match crowded {
                        true if self.0.is_total_exceeded() => Duration::ZERO,
                        true => limits.write.min(CROWDED_TIMEOUT),
                        false => limits.write,
                    };
                    let oldest = state.open.values().filter_map(|one| one.stalled_since).min();
                    oldest.map_or(now + look, |since| since + within)
                }
            };
            if until <= now {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until.min(now + look)) => {}
                () = self.0.alarm.notified() => {}
            }
        }
    }

    /// Waits, after the end was announced, until nothing is left that makes progress. With
    /// `at_once`, streams that the client does not read are not waited for.
    pub(super) async fn drained(&self, limits: Http2Limits, at_once: bool) {
        let started = Instant::now();
        loop {
            tokio::time::sleep(GOAWAY_TIMEOUT / 4).await;
            let patience = if at_once { Duration::ZERO } else { limits.write };
            let is_stuck = |one: &ResponseProgress| {
                one.stalled_since.is_some_and(|since| since.elapsed() >= patience)
            };
            let (is_empty, stuck) = {
                let state = self.0.state.lock();
                (state.open.is_empty(), state.open.values().all(is_stuck))
            };
            let told = started.elapsed() >= GOAWAY_TIMEOUT;
            let spent = at_once && started.elapsed() >= limits.write;
            if told && (is_empty || stuck || spent) {
                return;
            }
        }
    }
}

impl Inner {
    fn is_total_exceeded(&self) -> bool {
        self.total_unsent.load(Ordering::Relaxed) > TOTAL_UNSENT_MAX_BYTES
    }

    /// Counts the change of a stream's unsent bytes in the total.
    fn count(&self, before: u64, after: u64) {
        match after.checked_sub(before) {
            Some(more) => self.total_unsent.fetch_add(more, Ordering::Relaxed),
            None => self.total_unsent.fetch_sub(before - after, Ordering::Relaxed),
        };
    }
}

/// One stream of a connection.
#[derive(Debug)]
pub(super) struct OpenStream {
    streams: OpenStreams,
    id: u64,
}

impl OpenStream {
    /// Runs a handler once the client has read enough of the other streams' responses, and few enough
    /// others are being answered.
    pub(super) async fn answer<T>(&self, handler: impl Future<Output = T>) -> T {
        self.wait_for_room().await;
        let mut handler = pin!(handler);
        if let Ok(response) = tokio::time::timeout(FRESH_TIME, handler.as_mut()).await {
            return response;
        }
        self.release();
        handler.await
    }

    async fn wait_for_room(&self) {
        loop {
            let room = self.streams.0.room.notified();
            {
                let mut state = self.streams.0.state.lock();
                if state.unsent <= UNSENT_MAX_BYTES && state.fresh < state.fresh_max {
                    let Some(progress) = state.open.get_mut(&self.id) else { return };
                    progress.is_fresh = true;
                    state.fresh += 1;
                    return;
                }
            }
            room.await;
        }
    }

    /// Counts the stream no longer among those whose response may turn up any moment.
    fn release(&self) {
        let mut state = self.streams.0.state.lock();
        let Some(progress) = state.open.get_mut(&self.id) else { return };
        if std::mem::take(&mut progress.is_fresh) {
            state.fresh -= 1;
            drop(state);
            self.streams.0.room.notify_waiters();
        }
    }

    fn set(&self, unsent: u64, stalled: bool) {
        let mut state = self.streams.0.state.lock();
        let Some(progress) = state.open.get_mut(&self.id) else { return };
        let before = std::mem::replace(&mut progress.unsent, unsent);
        progress.stalled_since = stalled.then(Instant::now);
        state.unsent = state.unsent.saturating_sub(before).saturating_add(unsent);
        self.streams.0.count(before, unsent);
        let has_room = state.unsent <= UNSENT_MAX_BYTES;
        drop(state);
        if has_room && unsent < before {
            self.streams.0.room.notify_waiters();
        }
        if !has_room && self.streams.0.is_total_exceeded() {
            self.streams.0.alarm.notify_one();
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.set(0, false);
        self.release();
        let mut state = self.streams.0.state.lock();
        state.open.remove(&self.id);
        if state.open.is_empty() {
            state.idle_since = Instant::now();
        }
    }
}

/// The body of a response on its way out, in pieces. HTTP/2 asks for the next piece when the
/// client's window has taken the last one.
pub(super) struct SentBody {
    inner: Body,
    /// The rest of the piece the handler gave.
    rest: Bytes,
    stream: OpenStream,
}

impl SentBody {
    pub(super) fn new(inner: Body, stream: OpenStream) -> SentBody {
        // Before the first piece is asked for, a body may be all in memory.
        stream.set(inner.size_hint().lower().min(UNSEEN_MAX_BYTES), true);
        stream.release();
        SentBody { inner, rest: Bytes::new(), stream }
    }
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Pending => {
                    // The handler is waited for, not the client.
                    this.stream.set(0, false);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return end,
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES));
        // The piece is kept until the client's window has room for it.
        this.stream.set((this.rest.len() + piece.len()) as u64, true);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// Length of the bytes every HTTP/2 connection starts with.
const PREFACE_BYTES: usize = 24;
/// Length of the head of a frame (RFC 9113, 4.1).
const FRAME_HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames a client sends, as far as their heads.
#[derive(Debug, Default)]
struct FrameScanner {
    /// Bytes of the preface seen.
    preface: usize,
    head: [u8; FRAME_HEAD_BYTES],
    /// Bytes of the head of the frame seen.
    seen: usize,
    /// Bytes of the frame's payload to come.
    payload: usize,
    kind: u8,
    /// The head of a request has begun in a frame that does not end it.
    in_head: bool,
}

impl FrameScanner {
    fn feed(&mut self, mut bytes: &[u8]) {
        let skipped = bytes.len().min(PREFACE_BYTES - self.preface);
        self.preface += skipped;
        bytes = bytes.get(skipped..).unwrap_or_default();
        while !bytes.is_empty() {
            if self.payload > 0 {
                let passed = bytes.len().min(self.payload);
                self.payload -= passed;
                bytes = bytes.get(passed..).unwrap_or_default();
                continue;
            }
            let taken = bytes.len().min(FRAME_HEAD_BYTES - self.seen);
            let (now, later) = bytes.split_at(taken);
            for (to, from) in self.head.iter_mut().skip(self.seen).zip(now) {
                *to = *from;
            }
            self.seen += taken;
            bytes = later;
            if self.seen == FRAME_HEAD_BYTES {
                let [a, b, c, kind, flags, ..] = self.head;
                self.seen = 0;
                self.kind = kind;
                self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.in_head = flags & END_HEADERS == 0;
                }
            }
        }
    }

    /// Tells whether something has begun that must end soon: the head of a request, or a frame that
    /// is not part of a body (bodies have a limit of their own).
    fn is_waiting(&self) -> bool {
        self.in_head || self.seen > 0 || (self.payload > 0 && self.kind != DATA)
    }
}

/// Fails a read when the head of a request, or another frame, has begun and is not there in time.
#[derive(Debug)]
pub(super) struct HeadFrames<I> {
    io: I,
    scanner: FrameScanner,
    clock: HeadClock,
}

impl<I> HeadFrames<I> {
    pub(super) fn new(io: I, within: Duration) -> HeadFrames<I> {
        HeadFrames { io, scanner: FrameScanner::default(), clock: HeadClock::new(within) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HeadFrames<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let poll = Pin::new(&mut this.io).poll_read(cx, buf);
        if poll.is_pending() {
            return this.clock.wait(cx);
        }
        this.scanner.feed(buf.filled().get(before..).unwrap_or_default());
        if this.scanner.is_waiting() {
            return this.clock.pass(poll, true);
        }
        this.clock.reset();
        poll
    }
}

super::write_timeout::writes_through!(HeadFrames);

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const LIMITS: Http2Limits =
        Http2Limits { idle: Duration::from_secs(60), write: Duration::from_secs(20) };

    fn streams() -> OpenStreams {
        OpenStreams::new(Arc::default())
    }

    /// Waits for the end of a connection; returns after how many seconds it came.
    async fn ends_after(streams: &OpenStreams) -> u64 {
        let started = Instant::now();
        streams.overdue(LIMITS).await;
        started.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_streams_ends_after_the_idle_timeout() {
        let streams = streams();
        assert_eq!(ends_after(&streams).await, 60);
        let stream = streams.open();
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(stream);
        assert_eq!(ends_after(&streams).await, 60, "counted from the end of the last stream");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_read_ends_the_connection_after_the_write_timeout() {
        let streams = streams();
        let body = SentBody::new(Body::from(vec![0; 40_000]), streams.open());
        assert_eq!(ends_after(&streams).await, 20);
        let mut body = body;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE_BYTES);
        assert_eq!(ends_after(&streams).await, 20, "counted from the last piece");
    }

    #[tokio::test(start_paused = true)]
    async fn more_unread_than_there_should_be_ends_sooner_and_further_requests_wait() {
        let streams = streams();
        let bodies: Vec<SentBody> =
            (0..3).map(|_| SentBody::new(Body::from(vec![0; 100_000]), streams.open())).collect();
        let next = streams.open();
        let mut waiting = Box::pin(next.answer(async {}));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(ends_after(&streams).await, 5);
        drop(bodies);
        waiting.await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_come_together_are_answered_a_few_at_a_time() {
        let streams = streams();
        let started = AtomicU64::new(0);
        let large = async |stream: OpenStream| {
            let body = stream.answer(async {
                started.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Body::from(vec![0; 100_000])
            });
            SentBody::new(body.await, stream)
        };
        let mut all = pin!(futures_util::future::join_all((0..100).map(|_| large(streams.open()))));
        let _ = tokio::time::timeout(Duration::from_secs(1), all.as_mut()).await;
        assert_eq!(started.load(Ordering::Relaxed), FRESH_MAX as u64, "the others wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_something_keeps_no_other_waiting() {
        let streams = streams();
        let polls: Vec<OpenStream> = (0..100).map(|_| streams.open()).collect();
        let all = polls.iter().map(|poll| poll.answer(tokio::time::sleep(Duration::from_secs(30))));
        let started = Instant::now();
        futures_util::future::join_all(all).await;
        assert!(started.elapsed() < Duration::from_secs(32), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_connections_together_have_too_much_unread_it_ends_at_once() {
        let total = Arc::new(AtomicU64::new(0));
        let quiet = OpenStreams::new(Arc::clone(&total));
        let small = SentBody::new(Body::from(vec![0; 1_000]), quiet.open());
        let mut bodies = Vec::new();
        let mut crowded = Vec::new();
        for _ in 0..=TOTAL_UNSENT_MAX_BYTES / UNSEEN_MAX_BYTES {
            let streams = OpenStreams::new(Arc::clone(&total));
            bodies.push(SentBody::new(Body::from(vec![0; 1_048_576]), streams.open()));
            crowded.push(streams);
        }
        assert_eq!(ends_after(&crowded[0]).await, 0);
        assert_eq!(ends_after(&quiet).await, 20, "one that has little unread is let be");
        drop((bodies, small));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_handler_is_not_the_clients_fault() {
        let streams = streams();
        let silent = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
        let mut body = SentBody::new(Body::from_stream(silent), streams.open());
        assert!(futures_util::poll!(body.frame()).is_pending());
        let ended = tokio::time::timeout(Duration::from_secs(600), streams.overdue(LIMITS)).await;
        assert!(ended.is_err());
    }

    #[tokio::test]
    async fn pieces_make_up_the_whole() {
        let whole: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let body = SentBody::new(Body::from(whole.clone()), streams().open());
        assert_eq!(body.size_hint().exact(), Some(100_000));
        assert_eq!(body.collect().await.unwrap().to_bytes(), whole);
    }

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        bytes.extend(std::iter::repeat_n(0, usize::from(length)));
        bytes
    }

    #[test]
    fn a_scanner_knows_what_has_begun() {
        let check = |frames: &[u8], expect: bool| {
            for piece in [1, 7, 1000] {
                let mut scanner = FrameScanner::default();
                scanner.feed(&[b'x'; PREFACE_BYTES]);
                frames.chunks(piece).for_each(|bytes| scanner.feed(bytes));
                assert_eq!(scanner.is_waiting(), expect, "{frames:?} by {piece}");
            }
        };
        check(&[], false);
        check(&frame(4, 0, 6), false);
        check(&frame(HEADERS, END_HEADERS, 20), false);
        check(&frame(HEADERS, 0, 20), true);
        check(&frame(HEADERS, END_HEADERS, 20)[..15], true);
        check(&frame(HEADERS, 0, 20)[..5], true);
        check(&[frame(HEADERS, 0, 5), frame(CONTINUATION, 0, 5)].concat(), true);
        check(&[frame(HEADERS, 0, 5), frame(CONTINUATION, END_HEADERS, 5)].concat(), false);
        check(&[frame(HEADERS, END_HEADERS, 5), frame(DATA, 0, 200)].concat()[..100], false);
        check(&frame(6, 0, 8)[..12], true);
    }
}
