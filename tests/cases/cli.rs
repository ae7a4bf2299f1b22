//! `kaerud` and `kaeru` as people and scripts use them: output, status, detach, sockets left behind.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::time::Duration;

use serde_json::Value;

use crate::harness::bench::run_bench;
use crate::harness::client::{Nbd, kaeru, run_kaeru};
use crate::harness::nbd::Raw;
use crate::harness::process::{eventually, run, scratch};
use crate::harness::server::{Server, run_kaerud};

fn status(nbd: &Nbd) -> Vec<Value> {
    let text = nbd.kaeru(&["status", "--json"]).success();
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
}

#[test]
fn help_version_manual_and_completions_succeed() {
    for arguments in [&["--help"][..], &["--version"], &["--man"], &["--completions", "bash"]] {
        let said = run_kaerud(arguments).success();
        assert!(said.contains("kaerud"), "{arguments:?}: {said}");
    }
    for arguments in [&["--help"][..], &["--version"], &["man"], &["completions", "bash"], &["nbd", "--help"]]
    {
        let said = run_kaeru(arguments).success();
        assert!(said.contains("kaeru"), "{arguments:?}: {said}");
    }
}

/// The page is all that `man` shows, so the options of the commands are on it.
#[test]
fn the_manual_has_the_options_of_every_command() {
    let page = run_kaeru(&["man"]).success();
    for part in ["kaeru attach", "kaeru nbd", "\\-\\-steal", "\\-\\-socket", "KAERU_RUNTIME_DIR"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let page = run_bench(&["--man"]).success();
    for part in ["\\-\\-stages", "\\-\\-sizes", "kaeru-bench compare", "OVERWRITES"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn wrong_usage_is_told_from_failure() {
    run_kaerud(&["--no-such-flag"]).failure(2, &["--no-such-flag", "Usage"]);
    run_kaeru(&[]).failure(2, &["Usage"]);
    run_kaeru(&["no-such-command"]).failure(2, &["no-such-command"]);
    run_kaeru(&["nbd", "host/x"]).failure(2, &["--socket"]);
    run_kaeru(&["nbd", "host/x", "--listen", "127.0.0.1:0", "--timeout", "5"])
        .failure(2, &["is no time", "30s"]);
    run_kaeru(&["ls", "host:0"]).failure(2, &["port"]);
}

#[test]
fn ls_shows_every_export_as_a_table_and_as_json() {
    let server = Server::start(&[
        "--ram",
        "scratch=64M",
        "--null",
        "void=1T",
        "--ram",
        "fixed=4097",
        "--read-only",
        "fixed",
    ]);
    let _writer = Nbd::unix(&server, "scratch");
    let address = server.address.to_string();
    let table = run_kaeru(&["ls", &address]).success();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "KIND", "SIZE", "MODE", "WRITER"]);
    assert_eq!(rows[1], ["fixed", "ram", "4097 bytes", "read-only", "-"]);
    assert_eq!(rows[2], ["scratch", "ram", "64 MiB", "read-write", &host]);
    assert_eq!(rows[3], ["void", "null", "1 TiB", "read-write", "-"]);

    let json: Value = serde_json::from_str(&run_kaeru(&["ls", "--json", &address]).success()).unwrap();
    assert_eq!(json["server"], host);
    assert!(
        json["fabrics"]
            .as_array()
            .unwrap()
            .iter()
            .any(|fabric| fabric["fabric"] == "tcp" && fabric["address"] == address)
    );
    let fixed = &json["exports"][0];
    assert_eq!(
        (&fixed["name"], &fixed["kind"], &fixed["size"]),
        (&"fixed".into(), &"ram".into(), &4097.into())
    );
    assert_eq!(
        (&fixed["read_only"], &fixed["volatile"], &fixed["writer"]),
        (&true.into(), &true.into(), &Value::Null)
    );
    assert_eq!(json["exports"][1]["writer"], host);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let server = Server::start(&["--null", "x=1M"]);
    let mut command = std::process::Command::new("sh");
    let program = crate::harness::process::binary("kaeru");
    command.args(["-c", "\"$0\" ls \"$1\" | true"]).arg(program).arg(server.address.to_string());
    let ended = run(&mut command);
    assert!(!ended.err.contains("panicked") && !ended.err.contains("kaeru:"), "{ended:?}");
    ended.success();
}

#[test]
fn status_says_how_an_attachment_is() {
    let server = Server::start(&["--ram", "scratch=64M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    raw.write(0, &[1; 8192]).unwrap();
    raw.read(0, 4096).unwrap();
    let reports = status(&nbd);
    assert_eq!(reports.len(), 1);
    let report = &reports[0];
    for (field, value) in [
        ("pid", Value::from(nbd.process.pid())),
        ("target", server.export("scratch").into()),
        ("device", Value::Null),
        ("listen", format!("nbd+unix:///?socket={}", nbd.socket().display()).into()),
        ("state", "ok".into()),
        ("size", (64 << 20).into()),
        ("read_only", false.into()),
        ("fabric", "tcp".into()),
        ("lanes", 1.into()),
        ("trouble", Value::Null),
    ] {
        assert_eq!(report[field], value, "{field} in {report:#}");
    }
    let text = nbd.kaeru(&["status"]).success();
    for part in [server.export("scratch").as_str(), "is ok", "64 MiB", "tcp", "not encrypted"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn status_of_nothing_is_nothing() {
    assert_eq!(run_kaeru(&["status", "--json"]).success().trim(), "[]");
    assert_eq!(run_kaeru(&["status"]).success().trim(), "nothing is attached");
    run_kaeru(&["detach", "--all"]).success();
    run_kaeru(&["detach", "host/x"]).failure(1, &["host/x is not attached", "nothing"]);
}

#[test]
fn detach_ends_the_process_and_takes_its_socket_away() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    for what in [server.export("scratch").as_str(), "--all"] {
        let mut nbd = Nbd::unix(&server, "scratch");
        let mut client = Raw::attach(&nbd);
        client.write(0, b"before").unwrap();
        nbd.kaeru(&["detach", what]).failure(1, &["stays attached", "1 NBD client is connected", "--force"]);
        assert_eq!(client.read(0, 6).unwrap(), b"before");
        nbd.kaeru(&["detach", "--force", what]).success();
        let ended = nbd.process.ended_within(Duration::from_secs(5)).expect("it ends");
        assert_eq!(ended.code(), Some(0));
        assert!(client.is_closed());
        assert!(!nbd.socket().exists());
        assert_eq!(status(&nbd), [] as [Value; 0]);
        assert_eq!(fs::read_dir(nbd.folder()).unwrap().count(), 0, "no note stays behind");
    }
}

#[test]
fn detach_takes_a_socket_by_the_name_that_status_shows_and_by_its_path() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    for is_path in [false, true] {
        let mut nbd = Nbd::unix(&server, "scratch");
        let shown = status(&nbd)[0]["listen"].as_str().unwrap().to_owned();
        let path = nbd.socket().display().to_string();
        assert!(nbd.kaeru(&["status"]).success().contains(&shown));
        // A client that has gone is no reason to refuse.
        drop(Raw::attach(&nbd));
        nbd.kaeru(&["detach", if is_path { &path } else { &shown }]).success();
        assert!(nbd.process.ended_within(Duration::from_secs(5)).is_some());
    }
}

#[test]
fn detach_of_something_else_names_what_there_is() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix(&server, "scratch");
    nbd.kaeru(&["detach", "10.0.0.1/other"]).failure(1, &["10.0.0.1/other", &server.export("scratch")]);
    assert!(nbd.process.is_alive());
}

#[test]
fn a_killed_process_is_reported_as_dead_and_cleaned_up() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix(&server, "scratch");
    nbd.process.kill();
    let reports = status(&nbd);
    assert_eq!((&reports[0]["state"], &reports[0]["pid"]), (&"dead".into(), &nbd.process.pid().into()));
    assert!(reports[0]["detail"].as_str().unwrap().contains("kaeru detach"));
    nbd.kaeru(&["detach", &server.export("scratch")]).success();
    assert_eq!(status(&nbd), [] as [Value; 0]);
}

#[test]
fn status_sees_a_lost_server() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix(&server, "scratch");
    server.process.kill();
    let ended = nbd.process.ended_within(Duration::from_secs(10)).expect("it ends with its server");
    assert_eq!(ended.code(), Some(1));
    let errors = nbd.process.errors();
    assert!(errors.contains("I/O errors"), "{errors}");
    assert!(!nbd.socket().exists());
}

#[test]
fn detach_ends_the_live_process_although_a_killed_one_left_a_note() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix(&server, "scratch");
    let target = server.export("scratch");
    for (name, device) in [("aaa", "null"), ("nbd99", "\"/dev/nbd99\"")] {
        let note = format!(r#"{{"pid":999999,"target":"{target}","device":{device},"listen":null}}"#);
        std::fs::write(nbd.folder().join(format!("{name}.json")), note).unwrap();
    }
    nbd.kaeru(&["detach", &target]).success();
    assert!(nbd.process.ended_within(Duration::from_secs(5)).is_some(), "the live process goes on");
    let left = nbd.kaeru(&["status", "--json"]).success();
    assert_eq!(left.trim(), "[]", "notes of killed processes stay behind");
}

#[test]
fn a_stale_socket_is_reused_and_a_live_one_is_not() {
    let server = Server::start(&["--ram", "scratch=1M", "--ram", "other=1M"]);
    let mut first = Nbd::unix(&server, "scratch");
    let path = first.socket().to_owned();
    let socket = path.to_str().unwrap().to_owned();
    run(&mut kaeru(first.folder(), &["nbd", &server.export("other"), "--socket", &socket]))
        .failure(1, &[&socket, "another program", "--socket"]);
    Raw::attach(&first).write(0, b"undisturbed").unwrap();
    first.process.kill();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "it is left behind");
    let second = Nbd::unix_at(&server, "other", &path);
    Raw::attach(&second).write(0, b"served").unwrap();
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let folder = scratch();
    let (file, link, inner) =
        (folder.path().join("file"), folder.path().join("link"), folder.path().join("folder"));
    fs::write(&file, "precious").unwrap();
    symlink(&file, &link).unwrap();
    fs::create_dir(&inner).unwrap();
    for path in [&file, &link, &inner] {
        let path = path.to_str().unwrap();
        run_kaeru(&["nbd", &server.export("scratch"), "--socket", path])
            .failure(1, &[path, "no socket", "stays as it is"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && inner.is_dir());
    // A failed start gives the right to write back.
    eventually("the export is free", || {
        run_kaeru(&["ls", &server.address.to_string()]).success().lines().any(|line| line.ends_with(" -"))
    });
}

#[test]
fn a_socket_path_that_is_too_long_is_an_error() {
    let server = Server::start(&["--null", "x=1M"]);
    let folder = scratch();
    let path = folder.path().join("x".repeat(120));
    run_kaeru(&["nbd", &server.export("x"), "--socket", path.to_str().unwrap()])
        .failure(1, &["cannot listen"]);
}

#[test]
fn a_relative_socket_path_is_shown_as_it_can_be_found() {
    let server = Server::start(&["--null", "x=1M"]);
    let folder = scratch();
    let mut command = kaeru(folder.path(), &["nbd", &server.export("x"), "--socket", "here.sock"]);
    command.current_dir(folder.path());
    let mut process = crate::harness::process::Process::start("kaeru nbd", command);
    let absolute = folder.path().join("here.sock");
    process
        .wait_for_line("the absolute path", |line| line.ends_with(absolute.to_str().unwrap()).then_some(()));
}

#[test]
fn kaerud_says_what_it_exports_before_it_is_ready() {
    let folder = scratch();
    let config = folder.path().join("kaerud.toml");
    let text = "listen = \"127.0.0.1:0\"\nfabric = \"tcp\"\nlock = false\n[[export]]\nname = \"from-file\"\nkind = \"ram\"\n\
                size = \"2M\"\n";
    fs::write(&config, text).unwrap();
    let mut command =
        crate::harness::server::kaerud(&["--config", config.to_str().unwrap(), "--null", "from-flag=1M"]);
    command.args(["--read-only", "from-file"]);
    let mut process = crate::harness::process::Process::start("kaerud", command);
    for part in [
        "listening on 127.0.0.1:",
        "export from-file: ram, 2 MiB, read-only",
        "export from-flag: null, 1 MiB",
        "verbs: not offered",
        "tcp: 127.0.0.1:",
    ] {
        process.wait_for_line(part, |line| line.contains(part).then_some(()));
    }
    process.wait_for_line("ready", |line| (line == "ready").then_some(()));
}
