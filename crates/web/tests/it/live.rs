//! The accept loop and live streams, over real sockets.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use web::serve::Server;

use web::testing::{ADMIN, Fixture};

struct Serving {
    address: std::net::SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(f: &Fixture) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = Server::new(f.app.clone(), listener);
    let task = tokio::spawn(server.run(stop.clone(), Duration::from_secs(5)));
    Serving { address, stop, task }
}

/// Reads until the text contains a word.
async fn read_until(socket: &mut TcpStream, word: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    let read = async {
        while !text.contains(word) {
            let got = socket.read(&mut buffer).await.unwrap();
            assert!(got > 0, "closed before {word:?}: {text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..got]));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("no answer in time");
    text
}

async fn follow(address: std::net::SocketAddr, topic: &str) -> TcpStream {
    follow_as(ADMIN, address, topic).await
}

async fn follow_as(token: &str, address: std::net::SocketAddr, topic: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /api/v1/live?topics={topic} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

testkit::each_store! {
    async fn one_login_does_not_use_up_what_all_share(t: TestStore) {
        let f = Fixture::new(&t);
        let serving = serve(&f).await;
        let made = f.admin("POST /api/v1/tokens", json!({ "role": "viewer", "name": "wall" })).await.json();
        let viewer = made["secret"].as_str().unwrap();
        let mut tabs = Vec::new();
        for n in 0..8 {
            let topics: Vec<String> = (0..8).map(|m| format!("store?{n}-{m}")).collect();
            let mut tab = follow(serving.address, &topics.join("%20")).await;
            read_until(&mut tab, "event: hello").await;
            tabs.push(tab);
        }
        // A second tab with the same parts costs nothing; one with another does.
        let mut same = follow(serving.address, "store?0-0").await;
        read_until(&mut same, "event: hello").await;
        let mut one_more = follow(serving.address, "overview").await;
        let told = read_until(&mut one_more, "TOO_MANY_TOPICS").await;
        assert!(told.starts_with("HTTP/1.1 429"), "{told}");
        assert!(told.contains("close some tabs") && told.contains("retry-after: "), "{told}");
        let mut other = follow_as(viewer, serving.address, "overview").await;
        read_until(&mut other, "event: part").await;
        // A closed tab gives its share back.
        tabs.pop();
        let address = serving.address;
        testkit::until("there is room again", async || {
            let mut tab = follow(address, "overview").await;
            let mut head = [0; 12];
            tab.read_exact(&mut head).await.unwrap();
            (&head == b"HTTP/1.1 200").then_some(())
        })
        .await;
    }

    async fn a_tab_gets_the_parts_it_follows_and_a_goodbye(t: TestStore) {
        let f = Fixture::new(&t);
        let serving = serve(&f).await;
        let mut tab = follow(serving.address, "overview").await;
        let text = read_until(&mut tab, "event: part").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("content-type: text/event-stream"), "{text}");
        assert!(text.contains("transfer-encoding: chunked"), "{text}");
        assert!(text.contains("x-request-id: "), "{text}");
        assert!(text.contains("event: hello"), "{text}");
        serving.stop.cancel();
        let rest = read_until(&mut tab, "0\r\n\r\n").await;
        assert!(rest.contains("event: goodbye"), "{rest}");
        tokio::time::timeout(Duration::from_secs(60), serving.task).await.unwrap().unwrap();
    }

    async fn an_unknown_topic_is_refused(t: TestStore) {
        let f = Fixture::new(&t);
        for bad in ["", "what", "overview%20what", "overview%20overview%20overview%20overview%20overview%20overview%20overview%20overview%20overview"] {
            let got = f.admin(&format!("GET /api/v1/live?topics={bad}"), Value::Null).await;
            assert_eq!(got.status.as_u16(), 400, "{bad}");
        }
    }

    async fn a_connection_that_says_nothing_is_closed(t: TestStore) {
        let settings = web::Settings { header_timeout: Duration::from_millis(100), ..web::Settings::default() };
        let f = Fixture::with(&t, settings);
        let serving = serve(&f).await;
        for start in ["", "G", "PRI * HTTP", "GET / HTTP/1.1\r\nhost: x\r\n"] {
            let mut socket = TcpStream::connect(serving.address).await.unwrap();
            socket.write_all(start.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let ended = tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut rest));
            ended.await.unwrap_or_else(|_| panic!("{start:?} was kept open")).ok();
        }
        serving.stop.cancel();
        serving.task.await.unwrap();
    }

    async fn one_connection_too_many_is_told_so(t: TestStore) {
        let settings = web::Settings { max_connections: 2, ..web::Settings::default() };
        let f = Fixture::with(&t, settings);
        let serving = serve(&f).await;
        let mut first = follow(serving.address, "overview").await;
        read_until(&mut first, "event: hello").await;
        let mut second = follow(serving.address, "overview").await;
        read_until(&mut second, "event: hello").await;
        let mut third = TcpStream::connect(serving.address).await.unwrap();
        let text = read_until(&mut third, "\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        drop(first);
        // The place is free again once the server has noticed.
        let freed = async {
            loop {
                let mut again = follow(serving.address, "overview").await;
                let mut head = [0; 12];
                if again.read_exact(&mut head).await.is_ok() && &head == b"HTTP/1.1 200" {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), freed).await.unwrap();
        serving.stop.cancel();
        serving.task.await.unwrap();
    }
}
