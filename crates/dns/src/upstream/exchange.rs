//! One query to one server, over UDP or TCP.
//!
//! The query has a random id and, unless the server is known not to keep it, random capitals in its
//! name (0x20); over UDP each query has a socket and so a port of its own, connected to the server, so
//! that the kernel drops what others send (RFC 5452). A message that does not fit is dropped and
//! counted, and the true answer is waited for.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::Ordering,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::Instant,
};

use super::{Server, UpstreamError, UpstreamProtocol};
use crate::{
    keys::Question,
    wire::{
        AnswerError, AnswerKind, CachedAnswer, HEADER_BYTES, MESSAGE_MAX_BYTES, TtlBounds,
        UDP_MAX_BYTES, flag, rcode, read_u16,
    },
};

/// Connections kept for reuse.
const POOL_MAX: usize = 8;

/// Time a connection may rest. Public resolvers close theirs after 8 to 11 s.
const POOL_IDLE: Duration = Duration::from_secs(7);

/// A query as it is sent.
struct SentQuery {
    wire: Vec<u8>,
    question_end: usize,
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
    ) -> Result<Self, UpstreamError> {
        let mut random = [0_u8; 2 + 32];
        // Without randomness a query could be guessed; the system has always some to give.
        getrandom::fill(&mut random).map_err(|_| UpstreamError::Unreachable)?;
        let (id, bits) = random.split_at(2);
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
        }
        Ok(Self { wire, question_end })
    }

    /// Compares id and question of a message with the query's.
    fn fit(&self, message: &[u8]) -> Fit {
        let question =
            |message: &[u8]| message.get(HEADER_BYTES..self.question_end).map(<[u8]>::to_vec);
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
        match (question(message), question(&self.wire)) {
            (Some(theirs), Some(ours)) if read_u16(message, 4) == Some(1) => {
                if theirs == ours {
                    Fit::Answer
                } else if theirs.eq_ignore_ascii_case(&ours) {
                    Fit::OtherCase
                } else {
                    Fit::No
                }
            }
            _ => Fit::No,
        }
    }
}

impl Server {
    /// Asks this server, over TCP too where that is needed. The caller bounds the time.
    pub(super) async fn exchange(
        &self,
        question: &Question,
        kind: AnswerKind,
        bounds: TtlBounds,
    ) -> Result<CachedAnswer, UpstreamError> {
        let mut protocol = self.address.protocol;
        // Signatures cannot be asked for without EDNS.
        let mut edns = kind.is_signed() || self.takes_edns.load(Ordering::Relaxed);
        let mut changes_case = false;
        // Each detour is taken once at most.
        for _ in 0..4 {
            let random_case = protocol == UpstreamProtocol::Udp
                && !changes_case
                && self.keeps_case.load(Ordering::Relaxed);
            let sent = SentQuery::new(question, kind, random_case, edns)?;
            let check = |message: &[u8]| {
                let answer = CachedAnswer::normalise(message, question, kind, bounds);
                self.judge(message, answer, edns)
            };
            let result = match protocol {
                UpstreamProtocol::Udp => self.over_udp(&sent, check).await,
                UpstreamProtocol::Tcp => self.over_tcp(&sent, check).await,
            };
            match result {
                Ok(answer) => {
                    if changes_case {
                        self.keeps_case.store(false, Ordering::Relaxed);
                    }
                    if !edns {
                        self.takes_edns.store(false, Ordering::Relaxed);
                    }
                    return Ok(answer);
                }
                Err(Detour::Tcp) if protocol == UpstreamProtocol::Udp => {
                    protocol = UpstreamProtocol::Tcp;
                }
                Err(Detour::OtherCase) if !changes_case => {
                    (protocol, changes_case) = (UpstreamProtocol::Tcp, true);
                }
                Err(Detour::WithoutEdns) if edns && !kind.is_signed() => edns = false,
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
        sent: &SentQuery,
        check: impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> Result<CachedAnswer, Detour> {
        let local: SocketAddr = match self.address.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local).await?;
        socket.connect(self.address.address).await?;
        socket.send(&sent.wire).await?;
        let mut buffer = [0; 4_096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            let message = buffer.get(..length).unwrap_or_default();
            match sent.fit(message) {
                Fit::Answer => {
                    if let Some(result) = check(message) {
                        return result;
                    }
                }
                Fit::OtherCase => return Err(Detour::OtherCase),
                Fit::No => {}
            }
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn over_tcp(
        &self,
        sent: &SentQuery,
        check: impl Fn(&[u8]) -> Option<Result<CachedAnswer, Detour>>,
    ) -> Result<CachedAnswer, Detour> {
        // A connection that rested may have been closed meanwhile: one more try, on a new one.
        if let Some(connection) = self.pool.take()
            && let Ok(result) = self.over_connection(connection, sent, &check).await
        {
            return result;
        }
        let connection = TcpStream::connect(self.address.address).await?;
        // Without it the length and the query could leave in two packets.
        connection.set_nodelay(true)?;
        self.over_connection(connection, sent, &check).await?
    }

    /// Asks over a connection; the outer error says that the connection failed.
    async fn over_connection(
        &self,
        mut connection: TcpStream,
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

/// Connections that rest.
#[derive(Debug, Default)]
pub(super) struct TcpPool(Mutex<Vec<(TcpStream, Instant)>>);

impl TcpPool {
    fn take(&self) -> Option<TcpStream> {
        let mut resting = self.0.lock();
        resting.retain(|(_, since)| since.elapsed() < POOL_IDLE);
        resting.pop().map(|(connection, _)| connection)
    }

    fn put(&self, connection: TcpStream) {
        let mut resting = self.0.lock();
        if resting.len() < POOL_MAX {
            resting.push((connection, Instant::now()));
        }
    }
}
