//! The way that blocks take, and whether its figures say anything about RDMA cards.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use kaeru_client::background::{Note, holders};
use kaeru_client::session::{Route, Session};
use kaeru_client::target::{Server, Target};
use kaeru_common::fabric::FabricKind;
use serde::{Deserialize, Serialize};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The way to the server, for a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The server's own name for itself.
    pub server: String,
    /// The fabric.
    pub fabric: String,
    /// Where lanes connect.
    pub address: String,
    /// Our RDMA device; `None` over tcp.
    pub device: Option<String>,
    /// The server's RDMA device; `None` over tcp.
    pub server_device: Option<String>,
    /// Why this fabric.
    pub why: String,
    /// What keeps the figures from being those of two cards and a cable; empty between two cards.
    pub labels: Vec<String>,
    /// Whether loopback: client and server are one machine.
    pub is_loopback: bool,
}

impl Way {
    /// The way that the lanes of `session` take; `None` before the first one.
    pub fn of(session: &Session) -> Option<Self> {
        let Route { fabric, address, device, why, .. } = session.route()?;
        let here = local_address(address);
        let verbs = fabric == FabricKind::Verbs;
        let ours = if verbs { here.and_then(device_at) } else { None };
        Some(Self {
            server: session.welcome().server.to_string(),
            fabric: fabric.to_string(),
            address: address.to_string(),
            labels: remarks(verbs, address.ip(), here, ours.as_deref(), Path::new(DEVICES)),
            is_loopback: is_loopback(address.ip(), here),
            device: ours,
            server_device: verbs.then_some(device),
            why,
        })
    }
}

impl Way {
    /// The way behind a device that `kaeru attach` serves; `None` for others.
    pub fn of_device(path: &Path) -> Option<(Self, Target)> {
        let name = path.to_str()?;
        Self::attached(|note| note.device.as_deref() == Some(name))
    }

    /// The way behind a socket that `kaeru nbd` serves; `None` for others.
    pub fn of_socket(path: &Path) -> Option<(Self, Target)> {
        let path = std::path::absolute(path).ok()?;
        let ending = format!("socket={}", path.display());
        Self::attached(|note| note.listen.as_deref().is_some_and(|listen| listen.ends_with(&ending)))
    }

    /// What the process that left a note tells of its way, and the export that it leads to.
    fn attached(is_wanted: impl Fn(&Note) -> bool) -> Option<(Self, Target)> {
        let holder = holders().ok()?.into_iter().find(|holder| is_wanted(&holder.note))?;
        let report = holder.report();
        let (fabric, why) = (report.fabric?, report.fabric_reason.unwrap_or_default());
        let target: Target = holder.note.target.parse().ok()?;
        let address = (target.server.host.as_str(), target.server.port).to_socket_addrs().ok()?.next()?;
        let here = local_address(address);
        let verbs = fabric == FabricKind::Verbs.to_string();
        let ours = if verbs { here.and_then(device_at) } else { None };
        let way = Self {
            server: report.server.unwrap_or_else(|| target.server.to_string()),
            fabric,
            address: address.to_string(),
            labels: remarks(verbs, address.ip(), here, ours.as_deref(), Path::new(DEVICES)),
            is_loopback: is_loopback(address.ip(), here),
            device: ours,
            server_device: None,
            why,
        };
        Some((way, target))
    }
}

/// An export, and over which fabric: what ways have to have in common for their difference to be what lies on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    target: Target,
    fabric: String,
}

impl Goal {
    /// Where `way` leads.
    pub fn of(way: &Way, target: &Target) -> Self {
        Self { target: target.clone(), fabric: way.fabric.clone() }
    }

    /// Whether both are the same, by whatever name of the server.
    pub fn is_same(&self, other: &Self) -> bool {
        let addresses = |server: &Server| -> Vec<SocketAddr> {
            (server.host.as_str(), server.port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
        };
        let (ours, theirs) = (&self.target, &other.target);
        self.fabric == other.fabric
            && ours.export == theirs.export
            && (ours.server == theirs.server || {
                let theirs = addresses(&theirs.server);
                addresses(&ours.server).iter().any(|address| theirs.contains(address))
            })
    }
}

/// What keeps the figures from being those of two cards and a cable, as far as this side can tell.
fn remarks(
    verbs: bool,
    there: IpAddr,
    here: Option<IpAddr>,
    device: Option<&str>,
    devices: &Path,
) -> Vec<String> {
    let mut remarks = Vec::new();
    match device {
        _ if !verbs => remarks.push("tcp does in software what a card does".to_owned()),
        Some(device) if is_software(&devices.join(device)) => {
            remarks.push(format!("software RDMA: no card is behind {device}"));
        }
        _ => {}
    }
    if is_loopback(there, here) {
        remarks.push("loopback: client and server are one machine".to_owned());
    }
    remarks
}

fn is_loopback(there: IpAddr, here: Option<IpAddr>) -> bool {
    there.is_loopback() || here == Some(there)
}

/// Whether no card is behind this device. Names say nothing: udev and users change them. A card's device links to its
/// place on the PCI bus; Soft-RoCE has no such link, or one through the network card that it names as its parent.
fn is_software(device: &Path) -> bool {
    !device.join("device").exists() || device.join("parent").exists()
}

/// The address of this machine that packets to `there` carry. Nothing is sent.
fn local_address(there: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if there.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(there).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(feature = "verbs")]
fn device_at(address: IpAddr) -> Option<String> {
    let all = kaeru_common::fabric::verbs::addresses();
    all.into_iter().find_map(|(ip, name)| (ip == address).then_some(name))
}

#[cfg(not(feature = "verbs"))]
fn device_at(_: IpAddr) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    #[test]
    fn a_card_is_told_from_software_by_its_place_on_the_bus() {
        let sysfs = tempfile::tempdir().unwrap();
        for folder in ["ibp3s0/device", "mlx4_0", "rocep1s0/device", "rocep1s0/parent"] {
            create_dir_all(sysfs.path().join(folder)).unwrap();
        }
        let (there, here) = ("10.0.0.2".parse().unwrap(), Some("10.0.0.1".parse().unwrap()));
        let of = |device| remarks(true, there, here, Some(device), sysfs.path());
        assert!(of("ibp3s0").is_empty());
        assert_eq!(of("mlx4_0"), ["software RDMA: no card is behind mlx4_0"]);
        assert_eq!(of("rocep1s0"), ["software RDMA: no card is behind rocep1s0"]);
    }

    #[test]
    fn tcp_and_one_machine_are_said() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let sysfs = Path::new("/nowhere");
        assert_eq!(remarks(false, v6, None, None, sysfs).len(), 2);
        assert_eq!(remarks(false, v4, Some(v4), None, sysfs).len(), 2);
        assert_eq!(remarks(true, v4, Some(v4), None, sysfs), ["loopback: client and server are one machine"]);
    }

    #[test]
    fn an_export_is_the_same_by_another_name_and_not_over_another_fabric() {
        let goal =
            |target: &str, fabric: &str| Goal { target: target.parse().unwrap(), fabric: fabric.into() };
        let first = goal("127.0.0.1:9/x", "tcp");
        assert!(first.is_same(&goal("127.0.0.1:9/x", "tcp")) && first.is_same(&goal("localhost:9/x", "tcp")));
        for other in
            [goal("127.0.0.1:9/y", "tcp"), goal("127.0.0.1:8/x", "tcp"), goal("127.0.0.1:9/x", "verbs")]
        {
            assert!(!first.is_same(&other), "{other:?}");
        }
    }

    #[test]
    fn packets_to_loopback_come_from_loopback() {
        let there = ([127, 0, 0, 1], 9).into();
        assert_eq!(local_address(there), Some([127, 0, 0, 1].into()));
    }
}
