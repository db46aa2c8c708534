//! E-mail, web push and the outbox over HTTP: who may do what, and what a mail server is told.

use std::sync::Arc;

use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::Store;
use testkit::{TestArchive, each_archive};
use tidegate_desk_web::DeskService;
use tidegate_desk_web::config::{DeskSettings, MailSender, PublicUrl, SmtpTls};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use web::Settings;
use web::config::{AuthSettings, Values};
use web::seal::Seal;
use web::testing::{Answer, Fixture};

const PASSWORD: &str = "correct horse battery";
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

/// A mail server that takes everything, and keeps what it is told.
struct MailServer {
    port: u16,
    mails: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl MailServer {
    async fn start() -> MailServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mails = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&mails);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(talk(stream, Arc::clone(&kept)));
            }
        });
        MailServer { port, mails, task }
    }

    /// Waits for the next e-mail.
    async fn next(&self) -> String {
        testkit::until("an e-mail", async || {
            let mut mails = self.mails.lock();
            (!mails.is_empty()).then(|| mails.remove(0))
        })
        .await
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn talk(stream: TcpStream, kept: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let (mut mail, mut is_data) = (String::new(), false);
    let mut answer = "220 test\r\n";
    loop {
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            if !is_data || line == ".\r\n" {
                break;
            }
            mail.push_str(&line);
            line.clear();
        }
        answer = match line.get(..4) {
            None if line == ".\r\n" => {
                kept.lock().push(std::mem::take(&mut mail));
                is_data = false;
                "250 taken\r\n"
            }
            Some("EHLO") => "250 test\r\n",
            Some("DATA") => {
                is_data = true;
                "354 go on\r\n"
            }
            Some("QUIT") | None => return,
            _ => {
                mail.push_str(&line);
                "250 ok\r\n"
            }
        };
    }
}

struct MailDesk {
    web: Fixture,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl MailDesk {
    /// An instance with its background work. Loopback is allowed, or not.
    async fn start(
        store: &Store,
        archive: &TestArchive,
        port: Option<u16>,
        allowed: bool,
    ) -> MailDesk {
        let values = Values::defaults(&[&DeskService]);
        let mut settings = DeskSettings {
            archive: archive.place().to_owned(),
            files: archive.folder().join("files").display().to_string(),
            limit_timeout: std::time::Duration::from_secs(10),
            ..DeskSettings::read(&values).unwrap()
        };
        if let Some(port) = port {
            settings.smtp_host = "127.0.0.1".to_owned();
            settings.smtp_port = port;
            settings.smtp_tls = SmtpTls::None;
            settings.smtp_from = MailSender(Some("Support <a@shop.example>".parse().unwrap()));
            settings.public_url = PublicUrl("https://desk.example".to_owned());
        }
        let auth = AuthSettings::read(&values).unwrap();
        let service = DeskService::with_chat(store, &settings, &auth, "one", archive.folder());
        let service = service.await.unwrap();
        let running = Arc::clone(&service.running);
        let networks = if allowed { vec!["127.0.0.0/8".parse().unwrap()] } else { Vec::new() };
        let frame = Settings { webhook_networks: networks, ..Settings::default() };
        let web = Fixture::on(store.clone(), frame, vec![service]);
        web.app.webhooks().set_seal(Seal::new([7; 32]));
        let stop = CancellationToken::new();
        let task = tokio::spawn(running.run(web.app.clone(), stop.clone()));
        MailDesk { web, stop, task }
    }

    async fn stop(self) {
        self.web.app.stop();
        self.stop.cancel();
        self.task.await.unwrap();
    }

    async fn call(&self, token: &str, what: &str, body: Value) -> Answer {
        self.web.call(token, what, body).await
    }

    async fn ok(&self, token: &str, what: &str, body: Value) -> Value {
        let got = self.call(token, what, body).await;
        assert!(got.status.is_success(), "{what}: {} {}", got.status, got.text);
        if got.text.is_empty() { Value::Null } else { got.json() }
    }

    async fn agent(&self, name: &str, role: &str) -> (Value, String) {
        let email = format!("{name}@example.org");
        let body = json!({ "email": email, "name": name, "role": role });
        let added = self.web.admin("POST /api/v1/agents", body).await.json();
        let accept = json!({ "invitation": added["invitation"], "password": PASSWORD });
        self.ok("", "POST /api/v1/agents/accept", accept).await;
        let login = json!({ "email": email, "password": PASSWORD });
        let got = self.ok("", "POST /api/v1/agents/login", login).await;
        (added, got["token"].as_str().unwrap().to_owned())
    }

    /// A visitor who asks something; token and conversation.
    async fn visitor(&self, email: Option<&str>) -> (String, String) {
        let who = json!({ "email": email, "name": "Eva", "locale": "de-AT" });
        let got = self.ok("", "POST /api/v1/widget/sessions", who).await;
        let token = got["token"].as_str().unwrap().to_owned();
        let message = json!({ "message": { "content": "Wo ist mein Paket?" } });
        let started = self.ok(&token, "POST /api/v1/widget/conversations", message).await;
        (token, started["conversation"]["id"].as_str().unwrap().to_owned())
    }

    async fn reply(&self, agent: &str, id: &str, text: &str) {
        let what = format!("POST /api/v1/conversations/{id}/messages");
        self.ok(agent, &what, json!({ "content": text })).await;
    }

    async fn rows(&self, token: &str, state: &str) -> Vec<Value> {
        let page = self.ok(token, &format!("GET /api/v1/outbox?state={state}"), Value::Null).await;
        page["items"].as_array().unwrap().clone()
    }
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), answer.code())
}

/// What follows `#return=` in an e-mail whose lines may be folded.
fn return_link(mail: &str) -> String {
    let mail = mail.replace("=\r\n", "").replace("=3D", "=");
    let at = mail.find("/chat#return=").unwrap() + "/chat#return=".len();
    mail[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || "._-~".contains(*c)).collect()
}

each_archive! {
    async fn an_answer_reaches_the_mail_server_and_its_link_leads_back(t: TestStore, a: TestArchive) {
        let server = MailServer::start().await;
        let desk = MailDesk::start(&t.store, &a, Some(server.port), true).await;
        let (added, agent) = desk.agent("anna", "supervisor").await;
        assert_eq!(added["emailed"], true);
        let config = desk.ok("", "GET /api/v1/widget/config", Value::Null).await;
        assert_eq!(config["email_replies"], true);
        let (own, id) = desk.visitor(Some("eva@example.org")).await;
        desk.reply(&agent, &id, "Es ist unterwegs.").await;
        t.clock.advance(3 * MINUTE);
        let mail = loop {
            // The invitation may have been sent before it was used.
            let mail = server.next().await;
            if mail.contains("RCPT TO:<eva@example.org>") {
                break mail;
            }
        };
        assert!(mail.starts_with("MAIL FROM:<a@shop.example>"), "{mail}");
        assert!(mail.contains("Auto-Submitted: auto-generated") && mail.contains("Es ist unterwegs."));
        assert!(mail.contains("anna schreibt:"), "in the visitor's language: {mail}");
        let link = return_link(&mail);
        let back = desk.ok("", "POST /api/v1/widget/return", json!({ "link": link })).await;
        assert_eq!(back["conversation_id"], id);
        let session = back["token"].as_str().unwrap();
        let page = desk.ok(session, &format!("GET /api/v1/widget/conversations/{id}/messages"), Value::Null).await;
        assert_eq!(page["items"].as_array().unwrap().len(), 2);
        let bad = desk.call("", "POST /api/v1/widget/return", json!({ "link": format!("{link}A") })).await;
        assert_eq!(code(&bad), (403, "BAD_LINK".to_owned()));
        // A blocked visitor does not come back by it.
        let visitor = back["visitor"]["id"].as_str().unwrap();
        desk.ok(&agent, &format!("POST /api/v1/visitors/{visitor}/block"), json!({})).await;
        let blocked = desk.call("", "POST /api/v1/widget/return", json!({ "link": link })).await;
        assert_eq!(code(&blocked), (403, "USER_BLOCKED".to_owned()));
        drop(own);
        desk.stop().await;
    }

    async fn transcripts_and_the_outbox_are_for_those_they_concern(t: TestStore, a: TestArchive) {
        let desk = MailDesk::start(&t.store, &a, Some(9), false).await;
        let (_, boss) = desk.agent("boss", "supervisor").await;
        let (_, agent) = desk.agent("anna", "agent").await;
        let (own, id) = desk.visitor(Some("eva@example.org")).await;
        let (stranger, other) = desk.visitor(None).await;
        let asked = format!("POST /api/v1/widget/conversations/{id}/transcript");
        assert_eq!(code(&desk.call(&own, &asked, Value::Null).await), (409, "NO_ANSWER_YET".to_owned()));
        assert_eq!(desk.call(&stranger, &asked, Value::Null).await.status, StatusCode::NOT_FOUND);
        desk.reply(&agent, &id, "hello").await;
        desk.reply(&agent, &other, "hello").await;
        let got = desk.call(&own, &asked, Value::Null).await;
        assert_eq!((got.status.as_u16(), &got.json()["email"]), (202, &json!("eva@example.org")));
        let by_agent = desk.call(&agent, &format!("POST /api/v1/conversations/{other}/transcript"), Value::Null).await;
        assert_eq!(code(&by_agent), (409, "NO_ADDRESS".to_owned()));
        // Nothing goes to loopback here: it waits, with the reason.
        let waiting = testkit::until("a reason", async || {
            let rows = desk.rows(&boss, "waiting").await;
            rows.into_iter().find(|row| row["kind"] == "transcript" && row["error"].is_string())
        })
        .await;
        assert!(waiting["error"].as_str().unwrap().contains("webhooks.allowed_networks"), "{waiting}");
        for (token, wanted) in [(&agent, 403), (&own, 401), (&String::new(), 401)] {
            for what in ["GET /api/v1/outbox", "POST /api/v1/outbox/1/resend", "DELETE /api/v1/outbox/1"] {
                let got = desk.call(token, what, Value::Null).await;
                assert_eq!(got.status.as_u16(), wanted, "{what}: {}", got.text);
            }
        }
        let row = waiting["id"].as_str().unwrap();
        desk.ok(&boss, &format!("POST /api/v1/outbox/{row}/resend"), Value::Null).await;
        desk.ok(&boss, &format!("DELETE /api/v1/outbox/{row}"), Value::Null).await;
        let gone = desk.call(&boss, &format!("DELETE /api/v1/outbox/{row}"), Value::Null).await;
        assert_eq!(gone.status, StatusCode::NOT_FOUND);
        let wrong = desk.call(&boss, "GET /api/v1/outbox?state=sent", Value::Null).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
        // Pages are cut and continued.
        let page = desk.ok(&boss, "GET /api/v1/outbox?state=waiting&limit=1", Value::Null).await;
        assert_eq!(page["items"].as_array().unwrap().len(), 1);
        let cursor = page["next_cursor"].as_str().unwrap();
        let next = desk.ok(&boss, &format!("GET /api/v1/outbox?state=waiting&limit=1&cursor={cursor}"), Value::Null).await;
        assert_ne!(next["items"][0]["id"], page["items"][0]["id"]);
        desk.stop().await;
    }

    async fn without_a_mail_server_nothing_is_promised(t: TestStore, a: TestArchive) {
        let desk = MailDesk::start(&t.store, &a, None, true).await;
        let (added, agent) = desk.agent("anna", "supervisor").await;
        assert_eq!(added["emailed"], false);
        let config = desk.ok("", "GET /api/v1/widget/config", Value::Null).await;
        assert_eq!(config["email_replies"], false);
        let (own, id) = desk.visitor(Some("eva@example.org")).await;
        desk.reply(&agent, &id, "hello").await;
        let asked = format!("POST /api/v1/widget/conversations/{id}/transcript");
        assert_eq!(code(&desk.call(&own, &asked, Value::Null).await), (409, "EMAIL_OFF".to_owned()));
        assert_eq!(desk.rows(&agent, "waiting").await, Vec::<Value>::new());
        desk.stop().await;
    }

    async fn a_browser_is_registered_by_its_agent_and_nobody_else(t: TestStore, a: TestArchive) {
        let desk = MailDesk::start(&t.store, &a, None, false).await;
        let (_, agent) = desk.agent("anna", "agent").await;
        let (visitor, _) = desk.visitor(None).await;
        let me = "/api/v1/agents/me/push";
        let key = desk.ok(&agent, &format!("GET {me}"), Value::Null).await;
        assert_eq!(key["public_key"].as_str().unwrap().len(), 87);
        // The same for every instance: it is kept.
        assert_eq!(desk.ok(&agent, &format!("GET {me}"), Value::Null).await, key);
        let body = |endpoint: &str| json!({ "endpoint": endpoint, "expirationTime": null, "keys": {
            "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "auth": "BTBZMqHH6r4Tts7J_aSIgg" } });
        let good = "https://push.example/abc";
        for bad in ["http://push.example/abc", "https://127.0.0.1/x", "https://[::1]/x", "https://169.254.169.254/", "x"] {
            let got = desk.call(&agent, &format!("POST {me}"), body(bad)).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{bad}: {}", got.text);
        }
        let mut short = body(good);
        short["keys"]["auth"] = json!("AAAA");
        assert!(desk.call(&agent, &format!("POST {me}"), short).await.status.is_client_error());
        for what in [format!("GET {me}"), format!("POST {me}"), format!("POST {me}/remove")] {
            let got = desk.call(&visitor, &what, body(good)).await;
            assert!(matches!(got.status.as_u16(), 400 | 401), "{what}: {}", got.text);
            let got = desk.web.admin(&what, body(good)).await;
            assert!(matches!(got.status.as_u16(), 400 | 403), "{what}: {}", got.text);
        }
        desk.ok(&agent, &format!("POST {me}"), body(good)).await;
        assert_eq!(desk.ok(&agent, &format!("GET {me}"), Value::Null).await["browsers"], 1);
        // Another agent cannot remove it; its own logout does.
        let (_, other) = desk.agent("ben", "agent").await;
        desk.ok(&other, &format!("POST {me}/remove"), json!({ "endpoint": good })).await;
        assert_eq!(desk.ok(&agent, &format!("GET {me}"), Value::Null).await["browsers"], 1);
        desk.ok(&agent, "POST /api/v1/agents/logout", Value::Null).await;
        let login = json!({ "email": "anna@example.org", "password": PASSWORD });
        let again = desk.ok("", "POST /api/v1/agents/login", login).await;
        let again = again["token"].as_str().unwrap();
        assert_eq!(desk.ok(again, &format!("GET {me}"), Value::Null).await["browsers"], 0);
        let worker = desk.call("", "GET /desk/worker.js", Value::Null).await;
        assert_eq!((worker.header("service-worker-allowed"), worker.header("content-type")), ("/desk", "text/javascript; charset=utf-8"));
        desk.stop().await;
    }
}
