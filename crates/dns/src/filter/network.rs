//! Networks: the longest prefix that holds an address, and the table of neighbours.

use std::{collections::HashMap, net::IpAddr};

use foldhash::fast::RandomState;
use ipnet::IpNet;

/// Values by network; the longest prefix counts.
#[derive(Clone, Debug)]
pub(crate) struct NetworkMap<T> {
    /// Hashed fast: every query is looked up, and the keys are the operator's.
    values: HashMap<IpNet, T, RandomState>,
    /// Lengths of prefixes, longest first, by family.
    prefixes: [Vec<u8>; 2],
}

impl<T> Default for NetworkMap<T> {
    fn default() -> Self {
        Self { values: HashMap::default(), prefixes: [Vec::new(), Vec::new()] }
    }
}

impl<T> NetworkMap<T> {
    /// Adds a network; the value it had is replaced.
    pub(crate) fn insert(&mut self, network: IpNet, value: T) {
        let prefixes = &mut self.prefixes[usize::from(network.addr().is_ipv6())];
        if !prefixes.contains(&network.prefix_len()) {
            prefixes.push(network.prefix_len());
            prefixes.sort_unstable_by(|a, b| b.cmp(a));
        }
        self.values.insert(network.trunc(), value);
    }

    /// Returns the value of the longest prefix that holds an address.
    pub(crate) fn find(&self, address: IpAddr) -> Option<&T> {
        let prefixes = &self.prefixes[usize::from(address.is_ipv6())];
        prefixes.iter().find_map(|prefix| {
            let network = IpNet::new(address, *prefix).ok()?;
            self.values.get(&network.trunc())
        })
    }

    /// Returns true if any network holds an address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.find(address).is_some()
    }
}

impl FromIterator<IpNet> for NetworkMap<()> {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let mut map = Self::default();
        networks.into_iter().for_each(|network| map.insert(network, ()));
        map
    }
}

/// Returns the IPv4 address that a mapped IPv6 address stands for.
pub(crate) fn unmap(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Reads the hardware address in an EDNS option of dnsmasq (`add-mac`): raw in 65001, as text or in
/// base64 in 65073.
pub(crate) fn read_mac_option(code: u16, data: &[u8]) -> Option<[u8; 6]> {
    match (code, data.len()) {
        (65_001, _) => data.try_into().ok(),
        (65_073, 17) => crate::policy::parse_mac(std::str::from_utf8(data).ok()?),
        (65_073, 8) => {
            let digit = |byte: u8| match byte {
                b'A'..=b'Z' => Some(byte - b'A'),
                b'a'..=b'z' => Some(byte - b'a' + 26),
                b'0'..=b'9' => Some(byte - b'0' + 52),
                b'+' => Some(62),
                b'/' => Some(63),
                _ => None,
            };
            let bits = data
                .iter()
                .try_fold(0_u64, |bits, byte| Some(bits << 6 | u64::from(digit(*byte)?)))?;
            let [_, _, mac @ ..] = bits.to_be_bytes();
            Some(mac)
        }
        _ => None,
    }
}

/// Reads the hardware addresses of neighbours as the system lists them for IPv4.
pub(crate) fn parse_neighbours(text: &str) -> Vec<(IpAddr, [u8; 6])> {
    let entries = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        let mac = crate::policy::parse_mac(words.nth(2)?)?;
        (mac != [0; 6]).then_some((address, mac))
    });
    let mut neighbours: Vec<_> = entries.collect();
    neighbours.sort();
    neighbours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts() {
        let mut map = NetworkMap::default();
        for (network, value) in
            [("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.3/32", 3), ("fd00::/8", 4)]
        {
            map.insert(network.parse().unwrap(), value);
        }
        for (address, value) in [
            ("10.9.9.9", Some(1)),
            ("10.1.9.9", Some(2)),
            ("10.1.2.3", Some(3)),
            ("fd12::1", Some(4)),
            ("11.0.0.1", None),
            ("::1", None),
        ] {
            assert_eq!(map.find(address.parse().unwrap()).copied(), value, "{address}");
        }
    }

    #[test]
    fn hardware_addresses_of_forwarders_are_read_in_all_three_forms() {
        let mac = [2, 0, 0x5e, 0x10, 0, 0xff];
        assert_eq!(read_mac_option(65_001, &mac), Some(mac));
        assert_eq!(read_mac_option(65_073, b"02:00:5e:10:00:ff"), Some(mac));
        assert_eq!(read_mac_option(65_073, b"AgBeEAD/"), Some(mac));
        for (code, data) in
            [(65_001, &mac[..5]), (65_073, b"AgBeEAD!"), (65_073, b""), (10, &mac[..])]
        {
            assert_eq!(read_mac_option(code, data), None);
        }
    }

    #[test]
    fn neighbours_are_read() {
        let text = "IP address  HW type  Flags  HW address         Mask  Device\n\
                    192.168.1.7  0x1      0x2    02:00:5e:10:00:01  *     eth0\n\
                    192.168.1.8  0x1      0x0    00:00:00:00:00:00  *     eth0\n";
        let expected = ("192.168.1.7".parse().unwrap(), [2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(parse_neighbours(text), [expected]);
    }
}
