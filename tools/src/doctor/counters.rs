//! Error counters: what bad cables leave behind, and what is added while somebody watches.

use std::time::Duration;

use kaeru_common::host::{Counter, CounterKind, Growth, Port, RdmaDevice};

use super::finding::Finding;
use super::{Patient, name_of};

/// A second reading of the counters.
#[derive(Debug)]
pub struct Watched {
    /// How long after the first.
    pub time: Duration,
    /// The devices then.
    pub later: Vec<RdmaDevice>,
}

/// What a bad cable is to be met with.
const MEND: &str =
    "Reseat both ends of the cable, swap the cable, then swap ports. Then look again, while data flows:";

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (device, port) in patient.ports() {
        if port.counters.is_empty() || device.card().is_none() {
            findings.push(none(device, port));
        } else if port.is_ethernet() {
            findings.push(ethernet(patient, device, port));
        } else {
            let later = patient.watched.as_ref().and_then(|watched| {
                let device = watched.later.iter().find(|later| later.name == device.name)?;
                let port = device.ports.iter().find(|later| later.number == port.number)?;
                Some((watched.time, port))
            });
            findings.push(match later {
                Some((time, later)) => grown(&name_of(device, port), port, later, time),
                None => total(&name_of(device, port), port),
            });
        }
    }
    findings
}

/// A port that counts nothing.
fn none(device: &RdmaDevice, port: &Port) -> Finding {
    let what = if device.card().is_none() {
        "software has no error counters of a cable"
    } else {
        "no error counters"
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
fn total(subject: &str, port: &Port) -> Finding {
    let check = "errors";
    let (counted, stuck): (Vec<&Counter>, bool) = {
        let errors = port.counters.iter().filter(|counter| counter.kind != CounterKind::Data);
        let counted: Vec<&Counter> = errors.filter(|counter| counter.value() != Some(0)).collect();
        let stuck = counted.iter().any(|counter| counter.is_stuck() && counter.kind == CounterKind::Physical);
        (counted, stuck)
    };
    let unread = counted.iter().filter(|counter| counter.value().is_none()).count();
    if unread > 0 && unread == counted.len() {
        return read_all(Finding::note(check, subject, "its error counters cannot be read"), &counted);
    }
    if counted.is_empty() {
        return Finding::ok(check, subject, "all error counters are zero")
            .saw(format!("{}/counters", port.path), "zeroes");
    }
    let finding = match stuck {
        true => Finding::warn(check, subject, "so many errors that a counter is at its end"),
        false => Finding::note(check, subject, "there were errors since the counters were last reset"),
    };
    let means = match stuck {
        true => {
            "A counter that has reached its end stays there, so what it shows is the least that happened."
        }
        false => "Plugging a cable alone makes some. What counts is whether they grow while data flows.",
    };
    let finding = read_all(finding, &counted).means(means);
    if stuck {
        finding.todo(MEND, &["sudo perfquery -R", "kaeru-doctor --watch 10s"])
    } else {
        finding.todo("Start a big copy, and meanwhile:", &["kaeru-doctor --watch 10s"])
    }
}

fn read_all(finding: Finding, counters: &[&Counter]) -> Finding {
    counters.iter().fold(finding, |finding, counter| {
        let value = counter.fact.or_reason();
        let value = if counter.is_stuck() { format!("at least {value}, its end") } else { value };
        finding.saw(&counter.fact.path, value)
    })
}

/// What was added between two readings.
fn grown(subject: &str, before: &Port, later: &Port, time: Duration) -> Finding {
    let check = "errors-added";
    let seconds = time.as_secs_f64();
    let pairs: Vec<(&Counter, Growth)> = before
        .counters
        .iter()
        .filter_map(|counter| {
            let then = later.counters.iter().find(|then| then.name == counter.name)?;
            Some((counter, counter.growth(then)?))
        })
        .collect();
    let of_kind = |kind: CounterKind| pairs.iter().filter(move |(counter, _)| counter.kind == kind);
    let traffic = traffic(of_kind(CounterKind::Data), seconds);
    let grew = |growth: Growth| growth != Growth::Exactly(0);
    let show = |finding: Finding, kind: CounterKind| {
        of_kind(kind).filter(|(_, growth)| grew(*growth)).fold(finding, |finding, (counter, growth)| {
            let text = match growth {
                Growth::Exactly(count) => format!("{count} more"),
                Growth::AtLeast(count) => format!("at least {count} more"),
                Growth::Unknown => {
                    format!("at its end ({}) already, so it cannot grow", counter.fact.or_reason())
                }
            };
            finding.saw(&counter.fact.path, text)
        })
    };
    let bits_lost =
        of_kind(CounterKind::Physical).any(|(_, growth)| grew(*growth) && *growth != Growth::Unknown);
    let unknown = of_kind(CounterKind::Physical).any(|(_, growth)| *growth == Growth::Unknown);
    let dropped = of_kind(CounterKind::Other).any(|(_, growth)| grew(*growth) && *growth != Growth::Unknown);
    let in_time = format!("in {seconds} s");
    if pairs.is_empty() {
        return Finding::note(check, subject, "its error counters cannot be read");
    }
    if bits_lost {
        let finding = Finding::warn(check, subject, format!("bits were lost {in_time}")).means(traffic);
        return show(finding, CounterKind::Physical).todo(MEND, &["kaeru-doctor --watch 10s"]);
    }
    if unknown {
        let finding =
            Finding::warn(check, subject, "a counter is at its end, so nobody can see whether it grows");
        return show(finding, CounterKind::Physical)
            .means(traffic)
            .todo("Reset the counters, and look again:", &["sudo perfquery -R", "kaeru-doctor --watch 10s"]);
    }
    if dropped {
        let finding = Finding::note(check, subject, format!("packets were dropped {in_time}")).means(traffic);
        return show(finding, CounterKind::Other);
    }
    Finding::ok(check, subject, format!("no errors {in_time}. {traffic}"))
        .saw(format!("{}/counters", before.path), "read twice, no error more")
}

/// How much data flowed meanwhile: without any, the absence of errors says little.
fn traffic<'a>(data: impl Iterator<Item = &'a (&'a Counter, Growth)>, seconds: f64) -> String {
    let mut words = Vec::new();
    let mut flowed = false;
    for (counter, growth) in data {
        let way = if counter.name.contains("xmit") { "sent" } else { "received" };
        // Words of four bytes.
        let gigabytes = |count: u64| count as f64 * 4.0 / 1e9;
        match *growth {
            Growth::Exactly(count) => {
                flowed |= count > 0;
                words.push(format!("{:.3} GB {way}", gigabytes(count)));
            }
            Growth::AtLeast(count) => {
                flowed = true;
                words.push(format!("at least {:.3} GB {way} (the counter is at its end)", gigabytes(count)));
            }
            Growth::Unknown => words.push(format!("nobody knows how much {way} (the counter is at its end)")),
        }
    }
    match (words.is_empty(), flowed) {
        (true, _) => "How much data flowed is not known.".to_owned(),
        (false, true) => format!("Meanwhile: {}, in {seconds} s.", words.join(", ")),
        (false, false) => {
            "No data flowed meanwhile, so that says little: try it during a big copy.".to_owned()
        }
    }
}
