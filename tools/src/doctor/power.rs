//! How the machine saves power, which costs time.

use super::Patient;
use super::finding::Finding;

/// Microseconds to wake up that one block over RDMA would notice.
const SLEEPY: u64 = 20;

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = vec![governor(patient)];
    findings.extend(sleep(patient));
    findings.extend(aspm(patient));
    findings
}

/// Who chooses the processors' frequencies.
fn governor(patient: &Patient) -> Finding {
    let (check, path) = ("governor", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor");
    let cpu = &patient.host.cpu;
    let counted: Vec<String> =
        cpu.governors.iter().map(|(name, count)| format!("{name} ({count} of {})", cpu.count)).collect();
    if counted.is_empty() {
        return Finding::note(check, "", "no processor tells who chooses its frequency")
            .saw(path, "not there")
            .means("That is usual in a virtual machine, where the host chooses.");
    }
    let only = |name: &str| cpu.governors.len() == 1 && cpu.governors.contains_key(name);
    if only("performance") {
        return Finding::ok(check, "", "all processors run as fast as they can")
            .saw(path, counted.join(", "));
    }
    Finding::warn(check, "", format!("processors save power: {}", counted.join(", ")))
        .saw(path, counted.join(", "))
        .means("Times will jump: a processor that was idle is slow at first. Measurements should not be made so.")
        .todo("Until the next start:", &["sudo cpupower frequency-set -g performance"])
}

/// How long an idle processor takes to wake up.
fn sleep(patient: &Patient) -> Option<Finding> {
    let (name, latency) = patient.host.cpu.deepest_sleep.as_ref()?;
    let (check, said) = ("sleep", format!("{} takes {latency} µs to wake up", name.or_reason()));
    let path = name.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let described = |finding: Finding| finding.saw(format!("{path}/latency"), latency.to_string());
    Some(match *latency > SLEEPY {
        true => described(Finding::note(check, "", format!("the deepest sleep of a processor, {said}")))
            .means("An answer that meets a sleeping processor waits for that. Spinning (--spin) avoids it, and costs power.")
            .todo("To forbid deeper sleep than 20 µs until the next start:", &["sudo cpupower idle-set -D 20"]),
        false => described(Finding::ok(check, "", format!("the deepest sleep of a processor, {said}"))),
    })
}

/// Whether PCI Express links sleep.
fn aspm(patient: &Patient) -> Option<Finding> {
    let cpu = &patient.host.cpu;
    let policy = cpu.aspm_policy()?;
    let check = "aspm";
    Some(match policy.contains("powersave") || policy.contains("powersupersave") {
        true => Finding::note(check, "", format!("PCI Express links save power ({policy})"))
            .read(&cpu.aspm)
            .means("Waking a link up costs some microseconds.")
            .todo(
                "Until the next start:",
                &["echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy"],
            ),
        false => Finding::ok(check, "", format!("PCI Express power saving: {policy}")).read(&cpu.aspm),
    })
}
