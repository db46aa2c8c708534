//! The loop: wait for sockets, read, run under one lock, log once, answer.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use slab::Slab;
use store::embedded::{Batch, Commit, Delivery, Embedded, Outcome, Port, Reply, SessionId};

use crate::client::{Blocked, Client, Io};
use crate::codec::{Decoded, Limits};

const ACCEPT: Token = Token(usize::MAX);
const WAKE: Token = Token(usize::MAX - 1);
/// Commands that run under one hold of the lock, so that others get their turn.
const BATCH_MAX: usize = 2_000;
/// Bytes read from a socket at once.
const READ_BYTES: usize = 64 * 1024;
/// Connections taken in one turn.
const ACCEPT_MAX: usize = 1_000;
/// How often connections are looked over for silence.
const LOOK_OVER: Duration = Duration::from_secs(1);

/// Where and how to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address; port 0 for any free one.
    pub address: SocketAddr,
    /// Connections at once; one more is told so and closed. Default 10,000, at least 1.
    pub max_clients: usize,
    /// A connection that says nothing for so long is closed; never if zero, the default. Those
    /// that wait for a key or listen to channels are left alone.
    pub idle: Duration,
    /// Bytes of one argument. Default 512 MiB, as `proto-max-bulk-len`.
    pub max_argument: usize,
    /// Arguments of one command. Default 1,048,576, as in Redis.
    pub max_arguments: usize,
    /// Bytes of replies a client may leave unread before it is cut off. Default 256 MiB.
    pub max_backlog: usize,
}

impl Config {
    /// The defaults at this address.
    pub fn at(address: SocketAddr) -> Config {
        Config {
            address,
            max_clients: 10_000,
            idle: Duration::ZERO,
            max_argument: 512 * 1024 * 1024,
            max_arguments: 1024 * 1024,
            max_backlog: 256 * 1024 * 1024,
        }
    }
}

/// Why listening cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error("cannot listen on {address}")]
    Address {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The system gives no sockets or threads.
    #[error("cannot start the listener")]
    System(#[from] io::Error),
}

/// A running listener. Ends, with all connections, when dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens, and serves clients on a thread of its own.
    pub fn start(embedded: Embedded, config: Config) -> Result<Listener, Error> {
        let wrap = |source| Error::Address { address: config.address, source };
        let mut socket = TcpListener::bind(config.address).map_err(wrap)?;
        let address = socket.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut socket, ACCEPT, Interest::READABLE)?;
        let mailbox = Arc::new(Mailbox {
            letters: Mutex::default(),
            waker: Waker::new(poll.registry(), WAKE)?,
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let port: Arc<dyn Port> = Arc::clone(&mailbox) as Arc<dyn Port>;
        embedded.add_port(Arc::clone(&port));
        let server = Server {
            embedded,
            config,
            poll,
            socket,
            mailbox: Arc::clone(&mailbox),
            port,
            clients: Slab::new(),
            sessions: HashMap::new(),
            deadlines: BTreeSet::new(),
            ready: Vec::new(),
            held: Vec::new(),
            scratch: vec![0; READ_BYTES],
            looked_over: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("resp".into()).spawn(move || server.run())?;
        Ok(Listener { address, mailbox, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.mailbox.stop.store(true, Ordering::SeqCst);
        self.mailbox.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the RESP listener ended in a panic");
        }
    }
}

/// What others leave for the loop.
#[derive(Debug)]
struct Mailbox {
    letters: Mutex<Letters>,
    waker: Waker,
    /// The loop is at work and will look here before it waits again.
    awake: AtomicBool,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Letters {
    deliveries: Vec<Delivery>,
    closing: Vec<SessionId>,
    synced: bool,
}

impl Mailbox {
    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the RESP listener cannot be woken");
        }
    }

    fn post(&self, write: impl FnOnce(&mut Letters)) {
        write(&mut self.letters.lock());
        if !self.awake.load(Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Port for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        self.post(|letters| letters.deliveries.push(delivery));
    }

    fn close(&self, session: SessionId) {
        self.post(|letters| letters.closing.push(session));
    }

    fn synced(&self) {
        self.post(|letters| letters.synced = true);
    }
}

/// Replies that wait until a batch is on disk.
#[derive(Debug)]
struct Held {
    commit: Commit,
    clients: Vec<usize>,
}

struct Server {
    embedded: Embedded,
    config: Config,
    poll: Poll,
    socket: TcpListener,
    mailbox: Arc<Mailbox>,
    port: Arc<dyn Port>,
    clients: Slab<Client>,
    sessions: HashMap<SessionId, usize>,
    /// When blocked clients give up: deadline in milliseconds, number of the client.
    deadlines: BTreeSet<(i64, usize)>,
    /// Clients with something to run or to read.
    ready: Vec<usize>,
    held: Vec<Held>,
    scratch: Vec<u8>,
    looked_over: Instant,
}

impl Server {
    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.mailbox.stop.load(Ordering::SeqCst) {
            let timeout = self.timeout();
            self.mailbox.awake.store(false, Ordering::SeqCst);
            let timeout = if self.has_letters() { Duration::ZERO } else { timeout };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the RESP listener cannot wait for clients and ends");
                break;
            }
            self.mailbox.awake.store(true, Ordering::SeqCst);
            for event in &events {
                match event.token() {
                    ACCEPT => self.accept(),
                    WAKE => {}
                    Token(number) => {
                        if event.is_writable() {
                            self.send(number);
                        }
                        let readable =
                            event.is_readable() || event.is_error() || event.is_read_closed();
                        if readable && let Some(client) = self.clients.get_mut(number) {
                            client.readable = true;
                            self.ready.push(number);
                        }
                    }
                }
            }
            self.give_up();
            self.take_turn();
            self.look_over();
        }
        let numbers: Vec<usize> = self.clients.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.send(number);
            self.close(number);
        }
        self.embedded.remove_port(&self.port);
    }

    fn has_letters(&self) -> bool {
        let letters = self.mailbox.letters.lock();
        letters.synced || !letters.deliveries.is_empty() || !letters.closing.is_empty()
    }

    /// How long nothing can need attention.
    fn timeout(&self) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        let next = self.deadlines.first().map(|(at, _)| at - self.embedded.clock().now().0);
        let next = next.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        next.unwrap_or(LOOK_OVER).min(LOOK_OVER)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_MAX {
            match self.socket.accept() {
                Ok((stream, peer)) => self.greet(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    return;
                }
            }
        }
        // There may be more, and the poll will not say so again.
        if let Err(error) =
            self.poll.registry().reregister(&mut self.socket, ACCEPT, Interest::READABLE)
        {
            tracing::error!(%error, "the RESP listener takes no more clients");
        }
    }

    fn greet(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        if self.clients.len() >= self.config.max_clients {
            // The farewell is a courtesy: whether it arrives is the client's matter.
            let _ = io::Write::write(&mut stream, b"-ERR max number of clients reached\r\n");
            return;
        }
        let place = self.clients.vacant_entry();
        let number = place.key();
        let both = Interest::READABLE | Interest::WRITABLE;
        let registered = stream
            .set_nodelay(true)
            .and_then(|()| self.poll.registry().register(&mut stream, Token(number), both));
        if let Err(error) = registered {
            tracing::warn!(%error, %peer, "a client could not be served");
            return;
        }
        let mut batch = self.embedded.batch();
        let session = batch.connect(&peer.to_string(), Arc::clone(&self.port));
        drop(batch.commit());
        place.insert(Client::new(stream, session));
        self.sessions.insert(session, number);
        self.ready.push(number);
    }

    fn close(&mut self, number: usize) {
        let Some(mut client) = self.clients.try_remove(number) else { return };
        if let Some(Blocked { deadline_ms: Some(at) }) = client.blocked {
            self.deadlines.remove(&(at, number));
        }
        self.sessions.remove(&client.session);
        // A socket that is being dropped leaves the poll by itself.
        let _ = self.poll.registry().deregister(&mut client.stream);
        let mut batch = self.embedded.batch();
        batch.disconnect(client.session);
        drop(batch.commit());
    }

    /// Sends what may be sent, and ends the connection if it is done with.
    fn send(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(number) else { return };
        let io = client.send();
        let over = client.backlog() > self.config.max_backlog;
        if over {
            tracing::warn!(bytes = client.backlog(), "a client that does not read is cut off");
        }
        if io == Io::Gone || over || (client.closing && client.backlog() == 0) {
            self.close(number);
        }
    }

    /// Answers blocked clients whose time is up.
    fn give_up(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = self.embedded.clock().now().0;
        let mut batch = None;
        while let Some(&(at, number)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, number));
            let Some(client) = self.clients.get_mut(number) else { continue };
            let batch = batch.get_or_insert_with(|| self.embedded.batch());
            // Nothing means that the answer is on its way by the mailbox.
            if let Some(reply) = batch.timed_out(client.session) {
                client.blocked = None;
                client.reply(&reply);
                client.release();
                client.pending = true;
                self.ready.push(number);
            }
        }
        drop(batch.map(Batch::commit));
    }

    /// Reads and runs what there is, then delivers what it caused.
    fn take_turn(&mut self) {
        let mut numbers = std::mem::take(&mut self.ready);
        // Each once, in the order in which they became ready: so their commands run.
        numbers.retain(|number| {
            self.clients.get_mut(*number).is_some_and(|c| !std::mem::replace(&mut c.listed, true))
        });
        for number in &numbers {
            if let Some(client) = self.clients.get_mut(*number) {
                client.listed = false;
            }
        }
        for number in &numbers {
            let Some(client) = self.clients.get_mut(*number) else { continue };
            let reads = client.readable && client.blocked.is_none() && !client.closing;
            if reads && client.read(&mut self.scratch) == Io::Gone {
                self.close(*number);
            }
        }
        numbers.retain(|number| {
            self.clients.get(*number).is_some_and(|c| c.pending && c.blocked.is_none())
        });
        self.run_commands(&numbers);
        self.collect();
        for number in numbers {
            self.send(number);
            let Some(client) = self.clients.get(number) else { continue };
            if client.blocked.is_none() && (client.pending || client.readable) && !client.closing {
                self.ready.push(number);
            }
        }
    }

    /// Runs the commands of these clients under one lock, with one write of the log.
    fn run_commands(&mut self, numbers: &[usize]) {
        if numbers.is_empty() {
            return;
        }
        let mut marks: Vec<(usize, usize, usize)> = Vec::with_capacity(numbers.len());
        let mut left = BATCH_MAX;
        let mut batch = self.embedded.batch();
        for number in numbers {
            let Some(client) = self.clients.get_mut(*number) else { continue };
            let mark = client.mark();
            let run = run_client(client, &mut batch, &self.config, left);
            left -= run.min(left);
            marks.push((*number, mark, run));
            if let Some(Blocked { deadline_ms: Some(at) }) = client.blocked {
                self.deadlines.insert((at, *number));
            }
        }
        match batch.commit() {
            Commit::Done => {
                for (number, ..) in marks {
                    if let Some(client) = self.clients.get_mut(number) {
                        client.release();
                    }
                }
            }
            Commit::Failed(error) => {
                let error = Reply::Error(error);
                for (number, mark, run) in marks {
                    if let Some(client) = self.clients.get_mut(number) {
                        client.replace(mark, &error, run);
                        client.release();
                    }
                }
            }
            commit @ Commit::At(_) => {
                let clients: Vec<usize> = marks.into_iter().map(|(number, ..)| number).collect();
                for number in &clients {
                    if let Some(client) = self.clients.get_mut(*number) {
                        client.hold();
                    }
                }
                self.held.push(Held { commit, clients });
            }
        }
    }

    /// Takes what others left, until there is nothing more.
    fn collect(&mut self) {
        let letters = std::mem::take(&mut *self.mailbox.letters.lock());
        for delivery in letters.deliveries {
            let Some(&number) = self.sessions.get(&delivery.session) else { continue };
            let Some(client) = self.clients.get_mut(number) else { continue };
            if !matches!(delivery.reply, Reply::Push(_))
                && let Some(blocked) = client.blocked.take()
            {
                if let Some(at) = blocked.deadline_ms {
                    self.deadlines.remove(&(at, number));
                }
                client.pending = true;
                self.ready.push(number);
            }
            client.reply(&delivery.reply);
            client.release();
            self.send(number);
        }
        for session in letters.closing {
            let Some(&number) = self.sessions.get(&session) else { continue };
            if let Some(client) = self.clients.get_mut(number) {
                client.closing = true;
            }
            self.send(number);
        }
        if letters.synced {
            self.release_held();
        }
    }

    fn release_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        for batch in held {
            match batch.commit.poll(&self.embedded) {
                None => self.held.push(batch),
                Some(Ok(())) => {
                    for number in batch.clients {
                        if let Some(client) = self.clients.get_mut(number) {
                            client.unhold();
                            client.release();
                        }
                        self.send(number);
                    }
                }
                // What these replies say may not be true: the clients must not read them.
                Some(Err(_)) => batch.clients.into_iter().for_each(|number| self.close(number)),
            }
        }
    }

    /// Closes connections that have been silent for too long.
    fn look_over(&mut self) {
        if self.config.idle.is_zero() || self.looked_over.elapsed() < LOOK_OVER {
            return;
        }
        self.looked_over = Instant::now();
        let silent: Vec<(usize, SessionId)> = self
            .clients
            .iter()
            .filter(|(_, c)| c.blocked.is_none() && c.last_heard.elapsed() > self.config.idle)
            .map(|(number, client)| (number, client.session))
            .collect();
        for (number, session) in silent {
            let listens = self.embedded.batch().is_subscribed(session);
            if !listens {
                self.close(number);
            }
        }
    }
}

/// Runs what a client sent, no more than `most` commands. How many it ran.
fn run_client(client: &mut Client, batch: &mut Batch<'_>, config: &Config, most: usize) -> usize {
    let mut run = 0;
    let mut done = 0;
    while run < most && !client.closing {
        let limits = Limits {
            arguments: config.max_arguments,
            argument: config.max_argument,
            authenticated: batch.is_authenticated(client.session),
        };
        let input = client.input.get(done..).unwrap_or_default();
        match client.decoder.next(input, limits) {
            Decoded::Incomplete => {
                let wanted = client.decoder.wanted(input.len());
                client.pending = false;
                client.forget(done);
                client.input.reserve(wanted);
                return run;
            }
            Decoded::Malformed(text) => {
                let text = format!("ERR Protocol error: {text}");
                encode_error(client, &text);
                client.closing = true;
                run += 1;
            }
            Decoded::Command => {
                let argv = client.decoder.arguments(input);
                let Some(name) = argv.first().copied() else {
                    drop(argv);
                    done += client.decoder.forget();
                    continue;
                };
                // A web page that makes a browser talk to this port begins like this.
                if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
                    tracing::warn!("a client spoke HTTP to the RESP port and was cut off");
                    client.closing = true;
                    break;
                }
                let speaks = matches!(name, [b'h' | b'H' | b'r' | b'R', ..]);
                let outcome = batch.execute(client.session, &argv);
                drop(argv);
                done += client.decoder.forget();
                run += 1;
                if speaks {
                    client.resp3 = batch.protocol(client.session) == 3;
                }
                // What comes after QUIT does not count.
                client.closing = batch.is_closing(client.session);
                match outcome {
                    Outcome::Reply(reply) => client.reply(&reply),
                    Outcome::Blocked { deadline_ms } => {
                        client.blocked = Some(Blocked { deadline_ms });
                        break;
                    }
                }
            }
        }
    }
    client.forget(done);
    run
}

fn encode_error(client: &mut Client, text: &str) {
    client.reply(&Reply::Error(store::embedded::EngineError::new(text)));
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}
