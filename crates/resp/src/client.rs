//! One connection: what came and is not run yet, what was answered and is not sent yet.
//!
//! Replies are appended in the order of their commands. Those of a batch that the store has not
//! released yet are there but not [sendable](Client::release).

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use mio::net::TcpStream;
use store::embedded::{Reply, SessionId};

use crate::codec::{Decoder, encode};

/// Memory that buffers keep when they are empty; more is given back.
const KEEP: usize = 16 * 1024;

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) session: SessionId,
    pub(crate) decoder: Decoder,
    /// Bytes that came and are not run yet.
    pub(crate) input: Vec<u8>,
    /// Speaks RESP3.
    pub(crate) resp3: bool,
    /// Waits for a key: nothing more of it is run until then.
    pub(crate) blocked: Option<Blocked>,
    /// Stands in the list of this turn.
    pub(crate) listed: bool,
    /// Has bytes that were not looked at yet.
    pub(crate) pending: bool,
    /// The socket may have more to read, as far as is known.
    pub(crate) readable: bool,
    /// Ends when everything sendable is sent.
    pub(crate) closing: bool,
    pub(crate) last_heard: Instant,
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    /// Bytes of `output` that may be sent.
    released: usize,
    /// Batches of this client that the store has not released.
    held: u32,
}

/// How a blocked client waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocked {
    /// When it gives up, in milliseconds since the epoch.
    pub(crate) deadline_ms: Option<i64>,
}

/// What became of reading or sending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// All that was there, or all that was to send.
    Done,
    /// There may be more, or some is left.
    More,
    /// The connection is gone.
    Gone,
}

impl Client {
    pub(crate) fn new(stream: TcpStream, session: SessionId) -> Client {
        Client {
            stream,
            session,
            decoder: Decoder::default(),
            input: Vec::new(),
            resp3: false,
            blocked: None,
            listed: false,
            pending: false,
            readable: true,
            closing: false,
            last_heard: Instant::now(),
            output: Vec::new(),
            sent: 0,
            released: 0,
            held: 0,
        }
    }

    /// Reads once into `scratch` and keeps what came.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Io {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Io::Gone,
                Ok(count) => {
                    self.input.extend_from_slice(scratch.get(..count).unwrap_or_default());
                    self.pending = true;
                    self.last_heard = Instant::now();
                    // A short read has emptied the socket.
                    self.readable = count == scratch.len();
                    return if self.readable { Io::More } else { Io::Done };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Io::Done;
                }
                Err(_) => return Io::Gone,
            }
        }
    }

    /// Drops what was run from the front of the input.
    pub(crate) fn forget(&mut self, count: usize) {
        if count >= self.input.len() {
            self.input.clear();
            if self.input.capacity() > KEEP {
                self.input = Vec::new();
            }
        } else {
            self.input.drain(..count);
        }
    }

    /// Appends a reply.
    pub(crate) fn reply(&mut self, reply: &Reply) {
        encode(reply, self.resp3, &mut self.output);
    }

    /// Where the next reply will begin.
    pub(crate) fn mark(&self) -> usize {
        self.output.len()
    }

    /// Takes back what was appended since `mark` and says `error` so many times in its place.
    pub(crate) fn replace(&mut self, mark: usize, error: &Reply, times: usize) {
        self.output.truncate(mark);
        for _ in 0..times {
            self.reply(error);
        }
    }

    /// Replies of one batch are held until the store releases them.
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// One held batch of this client may be told.
    pub(crate) fn unhold(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// What is not held may be sent. Held replies keep back later ones, for order.
    pub(crate) fn release(&mut self) {
        if self.held == 0 {
            self.released = self.output.len();
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Is there something that may be sent now?
    pub(crate) fn has_output(&self) -> bool {
        self.released > self.sent
    }

    /// Sends what may be sent.
    pub(crate) fn send(&mut self) -> Io {
        while self.has_output() {
            match self.stream.write(self.output.get(self.sent..self.released).unwrap_or_default()) {
                Ok(0) => return Io::Gone,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Io::More,
                Err(_) => return Io::Gone,
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            if self.output.capacity() > KEEP {
                self.output = Vec::new();
            }
            (self.sent, self.released) = (0, 0);
        }
        Io::Done
    }
}
