//! Ports for programs that cannot be given port 0, because they do not say which one they took.
//!
//! Whoever looks for a free port and lets go of it loses it to the next connection of anybody. So a port is taken
//! from below those that the system hands out by itself, and an abstract socket of its number, which ends with
//! the process, keeps other tests off it.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as LocalAddr, UnixListener},
    },
    sync::{Mutex, PoisonError},
};

/// The first port to reserve: above those of services that people run.
const FIRST: u16 = 12_000;

/// Reserves a port for TCP and UDP, for as long as this process runs.
pub fn reserve_port() -> u16 {
    static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let range = FIRST..first_of_system().max(FIRST + 1_000);
    let start = fastrand::u16(range.clone());
    for port in (start..range.end).chain(range.start..start) {
        if let Some(reservation) = reserve(port) {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return port;
        }
    }
    panic!("no port of {range:?} is free");
}

/// Reserves the port of an address of loopback.
pub fn reserve_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, reserve_port()).into()
}

fn reserve(port: u16) -> Option<UnixListener> {
    let name = LocalAddr::from_abstract_name(format!("tidegate-test-port-{port}")).ok()?;
    let reservation = UnixListener::bind_addr(&name).ok()?;
    // Some server that is no test's may have it.
    let free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
        && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
        && TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_ok()
        && UdpSocket::bind((Ipv6Addr::LOCALHOST, port)).is_ok();
    free.then_some(reservation)
}

/// The first port that the system hands out by itself.
fn first_of_system() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
}
