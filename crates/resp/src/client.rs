//! One connection: what came and is not run yet, what was answered and is not sent yet.
//!
//! Replies are appended in the order of their commands. Those of a batch that the store has not
//! released yet are there but not [sendable](Client::release).

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use store::embedded::{Buffers, CommandOutcome, OutputLimits, Reply, SessionId, Traffic};

use crate::codec::{CommandDecoder, encode};
use crate::listener::{CommandRunner, READ_BYTES, is_about_clients};
use crate::stream::ClientSocket;

/// Memory that the output keeps when it is empty; more is given back.
const KEEP_BYTES: usize = 16 * 1024;
/// Room that is made for what a client sends, as in Redis.
const ROOM_BYTES: usize = 16 * 1024;
/// Room that is not worth giving back.
const SMALL_BUFFER_BYTES: usize = 4 * 1024;
/// Above this much, room that was not used lately is given back.
const LARGE_BUFFER_BYTES: usize = 32 * 1024;
/// A client that has been silent for so long needs no room.
const SILENCE: Duration = Duration::from_secs(2);

/// Change in a client's memory that is reported to the store again.
const REPORT_STEP_BYTES: usize = 64 * 1024;

/// Bytes that are read from a client that waits for a key; what comes after them stays where it
/// is until the wait is over. The end of a client that has gone is seen if no more is before it: behind a full
/// receive window it does not even arrive.
const READ_AHEAD_BYTES: usize = 1024 * 1024;

/// One connection.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) stream: ClientSocket,
    pub(crate) peer: SocketAddr,
    /// Counts what it sends and receives.
    traffic: Arc<Traffic>,
    /// None until the store knows it.
    pub(crate) session: Option<SessionId>,
    pub(crate) decoder: CommandDecoder,
    /// Bytes that came and are not run yet, but for those `done` at the front.
    pub(crate) input: Vec<u8>,
    pub(crate) done: usize,
    /// The most there was since memory was last given back.
    peak: usize,
    /// Speaks RESP3.
    resp3: bool,
    /// Has shown its password, or needs none.
    pub(crate) authenticated: bool,
    /// Waits for a key: nothing more of it is run until then.
    pub(crate) blocked: Option<ClientWait>,
    /// Stands in the list of this turn.
    pub(crate) listed: bool,
    /// Has bytes that were not looked at yet.
    pub(crate) pending: bool,
    /// The socket may have more to read, as far as is known.
    pub(crate) readable: bool,
    /// The other side has said that nothing more comes: the end is in the socket, behind what is
    /// still to be read, and no event will tell of it again.
    pub(crate) ended: bool,
    /// Ends when everything sendable is sent.
    pub(crate) closing: bool,
    pub(crate) last_heard: Instant,
    /// Time at which it connected.
    pub(crate) since: Instant,
    /// Showed a wrong password and is answered only then.
    pub(crate) penalty: Option<Instant>,
    /// Listens to channels or patterns.
    pub(crate) subscribed: bool,
    /// Time since which its unread output has been above the soft limit.
    over_soft: Option<Instant>,
    /// Memory last reported to the store.
    told: usize,
    /// True if its memory is to be reported to the store.
    pub(crate) untold: bool,
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    /// Bytes of `output` that may be sent.
    released: usize,
    /// Batches of this client that the store has not released.
    held: u32,
    /// Its replies in the batch under way.
    batch: Option<InBatch>,
    /// Its input is with a script that runs.
    lent: bool,
}

/// Replies of one client in one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InBatch {
    /// Offset at which they begin in the output.
    mark: usize,
    count: usize,
}

/// The input of a client while a command in it runs that may take long.
#[derive(Debug)]
pub(crate) struct DetachedInput {
    input: Vec<u8>,
    decoder: CommandDecoder,
    done: usize,
}

impl DetachedInput {
    /// The arguments of the command.
    pub(crate) fn arguments(&self) -> SmallVec<[&[u8]; 16]> {
        self.decoder.arguments(self.input.get(self.done..).unwrap_or_default())
    }
}

/// The wait of a blocked client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientWait {
    /// Deadline in milliseconds since the epoch.
    pub(crate) deadline_ms: Option<i64>,
}

/// The result of reading or sending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// All that was there, or all that was to send.
    Done,
    /// There may be more, or some is left.
    More,
    /// The connection is gone.
    Gone,
}

impl ClientConnection {
    pub(crate) fn new(
        stream: ClientSocket,
        peer: SocketAddr,
        traffic: Arc<Traffic>,
    ) -> ClientConnection {
        ClientConnection {
            stream,
            peer,
            traffic,
            session: None,
            decoder: CommandDecoder::default(),
            input: Vec::new(),
            done: 0,
            peak: 0,
            resp3: false,
            authenticated: false,
            blocked: None,
            listed: false,
            pending: false,
            readable: true,
            ended: false,
            closing: false,
            last_heard: Instant::now(),
            since: Instant::now(),
            penalty: None,
            subscribed: false,
            over_soft: None,
            told: 0,
            untold: false,
            output: Vec::new(),
            sent: 0,
            released: 0,
            held: 0,
            batch: None,
            lent: false,
        }
    }

    /// The store knows it as this session.
    pub(crate) fn introduce(&mut self, store: &impl CommandRunner, session: SessionId) {
        self.session = Some(session);
        self.learn(store, session);
    }

    /// Looks how the session is now.
    pub(crate) fn learn(&mut self, store: &impl CommandRunner, session: SessionId) {
        let manner = store.manner(session);
        self.resp3 = manner.resp3;
        self.authenticated = manner.authenticated;
        self.closing |= manner.closing;
        self.subscribed = manner.subscribed.unwrap_or(self.subscribed);
    }

    /// Has it something for the store to do?
    pub(crate) fn wants_store(&self) -> bool {
        self.session.is_none() || self.may_run()
    }

    /// May commands of it run now?
    pub(crate) fn may_run(&self) -> bool {
        self.pending && !self.must_wait() && !self.closing
    }

    /// Is there more to read or to run? Of one that waits, only its end is looked for, once it is
    /// known to be there.
    pub(crate) fn has_more(&self) -> bool {
        let more = match self.must_wait() {
            false => self.pending || self.readable,
            // No event comes for what has arrived before.
            true => self.readable && self.reads_ahead(),
        };
        more && !self.closing
    }

    /// Is nothing of it run now, because it waits for a key or for the answer to a wrong password?
    pub(crate) fn must_wait(&self) -> bool {
        self.blocked.is_some() || self.penalty.is_some()
    }

    /// Replies from now on belong to the batch under way.
    pub(crate) fn begin_batch(&mut self) {
        self.batch.get_or_insert(InBatch { mark: self.output.len(), count: 0 });
    }

    /// Has it replies in the batch under way?
    pub(crate) fn in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// The batch is over: its replies in it.
    pub(crate) fn end_batch(&mut self) -> Option<InBatch> {
        self.batch.take()
    }

    /// Gives the input away for the time of a command.
    pub(crate) fn lend(&mut self) -> DetachedInput {
        self.lent = true;
        DetachedInput {
            input: std::mem::take(&mut self.input),
            decoder: std::mem::take(&mut self.decoder),
            done: self.done,
        }
    }

    /// The command has run.
    pub(crate) fn take_back(&mut self, lent: DetachedInput) {
        self.lent = false;
        self.input = lent.input;
        self.decoder = lent.decoder;
        self.done += self.decoder.forget();
    }

    /// Is a command of it running that may take long?
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// A command was carried out.
    pub(crate) fn answer(&mut self, outcome: Option<CommandOutcome>) {
        match outcome {
            None => {}
            Some(CommandOutcome::Reply(reply)) => {
                if let Some(batch) = &mut self.batch {
                    batch.count += 1;
                }
                self.reply(&reply);
            }
            Some(CommandOutcome::Blocked { deadline_ms }) => {
                self.blocked = Some(ClientWait { deadline_ms });
            }
        }
    }

    /// Reads once into `scratch` and keeps what came.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Io {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Io::Gone,
                Ok(count) => {
                    self.traffic.count_read(count);
                    make_room(&mut self.input, count);
                    self.input.extend_from_slice(scratch.get(..count).unwrap_or_default());
                    self.peak = self.peak.max(self.input.len());
                    self.pending = true;
                    self.last_heard = Instant::now();
                    // A short read has emptied the socket, but for its end.
                    self.readable =
                        count == scratch.len() || self.ended || self.stream.reads_in_parts();
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

    /// Reads what there is while the client waits for a key, up to a bound: so it is seen when it
    /// goes away. Once its end has arrived, everything before it is read.
    pub(crate) fn read_ahead(&mut self, scratch: &mut [u8]) -> Io {
        while self.readable && self.reads_ahead() {
            if self.read(scratch) == Io::Gone {
                return Io::Gone;
            }
        }
        Io::Done
    }

    /// Is more read of a client that waits?
    fn reads_ahead(&self) -> bool {
        self.ended || self.input.len() < READ_AHEAD_BYTES
    }

    /// Makes room for the rest of an argument of which `missing` bytes have not come yet.
    pub(crate) fn expect(&mut self, missing: usize) {
        make_room_for_argument(&mut self.input, missing);
    }

    /// Drops what was run from the front of the input.
    pub(crate) fn forget(&mut self) {
        let count = std::mem::take(&mut self.done);
        if count >= self.input.len() {
            self.input.clear();
        } else {
            self.input.drain(..count);
        }
    }

    /// Gives back room for input that was not used lately. Is there some that may go later?
    pub(crate) fn trim(&mut self) -> bool {
        let (size, length) = (self.input.capacity(), self.input.len());
        if size - length > SMALL_BUFFER_BYTES {
            if self.last_heard.elapsed() > SILENCE {
                self.input.shrink_to(length);
            } else if size > LARGE_BUFFER_BYTES && size / 2 > self.peak {
                self.input.shrink_to(self.peak);
            }
        }
        self.peak = length;
        self.input.capacity() - length > SMALL_BUFFER_BYTES
    }

    /// Returns the bytes it holds.
    pub(crate) fn buffers(&self) -> Buffers {
        let unread = self.input.len() - self.done.min(self.input.len());
        Buffers { unread, room: self.input.capacity() - unread, unsent: self.backlog() }
    }

    /// Does the store know its memory only roughly? What is told is told again when it has changed
    /// by so much that it matters.
    pub(crate) fn is_untold(&self) -> bool {
        let Buffers { unread, room, unsent } = self.buffers();
        (unread + room + unsent).abs_diff(self.told) > REPORT_STEP_BYTES
    }

    /// Returns its buffer sizes for the store, which knows it from now on.
    pub(crate) fn tell_buffers(&mut self) -> Buffers {
        let buffers = self.buffers();
        self.told = buffers.unread + buffers.room + buffers.unsent;
        self.untold = false;
        buffers
    }

    /// Returns true if its unread output is above its hard limit, or above the soft limit for too
    /// long.
    pub(crate) fn is_over(&mut self, limits: &OutputLimits) -> bool {
        let limit = if self.subscribed { limits.pubsub } else { limits.normal };
        let unread = self.backlog();
        if limit.soft_bytes == 0 || unread <= limit.soft_bytes {
            self.over_soft = None;
        } else {
            self.over_soft.get_or_insert_with(Instant::now);
        }
        let soft = Duration::from_secs(limit.soft_seconds);
        (limit.hard_bytes > 0 && unread > limit.hard_bytes)
            || self.over_soft.is_some_and(|since| since.elapsed() > soft)
    }

    /// Is everything sent that was answered?
    pub(crate) fn is_all_sent(&self) -> bool {
        self.backlog() == 0 && !self.stream.has_unsent()
    }

    /// Is its next command one that shows what connections hold?
    pub(crate) fn asks_about_clients(&self) -> bool {
        let input = self.input.get(self.done..).unwrap_or_default();
        self.decoder.arguments(input).first().is_some_and(|name| is_about_clients(name))
    }

    /// Appends a reply.
    pub(crate) fn reply(&mut self, reply: &Reply) {
        encode(reply, self.resp3, &mut self.output);
    }

    /// Takes back the replies of a batch and says `error` in place of each.
    pub(crate) fn replace(&mut self, batch: InBatch, error: &Reply) {
        self.output.truncate(batch.mark);
        for _ in 0..batch.count {
            self.reply(error);
        }
    }

    /// Holds the replies of one batch until the store releases them.
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// Releases one held batch of this client.
    pub(crate) fn unhold(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// Returns the output that is not held and may be sent. Held replies keep back later ones, for
    /// order.
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
                Ok(count) => {
                    self.traffic.count_write(count);
                    self.sent += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Io::More,
                Err(_) => return Io::Gone,
            }
        }
        match self.stream.flush() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Io::More,
            Err(_) => return Io::Gone,
        }
        if self.sent == self.output.len() {
            self.output.clear();
            if self.output.capacity() > KEEP_BYTES {
                self.output = Vec::new();
            }
            (self.sent, self.released) = (0, 0);
        }
        Io::Done
    }
}

/// Makes room for `count` more bytes. The growth of `Vec` would double its room, but room counts as
/// memory of the client, and half as much again is enough to keep the time linear.
fn make_room(input: &mut Vec<u8>, count: usize) {
    let free = input.capacity() - input.len();
    if free < count || input.capacity() < ROOM_BYTES {
        input.reserve_exact(count.max(ROOM_BYTES).max(input.len() / 2));
    }
}

/// Makes room for an argument of which `missing` bytes have not come, as far as is safe: what is
/// announced may never come. As long as there is some room there is nothing to do; moving the bytes for
/// each read would take quadratic time.
fn make_room_for_argument(input: &mut Vec<u8>, missing: usize) {
    if input.capacity() - input.len() < missing.min(ROOM_BYTES) {
        input.reserve_exact(missing.min(READ_BYTES.max(input.len() / 2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_input_stays_within_one_and_a_half_times_what_came() {
        for count in [1_000, 16 * 1024, 40_000, 60_001, READ_BYTES] {
            let (mut input, mut moves) = (Vec::new(), 0);
            while input.len() < 8 << 20 {
                let before = input.capacity();
                make_room(&mut input, count);
                input.resize(input.len() + count, b'x');
                make_room_for_argument(&mut input, 512 << 20);
                let most = input.len() / 2 * 3 + 2 * READ_BYTES;
                assert!(input.capacity() <= most, "{} for {}", input.capacity(), input.len());
                moves += usize::from(input.capacity() != before);
            }
            assert!(moves < 40, "{count} bytes a time: moved {moves} times");
        }
    }
}
