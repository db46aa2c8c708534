//! The support chat over HTTP and WebSocket: two instances, visitors and agents.

use std::sync::Arc;
use std::time::Duration;

use desk_web_settings::settings;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use store::Store;
use testkit::{TestArchive, each_archive};
use tidegate_desk_web::DeskService;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, protocol::CloseFrame};
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::sync::CancellationToken;
use web::Settings;
use web::config::{AuthSettings, Values};
use web::serve::Server;
use web::testing::{Answer, Fixture};

mod desk_web_settings {
    use testkit::TestArchive;
    use tidegate_desk_web::config::DeskSettings;
    use web::config::Values;

    pub(super) fn settings(values: &Values, archive: &TestArchive) -> DeskSettings {
        DeskSettings {
            archive: archive.place().to_owned(),
            files: archive.folder().join("files").display().to_string(),
            widget_secret: "secret".into(),
            limit_timeout: std::time::Duration::from_secs(10),
            ..DeskSettings::read(values).unwrap()
        }
    }
}

const PASSWORD: &str = "correct horse battery";

/// An instance with its background work and a listener.
struct ChatInstance {
    web: Fixture,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl ChatInstance {
    async fn start(store: &Store, archive: &TestArchive, name: &str) -> ChatInstance {
        let values = Values::defaults(&[&DeskService]);
        let (settings, auth) = (settings(&values, archive), AuthSettings::read(&values).unwrap());
        let service =
            DeskService::with_chat(store, &settings, &auth, name, archive.folder()).await.unwrap();
        let running = Arc::clone(&service.running);
        let web = Fixture::on(store.clone(), Settings::default(), vec![service]);
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(web.app.clone(), listener);
        let tasks = vec![
            tokio::spawn(running.run(web.app.clone(), stop.clone())),
            tokio::spawn(server.run(stop.clone(), Duration::from_secs(5))),
        ];
        ChatInstance { web, address, stop, tasks }
    }

    async fn stop(self) {
        self.web.app.stop();
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }

    async fn call(&self, token: &str, what: &str, body: Value) -> Answer {
        self.web.call(token, what, body).await
    }

    /// A call that must succeed.
    async fn ok(&self, token: &str, what: &str, body: Value) -> Value {
        let got = self.call(token, what, body).await;
        assert!(got.status.is_success(), "{what}: {} {}", got.status, got.text);
        if got.text.is_empty() { Value::Null } else { got.json() }
    }

    /// Adds an agent, sets the password and logs in.
    async fn agent(&self, name: &str, role: &str) -> (String, String) {
        let email = format!("{name}@example.org");
        let body = json!({ "email": email, "name": name, "role": role, "capacity": 5 });
        let added = self.web.admin("POST /api/v1/agents", body).await;
        assert_eq!(added.status, 201, "{}", added.text);
        let added = added.json();
        let accept = json!({ "invitation": added["invitation"], "password": PASSWORD });
        self.ok("", "POST /api/v1/agents/accept", accept).await;
        let login = json!({ "email": email, "password": PASSWORD });
        let got = self.ok("", "POST /api/v1/agents/login", login).await;
        (
            added["agent"]["id"].as_str().unwrap().to_owned(),
            got["token"].as_str().unwrap().to_owned(),
        )
    }

    async fn visitor(&self) -> (String, String) {
        let got = self.ok("", "POST /api/v1/widget/sessions", json!({ "locale": "en" })).await;
        let id = got["visitor"]["id"].as_str().unwrap().to_owned();
        (id, got["token"].as_str().unwrap().to_owned())
    }

    async fn socket(&self, path: &str, token: &str, resume: Option<&str>) -> LiveSocket {
        let mut request = format!("ws://{}{path}", self.address).into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        headers.insert("sec-websocket-protocol", "desk.v1".parse().unwrap());
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (socket, _) = client_async(request, stream).await.unwrap();
        let mut socket = LiveSocket { socket, last: None };
        socket.send(json!({ "t": "hello", "resume": resume })).await;
        socket
    }
}

struct LiveSocket {
    socket: WebSocketStream<TcpStream>,
    /// Id of the last event.
    last: Option<String>,
}

impl LiveSocket {
    async fn send(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// The next frame; pings are answered by the library.
    async fn next(&mut self) -> Result<Value, Option<CloseFrame>> {
        let wait = Duration::from_secs(20);
        loop {
            let frame = tokio::time::timeout(wait, self.socket.next()).await.expect("a frame");
            match frame {
                Some(Ok(Message::Text(text))) => {
                    let value: Value = serde_json::from_str(text.as_str()).unwrap();
                    if let Some(id) = value["id"].as_str() {
                        self.last = Some(id.to_owned());
                    }
                    return Ok(value);
                }
                Some(Ok(Message::Close(frame))) => return Err(frame),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// The next frame of which this holds.
    async fn until(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        let mut others = Vec::new();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        // Positions and availability come every few seconds, whatever else does not.
        while tokio::time::Instant::now() < deadline {
            let frame = self.next().await.expect("the socket stays open");
            if what(&frame) {
                return frame;
            }
            others.push(frame);
        }
        panic!("only others came: {others:?}");
    }

    async fn event(&mut self, kind: &str) -> Value {
        self.until(|frame| frame["type"] == kind).await
    }

    async fn closed(&mut self) -> u16 {
        loop {
            if let Err(frame) = self.next().await {
                return frame.map_or(0, |frame| frame.code.into());
            }
        }
    }
}

each_archive! {
    async fn a_chat_from_hello_to_rating_over_two_instances(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let other = ChatInstance::start(&t.another().await, &a, "other").await;
        let (agent_id, agent) = one.agent("anna", "supervisor").await;
        let (_, visitor) = other.visitor().await;
        let mut console = one.socket("/api/v1/ws", &agent, None).await;
        let ready = console.until(|frame| frame["t"] == "ready").await;
        assert_eq!(ready["me"]["presence"]["status"], "online");
        // Both reach anyone on either instance.
        let start = json!({ "message": { "content": "Where is my parcel?", "client_id": "c-1" } });
        let started = other.ok(&visitor, "POST /api/v1/widget/conversations", start.clone()).await;
        let id = started["conversation"]["id"].as_str().unwrap().to_owned();
        let event = console.event("message.created").await;
        assert_eq!(event["data"]["message"]["content"], "Where is my parcel?");
        let assigned = console.event("conversation.assigned").await;
        assert_eq!(assigned["data"]["conversation"]["assignee"]["id"], agent_id);
        let mut widget = other.socket("/api/v1/widget/ws", &visitor, None).await;
        widget.until(|frame| frame["t"] == "ready").await;
        let send = json!({ "t": "send", "ref": "1", "conversation_id": id, "client_id": "a-1", "content": "On its way" });
        console.send(send.clone()).await;
        let ack = console.until(|frame| frame["t"] == "ack").await;
        assert_eq!((&ack["ref"], &ack["message"]["seq"]), (&json!("1"), &json!(2)));
        let seen = widget.until(|frame| frame["data"]["message"]["seq"] == 2).await;
        assert_eq!(seen["data"]["message"]["sender"]["name"], "anna");
        assert!(seen["data"]["conversation"].get("tags").is_none(), "what is for agents stays there");
        // Sent again, it is the same message.
        console.send(send).await;
        let again = console.until(|frame| frame["t"] == "ack").await;
        assert_eq!(again["message"]["id"], ack["message"]["id"]);
        // Typing of a note is not shown, of a reply it is.
        console.send(json!({ "t": "typing", "conversation_id": id, "on": true, "note": true })).await;
        console.send(json!({ "t": "typing", "conversation_id": id, "on": true })).await;
        let note = json!({ "content": "be careful", "type": "note" });
        one.ok(&agent, &format!("POST /api/v1/conversations/{id}/messages"), note).await;
        let typing = widget.until(|frame| frame["t"] == "event" && frame["type"] != "availability.updated"
            && frame["type"] != "queue.position" && frame["type"] != "read").await;
        assert_eq!((&typing["type"], &typing["data"]["sender_role"]), (&json!("typing"), &json!("admin")));
        // The widget is cut off, and comes back on the other instance without a gap.
        let last = widget.last.clone().unwrap();
        drop(widget);
        one.ok(&agent, &format!("POST /api/v1/conversations/{id}/messages"), json!({ "content": "Tomorrow" })).await;
        let mut widget = one.socket("/api/v1/widget/ws", &visitor, Some(&last)).await;
        let ready = widget.until(|frame| frame["t"] == "ready").await;
        assert_eq!(ready["resumed"], true);
        let missed = widget.event("message.created").await;
        assert_eq!((&missed["data"]["message"]["seq"], &missed["data"]["message"]["content"]), (&json!(4), &json!("Tomorrow")));
        let page = other.ok(&visitor, &format!("GET /api/v1/widget/conversations/{id}/messages?after_seq=0"), Value::Null).await;
        let numbers: Vec<i64> = page["items"].as_array().unwrap().iter().map(|m| m["seq"].as_i64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 4], "no note");
        // Resolve with If-Match, rate, and count.
        let path = format!("/api/v1/conversations/{id}");
        let found = one.call(&agent, &format!("GET {path}"), Value::Null).await;
        assert_eq!(found.header("etag"), format!("\"v{}\"", found.json()["version"]));
        let request = axum::http::Request::patch(&path)
            .header("authorization", format!("Bearer {agent}")).header("content-type", "application/json")
            .header("if-match", "\"v1\"").body(axum::body::Body::from(r#"{"status":"resolved"}"#)).unwrap();
        assert_eq!(one.web.send(request).await.status, 412);
        one.ok(&agent, &format!("PATCH {path}"), json!({ "status": "resolved", "tags": ["parcel"] })).await;
        widget.event("conversation.resolved").await;
        other.ok(&visitor, &format!("POST /api/v1/widget/conversations/{id}/rating"), json!({ "score": 5 })).await;
        let twice = other.call(&visitor, &format!("POST /api/v1/widget/conversations/{id}/rating"), json!({ "score": 1 })).await;
        assert_eq!((twice.status.as_u16(), twice.code().as_str()), (409, "ALREADY_RATED"));
        let dashboard = one.ok(&agent, "GET /api/v1/dashboard", Value::Null).await;
        assert_eq!((&dashboard["totals"]["open"], &dashboard["resolved_today"]), (&json!(0), &json!(1)));
        // A drain is announced.
        one.stop().await;
        console.event("server.draining").await;
        assert_eq!(console.closed().await, 1001);
        other.stop().await;
    }

    async fn visitors_reach_their_own_conversations_and_nothing_else(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, agent) = one.agent("anna", "agent").await;
        let (id_a, visitor) = one.visitor().await;
        let (_, stranger) = one.visitor().await;
        let start = json!({ "message": { "content": "secret" } });
        let started = one.ok(&visitor, "POST /api/v1/widget/conversations", start).await;
        let id = started["conversation"]["id"].as_str().unwrap().to_owned();
        let message = started["message"]["id"].as_str().unwrap().to_owned();
        let base = format!("/api/v1/widget/conversations/{id}");
        for (what, body) in [
            (format!("GET {base}"), Value::Null),
            (format!("GET {base}/messages"), Value::Null),
            (format!("POST {base}/messages"), json!({ "content": "x" })),
            (format!("PATCH {base}/messages/{message}"), json!({ "content": "x" })),
            (format!("DELETE {base}/messages/{message}"), Value::Null),
            (format!("POST {base}/read"), json!({ "seq": 1 })),
            (format!("POST {base}/typing"), json!({ "on": true })),
            (format!("POST {base}/close"), Value::Null),
            (format!("POST {base}/rating"), json!({ "score": 1 })),
        ] {
            let got = one.call(&stranger, &what, body.clone()).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (404, "NOT_FOUND"), "{what}: {}", got.text);
            assert_eq!(one.call("", &what, body).await.status, 401, "{what}");
        }
        // Agents' calls are not for visitors, and the other way round.
        for what in ["GET /api/v1/conversations", "GET /api/v1/agents", "GET /api/v1/dashboard"] {
            assert_eq!(one.call(&visitor, what, Value::Null).await.status, 401, "{what}");
        }
        assert_eq!(one.call(&agent, "GET /api/v1/widget/session", Value::Null).await.status, 401);
        // An agent reaches the desk and nothing else; supervisors' calls are for supervisors.
        for what in ["GET /api/v1/tokens", "GET /api/v1/users", "GET /api/v1/audit"] {
            assert_eq!(one.call(&agent, what, Value::Null).await.status, 401, "{what}");
        }
        let add = json!({ "email": "x@example.org", "name": "X" });
        assert_eq!(one.call(&agent, "POST /api/v1/agents", add).await.code(), "NOT_ALLOWED");
        // A block closes the socket within a second, and nothing goes any more.
        let mut socket = one.socket("/api/v1/widget/ws", &visitor, None).await;
        socket.until(|frame| frame["t"] == "ready").await;
        one.ok(&agent, &format!("POST /api/v1/visitors/{id_a}/block"), json!({ "reason": "spam" })).await;
        assert_eq!(socket.closed().await, 4403);
        assert_eq!(one.call(&visitor, &format!("GET {base}"), Value::Null).await.code(), "USER_BLOCKED");
        one.stop().await;
    }

    async fn a_site_proves_its_users_and_nobody_else_can(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let at = t.store.now().0 / 1_000;
        let identity = |user: &str, email: &str, at: i64, secret: &str| {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
            let tag = ring::hmac::sign(&key, format!("{user}\n{email}\n{at}").as_bytes());
            let hmac: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "identity": { "user_id": user, "email": email, "at": at, "hmac": hmac } })
        };
        let good = one.ok("", "POST /api/v1/widget/sessions", identity("42", "eva@example.org", at, "secret")).await;
        assert_eq!((&good["visitor"]["verified"], &good["visitor"]["id"]), (&json!(true), &json!("v~42")));
        let token = good["token"].as_str().unwrap();
        one.ok(token, "POST /api/v1/widget/conversations", json!({ "message": { "content": "hi" } })).await;
        // A second device sees the conversation; one that only claims the address does not.
        let phone = one.ok("", "POST /api/v1/widget/sessions", identity("42", "eva@example.org", at, "secret")).await;
        assert_eq!(phone["conversations"].as_array().unwrap().len(), 1);
        let claims = one.ok("", "POST /api/v1/widget/sessions", json!({ "email": "eva@example.org" })).await;
        assert_eq!((&claims["visitor"]["verified"], claims["conversations"].as_array().unwrap().len()), (&json!(false), 0));
        for bad in [
            identity("42", "eva@example.org", at, "wrong"),
            identity("42", "eva@example.org", at - 301, "secret"),
            identity("42", "eva@example.org", at + 301, "secret"),
            json!({ "identity": { "user_id": "42", "at": at, "hmac": "" } }),
            json!({ "identity": { "user_id": "42", "at": at, "hmac": "zz" } }),
        ] {
            let got = one.call("", "POST /api/v1/widget/sessions", bad.clone()).await;
            assert_eq!((got.status.as_u16(), got.code().as_str()), (403, "BAD_IDENTITY"), "{bad}");
        }
        one.stop().await;
    }

    async fn logins_need_the_password_the_code_and_patience(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, agent) = one.agent("anna", "agent").await;
        let setup = one.ok(&agent, "POST /api/v1/agents/me/totp", Value::Null).await;
        assert!(setup["url"].as_str().unwrap().starts_with("otpauth://totp/"));
        let wrong = one.call(&agent, "POST /api/v1/agents/me/totp/confirm", json!({ "code": "000000" })).await;
        assert!(wrong.status == 403 || wrong.status == 200, "{}", wrong.text);
        let login = |password: &str| json!({ "email": "anna@example.org", "password": password });
        let bad = one.call("", "POST /api/v1/agents/login", login("wrong password!")).await;
        assert_eq!((bad.status.as_u16(), bad.code().as_str()), (401, "BAD_CREDENTIALS"));
        let unknown = json!({ "email": "nobody@example.org", "password": "wrong password!" });
        assert_eq!(one.call("", "POST /api/v1/agents/login", unknown).await.code(), "BAD_CREDENTIALS");
        let mut limited = false;
        for _ in 0..30 {
            limited |= one.call("", "POST /api/v1/agents/login", login("guess again!!")).await.status == 429;
        }
        assert!(limited, "guessing is limited");
        // Sessions are listed and ended.
        let sessions = one.ok(&agent, "GET /api/v1/agents/me/sessions", Value::Null).await;
        assert_eq!(sessions["items"][0]["is_current"], true);
        one.ok(&agent, "POST /api/v1/agents/logout", Value::Null).await;
        assert_eq!(one.call(&agent, "GET /api/v1/agents/me", Value::Null).await.status, 401);
        let trail = one.web.trail().await;
        assert!(trail.iter().any(|entry| entry["action"] == "agent.login"), "{trail:?}");
        assert!(trail.iter().any(|entry| entry["action"] == "agent.add"), "{trail:?}");
        one.stop().await;
    }

    async fn bad_frames_close_the_socket_and_nobody_elses(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, agent) = one.agent("anna", "agent").await;
        let mut console = one.socket("/api/v1/ws", &agent, None).await;
        console.until(|frame| frame["t"] == "ready").await;
        let (_, visitor) = one.visitor().await;
        for bad in ["nonsense", "{\"t\":\"unknown\"}", "{\"t\":\"hello\"}", "[]"] {
            let mut socket = one.socket("/api/v1/widget/ws", &visitor, None).await;
            socket.until(|frame| frame["t"] == "ready").await;
            socket.socket.send(Message::text(bad)).await.unwrap();
            assert_eq!(socket.closed().await, 4400, "{bad}");
        }
        let mut socket = one.socket("/api/v1/widget/ws", &visitor, None).await;
        socket.until(|frame| frame["t"] == "ready").await;
        let send = json!({ "t": "send", "ref": "7", "conversation_id": "cnv_none", "content": "x" });
        socket.send(send).await;
        let nack = socket.until(|frame| frame["t"] == "nack").await;
        assert_eq!((&nack["ref"], &nack["error"]["code"]), (&json!("7"), &json!("NOT_FOUND")));
        // A place in the future cannot be resumed: fetch anew.
        let mut ahead = one.socket("/api/v1/widget/ws", &visitor, Some("99999999999999-0")).await;
        assert_eq!(ahead.until(|frame| frame["t"] == "ready").await["resumed"], false);
        console.send(json!({ "t": "presence", "ref": "p", "status": "busy" })).await;
        assert_eq!(console.until(|frame| frame["t"] == "ack").await["status"], "busy");
        // Tickets work once.
        let ticket = one.ok(&visitor, "POST /api/v1/widget/ws-ticket", Value::Null).await;
        let path = format!("/api/v1/widget/events?ticket={}", ticket["ticket"].as_str().unwrap());
        let got = one.web.listen(axum::http::Request::get(&path).body(axum::body::Body::empty()).unwrap()).await;
        assert_eq!(got.status, 200);
        assert_eq!(one.call("", &format!("GET {path}"), Value::Null).await.status, 401);
        one.stop().await;
    }

    async fn files_are_sniffed_bounded_and_served_safely(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, visitor) = one.visitor().await;
        let upload = async |name: &str, bytes: &[u8]| {
            let request = axum::http::Request::post(format!("/api/v1/widget/files?name={name}"))
                .header("authorization", format!("Bearer {visitor}"))
                .header("content-type", "image/png")
                .body(axum::body::Body::from(bytes.to_vec())).unwrap();
            one.web.send(request).await
        };
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([0, 0, 0, 7, 0, 0, 0, 5, 8, 2, 0, 0, 0]);
        let good = upload("a.png", &png).await;
        assert_eq!(good.status, 201, "{}", good.text);
        let good = good.json();
        assert_eq!((&good["mime"], &good["is_image"]), (&json!("image/png"), &json!(true)));
        let lie = upload("b.png", b"<script>alert(1)</script>").await.json();
        assert_eq!(lie["is_image"], false);
        let got = one.web.get(lie["url"].as_str().unwrap()).await;
        assert!(got.header("content-disposition").starts_with("attachment;"));
        assert_eq!((got.header("content-type"), got.header("x-content-type-options")), ("application/octet-stream", "nosniff"));
        png[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(upload("bomb.png", &png).await.status, 400);
        assert_eq!(upload("empty", b"").await.status, 400);
        let start = json!({ "message": { "content": "", "attachments": [good["id"]] } });
        let started = one.ok(&visitor, "POST /api/v1/widget/conversations", start).await;
        assert_eq!(started["message"]["attachments"][0]["id"], good["id"]);
        // Sent once; another visitor's file does not exist.
        let id = started["conversation"]["id"].as_str().unwrap();
        let again = json!({ "content": "x", "attachments": [good["id"]] });
        assert_eq!(one.call(&visitor, &format!("POST /api/v1/widget/conversations/{id}/messages"), again).await.status, 404);
        one.stop().await;
    }

    async fn who_logs_in_right_uses_up_nobodys_tries(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        // Nine colleagues of one office accept and log in, twice as often as one address may fail.
        for name in ["ada", "bob", "cem", "dee", "eli", "fay", "gil", "hal", "ivy"] {
            one.agent(name, "agent").await;
        }
        let login = |email: &str, password: &str| json!({ "email": email, "password": password });
        for _ in 0..6 {
            one.ok("", "POST /api/v1/agents/login", login("ada@example.org", PASSWORD)).await;
        }
        // Guesses still count, and a login of one's own in between does not wash them away.
        let mut refused = 0;
        for n in 0..8 {
            let guess = login(&format!("agent{n}@example.org"), "wrong password!");
            let status = one.call("", "POST /api/v1/agents/login", guess).await.status.as_u16();
            refused += usize::from(status == 429);
            one.call("", "POST /api/v1/agents/login", login("ada@example.org", PASSWORD)).await;
        }
        assert!(refused >= 2, "{refused} of 8 guesses were refused");
        let blocked = one.call("", "POST /api/v1/agents/login", login("ada@example.org", PASSWORD)).await;
        assert_eq!(blocked.status, 429, "the address is locked out");
        one.stop().await;
    }

    async fn a_file_may_be_larger_than_other_bodies(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, visitor) = one.visitor().await;
        let (_, agent) = one.agent("anna", "agent").await;
        let send = async |token: &str, path: &str, bytes: usize| {
            let request = axum::http::Request::post(path)
                .header("authorization", format!("Bearer {token}"))
                .header("content-type", "application/octet-stream")
                .body(axum::body::Body::from(vec![7_u8; bytes])).unwrap();
            one.web.send(request).await
        };
        let most = 10 << 20;
        for (token, path) in [(&visitor, "/api/v1/widget/files?name=a.bin"), (&agent, "/api/v1/conversations/files?name=a.bin")] {
            let fits = send(token, path, most).await;
            assert_eq!(fits.status, 201, "{path}: {}", fits.text);
            assert_eq!(fits.json()["size"], most);
            let long = send(token, path, most + 1).await;
            assert_eq!((long.status.as_u16(), long.code().as_str()), (413, "BODY_TOO_LARGE"), "{}", long.text);
        }
        // Every other route keeps http.max_body.
        let long = send(&visitor, "/api/v1/widget/conversations", (1 << 20) + 1).await;
        assert_eq!(long.status, 413, "{}", long.text);
        one.stop().await;
    }

    async fn conversations_are_merged_and_promises_changed_by_those_who_may(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (_, agent) = one.agent("anna", "agent").await;
        let (_, supervisor) = one.agent("ben", "supervisor").await;
        let (visitor_id, visitor) = one.visitor().await;
        let start = json!({ "message": { "content": "first question" } });
        let first = one.ok(&visitor, "POST /api/v1/widget/conversations", start).await;
        let first = first["conversation"]["id"].as_str().unwrap().to_owned();
        let body = json!({ "visitor_id": visitor_id, "content": "Your parcel is here." });
        let second = one.ok(&agent, "POST /api/v1/conversations", body).await;
        let second = second["conversation"]["id"].as_str().unwrap().to_owned();
        let mut widget = one.socket("/api/v1/widget/ws", &visitor, None).await;
        widget.until(|frame| frame["t"] == "ready").await;
        let merge = format!("POST /api/v1/conversations/{first}/merge");
        assert_eq!(one.call(&visitor, &merge, json!({ "into": second })).await.status, 401);
        let unknown = one.call(&agent, &merge, json!({ "into": "cnv_none" })).await;
        assert_eq!(unknown.status, 404);
        let merged = one.ok(&agent, &merge, json!({ "into": second })).await;
        assert_eq!((&merged["id"], &merged["last_seq"]), (&json!(second), &json!(3)), "{merged}");
        let told = widget.event("conversation.resolved").await;
        assert_eq!(told["data"]["conversation"]["merged_into"], second);
        // The visitor sees the copies and not the note, and writes on in the one that is left.
        let seen = one.ok(&visitor, &format!("GET /api/v1/widget/conversations/{second}/messages"), Value::Null).await;
        let contents: Vec<&str> = seen["items"].as_array().unwrap().iter().map(|one| one["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["Your parcel is here.", "first question"]);
        let send = format!("POST /api/v1/widget/conversations/{first}/messages");
        let sent = one.ok(&visitor, &send, json!({ "content": "thanks" })).await;
        assert_eq!((&sent["conversation"]["id"], &sent["message"]["seq"]), (&json!(second), &json!(4)));
        let again = one.call(&agent, &merge, json!({ "into": second })).await;
        assert_eq!((again.status.as_u16(), again.code().as_str()), (409, "ALREADY_MERGED"));
        let trail = one.web.trail().await;
        assert!(trail.iter().any(|entry| entry["action"] == "conversation.merge"), "{trail:?}");

        // Promises: agents read, supervisors change; bad ones change nothing.
        let before = one.ok(&agent, "GET /api/v1/sla", Value::Null).await;
        assert_eq!(before["urgent"]["first_reply_seconds"], 300);
        let change = json!({ "normal": { "first_reply_seconds": 420 }, "low": { "first_reply_seconds": 0 } });
        assert_eq!(one.call(&agent, "PUT /api/v1/sla", change.clone()).await.status, 403);
        let after = one.ok(&supervisor, "PUT /api/v1/sla", change).await;
        assert_eq!(after["normal"], json!({ "first_reply_seconds": 420, "next_reply_seconds": 7_200 }));
        for bad in [json!({ "normal": { "first_reply_seconds": 3_000_000 } }), json!({ "soon": {} }), json!({ "low": 3 })] {
            let refused = one.call(&supervisor, "PUT /api/v1/sla", bad).await;
            assert_eq!(refused.status, 400, "{}", refused.text);
        }
        assert_eq!(one.ok(&agent, "GET /api/v1/sla", Value::Null).await, after);
        let (_, other) = one.visitor().await;
        let start = json!({ "message": { "content": "how long?" } });
        let asked = one.ok(&other, "POST /api/v1/widget/conversations", start).await;
        let id = asked["conversation"]["id"].as_str().unwrap();
        let found = one.ok(&agent, &format!("GET /api/v1/conversations/{id}"), Value::Null).await;
        let time = |text: &Value| serde_json::from_value::<web::time::Timestamp>(text.clone()).unwrap().0.0;
        assert_eq!(time(&found["sla"]["due_at"]) - time(&found["waiting_since"]), 7 * 60_000, "{found}");
        one.stop().await;
    }

    async fn every_change_of_a_conversation_is_in_the_trail_with_its_request(t: TestStore, a: TestArchive) {
        let one = ChatInstance::start(&t.store, &a, "one").await;
        let (anna_id, anna) = one.agent("anna", "agent").await;
        let (_, supervisor) = one.agent("ben", "supervisor").await;
        let (visitor_id, visitor) = one.visitor().await;
        let start = json!({ "message": { "content": "hello" } });
        let started = one.ok(&visitor, "POST /api/v1/widget/conversations", start).await;
        let id = started["conversation"]["id"].as_str().unwrap().to_owned();
        let of = |rest: &str| format!("/api/v1/conversations/{id}{rest}");
        let got = one.call(&anna, &format!("POST {}", of("/assign")), json!({ "agent_id": "me" })).await;
        assert_eq!(got.status, 200, "{}", got.text);
        let assigned = got.headers["x-request-id"].to_str().unwrap().to_owned();
        let change = json!({ "priority": "high", "subject": "Eva's parcel" });
        let got = one.call(&anna, &format!("PATCH {}", of("")), change).await;
        let changed = got.headers["x-request-id"].to_str().unwrap().to_owned();
        let note = one.ok(&anna, &format!("POST {}", of("/messages")), json!({ "content": "Hi." })).await;
        let message = note["message"]["id"].as_str().unwrap();
        one.ok(&anna, &format!("DELETE {}", of(&format!("/messages/{message}"))), Value::Null).await;
        let full = one.call(&anna, &format!("POST {}", of("/transfer")), json!({ "agent_id": "agt_none" })).await;
        assert_eq!(full.status, 404);
        // Something about somebody else, which is not in the list.
        one.ok(&anna, &format!("POST /api/v1/visitors/{visitor_id}/block"), json!({})).await;

        let trail = one.ok(&supervisor, &format!("GET {}", of("/audit")), Value::Null).await;
        let items = trail["items"].as_array().unwrap();
        let lines: Vec<(&str, &str)> =
            items.iter().map(|line| (line["action"].as_str().unwrap(), line["outcome"].as_str().unwrap())).collect();
        assert_eq!(
            lines,
            [("conversation.transfer", "refused"), ("message.delete", "ok"), ("conversation.change", "ok"), ("conversation.assign", "ok")]
        );
        assert_eq!((&items[3]["request_id"], &items[2]["request_id"]), (&json!(assigned), &json!(changed)));
        assert_eq!((&items[3]["who"], &items[3]["after"]), (&json!("anna@example.org"), &json!({ "assignee": anna_id })));
        assert_eq!(items[2]["after"], json!({ "priority": "high" }), "what a visitor may have written is not kept");
        // Pages, one line each.
        let (mut cursor, mut seen) = (String::new(), Vec::new());
        loop {
            let page = one.ok(&supervisor, &format!("GET {}?limit=1&cursor={cursor}", of("/audit")), Value::Null).await;
            seen.extend(page["items"].as_array().unwrap().iter().map(|line| line["id"].clone()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = next.to_owned();
        }
        assert_eq!(seen, items.iter().map(|line| line["id"].clone()).collect::<Vec<_>>());
        // Operators may look, agents may not, and what is not there has no trail.
        assert_eq!(one.web.admin(&format!("GET {}", of("/audit")), Value::Null).await.json(), trail);
        assert_eq!(one.call(&anna, &format!("GET {}", of("/audit")), Value::Null).await.status, 403);
        assert_eq!(one.call(&supervisor, "GET /api/v1/conversations/cnv_none/audit", Value::Null).await.status, 404);
        assert_eq!(one.call(&supervisor, &format!("GET {}?cursor=x", of("/audit")), Value::Null).await.status, 400);
        // Every line of the desk says which request it was.
        for line in one.web.trail().await {
            assert_ne!(line["request_id"], "", "{line}");
        }
        one.stop().await;
    }
}
