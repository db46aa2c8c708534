//! The accept loop: sockets in, requests to the router, and an orderly end.
//!
//! Nobody can hold a connection for nothing: a head must arrive in time, a body too (see
//! `front.rs`), a client that does not read is dropped, and connections are counted in all and per
//! address. Stopping lets requests under way finish, up to a limit.

mod events;
mod lent;
mod patient;
pub mod tls;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::events::{Handover, TakenOver};
use self::patient::{Answering, Patient, Prefixed, Prompt};
use self::tls::Tls;
use crate::app::App;
use crate::client::{self, Peer};
use crate::metrics;
use crate::settings::Settings;
use crate::sse::Taken;

/// The bytes every HTTP/2 connection starts with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes of a request head, HTTP/1 and HTTP/2 alike.
const LARGEST_HEAD: u32 = 64 * 1024;
/// What a client gets that is one too many.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\n\
    content-length: 0\r\nconnection: close\r\n\r\n";

/// What a client gets that speaks plain HTTP where TLS is spoken.
const NOT_PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\nconnection: close\r\n\r\nThis port speaks https: use https://.\r\n";

/// A server that is about to run.
#[derive(Debug)]
pub struct Server {
    app: App,
    router: Router,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
}

impl Server {
    /// Serves the app's routes on a bound listener.
    pub fn new(app: App, listener: TcpListener) -> Server {
        let router = crate::app(app.clone());
        Server { app, router, listener, tls: None }
    }

    /// Serves these routes instead.
    #[must_use]
    pub fn with_router(mut self, router: Router) -> Server {
        self.router = router;
        self
    }

    /// Speaks TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Tls>) -> Server {
        self.tls = Some(tls);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets requests under way finish for at most `drain`.
    pub async fn run(self, stop: CancellationToken, drain: Duration) {
        let tracker = TaskTracker::new();
        let kill = CancellationToken::new();
        let shared = Arc::new(Shared {
            app: self.app.clone(),
            router: self.router,
            tls: self.tls,
            stop: stop.clone(),
            open: AtomicUsize::new(0),
            by_address: Mutex::default(),
        });
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => shared.clone().admit(stream, peer, &tracker, &kill),
                Err(error) => pause_after(&error).await,
            }
        }
        self.app.stop();
        drop(self.listener);
        tracker.close();
        if tokio::time::timeout(drain, tracker.wait()).await.is_err() {
            tracing::warn!(open = tracker.len(), "stopping with requests still under way");
            kill.cancel();
            tracker.wait().await;
        }
    }
}

/// Out of files or memory: accepting again at once would spin. Anything else is one client's
/// broken connection and no reason to wait.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    tracing::warn!(error = %error, "cannot accept connections; see `tidegate doctor` for limits");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

struct Shared {
    app: App,
    router: Router,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
    open: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Shared {
    /// Starts a task for the connection, or refuses it when there are too many.
    fn admit(
        self: Arc<Shared>,
        stream: TcpStream,
        peer: SocketAddr,
        tracker: &TaskTracker,
        kill: &CancellationToken,
    ) {
        let settings = self.app.settings();
        let place = match Place::take(&self, peer.ip(), &settings) {
            Ok(place) => place,
            Err(why) => return refuse(&stream, why),
        };
        let (kill, again) = (kill.clone(), tracker.clone());
        tracker.spawn(async move {
            let served = self.clone().serve(stream, peer, &settings);
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
                    drop(place);
                });
            }
        });
    }

    async fn serve(
        self: Arc<Shared>,
        stream: TcpStream,
        peer: SocketAddr,
        settings: &Settings,
    ) -> Option<Rest> {
        // Small answers should not wait for an acknowledgement; failing to say so is no harm.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            let io = Patient::new(stream, settings.write_timeout);
            return self.speak(io, Peer { addr: peer, tls: false }, settings).await;
        };
        let mut first = [0];
        let peeked = tokio::time::timeout(settings.header_timeout, stream.peek(&mut first)).await;
        // TLS begins with 22; a letter is the method of a request.
        if matches!(peeked, Ok(Ok(1))) && first.iter().all(u8::is_ascii_uppercase) {
            let _ = stream.try_write(NOT_PLAIN);
            return None;
        }
        let io = Patient::new(stream, settings.write_timeout);
        let handshake = tokio::time::timeout(settings.header_timeout, tls.acceptor().accept(io));
        // A handshake that fails or takes too long ends without a word; scanners cause many.
        let Ok(Ok(io)) = handshake.await else { return None };
        self.speak(io, Peer { addr: peer, tls: true }, settings).await
    }

    /// Finds out which HTTP the client speaks, and speaks it.
    async fn speak<I>(self: Arc<Shared>, mut io: I, peer: Peer, settings: &Settings) -> Option<Rest>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let sniffed = tokio::select! {
            sniffed = tokio::time::timeout(settings.header_timeout, sniff(&mut io)) => sniffed,
            () = self.stop.cancelled() => return None,
        };
        // Silence, slowness and a broken connection end alike, without a word.
        let Ok(Ok((read, is_http2))) = sniffed else { return None };
        let io = Prefixed::new(read, io);
        let router = self.router.clone();
        if is_http2 {
            let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                call(router.clone(), request, peer)
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(settings.http2_max_streams)
                .max_header_list_size(LARGEST_HEAD)
                .keep_alive_interval(Some(Duration::from_secs(20)))
                .keep_alive_timeout(Duration::from_secs(20))
                .serve_connection(TokioIo::new(io), service);
            let mut connection = pin!(connection);
            let outcome = tokio::select! {
                outcome = connection.as_mut() => outcome,
                () = self.stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            note(outcome, peer);
            return None;
        }

        // An HTTP/1 connection can turn into a stream of events, which then gets the socket back.
        let answering = Answering::default();
        let (lender, io) = lent::lend(Prompt::new(io, settings.header_timeout, answering.clone()));
        let handover = Handover::default();
        let taken = handover.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, handover) = (router.clone(), handover.clone());
            let answering = answering.clone();
            answering.turn();
            async move {
                let Ok(response) = call(router, request, peer).await;
                // What comes after a change of protocols is no head of a request.
                if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    answering.turn();
                }
                match response.extensions().get::<Taken>().and_then(Taken::take) {
                    Some(events) => {
                        handover.put(response.into_parts().0, events);
                        Err(TakenOver)
                    }
                    None => Ok(response),
                }
            }
        });
        {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                // The wait for a request counts too; the head itself is watched below.
                .header_read_timeout(settings.idle_timeout.max(settings.header_timeout))
                .max_buf_size(LARGEST_HEAD as usize)
                .serve_connection(TokioIo::new(io), service)
                .with_upgrades();
            let mut connection = pin!(connection);
            let outcome = tokio::select! {
                outcome = connection.as_mut() => outcome,
                () = self.stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            note(outcome, peer);
        }
        let (head, events) = taken.take()?;
        let io = lender.take()?;
        // Boxed on its own, so that nothing of the HTTP machinery's size stays allocated.
        Some(Box::pin(events::write(io, head, events, self.stop.clone())))
    }
}

/// What is left to do for a connection that turned into a stream of events.
type Rest = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn note(outcome: Result<(), hyper::Error>, peer: Peer) {
    if let Err(error) = outcome {
        tracing::trace!(error = %error, peer = %peer.addr, "connection ended early");
    }
}

async fn call(
    router: Router,
    request: hyper::Request<Incoming>,
    peer: Peer,
) -> Result<Response, Infallible> {
    use tower::Service;
    let mut request: Request = request.map(Body::new);
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

fn refuse(stream: &TcpStream, why: &'static str) {
    metrics::refused(why);
    // Best effort: the socket's buffer is empty, so a few bytes go out without waiting.
    let _ = stream.try_write(FULL);
}

/// One connection's place in the counts; gives it back when dropped.
struct Place {
    shared: Arc<Shared>,
    address: Option<IpAddr>,
}

impl Place {
    /// The count that is full, when one is. Loopback and trusted proxies are exempt from the count
    /// by address: behind them stand many.
    fn take(shared: &Arc<Shared>, ip: IpAddr, settings: &Settings) -> Result<Place, &'static str> {
        // Only the accept loop adds, so checking before adding cannot overshoot.
        if shared.open.load(Ordering::Relaxed) >= settings.max_connections {
            return Err("total");
        }
        let exempt = ip.is_loopback() || settings.trusts(ip.to_canonical());
        let address = (!exempt).then(|| client::bucket(ip));
        if let Some(address) = address {
            let mut counts = shared.by_address.lock();
            let count = counts.entry(address).or_insert(0);
            if *count >= settings.max_connections_per_address {
                return Err("address");
            }
            *count += 1;
        }
        metrics::connections(shared.open.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(Place { shared: shared.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.shared.open.fetch_sub(1, Ordering::Relaxed);
        metrics::connections(before.saturating_sub(1));
        let Some(address) = self.address else { return };
        let mut counts = self.shared.by_address.lock();
        if let Some(count) = counts.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}
