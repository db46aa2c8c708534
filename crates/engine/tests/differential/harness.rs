//! What a case is written with: the same command to the engine and to Redis.
//!
//! ```ignore
//! both(|d| {
//!     d.same("SET k v");
//!     d.sorted("KEYS *");
//!     d.near("PTTL k", 50);
//! });
//! ```
//! Each case runs once in RESP2 and once in RESP3, each on an empty keyspace. Relaxations have
//! names: `sorted` (order is free), `near` (integers may differ a little), `shape` (only types).

use std::collections::{HashMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::{CommandOutcome, Config, Engine, Now, SessionId};
use testkit::RedisServer;

use crate::wire::{Connection, Wire, show, words};

/// Runs a case in both protocols.
pub(crate) fn both(case: impl Fn(&mut Differential)) {
    let server = start_redis();
    for resp in [2, 3] {
        let mut d = Differential::on(&server, resp);
        d.same("FLUSHALL");
        case(&mut d);
    }
}

/// Runs a case in both protocols, each on a server of its own: for what outlives FLUSHALL.
pub(crate) fn apart(case: impl Fn(&mut Differential)) {
    for resp in [2, 3] {
        case(&mut Differential::on(&start_redis(), resp));
    }
}

/// Runs a case with RESP3 only, for what RESP2 has not.
pub(crate) fn resp3(case: impl Fn(&mut Differential)) {
    case(&mut Differential::on(&start_redis(), 3));
}

/// A server with everything on that cases use.
pub(crate) fn start_redis() -> RedisServer {
    RedisServer::start_with(&["--enable-debug-command", "yes"])
}

/// An engine and a Redis side by side, with clients that have a session on each.
pub(crate) struct Differential {
    pub(crate) engine: Engine,
    port: u16,
    resp: u8,
    clients: Vec<Client>,
    /// What the engine delivered besides replies.
    delivered: HashMap<SessionId, VecDeque<Wire>>,
    /// Every command so far, for the report of a failure.
    history: Vec<String>,
}

struct Client {
    session: SessionId,
    connection: Connection,
    /// Its number in Redis.
    id: i64,
}

/// Names a client of a [`Differential`]; 0 is the first.
pub(crate) type ClientNumber = usize;

impl Differential {
    pub(crate) fn on(server: &RedisServer, resp: u8) -> Differential {
        let port = server.url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
        let config = Config { log_effects: true, ..Config::default() };
        let mut d = Differential {
            engine: Engine::new(config),
            port,
            resp,
            clients: Vec::new(),
            delivered: HashMap::new(),
            history: Vec::new(),
        };
        d.client();
        d
    }

    /// The protocol of this run.
    pub(crate) fn resp(&self) -> u8 {
        self.resp
    }

    /// One more client, on both sides.
    pub(crate) fn client(&mut self) -> ClientNumber {
        let session = self.engine.connect("127.0.0.1:1");
        let mut connection = Connection::open(self.port);
        connection.send(&words("CLIENT ID"));
        let Wire::Int(id) = connection.receive() else { panic!("CLIENT ID is an integer") };
        self.clients.push(Client { session, connection, id });
        let number = self.clients.len() - 1;
        if self.resp == 3 {
            let hello = words("HELLO 3");
            self.run_engine(number, &hello);
            self.clients[number].connection.send(&hello);
            self.clients[number].connection.receive();
        }
        number
    }

    /// The same command to both: equal replies.
    pub(crate) fn same(&mut self, line: &str) -> Wire {
        self.same_on(0, line)
    }

    /// The same, with the arguments as bytes.
    pub(crate) fn same_argv(&mut self, argv: &[Vec<u8>]) -> Wire {
        self.compare(0, argv, |wire| wire)
    }

    /// The same, from another client.
    pub(crate) fn same_on(&mut self, client: ClientNumber, line: &str) -> Wire {
        self.compare(client, &words(line), |wire| wire)
    }

    /// The same, where `<id>` stands for the number of a client, which each side gives.
    pub(crate) fn same_about(
        &mut self,
        client: ClientNumber,
        line: &str,
        about: ClientNumber,
    ) -> Wire {
        self.history.push(format!("[{client}] {line} (of {about})"));
        let with = |id: i64| words(&line.replace("<id>", &id.to_string()));
        let (session, id) = (self.clients[about].session.0 as i64, self.clients[about].id);
        let ours = self.run_engine(client, &with(session));
        let theirs = self.run_redis(client, &with(id), ours.len().max(1));
        assert!(ours == theirs, "{}", self.report(client, &ours, &theirs));
        theirs.into_iter().next().unwrap()
    }

    /// Equal but for the order of lists.
    pub(crate) fn sorted(&mut self, line: &str) -> Wire {
        self.compare(0, &words(line), |wire| wire.sorted(false))
    }

    /// Equal but for the order of pairs, which stand in a flat list (HGETALL).
    pub(crate) fn sorted_pairs(&mut self, line: &str) -> Wire {
        self.compare(0, &words(line), |wire| wire.sorted(true))
    }

    /// Equal in what `relax` leaves of the replies.
    pub(crate) fn relaxed(&mut self, line: &str, relax: impl Fn(Wire) -> Wire) -> Wire {
        self.compare(0, &words(line), relax)
    }

    /// Equal types and lengths.
    pub(crate) fn shape(&mut self, line: &str) -> Wire {
        self.compare(0, &words(line), Wire::shape)
    }

    /// Equal but for integers, which may differ by `slack`.
    pub(crate) fn near(&mut self, line: &str, slack: i64) -> Wire {
        let argv = words(line);
        self.history.push(line.to_owned());
        let (ours, theirs) = (self.run_engine(0, &argv), self.run_redis(0, &argv, 1));
        let equal = ours.len() == 1 && theirs.iter().zip(&ours).all(|(a, b)| a.near(b, slack));
        assert!(equal, "{}", self.report(0, &ours, &theirs));
        theirs.into_iter().next().unwrap()
    }

    /// Runs on both, compares nothing: to set something up that answers by chance.
    pub(crate) fn run(&mut self, line: &str) {
        self.run_on(0, line);
    }

    /// The same, from another client.
    pub(crate) fn run_on(&mut self, client: ClientNumber, line: &str) {
        let argv = words(line);
        self.history.push(format!("[{client}] {line}"));
        let ours = self.run_engine(client, &argv);
        self.run_redis(client, &argv, ours.len());
    }

    /// A command that has to wait, on both. [`Differential::served`] gets its answer.
    pub(crate) fn waits(&mut self, client: ClientNumber, line: &str) {
        let argv = words(line);
        self.history.push(format!("[{client}] {line} (waits)"));
        let session = self.clients[client].session;
        let borrowed: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        let outcome = self.engine.execute(now(), session, &borrowed);
        assert!(matches!(outcome, CommandOutcome::Blocked { .. }), "{line} answered {outcome:?}");
        self.gather();
        let before = self.blocked_in_redis();
        self.clients[client].connection.send(&argv);
        let start = std::time::Instant::now();
        while self.blocked_in_redis() <= before {
            assert!(start.elapsed().as_secs() < 60, "{line} does not wait in Redis");
            std::thread::yield_now();
        }
    }

    /// The answer that a client which waited has got by now, on both sides.
    pub(crate) fn served(&mut self, client: ClientNumber) -> Wire {
        self.gather();
        let session = self.clients[client].session;
        let ours = self.delivered.get_mut(&session).and_then(VecDeque::pop_front);
        let theirs = self.clients[client].connection.receive();
        assert_eq!(ours.as_ref(), Some(&theirs), "[{client}] after {:#?}", self.tail());
        theirs
    }

    /// A command that is answered on neither side.
    pub(crate) fn silently_on(&mut self, client: ClientNumber, line: &str) {
        let argv = words(line);
        self.history.push(format!("[{client}] {line} (no reply)"));
        let ours = self.run_engine(client, &argv);
        assert!(ours.is_empty(), "{line} answered {ours:?}");
        self.run_redis(client, &argv, 0);
    }

    /// The next push of a client on both sides, not compared.
    pub(crate) fn pushed_apart(&mut self, client: ClientNumber) -> (Option<Wire>, Wire) {
        self.gather();
        let session = self.clients[client].session;
        let ours = self.delivered.get_mut(&session).and_then(VecDeque::pop_front);
        (ours, self.clients[client].connection.receive())
    }

    /// The next message (or other push) of a client, on both sides.
    pub(crate) fn pushed(&mut self, client: ClientNumber) -> Wire {
        self.served(client)
    }

    fn blocked_in_redis(&mut self) -> usize {
        let mut probe = Connection::open(self.port);
        probe.send(&words("INFO clients"));
        let Wire::Bulk(text) = probe.receive() else { panic!("INFO is a bulk string") };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap();
        line.parse().unwrap()
    }

    fn compare(
        &mut self,
        client: ClientNumber,
        argv: &[Vec<u8>],
        relax: impl Fn(Wire) -> Wire,
    ) -> Wire {
        self.history.push(format!("[{client}] {}", show(argv)));
        let ours: Vec<Wire> = self.run_engine(client, argv);
        let theirs = self.run_redis(client, argv, ours.len().max(1));
        let relaxed = |list: &[Wire]| list.iter().cloned().map(&relax).collect::<Vec<_>>();
        assert!(
            relaxed(&ours) == relaxed(&theirs),
            "{}",
            self.report(client, &relaxed(&ours), &relaxed(&theirs))
        );
        theirs.into_iter().next().unwrap()
    }

    fn report(&self, client: ClientNumber, ours: &[Wire], theirs: &[Wire]) -> String {
        format!(
            "RESP{} client {client}, after {:#?}\nengine: {ours:#?}\nredis:  {theirs:#?}",
            self.resp,
            self.tail()
        )
    }

    fn tail(&self) -> &[String] {
        &self.history[self.history.len().saturating_sub(25)..]
    }

    fn run_engine(&mut self, client: ClientNumber, argv: &[Vec<u8>]) -> Vec<Wire> {
        let session = self.clients[client].session;
        let borrowed: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        let outcome = self.engine.execute(now(), session, &borrowed);
        self.gather();
        match outcome {
            CommandOutcome::Reply(reply) => Wire::of(&reply, self.engine.protocol(session)),
            CommandOutcome::Blocked { .. } => panic!("{} waits in the engine", show(argv)),
        }
    }

    fn run_redis(&mut self, client: ClientNumber, argv: &[Vec<u8>], replies: usize) -> Vec<Wire> {
        let connection = &mut self.clients[client].connection;
        connection.send(argv);
        (0..replies).map(|_| connection.receive()).collect()
    }

    fn gather(&mut self) {
        let output = self.engine.take_output();
        for (session, reply) in output.deliveries {
            let resp = self.engine.protocol(session);
            self.delivered.entry(session).or_default().extend(Wire::of(&reply, resp));
        }
        for session in output.closing {
            self.engine.disconnect(session);
        }
    }

    /// Sends many commands to Redis at once, and gives its replies.
    pub(crate) fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Wire> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|argv| crate::wire::encode(argv, &mut bytes));
        let connection = &mut self.clients[0].connection;
        connection.send_raw(&bytes);
        commands.iter().map(|_| connection.receive()).collect()
    }

    /// One command to the engine alone.
    pub(crate) fn ours(&mut self, argv: &[Vec<u8>]) -> Wire {
        self.run_engine(0, argv).into_iter().next().unwrap_or(Wire::Null)
    }
}

/// The real time: both sides must agree on it.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Now { unix_us: since.as_micros() as i64 }
}
