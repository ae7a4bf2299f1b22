//! Addresses, packet sizes, and what may stop packets.

use kaeru_common::host::{Kind, Port, RdmaDevice};

use super::finding::Finding;
use super::{Patient, name_of};

/// The port of the control stream and of lanes.
const KAERU: u16 = kaeru_common::wire::PORT;
/// Below this an interface carries RDMA packets of less than 4096 bytes.
const ROOMY: u64 = 4200;
/// Bytes of the greatest packet in the mode `datagram`, where RDMA packets have 2048 bytes.
const DATAGRAM: u64 = 2044;

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (device, port) in patient.ports().filter(|(_, port)| port.is_active()) {
        findings.push(mtu(patient, device, port));
        if port.is_ethernet() {
            findings.push(gids(patient, device, port));
        }
        if port.is_infiniband() {
            findings.extend(ipoib(patient, device, port));
        }
    }
    if patient.ports().any(|(_, port)| port.is_ethernet()) {
        findings.push(firewall(patient));
    }
    findings
}

/// How long RDMA packets may be.
fn mtu(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let (check, subject) = ("mtu", name_of(device, port));
    let ask = format!("ibv_devinfo -d {} | grep mtu", device.name);
    if port.is_infiniband() {
        let Some((fact, bytes)) = port.mtu.as_ref().and_then(|fact| Some((fact, fact.number()?))) else {
            return Finding::note(check, &subject, "how long its packets are is in no file")
                .todo("This tells:", &[&ask]);
        };
        if bytes >= 4096 {
            return Finding::ok(check, &subject, format!("its packets may have {bytes} bytes")).read(fact);
        }
        return Finding::note(check, &subject, format!("its packets have at most {bytes} bytes; 4096 is possible"))
            .read(fact)
            .means("2048 is usual, and costs little. 4096 needs the same setting at both ends, and a subnet manager that allows it.")
            .todo("To try it (the link goes down for a moment):", &[&format!("echo 4096 | sudo tee {}", fact.path), &ask]);
    }
    let Some(netdev) = patient.host.netdev_of(device, port) else {
        return Finding::note(check, &subject, "which network interface it belongs to cannot be read")
            .todo("This tells how long its packets are:", &[&ask]);
    };
    let name = &netdev.name;
    let Some(bytes) = netdev.mtu.number() else {
        return Finding::note(check, &subject, format!("the MTU of {name} cannot be read")).read(&netdev.mtu);
    };
    match netdev.rdma_mtu() {
        Some(data) if data >= 4096 => Finding::ok(
            check,
            &subject,
            format!("MTU {bytes} of {name} has room for RDMA packets of {data} bytes"),
        )
        .read(&netdev.mtu),
        data => {
            let room = data.map_or_else(|| "less than 256".to_owned(), |data| data.to_string());
            Finding::note(check, &subject, format!("MTU {bytes} of {name} has room for RDMA packets of {room} bytes"))
                .read(&netdev.mtu)
                .means("With 4096 there are fewer packets to handle. Both ends, and a switch between them, must allow it.")
                .todo("On both ends:", &[&format!("sudo ip link set {name} mtu {ROOMY}")])
        }
    }
}

/// The addresses of an Ethernet port.
fn gids(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let (check, subject) = ("address", name_of(device, port));
    let table = format!("{}/gids", port.path);
    let netdev = patient.host.netdev_of(device, port).map_or("INTERFACE", |netdev| netdev.name.as_str());
    let described = |finding: Finding| {
        port.gids.iter().take(4).fold(finding, |finding, gid| {
            finding
                .saw(format!("{table}/{}", gid.index), format!("{} ({})", gid.address, gid.kind.or_reason()))
        })
    };
    let give = format!("sudo ip addr add 192.168.7.1/24 dev {netdev}");
    if port.gids.is_empty() {
        return Finding::warn(check, &subject, "no address")
            .saw(table, "no entry")
            .todo("Give its interface one:", &[&give]);
    }
    let routed = port.gids.iter().find_map(|gid| Some((gid, gid.ipv4()?)).filter(|_| gid.is_v2()));
    if let Some((gid, address)) = routed {
        return described(Finding::ok(
            check,
            &subject,
            format!("RoCE v2 at {address} (entry {})", gid.index),
        ));
    }
    if port.gids.iter().all(|gid| gid.kind.get().is_some() && !gid.is_v2()) {
        let finding = described(Finding::note(check, &subject, "speaks RoCE v1 only"));
        let finding = finding.means(
            "Two such cards understand one another. Soft-RoCE and RoCE v2 alone do not understand them.",
        );
        return match port.gids.iter().any(|gid| gid.ipv4().is_some()) {
            true => finding,
            false => finding.todo("It has no IPv4 address:", &[&give]),
        };
    }
    let finding = described(Finding::warn(check, &subject, "no IPv4 address among those of RoCE v2")).means(
        "Peers are found by IP address, and this port has only those that every interface makes for itself.",
    );
    match device.kind() {
        Kind::SoftRoce => finding.todo(
            "Give the interface an address, and make Soft-RoCE again behind it: it takes its address when it is made.",
            &[
                &give,
                &format!("sudo rdma link delete {0}; sudo rdma link add {0} type rxe netdev {netdev}", device.name),
            ],
        ),
        _ => finding.todo("Give its interface one:", &[&give]),
    }
}

/// IP over InfiniBand: connections find their way by its addresses.
fn ipoib(patient: &Patient, device: &RdmaDevice, port: &Port) -> Vec<Finding> {
    let (check, subject) = ("address", name_of(device, port));
    let Some(netdev) = patient.host.netdev_of(device, port) else {
        let all = patient.host.network.devices.iter().filter(|netdev| netdev.is_infiniband()).count();
        return vec![
            Finding::warn(check, &subject, "no network interface belongs to it")
                .saw(
                    "/sys/class/net/*/type",
                    format!("{all} of kind 32 (InfiniBand), none of this card and port"),
                )
                .means("Data does not take that way, but connections are found by IP addresses.")
                .todo(
                    "Load the driver, and give the interface an address:",
                    &[
                        "sudo modprobe ib_ipoib",
                        "sudo ip addr add 192.168.7.1/24 dev ib0",
                        "sudo ip link set ib0 up",
                    ],
                ),
        ];
    };
    let name = &netdev.name;
    let mut findings = vec![match netdev.addresses.first() {
        Some(address) => Finding::ok(check, &subject, format!("{name} has the address {address}"))
            .saw("/proc/net/fib_trie, /proc/net/route, /proc/net/if_inet6", address.to_string()),
        None => Finding::warn(check, &subject, format!("{name} has no IP address that a route leads to"))
            .saw("/proc/net/fib_trie, /proc/net/route, /proc/net/if_inet6", format!("nothing for {name}"))
            .read(&netdev.operstate)
            .means("Data does not take that way, but connections are found by IP addresses.")
            .todo(
                "Give it one, another on each PC:",
                &[
                    &format!("sudo ip addr add 192.168.7.1/24 dev {name}"),
                    &format!("sudo ip link set {name} up"),
                ],
            ),
    }];
    let slow = netdev.mode.get() == Some("datagram") && netdev.mtu.number() == Some(DATAGRAM);
    let described = |finding: Finding| finding.read(&netdev.mode).read(&netdev.mtu);
    if slow {
        findings.push(
            described(Finding::note("ipoib", &subject, format!("{name} carries IP in packets of {DATAGRAM} bytes")))
                .means("Kaeru's own data is not IP once it is connected. It matters for copies by ssh, NFS, iperf.")
                .todo("For those, on both PCs (a redirection needs a shell, so it cannot stand in a unit's ExecStart as it is):", &[
                    &format!("echo connected | sudo tee /sys/class/net/{name}/mode"),
                    &format!("sudo ip link set {name} mtu 65520"),
                ]),
        );
    } else if netdev.mode.get().is_some() {
        let title =
            format!("{name} carries IP in mode {}, MTU {}", netdev.mode.or_reason(), netdev.mtu.or_reason());
        findings.push(described(Finding::ok("ipoib", &subject, title)));
    }
    findings
}

/// Rules are root's to read; whether there are any can be seen.
fn firewall(patient: &Patient) -> Finding {
    let software = &patient.host.software;
    let filters = ["nf_tables", "ip_tables"].into_iter().filter(|module| software.has_module(module));
    let filters: Vec<&str> = filters.collect();
    let loaded =
        if filters.is_empty() { "neither nf_tables nor ip_tables".to_owned() } else { filters.join(", ") };
    let check = "firewall";
    let open = format!("sudo ufw allow {KAERU}/tcp");
    if software.ufw == Some(true) {
        return Finding::note(check, "", "the firewall ufw is on; it may stop RoCE")
            .saw("/etc/ufw/ufw.conf", "ENABLED=yes")
            .means("RoCE v2 comes in UDP packets to port 4791. InfiniBand passes no firewall.")
            .todo(
                "Let it in, or everything on that interface:",
                &["sudo ufw allow 4791/udp", &open, "sudo ufw status verbose"],
            );
    }
    if filters.is_empty() {
        return Finding::ok(check, "", "no packet filter is loaded as a module").saw("/sys/module", loaded);
    }
    Finding::note(check, "", "a packet filter is loaded; its rules only root can read")
        .saw("/sys/module", loaded)
        .means(format!(
            "If nothing connects over RoCE, see whether UDP port 4791 and TCP port {KAERU} may come in."
        ))
        .todo("The rules:", &["sudo nft list ruleset"])
}
