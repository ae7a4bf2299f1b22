//! Whether programs of this user can open the devices.

use kaeru_common::host::{Kind, RdmaDevice};

use super::finding::{Finding, Level};
use super::{PACKAGES, Patient};

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for device in &patient.host.rdma {
        findings.push(device_file(device));
        findings.push(provider(patient, device));
    }
    if !patient.host.rdma.is_empty() {
        findings.push(connection_file(patient));
    }
    for finding in &mut findings {
        finding.stops_rdma = finding.level == Level::Fail;
    }
    findings
}

const RULES: &str =
    "Usual rights are crw-rw-rw-. In a container, pass the folder on (docker: --device /dev/infiniband).";

/// The device file of one device.
fn device_file(device: &RdmaDevice) -> Finding {
    let (check, subject) = ("device-file", device.name.as_str());
    let Some(verbs) = &device.verbs else {
        return Finding::fail(check, subject, "no device file for programs")
            .saw("/sys/class/infiniband_verbs/uverbs*/ibdev", format!("none says {subject}"))
            .means("The module ib_uverbs makes it.")
            .todo("Load it:", &["sudo modprobe ib_uverbs"]);
    };
    let path = format!("/dev/infiniband/{verbs}");
    match device.verbs_file {
        Some(true) => {
            Finding::ok(check, subject, format!("{path} may be used")).saw(path, "readable and writable")
        }
        Some(false) => Finding::fail(check, subject, format!("this user may not use {path}"))
            .saw(&path, "not readable and writable for this user")
            .means(RULES)
            .todo("See whose it is; run as root once, or mend the udev rule:", &[&format!("ls -l {path}")]),
        None => Finding::fail(check, subject, format!("{path} is not there"))
            .saw(&path, "not there")
            .means(format!("The kernel has made the device, but its file is missing. {RULES}"))
            .todo("Let udev make it:", &["sudo udevadm trigger --subsystem-match=infiniband_verbs"]),
    }
}

/// The file by which connections are made.
fn connection_file(patient: &Patient) -> Finding {
    let (check, path) = ("connection-file", "/dev/infiniband/rdma_cm");
    match patient.host.software.rdma_cm_file {
        Some(true) => {
            Finding::ok(check, "", format!("{path} may be used")).saw(path, "readable and writable")
        }
        Some(false) => Finding::fail(check, "", format!("this user may not use {path}"))
            .saw(path, "not readable and writable for this user")
            .means(RULES)
            .todo("See whose it is; run as root once, or mend the udev rule:", &[&format!("ls -l {path}")]),
        None => Finding::fail(check, "", format!("{path} is not there"))
            .saw(path, "not there")
            .means(format!(
                "The module rdma_ucm makes it. Without it no RDMA connection can be made. {RULES}"
            ))
            .todo("Load it:", &["sudo modprobe rdma_ucm"]),
    }
}

/// The half of the driver that lives in programs.
fn provider(patient: &Patient, device: &RdmaDevice) -> Finding {
    let (check, subject) = ("provider", device.name.as_str());
    let folder = "/etc/libibverbs.d";
    let wanted = match (device.kind(), device.pci.as_ref().and_then(|pci| pci.rdma_module())) {
        (Kind::SoftRoce, _) => Some("rxe"),
        (Kind::SoftIwarp, _) => Some("siw"),
        (_, Some(module)) => module.strip_suffix("_ib"),
        (_, None) => None,
    };
    let seen = patient.aside.library.as_ref().map(|seen| seen.contains(&device.name));
    let has_file =
        wanted.is_some_and(|wanted| patient.host.software.providers.iter().any(|name| name == wanted));
    let missing = || {
        let what = wanted.unwrap_or("its driver");
        Finding::fail(check, subject, format!("libibverbs has no driver for it ({what})"))
            .means("Programs say: \"no userspace device-specific driver\". The kernel's driver alone is not enough.")
            .todo("On Debian and Ubuntu:", &[PACKAGES])
            .todo("On Fedora and its like:", &["sudo dnf install libibverbs"])
    };
    match (seen, wanted) {
        (Some(true), _) => Finding::ok(check, subject, "libibverbs has a driver for it")
            .saw("ibv_get_device_list", "it is in the list"),
        (Some(false), Some(wanted)) => missing()
            .saw("ibv_get_device_list", "it is not in the list")
            .saw(format!("{folder}/{wanted}.driver"), if has_file { "there" } else { "not there" }),
        (Some(false), None) => missing().saw("ibv_get_device_list", "it is not in the list"),
        (None, Some(wanted)) if has_file => {
            Finding::ok(check, subject, format!("libibverbs has the driver {wanted}"))
                .saw(format!("{folder}/{wanted}.driver"), "there")
        }
        (None, Some(wanted)) => missing().saw(format!("{folder}/{wanted}.driver"), "not there"),
        (None, None) => Finding::note(check, subject, "this program knows no driver of libibverbs for it")
            .todo("This lists it if there is one:", &["ibv_devices"]),
    }
}
