//! What goes wrong is said: what was tried, what was found, what to do; with exit code 1, or 2 for wrong usage.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::harness::client::{Nbd, kaeru, run_kaeru};
use crate::harness::nbd::{EIO, Raw};
use crate::harness::process::{binary, eventually, run, scratch, tool};
use crate::harness::server::{Server, run_kaerud};
use crate::requires;

#[test]
fn an_unknown_export_is_refused_with_the_known_ones() {
    let server = Server::start(&["--ram", "scratch=1M", "--ram", "photos=1M"]);
    let socket = scratch();
    let path = socket.path().join("s");
    run_kaeru(&["nbd", &server.export("scrtch"), "--socket", path.to_str().unwrap()])
        .failure(1, &["kaeru: ", "scrtch", "photos", "scratch"]);
    assert!(!path.exists());
}

#[test]
fn a_size_of_zero_or_of_nonsense_is_wrong_usage() {
    run_kaerud(&["--ram", "x=0"]).failure(2, &["x", "size 0"]);
    run_kaerud(&["--null", "x=0"]).failure(2, &["x", "size 0"]);
    run_kaerud(&["--ram", "x=1Q"]).failure(2, &["1Q", "is no size", "64K"]);
    run_kaerud(&["--ram", "x=16E"]).failure(2, &["16E", "too large"]);
    run_kaerud(&[]).failure(2, &["nothing to export", "--ram NAME=SIZE"]);
}

#[test]
fn more_memory_than_there_is_is_refused_at_once() {
    let start = Instant::now();
    run_kaerud(&["--ram", "x=1P", "--listen", "127.0.0.1:0"])
        .failure(1, &["1 PiB", "do not fit", "available", "export less"]);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_memory_lock_limit_is_named_with_the_need_and_the_way_out() {
    // Where others than root find it.
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("kaerud");
    fs::copy(binary("kaerud"), &program).unwrap();
    let mut command = requires!(tool("prlimit", "util-linux"));
    command.arg("--memlock=65536:65536");
    if rustix::process::geteuid().is_root() {
        requires!(tool("setpriv", "util-linux"));
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.arg(&program).args(["--ram", "scratch=16M", "--listen", "127.0.0.1:0"]);
    run(&mut command)
        .failure(1, &["16 MiB", "64 KiB", "ulimit -l", "limits.conf", "LimitMEMLOCK", "--no-lock"]);
}

#[test]
fn a_busy_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run_kaerud(&["--null", "x=1M", "--listen", &address])
        .failure(1, &[&address, "in use", "another kaerud?", "--listen"]);
}

#[test]
fn an_address_of_another_machine_is_not_listened_on() {
    run_kaerud(&["--null", "x=1M", "--listen", "192.0.2.1", "--insecure"])
        .failure(1, &["192.0.2.1", "no address of this machine", "ip addr"]);
}

#[test]
fn strangers_are_let_in_only_by_an_explicit_word() {
    run_kaerud(&["--null", "x=1M", "--listen", "0.0.0.0:0"])
        .failure(2, &["0.0.0.0:0", "--insecure", "127.0.0.1"]);
    run_kaerud(&["--null", "x=1M", "--listen", "[::]:0"]).failure(2, &["--insecure"]);
    Server::start_at("0.0.0.0:0", &["--null", "x=1M", "--insecure"]);
}

#[test]
fn a_second_writer_is_refused_with_the_name_of_the_first() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let first = Nbd::unix(&server, "scratch");
    let path = first.folder().join("second");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    run(&mut kaeru(first.folder(), &["nbd", &server.export("scratch"), "--socket", path.to_str().unwrap()]))
        .failure(1, &["refuses", &host, "has been writing", " s"]);
    // Readers are let in beside it, and see what it writes.
    let reader = Nbd::unix_with(&server, "scratch", &["--read-only"]);
    Raw::attach(&first).write(100, b"seen").unwrap();
    assert_eq!(Raw::attach(&reader).read(100, 4).unwrap(), b"seen");
    // Once the first has gone, a second is welcome.
    drop(first);
    eventually("the right to write comes back", || {
        let listed = run_kaeru(&["ls", "--json", &server.address.to_string()]).success();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        listed["exports"][0]["writer"].is_null()
    });
    Raw::attach(&Nbd::unix(&server, "scratch")).write(0, b"second").unwrap();
}

#[test]
fn a_thief_gets_the_export_and_the_old_writer_cannot_write_any_more() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut old = Nbd::unix(&server, "scratch");
    let mut client = Raw::attach(&old);
    client.write(0, b"old").unwrap();
    let new = Nbd::unix_with(&server, "scratch", &["--steal"]);
    let mut thief = Raw::attach(&new);
    assert_eq!(thief.read(0, 3).unwrap(), b"old");
    thief.write(0, b"new").unwrap();

    // Its clients get an error or the end at once, not silence; the process then says why it ends.
    let start = Instant::now();
    let mut header = crate::harness::nbd::request_bytes(1, 0, 9, 0, 3);
    header.extend(b"late");
    let _ = client.stream.write_all(&header[..31]);
    let mut answer = [0; 16];
    if client.stream.read_exact(&mut answer).is_ok() {
        assert_eq!(answer[4..8], EIO.to_be_bytes());
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(thief.read(0, 3).unwrap(), b"new", "a late write does not land");
    let status = old.process.ended_within(Duration::from_secs(5)).expect("it ends without its export");
    assert_eq!(status.code(), Some(1));
    let errors = old.process.errors();
    assert!(errors.contains("another client took the right to write"), "{errors}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_the_reason() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for arguments in [vec!["ls", &nobody], vec!["nbd", &format!("{nobody}/x"), "--listen", "127.0.0.1:0"]] {
        run_kaeru(&arguments).failure(1, &[&nobody, "cannot reach", "refused", "is kaerud running"]);
    }
    run_kaeru(&["ls", "no-such-host.invalid"])
        .failure(1, &["cannot find no-such-host.invalid", "check the name"]);
}

#[test]
fn a_program_that_is_no_kaerud_is_told_from_one() {
    let (address, _guard) = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let guard = std::thread::spawn(move || {
            use std::io::Write;
            if let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        (address.to_string(), guard)
    };
    run_kaeru(&["ls", &address]).failure(1, &[&address, "does not speak Kaeru"]);
}

#[test]
fn verbs_without_a_device_is_refused_on_either_side_and_says_why() {
    if std::path::Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut devices| devices.next().is_some())
    {
        return crate::harness::requires::skip("verbs_without_a_device", "this machine has a device");
    }
    let missing = if cfg!(feature = "verbs") { "no RDMA device" } else { "without RDMA" };
    run_kaerud(&["--null", "x=1M", "--listen", "127.0.0.1:0", "--fabric", "verbs"])
        .failure(1, &["--fabric verbs was asked for", missing]);
    let server = Server::start(&["--null", "x=1M"]);
    run_kaeru(&["nbd", &server.export("x"), "--listen", "127.0.0.1:0", "--fabric", "verbs"])
        .failure(1, &["no lane over verbs", missing]);
}

#[test]
fn a_name_that_is_no_export_name_is_wrong_usage() {
    for name in ["a/b", "", "x\n"] {
        run_kaerud(&["--ram", &format!("{name}=1M")]).failure(2, &["is no export name"]);
    }
    run_kaerud(&["--ram", &format!("{}=1M", "x".repeat(256))]).failure(2, &["export name"]);
    run_kaeru(&["nbd", "host/", "--listen", "127.0.0.1:0"]).failure(2, &["empty"]);
    run_kaeru(&["nbd", "host", "--listen", "127.0.0.1:0"]).failure(2, &["HOST/EXPORT"]);
    run_kaerud(&["--ram", "x=1M", "--ram", "x=2M"]).failure(2, &["two exports are called x"]);
}

#[test]
fn a_configuration_that_does_not_fit_is_wrong_usage_and_says_where() {
    let folder = scratch();
    let wrong = |text: &str, parts: &[&str]| {
        let path = folder.path().join("kaerud.toml");
        fs::write(&path, text).unwrap();
        run_kaerud(&["--config", path.to_str().unwrap()]).failure(2, parts);
    };
    wrong("lisen = \"127.0.0.1\"\n", &["kaerud.toml", "line 1", "lisen"]);
    wrong("listen = \"somewhere\"\n", &["somewhere", "is no address"]);
    wrong("[[export]]\nname = \"x\"\nkind = \"tape\"\nsize = \"1M\"\n", &["line 3", "tape"]);
    wrong("[[export]]\nname = \"x\"\nkind = \"ram\"\nsize = \"many\"\n", &["line 4", "many"]);
    wrong("[[export]]\nname = \"x\"\nkind = \"ram\"\n", &["size"]);
    wrong("[[export]\n", &["line 1"]);
    wrong("", &["nothing to export"]);
    run_kaerud(&["--config", "/does/not/exist"]).failure(2, &["/does/not/exist", "No such file"]);
}

#[test]
fn nbd_is_not_served_to_other_machines() {
    let server = Server::start(&["--null", "x=1M"]);
    run_kaeru(&["nbd", &server.export("x"), "--listen", "0.0.0.0:0"]).failure(1, &["0.0.0.0:0", "127.0.0.1"]);
}

#[test]
fn an_nbd_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let server = Server::start(&["--null", "x=1M"]);
    run_kaeru(&["nbd", &server.export("x"), "--listen", &address])
        .failure(1, &[&address, "cannot listen", "in use"]);
}

#[test]
fn a_read_only_attachment_needs_no_right_to_write() {
    let server = Server::start(&["--ram", "fixed=1M", "--read-only", "fixed"]);
    let readers: Vec<Nbd> = (0..3).map(|_| Nbd::unix(&server, "fixed")).collect();
    for reader in &readers {
        Raw::attach(reader).read(0, 512).unwrap();
    }
}
