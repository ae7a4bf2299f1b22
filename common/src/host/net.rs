//! Network interfaces, their addresses, and the way to a peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fact::Fact;
use super::tree::Tree;

/// Interfaces and lines of tables that are looked at.
const INTERFACES: usize = 128;

/// The number of InfiniBand among the kinds of interfaces.
const INFINIBAND: u64 = 32;

/// Headers of the longest RDMA packet on Ethernet, as the kernel counts them.
const HEADERS: u64 = 96;

/// What this machine has of a network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Its interfaces.
    pub devices: Vec<NetDev>,
    /// Its IPv4 routes.
    pub routes: Vec<Route>,
}

/// A network interface.
#[derive(Clone, Debug, Default)]
pub struct NetDev {
    /// Its name.
    pub name: String,
    /// Its kind: 1 Ethernet, 32 InfiniBand.
    pub kind: Fact,
    /// Bytes of its greatest packet.
    pub mtu: Fact,
    /// `up`, `down`, `unknown`.
    pub operstate: Fact,
    /// Megabits a second.
    pub speed: Fact,
    /// `datagram` or `connected`, on InfiniBand.
    pub mode: Fact,
    /// The port of its card, from 0.
    pub dev_port: Fact,
    /// Where its card hangs.
    pub pci_path: Option<String>,
    /// Its addresses, as far as routes tell whose they are.
    pub addresses: Vec<IpAddr>,
}

/// One line of the IPv4 routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface.
    pub interface: String,
    network: u32,
    mask: u32,
    gateway: u32,
}

impl NetDev {
    /// Whether it is IP over InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        self.kind.number() == Some(INFINIBAND)
    }

    /// The port of its card, from 0.
    pub(super) fn port_index(&self) -> Option<u32> {
        self.dev_port.parse()
    }

    /// Its speed, where it has one: the kernel says -1 for none.
    pub fn megabits(&self) -> Option<u32> {
        self.speed.parse().filter(|&megabits| megabits > 0 && megabits < u32::MAX)
    }

    /// Bytes of data in the greatest RDMA packet that it carries.
    pub fn rdma_mtu(&self) -> Option<u64> {
        rdma_mtu(self.mtu.number()?)
    }
}

/// Bytes of data in the greatest RDMA packet on an Ethernet interface with this MTU.
pub fn rdma_mtu(mtu: u64) -> Option<u64> {
    let room = mtu.checked_sub(HEADERS)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|&size| size <= room)
}

impl Network {
    pub(super) fn read(tree: &Tree) -> Self {
        let folder = "/sys/class/net";
        let routes: Vec<Route> = tree
            .lines("/proc/net/route")
            .unwrap_or_default()
            .iter()
            .skip(1)
            .filter_map(|line| Route::parse(line))
            .collect();
        let mut addresses = local_v4(&tree.lines("/proc/net/fib_trie").unwrap_or_default(), &routes);
        addresses.extend(local_v6(&tree.lines("/proc/net/if_inet6").unwrap_or_default()));
        let devices =
            tree.names(folder).into_iter().filter(|name| tree.exists(&format!("{folder}/{name}/type")));
        let devices = devices
            .take(INTERFACES)
            .map(|name| {
                let fact = |file: &str| tree.fact(&format!("{folder}/{name}/{file}"));
                let ours = addresses.iter().filter(|(interface, _)| *interface == name);
                NetDev {
                    kind: fact("type"),
                    mtu: fact("mtu"),
                    operstate: fact("operstate"),
                    speed: fact("speed"),
                    mode: fact("mode"),
                    dev_port: fact("dev_port"),
                    pci_path: tree.real(&format!("{folder}/{name}/device")).map(|real| format!("/{real}")),
                    addresses: ours.map(|(_, address)| *address).collect(),
                    name,
                }
            })
            .collect();
        Self { devices, routes }
    }

    /// The interface by which packets to `address` leave; `None` where no route tells.
    pub fn way_to(&self, address: Ipv4Addr) -> Option<&str> {
        let address = u32::from(address);
        let fits = self.routes.iter().filter(|route| address & route.mask == route.network);
        fits.max_by_key(|route| route.mask).map(|route| route.interface.as_str())
    }
}

impl Route {
    /// A line of `/proc/net/route`: interface, destination, gateway, flags, three counts, mask.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The kernel prints the bytes of an address as one number of a little-endian machine.
        let address = |at: usize| Some(u32::from_str_radix(fields.get(at)?, 16).ok()?.swap_bytes());
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        // Up, and not a rejection.
        let usable = flags & 1 == 1 && flags & 0x200 == 0;
        let route = Self {
            interface: (*fields.first()?).to_owned(),
            network: address(1)?,
            gateway: address(2)?,
            mask: address(7)?,
        };
        usable.then_some(route)
    }
}

/// This machine's IPv4 addresses, each with the interface whose network it lies in.
fn local_v4(trie: &[String], routes: &[Route]) -> Vec<(String, IpAddr)> {
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for pair in trie.windows(2) {
        let address = pair[0].trim().strip_prefix("|-- ").and_then(|text| text.parse::<Ipv4Addr>().ok());
        let Some(address) = address.filter(|_| pair[1].trim() == "/32 host LOCAL") else { continue };
        let number = u32::from(address);
        let direct = routes.iter().filter(|route| route.gateway == 0 && number & route.mask == route.network);
        if let Some(route) = direct.filter(|route| route.mask != 0).max_by_key(|route| route.mask) {
            let entry = (route.interface.clone(), IpAddr::V4(address));
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
    }
    found
}

/// Lines of `/proc/net/if_inet6`: address, index, prefix, scope, flags, interface. Link-local ones name no machine.
fn local_v6(lines: &[String]) -> Vec<(String, IpAddr)> {
    let parse = |line: &String| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = Ipv6Addr::from(u128::from_str_radix(fields.first()?, 16).ok()?);
        let interface = (*fields.get(5)?).to_owned();
        (!address.is_unicast_link_local() && !address.is_loopback())
            .then_some((interface, IpAddr::V6(address)))
    };
    lines.iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn addresses_are_given_to_their_interfaces() {
        let routes = [
            "eth0\t00000000\t0107A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0",
            "ib0\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
            "eth0\t0007A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
            "bad\tzz",
        ];
        let routes: Vec<Route> = routes.iter().filter_map(|line| Route::parse(line)).collect();
        assert_eq!(routes.len(), 3);
        let trie = lines(
            "Main:\n  |-- 10.9.0.0\n   /24 link UNICAST\n  |-- 10.9.0.1\n   /32 host LOCAL\n  |-- 127.0.0.1\n   /32 host LOCAL",
        );
        let found = local_v4(&trie, &routes);
        assert_eq!(found, [("ib0".to_owned(), "10.9.0.1".parse().unwrap())]);
        let network = Network { devices: Vec::new(), routes };
        assert_eq!(network.way_to("10.9.0.7".parse().unwrap()), Some("ib0"));
        assert_eq!(network.way_to("8.8.8.8".parse().unwrap()), Some("eth0"));
        let v6 = lines(
            "fd000000000000000000000000000001 02 40 00 80 ib0\nfe80000000000000ffff 02 40 20 80 ib0\n\nx",
        );
        assert_eq!(local_v6(&v6).len(), 2);
    }

    #[test]
    fn an_interface_carries_packets_with_their_headers() {
        for (mtu, data) in [
            (1500, Some(1024)),
            (4200, Some(4096)),
            (9000, Some(4096)),
            (2144, Some(2048)),
            (2143, Some(1024)),
            (300, None),
            (0, None),
        ] {
            assert_eq!(rdma_mtu(mtu), data, "{mtu}");
        }
    }
}
