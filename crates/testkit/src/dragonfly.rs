//! A real server under Dragonfly's rules for scripts.
//!
//! Dragonfly runs scripts in Lua 5.4 and refuses keys that a script did not declare, unless the
//! script asks for them in its first line (`--!df flags=allow-undeclared-keys`). There is no
//! package of it to install, so this proxy stands in front of a `redis-server`, passes every
//! command on as it is, and runs scripts itself: in `lua5.4`, each `redis.call` checked against the
//! declared keys and sent to the server. While a script runs, no other command does.
//!
//! ```text
//! store ──▶ forward (commands in order) ──▶ redis-server
//!       ◀── answer (replies in order)  ◀──      ▲
//!                 │ a script's turn              │ redis.call
//!                 ▼                              │
//!             Interpreter (lua5.4 on two pipes) ─┘
//! ```

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
};

use anyhow::{Context, bail, ensure};
use parking_lot::{Condvar, Mutex};
use redis::{ConnectionLike, Value};

use crate::RedisServer;

/// What `lua5.4` runs: reads a script, answers with its result, asks for commands in between.
const DRIVER: &str = include_str!("dragonfly/driver.lua");

/// The line by which a script asks for keys it does not declare.
const UNDECLARED_KEYS_FLAG: &[u8] = b"--!df flags=allow-undeclared-keys";

/// A server whose scripts run in Lua 5.4 with undeclared keys refused. Ended on drop.
#[derive(Debug)]
pub struct DragonflyRules {
    server: RedisServer,
    port: u16,
}

impl DragonflyRules {
    /// Starts a server and the proxy in front of it. Panics with how to get what is missing.
    pub fn start() -> Self {
        match Self::try_start() {
            Ok(started) => started,
            Err(error) => panic!("{error:#}"),
        }
    }

    fn try_start() -> anyhow::Result<Self> {
        let server = RedisServer::try_start(&[])?;
        let shared = Arc::new(Shared {
            server_port: server.port(),
            turn: Turn::default(),
            interpreter: Mutex::new(Interpreter::start(&server)?),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        // The thread ends with the process; a test has a process of its own.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = shared.clone();
                thread::spawn(move || {
                    // A connection that ends takes nothing else with it; its client sees the end.
                    let _ = serve(&shared, client);
                });
            }
        });
        Ok(Self { server, port })
    }

    /// Where the proxy is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The server behind it.
    pub fn server(&mut self) -> &mut RedisServer {
        &mut self.server
    }
}

#[derive(Debug)]
struct Shared {
    server_port: u16,
    turn: Turn,
    interpreter: Mutex<Interpreter>,
}

/// Commands in flight and scripts exclude each other, as on a server with one thread.
#[derive(Debug, Default)]
struct Turn {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    script_runs: bool,
    in_flight: usize,
}

impl Turn {
    fn enter(&self) {
        let mut state = self.state.lock();
        while state.script_runs {
            self.changed.wait(&mut state);
        }
        state.in_flight += 1;
    }

    fn leave(&self) {
        self.state.lock().in_flight -= 1;
        self.changed.notify_all();
    }

    fn alone<T>(&self, run: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        while state.script_runs {
            self.changed.wait(&mut state);
        }
        state.script_runs = true;
        while state.in_flight > 0 {
            self.changed.wait(&mut state);
        }
        drop(state);
        let result = run();
        self.state.lock().script_runs = false;
        self.changed.notify_all();
        result
    }
}

/// A command whose reply has not come yet.
#[derive(Debug)]
enum Pending {
    /// Counted as in flight.
    Command,
    /// May wait on the server for long, so it is not counted.
    Blocking,
    /// `SCRIPT LOAD` of this source.
    Load(Vec<u8>),
    /// `EVAL` or `EVALSHA`. The server was sent a `PING` to keep its place in the line.
    Script(Vec<Vec<u8>>),
}

type Queue = Mutex<VecDeque<Pending>>;

/// Serves one client to its end.
fn serve(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server_port))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pending = Arc::new(Queue::default());
    let (script_done, until_done) = mpsc::channel();
    let answering = {
        let (shared, pending) = (shared.clone(), pending.clone());
        let (server, client) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            // Either side may have ended; the sockets are closed below.
            let _ = answer(&shared, &pending, &script_done, &server, &client);
            let _ = client.shutdown(std::net::Shutdown::Both);
        })
    };
    // The client's end is the usual end; the rest is the same for every other.
    let _ = forward(shared, &pending, &until_done, &client, &server);
    let _ = server.shutdown(std::net::Shutdown::Both);
    let _ = answering.join();
    for left in pending.lock().drain(..) {
        if matches!(left, Pending::Command | Pending::Load(_)) {
            shared.turn.leave();
        }
    }
    Ok(())
}

/// Passes a client's commands on, in order.
fn forward(
    shared: &Shared,
    pending: &Queue,
    until_done: &mpsc::Receiver<()>,
    client: &TcpStream,
    server: &TcpStream,
) -> io::Result<()> {
    let (mut client, mut server) = (BufReader::new(client), server);
    loop {
        let command = read_command(&mut client)?;
        let word = |at: usize| command.get(at).map(|word| word.to_ascii_uppercase());
        let kind = match (word(0).as_deref(), word(1).as_deref()) {
            (Some(b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO"), _) => {
                Pending::Script(command.clone())
            }
            (Some(b"SCRIPT"), Some(b"LOAD")) => {
                Pending::Load(command.get(2).cloned().unwrap_or_default())
            }
            (Some(b"SCRIPT"), Some(b"FLUSH")) => {
                shared.interpreter.lock().sources.clear();
                Pending::Command
            }
            (Some(b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"MONITOR"), _) => {
                // From here on replies do not match commands: no scripts, only bytes.
                pending.lock().push_back(Pending::Blocking);
                server.write_all(&encode(&command))?;
                io::copy(&mut client, &mut server)?;
                return Ok(());
            }
            (Some(name), _) if name.starts_with(b"B") || name == b"WAIT" || name == b"XREAD" => {
                Pending::Blocking
            }
            _ => Pending::Command,
        };
        if matches!(kind, Pending::Command | Pending::Load(_)) {
            shared.turn.enter();
        }
        let is_script = matches!(kind, Pending::Script(_));
        pending.lock().push_back(kind);
        if is_script {
            server.write_all(b"*1\r\n$4\r\nPING\r\n")?;
            // The commands behind a script run after it.
            until_done.recv().map_err(|_| ended())?;
        } else {
            server.write_all(&encode(&command))?;
        }
    }
}

/// Passes the server's replies back, and runs each script when its turn comes.
fn answer(
    shared: &Shared,
    pending: &Queue,
    script_done: &mpsc::Sender<()>,
    server: &TcpStream,
    client: &TcpStream,
) -> io::Result<()> {
    let (mut server, mut client) = (BufReader::new(server), client);
    loop {
        let reply = read_reply(&mut server)?;
        let is_push = reply.first() == Some(&b'>');
        let next = if is_push { None } else { pending.lock().pop_front() };
        match next {
            Some(Pending::Script(command)) => {
                let result = shared.turn.alone(|| shared.interpreter.lock().evaluate(&command));
                client.write_all(&result)?;
                script_done.send(()).map_err(|_| ended())?;
            }
            Some(Pending::Load(source)) => {
                shared.turn.leave();
                let checked = shared.interpreter.lock().load(&source);
                client.write_all(checked.as_deref().unwrap_or(&reply))?;
            }
            Some(Pending::Command) => {
                shared.turn.leave();
                client.write_all(&reply)?;
            }
            Some(Pending::Blocking) | None => client.write_all(&reply)?,
        }
    }
}

/// `lua5.4`, the scripts it knows and the connection its commands go through.
struct Interpreter {
    connection: redis::Connection,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    sources: HashMap<Vec<u8>, Vec<u8>>,
    key_specs: HashMap<Vec<u8>, KeySpec>,
}

/// Where a command has its keys, as `COMMAND` tells.
#[derive(Clone, Copy)]
struct KeySpec {
    first: i64,
    last: i64,
    step: i64,
    is_movable: bool,
}

impl std::fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interpreter").field("scripts", &self.sources.len()).finish_non_exhaustive()
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Interpreter {
    fn start(server: &RedisServer) -> anyhow::Result<Self> {
        let mut connection = server.connection()?;
        let key_specs = key_specs(&mut connection)?;
        let mut child = Command::new("lua5.4")
            // Its first character is a hyphen, which lua5.4 would take for another option.
            .args(["-e", &format!("\n{DRIVER}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(
                "cannot start lua5.4, which runs scripts by Dragonfly's rules: install the package \
                 lua5.4, or leave these tests out with STORES=embedded,redis,valkey",
            )?;
        let to = child.stdin.take().context("lua5.4 has no input")?;
        let from = BufReader::new(child.stdout.take().context("lua5.4 has no output")?);
        Ok(Self { connection, child, to, from, sources: HashMap::new(), key_specs })
    }

    /// Remembers a script. Returns an error reply if Lua 5.4 cannot read it.
    fn load(&mut self, source: &[u8]) -> Option<Vec<u8>> {
        match self.try_load(source) {
            Ok(()) => None,
            Err(error) => Some(error_reply(&format!("{error:#}"))),
        }
    }

    fn try_load(&mut self, source: &[u8]) -> anyhow::Result<()> {
        let hash: Vec<u8> =
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut self.connection)?;
        writeln!(self.to, "compile")?;
        write_text(&mut self.to, source)?;
        self.to.flush()?;
        match read_line(&mut self.from)?.as_str() {
            "ok" => {}
            "error" => bail!("{}", String::from_utf8_lossy(&read_text(&mut self.from)?)),
            other => bail!("lua5.4 said {other:?}"),
        }
        self.sources.insert(hash, source.to_vec());
        Ok(())
    }

    /// Runs `EVAL` or `EVALSHA` and returns the reply to its client.
    fn evaluate(&mut self, command: &[Vec<u8>]) -> Vec<u8> {
        match self.try_evaluate(command) {
            Ok(reply) => reply,
            Err(error) => error_reply(&format!("{error:#}")),
        }
    }

    fn try_evaluate(&mut self, command: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
        let [name, script, count, rest @ ..] = command else {
            bail!("wrong number of arguments for a script")
        };
        let by_hash = name.to_ascii_uppercase().starts_with(b"EVALSHA");
        let source = if by_hash {
            match self.sources.get(&script.to_ascii_lowercase()) {
                Some(source) => source.clone(),
                None => return Ok(b"-NOSCRIPT No matching script.\r\n".to_vec()),
            }
        } else {
            self.try_load(script)?;
            script.clone()
        };
        let count: usize = std::str::from_utf8(count)?.parse()?;
        ensure!(count <= rest.len(), "number of keys is greater than number of arguments");
        let (keys, args) = rest.split_at(count);
        let is_strict = !source.starts_with(UNDECLARED_KEYS_FLAG);
        let declared: HashSet<&[u8]> = keys.iter().map(Vec::as_slice).collect();

        writeln!(self.to, "run")?;
        write_text(&mut self.to, &source)?;
        for list in [keys, args] {
            writeln!(self.to, "{}", list.len())?;
            list.iter().try_for_each(|text| write_text(&mut self.to, text))?;
        }
        self.to.flush()?;
        loop {
            match read_line(&mut self.from)?.as_str() {
                "call" => {
                    let count: usize = read_line(&mut self.from)?.parse()?;
                    let words = (0..count)
                        .map(|_| read_text(&mut self.from))
                        .collect::<anyhow::Result<Vec<_>>>()?;
                    let refusal =
                        if is_strict { self.find_undeclared(&words, &declared)? } else { None };
                    let value = match refusal {
                        Some(key) => Answer::Error(format!(
                            "ERR script tried accessing undeclared key '{}'",
                            String::from_utf8_lossy(&key)
                        )),
                        None => self.call(&words)?,
                    };
                    write_answer(&mut self.to, &value)?;
                    self.to.flush()?;
                }
                "return" => return read_text(&mut self.from),
                other => bail!("lua5.4 said {other:?}"),
            }
        }
    }

    fn call(&mut self, words: &[Vec<u8>]) -> anyhow::Result<Answer> {
        match self.connection.req_packed_command(&encode(words)) {
            Ok(Value::ServerError(error)) => {
                let detail = error.details().unwrap_or_default();
                Ok(Answer::Error(format!("{} {detail}", error.code())))
            }
            Ok(value) => Ok(Answer::Value(value)),
            Err(error) if error.code().is_some() || error.detail().is_some() => {
                let code = error.code().unwrap_or("ERR");
                Ok(Answer::Error(format!("{code} {}", error.detail().unwrap_or_default())))
            }
            Err(error) => Err(error).context("the server behind the script"),
        }
    }

    /// Returns a key of the command that the script did not declare.
    fn find_undeclared(
        &mut self,
        words: &[Vec<u8>],
        declared: &HashSet<&[u8]>,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let name = words.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        let Some(spec) = self.key_specs.get(&name).copied() else { return Ok(None) };
        let keys: Vec<Vec<u8>> = if spec.is_movable {
            let mut ask = redis::cmd("COMMAND");
            ask.arg("GETKEYS").arg(words);
            ask.query(&mut self.connection)?
        } else if spec.first == 0 {
            Vec::new()
        } else {
            let end = if spec.last < 0 { words.len() as i64 + spec.last } else { spec.last };
            (spec.first..=end)
                .step_by(usize::try_from(spec.step.max(1))?)
                .filter_map(|at| words.get(usize::try_from(at).ok()?).cloned())
                .collect()
        };
        Ok(keys.into_iter().find(|key| !declared.contains(key.as_slice())))
    }
}

fn key_specs(connection: &mut redis::Connection) -> anyhow::Result<HashMap<Vec<u8>, KeySpec>> {
    let rows: Vec<Vec<Value>> = redis::cmd("COMMAND").query(connection)?;
    let mut specs = HashMap::new();
    for row in rows {
        let [name, _, flags, first, last, step, ..] = row.as_slice() else {
            bail!("COMMAND answered a row that is too short")
        };
        let flags: Vec<String> = redis::from_redis_value(flags.clone())?;
        let spec = KeySpec {
            first: redis::from_redis_value(first.clone())?,
            last: redis::from_redis_value(last.clone())?,
            step: redis::from_redis_value(step.clone())?,
            is_movable: flags.iter().any(|flag| flag == "movablekeys"),
        };
        specs.insert(redis::from_redis_value(name.clone())?, spec);
    }
    Ok(specs)
}

/// What the server said to a script's command.
enum Answer {
    Value(Value),
    Error(String),
}

/// Writes an answer in the form that the driver reads: a letter, a number, bytes.
fn write_answer(to: &mut impl Write, answer: &Answer) -> anyhow::Result<()> {
    match answer {
        Answer::Error(text) => write!(to, "e{}\n{text}", text.len())?,
        Answer::Value(value) => write_value(to, value)?,
    }
    Ok(())
}

fn write_value(to: &mut impl Write, value: &Value) -> anyhow::Result<()> {
    match value {
        Value::Nil => writeln!(to, "n0")?,
        Value::Int(number) => writeln!(to, "i{number}")?,
        Value::BulkString(bytes) => {
            writeln!(to, "b{}", bytes.len())?;
            to.write_all(bytes)?;
        }
        Value::Okay => write!(to, "s2\nOK")?,
        Value::SimpleString(text) => write!(to, "s{}\n{text}", text.len())?,
        Value::Array(list) => {
            writeln!(to, "a{}", list.len())?;
            list.iter().try_for_each(|value| write_value(to, value))?;
        }
        other => bail!("a script cannot be given {other:?}"),
    }
    Ok(())
}

fn error_reply(text: &str) -> Vec<u8> {
    let line = text.replace(['\r', '\n'], " ");
    let has_code = line
        .split(' ')
        .next()
        .is_some_and(|code| !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()));
    format!("-{}{line}\r\n", if has_code { "" } else { "ERR " }).into_bytes()
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Reads a line with its end; nothing more to read is an error.
fn read_raw_line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    if from.read_until(b'\n', &mut line)? == 0 { Err(ended()) } else { Ok(line) }
}

fn number_of(line: &[u8]) -> io::Result<i64> {
    let digits = line.get(1..).unwrap_or_default();
    let digits = std::str::from_utf8(digits).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(digits.trim_end().parse().map_err(|_| io::ErrorKind::InvalidData)?)
}

/// Reads a command, which clients send as an array of bulk strings.
fn read_command(from: &mut impl BufRead) -> io::Result<Vec<Vec<u8>>> {
    let count = number_of(&read_raw_line(from)?)?;
    (0..count)
        .map(|_| {
            let length = number_of(&read_raw_line(from)?)?;
            let mut word =
                vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)? + 2];
            from.read_exact(&mut word)?;
            word.truncate(word.len() - 2);
            Ok(word)
        })
        .collect()
}

/// Reads one reply of either protocol and returns its bytes.
fn read_reply(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = read_raw_line(from)?;
    let kind = bytes.first().copied().ok_or_else(ended)?;
    match kind {
        b'$' | b'!' | b'=' => {
            if let Ok(length) = usize::try_from(number_of(&bytes)?) {
                let mut body = vec![0; length + 2];
                from.read_exact(&mut body)?;
                bytes.append(&mut body);
            }
        }
        b'*' | b'~' | b'>' | b'%' => {
            let each = if kind == b'%' { 2 } else { 1 };
            for _ in 0..number_of(&bytes)?.max(0) * each {
                bytes.append(&mut read_reply(from)?);
            }
        }
        _ => {}
    }
    Ok(bytes)
}

fn write_text(to: &mut impl Write, text: &[u8]) -> io::Result<()> {
    writeln!(to, "{}", text.len())?;
    to.write_all(text)
}

fn read_line(from: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(from.read_line(&mut line)? > 0, "lua5.4 has ended");
    Ok(line.trim_end().to_owned())
}

fn read_text(from: &mut impl BufRead) -> anyhow::Result<Vec<u8>> {
    let mut text = vec![0; read_line(from)?.parse()?];
    from.read_exact(&mut text)?;
    Ok(text)
}
