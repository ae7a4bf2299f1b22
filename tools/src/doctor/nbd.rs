//! The kernel's NBD driver, which `kaeru attach` needs.

use super::Patient;
use super::finding::Finding;

/// Busy devices that are shown.
const SHOWN: usize = 8;

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    vec![driver(patient)]
}

/// A driver that is not loaded. To look for it changes nothing; only to load it does.
fn absent(patient: &Patient) -> Finding {
    let check = "nbd";
    let load = |finding: Finding| {
        finding.todo("To load it now, for disks with partitions:", &["sudo modprobe nbd max_part=16"])
    };
    let described = |title: &str| Finding::note(check, "", title).saw("/sys/module/nbd", "not there");
    match patient.host.software.kernel_has("nbd") {
        Some(true) => load(
            described("the driver of /dev/nbdN is not loaded")
                .means("The kernel has it: \"kaeru attach\" loads it. \"kaeru nbd\" does without."),
        ),
        Some(false) => described("this kernel has no driver of /dev/nbdN")
            .saw("/lib/modules/*/modules.dep, modules.builtin", "no nbd")
            .means("\"kaeru attach\" needs it. \"kaeru nbd\" does without.")
            .todo(super::MORE_MODULES.0, &[super::MORE_MODULES.1]),
        None => load(
            described("the driver of /dev/nbdN is not loaded")
                .means("\"kaeru attach\" loads it where the kernel has it. \"kaeru nbd\" does without.")
                .todo("To see whether the kernel has it:", &["/sbin/modinfo nbd"]),
        ),
    }
}

/// Whether the driver is there, and who has its devices.
fn driver(patient: &Patient) -> Finding {
    let (check, nbd) = ("nbd", &patient.host.nbd);
    if !nbd.loaded {
        return absent(patient);
    }
    let busy: Vec<_> = nbd.devices.iter().filter_map(|device| Some((device, device.pid.get()?))).collect();
    let free = nbd.devices.len() - busy.len();
    let shown = |finding: Finding| {
        busy.iter().take(SHOWN).fold(finding, |finding, (device, pid)| {
            finding.saw(&device.pid.path, format!("{} is served by process {pid}", device.name))
        })
    };
    let described = |finding: Finding| shown(finding.read(&nbd.nbds_max).read(&nbd.max_part));
    if free == 0 && !nbd.devices.is_empty() {
        return described(Finding::note(
            check,
            "",
            format!("all {} devices /dev/nbdN are in use", busy.len()),
        ))
        .means("\"kaeru attach\" makes another one.");
    }
    if nbd.max_part.number() == Some(0) {
        return described(Finding::note(check, "", "disks of /dev/nbdN can have no partitions")).todo(
            "If they should have some, with none attached:",
            &["sudo modprobe -r nbd", "sudo modprobe nbd max_part=16"],
        );
    }
    described(Finding::ok(
        check,
        "",
        format!("the driver of /dev/nbdN is loaded; {} of {} in use", busy.len(), nbd.devices.len()),
    ))
}
