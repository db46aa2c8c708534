//! The neighbour table of the system: which hardware address has which IP addresses, IPv6 ones that
//! change by the hour included. Asked of the kernel over netlink (`RTM_GETNEIGH`); where that is not
//! possible, `/proc/net/arp` is read, which knows IPv4 only.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
        sockopt,
    },
    time::{TimeVal, TimeValLike as _},
};

use super::network::parse_neighbours;

/// Neighbours as Linux lists them for IPv4.
const NEIGHBOUR_FILE: &str = "/proc/net/arp";

/// Neighbours that are read at most.
const NEIGHBOURS_MAX: usize = 100_000;

/// Bytes of one reply of the kernel; it sends as much as fits.
const REPLY_BYTES: usize = 32_768;

/// Wait for the kernel.
const REPLY_TIMEOUT_MS: i64 = 500;

/// Numbers of `linux/netlink.h`, `linux/rtnetlink.h` and `linux/neighbour.h`.
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Incomplete, failed, or without a hardware address.
const USELESS_STATES: u16 = 0x01 | 0x20 | 0x40;
const HEADER_BYTES: usize = 16;
const NEIGHBOUR_BYTES: usize = 12;

/// A neighbour: an IP address and the hardware address behind it.
pub(crate) type Neighbour = (IpAddr, [u8; 6]);

/// Reads the table, sorted. Empty where the system tells nothing.
pub(crate) fn read_neighbours() -> Vec<Neighbour> {
    ask_kernel().unwrap_or_else(|error| {
        tracing::debug!(%error, "the kernel does not tell neighbours; IPv4 is read from a file");
        parse_neighbours(&std::fs::read_to_string(NEIGHBOUR_FILE).unwrap_or_default())
    })
}

fn ask_kernel() -> io::Result<Vec<Neighbour>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let protocol = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(REPLY_TIMEOUT_MS))?;
    let length = u32::try_from(HEADER_BYTES + NEIGHBOUR_BYTES).unwrap_or(0);
    let mut request = Vec::with_capacity(HEADER_BYTES + NEIGHBOUR_BYTES);
    request.extend_from_slice(&length.to_ne_bytes());
    request.extend_from_slice(&RTM_GETNEIGH.to_ne_bytes());
    request.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    // Sequence number, process, and a neighbour of no family: of all.
    request.resize(HEADER_BYTES + NEIGHBOUR_BYTES, 0);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut neighbours = Vec::new();
    let mut reply = vec![0; REPLY_BYTES];
    loop {
        let length = recv(socket.as_raw_fd(), &mut reply, MsgFlags::empty())?;
        let is_done = read_messages(reply.get(..length).unwrap_or_default(), &mut neighbours)?;
        if is_done || length == 0 || neighbours.len() >= NEIGHBOURS_MAX {
            break;
        }
    }
    neighbours.sort_unstable();
    neighbours.dedup();
    Ok(neighbours)
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Reads the messages of one reply; true after the last one.
fn read_messages(mut bytes: &[u8], neighbours: &mut Vec<Neighbour>) -> io::Result<bool> {
    while bytes.len() >= HEADER_BYTES {
        let length = bytes.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
        let (Some(message), Some(kind)) = (bytes.get(..length), read_u16(bytes, 4)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(io::ErrorKind::PermissionDenied.into()),
            RTM_NEWNEIGH => neighbours.extend(read_neighbour(message)),
            _ => {}
        }
        if length < HEADER_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn read_neighbour(message: &[u8]) -> Option<Neighbour> {
    let state = read_u16(message, HEADER_BYTES + 8)?;
    if state & USELESS_STATES != 0 {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    let mut rest = message.get(HEADER_BYTES + NEIGHBOUR_BYTES..)?;
    while let (Some(length), Some(kind)) = (read_u16(rest, 0), read_u16(rest, 2)) {
        let length = usize::from(length);
        let data = rest.get(4..length)?;
        match (kind, data.len()) {
            (NDA_DST, 4) => {
                address = <[u8; 4]>::try_from(data).ok().map(Ipv4Addr::from).map(IpAddr::V4)
            }
            (NDA_DST, 16) => {
                address = <[u8; 16]>::try_from(data).ok().map(Ipv6Addr::from).map(IpAddr::V6)
            }
            (NDA_LLADDR, 6) => mac = data.try_into().ok(),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let mac: [u8; 6] = mac?;
    (mac != [0; 6]).then_some((address?, mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn neighbour(state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![10, 0, 0, 0, 2, 0, 0, 0];
        body.extend(state.to_ne_bytes());
        body.extend([0, 0]);
        for (kind, data) in attributes {
            body.extend((data.len() as u16 + 4).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*data);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        message(RTM_NEWNEIGH, &body)
    }

    #[test]
    fn both_families_are_read_and_the_useless_left_out() {
        let mac = [2, 0, 0x5e, 0x10, 0, 1];
        let v6: Ipv6Addr = "fd00::17".parse().unwrap();
        let reply = [
            neighbour(0x02, &[(NDA_DST, &[192, 168, 1, 7]), (NDA_LLADDR, &mac)]),
            neighbour(0x04, &[(NDA_DST, &v6.octets()), (3, &[0; 16]), (NDA_LLADDR, &mac)]),
            neighbour(0x20, &[(NDA_DST, &[192, 168, 1, 8]), (NDA_LLADDR, &mac)]),
            neighbour(0x02, &[(NDA_DST, &[192, 168, 1, 9])]),
            neighbour(0x02, &[(NDA_DST, &[127, 0, 0, 1]), (NDA_LLADDR, &[0; 6])]),
            message(NLMSG_DONE, &[0; 4]),
        ]
        .concat();
        let mut found = Vec::new();
        assert!(read_messages(&reply, &mut found).unwrap());
        let expected = [("192.168.1.7".parse().unwrap(), mac), (IpAddr::V6(v6), mac)];
        assert_eq!(found, expected);
        // Whatever is cut or changed is read or refused.
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut bad = reply.clone();
            let at = random.usize(..bad.len());
            bad[at] = random.u8(..);
            bad.truncate(random.usize(..=bad.len()));
            let _ = read_messages(&bad, &mut Vec::new());
        }
    }

    #[test]
    fn the_system_is_asked() {
        // There may be no neighbour here; that it can be asked is enough.
        assert!(read_neighbours().len() <= NEIGHBOURS_MAX);
        ask_kernel().unwrap();
    }
}
