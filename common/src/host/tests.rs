//! Whole machines, as small trees of files.

use std::path::Path;

use super::*;

fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

#[test]
fn this_machine_can_be_read() {
    let host = Host::read(Path::new("/"));
    assert!(host.is_live());
    assert!(host.software.kernel.get().is_some());
    assert!(host.memory.total.unwrap() >= host.memory.available.unwrap());
    assert!(host.memory.lock_limit.is_some() && host.user.uid.is_some());
}

#[test]
fn nothing_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::read(folder.path());
    assert!(host.cards.is_empty() && host.rdma.is_empty() && host.network.devices.is_empty());
    assert!(host.memory.total.is_none() && host.user.uid.is_none() && !host.is_live());
    assert!(!Host::read(&folder.path().join("missing")).nbd.loaded);
}

#[test]
fn soft_roce_is_soft_roce_whatever_lies_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let nic = "sys/devices/pci0000:00/0000:00:1f.6";
    write(
        root,
        &[
            (&format!("{nic}/vendor"), "0x8086\n"),
            (&format!("{nic}/device"), "0x15b8\n"),
            // As an old kernel shows it, with a name that looks like a card's.
            (&format!("{nic}/infiniband/mlx4_0/parent"), "eno1\n"),
            (&format!("{nic}/infiniband/mlx4_0/node_type"), "1: CA\n"),
            (&format!("{nic}/infiniband/mlx4_0/ports/1/state"), "4: ACTIVE\n"),
            (&format!("{nic}/infiniband/mlx4_0/ports/1/link_layer"), "Ethernet\n"),
            (&format!("{nic}/infiniband/mlx4_0/ports/1/rate"), "2.5 Gb/sec (1X)\n"),
            ("sys/class/net/eno1/type", "1\n"),
            ("sys/class/net/eno1/speed", "1000\n"),
        ],
    );
    std::fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
    std::os::unix::fs::symlink("../..", root.join(nic).join("infiniband/mlx4_0/device")).unwrap();
    std::os::unix::fs::symlink(
        format!("../../../{nic}/infiniband/mlx4_0"),
        root.join("sys/class/infiniband/mlx4_0"),
    )
    .unwrap();
    let host = Host::read(root);
    let device = &host.rdma[0];
    assert_eq!(device.pci.as_ref().unwrap().address, "0000:00:1f.6");
    assert_eq!(device.kind(), Kind::SoftRoce);
    assert!(device.card().is_none());
    // The interface knows its speed; the driver's rate is the nearest that InfiniBand has.
    let netdev = host.netdev_of(device, &device.ports[0]).unwrap();
    assert_eq!(device.ports[0].speed(Some(netdev)).unwrap().gigabits, 1.0);
}

#[test]
fn a_port_that_is_down_has_no_rate() {
    let port = |state: &str, layer: &str, rate: &str| Port {
        number: 1,
        path: String::new(),
        link_layer: Fact::told("l", layer),
        state: Fact::told("s", state),
        phys_state: Fact::missing("p"),
        rate: Fact::told("r", rate),
        lid: Fact::missing("lid"),
        sm_lid: Fact::missing("sm_lid"),
        mtu: None,
        mode: None,
        gids: Vec::new(),
        counters: Vec::new(),
    };
    assert_eq!(port("1: DOWN", "InfiniBand", "10 Gb/sec (4X)").rate(), None);
    assert_eq!(port("1: DOWN", "Ethernet", "40 Gb/sec (4X QDR)").speed(None), None);
    let speed = |layer, rate| port("4: ACTIVE", layer, rate).speed(None).map(|speed| speed.gigabits);
    // The same words mean another amount of data on each link layer.
    assert_eq!(speed("InfiniBand", "40 Gb/sec (4X QDR)"), Some(32.0));
    assert_eq!(speed("Ethernet", "40 Gb/sec (4X QDR)"), Some(40.0));
    assert_eq!(speed("InfiniBand", "40 Gb/sec (4X FDR10)"), Some(40.0));
    assert_eq!(speed("Unknown", "40 Gb/sec (4X QDR)"), None);
}
