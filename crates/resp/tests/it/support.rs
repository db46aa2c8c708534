//! A listener on a free port, and a client that speaks bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use resp::{Config, RespListener};
use store::Store;

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    listener: RespListener,
}

/// A store in memory behind a listener; `change` alters the defaults.
pub(crate) async fn serve(change: impl FnOnce(&mut Config)) -> Served {
    serve_store(Store::open("embedded:").await.unwrap(), change)
}

/// This store behind a listener.
pub(crate) fn serve_store(store: Store, change: impl FnOnce(&mut Config)) -> Served {
    let mut config = Config::at("127.0.0.1:0".parse().unwrap());
    change(&mut config);
    let listener = RespListener::start(store.embedded().unwrap().clone(), config).unwrap();
    Served { address: listener.address(), store, listener }
}

impl Served {
    /// Where the listener says it listens.
    pub(crate) fn listening(&self) -> SocketAddr {
        self.listener.address()
    }

    /// A line of INFO.
    pub(crate) async fn info(&self, section: &str, name: &str) -> String {
        let mut store = self.store.clone();
        let text: String =
            store::redis::cmd("INFO").arg(section).query_async(&mut store).await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().to_owned()
    }

    pub(crate) fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream }
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads exactly these bytes, or fails showing what came.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        self.stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
    }

    /// Is there a reply that was not read yet?
    pub(crate) fn has_reply(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let found = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).unwrap();
        found
    }

    /// Reads up to the first place where `end` stands, and what came before it.
    #[track_caller]
    pub(crate) fn until(&mut self, end: &str) -> String {
        let mut got = Vec::new();
        let mut byte = [0];
        while !got.ends_with(end.as_bytes()) {
            self.stream.read_exact(&mut byte).unwrap();
            got.extend_from_slice(&byte);
        }
        String::from_utf8_lossy(&got).into_owned()
    }

    /// The other side has closed the connection; what it said before.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Looks again and again until something is so, for half a minute at most.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
