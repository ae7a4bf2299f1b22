//! The way that blocks take, and whether its figures say anything about RDMA cards.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use kaeru_client::session::{Route, Session};
use kaeru_common::fabric::FabricKind;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The way to the server, for a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The server's own name for itself.
    pub server: String,
    /// The fabric.
    pub fabric: String,
    /// Where lanes connect.
    pub address: SocketAddr,
    /// Our RDMA device; `None` over tcp.
    pub device: Option<String>,
    /// The server's RDMA device; `None` over tcp.
    pub server_device: Option<String>,
    /// Why this fabric.
    pub why: String,
    /// What is done in software that a card would do, or is not there at all; empty between two cards.
    pub software: Vec<String>,
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
            address,
            software: remarks(verbs, address.ip(), here, ours.as_deref(), Path::new(DEVICES)),
            device: ours,
            server_device: verbs.then_some(device),
            why,
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
            remarks.push(format!("{device} is RDMA in software"));
        }
        _ => {}
    }
    if there.is_loopback() || here == Some(there) {
        remarks.push("client and server are one machine".to_owned());
    }
    remarks
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
        assert_eq!(of("mlx4_0"), ["mlx4_0 is RDMA in software"]);
        assert_eq!(of("rocep1s0"), ["rocep1s0 is RDMA in software"]);
    }

    #[test]
    fn tcp_and_one_machine_are_said() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        let sysfs = Path::new("/nowhere");
        assert_eq!(remarks(false, v6, None, None, sysfs).len(), 2);
        assert_eq!(remarks(false, v4, Some(v4), None, sysfs).len(), 2);
        assert_eq!(remarks(true, v4, Some(v4), None, sysfs), ["client and server are one machine"]);
    }

    #[test]
    fn packets_to_loopback_come_from_loopback() {
        let there = ([127, 0, 0, 1], 9).into();
        assert_eq!(local_address(there), Some([127, 0, 0, 1].into()));
    }
}
