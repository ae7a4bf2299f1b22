//! What this machine is: its RDMA devices and their ports, the PCI way to them, kernel, processors, limits.
//!
//! ```text
//!   Host::read(root) ── Tree: bounded reads below a root ──▶ Fact: what a file said, or why it said nothing
//!                                                             │
//!   programs ◀── RdmaDevice, Port, PciDevice, NetDev, … ◀─────┘ parsed by methods, never while reading
//! ```
//!
//! It reads and changes nothing, prints nothing, and takes every file to be possibly missing, empty or odd. The root is
//! `/`, or a folder with a copy of the same files: a test's, or somebody else's machine. Links are followed as they
//! would be if that folder were `/`, so nothing outside of it is ever read.
//!
//! Cards are told apart by what PCI says of them, never by the names of devices: those change with kernels and udev.

mod counters;
mod fact;
mod net;
mod pci;
mod rate;
mod rdma;
mod system;
mod told;
mod tree;

use std::path::Path;

pub use counters::{COUNTERS, Counter, CounterKind, Growth};
pub use fact::{Fact, Unread};
pub use net::{NetDev, Network, Route, rdma_mtu};
pub use pci::{Family, MELLANOX, PciDevice, PciLink, PciNode};
pub use rate::Rate;
pub use rdma::{Gid, Kind, PSIDS, Port, RdmaDevice, Speed};
pub use system::{Cpu, Limit, Memory, Nbd, NbdDevice, Software, User};

use self::tree::Tree;

/// What was read about one machine.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Where it was read; `/` for this machine.
    pub root: String,
    /// Who reads.
    pub user: User,
    /// Kernel, modules, packages.
    pub software: Software,
    /// Processors and how they save power.
    pub cpu: Cpu,
    /// Memory and how much of it may be locked.
    pub memory: Memory,
    /// Network cards of the makers of ConnectX on PCI, with or without a driver.
    pub cards: Vec<PciDevice>,
    /// RDMA devices, of any kind.
    pub rdma: Vec<RdmaDevice>,
    /// Network interfaces, addresses and routes.
    pub network: Network,
    /// The kernel's NBD driver.
    pub nbd: Nbd,
    /// Files that are there but may not be read by this user.
    pub denied: Vec<String>,
}

impl Host {
    /// Reads what there is below `root`. What cannot be read is missing, and never an error.
    pub fn read(root: &Path) -> Self {
        let tree = Tree::new(root);
        Self {
            root: root.display().to_string(),
            user: User::read(&tree),
            software: Software::read(&tree),
            cpu: Cpu::read(&tree),
            memory: Memory::read(&tree),
            cards: pci::read_cards(&tree),
            rdma: rdma::read(&tree),
            network: Network::read(&tree),
            nbd: Nbd::read(&tree),
            denied: tree.denied(),
        }
    }

    /// Whether this is the running machine, and not a copy of files.
    pub fn is_live(&self) -> bool {
        self.root == "/"
    }

    /// The interface with this name.
    pub fn netdev(&self, name: &str) -> Option<&NetDev> {
        self.network.devices.iter().find(|device| device.name == name)
    }

    /// The network interface that goes with a port: the one that its addresses name, else the one on the same card.
    pub fn netdev_of(&self, device: &RdmaDevice, port: &Port) -> Option<&NetDev> {
        let named = port.gids.iter().filter_map(|gid| gid.netdev.get()).chain(device.parent.get());
        named.into_iter().find_map(|name| self.netdev(name)).or_else(|| self.ipoib_of(device, port))
    }

    /// The IP-over-InfiniBand interface on the card of a device, by port where the kernel tells.
    fn ipoib_of(&self, device: &RdmaDevice, port: &Port) -> Option<&NetDev> {
        let place = &device.pci.as_ref()?.path;
        self.network.devices.iter().find(|netdev| {
            let same_port = netdev.port_index().is_none_or(|index| index + 1 == port.number);
            netdev.is_infiniband() && same_port && netdev.pci_path.as_ref() == Some(place)
        })
    }
}

#[cfg(test)]
mod tests;
