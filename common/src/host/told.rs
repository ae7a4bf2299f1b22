//! What one machine tells another of itself, and what that one makes of it.

use super::{Fact, Gid, Host, NetDev, PciDevice, PciNode, Port, RdmaDevice};
use crate::codec::BoundedList;
use crate::wire::control::{HostFacts, Name, PciFacts, PortFacts, Said};

impl Host {
    /// What is told to others; `software` is the program that tells it.
    pub fn facts(&self, software: &str) -> HostFacts {
        let ports = self.rdma.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        HostFacts {
            software: Name::clipped(software),
            host: Name::clipped(self.software.hostname.get().unwrap_or_default()),
            kernel: Name::clipped(self.software.kernel.get().unwrap_or_default()),
            ports: bounded(ports.map(|(device, port)| self.port_facts(device, port))),
        }
    }

    fn port_facts(&self, device: &RdmaDevice, port: &Port) -> PortFacts {
        let netdev = self.netdev_of(device, port);
        let of_netdev =
            |fact: fn(&NetDev) -> &Fact| netdev.map(|netdev| said(fact(netdev))).unwrap_or_default();
        let pci = device.card();
        PortFacts {
            device: Said::clipped(&device.name),
            number: u8::try_from(port.number).unwrap_or(0),
            parent: said(&device.parent),
            node_type: said(&device.node_type),
            firmware: said(&device.firmware),
            psid: said(&device.psid),
            node_guid: said(&device.node_guid),
            pci_vendor: pci.map(|pci| said(&pci.vendor)).unwrap_or_default(),
            pci_device: pci.map(|pci| said(&pci.device)).unwrap_or_default(),
            pci: bounded(pci.iter().flat_map(|pci| pci.chain.iter().map(PciNode::facts))),
            link_layer: said(&port.link_layer),
            state: said(&port.state),
            phys_state: said(&port.phys_state),
            rate: said(&port.rate),
            lid: said(&port.lid),
            sm_lid: said(&port.sm_lid),
            mtu: port.mtu.as_ref().map(said).unwrap_or_default(),
            mode: port.mode.as_ref().map(said).unwrap_or_default(),
            interface: netdev.map(|netdev| Said::clipped(&netdev.name)).unwrap_or_default(),
            interface_mtu: of_netdev(|netdev| &netdev.mtu),
            interface_speed: of_netdev(|netdev| &netdev.speed),
            roce_v1: port.gids.iter().any(|gid| gid.kind.get() == Some("IB/RoCE v1")),
            roce_v2: port.gids.iter().any(Gid::is_v2),
        }
    }

    /// Another machine, as far as it was told of. Files that were not asked for are missing.
    pub fn told(facts: &HostFacts) -> Self {
        let mut host = Self { root: facts.host.to_string(), ..Self::default() };
        host.software.hostname = Fact::told("/proc/sys/kernel/hostname", facts.host.as_str());
        host.software.kernel = Fact::told("/proc/sys/kernel/osrelease", facts.kernel.as_str());
        for port in facts.ports.iter() {
            host.network.devices.extend(netdev(port));
            match host.rdma.last_mut() {
                Some(device) if device.name == port.device.as_str() => device.ports.push(Port::told(port)),
                _ => host.rdma.push(RdmaDevice::told(port)),
            }
        }
        host
    }
}

fn said(fact: &Fact) -> Said {
    Said::clipped(fact.get().unwrap_or_default())
}

/// As much of it as a message holds.
fn bounded<T, const N: usize>(items: impl Iterator<Item = T>) -> BoundedList<T, N> {
    BoundedList::new(items.take(N).collect()).unwrap_or_default()
}

fn fact(path: String, text: &Said) -> Fact {
    Fact::told(&path, text.as_str())
}

fn netdev(port: &PortFacts) -> Option<NetDev> {
    let name = port.interface.as_str();
    (!name.is_empty()).then(|| NetDev {
        name: name.to_owned(),
        mtu: fact(format!("/sys/class/net/{name}/mtu"), &port.interface_mtu),
        speed: fact(format!("/sys/class/net/{name}/speed"), &port.interface_speed),
        ..NetDev::default()
    })
}

impl RdmaDevice {
    fn told(port: &PortFacts) -> Self {
        let name = port.device.as_str();
        let path = format!("/sys/class/infiniband/{name}");
        let of = |file: &str, text: &Said| fact(format!("{path}/{file}"), text);
        Self {
            name: name.to_owned(),
            parent: of("parent", &port.parent),
            node_type: of("node_type", &port.node_type),
            firmware: of("fw_ver", &port.firmware),
            psid: of("board_id", &port.psid),
            node_guid: of("node_guid", &port.node_guid),
            pci: PciDevice::told(port),
            ports: vec![Port::told(port)],
            path,
            ..Self::default()
        }
    }
}

impl Port {
    fn told(port: &PortFacts) -> Self {
        let path = format!("/sys/class/infiniband/{}/ports/{}", port.device, port.number);
        let of = |file: &str, text: &Said| fact(format!("{path}/{file}"), text);
        let card =
            port.pci.first().map(|card| format!("/sys/bus/pci/devices/{}", card.address)).unwrap_or_default();
        let of_card = |file: String, text: &Said| {
            Some(fact(format!("{card}/{file}"), text)).filter(|fact| fact.get().is_some())
        };
        // The entry of an address table that ties the port to its interface.
        let gid = (!port.interface.as_str().is_empty()).then(|| Gid {
            index: 0,
            address: String::new(),
            kind: Fact::missing("gid_attrs/types/0"),
            netdev: of("gid_attrs/ndevs/0", &port.interface),
        });
        Self {
            number: port.number.into(),
            link_layer: of("link_layer", &port.link_layer),
            state: of("state", &port.state),
            phys_state: of("phys_state", &port.phys_state),
            rate: of("rate", &port.rate),
            lid: of("lid", &port.lid),
            sm_lid: of("sm_lid", &port.sm_lid),
            mtu: of_card(format!("mlx4_port{}_mtu", port.number), &port.mtu),
            mode: of_card(format!("mlx4_port{}", port.number), &port.mode),
            gids: gid.into_iter().collect(),
            counters: Vec::new(),
            path,
        }
    }
}

impl PciDevice {
    fn told(port: &PortFacts) -> Option<Self> {
        let address = port.pci.first()?.address.to_string();
        let path = format!("/sys/bus/pci/devices/{address}");
        Some(Self {
            vendor: fact(format!("{path}/vendor"), &port.pci_vendor),
            device: fact(format!("{path}/device"), &port.pci_device),
            chain: port.pci.iter().map(PciNode::told).collect(),
            address,
            path,
            ..Self::default()
        })
    }
}

impl PciNode {
    fn facts(&self) -> PciFacts {
        PciFacts {
            address: Said::clipped(&self.address),
            speed: said(&self.speed),
            width: said(&self.width),
            max_speed: said(&self.max_speed),
            max_width: said(&self.max_width),
        }
    }

    fn told(facts: &PciFacts) -> Self {
        let path = format!("/sys/bus/pci/devices/{}", facts.address);
        Self {
            address: facts.address.to_string(),
            speed: fact(format!("{path}/current_link_speed"), &facts.speed),
            width: fact(format!("{path}/current_link_width"), &facts.width),
            max_speed: fact(format!("{path}/max_link_speed"), &facts.max_speed),
            max_width: fact(format!("{path}/max_link_width"), &facts.max_width),
        }
    }
}
