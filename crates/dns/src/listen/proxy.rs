//! PROXY protocol, version 2: the client's address in front of what a trusted proxy sends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// First bytes of a header; no DNS message begins so, over TCP it would be of 3,338 bytes.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes before the addresses.
const FIXED_BYTES: usize = 16;

/// Longest header that is read, extensions included.
const HEADER_MAX_BYTES: usize = 2_048;

/// Reads a header at the start of a datagram. Returns the address in it, if it has one, and the rest;
/// none if it is damaged.
pub(super) fn strip(packet: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    if !packet.starts_with(&SIGNATURE) {
        return Some((None, packet));
    }
    let (fixed, rest) = packet.split_at_checked(FIXED_BYTES)?;
    let (addresses, rest) = rest.split_at_checked(length(fixed))?;
    Some((address(fixed, addresses)?, rest))
}

/// Reads a header at the start of a stream of a trusted proxy; a stream without one is an error.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "not a PROXY header");
    let mut fixed = [0; FIXED_BYTES];
    stream.read_exact(&mut fixed).await?;
    if !fixed.starts_with(&SIGNATURE) || length(&fixed) > HEADER_MAX_BYTES {
        return Err(damaged());
    }
    let mut addresses = vec![0; length(&fixed)];
    stream.read_exact(&mut addresses).await?;
    address(&fixed, &addresses).ok_or_else(damaged)
}

fn length(fixed: &[u8]) -> usize {
    crate::wire::read_u16(fixed, 14).map_or(usize::MAX, usize::from)
}

/// Returns the source address; none inside if the proxy speaks for itself. The outer none is for
/// damage.
fn address(fixed: &[u8], addresses: &[u8]) -> Option<Option<IpAddr>> {
    match (fixed.get(12)?, fixed.get(13)? >> 4) {
        // LOCAL: a health check.
        (0x20, _) => Some(None),
        (0x21, 1) => {
            let bytes: [u8; 4] = addresses.get(..4)?.try_into().ok()?;
            addresses.get(..12).map(|_| Some(Ipv4Addr::from(bytes).into()))
        }
        (0x21, 2) => {
            let bytes: [u8; 16] = addresses.get(..16)?.try_into().ok()?;
            addresses.get(..36).map(|_| Some(Ipv6Addr::from(bytes).into()))
        }
        (0x21, 0) => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend_from_slice(&[command, family]);
        header.extend_from_slice(&u16::try_from(addresses.len()).unwrap().to_be_bytes());
        header.extend_from_slice(addresses);
        header
    }

    #[tokio::test]
    async fn the_address_of_the_client_is_read() {
        let v4 = header(0x21, 0x11, &[192, 0, 2, 7, 127, 0, 0, 1, 0x30, 0x39, 0, 53]);
        let mut packet = v4.clone();
        packet.extend_from_slice(b"rest");
        let client = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(strip(&packet), Some((Some(client), &b"rest"[..])));
        assert_eq!(read(&mut &v4[..]).await.unwrap(), Some(client));
        let mut addresses = [0; 36];
        addresses[15] = 9;
        let v6 = header(0x21, 0x22, &addresses);
        assert_eq!(strip(&v6), Some((Some("::9".parse().unwrap()), &b""[..])));
        assert_eq!(strip(&header(0x20, 0, &[])), Some((None, &b""[..])), "a health check");
        assert_eq!(strip(b"plain"), Some((None, &b"plain"[..])));
    }

    #[tokio::test]
    async fn damaged_headers_are_refused() {
        let v4 = header(0x21, 0x11, &[192, 0, 2, 7, 127, 0, 0, 1, 0x30, 0x39, 0, 53]);
        for length in 12..v4.len() {
            assert_eq!(strip(&v4[..length]), None, "{length}");
            assert!(read(&mut &v4[..length]).await.is_err());
        }
        assert_eq!(strip(&header(0x11, 0x11, &[0; 12])), None, "another version");
        assert_eq!(strip(&header(0x21, 0x11, &[0; 8])), None, "too short for its family");
        assert!(read(&mut &b"\0\x1dno header at all, but a query"[..]).await.is_err());
    }
}
