//! Addresses, packet sizes, and what may stop packets.

use kaeru_common::host::{Gid, Kind, NetDev, PciDevice, Port, RdmaDevice};

use super::aside::Packets;
use super::finding::{Finding, Level};
use super::{Patient, name_of};

/// The port of the control stream and of lanes.
const KAERU: u16 = kaeru_common::wire::PORT;
/// The port of the UDP packets that RoCE v2 comes in.
const ROCE: u16 = 4791;
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
    if patient.ports().next().is_some() {
        findings.push(firewall(patient));
    }
    findings
}

/// How long RDMA packets may be. The device itself knows best, where it could be asked.
fn mtu(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let asked = patient.aside.packets_of(device, port);
    let finding = match port.is_infiniband() {
        true => infiniband_mtu(device, port, asked),
        false => ethernet_mtu(patient, device, port, asked),
    };
    match asked {
        Some(asked) => finding.saw("ibv_query_port", format!("active_mtu {}", asked.active)),
        None => finding,
    }
}

/// What to paste to see it.
fn ask(device: &RdmaDevice) -> String {
    format!("ibv_devinfo -d {} | grep mtu", device.name)
}

fn infiniband_mtu(device: &RdmaDevice, port: &Port, asked: Option<&Packets>) -> Finding {
    let (check, subject) = ("mtu", name_of(device, port));
    let set = port.mtu.as_ref().and_then(|fact| Some((fact, fact.number()?)));
    let read = |finding: Finding| match set {
        Some((fact, _)) => finding.read(fact),
        None => finding,
    };
    let bytes = asked.map(|asked| u64::from(asked.active)).or(set.map(|(_, bytes)| bytes));
    let Some(bytes) = bytes else {
        return Finding::note(check, &subject, "how long its packets are is in no file")
            .todo("This tells:", &[&ask(device)]);
    };
    // A port whose setting can be raised says of itself no more than it is set to.
    let could = asked.filter(|_| set.is_none()).map_or(4096, |asked| u64::from(asked.greatest));
    if bytes >= could {
        return read(Finding::ok(check, &subject, format!("its packets may have {bytes} bytes")));
    }
    let title = format!("its packets have at most {bytes} bytes; {could} is possible");
    let finding = read(Finding::note(check, &subject, title)).means(
        "2048 is usual, and costs little. 4096 needs the same setting at both ends, and a subnet manager that allows it.",
    );
    match set {
        Some((_, set)) if set < 4096 && device.pci.as_ref().is_some_and(PciDevice::is_virtual) => {
            finding.todo("This is a virtual function: only the machine that has the card can set it.", &[])
        }
        Some((fact, set)) if set < 4096 => finding.todo(
            "To try it (the link goes down for a moment):",
            &[&format!("echo 4096 | sudo tee {}", fact.path), &ask(device)],
        ),
        _ => finding.todo("This end is ready for it. Look at the other one:", &["ibv_devinfo | grep mtu"]),
    }
}

fn ethernet_mtu(patient: &Patient, device: &RdmaDevice, port: &Port, asked: Option<&Packets>) -> Finding {
    let (check, subject) = ("mtu", name_of(device, port));
    let Some(netdev) = patient.host.netdev_of(device, port) else {
        return Finding::note(check, &subject, "which network interface it belongs to cannot be read")
            .todo("This tells how long its packets are:", &[&ask(device)]);
    };
    let name = &netdev.name;
    let Some(bytes) = netdev.mtu.number() else {
        return Finding::note(check, &subject, format!("the MTU of {name} cannot be read")).read(&netdev.mtu);
    };
    let room = netdev.rdma_mtu();
    let data = room.map_or_else(|| "less than 256".to_owned(), |room| room.to_string());
    let title = format!("MTU {bytes} of {name} has room for RDMA packets of {data} bytes");
    if room.is_none_or(|room| room < 4096) {
        return Finding::note(check, &subject, title)
            .read(&netdev.mtu)
            .means("With 4096 there are fewer packets to handle. Both ends, and a switch between them, must allow it.")
            .todo("On both ends:", &[&format!("sudo ip link set {name} mtu {ROOMY}")]);
    }
    match asked {
        Some(asked) if asked.active < asked.greatest.min(4096) => {
            Finding::note(check, &subject, format!("{title}, but the device takes {}", asked.active))
                .read(&netdev.mtu)
                .todo(
                    "Let it look again:",
                    &[&format!("sudo ip link set {name} down; sudo ip link set {name} up")],
                )
        }
        _ => Finding::ok(check, &subject, title).read(&netdev.mtu),
    }
}

/// What to do about an interface without an address.
const GIVE: &str = "Give its interface one (on the other PC .2):";

/// A port without an address. RDMA cannot be used at all if no other port has one.
fn without_address(patient: &Patient, port: &Port, subject: &str, title: impl Into<String>) -> Finding {
    let finding = Finding::warn("address", subject, title);
    let has_address = |device: &RdmaDevice, port: &Port| match port.is_infiniband() {
        true => patient.host.netdev_of(device, port).is_some_and(|netdev| !netdev.addresses.is_empty()),
        false => port.gids.iter().any(|gid| gid.ipv4().is_some() || gid.global().is_some()),
    };
    let mut others = patient.ports().filter(|(_, other)| other.path != port.path && other.is_active());
    if others.any(|(device, other)| has_address(device, other)) {
        return finding;
    }
    Finding { level: Level::Fail, ..finding }.stops_rdma()
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
        return without_address(patient, port, &subject, "no address, so RDMA cannot be used")
            .saw(table, "no entry")
            .todo(GIVE, &[&give]);
    }
    let routed = port.gids.iter().find_map(|gid| Some((gid, gid.ipv4()?)).filter(|_| gid.is_v2()));
    if let Some((gid, address)) = routed {
        return described(Finding::ok(
            check,
            &subject,
            format!("RoCE v2 at {address} (entry {})", gid.index),
        ));
    }
    if let Some((gid, address)) =
        port.gids.iter().find_map(|gid| Some((gid, gid.global()?)).filter(|_| gid.is_v2()))
    {
        let title = format!("RoCE v2 at {address} (entry {}), and no IPv4 address", gid.index);
        return described(Finding::note(check, &subject, title))
            .means("Peers find it by that address only.")
            .todo("For an IPv4 address, too (on the other PC .2):", &[&give]);
    }
    if !port.gids.iter().any(Gid::is_v2) && port.gids.iter().any(|gid| gid.kind.get().is_none()) {
        return described(Finding::note(check, &subject, "which version of RoCE it speaks cannot be read"));
    }
    if !port.gids.iter().any(Gid::is_v2) {
        let finding = described(Finding::note(check, &subject, "speaks RoCE v1 only"));
        let finding = finding.means(
            "Two such cards understand one another. Soft-RoCE and RoCE v2 alone do not understand them.",
        );
        return match port.gids.iter().any(|gid| gid.ipv4().is_some()) {
            true => finding,
            false => finding.todo(GIVE, &[&give]),
        };
    }
    let finding = described(without_address(
        patient,
        port,
        &subject,
        "no IPv4 address among those of RoCE v2, so RDMA cannot be used",
    ))
    .means(
        "Peers are found by IP address, and this port has only those that every interface makes for itself.",
    );
    match device.kind() {
        Kind::SoftRoce => finding.todo(
            "Give the interface an address (on the other PC .2), and make Soft-RoCE again behind it: it takes its address when it is made.",
            &[
                &give,
                &format!("sudo rdma link delete {0}; sudo rdma link add {0} type rxe netdev {netdev}", device.name),
            ],
        ),
        _ => finding.todo(GIVE, &[&give]),
    }
}

/// IP over InfiniBand: connections find their way by its addresses.
fn ipoib(patient: &Patient, device: &RdmaDevice, port: &Port) -> Vec<Finding> {
    let (check, subject) = ("address", name_of(device, port));
    let Some(netdev) = patient.host.netdev_of(device, port) else {
        let all = patient.host.network.devices.iter().filter(|netdev| netdev.is_infiniband()).count();
        return vec![
            without_address(patient, port, &subject, "no network interface belongs to it, so RDMA cannot be used")
                .saw(
                    "/sys/class/net/*/type",
                    format!("{all} of kind 32 (InfiniBand), none of this card and port"),
                )
                .means("Data does not take that way, but connections are found by IP addresses.")
                .todo(
                    "Load the driver, see what its interface is called, and give it an address (on the other PC .2):",
                    &[
                        "sudo modprobe ib_ipoib",
                        "ip -br link",
                        "sudo ip addr add 192.168.7.1/24 dev INTERFACE",
                        "sudo ip link set INTERFACE up",
                    ],
                ),
        ];
    };
    let name = &netdev.name;
    let mut findings = vec![match netdev.addresses.first() {
        Some(address) => Finding::ok(check, &subject, format!("{name} has the address {address}"))
            .saw("/proc/net/fib_trie, /proc/net/route, /proc/net/if_inet6", address.to_string()),
        None => without_address(
            patient,
            port,
            &subject,
            format!("{name} has no IP address that a route leads to"),
        )
        .saw("/proc/net/fib_trie, /proc/net/route, /proc/net/if_inet6", format!("nothing for {name}"))
        .read(&netdev.operstate)
        .means("Data does not take that way, but connections are found by IP addresses.")
        .todo(
            GIVE,
            &[&format!("sudo ip addr add 192.168.7.1/24 dev {name}"), &format!("sudo ip link set {name} up")],
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

/// Rules are root's to read; whether there are any can be seen. What is opened is opened on the fabric's interfaces only.
fn firewall(patient: &Patient) -> Finding {
    let check = "firewall";
    let software = &patient.host.software;
    let ways = ways(patient);
    let roce = "RoCE v2 comes in UDP packets to port 4791. ";
    let infiniband = " InfiniBand itself passes no firewall, but what it carries as IP does.";
    let means = format!(
        "{}kaerud listens on TCP port {KAERU}.{}",
        if ways.iter().any(|(_, protocol, _)| *protocol == "udp") { roce } else { "" },
        if patient.ports().any(|(_, port)| port.is_infiniband()) { infiniband } else { "" }
    );
    let each = |command: fn(&str, &str, u16) -> String| -> Vec<String> {
        ways.iter().map(|(interface, protocol, port)| command(interface, protocol, *port)).collect()
    };
    let todo = |finding: Finding, text: &str, commands: &[String]| {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        finding.todo(text, &commands)
    };
    if software.ufw == Some(true) {
        let finding = Finding::note(check, "", "the firewall ufw is on; it may stop connections")
            .saw("/etc/ufw/ufw.conf", "ENABLED=yes")
            .means(means);
        let allow = each(|interface, protocol, port| {
            format!("sudo ufw allow in on {interface} to any port {port} proto {protocol}")
        });
        return todo(finding, "Let it in on that interface alone:", &allow)
            .todo("What it lets in now:", &["sudo ufw status verbose"]);
    }
    if software.firewalld {
        let finding = Finding::note(check, "", "the firewall firewalld is on; it may stop connections")
            .saw("/etc/systemd/system/multi-user.target.wants", "firewalld.service")
            .means(means);
        let mut trust: Vec<String> = interfaces(patient)
            .iter()
            .map(|name| format!("sudo firewall-cmd --permanent --zone=trusted --change-interface={name}"))
            .collect();
        trust.push("sudo firewall-cmd --reload".to_owned());
        return todo(
            finding,
            "If only your own machines are on that network, let everything in from there:",
            &trust,
        );
    }
    let filters: Vec<&str> =
        ["nf_tables", "ip_tables"].into_iter().filter(|module| software.has_module(module)).collect();
    if filters.is_empty() {
        return Finding::ok(check, "", "no packet filter is loaded as a module")
            .saw("/sys/module", "neither nf_tables nor ip_tables");
    }
    let finding = Finding::note(check, "", "a packet filter is loaded; its rules only root can read")
        .saw("/sys/module", filters.join(", "))
        .means(format!("{means} If nothing connects, see whether these may come in."))
        .todo("The rules:", &["sudo nft list ruleset"]);
    let accept = each(|interface, protocol, port| {
        format!("sudo nft insert rule inet filter input iifname {interface} {protocol} dport {port} accept")
    });
    todo(
        finding,
        "If the chain \"input\" of the table \"inet filter\" stops them, until the next start:",
        &accept,
    )
}

/// The interfaces of the ports in use, or of all ports where none is.
fn interfaces(patient: &Patient) -> Vec<&str> {
    let is_idle = patient.ports().all(|(_, port)| !port.is_active());
    let ports = patient.ports().filter(|(_, port)| is_idle || port.is_active());
    let mut names: Vec<&str> = ports
        .map(|(device, port)| {
            patient.host.netdev_of(device, port).map_or("INTERFACE", |netdev| netdev.name.as_str())
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What must be let in: interface, protocol, port.
fn ways(patient: &Patient) -> Vec<(&str, &'static str, u16)> {
    let is_infiniband = |name: &str| patient.host.netdev(name).is_some_and(NetDev::is_infiniband);
    let roce = patient.ports().any(|(_, port)| port.is_ethernet());
    interfaces(patient)
        .into_iter()
        .flat_map(|name| {
            let udp = (roce && !is_infiniband(name)).then_some((name, "udp", ROCE));
            udp.into_iter().chain([(name, "tcp", KAERU)])
        })
        .collect()
}
