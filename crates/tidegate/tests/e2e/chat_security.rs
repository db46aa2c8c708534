//! What the chat does with those who mean it no good: forged proofs, other people's conversations, guesses
//! of passwords, frames that are none, and connections that only wait. The texts that try to become markup
//! are in `tests/browser/scenarios/chat_markup.mjs`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::chat_client::{
    Arrival, PASSWORD, SECRET, Socket, add_agent, call, find, identity, messages, now_seconds, ok,
    shared_settings, start, start_conversation, text_of, visit, visit_as, widen_limits,
};
use crate::process::Tidegate;
use crate::wait::until;

/// One instance with the built-in store.
fn served() -> (tempfile::TempDir, Tidegate) {
    let folder = tempfile::tempdir().unwrap();
    let gate = start("embedded:{data}", &shared_settings(folder.path()));
    (folder, gate)
}

fn code_of(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[test]
fn chat_identities_cannot_be_forged() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let (base, at) = (&gate.base, now_seconds());
    let open =
        |proof: Value| call(base, "", "POST /api/v1/widget/sessions", json!({ "identity": proof }));
    let good = identity("42", "eva@example.org", at, SECRET);
    let (status, opened) = open(good.clone());
    assert_eq!((status, &opened["visitor"]["id"]), (200, &json!("v~42")));
    let token = text_of(&opened["token"]);
    start_conversation(base, &token, "secret");
    let with = |field: &str, value: Value| {
        let mut proof = good.clone();
        proof[field] = value;
        proof
    };
    let hmac = text_of(&good["hmac"]);
    let flipped = if hmac.starts_with('0') { "1" } else { "0" };
    let forged = [
        identity("42", "eva@example.org", at, "another secret"),
        identity("42", "eva@example.org", at, ""),
        identity("42", "eva@example.org", at - 301, SECRET),
        identity("42", "eva@example.org", at + 302, SECRET),
        with("user_id", json!("43")),
        with("user_id", json!("42 ")),
        with("user_id", json!("42\neva@example.org")),
        with("user_id", json!("")),
        with("email", json!("eve@example.org")),
        with("email", Value::Null),
        with("at", json!(at + 1)),
        with("at", json!(i64::MIN)),
        with("at", json!(i64::MAX)),
        with("at", json!(0)),
        with("hmac", json!("")),
        with("hmac", json!("0")),
        with("hmac", json!("zz")),
        with("hmac", json!("0".repeat(64))),
        with("hmac", json!(hmac[..32])),
        with("hmac", json!(format!("{hmac}00"))),
        with("hmac", json!(format!("{flipped}{}", &hmac[1..]))),
        with("hmac", json!(hmac.repeat(100))),
    ];
    for proof in forged {
        let (status, answer) = open(proof.clone());
        assert_eq!((status, code_of(&answer)), (403, "BAD_IDENTITY"), "{proof}: {answer}");
    }
    // What is no proof at all is no request.
    for proof in [json!("42"), json!({ "user_id": "42" }), with("at", json!("now"))] {
        assert_eq!(open(proof.clone()).0, 400, "{proof}");
    }
    // An unverified visitor who claims the id or the address sees nothing of it.
    for claim in [
        json!({ "email": "eva@example.org" }),
        json!({ "name": "v~42", "device_id": "v~42", "email": "eva@example.org" }),
    ] {
        let claimed = ok(base, "", "POST /api/v1/widget/sessions", claim);
        assert_eq!(claimed["visitor"]["verified"], false);
        assert_eq!(claimed["conversations"], json!([]));
    }
    assert_eq!(open(good).0, 200, "the right one still opens");
}

#[test]
fn chat_tickets_and_tokens_cannot_be_forged() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let base = &gate.base;
    let anna = add_agent(&gate, "anna", "agent", 5);
    let eva = visit_as(base, "eva");
    let ticket_of = |path: &str, token: &str| {
        text_of(&ok(base, token, &format!("POST {path}"), Value::Null)["ticket"])
    };
    let (widget, desk) = ("/api/v1/widget/ws", "/api/v1/ws");
    let (widget_ticket, desk_ticket) = ("/api/v1/widget/ws-ticket", "/api/v1/ws-ticket");
    let open = |path: &str, ticket: &str| {
        Socket::open_with(base, &format!("{path}?ticket={ticket}"), &[]).map(drop)
    };
    let refused = Err(Some(401));
    for forged in ["", "0", &"0".repeat(48), &"f".repeat(4_000), "..%2F..", "%00"] {
        assert_eq!(open(widget, forged), refused, "{forged}");
        assert_eq!(open(desk, forged), refused, "{forged}");
    }
    // A ticket is for its kind, and works once.
    assert_eq!(open(desk, &ticket_of(widget_ticket, &eva)), refused);
    assert_eq!(open(widget, &ticket_of(desk_ticket, &anna.token)), refused);
    let ticket = ticket_of(widget_ticket, &eva);
    assert_eq!(open(widget, &ticket), Ok(()));
    assert_eq!(open(widget, &ticket), refused, "once");
    // One that was tried at the wrong door is used up, too.
    let ticket = ticket_of(widget_ticket, &eva);
    assert_eq!((open(desk, &ticket), open(widget, &ticket)), (refused, refused));
    // Without any credential, with another's, with one that was changed.
    let with = |path: &str, token: &str| {
        let headers = [("authorization", format!("Bearer {token}"))];
        Socket::open_with(base, path, &headers).map(drop)
    };
    assert_eq!(Socket::open_with(base, widget, &[]).map(drop), refused);
    assert_eq!(with(widget, &anna.token), refused);
    assert_eq!(with(desk, &eva), refused);
    let mut changed = eva.clone().into_bytes();
    let last = changed.len() - 1;
    changed[last] = if changed[last] == b'0' { b'1' } else { b'0' };
    assert_eq!(with(widget, &String::from_utf8(changed).unwrap()), refused);
    // A logout ends the sockets of the session, and the ticket that was made before it.
    let mut socket = Socket::open(base, widget, &eva, None).unwrap();
    socket.until(|frame| frame["t"] == "ready");
    let early = ticket_of(widget_ticket, &eva);
    ok(base, &eva, "DELETE /api/v1/widget/session", Value::Null);
    assert_eq!(socket.close_code(), 4401);
    let path = format!("{widget}?ticket={early}");
    if let Ok(mut late) = Socket::open_with(base, &path, &[]) {
        late.send(&json!({ "t": "hello" }));
        assert_eq!(late.close_code(), 4401);
    }
}

#[test]
fn chat_of_another_visitor_does_not_exist_by_any_route() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let base = &gate.base;
    let (eva, eve) = (visit_as(base, "eva"), visit(base));
    let id = start_conversation(base, &eva, "secret");
    let own = start_conversation(base, &eve, "mine");
    let path = format!("/api/v1/widget/conversations/{id}/messages");
    let kept = messages(base, &eva, &path, 0);
    let message = text_of(&kept[0]["id"]);
    // Every route of the document with an id of a conversation, so that a new one is tried, too.
    let document = gate.json("/api/openapi.json");
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        if !path.starts_with("/api/v1/widget/") || !path.contains("{id}") {
            continue;
        }
        for method in ["get", "post", "put", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let body = match operation["operationId"].as_str().unwrap() {
                "send_own_message" | "edit_own_message" => json!({ "content": "x" }),
                "mark_own_read" => json!({ "seq": 1 }),
                "show_own_typing" => json!({ "on": true }),
                "rate_conversation" => json!({ "score": 1 }),
                _ if operation.get("requestBody").is_none() => Value::Null,
                other => panic!("a body for {other} is missing in this test"),
            };
            let what = |id: &str| {
                let path = path.replace("{id}", id).replace("{message_id}", &message);
                format!("{} {path}", method.to_uppercase())
            };
            // Exactly what an id gets that nobody has.
            let none = call(base, &eve, &what("cnv_00000000000000000000000000"), body.clone());
            let there = call(base, &eve, &what(&id), body.clone());
            assert_eq!((there.0, code_of(&there.1)), (404, "NOT_FOUND"), "{}", what(&id));
            assert_eq!(there.1["error"]["message"], none.1["error"]["message"], "{}", what(&id));
            assert_eq!(none.0, 404);
            assert_eq!(call(base, "", &what(&id), body).0, 401);
            tried += 1;
        }
    }
    assert!(tried >= 9, "{tried} routes were tried");
    // The same over a socket; and nothing of it is told.
    let mut socket = Socket::open(base, "/api/v1/widget/ws", &eve, None).unwrap();
    socket.until(|frame| frame["t"] == "ready");
    for frame in [
        json!({ "t": "send", "conversation_id": id, "content": "x" }),
        json!({ "t": "read", "conversation_id": id, "seq": 1 }),
        json!({ "t": "typing", "conversation_id": id, "on": true }),
    ] {
        let mut frame = frame;
        frame["ref"] = json!("r");
        socket.send(&frame);
        let answer = socket.until(|answer| answer["ref"] == "r");
        assert_eq!((&answer["t"], code_of(&answer)), (&json!("nack"), "NOT_FOUND"), "{frame}");
    }
    for frame in [
        json!({ "t": "view", "ref": "v", "conversation_id": id }),
        json!({ "t": "presence", "ref": "v", "status": "online" }),
    ] {
        socket.send(&frame);
        let answer = socket.until(|answer| answer["ref"] == "v");
        assert_eq!((&answer["t"], code_of(&answer)), (&json!("nack"), "NOT_ALLOWED"), "{frame}");
    }
    ok(base, &eva, &format!("POST {path}"), json!({ "content": "still secret" }));
    ok(
        base,
        &eve,
        &format!("POST /api/v1/widget/conversations/{own}/messages"),
        json!({ "content": "after it" }),
    );
    let told = socket.until(|frame| frame["type"] == "message.created");
    assert_eq!(told["data"]["message"]["content"], "after it");
    // A file belongs to who uploaded it until it is sent.
    let file = upload(base, &eva, "a.txt", b"secret").1;
    let stolen = json!({ "content": "x", "attachments": [file["id"]] });
    let what = format!("POST /api/v1/widget/conversations/{own}/messages");
    let (status, answer) = call(base, &eve, &what, stolen);
    assert_eq!((status, code_of(&answer)), (404, "NOT_FOUND"), "{answer}");
    // Agents' routes are not for visitors at all.
    for (path, item) in document["paths"].as_object().unwrap() {
        let is_agents =
            ["/api/v1/conversations", "/api/v1/agents", "/api/v1/visitors", "/api/v1/waiting"]
                .iter()
                .any(|start| path.starts_with(start));
        if !is_agents || item.get("get").is_none() {
            continue;
        }
        let path = path
            .replace("{id}", &id)
            .replace("{agent_id}", "agt_x")
            .replace("{visitor_id}", "v~eva");
        assert_eq!(call(base, &eve, &format!("GET {path}"), Value::Null).0, 401, "{path}");
    }
    assert_eq!(messages(base, &eva, &path, 0).len(), 2);
}

/// Sends a file; answers status and body.
fn upload(base: &str, token: &str, name: &str, bytes: &[u8]) -> (u16, Value) {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent
        .post(format!("{base}/api/v1/widget/files?name={name}"))
        .header("authorization", format!("Bearer {token}"))
        .content_type("image/png")
        .send(bytes)
        .unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
}

#[test]
fn chat_webhooks_connect_to_no_address_of_this_network() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connected = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connected);
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let admin = gate.token();
    let mut accepted = Vec::new();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0.0.0.0",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "[fd00::1]",
        "localhost",
        "localhost.",
        "LOCALHOST",
    ] {
        let hook = json!({ "name": host, "url": format!("http://{host}:{port}/hook") });
        let (status, answer) = call(&gate.base, &admin, "POST /api/v1/webhooks", hook);
        match status {
            201 => accepted.push((host, text_of(&answer["webhook"]["id"]))),
            400 => assert_eq!(answer["error"]["details"]["field"], "url", "{host}: {answer}"),
            _ => panic!("{host}: {status} {answer}"),
        }
    }
    // What is no address by its spelling is a name, and is judged by its addresses when something is sent.
    let names: Vec<&str> = accepted.iter().map(|(host, _)| *host).collect();
    println!("taken as names: {names:?}");
    assert!(names.iter().all(|host| !host.contains(['[', ':'])), "{names:?}");
    assert!(names.contains(&"localhost"));
    let eva = visit_as(&gate.base, "eva");
    start_conversation(&gate.base, &eva, "hello");
    // A name that this machine cannot look up is tried again for hours; the others are given up at once.
    for (host, id) in accepted.iter().filter(|(host, _)| !host.ends_with('.')) {
        let what = format!("GET /api/v1/webhooks/{id}/dead-letters");
        until(
            "the delivery is given up",
            Duration::from_secs(60),
            || ok(&gate.base, &admin, &what, Value::Null).to_string(),
            |text| text.contains("private or reserved"),
        );
        println!("{host}: given up");
    }
    assert_eq!(connected.load(Ordering::SeqCst), 0);
}

/// The code of a second factor at a time.
fn totp(secret: &str, at: i64) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut bits, mut held, mut key) = (0_u32, 0_u32, Vec::new());
    for letter in secret.bytes() {
        let value = alphabet.iter().position(|known| *known == letter).unwrap();
        bits = bits << 5 | u32::try_from(value).unwrap();
        held += 5;
        if held >= 8 {
            held -= 8;
            key.push(u8::try_from(bits >> held & 0xff).unwrap());
        }
    }
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key);
    let tag = ring::hmac::sign(&key, &(at / 30).to_be_bytes());
    let tag = tag.as_ref();
    let offset = usize::from(tag[19] & 0xf);
    let word = u32::from_be_bytes(tag[offset..offset + 4].try_into().unwrap()) & 0x7fff_ffff;
    format!("{:06}", word % 1_000_000)
}

#[test]
fn chat_passwords_and_codes_cannot_be_guessed() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = shared_settings(folder.path());
    let gates = [start(&redis.url(), &settings), start(&redis.url(), &settings)];
    // The default of the address is lower than that of the account and would hide it.
    widen_limits(&[&gates[0], &gates[1]]);
    let anna = add_agent(&gates[0], "anna", "agent", 5);
    let log_in = |number: usize, email: &str, password: &str, code: Option<&str>| {
        let body = json!({ "email": email, "password": password, "code": code });
        call(&gates[number % 2].base, "", "POST /api/v1/agents/login", body)
    };
    let guess = |email: &str, password: &str, code: Option<&str>, refusal: &str| {
        let mut wrong = 0;
        for n in 0..40 {
            let (status, answer) = log_in(n, email, password, code);
            match status {
                401 => assert_eq!(code_of(&answer), refusal, "{answer}"),
                429 => continue,
                _ => panic!("{status} {answer}"),
            }
            wrong += 1;
        }
        wrong
    };

    // The second factor: a code works once, and is guessed no more often than a password.
    let setup = ok(&gates[0].base, &anna.token, "POST /api/v1/agents/me/totp", Value::Null);
    let secret = text_of(&setup["secret"]);
    let now = now_seconds();
    let confirm = json!({ "code": totp(&secret, now - 30) });
    ok(&gates[0].base, &anna.token, "POST /api/v1/agents/me/totp/confirm", confirm);
    let (status, answer) = log_in(0, &anna.email, PASSWORD, None);
    assert_eq!((status, code_of(&answer)), (401, "CODE_REQUIRED"));
    let code = totp(&secret, now_seconds());
    assert_eq!(log_in(1, &anna.email, PASSWORD, Some(&code)).0, 200);
    let (status, answer) = log_in(0, &anna.email, PASSWORD, Some(&code));
    assert_eq!((status, code_of(&answer)), (401, "CODE_REQUIRED"), "a code works once");
    // Neither the password alone nor a wrong one says that the code would have been right.
    let (status, answer) = log_in(0, &anna.email, "wrong password!", Some(&code));
    assert_eq!((status, code_of(&answer)), (401, "BAD_CREDENTIALS"));
    let wrong = guess(&anna.email, PASSWORD, Some("000000"), "CODE_REQUIRED");
    assert!(wrong <= 10, "{wrong} codes were tried");
    // Even the right one has to wait now, on both instances, and is told how long.
    let next = totp(&secret, now_seconds() + 30);
    for n in 0..2 {
        let (status, answer) = log_in(n, &anna.email, PASSWORD, Some(&next));
        assert_eq!(status, 429, "{answer}");
    }

    // A password, and one of an account that does not exist: the same answers.
    let tom = add_agent(&gates[0], "tom", "agent", 5);
    for email in [tom.email.as_str(), "nobody@example.org"] {
        let wrong = guess(email, "guess and guess again", None, "BAD_CREDENTIALS");
        assert!((1..=10).contains(&wrong), "{wrong} guesses of {email}");
    }
    assert_eq!(log_in(0, &tom.email, PASSWORD, None).0, 429);
    // Another account is not affected, and the session that is open goes on.
    ok(&gates[1].base, &tom.token, "GET /api/v1/agents/me", Value::Null);
    add_agent(&gates[1], "uwe", "agent", 5);

    // By default an address has five attempts, whatever the accounts are.
    let fresh = served();
    let mut allowed = 0;
    for n in 0..20 {
        let body = json!({ "email": format!("a{n}@example.org"), "password": "guess and guess" });
        let (status, answer) = call(&fresh.1.base, "", "POST /api/v1/agents/login", body);
        allowed += usize::from(status == 401);
        assert!(status == 401 || status == 429, "{status} {answer}");
    }
    assert_eq!(allowed, 5);
}

/// A table of what no client should send, over a socket that is open.
#[test]
fn chat_bad_frames_get_their_code_store_nothing_and_disturb_nobody() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let base = &gate.base;
    let anna = add_agent(&gate, "anna", "agent", 5);
    let mut console = Socket::open(base, "/api/v1/ws", &anna.token, None).unwrap();
    console.until(|frame| frame["t"] == "ready");
    let (eva, eve) = (visit_as(base, "eva"), visit(base));
    let id = start_conversation(base, &eva, "first");
    let others = start_conversation(base, &eve, "of another");
    let mut neighbour = Socket::open(base, "/api/v1/widget/ws", &eve, None).unwrap();
    neighbour.until(|frame| frame["t"] == "ready");
    let path = format!("/api/v1/widget/conversations/{id}/messages");
    let connect = || {
        let mut socket = Socket::open(base, "/api/v1/widget/ws", &eva, None).unwrap();
        socket.until(|frame| frame["t"] == "ready");
        socket
    };
    let text = |text: &str| Message::text(text.to_owned());
    let long =
        format!(r#"{{"t":"send","conversation_id":"{id}","content":"{}"}}"#, "x".repeat(70_000));

    // Frames that end the socket.
    let table = [
        ("not JSON", text("nonsense"), 4400),
        ("empty", text(""), 4400),
        ("a list", text("[]"), 4400),
        ("no type", text("{}"), 4400),
        ("an unknown type", text(r#"{"t":"unknown"}"#), 4400),
        ("a type that is none", text(r#"{"t":7}"#), 4400),
        ("hello twice", text(r#"{"t":"hello"}"#), 4400),
        ("a field is missing", text(r#"{"t":"read","seq":1}"#), 4400),
        (
            "a number that is none",
            text(&json!({ "t": "read", "conversation_id": id, "seq": "1" }).to_string()),
            4400,
        ),
        (
            "a number that is too large",
            text(&format!(r#"{{"t":"read","conversation_id":"{id}","seq":99999999999999999999}}"#)),
            4400,
        ),
        (
            "content that is no text",
            text(&json!({ "t": "send", "conversation_id": id, "content": { "a": 1 } }).to_string()),
            4400,
        ),
        ("deeply nested", text(&"[".repeat(20_000)), 4400),
        ("binary", Message::binary(vec![1, 2, 3]), 4400),
        ("too long", text(&long), 1009),
    ];
    for (what, message, code) in table {
        let mut socket = connect();
        assert!(socket.send_raw(message), "{what}");
        assert_eq!(socket.close_code(), code, "{what}");
    }
    // Bytes that are no frames: not UTF-8, and a reserved bit.
    for (what, bytes, code) in [
        ("not UTF-8", vec![0x81, 0x82, 0, 0, 0, 0, 0xff, 0xfe], 1007),
        ("a reserved bit", vec![0xf1, 0x80, 0, 0, 0, 0], 1002),
        ("not masked", vec![0x81, 0x02, b'{', b'}'], 1002),
    ] {
        assert_eq!(raw_close_code(base, &eva, &bytes), Some(code), "{what}");
    }
    // First frames that are none.
    for (what, first) in [
        ("another than hello", json!({ "t": "active" })),
        ("a place that is none", json!({ "t": "hello", "resume": "yesterday" })),
    ] {
        let headers = [("authorization", format!("Bearer {eva}"))];
        let mut socket = Socket::open_with(base, "/api/v1/widget/ws", &headers).unwrap();
        socket.send(&first);
        assert_eq!(socket.close_code(), 4400, "{what}");
    }
    // A place in the future is none to resume from: the client fetches anew.
    let mut ahead =
        Socket::open(base, "/api/v1/widget/ws", &eva, Some("99999999999999-0")).unwrap();
    assert_eq!(ahead.until(|frame| frame["t"] == "ready")["resumed"], false);

    // Frames that are refused, on a socket that stays.
    let mut socket = connect();
    let send = |content: &str, client_id: Option<&str>| {
        let mut frame = json!({ "t": "send", "conversation_id": id, "content": content });
        if let Some(client_id) = client_id {
            frame["client_id"] = json!(client_id);
        }
        frame
    };
    let table = [
        (
            "no membership",
            json!({ "t": "send", "conversation_id": others, "content": "x" }),
            404,
            "NOT_FOUND",
        ),
        (
            "no such conversation",
            json!({ "t": "send", "conversation_id": "cnv_none", "content": "x" }),
            404,
            "NOT_FOUND",
        ),
        (
            "an id that is none",
            json!({ "t": "send", "conversation_id": "../x", "content": "x" }),
            404,
            "NOT_FOUND",
        ),
        (
            "a sequence from the future",
            json!({ "t": "read", "conversation_id": id, "seq": 1_000 }),
            400,
            "INVALID_REQUEST",
        ),
        (
            "a negative sequence",
            json!({ "t": "read", "conversation_id": id, "seq": -1 }),
            400,
            "INVALID_REQUEST",
        ),
        ("4,001 characters", send(&"ä".repeat(4_001), None), 400, "INVALID_REQUEST"),
        ("nothing", send("", None), 400, "INVALID_REQUEST"),
        ("only spaces", send(" \n\t ", None), 400, "INVALID_REQUEST"),
        ("NUL", send("a\0b", None), 400, "INVALID_REQUEST"),
        ("an empty client_id", send("x", Some("")), 400, "INVALID_REQUEST"),
        ("a client_id with a space", send("x", Some("a b")), 400, "INVALID_REQUEST"),
        ("a client_id of 65", send("x", Some(&"a".repeat(65))), 400, "INVALID_REQUEST"),
        ("a client_id with markup", send("x", Some("<b>")), 400, "INVALID_REQUEST"),
        (
            "a note of a visitor",
            json!({ "t": "send", "conversation_id": id, "content": "x", "note": true }),
            403,
            "NOT_ALLOWED",
        ),
        (
            "a file that nobody sent",
            json!({ "t": "send", "conversation_id": id, "content": "x", "attachments": ["file_0"] }),
            404,
            "NOT_FOUND",
        ),
        (
            "eleven files",
            json!({ "t": "send", "conversation_id": id, "content": "x", "attachments": vec!["file_0"; 11] }),
            400,
            "INVALID_REQUEST",
        ),
        (
            "a status of a visitor",
            json!({ "t": "presence", "status": "online" }),
            403,
            "NOT_ALLOWED",
        ),
    ];
    for (number, (what, mut frame, status, code)) in table.into_iter().enumerate() {
        frame["ref"] = json!(number.to_string());
        assert!(socket.send(&frame), "{what}");
        let answer = {
            let number = number.to_string();
            socket.until(|answer| answer["ref"] == number.as_str())
        };
        let error = &answer["error"];
        assert_eq!(
            (&answer["t"], &error["status"]),
            (&json!("nack"), &json!(status)),
            "{what}: {answer}"
        );
        assert_eq!(code_of(&answer), code, "{what}: {answer}");
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 5), "{what}: {answer}");
    }

    // Files: named as an image, or one that would fill the memory of whoever looks at it.
    let png = |width: u32, height: u32| {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        bytes
    };
    let (status, lie) = upload(base, &eva, "a.png", b"<script>alert(1)</script>");
    assert_eq!(
        (status, &lie["is_image"], &lie["mime"] == "image/png"),
        (201, &json!(false), false)
    );
    let (status, answer) = upload(base, &eva, "bomb.png", &png(60_000, 60_000));
    assert_eq!((status, code_of(&answer)), (400, "INVALID_REQUEST"), "{answer}");
    let (status, answer) = upload(base, &eva, "empty.png", b"");
    assert_eq!((status, code_of(&answer)), (400, "INVALID_REQUEST"), "{answer}");

    // Pages of other sites.
    let headers =
        [("authorization", format!("Bearer {eva}")), ("origin", "https://evil.example".to_owned())];
    let opened = Socket::open_with(base, "/api/v1/widget/ws", &headers);
    assert_eq!(opened.map(drop), Err(Some(403)));

    // A flood ends its own socket.
    let mut flood = connect();
    for _ in 0..220 {
        if !flood.send(&json!({ "t": "active" })) {
            break;
        }
    }
    assert_eq!(flood.close_code(), 4429);

    // Nothing was stored, and 4,000 characters are. The socket that was refused so often goes on.
    assert_eq!(messages(base, &eva, &path, 0).len(), 1);
    let most = "ä".repeat(4_000);
    let mut good = send(&most, Some("c-1"));
    good["ref"] = json!("good");
    socket.send(&good);
    let answer = socket.until(|answer| answer["ref"] == "good");
    assert_eq!((&answer["t"], &answer["message"]["seq"]), (&json!("ack"), &json!(2)));
    assert_eq!(messages(base, &eva, &path, 0).len(), 2);
    // Nobody else's connection was closed, and events still come.
    console.until(|frame| frame["data"]["message"]["content"] == most.as_str());
    let what = format!("POST /api/v1/conversations/{others}/messages");
    ok(base, &anna.token, &what, json!({ "content": "for the neighbour" }));
    neighbour.until(|frame| frame["data"]["message"]["content"] == "for the neighbour");
    let what = format!("/api/v1/widget/conversations/{others}/messages");
    let kept = messages(base, &eve, &what, 0);
    let own = kept.iter().filter(|message| message["sender_role"] == "user");
    assert_eq!(own.count(), 1, "{kept:?}");
}

/// Opens a socket by hand, greets, sends these bytes, and answers the code of the server's close frame.
fn raw_close_code(base: &str, token: &str, bytes: &[u8]) -> Option<u16> {
    let address = base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(upgrade_request(address, token).as_bytes()).unwrap();
    stream.write_all(&masked_hello()).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    let mut part = [0; 4_096];
    while let Ok(read @ 1..) = stream.read(&mut part) {
        all.extend_from_slice(&part[..read]);
    }
    let head = find(&all, b"\r\n\r\n")? + 4;
    close_code(&all[head..])
}

/// The code of the close frame among the frames of a server.
fn close_code(mut bytes: &[u8]) -> Option<u16> {
    while bytes.len() >= 4 {
        let (head, length) = match bytes[1] & 0x7f {
            126 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
            short => (2, usize::from(short)),
        };
        if bytes[0] & 0xf == 8 {
            return Some(u16::from_be_bytes([bytes[2], bytes[3]]));
        }
        bytes = bytes.get(head + length..)?;
    }
    None
}

fn upgrade_request(address: &str, token: &str) -> String {
    format!(
        "GET /api/v1/widget/ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: desk.v1\r\nauthorization: Bearer {token}\r\n\r\n"
    )
}

/// The frame `{"t":"hello"}`, masked with zeros.
fn masked_hello() -> Vec<u8> {
    let text = br#"{"t":"hello"}"#;
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
    frame.extend_from_slice(text);
    frame
}

/// Values that no client means, in every place where a number or a cursor is expected.
#[test]
fn chat_hostile_values_are_refused_and_break_nothing() {
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let base = &gate.base;
    let anna = add_agent(&gate, "anna", "supervisor", 5);
    let eva = visit(base);
    let id = start_conversation(base, &eva, "hello");
    let numbers = [
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "1e9",
        "99999999999999999999",
        "%00",
        "x",
    ];
    let mut calls = Vec::new();
    for number in numbers {
        for field in ["after_seq", "before_seq", "limit", "cursor"] {
            calls.push((
                &eva,
                format!("/api/v1/widget/conversations/{id}/messages?{field}={number}"),
            ));
            calls.push((
                &anna.token,
                format!("/api/v1/conversations/{id}/messages?{field}={number}"),
            ));
        }
        for field in
            ["limit", "cursor", "q", "tag", "view", "status", "sort", "assignee", "team", "visitor"]
        {
            calls.push((&anna.token, format!("/api/v1/conversations?{field}={number}")));
        }
        calls.push((&anna.token, format!("/api/v1/waiting?limit={number}")));
        calls.push((&anna.token, format!("/api/v1/waiting?cursor={number}")));
        calls.push((&eva, format!("/api/v1/widget/conversations/{number}")));
        calls.push((&eva, format!("/api/v1/widget/files/{number}")));
    }
    // Words of the search's own language, in SQLite and elsewhere.
    for words in [
        "%22",
        "%27",
        "AND",
        "NEAR(",
        "a*",
        "-",
        "%28%28",
        "col:x",
        "%5E",
        "%C3%A4%20OR",
        "*",
        "%25",
    ] {
        calls.push((&anna.token, format!("/api/v1/conversations?text={words}")));
    }
    for (token, path) in calls {
        let (status, answer) = call(base, token, &format!("GET {path}"), Value::Null);
        assert!(status < 500, "{path}: {status} {answer}");
    }
    for (what, body) in [
        (format!("POST /api/v1/widget/conversations/{id}/rating"), json!({ "score": i64::MAX })),
        (format!("POST /api/v1/widget/conversations/{id}/read"), json!({ "seq": i64::MIN })),
        ("PATCH /api/v1/widget/session".to_owned(), json!({ "name": "a\0b" })),
        ("PATCH /api/v1/widget/session".to_owned(), json!({ "name": "a\nb" })),
        ("PATCH /api/v1/widget/session".to_owned(), json!({ "page_url": "x".repeat(3_000) })),
        ("PATCH /api/v1/widget/session".to_owned(), json!({ "email": "no address" })),
    ] {
        let (status, answer) = call(base, &eva, &what, body.clone());
        assert_eq!(status, 400, "{what} {body}: {answer}");
    }
    assert_eq!(
        messages(base, &eva, &format!("/api/v1/widget/conversations/{id}/messages"), 0).len(),
        1
    );
}

/// Most sockets that wait.
const IDLE_SOCKETS: usize = 10_000;

/// Memory that a process has in use, in bytes.
fn memory_of(gate: &Tidegate) -> usize {
    let pid = gate.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1_024
}

#[test]
fn chat_ten_thousand_sockets_that_send_nothing_are_closed_and_cost_little() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The server inherits the limit.
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).unwrap();
    let files = usize::try_from(hard.unwrap_or(1 << 20)).unwrap();
    let count = IDLE_SOCKETS.min(files.saturating_sub(500));
    let (_folder, gate) = served();
    widen_limits(&[&gate]);
    let base = &gate.base;
    let anna = add_agent(&gate, "anna", "agent", 5);
    let tokens: Vec<String> = (0..100).map(|n| visit_as(base, &format!("v{n}"))).collect();
    let eva = visit_as(base, "eva");
    let id = start_conversation(base, &eva, "hello");
    let before = memory_of(&gate);
    let address = base.strip_prefix("http://").unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // One in ten does not even greet.
    let begin = Instant::now();
    let sockets: Vec<(bool, tokio::net::TcpStream)> = runtime.block_on(async {
        let mut open = Vec::with_capacity(count);
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..count {
            while tasks.len() >= 100 {
                open.push(tasks.join_next().await.unwrap().unwrap());
            }
            let (address, token) = (address.clone(), tokens[n % tokens.len()].clone());
            tasks.spawn(async move {
                let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
                let greets = n % 10 != 0;
                let mut request = upgrade_request(&address, &token).into_bytes();
                if greets {
                    request.extend(masked_hello());
                }
                stream.write_all(&request).await.unwrap();
                let mut head = [0; 12];
                stream.read_exact(&mut head).await.unwrap();
                assert_eq!(&head, b"HTTP/1.1 101");
                (greets, stream)
            });
        }
        while let Some(done) = tasks.join_next().await {
            open.push(done.unwrap());
        }
        open
    });
    let opened = begin.elapsed();
    let each = memory_of(&gate).saturating_sub(before) / count;
    println!("{count} sockets in {opened:?}, {each} bytes each");
    // What the kernel does not count and the allocator keeps is in it; a socket of a library's default has
    // 128 KiB for reading alone.
    assert!(each < 24 * 1_024, "{each} bytes of a socket");

    // Meanwhile the server answers, and a chat goes on.
    let mut console = Socket::open(base, "/api/v1/ws", &anna.token, None).unwrap();
    console.until(|frame| frame["t"] == "ready");
    let mut widget = Socket::open(base, "/api/v1/widget/ws", &eva, None).unwrap();
    widget.until(|frame| frame["t"] == "ready");
    let mut slowest = Duration::ZERO;
    for n in 0..50 {
        let start = Instant::now();
        let content = format!("reply {n}");
        let what = format!("POST /api/v1/conversations/{id}/messages");
        ok(base, &anna.token, &what, json!({ "content": content }));
        widget.until(|frame| frame["data"]["message"]["content"] == content.as_str());
        slowest = slowest.max(start.elapsed());
    }
    println!("slowest of 50 replies: {slowest:?}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");

    // Those who did not greet are closed after 10 s, those who answer no ping after two of them.
    let codes = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (greets, mut stream) in sockets {
            tasks.spawn(async move {
                let mut all = Vec::new();
                let read = stream.read_to_end(&mut all);
                let read = tokio::time::timeout(Duration::from_secs(120), read).await;
                assert!(read.is_ok(), "a socket stays open");
                let head = find(&all, b"\r\n\r\n").unwrap() + 4;
                (greets, close_code(&all[head..]))
            });
        }
        tasks.join_all().await
    });
    let of = |greets: bool, code: u16| {
        codes.iter().filter(|found| **found == (greets, Some(code))).count()
    };
    let silent = codes.iter().filter(|(greets, _)| !greets).count();
    assert_eq!(of(false, 4400), silent);
    assert_eq!(of(true, 4408), count - silent);
    let arrival = widget.next(Duration::from_millis(100));
    assert!(!matches!(arrival, Arrival::Closed(_)), "{arrival:?}");
    println!(
        "closed after {:?}, {} bytes more than before",
        begin.elapsed(),
        memory_of(&gate).saturating_sub(before)
    );
}
