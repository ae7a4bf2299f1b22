//! Firmware, its owner, and the numbers that it keeps.

use kaeru_common::host::{Family, Kind, PciDevice, RdmaDevice};

use super::Patient;
use super::finding::Finding;

/// The last firmware of ConnectX-3 and ConnectX-3 Pro, of September 2017.
const LAST: [u32; 3] = [2, 42, 5000];
/// The oldest that mstconfig can ask.
const ASKABLE: [u32; 3] = [2, 31, 5000];
/// The first mstflint that does not know ConnectX-3.
const FORGETFUL: [u32; 2] = [4, 26];
/// Where the older ones are.
const RELEASES: &str = "https://github.com/Mellanox/mstflint/releases";

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &patient.host.rdma {
        findings.push(guids(patient, device));
        if let Some(card) = device.card() {
            findings.push(firmware(patient, device, card));
        }
    }
    findings.extend(mstflint(patient));
    findings
}

/// The numbers by which a device is known in the fabric.
fn guids(patient: &Patient, device: &RdmaDevice) -> Finding {
    let (check, subject) = ("guid", device.name.as_str());
    let (node, image) = (&device.node_guid, &device.image_guid);
    if node.is_zero() || image.is_zero() {
        let finding = Finding::fail(check, subject, "its GUID is zero").stops_rdma().read(node).read(image).means(
            "The firmware has lost the number that tells this card from all others, which is usual after another \
             maker's firmware was written. Subnet managers and connections need it.",
        );
        let Some(card) = device.card() else { return finding };
        if card.is_virtual() {
            return finding.todo(
                "This is a virtual function: the machine that has the card gives it its GUID. Look there.",
                &[],
            );
        }
        let address = &card.address;
        return mind_mstflint(patient, card, finding).todo(
            "Write it back; the numbers are on the card's label, or in what you noted before. Then switch the machine \
             off and on:",
            &[
                &format!("sudo mstflint -d {address} q"),
                &format!("sudo mstflint -d {address} -guid 0xGUID -mac 0xMAC sg"),
            ],
        );
    }
    match node.get() {
        Some(guid) => Finding::ok(check, subject, format!("GUID {guid}")).read(node).read(image),
        None => Finding::note(check, subject, "its GUID cannot be read").read(node).read(image),
    }
}

/// The version of a card's firmware, judged where we know what the last one is.
fn firmware(patient: &Patient, device: &RdmaDevice, card: &PciDevice) -> Finding {
    let (check, subject) = ("firmware", device.name.as_str());
    let described = |finding: Finding| finding.read(&device.firmware).read(&device.psid);
    let version = device.firmware.or_reason();
    let psid = device.psid.or_reason();
    if card.is_virtual() {
        return described(Finding::ok(check, subject, format!("firmware {version}, PSID {psid}")))
            .means("This is a virtual function. The firmware belongs to the machine that has the card.");
    }
    if !matches!(card.family(), Family::ConnectX3 | Family::ConnectX3Pro) {
        let title = format!("firmware {version}, PSID {psid}");
        return described(Finding::ok(check, subject, title))
            .means("Whether that is the newest for this card is not known here.");
    }
    let Some(numbers) = device.version() else {
        return described(Finding::note(check, subject, "the firmware's version cannot be read"));
    };
    let address = &card.address;
    let backup = [
        format!("sudo mstflint -d {address} q full"),
        format!("sudo mstflint -d {address} ri backup-{}.bin", address.replace(':', "-")),
    ];
    let backup: Vec<&str> = backup.iter().map(String::as_str).collect();
    let burn = format!("sudo mstflint -d {address} -i IMAGE.bin burn");
    if !psid.starts_with("MT_") {
        let title = match device.psid.get() {
            Some(psid) => format!("firmware {version} of another maker (PSID {psid})"),
            None => format!("firmware {version}; whose it is cannot be read"),
        };
        let old = numbers.as_slice() < &ASKABLE;
        let finding = described(Finding::note(check, subject, title));
        return mind_mstflint(patient, card, finding)
            .means(format!(
                "Makers number their firmware by themselves, so that Mellanox's last one is 2.42.5000 says little \
                 here.{}",
                if old { " But mstconfig cannot ask one before 2.31.5000." } else { "" }
            ))
            .todo(
                "Flash last, only if all else is right. Take the maker's file for exactly this PSID, not Mellanox's: that can lock \
                 ports to Ethernet, and zero the GUIDs. Make a copy first:",
                &backup,
            );
    }
    if numbers.as_slice() >= &LAST {
        let image = device.image().map_or_else(String::new, |(image, _)| format!(" ({image})"));
        let title = format!("firmware {version} is the last one; PSID {psid}{image}");
        return described(Finding::ok(check, subject, title));
    }
    if device.image() == Some(("MCX353A-QCA_A1-A2", false)) {
        return described(Finding::note(check, subject, format!("firmware {version} on an early card")))
            .means(
                "Cards with this PSID are known to refuse 2.42.5000: their chip is a first revision. Do not force it.",
            );
    }
    let exact = match device.image() {
        Some((image, _)) => format!("The image for this PSID is {image}."),
        None => "Take the image for exactly this PSID.".to_owned(),
    };
    let why = match numbers.as_slice() < &ASKABLE {
        true => "It is so old that mstconfig cannot even ask it for its settings.",
        false => "The last one is of September 2017.",
    };
    let title = format!("firmware {version} is old; the last one is 2.42.5000");
    let finding = described(Finding::note(check, subject, title)).means(format!("{why} {exact}"));
    mind_mstflint(patient, card, finding)
        .todo(
            "Flash last, only if all else is right. Make a copy of what is there, and note the GUIDs:",
            &backup,
        )
        .todo("Then write the new one, and switch the machine off and on:", &[&burn])
}

/// Cards that new versions of mstflint have forgotten.
fn is_forgotten(card: &PciDevice) -> bool {
    matches!(card.family(), Family::ConnectX3 | Family::ConnectX3Pro) && !card.is_virtual()
}

/// Says before advice that uses mstflint which one it takes.
pub(super) fn mind_mstflint(patient: &Patient, card: &PciDevice, finding: Finding) -> Finding {
    let version = patient.aside.mstflint.get().and_then(version_in);
    let text = match version {
        _ if !is_forgotten(card) => return finding,
        Some(version) if version < FORGETFUL => return finding,
        Some([major, minor]) => format!("The mstflint here, {major}.{minor}, does not know this card."),
        None => "mstflint knows this card up to version 4.25 only; look at what apt brings.".to_owned(),
    };
    finding.todo(format!("{text} Version 4.25 is at {RELEASES}"), &[])
}

/// New versions of mstflint have forgotten ConnectX-3.
fn mstflint(patient: &Patient) -> Option<Finding> {
    let fact = &patient.aside.mstflint;
    let has_card = patient.host.cards.iter().any(is_forgotten)
        || patient
            .host
            .rdma
            .iter()
            .any(|device| device.kind() == Kind::Card && device.card().is_some_and(is_forgotten));
    let said = fact.get().filter(|_| has_card)?;
    let check = "mstflint";
    Some(match version_in(said) {
        None => Finding::note(check, "", "mstflint does not tell its version").read(fact),
        Some(version) if version >= FORGETFUL => Finding::note(
            check,
            "",
            format!("mstflint {}.{} does not know ConnectX-3", version[0], version[1]),
        )
        .read(fact)
        .means("From 4.26 on it says \"Unsupported device\" for these cards, on purpose.")
        .todo(format!("If it is needed, take 4.25: {RELEASES}"), &[]),
        Some(version) => {
            Finding::ok(check, "", format!("mstflint {}.{} knows ConnectX-3", version[0], version[1]))
                .read(fact)
        }
    })
}

/// The first two numbers of the first word that looks like a version.
fn version_in(text: &str) -> Option<[u32; 2]> {
    text.split(|c: char| c.is_whitespace() || c == ',').find_map(|word| {
        let mut numbers = word.split(['.', '-']).map(|part| part.parse::<u32>().ok());
        Some([numbers.next()??, numbers.next()??])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_mstflint_are_found() {
        for (text, version) in [
            ("mstflint, mstflint 4.21.0, Git SHA Hash: 6c9d9e0", Some([4, 21])),
            ("flint, mstflint 4.26.0-1, built on Nov 2023", Some([4, 26])),
            ("4.9", Some([4, 9])),
            ("", None),
            ("mstflint x.y", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }
}
