//! What the tests share: a server with a resolver, and an upstream that knows one address.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use dns::{Resolver, ResolverOptions, UpstreamOptions};
use dns_web::DnsService;
use http_body_util::BodyExt as _;
use serde_json::Value;
use testkit::TestStore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use web::Settings;
use web::testing::Fixture;

/// A query for the address of a name.
pub(crate) fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

pub(crate) fn rcode_of(reply: &[u8]) -> u8 {
    reply[3] & 0x0f
}

/// An upstream that answers every query with 192.0.2.7.
struct Upstream {
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Upstream {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let (address, stop) =
            (socket.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 1_500];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((_, client)) = socket.recv_from(&mut buffer) else { continue };
                let mut end = 12;
                while buffer[end] != 0 {
                    end += 1 + usize::from(buffer[end]);
                }
                let mut reply = buffer[..end + 5].to_vec();
                reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 7]);
                socket.send_to(&reply, client).unwrap();
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A server with the resolver, and its background work running.
pub(crate) struct Server {
    pub(crate) f: Fixture,
    tasks: TaskTracker,
    cancel: CancellationToken,
    _upstream: Upstream,
    _folder: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start(t: &TestStore) -> Self {
        Self::named(t, "test").await
    }

    pub(crate) async fn named(t: &TestStore, name: &str) -> Self {
        let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
        let servers = vec![upstream.address.parse().unwrap()];
        let options = ResolverOptions {
            upstream: UpstreamOptions { servers, ..UpstreamOptions::default() },
            list_folder: Some(folder.path().join("lists")),
            ..ResolverOptions::default()
        };
        let resolver = Resolver::open(t.store.clone(), options).await.unwrap();
        let log = folder.path().join("log");
        let open = DnsService::on(resolver, &t.store, &log, name).await.unwrap();
        let running = Arc::clone(&open.running);
        let f = Fixture::running(t, Settings::default(), vec![open]);
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(running.run(f.app.clone(), cancel.clone()));
        tasks.close();
        Self { f, tasks, cancel, _upstream: upstream, _folder: folder }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let response = web::app(self.f.app.clone()).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes().to_vec())
    }

    /// Asks over HTTPS, from this machine.
    pub(crate) async fn ask(&self, name: &str) -> Vec<u8> {
        let request = Request::post("/dns-query").header("content-type", "application/dns-message");
        let (status, _, reply) = self.send(request.body(Body::from(query(name))).unwrap()).await;
        assert_eq!(status, 200);
        reply
    }

    /// Calls again and again until the answer is as expected.
    pub(crate) async fn wait_for(&self, what: &str, expected: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let found = self.f.admin(what, Value::Null).await;
            assert_eq!(found.status, 200, "{what}: {}", found.text);
            let found = found.json();
            if expected(&found) {
                return found;
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: {found}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.tasks.wait().await;
    }
}
