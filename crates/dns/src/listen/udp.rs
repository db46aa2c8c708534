//! UDP: a thread per socket, datagrams in batches.
//!
//! A thread waits in `recvmmsg`, answers what is in memory at once and sends all replies of a batch
//! with one `sendmmsg` per local address; each miss becomes a task of the runtime, so many at most, and
//! is answered on the same socket. Invariant: a reply leaves from the address the query came to, also on
//! a wildcard bind (`IP_PKTINFO`).
//!
//! Two traps of nix 0.31: `sendmmsg` takes one set of control messages for a whole call, hence the
//! groups; and headers are not reset between calls, so those of receiving and of sending are kept
//! apart and `IP_PKTINFO` is switched on before `bind`: a datagram without it would leave its header
//! without room for good.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        socket::{
            ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockType, SockaddrIn,
            SockaddrIn6, SockaddrLike, SockaddrStorage, recvmmsg, sendmmsg, sendmsg, setsockopt,
            sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Bind, Counts, add, proxy};
use crate::{
    FrontTable, HitResult, QueryClient, QueryProtocol, Resolver, filter::NetworkMap,
    wire::UDP_MAX_BYTES,
};

/// Datagrams of one call. 8, 32 and 64 could not be told apart; 1 costs 30 %.
const BATCH: usize = 32;

/// Entries of the table in front of the cache.
const FRONT_SLOTS: usize = 4_096;

/// Socket buffers; the system may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Misses being answered, per socket.
const MISSES_MAX: usize = 10_000;

/// Longest time until a thread notices that it shall end.
const RECEIVE_TIMEOUT_MS: i64 = 200;

/// Opens a socket that shares its port with those of the other threads.
pub(super) fn open_socket(bind: Bind) -> io::Result<UdpSocket> {
    let address = bind.address;
    let socket = bind.socket(SockType::Datagram)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
    }
    // Smaller ones lose datagrams in bursts, nothing else.
    let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES);
    let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER_BYTES);
    let timeout = TimeVal::milliseconds(RECEIVE_TIMEOUT_MS);
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    bind.bind(&socket)?;
    Ok(socket.into())
}

/// The local address a query came to, on a wildcard bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LocalAddress {
    ip: IpAddr,
    /// Needed for link-local addresses of IPv6.
    interface: u32,
}

/// A query that is not in memory.
#[derive(Debug)]
struct Miss {
    packet: Vec<u8>,
    client: SocketAddr,
    /// Address behind a trusted proxy.
    behind: Option<IpAddr>,
    local: Option<LocalAddress>,
}

/// Parts that a miss needs on the runtime.
#[derive(Clone, Debug)]
struct MissAnswerer {
    resolver: Resolver,
    socket: Arc<UdpSocket>,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

impl MissAnswerer {
    async fn answer(self, miss: Miss, permit: OwnedSemaphorePermit) {
        let mut client = client_of(miss.client.ip());
        client.address = miss.behind.unwrap_or(client.address);
        // On its own: a task is moved several times until it runs.
        let answering = Box::pin(self.resolver.answer_miss(&miss.packet, client));
        let answer = tokio::select! {
            () = self.cancel.cancelled() => None,
            answer = answering => answer,
        };
        if let Some(reply) = answer
            && !send_one(&self.socket, &reply, &miss)
        {
            add(&self.counts.dropped_replies, 1);
        }
        drop(permit);
    }
}

/// Parts of a thread.
#[derive(Debug)]
pub(super) struct Receiver {
    resolver: Resolver,
    socket: Arc<UdpSocket>,
    is_wildcard: bool,
    proxies: Arc<NetworkMap<()>>,
    /// Free places for misses.
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    runtime: Handle,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

impl Receiver {
    pub(super) fn new(
        resolver: &Resolver,
        socket: UdpSocket,
        is_wildcard: bool,
        proxies: &Arc<NetworkMap<()>>,
        tasks: &TaskTracker,
        counts: &Arc<Counts>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            resolver: resolver.clone(),
            socket: Arc::new(socket),
            is_wildcard,
            proxies: Arc::clone(proxies),
            permits: Arc::new(Semaphore::new(MISSES_MAX)),
            tasks: tasks.clone(),
            // Listeners are opened on the runtime; the thread is not of it.
            runtime: Handle::current(),
            counts: Arc::clone(counts),
            cancel: cancel.clone(),
        }
    }

    /// Receives and answers until cancelled.
    pub(super) fn run(self) {
        match self.socket.local_addr() {
            Ok(SocketAddr::V6(_)) => self.run_as::<SockaddrIn6>(),
            _ => self.run_as::<SockaddrIn>(),
        }
    }

    fn run_as<A: FamilyAddress>(self) {
        let control = self.is_wildcard.then(|| nix::cmsg_space!(libc::in6_pktinfo));
        let mut receiving = MultiHeaders::<A>::preallocate(BATCH, control);
        // With room for exactly the control message that is sent: more would be refused.
        let control = self.is_wildcard.then(A::control_space);
        let mut sending = MultiHeaders::<A>::preallocate(BATCH, control);
        let mut front = FrontTable::new(FRONT_SLOTS);
        let mut inbox = vec![0; BATCH * UDP_MAX_BYTES];
        let mut outbox = vec![0; BATCH * UDP_MAX_BYTES];
        let mut received = Vec::<Incoming<A>>::with_capacity(BATCH);
        let mut replies = Vec::<Outgoing<A>>::with_capacity(BATCH);
        let mut misses = Vec::<Miss>::new();
        while !self.cancel.is_cancelled() {
            match self.receive(&mut receiving, &mut inbox, &mut received) {
                Ok(()) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => {
                    // Such as an ICMP error on its way to the socket; not to spin on one that stays.
                    tracing::debug!(%error, "receive failed");
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            }
            add(&self.counts.udp_queries, received.len());
            let now = self.resolver.now();
            replies.clear();
            let slots = outbox.chunks_exact_mut(UDP_MAX_BYTES).enumerate();
            for ((slot, out), incoming) in slots.zip(&received) {
                let start = incoming.slot * UDP_MAX_BYTES;
                let packet = inbox.get(start..start + incoming.length).unwrap_or_default();
                let mut client = client_of(incoming.client.ip());
                let (mut behind, mut packet) = (None, packet);
                if self.proxies.contains(client.address) {
                    let Some(stripped) = proxy::strip(packet) else { continue };
                    (behind, packet) = stripped;
                    client.address = behind.unwrap_or(client.address);
                }
                match self.resolver.answer_hit(&mut front, packet, client, now, out) {
                    HitResult::Reply(length) => replies.push(Outgoing {
                        slot,
                        length,
                        client: incoming.client,
                        local: incoming.local,
                    }),
                    HitResult::Drop => {}
                    HitResult::Miss => {
                        let (client, local) = (incoming.client.to_std(), incoming.local);
                        misses.push(Miss { packet: packet.to_vec(), client, behind, local });
                    }
                }
            }
            self.send(&mut sending, &outbox, &replies);
            self.hand_on(&mut misses);
            self.resolver.hand_over(&mut front);
        }
    }

    /// Lets the runtime answer misses; those without a free place are dropped and counted.
    fn hand_on(&self, misses: &mut Vec<Miss>) {
        let mut admitted = SmallVec::<[_; 1]>::new();
        for miss in misses.drain(..) {
            match Arc::clone(&self.permits).try_acquire_owned() {
                Ok(permit) => admitted.push((miss, permit)),
                Err(_) => add(&self.counts.dropped_queries, 1),
            }
        }
        let answerer = MissAnswerer {
            resolver: self.resolver.clone(),
            socket: Arc::clone(&self.socket),
            counts: Arc::clone(&self.counts),
            cancel: self.cancel.clone(),
        };
        if let [_] = admitted.as_slice()
            && let Some((miss, permit)) = admitted.pop()
        {
            self.tasks.spawn_on(answerer.answer(miss, permit), &self.runtime);
            return;
        }
        if admitted.is_empty() {
            return;
        }
        // A thread of the runtime starts the tasks: each one started from here would wake another.
        let tasks = self.tasks.clone();
        let starting = async move {
            for (miss, permit) in admitted {
                tasks.spawn(answerer.clone().answer(miss, permit));
            }
        };
        self.tasks.spawn_on(starting, &self.runtime);
    }

    fn receive<A: FamilyAddress>(
        &self,
        headers: &mut MultiHeaders<A>,
        inbox: &mut [u8],
        received: &mut Vec<Incoming<A>>,
    ) -> nix::Result<()> {
        received.clear();
        let mut slots = inbox.chunks_exact_mut(UDP_MAX_BYTES);
        // As many as there are slots, so none is empty.
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(slots.next().unwrap_or_default())]);
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_WAITFORONE;
        let results = recvmmsg(fd, headers, slices.iter_mut(), flags, None)?;
        for (slot, message) in results.enumerate() {
            let Some(client) = message.address else { continue };
            // A query longer than any answer is not one.
            if message.flags.contains(MsgFlags::MSG_TRUNC) {
                continue;
            }
            let local = if self.is_wildcard {
                message.cmsgs().ok().and_then(|mut messages| messages.find_map(local_address))
            } else {
                None
            };
            received.push(Incoming { slot, length: message.bytes, client, local });
        }
        Ok(())
    }

    /// Sends replies, one call per local address. What the socket does not take is dropped.
    fn send<A: FamilyAddress>(
        &self,
        headers: &mut MultiHeaders<A>,
        outbox: &[u8],
        replies: &[Outgoing<A>],
    ) {
        let mut sent = 0;
        let mut done = SmallVec::<[Option<LocalAddress>; 4]>::new();
        for Outgoing { local, .. } in replies {
            if done.contains(local) {
                continue;
            }
            done.push(*local);
            let group = || replies.iter().filter(|reply| reply.local == *local);
            let slices: SmallVec<[[IoSlice<'_>; 1]; BATCH]> = group()
                .map(|reply| {
                    let start = reply.slot * UDP_MAX_BYTES;
                    [IoSlice::new(outbox.get(start..start + reply.length).unwrap_or_default())]
                })
                .collect();
            let clients: SmallVec<[Option<A>; BATCH]> =
                group().map(|reply| Some(reply.client)).collect();
            // The headers have room for a control message, and one that is not there is refused.
            if self.is_wildcard && local.is_none() {
                continue;
            }
            sent += with_control(*local, |control| {
                let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
                sendmmsg(fd, headers, slices.iter(), &clients, control, flags)
                    .map_or(0, Iterator::count)
            });
        }
        add(&self.counts.dropped_replies, replies.len().saturating_sub(sent));
    }
}

/// Address of a client on a socket of one family. A storage for all families would be eight times as
/// long, and is copied several times on the way of each query.
trait FamilyAddress: SockaddrLike + Copy {
    fn ip(self) -> IpAddr;
    fn to_std(self) -> SocketAddr;
    /// Returns room for the control message that sets the source of a reply.
    fn control_space() -> Vec<u8>;
}

impl FamilyAddress for SockaddrIn {
    fn ip(self) -> IpAddr {
        IpAddr::V4(SockaddrIn::ip(&self))
    }

    fn to_std(self) -> SocketAddr {
        SocketAddr::V4(self.into())
    }

    fn control_space() -> Vec<u8> {
        nix::cmsg_space!(libc::in_pktinfo)
    }
}

impl FamilyAddress for SockaddrIn6 {
    fn ip(self) -> IpAddr {
        IpAddr::V6(SockaddrIn6::ip(&self))
    }

    fn to_std(self) -> SocketAddr {
        SocketAddr::V6(self.into())
    }

    fn control_space() -> Vec<u8> {
        nix::cmsg_space!(libc::in6_pktinfo)
    }
}

/// A datagram in the inbox.
#[derive(Clone, Copy, Debug)]
struct Incoming<A> {
    slot: usize,
    length: usize,
    client: A,
    local: Option<LocalAddress>,
}

/// Returns the client at an address.
fn client_of(address: IpAddr) -> QueryClient<'static> {
    QueryClient { address, id: None, protocol: QueryProtocol::Udp }
}

/// A reply in the outbox.
#[derive(Clone, Copy, Debug)]
struct Outgoing<A> {
    slot: usize,
    length: usize,
    client: A,
    local: Option<LocalAddress>,
}

fn local_address(message: ControlMessageOwned) -> Option<LocalAddress> {
    match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let ip = IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
            Some(LocalAddress { ip, interface: 0 })
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let ip = IpAddr::from(info.ipi6_addr.s6_addr);
            Some(LocalAddress { ip, interface: info.ipi6_ifindex })
        }
        _ => None,
    }
}

/// Calls with the control message that sets the source of a reply.
fn with_control<T>(
    local: Option<LocalAddress>,
    send: impl FnOnce(&[ControlMessage<'_>]) -> T,
) -> T {
    match local {
        None => send(&[]),
        Some(LocalAddress { ip: IpAddr::V4(ip), .. }) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            send(&[ControlMessage::Ipv4PacketInfo(&info)])
        }
        Some(LocalAddress { ip: IpAddr::V6(ip), interface }) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: ip.octets() },
                ipi6_ifindex: interface,
            };
            send(&[ControlMessage::Ipv6PacketInfo(&info)])
        }
    }
}

fn send_one(socket: &UdpSocket, reply: &[u8], miss: &Miss) -> bool {
    let sent = with_control(miss.local, |control| {
        let (fd, slices) = (socket.as_raw_fd(), [IoSlice::new(reply)]);
        let client = SockaddrStorage::from(miss.client);
        sendmsg(fd, &slices, control, MsgFlags::MSG_DONTWAIT, Some(&client))
    });
    sent.is_ok()
}
