//! Listeners: UDP on threads of their own, TCP on the runtime, both on the same addresses; TLS on
//! addresses of its own.
//!
//! Invariants: a second server on the same port is refused, although `SO_REUSEPORT` would let both
//! bind and share the queries; every thread and task ends with [`Listeners::close`]; whatever does not
//! fit into a queue or a socket is dropped and counted, never waited for.
//!
//! Read on in `listen/udp.rs`, `listen/tcp.rs` (TLS too) and `listen/proxy.rs`.

mod proxy;
mod tcp;
mod udp;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::tcp::{TcpServer, TlsSide};
use crate::{Error, Resolver, filter::NetworkMap};

/// Attempts to find a port that is free for UDP and TCP.
const PORT_ATTEMPTS: usize = 20;

/// Connections that may wait to be accepted.
const TCP_BACKLOG: i32 = 1_024;

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
    /// Addresses for DNS over TLS.
    pub tls_addresses: Vec<SocketAddr>,
    /// Configuration of TLS; its owner stores another one when certificates change.
    pub tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    /// Name of this server in its certificate: of `kid.dns.example`, `kid` is a client's id.
    pub tls_host: Option<String>,
    /// Proxies whose connections and datagrams begin with a PROXY header (version 2).
    pub trusted_proxies: Vec<IpNet>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 7053))],
            threads: processors.saturating_sub(1).max(1),
            tcp_max_connections: 1_000,
            tcp_idle: Duration::from_secs(10),
            tls_addresses: Vec::new(),
            tls: None,
            tls_host: None,
            trusted_proxies: Vec::new(),
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
    tls_addresses: Vec<SocketAddr>,
    proxies: Arc<NetworkMap<()>>,
    counts: Arc<Counts>,
    threads: Vec<std::thread::JoinHandle<()>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl Listeners {
    /// Opens all listeners, or none.
    pub async fn open(resolver: &Resolver, options: ListenOptions) -> Result<Self, Error> {
        resolver.set_idle_timeout(options.tcp_idle);
        let mut listeners = Self {
            addresses: Vec::new(),
            tls_addresses: Vec::new(),
            proxies: Arc::new(options.trusted_proxies.iter().copied().collect()),
            counts: Arc::default(),
            threads: Vec::new(),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
        };
        for address in &options.addresses {
            let bind = Bind::new(*address, &options.addresses);
            if let Err(error) = listeners.open_one(resolver, bind, &options).await {
                listeners.close().await;
                return Err(error);
            }
        }
        for address in &options.tls_addresses {
            let bind = Bind::new(*address, &options.tls_addresses);
            if let Err(error) = listeners.open_tls(resolver, bind, &options).await {
                listeners.close().await;
                return Err(error);
            }
        }
        Ok(listeners)
    }

    async fn open_tls(
        &mut self,
        resolver: &Resolver,
        bind: Bind,
        options: &ListenOptions,
    ) -> Result<(), Error> {
        let refused = |source: io::Error| Error::Listen { address: bind.address, source };
        let config = options.tls.clone().ok_or_else(|| Error::Invalid {
            field: "tls",
            message: "DNS over TLS needs a certificate".to_owned(),
        })?;
        let host = options.tls_host.as_ref().map(|host| host.to_ascii_lowercase());
        let listener = bind.listen().map_err(refused)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused)?;
        self.tls_addresses.push(listener.local_addr().map_err(refused)?);
        let tls = Some(TlsSide { config, host });
        let (proxies, counts) = (&self.proxies, &self.counts);
        let server = TcpServer::new(resolver, options, tls, proxies, counts, &self.cancel);
        self.tasks.spawn(server.run(listener, self.tasks.clone()));
        Ok(())
    }

    async fn open_one(
        &mut self,
        resolver: &Resolver,
        bind: Bind,
        options: &ListenOptions,
    ) -> Result<(), Error> {
        let refused = |source: io::Error| Error::Listen { address: bind.address, source };
        let (tcp, bind) = reserve(bind).map_err(refused)?;
        let address = bind.address;
        let sockets = (0..options.threads.max(1)).map(|_| udp::open_socket(bind));
        let sockets = sockets.collect::<io::Result<Vec<_>>>().map_err(refused)?;
        for (number, socket) in sockets.into_iter().enumerate() {
            let receiver = udp::Receiver::new(
                resolver,
                socket,
                address.ip().is_unspecified(),
                &self.proxies,
                &self.tasks,
                &self.counts,
                &self.cancel,
            );
            let thread = std::thread::Builder::new().name(format!("dns-udp-{number}"));
            self.threads.push(thread.spawn(move || receiver.run()).map_err(refused)?);
        }
        let tcp = tokio::net::TcpListener::from_std(tcp).map_err(refused)?;
        let (proxies, counts) = (&self.proxies, &self.counts);
        let server = TcpServer::new(resolver, options, None, proxies, counts, &self.cancel);
        self.tasks.spawn(server.run(tcp, self.tasks.clone()));
        self.addresses.push(address);
        Ok(())
    }

    /// Returns the addresses, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses for TLS, with the ports that were chosen.
    pub fn tls_addresses(&self) -> &[SocketAddr] {
        &self.tls_addresses
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

/// An address to bind to.
#[derive(Clone, Copy, Debug)]
struct Bind {
    address: SocketAddr,
    /// All of IPv6 and nothing of IPv4, for which there is a listener of its own: without this the two
    /// would be in each other's way.
    is_v6_only: bool,
}

impl Bind {
    fn new(address: SocketAddr, all: &[SocketAddr]) -> Self {
        let is_twin = |other: &SocketAddr| {
            other.is_ipv4() && other.ip().is_unspecified() && other.port() == address.port()
        };
        let is_all_v6 = address.is_ipv6() && address.ip().is_unspecified();
        Self { address, is_v6_only: is_all_v6 && all.iter().any(is_twin) }
    }

    fn socket(self, kind: SockType) -> io::Result<OwnedFd> {
        let family =
            if self.address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        if self.is_v6_only {
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        }
        Ok(socket)
    }

    fn bind(self, socket: &OwnedFd) -> io::Result<()> {
        Ok(bind(socket.as_raw_fd(), &SockaddrStorage::from(self.address))?)
    }

    /// Opens a TCP listener for the runtime.
    fn listen(self) -> io::Result<std::net::TcpListener> {
        let socket = self.socket(SockType::Stream)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        self.bind(&socket)?;
        listen(&socket, Backlog::new(TCP_BACKLOG)?)?;
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

/// Opens the TCP listener, and makes sure that no other server has the port for UDP: a bind without
/// `SO_REUSEPORT` fails if any socket has it.
fn reserve(bind: Bind) -> io::Result<(std::net::TcpListener, Bind)> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let tcp = bind.listen()?;
        let chosen = Bind { address: tcp.local_addr()?, ..bind };
        match chosen.socket(SockType::Datagram).and_then(|socket| chosen.bind(&socket)) {
            Ok(()) => return Ok((tcp, chosen)),
            Err(error) if bind.address.port() != 0 || attempt == PORT_ATTEMPTS => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
}
