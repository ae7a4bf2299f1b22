//! RDMA devices and their ports, as `/sys/class/infiniband` shows them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::counters::{COUNTERS, Counter};
use super::fact::Fact;
use super::net::NetDev;
use super::pci::{PciDevice, PciNode};
use super::rate::Rate;
use super::tree::Tree;

/// Entries of an address table that are looked at; the first ones are those in use.
const GIDS: usize = 64;
/// Devices, and ports of one device, that are looked at.
const DEVICES: usize = 64;

/// Firmware images by their PSID: what they are called, and whether the card can do FDR. From Mellanox's own tools.
pub const PSIDS: [(&str, &str, bool); 3] = [
    ("MT_1090120019", "MCX354A-FCB_A2-A5", true),
    ("MT_1100120019", "MCX353A-FCB_A2-A5", true),
    ("MT_1120120018", "MCX353A-QCA_A1-A2", false),
];

/// What an RDMA device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A card on PCI.
    Card,
    /// Soft-RoCE: the kernel does the card's work.
    SoftRoce,
    /// Software that speaks iWARP.
    SoftIwarp,
    /// No card on PCI, and nothing that tells what else.
    Unknown,
}

/// An RDMA device.
#[derive(Clone, Debug, Default)]
pub struct RdmaDevice {
    /// Its name, which means nothing.
    pub name: String,
    /// Its folder below `/sys/class/infiniband`.
    pub path: String,
    /// The card.
    pub pci: Option<PciDevice>,
    /// The network interface that Soft-RoCE sits on.
    pub parent: Fact,
    /// `1: CA`, `4: RNIC`.
    pub node_type: Fact,
    /// The firmware's version.
    pub firmware: Fact,
    /// The PSID: which board, and whose firmware.
    pub psid: Fact,
    /// The chip.
    pub chip: Fact,
    /// The device's number in the fabric.
    pub node_guid: Fact,
    /// The card's number.
    pub image_guid: Fact,
    /// The device file for programs, such as `uverbs0`.
    pub verbs: Option<String>,
    /// Whether that file is there, and whether this user may read and write it.
    pub verbs_file: Option<bool>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number, from 1.
    pub number: u32,
    /// Its folder.
    pub path: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Fact,
    /// `4: ACTIVE`.
    pub state: Fact,
    /// `5: LinkUp`.
    pub phys_state: Fact,
    /// `56 Gb/sec (4X FDR)`.
    pub rate: Fact,
    /// Its local address.
    pub lid: Fact,
    /// The subnet manager's.
    pub sm_lid: Fact,
    /// The greatest packet that an InfiniBand port of mlx4 is set to.
    pub mtu: Option<Fact>,
    /// What a port of mlx4 is set to: `ib`, `eth`, `auto (ib)`.
    pub mode: Option<Fact>,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// Its counters; empty where it has none.
    pub counters: Vec<Counter>,
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// The address, in the form of IPv6.
    pub address: String,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub kind: Fact,
    /// The network interface that it comes from.
    pub netdev: Fact,
}

/// How much data a port carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Gigabits of data a second.
    pub gigabits: f64,
    /// What the link is called: `4X FDR`, `40 Gb/s Ethernet`.
    pub name: String,
    /// Where that was read.
    pub read: Fact,
}

impl Speed {
    /// Gigabytes a second.
    pub fn gigabytes(&self) -> f64 {
        self.gigabits / 8.0
    }
}

pub(super) fn read(tree: &Tree) -> Vec<RdmaDevice> {
    let folder = "/sys/class/infiniband";
    let verbs = verbs_names(tree);
    tree.names(folder)
        .into_iter()
        .filter(|name| {
            tree.exists(&format!("{folder}/{name}/ports"))
                || tree.exists(&format!("{folder}/{name}/node_guid"))
        })
        .take(DEVICES)
        .map(|name| RdmaDevice::read(tree, &name, &verbs))
        .collect()
}

/// The device files, each with the name of its RDMA device.
fn verbs_names(tree: &Tree) -> Vec<(String, String)> {
    let folder = "/sys/class/infiniband_verbs";
    let names = tree.names(folder).into_iter().filter(|name| name.starts_with("uverbs"));
    names.filter_map(|name| Some((tree.fact(&format!("{folder}/{name}/ibdev")).value.ok()?, name))).collect()
}

impl RdmaDevice {
    fn read(tree: &Tree, name: &str, verbs: &[(String, String)]) -> Self {
        let path = format!("/sys/class/infiniband/{name}");
        let fact = |name: &str| tree.fact(&format!("{path}/{name}"));
        let place = tree.real(&format!("{path}/device")).map(|real| format!("/{real}"));
        let pci = place
            .map(|place| PciDevice::read(tree, &place))
            .filter(|pci| pci.vendor.get().is_some() && !pci.chain.is_empty());
        let verbs = verbs.iter().find(|(device, _)| device == name).map(|(_, verbs)| verbs.clone());
        let file = verbs.as_ref().map(|verbs| format!("/dev/infiniband/{verbs}"));
        let verbs_file = file.filter(|file| tree.exists(file)).map(|file| tree.may_use(&file));
        let ports = tree.names(&format!("{path}/ports"));
        let ports = ports.iter().filter_map(|port| port.parse().ok()).take(DEVICES);
        let ports = ports.map(|number| Port::read(tree, &path, number, pci.as_ref())).collect();
        Self {
            name: name.to_owned(),
            parent: fact("parent"),
            node_type: fact("node_type"),
            firmware: fact("fw_ver"),
            psid: fact("board_id"),
            chip: fact("hca_type"),
            node_guid: fact("node_guid"),
            image_guid: fact("sys_image_guid"),
            path,
            pci,
            verbs,
            verbs_file,
            ports,
        }
    }

    /// What it is. Older kernels show the network card below Soft-RoCE as its device, so its `parent` comes first.
    pub fn kind(&self) -> Kind {
        match (self.parent.get(), &self.pci, self.node_type.code()) {
            (Some(_), ..) => Kind::SoftRoce,
            (None, Some(_), _) => Kind::Card,
            (None, None, Some(4)) => Kind::SoftIwarp,
            (None, None, _) => Kind::Unknown,
        }
    }

    /// The card; `None` for software.
    pub fn card(&self) -> Option<&PciDevice> {
        self.pci.as_ref().filter(|_| self.kind() == Kind::Card)
    }

    /// What to call it.
    pub fn what(&self) -> String {
        match (self.kind(), &self.pci) {
            (Kind::SoftRoce, _) => "Soft-RoCE".to_owned(),
            (Kind::SoftIwarp, _) => "iWARP in software".to_owned(),
            (_, Some(pci)) => pci.name(),
            (_, None) => "an RDMA device without a card on PCI".to_owned(),
        }
    }

    /// The name of its firmware image, and whether the card can do FDR, for the PSIDs that we know.
    pub fn image(&self) -> Option<(&'static str, bool)> {
        let psid = self.psid.get()?;
        PSIDS.into_iter().find(|(known, ..)| *known == psid).map(|(_, image, fdr)| (image, fdr))
    }

    /// The firmware's version as numbers, to be compared.
    pub fn version(&self) -> Option<Vec<u32>> {
        let numbers: Option<Vec<u32>> =
            self.firmware.get()?.split('.').map(|part| part.trim().parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() == 3)
    }
}

impl Port {
    fn read(tree: &Tree, device: &str, number: u32, pci: Option<&PciDevice>) -> Self {
        let path = format!("{device}/ports/{number}");
        let fact = |name: &str| tree.fact(&format!("{path}/{name}"));
        let link_layer = fact("link_layer");
        // The driver complains in the kernel's log when an Ethernet port is asked for this.
        let mtu = pci
            .filter(|_| link_layer.get() == Some("InfiniBand"))
            .map(|pci| tree.fact(&format!("{}/mlx4_port{number}_mtu", pci.path)))
            .filter(|fact| fact.get().is_some());
        let mode = pci.and_then(|pci| {
            let name = format!("/mlx4_port{number}");
            pci.port_modes.iter().find(|mode| mode.path.ends_with(&name)).cloned()
        });
        let counters = COUNTERS
            .into_iter()
            .map(|(name, bits, kind)| Counter { name, bits, kind, fact: fact(&format!("counters/{name}")) })
            .filter(|counter| counter.fact.get().is_some())
            .collect();
        Self {
            number,
            link_layer,
            state: fact("state"),
            phys_state: fact("phys_state"),
            rate: fact("rate"),
            lid: fact("lid"),
            sm_lid: fact("sm_lid"),
            mtu,
            mode,
            gids: read_gids(tree, &path),
            counters,
            path,
        }
    }

    /// Whether it speaks InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        self.link_layer.get() == Some("InfiniBand")
    }

    /// Whether it speaks Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer.get() == Some("Ethernet")
    }

    /// Whether an InfiniBand port is switched off or asleep, so that it looks for no other one. Ethernet ports say the
    /// same whenever there is no link.
    pub fn is_off(&self) -> bool {
        self.is_infiniband() && matches!(self.phys_state.code(), Some(1 | 3))
    }

    /// Whether it carries data.
    pub fn is_active(&self) -> bool {
        self.state.code() == Some(4)
    }

    /// Its rate. A port that carries nothing says nothing true: mlx4 tells SDR while a link is down.
    pub fn rate(&self) -> Option<Rate> {
        self.rate.get().filter(|_| self.is_active()).and_then(Rate::parse)
    }

    /// How much data it carries. On Ethernet the network interface knows best: drivers dress its speed up as one that
    /// InfiniBand has, such as 40 Gb/s as `4X QDR`, of which no line code is to be taken off.
    pub fn speed(&self, netdev: Option<&NetDev>) -> Option<Speed> {
        let rate = self.rate();
        if self.is_infiniband() {
            let rate = rate?;
            let gigabits = rate.infiniband_gigabits()?;
            return Some(Speed { gigabits, name: rate.to_string(), read: self.rate.clone() });
        }
        let megabits = netdev.and_then(|netdev| Some((netdev.megabits()?, netdev.speed.clone())));
        let (gigabits, read) = match megabits {
            Some((megabits, fact)) if self.is_active() => (f64::from(megabits) / 1000.0, fact),
            _ => (rate.filter(|_| self.is_ethernet())?.signal, self.rate.clone()),
        };
        Some(Speed { gigabits, name: format!("{gigabits} Gb/s Ethernet"), read })
    }
}

fn read_gids(tree: &Tree, port: &str) -> Vec<Gid> {
    let indices = tree.names(&format!("{port}/gids")).into_iter().filter_map(|name| name.parse::<u32>().ok());
    indices
        .take(GIDS)
        .filter_map(|index| {
            let address = tree.fact(&format!("{port}/gids/{index}"));
            let text = address.get()?.to_owned();
            (!address.is_zero()).then(|| Gid {
                index,
                address: text,
                kind: tree.fact(&format!("{port}/gid_attrs/types/{index}")),
                netdev: tree.fact(&format!("{port}/gid_attrs/ndevs/{index}")),
            })
        })
        .collect()
}

impl Gid {
    /// Whether it is the second version of RoCE, which is routed like UDP.
    pub fn is_v2(&self) -> bool {
        self.kind.get() == Some("RoCE v2")
    }

    /// The IPv4 address in it.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address.parse::<Ipv6Addr>().ok()?.to_ipv4_mapped()
    }

    /// The IPv6 address in it that somebody gave the interface: not one that it made for itself on its own link.
    pub fn global(&self) -> Option<Ipv6Addr> {
        let address = self.address.parse::<Ipv6Addr>().ok()?;
        (address.to_ipv4_mapped().is_none() && !address.is_unicast_link_local()).then_some(address)
    }
}

impl PciNode {
    /// Whether it runs slower or narrower than it could.
    pub fn is_below_best(&self) -> bool {
        matches!((self.link(), self.best()), (Some(now), Some(best)) if now.gigabytes() + 0.001 < best.gigabytes())
    }
}
