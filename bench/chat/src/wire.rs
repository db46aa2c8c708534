//! Clients as bytes on a connection: HTTP with keep-alive, WebSocket frames, server-sent events, Engine.IO.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes a client reads at once.
const READ_BYTES: usize = 16 * 1024;

/// A kind of stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A socket of an agent.
    Agent,
    /// A socket of a visitor.
    Visitor,
    /// Server-sent events of a visitor.
    VisitorEvents,
    /// A socket of socket.io.
    SocketIo,
    /// A WebSocket that only waits.
    Plain,
}

impl Kind {
    pub(crate) fn parse(word: &str) -> Result<Kind> {
        Ok(match word {
            "agent" => Kind::Agent,
            "visitor" => Kind::Visitor,
            "visitor-events" => Kind::VisitorEvents,
            "socketio" => Kind::SocketIo,
            "ws" => Kind::Plain,
            _ => bail!("no kind {word}"),
        })
    }

    fn path(self) -> &'static str {
        match self {
            Kind::Agent => "/api/v1/ws",
            Kind::Visitor => "/api/v1/widget/ws",
            Kind::VisitorEvents => "/api/v1/widget/events",
            Kind::SocketIo => "/socket.io/?EIO=4&transport=websocket",
            Kind::Plain => "/",
        }
    }
}

/// The content of a message that was due at this time since the start.
pub(crate) fn content_of(due: Duration) -> String {
    format!("due{:020}", due.as_nanos())
}

/// The time in a payload at which its message was due.
pub(crate) fn due_of(payload: &[u8]) -> Option<Duration> {
    const MARK: &[u8] = b"\"content\":\"due";
    let at = memchr::memmem::find(payload, MARK)? + MARK.len();
    let digits = std::str::from_utf8(payload.get(at..at + 20)?).ok()?;
    Some(Duration::from_nanos(digits.parse().ok()?))
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Stream {
    kind: Kind,
    stream: TcpStream,
    /// Bytes that came and are no whole frame yet.
    pending: Vec<u8>,
}

impl Stream {
    /// Opens a stream and waits until the server is ready to send.
    pub(crate) async fn open(kind: Kind, address: &str, token: &str) -> Result<Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut own = Stream { kind, stream, pending: Vec::new() };
        let upgrade = match kind {
            Kind::VisitorEvents => "",
            _ => {
                "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            }
        };
        let protocol = match kind {
            Kind::Agent | Kind::Visitor => "sec-websocket-protocol: desk.v1\r\n",
            _ => "",
        };
        let head = format!(
            "GET {} HTTP/1.1\r\nhost: {address}\r\n{upgrade}{protocol}authorization: Bearer {token}\r\n\r\n",
            kind.path()
        );
        own.stream.write_all(head.as_bytes()).await?;
        let end = loop {
            if let Some(at) = memchr::memmem::find(&own.pending, b"\r\n\r\n") {
                break at + 4;
            }
            own.read().await?;
        };
        let status = String::from_utf8_lossy(&own.pending[..12]).into_owned();
        let wanted = if kind == Kind::VisitorEvents { "HTTP/1.1 200" } else { "HTTP/1.1 101" };
        ensure!(status == wanted, "{}: {status}", kind.path());
        own.pending.drain(..end);
        let (greeting, ready): (&str, &[u8]) = match kind {
            Kind::Agent | Kind::Visitor => ("{\"t\":\"hello\"}", b"\"t\":\"ready\""),
            Kind::VisitorEvents => ("", b"event: ready"),
            Kind::SocketIo => ("40", b"40{"),
            Kind::Plain => return Ok(own),
        };
        if !greeting.is_empty() {
            own.send(greeting).await?;
        }
        while memchr::memmem::find(&own.pending, ready).is_none() {
            own.read().await?;
        }
        own.take_frames(|_| {});
        Ok(own)
    }

    async fn read(&mut self) -> Result<()> {
        let length = self.pending.len();
        self.pending.resize(length + READ_BYTES, 0);
        let read = self.stream.read(&mut self.pending[length..]).await;
        self.pending.truncate(length + *read.as_ref().unwrap_or(&0));
        ensure!(read? > 0, "the server closed the connection");
        Ok(())
    }

    /// Sends a text, masked with zeros.
    pub(crate) async fn send(&mut self, text: &str) -> Result<()> {
        self.send_frame(1, text.as_bytes()).await
    }

    async fn send_frame(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = vec![0x80 | kind];
        match payload.len() {
            short @ ..=125 => frame.push(0x80 | short as u8),
            long => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(long)?.to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await.context("send")
    }

    /// Calls back for every payload, and tells whether a ping is to be answered.
    fn take_frames(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        let (mut at, mut has_ping) = (0, false);
        while let Some(&[first, second]) =
            self.pending.get(at..at + 2).and_then(|head| head.first_chunk::<2>())
        {
            let (head, length) = match second & 0x7f {
                126 => match self.pending.get(at + 2..at + 4) {
                    Some(long) => (4, usize::from(u16::from_be_bytes([long[0], long[1]]))),
                    None => break,
                },
                short => (2, usize::from(short)),
            };
            let Some(payload) = self.pending.get(at + head..at + head + length) else { break };
            match first & 0xf {
                9 => has_ping = true,
                _ if self.kind == Kind::SocketIo && payload == b"2" => has_ping = true,
                _ => each(payload),
            }
            at += head + length;
        }
        self.pending.drain(..at);
        has_ping
    }

    /// Reads until the server ends it. Server-sent events are not looked into.
    pub(crate) async fn follow(mut self, mut each: impl FnMut(&[u8])) -> Result<()> {
        loop {
            if self.kind == Kind::VisitorEvents {
                self.pending.clear();
            } else if self.take_frames(&mut each) {
                match self.kind {
                    Kind::SocketIo => self.send("3").await?,
                    _ => self.send_frame(10, b"").await?,
                }
            }
            self.read().await?;
        }
    }
}

/// A connection for calls, kept alive.
#[derive(Debug)]
pub(crate) struct Connection {
    address: String,
    stream: TcpStream,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { address: address.to_owned(), stream })
    }

    /// One call; answers status and body.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        path: &str,
        token: &str,
        body: &str,
    ) -> Result<(u16, String)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        let mut got = Vec::with_capacity(4_096);
        loop {
            if let Some(end) = memchr::memmem::find(&got, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&got[..end]).to_lowercase();
                let status: u16 = head.get(9..12).context("no status")?.parse()?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
                let length: usize = length.map_or(Ok(0), |text| text.trim().parse())?;
                while got.len() < end + 4 + length {
                    ensure!(self.stream.read_buf(&mut got).await? > 0, "closed within a response");
                }
                let body = String::from_utf8(got[end + 4..end + 4 + length].to_vec())?;
                return Ok((status, body));
            }
            ensure!(self.stream.read_buf(&mut got).await? > 0, "closed before a response");
        }
    }
}
