//! Which cards and RDMA devices there are, and whether their drivers are.

use kaeru_common::host::{Kind, NetDev, PciDevice, RdmaDevice};

use super::finding::Finding;
use super::{MORE_MODULES, PACKAGES, Patient, load_modules};

/// The number of Ethernet among the kinds of interfaces.
const ETHERNET: u64 = 1;

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let host = &patient.host;
    let mut findings = Vec::new();
    if host.cards.is_empty() {
        findings.push(no_card(patient));
    }
    findings.extend(host.cards.iter().map(|card| driver(patient, card)));
    let is_shown = |device: &&RdmaDevice| {
        device.card().is_none_or(|pci| host.cards.iter().all(|card| card.path != pci.path))
    };
    findings.extend(host.rdma.iter().filter(is_shown).map(device));
    if !host.rdma.is_empty() {
        findings.push(modules(patient));
    }
    findings
}

/// No card of ours on PCI.
fn no_card(patient: &Patient) -> Finding {
    let where_looked = ("/sys/bus/pci/devices/*/vendor", "no network card with 0x15b3");
    if !patient.host.rdma.is_empty() {
        return Finding::ok("card", "", "no Mellanox/NVIDIA card on PCI; there is another RDMA device")
            .saw(where_looked.0, where_looked.1);
    }
    let finding = Finding::warn("card", "", "no Mellanox/NVIDIA card on PCI, and no RDMA device")
        .saw(where_looked.0, where_looked.1)
        .saw("/sys/class/infiniband", "no device")
        .stops_rdma()
        .means("Without RDMA, Kaeru carries everything over TCP. That works, and is slower than a card.")
        .todo(
            "If there is a card in this machine: reseat it, try another slot, and look for \"above 4G decoding\" in \
             the BIOS. This must show it:",
            &["lspci -nn | grep -i mellanox"],
        );
    let add = format!("sudo rdma link add rxe0 type rxe netdev {}", fit_for_software(patient));
    let commands = ["sudo modprobe rdma_rxe", &add];
    match patient.host.software.kernel_has("rdma_rxe") {
        Some(true) => {
            finding.todo("If there is none, the kernel can do RDMA in software, to try things out:", &commands)
        }
        Some(false) => finding
            .saw("/lib/modules/*/modules.dep, modules.builtin", "no rdma_rxe")
            .todo(
                format!("This kernel cannot do RDMA in software either: it has no rdma_rxe. {}", MORE_MODULES.0),
                &[MORE_MODULES.1],
            ),
        None => finding.todo(
            "If there is none: kernels that have the module rdma_rxe can do RDMA in software, to try things out:",
            &commands,
        ),
    }
}

/// The interface that Soft-RoCE would best sit on: Ethernet with a card, and with an address.
fn fit_for_software(patient: &Patient) -> &str {
    let devices = patient.host.network.devices.iter().filter(|netdev| netdev.kind.number() == Some(ETHERNET));
    let fitness = |netdev: &&NetDev| (!netdev.addresses.is_empty(), netdev.pci_path.is_some());
    // The first one of several that are alike.
    devices.rev().max_by_key(fitness).map_or("INTERFACE", |netdev| netdev.name.as_str())
}

/// A card has an RDMA device, or the driver for it is missing.
fn driver(patient: &Patient, card: &PciDevice) -> Finding {
    let subject = card.address.as_str();
    let found: Vec<&str> = patient
        .host
        .rdma
        .iter()
        .filter(|device| device.card().is_some_and(|pci| pci.path == card.path))
        .map(|device| device.name.as_str())
        .collect();
    let described = |finding: Finding| finding.read(&card.vendor).read(&card.device);
    let driver = card.driver.as_deref().unwrap_or("none");
    if !found.is_empty() {
        let title = format!("{}, driver {driver}, RDMA device {}", card.name(), found.join(", "));
        return described(Finding::ok("driver", subject, title));
    }
    let software = &patient.host.software;
    let Some(module) = card.rdma_module() else {
        let title = format!("{} has no RDMA device; this program knows no driver for it", card.name());
        return described(Finding::warn("driver", subject, title))
            .todo("What the kernel knows of it:", &[&format!("lspci -nnk -s {subject}")]);
    };
    let core = module.replace("_ib", "_core");
    let loaded = |name: &str| if software.has_module(name) { "loaded" } else { "not loaded" };
    let is_loaded = card.driver.is_some() && software.has_module(module);
    let title = match is_loaded {
        true => format!("{} has no RDMA device although {module} is loaded", card.name()),
        false => format!("{} is there, but the RDMA driver for it is not", card.name()),
    };
    let finding = described(Finding::fail("driver", subject, title))
        .stops_rdma()
        .saw(format!("{}/driver", card.path), driver)
        .saw(format!("/sys/module/{core}"), loaded(&core))
        .saw(format!("/sys/module/{module}"), loaded(module))
        .saw("/sys/class/infiniband", "no device of this card");
    if is_loaded {
        return finding
            .means("The driver found the card and made no RDMA device of it. The kernel's log may say why.")
            .todo("Read what it says:", &[&format!("sudo dmesg | grep -e {core} -e {module}")]);
    }
    if software.kernel_has(module) == Some(false) {
        return finding
            .saw("/lib/modules/*/modules.dep, modules.builtin", format!("no {module}"))
            .means(format!("This kernel has no {module}."))
            .todo(MORE_MODULES.0, &[MORE_MODULES.1]);
    }
    let load = load_modules(module);
    if card.driver.is_none() {
        return finding.means("No driver has taken the card at all. The kernel's log may say why.").todo(
            "Load the driver, read what it says, and load the rest:",
            &[&format!("sudo modprobe {core}"), &format!("sudo dmesg | grep {core}"), PACKAGES, &load],
        );
    }
    finding
        .means(format!(
            "{driver} makes the card a network card. Its RDMA half is {module}, which the kernel loads by itself only \
             where the package rdma-core is installed."
        ))
        .todo("Install it and load the rest:", &[PACKAGES, &load])
}

/// What an RDMA device is.
fn device(device: &RdmaDevice) -> Finding {
    let (check, subject) = ("device", device.name.as_str());
    match device.kind() {
        Kind::SoftRoce => Finding::note(
            check,
            subject,
            format!("Soft-RoCE on {}: software RDMA: figures are not a card's", device.parent.or_reason()),
        )
        .read(&device.parent)
        .means("The kernel does in software what a card does. It is good for trying things out, and slower than a card."),
        Kind::SoftIwarp => Finding::note(
            check,
            subject,
            "iWARP without a card on PCI: software RDMA: figures are not a card's",
        )
        .read(&device.node_type)
        .means("Kaeru was never tried with iWARP."),
        Kind::Unknown => Finding::note(check, subject, "an RDMA device without a card on PCI")
            .read(&device.parent)
            .read(&device.node_type),
        Kind::Card => Finding::ok(check, subject, device.what()),
    }
}

/// The modules that programs need to reach a device.
fn modules(patient: &Patient) -> Finding {
    let software = &patient.host.software;
    let wanted = [("ib_uverbs", "uverbs"), ("rdma_ucm", "rdma_cm")];
    // A driver that is built into the kernel is no module, but its device files are there.
    let has_files = patient.host.rdma.iter().any(|device| device.verbs.is_some());
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(module, file)| {
            let by_file = if *file == "uverbs" { has_files } else { software.rdma_cm_file.is_some() };
            !software.has_module(module) && !by_file
        })
        .map(|(module, _)| *module)
        .collect();
    if missing.is_empty() {
        return Finding::ok("modules", "", "the modules by which programs reach RDMA devices are loaded")
            .saw("/sys/module", "ib_uverbs, rdma_ucm");
    }
    Finding::fail("modules", "", format!("{} not loaded", missing.join(" and ")))
        .stops_rdma()
        .saw("/sys/module", format!("no {}", missing.join(", no ")))
        .means("Without them no program can reach an RDMA device, whatever the card can do.")
        .todo(
            "Load them; the package rdma-core does so at every boot:",
            &[PACKAGES, &format!("sudo modprobe -a {}", missing.join(" "))],
        )
}
