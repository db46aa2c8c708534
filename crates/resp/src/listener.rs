//! The loop: wait for sockets, read, run under one lock, log once, answer.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use store::embedded::{
    BusyStore, CommandOutcome, Commit, Delivery, Embedded, EngineError, Listener, LockedBatch,
    OutputLimits, QueuedCommands, Reply, SessionId, Traffic,
};

use crate::client::{ClientConnection, ClientWait, Io};
use crate::codec::{DecodeStep, RequestLimits};
use crate::stream::{ClientSocket, TlsSource};
use crate::throttle::Throttle;

const ACCEPT: Token = Token(usize::MAX);
const WAKE: Token = Token(usize::MAX - 1);
/// Commands that run under one hold of the lock, so that others get their turn.
const BATCH_MAX: usize = 2_000;
/// Bytes read from a socket at once.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// Connections taken in one turn.
const ACCEPT_MAX: usize = 1_000;
/// Interval at which connections give back memory they do not need.
const TRIM_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which connections are checked for the idle timeout.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Address and options of a listener.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address; port 0 for any free one.
    pub address: SocketAddr,
    /// Most connections at once; one more gets an error and is closed. Default 10,000, at least 1.
    pub max_clients: usize,
    /// A connection that says nothing for so long is closed; never if zero, the default. Those
    /// that wait for a key or listen to channels are left alone.
    pub idle: Duration,
    /// Bytes of one argument. Default 512 MiB, as `proto-max-bulk-len`.
    pub max_argument: usize,
    /// Arguments of one command. Default 1,048,576, as in Redis.
    pub max_arguments: usize,
    /// A connection that has not shown a password for so long, where one is asked for, is closed.
    /// So is one that has not finished the handshake of TLS. Default 10 s.
    pub login_timeout: Duration,
    /// Connections at once that have not shown a password where one is asked for; for one more the
    /// oldest is closed. Default 256, at least 1.
    pub max_unauthenticated: usize,
    /// Speaks TLS only, with this certificate. Default none.
    pub tls: Option<TlsSource>,
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
            login_timeout: Duration::from_secs(10),
            max_unauthenticated: 256,
            tls: None,
        }
    }
}

/// The reason why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error("cannot listen on {address}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The system gives no sockets or threads.
    #[error("cannot start the listener")]
    System(#[from] io::Error),
}

/// A running listener. Ends, with all connections, when dropped.
#[derive(Debug)]
pub struct RespListener {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl RespListener {
    /// Listens, and serves clients on a thread of its own.
    pub fn start(embedded: Embedded, config: Config) -> Result<RespListener, Error> {
        let wrap = |source| Error::Address { address: config.address, source };
        let mut socket = TcpListener::bind(config.address).map_err(wrap)?;
        let address = socket.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut socket, ACCEPT, Interest::READABLE)?;
        embedded.show_port(address.port());
        let mailbox = Arc::new(Mailbox {
            address: Mutex::new(address),
            letters: Mutex::default(),
            waker: Waker::new(poll.registry(), WAKE)?,
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            server: Mutex::default(),
        });
        let port: Arc<dyn Listener> = Arc::clone(&mailbox) as Arc<dyn Listener>;
        embedded.add_listener(Arc::clone(&port));
        let server = ListenerLoop {
            config,
            poll,
            socket: Some(socket),
            mailbox: Arc::clone(&mailbox),
            port,
            clients: Slab::new(),
            sessions: HashMap::new(),
            deadlines: BTreeSet::new(),
            ready: Vec::new(),
            turn: Vec::new(),
            at: 0,
            leaving: Vec::new(),
            unattached: Vec::new(),
            held: Vec::new(),
            throttle: Throttle::default(),
            penalties: BTreeSet::new(),
            strangers: BTreeSet::new(),
            untold: Vec::new(),
            traffic: embedded.traffic(),
            limits: embedded.output_limits(),
            query_buffer_max: embedded.query_buffer_max(),
            scratch: vec![0; READ_BYTES],
            looked_over: Instant::now(),
            limited: Instant::now(),
            trimmed: Instant::now(),
            roomy: false,
        };
        let server = Arc::new(Mutex::new(server));
        *mailbox.server.lock() = Arc::downgrade(&server);
        let work = move || run(&server, &embedded);
        let thread = std::thread::Builder::new().name("resp".into()).spawn(work)?;
        Ok(RespListener { mailbox, thread: Some(thread) })
    }

    /// Returns the address it listens on. `CONFIG SET port` changes it.
    pub fn address(&self) -> SocketAddr {
        *self.mailbox.address.lock()
    }
}

impl Drop for RespListener {
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

/// Messages to the listener's loop.
#[derive(Debug)]
struct Mailbox {
    /// Address it listens on; port 0 if none.
    address: Mutex<SocketAddr>,
    letters: Mutex<Letters>,
    waker: Waker,
    /// The loop is at work and will look here before it waits again.
    awake: AtomicBool,
    stop: AtomicBool,
    server: Mutex<Weak<Mutex<ListenerLoop>>>,
}

#[derive(Debug, Default)]
struct Letters {
    deliveries: Vec<Delivery>,
    closing: Vec<SessionId>,
    synced: bool,
    /// New address to listen on; the inner one is absent to stop listening.
    socket: Option<Option<TcpListener>>,
}

impl Mailbox {
    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the RESP listener cannot be woken");
        }
    }

    fn has_letters(&self) -> bool {
        let letters = self.letters.lock();
        letters.synced
            || letters.socket.is_some()
            || !letters.deliveries.is_empty()
            || !letters.closing.is_empty()
    }

    fn post(&self, write: impl FnOnce(&mut Letters)) {
        write(&mut self.letters.lock());
        if !self.awake.load(Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Listener for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        self.post(|letters| letters.deliveries.push(delivery));
    }

    fn close(&self, session: SessionId) {
        self.post(|letters| letters.closing.push(session));
    }

    fn synced(&self) {
        self.post(|letters| letters.synced = true);
    }

    fn listen(&self, port: u16) -> Result<(), String> {
        let mut address = self.address.lock();
        if address.port() == port {
            return Ok(());
        }
        let wanted = SocketAddr::new(address.ip(), port);
        let socket = match port {
            0 => None,
            _ => Some(TcpListener::bind(wanted).map_err(|error| {
                tracing::warn!(%error, %wanted, "cannot listen on another port");
                "Unable to listen on this port. Check server logs.".to_owned()
            })?),
        };
        *address = wanted;
        self.post(|letters| letters.socket = Some(socket));
        Ok(())
    }

    fn busy(&self, meanwhile: &mut BusyStore<'_, '_>) {
        let server = self.server.lock().upgrade();
        // Its current holder releases it before it waits for the script.
        if let Some(mut server) = server.as_ref().and_then(|server| server.try_lock()) {
            server.serve_meanwhile(meanwhile);
        }
    }
}

/// Replies that wait until a batch is on disk.
#[derive(Debug)]
struct PendingReplies {
    commit: Commit,
    /// Number and session: a number is given to another client when one is gone.
    clients: Vec<(usize, SessionId)>,
}

/// The sockets and who is behind them. The loop has it locked but for the times when it waits for
/// the store's lock or for a script: then a script that takes too long can serve clients from
/// where it is.
struct ListenerLoop {
    config: Config,
    poll: Poll,
    /// None while `CONFIG SET port 0` holds.
    socket: Option<TcpListener>,
    mailbox: Arc<Mailbox>,
    port: Arc<dyn Listener>,
    clients: Slab<ClientConnection>,
    sessions: HashMap<SessionId, usize>,
    /// Deadlines of blocked clients: milliseconds, number of the client.
    deadlines: BTreeSet<(i64, usize)>,
    /// Clients with something to run or to read.
    ready: Vec<usize>,
    /// Clients whose commands run in this turn, in order, and which of them is next.
    turn: Vec<usize>,
    at: usize,
    /// Ended sessions that the store does not know of yet.
    leaving: Vec<SessionId>,
    /// Sessions opened during a slow script, whose deliveries are not attached yet.
    unattached: Vec<SessionId>,
    held: Vec<PendingReplies>,
    /// Wrong passwords.
    throttle: Throttle,
    /// Times at which clients with a wrong password are answered.
    penalties: BTreeSet<(Instant, usize)>,
    /// Clients that have not shown a password where one is asked for, by when they came.
    strangers: BTreeSet<(Instant, usize)>,
    /// Clients whose memory is to be reported to the store.
    untold: Vec<usize>,
    traffic: Arc<Traffic>,
    limits: OutputLimits,
    /// Most bytes that may have come of a client and not be run yet.
    query_buffer_max: usize,
    scratch: Vec<u8>,
    looked_over: Instant,
    /// Time of the last check for clients that do not read.
    limited: Instant,
    trimmed: Instant,
    /// Some connection may hold more memory than it needs.
    roomy: bool,
}

/// Runs the listener's thread until it is told to stop.
fn run(server: &Mutex<ListenerLoop>, embedded: &Embedded) {
    let mut events = Events::with_capacity(1024);
    let mut server = server.lock();
    let mailbox = Arc::clone(&server.mailbox);
    while !mailbox.stop.load(Ordering::SeqCst) {
        let timeout = server.timeout(embedded);
        mailbox.awake.store(false, Ordering::SeqCst);
        let timeout = if mailbox.has_letters() { Duration::ZERO } else { timeout };
        if let Err(error) = server.poll.poll(&mut events, Some(timeout))
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "the RESP listener cannot wait for clients and ends");
            break;
        }
        mailbox.awake.store(true, Ordering::SeqCst);
        server.note(&events);
        server.end_penalties();
        server.begin_turn();
        let deferred = run_commands(&mut server, embedded);
        server.limits = embedded.output_limits();
        server.query_buffer_max = embedded.query_buffer_max();
        server.collect(embedded);
        server.end_turn();
        // Calls of the process that found the lock taken. One of them may be a script that takes
        // long: replies go out before, and clients can be served from within it.
        if let Some(deferred) = deferred {
            MutexGuard::unlocked(&mut server, || drop(deferred));
        }
        server.trim();
        server.look_over_strangers();
        server.look_over_unread();
    }
    let numbers: Vec<usize> = server.clients.iter().map(|(number, _)| number).collect();
    for number in numbers {
        server.send(number);
        server.close(number);
    }
    let mut batch = MutexGuard::unlocked(&mut server, || embedded.batch());
    server.tell(&mut batch);
    embedded.remove_listener(&server.port);
    drop(server);
    drop(batch.commit());
}

/// Runs the commands of this turn under one lock, with one write of the log.
fn run_commands<'e>(
    server: &mut MutexGuard<'_, ListenerLoop>,
    embedded: &'e Embedded,
) -> Option<QueuedCommands<'e>> {
    if !server.needs_store(embedded) {
        return None;
    }
    let mut batch = match embedded.try_batch() {
        Some(batch) => batch,
        None => MutexGuard::unlocked(server, || embedded.batch()),
    };
    server.tell(&mut batch);
    server.give_up(&mut batch);
    server.look_over(&batch);
    let mut left = BATCH_MAX;
    while let Some(&number) = server.turn.get(server.at) {
        server.at += 1;
        run_client(server, number, &mut batch, &mut left);
    }
    let (commit, deferred) = batch.commit_deferred();
    server.settle(commit);
    Some(deferred)
}

/// Runs what a client sent, as long as there are commands `left` for this turn.
fn run_client(
    server: &mut MutexGuard<'_, ListenerLoop>,
    number: usize,
    batch: &mut LockedBatch<'_>,
    left: &mut usize,
) {
    loop {
        let ListenerLoop { clients, config, deadlines, throttle, penalties, .. } = &mut **server;
        let Some(client) = clients.get_mut(number).filter(|client| client.may_run()) else {
            return;
        };
        client.begin_batch();
        let ran = run_some(client, batch, config, throttle, left);
        if let Some(until) = client.penalty {
            penalties.insert((until, number));
        }
        if let Some(ClientWait { deadline_ms: Some(at) }) = client.blocked {
            deadlines.insert((at, number));
        }
        if ran == RunProgress::All {
            return;
        }
        if client.asks_about_clients() {
            server.tell_buffers(batch);
        }
        // A script may take long. Until it is back others can be served from within it.
        let Some(client) = server.clients.get_mut(number) else { return };
        let (lent, session) = (client.lend(), client.session);
        let wrong_before = batch.wrong_passwords();
        let outcome = MutexGuard::unlocked(server, || {
            let argv = lent.arguments();
            session.map(|session| batch.execute_script(session, &argv))
        });
        *left = left.saturating_sub(1);
        let wrong = batch.wrong_passwords() - wrong_before;
        let ListenerLoop { clients, deadlines, throttle, penalties, .. } = &mut **server;
        let Some(client) = clients.get_mut(number) else { return };
        client.take_back(lent);
        // Each password in a transaction costs the same as one alone.
        let now = Instant::now();
        let until = (0..wrong).map(|_| throttle.fail(client.peer.ip(), now)).last();
        if let Some(until) = until.filter(|until| *until > now) {
            client.penalty = Some(until);
            client.hold();
            penalties.insert((until, number));
        }
        if let Some(session) = session {
            client.learn(&*batch, session);
        }
        client.answer(outcome);
        if let Some(ClientWait { deadline_ms: Some(at) }) = client.blocked {
            deadlines.insert((at, number));
        }
    }
}

/// Progress of a client's commands.
#[derive(Debug, PartialEq, Eq)]
enum RunProgress {
    /// There are no more, or no more may run in this turn.
    All,
    /// The next may take long.
    UpToLong,
}

/// Runs commands of a client up to one that may take long.
fn run_some(
    client: &mut ClientConnection,
    store: &mut impl CommandRunner,
    config: &Config,
    throttle: &mut Throttle,
    left: &mut usize,
) -> RunProgress {
    let Some(session) = client.session else { return RunProgress::All };
    while *left > 0 && !client.closing && !client.must_wait() {
        let limits = RequestLimits {
            arguments: config.max_arguments,
            argument: config.max_argument,
            authenticated: client.authenticated,
        };
        let input = client.input.get(client.done..).unwrap_or_default();
        match client.decoder.next(input, limits) {
            DecodeStep::Incomplete => {
                let wanted = client.decoder.wanted(input.len());
                client.pending = false;
                client.forget();
                client.expect(wanted);
                return RunProgress::All;
            }
            DecodeStep::Malformed(text) => {
                let error = EngineError::new(format!("ERR Protocol error: {text}"));
                client.answer(Some(CommandOutcome::Reply(Reply::Error(error))));
                client.closing = true;
            }
            DecodeStep::Command => {
                let argv = client.decoder.arguments(input);
                let Some(name) = argv.first().copied() else {
                    drop(argv);
                    client.done += client.decoder.forget();
                    continue;
                };
                // A web page that makes a browser talk to this port begins like this.
                if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
                    tracing::warn!("a client spoke HTTP to the RESP port and was cut off");
                    client.closing = true;
                    break;
                }
                if store.steps_aside_for(name) {
                    return RunProgress::UpToLong;
                }
                let (changes, logs_in) = (changes_session(name), shows_password(&argv));
                let refused = Some(())
                    .filter(|()| logs_in)
                    .and_then(|()| throttle.wait(client.peer.ip(), Instant::now()).map(too_many));
                let outcome = refused.unwrap_or_else(|| store.run(session, &argv));
                drop(argv);
                client.done += client.decoder.forget();
                *left -= 1;
                if changes {
                    client.learn(store, session);
                }
                if logs_in && is_wrong_password(&outcome) {
                    let now = Instant::now();
                    let until = throttle.fail(client.peer.ip(), now);
                    if until > now {
                        client.penalty = Some(until);
                        client.hold();
                    }
                }
                client.answer(Some(outcome));
            }
        }
    }
    client.forget();
    RunProgress::All
}

/// Can a command of this name change how its session speaks, whether it is known, or end it? By
/// its first letter: AUTH, CLIENT, EXEC, EVAL, HELLO, QUIT, RESET; or what it listens to: the
/// commands that end in SUBSCRIBE.
fn changes_session(name: &[u8]) -> bool {
    match name {
        [b'a' | b'A' | b'c' | b'C' | b'e' | b'E' | b'h' | b'H' | b'q' | b'Q' | b'r' | b'R', ..] => {
            true
        }
        [b's' | b'S' | b'p' | b'P' | b'u' | b'U', ..] => {
            name.last_chunk::<9>().is_some_and(|end| end.eq_ignore_ascii_case(b"subscribe"))
        }
        _ => false,
    }
}

/// Does this command show a password: AUTH, or HELLO with more than a version?
fn shows_password(argv: &[&[u8]]) -> bool {
    match argv {
        [[b'a' | b'A', ..], ..] => argv.first().is_some_and(|n| n.eq_ignore_ascii_case(b"auth")),
        [[b'h' | b'H', ..], _, _, ..] => {
            argv.first().is_some_and(|n| n.eq_ignore_ascii_case(b"hello"))
        }
        _ => false,
    }
}

fn is_wrong_password(outcome: &CommandOutcome) -> bool {
    matches!(outcome, CommandOutcome::Reply(Reply::Error(error)) if error.text().starts_with(b"WRONGPASS"))
}

/// The answer to a password that is not looked at.
fn too_many(wait: Duration) -> CommandOutcome {
    let seconds = wait.as_secs() + 1;
    CommandOutcome::Reply(Reply::Error(EngineError::new(format!(
        "ERR too many wrong passwords from this address, try again in {seconds} s"
    ))))
}

/// Does a command of this name show what connections hold?
pub(crate) fn is_about_clients(name: &[u8]) -> bool {
    matches!(name, [b'c' | b'C', ..]) && name.eq_ignore_ascii_case(b"client")
}

/// Can a command of this name run a script?
fn runs_scripts(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 7] =
        [b"eval", b"evalsha", b"exec", b"fcall", b"eval_ro", b"evalsha_ro", b"fcall_ro"];
    matches!(name, [b'e' | b'E' | b'f' | b'F', ..])
        && NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Runs commands: under the lock, or in the middle of a script.
pub(crate) trait CommandRunner {
    /// Runs one.
    fn run(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome;
    /// Is this command run in another way, because it may take long or is about connections?
    fn steps_aside_for(&self, name: &[u8]) -> bool;
    /// Returns the state of a session.
    fn manner(&self, session: SessionId) -> SessionInfo;
}

/// The state of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionInfo {
    pub(crate) resp3: bool,
    pub(crate) authenticated: bool,
    /// Commands after QUIT are ignored.
    pub(crate) closing: bool,
    /// Does it listen to channels? None where that cannot have changed.
    pub(crate) subscribed: Option<bool>,
}

impl CommandRunner for LockedBatch<'_> {
    fn run(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        self.execute(session, argv)
    }

    fn steps_aside_for(&self, name: &[u8]) -> bool {
        runs_scripts(name) || is_about_clients(name)
    }

    fn manner(&self, session: SessionId) -> SessionInfo {
        SessionInfo {
            resp3: self.protocol(session) == 3,
            authenticated: self.is_authenticated(session),
            closing: self.is_closing(session),
            subscribed: Some(self.is_subscribed(session)),
        }
    }
}

impl CommandRunner for BusyStore<'_, '_> {
    fn run(&mut self, session: SessionId, argv: &[&[u8]]) -> CommandOutcome {
        self.execute(session, argv)
    }

    fn steps_aside_for(&self, _: &[u8]) -> bool {
        false
    }

    fn manner(&self, session: SessionId) -> SessionInfo {
        SessionInfo {
            resp3: self.protocol(session) == 3,
            authenticated: self.is_authenticated(session),
            closing: self.is_closing(session),
            subscribed: None,
        }
    }
}

impl ListenerLoop {
    /// Takes note of what happened to sockets.
    fn note(&mut self, events: &Events) {
        for event in events {
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
                        client.ended |= event.is_read_closed();
                        self.ready.push(number);
                    }
                }
            }
        }
    }

    /// Returns the time in which nothing needs attention.
    fn timeout(&self, embedded: &Embedded) -> Duration {
        if !self.ready.is_empty() || !self.leaving.is_empty() || !self.untold.is_empty() {
            return Duration::ZERO;
        }
        let next = self.deadlines.first().map(|(at, _)| at - embedded.clock().now().0);
        let next = next.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        let penalty = self.penalties.first().map(|(until, _)| *until);
        let penalty = penalty.map(|until| until.saturating_duration_since(Instant::now()));
        let next = next.into_iter().chain(penalty).min();
        next.unwrap_or(IDLE_CHECK_INTERVAL).min(if self.roomy {
            TRIM_INTERVAL
        } else {
            IDLE_CHECK_INTERVAL
        })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_MAX {
            let Some(socket) = &self.socket else { return };
            match socket.accept() {
                Ok((stream, peer)) => self.greet(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    return;
                }
            }
        }
        // There may be more, and the poll will not say so again.
        if let Some(socket) = &mut self.socket
            && let Err(error) = self.poll.registry().reregister(socket, ACCEPT, Interest::READABLE)
        {
            tracing::error!(%error, "the RESP listener takes no more clients");
        }
    }

    fn greet(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        if self.clients.len() >= self.config.max_clients {
            self.traffic.count_rejected();
            // The farewell is a courtesy: whether it arrives is the client's matter. Under TLS
            // there is nothing that it could be said in.
            if self.config.tls.is_some() {
                return;
            }
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
        let stream = match ClientSocket::new(stream, self.config.tls.as_ref()) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::error!(%error, %peer, "a client could not be served over TLS");
                return;
            }
        };
        place.insert(ClientConnection::new(stream, peer, Arc::clone(&self.traffic)));
        self.ready.push(number);
    }

    fn close(&mut self, number: usize) {
        let Some(mut client) = self.clients.try_remove(number) else { return };
        self.strangers.remove(&(client.since, number));
        if let Some(until) = client.penalty {
            self.penalties.remove(&(until, number));
        }
        client.stream.say_goodbye();
        if let Some(ClientWait { deadline_ms: Some(at) }) = client.blocked {
            self.deadlines.remove(&(at, number));
        }
        if let Some(session) = client.session {
            self.sessions.remove(&session);
            self.leaving.push(session);
        }
        // A socket that is being dropped is removed from the poll automatically.
        let _ = self.poll.registry().deregister(client.stream.socket());
    }

    /// Sends what may be sent, and ends the connection if it is done with.
    fn send(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(number).filter(|c| !c.is_lent()) else { return };
        let io = client.send();
        let over = client.is_over(&self.limits);
        if over {
            tracing::warn!(
                peer = %client.peer,
                bytes = client.backlog(),
                class = if client.subscribed { "pubsub" } else { "normal" },
                "a client that does not read was closed by client-output-buffer-limit"
            );
        }
        if !client.untold && client.session.is_some() && client.is_untold() {
            client.untold = true;
            self.untold.push(number);
        }
        if io == Io::Gone || over || (client.closing && client.is_all_sent()) {
            self.close(number);
        }
    }

    /// Answers those whose wrong password was long enough ago.
    fn end_penalties(&mut self) {
        let now = Instant::now();
        while let Some(&(until, number)) = self.penalties.first().filter(|(until, _)| *until <= now)
        {
            self.penalties.remove(&(until, number));
            let Some(client) = self.clients.get_mut(number) else { continue };
            client.penalty = None;
            client.unhold();
            client.release();
            client.pending = true;
            self.ready.push(number);
            self.send(number);
        }
    }

    /// Looks once a second whether a soft limit has been passed for too long.
    fn look_over_unread(&mut self) {
        if self.limited.elapsed() < IDLE_CHECK_INTERVAL {
            return;
        }
        self.limited = Instant::now();
        let unread = self.clients.iter().filter(|(_, client)| client.backlog() > 0);
        let numbers: Vec<usize> = unread.map(|(number, _)| number).collect();
        for number in numbers {
            self.send(number);
        }
    }

    /// Closes connections that have not shown a password in time, or are too many to wait for.
    fn look_over_strangers(&mut self) {
        while let Some(&(since, number)) = self.strangers.first() {
            let late = since.elapsed() > self.config.login_timeout;
            let many = self.strangers.len() > self.config.max_unauthenticated;
            if !late && !many {
                return;
            }
            self.strangers.remove(&(since, number));
            let known =
                |client: &ClientConnection| client.authenticated && !client.stream.is_handshaking();
            if self.clients.get(number).is_some_and(|client| !known(client)) {
                tracing::debug!(late, "a client that showed no password was closed");
                self.close(number);
            }
        }
    }

    /// Reads what there is and lists those who have something to run.
    fn begin_turn(&mut self) {
        self.turn.clear();
        self.at = 0;
        std::mem::swap(&mut self.turn, &mut self.ready);
        // Each once, in the order in which they became ready: so their commands run.
        let clients = &mut self.clients;
        self.turn.retain(|number| {
            clients.get_mut(*number).is_some_and(|c| !std::mem::replace(&mut c.listed, true))
        });
        for at in 0..self.turn.len() {
            let Some(&number) = self.turn.get(at) else { break };
            let Some(client) = self.clients.get_mut(number) else { continue };
            client.listed = false;
            if !client.readable || client.closing {
                continue;
            }
            self.roomy = true;
            let io = match client.must_wait() {
                false => client.read(&mut self.scratch),
                // Nothing of it runs now, but it may go away.
                true => client.read_ahead(&mut self.scratch),
            };
            let over = client.buffers().unread > self.query_buffer_max;
            if over {
                tracing::warn!(peer = %client.peer, "a client was closed by client-query-buffer-limit");
            }
            if over || io == Io::Gone {
                self.close(number);
            }
        }
        let clients = &self.clients;
        self.turn.retain(|number| clients.get(*number).is_some_and(ClientConnection::wants_store));
    }

    /// Is there anything to do for which the store's lock is needed?
    fn needs_store(&self, embedded: &Embedded) -> bool {
        let due = |(at, _): &(i64, usize)| *at <= embedded.clock().now().0;
        !self.turn.is_empty()
            || !self.leaving.is_empty()
            || !self.unattached.is_empty()
            || !self.untold.is_empty()
            || self.deadlines.first().is_some_and(due)
            || self.is_time_to_look_over()
    }

    /// Tells the store who has come and who has gone.
    fn tell(&mut self, batch: &mut LockedBatch<'_>) {
        for session in self.unattached.drain(..) {
            batch.attach(session, Arc::clone(&self.port));
        }
        for session in self.leaving.drain(..) {
            batch.disconnect(session);
        }
        for number in &self.turn {
            let Some(client) = self.clients.get_mut(*number) else { continue };
            if client.session.is_none() {
                let session = batch.connect(&client.peer.to_string(), Arc::clone(&self.port));
                client.introduce(&*batch, session);
                self.sessions.insert(session, *number);
                if !client.authenticated || client.stream.is_handshaking() {
                    self.strangers.insert((client.since, *number));
                }
            }
        }
        for number in self.untold.drain(..) {
            let Some(client) = self.clients.get_mut(number) else { continue };
            if let Some(session) = client.session {
                batch.show_buffers(session, client.tell_buffers());
            }
        }
    }

    /// Answers blocked clients whose time is up.
    fn give_up(&mut self, batch: &mut LockedBatch<'_>) {
        let now = batch.now_ms();
        while let Some(&(at, number)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, number));
            let Some(client) = self.clients.get_mut(number) else { continue };
            // Nothing means that the answer is on its way by the mailbox.
            if let Some(reply) = client.session.and_then(|session| batch.timed_out(session)) {
                client.blocked = None;
                client.reply(&reply);
                client.release();
                client.pending = true;
                self.ready.push(number);
            }
        }
    }

    /// Hands out the replies of this turn, or holds them back, or says why there are none.
    fn settle(&mut self, commit: Commit) {
        let mut held = Vec::new();
        for number in self.turn.iter().take(self.at) {
            let Some(client) = self.clients.get_mut(*number) else { continue };
            let Some(batch) = client.end_batch() else { continue };
            match (&commit, client.session) {
                (Commit::Failed(error), _) => {
                    client.replace(batch, &Reply::Error(error.clone()));
                    client.release();
                }
                (Commit::At(_), Some(session)) => {
                    client.hold();
                    held.push((*number, session));
                }
                (Commit::Done | Commit::At(_), _) => client.release(),
            }
        }
        if !held.is_empty() {
            self.held.push(PendingReplies { commit, clients: held });
        }
    }

    /// Takes the messages from the mailbox.
    fn collect(&mut self, embedded: &Embedded) {
        self.collect_deliveries();
        let (synced, socket) = {
            let mut letters = self.mailbox.letters.lock();
            (std::mem::take(&mut letters.synced), letters.socket.take())
        };
        if synced {
            self.release_held(|commit| commit.poll(embedded));
        }
        if let Some(socket) = socket {
            self.listen_at(socket);
        }
    }

    /// Takes the messages for clients from the mailbox, but for a client whose script runs.
    fn collect_deliveries(&mut self) {
        let (deliveries, closing) = {
            let mut letters = self.mailbox.letters.lock();
            (std::mem::take(&mut letters.deliveries), std::mem::take(&mut letters.closing))
        };
        let mut later = Letters::default();
        for delivery in deliveries {
            let Some(&number) = self.sessions.get(&delivery.session) else { continue };
            let Some(client) = self.clients.get_mut(number) else { continue };
            if client.is_lent() {
                later.deliveries.push(delivery);
                continue;
            }
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
        for session in closing {
            let Some(&number) = self.sessions.get(&session) else { continue };
            let Some(client) = self.clients.get_mut(number) else { continue };
            client.closing = true;
            if client.is_lent() {
                later.closing.push(session);
                continue;
            }
            self.send(number);
        }
        if !later.deliveries.is_empty() || !later.closing.is_empty() {
            let mut letters = self.mailbox.letters.lock();
            later.deliveries.append(&mut letters.deliveries);
            later.closing.append(&mut letters.closing);
            (letters.deliveries, letters.closing) = (later.deliveries, later.closing);
        }
    }

    /// Takes clients from this socket from now on; those who are there stay.
    fn listen_at(&mut self, socket: Option<TcpListener>) {
        let registry = self.poll.registry();
        if let Some(mut old) = std::mem::replace(&mut self.socket, socket) {
            // A socket that is being dropped is removed from the poll automatically.
            let _ = registry.deregister(&mut old);
        }
        if let Some(socket) = &mut self.socket
            && let Err(error) = registry.register(socket, ACCEPT, Interest::READABLE)
        {
            tracing::error!(%error, "the RESP listener takes no more clients");
        }
    }

    /// Gives back memory that connections do not need any more.
    fn trim(&mut self) {
        if !self.roomy || self.trimmed.elapsed() < TRIM_INTERVAL {
            return;
        }
        self.trimmed = Instant::now();
        self.roomy = false;
        for (_, client) in &mut self.clients {
            self.roomy |= client.trim();
        }
    }

    /// Tells the store what connections hold.
    fn tell_buffers(&mut self, batch: &mut LockedBatch<'_>) {
        for (_, client) in &mut self.clients {
            if let Some(session) = client.session {
                batch.show_buffers(session, client.tell_buffers());
            }
        }
    }

    /// Sends replies that waited for the disk. `poll` says whether they may be sent, as
    /// [`Commit::poll`] does.
    fn release_held(&mut self, poll: impl Fn(&Commit) -> Option<Result<(), EngineError>>) {
        let held = std::mem::take(&mut self.held);
        for batch in held {
            let outcome = poll(&batch.commit);
            if outcome.is_none() {
                self.held.push(batch);
                continue;
            }
            let mut lent = Vec::new();
            for (number, session) in batch.clients {
                let Some(client) = self.clients.get_mut(number) else { continue };
                if client.session != Some(session) {
                    continue;
                }
                match outcome {
                    // Its replies after these are of the batch under way.
                    Some(Ok(())) if client.is_lent() => lent.push((number, session)),
                    Some(Ok(())) => {
                        client.unhold();
                        client.release();
                        self.send(number);
                    }
                    // What these replies say may not be true: the clients must not read them.
                    _ => self.close(number),
                }
            }
            if !lent.is_empty() {
                self.held.push(PendingReplies { commit: batch.commit, clients: lent });
            }
        }
    }

    /// Sends the replies of this turn and lists who has more.
    fn end_turn(&mut self) {
        for at in 0..self.turn.len() {
            let Some(&number) = self.turn.get(at) else { break };
            self.send(number);
            if self.clients.get(number).is_some_and(ClientConnection::has_more) {
                self.ready.push(number);
            }
        }
    }

    fn is_time_to_look_over(&self) -> bool {
        !self.config.idle.is_zero() && self.looked_over.elapsed() >= IDLE_CHECK_INTERVAL
    }

    /// Closes connections that have been silent for too long.
    fn look_over(&mut self, batch: &LockedBatch<'_>) {
        if !self.is_time_to_look_over() {
            return;
        }
        self.looked_over = Instant::now();
        let silent: Vec<usize> = self
            .clients
            .iter()
            .filter(|(_, c)| c.blocked.is_none() && c.last_heard.elapsed() > self.config.idle)
            .filter(|(_, c)| !c.session.is_some_and(|session| batch.is_subscribed(session)))
            .map(|(number, _)| number)
            .collect();
        for number in silent {
            self.close(number);
        }
    }

    /// Serves clients in the middle of a slow script.
    fn serve_meanwhile(&mut self, meanwhile: &mut BusyStore<'_, '_>) {
        let mut events = Events::with_capacity(128);
        if self.poll.poll(&mut events, Some(Duration::ZERO)).is_err() {
            return;
        }
        self.note(&events);
        let settled = meanwhile.settle();
        self.release_earlier(&settled);
        if let Ok(lsn) = settled {
            self.release_held(|commit| match commit {
                Commit::At(at) if *at > lsn => None,
                _ => Some(Ok(())),
            });
        }
        self.collect_deliveries();
        self.end_penalties();
        let mut numbers = std::mem::take(&mut self.ready);
        // Those whose turn has not come yet are served here.
        numbers.extend(self.turn.drain(self.at.min(self.turn.len())..));
        for number in numbers {
            self.serve_one_meanwhile(number, meanwhile);
        }
    }

    /// Sends the replies of this turn's earlier commands in the middle of a slow script.
    fn release_earlier(&mut self, settled: &Result<u64, EngineError>) {
        let ran: Vec<usize> = self.turn.iter().take(self.at).copied().collect();
        for number in ran {
            // The script's own client stays in the batch: its next reply is part of it.
            let Some(client) = self.clients.get_mut(number).filter(|c| !c.is_lent()) else {
                continue;
            };
            let Some(batch) = client.end_batch() else { continue };
            if let Err(error) = settled {
                client.replace(batch, &Reply::Error(error.clone()));
            }
            client.release();
            self.send(number);
        }
    }

    fn serve_one_meanwhile(&mut self, number: usize, meanwhile: &mut BusyStore<'_, '_>) {
        let Some(client) = self.clients.get_mut(number) else { return };
        // The loop looks at these again when it is their time; that one of them has gone, no event
        // will tell it again.
        if client.is_lent() || client.must_wait() || client.closing {
            if client.has_more() {
                self.ready.push(number);
            }
            return;
        }
        if client.readable && client.read(&mut self.scratch) == Io::Gone {
            if client.in_batch() {
                self.ready.push(number);
            } else {
                self.close(number);
            }
            return;
        }
        if client.session.is_none() {
            let session = meanwhile.connect(&client.peer.to_string());
            client.introduce(&*meanwhile, session);
            self.sessions.insert(session, number);
            self.unattached.push(session);
            if !client.authenticated || client.stream.is_handshaking() {
                self.strangers.insert((client.since, number));
            }
        }
        let mut left = BATCH_MAX;
        if client.pending {
            run_some(client, meanwhile, &self.config, &mut self.throttle, &mut left);
        }
        if let Some(until) = client.penalty {
            self.penalties.insert((until, number));
        }
        if let Some(ClientWait { deadline_ms: Some(at) }) = client.blocked {
            self.deadlines.insert((at, number));
        }
        // Replies of commands that ran before the script wait for the end of their batch, and
        // these wait behind them.
        if !client.in_batch() {
            client.release();
        }
        let more = client.has_more();
        self.send(number);
        if more {
            self.ready.push(number);
        }
    }
}

impl std::fmt::Debug for ListenerLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerLoop").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}
