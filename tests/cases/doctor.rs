//! `kaeru-doctor` on recorded machines, on this one, and on files that no machine has.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kaeru_common::host::Host;
use kaeru_tools::doctor::report::Paint;
use kaeru_tools::doctor::{Aside, Patient, Watched, examine};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::client::run_kaeru;
use crate::harness::machine::{MACHINES, plant, recordings};
use crate::harness::process::{Outcome, SOON, binary, run, run_within, scratch, tool};
use crate::harness::random::{Random, with_seeds};
use crate::harness::server::Server;
use crate::requires;

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
    a_healthy_pair_gets_no_advice_but_to_cool_the_card "healthy-fdr-pair" 0;
    a_missing_subnet_manager_is_named "no-subnet-manager" 2;
    a_port_in_the_wrong_mode_is_named "wrong-port-mode" 2;
    a_slow_slot_is_named_with_what_it_costs "gen2-x4-slot" 1;
    a_bad_cable_is_named "bad-cable" 1;
    a_lost_guid_is_named "zero-guid" 2;
    the_firmware_of_another_maker_is_left_alone "oem-firmware" 1;
    a_small_memlock_is_named "memlock-64k" 2;
    a_machine_without_a_card_is_told_what_it_can_do "no-card" 1;
    a_driver_that_is_half_there_is_named "half-loaded-driver" 2;
    soft_roce_is_called_software "soft-roce" 0;
    a_connectx_3_pro_on_ethernet_is_examined "roce-40g" 1;
    a_connectx_4_behind_a_narrow_bridge_is_examined "connectx-4" 1;
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
    let counter = |name: &str, value: &str| {
        let path = format!("sys/class/infiniband/ibp2s0/ports/1/counters/{name}");
        fs::write(folder.path().join(path), value).unwrap();
    };
    let watch = |before: &[(&str, &str)], after: &[(&str, &str)]| {
        before.iter().for_each(|(name, value)| counter(name, value));
        let host = Host::read(folder.path());
        after.iter().for_each(|(name, value)| counter(name, value));
        let watched = Watched { time: Duration::from_secs(10), later: Host::read(folder.path()).rdma };
        let aside = Aside::ask(&host);
        finding(&Patient { host, aside, watched: Some(watched), export: None }, "errors-added")
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
    let said = doctor(&["--peer", &address]);
    assert!(matches!(said.code, Some(0..=2)) && said.err.is_empty(), "{said:?}");
    assert!(
        said.out.contains("The other machine") && said.out.contains("both ends have version"),
        "{said:?}"
    );
    // Files say what they say, wherever they are.
    let folder = plant("healthy-fdr-pair");
    let said = about(folder.path(), &["--peer", &address, "--json"]);
    let value: Value = serde_json::from_str(&said.out).unwrap();
    let of_peer = |finding: &&Value| finding["section"] == "peer";
    assert!(value["findings"].as_array().unwrap().iter().any(|finding| of_peer(&finding)), "{value:#}");
}

#[test]
fn a_peer_that_does_not_answer_is_a_finding() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = doctor(&["--peer", &closed.to_string()]);
    assert_eq!(said.code, Some(2), "{said:?}");
    for part in ["The other machine", "cannot be asked", "Connection refused", "start kaerud"] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    doctor(&["--peer", "host:0"]).failure(2, &["port"]);
}

#[test]
fn help_manual_completions_and_wrong_usage() {
    for arguments in [&["--help"][..], &["--version"], &["--man"], &["--completions", "bash"]] {
        let said = doctor(arguments).success();
        assert!(said.contains("kaeru-doctor"), "{arguments:?}: {said}");
    }
    assert!(run_kaeru(&["doctor", "--help"]).success().contains("kaeru-doctor"));
    doctor(&["--no-such-flag"]).failure(2, &["--no-such-flag"]);
    doctor(&["--watch", "0"]).failure(2, &["some time"]);
    doctor(&["--root", "/no/such/folder"]).failure(2, &["/no/such/folder", "--root"]);
    doctor(&["--root", "/etc/passwd"]).failure(2, &["is no folder"]);
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
        let host = Host::read(folder.path());
        let later = Host::read(folder.path()).rdma;
        let aside = Aside::ask(&host);
        let watched = Some(Watched { time: Duration::from_secs(1), later });
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
