//! E-mail and web push of the desk: a real SMTP server (aiosmtpd) and a push service that decrypts with
//! `http_ece`, as strangers see what is sent.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::gates::send;
use crate::process::{Tidegate, text};

const PASSWORD: &str = "correct horse battery";

/// A program that prints lines of JSON, ended on drop with its standard input.
struct Receiving {
    child: Child,
    lines: Receiver<Value>,
    /// Its first line.
    hello: Value,
}

impl Receiving {
    fn start(command: &mut Command) -> Receiving {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, received) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody may listen any more.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let hello = received.recv_timeout(Duration::from_secs(60)).expect("it starts");
        Receiving { child, lines: received, hello }
    }

    fn port(&self) -> u64 {
        self.hello["port"].as_u64().unwrap()
    }

    /// The next thing it was given.
    #[track_caller]
    fn next(&self, gate: &Tidegate) -> Value {
        match self.lines.recv_timeout(Duration::from_secs(60)) {
            Ok(value) => value,
            Err(error) => panic!("nothing came: {error}\n{}", gate.log()),
        }
    }

    /// Nothing comes for this long.
    #[track_caller]
    fn nothing_within(&self, time: Duration) {
        match self.lines.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mail")
}

/// The SMTP server, on a port or any.
fn smtp(port: u64) -> Receiving {
    let has = |python: &&str| {
        let mut probe = Command::new(python);
        let probe = probe.args(["-c", "import aiosmtpd"]).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(has);
    let python = python.expect("./test installs python3-aiosmtpd");
    Receiving::start(Command::new(python).arg(folder().join("smtp.py")).arg(port.to_string()))
}

fn push_service() -> Receiving {
    assert!(folder().join("node_modules").exists(), "./test installs the packages of tests/mail");
    Receiving::start(Command::new("node").arg("push.mjs").current_dir(folder()))
}

/// Settings of an instance that sends e-mail to this port.
fn settings(port: u64, more: &[&str]) -> Vec<String> {
    let own = [
        "desk.smtp_host=127.0.0.1".to_owned(),
        format!("desk.smtp_port={port}"),
        "desk.smtp_tls=none".to_owned(),
        "desk.smtp_from=Support <support@shop.example>".to_owned(),
        "desk.public_url=https://desk.shop.example".to_owned(),
        "desk.email_delay=1s".to_owned(),
        "desk.limit_timeout=10s".to_owned(),
    ];
    let own = own.into_iter().flat_map(|setting| ["--set".to_owned(), setting]);
    own.chain(more.iter().map(|word| (*word).to_owned())).collect()
}

fn gate(port: u64, more: &[&str]) -> Tidegate {
    let settings = settings(port, more);
    let args: Vec<&str> = settings.iter().map(String::as_str).collect();
    Tidegate::start("embedded:", &args)
}

/// What the doctor says with the same settings.
fn doctor(gate: &Tidegate, port: u64, more: &[&str]) -> String {
    let settings = settings(port, more);
    let args: Vec<&str> = settings.iter().map(String::as_str).collect();
    text(&gate.run(&[["doctor", "--json"].as_slice(), &args].concat()).stdout)
}

const ALLOW: [&str; 2] = ["--set", "webhooks.allowed_networks=127.0.0.0/8"];

#[track_caller]
fn call(gate: &Tidegate, token: &str, what: &str, body: &Value) -> (u16, Value) {
    let (method, path) = what.split_once(' ').unwrap();
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("content-type", "application/json")];
    if !token.is_empty() {
        headers.push(("authorization", bearer.as_str()));
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let got = send(method, &format!("{}{path}", gate.base), &headers, &body);
    (got.status, serde_json::from_str(&got.body).unwrap_or(Value::Null))
}

#[track_caller]
fn ok(gate: &Tidegate, token: &str, what: &str, body: &Value) -> Value {
    let (status, got) = call(gate, token, what, body);
    assert!((200..300).contains(&status), "{what}: {status} {got}");
    got
}

/// Adds an agent and logs in with the secret of an invitation; returns id and token.
fn log_in(
    gate: &Tidegate,
    name: &str,
    invitation: impl FnOnce(&Value) -> String,
) -> (String, String) {
    let email = format!("{name}@example.org");
    let new = json!({ "email": email, "name": name, "role": "supervisor" });
    let added = ok(gate, &gate.token(), "POST /api/v1/agents", &new);
    let accept = json!({ "invitation": invitation(&added), "password": PASSWORD });
    ok(gate, "", "POST /api/v1/agents/accept", &accept);
    let login = json!({ "email": email, "password": PASSWORD });
    let got = ok(gate, "", "POST /api/v1/agents/login", &login);
    let id = added["agent"]["id"].as_str().unwrap().to_owned();
    (id, got["token"].as_str().unwrap().to_owned())
}

fn link_of(added: &Value) -> String {
    added["invitation"].as_str().unwrap().to_owned()
}

/// A visitor with an address who asks something; returns token and conversation.
fn visitor(gate: &Tidegate, email: &str, name: &str) -> (String, String) {
    let who = json!({ "email": email, "name": name, "locale": "en" });
    let session = ok(gate, "", "POST /api/v1/widget/sessions", &who);
    let token = session["token"].as_str().unwrap().to_owned();
    let message = json!({ "message": { "content": "Where is my parcel?" } });
    let started = ok(gate, &token, "POST /api/v1/widget/conversations", &message);
    (token, started["conversation"]["id"].as_str().unwrap().to_owned())
}

fn reply(gate: &Tidegate, agent: &str, id: &str, words: &str, kind: &str) {
    let body = json!({ "content": words, "type": kind });
    ok(gate, agent, &format!("POST /api/v1/conversations/{id}/messages"), &body);
}

fn header<'a>(mail: &'a Value, name: &str) -> &'a str {
    let headers = mail["headers"].as_array().unwrap();
    let mut found = headers.iter().filter(|pair| pair[0] == name);
    let first = found.next().map_or("", |pair| pair[1].as_str().unwrap());
    assert!(found.next().is_none(), "{name} twice: {mail}");
    first
}

/// Waits until the outbox has such a row.
#[track_caller]
fn row(gate: &Tidegate, agent: &str, state: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let page = ok(gate, agent, &format!("GET /api/v1/outbox?state={state}"), &Value::Null);
        if let Some(found) = page["items"].as_array().unwrap().iter().find(|row| wanted(row)) {
            return found.clone();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{page}\n{}", gate.log());
    }
}

#[test]
fn an_invitation_an_answer_and_a_transcript_arrive_by_e_mail() {
    let smtp = smtp(0);
    let gate = gate(smtp.port(), &ALLOW);
    // The invitation comes by e-mail; the link is in the answer as before.
    let (_, agent) = log_in(&gate, "anna", |added| {
        assert_eq!(added["emailed"], true);
        let mail = smtp.next(&gate);
        assert_eq!(mail["to"], json!(["anna@example.org"]));
        let plain = mail["plain"].as_str().unwrap();
        let link =
            plain.split_whitespace().find(|word| word.contains("/desk/invitation/")).unwrap();
        let secret = link.strip_prefix("https://desk.shop.example/desk/invitation/").unwrap();
        assert_eq!(secret, link_of(added));
        secret.to_owned()
    });

    // An answer to a visitor who has left, in one e-mail; a hostile name and text stay text.
    let hostile = "Eva \"><img src=x>, evil@example.net";
    let (own, id) = visitor(&gate, "eva@example.org", hostile);
    reply(&gate, &agent, &id, "It is <script>alert(1)</script> on its way.\n.\nTomorrow.", "text");
    reply(&gate, &agent, &id, "a secret note", "note");
    let mail = smtp.next(&gate);
    assert_eq!(
        (&mail["from"], &mail["to"]),
        (&json!("support@shop.example"), &json!(["eva@example.org"]))
    );
    assert_eq!(mail["kind"], "multipart/alternative");
    assert_eq!(header(&mail, "auto-submitted"), "auto-generated");
    assert_eq!(header(&mail, "from"), "Support <support@shop.example>");
    assert_eq!(header(&mail, "reply-to"), "Support <support@shop.example>");
    assert_eq!(header(&mail, "message-id"), format!("<{id}.2@shop.example>"));
    assert_eq!(header(&mail, "references"), format!("<{id}@shop.example>"));
    assert!(header(&mail, "to").ends_with("<eva@example.org>"), "{mail}");
    assert_eq!((header(&mail, "bcc"), header(&mail, "cc")), ("", ""));
    let (plain, html) = (mail["plain"].as_str().unwrap(), mail["html"].as_str().unwrap());
    assert!(
        plain.contains("It is <script>alert(1)</script> on its way.")
            && plain.contains("Tomorrow.")
    );
    assert!(plain.lines().any(|line| line.trim() == "."), "a line of one dot: {plain}");
    assert!(!html.contains("<script") && !html.contains("<img"), "{html}");
    assert!(!plain.contains("secret note") && !html.contains("secret note"));

    // The link leads back, as this visitor, and only as long as nobody changed a letter.
    let link = plain.split_whitespace().find(|word| word.contains("#return=")).unwrap();
    let token = link.strip_prefix("https://desk.shop.example/chat#return=").unwrap();
    let bad = json!({ "link": format!("{}x", &token[..token.len() - 1]) });
    let (status, refused) = call(&gate, "", "POST /api/v1/widget/return", &bad);
    assert_eq!((status, refused["error"]["code"].as_str()), (403, Some("BAD_LINK")));
    let back = ok(&gate, "", "POST /api/v1/widget/return", &json!({ "link": token }));
    assert_eq!(back["conversation_id"], id);
    let session = back["token"].as_str().unwrap();
    let path = format!("GET /api/v1/widget/conversations/{id}/messages");
    let page = ok(&gate, session, &path, &Value::Null);
    assert_eq!(page["items"].as_array().unwrap().len(), 2, "the note is not there");

    // The transcript, asked for by the visitor; the second time nothing new is sent.
    for _ in 0..2 {
        let asked = format!("POST /api/v1/widget/conversations/{id}/transcript");
        assert_eq!(ok(&gate, &own, &asked, &Value::Null)["email"], "eva@example.org");
    }
    let mail = smtp.next(&gate);
    assert!(header(&mail, "subject").starts_with("Transcript"), "{mail}");
    assert!(mail["plain"].as_str().unwrap().contains("Where is my parcel?"));
    assert!(!mail["plain"].as_str().unwrap().contains("secret note"));
    smtp.nothing_within(Duration::from_secs(3));

    // Read by now: the next answer is mailed alone, or not at all once it is read, too.
    reply(&gate, &agent, &id, "Anything else?", "text");
    let read = format!("POST /api/v1/widget/conversations/{id}/read");
    ok(&gate, session, &read, &json!({ "seq": 4 }));
    smtp.nothing_within(Duration::from_secs(4));

    let told = doctor(&gate, smtp.port(), &ALLOW);
    assert!(told.contains(&format!("127.0.0.1:{} answers", smtp.port())), "{told}");
}

#[test]
fn what_cannot_be_sent_waits_or_is_a_dead_letter_that_can_be_sent_again() {
    let server = smtp(0);
    let gate = gate(server.port(), &ALLOW);
    let (_, agent) = log_in(&gate, "anna", link_of);
    server.next(&gate);
    let (_, refused) = visitor(&gate, "refused@example.org", "Rita");
    reply(&gate, &agent, &refused, "hello", "text");
    let dead = row(&gate, &agent, "dead", |row| row["kind"] == "reply");
    assert_eq!(
        (&dead["to"], &dead["conversation_id"]),
        (&json!("refused@example.org"), &json!(refused))
    );
    assert!(dead["error"].as_str().unwrap().contains("no such user"), "{dead}");
    // Somebody else's e-mails are not held up by it.
    let (_, later) = visitor(&gate, "later@example.org", "Lars");
    reply(&gate, &agent, &later, "hello", "text");
    let waiting = row(&gate, &agent, "waiting", |row| row["error"].is_string());
    assert!(waiting["error"].as_str().unwrap().contains("try later"), "{waiting}");
    let resend = format!("POST /api/v1/outbox/{}/resend", waiting["id"].as_str().unwrap());
    ok(&gate, &agent, &resend, &Value::Null);
    assert_eq!(server.next(&gate)["to"], json!(["later@example.org"]));
    // Removed, it is not sent.
    let id = dead["id"].as_str().unwrap();
    ok(&gate, &agent, &format!("DELETE /api/v1/outbox/{id}"), &Value::Null);
    let (status, _) =
        call(&gate, &agent, &format!("POST /api/v1/outbox/{id}/resend"), &Value::Null);
    assert_eq!(status, 404);
}

#[test]
fn nothing_is_sent_to_a_private_address_or_in_the_clear_unless_it_is_allowed() {
    let server = smtp(0);
    for (more, reason) in [
        (["--set", "desk.push=true"].as_slice(), "private or reserved address"),
        (
            &["--set", "webhooks.allowed_networks=127.0.0.0/8", "--set", "desk.smtp_tls=starttls"],
            "STARTTLS",
        ),
    ] {
        let gate = gate(server.port(), more);
        let (_, agent) = log_in(&gate, "anna", link_of);
        let waiting = row(&gate, &agent, "waiting", |row| row["error"].is_string());
        assert!(waiting["error"].as_str().unwrap().contains(reason), "{waiting}");
        let told = doctor(&gate, server.port(), more);
        assert!(told.contains(reason), "{told}");
    }
    server.nothing_within(Duration::from_secs(2));
}

#[test]
fn an_e_mail_that_waits_survives_kill_9() {
    let kept = tempfile::tempdir().unwrap();
    let archive = format!("desk.archive={}", kept.path().join("desk.sqlite3").display());
    let files = format!("desk.files={}", kept.path().join("files").display());
    let more = ["--set", &archive, "--set", &files, ALLOW[0], ALLOW[1]];
    let port = {
        let server = smtp(0);
        server.port()
    };
    let mut first = gate(port, &more);
    let (_, agent) = log_in(&first, "anna", link_of);
    let (_, id) = visitor(&first, "eva@example.org", "Eva");
    reply(&first, &agent, &id, "It survives.", "text");
    row(&first, &agent, "waiting", |row| row["kind"] == "reply");
    first.signal("-KILL");
    first.wait();
    let server = smtp(port);
    let second = gate(port, &more);
    let login = json!({ "email": "anna@example.org", "password": PASSWORD });
    let login = ok(&second, "", "POST /api/v1/agents/login", &login);
    let agent = login["token"].as_str().unwrap();
    // Without waiting for the pause of an attempt that failed, or a claim of the dead process.
    let waiting = row(&second, agent, "waiting", |row| row["kind"] == "reply");
    let resend = format!("POST /api/v1/outbox/{}/resend", waiting["id"].as_str().unwrap());
    ok(&second, agent, &resend, &Value::Null);
    let mail = server.next(&second);
    assert_eq!(mail["to"], json!(["eva@example.org"]));
    assert!(mail["plain"].as_str().unwrap().contains("It survives."), "{mail}");
}

#[test]
fn an_agents_browser_decrypts_what_it_is_pushed() {
    let browser = push_service();
    let gate = Tidegate::start(
        "embedded:",
        &[ALLOW[0], ALLOW[1], "--set", "desk.public_url=https://desk.shop.example"],
    );
    let (_, token) = log_in(&gate, "anna", link_of);
    let (_, other) = log_in(&gate, "ben", link_of);
    let me = "/api/v1/agents/me/push";
    let key = ok(&gate, &token, &format!("GET {me}"), &Value::Null)["public_key"].clone();
    let at = |path: &str| {
        json!({
            "endpoint": format!("http://127.0.0.1:{}{path}", browser.port()),
            "expirationTime": null,
            "keys": { "p256dh": browser.hello["p256dh"], "auth": browser.hello["auth"] },
        })
    };
    ok(&gate, &token, &format!("POST {me}"), &at("/busy/1"));
    // An address that only this machine reaches, and one without encryption, are refused.
    for bad in [
        "https://169.254.169.254/x",
        "http://push.example/x",
        "https://10.0.0.1/",
        "ftp://push.example/",
    ] {
        let mut body = at("/x");
        body["endpoint"] = json!(bad);
        let (status, told) = call(&gate, &token, &format!("POST {me}"), &body);
        assert_eq!(
            (status, told["error"]["details"]["field"].as_str()),
            (400, Some("endpoint")),
            "{bad}: {told}"
        );
    }
    // Anna is there, without a tab; she gets the conversation.
    ok(&gate, &token, "POST /api/v1/presence/heartbeat", &Value::Null);
    let (visitor, id) = visitor(&gate, "eva@example.org", "Eva");
    // The service is busy at first, and gets it again.
    let first = browser.next(&gate);
    assert_eq!(first["status"], 503, "{first}");
    let pushed = browser.next(&gate);
    assert_eq!((&pushed["status"], &pushed["error"]), (&json!(201), &Value::Null), "{pushed}");
    assert_eq!(pushed["payload"]["conversation_id"], id);
    assert_eq!(pushed["payload"]["about"], "assigned");
    assert_eq!(pushed["headers"]["content-encoding"], "aes128gcm");
    assert_eq!(pushed["headers"]["ttl"], "3600");
    let signer = &pushed["signer"];
    assert_eq!(
        (&signer["alg"], &signer["isForUs"], &signer["k"]),
        (&json!("ES256"), &json!(true), &key)
    );
    assert_eq!(signer["sub"], "https://desk.shop.example");
    // A message, as a preview that nobody on the way can read; a note of somebody else is not in it.
    let message = json!({ "content": format!("Is my parcel lost? {}", "y".repeat(2_000)) });
    ok(&gate, &visitor, &format!("POST /api/v1/widget/conversations/{id}/messages"), &message);
    let pushed = browser.next(&gate);
    assert_eq!((&pushed["isPlain"], &pushed["payload"]["title"]), (&json!(false), &json!("Eva")));
    let body = pushed["payload"]["body"].as_str().unwrap();
    assert!(body.starts_with("Is my parcel lost?") && body.chars().count() == 120, "{body}");
    reply(&gate, &other, &id, "@anna a secret note", "note");
    let pushed = browser.next(&gate);
    assert_eq!(pushed["payload"]["about"], "mention");
    assert!(!pushed.to_string().contains("secret note"), "{pushed}");
    // Gone: forgotten. Logged out: forgotten.
    ok(
        &gate,
        &token,
        &format!("POST {me}/remove"),
        &json!({ "endpoint": at("/busy/1")["endpoint"] }),
    );
    ok(&gate, &token, &format!("POST {me}"), &at("/gone"));
    let message = json!({ "content": "Hello?" });
    ok(&gate, &visitor, &format!("POST /api/v1/widget/conversations/{id}/messages"), &message);
    assert_eq!(browser.next(&gate)["status"], 410);
    let start = Instant::now();
    while ok(&gate, &token, &format!("GET {me}"), &Value::Null)["browsers"] != 0 {
        assert!(start.elapsed() < testkit::HANG, "the browser is not forgotten");
    }
    ok(&gate, &token, &format!("POST {me}"), &at("/after"));
    ok(&gate, &token, "POST /api/v1/agents/logout", &Value::Null);
    ok(&gate, &visitor, &format!("POST /api/v1/widget/conversations/{id}/messages"), &message);
    browser.nothing_within(Duration::from_secs(3));
}
