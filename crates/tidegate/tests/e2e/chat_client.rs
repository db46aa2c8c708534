//! Clients of the support chat: visitors and agents over HTTP, WebSocket and server-sent events, as the
//! tests of the chat need them. They reconnect, resume and fetch anew as `docs/desk.md` says.

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::process::Tidegate;
use crate::wait::until;

pub(crate) const PASSWORD: &str = "correct horse battery";
/// Secret of the site's proofs.
pub(crate) const SECRET: &str = "secret of the site";

/// Settings of instances that share an archive in a folder.
pub(crate) fn shared_settings(folder: &std::path::Path) -> Vec<String> {
    let archive = folder.join("desk.sqlite3").display().to_string();
    settings_with(&archive, folder)
}

/// Settings of instances that share an archive, and files in a folder.
pub(crate) fn settings_with(archive: &str, folder: &std::path::Path) -> Vec<String> {
    let files = folder.join("files").display().to_string();
    [
        format!("desk.archive={archive}"),
        format!("desk.files={files}"),
        format!("desk.widget_secret={SECRET}"),
        // All from one address: more than one visitor would have.
        "http.max_connections_per_address=20000".to_owned(),
        "http.max_connections=20000".to_owned(),
        // A busy machine may be slow; it is not to decide without the store.
        "desk.limit_timeout=10s".to_owned(),
    ]
    .into_iter()
    .flat_map(|setting| ["--set".to_owned(), setting])
    .collect()
}

/// Starts an instance with these settings.
pub(crate) fn start(store: &str, settings: &[String]) -> Tidegate {
    start_in(tempfile::tempdir().unwrap(), store, settings)
}

pub(crate) fn start_in(folder: tempfile::TempDir, store: &str, settings: &[String]) -> Tidegate {
    let args: Vec<&str> = settings.iter().map(String::as_str).collect();
    Tidegate::start_in(folder, store, &args)
}

/// One call; answers status and body. None when nobody answered.
pub(crate) fn try_call(base: &str, token: &str, what: &str, body: &Value) -> Option<(u16, Value)> {
    let (method, path) = what.split_once(' ').unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(20)))
        .build()
        .into();
    let mut request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("{base}{path}"))
        .header("content-type", "application/json");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut answer = agent.run(request.body(body).unwrap()).ok()?;
    let text = answer.body_mut().read_to_string().ok()?;
    Some((answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null)))
}

/// One call; answers status and body.
#[track_caller]
pub(crate) fn call(base: &str, token: &str, what: &str, body: Value) -> (u16, Value) {
    try_call(base, token, what, &body).unwrap_or_else(|| panic!("{what}: no answer"))
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(base: &str, token: &str, what: &str, body: Value) -> Value {
    let (status, answer) = call(base, token, what, body);
    assert!((200..300).contains(&status), "{what}: {status} {answer}");
    answer
}

/// Policies of the chat that are about one address or one person: here all come from one.
const POLICIES: [&str; 9] = [
    "message",
    "visitor_session",
    "new_conversation",
    "new_conversation_ip",
    "typing",
    "upload",
    "widget",
    "visitor_update",
    "login_ip",
];

/// Widens the limits of a store on all of its instances.
#[track_caller]
pub(crate) fn widen_limits(gates: &[&Tidegate]) {
    let admin = gates[0].token();
    let wide = json!({ "algorithm": "counter", "limit": 1_000_000, "window_seconds": 60 });
    for policy in POLICIES {
        let path = format!("PUT /api/v1/ratelimit/policies/{policy}");
        ok(&gates[0].base, &admin, &path, wide.clone());
    }
    for gate in gates {
        let admin = gate.token();
        for policy in POLICIES {
            let path = format!("GET /api/v1/ratelimit/policies/{policy}");
            until(
                "the limit is known everywhere",
                Duration::from_secs(10),
                || call(&gate.base, &admin, &path, Value::Null).1,
                |found| found["limit"] == 1_000_000,
            );
        }
    }
}

/// An agent who has logged in.
#[derive(Debug, Clone)]
pub(crate) struct AgentLogin {
    pub(crate) id: String,
    pub(crate) email: String,
    pub(crate) token: String,
}

/// Adds an agent who sets a password and logs in.
#[track_caller]
pub(crate) fn add_agent(gate: &Tidegate, name: &str, role: &str, capacity: u32) -> AgentLogin {
    let email = format!("{name}@example.org");
    let new = json!({ "email": email, "name": name, "role": role, "capacity": capacity });
    let added = ok(&gate.base, &gate.token(), "POST /api/v1/agents", new);
    let answer = json!({ "invitation": added["invitation"], "password": PASSWORD });
    ok(&gate.base, "", "POST /api/v1/agents/accept", answer);
    let id = text_of(&added["agent"]["id"]);
    let token = log_in(&gate.base, &email);
    AgentLogin { id, email, token }
}

/// Logs an agent in; answers the token.
#[track_caller]
pub(crate) fn log_in(base: &str, email: &str) -> String {
    let login = json!({ "email": email, "password": PASSWORD });
    text_of(&ok(base, "", "POST /api/v1/agents/login", login)["token"])
}

/// A proof of the site that its user is who they say.
pub(crate) fn identity(user: &str, email: &str, at: i64, secret: &str) -> Value {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = ring::hmac::sign(&key, format!("{user}\n{email}\n{at}").as_bytes());
    let hmac: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "user_id": user, "email": email, "at": at, "hmac": hmac })
}

pub(crate) fn now_seconds() -> i64 {
    store::Clock::system().now().as_secs()
}

/// A session of a user of the site; answers the token.
#[track_caller]
pub(crate) fn visit_as(base: &str, user: &str) -> String {
    let proof = identity(user, &format!("{user}@example.org"), now_seconds(), SECRET);
    text_of(&ok(base, "", "POST /api/v1/widget/sessions", json!({ "identity": proof }))["token"])
}

/// A session of an anonymous visitor; answers the token.
#[track_caller]
pub(crate) fn visit(base: &str) -> String {
    text_of(&ok(base, "", "POST /api/v1/widget/sessions", json!({}))["token"])
}

/// Starts a conversation; answers its id.
#[track_caller]
pub(crate) fn start_conversation(base: &str, visitor: &str, text: &str) -> String {
    let new = json!({ "message": { "content": text } });
    text_of(&ok(base, visitor, "POST /api/v1/widget/conversations", new)["conversation"]["id"])
}

#[track_caller]
pub(crate) fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// All messages after a number, as the archive has them.
#[track_caller]
pub(crate) fn messages(base: &str, token: &str, path: &str, after: i64) -> Vec<Value> {
    let mut found = Vec::new();
    let mut after = after;
    loop {
        let page = ok(base, token, &format!("GET {path}?after_seq={after}&limit=500"), Value::Null);
        let items = page["items"].as_array().unwrap();
        found.extend(items.iter().cloned());
        let Some(last) = items.last() else { return found };
        after = last["seq"].as_i64().unwrap();
        if page["has_more"] != true {
            return found;
        }
    }
}

/// What came of a connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrival {
    /// A frame: of a socket as it is, of server-sent events in the same form.
    Frame(Value),
    /// The server closed a socket with this code.
    Closed(u16),
    /// The connection ended without a word.
    Cut,
    /// Nothing came in time.
    Quiet,
}

/// A WebSocket of the chat.
pub(crate) struct Socket(WebSocket<TcpStream>);

impl Socket {
    /// Opens a socket at a path, with these headers. An answer other than 101 is its status.
    pub(crate) fn open_with(
        base: &str,
        path: &str,
        headers: &[(&'static str, String)],
    ) -> Result<Socket, Option<u16>> {
        let address = base.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).map_err(|_| None)?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "desk.v1".parse().unwrap());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                Err(Some(answer.status().as_u16()))
            }
            Err(_) => Err(None),
        }
    }

    /// Opens a socket and says hello. None when it was cut off meanwhile.
    pub(crate) fn open(
        base: &str,
        path: &str,
        token: &str,
        resume: Option<&str>,
    ) -> Option<Socket> {
        let headers = [("authorization", format!("Bearer {token}"))];
        let mut socket = Socket::open_with(base, path, &headers).ok()?;
        socket.send(&json!({ "t": "hello", "resume": resume })).then_some(socket)
    }

    /// Sends a frame; false when the connection is gone.
    pub(crate) fn send(&mut self, frame: &Value) -> bool {
        self.send_raw(Message::text(frame.to_string()))
    }

    pub(crate) fn send_raw(&mut self, message: Message) -> bool {
        self.0.send(message).is_ok()
    }

    /// The next frame within this time.
    pub(crate) fn next(&mut self, wait: Duration) -> Arrival {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            self.0.get_ref().set_read_timeout(Some(left)).unwrap();
            match self.0.read() {
                Ok(Message::Text(text)) => {
                    return Arrival::Frame(serde_json::from_str(text.as_str()).unwrap());
                }
                Ok(Message::Close(frame)) => {
                    return Arrival::Closed(frame.map_or(1005, |frame| frame.code.into()));
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return Arrival::Quiet;
                }
                Err(_) => return Arrival::Cut,
            }
        }
    }

    /// The next frame of which this holds.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut others = Vec::new();
        while Instant::now() < deadline {
            match self.next(Duration::from_secs(20)) {
                Arrival::Frame(frame) if wanted(&frame) => return frame,
                Arrival::Frame(frame) => others.push(frame),
                other => panic!("{other:?} after {others:?}"),
            }
        }
        panic!("only others came: {others:?}");
    }

    /// The code with which the server closes the socket; frames before it do not count.
    #[track_caller]
    pub(crate) fn close_code(&mut self) -> u16 {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            match self.next(Duration::from_secs(20)) {
                Arrival::Frame(_) => {}
                Arrival::Closed(code) => return code,
                other => panic!("{other:?} in place of a close frame"),
            }
        }
        panic!("the socket stays open");
    }
}

/// Server-sent events of the chat, over a plain connection.
pub(crate) struct EventStream {
    stream: TcpStream,
    /// Bytes as they came, with the framing of chunks.
    raw: Vec<u8>,
    /// The body.
    body: Vec<u8>,
    has_head: bool,
    is_refused: bool,
}

impl EventStream {
    pub(crate) fn open(
        base: &str,
        path: &str,
        token: &str,
        resume: Option<&str>,
    ) -> Option<EventStream> {
        let address = base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).ok()?;
        let resume = resume.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{resume}\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        let (raw, body) = (Vec::new(), Vec::new());
        Some(EventStream { stream, raw, body, has_head: false, is_refused: false })
    }

    /// The next event within this time, in the form of a socket's frame.
    pub(crate) fn next(&mut self, wait: Duration) -> Arrival {
        let deadline = Instant::now() + wait;
        loop {
            self.unwrap_chunks();
            if self.is_refused {
                return Arrival::Cut;
            }
            while let Some(end) = find(&self.body, b"\n\n") {
                let event: Vec<u8> = self.body.drain(..end + 2).collect();
                if let Some(frame) = read_event(&String::from_utf8(event).unwrap()) {
                    return Arrival::Frame(frame);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(read @ 1..) => self.raw.extend_from_slice(&bytes[..read]),
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return Arrival::Quiet;
                }
                _ => return Arrival::Cut,
            }
        }
    }

    /// Takes the framing of chunks away; what is not whole yet waits.
    fn unwrap_chunks(&mut self) {
        if !self.has_head {
            let Some(end) = find(&self.raw, b"\r\n\r\n") else { return };
            let head = String::from_utf8(self.raw.drain(..end + 4).collect()).unwrap();
            self.is_refused = !head.starts_with("HTTP/1.1 200");
            self.has_head = true;
        }
        if self.is_refused {
            return;
        }
        while let Some(end) = find(&self.raw, b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..end]).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            if self.raw.len() < end + 2 + size + 2 {
                return;
            }
            self.body.extend_from_slice(&self.raw[end + 2..end + 2 + size]);
            self.raw.drain(..end + 2 + size + 2);
        }
    }
}

/// One server-sent event as the frame of a socket; none for comments.
fn read_event(text: &str) -> Option<Value> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let kind = field("event:")?;
    let data: Value = serde_json::from_str(field("data:")?).unwrap();
    Some(match kind {
        "ready" => json!({ "t": "ready", "resume": field("id:"), "resumed": data["resumed"] }),
        "resync" => json!({ "t": "resync" }),
        _ => json!({ "t": "event", "id": field("id:"), "type": kind, "data": data }),
    })
}

pub(crate) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A way to get events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transport {
    WebSocket,
    ServerSent,
}

enum Connection {
    WebSocket(Box<Socket>),
    ServerSent(Box<EventStream>),
}

/// A client that follows one conversation whatever happens to its connections: it resumes, and fetches anew
/// when it is told to.
pub(crate) struct Follower {
    transport: Transport,
    token: String,
    is_agent: bool,
    conversation: String,
    connection: Option<Connection>,
    resume: Option<String>,
    /// The messages it knows, by number.
    pub(crate) list: BTreeMap<i64, String>,
    /// Ids of the events that came.
    events: HashSet<String>,
    /// Numbers of the messages that came as events.
    told: HashSet<i64>,
    /// A message may come as two events: the store lost everything, and with it which events it had. Clients
    /// drop what they have.
    pub(crate) may_repeat: bool,
    /// Connections, those that resumed, and those after which it fetched anew.
    pub(crate) connections: usize,
    pub(crate) resumed: usize,
    pub(crate) fetched: usize,
}

impl Follower {
    pub(crate) fn new(
        transport: Transport,
        token: &str,
        is_agent: bool,
        conversation: &str,
    ) -> Follower {
        Follower {
            transport,
            token: token.to_owned(),
            is_agent,
            conversation: conversation.to_owned(),
            connection: None,
            resume: None,
            list: BTreeMap::new(),
            events: HashSet::new(),
            told: HashSet::new(),
            may_repeat: false,
            connections: 0,
            resumed: 0,
            fetched: 0,
        }
    }

    /// The token of a new login.
    pub(crate) fn renew_token(&mut self, token: &str) {
        token.clone_into(&mut self.token);
    }

    pub(crate) fn messages_path(&self) -> String {
        let widget = if self.is_agent { "" } else { "/widget" };
        format!("/api/v1{widget}/conversations/{}/messages", self.conversation)
    }

    /// Takes what comes for a while: live events from `live`, fetches from `base`. False when the connection
    /// is gone or cannot be made.
    pub(crate) fn step(&mut self, live: &str, base: &str, wait: Duration) -> bool {
        if self.connection.is_none() {
            let path = match (self.transport, self.is_agent) {
                (Transport::WebSocket, true) => "/api/v1/ws",
                (Transport::WebSocket, false) => "/api/v1/widget/ws",
                (Transport::ServerSent, true) => "/api/v1/conversations/events",
                (Transport::ServerSent, false) => "/api/v1/widget/events",
            };
            let (token, resume) = (&self.token, self.resume.as_deref());
            self.connection = match self.transport {
                Transport::WebSocket => Socket::open(live, path, token, resume)
                    .map(|socket| Connection::WebSocket(Box::new(socket))),
                Transport::ServerSent => EventStream::open(live, path, token, resume)
                    .map(|stream| Connection::ServerSent(Box::new(stream))),
            };
            self.connections += 1;
        }
        let arrival = match &mut self.connection {
            Some(Connection::WebSocket(socket)) => socket.next(wait),
            Some(Connection::ServerSent(stream)) => stream.next(wait),
            None => Arrival::Cut,
        };
        match arrival {
            Arrival::Frame(frame) => self.take(&frame, base),
            Arrival::Quiet => return true,
            Arrival::Closed(code) => {
                // 4401: the store lost the session; whoever tests that logs in again.
                assert!([1001, 1011, 4401, 4408].contains(&code), "closed with {code}");
                self.connection = None;
            }
            Arrival::Cut => self.connection = None,
        }
        self.connection.is_some()
    }

    fn take(&mut self, frame: &Value, base: &str) {
        match frame["t"].as_str() {
            Some("ready") => {
                if let Some(place) = frame["resume"].as_str() {
                    self.resume = Some(place.to_owned());
                }
                if frame["resumed"] == true {
                    self.resumed += 1;
                } else {
                    self.fetch(base);
                }
            }
            Some("resync") => self.fetch(base),
            Some("event") => {
                if let Some(id) = frame["id"].as_str() {
                    assert!(self.events.insert(id.to_owned()), "twice: {frame}");
                    self.resume = Some(id.to_owned());
                }
                let message = &frame["data"]["message"];
                let is_here = frame["data"]["conversation"]["id"] == self.conversation.as_str();
                if frame["type"] == "message.created" && is_here {
                    let seq = message["seq"].as_i64().unwrap();
                    let is_new = self.told.insert(seq);
                    assert!(is_new || self.may_repeat, "told twice: {frame}");
                    self.put(message);
                }
            }
            // Answers to what a socket sent, of which this one sends nothing.
            _ => panic!("a frame that nobody asked for: {frame}"),
        }
    }

    fn put(&mut self, message: &Value) {
        let (seq, content) = (message["seq"].as_i64().unwrap(), text_of(&message["content"]));
        if let Some(known) = self.list.insert(seq, content.clone()) {
            assert_eq!(known, content, "message {seq} has changed");
        }
    }

    /// Fetches what it does not know. Without an answer it connects anew, and is told again.
    fn fetch(&mut self, base: &str) {
        self.fetched += 1;
        // What is fetched may be told once more; between two fetches nothing is.
        self.told.clear();
        let mut after = 0;
        loop {
            let what = format!("GET {}?after_seq={after}&limit=500", self.messages_path());
            let Some((200, page)) = try_call(base, &self.token, &what, &Value::Null) else {
                (self.connection, self.resume) = (None, None);
                return;
            };
            for message in page["items"].as_array().unwrap() {
                self.put(message);
                after = message["seq"].as_i64().unwrap();
            }
            if page["has_more"] != true {
                return;
            }
        }
    }
}
