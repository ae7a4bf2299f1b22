//! What changed while somebody watched: errors that were added, links that went down, devices that went away.

use std::time::Duration;

use kaeru_common::host::{Counter, CounterKind, Fact, Growth, Port, RdmaDevice};

use super::counters::{MEND, RESET, reset};
use super::finding::Finding;
use super::{Patient, name_of};

/// A reading some time before the one that is examined.
#[derive(Debug)]
pub struct Watched {
    /// How long before.
    pub time: Duration,
    /// The devices then.
    pub earlier: Vec<RdmaDevice>,
}

/// The kernel says why a device or a link goes.
const LOG: &str = "sudo dmesg | tail -n 50";

impl Watched {
    /// What a port was.
    pub(super) fn port(&self, device: &RdmaDevice, port: &Port) -> Option<&Port> {
        let device = self.earlier.iter().find(|earlier| earlier.name == device.name)?;
        device.ports.iter().find(|earlier| earlier.number == port.number)
    }

    fn in_time(&self) -> String {
        format!("in {} s", self.time.as_secs_f64())
    }
}

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let Some(watched) = &patient.watched else { return Vec::new() };
    let mut findings = gone(patient, watched);
    for (device, port) in patient.ports() {
        if let Some(earlier) = watched.port(device, port) {
            findings.extend(changed(&name_of(device, port), earlier, port, watched));
        }
    }
    findings
}

/// Devices and ports that were there at first only.
fn gone(patient: &Patient, watched: &Watched) -> Vec<Finding> {
    let now = &patient.host.rdma;
    let lost = |name: &str, path: &str| {
        Finding::fail("watch", name, format!("was there, and went away {}", watched.in_time()))
            .saw(path, "there, then not there")
            .means("Nothing can be said of its errors. Somebody removed it, its driver was unloaded, or it has failed.")
            .todo("The kernel's log may say why:", &[LOG])
    };
    let mut findings = Vec::new();
    for earlier in &watched.earlier {
        match now.iter().find(|device| device.name == earlier.name) {
            None => findings.push(lost(&earlier.name, &earlier.path)),
            Some(device) => {
                let is_lost = |port: &&Port| device.ports.iter().all(|now| now.number != port.number);
                let ports = earlier.ports.iter().filter(is_lost);
                findings.extend(ports.map(|port| lost(&name_of(earlier, port), &port.path)));
            }
        }
    }
    findings
}

/// A link that is not what it was. What it is now is judged where links are.
fn changed(subject: &str, earlier: &Port, now: &Port, watched: &Watched) -> Option<Finding> {
    let (check, in_time) = ("watch", watched.in_time());
    let are_known = |one: &Fact, other: &Fact| one.value.is_ok() && other.value.is_ok();
    let finding = match (earlier.is_active(), now.is_active()) {
        // What cannot be read says nothing about the link.
        _ if !are_known(&earlier.state, &now.state) => {
            if earlier.state.value.is_ok() == now.state.value.is_ok() {
                return None;
            }
            Finding::note(check, subject, format!("its state could be read only once {in_time}"))
        }
        (true, false) => Finding::fail(check, subject, format!("was active, and went down {in_time}"))
            .todo(MEND, &["kaeru-doctor --watch 10s"])
            .todo("The kernel's log may say why:", &[LOG]),
        (false, true) => Finding::note(check, subject, format!("came up {in_time}")),
        (true, true) if are_known(&earlier.rate, &now.rate) && earlier.rate.value != now.rate.value => {
            Finding::warn(check, subject, format!("changed its rate {in_time}"))
                .todo(MEND, &["kaeru-doctor --watch 10s"])
        }
        _ => return None,
    };
    let facts =
        [(&earlier.state, &now.state), (&earlier.phys_state, &now.phys_state), (&earlier.rate, &now.rate)];
    let differing = facts.into_iter().filter(|(earlier, now)| earlier.value != now.value);
    Some(differing.fold(finding, |finding, (earlier, now)| {
        finding.saw(&now.path, format!("{}, then {}", earlier.or_reason(), now.or_reason()))
    }))
}

/// What the error counters of a port counted between two readings.
pub(super) fn errors(device: &RdmaDevice, watched: &Watched, earlier: &Port, now: &Port) -> Finding {
    let (check, subject) = ("errors-added", &name_of(device, now));
    let later = |counter: &Counter| now.counters.iter().find(|now| now.name == counter.name);
    let pairs: Vec<(&Counter, Growth)> = earlier
        .counters
        .iter()
        .filter_map(|counter| Some((counter, counter.growth(later(counter)?)?)))
        .collect();
    let errors = || pairs.iter().filter(|(counter, _)| counter.kind != CounterKind::Data);
    let has = |kind: CounterKind, what: fn(Growth) -> bool| {
        pairs.iter().any(|(counter, growth)| counter.kind == kind && what(*growth))
    };
    let data = pairs.iter().filter(|(counter, _)| counter.kind == CounterKind::Data);
    let (traffic, is_idle) = traffic(data, watched.time);
    // Without any, the absence of errors says little.
    let unsaid = if is_idle {
        format!("{traffic} So that says little: try it during a big copy.")
    } else {
        traffic.clone()
    };
    let show = |finding: Finding| {
        let grown = errors().filter(|(_, growth)| *growth != Growth::Exactly(0));
        grown.fold(finding, |finding, (counter, growth)| {
            finding.saw(&counter.fact.path, words(counter, *growth))
        })
    };
    let vanished: Vec<&Counter> = earlier
        .counters
        .iter()
        .filter(|counter| counter.kind != CounterKind::Data && counter.value().is_some())
        .filter(|counter| later(counter).is_none_or(|now| now.value().is_none()))
        .collect();
    let show = |finding: Finding| {
        vanished.iter().fold(show(finding), |finding, counter| {
            let reason = later(counter).map_or_else(|| "(not there)".to_owned(), |now| now.fact.or_reason());
            finding.saw(&counter.fact.path, format!("{}, then {reason}", counter.fact.or_reason()))
        })
    };
    let in_time = watched.in_time();
    let again = "kaeru-doctor --watch 10s";
    if has(CounterKind::Physical, is_seen) {
        let finding = Finding::warn(check, subject, format!("bits were lost {in_time}")).means(traffic);
        return show(finding).todo(MEND, &[again]);
    }
    if !vanished.is_empty() {
        let title = format!("error counters went away {in_time}, so nobody can see whether bits were lost");
        return show(Finding::warn(check, subject, title))
            .means(traffic)
            .todo("Look again; the kernel's log may say why:", &[again, LOG]);
    }
    if has(CounterKind::Physical, |growth| growth == Growth::Unknown) {
        let title = "a counter is at its end, so nobody can see whether it grows";
        return show(Finding::warn(check, subject, title))
            .means(traffic)
            .todo(RESET, &[&reset(device, now), again]);
    }
    if errors().any(|(_, growth)| matches!(growth, Growth::Reset(_))) {
        let title = format!("counters were reset {in_time}, so errors before that cannot be seen");
        return show(Finding::note(check, subject, title)).means(traffic).todo("Look again:", &[again]);
    }
    if has(CounterKind::Other, is_seen) {
        let title = format!("packets were dropped {in_time}");
        return show(Finding::note(check, subject, title)).means(traffic);
    }
    let folder = format!("{}/counters", now.path);
    let count =
        |port: &Port| port.counters.iter().filter(|counter| counter.kind != CounterKind::Data).count();
    match (errors().count(), count(now)) {
        (0, _) => {
            Finding::note(check, subject, "its error counters cannot be read").saw(folder, "no number twice")
        }
        (read, all) if read < all => Finding::note(
            check,
            subject,
            format!("no errors {in_time} in those counters that can be read. {unsaid}"),
        )
        .saw(folder, format!("{read} of {all} read twice, no error more")),
        _ => Finding::ok(check, subject, format!("no errors {in_time}. {unsaid}"))
            .saw(folder, "read twice, no error more"),
    }
}

/// Whether something was certainly counted.
const fn is_seen(growth: Growth) -> bool {
    matches!(growth, Growth::Exactly(1..) | Growth::AtLeast(1..) | Growth::Reset(1..))
}

fn words(before: &Counter, growth: Growth) -> String {
    match growth {
        Growth::Exactly(count) => format!("{count} more"),
        Growth::AtLeast(count) => format!("at least {count} more"),
        Growth::Reset(count) => {
            format!("{} at first, then reset, and {count} since", before.fact.or_reason())
        }
        Growth::Unknown => format!("at its end ({}) already, so it cannot grow", before.fact.or_reason()),
    }
}

/// How much data flowed meanwhile, and whether it is known that none did.
fn traffic<'a>(data: impl Iterator<Item = &'a (&'a Counter, Growth)>, time: Duration) -> (String, bool) {
    /// Sent and received.
    const BOTH: usize = 2;
    let mut texts = Vec::new();
    let mut is_still = true;
    for (counter, growth) in data {
        let way = if counter.name.contains("xmit") { "sent" } else { "received" };
        // Words of four bytes.
        let gigabytes = |count: u64| format!("{:.3} GB {way}", count as f64 * 4.0 / 1e9);
        is_still &= *growth == Growth::Exactly(0);
        texts.push(match *growth {
            Growth::Exactly(count) => gigabytes(count),
            Growth::AtLeast(count) => format!("at least {} (the counter is at its end)", gigabytes(count)),
            Growth::Reset(count) => format!("{} since the counter was reset", gigabytes(count)),
            Growth::Unknown => format!("nobody knows how much {way} (the counter is at its end)"),
        });
    }
    let is_idle = is_still && texts.len() >= BOTH;
    let text = match (texts.is_empty(), is_idle) {
        (true, _) => "How much data flowed is not known.".to_owned(),
        (false, false) => format!("Meanwhile: {}, in {} s.", texts.join(", "), time.as_secs_f64()),
        (false, true) => "No data flowed meanwhile.".to_owned(),
    };
    (text, is_idle)
}
