//! Ports: their mode, their state, their rate.

use kaeru_common::host::{Family, PciDevice, Port, RdmaDevice};

use super::finding::{Finding, Level};
use super::{Patient, firmware, name_of};

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (device, port) in patient.ports() {
        if !port.is_active() && port.phys_state.code() != Some(5) && has_working_port(patient, device) {
            findings.push(unused(device, port));
            continue;
        }
        findings.extend(mode(patient, device, port));
        findings.push(physical(patient, device, port));
        // Without a signal there is no more to be said.
        if port.is_active() || !matches!(port.phys_state.code(), Some(1..=4 | 6)) {
            findings.push(logical(patient, device, port));
        }
        if port.is_active() {
            findings.extend(manager(device, port));
            findings.push(rate(patient, device, port));
        }
    }
    for finding in &mut findings {
        finding.stops_rdma = finding.level == Level::Fail;
    }
    findings
}

/// Whether the same card has a port that carries data. Its ports may be two functions on PCI, with a device each.
fn has_working_port(patient: &Patient, device: &RdmaDevice) -> bool {
    let is_same_card = |other: &RdmaDevice| match (device.card(), other.card()) {
        (Some(card), Some(other)) => card.place() == other.place(),
        _ => device.name == other.name,
    };
    patient.ports().any(|(other, port)| port.is_active() && is_same_card(other))
}

/// A port without a link beside one that works.
fn unused(device: &RdmaDevice, port: &Port) -> Finding {
    let why = match port.is_off() {
        true => "This one is switched off.",
        false => "If there is a cable in this one, it has no signal from the other end.",
    };
    Finding::note("unused-port", &name_of(device, port), format!("no link ({})", port.phys_state.or_reason()))
        .read(&port.state)
        .read(&port.phys_state)
        .means(format!("Another port of the card works. {why}"))
}

/// Whether a port is set to InfiniBand or Ethernet.
fn mode(patient: &Patient, device: &RdmaDevice, port: &Port) -> Option<Finding> {
    let (check, subject) = ("port-mode", name_of(device, port));
    let layer = port.link_layer.or_reason();
    let Some(mode) = &port.mode else {
        return port.link_layer.get().is_none().then(|| {
            Finding::note(check, &subject, "whether it speaks InfiniBand or Ethernet cannot be read")
                .read(&port.link_layer)
        });
    };
    let said = mode.or_reason();
    let described = |finding: Finding| finding.read(&port.link_layer).read(mode);
    // Who only borrows a part of the card cannot set its ports.
    let is_virtual = device.pci.as_ref().is_some_and(PciDevice::is_virtual);
    let set = |mode_word: &str| format!("echo {mode_word} | sudo tee {}", mode.path);
    if port.is_active() && (is_virtual || !said.starts_with("auto")) {
        return Some(described(Finding::ok(check, &subject, format!("speaks {layer} (set to {said})"))));
    }
    if port.is_active() {
        return Some(
            described(Finding::note(check, &subject, format!("speaks {layer} (set to {said})")))
                .means("The card found out by itself. ConnectX-3 is not good at that: it may choose otherwise next time.")
                .todo("Set it by hand, which holds until the driver is loaded anew:", &[&set(if port.is_infiniband() {
                    "ib"
                } else {
                    "eth"
                })]),
        );
    }
    // A port that is off would not see its like, either.
    if port.phys_state.code() == Some(5) || port.is_off() {
        return None;
    }
    let (other, word) = if port.is_infiniband() { ("Ethernet", "eth") } else { ("InfiniBand", "ib") };
    let finding = described(Finding::warn(
        check,
        &subject,
        format!("set to {layer} ({said}), and there is no link"),
    ))
    .means(format!(
        "If the other end speaks {other}, this is why: two ends in different modes never see one another."
    ));
    if is_virtual {
        let text = "This is a virtual function: its ports can be set only on the machine that has the card.";
        return Some(finding.todo(text, &[]));
    }
    let finding = finding.todo(
        format!("Only if the other end is {other} (the same file there tells), set this port to it, too:"),
        &[&set(word)],
    );
    let finding = match device.card() {
        Some(card) => firmware::mind_mstflint(patient, card, finding),
        None => finding,
    };
    Some(finding.todo(
        "To keep that beyond a restart (1 is InfiniBand, 2 Ethernet, 3 by itself):",
        &[&format!(
            "sudo mstconfig -d {} set LINK_TYPE_P{}={}",
            device.pci.as_ref().map_or("ADDRESS", |pci| pci.address.as_str()),
            port.number,
            if port.is_infiniband() { 2 } else { 1 }
        )],
    ))
}

/// Whether there is a signal.
fn physical(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let (check, subject) = ("signal", name_of(device, port));
    let said = port.phys_state.or_reason();
    let described = |finding: Finding| finding.read(&port.phys_state).read(&port.state);
    let swap = "Push the cable in until it clicks, check that the other PC is on, try another cable, then another port.";
    let up =
        patient.host.netdev_of(device, port).map(|netdev| format!("sudo ip link set {} up", netdev.name));
    match port.phys_state.code() {
        Some(5) => described(Finding::ok(check, &subject, "there is a signal")),
        Some(3) if port.is_ethernet() => {
            let finding = described(Finding::fail(check, &subject, format!("no link ({said})"))).means(
                "An Ethernet port without a link says that. The interface is not up, the cable carries no signal, or \
                 the other end is off or speaks InfiniBand.",
            );
            match &up {
                Some(up) => finding.todo("Switch the interface on:", &[up]).todo(swap, &[]),
                None => finding.todo(swap, &[]),
            }
        }
        Some(1 | 3) => described(Finding::fail(check, &subject, format!("switched off ({said})")))
            .means(
                "The port does not look for another one. A subnet manager or a program has switched it off, or the \
                 card does not accept what is plugged in.",
            )
            .todo(
                "Try another cable. Restart the subnet manager if you have told it to switch ports off. The kernel's \
                 log may say why:",
                &["sudo dmesg | grep -iE 'mlx|cable|module'"],
            ),
        Some(2) => described(Finding::fail(check, &subject, format!("no signal ({said})")))
            .means(
                "The port looks for another one and finds none: the cable is not fully in, the other PC is off, its \
                 port is set to Ethernet, or the cable is too slow or broken.",
            )
            .todo(swap, &[]),
        Some(4 | 6) => described(Finding::fail(check, &subject, format!("no stable signal ({said})")))
            .means("Both ends try to agree and do not succeed. Read it again; if it stays so, it is the cable.")
            .todo(swap, &[]),
        Some(_) => described(Finding::warn(check, &subject, format!("in an unusual state ({said})"))),
        None => described(Finding::note(check, &subject, "whether there is a signal cannot be read")),
    }
}

/// Whether the port carries data.
fn logical(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let (check, subject) = ("state", name_of(device, port));
    let said = port.state.or_reason();
    let described = |finding: Finding| finding.read(&port.state).read(&port.phys_state);
    let has_signal = port.phys_state.code() == Some(5);
    match port.state.code() {
        Some(4) => described(Finding::ok(check, &subject, "active")),
        Some(2) if port.is_infiniband() && has_signal => described(Finding::fail(
            check,
            &subject,
            "the link is up, but there is no subnet manager",
        ))
        .read(&port.sm_lid)
        .means(
            "On InfiniBand one program gives every port its address. A direct cable and an unmanaged switch have none; \
             without it the port stays like this for ever.",
        )
        .todo("Run opensm on exactly one of the PCs:", &["sudo apt install opensm", "sudo systemctl enable --now opensm"]),
        Some(2 | 3) if port.is_infiniband() && has_signal => {
            described(Finding::warn(check, &subject, format!("a subnet manager is at work on it ({said})")))
                .means("That takes a moment. If it stays so, restart the subnet manager.")
                .todo("On the PC that runs it:", &["sudo systemctl restart opensm"])
        }
        Some(1) if port.is_ethernet() && has_signal => {
            let finding = described(Finding::fail(check, &subject, "there is a signal, but the interface is down"));
            match patient.host.netdev_of(device, port) {
                Some(netdev) => {
                    finding.todo("Switch it on:", &[&format!("sudo ip link set {} up", netdev.name)])
                }
                None => finding,
            }
        }
        Some(1 | 2) => described(Finding::fail(check, &subject, format!("carries no data ({said})"))),
        Some(_) => described(Finding::warn(check, &subject, format!("in an unusual state ({said})"))),
        None => described(Finding::note(check, &subject, "its state cannot be read")),
    }
}

/// Who manages the subnet of an active InfiniBand port.
fn manager(device: &RdmaDevice, port: &Port) -> Option<Finding> {
    let (check, subject) = ("subnet-manager", name_of(device, port));
    let (ours, manager) = (port.lid.number(), port.sm_lid.number());
    if !port.is_infiniband() {
        return None;
    }
    let described = |finding: Finding| finding.read(&port.lid).read(&port.sm_lid);
    Some(match (ours, manager) {
        (Some(0), _) | (_, Some(0)) => {
            described(Finding::warn(check, &subject, "active, but an address of the subnet is zero"))
                .means("The subnet manager has gone, or is only starting.")
                .todo(
                    "See whether it runs, on the PC that should run it:",
                    &["systemctl status opensm", "sudo sminfo"],
                )
        }
        (Some(ours), Some(manager)) => {
            let who = if ours == manager { "this PC".to_owned() } else { format!("LID {manager}") };
            described(Finding::ok(check, &subject, format!("LID {ours}; the subnet manager is {who}")))
                .means("A second one does no harm: it waits until the first one is gone.")
        }
        _ => described(Finding::note(check, &subject, "its addresses in the subnet cannot be read")),
    })
}

/// How fast an active port runs.
fn rate(patient: &Patient, device: &RdmaDevice, port: &Port) -> Finding {
    let (check, subject) = ("rate", name_of(device, port));
    let netdev = patient.host.netdev_of(device, port);
    let speed = port.speed(netdev);
    let described = |finding: Finding| {
        let finding = finding.read(&port.rate).read(&port.link_layer);
        match &speed {
            Some(speed) if speed.read.path != port.rate.path => finding.read(&speed.read),
            _ => finding,
        }
    };
    let Some(speed) = &speed else {
        return described(Finding::note(check, &subject, "its rate cannot be read"));
    };
    if device.card().is_none() {
        let title = match netdev.and_then(|netdev| netdev.megabits()) {
            Some(_) => format!("its interface runs at {}", speed.name),
            None => "its interface has no speed".to_owned(),
        };
        return described(Finding::ok(check, &subject, title))
            .means("What software says as its rate is not measured.");
    }
    if port.is_ethernet() {
        return match speed.gigabits {
            56.0 => described(Finding::note(check, &subject, speed.name.as_str()))
                .means("56 Gb/s on Ethernet is an extra of Mellanox's. Some cards make errors with it under load.")
                .todo("If there are errors, take 40:", &[&format!(
                    "sudo ethtool -s {} speed 40000 autoneg off",
                    netdev.map_or("INTERFACE", |netdev| netdev.name.as_str())
                )]),
            _ => described(Finding::ok(check, &subject, speed.name.as_str())),
        };
    }
    infiniband_rate(device, port, speed.gigabits).read(&port.rate)
}

/// Whether an InfiniBand link is as fast as its card.
fn infiniband_rate(device: &RdmaDevice, port: &Port, gigabits: f64) -> Finding {
    let (check, subject) = ("rate", name_of(device, port));
    let Some(rate) = port.rate() else { return Finding::note(check, &subject, "its rate cannot be read") };
    let title = format!("{rate}: {gigabits:.1} Gb/s of data");
    let slow = |why: &str| {
        Finding::warn(check, &subject, format!("{title}, slower than the card"))
            .means(format!("{why} Usually it is the cable, or a slower card or switch at the other end."))
            .todo("Swap the cable: FDR needs one that says so. What each end can do:", &["sudo iblinkinfo"])
    };
    let family = device.pci.as_ref().map(|pci| pci.family());
    let is_fdr = device.image().map(|(_, fdr)| fdr);
    let is_connectx_3 = matches!(family, Some(Family::ConnectX3 | Family::ConnectX3Pro));
    let is_newer = |family: Family| family != Family::Other && !is_connectx_3;
    match rate.speed() {
        // HDR100, NDR200, XDR400: cards and split cables with two lanes are made on purpose.
        "HDR" | "NDR" | "XDR" if rate.lanes == 2 => Finding::note(check, &subject, title)
            .means("Two lanes are all that some cards of that speed have, and split cables. With four it would be twice as much."),
        _ if rate.lanes < 4 => slow("Only a part of the four lanes came up."),
        "SDR" | "DDR" if family.is_some_and(|family| family != Family::Other) => {
            slow("ConnectX-3 and later cards do at least QDR.")
        }
        "QDR" | "FDR10" if is_fdr == Some(true) => slow("The card can do FDR, as its PSID says."),
        "QDR" | "FDR10" if family.is_some_and(is_newer) => slow("Cards from Connect-IB on can do FDR."),
        "QDR" | "FDR10" if is_connectx_3 && is_fdr.is_none() => Finding::note(check, &subject, title).means(
            "That is the best of a QDR card; an FDR card can do 54.5 Gb/s. The end of the card's part number tells: \
             FCBT is FDR, QCBT is QDR.",
        ),
        "FDR" if matches!(family, Some(Family::ConnectX4 | Family::ConnectX5 | Family::Later)) => {
            Finding::note(check, &subject, title).means("Most cards of this kind can do EDR, 100 Gb/s.")
        }
        _ => Finding::ok(check, &subject, title),
    }
}
