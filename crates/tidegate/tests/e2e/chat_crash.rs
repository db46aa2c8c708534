//! The chat when instances are killed at random moments and the store loses everything: no acknowledged
//! message is missing, none is there twice, and numbers have no gaps.
//!
//! `CHAT_CRASH_ROUNDS=200` makes the long run of it; 20 rounds is the default.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Cluster, PostgresServer, RedisServer};

use crate::chat_client::{
    AgentLogin, Arrival, Follower, Socket, Transport, add_agent, call, log_in, messages, ok,
    settings_with, shared_settings, start, start_conversation, start_in, text_of, try_call,
    visit_as, widen_limits,
};
use crate::process::Tidegate;
use crate::wait::until;

const VISITORS: [&str; 3] = ["eva", "ben", "kim"];
const AGENTS: [&str; 2] = ["anna", "tom"];

fn rounds() -> usize {
    let given = std::env::var("CHAT_CRASH_ROUNDS").ok();
    given.map_or(20, |text| text.parse().unwrap())
}

/// All that the clients share: the addresses of the instances, and their own tokens.
struct ChatWorld {
    bases: RwLock<[String; 2]>,
    tokens: RwLock<HashMap<String, String>>,
    conversations: Vec<String>,
    is_over: AtomicBool,
    /// Contents and numbers that were acknowledged, by conversation.
    acknowledged: Mutex<Vec<HashMap<String, i64>>>,
    repeated: AtomicUsize,
    failed: AtomicUsize,
}

impl ChatWorld {
    fn base(&self, number: usize) -> String {
        self.bases.read().unwrap()[number % 2].clone()
    }

    fn token(&self, name: &str) -> String {
        self.tokens.read().unwrap()[name].clone()
    }

    /// Logs in again, if somebody has not done so since this token ended.
    fn log_in_again(&self, name: &str, ended: &str, base: &str) {
        let mut tokens = self.tokens.write().unwrap();
        if tokens[name] != ended {
            return;
        }
        let email = format!("{name}@example.org");
        let (what, body) = if AGENTS.contains(&name) {
            let login = json!({ "email": email, "password": crate::chat_client::PASSWORD });
            ("POST /api/v1/agents/login", login)
        } else {
            let at = crate::chat_client::now_seconds();
            let proof = crate::chat_client::identity(name, &email, at, crate::chat_client::SECRET);
            ("POST /api/v1/widget/sessions", json!({ "identity": proof }))
        };
        if let Some((200, answer)) = try_call(base, "", what, &body) {
            tokens.insert(name.to_owned(), text_of(&answer["token"]));
        }
    }

    /// Sends messages until it is over, each until it is acknowledged.
    fn write(&self, name: &str, mut random: fastrand::Rng) {
        let is_agent = AGENTS.contains(&name);
        let mut number = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            number += 1;
            let own = VISITORS.iter().position(|one| *one == name);
            let at = own.unwrap_or(number % self.conversations.len());
            let id = &self.conversations[at];
            let widget = if is_agent { "" } else { "/widget" };
            let what = format!("POST /api/v1{widget}/conversations/{id}/messages");
            let content = format!("{name} {number}");
            let body = json!({ "content": content, "client_id": format!("{name}-{number}") });
            let deadline = Instant::now() + Duration::from_secs(60);
            let seq = loop {
                let (base, token) = (self.base(random.usize(0..2)), self.token(name));
                match try_call(&base, &token, &what, &body) {
                    Some((status @ (200 | 201), answer)) => {
                        self.repeated.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                        break answer["message"]["seq"].as_i64().unwrap();
                    }
                    Some((401, _)) => self.log_in_again(name, &token, &base),
                    Some((429 | 500..=599, _)) | None => {
                        self.failed.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(random.u64(1..20)));
                    }
                    Some(other) => panic!("{what}: {other:?}"),
                }
                assert!(Instant::now() < deadline, "{content} is never acknowledged");
            };
            let mut all = self.acknowledged.lock().unwrap();
            assert_eq!(all[at].insert(content, seq), None);
            drop(all);
            // People pause; it also keeps the lists at a size that can be compared in every round.
            std::thread::sleep(Duration::from_millis(random.u64(2..25)));
        }
    }
}

/// The messages of one conversation that were compared so far.
#[derive(Default)]
struct ComparisonState {
    last: i64,
    found: HashMap<String, i64>,
}

impl ComparisonState {
    /// Reads on from an instance: the numbers follow each other, no content comes twice, and all that had been
    /// acknowledged before is there under its number.
    fn go_on(&mut self, base: &str, token: &str, id: &str, acknowledged: &HashMap<String, i64>) {
        let path = format!("/api/v1/conversations/{id}/messages");
        for message in messages(base, token, &path, self.last) {
            let seq = message["seq"].as_i64().unwrap();
            assert_eq!(seq, self.last + 1, "a gap or a repeat: {message}");
            self.last = seq;
            if message["type"] != "text" {
                continue;
            }
            let content = text_of(&message["content"]);
            let before = self.found.insert(content, seq);
            assert_eq!(before, None, "twice: {message}");
        }
        for (content, seq) in acknowledged {
            assert_eq!(self.found.get(content), Some(seq), "{content} was acknowledged");
        }
    }
}

fn kill(gate: &mut Tidegate) {
    gate.signal("-KILL");
    gate.wait();
}

/// Starts a killed instance again, in its folder.
fn restart(gate: Tidegate, store: &str, settings: &[String]) -> Tidegate {
    let mut gate = gate;
    let folder = std::mem::replace(&mut gate.folder, tempfile::tempdir().unwrap());
    drop(gate);
    start_in(folder, store, settings)
}

/// Kills one of two instances again and again while people write, and empties the store midway.
fn crash_story(redis: &RedisServer, settings: &[String], rounds: usize, seed: u64) {
    let url = redis.url();
    let mut gates = vec![start(&url, settings), start(&url, settings)];
    widen_limits(&[&gates[0], &gates[1]]);
    let mut tokens = HashMap::new();
    for name in AGENTS {
        tokens.insert(name.to_owned(), add_agent(&gates[0], name, "agent", 10).token);
    }
    let mut conversations = Vec::new();
    for name in VISITORS {
        let token = visit_as(&gates[1].base, name);
        conversations.push(start_conversation(&gates[1].base, &token, &format!("{name} 0")));
        tokens.insert(name.to_owned(), token);
    }
    let world = ChatWorld {
        bases: RwLock::new([gates[0].base.clone(), gates[1].base.clone()]),
        tokens: RwLock::new(tokens),
        acknowledged: Mutex::new(vec![HashMap::new(); conversations.len()]),
        conversations,
        is_over: AtomicBool::new(false),
        repeated: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    };
    let mut random = fastrand::Rng::with_seed(seed);
    eprintln!("seed {seed}");
    // Messages that the followers must know in the end; 0 as long as people write.
    let expected = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        let world = &world;
        let names = VISITORS.iter().chain(&AGENTS);
        let writers: Vec<_> = names
            .map(|name| {
                let random = random.fork();
                scope.spawn(move || world.write(name, random))
            })
            .collect();
        // Two clients follow the first conversation all the time, and reconnect on their own.
        let followers: Vec<_> =
            [(Transport::WebSocket, "eva", false), (Transport::ServerSent, "anna", true)]
                .into_iter()
                .zip(&expected)
                .map(|((transport, name, is_agent), expected)| {
                    scope.spawn(move || {
                        let id = &world.conversations[0];
                        let mut client = Follower::new(transport, &world.token(name), is_agent, id);
                        client.may_repeat = true;
                        let (mut number, mut deadline) = (0, None);
                        loop {
                            client.renew_token(&world.token(name));
                            let base = world.base(number);
                            if !client.step(
                                &base,
                                &world.base(number + 1),
                                Duration::from_millis(100),
                            ) {
                                number += 1;
                            }
                            let expected = expected.load(Ordering::Relaxed);
                            if expected == 0 {
                                continue;
                            }
                            let end =
                                deadline.get_or_insert(Instant::now() + Duration::from_secs(60));
                            if client.list.len() >= expected || Instant::now() > *end {
                                return client;
                            }
                        }
                    })
                })
                .collect();

        let mut verified: Vec<ComparisonState> = Vec::new();
        verified.resize_with(world.conversations.len(), ComparisonState::default);
        for round in 0..rounds {
            // The random moment.
            std::thread::sleep(Duration::from_millis(random.u64(20..500)));
            let victim = random.usize(0..2);
            kill(&mut gates[victim]);
            let survivor = gates[1 - victim].base.clone();
            if round == rounds / 2 {
                redis.query::<()>(&["FLUSHALL"]).unwrap();
                until(
                    "the limits can be set anew",
                    Duration::from_secs(30),
                    || {
                        let what = "PUT /api/v1/ratelimit/policies/message";
                        let wide = json!({ "algorithm": "counter", "limit": 1_000_000, "window_seconds": 60 });
                        call(&survivor, &gates[1 - victim].token(), what, wide).0
                    },
                    |status| *status == 200,
                );
                widen_limits(&[&gates[1 - victim]]);
            }
            let killed = gates.remove(victim);
            gates.insert(victim, restart(killed, &url, settings));
            world.bases.write().unwrap()[victim] = gates[victim].base.clone();
            // Either instance shows the same; acknowledged before it was asked.
            let acknowledged = world.acknowledged.lock().unwrap().clone();
            let base = world.base(random.usize(0..2));
            for (at, id) in world.conversations.iter().enumerate() {
                let admin = gates[0].token();
                verified[at].go_on(&base, &admin, id, &acknowledged[at]);
            }
        }
        world.is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap();
        }
        let acknowledged = world.acknowledged.lock().unwrap().clone();
        for (at, id) in world.conversations.iter().enumerate() {
            verified[at].go_on(&gates[0].base, &gates[0].token(), id, &acknowledged[at]);
            // One message of each started the conversation.
            assert_eq!(verified[at].found.len(), acknowledged[at].len() + 1);
            until_published(redis, &gates[1], id);
        }
        // The clients know the same.
        for (expected, (name, widget)) in expected.iter().zip([("eva", "/widget"), ("anna", "")]) {
            let path = format!("/api/v1{widget}/conversations/{}/messages", world.conversations[0]);
            let kept = messages(&gates[0].base, &world.token(name), &path, 0);
            expected.store(kept.len(), Ordering::Relaxed);
        }
        for (client, expected) in followers.into_iter().zip(&expected) {
            let client = client.join().unwrap();
            eprintln!(
                "{} connections, {} resumed, {} fetched anew",
                client.connections, client.resumed, client.fetched
            );
            assert_eq!(client.list.len(), expected.load(Ordering::Relaxed));
        }
        let sum: usize = acknowledged.iter().map(HashMap::len).sum();
        eprintln!(
            "{rounds} rounds: {sum} acknowledged, {} of them sent before, {} attempts failed",
            world.repeated.load(Ordering::Relaxed),
            world.failed.load(Ordering::Relaxed),
        );
    });
}

/// Waits until the published list is the end of the archive's.
fn until_published(redis: &RedisServer, gate: &Tidegate, id: &str) {
    let path = format!("/api/v1/conversations/{id}/messages");
    let kept = messages(&gate.base, &gate.token(), &path, 0);
    let mut kept: Vec<String> = kept
        .iter()
        .filter(|message| message["type"] != "note")
        .map(|message| text_of(&message["id"]))
        .collect();
    kept.reverse();
    kept.truncate(100);
    let key = format!("ha:chat:conversation:{id}:messages");
    until(
        "the published list is that of the archive",
        Duration::from_secs(30),
        || {
            let items: Vec<String> = redis.query(&["LRANGE", &key, "0", "-1"]).unwrap();
            let ids = items.iter().map(|item| serde_json::from_str::<Value>(item).unwrap());
            let ids: Vec<String> = ids.map(|item| text_of(&item["id"])).collect();
            let differs = ids.iter().zip(&kept).position(|(one, other)| one != other);
            (ids.len(), kept.len(), differs.map(|at| (at, ids[at].clone(), kept[at].clone())))
        },
        |(published, archived, differs)| published == archived && differs.is_none(),
    );
}

#[test]
fn chat_loses_nothing_when_instances_are_killed_at_random_moments() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    crash_story(&redis, &shared_settings(folder.path()), rounds(), fastrand::u64(..));
}

#[test]
fn chat_on_postgres_loses_nothing_when_instances_are_killed_at_random_moments() {
    if testkit::is_left_out("postgres") {
        return;
    }
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_with(&postgres.url(), folder.path());
    crash_story(&redis, &settings, rounds().div_ceil(4), fastrand::u64(..));
}

/// The status of an agent, as an instance tells it.
fn status_of(gate: &Tidegate, agent: &AgentLogin) -> String {
    let found = ok(&gate.base, &gate.token(), "GET /api/v1/presence", Value::Null);
    let items = found["items"].as_array().unwrap();
    let own = items.iter().find(|item| item["agent"]["id"] == agent.id.as_str());
    text_of(&own.unwrap_or_else(|| panic!("{found}"))["status"])
}

#[test]
fn chat_presence_ends_with_its_lease_and_conversations_go_to_somebody_else() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let mut settings = shared_settings(folder.path());
    settings.extend(["--set".to_owned(), "desk.offline_grace=2s".to_owned()]);
    let mut one = start(&redis.url(), &settings);
    let other = start(&redis.url(), &settings);
    widen_limits(&[&one, &other]);
    let (anna, tom) = (add_agent(&one, "anna", "agent", 5), add_agent(&one, "tom", "agent", 5));
    let mut anna_socket = Socket::open(&one.base, "/api/v1/ws", &anna.token, None).unwrap();
    anna_socket.until(|frame| frame["t"] == "ready");
    let mut tom_socket = Socket::open(&other.base, "/api/v1/ws", &tom.token, None).unwrap();
    tom_socket.until(|frame| frame["t"] == "ready");
    tom_socket.send(&json!({ "t": "presence", "ref": "1", "status": "busy" }));
    tom_socket.until(|frame| frame["t"] == "ack");
    let visitor = visit_as(&other.base, "eva");
    let id = start_conversation(&other.base, &visitor, "hello");
    let owner = || {
        let what = format!("GET /api/v1/conversations/{id}");
        let found = ok(&other.base, &other.token(), &what, Value::Null);
        found["assignee"]["id"].as_str().unwrap_or_default().to_owned()
    };
    let soon = Duration::from_secs(15);
    until("Anna has it", soon, owner, |id| *id == anna.id);
    tom_socket.send(&json!({ "t": "presence", "ref": "2", "status": "online" }));
    tom_socket.until(|frame| frame["t"] == "ack");

    // Her instance is killed, and she does not come back. She is there as long as her lease says.
    kill(&mut one);
    let killed = Instant::now();
    assert_eq!(status_of(&other, &anna), "online");
    let most = Duration::from_secs(60);
    until(
        "Anna is offline",
        most,
        || {
            // Tom answers pings while he waits.
            let arrival = tom_socket.next(Duration::from_millis(100));
            assert!(matches!(arrival, Arrival::Frame(_) | Arrival::Quiet), "{arrival:?}");
            status_of(&other, &anna)
        },
        |status| status == "offline",
    );
    let took = killed.elapsed();
    // Renewed at most 15 s before: 30 to 45 s later, and what a busy machine adds.
    assert!((Duration::from_secs(29)..Duration::from_secs(55)).contains(&took), "{took:?}");
    until("Tom has it", soon, owner, |id| *id == tom.id);
    println!("offline after {took:?}, with a colleague after {:?}", killed.elapsed());
    // The one who comes back finds it gone, and the visitor's side has the whole list.
    let one = restart(one, &redis.url(), &settings);
    let token = log_in(&one.base, &anna.email);
    let mut again = Socket::open(&one.base, "/api/v1/ws", &token, None).unwrap();
    again.until(|frame| frame["t"] == "ready");
    assert_eq!(status_of(&one, &anna), "online");
    assert_eq!(owner(), tom.id);
}

/// The main story of the chat on a Cluster: two instances, one archive, every script.
#[test]
fn chat_on_a_cluster_from_the_first_message_to_the_rating() {
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().unwrap();
    cluster_story(&cluster.url(), folder.path());
}

fn cluster_story(url: &str, folder: &Path) {
    let settings = shared_settings(folder);
    let one = start(url, &settings);
    let other = start(url, &settings);
    widen_limits(&[&one, &other]);
    let (anna, tom) = (add_agent(&one, "anna", "agent", 2), add_agent(&one, "tom", "agent", 1));
    let mut sockets = Vec::new();
    for (gate, agent) in [(&one, &anna), (&other, &tom)] {
        let mut socket = Socket::open(&gate.base, "/api/v1/ws", &agent.token, None).unwrap();
        socket.until(|frame| frame["t"] == "ready");
        sockets.push(socket);
    }
    // Five visitors for three places: each agent gets what they may have, two wait in order.
    let visitors: Vec<(String, String)> = (0..5)
        .map(|n| {
            let gate = if n % 2 == 0 { &one } else { &other };
            let token = visit_as(&gate.base, &format!("v{n}"));
            let id = start_conversation(&gate.base, &token, &format!("question {n}"));
            (token, id)
        })
        .collect();
    let assigned = || {
        let what = "GET /api/v1/conversations?view=all&limit=50";
        let found = ok(&other.base, &other.token(), what, Value::Null);
        let items = found["items"].as_array().unwrap().clone();
        let of = |agent: &AgentLogin| {
            items.iter().filter(|item| item["assignee"]["id"] == agent.id.as_str()).count()
        };
        (of(&anna), of(&tom))
    };
    let soon = Duration::from_secs(20);
    until("all places are taken", soon, assigned, |found| *found == (2, 1));
    let waiting = ok(&one.base, &one.token(), "GET /api/v1/waiting", Value::Null);
    assert_eq!(waiting["items"].as_array().unwrap().len(), 2, "{waiting}");

    // A conversation: reply, note, typing, read, transfer refused by capacity, resolve, rating.
    let mine = ok(&one.base, &anna.token, "GET /api/v1/conversations?view=mine", Value::Null);
    let id = text_of(&mine["items"][0]["id"]);
    let (visitor, _) = visitors.iter().find(|(_, own)| *own == id).unwrap();
    let mut widget = Socket::open(&other.base, "/api/v1/widget/ws", visitor, None).unwrap();
    widget.until(|frame| frame["t"] == "ready");
    let path = format!("/api/v1/conversations/{id}");
    let note = json!({ "content": "be kind", "type": "note" });
    ok(&one.base, &anna.token, &format!("POST {path}/messages"), note);
    ok(&one.base, &anna.token, &format!("POST {path}/typing"), json!({ "on": true }));
    widget.until(|frame| frame["type"] == "typing");
    ok(&one.base, &anna.token, &format!("POST {path}/messages"), json!({ "content": "hello" }));
    let told = widget.until(|frame| frame["type"] == "message.created");
    assert_eq!(told["data"]["message"]["content"], "hello");
    let seq = told["data"]["message"]["seq"].clone();
    widget.send(&json!({ "t": "read", "ref": "r", "conversation_id": id, "seq": seq }));
    widget.until(|frame| frame["t"] == "ack");
    sockets[0].until(|frame| frame["type"] == "read");
    let to_tom = json!({ "agent_id": tom.id });
    let (status, refused) = call(&one.base, &anna.token, &format!("POST {path}/transfer"), to_tom);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (409, &json!("AGENT_AT_CAPACITY")),
        "{refused}"
    );
    ok(&other.base, &anna.token, &format!("PATCH {path}"), json!({ "status": "resolved" }));
    widget.until(|frame| frame["type"] == "conversation.resolved");
    let rating = json!({ "score": 5 });
    let what = format!("POST /api/v1/widget/conversations/{id}/rating");
    ok(&one.base, visitor, &what, rating);
    // The freed place goes to the one who waits longest.
    until("the place is taken again", soon, assigned, |found| *found == (2, 1));
    let first = text_of(&waiting["items"][0]["conversation"]["id"]);
    let what = format!("GET /api/v1/conversations/{first}");
    let next = ok(&one.base, &one.token(), &what, Value::Null);
    assert_eq!(next["assignee"]["id"], anna.id.as_str(), "{next}");
    // Nothing is lost when a client comes back elsewhere.
    let kept =
        messages(&one.base, visitor, &format!("/api/v1/widget/conversations/{id}/messages"), 0);
    let seen: HashSet<String> = kept.iter().map(|message| text_of(&message["content"])).collect();
    assert!(seen.contains("hello") && !seen.contains("be kind"), "{seen:?}");
}
