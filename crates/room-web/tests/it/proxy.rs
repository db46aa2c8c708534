//! A real site behind the guard, real sockets on both sides.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::HeaderMap;
use axum::routing::{any, get, post};
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use room::{
    AdmissionRate, NewPosition, Options, QueueConfig, QueueId, Room, RoomMaintenance, Visitor,
};
use room_web::proxy::{
    Bypass, BypassTokens, GuardOptions, OpenPath, OriginServer, QueueRoute, WhenDown,
};
use room_web::{RoomService, RoomState};
use store::Store;
use testkit::tls::Certificates;
use testkit::{Proxy, RedisServer, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};
use tokio_util::sync::CancellationToken;
use web::Settings;
use web::serve::Server;
use web::serve::tls::Tls;
use web::testing::test_app;

/// Each of these is a test on the built-in store and one on Redis, in real time.
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod on_embedded {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() {
                super::$name(super::Behind::embedded().await).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() {
                super::$name(super::Behind::redis().await).await;
            })*
        }
    };
}

on_both_stores!(
    a_visitor_is_let_through_while_there_is_room_and_the_site_knows_who_came,
    who_has_no_pass_waits_and_programs_are_told_when_to_come_again,
    a_place_in_line_becomes_a_pass_when_its_turn_has_come,
    a_pass_that_is_forged_or_of_another_queue_is_none,
    a_socket_is_handed_through_and_ends_with_its_session,
    a_site_that_comes_back_finds_its_visitors_inside,
    parts_of_a_site_have_lines_of_their_own,
    programs_and_friends_need_no_pass_and_take_no_place,
    however_many_come_at_once_only_so_many_are_inside,
    the_waiting_page_is_the_guards_and_everything_else_the_sites,
    one_client_without_cookies_does_not_fill_the_room,
    what_is_judged_is_what_the_site_receives,
);

/// A store in real time.
struct Behind {
    store: Store,
    _server: Option<RedisServer>,
}

impl Behind {
    async fn embedded() -> Behind {
        Behind { store: Store::open("embedded:").await.unwrap(), _server: None }
    }

    async fn redis() -> Behind {
        let server = RedisServer::start();
        Behind { store: Store::open(&server.url()).await.unwrap(), _server: Some(server) }
    }
}

/// A guarded site.
struct Site {
    address: SocketAddr,
    room: Room,
    queue: QueueId,
    /// First bytes of uploads as the site sees them.
    uploads: Mutex<mpsc::UnboundedReceiver<usize>>,
    /// What the site's stream sends next.
    stream: mpsc::UnboundedSender<&'static str>,
    stop: CancellationToken,
    _behind: Behind,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn roomy() -> QueueConfig {
    QueueConfig {
        max_active: 100,
        max_active_per_address: Some(0),
        admission: AdmissionRate::new(1000, 1),
        admit_programs: true,
        ..QueueConfig::default()
    }
}

/// What the site behind the guard does.
fn origin(
    seen: mpsc::UnboundedSender<usize>,
    next: Arc<Mutex<mpsc::UnboundedReceiver<&'static str>>>,
) -> Router {
    let headers = async |method: axum::http::Method, headers: HeaderMap, request: Request| {
        let mut all = serde_json::Map::new();
        for (name, value) in &headers {
            let value = value.to_str().unwrap_or("?").to_owned();
            let before = all.remove(name.as_str()).map(|v| format!("{}|", v.as_str().unwrap()));
            all.insert(name.to_string(), format!("{}{value}", before.unwrap_or_default()).into());
        }
        all.insert(":target".into(), request.uri().to_string().into());
        all.insert(":method".into(), method.to_string().into());
        axum::Json(all)
    };
    let upload = async move |request: Request| {
        let mut body = request.into_body();
        let mut total = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { break };
            total += frame.data_ref().map_or(0, Bytes::len);
            seen.send(total).unwrap();
        }
        total.to_string()
    };
    let stream = async move || {
        let chunks = futures_util::stream::unfold(next.clone(), |next| async move {
            let text = next.lock().await.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(text.as_bytes())), next))
        });
        Body::from_stream(chunks)
    };
    let socket = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        })
    };
    Router::new()
        .route("/upload", post(upload))
        .route("/stream", get(stream))
        .route("/socket", get(socket))
        .route("/slow", get(async || std::future::pending::<&str>().await))
        .route("/large", get(async || vec![b'x'; 48 << 20]))
        .route("/done", get(async || ([("wr-command", "complete")], "bye")))
        .route(
            "/hop",
            get(async || ([("connection", "x-hop"), ("x-hop", "1"), ("x-kept", "1")], "hop")),
        )
        .fallback(any(headers))
}

fn guarding(queue: QueueId, origin: OriginServer) -> GuardOptions {
    GuardOptions {
        queue,
        routes: Vec::new(),
        origin,
        origin_ca: None,
        keep_host: true,
        when_down: WhenDown::Closed,
        max_body: 100_000,
        connect_timeout: Duration::from_secs(5),
        answer_timeout: Duration::from_secs(20),
        socket_idle_timeout: Duration::from_secs(60),
        bypass: Bypass {
            paths: ["/robots.txt", "/open/*"].map(|p| OpenPath::parse(p).unwrap()).into(),
            ..Bypass::default()
        },
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

impl Site {
    async fn start(behind: Behind, config: QueueConfig) -> Site {
        Site::with(behind, config, |_| {}).await
    }

    async fn with(
        behind: Behind,
        config: QueueConfig,
        how: impl FnOnce(&mut GuardOptions),
    ) -> Site {
        Site::serving(behind, config, Settings::default(), how).await
    }

    async fn serving(
        behind: Behind,
        config: QueueConfig,
        settings: Settings,
        how: impl FnOnce(&mut GuardOptions),
    ) -> Site {
        Site::limited(behind, config, settings, 600, how).await
    }

    /// With a limit on the positions one network may take in a minute.
    async fn limited(
        behind: Behind,
        config: QueueConfig,
        settings: Settings,
        per_minute: u32,
        how: impl FnOnce(&mut GuardOptions),
    ) -> Site {
        let store = behind.store.clone();
        let (seen, uploads) = mpsc::unbounded_channel();
        let (stream, next) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let site = listener().await;
        let at = site.local_addr().unwrap();
        let served = axum::serve(site, origin(seen, Arc::new(Mutex::new(next))));
        let ended = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            tokio::select! {
                served = served => served.unwrap(),
                () = ended => {}
            }
        });

        let room = Room::open(store.clone(), Options::default()).await.unwrap();
        let queue = QueueId::parse("site").unwrap();
        room.create_queue(&queue, config).await.unwrap();
        let keeper = RoomMaintenance::new(room.clone());
        let keeping = stop.clone();
        tokio::spawn(async move { keeper.run(keeping).await });
        let app = test_app(store, settings, vec![RoomService::on(room.clone(), per_minute)], None);
        let mut guarding =
            guarding(queue.clone(), OriginServer::parse(&format!("http://{at}")).unwrap());
        how(&mut guarding);
        let router =
            room_web::proxy::guard(RoomState::new(app.clone(), room.clone(), per_minute), guarding)
                .unwrap();
        let server = Server::new(app, listener().await).with_router(router);
        let address = server.address().unwrap();
        tokio::spawn(server.run(stop.clone(), Duration::ZERO));
        let uploads = Mutex::new(uploads);
        Site { address, room, queue, uploads, stream, stop, _behind: behind }
    }

    /// One request on a connection of its own, and the whole answer.
    async fn send(&self, head: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut socket = self.open(head, headers).await;
        socket.write_all(body).await.unwrap();
        Answer::read(&mut socket).await
    }

    /// Sends the head of a request.
    async fn open(&self, head: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let mut text = format!("{head} HTTP/1.1\r\n");
        for (name, value) in [("host", "shop.example"), ("connection", "close")] {
            if !headers.iter().any(|(given, _)| *given == name) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        socket.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
        socket
    }

    /// A person's browser goes to a page.
    async fn navigate(&self, path: &str, cookie: &str) -> Answer {
        let headers = [("accept", "text/html"), ("cookie", cookie)];
        self.send(&format!("GET {path}"), &headers[..1 + usize::from(!cookie.is_empty())], b"")
            .await
    }

    /// A program asks.
    async fn ask(&self, path: &str, cookie: &str) -> Answer {
        self.send(&format!("GET {path}"), &[("cookie", cookie)], b"").await
    }

    /// A visitor who is inside: the cookie with the pass.
    async fn visitor(&self) -> String {
        let answer = self.navigate("/", "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.cookie().unwrap()
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    async fn read(socket: &mut TcpStream) -> Answer {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.unwrap();
        Answer::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Answer { status, headers, body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Name and value of the cookie that was set.
    fn cookie(&self) -> Option<String> {
        Some(self.header("set-cookie")?.split(';').next()?.to_owned())
    }

    fn json(&self) -> serde_json::Value {
        let from = self.body.find('{').unwrap_or_else(|| panic!("{self:?}"));
        let to = self.body.rfind('}').unwrap();
        serde_json::from_str(&self.body[from..=to]).unwrap()
    }
}

async fn a_visitor_is_let_through_while_there_is_room_and_the_site_knows_who_came(behind: Behind) {
    let site = Site::start(behind, roomy()).await;
    let first = site.navigate("/a/b?c=d&e=%20", "").await;
    assert_eq!(first.status, 200);
    let cookie = first.cookie().unwrap();
    let set = first.header("set-cookie").unwrap();
    assert!(cookie.starts_with("wr_site=eyJ") && set.contains("HttpOnly"), "{set}");
    let seen = first.json();
    assert_eq!(seen[":target"], "/a/b?c=d&e=%20");
    assert_eq!(seen["host"], "shop.example");
    assert_eq!(seen["x-forwarded-for"], "127.0.0.1");
    assert_eq!(seen["x-forwarded-host"], "shop.example");
    assert_eq!(seen["x-forwarded-proto"], "http");
    assert_eq!(seen["x-wr-queue"], "site");
    let session = seen["x-wr-session"].clone();

    let headers = [
        ("cookie", cookie.as_str()),
        ("x-wr-session", "forged"),
        ("x-forwarded-for", "6.6.6.6"),
        ("te", "trailers"),
    ];
    let again = site.send("DELETE /x", &headers, b"").await;
    let seen = again.json();
    assert_eq!(again.status, 200, "the pass is good");
    let renewed = again.cookie().expect("the cookie came back: a pass for the whole session");
    assert_eq!(site.ask("/x", &renewed).await.header("set-cookie"), None);
    assert_eq!(seen[":method"], "DELETE");
    assert_eq!(seen["x-wr-session"], session);
    assert_eq!(seen["x-forwarded-for"], "127.0.0.1");
    assert!(seen.get("te").is_none());
    assert_eq!(site.room.queue(&site.queue).await.unwrap().active, 1);

    let hop = site.ask("/hop", &cookie).await;
    assert_eq!((hop.header("x-hop"), hop.header("x-kept")), (None, Some("1")));
    let head = site.send("HEAD /hop", &[("cookie", cookie.as_str())], b"").await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("3")));
    assert_eq!(site.send("GET /robots.txt", &[], b"").await.json()[":target"], "/robots.txt");
    assert_eq!(site.room.queue(&site.queue).await.unwrap().active, 1, "nobody new");
}

async fn who_has_no_pass_waits_and_programs_are_told_when_to_come_again(behind: Behind) {
    let site = Site::start(behind, QueueConfig { max_active: 1, ..roomy() }).await;
    let inside = site.visitor().await;
    let second = site.navigate("/cart?id=7", "").await;
    assert_eq!(second.status, 302, "{second:?}");
    assert_eq!(second.header("location"), Some("/_wr/site?return_to=/cart%3Fid%3D7"));
    assert_eq!(second.header("cache-control"), Some("no-store"));
    for head in ["GET /api", "POST /api", "GET /socket"] {
        let told = site.send(head, &[("content-length", "0")], b"").await;
        assert_eq!(told.status, 429, "{told:?}");
        assert!(told.header("retry-after").is_some() && told.header("x-wr-location").is_some());
        assert_eq!(told.json()["error"]["code"], "QUEUED");
        let details = &told.json()["error"]["details"];
        assert_eq!(details["queue"], "site");
        assert_eq!(details["next_position"], 1);
        assert_eq!(details["enqueue"], "/_wr/api/v1/queues/site/enqueue");
    }
    let form = [("accept", "text/html"), ("content-length", "0")];
    assert_eq!(site.send("POST /pay", &form, b"").await.status, 302, "a form of an older browser");
    // Nothing but a person's navigation is a reason to stand in line.
    let prefetch = [("accept", "text/html"), ("sec-purpose", "prefetch")];
    assert_eq!(site.send("GET /", &prefetch, b"").await.status, 302);
    assert_eq!(site.send("HEAD /", &prefetch[..1], b"").await.status, 302);
    assert_eq!(site.room.queue(&site.queue).await.unwrap().waiting, 0);
    let preflight = [("origin", "https://x"), ("access-control-request-method", "PUT")];
    assert_eq!(site.send("OPTIONS /api", &preflight, b"").await.status, 200);

    // The visitor inside is done: the next one comes in by asking again.
    let done = site.ask("/done", &inside).await;
    assert_eq!((done.status, done.header("wr-command")), (200, None));
    until("the slot is free", async || (site.navigate("/", "").await.status == 200).then_some(()))
        .await;
    assert_eq!(site.ask("/", &inside).await.status, 429, "that pass is over");
}

async fn a_place_in_line_becomes_a_pass_when_its_turn_has_come(behind: Behind) {
    let site = Site::start(behind, QueueConfig { max_active: 1, ..roomy() }).await;
    let inside = site.visitor().await;
    let position = site.room.enqueue(&site.queue, NewPosition::default()).await.unwrap().position;
    let held = format!("wr_site={}", site.room.position_token(&position).await.unwrap());
    assert_eq!(site.navigate("/", &held).await.status, 302);
    site.ask("/done", &inside).await;
    let answer = until("the turn has come", async || {
        let answer = site.navigate("/", &held).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert!(answer.cookie().unwrap().starts_with("wr_site=eyJ"));
    // With a token in the address, from a waiting page elsewhere: once, and it is taken out.
    site.ask("/done", &answer.cookie().unwrap()).await;
    let position = until("admitted", async || {
        let position =
            site.room.enqueue(&site.queue, NewPosition::default()).await.unwrap().position;
        (position.state == room::PositionState::Admitted).then_some(position)
    })
    .await;
    let token = site.room.redirect_token(&position).await.unwrap();
    let path = format!("/cart?wrtoken={token}&id=7");
    let arrived = site.navigate(&path, "").await;
    assert_eq!((arrived.status, arrived.header("location")), (302, Some("/cart?id=7")));
    assert_eq!(site.navigate("/cart?id=7", &arrived.cookie().unwrap()).await.status, 200);
    let passed_on = site.navigate(&path, "").await;
    assert!(passed_on.header("location").unwrap().starts_with("/_wr/"), "{passed_on:?}");
}

async fn a_pass_that_is_forged_or_of_another_queue_is_none(behind: Behind) {
    let site = Site::start(behind, QueueConfig { max_active: 1, ..roomy() }).await;
    let good = site.visitor().await;
    let other = QueueId::parse("other").unwrap();
    site.room.create_queue(&other, roomy()).await.unwrap();
    let position = site.room.enqueue(&other, NewPosition::default()).await.unwrap().position;
    let claimed = site.room.start_session(&other, &position.id, &Visitor::default()).await.unwrap();
    let room::SessionStart::Active { session, .. } = claimed else { panic!("{claimed:?}") };
    let others = site.room.issue_pass(&session).await.unwrap();
    let token = good.strip_prefix("wr_site=").unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (head, claims) = signed.split_once('.').unwrap();
    let mut forged = signature.as_bytes().to_vec();
    forged[10] = if forged[10] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    // {"alg":"none","typ":"JWT"}
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    for bad in [
        others.clone(),
        format!("{signed}.{forged}"),
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{head}.{claims}"),
        "eyJ".to_owned(),
        "x".repeat(5_000),
    ] {
        let refused = site.ask("/", &format!("wr_site={bad}")).await;
        assert_eq!(refused.status, 429, "{bad}: {refused:?}");
    }
    assert_eq!(site.ask("/", &format!("wr_other={others}")).await.status, 429);
    assert_eq!(site.ask("/", &good).await.status, 200);
    // An operator takes the session away: at once, on the instance that did.
    let list = site.room.sessions(&site.queue, 0, 10).await.unwrap();
    site.room.terminate(&site.queue, &list[0].id).await.unwrap();
    assert!(
        site.ask("/", &good).await.status != 200
            || site.room.queue(&site.queue).await.unwrap().active == 1
    );
    let again = site.room.verify_pass(&site.queue, token).await;
    assert!(matches!(again, Err(room::Error::Token(_))), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_stream_both_ways() {
    let site = Site::start(Behind::embedded().await, roomy()).await;
    let cookie = site.visitor().await;

    // The site has the first byte of an upload before the last one is sent.
    let headers = [("cookie", cookie.as_str()), ("content-length", "10")];
    let mut socket = site.open("POST /upload", &headers).await;
    socket.write_all(b"first").await.unwrap();
    assert_eq!(site.uploads.lock().await.recv().await, Some(5));
    socket.write_all(b"later").await.unwrap();
    let answer = Answer::read(&mut socket).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "10"));

    // The visitor has the first byte of an answer before the last one is sent.
    let mut socket = site.open("GET /stream", &[("cookie", cookie.as_str())]).await;
    site.stream.send("one").unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("one") {
        assert!(socket.read_buf(&mut got).await.unwrap() > 0);
    }
    site.stream.send("two").unwrap();
    while !String::from_utf8_lossy(&got).contains("two") {
        assert!(socket.read_buf(&mut got).await.unwrap() > 0);
    }
    // A visitor who leaves is no reason to go on.
    drop(socket);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_be_only_so_large() {
    let site = Site::start(Behind::embedded().await, roomy()).await;
    let cookie = site.visitor().await;
    let headers = [("cookie", cookie.as_str()), ("content-length", "100001")];
    let mut socket = site.open("POST /upload", &headers).await;
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
    }
    assert_eq!(Answer::parse(&bytes).status, 413);

    let headers = [("cookie", cookie.as_str()), ("transfer-encoding", "chunked")];
    let mut socket = site.open("POST /upload", &headers).await;
    let chunk = format!("c350\r\n{}\r\n", "x".repeat(50_000));
    for _ in 0..3 {
        // It may be refused before all of it is written.
        let _ = socket.write_all(chunk.as_bytes()).await;
    }
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
    }
    assert_eq!(Answer::parse(&bytes).status, 413);
}

/// A socket to the site, through the guard.
async fn socket(site: &Site) -> WebSocketStream<TcpStream> {
    let cookie = site.visitor().await;
    let stream = TcpStream::connect(site.address).await.unwrap();
    let request = axum::http::Request::builder()
        .uri(format!("ws://{}/socket", site.address))
        .header("host", "shop.example")
        .header("cookie", &cookie)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(())
        .unwrap();
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(answer.status(), 101);
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_outlasts_the_times_set_for_requests() {
    let short = Duration::from_secs(1);
    let settings = Settings {
        header_timeout: short,
        body_timeout: short,
        idle_timeout: short,
        ..Settings::default()
    };
    let site = Site::serving(Behind::embedded().await, roomy(), settings, |_| {}).await;
    let mut socket = socket(&site).await;
    // The time that passes is what is tested: together and then each longer than those above.
    for pause in [short / 2, short / 2, short / 2, short * 2, short * 2] {
        tokio::time::sleep(pause).await;
        socket.send(Message::text("still here")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("still here"));
    }
}

async fn a_socket_is_handed_through_and_ends_with_its_session(behind: Behind) {
    let site = Site::start(behind, roomy()).await;
    let mut socket = socket(&site).await;
    for text in ["hello", "again"] {
        socket.send(Message::text(text)).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(text));
    }
    let list = site.room.sessions(&site.queue, 0, 10).await.unwrap();
    site.room.terminate(&site.queue, &list[0].id).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(Ok(_)) = socket.next().await {}
    });
    ended.await.expect("the socket ends with the session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_down_slow_or_the_guard_itself_is_told_plainly() {
    let nowhere = listener().await;
    let at = nowhere.local_addr().unwrap();
    drop(nowhere);
    let site = Site::with(Behind::embedded().await, roomy(), |how| {
        how.origin = OriginServer::parse(&format!("http://{at}")).unwrap();
    })
    .await;
    let page = site.navigate("/", "").await;
    assert_eq!(page.status, 502, "{page:?}");
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    assert!(page.body.contains("The site is not responding right now"), "{page:?}");
    assert!(page.body.contains("http-equiv=\"refresh\""), "it looks again by itself");
    let german = [("accept", "text/html"), ("accept-language", "de-AT,de")];
    let page = site.send("GET /", &german, b"").await;
    assert!(page.body.contains("Die Website antwortet derzeit nicht"), "{page:?}");
    let sent = [("accept", "text/html"), ("sec-fetch-mode", "navigate"), ("content-length", "0")];
    let page = site.send("POST /", &sent, b"").await;
    assert_eq!(page.status, 502);
    assert!(!page.body.contains("http-equiv"), "what was sent is not sent again by itself");
    let told = site.ask("/", "").await;
    assert_eq!((told.status, told.json()["error"]["code"].clone()), (502, "ORIGIN_DOWN".into()));

    let slow = Site::with(Behind::embedded().await, roomy(), |how| {
        how.answer_timeout = Duration::from_millis(300);
    })
    .await;
    let told = slow.ask("/slow", "").await;
    assert_eq!((told.status, told.json()["error"]["code"].clone()), (504, "ORIGIN_SLOW".into()));
    let looped = slow.send("GET /", &[("x-wr-guarded", "site")], b"").await;
    assert_eq!(looped.status, 508);
}

async fn a_site_that_comes_back_finds_its_visitors_inside(behind: Behind) {
    let nowhere = listener().await;
    let at = nowhere.local_addr().unwrap();
    drop(nowhere);
    let origin = OriginServer::parse(&format!("http://{at}")).unwrap();
    let config = QueueConfig { max_active: 1, ..roomy() };
    let site = Site::with(behind, config, |how| how.origin = origin).await;
    let page = site.navigate("/", "").await;
    assert_eq!(page.status, 502);
    let pass = page.cookie().expect("let in, although there is nothing to see yet");
    let again = site.navigate("/", &pass).await;
    assert_eq!(again.status, 502);
    assert!(again.body.contains("still active"), "{}", again.body);
    assert_eq!(site.navigate("/", "").await.status, 302, "the position inside is taken");

    let back = TcpListener::bind(at).await.unwrap();
    let answers = Router::new().fallback(any(async || "back"));
    let stop = site.stop.clone();
    tokio::spawn(async move {
        axum::serve(back, answers).with_graceful_shutdown(stop.cancelled_owned()).await
    });
    let answer = site.navigate("/", &pass).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "back"));
    assert_eq!(site.room.queue(&site.queue).await.unwrap().active, 1);
}

async fn parts_of_a_site_have_lines_of_their_own(behind: Behind) {
    let config = QueueConfig { max_active: 1, ..roomy() };
    let site = Site::with(behind, config.clone(), |how| {
        how.routes =
            ["/checkout=checkout", "vip.example=vip"].map(|r| QueueRoute::parse(r).unwrap()).into();
    })
    .await;
    let checkout = QueueId::parse("checkout").unwrap();
    let unmade = site.navigate("/checkout", "").await;
    assert_eq!(unmade.status, 503, "a queue that is not there lets nobody in: {unmade:?}");
    for name in ["checkout", "vip"] {
        site.room.create_queue(&QueueId::parse(name).unwrap(), config.clone()).await.unwrap();
    }

    let inside = site.visitor().await;
    assert!(inside.starts_with("wr_site="));
    // A pass of the one is none of the other.
    let first = site.navigate("/checkout/pay", &inside).await;
    let paying = first.cookie().expect("room in the second line");
    assert!(paying.starts_with("wr_checkout=eyJ"), "{paying}");
    assert_eq!((first.status, first.json()["x-wr-queue"].clone()), (200, "checkout".into()));
    let second = site.navigate("/%63heckout", &inside).await;
    assert_eq!(second.header("location"), Some("/_wr/checkout?return_to=/checkout"));
    assert_eq!(second.header("x-wr-queue"), Some("checkout"));
    assert_eq!(site.navigate("/checkout", &paying).await.status, 200);
    assert_eq!(site.navigate("/", &inside).await.json()["x-wr-queue"], "site");
    let vip = [("host", "VIP.example:8080"), ("accept", "text/html")];
    let vip = site.send("GET /checkout", &vip, b"").await;
    assert_eq!(vip.json()["x-wr-queue"], "vip");
    // The site's word ends the session of the line the request came through.
    assert_eq!(site.room.queue(&checkout).await.unwrap().active, 1);
    assert_eq!(site.ask("/done", &inside).await.status, 200);
    let over = |queue: QueueId| {
        let room = site.room.clone();
        async move { (room.queue(&queue).await.unwrap().active == 0).then_some(()) }
    };
    until("the session of the site is over", || over(site.queue.clone())).await;
    assert_eq!(site.room.queue(&checkout).await.unwrap().active, 1);
}

async fn programs_and_friends_need_no_pass_and_take_no_place(behind: Behind) {
    let token = "f3a09c31d7be4425a6e1";
    let config = QueueConfig { max_active: 1, ..roomy() };
    let site =
        Site::with(behind, config, |how| how.bypass.tokens = BypassTokens::parse(token).unwrap())
            .await;
    let inside = site.visitor().await;
    let with = [("x-wr-bypass", token)];
    for head in ["GET /api", "DELETE /api", "HEAD /api"] {
        assert_eq!(site.send(head, &with, b"").await.status, 200, "{head}");
    }
    let seen = site.send("GET /api", &with, b"").await.json();
    assert!(seen.get("x-wr-bypass").is_none(), "the site does not learn it");
    assert!(seen.get("x-wr-session").is_none());
    let wrong = [("x-wr-bypass", "f3a09c31d7be4425a6e2")];
    assert_eq!(site.send("GET /api", &wrong, b"").await.status, 429);
    for path in ["/open/a.css", "/robots.txt"] {
        assert_eq!(site.ask(path, "").await.json()[":target"], path);
    }
    for path in ["/open/../cart", "/open/%2e%2e/cart", "/open"] {
        assert_eq!(site.ask(path, "").await.status, 429, "{path}");
    }
    let queue = site.room.queue(&site.queue).await.unwrap();
    assert_eq!((queue.active, queue.waiting), (1, 0));
    assert_eq!(site.ask("/", &inside).await.status, 200);

    let near = Site::with(Behind::embedded().await, roomy(), |how| {
        how.bypass.networks = vec!["127.0.0.0/8".parse().unwrap()];
    })
    .await;
    let answer = near.navigate("/", "").await;
    assert_eq!((answer.status, answer.cookie()), (200, None));
    assert_eq!(near.room.queue(&near.queue).await.unwrap().active, 0);
}

/// A site over https with a certificate of its own authority.
async fn secure_origin(certificates: &Certificates) -> SocketAddr {
    let tls = Tls::load(
        &certificates.folder().join("server.pem"),
        &certificates.folder().join("server.key"),
    );
    let app =
        test_app(Store::open("embedded:").await.unwrap(), Settings::default(), Vec::new(), None);
    let told = async |headers: HeaderMap| format!("secure, for {:?}", headers["host"]);
    let everywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let server = Server::new(app, everywhere)
        .with_router(Router::new().fallback(any(told)))
        .with_tls(Arc::new(tls.unwrap()));
    let at = server.address().unwrap();
    tokio::spawn(server.run(CancellationToken::new(), Duration::ZERO));
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_over_https_must_be_who_it_says_it_is() {
    let certificates = Certificates::make().unwrap();
    let port = secure_origin(&certificates).await.port();
    let reach = async |host: &str, ca: Option<std::path::PathBuf>| {
        let origin = OriginServer::parse(&format!("https://{host}:{port}")).unwrap();
        let site = Site::with(Behind::embedded().await, roomy(), |how| {
            (how.origin, how.origin_ca) = (origin, ca);
        })
        .await;
        let answer = site.ask("/", "").await;
        (answer.status, answer.body)
    };
    let ours = Some(certificates.folder().join("ca.pem"));
    let (status, body) = reach("localhost", ours.clone()).await;
    assert_eq!((status, body.as_str()), (200, "secure, for \"shop.example\""));
    assert_eq!(reach("127.0.0.1", ours).await.0, 200);
    // The site's own certificate in the file is enough, also under another name.
    let exact = Some(certificates.folder().join("server.pem"));
    assert_eq!(reach("127.0.0.2", exact.clone()).await.0, 200);
    assert_eq!(reach("127.0.0.2", Some(certificates.folder().join("ca.pem"))).await.0, 502);
    // Nobody the system knows vouches for it; somebody else's authority does not either.
    assert_eq!(reach("localhost", None).await.0, 502);
    let others = Certificates::make().unwrap();
    assert_eq!(reach("localhost", Some(others.folder().join("ca.pem"))).await.0, 502);
    // A file without certificates is told at the start.
    let key = certificates.folder().join("server.key");
    let app =
        test_app(Store::open("embedded:").await.unwrap(), Settings::default(), Vec::new(), None);
    let mut how =
        guarding(QueueId::parse("site").unwrap(), OriginServer::parse("https://a").unwrap());
    how.origin_ca = Some(key);
    let room = Room::open(app.store().clone(), Options::default()).await.unwrap();
    let told = room_web::proxy::guard(RoomState::new(app, room, 600), how).unwrap_err().to_string();
    assert!(told.contains("no certificate"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_things_go_through_in_both_directions() {
    const LARGE: usize = 48 << 20;
    let site = Site::with(Behind::embedded().await, roomy(), |how| how.max_body = 0).await;
    let cookie = site.visitor().await;
    let length = LARGE.to_string();
    let headers = [("cookie", cookie.as_str()), ("content-length", length.as_str())];
    let mut socket = site.open("POST /upload", &headers).await;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..LARGE / piece.len() {
        socket.write_all(&piece).await.unwrap();
    }
    assert_eq!(Answer::read(&mut socket).await.body, length);
    let mut socket = site.open("GET /large", &[("cookie", cookie.as_str())]).await;
    let mut got = 0;
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = socket.read(&mut piece).await.unwrap();
        got += read;
        if read == 0 {
            break;
        }
    }
    assert!(got > LARGE, "{got}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_a_pass_is_good_and_newcomers_are_treated_as_chosen() {
    let redis = RedisServer::start();
    for (when_down, expect) in [(WhenDown::Open, 200), (WhenDown::Closed, 503)] {
        let _: String = redis.query(&["FLUSHALL"]).unwrap();
        let proxy = Proxy::start(redis.port(), 7).await.unwrap();
        let store = Store::open(&proxy.url()).await.unwrap();
        let behind = Behind { store, _server: None };
        let site = Site::with(behind, roomy(), |how| how.when_down = when_down).await;
        let cookie = site.visitor().await;
        assert_eq!(site.ask("/", &cookie).await.status, 200);
        proxy.cut();
        for _ in 0..3 {
            let newcomer = site.ask("/", "").await;
            assert_eq!(newcomer.status, expect, "{when_down:?}: {newcomer:?}");
            assert_eq!(site.ask("/", &cookie).await.status, 200, "{when_down:?}");
            assert_eq!(site.ask("/", "wr_site=eyJforged").await.status, expect);
        }
        proxy.heal();
        until("the room works again", async || {
            let back = site.navigate("/", "").await;
            (back.status == 200 && back.cookie().is_some()).then_some(())
        })
        .await;
        assert_eq!(site.ask("/", &cookie).await.status, 200, "nobody inside noticed");
    }
}

async fn however_many_come_at_once_only_so_many_are_inside(behind: Behind) {
    let site = Site::start(behind, QueueConfig { max_active: 10, ..roomy() }).await;
    let come = |n: usize| {
        let site = &site;
        async move {
            // Some are people, some are programs.
            match n % 2 {
                0 => site.navigate("/", "").await,
                _ => site.ask("/", "").await,
            }
        }
    };
    let answers = futures_util::future::join_all((0..80).map(come)).await;
    let passed: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert!((1..=10).contains(&passed.len()), "{}", passed.len());
    assert!(passed.iter().all(|answer| answer.cookie().is_some()));
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 302 | 429)));
    let queue = site.room.queue(&site.queue).await.unwrap();
    assert!(queue.active + queue.admitted <= 10, "{queue:?}");
}

async fn the_waiting_page_is_the_guards_and_everything_else_the_sites(behind: Behind) {
    let site = Site::start(behind, QueueConfig { max_active: 1, ..roomy() }).await;
    let inside = site.visitor().await;
    // Our own calls are not to be had here: these paths are the site's.
    for path in ["/api/v1/admin/queues", "/metrics", "/gate/forward/site", "/_wrong"] {
        assert_eq!(site.ask(path, &inside).await.json()[":target"], path);
    }
    let page = site.navigate("/_wr/site", "").await;
    assert!(page.status == 200 || page.status == 303, "{page:?}");
    assert!(!page.body.contains(":target"));
}

async fn one_client_without_cookies_does_not_fill_the_room(behind: Behind) {
    let config = QueueConfig {
        max_active: 300,
        max_active_per_address: None,
        admit_programs: false,
        ..roomy()
    };
    let site = Site::limited(behind, config, Settings::default(), 10, |_| {}).await;
    for _ in 0..320 {
        let told = site.ask("/x", "").await;
        assert_eq!((told.status, told.json()["error"]["code"].clone()), (429, "QUEUED".into()));
    }
    assert_eq!(site.room.queue(&site.queue).await.unwrap().active, 0, "programs start no session");
    let mut inside = 0;
    for _ in 0..320 {
        inside += u32::from(site.navigate("/x", "").await.status == 200);
    }
    assert_eq!(inside, 10, "as many as one network may enqueue in a minute");
    let sessions = site.room.sessions(&site.queue, 0, 20).await.unwrap();
    let short = |session: &room::VisitorSession| session.expires.0 - session.started.0 <= 61_000;
    assert!(sessions.iter().all(short), "until the cookie came back: {sessions:?}");
    let queue = site.room.queue(&site.queue).await.unwrap();
    assert_eq!((queue.active, queue.admitted, queue.waiting), (10, 0, 0));
}

/// Paths of the site that are not under `/checkout`, however they are written.
async fn what_is_judged_is_what_the_site_receives(behind: Behind) {
    let site = Site::with(behind, roomy(), |how| {
        how.routes = ["/checkout=checkout", "tickets.example=checkout"]
            .map(|r| QueueRoute::parse(r).unwrap())
            .into();
    })
    .await;
    let checkout = QueueId::parse("checkout").unwrap();
    site.room.create_queue(&checkout, roomy()).await.unwrap();
    site.room.pause_queue(&checkout).await.unwrap();
    let inside = site.visitor().await;
    for (path, expect) in [
        ("/", Some("/")),
        ("/checkout", None),
        ("/CHECKOUT/pay", None),
        ("/%63heckout", None),
        ("/checkout/..", Some("/")),
        ("/checkout/pay/../..", Some("/")),
        ("/checkout/%2e%2e", Some("/")),
        ("/checkout/%2E%2e/a?b=/../c", Some("/a?b=/../c")),
        ("/a/../checkout", None),
        ("/a/%2e%2e/checkout", None),
        ("/..;/checkout", None),
        ("/a/..;/checkout", None),
        ("//checkout", None),
        ("/a%2f..%2fcheckout", None),
        ("/a\\..\\checkout", None),
        ("/a%5c..%5ccheckout", None),
        ("/checkout%00", None),
        ("/checkout;x=1", None),
        ("/checkout%3Fx", None),
        ("/%2563heckout", None),
        ("/caf%c3%a9/{x}", Some("/caf%C3%A9/%7Bx%7D")),
        ("http://shop.example/a/./b", Some("/a/b")),
        ("http://tickets.example/a", None),
        ("*", None),
    ] {
        let answer = site.ask(path, &inside).await;
        match expect {
            Some(target) => assert_eq!(answer.json()[":target"], target, "{path}: {answer:?}"),
            None => assert!(matches!(answer.status, 400 | 429), "{path}: {answer:?}"),
        }
    }
    for (host, expect) in [
        ("tickets.example", 429),
        ("TICKETS.example.", 429),
        ("tickets.example.:80", 429),
        ("user@tickets.example", 400),
        ("tickets%2eexample", 400),
        ("shop.example.", 200),
    ] {
        let headers = [("cookie", inside.as_str()), ("host", host)];
        let answer = site.send("GET /", &headers, b"").await;
        assert_eq!(answer.status, expect, "{host}: {answer:?}");
        if expect == 200 {
            assert_eq!(answer.json()["host"], "shop.example");
        }
    }
    let twice = [("host", "shop.example"), ("host", "tickets.example")];
    assert_eq!(site.send("GET /", &twice, b"").await.status, 400);

    // Nothing but the request itself says what it is.
    let preflight = [
        ("origin", "https://x"),
        ("access-control-request-method", "PUT"),
        ("content-length", "1"),
    ];
    assert_eq!(site.send("OPTIONS /checkout", &preflight, b"x").await.status, 429);
    assert_eq!(site.send("OPTIONS /checkout", &preflight[..2], b"").await.status, 200);
    let connect = site.send("CONNECT shop.example:80", &[], b"").await;
    assert_eq!(connect.status, 405, "{connect:?}");
    let disguised = [
        ("cookie", inside.as_str()),
        ("x-http-method-override", "DELETE"),
        ("x_wr_session", "forged"),
        ("connection", "close, x-wr-session"),
    ];
    let seen = site.send("GET /", &disguised, b"").await.json();
    assert!(seen.get("x-http-method-override").is_none() && seen.get("x_wr_session").is_none());
    assert!(seen["x-wr-session"].as_str().is_some_and(|session| session != "forged"), "{seen}");
    let broken = [("cookie", inside.as_str()), ("transfer-encoding", "chunked")];
    let told = site.send("POST /upload", &broken, b"zz\r\nhello\r\n").await;
    assert_eq!(
        (told.status, told.json()["error"]["code"].clone()),
        (400, "INVALID_REQUEST".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_only_so_many_sockets_also_behind_a_proxy() {
    let settings = Settings {
        max_connections_per_address: 3,
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..Settings::default()
    };
    let site = Site::serving(Behind::embedded().await, roomy(), settings, |_| {}).await;
    let cookie = site.visitor().await;
    let open = async |from: &str| {
        let headers = [
            ("cookie", cookie.as_str()),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("x-forwarded-for", from),
        ];
        let mut socket = site.open("GET /socket", &headers).await;
        let mut head = [0; 12];
        socket.read_exact(&mut head).await.unwrap();
        (String::from_utf8_lossy(&head[9..]).into_owned(), socket)
    };
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let (status, socket) = open("203.0.113.9").await;
        assert_eq!(status, "101");
        sockets.push(socket);
    }
    assert_eq!(open("203.0.113.9").await.0, "503");
    assert_eq!(open("198.51.100.1, 203.0.113.9").await.0, "503", "the left part is made up");
    assert_eq!(open("203.0.113.10").await.0, "101", "another address has its own");
    assert_eq!(site.ask("/", &cookie).await.status, 200, "requests are not counted");
    drop(sockets);
    until("there is room again", async || {
        let (status, _) = open("203.0.113.9").await;
        (status == "101").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_counted_and_end_when_nothing_is_sent() {
    let settings = Settings { max_connections: 4, ..Settings::default() };
    let site = Site::serving(Behind::embedded().await, roomy(), settings, |how| {
        how.socket_idle_timeout = Duration::from_secs(2);
    })
    .await;
    let cookie = site.visitor().await;
    let open = async || {
        let headers = [
            ("cookie", cookie.as_str()),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let mut socket = site.open("GET /socket", &headers).await;
        let mut head = [0; 12];
        let read = socket.read_exact(&mut head).await;
        (read.is_ok() && &head == b"HTTP/1.1 101").then_some(socket)
    };
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.extend(open().await);
    }
    assert!((1..=4).contains(&sockets.len()), "{}", sockets.len());
    for mut socket in sockets {
        let ended = async { while socket.read(&mut [0; 256]).await.is_ok_and(|read| read > 0) {} };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("an idle socket ends");
    }
    until("there is room again", async || open().await.map(drop)).await;
}
