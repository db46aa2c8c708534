//! UDP: a thread per socket, datagrams in batches.
//!
//! A thread waits in `recvmmsg`, answers what is in memory at once and sends all replies of a batch
//! with one `sendmmsg` per local address; misses go to the runtime over a bounded channel and are
//! answered on the same socket. Invariant: a reply leaves from the address the query came to, also on
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
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockFlag,
            SockType, SockaddrLike as _, SockaddrStorage, bind, recvmmsg, sendmmsg, sendmsg,
            setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use smallvec::SmallVec;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Counts, add};
use crate::{FrontTable, HitResult, Resolver, Transport, wire::UDP_MAX_BYTES};

/// Datagrams of one call. 8, 32 and 64 could not be told apart; 1 costs 30 %.
const BATCH: usize = 32;

/// Entries of the table in front of the cache.
const FRONT_SLOTS: usize = 4_096;

/// Socket buffers; the system may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Misses that wait to be taken up.
const MISS_QUEUE: usize = 4_096;

/// Misses being answered, per socket.
const MISSES_MAX: usize = 10_000;

/// Longest time until a thread notices that it shall end.
const RECEIVE_TIMEOUT_MS: i64 = 200;

/// Opens a socket that shares its port with those of the other threads.
pub(super) fn open_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
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
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
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
    client: SockaddrStorage,
    local: Option<LocalAddress>,
}

/// What a thread owns.
#[derive(Debug)]
pub(super) struct Receiver {
    resolver: Resolver,
    socket: Arc<UdpSocket>,
    is_wildcard: bool,
    misses: mpsc::Sender<Miss>,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

/// The runtime's side: answers misses.
#[derive(Debug)]
pub(super) struct MissTask {
    resolver: Resolver,
    socket: Arc<UdpSocket>,
    misses: mpsc::Receiver<Miss>,
    counts: Arc<Counts>,
    cancel: CancellationToken,
}

impl Receiver {
    pub(super) fn new(
        resolver: &Resolver,
        socket: UdpSocket,
        is_wildcard: bool,
        counts: &Arc<Counts>,
        cancel: &CancellationToken,
    ) -> (Self, MissTask) {
        let socket = Arc::new(socket);
        let (sender, misses) = mpsc::channel(MISS_QUEUE);
        let task = MissTask {
            resolver: resolver.clone(),
            socket: Arc::clone(&socket),
            misses,
            counts: Arc::clone(counts),
            cancel: cancel.clone(),
        };
        let receiver = Self {
            resolver: resolver.clone(),
            socket,
            is_wildcard,
            misses: sender,
            counts: Arc::clone(counts),
            cancel: cancel.clone(),
        };
        (receiver, task)
    }

    /// Receives and answers until cancelled.
    pub(super) fn run(self) {
        let control = self.is_wildcard.then(|| nix::cmsg_space!(libc::in6_pktinfo));
        let mut receiving = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, control);
        // With room for exactly the control message that is sent: more would be refused.
        let control = self.is_wildcard.then(|| match self.socket.local_addr() {
            Ok(SocketAddr::V6(_)) => nix::cmsg_space!(libc::in6_pktinfo),
            _ => nix::cmsg_space!(libc::in_pktinfo),
        });
        let mut sending = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, control);
        let mut front = FrontTable::new(FRONT_SLOTS);
        let mut inbox = vec![0; BATCH * UDP_MAX_BYTES];
        let mut outbox = vec![0; BATCH * UDP_MAX_BYTES];
        while !self.cancel.is_cancelled() {
            let received = match self.receive(&mut receiving, &mut inbox) {
                Ok(received) => received,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => {
                    // Such as an ICMP error on its way to the socket; not to spin on one that stays.
                    tracing::debug!(%error, "receive failed");
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            };
            add(&self.counts.udp_queries, received.len());
            let now = self.resolver.now();
            let mut replies = SmallVec::<[Outgoing; BATCH]>::new();
            let slots = outbox.chunks_exact_mut(UDP_MAX_BYTES).enumerate();
            for ((slot, out), incoming) in slots.zip(&received) {
                let start = incoming.slot * UDP_MAX_BYTES;
                let packet = inbox.get(start..start + incoming.length).unwrap_or_default();
                match self.resolver.answer_hit(&mut front, packet, Transport::Udp, now, out) {
                    HitResult::Reply(length) => replies.push(Outgoing {
                        slot,
                        length,
                        client: incoming.client,
                        local: incoming.local,
                    }),
                    HitResult::Drop => {}
                    HitResult::Miss => {
                        let (client, local) = (incoming.client, incoming.local);
                        let miss = Miss { packet: packet.to_vec(), client, local };
                        if self.misses.try_send(miss).is_err() {
                            add(&self.counts.dropped_queries, 1);
                        }
                    }
                }
            }
            self.send(&mut sending, &outbox, &replies);
        }
    }

    fn receive(
        &self,
        headers: &mut MultiHeaders<SockaddrStorage>,
        inbox: &mut [u8],
    ) -> nix::Result<SmallVec<[Incoming; BATCH]>> {
        let mut slots = inbox.chunks_exact_mut(UDP_MAX_BYTES);
        // As many as there are slots, so none is empty.
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(slots.next().unwrap_or_default())]);
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_WAITFORONE;
        let results = recvmmsg(fd, headers, slices.iter_mut(), flags, None)?;
        let mut received = SmallVec::new();
        for (slot, message) in results.enumerate() {
            let Some(client) = message.address else { continue };
            // A query longer than any answer is not one.
            if message.flags.contains(MsgFlags::MSG_TRUNC) || client.family().is_none() {
                continue;
            }
            let local = if self.is_wildcard {
                message.cmsgs().ok().and_then(|mut messages| messages.find_map(local_address))
            } else {
                None
            };
            received.push(Incoming { slot, length: message.bytes, client, local });
        }
        Ok(received)
    }

    /// Sends replies, one call per local address. What the socket does not take is dropped.
    fn send(
        &self,
        headers: &mut MultiHeaders<SockaddrStorage>,
        outbox: &[u8],
        replies: &[Outgoing],
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
            let clients: SmallVec<[Option<SockaddrStorage>; BATCH]> =
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

/// A datagram in the inbox.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    slot: usize,
    length: usize,
    client: SockaddrStorage,
    local: Option<LocalAddress>,
}

/// A reply in the outbox.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    slot: usize,
    length: usize,
    client: SockaddrStorage,
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

impl MissTask {
    /// Answers misses until cancelled.
    pub(super) async fn run(mut self, tasks: TaskTracker) {
        let permits = Arc::new(Semaphore::new(MISSES_MAX));
        loop {
            let miss = tokio::select! {
                () = self.cancel.cancelled() => return,
                miss = self.misses.recv() => miss,
            };
            let Some(miss) = miss else { return };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                add(&self.counts.dropped_queries, 1);
                continue;
            };
            let (resolver, socket) = (self.resolver.clone(), Arc::clone(&self.socket));
            let (counts, cancel) = (Arc::clone(&self.counts), self.cancel.clone());
            tasks.spawn(async move {
                let answer = tokio::select! {
                    () = cancel.cancelled() => None,
                    answer = resolver.answer(&miss.packet, Transport::Udp) => answer,
                };
                if let Some(reply) = answer
                    && !send_one(&socket, &reply, &miss)
                {
                    add(&counts.dropped_replies, 1);
                }
                drop(permit);
            });
        }
    }
}

fn send_one(socket: &UdpSocket, reply: &[u8], miss: &Miss) -> bool {
    let sent = with_control(miss.local, |control| {
        let (fd, slices) = (socket.as_raw_fd(), [IoSlice::new(reply)]);
        sendmsg(fd, &slices, control, MsgFlags::MSG_DONTWAIT, Some(&miss.client))
    });
    sent.is_ok()
}
