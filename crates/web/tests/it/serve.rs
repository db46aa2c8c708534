//! The accept loop over real sockets, in real time with short limits: HTTP/2 is held to the limits
//! of HTTP/1.1.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use web::serve::Server;
use web::{App, AppParts, Settings};

/// A server on a port of its own, stopped on drop.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// Longer than any limit here, and shorter than those that are not meant.
const DEADLINE: Duration = Duration::from_secs(20);

async fn start(settings: Settings) -> Running {
    let app = App::new(AppParts {
        store: Store::open("embedded:").await.unwrap(),
        services: Vec::new(),
        known_services: &[],
        settings,
        admin_token: None,
        instance: "test".to_owned(),
        shown_settings: Vec::new(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/small", get(async || "hello"))
        .route("/large", get(async || vec![b'x'; 400_000]));
    let stop = CancellationToken::new();
    let server = Server::new(app, listener).with_router(router);
    tokio::spawn(server.run(stop.clone(), DEADLINE));
    Running { address, stop }
}

/// A client of HTTP/2, and how its connection ends.
async fn connect(
    server: &Running,
    window: u32,
) -> (h2::client::SendRequest<bytes::Bytes>, tokio::task::JoinHandle<()>) {
    let socket = TcpStream::connect(server.address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, connection) = builder.handshake(socket).await.unwrap();
    let ended = tokio::spawn(async move {
        // An error is an end like any other here.
        let _ = connection.await;
    });
    (client, ended)
}

fn ask(
    client: &mut h2::client::SendRequest<bytes::Bytes>,
    path: &str,
) -> h2::client::ResponseFuture {
    let uri = format!("http://test{path}");
    let request = axum::http::Request::get(uri).body(()).unwrap();
    client.send_request(request, true).unwrap().0
}

async fn read(answer: h2::client::ResponseFuture) -> usize {
    let mut body = answer.await.unwrap().into_body();
    let mut read = 0;
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        read += piece.len();
        body.flow_control().release_capacity(piece.len()).unwrap();
    }
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_http2_connection_is_closed_after_the_idle_timeout() {
    let server = start(Settings { idle_timeout: 2 * SECOND, ..Settings::default() }).await;
    let (client, ended) = connect(&server, 65_535).await;
    let mut client = client.ready().await.unwrap();
    assert_eq!(read(ask(&mut client, "/small")).await, 5);
    // The last stream ends for the server when it has sent it, which is before it has been read.
    let started = Instant::now();
    assert_eq!(read(ask(&mut client, "/large")).await, 400_000);
    tokio::time::timeout(DEADLINE, ended).await.expect("closed").unwrap();
    assert!(started.elapsed() >= 2 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_streams_that_are_not_read_are_closed_after_the_write_timeout() {
    let settings = Settings { write_timeout: 2 * SECOND, ..Settings::default() };
    for path in ["/small", "/large"] {
        let server = start(settings.clone()).await;
        let (mut client, ended) = connect(&server, 0).await;
        let mut answers = Vec::new();
        for _ in 0..20 {
            client = client.ready().await.unwrap();
            answers.push(ask(&mut client, path));
        }
        let started = Instant::now();
        tokio::time::timeout(DEADLINE, ended).await.expect("closed").unwrap();
        assert!(started.elapsed() >= SECOND, "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_request_answered_before_its_body_came_is_not_reset() {
    let server = start(Settings::default()).await;
    let (client, _) = connect(&server, 65_535).await;
    let mut client = client.ready().await.unwrap();
    let request = axum::http::Request::post("http://test/small").body(()).unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 405);
    // Frames come in order: once a later request is answered, a reset would be here.
    client = client.ready().await.unwrap();
    assert_eq!(read(ask(&mut client, "/large")).await, 400_000);
    let reset = std::future::poll_fn(|cx| std::task::Poll::Ready(body.poll_reset(cx))).await;
    assert!(reset.is_pending(), "{reset:?}");
    body.send_data(bytes::Bytes::from_static(b"late"), true).unwrap();
    client = client.ready().await.unwrap();
    assert_eq!(read(ask(&mut client, "/small")).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_of_http2_is_cut_off_and_a_client_that_reads_is_not() {
    let settings =
        Settings { header_timeout: SECOND, write_timeout: SECOND, ..Settings::default() };
    let server = start(settings).await;
    let (client, _ended) = connect(&server, 65_535).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    // Empty SETTINGS, then HEADERS of stream 1 that neither end nor go on.
    socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    socket.write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]).await.unwrap();
    let mut told = Vec::new();
    let read_all = socket.read_to_end(&mut told);
    // Closed or reset: both are an end.
    let _ = tokio::time::timeout(DEADLINE, read_all).await.expect("closed");
    let mut client = client.ready().await.unwrap();
    for _ in 0..20 {
        assert_eq!(read(ask(&mut client, "/large")).await, 400_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_requests_under_way_are_answered_while_the_server_stops() {
    let server = start(Settings::default()).await;
    let (mut client, ended) = connect(&server, 65_535).await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        client = client.ready().await.unwrap();
        answers.push(ask(&mut client, "/large"));
    }
    // All at once: a body that is not read holds the window of the connection.
    let reading = tokio::spawn(futures_util::future::join_all(answers.into_iter().map(read)));
    server.stop.cancel();
    let read = tokio::time::timeout(DEADLINE, reading).await.expect("answered").unwrap();
    assert_eq!(read, [400_000; 50]);
    tokio::time::timeout(DEADLINE, ended).await.expect("closed").unwrap();
}
