//! Listeners: UDP on threads of their own, TCP on the runtime, both on the same addresses.
//!
//! Invariants: a second server on the same port is refused, although `SO_REUSEPORT` would let both
//! bind and share the queries; every thread and task ends with [`Listeners::close`]; whatever does not
//! fit into a queue or a socket is dropped and counted, never waited for.
//!
//! Read on in `listen/udp.rs` and `listen/tcp.rs`.

mod tcp;
mod udp;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Error, Resolver};

/// Attempts to find a port that is free for UDP and TCP.
const PORT_ATTEMPTS: usize = 20;

/// Options of listeners.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Addresses; port 0 stands for any free one.
    pub addresses: Vec<SocketAddr>,
    /// Threads that receive datagrams, per address. Default: one less than there are processors, at
    /// least one.
    pub threads: usize,
    /// TCP connections at the same time. Default 1,000; one more is closed at once.
    pub tcp_max_connections: usize,
    /// Time a TCP connection may rest. Default 10 s.
    pub tcp_idle: Duration,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 7053))],
            threads: processors.saturating_sub(1).max(1),
            tcp_max_connections: 1_000,
            tcp_idle: Duration::from_secs(10),
        }
    }
}

/// Counts of listeners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenStats {
    /// Datagrams received.
    pub udp_queries: u64,
    /// Queries received over TCP.
    pub tcp_queries: u64,
    /// Queries dropped because too many waited.
    pub dropped_queries: u64,
    /// Replies dropped because the socket was full.
    pub dropped_replies: u64,
}

#[derive(Debug, Default)]
struct Counts {
    udp_queries: AtomicU64,
    tcp_queries: AtomicU64,
    dropped_queries: AtomicU64,
    dropped_replies: AtomicU64,
}

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// Open listeners.
#[derive(Debug)]
pub struct Listeners {
    addresses: Vec<SocketAddr>,
    counts: Arc<Counts>,
    threads: Vec<std::thread::JoinHandle<()>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl Listeners {
    /// Opens all listeners, or none.
    pub async fn open(resolver: &Resolver, options: ListenOptions) -> Result<Self, Error> {
        let mut listeners = Self {
            addresses: Vec::new(),
            counts: Arc::default(),
            threads: Vec::new(),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
        };
        for address in &options.addresses {
            if let Err(error) = listeners.open_one(resolver, *address, &options).await {
                listeners.close().await;
                return Err(error);
            }
        }
        Ok(listeners)
    }

    async fn open_one(
        &mut self,
        resolver: &Resolver,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(), Error> {
        let refused = |source: io::Error| Error::Listen { address, source };
        let (tcp, address) = reserve(address).map_err(refused)?;
        let sockets = (0..options.threads.max(1)).map(|_| udp::open_socket(address));
        let sockets = sockets.collect::<io::Result<Vec<_>>>().map_err(refused)?;
        for (number, socket) in sockets.into_iter().enumerate() {
            let receiver = udp::Receiver::new(
                resolver,
                socket,
                address.ip().is_unspecified(),
                &self.counts,
                &self.cancel,
            );
            let (receiver, misses) = receiver;
            self.tasks.spawn(misses.run(self.tasks.clone()));
            let thread = std::thread::Builder::new().name(format!("dns-udp-{number}"));
            self.threads.push(thread.spawn(move || receiver.run()).map_err(refused)?);
        }
        let tcp = tokio::net::TcpListener::from_std(tcp).map_err(refused)?;
        let server = tcp::TcpServer::new(resolver, options, &self.counts, &self.cancel);
        self.tasks.spawn(server.run(tcp, self.tasks.clone()));
        self.addresses.push(address);
        Ok(())
    }

    /// Returns the addresses, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the counts.
    pub fn stats(&self) -> ListenStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ListenStats {
            udp_queries: read(&self.counts.udp_queries),
            tcp_queries: read(&self.counts.tcp_queries),
            dropped_queries: read(&self.counts.dropped_queries),
            dropped_replies: read(&self.counts.dropped_replies),
        }
    }

    /// Closes all sockets and waits for threads and tasks to end.
    pub async fn close(mut self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let threads = std::mem::take(&mut self.threads);
        let ended = tokio::task::spawn_blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a thread of the resolver ended by a panic");
                }
            }
        });
        // The threads notice within a receive timeout; an error could only be a panic, told above.
        let _ = ended.await;
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Opens the TCP listener, and makes sure that no other server has the port for UDP: a bind without
/// `SO_REUSEPORT` fails if any socket has it.
fn reserve(address: SocketAddr) -> io::Result<(std::net::TcpListener, SocketAddr)> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let tcp = std::net::TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        let chosen = tcp.local_addr()?;
        match std::net::UdpSocket::bind(chosen) {
            Ok(_) => return Ok((tcp, chosen)),
            Err(error) if address.port() != 0 || attempt == PORT_ATTEMPTS => return Err(error),
            Err(_) => {}
        }
    }
}
