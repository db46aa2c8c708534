//! What the tests of the resolver share: messages, and a look at the store past the cache.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use dns::{
    Question, StoredAnswer, UpstreamAddress,
    wire::{AnswerKind, CachedAnswer, TtlBounds},
};
use domain::{
    base::{
        MessageBuilder, Name, Rtype, Ttl,
        iana::{Class, Rcode},
    },
    rdata::A,
};
use store::{
    Layout, Millis, Store,
    redis::{self, FromRedisValue},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
};

pub(crate) fn question(name: &str) -> Question {
    Question { name: name.parse().unwrap(), qtype: 1, qclass: 1 }
}

/// An upstream's answer with one address, as a server without compression and with EDNS writes it.
pub(crate) fn address_message(question: &Question, ttl: u32, last: u8) -> Vec<u8> {
    let mut builder = MessageBuilder::from_target(Vec::new()).unwrap();
    builder.header_mut().set_qr(true);
    builder.header_mut().set_rd(true);
    builder.header_mut().set_rcode(Rcode::NOERROR);
    let name = Name::from_octets(question.name.as_wire().to_vec()).unwrap();
    let mut builder = builder.question();
    builder.push((&name, Rtype::from_int(question.qtype), Class::IN)).unwrap();
    let mut builder = builder.answer();
    builder.push((&name, Ttl::from_secs(ttl), A::from_octets(192, 0, 2, last))).unwrap();
    let mut builder = builder.additional();
    builder
        .opt(|opt| {
            opt.set_udp_payload_size(1_232);
            Ok(())
        })
        .unwrap();
    builder.finish()
}

pub(crate) fn stored(question: &Question, ttl: u32, last: u8, now: Millis) -> StoredAnswer {
    let message = address_message(question, ttl, last);
    let bounds = TtlBounds::default();
    let answer = CachedAnswer::normalise(&message, question, AnswerKind::Plain, bounds).unwrap();
    StoredAnswer::new(Arc::new(answer), now)
}

/// The prefix of metadata keys.
pub(crate) fn metadata(store: &Store, rest: &str) -> String {
    match store.layout() {
        Layout::Standalone => format!("dnsmeta:{rest}"),
        Layout::Cluster => format!("{{dnsmeta}}:{rest}"),
    }
}

/// Runs one command past the cache.
pub(crate) async fn run<T: FromRedisValue>(store: &Store, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.query_async(&mut store.clone()).await.unwrap()
}

/// Writes a field or a value that is not text.
pub(crate) async fn write_bytes(store: &Store, words: &[&str], bytes: &[u8]) {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.arg(bytes).query_async::<()>(&mut store.clone()).await.unwrap();
}

/// A query that a scripted upstream received.
#[derive(Clone, Debug)]
pub(crate) struct SeenQuery {
    pub(crate) wire: Vec<u8>,
    pub(crate) from: SocketAddr,
    pub(crate) is_tcp: bool,
}

type Script = Box<dyn Fn(&[u8], bool) -> Vec<Vec<u8>> + Send + Sync>;

/// An upstream on loopback, UDP and TCP on one port, that answers as its script says: with any number
/// of messages to each query.
pub(crate) struct ScriptedUpstream {
    address: SocketAddr,
    shared: Arc<ScriptedState>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Every open connection listens to it.
    close: tokio::sync::watch::Sender<u32>,
}

struct ScriptedState {
    script: Mutex<Arc<Script>>,
    seen: Mutex<Vec<SeenQuery>>,
}

impl ScriptedState {
    fn answer(&self, wire: &[u8], from: SocketAddr, is_tcp: bool) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().push(SeenQuery { wire: wire.to_vec(), from, is_tcp });
        let script = Arc::clone(&self.script.lock().unwrap());
        script(wire, is_tcp)
    }
}

impl ScriptedUpstream {
    pub(crate) async fn start(
        script: impl Fn(&[u8], bool) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        // The port of one protocol may be taken for the other.
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let address = tcp.local_addr().unwrap();
        let shared = Arc::new(ScriptedState {
            script: Mutex::new(Arc::new(Box::new(script))),
            seen: Mutex::default(),
        });
        let connections = Arc::new(AtomicUsize::new(0));
        let close = tokio::sync::watch::Sender::new(0);
        let over_udp = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let mut buffer = [0; 4_096];
                while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                    for reply in shared.answer(&buffer[..length], from, false) {
                        udp.send_to(&reply, from).await.unwrap();
                    }
                }
            }
        });
        let over_tcp = tokio::spawn({
            let (shared, connections, close) =
                (Arc::clone(&shared), Arc::clone(&connections), close.clone());
            async move {
                while let Ok((client, from)) = tcp.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let (shared, mut closed) = (Arc::clone(&shared), close.subscribe());
                    tokio::spawn(async move {
                        // Moved in, and dropped before what says that the connection is closed.
                        let mut client = client;
                        loop {
                            let length = tokio::select! {
                                _ = closed.changed() => return,
                                length = client.read_u16() => length,
                            };
                            let Ok(length) = length else { return };
                            let mut wire = vec![0; length.into()];
                            client.read_exact(&mut wire).await.unwrap();
                            for reply in shared.answer(&wire, from, true) {
                                client.write_u16(reply.len().try_into().unwrap()).await.unwrap();
                                client.write_all(&reply).await.unwrap();
                            }
                        }
                    });
                }
            }
        });
        Self { address, shared, tasks: vec![over_udp, over_tcp], connections, close }
    }

    pub(crate) fn address(&self) -> UpstreamAddress {
        self.address.to_string().parse().unwrap()
    }

    /// Replaces the script.
    pub(crate) fn behave(
        &self,
        script: impl Fn(&[u8], bool) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) {
        *self.shared.script.lock().unwrap() = Arc::new(Box::new(script));
    }

    /// The queries so far.
    pub(crate) fn seen(&self) -> Vec<SeenQuery> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Closes all connections and waits until they are closed.
    pub(crate) async fn close_connections(&self) {
        self.close.send_modify(|count| *count += 1);
        testkit::until("the connections are closed", async || {
            (self.close.receiver_count() == 0).then_some(())
        })
        .await;
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// The reply to a query with one address; question and id as in the query.
pub(crate) fn address_reply(query: &[u8], ttl: u32, last: u8) -> Vec<u8> {
    let question_end = question_end(query);
    let mut reply = query[..question_end].to_vec();
    (reply[2], reply[3]) = (0x81, 0x80);
    reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
    reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
    reply.extend_from_slice(&ttl.to_be_bytes());
    reply.extend_from_slice(&[0, 4, 192, 0, 2, last]);
    reply
}

/// The offset behind the question of a query.
pub(crate) fn question_end(query: &[u8]) -> usize {
    let mut at = 12;
    while query[at] != 0 {
        at += 1 + usize::from(query[at]);
    }
    at + 5
}

/// A client's query for an address.
pub(crate) fn packet(name: &str) -> Vec<u8> {
    let mut packet = vec![0x70, 0x53, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap());
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    packet
}

/// The same with an OPT record.
pub(crate) fn packet_with_opt(name: &str, udp_size: u16, dnssec_ok: bool) -> Vec<u8> {
    let mut packet = packet(name);
    packet[11] = 1;
    packet.extend_from_slice(&[0, 0, 41]);
    packet.extend_from_slice(&udp_size.to_be_bytes());
    packet.extend_from_slice(&[0, 0, if dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
    packet
}
