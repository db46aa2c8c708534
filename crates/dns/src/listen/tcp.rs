//! TCP and TLS: pipelined queries, answered in the order in which answers are ready (RFC 7766, 7858).
//!
//! What is in memory is answered by the reader itself, all that came in one read with one write;
//! misses are answered by tasks of their own.
//!
//! Invariant: a connection costs at most one slot, so many answers in flight as are named here, and no
//! time beyond the idle timeout; one client has at most its share of the slots. TLS has slots of its
//! own, so that those who are silent on one cannot close the other.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Counts, ListenOptions, add, proxy};
use crate::{
    FrontTable, HitResult, QueryClient, QueryProtocol, Resolver, filter::NetworkMap,
    wire::MESSAGE_MAX_BYTES,
};

/// Queries of one connection being answered; more wait in the socket.
const PIPELINE_MAX: usize = 64;

/// Longest reply that the reader writes itself; longer ones are rare and take the way of misses.
const HIT_MAX_BYTES: usize = 4_096;

/// Bytes of replies that leave in one write, about.
const WRITE_BYTES: usize = 16_384;

/// One client has at most one connection in so many.
const CLIENT_SHARE: usize = 2;

/// Wait after a failed accept, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// TLS of a listener: the configuration, replaced by its owner when certificates change, and the name
/// below which clients put their ids.
#[derive(Clone, Debug)]
pub(super) struct TlsSide {
    pub(super) config: Arc<ArcSwap<rustls::ServerConfig>>,
    pub(super) host: Option<String>,
}

/// The TCP side of a listener.
#[derive(Clone, Debug)]
pub(super) struct TcpServer {
    resolver: Resolver,
    slots: Arc<Semaphore>,
    clients: Arc<ClientSlots>,
    idle: Duration,
    tls: Option<TlsSide>,
    proxies: Arc<NetworkMap<()>>,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

impl TcpServer {
    pub(super) fn new(
        resolver: &Resolver,
        options: &ListenOptions,
        tls: Option<TlsSide>,
        proxies: &Arc<NetworkMap<()>>,
        counts: &Arc<Counts>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            resolver: resolver.clone(),
            slots: Arc::new(Semaphore::new(options.tcp_max_connections.max(1))),
            clients: Arc::new(ClientSlots {
                most: options.tcp_max_connections.div_ceil(CLIENT_SHARE).max(1),
                open: Mutex::default(),
            }),
            idle: options.tcp_idle,
            tls,
            proxies: Arc::clone(proxies),
            counts: Arc::clone(counts),
            cancel: cancel.clone(),
        }
    }

    /// Accepts connections until cancelled.
    pub(super) async fn run(self, listener: TcpListener, tasks: TaskTracker) {
        loop {
            let accepted = tokio::select! {
                () = self.cancel.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, address)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // Closed at once: a client that is told so can ask another server. Its own share comes first,
            // so that a burst of one client never takes the slots of others. Behind a proxy the client is
            // not known yet.
            let source = crate::filter::unmap(address.ip());
            let client_slot = match self.proxies.contains(source) {
                true => None,
                false => match self.clients.take(source) {
                    Some(slot) => Some(slot),
                    None => continue,
                },
            };
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { continue };
            let server = self.clone();
            tasks.spawn(async move {
                let cancel = server.cancel.clone();
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = server.serve(client, source, client_slot) => {}
                }
                drop(slot);
            });
        }
    }

    async fn serve(
        &self,
        mut client_stream: TcpStream,
        mut address: IpAddr,
        mut client_slot: Option<ClientSlot>,
    ) {
        // A peer that is gone already is noticed by the read.
        let _ = client_stream.set_nodelay(true);
        if self.proxies.contains(address) {
            let header = tokio::time::timeout(self.idle, proxy::read(&mut client_stream)).await;
            match header {
                Ok(Ok(behind)) => address = behind.unwrap_or(address),
                _ => return,
            }
        }
        if client_slot.is_none() {
            client_slot = self.clients.take(address);
        }
        // Held until the connection ends.
        let Some(_client_slot) = client_slot else { return };
        let Some(tls) = &self.tls else {
            let client = StreamClient { address, id: None, protocol: QueryProtocol::Tcp };
            let (reader, writer) = client_stream.into_split();
            return self.converse(reader, writer, client).await;
        };
        let acceptor = tokio_rustls::TlsAcceptor::from(tls.config.load_full());
        let accepted = tokio::time::timeout(self.idle, acceptor.accept(client_stream)).await;
        let Ok(Ok(stream)) = accepted else { return };
        let id = stream.get_ref().1.server_name().and_then(|name| tls.client_id(name));
        let client = StreamClient { address, id, protocol: QueryProtocol::Tls };
        let (reader, writer) = tokio::io::split(stream);
        self.converse(reader, writer, client).await;
    }

    async fn converse(
        &self,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
        client: StreamClient,
    ) {
        let (replies, waiting) = mpsc::channel(PIPELINE_MAX);
        let reading = self.read_queries(BufReader::new(reader), replies, client);
        tokio::join!(reading, write_replies(writer, waiting, self.idle));
    }

    /// Reads queries, answers what is in memory and starts to answer the others. Ends with the client,
    /// the idle timeout, or when the writer has given up; answers in flight are still written.
    async fn read_queries(
        &self,
        mut reader: BufReader<impl AsyncRead + Unpin>,
        replies: mpsc::Sender<Vec<u8>>,
        client: StreamClient,
    ) {
        let pipeline = Arc::new(Semaphore::new(PIPELINE_MAX));
        let answers = TaskTracker::new();
        let client = Arc::new(client);
        // The shards are shared with all threads; a table in front of them would hardly fill.
        let mut front = FrontTable::new(1);
        let (mut query, mut framed) = (Vec::new(), Vec::new());
        let mut out = vec![0; HIT_MAX_BYTES];
        loop {
            let read = tokio::select! {
                () = replies.closed() => break,
                read = tokio::time::timeout(self.idle, read_message(&mut reader, &mut query)) => read,
            };
            let Ok(Ok(())) = read else { break };
            add(&self.counts.tcp_queries, 1);
            let now = self.resolver.now();
            match self.resolver.answer_hit(
                &mut front,
                &query,
                client.as_query_client(),
                now,
                &mut out,
            ) {
                HitResult::Reply(length) => {
                    put_framed(&mut framed, out.get(..length).unwrap_or_default())
                }
                HitResult::Drop => {}
                HitResult::Miss => {
                    let Ok(permit) = Arc::clone(&pipeline).acquire_owned().await else { break };
                    let (resolver, replies) = (self.resolver.clone(), replies.clone());
                    let (client, query) = (Arc::clone(&client), query.clone());
                    answers.spawn(async move {
                        let reply = resolver.answer_miss(&query, client.as_query_client()).await;
                        if let Some(reply) = reply {
                            let mut framed = Vec::with_capacity(2 + reply.len());
                            put_framed(&mut framed, &reply);
                            // An error means that the client is gone.
                            let _ = replies.send(framed).await;
                        }
                        drop(permit);
                    });
                }
            }
            // What came together is answered together.
            if has_whole_message(reader.buffer()) && framed.len() < WRITE_BYTES {
                continue;
            }
            self.resolver.hand_over(&mut front);
            if !framed.is_empty() && replies.send(std::mem::take(&mut framed)).await.is_err() {
                break;
            }
        }
        self.resolver.hand_over(&mut front);
        if !framed.is_empty() {
            // An error means that the client is gone.
            let _ = replies.send(framed).await;
        }
        drop(replies);
        answers.close();
        answers.wait().await;
    }
}

/// Open connections by client.
#[derive(Debug)]
struct ClientSlots {
    most: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl ClientSlots {
    /// Takes a slot of a client; none if it has its share already. An IPv6 client is a /64, as hosts
    /// choose the rest of their addresses themselves.
    fn take(self: &Arc<Self>, address: IpAddr) -> Option<ClientSlot> {
        let client = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        };
        let mut open = self.open.lock();
        let count = open.entry(client).or_insert(0);
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(open);
        Some(ClientSlot { slots: Arc::clone(self), client })
    }
}

/// A slot of a client, given back on drop.
struct ClientSlot {
    slots: Arc<ClientSlots>,
    client: IpAddr,
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

impl TlsSide {
    /// Returns the id that a client put before the name of the server.
    fn client_id(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        let id = name.strip_suffix(self.host.as_deref()?)?.strip_suffix('.')?;
        (!id.is_empty() && !id.contains('.')).then(|| id.to_owned())
    }
}

/// A client of a connection.
#[derive(Clone, Debug)]
struct StreamClient {
    address: IpAddr,
    id: Option<String>,
    protocol: QueryProtocol,
}

impl StreamClient {
    fn as_query_client(&self) -> QueryClient<'_> {
        QueryClient { address: self.address, id: self.id.as_deref(), protocol: self.protocol }
    }
}

/// Reads a message with its length before it, in place of the one that was read before.
async fn read_message(
    reader: &mut (impl AsyncRead + Unpin),
    message: &mut Vec<u8>,
) -> std::io::Result<()> {
    let length = reader.read_u16().await?;
    message.resize(usize::from(length), 0);
    reader.read_exact(message).await?;
    Ok(())
}

/// Returns true if bytes begin with a whole message and its length.
fn has_whole_message(bytes: &[u8]) -> bool {
    let Some(length) = bytes.first_chunk::<2>() else { return false };
    bytes.len() >= 2 + usize::from(u16::from_be_bytes(*length))
}

/// Appends a message with its length before it.
fn put_framed(framed: &mut Vec<u8>, message: &[u8]) {
    debug_assert!(message.len() <= MESSAGE_MAX_BYTES);
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
}

async fn write_replies(
    mut writer: impl AsyncWrite + Unpin,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    timeout: Duration,
) {
    while let Some(mut framed) = waiting.recv().await {
        // Whatever is ready leaves in one write.
        while framed.len() < WRITE_BYTES
            && let Ok(more) = waiting.try_recv()
        {
            framed.extend_from_slice(&more);
        }
        let written = async {
            writer.write_all(&framed).await?;
            writer.flush().await
        };
        match tokio::time::timeout(timeout, written).await {
            Ok(Ok(())) => {}
            // The client is gone or does not read.
            _ => return,
        }
    }
}
