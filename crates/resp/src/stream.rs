//! A client's socket, plain or under TLS.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};

/// Gives the certificate and key for a new connection. Asked for each, so that a renewed
/// certificate counts without a restart.
#[derive(Clone)]
pub struct TlsSource(Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>);

impl TlsSource {
    /// From a function that gives the current one.
    pub fn new(current: impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static) -> TlsSource {
        TlsSource(Arc::new(current))
    }
}

impl fmt::Debug for TlsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsSource").finish_non_exhaustive()
    }
}

/// A socket that does not wait. Reading tells `WouldBlock` only when the socket is empty.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    tls: ServerConnection,
}

impl ClientSocket {
    pub(crate) fn new(socket: TcpStream, tls: Option<&TlsSource>) -> io::Result<ClientSocket> {
        let Some(TlsSource(current)) = tls else { return Ok(ClientSocket::Plain(socket)) };
        let tls = ServerConnection::new(current()).map_err(io::Error::other)?;
        Ok(ClientSocket::Tls(Box::new(TlsStream { socket, tls })))
    }

    /// The socket, for the poll.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        match self {
            ClientSocket::Plain(socket) => socket,
            ClientSocket::Tls(stream) => &mut stream.socket,
        }
    }

    /// Is the other side's hello still to come or to be answered?
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, ClientSocket::Tls(stream) if stream.tls.is_handshaking())
    }

    /// Are there bytes of TLS that the socket has not taken yet?
    pub(crate) fn has_unsent(&self) -> bool {
        matches!(self, ClientSocket::Tls(stream) if stream.tls.wants_write())
    }

    /// Can a short read leave something behind?
    pub(crate) fn reads_in_parts(&self) -> bool {
        matches!(self, ClientSocket::Tls(_))
    }

    /// Says that nothing more comes, as far as the socket takes it now.
    pub(crate) fn say_goodbye(&mut self) {
        if let ClientSocket::Tls(stream) = self {
            stream.tls.send_close_notify();
            // The client may have gone already.
            let _ = stream.push();
        }
    }
}

impl Read for ClientSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Plain(socket) => socket.read(buffer),
            ClientSocket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Plain(socket) => socket.write(bytes),
            ClientSocket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            ClientSocket::Plain(_) => Ok(()),
            ClientSocket::Tls(stream) => stream.push(),
        }
    }
}

impl TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            let processed = self.tls.process_new_packets();
            // Answers of the handshake, or the alert that says what was wrong.
            match self.push() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What was taken before goes first; only then is more taken.
        self.push()?;
        let count = self.tls.writer().write(bytes)?;
        match self.push() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    /// Hands the socket what it takes.
    fn push(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
