//! One query to one server, over UDP, TCP, TLS or HTTPS.
//!
//! The query has a random id and, unless the server is known not to keep it, random capitals in its
//! name (0x20); over UDP each query has a socket and so a random port to itself, connected to the server,
//! so that the kernel drops what others send (RFC 5452). A socket is used for some queries, one after the
//! other, and each query draws one of many. A message that does not fit is dropped and
//! counted, and the true answer is waited for. Over TLS and HTTPS nobody can send anything in between;
//! such queries are padded (RFC 8467), so that their length tells little.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    time::Instant,
};

use super::{Bootstrap, Server, UpstreamError, UpstreamProtocol};
use crate::{
    name::Question,
    remote::{ExchangeRequest, RemoteError},
    wire::{
        AnswerError, AnswerKind, CachedAnswer, HEADER_BYTES, MESSAGE_MAX_BYTES, TtlBounds,
        UDP_MAX_BYTES, flag, rcode, read_u16,
    },
};

/// Connections kept for reuse.
const POOL_MAX: usize = 8;

/// Connections to one server at the same time; more queries wait for one.
const CONNECTIONS_MAX: usize = 64;

/// Wait before a datagram is sent once more; twice as long each time.
const RESEND_AFTER: Duration = Duration::from_millis(500);

/// Sockets that rest before one of them is used again: the port of a query is one of so many at least.
const SOCKETS_MIN: usize = 32;

/// Sockets that rest at most.
const SOCKETS_MAX: usize = 256;

/// Sockets in use to one server: a share of the files that the process may open, within these bounds. As many
/// as Unbound has by default at most.
const FILES_SHARE: u64 = 32;
const PLACES_MIN: usize = 64;
const PLACES_MAX: usize = 4_096;

/// Queries and time for which a port is used.
const SOCKET_QUERIES_MAX: u32 = 32;
const SOCKET_AGE_MAX: Duration = Duration::from_secs(3);

/// Longest message read over UDP; we ask for less.
const DATAGRAM_MAX_BYTES: usize = 4_096;

/// Queries over TLS and HTTPS are padded to a multiple of this, RFC 8467 §4.1.
const PADDING_BYTES: usize = 128;

/// Option code of padding, RFC 7830.
const PADDING_OPTION: u16 = 12;

/// Time for which an HTTPS exchange may run at most; the caller bounds it closer.
const HTTPS_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a connection may rest. Public resolvers close theirs after 8 to 11 s.
const POOL_IDLE: Duration = Duration::from_secs(7);

/// A query as it is sent.
struct SentQuery {
    wire: Vec<u8>,
    question_end: usize,
    /// Random number by which a socket is drawn.
    draw: u16,
}

/// Fit of a message to a query.
enum Fit {
    Answer,
    /// The question is spelled in another case.
    OtherCase,
    No,
}

/// Reason why an exchange goes on in another way.
enum Detour {
    Failed(UpstreamError),
    /// Ask over TCP: the answer is truncated.
    Tcp,
    /// Ask over TCP, which cannot be spoofed: the server changed the spelling of the name.
    OtherCase,
    /// Ask without an OPT record.
    WithoutEdns,
}

impl From<UpstreamError> for Detour {
    fn from(error: UpstreamError) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for Detour {
    fn from(_: io::Error) -> Self {
        Self::Failed(UpstreamError::Unreachable)
    }
}

impl SentQuery {
    fn new(
        question: &Question,
        kind: AnswerKind,
        random_case: bool,
        edns: bool,
        protocol: UpstreamProtocol,
    ) -> Result<Self, UpstreamError> {
        let mut random = [0_u8; 4 + 32];
        // Without randomness a query could be guessed; the system has always some to give.
        getrandom::fill(&mut random).map_err(|_| UpstreamError::Unreachable)?;
        let [high, low, rest @ ..] = &random;
        let draw = u16::from_be_bytes([*high, *low]);
        let (id, bits) = rest.split_at(2);
        // RFC 8484 §4.1: the same query has the same bytes.
        let id = if protocol == UpstreamProtocol::Https { &[0, 0] } else { id };
        // AD asks for the AD bit in the answer without signatures, RFC 6840 §5.7.
        let mut flags = flag::RD | flag::AD;
        if kind.is_unchecked() {
            flags |= flag::CD;
        }
        let mut wire = Vec::with_capacity(HEADER_BYTES + question.name.as_wire().len() + 15);
        wire.extend_from_slice(id);
        wire.extend_from_slice(&flags.to_be_bytes());
        wire.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        for (at, &byte) in question.name.as_wire().iter().enumerate() {
            let upper =
                random_case && bits.get(at / 8).is_some_and(|bits| bits >> (at % 8) & 1 == 1);
            wire.push(if upper { byte.to_ascii_uppercase() } else { byte });
        }
        wire.extend_from_slice(&question.qtype.to_be_bytes());
        wire.extend_from_slice(&question.qclass.to_be_bytes());
        let question_end = wire.len();
        if edns {
            let [size_high, size_low] =
                u16::try_from(UDP_MAX_BYTES).unwrap_or(u16::MAX).to_be_bytes();
            let dnssec_ok = if kind.is_signed() { 0x80 } else { 0 };
            wire.extend_from_slice(&[0, 0, 41, size_high, size_low, 0, 0, dnssec_ok, 0, 0, 0]);
            if protocol.is_private() {
                pad(&mut wire);
            }
        }
        Ok(Self { wire, question_end, draw })
    }

    /// Compares id and question of a message with the query's.
    fn fit(&self, message: &[u8]) -> Fit {
        let Some(flags) = read_u16(message, 2) else { return Fit::No };
        let is_response = flags & (flag::QR | flag::OPCODE) == flag::QR;
        if !is_response || message.get(..2) != self.wire.get(..2) {
            return Fit::No;
        }
        // A server that does not know EDNS may answer with a bare header.
        if message.len() == HEADER_BYTES
            && matches!(flags & flag::RCODE, rcode::FORMERR | rcode::NOTIMP)
        {
            return Fit::Answer;
        }
        let question = HEADER_BYTES..self.question_end;
        match (message.get(question.clone()), self.wire.get(question)) {
            (Some(theirs), Some(ours)) if read_u16(message, 4) == Some(1) => {
                if theirs == ours {
                    Fit::Answer
                } else if theirs.eq_ignore_ascii_case(ours) {
                    Fit::OtherCase
                } else {
                    Fit::No
                }
            }
            _ => Fit::No,
        }
    }
}

/// Adds padding to an OPT record without options at the end of a query.
fn pad(wire: &mut Vec<u8>) {
    let padding = (PADDING_BYTES - (wire.len() + 4) % PADDING_BYTES) % PADDING_BYTES;
    let (Ok(padding_length), Ok(options_length)) =
        (u16::try_from(padding), u16::try_from(padding + 4))
    else {
        return;
    };
    let length_at = wire.len() - 2;
    wire.truncate(length_at);
    wire.extend_from_slice(&options_length.to_be_bytes());
    wire.extend_from_slice(&PADDING_OPTION.to_be_bytes());
    wire.extend_from_slice(&padding_length.to_be_bytes());
    wire.resize(wire.len() + padding, 0);
}

impl Server {
    /// Asks this server, over TCP too where that is needed. The caller bounds the time.
    pub(super) async fn exchange(
        &self,
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
        bootstrap: Option<&Bootstrap>,
    ) -> Result<CachedAnswer, UpstreamError> {
        let mut addresses = self.address.known_addresses();
        if addresses.is_empty() {
            let bootstrap = bootstrap.ok_or(UpstreamError::UnknownHost)?;
            let found = Box::pin(bootstrap.resolve(self.address.host())).await?;
            let port = self.address.port();
            addresses.extend(found.into_iter().map(|address| SocketAddr::new(address, port)));
        }
        let mut protocol = self.address.protocol();
        // Signatures cannot be asked for without EDNS.
        let mut edns = kind.is_signed() || !self.refuses_edns.is_known();
        let (mut changes_case, mut has_lost_edns) = (false, false);
        // Each detour is taken once at most.
        for _ in 0..5 {
            let random_case =
                protocol == UpstreamProtocol::Udp && !changes_case && !self.changes_case.is_known();
            let sent = SentQuery::new(question, kind, random_case, edns, protocol)?;
            let check = |message: &[u8]| {
                let answer = CachedAnswer::normalise(message, question, kind, bounds);
                self.judge(message, answer, edns)
            };
            // Streams are boxed: a query over UDP, of which many wait, has no room for a TLS handshake.
            let result = match protocol {
                UpstreamProtocol::Udp => self.over_udp(&addresses, &sent, check).await,
                UpstreamProtocol::Tcp | UpstreamProtocol::Tls => {
                    Box::pin(self.over_stream(&addresses, &sent, check)).await
                }
                UpstreamProtocol::Https => {
                    Box::pin(self.over_https(&addresses, &sent, check)).await
                }
            };
            match result {
                Ok(answer) => {
                    if changes_case {
                        self.changes_case.note();
                    }
                    if has_lost_edns {
                        self.refuses_edns.note();
                    }
                    return Ok(answer);
                }
                Err(Detour::Tcp) if protocol == UpstreamProtocol::Udp => {
                    protocol = UpstreamProtocol::Tcp;
                }
                Err(Detour::OtherCase) if !changes_case => {
                    (protocol, changes_case) = (UpstreamProtocol::Tcp, true);
                }
                // Without TCP there: once more over UDP with the name in lower case, as plain servers
                // are asked. Some answer must be given (never fail over the case of letters).
                Err(Detour::Failed(UpstreamError::Unreachable))
                    if changes_case && protocol == UpstreamProtocol::Tcp =>
                {
                    protocol = UpstreamProtocol::Udp;
                }
                Err(Detour::WithoutEdns) if edns && !kind.is_signed() => {
                    (edns, has_lost_edns) = (false, true);
                }
                Err(Detour::Failed(error)) => return Err(error),
                Err(_) => break,
            }
        }
        Err(UpstreamError::Unusable)
    }

    /// Decides what follows from a message that fits; none if it is to be dropped.
    fn judge(
        &self,
        message: &[u8],
        answer: Result<CachedAnswer, AnswerError>,
        edns: bool,
    ) -> Option<Result<CachedAnswer, Detour>> {
        let bare = message.len() == HEADER_BYTES;
        let header_rcode = read_u16(message, 2).unwrap_or_default() & flag::RCODE;
        match answer {
            Ok(answer) => Some(Ok(answer)),
            Err(AnswerError::Truncated) => Some(Err(Detour::Tcp)),
            Err(AnswerError::Rcode(rcode::FORMERR | rcode::NOTIMP | rcode::BADVERS)) if edns => {
                Some(Err(Detour::WithoutEdns))
            }
            Err(AnswerError::Rcode(code)) => Some(Err(Detour::Failed(UpstreamError::Rcode(code)))),
            Err(_) if bare && edns => Some(Err(Detour::WithoutEdns)),
            Err(_) if bare => Some(Err(Detour::Failed(UpstreamError::Rcode(header_rcode)))),
            Err(AnswerError::Malformed | AnswerError::OtherQuestion) => None,
        }
    }

    async fn over_udp(
        &self,
        addresses: &[SocketAddr],
        sent: &SentQuery,
        check: impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> Result<CachedAnswer, Detour> {
        let server = *addresses.first().ok_or(UpstreamError::UnknownHost)?;
        let _place = self.sockets.places.acquire().await;
        let socket = self.sockets.send(server, sent).await?;
        let mut resend_after = RESEND_AFTER;
        loop {
            let readable = socket.inner.readable();
            let Ok(readable) = tokio::time::timeout(resend_after, readable).await else {
                // A datagram was lost on the way, or the server is slow: the same once more, from the
                // same port, so that a spoofer's chance stays what it was.
                socket.inner.send(&sent.wire).await?;
                resend_after *= 2;
                continue;
            };
            readable?;
            // On the stack, and only while there is something to read: many queries wait.
            let mut buffer = [0; DATAGRAM_MAX_BYTES];
            let length = match socket.inner.try_recv(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                received => received?,
            };
            let message = buffer.get(..length).unwrap_or_default();
            match sent.fit(message) {
                Fit::Answer => {
                    if let Some(result) = check(message) {
                        // One that timed out or broke is not used again: its answer may still come.
                        self.sockets.put(socket);
                        return result;
                    }
                }
                Fit::OtherCase => return Err(Detour::OtherCase),
                Fit::No => {}
            }
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks over TCP or TLS.
    async fn over_stream(
        &self,
        addresses: &[SocketAddr],
        sent: &SentQuery,
        check: impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> Result<CachedAnswer, Detour> {
        let _slot = Arc::clone(&self.pool.slots).acquire_owned().await;
        // A connection that rested may have been closed meanwhile: one more try, on a new one.
        if let Some(connection) = self.pool.take()
            && let Ok(result) = self.over_connection(connection, sent, &check).await
        {
            return result;
        }
        let mut failure = Detour::Failed(UpstreamError::UnknownHost);
        for address in addresses {
            match self.connect(*address).await {
                Ok(connection) => return self.over_connection(connection, sent, &check).await?,
                Err(error) => failure = Detour::Failed(error),
            }
        }
        Err(failure)
    }

    async fn connect(&self, address: SocketAddr) -> Result<Connection, UpstreamError> {
        let unreachable = |_: io::Error| UpstreamError::Unreachable;
        let connection = TcpStream::connect(address).await.map_err(unreachable)?;
        // Without it the length and the query could leave in two packets.
        connection.set_nodelay(true).map_err(unreachable)?;
        if self.address.protocol() != UpstreamProtocol::Tls {
            return Ok(Box::new(connection));
        }
        let config = self.needs.tls.clone().ok_or(UpstreamError::NoTransport)?;
        let name = ServerName::try_from(self.address.host().to_owned())
            .map_err(|_| UpstreamError::UnknownHost)?;
        let connector = tokio_rustls::TlsConnector::from(config);
        let connection = connector.connect(name, connection).await.map_err(|error| {
            // A certificate that is not good for this name, an alert, a broken record.
            match error.kind() {
                io::ErrorKind::InvalidData => UpstreamError::Untrusted,
                _ => UpstreamError::Unreachable,
            }
        })?;
        Ok(Box::new(connection))
    }

    async fn over_https(
        &self,
        addresses: &[SocketAddr],
        sent: &SentQuery,
        check: impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> Result<CachedAnswer, Detour> {
        let exchange = self.needs.exchange.as_ref().ok_or(UpstreamError::NoTransport)?;
        let request = ExchangeRequest {
            url: self.address.url(),
            addresses: addresses.to_vec(),
            message: sent.wire.clone(),
            timeout: HTTPS_TIMEOUT,
        };
        let message = exchange.exchange(request).await.map_err(|error| match error {
            RemoteError::Timeout => UpstreamError::Timeout,
            RemoteError::Certificate(_) => UpstreamError::Untrusted,
            RemoteError::Unreachable(_) => UpstreamError::Unreachable,
            _ => UpstreamError::Unusable,
        })?;
        let result = match sent.fit(&message) {
            Fit::Answer | Fit::OtherCase => check(&message),
            Fit::No => None,
        };
        match result {
            Some(Err(Detour::Tcp)) | None => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Err(Detour::Failed(UpstreamError::Unusable))
            }
            Some(result) => result,
        }
    }

    /// Asks over a connection; the outer error says that the connection failed.
    async fn over_connection(
        &self,
        mut connection: Connection,
        sent: &SentQuery,
        check: &impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> io::Result<Result<CachedAnswer, Detour>> {
        let length = u16::try_from(sent.wire.len()).unwrap_or(u16::MAX);
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&sent.wire);
        connection.write_all(&framed).await?;
        let mut message = Vec::new();
        loop {
            let length = usize::from(connection.read_u16().await?);
            debug_assert!(length <= MESSAGE_MAX_BYTES);
            message.resize(length, 0);
            connection.read_exact(&mut message).await?;
            let result = match sent.fit(&message) {
                // Over a connection nobody else can have changed it.
                Fit::Answer | Fit::OtherCase => check(&message),
                Fit::No => None,
            };
            match result {
                Some(result) => {
                    self.pool.put(connection);
                    // Truncated even over TCP: there is no other way to ask.
                    return Ok(match result {
                        Err(Detour::Tcp) => Err(Detour::Failed(UpstreamError::Unusable)),
                        result => result,
                    });
                }
                None => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
            }
        }
    }
}

/// A socket to a server, on a port that the system drew.
#[derive(Debug)]
struct ServerSocket {
    inner: UdpSocket,
    server: SocketAddr,
    opened: Instant,
    queries: u32,
}

impl ServerSocket {
    /// Opens a socket and sends the first query.
    async fn open(server: SocketAddr, wire: &[u8]) -> io::Result<Self> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        socket.connect(server)?;
        // Before the runtime knows the socket: it would first wait to hear that it may be written to.
        let sent = socket.send(wire);
        let inner = UdpSocket::from_std(socket)?;
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => inner.send(wire).await?,
            sent => sent?,
        };
        Ok(Self { inner, server, opened: Instant::now(), queries: 1 })
    }

    fn is_spent(&self) -> bool {
        self.queries >= SOCKET_QUERIES_MAX || self.opened.elapsed() >= SOCKET_AGE_MAX
    }
}

/// Sockets to one server: those that rest between two queries, and places for those in use. Each has one
/// query at a time.
#[derive(Debug)]
pub(super) struct SocketPool {
    resting: Mutex<Vec<ServerSocket>>,
    /// Queries beyond these wait: a server that is silent must not use up the files that the process may
    /// open, which the store and all connections need, too.
    places: Semaphore,
}

impl Default for SocketPool {
    fn default() -> Self {
        let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        let share = usize::try_from(files / FILES_SHARE).unwrap_or(PLACES_MAX);
        let places = Semaphore::new(share.clamp(PLACES_MIN, PLACES_MAX));
        Self { resting: Mutex::default(), places }
    }
}

impl SocketPool {
    /// Sends a query from a socket drawn at random, or from a new one while few rest.
    async fn send(&self, server: SocketAddr, sent: &SentQuery) -> io::Result<ServerSocket> {
        if let Some(mut socket) = self.take(server, sent.draw) {
            socket.queries += 1;
            // What an earlier query left, such as a server that was away, fails this one.
            if socket.inner.send(&sent.wire).await.is_ok() {
                return Ok(socket);
            }
        }
        ServerSocket::open(server, &sent.wire).await
    }

    fn take(&self, server: SocketAddr, draw: u16) -> Option<ServerSocket> {
        let mut spent = Vec::new();
        let mut resting = self.resting.lock();
        let taken = loop {
            if resting.len() < SOCKETS_MIN {
                break None;
            }
            let index = usize::from(draw) % resting.len();
            let socket = resting.swap_remove(index);
            if socket.server == server && !socket.is_spent() {
                break Some(socket);
            }
            spent.push(socket);
        };
        drop(resting);
        // Closed without the lock.
        drop(spent);
        taken
    }

    fn put(&self, socket: ServerSocket) {
        if socket.is_spent() {
            return;
        }
        let mut resting = self.resting.lock();
        if resting.len() < SOCKETS_MAX {
            resting.push(socket);
        }
    }
}

/// A stream to a server, plain or TLS.
trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for T {}

type Connection = Box<dyn ServerStream>;

/// Connections to one server: those that rest, and slots for those in use.
pub(super) struct ConnectionPool {
    resting: Mutex<Vec<(Connection, Instant)>>,
    slots: Arc<Semaphore>,
}

impl Default for ConnectionPool {
    fn default() -> Self {
        Self { resting: Mutex::default(), slots: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionPool({} resting)", self.resting.lock().len())
    }
}

impl ConnectionPool {
    fn take(&self) -> Option<Connection> {
        let mut resting = self.resting.lock();
        resting.retain(|(_, since)| since.elapsed() < POOL_IDLE);
        resting.pop().map(|(connection, _)| connection)
    }

    fn put(&self, connection: Connection) {
        let mut resting = self.resting.lock();
        if resting.len() < POOL_MAX {
            resting.push((connection, Instant::now()));
        }
    }
}
