//! The accept loop: sockets in, requests to the router, and an orderly end.
//!
//! Nobody can hold a connection for nothing: a head must arrive in time, a body too (see
//! `middleware.rs`), a client that does not read is dropped, and connections are counted in all and per
//! address. HTTP/2 is held to the same (`http2.rs`). A client that is refused gets an answer and not
//! a reset (`linger.rs`), also when there is no file descriptor left (`reserve.rs`). Stopping lets
//! requests under way finish, up to a limit.

mod events;
mod http2;
mod linger;
mod reclaimable;
mod reserve;
pub mod tls;
mod write_timeout;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::events::{Handover, TakenOver};
use self::http2::{HeadFrames, Http2Limits, OpenStreams, SentBody};
use self::linger::{LingerBody, ReadBody, Unread};
use self::reserve::Reserve;
use self::tls::Tls;
use self::write_timeout::{HeaderTimeout, PrefixedIo, RequestPhase, WriteTimeout};
use crate::app::App;
use crate::cli::{Failure, Outcome};
use crate::client::{self, Peer};
use crate::settings::Settings;
use crate::sse::EventsSlot;
use crate::{metrics, process};

/// The bytes every HTTP/2 connection starts with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes of a request head, HTTP/1 and HTTP/2 alike.
const LARGEST_HEAD: u32 = 64 * 1024;
/// Answer to a connection beyond the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\n\
    content-type: application/json\r\ncontent-length: 139\r\nconnection: close\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"the server has no connection left; \
    try again in a moment\",\"details\":{}},\"request_id\":\"\"}";
/// Time such a client may take to read it.
const FULL_TIMEOUT: Duration = Duration::from_millis(500);
/// Such clients at the same time; further ones are closed without a word.
const REFUSED_MAX: usize = 256;
/// While stopping, how long a connection without a request is kept for one that is on its way.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of request bodies an HTTP/2 client may send ahead, on one stream and on all.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;
/// Bytes of one response that wait in the HTTP/2 machinery.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams a client may reset before they are looked at, and resets it may cause, per connection.
const RESETS_MAX: usize = 64;

/// Answer to plain HTTP on a TLS listener.
const NOT_PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\nconnection: close\r\n\r\nThis port speaks https: use https://.\r\n";

/// A server that is about to run.
#[derive(Debug)]
pub struct Server {
    app: App,
    router: Router,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    is_proxy: bool,
}

impl Server {
    /// Serves the app's routes on a bound listener.
    pub fn new(app: App, listener: TcpListener) -> Server {
        let router = crate::app(app.clone());
        Server { app, router, listener, tls: None, is_proxy: false }
    }

    /// Serves these routes instead.
    #[must_use]
    pub fn with_router(mut self, router: Router) -> Server {
        self.router = router;
        self
    }

    /// Passes responses on as they arrive: their size costs no memory, so any number of requests of an
    /// HTTP/2 connection is answered at the same time.
    #[must_use]
    pub fn as_proxy(mut self) -> Server {
        self.is_proxy = true;
        self
    }

    /// Speaks TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Tls>) -> Server {
        self.tls = Some(tls);
        self
    }

    /// Returns the listening address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets requests under way finish for at most `drain`.
    pub async fn run(self, stop: CancellationToken, drain: Duration) {
        let tracker = TaskTracker::new();
        let kill = CancellationToken::new();
        let shared = Arc::new(Acceptor {
            app: self.app.clone(),
            router: self.router,
            tls: self.tls,
            stop: stop.clone(),
            open: AtomicUsize::new(0),
            by_address: Mutex::default(),
            reserve: Reserve::default(),
            files_max: files_max(),
            refusing: AtomicUsize::new(0),
            http2_unsent: Arc::default(),
            is_proxy: self.is_proxy,
        });
        shared.reserve.fill();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => shared.clone().admit(stream, peer, &tracker, &kill),
                Err(error) if reserve::is_out_of_files(&error) => {
                    if let Some(stream) = shared.reserve.accept(&self.listener).await {
                        shared.refuse(stream, "files", &tracker);
                    }
                }
                Err(error) => pause_after(&error).await,
            }
        }
        self.app.stop();
        // Who is in the kernel's queue was let in by it, and would be reset with the listener.
        match self.listener.into_std() {
            Ok(listener) => {
                while let Ok((stream, peer)) = listener.accept() {
                    let stream =
                        stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    if let Ok(stream) = stream {
                        shared.clone().admit(stream, peer, &tracker, &kill);
                    }
                }
            }
            Err(error) => tracing::warn!(error = %error, "the last connections are reset"),
        }
        tracker.close();
        if tokio::time::timeout(drain, tracker.wait()).await.is_err() {
            tracing::warn!(open = tracker.len(), "stopping with requests still under way");
            kill.cancel();
            tracker.wait().await;
        }
    }
}

/// Out of memory: accepting again at once would spin. Anything else is one client's
/// broken connection and no reason to wait.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    tracing::warn!(error = %error, "cannot accept connections; see `tidegate doctor` for limits");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

struct Acceptor {
    app: App,
    router: Router,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
    open: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    reserve: Reserve,
    /// Most connections the limit of open files leaves room for.
    files_max: usize,
    /// Clients that are being refused.
    refusing: AtomicUsize,
    /// Bytes of responses over HTTP/2 in memory, over all connections.
    http2_unsent: Arc<AtomicU64>,
    is_proxy: bool,
}

/// Most connections the limit of open files leaves room for: an eighth of it, at least 32, is for
/// the store and for connections to a guarded site.
fn files_max() -> usize {
    process::file_limit().map_or(usize::MAX, |most| most.saturating_sub((most / 8).max(32)).max(16))
}

impl Acceptor {
    /// Starts a task for the connection, or refuses it when there are too many.
    fn admit(
        self: Arc<Acceptor>,
        stream: TcpStream,
        peer: SocketAddr,
        tracker: &TaskTracker,
        kill: &CancellationToken,
    ) {
        let settings = self.app.settings();
        self.reserve.fill();
        let place = match ConnectionCount::take(&self, peer.ip(), &settings) {
            Ok(place) => place,
            Err(why) => return self.refuse(stream, why, tracker),
        };
        let slot = ConnectionSlot(Arc::new(place));
        let (kill, again) = (kill.clone(), tracker.clone());
        tracker.spawn(async move {
            let served = self.clone().serve(stream, peer, &slot, &settings);
            let rest = tokio::select! {
                rest = served => rest,
                () = kill.cancelled() => None,
            };
            // A task of its own, because this one's memory has the size of the HTTP machinery.
            if let Some(rest) = rest {
                again.spawn(async move {
                    tokio::select! {
                        () = rest => {}
                        () = kill.cancelled() => {}
                    }
                    drop(slot);
                });
            }
        });
    }

    /// Counts a connection of an address; returns false if the address has as many as it may have.
    fn add_address(&self, address: IpAddr, settings: &Settings) -> bool {
        let mut counts = self.by_address.lock();
        let count = counts.entry(address).or_insert(0);
        let has_room = *count < settings.max_connections_per_address;
        *count += usize::from(has_room);
        has_room
    }

    fn remove_address(&self, address: IpAddr) {
        let mut counts = self.by_address.lock();
        if let Some(count) = counts.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }

    /// Tells a client that it is one too many.
    fn refuse(
        self: &Arc<Acceptor>,
        mut stream: TcpStream,
        why: &'static str,
        tracker: &TaskTracker,
    ) {
        metrics::refused(why);
        // In TLS the answer would take a handshake, which is what there is no room for.
        let refusing = self.refusing.fetch_add(1, Ordering::Relaxed);
        let shared = self.clone();
        let told = self.tls.is_none() && refusing < REFUSED_MAX;
        tracker.spawn(async move {
            if told {
                linger::answer(&mut stream, FULL, FULL_TIMEOUT).await;
            }
            drop(stream);
            shared.refusing.fetch_sub(1, Ordering::Relaxed);
            shared.reserve.fill();
        });
    }

    /// Ends some time after the server was told to stop.
    async fn stopped_for(&self, time: Duration) {
        self.stop.cancelled().await;
        tokio::time::sleep(time).await;
    }

    /// Ends when the server was told to stop; a connection that has not had a request yet is left
    /// some time for the one on its way.
    async fn stopped_with(&self, streams: &OpenStreams) {
        self.stop.cancelled().await;
        if streams.is_unused() {
            tokio::time::sleep(LAST_REQUEST_TIMEOUT).await;
        }
    }

    async fn serve(
        self: Arc<Acceptor>,
        stream: TcpStream,
        peer: SocketAddr,
        slot: &ConnectionSlot,
        settings: &Settings,
    ) -> Option<Rest> {
        // Small answers should not wait for an acknowledgement; failing to say so is no harm.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            let io = WriteTimeout::new(stream, settings.write_timeout);
            return self.speak(io, Peer { addr: peer, tls: false }, slot, settings).await;
        };
        let mut first = [0];
        let peeked = tokio::time::timeout(settings.header_timeout, stream.peek(&mut first)).await;
        // TLS begins with 22; a letter is the method of a request.
        if matches!(peeked, Ok(Ok(1))) && first.iter().all(u8::is_ascii_uppercase) {
            let _ = stream.try_write(NOT_PLAIN);
            return None;
        }
        let io = WriteTimeout::new(stream, settings.write_timeout);
        let handshake = tokio::time::timeout(settings.header_timeout, tls.acceptor().accept(io));
        // A handshake that fails or takes too long ends without a word; scanners cause many.
        let Ok(Ok(io)) = handshake.await else { return None };
        self.speak(io, Peer { addr: peer, tls: true }, slot, settings).await
    }

    /// Finds out which HTTP the client speaks, and speaks it.
    async fn speak<I>(
        self: Arc<Acceptor>,
        mut io: I,
        peer: Peer,
        slot: &ConnectionSlot,
        settings: &Settings,
    ) -> Option<Rest>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let sniffed = tokio::select! {
            sniffed = tokio::time::timeout(settings.header_timeout, sniff(&mut io)) => sniffed,
            () = self.stopped_for(LAST_REQUEST_TIMEOUT) => return None,
        };
        // Silence, slowness and a broken connection end alike, without a word.
        let Ok(Ok((read, is_http2))) = sniffed else { return None };
        let io = PrefixedIo::new(read, io);
        let router = self.router.clone();
        let slot = slot.clone();
        if is_http2 {
            self.speak_http2(io, peer, settings).await;
            return None;
        }

        // An HTTP/1 connection can turn into a stream of events, which then gets the socket back.
        let answering = RequestPhase::default();
        let (lender, io) =
            reclaimable::lend(HeaderTimeout::new(io, settings.header_timeout, answering.clone()));
        let (handover, unread) = (Handover::default(), Unread::default());
        let (taken, left) = (handover.clone(), unread.clone());
        let (stop, turns) = (self.stop.clone(), answering.clone());
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, handover) = (router.clone(), handover.clone());
            let (answering, unread, stop) = (answering.clone(), unread.clone(), stop.clone());
            answering.turn();
            let mut request = request.map(|body| ReadBody::watch(body, &unread));
            request.extensions_mut().insert(slot.clone());
            async move {
                let Ok(mut response) = call(router, request, peer).await;
                // What comes after a change of protocols is no head of a request.
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    unread.set(false);
                    return Ok(response);
                }
                answering.turn();
                if stop.is_cancelled() {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                match response.extensions().get::<EventsSlot>().and_then(EventsSlot::take) {
                    Some(events) => {
                        handover.put(response.into_parts().0, events);
                        Err(TakenOver)
                    }
                    None => Ok(response),
                }
            }
        });
        let closed_by_us = {
            let connection = conn::http1::Builder::new()
                .timer(TokioTimer::new())
                // The wait for a request counts too; the head itself is watched below.
                .header_read_timeout(settings.idle_timeout.max(settings.header_timeout))
                .max_buf_size(LARGEST_HEAD as usize)
                .serve_connection(TokioIo::new(io), service)
                .with_upgrades();
            let mut connection = pin!(connection);
            let (outcome, closed_by_us) = tokio::select! {
                outcome = connection.as_mut() => (outcome, false),
                // A request that is on its way is answered, and the answer says that it is the last.
                () = self.stopped_for(LAST_REQUEST_TIMEOUT) => {
                    connection.as_mut().graceful_shutdown();
                    (connection.await, true)
                }
            };
            note(outcome, peer);
            closed_by_us
        };
        if let Some((head, events)) = taken.take() {
            let io = lender.take()?;
            // Boxed on its own, so that nothing of the HTTP machinery's size stays allocated.
            return Some(Box::pin(events::write(io, head, events, self.stop.clone())));
        }
        if !left.get() && !closed_by_us {
            return None;
        }
        let mut io = lender.take()?;
        let stop = self.stop.clone();
        // What comes now is no head of a request either.
        turns.turn();
        Some(Box::pin(async move {
            tokio::select! {
                () = linger::drain(&mut io, linger_time(closed_by_us)) => {}
                () = async { stop.cancelled().await; tokio::time::sleep(LAST_REQUEST_TIMEOUT).await } => {}
            }
        }))
    }

    /// Serves HTTP/2 under the limits of HTTP/1.1.
    async fn speak_http2<I>(&self, io: I, peer: Peer, settings: &Settings)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router.clone();
        let mut streams = OpenStreams::new(Arc::clone(&self.http2_unsent));
        if self.is_proxy {
            streams = streams.without_fresh_limit();
        }
        let limits = Http2Limits { idle: settings.idle_timeout, write: settings.write_timeout };
        let opened = streams.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, stream) = (router.clone(), opened.open());
            async move {
                let request = request.map(LingerBody::wrap);
                let Ok(response) = stream.answer(call(router, request, peer)).await;
                Ok::<_, Infallible>(response.map(|body| Body::new(SentBody::new(body, stream))))
            }
        });
        let connection = conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(settings.http2_max_streams)
            .max_header_list_size(LARGEST_HEAD)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(RESETS_MAX)
            .keep_alive_interval(Some(Duration::from_secs(20)))
            .keep_alive_timeout(Duration::from_secs(20))
            .serve_connection(TokioIo::new(HeadFrames::new(io, settings.header_timeout)), service);
        let mut connection = pin!(connection);
        let overdue = tokio::select! {
            outcome = connection.as_mut() => return note(outcome, peer),
            () = self.stopped_with(&streams) => false,
            () = streams.overdue(limits) => true,
        };
        // GOAWAY: the client opens its next stream elsewhere, and the ones under way are finished.
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            outcome = connection => note(outcome, peer),
            () = streams.drained(limits, overdue) => {}
        }
    }
}

/// Returns the time a connection lingers: while stopping, only for bytes that crossed the end.
fn linger_time(stopping: bool) -> Duration {
    if stopping { LAST_REQUEST_TIMEOUT } else { Duration::MAX }
}

/// The rest of the work for a connection that turned into a stream of events.
type Rest = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn note(outcome: Result<(), hyper::Error>, peer: Peer) {
    if let Err(error) = outcome {
        tracing::trace!(error = %error, peer = %peer.addr, "connection ended early");
    }
}

async fn call(router: Router, mut request: Request, peer: Peer) -> Result<Response, Infallible> {
    use tower::Service;
    request.extensions_mut().insert(peer);
    // A Router is always ready and never fails.
    let mut router = router;
    router.call(request).await
}

/// Reads until the bytes can no longer be, or are, the HTTP/2 preface.
async fn sniff(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(Vec<u8>, bool)> {
    let mut read = Vec::with_capacity(PREFACE.len());
    while read.len() < PREFACE.len() {
        let mut chunk = [0_u8; PREFACE.len()];
        let room = PREFACE.len() - read.len();
        let got = io.read(chunk.get_mut(..room).unwrap_or_default()).await?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(chunk.get(..got).unwrap_or_default());
        if !PREFACE.starts_with(&read) {
            return Ok((read, false));
        }
    }
    Ok((read, true))
}

/// A connection's place in the counts, put into each request by the accept loop. Whoever goes on
/// with the connection after an upgrade keeps a clone until it ends.
#[derive(Clone)]
pub struct ConnectionSlot(Arc<ConnectionCount>);

impl ConnectionSlot {
    /// Counts a connection that stays open for its client, too, if the peer is a proxy and so exempt
    /// from the count by address. `None` says that the client's address has as many as it may have.
    pub fn count_client(self, client: IpAddr, settings: &Settings) -> Option<ClientSlot> {
        let address = match self.0.address {
            Some(_) => None,
            None => counted_address(client, settings),
        };
        if let Some(address) = address
            && !self.0.shared.add_address(address, settings)
        {
            return None;
        }
        Some(ClientSlot { connection: self, address })
    }
}

/// A connection's place in the counts, and its client's in the count by address; gives them back when
/// dropped.
#[derive(Debug)]
pub struct ClientSlot {
    connection: ConnectionSlot,
    address: Option<IpAddr>,
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            self.connection.0.shared.remove_address(address);
        }
    }
}

/// Returns the address to count. Loopback and trusted proxies are exempt: behind them stand many.
fn counted_address(ip: IpAddr, settings: &Settings) -> Option<IpAddr> {
    let exempt = ip.is_loopback() || settings.trusts(ip.to_canonical());
    (!exempt).then(|| client::bucket(ip))
}

impl fmt::Debug for ConnectionSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionSlot")
    }
}

/// One connection's place in the counts; gives it back when dropped.
struct ConnectionCount {
    shared: Arc<Acceptor>,
    address: Option<IpAddr>,
}

impl ConnectionCount {
    /// The count that is full, when one is.
    fn take(
        shared: &Arc<Acceptor>,
        ip: IpAddr,
        settings: &Settings,
    ) -> Result<ConnectionCount, &'static str> {
        // Only the accept loop adds, so checking before adding cannot overshoot.
        if shared.open.load(Ordering::Relaxed) >= settings.max_connections.min(shared.files_max) {
            return Err("total");
        }
        let address = counted_address(ip, settings);
        if let Some(address) = address
            && !shared.add_address(address, settings)
        {
            return Err("address");
        }
        shared.open.fetch_add(1, Ordering::Relaxed);
        metrics::connections(shared.app.requests().add_connection());
        Ok(ConnectionCount { shared: shared.clone(), address })
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        metrics::connections(self.shared.app.requests().remove_connection());
        if let Some(address) = self.address {
            self.shared.remove_address(address);
        }
    }
}

/// Binds an address, or says what it is for and how to move: `setting` and `flag` name another.
pub async fn bind(
    address: SocketAddr,
    purpose: &str,
    setting: &str,
    flag: &str,
) -> Outcome<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::failed(format!(
            "port {} is in use: something already listens on {address}, where {purpose} would be",
            address.port()
        ))
        .next(format!("{flag} 127.0.0.1:0 for any free port, or set {setting}")),
        io::ErrorKind::PermissionDenied => Failure::failed(format!(
            "this user is not allowed to listen on port {} for {purpose}",
            address.port()
        ))
        .next(format!(
            "a port above 1023 with {flag}, or CAP_NET_BIND_SERVICE (the systemd unit has it)"
        )),
        _ => Failure::failed(format!("cannot listen on {address} for {purpose}: {error}"))
            .next(format!("{flag}, or set {setting}")),
    })
}
