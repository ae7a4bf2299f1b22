//! The other machine: what its server tells of it, and whether both ends go together.

use std::time::Duration;

use kaeru_client::session::{Description, SessionError, describe, list_within};
use kaeru_client::target::Server;
use kaeru_common::host::{Host, Port, RdmaDevice, rdma_mtu};
use kaeru_common::wire::PORT;
use kaeru_common::wire::control::{HostFacts, PortFacts};

use super::finding::{Finding, Section};
use super::{Aside, Patient, ceilings, firmware, link, pcie};

/// How long something that did not answer the first time is given for each part of a second question.
const AGAIN: Duration = Duration::from_secs(2);
/// The check that shows both ends, which is worth seeing although nothing is wrong.
pub(super) const TABLE: &str = "peer-table";
/// Where names of rows end, and columns begin.
const NAME: usize = 10;
const COLUMN: usize = 30;

/// Asks the server on the other machine, and examines what it tells.
pub(super) fn ask(server: &Server, ours: &Host) -> Vec<Finding> {
    let findings = match describe(server) {
        Ok(description) => examine(ours, &description),
        Err(error) => vec![unasked(server, &error)],
    };
    findings.into_iter().map(|finding| finding.in_section(Section::Peer)).collect()
}

/// Why there was no answer. Only of what speaks as kaerud does may be said that it is one.
fn unasked(server: &Server, error: &SessionError) -> Finding {
    let finding =
        Finding::fail("peer", &server.to_string(), "cannot be asked").saw("its answer", why(server, error));
    let there = "On the other machine, install the same version, or run this program there:";
    match error {
        SessionError::Resolve { .. } => {
            finding.todo("Check the name, or use its address:", &[&format!("getent hosts {}", server.host)])
        }
        SessionError::Refused { .. } => finding
            .means("A kaerud is there, and does not take the question.")
            .todo(there, &["kaeru-doctor"]),
        // An older one knows the question for its exports, and nothing else does.
        SessionError::Closed { .. } if list_within(server, AGAIN).is_ok() => finding
            .means("A kaerud is there, and did not answer. One that is older than this program does not know the question.")
            .todo(there, &["kaeru-doctor"]),
        SessionError::Closed { .. } => finding
            .means("Something is there, but it does not speak as kaerud does: it is another program, or a kaerud that is stopped or hangs.")
            .todo(
                format!("Check the address and the port; kaerud's is {PORT}. On the other machine, see who has it:"),
                &[&format!("sudo ss -ltnp 'sport = :{}'", server.port)],
            ),
        _ => finding
            .means("Only a running kaerud can tell of the other machine.")
            .todo("On the other machine, start kaerud, or run this program there:", &["kaeru-doctor"]),
    }
}

/// The reason alone: whom it is about is said before it.
fn why(server: &Server, error: &SessionError) -> String {
    let reason = match error {
        SessionError::Resolve { reason, .. }
        | SessionError::Connect { reason, .. }
        | SessionError::Closed { reason, .. } => reason.clone(),
        SessionError::Refused { refusal, .. } => refusal.to_string(),
        other => other.to_string(),
    };
    let Server { host, port } = server;
    let address = [format!("{host}:{port}"), format!("[{host}]:{port}")];
    let rest = address.iter().find_map(|address| reason.strip_prefix(address.as_str()));
    rest.map_or_else(|| reason.clone(), |rest| rest.trim_start_matches([':', ' ']).to_owned())
}

/// What is wrong with the other machine, and between the two.
fn examine(ours: &Host, description: &Description) -> Vec<Finding> {
    let facts = &description.facts;
    let name = match facts.host.as_str() {
        "" => description.peer.ip().to_string(),
        name => name.to_owned(),
    };
    let theirs = Patient { host: Host::told(facts), aside: Aside::default(), watched: None, export: None };
    let checks = [firmware::all(&theirs), pcie::slots(&theirs), link::all(&theirs), ceilings::all(&theirs)];
    let mut findings: Vec<Finding> = checks.concat();
    for finding in &mut findings {
        finding.subject = format!("{name}, {}", finding.subject);
    }
    let facts_of_ours = ours.facts(concat!("kaeru-doctor ", env!("CARGO_PKG_VERSION")));
    let between = way(ours, description).into_iter().chain(compare(&facts_of_ours, facts, &name));
    let of_theirs = findings.into_iter().map(|finding| finding.with_packages(&theirs.host.software));
    of_theirs.chain(between.map(|finding| finding.with_packages(&ours.software))).collect()
}

/// Whether packets to the other machine leave by an interface of an RDMA device.
fn way(ours: &Host, description: &Description) -> Option<Finding> {
    let std::net::IpAddr::V4(address) = description.peer.ip() else { return None };
    let interface = ours.network.way_to(address).filter(|_| !address.is_loopback())?;
    let ports = ours.rdma.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let ports: Vec<(&RdmaDevice, &Port)> = ports.filter(|(_, port)| port.is_active()).collect();
    let names: Vec<&str> =
        ports.iter().filter_map(|(device, port)| Some(ours.netdev_of(device, port)?.name.as_str())).collect();
    let check = "peer-way";
    let read = |finding: Finding| finding.saw("/proc/net/route", format!("{address} leaves by {interface}"));
    if names.contains(&interface) {
        return Some(read(Finding::ok(
            check,
            "",
            format!("{address} is reached by {interface}, which is an RDMA interface"),
        )));
    }
    (!names.is_empty()).then(|| {
        read(Finding::warn(
            check,
            "",
            format!("{address} is reached by {interface}, which is no RDMA interface"),
        ))
        .stops_rdma()
        .means(format!("RDMA goes where the address goes. Here it would have to be {}.", names.join(" or ")))
        .todo(
            "Use the address that the other machine has there, and listen on it:",
            &["kaerud --listen ADDRESS …"],
        )
    })
}

/// Whether two machines go together. Each is judged by its best port: an active one, of the same kind if there is one.
fn compare(ours: &HostFacts, theirs: &HostFacts, name: &str) -> Vec<Finding> {
    let version =
        |facts: &HostFacts| facts.software.as_str().rsplit(' ').next().unwrap_or_default().to_owned();
    let mut findings = Vec::new();
    let (mine, other) = (version(ours), version(theirs));
    let read = |finding: Finding| {
        finding.saw("this machine", ours.software.as_str()).saw(name, theirs.software.as_str())
    };
    findings.push(match mine == other {
        true => read(Finding::ok("peer-version", "", format!("both ends have version {mine}"))),
        false => read(Finding::note("peer-version", "", format!("version {mine} here, {other} on {name}"))),
    });
    let (Some(here), Some(there)) = pair(ours, theirs) else {
        let who = match (ours.ports.is_empty(), theirs.ports.is_empty()) {
            (true, true) => "neither machine has an RDMA device".to_owned(),
            (true, false) => "this machine has no RDMA device".to_owned(),
            (false, _) => format!("{name} has no RDMA device"),
        };
        let title = format!("{who}, so data goes over TCP");
        let read = |finding: Finding| {
            finding
                .saw("RDMA ports of this machine", ours.ports.len().to_string())
                .saw(format!("RDMA ports of {name}"), theirs.ports.len().to_string())
        };
        // A card at one end is of no use alone.
        findings.push(match ours.ports.is_empty() && theirs.ports.is_empty() {
            true => read(Finding::note("peer-ports", "", title)),
            false => read(Finding::warn("peer-ports", "", title))
                .stops_rdma()
                .todo("If that machine has a card, this tells there what it lacks:", &["kaeru-doctor"]),
        });
        return findings;
    };
    findings.push(table(here, there, name));
    let is_same = ours.host == theirs.host && here.node_guid == there.node_guid;
    if is_same {
        findings.push(
            Finding::note("peer-guid", "", "the other machine is this one").saw(name, theirs.host.as_str()),
        );
        return findings;
    }
    findings.extend(layers(here, there, name));
    findings.extend(guids(here, there, name));
    findings.extend(rates(here, there, name));
    findings.extend(mtus(here, there, name));
    findings.extend(ipoib(here, there, name));
    findings.extend(roce(here, there, name));
    findings
}

/// The ports that are most likely meant for one another.
fn pair<'a>(ours: &'a HostFacts, theirs: &'a HostFacts) -> (Option<&'a PortFacts>, Option<&'a PortFacts>) {
    let active = |port: &&PortFacts| port.state.as_str().starts_with("4:");
    let best = |facts: &'a HostFacts| facts.ports.iter().find(active).or_else(|| facts.ports.first());
    let both = ours.ports.iter().filter(active).find_map(|here| {
        let there = theirs.ports.iter().filter(active).find(|there| there.link_layer == here.link_layer)?;
        Some((here, there))
    });
    match both {
        Some((here, there)) => (Some(here), Some(there)),
        None => (best(ours), best(theirs)),
    }
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "?" } else { text }
}

/// Bytes of data in the greatest RDMA packet of a port.
fn packet(port: &PortFacts) -> Option<u64> {
    match port.link_layer.as_str() {
        "Ethernet" => rdma_mtu(port.interface_mtu.as_str().parse().ok()?),
        _ => port.mtu.as_str().parse().ok(),
    }
}

/// Both ends side by side.
fn table(here: &PortFacts, there: &PortFacts, name: &str) -> Finding {
    let device = |port: &PortFacts| format!("{} port {}", port.device, port.number);
    let card = |port: &PortFacts| match (port.parent.as_str(), port.pci_device.as_str()) {
        ("", "") => "no card".to_owned(),
        ("", _) => Host::told(&HostFacts {
            software: "".into(),
            host: "".into(),
            kernel: "".into(),
            ports: kaeru_common::codec::BoundedList::new(vec![port.clone()]).unwrap_or_default(),
        })
        .rdma
        .first()
        .map(RdmaDevice::what)
        .unwrap_or_default(),
        (parent, _) => format!("Soft-RoCE on {parent}"),
    };
    let roce = |port: &PortFacts| match (port.link_layer.as_str(), port.roce_v1, port.roce_v2) {
        ("Ethernet", true, true) => "v1, v2",
        ("Ethernet", true, false) => "v1",
        ("Ethernet", false, true) => "v2",
        _ => "-",
    };
    let bytes =
        |port: &PortFacts| packet(port).map_or_else(|| "?".to_owned(), |bytes| format!("{bytes} bytes"));
    let rows = [
        ("", "here".to_owned(), name.to_owned()),
        ("port", device(here), device(there)),
        ("card", card(here), card(there)),
        (
            "firmware",
            or_unknown(here.firmware.as_str()).to_owned(),
            or_unknown(there.firmware.as_str()).to_owned(),
        ),
        (
            "link",
            or_unknown(here.link_layer.as_str()).to_owned(),
            or_unknown(there.link_layer.as_str()).to_owned(),
        ),
        ("state", or_unknown(here.state.as_str()).to_owned(), or_unknown(there.state.as_str()).to_owned()),
        ("rate", or_unknown(here.rate.as_str()).to_owned(), or_unknown(there.rate.as_str()).to_owned()),
        ("packets", bytes(here), bytes(there)),
        ("RoCE", roce(here).to_owned(), roce(there).to_owned()),
    ];
    let lines: Vec<String> = rows
        .iter()
        .map(|(row, here, there)| format!("{row:NAME$}{here:COLUMN$}  {there}").trim_end().to_owned())
        .collect();
    Finding::ok(TABLE, "", "both ends side by side").means(lines.join("\n"))
}

/// Reads of both ends, for a finding.
fn both(finding: Finding, what: &str, here: &str, there: &str, name: &str) -> Finding {
    finding
        .saw(format!("{what}, here"), or_unknown(here))
        .saw(format!("{what}, on {name}"), or_unknown(there))
}

/// Both speak InfiniBand, or both Ethernet.
fn layers(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let (mine, other) = (here.link_layer.as_str(), there.link_layer.as_str());
    if mine.is_empty() || other.is_empty() {
        return None;
    }
    let check = "peer-layer";
    if mine == other {
        return Some(both(
            Finding::ok(check, "", format!("both ends speak {mine}")),
            "link_layer",
            mine,
            other,
            name,
        ));
    }
    let title = format!("this end speaks {mine}, {name} speaks {other}");
    let finding = both(Finding::fail(check, "", title), "link_layer", mine, other, name)
        .stops_rdma()
        .means("Two ends in different modes never see one another.");
    let set =
        |port: &PortFacts, who: &str, finding: Finding| match (port.link_layer.as_str(), port.pci.first()) {
            ("Ethernet", Some(card)) if !port.mode.as_str().is_empty() => finding.todo(
                format!("For InfiniBand on both, {who}:"),
                &[&format!(
                    "echo ib | sudo tee /sys/bus/pci/devices/{}/mlx4_port{}",
                    card.address, port.number
                )],
            ),
            _ => finding,
        };
    let finding = set(here, "on this machine", finding);
    let finding = set(there, &format!("on {name}"), finding);
    Some(match finding.todo.is_empty() {
        true => finding.todo(
            "Set both to the same mode; on newer cards (1 is InfiniBand, 2 Ethernet):",
            &["sudo mstconfig -d ADDRESS set LINK_TYPE_P1=1"],
        ),
        false => finding,
    })
}

/// No two devices have one number.
fn guids(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let (mine, other) = (here.node_guid.as_str(), there.node_guid.as_str());
    let is_zero = mine.chars().all(|c| c == '0' || c == ':');
    (mine == other && !is_zero).then(|| {
        both(Finding::fail("peer-guid", "", "both cards have the same GUID"), "node_guid", mine, other, name)
            .means("One of them has firmware that was copied from the other. No fabric can tell them apart.")
            .todo(
                "Write the number on its label back into one of them:",
                &["sudo mstflint -d ADDRESS -guid 0xGUID -mac 0xMAC sg"],
            )
    })
}

/// Both run at one speed.
fn rates(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let active = |port: &PortFacts| port.state.as_str().starts_with("4:");
    let (mine, other) = (here.rate.as_str(), there.rate.as_str());
    let is_card = |port: &PortFacts| port.parent.as_str().is_empty();
    if !active(here) || !active(there) || !is_card(here) || !is_card(there) {
        return None;
    }
    let check = "peer-rate";
    Some(match mine == other {
        true => both(Finding::ok(check, "", format!("both ends run at {mine}")), "rate", mine, other, name),
        false => both(Finding::note(check, "", "the two ends run at different rates"), "rate", mine, other, name)
            .means("On one cable that cannot be, so there is a switch between them, or these are not the two ends. The slower one sets the speed."),
    })
}

/// Both take packets of one length.
fn mtus(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let (mine, other) = (packet(here)?, packet(there)?);
    let check = "peer-mtu";
    let read = |finding| both(finding, "greatest packet", &mine.to_string(), &other.to_string(), name);
    if mine == other {
        return Some(read(Finding::ok(check, "", format!("both ends take packets of {mine} bytes"))));
    }
    let finding = read(Finding::warn(
        check,
        "",
        format!("packets of {mine} bytes here, of {other} on {name}"),
    ))
    .means(
        "The connection takes the smaller one, if it comes about at all: a longer packet is lost on the way.",
    );
    Some(match (here.link_layer.as_str(), here.interface.as_str()) {
        ("Ethernet", interface) if !interface.is_empty() => {
            finding.todo("Set the same on both:", &[&format!("sudo ip link set {interface} mtu 4200")])
        }
        _ => finding.todo("Set the same on both; see above.", &[]),
    })
}

/// IP over InfiniBand takes packets of one length at both ends.
fn ipoib(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let mtu = |port: &PortFacts| {
        let is_infiniband = port.link_layer.as_str() == "InfiniBand";
        port.interface_mtu.as_str().parse::<u32>().ok().filter(|_| is_infiniband)
    };
    let (mine, other) = (mtu(here)?, mtu(there)?);
    let title = format!("IP over InfiniBand has MTU {mine} here, {other} on {name}");
    (mine != other).then(|| {
        both(Finding::note("peer-ipoib", "", title), "mtu", &mine.to_string(), &other.to_string(), name)
            .means("Big copies by ssh or NFS may hang. Kaeru's own data is not IP once it is connected.")
            .todo("Set mode and MTU the same on both ends. To see them:", &["ip -d link show type ipoib"])
    })
}

/// Both speak one version of RoCE.
fn roce(here: &PortFacts, there: &PortFacts, name: &str) -> Option<Finding> {
    let is_ethernet =
        |port: &PortFacts| port.link_layer.as_str() == "Ethernet" && (port.roce_v1 || port.roce_v2);
    if !is_ethernet(here) || !is_ethernet(there) {
        return None;
    }
    let versions = |port: &PortFacts| match (port.roce_v1, port.roce_v2) {
        (true, true) => "v1, v2",
        (true, false) => "v1 only",
        _ => "v2 only",
    };
    let (mine, other) = (versions(here), versions(there));
    let common = here.roce_v1 && there.roce_v1 || here.roce_v2 && there.roce_v2;
    let check = "peer-roce";
    Some(match common {
        true => both(Finding::ok(check, "", "both ends speak one version of RoCE"), "RoCE", mine, other, name),
        false => both(Finding::fail(check, "", "the two ends speak different versions of RoCE"), "RoCE", mine, other, name)
            .stops_rdma()
            .means("Version 1 is no IP, version 2 is: neither understands the other. Soft-RoCE speaks version 2 only.")
            .todo("On a card, a newer firmware may add version 2. Until then:", &["kaeru attach … --fabric tcp"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn port(layer: &str, rate: &str) -> PortFacts {
        let none = kaeru_common::wire::control::Said::default;
        PortFacts {
            device: "x".into(),
            number: 1,
            parent: none(),
            node_type: "1: CA".into(),
            firmware: "2.42.5000".into(),
            psid: none(),
            node_guid: format!("{layer}{rate}").as_str().into(),
            pci_vendor: "0x15b3".into(),
            pci_device: "0x1003".into(),
            pci: kaeru_common::codec::BoundedList::default(),
            link_layer: layer.into(),
            state: "4: ACTIVE".into(),
            phys_state: "5: LinkUp".into(),
            rate: rate.into(),
            lid: none(),
            sm_lid: none(),
            mtu: none(),
            mode: none(),
            interface: none(),
            interface_mtu: none(),
            interface_speed: none(),
            roce_v1: false,
            roce_v2: false,
        }
    }

    fn facts(host: &str, ports: Vec<PortFacts>) -> HostFacts {
        let ports = kaeru_common::codec::BoundedList::new(ports).unwrap();
        HostFacts { software: "kaerud 0.1.0".into(), host: host.into(), kernel: "6".into(), ports }
    }

    fn level(ours: Vec<PortFacts>, theirs: Vec<PortFacts>, check: &str) -> Option<Level> {
        let findings = compare(&facts("tama", ours), &facts("frog", theirs), "frog");
        findings.iter().find(|finding| finding.check == check).map(|finding| finding.level)
    }

    #[test]
    fn two_ends_are_compared() {
        let fdr = || port("InfiniBand", "56 Gb/sec (4X FDR)");
        let ethernet = || port("Ethernet", "40 Gb/sec (4X QDR)");
        let other = |change: fn(&mut PortFacts), mut port: PortFacts| {
            port.node_guid = "other".into();
            change(&mut port);
            vec![port]
        };
        let same = |port| other(|_| {}, port);
        assert_eq!(level(vec![fdr()], same(fdr()), "peer-layer"), Some(Level::Ok));
        assert_eq!(level(vec![fdr()], same(fdr()), "peer-rate"), Some(Level::Ok));
        assert_eq!(level(vec![fdr()], same(ethernet()), "peer-layer"), Some(Level::Fail));
        assert_eq!(level(vec![fdr()], vec![fdr()], "peer-guid"), Some(Level::Fail));
        assert_eq!(level(vec![fdr()], same(fdr()), "peer-guid"), None);
        let qdr = other(|port| port.rate = "40 Gb/sec (4X QDR)".into(), fdr());
        assert_eq!(level(vec![fdr()], qdr, "peer-rate"), Some(Level::Note));
        let mtu = |bytes: &str| PortFacts { interface_mtu: bytes.into(), ..ethernet() };
        assert_eq!(level(vec![mtu("4200")], same(mtu("9000")), "peer-mtu"), Some(Level::Ok));
        assert_eq!(level(vec![mtu("1500")], same(mtu("9000")), "peer-mtu"), Some(Level::Warn));
        let speaks = |roce_v1, roce_v2| PortFacts { roce_v1, roce_v2, ..ethernet() };
        assert_eq!(level(vec![speaks(true, true)], same(speaks(false, true)), "peer-roce"), Some(Level::Ok));
        assert_eq!(
            level(vec![speaks(true, false)], same(speaks(false, true)), "peer-roce"),
            Some(Level::Fail)
        );
        assert_eq!(level(vec![], same(fdr()), "peer-ports"), Some(Level::Warn));
        assert_eq!(level(vec![], vec![], "peer-ports"), Some(Level::Note));
        let ipoib = |bytes: &str| PortFacts { interface_mtu: bytes.into(), ..fdr() };
        assert_eq!(level(vec![ipoib("2044")], same(ipoib("65520")), "peer-ipoib"), Some(Level::Note));
        assert_eq!(level(vec![ipoib("2044")], same(ipoib("2044")), "peer-ipoib"), None);
        assert_eq!(level(vec![mtu("1500")], same(mtu("9000")), "peer-ipoib"), None);
        // Ports that go together are found among others.
        assert_eq!(level(vec![ethernet(), fdr()], same(fdr()), "peer-layer"), Some(Level::Ok));
    }
}
