//! How fast each port can be at most, and what sets that limit.

use kaeru_common::host::{Kind, Port, RdmaDevice};
use serde::Serialize;

use super::finding::{Finding, Level};
use super::{Patient, name_of};

/// The check that says how fast a port can be.
pub(super) const CHECK: &str = "ceiling";

/// What stands in the way of more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The cable and its two ports.
    Link,
    /// The slot, or a bridge above it.
    Pcie,
    /// Both carry the same.
    Both,
}

/// The limits of one port, in gigabytes (10⁹ bytes) a second in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// The port.
    pub port: String,
    /// What the link carries; `None` while it is down, and where it cannot be read.
    pub link_gigabytes: Option<f64>,
    /// The link.
    pub link: Option<String>,
    /// What the narrowest part of the way to the card carries.
    pub pcie_gigabytes: Option<f64>,
    /// That part: generation, width, and the PCI address where it is.
    pub pcie: Option<String>,
    /// Which of the two is less, where both are known.
    pub binds: Option<Bound>,
    /// The less of the two, where both are known.
    pub at_most_gigabytes: Option<f64>,
    /// Whether software does the card's work.
    pub software: bool,
}

/// The limits of every port that is in use, or could be.
pub(super) fn measure(patient: &Patient) -> Vec<Ceiling> {
    patient
        .ports()
        .filter(|(device, port)| port.is_active() || device.ports.iter().all(|port| !port.is_active()))
        .map(|(device, port)| ceiling(patient, device, port))
        .collect()
}

fn ceiling(patient: &Patient, device: &RdmaDevice, port: &Port) -> Ceiling {
    let speed = port.speed(patient.host.netdev_of(device, port));
    let software = matches!(device.kind(), Kind::SoftRoce | Kind::SoftIwarp);
    // What a software device tells as its rate means nothing; its interface may know.
    let speed = speed.filter(|speed| !software || speed.read.path != port.rate.path);
    let pcie = device.card().and_then(|card| card.narrowest());
    let (link_gigabytes, pcie_gigabytes) = (
        speed.as_ref().map(|speed| rounded(speed.gigabytes())),
        pcie.map(|(_, link)| rounded(link.gigabytes())),
    );
    let both = link_gigabytes.zip(pcie_gigabytes);
    Ceiling {
        port: name_of(device, port),
        link_gigabytes,
        link: speed.map(|speed| speed.name),
        pcie_gigabytes,
        pcie: pcie.map(|(node, link)| format!("{link} at {}", node.address)),
        binds: both.map(|(link, pcie)| match link - pcie {
            // QDR and Gen2 x8 are the same.
            less if less.abs() < 0.005 * pcie => Bound::Both,
            less if less < 0.0 => Bound::Link,
            _ => Bound::Pcie,
        }),
        at_most_gigabytes: both.map(|(link, pcie)| link.min(pcie)),
        software,
    }
}

/// Three decimals.
fn rounded(gigabytes: f64) -> f64 {
    (gigabytes * 1000.0).round() / 1000.0
}

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings: Vec<Finding> = measure(patient).iter().map(finding).collect();
    for device in &patient.host.rdma {
        findings.extend(shared(patient, device));
    }
    findings
}

fn finding(ceiling: &Ceiling) -> Finding {
    let check = CHECK;
    let line = |what: &str, gigabytes: Option<f64>, name: &Option<String>| match (gigabytes, name) {
        (Some(gigabytes), Some(name)) => format!("{what} {gigabytes:>5.1} GB/s  {name}"),
        _ => format!("{what}     ? GB/s"),
    };
    let lines = [
        line("link", ceiling.link_gigabytes, &ceiling.link),
        line("PCIe", ceiling.pcie_gigabytes, &ceiling.pcie),
    ];
    if ceiling.software {
        let title = "software RDMA: the processors set the limit, and nothing here tells it";
        let finding = Finding::note(check, &ceiling.port, title);
        return match ceiling.link_gigabytes {
            Some(_) => finding.means(&lines[0]),
            None => finding,
        };
    }
    let (binds, most) = (ceiling.binds, ceiling.at_most_gigabytes.unwrap_or_default());
    let title = match binds {
        Some(Bound::Link) => format!("at most {most:.1} GB/s: the link binds"),
        Some(Bound::Pcie) => format!("at most {most:.1} GB/s: the PCI Express slot binds"),
        Some(Bound::Both) => format!("at most {most:.1} GB/s: link and slot carry the same"),
        None if ceiling.pcie.is_some() => {
            "not known: the link is not up, or its rate cannot be read".to_owned()
        }
        None => "not known: the slot cannot be read".to_owned(),
    };
    let level = if binds.is_some() { Finding::ok } else { Finding::note };
    let why = match binds {
        Some(_) => "\nThat is what the wires carry in one direction; packet headers take a part of it.",
        None => "",
    };
    level(check, &ceiling.port, title).means(format!("{}\n{}{why}", lines[0], lines[1]))
}

/// What a port could carry is not what it does carry where data goes over TCP.
pub(super) fn mark(findings: &mut [Finding]) {
    let stops: Vec<(String, String)> = findings
        .iter()
        .filter(|finding| finding.stops_rdma)
        .map(|finding| (finding.subject.clone(), finding.headline()))
        .collect();
    for ceiling in findings.iter_mut().filter(|finding| finding.check == CHECK && finding.level == Level::Ok)
    {
        // A device stops its ports, and what is about no device stops all.
        let stop = stops.iter().find(|(subject, _)| {
            let rest = ceiling.subject.strip_prefix(subject.as_str());
            rest.is_some_and(|rest| subject.is_empty() || rest.is_empty() || rest.starts_with(' '))
        });
        if let (Some((_, headline)), Some((most, _))) = (stop, ceiling.title.split_once(':')) {
            ceiling.title = format!("{most}, but data goes over TCP: see \"{headline}\"");
            ceiling.level = Level::Note;
        }
    }
}

/// Two ports of one card share its slot.
fn shared(patient: &Patient, device: &RdmaDevice) -> Option<Finding> {
    let active: Vec<&Port> = device.ports.iter().filter(|port| port.is_active()).collect();
    let speeds = active.iter().filter_map(|port| port.speed(patient.host.netdev_of(device, port)));
    let sum: f64 = speeds.map(|speed| speed.gigabytes()).sum();
    let (_, slot) = device.card()?.narrowest()?;
    (active.len() > 1 && sum > slot.gigabytes()).then(|| {
        let title = format!(
            "both ports together want {sum:.1} GB/s, and share a slot with {:.1} GB/s",
            slot.gigabytes()
        );
        Finding::note("shared-slot", &device.name, title)
    })
}
