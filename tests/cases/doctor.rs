//! `kaeru-doctor` on recorded machines, on this one, and on files that no machine has.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kaeru_common::host::Host;
use kaeru_common::wire::HEADER_BYTES;
use kaeru_tools::doctor::report::Paint;
use kaeru_tools::doctor::report::Report;
use kaeru_tools::doctor::{Aside, Packets, Patient, Watched, examine};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::client::run_kaeru;
use crate::harness::machine::{MACHINES, plant, recordings};
use crate::harness::process::{Outcome, SOON, binary, run, run_within, scratch, tool};
use crate::harness::random::{Random, with_seeds};
use crate::harness::server::Server;
use crate::requires;

/// The number of the message that asks a server what its machine is.
const DESCRIBE: u16 = 19;

fn doctor(arguments: &[&str]) -> Outcome {
    run(Command::new(binary("kaeru-doctor")).args(arguments))
}

/// What it says about the files in a folder, and its exit status.
fn about(folder: &Path, arguments: &[&str]) -> Outcome {
    doctor(&[&["--root", folder.to_str().unwrap()], arguments].concat())
}

/// The whole text about a recorded machine is the one beside it. `KAERU_BLESS=1` writes it anew.
#[track_caller]
fn is_as_expected(name: &str, status: i32) {
    let folder = plant(name);
    let said = about(folder.path(), &[]);
    assert_eq!(said.code, Some(status), "{said:?}");
    assert_eq!(said.err, "");
    let beside = recordings().join(name).with_extension("txt");
    if std::env::var_os("KAERU_BLESS").is_some() {
        fs::write(&beside, &said.out).unwrap();
    }
    let expected = fs::read_to_string(&beside).unwrap();
    assert!(said.out == expected, "{name} is not as in {}:\n{}", beside.display(), said.out);
}

macro_rules! machines {
    ($($test:ident $name:literal $status:literal;)*) => {
        $(#[test]
        fn $test() {
            is_as_expected($name, $status);
        })*

        #[test]
        fn every_recorded_machine_has_a_test() {
            let mut found: Vec<String> = fs::read_dir(recordings())
                .unwrap()
                .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".txt").map(str::to_owned))
                .collect();
            found.sort();
            assert_eq!(found, MACHINES);
            let mut tested = vec![$($name),*];
            tested.sort();
            assert_eq!(tested, MACHINES);
        }
    };
}

machines! {
    a_healthy_pair_gets_no_advice "healthy-fdr-pair" 0;
    a_missing_subnet_manager_is_named "no-subnet-manager" 2;
    a_port_in_the_wrong_mode_is_named "wrong-port-mode" 2;
    a_slow_slot_is_named_with_what_it_costs "gen2-x4-slot" 1;
    a_bad_cable_is_named "bad-cable" 1;
    a_lost_guid_is_named "zero-guid" 2;
    the_firmware_of_another_maker_is_left_alone "oem-firmware" 0;
    a_small_memlock_is_named "memlock-64k" 2;
    a_machine_without_a_card_is_told_what_it_can_do "no-card" 1;
    a_driver_that_is_half_there_is_named "half-loaded-driver" 2;
    soft_roce_is_called_software "soft-roce" 0;
    a_card_that_data_cannot_use_is_named "roce-40g" 2;
    a_connectx_4_in_a_narrow_slot_is_examined "connectx-4" 1;
    a_hot_connectx_5_is_examined "connectx-5" 1;
}

#[test]
fn json_says_the_same() {
    for &name in MACHINES {
        let folder = plant(name);
        let (text, json) = (about(folder.path(), &[]), about(folder.path(), &["--json"]));
        assert_eq!(text.code, json.code, "{name}");
        let value: Value = serde_json::from_str(&json.out).unwrap();
        let findings = value["findings"].as_array().unwrap();
        let of = |level: &str| findings.iter().filter(|finding| finding["level"] == level).count();
        let level = ["ok", "note", "warn", "fail"].into_iter().rfind(|level| of(level) > 0).unwrap();
        assert_eq!(value["level"], level, "{name}");
        for level in ["ok", "note", "warn", "fail"] {
            assert_eq!(value["counts"][level], of(level), "{name}");
        }
        for finding in findings {
            for field in ["check", "title", "section"] {
                assert!(!finding[field].as_str().unwrap().is_empty(), "{name}: {finding}");
            }
            let is_bad = finding["level"] == "warn" || finding["level"] == "fail";
            let (read, todo) = (finding["read"].as_array().unwrap(), finding["todo"].as_array().unwrap());
            assert!(!is_bad || !read.is_empty() && !todo.is_empty(), "{name} gives no advice: {finding}");
        }
    }
}

#[test]
fn ceilings_are_computed_from_what_was_read() {
    for (name, link, pcie, binds) in [
        ("healthy-fdr-pair", Some(6.818), 7.877, Some("link")),
        ("gen2-x4-slot", Some(6.818), 2.0, Some("pcie")),
        ("bad-cable", Some(4.0), 7.877, Some("link")),
        ("roce-40g", Some(5.0), 7.877, Some("link")),
        ("connectx-4", Some(6.818), 3.938, Some("pcie")),
        ("connectx-5", Some(12.5), 15.754, Some("link")),
        ("no-subnet-manager", None, 7.877, None),
    ] {
        let folder = plant(name);
        let value: Value = serde_json::from_str(&about(folder.path(), &["--json"]).out).unwrap();
        let ceiling = &value["ceilings"][0];
        assert_eq!(ceiling["link_gigabytes"].as_f64(), link, "{name}: {ceiling}");
        assert_eq!(ceiling["pcie_gigabytes"].as_f64(), Some(pcie), "{name}: {ceiling}");
        assert_eq!(ceiling["binds"].as_str(), binds, "{name}: {ceiling}");
        assert_eq!(ceiling["at_most_gigabytes"].as_f64(), link.map(|link: f64| link.min(pcie)), "{name}");
    }
}

/// The card of recorded machines, its RDMA device, and that one's port.
const CARD: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0";
const DEVICE: &str = "sys/class/infiniband/ibp2s0";
const PORT: &str = "sys/class/infiniband/ibp2s0/ports/1";

/// A machine that somebody watched for ten seconds, while something happened to it.
fn watched(folder: &Path, meanwhile: impl FnOnce()) -> Patient {
    let earlier = Host::read(folder).rdma;
    meanwhile();
    let host = Host::read(folder);
    let aside = Aside::ask(&host);
    Patient { host, aside, watched: Some(Watched { time: Duration::from_secs(10), earlier }), export: None }
}

/// Whether a report has a finding that begins so.
fn says(report: &Report, text: &str) -> bool {
    report.findings.iter().any(|finding| {
        let subject =
            if finding.subject.is_empty() { String::new() } else { format!("{}: ", finding.subject) };
        format!("{} {subject}{}", finding.level.word(), finding.title).starts_with(text)
    })
}

/// What a report says of one check.
fn finding(patient: &Patient, check: &str) -> (String, String) {
    let report = examine(patient);
    let finding = report.findings.iter().find(|finding| finding.check == check).unwrap();
    let read: Vec<String> = finding.read.iter().map(|reading| reading.value.clone()).collect();
    (format!("{} {} {}", finding.level.word(), finding.title, finding.means), read.join("; "))
}

#[test]
fn a_watch_shows_what_was_added_and_says_at_least_where_a_counter_stuck() {
    let folder = plant("healthy-fdr-pair");
    let counters = |values: &[(&str, &str)]| {
        for (name, value) in values {
            fs::write(folder.path().join(PORT).join("counters").join(name), value).unwrap();
        }
    };
    let watch = |before: &[(&str, &str)], after: &[(&str, &str)]| {
        counters(before);
        finding(&watched(folder.path(), || counters(after)), "errors-added")
    };
    let data = ("port_xmit_data", "0");
    let (title, read) = watch(
        &[("symbol_error", "65000"), ("link_downed", "3"), data],
        &[("symbol_error", "65535"), ("link_downed", "4"), ("port_xmit_data", "2500000000")],
    );
    assert!(title.starts_with("WARN bits were lost in 10 s") && title.contains("10.000 GB sent"), "{title}");
    assert!(read.contains("at least 535 more") && read.contains("1 more"), "{read}");
    let (title, read) = watch(&[("symbol_error", "65535"), ("link_downed", "0")], &[]);
    assert!(title.contains("nobody can see whether it grows"), "{title}");
    assert!(read.contains("at its end (65535) already"), "{read}");
    let (title, _) = watch(&[("symbol_error", "0")], &[]);
    assert!(title.starts_with("ok no errors in 10 s. No data flowed"), "{title}");
    let (title, _) = watch(&[data], &[("port_xmit_data", "4294967295")]);
    assert!(title.contains("at least 17.180 GB sent"), "{title}");
    let (title, _) = watch(&[("port_xmit_discards", "1")], &[("port_xmit_discards", "9")]);
    assert!(title.starts_with("note packets were dropped"), "{title}");
    // A counter that is less than before was reset, by whoever watches with another program.
    let (title, read) = watch(&[("symbol_error", "5"), ("port_xmit_data", "9")], &[("symbol_error", "0")]);
    assert!(title.starts_with("note counters were reset in 10 s") && !title.contains("at least"), "{title}");
    assert_eq!(read, "5 at first, then reset, and 0 since");
    let (title, read) =
        watch(&[("symbol_error", "65535")], &[("symbol_error", "2"), ("port_xmit_data", "0")]);
    assert!(title.starts_with("WARN bits were lost"), "{title}");
    assert!(title.contains("0.000 GB sent since the counter was reset"), "{title}");
    assert_eq!(read, "65535 at first, then reset, and 2 since");
}

#[test]
fn a_watch_says_what_it_cannot_see_any_more() {
    let device = "sys/class/infiniband/ibp2s0";
    let change = |change: &dyn Fn(&Path)| {
        let folder = plant("healthy-fdr-pair");
        examine(&watched(folder.path(), || change(folder.path())))
    };
    let write =
        |folder: &Path, file: &str, text: &str| fs::write(folder.join(PORT).join(file), text).unwrap();

    let report = change(&|folder| fs::remove_dir_all(folder.join(PORT).join("counters")).unwrap());
    assert!(says(&report, "WARN ibp2s0 port 1: error counters went away in 10 s"), "{report:?}");
    let report = change(&|folder| write(folder, "counters/symbol_error", "N/A (no PMA)"));
    assert!(says(&report, "WARN ibp2s0 port 1: error counters went away in 10 s"), "{report:?}");

    let report = change(&|folder| fs::remove_file(folder.join(device)).unwrap());
    assert!(says(&report, "FAIL ibp2s0: was there, and went away in 10 s"), "{report:?}");
    assert!(says(&report, "FAIL 0000:02:00.0: ConnectX-3"), "{report:?}");
    let report = change(&|folder| fs::remove_dir_all(folder.join(PORT)).unwrap());
    assert!(says(&report, "FAIL ibp2s0 port 1: was there, and went away in 10 s"), "{report:?}");

    let report = change(&|folder| {
        write(folder, "state", "1: DOWN");
        write(folder, "phys_state", "2: Polling");
    });
    assert!(says(&report, "FAIL ibp2s0 port 1: was active, and went down in 10 s"), "{report:?}");
    assert!(says(&report, "FAIL ibp2s0 port 1: no signal (2: Polling)"), "{report:?}");
    assert!(!says(&report, "ok ibp2s0 port 1: active"), "{report:?}");
    let report = change(&|folder| write(folder, "rate", "40 Gb/sec (4X QDR)"));
    assert!(says(&report, "WARN ibp2s0 port 1: changed its rate in 10 s"), "{report:?}");

    // What could never be read is not taken for zero.
    let folder = plant("healthy-fdr-pair");
    write(folder.path(), "counters/symbol_error", "N/A (no PMA)");
    let report = examine(&watched(folder.path(), || {}));
    assert!(
        says(&report, "note ibp2s0 port 1: no errors in 10 s in those counters that can be read"),
        "{report:?}"
    );
    let said = about(folder.path(), &[]).success();
    assert!(said.contains("all error counters that can be read are zero"), "{said}");
}

#[test]
fn a_dead_port_is_excused_only_by_another_one_of_its_card() {
    let folder = plant("healthy-fdr-pair");
    let root = folder.path();
    let down = |port: &Path| {
        fs::write(port.join("state"), "1: DOWN\n").unwrap();
        fs::write(port.join("phys_state"), "2: Polling\n").unwrap();
    };
    let second = |card: &str, device: &str| {
        let place = root.join("sys/devices/pci0000:00/0000:00:01.0").join(card);
        fs::create_dir_all(&place).unwrap();
        copy(&root.join(CARD), &place);
        fs::rename(place.join("infiniband/ibp2s0"), place.join("infiniband").join(device)).unwrap();
        let link = place.join("infiniband").join(device).join("device");
        fs::remove_file(&link).unwrap();
        symlink(format!("../../../{card}"), link).unwrap();
        let target = format!("../../devices/pci0000:00/0000:00:01.0/{card}/infiniband/{device}");
        symlink(target, root.join("sys/class/infiniband").join(device)).unwrap();
    };
    second("0000:03:00.0", "ibp3s0");
    second("0000:02:00.1", "ibp2s0f1");
    down(&root.join(PORT));
    // The second function of this card works: a port that nobody uses.
    let said = about(root, &[]);
    assert!(said.out.contains("note  ibp2s0 port 1: no link (2: Polling)"), "{said:?}");
    // The other card goes on working, and that is no excuse.
    fs::remove_file(root.join("sys/class/infiniband/ibp2s0f1")).unwrap();
    let said = about(root, &["--verbose"]);
    assert!(said.out.contains("FAIL  ibp2s0 port 1: no signal (2: Polling)"), "{said:?}");
    assert!(said.out.contains("ok    ibp3s0 port 1: active"), "{said:?}");
}

#[test]
fn a_port_that_is_switched_off_looks_for_nobody() {
    let folder = plant("no-subnet-manager");
    fs::write(folder.path().join(PORT).join("state"), "1: DOWN\n").unwrap();
    fs::write(folder.path().join(PORT).join("phys_state"), "3: Disabled\n").unwrap();
    let said = about(folder.path(), &[]);
    assert!(said.out.contains("FAIL  ibp2s0 port 1: switched off (3: Disabled)"), "{said:?}");
    assert!(!said.out.contains("finds none") && !said.out.contains("Ethernet"), "{said:?}");
}

#[test]
fn firewalls_are_opened_on_the_interface_of_the_fabric_alone() {
    let folder = plant("roce-40g");
    let conf = folder.path().join("etc/ufw/ufw.conf");
    let nft = about(folder.path(), &[]);
    fs::write(&conf, "ENABLED=no\n").unwrap();
    let said = about(folder.path(), &[]);
    for way in ["udp dport 4791", "tcp dport 17420"] {
        let rule = format!("sudo nft insert rule inet filter input iifname enp2s0 {way} accept");
        assert!(said.out.contains(&rule), "{rule}: {said:?}");
    }
    assert!(nft.out.contains("sudo ufw allow in on enp2s0 to any port 4791 proto udp\n"), "{nft:?}");
    let services = folder.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&services).unwrap();
    symlink("/usr/lib/systemd/system/firewalld.service", services.join("firewalld.service")).unwrap();
    let said = about(folder.path(), &[]);
    let trust = "sudo firewall-cmd --permanent --zone=trusted --change-interface=enp2s0\n";
    assert!(said.out.contains(trust), "{said:?}");
    // InfiniBand itself passes no firewall, but what leads to it comes by IP.
    let folder = plant("healthy-fdr-pair");
    fs::create_dir_all(folder.path().join("etc/ufw")).unwrap();
    fs::write(folder.path().join("etc/ufw/ufw.conf"), "ENABLED=yes\n").unwrap();
    let said = about(folder.path(), &[]).success();
    assert!(said.contains("sudo ufw allow in on ib0 to any port 17420 proto tcp\n"), "{said}");
    assert!(!said.contains("4791"), "{said}");
}

#[test]
fn the_worst_comes_first_and_in_short_at_the_end() {
    let rank = |line: &str| match line.trim_start().get(..6) {
        Some("FAIL  ") => Some(0),
        Some("WARN  ") => Some(1),
        Some("note  ") => Some(2),
        Some("ok    ") => Some(3),
        _ => None,
    };
    for &name in MACHINES {
        let folder = plant(name);
        let said = about(folder.path(), &[]).out;
        let (text, end) = said.trim_end().rsplit_once("\n\n").unwrap();
        let ranks: Vec<i32> = text.lines().filter_map(rank).collect();
        assert!(ranks.is_sorted(), "{name}: {said}");
        let repeated: Vec<i32> = end.lines().filter_map(rank).collect();
        let bad: Vec<i32> = ranks.into_iter().filter(|rank| *rank < 2).collect();
        assert_eq!((repeated.len(), &repeated), (end.lines().count() - 1, &bad), "{name}: {said}");
        // What is ok is counted, and told with -v.
        let all = about(folder.path(), &["-v"]).out;
        let value: Value = serde_json::from_str(&about(folder.path(), &["--json"]).out).unwrap();
        let ok = all.lines().filter(|line| line.starts_with("  ok    ")).count();
        assert_eq!(value["counts"]["ok"], ok, "{name}: {all}");
        assert!(said.contains("ok; -v lists them") && !all.contains("lists them"), "{name}: {said}");
    }
}

#[test]
fn a_ceiling_of_a_way_that_data_does_not_take_is_not_ok() {
    let ceiling = |root: &Path| {
        let value: Value = serde_json::from_str(&about(root, &["--json"]).out).unwrap();
        let findings = value["findings"].as_array().unwrap();
        let ceiling = findings.iter().find(|finding| finding["check"] == "ceiling").unwrap();
        (ceiling["level"].as_str().unwrap().to_owned(), ceiling["title"].as_str().unwrap().to_owned())
    };
    for (name, level, title) in [
        ("healthy-fdr-pair", "ok", "at most 6.8 GB/s: the link binds"),
        ("roce-40g", "note", "at most 5.0 GB/s, but data goes over TCP: see \"ibp2s0 port 1: no IPv4"),
        ("memlock-64k", "note", "at most 6.8 GB/s, but data goes over TCP: see \"this user may lock only"),
        ("zero-guid", "note", "at most 6.8 GB/s, but data goes over TCP: see \"ibp2s0: its GUID is zero"),
    ] {
        let said = ceiling(plant(name).path());
        assert!(said.0 == level && said.1.starts_with(title), "{name}: {said:?}");
    }
}

#[test]
fn a_program_that_is_not_there_is_installed_first() {
    let folder = plant("bad-cable");
    let install = "sudo apt install infiniband-diags\n";
    let said = about(folder.path(), &[]);
    assert!(said.out.contains(&format!("{install}            sudo perfquery -C ibp2s0 -P 1 -R")), "{said:?}");
    fs::create_dir_all(folder.path().join("usr/sbin")).unwrap();
    for tool in ["perfquery", "iblinkinfo"] {
        fs::write(folder.path().join("usr/sbin").join(tool), "").unwrap();
    }
    let said = about(folder.path(), &[]);
    assert!(said.out.contains("sudo perfquery") && !said.out.contains("apt install"), "{said:?}");
}

#[test]
fn a_narrow_bridge_above_the_slot_is_found() {
    let folder = plant("connectx-4");
    let root = folder.path();
    let above = root.join(CARD).parent().unwrap().to_owned();
    // A switch between: its upper end is the other one of the four lanes, its lower one that of the card's eight.
    let (upper, lower) = ("0000:01:00.0", "0000:01:00.0/0000:02:08.0");
    fs::create_dir_all(above.join(lower)).unwrap();
    for (bridge, width) in [(upper, "4"), (lower, "8")] {
        for (file, value) in [("vendor", "0x10b5"), ("class", "0x060400"), ("current_link_width", width)] {
            fs::write(above.join(bridge).join(file), value).unwrap();
        }
        fs::write(above.join(bridge).join("current_link_speed"), "8.0 GT/s PCIe").unwrap();
    }
    let card = above.join(lower).join("0000:02:00.0");
    fs::rename(root.join(CARD), &card).unwrap();
    fs::write(card.join("current_link_width"), "8").unwrap();
    let again = |link: &str, target: &Path| {
        fs::remove_file(root.join(link)).unwrap();
        let up = "../".repeat(link.split('/').count() - 1);
        symlink(Path::new(&up).join(target.strip_prefix(root).unwrap()), root.join(link)).unwrap();
    };
    again("sys/bus/pci/devices/0000:02:00.0", &card);
    again(DEVICE, &card.join("infiniband/ibp2s0"));
    again("sys/class/net/ib0", &card.join("net/ib0"));
    let said = about(root, &[]).out;
    let title = "WARN  0000:02:00.0: runs at Gen3 x8 (the card can do Gen3 x16), but the way to it is Gen3 x4 at the \
                 bridge";
    assert!(said.contains(title), "{said}");
}

#[test]
fn rates_are_judged_by_what_the_card_is() {
    for (card, psid, rate, level) in [
        ("0x1003", "MT_1100120019", "56 Gb/sec (4X FDR)", "ok"),
        ("0x1003", "MT_1100120019", "40 Gb/sec (4X FDR10)", "warn"),
        ("0x1003", "MT_1080120023", "40 Gb/sec (4X QDR)", "note"),
        ("0x1003", "MT_1120120018", "40 Gb/sec (4X QDR)", "ok"),
        ("0x1003", "MT_1100120019", "14 Gb/sec (1X FDR)", "warn"),
        ("0x673c", "MT_0D80120009", "40 Gb/sec (4X QDR)", "ok"),
        ("0x1011", "MT_1210110019", "40 Gb/sec (4X QDR)", "warn"),
        ("0x1013", "MT_2180110032", "40 Gb/sec (4X QDR)", "warn"),
        ("0x1017", "MT_0000000008", "40 Gb/sec (4X FDR10)", "warn"),
        ("0x1017", "MT_0000000008", "56 Gb/sec (4X FDR)", "note"),
        ("0x101b", "MT_0000000223", "100 Gb/sec (2X HDR)", "note"),
        ("0x101b", "MT_0000000223", "200 Gb/sec (4X HDR)", "ok"),
        ("0x101b", "MT_0000000223", "50 Gb/sec (1X HDR)", "warn"),
    ] {
        let folder = plant("healthy-fdr-pair");
        let root = folder.path();
        fs::write(root.join(CARD).join("device"), card).unwrap();
        fs::write(root.join(DEVICE).join("board_id"), psid).unwrap();
        fs::write(root.join(PORT).join("rate"), rate).unwrap();
        let value: Value = serde_json::from_str(&about(root, &["--json"]).out).unwrap();
        let findings = value["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["check"] == "rate").unwrap();
        assert_eq!(finding["level"], level, "{card} {rate}: {finding}");
        let is_old = ["0x1003", "0x673c"].contains(&card);
        assert!(is_old || !finding["means"].as_str().unwrap().contains("QCBT"), "{card}: {finding}");
    }
}

#[test]
fn nobody_is_sent_to_burn_or_set_what_is_only_lent() {
    let mut lent = 0;
    for &name in MACHINES {
        let folder = plant(name);
        let device = folder.path().join(CARD).join("device");
        let Ok(number) = fs::read_to_string(&device) else { continue };
        let virtual_function = match number.trim() {
            "0x1003" | "0x1007" => "0x1004",
            "0x1013" => "0x1014",
            _ => "0x1018",
        };
        fs::write(&device, virtual_function).unwrap();
        lent += 1;
        let said = about(folder.path(), &["--verbose"]);
        for tool in ["mstflint", "mstconfig", "mget_temp", "sudo tee /sys/devices/pci"] {
            assert!(!said.out.contains(tool), "{name}: {tool}: {said:?}");
        }
    }
    assert!(lent > 10, "{lent}");
}

#[test]
fn a_card_that_calls_itself_a_serial_bus_is_found() {
    let folder = plant("half-loaded-driver");
    let root = folder.path();
    fs::write(root.join(CARD).join("device"), "0x673c\n").unwrap();
    fs::write(root.join(CARD).join("class"), "0x0c0600\n").unwrap();
    let said = about(root, &[]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.out.contains("FAIL  0000:02:00.0: a Mellanox card older than ConnectX-3"), "{said:?}");
    // One that no list of ours has, by its class alone; and a bridge, which is no card.
    fs::write(root.join(CARD).join("device"), "0x5a44\n").unwrap();
    let said = about(root, &[]);
    assert!(said.out.contains("WARN  0000:02:00.0: a Mellanox/NVIDIA card (15b3:5a44)"), "{said:?}");
    fs::write(root.join(CARD).join("class"), "0x060400\n").unwrap();
    let said = about(root, &[]);
    assert!(said.out.contains("no Mellanox/NVIDIA card on PCI"), "{said:?}");
}

#[test]
fn software_rdma_and_nbd_are_promised_only_where_the_kernel_has_them() {
    let folder = plant("no-card");
    let root = folder.path();
    let lists = root.join("lib/modules/6.1.0-18-amd64");
    let said = || about(root, &[]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said().contains("the kernel can do RDMA in software"), "{}", said());
    fs::write(lists.join("modules.dep"), "kernel/drivers/block/loop.ko.xz:\n").unwrap();
    for part in ["it has no rdma_rxe", "note this kernel has no driver of /dev/nbdN"] {
        assert!(said().contains(part), "{part}: {}", said());
    }
    assert!(!said().contains("modprobe"), "{}", said());
    fs::write(lists.join("modules.builtin"), "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko\n").unwrap();
    assert!(said().contains("the kernel can do RDMA in software"), "{}", said());
    fs::remove_dir_all(&lists).unwrap();
    for part in ["kernels that have the module rdma_rxe can", "/sbin/modinfo nbd"] {
        assert!(said().contains(part), "{part}: {}", said());
    }
    // A card whose driver is not there cannot have it loaded.
    let folder = plant("half-loaded-driver");
    fs::write(folder.path().join("lib/modules/6.1.0-18-amd64/modules.dep"), "kernel/x.ko:\n").unwrap();
    let said = about(folder.path(), &[]);
    assert!(
        said.out.contains("This kernel has no mlx4_ib.") && !said.out.contains("modprobe -a"),
        "{said:?}"
    );
}

#[test]
fn addresses_that_somebody_gave_are_told_from_those_that_made_themselves() {
    let folder = plant("soft-roce");
    let gids = folder.path().join("sys/devices/virtual/infiniband/rxe0/ports/1/gids");
    fs::write(gids.join("1"), "fd00:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
    let said = about(folder.path(), &[]).success();
    assert!(said.contains("note  rxe0 port 1: RoCE v2 at fd00::1 (entry 1), and no IPv4 address"), "{said}");
    assert!(!said.contains("makes for itself"), "{said}");
    fs::remove_file(gids.join("1")).unwrap();
    let said = about(folder.path(), &[]);
    assert!(
        said.out.contains("FAIL  rxe0 port 1: no IPv4 address") && said.out.contains("for itself"),
        "{said:?}"
    );
}

#[test]
fn a_temperature_that_cannot_be_is_no_alarm() {
    for (input, critical, text) in [
        ("45000", "105000", "ok    0000:02:00.0: 45 °C"),
        ("45000", "0", "ok    0000:02:00.0: 45 °C"),
        ("-5000", "105000", "note  0000:02:00.0: its sensor says -5 °C, which cannot be"),
        ("0", "105000", "note  0000:02:00.0: its sensor says 0 °C, which cannot be"),
        ("4294967295", "105000", "note  0000:02:00.0: its sensor says 4294967 °C, which cannot be"),
        ("91000", "-1", "WARN  0000:02:00.0: 91 °C: too hot"),
        ("101000", "100000", "FAIL  0000:02:00.0: 101 °C: far too hot"),
        ("105000", "4294967295", "FAIL  0000:02:00.0: 105 °C: far too hot"),
    ] {
        let folder = plant("connectx-5");
        let sensor = folder.path().join(CARD).join("hwmon/hwmon3");
        fs::write(sensor.join("temp1_input"), input).unwrap();
        fs::write(sensor.join("temp1_crit"), critical).unwrap();
        let said = about(folder.path(), &["--verbose"]);
        assert!(said.out.contains(text), "{input} {critical}: {said:?}");
    }
}

#[test]
fn no_file_can_draw_on_the_terminal_or_write_lines_of_its_own() {
    let folder = plant("memlock-64k");
    let root = folder.path();
    let fake = "all is well: 0 failures";
    fs::write(root.join(DEVICE).join("fw_ver"), format!("2.42.5000\n\n{fake}\n")).unwrap();
    fs::write(root.join("proc/sys/kernel/hostname"), format!("tama\r\n{fake}\n")).unwrap();
    fs::write(root.join("proc/self/limits"), "Max locked memory \x1b[2J65536 \x1b[31m65536 bytes\n").unwrap();
    fs::create_dir_all(root.join("etc/systemd/system")).unwrap();
    fs::write(root.join("etc/systemd/system/kaerud.service"), "LimitMEMLOCK=\x1b]0;x\x07 8M\r9G\n").unwrap();
    fs::write(root.join("proc/cpuinfo"), "model name : \x1b[31mCPU\n").unwrap();
    let driver = root.join(CARD).join("driver");
    fs::remove_file(&driver).unwrap();
    symlink("../../../../bus/pci/drivers/mlx4\x1b[2J_core", &driver).unwrap();
    fs::create_dir_all(root.join("sys/bus/pci/drivers/mlx4\x1b[2J_core")).unwrap();
    let said = about(root, &["--verbose"]);
    assert_eq!(said.out.chars().find(|c| c.is_control() && *c != '\n'), None, "{said:?}");
    assert!(!said.out.contains(fake), "{said:?}");
    assert!(said.out.starts_with("kaeru-doctor 0.1.0 on a machine, kernel 6.1.0-18-amd64\n"), "{said:?}");
    let verdicts =
        said.out.lines().filter(|line| line.contains(" failures, ") || line.contains(" failure, "));
    assert_eq!(verdicts.count(), 1, "{said:?}");
}

#[test]
fn what_the_library_says_counts_more_than_files() {
    let folder = plant("healthy-fdr-pair");
    let told = |active, greatest, setting: &str, library: &[&str]| {
        fs::write(folder.path().join(CARD).join("mlx4_port1_mtu"), setting).unwrap();
        let host = Host::read(folder.path());
        let aside = Aside {
            library: Some(library.iter().map(|&name| name.to_owned()).collect()),
            packets: vec![Packets { device: "ibp2s0".into(), port: 1, active, greatest }],
            ..Aside::ask(&host)
        };
        examine(&Patient { host, aside, watched: None, export: None })
    };
    let report = told(4096, 4096, "4096", &["ibp2s0"]);
    assert!(says(&report, "ok ibp2s0 port 1: its packets may have 4096 bytes"), "{report:?}");
    assert!(says(&report, "ok ibp2s0: libibverbs has a driver for it"), "{report:?}");
    let report = told(2048, 4096, "4096", &[]);
    let mtu = "note ibp2s0 port 1: its packets have at most 2048 bytes; 4096 is possible";
    assert!(says(&report, mtu) && !format!("{report:?}").contains("echo 4096"), "{report:?}");
    assert!(says(&report, "FAIL ibp2s0: libibverbs has no driver for it (mlx4)"), "{report:?}");
    let report = told(2048, 2048, "2048", &["ibp2s0"]);
    assert!(says(&report, mtu) && format!("{report:?}").contains("echo 4096"), "{report:?}");
    // Cards of mlx5 have it in no file.
    fs::remove_file(folder.path().join(CARD).join("mlx4_port1_mtu")).unwrap();
    let host = Host::read(folder.path());
    let packets = vec![Packets { device: "ibp2s0".into(), port: 1, active: 2048, greatest: 4096 }];
    let aside = Aside { packets, ..Aside::ask(&host) };
    let report = examine(&Patient { host, aside, watched: None, export: None });
    assert!(says(&report, mtu), "{report:?}");
    // An interface with room for long packets is not enough if the device does not use it.
    let folder = plant("connectx-5");
    let host = Host::read(folder.path());
    let packets = vec![Packets { device: "ibp2s0".into(), port: 1, active: 1024, greatest: 4096 }];
    let aside = Aside { packets, ..Aside::ask(&host) };
    let report = examine(&Patient { host, aside, watched: None, export: None });
    assert!(says(&report, "note ibp2s0 port 1: MTU 9000 of enp2s0 has room"), "{report:?}");
}

#[test]
fn a_machine_is_planted_in_a_folder_that_is_not_there_yet() {
    let folder = scratch();
    let new = folder.path().join("some/where");
    run(Command::new(recordings().join("plant")).arg("no-card").arg(&new)).success();
    assert!(about(&new, &[]).out.contains("on tama"));
}

#[test]
fn an_export_is_held_against_memory_and_its_limits() {
    let folder = plant("healthy-fdr-pair");
    let said = about(folder.path(), &["--export", "16G"]).success();
    assert!(said.contains("ok    a RAM export of 16 GiB would leave 11.0 GiB"), "{said}");
    let said = about(folder.path(), &["--export", "27647M"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let said = about(folder.path(), &["--export", "64G"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.out.contains("FAIL  a RAM export of 64 GiB does not fit"), "{said:?}");
    let limits = folder.path().join("proc/self/limits");
    fs::write(limits, "Max locked memory         8388608 8388608 bytes\n").unwrap();
    let said = about(folder.path(), &["--export", "16G"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("may lock 8 MiB, and the export needs 16 GiB"), "{said:?}");
}

#[test]
fn this_machine_can_be_examined_in_every_way() {
    for arguments in [&[][..], &["--verbose"], &["--json"], &["--watch", "10ms"], &["--export", "1M"]] {
        let said = doctor(arguments);
        assert!(matches!(said.code, Some(0..=2)), "{said:?}");
        assert!(said.err.is_empty() && said.out.len() > 100, "{said:?}");
        assert!(!said.out.contains('\x1b'), "colours are for terminals: {said:?}");
    }
    let handed = run_kaeru(&["doctor", "--json"]);
    assert_eq!(handed.code, doctor(&[]).code);
    serde_json::from_str::<Value>(&handed.out).unwrap();
}

#[test]
fn a_peer_tells_of_its_machine() {
    let server = Server::start(&["--null", "x=1M"]);
    let address = server.address.to_string();
    let said = doctor(&["--peer", &address, "--verbose"]);
    assert!(matches!(said.code, Some(0..=2)) && said.err.is_empty(), "{said:?}");
    assert!(said.out.contains("both ends have version"), "{said:?}");
    // Files say what they say, wherever they are.
    let folder = plant("healthy-fdr-pair");
    let said = about(folder.path(), &["--peer", &address, "--json"]);
    let value: Value = serde_json::from_str(&said.out).unwrap();
    let of_peer = |finding: &&Value| finding["section"] == "peer";
    assert!(value["findings"].as_array().unwrap().iter().any(|finding| of_peer(&finding)), "{value:#}");
    // A card here is of no use where the other machine has none, and that is what comes first.
    if Host::read(Path::new("/")).rdma.is_empty() {
        let first = &value["findings"][0];
        assert_eq!((&first["check"], &first["level"]), (&"peer-ports".into(), &"warn".into()), "{value:#}");
        let said = about(folder.path(), &["--peer", &address]);
        assert!(
            said.out.contains("note  ibp2s0 port 1: at most 6.8 GB/s, but data goes over TCP: see"),
            "{said:?}"
        );
        assert!(!said.out.contains("the link binds"), "{said:?}");
    }
}

#[test]
fn a_peer_that_does_not_answer_is_a_finding() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = doctor(&["--peer", &closed.to_string()]);
    assert_eq!(said.code, Some(2), "{said:?}");
    for part in ["cannot be asked", "Connection refused", "start kaerud"] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    // Once where it is found, and once at the end.
    assert_eq!(said.out.matches(&closed.to_string()).count(), 2, "{said:?}");
    doctor(&["--peer", "host:0"]).failure(64, &["port"]);
}

/// Lets one stream after another in, until the test ends.
fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

#[test]
fn only_what_speaks_as_kaerud_does_is_called_an_old_one() {
    let answers: [&'static [u8]; 4] =
        [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\x1b[2J garbage", b"KAERUCTL\x00\x00"];
    for answer in answers {
        let said = doctor(&[
            "--peer",
            &listen(move |mut stream| {
                let _ = stream.write_all(answer);
            }),
        ]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.out.contains("does not speak as kaerud does"), "{answer:?}: {said:?}");
        assert!(!said.out.contains("older than"), "{answer:?}: {said:?}");
    }
    // One that says nothing for as long as it is asked.
    let silent = listen(|mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let said = doctor(&["--peer", &silent]);
    assert!(said.out.contains("does not speak as kaerud does"), "{said:?}");

    // A kaerud that goes away when it hears the question that older ones do not know.
    let server = Server::start(&["--null", "x=1M"]);
    let address = server.address;
    let old = listen(move |mut client| {
        let mut server = TcpStream::connect(address).unwrap();
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let mut preamble = [0; 8];
        client.read_exact(&mut preamble).unwrap();
        server.write_all(&preamble).unwrap();
        let mut header = [0; HEADER_BYTES];
        while client.read_exact(&mut header).is_ok() && header[4..] != DESCRIBE.to_be_bytes() {
            let mut body = vec![0; u32::from_be_bytes(header[..4].try_into().unwrap()) as usize];
            client.read_exact(&mut body).unwrap();
            server.write_all(&header).unwrap();
            server.write_all(&body).unwrap();
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    });
    let said = doctor(&["--peer", &old]);
    let text = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("A kaerud is there, and did not answer."), "{said:?}");
    assert!(text.contains("install the same version"), "{said:?}");
}

#[test]
fn help_manual_completions_and_wrong_usage() {
    for arguments in [&["--help"][..], &["--version"], &["--man"], &["--completions", "bash"]] {
        let said = doctor(arguments).success();
        assert!(said.contains("kaeru-doctor"), "{arguments:?}: {said}");
    }
    assert!(run_kaeru(&["doctor", "--help"]).success().contains("kaeru-doctor"));
    // 2 would say that something does not work.
    doctor(&["--no-such-flag"]).failure(64, &["--no-such-flag"]);
    doctor(&["--watch", "0"]).failure(64, &["some time"]);
    doctor(&["--root", "/no/such/folder"]).failure(64, &["/no/such/folder", "--root"]);
    doctor(&["--root", "/etc/passwd"]).failure(64, &["is no folder"]);
    run_kaeru(&["doctor", "--no-such-flag"]).failure(64, &["--no-such-flag"]);
    assert!(doctor(&["--help"]).success().contains("64 wrong usage"));
}

#[test]
fn what_is_hidden_from_a_user_is_said() {
    let folder = plant("healthy-fdr-pair");
    let hidden = folder.path().join("sys/class/infiniband/ibp2s0/board_id");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where others than root find it.
    let program = folder.path().join("kaeru-doctor");
    fs::copy(binary("kaeru-doctor"), &program).unwrap();
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command = requires!(tool("setpriv", "util-linux"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    }
    let said = run(command.arg("--root").arg(folder.path()));
    // Nobody may use the device files, which belong to somebody else then.
    assert!(said.out.contains("whose it is cannot be read"), "{said:?}");
    assert!(said.out.contains("note  some files were hidden from this user (1)"), "{said:?}");
    assert!(said.out.contains("ibp2s0/board_id: not readable without root"), "{said:?}");
}

#[test]
fn damaged_files_neither_stop_it_nor_make_it_wait() {
    let machines: Vec<(&str, TempDir)> = MACHINES.iter().map(|&name| (name, plant(name))).collect();
    with_seeds(1..MACHINES.len() as u64 * 8, |seed| {
        let mut random = Random(seed);
        let (name, whole) = &machines[seed as usize % machines.len()];
        let folder = scratch();
        copy(whole.path(), folder.path());
        for _ in 0..=random.below(24) {
            damage(folder.path(), &mut random);
        }
        let start = Instant::now();
        // It was whole when the watch began.
        let earlier = Host::read(whole.path()).rdma;
        let host = Host::read(folder.path());
        let aside = Aside::ask(&host);
        let watched = Some(Watched { time: Duration::from_secs(1), earlier });
        let report = examine(&Patient { host, aside, watched, export: Some(1 << 30) });
        let mut out = Vec::new();
        report.print_text(Paint::PLAIN, true, &mut out).unwrap();
        report.print_json(&mut out).unwrap();
        assert!(start.elapsed() < SOON, "{name}: it took {:?}", start.elapsed());
        let text = String::from_utf8(out).unwrap();
        assert!(text.len() < 1 << 20, "{name}: {} bytes", text.len());
        assert_eq!(text.chars().find(|c| c.is_control() && *c != '\n'), None, "{name}");
    });
}

#[test]
fn a_tree_of_links_and_pipes_is_left_in_time() {
    let folder = scratch();
    let root = folder.path();
    for path in ["sys/class", "sys/bus/pci", "proc/self", "dev"] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    symlink("infiniband", root.join("sys/class/infiniband")).unwrap();
    symlink("/", root.join("sys/bus/pci/devices")).unwrap();
    symlink("/dev/zero", root.join("proc/meminfo")).unwrap();
    symlink("../../..", root.join("proc/self/status")).unwrap();
    pipe(&root.join("proc/self/limits"));
    let mut command = Command::new(binary("kaeru-doctor"));
    let said = run_within(SOON, command.arg("--root").arg(root));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("no Mellanox/NVIDIA card"), "{said:?}");
}

/// Spoils one place of a tree.
fn damage(root: &Path, random: &mut Random) {
    let mut places = Vec::new();
    collect(root, &mut places);
    if places.is_empty() {
        return;
    }
    let place = &places[random.below(places.len() as u64) as usize];
    let is_folder = fs::symlink_metadata(place).unwrap().is_dir();
    // Whole folders go more seldom: little would be left.
    if is_folder && random.below(4) > 0 {
        return;
    }
    let _ = if is_folder { fs::remove_dir_all(place) } else { fs::remove_file(place) };
    let words = [
        "",
        "\n",
        "N/A (no PMA)",
        "Unknown",
        "-1",
        "0",
        "255",
        "4294967295",
        "99999999999999999999999999",
        "0x",
        "0xzz",
        "NaN GT/s",
        "inf Gb/sec (4X FDR)",
        "56 Gb/sec (4X FDR",
        "4:",
        ":",
        "é",
        "4: ACTIVE",
        "8.0 GT/s PCIe",
        "[",
        "auto (",
        "Max locked memory",
        "0000:0000:0000:0000",
        "....",
        "99.99.99",
        "MT_",
        "\u{202e}x",
    ];
    match random.below(10) {
        0 => {}
        1 => fs::write(place, "").unwrap(),
        2 => {
            let bytes: Vec<u8> = (0..random.below(5000)).map(|_| random.below(256) as u8).collect();
            fs::write(place, bytes).unwrap();
        }
        3 => fs::File::create(place).unwrap().set_len(8 << 30).unwrap(),
        4 => fs::create_dir(place).unwrap(),
        5 => symlink(place.file_name().unwrap(), place).unwrap(),
        6 => symlink(
            ["/dev/zero", "/", "..", "/nowhere", "../../../../../../etc/passwd"][random.below(5) as usize],
            place,
        )
        .unwrap(),
        7 => pipe(place),
        8 => {
            fs::write(place, words[random.below(words.len() as u64) as usize]).unwrap();
            fs::set_permissions(place, fs::Permissions::from_mode(0o000)).unwrap();
        }
        _ => fs::write(place, words[random.below(words.len() as u64) as usize]).unwrap(),
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), &to).unwrap();
        } else if kind.is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

fn collect(folder: &Path, places: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    entries.sort();
    for path in entries {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            collect(&path, places);
        }
        places.push(path);
    }
}

fn pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}
