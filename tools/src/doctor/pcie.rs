//! The slot: how much it carries, how near it is, how warm the card in it is.

use std::ops::RangeInclusive;

use kaeru_common::host::{PciDevice, PciLink, PciNode, RdmaDevice};

use super::Patient;
use super::finding::Finding;

/// Degrees above which a card should be cooled, and from which on it is about to switch off.
const WARM: i64 = 90;
const HOT: i64 = 105;
/// What a sensor in a machine that runs can mean, and what can be the limit of a card.
const DEGREES: RangeInclusive<i64> = 1..=150;
const LIMITS: RangeInclusive<i64> = 60..=150;

/// What to look for in the words of lspci.
const LOOK: &str = "Then look: LnkCap is what the card can do, LnkSta what it does, and Speed and Width should be the same in both:";

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    for card in cards(patient) {
        findings.push(slot(patient, card));
        findings.extend(node(patient, card));
        // A virtual function has no sensor; the card is seen on the machine that has it.
        findings.extend((!card.is_virtual()).then(|| temperature(card)));
    }
    findings.extend(registerable(patient));
    findings
}

/// How fast the way to every card is.
pub(super) fn slots(patient: &Patient) -> Vec<Finding> {
    cards(patient).into_iter().map(|card| slot(patient, card)).collect()
}

/// Every card, with an RDMA device or without.
fn cards(patient: &Patient) -> Vec<&PciDevice> {
    let mut cards: Vec<&PciDevice> = patient.host.cards.iter().collect();
    for card in patient.host.rdma.iter().filter_map(RdmaDevice::card) {
        if cards.iter().all(|known| known.path != card.path) {
            cards.push(card);
        }
    }
    cards
}

/// Gigabytes a second that the fastest active port of a card carries.
fn wanted(patient: &Patient, card: &PciDevice) -> Option<(f64, String)> {
    let ports = patient.ports().filter(|(device, _)| device.card().is_some_and(|pci| pci.path == card.path));
    let speeds = ports.filter_map(|(device, port)| port.speed(patient.host.netdev_of(device, port)));
    speeds.map(|speed| (speed.gigabytes(), speed.name)).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn describe(finding: Finding, node: &PciNode) -> Finding {
    let place = parent(&node.speed.path);
    let line = |speed: &str, width: &str| format!("{speed}, x{width}");
    finding
        .saw(format!("{place}/current_link_*"), line(&node.speed.or_reason(), &node.width.or_reason()))
        .saw(format!("{place}/max_link_*"), line(&node.max_speed.or_reason(), &node.max_width.or_reason()))
}

fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned())
}

/// How fast and wide the way to a card is.
fn slot(patient: &Patient, card: &PciDevice) -> Finding {
    let (check, subject) = ("pcie", card.address.as_str());
    let own = card.chain.first();
    let (Some(own), Some(now)) = (own, own.and_then(PciNode::link)) else {
        let finding = Finding::note(check, subject, "how fast its slot is cannot be read");
        return match own {
            Some(node) => describe(finding, node),
            None => finding.saw(&card.path, "no PCI address in it"),
        };
    };
    let wanted = wanted(patient, card);
    // Half a percent: what QDR and Gen2 x8 carry is the same.
    let is_enough = |link: PciLink| wanted.as_ref().map(|(wanted, _)| link.gigabytes() * 1.005 >= *wanted);
    let compared = |link: PciLink| match &wanted {
        Some((wanted, name)) if is_enough(link) == Some(false) => {
            format!(
                "That carries {:.1} GB/s, and the link ({name}) {wanted:.1} GB/s: the slot is in the way.",
                link.gigabytes()
            )
        }
        Some((wanted, name)) => {
            format!(
                "That carries {:.1} GB/s, which is enough for the link ({name}, {wanted:.1} GB/s).",
                link.gigabytes()
            )
        }
        None => format!("That carries {:.1} GB/s.", link.gigabytes()),
    };
    let level = |link: PciLink| match is_enough(link) {
        Some(true) => Finding::note,
        _ => Finding::warn,
    };
    let narrowest = card.narrowest().filter(|(_, link)| link.gigabytes() + 0.001 < now.gigabytes());
    if let Some((node, link)) = narrowest {
        let could = match own.best() {
            Some(best) if own.is_below_best() => format!(" (the card can do {best})"),
            _ => String::new(),
        };
        let title =
            format!("runs at {now}{could}, but the way to it is {link} at the bridge {}", node.address);
        let finding = describe(describe(level(link)(check, subject, title), own), node);
        return finding
            .means(format!("{} Slots behind the chipset share one way to the processor.", compared(link)))
            .todo("Use a slot that is wired to the processor; the board's manual says which.", &[]);
    }
    if !own.is_below_best() {
        let title = format!("runs at {now} ({:.1} GB/s), the best that it can", now.gigabytes());
        return describe(Finding::ok(check, subject, title), own).means(compared(now));
    }
    let best = own.best().unwrap_or(now);
    let title = format!(
        "runs at {now} ({:.1} GB/s); the card can do {best} ({:.1} GB/s)",
        now.gigabytes(),
        best.gigabytes()
    );
    let finding = describe(level(now)(check, subject, title), own);
    let slot = card.chain.get(1);
    match slot.and_then(|slot| Some((slot, slot.best()?))) {
        Some((slot, limit)) if limit.gigabytes() + 0.001 < best.gigabytes() => describe(finding, slot)
            .means(format!("{} The slot can do no more than {limit}.", compared(now)))
            .todo(
                format!("Move the card to a slot that is wired to the processor and has all its lanes. {LOOK}"),
                &[&format!("sudo lspci -vv -s {subject} | grep -E 'LnkCap:|LnkSta:'")],
            ),
        Some((slot, limit)) => describe(finding, slot)
            .means(format!(
                "{} Both ends could do more (the slot {limit}), so they failed to agree on it.",
                compared(now)
            ))
            .todo(
                format!("Reseat the card, set the slot to Gen3 in the BIOS, and look for a newer BIOS. {LOOK}"),
                &[&format!("sudo lspci -vv -s {subject} | grep -E 'LnkCap:|LnkSta:'")],
            ),
        None => finding.means(compared(now)).todo(
            format!("Use a slot that is wired to the processor and has all its lanes; set it to Gen3 in the BIOS. {LOOK}"),
            &[&format!("sudo lspci -vv -s {subject} | grep -E 'LnkCap:|LnkSta:'")],
        ),
    }
}

/// Which processor a card is next to, where there are several.
fn node(patient: &Patient, card: &PciDevice) -> Option<Finding> {
    let nodes = &patient.host.cpu.nodes;
    nodes.get().filter(|nodes| nodes.contains(['-', ',']))?;
    let (check, subject) = ("numa", card.address.as_str());
    let finding = match card.numa_node.parse::<u32>() {
        Some(node) => Finding::note(check, subject, format!("hangs on node {node} of several"))
            .means("From another node every access goes through a second processor.")
            .todo(
                "Keep the programs on the card's node:",
                &[&format!("numactl --cpunodebind={node} --membind={node} kaerud …")],
            ),
        None => Finding::note(check, subject, "which of several nodes it hangs on cannot be read"),
    };
    Some(finding.read(&card.numa_node).read(nodes))
}

/// How warm a card is.
fn temperature(card: &PciDevice) -> Finding {
    let (check, subject) = ("temperature", card.address.as_str());
    let read = card.temperature.as_ref().and_then(|fact| Some((fact, fact.parse::<i64>()?)));
    let air = "These cards need moving air: point a fan at it.";
    let title = "its temperature cannot be read";
    let Some((fact, thousandths)) = read else {
        if let Some(fact) = &card.temperature {
            return Finding::note(check, subject, title).read(fact).means(air);
        }
        // Healthy cards have none either, such as every ConnectX-3.
        return Finding::ok(check, subject, title)
            .saw(format!("{}/hwmon", card.path), "no sensor")
            .means(format!("The driver shows no sensor, as is usual for ConnectX-3. {air}"))
            .todo(
                "mget_temp asks the card itself. It is in no package of Debian; it belongs to MFT, which NVIDIA has on its site:",
                &[&format!("sudo mget_temp -d {subject}")],
            );
    };
    let degrees = thousandths / 1000;
    let limit = card.critical.as_ref().and_then(|fact| Some(fact.parse::<i64>()? / 1000));
    let limit = limit.filter(|limit| LIMITS.contains(limit)).map_or(HOT, |limit| limit.min(HOT));
    let title = format!("{degrees} °C");
    if !DEGREES.contains(&degrees) {
        return Finding::note(check, subject, format!("its sensor says {title}, which cannot be")).read(fact);
    }
    let cool = |finding: Finding| {
        finding
            .read(fact)
            .means("It slows down or switches off when it gets hotter.")
            .todo("Point a fan at the card.", &[])
    };
    match degrees {
        degrees if degrees >= limit => cool(Finding::fail(check, subject, format!("{title}: far too hot"))),
        degrees if degrees > WARM => cool(Finding::warn(check, subject, format!("{title}: too hot"))),
        _ => Finding::ok(check, subject, title).read(fact),
    }
}

/// Old settings of mlx4 that limit how much memory can be registered.
fn registerable(patient: &Patient) -> Option<Finding> {
    let software = &patient.host.software;
    let (tables, segments) = (&software.log_num_mtt, &software.log_mtts_per_seg);
    // Zero: the driver chooses.
    let pages = tables.parse::<u32>().filter(|&tables| tables > 0)?.checked_add(segments.parse::<u32>()?)?;
    let bytes = 4096_u64.checked_mul(1_u64.checked_shl(pages)?)?;
    let total = patient.host.memory.total?;
    if bytes >= total {
        return None;
    }
    let size = |bytes| kaeru_common::units::Size(bytes).about();
    Some(
        Finding::warn("registerable", "", format!("the driver mlx4 can register {} of memory", size(bytes)))
            .read(tables)
            .read(segments)
            .saw("/proc/meminfo", format!("MemTotal: {}", size(total)))
            .means("An old setting limits it. Without the setting the driver takes twice the memory of the machine.")
            .todo("Remove the options of mlx4_core, and restart:", &["grep -r mlx4_core /etc/modprobe.d"]),
    )
}
