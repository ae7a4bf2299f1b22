//! Error counters: what bad cables leave behind.

use kaeru_common::host::{Counter, CounterKind, Kind, Port, RdmaDevice};

use super::finding::Finding;
use super::{Patient, name_of, watch};

/// What a bad cable is to be met with.
pub(super) const MEND: &str =
    "Reseat both ends of the cable, swap the cable, then swap ports. Then look again, while data flows:";
/// What to do about counters at their end.
pub(super) const RESET: &str =
    "Set all counters of the port to zero (-R is reset), and look again, while data flows:";

/// Sets the counters of a port to zero.
pub(super) fn reset(device: &RdmaDevice, port: &Port) -> String {
    format!("sudo perfquery -C {} -P {} -R", device.name, port.number)
}

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    patient.ports().map(|(device, port)| errors(patient, device, port)).collect()
}

/// What the counters of one port tell.
fn errors(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let subject = name_of(device, port);
    let watched = patient.watched.as_ref().and_then(|watched| Some((watched, watched.port(device, port)?)));
    let had_some = watched.is_some_and(|(_, earlier)| !earlier.counters.is_empty());
    match watched {
        _ if device.card().is_none() || (port.counters.is_empty() && !had_some) => none(device, port),
        _ if port.is_ethernet() => ethernet(patient, device, port),
        Some((watched, earlier)) => watch::errors(device, watched, earlier, port),
        None => total(&subject, device, port),
    }
}

/// A port that counts nothing.
fn none(device: &RdmaDevice, port: &Port) -> Finding {
    let what = match device.kind() {
        Kind::Card => "no error counters",
        Kind::SoftRoce | Kind::SoftIwarp => "software has no error counters of a cable",
        Kind::Unknown => "without a card on PCI its error counters are not judged",
    };
    Finding::note("errors", &name_of(device, port), what).saw(
        format!("{}/counters", port.path),
        if port.counters.is_empty() { "not there" } else { "not looked at" },
    )
}

/// On Ethernet these counters say little.
fn ethernet(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let netdev = patient.host.netdev_of(device, port).map_or("INTERFACE", |netdev| netdev.name.as_str());
    Finding::note("errors", &name_of(device, port), "an Ethernet port: its interface counts the errors")
        .saw(format!("{}/counters", port.path), "made for InfiniBand; not judged")
        .todo(
            "Look for errors that grow while data flows:",
            &[&format!("ethtool -S {netdev} | grep -iE 'err|crc|discard'")],
        )
}

/// The counters since they were last reset.
fn total(subject: &str, device: &RdmaDevice, port: &Port) -> Finding {
    let check = "errors";
    let errors = || port.counters.iter().filter(|counter| counter.kind != CounterKind::Data);
    let counted: Vec<&Counter> =
        errors().filter(|counter| counter.value().is_some_and(|value| value > 0)).collect();
    let unread: Vec<&Counter> = errors().filter(|counter| counter.value().is_none()).collect();
    let folder = format!("{}/counters", port.path);
    if unread.len() == errors().count() {
        let finding = Finding::note(check, subject, "its error counters cannot be read");
        return if unread.is_empty() {
            finding.saw(folder, "none of errors")
        } else {
            read_all(finding, &unread)
        };
    }
    if counted.is_empty() && unread.is_empty() {
        return Finding::ok(check, subject, "all error counters are zero").saw(folder, "zeroes");
    }
    if counted.is_empty() {
        return read_all(
            Finding::note(check, subject, "all error counters that can be read are zero"),
            &unread,
        );
    }
    let stuck = counted.iter().any(|counter| counter.is_stuck() && counter.kind == CounterKind::Physical);
    let shown = [counted, unread].concat();
    if stuck {
        let finding = Finding::warn(check, subject, "so many errors that a counter is at its end");
        return read_all(finding, &shown)
            .means("A counter that has reached its end stays there, so what it shows is the least that happened.")
            .todo("Reseat both ends of the cable, swap the cable, then swap ports.", &[])
            .todo(RESET, &[&reset(device, port), "kaeru-doctor --watch 10s"]);
    }
    read_all(Finding::note(check, subject, "there were errors since the counters were last reset"), &shown)
        .means("Plugging a cable alone makes some. What counts is whether they grow while data flows.")
        .todo("Start a big copy, and meanwhile:", &["kaeru-doctor --watch 10s"])
}

fn read_all(finding: Finding, counters: &[&Counter]) -> Finding {
    counters.iter().fold(finding, |finding, counter| {
        let value = counter.fact.or_reason();
        let value = if counter.is_stuck() { format!("at least {value}, its end") } else { value };
        finding.saw(&counter.fact.path, value)
    })
}
