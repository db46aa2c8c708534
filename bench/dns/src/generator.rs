//! The load: datagrams in batches over a few sockets, with a bounded window, and every loss counted.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::{
    MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt,
};

/// Datagrams of one call.
const BATCH: usize = 32;
/// Sockets, so that the kernel spreads them over the threads of a server.
const SOCKETS: usize = 8;
/// Time after which a datagram counts as lost.
const LOST: Duration = Duration::from_millis(400);

/// The result of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadResult {
    /// Queries sent.
    pub sent: u64,
    /// Replies received.
    pub received: u64,
    /// Queries without a reply.
    pub lost: u64,
    /// Time from first query to last reply.
    pub seconds: f64,
    /// Latency below which half of the replies came, in microseconds.
    pub p50_us: f64,
    /// The same of 99 %.
    pub p99_us: f64,
}

impl LoadResult {
    /// Replies per second.
    pub fn qps(&self) -> f64 {
        self.received as f64 / self.seconds
    }
}

/// One socket with its queries in flight.
struct Lane {
    socket: UdpSocket,
    sending: MultiHeaders<SockaddrIn>,
    receiving: MultiHeaders<SockaddrIn>,
    /// Time at which the query in a slot was sent; the slot is its id.
    slots: Vec<Option<Instant>>,
    free: Vec<u16>,
    last_progress: Instant,
}

/// Sends queries until the time is over or the source has no more, with at most `window` in flight.
pub fn load(
    server: SocketAddr,
    window: usize,
    time: Duration,
    mut next: impl FnMut() -> Option<Vec<u8>>,
) -> Result<LoadResult> {
    let per_lane = (window / SOCKETS).max(1);
    let start = Instant::now();
    let mut lanes = Vec::new();
    for _ in 0..SOCKETS.min(window) {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(server)?;
        setsockopt(&socket, sockopt::RcvBuf, &(4 << 20))?;
        setsockopt(&socket, sockopt::SndBuf, &(4 << 20))?;
        socket.set_read_timeout(Some(Duration::from_millis(1)))?;
        lanes.push(Lane {
            socket,
            sending: MultiHeaders::preallocate(BATCH, None),
            receiving: MultiHeaders::preallocate(BATCH, None),
            slots: vec![None; per_lane],
            free: (0..per_lane as u16).collect(),
            last_progress: start,
        });
    }
    let mut result = LoadResult::default();
    let mut latencies = Vec::with_capacity(1 << 20);
    let mut inbox = vec![0_u8; BATCH * 2_048];
    let mut is_over = false;
    loop {
        let mut progress = false;
        let now = Instant::now();
        is_over |= now - start >= time;
        for lane in &mut lanes {
            let mut batch: Vec<(u16, Vec<u8>)> = Vec::with_capacity(BATCH);
            // Small batches would cost more than they bring.
            let wants = !is_over && lane.free.len() >= BATCH.min(per_lane);
            while wants && batch.len() < BATCH.min(per_lane) {
                let Some(mut packet) = next() else {
                    is_over = true;
                    break;
                };
                let Some(slot) = lane.free.pop() else { break };
                packet[..2].copy_from_slice(&slot.to_be_bytes());
                batch.push((slot, packet));
            }
            if !batch.is_empty() {
                let slices: Vec<[IoSlice<'_>; 1]> =
                    batch.iter().map(|(_, packet)| [IoSlice::new(packet)]).collect();
                let none = vec![None; batch.len()];
                let fd = lane.socket.as_raw_fd();
                let sent = sendmmsg(
                    fd,
                    &mut lane.sending,
                    slices.iter(),
                    &none,
                    [],
                    MsgFlags::empty(),
                )
                .map_or(0, Iterator::count);
                let now = Instant::now();
                for (index, (slot, _)) in batch.iter().enumerate() {
                    if index < sent {
                        lane.slots[usize::from(*slot)] = Some(now);
                        result.sent += 1;
                    } else {
                        lane.free.push(*slot);
                    }
                }
                progress |= sent > 0;
            }
            progress |= lane.receive(&mut inbox, MsgFlags::MSG_DONTWAIT, &mut result, &mut latencies);
        }
        let in_flight: usize = lanes.iter().map(|lane| per_lane - lane.free.len()).sum();
        if is_over && in_flight == 0 {
            break;
        }
        if !progress {
            // Waits for the lane that has waited longest.
            let waiting = lanes.iter_mut().filter(|lane| lane.free.len() < per_lane);
            if let Some(lane) = waiting.min_by_key(|lane| lane.last_progress) {
                lane.receive(&mut inbox, MsgFlags::MSG_WAITFORONE, &mut result, &mut latencies);
                if lane.last_progress.elapsed() > LOST {
                    for (slot, sent) in lane.slots.iter_mut().enumerate() {
                        if sent.take().is_some() {
                            result.lost += 1;
                            lane.free.push(slot as u16);
                        }
                    }
                    lane.last_progress = Instant::now();
                }
            }
        }
    }
    result.seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = ((latencies.len() as f64 * share) as usize).min(latencies.len().max(1) - 1);
        latencies.get(index).copied().unwrap_or(0) as f64 / 1_000.0
    };
    (result.p50_us, result.p99_us) = (at(0.5), at(0.99));
    Ok(result)
}

impl Lane {
    /// Receives what is there; true if anything was.
    fn receive(
        &mut self,
        inbox: &mut [u8],
        flags: MsgFlags,
        result: &mut LoadResult,
        latencies: &mut Vec<u32>,
    ) -> bool {
        let lengths: Vec<usize> = {
            let mut parts = inbox.chunks_exact_mut(2_048);
            let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
                std::array::from_fn(|_| [IoSliceMut::new(parts.next().unwrap_or_default())]);
            let fd = self.socket.as_raw_fd();
            match recvmmsg(fd, &mut self.receiving, slices.iter_mut(), flags, None) {
                Ok(received) => received.map(|message| message.bytes).collect(),
                // Nothing there, or the server is not there yet.
                Err(_) => return false,
            }
        };
        let mut ids = [0_u16; BATCH];
        let mut count = 0;
        for (index, bytes) in lengths.into_iter().enumerate() {
            if bytes >= 12 {
                ids[count] = u16::from_be_bytes([inbox[index * 2_048], inbox[index * 2_048 + 1]]);
                count += 1;
            }
        }
        let now = Instant::now();
        for id in &ids[..count] {
            if let Some(sent) = self.slots.get_mut(usize::from(*id)).and_then(Option::take) {
                result.received += 1;
                self.free.push(*id);
                if latencies.len() < latencies.capacity() {
                    latencies.push((now - sent).as_nanos().min(u128::from(u32::MAX)) as u32);
                }
            }
        }
        if count > 0 {
            self.last_progress = now;
        }
        count > 0
    }
}

/// A server that sends back what it gets, with the response bit set and nothing else: the least that
/// a server over UDP can do.
pub fn echo(port: u16) -> Result<()> {
    let socket = UdpSocket::bind(("127.0.0.1", port))?;
    setsockopt(&socket, sockopt::RcvBuf, &(4 << 20))?;
    setsockopt(&socket, sockopt::SndBuf, &(4 << 20))?;
    let mut receiving = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut sending = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut inbox = vec![0_u8; BATCH * 1_232];
    loop {
        let mut heads = Vec::with_capacity(BATCH);
        {
            let mut parts = inbox.chunks_exact_mut(1_232);
            let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
                std::array::from_fn(|_| [IoSliceMut::new(parts.next().unwrap_or_default())]);
            let fd = socket.as_raw_fd();
            let flags = MsgFlags::MSG_WAITFORONE;
            let Ok(messages) = recvmmsg(fd, &mut receiving, slices.iter_mut(), flags, None) else {
                continue;
            };
            heads.extend(messages.map(|message| (message.bytes, message.address)));
        }
        for slot in 0..heads.len() {
            inbox[slot * 1_232 + 2] |= 0x80;
        }
        let slices: Vec<[IoSlice<'_>; 1]> = heads
            .iter()
            .enumerate()
            .map(|(slot, (bytes, _))| [IoSlice::new(&inbox[slot * 1_232..slot * 1_232 + bytes])])
            .collect();
        let clients: Vec<Option<SockaddrIn>> = heads.iter().map(|(_, client)| *client).collect();
        let fd = socket.as_raw_fd();
        let _ = sendmmsg(fd, &mut sending, slices.iter(), &clients, [], MsgFlags::MSG_DONTWAIT)
            .map(Iterator::count);
    }
}
